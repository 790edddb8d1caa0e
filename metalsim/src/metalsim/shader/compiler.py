"""How shaders are compiled: the compiler's options, and the cache of its results.

Which compiler it is, `metalsim.clang` says. A result is kept under a name made of everything that went into it: the
source, PyTorch's version (its headers), our headers, the compiler, its options. The code is for x86-64-v3, whichever
compiles it: it gives the same bits on every processor with at least its instructions, and another one is refused
(`check_processor`).
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import torch

from metalsim import building
from metalsim.clang import NoCompiler as NoCompiler  # callers ask for it here
from metalsim.clang import find_compiler as find_compiler
from metalsim.errors import SimulationError
from metalsim.shader import source as msl

HERE = Path(__file__).resolve().parent
RUNTIME = HERE / "runtime"
INCLUDE = RUNTIME / "include"
MOST_SECONDS = 120  # for one run of the compiler

LANGUAGE = ("-std=c++14", "-x", "c++", "-nostdinc++", "-fno-crash-diagnostics")
MACROS = (
    *("-D__METAL__=1", "-D__METAL_MACOS__=1", "-D__METAL_VERSION__=320", "-D__HAVE_BFLOAT__=1"),
    *("-U__linux__", "-Ulinux", "-Uunix"),
)
CODE = (
    *(
        "-fPIC",
        "-fvisibility=hidden",
        "-fdeclspec",
        "-fno-exceptions",
        "-fno-rtti",
        "-fno-math-errno",
    ),
    "-ffp-contract=off",  # every operation rounds: comparable with PyTorch, alike in every copy of a kernel
    *("-Xclang", "-ffloat16-excess-precision=none"),  # half rounds after each operation
    "-fno-finite-loops",  # C++ may take a loop without end away, and with it whatever follows: here it hangs
    "-fstack-clash-protection",  # large variables meet the end of a stack, and no other thread's
    "-Wno-everything",
)
RUN_TIME_CODE = (
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-nostdinc++",
)


# What x86-64-v3 has and older processors have not, as PyTorch names it: it asks the processor itself.
V3 = ("avx", "avx2", "fma3", "f16c", "bmi", "bmi2", "lzcnt")


def check_processor() -> None:
    """Raise SimulationError on an x86 processor without the instructions that kernels are compiled to."""
    capabilities = torch.cpu.get_capabilities()
    if capabilities.get("architecture") != "x86_64":
        return

    lacking = [name for name in V3 if not capabilities.get(name)]
    if lacking:
        raise SimulationError(
            "Metal shaders are compiled for x86 processors with AVX2 and FMA (x86-64-v3: Intel since Haswell, AMD "
            f"since Zen), and this one lacks {', '.join(lacking)}: use another machine for them, the rest runs here"
        )


def _cannot_start(program: str, error: OSError) -> NoCompiler:
    """Return the error for a compiler that was found and that the system does not start."""
    return NoCompiler(
        f"The compiler for Metal shaders, {program}, cannot be started ({error.strerror or error}). See that it is "
        "there, that you may execute it (`ls -l` shows an x), and that it is a program for this processor; or install "
        "it anew. METALSIM_CXX names the command of another clang."
    )


# ---- the cache -------------------------------------------------------------------------------------------------------


def key(*parts: str) -> str:
    """Return the name of a result: a hash of everything that goes into it."""
    compiler = find_compiler()

    fixed = (
        torch.__version__,
        compiler.kind,
        compiler.identity,
        platform.machine(),
        *compiler.options,
        _our_files(),
    )
    return hashlib.sha256("\0".join((*fixed, *parts)).encode()).hexdigest()[:24]


@functools.lru_cache
def _our_files() -> str:
    """Return a hash of our files that go into a compiled kernel; this one has the options."""
    ours = (*RUNTIME.rglob("*"), HERE / "source.py", HERE / "launch.py", HERE / "compiler.py")
    files = sorted(path for path in ours if path.is_file())
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def fill_once(name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, filled by `make` if it is missing."""
    return building.fill_once(building.cache("shader") / name, make)


# ---- compiling -------------------------------------------------------------------------------------------------------


def preprocess(source: str) -> str:
    """Return MSL with its includes, among them PyTorch's c10/metal, and macros expanded, with line markers."""
    torch_include = _torch_include()
    command = [
        *_clang_command(),
        "-E",
        f"-I{INCLUDE}",
        f"-I{torch_include}",
        *MACROS,
        "-",
    ]
    result = _run(command, given=f'# 1 "{msl.PROGRAM}"\n{source}\n')
    return result.replace(f"{torch_include}{os.sep}", "")


def _clang_command() -> list[str]:
    """Return how the compiler is called for MSL, before what is to be done and with which files."""
    compiler = find_compiler()
    return [*compiler.command, *compiler.options, *LANGUAGE, "-nostdinc"]


_LIBRARY = ("-O2", "-shared")
WATCHED = "-fsanitize=thread"
"""The option for calls before each access, which rt.cpp answers."""
_PROGRAM = ("-g1", "-fno-omit-frame-pointer", "-pie")


def compile_library(code: str, to: Path) -> None:
    """Compile a shared library for ctypes."""
    _build(code, to, options=_LIBRARY, run_time=())


def compile_program(
    code: str, to: Path, options: tuple[str, ...], run_time: tuple[str, ...]
) -> None:
    """Compile a program for kernel.check().

    Parameters
    ----------
    code
        C++ that stands for MSL.
    to
        The program's file.
    options
        More options of the compiler; they may ask for a sanitizer.
    run_time
        Macros of rt.cpp.

    The calls of ``-fsanitize=thread`` are answered by rt.cpp: it is an option of compiling only, which every clang has.
    """
    optimised = "-O1" if any("-fsanitize" in option for option in options) else "-O2"
    _build(code, to, options=(optimised, *_PROGRAM, *options), run_time=run_time)


def _build(code: str, to: Path, options: tuple[str, ...], run_time: tuple[str, ...]) -> None:
    """Compile C++ that stands for MSL, and link it with the run time.

    `to` is the library or the program, beside which the source is written; `options` are the compiler's, `run_time` the
    macros of rt.cpp. Errors as of `_run`.
    """
    source = to.with_suffix(".cpp")
    source.write_text(code, encoding="utf-8")

    command = [*_clang_command(), f"-I{INCLUDE}", *CODE]
    inputs = [str(source)]
    libraries = []
    # kernels need no C++ library; the run times of sanitizers that are linked do
    if not any("-fsanitize" in option for option in options):
        libraries.append("-nostdlib++")
    if find_compiler().kind == "zig":
        # it would first compile its run-time library, for seconds; kernels call nothing of it
        libraries.append("-rtlib=none")

    if WATCHED in options:
        # in two steps: the compiler puts in the calls, and the linker must not bring the sanitizer that answers them
        compiled = str(to.with_suffix(".o"))
        _run([*command, *options, "-fno-sanitize=undefined", "-c", *inputs, "-o", compiled])

        # rt.cpp answers them
        options = tuple(option for option in options if not option.startswith("-fsanitize"))
        inputs = ["-x", "none", compiled]
        libraries.insert(0, "-nostdlib++")

    # -x none: what follows is no C++, which `LANGUAGE` says of every file
    run_time_objects = ["-x", "none", str(_build_run_time(run_time))]
    libraries += ["-lm", "-lpthread"]
    _run([*command, *options, *inputs, *run_time_objects, *libraries, "-o", str(to)])


def _build_run_time(macros: tuple[str, ...]) -> Path:
    """Return rt.cpp compiled, one object file for all kernels."""
    compiler = find_compiler()

    def make(folder: Path) -> None:
        command = [*compiler.command, *compiler.options, *RUN_TIME_CODE, *macros, f"-I{INCLUDE}"]
        _run([*command, "-c", str(RUNTIME / "rt.cpp"), "-o", str(folder / "rt.o")])

    return fill_once(f"rt-{key(*macros)}", make) / "rt.o"


def _run(command: list[str], given: str = "") -> str:
    """Run the compiler and return its output. SyntaxError with file and line for its complaints about the source.

    Parameters
    ----------
    command
        The compiler and all its arguments.
    given
        What it reads from its standard input.

    Raises
    ------
    RuntimeError
        If it takes longer than `MOST_SECONDS`, or complains about something else than the source: no line of it, nor of
        PyTorch's headers, is named.
    NoCompiler
        If the system cannot start it. Without this its OSError would be taken for one of the cache, in which the
        result is written.
    """
    try:
        # in a folder of ours: a quoted #include must find nothing by chance; a driver's children end with it
        running = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=INCLUDE,
            start_new_session=True,
        )
    except OSError as error:
        raise _cannot_start(command[0], error) from error

    try:
        output, complaints = running.communicate(given, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        # a session of its own: the driver and all that it has started
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        raise RuntimeError(
            f"compiling takes longer than {MOST_SECONDS} s: split it into several libraries"
        ) from None

    if running.returncode == 0:
        return output

    errors = _what_concerns_the_source(complaints)
    if not errors:
        errors = f"{command[0]} failed with status {running.returncode}"
    location = re.search(rf"\b({msl.PROGRAM}|c10/\S+):(\d+):(\d+): ", errors)
    if not location:
        raise RuntimeError(f"the compiler for shaders failed:\n{errors}")
    raise SyntaxError(errors, (location[1], int(location[2]), int(location[3]), None))


def _what_concerns_the_source(errors: str) -> str:
    """Return the compiler's messages without notes on our headers and without folders of this machine."""
    for folder in (INCLUDE, _torch_include()):
        errors = errors.replace(f"{folder}{os.sep}", "")
    errors = re.sub(r"^In file included from .*\n(?: +from .*\n)*", "", errors, flags=re.M)

    messages = re.split(r"^(?=[^\s:][^:\n]*:\d+:\d+: )", errors, flags=re.M)
    note = re.compile(r"metalsim/[^:]*:\d+:\d+: note")
    concerning = [message for message in messages if not note.match(message)]
    return "".join(map(_name_what_is_missing, concerning)).strip()


_UNKNOWN = re.compile(
    r"(?:use of undeclared identifier|no member named) '(\w+)'(?: in namespace '[\w:]+')?(?:; did you mean .*\?)?$",
    re.MULTILINE,
)


def _name_what_is_missing(message: str) -> str:
    """Return a message of the compiler; it does not blame the source for a function that Metal has and we lack."""
    unknown = _UNKNOWN.search(message)
    if unknown is None or unknown[1] not in msl.MISSING_FUNCTIONS:
        return message

    # what follows line and mark is another function's name, in case the author had misspelled that
    complaint, *shown = message.splitlines(keepends=True)[:3]
    replaced = _UNKNOWN.sub(rf"Metal has '{unknown[1]}', and it is not simulated yet", complaint)
    return "".join([replaced, *shown])


def _torch_include() -> Path:
    """Return the folder with PyTorch's headers."""
    return Path(torch.__file__).parent / "include"
