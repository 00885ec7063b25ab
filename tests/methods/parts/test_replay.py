from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from etag.core.outputs import Need
from etag.core.random import Placement
from etag.data.batches import ImageBatches
from etag.methods.parts.replay import GeneratorOptions

RELEASE = {
    "ratio": "integer",
    "head": "fixed",
    "generator": {
        "recon": "squared",
        "ce_current_input": "reconstruction",
        "ce_current_support": "all",
        "ce_current_weight": "normalised",
        "ce_old": True,
        "old_match_weight": 1e-3,
        "old_match_reduction": "batch_sum",
    },
}


@pytest.fixture
def at_task(lab, disturb):
    """A laboratory whose task has begun, with old and new networks that differ; and that task's generator phase."""

    def make(index, options=None):
        laboratory = lab("etag", options)
        for begun in range(index + 1):
            laboratory.begin(begun)
            for part in laboratory.method.parts().values():
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
    options, generator, head = method.options.generator, method.replay.generator, method.solver.head
    rows, draws, labels = len(batch.labels), batch.draws, batch.labels.tolist()
    ratio = task.old / task.new
    if method.options.ratio == "integer":
        ratio = task.base // task.new + index - 1

    mean, log_variance = naive.encode(generator, batch.inputs, labels)
    noise = draws.normal("posterior", rows, options.latent).double().numpy()
    reconstructed = naive.decode(generator, mean + noise * np.sqrt(np.exp(log_variance)), labels)
    sampled = naive.decode(generator, draws.normal("prior", rows, options.latent), labels)
    guided = sampled if options.ce_current_input == "prior" else reconstructed
    competing = naive.outputs_in(options.ce_current_support, task, head)
    half = 0.5 if options.recon == "gaussian" else 1
    terms = {
        "kl": naive.prior_divergence(mean, log_variance),
        "recon": half * sum(naive.squares(reconstructed, batch.inputs)) / rows,
        "guide": naive.cross_entropy(naive.head(head, guided), labels, competing),
    }
    if index == 0:
        return terms
    if options.ce_current_weight == "normalised":
        terms["guide"] /= 1 + ratio
    old_labels = draws.integers("old labels", 0, task.old, rows).tolist()
    codes = draws.normal("old codes", rows, options.latent)
    made, wanted = (naive.decode(vae, codes, old_labels) for vae in (generator, method.replay.old.network))
    weight = ratio if method.options.lambda_vae is None else method.options.lambda_vae
    per_row = 0.5 / rows if options.old_match_reduction == "gaussian" else 1
    terms["match"] = weight * options.old_match_weight * per_row * sum(naive.squares(made, wanted))
    if options.ce_old:
        every = naive.outputs_in("all" if options.ce_current_support == "all" else "seen", task, head)
        terms["guide_old"] = ratio / (1 + ratio) * naive.cross_entropy(naive.head(head, made), old_labels, every)
    return terms


# what an option is compared with, its other value, and the terms that must change
SWITCHES = {
    "ratio": ({}, {"ratio": "integer"}, {"match"}),
    "ratio in guidance": (
        {"generator": {"ce_current_weight": "normalised", "ce_old": True}},
        {"ratio": "integer", "generator": {"ce_current_weight": "normalised", "ce_old": True}},
        {"match", "guide", "guide_old"},
    ),
    "lambda_vae": ({}, {"lambda_vae": 4.0}, {"match"}),
    "lambda_vae beside guidance": (
        {"generator": {"ce_current_weight": "normalised", "ce_old": True}},
        {"lambda_vae": 4.0, "generator": {"ce_current_weight": "normalised", "ce_old": True}},
        {"match"},
    ),
    "recon": ({}, {"generator": {"recon": "squared"}}, {"recon"}),
    "ce_current_input": ({}, {"generator": {"ce_current_input": "reconstruction"}}, {"guide"}),
    "ce_current_support new": ({}, {"generator": {"ce_current_support": "new"}}, {"guide"}),
    "ce_current_support all": (
        {"head": "fixed"},
        {"head": "fixed", "generator": {"ce_current_support": "all"}},
        {"guide"},
    ),
    "ce_current_weight": ({}, {"generator": {"ce_current_weight": "normalised"}}, {"guide"}),
    "ce_old": ({}, {"generator": {"ce_old": True}}, {"guide_old"}),
    "old_match_weight": ({}, {"generator": {"old_match_weight": 0.001}}, {"match"}),
    "old_match_reduction": ({}, {"generator": {"old_match_reduction": "batch_sum"}}, {"match"}),
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


@pytest.mark.parametrize("options", [{}, RELEASE], ids=["paper", "release"])
def test_the_mean_over_two_processes_is_what_one_computes(at_task, options):
    laboratory, _ = at_task(1, options)
    method, task, found = laboratory.method, laboratory.task(1), []
    swept = laboratory.engine.sweep(method.replay.features(task, method.solver, method.stream("features")))
    weights = method.generator_weights(task, 1.5)
    for placement in (Placement(), Placement(rank=0, world=2), Placement(rank=1, world=2)):
        method.replay.context = replace(method.context, placement=placement)
        phase = method.replay.phase(task, method.solver.head, swept, weights, method.stream("generator"))
        found.append(computed(phase)[1])
    alone, *shares = found
    assert {name: (shares[0][name] + shares[1][name]) / 2 for name in alone} == pytest.approx(alone, rel=1e-4)


# -- what is trained, and what is not --------------------------------------------------------------


def gradients(laboratory, phase, term):
    """Names of the parameters that a term pulls at, once the engine has run the phase."""
    laboratory.engine.train(phase)
    parts = torch.nn.ModuleDict(laboratory.method.parts())
    parts.zero_grad()
    phase.module(next(phase.batches.epoch(0)))[term].backward()
    return {name for name, value in parts.named_parameters() if value.grad is not None and value.grad.any()}


def test_guidance_pulls_at_the_decoder_and_at_nothing_else(at_task):
    pulled = gradients(*at_task(1), term="guide")
    assert {name.split(".")[1] for name in pulled} == {"decoder_in", "decoder", "decoder_out"}


def test_guidance_of_reconstructions_reaches_the_encoder_and_never_the_head(at_task):
    pulled = gradients(*at_task(1, {"generator": {"ce_current_input": "reconstruction"}}), term="guide")
    assert {"generator.encoder.weight", "generator.mean.weight", "generator.decoder.weight"} <= pulled
    assert not any(name.startswith("solver") for name in pulled)


def test_training_the_generator_leaves_solver_and_old_generator_alone(at_task, snapshot):
    laboratory, phase = at_task(1)
    method = laboratory.method
    resting = {"solver": method.solver, "teacher": method.teacher, "old": method.replay.old}
    before = {name: snapshot(module) for name, module in resting.items()}
    learner = snapshot(method.replay.generator)
    laboratory.engine.train(phase)
    for name, module in resting.items():
        for key, value in module.state_dict().items():
            assert torch.equal(value, before[name][key]), (name, key)
    still = {key for key, value in method.replay.generator.state_dict().items() if torch.equal(value, learner[key])}
    assert still == {"encoder_in.blocks.0.weight"}  # nothing of old classes is ever encoded


@pytest.mark.parametrize(
    ("options", "old_decoder", "head"),
    [
        ({}, 1, 1),
        ({"lambda_vae": 0.0}, 0, 1),
        ({"generator": {"ce_old": True}}, 1, 2),
        ({"lambda_vae": 0.0, "generator": {"ce_old": True}}, 0, 2),
    ],
    ids=["match", "neither", "match and guidance", "guidance"],
)
def test_a_term_of_weight_zero_is_not_computed(at_task, options, old_decoder, head):
    laboratory, phase = at_task(1, options)
    asked = []
    laboratory.method.replay.old.network.decoder.register_forward_hook(lambda *_: asked.append("old decoder"))
    laboratory.method.solver.head.register_forward_hook(lambda *_: asked.append("head"))
    _, terms = computed(phase)
    assert len(terms) == 2 + old_decoder + head
    assert (asked.count("old decoder"), asked.count("head")) == (old_decoder, head)


# -- replay ----------------------------------------------------------------------------------------


def test_replayed_features_are_the_old_generators(naive, at_task):
    laboratory, phase = at_task(1)
    replay, task, batch = laboratory.method.replay, laboratory.task(1), next(phase.batches.epoch(0))
    labels, features = replay.made(batch, task, 300)
    codes = batch.draws.normal("replay codes", 300, 5)
    np.testing.assert_allclose(features, naive.decode(replay.old.network, codes, labels), atol=1e-5)
    assert not features.requires_grad
    counts = labels.bincount()
    assert len(counts) == task.old  # every old class, no new one
    assert counts.min() > 70  # uniformly: 100 each is expected


def test_the_old_generator_is_kept_as_it_was_before_it_grew(lab, snapshot):
    laboratory = lab("etag")
    laboratory.learn(0)
    before = snapshot(laboratory.method.replay.generator)
    laboratory.begin(1)
    old = laboratory.method.replay.old.network.state_dict()
    assert list(old) == list(before)
    assert all(torch.equal(value, before[key]) for key, value in old.items())


def test_what_is_replayed_differs_from_step_to_step(at_task):
    laboratory, phase = at_task(1)
    replay, task = laboratory.method.replay, laboratory.task(1)
    first, second = [
        replay.made(batch, task, 8) for epoch in range(2) for batch in list(phase.batches.epoch(epoch))[:1]
    ]
    assert not torch.equal(first[1], second[1])


# -- features for the generator --------------------------------------------------------------------


@pytest.mark.parametrize("passes", [1, 3])
def test_the_sweep_gives_the_features_of_freshly_augmented_images_pass_by_pass(lab, passes):
    laboratory = lab("etag", {"generator": {"feature_passes": passes}})
    laboratory.begin(0)
    method, task = laboratory.method, laboratory.task(0)
    sweep = method.replay.features(task, method.solver, method.stream("features"))
    swept = laboratory.engine.sweep(sweep)
    rows = len(task.train)
    assert swept["features"].shape == (passes * rows, 32)
    assert torch.equal(swept["labels"], task.train.labels.repeat(passes))
    augmented = ImageBatches(
        task.train, laboratory.preprocess, rows, method.stream("features"), method.context.placement, shuffle=False
    )
    for number in range(passes):
        (batch,) = augmented.epoch(number)
        expected = method.solver.eval()(batch.inputs, Need.FEATURE).feature
        torch.testing.assert_close(swept["features"][number * rows : (number + 1) * rows], expected)
    phase = method.replay.phase(task, method.solver.head, swept, {}, method.stream("generator"))
    for epoch in range(4):
        (batch, *_) = phase.batches.epoch(epoch)
        used = swept["features"][(epoch % passes) * rows : (epoch % passes + 1) * rows]
        for feature, label in zip(batch.inputs, batch.labels, strict=True):
            same = (used == feature).all(1)
            assert same.any()
            assert label in task.train.labels[same]


# -- options ---------------------------------------------------------------------------------------


def test_the_generator_has_a_training_of_its_own():
    training = GeneratorOptions().train
    assert (training.optimiser, training.lr, training.weight_decay) == ("adam", 1e-4, 0.0)
    assert (training.schedule, training.decay, training.decay_every, training.epochs) == ("step", 0.1, 30, 100)
    with pytest.raises(ValidationError, match="lrr"):
        GeneratorOptions(train={"lrr": 1})


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


def test_the_networks_size_is_an_option(lab):
    laboratory = lab("etag", {"generator": {"latent": 3, "hidden": 7}})
    laboratory.begin(0)
    generator = laboratory.method.replay.generator
    assert generator.mean.weight.shape == (3, 7)
    assert generator.decoder_out.weight.shape == (32, 7)


@pytest.mark.parametrize(("head", "rows"), [("growing", [3, 5, 7]), ("fixed", [7, 7, 7])])
def test_it_knows_the_classes_that_the_head_knows(lab, head, rows):
    laboratory = lab("etag", {"head": head})
    for index, expected in enumerate(rows):
        laboratory.begin(index)
        for layer in (laboratory.method.replay.generator.encoder_in, laboratory.method.replay.generator.decoder_in):
            assert sum(len(block.weight) for block in layer.blocks) == expected
