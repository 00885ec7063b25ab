import io
import json

import pytest
from rich.console import Console

from etag.engine.progress import ProgressBars, StepLog, TensorBoardLog, _clock


def bars(terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    return ProgressBars(console, "etag on digits", [100, 20]), console


def test_a_terminal_shows_task_phase_epoch_speed_terms_and_the_time_left():
    live, console = bars(terminal=True)
    live.on_task_begin(0)
    live.on_phase_begin("solver", steps=40, epochs=4)
    live.on_step(20, epoch=1, lr=1e-3, terms={"ce": 0.5, "kl": 0.25}, rows=640)
    live._bars.refresh()
    live.close()
    shown = console.file.getvalue()
    for words in ("etag on digits  task 1/2", "solver", "epoch 2/4", "images/s", "ce 0.500", "kl 0.250", "left"):
        assert words in shown


def test_nothing_is_shown_off_a_terminal():
    quiet, console = bars(terminal=False)
    quiet.on_task_begin(0)
    quiet.on_phase_begin("solver", steps=40, epochs=4)
    quiet.on_step(20, epoch=1, lr=1e-3, terms={"ce": 0.5}, rows=640)
    quiet.close()
    assert console.file.getvalue() == ""


def test_the_time_left_counts_the_phase_and_the_tasks_to_come(monkeypatch):
    monkeypatch.setattr("etag.engine.progress.time.perf_counter", lambda: 0.0)
    live, _ = bars(terminal=False)
    live.on_task_begin(0)
    live.on_phase_begin("solver", steps=40, epochs=4)
    assert live._time_left(10.0, 20) == pytest.approx(10 + 20 * 20 / 100), "20 s for 100 images, so 4 s for 20"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (61.4, "1:01"), (3661, "1:01:01")])
def test_a_clock_has_hours_only_where_there_are_any(seconds, text):
    assert _clock(seconds) == text


def test_the_step_log_says_where_the_run_was_and_skips_sweeps(tmp_path):
    log = StepLog(tmp_path / "steps.jsonl")
    log.on_task_begin(2)
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
    for task in range(2):
        log.on_task_begin(task)
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
