"""What lies in data/ is what its README says it is, and can be read."""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

import pytest

from metallab import paths, records
from metallab.results import findings

DATA = paths.ROOT / "data"
README = (DATA / "README.md").read_text(encoding="utf-8")
LISTED = dict(
    reversed(line.split("  "))
    for line in re.search(r"```\n(.*?)```", README, re.DOTALL)[1].splitlines()
)


def is_listed(path: Path) -> bool:
    """Return whether the list has to name a file: scripts that made it and executed pages are not on it."""
    is_script = path.suffix in (".py", ".pyc")
    is_executed = path.relative_to(DATA).parts[0] == "executed"  # tests/results/test_executed.py
    is_other = path.name == "README.md" or path.name.startswith(".")
    return path.is_file() and not (is_script or is_executed or is_other)


def test_every_file_is_listed_with_its_checksum():
    there = {
        str(path.relative_to(DATA)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in DATA.rglob("*")
        if is_listed(path)
    }
    assert there == LISTED


@pytest.mark.parametrize("name", sorted(LISTED))
def test_a_row_says_what_a_file_is(name):
    assert f"| `{name}` |" in README


RESULTS = sorted((DATA / "results").glob("*.json"))
of_each_file = pytest.mark.parametrize("path", RESULTS, ids=[path.stem for path in RESULTS])


@pytest.fixture(scope="module")
def load():
    """Read a file of results once, whoever asks."""
    return functools.cache(records.load)


@of_each_file
def test_reference_results_are_of_real_runs_in_full_mode(load, path):
    stored = load(path)
    assert {record.measurement.mode for record in stored} == {"full"}
    assert not any(record.measurement.simulated for record in stored)


@of_each_file
def test_reference_results_say_on_what_they_were_measured(load, path):
    assert all(record.machine.chip and record.machine.python for record in load(path))


@of_each_file
def test_a_file_of_results_is_named_after_the_device_that_was_measured(load, path):
    title = findings.column(load(path), path.name).title
    assert paths.results_file(title) == path.name


@of_each_file
def test_no_folder_of_a_machine_is_published_with_its_results(load, path):
    assert "/" not in "".join(str(record.machine.environment) for record in load(path))
