"""The crash test in short; `make crash-test` is the whole."""

import importlib.util
import random
from pathlib import Path

spec = importlib.util.spec_from_file_location("harness", Path(__file__).parent / "harness.py")
harness = importlib.util.module_from_spec(spec)
spec.loader.exec_module(harness)


def test_killed_at_every_failpoint_and_at_random_it_ends_as_its_twin(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "SETTINGS", harness.SETTINGS | {"train.epochs": 4, "split": "b4-2x2"})
    harness.killed_at_points("il2m", tmp_path)
    assert harness.killed_at_random("fine", tmp_path, 2, random.Random(0)) >= 2
