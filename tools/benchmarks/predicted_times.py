"""Are fifteen calls predicted from the numbers of a machine? Which limit, and how long?

    python tools/benchmarks/predicted_times.py [--device cuda] [--threads 1] [--processor-time] [--side 4096]

Measures the machine's launch overhead, peak and bandwidth and the three further numbers of `metallab.roofline`, and
prints them with all predictions, from the three and from all six, before the first call is timed. Then it times each
call, looks at the machine before and after, and finds out by two experiments what limits the call: twice the work,
which shows the overhead; and other bytes at the same operations, or the reverse, which tells memory from arithmetic.
Where a time is far from its prediction it tries what may be the cause. ``--processor-time`` counts the time of this
process alone, for a busy machine, and takes one thread of a CPU. Prints a line for each call,
keeps ``build/bars/predicted_times.json``, and ends with code 1 if fewer than `LIMITS` limits or `TIMES` times are
predicted right.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable

import torch

import metallab.device
from metallab import paths, roofline, timing, units
from metallab.device import PyTorchDevice
from metallab.pytorch import fifteen_calls
from metallab.pytorch.fifteen_calls import Call, Make
from metallab.roofline import Bench, Limit, Machine

OUT = paths.BUILD / "bars" / "predicted_times.json"
LIMITS, TIMES = 10, 10
"""So many of the twelve limits that an experiment shows, and of the fifteen times, have to be predicted right."""


@dataclasses.dataclass(frozen=True)
class Row:
    """What was found of a call."""

    name: str
    flops: float
    bytes: float
    predicted_limit: Limit
    observed_limit: Limit | None
    """None where no experiment tells it."""
    predicted: float
    """Seconds."""
    measured: float
    """Seconds."""
    ratio: float
    holds: bool
    textbook: float
    """Seconds predicted from overhead, peak and bandwidth alone."""
    textbook_holds: bool
    speed: float
    """Of the machine's probe around it, over what it was."""
    doubled: float
    """Seconds with twice the work."""
    changed: float | None
    """Seconds of the experiment."""
    experiment: str | None
    explained: str | None
    """Without it a time that was not predicted is at most half as far from the prediction by three numbers, which know
    nothing of it; None where nothing that was tried is."""


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and say by the exit code whether the predictions are good."""
    options = parse(arguments)
    lab = pick(options)
    clock = time.process_time_ns if options.processor_time else time.perf_counter_ns
    budget = timing.Budget(max_seconds=options.seconds, min_seconds=min(0.2, options.seconds))

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False  # float32 is float32
    torch.backends.cudnn.allow_tf32 = False

    probes = fifteen_calls.probes(
        lab.torch_device, side=max(64, options.side // 4), numbers=2 * options.side**2
    )
    bench = roofline.calibrate(probes, on=lab, clock=clock)
    print(bench.machine)
    print(f"further numbers: {bench.machine.further}")
    calls = fifteen_calls.calls(options.side)
    show_predictions(bench.machine, calls)

    rows = []
    for call in calls:
        rows.append(examine(call, bench, lab, budget))
        print(describe(rows[-1]), flush=True)

    return conclude(bench.machine, rows, lab)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python tools/benchmarks/predicted_times.py", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=1, help="of a CPU")
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--side", type=int, default=4096, help="rows of the largest tensors")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each time, at most")
    return parser.parse_args(arguments)


def pick(options: argparse.Namespace) -> PyTorchDevice:
    """Return the device that is asked for."""
    lab = metallab.device.pick(options.device)
    if lab.kind != "cpu":
        if options.processor_time:
            raise SystemExit("--processor-time counts what a CPU does: leave it out for a GPU")
        return lab
    return metallab.device.cpu(threads=options.threads)


def show_predictions(machine: Machine, calls: list[Call]) -> None:
    """Print what is predicted of each call, before any of them is timed."""
    for call in calls:
        prediction = machine.predict(call.work)
        textbook = machine.textbook.predict(call.work)
        print(
            f"  {call.name:24} {call.work.intensity:8.2f} FLOP/B  by three numbers "
            f"{units.seconds(textbook.seconds):>8}, by six {units.seconds(prediction.seconds):>8} {prediction.limit}"
        )


def examine(call: Call, bench: Bench, lab: PyTorchDevice, budget: timing.Budget) -> Row:
    """Time a call, and find out what limits it: with twice the work, and by its experiment here, if it has one.

    Where it takes longer than three numbers predict, and six do not predict it either, what may be the cause is tried.
    Only the call itself has the machine looked at before and after it.
    """
    device = lab.torch_device

    def seconds(make: Make) -> float:
        function = make(device)
        measured = timing.measure(
            function, on=lab, name=call.name, budget=budget, clock=bench.clock
        )
        return measured.median

    reading = bench.measure(call.make(device), call.work, call.name, budget)
    measured = reading.measurement.median
    textbook = bench.machine.textbook.predict(call.work).seconds
    doubled = seconds(call.doubled)

    explained = None
    if measured > textbook and not reading.holds:
        explained = explain(call, bench.machine, textbook, measured, seconds)

    experiment = call.experiment(device) if call.experiment is not None else None
    changed, observed = None, None
    if experiment is not None:
        changed = seconds(experiment.make)
        observed = roofline.observe_limit(
            bench.machine, measured, doubled, changed, experiment.change
        )

    return Row(
        name=call.name,
        flops=call.work.flops,
        bytes=call.work.bytes,
        predicted_limit=reading.prediction.limit,
        observed_limit=observed,
        predicted=reading.prediction.seconds,
        measured=measured,
        ratio=reading.ratio,
        holds=reading.holds,
        textbook=textbook,
        textbook_holds=roofline.is_close(measured, textbook),
        speed=reading.speed,
        doubled=doubled,
        changed=changed,
        experiment=experiment.change.what if experiment is not None else None,
        explained=explained,
    )


def explain(
    call: Call,
    machine: Machine,
    textbook: float,
    measured: float,
    seconds: Callable[[Make], float],
) -> str | None:
    """Return what makes a call slower than three numbers predict; None if nothing that is tried does.

    Each suspect is tried by the call without it, which ``seconds`` times. Of several that explain it, the last.
    """
    explained = None
    for suspect in call.suspects:
        if suspect.is_new_memory and math.isinf(machine.new_memory):
            continue  # it costs nothing here, so it is not the cause
        without = seconds(suspect.make)
        if roofline.explains(textbook, measured, without):
            explained = f"{suspect.cause} ({units.seconds(without)})"
    return explained


def describe(row: Row) -> str:
    """Return a row as a line."""
    close = "close" if row.holds else f"FAR, {row.explained or 'unexplained'}"
    predicted, measured = units.seconds(row.predicted), units.seconds(row.measured)
    return (
        f"{row.name:24} {describe_limit(row)}; "
        f"{predicted} / {measured}, {units.times(row.ratio)} times {close}; "
        f"doubled {units.seconds(row.doubled)}; {describe_experiment(row)}"
        f"machine {units.times(row.speed)}"
    )


def describe_limit(row: Row) -> str:
    """Return which limit was predicted, which was observed, and whether they agree."""
    if row.observed_limit is None or row.changed is None:
        return f"limit {row.predicted_limit}, which no experiment tells"
    verdict = "right" if row.predicted_limit == row.observed_limit else "WRONG"
    return f"limit {row.predicted_limit} / {row.observed_limit} {verdict}"


def describe_experiment(row: Row) -> str:
    """Return the time of the experiment; an empty text if there was none."""
    if row.observed_limit is None or row.changed is None:
        return ""
    return f"{row.experiment}: {units.seconds(row.changed)}; "


def conclude(machine: Machine, rows: list[Row], lab: PyTorchDevice) -> int:
    """Print and keep the outcome; return the exit code."""
    observed = [row for row in rows if row.observed_limit is not None]
    limits = sum(row.predicted_limit == row.observed_limit for row in observed)
    times = sum(row.holds for row in rows)
    by_three = sum(row.textbook_holds for row in rows)
    print(
        f"{machine.label}, PyTorch {torch.__version__}: {limits} of {len(observed)} limits and "
        f"{times} of {len(rows)} times predicted right ({by_three} by three numbers)"
    )

    OUT.parent.mkdir(parents=True, exist_ok=True)
    outcome = {
        "machine": dataclasses.asdict(machine),
        "kind": lab.kind,
        "torch": torch.__version__,
        "rows": [dataclasses.asdict(row) for row in rows],
    }
    OUT.write_text(json.dumps(outcome, indent=1), encoding="utf-8")
    return 0 if limits >= LIMITS and times >= TIMES else 1


if __name__ == "__main__":
    sys.exit(main())
