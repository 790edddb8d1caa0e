"""From which kernel on the FFT is faster: never from a width at which that is not shown, and each outcome is named."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from test_findings import record

from metallab import device, timing
from metallab.imaging import widths


def told(module, *outcomes, **changes):
    return module.Widths("a GPU", dict(zip((3, 5, 9, 181), outcomes, strict=False)), **changes)


def test_a_point_without_a_verdict_is_named_beside_the_conclusion():
    """A reader saw "no kernel size is shown" beside a point: what holds at each width is said as well."""
    assert str(told(widths, "slower", "slower", "faster", "inconclusive")) == (
        "On a GPU: the FFT is not shown to be faster than conv2d up to 181 x 181; try larger kernels.\n"
        "  By width: slower at 3, 5; faster at 9; inconclusive at 181."
    )
    sound = told(widths, "slower", "inconclusive", "faster", "faster")
    assert sound.crossover == 9
    assert sound.sentence == "On a GPU: the FFT filters faster than conv2d from 9 x 9 on (measured to 181)."
    unknown = "withheld (busy machine)"
    assert told(widths, "slower", unknown, "faster").crossover == 9
    assert told(widths, "slower", unknown, "faster", unknown).sentence == (
        "On a GPU: the FFT filters faster than conv2d from 9 x 9 on (measured to 181; nothing may be said of 5, 181)."
    )
    assert told(widths, "slower", "faster", unknown).crossover == 5
    assert told(widths, "slower", unknown).sentence == (
        "On a GPU: the FFT is not shown to be faster than conv2d up to 5 x 5; nothing may be said of 5; "
        "try larger kernels."
    )
    assert str(told(widths, unknown, unknown, left_out="Left out: all.")) == (
        "On a GPU: this run cannot tell from which width on the FFT is faster: withheld (busy machine).\n"
        "  By width: withheld (busy machine) at 3, 5.\nLeft out: all."
    )


def test_a_stored_machine_is_named_and_its_doubts_count():
    every = [
        record("FFT", 2.0, f"{n} x {n}", lesson=widths.LESSON, baseline="direct", series="n x n", size=timing.Size(n))
        for n in (3, 9)
    ]
    busy = dataclasses.replace(every[1], measurement=dataclasses.replace(every[1].measurement, others=2.0))
    slower = dataclasses.replace(every[0], comparison=dataclasses.replace(every[0].comparison, outcome="slower"))
    alien = record("Fourier", 9.0, "5 x 5", lesson=widths.LESSON, series="n x n", size=timing.Size(5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(widths.records, "load", lambda path: [every[0], busy, alien])
        stored = widths.stored("some.json")
        assert str(stored) == (
            "Stored, from an earlier run on an NVIDIA H200: the FFT filters faster than conv2d from 3 x 3 on "
            "(measured to 9; nothing may be said of 9).\n"
            "  By width: faster at 3; withheld (busy machine) at 9."
        )
        with pytest.raises(ValueError, match="there are no times"):
            stored.draw()
        patch.setattr(widths.records, "load", lambda path: [every[0], slower])
        assert widths.stored("some.json").outcomes == {3: "inconclusive"}, "one process says faster, another slower"
        patch.setattr(widths.records, "load", lambda path: [])
        with pytest.raises(ValueError, match=r"some.json has no kernels"):
            widths.stored("some.json")


def ways_for(width):
    x = torch.ones(64)
    return {"direct": lambda: x * width, "FFT": lambda: x * width}


def test_both_ways_are_timed_and_drawn(monkeypatch):
    monkeypatch.setenv("METALLAB_MODE", "fast")
    measured = widths.measure(ways_for, [3, 9], on=device.cpu(), seconds=1e6)
    assert [c.name for c in measured.comparisons] == ["3 x 3", "9 x 9"]
    assert [c["FFT"].size.number for c in measured.comparisons] == [3, 9]
    assert set(measured.outcomes) == {3, 9}
    axes = measured.draw().axes[0]
    assert [line.get_label() for line in axes.get_lines()][:2] == ["direct", "FFT"]
    assert measured.left_out == ""
    hurried = widths.measure(ways_for, [3, 5, 9], on=device.cpu(), seconds=0.001)
    assert list(hurried.outcomes) == [3]
    assert "kernels of width 5, 9" in str(hurried)
    with pytest.raises(ValueError, match="nothing to measure"):
        widths.measure(ways_for, [], on=device.cpu())


def test_a_larger_picture_gets_in_proportion_more_time(monkeypatch):
    given = []
    allowed = widths.allowance.Allowance

    def noted(seconds):
        given.append(seconds)
        return allowed(0.001)

    monkeypatch.setattr(widths.allowance, "Allowance", noted)
    for shape, wanted in (((10, 10), 7.0), ((500, 2000), 35.0)):
        x = torch.ones(shape)
        widths.measure(lambda width, x=x: dict.fromkeys(("direct", "FFT"), lambda: x * 2), [3], on=device.cpu())
        assert given.pop() == pytest.approx(wanted)
    assert widths._budget(5.0).max_seconds == 5 * widths._budget(1.0).max_seconds


def test_disturbed_widths_are_gaps_in_the_picture(monkeypatch):
    monkeypatch.setenv("METALLAB_MODE", "fast")
    measured = widths.measure(ways_for, [3, 9], on=device.cpu(), seconds=1e6)
    assert measured.pixels == "64 pixels"
    assert "64 pixels" in measured.sentence

    def with_others(compared, cores):
        times = {way: dataclasses.replace(m, mode="full", others=cores) for way, m in compared.measurements.items()}
        return dataclasses.replace(compared, measurements=times, watches=())

    first, second = measured.comparisons
    one = dataclasses.replace(measured, comparisons=(with_others(first, 2.0), with_others(second, 0.0))).draw()
    assert [list(line.get_xdata()) for line in one.axes[0].get_lines()] == [[3, 9]] * 2
    assert [list(np.isnan(line.get_ydata())) for line in one.axes[0].get_lines()] == [[True, False]] * 2
    assert "nothing may be said of n = 3)" in one.get_suptitle()
    outcomes = dict.fromkeys((3, 9), "withheld (busy machine)")
    busy = tuple(with_others(each, 2.0) for each in measured.comparisons)
    none = dataclasses.replace(measured, comparisons=busy, outcomes=outcomes).draw()
    none.canvas.draw()
    assert np.isnan([line.get_ydata() for line in none.axes[0].get_lines()]).all()
    assert "this run cannot tell" in none.get_suptitle()


def test_a_wrong_picture_gets_no_speed_up():
    def wrong(width):
        return ways_for(width) | {"FFT": lambda: torch.zeros(64)}

    measured = widths.measure(wrong, [3], on=device.cpu(), seconds=1)
    assert measured.outcomes[3] == "withheld (outputs differ)"
    assert measured.crossover is None
