"""Commands for folders of images and model directories: learn, check, predict, evaluate, info, export, forget."""

import csv
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from etag.cli.printing import asker, echo, echo_json

if TYPE_CHECKING:
    from etag.app.checking import FolderCheck
    from etag.app.labeled import FolderOptions
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
Labels = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.csv|names",
        help="Labels from a CSV file with the columns path and label, or from names of files such as cat-001.jpg.",
    ),
]
Nested = Annotated[
    bool, typer.Option("--nested", help="The sub-folders are the classes, with everything below them; do not ask.")
]


def _reading(labels: str | None, nested: bool, ask: bool = True) -> "FolderOptions":
    from etag.app.labeled import FolderOptions

    return FolderOptions(labels, nested, asker() if ask else None)


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
    labels: Labels = None,
    nested: Nested = False,
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Learn without the files that cannot be read.")
    ] = False,
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
            options=_reading(labels, nested),
            skip_damaged=skip_damaged,
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
            echo(f"          {name} (not tested: no image of it is held out)")
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
    labels: Labels = None,
    nested: Nested = False,
    as_json: AsJson = False,
    workers: Annotated[
        int | None, typer.Option(help="Processes that decode images (default: one per core).", min=0)
    ] = None,
    _plugin: NamedPlugins = None,
) -> None:
    """Check a folder before it is learned. The exit code is 1 if something was found, 0 if not."""
    from etag.app.checking import check_folder

    result = check_folder(folder, model, workers, _reading(labels, nested, ask=not as_json))
    if as_json:
        echo_json(result.to_json(), indent=1)
    else:
        _print_check(folder, model, result)
    if result.found:
        raise typer.Exit(1)


def _print_check(folder: Path, model: Path | None, result: "FolderCheck") -> None:
    from etag.app.checking import FEW

    split = f" ({', '.join(f'{name} {count}' for name, count in result.parts.items())})" if result.parts else ""
    echo(f"{folder}: {sum(result.classes.values())} images of {len(result.classes)} classes{split}")
    for name, count in result.classes.items():
        echo(f"  {count:6}  {name}")
    for line in result.remarks:
        echo(line)
    unreadable = [f"{path}: {reason}" for path, reason in result.unreadable.items()]
    _print_some("cannot be read", unreadable, len(unreadable))
    copies = "the same content in several classes, where at most one label is right"
    _print_some(copies, map(_group, result.copies_across_classes))
    across_parts = "the same content in several parts, so that the accuracy on val or test is too high"
    _print_some(across_parts, map(_group, result.copies_across_parts))
    _print_some("the same content several times in one class", map(_group, result.copies))
    _print_some("nearly the same images", (_group(files, " ~ ") for files in result.near_copies))
    few = result.few if result.parts else [f"{result.classes[name]:6}  {name}" for name in result.few]
    _print_some(f"classes of fewer than {FEW} images{' in train' if result.parts else ''}", few)
    _print_some("likely in the wrong folder", map(_wrong_label, result.wrong_labels))
    _print_some(f"'{model}' predicts another class", map(_wrong_label, result.contradicted))
    if result.left_out is not None:
        echo(result.left_out)
    if not result.found:
        echo("nothing was found.")


def _group(files: list[str], sign: str = " = ", most: int = 4) -> str:
    rest = [f"{len(files) - most} more"] if len(files) > most else []
    return sign.join(files[:most] + rest)


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
    workers: Workers = 1,
    _plugin: NamedPlugins = None,
) -> None:
    """Predict the classes of images. Files that cannot be read are reported and do not stop the rest."""
    from etag.app.arguments import check_order
    from etag.app.folders import image_files
    from etag.app.predicting import nothing_readable, predict_files
    from etag.learner.model_directory import ModelDirectory

    check_order("predict", model, paths or [])
    classifier, about = ModelDirectory(model).load_classifier()
    given = paths or [line.rstrip("\n") for line in sys.stdin if line.strip()]
    files, not_read = image_files(given)
    if not_read.kinds:
        echo(str(not_read), err=True)
    predictions = predict_files(classifier, about, files, top=top, reject=reject, workers=workers)
    unreadable = _print_predictions(predictions, form)
    if len(unreadable) == len(files):
        raise nothing_readable(unreadable)
    for prediction in unreadable:
        echo(f"{prediction.path} cannot be read: {prediction.error}.", err=True)
    if unreadable:
        raise typer.Exit(1)


def _print_predictions(predictions: Iterable["Prediction"], form: str) -> "list[Prediction]":
    """Print predictions; returns those whose file could not be read."""
    from etag.core.text import csv_cell, printable

    failed, any_row = [], False
    rows = csv.writer(sys.stdout, lineterminator="\n")
    for prediction in predictions:
        if prediction.error is not None:
            failed.append(prediction)
            continue
        if form == "csv" and not any_row:
            rows.writerow(["path", "class", "probability"])
        any_row = True
        classes = list(zip(prediction.classes, prediction.probabilities, strict=True))
        if form == "json":
            values = [{"class": name, "probability": round(value, 6)} for name, value in classes]
            echo_json({"path": prediction.path, "predictions": values})
        elif form == "csv":
            cells = ([prediction.path, name, f"{value:.6f}"] for name, value in classes or [("", 0.0)])
            rows.writerows(map(csv_cell, row) for row in cells)
        else:
            words = [f"{value:6.1%}  {name}" for name, value in classes] or [f"        {NONE_OF_THESE}"]
            echo("\t".join(map(printable, [prediction.path, *words])))
    return failed


@app.command()
def evaluate(
    model: Model,
    folder: Annotated[Path, typer.Argument(help="Images of known classes, one sub-folder per class.")],
    unknown: Annotated[Path | None, typer.Option(help="Folder of images of no known class; adds AUROC.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the confusion matrix as a figure (.png, .svg, .pdf).")] = None,
    labels: Labels = None,
    nested: Nested = False,
    as_json: AsJson = False,
    workers: Workers = 1,
    _plugin: NamedPlugins = None,
) -> None:
    """Measure the accuracy of a model on labeled images."""
    from etag.app.evaluating import evaluate_folder

    evaluation = evaluate_folder(model, folder, unknown, out, workers, _reading(labels, nested, ask=not as_json))
    if as_json:
        echo_json(evaluation.to_json(), indent=1)
        return
    for line in evaluation.remarks:
        echo(line)
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
    torch: Annotated[Path | None, typer.Option(help="Write a torch.export program.")] = None,
    _plugin: NamedPlugins = None,
) -> None:
    """Write the classifier as one file for other programs, after comparing it with the model."""
    from etag.app.exporting import export_onnx, export_torch
    from etag.core.errors import EtagError

    if onnx is None and torch is None:
        raise EtagError("choose what to write: --onnx FILE or --torch FILE.")
    for out, write in ((onnx, export_onnx), (torch, export_torch)):
        if out is not None:
            echo(f"{out}: written; its outputs differ from the model's by at most {write(model, out):.1e}.")


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
