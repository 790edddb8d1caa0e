"""The worker process, ``python -m metallab.headless.worker``: runs one notebook and reports to the parent."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import resource
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from metallab.headless.jobs import Job, NotebookResult, cannot_write
from metallab.notebook import (
    Failure,
    Refused,
    Unreadable,
    check_kernel_name,
    check_skipped_cells,
    is_code,
    not_run,
    read_notebook,
    save,
    show_failure,
    skip_reason,
    title_of,
)
from metallab.paths import write_atomically
from metallab.processes import Lifeline, adopt_orphans


def main(job_file: str, descriptor: str) -> int:
    """The worker process: runs the job in ``job_file`` and reports to the descriptor. 0 unless it broke."""
    adopt_orphans()
    lifeline = Lifeline()
    lifeline.watch()
    # jsonschema would spend 0.8 s building a grammar for the format "iri", which no notebook schema contains;
    # it does without when the import fails.
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
    job = Job(**json.loads(Path(job_file).read_text()))
    report = partial(send, int(descriptor))
    try:
        result = work(job, report, lifeline)
    finally:
        lifeline.kill()  # what a cell left running, which would disturb the next notebook's numbers
    report(event="done", result=dataclasses.asdict(result) | {"notebook": str(result.notebook or "")})
    if lifeline.cut:  # the parent may be gone, and with it the one who removes this folder
        shutil.rmtree(job.scratch, ignore_errors=True)
    return 0


def work(job: Job, report: Callable[..., None], lifeline: Lifeline) -> NotebookResult:
    """Reads, checks and executes one notebook, and puts it where it belongs."""
    try:
        notebook = read_notebook(Path(job.path))
    except Unreadable as error:
        return not_a_notebook(job, str(error))
    for cell in notebook.cells:
        cell.source = job.replace.get(cell.get("id"), cell.source)
    cells = sum(map(is_code, notebook.cells))
    result = NotebookResult(job.name, title_of(notebook) or job.name, cells=cells)
    report(event="read", title=result.title, cells=cells)
    try:
        result.reason = skip_reason(notebook, job.device)
        check_kernel_name(notebook)
        check_skipped_cells(notebook)
    except Refused as refusal:
        return finish(job, notebook, result, Failure(str(refusal)))
    if result.reason:
        result.status = "skipped"
        return result
    from metallab.headless.runner import execute

    return finish(job, notebook, result, execute(job, notebook, result, report, lifeline))


def not_a_notebook(job: Job, reason: str) -> NotebookResult:
    """The failure of a file that can't be read: a text with the reason, and a copy of the file if there is one."""
    result = NotebookResult(job.name, job.name, reason=reason)
    try:
        write_atomically(job.note, f"{job.path}\n{reason}\n")
        result.failed_copy = os.path.relpath(job.note, job.out)
        if os.access(job.path, os.R_OK) and Path(job.path).is_file():
            shutil.copyfile(job.path, job.unreadable)
    except OSError as error:
        result.reason += f"; and {cannot_write(job.failed, error)}"
    return result


def finish(job: Job, notebook, result: NotebookResult, failure: Failure | None) -> NotebookResult:
    """Fills in the result and saves the notebook: in the run's folder if it came to its end, else among the failed."""
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss counts bytes there, KiB elsewhere
    result.peak_rss_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
    result.not_run = not_run(notebook)
    if failure is None:
        try:
            save(notebook, job.executed)
        except OSError as error:
            failure = Failure(f"it came to its end, but {cannot_write(job.executed, error)}")
    if failure is None:
        job.partial.unlink(missing_ok=True)
        result.status, result.notebook = "passed", job.executed
        if result.not_run:
            result.status, result.reason = "incomplete", result.lacking
        return result
    result.reason, result.cell, result.traceback = failure.reason, failure.cell, failure.traceback
    show_failure(notebook, failure)
    try:
        save(notebook, job.partial)
    except OSError as error:
        if "cannot be written" not in result.reason:
            result.reason += f"; and {cannot_write(job.partial, error)}"
    if job.partial.exists():  # an earlier state of it at least
        result.notebook, result.failed_copy = job.partial, os.path.relpath(job.partial, job.out)
    return result


def send(descriptor: int, /, **event: object) -> None:
    """Sends one event to the parent, as a line of JSON.

    Nobody hears it if the parent has gone; that is the lifeline's business.
    """
    with contextlib.suppress(BrokenPipeError):
        os.write(descriptor, json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
