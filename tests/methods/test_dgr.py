"""DGR and Tag: old images are generated, the old solver labels them, and only Tag's generator is guided."""

import pytest
import torch
from torch.nn import functional

from etag.core.outputs import Need
from etag.losses.generation import pixel_cross_entropy
from etag.methods.parts.images import PixelClassifier

SMALL = {"latent": 4, "hidden": 16, "train": {"epochs": 1, "batch_size": 12}}


@pytest.fixture
def begun(lab, disturb):
    """A laboratory whose second (or first) task has begun, old and new networks differing."""

    def make(name="dgr", tasks=2, generator=SMALL, **options):
        laboratory = lab(name, {"generator": generator, **options})
        for index in range(tasks):
            laboratory.begin(index)
            disturb(laboratory.method.solver, f"solver {index}")
            disturb(laboratory.method.generator.network, f"generator {index}", 0.3)
        return laboratory

    return make


def test_pixels_and_inputs_are_the_same_images(begun):
    laboratory = begun(tasks=1)
    images = laboratory.task(0).train.pixels
    inputs = laboratory.preprocess.centered(images)
    pixels = laboratory.preprocess.to_pixels(inputs)
    torch.testing.assert_close(pixels, images / 255)
    torch.testing.assert_close(laboratory.preprocess.to_inputs(pixels), inputs)
    found = laboratory.engine.run_pass(laboratory.works(0)["pixels"])
    torch.testing.assert_close(found["features"], images.flatten(1) / 255)


def test_replayed_images_are_those_of_the_old_generator_with_the_old_solvers_labels(begun):
    laboratory = begun()
    method, task = laboratory.method, laboratory.task(1)
    head = PixelClassifier(method.solver, laboratory.preprocess, 1)
    batch = next(laboratory.works(1)["solver"].batches.epoch(0))
    labels, pixels = method.replay(task, head)(batch)
    asked = batch.draws.integers("replay labels", 0, task.num_old, batch.total)
    codes = batch.draws.normal("replay codes", batch.total, 4)
    assert torch.equal(pixels, method.generator.old.network.decode(codes, asked))
    assert (pixels >= 0).all()
    assert (pixels <= 1).all()
    images = laboratory.preprocess.to_inputs(pixels.view(-1, 1, 8, 8))
    said = method.teacher.targets(images, Need.LOGITS).logits
    assert torch.equal(labels, said.argmax(1))
    assert not torch.equal(labels, asked), "the old solver decides, not the label asked for"


@pytest.mark.parametrize("index", [1, 2])
def test_new_and_replayed_images_count_by_the_number_of_tasks(begun, index):
    laboratory = begun(tasks=index + 1)
    solver, generator = (laboratory.works(index)[name] for name in ("solver", "generator"))
    weights = {term.name: term.weight for term in solver.module._terms}
    assert weights == pytest.approx({"ce": 1 / (index + 1), "replay": index / (index + 1)})
    old = new = 0
    for epoch in range(40):
        for batch in generator.batches.epoch(epoch):
            made = (batch.labels < laboratory.task(index).num_old).sum().item()
            old, new = old + made, new + len(batch.labels) - made
    assert old / (old + new) == pytest.approx(index / (index + 1), abs=0.05)


def test_tag_is_dgr_with_guidance(begun):
    plain, guided = (begun(name) for name in ("dgr", "tag"))
    batch = next(plain.works(1)["generator"].batches.epoch(0))
    one, other = (laboratory.works(1)["generator"].module for laboratory in (plain, guided))
    terms, more = one(batch), other(batch)
    assert set(more) - set(terms) == {"guide"}
    assert all(torch.equal(terms[name], more[name]) for name in terms)
    method = guided.method
    codes = batch.draws.normal("prior", batch.total, 4)
    made = method.generator.network.decode(codes, batch.labels)
    images = guided.preprocess.to_inputs(made.view(-1, 1, 8, 8))
    logits = method.solver(images, Need.LOGITS).logits[:, : guided.task(1).num_seen]
    torch.testing.assert_close(more["guide"], functional.cross_entropy(logits, batch.labels))
    sizes = [
        {name: value.shape for name, value in laboratory.method.generator.network.state_dict().items()}
        for laboratory in (plain, guided)
    ]
    assert sizes[0] == sizes[1]


def test_the_guide_stays_as_it_is(begun):
    laboratory = begun("tag")
    phase = laboratory.works(1)["generator"]
    before = {name: value.clone() for name, value in laboratory.method.solver.state_dict().items()}
    laboratory.engine.train(phase)
    after = laboratory.method.solver.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    phase.module.train()
    assert not any(part.training for part in laboratory.method.solver.modules())


def test_a_gan_can_generate_the_images_too(begun):
    generator = SMALL | {"kind": "wgan"}
    laboratory = begun(generator=generator)
    phase = laboratory.works(1)["generator"]
    assert [group.name for group in phase.groups] == ["critic", "generator"]
    laboratory.engine.train(phase)


def test_pixel_entropy_is_that_of_bits():
    made, wanted = torch.tensor([[0.25, 0.5]]), torch.tensor([[1.0, 0.0]])
    assert pixel_cross_entropy(made, wanted).item() == pytest.approx(
        -(torch.tensor(0.25).log() + torch.tensor(0.5).log())
    )
    certain = torch.tensor([[1.0, 0.0]])
    assert pixel_cross_entropy(certain, certain).item() == 0
