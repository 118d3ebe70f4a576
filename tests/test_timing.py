from __future__ import annotations

import threading
import time

import pytest

from potentia.timing import TimeTally, format_shares, spending


def test_each_second_counts_once_for_the_innermost_kind():
    tally = TimeTally()
    began = time.perf_counter()
    with tally.running():
        with spending("train"):
            time.sleep(0.02)
            with spending("validate"), spending("tokenise"):
                time.sleep(0.03)
            time.sleep(0.01)
        with pytest.raises(ValueError, match="no"), spending("test"):
            raise ValueError("no")
    spent = time.perf_counter() - began
    assert tally.total == pytest.approx(sum(tally.seconds.values()))
    assert tally.total <= spent
    assert tally.seconds["train"] >= 0.03
    assert tally.seconds["tokenise"] >= 0.03
    assert tally.seconds["validate"] <= spent - 0.06, "what is innermost counts for itself alone"
    assert set(tally.seconds) == {"train", "validate", "tokenise", "test", "other"}


def test_nothing_is_counted_without_a_tally_or_in_another_thread():
    tally = TimeTally()
    with spending("train"):
        pass
    with tally.running():
        thread = threading.Thread(target=lambda: spending("train").__enter__())
        thread.start()
        thread.join()
    assert set(tally.seconds) == {"other"}


def test_shares_are_told_largest_first():
    assert (
        format_shares({"load": 1.0, "train": 60.0, "test": 38.9, "save": 0.1})
        == "train 60%, test 39%, load 1%"
    )


def test_compiling_kernels_is_no_cost_of_the_check_that_comes_upon_them_first():
    from contextlib import nullcontext
    from types import SimpleNamespace

    from potentia.engine.operations import compile_kernels

    tally = TimeTally()
    with tally.running(), spending("check"):
        kernels = SimpleNamespace(compiling=lambda _: nullcontext())
        compile_kernels(kernels, "a kind", lambda: time.sleep(0.03))
    assert tally.seconds["compile"] >= 0.03
    assert tally.seconds["check"] <= tally.total - 0.03


def test_what_a_row_does_once_is_left_out_of_its_pace():
    from potentia.run.calibration import Timed

    assert (
        Timed([], {"check": 1.0, "compile": 2.0, "load": 3.0, "train": 3.0}, 10.0).beside_checks
        == 4.0
    )
