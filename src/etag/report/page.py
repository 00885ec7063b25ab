"""The page of one run, and writing pages and figures: each page is one HTML file that needs nothing else."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from etag.core.errors import EtagError
from etag.core.files import write_atomically
from etag.core.text import data_size, duration, exact_count, percent, task_sizes
from etag.report import inline, named_figures
from etag.report.collection_figures import panel_tasks
from etag.report.features import embeddings, saved_tasks
from etag.report.losses import losses_by_phase
from etag.report.quantities import HEADLINE, QUANTITIES
from etag.report.records import RunRecord, read_run
from etag.report.style import method_title

REPORT = "report.html"
FIGURE_ENDINGS = (".svg", ".pdf", ".png")


def write_run_report(run: Path) -> Path:
    """Write `report.html` into a run directory; returns its path."""
    return write_page(run / REPORT, "run.html", _run_values(read_run(run)))


def write_figure(figure: Figure, out: Path) -> Path:
    """Write a figure as .svg, .pdf or .png, as the name of the file says; returns its path."""
    check_figure_name(out)
    return write_file(out, inline.drawn(figure, out.suffix[1:]))


def check_figure_name(out: Path) -> None:
    """Raise an error unless the name ends in .svg, .pdf or .png."""
    if out.suffix not in FIGURE_ENDINGS:
        allowed = f"{', '.join(FIGURE_ENDINGS[:-1])} or {FIGURE_ENDINGS[-1]}"
        raise EtagError(f"The name of the figure '{out}' must end in {allowed}.")


def write_page(path: Path, template: str, values: dict[str, Any]) -> Path:
    """Fill a template and write it; returns the path."""
    return write_file(path, _environment().get_template(template).render(values))


def write_file(path: Path, content: str | bytes) -> Path:
    """Write a file, and create the folders that it is in; returns its path."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise EtagError(f"The report {path} cannot be written: {error.strerror}.") from error
    return path


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("etag.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": percent,
        "duration": duration,
        "data_size": data_size,
        "exact_count": exact_count,
        "task_sizes": task_sizes,
        "method_title": method_title,
    }
    return environment


def _run_values(record: RunRecord) -> dict[str, Any]:
    metrics = record.metrics
    features, key = _features(record)
    return {
        "metrics": metrics,
        "tiles": HEADLINE,
        "quantities": QUANTITIES.values(),
        "accuracy_curve": inline.accuracy_curve(metrics),
        "accuracy_matrix": inline.accuracy_matrix(metrics),
        "confusion": inline.confusion_matrix(metrics),
        "features": features,
        "features_key": key,
        "losses": [inline.phase_losses(losses) for losses in losses_by_phase(record.steps)],
        "generated": [inline.generated_images(image, task) for task, image in record.generated.items()],
        "parts": list(dict.fromkeys([*metrics.parameters_by_part, *metrics.stored_bytes_by_part])),
        "config": record.config,
    }


def _features(record: RunRecord) -> tuple[list[inline.InlineFigure], named_figures.Key]:
    """The t-SNE after the last task with saved features; and after each of them, if there are several."""
    tasks = panel_tasks(saved_tasks(record))
    by_task = embeddings(record, tasks)
    if not by_task:
        return [], []
    metrics, last = record.metrics, max(by_task)
    key = inline.embedding_key(metrics)
    found = [inline.embedding_scatter(by_task[last], metrics, last)]
    if len(by_task) > 1:
        title, caption = method_title(metrics.method), "The same after several tasks, each laid out anew."
        found.append(named_figures.panels(title, by_task, inline.style_numbers(metrics), key, caption))
    return found, key
