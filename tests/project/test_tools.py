"""Each program in tools/ says how it is called, and what it does not know."""

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

MISNAMED = {
    "tools/expected_on_macs.py": ["--only", "add,ad"],
    "tools/benchmarks/simulated_operators.py": ["--only", "add,ad"],
    "tools/benchmarks/sound_models.py": ["test_resnet", "test_resnat"],
    "tools/benchmarks/doctor_models.py": ["double", "doubel"],
    "tools/benchmarks/planted_regressions.py": ["loop", "lop"],
}
"""Programs that take names, each with one that is there and one that is not."""

ASK_ALL = """
import contextlib, io, json, runpy, sys
import metalsim
metalsim.install_with_torch()

answers = []
for call in json.loads(sys.argv[1]):
    sys.argv = call
    code, written, told = None, io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(written), contextlib.redirect_stderr(told):
            runpy.run_path(call[0], run_name="__main__")
    except SystemExit as ended:
        code = ended.code
    answers.append((code, written.getvalue(), told.getvalue()))
print(json.dumps(answers))
"""
"""In one process, because several import PyTorch and its database of operators, which takes seconds."""


@pytest.fixture(scope="module")
def answers():
    """What each program answered with --help, or with a wrong name: its exit code, what it printed, its errors."""
    calls = [(name, "--help") for name in PROGRAMS]
    calls += [(name, *arguments) for name, arguments in MISNAMED.items()]
    done = subprocess.run(
        [sys.executable, "-c", ASK_ALL, json.dumps(calls)],
        capture_output=True,
        text=True,
        cwd=paths.ROOT,
        env={**os.environ, "COLUMNS": "200"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(calls, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_says_how_it_is_called(answers, name):
    code, printed, _ = answers[name, "--help"]
    assert code == 0
    assert printed.startswith(f"usage: python {name} ")


@pytest.mark.parametrize("name", MISNAMED)
def test_a_name_that_is_none_is_told_before_anything_is_done(answers, name):
    """What compares nothing looks as if all agreed."""
    *_, wrong = MISNAMED[name]
    code, printed, told = answers[name, *MISNAMED[name]]

    assert code == 2
    assert printed == ""
    assert wrong.split(",")[-1] in told.splitlines()[-1]
