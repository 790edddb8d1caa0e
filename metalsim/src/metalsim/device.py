"""A simulated ``mps`` device for torch: unmodified programs run on Linux, with a Mac's rules.

What it knows:

- *What runs where.* An operator with a Metal kernel runs; one without raises PyTorch's own NotImplementedError, or
  falls back to the CPU under ``PYTORCH_ENABLE_MPS_FALLBACK=1`` (`metalsim.operators`).
- *What is refused.* A kernel may refuse a dtype, a size or a setting, with a Mac's exception and words, or leave a call
  to the CPU (`metalsim.refusals`).
- *What is copied.* Copies between CPU and device, and those of a fallback, are counted and reported.
- *What raises.* Mixed devices, float64, ``.numpy()`` of a device tensor, too much memory, a CPU tensor given to a
  shader. Uninitialised memory reads as NaN (whole numbers as -1), or as PyTorch fills it under
  ``torch.use_deterministic_algorithms``, under which kernels that are not deterministic raise. The child of a fork
  cannot use its parent's device.
- *autocast*: PyTorch's own lists for MPS, which every build has.

What it does not know:

- *Speed.* Operators are computed by PyTorch's CPU kernels; no time measured here says anything about Metal.
- *Metal's numerics.* Results are the CPU's. Metal sums in another order, a kernel may be wrong, random numbers differ.
- *Indices out of range, whole numbers divided by 0.* The CPU's kernels raise at once; a Mac may raise later, or never.
- *Asynchronous execution.* Work is finished when a call returns; a missing ``synchronize`` does no harm here. Commands
  of Objective-C++ wait for a commit, or for PyTorch's next work (`metalsim.objc`).
- *Memory pressure.* Memory figures are exact sums of tensors, the device has 16 GiB; Metal rounds, keeps pools, and
  shares with the system.
- *Words.* What a kernel says of a tensor that was left on the CPU is known of some (`metalsim.refusals.left_on_cpu`).
- *Other names.* Linear, convolution, attention and LSTM are one operator as on a Mac; max pooling is reported as
  ``max_pool2d_with_indices``. Sparse and quantised tensors are missing.

How: each device storage owns a CPU storage, so that a CPU kernel can be run on the device's memory without a copy
(``csrc/memory.h``, ``csrc/host_call.h``). Its data pointer is an ``MTLBuffer``, as on a Mac (``csrc/metal.h``).
"""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from metalsim import building, operators, planting, preload, pretending, refusals, work
from metalsim.errors import SimulationError
from metalsim.refusals import alerts
from metalsim.refusals.versions import release

if TYPE_CHECKING:
    import torch

    from metalsim.profiler import Profiler

MODULE = "metalsim_device"
TESTED_TORCH = ("2.11.0", "2.12.0", "2.13.0", "2.14.1", "2.15.0")
"""The releases of PyTorch with which the core of the tests was run, from the oldest one on."""
OLDEST_TORCH, *_, TORCH = TESTED_TORCH
"""The oldest of them, and the one that is followed: the newest one that is known."""
FALLBACK_VARIABLE = "PYTORCH_ENABLE_MPS_FALLBACK"
# Composites that PyTorch registers for every backend that computes, so that a Mac runs what they call.
COMPOSITES = ("aten::linalg_pinv",)
# The values of `Decision` in csrc/host_call.h.
NATIVE, FALLS_BACK, MISSING, LIMITED = 0, 1, 2, 3

_module: ModuleType | None = None
_profiler: Profiler | None = None


@dataclass(frozen=True)
class Event:
    """One thing that happened on the device."""

    kind: Literal["op", "copy", "fallback"]
    name: str
    """The operator: ``aten::add.Tensor``."""
    bytes: int = 0
    """Of a copy, or of a fallback's copies."""
    direction: Literal["", "to device", "to host"] = ""
    """Of a copy."""
    copies: int = 0
    """One for a copy; the copied tensors of a fallback."""
    tensors: str = ""
    """Device, dtype and shape of what was given, as PyTorch's profiler prints them: ``MPS:Float[2, 3]:MPS:Float[]``."""


@dataclass(frozen=True)
class Counters:
    """Events since the device was installed. A fallback's copies are counted apart."""

    ops: int
    copies_to_device: int
    bytes_to_device: int
    copies_to_host: int
    bytes_to_host: int
    fallbacks: int
    fallback_copies: int
    fallback_bytes: int

    def __sub__(self, earlier: Counters) -> Counters:
        """Return the events since ``earlier``."""
        return Counters(
            *(getattr(self, name) - getattr(earlier, name) for name in self.__dataclass_fields__)
        )


def install(on_event: Callable[[Event], None] | None = None) -> str:
    """Switch the simulated device on, and return its `description`.

    A second call changes ``on_event`` only. ``PYTORCH_ENABLE_MPS_FALLBACK`` is read once, here. A torch that is newer
    than `TORCH` is told by a warning.

    Parameters
    ----------
    on_event
        Called for each operator, copy and fallback, on its thread; with None the last one is called no more.

    Raises
    ------
    SimulationError
        If torch was imported before this process was armed (`arm`), or asked for its MPS device; without a compiler, if
        the build fails, for a torch that does not ask for the device where it answers, and on a machine with a real MPS
        device.
    """
    global _module, _profiler
    if _module is None:
        _module, _profiler = _switch_on()

    hearers = []
    if on_event is not None:
        hearers.append(on_event)
    if _profiler is not None and _profiler.logged:
        hearers.append(_profiler.hear)

    _module.listen(functools.partial(_tell, hearers) if hearers else None)
    return description()


def install_with_torch(
    on_event: Callable[[Event], None] | None = None, *, required: bool = False
) -> None:
    """Arm now, and `install` when torch is imported, before anything asks torch for an MPS device.

    Parameters
    ----------
    on_event
        As for `install`.
    required
        Whether importing torch raises if the device cannot be installed, where it would warn. MPSGraph
        (`metalsim.graph`), which needs no device, only warns.

    Raises
    ------
    SimulationError
        If this process cannot be armed (`arm`); of a ``required`` device also when torch is imported.
    """
    preload.arm()
    if "torch" in sys.modules:
        install(on_event)
    else:
        preload.after_torch(lambda: install(on_event), required)


def is_installed() -> bool:
    """Return True once `install` has succeeded in this process."""
    return _module is not None


def counters() -> Counters:
    """Return the events so far. SimulationError before `install`."""
    return Counters(**_require_module().counters())


def count_work() -> int:
    """Return how much was simulated in this process: operators, copies, fallbacks, shaders and graphs.

    Whatever raised it computed on the simulated device, so that its time is no hardware's.
    """
    if _module is None:
        return work.count()

    seen = counters()
    of_torch = seen.ops + seen.copies_to_device + seen.copies_to_host + seen.fallbacks
    return of_torch + work.count()


def host_view(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU view that shares memory with a tensor; not counted as a copy."""
    return _require_module().host_view(tensor)


def description() -> str:
    """Return a line on what is simulated, and on planted faults."""
    import torch

    wrong = "".join(f" PLANTED, wrong on purpose: {name}." for name in planting.list_planted())
    more = "".join(f" Pretended of a Mac: {name}." for name in pretending.list_pretended())
    missing = "run on the CPU and are counted" if _fallback_enabled() else "raise, as on a Mac"
    return (
        f"Simulated Apple GPU: PyTorch {torch.__version__} runs device='mps' on this machine's CPU; operators without "
        f"a Metal kernel {missing}. No time measured here is a GPU's.{more}{wrong}"
    )


def _tell(hearers: list[Callable[[Event], None]], *fields: Any) -> None:
    """Hand an event, whose fields come from C++, to all who asked for it."""
    event = Event(*fields)
    for hear in hearers:
        hear(event)


def _switch_on() -> tuple[ModuleType, Profiler]:
    """Build and load the device, have torch see it, and return its module with this process's profiler.

    SimulationError as of `install`. Each step needs those before it: with the module torch learns what answers for MPS,
    and only then may torch be asked.
    """
    if not preload.is_armed():
        preload.arm()  # raises, and says what to do, if it is too late
    import torch

    from metalsim import objc, patches, profiler

    # asking whether it is available would fix the answer for this process
    if torch.backends.mps.is_built():
        raise SimulationError("this PyTorch has a real MPS device: use it, without metalsim")

    module = _import(_build(torch.__version__))
    if notice := notice_of_newer(torch.__version__):
        warnings.warn(notice, stacklevel=2)

    # the module's answer is yes: another one is what torch remembers of an earlier question
    if not torch._C._mps_is_available():
        raise SimulationError(
            "torch was asked for its MPS device before the simulated one was installed: restart Python and begin with "
            f"{preload.FIRST}, before torch is imported"
        )

    module.install(_decider(), _asker(), _alerter(), _complainer(), torch.version.git_version)
    module.register_native(_operators_with_kernel())
    preload.answer_mps(True)
    # in a newer release the question may be asked of a function that `preload` does not replace
    if str(torch.accelerator.current_accelerator()) != "mps":
        raise SimulationError(
            f"torch {torch.__version__} does not ask for its accelerator where the simulated Apple GPU answers; "
            f"use torch {OLDEST_TORCH} to {TORCH}, for which it is written"
        )

    # before the profiler's, so that it is called after that
    atexit.register(_let_the_last_backward_end)
    this_profiler = profiler.from_environment()
    patches.apply(module.host_view, this_profiler)
    objc.offer(module.connect)
    return module, this_profiler


def knows(version: str) -> bool:
    """Return whether it is written for a release of torch, such as ``2.13.0+cpu``."""
    return release(OLDEST_TORCH) <= release(version) <= release(TORCH)


def notice_of_newer(version: str) -> str | None:
    """Return what to say of a release of torch that is newer than any known one; None for the others."""
    if release(version) <= release(TORCH):
        return None
    return (
        f"torch {version} is newer than {TORCH}, the newest that the simulated Apple GPU knows: which operators have a "
        f"kernel is read from this torch, but what a kernel refuses is what {TORCH} refuses"
    )


def _let_the_last_backward_end() -> None:
    """Wait until autograd's thread for this device has let go of the program's last backward pass.

    PyTorch keeps a Python object with each backward pass, which that thread gives back after the pass has returned. A
    program that ends at once takes Python away from under it, and is aborted (*terminate called without an active
    exception*, seen with PyTorch 2.15.0 in 8 of 12 runs). The thread takes one pass after the other, so another one,
    called without such an object, ends behind the last one's.
    """
    import torch

    with torch.enable_grad():
        number = torch.ones((), device="mps", requires_grad=True)
        engine = torch.autograd.Variable._execution_engine
        engine.run_backward(
            (number * 1,),
            (torch.ones((), device="mps"),),
            False,  # the graph is not kept
            False,  # and no graph of the gradient made
            (),
            allow_unreachable=True,
            accumulate_grad=True,
        )


@dataclass(frozen=True)
class Known:
    """What is known of an operator before its arguments are: `OpInfo` in csrc/host_call.h reads it."""

    decision: int
    """NATIVE, FALLS_BACK, MISSING or LIMITED."""
    widened: Sequence[str]
    """Dtypes that Metal computes with and the CPU does not, as the CPU's errors call them."""
    takes_numbers: bool
    """Whether a number that is on the CPU may stand beside tensors of the device."""
    takes_float8: bool
    """Whether it computes with float8_e4m3fn, as far as the CPU does."""
    asks: bool
    """Whether calls may raise under ``torch.use_deterministic_algorithms(True)``."""
    is_silent: bool
    """Whether the CPU's kernel raises there and the Metal kernel does not."""
    makes_contiguous: bool
    """Whether the Metal kernel makes contiguous results where the CPU's does not."""


_WITH_KERNEL: tuple[operators.Status, ...] = ("native", "composite")
"""Of an operator with a Metal kernel, be it that of each operator which it is made of."""


def _decider() -> Callable[[str], Known]:
    """Return the function that csrc/host_call.h calls `decide`: it is asked once about each operator that is called.

    Whether what has no kernel may be computed on the CPU is read from the environment now, and not at each operator.
    """
    return functools.partial(_describe_operator, falls_back=_fallback_enabled())


def _describe_operator(name: str, falls_back: bool) -> Known:
    """Return what is known of an operator, such as ``aten::add.Tensor``."""
    without_overload = name.partition(".")[0]
    how = operators.status(name)
    known = Known(
        decision=_decide_where(name, how, falls_back),
        widened=(),
        takes_numbers=operators.takes_numbers(name),
        takes_float8=without_overload.removesuffix("_") not in operators.WITHOUT_FLOAT8,
        asks=False,
        is_silent=False,
        makes_contiguous=False,
    )
    if how not in _WITH_KERNEL:
        return known

    # what a Metal kernel does otherwise than the CPU's
    return replace(
        known,
        widened=operators.dtypes_without_cpu_kernel(without_overload),
        asks=refusals.asks_whether_deterministic(name),
        is_silent=without_overload in alerts.SILENT_THERE,
        makes_contiguous=without_overload in operators.CONTIGUOUS,
    )


def _decide_where(name: str, how: operators.Status, falls_back: bool) -> int:
    """Return what becomes of an operator with a status: one of the values of `Decision`.

    `falls_back` says whether one without a kernel may be computed on the CPU.
    """
    if how == "falls back":
        return FALLS_BACK
    if how in _WITH_KERNEL:
        return LIMITED if refusals.looks_at_arguments(name) else NATIVE
    return FALLS_BACK if falls_back else MISSING


def _complainer() -> Callable[[str, Sequence[Any]], str]:
    """Return a function for calls with a tensor that was left on the CPU: see `complain` in csrc/host_call.h."""
    import torch

    def complain(name: str, arguments: Sequence[Any]) -> str:
        with torch._C.DisableTorchFunction():
            return refusals.describe_left_on_cpu(name, arguments)

    return complain


def _alerter() -> Callable[[str, Sequence[Any]], str | None]:
    """Return a function for calls of operators that ask: see `alert` in csrc/host_call.h."""
    import torch

    def alert(name: str, arguments: Sequence[Any]) -> str | None:
        with torch._C.DisableTorchFunction():
            return refusals.alert(name, arguments)

    return alert


def _asker() -> Callable[[str, Sequence[Any]], tuple[str, str] | None]:
    """Return a function for calls of LIMITED operators: see `Outcome` in csrc/host_call.h.

    It returns None for a call that runs, name and words of the exception of one that is refused, and of one that goes
    to the CPU an empty name with PyTorch's warning, which may be empty as well.
    """
    import torch

    def ask(name: str, arguments: Sequence[Any]) -> tuple[str, str] | None:
        with torch._C.DisableTorchFunction():  # reading a shape is not the program's
            outcome = refusals.outcome(name, arguments)

        if outcome is None:
            return None
        if isinstance(outcome, refusals.Refusal):
            return outcome.error.__name__, outcome.words
        return "", outcome.warning

    return ask


def _fallback_enabled() -> bool:
    """Return whether PyTorch was told to compute on the CPU what has no kernel."""
    return os.environ.get(FALLBACK_VARIABLE, "0") not in ("", "0")


def _operators_with_kernel() -> list[str]:
    """Return the ATen operators, without ``aten::``, under whose name `run_any` in csrc is put for the device.

    Those are the ones that have a kernel on a Mac and a kernel for the CPU, or no composite of others to stand in; and
    those that PyTorch itself leaves to the CPU there. Without a kernel under the device's own key the dispatcher would
    take an operator's composite, and the parts would be told and refused where a Mac has the whole.
    """
    import torch

    has = torch._C._dispatch_has_kernel_for_dispatch_key
    composite = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")

    def stands_in(name: str) -> bool:
        if has(name, "MPS"):  # csrc/device.cpp has a function of its own for it
            return False

        if operators.status(name) == "falls back":  # before a composite's parts are asked for
            return True
        if not operators.has_kernel(name) or name.partition(".")[0] in COMPOSITES:
            return False
        return has(name, "CPU") or not any(has(name, key) for key in composite)

    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    return [name.removeprefix("aten::") for name in names if stands_in(name)]


_FLAGS = ("-O1",)
"""What the device is compiled with, beside what torch adds for every extension."""


def _build(torch_version: str) -> Path:
    """Return the library with the device for a torch, built if it is not in the cache. It takes half a minute.

    SimulationError, which names the log of the compiler, if it cannot be built.
    """
    path, version = building.compiler()
    sources = [*building.SOURCES.glob("*.h"), building.SOURCES / "device.cpp"]
    # no folder of this checkout: builds are copied, to students of a hub and to installed packages
    tools = (torch_version, sys.version, version, _BUILD, *_FLAGS)
    name = f"device-{building.key(*tools, files=sources)}"
    # beside the folder, of which nothing stays after a failure
    log = building.cache() / f"{name}.log"

    def build(folder: Path) -> None:
        source = str(building.SOURCES / "device.cpp")
        command = [sys.executable, "-c", _BUILD, str(folder), source, *_FLAGS]
        with log.open("w") as file:
            done = subprocess.run(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=_environment(path),
            )

        if done.returncode:
            raise SimulationError(
                f"the simulated Apple GPU could not be built for torch {torch_version} with {version}; {log} tells "
                f"why. It is written for torch {OLDEST_TORCH} to {TORCH}"
            )

    what = "building the simulated Apple GPU for this torch, half a minute, once ..."
    return building.build_once(name, f"{MODULE}.so", build, progress=what)


# In a process of its own: what it imports and prints stays there.
_BUILD = f"""
import os, shlex, sys
from torch.utils import cpp_extension

folder, source, *flags = sys.argv[1:]
here = os.path.dirname(source)
flags.append(shlex.quote("-ffile-prefix-map=" + here + "=metalsim/csrc"))  # warnings name the file
cpp_extension.load({MODULE!r}, [source], build_directory=folder, extra_cflags=flags, with_cuda=False, verbose=True)
"""


def _environment(compiler: str) -> dict[str, str]:
    """Return this process's environment with a compiler, and with ninja, which lies beside this Python."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, "CXX": compiler}


def _import(path: Path) -> ModuleType:
    """Load the device's library as a module of Python."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise SimulationError(f"{path} is no library that Python can load")

    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _require_module() -> ModuleType:
    """Return the device. SimulationError before `install`."""
    if _module is None:
        raise SimulationError(
            "the simulated Apple GPU is not installed: call metalsim.install() first"
        )
    return _module
