"""mpsgraphtool, Core ML, ONNX Runtime"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from conformance.claims import find_tool
from metallab import isolated, parity

PROVIDER = "CoreMLExecutionProvider"

FLAGS = (
    "-coremlpackage",
    "-onnx",
    "-path",
    "-packageName",
    "-deploymentPlatform",
    "-minimumDeploymentTarget",
)
QUESTIONS = {"alone": (), "convert": ("convert",), "help": ("convert", "--help")}
MAKE = """
import os
os.chdir(FOLDER)
import numpy as np, torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
x = torch.randn(1, 1, 16, 16)
np.save("x.npy", x.numpy()); np.save("truth.npy", model(x).detach().numpy())
names = {"input_names": ["input"], "output_names": ["output"]}
torch.onnx.export(model.eval(), (x,), "small.onnx", dynamo=False, opset_version=17, **names)
if CORE_ML:
    import sys
    sys.modules["tensorflow"] = None  # which coremltools would import as well
    import coremltools as ct
    ct.convert(
        torch.jit.trace(model, x), inputs=[ct.TensorType(shape=x.shape)], skip_model_load=True,
        compute_precision=ct.precision.FLOAT32, minimum_deployment_target=ct.target.macOS13,
    ).save("small.mlpackage")
"""
LOADED = """
import os
os.chdir(FOLDER)
import numpy as np, MetalPerformanceShadersGraph as mps
from Foundation import NSURL
from metallab import mpsgraph
graph = mps.MPSGraph.alloc().init()
kind = mps.MPSDataTypeFloat32
place = graph.placeholderWithShape_dataType_name_
x, y = place([1, 1, 16, 16], kind, "x"), place([1, 10], kind, "y")  # the shapes of input and output
read = getattr(mps.MPSGraphExecutable.alloc(), METHOD)
executable = read(NSURL.fileURLWithPath_(PACKAGE), None)
(y,) = mpsgraph.Program(executable, (x,), (y,), (x,), (y,))(np.load("x.npy"))
"""
PREDICT = """
import os
os.chdir(FOLDER)
import numpy as np, coremltools as ct
x = np.load("x.npy")
model = ct.models.MLModel("small.mlpackage", compute_units=getattr(ct.ComputeUnit, UNIT))
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


def loaded(method: str, package: str) -> isolated.Outcome:
    """What MPSGraph answers by a package that a method of MPSGraphExecutable reads."""
    text = f"METHOD, PACKAGE = {method!r}, {str(Path(package).resolve())!r}\n{LOADED}"
    return isolated.run(_here(text), results=["y"], device="mps", timeout=80)


def mpsgraphtool(*words: str, timeout: float = 300) -> subprocess.CompletedProcess:
    """Run Apple's mpsgraphtool. A negative code is a signal's: it may abort on a model that it cannot convert."""
    if not (tool := find_tool("mpsgraphtool")):
        pytest.skip("mpsgraphtool is not here; it comes with Xcode 15 or newer")
    pipes = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace"}
    return subprocess.run([tool, *words], check=False, timeout=timeout, **pipes)


class OnCoreML:
    """An ONNX file in ONNX Runtime, with Core ML for what its Core ML provider takes and the CPU for the rest.

    ``there`` says whether this ONNX Runtime has that provider, and ``taken`` which operations each provider has taken.
    """

    def __init__(self, model: str) -> None:
        options = onnxruntime.SessionOptions()
        # or the session does not tell which provider takes which node
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        self.there = PROVIDER in onnxruntime.get_available_providers()

        wanted = (
            [(PROVIDER, {"ModelFormat": "MLProgram", "RequireStaticInputShapes": "1"})]
            if self.there
            else []
        )
        self.session = onnxruntime.InferenceSession(
            model, options, providers=[*wanted, "CPUExecutionProvider"]
        )
        self.taken: dict[str, list[str]] = {}
        for part in self.session.get_provider_graph_assignment_info():
            self.taken.setdefault(part.ep_name, []).extend(
                node.op_type for node in part.get_nodes()
            )


def verdict(got: np.ndarray, dtype: str) -> str:
    """ "agrees", or how far a result is from the network's."""
    return str(parity.agreement(np.load("truth.npy"), np.asarray(got).reshape(1, 10), dtype))


@pytest.mark.claim(
    on="gpu", used_in="notebook 41: MPSGraph, given the Core ML package", seconds=240, slow=True
)
def test_mpsgraph_reads_core_ml():
    """``initWithCoreMLPackageAtURL`` (macOS 15) reads a package of coremltools, and answers as PyTorch does."""
    make(core_ml=True)
    ran = loaded("initWithCoreMLPackageAtURL_compilationDescriptor_", "small.mlpackage")
    assert ran.ok, ran.detail[-2000:]
    assert verdict(ran["y"], "float32") == "agrees"


@pytest.mark.claim(on="mac", used_in="notebook 41", seconds=90)
def test_mpsgraphtool_takes_our_flags(evidence):
    """``mpsgraphtool``'s usage names the flags that notebook 41 gives it, which are those of public scripts.

    Its usage in full, without arguments, and of convert.
    """
    runs = {name: mpsgraphtool(*words, timeout=30) for name, words in QUESTIONS.items()}
    evidence("usage", {name: f"{ran.stdout}{ran.stderr}"[:6000] for name, ran in runs.items()})
    told = "\n".join(f"{ran.stdout}{ran.stderr}" for ran in runs.values())
    missing = [flag for flag in FLAGS if flag not in told]
    assert not missing


@pytest.mark.claim(on="mac", used_in="notebook 41", seconds=250)
@pytest.mark.parametrize("source", ["small.mlpackage", "small.onnx"])
def test_mpsgraphtool_converts(source, evidence):
    """``mpsgraphtool convert`` turns the Core ML package and the ONNX file into packages that are right."""
    if find_tool("mpsgraphtool") is None:  # asked before two conversions are made for nothing
        pytest.skip("mpsgraphtool is not here; it comes with Xcode 15 or newer")
    make(core_ml=True)

    kind = "-onnx" if source.endswith(".onnx") else "-coremlpackage"
    target = ["-deploymentPlatform", "macOS", "-minimumDeploymentTarget", "15.0.0"]
    place = ["-path", str(Path.cwd()), "-packageName", "converted"]
    ran = mpsgraphtool("convert", kind, str(Path(source).resolve()), *place, *target)
    evidence("told", f"{ran.stdout}{ran.stderr}"[-3000:])
    made = sorted(str(path) for path in Path().glob("converted*"))
    evidence("made", made)
    assert ran.returncode == 0
    assert made

    read = loaded("initWithMPSGraphPackageAtURL_compilationDescriptor_", made[0])
    assert read.ok, read.detail
    assert verdict(read["y"], "float16") == "agrees"


@pytest.mark.claim(on="mac", used_in="notebook 41, GPU and Neural Engine", seconds=240)
@pytest.mark.parametrize("unit", ["CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE"])
def test_core_ml_predicts_on_each_unit(unit):
    """Core ML answers as PyTorch does when it may use the CPU, the GPU, or the Neural Engine.

    At float16's tolerance; which of them it really took is asked in another test.
    """
    make(core_ml=True)
    ran = isolated.run(_here(f"UNIT = {unit!r}\n{PREDICT}"), results=["y"], timeout=100)
    assert ran.ok, ran.detail[-3000:]
    assert verdict(ran["y"], "float16") == "agrees"


@pytest.mark.claim(on="mac", used_in="notebook 41, GPU and Neural Engine", seconds=240)
def test_core_ml_tells_its_plan(evidence):
    """Core ML tells on which unit it prefers to run each operation, through coremltools' MLComputePlan.

    Notebook 41 says that a permission is no order; here is what it chose for a small network.
    """
    make(core_ml=True)
    ran = isolated.run(_here(PLAN), results=["devices"], timeout=100)
    assert ran.ok, ran.detail[-3000:]
    evidence(
        "operations by preferred unit",
        {name: len(operations) for name, operations in ran["devices"].items()},
    )
    assert ran["devices"]


@pytest.mark.claim(
    on="cpu", used_in="notebook 41, ONNX Runtime's Core ML provider", seconds=240, slow=True
)
def test_onnx_runtime_reaches_core_ml(evidence):
    """ONNX Runtime has the Core ML provider on a Mac, gives it operations, and answers as PyTorch does.

    At float16's tolerance. Elsewhere it computes on the CPU.
    """
    make(core_ml=False)
    through = OnCoreML("small.onnx")
    answer = through.session.run(None, {"input": np.load("x.npy")})[0]
    evidence("taken", through.taken)
    assert verdict(answer, "float16" if through.there else "float32") == "agrees"
    if not through.there:
        pytest.skip("this ONNX Runtime has no Core ML provider; on the CPU it agrees")
    assert PROVIDER in through.taken


@pytest.mark.claim(on="cpu", used_in="notebook 43, what goes wrong", seconds=240, slow=True)
def test_core_ml_leaves_int8_to_the_cpu(evidence):
    """ONNX Runtime's Core ML provider does not take networks in QDQ form: their int8 is the CPU's.

    None of a small network's convolution and product, quantised, is taken.
    """
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    make(core_ml=False)

    class Typical(CalibrationDataReader):
        """One input to calibrate with, and then None, which ends the calibration."""

        given = iter([{"input": np.load("x.npy")}])

        def get_next(self):
            return next(self.given, None)

    small = Path("int8.onnx")
    quantize_static("small.onnx", small, Typical())
    through = OnCoreML(str(small))
    evidence("taken", through.taken)
    if not through.there:
        pytest.skip("this ONNX Runtime has no Core ML provider")
    assert not {"Conv", "Gemm", "QLinearConv", "QGemm"} & set(through.taken.get(PROVIDER, []))
