"""Commands for folders of images and model directories: learn, check, predict, evaluate, info, export, forget."""

import csv
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from etag.cli.printing import echo, echo_json

if TYPE_CHECKING:
    from etag.app.labels import WrongLabel
    from etag.app.lessons import LessonResult
    from etag.app.predicting import Prediction

app = typer.Typer()
version_commands = typer.Typer(help="Manage the versions of a model.", no_args_is_help=True)

Model = Annotated[Path, typer.Argument(help="A model directory: of `etag learn`, or of a finished `etag run`.")]
Workers = Annotated[int, typer.Option(help="Processes that decode images in advance.", min=0)]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any option: train.steps=300.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done and how long it would take.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def _load_plugins(files: list[str] | None) -> list[str]:
    """Load plug-ins as soon as the option is read; installed ones are loaded even if none is named."""
    from etag.experiments import plugins

    return plugins.load(files or [])


def _load_named_plugins(files: list[str] | None) -> list[str]:
    """Load only what this command line names: a model that somebody else made is looked at with nothing else."""
    if not files:
        return []
    from etag.experiments import plugins

    return plugins.load_files(files)


_PLUGIN: dict[str, Any] = {"metavar": "FILE", "help": "Python file with your own methods etc."}
Plugins = Annotated[list[str] | None, typer.Option("--plugin", callback=_load_plugins, **_PLUGIN)]
NamedPlugins = Annotated[list[str] | None, typer.Option("--plugin", callback=_load_named_plugins, **_PLUGIN)]
NONE_OF_THESE = "(none of these)"


@app.command()
def learn(
    model: Annotated[Path, typer.Argument(help="The model directory; the first `etag learn` creates it.")],
    folder: Annotated[Path, typer.Argument(help="A folder with one sub-folder of images per new class.")],
    update: Annotated[
        bool, typer.Option("--update", help="Add images to classes that the model already knows.")
    ] = False,
    method: Annotated[str | None, typer.Option(help="Method of a new model (see `etag methods`).")] = None,
    weights: Annotated[
        str | None, typer.Option(help="Pre-trained weights of a new model (see `etag backbones`).")
    ] = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Train a network of its own, without pre-trained weights.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Random seed of a new model.")] = None,
    cache_features: Annotated[
        bool,
        typer.Option(
            "--cache-features", help="Keep features of the images in the user's cache: learning them again is faster."
        ),
    ] = False,
    on: Annotated[
        Literal["local", "ray"],
        typer.Option(
            help="Where features of a frozen network are computed: here, or by Ray workers, which read the files. "
            "Refused if the lesson trains the network."
        ),
    ] = "local",
    address: Annotated[
        str | None, typer.Option(help="For --on ray: address of a cluster (default: start one here).")
    ] = None,
    setting: Settings = None,
    dry_run: DryRun = False,
    plugin: Plugins = None,
) -> None:
    """Learn new classes from a folder of images; no image is stored."""
    from etag.app.lessons import learn_folder

    ray = None
    if on == "ray":
        from etag.app.ray_features import RayFeatures

        ray = RayFeatures(address, plugin or [])
    elif address is not None:
        from etag.core.errors import EtagError

        raise EtagError("--address is for `--on ray`: add that, or leave it out.")
    named = {"method": method, "model.weights": weights, "seed": seed}
    given = {key: value for key, value in named.items() if value is not None}
    try:
        result = learn_folder(
            model,
            folder,
            given,
            setting or [],
            update=update,
            from_scratch=from_scratch,
            print_line=echo,
            dry_run=dry_run,
            cache_features=cache_features,
            ray=ray,
        )
    except KeyboardInterrupt as stopped:
        echo(f"interrupted: '{model}' is unchanged; the same command continues.", err=True)
        raise typer.Exit(getattr(stopped, "exit_code", 130)) from None
    if result is not None:
        _print_result(model, result)


def _print_result(model: Path, result: "LessonResult") -> None:
    from etag.core.text import data_size, duration
    from etag.evaluation.intervals import accuracy_interval
    from etag.learner.calibration import ENOUGH
    from etag.learner.model_directory import ModelDirectory

    def interval(right: int, images: int) -> str:
        low, high = accuracy_interval(right, images)
        return f"95 % interval: {low:.1%} to {high:.1%}"

    lesson = result.lesson
    kind = "known" if lesson.kind == "update" else "new"
    echo(f"learned {len(lesson.classes)} classes from {lesson.images} images in {duration(lesson.seconds)}.")
    right, images = map(sum, zip(*result.per_class.values(), strict=True))
    if images:
        echo(
            f"{kind} classes: {right / images:.1%} of {images} held-out images are classified correctly "
            f"({interval(right, images)}; all known classes compete)"
            + (". Then the model learned these images, too:" if result.learned_held_out else "")
        )
    for name, (right, images) in result.per_class.items():
        if images:
            echo(f"  {right / images:6.1%}  {name} ({right} of {images}; {interval(right, images)})")
        else:
            echo(f"          {name} (not tested: its only image was needed for training)")
    if result.calibration.threshold is None:
        echo(f"`etag predict --reject` cannot be used yet: it needs {ENOUGH} held-out images.")
    _print_some("likely in the wrong folder", map(_wrong_label, result.wrong_labels))
    if result.calibration.generated_accuracy is not None:
        earlier = [past.evaluation for past in result.about.history[:-1] if past.evaluation is not None]
        echo(
            "old classes: their images are not stored, so they cannot be tested. Accuracy on generated features: "
            f"{result.calibration.generated_accuracy:.1%} (expect less on real images). Accuracy when first learned: "
            f"{', '.join(f'{evaluation.accuracy:.1%}' for evaluation in earlier)}."
        )
    sizes = ModelDirectory(model).sizes()
    echo(f"{model}: {data_size(sum(sizes.values()))}; predicting needs {data_size(sizes['classifier'])} of it.")


def _print_some(title: str, lines: Iterable[str], most: int = 10) -> None:
    """Print some of the lines below a title, and how many more there are; nothing if there are none."""
    found = list(lines)
    if found:
        echo(f"{title}: {len(found)}")
    for line in found[:most]:
        echo(f"  {line}")
    if len(found) > most:
        echo(f"  and {len(found) - most} more")


def _wrong_label(found: "WrongLabel") -> str:
    return f"{found.path}: in the folder of '{found.label}', looks like '{found.predicted}'"


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="A folder with one sub-folder of images per class.")],
    model: Annotated[Path | None, typer.Option(help="A model: compare its known classes with its predictions.")] = None,
    as_json: AsJson = False,
    workers: Workers = 1,
    _plugin: NamedPlugins = None,
) -> None:
    """Check a folder before it is learned. The exit code is 1 if something was found, 0 if not."""
    from etag.app.checking import FEW, check_folder

    result = check_folder(folder, model, workers)
    if as_json:
        echo_json(result.to_json(), indent=1)
    else:
        echo(f"{folder}: {sum(result.classes.values())} images of {len(result.classes)} classes")
        for name, count in result.classes.items():
            echo(f"  {count:6}  {name}")
        _print_some(
            "cannot be read",
            (f"{path}: {reason}" for path, reason in result.unreadable.items()),
            len(result.unreadable),
        )
        copies = "the same content in several classes, where at most one label is right"
        _print_some(copies, map(" = ".join, result.copies_across_classes))
        _print_some("the same content several times in one class", map(" = ".join, result.copies))
        _print_some(f"classes of fewer than {FEW} images", (f"{result.classes[name]:6}  {name}" for name in result.few))
        _print_some("likely in the wrong folder", map(_wrong_label, result.wrong_labels))
        _print_some(f"'{model}' predicts another class", map(_wrong_label, result.contradicted))
        if result.left_out is not None:
            echo(result.left_out)
        if not result.found:
            echo("nothing was found.")
    if result.found:
        raise typer.Exit(1)


@app.command()
def predict(
    model: Model,
    paths: Annotated[
        list[str] | None,
        typer.Argument(help="Files, folders or patterns; without any, a list of files is read from stdin."),
    ] = None,
    form: Annotated[
        Literal["table", "json", "csv"], typer.Option("--format", help="csv has the columns path,class,probability.")
    ] = "table",
    top: Annotated[int, typer.Option(help="Number of classes to print per image.", min=1)] = 1,
    reject: Annotated[
        bool, typer.Option("--reject", help="Print 'none of these' for images unlike all known classes.")
    ] = False,
    explain: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write a picture per image there: which places speak for its class."),
    ] = None,
    workers: Workers = 1,
    _plugin: NamedPlugins = None,
) -> None:
    """Predict the classes of images. Files that cannot be read are reported and do not stop the rest."""
    from etag.app.folders import image_files
    from etag.app.predicting import predict_files
    from etag.learner.model_directory import ModelDirectory

    classifier, about = ModelDirectory(model).load_classifier()
    given = paths or [line.rstrip("\n") for line in sys.stdin if line.strip()]
    predictions = predict_files(classifier, about, list(image_files(given)), top=top, reject=reject, workers=workers)
    if explain is not None:
        from etag.app.explaining import explain_files

        predictions = explain_files(classifier, about, predictions, explain)
    unreadable = _print_predictions(predictions, form, pictures=explain is not None)
    for prediction in unreadable:
        echo(f"{prediction.path} cannot be read: {prediction.error}.", err=True)
    if unreadable:
        raise typer.Exit(1)


def _print_predictions(predictions: Iterable["Prediction"], form: str, pictures: bool) -> "list[Prediction]":
    """Print predictions, with `pictures` also the files of their pictures; returns those whose file is unreadable."""
    from etag.core.text import csv_cell, printable

    failed = []
    rows = csv.writer(sys.stdout, lineterminator="\n")
    if form == "csv":
        rows.writerow(["path", "class", "probability", *(["picture"] if pictures else [])])
    for prediction in predictions:
        if prediction.error is not None:
            failed.append(prediction)
            continue
        classes = list(zip(prediction.classes, prediction.probabilities, strict=True))
        picture = [prediction.picture or ""] if pictures else []
        if form == "json":
            values = [{"class": name, "probability": round(value, 6)} for name, value in classes]
            found = {"path": prediction.path, "predictions": values}
            echo_json(found | ({"picture": prediction.picture} if pictures else {}))
        elif form == "csv":
            cells = ([prediction.path, name, f"{value:.6f}", *picture] for name, value in classes or [("", 0.0)])
            rows.writerows(map(csv_cell, row) for row in cells)
        else:
            words = [f"{value:6.1%}  {name}" for name, value in classes] or [f"        {NONE_OF_THESE}"]
            echo("\t".join(map(printable, [prediction.path, *words, *picture])))
    return failed


@app.command()
def evaluate(
    model: Model,
    folder: Annotated[Path, typer.Argument(help="Images of known classes, one sub-folder per class.")],
    unknown: Annotated[Path | None, typer.Option(help="Folder of images of no known class; adds AUROC.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the confusion matrix as a figure (.png, .svg, .pdf).")] = None,
    as_json: AsJson = False,
    workers: Workers = 1,
    _plugin: NamedPlugins = None,
) -> None:
    """Measure the accuracy of a model on labeled images."""
    from etag.app.evaluating import evaluate_folder

    evaluation = evaluate_folder(model, folder, unknown, out, workers)
    if as_json:
        echo_json(evaluation.to_json(), indent=1)
        return
    echo(f"{evaluation.images} images of {len(evaluation.per_class)} classes: {evaluation.accuracy:.1%} right")
    for name, (count, accuracy) in evaluation.per_class.items():
        echo(f"  {accuracy:6.1%}  of {count:5}  {name}")
    echo(f"calibration error (ECE): {evaluation.calibration_error:.3f}")
    if evaluation.auroc is not None:
        echo(f"known against unknown images (AUROC): {evaluation.auroc:.3f}")
    if evaluation.rejected is not None:
        unknown_too = (
            "" if evaluation.unknown_rejected is None else f", and {evaluation.unknown_rejected:.1%} of unknown ones"
        )
        echo(f"--reject would reject {evaluation.rejected:.1%} of known images{unknown_too}")


@app.command()
def info(model: Model, as_json: AsJson = False, _plugin: NamedPlugins = None) -> None:
    """Print what a model knows, how it learned it, and what it stores."""
    from etag.app.privacy import privacy_statement
    from etag.core.text import data_size
    from etag.learner.model_directory import ModelDirectory

    directory = ModelDirectory(model)
    version, sizes, privacy = directory.read(lambda saved: (saved, saved.sizes(), privacy_statement(saved)))
    about, number = version.info, version.number
    familiarity = "class statistics" if version.measures_familiarity else "highest probability"
    if as_json:
        content = about.to_json() | {"version": number, "versions": directory.versions, "bytes": sizes}
        content["familiarity"] = familiarity
        echo_json(content, indent=1)
        return
    others = [str(other) for other in directory.versions if other != number]
    stored = f" (also stored: {', '.join(others)})" if others else ""
    echo(f"{model}: version {number}{stored}; {len(about.classes)} classes")
    for place, lesson in enumerate(about.history, start=1):
        echo(f"{place}. {lesson.date}  {lesson.kind}: {', '.join(map(str, lesson.classes))}".rstrip(": "))
        if lesson.evaluation is not None:
            echo(
                f"   {lesson.images} images; {lesson.evaluation.accuracy:.1%} of {lesson.evaluation.images} held-out "
                "images classified correctly"
            )
    echo(f"method {about.method}, images of {about.preprocess.size} pixels per side")
    threshold = "not calibrated" if about.threshold is None else f"rejected below {about.threshold:.4g}"
    echo(f"familiarity of images from {familiarity}: {threshold}")
    echo("on disk: " + ", ".join(f"{name} {data_size(size)}" for name, size in sizes.items()))
    echo(privacy)


@app.command()
def export(
    model: Model,
    onnx: Annotated[Path | None, typer.Option(help="Write ONNX (needs the extra `export`).")] = None,
    torch: Annotated[Path | None, typer.Option(help="Write a torch.export program, which takes tensors.")] = None,
    takes: Annotated[
        Literal["photos", "tensors"],
        typer.Option("--input", help="What the ONNX file takes: photos of any size, or tensors of resized images."),
    ] = "photos",
    photos: Annotated[
        list[str] | None, typer.Option(help="Photos (a file, folder or pattern) on which to compare ONNX and model.")
    ] = None,
    _plugin: NamedPlugins = None,
) -> None:
    """Write the classifier as one file for other programs, after comparing it with the model."""
    from etag.app.exporting import export_torch
    from etag.app.folders import image_files
    from etag.app.onnx_files import export_onnx
    from etag.core.errors import EtagError

    if onnx is None and torch is None:
        raise EtagError("choose what to write: --onnx FILE or --torch FILE.")
    if onnx is None and photos:
        raise EtagError("--photos compares an ONNX file with the model: add --onnx FILE.")
    if onnx is not None:
        result = export_onnx(model, onnx, takes, list(image_files(photos or [])))
        echo(f"{onnx}: written; its outputs differ from the model's by at most {result.difference:.1e}.")
        if result.resizing is not None:
            echo(
                "it resizes photos itself: on synthetic photos of several sizes the probabilities differ by at most "
                f"{result.resizing:.1e}."
            )
        if (found := result.agreement) is not None:
            echo(
                f"on {found.photos} photos, {found.same_class} of them get the same class; the probabilities differ by "
                f"at most {found.difference:.1e}."
            )
    if torch is not None:
        echo(f"{torch}: written; its outputs differ from the model's by at most {export_torch(model, torch):.1e}.")


@app.command()
def forget(
    model: Model,
    name: Annotated[str, typer.Argument(metavar="CLASS", help="A class that the model knows.")],
    _plugin: Plugins = None,
) -> None:
    """Remove a class. Older versions, which still know it, are deleted as well."""
    from etag.app.lessons import forget_class

    about, remains = forget_class(model, name)
    echo(f"'{model}' no longer knows '{name}'; {len(about.classes)} classes are left.")
    if remains:
        echo(f"what remains of '{name}': {remains}.")


@version_commands.command()
def rollback(model: Model) -> None:
    """Return to the version that the current one was learned from."""
    from etag.learner.model_directory import ModelDirectory

    echo(f"'{model}' is at version {ModelDirectory(model).rollback()} again.")


@version_commands.command()
def strip(model: Model) -> None:
    """Delete everything that only learning needs: the model predicts, but learns no more."""
    from etag.core.text import data_size
    from etag.learner.model_directory import ModelDirectory

    directory = ModelDirectory(model)
    directory.strip()
    echo(f"'{model}' can predict but no longer learn; {data_size(directory.sizes()['classifier'])} are left.")
