"""A kernel as a program of its own, plain or with a sanitizer: what kernel.check() runs."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from metalsim.shader import binding, compiler


@dataclass(frozen=True)
class _Tool:
    """How a program is compiled, and what it is asked for."""

    options: tuple[str, ...]
    """Of the compiler."""
    macros: tuple[str, ...]
    """Of rt.cpp."""
    has_hooks: bool = False
    """Whether runtime/hooks.h is called before each access to memory."""
    records: bool = False
    """Whether the hooks write down each access."""


_HOOKED = _Tool(
    options=(
        "-fsanitize=thread",
        *("-mllvm", "-tsan-instrument-read-before-write"),
        # so that an access stays before the `if` that it was written before
        *("-mllvm", "-instcombine-code-sinking=0"),
    ),
    macros=("-DMETALSIM_MAIN", "-DMETALSIM_HOOKS"),
    has_hooks=True,
)


def _record_accesses(unset: str) -> _Tool:
    """Return the tool that records accesses; a variable of a thread begins with NaN (``pattern``), or with 0."""
    options = (*_HOOKED.options, f"-ftrivial-auto-var-init={unset}")
    return replace(_HOOKED, options=options, records=True)


TOOLS: dict[str, _Tool] = {
    "plain": _Tool(options=(), macros=("-DMETALSIM_MAIN",)),
    "address": _Tool(
        options=("-fsanitize=address,undefined", "-fno-sanitize-recover=address"),
        macros=("-DMETALSIM_MAIN", "-DMETALSIM_ASAN"),
    ),
    "race": _HOOKED,
    "accesses, pattern": _record_accesses("pattern"),
    "accesses, zero": _record_accesses("zero"),
}
"""By name, what a kernel is run with."""


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
        options, macros = TOOLS[tool].options, TOOLS[tool].macros
        name = f"program-{tool}-{compiler.key(text, *options, *macros)}"

        def make(folder: Path) -> None:
            compiler.compile_program(text, folder / "program", options, macros)

        return compiler.fill_once(name, make) / "program"

    def run(
        self, tool: str, call: binding.Call, timeout: float, order: int = 0, garbage: int = 0xFF
    ) -> Outcome:
        """Run the kernel once, in a process of its own, and return what came of it.

        One that does not end in time has no status, and neither text nor memory. The memory of one that was ended by a
        fault is what it was before.

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
        # a thread has a stack of its own, as a fiber, where it waits for others, and where hooks ask whose access it is
        has_fibers = self.meets or TOOLS[tool].has_hooks

        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            job = self._write_job(folder, memory, call, f"{int(has_fibers)} {order} {garbage}")
            record = folder / "record"
            command = [program, job, record] if TOOLS[tool].records else [program, job]

            try:
                result = _execute(command, timeout)
            except subprocess.TimeoutExpired:
                return Outcome(status=None, standard_error="", memory=())

            return Outcome(
                status=result.returncode,
                standard_error=with_lines(result.stderr, program),
                memory=_read_memory(folder, memory),
                record=record.read_bytes() if record.exists() else b"",
            )

    def _write_job(
        self, folder: Path, memory: list[binding.Region], call: binding.Call, how: str
    ) -> Path:
        """Write what the program reads: a file for each region of memory, and one that names them and the call.

        Its run time, `main` of runtime/rt.cpp, says in which order; `how` are fibers, order and garbage.
        """
        lines = [
            f"{self.number} {how}",
            " ".join(map(str, call.threads)),
            " ".join(map(str, call.group_size)),
            str(len(memory)),
        ]
        offsets: list[str] = []

        for number, region in enumerate(memory):
            path = _region_file(folder, number)
            before = b"\xff" * region.skew  # which `_read_memory` leaves out again
            path.write_bytes(before + region.read())
            lines.append(f"{region.bytes + region.skew} {path}")
            offsets += [
                f"{index} {number} {region.skew + offset}"
                for index, offset in region.buffers.items()
            ]

        job = folder / "job"
        job.write_text("\n".join([*lines, *offsets]) + "\n", encoding="utf-8")
        return job


def _region_file(folder: Path, number: int) -> Path:
    """Return the file of a region of memory, which the program reads at first and writes in the end."""
    return folder / f"region{number}"


def _read_memory(folder: Path, memory: list[binding.Region]) -> tuple[bytes, ...]:
    """Return what is in each region after the run, without the bytes before it, which align the copy."""
    return tuple(
        _region_file(folder, number).read_bytes()[region.skew :]
        for number, region in enumerate(memory)
    )


def _execute(command: list[Path], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, be it a crash. subprocess.TimeoutExpired if that takes longer."""
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        env=_environment(),
    )


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
    """Return the program of LLVM that tells lines, if there is one; None without."""
    return compiler.find_compiler().tool("llvm-symbolizer")


def with_lines(text: str, program: Path) -> str:
    """Return what the run time said, with each `METALSIM 0x1234` turned into `METALSIM program_source:12`."""

    def name(frame: re.Match) -> str:
        return f"METALSIM {source_line(program, frame[1])} "

    return re.sub(r"METALSIM (0x[0-9a-f]+) ", name, text)


def source_line(program: Path, address: str) -> str:
    """Return ``program_source:12`` for a hexadecimal address in a program; ``?:0`` if it is not known.

    Functions are compiled into one another, so that an address may have several lines, the innermost first. That may be
    one of our headers: the first line of the Metal source is told.
    """
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
    except (OSError, subprocess.TimeoutExpired):
        return "?:0"  # neither symbolizer nor addr2line, or none that answers

    line = re.search(r"(program_source:\d+)", output)
    return line[1] if line else "?:0"
