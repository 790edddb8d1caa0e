"""The table of versions in docs/setup.md says what the locks hold, why, and what was the newest."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from datetime import date
from itertools import chain
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from metallab import paths

SPEC = importlib.util.spec_from_file_location("versions", paths.ROOT / "tools" / "versions.py")
versions = importlib.util.module_from_spec(SPEC)
sys.modules["versions"] = versions  # where dataclasses look their annotations up
SPEC.loader.exec_module(versions)

ROWS = versions.current_rows()
NEWEST = versions.load_newest()
ANEW = "run .venv/bin/python tools/versions.py"

PROJECT = """
[project]
dependencies = [
    "pyperf",      # the file's format
]
[project.optional-dependencies]
lab = [
    "jax==0.4.34",  # the last that fits
    "numpy==1.26.4",  # all that a takes
]
more = ["numpy<2.4"]  # with 2.4 b fails (keras#1)
[dependency-groups]
jax = [
    "jax==0.11.* ; python_version >= '3.12'",  # new
    "jax==0.10.* ; python_version < '3.12'",   # old
    "pyperf", "numpy>=2",  # what measures
]
coreai = ["torchao"]
"""
LOCKS = {
    "lock.txt": "jax==0.4.34 \\\nnumpy==1.26.4 \\\npyperf==2.11.0 \\\n",
    "lock-jax.txt": "jax==0.10.2 ; x \\\njax==0.11.2 ; y \\\nnumpy==2.4.6 \\\npyperf==2.11.0 \\\n",
    "lock-coreai.txt": "torchao==0.18.0 \\\n",
}


@pytest.fixture
def checkout(monkeypatch, tmp_path):
    """A checkout with a page, a project and locks of its own, and a registry that has 9.9 of everything.

    It was never asked: there is no file with the newest versions.
    """
    (tmp_path / "setup.md").write_text(
        f"Before\n\n{versions.BEGIN}\n\nold\n\n{versions.END}\n\nAfter\n"
    )
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    for name, text in LOCKS.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(versions, "paths", SimpleNamespace(ROOT=tmp_path))
    monkeypatch.setattr(versions, "PAGE", tmp_path / "setup.md")
    monkeypatch.setattr(versions, "PROJECT", tmp_path / "pyproject.toml")
    monkeypatch.setattr(versions, "NEWEST", tmp_path / "newest.json")
    monkeypatch.setattr(versions, "ask", lambda packages: dict.fromkeys(packages, "9.9"))
    return tmp_path


def test_a_lock_without_what_is_pinned_is_named_with_what_to_do(checkout, capsys):
    (checkout / "lock.txt").write_text("pyperf==2.11.0 \\\n")

    assert versions.main(["--offline"]) == 2

    assert "no lock has jax==0.4.34: run make lock" in capsys.readouterr().err


# ---------------------------------------------------------------- of this checkout


def test_the_table_is_what_the_locks_and_the_reasons_make():
    page = versions.PAGE.read_text(encoding="utf-8")

    assert versions.replace_table(page, versions.table(ROWS, NEWEST)) == page, f"{ANEW} --offline"


def test_every_exact_pin_has_a_row():
    """Of all dependencies in pyproject.toml, those with ``==``, read without the tool that makes the rows."""
    project = tomllib.loads(versions.PROJECT.read_text(encoding="utf-8"))
    listed = [
        *project["project"]["dependencies"],
        *chain(*project["project"]["optional-dependencies"].values()),
        *chain(*project["dependency-groups"].values()),
    ]
    exact = {
        canonicalize_name(requirement.name)
        for requirement in map(Requirement, listed)
        if "==" in str(requirement.specifier)
    }

    assert len(exact) > 20, "pyproject.toml is read otherwise than it is written"
    assert exact <= {row.package for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.package}-{row.version}")
def test_a_row_has_a_reason_and_was_asked_about_since_its_version_is_locked(row):
    newest = NEWEST[row.package]

    assert row.why, "the comment behind it in pyproject.toml"
    assert date.fromisoformat(newest.day) >= date(2026, 11, 29)
    assert max(map(Version, row.version.split(", "))) <= Version(newest.version), ANEW


def test_what_was_heard_names_no_registry():
    text = (paths.ROOT / "tools" / "newest.json").read_text(encoding="utf-8")

    assert set(json.loads(text)) == {row.package for row in ROWS}
    assert not re.search(r"[/@]", text)


# ---------------------------------------------------------------- the tool


def test_a_package_has_a_row_for_each_version_that_is_chosen_by_hand():
    """One without a limit has a row if the tool asks for it by name, in its first environment: pyperf and torchao."""
    made = [
        (row.package, row.environment, row.version, row.exact)
        for row in versions.rows(PROJECT, LOCKS)
    ]

    assert made == [
        ("pyperf", ".venv", "2.11.0", False),
        ("jax", ".venv", "0.4.34", True),
        ("numpy", ".venv", "1.26.4", True),
        ("jax", ".venv-jax", "0.11.2", True),
        ("jax", ".venv-jax", "0.10.2", True),
        ("torchao", ".venv-coreai", "0.18.0", False),
    ]


def test_several_pins_of_a_package_have_their_reasons_together():
    (why,) = {row.why for row in versions.rows(PROJECT, LOCKS) if row.package == "numpy"}

    assert why == "all that a takes; with 2.4 b fails (keras#1)"
    assert "[keras#1](https://github.com/keras-team/keras/issues/1)" in versions.link_issues(why)


@pytest.mark.parametrize(
    ("marker", "words"),
    [
        pytest.param("", (), id="everywhere"),
        pytest.param(" ; sys_platform == 'darwin'", ("Mac",), id="mac"),
        pytest.param(" ; python_version < '3.12'", ("Python before 3.12",), id="old-python"),
        pytest.param(
            " ; python_version >= '3.12' and sys_platform == 'darwin'",
            ("Mac", "Python from 3.12"),
            id="mac-and-new-python",
        ),
    ],
)
def test_a_row_says_where_its_version_is_installed(marker, words):
    assert versions.restrictions(Requirement(f"jax==1{marker}")) == words


def test_a_pin_that_the_lock_does_not_hold_is_named():
    with pytest.raises(ValueError, match=r"jax==0\.4\.34"):
        versions.rows(PROJECT, LOCKS | {"lock.txt": "jax==0.5.0 \\\npyperf==2.11.0 \\\n"})


def test_the_table_is_written_and_can_be_written_again_without_a_registry(checkout, monkeypatch):
    assert versions.main([]) == 0
    page = (checkout / "setup.md").read_text()
    assert page.startswith("Before\n")
    assert page.endswith("After\n")
    assert f"/jax/) | `.venv` | 0.4.34 | the last that fits | 9.9 | {date.today()} |" in page
    assert "2.11.0 (lock)" in page

    monkeypatch.delattr(versions, "ask")
    assert versions.main(["--offline"]) == 0
    assert (checkout / "setup.md").read_text() == page


def test_one_package_can_be_asked_about_alone(checkout, monkeypatch):
    versions.main([])
    monkeypatch.setattr(versions, "ask", lambda packages: dict.fromkeys(packages, "10.0"))

    assert versions.main(["jax"]) == 0
    found = {name: each.version for name, each in versions.load_newest().items()}
    assert found == dict.fromkeys(("pyperf", "numpy", "torchao"), "9.9") | {"jax": "10.0"}


@pytest.mark.parametrize("given", [["--offline"], ["unknown"]])
def test_what_cannot_be_written_changes_nothing(given, checkout):
    before = (checkout / "setup.md").read_text()

    assert versions.main(given) == 2
    assert (checkout / "setup.md").read_text() == before


def test_a_page_without_a_place_for_the_table_changes_nothing(checkout, capsys):
    (checkout / "setup.md").write_text("Before\n")

    assert versions.main([]) == 2
    assert versions.BEGIN in capsys.readouterr().err
    assert not versions.NEWEST.exists()


def test_a_registry_that_does_not_answer_changes_nothing(monkeypatch, tmp_path):
    failed = subprocess.CompletedProcess([], 2, stdout="", stderr="no route")
    monkeypatch.setattr(versions.subprocess, "run", lambda *_, **__: failed)
    monkeypatch.setattr(versions, "PAGE", tmp_path / "never written")

    with pytest.raises(versions.NotAnswered, match="no route"):
        versions.ask(["jax"])
    assert versions.main([]) == 2
    assert not versions.PAGE.exists()


def test_the_registry_is_asked_for_a_mac(monkeypatch):
    asked = []

    def run(command, **how):
        asked.append((command, how))
        return subprocess.CompletedProcess(command, 0, stdout="jax==0.12.0.1\nmlx==1\n", stderr="")

    monkeypatch.setattr(versions.subprocess, "run", run)
    assert versions.ask(["jax", "mlx"]) == {"jax": "0.12.0.1", "mlx": "1"}
    ((command, how),) = asked
    assert "--python-platform=aarch64-apple-darwin" in command
    assert how["input"].split() == ["jax", "mlx"]
