"""The exercises of page 64."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from metallab.exercises.judging import exercise, expect


@exercise(
    "64.1",
    hint="the middles do not decide, the nearest ends do",
)
def judge_gains_more(gains_more: Callable[..., Any]) -> bool:
    """Ask about intervals that lie apart, overlap, and share an end, in both orders."""
    cases = [
        ((5.4, 5.6), (3.0, 3.3), "first"),
        ((2.0, 4.0), (3.5, 3.6), "unsure"),  # one lies within the other
        ((1.0, 3.0), (2.0, 5.0), "unsure"),
        ((1.1, 1.2), (1.3, 9.0), "second"),
        ((1.1, 1.3), (1.3, 9.0), "unsure"),  # they share an end
        ((1.1, 1.3), (1.30001, 9.0), "second"),
        ((0.101, 0.103), (0.104, 0.105), "second"),
    ]
    turned = {"first": "second", "second": "first", "unsure": "unsure"}
    cases += [(b, a, turned[wanted]) for a, b, wanted in cases]

    for a, b, wanted in cases:
        expect(f"gains_more({a}, {b})", gains_more(a, b), wanted)
    return True


Machine = dict[str, Any]


def _make_pairs() -> list[tuple[Machine, Machine, bool]]:
    """Return pairs of machines, and whether their speed-ups may be divided.

    They may where chip, system and version of PyTorch are known of both and equal. What else is told of a machine does
    not count.
    """
    mac: Machine = {"chip": "Apple M2, 8 GPU cores", "os": "15.1", "torch": "2.15.0"}
    pairs = [
        (mac, mac, True),
        ({}, {}, False),
        (mac | {"os": ""}, mac | {"os": ""}, True),
        (mac, mac | {"os": "15.10"}, False),
        (mac, mac | {"chip": "Apple M2, 10 GPU cores"}, False),
        (mac, mac | {"torch": "2.15.1"}, False),
        (mac, mac | {"torch": "2.15.0+cpu"}, False),
        (mac, mac | {"chip": mac["chip"].lower()}, False),
        (mac | {"memory": 8, "gpu": None}, mac | {"memory": 16}, True),
    ]

    for key in mac:
        unknown, absent = mac | {key: None}, dict(mac)
        del absent[key]
        pairs.append((mac, mac | {key: "another"}, False))
        pairs += [(a, b, False) for a in (unknown, absent) for b in (mac, unknown, absent)]
    return pairs


@exercise(
    "64.2",
    hint="chip, os and torch alone; what is None, or not there, matches nothing",
)
def judge_may_divide(may_divide: Callable[..., Any]) -> bool:
    """Ask about machines of which something differs, or is not known, in both orders."""
    for one, two, wanted in _make_pairs():
        for a, b in ((one, two), (two, one)):
            got = may_divide(dict(a), json.loads(json.dumps(b)))  # as from a file
            expect(f"may_divide({a}, {b})", got, wanted)
    return True
