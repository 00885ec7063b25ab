"""Pages about a model: one per lesson, and one per evaluation. They link to image files and contain none."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from etag.core.text import fixed
from etag.evaluation.intervals import accuracy_interval
from etag.report import figures
from etag.report.losses import PhaseLosses
from etag.report.page import write_page
from etag.report.page_figures import InlineFigure, phase_losses, raster, vector
from etag.report.style import drawable

SHOWN_BY_BROWSERS = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".avif"}
ABOUT_CONFUSION = (
    "How often each class was predicted, in percent of each true class; lines separate the lessons. The color scale "
    "follows the square root, so that rare confusions are visible."
)


@dataclass(frozen=True)
class ClassRow:
    """The images of one class, and how many of them are classified correctly."""

    name: str
    right: int
    images: int
    right_before: int | None = None  # before an update

    @property
    def accuracy(self) -> float:
        """The share of right predictions; NaN without images."""
        return self.right / self.images if self.images else float("nan")

    @property
    def interval(self) -> str:
        """The 95 % interval of the accuracy in percent; empty without images."""
        if not self.images:
            return ""
        low, high = accuracy_interval(self.right, self.images)
        return f"{fixed(100 * low, 1)} to {fixed(100 * high, 1)}"


@dataclass(frozen=True)
class GroupRow:
    """Something that is known of the classes of a lesson."""

    lesson: int
    classes: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class GroupTable:
    """What is known of the classes of other lessons."""

    title: str
    about: str
    columns: tuple[str, ...]
    rows: Sequence[GroupRow]


@dataclass(frozen=True)
class Mistake:
    """An image file that was classified wrongly."""

    path: str
    label: str
    predicted: str
    probability: float

    def link(self, page: Path) -> str:
        """The address of the image as seen from the page; empty if browsers do not show such files."""
        if os.path.splitext(self.path)[1].lower() not in SHOWN_BY_BROWSERS:
            return ""
        relative = os.path.relpath(os.path.abspath(self.path), os.path.abspath(page.parent))
        return quote(relative.replace(os.sep, "/").encode(errors="surrogateescape"))


@dataclass(frozen=True)
class Confusion:
    """[true class][predicted class] in images, with the classes in their order."""

    counts: list[list[int]]
    names: list[str]
    classes_per_lesson: tuple[int, ...]
    note: str = ""

    def figure(self) -> InlineFigure:
        """As a picture."""
        picture = figures.confusion_heatmap(self.counts, self.names, self.classes_per_lesson)
        return raster(picture, f"Confusion matrix of {len(self.names)} classes.", ABOUT_CONFUSION + self.note)

    @property
    def numbered(self) -> list[tuple[int, str]]:
        """The classes that are a number in the picture, because its font lacks their letters."""
        return [(place, name) for place, name in enumerate(self.names) if drawable(name, place, 14) != name[:14]]


@dataclass(frozen=True)
class ModelPage:
    """What a page about a lesson or an evaluation shows."""

    title: str
    subtitle: str
    tiles: Sequence[tuple[str, str, str]]  # title, value, explanation
    classes: Sequence[ClassRow]
    confusion: Confusion | None = None
    mistakes: Sequence[Mistake] = ()
    groups: Sequence[GroupTable] = ()
    losses: Sequence[PhaseLosses] = ()
    accuracy: Sequence[tuple[int, float]] = ()  # (step, share of the last training images that was right)
    remarks: Sequence[str] = ()


def write_model_page(page: ModelPage, out: Path) -> Path:
    """Write the page; returns its path."""
    curves = [phase_losses(losses) for losses in page.losses]
    if page.accuracy:
        curves.append(_accuracy_curve(page.accuracy))
    values: dict[str, Any] = {
        "page": page,
        "confusion": None if page.confusion is None else page.confusion.figure(),
        "mistakes": [(mistake, mistake.link(out)) for mistake in page.mistakes],
        "curves": curves,
        "updated": any(row.right_before is not None for row in page.classes),
    }
    return write_page(out, "model.html", values)


def _accuracy_curve(points: Sequence[tuple[int, float]]) -> InlineFigure:
    caption = "Share of the training images of a step that the network classified correctly."
    return vector(figures.training_accuracy(points), f"Line chart. {caption}", caption)
