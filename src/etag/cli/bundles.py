"""Commands for those who have folders of images: learn, predict, evaluate, and what goes with a bundle."""

import csv
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from etag.app.learning import Outcome
    from etag.app.predicting import Prediction

app = typer.Typer()
models = typer.Typer(help="The versions of a bundle.", no_args_is_help=True)

Model = Annotated[Path, typer.Argument(help="A bundle: the directory that `etag learn` makes.")]
Workers = Annotated[int, typer.Option(help="Processes that decode images ahead.", min=0)]
NONE_OF_THESE = "(none of these)"


@app.command()
def learn(
    model: Annotated[Path, typer.Argument(help="The bundle: made on the first call, then learned on.")],
    images: Annotated[Path, typer.Argument(help="A folder of new classes, a sub-folder of images each.")],
    update: Annotated[
        bool, typer.Option("--update", help="The images are more of classes that are known already.")
    ] = False,
    method: Annotated[str | None, typer.Option(help="What learns, on the first call (see `etag methods`).")] = None,
    weights: Annotated[str | None, typer.Option(help="Weights that the backbone begins with.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random, on the first call.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any option, e.g. train.steps=300.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would do and how long.")] = False,
) -> None:
    """Learn new classes from a folder of images; no image is kept."""
    from etag.app.lessons import learn_folder

    given = {
        key: value
        for key, value in {"method": method, "model.weights": weights, "seed": seed}.items()
        if value is not None
    }
    try:
        outcome = learn_folder(model, images, given, setting or [], update=update, say=typer.echo, dry_run=dry_run)
    except KeyboardInterrupt as stopped:
        typer.echo(f"interrupted: '{model}' is as it was before; the same command goes on from here.", err=True)
        raise typer.Exit(getattr(stopped, "exit_code", 130)) from None
    if outcome is not None:
        _print_outcome(model, outcome)


def _print_outcome(model: Path, outcome: "Outcome") -> None:
    from etag.app.bundle import Bundle
    from etag.core.text import data_size, duration

    lesson = outcome.lesson
    typer.echo(f"learned {len(lesson.classes)} classes from {lesson.images} images in {duration(lesson.seconds)}.")
    typer.echo(
        f"new classes, on {lesson.held_out} images held out: {lesson.accuracy:.1%} right, all classes competing"
    )
    for name, accuracy in outcome.per_class.items():
        typer.echo(f"  {accuracy:6.1%}  {name}")
    if outcome.old_accuracy is not None:
        before = [f"{old.accuracy:.1%}" for old in outcome.about.history[:-1] if old.accuracy is not None]
        typer.echo(
            f"old classes: no image of them is kept to ask. Of what the generator makes of them "
            f"{outcome.old_accuracy:.1%} is recognized, which is more than of real images: of those held out it was "
            f"{', then '.join(before)} when they were learned."
        )
    sizes = Bundle(model).sizes()
    typer.echo(
        f"{model}: {data_size(sum(sizes.values()))}, of which {data_size(sizes['predictor.safetensors'])} predict."
    )


@app.command()
def predict(
    model: Model,
    paths: Annotated[
        list[str] | None,
        typer.Argument(help="Files, folders, patterns; without any, a list of files is read from stdin."),
    ] = None,
    form: Annotated[
        Literal["table", "json", "csv"], typer.Option("--format", help="csv: path,class,probability.")
    ] = "table",
    top: Annotated[int, typer.Option(help="The so many likeliest classes of each image.", min=1)] = 1,
    reject: Annotated[
        bool, typer.Option("--reject", help="Answer 'none of these' where no class is likely.")
    ] = False,
    workers: Workers = 1,
) -> None:
    """What images show. Files that cannot be read are named and do not stop the rest."""
    from etag.app.bundle import Bundle
    from etag.app.folders import image_files
    from etag.app.predicting import predict_files

    classifier, about = Bundle(model).classifier()
    given = paths or [line.rstrip("\n") for line in sys.stdin if line.strip()]
    files = list(image_files(given))
    answers = predict_files(classifier, about, files, top=top, reject=reject, workers=workers)
    unreadable = _write_answers(answers, form)
    for answer in unreadable:
        typer.echo(f"{answer.path} cannot be read: {answer.error}.", err=True)
    if unreadable:
        raise typer.Exit(1)


def _write_answers(answers: Iterable["Prediction"], form: str) -> "list[Prediction]":
    """Write what is known; those that could not be read."""
    failed = []
    rows = csv.writer(sys.stdout, lineterminator="\n")
    if form == "csv":
        rows.writerow(["path", "class", "probability"])
    for answer in answers:
        if answer.error is not None:
            failed.append(answer)
            continue
        found = list(zip(answer.classes, answer.probabilities, strict=True))
        if form == "json":
            said = [{"class": name, "probability": round(likely, 6)} for name, likely in found]
            typer.echo(json.dumps({"path": answer.path, "answers": said}))
        elif form == "csv":
            rows.writerows([answer.path, name, f"{likely:.6f}"] for name, likely in found or [("", 0.0)])
        else:
            words = [f"{likely:6.1%}  {name}" for name, likely in found] or [f"        {NONE_OF_THESE}"]
            typer.echo("\t".join([answer.path, *words]))
    return failed


@app.command()
def evaluate(
    model: Model,
    folder: Annotated[Path, typer.Argument(help="Images of known classes, a sub-folder a class.")],
    unknown: Annotated[Path | None, typer.Option(help="Also a folder of images of none of the classes.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the confusion matrix as a picture (.png, .svg, .pdf).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
    workers: Workers = 1,
) -> None:
    """How often a bundle is right on images whose classes you know."""
    from etag.app.evaluating import evaluate_folder

    found = evaluate_folder(model, folder, unknown, out, workers)
    if as_json:
        typer.echo(json.dumps(found.plain(), indent=1))
        return
    typer.echo(f"{found.images} images of {len(found.per_class)} classes: {found.accuracy:.1%} right")
    for name, (count, accuracy) in found.per_class.items():
        typer.echo(f"  {accuracy:6.1%}  of {count:5}  {name}")
    typer.echo(f"calibration error (ECE): {found.calibration_error:.3f}")
    if found.auroc is not None:
        typer.echo(f"known against unknown images (AUROC): {found.auroc:.3f}")


@app.command()
def info(
    model: Model, as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False
) -> None:
    """What a bundle knows, how it came to that, and what it stores."""
    from etag.app.bundle import Bundle
    from etag.app.privacy import statement
    from etag.core.text import data_size

    bundle = Bundle(model)
    about, sizes = bundle.about(), bundle.sizes()
    if as_json:
        content = about.plain() | {"version": bundle.version, "versions": bundle.versions, "bytes": sizes}
        typer.echo(json.dumps(content, indent=1))
        return
    typer.echo(
        f"{model}: version {bundle.version} of {', '.join(map(str, bundle.versions))}; {len(about.classes)} classes"
    )
    for number, lesson in enumerate(about.history, start=1):
        right = "" if lesson.accuracy is None else f", {lesson.accuracy:.1%} right on {lesson.held_out} held out"
        typer.echo(f"{number}. {lesson.date}  {lesson.kind}: {', '.join(map(str, lesson.classes))}")
        typer.echo(f"   {lesson.images} images{right}")
    typer.echo(f"method {about.config.method.name}, images of {about.preprocess.size} pixels a side")
    typer.echo("on disk: " + ", ".join(f"{name} {data_size(size)}" for name, size in sizes.items()))
    typer.echo(statement(bundle))


@app.command()
def export(
    model: Model,
    onnx: Annotated[Path | None, typer.Option(help="Write ONNX (the extra `export`).")] = None,
    torch: Annotated[Path | None, typer.Option(help="Write a program of torch.export.")] = None,
) -> None:
    """Write what predicts as one file for other programs, after comparing it with the bundle."""
    from etag.app.exporting import export_onnx, export_torch
    from etag.core.errors import EtagError

    if onnx is None and torch is None:
        raise EtagError("say what to write: --onnx FILE or --torch FILE.")
    for out, write in ((onnx, export_onnx), (torch, export_torch)):
        if out is not None:
            typer.echo(f"{out}: written; it differs from the bundle by {write(model, out):.1e} at most.")


@app.command()
def forget(
    model: Model, name: Annotated[str, typer.Argument(metavar="CLASS", help="A class that it knows.")]
) -> None:
    """Remove a class. Older versions, which know it still, are removed as well."""
    from etag.app.lessons import forget_class

    about = forget_class(model, name)
    typer.echo(f"'{model}' knows '{name}' no more; {len(about.classes)} classes are left.")


@models.command()
def rollback(model: Model) -> None:
    """Go back to the version before the one in force."""
    from etag.app.bundle import Bundle

    typer.echo(f"'{model}' is at version {Bundle(model).rollback()} again.")
