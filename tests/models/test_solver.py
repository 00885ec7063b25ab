from copy import deepcopy

import pytest
import torch

from etag.core.errors import EtagError
from etag.core.outputs import Need, Views
from etag.core.random import Draws, Stream
from etag.core.work import Batch
from etag.data.views import ROTATIONS
from etag.models.backbone import BACKBONES, ModelOptions
from etag.models.heads import HeadOptions
from etag.models.modules import ConvNorm
from etag.models.solver import FeatureCollector, Frozen, Teacher, build_solver

STREAM = Stream.root(0)
IMAGES = torch.randn(5, 1, 8, 8, generator=STREAM.torch_generator("images"))
LARGER = torch.randn(5, 1, 32, 32, generator=STREAM.torch_generator("larger")).double()  # enough for any backbone


def solver(auxiliaries=3, classes=3, size=8, head=None, **options):
    made = build_solver(ModelOptions(**{"width": 4} | options), HeadOptions(**head or {}), 1, size, STREAM)
    made.head.grow(classes, STREAM.torch_generator("head"))
    made.add_auxiliaries(auxiliaries, STREAM)
    for number, auxiliary in enumerate(made.auxiliaries):
        auxiliary.head.grow(4 * classes, STREAM.torch_generator("auxiliary", number))
    return made


def turned(images):
    """All four rotations."""
    return ROTATIONS.all_views(images, torch.zeros(len(images), dtype=torch.long))


def partly_turned(images):
    """Two rotations of each image, other ones of its neighbor."""
    chosen = ROTATIONS.choose(torch.arange(len(images)).flip(0), 2)
    return ROTATIONS.selected_views(images, torch.zeros(len(images), dtype=torch.long), chosen)


def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


# -- structure -------------------------------------------------------------------------------------


def test_the_parameter_budget_is_the_papers():
    made = build_solver(ModelOptions(stem="cifar"), HeadOptions(), 3, 32, STREAM)
    made.head.grow(100, STREAM.torch_generator("head"))
    budgets = [parameters(made)]
    for count in (3, 4):
        made.auxiliaries = made.auxiliaries[:0]
        made.add_auxiliaries(count, STREAM)
        for number, auxiliary in enumerate(made.auxiliaries):
            auxiliary.head.grow(4 * 100, STREAM.torch_generator("auxiliary", number))
        budgets.append(parameters(made))
    assert budgets == [11_220_132, 41_741_908, 51_388_388]


def test_the_head_may_go_without_bias():
    assert parameters(solver(0)) - parameters(solver(0, head={"bias": False})) == 3


def test_an_auxiliary_repeats_the_stages_that_follow():
    made = solver(4)
    following = [[parameters(stage) for stage in made.backbone.stages[number:]] for number in (1, 2, 3)]
    assert [[parameters(stage) for stage in auxiliary.branch] for auxiliary in made.auxiliaries[:3]] == following
    assert len(made.auxiliaries[3].branch) == 1  # one more after the last stage
    assert made.auxiliaries[0].branch[0][0].first[0].stride == (2, 2)
    assert made.auxiliaries[3].branch[0][0].first[0].stride == (1, 1)


def test_a_solver_is_a_function_of_its_stream():
    first, again = solver().state_dict(), solver().state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = build_solver(ModelOptions(width=4), HeadOptions(), 1, 8, Stream.root(1)).state_dict()
    assert not torch.equal(first["backbone.stages.0.0.0.weight"], other["backbone.stages.0.0.0.weight"])


def test_an_unknown_backbone_is_answered_with_the_nearest():
    with pytest.raises(EtagError, match="unknown backbone 'resnet81': did you mean 'resnet18'"):
        build_solver(ModelOptions(backbone="resnet81"), HeadOptions(), 1, 8, STREAM)


# -- forward ---------------------------------------------------------------------------------------


PARTS = {
    "feature": Need.FEATURE,
    "logits": Need.LOGITS,
    "view_features": Need.VIEW_FEATURES,
    "stages": Need.STAGES,
    "raw_stages": Need.STAGES,
    "auxiliary": Need.AUXILIARY,
}
NEEDS = [Need.NOTHING, *Need, Need.LOGITS | Need.AUXILIARY, Need.FEATURE | Need.LOGITS | Need.AUXILIARY, ~Need.NOTHING]


@pytest.mark.parametrize("show", [lambda images: images, turned, partly_turned], ids=["images", "all", "some"])
@pytest.mark.parametrize("need", NEEDS, ids=str)
def test_what_is_asked_for_is_all_there_is(need, show):
    said = solver().eval()(show(IMAGES), need)
    there = {name for name in PARTS if (value := getattr(said, name)) is not None and len(value)}
    assert there == {name for name, part in PARTS.items() if part & need}
    assert set(PARTS) == set(vars(said))


@pytest.mark.parametrize("show", [turned, partly_turned])
def test_every_row_is_what_is_said_of_it_alone(show):
    made, shown = solver(4).eval(), show(IMAGES)
    said = made(shown, ~Need.NOTHING)
    picked = range(20) if shown.selected is None else shown.selected.tolist()
    assert len(picked) == len(said.view_features) == (20 if show is turned else 10)
    for row, image in enumerate(shown.inputs):
        places = [place for place, other in enumerate(picked) if other == row]  # where it is looked at as a view
        assert len(places) == 1 or row < 5
        x = image[None]
        for stage, auxiliary, maps, logits in zip(
            made.backbone.stages, made.auxiliaries, said.stages, said.auxiliary, strict=True
        ):
            x = stage(x)
            if row < 5:  # maps are of the images themselves
                torch.testing.assert_close(maps[row], x[0])
            for place in places:
                torch.testing.assert_close(logits[place], auxiliary.head(auxiliary.branch(x).mean((2, 3)))[0])
        for place in places:
            torch.testing.assert_close(said.view_features[place], x.mean((2, 3))[0])
        if row < 5:
            torch.testing.assert_close(said.feature[row], x.mean((2, 3))[0])
            torch.testing.assert_close(said.logits[row], made.head(x.mean((2, 3)))[0])
    assert len(said.feature) == len(said.logits) == 5
    assert {len(logits) for logits in said.auxiliary} == {len(picked)}


@pytest.mark.parametrize("show", [turned, partly_turned])
@pytest.mark.parametrize("need", [Need.AUXILIARY, Need.VIEW_FEATURES, Need.STAGES, ~Need.NOTHING], ids=str)
def test_logits_are_the_same_whether_or_not_views_are_looked_at(need, show):
    made = solver(4).eval()
    plain = made(IMAGES, Need.LOGITS).logits
    torch.testing.assert_close(made(show(IMAGES), Need.LOGITS | need).logits, plain)


def test_the_gradient_of_maps_that_lose_their_other_views_has_their_layout():
    """In bfloat16, computing with a gradient of another layout takes many times as long."""
    network, gradients = solver().eval().to(memory_format=torch.channels_last), []
    network.backbone.stages[-2].register_full_backward_hook(lambda _, __, given: gradients.append(given[0]))
    views = Views(torch.cat([IMAGES, IMAGES.flip(3)]).to(memory_format=torch.channels_last), len(IMAGES))
    outputs = network(views, Need.LOGITS)
    outputs.logits.sum().backward()
    (gradient,) = gradients
    assert len(gradient) == len(views.inputs)
    assert gradient.is_contiguous(memory_format=torch.channels_last)


def test_images_alone_may_be_given_as_they_are():
    made = solver(4).eval()
    bare, shown = made(IMAGES, ~Need.NOTHING), made(Views(IMAGES, 5), ~Need.NOTHING)
    assert torch.equal(bare.logits, shown.logits)
    assert torch.equal(bare.view_features, shown.view_features)
    assert torch.equal(bare.feature, bare.view_features)


def rows_seen(module, call):
    """How many rows a module is given while `call` runs."""
    rows = []
    hook = module.register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))
    call()
    hook.remove()
    return rows


@pytest.mark.parametrize(
    ("auxiliaries", "need", "rows"),
    [
        (3, Need.LOGITS | Need.AUXILIARY, [5]),
        (3, Need.FEATURE | Need.AUXILIARY, [5]),
        (3, Need.AUXILIARY, []),
        (3, Need.NOTHING, []),
        (3, Need.LOGITS | Need.VIEW_FEATURES, [20]),
        (3, Need.LOGITS | Need.STAGES, [5]),
        (4, Need.LOGITS | Need.AUXILIARY, [20]),
        (4, Need.AUXILIARY, [20]),
        (4, Need.LOGITS, [5]),
    ],
)
def test_the_last_stage_sees_the_views_only_where_they_are_needed(auxiliaries, need, rows):
    made = solver(auxiliaries).eval()
    first_layer = made.backbone.stages[-1][0]
    assert rows_seen(first_layer, lambda: made(turned(IMAGES), need)) == rows


def test_auxiliaries_rest_unless_asked():
    made = solver().eval()
    assert rows_seen(made.auxiliaries[0], lambda: made(IMAGES, Need.LOGITS)) == []
    assert rows_seen(made.auxiliaries[0], lambda: made(IMAGES, Need.AUXILIARY)) == [5]


def test_auxiliaries_train_the_backbone():
    made = solver()
    torch.stack([logits.sum() for logits in made(IMAGES, Need.AUXILIARY).auxiliary]).sum().backward()
    moved = [
        any(p.grad is not None and p.grad.abs().sum() > 0 for p in stage.parameters()) for stage in made.backbone.stages
    ]
    assert moved == [True, True, True, False]


# -- maps before and after the activation ----------------------------------------------------------


def relu(maps):
    return maps.clamp_min(0)


def none(maps):
    return maps


# the activation that each stage ends in
ACTIVATIONS = {
    "resnet18": 4 * [relu],
    "resnet32": 3 * [relu],
    "vgg11": 5 * [relu],
    "mobilenetv2": [*4 * [none], lambda maps: maps.clamp(0, 6)],
    "mlp": 2 * [relu],
    **{f"efficientnet_lite{number}": [*4 * [none], lambda maps: maps.clamp(0, 6)] for number in range(3)},
}


def test_every_backbone_is_looked_at():
    assert set(ACTIVATIONS) == set(BACKBONES) - {"timm", "transformers"}


@pytest.mark.parametrize("views", [1, 4])
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_stage_is_its_raw_map_and_then_its_activation(name, mode, views, disturb):
    made = disturb(solver(0, backbone=name, size=32), scale=0.5).double().train(mode == "train")
    whole = deepcopy(made)
    said = made(turned(LARGER) if views == 4 else LARGER, Need.STAGES | Need.FEATURE | Need.LOGITS)
    assert len(said.raw_stages) == len(said.stages) == len(ACTIVATIONS[name])
    x = LARGER
    for raw, maps, activation, stage in zip(
        said.raw_stages, said.stages, ACTIVATIONS[name], whole.backbone.stages, strict=True
    ):
        x = stage(x)
        assert raw.min() < 0
        assert torch.equal(maps, activation(raw))
        torch.testing.assert_close(maps, x)
    torch.testing.assert_close(said.feature, x.mean((2, 3)) if x.ndim == 4 else x)
    torch.testing.assert_close(said.logits, whole.head(said.feature))


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_signed_features_go_without_the_last_activation(name, mode, disturb):
    plain, signed = (
        disturb(solver(0, backbone=name, size=32, head={"kind": kind}), scale=0.5).double().train(mode == "train")
        for kind in ("linear", "cosine")
    )
    need = Need.FEATURE | Need.LOGITS
    reference, said, alone = (
        plain(LARGER, need | Need.STAGES),
        signed(LARGER, need | Need.STAGES),
        signed(LARGER, need),
    )
    last = reference.raw_stages[-1]
    expected = last.mean((2, 3)) if last.ndim == 4 else last
    assert last.min() < 0 <= reference.feature.min()
    assert not torch.allclose(expected, reference.feature)
    for outputs in (said, alone):
        torch.testing.assert_close(outputs.feature, expected)
        torch.testing.assert_close(outputs.logits, signed.head(expected))
    for raw, wanted in zip(said.raw_stages, reference.raw_stages, strict=True):
        torch.testing.assert_close(raw, wanted)
    *earlier, final = said.stages
    for maps, wanted in zip(earlier, reference.stages[:-1], strict=True):  # only the last one is left out
        torch.testing.assert_close(maps, wanted)
    assert torch.equal(final, said.raw_stages[-1])


@pytest.mark.parametrize("head", ["linear", "cosine"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_backbone_alone_gives_the_features_of_the_solver(name, head, disturb):
    made = disturb(solver(0, backbone=name, size=32, head={"kind": head})).double().eval()
    assert torch.equal(made.backbone(LARGER), made(LARGER, Need.FEATURE).feature)
    if head == "linear":
        assert made.backbone(LARGER).min() >= 0


@pytest.mark.parametrize("head", ["linear", "cosine"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_classifying_from_any_stage_on_gives_the_logits_of_the_whole(name, head, disturb):
    made = disturb(solver(0, backbone=name, size=32, head={"kind": head})).double().eval()
    said = made(LARGER, Need.LOGITS | Need.STAGES)
    assert said.logits.std() > 1e-3
    for stage, maps in enumerate(said.stages, start=1):
        torch.testing.assert_close(made.logits_from_stage(maps, stage), said.logits)


# -- images apart from their views -----------------------------------------------------------------

BOTH = Need.LOGITS | Need.AUXILIARY


def copies(count, **options):
    """The same solver several times, in training."""
    made = solver(size=32, **options).double().train()
    return [deepcopy(made) for _ in range(count)]


def statistics(module):
    names = ("running_mean", "running_var", "num_batches_tracked")
    return {name: value for name, value in module.state_dict().items() if name.endswith(names)}


def alike(left, right):
    return {name: torch.allclose(value, right[name]) for name, value in left.items()}


WITH_STATISTICS = ["resnet18", "resnet32", "vgg11", "mobilenetv2"]


@pytest.mark.parametrize("show", [turned, partly_turned])
@pytest.mark.parametrize("need", [Need.AUXILIARY, BOTH | Need.FEATURE, BOTH | Need.STAGES], ids=str)
@pytest.mark.parametrize(("name", "on_last"), [*((name, False) for name in WITH_STATISTICS), ("resnet18", True)])
def test_auxiliaries_change_nothing_of_what_batch_norm_and_the_head_see(name, on_last, need, show):
    count = len(ACTIVATIONS[name]) - (not on_last)
    with_views, alone = copies(2, auxiliaries=count, backbone=name)
    start = deepcopy(statistics(with_views.backbone.stages[-1]))
    said, plain = with_views(show(LARGER), need), alone(LARGER, need & ~Need.AUXILIARY | Need.LOGITS)
    found, expected = statistics(with_views.backbone), statistics(alone.backbone)
    if need == Need.AUXILIARY and not on_last:  # the last stage was not asked
        assert all(alike(start, statistics(with_views.backbone.stages[-1])).values())
        last = f"stages.{len(ACTIVATIONS[name]) - 1}."
        found = {key: value for key, value in found.items() if not key.startswith(last)}
    assert len(found) > 10
    for key, value in found.items():
        torch.testing.assert_close(value, expected[key])
        if key.endswith("num_batches_tracked"):
            assert value == 1
    if need & Need.LOGITS:
        torch.testing.assert_close(said.logits, plain.logits)
    if need & Need.FEATURE:
        torch.testing.assert_close(said.feature, plain.feature)


@pytest.mark.parametrize("name", WITH_STATISTICS)
def test_views_may_count_in_the_statistics(name):
    count = len(ACTIVATIONS[name]) - 1
    with_views, alone, all_images = copies(3, auxiliaries=count, backbone=name)
    with_views.views_in_statistics = True
    images = turned(LARGER)
    said, plain, of_rows = with_views(images, BOTH), alone(LARGER, BOTH), all_images(images.inputs, BOTH)
    found, of_images, of_all = (
        [statistics(stage) for stage in made.backbone.stages] for made in (with_views, alone, all_images)
    )
    for stage in range(count):
        assert all(alike(found[stage], of_all[stage]).values())
        by_images = alike(found[stage], of_images[stage])
        assert not any(same for key, same in by_images.items() if key.endswith("running_var"))
    for logits, wanted in zip(said.auxiliary, of_rows.auxiliary, strict=True):
        torch.testing.assert_close(logits, wanted)
    assert not torch.allclose(said.logits, plain.logits, atol=1e-3)


def test_where_features_of_views_are_asked_for_they_count_in_the_statistics():
    with_views, all_images = copies(2, auxiliaries=0)
    images = turned(LARGER)
    said = with_views(images, Need.LOGITS | Need.VIEW_FEATURES)
    plain = all_images(images.inputs, Need.LOGITS | Need.FEATURE)
    assert all(alike(statistics(with_views), statistics(all_images)).values())
    torch.testing.assert_close(said.view_features, plain.feature)
    torch.testing.assert_close(said.logits, plain.logits[:5])


@pytest.mark.parametrize("show", [turned, partly_turned])
@pytest.mark.parametrize(("name", "need"), [*((name, BOTH) for name in WITH_STATISTICS), ("resnet18", ~Need.NOTHING)])
def test_other_views_are_normalized_among_themselves_and_come_back_in_their_places(name, need, show):
    made, reference = copies(2, auxiliaries=len(ACTIVATIONS[name]), backbone=name)
    shown = show(LARGER)
    picked = range(len(shown.inputs)) if shown.selected is None else shown.selected.tolist()
    said = made(shown, need)
    x = shown.inputs.clone()
    for stage, auxiliary, logits in zip(reference.backbone.stages, reference.auxiliaries, said.auxiliary, strict=True):
        x = torch.cat([stage(x[:5]), stage(x[5:])])
        torch.testing.assert_close(logits, auxiliary(torch.stack([x[row] for row in picked])))
    if need & Need.VIEW_FEATURES:
        torch.testing.assert_close(said.view_features, torch.stack([x[row].mean((1, 2)) for row in picked]))
    torch.testing.assert_close(said.logits, reference.head(x[:5].mean((2, 3))))


def test_with_frozen_statistics_all_views_pass_together():
    made = solver().train()
    for module in made.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()
    stage = made.backbone.stages[0][0]
    assert rows_seen(stage, lambda: made(turned(IMAGES), BOTH)) == [20]
    assert rows_seen(stage, lambda: made.train()(turned(IMAGES), BOTH)) == [5, 15]


def test_passing_apart_leaves_batch_norm_as_it_was():
    (made,) = copies(1)
    norms = [module for module in made.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    made(turned(LARGER), BOTH)
    assert all(norm.track_running_stats and norm.training for norm in norms)
    auxiliary = statistics(made.auxiliaries)
    assert all(value == 1 for name, value in auxiliary.items() if name.endswith("num_batches_tracked"))


# -- what is stepped -------------------------------------------------------------------------------


@pytest.mark.parametrize("auxiliaries", [False, True])
@pytest.mark.parametrize("old_rows", [True, False])
@pytest.mark.parametrize("cosine", [False, True])
def test_old_rows_of_the_head_may_be_left_out_of_what_is_trained(auxiliaries, old_rows, cosine):
    made = solver(3, head={"kind": "cosine" if cosine else "linear"})
    for number in range(2):
        made.head.grow(2, STREAM.torch_generator("more", number))
    used = made.parameters_to_train(auxiliaries, old_rows)
    ids = {id(parameter) for parameter in used}
    assert len(ids) == len(used)
    names = {name for name, parameter in made.named_parameters() if id(parameter) in ids}
    everything = {name for name, _ in made.named_parameters()}
    absent = set() if auxiliaries else {name for name in everything if name.startswith("auxiliaries.")}
    if not old_rows:
        kinds = ["weight"] if cosine else ["weight", "bias"]
        absent |= {f"head.blocks.{block}.{kind}" for block in (0, 1) for kind in kinds}
    assert absent <= everything
    assert names == everything - absent
    assert ("head.scale" in names) is cosine  # it belongs to no class
    if old_rows:
        assert {id(parameter) for parameter in made.parameters_to_train(auxiliaries)} == ids


def test_a_pass_over_features_has_the_label_and_the_feature_of_every_image():
    made, labels = solver().eval(), torch.tensor([0, 2, 1, 1, 0])
    found = FeatureCollector(made.backbone)(Batch(IMAGES, labels, Draws(STREAM), 5))
    assert set(found) == {"features", "labels"}
    assert torch.equal(found["labels"], labels)
    torch.testing.assert_close(found["features"], made(IMAGES, Need.FEATURE).feature)


# -- teachers --------------------------------------------------------------------------------------


def test_a_teacher_stays_in_evaluation_mode():
    teacher = Teacher(solver().train())
    holder = torch.nn.ModuleList([teacher]).train()
    assert not any(module.training for module in teacher.network.modules())
    assert teacher.train() is teacher
    assert not any(module.training for module in holder[0].network.modules())
    assert not any(parameter.requires_grad for parameter in teacher.parameters())


def test_targets_are_ordinary_constants():
    teacher = Teacher(solver())
    said = teacher.targets(IMAGES.clone().requires_grad_(), Need.LOGITS | Need.AUXILIARY)
    for value in (said.logits, *said.auxiliary):
        assert not value.requires_grad
        assert not value.is_inference()
    torch.testing.assert_close(said.logits, teacher.network(IMAGES, Need.LOGITS).logits)


def test_gradients_of_a_teacher_lead_to_the_images_and_not_to_the_weights():
    teacher, images = Teacher(solver()), IMAGES.clone().requires_grad_()
    teacher.network(images, Need.LOGITS).logits.square().sum().backward()
    assert images.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_a_teacher_does_not_learn_with_the_student():
    student = solver()
    teacher = Teacher(student)
    before = teacher.targets(IMAGES, Need.LOGITS).logits
    adam = torch.optim.Adam(student.parameters(), lr=0.1)
    student.train()(IMAGES, Need.LOGITS).logits.square().sum().backward()
    adam.step()
    assert not torch.equal(student.eval()(IMAGES, Need.LOGITS).logits, before)
    assert torch.equal(teacher.targets(IMAGES, Need.LOGITS).logits, before)
    assert student.head.blocks[0].weight.requires_grad


def test_a_teacher_folds_its_convolutions_once():
    def folded(network):
        return [part for part in network.modules() if getattr(part, "_stored_folds", None)]

    student = solver()
    teacher = Teacher(student)
    first = teacher.targets(IMAGES, Need.LOGITS).logits
    assert len(folded(teacher)) == sum(isinstance(part, ConvNorm) for part in student.backbone.modules()) > 0
    assert torch.equal(teacher.targets(IMAGES, Need.LOGITS).logits, first)
    student.eval()(IMAGES, Need.LOGITS)
    assert folded(student) == []


def test_freezing_copies_any_network():
    layer = torch.nn.Linear(2, 2)
    frozen = Frozen(layer)
    assert frozen.network is not layer
    assert torch.equal(frozen.network.weight, layer.weight)
