"""A run hears that it is to stop: politely once, at once the second time, wherever it is just then."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from potentia.run.execute import stop_on_signals


class Careless:
    """Somebody presses Ctrl-C while it is let go: Python prints what is raised there, and drops it."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(100):  # until the handler has been called
            time.sleep(0.001)


def let_a_careless_one_go() -> None:
    with stop_on_signals() as stop:
        assert not stop()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop()
        careless = Careless()
        del careless
        for _ in range(500):  # one long sleep would not be woken
            time.sleep(0.01)


def test_the_second_interrupt_is_not_lost_where_python_drops_it(capfd):
    with pytest.raises(KeyboardInterrupt):
        let_a_careless_one_go()
    assert "Traceback" not in capfd.readouterr().err


def test_the_second_interrupt_is_not_lost_where_it_comes_again_too_soon(
    capfd, monkeypatch: pytest.MonkeyPatch
):
    """On a busy machine the timer rang before the hook that started it was left, and Python dropped that, too."""
    usual_start = threading.Timer.start
    started = []

    def start_late(timer: threading.Timer) -> None:
        started.append(timer)
        usual_start(timer)
        if len(started) == 1:
            timer.join()
            time.sleep(0.001)  # the handler is called here

    monkeypatch.setattr(threading.Timer, "start", start_late)
    with pytest.raises(KeyboardInterrupt):
        let_a_careless_one_go()
    assert "Traceback" not in capfd.readouterr().err


def test_schedulers_only_ask():
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop()
    assert signal.getsignal(signal.SIGTERM) is before
