"""Commands that change a model: learn, forget, rename, and those for its versions."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from etag.cli.lesson_result import print_evaluation_by_lesson, print_lesson
from etag.cli.options import AsJson, DryRun, Labels, Model, Nested, Plugins, Settings
from etag.cli.printing import echo, echo_json
from etag.cli.talking import folder_options, terminal_talk

app = typer.Typer()
version_commands = typer.Typer(help="Manage the versions of a model.", no_args_is_help=True)

Yes = Annotated[bool, typer.Option("--yes", help="Ask nothing.")]


@app.command()
def learn(
    model: Annotated[Path, typer.Argument(help="The model directory; the first `etag learn` creates it.")],
    folder: Annotated[Path, typer.Argument(help="A folder with one sub-folder of images per new class.")],
    update: Annotated[
        bool, typer.Option("--update", help="Add images to classes that the model already knows.")
    ] = False,
    evaluate: Annotated[
        Path | None, typer.Option(help="Labeled images of old and new classes: their accuracy is printed by lesson.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="Method of a new model (see `etag methods`).")] = None,
    weights: Annotated[
        str | None, typer.Option(help="Pre-trained weights of a new model (see `etag backbones`).")
    ] = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Train a network of its own, without pre-trained weights.")
    ] = False,
    quality: Annotated[
        Literal["fast", "balanced", "best"],
        typer.Option(help="Speed or accuracy: size of the images with pre-trained weights, else length of training."),
    ] = "balanced",
    image_size: Annotated[int | None, typer.Option(help="Side of the images of a new model in pixels.", min=1)] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of training the network.", min=1)] = None,
    minutes: Annotated[
        float | None, typer.Option(help="How long the lesson should take, if it trains a network.", min=0)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed of a new model.")] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"] | None, typer.Option(help="Where to compute; auto: on a GPU if any.")
    ] = None,
    keep: Annotated[int | None, typer.Option(help="Versions to store; by default three.", min=1)] = None,
    discard: Annotated[bool, typer.Option("--discard", help="Give up another lesson that was interrupted.")] = False,
    page: Annotated[
        bool, typer.Option("--page/--no-page", help="Whether to write a page about the lesson into the model.")
    ] = True,
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
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also phases, steps and loss terms.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print warnings and errors only.")] = False,
    plugin: Plugins = None,
) -> None:
    """Learn new classes from a folder of images; no image is stored."""
    from etag.app.lessons import LessonOptions, learn_folder
    from etag.core.errors import EtagError

    ray = None
    if on == "ray":
        from etag.app.ray_features import RayFeatures

        ray = RayFeatures(address, plugin or [])
    elif address is not None:
        raise EtagError("--address is for `--on ray`: add that, or leave it out.")
    named = {"method": method, "model.weights": weights, "seed": seed, "data.size": image_size}
    named |= {"train.epochs": epochs, "runtime.accelerator": device}
    options = LessonOptions(
        given={key: value for key, value in named.items() if value is not None},
        settings=setting or [],
        update=update,
        from_scratch=from_scratch,
        quality=quality,
        minutes=minutes,
        keep=keep,
        evaluate=evaluate,
        page=page,
        discard=discard,
        reading=folder_options(labels, nested),
        skip_damaged=skip_damaged,
        dry_run=dry_run,
        cache_features=cache_features,
        ray=ray,
    )
    try:
        result = learn_folder(model, folder, options, terminal_talk(verbose, quiet))
    except KeyboardInterrupt as stopped:
        echo(f"interrupted: '{model}' is unchanged; the same command continues.", err=True)
        raise typer.Exit(getattr(stopped, "exit_code", 130)) from None
    if result is None:
        return
    print_lesson(model, result, quiet)
    if evaluate is not None and result.evaluation is not None:
        print_evaluation_by_lesson(result.about, evaluate, result.evaluation)


@app.command()
def forget(
    model: Model,
    name: Annotated[str, typer.Argument(metavar="CLASS", help="A class that the model knows.")],
    yes: Yes = False,
    _plugin: Plugins = None,
) -> None:
    """Remove a class. Older versions, which still know it, are deleted as well."""
    from etag.app.class_changes import forget_class, what_forgetting_removes
    from etag.core.text import count_text

    if (removed := what_forgetting_removes(model, name)) is not None:
        _confirm(f"{removed} This cannot be undone. Forget '{name}'?", yes)
    about, remains = forget_class(model, name)
    echo(f"'{model}' no longer knows '{name}'; {count_text(len(about.classes), 'class is', 'classes are')} left.")
    if remains:
        echo(f"what remains of '{name}': {remains}.")


@app.command()
def rename(
    model: Model,
    old: Annotated[str, typer.Argument(help="A class that the model knows.")],
    new: Annotated[str, typer.Argument(help="Its new name.")],
    yes: Yes = False,
) -> None:
    """Give a class another name. Older versions keep the old one."""
    from etag.app.class_changes import rename_class

    _confirm_discard(model, yes)
    rename_class(model, old, new)
    echo(f"'{model}': the class '{old}' is called '{new}' now.")


@version_commands.command("list")
def list_versions(model: Model, as_json: AsJson = False) -> None:
    """List the stored versions of a model."""
    from etag.app.version_list import version_rows
    from etag.core.text import count_text, data_size, date_text

    rows = version_rows(model)
    if as_json:
        echo_json([row.__dict__ for row in rows], indent=1)
        return
    for row in rows:
        right = "" if row.accuracy is None else f"; {row.accuracy:.1%} of {row.images} held-out images right"
        origin = "" if row.parent is None else f", from {row.parent}"
        mark, date = "*" if row.is_current else " ", date_text(row.date)
        known = count_text(row.classes, "class", "classes")
        echo(f"{mark} {row.number}{origin}  {date}  {row.lesson}{right}; {known} known, {data_size(row.bytes)}")
    echo(f"* is the current version; `etag models rollback {model} --to VERSION` returns to another. They share files.")


@version_commands.command()
def rollback(
    model: Model,
    to: Annotated[int | None, typer.Option(help="A stored version; by default the one before the last lesson.")] = None,
    yes: Yes = False,
) -> None:
    """Return to an earlier version, by default to the one that the current one was learned from."""
    from etag.learner.model_directory import ModelDirectory

    _confirm_discard(model, yes)
    echo(f"'{model}' is at version {ModelDirectory(model).rollback(to)} again.")


@version_commands.command()
def threshold(
    model: Model,
    value: Annotated[
        str | None, typer.Argument(help="Less familiar images are rejected; `none`: reject none; without: print it.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Print or set the familiarity below which `etag predict` rejects an image as of no known class."""
    from etag.app.class_changes import set_threshold
    from etag.learner.model_directory import ModelDirectory

    if value is not None:
        _confirm_discard(model, yes)
        set_threshold(model, value)
    about = ModelDirectory(model).about()
    chosen = " (set by hand: lessons leave it as it is)" if about.threshold_chosen else ""
    echo(f"'{model}': {'no threshold' if about.threshold is None else f'{about.threshold:.6g}'}{chosen}")


@version_commands.command()
def strip(model: Model, yes: Yes = False) -> None:
    """Delete everything that only learning needs: the model predicts, but learns no more."""
    from etag.core.text import data_size
    from etag.learner.model_directory import ModelDirectory

    _confirm_discard(model, yes)
    directory = ModelDirectory(model)
    directory.strip()
    echo(f"'{model}' can predict but no longer learn; {data_size(directory.sizes()['classifier'])} are left.")


def _confirm(question: str, yes: bool) -> None:
    """Ask on a terminal, unless the answer was given already; a program is not asked."""
    from etag.core.errors import EtagError

    talk = terminal_talk()
    if not yes and talk.ask is not None and not talk.ask(question):
        raise EtagError("nothing was changed.")


def _confirm_discard(model: Path, yes: bool) -> None:
    """Ask before an interrupted lesson is given up."""
    from etag.app.interrupted import check_discard
    from etag.learner.model_directory import ModelDirectory

    if not yes:
        check_discard(ModelDirectory(model), terminal_talk(), "this command would end it", "--yes")
