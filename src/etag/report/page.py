"""Pages made from run directories: one HTML file each, which needs nothing else."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from etag.core.errors import EtagError
from etag.core.files import write_atomically
from etag.report import comparison, figures, pictures
from etag.report.formats import data_size, duration, exact_count, percent, task_sizes
from etag.report.quantities import ACCURACY_METRICS, HEADLINE
from etag.report.records import RunRecord, read_run
from etag.report.style import method_looks, method_name
from etag.report.traces import traces

REPORT = "report.html"
PICTURES = (".svg", ".pdf", ".png")


def write_run_report(run: Path) -> Path:
    """Write `report.html` into a run directory; returns its path."""
    return write_page(run / REPORT, "run.html", _run_values(read_run(run)))


def write_comparison(runs: Sequence[Path], out: Path) -> Path:
    """Write one page that compares runs on the same data and split; returns its path.

    The page links to every run's own report; those that have none yet get one.
    """
    values = _comparison_values([read_run(run) for run in runs], out.parent)
    for run in runs:
        if not (run / REPORT).exists():
            write_run_report(run)
    return write_page(out, "comparison.html", values)


def write_curves(runs: Sequence[Path], out: Path) -> Path:
    """Draw the accuracy of runs on the same data and split after each task; returns the picture's path."""
    _check_picture(out)
    entries, curves = _curves([read_run(run) for run in runs], out.parent)
    return write_figure(figures.accuracy_curves(entries[0].runs[0].metrics.seen, curves), out)


def write_figure(figure: Figure, out: Path) -> Path:
    """A picture of the kind that the file's name says."""
    _check_picture(out)
    return put(out, pictures.drawn(figure, out.suffix[1:]))


def _check_picture(out: Path) -> None:
    if out.suffix not in PICTURES:
        raise EtagError(f"the picture '{out}' must end in {', '.join(PICTURES[:-1])} or {PICTURES[-1]}.")


def _curves(records: Sequence[RunRecord], beside: Path) -> tuple[list[comparison.Entry], list[figures.Curve]]:
    entries = comparison.group(records, beside)
    looks = method_looks([entry.method for entry in entries])
    return entries, [entry.curve(look) for entry, look in zip(entries, looks, strict=True)]


def write_page(path: Path, template: str, values: dict[str, Any]) -> Path:
    """Fill a template; returns the page's path."""
    return put(path, _environment().get_template(template).render(values))


def put(path: Path, content: str | bytes) -> Path:
    """Write a file, and the folders that it lies in."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise EtagError(f"the report {path} cannot be written: {error.strerror}.") from error
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
        "method_name": method_name,
    }
    return environment


def _run_values(record: RunRecord) -> dict[str, Any]:
    metrics, embedding = record.metrics, record.embedding
    return {
        "metrics": metrics,
        "tiles": HEADLINE,
        "quantities": ACCURACY_METRICS,
        "accuracy_curve": pictures.accuracy_curve_picture(metrics),
        "accuracy_matrix": pictures.accuracy_matrix_picture(metrics),
        "confusion": pictures.confusion_picture(metrics),
        "embedding": pictures.embedding_picture(embedding, metrics) if embedding else None,
        "embedding_key": pictures.embedding_key(metrics),
        "losses": [pictures.loss_picture(trace) for trace in traces(record.steps)],
        "made": [pictures.made_picture(image, task) for task, image in record.made.items()],
        "parts": list(dict.fromkeys([*metrics.parameters_by_part, *metrics.stored_bytes_by_part])),
        "config": record.config,
    }


def _comparison_values(records: Sequence[RunRecord], beside: Path) -> dict[str, Any]:
    entries, curves = _curves(records, beside)
    looks = [curve.look for curve in curves]
    metrics = entries[0].runs[0].metrics
    shown = comparison.shown(entries)
    bars = [entry.bar(look) for entry, look in zip(entries, looks, strict=True)]
    sentence, *more_sentences = comparison.headline(entries)
    return {
        "metrics": metrics,
        "sentence": sentence,
        "more_sentences": more_sentences,
        "setting": comparison.setting(entries),
        "columns": comparison.COLUMNS,
        "rows": list(zip(entries, comparison.table(entries), strict=True)),
        "upper_bound": comparison.UPPER_BOUND,
        "curves": pictures.comparison_curves_picture(metrics.seen, curves),
        "times": pictures.time_picture(bars),
        "confusions": [pictures.confusion_picture(run.metrics, name) for name, run in shown],
        "accuracy_matrices": [pictures.accuracy_matrix_picture(run.metrics, name) for name, run in shown],
        "embeddings": [
            pictures.embedding_picture(run.embedding, run.metrics, name) for name, run in shown if run.embedding
        ],
        "embedding_key": pictures.embedding_key(shown[0][1].metrics) if same_classes(shown) else [],
        "about_confusion": pictures.ABOUT_CONFUSION,
        "about_accuracy_matrix": pictures.ABOUT_ACCURACY_MATRIX,
        "about_embedding": pictures.ABOUT_EMBEDDING,
        "link": lambda run: quote(comparison.relative(run.path / REPORT, beside)),
    }


def same_classes(shown: Sequence[tuple[str, RunRecord]]) -> bool:
    """Whether one key fits all pictures: the order of classes may come from the seed."""
    return len({tuple(run.metrics.class_names) for _, run in shown}) == 1
