"""Time the same work in two live processes, one of each side, alternately.

A fresh process of the same code differs from the last by several per cent, so files that were measured one after the
other have little to say (docs/versus.md). Here both sides live at the same time and never compute at the same time. A
**round** takes one sample of each, in random order and after an untimed call, and gives one ratio: what the machine
does to both cancels. What a process keeps (where its memory lies) does not cancel within its life, so there are several
**pairs** of processes, each at random offsets of memory, and on the same cores where the system allows it.
`metallab.versus.intervals` has the statistics. Cases of a group share their processes, which import frameworks once.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import select
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from metallab import processes, timing, turns
from metallab.isolated import ONE_THREAD
from metallab.versus import cases, intervals, worker
from metallab.versus.cases import Case

WORKER = Path(worker.__file__)
MOST_ROUNDS = 100
_RESTLESS = 6.0
"""How many times as much rounds vary as processes do: 2 to 20 were measured."""
_SHARED_GPU = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
"""Otherwise JAX and TensorFlow take most of a GPU's memory for one side."""
PATIENCE = 300.0
"""Seconds after which a side that does not answer hangs; fewer for a small budget."""
SHORTEST_PATIENCE = 60.0
INTERRUPTED = "interrupted"
"""Why a case has no more pairs of processes."""
REFUSING = {"B": "only A can do it", "AB": "neither can do it", "A": "only B can do it", "": "outputs differ"}
"""Why there is no speed-up, by the sides that refuse a case."""
IN_PRINT = {
    REFUSING["B"]: "LOST", "slower": "SLOWER", REFUSING[""]: "DIFFERS", REFUSING["AB"]: "NEITHER",
    REFUSING["A"]: "NEW", "faster": "FASTER", "inconclusive": "UNSURE", "same": "SAME",
}  # fmt: skip
"""The printed word for the reason or else for the verdict; the worst first."""


@dataclass(frozen=True)
class Command:
    """How a side's processes are started."""

    python: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables beside, or instead of, this process's own."""
    folder: Path | None = None
    """The current folder of its processes."""


@dataclass(frozen=True)
class Settings:
    """How a comparison is made."""

    file: Path
    """The file of cases."""
    device: str = "cpu"
    seconds: float = 55.0
    """For one case, with its share of starting processes; up to twice that where pairs are too few for an interval."""
    threads: int = 1
    """Threads of each side; 0: no limit."""
    factor: float = 1 + timing.MATTERS
    """A difference is called if the whole interval is beyond this factor."""

    @property
    def patience(self) -> float:
        """Seconds after which a side that does not answer is said to hang."""
        return min(PATIENCE, max(SHORTEST_PATIENCE, 5 * self.seconds))


@dataclass(frozen=True)
class Pair:
    """What two processes took, in seconds a call: the n-th samples of both are one round."""

    a: tuple[float, ...]
    b: tuple[float, ...]
    calls: int
    """Calls in one sample."""
    first_calls: tuple[float, float]

    @property
    def log(self) -> float:
        """The median over its rounds of log(time(A) / time(B))."""
        return statistics.median(math.log(a / b) for a, b in zip(self.a, self.b, strict=True))


@dataclass(frozen=True)
class Outcome:
    """The result of one case."""

    case: Case
    speed_up: timing.Answer
    """How many times as fast B is, or why no times are compared."""
    pairs: tuple[Pair, ...] = ()
    stopped: str = ""
    """Why there are no more pairs, if they decided nothing."""
    seconds: float = 0.0

    @property
    def reason(self) -> str:
        """Why there is no ratio, or why it is unsure."""
        return self.speed_up.doubt.reason or self.stopped

    @property
    def answer(self) -> str:
        """The outcome as it is printed, in capitals."""
        return IN_PRINT[self.speed_up.doubt.kind or self.speed_up.outcome]


def compare(
    given: Iterable[Case], sides: Sequence[Command], settings: Settings, chance: random.Random | None = None
) -> Iterator[Outcome]:
    """Compare two sides in several cases, and yield each outcome as soon as it is known.

    A case ends when its verdict is clear, its budget is spent, or it has the pairs of the last look. Outputs are
    compared first: where they differ there is no ratio. The cases share their processes, in another order in each pair.
    A pair that a case has ended is followed by another one. Each pair takes a turn (`metallab.turns`); waiting for it
    does not count. After an interruption the outcomes of all cases that have pairs come first, then it is raised.
    """
    chance = chance or random.Random()
    kept = tempfile.TemporaryDirectory(prefix="metallab-versus-outputs-")
    open_cases = {case.name: _Progress(case, Path(kept.name, f"{n}.npz")) for n, case in enumerate(given)}
    try:
        while open_cases:
            ran: list[_Progress] = []
            try:
                with turns.turn():
                    began = time.monotonic()
                    with _live_pair(sides, settings, chance) as live:
                        for name in chance.sample(list(open_cases), len(open_cases)):
                            open_cases[name].one_more(live, settings, chance)
                            ran.append(open_cases[name])
                            if any(side.is_gone for side in live.values()):
                                break
                    beside = time.monotonic() - began - sum(progress.latest for progress in ran)
                for progress in ran:
                    progress.share(beside / len(ran))
            finally:  # an interruption loses nothing that was decided before
                for outcome in filter(None, [progress.decided(settings) for progress in ran]):
                    del open_cases[outcome.case.name]
                    yield outcome
    except KeyboardInterrupt:
        yield from (progress.outcome(settings, INTERRUPTED) for progress in open_cases.values() if progress.pairs)
        raise
    finally:
        kept.cleanup()


@dataclass
class _Progress:
    """A case that is not decided yet. Times in seconds."""

    case: Case
    first_output: Path
    """Where A's first output is kept."""
    fingerprints: dict[str, str] = field(default_factory=dict)
    """Of each side's first output."""
    pairs: list[Pair] = field(default_factory=list)
    spent: float = 0.0
    latest: float = 0.0
    """Set-up and rounds in the latest pair of processes."""
    beside: float = 0.0
    """Its share of starting and ending that pair."""
    failures: int = 0
    """Failed pairs in a row."""
    without_ratio: Outcome | None = None
    """The final outcome, where there is no ratio."""
    reason: str = ""

    def one_more(self, live: Mapping[str, _Side], settings: Settings, chance: random.Random) -> None:
        """Take the samples of another pair of processes.

        A pair whose process ended is tried once more, as it may have been killed for lack of memory. If that fails
        too, the pairs so far decide. Outputs that differ are final.
        """
        began = time.monotonic()
        try:
            self.pairs.append(_pair(self, live, settings, chance))
            self.failures, self.reason = 0, ""
        except _NoRatioError as why:
            self.failures += 1
            if self.pairs and why.refusing:
                self.reason = f"a further pair of processes failed: {why}"
            elif self.failures == 2 or not any(side.is_gone for side in live.values()):
                self.without_ratio = Outcome(self.case, timing.Answer("B", None, why.doubt))
        finally:
            self.latest = time.monotonic() - began
            self.spent += self.latest

    def share(self, seconds: float) -> None:
        """Count a share of the time for starting and ending the latest pair of processes."""
        self.beside = seconds
        self.spent += seconds

    def decided(self, settings: Settings) -> Outcome | None:
        """Return the outcome if the pairs or the budget decide it, else None."""
        if self.without_ratio:
            return replace(self.without_ratio, seconds=self.spent)
        count, fewest = len(self.pairs), intervals.LOOKS[0]
        if not count:
            return None
        budget = settings.seconds * (2 if count < fewest else 1)
        is_last = self.spent * (1 + 1 / count) > budget or count == intervals.LOOKS[-1] or self.failures == 2
        if not is_last and count not in intervals.LOOKS:
            return None
        too_few = f"{count} of {fewest} pairs of processes: more --seconds" if count < fewest else ""
        outcome = self.outcome(settings, self.reason or too_few)
        return outcome if is_last or outcome.answer != "UNSURE" else None

    def outcome(self, settings: Settings, reason: str) -> Outcome:
        """Return the outcome of the pairs so far."""
        of = replace(intervals.interval([pair.log for pair in self.pairs]), factor=settings.factor)
        return Outcome(self.case, timing.Answer("B", of), tuple(self.pairs), reason, self.spent)


class _NoRatioError(Exception):
    """Why the sides' times are not compared."""

    def __init__(self, reason: str, refusing: str = "") -> None:
        super().__init__(reason)
        self.doubt, self.refusing = timing.Doubt(REFUSING[refusing], reason), refusing


def _pair(of: _Progress, live: Mapping[str, _Side], settings: Settings, chance: random.Random) -> Pair:
    """Set a case up in a live process of each side, compare their outputs, and take samples in rounds."""
    start = time.monotonic()
    for side in chance.sample("AB", 2):  # both at a time
        known = of.fingerprints.get(side, "")
        live[side].ask({"case": of.case.name, "output": str(live[side].output), "known": known})
    ready = {side: live[side].read() for side in "AB"}
    _assert_both_can({side: answer["lacks"] for side, answer in ready.items() if "lacks" in answer})
    starting = time.monotonic() - start
    if not of.fingerprints:
        _assert_outputs_agree([live[side].output for side in "AB"], [ready[side]["dtypes"] for side in "AB"], of.case)
        shutil.move(live["A"].output, of.first_output)
        of.fingerprints |= {side: ready[side]["fingerprint"] for side in "AB"}
    for side in "AB":
        if ready[side]["fingerprint"] != of.fingerprints[side]:
            _assert_as_before(of.first_output, live[side], of.case)
    calls = max(answer["calls"] for answer in ready.values())
    samples: dict[str, list[float]] = {"A": [], "B": []}
    rounds = 1
    while len(samples["A"]) < rounds:
        start = time.monotonic()
        for side in chance.sample("AB", 2):
            live[side].ask({"calls": calls})
            answer = live[side].read()
            _assert_both_can({side: answer["lacks"]} if "lacks" in answer else {})
            samples[side].append(answer["nanoseconds"] / 1e9 / calls)
        if rounds == 1:
            rounds = _rounds(starting + of.beside, time.monotonic() - start, settings.seconds)
    first_calls = tuple(ready[side]["first_call"] for side in "AB")
    return Pair(tuple(samples["A"]), tuple(samples["B"]), calls, first_calls)


def _rounds(starting: float, round_time: float, budget: float) -> int:
    """Return how many rounds to take, from the seconds that starting and one round take.

    Where processes cost c, rounds cost r, and rounds vary by q times as much as processes, q times the root of c / r
    rounds are best (Kalibera and Jones, section 9). Fewer if the budget would not suffice for eight pairs.
    """
    left = 0.85 * budget / intervals.LOOKS[0] - starting  # the first pair takes longer
    affordable = max(left, starting / 4) / round_time
    best = _RESTLESS * math.sqrt(starting / round_time)
    return max(1, min(MOST_ROUNDS, round(min(best, affordable))))


def _cores(threads: int, chance: random.Random) -> list[int]:
    """Return the cores of both sides of a pair; none where the system cannot set them."""
    if not threads or not hasattr(os, "sched_getaffinity"):
        return []
    allowed = sorted(os.sched_getaffinity(0))
    return chance.sample(allowed, min(threads, len(allowed)))


def _assert_both_can(lacking: Mapping[str, str]) -> None:
    if not lacking:
        return
    reason = "; ".join(f"{side}: {why}" for side, why in lacking.items())
    raise _NoRatioError(reason, "".join(sorted(lacking)))


def _assert_outputs_agree(files: Sequence[Path], dtypes: Sequence[Mapping[str, str]], case: Case) -> None:
    """Raise unless both outputs have the same structure and dtypes and are close."""
    outputs = [worker.load_output(file) for file in files]
    if not any(array.size for arrays in outputs for array in arrays.values()):
        raise _NoRatioError("the case returns nothing: let its function return what it computes", "AB")
    if only := sorted(outputs[0].keys() ^ outputs[1].keys()):
        raise _NoRatioError(f"only {'A' if only[0] in outputs[0] else 'B'} returns {only[0]}")
    if difference := _difference(*outputs, case):
        raise _NoRatioError(f"B from A: {difference}; seed what is random in the case")
    for name in dtypes[0].keys() & dtypes[1].keys():
        if dtypes[0][name] != dtypes[1][name]:
            reason = f"{name} is {dtypes[0][name]} of A and {dtypes[1][name]} of B: cast it in the case"
            raise _NoRatioError(reason)


def _assert_as_before(first: Path, side: _Side, case: Case) -> None:
    """Raise unless the output of a further pair of processes is close to A's first one."""
    if difference := _difference(worker.load_output(first), worker.load_output(side.output), case):
        reason = f"{side.name} returns something else in a further pair of processes: {difference}"
        raise _NoRatioError(f"{reason}; do cases that share processes leave something behind?")


def _difference(reference: Mapping[str, Any], result: Mapping[str, Any], case: Case) -> str:
    from metallab import checks  # not where only measuring is installed and nothing is compared

    try:
        checks.assert_close(reference, result, case.tolerance)
    except AssertionError as difference:
        return " ".join(str(difference).split())
    return ""


class _Side:
    """A live process of one side."""

    def __init__(self, process: subprocess.Popen, folder: Path, patience: float) -> None:
        self.process, self.output, self.log = process, folder / "output.npz", folder / "log"
        self.name, self.patience = folder.name, patience
        self.printed = 0
        """The size of its log before the current case."""
        self.is_gone = False
        """True if it has ended or hangs."""

    def ask(self, question: Mapping[str, str | int]) -> None:
        """Ask it to set up a case, or for a sample of so many calls."""
        if "case" in question:
            self.printed = self.log.stat().st_size
        with contextlib.suppress(BrokenPipeError):  # `read` notices that it has ended
            self.process.stdin.write(f"{json.dumps(question)}\n".encode())

    def read(self) -> dict:
        """Return its next answer; ``lacks`` says why there is none."""
        if not select.select([self.process.stdout], [], [], self.patience)[0]:
            self.is_gone = True
            return {"lacks": f"no answer within {self.patience:g} s"}
        line = self.process.stdout.readline()
        if line.endswith(b"\n"):
            return json.loads(line)
        self.is_gone = True
        ended = processes.describe_exit(self.process.wait())
        words = processes.last_words(self.log, lines=1, start=self.printed)
        return {"lacks": f"its process {ended}{f': {words}' if words else ''}"}


@contextlib.contextmanager
def _live_pair(sides: Sequence[Command], settings: Settings, chance: random.Random) -> Iterator[dict[str, _Side]]:
    """Start a process of each side, A and B, on the same cores, in random order."""
    with tempfile.TemporaryDirectory(prefix="metallab-versus-") as folder, contextlib.ExitStack() as stack:
        cores, live = _cores(settings.threads, chance), {}
        for side in chance.sample("AB", 2):
            given = {"cases": cases.__file__, "file": str(settings.file), "device": settings.device, "cores": cores}
            given |= {"seed": chance.randrange(2**32)}
            command = sides["AB".index(side)]
            variables = environment(command, settings.threads, padding=chance.randrange(4096))
            started = _started(command, json.dumps(given), variables, Path(folder, side), settings.patience)
            live[side] = stack.enter_context(started)
        yield live


@contextlib.contextmanager
def _started(
    command: Command, given: str, variables: Mapping[str, str], folder: Path, patience: float
) -> Iterator[_Side]:
    """Start a side's process; it ends with the block, with everything that it started."""
    folder.mkdir()
    mark = f"{folder.parent.name}-{folder.name}"
    with (folder / "log").open("wb") as errors:
        process = subprocess.Popen(
            [command.python, WORKER, given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0,
            cwd=command.folder, env=processes.marked(variables, mark), start_new_session=True,
        )  # fmt: skip
        head = processes.find_process(process.pid)
        try:
            yield _Side(process, folder, patience)
        finally:
            process.stdin.close()
            process.stdout.close()
            processes.kill_family(head, mark)
            process.wait()


def environment(command: Command, threads: int, padding: int = 0) -> dict[str, str]:
    """Return the variables of a side's process; ``padding`` bytes move its stack."""
    limits = {name: str(threads) for name in ONE_THREAD} if threads else {}
    kept = {name: value for name, value in os.environ.items() if name != "METALLAB_DEVICE"}
    padded = {"PYTHONHASHSEED": "0", "METALLAB_VERSUS_PADDING": "x" * padding}
    return {**kept, **padded, **limits, **_SHARED_GPU, **command.environment}
