"""A notebook to run, what becomes of it, and where its files go."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from metallab import paths
from metallab.notebook import Failure, save, show_failure
from metallab.paths import write_atomically

CELL_TIMEOUT = 600.0
TIMEOUT = 1800.0
INTERRUPTED = "interrupted"


class UsageError(ValueError):
    """What was asked for can't be done as given; the message says what to do. Exit code 2."""


def cannot_write(path: str | Path, error: OSError) -> UsageError:
    """What is said, in one line, where a run cannot write: its disk is full, or it may not."""
    return UsageError(
        f"{path} cannot be written ({error.strerror or error}): make room there and see that you may write to it, or "
        "name another folder with METALLAB_OUT. What was finished stays"
    )


ELSEWHERE = "move it away, or name another folder with METALLAB_OUT"
REGISTER = ".written-by-a-run"
"""In a folder that ``METALLAB_OUT`` names: the names of the notebooks whose files there a run has written."""


@dataclass
class NotebookResult:
    """What became of one notebook: an entry of ``summary.json``, and the rest that a person or a test wants to know."""

    name: str
    """The file's stem, such as ``03_where_it_ran``."""
    title: str
    """Its H1, or the name if it has none."""
    status: str = "failed"
    """``passed``, ``incomplete`` (it came to its end without a tool that is missing), ``failed`` or ``skipped``."""
    seconds: float = 0.0
    """Wall time, with starting and stopping the kernel."""
    reason: str = ""
    """Why it failed, was skipped or is incomplete; empty when it passed."""
    cells: int = 0
    """Code cells that are not blank."""
    executed: int = 0
    """How many of them came to their end, be it by raising."""
    peak_rss_bytes: int = 0
    """The kernel's peak resident memory: the larger of the sum over its processes, sampled every second, and the exact
    peak of the largest one (which Linux gives as no less than the worker's own, some 60 MB)."""
    not_run: list[dict[str, str]] = field(default_factory=list)
    """What was not run for want of a tool, whatever the status: ``where`` it stands, ``what``, how to ``mend``."""
    failed_copy: str | None = None
    """The partial notebook, or a text that says why there is none; relative to the folder of ``summary.json``."""
    notebook: Path | None = None
    """The executed notebook: in the run's folder if it came to its end, else the failed copy if there is one."""
    cell: int | None = None
    """The number of the cell that failed."""
    traceback: str = ""
    """Its traceback, without colours."""

    def __post_init__(self) -> None:
        self.notebook = Path(self.notebook) if self.notebook else None

    @property
    def lacking(self) -> str:
        """What was not run and what mends it, in one line; empty if all was run."""
        parts = [f"{gap['where']}: {gap['what']}" for gap in self.not_run]
        mends = ", ".join(dict.fromkeys(gap["mend"] for gap in self.not_run))
        return f"not run: {'; '.join(parts)}. To mend it: {mends}" if parts else ""

    def entry(self) -> dict:
        """The entry for ``summary.json``."""
        return {name: getattr(self, name) for name in ENTRY}

    def read(self):
        """The executed notebook as a NotebookNode; ValueError if this notebook left none."""
        if self.notebook is None:
            raise ValueError(f"{self.name} left no notebook to read: {self.reason}")
        import nbformat

        return nbformat.read(self.notebook, as_version=4)


STATUSES = ("passed", "incomplete", "failed", "skipped")
ENDED = ("passed", "incomplete")
"""Statuses of a notebook that came to its end: its results can be used."""
ENTRY = (
    *("name", "title", "status", "seconds", "reason", "cells", "executed", "peak_rss_bytes"),
    *("failed_copy", "not_run"),
)


@dataclass
class Job:
    """One notebook to run, and how. Times in seconds; 0 means no limit. All folders are absolute."""

    path: str
    name: str
    mode: str
    device: str
    out: str
    failed: str
    cell_timeout: float = CELL_TIMEOUT
    timeout: float = TIMEOUT
    replace: dict[str, str] = field(default_factory=dict)
    allow_errors: bool = False
    scratch: str = ""

    @property
    def executed(self) -> Path:
        """Where the executed notebook goes if it passes."""
        return Path(self.out, f"{self.name}.ipynb")

    @property
    def partial(self) -> Path:
        """Where the notebook lies while it runs, and stays if it fails."""
        return Path(self.failed, f"{self.name}.ipynb")

    @property
    def note(self) -> Path:
        """Where the reason goes if there is no partial notebook."""
        return Path(self.failed, f"{self.name}.txt")

    @property
    def unreadable(self) -> Path:
        """Where the copy of a notebook goes that can't be read."""
        return Path(self.failed, f"{self.name}.unreadable")

    @property
    def files(self) -> tuple[Path, ...]:
        """All that a run of this notebook writes or removes."""
        records = Path(self.out, "results", f"{self.name}.json")
        return self.executed, records, self.partial, self.note, self.unreadable

    def assert_ours(self) -> None:
        """UsageError if a file lies where this run would write, and no run has written it."""
        if Path(self.out).resolve().is_relative_to(paths.BUILD.resolve()) or self.name in self._registered():
            return
        for path in self.files:
            if os.path.lexists(path) and not (path.parent.name == "results" and _are_records(path)):
                raise UsageError(f"{path} is there already, and no run wrote it: {ELSEWHERE}")

    def remove_stale(self) -> None:
        """Removes what an earlier run of this notebook left, so that nothing old is taken for new.

        UsageError if no run has left it, or if it can't be removed.
        """
        self.assert_ours()
        try:
            for old in self.files:
                old.unlink(missing_ok=True)
            if self.name not in self._registered():
                Path(self.out).mkdir(parents=True, exist_ok=True)
                with Path(self.out, REGISTER).open("a", encoding="utf-8") as register:
                    register.write(f"{self.name}\n")
        except OSError as error:
            raise cannot_write(error.filename or self.out, error) from error

    def _registered(self) -> set[str]:
        register = Path(self.out, REGISTER)
        return set(register.read_text(encoding="utf-8", errors="replace").splitlines()) if register.is_file() else set()


def _are_records(path: Path) -> bool:
    """Whether a file was written by `metallab.records`, which pages use without a run as well."""
    return path.is_file() and not path.is_symlink() and b'"metallab"' in path.read_bytes()


def make_job(
    path: Path,
    mode: str,
    kind: str,
    out: str | Path | None = None,
    failed: str | Path | None = None,
    **options: object,
) -> Job:
    """The job for one notebook, with the folders that belong to its mode and device unless others are given.

    ``options`` are the job's other fields. UsageError if the run would write over the notebook itself, or over a file
    that no run has written.
    """
    elsewhere = out or os.environ.get("METALLAB_OUT")
    folder = Path(out or paths.run_folder(mode, kind)).absolute()
    default = folder / "failed" if elsewhere else paths.FAILED / f"{mode}-{kind}"
    job = Job(str(path), path.stem, mode, kind, str(folder), str(Path(failed or default).absolute()), **options)
    if path.resolve() in (job.executed.resolve(), job.partial.resolve()):
        raise UsageError(f"{path} is where its executed copy would go; choose another folder for the run")
    job.assert_ours()
    return job


def fail(job: Job, result: NotebookResult, failure: Failure, notebook: Mapping | None = None) -> NotebookResult:
    """Fills in why a notebook failed, and leaves it as it is, or as it was last saved, among the failed.

    Where there is none, because it cannot be read or its worker broke at once, a text says why.
    """
    result.status, result.reason = "failed", failure.reason
    result.cell, result.traceback = failure.cell, failure.traceback
    left = job.partial
    try:
        if notebook is None and left.exists():
            notebook = json.loads(left.read_text(encoding="utf-8"))
        if notebook is None:
            left = job.note
            write_atomically(left, f"{job.path}\n{failure.reason}\n{failure.traceback}\n")
        else:
            show_failure(notebook, failure)
            save(notebook, left)
    except OSError as error:
        if "cannot be written" not in failure.reason:
            result.reason += f"; and {cannot_write(left, error)}"
    if left.exists():  # be it an earlier state
        result.failed_copy = os.path.relpath(left, job.out)
        result.notebook = left if left == job.partial else None
    return result
