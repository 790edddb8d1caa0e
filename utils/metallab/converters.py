"""From PyTorch to ONNX and Core ML, and from these to an Apple GPU and the Neural Engine.

By Apple's mpsgraphtool, Core ML, and ONNX Runtime's Core ML provider. What is on a Mac only answers elsewhere with one
line that says what it would do.
"""

from __future__ import annotations

import functools
import io
import logging
import shlex
import shutil
import subprocess
import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from metallab import checks, isolated, machine, needs, parity, plots, timing
from metallab.timing import Comparison, Host

if TYPE_CHECKING:
    from torch import Tensor, nn

File = TypeVar("File", Path, io.BytesIO)

PROVIDER = "CoreMLExecutionProvider"
UNITS = {"CPU": "CPU_ONLY", "GPU": "CPU_AND_GPU", "Neural Engine": "CPU_AND_NE"}
"""coremltools' names of what Core ML may use. It may always use the CPU, and chooses itself what runs where."""


def export_onnx(network: nn.Module, example: Tensor, file: File, *, any_batch: bool = False) -> File:
    """Write a PyTorch network as ONNX, as it computes in evaluation mode, to a path or into memory; returns ``file``.

    Its input is named ``input``, its first output ``output``. It takes inputs of the shape of ``example``; with
    ``any_batch`` their first size may be another one. By PyTorch's older exporter, which is deprecated: the newer one
    needs onnxscript, which wants a newer onnx. RuntimeError for an operation that it does not know.
    """
    import torch

    axes = {"input": {0: "batch"}, "output": {0: "batch"}} if any_batch else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is the older one, and that shapes are fixed
        torch.onnx.export(
            network, (example,), file, dynamo=False, opset_version=17,
            input_names=["input"], output_names=["output"], dynamic_axes=axes,
        )  # fmt: skip
    return file


def import_coremltools() -> Any:
    """``import coremltools``, in a third of its seconds: the packages that it would also import are hidden.

    Only in a process of its own, see `metallab.isolated`: it takes a gigabyte all the same.
    """
    hidden = {"tensorflow", "torchvision", "sklearn"} - sys.modules.keys()
    sys.modules.update(dict.fromkeys(hidden))  # None: an import of it fails
    logging.disable(logging.WARNING)  # of versions newer than those that it was tested with
    try:
        import coremltools
    finally:
        for name in hidden:
            del sys.modules[name]  # some of coremltools' functions ask for scikit-learn when they need it
    return coremltools


def to_core_ml(network: nn.Module, size: int) -> Any:
    """A network for one grey picture of ``size`` x ``size`` as a Core ML program in float32: coremltools' `MLModel`.

    ``network`` is in evaluation mode. Only in a process of its own, see `import_coremltools`.
    """
    import torch

    coremltools = import_coremltools()
    example = torch.zeros(1, 1, size, size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that tracing is deprecated: coremltools takes no other kind as it is
        return coremltools.convert(
            torch.jit.trace(network, example),
            inputs=[coremltools.TensorType(shape=example.shape)],
            compute_precision=coremltools.precision.FLOAT32,
            minimum_deployment_target=coremltools.target.macOS13,
            skip_model_load=True,
        )


def save_core_ml(model: Any, path: Path) -> int:
    """Save coremltools' `MLModel` as a package, which is a folder, and return the bytes of its files."""
    model.save(str(path))
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


@dataclass(frozen=True)
class ToolRun:
    """What a call of a command-line tool gave; ``code`` is None where the tool is missing and nothing ran."""

    command: tuple[str, ...]
    code: int | None = None
    out: str = ""
    err: str = ""

    def __str__(self) -> str:
        words = [shlex.quote(word) for word in self.command]
        line = " ".join(f"\\\n    {word}" if word.startswith("-") else word for word in words)  # a line for each flag
        if self.code is None:
            name = self.command[0]
            return f"{name} is not on this machine (it comes with Xcode 15 or newer, on a Mac). It would run:\n{line}"
        output = "\n".join(text.strip() for text in (self.out, self.err) if text.strip())
        return f"{line}\nexit code {self.code}\n{output}".rstrip()


def find_tool(name: str) -> str | None:
    """The path of a tool of Xcode: on PATH, or where ``xcrun`` finds it; None without it."""
    if on_path := shutil.which(name):
        return on_path
    if not (xcrun := shutil.which("xcrun")):
        return None
    asked = subprocess.run([xcrun, "-f", name], capture_output=True, text=True, check=False)
    return (asked.stdout.strip() or None) if asked.returncode == 0 else None


def mpsgraphtool(*arguments: str, timeout: float = 300.0) -> ToolRun:
    """Run Apple's mpsgraphtool; look at the ``code`` of what comes back. `subprocess.TimeoutExpired` if it hangs.

    A negative code is a signal's: the tool may abort on a model that it cannot convert (-6, or 134 from a shell).
    """
    if not (tool := find_tool("mpsgraphtool")):
        return ToolRun(("mpsgraphtool", *arguments))
    command = (tool, *arguments)
    pipes = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace"}
    ran = subprocess.run(command, check=False, timeout=timeout, **pipes)
    return ToolRun(command, ran.returncode, ran.stdout, ran.stderr)


def convert(model: Path, folder: Path, name: str) -> ToolRun:
    """Convert a Core ML package (``.mlpackage``) or an ONNX file (``.onnx``) to ``name``.mpsgraphpackage in a folder.

    A page on a Mac without the tool becomes incomplete (`metallab.needs`).
    ValueError for another kind of file. The flags are those of public scripts for Xcode 15; ``mpsgraphtool`` without
    arguments tells which ones yours takes.
    """
    kinds = {".mlpackage": "-coremlpackage", ".onnx": "-onnx"}
    if model.suffix not in kinds:
        raise ValueError(f"mpsgraphtool converts {' and '.join(kinds)}, not {model.name}")
    if sys.platform == "darwin" and find_tool("mpsgraphtool") is None:
        needs.incomplete(f"mpsgraphtool's conversion of {model.name}", "install Xcode from the App Store")
    target = ["-path", str(folder), "-packageName", name]
    return mpsgraphtool(
        "convert", kinds[model.suffix], str(model), *target, "-deploymentPlatform", "macOS",
        "-minimumDeploymentTarget", "15.0.0",
    )  # fmt: skip


def race_core_ml(package: Path, x: np.ndarray, truth: np.ndarray, chip: str) -> Comparison:
    """A Core ML package on CPU, GPU and Neural Engine: outputs compared with ``truth`` first, then timed.

    Only on a Mac, and in a process of its own, as `race_units` does. The model has one input and one output. Outputs
    are compared at float16's tolerance, which is what the Neural Engine computes in.
    """
    import coremltools as ct

    models = {
        name: ct.models.MLModel(str(package), compute_units=getattr(ct.ComputeUnit, unit))
        for name, unit in UNITS.items()
    }
    spec = models["CPU"].get_spec().description
    given, made = spec.input[0].name, spec.output[0].name
    predict = lambda model: np.asarray(model.predict({given: x})[made])
    return timing.compare(
        {name: functools.partial(predict, model) for name, model in models.items()},
        on={name: Host(f"{chip}, Core ML with {unit}") for name, unit in UNITS.items()},
        baseline="CPU",
        parity=checks.matches("float16", truth=truth),
        name="Core ML",
    )


_RACE = """
from pathlib import Path
import numpy as np
from metallab import converters
arrays = np.load({arrays!r})
race = converters.race_core_ml(Path({package!r}), arrays["x"], arrays["truth"], {chip!r})
"""


def race_units(package: Path, x: np.ndarray, truth: np.ndarray) -> list[Comparison]:
    """`race_core_ml` in a process of its own; an empty list where Core ML does not compute, which is only on a Mac.

    `metallab.isolated.ChildFailed`, with the reason, if it does not end well there.
    """
    if sys.platform != "darwin" or not package.exists():
        return []
    file = package.with_suffix(".npz")
    np.savez(file, x=x, truth=truth)
    chip = machine.describe().chip or "this Mac"
    program = _RACE.format(arrays=str(file), package=str(package), chip=chip)
    return [isolated.run(program, results=["race"], timeout=600)["race"]]


ROUTES = {
    "MPSGraph": ("layer by layer", "", "MPSGraph", "GPU"),
    "MPSGraphPackage": ("layer by layer", "MPSGraphPackage", "MPSGraph", "GPU"),
    "Core ML package in MPSGraph": ("coremltools", ".mlpackage", "MPSGraph", "GPU"),
    "ONNX in ONNX Runtime": ("torch.onnx.export", ".onnx", "ONNX Runtime", "Core ML; else the CPU"),
}
"""Ways from a PyTorch network to Apple's chips: what makes which file, what reads or converts it, and what computes."""


def draw_routes(verdicts: Mapping[str, str], computed_on: Mapping[str, str], *, device: str) -> Figure:
    """`ROUTES` as a map, in green where a route's answers agree with PyTorch's, in red where they differ.

    ``verdicts`` maps a route's name to what `metallab.parity.agreement` said; why there is no answer is grey, and a
    route without a verdict is left out. ``computed_on`` maps it to what really computed. KeyError for other names.
    """
    if unknown := (verdicts.keys() | computed_on.keys()) - ROUTES.keys():
        raise KeyError(f"{sorted(unknown)} are no routes; these are: {', '.join(ROUTES)}")
    drawn = {route: steps for route, steps in ROUTES.items() if route in verdicts}
    colours = {parity.AGREES: plots.GREEN, "DIFFERS": plots.RED}
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(figsize=(9, 0.9 + 0.5 * len(drawn)))
        axes.axis("off")
        axes.set(xlim=(0, 4.9), ylim=(len(drawn) - 0.4, -1))
        for column, heading in enumerate(["made by", "file", "read or converted by", "computes on", "answers"]):
            axes.text(column, -0.75, heading, fontweight="bold")
        for row, (route, steps) in enumerate(drawn.items()):
            colour = colours.get(verdicts[route].partition(":")[0], plots.GREY)
            for column, step in enumerate([*steps[:-1], computed_on.get(route, steps[-1])]):
                if step:
                    box = {"boxstyle": "round", "facecolor": "white", "edgecolor": colour}
                    axes.text(column, row, textwrap.fill(step, 18), va="center", fontsize=9, bbox=box)
            axes.text(len(steps), row, textwrap.shorten(verdicts[route], 20), va="center", fontsize=9, color=colour)
        plots.title(figure, "From a PyTorch network to Apple's chips", [device])
    return plots.described(figure, "; ".join(f"{route}: {verdict}" for route, verdict in verdicts.items()))


class OnnxOnCoreML:
    """An ONNX file in ONNX Runtime, with Core ML for what its Core ML provider takes and the CPU for the rest.

    ``units`` is ``CPUOnly``, ``CPUAndGPU``, ``CPUAndNeuralEngine`` or ``ALL``. The compiled model is kept in ``cache``,
    so that a later process need not compile it. Where ONNX Runtime has no such provider it computes on the CPU:
    ``on_core_ml`` says what was really got.
    """

    def __init__(self, model: Path, cache: Path, units: str = "ALL") -> None:
        import onnxruntime

        cache.mkdir(parents=True, exist_ok=True)
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        how = {"ModelFormat": "MLProgram", "MLComputeUnits": units, "RequireStaticInputShapes": "1"}
        wanted = [(PROVIDER, how | {"ModelCacheDirectory": str(cache)}), "CPUExecutionProvider"]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Specified provider")  # `on_core_ml` says it
            self.session = onnxruntime.InferenceSession(str(model), options, providers=wanted)

    @property
    def on_core_ml(self) -> bool:
        """Whether the session has the Core ML provider."""
        return PROVIDER in self.session.get_providers()

    @property
    def computed_on(self) -> str:
        """What computes: ``CPU``, or ``Core ML`` if the session has its provider."""
        return "Core ML" if self.on_core_ml else "CPU"

    @property
    def dtype(self) -> str:
        """At whose tolerance to compare its answers: Core ML may compute a float32 network in float16."""
        return "float16" if self.on_core_ml else "float32"

    def taken(self) -> Mapping[str, Counter[str]]:
        """The operations that each provider took, and how many of each."""
        counts: dict[str, Counter[str]] = {}
        for part in self.session.get_provider_graph_assignment_info():
            counts.setdefault(part.ep_name, Counter()).update(node.op_type for node in part.get_nodes())
        return counts

    def __call__(self, x: np.ndarray) -> np.ndarray:
        (given,) = self.session.get_inputs()
        return self.session.run(None, {given.name: x})[0]
