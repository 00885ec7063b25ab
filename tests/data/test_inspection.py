"""Decoding every file completely, in one process and in several."""

import numpy as np
import pytest

from etag.core.errors import EtagError
from etag.data import inspection
from etag.data.inspection import inspect_files


@pytest.fixture
def files(tmp_path, picture):
    """Seventy images, of which two are damaged."""
    for number in range(70):
        picture(tmp_path / f"{number:02}.png", seed=number, width=8 + number % 3, height=40)
    for number in (3, 66):
        path = tmp_path / f"{number:02}.png"
        path.write_bytes(path.read_bytes()[:-200])
    return [str(path) for path in sorted(tmp_path.iterdir())]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_all_unreadable_files_are_found_whatever_the_number_of_processes(files, monkeypatch, workers):
    monkeypatch.setattr(inspection, "FEWEST", 10)
    seen = []
    found = inspect_files(files, workers, seen.append)
    assert list(found.unreadable) == [files[3], files[66]]
    assert found.sides.tolist() == [0 if row in (3, 66) else 8 + row % 3 for row in range(70)]
    assert seen == [16, 32, 48, 64, 70]
    alone = inspect_files(files[10:12])
    assert np.array_equal(found.thumbnails[10:12], alone.thumbnails)
    with pytest.raises(EtagError, match=r"^2 image files cannot be read: .*03.png \(damaged.*66.png.*, or else\.$"):
        found.check(", or else")


def test_nothing_to_inspect(tmp_path):
    found = inspect_files([])
    assert found.thumbnails.shape == (0, 32, 32)
    found.check()
