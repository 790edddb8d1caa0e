"""What the end of a test session says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest
from metallab.headless import NotebookResult

@pytest.mark.parametrize("missing", [True, False])
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_page(device, missing, noted):
    gap = {"where": "cell 10 (Route 2)", "what": "this cell needs clang", "mend": "make packages"}
    noted(NotebookResult("04_kernel" if missing else "05_other", "", not_run=[gap] if missing else []))
"""


def ended(folder: Path, *arguments: str) -> list[str]:
    """The lines that pytest prints for `TESTS`, with this folder's conftest."""
    (folder / "test_pages.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "conftest",
        *arguments,
        str(folder),
    ]
    folders = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]  # of the session that runs this test
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment).stdout.splitlines()


def test_incomplete_pages_are_counted_at_the_end_with_their_reasons(tmp_path: Path) -> None:
    """Once for a page, however many tests ran it and whichever process did."""
    wanted = "04_kernel: not run: cell 10 (Route 2): this cell needs clang. To mend it: make packages"
    lines = ended(tmp_path, "-n", "2")
    assert lines.count(wanted) == 1
    assert "= 1 page incomplete =" in lines[lines.index(wanted) - 1]
    assert not any("05_other" in line for line in lines)
    assert not any("incomplete" in line for line in ended(tmp_path, "-k", "False"))
