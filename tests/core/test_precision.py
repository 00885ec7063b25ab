import importlib
import inspect

import pytest
import torch

from etag.core.precision import at_least_single, in_single_precision
from etag.losses.classification import cross_entropy
from etag.losses.distillation import logit_distillation, pod_spatial
from etag.losses.embedding import auxiliary_divergence, feature_distance
from etag.losses.generation import prior_divergence, squared_error
from etag.models.heads import CosineHead, LinearHead, ProxyHead

LOSSES = ["classification", "distillation", "drift", "embedding", "generation", "inversion", "metric"]
# their second-order gradients are with respect to a tensor that must not be converted
WITH_GRADIENTS = {"gradient_activation_map", "gradient_penalty"}


def bfloat16():
    return torch.autocast("cpu", torch.bfloat16)


def rows(seed, count=6, size=10):
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed)).bfloat16()


LABELS = torch.tensor([0, 3, 1, 9, 4, 4])
CALLS = {
    "cross_entropy": lambda a, b: cross_entropy(a, LABELS),
    "logit_distillation": lambda a, b: logit_distillation(a, b, tau=2.0),
    "auxiliary_divergence": lambda a, b: auxiliary_divergence([a, b], (b, a), tau=2.0),
    "feature_distance": lambda a, b: feature_distance(a, teacher=b),
    "prior_divergence": lambda a, b: prior_divergence(a, b),
    "squared_error": lambda a, b: squared_error(a, b),
    "pod_spatial": lambda a, b: pod_spatial([a[..., None, None]], [b[..., None, None]]),
}


@pytest.mark.parametrize("name", CALLS)
def test_losses_are_computed_in_single_precision_under_autocast(name):
    a, b = rows(0), rows(1)
    expected = CALLS[name](a.float(), b.float())
    with bfloat16():
        found = CALLS[name](a, b)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


@pytest.mark.parametrize("module", LOSSES)
def test_no_loss_is_left_out(module):
    functions = inspect.getmembers(importlib.import_module(f"etag.losses.{module}"), inspect.isfunction)
    own = {name: f for name, f in functions if f.__module__ == f"etag.losses.{module}" and not name.startswith("_")}
    assert own
    assert {name for name, function in own.items() if not hasattr(function, "__wrapped__")} <= WITH_GRADIENTS


@pytest.mark.parametrize("head", [LinearHead(10), CosineHead(10), ProxyHead(10, 3)])
def test_heads_compute_in_single_precision_under_autocast(head):
    head.grow(4, torch.Generator().manual_seed(0))
    features = rows(0)
    expected = head(features.float())
    with bfloat16():
        found = head(features)
        assert torch.nn.Linear(10, 2)(features).dtype == torch.bfloat16  # what would happen otherwise
    assert torch.equal(found, expected)


def test_gradients_reach_what_was_converted():
    a = rows(0).requires_grad_()
    with bfloat16():
        cross_entropy(a, LABELS).backward()
    b = a.detach().float().requires_grad_()
    cross_entropy(b, LABELS).backward()
    torch.testing.assert_close(a.grad, b.grad.bfloat16())


def test_without_autocast_nothing_is_converted():
    calls = []
    in_single_precision(lambda *values: calls.extend(values))(rows(0), 3)
    assert calls[0].dtype == torch.bfloat16
    assert at_least_single(rows(0).double()).dtype == torch.float64
