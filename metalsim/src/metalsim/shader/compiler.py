"""The compiler for shaders, its options, and the cache of its results.

clang++ 19 or newer if there is one; else the PyPI package ziglang, a clang that needs no administrator. A result is
kept under a name made of everything that went into it: the source, PyTorch's version (its headers), our headers, the
compiler, its options. The code is for x86-64-v3, whichever compiles it: it gives the same bits on every processor with
at least its instructions, and another one is refused (`check_processor`).
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from metalsim import building
from metalsim.errors import SimulationError
from metalsim.shader import source as msl

HERE = Path(__file__).resolve().parent
RUNTIME = HERE / "runtime"
OLDEST_CLANG, NEWEST_CLANG = 19, 30
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


class NoCompiler(RuntimeError):
    """No compiler for shaders; the message says which to install."""


@dataclass(frozen=True)
class Compiler:
    """A clang: its command, and what distinguishes it from another one."""

    command: tuple[str, ...]
    kind: str  # "clang" or "zig"
    identity: str

    @functools.cached_property
    def missing_sanitizers(self) -> str | None:
        """The reason why kernels cannot be compiled with sanitizers, or None."""
        if self.kind != "clang":
            return "they come with clang++ 19 or newer (Debian, Ubuntu: clang-19 libclang-rt-19-dev), not with ziglang"
        folder = Path(_output([*self.command, "-print-resource-dir"]).strip())
        if any(folder.glob("lib/**/*clang_rt.asan*")):
            return None
        return f"{self.command[0]} has no sanitizer libraries (Debian, Ubuntu: libclang-rt-19-dev)"

    @property
    def options(self) -> tuple[str, ...]:
        """The target: x86-64-v3, elsewhere the architecture's own minimum."""
        if platform.machine() == "x86_64":
            return ("-march=x86-64-v3" if self.kind == "clang" else "-march=x86_64_v3",)
        return () if self.kind == "clang" else ("-mcpu=baseline",)

    def tool(self, name: str) -> str | None:
        """Return a program of the same LLVM, such as llvm-symbolizer."""
        beside = Path(os.path.realpath(shutil.which(self.command[0]) or self.command[0])).with_name(
            name
        )
        return str(beside) if beside.exists() else shutil.which(name)


def find_compiler() -> Compiler:
    """Return the compiler; METALSIM_CXX names another one, `zig` the ziglang package. NoCompiler if there is none."""
    return _find_compiler(os.environ.get("METALSIM_CXX", ""), os.environ.get("PATH", ""))


@functools.lru_cache
def _find_compiler(asked: str, _path: str) -> Compiler:
    if sys.platform != "linux":
        raise NoCompiler(
            "shaders are simulated on Linux only; on a Mac torch.mps.compile_shader runs them for real"
        )
    if asked and asked != "zig":
        return _clang(shlex.split(asked)) or _no_compiler(
            f"METALSIM_CXX={asked} is not clang++ {OLDEST_CLANG} or newer."
        )
    if not asked:
        names = [f"clang++-{version}" for version in range(NEWEST_CLANG, OLDEST_CLANG - 1, -1)]
        for name in (*names, "clang++"):
            if shutil.which(name) and (compiler := _clang([name])):
                return compiler
    package = importlib.util.find_spec("ziglang")
    if package is None:
        _no_compiler("There is no compiler for Metal shaders.")
    command = (str(Path(package.origin).with_name("zig")), "c++")
    return Compiler(command, "zig", "ziglang " + importlib.metadata.version("ziglang"))


def check_processor() -> None:
    """SimulationError on an x86 processor without the instructions that kernels are compiled to."""
    capabilities = torch.cpu.get_capabilities()
    lacking = (
        [name for name in V3 if not capabilities.get(name)]
        if capabilities.get("architecture") == "x86_64"
        else []
    )
    if lacking:
        raise SimulationError(
            "Metal shaders are compiled for x86 processors with AVX2 and FMA (x86-64-v3: Intel since Haswell, AMD "
            f"since Zen), and this one lacks {', '.join(lacking)}: use another machine for them, the rest runs here"
        )


def _no_compiler(reason: str) -> Compiler:
    raise NoCompiler(
        f"{reason} Install one: `pip install ziglang` needs no administrator; or clang++ {OLDEST_CLANG} or newer "
        f"(Debian, Ubuntu: clang-{OLDEST_CLANG} libclang-rt-{OLDEST_CLANG}-dev), which also checks kernels for races."
    )


def _clang(command: list[str]) -> Compiler | None:
    """Return the compiler of a command, if it is a clang that is new enough."""
    path = shutil.which(command[0])
    if path is None:
        return None
    printed = _output([*command, "--version"])
    version = re.search(r"clang version (\d+)", printed)
    if not version or int(version[1]) < OLDEST_CLANG:
        return None
    return Compiler(tuple(command), "clang", printed.splitlines()[0] + " ".join(command[1:]))


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=120
        ).stdout
    except OSError:
        return ""


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


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, filled by `make` if it is missing."""
    return building.fill_once(building.cache("shader") / name, make)


# ---- compiling -------------------------------------------------------------------------------------------------------


def preprocess(source: str) -> str:
    """Return MSL with its includes, among them PyTorch's c10/metal, and macros expanded, with line markers."""
    include = _torch_include()
    folders = [f"-I{RUNTIME / 'include'}", f"-I{include}"]
    compiler = find_compiler()
    command = [
        *compiler.command,
        *compiler.options,
        *LANGUAGE,
        "-nostdinc",
        "-E",
        *folders,
        *MACROS,
        "-",
    ]
    result = _run(command, input=f'# 1 "{msl.PROGRAM}"\n{source}\n')
    return result.replace(f"{include}{os.sep}", "")


_LIBRARY = ("-O2", "-shared")
_PROGRAM = ("-g1", "-fno-omit-frame-pointer", "-pie")


def compile_library(code: str, to: Path) -> None:
    """Compile a shared library for ctypes."""
    _build(code, to, options=_LIBRARY, run_time=())


def compile_program(
    code: str, to: Path, options: tuple[str, ...], run_time: tuple[str, ...]
) -> None:
    """Compile a program for kernel.check(). Options may ask for a sanitizer; `run_time` are rt.cpp's macros for it.

    The calls of ``-fsanitize=thread`` are answered by rt.cpp: it is an option of compiling only, which every clang has.
    """
    optimised = "-O1" if any("-fsanitize" in option for option in options) else "-O2"
    _build(code, to, options=(optimised, *_PROGRAM, *options), run_time=run_time)


def _build(code: str, to: Path, options: tuple[str, ...], run_time: tuple[str, ...]) -> None:
    compiler = find_compiler()
    text = to.with_suffix(".cpp")
    text.write_text(code, encoding="utf-8")
    command = [
        *compiler.command,
        *compiler.options,
        *LANGUAGE,
        "-nostdinc",
        f"-I{RUNTIME / 'include'}",
        *CODE,
    ]
    no_library = [] if any("-fsanitize" in option for option in options) else ["-nostdlib++"]
    if (
        compiler.kind == "zig"
    ):  # it would first compile its run-time library, for seconds; kernels call nothing of it
        no_library.append("-rtlib=none")
    text = [str(text)]
    if "-fsanitize=thread" in options:
        _run(
            [
                *command,
                *options,
                "-fno-sanitize=undefined",
                "-c",
                *text,
                "-o",
                str(to.with_suffix(".o")),
            ]
        )
        options = tuple(option for option in options if not option.startswith("-fsanitize"))
        text, no_library = ["-x", "none", str(to.with_suffix(".o"))], ["-nostdlib++", *no_library]
    command += [*options, *text]
    _run(
        [
            *command,
            "-x",
            "none",
            str(_run_time(run_time)),
            *no_library,
            "-lm",
            "-lpthread",
            "-o",
            str(to),
        ]
    )


def _run_time(macros: tuple[str, ...]) -> Path:
    """Compile rt.cpp, one object file for all kernels."""

    def make(folder: Path) -> None:
        rt = str(RUNTIME / "rt.cpp")
        compiler = find_compiler()
        command = [
            *compiler.command,
            *compiler.options,
            *RUN_TIME_CODE,
            *macros,
            f"-I{RUNTIME / 'include'}",
            "-c",
            rt,
        ]
        _run([*command, "-o", str(folder / "rt.o")])

    return kept(f"rt-{key(*macros)}", make) / "rt.o"


def _run(command: list[str], input: str = "") -> str:
    """Run the compiler and return its output. SyntaxError with file and line for its complaints about the source."""
    # in a folder of ours: a quoted #include must find nothing by chance; a driver's children end with it
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    running = subprocess.Popen(
        command, **streams, text=True, cwd=RUNTIME / "include", start_new_session=True
    )
    try:
        output, complaints = running.communicate(input, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        raise RuntimeError(
            f"compiling takes longer than {MOST_SECONDS} s: split it into several libraries"
        ) from None
    if running.returncode == 0:
        return output
    errors = (
        _what_concerns_the_source(complaints)
        or f"{command[0]} failed with status {running.returncode}"
    )
    location = re.search(rf"\b({msl.PROGRAM}|c10/\S+):(\d+):(\d+): ", errors)
    if not location:
        raise RuntimeError(f"the compiler for shaders failed:\n{errors}")
    raise SyntaxError(errors, (location[1], int(location[2]), int(location[3]), None))


def _what_concerns_the_source(errors: str) -> str:
    """Return the compiler's messages without notes on our headers and without folders of this machine."""
    errors = errors.replace(f"{RUNTIME / 'include'}{os.sep}", "").replace(
        f"{_torch_include()}{os.sep}", ""
    )
    errors = re.sub(r"^In file included from .*\n(?: +from .*\n)*", "", errors, flags=re.M)
    blocks = re.split(r"^(?=[^\s:][^:\n]*:\d+:\d+: )", errors, flags=re.M)
    return "".join(
        block for block in blocks if not re.match(r"metalsim/[^:]*:\d+:\d+: note", block)
    ).strip()


def _torch_include() -> Path:
    return Path(torch.__file__).parent / "include"
