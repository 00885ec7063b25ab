"""Where accuracy goes: what is learned, forgotten and confused, and what the final features would allow.

    ETAG_DATA=FOLDER python benchmarks/diagnosis.py RUN_DIRECTORY ...

A directory is one of `etag run`, or of a grid's store: it must still have its model. All accuracies are over the images
that the run was evaluated on, after the last task, unless a column says otherwise. A probe is a ridge classifier on
features of the final backbone: on those of all training images, old ones too, which no method may have; or on as many
features of the same classes from the method's generator.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.linear_model import RidgeClassifierCV
from torch import Tensor

from etag.core.scenario import ImageSet
from etag.data.scenario import build_scenario
from etag.experiments import yaml_files
from etag.experiments.config import RunConfig
from etag.experiments.run_directory import RunDirectory
from etag.learner.model_directory import ModelDirectory
from etag.methods.abilities import GeneratesFeatures
from etag.methods.parts.penalty import PENALTIES
from measure import engine, print_table


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


def weighted(accuracies: list[float], classes: list[int]) -> float | None:
    """The mean over tasks, each weighted by its classes."""
    return float(np.average(accuracies, weights=classes)) if classes else None


def probe(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> float:
    """The accuracy of a ridge classifier; its penalty has the smallest leave-one-out error."""
    classifier = RidgeClassifierCV(PENALTIES).fit(*(part.double().numpy() for part in train))
    return float(classifier.score(*(part.double().numpy() for part in test)))


def probes(path: Path) -> tuple[float, float | None]:
    """What ridge classifiers reach on real features, and on generated ones if the method generates any."""
    config = RunConfig.model_validate(yaml_files.read(path / "config.yaml"))
    scenario, _ = build_scenario(config.data, config.split, config.seed, config.model.images)
    method, _ = ModelDirectory(path).load_method()
    worker = engine(precision="32-true")

    def features(sets: list[ImageSet]) -> tuple[Tensor, Tensor]:
        first, *others = sets
        result = worker.run_pass(method.features_pass("features", first.join(others)))
        return result["features"], result["labels"]

    train, test = features([task.train for task in scenario]), features([task.test for task in scenario])
    generated = method.generate_features(train[1]) if isinstance(method, GeneratesFeatures) else None
    return probe(train, test), None if generated is None else probe((generated, train[1]), test)


def row(path: Path) -> dict[str, str]:
    metrics = RunDirectory(path).read_metrics()
    matrix, known_task, classes = (metrics[key] for key in ("accuracy_matrix", "task_aware_matrix", "classes_in_task"))
    learned, last = [values[task] for task, values in enumerate(matrix)], matrix[-1]
    real, generated = probes(path)
    return {
        "run": path.name,
        "base task, when learned": percent(learned[0]),
        "base task": percent(last[0]),
        "later tasks, when learned": percent(weighted(learned[1:], classes[1:])),
        "later tasks": percent(weighted(last[1:], classes[1:])),
        "all": percent(metrics["last_accuracy"]),
        "all, if the task were known": percent(weighted(known_task[-1], classes)),
        "probe, real features": percent(real),
        "probe, generated features": percent(generated),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIRECTORY")
    print_table([row(path) for path in parser.parse_args().runs])


if __name__ == "__main__":
    main()
