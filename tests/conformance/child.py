"""The process of a group: ``python -m conformance.child FILE ROOT SETTINGS`` runs tests of a file as it is told.

Each line of standard input is a task, ``{"run": nodeid, "next": nodeid or null}``. Answers are lines of JSON on what
was standard output: ``ready``, each of pytest's reports, and ``done``. Whatever tests print goes to standard error.
Where METALLAB_DEVICE is ``sim`` the simulated Apple GPU is armed first, before anything imports torch.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

VARIABLE = "METALLAB_CONFORMANCE_CHILD"
"""Set in such a process."""


class Server:
    """The plugin that runs tests when it is told to."""

    def __init__(self, answers: Any) -> None:
        self.answers = answers

    def tell(self, **answer: Any) -> None:
        print(json.dumps(answer), file=self.answers, flush=True)

    def pytest_runtestloop(self, session: Any) -> bool:
        items = {item.nodeid: item for item in session.items}
        self.config = session.config
        self.tell(ready=sorted(items))
        for line in sys.stdin:
            task = json.loads(line)
            item, following = items[task["run"]], items.get(task["next"])
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            sys.stdout.flush()
            self.tell(done=item.nodeid)
        return True

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.tell(report=self.config.hook.pytest_report_to_serializable(config=self.config, report=report))

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.tell(broken=report.longreprtext)


def main(file: str, root: str, settings: str) -> None:
    """Serve until standard input closes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if os.environ["METALLAB_DEVICE"] == "sim":
        from metallab import simulation

        simulation.arm(required=True)
    import pytest

    without = [word for name in ("xdist", "terminal", "cacheprovider") for word in ("-p", f"no:{name}")]
    options = ["--rootdir", root, "-c", settings, "-o", "addopts=", *without, "--capture=no", "--strict-markers"]
    code = pytest.main([*options, file], plugins=[Server(answers)])
    for stream in (answers, sys.stdout, sys.stderr):
        stream.flush()
    os._exit(int(code))  # PyTorch's threads may hold the simulated device while Python is taken down


if __name__ == "__main__":
    main(*sys.argv[1:])
