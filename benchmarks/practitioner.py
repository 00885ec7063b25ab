"""The practitioner's loop on CIFAR-100, 5 classes and then 5 others, against fine-tuning and joint training.

    python benchmarks/practitioner.py [--seeds 0 1 2] [--methods etag fine joint] [--out DIR] [--set KEY=VALUE]

There are 200 images of each class. A seed chooses the classes and everything else that is random. Every lesson is a
real `etag learn` on folders, one thread, with the settings that it chooses itself; accuracy is on the 100 test images
of each class. `joint` learns all ten classes in one lesson, so it has no old classes. Models that are in DIR already
are not trained again.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch

from etag.app.evaluating import evaluate_folder
from etag.app.lessons import learn_folder
from etag.app.sources import source_folders
from etag.learner.model_directory import ModelDirectory


def folders(home: Path, seed: int) -> Path:
    """A and B to learn from, AB of both, test, and unknown: images of classes that are not learned."""
    place = home / f"images-{seed}"
    numbers = np.random.default_rng(seed).permutation(100)[:20].tolist()
    parts = {"A": numbers[:5], "B": numbers[5:10], "AB": numbers[:10], "test": numbers[:10], "unknown": numbers[10:]}
    for name, classes in parts.items():
        if not (place / name).exists():
            part = "test" if name in ("test", "unknown") else "train"
            source_folders("cifar100", place / name, ",".join(map(str, classes)), 200, part)
    return place


def trial(home: Path, method: str, seed: int, settings: list[str]) -> dict[str, float]:
    """One model, trained and evaluated."""
    images, model = folders(home, seed), home / f"{method}-{seed}"
    given = {"method": "fine" if method == "joint" else method, "seed": seed}
    for lesson in ["AB"] if method == "joint" else ["A", "B"]:
        if not ModelDirectory(model).exists() or set_of(images / lesson).isdisjoint(
            ModelDirectory(model).about().classes
        ):
            learn_folder(model, images / lesson, {} if lesson == "B" else given, settings, print_line=print)
    found = evaluate_folder(model, images / "test", images / "unknown")
    groups = {"old": set_of(images / "A"), "new": set_of(images / "B"), "all": set_of(images / "test")}
    accuracy = {
        name: statistics.mean(right for label, (_, right) in found.per_class.items() if label in group)
        for name, group in groups.items()
    }
    minutes = max(lesson.seconds for lesson in ModelDirectory(model).about().history) / 60
    return accuracy | {"ECE": found.calibration_error, "AUROC": found.auroc or 0.0, "longest lesson, min": minutes}


def set_of(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=["fine", "etag", "joint"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--set", dest="settings", action="append", default=[])
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        home = options.out or Path(temporary)
        for method in options.methods:
            trials = [trial(home, method, seed, options.settings) for seed in options.seeds]
            for seed, values in zip(options.seeds, trials, strict=True):
                print(json.dumps({"method": method, "seed": seed} | {key: round(v, 4) for key, v in values.items()}))
            for key in trials[0]:
                values = [values[key] for values in trials]
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                print(f"{method:6} {key:20} {statistics.mean(values):.3f} ± {spread:.3f}")


if __name__ == "__main__":
    main()
