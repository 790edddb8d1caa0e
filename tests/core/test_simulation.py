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
    """What a program prints, and how it ended if it failed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"METALLAB_DEVICE": "sim"} | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    if done.returncode == 0:
        return done.stdout
    return f"{done.stdout}\nENDED {done.returncode}: {done.stderr}"


PAGE = """
import metallab, importlib.util
assert importlib.util.find_spec("torch")  # which arms nothing twice
import torch
from metallab import device, memory, simulation, timing
lab = device.pick()
x = torch.arange(6.0, device=lab.torch_device)

def compare():
    unchecked = timing.Unchecked("same")
    both = {"a": lambda: x + 1, "b": lambda: x + 1}
    return timing.compare(both, on=lab, baseline="a", parity=unchecked)

def find_peak():
    with memory.peak(on=lab) as peak:
        torch.ones(1000, 1000, device="mps")
    return peak

def refuse():
    try:
        torch.nn.RReLU()(x)
    except NotImplementedError as error:
        return str(error).split(" is not")[0]

def listen():
    events = []
    simulation.install(on_event=events.append)
    y = torch.ones(4, 4).to("mps")
    (y @ y).cpu()
    return tuple(events)

compared, peak, events = compare(), find_peak(), listen()
"""
"""The first lines of a page, and what it may do then."""

SHOWN = {
    "torch says mps": ("torch.accelerator.current_accelerator().type", "mps"),
    "another GPU is hidden": ("torch.cuda.is_available()", "False"),
    "its kind": ("lab.kind", "mps"),
    "it is simulated": ("lab.simulated", "True"),
    "its label": ("lab.label.startswith('simulated Apple GPU (on ')", "True"),
    "its banner": ("'SIMULATED' in str(lab.banner())", "True"),
    "a tensor's device": ("x.device", "mps:0"),
    "a product": ("(x @ x).item()", "55.0"),
    "no ratio": ("compared.ratios", "{}"),
    "the reason for none": ("compared.withheld['b'].reason", "simulated"),
    "a time is marked": ("'simulated' in compared['a'].flags", "True"),
    "who counts its memory": ("peak.how", "allocator"),
    "its memory": ("peak.bytes >= 4_000_000", "True"),
    "a kernel that is missing": ("refuse()", "The operator 'aten::rrelu_with_noise'"),
    "kinds of events": ("sorted({event.kind for event in events})", "['copy', 'op']"),
    "bytes copied": ("[event.bytes for event in events if event.kind == 'copy']", "[64, 64]"),
}
"""Expressions on such a page, and what printing them shows."""


@pytest.fixture(scope="module")
def page() -> dict[str, str]:
    """What a page shows for each of the expressions, or how it ended."""
    expressions = [expression for expression, _ in SHOWN.values()]
    printed = ran("\n".join([PAGE, *(f"print({each})" for each in expressions)]))
    lines = printed.splitlines()
    assert len(lines) == len(expressions), printed
    return dict(zip(expressions, lines, strict=True))


@pytest.mark.parametrize(("expression", "shown"), SHOWN.values(), ids=SHOWN)
def test_a_page_s_first_lines_give_a_simulated_apple_gpu(page, expression, shown):
    assert page[expression] == shown


def test_installing_arms_by_itself_where_torch_is_not_there_yet():
    code = """
from metallab import simulation
print(simulation.install()[:9])
import torch
print(torch.ones(1, device='mps'))
"""
    assert "tensor([1.], device='mps:0')" in ran(code, METALLAB_DEVICE="cpu")


WITHOUT_ROOM = """
import warnings
import metallab
import metalsim.device

def fails(*_):
    raise metalsim.SimulationError("no room for the build: free some")

metalsim.device._build = fails
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    import torch
print(any("no room for the build" in str(each.message) for each in told))
print((torch.ones(2) + 1).tolist())

from metallab import device
try:
    device.pick()
except device.DeviceUnavailable as error:
    print(error)
"""
"""A program in which the simulated GPU cannot be built."""


@pytest.fixture(scope="module")
def without_room() -> list[str]:
    """What that program shows: whether it was warned with the reason, what torch computes, and what picking it says."""
    return ran(WITHOUT_ROOM).splitlines()


def test_where_it_cannot_be_built_torch_works_and_warns_with_the_reason(without_room):
    has_warned, computed, _ = without_room
    assert has_warned == "True"
    assert computed == "[2.0, 2.0]"


def test_where_it_cannot_be_built_picking_it_is_an_error_with_the_reason(without_room):
    reason = "no room for the build: free some"
    assert without_room[-1] == f"the simulated Apple GPU cannot be used: {reason}"


def test_too_late_is_told_with_what_to_do():
    torch_is_there = "import sys, types\nsys.modules['torch'] = types.ModuleType('torch')\n"
    printed = ran(
        f"{torch_is_there}try:\n    import metallab\nexcept RuntimeError as error:\n    print(error)"
    )
    assert "torch was imported before" in printed
    assert "`import metallab` under METALLAB_DEVICE=sim" in printed


def test_mpsgraph_works_without_pytorchs_part():
    """Where the simulated device cannot be installed, as planted here, graphs compute, and the reason is a warning."""
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


@pytest.mark.parametrize("name", ["softshrink", "add.Tensor", "linear", "_linalg_svd.U"])
def test_these_operators_have_a_kernel(name):
    assert operators.has_kernel(f"aten::{name}")


@pytest.mark.parametrize("name", ["rrelu_with_noise", "embedding_renorm_", "no_such_operator"])
def test_these_operators_have_no_kernel(name):
    assert not operators.has_kernel(f"aten::{name}")


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


PARTED = """
class Parted(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.small, self.large = Doubled(), nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, x):
        is_large = self.gate(x)[:, 0] > 1
        {route}

errors = layer_errors(Parted(), (torch.tensor([[0.2], [0.4], [0.75]]),), "mps")
"""
"""A model whose ways depend on numbers: no row is large on the CPU, and one is on the GPU, where its gate is wrong."""


@pytest.mark.parametrize(
    ("route", "parted"),
    [
        pytest.param("self.small(x[~is_large])", "small", id="another number of rows"),
        pytest.param(
            "(self.large if is_large.any() else self.small)(x)", "small", id="another layer"
        ),
        pytest.param(
            "x = self.large(self.small(x)) if is_large.any() else self.small(x)",
            "large",
            id="one layer more",
        ),
    ],
)
def test_lines_of_page_12_give_an_infinite_error_where_two_runs_part(route, parted):
    printed = ran_on_page_12(PARTED.format(route=route), "print(errors[-1])")
    assert printed == [f"('{parted}', inf)"]


def test_lines_of_page_12_name_the_gate_before_the_runs_part():
    model = PARTED.format(route="self.small(x[~is_large])")
    printed = ran_on_page_12(model, "print_to_first(errors)")
    assert [line.split()[1:] for line in printed] == [["gate", "<--", "first"]]


def test_lines_of_page_12_leave_out_a_layer_that_got_no_rows():
    model = PARTED.format(route="self.small(x); self.large(x[:0])")
    printed = ran_on_page_12(model, "print([name for name, _ in errors])")
    assert printed == ["['gate', 'small']"]


SOUND = """
import copy
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
x = torch.rand(2, 4, 8)
"""


def test_what_page_12_gives_to_paste_accuses_no_layer_of_a_sound_model_with_dropout():
    page = nbformat.read(paths.NOTEBOOKS / "12_find_the_wrong_layer.ipynb", as_version=4)
    text = "".join(
        cell.source for cell in page.cells if cell.id in ("by-hand-read", "backward-read")
    )
    pasted = [block.partition("```")[0] for block in text.split("```python\n")[1:]]

    printed = ran_on_page_12(SOUND, "\n".join(pasted))

    assert len(pasted) == 2
    assert sum("layers.0.self_attn" in line for line in printed) > 2  # of all ways
    assert not [line for line in printed if "<--" in line]


def test_lines_of_page_12_stop_at_the_first_wrong_layer():
    printed = ran_on_page_12(SEQUENCE, "print_to_first(errors)")
    assert [line.split()[1] for line in printed] == ["0", "1", "2"]
    assert ["first" in line for line in printed] == [False, False, True]


def test_lines_of_page_12_take_an_error_that_is_no_number_for_wrong():
    printed = ran_on_page_12("errors = [('a', 0.0), ('b', float('nan'))]", "print_to_first(errors)")
    assert ["first" in line for line in printed] == [False, True]
