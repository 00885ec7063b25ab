"""The claim to store no old data, checked by a program."""

import pytest
import torch
from tests.conftest import VARIANTS
from tests.methods.copies import copies

from etag.core.roles import ROLES
from etag.methods.registry import METHODS

FREE = [name for name in METHODS if not METHODS[name].info.exemplars and not METHODS[name].info.all_data]
FREE = [pytest.param(name, marks=pytest.mark.slow) if name in VARIANTS else name for name in FREE]


@pytest.fixture
def learned(lab):
    """A method after two tasks, and its inputs: images, as they are and normalized, and their features."""

    def make(name, train=8):
        made = lab(name, images=train)
        made.learn(0, 1)
        pixels = torch.cat([task.train.pixels for task in made.scenario.tasks[:2]])
        inputs = made.preprocess.centered(pixels)
        with torch.no_grad():
            features = made.method.solver.backbone(inputs)
        return made, {"images": pixels.float(), "inputs": inputs, "features": features}

    return make


def tensors(method):
    """Everything that a method stores from task to task, by role and name."""
    return {f"{role}.{name}": value for role, part in method.parts.items() for name, value in part.state_dict().items()}


@pytest.mark.parametrize("name", FREE)
def test_it_stores_no_image_and_no_feature(learned, name):
    made, shown = learned(name)
    stored = tensors(made.method)
    assert {key.partition(".")[0] for key in stored} <= ROLES.keys() - {"exemplars"}
    assert copies(stored, shown) == []


@pytest.mark.parametrize("name", FREE)
def test_what_it_stores_does_not_grow_with_the_number_of_images(learned, name):
    few, many = (sum(value.nbytes for value in tensors(learned(name, train)[0].method).values()) for train in (8, 16))
    assert few == many


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].info.exemplars])
def test_stored_exemplars_are_found(learned, name):
    made, shown = learned(name)
    assert copies(tensors(made.method), shown) == ["exemplars.pixels holds a copy of one of the images"]


@pytest.mark.parametrize("what", ["images", "inputs", "features"])
@pytest.mark.parametrize("disguise", [lambda x: x, lambda x: -3 * x.flatten(), lambda x: x.to(torch.float16)])
def test_a_hidden_copy_is_found(learned, what, disguise):
    made, shown = learned("etag")
    rows = torch.randn(4, *shown[what].shape[1:], generator=torch.Generator().manual_seed(0))
    rows[2] = shown[what][5]
    smuggled = disguise(rows) if disguise(rows).ndim > 1 else disguise(-rows)
    made.method.solver.register_buffer("innocent", smuggled)
    assert f"solver.innocent holds a copy of one of the {what}" in copies(tensors(made.method), shown)
