"""Run notebooks without a person: ``python -m metallab.headless``, which ``make run`` and the tests use.

`cli` chooses the notebooks, prints progress and keeps ``summary.json``; `runner` starts a process for each notebook and
watches it; `worker` is that process: nbclient with a fresh kernel of this interpreter. The command imports no
framework, so that it takes neither memory nor time from what is measured.

A run writes the executed notebooks, ``results/`` and ``summary.json`` into the folder of its mode and device
(``build/full-cpu``), and the partial notebook of each failure into ``build/failed/<mode>-<device>``; where
``METALLAB_OUT`` names another folder, failures are in its ``failed``. A notebook is saved after every cell.

A notebook passed, failed, was skipped, or is *incomplete*: it reached its end, and its outputs list the cells that
did not run because a tool is missing (`metallab.needs`). Code cells that are not blank are counted from 1.
"""

from metallab.headless.cli import main
from metallab.headless.runner import NotebookResult, UsageError, resolve_device

__all__ = ["NotebookResult", "UsageError", "main", "resolve_device"]
