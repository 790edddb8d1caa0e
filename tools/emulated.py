"""The tests that depend on the processor, on another one: ``make test SUITE=cpu CPU=Haswell``.

    python tools/emulated.py Haswell [options of pytest]

qemu-user shows a program another processor, but not the programs that it starts. So ``python`` of this environment
is a script that starts qemu with Python: what ``sys.executable`` starts is emulated as well. Compilers run natively.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def make_environment(qemu: str, model: str, folder: Path) -> Path:
    """Make an environment like that of this Python, whose own Python is emulated; return that Python.

    qemu-user emulates no program that its program starts. So ``bin/python`` is a script that starts qemu with Python:
    it is `sys.executable` in there, and what tests start with that is emulated as well. The folder is emptied before.
    The packages are those of this environment, by links; ``bin`` has Python and ninja alone, which extensions are built
    with, natively.
    """
    own = Path(sys.executable).parents[1]

    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True)
    shutil.copy(own / "pyvenv.cfg", folder)
    for name in ("lib", "include", "bin/ninja"):
        (folder / name).symlink_to(own / name)

    python = folder / "bin" / "python"
    # check=off: no warning of each feature that the model has and qemu does not emulate
    start = shlex.join([qemu, "-cpu", f"{model},check=off"])
    own_python = shlex.quote(os.path.realpath(sys.executable))
    # At most 64 GiB (in KiB): qemu keeps a table of each reserved page, and the simulated GPU reserves 96 GiB where it
    # may. By the name behind -0, that of the script, Python finds this environment.
    python.write_text(f'#!/bin/sh\nulimit -S -v 67108864\nexec {start} -0 "$0" {own_python} "$@"\n')
    python.chmod(0o755)
    return python


def find_marked_tests() -> list[Path]:
    """Return the files with tests that depend on the processor; to import the others takes minutes."""
    folders = (ROOT / "tests", ROOT / "metalsim" / "tests")
    files = [path for folder in folders for path in sorted(folder.rglob("test_*.py"))]
    return [path for path in files if "mark.processor" in path.read_text("utf-8")]


def emulates(qemu: str, model: str) -> bool:
    """Say whether qemu knows a processor of this name."""
    return subprocess.run([qemu, "-cpu", f"{model},check=off", "/bin/true"]).returncode == 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the marked tests on another processor; return pytest's exit status, or 2 if there is no such processor."""
    parser = argparse.ArgumentParser(
        prog="python tools/emulated.py", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "model", help="a processor, such as Haswell: qemu-x86_64 -cpu help lists them"
    )
    parser.add_argument("options", nargs=argparse.REMAINDER, help="options of pytest")
    given = parser.parse_args(arguments)

    qemu = shutil.which("qemu-x86_64")
    if qemu is None or not emulates(qemu, given.model):
        print(
            "A processor is emulated on Linux by qemu-x86_64 (make packages); qemu-x86_64 -cpu help lists them."
        )
        return 2

    folder = ROOT / "build" / "cpu" / given.model
    python = make_environment(qemu, given.model, folder)
    variables = {
        "METALLAB_TEST_CPU": given.model,
        # g++ is not emulated, and its -march=native would be the host's
        "TORCHINDUCTOR_CPP_MARCH": "x86-64-v3",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }
    marked = map(str, find_marked_tests())
    command = [str(python), "-m", "pytest", "-m", "processor", *given.options, *marked]
    return subprocess.run(command, cwd=ROOT, env=os.environ | variables).returncode


if __name__ == "__main__":
    sys.exit(main())
