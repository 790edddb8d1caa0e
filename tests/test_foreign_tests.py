"""The script that runs another project's tests on the simulated GPU, on a project of seven tests."""

from __future__ import annotations

import subprocess
import sys

import pytest

from metallab import paths

SCRIPT = paths.ROOT / "tests/benchmarks/foreign_tests.py"
CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--device")

def pytest_generate_tests(metafunc):
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", [metafunc.config.getoption("--device")])
"""
TESTS = """
import os, pytest

def test_good(device): assert os.environ["METALLAB_DEVICE"] == ("sim" if device == "mps" else "cpu")
def test_skipped(device): pytest.skip("not now")
def test_ends_the_process(device): device == "cpu" or os.kill(os.getpid(), 9)
def test_mixes(device): assert device == "cpu", "found at least two devices"
def test_bad(device): raise ValueError("nothing that anybody knows")
def test_strange(device): assert device == "cpu", "strange words"
def test_offline(): raise OSError("Connection refused")
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "tests" / "one").mkdir(parents=True)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "tests" / "one" / "test_it.py").write_text(TESTS)
    return tmp_path


def told(project, *more):
    command = [sys.executable, SCRIPT, project, "--limit", "0", "--results", project / "found.jsonl", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def test_every_failure_has_one_cause_and_a_test_that_ends_the_process_ends_nothing_else(project):
    code, printed = told(project)
    assert code == 1, "two are not known"
    assert "| tests/one | 1 | 5 | 1 |\n| all | 1 | 5 | 1 |\n" in printed
    rows = ["mixes devices, an error on any GPU", "fails on the CPU as well", "asks a server for weights or pictures"]
    assert all(f"| {row} | 1 |\n" in printed for row in rows)
    assert "| not known | 2 |\n" in printed
    assert "test_strange[mps]: " in printed
    assert "strange words" in printed.rpartition("test_strange[mps]: ")[2]
    stored = (project / "found.jsonl").read_text()
    told(project)
    assert (project / "found.jsonl").read_text() == stored, "what is known is run again"
