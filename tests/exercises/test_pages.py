"""What a busy machine does to an exercise of a page makes its answer open, not wrong."""

from __future__ import annotations

from metallab.exercises import check
from metallab.pytorch.kernels import rule


def test_times_that_are_all_late_are_open():
    def late(launch, synchronize):
        synchronize()
        launch()
        synchronize()
        return 9.8765

    assert check("01.1", late).outcome == "open"


def test_a_kernel_that_does_not_end_in_time_is_open(monkeypatch):
    def stop(*_):
        raise TimeoutError("took longer than 120 s and was stopped")

    monkeypatch.setattr(rule, "gives", stop)
    assert check("23.1", "kernel void hardshrink() {}").outcome == "open"
