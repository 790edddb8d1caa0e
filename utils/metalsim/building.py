"""Building C++ once: a cache folder, a key of everything that the result depends on, one process at a time.

Nothing here imports torch.
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


def cache(*inside: str) -> Path:
    """Where built things are kept: METALSIM_CACHE, or ``build/metalsim`` of the checkout; or a folder inside it.

    Created if missing; SimulationError where that cannot be done.
    """
    folder = os.environ.get(CACHE_VARIABLE)
    base = Path(folder).absolute() if folder else Path(__file__).resolve().parents[2] / "build" / "metalsim"
    path = base.joinpath(*inside)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SimulationError(
            f"the simulated Apple GPU cannot keep its compiled parts in {path} ({error.strerror}); "
            f"set {CACHE_VARIABLE} to a folder that you can write to"
        ) from None
    return path


def compiler() -> tuple[str, str]:
    """Path and version of g++. SimulationError if there is none."""
    path = shutil.which("g++")
    if path is None:
        raise SimulationError(
            "the simulated Apple GPU is built with g++, which is not here: install it "
            "(Debian, Ubuntu: `apt-get install g++`; Fedora: `dnf install gcc-c++`) and try again, "
            "or run without METALLAB_DEVICE=sim"
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
    """The file ``file_name`` in the cache's folder ``folder_name``, built there if it is missing.

    ``build`` is given a folder of its own to write in. The folder takes its name when it is complete, and a lock,
    which the system frees if its owner dies, keeps other processes waiting meanwhile.

    A SimulationError of a slow ``build`` is remembered in a file beside the folder: for `REMEMBERED_SECONDS` it is
    raised again at once, and says what to delete to build again sooner.
    """
    folder = cache() / folder_name
    if (folder / file_name).exists():
        return folder / file_name
    with _locked(cache() / f"{folder_name}.lock"):
        if not (folder / file_name).exists():
            _build(folder, build, progress)
    return folder / file_name


def _build(folder: Path, build: Callable[[Path], None], progress: str) -> None:
    failure = folder.with_name(f"{folder.name}.failed")
    _raise_remembered(failure)
    for abandoned in folder.parent.glob(f"{folder.name}.*/"):  # by builds that were killed: the lock is ours
        shutil.rmtree(abandoned, ignore_errors=True)
    scratch, start = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent)), time.monotonic()
    try:
        with _telling(progress):
            build(scratch)
        shutil.rmtree(folder, ignore_errors=True)
        scratch.chmod(0o755)  # so that who shares this checkout need not build again
        scratch.rename(folder)
    except SimulationError as error:
        if time.monotonic() - start >= SLOW_SECONDS:
            with contextlib.suppress(OSError):  # on a full disk, say: the error itself is what matters
                failure.write_text(str(error), encoding="utf-8")
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _raise_remembered(failure: Path) -> None:
    """SimulationError if the build failed a short while ago; an older memory of that is removed."""
    if not failure.exists():
        return
    said, age = failure.read_text(encoding="utf-8").rstrip(), time.time() - failure.stat().st_mtime
    if said and 0 <= age < REMEMBERED_SECONDS:
        raise SimulationError(
            f"{said}\nThis build failed {age:.0f} s ago and is tried again {REMEMBERED_SECONDS:.0f} s after that. If "
            f"you have mended the cause, delete {failure} and try again at once"
        )
    failure.unlink()


def _version(path: str) -> str:
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
    return done.stdout.partition("\n")[0]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
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
