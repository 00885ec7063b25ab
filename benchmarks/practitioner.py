"""The practitioner's loop on CIFAR-100: classes that arrive in lessons, 200 images each, and no old image.

    python benchmarks/practitioner.py [--lessons 5x2] [--methods ridge adapted gfr etag fine joint tuned]
                                      [--seeds 0 1 2] [--out DIR] [--cache] [--from-scratch]
                                      [--validation] [--set KEY=VALUE]

`5x2` is two lessons of 5 classes, `10x6` six of 10. A seed chooses the classes and everything else that is random.
Every lesson is a real `etag learn` on folders, one thread, with the settings that it chooses itself; accuracy is on the
100 test images of each class. `joint` trains a head on all classes in one lesson; `tuned` does, and trains the last two
stages of the backbone too. `adapted` is ridge regression on a backbone whose last two stages were trained in the first
lesson. For `ridge`, a model that learns all classes in one lesson is compared too: the largest
difference of the weights is printed. Models that are in DIR already are not trained again. With `--cache` methods share
the features of the frozen backbone, so that only the first one's seconds include them. `--validation` evaluates on
other training images, for choices that are to be made without the test images.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch

from etag.app.evaluating import evaluate_folder
from etag.app.lessons import LessonOptions, learn_folder
from etag.app.sources import source_folders
from etag.app.talk import Talk
from etag.learner.model_directory import ModelDirectory

TUNE = ["model.train=last-2", "train.lr=1e-3", "train.epochs=6"]
# by name: the method, its settings, and whether all classes come in one lesson
NAMED = {
    "adapted": ("ridge", [*TUNE, "method.features.source=base"], False),
    "joint": ("fine", [], True),
    "tuned": ("fine", TUNE, True),
}


LEARNED, TESTED = 200, 100  # images per class


def folders(home: Path, seed: int, sizes: list[int], validation: bool) -> tuple[Path, list[Path]]:
    """Images in folders: one per lesson, all of them, test, and unknown: classes that are never learned."""
    kind = "validation" if validation else "images"
    place, total = home / f"{kind}-{'-'.join(map(str, sizes))}-{seed}", sum(sizes)
    numbers = np.random.default_rng(seed).permutation(100).tolist()
    ends = np.cumsum(sizes).tolist()
    parts = {f"lesson-{end}": numbers[end - size : end] for size, end in zip(sizes, ends, strict=True)}
    lessons = [place / name for name in parts]
    parts |= {"all": numbers[:total], "test": numbers[:total], "unknown": numbers[total : total + 10]}
    for name, classes in parts.items():
        if (place / name).exists():
            continue
        tested = name in ("test", "unknown")
        count, part = (LEARNED, "test" if tested else "train")
        if tested and validation:
            count, part = LEARNED + TESTED, "train"
        source_folders("cifar100", place / name, ",".join(map(str, classes)), count, part)
        for folder in (place / name).iterdir() if tested and validation else ():
            for file in sorted(folder.iterdir())[:LEARNED]:
                file.unlink()
    return place, lessons


def learn(
    model: Path, lessons: list[Path], method: str, options: argparse.Namespace, seed: int, settings: list[str]
) -> None:
    """Learn the lessons that the model has not learned yet."""
    given = {"method": method, "seed": seed}
    known = len(ModelDirectory(model).about().history) if ModelDirectory(model).exists() else 0
    for number, lesson in list(enumerate(lessons))[known:]:
        first = number == 0
        chosen = settings if first else [word for word in settings if word.startswith(("train.", "runtime."))]
        from_scratch = options.from_scratch and first
        lesson_options = LessonOptions(
            given if first else {}, chosen, from_scratch=from_scratch, cache_features=options.cache
        )
        learn_folder(model, lesson, lesson_options, Talk(print))


def trial(home: Path, method: str, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """One model, trained and evaluated."""
    sizes = [options.classes] * options.count
    images, lessons = folders(home, seed, sizes, options.validation)
    kind = "scratch-" * options.from_scratch + "validation-" * options.validation
    name = f"{kind}{method}-{options.lessons}-{seed}"
    own, settings, at_once = NAMED.get(method, (method, [], False))
    learned = [images / "all"] if at_once else lessons
    learn(home / name, learned, own, options, seed, [*options.settings, *settings])
    found = evaluate_folder(home / name, images / "test", images / "unknown")
    groups = {"all": set_of(images / "test"), "first lesson": set_of(lessons[0]), "last lesson": set_of(lessons[-1])}
    values = {
        group: statistics.mean(right for label, (_, right) in found.per_class.items() if label in names)
        for group, names in groups.items()
    }
    seconds = [lesson.seconds + lesson.test_seconds for lesson in ModelDirectory(home / name).about().history]
    values |= {"ECE": found.calibration_error, "AUROC": found.auroc or 0.0, "longest lesson, s": max(seconds)}
    if method == "ridge" and not options.from_scratch:
        whole = home / f"{name}-at-once"
        learn(whole, [images / "all"], method, options, seed, options.settings)
        values["difference to one lesson"] = difference(home / name, whole)
    return values


def difference(one: Path, other: Path) -> float:
    """The largest difference of two linear rules, relative to their largest weight; the classes may be in any order."""
    (rule, about), (twin, twin_about) = (ModelDirectory(path).load_classifier() for path in (one, other))
    order = [about.classes.index(name) for name in twin_about.classes]
    weight, twin_weight = rule.rule.weight[order], twin.rule.weight
    return float((weight - twin_weight).abs().max() / twin_weight.abs().max())


def set_of(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lessons", default="5x2")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=["ridge", "gfr", "etag", "fine", *NAMED])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cache", action="store_true")
    parser.add_argument("--from-scratch", action="store_true")
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--set", dest="settings", action="append", default=[])
    options = parser.parse_args()
    options.classes, options.count = map(int, options.lessons.split("x"))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        home = options.out or Path(temporary)
        for method in options.methods:
            trials = [trial(home, method, seed, options) for seed in options.seeds]
            for seed, values in zip(options.seeds, trials, strict=True):
                print(json.dumps({"method": method, "seed": seed} | {key: round(v, 8) for key, v in values.items()}))
            for key in trials[0]:
                values = [values[key] for values in trials]
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                print(f"{method:6} {key:25} {statistics.mean(values):.4g} ± {spread:.2g}", flush=True)


if __name__ == "__main__":
    main()
