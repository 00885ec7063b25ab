import math
from io import BytesIO

import numpy as np
import pytest
from matplotlib.figure import Figure

from etag.report import figures
from etag.report.losses import PhaseLosses
from etag.report.style import Style, class_styles

STYLE = Style("#0072B2")


def draw(figure: Figure) -> Figure:
    """Draw it, since much can only go wrong then."""
    figure.savefig(BytesIO(), format="png")
    return figure


def words(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_curves_are_in_percent_with_names_as_they_are():
    curves = [figures.Curve("$a_1$", [0.9, 0.5], STYLE, [0.0, 0.1]), figures.Curve("_b", [0.8, 0.7], STYLE, light=True)]
    figure = draw(figures.accuracy_curves([5, 10], curves))
    (axes,) = figure.axes
    first, second = axes.get_lines()
    assert first.get_ydata().tolist() == [90, 50]
    assert second.get_alpha() < 1
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["$a_1$", "_b"]
    assert axes.get_xticks().tolist() == [5, 10]


def test_the_axis_of_accuracy_is_cropped_to_the_data():
    curves = [figures.Curve("a", [0.62, 0.48], STYLE, [0.0, 0.03]), figures.Curve("b", [0.6, 0.5], STYLE)]
    low, high = figures.accuracy_curves([5, 10], curves).axes[0].get_ylim()
    assert 40 < low < 45 < 62 < high < 66


def test_the_axis_of_accuracy_stays_inside_what_is_possible():
    low, high = figures.accuracy_curves([5, 10], [figures.Curve("a", [1.0, 0.0], STYLE)]).axes[0].get_ylim()
    assert (low, high) == (0, 102)
    draw(figures.accuracy_curves([5, 10], [figures.Curve("a", [math.nan, math.nan], STYLE)]))


@pytest.mark.parametrize("methods", [1, 4, 9, 30])
def test_legends_hold_any_number_of_methods(methods):
    curves = [figures.Curve(f"method {n}", [0.5, 0.4], STYLE) for n in range(methods)]
    assert len(draw(figures.accuracy_curves([5, 10], curves)).legends[0].get_texts()) == methods


def test_the_accuracy_matrix_is_written_up_to_the_diagonal():
    figure = draw(figures.accuracy_heatmap([[0.987], [0.5, 0.25]]))
    assert words(figure.axes[0]) == ["98.7", "50.0", "25.0"]


@pytest.mark.parametrize(("tasks", "example"), [(11, "50.0"), (26, "50"), (60, None)])
def test_numbers_of_a_large_accuracy_matrix_stay_legible_or_go(tasks, example):
    figure = figures.accuracy_heatmap([[0.5] * (task + 1) for task in range(tasks)])
    assert (words(figure.axes[0]) or [None])[0] == example
    assert all(text.get_fontsize() >= figures.LEAST_LETTER for text in figure.axes[0].texts)


def test_confusion_is_in_percent_of_the_true_class():
    figure = draw(figures.confusion_heatmap([[3, 1], [0, 0]], ["<cat>", "$dog"], [1, 1]))
    axes = figure.axes[0]
    assert axes.get_images()[0].get_array().tolist() == [[75, 25], [0, 0]]  # a class without images divides by nothing
    assert [label.get_text() for label in axes.get_yticklabels()] == ["<cat>", "$dog"]
    assert words(axes) == ["75", "25"]


def test_a_large_confusion_matrix_has_few_ticks_and_all_task_bounds():
    sizes = [50, *[5] * 10]
    figure = draw(figures.confusion_heatmap(np.eye(100, dtype=int).tolist(), ["name"] * 100, sizes))
    axes = figure.axes[0]
    assert axes.get_xticks().tolist() == list(range(0, 100, 10))
    bounds = [line.get_xdata()[0] for line in axes.get_lines() if line.get_xdata()[0] == line.get_xdata()[1]]
    assert bounds == [end - 0.5 for end in range(50, 100, 5)]
    assert words(axes) == []


def test_every_point_is_drawn_in_the_style_of_its_group():
    figure = draw(figures.tsne_scatter([(0, 0), (1, 1), (2, 2)], [0, 1, 1], class_styles(2)))
    assert [len(marks.get_offsets()) for marks in figure.axes[0].collections] == [1, 2]


def test_an_embedding_without_points_is_an_empty_figure():
    draw(figures.tsne_scatter([], [], class_styles(2)))


@pytest.mark.parametrize(("low", "scale"), [(0.01, "log"), (0.0, "linear"), (-1.0, "linear")])
def test_losses_are_logarithmic_where_they_can_be(low, scale):
    losses = PhaseLosses("solver", {"ce": [(1, 2.0), (2, low), (2, math.nan)]}, {0: 0})
    assert draw(figures.loss_curves(losses)).axes[0].get_yscale() == scale


@pytest.mark.parametrize(
    ("seconds", "unit", "total"),
    [(20, "seconds", "20.0 s"), (600, "minutes", "10 min 0 s"), (9000, "hours", "2 h 30 min")],
)
def test_times_come_in_a_fitting_unit(seconds, unit, total):
    axes = draw(figures.time_bars([figures.Bar("eTag", [seconds / 2, seconds / 2], STYLE)])).axes[0]
    assert axes.get_xlabel() == f"training time ({unit})"
    assert words(axes) == [f" {total}"]


def test_times_of_zero_do_not_break_the_axis():
    draw(figures.time_bars([figures.Bar("eTag", [0.0], STYLE)]))
