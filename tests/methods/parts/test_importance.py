import math
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import islice

import pytest
import torch

from etag.core.outputs import Need
from etag.core.random import Placement, Stream
from etag.methods.parts.importance import Importance, ImportanceOptions, flat, log_likelihood, output_norm

WEIGHT, IMAGES = 7.0, {"estimator": "images"}


@pytest.fixture
def at_task(lab, disturb):
    """A laboratory whose tasks up to one have begun, with a solver that is no longer as it was built."""

    def make(name="ewc", index=0, importance=None, batch_size=7, **options):
        options = {"weight": WEIGHT, "importance": importance or IMAGES} | options
        laboratory = lab(name, options, batch_size=batch_size)
        laboratory.begin(*range(index + 1))
        disturb(laboratory.method.solver)
        return laboratory

    return make


def pass_of(laboratory, index=0):
    """The pass in which a method measures its importances."""
    method = laboratory.method
    batches = partial(method.pass_batches, "importance", size=method.context.train.batch_size)
    return next(method.importance.measure_task(laboratory.task(index), method.solver, batches))


@pytest.mark.parametrize("name", ["ewc", "mas"])
@pytest.mark.parametrize(("estimator", "rows"), [("survey", 8), ("images", 4)])
def test_two_processes_share_a_batch_only_if_images_count_one_by_one(at_task, name, estimator, rows):
    """The gradient of the mean of half a batch is another one, and its square is larger."""
    laboratory = at_task(name, importance={"estimator": estimator}, batch_size=8)
    method = laboratory.method
    method.context = replace(method.context, placement=Placement(rank=1, world=2))
    _, measured = islice(method.phases(laboratory.task(0)), 2)
    assert len(next(measured.batches.epoch(0)).labels) == rows


def importances(laboratory, index=0):
    found = laboratory.engine.run_pass(pass_of(laboratory, index))
    return found["importance"] / found["images"]


def gradient(solver, value):
    """Of a number on all weights of the backbone, one after the other."""
    found = torch.autograd.grad(value, list(solver.backbone.parameters()))
    return torch.cat([part.reshape(-1).double() for part in found])


def logits_of(laboratory, rows, index=0):
    """Of some images, without chance, by autograd's usual way."""
    pixels = laboratory.task(index).train.pixels[rows]
    return laboratory.method.solver.eval()(laboratory.preprocess.centered(pixels), Need.LOGITS).logits


def log_likelihood_of(naive, logits, kind, true, uniform):
    """Minus log p of the label of one image, by hand."""
    (row,) = naive.rows(logits)
    probabilities = [math.exp(value) for value in naive.log_softmax(row)]
    if kind == "argmax":
        label = row.index(max(row))
    elif kind == "true":
        label = true
    else:
        label = next(c for c in range(len(row)) if sum(probabilities[: c + 1]) >= uniform or c == len(row) - 1)
    return label, logits[0].logsumexp(0) - logits[0, label]


def assert_close(found, expected):
    assert expected.max() > 0
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-5 * expected.max().item())


# -- image by image --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["argmax", "true", "multinomial"])
def test_the_fisher_information_is_the_mean_squared_gradient_of_single_images(naive, at_task, kind):
    laboratory = at_task(labels=kind)
    images, expected, labels = laboratory.task(0).train, 0.0, []
    uniform = [u for batch in pass_of(laboratory).batches.epoch(0) for u in draws_of(batch)]
    for number in range(24):
        logits = logits_of(laboratory, [number])
        label, loss = log_likelihood_of(naive, logits, kind, images.labels[number].item(), uniform[number])
        expected += gradient(laboratory.method.solver, loss).square() / 24
        labels.append(label)
    assert_close(importances(laboratory), expected)
    if kind != "argmax":
        assert len(set(labels)) > 1


def draws_of(batch):
    return batch.draws.uniform("sampled labels", batch.total).tolist()


def test_the_three_kinds_of_labels_differ(at_task):
    found = [importances(at_task(labels=kind)) for kind in ("argmax", "true", "multinomial")]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not torch.allclose(found[one], found[other], rtol=0.01)


def test_mas_is_the_mean_absolute_gradient_of_the_length_of_the_logits(at_task):
    laboratory, expected = at_task("mas"), 0.0
    for number in range(24):
        length = sum(value**2 for value in logits_of(laboratory, [number])[0]) ** 0.5
        expected += gradient(laboratory.method.solver, length).abs() / 24
    assert_close(importances(laboratory), expected)


def test_all_outputs_count_after_the_base_task(at_task):
    laboratory, expected = at_task("mas", index=1), 0.0
    assert laboratory.method.solver.head.outputs == 5
    for number in range(16):
        length = sum(value**2 for value in logits_of(laboratory, [number], 1)[0]) ** 0.5
        expected += gradient(laboratory.method.solver, length).abs() / 16
    assert_close(importances(laboratory, 1), expected)


@pytest.mark.parametrize("name", ["ewc", "mas"])
def test_the_size_of_batches_and_of_portions_does_not_matter(at_task, monkeypatch, name):
    reference = importances(at_task(name, batch_size=7))
    torch.testing.assert_close(importances(at_task(name, batch_size=24)), reference, rtol=1e-3, atol=1e-7)
    monkeypatch.setattr("etag.methods.parts.importance.CHUNK", 2)
    torch.testing.assert_close(importances(at_task(name, batch_size=24)), reference, rtol=1e-3, atol=1e-7)


# -- as the survey's code does ---------------------------------------------------------------------


@pytest.mark.parametrize(("name", "power", "weight"), [("ewc", 2, 10_000.0), ("mas", 1, 400.0)])
def test_the_scale_of_the_survey_is_that_of_its_code(lab, name, power, weight):
    """Importance times weight as a plain loop has it: the gradient of a batch's mean, BatchNorm in training mode, times
    the size of the batch, over the number of images, averaged with zeros; then half the weighted squared distance."""
    laboratory = lab(name, batch_size=7)
    laboratory.learn(0)
    method, solver, images = laboratory.method, laboratory.method.solver, laboratory.task(0).train
    plain, expected = deepcopy(solver).train(), 0.0
    for rows in torch.arange(len(images)).split(7):
        logits = plain(laboratory.preprocess.centered(images.pixels[rows]), Need.LOGITS).logits
        if name == "ewc":
            loss = torch.nn.functional.cross_entropy(logits, logits.argmax(1))
        else:
            loss = logits.norm(dim=1).mean()
        expected += len(rows) * gradient(plain, loss).abs() ** power
    expected = 0.5 * expected / len(images)
    assert_close(method.importance.values, expected)

    assert method.options.weight == weight
    laboratory.begin(1)
    before = flat(parameter.detach().clone() for parameter in solver.backbone.parameters())
    with torch.no_grad():
        for parameter in solver.backbone.parameters():
            parameter += 0.01
    phase = next(method.phases(laboratory.task(1)))
    found = phase.module.eval()(next(phase.batches.epoch(0)))["penalty"].item()
    moved = flat(solver.backbone.parameters()).detach() - before
    assert found == pytest.approx(weight / 2 * (expected * moved.double().square()).sum().item(), rel=1e-3)


def test_a_last_batch_of_one_image_has_no_batch_statistics(at_task):
    assert torch.isfinite(importances(at_task("ewc", importance={"estimator": "survey"}, batch_size=23))).all()


# -- labels that are drawn -------------------------------------------------------------------------


def test_drawn_labels_are_one_per_row_and_as_frequent_as_they_are_likely(naive):
    logits = torch.tensor([0.5, -1.0, 2.0, 0.0])
    rows, log_p = 20_000, naive.log_softmax(logits.tolist())
    uniform = torch.rand(rows, generator=Stream.root(0).torch_generator())
    found = log_likelihood("multinomial")(logits.expand(rows, 4), torch.zeros(rows).long(), uniform)
    assert found.shape == (rows,)
    shares = [(found + value).abs().lt(1e-5).sum().item() / rows for value in log_p]
    assert sum(shares) == pytest.approx(1)
    assert shares == pytest.approx([math.exp(value) for value in log_p], abs=0.01)


def test_a_draw_at_either_end_is_still_a_label():
    logits = torch.tensor([[0.0, 1.0, 0.3]] * 2)
    beyond = torch.tensor([0.0, 1.001])  # as rounding of the running sum may have it
    found = log_likelihood("multinomial")(logits, torch.zeros(2).long(), beyond)
    assert found.tolist() == pytest.approx((logits[0].logsumexp(0) - logits[0, [0, 2]]).tolist())


def test_what_is_drawn_or_likeliest_is_no_path_for_gradients():
    logits = torch.randn(4, 3, generator=Stream.root(0).torch_generator()).requires_grad_()
    log_likelihood("argmax")(logits, torch.zeros(4).long(), torch.zeros(4)).sum().backward()
    top = torch.nn.functional.one_hot(logits.argmax(1), 3)
    torch.testing.assert_close(logits.grad, logits.detach().softmax(1) - top)


def test_the_length_of_logits_that_are_all_zero_has_no_nan_in_its_gradient():
    logits = torch.zeros(2, 3, requires_grad=True)
    output_norm(logits, torch.zeros(2), torch.zeros(2)).sum().backward()
    assert torch.count_nonzero(logits.grad) == 0


# -- what measuring leaves behind ---------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["survey", "images"])
@pytest.mark.parametrize("name", ["ewc", "mas"])
def test_measuring_changes_neither_weights_nor_statistics_nor_gradients(at_task, snapshot, name, estimator):
    solver = (laboratory := at_task(name, importance={"estimator": estimator})).method.solver
    solver.train()
    *without, last = solver.backbone.parameters()
    last.grad = torch.ones_like(last)
    before = snapshot(solver)
    importances(laboratory)
    assert all(torch.equal(value, before[key]) for key, value in solver.state_dict().items())
    assert all(parameter.grad is None for parameter in without)
    assert (last.grad == 1).all()


def test_there_is_a_number_for_every_weight_of_the_backbone_and_none_for_heads(at_task):
    laboratory = at_task(index=1)
    sizes = [parameter.numel() for parameter in laboratory.method.solver.backbone.parameters()]
    assert len(importances(laboratory, 1)) == sum(sizes)
    assert sum(sizes) < sum(parameter.numel() for parameter in laboratory.method.solver.parameters())


# -- put together ----------------------------------------------------------------------------------


def sums(*numbers, images=2.0):
    """As a pass finds them: sums over the images."""
    return {"importance": images * torch.tensor(numbers), "images": torch.tensor(images)}


@pytest.mark.parametrize(
    ("estimator", "alpha", "first", "expected"),
    [
        ("images", 0.5, [2.0, 4.0], [3.0, 6.0]),
        ("images", 0.25, [2.0, 4.0], [3.5, 7.0]),
        ("survey", 0.5, [1.0, 2.0], [2.5, 5.0]),  # the first are averaged with zeros
        ("survey", 0.25, [1.5, 3.0], [3.375, 6.75]),
    ],
)
def test_new_importances_are_put_together_with_the_old(lab, estimator, alpha, first, expected):
    options, tasks = ImportanceOptions(estimator=estimator, alpha=alpha), lab("fine").scenario.tasks
    importance = Importance(options, 2, output_norm)
    importance.add_task(tasks[0], sums(2.0, 4.0))
    assert importance.values.tolist() == first
    importance.add_task(tasks[1], sums(4.0, 8.0, images=5.0))  # three old classes of five
    assert importance.values.tolist() == pytest.approx(expected)


def test_they_are_saved_and_loaded_into_a_fresh_one(at_task):
    learned, fresh = at_task(), at_task()
    learned.learn(0, 1)
    fresh.method.importance.load_state_dict(learned.method.importance.state_dict())
    assert torch.equal(fresh.method.importance.values, learned.method.importance.values)
    assert len(fresh.method.importance.values) > 1000


def test_a_method_learns_them_after_its_solver_and_fuses_them_task_by_task(lab, snapshot):
    laboratory = lab("ewc", {"weight": WEIGHT})
    values = []
    for index in range(2):
        laboratory.learn(index)
        values.append(laboratory.method.importance.values)
    new = importances(laboratory, 1)
    torch.testing.assert_close(values[1], 0.5 * values[0] + 0.5 * new, rtol=1e-4, atol=1e-8)


# -- the penalty -----------------------------------------------------------------------------------


@pytest.fixture(params=["ewc", "mas"])
def penalized(request, lab):
    """A laboratory whose second task has begun, and its solver phase."""
    laboratory = lab(request.param, {"weight": WEIGHT}, weight_decay=0.0)
    laboratory.learn(0)
    laboratory.begin(1)
    return laboratory, laboratory.works(1)["solver"]


def penalty(phase):
    return phase.module.eval()(next(phase.batches.epoch(0)))["penalty"]


def test_there_is_no_penalty_at_the_base_task(at_task):
    phase = at_task().works(0)["solver"]
    assert list(phase.module(next(phase.batches.epoch(0)))) == ["ce"]


def test_the_penalty_is_zero_when_a_task_begins(penalized):
    laboratory, phase = penalized
    laboratory.method.solver.requires_grad_(True).zero_grad()
    loss = penalty(phase)
    loss.backward()
    assert loss == 0
    assert all(torch.count_nonzero(p.grad) == 0 for p in laboratory.method.solver.backbone.parameters())


def test_its_gradient_is_weight_times_importance_times_distance(penalized, disturb, snapshot):
    laboratory, phase = penalized
    solver, importance = laboratory.method.solver.requires_grad_(True), laboratory.method.importance.values.tolist()
    solver.zero_grad()
    anchor = snapshot(solver.backbone)
    disturb(solver)
    loss = penalty(phase)
    loss.backward()
    total, start = 0.0, 0
    for name, parameter in solver.backbone.named_parameters():
        importances = torch.tensor(importance[start : start + parameter.numel()]).view(parameter.shape)
        distance = (parameter.detach() - anchor[name]).double()
        expected = WEIGHT * importances * distance
        torch.testing.assert_close(parameter.grad.double(), expected, rtol=1e-4, atol=1e-8)
        total += (expected * distance).sum().item() / 2
        start += parameter.numel()
    assert loss.item() == pytest.approx(total, rel=1e-4)
    assert total > 0
    assert all(parameter.grad is None for parameter in solver.head.parameters())


def test_importances_hold_back_what_matters(lab):
    """After the same steps, the penalized backbone is nearer to where it was, by the importances' own measure."""

    def moved(weight):
        laboratory = lab("ewc", {"weight": weight, "importance": IMAGES}, optimizer="sgd", lr=0.01, epochs=8)
        laboratory.learn(0)
        before = flat(laboratory.method.solver.backbone.parameters()).detach()
        importance = laboratory.method.importance.values
        laboratory.learn(1)
        after = flat(laboratory.method.solver.backbone.parameters()).detach()
        return (importance * (after - before).square()).sum().item()

    assert 0 < moved(60.0) < 0.5 * moved(0.0)


def test_all_numbers_come_in_the_order_of_their_indices():
    weight = torch.arange(24.0).view(2, 3, 2, 2)
    assert flat([weight.contiguous(memory_format=torch.channels_last), torch.tensor([99.0])]).tolist() == [
        *range(24),
        99,
    ]


def test_the_penalty_stays_with_the_weights_of_the_last_task(penalized):
    laboratory, phase = penalized
    laboratory.engine.train(replace(phase, training=phase.training.model_copy(update={"steps": 2})))
    assert penalty(phase) > 0
    laboratory.begin(2)
    assert penalty(laboratory.works(2)["solver"]) == 0
