"""ABD: generated images come from the old solver alone, and each of its three losses trains its own parts."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from etag.core.outputs import Need
from etag.losses.inversion import class_imbalance, confidence_loss, smoothness_penalty


@pytest.fixture
def begun(lab, disturb):
    """A laboratory whose second task has begun, old and new solvers differing."""

    def make(**options):
        laboratory = lab("abd", options)
        for index in range(2):
            laboratory.begin(index)
            disturb(laboratory.method.solver, f"solver {index}")
        return laboratory

    return make


def step_of(laboratory):
    phase = laboratory.works(1)["solver"]
    return phase.module.eval(), next(phase.batches.epoch(0))


def test_a_batch_is_half_real_and_half_generated(begun):
    laboratory = begun()
    _, batch = step_of(laboratory)
    method, task, real = laboratory.method, laboratory.task(1), batch.total // 2
    assert len(batch.inputs) == len(batch.labels) == batch.total
    assert (batch.labels[:real] >= task.num_old).all()
    codes = batch.draws.normal("replay codes", real, 6)
    generated = method.image_generator(codes)
    assert torch.equal(batch.inputs[real:], generated)
    said = method.teacher.targets(generated, Need.LOGITS).logits[:, : task.num_old]
    assert torch.equal(batch.labels[real:], said.argmax(1))


def test_its_terms_are_those_of_the_paper(begun, naive):
    laboratory = begun()
    objective, batch = step_of(laboratory)
    solver, teacher, task = laboratory.method.solver, laboratory.method.teacher.network, laboratory.task(1)
    terms, real = objective(batch), batch.total // 2
    said, old = solver(batch.inputs, Need.LOGITS | Need.FEATURE), teacher(batch.inputs, Need.LOGITS)
    share = task.num_old / task.num_seen
    local = naive.cross_entropy(said.logits[:real], batch.labels[:real], range(task.num_old, task.num_seen))
    assert terms["ce"].item() == pytest.approx((1 - share) * local, rel=1e-4)
    each = [naive.cross_entropy(said.logits[k : k + 1], batch.labels[k : k + 1]) for k in range(batch.total)]
    weighted = sum((share if batch.labels[k] < task.num_old else 1 - share) * each[k] for k in range(batch.total))
    assert terms["head_ce"].item() == pytest.approx(weighted / batch.total, rel=1e-4)
    squares = naive.squares(teacher.head(said.feature), old.logits)
    assert terms["kd"].item() == pytest.approx(0.1 * sum(squares) / len(squares) / task.num_old, rel=1e-4)


def test_the_distillation_is_zero_for_a_student_like_its_teacher(lab):
    laboratory = lab("abd")
    laboratory.begin(0, 1)
    objective, batch = step_of(laboratory)
    assert objective(batch)["kd"].item() == pytest.approx(0, abs=1e-12)


def test_each_term_trains_its_own_parts(begun):
    """Old against new is a matter of the head alone; new classes among themselves teach no old row."""
    laboratory = begun()
    objective, batch = step_of(laboratory)
    solver, terms = laboratory.method.solver, objective(batch)
    backbone, (old, new) = list(solver.backbone.parameters()), [block.weight for block in solver.head.blocks]

    def gradients(name, parameters):
        found = torch.autograd.grad(terms[name], parameters, retain_graph=True, allow_unused=True)
        return [0.0 if gradient is None else gradient.abs().sum().item() for gradient in found]

    assert sum(gradients("head_ce", backbone)) == 0
    assert all(gradients("head_ce", [old, new]))
    assert sum(gradients("ce", backbone)) > 0
    assert gradients("ce", [old])[0] == 0
    assert gradients("ce", [new])[0] > 0
    assert sum(gradients("kd", backbone)) > 0
    assert gradients("kd", [old, new]) == [0, 0]


def test_the_inversion_minimizes_its_four_terms(begun):
    laboratory = begun()
    phase = laboratory.works(1)["generator"]
    batch, method = next(phase.batches.epoch(0)), laboratory.method
    terms = phase.module.eval()(batch)
    images = method.image_generator(batch.inputs)
    logits = method.solver.eval()(images, Need.LOGITS).logits
    torch.testing.assert_close(terms["confidence"], confidence_loss(logits, 1000.0))
    torch.testing.assert_close(terms["balance"], class_imbalance(logits), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(terms["smoothness"], 1e-3 * smoothness_penalty(images))
    layers, found = [part for part in method.solver.backbone.modules() if isinstance(part, nn.BatchNorm2d)], []
    entering = images
    for stage in method.solver.backbone.stages:  # by hooks on a layer that does not fold
        for part in stage.modules():
            if hasattr(part, "folds"):
                part.folds = False

    def hear(norm, given):
        mean, variance = given[0].mean((0, 2, 3)), given[0].var((0, 2, 3), correction=0)
        wanted = torch.distributions.Normal(norm.running_mean, norm.running_var.sqrt())
        found.append(
            torch.distributions.kl_divergence(wanted, torch.distributions.Normal(mean, variance.sqrt())).mean()
        )

    handles = [layer.register_forward_pre_hook(hear) for layer in layers]
    method.solver(entering, Need.LOGITS)
    for handle in handles:
        handle.remove()
    assert len(found) == len(layers)
    torch.testing.assert_close(terms["statistics"], 50 * torch.stack(found).mean(), rtol=1e-3, atol=1e-5)


def test_only_the_generator_learns_from_the_inversion_and_there_is_none_after_the_last_task(begun, snapshot):
    laboratory = begun()
    phase = laboratory.works(1)["generator"]
    solver, generator = snapshot(laboratory.method.solver), snapshot(laboratory.method.image_generator)
    laboratory.engine.train(phase)
    after = laboratory.method.solver.state_dict()
    assert all(torch.equal(after[name], solver[name]) for name in solver)
    now = laboratory.method.image_generator.state_dict()
    assert not torch.equal(now["enter.weight"], generator["enter.weight"])
    laboratory.begin(2)
    assert list(laboratory.works(2)) == ["solver"]


def test_generated_images_become_more_like_the_learned_ones(lab):
    laboratory = lab("abd", {"generator": {"latent": 16, "train": {"steps": 60, "batch_size": 24}}}, epochs=10)
    laboratory.begin(0)
    works = laboratory.works(0)
    laboratory.engine.train(works["solver"])
    phase = laboratory.works(0)["generator"]
    batch = next(phase.batches.epoch(0))
    before = {name: value.item() for name, value in phase.module.train()(batch).items()}
    laboratory.engine.train(phase)
    after = {name: value.item() for name, value in phase.module.train()(batch).items()}
    assert after["statistics"] < 0.5 * before["statistics"]
    assert sum(after.values()) < sum(before.values())


def test_adam_continues_where_the_last_task_ended(lab):
    laboratory = lab("abd")
    laboratory.learn(0)
    assert laboratory.method.optimizer_state.state_dict()["generator/enter/weight:step"].item() == 3
    laboratory.learn(1)
    assert laboratory.method.optimizer_state.state_dict()["generator/enter/weight:step"].item() == 6


def test_it_generates_images_for_people(lab):
    laboratory = lab("abd")
    laboratory.learn(0)
    shown = laboratory.method.generate_images(2, 3)
    assert shown.shape == (6, 1, 8, 8)
    assert 0 <= shown.min() <= shown.max() <= 1
    assert torch.equal(shown, laboratory.method.generate_images(2, 3))
    laboratory.learn(1, 2)
    assert laboratory.method.generate_images(2, 3) is None, "after the last task the generator is not trained"


def test_local_loss_counts_real_rows_only(begun):
    laboratory = begun()
    objective, batch = step_of(laboratory)
    before = objective(batch)["ce"].item()
    real = batch.total // 2
    inputs = batch.inputs.clone()
    inputs[real:] = functional.pad(inputs[real:], (1, 1, 1, 1))[:, :, 2:, 2:]
    batch.inputs = inputs
    assert objective(batch)["ce"].item() == pytest.approx(before, rel=1e-5)
