"""The files that a Mac would install: chosen from the lock as an installer chooses, and fetched.

uv tells where the files of each locked version are (a ``pylock.toml``, PEP 751); `packaging` chooses from them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

from packaging import tags
from packaging.pylock import Package, PackageSdist, PackageWheel, Pylock, PylockSelectError

MACOS = (15, 0)
PYTHONS = ("3.11.0", "3.11.15", "3.12.12")
"""The first 3.11 too: the lock has other versions for it."""


class Unreachable(RuntimeError):
    """The registry did not answer, or not as it should. The message says what to do."""


@dataclasses.dataclass(frozen=True)
class Locked:
    """Everything that a lock allows, on any system."""

    lock: Path
    packages: tuple[Package, ...]

    @classmethod
    def ask(cls, lock: Path) -> Locked:
        """Ask the registry, through uv, which files the locked versions have. `Unreachable` if it cannot be asked."""
        options = ["--no-deps", "--universal", "--python-version", "3.11", "--quiet", "--no-header"]
        done = subprocess.run(
            [sys.executable, "-m", "uv", "pip", "compile", *options, "--format", "pylock.toml", str(lock)],
            env={**os.environ, "MACOSX_DEPLOYMENT_TARGET": ".".join(map(str, MACOS))},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise Unreachable(f"uv could not look up {lock.name}: {done.stderr.strip()}")
        return cls(lock, tuple(Pylock.from_dict(tomllib.loads(done.stdout)).packages))

    def for_a_mac(self, python: str) -> tuple[dict[str, PackageWheel], list[str]]:
        """The wheel of each package on macOS 15 and Apple silicon, by its name; and the packages that have none."""
        minor = ".".join(python.split(".")[:2])
        environment = {
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "os_name": "posix",
            "sys_platform": "darwin",
            "platform_system": "Darwin",
            "platform_machine": "arm64",
            "python_version": minor,
            "python_full_version": python,
            "implementation_version": python,
        }
        chosen, without = {}, []
        for package in self.packages:
            one = Pylock(lock_version="1.0", created_by="uv", packages=[package])  # else the first failure ends it
            try:
                files = [file for _, file in one.select(environment=environment, tags=mac_tags(minor))]
            except PylockSelectError:  # no file at all
                files = [package.sdist]
            for file in files:  # one, or none if its marker names other systems
                if isinstance(file, PackageWheel):
                    chosen[package.name] = file
                else:
                    without.append(f"{package.name} {package.version}")
        return chosen, without

    def version(self, name: str) -> str:
        """The version of a package that has one on all systems; empty if it is not locked."""
        return next((str(package.version) for package in self.packages if package.name == name), "")


def locks(root: Path) -> list[Path]:
    """The project's lock, then that of the environment for a newer JAX: with hashes where there are such."""
    files = [*root.glob("lock*.txt")] or [*root.glob("constraints*.txt")]
    return sorted(files, key=lambda path: len(path.name))


def mac_tags(python: str) -> list[tags.Tag]:
    """What a Mac with Apple silicon and this Python (``"3.11"``) installs, the best first."""
    version = tuple(map(int, python.split(".")))
    platforms = list(tags.mac_platforms(MACOS, "arm64"))
    interpreter = f"cp{version[0]}{version[1]}"
    return [*tags.cpython_tags(version, platforms=platforms), *tags.compatible_tags(version, interpreter, platforms)]


def fetched(file: PackageWheel | PackageSdist, folder: Path) -> Path:
    """The file in a folder, downloaded unless it is there. `Unreachable` if that fails or it is not what was locked."""
    path = folder / file.filename
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            with urllib.request.urlopen(file.url, timeout=60) as answer, partial.open("wb") as out:
                shutil.copyfileobj(answer, out)
            with partial.open("rb") as done:
                if hashlib.file_digest(done, "sha256").hexdigest() != file.hashes["sha256"]:
                    raise Unreachable(f"{file.url} is not the file that the registry promises: try again later")
            partial.rename(path)
        except OSError as error:
            raise Unreachable(f"{file.url}: {error}; is the registry reachable?") from error
        finally:
            partial.unlink(missing_ok=True)
    return path


def members(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """The libraries in a wheel, each with its content."""
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            if info.filename.endswith((".so", ".dylib")):
                yield info.filename, archive.read(info)
