"""Two live processes, one of each side, asked in turns for one sample of the same work.

A fresh process of the same code differs from the last by several per cent, so files that were measured one after the
other tell little apart (docs/versus.md). Here both sides live at the same time and
never compute at the same time: a **round** takes one sample of each, in random order, some tens of milliseconds apart,
after a call that does not count, and is one ratio, from which cancels what the machine does to both. What a process
keeps (where its memory lies) does not cancel within its life, so there are several **pairs** of processes, each at
random offsets of memory, and on one core where the system allows it. `metallab.versus.intervals` says what follows.
Where processes are loaded with imports that take seconds, several cases share them.
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
from typing import Any, Literal

from metallab import processes, timing, turns
from metallab.isolated import ONE_THREAD
from metallab.versus import cases, intervals, worker
from metallab.versus.cases import Case
from metallab.versus.intervals import Interval

WORKER = Path(worker.__file__)
MOST_ROUNDS = 100
_RESTLESS = 6.0
"""How many times as much rounds vary as processes do: 2 to 20 were seen."""
_SHARED_GPU = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
"""JAX and TensorFlow would each take most of a GPU's memory for one side, and leave the other none."""
PATIENCE = 300.0
"""Seconds for set-up and first call, and for any sample, before a side is said to hang; fewer for a small budget."""
SHORTEST_PATIENCE = 60.0
INTERRUPTED = "interrupted"
"""Why a case has no more pairs of processes."""
Answer = Literal["SLOWER", "LOST", "DIFFERS", "UNSURE", "SAME", "FASTER", "NEW", "NEITHER"]


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
    """For one case, with its share of starting and ending processes; a few more if the last pair takes longer than
    those before it, and up to twice as many where pairs lack for an interval."""
    threads: int = 1
    """Threads of each side; 0: as many as it likes."""
    factor: float = 1 + timing.MATTERS
    """What is called a difference: the whole interval lies beyond it."""

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
    """What became of one case."""

    case: Case
    answer: Answer
    interval: Interval | None = None
    """None where no times are compared."""
    pairs: tuple[Pair, ...] = ()
    reason: str = ""
    """Why there is no ratio, or why it is unsure."""
    seconds: float = 0.0

    @property
    def is_finding(self) -> bool:
        """True if B is worse: slower, or without what A can do."""
        return self.answer in ("SLOWER", "LOST")


def verdict(of: Interval, factor: float) -> Literal["SLOWER", "FASTER", "SAME", "UNSURE"]:
    """What an interval says: all of it lies beyond a factor, or within it, or neither."""
    if of.low > factor:
        return "FASTER"
    if of.high < 1 / factor:
        return "SLOWER"
    return "SAME" if of.low >= 1 / factor and of.high <= factor else "UNSURE"


def compare(
    given: Iterable[Case], sides: Sequence[Command], settings: Settings, chance: random.Random | None = None
) -> Iterator[Outcome]:
    """Hold two sides against each other in several cases: each one's outcome as soon as it is known.

    A case goes on until its verdict is clear, its budget is spent, or it has the pairs of the last look. Outputs come
    first: sides that disagree get no ratio, nor does a case whose outputs change from pair to pair. The cases share
    their processes, which import frameworks once, and come in another order in each pair of processes; a pair that a
    case has ended is followed by another one, for it as well if that was the first time. Each pair takes a turn, see
    `metallab.turns`; waiting for it is no part of a budget. An interruption is raised after the outcomes of what has
    pairs until then.
    """
    chance = chance or random.Random()
    kept = tempfile.TemporaryDirectory(prefix="metallab-versus-outputs-")
    open_cases = {
        case.name: _Progress(case, outputs=_Outputs(Path(kept.name, f"{n}.npz"))) for n, case in enumerate(given)
    }
    try:
        while open_cases:
            asked: list[_Progress] = []
            try:
                with turns.turn():
                    began = time.monotonic()
                    with _live_pair(sides, settings, chance) as live:
                        for name in chance.sample(list(open_cases), len(open_cases)):
                            open_cases[name].one_more(live, settings, chance)
                            asked.append(open_cases[name])
                            if any(side.is_gone for side in live.values()):
                                break
                    beside = time.monotonic() - began - sum(progress.latest for progress in asked)
                for progress in asked:
                    progress.share(beside / len(asked))
            finally:  # an end takes nothing from what was decided before
                for outcome in filter(None, [progress.decided(settings) for progress in asked]):
                    del open_cases[outcome.case.name]
                    yield outcome
    except KeyboardInterrupt:
        yield from (progress.outcome(settings, INTERRUPTED) for progress in open_cases.values() if progress.pairs)
        raise
    finally:
        kept.cleanup()


@dataclass
class _Outputs:
    """What a case has returned until now."""

    file: Path = Path()
    """A's first output."""
    known: dict[str, str] = field(default_factory=dict)
    """The fingerprint of each side's first one."""


@dataclass
class _Progress:
    """A case that goes on."""

    case: Case
    pairs: list[Pair] = field(default_factory=list)
    spent: float = 0.0
    """Seconds."""
    latest: float = 0.0
    """Those of its set-up and rounds in the latest pair of processes."""
    beside: float = 0.0
    """Those of its share of starting and ending that pair."""
    outputs: _Outputs = field(default_factory=_Outputs)
    failures: int = 0
    """How many pairs in a row have failed that may do better: see `one_more`."""
    without_ratio: Outcome | None = None
    """Of what neither a further pair nor those before it decide."""
    reason: str = ""
    """Why its latest pair of processes failed after others that did not."""

    def one_more(self, live: Mapping[str, _Side], settings: Settings, chance: random.Random) -> None:
        """Take samples of another pair of processes.

        What ended or hung is tried once more, and so is what failed after pairs that did not: a process may be killed
        where memory is short. If that fails as well, the pairs that there are decide; but nothing makes up for outputs
        that differ.
        """
        began = time.monotonic()
        try:
            self.pairs.append(_pair(self.case, live, settings, chance, self.outputs, beside=self.beside))
            self.failures, self.reason = 0, ""
        except _NoRatioError as why:
            self.failures += 1
            if self.pairs and why.answer != "DIFFERS":
                self.reason = f"a further pair of processes failed: {why}"
            elif self.failures == 2 or not any(side.is_gone for side in live.values()):
                self.without_ratio = Outcome(self.case, why.answer, reason=str(why))
        finally:
            self.latest = time.monotonic() - began
            self.spent += self.latest

    def share(self, seconds: float) -> None:
        """Count what starting and ending its latest pair of processes took of its time."""
        self.beside = seconds
        self.spent += seconds

    def decided(self, settings: Settings) -> Outcome | None:
        """The outcome, if its pairs or its budget decide it: twice the budget where pairs lack for an interval."""
        if self.without_ratio:
            return replace(self.without_ratio, seconds=self.spent)
        count = len(self.pairs)
        if not count:
            return None
        budget = settings.seconds * (2 if count < intervals.LOOKS[0] else 1)
        is_last = self.spent * (1 + 1 / count) > budget or count == intervals.LOOKS[-1] or self.failures == 2
        if not is_last and count not in intervals.LOOKS:
            return None
        outcome = self.outcome(settings, self.reason, _lacking(self.pairs, self.spent))
        return outcome if is_last or outcome.answer != "UNSURE" else None

    def outcome(self, settings: Settings, reason: str, advice: str = "") -> Outcome:
        """What its pairs say until now. The advice is given where it can help and there is no reason."""
        of = intervals.interval([pair.log for pair in self.pairs])
        answer, pairs = verdict(of, settings.factor), tuple(self.pairs)
        return Outcome(self.case, answer, of, pairs, reason or advice, self.spent)


class _NoRatioError(Exception):
    """Why the sides' times are not compared."""

    def __init__(self, answer: Answer, reason: str) -> None:
        super().__init__(reason)
        self.answer = answer


def _lacking(pairs: Sequence[Pair], spent: float) -> str:
    """What to do where pairs are too few for an interval; else empty."""
    fewest = intervals.LOOKS[0]
    if len(pairs) >= fewest:
        return ""
    wanted = math.ceil(fewest * spent / len(pairs))  # which may be doubled, if starting takes longer then
    return f"{len(pairs)} of {fewest} pairs of processes: give it --seconds {wanted}"


def _pair(
    case: Case,
    live: Mapping[str, _Side],
    settings: Settings,
    chance: random.Random,
    outputs: _Outputs,
    beside: float = 0.0,
) -> Pair:
    """Set a case up in a live process of each side, and take samples of it in rounds.

    ``beside`` are the seconds that its processes cost before and after.
    """
    start = time.monotonic()
    for side in chance.sample("AB", 2):  # both at a time
        known = outputs.known.get(side, "")
        live[side].tell({"case": case.name, "output": str(live[side].output), "known": known})
    ready = {side: live[side].read() for side in "AB"}
    _assert_both_can({side: answer["lacks"] for side, answer in ready.items() if "lacks" in answer})
    starting = time.monotonic() - start
    if not outputs.known:
        _assert_outputs_agree([live[side].output for side in "AB"], [ready[side]["dtypes"] for side in "AB"], case)
        shutil.move(live["A"].output, outputs.file)
        outputs.known |= {side: ready[side]["fingerprint"] for side in "AB"}
    for side in "AB":
        if ready[side]["fingerprint"] != outputs.known[side]:
            _assert_as_before(outputs.file, live[side], case)
    calls = max(answer["calls"] for answer in ready.values())
    samples: dict[str, list[float]] = {"A": [], "B": []}
    rounds = 1
    while len(samples["A"]) < rounds:
        start = time.monotonic()
        for side in chance.sample("AB", 2):
            live[side].tell({"calls": calls})
            answer = live[side].read()
            _assert_both_can({side: answer["lacks"]} if "lacks" in answer else {})
            samples[side].append(answer["nanoseconds"] / 1e9 / calls)
        if rounds == 1:
            rounds = _rounds(starting + beside, time.monotonic() - start, settings.seconds)
    first_calls = tuple(ready[side]["first_call"] for side in "AB")
    return Pair(tuple(samples["A"]), tuple(samples["B"]), calls, first_calls)


def _rounds(starting: float, round_time: float, budget: float) -> int:
    """How many rounds a pair is worth, by the seconds that its processes cost and that a round takes.

    Where processes cost c, rounds cost r, and rounds vary by q times as much as processes, q times the root of c / r
    rounds are best (Kalibera and Jones, section 9). Fewer, if else the pairs that the first look needs were too dear;
    but for a quarter of what the processes cost.
    """
    left = 0.85 * budget / intervals.LOOKS[0] - starting  # the first pair takes longer
    affordable = max(left, starting / 4) / round_time
    best = _RESTLESS * math.sqrt(starting / round_time)
    return max(1, min(MOST_ROUNDS, round(min(best, affordable))))


def _cores(threads: int, chance: random.Random) -> list[int]:
    """The cores that both sides of a pair get, so that neither has better neighbours; none where that can't be had."""
    if not threads or not hasattr(os, "sched_getaffinity"):
        return []
    allowed = sorted(os.sched_getaffinity(0))
    return chance.sample(allowed, min(threads, len(allowed)))


def _assert_both_can(lacking: Mapping[str, str]) -> None:
    if not lacking:
        return
    reason = "; ".join(f"{side}: {why}" for side, why in lacking.items())
    if len(lacking) == 2 and len(set(lacking.values())) == 1:
        reason = f"both: {lacking['A']}"
    raise _NoRatioError("NEITHER" if len(lacking) == 2 else "NEW" if "A" in lacking else "LOST", reason)


def _assert_outputs_agree(files: Sequence[Path], dtypes: Sequence[Mapping[str, str]], case: Case) -> None:
    """Both have the same parts, which are close, and arrays of one dtype: a cheaper one is no faster way."""
    outputs = [worker.load_output(file) for file in files]
    if not any(array.size for arrays in outputs for array in arrays.values()):
        raise _NoRatioError("NEITHER", "the case returns nothing: let its function return what it computes")
    for side, own, others in (("A", *outputs), ("B", *reversed(outputs))):
        if only := [name for name in own if name not in others]:
            raise _NoRatioError("DIFFERS", f"only {side} returns {', '.join(only[:3])}")
    if difference := _difference(*outputs, case):
        raise _NoRatioError("DIFFERS", f"B from A: {difference}; seed what is random in the case")
    for name in dtypes[0].keys() & dtypes[1].keys():
        if dtypes[0][name] != dtypes[1][name]:
            reason = f"{name} is {dtypes[0][name]} of A and {dtypes[1][name]} of B: if it may be, cast it in the case"
            raise _NoRatioError("DIFFERS", reason)


def _assert_as_before(first: Path, side: _Side, case: Case) -> None:
    """The output of a further pair of processes is close to A's first one."""
    if difference := _difference(worker.load_output(first), worker.load_output(side.output), case):
        raise _NoRatioError(
            "DIFFERS",
            f"{side.name}'s output of a further pair of processes is not A's of the first: {difference}; let each case "
            "that shares its processes leave nothing behind",
        )


def _difference(reference: Mapping[str, Any], result: Mapping[str, Any], case: Case) -> str:
    from metallab import checks  # not where only measuring is installed and nothing is compared

    try:
        checks.assert_close(reference, result, case.tolerance)
    except AssertionError as difference:
        return " ".join(str(difference).split())
    return ""


class _Side:
    """A live process of one side."""

    def __init__(self, process: subprocess.Popen, given: Path, name: str, patience: float) -> None:
        self.process, self.output, self.log = process, given / "output.npz", given / "log"
        self.name, self.patience = name, patience
        self.task = ""
        self.printed = 0
        """How many bytes of its log were there before its task."""
        self.is_gone = False
        """True if it has ended or hangs."""

    def tell(self, what: Mapping[str, str | int]) -> None:
        """Ask it to set up a case, or for a sample of so many calls."""
        if "case" in what:
            self.task, self.printed = what["case"], self.log.stat().st_size
        with contextlib.suppress(BrokenPipeError):  # that it has ended is told by what it does not answer
            self.process.stdin.write(f"{json.dumps(what)}\n".encode())

    def read(self) -> dict:
        """Return its next answer; that it lacks everything if it has ended or hangs."""
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
    """A process of each side, A and B, on the same cores, started in random order."""
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
    """A side's process, which ends with the block together with whatever it started."""
    folder.mkdir()
    name = f"{folder.parent.name}-{folder.name}"
    with (folder / "log").open("wb") as errors:
        process = subprocess.Popen(
            [command.python, WORKER, given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
            cwd=command.folder,
            env=processes.marked(variables, name),
            start_new_session=True,
        )
        head = processes.find_process(process.pid)
        try:
            yield _Side(process, folder, folder.name, patience)
        finally:
            process.stdin.close()
            process.stdout.close()
            processes.kill_family(head, name)
            process.wait()


def environment(command: Command, threads: int, padding: int = 0) -> dict[str, str]:
    """The variables of a side's process: its own before this process's, and so many bytes that move its stack."""
    held = {name: str(threads) for name in ONE_THREAD} if threads else {}
    kept = {name: value for name, value in os.environ.items() if name != "METALLAB_DEVICE"}
    padded = {"PYTHONHASHSEED": "0", "METALLAB_VERSUS_PADDING": "x" * padding}
    return {**kept, **padded, **held, **_SHARED_GPU, **command.environment}
