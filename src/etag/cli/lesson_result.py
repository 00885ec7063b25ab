"""What `etag learn` prints after a lesson."""

from pathlib import Path
from typing import TYPE_CHECKING

from etag.cli.printing import echo, print_some

if TYPE_CHECKING:
    from etag.app.evaluating import FolderEvaluation
    from etag.app.labels import WrongLabel
    from etag.app.lessons import LessonResult
    from etag.app.update_check import UpdateReport
    from etag.learner.versions import ModelInfo

NAMED = 5  # classes of a lesson in one line


def print_lesson(model: Path, result: "LessonResult", quiet: bool = False) -> None:
    """Print what was learned and what is known of old classes; only warnings if `quiet`."""
    from etag.core.text import count_text, data_size, duration
    from etag.learner.calibration import ENOUGH
    from etag.learner.model_directory import ModelDirectory

    if quiet:
        if result.update is not None:
            _print_harm(model, result.about.parent, result.update)
        return
    lesson, verb = result.lesson, "learned" if result.update is None else "updated"
    classes = count_text(len(lesson.classes), "class", "classes")
    echo(f"{verb} {classes} with {lesson.images} images in {duration(lesson.seconds)}.")
    _print_held_out(result)
    if result.update is not None:
        _print_update(model, result.about.parent, result.update)
    elif len(result.about.classes) > len(lesson.classes):
        _print_old_classes(model, result)
    if result.calibration.threshold is None:
        echo(f"`etag predict` cannot reject unknown images yet: it needs {ENOUGH} held-out images.")
    print_some("likely in the wrong folder", map(wrong_label_text, result.wrong_labels))
    if result.page is not None:
        echo(f"page of the lesson: {result.page}")
    sizes = ModelDirectory(model).sizes()
    echo(f"{model}: {data_size(sum(sizes.values()))}; predicting needs {data_size(sizes['classifier'])} of it.")


def _print_held_out(result: "LessonResult") -> None:
    """The accuracy on the held-out images of the lesson's classes."""
    from etag.evaluation.intervals import accuracy_interval

    def interval(right: int, images: int) -> str:
        low, high = accuracy_interval(right, images)
        return f"95 % interval: {low:.1%} to {high:.1%}"

    before = None if result.update is None else result.update.before
    kind = "new" if before is None else "updated"
    right, images = map(sum, zip(*result.per_class.values(), strict=True))
    if images:
        earlier = f"before the update {sum(before.values()) / images:.1%}; " if before else ""
        echo(
            f"{kind} classes: {right / images:.1%} of {images} held-out images are classified correctly "
            f"({earlier}{interval(right, images)}; all known classes compete)"
            + (". Then the model learned these images, too:" if result.learned_held_out else "")
        )
    for name, (right, images) in result.per_class.items():
        if images:
            earlier = f"; before {before[name]}" if before else ""
            echo(f"  {right / images:6.1%}  {name} ({right} of {images}{earlier}; {interval(right, images)})")
        else:
            echo(f"          {name} (not tested: no image of it is held out)")


def _print_old_classes(model: Path, result: "LessonResult") -> None:
    """What is known of the classes of earlier lessons, whose images are gone."""
    images = sum(count for _, count in result.per_class.values())
    if images:
        taken = f"{result.taken_for_old} of these held-out images ({result.taken_for_old / images:.1%})"
        echo(f"{taken} were taken for a class of an earlier lesson.")
    echo("classes of earlier lessons were not tested again: their images are not stored. When they were learned:")
    for number, past in enumerate(result.about.history[:-1], start=1):
        if past.kind == "learn":
            accuracy = "not tested"
            if past.evaluation is not None:
                accuracy = f"{past.evaluation.accuracy:.1%} of {past.evaluation.images} held-out images"
            echo(f"  lesson {number} ({_names(past.classes)}): {accuracy}")
    if result.evaluation is None:
        echo(f"`etag evaluate {model} FOLDER` measures them now, on labeled images of yours.")


def _print_update(model: Path, parent: int | None, report: "UpdateReport") -> None:
    """What an update did to the classes that were not updated."""
    if report.exact:
        echo("other classes: the model is what it would be if these images had been there from the start.")
        return
    if report.others:
        echo("other classes, on features that were generated before the update (their images are not stored):")
    for group in report.others:
        fell = "  <- fell" if group.is_drop else ""
        echo(f"  lesson {group.lesson} ({_names(group.classes)}): {group.before:.1%} -> {group.after:.1%}{fell}")
    _print_harm(model, parent, report)


def _print_harm(model: Path, parent: int | None, report: "UpdateReport") -> None:
    if report.harmed:
        lessons = ", ".join(str(group.lesson) for group in report.harmed)
        echo(
            f"warning: the update harmed classes of lesson {lessons}. `etag models rollback {model}` returns to "
            f"version {parent}, before the update. An update with images of all classes may harm less."
        )


def print_evaluation_by_lesson(about: "ModelInfo", folder: Path, evaluation: "FolderEvaluation") -> None:
    """Print the accuracy on a user's own labeled images, lesson by lesson."""
    echo(f"'{folder}': {evaluation.accuracy:.1%} of {evaluation.images} images are classified correctly, by lesson:")
    for number, classes, right, images in evaluation.by_lesson(about):
        echo(f"  {right / images:6.1%}  of {images:5}  lesson {number} ({_names(classes)})")


def _names(classes: "tuple[object, ...]") -> str:
    from etag.core.text import listing

    return listing(list(map(str, classes)), NAMED)


def wrong_label_text(found: "WrongLabel") -> str:
    """A file that is likely in the wrong folder, in words."""
    return f"{found.path}: in the folder of '{found.label}', looks like '{found.predicted}'"
