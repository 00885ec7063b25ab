"""What every backbone promises, whoever wrote it."""

from dataclasses import replace

import pytest
import torch

from etag.core.errors import EtagError
from etag.core.outputs import Need
from etag.core.random import Stream
from etag.data.scenario import build_scenario
from etag.data.source import DataOptions
from etag.methods.registry import METHODS
from etag.models.backbone import BACKBONES, ModelOptions
from etag.models.heads import HeadOptions
from etag.models.solver import build_solver

CLASSIC = {"resnet18": 64, "resnet32": 16, "vgg11": 64, "mobilenetv2": 32, "mlp": 400}
SMALLEST = [
    ("resnet18", "cifar", 8),
    ("resnet18", "imagenet", 32),
    ("resnet32", "cifar", 4),
    ("resnet32", "imagenet", 16),
    ("vgg11", "auto", 32),
    ("mobilenetv2", "cifar", 8),
    ("mobilenetv2", "imagenet", 32),
    ("mlp", "auto", 1),
]
STREAM = Stream.root(0)


def solver(name, size, auxiliaries=0, **options):
    made = build_solver(ModelOptions(**{"backbone": name, "width": 4} | options), HeadOptions(), 3, size, STREAM)
    made.head.grow(2, STREAM.generator("head"))
    made.add_auxiliaries(auxiliaries, STREAM)
    for number, auxiliary in enumerate(made.auxiliaries):
        auxiliary.head.grow(8, STREAM.generator("auxiliary", number))
    return made


def images(size, rows=6):
    return torch.randn(rows, 3, size, size, generator=STREAM.generator("images", size))


def shapes(module):
    return [tuple(parameter.shape) for parameter in module.parameters()]


def test_this_is_all_of_them():
    assert set(BACKBONES) == set(CLASSIC) == {name for name, _, _ in SMALLEST}


@pytest.mark.parametrize(("name", "width"), CLASSIC.items())
def test_without_a_width_it_is_the_classic_one(name, width):
    with torch.device("meta"):
        none, classic, half = (
            BACKBONES[name](ModelOptions(backbone=name, width=w), 3, 32) for w in (None, width, width // 2)
        )
    assert shapes(none) == shapes(classic)
    assert half.feature_size * 2 == classic.feature_size


@pytest.mark.parametrize("name", list(BACKBONES))
def test_a_branch_repeats_the_stages_that_follow_and_ends_as_they_do(name):
    made = solver(name, 32)
    maps = made(images(32), Need.STAGES).stages
    for number, map_ in enumerate(maps, start=1):
        branch = made.backbone.branch(number)
        assert branch(map_).shape == maps[-1].shape
        if number < len(maps):
            assert [shapes(stage) for stage in branch] == [shapes(stage) for stage in made.backbone.stages[number:]]
        else:
            assert len(branch) == 1
        assert not {id(p) for p in branch.parameters()} & {id(p) for p in made.parameters()}


@pytest.mark.parametrize(("name", "stem", "size"), SMALLEST)
def test_features_are_not_negative(name, stem, size, disturb):
    made = disturb(solver(name, size, stem=stem)).eval()
    feature = made(images(size), Need.FEATURE).feature
    assert feature.shape == (6, made.backbone.feature_size)
    assert feature.min() == 0  # cut off: the last map has one pixel, so nothing was averaged
    assert feature.max() > 0


@pytest.mark.parametrize(("name", "stem", "size"), SMALLEST)
def test_the_smallest_image_leaves_one_pixel_and_can_be_learned(name, stem, size):
    made = solver(name, size, stem=stem, auxiliaries=len(solver(name, size, stem=stem).backbone.stages))
    assert made.backbone.smallest == size
    said = made.train()(images(size), Need.LOGITS | Need.STAGES | Need.AUXILIARY)
    assert said.stages[-1].shape[2:] == ((1, 1) if said.stages[-1].ndim == 4 else ())
    (said.logits.sum() + sum(logits.sum() for logits in said.auxiliary)).backward()
    assert all(parameter.grad is not None for parameter in made.parameters())


@pytest.mark.parametrize(("name", "stem", "size"), [row for row in SMALLEST if row[2] > 1])
def test_a_smaller_image_is_refused_with_what_to_do(name, stem, size):
    small = (
        rf"^images of {size - 1}x{size - 1} pixels are too small for the backbone {name}, which needs {size}x{size}"
    )
    change = "model.stem=cifar or " if stem == "imagenet" else ""
    with pytest.raises(
        EtagError, match=rf"{small}: set {change}data\.size={size}, or choose another model\.backbone\.$"
    ):
        solver(name, size - 1, stem=stem)


# -- eTag on each of them, through the engine ------------------------------------------------------


@pytest.fixture
def laboratory(lab):
    """The usual laboratory with another backbone, on digits that are large enough for it."""

    def make(name):
        made = lab("etag", steps=2, weight_decay=0.0)
        size = 32 if name == "vgg11" else 8
        data = DataOptions(name="digits", train_per_class=8, test_per_class=4, size=size)
        made.scenario, made.preprocess = build_scenario(data, "b3-2x2", 0)
        model = ModelOptions(backbone=name, width=4)
        made.context = replace(made.context, size=size, model=model, preprocess=made.preprocess)
        made.method = METHODS["etag"](made.method.options, made.context)
        return made

    return make


def same(module, before):
    """Parameter by parameter: is it what it was?"""
    return [torch.equal(value, before[name]) for name, value in module.named_parameters()]


@pytest.mark.parametrize("name", list(BACKBONES))
def test_etag_learns_a_base_task_and_a_second_one(name, laboratory, snapshot):
    made = laboratory(name)
    solver = made.method.solver
    stages, auxiliaries = solver.backbone.stages, solver.auxiliaries
    assert len(auxiliaries) == len(stages) - 1 >= 1

    trained = [*stages, *(auxiliary.branch for auxiliary in auxiliaries)]
    before = [snapshot(part) for part in trained]
    made.learn(0)
    assert not any(all(same(part, start)) for part, start in zip(trained, before, strict=True))

    taught = snapshot(solver)
    made.learn(1)
    teacher = made.method.teacher.network
    assert all(same(teacher, taught))
    assert not all(same(solver.backbone, teacher.backbone.state_dict()))
    assert (teacher.head.outputs, solver.head.outputs) == (3, 5)
    assert {auxiliary.head.outputs for auxiliary in auxiliaries} == {4 * 3}


@pytest.mark.parametrize("name", list(BACKBONES))
def test_embedding_distillation_reaches_every_stage_but_the_last(name, laboratory):
    made = laboratory(name)
    made.learn(0, 1)  # student and teacher differ now
    phase = made.works(1)["solver"]
    terms = phase.module(next(phase.batches.epoch(0)))
    assert set(terms) == {"ce", "replay", "l2", "kl"}
    assert all(value.isfinite() and value > 0 for value in terms.values())
    terms["kl"].backward()
    stages = made.method.solver.backbone.stages
    reached = [any(p.grad is not None and p.grad.any() for p in stage.parameters()) for stage in stages]
    assert reached == [True] * (len(stages) - 1) + [False]
