"""Each program in tools/ says how it is called."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from metallab import paths

PROGRAMS = {
    file.relative_to(paths.ROOT).as_posix(): file
    for file in sorted((paths.ROOT / "tools").rglob("*.py"))
    if "__main__" in file.read_text("utf-8")
}

ASK_ALL = """
import contextlib, io, json, runpy, sys
import metalsim
metalsim.install_with_torch()

answers = {}
for name in sys.argv[1:]:
    sys.argv = [name, "--help"]
    code, written = None, io.StringIO()
    try:
        with contextlib.redirect_stdout(written):
            runpy.run_path(name, run_name="__main__")
    except SystemExit as ended:
        code = ended.code
    answers[name] = code, written.getvalue()
print(json.dumps(answers))
"""
"""In one process, because several import PyTorch and its database of operators, which takes seconds."""


@pytest.fixture(scope="module")
def helped():
    """The exit code of each program with --help, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", ASK_ALL, *PROGRAMS],
        capture_output=True,
        text=True,
        cwd=paths.ROOT,
        env={**os.environ, "COLUMNS": "200"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_says_how_it_is_called(helped, name):
    code, printed = helped[name]
    assert code == 0
    assert printed.startswith(f"usage: python {name} ")
