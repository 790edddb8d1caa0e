"""What lies in data/ is what its README says it is, and can be read."""

from __future__ import annotations

import hashlib
import re

import pytest

from metallab import paths, records
from metallab.results import findings

DATA = paths.ROOT / "data"
README = (DATA / "README.md").read_text(encoding="utf-8")
LISTED = dict(
    reversed(line.split("  "))
    for line in re.search(r"```\n(.*?)```", README, re.DOTALL)[1].splitlines()
)


def test_every_file_is_listed_with_its_checksum():
    there = {
        str(path.relative_to(DATA)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in DATA.rglob("*")
        if path.is_file() and path.name != "README.md" and not path.name.startswith(".")
        if path.suffix not in (".py", ".pyc")  # the scripts that made them
        if path.relative_to(DATA).parts[0]
        != "executed"  # of which tests/results/test_show.py takes care
    }
    assert there == LISTED
    for name in there:
        assert README.count(f"| `{name}` |") >= 1, f"{name} has no line that says what it is"


@pytest.mark.parametrize(
    "path", sorted((DATA / "results").glob("*.json")), ids=lambda path: path.stem
)
def test_reference_results_are_real_runs_with_provenance(path):
    stored = records.load(path)
    assert {record.measurement.mode for record in stored} == {"full"}
    assert not any(record.measurement.simulated for record in stored)
    assert all(record.machine.chip and record.machine.python for record in stored)
    title = findings.column(stored, path.name).title
    assert paths.results_file(title) == path.name, (
        "a file is named after the device that was measured"
    )
    assert "/" not in "".join(str(record.machine.environment) for record in stored)
