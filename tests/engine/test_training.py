"""The loop against a loop written by hand, and the promises a phase relies on."""

import copy
from itertools import count

import pytest
import torch
from lightning_fabric import Fabric
from torch import nn

from etag.core.errors import EtagError
from etag.core.options import RuntimeOptions, TrainOptions
from etag.core.random import Draws, Stream
from etag.core.work import Batch, Callback, DataPass, OptimizerState, ParameterGroup, Phase
from etag.engine.engine import Engine
from etag.engine.runtime import Runtime, launch


class Points:
    """Fixed batches of a regression problem."""

    def __init__(self, batches=3, rows=4):
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(batches, rows, 5, generator=generator)
        self.labels = torch.randn(batches, rows, generator=generator)

    def __len__(self):
        return len(self.inputs)

    def epoch(self, index, start=0):
        for x, y in zip(self.inputs, self.labels, strict=True):
            yield Batch(x, y, Draws(Stream.root(0)), len(x))


class Fit(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        self.other = nn.Linear(2, 2)

    def forward(self, batch):
        error = self.body(batch.inputs).squeeze(1) - batch.labels
        return {"fit": error.square().mean(), "size": 0.1 * self.body[0].weight.square().sum()}


class Recorder(Callback):
    def __init__(self):
        self.events = []

    def on_phase_begin(self, name, steps, epochs):
        self.events.append(("started", name, steps, epochs))

    def on_step(self, step, epoch, lr, terms, rows):
        self.events.append(("stepped", step, epoch, lr, dict(terms), rows))

    def on_phase_end(self, name, seconds):
        self.events.append(("finished", name))


@pytest.fixture
def fit():
    torch.manual_seed(0)
    return Fit()


def engine(*callbacks):
    return Engine(Runtime(Fabric(accelerator="cpu", devices=1)), callbacks)


def phase(module, parameters=None, groups=None, batch_norm="train", watched=None, **training):
    groups = groups or (ParameterGroup(list(parameters or module.body.parameters())),)
    return Phase("fit", module, Points(), groups, TrainOptions(**training), batch_norm, validation=watched)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("clip", [{}, {"clip_norm": 0.1}, {"clip_value": 0.01}])
def test_training_equals_a_loop_written_by_hand(fit, optimizer, clip):
    mine, batches = copy.deepcopy(fit), Points()
    make = {"adam": torch.optim.Adam, "sgd": lambda *a, **k: torch.optim.SGD(*a, momentum=0.9, **k)}[optimizer]
    # fused too: the bias before BatchNorm has rounding for a gradient, of which Adam makes steps
    by_hand = make(mine.body.parameters(), lr=1e-2, weight_decay=1e-3, fused=True)
    for epoch in range(4):
        for group in by_hand.param_groups:
            group["lr"] = 1e-2 * 0.5 ** (epoch // 2)
        for batch in batches.epoch(epoch):
            by_hand.zero_grad()
            sum(mine(batch).values()).backward()
            if "clip_norm" in clip:
                nn.utils.clip_grad_norm_(mine.body.parameters(), 0.1)
            if "clip_value" in clip:
                nn.utils.clip_grad_value_(mine.body.parameters(), 0.01)
            by_hand.step()
    options = {"lr": 1e-2, "weight_decay": 1e-3, "optimizer": optimizer, "decay_every": 2, "decay": 0.5}
    engine().train(phase(fit, epochs=4, **options, **clip))
    for (name, ours), theirs in zip(fit.body.state_dict().items(), mine.body.state_dict().values(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-7), name


def test_parameters_of_no_group_are_frozen_and_untouched_even_by_weight_decay(fit):
    before = copy.deepcopy(fit.state_dict())
    fit.body[0].weight.grad = torch.ones_like(fit.body[0].weight)
    engine().train(phase(fit, parameters=list(fit.body[3].parameters()), epochs=2, weight_decay=0.1))
    after = fit.state_dict()
    assert torch.equal(after["body.0.weight"], before["body.0.weight"])
    assert not torch.equal(after["body.3.weight"], before["body.3.weight"])


@pytest.mark.parametrize(("mode", "moves"), [("train", True), ("frozen", False)])
def test_batch_norm_statistics_follow_the_data_or_stay(fit, mode, moves):
    norm = fit.body[1]
    weight, mean = norm.weight.detach().clone(), norm.running_mean.clone()
    engine().train(phase(fit, epochs=2, batch_norm=mode))
    assert (not torch.equal(norm.running_mean, mean)) == moves
    assert not torch.equal(norm.weight, weight), "its weights are trained either way"
    assert not fit.training


def test_a_length_in_steps_cuts_an_epoch_short(fit):
    recorder = Recorder()
    engine(recorder).train(phase(fit, steps=7, epochs=1))
    assert recorder.events[0] == ("started", "fit", 7, 3)
    assert [entry[1] for entry in recorder.events if entry[0] == "stepped"] == [7]
    assert sum(entry[5] for entry in recorder.events if entry[0] == "stepped") == 7 * 4


def test_callbacks_receive_the_terms_every_ten_steps(fit):
    recorder = Recorder()
    engine(recorder).train(phase(fit, epochs=8))
    steps = [entry for entry in recorder.events if entry[0] == "stepped"]
    assert [entry[1] for entry in steps] == [10, 20, 24]
    assert set(steps[0][4]) == {"fit", "size"}
    assert steps[0][5] == 40


def test_a_loss_that_is_no_number_stops_with_the_terms_name(fit):
    class Broken(Fit):
        def __init__(self):
            super().__init__()
            self.calls = count(1)

        def forward(self, batch):
            terms = super().forward(batch)
            # from then on all weights, and so all terms, are nan: the first one must be named
            return terms | {"size": terms["size"] * (float("nan") if next(self.calls) == 4 else 1)}

    with pytest.raises(EtagError, match=r"'size' became nan at step 4 of phase 'fit'"):
        engine().train(phase(Broken(), epochs=8))


class Duel(nn.Module):
    """Two groups that pull in opposite directions; each counts its turns."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        self.turns = []

    def forward(self, batch, group):
        self.turns.append(group)
        return {"pull": (self.left - 1).square().sum() if group == "left" else (self.right + 1).square().sum()}


def test_groups_take_turns_and_step_only_their_own_parameters():
    duel, recorder = Duel(), Recorder()
    groups = (
        ParameterGroup([duel.left], name="left"),
        ParameterGroup(
            [duel.right], name="right", interval=2, training=TrainOptions(lr=0.5, optimizer="sgd", momentum=0)
        ),
    )
    engine(recorder).train(phase(duel, groups=groups, epochs=1, lr=0.1, weight_decay=0))
    assert duel.turns == ["left", "right", "left", "left", "right"]
    assert duel.left.item() > 0 > duel.right.item()
    assert set(recorder.events[1][4]) == {"left.pull", "right.pull"}


def test_plateau_restores_the_best_weights_by_the_validation_loss(fit):
    watched = Points(batches=2)

    class Worse(Fit):
        """Its loss on the validation batches rises from the second epoch on."""

        def __init__(self):
            super().__init__()
            self.epochs = count()

        def forward(self, batch):
            if not self.training and batch.inputs.data_ptr() == watched.inputs[0].data_ptr():
                self.kept = getattr(self, "kept", None) or copy.deepcopy(self.body.state_dict())
                self.level = float(next(self.epochs))
            terms = super().forward(batch)
            return terms if self.training else {"level": torch.tensor(self.level)}

    module = Worse()
    options = {"schedule": "plateau", "patience": 1, "decay": 0.1, "lr": 1e-2, "min_lr": 1e-4, "epochs": 50}
    engine().train(phase(module, watched=watched, **options))
    assert next(module.epochs) == 4, "three decays, then the rate is below the smallest"
    for name, value in module.kept.items():
        assert torch.equal(module.body.state_dict()[name], value), name


def test_plateau_without_validation_watches_the_training_loss(fit):
    calls = []
    fit.register_forward_hook(lambda *_: calls.append(1))
    engine().train(phase(fit, schedule="plateau", patience=1, lr=10.0, min_lr=1.0, decay=0.05, epochs=100))
    assert 3 < len(calls) < 300, "a rate of ten cannot go on improving"


class Visit(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5))

    def forward(self, batch):
        said = batch.inputs @ self.weight
        if said.requires_grad:
            (gradient,) = torch.autograd.grad(said.sum(), self.weight)
            return {"gradient": gradient, "rows": torch.tensor(len(said))}
        return {"said": said, "labels": batch.labels}


def test_a_concat_pass_returns_rows_in_the_order_of_the_data():
    points = Points()
    found = engine().run_pass(DataPass("look", Visit(), points, epochs=2))
    assert torch.equal(found["labels"], points.labels.flatten().repeat(2))
    assert torch.allclose(found["said"], points.inputs.sum(2).flatten().repeat(2))


def test_a_sum_pass_adds_every_name_up_and_may_use_gradients():
    points = Points()
    found = engine().run_pass(DataPass("look", Visit(), points, reduce="sum", gradients=True))
    assert found["rows"].item() == 12
    assert torch.allclose(found["gradient"], points.inputs.sum((0, 1)))


def test_execute_sends_the_result_of_each_pass_back_and_runs_phases_in_order(fit):
    heard = []

    def plan():
        found = yield DataPass("look", Visit(), Points())
        heard.append(len(found["said"]))
        result = yield phase(fit, epochs=1)
        heard.append(result)

    recorder = Recorder()
    engine(recorder).execute(plan())
    assert heard == [12, {}]
    assert [entry[1] for entry in recorder.events if entry[0] == "finished"] == ["look", "fit"]


def test_a_device_that_is_not_there_is_refused_in_words():
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    with pytest.raises(EtagError, match="finds no CUDA device"):
        launch(RuntimeOptions(accelerator="cuda"), Runtime)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_an_optimizer_can_continue_where_another_phase_ended(fit, optimizer):
    """Two phases that share their optimizer state are one phase of both lengths."""
    training = TrainOptions(steps=4, lr=1e-2, schedule="constant", optimizer=optimizer)
    other, at_once, optimizer_state = copy.deepcopy(fit), copy.deepcopy(fit), OptimizerState()
    longer = training.model_copy(update={"steps": 7})

    def phase(module, options, **group):
        return Phase("fit", module, Points(7), (ParameterGroup(list(module.body.parameters()), **group),), options)

    engine().train(phase(at_once, longer))
    points, shorter = Points(7), training.model_copy(update={"steps": 3})
    engine().train(phase(fit, training, optimizer_state=optimizer_state))
    kept = OptimizerState()
    kept.load_state_dict(optimizer_state.state_dict())  # as from a file
    rest = phase(fit, shorter, optimizer_state=kept)
    rest.batches.inputs, rest.batches.labels = points.inputs[4:], points.labels[4:]
    engine().train(rest)
    assert all(torch.equal(value, at_once.state_dict()[name]) for name, value in fit.state_dict().items())
    engine().train(phase(other, training))
    again = phase(other, shorter)
    again.batches.inputs, again.batches.labels = points.inputs[4:], points.labels[4:]
    engine().train(again)
    assert not torch.equal(other.body[0].weight, at_once.body[0].weight), "without them it begins anew"


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_new_parameter_begins_anew_beside_those_that_continue(fit, optimizer):
    training = TrainOptions(steps=2, lr=1e-2, schedule="constant", optimizer=optimizer)
    first, optimizer_state = copy.deepcopy(fit), OptimizerState()
    engine().train(
        Phase(
            "fit",
            first,
            Points(),
            (ParameterGroup(list(first.body[0].parameters()), optimizer_state=optimizer_state),),
            training,
        )
    )
    assert len(optimizer_state.state_dict()) == 2 * (3 if optimizer == "adam" else 1)
    engine().train(
        Phase(
            "fit",
            first,
            Points(),
            (ParameterGroup(list(first.body.parameters()), optimizer_state=optimizer_state),),
            training,
        )
    )
    assert len(optimizer_state.state_dict()) == 6 * (3 if optimizer == "adam" else 1)
