"""Where things are: the checkout, and what a run writes.

Every file that a run writes lies under `BUILD`, in a folder of its own for each mode and device (``build/full-mps``,
``build/fast-cpu``), so that a fast or a simulated result is never taken for another.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from metallab import mode

if TYPE_CHECKING:
    from metallab.device import Device

ROOT = Path(__file__).resolve().parents[2]
"""The checkout: there metallab is installed editable, so its own file tells. Installed from a wheel there is none."""

NOTEBOOKS = Path(os.environ.get("METALLAB_NOTEBOOKS") or ROOT / "notebooks")
"""``METALLAB_NOTEBOOKS`` names another folder where those of the checkout may not be read: a classroom."""

OWN_BUILD = Path("build", "metallab")
"""Where a program outside of the checkout writes, from the folder in which it was started."""


def choose_build() -> Path:
    """Return the folder for all that this process writes.

    What ``METALLAB_BUILD`` names counts: a classroom names a student's folder, and a process its own for those that
    it starts. Else it is ``build/`` of the checkout for a program that is started inside of it, as ``make`` starts
    all, and `OWN_BUILD` for any other: a notebook's kernel is started in the notebook's folder, and that metallab is
    installed from a checkout does not make somebody's own notebook a part of it.
    """
    if chosen := os.environ.get("METALLAB_BUILD"):
        return Path(os.path.abspath(chosen))

    has_checkout = (ROOT / "pyproject.toml").is_file()
    try:
        here = Path.cwd().resolve()  # as ROOT is: a link to the checkout leads into it
    except OSError:  # the folder was removed, which matters only to a program that writes
        return ROOT / "build" if has_checkout else OWN_BUILD

    if has_checkout and here.is_relative_to(ROOT):
        return ROOT / "build"
    return here / OWN_BUILD


BUILD = choose_build()
"""Decided once, when this module is imported: a notebook that changes its folder later goes on writing here."""
FAILED = BUILD / "failed"
REPORT = BUILD / "report"
CONSTRAINTS = ROOT / "constraints.txt"
PALETTE = Path(__file__).with_name("palette.css")
"""The colours of the pages of HTML; it says of which."""


def read_regular(path: Path, most: int = -1, *, follow: bool = False) -> bytes:
    """Read a regular file: no pipe is waited for.

    Parameters
    ----------
    path
        The file.
    most
        Bytes that are read, at most; -1 for all.
    follow
        Whether it may be a link to one.

    Raises
    ------
    OSError
        For anything else than a file.
    """
    more = os.O_NONBLOCK
    if not follow:
        more |= os.O_NOFOLLOW

    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | more)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read(most)


@contextlib.contextmanager
def open_inside(folder: Path, name: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Open a file or a folder that lies inside of a folder, and follow no link on the way to it.

    Whoever owns what lies inside could put a link in place of any part of the path, even between a look at it and its
    opening. So each part is opened from the one before it, and refused if it is a link.

    Parameters
    ----------
    folder
        Is trusted: links that lead to it are followed.
    name
        A path relative to the folder, without ``..``.
    flags
        Of `os.open`, for the last part.

    Yields
    ------
    int
        A file descriptor, which is closed in the end.

    Raises
    ------
    OSError
        If a part is missing, a link or, but for the last, no folder.
    ValueError
        If the name leads out of the folder.
    """
    parts = Path(name).parts
    if not parts or os.path.isabs(name) or os.pardir in parts:
        raise ValueError(f"{name!r} does not lie inside of a folder")

    careful = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.ExitStack() as opened:
        here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        opened.callback(os.close, here)

        for part in parts[:-1]:
            here = os.open(part, os.O_RDONLY | os.O_DIRECTORY | careful, dir_fd=here)
            opened.callback(os.close, here)

        last = os.open(parts[-1], flags | careful, dir_fd=here)
        opened.callback(os.close, last)
        yield last


def run_folder(of_mode: str, device: str) -> Path:
    """Return the folder of one run, such as ``build/full-cpu``; ``METALLAB_OUT`` names another one.

    Parameters
    ----------
    of_mode
        ``full`` or ``fast``.
    device
        ``mps``, ``cuda``, ``cpu`` or ``sim``.
    """
    return Path(os.environ.get("METALLAB_OUT") or BUILD / f"{of_mode}-{device}")


def page_folder(page: str = "", *, on: Device) -> Path:
    """Make the folder for files that a page or a program writes, and return it: ``build/<mode>-<device>/<page>``.

    Parameters
    ----------
    page
        Its name; nothing for the folder that all pages of this mode and device have in common.
    on
        The device, as `metallab.device.pick` returns it.
    """
    device = "sim" if on.simulated else on.kind
    folder = run_folder(mode.current(), device) / page
    make_folder(folder)
    return folder


def make_output(folder: Path, option: str = "--out") -> None:
    """Make a folder for what a command's ``option`` writes. OSError, with what to do, if it takes no files."""
    try:
        make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(
            f"{folder} takes no files ({error.strerror}): name another folder with {option}"
        ) from error


def make_folder(folder: Path) -> None:
    """Make a folder, and `BUILD` as `make_build` does if it lies there."""
    if Path(os.path.abspath(folder)).is_relative_to(os.path.abspath(BUILD)):
        make_build()
    folder.mkdir(parents=True, exist_ok=True)


def make_build() -> None:
    """Make `BUILD`. Where it is `OWN_BUILD` of somebody's own project, that project's git ignores it."""
    BUILD.mkdir(parents=True, exist_ok=True)
    ignore = BUILD / ".gitignore"
    if BUILD.parts[-2:] == OWN_BUILD.parts and not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")


def results_file(device: str) -> str:
    """Return the name of a machine's file of results, after the device that was measured: ``nvidia_h200.json``."""
    return re.sub(r"\W+", "_", device.lower()).strip("_") + ".json"


def shorten(path: Path) -> str:
    """Return a path as it is shortest to read: relative if it lies below the current folder."""
    path = Path(os.path.normpath(path))
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader finds the old content or the new one; if that fails, the old one stays.

    Characters that UTF-8 does not have are escaped as in JSON.
    """
    if isinstance(content, str):
        content = content.encode(errors="backslashreplace")
    make_folder(path.parent)

    temporary = path.with_name(f".{path.name}.part")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
