"""From which kernel on the FFT is faster: never from a width at which that is not shown, and each outcome is named."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from test_findings import record

from metallab import device, timing
from metallab.imaging import widths

UNKNOWN = "withheld (busy machine)"


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        (["slower", "inconclusive", "faster", "faster"], "from 9 x 9 on (measured to 181)."),
        (["slower", UNKNOWN, "faster", UNKNOWN], "from 9 x 9 on (measured to 181; nothing may be said of 5, 181)."),
        (["slower", "faster", UNKNOWN], "from 5 x 5 on (measured to 9; nothing may be said of 9)."),
        (["slower", "slower", "faster", "inconclusive"], "not shown to be faster than conv2d up to 181 x 181."),
        (["slower", UNKNOWN], "not shown to be faster than conv2d up to 5 x 5; nothing may be said of 5."),
        ([UNKNOWN, UNKNOWN], "cannot tell from which width on the FFT is faster: withheld (busy machine)."),
    ],
)
def test_a_width_without_a_verdict_does_not_count_as_faster(outcomes, words):
    told = widths.sentence("On a GPU", dict(zip((3, 5, 9, 181), outcomes, strict=False)))
    assert told.startswith("On a GPU: ")
    assert told.endswith(words)


def test_a_stored_machine_is_named_and_its_doubts_count(monkeypatch):
    every = [
        record("FFT", 2.0, f"{n} x {n}", lesson=widths.LESSON, baseline="direct", series="n x n", size=timing.Size(n))
        for n in (3, 9)
    ]
    busy = dataclasses.replace(every[1], measurement=dataclasses.replace(every[1].measurement, others=2.0))
    slower = dataclasses.replace(every[0], comparison=dataclasses.replace(every[0].comparison, outcome="slower"))
    alien = record("Fourier", 9.0, "5 x 5", lesson=widths.LESSON, series="n x n", size=timing.Size(5))
    monkeypatch.setattr(widths.records, "load", lambda path: [every[0], busy, alien])
    told = widths.stored("some.json")
    assert told.startswith("Stored, from an earlier run on an NVIDIA H200: the FFT filters faster")
    assert told.endswith("from 3 x 3 on (measured to 9; nothing may be said of 9).")
    monkeypatch.setattr(widths.records, "load", lambda path: [every[0], slower])
    assert "not shown to be faster" in widths.stored("some.json"), "one process says faster, another slower"
    monkeypatch.setattr(widths.records, "load", lambda path: [])
    with pytest.raises(ValueError, match=r"some.json has no kernels"):
        widths.stored("some.json")


def ways_for(width):
    x = torch.ones(8, 8)
    return {"direct": lambda: x * width, "FFT": lambda: x * width}


def test_widths_that_do_not_fit_are_left_out(monkeypatch):
    monkeypatch.setenv("METALLAB_MODE", "fast")
    measured, left_out = widths.measure(ways_for, [3, 9], on=device.cpu(), seconds=1e6)
    assert [(c.name, c["FFT"].size.number) for c in measured] == [("3 x 3", 3), ("9 x 9", 9)]
    assert widths.outcomes(measured) == dict.fromkeys((3, 9), "withheld (fast mode)")
    assert left_out == ""
    hurried, left_out = widths.measure(ways_for, [3, 5, 9], on=device.cpu(), seconds=0.001)
    assert list(widths.outcomes(hurried)) == [3]
    assert "kernels of width 5, 9" in left_out


def test_a_larger_picture_gets_in_proportion_more_time(monkeypatch):
    given = []
    allowed = widths.allowance.Allowance
    monkeypatch.setattr(widths.allowance, "Allowance", lambda seconds: given.append(seconds) or allowed(0.001))
    for shape, wanted in (((10, 10), 7.0), ((500, 2000), 35.0)):
        x = torch.ones(shape)
        widths.measure(lambda width, x=x: dict.fromkeys(("direct", "FFT"), lambda: x * 2), [3], on=device.cpu())
        assert given.pop() == pytest.approx(wanted)


def test_a_wrong_picture_gets_no_speed_up():
    def wrong(width):
        return ways_for(width) | {"FFT": lambda: torch.zeros(8, 8)}

    measured, _ = widths.measure(wrong, [3], on=device.cpu(), seconds=1)
    assert widths.outcomes(measured) == {3: "withheld (outputs differ)"}
