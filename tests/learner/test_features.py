import os
import subprocess
import sys

import pytest
import torch

from etag.data.images import MemoryImages, content_keys
from etag.learner.features import ENTRY, FeatureStore

KEYS = [bytes([number]) * 16 for number in range(5)]
ROWS = torch.arange(20.0).view(5, 4)


def filled(folder, count=5):
    store = FeatureStore(folder, "name", 4)
    with store.updating():
        store.add(KEYS[:count], ROWS[:count])
    return store


@pytest.mark.parametrize("on_disk", [False, True])
def test_rows_are_found_by_key(tmp_path, on_disk):
    store = filled(tmp_path / "features" if on_disk else None, count=3)
    assert store.missing([KEYS[4], KEYS[1], KEYS[3], KEYS[4]]) == [0, 2], "equal images are computed once"
    matrix, places = store.rows([KEYS[2], KEYS[0], KEYS[2]])
    assert torch.equal(matrix[places], ROWS[[2, 0, 2]])
    with store.updating():
        store.add(KEYS[3:], ROWS[3:])
    matrix, places = store.rows(KEYS)
    assert torch.equal(matrix[places], ROWS)


def test_rows_on_disk_outlive_the_store(tmp_path):
    filled(tmp_path / "features")
    again = FeatureStore(tmp_path / "features", "name", 4)
    with again.updating():
        assert again.missing(KEYS) == []
    matrix, places = again.rows(KEYS)
    assert torch.equal(matrix[places], ROWS)
    other = FeatureStore(tmp_path / "features", "another backbone", 4)
    with other.updating():
        assert other.missing(KEYS) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("ending", ["rows", "index"])
@pytest.mark.parametrize("cut", [1, 7, 40])
def test_what_a_killed_process_wrote_in_part_is_computed_again(tmp_path, ending, cut):
    filled(tmp_path / "features")
    file = tmp_path / "features" / f"name.{ending}"
    os.truncate(file, file.stat().st_size - cut)
    again = FeatureStore(tmp_path / "features", "name", 4)
    with again.updating():
        left = again.missing(KEYS)
        assert left
        assert left == list(range(left[0], 5))
        again.add([KEYS[place] for place in left], ROWS[left])
    fresh = FeatureStore(tmp_path / "features", "name", 4)
    with fresh.updating():
        matrix, places = fresh.rows(KEYS)
    assert torch.equal(matrix[places], ROWS)


def test_a_flipped_bit_is_noticed(tmp_path):
    filled(tmp_path / "features")
    file = tmp_path / "features" / "name.rows"
    data = bytearray(file.read_bytes())
    data[2 * 16 + 3] ^= 1
    file.write_bytes(data)
    again = FeatureStore(tmp_path / "features", "name", 4)
    with again.updating():
        assert again.missing(KEYS) == [2, 3, 4]
    assert (tmp_path / "features" / "name.index").stat().st_size == 2 * ENTRY


def test_a_process_that_does_not_write_reads_what_is_there(tmp_path):
    filled(tmp_path / "features", count=3)
    reader = FeatureStore(tmp_path / "features", "name", 4, writes=False)
    with reader.updating():
        assert reader.missing(KEYS) == [3, 4]
        reader.add(KEYS[3:], ROWS[3:])
    matrix, places = reader.rows(KEYS)
    assert torch.equal(matrix[places], ROWS)
    assert (tmp_path / "features" / "name.index").stat().st_size == 3 * ENTRY


def test_two_processes_share_a_folder(tmp_path):
    code = (
        "import sys, torch; from pathlib import Path; from etag.learner.features import FeatureStore\n"
        "store = FeatureStore(Path(sys.argv[1]), 'name', 4)\n"
        "for number in range(40):\n"
        "    with store.updating():\n"
        "        key = number.to_bytes(16, 'big')\n"
        "        if store.missing([key]): store.add([key], torch.full((1, 4), float(number)))\n"
    )
    (tmp_path / "features").mkdir()
    both = [subprocess.Popen([sys.executable, "-c", code, tmp_path / "features"]) for _ in range(2)]
    assert [each.wait() for each in both] == [0, 0]
    store, keys = FeatureStore(tmp_path / "features", "name", 4), [number.to_bytes(16, "big") for number in range(40)]
    with store.updating():
        assert store.missing(keys) == []
    matrix, places = store.rows(keys)
    assert torch.equal(matrix[places, 0], torch.arange(40.0))
    assert len(matrix) == 40


def test_equal_images_have_equal_keys():
    pixels = torch.randint(0, 255, (4, 3, 5, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    pixels[3] = pixels[0]
    keys = content_keys(MemoryImages(pixels, torch.zeros(4).long()))
    assert keys[0] == keys[3]
    assert len(set(keys)) == 3
