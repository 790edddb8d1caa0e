"""Each script in tools/benchmarks starts and ends as it says, at its smallest size."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from metallab import paths

FOLDER = paths.ROOT / "tools" / "benchmarks"
SMALLEST = {  # by script: its arguments, its exit codes (1: a busy machine was too slow), and what it prints
    "doctor_models": (["double", "--minutes", "0.05"], {0, 1}, "1 models"),
    "planted_drift": (["--count", "1", "--same", "1"], {0}, "nothing planted: "),
    "planted_regressions": (
        ["loop", "--count", "1", "--seconds", "0"],
        {0},
        "loop, 10% planted: found ",
    ),
    "predicted_times": (
        ["--device", "cpu", "--side", "256", "--seconds", "0.01"],
        {0, 1},
        "of 12 limits and ",
    ),
    "sound_models": (["test_resnet"], {0}, "0 of 2 accused"),
    "simulated_operators": (
        ["--only", "add,mode", "--samples", "1"],
        {0},
        "2 entries: 1 identical, 1 no Metal kernel",
    ),
}


def test_each_script_has_a_smallest_size():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(SMALLEST)


@pytest.mark.parametrize("name", SMALLEST)
def test_the_script_runs(name, tmp_path):
    """It ends with an exit code that its smallest size may have, without a traceback, and prints what it should."""
    arguments, codes, printed = SMALLEST[name]
    sources = str(paths.ROOT / "utils")
    environment = {**os.environ, "METALLAB_BUILD": str(tmp_path), "PYTHONPATH": sources}

    command = [sys.executable, FOLDER / f"{name}.py", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )

    assert done.returncode in codes, done.stdout + done.stderr
    assert printed in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
