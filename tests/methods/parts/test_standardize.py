"""Generators that are trained on standardized features (`generator.standardize`)."""

import numpy as np
import pytest
import torch

from etag.core.errors import EtagError
from etag.core.random import Stream
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.generators import normal_sampler

GENERATORS = {
    "cvae": ("etag", {"generator": {"standardize": True}}),
    "cvae and noise": ("etag", {"generator": {"standardize": True, "decoder_noise": True}}),
    "wgan": ("gfr", {"generator": {"kind": "wgan", "standardize": True, "train": {"steps": 4, "batch_size": 12}}}),
}


@pytest.fixture(params=GENERATORS)
def standardizing(request, lab):
    name, options = GENERATORS[request.param]
    return lab(name, options)


def test_the_base_tasks_features_give_the_scale_of_all(standardizing, snapshot):
    standardizing.begin(0)
    result = standardizing.engine.run_pass(standardizing.works(0)["features"])["features"]
    scale = standardizing.method.generator.network.scale
    torch.testing.assert_close(scale.mean, result.mean(0))
    standardizing.method.solver.requires_grad_(True)
    standardizing.engine.execute(standardizing.method.phases(standardizing.task(0)))
    before = snapshot(scale)
    standardizing.learn(1, 2)
    after = standardizing.method.generator.network.scale.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())


def test_replayed_features_are_on_the_original_scale(standardizing):
    standardizing.learn(0)
    standardizing.begin(1)
    works = standardizing.works(1)
    batch = next(works["solver"].batches.epoch(0))
    _, generated = standardizing.method.generator.replay(batch, standardizing.task(1), 200)
    scale = standardizing.method.generator.old.network.scale
    assert generated.min() >= 0
    assert (generated.mean(0) - scale.mean).norm() < 0.5 * scale.mean.norm()


def test_losses_are_those_of_standardized_features_and_guidance_sees_the_original_scale(lab, naive, disturb):
    made = lab("etag", {"generator": {"standardize": True}})
    made.learn(0)
    made.begin(1)
    disturb(made.method.generator.network, key=1)
    phase, task = made.works(1)["generator"], made.task(1)
    batch = next(phase.batches.epoch(0))
    with torch.no_grad():
        terms = {name: value.item() for name, value in phase.module(batch).items()}
    network, old = made.method.generator.network, made.method.generator.old.network
    mean, deviation = (each.double().numpy() for each in (network.scale.mean, network.scale.deviation))
    rows, draws = len(batch.labels), batch.draws
    with torch.no_grad():
        codes = network.encode(batch.inputs, batch.labels)
        posterior = codes[0] + draws.normal("posterior", rows, 5) * torch.exp(codes[1] / 2)
        recon = network.decode(posterior, batch.labels).double().numpy()
        prior = network.decode(draws.normal("prior", rows, 5), batch.labels)
        labels, old_codes = draws.integers("old labels", 0, task.num_old, rows), draws.normal("old codes", rows, 5)
        new_of_old, old_of_old = (each.decode(old_codes, labels).double().numpy() for each in (network, old))

    def half_square(one, other):
        return 0.5 * np.mean((((one - mean) / deviation - (other - mean) / deviation) ** 2).sum(1))

    assert terms["recon"] == pytest.approx(half_square(recon, batch.inputs.double().numpy()), rel=1e-4)
    ratio = task.num_old / task.num_new
    assert terms["match"] == pytest.approx(ratio * half_square(new_of_old, old_of_old), rel=1e-4)
    scores = naive.head(made.method.solver.head, prior)
    expected = naive.cross_entropy(scores, batch.labels.tolist(), range(task.num_seen))
    assert terms["guide"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_it_learns_features_of_very_different_scales_better(lab):
    """In proportion to their deviation, small features come out better; large ones no longer hide them."""
    draws = torch.Generator().manual_seed(0)
    scales = torch.logspace(-1, 1.5, 32)  # 0.1 .. 32
    errors = {}
    for standardize in (False, True):
        train = {"steps": 400, "batch_size": 32, "lr": 3e-3, "schedule": "constant"}
        made = lab("gfr", {"generator": {"hidden": 32, "standardize": standardize, "train": train}})
        made.begin(0)
        generator, task = made.method.generator, made.task(0)
        draws.manual_seed(0)
        labels = torch.arange(task.num_seen).repeat_interleave(60)
        centers = 3 + torch.randn(task.num_seen, 32, generator=draws)
        features = scales * (centers[labels] + 0.3 * torch.randn(len(labels), 32, generator=draws)).clamp(min=0)
        cached = CachedFeatures(features[None], labels)
        made.engine.execute(
            generator.learn(task, cached, {"kl": 1.0, "recon": 1.0}, made.method.solver.head, Stream.root(0))
        )
        with torch.no_grad():
            generated = generator.sample(labels, normal_sampler(Stream.root(1), len(labels), labels.device))
        means = [
            torch.stack([each[labels == y].mean(0) for y in range(task.num_seen)]) for each in (features, generated)
        ]
        errors[standardize] = ((means[1] - means[0]) / features.std(0))[:, :16].abs().mean().item()  # the small ones
    assert errors[True] < 0.7 * errors[False]


@pytest.mark.parametrize("generator", [{"standardize": True}, {"kind": "wgan", "standardize": True}], ids=str)
def test_it_is_refused_for_images(lab, generator):
    with pytest.raises(EtagError, match="standardize is for features, not for images"):
        lab("dgr", {"generator": generator})
