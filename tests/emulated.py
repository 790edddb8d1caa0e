"""The tests that depend on the processor, on another one: ``make test SUITE=cpu CPU=Haswell``.

qemu-user shows a program another processor, but not the programs that it starts. So ``python`` of this environment
is a script that starts qemu with Python: what ``sys.executable`` starts is emulated as well. Compilers run natively.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def make_environment(qemu: str, model: str, folder: Path) -> Path:
    """An environment like that of this Python, whose own Python is emulated; the path of that Python."""
    own = Path(sys.executable).parents[1]
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True)
    shutil.copy(own / "pyvenv.cfg", folder)
    for name in ("lib", "include", "bin/ninja"):
        (folder / name).symlink_to(own / name)
    python = folder / "bin" / "python"
    start = shlex.join([qemu, "-cpu", f"{model},check=off"])
    # qemu keeps a table of each reserved page, and the simulated GPU reserves 96 GiB where it may
    python.write_text(
        f'#!/bin/sh\nulimit -S -v 67108864\nexec {start} -0 "$0" {os.path.realpath(sys.executable)} "$@"\n'
    )
    python.chmod(0o755)
    return python


def main(model: str, *options: str) -> int:
    """Run the marked tests with options of pytest's; its exit status, or 2 if there is no such processor."""
    qemu = shutil.which("qemu-x86_64")
    if qemu is None or subprocess.run([qemu, "-cpu", f"{model},check=off", "/bin/true"]).returncode:
        print(
            "A processor is emulated on Linux by qemu-x86_64 (make packages); qemu-x86_64 -cpu help lists them."
        )
        return 2
    folder = ROOT / "build" / "cpu" / model
    tests = [
        path
        for part in ("tests", "metalsim/tests")
        for path in sorted((ROOT / part).rglob("test_*.py"))
    ]
    marked = [
        path for path in tests if "mark.processor" in path.read_text("utf-8")
    ]  # to import the others takes minutes
    variables = {
        "METALLAB_TEST_CPU": model,
        # g++ is not emulated, and its -march=native would be the host's
        "TORCHINDUCTOR_CPP_MARCH": "x86-64-v3",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }
    python = make_environment(qemu, model, folder)
    command = [python, "-m", "pytest", "-m", "processor", *options, *marked]
    return subprocess.run(command, cwd=ROOT, env=os.environ | variables).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
