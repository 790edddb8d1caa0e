"""What a run of many notebooks keeps and says: the lock on its folder, ``summary.json``, progress."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil

from metallab.headless.jobs import ELSEWHERE, ENTRY, STATUSES, Job, NotebookResult, UsageError, cannot_write
from metallab.headless.pool import STOP_GRACE, Running
from metallab.paths import shown, write_atomically

UNFINISHED = "no result: the run ended while this notebook was running; it was killed, or could not write"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Holds the run folder's lock, an open descriptor; UsageError if another run has it, or if it can't be written.

    The system drops the lock with its last holder, so it can't go stale. Workers hold it too: if a run was killed,
    the next one waits until its orphans are through, which takes seconds.
    """
    check_umask()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise cannot_write(folder, error) from error
    patience = time.monotonic() + STOP_GRACE
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            holder = os.pread(descriptor, 32, 0).decode().strip()  # empty: it is about to tell
            if not holder.isdigit() or psutil.pid_exists(int(holder)) or time.monotonic() > patience:
                raise UsageError(
                    f"another run (pid {holder or 'unknown'}) is writing to {folder}; wait until it is through, "
                    "or end it"
                )
            time.sleep(0.2)
        try:
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            raise cannot_write(folder / ".lock", error) from error
        yield descriptor
    finally:
        os.close(descriptor)


def check_umask() -> None:
    """UsageError if this process makes files that their owner can't read or write."""
    mask = os.umask(0o077)
    os.umask(mask)
    if mask & 0o700:
        raise UsageError(f"umask {mask:03o} makes files that you could not read yourself: umask 022, then try again")


class SummaryWriter:
    """``summary.json``: one entry per notebook, the last run's; written after each, so that nothing gets lost.

    ``started`` (ISO 8601, UTC) and ``seconds`` are the latest run's; entries of notebooks it did not run stay.
    """

    def __init__(self, folder: Path, mode: str, resolved: dict) -> None:
        self.path = folder / "summary.json"
        self.head = {"mode": mode, **resolved, "started": datetime.now(UTC).isoformat(timespec="seconds")}
        self.clock = time.monotonic()
        self.foreign = False
        self.entries = {entry["name"]: entry for entry in self._earlier()}

    def _earlier(self) -> list[dict]:
        try:
            entries = json.loads(self.path.read_text(encoding="utf-8"))["notebooks"]
            known = [{"not_run": [], **entry} for entry in entries]  # which older summaries do not have
            if not all(isinstance(entry["name"], str) for entry in known):
                raise ValueError("names are text")
            return [{name: entry[name] for name in ENTRY} for entry in known]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UsageError(f"{self.path} can't be read ({error.strerror}): {ELSEWHERE}") from error
        except (ValueError, KeyError, TypeError, RecursionError):
            self.foreign = True
            return []

    def _keep_foreign(self) -> None:
        """Moves a summary that this program did not write, or that was damaged, to a name of its own."""
        numbered = (self.path.with_name(f"summary.{number}.json") for number in itertools.count(1))
        aside = next(path for path in numbered if not os.path.lexists(path))
        os.replace(self.path, aside)
        self.foreign = False
        print(
            f"{self.path} was not written by this program, or is damaged: now {aside.name}, and a new one is begun",
            file=sys.stderr,
        )

    def add(self, result: NotebookResult) -> None:
        """Puts in one result, in place of an older one, and writes the file. UsageError if that can't be done."""
        self.entries[result.name] = result.entry()
        seconds = round(time.monotonic() - self.clock, 3)
        notebooks = [self.entries[name] for name in sorted(self.entries)]
        text = json.dumps({**self.head, "seconds": seconds, "notebooks": notebooks}, indent=1, ensure_ascii=False)
        try:
            if self.foreign:
                self._keep_foreign()
            write_atomically(self.path, text + "\n")
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def begin(self, job: Job) -> None:
        """Marks a notebook as begun: if nothing ever replaces this entry, the run was killed."""
        self.add(NotebookResult(job.name, job.name, reason=UNFINISHED))


class Console:
    """Progress for a person: a line per finished notebook and, on a terminal, a live one for those that run."""

    def __init__(self, stream=None) -> None:
        self.stream = stream or sys.stdout
        if hasattr(self.stream, "reconfigure"):  # a terminal may lack a character of a notebook's reason
            self.stream.reconfigure(errors="backslashreplace")
        self.live = self.stream.isatty()

    def say(self, text: str, end: str = "\n") -> None:
        """Prints. When nobody reads any more (``make run | head``), the run goes on in silence: summary.json tells.

        So it does where the disk is full that the text goes to.
        """
        try:
            print(text, end=end, file=self.stream, flush=True)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def progress(self, running: list[Running]) -> None:
        """Redraws the live line."""
        if not self.live:
            return
        now = time.monotonic()
        cells = [f"cell {r.known.get('cell', 0)}/{r.known.get('cells', 0)}" for r in running]
        parts = [f"{r.job.name}  {c}  {now - r.started:.0f} s" for r, c in zip(running, cells, strict=True)]
        width = shutil.get_terminal_size().columns - 1
        self.say("\r\x1b[K" + "  |  ".join(parts)[:width], end="")

    def finished(self, result: NotebookResult) -> None:
        """Prints a notebook's line."""
        erase = "\r\x1b[K" if self.live else ""
        line = f"{erase}{result.status:<11}{result.name:<42}{result.seconds:>8.1f} s  {shorten(result.reason, 100)}"
        self.say(line.rstrip())

    def summary(self, results: list[NotebookResult], folder: Path, seconds: float) -> None:
        """Prints the closing table and, for each failure, where it happened and where the partial notebook lies."""
        say = self.say
        say(f"\n{'notebook':<42}{'status':<11}{'time':>10}{'cells':>10}{'peak memory':>14}")
        for r in results:
            ran, memory = f"{r.executed}/{r.cells}", f"{r.peak_rss_bytes / 2**20:.0f} MiB"
            say(f"{r.name:<42}{r.status:<11}{r.seconds:>8.1f} s{ran:>10}{memory:>14}")
        counts = [f"{sum(r.status == s for r in results)} {s}" for s in STATUSES]
        say(f"{', '.join(counts)} in {seconds:.1f} s; {shown(folder / 'summary.json')}")
        for r in results:
            if r.status == "failed":
                say(f"\n{r.name}: {r.reason}")
                for line in r.traceback.splitlines()[-12:]:
                    say(f"    {line}")
                if r.failed_copy:
                    say(f"  left in {shown(folder / r.failed_copy)}")
        self._say_what_was_not_run([r for r in results if r.not_run])

    def _say_what_was_not_run(self, results: list[NotebookResult]) -> None:
        """Last, because nothing else tells of it: an incomplete notebook did not fail."""
        for r in results:
            self.say(f"\n{r.name} is incomplete{' besides' * (r.status == 'failed')}. Not run:")
            for gap in r.not_run:
                self.say(f"  {gap['where']}: {gap['what']}")
            for mend in dict.fromkeys(gap["mend"] for gap in r.not_run):
                self.say(f"  to mend it: {mend}")


def shorten(text: str, width: int) -> str:
    """One line of at most ``width`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
