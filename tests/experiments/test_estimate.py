import pytest
import torch

from etag.experiments.config import resolve
from etag.experiments.estimate import _Cost, estimate
from etag.experiments.run import run

SMALL = {"split": "b2-2x1", "data.train_per_class": 64, "model.width": 4, "train.epochs": 3, "train.batch_size": 16}


@pytest.mark.parametrize(
    "method", [pytest.param("fine", marks=pytest.mark.slow), pytest.param("joint", marks=pytest.mark.slow), "etag"]
)
def test_parameters_are_those_of_the_whole_run_and_every_task_is_counted(method, tmp_path):
    quick = {"method.generator.train.epochs": 2} if method == "etag" else {}
    config = resolve("digits", {"method": method, **SMALL, **quick})
    found = estimate(config)
    metrics = run(config, tmp_path / "run")
    assert sum(found.parameters.values()) == metrics["parameters"]
    assert len(found.seconds) == 3
    assert all(seconds > 0 for seconds in found.seconds)
    assert f"{metrics['parameters']:,}" in found.report()


def test_costs_count_epochs_or_steps():
    assert _Cost(0.5, epochs=4).seconds(10) == 20
    assert _Cost(0.5, epochs=4, images_in_all=8).seconds(10) == 4


def test_joint_is_estimated_to_grow_with_the_tasks():
    seconds = estimate(resolve("digits", {"method": "joint", **SMALL, "split": "b2-4x2"})).seconds
    assert seconds[-1] == pytest.approx(seconds[1] * 10 / 4), "image for image as the second task"


def test_an_estimate_leaves_the_global_generator_alone():
    state = torch.get_rng_state()
    estimate(resolve("digits", {"method": "fine", **SMALL}))
    assert torch.equal(torch.get_rng_state(), state)
