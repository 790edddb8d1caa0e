"""Building once: a cache folder, a key of everything that the result depends on, checksums of what is kept.

Whatever is built and loaded again later goes through `kept`, or `sealed` where another tool owns the folder: it takes
its name when it is complete, and with it lie the SHA-256 of its files (`SUMS`). They are compared each time it is used.
What a full disk or a power cut has cut short, or what was changed since, is built again, with one line that says so.

Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from metalsim.errors import SimulationError

SOURCES = Path(__file__).parent / "csrc"
CACHE_VARIABLE = "METALSIM_CACHE"
TICK_SECONDS = 0.5
SLOW_SECONDS = 10.0
"""A build that fails after so long is remembered; one that fails sooner costs little to try again."""
REMEMBERED_SECONDS = 600.0
"""How long it is remembered: its cause may be gone by then, too little memory or a full disk."""
SUMS = "sha256.json"
"""The file in a kept folder with the SHA-256 of the others, by name: a JSON object, so that a part of it is none."""


def cache(*inside: str) -> Path:
    """Where built things are kept: METALSIM_CACHE, or ``build/metalsim`` of the checkout; or a folder inside it.

    Without a checkout, where it was installed from a wheel, it is ``~/.cache/metalsim``, or in XDG_CACHE_HOME. Created
    if missing; SimulationError where that cannot be done.
    """
    path = _base().joinpath(*inside)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_keep(path, error) from None
    return path


def _base() -> Path:
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(folder).absolute()
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "metalsim" / "pyproject.toml").is_file():
        return checkout / "build" / "metalsim"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "metalsim"


def compiler() -> tuple[str, str]:
    """Path and version of g++. SimulationError if there is none."""
    path = shutil.which("g++")
    if path is None:
        raise SimulationError(
            "the simulated Apple GPU is built with g++, which is not here: install it "
            "(Debian, Ubuntu: `apt-get install g++`; Fedora: `dnf install gcc-c++`) and try again"
        )
    return path, _version(path)


def key(*parts: str, files: Sequence[Path]) -> str:
    """A short name for a build from these files and everything else that matters."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    for file in sorted(files):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:20]


def built_once(folder_name: str, file_name: str, build: Callable[[Path], None], progress: str = "") -> Path:
    """The file ``file_name`` in the cache's folder ``folder_name``, built there if it is missing or damaged.

    ``build`` is given a folder of its own to write in, as by `kept`. A lock, which the system frees if its owner dies,
    keeps other processes waiting meanwhile.

    A SimulationError of a slow ``build`` is remembered in a file beside the folder: for `REMEMBERED_SECONDS` it is
    raised again at once, and says what to delete to build again sooner.
    """
    folder = cache() / folder_name
    if damage(folder) is not None:
        with locked(cache() / f"{folder_name}.lock"):
            _build(folder, build, progress)
    return folder / file_name


def _build(folder: Path, build: Callable[[Path], None], progress: str) -> None:
    discard_damaged(folder)
    if folder.exists():  # another process was first
        return
    failure = folder.with_name(f"{folder.name}.failed")
    _raise_remembered(failure)
    for abandoned in folder.parent.glob(f".{folder.name}-*/"):  # by builds that were killed: the lock is ours
        shutil.rmtree(abandoned, ignore_errors=True)
    start = time.monotonic()
    try:
        with _telling(progress):
            kept(folder, build)
    except SimulationError as error:
        if time.monotonic() - start >= SLOW_SECONDS:
            with contextlib.suppress(OSError):  # on a full disk, say: the error itself is what matters
                failure.write_text(str(error), encoding="utf-8")
        raise


def kept(folder: Path, make: Callable[[Path], None]) -> Path:
    """The folder. Where it is missing or damaged, ``make`` fills a new one that then takes its place, with `SUMS`.

    Processes do not disturb each other: whose folder is complete first wins. SimulationError, with what to do, if it
    cannot be written.
    """
    discard_damaged(folder)
    if folder.exists():
        return folder
    fresh = None
    try:
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        make(fresh)
        seal(fresh)
        fresh.chmod(0o755)  # so that who shares this checkout need not build again
        fresh.rename(folder)
    except OSError as error:
        if damage(folder) is not None:
            raise _cannot_keep(folder, error) from error
        # another process was first: its folder is as good
    finally:
        if fresh is not None:
            shutil.rmtree(fresh, ignore_errors=True)
    return folder


@contextlib.contextmanager
def sealed(folder: Path, pattern: str) -> Iterator[None]:
    """A block that builds or loads files in a folder which another tool owns, one process at a time.

    The folder is made if it is missing, and emptied before the block if its files of the ``pattern`` are not as they
    were at the end of the block before, or if that block did not come to its end.
    """
    with locked(folder.with_name(f"{folder.name}.lock")):
        discard_damaged(folder)
        folder.mkdir(exist_ok=True)
        yield
        if damage(folder) is not None:
            seal(folder, pattern)


def seal(folder: Path, pattern: str = "*") -> None:
    """Write the checksums of a folder's files, whole or not at all."""
    files = [path for path in sorted(folder.rglob(pattern)) if path.is_file() and not path.name.startswith(SUMS)]
    part = folder / f"{SUMS}.part"
    part.write_text(json.dumps({path.relative_to(folder).as_posix(): _sum(path) for path in files}), encoding="utf-8")
    os.replace(part, folder / SUMS)


def damage(folder: Path) -> str | None:
    """What is wrong with a kept folder, in words; None if its files are as they were when they were sealed."""
    try:
        sums = dict(json.loads((folder / SUMS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return "it was not finished"
    for name, written in sums.items():
        try:
            if _sum(folder / name) != written:
                return f"{name} is not as it was written"
        except OSError as error:
            return f"{name}: {error.strerror}"
    return None


def discard_damaged(folder: Path) -> None:
    """Take a damaged folder, or a file in its place, out of the way, and say so in a line on stderr."""
    if not os.path.lexists(folder) or damage(folder) is None:
        return
    with locked(folder.parent / ".damaged.lock"):  # held for a moment only: nothing is built in here
        why = damage(folder)
        if not os.path.lexists(folder) or why is None:  # another process was first
            return
        try:
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".damaged-", ignore_cleanup_errors=True) as bin:
                folder.rename(Path(bin, folder.name))
        except OSError as error:
            raise _cannot_keep(folder, error) from error
    print(f"{folder} is damaged ({why}): it is made again", file=sys.stderr, flush=True)


def _sum(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _cannot_keep(path: Path, error: OSError) -> SimulationError:
    return SimulationError(
        f"what is built once cannot be kept in {path} ({error.strerror or error}): make room there and see that you "
        f"may write to it. {CACHE_VARIABLE} names another folder for the simulated Apple GPU"
    )


def _raise_remembered(failure: Path) -> None:
    """SimulationError if the build failed a short while ago; an older memory of that is removed."""
    if not failure.exists():
        return
    message = failure.read_text(encoding="utf-8", errors="replace").rstrip()
    age = time.time() - failure.stat().st_mtime
    if message and 0 <= age < REMEMBERED_SECONDS:
        raise SimulationError(
            f"{message}\nThis build failed {age:.0f} s ago and is tried again {REMEMBERED_SECONDS:.0f} s after that. "
            f"If you have mended the cause, delete {failure} and try again at once"
        )
    failure.unlink()


def _version(path: str) -> str:
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
    return done.stdout.partition("\n")[0]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock of a file, which is made, folders and all; SimulationError if it cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        raise _cannot_keep(path.parent, error) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _telling(what: str) -> Iterator[None]:
    """A line on stderr with the seconds that passed; one line at each end where stderr is not a terminal."""
    if not what:
        yield
        return
    live, done, start = sys.stderr.isatty(), threading.Event(), time.monotonic()

    def tell() -> None:
        while not done.wait(TICK_SECONDS):
            sys.stderr.write(f"\r{what} {time.monotonic() - start:.0f} s")
            sys.stderr.flush()

    sys.stderr.write(what + ("" if live else "\n"))
    sys.stderr.flush()
    teller = threading.Thread(target=tell, daemon=True)
    if live:
        teller.start()
    try:
        yield
    finally:
        done.set()
        if live:
            teller.join()
        sys.stderr.write(f"{chr(13) if live else ''}{what} {time.monotonic() - start:.0f} s\n")
        sys.stderr.flush()
