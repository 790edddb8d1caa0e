"""Runs trials one after the other, each in a process of its own, in a folder that is deleted at the end.

Whatever becomes of a trial is a `Result`. Caches of frameworks and the home folder point into that folder.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from metallab import isolated, machine
from metallab.verify_mac import child, privacy
from metallab.verify_mac.trial import Finding, Outcome, Trial

Evidence = Literal["Mac", "simulated", "CPU", "none"]
MOST = 6000
"""Characters that are kept of what a trial printed."""


class NoSuchDevice(ValueError):
    """The device that was asked for is not on this machine; the message says which is."""


@dataclass(frozen=True)
class Result:
    """What became of a trial."""

    name: str
    claim: str
    how: str
    used_in: str
    outcome: Outcome
    said: str
    """A line: what was found, or how it ended."""
    evidence: Evidence
    """What stands behind it: a Mac; a simulation, or a CPU in a GPU's place, which say that the trial's code works and
    nothing about a Mac; or nothing, if it did not run."""
    ran_on: str
    seconds: float
    values: Mapping[str, Any] = field(default_factory=dict)
    printed: str = ""
    detail: str = ""
    """A traceback, or what was written to standard error."""


def device(name: str) -> Literal["mps", "sim"]:
    """Which Apple GPU a run uses, from ``auto``, ``mps`` or ``sim``. `NoSuchDevice` for one that is not here."""
    here = "mps" if sys.platform == "darwin" else "sim"
    if name not in ("auto", "mps", "sim"):
        raise NoSuchDevice(f"there is no device {name!r} to verify: auto, mps and sim are possible")
    if name not in ("auto", here):
        there = {"mps": "this is a Mac, whose GPU is not simulated", "sim": "this is no Mac"}[here]
        raise NoSuchDevice(f"{name} was asked for, but {there}: leave DEVICE out, or say DEVICE={here}")
    return here


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A temporary folder for all that trials write, and deleted at the end; processes' own temporary files as well."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="metallab-verify-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        for part in ("home", "tmp", "trials"):
            (folder / part).mkdir()
        tempfile.tempdir = str(folder / "tmp")
        try:
            yield folder
        finally:
            tempfile.tempdir = before


def run(
    trials: Sequence[Trial],
    on: Literal["mps", "sim"],
    work: Path,
    *,
    minutes: float = 20,
    tell: Callable[[int, Result], None] = lambda number, result: None,
) -> list[Result]:
    """Run trials and tell of each. What is left when the time is up, or after Control-C, is ``not run``."""
    clean = privacy.scrubber(str(work))
    end, found, why = time.monotonic() + 60 * minutes, [], ""
    for number, each in enumerate(trials, 1):
        if not why and time.monotonic() > end:
            why = f"the {minutes:g} minutes were over; make verify-mac ONLY={each.group} goes on from here"
        try:
            result = _result(each, "not run", why, on) if why else _run(each, on, work, clean)
        except KeyboardInterrupt:
            why = "it was interrupted by Control-C"
            result = _result(each, "not run", why, on)
        found.append(result)
        tell(number, result)
    return found


def _run(each: Trial, on: Literal["mps", "sim"], work: Path, clean: privacy.Scrubber) -> Result:
    if each.on == "mac" and on == "sim":
        return _result(each, "not applicable", "it needs a Mac", on)
    folder = work / "trials" / each.name
    folder.mkdir()
    module, function = each.function.__module__, each.function.__name__
    own = {child.FOLDER: str(folder), "METALLAB_DEVICE": "auto" if on == "mps" else "cpu"}
    begin = time.monotonic()
    outcome = isolated.run(
        f"from metallab.verify_mac import child\nfinding = child.conduct{module, function}",
        results=["finding"],
        device="mps" if each.on == "gpu" else None,
        environment=environment(work) | own | each.environment,
        timeout=each.seconds,
    )
    seconds = time.monotonic() - begin
    printed, detail = (clean.text(text)[-MOST:] for text in (outcome.printed, outcome.detail))
    if outcome.ok:
        finding: Finding = outcome["finding"]
        ended, said, values = finding.verdict, clean.text(finding.said), clean.value(dict(finding.values))
    else:
        ended = {"raised": "raised", "crashed": "crashed", "hung": "timed out"}[outcome.ended]
        said, values = clean.text(outcome.reason), {}
    return _result(each, ended, said, on, seconds=seconds, values=values, printed=printed, detail=detail)


def _result(each: Trial, outcome: Outcome, said: str, on: Literal["mps", "sim"], **more: Any) -> Result:
    evidence, ran_on = ("none", "nothing") if "seconds" not in more else _where(each, on)
    more.setdefault("seconds", 0.0)
    return Result(each.name, each.claim, each.how, each.used_in, outcome, said, evidence, ran_on, **more)


def _where(each: Trial, on: Literal["mps", "sim"]) -> tuple[Evidence, str]:
    """What a trial that ran says something about."""
    chip = machine.describe().chip or "unknown"
    if on == "mps":
        return "Mac", f"{chip} GPU" if each.on == "gpu" else chip
    return ("simulated", "simulated Apple GPU") if each.on == "gpu" else ("CPU", f"{chip} CPU")


def environment(work: Path) -> dict[str, str]:
    """Variables that keep what a trial writes inside the run's folder."""
    home, cache = work / "home", work / "home" / "cache"
    inside = {
        "HOME": home,
        "CFFIXED_USER_HOME": home,  # where Apple's frameworks look for the home folder
        "TMPDIR": work / "tmp",
        "XDG_CACHE_HOME": cache,
        "XDG_CONFIG_HOME": home / "config",
        "MPLCONFIGDIR": cache / "matplotlib",
        "TORCHINDUCTOR_CACHE_DIR": cache / "inductor",
        "TORCH_EXTENSIONS_DIR": cache / "extensions",
        "TORCH_HOME": cache / "torch",
        "KERAS_HOME": cache / "keras",
        "YOLO_CONFIG_DIR": cache / "ultralytics",
        "METALLAB_OUT": work / "out",
    }
    quiet = {
        "PYTHONDONTWRITEBYTECODE": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TQDM_DISABLE": "1",
        "YOLO_OFFLINE": "1",
        "YOLO_AUTOINSTALL": "false",
        "ENABLE_PJRT_COMPATIBILITY": "1",  # jax-metal does not start without it
    }
    return {name: str(path) for name, path in inside.items()} | quiet
