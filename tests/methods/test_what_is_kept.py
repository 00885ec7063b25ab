"""The claim to keep no old data, checked by machine."""

import pytest
import torch
from etag.experiments.store import tensors
from tests.methods.copies import copies

from etag.methods.base import ROLES
from etag.methods.registry import METHODS

FREE = [name for name in METHODS if not METHODS[name].card.exemplars and not METHODS[name].card.all_data]


@pytest.fixture
def learned(lab):
    """A method after two tasks, and all that it was shown: images, as they are and as they go in, and features."""

    def make(name, train=8):
        made = lab(name, images=train)
        made.learn(0, 1)
        pixels = torch.cat([task.train.pixels for task in made.scenario.tasks[:2]])
        inputs = made.preprocess.test(pixels)
        with torch.no_grad():
            works = made.method.features_pass("shown", made.task(0).train)
            features = torch.cat([works.module.solver.backbone.pool(_maps(works.module.solver, inputs))])
        return made, {"images": pixels.float(), "inputs": inputs, "features": features}

    return make


def _maps(solver, images):
    for stage in solver.backbone.stages:
        images = stage(images)
    return images


@pytest.mark.parametrize("name", FREE)
def test_it_keeps_no_image_and_no_feature(learned, name):
    made, shown = learned(name)
    kept = tensors(made.method)
    assert {key.partition(".")[0] for key in kept} <= ROLES.keys() - {"exemplars"}
    assert copies(kept, shown) == []


@pytest.mark.parametrize("name", FREE)
def test_what_it_keeps_does_not_grow_with_the_number_of_images(learned, name):
    few, many = (sum(value.nbytes for value in tensors(learned(name, train)[0].method).values()) for train in (8, 16))
    assert few == many


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].card.exemplars])
def test_a_method_that_keeps_exemplars_is_found_out(learned, name):
    made, shown = learned(name)
    assert copies(tensors(made.method), shown) == ["exemplars.pixels holds a copy of one of the images"]


@pytest.mark.parametrize("what", ["images", "inputs", "features"])
@pytest.mark.parametrize("disguise", [lambda x: x, lambda x: -3 * x.flatten(), lambda x: x.to(torch.float16)])
def test_a_smuggled_copy_is_found_out(learned, what, disguise):
    made, shown = learned("etag")
    rows = torch.randn(4, *shown[what].shape[1:], generator=torch.Generator().manual_seed(0))
    rows[2] = shown[what][5]
    smuggled = disguise(rows) if disguise(rows).ndim > 1 else disguise(-rows)
    made.method.solver.register_buffer("innocent", smuggled)
    assert f"solver.innocent holds a copy of one of the {what}" in copies(tensors(made.method), shown)
