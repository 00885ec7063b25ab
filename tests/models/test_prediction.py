"""The prediction rules: scores of the classes from features, and how a rule is built again from its description."""

import json
import math

import pytest
import torch

from etag.core.random import Stream
from etag.models.class_vaes import ClassVAEs
from etag.models.feature_scale import FeatureScale
from etag.models.heads import LinearHead
from etag.models.initial import build
from etag.models.modules import Modules
from etag.models.prediction import (
    ClassScores,
    CosineRule,
    HeadRule,
    HiddenLayersRule,
    LikelihoodRule,
    LinearRule,
    MahalanobisRule,
    PerTaskRule,
    PredictionRule,
    RectifiedRule,
)
from etag.models.replay_network import HiddenLayers
from etag.models.structure import build_empty, describe


def numbers(*shape):
    return torch.randn(*shape, generator=Stream.root(0).torch_generator(*shape))


def head_of(*blocks, features=None):
    """A head with blocks of so many outputs; by default its outputs are its inputs, so that features are logits."""
    head = LinearHead(features or sum(blocks), has_bias=features is not None)
    for number, outputs in enumerate(blocks):
        head.grow(outputs, Stream.root(0).torch_generator("head", number))
    if features is None:
        with torch.no_grad():
            for block, rows in zip(head.blocks, torch.eye(sum(blocks)).split(blocks), strict=True):
                block.weight.copy_(rows)
    return head


def naive_log_softmax(naive, rows):
    return torch.tensor([naive.log_softmax(row) for row in rows])


# -- one head --------------------------------------------------------------------------------------


def test_of_every_four_outputs_the_first_is_the_score_of_the_class():
    logits = numbers(5, 16)  # four classes, three of them seen
    scores = HeadRule(head_of(16), classes=3, outputs_per_class=4)(logits)
    assert torch.equal(scores, logits[:, [0, 4, 8]])


def test_by_default_every_output_is_a_class():
    logits = numbers(5, 4)
    assert torch.equal(HeadRule(head_of(4), 3)(logits), logits[:, :3])
    assert torch.equal(HeadRule(head_of(4), 4)(logits), logits)


# -- one head per task -----------------------------------------------------------------------------


def test_every_head_has_a_softmax_of_its_own(naive):
    logits = numbers(5, 8)  # the last two outputs belong to no task yet
    rows = naive.rows(logits)
    heads = [naive_log_softmax(naive, [row[first:end] for row in rows]) for first, end in ((0, 3), (3, 4), (4, 6))]
    torch.testing.assert_close(PerTaskRule(head_of(3, 1, 2, 2), [3, 1, 2])(logits), torch.cat(heads, dim=1))


def test_the_highest_probability_wins_not_the_highest_logit():
    logits = torch.tensor([[9.0, 8.9, 3.0, -3.0]])
    assert PerTaskRule(head_of(2, 2), [2, 2])(logits).argmax(1).tolist() == [2]
    assert HeadRule(head_of(2, 2), 4)(logits).argmax(1).tolist() == [0]


def test_the_prediction_over_heads_is_that_of_their_probabilities():
    """The rule before scores became logarithms: the highest softmax over all heads."""
    logits = 5 * numbers(400, 7)
    heads = torch.split(logits, [3, 2, 2], dim=1)
    by_probability = torch.cat([head.softmax(1) for head in heads], dim=1).argmax(1)
    assert torch.equal(PerTaskRule(head_of(3, 2, 2), [3, 2, 2])(logits).argmax(1), by_probability)
    assert len(by_probability.unique()) == 7


# -- IL2M ------------------------------------------------------------------------------------------


def rectified(*tasks):
    """The rule after tasks with these (initial, current_old, confidence)."""
    scores = ClassScores()
    for initial, current_old, confidence in tasks:
        scores.add_task(torch.tensor(initial), torch.tensor(current_old), torch.tensor(confidence))
    return RectifiedRule(head_of(len(scores.initial)), scores)


# classes 0 and 1 once had mean scores of 4 and 2, and now have 2 and 4; confidence went from 5 to 4
TWO_TASKS = (([4.0, 2.0], [], 5.0), ([3.0], [2.0, 4.0], 4.0))


def test_where_a_new_class_would_win_old_classes_get_their_scores_back():
    scores = rectified(*TWO_TASKS)(torch.tensor([[2.0, 1.0, 3.0]]))
    expected = [2.0 * (4 / 2) * (4 / 5), 1.0 * (2 / 4) * (4 / 5), 3.0]  # 3.2, 0.4, 3
    torch.testing.assert_close(scores, torch.tensor([expected]))
    assert scores.argmax(1).tolist() == [0]


def test_where_an_old_class_wins_nothing_is_changed():
    logits = torch.tensor([[3.0, 1.0, 2.0], [0.5, 2.0, 1.9], [2.0, 1.0, 3.0]])
    scores = rectified(*TWO_TASKS)(logits)
    assert torch.equal(scores[:2], logits[:2])
    assert not torch.equal(scores[2], logits[2])


def test_outputs_of_classes_to_come_are_left_out():
    scores = rectified(*TWO_TASKS).scores
    larger = RectifiedRule(head_of(3, 2), scores)
    expected = rectified(*TWO_TASKS)(torch.tensor([[2.0, 1.0, 3.0]]))
    assert torch.equal(larger(torch.tensor([[2.0, 1.0, 3.0, 9.0, 9.0]])), expected)


def test_at_the_base_task_all_classes_are_new_and_have_their_own_scores():
    logits = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    assert torch.equal(rectified(TWO_TASKS[0])(logits), logits)


@pytest.mark.parametrize(
    ("tasks", "factors"),
    [
        ((([-4.0, 2.0], [], 5.0), ([3.0], [2.0, 4.0], 4.0)), [1, 0.4, 1]),  # a mean that was negative
        ((([0.0, 2.0], [], 5.0), ([3.0], [2.0, 4.0], 4.0)), [1, 0.4, 1]),  # or zero
        ((([4.0, 2.0], [], 5.0), ([3.0], [0.0, 4.0], 4.0)), [1, 0.4, 1]),  # a mean that is zero now
        ((([4.0, 2.0], [], 5.0), ([3.0], [-2.0, 4.0], 4.0)), [1, 0.4, 1]),  # or negative
        ((([-4.0, 2.0], [], 5.0), ([3.0], [-2.0, 4.0], 4.0)), [1, 0.4, 1]),  # both: their ratio means nothing
        ((([4.0, 2.0], [], -5.0), ([3.0], [2.0, 4.0], 4.0)), [1, 1, 1]),  # confidence
        ((([4.0, 2.0], [], 5.0), ([3.0], [2.0, 4.0], 0.0)), [1, 1, 1]),
    ],
)
def test_means_that_allow_no_ratio_leave_the_score(tasks, factors):
    rule = rectified(*tasks)
    assert rule.scores.factors.tolist() == pytest.approx(factors)
    scores = rule(torch.tensor([[1.0, 1.0, 2.0]]))
    torch.testing.assert_close(scores, torch.tensor([[factors[0], factors[1], 2.0]]))


THREE_TASKS = (([4.0, 2.0], [], 5.0), ([3.0], [2.0, 4.0], 4.0), ([1.0, 2.0], [1.0, 8.0, 6.0], 10.0))


def test_every_class_is_measured_by_the_confidence_of_its_own_task():
    rule = rectified(*THREE_TASKS)
    expected = [(4 / 1) * (10 / 5), (2 / 8) * (10 / 5), (3 / 6) * (10 / 4), 1, 1]
    assert rule.scores.factors.tolist() == pytest.approx(expected)
    assert rule.scores.task.tolist() == [0, 0, 1, 2, 2]
    middle = torch.tensor([[1.0, 1.0, 5.0, 2.0, 2.0]])  # class 2 is no longer new
    assert torch.equal(rule(middle), middle)


def test_the_scores_are_saved_and_loaded_into_an_empty_store():
    learned, fresh = rectified(*THREE_TASKS).scores, ClassScores()
    fresh.load_state_dict(learned.state_dict())
    assert torch.equal(fresh.factors, learned.factors)
    assert not torch.equal(fresh.factors, torch.ones(5))
    for scores in (learned, fresh):
        scores.add_task(torch.tensor([2.0]), torch.ones(5), torch.tensor(3.0))  # and a further task can follow
    assert torch.equal(fresh.factors, learned.factors)


# -- likelihoods and hidden layers ------------------------------------------------------------------


def likelihoods(samples):
    groups = [
        build(
            lambda count=count: ClassVAEs(count, 6, latent=2, hidden=5), Stream.root(0).torch_generator("vaes", count)
        )
        for count in (3, 2)
    ]
    scale = FeatureScale(6)
    scale.fit(numbers(20, 6) * 3 + 1)
    return LikelihoodRule(scale, Modules(groups), samples)


def test_likelihoods_are_those_of_each_class_on_scaled_features():
    rule, features = likelihoods("mean"), numbers(4, 6)
    scores = rule(features)
    assert scores.shape == (4, 5)
    scaled = rule.scale(features)
    apart = [vaes.log_likelihoods(scaled, torch.zeros(1, 2)) for vaes in rule.classes]
    assert torch.equal(scores, torch.cat(apart, dim=1))
    assert not torch.equal(scores, torch.cat([v.log_likelihoods(features, torch.zeros(1, 2)) for v in rule.classes], 1))


def test_sampled_likelihoods_use_the_same_draws_every_time():
    rule, features = likelihoods(8), numbers(4, 6)
    state = torch.random.get_rng_state()
    assert torch.equal(rule(features), rule(features))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not torch.equal(rule(features), likelihoods(9)(features))


def hidden(features=6, width=5):
    scale = FeatureScale(features)
    scale.fit(numbers(20, features) * 3 + 1)
    encoder = build(lambda: HiddenLayers(features, width), Stream.root(0).torch_generator("encoder"))
    return HiddenLayersRule(scale, encoder, head_of(3, 2, features=width))


def test_hidden_layers_come_after_the_scale_and_before_the_head():
    rule, features = hidden(), numbers(4, 6)
    scaled = (features - rule.scale.mean) / rule.scale.deviation
    torch.testing.assert_close(rule(features), rule.head(rule.encoder(scaled)))
    assert rule(features).shape == (4, 5)


def filled(rule, **shapes):
    """A rule with stored numbers of these shapes."""
    rule.store(**{name: numbers(*shape) for name, shape in shapes.items()})
    return rule


# -- descriptions ----------------------------------------------------------------------------------

RULES = {
    "HeadRule": lambda: HeadRule(head_of(3, 2, features=6), 2, 2),
    "PerTaskRule": lambda: PerTaskRule(head_of(3, 2, features=6), [3, 2]),
    "RectifiedRule": lambda: RectifiedRule(head_of(2, 1, 2, features=6), rectified(*THREE_TASKS).scores),
    "LikelihoodRule": lambda: likelihoods(4),
    "HiddenLayersRule": hidden,
    "CosineRule": lambda: filled(CosineRule(6), means=(5, 6)),
    "LinearRule": lambda: filled(LinearRule(6, 4), weight=(5, 4), bias=(5,), directions=(6, 4)),
    "MahalanobisRule": lambda: filled(
        MahalanobisRule(6, 0.5), means=(5, 6), scales=(5, 6), directions=(5, 6, 2), weights=(5, 2)
    ),
}


def test_every_rule_is_tried():
    assert {cls.__name__ for cls in PredictionRule.__subclasses__() if cls.__module__.startswith("etag.")} == set(RULES)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_built_again_from_its_description(name):
    rule, features = RULES[name](), numbers(7, 6)
    again = build_empty(json.loads(json.dumps(describe(rule))))
    again.load_state_dict(rule.state_dict())
    assert type(again) is type(rule)
    assert describe(again) == describe(rule)
    assert torch.equal(again(features), rule(features))
    assert math.isfinite(rule(features).sum().item())
