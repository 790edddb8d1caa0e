"""Plain cells that use an Apple GPU, on machines without one: ``device="mps"`` works where a notebook says so.

On Linux without another GPU, ``import metallab`` in a Jupyter kernel, before torch, lets the cells of the notebook use
the simulated Apple GPU by its name. Nothing is loaded for it before a cell says ``"mps"``. ``device.pick()``,
``torch.accelerator`` and ``torch.backends.mps.is_available()`` go on saying CPU, so that only a tensor sent to ``mps``
by its name is simulated (`metalsim.by_name`). On a Mac ``mps`` is the real GPU, and nothing is done here. In a script,
a worker, a test or a command nothing is done anywhere: there ``METALLAB_DEVICE=sim`` and ``python -m metalsim``
simulate.

A page's cell begins with a comment, which names what later cells need of it::

    # device: mps -> price

Where ``mps`` works in this kernel it is a comment. Where it does not, the cell runs as one that begins with
``%%isolated price --device mps`` (`metallab.isolated`): in a second kernel, from which ``price`` comes back. That is so

- beside an NVIDIA or an AMD GPU, which PyTorch would lose in the process that has a simulated Apple GPU;
- where torch was imported before metallab;
- where a compiler, or a PyTorch that the simulation knows, is missing: the second kernel's cell then says what to do,
  and the page is incomplete.

So a marked cell must not use what unmarked cells have set, and an unmarked one takes from it what stands behind the
arrow. A cell that calls ``compile_shader`` needs a compiler for shaders as well, and so do the marked cells after it,
because they would miss its names.
"""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Sequence

from metallab import isolated, needs, simulation

MARK = re.compile(r"# device: mps(?: -> (?P<results>\w+(?:, \w+)*))?\s*$")
"""The first line of a cell that uses an Apple GPU, and what it gives to cells without such a line."""

NAMES_MPS = re.compile(
    r"""["']mps(?::\d+)?["']|\btorch\.mps\b|\bimport mps\b|\bmpsgraph\b|\bMetalPerformanceShaders"""
)
"""What a cell says that uses the device by its name. That it says it and does not use it costs two seconds."""

CALLS_COMPILER = re.compile(r"\bcompile_shader\(")

OTHER_GPUS = ("/dev/nvidia[0-9]*", "/proc/driver/nvidia/gpus/*", "/dev/kfd", "/dev/dxg")
"""Files by which a GPU is known that PyTorch calls ``cuda``: NVIDIA's, AMD's, either one under Windows."""

TOO_LATE = (
    'torch was imported before metallab, so "mps" is not simulated in this notebook: restart the kernel, and import '
    "metallab first"
)
_tools: set[str] = set()
"""What the marked cells so far needed besides the device, by the names of `needs.TOOLS`."""

NOTICE = '"mps" is a simulated Apple GPU here, whose times say nothing about a Mac.'


def prepare() -> None:
    """Let the cells of this notebook use ``mps``, if this process is a notebook's kernel; ``import metallab`` calls it.

    Cells that are marked can run in a second kernel from then on, on every machine. What makes ``mps`` work in this one
    comes on Linux alone, beside no other GPU and before torch: a sentence is printed where torch is there already.
    """
    if not is_notebook():
        return

    from IPython import get_ipython

    shell = get_ipython()
    isolated.load_ipython_extension(shell)
    shell.input_transformers_cleanup.append(send_elsewhere)
    if not _is_for_simulation():
        return
    if "torch" in sys.modules:
        print(TOO_LATE)
        return

    simulation.offer(_use_if_named)
    shell.events.register("pre_run_cell", lambda info: _look_at(info.raw_cell))
    _look_at(shell.user_ns["In"][-1])  # this cell, whose beginning nobody has told of


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, and not one that it has started.

    What a kernel forks has its modules and its shell, but not the thread that sends outputs. The second kernel of
    `metallab.isolated` says itself what it is.
    """
    application = sys.modules.get("ipykernel.kernelapp")
    if application is None or isolated.is_second_kernel():
        return False
    if not application.IPKernelApp.initialized():
        return False

    outputs = getattr(application.IPKernelApp.instance(), "iopub_thread", None)
    return outputs is not None and outputs.thread.is_alive()


def has_other_gpu() -> bool:
    """Return whether there is a GPU that PyTorch calls ``cuda``, without asking PyTorch."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):  # hidden, so there is nothing to lose
        return False
    return any(glob.glob(pattern) for pattern in OTHER_GPUS)


def describe_mps() -> str:
    """Return a sentence on what ``mps`` is in this notebook, for its banner; empty where there is nothing to say."""
    if sys.platform == "darwin" or not is_notebook():
        return ""
    if simulation.is_offered() and simulation.is_ready():
        return 'What is sent to "mps" by its name runs on a simulated Apple GPU.'
    return "Cells that begin with '# device: mps', if there are any, run on a simulated Apple GPU, in a second process."


def send_elsewhere(lines: Sequence[str]) -> Sequence[str]:
    """Turn a marked cell into one of `metallab.isolated` where it cannot run in this kernel; leave others alone.

    Parameters
    ----------
    lines
        Of a cell, as an input transformer of IPython gets them.
    """
    mark = MARK.match(lines[0]) if lines else None
    if mark is None:
        return lines

    if CALLS_COMPILER.search("".join(lines)):
        _tools.add("shader-compiler")
    if _runs_here() and not needs.missing(_tools):
        return lines

    results = (mark["results"] or "").split(", ")
    options = [f"--needs {tool}" for tool in sorted(_tools)]
    magic = " ".join(["%%isolated", *filter(None, results), "--device mps", *options])
    return [f"{magic}\n", *lines[1:]]


def _is_for_simulation() -> bool:
    """Return whether this kernel may have a simulated Apple GPU by its name, beside the device that its run has."""
    chosen = os.environ.get("METALLAB_DEVICE") or "auto"
    return sys.platform == "linux" and chosen in ("auto", "cpu") and not has_other_gpu()


def _runs_here() -> bool:
    """Return whether ``mps`` works in this kernel, or will once it is used."""
    if needs.missing(["apple-gpu"]):
        return False
    if sys.platform == "darwin" or simulation.running():
        return True
    return simulation.is_ready() and needs.other_torch() is None


class _Named:
    """Whether a cell has named ``mps`` that could not be installed yet, as torch was not there."""

    is_pending = False
    has_failed = False


def _look_at(cell: str) -> None:
    """Install the device before a cell runs here that names it."""
    if not NAMES_MPS.search(cell) or simulation.running() or _Named.has_failed:
        return
    first = cell.partition("\n")[0]
    if first.startswith("%%isolated") or (MARK.match(first) and not _runs_here()):
        return

    simulation.offer_graphs()
    if "torch" in sys.modules:
        _use()
    else:
        _Named.is_pending = True


def _use_if_named() -> None:
    """Install the device as soon as torch is imported, if the cell that does it names it."""
    if _Named.is_pending:
        _use()


def _use() -> None:
    """Install the device, and say in a line what it is, or why it is not here.

    The cell goes on without it: perhaps it only asks whether there is an Apple GPU.
    """
    _Named.is_pending = False
    try:
        simulation.install()
    except simulation.SimulationUnavailable as error:
        _Named.has_failed = True
        print(f'"mps" cannot be used: {error}')
        return
    print(NOTICE)
