"""What makes training cheaper: shorter, smaller images, short branches; and the preset that puts it together."""

import pytest
import torch

from etag.core.errors import EtagError
from etag.core.options import TrainOptions
from etag.core.random import Placement, Stream
from etag.data.batches import ImageBatches
from etag.data.images import MemoryImages
from etag.data.preprocess import Preprocess
from etag.data.scenario import build_scenario
from etag.engine.engine import Engine
from etag.experiments import recipes
from etag.experiments.config import resolve
from etag.learner.config import create_method
from etag.models.backbone import BACKBONES, ModelOptions

# -- length -----------------------------------------------------------------------------------------


def test_half_the_length_is_half_of_everything_that_is_counted_in_epochs():
    training = TrainOptions(epochs=9, decay_every=4, milestones=(3, 8), length=0.5)
    shorter = training.for_task(1)
    assert (shorter.epochs, shorter.decay_every, shorter.milestones, shorter.steps) == (4, 2, (2, 4), None)
    assert TrainOptions(steps=30, length=0.5).for_task(1).steps == 15
    assert TrainOptions(epochs=1, length=0.1).for_task(1).epochs == 1


def test_a_length_counts_once_and_for_the_base_task_too():
    training = TrainOptions(epochs=10, length=0.5, base={"epochs": 20})
    assert training.for_task(0).epochs == 10
    assert training.for_task(0).for_task(0).epochs == 10


# -- smaller images ---------------------------------------------------------------------------------


def test_sides_grow_evenly_and_are_whole_from_the_middle_on():
    training = TrainOptions(epochs=8, start_size=0.5)
    assert [training.side(32, 8, epoch) for epoch in range(8)] == [16, 20, 24, 28, 32, 32, 32, 32]
    assert training.side(15, 1, 7) == 15, "the whole may be odd"
    assert training.side(16, 12, 0) == 12, "not smaller than the backbone takes"


def test_batches_have_the_side_of_their_epoch():
    pixels = torch.randint(0, 256, (8, 3, 16, 16), dtype=torch.uint8)
    images, preprocess = MemoryImages(pixels, torch.arange(8)), Preprocess((0.5,) * 3, (0.2,) * 3, 16, flip=False)
    batches = ImageBatches(images, preprocess, 4, Stream.root(0), Placement(), side=lambda epoch: 8 + 4 * epoch)
    assert [next(batches.epoch(epoch)).inputs.shape[-2:] for epoch in range(3)] == [(8, 8), (12, 12), (16, 16)]
    whole = ImageBatches(images, preprocess, 4, Stream.root(0), Placement())
    small, large = next(batches.epoch(0)).inputs, next(whole.epoch(0)).inputs
    torch.testing.assert_close(small.mean((2, 3)), large.mean((2, 3)), rtol=0, atol=0.15)
    assert torch.equal(next(batches.epoch(2)).inputs, next(whole.epoch(2)).inputs)


def first_phase(backbone, **train):
    """Of eTag on digits, which have 8 pixels a side."""
    settings = {"model.backbone": backbone, "model.width": 4, "data.train_per_class": 8, "train.batch_size": 8}
    config = resolve("digits", {"method": "etag", **settings, **{f"train.{key}": of for key, of in train.items()}})
    scenario, preprocess = build_scenario(config.data, "b3-1x2", 0)
    method = create_method(config, Placement(), preprocess, channels=1, classes=5)
    method.begin_task(scenario.tasks[0])
    return next(method.phases(scenario.tasks[0]))


def test_a_method_learns_with_growing_images(runtime):
    phase = first_phase("resnet32", epochs=6, start_size=0.5)
    sides = [{batch.inputs.shape[-1] for batch in phase.batches.epoch(epoch)} for epoch in range(6)]
    assert sides == [{4}, {6}, {6}, {8}, {8}, {8}]
    Engine(runtime).train(phase)
    assert all(value.isfinite().all() for value in phase.module.state_dict().values())


def test_growing_images_are_refused_where_they_can_not_be():
    with pytest.raises(ValueError, match="does not go with a length in steps"):
        TrainOptions(steps=3, start_size=0.5)
    with pytest.raises(EtagError, match="choose another than mlp"):
        first_phase("mlp", start_size=0.5)


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
    assert (fast.train.for_task(0).epochs, fast.train.for_task(1).epochs) == (24, 9), "of 15 epochs"
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
