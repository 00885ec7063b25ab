import io
import json

import pytest
from rich.console import Console

from etag.core.evaluation import Evaluation
from etag.core.scenario import Task
from etag.engine.progress import ProgressBars, StepLog, TensorBoardLog


def task(index):
    """A task of two classes; callbacks read its number."""
    return Task(index, 2 * index, 2, None, None, num_base=2)


def bars(terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    return ProgressBars(console, "etag on digits", [100, 20]), console


def test_a_terminal_shows_task_phase_epoch_speed_terms_and_the_time_left():
    live, console = bars(terminal=True)
    live.on_task_begin(task(0), {})
    live.on_phase_begin("solver", steps=40, epochs=4)
    live.on_step(20, epoch=1, lr=1e-3, terms={"ce": 0.5, "aux_kl": 0.25}, rows=640)
    live._bars.refresh()
    live.close()
    shown = console.file.getvalue()
    for words in ("etag on digits  task 1/2", "solver", "epoch 2/4", "images/s", "ce 0.500", "aux_kl 0.250", "left"):
        assert words in shown


def test_nothing_is_printed_without_a_terminal():
    quiet, console = bars(terminal=False)
    quiet.on_task_begin(task(0), {})
    quiet.on_phase_begin("solver", steps=40, epochs=4)
    quiet.on_step(20, epoch=1, lr=1e-3, terms={"ce": 0.5}, rows=640)
    quiet.close()
    assert console.file.getvalue() == ""


def test_the_time_left_counts_the_phase_and_the_tasks_to_come(monkeypatch):
    monkeypatch.setattr("etag.engine.progress.time.perf_counter", lambda: 0.0)
    live, _ = bars(terminal=False)
    live.on_task_begin(task(0), {})
    live.on_phase_begin("solver", steps=40, epochs=4)
    assert live._time_left(10.0, 20) == pytest.approx(10 + 20 * 20 / 100), "20 s for 100 images, so 4 s for 20"


def test_the_step_log_records_task_phase_and_step_and_skips_passes(tmp_path):
    log = StepLog(tmp_path / "steps.jsonl")
    log.on_task_begin(task(2), {})
    log.on_phase_begin("features", 3, 1)
    log.on_step(3, 0, 0.0, {}, 12)
    log.on_phase_begin("solver", 10, 1)
    log.on_step(10, 0, 1e-3, {"ce": 1.0}, 40)
    log.on_phase_end("solver", 1.0)
    (line,) = (tmp_path / "steps.jsonl").read_text().splitlines()
    log.close()
    expected = {"task": 2, "phase": "solver", "step": 10, "epoch": 0, "lr": 1e-3, "terms": {"ce": 1.0}}
    assert expected.items() <= json.loads(line).items()


def test_tensorboard_counts_steps_on_over_tasks(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = TensorBoardLog(tmp_path)
    for index in range(2):
        log.on_task_begin(task(index), {})
        log.on_phase_begin("features", 3, 1)
        log.on_step(3, 0, 0.0, {}, 12)
        log.on_phase_begin("solver", 20, 1)
        for step in (10, 20):
            log.on_step(step, 0, 1e-3, {"ce": float(step)}, 40)
        log.on_phase_end("solver", 1.0)
    log.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert set(events.Tags()["scalars"]) == {"solver/ce", "solver/lr", "solver/images_per_second"}
    assert [(event.step, event.value) for event in events.Scalars("solver/ce")] == [
        (10, 10),
        (20, 20),
        (30, 10),
        (40, 20),
    ]


def test_tensorboard_logs_accuracies_after_each_task(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = TensorBoardLog(tmp_path)
    for index, accuracies in enumerate(([0.75], [0.5, 0.25])):
        log.on_evaluation(task(index), Evaluation(accuracies, accuracies, [], 8, sum(accuracies) / len(accuracies)))
    log.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    found = {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert found == {
        "accuracy/all classes": [(1, 0.75), (2, 0.375)],
        "accuracy/task 1": [(1, 0.75), (2, 0.5)],
        "accuracy/task 2": [(2, 0.25)],
    }


# -- a log that is continued -----------------------------------------------------------------------


def written(path):
    """Task, phase and step of each line."""
    lines = map(json.loads, path.read_text().splitlines())
    return [(line["task"], line["phase"], line["step"]) for line in lines]


@pytest.fixture
def log_of_two_tasks(tmp_path):
    """A log of two phases of two steps in each of two tasks."""
    path = tmp_path / "steps.jsonl"
    log = StepLog(path)
    for index in range(2):
        log.on_task_begin(task(index), {})
        for phase in ("solver", "generator"):
            log.on_phase_begin(phase, 20, 1)
            for step in (10, 20):
                log.on_step(step, 0, 1e-3, {"ce": 1.0}, 40)
    log.close()
    return path


BASE = [(0, "solver", 10), (0, "solver", 20), (0, "generator", 10), (0, "generator", 20)]


@pytest.mark.parametrize(
    ("done", "left"),
    [
        ({}, []),
        ({"solver": 10}, [(1, "solver", 10)]),
        ({"solver": 15}, [(1, "solver", 10)]),
        ({"solver": None}, [(1, "solver", 10), (1, "solver", 20)]),
        ({"solver": None, "generator": 10}, [(1, "solver", 10), (1, "solver", 20), (1, "generator", 10)]),
    ],
    ids=str,
)
def test_lines_of_steps_that_will_be_made_again_are_dropped(log_of_two_tasks, done, left):
    log = StepLog(log_of_two_tasks)
    log.on_task_begin(task(1), done)
    log.close()
    assert written(log_of_two_tasks) == BASE + left


def test_a_line_that_was_not_finished_is_dropped(log_of_two_tasks):
    with log_of_two_tasks.open("a") as file:
        file.write('{"task": 0, "pha')
    log = StepLog(log_of_two_tasks)
    log.on_task_begin(task(1), {})
    log.close()
    assert written(log_of_two_tasks) == BASE


def test_a_damaged_log_is_reported_and_begun_again(log_of_two_tasks, capsys):
    log_of_two_tasks.write_text("nonsense\n")
    log = StepLog(log_of_two_tasks)
    log.on_task_begin(task(1), {})
    log.close()
    assert written(log_of_two_tasks) == []
    told = f"the log {log_of_two_tasks} was damaged: what could not be read of it is removed.\n"
    assert capsys.readouterr().err == told
