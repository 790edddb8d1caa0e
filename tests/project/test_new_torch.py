"""tools/new_torch.py lets the project follow a new PyTorch: what is sure is changed, all else is named."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from metallab import paths
from metalsim.device import TORCH

SPEC = importlib.util.spec_from_file_location("new_torch", paths.ROOT / "tools" / "new_torch.py")
new_torch = importlib.util.module_from_spec(SPEC)
sys.modules["new_torch"] = new_torch
SPEC.loader.exec_module(new_torch)

FILES = sorted({change.file for change in new_torch.CHANGES})
OLD = new_torch.find_pinned((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NEW = new_torch.Release("99.1.0", "98.2.3")
ASKED = [NEW.torch, "--torchvision", NEW.torchvision]
FOUND = f"# With {OLD.series} the count is 7.\n"


@pytest.fixture
def checkout(tmp_path):
    """Those files of this checkout that follow a release, and one with a finding, known to git."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(paths.ROOT / name, tmp_path / name)
    (tmp_path / "finding.py").write_text(FOUND)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


@pytest.fixture
def changed(checkout):
    assert new_torch.main(ASKED, checkout) == 0
    return checkout


def test_what_is_pinned_is_what_is_followed():
    assert OLD.torch == TORCH


def test_pins_follow(changed):
    project = (changed / "pyproject.toml").read_text()
    assert new_torch.find_pinned(project) == NEW
    assert f"- torch=={NEW.torch} " in (changed / "environment.yml").read_text()
    assert tomllib.loads(project)["project"]["name"]


def test_the_new_release_is_behind_those_that_were_tested(changed):
    text = (changed / "metalsim/src/metalsim/device.py").read_text()
    assert f'"{OLD.torch}", "{NEW.torch}")\n' in text


@pytest.mark.parametrize("file", [new_torch.GUIDE, new_torch.README])
def test_a_row_is_added_and_none_renamed(changed, file):
    before = (paths.ROOT / file).read_text(encoding="utf-8")
    rows = [line for line in before.splitlines() if line.startswith(f"| {OLD.torch} |")]

    lines = (changed / file).read_text().splitlines()

    place = lines.index(rows[0])
    assert lines[place + 1].startswith(f"| {NEW.torch} | {new_torch.TO_FILL_IN} ")


EXAMPLES = ("CONTRIBUTING.md", "tests/project/commands.toml", "tools/new_torch.py")
"""The files with commands that show this tool."""


def find_examples(root, file) -> set[new_torch.Release]:
    """Return the releases that the commands of a file name."""
    text = (root / file).read_text(encoding="utf-8")
    found = re.findall(r"new_torch\.py (\d\S+) --torchvision (\d[\d.]+)", text)
    return {new_torch.Release(*each) for each in found}


@pytest.mark.parametrize("file", EXAMPLES)
def test_commands_that_show_this_tool_name_a_newer_release(file):
    assert find_examples(paths.ROOT, file) == {new_torch.find_next(OLD)}


@pytest.mark.parametrize("file", EXAMPLES)
def test_commands_that_show_this_tool_name_the_release_after_the_new_one(changed, file):
    assert find_examples(changed, file) == {new_torch.Release("99.2.0", "98.3.0")}


def test_after_a_release_of_corrections_the_same_one_is_to_come(checkout):
    corrected = new_torch.Release(f"{OLD.series}.99", f"{OLD.torchvision}9")
    asked = [corrected.torch, "--torchvision", corrected.torchvision]

    assert new_torch.main(asked, checkout) == 0

    assert find_examples(checkout, EXAMPLES[0]) == {new_torch.find_next(OLD)}


def test_a_file_that_does_not_show_this_tool_any_more_is_named(checkout, capsys):
    (checkout / EXAMPLES[0]).write_text("Nothing.\n")

    assert new_torch.main(ASKED, checkout) == 2

    assert f"{EXAMPLES[0]}: no command shows" in capsys.readouterr().err


def test_a_pin_s_reason_is_named(checkout, capsys):
    reason = "    torch==1.2.3,  # the first one that waits\n"
    (found,) = new_torch.find_reasons({"a.toml": reason}, new_torch.Release("1.2.3", "0.1.0"))
    assert str(found).startswith("a.toml:1: ")

    assert new_torch.main(ASKED, checkout) == 0
    assert f'"torch=={NEW.torch}", ' in capsys.readouterr().out


def test_what_was_found_with_the_old_release_stays_and_is_named(changed, capsys):
    new_torch.show(new_torch.find_mentions(changed, OLD), OLD)
    assert (changed / "finding.py").read_text() == FOUND
    assert "finding.py:1: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "is_about_newest"),
    [
        (f"take {OLD.torch} if you have none", True),
        (f"PyTorch 2.11 to {OLD.series} run", True),
        (f"{OLD.series} has a kernel for it", False),
    ],
    ids=["three numbers", "the end of a range", "a finding"],
)
def test_lines_about_the_newest_release_come_first(line, is_about_newest):
    mention = new_torch.Mention("a.md", 1, line)
    assert new_torch.is_about_newest(mention, OLD) == is_about_newest


def test_the_list_that_the_release_joined_is_not_left_to_a_person(checkout, capsys):
    assert new_torch.main(ASKED, checkout) == 0
    assert "TESTED_TORCH = (" not in capsys.readouterr().out


def test_a_dry_run_prints_the_same_and_changes_nothing(checkout, capsys):
    assert new_torch.main([*ASKED, "--dry-run"], checkout) == 0

    texts = [(checkout / name).read_text() for name in FILES]
    assert texts == [(paths.ROOT / name).read_text(encoding="utf-8") for name in FILES]
    assert f"pip install torch=={OLD.torch}" not in capsys.readouterr().out


def test_where_git_cannot_look_nothing_is_changed(checkout, capsys):
    shutil.rmtree(checkout / ".git")

    assert new_torch.main(ASKED, checkout) == 2

    assert "git cannot look" in capsys.readouterr().err
    assert new_torch.find_pinned((checkout / "pyproject.toml").read_text()) == OLD


@pytest.mark.parametrize("version", [OLD.torch, "1.0.0"], ids=["the same", "an older one"])
def test_a_release_that_is_not_newer_changes_nothing(checkout, version):
    assert new_torch.main([version, "--torchvision", "98.2.3"], checkout) == 2
    assert new_torch.find_pinned((checkout / "pyproject.toml").read_text()) == OLD


def test_a_place_that_is_not_found_is_named_and_nothing_is_changed(checkout, capsys):
    (checkout / new_torch.README).write_text("No table.\n")

    assert new_torch.main(ASKED, checkout) == 2

    assert new_torch.README in capsys.readouterr().err
    assert new_torch.find_pinned((checkout / "pyproject.toml").read_text()) == OLD
