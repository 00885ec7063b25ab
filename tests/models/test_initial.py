import math

import pytest
import torch
from torch import nn

from etag.core.random import Stream
from etag.models.initial import build


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
    network = build(lambda: nn.Sequential(nn.Conv2d(16, 64, 3), nn.BatchNorm2d(64), nn.Linear(400, 100)), generator())
    convolution, norm, linear = network
    assert convolution.weight.std().item() == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.05)  # He, fan-out
    assert torch.count_nonzero(convolution.bias) == 0
    assert linear.weight.abs().max().item() == pytest.approx(1 / 20, rel=0.01)  # uniform within 1 / sqrt(fan-in)
    assert linear.weight.std().item() == pytest.approx(1 / 20 / math.sqrt(3), rel=0.05)
    assert 0 < linear.bias.abs().max() <= 1 / 20
    for values, expected in ((norm.weight, 1), (norm.bias, 0), (norm.running_mean, 0), (norm.running_var, 1)):
        assert values.unique().tolist() == [expected]


def test_a_network_is_built_on_the_cpu_and_can_be_trained():
    for parameter in build(net, generator()).parameters():
        assert parameter.device.type == "cpu"
        assert parameter.requires_grad


@pytest.mark.parametrize(
    "unknown", [lambda: nn.PReLU(), lambda: nn.BatchNorm1d(3, affine=False)], ids=["parameter", "buffer"]
)
def test_a_module_without_an_initialization_rule_is_an_error(unknown):
    with pytest.raises(TypeError, match="no initialize"):
        build(lambda: nn.Sequential(nn.Linear(2, 2), unknown()), generator())


def test_a_module_can_initialize_itself():
    class FeatureScale(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.empty(3))
            self.inner = nn.Linear(2, 2)

        def initialize(self, generator):
            nn.init.uniform_(self.factor, 5, 6, generator=generator)

    network = build(FeatureScale, generator())
    assert ((network.factor >= 5) & (network.factor <= 6)).all()
    assert network.inner.weight.abs().max() <= 1 / math.sqrt(2)  # children are initialized separately
