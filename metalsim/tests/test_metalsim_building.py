"""What is built once and kept: whole, or not there."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from metalsim import SimulationError, building, device, preload


def make(folder: Path) -> None:
    (folder / "thing.so").write_text("binary")


def test_what_is_there_is_not_made_again(tmp_path):
    folder = building.fill_once(tmp_path / "thing-1", make)
    assert (folder / "thing.so").read_text() == "binary"
    building.fill_once(folder, lambda folder: pytest.fail("made although it was there"))


def test_a_full_disk_leaves_nothing_half_made(tmp_path):
    def half(fresh: Path) -> None:
        (fresh / "thing.so").write_text("bin")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(SimulationError, match=r"thing-1 \(No space left.*make room there"):
        building.fill_once(tmp_path / "thing-1", half)
    assert list(tmp_path.iterdir()) == []
    building.fill_once(tmp_path / "thing-1", make)


def test_a_folder_whose_build_was_interrupted_is_emptied(tmp_path):
    """A build finds nothing at first, what the last one made if that ended well, and nothing if it failed."""
    contents = []

    def build(fails=False) -> None:
        with building.seal(tmp_path / "made" / "thing-1"):
            contents.append(sorted(path.name for path in (tmp_path / "made" / "thing-1").iterdir()))
            make(tmp_path / "made" / "thing-1")
            if fails:
                raise ZeroDivisionError

    build()
    with pytest.raises(ZeroDivisionError):
        build(fails=True)
    build()
    assert contents == [[], ["thing.so"], []]


WAYS_TO_BUILD = {
    "filled once": lambda folder: building.fill_once(folder, make),
    "sealed": lambda folder: building.seal(folder).__enter__(),
}


@pytest.mark.parametrize("build", WAYS_TO_BUILD.values(), ids=WAYS_TO_BUILD)
def test_a_cache_that_cannot_be_written_is_one_line(build, tmp_path):
    """Without being refused anything: whoever runs the tests may be root."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SimulationError, match=r"cannot be kept in .*file.*") as caught:
        build(tmp_path / "file" / "thing")
    assert "\n" not in str(caught.value)


EMPTY_MODULE = f"""#include <Python.h>
static PyModuleDef about = {{PyModuleDef_HEAD_INIT, "m"}};
PyMODINIT_FUNC PyInit_{device.MODULE}() {{ return PyModule_Create(&about); }}
"""


def test_the_device_is_built_in_a_folder_with_a_space(tmp_path):
    source = tmp_path / "a checkout" / "device.cpp"
    source.parent.mkdir()
    source.write_text(EMPTY_MODULE)

    command = [sys.executable, "-c", device._BUILD, str(source.parent), str(source)]
    environment = device._environment(building.compiler()[0])
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_compiler_that_does_not_start_is_named(monkeypatch, tmp_path):
    broken = tmp_path / "g++"
    broken.write_bytes(b"\x7fELF and no program")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SimulationError, match=r"g\+\+ does not start"):
        building.compiler()


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """The commands that a build runs; each succeeds, and nothing is compiled."""
    commands = []

    def succeed(command, **_options):
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setenv("METALSIM_CACHE", str(tmp_path))
    monkeypatch.setattr(building, "compiler", lambda: ("g++", "g++ 99"))
    monkeypatch.setattr(subprocess, "run", succeed)
    return commands


@pytest.mark.parametrize(
    ("build", "flags"),
    [
        pytest.param(preload._build_answer, "metalsim.preload._ANSWER_FLAGS", id="accelerator"),
        pytest.param(lambda: device._build("2.15"), "metalsim.device._FLAGS", id="device"),
    ],
)
def test_with_another_flag_it_is_built_anew(build, flags, commands, monkeypatch):
    first = build()

    monkeypatch.setattr(flags, ("-O3",))
    second = build()

    assert "-O3" in commands[-1]
    assert second != first


def test_by_another_program_the_device_is_built_anew(commands, monkeypatch):
    first = device._build("2.15")

    monkeypatch.setattr(device, "_BUILD", f"{device._BUILD}# changed")

    assert device._build("2.15") != first
