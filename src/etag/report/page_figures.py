"""Figures as a page holds them: data URIs, with a text for those who cannot see them.

The figures of a group of runs also have a name for their files, and the data that they show.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO

import matplotlib
from matplotlib.figure import Figure
from PIL import Image

from etag.core.text import duration, fixed, percent
from etag.experiments.grid import NOT_IN_NAMES
from etag.report import figures
from etag.report import style as styles
from etag.report.features import TsnePoints, tsne_of_some_tasks
from etag.report.groups import MethodRuns, RunGroup, representatives, styled
from etag.report.layout import layout
from etag.report.losses import PhaseLosses
from etag.report.records import Metrics, RunRecord
from etag.report.results import Ranking
from etag.report.style import CLASSES_WITH_OWN_STYLE, Style, method_title

DOTS_PER_INCH = 190  # sharp on a screen of double density
GENERATED_WIDTH = 400  # CSS pixels, about: whole pixels stay sharp
COLORS = 256  # of a raster image: halves its size, and the difference cannot be seen
LINES = 12  # in one figure of curves; more are spread over several figures
Rows = Sequence[Sequence[object]]
Key = list[tuple[Style, str]]  # what the colors of a figure stand for

ABOUT_ACCURACY_MATRIX = "Accuracy on each task (columns) after each task (rows), among all classes seen so far."
ABOUT_CONFUSION = (
    "Predictions after the last task, in percent of each true class; lines separate the tasks. "
    "The color scale follows the square root, so that rare confusions are visible."
)
ABOUT_TSNE = "Features of test images in two dimensions (t-SNE); points that are near each other have similar features."


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
    rows: Rows = ()  # of its CSV file


def vector(figure: Figure, alt: str, caption: str, rows: Rows = ()) -> InlineFigure:
    """A figure as SVG: for lines and letters."""
    return _inline(figure, "image/svg+xml", drawn(figure, "svg", transparent=True), alt, caption, rows)


def raster(figure: Figure, alt: str, caption: str, rows: Rows = ()) -> InlineFigure:
    """A figure as PNG: for thousands of points or cells, which would make a large SVG."""
    packed = BytesIO()
    Image.open(BytesIO(drawn(figure, "png"))).convert("RGB").quantize(COLORS).save(packed, "png", optimize=True)
    return _inline(figure, "image/png", packed.getvalue(), alt, caption, rows)


def drawn(figure: Figure, kind: str, transparent: bool = False) -> bytes:
    """The content of a file of this kind: svg, pdf or png."""
    buffer = BytesIO()
    dates = {"svg": "Date", "pdf": "CreationDate"}
    # without a salt the identifiers are random, and the same run would give a different file each time
    with matplotlib.rc_context({"svg.hashsalt": "etag"}):
        metadata = {dates[kind]: None} if kind in dates else None
        figure.savefig(buffer, format=kind, dpi=DOTS_PER_INCH, transparent=transparent, metadata=metadata)
    return buffer.getvalue()


def _inline(figure: Figure, kind: str, data: bytes, alt: str, caption: str, rows: Rows) -> InlineFigure:
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return InlineFigure(_uri(kind, data), alt, caption, width, height, figure, rows=rows)


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
        figures.Curve("weighted", metrics.step_accuracy_weighted, Style(styles.BLUE)),
        figures.Curve("plain", metrics.step_accuracy_plain, Style(styles.SKY, "s", "--")),
        figures.Curve("task-aware, weighted", metrics.step_accuracy_task_aware, Style(styles.GRAY, "^"), light=True),
    ]
    steps = ", ".join(map(percent, metrics.step_accuracy_weighted))
    return vector(
        figures.accuracy_curves(metrics.seen, curves),
        f"Line chart of accuracy against classes seen; weighted, in percent after each task: {steps}.",
        "Accuracy over all classes seen, after each task. Weighted: every class counts the same; plain: every task "
        "counts the same; task-aware: only the classes of an image's own task are considered.",
    )


def accuracy_matrix(metrics: Metrics, small_title: str | None = None) -> InlineFigure:
    """The accuracy matrix of one run; `small_title` is its title beside other runs, and makes it smaller."""
    tasks = range(1, metrics.tasks + 1)
    last = ", ".join(map(percent, metrics.accuracies[-1]))
    return raster(
        figures.accuracy_heatmap(metrics.accuracies, _width(small_title)),
        f"Accuracy matrix of {small_title or _name(metrics)}; last row, in percent for each task: {last}.",
        small_title or ABOUT_ACCURACY_MATRIX,
        [["after task", *tasks], *([task, *row] for task, row in zip(tasks, metrics.accuracies, strict=True))],
    )


def confusion_matrix(metrics: Metrics, small_title: str | None = None) -> InlineFigure:
    """The confusion matrix after the last task."""
    names = metrics.class_names[: metrics.classes]
    return raster(
        figures.confusion_heatmap(metrics.confusion, names, metrics.classes_per_task, _width(small_title)),
        f"Confusion matrix of {small_title or _name(metrics)} over {metrics.classes} classes; "
        f"{percent(metrics.values['last_accuracy'])} % of predictions are correct. {_most_confused(metrics)}",
        small_title or ABOUT_CONFUSION,
        [["true class", *names], *([name, *row] for name, row in zip(names, metrics.confusion, strict=True))],
    )


def _most_confused(metrics: Metrics) -> str:
    """A sentence about the largest number off the diagonal."""
    counts = ((n, true, guess) for true, row in enumerate(metrics.confusion) for guess, n in enumerate(row))
    count, true, predicted = max((one for one in counts if one[1] != one[2]), default=(0, 0, 0))
    names = metrics.class_names
    return f"Most often confused: {names[true]} predicted as {names[predicted]}, {count} times." if count else ""


def class_key(labels: Iterable[int], metrics: Metrics) -> tuple[dict[int, int], Key]:
    """The place of each class in the key, and the key of a t-SNE: each of these classes has its own style, or each task
    if there are too many classes."""
    classes = sorted(labels)
    if len(classes) <= CLASSES_WITH_OWN_STYLE:
        names = [metrics.class_names[label] for label in classes]
        places = {label: place for place, label in enumerate(classes)}
        return places, list(zip(styles.class_styles(len(classes)), names, strict=True))
    spans = zip(metrics.seen, metrics.classes_per_task, strict=True)
    names = [
        f"task {task} (classes {end - size}–{end - 1})" if size > 1 else f"task {task} (class {end - 1})"
        for task, (end, size) in enumerate(spans, start=1)
    ]
    return dict(enumerate(metrics.task_of_class)), list(zip(styles.task_styles(metrics.tasks), names, strict=True))


def tsne_scatter(embedding: TsnePoints, metrics: Metrics, task: int) -> InlineFigure:
    """The t-SNE of test features of one run after a task (from 1), with the colors of `class_key`."""
    place, key = class_key(range(metrics.classes), metrics)
    groups = [place[label] for label in embedding.labels]
    return raster(
        figures.tsne_scatter(embedding.points, groups, [style for style, _ in key]),
        f"t-SNE of {len(embedding.points)} test images of {_name(metrics)} after task {task}, "
        f"colored by {'class' if metrics.classes <= CLASSES_WITH_OWN_STYLE else 'task'}.",
        f"After task {task}. {ABOUT_TSNE}",
    )


def tsne_panels(
    title: str, by_task: Mapping[int, TsnePoints], place: Mapping[int, int], key: Key, caption: str | None = None
) -> InlineFigure:
    """One t-SNE per task; `title` names the run, and is the caption if there is no other."""
    return raster(
        figures.tsne_panels(by_task, place, [style for style, _ in key]),
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


def _width(small_title: str | None) -> float:
    return figures.NARROW if small_title else figures.WIDTH


def _name(metrics: Metrics) -> str:
    return f"{method_title(metrics.method)}, seed {metrics.seed}"


def accuracy_figures(group: RunGroup) -> list[InlineFigure]:
    """Accuracy after each task of everything in the group. Where that is too much for one figure: all methods; the
    methods of the paper's Figure 3; each method that has variants, with these."""
    methods = [member for member in group.all if not member.is_variant]
    if len(group.members) <= LINES:
        return [_curves("accuracy", group, group.all)]
    drawn_figures = [_curves("accuracy", group, methods)] if methods else []
    chosen = group.some(layout().figure3)
    if len(layout().figure3) / 2 < len(chosen) < len(methods):
        drawn_figures.append(_curves("figure3", group, chosen))
    for method in dict.fromkeys(member.method for member in group.all):
        own = [member for member in group.all if member.method == method]
        if any(member.is_variant for member in own):
            drawn_figures.append(_curves(f"variants-{method}", group, own))
    return drawn_figures


def component_figure(group: RunGroup) -> InlineFigure | None:
    """The paper's Figure 5: accuracy after each task of the main method and its ablations."""
    members = group.some(layout().figure5)
    return _curves("components", group, members) if len(members) > 2 else None


def _curves(kind: str, group: RunGroup, members: Sequence[MethodRuns]) -> InlineFigure:
    curves = [member.curve(style) for member, style in styled(members)]
    ends = "; ".join(f"{curve.name} {percent(curve.values[-1])}" for curve in curves)
    bands = " Bands: one standard deviation over seeds." if any(curve.deviations for curve in curves) else ""
    figure = vector(
        figures.accuracy_curves(group.metrics.seen, curves),
        f"Line chart of accuracy against classes seen; weighted, in percent after the last task: {ends}.",
        f"Accuracy over all classes seen, after each task (weighted: every class counts the same).{bands}",
        _curve_rows(group, curves),
    )
    return _named(kind, group, figure)


def time_figure(group: RunGroup) -> InlineFigure:
    """Training time of every method and variant."""
    bars = [member.bar(style) for member, style in styled(group.all)]
    rows = [[bar.name, task, round(s, 3)] for bar in bars for task, s in enumerate(bar.seconds, start=1)]
    totals = "; ".join(f"{bar.name} {duration(sum(bar.seconds))}" for bar in bars)
    figure = vector(
        figures.time_bars(bars),
        f"Bar chart of training time: {totals}.",
        "Training time, all tasks together; each piece of a bar is one task.",
        [["method", "task", "seconds"], *rows],
    )
    return _named("time", group, figure)


def temperature_figure(group: RunGroup, by_tau: dict[float, MethodRuns]) -> InlineFigure:
    """The paper's Figure 6: accuracy after each task, by temperature."""
    title = method_title(layout().main)
    colors = (*styles.LINE_COLORS, styles.VERMILION)
    curves = []
    for number, (tau, member) in enumerate(by_tau.items()):
        style = Style(colors[number % len(colors)], styles.LINE_MARKERS[number % len(styles.LINE_MARKERS)])
        curves.append(replace(member.curve(style), name=f"τ = {tau:g}"))
    ends = "; ".join(f"{curve.name}: {percent(curve.values[-1])}" for curve in curves)
    figure = vector(
        figures.error_curves(group.metrics.seen, curves),
        f"Accuracy of {title} against classes seen for several temperatures; in percent after the last task: {ends}.",
        f"{title}’s accuracy over all classes seen (weighted), by τ of Eq. (4). Bars: one standard deviation over "
        "seeds.",
        _curve_rows(group, curves),
    )
    return _named("temperature", group, figure)


def _curve_rows(group: RunGroup, curves: Sequence[figures.Curve]) -> Rows:
    rows: list[list[object]] = [["curve", "task", "classes seen", "accuracy (%)", "std"]]
    for curve in curves:
        for task, (classes, value) in enumerate(zip(group.metrics.seen, curve.values, strict=True)):
            deviation = "" if curve.deviations is None else round(100 * curve.deviations[task], 4)
            rows.append([curve.name, task + 1, classes, round(100 * value, 4), deviation])
    return rows


def agreement_figure(ranking: Ranking) -> InlineFigure:
    """Our ranking of the methods beside the paper's."""
    slopes = [
        figures.Slope(member.title, theirs, member.spread().mean, style, member.label != layout().main)
        for (member, style), theirs in zip(styled(ranking.members), ranking.theirs, strict=True)
    ]
    rows = [[m.method, s.theirs, round(s.ours, 4)] for m, s in zip(ranking.members, slopes, strict=True)]
    agreement = ranking.agreement
    interval = f" ({' to '.join(fixed(end, 2) for end in agreement.over_methods)} over methods)"
    words = ", ".join(f"{s.name} {fixed(s.theirs, 1)} and {fixed(s.ours, 1)}" for s in slopes)
    figure = vector(
        figures.slopes(slopes),
        f"Slope chart of {len(slopes)} methods; the paper’s A and ours in percent: {words}.",
        f"The paper’s ranking ({ranking.column}) and ours; Kendall’s tau-b {fixed(agreement.tau, 2)}{interval}.",
        [["method", "paper A", "our A"], *rows],
    )
    return _named("agreement", ranking.group, figure)


def confusion_figures(group: RunGroup) -> list[InlineFigure]:
    """The confusion matrix of one run of each method that is shown in detail."""
    runs = representatives(group.detailed)
    return [_named("confusion", group, confusion_matrix(run.metrics, title), run) for title, run in runs]


def accuracy_matrix_figures(group: RunGroup) -> list[InlineFigure]:
    """The accuracy matrix of one run of each method that is shown in detail."""
    runs = representatives(group.detailed)
    return [_named("matrix", group, accuracy_matrix(run.metrics, title), run) for title, run in runs]


def feature_figures(group: RunGroup) -> tuple[list[InlineFigure], Key]:
    """The t-SNE after each task of one run of each method that is shown in detail and saved features, with the key to
    the colors; the key is empty if the runs have different orders of classes."""
    runs = [(title, run, tsne_of_some_tasks(run)) for title, run in representatives(group.detailed)]
    shown = [(title, run, by_task) for title, run, by_task in runs if by_task]
    if not shown:
        return [], []
    labels = {label for *_, by_task in shown for one in by_task.values() for label in one.labels}
    place, key = class_key(labels, shown[0][1].metrics)
    images = []
    for title, run, by_task in shown:
        rows = [
            [task, run.metrics.class_names[label], *point]
            for task, one in by_task.items()
            for point, label in zip(one.points, one.labels, strict=True)
        ]
        image = replace(tsne_panels(title, by_task, place, key), rows=[["task", "class", "x", "y"], *rows])
        images.append(_named("tsne", group, image, run))
    orders = {tuple(run.metrics.class_names) for _, run, _ in shown}
    return images, key if len(orders) == 1 else []


def _named(kind: str, group: RunGroup, figure: InlineFigure, run: RunRecord | None = None) -> InlineFigure:
    """The figure with a name for its files and the group in its caption; `run` is the one it shows, if only one."""
    labels = [member.label for member in group.all if any(run is own for own in member.runs)]
    name = NOT_IN_NAMES.sub("-", "-".join([kind, *labels, group.slug]))
    return replace(figure, name=name, caption=f"{group.title}: {figure.caption}")
