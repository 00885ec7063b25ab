import math
from dataclasses import replace

import pytest
import torch

from etag.core.outputs import Need, Outputs, Views
from etag.core.random import Draws, Stream
from etag.core.scenario import Task
from etag.core.work import Batch, StepData
from etag.data.views import ROTATIONS
from etag.methods.parts.distillation import attention_term, cosine_term, l2_term, logits_term, pod_term
from etag.methods.parts.objective import SolverObjective
from etag.models.backbone import ModelOptions
from etag.models.heads import HeadOptions
from etag.models.solver import Teacher, build_solver

STREAM = Stream.root(0)
TASK = Task(index=1, num_old=3, num_new=2, train=None, test=None, num_base=3)
BATCH = Batch(
    torch.randn(4, 1, 32, 32, dtype=torch.float64, generator=STREAM.torch_generator("images")),
    torch.tensor([3, 4, 4, 3]),
    Draws(STREAM),
    4,
)
SHOWN = Views(BATCH.inputs, 4)
LAST = 4  # stage; its map is of 4 x 4 pixels


def numbers(*shape, key="a"):
    return torch.randn(*shape, dtype=torch.float64, generator=STREAM.torch_generator(key, *shape))


@pytest.fixture
def networks(disturb):
    """A student that has left its teacher and grown by two classes, and that teacher; in float64."""
    solver = build_solver(ModelOptions(width=2), HeadOptions(), 1, 32, STREAM).double()
    solver.head.grow(3, STREAM.torch_generator("head"))
    disturb(solver.double(), "old", 0.3)
    teacher = Teacher(solver)
    solver.head.grow(2, STREAM.torch_generator("more"))
    return disturb(solver.double(), "new").eval(), teacher


def step_of(networks, need):
    solver, teacher = networks
    return StepData(BATCH, SHOWN, solver(SHOWN, need), teacher.targets(SHOWN, need))


def attention(networks, stage=LAST, weight=1.0):
    """The term, and its value."""
    term = attention_term(TASK, *networks, stage, weight)
    return term, term.compute(step_of(networks, term.student_need))


# -- attention: its value --------------------------------------------------------------------------


def unit(row):
    length = math.sqrt(sum(value * value for value in row))
    return [value / length for value in row] if length else row


@torch.no_grad()
def grad_cam(network, stage, top, step=1e-6):
    """Maps as unit vectors, one an image; a channel's weight is what a small rise of the whole channel does to the
    logit, found by trying."""
    maps = network(BATCH.inputs, Need.STAGES).stages[stage - 1]
    pixels = maps.shape[2] * maps.shape[3]
    attention = torch.zeros_like(maps[:, 0])
    for channel in range(maps.shape[1]):
        raised, lowered = maps.clone(), maps.clone()
        raised[:, channel] += step
        lowered[:, channel] -= step
        rise = network.logits_from_stage(raised, stage) - network.logits_from_stage(lowered, stage)
        for image, label in enumerate(top):
            alpha = rise[image, label] / (2 * step * pixels)
            attention[image] += alpha * maps[image, channel]
    return [unit(image.clamp(min=0).flatten().tolist()) for image in attention]


def expected_attention(networks, stage, top):
    student, teacher = (grad_cam(network, stage, top) for network in (networks[0], networks[1].network))
    rows = zip(student, teacher, strict=True)
    return sum(abs(a - b) for new, old in rows for a, b in zip(new, old, strict=True)) / len(top)


def top_old_classes(network):
    logits = network(BATCH.inputs, Need.LOGITS).logits.tolist()
    return [row.index(max(row[:3])) for row in logits]


@pytest.mark.parametrize("stage", [1, 2, 3, 4])
def test_attention_is_grad_cam_of_both_networks_at_any_stage(networks, stage):
    _, value = attention(networks, stage)
    assert value.item() == pytest.approx(expected_attention(networks, stage, top_old_classes(networks[0])), rel=1e-4)
    assert value > 0.01


def test_the_last_stage_needs_no_second_order(networks):
    term, _ = attention(networks, LAST)
    assert term.second_order is False


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_earlier_stages_declare_that_they_differentiate_a_gradient(networks, stage):
    assert attention_term(TASK, *networks, stage, 1.0).second_order


@pytest.mark.parametrize("stage", [2, LAST])
def test_both_networks_are_asked_about_the_students_likeliest_old_class(networks, stage):
    solver, teacher = networks
    with torch.no_grad():  # the teacher would answer 0 to everything, the student 1, if it were not for a new class
        teacher.network.head.blocks[0].bias += torch.tensor([1e6, 0, 0])
        solver.head.blocks[0].bias += torch.tensor([0, 1e6, 0])
        solver.head.blocks[1].bias += 1e8
    assert top_old_classes(teacher.network) == [0] * 4
    assert solver(BATCH.inputs, Need.LOGITS).logits.argmax(1).min() >= 3
    _, value = attention(networks, stage)
    assert value.item() == pytest.approx(expected_attention(networks, stage, [1] * 4), rel=1e-4)
    assert value.item() != pytest.approx(expected_attention(networks, stage, [0] * 4), rel=1e-2)


@pytest.mark.parametrize("stage", [2, LAST])
def test_a_student_that_is_its_teacher_looks_where_it_looks(networks, stage):
    teacher = networks[1]
    student = build_solver(ModelOptions(width=2), HeadOptions(), 1, 32, STREAM).double().eval()
    student.head.grow(3, STREAM.torch_generator("head"))
    student.double().load_state_dict(teacher.network.state_dict())
    _, value = attention((student, teacher), stage)
    value.backward()
    assert value.item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("stage", [2, LAST])
def test_its_value_can_be_had_without_gradients(networks, stage):
    _, value = attention(networks, stage)
    with torch.no_grad():
        _, watched = attention(networks, stage)
    assert value.requires_grad
    assert not watched.requires_grad
    torch.testing.assert_close(watched, value.detach())


# -- attention: its gradient -----------------------------------------------------------------------


def pulled(networks):
    """Names of the backbone's weights that have a gradient other than zero."""
    named = networks[0].backbone.named_parameters()
    return {name for name, parameter in named if parameter.grad is not None and parameter.grad.any()}


@pytest.mark.parametrize("stage", [1, 2, 3, LAST])
def test_attention_alone_pulls_at_the_students_backbone(networks, stage):
    _, value = attention(networks, stage)
    value.backward()
    below = {name for name, _ in networks[0].backbone.named_parameters() if int(name.split(".")[1]) < stage}
    assert below <= pulled(networks)
    assert all(parameter.grad is None for parameter in networks[1].parameters())


def test_at_an_earlier_stage_it_pulls_at_later_ones_too_through_the_gradient(networks):
    _, value = attention(networks, 2)
    value.backward()
    assert {"stages.2.0.first.0.weight", "stages.3.2.second.0.weight"} <= pulled(networks)


@pytest.mark.parametrize("name", ["stages.0.0.0.weight", "stages.1.0.second.0.weight", "stages.3.0.first.0.weight"])
@pytest.mark.parametrize("stage", [1, 2, 3, LAST])
def test_its_gradient_is_what_moving_one_weight_does(networks, stage, name):
    _, value = attention(networks, stage)
    value.backward()
    weight = networks[0].backbone.get_parameter(name)
    place = weight.grad.abs().flatten().argmax()
    slope = weight.grad.reshape(-1)[place].item()
    place = tuple(int(index) for index in torch.unravel_index(place, weight.shape))
    values, start, small = [], weight[place].item(), 1e-7
    for moved in (start + small, start - small):
        with torch.no_grad():
            weight[place] = moved
        values.append(attention(networks, stage)[1].item())
    assert (values[0] - values[1]) / (2 * small) == pytest.approx(slope, rel=1e-3, abs=1e-7)
    assert abs(slope) > 1e-6


def test_it_takes_part_in_an_objective_among_views(networks):
    """As in eLwM: the maps are those of the images themselves, whatever else passes."""
    solver, teacher = networks
    solver.add_auxiliaries(3, STREAM)
    solver.double().eval()
    term = attention_term(TASK, solver, teacher, 2, 3.0)
    beside = replace(l2_term("mean_norm", "all", 1.0), name="beside")
    terms = SolverObjective(solver, teacher, [term, beside], ROTATIONS)(BATCH)
    torch.testing.assert_close(terms["attention"], 3 * attention(networks, 2)[1])


# -- outputs ---------------------------------------------------------------------------------------


def test_outputs_of_old_classes_are_distilled_and_no_others(naive):
    student, teacher = numbers(4, 5).requires_grad_(), numbers(4, 3, key="b")
    term = logits_term(TASK, tau=2.0, weight=1.5)
    value = term.compute(StepData(BATCH, SHOWN, Outputs(logits=student), Outputs(logits=teacher)))
    value.backward()
    expected = 0.0
    for new, old in zip(naive.rows(student), naive.rows(teacher), strict=True):
        log_q, log_p = (naive.log_softmax([value / 2 for value in row[:3]]) for row in (new, old))
        expected -= sum(math.exp(p) * q for p, q in zip(log_p, log_q, strict=True)) / 4
    assert value.item() == pytest.approx(expected, rel=1e-12)
    assert (student.grad[:, :3] != 0).all()
    assert torch.count_nonzero(student.grad[:, 3:]) == 0
    assert (term.name, term.weight, term.student_need, term.teacher_need) == ("kd", 1.5, Need.LOGITS, Need.LOGITS)


def test_a_teacher_with_outputs_for_all_classes_is_heard_on_the_old_ones():
    student, teacher = numbers(4, 5), numbers(4, 7, key="b")
    term = logits_term(TASK, 2.0, 1.0)
    cut, whole = (Outputs(logits=logits) for logits in (teacher[:, :3], teacher))
    assert torch.equal(*(term.compute(StepData(BATCH, SHOWN, Outputs(logits=student), said)) for said in (cut, whole)))


# -- features and maps -----------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean_norm", "frobenius"])
@pytest.mark.parametrize("views", ["plain", "all"])
def test_features_are_compared_on_the_images_or_on_all_views(naive, reduction, views):
    pairs = {"plain": (numbers(4, 6), numbers(4, 6, key="b")), "all": (numbers(16, 6), numbers(16, 6, key="b"))}
    said = [Outputs(feature=plain, view_features=every) for plain, every in zip(*pairs.values(), strict=True)]
    term = l2_term(reduction, views, 2.0)
    squares = naive.squares(*pairs[views])
    expected = sum(map(math.sqrt, squares)) / len(squares) if reduction == "mean_norm" else math.sqrt(sum(squares))
    assert term.compute(StepData(BATCH, SHOWN, *said)).item() == pytest.approx(expected, rel=1e-12)
    need = Need.FEATURE if views == "plain" else Need.VIEW_FEATURES
    assert (term.name, term.weight, term.student_need, term.teacher_need) == ("l2", 2.0, need, need)


def test_directions_of_features_are_compared_under_any_name(naive):
    student, teacher = numbers(4, 6).requires_grad_(), numbers(4, 6, key="b")
    term = cosine_term("less_forget", 2.5)
    value = term.compute(StepData(BATCH, SHOWN, Outputs(feature=student), Outputs(feature=teacher)))
    value.backward()
    pairs = zip(map(unit, naive.rows(student)), map(unit, naive.rows(teacher)), strict=True)
    expected = sum(1 - sum(a * b for a, b in zip(x, y, strict=True)) for x, y in pairs) / 4
    assert value.item() == pytest.approx(expected, rel=1e-12)
    assert student.grad.any(1).all()
    assert (term.name, term.weight, term.student_need, term.teacher_need) == (
        "less_forget",
        2.5,
        Need.FEATURE,
        Need.FEATURE,
    )


def test_pod_compares_every_stages_map_before_its_activation(networks, naive):
    term = pod_term(2.0)
    assert (term.name, term.weight, term.student_need, term.teacher_need) == (
        "pod_spatial",
        2.0,
        Need.STAGES,
        Need.STAGES,
    )
    step = step_of(networks, term.student_need)
    assert all(maps.min() < 0 for maps in step.student.raw_stages)

    def pooled(image):
        energy = [[[value**2 for value in line] for line in channel] for channel in image]
        along = [sum(line) for channel in energy for line in channel]
        return unit(along + [sum(column) for channel in energy for column in zip(*channel, strict=True)])

    expected = 0.0
    for new, old in zip(step.student.raw_stages, step.teacher.raw_stages, strict=True):
        rows = zip(map(pooled, naive.rows(new)), map(pooled, naive.rows(old)), strict=True)
        expected += sum(math.dist(a, b) for a, b in rows) / 4 / LAST
    value = term.compute(step)
    assert value.item() == pytest.approx(expected, rel=1e-9)
    value.backward()
    assert {name for name, _ in networks[0].backbone.named_parameters()} == pulled(networks)
    only_raw = (Outputs(raw_stages=said.raw_stages) for said in (step.student, step.teacher))
    assert torch.equal(term.compute(StepData(BATCH, SHOWN, *only_raw)), value)
