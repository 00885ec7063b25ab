"""A convolution with its activation in one step equals the steps one by one."""

import pytest
import torch
from torch.nn import functional

from etag.models import convolution as module
from etag.models.backbone import pooled
from etag.models.convolution import activated, convolution, zero_padded
from etag.models.modules import ConvNorm

CASES = [  # channels, outputs, kernel, stride, groups
    (3, 8, (3, 3), (1, 1), 1),
    (8, 8, (3, 3), (2, 2), 8),
    (8, 8, (6, 6), (2, 2), 8),
    (8, 8, (5, 6), (2, 2), 8),
    (8, 4, (1, 1), (1, 1), 1),
]


@pytest.fixture
def fused_calls(monkeypatch):
    """How often the operation of oneDNN was used."""
    calls, original = [], module._fused
    monkeypatch.setattr(module, "_fused", lambda *given: calls.append(0) or original(*given))
    module._can_fuse(torch.float32)
    calls.clear()
    return calls


def tensors(channels, outputs, kernel, groups):
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    return draw(2, channels, 10, 9), draw(outputs, channels // groups, *kernel), 3 * draw(outputs)


def one_by_one(x, weight, bias, stride, groups, activation):
    """Zeros, convolution and activation apart; one zero less in front for an even kernel."""
    high, wide = ((side - 1) // 2 for side in weight.shape[2:])
    maps = functional.conv2d(functional.pad(x, (wide, wide, high, high)), weight, bias, stride, 0, 1, groups)
    return {None: lambda y: y, "relu": torch.relu, "relu6": functional.relu6}[activation](maps)


@pytest.mark.parametrize("activation", [None, "relu", "relu6"])
@pytest.mark.parametrize(("channels", "outputs", "kernel", "stride", "groups"), CASES)
def test_it_equals_the_steps_one_by_one(fused_calls, channels, outputs, kernel, stride, groups, activation):
    x, weight, bias = tensors(channels, outputs, kernel, groups)
    for given in (x, x.to(memory_format=torch.channels_last)):
        found = convolution(given, weight, bias, stride, groups, activation)
        expected = one_by_one(x, weight, bias, stride, groups, activation)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert len(fused_calls) == 2 * torch.backends.mkldnn.is_available()


@pytest.mark.parametrize("needed", ["x", "weight", "bias"])
def test_where_a_gradient_is_needed_it_is_there(fused_calls, needed):
    given = dict(zip(("x", "weight", "bias"), tensors(8, 8, (3, 3), 8), strict=True))
    given[needed].requires_grad_()
    convolution(**given, stride=(1, 1), groups=8, activation="relu6").sum().backward()
    found, given[needed].grad = given[needed].grad, None
    one_by_one(**given, stride=(1, 1), groups=8, activation="relu6").sum().backward()
    torch.testing.assert_close(found, given[needed].grad, rtol=1e-4, atol=1e-4)
    assert not fused_calls
    with torch.no_grad():
        convolution(**given, stride=(1, 1), groups=8, activation="relu6")
    assert len(fused_calls) == torch.backends.mkldnn.is_available()


def test_autocast_decides_the_precision():
    x, weight, bias = tensors(8, 8, (3, 3), 1)
    with torch.autocast("cpu", torch.bfloat16):
        found = convolution(x, weight, bias, (1, 1), 1, "relu6")
    assert found.dtype == torch.bfloat16
    expected = one_by_one(*(t.bfloat16().float() for t in (x, weight, bias)), (1, 1), 1, "relu6")
    torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=5e-2)


def test_other_precisions_and_other_builds_of_pytorch_take_the_usual_way(fused_calls, monkeypatch):
    x, weight, bias = tensors(8, 8, (3, 3), 1)
    doubles = [tensor.double() for tensor in (x, weight, bias)]
    expected = one_by_one(*doubles, (1, 1), 1, "relu")
    torch.testing.assert_close(convolution(*doubles, (1, 1), 1, "relu"), expected)

    def missing(*_):
        raise AttributeError("no such operation")

    monkeypatch.setattr(module, "_fused", missing)
    module._can_fuse.cache_clear()
    torch.testing.assert_close(convolution(x, weight, bias, (1, 1), 1, "relu"), expected.float(), rtol=1e-4, atol=1e-4)
    module._can_fuse.cache_clear()
    assert not fused_calls


def test_an_exported_network_has_public_operations_only():
    network = ConvNorm(3, 4, 3, activation="relu6").eval()
    program = torch.export.export(network, (torch.randn(2, 3, 8, 8),))
    assert "mkldnn" not in str(program.graph)


@pytest.mark.parametrize("activation", [None, "relu", "relu6"])
def test_a_folded_layer_equals_batchnorm_as_a_layer(activation):
    layer = ConvNorm(3, 4, 3, 2, activation=activation).eval()
    layer[1].running_mean.uniform_(-1, 1)
    layer[1].running_var.uniform_(0.1, 2)
    x = 4 * torch.randn(5, 3, 9, 9)
    expected = activated(layer[1](layer[0](x)), activation)
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)


def maps(channels, side, images=4):
    drawn = torch.randn(images, channels, side, side, generator=torch.Generator().manual_seed(0))
    return drawn.to(memory_format=torch.channels_last).requires_grad_()


@pytest.mark.parametrize(("kernel", "side"), [(5, 4), (5, 2), (3, 2), (5, 5)])
def test_filters_larger_than_the_map_have_the_usual_outputs_and_gradients(kernel, side):
    layer, x = ConvNorm(8, 8, kernel, groups=8).train(), maps(8, side)
    expected = functional.conv2d(x, layer[0].weight, None, 1, kernel // 2, 1, 8)
    gradient = torch.randn_like(expected)
    for found, plain in zip(
        torch.autograd.grad(layer.convolved(x), (x, layer[0].weight), gradient),
        torch.autograd.grad(expected, (x, layer[0].weight), gradient),
        strict=True,
    ):
        torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer.convolved(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("work", [lambda x: zero_padded(x, (0, 1, 0, 1)), pooled], ids=["padding", "mean"])
def test_gradients_have_the_layout_of_the_maps(work):
    x = maps(8, 4)
    layouts = []
    inner = x * 2
    inner.register_hook(lambda gradient: layouts.append(gradient.is_contiguous(memory_format=torch.channels_last)))
    result = work(inner)
    (found,) = torch.autograd.grad(result, x, torch.ones_like(result))
    plain = functional.pad(x * 2, (0, 1, 0, 1)) if result.ndim == 4 else (x * 2).mean((2, 3))
    (expected,) = torch.autograd.grad(plain, x, torch.ones_like(plain))
    torch.testing.assert_close(found, expected)
    assert layouts == [True]


def few_pixels(kernel, stride, bias, dtype=torch.bfloat16):
    """Inputs, kernel and perhaps bias of a convolution whose maps have few pixels; they need gradients."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(16, 8, 5, 4), (12, 8, *kernel), *([(12,)] if bias else [])]
    given = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    given[0] = given[0].to(memory_format=torch.channels_last)
    return [tensor.requires_grad_() for tensor in given]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kernel", "stride"), [((3, 3), (2, 2)), ((1, 1), (2, 2)), ((3, 1), (2, 1)), ((5, 5), (1, 2))])
def test_gradients_of_few_pixels_equal_the_usual_ones(monkeypatch, kernel, stride, bias):
    """In bfloat16 the kernel's gradient is a matrix product. It is closer to the exact one than its rounding."""
    calls, original = [], module._seen
    monkeypatch.setattr(module, "_seen", lambda *given: calls.append(0) or original(*given))
    given, padding = few_pixels(kernel, stride, bias), [side // 2 for side in kernel]
    with torch.autocast("cpu", torch.bfloat16):
        found = module.convolved(*given, *([] if bias else [None]), stride, padding, 1)
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    expected = functional.conv2d(*exact, stride=stride, padding=padding)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=2e-2)
    of_maps = torch.randn(found.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    for name, ours, plain in zip(
        ("x", "weight", "bias"),
        torch.autograd.grad(found, given, of_maps),
        torch.autograd.grad(expected, exact, of_maps.double()),
        strict=False,
    ):
        assert (ours - plain).abs().max() < 1e-2 * plain.abs().max(), name
    assert len(calls) == 1


def test_gradients_of_few_pixels_reach_a_kernel_in_single_precision():
    """Under autocast the parameters stay in float32, and so do their gradients."""
    layer, x = ConvNorm(8, 12, 3, 2).train(), maps(8, 6, images=16)
    with torch.autocast("cpu", torch.bfloat16):
        layer.convolved(x).sum().backward()
    expected = torch.autograd.grad(functional.conv2d(x, layer[0].weight, None, 2, 1).sum(), layer[0].weight)[0]
    assert layer[0].weight.grad.dtype == x.grad.dtype == torch.float32
    assert (layer[0].weight.grad - expected).abs().max() < 2e-2 * expected.abs().max()


def test_larger_maps_other_precisions_and_groups_have_the_gradients_of_pytorch(monkeypatch):
    monkeypatch.setattr(module, "_FewPixels", None)  # would be an error if they were used
    monkeypatch.setattr(module, "_TinyMaps", None)
    single, half = torch.float32, torch.bfloat16
    for images, side, groups, dtype in ((20, 9, 1, half), (20, 2, 1, single), (20, 2, 8, half), (2, 2, 1, half)):
        x, weight = torch.randn(images, 8, side, side, dtype=dtype), torch.randn(8, 8 // groups, 3, 3, dtype=dtype)
        module.convolved(x, weight.requires_grad_(), None, (1, 1), (1, 1), groups).sum().backward()
        assert weight.grad is not None
    x, weight = torch.randn(20, 8, 3, 3).bfloat16(), torch.randn(8, 8, 3, 3).bfloat16()
    with torch.no_grad():  # only the gradient of the kernel is faster
        module.convolved(x, weight, None, (1, 1), (1, 1), 1)


@pytest.mark.parametrize("sides", [(4, 4), (2, 2), (1, 1), (1, 2)])
def test_matrix_products_have_second_order_gradients(sides):
    """LwM needs them."""
    draw = torch.Generator().manual_seed(0)
    x, weight = torch.randn(16, 4, *sides, generator=draw), torch.randn(6, 4, 3, 3, generator=draw)
    with torch.autocast("cpu", torch.bfloat16):
        product = module.convolved(x, weight.requires_grad_(), None, (1, 1), (1, 1), 1)
    assert type(product.grad_fn).__name__.startswith("_"), "a function of ours, not PyTorch's"

    def second_order(convolved, x, weight):
        x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
        (first,) = torch.autograd.grad(convolved(x, weight).float().tanh().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), weight)[0]

    with torch.autocast("cpu", torch.bfloat16):
        found = second_order(lambda x, weight: module.convolved(x, weight, None, (1, 1), (1, 1), 1), x, weight)
    expected = second_order(lambda x, weight: functional.conv2d(x, weight, padding=1), x.double(), weight.double())
    assert (found - expected).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sides", [(2, 2), (1, 1), (1, 2), (2, 1)])
def test_tiny_maps_have_the_usual_outputs_and_gradients(monkeypatch, sides, bias):
    """In bfloat16 the convolution is a linear layer of all pixels. It is as close to the exact one as its rounding."""
    calls, original, draw = [], module._all_to_all, torch.Generator().manual_seed(0)
    monkeypatch.setattr(module, "_all_to_all", lambda *given: calls.append(0) or original(*given))
    x, of_maps = (torch.randn(16, channels, *sides, generator=draw).bfloat16() for channels in (8, 12))
    weight, shift = (torch.randn(shape, generator=draw) for shape in ((12, 8, 3, 3), (12,)))
    given = [tensor.requires_grad_() for tensor in (x, weight, *([shift] if bias else []))]
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    with torch.autocast("cpu", torch.bfloat16):
        found = module.convolved(*given, *([] if bias else [None]), (1, 1), (1, 1), 1)
        with torch.no_grad():
            fused = convolution(x, weight, shift, (1, 1), 1, "relu")
    expected = functional.conv2d(*exact, padding=1)
    gradients = torch.autograd.grad(found, given, of_maps), torch.autograd.grad(expected, exact, of_maps.double())
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert [gradient.dtype for gradient in gradients[0]] == [tensor.dtype for tensor in given]
    for ours, plain in ((found, expected), *zip(*gradients, strict=True)):
        assert (ours - plain).abs().max() < 1e-2 * plain.abs().max()
    plain = functional.conv2d(x.double(), weight.double(), shift.double(), padding=1).relu()
    assert (fused - plain).abs().max() < 1e-2 * plain.abs().max()
    assert len(calls) == 3  # forward, backward, and without gradient
