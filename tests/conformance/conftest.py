"""pytest's hooks and fixtures for claims: each test runs in its group's process, and a report tells what came of all.

The options are there when this folder is named on the command line, as ``make verify-mac`` does.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance import child, claims, groups, privacy, report, workplace
from metallab import checks, machine, paths, units

SERVING = child.VARIABLE in os.environ
MINUTES = 20.0
PATIENCE = 10.0
"""Without a report times are of no interest, and the machine may be busy."""


class Run:
    """A run of claims: its processes, and what came of each, where a report is wanted."""

    def __init__(self, config: pytest.Config) -> None:
        self.open = contextlib.ExitStack()
        self.begin, self.minutes = time.monotonic(), config.getoption("--minutes", MINUTES)
        self.why = ""
        """Why nothing more is run."""
        self.journal: report.Journal | None = None
        self.path = Path()
        environment, patience = dict(workplace.QUIET), PATIENCE
        if config.getoption("--report", False):
            work = self.open.enter_context(workplace.workplace())
            environment, patience = environment | workplace.environment(work), 1.0
            head = report.Head(machine.describe(), not claims.ON_A_MAC, datetime.date.today().isoformat())
            self.path = config.getoption("--out") or paths.BUILD / "verify-mac" / head.name
            self.journal = report.Journal(self.path.with_suffix(".jsonl"), head, privacy.scrubber(str(work)))
        self.groups = groups.Groups(config, environment, patience)
        self.open.callback(self.groups.stop)

    def result(self, claim: claims.Claim, reports: list[pytest.TestReport], printed: str) -> None:
        """Note what came of a claim, at once and on disk: what comes later cannot lose it."""
        outcome, message, detail = claims.of_reports(reports)
        seconds = sum(each.duration for each in reports)
        self.journal.note(claim, outcome, message, seconds, claims.values_of(reports), printed, detail)

    def out_of_time(self, claim: claims.Claim) -> str:
        """Why a claim is not looked into any more; empty if it is."""
        if not self.why and self.journal and self.journal.trouble:
            self.why = self.journal.trouble
        if not self.why and self.journal and time.monotonic() > self.begin + 60 * self.minutes:
            self.why = f"the {self.minutes:g} minutes were over; make verify-mac ONLY={claim.group} goes on from here"
        return self.why


RUN = pytest.StashKey[Run]()


def pytest_addoption(parser: pytest.Parser) -> None:
    add = parser.getgroup("claims about Macs").addoption
    add("--report", action="store_true", help="write a report that can be sent, into build/verify-mac")
    add("--device", default="auto", help="auto, mps or sim (default: the Mac's GPU, without a Mac the simulated one)")
    add("--only", default="", metavar="WORDS", help="groups and tests, by name")
    add("--minutes", type=float, default=MINUTES, help=f"begin no test after so many minutes (default: {MINUTES:g})")
    add("--out", type=Path, help="the report's file (default: in build/verify-mac)")


def pytest_itemcollected(item: pytest.Item) -> None:
    claims.claim(item)  # which says what is missing


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if SERVING or not config.getoption("--report", False):
        return
    claims.device(config.getoption("--device"))
    if words := set(config.getoption("--only").replace(",", " ").split()):
        items[:] = claims.chosen(items, words)
    items.sort(key=lambda item: claims.rank(claims.claim(item).group))


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.getoption("--report", False) and not SERVING:
        count, told = len(session.items), session.config.get_terminal_writer()
        if not claims.ON_A_MAC:
            told.line(f"No Mac here: {count} tests, SIMULATED where they are about a GPU. They show that they work.")
            return
        minutes = session.config.getoption("--minutes")
        told.line(f"{count} tests; none begins after {minutes:g} minutes. Some may crash, in processes of their own:")
        told.line("if macOS says that Python quit unexpectedly, choose Ignore.")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Have a test run by its group's process, and tell of it as if it had run here."""
    if SERVING or item.get_closest_marker("claim") is None:  # pytest asks this hook of tests elsewhere, too
        return None
    if RUN not in item.config.stash:
        item.config.stash[RUN] = Run(item.config)
    run, claim = item.config.stash[RUN], claims.claim(item)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports, printed = [], ""
    if why := run.out_of_time(claim):
        reports = [claims.not_asked(item, why, "not run")]
    elif claim.on == "mac" and not claims.ON_A_MAC:
        reports = [claims.not_asked(item, "it needs a Mac", "not applicable")]
    elif claim.slow and not run.journal:
        reports = [claims.not_asked(item, "it takes long: make verify-mac asks", "not applicable")]
    else:
        reports, printed = run.groups.run(item, nextitem)
    if run.journal:
        run.result(claim, reports, printed)
    for each in reports:
        if each.failed:
            each.sections.append(("what it printed", printed))
        item.ihook.pytest_runtest_logreport(report=each)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    """In a group's process: what was raised decides whether a claim is refuted, or the test did not work."""
    made = yield
    if made.failed:
        error = call.excinfo.value
        refuted = call.when == "call" and isinstance(error, AssertionError | checks.Mismatch | pytest.fail.Exception)
        made.user_properties.append(("outcome", "refuted" if refuted else "raised"))
        made.user_properties.append(("raised", units.first_line(error, kind=not isinstance(error, AssertionError))))
    return made


def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> tuple[str, str, str] | None:
    """The words of a run with a report: ``confirmed (simulated)``."""
    if not config.getoption("--report", False) or (report.when != "call" and report.passed):
        return None
    outcome, _, _ = claims.of_reports([report])
    return outcome, outcome[0], outcome


def pytest_sessionfinish(session: pytest.Session) -> None:
    run = session.config.stash.get(RUN, None)
    if run is None:
        return
    run.open.close()
    if run.journal:
        reached = {result.name for result in run.journal.results}
        for claim in map(claims.claim, session.items):
            if claim.name not in reached:
                run.journal.note(claim, "not run", "it was interrupted by Control-C", 0.0, {}, "", "")
        session.exitstatus = run.journal.status(session.exitstatus)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    run = config.stash.get(RUN, None)
    if run and run.journal:
        terminalreporter.write_line("")
        terminalreporter.write_line(run.journal.write(run.path, (time.monotonic() - run.begin) / 60))


@pytest.fixture
def evidence(record_property: Callable[[str, object], None]) -> Callable[[str, object], None]:
    """``evidence(name, value)`` puts what was read off beside the claim: a number, words, a list, a dictionary."""
    return lambda name, value: record_property("evidence", (name, claims.plain(value)))


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A test works in a folder of its own, and its random numbers are the same each time."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def shaders() -> None:
    """Metal's text can be compiled: by Apple's compiler, or by the one that the simulation needs."""
    if not claims.ON_A_MAC:
        from metalsim import shader  # which imports torch

        try:
            shader.compiler.find_compiler()
        except shader.NoCompiler as error:
            pytest.skip(str(error))
