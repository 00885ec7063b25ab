"""Pictures of a collection: as a page holds them, with a name for their files and the data that they show."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from etag.report import collection_figures, pictures
from etag.report.collection import OURS, Scene
from etag.report.comparison import Entry, shown
from etag.report.figures import Curve
from etag.report.formats import fixed
from etag.report.page import same_classes
from etag.report.pictures import Picture
from etag.report.records import Embedding, Metrics, RunRecord, read_embeddings
from etag.report.results import Ranking
from etag.report.style import (
    CLASSES_WITH_OWN_LOOK,
    LINE_COLORS,
    LINE_MARKS,
    VERMILION,
    Look,
    class_looks,
    family_looks,
)
from etag.report.tables import rows_csv

DETAILED = ("ewc", "eewc", "lwm", "elwm", "lucir", "elucir", "gfr", "egfr", OURS)
SEEN_IN = ("fine", "gfr", OURS, "joint")  # features and confusions are shown of these
Key = list[tuple[Look, str]]


@dataclass(frozen=True)
class Plate:
    """A picture, the name of its files, and its data as CSV."""

    name: str
    picture: Picture
    data: str


def curves_plate(kind: str, scene: Scene, entries: Sequence[Entry]) -> Plate:
    """Accuracy after each task."""
    looks = family_looks([entry.method for entry in entries])
    curves = [entry.curve(look) for entry, look in zip(entries, looks, strict=True)]
    picture = pictures.comparison_curves_picture(scene.metrics.seen, curves)
    return _plate(kind, scene, picture, _curves_csv(scene.metrics.seen, curves))


def temperature_plate(scene: Scene, by_tau: dict[float, Entry]) -> Plate:
    """eTag's accuracy after each task, by tau."""
    colors = (*LINE_COLORS, VERMILION)
    looks = [Look(colors[n % len(colors)], LINE_MARKS[n % len(LINE_MARKS)]) for n in range(len(by_tau))]
    named = zip(by_tau.items(), looks, strict=True)
    curves = [replace(entry.curve(look), name=f"τ = {tau:g}") for (tau, entry), look in named]
    ends = "; ".join(f"{curve.name}: {fixed(100 * curve.values[-1], 1)}" for curve in curves)
    picture = pictures.vector(
        collection_figures.error_curves(scene.metrics.seen, curves),
        f"Accuracy of eTag against classes seen for several temperatures; in percent after the last task: {ends}.",
        "eTag’s accuracy over all classes seen (weighted), by τ of Eq. (4). Bars: one standard deviation over seeds.",
    )
    return _plate("temperature", scene, picture, _curves_csv(scene.metrics.seen, curves))


def slopes_plate(ranking: Ranking) -> Plate:
    """Our order of the methods beside the paper's."""
    methods = [entry.method for entry in ranking.entries]
    values = zip(ranking.entries, ranking.theirs, ranking.ours, family_looks(methods), strict=True)
    slopes = [collection_figures.Slope(e.name, a, b, look, e.method != OURS) for e, a, b, look in values]
    found = ranking.agreement
    spread = "" if found.interval is None else f" ({' to '.join(fixed(end, 2) for end in found.interval)})"
    words = ", ".join(f"{s.name} {fixed(s.theirs, 1)} and {fixed(s.ours, 1)}" for s in slopes)
    picture = pictures.vector(
        collection_figures.slopes(slopes),
        f"Slope chart of {len(slopes)} methods; the paper’s A and ours in percent: {words}.",
        f"The paper’s order ({ranking.column}) and ours; Kendall’s tau-b {fixed(found.tau, 2)}{spread}.",
    )
    rows = [[entry.method, s.theirs, round(s.ours, 4)] for entry, s in zip(ranking.entries, slopes, strict=True)]
    return _plate("agreement", ranking.scene, picture, rows_csv([["method", "paper A", "our A"], *rows]))


def confusion_plates(scene: Scene) -> list[Plate]:
    """Confusion matrices of the methods that the paper shows, if there are several."""
    entries = scene.some(SEEN_IN)
    if len(entries) < 2:
        return []
    return [
        _plate(
            f"confusion-{run.metrics.method}",
            scene,
            pictures.confusion_picture(run.metrics, name),
            rows_csv(
                [
                    ["true class", *_names(run)],
                    *([n, *row] for n, row in zip(_names(run), run.metrics.confusion, strict=True)),
                ]
            ),
        )
        for name, run in shown(entries)
    ]


def _names(run: RunRecord) -> list[str]:
    return run.metrics.class_names[: run.metrics.classes]


def embedding_plates(scene: Scene) -> tuple[list[Plate], Key]:
    """Features after each task of the methods that the paper shows, with the key to their colors."""
    entries = scene.some(SEEN_IN)
    found = [(name, run, read_embeddings(run)) for name, run in shown(entries)] if entries else []
    found = [(name, run, embeddings) for name, run, embeddings in found if embeddings]
    if not found:
        return [], []
    labels = {label for *_, embeddings in found for one in embeddings.values() for label in one.labels}
    metrics = found[0][1].metrics
    group_of, key = _groups(labels, metrics)
    plates = [_embedding_plate(scene, name, run, embeddings, group_of, key) for name, run, embeddings in found]
    return plates, key if same_classes([(name, run) for name, run, _ in found]) else []


def _groups(labels: set[int], metrics: Metrics) -> tuple[dict[int, int], Key]:
    """What has a color of its own: every class, or every task where there are too many classes."""
    if len(labels) > CLASSES_WITH_OWN_LOOK:
        return dict(enumerate(metrics.task_of_class)), pictures.embedding_key(metrics)
    classes = sorted(labels)
    names = [metrics.class_names[label] for label in classes]
    return {label: group for group, label in enumerate(classes)}, list(
        zip(class_looks(len(classes)), names, strict=True)
    )


def _embedding_plate(
    scene: Scene, name: str, run: RunRecord, embeddings: dict[int, Embedding], group_of: dict[int, int], key: Key
) -> Plate:
    picture = pictures.raster(
        collection_figures.embedding_panels(embeddings, group_of, [look for look, _ in key]),
        f"t-SNE of test images of {name} after tasks {', '.join(map(str, embeddings))}.",
        name,
    )
    rows = [
        [task, run.metrics.class_names[label], *point]
        for task, one in embeddings.items()
        for point, label in zip(one.points, one.labels, strict=True)
    ]
    return _plate(f"tsne-{run.metrics.method}", scene, picture, rows_csv([["task", "class", "x", "y"], *rows]))


def _plate(kind: str, scene: Scene, picture: Picture, data: str) -> Plate:
    return Plate(f"{kind}-{scene.slug}", replace(picture, caption=f"{scene.title}: {picture.caption}"), data)


def _curves_csv(seen: Sequence[int], curves: Sequence[Curve]) -> str:
    rows: list[list[object]] = [["curve", "task", "classes seen", "accuracy (%)", "std"]]
    for curve in curves:
        for task, (classes, value) in enumerate(zip(seen, curve.values, strict=True)):
            deviation = "" if curve.deviations is None else round(100 * curve.deviations[task], 4)
            rows.append([curve.name, task + 1, classes, round(100 * value, 4), deviation])
    return rows_csv(rows)
