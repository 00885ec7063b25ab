import pytest
import torch

from etag.core.outputs import Need
from etag.core.random import Draws, Stream
from etag.core.work import Batch, Term
from etag.data.views import ROTATIONS
from etag.methods.parts.objective import SolverObjective
from etag.models.backbone import ModelOptions
from etag.models.heads import HeadOptions
from etag.models.solver import Teacher, build_solver

STREAM = Stream.root(0)


@pytest.fixture
def solver():
    made = build_solver(ModelOptions(width=2), HeadOptions(), 1, 8, STREAM)
    made.head.grow(3, STREAM.torch_generator("head"))
    made.add_auxiliaries(3, STREAM)
    for auxiliary in made.auxiliaries:
        auxiliary.head.grow(12, STREAM.torch_generator("auxiliary"))
    return made.eval()


@pytest.fixture
def batch():
    images = torch.randn(5, 1, 8, 8, generator=STREAM.torch_generator("images"))
    return Batch(images, torch.tensor([0, 1, 2, 0, 1]), Draws(STREAM), 5)


def calls(network):
    """Rows that a network's first layer is given, call by call."""
    rows = []
    network.backbone.stages[0].register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))
    return rows


def logits_term(name="logits", weight=1.0):
    return Term(name, lambda step: step.student.logits.square().sum(), weight, student_need=Need.LOGITS)


def auxiliary_term(weight=1.0):
    def compute(step):
        return (step.student.auxiliary[0] - step.teacher.auxiliary[0]).square().sum()

    return Term("auxiliary", compute, weight, student_need=Need.AUXILIARY, teacher_need=Need.AUXILIARY)


def test_terms_are_weighted_and_named(solver, batch):
    objective = SolverObjective(solver, None, [logits_term("one"), logits_term("two", 2.5)], ROTATIONS)
    terms = objective(batch)
    plain = solver(batch.inputs, Need.LOGITS).logits.square().sum()
    assert list(terms) == ["one", "two"]
    torch.testing.assert_close(terms["one"], plain)
    torch.testing.assert_close(terms["two"], 2.5 * plain)


def test_each_network_looks_once_whatever_the_number_of_terms(solver, batch):
    teacher = Teacher(solver)
    student_calls, teacher_calls = calls(solver), calls(teacher.network)
    SolverObjective(solver, teacher, [logits_term(), logits_term("again"), auxiliary_term()], ROTATIONS)(batch)
    assert student_calls == teacher_calls == [20]


def test_views_are_made_only_for_terms_that_need_them(solver, batch):
    seen = calls(solver)
    SolverObjective(solver, None, [logits_term()], ROTATIONS)(batch)
    assert seen == [5]


def test_the_teacher_rests_where_no_term_needs_it(solver, batch):
    teacher = Teacher(solver)
    seen = calls(teacher.network)
    SolverObjective(solver, teacher, [logits_term()], ROTATIONS)(batch)
    assert seen == []


def test_a_term_of_weight_zero_is_not_computed_nor_is_what_it_needs(solver, batch):
    def never(step):
        raise AssertionError("computed")

    teacher = Teacher(solver)
    student_calls, teacher_calls = calls(solver), calls(teacher.network)
    absent = Term("absent", never, 0.0, student_need=Need.AUXILIARY, teacher_need=Need.AUXILIARY)
    terms = SolverObjective(solver, teacher, [logits_term(), absent], ROTATIONS)(batch)
    assert list(terms) == ["logits"]
    assert (student_calls, teacher_calls) == ([5], [])


def test_views_reach_the_terms_view_by_view(solver, batch):
    teacher, seen = Teacher(solver), []

    def look(step):
        seen.append(step)
        return step.student.auxiliary[0].sum()

    need = Need.AUXILIARY | Need.FEATURE
    SolverObjective(solver, teacher, [Term("look", look, student_need=need, teacher_need=Need.AUXILIARY)], ROTATIONS)(
        batch
    )
    (step,) = seen
    assert step.batch is batch
    assert (len(step.views.inputs), step.views.image_count, step.views.selected) == (20, 5, None)
    assert step.views.labels[5 * 3 + 2] == 4 * 2 + 3
    turned = batch.inputs[2].rot90(3, dims=(1, 2))[None]
    alone = solver(turned, Need.AUXILIARY).auxiliary[1][0]
    torch.testing.assert_close(step.student.auxiliary[1][5 * 3 + 2], alone)
    torch.testing.assert_close(step.teacher.auxiliary[1][5 * 3 + 2], alone)
    torch.testing.assert_close(step.student.feature, solver(batch.inputs, Need.FEATURE).feature)
    assert not step.teacher.auxiliary[1].requires_grad
    assert step.student.auxiliary[1].requires_grad


# -- what may be compiled --------------------------------------------------------------------------


def parts(network):
    return [*network.backbone.stages, *(auxiliary.branch for auxiliary in network.auxiliaries)]


def ids(modules):
    return {id(module) for module in modules}


def test_stages_and_branches_of_those_who_look_may_be_compiled(solver):
    teacher = Teacher(solver)
    alone = SolverObjective(solver, teacher, [logits_term()], ROTATIONS)
    both = SolverObjective(solver, teacher, [logits_term(), auxiliary_term()], ROTATIONS)
    assert ids(alone.compilable) == ids(parts(solver))
    assert ids(both.compilable) == ids([*parts(solver), *parts(teacher.network)])
    assert len(both.compilable) == 2 * (4 + 3)
    within = ids(module for part in both.compilable for module in part.modules())
    assert not within & ids([solver.head, *(auxiliary.head for auxiliary in solver.auxiliaries)])  # those grow


def test_nothing_is_compiled_where_a_gradient_is_differentiated(solver):
    second, absent = (Term("second", lambda step: 0.0, weight, second_order=True) for weight in (1.0, 0.0))
    assert SolverObjective(solver, None, [logits_term(), second], ROTATIONS).compilable == ()
    assert len(SolverObjective(solver, None, [logits_term(), absent], ROTATIONS).compilable) == 7


@pytest.mark.parametrize(("options", "count"), [({}, 0), ({"stage": 1}, 0), ({"gamma": 0.0}, 8)], ids=str)
def test_attention_at_an_earlier_stage_than_the_last_leaves_nothing_to_compile(lab, options, count):
    laboratory = lab("lwm", {"stage": 3} | options)
    laboratory.begin(0)
    assert len(laboratory.works(0)["solver"].compilable) == 4  # there is no attention yet
    laboratory.begin(1)
    assert len(laboratory.works(1)["solver"].compilable) == count


def test_a_phase_offers_what_its_objective_does(lab):
    laboratory = lab("etag")
    laboratory.begin(0, 1)
    works = laboratory.works(1)
    assert ids(works["solver"].compilable) == ids(
        [*parts(laboratory.method.solver), *parts(laboratory.method.teacher.network)]
    )
    assert works["generator"].compilable == ()
