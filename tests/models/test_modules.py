from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from etag.core.random import Stream
from etag.models.modules import ConvNorm, StoredTensors, uses_batch_statistics, without_tracking

IMAGES = 3 + 2 * torch.randn(6, 2, 4, 4, generator=Stream.root(0).torch_generator())


# -- StoredTensors ---------------------------------------------------------------------------------


class Stored(StoredTensors):
    def __init__(self):
        super().__init__()
        self.store(means=torch.empty(0, 3), count=torch.zeros((), dtype=torch.long))


def test_stored_tensors_take_the_shape_of_loaded_ones():
    saved, fresh = Stored(), Stored()
    saved.store(means=torch.arange(6.0).view(2, 3), count=torch.tensor(7))
    fresh.load_state_dict(saved.state_dict())
    assert torch.equal(fresh.means, saved.means)
    assert fresh.count == 7


def test_loaded_tensors_are_copies():
    state = Stored().state_dict() | {"means": torch.ones(2, 3)}
    fresh = Stored()
    fresh.load_state_dict(state)
    state["means"].zero_()
    assert fresh.means.tolist() == [[1.0] * 3] * 2


def test_stored_tensors_can_be_loaded_as_part_of_a_larger_module():
    whole, fresh = (nn.ModuleDict({"stored": Stored(), "layer": nn.Linear(1, 1)}) for _ in range(2))
    whole["stored"].store(means=torch.ones(4, 3))
    fresh.load_state_dict(whole.state_dict())
    assert fresh["stored"].means.shape == (4, 3)


def test_missing_or_unknown_keys_are_an_error():
    with pytest.raises(RuntimeError, match=r"Missing key.*means"):
        Stored().load_state_dict({"count": torch.tensor(1)})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*others"):
        Stored().load_state_dict(Stored().state_dict() | {"others": torch.zeros(1)})


def test_store_replaces_only_the_named_tensors_and_adds_no_parameters():
    stored = Stored()
    stored.store(means=torch.ones(1, 3))
    stored.store(count=torch.tensor(2))
    assert (stored.means.shape, stored.count.item()) == ((1, 3), 2)
    assert list(stored.parameters()) == []
    assert set(stored.state_dict()) == {"means", "count"}


# -- BatchNorm -------------------------------------------------------------------------------------


@pytest.fixture
def normed():
    """A module with a nested BatchNorm layer."""
    return nn.Sequential(nn.ReLU(), nn.Sequential(nn.BatchNorm2d(2)))


def statistics(module):
    norm = module[1][0]
    return norm.running_mean.tolist(), norm.running_var.tolist(), norm.num_batches_tracked.item()


def test_uses_batch_statistics_is_true_only_with_batchnorm_in_training_mode(normed):
    assert uses_batch_statistics(normed.train())
    assert not uses_batch_statistics(normed.eval())
    assert not uses_batch_statistics(nn.Sequential(nn.Linear(2, 2), nn.Dropout()).train())
    assert uses_batch_statistics(nn.BatchNorm1d(2))
    normed.train()
    normed[1][0].eval()  # as the engine does to freeze it
    assert not uses_batch_statistics(normed)


def test_without_tracking_batchnorm_does_not_update_running_statistics(normed):
    normed.train()
    tracked = normed(IMAGES)
    normed[1][0].reset_running_stats()
    before = statistics(normed)
    with without_tracking(normed):
        outputs = normed(IMAGES)
    assert torch.equal(outputs, tracked)
    torch.testing.assert_close(outputs.mean((0, 2, 3)), torch.zeros(2), atol=1e-5, rtol=0)
    assert statistics(normed) == before


def test_tracking_resumes_after_without_tracking(normed):
    normed.train()
    with without_tracking(normed):
        normed(IMAGES)
    normed(IMAGES)
    means, _, count = statistics(normed)
    batch = IMAGES.relu().mean((0, 2, 3))
    assert means == pytest.approx((0.1 * batch).tolist())  # after one batch with momentum 0.1
    assert count == 1


def test_tracking_resumes_after_an_exception(normed):
    def fail():
        with without_tracking(normed.train()):
            raise KeyError("within")

    with pytest.raises(KeyError, match="within"):
        fail()
    before = statistics(normed)
    normed(IMAGES)
    assert statistics(normed) != before


def test_without_tracking_changes_nothing_in_evaluation_mode(normed):
    normed(IMAGES)
    normed.eval()
    expected = normed(IMAGES)
    with without_tracking(normed):
        assert torch.equal(normed(IMAGES), expected)


# -- ConvNorm --------------------------------------------------------------------------------------

SHAPES = [  # channels, out, kernel, stride, groups
    (4, 6, 3, 1, 1),
    (4, 6, 3, 2, 1),
    (4, 6, 1, 1, 1),
    (4, 6, 1, 2, 1),
    (4, 6, 7, 2, 1),
    (4, 4, 3, 1, 4),
    (4, 8, 3, 2, 2),
]
MAPS = 1 + torch.randn(5, 4, 9, 9, dtype=torch.float64, generator=Stream.root(0).torch_generator("maps"))


def conv_norm(*shape):
    """A ConvNorm with statistics and weights as after some training; one channel has a negative scale."""
    layer, noise = ConvNorm(*shape).double(), Stream.root(0).torch_generator("conv", *shape)
    norm = layer[1]
    with torch.no_grad():
        layer[0].weight.copy_(torch.randn(layer[0].weight.shape, generator=noise))
        norm.weight.copy_(torch.randn(len(norm.weight), generator=noise))
        norm.bias.copy_(torch.randn(len(norm.bias), generator=noise))
        norm.weight[0] = -1.5
        norm.running_mean.copy_(3 * torch.randn(len(norm.bias), generator=noise))
        norm.running_var.copy_(0.1 + 4 * torch.rand(len(norm.bias), generator=noise))
    return layer


def plain(layer, x):
    """Convolution, then BatchNorm, computed by functions from the weights."""
    conv, norm = layer
    y = functional.conv2d(x, conv.weight, None, conv.stride, conv.padding, groups=conv.groups)
    return functional.batch_norm(
        y, norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.training, norm.momentum, norm.eps
    )


def output_and_gradients(compute, layer):
    """Return the map, and the gradients of the input and of all weights for some loss."""
    x = MAPS.clone().requires_grad_()
    y = compute(x)
    weights = torch.randn(y.shape, dtype=y.dtype, generator=Stream.root(0).torch_generator("weights"))
    return [y, *torch.autograd.grad((y * weights).sum() + y.square().sum(), [x, *layer.parameters()])]


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_conv_norm_equals_convolution_and_batchnorm_with_gradients(shape, mode):
    folded = conv_norm(*shape).train(mode == "train")
    separate = deepcopy(folded)
    result, expected = (
        output_and_gradients(folded, folded),
        output_and_gradients(lambda x: plain(separate, x), separate),
    )
    assert len(result) == 2 + 3  # the convolution has no bias
    for value, target in zip(result, expected, strict=True):
        assert target.abs().max() > 1e-3
        torch.testing.assert_close(value, target)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(folded[1], name), getattr(separate[1], name))


def test_in_training_mode_conv_norm_equals_the_two_modules_exactly():
    layer = conv_norm(4, 6, 3, 2).train()
    other, start = deepcopy(layer), deepcopy(layer.state_dict())
    result, expected = (
        output_and_gradients(layer, layer),
        output_and_gradients(lambda x: other[1](other[0](x)), other),
    )
    assert all(torch.equal(*pair) for pair in zip(result, expected, strict=True))
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in layer.state_dict().items())
    changed = {name for name, value in layer.state_dict().items() if not torch.equal(value, start[name])}
    assert changed == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert layer[1].num_batches_tracked == 1


@pytest.mark.parametrize("all_parts", [True, False], ids=["all in evaluation mode", "only BatchNorm"])
def test_frozen_statistics_are_used_and_not_changed(all_parts):
    layer = conv_norm(4, 6, 3).train()
    (layer if all_parts else layer[1]).eval()  # the engine freezes only BatchNorm
    before, first = deepcopy(layer.state_dict()), layer(MAPS[:1])
    output_and_gradients(layer, layer)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    torch.testing.assert_close(layer(MAPS)[:1], first)  # a row does not depend on the others


def test_a_layer_that_does_not_change_is_folded_once_for_each_precision(monkeypatch):
    layer, maps, folded = conv_norm(4, 6, 3).float().eval().requires_grad_(False), MAPS.float(), []
    original = Tensor.rsqrt
    monkeypatch.setattr(Tensor, "rsqrt", lambda variance: folded.append(variance) or original(variance))
    expected = layer(maps)
    layer.fold_once()
    assert [torch.equal(layer(maps), expected) for _ in range(3)] == [True] * 3
    with torch.autocast("cpu", torch.bfloat16):
        half = [layer(maps) for _ in range(3)]
    assert {maps.dtype for maps in half} == {torch.bfloat16}
    assert (half[-1].float() - expected).norm() < 0.01 * expected.norm()
    assert len(folded) == 3  # before, and once in each precision
    assert torch.equal(layer(maps), expected)


def test_a_layer_that_is_folded_during_inference_can_be_used_for_gradients():
    layer, maps = conv_norm(4, 6, 3).eval().requires_grad_(False), MAPS.clone().requires_grad_()
    layer.fold_once()
    with torch.inference_mode():
        layer(MAPS)
    (found,) = torch.autograd.grad(layer(maps).square().sum(), maps)
    (expected,) = torch.autograd.grad(plain(layer, maps).square().sum(), maps)
    torch.testing.assert_close(found, expected)


def test_conv_norm_has_the_tensor_names_of_a_sequential_module():
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert list(ConvNorm(2, 3, 3).state_dict()) == ["0.weight", *(f"1.{name}" for name in norm)]
    assert ConvNorm(2, 3, 5)(torch.zeros(2, 2, 9, 9)).shape == (2, 3, 9, 9)  # the side does not change


def test_without_tracking_conv_norm_does_not_update_running_statistics():
    layer = conv_norm(4, 6, 3).train()
    before, expected = deepcopy(layer.state_dict()), plain(deepcopy(layer), MAPS)
    with without_tracking(layer):
        torch.testing.assert_close(layer(MAPS), expected)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_conv_norm_preserves_memory_format_and_precision(kind):
    layer = conv_norm(4, 6, 3).eval().to(memory_format=torch.channels_last).to(kind)
    maps = layer(MAPS.to(kind).contiguous(memory_format=torch.channels_last))
    assert maps.is_contiguous(memory_format=torch.channels_last)
    assert maps.dtype == kind
    error = (maps.double() - plain(conv_norm(4, 6, 3).eval(), MAPS)).abs().max()
    assert error < (1e-4 if kind == torch.float32 else 1)


def test_conv_norm_has_second_order_gradients():
    layer, x = conv_norm(4, 6, 3, 2).eval(), MAPS[:2, :, :5, :5].clone().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x, *_: layer(x).tanh(), (x, *layer.parameters()))
