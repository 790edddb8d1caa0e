"""Checks that run in a child process.

A process has one torch, with or without the simulated device, and pytest's is without. So a test file that wants the
device runs itself, ``python FILE SESSION OUT``, all checks of a session in one process; a test of the same name looks
at what came of each.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import filelock
import pytest

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = [str(ROOT / "tests" / "support"), str(ROOT / "tools" / "benchmarks")]
LIMIT = 1800  # seconds: the first child builds the device
PASSED = "passed"
shared: Path | None = None
"""The folder that the workers of one run of pytest have in common; ``conftest.py`` sets it."""

Check = Callable[[], None]


@dataclass
class Session:
    """The checks of one child. As a decorator it takes one more, which becomes a test of what came of it."""

    outcomes: Callable[[], Mapping[str, str]]
    """Runs the child, when it is first called."""
    checks: dict[str, Check] = field(default_factory=dict)

    def __call__(self, check: Check) -> Check:
        self.checks[check.__name__] = check

        def test() -> None:
            outcome = self.outcomes()[check.__name__]
            assert outcome == PASSED, outcome

        test.__doc__ = check.__doc__
        return test

    def cases(self, cases: Mapping[str, Any]) -> Callable[[Callable[[Any], None]], Callable]:
        """Return a decorator for a check of one argument, which becomes a test with a parameter: the id of a case.

        The child makes the check of every case. Each test looks at what came of its own; the first one that runs starts
        the child, by when all checks of the file are known.
        """

        def decorate(check: Callable[[Any], None]) -> Callable[[str], None]:
            for case_id, case in cases.items():
                self.checks[f"{check.__name__}[{case_id}]"] = functools.partial(check, case)

            @pytest.mark.parametrize("case_id", cases)
            def test(case_id: str) -> None:
                outcome = self.outcomes()[f"{check.__name__}[{case_id}]"]
                assert outcome == PASSED, outcome

            # no functools.wraps: pytest would look for a fixture of the name of the check's argument
            test.__doc__ = check.__doc__
            return test

        return decorate


def open_session(file: str, **variables: str) -> Session:
    """Return a session whose child has the simulated GPU, and these variables in its environment."""
    folders = [str(ROOT / "utils"), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, folders))
    environment = os.environ | {"PYTHONPATH": path, "METALLAB_DEVICE": "sim"} | variables

    def run_child() -> dict[str, str]:
        return run(file, "simulated", session.checks, environment)

    session = Session(functools.cache(run_child))
    return session


def run(
    file: str, session: str, names: Iterable[str], environment: Mapping[str, str], *more: str
) -> dict[str, str]:
    """Run a session of a test file in a child, and return what came of each check, by its name.

    That is `PASSED`, or why it failed. If the child ended badly, or hung, how it ended stands in place of what it had
    passed and of what it did not reach. Workers of one run of pytest share a session: the first that asks for it starts
    the child, and the others wait. ``more`` are further arguments of the child.
    """
    if shared is None:
        return _run_child(file, session, names, environment, *more)
    kept = shared / f"{Path(file).stem}-{session}.json"
    with filelock.FileLock(f"{kept}.lock"):
        if not kept.exists():
            kept.write_text(json.dumps(_run_child(file, session, names, environment, *more)))
        return json.loads(kept.read_text())


def _run_child(
    file: str, session: str, names: Iterable[str], environment: Mapping[str, str], *more: str
) -> dict[str, str]:
    """Run a session in a child of its own, and return what came of each check, as `run` does."""
    folders = [*SUPPORT, environment.get("PYTHONPATH", "")]
    environment = {**environment, "PYTHONPATH": os.pathsep.join(filter(None, folders))}

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, file, session, str(out), *more]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=LIMIT
            )
        except subprocess.TimeoutExpired as hung:
            ended, is_bad = f"the child did not end within {hung.timeout} s", True
        else:
            ended = f"the child ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
            is_bad = done.returncode != 0
        reached = json.loads(out.read_text()) if out.exists() else {}

    if is_bad:
        reached = {
            name: ended if outcome == PASSED else outcome for name, outcome in reached.items()
        }
    return {name: reached.get(name, ended) for name in names}


def answer(checks: Mapping[str, Callable[[], str | None]], out: Path) -> NoReturn:
    """In the child: run checks, write what came of each as it comes (what it returned, or that it passed), and end."""
    outcomes = {}
    for name, check in checks.items():
        try:
            outcomes[name] = check() or PASSED
        except BaseException:  # noqa: BLE001 - pytest's failures are no Exceptions; the parent tells them all
            outcomes[name] = traceback.format_exc()
        out.write_text(json.dumps(outcomes))
    sys.stdout.flush()
    # torch's own threads may be about to let go of Python objects: an ordinary exit races with them and may abort
    os._exit(0)
