"""The conditional VAE: Eqs. (6), (7) and (10), one number at a time, and what their terms train."""

import numpy as np
import pytest
import torch

from etag.core.random import Placement, Stream
from etag.methods.parts.cached_features import CachedFeatures

RELEASE = {
    "head": {"growth": "fixed"},
    "fidelity": {
        "ratio": "integer",
        "reconstruction": "whole",
        "guide_input": "reconstruction",
        "guide_classes": "all",
        "guide_weight": "normalized",
        "guide_old": True,
        "match_factor": 1e-3,
        "match_reduction": "batch_sum",
    },
}


@pytest.fixture
def at_task(lab, disturb):
    """A laboratory whose task has begun, with old and new networks that differ; and that task's generator phase."""

    def make(index, options=None):
        laboratory = lab("etag", options)
        for begun in range(index + 1):
            laboratory.begin(begun)
            for part in laboratory.method.parts.values():
                disturb(part, key=begun)
        return laboratory, laboratory.works(index)["generator"]

    return make


def computed(phase):
    """A batch, and the terms of it as numbers."""
    batch = next(phase.batches.epoch(0))
    with torch.no_grad():
        return batch, {name: value.item() for name, value in phase.module(batch).items()}


# -- the losses, one number at a time --------------------------------------------------------------


def naive_terms(naive, laboratory, index, batch):
    """Eq. (6) at the base task, Eq. (10) after it, from the networks and the step's draws."""
    method, task = laboratory.method, laboratory.task(index)
    options, fidelity = method.options.generator, method.options.fidelity
    generator, head = method.generator.network, method.solver.head
    rows, draws, labels = len(batch.labels), batch.draws, batch.labels.tolist()
    ratio = task.num_old / task.num_new
    if fidelity.ratio == "integer":
        ratio = task.num_base // task.num_new + index - 1

    mean, log_variance = naive.encode(generator, batch.inputs, labels)
    noise = draws.normal("posterior", rows, options.latent).double().numpy()
    reconstructed = naive.decode(generator, mean + noise * np.sqrt(np.exp(log_variance)), labels)
    sampled = naive.decode(generator, draws.normal("prior", rows, options.latent), labels)
    guided = sampled if fidelity.guide_input == "prior" else reconstructed
    competing = naive.outputs_in(fidelity.guide_classes, task, head)
    half = 0.5 if fidelity.reconstruction == "half" else 1
    terms = {
        "kl": naive.prior_divergence(mean, log_variance),
        "recon": half * sum(naive.squares(reconstructed, batch.inputs)) / rows,
    }
    if method.options.guidance:
        terms["guide"] = naive.cross_entropy(naive.head(head, guided), labels, competing)
    if index == 0:
        return terms
    if method.options.guidance and fidelity.guide_weight == "normalized":
        terms["guide"] /= 1 + ratio
    old_labels = draws.integers("old labels", 0, task.num_old, rows).tolist()
    codes = draws.normal("old codes", rows, options.latent)
    made, wanted = (naive.decode(vae, codes, old_labels) for vae in (generator, method.generator.old.network))
    weight = ratio if method.options.lambda_vae is None else method.options.lambda_vae
    per_row = 0.5 / rows if fidelity.match_reduction == "mean" else 1
    terms["match"] = weight * fidelity.match_factor * per_row * sum(naive.squares(made, wanted))
    if method.options.guidance and fidelity.guide_old:
        every = naive.outputs_in("all" if fidelity.guide_classes == "all" else "seen", task, head)
        terms["guide_old"] = ratio / (1 + ratio) * naive.cross_entropy(naive.head(head, made), old_labels, every)
    return terms


# what an option is compared with, its other value, and the terms that must change
SWITCHES = {
    "ratio": ({}, {"fidelity": {"ratio": "integer"}}, {"match"}),
    "ratio in guidance": (
        {"fidelity": {"guide_weight": "normalized", "guide_old": True}},
        {"fidelity": {"ratio": "integer", "guide_weight": "normalized", "guide_old": True}},
        {"match", "guide", "guide_old"},
    ),
    "lambda_vae": ({}, {"lambda_vae": 4.0}, {"match"}),
    "lambda_vae beside guidance": (
        {"fidelity": {"guide_weight": "normalized", "guide_old": True}},
        {"lambda_vae": 4.0, "fidelity": {"guide_weight": "normalized", "guide_old": True}},
        {"match"},
    ),
    "reconstruction": ({}, {"fidelity": {"reconstruction": "whole"}}, {"recon"}),
    "guide_input": ({}, {"fidelity": {"guide_input": "reconstruction"}}, {"guide"}),
    "guide_classes new": ({}, {"fidelity": {"guide_classes": "new"}}, {"guide"}),
    "guide_classes all": (
        {"head": {"growth": "fixed"}},
        {"head": {"growth": "fixed"}, "fidelity": {"guide_classes": "all"}},
        {"guide"},
    ),
    "guide_weight": ({}, {"fidelity": {"guide_weight": "normalized"}}, {"guide"}),
    "guide_old": ({}, {"fidelity": {"guide_old": True}}, {"guide_old"}),
    "match_factor": ({}, {"fidelity": {"match_factor": 0.001}}, {"match"}),
    "match_reduction": ({}, {"fidelity": {"match_reduction": "batch_sum"}}, {"match"}),
}


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("options", [{}, RELEASE], ids=["paper", "release"])
def test_the_objective_is_the_papers_equation_or_the_releases_code(naive, at_task, options, index):
    laboratory, phase = at_task(index, options)
    batch, terms = computed(phase)
    expected = naive_terms(naive, laboratory, index, batch)
    assert terms == pytest.approx(expected, rel=1e-4)
    assert set(terms) == {"kl", "recon", "guide"} | (
        set() if index == 0 else {"match"} if not options else {"match", "guide_old"}
    )


@pytest.mark.parametrize("switch", SWITCHES)
def test_each_option_changes_its_own_terms_as_it_says(naive, at_task, switch):
    reference, other, changed = SWITCHES[switch]
    _, before = computed(at_task(1, reference)[1])
    laboratory, phase = at_task(1, other)
    batch, after = computed(phase)
    assert after == pytest.approx(naive_terms(naive, laboratory, 1, batch), rel=1e-4)
    found = {name for name in after if after[name] != pytest.approx(before.get(name, 0), rel=1e-5)}
    assert found == changed


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("options", [{}, RELEASE], ids=["paper", "release"])
def test_without_guidance_it_is_trained_as_any_conditional_vae(naive, at_task, options, index):
    laboratory, phase = at_task(index, options | {"guidance": False})
    asked = []
    laboratory.method.solver.head.register_forward_hook(lambda *_: asked.append("head"))
    batch, terms = computed(phase)
    assert terms == pytest.approx(naive_terms(naive, laboratory, index, batch), rel=1e-4)
    assert set(terms) == {"kl", "recon"} | ({"match"} if index else set())
    assert asked == []


@pytest.mark.parametrize("options", [{}, RELEASE], ids=["paper", "release"])
def test_the_mean_over_two_processes_is_what_one_computes(at_task, options):
    laboratory, _ = at_task(1, options)
    method, task, terms = laboratory.method, laboratory.task(1), []
    found = laboratory.engine.run_pass(method.features_pass("features", task.train, 2))
    features, weights = CachedFeatures.from_pass(found, len(task.train)), method.generator_weights(task)
    for placement in (Placement(), Placement(rank=0, world=2), Placement(rank=1, world=2)):
        method.generator._placement = placement
        phase = method.generator.phase(task, features, weights, method.solver.head, method.stream("generator"))
        terms.append(computed(phase)[1])
    alone, *shares = terms
    assert {name: (shares[0][name] + shares[1][name]) / 2 for name in alone} == pytest.approx(alone, rel=1e-4)


@pytest.mark.parametrize("ratio", ["exact", "integer"])
def test_nothing_old_is_matched_at_the_base_task_whatever_lambda_is(naive, at_task, ratio):
    laboratory, phase = at_task(0, {"lambda_vae": 4.0, "fidelity": {"ratio": ratio, "guide_old": True}})
    batch, terms = computed(phase)
    assert terms == pytest.approx(naive_terms(naive, laboratory, 0, batch), rel=1e-4)
    assert set(terms) == {"kl", "recon", "guide"}


# -- what is trained, and what is not --------------------------------------------------------------


def gradients(laboratory, phase, term):
    """Names of the parameters that a term pulls at, once the engine has run the phase."""
    laboratory.engine.train(phase)
    parts = torch.nn.ModuleDict(laboratory.method.parts)
    parts.zero_grad()
    phase.module(next(phase.batches.epoch(0)))[term].backward()
    return {name for name, value in parts.named_parameters() if value.grad is not None and value.grad.any()}


def test_guidance_pulls_at_the_decoder_and_at_nothing_else(at_task):
    pulled = gradients(*at_task(1), term="guide")
    assert {name.split(".")[1] for name in pulled} == {"decoder_in", "decoder", "decoder_out"}


def test_guidance_of_reconstructions_reaches_the_encoder_and_never_the_head(at_task):
    pulled = gradients(*at_task(1, {"fidelity": {"guide_input": "reconstruction"}}), term="guide")
    assert {"generator.encoder.weight", "generator.mean.weight", "generator.decoder.weight"} <= pulled
    assert not any(name.startswith("solver") for name in pulled)


def test_training_the_generator_leaves_solver_and_old_generator_alone(at_task, snapshot):
    laboratory, phase = at_task(1)
    method = laboratory.method
    resting = {"solver": method.solver, "teacher": method.teacher, "old": method.generator.old}
    before = {name: snapshot(module) for name, module in resting.items()}
    trained = snapshot(method.generator.network)
    laboratory.engine.train(phase)
    for name, module in resting.items():
        for key, value in module.state_dict().items():
            assert torch.equal(value, before[name][key]), (name, key)
    generator, old = method.generator.network, laboratory.task(1).num_old
    assert not any(torch.equal(value, trained[key]) for key, value in generator.state_dict().items())
    moved = {
        key: (generator.get_parameter(key) != trained[key]).any(1) for key in ("encoder_in.rows", "decoder_in.rows")
    }
    assert not moved["encoder_in.rows"][:old].any()  # nothing of old classes is ever encoded
    assert moved["encoder_in.rows"][old:].all()
    assert moved["decoder_in.rows"].all()


@pytest.mark.parametrize(
    ("options", "old_decoder", "head"),
    [
        ({}, 1, 1),
        ({"lambda_vae": 0.0}, 0, 1),
        ({"fidelity": {"guide_old": True}}, 1, 2),
        ({"lambda_vae": 0.0, "fidelity": {"guide_old": True}}, 0, 2),
        ({"guidance": False}, 1, 0),
        ({"lambda_vae": 0.0, "guidance": False, "fidelity": {"guide_old": True}}, 0, 0),
    ],
    ids=["match", "neither", "match and guidance", "guidance", "no guidance", "nothing"],
)
def test_a_term_of_weight_zero_is_not_computed(at_task, options, old_decoder, head):
    laboratory, phase = at_task(1, options)
    asked = []
    laboratory.method.generator.old.network.decoder.register_forward_hook(lambda *_: asked.append("old decoder"))
    laboratory.method.solver.head.register_forward_hook(lambda *_: asked.append("head"))
    _, terms = computed(phase)
    assert len(terms) == 2 + old_decoder + head
    assert (asked.count("old decoder"), asked.count("head")) == (old_decoder, head)


# -- options ---------------------------------------------------------------------------------------


def test_the_networks_size_is_an_option(lab):
    laboratory = lab("etag", {"generator": {"latent": 3, "hidden": 7}})
    laboratory.begin(0)
    generator = laboratory.method.generator.network
    assert generator.mean.weight.shape == (3, 7)
    assert generator.decoder_out.weight.shape == (32, 7)


def test_decoder_noise_gives_generated_features_the_spread_of_real_ones(lab):
    """Of features with a spread that a hardly trained VAE knows nothing of."""
    laboratory = lab("etag", {"generator": {"decoder_noise": True}})
    laboratory.begin(0)
    generator, task = laboratory.method.generator, laboratory.task(0)
    draws = torch.Generator().manual_seed(0)
    labels = torch.arange(task.num_seen).repeat_interleave(300)
    width = generator.network.decoder_out.out_features
    features = 20 + labels[:, None] + 2 * torch.randn(len(labels), width, generator=draws)
    cached = CachedFeatures(features[None], labels)
    plan = generator.learn(task, cached, {"kl": 1.0, "recon": 1.0}, laboratory.method.solver.head, Stream.root(0))
    assert [phase.name for phase in plan] == ["generator"], "what it leaves out is measured after its training"

    def normal(purpose, size):
        return torch.randn(len(labels), size, generator=draws)

    with torch.no_grad():
        made = generator.sample(labels, normal)
    for label in range(task.num_seen):
        own = labels == label
        torch.testing.assert_close(made[own].mean(0), features[own].mean(0), atol=0.7, rtol=0)
        assert made[own].var(0).mean() == pytest.approx(features[own].var(0).mean().item(), rel=0.15)


def test_without_decoder_noise_the_decoders_mean_is_replayed(at_task):
    laboratory, _ = at_task(1)
    generator, batch = laboratory.method.generator, next(laboratory.works(1)["solver"].batches.epoch(0))
    labels, made = generator.replay(batch, laboratory.task(1), 6)
    codes = batch.draws.normal("replay codes", 6, generator.network.latent)
    assert torch.equal(made, generator.old.network.decode(codes, labels).detach())
