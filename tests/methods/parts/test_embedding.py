import pytest
import torch
from torch import nn

from etag.core.errors import EtagError
from etag.core.random import Stream
from etag.methods.parts.embedding import EmbeddingDistillation, EmbeddingOptions
from etag.models.backbone import Backbone
from etag.models.heads import LinearHead
from etag.models.solver import Solver

KINDS = ["none", "ce", "fixed"]
CLASSES = 7  # of the split b3-2x2


def options(kind, **rest):
    return {"embedding": {"aux_new": kind, **rest}}


def rows(head):
    """A head's weights, one row an output."""
    return torch.cat([block.weight.detach() for block in head.blocks])


def moved(head, untrained):
    """Which outputs have other weights than they started with; without weight decay, only a gradient does that."""
    return (rows(head) != rows(untrained)[: head.outputs]).any(1).tolist()


@pytest.fixture
def one_step(lab):
    """A laboratory that makes one step a task, and another that makes none."""

    def make(tasks, embedding, **rest):
        trained, untrained = (lab("etag", embedding | rest, steps=1, weight_decay=0.0) for _ in range(2))
        for index in tasks:
            trained.begin(index)
            trained.engine.train(trained.works(index)["solver"])
        untrained.begin(*tasks)
        return trained, untrained

    return make


# -- which outputs there are, and that they are trained before they are distilled ------------------


@pytest.mark.parametrize(("kind", "outputs"), [("none", [12, 12, 12]), ("ce", [12, 20, 28]), ("fixed", [28, 28, 28])])
def test_the_auxiliaries_have_the_outputs_that_aux_new_says(lab, kind, outputs):
    laboratory, found = lab("etag", options(kind)), []
    for index in range(3):
        laboratory.begin(index)
        found.append({auxiliary.head.outputs for auxiliary in laboratory.method.solver.auxiliaries})
    assert found == [{count} for count in outputs]


@pytest.mark.parametrize("kind", KINDS)
def test_equation_2_gives_every_output_a_gradient_at_the_base_task(one_step, kind):
    trained, _ = one_step([0], options(kind))  # after one real step
    phase = trained.works(0)["solver"]
    phase.module.train()
    phase.module(next(phase.batches.epoch(0)))["aux_ce"].backward()
    for auxiliary in trained.method.solver.auxiliaries:
        gradient = torch.cat([block.weight.grad for block in auxiliary.head.blocks])
        assert len(gradient) == (4 * CLASSES if kind == "fixed" else 12)
        assert gradient.any(1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_no_output_is_distilled_before_it_was_trained(one_step, kind):
    for tasks in ([0], [0, 1]):
        trained, untrained = one_step(tasks, options(kind))
        trained.begin(len(tasks))  # now the solver is a teacher
        pairs = zip(trained.method.teacher.network.auxiliaries, untrained.method.solver.auxiliaries, strict=True)
        for auxiliary, fresh in pairs:
            assert all(moved(auxiliary.head, fresh.head))


def test_an_output_that_was_never_trained_would_be_noticed(one_step):
    trained, untrained = one_step([0], options("none"), head="fixed", ce_new_support="seen")
    assert moved(trained.method.solver.head, untrained.method.solver.head) == 3 * [True] + 4 * [False]


@pytest.mark.parametrize("kind", KINDS)
def test_distillation_compares_the_teachers_outputs(lab, disturb, naive, kind):
    laboratory = lab("etag", options(kind, tau=2.0, lambda_kd=1.0))
    laboratory.begin(0, 1)
    disturb(laboratory.method.solver)
    phase, said = laboratory.works(1)["solver"], []
    laboratory.method.solver.register_forward_hook(lambda *call: said.append(call[-1]))
    laboratory.method.teacher.network.register_forward_hook(lambda *call: said.append(call[-1]))
    kl = phase.module.eval()(next(phase.batches.epoch(0)))["kl"].item()
    teacher, student = said
    assert {logits.shape[1] for logits in teacher.auxiliary} == {28 if kind == "fixed" else 12}
    pairs = zip(student.auxiliary, teacher.auxiliary, strict=True)
    assert kl == pytest.approx(sum(naive.divergence(new, old, tau=2.0) for new, old in pairs), rel=1e-4)


@pytest.mark.parametrize(("kind", "present"), [("none", False), ("ce", True), ("fixed", False)])
def test_equation_2_goes_on_after_the_base_task_only_where_auxiliaries_grow(lab, kind, present):
    laboratory = lab("etag", options(kind))
    laboratory.begin(0, 1)
    phase = laboratory.works(1)["solver"]
    assert ("aux_ce" in phase.module(next(phase.batches.epoch(0)))) is present


# -- how many auxiliaries there are ----------------------------------------------------------------


def auxiliaries_moved(laboratory, index):
    """Train one step of a task; which auxiliaries have changed, be it in weights or statistics."""
    auxiliaries = laboratory.method.solver.auxiliaries
    before = [{name: value.clone() for name, value in a.state_dict().items()} for a in auxiliaries]
    laboratory.engine.train(laboratory.works(index)["solver"])
    return [
        any(not torch.equal(value, old[name]) for name, value in auxiliary.state_dict().items())
        for auxiliary, old in zip(auxiliaries, before, strict=True)
    ]


@pytest.mark.parametrize("batch_norm", ["frozen", "train"])
@pytest.mark.parametrize("count", [3, 4])
def test_all_auxiliaries_are_trained_at_the_base_task_and_three_after_it(lab, count, batch_norm):
    laboratory = lab("etag", options("none", num_aux=count) | {"batch_norm": batch_norm}, steps=1, weight_decay=0.1)
    laboratory.begin(0)
    assert auxiliaries_moved(laboratory, 0) == [True] * count
    laboratory.begin(1)
    moved = auxiliaries_moved(laboratory, 1)
    assert moved[:3] == [True] * 3
    assert not any(moved[3:])


def test_three_auxiliaries_are_distilled_where_four_exist(lab, disturb):
    found = []
    for count in (3, 4):
        laboratory = lab("etag", options("none", num_aux=count))
        laboratory.begin(0, 1)
        disturb(laboratory.method.solver)
        phase = laboratory.works(1)["solver"]
        found.append(phase.module.eval()(next(phase.batches.epoch(0)))["kl"].item())
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0] > 0


def test_no_count_is_one_for_each_stage_but_the_last(lab):
    assert len(lab("etag").method.solver.auxiliaries) == 3


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("weights", [{}, {"lambda_kd": 0.0}, {"weight": 0.0}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [3, 4])
def test_what_is_stepped_is_what_the_loss_is_computed_from(lab, disturb, kind, count, weights, index):
    """No classifier that is never trained pulls at the backbone; and DDP waits for every parameter's gradient."""
    laboratory = lab("etag", options(kind, num_aux=count, **weights) | {"kd_weight": 0.0 if weights else 1.0})
    laboratory.begin(*range(index + 1))
    solver = disturb(laboratory.method.solver.requires_grad_(True))
    phase = laboratory.works(index)["solver"]
    sum(phase.module.eval()(next(phase.batches.epoch(0))).values()).backward()
    stepped = {id(parameter) for player in phase.players for parameter in player.parameters}
    names = {name for name, parameter in solver.named_parameters() if id(parameter) in stepped}
    assert len(names) > 50
    assert {name for name, parameter in solver.named_parameters() if parameter.grad is not None} == names


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_count_that_does_not_fit_is_refused(lab, count):
    with pytest.raises(EtagError, match=f"num_aux={count} does not fit: 3 or 4 are possible"):
        lab("etag", options("none", num_aux=count))


def test_a_backbone_of_one_stage_has_nothing_to_distil():
    class OneStage(Backbone):
        feature_size = 4

        def __init__(self):
            super().__init__()
            self.stages = nn.ModuleList([nn.Conv2d(1, 4, 3)])

        def new_stage(self, number):
            return nn.Conv2d(4, 4, 3)

    part = EmbeddingDistillation(EmbeddingOptions())
    with pytest.raises(EtagError, match="at least two stages"):
        part.build(Solver(OneStage(), LinearHead(4)), Stream.root(0))
