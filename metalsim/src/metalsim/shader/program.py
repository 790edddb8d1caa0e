"""A kernel as a program of its own, plain or with a sanitizer: what kernel.check() runs."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from metalsim.shader import binding, compiler

_HOOKED = (  # without sinking an access stays before the `if` that it was written before
    (
        "-fsanitize=thread",
        *("-mllvm", "-tsan-instrument-read-before-write", "-mllvm", "-instcombine-code-sinking=0"),
    ),
    ("-DMETALSIM_MAIN", "-DMETALSIM_HOOKS"),
)
TOOLS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "plain": ((), ("-DMETALSIM_MAIN",)),
    "address": (
        ("-fsanitize=address,undefined", "-fno-sanitize-recover=address"),
        ("-DMETALSIM_MAIN", "-DMETALSIM_ASAN"),
    ),
    "race": _HOOKED,
    **{  # these record accesses as well; a variable of a thread begins with NaN, or with 0
        f"accesses, {unset}": ((*_HOOKED[0], f"-ftrivial-auto-var-init={unset}"), _HOOKED[1])
        for unset in ("pattern", "zero")
    },
}
"""By name, the options of the compiler, and the macros of rt.cpp; of "race" runtime/hooks.h answers the calls."""


@dataclass(frozen=True)
class Outcome:
    """What one run gave: exit status (None: it did not end in time), standard error, each region's memory after it.

    `record` has the accesses, if they were asked for.
    """

    status: int | None
    standard_error: str
    memory: tuple[bytes, ...]
    record: bytes = b""


@dataclass(frozen=True)
class Program:
    """The kernel with a number in a translated library. `meets`: its threads have barriers or SIMD-group functions."""

    code: Path
    number: int
    meets: bool

    def build(self, tool: str) -> Path:
        """Return the program for a tool of `TOOLS`, from the cache where it is there."""
        text = self.code.read_text(encoding="utf-8")
        options, macros = TOOLS[tool]
        name = f"program-{tool}-{compiler.key(text, *options, *macros)}"

        def make(folder: Path) -> None:
            compiler.compile_program(text, folder / "program", options, macros)

        return compiler.fill_once(name, make) / "program"

    def run(
        self, tool: str, call: binding.Call, timeout: float, order: int = 0, garbage: int = 0xFF
    ) -> Outcome:
        """Run the kernel once, in a process of its own.

        Parameters
        ----------
        tool
            Of `TOOLS`.
        call
            The buffers, which keep their values, and the threads.
        timeout
            Seconds.
        order
            Of the threads: 0 as numbered, 1 backwards, others shuffled.
        garbage
            The byte that fresh memory is full of.
        """
        program = self.build(tool)
        memory = binding.regions(call.buffers)
        _, macros = TOOLS[tool]
        has_fibers = self.meets or macros == _HOOKED[1]

        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            record = folder / "record"
            job = self._write_job(folder, memory, call, f"{int(has_fibers)} {order} {garbage}")
            command = [program, job]
            if tool.startswith("accesses"):
                command.append(record)

            try:
                result = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=timeout,
                    env=_environment(),
                )
            except subprocess.TimeoutExpired:
                return Outcome(None, "", ())

            after = [
                (folder / f"region{number}").read_bytes()[region.skew :]
                for number, region in enumerate(memory)
            ]
            lines = record.read_bytes() if record.exists() else b""

        return Outcome(result.returncode, with_lines(result.stderr, program), tuple(after), lines)

    def _write_job(
        self, folder: Path, memory: list[binding.Region], call: binding.Call, how: str
    ) -> Path:
        """Write what the program reads: a file for each region of memory, and one that names them and the call."""
        lines = [
            f"{self.number} {how}",
            " ".join(map(str, call.threads)),
            " ".join(map(str, call.group_size)),
            str(len(memory)),
        ]
        offsets: list[str] = []

        for number, region in enumerate(memory):
            path = folder / f"region{number}"
            path.write_bytes(b"\xff" * region.skew + region.read())
            lines.append(f"{region.bytes + region.skew} {path}")
            offsets += [
                f"{index} {number} {region.skew + offset}"
                for index, offset in region.buffers.items()
            ]

        job = folder / "job"
        job.write_text("\n".join([*lines, *offsets]) + "\n", encoding="utf-8")
        return job


def _environment() -> dict[str, str]:
    """Return this process's environment, with what the sanitizers are to be told."""
    symbolizer = _symbolizer()
    shown = f":external_symbolizer_path={symbolizer}" if symbolizer else ":symbolize=0"
    return os.environ | {
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0" + shown,
        "UBSAN_OPTIONS": "print_stacktrace=0" + shown,
    }


@functools.lru_cache
def _symbolizer() -> str | None:
    """Return the program of the same LLVM that tells lines; None without one."""
    return compiler.find_compiler().tool("llvm-symbolizer")


def with_lines(text: str, program: Path) -> str:
    """Return what the run time said, with each `METALSIM 0x1234` turned into `METALSIM program_source:12`."""

    def name(frame: re.Match) -> str:
        return f"METALSIM {source_line(program, frame[1])} "

    return re.sub(r"METALSIM (0x[0-9a-f]+) ", name, text)


def source_line(program: Path, address: str) -> str:
    """Return ``program_source:12`` for a hexadecimal address in a program; ``?:0`` if it is not known."""
    if int(address, 16) == 0:
        return "?:0"

    symbolizer = _symbolizer()
    command = ["addr2line", "-i", "-e", str(program)]
    if symbolizer is not None:
        command = [symbolizer, "--inlines", f"--obj={program}"]

    try:
        output = subprocess.run(
            [*command, address], capture_output=True, text=True, check=False, timeout=60
        ).stdout
    except OSError:
        return "?:0"  # neither symbolizer nor addr2line

    line = re.search(r"(program_source:\d+)", output)
    return line[1] if line else "?:0"
