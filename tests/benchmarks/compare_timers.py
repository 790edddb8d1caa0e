"""Our medians beside those of pyperf and torch.utils.benchmark, on the same workloads in one run.

``make bars`` runs it. Each workload sums integers for a known time. The three timers take turns, round after round,
and the ratios are taken within a round, so that a machine that changes its speed does so for all of them. Where ours
and another differ by more than 5 % from 10 us up, the script says so and ends with code 1: run it on a quiet machine.

pyperf measures in processes of its own, started from this file with ``--upper``.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyperf

ALLOWED = 0.05
FROM = 10e-6  # below, the cost of the loop itself, which each timer pays differently, is a visible share
ROUNDS = 5
TARGETS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)


def workload(upper: int) -> Callable[[], object]:
    """Sum the integers below ``upper``."""
    numbers = range(upper)
    return lambda: sum(numbers)


def upper_for(target: float) -> int:
    """How many integers take about ``target`` seconds to sum."""
    upper = 16
    while True:
        took = min(_seconds(workload(upper)) for _ in range(3))
        if took >= 0.9 * target:
            return upper
        # approach in steps of at most a doubling: the first guess is far off
        upper = max(upper + 1, round(upper * min(2.0, target / took)))


def _seconds(fn: Callable[[], object]) -> float:
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def with_metallab(upper: int) -> float:
    from metallab import timing

    fn = workload(upper)
    return timing.measure(fn, on=timing.Host(), question="throughput", budget=timing.FULL).median


def with_torch(upper: int) -> float:
    from torch.utils.benchmark import Timer

    return Timer("fn()", globals={"fn": workload(upper)}).blocked_autorange(min_run_time=0.5).median


def with_pyperf(upper: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, __file__, "--upper", str(upper), "--quiet", "-o", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return pyperf.Benchmark.load(str(out)).median()


def pyperf_worker() -> None:
    """What pyperf runs: the same workload through its own Runner."""

    def pass_on(command, arguments):
        command.extend(("--upper", str(arguments.upper)))

    runner = pyperf.Runner(processes=2, values=5, min_time=0.05, add_cmdline_args=pass_on)
    runner.argparser.add_argument("--upper", type=int)
    arguments = runner.parse_args()
    runner.bench_func("workload", workload(arguments.upper))


def cost_of_a_sample(count: int = 200_000) -> tuple[float, float]:
    """Seconds that the harness adds to a sample's time, and seconds that it takes for a sample in all."""
    from metallab import timing

    budget = timing.Budget(min_samples=count, max_samples=count, min_seconds=0.0)
    start = time.perf_counter()
    measured = timing.measure(lambda: None, on=timing.Host(), budget=budget)
    return measured.median, (time.perf_counter() - start) / count


def row(target: float) -> dict[str, float]:
    """The medians of each timer over the rounds, and the ratio of ours to each other one, taken within rounds."""
    upper = upper_for(target)
    timers = {"metallab": with_metallab, "pyperf": with_pyperf, "torch": with_torch}
    rounds = [{name: timer(upper) for name, timer in timers.items()} for _ in range(ROUNDS)]
    medians = {name: statistics.median(ratio_of[name] for ratio_of in rounds) for name in timers}
    ratios = {f"metallab / {n}": statistics.median(f["metallab"] / f[n] for f in rounds) for n in ("pyperf", "torch")}
    return {"target": target, **medians, **ratios}


def main() -> int:
    from metallab import machine, paths, units

    print(f"{'workload':>9} {'metallab':>10} {'pyperf':>10} {'torch':>10} {'/ pyperf':>9} {'/ torch':>9}")
    rows, apart = [], []
    for target in TARGETS:
        measured = row(target)
        rows.append(measured)
        times = " ".join(f"{units.seconds(measured[name]):>10}" for name in ("metallab", "pyperf", "torch"))
        ratios = [measured[f"metallab / {name}"] for name in ("pyperf", "torch")]
        print(f"{units.seconds(target):>9} {times} {ratios[0]:9.3f} {ratios[1]:9.3f}", flush=True)
        if target >= FROM and any(abs(ratio - 1) > ALLOWED for ratio in ratios):
            apart.append(units.seconds(target))
    inside, in_all = cost_of_a_sample()
    print(f"the harness adds {units.seconds(inside)} to a sample and takes {units.seconds(in_all)} for one in all")
    out = paths.BUILD / "bars" / "compare_timers.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    described = json.loads(machine.describe().to_json())
    measured = {"rows": rows, "harness_inside": inside, "harness_in_all": in_all, "machine": described}
    out.write_text(json.dumps(measured, indent=1))
    print(f"saved in {out}")
    if apart:
        print(f"APART by more than {ALLOWED:.0%}: {', '.join(apart)}; is the machine quiet?")
    return 1 if apart else 0


if __name__ == "__main__":
    if any(argument in ("--upper", "--worker") for argument in sys.argv):
        pyperf_worker()
    else:
        sys.exit(main())
