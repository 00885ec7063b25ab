import pytest
from pydantic import ValidationError

from etag.core.options import RuntimeOptions, TrainOptions
from etag.data.source import DataOptions
from etag.methods.etag import EtagOptions
from etag.models.backbone import ModelOptions


@pytest.mark.parametrize("group", [TrainOptions, RuntimeOptions, DataOptions, ModelOptions, EtagOptions])
def test_an_unknown_key_is_an_error_that_names_it(group):
    with pytest.raises(ValidationError, match=r"epoch_s\n.*not permitted"):
        group.model_validate({"epoch_s": 3} | ({"name": "etag"} if group is EtagOptions else {}))


def test_options_are_immutable():
    with pytest.raises(ValidationError, match="frozen"):
        TrainOptions().lr = 1.0


@pytest.mark.parametrize(
    "bad",
    ["lr=0", "lr=-1", "epochs=0", "batch_size=0", "weight_decay=-1", "schedule=stairs", "validation=1", "warmup=0"],
)
def test_an_invalid_value_is_an_error(bad):
    name, value = bad.split("=")
    with pytest.raises(ValidationError, match=name):
        TrainOptions.model_validate({name: value})


def test_the_default_training_is_that_of_the_paper():
    o = TrainOptions()
    assert (o.optimizer, o.lr, o.schedule, o.decay_every, o.decay) == ("adam", 1e-3, "step", 30, 0.1)
    assert (o.epochs, o.batch_size, o.weight_decay, o.drop_last) == (100, 128, 2e-4, True)


def test_base_replaces_values_at_the_base_task_only():
    options = TrainOptions(lr=1e-3, epochs=10, base={"lr": 3e-3, "schedule": "cosine"})
    base, later = options.for_task(0), options.for_task(1)
    assert (base.lr, base.schedule, base.epochs) == (3e-3, "cosine", 10)
    assert (later.lr, later.schedule, later.epochs) == (1e-3, "step", 10)
    assert later == options.for_task(2) == TrainOptions(lr=1e-3, epochs=10)


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ({"lr": -1}, "lr"),
        ({"learning_rate": 1}, "learning_rate"),
        ({"base": {}}, "another base"),
        ({"clip_value": 1.0}, "exclude"),
    ],
    ids=str,
)
def test_an_invalid_base_is_an_error(base, message):
    with pytest.raises(ValidationError, match=message):
        TrainOptions(clip_norm=1.0, base=base)


def test_clip_norm_and_clip_value_exclude_each_other():
    assert TrainOptions(clip_norm=1.0).clip_value is None
    assert TrainOptions(clip_value=1.0).clip_norm is None
    with pytest.raises(ValidationError, match="exclude each other"):
        TrainOptions(clip_norm=1.0, clip_value=1.0)


def test_validation_needs_the_plateau_schedule():
    with pytest.raises(ValidationError, match="only used with schedule=plateau"):
        TrainOptions(validation=0.1)
    assert TrainOptions(validation=0.1, schedule="plateau").validation == 0.1


def test_epochs_for_the_base_task_override_a_general_number_of_steps():
    training = TrainOptions(steps=7, base={"epochs": 3})
    assert (training.for_task(0).steps, training.for_task(0).epochs) == (None, 3)
    assert training.for_task(1).steps == 7


@pytest.mark.parametrize("group", [TrainOptions, RuntimeOptions, DataOptions])
def test_every_option_has_a_description(group):
    assert [name for name, field in group.model_fields.items() if not field.description] == []
