"""The project stays small enough to be picked up: a change that needs more lines says what goes for them."""

from __future__ import annotations

import re
import subprocess

import pytest
from library_names import called_names

from metallab import paths

LIMITS = {
    "code": (("utils", "metalsim/src"), (".py",), 23_094),
    "tests": (("tests", "metalsim/tests"), (".py",), 25_695),
    "native": (("utils", "metalsim/src"), (".h", ".cpp", ".mm", ".metal"), 5_965),
}
"""Lines of files with these suffixes below these folders, at most. A limit is only lowered."""

NAMES_OF_THE_LIBRARY = 89
"""Functions, methods and classes of the library that the pages call, at most; the fewer, the less to look up."""


@pytest.mark.parametrize("part", LIMITS)
def test_lines_stay_below_the_limit(part):
    folders, suffixes, limit = LIMITS[part]
    listed = subprocess.run(["git", "ls-files", "--", *folders], cwd=paths.ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    files = [paths.ROOT / name for name in listed.stdout.splitlines() if name.endswith(suffixes)]
    assert 0 < sum(len(file.read_text("utf-8").splitlines()) for file in files if file.exists()) <= limit


def test_names_of_tests_have_at_most_60_characters():
    files = [file for folder in ("tests", "metalsim/tests") for file in (paths.ROOT / folder).rglob("test_*.py")]
    names = [name for file in files for name in re.findall(r"^ *def (test_\w+)", file.read_text("utf-8"), re.MULTILINE)]
    assert len(names) > 500
    assert [name for name in names if len(name) > 60] == []


def test_the_pages_call_few_names_of_the_library():
    names = called_names()
    assert {"measure", "compare", "exercise"} <= set(names)
    assert len(names) <= NAMES_OF_THE_LIBRARY, {name: on for name, on in names.items() if len(on) == 1}
