"""Build once: a cache folder, and a key of everything that the result depends on.

A folder in the cache takes its name when it is complete, so a folder that is there is whole. Delete the cache folder
to build everything again. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from metalsim.errors import SimulationError

SOURCES = Path(__file__).parent / "csrc"
CACHE_VARIABLE = "METALSIM_CACHE"


def cache(*inside: str) -> Path:
    """Make the cache if it is missing, and return it or a folder inside of it.

    It is METALSIM_CACHE, ``build/metalsim`` of the checkout, or ``~/.cache/metalsim``. SimulationError if it cannot be
    made.
    """
    path = _base().joinpath(*inside)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_keep(path, error) from None
    return path


def _base() -> Path:
    """Return where the cache is, be it there or not."""
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(folder).absolute()

    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "metalsim" / "pyproject.toml").is_file():
        return checkout / "build" / "metalsim"

    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "metalsim"


def compiler() -> tuple[str, str]:
    """Return path and version of g++. SimulationError if there is none, or one that does not start."""
    path = shutil.which("g++")
    if path is None:
        raise SimulationError(
            "the simulated Apple GPU is built with g++, which is not here: install it "
            "(Debian, Ubuntu: `apt-get install g++`; Fedora: `dnf install gcc-c++`) and try again"
        )
    return path, _version(path)


def key(*parts: str, files: Sequence[Path]) -> str:
    """Return a short name for a build from these files and parts.

    Parameters
    ----------
    parts
        What else the result depends on: the compiler with its version, each of its options, the version of a package
        whose headers it reads. Of a part that is left out a change is not noticed: the old build goes on being used.
    files
        Sources and headers. Their names and contents count, and not where they are.
    """
    digest = hashlib.sha256()

    for part in parts:
        digest.update(part.encode() + b"\0")
    for file in sorted(files):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")

    return digest.hexdigest()[:20]


def build_once(
    folder_name: str, file_name: str, build: Callable[[Path], None], progress: str | None = None
) -> Path:
    """Return a file in a folder of the cache, which ``build`` fills if it is missing; other processes wait.

    Parameters
    ----------
    folder_name, file_name
        The folder in the cache, named after all that it is built from (`key`), and the file in it.
    build
        Called with an empty folder, into which it writes the file.
    progress
        What to print on stderr meanwhile, if it takes long enough to be told.

    Raises
    ------
    SimulationError
        If the cache cannot be written, and what `build` raises.
    """
    folder = cache() / folder_name
    if folder.is_dir():
        return folder / file_name

    with lock(cache() / f"{folder_name}.lock"):
        is_there_by_now = folder.is_dir()  # another process had the lock before, and built it
        with _report(None if is_there_by_now else progress):
            # by killed builds: under the lock nobody else is building this one
            for abandoned in folder.parent.glob(f".{folder.name}-*/"):
                shutil.rmtree(abandoned, ignore_errors=True)
            fill_once(folder, build)
    return folder / file_name


def fill_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return the folder; if it is missing, ``make`` fills a new one that takes its name when it is complete.

    Of several processes the first one wins. SimulationError if the folder cannot be written: an OSError of ``make`` is
    taken for that as well. What else ``make`` raises is raised as it is. Nothing half made stays after either.
    """
    if folder.is_dir():
        return folder

    fresh = None
    try:
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        make(fresh)
        fresh.chmod(0o755)  # so that who shares this checkout need not build again
        fresh.rename(folder)
    except OSError as error:
        if not folder.is_dir():
            raise _cannot_keep(folder, error) from error
        # another process was first: its folder is as good
    finally:
        if fresh is not None:  # after the rename there is nothing of that name
            shutil.rmtree(fresh, ignore_errors=True)

    return folder


@contextlib.contextmanager
def seal(folder: Path) -> Iterator[None]:
    """Lock a folder of another tool for a block; it is emptied first if the last block did not end well."""
    mark = folder / ".complete"
    with lock(folder.with_name(f"{folder.name}.lock")):
        if not mark.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()

        mark.unlink(missing_ok=True)
        yield
        mark.touch()


def _cannot_keep(path: Path, error: OSError) -> SimulationError:
    """Return the error for a folder of the cache that cannot be made or written."""
    return SimulationError(
        f"what is built once cannot be kept in {path} ({error.strerror or error}): make room there and see that you "
        f"may write to it. {CACHE_VARIABLE} names another folder for the simulated Apple GPU"
    )


def _version(path: str) -> str:
    """Return the first line of what a compiler says of itself. SimulationError if it cannot be asked."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SimulationError(
            f"the simulated Apple GPU is built with g++, and {path} does not start ({error}): see that it is a program "
            "for this processor, and that you may execute it, or install it anew"
        ) from None
    return done.stdout.partition("\n")[0]


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is made. SimulationError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        raise _cannot_keep(path.parent, error) from error

    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _report(what: str | None) -> Iterator[None]:
    """Print a line on stderr before the block, and one with the seconds after it; nothing for None."""
    if what is None:
        yield
        return

    start = time.monotonic()
    print(what, file=sys.stderr, flush=True)
    yield
    print(f"{what} {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
