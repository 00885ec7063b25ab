"""Small runs on real digits."""

import pytest

from etag.experiments.config import resolve

SMALL = {
    "split": "b2-2x1",
    "data.train_per_class": 20,
    "data.test_per_class": 8,
    "model.width": 4,
    "train.epochs": 2,
    "train.batch_size": 16,
}
QUICK_GENERATOR = {"method.generator.train.epochs": 2, "method.generator.feature_passes": 2}


@pytest.fixture(scope="session")
def small():
    """small(method, **options): the configuration of a run of seconds: 2 + 1 + 1 classes."""

    def configure(method, **more):
        quick = QUICK_GENERATOR if method == "etag" else {}
        return resolve("digits", {"method": method, **SMALL, **quick, **more})

    return configure
