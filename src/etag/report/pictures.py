"""Pictures as a page holds them: inlined, with words for those who cannot see them."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

import matplotlib
from matplotlib.figure import Figure
from PIL import Image

from etag.report import figures
from etag.report.formats import duration, percent
from etag.report.records import Embedding, Metrics
from etag.report.style import BLUE, CLASSES_WITH_OWN_LOOK, GRAY, SKY, Look, class_looks, method_name, task_looks
from etag.report.traces import Trace

DOTS_PER_INCH = 190  # sharp on a screen of double density
MADE_WIDTH = 400  # CSS pixels, about: whole pixels stay sharp
COLORS = 256  # of a raster picture; halves its size and cannot be seen

ABOUT_ACCURACY_MATRIX = "Accuracy on each task (columns) after learning each task (rows), all classes seen competing."
ABOUT_CONFUSION = (
    "Answers after the last task, in percent of each true class; lines part the tasks. "
    "The colors follow the square root, so that rare confusions show."
)
ABOUT_EMBEDDING = "Features of test images after the last task, laid out by t-SNE; near points have like features."


@dataclass(frozen=True)
class Picture:
    """An image as a data URI."""

    source: str
    alt: str
    caption: str
    width: int  # in CSS pixels; pages scale it
    height: int
    figure: Figure | None = None  # that it was drawn from


def vector(figure: Figure, alt: str, caption: str) -> Picture:
    """For lines and letters."""
    return _picture(figure, "image/svg+xml", drawn(figure, "svg", transparent=True), alt, caption)


def raster(figure: Figure, alt: str, caption: str) -> Picture:
    """For thousands of points or cells, which as vectors would make the page heavy."""
    packed = BytesIO()
    Image.open(BytesIO(drawn(figure, "png"))).convert("RGB").quantize(COLORS).save(packed, "png", optimize=True)
    return _picture(figure, "image/png", packed.getvalue(), alt, caption)


def drawn(figure: Figure, kind: str, transparent: bool = False) -> bytes:
    """The file of this kind (svg, pdf or png)."""
    buffer = BytesIO()
    dates = {"svg": "Date", "pdf": "CreationDate"}
    # without a salt the identifiers are random, and the same run would give another file each time
    with matplotlib.rc_context({"svg.hashsalt": "etag"}):
        figure.savefig(
            buffer,
            format=kind,
            dpi=DOTS_PER_INCH,
            transparent=transparent,
            metadata={dates[kind]: None} if kind in dates else None,
        )
    return buffer.getvalue()


def _picture(figure: Figure, kind: str, data: bytes, alt: str, caption: str) -> Picture:
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return Picture(f"data:{kind};base64,{base64.b64encode(data).decode()}", alt, caption, width, height, figure)


def made_picture(image: bytes, task: int) -> Picture:
    """What a generator makes after a task."""
    width, height = Image.open(BytesIO(image)).size
    zoom = max(1, round(MADE_WIDTH / width))
    source = f"data:image/png;base64,{base64.b64encode(image).decode()}"
    alt = f"Rows of small images that the generator makes after task {task}."
    return Picture(source, alt, f"After task {task}.", zoom * width, zoom * height)


def accuracy_curve_picture(metrics: Metrics) -> Picture:
    """Accuracy after each task of one run, by all three ways to count."""
    curves = [
        figures.Curve("weighted", metrics.step_accuracy_weighted, Look(BLUE)),
        figures.Curve("plain", metrics.step_accuracy_plain, Look(SKY, "s", "--")),
        figures.Curve("task-aware, weighted", metrics.step_accuracy_task_aware, Look(GRAY, "^"), light=True),
    ]
    steps = ", ".join(map(percent, metrics.step_accuracy_weighted))
    return vector(
        figures.accuracy_curves(metrics.seen, curves),
        f"Line chart of accuracy against classes seen; weighted, in percent after each task: {steps}.",
        "Accuracy over all classes seen, after each task. Weighted: every class counts the same; plain: every task "
        "does; task-aware: only the classes of an image's own task compete.",
    )


def accuracy_matrix_picture(metrics: Metrics, among: str | None = None) -> Picture:
    """The accuracy matrix of one run; `among` is its name among several, where it is drawn small."""
    last = ", ".join(map(percent, metrics.accuracies[-1]))
    return raster(
        figures.accuracy_heatmap(metrics.accuracies, _width(among)),
        f"Accuracy matrix of {among or _name(metrics)}; last row, in percent for each task: {last}.",
        among or ABOUT_ACCURACY_MATRIX,
    )


def confusion_picture(metrics: Metrics, among: str | None = None) -> Picture:
    """The confusion matrix after the last task."""
    figure = figures.confusion_heatmap(
        metrics.confusion, metrics.class_names, metrics.classes_per_task, _width(among)
    )
    return raster(
        figure,
        f"Confusion matrix of {among or _name(metrics)} over {metrics.classes} classes; "
        f"{percent(metrics.last_accuracy)} % of answers are right. {_most_confused(metrics)}",
        among or ABOUT_CONFUSION,
    )


def _most_confused(metrics: Metrics) -> str:
    """The largest number off the diagonal, in words."""
    count, true, answer = max(
        (
            (count, true, answer)
            for true, row in enumerate(metrics.confusion)
            for answer, count in enumerate(row)
            if true != answer
        ),
        default=(0, 0, 0),
    )
    names = metrics.class_names
    return f"Most often confused: {names[true]} taken for {names[answer]}, {count} times." if count else ""


def embedding_picture(embedding: Embedding, metrics: Metrics, among: str | None = None) -> Picture:
    """The t-SNE of test features; `embedding_key` explains its marks."""
    by_class = metrics.classes <= CLASSES_WITH_OWN_LOOK
    groups = embedding.labels if by_class else [metrics.task_of_class[label] for label in embedding.labels]
    looks = [look for look, _ in embedding_key(metrics)]
    return raster(
        figures.embedding_scatter(embedding.points, groups, looks, _width(among)),
        f"t-SNE of {len(embedding.points)} test images of {among or _name(metrics)}, "
        f"colored by {'class' if by_class else 'task'}.",
        among or ABOUT_EMBEDDING,
    )


def embedding_key(metrics: Metrics) -> list[tuple[Look, str]]:
    """What the marks of the t-SNE stand for: classes, or tasks where there are too many classes."""
    if metrics.classes <= CLASSES_WITH_OWN_LOOK:
        return list(zip(class_looks(metrics.classes), metrics.class_names, strict=False))
    spans = zip(metrics.seen, metrics.classes_per_task, strict=True)
    names = [
        f"task {task} (classes {end - size}–{end - 1})" if size > 1 else f"task {task} (class {end - 1})"
        for task, (end, size) in enumerate(spans, start=1)
    ]
    return list(zip(task_looks(metrics.tasks), names, strict=True))


def loss_picture(trace: Trace) -> Picture:
    """The loss terms of one phase."""
    return vector(
        figures.loss_curves(trace),
        f"Line chart of the loss terms of phase {trace.phase} over its steps: {', '.join(trace.terms)}.",
        f"Loss terms of phase “{trace.phase}”, task after task.",
    )


def comparison_curves_picture(seen: Sequence[int], curves: Sequence[figures.Curve]) -> Picture:
    """Accuracy after each task, of several methods."""
    ends = "; ".join(f"{curve.name} {percent(curve.values[-1])}" for curve in curves)
    bands = " Bands: one standard deviation over seeds." if any(curve.deviations for curve in curves) else ""
    return vector(
        figures.accuracy_curves(seen, curves),
        f"Line chart of accuracy against classes seen; weighted, in percent after the last task: {ends}.",
        f"Accuracy over all classes seen, after each task (weighted: every class counts the same).{bands}",
    )


def time_picture(bars: Sequence[figures.Bar]) -> Picture:
    """Training time of several methods."""
    totals = "; ".join(f"{bar.name} {duration(sum(bar.seconds))}" for bar in bars)
    return vector(
        figures.time_bars(bars),
        f"Bar chart of training time: {totals}.",
        "Training time, all tasks together; a piece of a bar is a task.",
    )


def _width(among: str | None) -> float:
    return figures.NARROW if among else figures.WIDTH


def _name(metrics: Metrics) -> str:
    return f"{method_name(metrics.method)}, seed {metrics.seed}"
