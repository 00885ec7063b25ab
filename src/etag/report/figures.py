"""The figures, each a pure function from data to a matplotlib Figure. Nothing here uses pyplot or its state.

Sizes are in inches. A page scales every figure to the width of its column, so a narrower figure has larger letters.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from etag.core.text import duration
from etag.report.features import TsnePoints
from etag.report.losses import PhaseLosses
from etag.report.style import GRAY, LINE_COLORS, VERMILION, Style, drawable, short

WIDTH, NARROW, RATIO = 5.4, 4.2, 0.8  # neighbors on a page are equally high
TEXT, SMALL, INK, GRID = 9.0, 8.0, "#262626", "#D9D9D9"
HEAT = "Blues"
NAMED_CLASSES = 20  # with more, a confusion matrix shows class numbers instead of names
COUNTED_CLASSES = 12  # with more, it has no percentages in its cells
TASK_TICKS = 12
LEAST_LETTER = 5.0  # points
LEGEND_LETTERS = 30

Cells = npt.NDArray[np.float64]
Point = Sequence[float]


@dataclass(frozen=True)
class Curve:
    """Accuracy after each task, as fractions of 1, with its deviation over seeds if there are several."""

    name: str
    values: Sequence[float]
    style: Style
    deviations: Sequence[float] | None = None
    light: bool = False

    @property
    def percents(self) -> Cells:
        """The values in percent."""
        return 100 * np.asarray(self.values, dtype=float)

    @property
    def margins(self) -> Cells | None:
        """The deviations in percent."""
        return None if self.deviations is None else 100 * np.asarray(self.deviations, dtype=float)


@dataclass(frozen=True)
class Bar:
    """Seconds of each task."""

    name: str
    seconds: Sequence[float]
    style: Style


@dataclass(frozen=True)
class Slope:
    """A method's accuracy in the paper and here, in percent."""

    name: str
    theirs: float
    ours: float
    style: Style
    light: bool = False


def accuracy_curves(seen: Sequence[int], curves: Sequence[Curve]) -> Figure:
    """Accuracy over all classes seen against their number, or against tasks that bring no new classes."""
    rising = len(set(seen)) == len(seen)
    at, along = (seen, "classes seen") if rising else (range(1, len(seen) + 1), "tasks")
    figure, axes = _figure_of_curves(curves, along)
    for curve in curves:
        _draw_curve(axes, at, curve)
    axes.set(ylim=_accuracy_limits(curves), xticks=_spaced(at, least=max(at) / 14))
    _add_legend(figure, axes.get_lines(), [curve.name for curve in curves])
    return figure


def _figure_of_curves(curves: Sequence[Curve], along: str) -> tuple[Figure, Axes]:
    """Empty axes of accuracy, with space for the legend of these curves."""
    figure, axes = _figure(WIDTH, RATIO * WIDTH + 0.2 * (_legend_rows([curve.name for curve in curves]) - 1))
    axes.set(xlabel=along, ylabel="accuracy (%)")
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    return figure, axes


def _accuracy_limits(curves: Sequence[Curve]) -> tuple[float, float]:
    """The range of the values and their deviations in percent, with a margin, inside 0 to 102."""
    ends = [
        curve.percents + sign * (0 if curve.margins is None else curve.margins) for curve in curves for sign in (-1, 1)
    ]
    known = np.concatenate(ends)
    known = known[np.isfinite(known)]
    if not known.size:
        return 0.0, 102.0
    margin = max(2.0, 0.06 * float(np.ptp(known)))
    return max(0.0, float(known.min()) - margin), min(102.0, float(known.max()) + margin)


def _draw_curve(axes: Axes, at: Sequence[int], curve: Curve) -> None:
    size, width, alpha = (4, 1.2, 0.5) if curve.light else (5, 1.8, 1.0)
    values, color = curve.percents, curve.style.color
    axes.plot(at, values, **curve.style.options, markersize=size, linewidth=width, alpha=alpha, clip_on=False)
    if (margin := curve.margins) is not None:
        axes.fill_between(at, values - margin, values + margin, color=color, alpha=0.15, linewidth=0)


def error_curves(seen: Sequence[int], curves: Sequence[Curve]) -> Figure:
    """Accuracy after each task with bars of one deviation; curves are shifted so that all bars can be seen."""
    figure, axes = _figure_of_curves(curves, "classes seen")
    tasks = np.arange(1, len(seen) + 1)
    for place, curve in enumerate(curves):
        aside = 0.2 * (place - (len(curves) - 1) / 2) / len(curves)
        axes.errorbar(
            tasks + aside,
            curve.percents,
            yerr=curve.margins,
            **curve.style.options,
            markersize=4.5,
            linewidth=0.9,
            elinewidth=1.2,
            capsize=2.5,
        )
    axes.set_xticks(tasks, [str(count) for count in seen])
    _add_legend(figure, [container[0] for container in axes.containers], [curve.name for curve in curves])
    return figure


def slopes(methods: Sequence[Slope]) -> Figure:
    """Two rankings side by side, the best on top; a line joins the two places of each method."""
    figure, axes = _figure(WIDTH, 0.9 + 0.23 * len(methods))
    left = sorted(methods, key=lambda slope: -slope.theirs)
    right = sorted(methods, key=lambda slope: -slope.ours)
    for slope in methods:
        theirs, ours = -left.index(slope), -right.index(slope)
        width, alpha = (1.0, 0.7) if slope.light else (2.0, 1.0)
        options = slope.style.options | {"marker": "o", "markersize": 4, "linewidth": width, "alpha": alpha}
        axes.plot((0, 1), (theirs, ours), **options)
        text: dict[str, Any] = {"va": "center", "fontsize": TEXT, "color": INK, "parse_math": False}
        axes.text(-0.04, theirs, f"{slope.name}  {slope.theirs:.1f}", ha="right", **text)
        axes.text(1.04, ours, f"{slope.ours:.1f}  {slope.name}", ha="left", **text)
    axes.text(0, 0.9, "the paper’s A (%)", ha="right", va="bottom", fontsize=SMALL, color=GRAY)
    axes.text(1, 0.9, "our A (%)", ha="left", va="bottom", fontsize=SMALL, color=GRAY)
    axes.set(xlim=(-0.75, 1.75), ylim=(0.6 - len(methods), 1.5), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return figure


def accuracy_heatmap(rows: Sequence[Sequence[float]], width: float = WIDTH) -> Figure:
    """The accuracy matrix: one row per step, one column per task. Row t ends at the diagonal."""
    tasks = len(rows)
    cells = np.full((tasks, tasks), np.nan)
    for step, row in enumerate(rows):
        cells[step, : len(row)] = 100 * np.asarray(row)
    figure, axes = _heatmap(cells, Normalize(0, 100), width, "accuracy (%)", [0, 25, 50, 75, 100])
    ticks = _spaced(range(tasks), least=tasks / 26)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, [str(task + 1) for task in ticks])
    axes.set(xlabel="accuracy on task", ylabel="after task")
    _write_cells(axes, cells, width, decimals=1, dark_above=60)
    return figure


def confusion_heatmap(
    counts: Sequence[Sequence[int]], names: Sequence[str], classes_per_task: Sequence[int], width: float = WIDTH
) -> Figure:
    """How often each class was predicted for each true class, in percent of the true class."""
    table = np.asarray(counts, dtype=float)
    classes = len(table)
    shares = 100 * table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    scale = PowerNorm(0.5, 0, 100)  # the square root makes rare confusions visible
    label = "share of the true class (%)"
    figure, axes = _heatmap(shares, scale, width, label, [0, 1, 5, 10, 25, 50, 75, 100])
    _tick_classes(axes, names[:classes])
    _draw_task_borders(axes, classes_per_task)
    axes.set(xlabel="predicted class", ylabel="true class")
    if classes <= COUNTED_CLASSES:
        some = np.where(shares > 0, shares, np.nan)  # zeros are not written
        _write_cells(axes, some, width, decimals=0, dark_above=36)
    return figure


def _heatmap(cells: Cells, scale: Normalize, width: float, label: str, ticks: list[int]) -> tuple[Figure, Axes]:
    """The cells as colors, with a color bar."""
    figure, axes = _figure(width, RATIO * width)
    image = axes.imshow(cells, cmap=HEAT, norm=scale, interpolation="nearest", aspect="auto")
    bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02, ticks=ticks)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=SMALL, labelcolor=INK, length=0)
    bar.set_label(label, fontsize=SMALL, color=INK)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return figure, axes


def _tick_classes(axes: Axes, names: Sequence[str]) -> None:
    if len(names) > NAMED_CLASSES:
        ticks = range(0, len(names), _round_step(len(names) / 10))
        axes.set(xticks=ticks, yticks=ticks)
        return
    labels = [drawable(name, number, limit=14) for number, name in enumerate(names)]
    upright = max(map(len, labels)) > 2
    axes.set_xticks(range(len(labels)), labels, parse_math=False, rotation=90 if upright else 0)
    axes.set_yticks(range(len(labels)), labels, parse_math=False)


def _draw_task_borders(axes: Axes, classes_per_task: Sequence[int]) -> None:
    classes_per_task = [classes for classes in classes_per_task if classes]
    ends = np.cumsum(classes_per_task)
    thickness = 0.6 if len(ends) <= TASK_TICKS else 0.25
    for end in ends[:-1] - 0.5:
        axes.axhline(end, color=INK, linewidth=thickness, alpha=0.7)
        axes.axvline(end, color=INK, linewidth=thickness, alpha=0.7)
    if 1 < len(ends) <= TASK_TICKS:
        top = axes.secondary_xaxis("top")
        top.set_xticks(ends - np.asarray(classes_per_task) / 2 - 0.5, [str(task + 1) for task in range(len(ends))])
        top.tick_params(length=0, labelsize=SMALL, labelcolor=GRAY, pad=2)
        top.set_xlabel("task", fontsize=SMALL, color=GRAY)
        top.spines["top"].set_visible(False)


def tsne_scatter(points: Sequence[Point], groups: Sequence[int], styles: Sequence[Style]) -> Figure:
    """Points of a plane; `groups` has the number of the style of each point."""
    figure, axes = _figure(WIDTH, RATIO * WIDTH)
    _scatter(axes, points, groups, styles)
    return figure


def tsne_panels(tsne_by_task: Mapping[int, TsnePoints], group_of: Mapping[int, int], styles: Sequence[Style]) -> Figure:
    """t-SNE after each of some tasks, one panel per task; `group_of` has the number of the style of each class."""
    columns = min(len(tsne_by_task), 2 if len(tsne_by_task) <= 4 else 3)
    rows = math.ceil(len(tsne_by_task) / columns)
    figure = Figure(figsize=(NARROW, rows * (NARROW / columns + 0.2)), layout="constrained")
    for place, (task, embedding) in enumerate(sorted(tsne_by_task.items()), start=1):
        axes = figure.add_subplot(rows, columns, place)
        groups = [group_of[label] for label in embedding.labels]
        _scatter(axes, embedding.points, groups, styles, NARROW / columns / WIDTH)
        axes.set_title(f"after task {task}", fontsize=SMALL, color=INK)
    return figure


def _scatter(
    axes: Axes, points: Sequence[Point], groups: Sequence[int], styles: Sequence[Style], size: float = 1.0
) -> None:
    """Draw points of a plane; `size` is the area of the axes as a share of a whole figure's."""
    plane, group = np.asarray(points, dtype=float).reshape(-1, 2), np.asarray(groups)
    area = float(np.clip(9000 / max(1, len(plane)), 5, 22)) * size
    for number, style in enumerate(styles):
        axes.scatter(
            plane[group == number, 0],
            plane[group == number, 1],
            s=area,
            c=style.color,
            marker=style.marker,
            alpha=0.8,
            edgecolors=INK,
            linewidths=0.15,
            rasterized=True,  # thousands of points would make an SVG heavy
        )
    axes.set(xticks=[], yticks=[])  # the axes of t-SNE have no meaning
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(GRID)


def loss_curves(losses: PhaseLosses) -> Figure:
    """The loss terms of one phase, over the steps of all tasks."""
    figure, axes = _figure(WIDTH, 2.3 + 0.2 * _legend_rows(losses.terms))
    colors = (VERMILION, *LINE_COLORS)
    for number, line in enumerate(losses.terms.values()):
        x, y = zip(*line, strict=True)
        dashes = ("-", "--", ":")[number // len(colors) % 3]
        axes.plot(x, y, color=colors[number % len(colors)], linestyle=dashes, linewidth=1.2)
    values = [value for line in losses.terms.values() for _, value in line if math.isfinite(value)]
    if values and min(values) > 0:
        _scale_by_powers(axes, max(values) / min(values))
    for start in losses.task_starts.values():
        axes.axvline(start, color=GRID, linewidth=0.6, zorder=0)
    axes.set(xlabel="steps of this phase (thin lines: a task begins)", ylabel="loss term")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _add_legend(figure, axes.get_lines()[: len(losses.terms)], list(losses.terms))
    return figure


def training_accuracy(points: Sequence[tuple[int, float]]) -> Figure:
    """The accuracy on training images in percent over the steps."""
    figure, axes = _figure(WIDTH, 2.5)
    steps, shares = zip(*points, strict=True)
    axes.plot(steps, [100 * share for share in shares], color=VERMILION, linewidth=1.2)
    axes.set(xlabel="steps", ylabel="right (%)", ylim=(0, 102))
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    return figure


def time_bars(bars: Sequence[Bar]) -> Figure:
    """Training time: one bar per method, one piece of it per task."""
    figure, axes = _figure(WIDTH, max(RATIO * WIDTH, 1.0 + 0.34 * len(bars)))
    longest = max(sum(bar.seconds) for bar in bars)
    seconds, unit = next(((s, u) for s, u in ((3600, "hours"), (60, "minutes")) if longest >= 2 * s), (1, "seconds"))
    for place, bar in enumerate(bars):
        lengths = np.asarray(bar.seconds) / seconds
        starts = np.cumsum(lengths) - lengths
        axes.barh(place, lengths, left=starts, color=bar.style.color, edgecolor="white", linewidth=0.6, height=0.5)
        axes.text(lengths.sum(), place, f" {duration(sum(bar.seconds))}", va="center", fontsize=SMALL, color=INK)
    axes.set_yticks(range(len(bars)), [short(bar.name, 24) for bar in bars], parse_math=False)
    axes.set(xlabel=f"training time ({unit})", xlim=(0, 1.25 * (longest or 1) / seconds))
    axes.invert_yaxis()
    return figure


def _scale_by_powers(axes: Axes, ratio: float) -> None:
    """A logarithmic axis with plain numbers; with ticks at 2 and 5 too if there are few powers of ten."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if ratio > 100 else (1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, without a frame at the top and right."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRAY)
    axes.tick_params(labelsize=SMALL, labelcolor=INK, color=GRAY)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(fontsize=TEXT, color=INK)
    return figure, axes


def _legend_rows(names: Collection[str]) -> int:
    """The number of lines of a legend of these names."""
    longest = max(len(short(name, LEGEND_LETTERS)) for name in names)
    most = 84 // (11 + longest)  # 84 letters fit in a line; a line sample takes the space of 11
    return math.ceil(len(names) / min(4, max(1, most)))


def _add_legend(figure: Figure, lines: Sequence[Line2D], names: Sequence[str]) -> None:
    """Add a legend under the axes. Names are written as they are, also with a `$` or a leading `_`."""
    columns = math.ceil(len(names) / _legend_rows(names))
    blank = [""] * len(lines)
    # handles must be long enough to show dashes
    legend = figure.legend(lines, blank, loc="outside lower center", ncols=columns, handlelength=3, frameon=False)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set(parse_math=False, text=short(name, LEGEND_LETTERS), fontsize=SMALL, color=INK)


def _write_cells(axes: Axes, cells: Cells, width: float, decimals: int, dark_above: float) -> None:
    """Write the number of every cell, light on dark cells; without decimals, or not at all, if cells are small."""
    cell = 72 * 0.72 * width / len(cells)  # in points, ticks and color bar taking the rest of the figure's width
    letter = min(TEXT, cell / (2.0 + 0.9 * decimals))
    if letter < LEAST_LETTER:
        if decimals:
            _write_cells(axes, cells, width, 0, dark_above)
        return
    for (row, column), value in np.ndenumerate(cells):
        if math.isfinite(value):
            color = "white" if value > dark_above else INK
            axes.text(column, row, f"{value:.{decimals}f}", ha="center", va="center", fontsize=letter, color=color)


def _spaced(values: Iterable[int], least: float) -> list[int]:
    """Those of the rising values that are at least `least` apart; always the last one."""
    chosen: list[int] = []
    for value in reversed(list(values)):
        if not chosen or chosen[-1] - value >= least:
            chosen.append(value)
    return chosen[::-1]


def _round_step(least: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50 … that is not below `least`."""
    power = int(10 ** math.floor(math.log10(max(1.0, least))))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least)
