"""What runs in the other process: it prepares it, executes the code, and leaves an answer."""

from __future__ import annotations

import atexit
import base64
import contextlib
import gc
import linecache
import os
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metallab import results_made
from metallab.isolated.answers import SOURCE, pack_error, pack_results
from metallab.processes import adopt_orphans, kill_descendants


def main(folder: str) -> int:
    """Run the task in a folder, for ``python -m metallab.isolated FOLDER``; return the exit code."""
    source, names, device, threads = pickle.loads(Path(folder, "task").read_bytes())
    if device:
        os.environ["METALLAB_DEVICE"] = device

    answer = _execute(source, names, threads)
    part = Path(folder, "part")
    part.write_bytes(answer)
    part.rename(Path(folder, "answer"))

    # `isolated.run` names the simulated GPU for ``device="mps"`` where there is no Mac. What it has to do at the end is
    # done here, since `os._exit` below leaves it out: it waits for the last backward pass and prints its profile
    is_simulated = os.environ.get("METALLAB_DEVICE") == "sim"
    if is_simulated:
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError):  # the code may have closed it
            stream.flush()
    kill_descendants()

    # PyTorch's threads for backward passes may hold the simulated device, a part of which is Python, while Python is
    # taken down: do not wait
    if is_simulated:
        os._exit(0)
    # while it ends Python would look for garbage among all objects, again and again: half a second where PyTorch is
    # loaded. Once is enough, for files that the code left open
    gc.collect()
    gc.freeze()
    return 0


def _execute(source: str, names: Sequence[str], threads: int | None) -> bytes:
    """Execute Python text, and return the answer."""
    linecache.cache[SOURCE] = (len(source), None, source.splitlines(keepends=True), SOURCE)
    space: dict[str, Any] = {"__name__": "__main__"}
    try:
        prepare(threads)
        exec(compile(source, SOURCE, "exec"), space)
    except BaseException as error:  # noqa: BLE001  # whatever it is, it is the answer
        return pack_error(error, SOURCE)
    return pack_results(space, names)


def prepare(threads: int | None) -> None:
    """Prepare this process: limit it to one core, and arm the simulated GPU if it is requested.

    Parameters
    ----------
    threads
        1, or None for no limit.
    """
    results_made.forget_all()  # the first kernel saves what is sent to it
    adopt_orphans()

    if threads and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if os.environ.get("METALLAB_DEVICE") == "sim":
        from metallab import simulation

        simulation.arm(required=True)


def finish_cell(names: Sequence[str], has_raised: bool) -> str:
    """End what a cell of this kernel, the second one, has started, and return its answer as text.

    Parameters
    ----------
    names
        The results that are asked for.
    has_raised
        Whether the cell ended with an exception.
    """
    from IPython import get_ipython

    kill_descendants()
    if has_raised and sys.last_value is not None:
        answer = pack_error(sys.last_value, f"ipykernel_{os.getpid()}")
    else:
        answer = pack_results(get_ipython().user_ns, names)
    return base64.b64encode(answer).decode()
