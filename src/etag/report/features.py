"""Features of test images that a run saved after its tasks, and their t-SNE."""

import zipfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from etag.core.errors import EtagError
from etag.core.reading import read_limited
from etag.core.text import data_size
from etag.data.rows import pick_rows
from etag.report.records import RunRecord, task_files

FOLDER = "features"
MAX_BYTES = 1 << 26  # of a file, and of its arrays: a run saves a few megabytes
UNREADABLE = (
    *(OSError, ValueError, KeyError, EOFError, MemoryError, AttributeError, TypeError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error),
)
LEAST_ROWS = 4  # t-SNE needs so many
POINTS, SEED = 1000, 0  # more points would hide each other, and t-SNE would take minutes
PANELS = 6  # of one run in one figure: more would be too small to see

Values = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TsnePoints:
    """Features of test images in two dimensions, with the class of each."""

    points: list[list[float]]
    labels: list[int]


def tsne_by_task(run: RunRecord, tasks: Collection[int]) -> dict[int, TsnePoints]:
    """The t-SNE of the features saved after these tasks, by task; tasks with too few images are left out."""
    files = task_files(run.path / FOLDER, "npz")
    points = {task: _tsne_points(*read_features(files[task], run.metrics.classes)) for task in tasks if task in files}
    return {task: found for task, found in points.items() if found is not None}


def tsne_of_some_tasks(run: RunRecord) -> dict[int, TsnePoints]:
    """The t-SNE after at most `PANELS` of the tasks with saved features: the first, the last, and evenly between."""
    tasks = list(task_files(run.path / FOLDER, "npz"))
    places = np.linspace(0, len(tasks) - 1, min(PANELS, len(tasks)))
    return tsne_by_task(run, [tasks[round(place)] for place in places])


def read_features(path: Path, classes: int) -> tuple[Values, Labels]:
    """The arrays `features` (n, d) and `labels` (n), all labels below `classes`; nothing is unpickled."""
    data = read_limited(path, MAX_BYTES)
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            if sum(member.file_size for member in archive.infolist()) > MAX_BYTES:
                raise _damaged(path, f"its arrays have more than {data_size(MAX_BYTES)}")
        with np.load(BytesIO(data), allow_pickle=False) as content:
            values, labels = content["features"], content["labels"]
    except UNREADABLE as error:
        raise _damaged(path, "it does not hold the arrays 'features' and 'labels'") from error
    if values.ndim != 2 or values.dtype.kind != "f" or not values.shape[1]:
        raise _damaged(path, "'features' must be a table of decimal numbers, one row per image")
    if labels.shape != values.shape[:1] or labels.dtype.kind not in "iu":
        raise _damaged(path, f"'labels' must hold one whole number for each of the {len(values)} images")
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    if not np.isfinite(values).all():
        raise _damaged(path, "'features' holds NaN or infinity")
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise _damaged(path, f"'labels' names classes beyond the {classes} of the run")
    return values, labels.astype(np.int64)


def _damaged(path: Path, reason: str) -> EtagError:
    return EtagError(f"{path} cannot be used: {reason}; remove the file, or repeat the run.")


def _tsne_points(values: Values, labels: Labels) -> TsnePoints | None:
    if len(labels) < LEAST_ROWS:
        return None
    rows = pick_rows(torch.from_numpy(labels), POINTS).numpy()
    return TsnePoints(tsne(values[rows], SEED), labels[rows].tolist())


def tsne(features: npt.ArrayLike, seed: int) -> list[list[float]]:
    """Two coordinates per row of `features`; the same for the same seed. Needs at least `LEAST_ROWS` rows."""
    from sklearn.manifold import TSNE

    points = np.asarray(features, dtype=np.float32)
    if not np.ptp(points, axis=0).any():  # all rows are equal, which t-SNE cannot scale
        return [[0.0, 0.0] for _ in points]
    perplexity = min(30.0, (len(points) - 1) / 3)
    init = "pca" if points.shape[1] > 1 else "random"
    plane = TSNE(perplexity=perplexity, init=init, random_state=seed).fit_transform(points)
    return [[round(float(x), 3), round(float(y), 3)] for x, y in np.asarray(plane)]
