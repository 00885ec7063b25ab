"""The page of one run, and writing pages and figures: each page is one HTML file that needs nothing else."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from etag.core.errors import EtagError
from etag.core.files import write_atomically
from etag.core.text import data_size, duration, exact_count, percent, short_count, task_sizes
from etag.evaluation.metrics import METRICS
from etag.report import page_figures
from etag.report.features import tsne_of_some_tasks
from etag.report.losses import losses_by_phase
from etag.report.records import Metrics, RunRecord, read_run
from etag.report.style import method_title

REPORT = "report.html"
FIGURE_ENDINGS = (".svg", ".pdf", ".png")
FILTERS = (percent, duration, data_size, exact_count, task_sizes, method_title)  # what templates write numbers with
HEADLINE = ("A_weighted", "last_accuracy", "F_weighted")  # metrics that a run's page shows at its top


def write_run_report(run: Path) -> Path:
    """Write `report.html` into a run directory; returns its path."""
    return write_page(run / REPORT, "run.html", _run_values(read_run(run)))


def write_figure(figure: Figure, out: Path) -> Path:
    """Write a figure as .svg, .pdf or .png, as the name of the file says; returns its path."""
    check_figure_name(out)
    return write_file(out, page_figures.drawn(figure, out.suffix[1:]))


def check_figure_name(out: Path) -> None:
    """Raise an error unless the name ends in .svg, .pdf or .png."""
    if out.suffix not in FIGURE_ENDINGS:
        allowed = f"{', '.join(FIGURE_ENDINGS[:-1])} or {FIGURE_ENDINGS[-1]}"
        raise EtagError(f"The name of the figure '{out}' must end in {allowed}.")


def write_page(path: Path, template: str, values: dict[str, Any]) -> Path:
    """Fill a template and write it; returns the path."""
    environment = Environment(
        loader=PackageLoader("etag.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {function.__name__: function for function in FILTERS}
    environment.globals["definitions"] = METRICS
    return write_file(path, environment.get_template(template).render(values))


def write_file(path: Path, content: str | bytes) -> Path:
    """Write a file, and create the folders that it is in; returns its path."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # a path that is shown may have bytes that are no letters
        write_atomically(path, content.encode(errors="backslashreplace") if isinstance(content, str) else content)
    except OSError as error:
        raise EtagError(f"The report {path} cannot be written: {error.strerror}.") from error
    return path


def _run_values(record: RunRecord) -> dict[str, Any]:
    metrics = record.metrics
    features, key = _features(record)
    return {
        "metrics": metrics,
        "tiles": _tiles(metrics),
        "accuracy_curve": page_figures.accuracy_curve(metrics),
        "accuracy_matrix": page_figures.accuracy_matrix(metrics),
        "confusion": page_figures.confusion_matrix(metrics),
        "features": features,
        "features_key": key,
        "losses": [page_figures.phase_losses(losses) for losses in losses_by_phase(record.steps)],
        "generated": [page_figures.generated_images(image, task) for task, image in record.generated.items()],
        "parts": list(dict.fromkeys([*metrics.parameters_by_part, *metrics.stored_bytes_by_part])),
        "config": record.config,
    }


def _tiles(metrics: Metrics) -> list[tuple[str, str, str]]:
    """Title, value and definition of each number at the top of the page."""
    chosen = [metric for metric in METRICS if metric.name in HEADLINE]
    return [
        *((one.title, f"{percent(metrics.values[one.name])} {one.unit}", one.definition) for one in chosen),
        ("Training time", duration(sum(metrics.train_seconds)), "of all tasks together"),
        ("Parameters", short_count(metrics.parameters), "of all networks at the end of the run"),
        ("Stored", data_size(metrics.stored_bytes), "bytes stored from one task to the next"),
    ]


def _features(record: RunRecord) -> tuple[list[page_figures.InlineFigure], page_figures.Key]:
    """The t-SNE after the last task with saved features; and after each of them, if there are several."""
    by_task = tsne_of_some_tasks(record)
    if not by_task:
        return [], []
    metrics, last = record.metrics, max(by_task)
    place, key = page_figures.class_key(range(metrics.classes), metrics)
    figures = [page_figures.tsne_scatter(by_task[last], metrics, last)]
    if len(by_task) > 1:
        title, caption = method_title(metrics.method), "The same after several tasks, each laid out anew."
        figures.append(page_figures.tsne_panels(title, by_task, place, key, caption))
    return figures, key
