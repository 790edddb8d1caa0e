"""The process of a group: ``python -m conformance.child FILE ROOT SETTINGS`` runs tests of a file as it is told.

Each line of standard input is a task, ``{"run": nodeid, "next": nodeid or null}``. Answers are lines of JSON on what
was standard output: ``ready``, each of pytest's reports, and ``done``. Whatever tests print goes to standard error.
Where METALLAB_DEVICE is ``sim`` the simulated Apple GPU is armed first, before anything imports torch.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import Any, TextIO

VARIABLE = "METALLAB_CONFORMANCE_CHILD"
"""Set in such a process."""


class Server:
    """The plugin that runs tests when it is told to."""

    def __init__(self, tasks: TextIO, answers: TextIO) -> None:
        self.tasks, self.answers = tasks, answers

    def tell(self, **answer: Any) -> None:
        print(json.dumps(answer), file=self.answers, flush=True)

    def pytest_runtestloop(self, session: Any) -> None:
        items = {item.nodeid: item for item in session.items}
        self.config = session.config
        self.tell(ready=sorted(items))
        tasks = queue.SimpleQueue()
        threading.Thread(target=_read, args=(self.tasks, tasks), daemon=True).start()
        while True:
            task = tasks.get()
            item, following = items[task["run"]], items.get(task["next"])
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            sys.stdout.flush()
            self.tell(done=item.nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.tell(report=self.config.hook.pytest_report_to_serializable(config=self.config, report=report))

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.tell(broken=report.longreprtext)


def _read(lines: TextIO, tasks: queue.SimpleQueue) -> None:
    """Take what is to be done. When nobody asks any more, the process ends, also in the middle of a test."""
    for line in lines:
        tasks.put(json.loads(line))
    os._exit(0)  # at once: PyTorch's threads may hold the simulated device while Python is taken down


def main(file: str, root: str, settings: str) -> None:
    """Serve until standard input closes."""
    tasks, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # what tests start shall not take our tasks
    if os.environ["METALLAB_DEVICE"] == "sim":
        from metallab import simulation

        simulation.arm(required=True)
    import pytest

    without = [word for name in ("xdist", "terminal", "cacheprovider") for word in ("-p", f"no:{name}")]
    options = ["--rootdir", root, "-c", settings, "-o", "addopts=", *without, "--capture=no", "--strict-markers"]
    sys.exit(pytest.main([*options, file], plugins=[Server(tasks, answers)]))  # only if the file cannot be read


if __name__ == "__main__":
    main(*sys.argv[1:])
