"""What is built once and kept: whole with its checksums, or made again."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from metalsim import SimulationError, building

DAMAGES = {
    "cut short": lambda folder: os.truncate(folder / "thing.so", 5),
    "empty": lambda folder: os.truncate(folder / "thing.so", 0),
    "a byte changed": lambda folder: (folder / "thing.so").write_text("binarz"),
    "in a folder inside": lambda folder: (folder / "inside" / "more.json").write_text("{"),
    "missing": lambda folder: (folder / "thing.so").unlink(),
    "not finished": lambda folder: (folder / building.SUMS).unlink(),
    "its checksums cut short": lambda folder: os.truncate(folder / building.SUMS, 90),
    "its checksums empty": lambda folder: os.truncate(folder / building.SUMS, 0),
    "its checksums no text": lambda folder: (folder / building.SUMS).write_bytes(b"\xff\xfe"),
    "its checksums something else": lambda folder: (folder / building.SUMS).write_text("[1]"),
    "a file where a folder should be": lambda folder: (shutil.rmtree(folder), folder.write_text("")),
}


def make(folder: Path) -> None:
    (folder / "inside").mkdir()
    (folder / "thing.so").write_text("binary")
    (folder / "inside" / "more.json").write_text("{}")


def whole(folder: Path) -> bool:
    return (folder / "thing.so").read_text() == "binary" and (folder / "inside/more.json").read_text() == "{}"


def test_what_is_damaged_is_made_again_with_one_line(tmp_path, capsys):
    folder = tmp_path / "thing-1"
    assert building.kept(folder, make) == folder
    for what, damage in DAMAGES.items():
        damage(folder)
        assert building.kept(folder, make) == folder
        assert whole(folder), what
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"{folder} is damaged (")
        assert line.endswith("): it is made again"), what
        building.kept(folder, lambda folder: pytest.fail("made although it was whole"))
        assert capsys.readouterr().err == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == [".damaged.lock", "thing-1"], "left something"


def test_what_is_built_by_one_process_is_healed_too(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("METALSIM_CACHE", str(tmp_path))
    file = building.built_once("thing-1", "thing.so", make)
    os.truncate(file, 3)
    assert building.built_once("thing-1", "thing.so", make).read_text() == "binary"
    assert "is damaged (thing.so is not as it was written)" in capsys.readouterr().err


def test_a_full_disk_leaves_nothing_half_made(tmp_path, monkeypatch):
    """Wherever it is met: while it is made, when its checksums are written, when it takes its name."""
    folder = tmp_path / "thing-1"

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def half(fresh: Path) -> None:
        (fresh / "thing.so").write_text("bin")
        full()

    for where, name, failing, made in (
        (Path, "rename", full, make), (building.os, "replace", full, make), (building.os, "getpid", os.getpid, half)
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(where, name, failing)
            with pytest.raises(SimulationError, match=r"cannot be kept in .*thing-1 \(No space left.*make room there"):
                building.kept(folder, made)
        assert list(tmp_path.iterdir()) == [], name
    assert whole(building.kept(folder, make)), "the next one recovers"


def test_a_folder_of_another_tool_is_emptied_where_it_is_damaged(tmp_path, capsys):
    """Of files that nobody loads, such as the tool's notes, nothing is asked."""
    folder = tmp_path / "made" / "thing-1"
    contents = []

    def build() -> None:
        with building.sealed(folder, "*.so"):
            contents.append(sorted(path.name for path in folder.iterdir()))
            (folder / "notes").write_text(str(len(contents)))
            (folder / "thing.so").write_text("binary")

    build()
    build()
    (folder / "notes").write_text("other")
    build()
    assert contents == [[], *[["notes", "sha256.json", "thing.so"]] * 2]
    assert capsys.readouterr().err == ""
    os.truncate(folder / "thing.so", 2)
    build()
    assert contents[-1] == []
    with pytest.raises(ZeroDivisionError), building.sealed(folder.with_name("thing-2"), "*.so"):
        raise ZeroDivisionError
    with building.sealed(folder.with_name("thing-2"), "*.so"):
        assert not any(folder.with_name("thing-2").iterdir())
    assert "thing-2 is damaged (it was not finished): it is made again" in capsys.readouterr().err


def test_what_the_tool_built_again_is_sealed_again(tmp_path, capsys):
    for text in ("one", "two", "two"):
        with building.sealed(tmp_path / "thing", "*.so"):
            (tmp_path / "thing" / "thing.so").write_text(text)
    assert capsys.readouterr().err == ""


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    """Without being refused anything: whoever runs the tests may be root."""
    (tmp_path / "file").write_text("")
    for act in (
        lambda: building.kept(tmp_path / "file" / "thing", make),
        lambda: building.sealed(tmp_path / "file" / "thing", "*").__enter__(),
    ):
        with pytest.raises(
            SimulationError, match=r"cannot be kept in .*file.* \((Not a directory|File exists)\)"
        ) as caught:
            act()
        assert "\n" not in str(caught.value)
    (tmp_path / "thing").write_text("damaged")

    def refused(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(SimulationError, match=r"thing \(Permission denied\).* see that you may write to it"):
        building.kept(tmp_path / "thing", make)


def test_a_damaged_library_does_not_end_the_process(tmp_path):
    """A shared library that was cut short would end the process that calls it with SIGBUS."""
    code = """
import os, sys
from metalsim import preload
path = preload._answer()
os.truncate(path, os.path.getsize(path) // 2)
preload.arm()
"""
    environment = {**os.environ, "METALSIM_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    assert "accelerator.so is not as it was written" in done.stderr
