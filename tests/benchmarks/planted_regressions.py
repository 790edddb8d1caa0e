"""Does `metallab versus` find a slowdown that was planted, on a restless machine, and keep quiet where there is none?

    python tests/benchmarks/planted_regressions.py [--minutes 60] [--device cuda]

A side has 2, 5, 10 % more to do, or nothing, in a Python loop, a matrix product and a copy of memory; a load that comes
and goes by a script runs beside it, and a comparison may take `SECONDS`. There are several hundred, so each goes into a
journal under ``build/bars`` as soon as it is made, and the next start goes on there: after ``--minutes``, or after an
interruption. A change of the code that is judged begins a new journal.

On a GPU (``--device cuda``) it is one kernel, with 2 % planted, and no load beside it.

Told are the shares, each with its exact (Clopper-Pearson) 95 % interval; a bar of `BARS` is met where that interval
does not exclude it. Ends with code 1 where one is not met, with 3 while comparisons are still to be made.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from metallab.versus import case

VARIABLE = "METALLAB_PLANTED"
SECONDS = {"cpu": 15.0, "gpu": 45.0}
"""At most so many for a comparison; a process that uses a GPU starts slowly."""
PLAN = {"cpu": {0.0: 60, 0.02: 20, 0.05: 60, 0.10: 20}, "gpu": {0.0: 10, 0.02: 20}}
"""How many comparisons of each work, by how much is planted."""
WORK = {"cpu": ("loop", "product", "copy"), "gpu": ("kernel",)}
ALARMS = 0.05
BARS = {
    ("loop", 0.05): 0.95, ("product", 0.05): 0.95, ("copy", 0.05): 0.80,
    ("loop", 0.10): 0.95, ("product", 0.10): 0.95, ("copy", 0.10): 0.95, ("kernel", 0.02): 0.95,
}  # fmt: skip
"""The share that has to be found; of false alarms at most `ALARMS`."""


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

    chance, a, memory = random.Random(27), np.ones((256, 256), np.float32), np.ones(2**22, np.float32)
    while True:
        until, kind = time.monotonic() + chance.uniform(0.05, 1.5), chance.choice(("rest", "product", "copy"))
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


@dataclass(frozen=True)
class Made:
    """One comparison of the journal."""

    work: str
    planted: float
    answer: str
    speed: float
    low: float
    high: float
    pairs: int
    seconds: float


def state() -> str:
    """Of the code that is judged: a journal is of one."""
    from metallab import versus

    files = [Path(__file__), *sorted(Path(versus.__file__).parent.glob("*.py"))]
    judged = [file for file in files if file.name not in ("report.py", "sides.py", "command.py")]
    return hashlib.sha256(b"".join(file.read_bytes() for file in judged)).hexdigest()[:12]


def read(journal: Path) -> list[Made]:
    """What was made already; a line that an interruption cut short is left out."""
    lines = journal.read_text("utf-8").splitlines(keepends=True) if journal.exists() else []
    return [Made(**json.loads(line)) for line in lines if line.endswith("}\n")]


def left(made: Sequence[Made], device: str) -> list[tuple[str, float]]:
    """What is still to be made, evenly of everything: work and how much is planted."""
    plan, counts = PLAN[device], Counter((each.work, each.planted) for each in made)
    jobs = [(work, planted) for work in WORK[device] for planted in plan]
    shares = {job: (counts[job] + 0.5) / plan[job[1]] for job in jobs if counts[job] < plan[job[1]]}
    return sorted(shares, key=shares.get)


def make(work: str, planted: float, device: str) -> Made:
    """One comparison."""
    from metallab.versus import cases, lockstep

    file = Path(__file__).resolve()
    kind = "cpu" if device == "cpu" else "gpu"
    settings = lockstep.Settings(file, device=device, seconds=SECONDS[kind])
    path = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    sides = [lockstep.Command(Path(sys.executable), {VARIABLE: str(more), **path}) for more in (0.0, planted)]
    (outcome,) = lockstep.compare([cases.load(file)[work]], sides, settings)
    if outcome.interval is None:
        raise SystemExit(f"{work}, {planted:.0%} planted: {outcome.answer}: {outcome.reason}")
    of = outcome.interval
    high = of.high if math.isfinite(of.high) else 1e9
    return Made(work, planted, outcome.answer, of.speed, of.low, high, len(outcome.pairs), outcome.seconds)


def share(hits: int, of: int) -> tuple[float, float]:
    """The exact interval of a share."""
    from scipy.stats import binomtest

    return tuple(binomtest(hits, of).proportion_ci())


def tell(made: Sequence[Made]) -> int:
    """Print what was found; 1 if a bar is not met."""
    missed = []
    for work, planted in sorted({(each.work, each.planted) for each in made}):
        of = [each for each in made if (each.work, each.planted) == (work, planted)]
        answers = Counter(each.answer for each in of)
        hits = answers["SLOWER"] if planted else answers["SLOWER"] + answers["FASTER"]
        low, high = share(hits, len(of))
        bar = BARS.get((work, planted)) if planted else ALARMS
        is_met = bar is None or (high >= bar if planted else low <= bar)
        missed += [] if is_met else [f"{work}, {planted:.0%}"]
        pairs, seconds = (statistics.mean(getattr(each, name) for each in of) for name in ("pairs", "seconds"))
        print(
            f"{work:8} {planted:4.0%} planted: {'found' if planted else 'false alarms':12} {hits:2} of {len(of):2} "
            f"({low:4.0%} to {high:4.0%}){f', wanted {bar:.0%}' if bar else ''}{'' if is_met else ': MISSED'}; "
            f"wrong way round {answers['FASTER'] if planted else 0}; {pairs:.0f} pairs, {seconds:.0f} s each"
        )
    if missed:
        print(f"MISSED: {'; '.join(missed)}")
    return 1 if missed else 0


def main() -> int:
    from metallab import paths

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after so many, to go on another time")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda", "mps"))
    parser.add_argument("--tell", action="store_true", help="tell what the journal holds, and make nothing")
    parser.add_argument("--load", action="store_true", help="what this script starts: the load beside a comparison")
    given = parser.parse_args()
    if given.load:
        load()
    kind, until = "cpu" if given.device == "cpu" else "gpu", time.monotonic() + 60 * given.minutes
    journal = paths.BUILD / "bars" / f"planted_{given.device}_{state()}.jsonl"
    journal.parent.mkdir(parents=True, exist_ok=True)
    with loaded(kind == "cpu" and not given.tell):
        while (jobs := left(read(journal), kind)) and time.monotonic() < until and not given.tell:
            made = make(*jobs[0], given.device)
            with journal.open("a", encoding="utf-8") as file:
                print(json.dumps(vars(made)), file=file)
            print(
                f"{made.work}, {made.planted:.0%}: {made.answer}, {made.low:.3f} to {made.high:.3f}, {made.pairs} pairs"
            )
    code = tell(read(journal))
    if jobs:
        print(f"still to be made: {sum(PLAN[kind].values()) * len(WORK[kind]) - len(read(journal))}, into {journal}")
    return 3 if jobs else code


if __name__ == "__main__":
    sys.exit(main())
