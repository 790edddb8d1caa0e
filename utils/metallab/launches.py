"""Launch time: how long a model takes from a file to its first answer, in fresh processes, split into its parts.

What happens only once in a process cannot be repeated in it: modules stay imported, kernels stay compiled. So every
sample is a process of its own, started by `metallab.isolated`, which times

* ``import``: the frameworks that a way needs, NumPy among them,
* ``load``: everything up to a function that answers,
* ``first call``: that function's first answer, as a NumPy array, so that nothing is left to wait for.

``first answer`` is their sum. Starting Python itself, which all ways have in common, and reading the input are not in
it. Ways take turns, round by round, and each round's fresh processes are one sample of each.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from metallab import checks, device, isolated, measuring_lock, mode, results_made, timing, units
from metallab.allowance import Allowance
from metallab.timing import SIMULATED, Measurement

STAGES = ("import", "load", "first call")
TOTAL = "first answer"
QUIET = 0.32
"""Seconds before each round in which nothing of ours runs: what is busy then are other programs."""

_PROGRAM = """
import os, sys, time
os.chdir({here!r})
early = sorted({{"numpy", "onnxruntime", "torch"}} & set(sys.modules))
marks = [time.perf_counter_ns()]
{imports}
import numpy as np
marks.append(time.perf_counter_ns())
{load}
marks.append(time.perf_counter_ns())
x = np.load("x.npy")
marks.append(time.perf_counter_ns())
y = answer(x)
marks.append(time.perf_counter_ns())
y = np.array(y)
seconds = [(marks[b] - marks[a]) / 1e9 for a, b in ((0, 1), (1, 2), (3, 4))]
"""


@dataclass(frozen=True)
class Way:
    """One way from a file to an answer, as Python text for a process of its own, in the folder with the files."""

    imports: str
    """Import statements of the frameworks, and of modules in the folder."""
    load: str
    """Statements that define ``answer``: a function of a NumPy array that returns one."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables; ``{here}`` in a value stands for the folder."""
    emptied: str = ""
    """A folder in the folder that is deleted before each process: so that its cache is cold."""
    device: str = "cpu"
    """``METALLAB_DEVICE`` of the process; ``mps`` is an Apple GPU, simulated where there is none."""
    spare: bool = False
    """Whether it is left out where nothing is left of the time when its turn comes."""


@dataclass(frozen=True)
class Launch:
    """What the fresh processes of one way gave."""

    name: str
    parts: Mapping[str, Measurement]
    """By stage, and ``first answer``. A sample is one process; ``first_call`` is that of the first."""
    output: np.ndarray

    def __str__(self) -> str:
        total = self.parts[TOTAL]
        if total.simulated:
            return f"{self.name}: {SIMULATED}"

        seconds = {stage: self.parts[stage].median for stage in STAGES}
        longest = max(seconds, key=seconds.__getitem__)
        share = seconds[longest] / sum(seconds.values())
        busy = " (busy machine: too long)" if total.is_busy else ""
        return (
            f"{self.name}: the first answer takes {units.seconds(total.median)}, "
            f"{share:.0%} of it the {longest}{busy}"
        )


@dataclass(frozen=True)
class _Sample:
    seconds: Mapping[str, float]
    others: float
    output: np.ndarray


def measure(
    ways: Mapping[str, Way],
    here: Path,
    *,
    rounds: int,
    on: device.Device,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Launch]:
    """Launch each way in fresh processes, in turns.

    Parameters
    ----------
    ways
        What is launched, by name.
    here
        The folder with the ways' files and the input, ``x.npy``.
    rounds
        Processes of each way; six are the fewest that give an interval at 95 %. Where several people measure, each
        round waits for its turn (`metallab.measuring_lock`).
    on
        The page's device; a way on another one takes that one's name.
    seconds
        The time for all of it: the first round is made in any case, but for ways that are ``spare``. What is left out
        is printed.
    clock
        Returns seconds.

    Raises
    ------
    metallab.isolated.ChildFailed
        With the way and the reason, if a process does not end well.
    metallab.checks.Mismatch
        If two processes of a way give different answers.
    """
    within = Allowance(seconds, clock)
    samples: dict[str, list[_Sample]] = {name: [] for name in ways}

    for number in within.items(range(1, rounds + 1), "rounds of launches"):
        with measuring_lock.hold():  # its processes have it too: a turn inside a turn is the same
            load = timing.BackgroundLoad()
            time.sleep(QUIET)
            others = load.cores()
            for name in list(samples):
                if number == 1 and ways[name].spare and not within.left:
                    within.left_out.append(name)
                    del samples[name]
                else:
                    samples[name].append(_launch(name, ways[name], here.resolve(), others))

    if within.left_out:
        print(within)
    return {name: _summary(name, ways[name], each, rounds, on) for name, each in samples.items()}


def _launch(name: str, way: Way, here: Path, others: float) -> _Sample:
    """Run a way in a fresh process, and return its times and its answer, with the cores that others used before it.

    ChildFailed, with the way's name, if the process does not end well. RuntimeError if a framework was imported before
    the clock started: on a simulated GPU it has to be, so there it counts as no fault.
    """
    if way.emptied:
        shutil.rmtree(here / way.emptied, ignore_errors=True)

    environment = {key: value.format(here=here) for key, value in way.environment.items()}
    environment["PYTHONPATH"] = str(here)
    if way.device != "mps":  # and not the page's own, which may be simulated
        environment["METALLAB_DEVICE"] = way.device

    outcome = isolated.run(
        _PROGRAM.format(imports=way.imports, load=way.load, here=str(here)),
        results=["early", "seconds", "y"],
        device="mps" if way.device == "mps" else None,
        environment=environment,
        timeout=600,
    )
    try:
        early, seconds, output = outcome["early"], outcome["seconds"], outcome["y"]
    # an outcome raises it when it is asked for a result that the process did not make
    except isolated.ChildFailed as error:
        raise isolated.ChildFailed(f"{name}: {error}") from None

    if early and way.device != "mps":
        raise RuntimeError(
            f"{', '.join(early)} had been imported before the clock started: no import is measured"
        )
    stages = dict(zip(STAGES, seconds, strict=True))
    return _Sample({**stages, TOTAL: sum(seconds)}, others, output)


def _summary(name: str, way: Way, samples: list[_Sample], rounds: int, on: device.Device) -> Launch:
    """Return a way's launch from its samples: a measurement of each part, which becomes a result of the page.

    Mismatch if two processes gave different answers. Of what other programs used the largest counts, since they slow
    down single processes.
    """
    first = samples[0]
    for repeated in samples[1:]:
        checks.assert_close(first.output, repeated.output, "float32")

    label, simulated = _hardware(way, on)
    others = max(sample.others for sample in samples)
    parts: dict[str, Measurement] = {}
    for stage in first.seconds:
        seconds = tuple(sample.seconds[stage] for sample in samples)
        parts[stage] = Measurement(
            f"{name}: {stage}",
            question="latency",
            samples=seconds,
            first_call=seconds[0],
            block=1,
            warmup_calls=0,
            stop_reason=f"{len(samples)} of {rounds} processes",
            mode=mode.current(),
            device=label,
            simulated=simulated,
            others=others,
            kind=cast(Any, way.device),  # of the kinds that there are
        )
        results_made.announce(parts[stage])
    return Launch(name, parts, first.output)


def _hardware(way: Way, on: device.Device) -> tuple[str, bool]:
    """Return the name of what a way computes on, and whether that is simulated."""
    if way.device == on.kind:
        return on.label, on.simulated
    if way.device == "cpu":
        return device.cpu().label, False
    return isolated.apple_gpu(), sys.platform != "darwin"
