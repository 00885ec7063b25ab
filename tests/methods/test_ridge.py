import numpy as np
import pytest
import torch
from tests.methods.test_closed_form import frozen  # noqa: F401

from etag.methods.parts.penalty import PENALTIES


def all_features(made, tasks):
    """Features and labels of the training images of tasks, straight from the backbone."""
    images = [made.task(index).train for index in range(tasks)]
    with torch.no_grad():
        rows = [made.method.solver.backbone.eval()(made.preprocess.centered(part.pixels)) for part in images]
    return torch.cat(rows).double().numpy(), torch.cat([part.labels for part in images]).numpy()


@pytest.mark.parametrize("name", ["ridge", "ranpac"])
def test_the_head_is_ridge_regression_onto_one_hot_labels(frozen, name):  # noqa: F811
    made = frozen(name, {"penalty": 3.0})
    made.learn(0, 1)
    x, labels = all_features(made, 2)
    rule = made.method.rule
    if name == "ranpac":
        x = np.maximum(0, x @ rule.directions.double().numpy())
    y = np.eye(5)[labels]
    centered, target = x - x.mean(0), y - y.mean(0)
    weight = np.linalg.inv(centered.T @ centered + 3.0 * np.eye(x.shape[1])) @ centered.T @ target
    np.testing.assert_allclose(rule.weight, weight.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(rule.bias, y.mean(0) - x.mean(0) @ weight, rtol=1e-4, atol=1e-5)


def test_the_penalty_is_chosen_and_printed(frozen):  # noqa: F811
    made = frozen("ridge")
    made.learn(0)
    assert made.method.penalty in PENALTIES
    assert made.method.remarks()["penalty"] == f"{made.method.penalty:g}"
    chosen = made.method.errors.errors.clone()
    made.learn(1)
    assert (made.method.errors.errors >= chosen).all()
    assert not torch.equal(made.method.errors.errors, chosen)


def test_projections_are_drawn_once_and_saved(frozen):  # noqa: F811
    one, other = frozen("ranpac", seed=0), frozen("ranpac", seed=1)
    assert one.method.rule.directions.shape[1] == 12
    assert torch.equal(one.method.rule.directions, frozen("ranpac", seed=0).method.rule.directions)
    assert not torch.equal(one.method.rule.directions, other.method.rule.directions)
    assert "directions" in one.method.rule.state_dict()
