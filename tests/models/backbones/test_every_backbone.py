"""Properties that every registered backbone must have."""

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

DEFAULT_WIDTHS = {"resnet18": 64, "resnet32": 16, "vgg11": 64, "mobilenetv2": 32, "mlp": 400} | {
    f"efficientnet_lite{number}": 32 for number in range(3)
}
SMALLEST_SIZES = [
    ("resnet18", "cifar", 8),
    ("resnet18", "imagenet", 32),
    ("resnet32", "cifar", 4),
    ("resnet32", "imagenet", 16),
    ("vgg11", "auto", 32),
    ("mobilenetv2", "cifar", 8),
    ("mobilenetv2", "imagenet", 32),
    ("mlp", "auto", 1),
    *[
        (f"efficientnet_lite{number}", stem, side)
        for number in range(3)
        for stem, side in (("imagenet", 32), ("cifar", 8))
    ],
]
STREAM = Stream.root(0)


# those two need an architecture: see test_hub.py and test_timm_network.py
NAMES = [name for name in BACKBONES if name not in ("timm", "transformers")]
# long tests take three of them in `make test`, all in `make test-all`
SHORT = ("resnet18", "mlp", "efficientnet_lite0")
SOME = [name if name in SHORT else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


def solver(name, size, auxiliaries=0, **options):
    network = build_solver(ModelOptions(**{"backbone": name, "width": 4} | options), HeadOptions(), 3, size, STREAM)
    network.head.grow(2, STREAM.torch_generator("head"))
    network.add_auxiliaries(auxiliaries, STREAM)
    for number, auxiliary in enumerate(network.auxiliaries):
        auxiliary.head.grow(8, STREAM.torch_generator("auxiliary", number))
    return network


def images(size, rows=6):
    return torch.randn(rows, 3, size, size, generator=STREAM.torch_generator("images", size))


def shapes(module):
    return [tuple(parameter.shape) for parameter in module.parameters()]


def test_the_tables_above_list_every_backbone():
    assert set(NAMES) == set(DEFAULT_WIDTHS) == {name for name, _, _ in SMALLEST_SIZES}


@pytest.mark.parametrize(("name", "width"), DEFAULT_WIDTHS.items())
def test_the_default_width_is_the_usual_one(name, width):
    with torch.device("meta"):
        default, usual, half = (
            BACKBONES[name](ModelOptions(backbone=name, width=w), 3, 32) for w in (None, width, width // 2)
        )
    assert shapes(default) == shapes(usual)
    assert half.feature_size * 2 == usual.feature_size


@pytest.mark.parametrize("name", NAMES)
def test_a_branch_repeats_the_later_stages_and_has_their_output_shape(name):
    network = solver(name, 32)
    maps = network(images(32), Need.STAGES).stages
    for number, map_ in enumerate(maps, start=1):
        branch = network.backbone.branch(number)
        assert branch(map_).shape == maps[-1].shape
        if number < len(maps):
            assert [shapes(stage) for stage in branch] == [shapes(stage) for stage in network.backbone.stages[number:]]
        else:
            assert len(branch) == 1
        assert not {id(p) for p in branch.parameters()} & {id(p) for p in network.parameters()}


@pytest.mark.parametrize(("name", "stem", "size"), SMALLEST_SIZES)
def test_features_are_not_negative(name, stem, size, disturb):
    network = disturb(solver(name, size, stem=stem)).eval()
    feature = network(images(size), Need.FEATURE).feature
    assert feature.shape == (6, network.backbone.feature_size)
    assert feature.min() == 0  # the ReLU is active: the last map has one pixel, so nothing was averaged
    assert feature.max() > 0


@pytest.mark.parametrize(("name", "stem", "size"), SMALLEST_SIZES)
def test_the_smallest_image_gives_a_last_map_of_one_pixel_and_can_be_trained_on(name, stem, size):
    network = solver(name, size, stem=stem, auxiliaries=len(solver(name, size, stem=stem).backbone.stages))
    assert network.backbone.min_side == size
    outputs = network.train()(images(size), Need.LOGITS | Need.STAGES | Need.AUXILIARY)
    assert outputs.stages[-1].shape[2:] == ((1, 1) if outputs.stages[-1].ndim == 4 else ())
    (outputs.logits.sum() + sum(logits.sum() for logits in outputs.auxiliary)).backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize(("name", "stem", "size"), [row for row in SMALLEST_SIZES if row[2] > 1])
def test_a_smaller_image_is_an_error_that_says_what_to_do(name, stem, size):
    small = rf"^images of {size - 1}x{size - 1} pixels are too small for the backbone {name}, which needs {size}x{size}"
    change = "model.stem=cifar or " if stem == "imagenet" else ""
    with pytest.raises(
        EtagError, match=rf"{small}: set {change}data\.size={size}, or choose another model\.backbone\.$"
    ):
        solver(name, size - 1, stem=stem)


# -- eTag with each backbone, through the engine ---------------------------------------------------


@pytest.fixture
def laboratory(lab):
    """laboratory(name) -> the usual test laboratory with another backbone, on digits large enough for it."""

    def make(name):
        experiment = lab("etag", steps=2, weight_decay=0.0)
        size = 32 if name == "vgg11" or name.startswith("efficientnet") else 8
        data = DataOptions(name="digits", train_per_class=8, test_per_class=4, size=size)
        experiment.scenario, experiment.preprocess = build_scenario(data, "b3-2x2", 0)
        model = ModelOptions(backbone=name, width=4)
        experiment.context = replace(experiment.context, size=size, model=model, preprocess=experiment.preprocess)
        experiment.method = METHODS["etag"](experiment.method.options, experiment.context)
        return experiment

    return make


def same(module, before):
    """Return for each parameter whether it is unchanged."""
    return [torch.equal(value, before[name]) for name, value in module.named_parameters()]


@pytest.mark.parametrize("name", SOME)
def test_etag_trains_a_base_task_and_a_second_task(name, laboratory, snapshot):
    experiment = laboratory(name)
    solver = experiment.method.solver
    stages, auxiliaries = solver.backbone.stages, solver.auxiliaries
    assert len(auxiliaries) == len(stages) - 1 >= 1

    trained = [*stages, *(auxiliary.branch for auxiliary in auxiliaries)]
    before = [snapshot(part) for part in trained]
    experiment.learn(0)
    assert not any(all(same(part, start)) for part, start in zip(trained, before, strict=True))

    teacher_weights = snapshot(solver)
    experiment.learn(1)
    teacher = experiment.method.teacher.network
    assert all(same(teacher, teacher_weights))
    assert not all(same(solver.backbone, teacher.backbone.state_dict()))
    assert (teacher.head.outputs, solver.head.outputs) == (3, 5)
    assert {auxiliary.head.outputs for auxiliary in auxiliaries} == {4 * 3}


@pytest.mark.parametrize("name", SOME)
def test_embedding_distillation_reaches_every_stage_but_the_last(name, laboratory):
    experiment = laboratory(name)
    experiment.learn(0, 1)  # so that student and teacher differ
    phase = experiment.works(1)["solver"]
    terms = phase.module(next(phase.batches.epoch(0)))
    assert set(terms) == {"ce", "replay", "l2", "aux_kl"}
    assert all(value.isfinite() and value > 0 for value in terms.values())
    terms["aux_kl"].backward()
    stages = experiment.method.solver.backbone.stages
    reached = [any(p.grad is not None and p.grad.any() for p in stage.parameters()) for stage in stages]
    assert reached == [True] * (len(stages) - 1) + [False]
