import math

import pytest
import torch
from torch import nn

from etag.core.random import Stream
from etag.models.initial import build
from etag.models.modules import ConvNorm


def generator(name="a"):
    return Stream.root(0).torch_generator(name)


def net():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 50))


def test_the_same_generator_gives_the_same_network():
    first, again, other = (build(net, generator(name)).state_dict() for name in "aab")
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["0.weight"], other["0.weight"])
    assert not torch.equal(first["3.bias"], other["3.bias"])


def test_layers_have_the_usual_initial_weights():
    network = build(lambda: nn.Sequential(ConvNorm(16, 64, 3), nn.Linear(400, 100)), generator())
    (convolution, norm), linear = network
    assert convolution.weight.std().item() == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.05)  # He, fan-out
    assert linear.weight.abs().max().item() == pytest.approx(1 / 20, rel=0.01)  # uniform within 1 / sqrt(fan-in)
    assert linear.weight.std().item() == pytest.approx(1 / 20 / math.sqrt(3), rel=0.05)
    assert 0 < linear.bias.abs().max() <= 1 / 20
    for values, expected in ((norm.weight, 1), (norm.bias, 0), (norm.running_mean, 0), (norm.running_var, 1)):
        assert values.unique().tolist() == [expected]


def test_a_network_is_built_on_the_cpu_and_can_be_trained():
    for parameter in build(net, generator()).parameters():
        assert parameter.device.type == "cpu"
        assert parameter.requires_grad


def test_any_module_is_initialized_by_its_own_constructor():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.empty(3).uniform_(5, 6))
            self.norm, self.attention = nn.LayerNorm(4), nn.MultiheadAttention(4, 2)

    first, again, other = (build(Own, generator(name)).state_dict() for name in "aab")
    assert ((first["factor"] >= 5) & (first["factor"] <= 6)).all()
    assert first["norm.weight"].tolist() == [1, 1, 1, 1]
    for name in ("factor", "attention.in_proj_weight"):
        assert torch.equal(first[name], again[name])
        assert not torch.equal(first[name], other[name])


def test_two_modules_from_one_generator_differ():
    one = generator()
    assert not torch.equal(*(build(lambda: nn.Linear(3, 3), one).weight for _ in range(2)))


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    build(net, generator())
    assert torch.equal(torch.get_rng_state(), before)
