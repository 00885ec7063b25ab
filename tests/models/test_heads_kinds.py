import math

import pytest
import torch

from etag.core.random import Stream
from etag.models.heads import CosineHead, ProxyHead

KINDS = {"cosine": lambda scale=1.0: CosineHead(5, scale), "proxies": lambda scale=1.0: ProxyHead(5, 3, scale=scale)}
FEATURES = torch.randn(7, 5, generator=Stream.root(1).generator())


@pytest.fixture(params=KINDS)
def grown(request):
    """grown(2, 3, scale=4.0) -> a head of each kind with blocks of so many classes."""

    def make(*blocks, **options):
        head = KINDS[request.param](**options)
        for number, classes in enumerate(blocks):
            head.grow(classes, Stream.root(0).generator(number))
        return head

    return make


def unit(row):
    length = math.sqrt(sum(value * value for value in row))
    return [value / length for value in row]


def naive_outputs(naive, head, features, gamma=1.0):
    """Cosines; with proxies, per class the mean of minus their squared distances, weighted by a softmax."""
    rows = [unit(row) for block in head.blocks for row in naive.rows(block.weight)]
    groups = [rows[start : start + head.proxies] for start in range(0, len(rows), head.proxies)]

    def similarity(feature, proxies):
        if not isinstance(head, ProxyHead):
            return sum(f * w for f, w in zip(feature, proxies[0], strict=True))
        near = [-(math.dist(feature, row) ** 2) for row in proxies]
        shares = [math.exp(value) for value in naive.log_softmax([gamma * value for value in near])]
        return sum(value * share for value, share in zip(near, shares, strict=True))

    made = [[similarity(unit(feature), group) for group in groups] for feature in naive.rows(features)]
    return head.scale.item() * torch.tensor(made, dtype=torch.float64)


def test_the_outputs_are_scaled_similarities(naive, grown):
    head = grown(2, 3, scale=4.0)
    assert head.outputs == 5
    torch.testing.assert_close(head(FEATURES).double(), naive_outputs(naive, head, FEATURES), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gamma", [0.0, 5.0])
def test_gamma_says_how_much_the_nearest_proxy_counts(naive, gamma):
    head = ProxyHead(5, 3, gamma)
    head.grow(4, Stream.root(0).generator())
    torch.testing.assert_close(
        head(FEATURES).double(), naive_outputs(naive, head, FEATURES, gamma), rtol=1e-4, atol=1e-5
    )


def test_one_proxy_a_class_is_minus_the_squared_distance():
    proxies, cosine = ProxyHead(5, proxies=1), CosineHead(5)
    for head in (proxies, cosine):
        head.grow(4, Stream.root(0).generator())
    torch.testing.assert_close(proxies(FEATURES), 2 * cosine(FEATURES) - 2)


def test_there_are_ten_proxies_a_class_by_default():
    head = ProxyHead(5)
    head.grow(2, Stream.root(0).generator())
    assert (head.outputs, len(head.weight)) == (2, 20)


def test_the_length_of_a_feature_or_a_row_does_not_matter(grown):
    head = grown(2, 3)
    before = head(FEATURES)
    torch.testing.assert_close(head(100 * FEATURES), before)
    with torch.no_grad():
        head.blocks[1].weight.mul_(7)
    torch.testing.assert_close(head(FEATURES), before)


def test_growing_leaves_the_old_outputs_as_they_were(grown):
    head = grown(2)
    before = head(FEATURES)
    head.grow(3, Stream.root(0).generator("more"))
    assert head(FEATURES).shape == (7, 5)
    torch.testing.assert_close(head(FEATURES)[:, :2], before)


def test_similarities_without_scale_do_not_know_it(grown):
    one, four = (grown(2, 3, scale=scale) for scale in (1.0, 4.0))
    assert torch.equal(one.cosines(FEATURES), four.cosines(FEATURES))
    assert one.cosines(FEATURES).abs().max() <= 1 + 1e-6
    torch.testing.assert_close(four(FEATURES), 4 * one(FEATURES))


def test_there_is_no_bias(grown):
    names = {name.rsplit(".", 1)[-1] for name in grown(2, 3).state_dict()}
    assert names == {"weight", "scale"}


def test_every_row_and_the_scale_learn(grown):
    head = grown(2, 3)
    head(FEATURES).square().sum().backward()
    assert head.scale.grad != 0
    assert all(block.weight.grad.any(1).all() for block in head.blocks)


def test_where_old_classes_are_frozen_the_last_block_and_the_scale_learn(grown):
    head = grown(2, 3, 1)
    trained = {id(parameter) for parameter in head.trained_with_new}
    names = {name for name, parameter in head.named_parameters() if id(parameter) in trained}
    assert names == {"scale", "blocks.2.weight"}
    alone = grown(2)
    assert len(alone.trained_with_new) == len(list(alone.parameters())) == 2  # at the base task all of it


def test_imprinting_sets_the_last_block_to_directions_of_the_old_rows_mean_length(grown):
    head = grown(2, 3, 1)
    with torch.no_grad():
        head.blocks[0].weight.mul_(5)
    before = [block.weight.clone() for block in head.blocks]
    rows = len(before[2])
    directions = torch.randn(rows, 5, generator=Stream.root(2).generator())
    head.imprint(directions)
    lengths = [math.hypot(*row.tolist()) for block in before[:2] for row in block]
    mean = sum(lengths) / len(lengths)
    expected = [[mean * value for value in unit(row)] for row in directions.tolist()]
    torch.testing.assert_close(head.blocks[2].weight.detach(), torch.tensor(expected))
    assert all(torch.equal(block.weight, old) for block, old in zip(list(head.blocks)[:2], before[:2], strict=True))


def test_an_imprinted_row_answers_to_its_direction():
    head = CosineHead(5, scale=3.0)
    head.grow(2, Stream.root(0).generator())
    head.grow(1, Stream.root(0).generator(1))
    head.imprint(FEATURES[:1])
    assert head(10 * FEATURES[:1])[0, 2].item() == pytest.approx(3.0)
    assert head.blocks[1].weight.requires_grad
