import pytest
import torch
from pydantic import ValidationError

from etag.core.errors import EtagError
from etag.core.outputs import Need
from etag.data.batches import ImageBatches
from etag.methods.registry import METHODS


def test_an_unknown_method_is_refused_with_the_nearest_name():
    with pytest.raises(EtagError, match="unknown method 'fne': did you mean 'fine'"):
        METHODS["fne"]


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_says_what_it_is(name):
    info = METHODS[name].info
    assert info.title
    assert info.summary
    assert info.source
    assert info.stores


@pytest.mark.parametrize(("head", "outputs"), [("growing", [3, 5, 7]), ("fixed", [7, 7, 7])])
def test_the_head_grows_or_has_all_outputs_from_the_start(lab, head, outputs):
    laboratory, found = lab("fine", {"head": {"growth": head}}), []
    for index in range(3):
        laboratory.begin(index)
        found.append(laboratory.method.solver.head.outputs)
    assert found == outputs
    assert len(laboratory.method.solver.head.blocks) == (3 if head == "growing" else 1)


@pytest.mark.parametrize(("argmax", "prediction"), [("seen", 2), ("all", 6)])
def test_the_classes_that_compete_are_those_seen_or_all(lab, argmax, prediction):
    laboratory = lab("etag", {"head": {"growth": "fixed"}, "fidelity": {"argmax": argmax}})
    laboratory.begin(0)
    (block,) = laboratory.method.solver.head.blocks
    block.bias.data = 1000.0 * torch.arange(7)
    features = torch.zeros(1, laboratory.method.solver.backbone.feature_size)
    assert laboratory.method.prediction_rule()(features).argmax(1).tolist() == [prediction]


@pytest.mark.parametrize("name", ["fine", "etag"])
def test_rebuilding_gives_the_structure_and_the_first_weights_of_the_tasks_begun(lab, name):
    grown, rebuilt = lab(name), lab(name)
    grown.begin(0, 1, 2)
    rebuilt.method.build_after([3, 2, 2])
    assert rebuilt.method.seen == grown.method.seen == 7
    assert rebuilt.method.task_sizes == grown.method.task_sizes
    for role, part in grown.method.parts.items():
        other = rebuilt.method.parts[role].state_dict()
        assert list(other) == list(part.state_dict())
        assert all(torch.equal(value, other[key]) for key, value in part.state_dict().items())


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("kind", ["base", "all"])
def test_a_rebuilt_method_has_the_auxiliaries_of_the_one_it_replaces(lab, kind, tasks):
    options = {"embedding": {"last_stage": True}, "fidelity": {"aux_classes": kind}}
    begun, rebuilt = lab("etag", options), lab("etag", options)
    begun.begin(*range(tasks))
    rebuilt.method.build_after([3, 2][:tasks])
    solvers = [laboratory.method.solver.eval() for laboratory in (begun, rebuilt)]
    logits = [solver(torch.zeros(1, 1, 8, 8), Need.AUXILIARY).auxiliary for solver in solvers]
    assert len(logits[0]) == len(logits[1]) == (4 if tasks == 1 else 3)


def test_every_task_has_randomness_of_its_own(lab):
    laboratory = lab("fine")
    laboratory.begin(0, 1)
    first = next(laboratory.method.phases(laboratory.task(1)))
    laboratory.begin(2)
    second = next(laboratory.method.phases(laboratory.task(2)))
    _, *later = laboratory.method.solver.head.blocks
    assert not torch.equal(later[0].weight, later[1].weight)  # both of two classes
    drawn = [next(phase.batches.epoch(0)).draws.normal("x", 4) for phase in (first, second)]
    assert not torch.equal(*drawn)


def test_the_teacher_is_the_solver_as_it_was_before_it_grew(lab, snapshot):
    laboratory = lab("fine")
    laboratory.learn(0)
    assert laboratory.method.teacher is None
    before = snapshot(laboratory.method.solver)
    laboratory.begin(1)
    taken = laboratory.method.teacher.network
    assert taken.head.outputs == 3
    assert all(torch.equal(value, before[key]) for key, value in taken.state_dict().items())


def test_convolutions_are_laid_out_channels_last(lab):
    laboratory = lab("etag")
    laboratory.begin(0)
    weight = laboratory.method.solver.backbone.stages[1][0].first[0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()


def phase_of(laboratory, index=0):
    laboratory.begin(index)
    return next(laboratory.method.phases(laboratory.task(index)))


def test_a_phase_is_as_long_as_its_options_say(lab):
    assert phase_of(lab("fine", epochs=3, batch_size=10)).steps == 3 * 2  # 24 images, the short batch left out
    assert phase_of(lab("fine", epochs=3, batch_size=10, drop_last=False)).steps == 3 * 3
    assert phase_of(lab("fine", steps=5)).steps == 5


def test_base_options_hold_for_the_base_task(lab):
    laboratory = lab("fine", lr=0.1, base={"lr": 0.2, "epochs": 4})
    assert phase_of(laboratory, 0).training.lr == 0.2
    later = phase_of(laboratory, 1)
    assert (later.training.lr, later.training.epochs) == (0.1, 1)


def test_validation_images_are_not_trained_on(lab):
    laboratory = lab("fine", validation=0.25, schedule="plateau", batch_size=6)
    phase = phase_of(laboratory)
    trained = sum(len(batch.labels) for batch in phase.batches.epoch(0))
    (held,) = phase.validation.epoch(0)
    assert trained == 18
    assert held.labels.bincount().tolist() == [2, 2, 2]
    images = laboratory.task(0).train
    last = torch.cat([(images.labels == label).nonzero().flatten()[-2:] for label in range(3)]).sort().values
    torch.testing.assert_close(held.inputs, laboratory.preprocess.centered(images.pixels[last]))  # not augmented
    assert phase_of(lab("fine")).validation is None


@pytest.mark.parametrize(("batch_norm", "modes"), [("train", ["train", "train"]), ("frozen", ["train", "frozen"])])
def test_batch_norm_may_be_frozen_after_the_base_task(lab, batch_norm, modes):
    laboratory = lab("fine", {"batch_norm": batch_norm})
    assert [phase_of(laboratory, index).batch_norm for index in (0, 1)] == modes


def test_building_the_work_of_a_task_changes_nothing(lab, snapshot):
    laboratory = lab("etag")
    laboratory.learn(0)
    laboratory.begin(1)
    before = {role: snapshot(part) for role, part in laboratory.method.parts.items()}
    first, again = laboratory.works(1), laboratory.works(1)
    for role, part in laboratory.method.parts.items():
        assert all(torch.equal(value, before[role][key]) for key, value in part.state_dict().items())
    for name in ("solver", "generator"):
        for one, other in zip(first[name].batches.epoch(0), again[name].batches.epoch(0), strict=True):
            assert torch.equal(one.inputs, other.inputs)


@pytest.mark.parametrize("passes", [0, 1, 3])
def test_a_features_pass_is_in_the_order_of_the_images(lab, passes):
    laboratory = lab("fine", batch_size=5)
    laboratory.begin(0)
    method, images = laboratory.method, laboratory.task(0).train
    data_pass = method.features_pass("name", images, passes)
    found = laboratory.engine.run_pass(data_pass)
    how = {"augment": passes > 0, "shuffle": False}
    batches = ImageBatches(images, laboratory.preprocess, 20, method.stream("name"), method.context.placement, **how)
    inputs = [batch.inputs for number in range(passes) for batch in batches.epoch(number)]
    inputs = inputs or [laboratory.preprocess.centered(images.pixels)]  # as they are
    expected = torch.cat([method.solver.eval()(x, Need.FEATURE).feature for x in inputs])
    torch.testing.assert_close(found["features"], expected)
    assert torch.equal(found["labels"], images.labels.repeat(max(1, passes)))
    assert (data_pass.name, data_pass.epochs) == ("name", max(1, passes))
    assert [len(batch.labels) for batch in data_pass.batches.epoch(0)] == [20, 4]  # without gradients there is room


def test_a_batch_of_one_image_is_refused_where_batch_norm_would_fail(lab):
    laboratory = lab("fine", batch_size=1)
    laboratory.begin(0)
    with pytest.raises(EtagError, match="and BatchNorm needs 2"):
        laboratory.works(0)


# -- heads that a method does not accept -----------------------------------------------------------

ONE_HEAD = "head.per_task=true does not work with {}: its tasks share one head"
REFUSED = [
    *((name, {"per_task": True}, ONE_HEAD.format(name)) for name in ("abd", "dgr", "tag", "etag", "gfr", "b4")),
    *((name, {"per_task": True}, ONE_HEAD.format(name)) for name in ("joint", "il2m", "bir", "gc", "pass")),
    *(
        (name, {"kind": "proxies"}, f"head.kind=proxies does not work with {name}: choose linear")
        for name in ("abd", "dgr", "etag", "gfr", "lwf", "lwm", "ewc", "mas", "il2m", "pass", "bir", "gc")
    ),
    *(
        (name, {"kind": "cosine"}, f"head.kind=cosine does not work with {name}: choose linear")
        for name in ("abd", "dgr", "etag", "gfr", "lwf", "lwm", "ewc", "mas", "il2m", "pass", "bir", "gc")
    ),
    *(
        (name, {"kind": "proxies"}, f"head.kind=proxies does not work with {name}: choose linear or cosine")
        for name in ("fine", "joint")
    ),
    *(
        (name, {"growth": "fixed"}, f"head.growth=fixed does not work with {name}: choose growing")
        for name in ("pass", "bir", "gc")
    ),
    *(
        (name, {"growth": "fixed"}, "growth=fixed needs one linear head for all tasks: choose growth=growing")
        for name in ("ewc", "mas", "lwf", "lwm", "lucir", "podnet")
    ),
    *(
        (name, {"growth": "fixed", "per_task": False}, f"head.growth=fixed does not work with {name}: choose growing")
        for name in ("ewc", "mas", "lwf", "lwm")
    ),
    *(
        (name, {"kind": "cosine", "per_task": True}, "per_task=true needs linear heads: choose kind=linear")
        for name in ("ewc", "mas", "lwf", "lwm")
    ),
    ("fine", {"kind": "cosine", "growth": "fixed"}, "growth=fixed needs one linear head for all tasks"),
    ("fine", {"kind": "cosine", "per_task": True}, "per_task=true needs linear heads"),
    ("lucir", {"kind": "linear"}, "head.kind=linear does not work with lucir: choose cosine"),
    ("lucir", {"kind": "proxies"}, "head.kind=proxies does not work with lucir: choose cosine"),
    ("lucir", {"per_task": True}, "per_task=true needs linear heads: choose kind=linear instead of cosine"),
    ("podnet", {"kind": "cosine"}, "head.kind=cosine does not work with podnet: choose proxies"),
    ("podnet", {"kind": "linear"}, "head.kind=linear does not work with podnet: choose proxies"),
]


@pytest.mark.parametrize(("name", "head", "message"), REFUSED, ids=str)
def test_a_head_that_does_not_fit_is_refused_when_options_are_validated(name, head, message):
    with pytest.raises(ValidationError) as refused:
        METHODS[name].Options.model_validate({"name": name, "head": head})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("fine", {"kind": "cosine"}),
        ("fine", {"growth": "fixed"}),
        ("fine", {"per_task": True}),
        ("joint", {"kind": "cosine"}),
        ("etag", {"growth": "fixed"}),
        ("dgr", {"growth": "fixed"}),
        ("abd", {"growth": "fixed"}),
        ("lwf", {"per_task": False}),
        ("ewc", {"per_task": False}),
        ("lwf", {"compare": "logit"}),
        ("il2m", {"bias": False}),
        ("podnet", {"proxies": 3, "scale": 8.0}),
    ],
    ids=str,
)
def test_a_head_that_is_accepted_learns_two_tasks(lab, name, head):
    laboratory = lab(name, {"head": head}, steps=2)
    laboratory.learn(0, 1)
    inputs = laboratory.preprocess.centered(laboratory.task(1).test.pixels)
    with torch.no_grad():
        assert laboratory.method.classifier().eval()(inputs).shape[1] == 5


@pytest.mark.parametrize("name", ["ewc", "mas", "lwf", "lwm"])
def test_naming_the_kind_of_head_that_a_method_has_changes_nothing(name):
    plain, named = (METHODS[name].Options.model_validate({"name": name, "head": h}) for h in ({}, {"kind": "linear"}))
    assert named == plain
    assert named.head.per_task


def test_exemplars_are_refused_by_methods_that_store_none():
    with pytest.raises(ValidationError, match=r"ewc stores no exemplars: leave method\.exemplars out"):
        METHODS["ewc"].Options.model_validate({"name": "ewc", "exemplars": {"per_class": 2}})


def test_exemplars_need_one_head_for_all_tasks():
    given = {"name": "fine", "exemplars": {"per_class": 2}, "head": {"per_task": True}}
    with pytest.raises(ValidationError, match="exemplars need a head that old and new classes share"):
        METHODS["fine"].Options.model_validate(given)
