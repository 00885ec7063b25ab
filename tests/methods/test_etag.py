import math
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from etag.methods.parts.ratio import class_ratio

from etag.core.options import TrainOptions
from etag.core.outputs import Need
from etag.core.random import Placement, Stream
from etag.core.scenario import Task
from etag.data.preprocess import Preprocess
from etag.data.scenario import parse_split
from etag.methods.base import Context
from etag.methods.etag import EtagOptions
from etag.methods.registry import METHODS
from etag.models.backbone import ModelOptions

RELEASE = {
    "ratio": "integer",
    "ce_normalize": True,
    "l2_reduction": "frobenius",
    "l2_views": "all",
    "head": {"growth": "fixed"},
    "ce_new_support": "all",
    "ce_replay_support": "all",
    "argmax": "all",
    "embedding": {"num_aux": 4, "aux_new": "fixed", "ratio": "integer", "batch_norm": "views"},
    "generator": {"last_task": False},
}

# -- the ratio of old classes to new ones ----------------------------------------------------------


def tasks_of(split):
    sizes = parse_split(split)
    return [Task(t, sum(sizes[:t]), new, None, None, base=sizes[0]) for t, new in enumerate(sizes)]


@pytest.mark.parametrize(
    ("split", "ratios"), [("b50-5x10", range(5, 10)), ("b50-10x5", range(10, 20)), ("b0-4x25", range(1, 4))]
)
def test_the_two_ratios_agree_where_the_step_divides_the_base(split, ratios):
    for kind in ("integer", "exact"):
        assert [class_ratio(task, kind) for task in tasks_of(split)[1:]] == list(ratios)


def test_the_releases_ratio_is_rounded_down():
    first = tasks_of("b40-20x3")[1]
    assert class_ratio(first, "integer") == 13
    assert class_ratio(first, "exact") == pytest.approx(40 / 3)


@pytest.mark.parametrize("kind", ["integer", "exact"])
def test_nothing_is_old_at_the_base_task(kind):
    assert class_ratio(tasks_of("b50-5x10")[0], kind) == 0


# -- the solver's objective, one number at a time --------------------------------------------------


def said(solver, images, turns):
    """What a solver says of quarter turn r of image k (row k * turns + r), stage by stage, in float64."""
    net = deepcopy(solver).double().eval()
    turned = np.stack([np.rot90(image, r, axes=(1, 2)) for image in images.double().numpy() for r in range(turns)])
    with torch.no_grad():
        x, auxiliary = torch.from_numpy(turned), []
        for number, stage in enumerate(net.backbone.stages):
            x = stage(x)
            if number < len(net.auxiliaries):
                auxiliary.append(net.auxiliaries[number].branch(x).mean((2, 3)).numpy())
    return SimpleNamespace(features=x.mean((2, 3)).numpy(), auxiliary=auxiliary)


def naive_terms(naive, laboratory, index, batch):
    """Eq. (8) at the base task, Eq. (9) after it, from the networks and the step's draws."""
    method, task, o = laboratory.method, laboratory.task(index), laboratory.method.options
    solver, labels = method.solver, batch.labels.tolist()
    e, turns = o.embedding, {"rotation": 4, "none": 1}[o.embedding.views]
    student = said(solver, batch.inputs, turns)
    logits = naive.head(solver.head, student.features[::turns])
    terms = {"ce": naive.cross_entropy(logits, labels, naive.outputs_in(o.ce_new_support, task, solver.head))}
    student_logits = [naive.head(a.head, f) for a, f in zip(solver.auxiliaries, student.auxiliary, strict=True)]
    view_labels = [turns * label + r for label in labels for r in range(turns)]
    if index == 0 or e.aux_new == "ce":
        terms["aux_ce"] = e.weight * sum(naive.cross_entropy(stage, view_labels) for stage in student_logits)
    if index == 0:
        return terms

    ratios = {"exact": task.old / task.new, "integer": task.base // task.new + index - 1}
    ratio = ratios[o.ratio]
    lambda_ce = ratio if o.lambda_ce is None else o.lambda_ce
    lambda_kd = (ratio if o.lambda_kd is None else o.lambda_kd) * o.kd_weight
    rows, latent = o.replay_batch or len(labels), o.generator.latent
    old_labels = batch.draws.integers("replay labels", 0, task.old, rows).tolist()
    codes = batch.draws.normal("replay codes", rows, latent)
    replayed = naive.head(solver.head, naive.decode(method.generator.old.network, codes, old_labels))
    competing = naive.outputs_in(o.ce_replay_support, task, solver.head)
    terms["replay"] = lambda_ce * naive.cross_entropy(replayed, old_labels, competing)
    if o.ce_normalize:
        terms["ce"] /= 1 + lambda_ce
        terms["replay"] /= 1 + lambda_ce

    teacher = said(method.teacher.network, batch.inputs, turns)
    every = turns if o.l2_views == "plain" else 1
    squares = naive.squares(student.features[::every], teacher.features[::every])
    mean_norm = sum(map(math.sqrt, squares)) / len(squares)
    terms["l2"] = lambda_kd * (mean_norm if o.l2_reduction == "mean_norm" else math.sqrt(sum(squares)))
    terms["kl"] = 0.0
    weight = e.weight * (ratios[e.ratio] if e.lambda_kd is None else e.lambda_kd)
    for stage in range(3):
        old = naive.head(method.teacher.network.auxiliaries[stage].head, teacher.auxiliary[stage])
        terms["kl"] += weight * naive.divergence(student_logits[stage], old, e.tau)
    return terms


@pytest.fixture
def at_task(lab, disturb):
    """A laboratory whose task has begun, with old and new networks that differ; and that task's solver phase."""

    def make(index, options=None, **train):
        laboratory = lab("etag", options, **train)
        for begun in range(index + 1):
            laboratory.begin(begun)
            for part in laboratory.method.parts.values():
                disturb(part, key=begun)
        return laboratory, next(laboratory.method.phases(laboratory.task(index)))

    return make


def computed(phase):
    """A batch, and the terms of it as numbers, BatchNorm statistics being frozen."""
    batch = next(phase.batches.epoch(0))
    with torch.no_grad():
        return batch, {name: value.item() for name, value in phase.module.eval()(batch).items()}


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("options", [{}, RELEASE], ids=["paper", "release"])
def test_the_objective_is_the_papers_equation_or_the_releases_code(naive, at_task, options, index):
    laboratory, phase = at_task(index, options)
    batch, terms = computed(phase)
    assert terms == pytest.approx(naive_terms(naive, laboratory, index, batch), rel=1e-4)
    assert set(terms) == ({"ce", "replay", "l2", "kl"} if index else {"ce", "aux_ce"})
    assert min(terms.values()) > 1e-3


# what an option is compared with, its other value, and the terms that must change
SWITCHES = {
    "ratio": ({}, {"ratio": "integer"}, {"replay", "l2"}),
    "ce_normalize": ({}, {"ce_normalize": True}, {"ce", "replay"}),
    "lambda_ce": ({}, {"lambda_ce": 4.0}, {"replay"}),
    "lambda_ce normalized": ({"ce_normalize": True}, {"ce_normalize": True, "lambda_ce": 4.0}, {"ce", "replay"}),
    "lambda_kd": ({}, {"lambda_kd": 4.0}, {"l2"}),
    "kd_weight": ({}, {"kd_weight": 0.5}, {"l2"}),
    "l2_reduction": ({}, {"l2_reduction": "frobenius"}, {"l2"}),
    "l2_views": ({}, {"l2_views": "all"}, {"l2"}),
    "ce_new_support new": ({}, {"ce_new_support": "new"}, {"ce"}),
    "ce_new_support all": (
        {"head": {"growth": "fixed"}},
        {"head": {"growth": "fixed"}, "ce_new_support": "all"},
        {"ce"},
    ),
    "ce_replay_support old": ({}, {"ce_replay_support": "old"}, {"replay"}),
    "ce_replay_support all": (
        {"head": {"growth": "fixed"}},
        {"head": {"growth": "fixed"}, "ce_replay_support": "all"},
        {"replay"},
    ),
    "replay_batch": ({}, {"replay_batch": 5}, {"replay"}),
    "embedding ratio": ({}, {"embedding": {"ratio": "integer"}}, {"kl"}),
    "embedding lambda_kd": ({}, {"embedding": {"lambda_kd": 4.0}}, {"kl"}),
    "embedding weight": ({}, {"embedding": {"weight": 0.5}}, {"kl"}),
    "embedding weight with aux_new": (
        {"embedding": {"aux_new": "ce"}},
        {"embedding": {"aux_new": "ce", "weight": 0.5}},
        {"kl", "aux_ce"},
    ),
    "embedding views": ({}, {"embedding": {"views": "none"}}, {"kl"}),
    "embedding batch_norm": ({}, {"embedding": {"batch_norm": "views"}}, set()),
    "tau": ({}, {"embedding": {"tau": 1.0}}, {"kl"}),
    "aux_new ce": ({}, {"embedding": {"aux_new": "ce"}}, {"aux_ce"}),
    "aux_new fixed": ({}, {"embedding": {"aux_new": "fixed"}}, {"kl"}),
    "num_aux": ({}, {"embedding": {"num_aux": 4}}, set()),
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_each_option_changes_its_own_terms_as_it_says(naive, at_task, switch):
    reference, other, changed = SWITCHES[switch]
    _, before = computed(at_task(1, reference)[1])
    laboratory, phase = at_task(1, other)
    batch, after = computed(phase)
    assert after == pytest.approx(naive_terms(naive, laboratory, 1, batch), rel=1e-4)
    assert {name for name in after if after[name] != pytest.approx(before.get(name, 0), rel=1e-4)} == changed


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"l2_views": "all"},
        {"replay_batch": 6},
        {"embedding": {"aux_new": "ce"}},
        {"embedding": {"aux_new": "ce", "views_per_image": 1}},
        {"l2_views": "all", "embedding": {"views_per_image": 3}},
    ],
    ids=str,
)
def test_the_mean_over_two_processes_is_what_one_computes(at_task, options):
    laboratory, phase = at_task(1, options)
    _, alone = computed(phase)
    method, shares = laboratory.method, []
    for rank in range(2):
        method.context = replace(method.context, placement=Placement(rank=rank, world=2))
        shares.append(computed(next(method.phases(laboratory.task(1))))[1])
    assert {name: (shares[0][name] + shares[1][name]) / 2 for name in alone} == pytest.approx(alone, rel=1e-4)


def test_student_and_teacher_agree_when_a_task_begins(lab):
    laboratory = lab("etag")
    laboratory.learn(0)
    laboratory.begin(1)
    _, terms = computed(next(laboratory.method.phases(laboratory.task(1))))
    assert terms["l2"] == 0
    assert terms["kl"] == 0
    assert terms["ce"] > 0


@pytest.mark.parametrize(
    ("options", "absent"),
    [
        ({"lambda_kd": 0.0}, {"l2"}),
        ({"kd_weight": 0.0}, {"l2"}),
        ({"embedding": {"lambda_kd": 0.0}}, {"kl"}),
        ({"embedding": {"weight": 0.0}}, {"kl"}),
        ({"embedding": None}, {"kl"}),
        ({"lambda_kd": 0.0, "embedding": {"lambda_kd": 0.0}}, {"l2", "kl"}),
        ({"kd_weight": 0.0, "embedding": {"weight": 0.0}}, {"l2", "kl"}),
        ({"kd_weight": 0.0, "embedding": None}, {"l2", "kl"}),
        ({"lambda_ce": 0.0}, {"replay"}),
    ],
    ids=lambda value: str(sorted(value)) if isinstance(value, set) else str(value),
)
def test_a_weight_of_zero_leaves_the_term_out(at_task, options, absent):
    laboratory, phase = at_task(1, options)
    rows, old = [], []
    laboratory.method.solver.backbone.stages[0].register_forward_hook(lambda _, x, __: rows.append(len(x[0])))
    laboratory.method.teacher.network.backbone.stages[0].register_forward_hook(lambda *_: old.append("teacher"))
    laboratory.method.generator.old.network.decoder.register_forward_hook(lambda *_: old.append("generator"))
    _, terms = computed(phase)
    assert set(terms) == {"ce", "replay", "l2", "kl"} - absent
    # views are made for embedding distillation; the teacher is asked for either kind, the old generator for replay
    asked = [] if "replay" in absent else ["generator"]
    asked += [] if absent >= {"l2", "kl"} else ["teacher"]
    assert (rows, sorted(old)) == ([12 if "kl" in absent else 48], asked)


PULLS = {
    # task, term: the parts it trains
    (0, "ce"): {"stage 1", "stage 2", "stage 3", "stage 4", "head"},
    (0, "aux_ce"): {"stage 1", "stage 2", "stage 3", "auxiliary"},
    (1, "ce"): {"stage 1", "stage 2", "stage 3", "stage 4", "head"},
    (1, "replay"): {"head"},
    (1, "l2"): {"stage 1", "stage 2", "stage 3", "stage 4"},
    (1, "kl"): {"stage 1", "stage 2", "stage 3", "auxiliary"},
}


@pytest.mark.parametrize(("index", "term"), PULLS)
def test_each_term_trains_its_own_parts(at_task, index, term):
    laboratory, phase = at_task(index)
    solver = laboratory.method.solver.requires_grad_(True)
    phase.module.eval()(next(phase.batches.epoch(0)))[term].backward()
    parts = {f"stage {number}": stage for number, stage in enumerate(solver.backbone.stages, start=1)}
    parts |= {"head": solver.head, "auxiliary": solver.auxiliaries}
    pulled = {
        name for name, part in parts.items() if any(p.grad is not None and p.grad.any() for p in part.parameters())
    }
    assert pulled == PULLS[index, term]


# -- through the engine ----------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "moves"), [(None, False), ("frozen", False), ("train", True)])
def test_batch_norm_statistics_rest_after_the_base_task(lab, snapshot, mode, moves):
    laboratory = lab("etag", {} if mode is None else {"batch_norm": mode})
    laboratory.begin(0)
    fresh = snapshot(laboratory.method.solver)
    laboratory.engine.train(next(laboratory.method.phases(laboratory.task(0))))
    base = snapshot(laboratory.method.solver)
    laboratory.begin(1)
    laboratory.engine.train(next(laboratory.method.phases(laboratory.task(1))))
    after = laboratory.method.solver.state_dict()
    statistics = [name for name in base if name.endswith(("running_mean", "running_var", "num_batches_tracked"))]
    weights = [name for name in base if name.startswith("backbone") and name not in statistics]
    assert len(statistics) > 100
    assert all(not torch.equal(base[name], fresh[name]) for name in statistics)
    assert {torch.equal(after[name], base[name]) for name in statistics} == {not moves}
    assert all(not torch.equal(after[name], base[name]) for name in weights)  # affine weights of BatchNorm included


def statistics(method):
    """Those that the BatchNorm of the backbone's stages has gathered, stage by stage."""
    names = ("running_mean", "running_var", "num_batches_tracked")
    stages = method.solver.backbone.stages
    return [{key: value for key, value in stage.state_dict().items() if key.endswith(names)} for stage in stages]


@pytest.mark.parametrize(
    ("options", "apart"), [({}, True), ({"batch_norm": "images"}, True), ({"batch_norm": "views"}, False)]
)
@pytest.mark.parametrize("index", [0, 1])
def test_what_the_backbone_remembers_of_a_step_is_of_the_images_or_of_all_views(lab, options, apart, index):
    """By default as without auxiliaries; all views together as in the release."""
    etag = lab("etag", {"embedding": options, "batch_norm": "train"}, steps=1)
    fine = lab("fine", steps=1)
    for laboratory in (etag, fine):
        laboratory.begin(*range(index + 1))
    phase = next(etag.method.phases(etag.task(index)))
    batch, reference = next(phase.batches.epoch(0)), deepcopy(etag.method.solver)
    etag.engine.train(phase)
    fine.engine.train(next(fine.method.phases(fine.task(index))))
    found, alone = statistics(etag.method), statistics(fine.method)
    joined, x = [], torch.stack([batch.inputs.rot90(r, dims=(2, 3)) for r in range(4)], dim=1).flatten(0, 1)
    for stage in list(reference.train().backbone.stages)[:3]:
        x = stage(x)
        joined.append({key: value for key, value in stage.state_dict().items() if key in alone[len(joined)]})
    for stage in range(3):
        for key, value in found[stage].items():
            torch.testing.assert_close(value, (alone if apart else joined)[stage][key])
            if not key.endswith("num_batches_tracked"):
                assert not torch.allclose(value, (joined if apart else alone)[stage][key])
            else:
                assert value == 1
    same = all(torch.allclose(value, alone[3][key], rtol=1e-5, atol=1e-6) for key, value in found[3].items())
    assert same is apart  # the last stage sees the images only; but those have been normalized by others


def test_the_old_networks_do_not_change_while_a_task_is_learned(lab, snapshot):
    laboratory = lab("etag")
    laboratory.learn(0)
    laboratory.begin(1)
    old = {"teacher": laboratory.method.teacher, "generator": laboratory.method.generator.old}
    before = {name: snapshot(module) for name, module in old.items()}
    laboratory.engine.execute(laboratory.method.phases(laboratory.task(1)))
    for name, module in old.items():
        assert all(torch.equal(value, before[name][key]) for key, value in module.state_dict().items())


def test_old_and_new_class_rows_both_learn(lab, snapshot):
    laboratory = lab("etag")
    laboratory.learn(0)
    laboratory.begin(1)
    before = snapshot(laboratory.method.solver.head)
    laboratory.engine.train(next(laboratory.method.phases(laboratory.task(1))))
    assert len(before) == 4
    assert all(
        not torch.equal(value, before[key]) for key, value in laboratory.method.solver.head.state_dict().items()
    )


def test_a_task_is_solver_then_features_then_generator(lab):
    laboratory = lab("etag")
    laboratory.begin(0)
    assert list(laboratory.works(0)) == ["solver", "features", "generator"]


@pytest.mark.parametrize(("last_task", "last"), [(True, ["solver", "features", "generator"]), (False, ["solver"])])
def test_the_generator_may_rest_after_the_last_task(lab, last_task, last):
    laboratory = lab("etag", {"generator": {"last_task": last_task}})
    works = []
    for index in range(3):
        laboratory.begin(index)
        works.append(list(laboratory.works(index)))
    assert works == [["solver", "features", "generator"]] * 2 + [last]


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(lab, snapshot):
    def learned(seed):
        laboratory = lab("etag", seed=seed)
        laboratory.learn(0, 1)
        return snapshot(laboratory.method.solver) | snapshot(laboratory.method.generator.network)

    first, again, other = learned(0), learned(0), learned(1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.blocks.1.weight"], other["head.blocks.1.weight"])


def test_a_term_of_weight_zero_is_no_term_at_all(lab, snapshot):
    """Without distillation and replay, what is left of eTag after the base task is fine-tuning."""
    alone = lab("etag", {"lambda_kd": 0.0, "lambda_ce": 0.0, "batch_norm": "train", "embedding": {"lambda_kd": 0.0}})
    fine = lab("fine")
    for laboratory in (alone, fine):
        laboratory.begin(0)
        laboratory.begin(1)
        laboratory.engine.train(next(laboratory.method.phases(laboratory.task(1))))
    learned = snapshot(alone.method.solver)
    assert all(torch.equal(value, learned[name]) for name, value in fine.method.solver.state_dict().items())


@pytest.mark.parametrize("embedding", [None, {"weight": 0.0}])
def test_without_any_of_its_parts_it_is_fine_tuning_from_the_base_task_on(lab, snapshot, embedding):
    alone = lab("etag", {"lambda_kd": 0.0, "lambda_ce": 0.0, "batch_norm": "train", "embedding": embedding})
    fine = lab("fine")
    for laboratory in (alone, fine):
        for index in (0, 1):
            laboratory.begin(index)
            laboratory.engine.train(next(laboratory.method.phases(laboratory.task(index))))
    learned = snapshot(alone.method.solver)
    assert all(torch.equal(value, learned[name]) for name, value in fine.method.solver.state_dict().items())


# -- sizes and defaults ----------------------------------------------------------------------------


def test_the_whole_of_etag_has_43_203_044_parameters():
    context = Context(
        channels=3,
        size=32,
        classes=100,
        stream=Stream.root(0),
        placement=Placement(),
        model=ModelOptions(),
        train=TrainOptions(),
        preprocess=Preprocess((0.5,) * 3, (0.2,) * 3, 32, True),
    )
    method = METHODS["etag"](EtagOptions(name="etag"), context)
    method.rebuild([100])
    assert sum(p.numel() for part in method.parts.values() for p in part.parameters()) == 43_203_044


def test_the_defaults_are_the_papers():
    o = EtagOptions(name="etag")
    assert (o.ratio, o.ce_normalize, o.kd_weight, o.l2_reduction, o.l2_views) == (
        "exact",
        False,
        1,
        "mean_norm",
        "plain",
    )
    assert (o.lambda_ce, o.lambda_kd, o.lambda_vae, o.replay_batch) == (None, None, None, None)
    assert (o.ce_new_support, o.ce_replay_support, o.argmax, o.head, o.batch_norm) == (
        *3 * ["seen"],
        "growing",
        "frozen",
    )
    assert (o.embedding.tau, o.embedding.num_aux, o.embedding.aux_new) == (3.0, None, "none")
    assert (o.embedding.weight, o.embedding.lambda_kd, o.embedding.ratio) == (1, None, "exact")
    assert (o.embedding.views, o.embedding.batch_norm, o.guidance) == ("rotation", "images", True)
    assert o.embedding.views_per_image is None
    g = o.generator
    assert g.kind == "cvae"
    assert (g.latent, g.hidden, g.last_task, g.recon, g.ce_old) == (200, 512, True, "gaussian", False)
    assert (g.ce_current_input, g.ce_current_support, g.ce_current_weight) == ("prior", "seen", "one")
    assert (g.old_match_weight, g.old_match_reduction) == (1.0, "gaussian")


def test_auxiliaries_are_for_training_only(lab):
    laboratory = lab("etag")
    laboratory.learn(0)
    assert laboratory.method.predictor().need == Need.LOGITS
