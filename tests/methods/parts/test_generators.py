import numpy as np
import pytest
import torch
from pydantic import ValidationError

from etag.core.errors import EtagError
from etag.core.outputs import Need
from etag.data.batches import ImageBatches
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.generators import NetworkOptions, options_by_kind
from etag.methods.parts.variational import VariationalOptions


@pytest.fixture
def second_task(lab, disturb):
    """A laboratory whose second task has begun, with old and new networks that differ; and its generator phase."""
    laboratory = lab("etag")
    for begun in range(2):
        laboratory.begin(begun)
        for part in laboratory.method.parts.values():
            disturb(part, key=begun)
    return laboratory, laboratory.works(1)["generator"]


# -- replay ----------------------------------------------------------------------------------------


def test_replayed_features_are_the_old_generators(naive, second_task):
    laboratory, phase = second_task
    generator, task, batch = laboratory.method.generator, laboratory.task(1), next(phase.batches.epoch(0))
    labels, features = generator.replay(batch, task, 300)
    codes = batch.draws.normal("replay codes", 300, 5)
    np.testing.assert_allclose(features, naive.decode(generator.old.network, codes, labels), atol=1e-5)
    assert not features.requires_grad
    counts = labels.bincount()
    assert len(counts) == task.num_old  # every old class, no new one
    assert counts.min() > 70  # uniformly: 100 each is expected


def test_the_old_generator_is_a_copy_from_before_classes_were_added(lab, snapshot):
    laboratory = lab("etag")
    laboratory.learn(0)
    before = snapshot(laboratory.method.generator.network)
    laboratory.begin(1)
    old = laboratory.method.generator.old.network.state_dict()
    assert list(old) == list(before)
    assert all(torch.equal(value, before[key]) for key, value in old.items())


def test_what_is_replayed_differs_from_step_to_step(second_task):
    laboratory, phase = second_task
    generator, task = laboratory.method.generator, laboratory.task(1)
    first, second = [
        generator.replay(batch, task, 8) for epoch in range(2) for batch in list(phase.batches.epoch(epoch))[:1]
    ]
    assert not torch.equal(first[1], second[1])


# -- features for the generator --------------------------------------------------------------------


def test_features_that_are_given_are_passed_over_once(lab):
    """They are never augmented: more passes would be copies."""
    laboratory = lab("etag", {"generator": {"feature_passes": 3}})
    laboratory.begin(0)
    images = laboratory.learner.features("given", laboratory.task(0).train)
    found = laboratory.engine.run_pass(laboratory.method.features_pass("features", images, 3))
    assert torch.equal(found["features"], images.matrix[images.places])


@pytest.mark.parametrize("passes", [1, 3])
def test_the_pass_gives_the_features_of_freshly_augmented_images_pass_by_pass(lab, passes):
    laboratory = lab("etag", {"generator": {"feature_passes": passes}})
    laboratory.begin(0)
    method, task = laboratory.method, laboratory.task(0)
    found = laboratory.engine.run_pass(laboratory.works(0)["features"])
    rows = len(task.train)
    assert found["features"].shape == (passes * rows, 32)
    assert torch.equal(found["labels"], task.train.labels.repeat(passes))
    augmented = ImageBatches(
        task.train, laboratory.preprocess, rows, method.stream("features"), method.context.placement, shuffle=False
    )
    for number in range(passes):
        (batch,) = augmented.epoch(number)
        expected = method.solver.eval()(batch.inputs, Need.FEATURE).feature
        torch.testing.assert_close(found["features"][number * rows : (number + 1) * rows], expected)
    cached = CachedFeatures.from_pass(found, rows)
    phase = method.generator.phase(task, cached, {}, method.solver.head, method.stream("generator"))
    for epoch in range(4):
        (batch, *_) = phase.batches.epoch(epoch)
        used = found["features"][(epoch % passes) * rows : (epoch % passes + 1) * rows]
        for feature, label in zip(batch.inputs, batch.labels, strict=True):
            same = (used == feature).all(1)
            assert same.any()
            assert label in task.train.labels[same]


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [NetworkOptions, VariationalOptions])
def test_the_generator_has_a_training_of_its_own(options):
    training = options().train
    assert (training.optimizer, training.lr, training.weight_decay) == ("adam", 1e-4, 0.0)
    assert (training.schedule, training.decay, training.decay_every, training.epochs) == ("step", 0.1, 30, 100)
    with pytest.raises(ValidationError, match="lrr"):
        options(train={"lrr": 1})


def test_its_training_is_used(lab):
    laboratory = lab("etag", {"generator": {"train": {"epochs": 3, "batch_size": 8, "base": {"lr": 0.5}}}})
    laboratory.begin(0)
    phase = laboratory.works(0)["generator"]
    assert (phase.steps, phase.training.lr) == (9, 0.5)  # 24 images, 3 epochs of 3 batches
    laboratory.begin(1)
    assert laboratory.works(1)["generator"].training.lr == 1e-4


@pytest.mark.parametrize(("drop_last", "steps"), [(True, 2), (False, 3)])
def test_the_short_last_batch_may_be_dropped(lab, drop_last, steps):
    laboratory = lab("etag", {"generator": {"train": {"epochs": 1, "batch_size": 10, "drop_last": drop_last}}})
    laboratory.begin(0)
    assert laboratory.works(0)["generator"].steps == steps  # 24 images


@pytest.mark.parametrize(("growth", "rows"), [("growing", [3, 5, 7]), ("fixed", [7, 7, 7])])
def test_it_has_the_classes_that_the_head_has(lab, growth, rows):
    laboratory = lab("etag", {"head": {"growth": growth}})
    for index, expected in enumerate(rows):
        laboratory.begin(index)
        for layer in (laboratory.method.generator.network.encoder_in, laboratory.method.generator.network.decoder_in):
            assert len(layer.rows) == expected


@pytest.mark.parametrize(
    ("given", "options"),
    [("wgan", {"kind": "wgan"}), ({"latent": 3}, {"kind": "cvae", "latent": 3}), ({"kind": "wgan"}, {"kind": "wgan"})],
    ids=str,
)
def test_a_kind_alone_stands_for_its_options_and_no_kind_for_the_vae(given, options):
    assert options_by_kind("cvae")(given) == options


# -- the common interface --------------------------------------------------------------------------

KINDS = {"cvae": {}, "wgan": {"kind": "wgan", "last_task": True}}
STORED = {"gaussians": {"kind": "gaussians"}, "prototypes": {"kind": "prototypes"}}


@pytest.mark.parametrize("kind", KINDS | STORED)
def test_every_kind_replays_old_classes_through_the_same_calls(lab, kind):
    small = {"latent": 5, "hidden": 16, "feature_passes": 1, "train": {"epochs": 1}}
    name = "b4" if kind in STORED else "gfr"  # the laboratory's sizes are those of networks
    laboratory = lab(name, {"generator": STORED.get(kind) or small | KINDS[kind]})
    laboratory.learn(0)
    laboratory.begin(1)
    generator, task = laboratory.method.generator, laboratory.task(1)
    assert laboratory.method.parts[generator.role] is generator.network
    batch = next(laboratory.works(1)["solver"].batches.epoch(0))
    labels, features = generator.replay(batch, task, 10)
    assert features.shape == (10, laboratory.method.solver.backbone.feature_size)
    assert set(labels.tolist()) <= set(range(task.num_old))
    assert not features.requires_grad
    assert generator.trains_in(task, task.num_seen) is generator.trains_in_last_task is True


@pytest.mark.parametrize("kind", ["wgan", "prototypes"])
def test_what_only_the_vae_can_do_is_refused_with_what_to_choose(lab, kind):
    name = "b4" if kind == "prototypes" else "gfr"
    laboratory = lab(name, {"generator": {"kind": kind}, "guidance": False})
    laboratory.begin(0, 1)
    with pytest.raises(EtagError, match="cannot forget a class: choose kind=cvae"):
        laboratory.method.forget(0)
    with pytest.raises(EtagError, match="cannot learn more images of known classes: choose kind=cvae"):
        list(laboratory.method.update(laboratory.task(1), 0))
