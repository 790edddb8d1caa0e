"""The command that tests with other versions of PyTorch says what it tested, and what it could not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from metallab import paths
from metalsim.device import OLDEST_TORCH, TESTED_TORCH

SPEC = importlib.util.spec_from_file_location(
    "other_torch", paths.ROOT / "tools" / "other_torch.py"
)
other_torch = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(other_torch)


@pytest.fixture
def installed(monkeypatch, tmp_path) -> list[str]:
    """The versions that environments are made for, each of them an empty folder."""
    made = []

    def environment(torch: str, python: str) -> Path:
        made.append(torch)
        folder = tmp_path / torch
        folder.mkdir()
        return folder

    monkeypatch.setattr(other_torch, "environment", environment)
    return made


@pytest.mark.parametrize(
    ("named", "versions"),
    [("oldest", [OLDEST_TORCH]), ("all", list(TESTED_TORCH)), ("2.12.1", ["2.12.1"])],
)
def test_versions_have_names(named, versions, installed, capsys):
    assert other_torch.main([named, "--install"]) == 0
    assert installed == versions
    told = capsys.readouterr().out.splitlines()[-len(versions) :]
    assert told == [f"PyTorch {version}: installed" for version in versions]


def test_a_failure_with_one_version_fails_the_command(installed, monkeypatch, tmp_path, capsys):
    """Of several environments none stays."""
    passed = {"2.11.0": True, "2.12.0": False}
    monkeypatch.setattr(other_torch, "test", lambda folder, given: passed[folder.name])
    assert other_torch.main([*passed]) == 1
    assert "PyTorch 2.11.0: passed\nPyTorch 2.12.0: FAILED" in capsys.readouterr().out
    assert not any(tmp_path.iterdir())


def test_a_single_environment_stays(installed, monkeypatch, tmp_path):
    monkeypatch.setattr(other_torch, "test", lambda folder, given: True)
    assert other_torch.main(["2.13.0"]) == 0
    assert [folder.name for folder in tmp_path.iterdir()] == ["2.13.0"]


def test_what_could_not_be_installed_was_not_tested(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(other_torch.paths, "ROOT", tmp_path)
    monkeypatch.setattr(other_torch, "ROOM", 2**62)
    assert other_torch.main(["2.13.0"]) == other_torch.NOT_INSTALLED
    assert "PyTorch 2.13.0: not tested: it may take" in capsys.readouterr().out
