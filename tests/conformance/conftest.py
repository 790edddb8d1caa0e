"""A pytest plugin for claims: their device, time limits and outcomes. ``--journal FILE`` writes each result at once.

Without a Mac, this process gets the simulated Apple GPU before any test imports torch: these files have a run of
pytest to themselves. Under pytest-xdist a test that ends its process fails alone.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from conformance import claims
from metallab import checks, isolated, units

PATIENCE = 10.0
"""Without a journal times are of no interest, and the machine may be busy."""
MERCY = 30.0
"""Seconds after its time limit at which the process of a test ends that does not return to Python."""

if not claims.ON_A_MAC:
    from metallab import simulation

    os.environ["METALLAB_DEVICE"] = "sim"
    simulation.arm(required=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that ``make verify-mac`` gives to the pytest that collects claims and to those that run them."""
    add = parser.getgroup("claims about Macs").addoption
    add("--only", default="", metavar="WORDS", help="groups and tests, by name")
    add(
        "--alone",
        action="store_true",
        help="the tests that need variables of their own, which are set; else the others",
    )

    add(
        "--claims",
        type=Path,
        metavar="FILE",
        help="write what the collected tests claim, by node id, as JSON",
    )
    add("--journal", type=Path, metavar="FILE", help="add each result, as a line of JSON")
    add(
        "--until",
        type=float,
        metavar="SECONDS",
        help="begin no test after this time of time.monotonic()",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--journal", None) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Journal(config.getoption("--journal")), "journal of claims")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --alone, files none of whose tests wants variables are not imported."""
    alone = config.getoption("--alone", False) and not config.getoption("--claims", None)
    return (
        True
        if alone and collection_path.is_file() and "environment=" not in collection_path.read_text()
        else None
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that the options choose, give each its time limit, and skip those that cannot be asked here.

    ``--only`` chooses by name. Of those ``--alone`` keeps the tests that need variables of their own, and without it
    the others are kept; ``--claims`` keeps both, and writes what they claim into its file.
    """
    words = set(config.getoption("--only", "").replace(",", " ").split())
    # with --until one group is collected: a word for another group is no mistake then
    items[:] = claims.chosen(items, words, strict=config.getoption("--until", None) is None)
    if not config.getoption("--claims", None):
        alone = config.getoption("--alone", False)
        items[:] = [item for item in items if bool(claims.claim(item).environment) == alone]

    patient = PATIENCE if config.getoption("--journal", None) is None else 1.0
    for item in items:
        claim = claims.claim(item)
        limit = patient * claim.seconds
        item.add_marker(pytest.mark.timeout(limit, method="signal"))
        if claim.on == "mac" and not claims.ON_A_MAC:
            item.add_marker(pytest.mark.skip(reason="it needs a Mac"))
        elif claim.environment.items() - os.environ.items():  # one of its variables is not set so
            item.add_marker(pytest.mark.skip(reason=f"it needs {dict(claim.environment)}"))
        # -m is "not nightly" by pyproject.toml, and empty with NIGHTLY=1
        elif patient > 1 and claim.slow and config.getoption("-m"):
            item.add_marker(pytest.mark.skip(reason="make verify-mac and make test NIGHTLY=1 ask"))
    if path := config.getoption("--claims", None):
        path.write_text(json.dumps({item.nodeid: asdict(claims.claim(item)) for item in items}))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End the process if neither the test nor its time limit returns to Python."""
    if (mark := item.get_closest_marker("timeout")) is None:
        return (yield)
    faulthandler.dump_traceback_later(mark.args[0] + MERCY, exit=True, file=sys.__stderr__)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if (until := item.config.getoption("--until", None)) and time.monotonic() > until:
        item.user_properties.append(("outcome", "not run"))
        pytest.skip("the time was up")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    """Note in the report of a failure what it says of the claim, and the first line of the error.

    A claim is *refuted* if the test itself fails by an assertion, a mismatch or ``pytest.fail``. If the time limit
    ended the test it is *timed out*; anything else, and all that a fixture raises, is *raised*.
    """
    made = yield
    if made.failed:
        error = call.excinfo.value
        refuted = call.when == "call" and isinstance(
            error, AssertionError | checks.Mismatch | pytest.fail.Exception
        )
        late = "pytest-timeout" in str(error)  # which calls pytest.fail with words of its own
        made.user_properties.append(
            ("outcome", "timed out" if late else "refuted" if refuted else "raised")
        )
        made.user_properties.append(
            ("raised", units.first_line(error, kind=not isinstance(error, AssertionError)))
        )
    return made


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a journal a process of its own has more time, too."""
    if request.config.getoption("--journal", None) is not None:
        return

    run = isolated.run

    def run_with_patience(*given: Any, timeout: float = 120.0, **named: Any) -> Any:
        return run(*given, timeout=PATIENCE * timeout, **named)

    monkeypatch.setattr(isolated, "run", run_with_patience)


class Journal:
    """The results of this run, each on disk before the next test begins."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.began: dict[str, float] = {}
        self.reports: dict[str, list[pytest.TestReport]] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.began[nodeid] = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reports = self.reports.setdefault(report.nodeid, [])
        reports.append(report)
        if report.when not in ("setup", "call"):  # the last, or that of a process that has ended
            seconds = time.monotonic() - self.began.get(report.nodeid, time.monotonic())
            with self.path.open("a", encoding="utf-8") as file:
                file.write(
                    json.dumps({"nodeid": report.nodeid, **_result(reports, seconds)}) + "\n"
                )
                file.flush()
                os.fsync(file.fileno())


def _result(reports: list[pytest.TestReport], seconds: float) -> dict[str, Any]:
    """Return what the journal keeps of a test: outcome, message, seconds, values, printed and detail.

    The reports are those of its set-up, its call and its teardown, or what pytest-xdist makes up for a process that has
    ended. The first failure decides. The message is one line: what was recorded, why it was skipped, or what was
    raised; detail is the traceback.
    """
    properties = [pair for report in reports for pair in report.user_properties]
    values = dict(pair for name, pair in properties if name == "evidence")
    outcome, detail = "confirmed", ""
    texts = [f"{key}: {value}" for key, value in values.items() if len(str(value)) < 100]
    message = "; ".join(texts) or "as claimed"
    for report in reports:
        if report.skipped:
            # the time was up: `pytest_runtest_setup` has noted that it was not run
            outcome = dict(report.user_properties).get("outcome", "not applicable")
            message = report.longrepr[2].removeprefix("Skipped: ")
        elif report.failed:
            # noted by `pytest_runtest_makereport`, which is not called in a process that has ended
            found = dict(report.user_properties)
            outcome, message = (
                found.get("outcome", "crashed"),
                found.get("raised", "its process has ended"),
            )
            detail = report.longreprtext
            break
    printed = "".join(
        text for title, text in reports[-1].sections if title.startswith("Captured std")
    )

    return {"outcome": outcome, "message": message, "seconds": seconds, "values": values} | {
        "printed": printed,
        "detail": detail,
    }


@pytest.fixture
def evidence(record_property: Callable[[str, object], None]) -> Callable[[str, object], None]:
    """``evidence(name, value)`` puts what was read off beside the claim: a number, words, a list, a dictionary."""

    def record(name: str, value: object) -> None:
        plain = json.loads(json.dumps(value, default=str), parse_constant=str)
        record_property("evidence", (name, plain))

    return record


@pytest.fixture(autouse=True)
def own_folder(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A test works in a folder of its own, and its random numbers are the same each time."""
    claim = claims.claim(request.node)
    if not claims.ON_A_MAC and claim.on != "gpu":
        monkeypatch.setenv("METALLAB_DEVICE", "cpu")
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
