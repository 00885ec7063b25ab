import pytest
import torch

from etag.core.errors import EtagError
from etag.core.outputs import Need, Outputs
from etag.core.random import Stream
from etag.data.views import ROTATIONS
from etag.models.backbone import ModelOptions
from etag.models.solver import Frozen, LinearPredictor, Teacher, build_solver

STREAM = Stream.root(0)
IMAGES = torch.randn(5, 1, 8, 8, generator=STREAM.generator("images"))


def solver(auxiliaries=3, classes=3, **options):
    made = build_solver(ModelOptions(**{"width": 4} | options), 1, 8, STREAM)
    made.head.grow(classes, STREAM.generator("head"))
    made.add_auxiliaries(auxiliaries, STREAM)
    for number, auxiliary in enumerate(made.auxiliaries):
        auxiliary.head.grow(4 * classes, STREAM.generator("auxiliary", number))
    return made


def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


# -- structure -------------------------------------------------------------------------------------


def test_the_parameter_budget_is_the_papers():
    made = build_solver(ModelOptions(stem="cifar"), 3, 32, STREAM)
    made.head.grow(100, STREAM.generator("head"))
    budgets = [parameters(made)]
    for count in (3, 4):
        made.auxiliaries = made.auxiliaries[:0]
        made.add_auxiliaries(count, STREAM)
        for number, auxiliary in enumerate(made.auxiliaries):
            auxiliary.head.grow(4 * 100, STREAM.generator("auxiliary", number))
        budgets.append(parameters(made))
    assert budgets == [11_220_132, 41_741_908, 51_388_388]


def test_the_head_may_go_without_bias():
    assert parameters(solver(0)) - parameters(solver(0, head_bias=False)) == 3


def test_an_auxiliary_repeats_the_stages_that_follow():
    made = solver(4)
    following = [[parameters(stage) for stage in made.backbone.stages[number:]] for number in (1, 2, 3)]
    assert [[parameters(stage) for stage in auxiliary.branch] for auxiliary in made.auxiliaries[:3]] == following
    assert len(made.auxiliaries[3].branch) == 1  # one more after the last stage
    assert made.auxiliaries[0].branch[0][0].conv1.stride == (2, 2)
    assert made.auxiliaries[3].branch[0][0].conv1.stride == (1, 1)


def test_a_solver_is_a_function_of_its_stream():
    first, again = solver().state_dict(), solver().state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = build_solver(ModelOptions(width=4), 1, 8, Stream.root(1)).state_dict()
    assert not torch.equal(first["backbone.stages.0.0.weight"], other["backbone.stages.0.0.weight"])


def test_an_unknown_backbone_is_answered_with_the_nearest():
    with pytest.raises(EtagError, match="unknown backbone 'resnet81': did you mean 'resnet18'"):
        build_solver(ModelOptions(backbone="resnet81"), 1, 8, STREAM)


# -- forward ---------------------------------------------------------------------------------------


PARTS = {
    Need.FEATURE: "feature",
    Need.LOGITS: "logits",
    Need.VIEW_FEATURES: "view_features",
    Need.STAGES: "stages",
    Need.AUXILIARY: "auxiliary",
}
NEEDS = [
    Need.NOTHING,
    *Need,
    Need.LOGITS | Need.AUXILIARY,
    Need.FEATURE | Need.LOGITS | Need.AUXILIARY,
    ~Need.NOTHING,
]


@pytest.mark.parametrize("views", [1, 4])
@pytest.mark.parametrize("need", NEEDS, ids=str)
def test_what_is_asked_for_is_all_there_is(need, views):
    images = ROTATIONS.of(IMAGES) if views == 4 else IMAGES
    said = solver().eval()(images, need, views)
    there = {name for name in PARTS.values() if (value := getattr(said, name)) is not None and len(value)}
    assert there == {name for part, name in PARTS.items() if part & need}


def test_rows_of_views_are_image_by_image():
    made, images = solver(4).eval(), ROTATIONS.of(IMAGES)
    said = made(images, ~Need.NOTHING, views=4)
    for row, image in enumerate(images):
        x = image[None]
        for stage, auxiliary, maps, logits in zip(
            made.backbone.stages, made.auxiliaries, said.stages, said.auxiliary, strict=True
        ):
            x = stage(x)
            if row % 4 == 0:  # maps are of the images themselves
                torch.testing.assert_close(maps[row // 4], x[0])
            torch.testing.assert_close(logits[row], auxiliary.head(auxiliary.branch(x).mean((2, 3)))[0])
        torch.testing.assert_close(said.view_features[row], x.mean((2, 3))[0])
        if row % 4 == 0:
            torch.testing.assert_close(said.feature[row // 4], x.mean((2, 3))[0])
            torch.testing.assert_close(said.logits[row // 4], made.head(x.mean((2, 3)))[0])
    assert len(said.feature) == len(said.logits) == 5


@pytest.mark.parametrize("need", [Need.AUXILIARY, Need.VIEW_FEATURES, Need.STAGES, ~Need.NOTHING], ids=str)
def test_logits_are_the_same_whether_or_not_views_are_looked_at(need):
    made = solver(4).eval()
    plain = made(IMAGES, Need.LOGITS).logits
    torch.testing.assert_close(made(ROTATIONS.of(IMAGES), Need.LOGITS | need, views=4).logits, plain)


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
    assert rows_seen(made.backbone.stages[-1], lambda: made(ROTATIONS.of(IMAGES), need, views=4)) == rows


def test_auxiliaries_rest_unless_asked():
    made = solver().eval()
    assert rows_seen(made.auxiliaries[0], lambda: made(IMAGES, Need.LOGITS)) == []
    assert rows_seen(made.auxiliaries[0], lambda: made(IMAGES, Need.AUXILIARY)) == [5]


def test_auxiliaries_train_the_backbone():
    made = solver()
    torch.stack([logits.sum() for logits in made(IMAGES, Need.AUXILIARY).auxiliary]).sum().backward()
    moved = [
        any(p.grad is not None and p.grad.abs().sum() > 0 for p in stage.parameters())
        for stage in made.backbone.stages
    ]
    assert moved == [True, True, True, False]


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


def test_the_differentiable_path_leads_to_the_images_and_not_to_the_weights():
    teacher, images = Teacher(solver()), IMAGES.clone().requires_grad_()
    teacher.differentiable(images, Need.LOGITS).logits.square().sum().backward()
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


def test_freezing_copies_any_network():
    layer = torch.nn.Linear(2, 2)
    frozen = Frozen(layer)
    assert frozen.network is not layer
    assert torch.equal(frozen.network.weight, layer.weight)


# -- predictor -------------------------------------------------------------------------------------


def test_the_predictor_gives_probabilities_of_the_classes_seen():
    logits = torch.tensor([[1.0, 2.0, 9.0], [3.0, 0.0, 9.0]])
    scores = LinearPredictor(2)(Outputs(logits=logits))
    assert scores.argmax(1).tolist() == [1, 0]
    torch.testing.assert_close(scores[0, 1].item(), 1 / (1 + 2.718281828459045**-1), atol=1e-6, rtol=0)
    torch.testing.assert_close(scores.sum(1), torch.ones(2))
    assert LinearPredictor(3)(Outputs(logits=logits)).argmax(1).tolist() == [2, 2]
