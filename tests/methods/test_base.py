import pytest
import torch

from etag.core.errors import EtagError
from etag.core.outputs import Need, Outputs
from etag.data.batches import ImageBatches
from etag.methods.registry import METHODS


def test_an_unknown_method_is_answered_with_the_nearest():
    with pytest.raises(EtagError, match="unknown method 'fne': did you mean 'fine'"):
        METHODS["fne"]


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_says_what_it_is(name):
    info = METHODS[name].info
    assert info.summary
    assert info.source
    assert info.stores


@pytest.mark.parametrize(("head", "outputs"), [("growing", [3, 5, 7]), ("fixed", [7, 7, 7])])
def test_the_head_grows_or_is_declared_in_full(lab, head, outputs):
    laboratory, found = lab("fine", {"head": head}), []
    for index in range(3):
        laboratory.begin(index)
        found.append(laboratory.method.solver.head.outputs)
    assert found == outputs
    assert len(laboratory.method.solver.head.blocks) == (3 if head == "growing" else 1)


@pytest.mark.parametrize(("argmax", "answer"), [("seen", 2), ("all", 6)])
def test_the_classes_that_compete_are_those_seen_or_all(lab, argmax, answer):
    laboratory = lab("fine", {"head": {"growth": "fixed"}, "argmax": argmax})
    laboratory.begin(0)
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
    assert laboratory.method.predictor()(Outputs(logits=logits)).argmax(1).tolist() == [answer]


@pytest.mark.parametrize("name", ["fine", "etag"])
def test_rebuilding_gives_the_structure_and_the_first_weights_of_the_tasks_begun(lab, name):
    grown, rebuilt = lab(name), lab(name)
    grown.begin(0, 1, 2)
    rebuilt.method.rebuild([3, 2, 2])
    assert rebuilt.method.seen == grown.method.seen == 7
    assert rebuilt.method.task_sizes == grown.method.task_sizes
    for role, part in grown.method.parts.items():
        other = rebuilt.method.parts[role].state_dict()
        assert list(other) == list(part.state_dict())
        assert all(torch.equal(value, other[key]) for key, value in part.state_dict().items())


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("kind", ["none", "ce", "fixed"])
def test_a_rebuilt_method_goes_on_as_the_one_it_stands_for(lab, kind, tasks):
    options = {"embedding": {"num_aux": 4, "aux_new": kind}}
    begun, rebuilt = lab("etag", options), lab("etag", options)
    begun.begin(*range(tasks))
    rebuilt.method.rebuild([3, 2][:tasks])
    solvers = [laboratory.method.solver.eval() for laboratory in (begun, rebuilt)]
    said = [solver(torch.zeros(1, 1, 8, 8), Need.AUXILIARY).auxiliary for solver in solvers]
    assert len(said[0]) == len(said[1])


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
    torch.testing.assert_close(held.inputs, laboratory.preprocess.test(images.pixels[last]))  # not augmented
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
def test_a_sweep_over_features_is_in_the_order_of_the_images(lab, passes):
    laboratory = lab("fine", batch_size=5)
    laboratory.begin(0)
    method, images = laboratory.method, laboratory.task(0).train
    data_pass = method.features_pass("name", images, passes)
    found = laboratory.engine.run_pass(data_pass)
    how = {"augment": passes > 0, "shuffle": False}
    batches = ImageBatches(images, laboratory.preprocess, 20, method.stream("name"), method.context.placement, **how)
    inputs = [batch.inputs for number in range(passes) for batch in batches.epoch(number)]
    inputs = inputs or [laboratory.preprocess.test(images.pixels)]  # as they are
    expected = torch.cat([method.solver.eval()(x, Need.FEATURE).feature for x in inputs])
    torch.testing.assert_close(found["features"], expected)
    assert torch.equal(found["labels"], images.labels.repeat(max(1, passes)))
    assert (data_pass.name, data_pass.epochs) == ("name", max(1, passes))
    assert [len(batch.labels) for batch in data_pass.batches.epoch(0)] == [20, 4]  # without gradients there is room


def test_a_batch_of_one_image_is_refused_where_batch_norm_would_fail(lab):
    laboratory = lab("fine", batch_size=1)
    laboratory.begin(0)
    with pytest.raises(EtagError, match="a batch of 1 cannot train BatchNorm"):
        laboratory.works(0)
