"""Requests to stop, by signal and from other threads."""

import os
import signal
import threading

import pytest

from etag.learner.stopping import Interrupted, Stop


def test_in_python_it_is_a_keyboard_interrupt():
    assert issubclass(Interrupted, KeyboardInterrupt)
    assert Interrupted(15).exit_code == 143


def test_a_request_is_an_interruption_at_the_next_check():
    stop = Stop()
    stop.check()
    stop.request()
    with pytest.raises(Interrupted) as interrupted:
        stop.check()
    assert interrupted.value.exit_code == 128 + signal.SIGTERM


def test_it_is_enough_that_one_process_is_asked():
    stop = Stop(max_over_processes=lambda number: max(number, signal.SIGINT))
    with pytest.raises(Interrupted) as interrupted:
        stop.check()
    assert interrupted.value.exit_code == 130


def test_the_first_signal_is_a_request_the_second_stops_at_once():
    stop, messages = Stop(), []
    before = signal.getsignal(signal.SIGTERM)
    with stop.on_signals(messages.append):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal_number == signal.SIGTERM
        assert len(messages) == 1
        with pytest.raises(Interrupted) as interrupted:
            signal.raise_signal(signal.SIGINT)
    assert interrupted.value.exit_code == 130
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_threads_leave_the_signal_handlers_alone():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with Stop().on_signals(print):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
