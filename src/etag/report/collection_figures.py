"""Figures of several methods: pure functions from data to a matplotlib Figure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from etag.report.features import Embedding
from etag.report.figures import (
    GRID,
    INK,
    NARROW,
    SMALL,
    TEXT,
    WIDTH,
    Curve,
    empty_figure,
    legend_below,
    legend_rows,
    scatter,
)
from etag.report.style import GRAY, Style

PANELS = 6  # per figure: more would be too small to see


@dataclass(frozen=True)
class Slope:
    """A method's accuracy in the paper and here, in percent."""

    name: str
    theirs: float
    ours: float
    style: Style
    light: bool = False


def slopes(methods: Sequence[Slope]) -> Figure:
    """Two rankings side by side, the best on top; a line joins the two places of each method."""
    figure, axes = empty_figure(WIDTH, 0.9 + 0.23 * len(methods))
    left = {slope: -place for place, slope in enumerate(sorted(methods, key=lambda slope: -slope.theirs))}
    right = {slope: -place for place, slope in enumerate(sorted(methods, key=lambda slope: -slope.ours))}
    for slope in methods:
        ends = left[slope], right[slope]
        width, alpha = (1.0, 0.7) if slope.light else (2.0, 1.0)
        drawn: dict[str, Any] = {
            "color": slope.style.color,
            "linestyle": slope.style.line,
            "linewidth": width,
            "alpha": alpha,
        }
        axes.plot((0, 1), ends, marker="o", markersize=4, **drawn)
        for x, y, side, value in ((-0.04, ends[0], "right", slope.theirs), (1.04, ends[1], "left", slope.ours)):
            words = f"{slope.name}  {value:.1f}" if side == "right" else f"{value:.1f}  {slope.name}"
            axes.text(x, y, words, ha=side, va="center", fontsize=TEXT, color=INK, parse_math=False)
    for x, side, words in ((0, "right", "the paper’s A (%)"), (1, "left", "our A (%)")):
        axes.text(x, 0.9, words, ha=side, va="bottom", fontsize=SMALL, color=GRAY)
    axes.set(xlim=(-0.75, 1.75), ylim=(0.6 - len(methods), 1.5), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return figure


def error_curves(seen: Sequence[int], curves: Sequence[Curve]) -> Figure:
    """Accuracy after each task with bars of one deviation; curves are shifted so that all bars can be seen."""
    figure, axes = empty_figure(WIDTH, 0.8 * WIDTH + 0.2 * (legend_rows([curve.name for curve in curves]) - 1))
    tasks = np.arange(1, len(seen) + 1)
    for place, curve in enumerate(curves):
        aside = 0.2 * (place - (len(curves) - 1) / 2) / len(curves)
        deviations = None if curve.deviations is None else 100 * np.asarray(curve.deviations)
        axes.errorbar(
            tasks + aside,
            100 * np.asarray(curve.values),
            yerr=deviations,
            color=curve.style.color,
            marker=curve.style.marker,
            markersize=4.5,
            linewidth=0.9,
            linestyle=curve.style.line,
            elinewidth=1.2,
            capsize=2.5,
        )
    axes.set_xticks(tasks, [str(count) for count in seen])
    axes.set(xlabel="classes seen", ylabel="accuracy (%)")
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    lines = [container[0] for container in axes.containers]
    legend_below(figure, lines, [curve.name for curve in curves])
    return figure


def embedding_panels(
    embeddings: dict[int, Embedding], group_of: dict[int, int], styles: Sequence[Style], width: float = NARROW
) -> Figure:
    """t-SNE after each of some tasks, one panel per task; `group_of` has the number of the style of each class."""
    chosen = sorted(embeddings)
    columns = min(len(chosen), 2 if len(chosen) <= 4 else 3)
    rows = math.ceil(len(chosen) / columns)
    figure = Figure(figsize=(width, rows * (width / columns + 0.2)), layout="constrained")
    for place, task in enumerate(chosen, start=1):
        axes = figure.add_subplot(rows, columns, place)
        embedding = embeddings[task]
        groups = [group_of[label] for label in embedding.labels]
        scatter(axes, embedding.points, groups, styles, width / columns / WIDTH)
        axes.set_title(f"after task {task}", fontsize=SMALL, color=INK)
    return figure


def panel_tasks(tasks: Sequence[int]) -> list[int]:
    """At most `PANELS` of the tasks, evenly spread; always the first and the last."""
    return [tasks[round(place)] for place in np.linspace(0, len(tasks) - 1, min(PANELS, len(tasks)))]
