"""Figures of a group of runs: as a page holds them, with a name for their files and the data that they show."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from etag.core.text import fixed
from etag.report import collection_figures, inline
from etag.report.features import Embedding, embeddings, saved_tasks
from etag.report.figures import Curve
from etag.report.groups import MethodRuns, RunGroup, representatives
from etag.report.inline import InlineFigure
from etag.report.layout import layout
from etag.report.records import Metrics, RunRecord
from etag.report.results import Ranking
from etag.report.style import (
    CLASSES_WITH_OWN_STYLE,
    LINE_COLORS,
    LINE_MARKERS,
    VERMILION,
    Style,
    class_styles,
    method_styles,
    method_title,
)
from etag.report.tables import rows_csv

LINES = 12  # in one figure of curves; more are spread over several figures
Key = list[tuple[Style, str]]  # what the colors of a figure stand for


@dataclass(frozen=True)
class NamedFigure:
    """A figure, the name of its files, and its data as CSV."""

    name: str
    figure: InlineFigure
    data: str


def accuracy_figures(group: RunGroup) -> list[NamedFigure]:
    """Accuracy after each task of everything in the group.

    Where that is too much for one figure: all methods; the methods of the paper's Figure 3; each method that has
    variants, with these.
    """
    members, methods = list(group.members.values()), group.methods
    if len(members) <= LINES:
        return [_curves("accuracy", group, members)]
    found = [_curves("accuracy", group, methods)] if methods else []
    chosen = group.some(layout().figure3)
    if len(layout().figure3) / 2 < len(chosen) < len(methods):
        found.append(_curves("figure3", group, chosen))
    by_method: dict[str, list[MethodRuns]] = {}
    for member in members:
        by_method.setdefault(member.method, []).append(member)
    found += [
        _curves(f"variants-{method}", group, own)
        for method, own in by_method.items()
        if any(member.is_variant for member in own)
    ]
    return found


def component_figure(group: RunGroup) -> NamedFigure | None:
    """The paper's Figure 5: accuracy after each task of the main method and its ablations."""
    members = group.some(layout().figure5)
    return _curves("components", group, members) if len(members) > 2 else None


def _curves(kind: str, group: RunGroup, members: Sequence[MethodRuns]) -> NamedFigure:
    styles = method_styles([member.method for member in members])
    curves = [member.curve(style) for member, style in zip(members, styles, strict=True)]
    figure = inline.method_curves(group.metrics.seen, curves)
    return _named(kind, group, figure, _curves_csv(group.metrics.seen, curves))


def time_figure(group: RunGroup) -> NamedFigure:
    """Training time of every method and variant."""
    members = list(group.members.values())
    styles = method_styles([member.method for member in members])
    bars = [member.bar(style) for member, style in zip(members, styles, strict=True)]
    rows = [[bar.name, task, round(s, 3)] for bar in bars for task, s in enumerate(bar.seconds, start=1)]
    return _named("time", group, inline.training_times(bars), rows_csv([["method", "task", "seconds"], *rows]))


def temperature_figure(group: RunGroup, by_tau: dict[float, MethodRuns]) -> NamedFigure:
    """The paper's Figure 6: accuracy after each task, by temperature."""
    title = method_title(layout().temperature.method)
    colors = (*LINE_COLORS, VERMILION)
    styles = [Style(colors[n % len(colors)], LINE_MARKERS[n % len(LINE_MARKERS)]) for n in range(len(by_tau))]
    named = zip(by_tau.items(), styles, strict=True)
    curves = [replace(member.curve(style), name=f"τ = {tau:g}") for (tau, member), style in named]
    ends = "; ".join(f"{curve.name}: {fixed(100 * curve.values[-1], 1)}" for curve in curves)
    figure = inline.vector(
        collection_figures.error_curves(group.metrics.seen, curves),
        f"Accuracy of {title} against classes seen for several temperatures; in percent after the last task: {ends}.",
        f"{title}’s accuracy over all classes seen (weighted), by τ of Eq. (4). Bars: one standard deviation over "
        "seeds.",
    )
    return _named("temperature", group, figure, _curves_csv(group.metrics.seen, curves))


def agreement_figure(ranking: Ranking) -> NamedFigure:
    """Our ranking of the methods beside the paper's."""
    styles = method_styles([member.method for member in ranking.members])
    values = zip(ranking.members, ranking.theirs, ranking.ours, styles, strict=True)
    slopes = [
        collection_figures.Slope(member.title, a, b, style, member.label != layout().main)
        for member, a, b, style in values
    ]
    found = ranking.agreement
    interval = "" if found.interval is None else f" ({' to '.join(fixed(end, 2) for end in found.interval)})"
    words = ", ".join(f"{s.name} {fixed(s.theirs, 1)} and {fixed(s.ours, 1)}" for s in slopes)
    figure = inline.vector(
        collection_figures.slopes(slopes),
        f"Slope chart of {len(slopes)} methods; the paper’s A and ours in percent: {words}.",
        f"The paper’s ranking ({ranking.column}) and ours; Kendall’s tau-b {fixed(found.tau, 2)}{interval}.",
    )
    rows = [[m.method, s.theirs, round(s.ours, 4)] for m, s in zip(ranking.members, slopes, strict=True)]
    return _named("agreement", ranking.group, figure, rows_csv([["method", "paper A", "our A"], *rows]))


def confusion_figures(group: RunGroup) -> list[NamedFigure]:
    """The confusion matrix of one run of each method that is shown in detail."""
    found = []
    for title, run in representatives(group.detailed):
        names = run.metrics.class_names[: run.metrics.classes]
        rows: list[list[object]] = [["true class", *names]]
        rows += [[name, *row] for name, row in zip(names, run.metrics.confusion, strict=True)]
        figure = inline.confusion_matrix(run.metrics, title)
        found.append(_named(f"confusion-{_label(group, run)}", group, figure, rows_csv(rows)))
    return found


def accuracy_matrix_figures(group: RunGroup) -> list[NamedFigure]:
    """The accuracy matrix of one run of each method that is shown in detail."""
    found = []
    for title, run in representatives(group.detailed):
        tasks = range(1, run.metrics.tasks + 1)
        rows: list[list[object]] = [["after task", *tasks]]
        rows += [[task, *row] for task, row in zip(tasks, run.metrics.accuracies, strict=True)]
        figure = inline.accuracy_matrix(run.metrics, title)
        found.append(_named(f"matrix-{_label(group, run)}", group, figure, rows_csv(rows)))
    return found


def _label(group: RunGroup, run: RunRecord) -> str:
    label = next(label for label, member in group.members.items() if any(run is own for own in member.runs))
    return label.replace("/", "-")


def feature_figures(group: RunGroup) -> tuple[list[NamedFigure], Key]:
    """The t-SNE after each task of one run of each method that is shown in detail and saved features, with the key
    to the colors; the key is empty if the runs have different orders of classes."""
    runs = [(title, run) for title, run in representatives(group.detailed) if saved_tasks(run)]
    found = [(title, run, embeddings(run, collection_figures.panel_tasks(saved_tasks(run)))) for title, run in runs]
    found = [one for one in found if one[2]]
    if not found:
        return [], []
    labels = {label for *_, by_task in found for one in by_task.values() for label in one.labels}
    group_of, key = groups_of_classes(labels, found[0][1].metrics)
    figures = [
        _named(f"tsne-{_label(group, run)}", group, panels(title, by_task, group_of, key), _points_csv(run, by_task))
        for title, run, by_task in found
    ]
    orders = {tuple(run.metrics.class_names) for _, run, _ in found}
    return figures, key if len(orders) == 1 else []


def groups_of_classes(labels: set[int], metrics: Metrics) -> tuple[dict[int, int], Key]:
    """The number of the style of each class, and the key: every class has its own style, or every task if there are
    too many classes."""
    if len(labels) > CLASSES_WITH_OWN_STYLE:
        return dict(enumerate(metrics.task_of_class)), inline.embedding_key(metrics)
    classes = sorted(labels)
    names = [metrics.class_names[label] for label in classes]
    numbers = {label: number for number, label in enumerate(classes)}
    return numbers, list(zip(class_styles(len(classes)), names, strict=True))


def panels(
    title: str, by_task: dict[int, Embedding], group_of: dict[int, int], key: Key, caption: str | None = None
) -> InlineFigure:
    """One t-SNE per task; `title` names the run, and is the caption if there is no other."""
    return inline.raster(
        collection_figures.embedding_panels(by_task, group_of, [style for style, _ in key]),
        f"t-SNE of test images of {title} after tasks {', '.join(map(str, by_task))}.",
        caption or title,
    )


def _points_csv(run: RunRecord, by_task: dict[int, Embedding]) -> str:
    rows = [
        [task, run.metrics.class_names[label], *point]
        for task, one in by_task.items()
        for point, label in zip(one.points, one.labels, strict=True)
    ]
    return rows_csv([["task", "class", "x", "y"], *rows])


def _named(kind: str, group: RunGroup, figure: InlineFigure, data: str) -> NamedFigure:
    return NamedFigure(f"{kind}-{group.slug}", replace(figure, caption=f"{group.title}: {figure.caption}"), data)


def _curves_csv(seen: Sequence[int], curves: Sequence[Curve]) -> str:
    rows: list[list[object]] = [["curve", "task", "classes seen", "accuracy (%)", "std"]]
    for curve in curves:
        for task, (classes, value) in enumerate(zip(seen, curve.values, strict=True)):
            deviation = "" if curve.deviations is None else round(100 * curve.deviations[task], 4)
            rows.append([curve.name, task + 1, classes, round(100 * value, 4), deviation])
    return rows_csv(rows)
