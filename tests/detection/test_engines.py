"""Another engine gives what the network gives, for the shape that it was made for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from metallab import checks
from metallab.detection import engines


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5), nn.Flatten())


def test_onnx_runtime_gives_what_the_network_gives(network, recwarn):
    x = torch.randn(2, 3, 8, 8)
    network.train()
    engine = engines.OnnxNetwork(network, x, threads=1)
    assert network.training, "the network itself stays as it was"
    with torch.no_grad():
        expected = network.eval()(x.flip(-1))
    checks.assert_close(expected, engine(x.flip(-1)), "float32")
    checks.assert_close(expected, engine(x.permute(0, 1, 3, 2).flip(-2).permute(0, 1, 3, 2)), "float32")
    settings = engine.session.get_session_options()
    assert settings.intra_op_num_threads == 1
    assert settings.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert not recwarn.list
    with pytest.raises(Exception, match="dimensions"):
        engine(torch.randn(1, 3, 8, 8))


def test_onnx_runtime_sends_nothing_home_and_keeps_nothing_there(tmp_path):
    """It would keep a device id and a queue of usage data under the home folder as soon as it is imported."""
    code = (
        "import torch; from metallab.detection import engines\n"
        "engines.OnnxNetwork(torch.nn.ReLU(), torch.ones(2))(torch.ones(2))"
    )
    kept = {name: value for name, value in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "HOME")}
    subprocess.run([sys.executable, "-c", code], env=kept | {"HOME": str(tmp_path)}, check=True, timeout=120)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and "matplotlib" not in str(path)]


class Recording:
    """Stands in for CUDA's graphs: what is called inside `torch.cuda.graph` is replayed into the same memory."""

    def __init__(self, monkeypatch, network) -> None:
        self.calls = 0
        outer = self

        class Stream:
            def wait_stream(self, other):
                pass

        class Graph:
            def replay(self):
                outer.output.copy_(network(outer.input))

        class Capture:
            def __init__(self, graph):
                pass

            def __enter__(self):
                outer.recording = True

            def __exit__(self, *_):
                outer.recording = False

        class Aside(Capture):
            __enter__ = __exit__ = lambda *_: None

        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "current_stream", Stream)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph", Capture)
        monkeypatch.setattr(torch.cuda, "stream", Aside)
        self.network, self.recording, self.warm_ups = network, False, 0

    def __call__(self, x):
        output = self.network(x)
        if self.recording:
            self.input, self.output = x, output
        else:
            self.warm_ups += 1
        return output


def test_a_recorded_launch_computes_with_new_input(monkeypatch):
    """On a pretended CUDA; notebook 08b runs it on a real one."""
    recording = Recording(monkeypatch, lambda x: 2 * x)
    example = torch.ones(3)
    engine = engines.CudaGraph(recording, example)
    assert recording.warm_ups == 3
    assert engine(torch.full((3,), 5.0)).tolist() == [10, 10, 10]
    assert example.tolist() == [1, 1, 1]
    for other in (torch.ones(4), torch.ones(3).half()):
        with pytest.raises(ValueError, match="recorded for"):
            engine(other)
