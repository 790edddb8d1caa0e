"""Does `metallab.results.compare` find a regression that was planted, and keep quiet where there is none?

    python tests/benchmarks/planted_in_files.py [--processes 60]

Real work is timed in many fresh processes, one after the other: a loop in Python, a matrix product, a copy of memory.
Each process times the work as it is, the same once more, and with 5, 10 and 20 % more to do. Three processes are a
file, as `make bench` makes it, and three questions are asked of many pairs of files with a known truth:

* **times**: the first three processes against the next three, as when somebody measures before and after a change;
* **times, in turns**: six processes dealt out alternately; what differs from *times* is that the machine changed;
* **gate**: the speed-up over the baseline of the same process, then and now.

Told are the share of planted regressions that are called SLOWER, and how often an unchanged benchmark is called SLOWER
or FASTER, each with the exact (Clopper-Pearson) 95 % interval of a share. Ends with code 1 beyond `TARGETS`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from metallab import paths, timing
from metallab.results import compare

MORE = {"unchanged": 0.0, "5 %": 0.05, "10 %": 0.10, "20 %": 0.20}
"""What is planted: how much more there is to do."""
TARGETS = {"false alarms": 0.05, "20 %": 0.90}
"""At most this share of false alarms, at least this share of 20 % found, by times in turns and by the gate."""
SIDE = 3
"""Processes in a file."""

Process = Mapping[str, Mapping[str, tuple[float, float | None]]]
"""For each work and each amount of it: median seconds, and the speed-up over the baseline of the same process."""


def python_loop(amount: float) -> Callable[[], object]:
    """Nothing but the interpreter."""
    count = round(20_000 * amount)
    return lambda: sum(i * i for i in range(count))


def matrix_product(amount: float) -> Callable[[], object]:
    """NumPy's product, on as many threads as it likes; more rows are more work."""
    import numpy as np

    a, b = np.ones((round(400 * amount), 256), np.float32), np.ones((256, 256), np.float32)
    return lambda: a @ b


def copy_of_memory(amount: float) -> Callable[[], object]:
    """32 MiB from one place to another."""
    import numpy as np

    source = np.ones(round(2**23 * amount), np.float32)
    target = np.empty_like(source)
    return lambda: np.copyto(target, source)


WORK = {"Python loop": python_loop, "matrix product": matrix_product, "copy of memory": copy_of_memory}


def measure() -> Process:
    """What one process measures, as `metallab.timing` does it on a page."""
    budget, speed_ups = timing.Budget(min_samples=20, min_seconds=0.15, max_seconds=2.0), {}
    for name, work in WORK.items():
        variants = {"baseline": work(1.0)} | {more: work(1 + share) for more, share in MORE.items()}
        same = timing.Unchecked("the same work, more of it")
        c = timing.compare(variants, on=timing.Host(), baseline="baseline", parity=same, name=name, budget=budget)
        speed_ups[name] = {more: (c[more].median, c.ratios[more].median) for more in MORE}
        speed_ups[name]["baseline"] = (c["baseline"].median, None)
    return speed_ups


def in_fresh_processes(count: int) -> Iterator[Process]:
    """Measure in one process after the other."""
    for number in range(1, count + 1):
        print(f"\rprocess {number} of {count}", end="", file=sys.stderr, flush=True)
        done = subprocess.run([sys.executable, __file__, "--measure"], capture_output=True, text=True, check=True)
        yield json.loads(done.stdout)
    print(file=sys.stderr)


def pairs(processes: Sequence[Process], in_turns: bool) -> Iterator[tuple[Sequence[Process], Sequence[Process]]]:
    """Disjoint pairs of files, each of three processes."""
    for start in range(0, len(processes) - 2 * SIDE + 1, 2 * SIDE):
        six = processes[start : start + 2 * SIDE]
        yield (six[::2], six[1::2]) if in_turns else (six[:SIDE], six[SIDE:])


def verdicts(processes: Sequence[Process], question: str, more: str) -> list[compare.Answer]:
    """What is said of each pair of files and each work, where this much is planted in the second file."""
    answers = []
    for before, after in pairs(processes, in_turns=question == "times, in turns"):
        for name in WORK:
            if question == "gate":
                then, now = ([p[name][what][1] for p in side] for side, what in ((before, "unchanged"), (after, more)))
                answers.append(compare.answer(now, then, compare.GATE_FACTOR))
            else:
                then, now = ([p[name][what][0] for p in side] for side, what in ((before, "baseline"), (after, more)))
                answers.append(compare.answer(then, now))
    return answers


def share(hits: int, of: int) -> str:
    """A share with its exact interval."""
    from scipy.stats import binomtest

    low, high = binomtest(hits, of).proportion_ci()
    return f"{hits:3d} of {of} ({low:4.0%} to {high:4.0%})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=60)
    parser.add_argument("--measure", action="store_true", help="what this script starts: measure in this process")
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure()))
        return 0
    if given.processes < 2 * SIDE:
        parser.error(f"two files of {SIDE} processes are needed at least")
    processes = list(in_fresh_processes(given.processes))
    out = paths.BUILD / "bars" / "planted_in_files.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(processes))
    return tell(processes)


def tell(processes: Sequence[Process]) -> int:
    """Print how the processes vary and what was found in them; 1 if a target is missed."""
    for name in WORK:
        medians = [process[name]["baseline"][0] for process in processes]
        spread = statistics.stdev(medians) / statistics.mean(medians)
        steps = [abs(a / b - 1) for a, b in itertools.pairwise(medians)]
        print(f"{name}: processes vary by {spread:.1%}, from one to the next by {statistics.median(steps):.1%}")
    missed = []
    for question in ("times", "times, in turns", "gate"):
        for more in MORE:
            answers = verdicts(processes, question, more)
            planted = more != "unchanged"
            hits = answers.count("SLOWER") + (0 if planted else answers.count("FASTER"))
            what = f"{more} planted: found" if planted else "nothing planted: false alarms"
            print(f"{question:16} {what:30} {share(hits, len(answers))}")
            limit = TARGETS.get(more if planted else "false alarms")
            rate = hits / len(answers)
            if question != "times" and limit and (rate < limit if planted else rate > limit):
                missed.append(f"{question}, {more}")
    if missed:
        print(f"MISSED: {'; '.join(missed)}; is the machine quiet?")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
