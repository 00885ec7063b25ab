"""What makes training cheaper: shorter training, short branches; and the preset that puts it together."""

import pytest
import torch

from etag.core.errors import EtagError
from etag.core.options import TrainOptions
from etag.experiments import recipes
from etag.experiments.config import resolve
from etag.models.backbone import BACKBONES, ModelOptions

# -- length factor ----------------------------------------------------------------------------------


def test_a_length_factor_of_one_half_halves_everything_that_is_counted_in_epochs():
    training = TrainOptions(epochs=9, decay_every=4, milestones=(3, 8), length_factor=0.5)
    shorter = training.for_task(1)
    assert (shorter.epochs, shorter.decay_every, shorter.milestones, shorter.steps) == (4, 2, (2, 4), None)
    assert TrainOptions(steps=30, length_factor=0.5).for_task(1).steps == 15
    assert TrainOptions(epochs=1, length_factor=0.1).for_task(1).epochs == 1


def test_a_length_factor_counts_once_and_for_the_base_task_too():
    training = TrainOptions(epochs=10, length_factor=0.5, base={"epochs": 20})
    assert training.for_task(0).epochs == 10
    assert training.for_task(0).for_task(0).epochs == 10


# -- short branches ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet18", "resnet32", "vgg11", "mobilenetv2", "mlp"])
def test_short_branches_lead_to_the_same_shape_with_no_more_weights(name):
    backbone = BACKBONES[name](ModelOptions(backbone=name, width=8), 3, 32)
    stages = len(backbone.stages)
    x, maps = torch.randn(2, 3, 32, 32), []
    for stage in backbone.stages:
        x = stage(x)
        maps.append(x)
    for number, given in enumerate(maps, start=1):
        full, short = backbone.branch(number), backbone.branch(number, short=True)
        assert short(given).shape == full(given).shape
        fewer, more = (sum(parameter.numel() for parameter in branch.parameters()) for branch in (short, full))
        assert fewer <= more
        if name != "mlp" and number < stages:
            assert fewer < more


def test_auxiliaries_are_as_asked_for(lab):
    full, short = (lab("etag", {"embedding": {"branches": kind}}).method.solver for kind in ("full", "short"))
    assert [len(stage) for auxiliary in full.auxiliaries for stage in auxiliary.branch] == [4] * 6
    assert [len(stage) for auxiliary in short.auxiliaries for stage in auxiliary.branch] == [2] * 6


# -- the preset -------------------------------------------------------------------------------------


def test_the_preset_is_for_what_a_method_has():
    fast = resolve("digits", {"method": "etag"}, preset="fast")
    assert (fast.method.embedding.views_per_image, fast.method.embedding.branches) == (1, "short")
    assert fast.train == resolve("digits", {"method": "fine"}).train, "no method is trained longer than others"
    assert resolve("digits", {"method": "fine"}, preset="fast") == resolve("digits", {"method": "fine"})
    assert resolve("digits", {"method": "elwf"}, preset="fast").method.embedding.views_per_image == 1
    switched_on = resolve("digits", {"method": "lwf", "method.embedding": {}}, preset="fast")
    assert switched_on.method.embedding.views_per_image == 1


def test_what_is_asked_for_wins_over_the_preset():
    config = resolve("digits", {"method": "etag"}, ["method.embedding.views_per_image=3"], preset="fast")
    assert config.method.embedding.views_per_image == 3


def test_an_unknown_preset_is_an_error_that_names_those_there_are():
    with pytest.raises(EtagError, match="fast"):
        resolve("digits", preset="quick")
    assert not [name for name in recipes.available() if "preset" in name]
