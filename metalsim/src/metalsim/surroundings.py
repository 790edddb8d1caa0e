"""What a program meets on a Mac around its GPU: worker processes that are spawned, and a PyTorch without CUDA.

``python -m metalsim`` and ``pytest --metalsim`` set both up; ``--keep fork`` and ``--metalsim-keep cuda`` leave one as
Linux has it. A program that arms itself (`metalsim.install_with_torch`) keeps Linux's.

**Workers.** macOS starts processes by *spawn*: what a process is to do is pickled, and its main module is imported
again. Linux forks, so that a dataset with a lambda, and a script without ``if __name__ == "__main__"``, work there
alone. Here spawn becomes the default start method. What a program chooses itself holds, as on a Mac. A process that
spawn or forkserver starts has a simulated GPU of its own: it is armed while it reads what it is to do, which is before
it imports anything of the program.

**CUDA.** PyTorch's build for Linux may bring CUDA, the one for macOS never does. A function that lacks it says so in
other words than one that finds no driver, and by another exception. So what a build without CUDA does not have is taken
out of ``torch._C`` before ``torch.cuda`` is imported, which then does what it does in such a build.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import re
import sys
from collections.abc import Callable, Collection, Mapping
from multiprocessing import spawn
from types import MappingProxyType
from typing import Any

from metalsim import device, preload, pretending

_set_up: list[str] = []


def set_up(keep: Collection[str] = ()) -> None:
    """Give this process a Mac's surroundings, before torch is imported, but for what Linux's is to be kept of.

    Parameters
    ----------
    keep
        What stays as on Linux: names of `SURROUNDINGS`.

    Raises
    ------
    ValueError
        For a name that is not among them.
    """
    for name in keep:
        if name not in SURROUNDINGS:
            raise ValueError(f"metalsim cannot keep {name!r}; it can {', '.join(SURROUNDINGS)}")

    for name, begin in SURROUNDINGS.items():
        if name not in keep and name not in _set_up:
            begin()
            _set_up.append(name)
    _arm_what_is_spawned()


# ---- workers --------------------------------------------------------------------------------------------------------

KEY = "metalsim"
"""Of what a new process is told."""


class _Arming:
    """A value that arms the process in which it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        kept = [name for name in SURROUNDINGS if name not in _set_up]
        return _arm_this_process, (kept, pretending.list_pretended())


def _make_spawn_the_default() -> None:
    """Make spawn the start method of a program that chooses none, as it is on macOS."""
    chosen_by_none: Any = multiprocessing.context._default_context
    chosen_by_none._default_context = multiprocessing.get_context("spawn")


def _arm_what_is_spawned() -> None:
    """Have the processes that multiprocessing starts armed, before they import what they are to run."""
    tell = spawn.get_preparation_data
    if getattr(tell, KEY, False):
        return

    def tell_and_arm(name: str) -> dict[str, Any]:
        return {KEY: _Arming(), **tell(name)}  # the first that is read

    setattr(tell_and_arm, KEY, True)
    spawn.get_preparation_data = tell_and_arm


def _arm_this_process(keep: Collection[str], pretences: Collection[str]) -> None:
    """Do in a spawned process what its parent did at its start."""
    if "torch" in sys.modules:  # of a server that forks, and is no process of the program's
        return

    preload.arm()
    pretending.pretend(*pretences)
    set_up(keep)
    preload.after_torch(device.install, required=True)


# ---- CUDA -----------------------------------------------------------------------------------------------------------

# What of torch._C a build for macOS lacks: read by comparing the names in it with the texts in libtorch_python.dylib of
# PyTorch 2.15's wheel for macOS.
_OF_CUDA = re.compile(
    r"_cuda_\w+|_Cuda\w+|_CUDA\w+|_nccl_\w+|_gds_\w+|_cudnn|_cudart|_cusparselt|_nvtx|_MemPool|_CUuuid"
    r"|_FastCudaLauncher|_StaticCudaLauncher|_construct_CUDA_Tensor_From_Storage_And_Metadata"
    r"|_graph_pool_handle|_broadcast|_broadcast_out|_gather|_gather_out|_scatter|_scatter_out"
)


def _leave_cuda_out() -> None:
    """Have CUDA taken out as soon as torch comes to it."""
    preload.before_import("torch.cuda", _take_cuda_out)


def _take_cuda_out() -> None:
    """Take CUDA out of a torch that is being imported and has not come to ``torch.cuda``."""
    import torch

    for name in dir(torch._C):
        if _OF_CUDA.fullmatch(name):
            delattr(torch._C, name)
    torch._C._has_cuda = False
    torch._C._has_cudnn = False
    torch.version.cuda = None


SURROUNDINGS: Mapping[str, Callable[[], None]] = MappingProxyType(
    {"fork": _make_spawn_the_default, "cuda": _leave_cuda_out}
)
"""What can be kept of Linux, and what is done where it is not: that workers are forked, that PyTorch has CUDA."""
