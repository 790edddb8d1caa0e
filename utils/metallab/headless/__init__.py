"""Runs notebooks without a person: ``python -m metallab.headless``, what ``make run`` and the tests use.

Three processes share the work, so that none can take the others down:

* the **parent** picks the notebooks, prints progress and keeps ``summary.json``. It imports no framework and no
  nbclient, so that it takes neither memory nor time from what is being measured;
* a **worker** for each notebook is nbclient's client, which it makes save the partial notebook after every cell
  (seldomer where there are so many that saving would take a tenth of the time). Its standard input is its lifeline:
  once that closes (the parent stops it, or is gone, however it went) the worker kills its kernel, saves what it has and
  leaves;
* the **kernel** is ipykernel in this very interpreter. It talks over Unix sockets, so that parallel runs never race
  for a port. It starts in a session of its own, with a mark in its environment, and on Linux the worker adopts what
  loses its parent: so its descendants are found and ended.

What a run writes: the executed notebooks, ``results/`` and ``summary.json`` in the folder of its mode and device
(``build/full-cpu``), and in ``build/failed/<mode>-<device>`` the partial notebook of each failure. If ``METALLAB_OUT``
names another folder, failures lie in its ``failed``.

A disk that is full fails a notebook, or ends the run, in one line; nothing half-written is left, and nothing that no
run wrote is overwritten. What a cell prints is cut where nobody would read it, and the page says so.

A notebook passed, failed, was skipped, or is *incomplete*: it came to its end, and its cells say in their outputs that
a tool is missing here and what was not run for want of it (`metallab.needs`).

Cells are numbered as a reader counts them: code cells that are not blank, from 1.

``cli``, ``bench``, ``summary`` and ``pool`` are the parent, ``worker`` is the worker; ``jobs`` and ``devices`` are what
they share. `metallab.notebook` knows what a notebook is, `metallab.processes` how to end a family of processes.
"""

from metallab.headless.cli import main
from metallab.headless.devices import resolve_device
from metallab.headless.jobs import NotebookResult, UsageError
from metallab.headless.pool import run_notebook

__all__ = ["NotebookResult", "UsageError", "main", "resolve_device", "run_notebook"]
