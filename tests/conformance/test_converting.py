"""mpsgraphtool, Core ML, ONNX Runtime"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from metallab import converters, isolated, parity

FLAGS = ("-coremlpackage", "-onnx", "-path", "-packageName", "-deploymentPlatform", "-minimumDeploymentTarget")
QUESTIONS = {"alone": (), "convert": ("convert",), "help": ("convert", "--help")}
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
x = np.load("x.npy")
model = ct.models.MLModel("small.mlpackage", compute_units=getattr(ct.ComputeUnit, converters.UNITS[UNIT]))
spec = model.get_spec().description
y = np.asarray(model.predict({spec.input[0].name: x})[spec.output[0].name])
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


def make(core_ml: bool) -> None:
    """Write the small network into this folder as an ONNX file, and as a Core ML package."""
    ran = isolated.run(_here(f"CORE_ML = {core_ml}\n{MAKE}"), timeout=150)
    if not ran.ok:
        raise RuntimeError(f"the network could not be converted: {ran}\n{ran.detail}")


def _here(text: str) -> str:
    return f"FOLDER = {str(Path.cwd())!r}\n{text}"


def verdict(got: np.ndarray, dtype: str) -> str:
    """ "agrees", or how far a result is from the network's."""
    return parity.agreement(np.load("truth.npy"), np.asarray(got).reshape(1, 10), dtype)


@pytest.mark.claim(on="gpu", used_in="notebook 09b: MPSGraph, given the Core ML package", seconds=240, slow=True)
def test_mpsgraph_reads_core_ml():
    """``initWithCoreMLPackageAtURL`` (macOS 15) reads a package of coremltools, and answers as PyTorch does."""
    make(core_ml=True)
    ran = isolated.run(_here(READ), results=["y"], device="mps", timeout=80)
    assert ran.ok, ran.detail[-2000:]
    assert verdict(ran["y"], "float32") == parity.AGREES


@pytest.mark.claim(on="mac", used_in="notebook 09b, metallab.converters", seconds=90)
def test_mpsgraphtool_takes_our_flags(evidence):
    """``mpsgraphtool``'s usage names the flags that `converters.convert` gives it, which are those of public scripts.

    Its usage in full, without arguments, and of convert.
    """
    runs = {name: converters.mpsgraphtool(*words, timeout=30) for name, words in QUESTIONS.items()}
    if any(ran.code is None for ran in runs.values()):
        pytest.skip("mpsgraphtool is not here; it comes with Xcode 15 or newer")
    evidence("usage", {name: str(ran)[:6000] for name, ran in runs.items()})
    told = "\n".join(f"{ran.out}{ran.err}" for ran in runs.values())
    missing = [flag for flag in FLAGS if flag not in told]
    assert not missing


@pytest.mark.claim(on="mac", used_in="notebook 09b", seconds=250)
@pytest.mark.parametrize("source", ["small.mlpackage", "small.onnx"])
def test_mpsgraphtool_converts(source, evidence):
    """``mpsgraphtool convert`` turns the Core ML package and the ONNX file into packages that are right."""
    if converters.find_tool("mpsgraphtool") is None:
        pytest.skip("mpsgraphtool is not here; it comes with Xcode 15 or newer")
    make(core_ml=True)
    ran = converters.convert(Path(source).resolve(), Path.cwd(), "converted")
    evidence("told", str(ran)[-3000:])
    made = sorted(str(path) for path in Path().glob("converted*"))
    evidence("made", made)
    assert ran.code == 0
    assert made
    loaded = isolated.run(_here(f"PACKAGE = {made[0]!r}\n{CONVERTED}"), results=["y"], device="mps", timeout=60)
    assert loaded.ok, loaded.detail
    assert verdict(loaded["y"], "float16") == parity.AGREES


@pytest.mark.claim(on="mac", used_in="notebook 09b, GPU and Neural Engine", seconds=240)
@pytest.mark.parametrize("unit", converters.UNITS)
def test_core_ml_predicts_on_each_unit(unit):
    """Core ML answers as PyTorch does when it may use the CPU, the GPU, or the Neural Engine.

    At float16's tolerance; which of them it really took is asked in another test.
    """
    make(core_ml=True)
    ran = isolated.run(_here(f"UNIT = {unit!r}\n{PREDICT}"), results=["y"], timeout=100)
    assert ran.ok, ran.detail[-3000:]
    assert verdict(ran["y"], "float16") == parity.AGREES


@pytest.mark.claim(on="mac", used_in="notebook 09b, GPU and Neural Engine", seconds=240)
def test_core_ml_tells_its_plan(evidence):
    """Core ML tells on which unit it prefers to run each operation, through coremltools' MLComputePlan.

    Notebook 09b says that a permission is no order; here is what it chose for a small network.
    """
    make(core_ml=True)
    ran = isolated.run(_here(PLAN), results=["devices"], timeout=100)
    assert ran.ok, ran.detail[-3000:]
    evidence("operations by preferred unit", {name: len(operations) for name, operations in ran["devices"].items()})
    assert ran["devices"]


@pytest.mark.claim(on="cpu", used_in="notebook 09b, ONNX Runtime's Core ML provider", seconds=240, slow=True)
def test_onnx_runtime_reaches_core_ml(evidence):
    """ONNX Runtime has the Core ML provider on a Mac, gives it operations, and answers as PyTorch does.

    At float16's tolerance. Elsewhere it computes on the CPU.
    """
    make(core_ml=False)
    through = converters.OnnxOnCoreML(Path("small.onnx"), cache=Path("cache"), units="ALL")
    answer = verdict(through(np.load("x.npy")), through.dtype)
    evidence("taken", taken := {provider: dict(operations) for provider, operations in through.taken().items()})
    assert answer == parity.AGREES
    if not through.on_core_ml:
        pytest.skip("this ONNX Runtime has no Core ML provider; on the CPU it agrees")
    assert converters.PROVIDER in taken


@pytest.mark.claim(on="cpu", used_in="notebook 10, what goes wrong", seconds=240, slow=True)
def test_core_ml_leaves_int8_to_the_cpu(evidence):
    """ONNX Runtime's Core ML provider does not take networks in QDQ form: their int8 is the CPU's.

    None of a small network's convolution and product, quantised, is taken.
    """
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Typical(CalibrationDataReader):
        given = iter([{"input": np.load("x.npy")}])

        def get_next(self):
            return next(self.given, None)

    make(core_ml=False)
    small = Path("int8.onnx")
    quantize_static("small.onnx", small, Typical())
    through = converters.OnnxOnCoreML(small, cache=Path("cache"), units="ALL")
    evidence("taken", taken := {provider: dict(operations) for provider, operations in through.taken().items()})
    if not through.on_core_ml:
        pytest.skip("this ONNX Runtime has no Core ML provider")
    assert not {"Conv", "Gemm", "QLinearConv", "QGemm"} & set(taken.get(converters.PROVIDER, {}))
