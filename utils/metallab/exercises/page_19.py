"""The exercises of page 19."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from metallab.exercises.judging import exercise, expect, is_near

WORDS = ("slower", "not faster", "inconclusive", "unsure", "faster", "faster")


def _draw_verdicts(seed: int) -> list[tuple[int, str]]:
    """Return up to six sizes with verdicts; the last ones are often faster."""
    draw = random.Random(seed)
    sizes = sorted({draw.randint(0, 9) for _ in range(draw.randint(0, 6))})
    verdicts = [(size, draw.choice(WORDS)) for size in sizes]
    won = draw.randint(0, len(sizes))
    return verdicts[:won] + [(size, "faster") for size in sizes[won:]]


@exercise(
    "19.1",
    hint="one lucky win in the middle does not count, and unsure is no win",
)
def judge_first_win(first_win: Callable[..., Any]) -> bool:
    """Ask for the first size from which on all are won, in sixty series."""
    first_win([(8, "slower"), (16, "faster")])

    for verdicts in map(_draw_verdicts, range(60)):
        lost = [size for size, verdict in verdicts if verdict != "faster"]
        wins = [size for size, _ in verdicts if not lost or size > lost[-1]]
        given = list(verdicts)
        expect(f"first_win({verdicts})", first_win(given), min(wins, default=None))
        assert given == verdicts, f"of {verdicts} it leaves {given}"
    return True


@exercise(
    "19.2",
    hint="add times, not ratios, and divide at the end",
)
def judge_whole_speed_up(whole_speed_up: Callable[..., Any]) -> bool:
    """Ask for the speed-up of several pipelines."""
    cases = [
        ([(0.09, 3.0), (0.01, 0.5)], 2.0),
        ([(0.003, 0.4)], 0.4),
        ([(0.01, 2.0), (0.02, 4.0)], 3.0),
        ([(7.0, 7.0), (1.0, 0.25)], 1.6),
        ([(0.6, 3.0), (0.1, 0.5), (0.4, 1.0)], 1.375),
        ([(0.0, 9.0), (0.3, 1.5), (0.3, 3.0), (0.6, 1.0)], 4 / 3),
    ]

    for stages, wanted in cases:
        given = list(stages)
        got = whole_speed_up(given)
        near = is_near(got, wanted, relative=0, absolute=1e-6)
        expect(f"whole_speed_up({stages})", got, wanted, holds=near)
        assert given == stages, f"of {stages} it leaves {given}"
    return True
