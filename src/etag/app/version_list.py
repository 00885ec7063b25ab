"""The stored versions of a model, for people."""

from dataclasses import dataclass
from pathlib import Path

from etag.core.text import listing
from etag.learner.model_directory import ModelDirectory
from etag.learner.versions import SavedVersion

NAMED = 3  # classes of a lesson


@dataclass(frozen=True)
class VersionRow:
    """One stored version."""

    number: int
    is_current: bool
    date: str
    lesson: str  # what was done last, and to which classes
    classes: int  # known in all
    accuracy: float | None  # on the held-out images of its last lesson, when it was learned
    images: int | None  # of these
    bytes: int  # of its files, which it may share with others
    parent: int | None


def version_rows(model: Path) -> list[VersionRow]:
    """All stored versions, oldest first."""
    directory = ModelDirectory(model)
    current = directory.version
    return [_row(version, version.number == current) for version in directory.stored()]


def _row(version: SavedVersion, is_current: bool) -> VersionRow:
    about, last = version.info, version.info.history[-1]
    names = listing(list(map(str, last.classes)), NAMED) if last.classes else ""
    return VersionRow(
        number=version.number,
        is_current=is_current,
        date=last.date,
        lesson=f"{last.kind} {names}".rstrip(),
        classes=len(about.classes),
        accuracy=None if last.evaluation is None else last.evaluation.accuracy,
        images=None if last.evaluation is None else last.evaluation.images,
        bytes=sum(version.sizes().values()),
        parent=about.parent,
    )
