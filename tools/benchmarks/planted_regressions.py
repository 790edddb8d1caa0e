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
from collections.abc import Iterator
from pathlib import Path

from metallab.versus import case

VARIABLE = "METALLAB_PLANTED"


def amount(of: float) -> int:
    """So much work, and what is planted in this process."""
    return round(of * (1 + float(os.environ.get(VARIABLE, "0"))))


@case
def loop():
    """Nothing but the interpreter."""
    count = amount(20_000)
    return lambda: sum(i * i for i in range(count)) > 0


@case
def product():
    """NumPy's product; more rows are more work."""
    import numpy as np

    a, b = np.ones((amount(400), 256), np.float32), np.ones((256, 256), np.float32)
    return lambda: (a @ b)[0]


@case
def copy():
    """32 MiB from one place to another."""
    import numpy as np

    source = np.ones(amount(2**23), np.float32)
    target = np.empty_like(source)

    def copied():
        np.copyto(target, source)
        return target[:8]

    return copied


@case
def kernel(device):
    """One kernel of a GPU, bound by its memory."""
    import torch

    x = torch.ones(amount(2**26), device=device)
    y = torch.empty_like(x)
    return lambda: torch.add(x, 1, out=y)[:8]


def load() -> None:
    """What runs beside a comparison until it is killed: work, copies and rests, of lengths that a script draws."""
    import numpy as np

    chance, a, memory = (
        random.Random(27),
        np.ones((256, 256), np.float32),
        np.ones(2**22, np.float32),
    )
    while True:
        until, kind = (
            time.monotonic() + chance.uniform(0.05, 1.5),
            chance.choice(("rest", "product", "copy")),
        )
        while time.monotonic() < until:
            if kind == "rest":
                time.sleep(0.02)
            elif kind == "product":
                a @ a
            else:
                memory.copy()


@contextlib.contextmanager
def loaded(wanted: bool) -> Iterator[None]:
    """With `load` in a process of its own."""
    process = subprocess.Popen([sys.executable, __file__, "--load"]) if wanted else None
    try:
        yield
    finally:
        if process:
            process.kill()
            process.wait()


def answer(work: str, planted: float, device: str, seconds: float) -> str:
    """What one comparison answers."""
    from metallab.versus import cases, lockstep

    file = Path(__file__).resolve()
    path = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    sides = [
        lockstep.Command(Path(sys.executable), {VARIABLE: str(more), **path})
        for more in (0.0, planted)
    ]
    settings = lockstep.Settings(file, device=device, seconds=seconds)
    (outcome,) = lockstep.compare([cases.load(file)[work]], sides, settings)
    print(
        f"{work}, {planted:.0%} planted: {outcome.answer} {outcome.speed_up.ratio or outcome.reason}",
        flush=True,
    )
    return outcome.answer


def at_least(hits: int, count: int) -> float:
    """The share with which so many hits or more come in 2.5 % of trials: the low end of the interval."""
    low, high = 0.0, 1.0
    for _ in range(40):
        share = (low + high) / 2
        chance = sum(
            math.comb(count, k) * share**k * (1 - share) ** (count - k)
            for k in range(hits, count + 1)
        )
        low, high = (share, high) if chance < 0.025 else (low, share)
    return low


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python tools/benchmarks/planted_regressions.py",
        description=__doc__.partition("\n")[0],
    )
    parser.add_argument("work", nargs="*", help="loop, product or copy; all three if none is named")
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
    if given.load:
        load()
    on_cpu = given.device == "cpu"
    works = given.work or ("loop", "product", "copy")
    jobs = (
        itertools.product(works, given.planted or (0.0, 0.02, 0.05, 0.10))
        if on_cpu
        else [("kernel", 0.02)]
    )
    with loaded(on_cpu):
        for work, planted in jobs:
            answers = Counter(
                answer(work, planted, given.device, given.seconds) for _ in range(given.count)
            )
            hits = answers["SLOWER"] + (0 if planted else answers["FASTER"])
            low, high = at_least(hits, given.count), 1 - at_least(given.count - hits, given.count)
            found = "found" if planted else "false alarms"
            print(
                f"{work}, {planted:.0%} planted: {found} {hits} of {given.count} ({low:.0%} to {high:.0%})"
            )


if __name__ == "__main__":
    main()
