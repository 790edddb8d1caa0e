"""Measurements for tests, of samples that are given and not timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from metallab import timing


def make_measurement(
    name: str = "x", samples: Iterable[float] = (1.0, 1.1, 1.2), **changes
) -> timing.Measurement:
    """A measurement of latency with these samples, as a quiet CPU gives it in full mode.

    ``changes`` are other fields of `timing.Measurement`.
    """
    usual = timing.Measurement(
        name=name,
        question="latency",
        samples=tuple(samples),
        first_call=1.0,
        block=1,
        warmup_calls=3,
        stop_reason="quiet",
        mode="full",
        device="Some CPU",
        simulated=False,
    )
    return dataclasses.replace(usual, **changes)
