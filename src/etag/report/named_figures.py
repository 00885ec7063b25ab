"""Figures of a group of runs: as a page holds them, with a name for their files and the data that they show."""

from collections.abc import Sequence
from dataclasses import replace

from etag.core.text import duration, fixed, percent
from etag.report import figures, inline
from etag.report.features import some_embeddings
from etag.report.groups import MethodRuns, RunGroup, representatives, styled
from etag.report.inline import InlineFigure, Key
from etag.report.layout import layout
from etag.report.records import RunRecord
from etag.report.results import Ranking
from etag.report.style import LINE_COLORS, LINE_MARKERS, VERMILION, Style, method_title

LINES = 12  # in one figure of curves; more are spread over several figures
Rows = list[list[object]]


def accuracy_figures(group: RunGroup) -> list[InlineFigure]:
    """Accuracy after each task of everything in the group.

    Where that is too much for one figure: all methods; the methods of the paper's Figure 3; each method that has
    variants, with these.
    """
    methods = group.methods
    if len(group.members) <= LINES:
        return [_curves("accuracy", group, group.all)]
    found = [_curves("accuracy", group, methods)] if methods else []
    chosen = group.some(layout().figure3)
    if len(layout().figure3) / 2 < len(chosen) < len(methods):
        found.append(_curves("figure3", group, chosen))
    for method in dict.fromkeys(member.method for member in group.all):
        own = [member for member in group.all if member.method == method]
        if any(member.is_variant for member in own):
            found.append(_curves(f"variants-{method}", group, own))
    return found


def component_figure(group: RunGroup) -> InlineFigure | None:
    """The paper's Figure 5: accuracy after each task of the main method and its ablations."""
    members = group.some(layout().figure5)
    return _curves("components", group, members) if len(members) > 2 else None


def _curves(kind: str, group: RunGroup, members: Sequence[MethodRuns]) -> InlineFigure:
    curves = [member.curve(style) for member, style in styled(members)]
    ends = "; ".join(f"{curve.name} {percent(curve.values[-1])}" for curve in curves)
    bands = " Bands: one standard deviation over seeds." if any(curve.deviations for curve in curves) else ""
    figure = inline.vector(
        figures.accuracy_curves(group.metrics.seen, curves),
        f"Line chart of accuracy against classes seen; weighted, in percent after the last task: {ends}.",
        f"Accuracy over all classes seen, after each task (weighted: every class counts the same).{bands}",
    )
    return _named(kind, group, figure, _curve_rows(group, curves))


def time_figure(group: RunGroup) -> InlineFigure:
    """Training time of every method and variant."""
    bars = [member.bar(style) for member, style in styled(group.all)]
    totals = "; ".join(f"{bar.name} {duration(sum(bar.seconds))}" for bar in bars)
    figure = inline.vector(
        figures.time_bars(bars),
        f"Bar chart of training time: {totals}.",
        "Training time, all tasks together; each piece of a bar is one task.",
    )
    rows: Rows = [[bar.name, task, round(s, 3)] for bar in bars for task, s in enumerate(bar.seconds, start=1)]
    return _named("time", group, figure, [["method", "task", "seconds"], *rows])


def temperature_figure(group: RunGroup, by_tau: dict[float, MethodRuns]) -> InlineFigure:
    """The paper's Figure 6: accuracy after each task, by temperature."""
    title = method_title(layout().temperature.method)
    colors = (*LINE_COLORS, VERMILION)
    curves = []
    for number, (tau, member) in enumerate(by_tau.items()):
        style = Style(colors[number % len(colors)], LINE_MARKERS[number % len(LINE_MARKERS)])
        curves.append(replace(member.curve(style), name=f"τ = {tau:g}"))
    ends = "; ".join(f"{curve.name}: {percent(curve.values[-1])}" for curve in curves)
    figure = inline.vector(
        figures.error_curves(group.metrics.seen, curves),
        f"Accuracy of {title} against classes seen for several temperatures; in percent after the last task: {ends}.",
        f"{title}’s accuracy over all classes seen (weighted), by τ of Eq. (4). Bars: one standard deviation over "
        "seeds.",
    )
    return _named("temperature", group, figure, _curve_rows(group, curves))


def _curve_rows(group: RunGroup, curves: Sequence[figures.Curve]) -> Rows:
    rows: Rows = [["curve", "task", "classes seen", "accuracy (%)", "std"]]
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
    found = ranking.agreement
    interval = "" if found.interval is None else f" ({' to '.join(fixed(end, 2) for end in found.interval)})"
    words = ", ".join(f"{s.name} {fixed(s.theirs, 1)} and {fixed(s.ours, 1)}" for s in slopes)
    figure = inline.vector(
        figures.slopes(slopes),
        f"Slope chart of {len(slopes)} methods; the paper’s A and ours in percent: {words}.",
        f"The paper’s ranking ({ranking.column}) and ours; Kendall’s tau-b {fixed(found.tau, 2)}{interval}.",
    )
    rows: Rows = [[m.method, s.theirs, round(s.ours, 4)] for m, s in zip(ranking.members, slopes, strict=True)]
    return _named("agreement", ranking.group, figure, [["method", "paper A", "our A"], *rows])


def confusion_figures(group: RunGroup) -> list[InlineFigure]:
    """The confusion matrix of one run of each method that is shown in detail."""
    found = []
    for title, run in representatives(group.detailed):
        names = run.metrics.class_names[: run.metrics.classes]
        rows: Rows = [[name, *row] for name, row in zip(names, run.metrics.confusion, strict=True)]
        figure = inline.confusion_matrix(run.metrics, title)
        found.append(_named(f"confusion-{_label(group, run)}", group, figure, [["true class", *names], *rows]))
    return found


def accuracy_matrix_figures(group: RunGroup) -> list[InlineFigure]:
    """The accuracy matrix of one run of each method that is shown in detail."""
    found = []
    for title, run in representatives(group.detailed):
        rows: Rows = [[task, *row] for task, row in enumerate(run.metrics.accuracies, start=1)]
        head = ["after task", *range(1, run.metrics.tasks + 1)]
        figure = inline.accuracy_matrix(run.metrics, title)
        found.append(_named(f"matrix-{_label(group, run)}", group, figure, [head, *rows]))
    return found


def feature_figures(group: RunGroup) -> tuple[list[InlineFigure], Key]:
    """The t-SNE after each task of one run of each method that is shown in detail and saved features, with the key
    to the colors; the key is empty if the runs have different orders of classes."""
    runs = [(title, run, some_embeddings(run)) for title, run in representatives(group.detailed)]
    found = [(title, run, by_task) for title, run, by_task in runs if by_task]
    if not found:
        return [], []
    labels = {label for *_, by_task in found for one in by_task.values() for label in one.labels}
    place, key = inline.class_key(labels, found[0][1].metrics)
    drawn = []
    for title, run, by_task in found:
        rows: Rows = [
            [task, run.metrics.class_names[label], *point]
            for task, one in by_task.items()
            for point, label in zip(one.points, one.labels, strict=True)
        ]
        figure = inline.embedding_panels(title, by_task, place, key)
        drawn.append(_named(f"tsne-{_label(group, run)}", group, figure, [["task", "class", "x", "y"], *rows]))
    orders = {tuple(run.metrics.class_names) for _, run, _ in found}
    return drawn, key if len(orders) == 1 else []


def _label(group: RunGroup, run: RunRecord) -> str:
    label = next(member.label for member in group.all if any(run is own for own in member.runs))
    return label.replace("/", "-")


def _named(kind: str, group: RunGroup, figure: InlineFigure, rows: Rows) -> InlineFigure:
    """The figure with the name of its files, its data, and the group in its caption."""
    return replace(figure, name=f"{kind}-{group.slug}", caption=f"{group.title}: {figure.caption}", data=rows)
