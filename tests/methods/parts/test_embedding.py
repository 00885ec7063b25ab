from dataclasses import dataclass

import pytest
import torch
from torch import nn

from etag.core.errors import EtagError
from etag.core.random import Draws, Stream
from etag.data.views import ROTATIONS
from etag.methods.parts.embedding import EmbeddingDistillation, EmbeddingOptions
from etag.models.backbone import Backbone
from etag.models.heads import LinearHead
from etag.models.solver import Solver

KINDS = ["base", "all"]  # of `fidelity.aux_classes`
CLASSES = 7  # of the split b3-2x2


def options(kind, **rest):
    return {"fidelity": {"aux_classes": kind}, "embedding": rest}


def rows(head):
    """A head's weights, one row per output."""
    return torch.cat([block.weight.detach() for block in head.blocks])


def moved(head, untrained):
    """Which outputs have other weights than they started with; without weight decay, only a gradient does that."""
    return (rows(head) != rows(untrained)[: head.outputs]).any(1).tolist()


@pytest.fixture
def one_step(lab):
    """A laboratory that makes one step per task, and another that makes none."""

    def make(tasks, embedding, **rest):
        trained, untrained = (lab("etag", embedding | rest, steps=1, weight_decay=0.0) for _ in range(2))
        for index in tasks:
            trained.begin(index)
            trained.engine.train(trained.works(index)["solver"])
        untrained.begin(*tasks)
        return trained, untrained

    return make


# -- which outputs there are, and that they are trained before they are distilled ------------------


@pytest.mark.parametrize(("kind", "outputs"), [("base", [12, 12, 12]), ("all", [28, 28, 28])])
def test_the_auxiliaries_have_the_outputs_that_aux_classes_says(lab, kind, outputs):
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
        assert len(gradient) == (4 * CLASSES if kind == "all" else 12)
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
    trained, untrained = one_step([0], options("base"), head={"growth": "fixed"})
    assert moved(trained.method.solver.head, untrained.method.solver.head) == 3 * [True] + 4 * [False]


@pytest.mark.parametrize("kind", KINDS)
def test_distillation_compares_the_teachers_outputs(lab, disturb, naive, kind):
    laboratory = lab("etag", options(kind, tau=2.0, lambda_kl=1.0))
    laboratory.begin(0, 1)
    disturb(laboratory.method.solver)
    phase, said = laboratory.works(1)["solver"], []
    laboratory.method.solver.register_forward_hook(lambda *call: said.append(call[-1]))
    laboratory.method.teacher.network.register_forward_hook(lambda *call: said.append(call[-1]))
    kl = phase.module.eval()(next(phase.batches.epoch(0)))["aux_kl"].item()
    teacher, student = said
    assert {logits.shape[1] for logits in teacher.auxiliary} == {28 if kind == "all" else 12}
    pairs = zip(student.auxiliary, teacher.auxiliary, strict=True)
    assert kl == pytest.approx(sum(naive.divergence(new, old, tau=2.0) for new, old in pairs), rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_equation_2_is_for_the_base_task_only(lab, kind):
    laboratory = lab("etag", options(kind))
    laboratory.begin(0, 1)
    phase = laboratory.works(1)["solver"]
    assert "aux_ce" not in phase.module(next(phase.batches.epoch(0)))


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
@pytest.mark.parametrize("last_stage", [False, True])
def test_all_auxiliaries_are_trained_at_the_base_task_and_three_after_it(lab, last_stage, batch_norm):
    settings = {"embedding": {"last_stage": last_stage}, "batch_norm": batch_norm}
    laboratory = lab("etag", settings, steps=1, weight_decay=0.1)
    laboratory.begin(0)
    assert auxiliaries_moved(laboratory, 0) == [True] * (4 if last_stage else 3)
    laboratory.begin(1)
    assert auxiliaries_moved(laboratory, 1) == [True] * 3, "the one behind the last stage is removed"


def test_three_auxiliaries_are_distilled_where_four_were_trained(lab, disturb):
    found = []
    for last_stage in (False, True):
        laboratory = lab("etag", {"embedding": {"last_stage": last_stage}})
        laboratory.begin(0, 1)
        disturb(laboratory.method.solver)
        phase = laboratory.works(1)["solver"]
        found.append(phase.module.eval()(next(phase.batches.epoch(0)))["aux_kl"].item())
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0] > 0


def test_by_default_there_is_one_for_each_stage_but_the_last(lab):
    assert len(lab("etag").method.solver.auxiliaries) == 3


@pytest.mark.parametrize(("after_base", "moves"), [("trained", True), ("frozen", False)])
def test_the_auxiliaries_may_be_frozen_after_the_base_task(lab, after_base, moves):
    laboratory = lab("etag", {"embedding": {"after_base": after_base}}, steps=1, weight_decay=0.1)
    laboratory.begin(0)
    assert auxiliaries_moved(laboratory, 0) == [True] * 3
    laboratory.begin(1)
    assert auxiliaries_moved(laboratory, 1) == [moves] * 3


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("weights", [{}, {"lambda_kl": 0.0}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("last_stage", [False, True])
def test_what_is_stepped_is_what_the_loss_is_computed_from(lab, disturb, kind, last_stage, weights, index):
    """No classifier that is never trained changes the backbone; and DDP waits for every parameter's gradient."""
    without = {"lambda_l2": 0.0} if weights else {}
    laboratory = lab("etag", options(kind, last_stage=last_stage, **weights) | without)
    laboratory.begin(*range(index + 1))
    solver = disturb(laboratory.method.solver.requires_grad_(True))
    phase = laboratory.works(index)["solver"]
    sum(phase.module.eval()(next(phase.batches.epoch(0))).values()).backward()
    stepped = {id(parameter) for group in phase.groups for parameter in group.parameters}
    names = {name for name, parameter in solver.named_parameters() if id(parameter) in stepped}
    assert len(names) > 50
    assert {name for name, parameter in solver.named_parameters() if parameter.grad is not None} == names


def test_a_backbone_of_one_stage_is_refused():
    class OneStage(Backbone):
        feature_size = 4

        def __init__(self):
            super().__init__()
            self.stages = nn.ModuleList([nn.Conv2d(1, 4, 3)])

        def new_stage(self, number):
            return nn.Conv2d(4, 4, 3)

    part = EmbeddingDistillation(EmbeddingOptions())
    with pytest.raises(EtagError, match="two stages or more"):
        part.build(Solver(OneStage(), LinearHead(4)), Stream.root(0))


# -- some views of each image only -----------------------------------------------------------------


@dataclass(frozen=True)
class Shifted(Draws):
    """Draws whose order of rows is moved on by so many places."""

    by: int = 0

    def places_in_shuffle(self, purpose, rows):
        return super().places_in_shuffle(purpose, rows) + self.by


@pytest.fixture
def solver_phase(lab, disturb):
    """A solver's phase at a task, old and new networks differing; its BatchNorm is frozen."""

    def make(index, embedding, name="etag", **rest):
        laboratory = lab(name, {"embedding": embedding} | rest)
        for begun in range(index + 1):
            laboratory.begin(begun)
            disturb(laboratory.method.solver, key=begun)
        phase = laboratory.works(index)["solver"]
        phase.module.eval()
        return phase

    return make


def values(phase):
    return {name: value.item() for name, value in phase.module(next(phase.batches.epoch(0))).items()}


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize(
    ("embedding", "rest"),
    [({}, {}), ({"last_stage": True}, {"fidelity": {"l2_views": "all"}}), ({"views": "jigsaw"}, {})],
    ids=str,
)
def test_all_views_chosen_of_each_image_are_no_choice_at_all(solver_phase, embedding, rest, index):
    whole, chosen = (values(solver_phase(index, embedding | some, **rest)) for some in ({}, {"views_per_image": 4}))
    assert chosen == pytest.approx(whole, rel=1e-5)
    assert ("aux_kl" if index else "aux_ce") in chosen


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_terms_and_gradients_of_some_views_are_right_on_average(solver_phase, number, index):
    """Each of four cyclic choices selects other views of each image; their mean is the value of all views."""
    whole, some = (solver_phase(index, rest) for rest in ({}, {"views_per_image": number}))
    name = "aux_kl" if index else "aux_ce"

    def found(phase, by=0):
        batch, solver = next(phase.batches.epoch(0)), phase.module.solver
        batch.draws = Shifted(batch.draws.stream, by=by)
        terms = phase.module(batch)
        auxiliary = solver.auxiliaries[1]
        weights = [solver.backbone.stages[0][0][0].weight, auxiliary.branch[0][0].second[1].bias]
        weights += [*auxiliary.head.blocks[0].parameters()]
        return {key: value.item() for key, value in terms.items()}, torch.autograd.grad(terms[name], weights)

    terms, gradients = found(whole)
    each = [found(some, by) for by in range(4)]
    of_each = [values[name] for values, _ in each]
    assert sum(of_each) / 4 == pytest.approx(terms[name], rel=1e-5)
    assert max(of_each) - min(of_each) > 1e-3 * terms[name]  # alone, none of them is right
    for place, wanted in enumerate(gradients):
        mean = torch.stack([given[place] for _, given in each]).mean(0)
        assert wanted.abs().max() > 1e-4
        torch.testing.assert_close(mean, wanted, rtol=1e-4, atol=1e-5 * wanted.abs().max().item())
    for other in terms.keys() - {name}:  # these use the images, which are always there
        assert [values[other] for values, _ in each] == pytest.approx([terms[other]] * 4, rel=1e-5)


def test_every_step_draws_its_own_views(solver_phase):
    phase, shown = solver_phase(0, {"views_per_image": 1}), []
    phase.module.solver.register_forward_pre_hook(lambda _, inputs: shown.append(inputs[0]))
    for epoch in (0, 1):
        for batch in phase.batches.epoch(epoch):
            phase.module(batch)
            assert torch.equal(shown[-1].inputs[:12], batch.inputs)
            assert torch.equal(shown[-1].labels // 4, batch.labels)
    kinds = [tuple((each.labels % 4).tolist()) for each in shown]
    assert len(set(kinds)) == len(kinds) == 4
    assert all(kind.count(view) == 3 for kind in kinds for view in range(4))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_student_and_teacher_process_no_more_rows_than_needed(solver_phase, number):
    phase, rows = solver_phase(1, {"views_per_image": number}), []
    for network in (phase.module.solver, phase.module.teacher.network):
        network.backbone.stages[0].register_forward_hook(lambda _, x, __: rows.append(len(x[0])))
        network.backbone.stages[3].register_forward_hook(lambda _, x, __: rows.append(len(x[0])))
        network.auxiliaries[0].register_forward_hook(lambda _, x, __: rows.append(len(x[0])))
    values(phase)
    assert rows == 2 * [12 + 9 * number, 12 * number, 12]  # three of twelve images are their own first view


@pytest.mark.parametrize("name", ["etag", "egfr", "epass", "pass", "elwf", "epodnet"])
def test_methods_learn_from_one_view_per_image(lab, name):
    rest = {"exemplars": {"per_class": 2}} if name == "epodnet" else {}
    laboratory = lab(name, {"embedding": {"views_per_image": 1}} | rest, steps=2)
    laboratory.begin(0)
    seen = []
    laboratory.method.solver.auxiliaries[0].register_forward_hook(lambda _, x, __: seen.append(len(x[0])))
    before = [
        {key: value.clone() for key, value in a.state_dict().items()} for a in laboratory.method.solver.auxiliaries
    ]
    laboratory.engine.execute(laboratory.method.phases(laboratory.task(0)))
    laboratory.method.end_task(laboratory.task(0))
    for auxiliary, old in zip(laboratory.method.solver.auxiliaries, before, strict=True):
        assert any(not torch.equal(value, old[key]) for key, value in auxiliary.named_parameters())
    laboratory.learn(1)
    assert seen == 6 * [12]  # two steps of each task, and those of the teacher, which is a copy and reports too
    state = laboratory.method.solver.state_dict().values()
    assert all(value.isfinite().all() for value in state)


@pytest.mark.parametrize(("views", "count"), [("none", 1), ("rotation", 4), ("jigsaw", 4)])
def test_more_views_per_image_than_there_are_are_refused(lab, views, count):
    lab("etag", {"embedding": {"views": views, "views_per_image": count}})
    with pytest.raises(EtagError, match=rf"views_per_image={count + 1} is too many: {views} has {count} views\."):
        lab("etag", {"embedding": {"views": views, "views_per_image": count + 1}})


@pytest.mark.parametrize(("share", "number", "used"), [(0.5, 1, 6), (0.25, None, 12), (0.01, 2, 2)])
def test_a_step_may_use_the_views_of_some_images_only(solver_phase, share, number, used):
    phase, shown = solver_phase(1, {"views_per_image": number, "image_share": share}), []
    phase.module.solver.register_forward_pre_hook(lambda _, inputs: shown.append(inputs[0]))
    owners = set()
    for batch in (batch for epoch in range(4) for batch in phase.batches.epoch(epoch)):
        terms = phase.module(batch)
        assert all(value.isfinite() for value in terms.values())
        last = shown[-1]
        assert torch.equal(last.inputs[:12], batch.inputs), "the images are all there"
        assert len(last.selected) == len(last.labels) == used
        views = ROTATIONS.all_views(batch.inputs, batch.labels)
        for row, label in zip(last.inputs[last.selected], last.labels, strict=True):
            match = [k for k, view in enumerate(views.inputs) if torch.equal(view, row)]
            assert label in views.labels[match]
            owners.add(match[0] % 12)
    assert len(owners) > used / (number or 4), "other images at other steps"


def test_a_share_of_the_images_needs_larger_batches_for_batch_norm(lab):
    laboratory = lab("etag", {"embedding": {"image_share": 0.25}}, batch_size=12)
    laboratory.begin(0)
    with pytest.raises(EtagError, match=r"last batch of an epoch has 12 image\(s\), and BatchNorm needs 16"):
        laboratory.works(0)
