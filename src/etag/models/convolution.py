"""Convolutions that are fast on a CPU: with their activation in one step where no gradient is needed, because the other
passes over the maps take about as long as the convolution itself; with gradients in the layout of the maps; and, in
bfloat16, as matrix products where a map has few pixels."""

from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.nn import functional

Activation = Literal["relu", "relu6"]
# what oneDNN calls the activations, and their arguments
NAMES: dict[Activation | None, tuple[str, list[float]]] = {
    None: ("none", []),
    "relu": ("relu", []),
    "relu6": ("hardtanh", [0.0, 6.0]),
}

# where matrix products are faster than oneDNN in bfloat16
FEW_PIXELS = 16  # of a map that a convolution returns: for the gradient of its kernel
TINY_SIDE = 2  # of a map: for the convolution itself
FEWEST_IMAGES = 16  # in both cases


def activated(maps: Tensor, activation: Activation | None) -> Tensor:
    """Return maps after an activation; they are overwritten."""
    if activation is None:
        return maps
    return functional.relu(maps, inplace=True) if activation == "relu" else functional.relu6(maps, inplace=True)


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor, stride: tuple[int, ...], groups: int, activation: Activation | None
) -> Tensor:
    """Return the convolution of `x` with its activation. `x` is padded so that, without a stride, an odd kernel would
    return a map of the same size; an even kernel sees one row and column more at the end than at the beginning."""
    padding = [(side - 1) // 2 for side in weight.shape[2:]]
    needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, weight, bias))
    fuses = x.device.type == "cpu" and not torch.compiler.is_compiling() and _can_fuse(computed_dtype(x))
    if needs_gradient or not fuses or _is_tiny(x, weight, stride, padding, groups):
        return activated(convolved(x, weight, bias, stride, padding, groups), activation)
    x, weight, bias = (tensor.to(computed_dtype(x)) for tensor in (x, weight, bias))
    return _fused(x, weight, bias, stride, padding, groups, activation)


def convolved(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int], groups: int
) -> Tensor:
    """Return the convolution of `x`, as PyTorch's `conv2d`; in bfloat16 with matrix products for few pixels."""
    if _is_tiny(x, weight, stride, padding, groups):
        return cast(Tensor, _TinyMaps.apply(x, weight, bias))  # type: ignore[no-untyped-call]
    pixels = 1
    for side, kernel, step, zeros in zip(x.shape[2:], weight.shape[2:], stride, padding, strict=True):
        pixels *= (side + 2 * zeros - kernel) // step + 1
    needs_gradient = torch.is_grad_enabled() and weight.requires_grad
    if not needs_gradient or not _multiplies_faster(x, groups) or pixels > FEW_PIXELS:
        return functional.conv2d(x, weight, bias, list(stride), list(padding), 1, groups)
    in_bfloat16 = [None if tensor is None else tensor.to(torch.bfloat16) for tensor in (x, weight, bias)]
    return cast(Tensor, _FewPixels.apply(*in_bfloat16, stride, padding))  # type: ignore[no-untyped-call]


def _multiplies_faster(x: Tensor, groups: int) -> bool:
    """Whether matrix products are faster than oneDNN where maps have few pixels. They cannot be used inside of
    torch.func: importances, which are computed with it, are computed in float32."""
    if torch.compiler.is_compiling():  # first: what is compiled or exported must not depend on the number of images
        return False
    on_cpu = x.device.type == "cpu" and computed_dtype(x) == torch.bfloat16
    return on_cpu and groups == 1 and x.shape[0] >= FEWEST_IMAGES


def _is_tiny(x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], groups: int) -> bool:
    """Whether `_TinyMaps` computes this convolution."""
    fits = weight.shape[2:] == (3, 3) and tuple(stride) == tuple(padding) == (1, 1)
    return fits and _multiplies_faster(x, groups) and max(x.shape[2:]) <= TINY_SIDE


class _FewPixels(torch.autograd.Function):
    """A convolution whose output has few pixels. The gradient of its kernel is the product of two matrices: of the
    outputs' gradient, and of the inputs that each output has seen."""

    @staticmethod
    def forward(
        context: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int]
    ) -> Tensor:
        context.save_for_backward(x, weight)
        context.stride, context.padding = stride, padding
        return functional.conv2d(x, weight, bias, list(stride), list(padding))

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        (gradient,), (x, weight) = gradients, context.saved_tensors
        of_x, of_weight, of_bias = None, None, None
        if context.needs_input_grad[0]:
            sizes = (context.stride, context.padding, [1, 1], False, [0, 0], 1)
            only_x = [True, False, False]
            of_x = torch.ops.aten.convolution_backward(gradient, x, weight, None, *sizes, only_x)[0]
        if context.needs_input_grad[1]:
            rows = gradient.permute(0, 2, 3, 1).flatten(0, 2)
            seen = _seen(x, weight.shape[2:], context.stride, context.padding)
            kernel = (rows.t() @ seen).view(weight.shape[0], *weight.shape[2:], weight.shape[1])
            of_weight = kernel.permute(0, 3, 1, 2)
        if context.needs_input_grad[2]:
            of_bias = gradient.sum((0, 2, 3))
        return of_x, of_weight, of_bias, None, None


def _seen(x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """The inputs that a kernel sees: one row per image and pixel of the output, one column per row, column and channel
    of the kernel."""
    maps = functional.pad(x.permute(0, 2, 3, 1), (0, 0, padding[1], padding[1], padding[0], padding[0]))
    windows = maps.unfold(1, kernel[0], stride[0]).unfold(2, kernel[1], stride[1])
    return windows.permute(0, 1, 2, 4, 5, 3).flatten(3).flatten(0, 2)


class _TinyMaps(torch.autograd.Function):
    """A 3x3 convolution of maps of at most 2x2 pixels, in bfloat16. Every pixel sees all others, so it is a linear
    layer from all pixels to all pixels; oneDNN also multiplies the zeros around the maps."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        context.save_for_backward(x, weight)
        (images, _, height, width), outputs = x.shape, weight.shape[0]
        pixels = x.to(torch.bfloat16).permute(0, 2, 3, 1).flatten(1)
        maps = (pixels @ _all_to_all(weight, height, width).t()).view(images, height, width, outputs)
        maps = (maps if bias is None else maps + bias.to(torch.bfloat16)).permute(0, 3, 1, 2)
        return maps.clone()  # what an activation may overwrite must not be a view

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (gradient,), (x, weight) = gradients, context.saved_tensors
        (images, channels, height, width), outputs = x.shape, weight.shape[0]
        rows, of_x, of_weight, of_bias = gradient.permute(0, 2, 3, 1).flatten(1), None, None, None
        if context.needs_input_grad[0]:
            of_pixels = (rows @ _all_to_all(weight, height, width)).view(images, height, width, channels)
            of_x = of_pixels.permute(0, 3, 1, 2).to(x.dtype)
        if context.needs_input_grad[1]:
            pixels = x.to(rows.dtype).permute(0, 2, 3, 1).flatten(1)
            parts = (rows.t() @ pixels).view(height, width, outputs, height, width, channels)
            kernel = weight.new_zeros(outputs, 3, 3, channels)
            for row, column in product(range(height), range(width)):  # of the output pixel
                _part_seen(kernel, row, column, height, width).add_(parts[row, column])
            of_weight = kernel.permute(0, 3, 1, 2)
        if context.needs_input_grad[2]:
            of_bias = gradient.sum((0, 2, 3))
        return of_x, of_weight, of_bias


def _all_to_all(weight: Tensor, height: int, width: int) -> Tensor:
    """The weights of the linear layer: one row per output pixel and channel, one column per input pixel and channel."""
    kernel = weight.to(torch.bfloat16).permute(0, 2, 3, 1)
    seen = [_part_seen(kernel, row, column, height, width) for row, column in product(range(height), range(width))]
    return torch.stack(seen).flatten(2).flatten(0, 1)


def _part_seen(kernel: Tensor, row: int, column: int, height: int, width: int) -> Tensor:
    """The part of a kernel (output, row, column, channel) with which an output pixel sees a map: one entry per pixel of
    the map."""
    return kernel[:, 1 - row : 1 - row + height, 1 - column : 1 - column + width]


class _ChannelsLastGradient(torch.autograd.Function):
    """The identity; its gradient has the layout that every other map of a backbone has. Autograd returns that of a mean
    or of padding in another one, in which the layers before compute their gradients ten times as slowly."""

    generate_vmap_rule = True  # so that it works with the transforms of torch.func

    @staticmethod
    def forward(maps: Tensor) -> Tensor:
        return maps.view_as(maps)

    @staticmethod
    def setup_context(context: Any, inputs: Any, output: Any) -> None:
        """Save nothing."""

    @staticmethod
    def backward(_context: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].contiguous(memory_format=torch.channels_last)


def with_channels_last_gradient(maps: Tensor) -> Tensor:
    """Return maps, whose gradient will have the layout channels_last if they have it."""
    if not maps.requires_grad or not maps.is_contiguous(memory_format=torch.channels_last):
        return maps
    result: Tensor = _ChannelsLastGradient.apply(maps)  # type: ignore[no-untyped-call]
    return result


def zero_padded(maps: Tensor, zeros: Sequence[int]) -> Tensor:
    """Return maps with zeros added: left, right, top, bottom."""
    return functional.pad(with_channels_last_gradient(maps), list(zeros))


def every_other(maps: Tensor, step: int) -> Tensor:
    """Return every `step`-th row and column of maps, in the layout channels_last; so is the gradient."""
    return maps.permute(0, 2, 3, 1)[:, ::step, ::step].contiguous().permute(0, 3, 1, 2)


def computed_dtype(x: Tensor) -> torch.dtype:
    """What a convolution of `x` computes in."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype


def _fused(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: tuple[int, ...],
    padding: list[int],
    groups: int,
    activation: Activation | None,
) -> Tensor:
    arguments = (padding, stride, [1, 1], groups, *NAMES[activation], "")
    maps: Tensor = torch.ops.mkldnn._convolution_pointwise(x, weight, bias, *arguments)
    return maps


@cache
def _can_fuse(dtype: torch.dtype) -> bool:
    """Whether this build of PyTorch can do it on this processor. The operation is not part of PyTorch's public
    interface, so its result is checked once."""
    if dtype not in (torch.float32, torch.bfloat16):
        return False
    x, weight, bias = torch.linspace(-9, 9, 75).view(1, 3, 5, 5), torch.ones(2, 3, 3, 3), torch.tensor([-1.0, 1.0])
    x, weight, bias = (tensor.to(dtype) for tensor in (x, weight, bias))
    with torch.autocast("cpu", enabled=False):
        expected = functional.relu6(functional.conv2d(x.float(), weight.float(), bias.float(), 1, 1))
    try:
        found = _fused(x, weight, bias, (1, 1), [1, 1], 1, "relu6").float()
    except (AttributeError, RuntimeError):
        return False
    return torch.allclose(found, expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-4)
