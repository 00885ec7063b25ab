"""The page of a lesson, and that of an evaluation."""

from pathlib import Path

from etag.app.curves import CurveRecorder
from etag.app.evaluating import FolderEvaluation, Mistake
from etag.app.lessons import LessonResult
from etag.core.text import count_text, data_size, date_text, duration, fixed, listing
from etag.evaluation.intervals import accuracy_interval
from etag.learner.model_directory import ModelDirectory
from etag.learner.versions import ModelInfo, Name
from etag.report.losses import losses_by_phase
from etag.report.model_pages import ClassRow, Confusion, GroupRow, GroupTable, ModelPage, write_model_page
from etag.report.model_pages import Mistake as ShownMistake
from etag.report.records import LoggedStep

NAMED = 8  # classes of a lesson


def write_lesson_page(directory: ModelDirectory, result: LessonResult, curves: CurveRecorder) -> Path:
    """Write the page of the lesson that was just learned; returns its path."""
    about, lesson = result.about, result.lesson
    number = len(about.history)
    before = {} if result.update is None else result.update.before
    right, images = (sum(column) for column in zip(*result.per_class.values(), strict=True))
    kind = "new" if result.update is None else "updated"
    sizes = directory.sizes()
    tiles = [
        (f"Right, {kind} classes", _accuracy(right, images), f"of {images} held-out images; all known classes compete"),
        ("Classes known", str(len(about.classes)), f"{len(lesson.classes)} in this lesson"),
        ("Time", duration(lesson.seconds), f"for {count_text(lesson.images, 'image', 'images')}"),
        ("Stored", data_size(sum(sizes.values())), f"{data_size(sizes['classifier'])} of it to predict; no images"),
    ]
    page = ModelPage(
        title=f"Lesson {number} of {directory.path.resolve().name}",
        subtitle=f"{date_text(lesson.date)} · {about.method} · {lesson.kind}: {_names(lesson.classes)}",
        tiles=tiles,
        classes=[ClassRow(str(name), *counts, before.get(name)) for name, counts in result.per_class.items()],
        confusion=_lesson_confusion(result),
        mistakes=_shown(result.mistakes),
        groups=_groups(result),
        losses=losses_by_phase([LoggedStep(task=0, phase=p, step=s, terms=t) for p, s, t in curves.steps]),
        accuracy=curves.accuracy,
        remarks=_remarks(result),
    )
    return write_model_page(page, directory.pages / f"lesson-{number}.html")


def write_evaluation_page(model: Path, folder: Path, about: ModelInfo, evaluation: FolderEvaluation, out: Path) -> Path:
    """Write the page of an evaluation; returns its path."""
    right = round(evaluation.accuracy * evaluation.images)
    tiles = [
        ("Right", _accuracy(right, evaluation.images), f"of {evaluation.images} images; all known classes compete"),
        ("Calibration error", fixed(evaluation.calibration_error, 3), "0: probabilities say how often they are right"),
    ]
    if evaluation.auroc is not None:
        tiles.append(("Unknown images", fixed(evaluation.auroc, 3), "AUROC; 0.5 is chance, 1 tells all apart"))
    if evaluation.rejected is not None:
        tiles.append(("Rejected", f"{evaluation.rejected:.1%}", "of these images as of no known class"))
    worst = sorted(evaluation.per_class.items(), key=lambda row: row[1][1])
    page = ModelPage(
        title=f"{model.resolve().name} on {folder.resolve().name}",
        subtitle=f"{count_text(evaluation.images, 'image', 'images')} of {count_text(len(worst), 'class', 'classes')}",
        tiles=tiles,
        classes=[ClassRow(str(name), round(share * count), count) for name, (count, share) in worst],
        confusion=_confusion(about, evaluation.confusion),
        mistakes=_shown(evaluation.mistakes),
        groups=[_by_lesson(about, evaluation)],
    )
    return write_model_page(page, out)


def _accuracy(right: int, images: int) -> str:
    return f"{right / images:.1%}" if images else "not tested"


def _lesson_confusion(result: LessonResult) -> Confusion | None:
    """Of a user's own images, or else of the held-out ones, which are of the lesson's classes only."""
    about, lesson = result.about, result.lesson
    if result.evaluation is not None:
        return _confusion(about, result.evaluation.confusion)
    if lesson.evaluation is None:
        return None
    only = len(lesson.classes) < len(about.classes)
    note = " Only this lesson's classes have images: those of other lessons are not stored." if only else ""
    return _confusion(about, lesson.evaluation.confusion, note)


def _confusion(about: ModelInfo, counts: list[list[int]], note: str = "") -> Confusion:
    return Confusion(counts, list(map(str, about.classes)), about.task_sizes, note)


def _shown(mistakes: list[Mistake]) -> list[ShownMistake]:
    return [ShownMistake(one.path, str(one.label), str(one.predicted), one.probability) for one in mistakes]


def _groups(result: LessonResult) -> list[GroupTable]:
    """What is known of the classes of other lessons."""
    if result.evaluation is not None:
        return [_by_lesson(result.about, result.evaluation)]
    update = result.update
    if update is not None:
        about = "On features that were generated before the update; their images are not stored."
        rows = [
            GroupRow(group.lesson, _names(group.classes), (f"{group.before:.1%}", f"{group.after:.1%}"))
            for group in update.others
        ]
        return [GroupTable("Other classes", about, ("Before", "After"), rows)] if rows else []
    rows = [
        GroupRow(number, _names(past.classes), (f"{past.evaluation.accuracy:.1%}", str(past.evaluation.images)))
        for number, past in enumerate(result.about.history[:-1], start=1)
        if past.kind == "learn" and past.evaluation is not None
    ]
    about = (
        "When they were learned. Their images are not stored, so they were not tested again; `etag evaluate` does that "
        "on labeled images of yours."
    )
    return [GroupTable("Earlier lessons", about, ("Right then", "Images"), rows)] if rows else []


def _by_lesson(about: ModelInfo, evaluation: FolderEvaluation) -> GroupTable:
    rows = []
    for number, classes, right, images in evaluation.by_lesson(about):
        low, high = accuracy_interval(right, images)
        values = f"{right / images:.1%}", f"{low:.1%} to {high:.1%}", str(images)
        rows.append(GroupRow(number, _names(classes), values))
    return GroupTable("By lesson", "On these images.", ("Right", "95 % interval", "Images"), rows)


def _names(classes: tuple[Name, ...]) -> str:
    return listing(list(map(str, classes)), NAMED)


def _remarks(result: LessonResult) -> list[str]:
    remarks = [
        f"Likely in the wrong folder: {found.path} is in the folder of {found.label} and looks like {found.predicted}."
        for found in result.wrong_labels
    ]
    if result.update is not None:
        remarks += [
            f"The update harmed classes of lesson {group.lesson}: {group.before:.1%} before, {group.after:.1%} after."
            for group in result.update.harmed
        ]
    return remarks
