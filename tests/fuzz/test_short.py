"""A second for each reader of fuzzing; `make fuzz` takes ten minutes. Cases that once were findings are run first."""

import importlib.util
import random
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("fuzzing", Path(__file__).parent / "harness.py")
harness = importlib.util.module_from_spec(spec)
spec.loader.exec_module(harness)

FOUND = [(0, "Config", 98)]


@pytest.mark.parametrize("case", FOUND, ids=str)
def test_what_was_found_once_is_mended(case, tmp_path):
    seed, name, number = case
    getattr(harness, name)(tmp_path).try_one(random.Random(f"{seed} {name} {number}"))


@pytest.mark.parametrize("target", harness.TARGETS)
def test_a_few_new_ones(target, tmp_path):
    counts, findings = harness.fuzz(1, 1, tmp_path, [target])
    assert findings == []
    assert counts[target.__name__] > 0
