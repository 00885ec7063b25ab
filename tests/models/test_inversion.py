"""The image generator and the recorder of BatchNorm statistics."""

import pytest
import torch
from torch import nn

from etag.core.outputs import Need
from etag.core.random import Stream
from etag.losses.inversion import statistics_divergence
from etag.models.backbone import ModelOptions
from etag.models.heads import HeadOptions
from etag.models.initial import build
from etag.models.inversion import BatchNormRecorder, ImageGenerator
from etag.models.solver import build_solver


def numbers(*shape, key="a"):
    return torch.randn(*shape, generator=Stream.root(0).torch_generator(key, *shape))


@pytest.fixture(scope="module")
def solver():
    network = build_solver(ModelOptions(width=4), HeadOptions(), 3, 16, Stream.root(0))
    network.head.grow(3, Stream.root(0).torch_generator("head"))
    with torch.no_grad():  # so that the running statistics differ from their initial values
        for _ in range(20):
            network.train()(numbers(16, 3, 16, 16) * 2 + 0.5, Need.LOGITS)
    return network.eval()


@pytest.mark.parametrize(("size", "blocks", "first"), [(8, 1, 4), (28, 2, 7), (32, 2, 8), (64, 3, 8), (50, 2, 13)])
def test_the_generator_returns_normalized_images_of_any_size(size, blocks, first):
    network = build(lambda: ImageGenerator(3, size, latent=7), Stream.root(0).torch_generator("generator"))
    images = network(numbers(4, 7))
    assert images.shape == (4, 3, size, size)
    assert len(network.blocks) == blocks
    assert network.enter.out_features == 128 * first**2
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(images.std((0, 2, 3)), torch.ones(3), atol=1e-2, rtol=0)


def test_the_generator_for_224_pixels_doubles_the_side_five_times():
    network = build(lambda: ImageGenerator(3, 224, latent=7), Stream.root(0).torch_generator("generator"))
    assert len(network.blocks) == 5
    assert network.enter.out_features == 128 * 7**2


@torch.no_grad()
def test_the_recorder_returns_the_same_logits_and_the_statistics_of_each_layer(solver):
    images = numbers(6, 3, 16, 16)
    recorder = BatchNormRecorder(solver)
    logits, layers = recorder(images)
    torch.testing.assert_close(logits, solver(images, Need.LOGITS).logits, rtol=1e-4, atol=1e-5)
    norms = [part for part in solver.backbone.modules() if isinstance(part, nn.BatchNorm2d)]
    assert len(layers) == len(norms)
    first, inputs = layers[0], solver.backbone.stages[0][0][0](images)
    torch.testing.assert_close(first[0], inputs.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(first[1], inputs.var((0, 2, 3), correction=0), rtol=1e-4, atol=1e-5)
    assert torch.equal(first[2], norms[0].running_mean)
    assert recorder(images)[1] is not layers
    assert len(recorder(images)[1]) == len(norms), "each call has its own list"
    assert not any(part._forward_pre_hooks for part in solver.modules()), "all hooks are removed"
    assert all(part.folds for part in solver.modules() if hasattr(part, "folds"))
    assert not any(part.training for part in recorder.train().modules() if part is not recorder)


@torch.no_grad()
def test_the_divergence_is_zero_for_images_with_the_running_statistics(solver):
    images = numbers(6, 3, 16, 16)
    layers = BatchNormRecorder(solver)(images)[1]
    norms = [part for part in solver.backbone.modules() if isinstance(part, nn.BatchNorm2d)]
    saved = {name: value.clone() for name, value in solver.state_dict().items()}
    assert all(statistics_divergence(*layer) > 0 for layer in layers)
    # the first layer's input depends on no other layer: give it the statistics of these images
    norms[0].running_mean.copy_(layers[0][0])
    norms[0].running_var.copy_(layers[0][1])
    assert statistics_divergence(*BatchNormRecorder(solver)(images)[1][0]).item() == pytest.approx(0, abs=1e-6)
    solver.load_state_dict(saved)


def test_the_recorder_passes_gradients_to_the_images(solver):
    images = numbers(4, 3, 16, 16).requires_grad_()
    logits, layers = BatchNormRecorder(solver)(images)
    (logits.sum() + sum(statistics_divergence(*layer) for layer in layers)).backward()
    assert images.grad.abs().sum() > 0
