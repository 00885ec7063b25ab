import json
import math

import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.nn import functional

from etag.core.random import Stream
from etag.models.heads import CosineHead, HeadOptions, LinearHead, ProxyHead
from etag.models.structure import build_empty, describe


def grown(*blocks, bias=True):
    head = LinearHead(5, bias)
    for number, outputs in enumerate(blocks):
        head.grow(outputs, Stream.root(0).torch_generator(number))
    return head


FEATURES = torch.randn(7, 5, generator=Stream.root(1).torch_generator())


@pytest.mark.parametrize("bias", [True, False])
def test_blocks_make_one_linear_layer(bias):
    head = grown(3, 1, 2, bias=bias)
    whole = nn.Linear(5, 6, bias)
    rows = [row for block in head.blocks for row in block.weight.detach()]
    with torch.no_grad():
        whole.weight.copy_(torch.stack(rows))
        if bias:
            whole.bias.copy_(torch.stack([value for block in head.blocks for value in block.bias]))
    assert head.outputs == 6
    assert torch.equal(head(FEATURES), whole(FEATURES))
    assert any(name.endswith("bias") for name in head.state_dict()) is bias


def test_growing_leaves_the_old_outputs_as_they_were():
    head = grown(3)
    before = head(FEATURES)
    head.grow(2, Stream.root(0).torch_generator("more"))
    torch.testing.assert_close(head(FEATURES)[:, :3], before)


def test_blocks_start_from_numbers_of_their_own():
    first, second = grown(3, 3).blocks
    assert not torch.equal(first.weight, second.weight)


def test_a_frozen_block_stays_bit_for_bit_under_adam_with_weight_decay():
    head = grown(3, 2, 2)
    head.blocks[1].requires_grad_(False)
    before = [block.weight.clone() for block in head.blocks]
    adam = torch.optim.Adam(head.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(3):
        adam.zero_grad()
        functional.cross_entropy(head(FEATURES), torch.arange(7)).backward()
        adam.step()
    same = [torch.equal(block.weight, old) for block, old in zip(head.blocks, before, strict=True)]
    assert same == [False, True, False]


def test_a_row_without_gradient_in_a_shared_block_would_have_moved():
    head = grown(4)
    before = head.blocks[0].weight.clone()
    adam = torch.optim.Adam(head.parameters(), lr=0.1, weight_decay=0.1)
    head(FEATURES)[:, :2].sum().backward()
    assert torch.count_nonzero(head.blocks[0].weight.grad[2:]) == 0
    adam.step()
    assert (head.blocks[0].weight != before)[2:].all()  # why freezing goes by blocks


# -- cosines and proxies ---------------------------------------------------------------------------

KINDS = {"cosine": lambda scale=1.0: CosineHead(5, scale), "proxies": lambda scale=1.0: ProxyHead(5, 3, scale=scale)}


@pytest.fixture(params=KINDS)
def similarities(request):
    """similarities(2, 3, scale=4.0) -> a head of each kind with blocks of so many classes."""

    def make(*blocks, **options):
        head = KINDS[request.param](**options)
        for number, classes in enumerate(blocks):
            head.grow(classes, Stream.root(0).torch_generator(number))
        return head

    return make


def unit(row):
    length = math.sqrt(sum(value * value for value in row))
    return [value / length for value in row]


def naive_outputs(naive, head, features):
    """Cosines; with proxies, per class the mean of minus their squared distances, weighted by a softmax."""
    rows = [unit(row) for block in head.blocks for row in naive.rows(block.weight)]
    groups = [rows[start : start + head.proxies] for start in range(0, len(rows), head.proxies)]

    def similarity(feature, proxies):
        if not isinstance(head, ProxyHead):
            return sum(f * w for f, w in zip(feature, proxies[0], strict=True))
        near = [-(math.dist(feature, row) ** 2) for row in proxies]
        shares = [math.exp(value) for value in naive.log_softmax(near)]
        return sum(value * share for value, share in zip(near, shares, strict=True))

    made = [[similarity(unit(feature), group) for group in groups] for feature in naive.rows(features)]
    return head.scale.item() * torch.tensor(made, dtype=torch.float64)


def test_the_outputs_are_scaled_similarities(naive, similarities):
    head = similarities(2, 3, scale=4.0)
    assert head.outputs == 5
    torch.testing.assert_close(head(FEATURES).double(), naive_outputs(naive, head, FEATURES), rtol=1e-4, atol=1e-5)


def test_one_proxy_per_class_is_minus_the_squared_distance():
    proxies, cosine = ProxyHead(5, proxies=1), CosineHead(5)
    for head in (proxies, cosine):
        head.grow(4, Stream.root(0).torch_generator())
    torch.testing.assert_close(proxies(FEATURES), 2 * cosine(FEATURES) - 2)


def test_there_are_ten_proxies_per_class_by_default():
    head = ProxyHead(5)
    head.grow(2, Stream.root(0).torch_generator())
    assert (head.outputs, len(head.weight)) == (2, 20)


def test_the_length_of_a_feature_or_a_row_does_not_matter(similarities):
    head = similarities(2, 3)
    before = head(FEATURES)
    torch.testing.assert_close(head(100 * FEATURES), before)
    with torch.no_grad():
        head.blocks[1].weight.mul_(7)
    torch.testing.assert_close(head(FEATURES), before)


def test_growing_leaves_the_old_similarities_as_they_were(similarities):
    head = similarities(2)
    before = head(FEATURES)
    head.grow(3, Stream.root(0).torch_generator("more"))
    assert head(FEATURES).shape == (7, 5)
    torch.testing.assert_close(head(FEATURES)[:, :2], before)


def test_cosines_do_not_depend_on_the_scale(similarities):
    one, four = (similarities(2, 3, scale=scale) for scale in (1.0, 4.0))
    assert torch.equal(one.cosines(FEATURES), four.cosines(FEATURES))
    assert one.cosines(FEATURES).abs().max() <= 1 + 1e-6
    torch.testing.assert_close(four(FEATURES), 4 * one(FEATURES))


def test_there_is_no_bias(similarities):
    names = {name.rsplit(".", 1)[-1] for name in similarities(2, 3).state_dict()}
    assert names == {"weight", "scale"}


def test_every_row_and_the_scale_learn(similarities):
    head = similarities(2, 3)
    head(FEATURES).square().sum().backward()
    assert head.scale.grad != 0
    assert all(block.weight.grad.any(1).all() for block in head.blocks)


def test_where_old_classes_are_frozen_the_last_block_and_the_scale_learn(similarities):
    head = similarities(2, 3, 1)
    trained = {id(parameter) for parameter in head.parameters_without_old_rows}
    names = {name for name, parameter in head.named_parameters() if id(parameter) in trained}
    assert names == {"scale", "blocks.2.weight"}
    alone = similarities(2)
    assert len(alone.parameters_without_old_rows) == len(list(alone.parameters())) == 2  # at the base task all of it


def test_imprinting_sets_the_last_block_to_directions_of_the_old_rows_mean_length(similarities):
    head = similarities(2, 3, 1)
    with torch.no_grad():
        head.blocks[0].weight.mul_(5)
    before = [block.weight.clone() for block in head.blocks]
    rows = len(before[2])
    directions = torch.randn(rows, 5, generator=Stream.root(2).torch_generator())
    head.imprint(directions)
    lengths = [math.hypot(*row.tolist()) for block in before[:2] for row in block]
    mean = sum(lengths) / len(lengths)
    expected = [[mean * value for value in unit(row)] for row in directions.tolist()]
    torch.testing.assert_close(head.blocks[2].weight.detach(), torch.tensor(expected))
    assert all(torch.equal(block.weight, old) for block, old in zip(list(head.blocks)[:2], before[:2], strict=True))


def test_an_imprinted_row_has_the_highest_cosine_with_its_direction():
    head = CosineHead(5, scale=3.0)
    head.grow(2, Stream.root(0).torch_generator())
    head.grow(1, Stream.root(0).torch_generator(1))
    head.imprint(FEATURES[:1])
    assert head(10 * FEATURES[:1])[0, 2].item() == pytest.approx(3.0)
    assert head.blocks[1].weight.requires_grad


# -- options and descriptions ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind"),
    [({}, LinearHead), ({"kind": "cosine"}, CosineHead), ({"kind": "proxies", "proxies": 3}, ProxyHead)],
    ids=str,
)
def test_the_options_choose_the_head_and_whether_features_may_be_negative(options, kind):
    chosen = HeadOptions(**options, scale=2.5, bias=False)
    head = chosen.new_head(5)
    head.grow(2, Stream.root(0).torch_generator())
    assert type(head) is kind
    assert chosen.signed is (kind is not LinearHead)
    assert head.outputs == 2
    assert not any(name.endswith("bias") for name in head.state_dict())
    if kind is not LinearHead:
        assert head.scale.item() == 2.5
    assert len(head.weight) == (6 if kind is ProxyHead else 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"growth": "fixed", "kind": "cosine"}, "growth=fixed needs one linear head for all tasks"),
        ({"growth": "fixed", "kind": "proxies"}, "growth=fixed needs one linear head for all tasks"),
        ({"growth": "fixed", "per_task": True}, "growth=fixed needs one linear head for all tasks"),
        (
            {"per_task": True, "kind": "cosine"},
            "per_task=true needs linear heads: choose kind=linear instead of cosine",
        ),
        ({"per_task": True, "kind": "proxies"}, "choose kind=linear instead of proxies"),
        ({"kind": "linaer"}, "'linear', 'cosine' or 'proxies'"),
        ({"growth": "shrinking"}, "'growing' or 'fixed'"),
        ({"compare": "best"}, "'probability' or 'logit'"),
        ({"proxies": 0}, "greater than 0"),
        ({"scale": 0}, "greater than 0"),
    ],
    ids=str,
)
def test_options_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(ValidationError) as refused:
        HeadOptions(**options)
    assert message in str(refused.value)


@pytest.mark.parametrize("kind", ["linear", "no bias", "cosine", "proxies"])
def test_a_head_is_built_again_from_its_description(kind):
    heads = {
        "linear": LinearHead(5),
        "no bias": LinearHead(5, has_bias=False),
        "cosine": CosineHead(5, 3.0),
        "proxies": ProxyHead(5, proxies=3, scale=2.0),
    }
    head = heads[kind]
    for number, outputs in enumerate((3, 2)):
        head.grow(outputs, Stream.root(0).torch_generator(number))
    again = build_empty(json.loads(json.dumps(describe(head))))
    again.load_state_dict(head.state_dict())
    assert describe(again) == describe(head)
    assert again.outputs == head.outputs == 5
    assert torch.equal(again(FEATURES), head(FEATURES))


def test_a_description_of_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="unknown module 'Quadratic': load the plug-in"):
        build_empty({"module": "Quadratic", "features": 5})


def test_removing_a_class_leaves_the_rows_of_the_others():
    head = grown(3, 1, 2)
    before = head(FEATURES)
    head.remove_rows(1)
    torch.testing.assert_close(head(FEATURES), before[:, [0, 2, 3, 4, 5]])
    head.remove_rows(2)  # the only row of its block
    assert head.block_sizes == [2, 2]
    torch.testing.assert_close(head(FEATURES), before[:, [0, 2, 4, 5]])
    head.remove_rows(2, 2)
    assert head.block_sizes == [2]


def test_all_rows_are_assigned_over_blocks():
    head = grown(2, 3)
    weight, bias = torch.arange(25.0).view(5, 5), torch.arange(5.0)
    head.assign(weight, bias)
    torch.testing.assert_close(head(FEATURES), FEATURES @ weight.T + bias)
    assert head.block_sizes == [2, 3]
