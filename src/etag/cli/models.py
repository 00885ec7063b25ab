"""Commands that change no model: check, predict, evaluate, info, export."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from etag.cli.lesson_result import wrong_label_text
from etag.cli.options import AsJson, Device, Labels, Model, NamedPlugins, Nested, Workers
from etag.cli.prediction_result import print_predictions
from etag.cli.printing import echo, echo_json, print_some
from etag.cli.talking import folder_options

if TYPE_CHECKING:
    from etag.app.checking import FolderCheck

if TYPE_CHECKING:
    pass

app = typer.Typer()


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

    result = check_folder(folder, model, workers, folder_options(labels, nested, ask=not as_json))
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
    print_some("cannot be read", unreadable, len(unreadable))
    copies = "the same content in several classes, where at most one label is right"
    print_some(copies, map(_group, result.copies_across_classes))
    across_parts = "the same content in several parts, so that the accuracy on val or test is too high"
    print_some(across_parts, map(_group, result.copies_across_parts))
    print_some("the same content several times in one class", map(_group, result.copies))
    print_some("nearly the same images", (_group(files, " ~ ") for files in result.near_copies))
    few = result.few if result.parts else [f"{result.classes[name]:6}  {name}" for name in result.few]
    print_some(f"classes of fewer than {FEW} images{' in train' if result.parts else ''}", few)
    print_some("likely in the wrong folder", map(wrong_label_text, result.wrong_labels))
    print_some(f"'{model}' predicts another class", map(wrong_label_text, result.contradicted))
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
        Literal["table", "json", "csv"],
        typer.Option("--format", help="csv has the columns path,class,probability,rejected,guess."),
    ] = "table",
    top: Annotated[int, typer.Option(help="Number of classes to print per image.", min=1)] = 1,
    reject: Annotated[
        bool | None,
        typer.Option(
            "--reject/--no-reject",
            help="Whether images unlike all known classes are rejected; by default if class statistics can tell.",
        ),
    ] = None,
    explain: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write a picture per image there: which places speak for its class."),
    ] = None,
    workers: Workers = 1,
    device: Device = "auto",
    _plugin: NamedPlugins = None,
) -> None:
    """Predict the classes of images. Files that cannot be read are reported and do not stop the rest."""
    from etag.app.arguments import check_order
    from etag.app.folders import image_files
    from etag.app.predicting import load_on, nothing_readable, predict_files
    from etag.learner.versions import REJECTED

    check_order("predict", model, paths or [])
    classifier, about = load_on(model, device)
    given = paths or [line.rstrip("\n") for line in sys.stdin if line.strip()]
    files, not_read = image_files(given)
    if not_read.kinds:
        echo(str(not_read), err=True)
    predictions = predict_files(classifier, about, files, top=top, reject=reject, workers=workers)
    if explain is not None:
        from etag.app.explaining import explain_files

        predictions = explain_files(classifier, about, predictions, explain)
    counts = print_predictions(predictions, form, pictures=explain is not None)
    if counts.rejected:
        cost = f"rejects about {REJECTED:.0%} of images of known classes, too"
        if classifier.familiarity is None:  # images of old classes had no part in it
            cost = f"should reject {REJECTED:.0%} of images of known classes, and may reject many more of old ones"
        echo(
            f"{counts.rejected} of {counts.read} images are rejected: they are unlike all known classes. The threshold "
            f"{'was set by hand' if about.threshold_chosen else cost}; --no-reject names a class for every image.",
            err=True,
        )
    if not counts.read:
        raise nothing_readable(counts.failed)
    for prediction in counts.failed:
        echo(f"{prediction.path} cannot be read: {prediction.error}.", err=True)
    if counts.failed:
        raise typer.Exit(1)


@app.command()
def evaluate(
    model: Model,
    folder: Annotated[Path, typer.Argument(help="Images with one sub-folder per class.")],
    unknown: Annotated[Path | None, typer.Option(help="Folder of images of no known class; adds AUROC.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write a page with the worst mistakes (.html), or the confusion matrix (.png, .svg, .pdf)."),
    ] = None,
    labels: Labels = None,
    nested: Nested = False,
    as_json: AsJson = False,
    workers: Workers = 1,
    device: Device = "auto",
    _plugin: NamedPlugins = None,
) -> None:
    """Measure the accuracy of a model on labeled images."""
    from etag.app.evaluating import evaluate_folder

    options = folder_options(labels, nested, ask=not as_json)
    evaluation = evaluate_folder(model, folder, unknown, out, workers, device, options)
    if out is not None:
        echo(f"{out}: written, {'the page' if out.suffix == '.html' else 'the confusion matrix'}.", err=as_json)
    if as_json:
        echo_json(evaluation.to_json(), indent=1)
        return
    for line in evaluation.remarks:
        echo(line)
    echo(f"{evaluation.images} images of {len(evaluation.per_class)} classes: {evaluation.accuracy:.1%} right")
    for name, (count, accuracy) in evaluation.per_class.items():
        echo(f"  {accuracy:6.1%}  of {count:5}  {name}")
    if evaluation.unknown_classes:
        names = ", ".join(f"{name} {count}" for name, count in evaluation.unknown_classes.items())
        echo(f"images of classes that the model does not know, which count as unknown images: {names}")
    echo(f"calibration error (ECE): {evaluation.calibration_error:.3f}")
    if evaluation.auroc is not None:
        echo(f"known against unknown images (AUROC): {evaluation.auroc:.3f}")
    if evaluation.rejected is not None:
        unknown_too = (
            "" if evaluation.unknown_rejected is None else f", and {evaluation.unknown_rejected:.1%} of unknown ones"
        )
        echo(f"rejected as of no known class: {evaluation.rejected:.1%} of known images{unknown_too}")


@app.command()
def info(model: Model, as_json: AsJson = False, _plugin: NamedPlugins = None) -> None:
    """Print what a model knows, how it learned it, and what it stores."""
    from etag.app.privacy import privacy_statement
    from etag.core.text import data_size
    from etag.learner.model_directory import ModelDirectory

    directory = ModelDirectory(model)
    version, sizes, privacy = directory.read(lambda saved: (saved, saved.sizes(), privacy_statement(saved)))
    about, number, cut = version.info, version.number, directory.unfinished.lesson
    familiarity = "class statistics" if version.measures_familiarity else "highest probability"
    if as_json:
        content = about.to_json() | {"version": number, "versions": directory.versions, "bytes": sizes}
        content["familiarity"] = familiarity
        content["unfinished"] = None if cut is None else asdict(cut)
        echo_json(content, indent=1)
        return
    if cut is not None:
        echo(f"an unfinished lesson: {cut}.")
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
        result = export_onnx(model, onnx, takes, image_files(photos)[0] if photos else [])
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
