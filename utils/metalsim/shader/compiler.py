"""Which compiler, how it is called, and where its results are kept.

clang++ 19 or newer where there is one; else the PyPI package ziglang, a clang that needs no administrator. A result is
kept under a name made of everything that went into it: the source, PyTorch's version (its headers), our headers, the
compiler, the processor. Results are written beside their place and then renamed, so that processes do not disturb each
other.
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
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from metalsim import building
from metalsim.shader import source as msl

HERE = Path(__file__).resolve().parent
RUNTIME = HERE / "runtime"
OLDEST_CLANG, NEWEST_CLANG = 19, 30

LANGUAGE = ("-std=c++14", "-x", "c++", "-nostdinc++")
MACROS = ("-D__METAL__=1", "-D__METAL_MACOS__=1", "-D__METAL_VERSION__=320", "-U__linux__", "-Ulinux", "-Uunix")
CODE = (
    *("-fPIC", "-fvisibility=hidden", "-fdeclspec", "-fno-exceptions", "-fno-rtti", "-fno-math-errno"),
    "-ffp-contract=off",  # every operation rounds: comparable with PyTorch, alike in every copy of a kernel
    *("-Xclang", "-ffloat16-excess-precision=none"),  # half rounds after each operation
    "-Wno-everything",
)
RUN_TIME_CODE = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-nostdinc++")


class NoCompiler(RuntimeError):
    """There is no compiler for shaders; the text says which to install."""


@dataclass(frozen=True)
class Compiler:
    """A clang: how it is called, and what tells it apart from another one."""

    command: tuple[str, ...]
    kind: str  # "clang" or "zig"
    identity: str

    @functools.cached_property
    def missing_sanitizers(self) -> str | None:
        """Why kernels cannot be compiled with sanitizers, or None when they can."""
        if self.kind != "clang":
            return "they come with clang++ 19 or newer (Debian, Ubuntu: clang-19 libclang-rt-19-dev), not with ziglang"
        folder = Path(_output([*self.command, "-print-resource-dir"]).strip())
        if any(folder.glob("lib/**/*clang_rt.tsan*")) and any(folder.glob("lib/**/*clang_rt.asan*")):
            return None
        return f"{self.command[0]} has no sanitizer libraries (Debian, Ubuntu: libclang-rt-19-dev)"

    def tool(self, name: str) -> str | None:
        """A program of the same LLVM, llvm-symbolizer for instance."""
        beside = Path(os.path.realpath(shutil.which(self.command[0]) or self.command[0])).with_name(name)
        return str(beside) if beside.exists() else shutil.which(name)


def find_compiler() -> Compiler:
    """The compiler for shaders; METALSIM_CXX names another one, `zig` the ziglang package. Raises NoCompiler."""
    return _find_compiler(os.environ.get("METALSIM_CXX", ""), os.environ.get("PATH", ""))


@functools.lru_cache
def _find_compiler(asked: str, _path: str) -> Compiler:
    if sys.platform != "linux":
        raise NoCompiler("shaders are simulated on Linux only; on a Mac torch.mps.compile_shader runs them for real")
    if asked and asked != "zig":
        return _clang(shlex.split(asked)) or _no_compiler(
            f"METALSIM_CXX={asked} is not clang++ {OLDEST_CLANG} or newer."
        )
    if not asked:
        names = [f"clang++-{version}" for version in range(NEWEST_CLANG, OLDEST_CLANG - 1, -1)]
        for name in (*names, "clang++"):
            if shutil.which(name) and (found := _clang([name])):
                return found
    if importlib.util.find_spec("ziglang") is None:
        _no_compiler("There is no compiler for Metal shaders.")
    command = (sys.executable, "-m", "ziglang", "c++")
    return Compiler(command, "zig", "ziglang " + importlib.metadata.version("ziglang"))


def _no_compiler(said: str) -> Compiler:
    raise NoCompiler(
        f"{said} Install one: `pip install ziglang` needs no administrator; or clang++ {OLDEST_CLANG} or newer "
        f"(Debian, Ubuntu: clang-{OLDEST_CLANG} libclang-rt-{OLDEST_CLANG}-dev), which also checks kernels for races."
    )


def _clang(command: list[str]) -> Compiler | None:
    """The compiler that a command calls, if it is a clang that is new enough."""
    path = shutil.which(command[0])
    if path is None:
        return None
    said = _output([*command, "--version"])
    version = re.search(r"clang version (\d+)", said)
    if not version or int(version[1]) < OLDEST_CLANG:
        return None
    return Compiler(tuple(command), "clang", said.splitlines()[0] + " ".join(command[1:]))


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120).stdout
    except OSError:
        return ""


# ---- the cache -------------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Where compiled kernels are kept: the folder ``shader`` of `building.cache`."""
    return building.cache("shader")


def key(*parts: str) -> str:
    """The name of a result: everything that goes into it, hashed."""
    fixed = (torch.__version__, find_compiler().identity, _our_files(), _processor(), *LANGUAGE, *MACROS, *CODE)
    return hashlib.sha256("\0".join((*fixed, *parts)).encode()).hexdigest()[:24]


@functools.lru_cache
def _our_files() -> str:
    """The text of everything of ours that goes into a compiled kernel, hashed."""
    files = sorted(path for path in (*RUNTIME.rglob("*"), HERE / "source.py") if path.is_file())
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


@functools.lru_cache
def _processor() -> str:
    """What -march=native means on this machine: a folder may be shared between machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.machine()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache. Where it is not there, `make` fills a new folder that then takes its place."""
    place = cache_folder() / name
    if place.is_dir():
        return place
    fresh = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=place.parent))
    try:
        make(fresh)
        fresh.chmod(0o755)
        fresh.rename(place)
    except OSError:
        if not place.is_dir():
            raise
        # another process was first: its folder is as good
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return place


# ---- compiling -------------------------------------------------------------------------------------------------------


def preprocess(source: str) -> str:
    """MSL with its includes, macros expanded, with line markers. PyTorch's c10/metal headers are found."""
    include = _torch_include()
    folders = [f"-I{RUNTIME / 'include'}", f"-I{include}"]
    command = [*find_compiler().command, *LANGUAGE, "-nostdinc", "-E", *folders, *MACROS, "-"]
    result = _run(command, input=f'# 1 "{msl.PROGRAM}"\n{source}\n')
    return result.replace(f"{include}{os.sep}", "")


_PROGRAM = ("-march=native", "-fno-omit-frame-pointer", "-pie")


def compile_library(code: str, to: Path) -> None:
    """A shared library for ctypes."""
    _build(code, to, options=("-O2", "-march=native", "-shared"), run_time=())


def compile_program(code: str, to: Path, options: tuple[str, ...], run_time: tuple[str, ...]) -> None:
    """A program for kernel.check(). Options may ask for a sanitizer; `run_time` are rt.cpp's macros for it."""
    optimised = "-O1" if any("-fsanitize" in option for option in options) else "-O2"
    _build(code, to, options=(optimised, "-g1", *_PROGRAM, *options), run_time=run_time)


def _build(code: str, to: Path, options: tuple[str, ...], run_time: tuple[str, ...]) -> None:
    compiler = find_compiler()
    text = to.with_suffix(".cpp")
    text.write_text(code, encoding="utf-8")
    command = [*compiler.command, *LANGUAGE, "-nostdinc", f"-I{RUNTIME / 'include'}", *CODE, *options, str(text)]
    no_library = [] if any("-fsanitize" in option for option in options) else ["-nostdlib++"]
    _run([*command, "-x", "none", str(_run_time(run_time)), *no_library, "-lm", "-lpthread", "-o", str(to)])


def _run_time(macros: tuple[str, ...]) -> Path:
    """rt.cpp, compiled: one object file for all kernels."""

    def make(folder: Path) -> None:
        rt = str(RUNTIME / "rt.cpp")
        command = [*find_compiler().command, *RUN_TIME_CODE, *macros, f"-I{RUNTIME / 'include'}", "-c", rt]
        _run([*command, "-o", str(folder / "rt.o")])

    return kept(f"rt-{key(*macros, *RUN_TIME_CODE)}", make) / "rt.o"


def _run(command: list[str], input: str | None = None) -> str:
    """Runs the compiler; what it complains about is raised as SyntaxError with file and line."""
    # in a folder of ours: a quoted #include must find nothing by chance
    result = subprocess.run(command, input=input, capture_output=True, text=True, check=False, cwd=RUNTIME / "include")
    if result.returncode == 0:
        return result.stdout
    said = _what_concerns_the_source(result.stderr) or f"{command[0]} failed with status {result.returncode}"
    found = re.search(rf"\b({msl.PROGRAM}|c10/\S+):(\d+):(\d+): ", said)
    if not found:
        raise RuntimeError(f"the compiler for shaders failed:\n{said}")
    raise SyntaxError(said, (found[1], int(found[2]), int(found[3]), None))


def _what_concerns_the_source(said: str) -> str:
    """The compiler's messages without notes on our own headers, and without folders of this machine."""
    said = said.replace(f"{RUNTIME / 'include'}{os.sep}", "").replace(f"{_torch_include()}{os.sep}", "")
    said = re.sub(r"^In file included from .*\n(?: +from .*\n)*", "", said, flags=re.M)
    blocks = re.split(r"^(?=[^\s:][^:\n]*:\d+:\d+: )", said, flags=re.M)
    return "".join(block for block in blocks if not re.match(r"metalsim/[^:]*:\d+:\d+: note", block)).strip()


def _torch_include() -> Path:
    return Path(torch.__file__).parent / "include"
