"""The container for editors and Codespaces, as far as it can be looked at without a host."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib

import pytest
from test_documents import TARGETS

from metallab import paths
from metallab.authoring import contents, workshop

PATH = paths.ROOT / ".devcontainer" / "devcontainer.json"
TEXT = re.sub(r"^\s*//.*$", "", PATH.read_text(encoding="utf-8"), flags=re.MULTILINE)
"""Comments are allowed in this file, and in no other JSON."""
TOLD = json.loads(TEXT)
COMMANDS = [each.strip() for each in TOLD["onCreateCommand"].split("&&")]


def test_it_has_nothing_but_what_containers_dev_defines():
    known = {"name", "image", "hostRequirements", "onCreateCommand", "customizations"}
    assert TOLD.keys() == known


@pytest.mark.parametrize("what", ["memory", "storage"])
def test_what_it_asks_of_the_host_has_a_unit(what):
    assert re.fullmatch(r"\d+[tgmk]b", TOLD["hostRequirements"][what])


def test_its_python_is_one_that_set_up_takes():
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = re.search(r"python:(3\.\d+)-", TOLD["image"])[1]
    assert version in ("3.11", "3.12"), "where TensorFlow 2.16 stops"
    assert project["requires-python"].startswith(">=3.11")


def begins(program):
    """The commands that begin with a program, without it."""
    words = [command.split() for command in COMMANDS]
    return [rest for first, *rest in words if first == program]


def test_each_command_is_one_of_make_or_of_python():
    assert len(begins("make")) + len(begins(".venv/bin/python")) == len(COMMANDS)


@pytest.mark.parametrize("targets", begins("make"), ids=" ".join)
def test_each_target_that_it_makes_is_there(targets):
    assert set(targets) <= TARGETS


@pytest.mark.parametrize("words", begins(".venv/bin/python"), ids=" ".join)
def test_each_module_that_it_runs_is_there(words):
    option, module, *_ = words

    assert option == "-m"
    assert importlib.util.find_spec(module) is not None


def test_it_opens_the_page_of_contents_which_its_last_command_writes():
    (opened,) = TOLD["customizations"]["codespaces"]["openFiles"]
    assert COMMANDS[-1].endswith("metallab.authoring.workshop")
    assert paths.ROOT / opened == workshop.WORKSHOP / contents.FILE
