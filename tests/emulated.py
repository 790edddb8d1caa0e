"""The tests that depend on the processor, on another one: ``make test-cpu CPU=Haswell``.

qemu-user executes a program instruction by instruction and shows it the processor that it is told to, so PyTorch, ONNX
Runtime, TensorFlow and our shaders choose and compute what they would choose and compute there. It does not follow
``exec``: a program that an emulated one starts sees the host. So this makes an environment whose ``python`` is a script
that starts qemu with Python in it; ``sys.executable`` names the script, and every child that is started by it is
emulated as well. ``build/cpu/Haswell/bin/python`` runs anything else so, too.

Compilers are started by their own names, run natively, and are quick. What they must not do is compile for the
processor they run on (``-march=native``): the tests would stop at an illegal instruction.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
QEMU = "qemu-x86_64"
MINUTES = 30
"""It takes less than ten; an emulated process may hang."""
ADDRESS_SPACE = 64 << 30
"""Bytes. qemu 7 keeps a table of each reserved page, so what the simulated GPU reserves around a buffer, 96 GiB or 1
where that is refused, would cost 1 GB of memory a launch. Sanitizers want more: they do not run there."""
LEAST = frozenset({"avx2", "fma"})
"""What README asks of a processor."""
CHOOSES = ("avx", "f16c", "fma", "avx2", "avxvnni", "avx512", "amx")
"""How the instructions begin by which frameworks choose their code."""
ASKED, SHOWN = "METALLAB_TEST_CPU", "METALLAB_TEST_CPU_SHOWS"
"""What the tests are told: the model, and which of those instructions it has."""

INDUCTOR = "TORCHINDUCTOR_CPP_MARCH"
"""For which processor PyTorch's compiler has its code compiled; -march=native otherwise, and g++ sees the host."""

# NumPy asks the processor, and not /proc/cpuinfo, which stays the host's; it is imported in a second or two.
PROBE = (
    "from numpy.core._multiarray_umath import __cpu_features__ as has; "
    "print(*(name.lower().replace('fma3', 'fma') for name in has if has[name]))"
)


class CannotEmulate(Exception):
    """There is no such processor to be had; the text says what to do."""


@dataclass(frozen=True)
class Processor:
    """What qemu makes of one of its models."""

    model: str
    shows: tuple[str, ...]
    """Of the instruction sets by which frameworks choose those that a program finds, sorted."""
    lacks: tuple[str, ...]
    """Those that the model has and qemu cannot execute, sorted."""


def chosen_by(names: Sequence[str]) -> tuple[str, ...]:
    """Those of some instruction sets by which frameworks choose, sorted."""
    return tuple(sorted({name for name in names if name.startswith(CHOOSES)}))


def find(model: str) -> tuple[str, Processor]:
    """qemu's path, and what it shows of a model.

    CannotEmulate where there is no qemu or no such model, and where qemu is too old for what the model has.
    """
    if (sys.platform, os.uname().machine) != ("linux", "x86_64"):
        raise CannotEmulate("make test-cpu is for Linux on x86-64: qemu-user shows a Linux program another processor")
    qemu = shutil.which(QEMU)
    if qemu is None:
        raise CannotEmulate(
            f"{QEMU} is not here. Install it: `make packages` on Debian and Ubuntu, where it is `apt-get install "
            "qemu-user`; Fedora: `dnf install qemu-user`"
        )
    command = [qemu, "-cpu", model, sys.executable, "-c", PROBE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1]
        raise CannotEmulate(
            f"CPU={model} cannot be had ({reason}): `{QEMU} -cpu help` lists what it knows, say Haswell"
        )
    warned = re.findall(r"doesn't support requested feature: \S+?\.([\w-]+) \[", done.stderr)
    processor = Processor(model, chosen_by(done.stdout.split()), chosen_by(warned))
    if old := LEAST.intersection(processor.lacks):
        raise CannotEmulate(f"this {QEMU} cannot execute {' and '.join(sorted(old))}, which {model} has: 7.2 can")
    return qemu, processor


def make_environment(qemu: str, model: str, folder: Path, python: str = sys.executable) -> Path:
    """An environment like that of ``python``, whose own Python is emulated; the path of that Python.

    Made anew each time, which is cheap: packages stay where they are. Python finds its environment by the name that it
    was started with, which ``-0`` gives it. Ninja builds extensions, and is looked for beside it.
    """
    own = Path(python).parents[1]
    if folder.exists():
        shutil.rmtree(folder)
    programs = folder / "bin"
    programs.mkdir(parents=True)
    for entry in own.iterdir():
        if entry.name == "pyvenv.cfg":
            shutil.copy(entry, folder)
        elif entry.name != "bin":
            (folder / entry.name).symlink_to(entry)
    (programs / "ninja").symlink_to(own / "bin" / "ninja")
    wrapper = programs / "python"
    emulator = shlex.join([qemu, "-cpu", f"{model},check=off"])  # without a warning for each instruction it lacks
    limit = f"ulimit -S -v {ADDRESS_SPACE >> 10}"
    start = f'exec {emulator} -0 "$0" {shlex.quote(os.path.realpath(python))} "$@"'
    wrapper.write_text(f"#!/bin/sh\n{limit}\n{start}\n")
    wrapper.chmod(0o755)
    for name in ("python3", f"python{sysconfig.get_python_version()}"):
        (programs / name).symlink_to("python")
    return wrapper


def marked(tests: Path) -> list[str]:
    """The files with tests that depend on the processor: importing the others would take minutes."""
    return [str(path) for path in sorted(tests.glob("test_*.py")) if "mark.processor" in path.read_text("utf-8")]


def settings(processor: Processor) -> dict[str, str]:
    """The environment of the tests."""
    level = "x86-64-v3" if LEAST.issubset(processor.shows) else "x86-64-v2"
    return {
        ASKED: processor.model,
        SHOWN: " ".join(processor.shows),
        INDUCTOR: level,
        # What was compiled for the other processor ends this one's programs with SIGABRT: the key of torch.compile's
        # cache does not tell them apart.
        "TORCHINDUCTOR_CACHE_DIR": str(ROOT / "build" / "cpu" / f"inductor-{processor.model}"),
    }


def main(model: str, *options: str) -> int:
    """Run the marked tests with options of pytest's; its exit status, or 2 if nothing could be run."""
    try:
        qemu, processor = find(model)
    except CannotEmulate as reason:
        print(f"make test-cpu: {reason}.", file=sys.stderr)
        return 2
    python = make_environment(qemu, model, ROOT / "build" / "cpu" / model)
    print(f"{python.relative_to(ROOT)} shows programs a {model}: {', '.join(processor.shows) or 'no AVX'}.")
    beyond = f"of this model {', '.join(processor.lacks)}" if processor.lacks else "AVX-512 and AMX"
    print(f"qemu cannot show {beyond}; it takes 10 to 30 times as long; /proc/cpuinfo stays the host's.")
    if missing := LEAST.difference(processor.shows):
        print(f"{model} has no {' and no '.join(sorted(missing))}, the least that README asks for: expect failures.")
    sys.stdout.flush()
    command = [str(python), "-m", "pytest", "-m", "processor", *options, *marked(ROOT / "tests")]
    variables = {**os.environ, **settings(processor)}
    try:
        return subprocess.run(command, cwd=ROOT, env=variables, timeout=60 * MINUTES, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"make test-cpu: stopped after {MINUTES} minutes", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
