from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from etag.core.random import Placement
from etag.methods.parts.cached_features import CachedFeatures

OPTIONS = {"generator": {"kind": "wgan", "critic_steps": 2, "last_task": True}}


@pytest.fixture
def at_task(lab, disturb):
    """A laboratory whose task has begun, with old and new networks that differ; and that task's generator phase."""

    def make(index, **generator):
        laboratory = lab("gfr", {"generator": OPTIONS["generator"] | generator})
        for begun in range(index + 1):
            laboratory.begin(begun)
            for part in laboratory.method.parts.values():
                disturb(part, key=begun)
        return laboratory, laboratory.works(index)["generator"]

    return make


def batch_of(phase):
    return next(phase.batches.epoch(0))


def terms_of(phase, group):
    with torch.no_grad():
        return {name: value.item() for name, value in phase.module(batch_of(phase), group=group).items()}


# -- the losses, one number at a time --------------------------------------------------------------


def slope(values):
    return np.where(values > 0, 1.0, 0.2)


class NaiveGan:
    """The forward pass of both networks, and the critic's gradient, as matrices."""

    def __init__(self, naive, gan):
        self.naive, self.g, self.c = naive, gan.generator, gan.critic

    def decode(self, codes, labels):
        first = self.naive.conditional(self.g.first, np.asarray(codes, np.float64), labels)
        second = self.naive.linear(self.g.second, first * slope(first))
        return np.maximum(self.naive.linear(self.g.last, second * slope(second)), 0)

    def critic(self, x, labels):
        """What it says of each row, and its gradient there."""
        first = self.naive.linear(self.c.first, x)
        second = self.naive.linear(self.c.second, first * slope(first))
        vectors = self.naive.matrix(*(block.weight for block in self.c.classes))[np.asarray(labels)]
        direction = vectors + self.naive.matrix(self.c.score.weight)
        said = (direction * second * slope(second)).sum(1) + self.c.score.bias.item()
        back = (direction * slope(second)) @ self.naive.matrix(self.c.second.weight)
        return said, (back * slope(first)) @ self.naive.matrix(self.c.first.weight)


def naive_terms(naive, laboratory, index, batch, group):
    method, task, rows = laboratory.method, laboratory.task(index), len(batch.labels)
    gan, labels, draws = NaiveGan(naive, method.generator.network), batch.labels.tolist(), batch.draws
    made = gan.decode(draws.normal(f"{group} codes", rows, 5), labels)
    if group == "critic":
        real = batch.inputs.double().numpy()
        share = draws.uniform("between", rows, 1).double().numpy()
        _, gradient = gan.critic(real + share * (made - real), labels)
        lengths = np.sqrt((gradient**2).sum(1))
        return {
            "wasserstein": gan.critic(made, labels)[0].mean() - gan.critic(real, labels)[0].mean(),
            "penalty": method.options.generator.penalty * ((lengths - 1) ** 2).mean(),
        }
    terms = {"generated": -gan.critic(made, labels)[0].mean()}
    if index:
        old_labels = draws.integers("old labels", 0, task.num_old, rows).tolist()
        codes = draws.normal("old codes", rows, 5)
        wanted = NaiveGan(naive, method.generator.old.network).decode(codes, old_labels)
        weight = method.options.generator.match_factor * task.num_old / task.num_new
        terms["match"] = weight * ((gan.decode(codes, old_labels) - wanted) ** 2).sum()
    return terms


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("group", ["critic", "generator"])
def test_each_group_minimizes_its_own_terms(naive, at_task, group, index):
    laboratory, phase = at_task(index, penalty=3.0, match_factor=0.5)
    expected = naive_terms(naive, laboratory, index, batch_of(phase), group)
    assert terms_of(phase, group) == pytest.approx(expected, rel=1e-4)
    assert all(value != 0 for value in expected.values())


def test_the_weights_are_gfrs_by_default(at_task):
    options = at_task(0)[0].method.options.generator
    assert (options.penalty, options.match_factor, options.train.betas) == (10.0, 1e-3, (0.5, 0.999))
    assert type(options)().critic_steps == 5
    assert not type(options)().last_task


def test_codes_of_the_two_groups_are_different(at_task):
    draws = batch_of(at_task(0)[1]).draws
    assert not torch.equal(draws.normal("critic codes", 4, 5), draws.normal("generator codes", 4, 5))


def test_the_distance_is_zero_where_the_generator_is_the_old_one(at_task):
    laboratory, phase = at_task(1)
    generator = laboratory.method.generator
    state = generator.network.state_dict()
    for key, value in generator.old.network.state_dict().items():
        state[key][: len(value)] = value  # rows of new classes stay
    assert terms_of(phase, "generator")["match"] == 0


@pytest.mark.parametrize("group", ["critic", "generator"])
def test_the_mean_over_two_processes_is_what_one_computes(at_task, group):
    laboratory, _ = at_task(1)
    method, task, terms = laboratory.method, laboratory.task(1), []
    found = laboratory.engine.run_pass(method.features_pass("features", task.train, 2))
    features = CachedFeatures.from_pass(found, len(task.train))
    for placement in (Placement(), Placement(rank=0, world=2), Placement(rank=1, world=2)):
        method.generator._placement = placement
        weights = method.generator_weights(task)
        phase = method.generator.phase(task, features, weights, method.solver.head, method.stream("generator"))
        terms.append(terms_of(phase, group))
    alone, *shares = terms
    assert {name: (shares[0][name] + shares[1][name]) / 2 for name in alone} == pytest.approx(alone, rel=1e-4)


# -- who learns from what --------------------------------------------------------------------------


def pulled(module):
    named = module.named_parameters()
    return {name for name, parameter in named if parameter.grad is not None and parameter.grad.any()}


def test_the_critics_terms_leave_the_generator_without_gradient(at_task):
    laboratory, phase = at_task(1)
    gan = laboratory.method.generator.network.requires_grad_(True)
    for term in ("wasserstein", "penalty"):
        gan.zero_grad()
        phase.module(batch_of(phase), group="critic")[term].backward()
        assert pulled(gan.generator) == set()
        # biases cancel or have no slope; rows of old classes see no data
        assert {"first.weight", "second.weight", "score.weight", "classes.1.weight"} <= pulled(gan.critic)


def test_the_generator_learns_through_the_critic_and_from_its_old_self(at_task):
    laboratory, phase = at_task(1)
    gan, old = laboratory.method.generator.network.requires_grad_(True), laboratory.method.generator.old
    layers = {"first.linear.weight", "second.weight", "last.weight"}
    for term, classes in (("generated", slice(3, 5)), ("match", slice(0, 3))):
        gan.zero_grad()
        phase.module(batch_of(phase), group="generator")[term].backward()
        assert layers <= pulled(gan.generator)
        assert gan.generator.first.rows.grad[classes].any()
    assert pulled(gan.critic) == set()  # the distance does not involve the critic
    assert all(parameter.grad is None for parameter in old.parameters())


class Watch:
    """Records, at every call of a phase's module, its group, and before it both networks with their gradients."""

    def __init__(self, phase, gan):
        self.gan, self.groups, self.states = gan, [], []
        phase.module.register_forward_pre_hook(self.note, with_kwargs=True)

    def note(self, _, __, options):
        self.groups.append(options["group"])
        self.states.append(self.state())

    def state(self):
        return {
            name: ([p.detach().clone() for p in part.parameters()], [deepcopy(p.grad) for p in part.parameters()])
            for name, part in (("critic", self.gan.critic), ("generator", self.gan.generator))
        }


def same(one, other):
    pairs = zip(one, other, strict=True)
    return all((a is None and b is None) or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


@pytest.fixture
def watched(at_task):
    """Six steps through the engine, all of which were watched."""
    laboratory, phase = at_task(1)
    watch = Watch(phase, laboratory.method.generator.network)
    laboratory.engine.train(replace(phase, training=phase.training.model_copy(update={"steps": 6})))
    return watch


def test_the_generator_is_updated_every_few_batches_after_the_critic(watched):
    assert watched.groups == ["critic", "generator", "critic"] * 3


def test_a_step_of_one_group_leaves_the_other_as_it_is(watched):
    for group, before, after in zip(watched.groups, watched.states, watched.states[1:], strict=False):
        other = {"critic": "generator", "generator": "critic"}[group]
        assert not same(before[group][0], after[group][0])
        assert not same(before[group][1], after[group][1])
        assert same(before[other][0], after[other][0])
        assert same(before[other][1], after[other][1])  # what its own last step left


def test_the_solver_and_the_old_generator_rest(at_task, snapshot):
    laboratory, phase = at_task(1)
    method = laboratory.method
    resting = {"solver": method.solver, "teacher": method.teacher, "old": method.generator.old}
    before = {name: snapshot(module) for name, module in resting.items()}
    laboratory.engine.train(phase)
    for name, module in resting.items():
        for key, value in module.state_dict().items():
            assert torch.equal(value, before[name][key]), (name, key)


def test_what_is_replayed_comes_from_the_old_generator(at_task, naive):
    laboratory, phase = at_task(1)
    generator, task, batch = laboratory.method.generator, laboratory.task(1), batch_of(phase)
    labels, features = generator.replay(batch, task, 20)
    codes = batch.draws.normal("replay codes", 20, 5)
    expected = NaiveGan(naive, generator.old.network).decode(codes, labels)
    torch.testing.assert_close(features.double(), torch.from_numpy(expected), rtol=1e-4, atol=1e-5)
    assert set(labels.tolist()) == {0, 1, 2}
    assert not features.requires_grad


def test_a_critic_learns_to_tell_generated_features_from_real_ones(at_task):
    laboratory, phase = at_task(0, critic_steps=1000)
    before = terms_of(phase, "critic")["wasserstein"]
    training = phase.training.model_copy(update={"steps": 30, "lr": 1e-2})
    laboratory.engine.train(replace(phase, training=training))
    assert terms_of(phase, "critic")["wasserstein"] < before
