import zipfile

import numpy as np
import pytest
import torch
from tests.report.conftest import write_features

from etag.core.errors import EtagError
from etag.core.random import Stream
from etag.report.features import LEAST_ROWS, POINTS, read_features, tsne, tsne_by_task
from etag.report.records import read_run


class Harm:
    """What a hostile pickle would do."""

    def __reduce__(self):
        return (pytest.fail, ("the file was unpickled",))


def test_features_are_embedded_for_the_tasks_asked_for(make_run):
    run = make_run()
    for task, classes in ((1, 5), (2, 6), (6, 10)):
        write_features(run, task, classes)
    record = read_run(run, logs=False)
    found = tsne_by_task(record, [1, 6])
    assert {task: len(one.points) for task, one in found.items()} == {1: 10, 6: 20}
    assert sorted(set(found[6].labels)) == list(range(10))
    assert tsne_by_task(record, [1]) == {1: found[1]}, "the same points each time"


def test_runs_without_features_have_none(make_run):
    record = read_run(make_run(), logs=False)
    assert tsne_by_task(record, [1]) == {}


def test_too_few_images_have_no_embedding(make_run):
    run = make_run()
    write_features(run, 1, classes=3, images=1)
    assert tsne_by_task(read_run(run), [1]) == {}


@pytest.mark.slow
def test_many_images_are_thinned(make_run):
    run = make_run()
    write_features(run, 1, classes=10, images=300)
    assert len(tsne_by_task(read_run(run), [1])[1].points) == POINTS


GOOD = {"features": np.zeros((4, 2), np.float32), "labels": np.zeros(4, np.int64)}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"features": np.zeros(4, np.float32)}, "'features' must be a table"),
        ({"features": np.zeros((4, 0), np.float32)}, "'features' must be a table"),
        ({"features": np.array([["a"]] * 4)}, "'features' must be a table"),
        ({"features": np.full((4, 2), np.nan, np.float32)}, "NaN or infinity"),
        ({"features": np.full((4, 2), 1e300)}, "NaN or infinity"),
        ({"labels": np.zeros(3, np.int64)}, "one whole number for each of the 4 images"),
        ({"labels": np.zeros(4)}, "one whole number"),
        ({"labels": np.array([0, 1, 2, 10])}, "beyond the 10 of the run"),
        ({"labels": np.array([0, 1, 2, -1])}, "beyond the 10 of the run"),
        ({"labels": np.array([Harm()] * 4, dtype=object)}, "does not hold the arrays"),
        ({"labels": None}, "does not hold the arrays"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, changes, reason):
    file = tmp_path / "task-001.npz"
    np.savez(file, **{name: value for name, value in (GOOD | changes).items() if value is not None})
    with pytest.raises(EtagError, match=rf"task-001\.npz cannot be used: .*{reason}.*\.$") as refused:
        read_features(file, classes=10)
    assert "\n" not in str(refused.value)


def damaged(path):
    np.savez_compressed(path, **GOOD)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        start = archive.infolist()[0].header_offset + 60
    yield whole[: len(whole) // 2]
    yield whole[:start] + b"\xff" * 8 + whole[start + 8 :]
    yield b""
    yield b"PK\x03\x04"
    yield b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (999999999999, 9), }".ljust(128)
    yield b"cos\nsystem\n(S'exit 3'\ntR."


def test_damaged_files_end_in_one_sentence(tmp_path):
    file = tmp_path / "task-001.npz"
    for content in damaged(file):
        file.write_bytes(content)
        with pytest.raises(EtagError, match=r"task-001\.npz cannot be used: .*remove the file, or repeat the run\.$"):
            read_features(file, classes=10)


# -- t-SNE ---------------------------------------------------------------------------------------


def test_clusters_that_are_far_apart_stay_apart():
    labels = torch.arange(30) % 3
    noise = torch.randn(30, 5, generator=Stream.root(0).torch_generator())
    plane = torch.tensor(tsne(100 * torch.eye(5)[labels] + noise, seed=0))
    assert plane.shape == (30, 2)
    distances = torch.cdist(plane, plane).fill_diagonal_(torch.inf)
    assert torch.equal(labels[distances.argmin(1)], labels)


def test_the_points_are_the_same_for_the_same_seed():
    features = torch.randn(12, 4, generator=Stream.root(0).torch_generator())
    assert tsne(features, seed=1) == tsne(features, seed=1)


def test_the_least_number_of_rows_is_enough():
    assert len(tsne(torch.eye(LEAST_ROWS), seed=0)) == LEAST_ROWS


def test_equal_rows_and_single_features_have_points_too():
    assert tsne(np.ones((5, 3)), seed=0) == [[0.0, 0.0]] * 5
    assert np.isfinite(tsne(np.arange(6.0).reshape(6, 1), seed=0)).all()
