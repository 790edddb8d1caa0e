"""Run the core of the simulated GPU's tests with other versions of PyTorch, each in an environment of its own.

``python tools/other_torch.py 2.13.0``, or ``oldest``, or ``all``

An environment lies in ``build/torch``, one for each version of PyTorch and of Python; uv makes it. PyTorch's build
for Linux brings CUDA, which is not used: 3 to 5 GB are downloaded. A single environment stays for the next time; of
several each is deleted after its tests, so that the disk need not hold them all.
"""

from __future__ import annotations

import argparse
import enum
import shutil
import subprocess
import sys
from pathlib import Path

from metallab import paths
from metalsim.device import TESTED_TORCH

ROOM = 12 * 2**30
"""Bytes that an environment takes with what uv keeps of it, where nothing of it is there yet."""

NOT_INSTALLED = 3
"""The exit status where an environment cannot be made on this machine, so that nothing was tested."""

CORE = "metalsim/tests"
METALLAB = "utils"
SOURCES = ("metalsim/src", "metalsim/objc/src", METALLAB)
"""On Python's path; metallab on 3.11 and newer alone. Tests that use it skip where it is not there."""
WANTED = (
    *("torchvision", "numpy", "pyyaml", "ninja", "setuptools", "ziglang"),
    *("pytest", "pytest-xdist", "hypothesis", "expecttest", "packaging", "safetensors"),
    *("msgspec", "psutil", "pyperf", "ipython"),  # of metallab
)
"""What the tests use beside PyTorch; torchvision in the version that goes with it."""


class NotInstalled(Exception):
    """An environment cannot be made here."""


def environment(torch: str, python: str) -> Path:
    """Return the folder of an environment with a version of PyTorch, which is made if it is not there.

    NotInstalled if there is no room for it, or if uv cannot bring what it takes.
    """
    folder = paths.ROOT / "build" / "torch" / f"{torch}-python{python}"
    complete = folder / "complete"
    if not complete.exists():
        _fill(folder, torch, python)
        complete.touch()

    # each time: an older checkout had other folders
    (packages,) = folder.glob("lib/python*/site-packages")
    sources = [source for source in SOURCES if python != "3.10" or source != METALLAB]
    lines = [f"{paths.ROOT / source}\n" for source in sources]
    (packages / "checkout.pth").write_text("".join(lines))
    return folder


def _fill(folder: Path, torch: str, python: str) -> None:
    """Make an environment in a folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder.parent).free
    if free < ROOM:
        raise NotInstalled(f"it may take {ROOM / 2**30:.0f} GiB, and {free / 2**30:.0f} are free")

    uv = [sys.executable, "-m", "uv"]
    interpreter = folder / "bin" / "python"
    run_uv([*uv, "venv", "--clear", "--no-project", "--python", python, folder])
    run_uv([*uv, "pip", "install", "--python", interpreter, f"torch=={torch}", *WANTED])


def run_uv(command: list[str | Path]) -> None:
    """Run a command of uv; NotInstalled, with its last line, if it fails."""
    done = subprocess.run([*map(str, command), "--quiet"], stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["uv failed without a word"]
        raise NotInstalled(lines[-1].strip())


def test(folder: Path, arguments: list[str]) -> bool:
    """Run the core of the tests in an environment; True if all passed."""
    command = [folder / "bin" / "python", "-m", "pytest", CORE, *arguments]
    done = subprocess.run([*map(str, command)], cwd=paths.ROOT)
    return done.returncode == 0


def choose_versions(names: list[str]) -> list[str]:
    """Return versions by their names, ``oldest`` and ``all`` among them."""
    named = {"oldest": TESTED_TORCH[:1], "all": TESTED_TORCH}
    return [version for name in names for version in named.get(name, (name,))]


class Ended(enum.Enum):
    """What became of a version of PyTorch."""

    INSTALLED = "installed"
    PASSED = "passed"
    FAILED = "FAILED"
    NOT_TESTED = "not tested"


def read_arguments(given: list[str] | None) -> argparse.Namespace:
    """Return what the command asks for, as text.

    Other versions than the known ones are for uv to find or refuse, and ``--jobs`` goes to pytest as it is.
    """
    parser = argparse.ArgumentParser(
        prog="python tools/other_torch.py", description=__doc__.partition("\n")[0]
    )

    known = f"a version, oldest or all; known are {', '.join(TESTED_TORCH)}"
    parser.add_argument("torch", nargs="+", help=known)
    parser.add_argument(
        "--python",
        default="{}.{}".format(*sys.version_info),
        help="version of Python (default: %(default)s)",
    )
    parser.add_argument(
        "--install", action="store_true", help="make the environments, test nothing"
    )
    parser.add_argument("--jobs", default="2", help="tests at a time (default: %(default)s)")

    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    """Return 0 if all tests passed, 1 if one did not, `NOT_INSTALLED` if there is no environment to test in."""
    wish = read_arguments(given)
    versions = choose_versions(wish.torch)

    ended: dict[str, Ended] = {}
    lines: dict[str, str] = {}
    for torch in versions:
        print(f"PyTorch {torch}, Python {wish.python}", flush=True)
        try:
            folder = environment(torch, wish.python)
        except NotInstalled as why:
            ended[torch] = Ended.NOT_TESTED
            lines[torch] = f"PyTorch {torch}: {Ended.NOT_TESTED.value}: {why}"
            continue

        ended[torch] = Ended.INSTALLED
        if not wish.install:
            passed = test(folder, ["-n", wish.jobs, "--dist", "worksteal"])
            ended[torch] = Ended.PASSED if passed else Ended.FAILED
            if len(versions) > 1:
                shutil.rmtree(folder)
        lines[torch] = f"PyTorch {torch}: {ended[torch].value}"

    print(*lines.values(), sep="\n")
    if Ended.FAILED in ended.values():
        return 1
    return NOT_INSTALLED if Ended.NOT_TESTED in ended.values() else 0


if __name__ == "__main__":
    sys.exit(main())
