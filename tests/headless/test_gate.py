"""`make gate REF=<revision>` on a real clock: a library whose second revision does twice the work."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from metallab import paths

CASES = """
from metallab.versus import case

@case
def work():
    import theirs
    return theirs.work
"""


NOBODY = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]


def git(root: Path, *arguments: str) -> None:
    """Call git as nobody."""
    command = ["git", *NOBODY, "-c", "commit.gpgsign=false", *arguments]
    subprocess.run(command, cwd=root, check=True, capture_output=True)


def commit(root: Path, *, times: int) -> None:
    """Commit a library whose function does some 2 ms of work, so many times."""
    loop = f"    for _ in range({times}):\n        total = sum(i * i for i in range(20_000))\n"
    (root / "theirs.py").write_text(f"def work():\n{loop}    return total\n")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "a state")


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """A repository of two revisions: the second does twice the work."""
    root = tmp_path / "project"
    root.mkdir()
    git(root, "init", "--quiet")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    (root / "cases.py").write_text(CASES)
    commit(root, times=1)
    commit(root, times=2)
    return root


def find_command(revision: str) -> list[str]:
    """What `make gate` calls, without the Python that it calls it with."""
    asked = ["make", "-n", "gate", f"REF={revision}", "DEVICE=cpu"]
    done = subprocess.run(asked, cwd=paths.ROOT, check=True, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    line = next(line for line in lines if f" versus '{revision}' . " in line)
    return shlex.split(line)[1:]


@pytest.fixture
def gate(root, tmp_path):
    """A function that compares a revision with the working tree; it returns exit code and answer."""

    def gate(revision: str) -> tuple[int, str]:
        command = find_command(revision)
        # `make gate` names no file of cases, which comes after both sides
        place = command.index(".") + 1
        arguments = [*command[:place], "cases.py", *command[place:], "--out", str(tmp_path / "out")]
        done = subprocess.run(
            [sys.executable, *arguments], cwd=root, capture_output=True, text=True
        )
        print(done.stdout, done.stderr)
        (answer,) = json.loads((tmp_path / "out" / "answers.json").read_text())["cases"]
        return done.returncode, answer["answer"]

    return gate


@pytest.mark.parametrize(
    ("revision", "code", "answers"),
    [
        pytest.param("HEAD~1", 1, {"SLOWER"}, id="twice the work"),
        pytest.param(
            "HEAD", 0, {"SAME", "UNSURE", "FASTER"}, id="the same", marks=pytest.mark.nightly
        ),
    ],
)
def test_a_gate_finds_on_a_real_clock_what_is_slower(gate, revision, code, answers):
    """Three tries, as this clock is the machine's."""
    tries = (gate(revision) for _ in range(3))
    assert any(got == code and answer in answers for got, answer in tries)
