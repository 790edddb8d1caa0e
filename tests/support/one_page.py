"""Run one notebook as ``python -m metallab.headless`` runs each, without ``summary.json``."""

import json
from pathlib import Path

from metallab.headless import NotebookResult, runner


def run_notebook(
    path: Path, *, out: Path, device: str = "cpu", failed: Path | None = None, **job
) -> NotebookResult:
    """``job`` are fields of `runner.Job`; what ``replace`` names, cells by id, has to be there."""
    ids = {cell.get("id") for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]}
    assert set(job.get("replace", ())) <= ids, "what replaces nothing proves nothing"
    return runner.execute(runner.make_job(path.absolute(), "fast", device, out, failed, **job))
