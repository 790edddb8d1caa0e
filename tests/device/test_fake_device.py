"""The fake device behaves as a GPU does: it takes work at once, finishes it later, and has to be waited for."""

from __future__ import annotations

import math
import threading

import pytest

from metallab import fake_device, timing


def within(seconds: float, work) -> None:
    """Fail if something hangs; the thread it hangs on dies with the process."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it never returns"


def test_work_is_taken_at_once(monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(fake_device.time, "sleep", lambda seconds: gate.wait(300))
    with fake_device.FakeDevice() as device:
        try:
            within(300, lambda: [device.launch(0.001) for _ in range(3)])
            assert device.launched == 3
            assert device.finished == 0
        finally:
            gate.set()


@pytest.fixture
def slept(monkeypatch):
    """How long the device's thread slept, each time; it does not really."""
    seconds = []
    monkeypatch.setattr(fake_device.time, "sleep", seconds.append)
    return seconds


def test_kernels_are_waited_for_and_finish_in_order(slept):
    with fake_device.FakeDevice() as device:
        device.launch(0.02)
        device.launch(0.003)
        device.launch(0.001)
        device.launch(0.002)
        device.synchronize()
        assert slept == [0.02, 0.003, 0.001, 0.002]


def test_a_shape_is_compiled_once(slept):
    with fake_device.FakeDevice(compile_seconds=1.0) as device:
        for shape in (None, (2, 3), None, (2, 3), (3, 2)):
            device.launch(0.5, shape)
        device.synchronize()
    assert slept == [1.5, 1.5, 0.5, 0.5, 1.5]


def test_a_hot_device_slows_down(monkeypatch):
    """By a tenth of a kernel's time for each second since the device was made."""
    clock, slept = [50.0], []

    def sleep(seconds):
        slept.append(seconds)
        clock[0] += 1.0  # whatever was asked for, so that the seconds are whole

    monkeypatch.setattr(fake_device.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(fake_device.time, "sleep", sleep)
    with fake_device.FakeDevice(slowdown_per_second=0.1) as device:
        for _ in range(3):  # launched together, executed one, two seconds later
            device.launch(1.0)
        device.synchronize()
    assert slept == pytest.approx([1.0, 1.1, 1.2])


@pytest.fixture
def closed():
    with fake_device.FakeDevice() as device:
        device.launch(0.02)
    return device


def test_a_closed_device_has_finished_its_work(closed):
    assert closed.launched == 1
    assert closed.finished == 1


def test_a_closed_device_takes_no_work(closed):
    with pytest.raises(RuntimeError, match="closed; make a new one"):
        closed.launch(0.001)


def test_a_closed_device_can_be_closed_again_and_waited_for(closed):
    closed.close()
    within(300, closed.synchronize)


@pytest.mark.parametrize("seconds", [-0.001, math.nan, math.inf])
def test_a_bad_time_is_refused_where_it_is_given_and_work_goes_on(seconds):
    with fake_device.FakeDevice() as device:
        with pytest.raises(ValueError, match=r"seconds is .*; it must be 0 or more, and finite"):
            device.launch(seconds)

        device.launch(0.0)
        within(300, device.synchronize)
        assert device.finished == 1


@pytest.mark.parametrize("name", ["compile_seconds", "slowdown_per_second"])
def test_a_device_that_would_speed_up_time_is_refused(name):
    with pytest.raises(ValueError, match=name):
        fake_device.FakeDevice(**{name: -1.0})


def test_it_is_a_place_for_the_timer():
    with fake_device.FakeDevice() as device:
        got = timing.measure(lambda: device.launch(0.002), on=device, budget=timing.FAST)
    assert min(got.samples) >= 0.002
    assert "a thread that sleeps" in got.device
    assert not got.simulated
