"""eTag: Eqs. (8) and (9) one number at a time, what each option changes, and what a task does."""

import math
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from etag.core.options import TrainOptions
from etag.core.outputs import Need
from etag.core.random import Placement, Stream
from etag.data.preprocess import Preprocess
from etag.methods.abilities import CanForget, CanUpdate, GeneratesFeatures, GeneratesImages
from etag.methods.base import Context
from etag.methods.etag import EtagOptions
from etag.methods.parts.fidelity import FidelityOptions
from etag.methods.registry import METHODS
from etag.models.backbone import ModelOptions
from etag.models.heads import HeadOptions

RELEASE = {
    "head": {"growth": "fixed"},
    "embedding": {"last_stage": True},
    "generator": {"last_task": False},
    "fidelity": {
        "ratio": "integer",
        "normalize_ce": True,
        "l2_reduction": "frobenius",
        "l2_views": "all",
        "ce_new": "all",
        "ce_replay": "all",
        "argmax": "all",
        "aux_classes": "all",
        "backbone_batch_norm": "views",
    },
}

# -- the solver's objective, one number at a time --------------------------------------------------


def outputs(solver, images, turns):
    """A solver's outputs for quarter turn r of image k (row k * turns + r), stage by stage, in float64."""
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
    e, f, turns = o.embedding, o.fidelity, {"rotation": 4, "none": 1}[o.embedding.views]
    student = outputs(solver, batch.inputs, turns)
    logits = naive.head(solver.head, student.features[::turns])
    terms = {"ce": naive.cross_entropy(logits, labels, naive.outputs_in(f.ce_new, task, solver.head))}
    student_logits = [naive.head(a.head, f) for a, f in zip(solver.auxiliaries, student.auxiliary, strict=True)]
    view_labels = [turns * label + r for label in labels for r in range(turns)]
    if index == 0:
        terms["aux_ce"] = sum(naive.cross_entropy(stage, view_labels) for stage in student_logits)
        return terms

    ratios = {"exact": task.num_old / task.num_new, "integer": task.num_base // task.num_new + index - 1}
    ratio = ratios[f.ratio]
    lambda_ce = ratio if o.lambda_ce is None else o.lambda_ce
    lambda_l2 = ratio if o.lambda_l2 is None else o.lambda_l2
    rows, latent = len(labels), o.generator.latent
    old_labels = batch.draws.integers("replay labels", 0, task.num_old, rows).tolist()
    codes = batch.draws.normal("replay codes", rows, latent)
    replayed = naive.head(solver.head, naive.decode(method.generator.old.network, codes, old_labels))
    competing = naive.outputs_in(f.ce_replay, task, solver.head)
    terms["replay"] = lambda_ce * naive.cross_entropy(replayed, old_labels, competing)
    if f.normalize_ce:
        terms["ce"] /= 1 + lambda_ce
        terms["replay"] /= 1 + lambda_ce

    teacher = outputs(method.teacher.network, batch.inputs, turns)
    every = turns if f.l2_views == "plain" else 1
    squares = naive.squares(student.features[::every], teacher.features[::every])
    mean_norm = sum(map(math.sqrt, squares)) / len(squares)
    terms["l2"] = lambda_l2 * (mean_norm if f.l2_reduction == "mean_norm" else math.sqrt(sum(squares)))
    terms["aux_kl"] = 0.0
    weight = ratio if e.lambda_kl is None else e.lambda_kl
    for stage in range(3):
        old = naive.head(method.teacher.network.auxiliaries[stage].head, teacher.auxiliary[stage])
        terms["aux_kl"] += weight * naive.divergence(student_logits[stage], old, e.tau)
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
    assert set(terms) == ({"ce", "replay", "l2", "aux_kl"} if index else {"ce", "aux_ce"})
    assert min(terms.values()) > 1e-3


FIXED = {"head": {"growth": "fixed"}}

# what an option is compared with, its other value, and the terms that must change
SWITCHES = {
    "lambda_ce": ({}, {"lambda_ce": 4.0}, {"replay"}),
    "lambda_l2": ({}, {"lambda_l2": 4.0}, {"l2"}),
    "ratio": ({}, {"fidelity": {"ratio": "integer"}}, {"replay", "l2", "aux_kl"}),
    "normalize_ce": ({}, {"fidelity": {"normalize_ce": True}}, {"ce", "replay"}),
    "lambda_ce normalized": (
        {"fidelity": {"normalize_ce": True}},
        {"fidelity": {"normalize_ce": True}, "lambda_ce": 4.0},
        {"ce", "replay"},
    ),
    "l2_reduction": ({}, {"fidelity": {"l2_reduction": "frobenius"}}, {"l2"}),
    "l2_views": ({}, {"fidelity": {"l2_views": "all"}}, {"l2"}),
    "ce_new new": ({}, {"fidelity": {"ce_new": "new"}}, {"ce"}),
    "ce_new all": (FIXED, FIXED | {"fidelity": {"ce_new": "all"}}, {"ce"}),
    "ce_replay old": ({}, {"fidelity": {"ce_replay": "old"}}, {"replay"}),
    "ce_replay all": (FIXED, FIXED | {"fidelity": {"ce_replay": "all"}}, {"replay"}),
    "lambda_kl": ({}, {"embedding": {"lambda_kl": 4.0}}, {"aux_kl"}),
    "views": ({}, {"embedding": {"views": "none"}}, {"aux_kl"}),
    "backbone_batch_norm": ({}, {"fidelity": {"backbone_batch_norm": "views"}}, set()),
    "tau": ({}, {"embedding": {"tau": 1.0}}, {"aux_kl"}),
    "aux_classes": ({}, {"fidelity": {"aux_classes": "all"}}, {"aux_kl"}),
    "last_stage": ({}, {"embedding": {"last_stage": True}}, set()),
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
        {"fidelity": {"l2_views": "all"}},
        {"embedding": {"views_per_image": 1}},
        {"fidelity": {"l2_views": "all"}, "embedding": {"views_per_image": 3}},
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
    assert terms["aux_kl"] == 0
    assert terms["ce"] > 0


@pytest.mark.parametrize(
    ("options", "absent"),
    [
        ({"lambda_l2": 0.0}, {"l2"}),
        ({"embedding": {"lambda_kl": 0.0}}, {"aux_kl"}),
        ({"embedding": None}, {"aux_kl"}),
        ({"lambda_l2": 0.0, "embedding": {"lambda_kl": 0.0}}, {"l2", "aux_kl"}),
        ({"lambda_l2": 0.0, "embedding": None}, {"l2", "aux_kl"}),
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
    assert set(terms) == {"ce", "replay", "l2", "aux_kl"} - absent
    # views serve embedding distillation; the teacher serves either distillation, the old generator serves replay
    asked = [] if "replay" in absent else ["generator"]
    asked += [] if absent >= {"l2", "aux_kl"} else ["teacher"]
    assert (rows, sorted(old)) == ([12 if "aux_kl" in absent else 48], asked)


def solver_weights(lab, index=1, **options):
    """The weight of each term of the solver, by name."""
    laboratory = lab("etag", options)
    laboratory.begin(*range(index + 1))
    return {term.name: term.weight for term in laboratory.method.solver_terms(laboratory.task(index))}


def test_equation_8_is_a_plain_sum(lab):
    assert solver_weights(lab, index=0) == {"ce": 1, "aux_ce": 1}
    assert solver_weights(lab, index=0, fidelity={"normalize_ce": True}) == {"ce": 1, "aux_ce": 1}


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({}, {"ce": 1, "replay": 1.5, "l2": 1.5, "aux_kl": 1.5}),  # three old classes, two new ones
        ({"fidelity": {"normalize_ce": True}}, {"ce": 1 / 2.5, "replay": 1.5 / 2.5, "l2": 1.5, "aux_kl": 1.5}),
        (
            {"lambda_ce": 5.0, "fidelity": {"normalize_ce": True}},
            {"ce": 1 / 6, "replay": 5 / 6, "l2": 1.5, "aux_kl": 1.5},
        ),
        ({"lambda_ce": 5.0, "lambda_l2": 2.0}, {"ce": 1, "replay": 5, "l2": 2, "aux_kl": 1.5}),
        ({"lambda_ce": 0.0, "fidelity": {"normalize_ce": True}}, {"ce": 1, "replay": 0, "l2": 1.5, "aux_kl": 1.5}),
    ],
    ids=str,
)
def test_equation_9_weights_replay_and_distillation_by_lambda(lab, options, weights):
    assert solver_weights(lab, **options) == pytest.approx(weights)


def generator_weights(lab, index=1, **options):
    laboratory = lab("etag", options)
    return laboratory.method.generator_weights(laboratory.task(index))


@pytest.mark.parametrize("fidelity", [{}, {"guide_weight": "normalized", "guide_old": True}], ids=str)
def test_equation_6_is_a_plain_sum(lab, fidelity):
    weights = generator_weights(lab, 0, lambda_vae=5.0, fidelity=fidelity)
    assert weights == {"kl": 1, "recon": 1, "guide": 1}, "there is no old generator to match"


@pytest.mark.parametrize(
    ("fidelity", "guide", "guide_old"),
    [
        ({}, 1, 0),
        ({"guide_weight": "normalized"}, 1 / 2.5, 0),
        ({"guide_old": True}, 1, 1.5 / 2.5),
        ({"guide_weight": "normalized", "guide_old": True}, 1 / 2.5, 1.5 / 2.5),
    ],
    ids=str,
)
def test_equation_10_weights_the_match_with_the_old_generator_by_lambda(lab, fidelity, guide, guide_old):
    weights = generator_weights(lab, lambda_vae=0.7, fidelity=fidelity)
    assert weights == pytest.approx({"kl": 1, "recon": 1, "guide": guide, "guide_old": guide_old, "match": 0.7})
    unguided = generator_weights(lab, lambda_vae=0.7, fidelity=fidelity, guidance=False)
    assert unguided == pytest.approx({"kl": 1, "recon": 1, "guide": 0, "guide_old": 0, "match": 0.7})


PULLS = {
    # task, term: the parts it trains
    (0, "ce"): {"stage 1", "stage 2", "stage 3", "stage 4", "head"},
    (0, "aux_ce"): {"stage 1", "stage 2", "stage 3", "auxiliary"},
    (1, "ce"): {"stage 1", "stage 2", "stage 3", "stage 4", "head"},
    (1, "replay"): {"head"},
    (1, "l2"): {"stage 1", "stage 2", "stage 3", "stage 4"},
    (1, "aux_kl"): {"stage 1", "stage 2", "stage 3", "auxiliary"},
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
    ("options", "apart"),
    [({}, True), ({"backbone_batch_norm": "images"}, True), ({"backbone_batch_norm": "views"}, False)],
)
@pytest.mark.parametrize("index", [0, 1])
def test_what_the_backbone_remembers_of_a_step_is_of_the_images_or_of_all_views(lab, options, apart, index):
    """By default as without auxiliaries; all views together as in the release."""
    etag = lab("etag", {"fidelity": options, "batch_norm": "train"}, steps=1)
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
    assert all(not torch.equal(value, before[key]) for key, value in laboratory.method.solver.head.state_dict().items())


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
    alone = lab("etag", {"lambda_l2": 0.0, "lambda_ce": 0.0, "batch_norm": "train", "embedding": {"lambda_kl": 0.0}})
    fine = lab("fine")
    for laboratory in (alone, fine):
        laboratory.begin(0)
        laboratory.begin(1)
        laboratory.engine.train(next(laboratory.method.phases(laboratory.task(1))))
    learned = snapshot(alone.method.solver)
    assert all(torch.equal(value, learned[name]) for name, value in fine.method.solver.state_dict().items())


def test_without_any_of_its_parts_it_is_fine_tuning_from_the_base_task_on(lab, snapshot):
    alone = lab("etag", {"lambda_l2": 0.0, "lambda_ce": 0.0, "batch_norm": "train", "embedding": None})
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
    method.build_after([100])
    assert sum(p.numel() for part in method.parts.values() for p in part.parameters()) == 43_203_044


def test_the_defaults_are_those_of_the_paper():
    o = EtagOptions(name="etag")
    assert o.fidelity == FidelityOptions()  # whose own test lists them
    assert (o.lambda_ce, o.lambda_l2, o.lambda_vae, o.refit) == (None, None, None, None)
    assert (o.head, o.batch_norm, o.guidance) == (HeadOptions(), "frozen", True)
    assert (o.head.kind, o.head.growth, o.head.per_task) == ("linear", "growing", False)
    assert (o.embedding.tau, o.embedding.lambda_kl, o.embedding.views) == (3.0, None, "rotation")
    assert (o.embedding.views_per_image, o.embedding.image_share, o.embedding.last_stage) == (None, 1.0, False)
    assert (o.embedding.branches, o.embedding.after_base) == ("full", "trained")
    g = o.generator
    assert (g.kind, g.latent, g.hidden, g.last_task, g.decoder_noise) == ("cvae", 200, 512, True, False)


def test_auxiliaries_are_for_training_only(lab):
    laboratory = lab("etag")
    laboratory.learn(0)
    auxiliaries = {id(part) for part in laboratory.method.solver.auxiliaries.modules()}
    assert not auxiliaries & {id(part) for part in laboratory.method.classifier().modules()}


# -- what it can do besides ------------------------------------------------------------------------


def test_it_can_update_forget_and_generate_features(lab):
    method = lab("etag").method
    assert isinstance(method, CanUpdate)
    assert isinstance(method, CanForget)
    assert isinstance(method, GeneratesFeatures)
    assert not isinstance(method, GeneratesImages)


def test_generated_features_are_those_of_the_current_generator_and_the_same_each_time(lab):
    laboratory = lab("etag")
    laboratory.learn(0, 1)
    labels = torch.tensor([0, 4, 2])
    features = laboratory.method.generate_features(labels)
    assert features.shape == (3, laboratory.method.solver.backbone.feature_size)
    assert torch.equal(features, laboratory.method.generate_features(labels))
    assert lab("b4").method.generate_features(labels) is None, "prototypes do not vary"


def test_an_update_trains_head_and_generator_on_more_images_and_leaves_the_backbone(lab, snapshot):
    laboratory = lab("etag")
    laboratory.learn(0, 1)
    method, task = laboratory.method, replace(laboratory.task(1), num_old=5, num_new=0)
    before = {role: snapshot(part) for role, part in method.parts.items()}
    laboratory.learner.train(task, update_number=1)
    changed = {
        f"{role}.{name}".split(".")[0] if role == "generator" else name.split(".")[0]
        for role, part in method.parts.items()
        for name, value in part.state_dict().items()
        if not torch.equal(value, before[role][name])
    }
    assert changed == {"generator", "head"}
    assert method.task_sizes == [3, 2]


def test_in_an_update_every_class_has_the_same_share(lab):
    laboratory = lab("etag")
    laboratory.learn(0, 1)
    method, task = laboratory.method, replace(laboratory.task(1), num_old=5, num_new=0)
    own = sorted(set(task.train.labels.tolist()))  # two of the five classes
    method.begin_task(task)
    plan = method.update(task, 1)
    images = plan.send(None)
    phase = plan.send(laboratory.engine.run_pass(images))
    for batch in phase.batches.epoch(0):
        terms = phase.module(batch)
        labels = torch.tensor([label for label in range(5) if label not in own])
        drawn = labels[batch.draws.integers("replay labels", 0, 3, batch.total)]
        features = method.generator.replayed(drawn, batch, batch.total)
        logits = torch.cat([method.solver.head(batch.inputs), method.solver.head(features)])
        losses = torch.nn.functional.cross_entropy(logits, torch.cat([batch.labels, drawn]), reduction="none")
        real, replayed = losses.split(len(drawn))
        torch.testing.assert_close(terms["ce"], 2 / 5 * real.mean())
        torch.testing.assert_close(terms["replay"], 3 / 5 * replayed.mean())


def test_an_update_of_all_classes_replays_none(lab):
    laboratory = lab("etag")
    laboratory.learn(0)
    method, task = laboratory.method, replace(laboratory.task(0), index=1, num_old=3, num_new=0)
    method.begin_task(task)
    plan = method.update(task, 1)
    phase = plan.send(laboratory.engine.run_pass(plan.send(None)))
    (batch,) = list(phase.batches.epoch(0))[:1]
    assert phase.module(batch).keys() == {"ce"}


def test_forgetting_a_class_leaves_the_scores_of_the_others(lab):
    laboratory = lab("etag")
    laboratory.learn(0, 1)
    method, images = laboratory.method, laboratory.preprocess.centered(laboratory.task(0).test.pixels)
    solver = method.solver.eval()
    with torch.no_grad():
        before = solver(images, Need.LOGITS | Need.AUXILIARY)
        method.forget(1)
        after = solver(images, Need.LOGITS | Need.AUXILIARY)
    torch.testing.assert_close(after.logits, before.logits[:, [0, 2, 3, 4]])
    rows = [row for row in range(12) if row not in range(4, 8)]
    torch.testing.assert_close(after.auxiliary[0], before.auxiliary[0][:, rows])
    assert method.task_sizes == [2, 2]
    assert len(method.generator.network.decoder_in.rows) == 4
