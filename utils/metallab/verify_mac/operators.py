"""Every operator of PyTorch's own database on the GPU: values against the CPU, and against what coverage foretells."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from metallab.verify_mac.trial import Finding, judged, simulated, trial

SECONDS = 360.0
"""For all of them on a Mac; what is left then is counted as not asked."""
BATCH, BATCH_SECONDS = 80, 120.0
"""Entries in a process, and when that is stopped: one that hangs takes no more."""
CANNOT_AGREE = re.compile(
    r"(\b|_)(bernoulli|cauchy|dropout(?!_backward)|empty|exponential|geometric|multinomial|normal\b|rand|rrelu|uniform)"
)
"""In the name of an entry: it draws numbers, from another generator on each side, or reads memory that nobody wrote."""
SURPRISES = (
    *("differs", "raises", "missing but not foretold", "runs but was foretold missing"),
    *("ended its process", "hung"),
)
BEGIN, END = "begin ", "end "
"""What `operator_database.main` prints before an entry, and after it."""
ASK = "from metallab.verify_mac import operator_database\noperator_database.main({names!r})"
NAMES = "from metallab.verify_mac import operator_database\nnames = operator_database.names()"


@dataclass
class Tally:
    """Entries by what came of them."""

    found: dict[str, dict[str, str]] = field(default_factory=dict)
    """By verdict, then by name: the reason."""

    def note(self, name: str, verdict: str, reason: str = "") -> None:
        expected = verdict == "differs" and CANNOT_AGREE.search(name)
        self.found.setdefault("differs, as it must" if expected else verdict, {})[name] = reason

    @property
    def done(self) -> set[str]:
        return {name for names in self.found.values() for name in names}

    @property
    def counts(self) -> dict[str, int]:
        return {verdict: len(names) for verdict, names in self.found.items()}


@trial(on="gpu", used_in="notebook 02, metallab.pytorch.coverage, utils/metalsim/README.md", seconds=SECONDS + 180)
def database_agrees_and_is_foretold() -> Finding:
    """Operators of PyTorch's database agree with the CPU, and exactly those raise that coverage says have no kernel.

    Two samples of each entry in float32, forward and backward, 80 entries in a process; one that ends its process is
    noted, and the others go on. Entries that draw random numbers, or read memory that nobody wrote, cannot agree. On
    the simulated GPU every fifteenth entry is asked, tests/benchmarks/simulated_operators.py asks all.
    """
    from metallab import isolated

    listed = isolated.run(NAMES, results=["names"], device="mps", timeout=120)
    names = listed["names"][:: 15 if simulated() else 1]
    tally, left, end = Tally(), list(names), time.monotonic() + SECONDS
    while left and time.monotonic() < end:
        ran = isolated.run(ASK.format(names=left[:BATCH]), device="mps", timeout=BATCH_SECONDS)
        asked = take(ran.printed, tally, how="hung" if ran.ended == "hung" else "ended its process", why=ran.reason)
        if not asked:
            return judged(False, f"the database cannot be asked: {ran}", detail=ran.detail[-2000:])
        left = [name for name in left if name not in tally.done]
    surprises = {verdict: tally.found[verdict] for verdict in SURPRISES if verdict in tally.found}
    count = sum(map(len, surprises.values()))
    counted = ", ".join(f"{number} {verdict}" for verdict, number in tally.counts.items())
    said = f"{count} surprises in {len(tally.done)} of {len(names)} entries: {counted}; not asked: {len(left)}"
    others = {verdict: found for verdict, found in tally.found.items() if verdict not in (*SURPRISES, "agrees")}
    return judged(count == 0, said, surprises=surprises, others=others, not_asked=left)


def take(printed: str, tally: Tally, how: str, why: str) -> Sequence[str]:
    """Note what a process told before its end; the entry that it had begun and not ended has ``how`` for a verdict.

    The names that are new in the tally.
    """
    begun, new = "", []
    for line in printed.splitlines():
        if line.startswith(BEGIN):
            begun = line.removeprefix(BEGIN)
        elif line.startswith(END):
            name, verdict, reason = line.removeprefix(END).split("\t", 2)
            tally.note(name, verdict, reason)
            new.append(name)
            begun = ""
    if begun:
        tally.note(begun, how, why)
        new.append(begun)
    return new
