"""Figures as a page holds them: data URIs, with a text for those who cannot see them."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO

import matplotlib
from matplotlib.figure import Figure
from PIL import Image

from etag.core.text import percent
from etag.report import figures
from etag.report.features import Embedding
from etag.report.losses import PhaseLosses
from etag.report.records import Metrics
from etag.report.style import BLUE, CLASSES_WITH_OWN_STYLE, GRAY, SKY, Style, class_styles, method_title, task_styles

DOTS_PER_INCH = 190  # sharp on a screen of double density
GENERATED_WIDTH = 400  # CSS pixels, about: whole pixels stay sharp
COLORS = 256  # of a raster image: halves its size, and the difference cannot be seen
Key = list[tuple[Style, str]]  # what the colors of a figure stand for

ABOUT_ACCURACY_MATRIX = "Accuracy on each task (columns) after each task (rows), among all classes seen so far."
ABOUT_CONFUSION = (
    "Predictions after the last task, in percent of each true class; lines separate the tasks. "
    "The color scale follows the square root, so that rare confusions are visible."
)
ABOUT_EMBEDDING = (
    "Features of test images in two dimensions (t-SNE); points that are near each other have similar features."
)


@dataclass(frozen=True)
class InlineFigure:
    """An image as a data URI, with its caption and a text for screen readers."""

    source: str
    alt: str
    caption: str
    width: int  # in CSS pixels; pages scale it
    height: int
    figure: Figure | None = None  # the drawing, if it is one
    name: str = ""  # of its files, without ending
    data: Sequence[Sequence[object]] = ()  # the rows of its CSV file


def vector(figure: Figure, alt: str, caption: str) -> InlineFigure:
    """A figure as SVG: for lines and letters."""
    return _inline(figure, "image/svg+xml", drawn(figure, "svg", transparent=True), alt, caption)


def raster(figure: Figure, alt: str, caption: str) -> InlineFigure:
    """A figure as PNG: for thousands of points or cells, which would make a large SVG."""
    packed = BytesIO()
    Image.open(BytesIO(drawn(figure, "png"))).convert("RGB").quantize(COLORS).save(packed, "png", optimize=True)
    return _inline(figure, "image/png", packed.getvalue(), alt, caption)


def drawn(figure: Figure, kind: str, transparent: bool = False) -> bytes:
    """The content of a file of this kind: svg, pdf or png."""
    buffer = BytesIO()
    dates = {"svg": "Date", "pdf": "CreationDate"}
    # without a salt the identifiers are random, and the same run would give a different file each time
    with matplotlib.rc_context({"svg.hashsalt": "etag"}):
        metadata = {dates[kind]: None} if kind in dates else None
        figure.savefig(buffer, format=kind, dpi=DOTS_PER_INCH, transparent=transparent, metadata=metadata)
    return buffer.getvalue()


def _inline(figure: Figure, kind: str, data: bytes, alt: str, caption: str) -> InlineFigure:
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return InlineFigure(_uri(kind, data), alt, caption, width, height, figure)


def _uri(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def generated_images(image: bytes, task: int) -> InlineFigure:
    """The images that the generator produced after a task."""
    width, height = Image.open(BytesIO(image)).size
    zoom = max(1, round(GENERATED_WIDTH / width))
    alt = f"Rows of small images from the generator after task {task}."
    return InlineFigure(_uri("image/png", image), alt, f"After task {task}.", zoom * width, zoom * height)


def accuracy_curve(metrics: Metrics) -> InlineFigure:
    """Accuracy after each task of one run: weighted, plain and task-aware."""
    curves = [
        figures.Curve("weighted", metrics.step_accuracy_weighted, Style(BLUE)),
        figures.Curve("plain", metrics.step_accuracy_plain, Style(SKY, "s", "--")),
        figures.Curve("task-aware, weighted", metrics.step_accuracy_task_aware, Style(GRAY, "^"), light=True),
    ]
    steps = ", ".join(map(percent, metrics.step_accuracy_weighted))
    return vector(
        figures.accuracy_curves(metrics.seen, curves),
        f"Line chart of accuracy against classes seen; weighted, in percent after each task: {steps}.",
        "Accuracy over all classes seen, after each task. Weighted: every class counts the same; plain: every task "
        "counts the same; task-aware: only the classes of an image's own task are considered.",
    )


def accuracy_matrix(metrics: Metrics, among: str | None = None) -> InlineFigure:
    """The accuracy matrix of one run; `among` is its title among several, and makes it smaller."""
    last = ", ".join(map(percent, metrics.accuracies[-1]))
    return raster(
        figures.accuracy_heatmap(metrics.accuracies, _width(among)),
        f"Accuracy matrix of {among or _name(metrics)}; last row, in percent for each task: {last}.",
        among or ABOUT_ACCURACY_MATRIX,
    )


def confusion_matrix(metrics: Metrics, among: str | None = None) -> InlineFigure:
    """The confusion matrix after the last task."""
    names, sizes = metrics.class_names, metrics.classes_per_task
    return raster(
        figures.confusion_heatmap(metrics.confusion, names, sizes, _width(among)),
        f"Confusion matrix of {among or _name(metrics)} over {metrics.classes} classes; "
        f"{percent(metrics.values['last_accuracy'])} % of predictions are correct. {_most_confused(metrics)}",
        among or ABOUT_CONFUSION,
    )


def _most_confused(metrics: Metrics) -> str:
    """A sentence about the largest number off the diagonal."""
    counts = ((n, true, guess) for true, row in enumerate(metrics.confusion) for guess, n in enumerate(row))
    count, true, predicted = max((one for one in counts if one[1] != one[2]), default=(0, 0, 0))
    names = metrics.class_names
    return f"Most often confused: {names[true]} predicted as {names[predicted]}, {count} times." if count else ""


def class_key(labels: Iterable[int], metrics: Metrics) -> tuple[dict[int, int], Key]:
    """The place of each class in the key, and the key of a t-SNE: each of these classes has its own style, or each
    task if there are too many classes."""
    classes = sorted(labels)
    if len(classes) <= CLASSES_WITH_OWN_STYLE:
        names = [metrics.class_names[label] for label in classes]
        places = {label: place for place, label in enumerate(classes)}
        return places, list(zip(class_styles(len(classes)), names, strict=True))
    spans = zip(metrics.seen, metrics.classes_per_task, strict=True)
    names = [
        f"task {task} (classes {end - size}–{end - 1})" if size > 1 else f"task {task} (class {end - 1})"
        for task, (end, size) in enumerate(spans, start=1)
    ]
    return dict(enumerate(metrics.task_of_class)), list(zip(task_styles(metrics.tasks), names, strict=True))


def embedding_scatter(embedding: Embedding, metrics: Metrics, task: int) -> InlineFigure:
    """The t-SNE of test features of one run after a task (from 1), with the colors of `class_key`."""
    place, key = class_key(range(metrics.classes), metrics)
    groups = [place[label] for label in embedding.labels]
    return raster(
        figures.embedding_scatter(embedding.points, groups, [style for style, _ in key]),
        f"t-SNE of {len(embedding.points)} test images of {_name(metrics)} after task {task}, "
        f"colored by {'class' if metrics.classes <= CLASSES_WITH_OWN_STYLE else 'task'}.",
        f"After task {task}. {ABOUT_EMBEDDING}",
    )


def embedding_panels(
    title: str, by_task: Mapping[int, Embedding], place: Mapping[int, int], key: Key, caption: str | None = None
) -> InlineFigure:
    """One t-SNE per task; `title` names the run, and is the caption if there is no other."""
    return raster(
        figures.embedding_panels(by_task, place, [style for style, _ in key]),
        f"t-SNE of test images of {title} after tasks {', '.join(map(str, by_task))}.",
        caption or title,
    )


def phase_losses(losses: PhaseLosses) -> InlineFigure:
    """The loss terms of one phase."""
    return vector(
        figures.loss_curves(losses),
        f"Line chart of the loss terms of phase {losses.phase} over its steps: {', '.join(losses.terms)}.",
        f"Loss terms of phase “{losses.phase}”, one task after the other.",
    )


def _width(among: str | None) -> float:
    return figures.NARROW if among else figures.WIDTH


def _name(metrics: Metrics) -> str:
    return f"{method_title(metrics.method)}, seed {metrics.seed}"
