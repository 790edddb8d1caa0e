"""The simulated Apple GPU as a page uses it. Each run has a process of its own: it must be armed before torch."""

from __future__ import annotations

import os
import subprocess
import sys

import nbformat
import pytest

from metallab import isolated, paths
from metalsim import operators

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has a real Apple GPU")
LIMIT = 1800  # seconds: the first run builds the device


def ran(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"METALLAB_DEVICE": "sim"} | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    return (
        done.stdout
        if done.returncode == 0
        else f"{done.stdout}\nENDED {done.returncode}: {done.stderr}"
    )


PROGRAM = """
import metallab, importlib.util
assert importlib.util.find_spec("torch")  # which arms nothing twice
import torch
assert torch.accelerator.current_accelerator().type == "mps"
from metallab import device, memory, simulation, timing
lab = device.pick()
x = torch.arange(6.0, device=lab.torch_device)
print(lab.kind, lab.simulated, lab.label.startswith("simulated Apple GPU (on "), x.device, (x @ x).item())
print("SIMULATED" in str(lab.banner()), torch.cuda.is_available())
got = timing.compare({"a": lambda: x + 1, "b": lambda: x + 1}, on=lab, baseline="a", parity=timing.Unchecked("same"))
print(got.ratios, got.withheld["b"].reason, "simulated" in got["a"].flags)
with memory.peak(on=lab) as peak:
    y = torch.ones(1000, 1000, device="mps")
print(peak.how, peak.bytes >= 4_000_000)
try:
    print(torch.nn.RReLU()(x).shape)
except NotImplementedError as error:
    print(str(error).split(" is not")[0])
events = []
simulation.install(on_event=events.append)
x = torch.ones(4, 4).to("mps")
y = (x @ x).cpu()
print({event.kind for event in events} == {"copy", "op"}, [event.bytes for event in events if event.kind == "copy"])
"""


def test_a_page_s_first_lines_give_a_simulated_apple_gpu():
    """Its name, its products, no speed-up of it, memory, a kernel that is missing, and what a listener hears."""
    printed = ran(PROGRAM)
    assert printed.splitlines() == [
        "mps True True mps:0 55.0",
        "True False",
        "{} simulated True",
        "allocator True",
        "The operator 'aten::rrelu_with_noise'",
        "True [64, 64]",
    ], printed


def test_installing_arms_by_itself_where_torch_is_not_there_yet():
    code = """
from metallab import simulation
print(simulation.install()[:9])
import torch
print(torch.ones(1, device='mps'))
"""
    assert "tensor([1.], device='mps:0')" in ran(code, METALLAB_DEVICE="cpu")


def test_torch_works_without_it_and_the_reason_is_given():
    printed = ran("""
import warnings
import metallab
import metalsim.device
def fails(*_):
    raise metalsim.SimulationError("no room for the build: free some")
metalsim.device._build = fails
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    import torch
print(any("no room for the build" in str(w.message) for w in told), (torch.ones(2) + 1).tolist())
from metallab import device
try:
    device.pick()
except device.DeviceUnavailable as error:
    print(error)
""")
    first, second = printed.splitlines()
    assert first == "True [2.0, 2.0]"
    assert second == "the simulated Apple GPU cannot be used: no room for the build: free some"


def test_too_late_is_told_with_what_to_do():
    torch_is_there = "import sys, types\nsys.modules['torch'] = types.ModuleType('torch')\n"
    printed = ran(
        f"{torch_is_there}try:\n    import metallab\nexcept RuntimeError as error:\n    print(error)"
    )
    assert "torch was imported before" in printed
    assert "`import metallab` under METALLAB_DEVICE=sim" in printed


def test_mpsgraph_works_without_pytorchs_part():
    code = (
        "import metalsim.device\nimport numpy as np\n"
        "def planted(*_, **__):\n    raise metalsim.SimulationError('no device today')\n"
        "metalsim.device.install = planted\nimport MetalPerformanceShadersGraph as mps\n"
        "from metallab import mpsgraph\ngraph = mps.MPSGraph.alloc().init()\n"
        "x = graph.placeholderWithShape_dataType_name_([2], mps.MPSDataTypeFloat32, 'x')\n"
        "y = graph.additionWithPrimaryTensor_secondaryTensor_name_(x, x, None)\n"
        "(y,) = mpsgraph.compile(graph, [x], [y])(np.array([2, 3], np.float32))"
    )
    outcome = isolated.run(code, results=["y"], device="mps", timeout=LIMIT)
    assert outcome.ok, outcome.detail
    assert outcome["y"].tolist() == [4, 6]
    assert "no device today" in outcome.detail  # as a warning


@pytest.mark.parametrize(
    ("operator", "has"),
    [
        *(
            (f"aten::{name}", True)
            for name in ("softshrink", "add.Tensor", "linear", "_linalg_svd.U")
        ),
        *(
            (f"aten::{name}", False)
            for name in ("rrelu_with_noise", "embedding_renorm_", "no_such_operator")
        ),
    ],
)
def test_which_operators_have_a_kernel(operator, has):
    assert operators.has_kernel(operator) == has


PAGE_12 = """
import metallab.device
import torch
from torch import nn

class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x if x.device.type == "mps" else x

torch.manual_seed(0)
"""
"""A layer that is wrong on the GPU, and what lines of page 12 import."""

SEQUENCE = """
model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(), Doubled(), nn.LeakyReLU(inplace=True))
errors = layer_errors(model.eval(), (torch.rand(2, 3),), "mps")
"""

TWICE = """
class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.memory = nn.Embedding(5, 3), nn.LSTM(3, 3)
        self.twice, self.doubled = nn.Linear(3, 3), Doubled()

    def forward(self, x):
        x, _ = self.memory(self.words(x))
        return self.twice(self.doubled(self.twice(x)))

errors = layer_errors(Twice(), (torch.arange(5),), "mps")
"""


def ran_on_page_12(model, show):
    """What a program of page 12's cells prints."""
    page = nbformat.read(paths.NOTEBOOKS / "12_find_the_wrong_layer.ipynb", as_version=4)
    cells = {cell.id: cell.source.partition("\n")[2] for cell in page.cells}
    lines = [PAGE_12, cells["by-hand-code"], cells["by-hand-errors"], model, show]
    return ran("\n".join(lines)).splitlines()


@pytest.mark.parametrize(
    ("model", "names", "wrong"),
    [
        pytest.param(SEQUENCE, "0 1 2 3", "2 3", id="a sequence"),
        pytest.param(
            TWICE, "words memory twice doubled twice", "doubled twice", id="a layer called twice"
        ),
    ],
)
def test_lines_of_page_12_give_each_layer_its_error_in_the_order_of_running(model, names, wrong):
    printed = ran_on_page_12(model, "for name, error in errors: print(name, error > 1e-4)")
    layers = [line.split() for line in printed]
    assert [name for name, _ in layers] == names.split()
    assert [name for name, is_wrong in layers if is_wrong == "True"] == wrong.split()


def test_lines_of_page_12_stop_at_the_first_wrong_layer():
    printed = ran_on_page_12(SEQUENCE, "print_to_first(errors)")
    assert [line.split()[1] for line in printed] == ["0", "1", "2"]
    assert ["first" in line for line in printed] == [False, False, True]


def test_lines_of_page_12_take_an_error_that_is_no_number_for_wrong():
    printed = ran_on_page_12("errors = [('a', 0.0), ('b', float('nan'))]", "print_to_first(errors)")
    assert ["first" in line for line in printed] == [False, True]
