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
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, cast

from metallab import checks, measuring_lock, processes, timing
from metallab.isolated import ONE_THREAD
from metallab.versus import cases, intervals, worker
from metallab.versus.cases import Case

WORKER = Path(worker.__file__)
MOST_ROUNDS = 100
_RESTLESS = 6.0
"""How many times as much rounds vary as processes do: 2 to 20 were measured."""
_SHARED_GPU = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
"""Otherwise JAX and TensorFlow take most of a GPU's memory for one side."""
PATIENCE = 60.0
"""Seconds after which a side that does not answer hangs; up to five times as many for a larger budget."""
INTERRUPTED = "interrupted"
"""Why a case has no more pairs of processes."""
REFUSING = {
    "B": timing.Reason.ONLY_A,
    "AB": timing.Reason.NEITHER,
    "A": timing.Reason.ONLY_B,
    "": timing.Reason.OUTPUTS_DIFFER,
}
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
    factor: float = 1 + timing.SMALLEST_DIFFERENCE
    """A difference is called if the whole interval is beyond this factor."""


@dataclass(frozen=True)
class SideTimes:
    """What the process of one side took, in seconds a call."""

    samples: tuple[float, ...]
    first_call: float


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

    def of_side(self, name: str) -> SideTimes:
        """Return the times of side A or B."""
        if name == "A":
            return SideTimes(self.a, self.first_calls[0])
        return SideTimes(self.b, self.first_calls[1])


@dataclass
class Outcome:
    """A case with its pairs of processes so far, and what follows from them."""

    case: Case
    factor: float = 1 + timing.SMALLEST_DIFFERENCE
    pairs: list[Pair] = field(default_factory=list)
    withheld: timing.Withheld | None = None
    """Why no times are compared."""
    stopped: str = ""
    """Why there are no more pairs."""
    seconds: float = 0.0
    beside: float = 0.0
    """Seconds: its share of starting and ending the latest pair of processes."""
    failures: int = 0
    """Failed pairs in a row."""
    first: Mapping[str, Any] = field(default_factory=dict)
    """A's first output, with which all others are compared."""

    @property
    def speed_up(self) -> timing.Answer:
        """How many times as fast B is, or why no times are compared."""
        if self.withheld:
            return timing.Answer("B", self.withheld)
        of = intervals.interval([pair.log for pair in self.pairs])
        return timing.Answer("B", replace(of, factor=self.factor))

    @property
    def reason(self) -> str:
        """Why there is no ratio, or why it is unsure."""
        return self.withheld.detail if self.withheld else self.stopped

    @property
    def kind(self) -> str:
        """A key of `IN_PRINT`: why no times are compared, or else the verdict."""
        return self.withheld.reason if self.withheld else self.speed_up.outcome

    @property
    def answer(self) -> str:
        """The outcome as it is printed, in capitals."""
        return IN_PRINT[self.kind]

    def is_decided(self, budget: float) -> bool:
        """Return True if no further pair is wanted: the pairs decide it, or the budget in seconds is spent.

        Also where no times are compared at all, at the last look, and where two pairs in a row failed.
        """
        count = len(self.pairs)
        if self.withheld:
            return True
        if not count:
            return False

        if count < intervals.LOOKS[0]:
            budget *= 2
        # with another pair, as long as these on average
        is_spent = self.seconds * (1 + 1 / count) > budget
        if is_spent or count == intervals.LOOKS[-1] or self.failures == 2:
            return True
        # between two looks the interval is not asked: each look more would need its share of the risk
        return count in intervals.LOOKS and self.kind != "inconclusive"


def compare(
    given: Iterable[Case],
    sides: Sequence[Command],
    settings: Settings,
    chance: random.Random | None = None,
) -> Iterator[Outcome]:
    """Compare two sides in several cases, and yield each outcome as soon as it is known.

    A case ends when its verdict is clear, its budget is spent, or it has the pairs of the last look. Outputs are
    compared first: where they differ there is no ratio. The cases share their processes, in another order in each pair.
    A pair that a case has ended is followed by another one. Each pair holds `metallab.measuring_lock`; waiting for it
    does not count. After an interruption the outcomes of all cases that have pairs come first, then it is raised.
    """
    chance = chance or random.Random()
    open_cases = {case.name: Outcome(case, settings.factor) for case in given}

    try:
        while open_cases:
            for name in _add_pairs(open_cases, sides, settings, chance):
                if open_cases[name].is_decided(settings.seconds):
                    open_cases[name].first = {}
                    yield open_cases.pop(name)

    except KeyboardInterrupt:  # what was measured is not lost
        for outcome in open_cases.values():
            if outcome.withheld or outcome.pairs:
                outcome.stopped = INTERRUPTED
                yield outcome
        raise


def _add_pair(
    of: Outcome, live: Mapping[str, _Side], settings: Settings, chance: random.Random
) -> float:
    """Take the samples of another pair of processes and add them to an outcome; return the seconds.

    A pair whose process ended is tried once more, as it may have been killed for lack of memory. If that fails too,
    the pairs so far decide. Outputs that differ are final.
    """
    began = time.monotonic()
    try:
        of.pairs.append(_pair(of, live, settings, chance))
        of.failures, of.stopped = 0, ""
    except _NoRatioError as why:
        of.failures += 1
        if of.pairs and why.refusing:
            of.stopped = f"a further pair of processes failed: {why}"
        elif of.failures == 2 or not any(side.is_gone for side in live.values()):
            of.withheld = timing.Withheld(REFUSING[why.refusing], str(why))
            of.pairs.clear()
    return time.monotonic() - began


class _NoRatioError(Exception):
    """Why the sides' times are not compared; ``refusing`` are the sides that cannot do the case."""

    def __init__(self, reason: str, refusing: str = "") -> None:
        super().__init__(reason)
        self.refusing = refusing


def _add_pairs(
    open_cases: Mapping[str, Outcome],
    sides: Sequence[Command],
    settings: Settings,
    chance: random.Random,
) -> list[str]:
    """Start a pair of processes and let all cases run in it, until one of them ends it; return those that ran.

    Each takes samples, which `_add_pair` adds to its outcome, and bears its share of the time for starting and ending.
    """
    seconds: dict[str, float] = {}
    with measuring_lock.hold():
        began = time.monotonic()
        with _live_pair(sides, settings, chance) as live:
            for name in chance.sample(list(open_cases), len(open_cases)):
                seconds[name] = _add_pair(open_cases[name], live, settings, chance)
                if any(side.is_gone for side in live.values()):
                    break

    beside = (time.monotonic() - began - sum(seconds.values())) / len(seconds)
    for name, own in seconds.items():
        open_cases[name].beside = beside
        open_cases[name].seconds += own + beside
    return list(seconds)


def _pair(
    of: Outcome, live: Mapping[str, _Side], settings: Settings, chance: random.Random
) -> Pair:
    """Set a case up in a live process of each side, compare their outputs, and return samples taken in rounds.

    How many rounds there are follows from how long the start and the first round took. `_NoRatioError` if a side cannot
    do the case, or if outputs differ.
    """
    start = time.monotonic()
    for side in chance.sample("AB", 2):  # both are set up at the same time, and only timed in turns
        live[side].ask({"case": of.case.name, "output": str(live[side].output)})
    ready = _answers(live, "AB")
    starting = time.monotonic() - start
    _assert_outputs_agree(of, live, [ready[side]["dtypes"] for side in "AB"])

    # so that a sample is long enough on the quicker side
    calls = max(answer["calls"] for answer in ready.values())
    samples: dict[str, list[float]] = {"A": [], "B": []}
    rounds = 1
    while len(samples["A"]) < rounds:
        start = time.monotonic()
        for side in chance.sample("AB", 2):
            live[side].ask({"calls": calls})
            samples[side].append(_answers(live, side)[side]["nanoseconds"] / 1e9 / calls)
        if rounds == 1:
            rounds = _rounds(starting + of.beside, time.monotonic() - start, settings.seconds)

    first_calls = (ready["A"]["first_call"], ready["B"]["first_call"])
    return Pair(tuple(samples["A"]), tuple(samples["B"]), calls, first_calls)


def _answers(live: Mapping[str, _Side], sides: str) -> dict[str, dict]:
    """Return the next answer of each of these sides; raise if one cannot do the case."""
    answers = {side: live[side].read() for side in sides}
    if lacking := {side: answer["lacks"] for side, answer in answers.items() if "lacks" in answer}:
        raise _NoRatioError(
            "; ".join(f"{side}: {why}" for side, why in lacking.items()), "".join(lacking)
        )
    return answers


def _assert_outputs_agree(
    of: Outcome, live: Mapping[str, _Side], dtypes: Sequence[Mapping[str, str]]
) -> None:
    """Raise _NoRatioError unless the outputs of both sides are close to A's first one, and their arrays of one dtype.

    Parameters
    ----------
    of
        The case; its ``first`` output is set, if it has none yet.
    live
        The processes, which have written their outputs into files.
    dtypes
        Of A's arrays and of B's, by name.
    """
    outputs = {side: worker.load_output(live[side].output) for side in "AB"}
    if not _has_numbers(outputs.values()):
        raise _NoRatioError(
            "the case returns nothing: let its function return what it computes", "AB"
        )

    advice = "seed what is random in the case"
    if of.first:
        advice = (
            "in a further pair of processes: do cases that share processes leave something behind?"
        )
    else:  # the first pair: A's output is what all others are compared with
        of.first = outputs.pop("A")
    for side, output in outputs.items():
        try:
            checks.assert_close(of.first, output, of.case.tolerance)
        except AssertionError as difference:
            words = " ".join(str(difference).split())
            raise _NoRatioError(f"{side} from A: {words}; {advice}") from None

    of_a, of_b = dtypes
    for name in of_a.keys() & of_b.keys():
        if of_a[name] != of_b[name]:
            raise _NoRatioError(
                f"{name} is {of_a[name]} of A and {of_b[name]} of B: cast it in the case"
            )


def _rounds(starting: float, round_time: float, budget: float) -> int:
    """Return how many rounds to take, from the seconds that starting and one round take.

    Where processes cost c, rounds cost r, and rounds vary by q times as much as processes, q times the root of c / r
    rounds are best (Kalibera and Jones, section 9). Fewer if the budget would not suffice for eight pairs.
    """
    # a pair's share of the budget for eight, without the 15 % that are for the first pair, which takes longer
    left = 0.85 * budget / intervals.LOOKS[0] - starting
    # where starting leaves too little, rounds get a quarter of its time all the same: the start has cost more
    affordable = max(left, starting / 4) / round_time
    best = _RESTLESS * math.sqrt(starting / round_time)
    return max(1, min(MOST_ROUNDS, round(min(best, affordable))))


def _has_numbers(outputs: Iterable[Mapping[str, Any]]) -> bool:
    """Say whether one of the arrays of some outputs is not empty."""
    return any(array.size for arrays in outputs for array in arrays.values())


class _Side:
    """A live process of one side."""

    def __init__(
        self,
        command: Command,
        settings: Settings,
        given: Mapping[str, Any],
        folder: Path,
        padding: int,
    ) -> None:
        """Start it in a session of its own; `end` ends it with everything that it started.

        Parameters
        ----------
        command
            How it is started.
        settings
            How the sides are compared.
        given
            What `metallab.versus.worker` gets as its settings.
        folder
            Is made, for what it prints and the output of a case; its name and that above it mark what it starts.
        padding
            Bytes by which its environment is longer, which moves its stack.
        """
        folder.mkdir()
        self.name = f"{folder.parent.name}-{folder.name}"
        self.output = folder / "output.npz"
        self.log = folder / "log"
        self.patience = min(max(PATIENCE, 5 * settings.seconds), 5 * PATIENCE)
        self.printed = 0
        """The size of its log before the current case."""
        self.is_gone = False
        """True if it has ended or hangs."""

        variables = processes.mark(environment(command, settings.threads, padding), self.name)
        with self.log.open("wb") as errors:
            self.process = subprocess.Popen(
                [command.python, WORKER, json.dumps(given)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, bufsize=0, cwd=command.folder, env=variables, start_new_session=True,
            )  # fmt: skip
        self.questions = cast("IO[bytes]", self.process.stdin)
        self.answers = cast("IO[bytes]", self.process.stdout)
        self.head = processes.find_process(self.process.pid)

    def end(self) -> None:
        """End it."""
        self.questions.close()
        self.answers.close()
        processes.kill_family(self.head, self.name)
        self.process.wait()

    def ask(self, question: Mapping[str, str | int]) -> None:
        """Ask it to set up a case, or for a sample of so many calls."""
        if "case" in question:
            self.printed = self.log.stat().st_size
        with contextlib.suppress(BrokenPipeError):  # `read` notices that it has ended
            self.questions.write(f"{json.dumps(question)}\n".encode())

    def read(self) -> dict[str, Any]:
        """Return its next answer; ``lacks`` says why there is none."""
        readable, _, _ = select.select([self.answers], [], [], self.patience)
        if not readable:
            self.is_gone = True
            return {"lacks": f"no answer within {self.patience:g} s"}

        line = self.answers.readline()
        if line.endswith(b"\n"):
            answer: dict[str, Any] = json.loads(line)
            return answer

        self.is_gone = True
        why = f"its process {processes.describe_exit(self.process.wait())}"
        if words := processes.last_words(self.log, lines=1, start=self.printed):
            why += f": {words}"
        return {"lacks": why}


@contextlib.contextmanager
def _live_pair(
    sides: Sequence[Command], settings: Settings, chance: random.Random
) -> Iterator[dict[str, _Side]]:
    """Start a process of each side, A and B, on the same cores, in random order; end both at the end.

    Each is at its own random offsets of memory: a number of bytes in its environment, and a seed for what it takes.
    """
    free = _free_cores() if settings.threads else []
    given = {
        "cases": cases.__file__,
        "file": str(settings.file),
        "device": settings.device,
        "cores": chance.sample(free, min(settings.threads, len(free))),
    }
    live: dict[str, _Side] = {}

    with (
        tempfile.TemporaryDirectory(prefix="metallab-versus-") as folder,
        contextlib.ExitStack() as stack,
    ):
        for name in chance.sample("AB", 2):
            own = given | {"seed": chance.randrange(2**32)}
            padding = chance.randrange(4096)
            command = sides["AB".index(name)]
            live[name] = _Side(command, settings, own, Path(folder, name), padding)
            stack.callback(live[name].end)
        yield live


def _free_cores() -> list[int]:
    """Return the cores that this process may use; none where the system cannot keep processes on cores."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def environment(command: Command, threads: int, padding: int = 0) -> dict[str, str]:
    """Return the variables of a side's process; ``padding`` bytes move its stack."""
    limits = {name: str(threads) for name in ONE_THREAD} if threads else {}
    kept = {name: value for name, value in os.environ.items() if name != "METALLAB_DEVICE"}
    padded = {"PYTHONHASHSEED": "0", "METALLAB_VERSUS_PADDING": "x" * padding}
    return {**kept, **padded, **limits, **_SHARED_GPU, **command.environment}
