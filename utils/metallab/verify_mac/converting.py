"""From Core ML and ONNX to the GPU and the Neural Engine: Apple's tool, Core ML, ONNX Runtime's provider."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from metallab.verify_mac.trial import Finding, judged, not_applicable, trial

FLAGS = ("-coremlpackage", "-onnx", "-path", "-packageName", "-deploymentPlatform", "-minimumDeploymentTarget")
MAKE = """
import os
os.chdir(FOLDER)
import numpy as np, torch
from pathlib import Path
from torch import nn
from metallab import converters

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
x = torch.randn(1, 1, 16, 16)
np.save("x.npy", x.numpy()); np.save("truth.npy", model(x).detach().numpy())
converters.export_onnx(model.eval(), x, Path("small.onnx"))
if CORE_ML:
    converters.save_core_ml(converters.to_core_ml(model.eval(), size=16), Path("small.mlpackage"))
"""
READ = """
import os
os.chdir(FOLDER)
import numpy as np
from pathlib import Path
from metallab.mpsgraph import packages
t = packages.Tensor
given, made = [t((1, 1, 16, 16), "float32")], [t((1, 10), "float32")]
program = packages.load_core_ml(Path("small.mlpackage"), given, made)
(y,) = program(np.load("x.npy"))
"""
CONVERTED = """
import os
os.chdir(FOLDER)
import numpy as np, MetalPerformanceShadersGraph as mps
from pathlib import Path
from Foundation import NSURL
from metallab import mpsgraph
from metallab.mpsgraph import packages
t = packages.Tensor
given, made = (t((1, 1, 16, 16), "float32"),), (t((1, 10), "float32"),)
executable = mps.MPSGraphExecutable.alloc().initWithMPSGraphPackageAtURL_compilationDescriptor_(
    NSURL.fileURLWithPath_(str(Path(PACKAGE).resolve())), None)
class Ordered:
    def feedTensors(self):
        return given
    def targetTensors(self):
        return made
    def __getattr__(self, name):
        return getattr(executable, name)

program = mpsgraph.Program(Ordered(), given, made)
(y,) = program(np.load("x.npy"))
"""
PREDICT = """
import os
os.chdir(FOLDER)
import numpy as np, coremltools as ct
from metallab import converters
x, found = np.load("x.npy"), {}
for name, unit in converters.UNITS.items():
    model = ct.models.MLModel("small.mlpackage", compute_units=getattr(ct.ComputeUnit, unit))
    spec = model.get_spec().description
    found[name] = np.asarray(model.predict({spec.input[0].name: x})[spec.output[0].name])
"""
PLAN = """
import os
os.chdir(FOLDER)
import coremltools as ct
from coremltools.models.compute_plan import MLComputePlan
model = ct.models.MLModel("small.mlpackage")
plan = MLComputePlan.load_from_path(model.get_compiled_model_path(), compute_units=ct.ComputeUnit.ALL)
devices = {}
for operation in plan.model_structure.program.functions["main"].block.operations:
    usage = plan.get_compute_device_usage_for_mlprogram_operation(operation)
    if usage is not None:
        devices.setdefault(type(usage.preferred_compute_device).__name__, []).append(operation.operator_name)
"""


def _made(core_ml: bool) -> None:
    """Write the small network in this folder as an ONNX file, and as a Core ML package. RuntimeError if that fails."""
    from metallab import isolated

    ran = isolated.run(f"CORE_ML = {core_ml}\n{_here(MAKE)}", timeout=150)
    if not ran.ok:
        raise RuntimeError(f"the network could not be converted: {ran}\n{ran.detail}")


def _here(text: str) -> str:
    return f"FOLDER = {str(Path.cwd())!r}\n{text}"


def _agrees(got: Any, dtype: str) -> str:
    """ "agrees", or how far a result is from the network's."""
    import numpy as np

    from metallab import parity

    return parity.verdict(np.load("truth.npy"), np.asarray(got).reshape(1, 10), dtype)


@trial(on="gpu", used_in="notebook 09: MPSGraph, given the Core ML package", seconds=240)
def mpsgraph_reads_core_ml() -> Finding:
    """``initWithCoreMLPackageAtURL`` (macOS 15) reads a package of coremltools, and answers as PyTorch does."""
    from metallab import isolated

    _made(core_ml=True)
    ran = isolated.run(_here(READ), results=["y"], device="mps", timeout=80)
    if not ran.ok:
        return judged(False, f"the process that reads it {ran}", detail=ran.detail[-2000:])
    said = _agrees(ran["y"], "float32")
    return judged(said == "agrees", said)


@trial(on="mac", used_in="notebook 09, metallab.converters", seconds=90)
def mpsgraphtool_takes_our_flags() -> Finding:
    """``mpsgraphtool``'s usage names the flags that `converters.convert` gives it, which are those of public scripts.

    Its usage in full, without arguments, and of convert.
    """
    from metallab import converters

    runs = {name: converters.mpsgraphtool(*words, timeout=30) for name, words in _QUESTIONS.items()}
    if any(ran.code is None for ran in runs.values()):
        return not_applicable("mpsgraphtool is not here; it comes with Xcode 15 or newer")
    told = "\n".join(f"{ran.out}{ran.err}" for ran in runs.values())
    missing = [flag for flag in FLAGS if flag not in told]
    said = f"not in its usage: {', '.join(missing) or 'none'}"
    return judged(not missing, said, usage={name: str(ran)[:6000] for name, ran in runs.items()})


_QUESTIONS = {"alone": (), "convert": ("convert",), "help": ("convert", "--help")}


@trial(on="mac", used_in="notebook 09", seconds=400)
def mpsgraphtool_converts() -> Finding:
    """``mpsgraphtool convert`` turns the Core ML package and the ONNX file into packages that are right."""
    from metallab import converters, isolated

    if converters.find_tool("mpsgraphtool") is None:
        return not_applicable("mpsgraphtool is not here; it comes with Xcode 15 or newer")
    _made(core_ml=True)
    said, told = {}, {}
    for source, name in (("small.mlpackage", "from_core_ml"), ("small.onnx", "from_onnx")):
        ran = converters.convert(Path(source).resolve(), Path.cwd(), name)
        told[name] = str(ran)[-3000:]
        made = sorted(str(path) for path in Path().glob(f"{name}*"))
        if ran.code != 0 or not made:
            said[name] = f"exit code {ran.code}, made {made}"
            continue
        loaded = isolated.run(f"PACKAGE = {made[0]!r}\n{_here(CONVERTED)}", results=["y"], device="mps", timeout=60)
        said[name] = _agrees(loaded["y"], "float16") if loaded.ok else f"made {made}, loading: {loaded}"
    return judged(set(said.values()) == {"agrees"}, f"{said}", said=said, told=told)


@trial(on="mac", used_in="notebook 09, GPU and Neural Engine", seconds=240)
def core_ml_predicts_on_each_unit() -> Finding:
    """Core ML answers as PyTorch does when it may use the CPU, the GPU, or the Neural Engine.

    At float16's tolerance; which of them it really took is asked in another trial.
    """
    from metallab import isolated

    _made(core_ml=True)
    ran = isolated.run(_here(PREDICT), results=["found"], timeout=150)
    if not ran.ok:
        return judged(False, f"the process that predicts {ran}", detail=ran.detail[-3000:])
    said = {name: _agrees(got, "float16") for name, got in ran["found"].items()}
    return judged(set(said.values()) == {"agrees"}, f"{said}", said=said)


@trial(on="mac", used_in="notebook 09, GPU and Neural Engine", seconds=240)
def core_ml_tells_its_plan() -> Finding:
    """Core ML tells on which unit it prefers to run each operation, through coremltools' MLComputePlan.

    Notebook 09 says that a permission is no order; here is what it chose for a small network.
    """
    from metallab import isolated

    _made(core_ml=True)
    ran = isolated.run(_here(PLAN), results=["devices"], timeout=150)
    if not ran.ok:
        return judged(False, f"the process that asks {ran}", detail=ran.detail[-3000:])
    counts = {name: len(operations) for name, operations in ran["devices"].items()}
    return judged(bool(counts), f"operations by preferred unit: {counts}", devices=ran["devices"])


@trial(on="cpu", used_in="notebook 09, ONNX Runtime's Core ML provider", seconds=240)
def onnx_runtime_reaches_core_ml() -> Finding:
    """ONNX Runtime has the Core ML provider on a Mac, gives it operations, and answers as PyTorch does.

    At float16's tolerance. Elsewhere it computes on the CPU with no more than a warning.
    """
    import numpy as np

    from metallab import converters

    _made(core_ml=False)
    through = converters.OnnxOnCoreML(Path("small.onnx"), cache=Path("cache"), units="ALL")
    said = _agrees(through(np.load("x.npy")), "float16" if through.on_core_ml else "float32")
    taken = {provider: dict(operations) for provider, operations in through.taken().items()}
    if not through.on_core_ml:
        return not_applicable(f"this ONNX Runtime has no Core ML provider; on the CPU it {said}", taken=taken)
    return judged(said == "agrees" and converters.PROVIDER in taken, f"{said}; {taken}", taken=taken)
