"""The learner: one task from its first step to the saved version, in any thread."""

import json
import threading

import pytest
import torch
from tests.runs import tensors

from etag.core.errors import EtagError
from etag.core.work import Callback
from etag.engine import training
from etag.experiments.run import run
from etag.learner.learner import Learner
from etag.learner.model_directory import ModelDirectory
from etag.learner.stopping import Interrupted, Stop

OFTEN = {"train.epochs": 4, "train.batch_size": 8, "split": "b2-1x2"}


def in_thread(work):
    """Call work in another thread and wait; returns its result, or the exception that it raised."""
    found = []

    def call():
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(timeout=120)
    assert not thread.is_alive()
    return found[0]


def assert_equal_methods(one, other):
    left, right = tensors(one), tensors(other)
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


def test_learning_saves_a_version_and_returns_the_evaluation(course):
    made = course("fine")
    learner = made.learner()
    evaluation = learner.learn(made.scenario.tasks[0], made.plan(0))
    assert evaluation.images == 16
    assert sum(map(sum, evaluation.confusion)) == 16
    about = made.directory.about()
    assert about == learner.about
    assert about.classes == made.scenario.classes[:2]
    assert about.task_sizes == (2,)
    (lesson,) = about.history
    assert (lesson.kind, lesson.images, lesson.evaluation) == ("learn", 40, evaluation)
    learner.learn(made.scenario.tasks[1], made.plan(1))
    about = made.directory.about()
    assert [lesson.evaluation.confusion == [] for lesson in about.history] == [True, False], "only the latest is stored"
    assert about.history[1].evaluation.accuracies == pytest.approx(about.history[1].evaluation.accuracies)
    assert len(about.history[1].evaluation.accuracies) == 2
    assert not made.directory.unfinished.exists()


def test_a_saved_method_continues_as_the_one_in_memory(course):
    """Task by task from disk, or all in one process: the same tensors."""
    one, other = course("etag", "one", **OFTEN), course("etag", "other", **OFTEN)
    learner = one.learn(0, 1)
    other.learn(0)
    assert_equal_methods(learner.method, other.learn(1).method)


def test_without_a_directory_nothing_is_saved(course, runtime, tmp_path):
    made = course("fine")
    learner = Learner(made.new_method(), runtime)
    evaluation = learner.learn(made.scenario.tasks[0], made.plan(0))
    assert len(learner.about.history) == 1
    assert list((tmp_path / "model" / "versions").iterdir()) == []
    assert evaluation == made.learn(0).about.history[0].evaluation


def test_it_learns_in_any_thread(course):
    main, other = course("etag", "main", **OFTEN), course("etag", "thread", **OFTEN)
    learner = main.learn(0, 1)
    found = in_thread(lambda: other.learn(0, 1))
    assert isinstance(found, Learner), found
    assert_equal_methods(learner.method, found.method)
    assert_equal_methods(main.directory.load_method()[0], other.directory.load_method()[0])


def test_a_whole_run_can_be_driven_from_a_thread(small, tmp_path):
    expected = run(small("fine"), tmp_path / "main")
    found = in_thread(lambda: run(small("fine"), tmp_path / "thread"))
    assert found["confusion"] == expected["confusion"]


class Meeting(Callback):
    """Waits at a step until another thread has asked for a stop."""

    def __init__(self, task, phase, step):
        self.place, self.task, self.phase = (task, phase, step), 0, ""
        self.reached, self.asked = threading.Event(), threading.Event()
        self.done = None

    def on_task_begin(self, task, done):
        self.task, self.done = task.index, dict(done)

    def on_phase_begin(self, name, steps, epochs):
        self.phase = name

    def on_step(self, step, epoch, lr, terms, rows):
        if (self.task, self.phase, step) == self.place and not self.asked.is_set():
            self.reached.set()
            assert self.asked.wait(60)


@pytest.mark.parametrize(
    ("place", "done"),
    [((0, "solver", 6), {"solver": 6}), ((1, "generator", 3), {"solver": None, "features": None, "generator": 3})],
    ids=["base task", "second task"],
)
def test_another_thread_interrupts_it_and_it_is_resumed_bit_equal(course, monkeypatch, place, done):
    monkeypatch.setattr(training, "LOG_EVERY", 3)
    options = OFTEN | {"method.generator.train": {"epochs": 3, "batch_size": 16}}
    whole, cut = course("etag", "whole", **options), course("etag", "cut", **options)
    expected = whole.learn(0, 1)
    stop, meeting = Stop(), Meeting(*place)
    found = []

    def work():
        try:
            cut.learn(0, 1, learner=cut.learner([meeting], stop=stop))
        except Interrupted as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert meeting.reached.wait(60)
    stop.request()
    meeting.asked.set()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert len(found) == 1
    task = place[0]
    assert list((cut.directory.unfinished.checkpoints).glob("checkpoint-*.json")), "it stopped at a checkpoint"
    assert cut.directory.exists() == (task > 0)
    messages, again = [], Meeting(-1, "", 0)
    learner = cut.learn(*range(task, 2), learner=cut.learner([again], print_line=messages.append))
    assert any(f"resuming task {task + 1} at step {place[2]} of phase '{place[1]}'" in text for text in messages)
    if task == 1:
        assert again.done == done
    assert_equal_methods(expected.method, learner.method)
    assert expected.about.history[-1].evaluation == learner.about.history[-1].evaluation


def test_stop_is_heeded_in_data_passes_and_between_tasks(course):
    made = course("etag", **OFTEN)
    stop = Stop()

    class InEvaluation(Callback):
        def on_phase_begin(self, name, steps, epochs):
            if name == "evaluation":
                stop.request()

    with pytest.raises(Interrupted):
        made.learn(0, learner=made.learner([InEvaluation()], stop=stop))
    assert not made.directory.exists(), "the task is not evaluated, so it is not saved"
    messages = []
    made.learn(0, learner=made.learner(print_line=messages.append))
    assert messages == ["resuming task 1 at the end of phase 'generator'."]

    class AfterSaving(Callback):
        def on_task_end(self, task):
            stop.signal_number = 0
            stop.request()

    stop = Stop()
    with pytest.raises(Interrupted):
        made.learn(1, learner=made.learner([AfterSaving()], stop=stop))
    assert len(made.directory.about().history) == 2


def test_checkpoints_of_other_images_are_not_resumed(course, monkeypatch):
    monkeypatch.setattr(training, "LOG_EVERY", 3)
    made, stop = course("fine", **OFTEN), Stop()

    class Ask(Callback):
        def on_step(self, step, epoch, lr, terms, rows):
            stop.request()

    with pytest.raises(Interrupted):
        made.learn(0, learner=made.learner([Ask()], stop=stop), fingerprint="some images")
    messages = []
    made.learn(0, learner=made.learner(print_line=messages.append), fingerprint="other images")
    assert messages == []


def test_a_diverged_loss_is_explained(course):
    wild = {"train.lr": 1e30, "train.schedule": "constant", "train.optimizer": "sgd", "train.epochs": 9}
    made = course("fine", **wild)
    learner = made.learn(0)
    with pytest.raises(
        EtagError, match=r"^task 2: the loss term 'ce' became .* Lower train.lr, .* at the beginning of the task\.$"
    ):
        made.learn(1, learner=learner)
    assert made.directory.version == 1, "the last good version stays the current one"


def test_methods_that_cannot_update_are_refused(course):
    made = course("lwf")
    made.learn(0)
    with pytest.raises(EtagError, match="lwf cannot learn more images of known classes: `etag methods` lists"):
        made.learner().learn(made.scenario.tasks[0], made.plan(0, update=True))


def test_calibration_fits_temperature_and_threshold(course):
    made = course("etag", **OFTEN)
    learner = made.learn(0, 1, calibrate=True)
    about = made.directory.about()
    assert about.temperature == learner.calibration.temperature != 1.0
    assert 0 < about.threshold < 1
    classifier, _ = made.directory.load_classifier()
    assert classifier.temperature == about.temperature


def test_a_callback_sees_the_saved_version_at_the_end_of_a_task(course):
    made, seen = course("fine"), []

    class Look(Callback):
        def on_evaluation(self, task, evaluation):
            seen.append(("evaluation", made.directory.exists() and made.directory.version))

        def on_task_end(self, task):
            seen.append(("end", made.directory.version))

    made.learn(0, 1, learner=made.learner([Look()]))
    assert seen == [("evaluation", False), ("end", 1), ("evaluation", 1), ("end", 2)]


def test_the_description_of_a_version_is_plain_json(course):
    made = course("fine")
    made.learn(0)
    content = json.loads((made.directory.path / "versions" / "1" / "about.json").read_text())
    assert content["format"] == 3
    assert content["parent"] is None
    assert ModelDirectory(made.directory.path).about() == made.directory.about()
