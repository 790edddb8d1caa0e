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


def cache() -> Path:
    """Where built things are kept: METALSIM_CACHE, or ``build/metalsim`` of the checkout. Created if missing."""
    folder = os.environ.get(CACHE_VARIABLE)
    path = Path(folder) if folder else Path(__file__).resolve().parents[2] / "build" / "metalsim"
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
    """
    folder = cache() / folder_name
    if (folder / file_name).exists():
        return folder / file_name
    with _locked(cache() / f"{folder_name}.lock"):
        if not (folder / file_name).exists():
            scratch = Path(tempfile.mkdtemp(prefix=f"{folder_name}.", dir=cache()))
            try:
                with _telling(progress):
                    build(scratch)
                shutil.rmtree(folder, ignore_errors=True)
                scratch.rename(folder)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return folder / file_name


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
