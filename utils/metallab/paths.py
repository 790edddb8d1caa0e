"""Where things are: the checkout, and what a run writes.

Every file that a run writes lies under ``build/`` of the checkout, in a folder of its own for each mode and device
(``build/full-mps``, ``build/fast-cpu``), so that a fast or a simulated result is never taken for another.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The checkout: there metallab is installed editable, so its own file tells. Installed from a wheel there is none."""

NOTEBOOKS = Path(os.environ.get("METALLAB_NOTEBOOKS") or ROOT / "notebooks")
"""``METALLAB_NOTEBOOKS`` names another folder where those of the checkout may not be read: a classroom."""
IN_CHECKOUT = (ROOT / "pyproject.toml").is_file()
BUILD = Path(os.environ.get("METALLAB_BUILD") or (ROOT / "build" if IN_CHECKOUT else Path.cwd() / "build" / "metallab"))
"""``METALLAB_BUILD`` names another folder for all that is written, where the checkout is not one's own: a classroom.

Without a checkout it is ``build/metallab`` in the folder where the program was started, with a ``.gitignore``."""
FAILED = BUILD / "failed"
REPORT = BUILD / "report"
CONSTRAINTS = ROOT / "constraints.txt"


def read_regular(path: Path, most: int = -1, *, follow: bool = False) -> bytes:
    """Read a regular file, at most ``most`` bytes of it.

    OSError for anything else: no pipe is waited for, and no link followed unless ``follow``.
    """
    more = os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | more)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read(most)


def run_folder(mode: str, device: str) -> Path:
    """The folder of one run, such as ``build/full-cpu``; ``METALLAB_OUT`` names another one."""
    return Path(os.environ.get("METALLAB_OUT") or BUILD / f"{mode}-{device}")


def make_output(folder: Path, option: str = "--out") -> None:
    """Make a folder for what a command's ``option`` writes. OSError, with what to do, if it takes no files."""
    try:
        if Path(os.path.abspath(folder)).is_relative_to(os.path.abspath(BUILD)):
            make_build()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(f"{folder} takes no files ({error.strerror}): name another folder with {option}") from error


def make_build() -> None:
    """Make `BUILD`. Where nobody chose it, it may lie in somebody's own project, whose git then ignores it."""
    BUILD.mkdir(parents=True, exist_ok=True)
    if not IN_CHECKOUT and not os.environ.get("METALLAB_BUILD"):
        (BUILD / ".gitignore").write_text("*\n", encoding="utf-8")


def results_file(device: str) -> str:
    """The name of the file with a machine's results, after the device that was measured: ``nvidia_h200.json``."""
    return re.sub(r"\W+", "_", device.lower()).strip("_") + ".json"


def shown(path: Path) -> str:
    """A path as it is shortest to read: relative if it lies below the current folder."""
    path = Path(os.path.normpath(path))
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader finds the old content or the new one; if that fails, the old one stays.

    Characters that UTF-8 does not have are escaped as in JSON.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    try:
        temporary.write_bytes(content if isinstance(content, bytes) else content.encode(errors="backslashreplace"))
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
