"""How many threads compute: measured once, recorded, and the same when work is resumed."""

import pytest
import torch

from etag.core.options import RuntimeOptions
from etag.engine import runtime
from etag.engine.runtime import launch, resolve_runtime
from etag.engine.threads import ThreadChoice, measure_threads
from etag.learner.model_directory import ModelDirectory


@pytest.fixture
def cores(monkeypatch):
    """Two threads, and nothing that says how many there should be."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield 2
    torch.set_num_threads(before)


def test_the_faster_number_is_chosen(cores):
    choice = measure_threads()
    assert choice.threads == (2 if choice.ratio > 1 else 1)
    assert torch.get_num_threads() == 2  # measuring changes nothing


def test_nothing_is_measured_where_the_number_is_given(cores, monkeypatch):
    assert resolve_runtime(RuntimeOptions(threads=7)).threads == 7
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert measure_threads() is None
    assert resolve_runtime(RuntimeOptions()).threads == 2
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_runtime(RuntimeOptions()).threads is None


@pytest.mark.parametrize(
    ("choice", "line"),
    [
        (ThreadChoice(2, 1.63), "computing with 2 threads: 1.6 times as fast as one."),
        (ThreadChoice(1, 0.12), "computing with one thread: all cores together are 0.1 times as fast."),
    ],
)
def test_what_was_measured_is_printed_once(choice, line, monkeypatch):
    monkeypatch.setattr(runtime, "measure_threads", lambda: choice)
    printed = []
    resolved = resolve_runtime(RuntimeOptions(), print_line=printed.append)
    assert (resolved.threads, printed) == (choice.threads, [line])
    assert resolve_runtime(RuntimeOptions(), recorded=RuntimeOptions(threads=3), print_line=printed.append).threads == 3
    assert printed == [line]


def test_an_unfinished_lesson_remembers_where_it_computes(tmp_path):
    directory = ModelDirectory(tmp_path)
    assert directory.unfinished.runtime is None
    directory.unfinished.prepare(0, "a lesson")
    directory.unfinished.record_runtime(RuntimeOptions(threads=1, precision="bf16-mixed"))
    assert directory.unfinished.runtime == RuntimeOptions(threads=1, precision="bf16-mixed")
    (directory.unfinished.folder / "runtime.json").write_text('{"threads": -3}')
    assert directory.unfinished.runtime is None
    directory.unfinished.clear()
    assert directory.unfinished.runtime is None


def test_the_program_that_starts_the_work_computes_as_before(cores):
    inside = []
    launch(RuntimeOptions(accelerator="cpu", threads=1), lambda _: inside.append(torch.get_num_threads()))
    assert (inside, torch.get_num_threads()) == ([1], 2)
