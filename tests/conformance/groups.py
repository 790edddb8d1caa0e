"""The processes in which tests run: one for each group, one for a test that must be alone, a new one after a crash.

A test that ends its process, or takes longer than it may, loses no result but its own. If others had run in that
process before, it is asked once more in a new one: what they left behind may have been to blame.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from conformance import child, claims
from metallab import processes

TESTS = Path(__file__).resolve().parents[1]
STARTING = 300.0
"""Seconds that a process may take until it is ready: frameworks are imported, the simulated GPU may be built."""


class Ended(Exception):
    """A process has ended, or was stopped, where an answer was due."""

    def __init__(self, outcome: claims.Outcome, how: str) -> None:
        super().__init__(how)
        self.outcome = outcome


class Group:
    """A process that serves the tests of a file."""

    def __init__(self, config: pytest.Config, file: Path, device: str, environment: Mapping[str, str]) -> None:
        self.used = False
        self.output = tempfile.TemporaryFile()  # what tests print, also those that end the process  # noqa: SIM115
        folders = [str(TESTS), str(TESTS.parent / "metalsim" / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        variables = kept | {child.VARIABLE: "1", "PYTHONPATH": os.pathsep.join(folders), "METALLAB_DEVICE": device}
        command = [sys.executable, "-m", "conformance.child"]
        self.mark = f"conformance-{os.getpid()}-{time.monotonic_ns()}"
        self.process = subprocess.Popen(
            [*command, str(file), str(config.rootpath), str(config.inipath)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.output,
            cwd=TESTS.parent,
            env=processes.marked(variables | dict(environment), self.mark),
            start_new_session=True,  # Control-C is this process's
        )
        self.head = processes.find_process(self.process.pid)
        self.heard = b""

    def answers(self, task: dict[str, Any] | None, last: str, seconds: float) -> Iterator[dict[str, Any]]:
        """Its answers to a task, up to the one that has ``last``. `Ended` if that does not come in time."""
        try:
            if task:
                os.write(self.process.stdin.fileno(), f"{json.dumps(task)}\n".encode())
            end = time.monotonic() + seconds
            answer: dict[str, Any] = {}
            while last not in answer:
                answer = json.loads(self._line(end, seconds))
                yield answer
        except BrokenPipeError:
            raise Ended("crashed", self._how()) from None

    def _line(self, end: float, seconds: float) -> bytes:
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self.heard:
                if not waiting.select(max(0.0, end - time.monotonic())):
                    raise Ended("timed out", f"took longer than {seconds:g} s and was stopped")
                if not (more := os.read(self.process.stdout.fileno(), 2**16)):
                    raise Ended("crashed", self._how())
                self.heard += more
        line, _, self.heard = self.heard.partition(b"\n")
        return line

    def _how(self) -> str:
        return f"the process {processes.describe_exit(self.process.wait())}"

    def printed(self, begin: int = 0) -> str:
        """What it has printed from a place of its output on; its end if that is long."""
        size = os.fstat(self.output.fileno()).st_size
        return os.pread(self.output.fileno(), 2**20, max(begin, size - claims.PRINTED)).decode("utf-8", "replace")

    def stop(self) -> None:
        """End it, and whatever it has started."""
        processes.kill_family(self.head, self.mark)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.output):
            stream.close()


class Groups:
    """Runs tests, each in its group's process."""

    def __init__(self, config: pytest.Config, environment: Mapping[str, str], patience: float) -> None:
        self.config, self.environment = config, environment
        self.patience = patience
        """Each test may take so many times as long as it says."""
        self.open: dict[tuple[str, bool], Group] = {}
        self.file = Path()

    def run(self, item: pytest.Item, following: pytest.Item | None) -> tuple[list[pytest.TestReport], str]:
        """pytest's reports of a test, and what it printed. Of one that was lost the report says how, in ``outcome``."""
        claim = claims.claim(item)
        if item.path != self.file:
            self.stop()
            self.file = item.path
        before = None
        while True:
            group, used = None, False
            try:
                group = self._group(item, claim)
                used, group.used = group.used, True
                begin = os.fstat(group.output.fileno()).st_size
                task = {"run": item.nodeid, "next": following and not claim.alone and following.nodeid}
                answers = list(group.answers(task, "done", self.patience * claim.seconds))
            except Ended as end:
                printed = group.printed(begin) if group else ""
                self.stop()
                if end.outcome == "crashed" and used and not before:
                    before = str(end)
                    continue
                return [self._lost(item, claim, end.outcome, str(end), printed)], printed
            reports = [self._report(each["report"]) for each in answers if "report" in each]
            if before:
                reports[-1].user_properties.append(("evidence", ("in a process that had run others", before)))
            printed = group.printed(begin)
            if claim.alone:
                self.stop()
            return reports, printed

    def _report(self, data: dict[str, Any]) -> pytest.TestReport:
        report = self.config.hook.pytest_report_from_serializable(config=self.config, data=data)
        if isinstance(report.longrepr, list):  # why it was skipped: JSON knows no tuples
            report.longrepr = tuple(report.longrepr)
        return report

    def _group(self, item: pytest.Item, claim: claims.Claim) -> Group:
        if claim.alone:
            self.stop()
        device = "auto" if claims.ON_A_MAC else "sim" if claim.on == "gpu" else "cpu"
        key = (device, claim.alone)
        if key not in self.open:
            group = self.open[key] = Group(self.config, item.path, device, {**self.environment, **claim.environment})
            for answer in group.answers(None, "ready", STARTING):
                if "broken" in answer:
                    raise Ended("raised", f"the file cannot be read there\n{answer['broken']}")
        return self.open[key]

    def _lost(
        self, item: pytest.Item, claim: claims.Claim, outcome: claims.Outcome, how: str, printed: str
    ) -> pytest.TestReport:
        ending = {"outcome": outcome, "raised": how}
        words = f"{printed}\n{how}"
        return pytest.TestReport(
            item.nodeid, item.location, {}, "failed", words, "call", user_properties=list(ending.items())
        )

    def stop(self) -> None:
        """End all processes."""
        for group in self.open.values():
            group.stop()
        self.open.clear()
