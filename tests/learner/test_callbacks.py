"""Callbacks: their order, those of plug-ins, TensorBoard."""

import json

import pytest
from tests.app.conftest import etag

from etag.core.errors import EtagError
from etag.core.work import Callback
from etag.experiments import plugins
from etag.experiments.config import resolve
from etag.experiments.run import run
from etag.learner.callbacks import CALLBACKS

PLUGIN = """
import json
from etag.core.work import Callback
from etag.learner.callbacks import callback

@callback("my-recorder")
class Recorder(Callback):
    def __init__(self, folder):
        self.file = folder / "events.jsonl"

    def write(self, *event):
        with self.file.open("a") as file:
            file.write(json.dumps(event) + chr(10))

    def on_task_begin(self, task, done):
        self.write("task begins", task.index, len(task.train), dict(done))

    def on_phase_begin(self, name, steps, epochs):
        self.write("phase begins", name, steps, epochs)

    def on_step(self, step, epoch, lr, terms, rows):
        self.write("step", step, sorted(terms), rows)

    def on_phase_end(self, name, seconds):
        assert seconds > 0
        self.write("phase ends", name)

    def on_evaluation(self, task, evaluation):
        self.write("evaluation", task.index, evaluation.accuracies)

    def on_task_end(self, task):
        self.write("task ends", task.index)

    def close(self):
        self.write("closed")
"""


@pytest.fixture
def plugin(tmp_path):
    """A plug-in file that registers a callback."""
    file = tmp_path / "recorder.py"
    file.write_text(PLUGIN)
    yield file
    CALLBACKS.pop("my-recorder", None)


def events(folder):
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def without_steps(found):
    """The events without steps, as words and names."""
    return [tuple(event[:2]) for event in found if event[0] != "step"]


EXPECTED = [
    ("phase begins", "solver"),
    ("phase ends", "solver"),
    ("phase begins", "features"),
    ("phase ends", "features"),
    ("phase begins", "generator"),
    ("phase ends", "generator"),
    ("phase begins", "evaluation"),
    ("phase ends", "evaluation"),
]


def test_a_plug_ins_callback_is_called_in_the_documented_order(small, plugin, tmp_path):
    named = {"runtime.callbacks": ["my-recorder"], "evaluation.features": "none"}
    named |= {"plugins": plugins.load([plugin])}
    metrics = run(small("etag", **named), tmp_path / "run")
    found = events(tmp_path / "run")
    expected = []
    for task in range(3):
        expected += [("task begins", task), *EXPECTED, ("evaluation", task), ("task ends", task)]
    assert without_steps(found) == [*expected, ("closed",)]
    rows = {tuple(event[:2]): event for event in reversed(found)}  # the first of each kind
    assert rows["task begins", 0] == ["task begins", 0, 40, {}]
    assert rows["phase begins", "solver"][3] == 2, "epochs"
    measured = [event[2] for event in found if event[0] == "evaluation"]
    assert measured == [[value for value in row if value is not None] for row in metrics["accuracy_matrix"]]
    steps = [event for event in found if event[0] == "step" and event[2]]
    assert steps[-1][2] == ["guide", "kl", "match", "recon"], "loss terms by name"
    assert steps[0][1] == rows["phase begins", "solver"][2], "the last step is always reported"


def test_lessons_call_it_too(plugin, tmp_path):
    from tests.app.conftest import settings

    from etag.app.sources import source_folders

    source_folders("digits", tmp_path / "images", "0-2", 12)
    more = settings("runtime.callbacks=[my-recorder]", "train.base={steps: 4}")
    done = etag("learn", tmp_path / "model", tmp_path / "images", *more, "--plugin", plugin)
    assert done.returncode == 0, done.stderr
    assert without_steps(events(tmp_path / "model")) == [
        ("task begins", 0),
        *EXPECTED,
        ("evaluation", 0),
        ("task ends", 0),
        ("closed",),
    ]


def test_callbacks_are_closed_after_an_error(small, plugin, tmp_path):
    named = {"plugins": plugins.load([plugin]), "runtime.callbacks": ["my-recorder"]}
    diverging = {"train.lr": 1e30, "train.schedule": "constant", "train.optimizer": "sgd", "train.epochs": 9}
    with pytest.raises(EtagError, match="became"):
        run(small("fine", **named, **diverging), tmp_path / "run")
    assert events(tmp_path / "run")[-1] == ["closed"]


def test_an_unknown_callback_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(EtagError, match="unknown callback 'tensorbord': did you mean 'tensorboard'"):
        resolve("digits", settings=["runtime.callbacks=[tensorbord]"])


def test_a_callback_needs_no_method_of_its_own():
    nothing = Callback()
    nothing.on_task_begin(None, {})
    nothing.on_step(1, 0, 0.1, {}, 4)
    nothing.close()


def test_tensorboard_gets_losses_and_accuracies(small, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    metrics = run(small("fine", **{"runtime.callbacks": ["tensorboard"]}), tmp_path / "run")
    found = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    tags = found.Tags()["scalars"]
    assert {"solver/ce", "solver/lr", "solver/images_per_second", "accuracy/all classes"} <= set(tags)
    assert {f"accuracy/task {number}" for number in (1, 2, 3)} <= set(tags)

    def values(tag):
        return {event.step: event.value for event in found.Scalars(tag)}

    matrix = metrics["accuracy_matrix"]
    for task in range(3):
        expected = {after + 1: matrix[after][task] for after in range(task, 3)}
        assert values(f"accuracy/task {task + 1}") == pytest.approx(expected)
    assert values("accuracy/all classes")[3] == pytest.approx(metrics["last_accuracy"])
    steps = list(values("solver/ce"))
    assert steps == sorted(set(steps)), "steps continue from task to task"
    assert len(steps) == 3
