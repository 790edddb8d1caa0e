"""The C++ and Objective-C++ sources of this folder, built by `torch.utils.cpp_extension.load` and kept under build/.

``load("softshrink.cpp")`` builds when it is first called on a machine, which takes some seconds, and loads from then
on. Where it cannot build it says what is missing and what to do.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import torch

from metallab import bootstrap, needs, paths, simulation
from metallab.pytorch import kernels
from metalsim import building

# What PyTorch's own kernels are compiled with, by what torch.backends.cpu.get_cpu_capability() finds. Other processors
# (Apple's among them) need no option for their vector instructions.
VECTORS = {
    "AVX2": ("-mavx2", "-mfma", "-mf16c", "-DCPU_CAPABILITY=AVX2", "-DCPU_CAPABILITY_AVX2"),
    "AVX512": (
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"),
        *("-DCPU_CAPABILITY=AVX512", "-DCPU_CAPABILITY_AVX512"),
    ),
}


class CannotBuild(kernels.CannotCompile):
    """A C++ or Objective-C++ source cannot be built or loaded here; the message says why and what to do."""


@functools.cache
def load(name: str) -> Any:
    """Build a source of this folder if need be, and load it.

    Parameters
    ----------
    name
        ``softshrink.cpp`` or ``softshrink.mm``. The second needs an Apple GPU, be it simulated.

    Returns
    -------
    namespace or module
        ``torch.ops.metallab_cpu``, in which ``softshrink.cpp`` registers its operators; of ``softshrink.mm`` a Python
        module.

    Raises
    ------
    CannotBuild
        Where a tool is missing, the source does not compile, or what was built does not load. It is not remembered: the
        next call tries again.
    """
    cpp_extension = kernels.cpp_extension()
    _put_own_tools_on_path()
    if fault := _find_missing(name):
        raise CannotBuild(f"{name} cannot be built: {fault}")

    is_module = name.endswith(".mm")
    flags: list[str] = []
    if not is_module:
        flags = ["-O3", *VECTORS.get(torch.backends.cpu.get_cpu_capability(), ())]

    needs.use_compiler()  # else PyTorch would take another one than `_folder` names
    try:
        folder = _folder(name, flags)
        paths.make_folder(folder.parent)

        # one process at a time, in a folder that is emptied after a build that was interrupted: PyTorch's own lock is a
        # file that such a build leaves behind, and the next one would wait for it for ever
        with building.seal(folder):
            module = cpp_extension.load(
                name=f"metallab_{name.replace('.', '_')}",
                sources=[str(kernels.FOLDER / name)],
                extra_cflags=flags,
                build_directory=str(folder),
                is_python_module=is_module,
            )
    except (OSError, ImportError, RuntimeError) as error:
        raise CannotBuild(
            f"{name} cannot be built or loaded: {_first_error(str(error))}"
        ) from error
    return module if is_module else torch.ops.metallab_cpu


def _put_own_tools_on_path() -> None:
    """Put this Python's folder on PATH, where Ninja lies: the environment may not be activated."""
    own, path = sysconfig.get_path("scripts"), os.environ.get("PATH", "")
    if own not in path.split(os.pathsep):
        os.environ["PATH"] = f"{own}{os.pathsep}{path}"


def _find_missing(name: str) -> str | None:
    """Return what building wants and this machine has not, with what to do; None if nothing."""
    cpp_extension = kernels.cpp_extension()

    has_mps = torch.backends.mps.is_available() or simulation.running()
    if name.endswith(".mm") and not has_mps:
        return (
            "it runs on an Apple GPU. Without one, run it on the simulated one: in a cell that begins with "
            "%%isolated --device mps, or with METALLAB_DEVICE=sim in the environment"
        )
    if not cpp_extension.is_ninja_available():
        return "ninja is not here. `pip install ninja`"

    if not needs.has_compiler():
        compiler, *_options = bootstrap.find_compiler()
        fix = needs.TOOLS["c++"].fix()
        return f"there is no C++ compiler ({compiler}). `{fix}`, then try again"
    return None


def _folder(name: str, flags: list[str]) -> Path:
    """Return a folder for all that the result depends on, so that nothing stale is loaded."""
    tools = (torch.__version__, sys.version, platform.machine(), *_identify_compilers(name))
    parts = (kernels.source(name), *tools, *flags)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    return paths.BUILD / "kernels" / f"{name}-{key}"


def _identify_compilers(name: str) -> list[str]:
    """Return the command of each compiler that builds a source, and the version that it gives.

    Ninja compares commands, and would keep what an older compiler of the same name has built.
    """
    command = bootstrap.find_compiler()
    answer = subprocess.run([*command, "--version"], capture_output=True, text=True)
    identity = [*command, answer.stdout.partition("\n")[0]]

    if name.endswith(".mm") and simulation.running():
        from metalsim.shader import compiler

        # this one compiles Objective-C++ there, and the other one links
        identity.append(compiler.find_compiler().identity)
    return identity


def _first_error(output: str) -> str:
    """Return what a compiler or linker complained about first, or the first line of something else's complaint."""
    lines = output.splitlines() or ["no reason given"]
    for line in lines:
        if "error:" in line or "undefined reference" in line:
            return line
    return lines[0]
