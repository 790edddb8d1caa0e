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
    """Run the task in a folder, for ``python -m metallab.isolated FOLDER``; return the exit code, which is 0.

    The file ``answer`` there gets the results that were asked for, or the exception that the task raised. Under the
    simulated GPU this does not return: it ends the process.
    """
    source, names, device, threads = pickle.loads(Path(folder, "task").read_bytes())
    if device:
        os.environ["METALLAB_DEVICE"] = device

    space: dict[str, Any] = {"__name__": "__main__"}
    # before the code runs, so that it is called after what the code and the simulated GPU register
    atexit.register(_collect_and_freeze, space)
    answer = _execute(source, names, threads, space)
    part = Path(folder, "part")
    part.write_bytes(answer)
    part.rename(Path(folder, "answer"))  # whole, or not at all

    # `isolated.run` names the simulated GPU for ``device="mps"`` where there is no Mac. What is registered for the end
    # is called here, since `os._exit` below leaves it out: the simulated GPU waits for the last backward pass and
    # prints its profile
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
    return 0


def _collect_and_freeze(space: dict[str, Any]) -> None:
    """Remove the variables of the code that ran, and collect what is garbage: with its objects end the files they hold.

    What is left is frozen: Python would look for garbage among it again and again while it ends, as
    `metallab.headless.worker.QUICK_EXIT` says of kernels. A thread of the code that still runs misses its variables.
    """
    space.clear()
    gc.collect()
    gc.freeze()


def _execute(
    source: str, names: Sequence[str], threads: int | None, space: dict[str, Any]
) -> bytes:
    """Execute Python text with these variables, and return the answer: results by name, or what was raised."""
    # so that a traceback quotes its lines
    linecache.cache[SOURCE] = (len(source), None, source.splitlines(keepends=True), SOURCE)
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
    """End what a cell of this kernel, which is the page's second one, has started, and return its answer as text.

    Parameters
    ----------
    names
        The results that are asked for.
    has_raised
        Whether the cell ended with an exception.

    Returns
    -------
    str
        What `answers.unpack` reads, as base64: the reply of a kernel holds no bytes.
    """
    from IPython import get_ipython

    kill_descendants()
    # IPython keeps what a cell raised in sys.last_value; ipykernel names the files of cells after the process, so the
    # traceback is shown as far as it is the cell's own
    if has_raised and sys.last_value is not None:
        answer = pack_error(sys.last_value, f"ipykernel_{os.getpid()}")
    else:
        answer = pack_results(get_ipython().user_ns, names)
    return base64.b64encode(answer).decode()
