"""Figures as a page holds them: data URIs, with a text for those who cannot see them."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

import matplotlib
from matplotlib.figure import Figure
from PIL import Image

from etag.core.text import duration, percent
from etag.report import figures
from etag.report.features import Embedding
from etag.report.losses import PhaseLosses
from etag.report.records import Metrics
from etag.report.style import (
    BLUE,
    CLASSES_WITH_OWN_STYLE,
    GRAY,
    SKY,
    Style,
    class_styles,
    method_title,
    task_styles,
)

DOTS_PER_INCH = 190  # sharp on a screen of double density
GENERATED_WIDTH = 400  # CSS pixels, about: whole pixels stay sharp
COLORS = 256  # of a raster image: halves its size, and the difference cannot be seen

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
        figure.savefig(
            buffer,
            format=kind,
            dpi=DOTS_PER_INCH,
            transparent=transparent,
            metadata={dates[kind]: None} if kind in dates else None,
        )
    return buffer.getvalue()


def _inline(figure: Figure, kind: str, data: bytes, alt: str, caption: str) -> InlineFigure:
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return InlineFigure(f"data:{kind};base64,{base64.b64encode(data).decode()}", alt, caption, width, height, figure)


def generated_images(image: bytes, task: int) -> InlineFigure:
    """The images that the generator produced after a task."""
    width, height = Image.open(BytesIO(image)).size
    zoom = max(1, round(GENERATED_WIDTH / width))
    source = f"data:image/png;base64,{base64.b64encode(image).decode()}"
    alt = f"Rows of small images from the generator after task {task}."
    return InlineFigure(source, alt, f"After task {task}.", zoom * width, zoom * height)


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
    figure = figures.confusion_heatmap(
        metrics.confusion, metrics.class_names, metrics.classes_per_task, _width(among)
    )
    return raster(
        figure,
        f"Confusion matrix of {among or _name(metrics)} over {metrics.classes} classes; "
        f"{percent(metrics.values['last_accuracy'])} % of predictions are correct. {_most_confused(metrics)}",
        among or ABOUT_CONFUSION,
    )


def _most_confused(metrics: Metrics) -> str:
    """A sentence about the largest number off the diagonal."""
    count, true, predicted = max(
        (
            (count, true, predicted)
            for true, row in enumerate(metrics.confusion)
            for predicted, count in enumerate(row)
            if true != predicted
        ),
        default=(0, 0, 0),
    )
    names = metrics.class_names
    return f"Most often confused: {names[true]} predicted as {names[predicted]}, {count} times." if count else ""


def embedding_scatter(embedding: Embedding, metrics: Metrics, task: int) -> InlineFigure:
    """The t-SNE of test features after a task (from 1); `embedding_key` explains its colors."""
    numbers = style_numbers(metrics)
    groups = [numbers[label] for label in embedding.labels]
    styles = [style for style, _ in embedding_key(metrics)]
    return raster(
        figures.embedding_scatter(embedding.points, groups, styles),
        f"t-SNE of {len(embedding.points)} test images of {_name(metrics)} after task {task}, "
        f"colored by {'class' if metrics.classes <= CLASSES_WITH_OWN_STYLE else 'task'}.",
        f"After task {task}. {ABOUT_EMBEDDING}",
    )


def style_numbers(metrics: Metrics) -> dict[int, int]:
    """By class: its place in `embedding_key`."""
    by_class = metrics.classes <= CLASSES_WITH_OWN_STYLE
    return dict(enumerate(range(metrics.classes) if by_class else metrics.task_of_class))


def embedding_key(metrics: Metrics) -> list[tuple[Style, str]]:
    """The styles of the t-SNE and their meaning: classes, or tasks if there are too many classes."""
    if metrics.classes <= CLASSES_WITH_OWN_STYLE:
        return list(zip(class_styles(metrics.classes), metrics.class_names, strict=False))
    spans = zip(metrics.seen, metrics.classes_per_task, strict=True)
    names = [
        f"task {task} (classes {end - size}–{end - 1})" if size > 1 else f"task {task} (class {end - 1})"
        for task, (end, size) in enumerate(spans, start=1)
    ]
    return list(zip(task_styles(metrics.tasks), names, strict=True))


def phase_losses(losses: PhaseLosses) -> InlineFigure:
    """The loss terms of one phase."""
    return vector(
        figures.loss_curves(losses),
        f"Line chart of the loss terms of phase {losses.phase} over its steps: {', '.join(losses.terms)}.",
        f"Loss terms of phase “{losses.phase}”, one task after the other.",
    )


def method_curves(seen: Sequence[int], curves: Sequence[figures.Curve]) -> InlineFigure:
    """Accuracy after each task, of several methods."""
    ends = "; ".join(f"{curve.name} {percent(curve.values[-1])}" for curve in curves)
    bands = " Bands: one standard deviation over seeds." if any(curve.deviations for curve in curves) else ""
    return vector(
        figures.accuracy_curves(seen, curves),
        f"Line chart of accuracy against classes seen; weighted, in percent after the last task: {ends}.",
        f"Accuracy over all classes seen, after each task (weighted: every class counts the same).{bands}",
    )


def training_times(bars: Sequence[figures.Bar]) -> InlineFigure:
    """Training time of several methods."""
    totals = "; ".join(f"{bar.name} {duration(sum(bar.seconds))}" for bar in bars)
    return vector(
        figures.time_bars(bars),
        f"Bar chart of training time: {totals}.",
        "Training time, all tasks together; each piece of a bar is one task.",
    )


def _width(among: str | None) -> float:
    return figures.NARROW if among else figures.WIDTH


def _name(metrics: Metrics) -> str:
    return f"{method_title(metrics.method)}, seed {metrics.seed}"
