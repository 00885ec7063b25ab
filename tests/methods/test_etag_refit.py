"""The head, trained once more on features alone, or computed from them (`refit`)."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from etag.core.errors import EtagError
from etag.experiments.config import resolve
from etag.methods.parts import refit
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.penalty import PENALTIES
from etag.methods.parts.refit import RidgeRefit, TrainedRefit
from etag.methods.registry import METHODS

REFIT = {"refit": {"steps": 4, "batch_size": 8, "lr": 1e-2}}


@pytest.fixture
def begun(lab, disturb):
    """A laboratory whose second task has begun, with networks that are no longer as they were built."""

    def make(name="gfr", tasks=2, **options):
        laboratory = lab(name, REFIT | options)
        if name == "b4":
            laboratory.learn(*range(tasks - 1))  # prototypes exist only after training
            laboratory.begin(tasks - 1)
            return laboratory
        for index in range(tasks):
            laboratory.begin(index)
            for part in laboratory.method.parts.values():
                disturb(part, key=index)
        return laboratory

    return make


def naive_terms(naive, laboratory, batch, weight):
    """Eq. (5) on features: cross-entropies over all seen classes."""
    method, task = laboratory.method, laboratory.task(1)
    labels, generated = method.generator.replay(batch, task, batch.total)
    assert set(labels.tolist()) <= set(range(task.num_old))
    head, seen = method.solver.head, range(task.num_seen)
    new = naive.cross_entropy(naive.head(head, batch.inputs), batch.labels.tolist(), seen)
    old = naive.cross_entropy(naive.head(head, generated), labels.tolist(), seen)
    return {"ce": new, "replay": weight * old}


def computed(laboratory):
    phase = laboratory.works(1)["head"]
    batch = next(phase.batches.epoch(0))
    with torch.no_grad():
        return batch, {name: value.item() for name, value in phase.module(batch).items()}


def test_it_comes_after_the_solver_of_later_tasks_and_before_the_generator(begun):
    assert list(begun().works(1)) == ["solver", "features", "head", "generator"]
    assert "head" not in begun(tasks=1).works(0)


@pytest.mark.parametrize(
    ("options", "weight"),
    [
        ({}, 3 / 2),  # three old classes, two new ones
        ({"lambda_ce": 4.0}, 4.0),
        ({"lambda_ce": 0.5}, 0.5),
        ({"fidelity": {"ratio": "integer"}}, 1.0),  # 3 // 2 + 1 - 1
    ],
    ids=str,
)
def test_its_losses_are_those_of_equation_5_on_the_features_of_the_task(naive, begun, options, weight):
    laboratory = begun(**options)
    batch, terms = computed(laboratory)
    assert terms == pytest.approx(naive_terms(naive, laboratory, batch, weight), rel=1e-5)
    assert min(terms.values()) > 1e-3


def test_only_the_head_is_trained(begun):
    laboratory = begun()
    phase, solver = laboratory.works(1)["head"], laboratory.method.solver
    before = {name: value.clone() for name, value in solver.state_dict().items()}
    laboratory.engine.train(phase)
    changed = {name for name, value in solver.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all(name.startswith("head.") for name in changed)


def test_it_works_with_prototypes(naive, begun):
    laboratory = begun("b4")
    assert list(laboratory.works(1)) == ["solver", "features", "head"]
    batch, terms = computed(laboratory)
    assert terms == pytest.approx(naive_terms(naive, laboratory, batch, 3 / 2), rel=1e-5)


def test_it_works_with_prototypes_through_the_engine(lab):
    laboratory = lab("b4", REFIT)
    laboratory.learn(0, 1, 2)
    assert laboratory.method.generator.network.means.shape[0] == 7


@pytest.mark.parametrize("kind", ["cvae", "wgan"])
def test_it_follows_the_last_task_though_the_generator_does_not(lab, snapshot, kind):
    generator = {"kind": kind, "last_task": False, "train": {"steps": 2, "batch_size": 8}}
    refitted, plain = (lab("gfr", {"generator": generator} | refit) for refit in (REFIT, {}))
    for laboratory in (refitted, plain):
        laboratory.learn(0, 1)
        laboratory.begin(2)
    assert list(refitted.works(2)) == ["solver", "features", "head"]
    assert list(plain.works(2)) == ["solver"]
    before = snapshot(refitted.method.generator.network)
    refitted.engine.execute(refitted.method.phases(refitted.task(2)))
    after = refitted.method.generator.network.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in after.items())


def test_a_task_with_it_ends_with_another_head_and_the_same_backbone(lab, snapshot):
    def learned(options):
        laboratory = lab("gfr", options)
        laboratory.learn(0)
        laboratory.begin(1)
        for name in ("solver", "head") if options else ("solver",):
            laboratory.engine.train(laboratory.works(1)[name])
        return snapshot(laboratory.method.solver)

    refitted, plain = learned(REFIT), learned({})
    different = {name for name, value in plain.items() if not torch.equal(value, refitted[name])}
    assert different == {name for name in plain if name.startswith("head.")}


# -- in closed form --------------------------------------------------------------------------------

RIDGE = {"refit": "ridge"}


def naive_ridge(x, y, penalty):
    """Weights and bias by the textbook formula on centered data."""
    centered, target = x - x.mean(0), y - y.mean(0)
    weight = np.linalg.inv(centered.T @ centered + penalty * np.eye(x.shape[1])) @ centered.T @ target
    return weight, y.mean(0) - x.mean(0) @ weight


def left_out(x, y, penalty):
    """The scores of each row under the solution without it."""
    rows = range(len(x))
    fits = [naive_ridge(np.delete(x, row, 0), np.delete(y, row, 0), penalty) for row in rows]
    return np.stack([x[row] @ weight + bias for row, (weight, bias) in zip(rows, fits, strict=True)])


def mean_cross_entropy(scores, y):
    return np.mean(np.log(np.exp(scores).sum(1)) - (scores * y).sum(1))


@pytest.mark.parametrize("kind", ["cvae", "wgan"])
def test_the_head_is_ridge_regression_on_new_and_generated_features(begun, kind):
    made = begun(generator={"kind": kind, "train": {"steps": 2, "batch_size": 8}}, **RIDGE)
    generator, task, head = made.method.generator, made.task(1), made.method.solver.head
    draws = torch.Generator().manual_seed(0)
    labels = torch.tensor([3, 4, 3, 4, 3, 3, 4, 4])
    features = torch.rand(2, 8, 32, generator=draws) + 0.5 * (labels[:, None] == 3)
    asked = []

    def sample(old, normal):
        asked.append(old)
        assert normal("anything", 3).shape == (len(old), 3)
        return torch.rand(len(old), 32, generator=draws) - 0.5 * old[:, None]

    generator.sample, state = sample, draws.get_state()
    plan = made.method.options.refit.plan(
        head,
        generator,
        task,
        CachedFeatures(features, labels),
        9.0,
        made.method.stream("refit"),
        made.context.placement,
    )
    assert list(plan) == [], "nothing is trained"
    assert asked[0].tolist() == [0] * 4 + [1] * 4 + [2] * 4, "as many of each old class as new classes have on average"
    draws.set_state(state)
    old = sample(*asked, lambda _, size: torch.empty(12, size))
    x = torch.cat([old, features[0]]).double().numpy()
    y = np.eye(5)[torch.cat([asked[0], labels]).numpy()]
    penalty = min(PENALTIES, key=lambda penalty: np.square(y - left_out(x, y, penalty)).sum())
    weight, bias = naive_ridge(x, y, penalty)
    computed = head.weight.detach().double().numpy()
    factor = np.sqrt(np.square(computed).sum() / np.square(weight).sum())
    np.testing.assert_allclose(computed, factor * weight.T, rtol=1e-4, atol=1e-6)
    own_bias = torch.cat([block.bias for block in head.blocks]).detach().numpy()
    np.testing.assert_allclose(own_bias, factor * bias, rtol=1e-4, atol=1e-5)
    scores = left_out(x, y, penalty)
    smooth = 1 / (len(y) + 2)
    targets = (1 - smooth) * y + smooth / 5
    losses = [mean_cross_entropy(factor * change * scores, targets) for change in (1.0, 0.9, 1.1)]
    assert losses[0] == min(losses), "the softmax of left-out scores is calibrated"


def test_the_generated_features_come_from_the_old_generator(lab):
    made = lab("gfr", RIDGE)
    made.learn(0)
    made.begin(1)
    generator, seen = made.method.generator, []
    sample = generator.sample
    generator.sample = lambda labels, normal: seen.append((labels, sample(labels, normal))) or seen[-1][1]
    made.works(1)
    (labels, generated), stream = seen[0], made.method.stream("refit", 0)
    codes = torch.randn(len(labels), 5, generator=stream.torch_generator("replay codes"))
    with torch.no_grad():
        torch.testing.assert_close(generated, generator.old.network.decode(codes, labels))
    assert not generated.requires_grad


def test_many_features_are_added_up_in_parts(begun, monkeypatch):
    """The head is that of all features at once; penalty and temperature are chosen on a share of them."""
    made = begun(generator={"train": {"steps": 2, "batch_size": 8}}, **RIDGE)
    features, labels = torch.rand(1, 40, 32, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2 + 3
    generator, head, drawn = made.method.generator, made.method.solver.head, []
    monkeypatch.setattr(refit, "AT_A_TIME", 16)

    def sample(old, normal):
        drawn.append((old, normal("codes", 32)))
        return drawn[-1][1].abs() + old[:, None]

    def weights():
        drawn.clear()
        plan = RidgeRefit().plan(
            head,
            generator,
            made.task(1),
            CachedFeatures(features, labels),
            1.0,
            made.method.stream("refit"),
            made.context.placement,
        )
        assert list(plan) == []
        return head.weight.detach().double().clone()

    generator.sample = sample
    weights()
    assert [len(old) for old, _ in drawn] == [16, 16, 16, 12]
    assert not torch.equal(drawn[0][1], drawn[1][1]), "every part has draws of its own"
    x = torch.cat([sample(old, lambda *_, noise=noise: noise) for old, noise in list(drawn)] + [features[0]])
    y = torch.cat([old for old, _ in drawn[:4]] + [labels])
    expected = naive_ridge(x.double().numpy(), np.eye(5)[y.numpy()], 1.0)[0].T
    monkeypatch.setattr(refit, "PENALTIES", (1.0,))
    for most in (100, 10):  # rows that are left out
        monkeypatch.setattr(refit, "LEFT_OUT", most)
        found = weights()
        np.testing.assert_allclose(found / found.norm(), expected / np.linalg.norm(expected), rtol=1e-4, atol=1e-6)


def test_it_follows_every_task_and_the_next_one_starts_from_it(lab):
    made = lab("etag", RIDGE)
    made.begin(0)
    before = made.method.solver.head.weight.detach().clone()
    assert list(made.works(0)) == ["solver", "features", "generator"]
    assert not torch.equal(made.method.solver.head.weight, before)
    made.learn(1)
    assert made.method.solver.head.block_sizes == [3, 2]
    assert made.method.generate_features(torch.tensor([0, 4])).shape == (2, 32)


def test_with_a_frozen_backbone_the_solver_is_not_trained_and_the_base_task_equals_ridge(lab):
    def frozen(name, options):
        made = lab(name, options)
        made.context = replace(made.context, model=made.context.model.model_copy(update={"train": "head"}))
        made.method = type(made.method)(made.method.options, made.context)
        return made

    computed, ridge = frozen("gfr", RIDGE), frozen("ridge", {})
    for made in (computed, ridge):
        made.learn(0)
    computed.begin(1)
    assert list(computed.works(1)) == ["features", "generator"]
    rule, weight = ridge.method.rule, computed.method.teacher.network.head.weight
    torch.testing.assert_close(weight / weight.norm(), rule.weight / rule.weight.norm(), rtol=1e-4, atol=1e-5)


def test_a_name_or_options_of_training_choose_how(lab):
    options = METHODS["gfr"].Options
    assert options(name="gfr", refit="ridge").refit == RidgeRefit()
    assert options(name="gfr", refit={"steps": 7}).refit == TrainedRefit(steps=7)
    assert lab("gfr", {"refit": {"kind": "train", "steps": 7}}).method.options.refit.steps == 7
    settings = ["method.refit=ridge"]
    assert resolve("learn-pretrained", {"method": "gfr"}, settings).method.refit == RidgeRefit()
    assert resolve("learn-pretrained", {"method": "gfr"}, ["method.refit.steps=7"]).method.refit.steps == 7
    with pytest.raises(EtagError, match=r"unknown option 'method.refit.stepz': did you mean 'steps'"):
        resolve(given={"method": "gfr"}, settings=["method.refit.stepz=7"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"generator": "prototypes"}, "choose generator=cvae, wgan or gaussians"),
        ({"head": {"bias": False}}, "set head to its defaults"),
        ({"head": {"growth": "fixed"}}, "set head to its defaults"),
    ],
    ids=str,
)
def test_what_it_does_not_work_with(changes, words):
    with pytest.raises(ValidationError, match=words):
        METHODS["gfr"].Options(name="gfr", **RIDGE, **changes)
