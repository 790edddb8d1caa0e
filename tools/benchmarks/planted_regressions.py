"""Does `metallab versus` find a slowdown that was planted, on a restless machine, and keep quiet where there is none?

    python tools/benchmarks/planted_regressions.py [--count 20] [--seconds 15] [--planted 0.05] [loop ...]

A side has 2, 5, 10 % more to do, or nothing, in a Python loop, a matrix product and a copy of memory; a load that comes
and goes by a script runs beside it. On a GPU (``--device cuda``) it is one kernel, with 2 % planted, and no load beside
it. Each comparison takes at most ``--seconds``, and is printed as soon as it is made; then the share of each that were
found, with its exact (Clopper-Pearson) 95 % interval.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from metallab.versus import case

VARIABLE = "METALLAB_PLANTED"
"""The environment variable that tells a process of a comparison the share that is planted in it."""
WORKS = ("loop", "product", "copy")
"""The cases for a CPU."""
Work = Callable[[], Any]
"""What is timed."""


def enlarge(of: float) -> int:
    """Return so much work, and what is planted in this process on top."""
    return round(of * (1 + float(os.environ.get(VARIABLE, "0"))))


@case
def loop() -> Work:
    """Nothing but the interpreter."""
    count = enlarge(20_000)
    return lambda: sum(i * i for i in range(count)) > 0


@case
def product() -> Work:
    """NumPy's product; more rows are more work."""
    import numpy as np

    a = np.ones((enlarge(400), 256), np.float32)
    b = np.ones((256, 256), np.float32)
    return lambda: (a @ b)[0]


@case
def copy() -> Work:
    """32 MiB from one place to another."""
    import numpy as np

    source = np.ones(enlarge(2**23), np.float32)
    target = np.empty_like(source)

    def copy_all() -> Any:
        np.copyto(target, source)
        return target[:8]

    return copy_all


@case
def kernel(device: str) -> Work:
    """One kernel of a GPU, bound by its memory."""
    import torch

    x = torch.ones(enlarge(2**26), device=device)
    y = torch.empty_like(x)
    return lambda: torch.add(x, 1, out=y)[:8]


# ---- the load beside a comparison ------------------------------------------------------------------------------------


def load() -> None:
    """Be what runs beside a comparison until it is killed: work, copies and rests, of lengths that a script draws."""
    import numpy as np

    chance = random.Random(27)
    a = np.ones((256, 256), np.float32)
    memory = np.ones(2**22, np.float32)

    while True:
        until = time.monotonic() + chance.uniform(0.05, 1.5)
        kind = chance.choice(("rest", "product", "copy"))
        while time.monotonic() < until:
            if kind == "rest":
                time.sleep(0.02)
            elif kind == "product":
                a @ a
            else:
                memory.copy()


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Let `load` run in a process of its own meanwhile."""
    process = subprocess.Popen([sys.executable, __file__, "--load"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


# ---- comparisons -----------------------------------------------------------------------------------------------------


def compare(work: str, planted: float, device: str, seconds: float) -> str:
    """Compare the work with and without what is planted, print the outcome and return its answer.

    The answer is a word of `metallab.versus`, such as ``SLOWER``: the second side is the one with more to do.
    """
    from metallab.versus import cases, lockstep

    file = Path(__file__).resolve()
    python, path = Path(sys.executable), os.environ.get("PYTHONPATH", "")
    sides = [
        lockstep.Command(python, {VARIABLE: str(more), "PYTHONPATH": path})
        for more in (0.0, planted)
    ]

    settings = lockstep.Settings(file, device=device, seconds=seconds)
    (outcome,) = lockstep.compare([cases.load(file)[work]], sides, settings)
    told = outcome.speed_up.ratio or outcome.reason
    print(f"{work}, {planted:.0%} planted: {outcome.answer} {told}", flush=True)
    return outcome.answer


def find_low_end(hits: int, count: int) -> float:
    """Return the share with which so many hits or more come in 2.5 % of trials: the low end of the interval.

    The chance of so many hits grows with the share, so it is found by halving, 40 times: to 12 digits.
    """
    low, high = 0.0, 1.0
    for _ in range(40):
        share = (low + high) / 2
        if _chance_of(hits, count, share) < 0.025:
            low = share
        else:
            high = share
    return low


def _chance_of(hits: int, count: int, share: float) -> float:
    """Return the chance of so many hits or more, where each trial is one with this chance."""
    return sum(
        math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(hits, count + 1)
    )


def ask(work: str, planted: float, given: argparse.Namespace) -> None:
    """Compare as often as asked for, and print how often the planted slowdown was found, or a false one seen."""
    answers = Counter(
        compare(work, planted, given.device, given.seconds) for _ in range(given.count)
    )
    hits, found = answers["SLOWER"], "found"
    if not planted:
        hits, found = hits + answers["FASTER"], "false alarms"

    low = find_low_end(hits, given.count)
    high = 1 - find_low_end(given.count - hits, given.count)
    shares = f"{low:.0%} to {high:.0%}"
    print(f"{work}, {planted:.0%} planted: {found} {hits} of {given.count} ({shares})")


# ---- the command -----------------------------------------------------------------------------------------------------


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python tools/benchmarks/planted_regressions.py",
        description=__doc__.partition("\n")[0],
    )
    parser.add_argument("work", nargs="*", help=f"{', '.join(WORKS)}; all of them if none is named")
    parser.add_argument(
        "--count", type=int, default=20, help="comparisons of each work with each amount"
    )
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="at most so many for a comparison"
    )
    parser.add_argument(
        "--planted", type=float, nargs=1, metavar="SHARE", help="this much alone, such as 0.05"
    )

    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda", "mps"))
    parser.add_argument(
        "--load", action="store_true", help="what this script starts: the load beside a comparison"
    )
    given = parser.parse_args()

    if unknown := [name for name in given.work if name not in WORKS]:
        parser.error(f"there is no work {unknown[0]}: name one of {', '.join(WORKS)}")
    return given


def main() -> None:
    """Make the comparisons that are asked for; with ``--load`` be the load beside them.

    On a GPU that is one kernel with 2 % planted, without a load, whatever work and share are named.
    """
    given = parse_arguments()
    if given.load:  # until it is killed
        load()

    if given.device != "cpu":
        ask("kernel", 0.02, given)
        return

    works = given.work or WORKS
    with loading():
        for work, planted in itertools.product(works, given.planted or (0.0, 0.02, 0.05, 0.10)):
            ask(work, planted, given)


if __name__ == "__main__":
    main()
