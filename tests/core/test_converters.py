"""mpsgraphtool, Core ML and ONNX Runtime's Core ML provider, with stand-ins for what only a Mac has."""

from __future__ import annotations

import io
import os
import sys
import types
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from metallab import checks, converters, isolated, needs, parity, plots

TOOL = """#!/bin/sh
echo "converted $@"
echo "a warning" >&2
exit 134
"""


def script(folder, name, text):
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(text)
    file.chmod(0o755)
    return file


def test_the_tool_is_found_and_run(tmp_path, monkeypatch):
    tool = script(tmp_path / "xcode", "mpsgraphtool", TOOL)
    script(tmp_path / "bin", "xcrun", f'#!/bin/sh\n[ "$1 $2" = "-f mpsgraphtool" ] && echo {tool}\n')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    ran = converters.convert(tmp_path / "m.onnx", tmp_path, "m")
    assert (ran.code, ran.err) == (134, "a warning\n")
    assert ran.out.startswith(f"converted convert -onnx {tmp_path / 'm.onnx'} -path {tmp_path} -packageName m")
    assert "exit code 134" in str(ran)
    assert "-coremlpackage" in converters.convert(tmp_path / "m.mlpackage", tmp_path, "m").command
    with pytest.raises(ValueError, match=r"not m\.pt2"):
        converters.convert(tmp_path / "m.pt2", tmp_path, "m")
    script(tmp_path / "bin", "xcrun", "#!/bin/sh\necho error: unable to find utility\nexit 72\n")
    missing = converters.mpsgraphtool("convert", "-onnx", "a b.onnx")
    assert missing.code is None
    assert str(missing).endswith("-onnx 'a b.onnx'")


class Model:
    """A stand-in for coremltools' MLModel, which computes wrongly where it is told to."""

    wrong = ""

    def __init__(self, path, compute_units):
        self.units = compute_units

    def get_spec(self):
        named = lambda name: [types.SimpleNamespace(name=name)]
        return types.SimpleNamespace(description=types.SimpleNamespace(input=named("x"), output=named("y")))

    def predict(self, inputs):
        return {"y": inputs["x"] * (3 if self.units in self.wrong else 2)}


UNITS = types.SimpleNamespace(CPU_ONLY="cpu", CPU_AND_GPU="gpu", CPU_AND_NE="ne")


def test_core_ml_is_compared_before_it_is_timed(monkeypatch, tmp_path):
    monkeypatch.setenv("METALLAB_MODE", "fast")
    coremltools = types.SimpleNamespace(models=types.SimpleNamespace(MLModel=Model), ComputeUnit=UNITS)
    monkeypatch.setitem(sys.modules, "coremltools", coremltools)
    x = np.arange(4, dtype=np.float32)
    race = lambda: converters.race_core_ml(tmp_path, x, 2 * x, "M2")
    assert set(race().paired) == {"GPU", "Neural Engine"}
    assert race()["Neural Engine"].device == "M2, Core ML with CPU_AND_NE"
    for wrong, left in (("ne", {"GPU"}), ("cpu gpu ne", set())):
        monkeypatch.setattr(Model, "wrong", wrong)
        assert set(race().paired) == left


CORE_ML = """
import types
from test_converters import UNITS as ComputeUnit, Model
models = types.SimpleNamespace(MLModel=Model)
"""


def test_core_ml_races_in_a_process_of_its_own_on_a_mac(monkeypatch, tmp_path):
    """With a stand-in for coremltools that the other process imports."""
    (tmp_path / "coremltools.py").write_text(CORE_ML)
    (package := tmp_path / "m.mlpackage").mkdir()
    monkeypatch.setenv("METALLAB_MODE", "fast")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parent}", prepend=os.pathsep)
    x = np.arange(4, dtype=np.float32)
    monkeypatch.setattr(converters, "sys", types.SimpleNamespace(platform="linux"))
    assert converters.race_units(package, x, 2 * x) == []
    monkeypatch.setattr(converters, "sys", types.SimpleNamespace(platform="darwin"))
    (race,) = converters.race_units(package, x, 2 * x)
    assert set(race.measurements) == {"CPU", "GPU", "Neural Engine"}


def test_a_mac_without_xcode_makes_the_page_incomplete(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    gaps = []
    monkeypatch.setattr(needs, "incomplete", lambda *gap: gaps.append(gap))
    for platform in ("linux", "darwin"):
        monkeypatch.setattr(converters, "sys", types.SimpleNamespace(platform=platform))
        assert converters.convert(tmp_path / "m.onnx", tmp_path, "m").code is None
    assert gaps == [("mpsgraphtool's conversion of m.onnx", "install Xcode from the App Store")]


def test_a_network_is_written_as_it_computes_in_evaluation_mode(tmp_path, recwarn):
    import onnxruntime
    import torch

    torch.manual_seed(0)
    network, x = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5)).train(), torch.randn(2, 3)
    memory = converters.export_onnx(network, x, io.BytesIO(), any_batch=True)
    path = converters.export_onnx(network, x, tmp_path / "m.onnx")
    assert network.training, "the network itself stays as it was"
    free, fixed = (
        onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        for model in (memory.getvalue(), str(path))
    )
    network.eval()
    for session, y in ((free, x), (fixed, x), (free, torch.randn(5, 3))):
        checks.assert_close(network(y).detach().numpy(), session.run(["output"], {"input": y.numpy()})[0], "float32")
    with pytest.raises(Exception, match="dimensions"):
        fixed.run(None, {"input": np.zeros((5, 3), np.float32)})
    assert not recwarn.list


def test_what_onnx_runtime_took_is_told(tmp_path):
    import torch

    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()).eval(), torch.ones(2, 3)
    file = converters.export_onnx(model, x, tmp_path / "m.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no such provider here
        through = converters.OnnxOnCoreML(file, tmp_path / "cache")
    dtype = "float16" if through.on_core_ml else "float32"
    checks.assert_close(model(x).detach().numpy(), through(x.numpy()), dtype)
    if not through.on_core_ml:
        assert through.taken() == {"CPUExecutionProvider": Counter(Gemm=1, Tanh=1)}


def test_a_map_of_routes_shows_what_agreed():
    truth = np.ones(3, np.float32)
    answers = {
        "MPSGraph": truth.copy(),
        "MPSGraphPackage": truth + 1,
        "ONNX in ONNX Runtime": isolated.Skipped("no tool"),
    }
    verdicts = {route: parity.agreement(truth, answer) for route, answer in answers.items()}
    figure = converters.draw_routes(verdicts, {"ONNX in ONNX Runtime": "only the CPU"}, device="a CPU")
    colours = {text.get_text(): text.get_color() for text in figure.axes[0].texts}
    assert colours["agrees"] == plots.GREEN
    assert "only the CPU" in colours
    assert "Core ML; else the CPU" not in colours, "it is known which"
    assert ".mlpackage" not in colours, "a route without a verdict is left out"
    assert colours["Nothing to [...]"] == plots.GREY
    assert [colour for word, colour in colours.items() if word.startswith("DIFFERS")] == [plots.RED]
    with pytest.raises(KeyError, match="by hand"):
        converters.draw_routes({"by hand": "agrees"}, {}, device="a CPU")
