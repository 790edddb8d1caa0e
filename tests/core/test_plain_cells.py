"""Plain cells that use ``mps`` by its name, in real kernels, and what stays as it is everywhere else."""

from __future__ import annotations

import os
import subprocess
import sys

import live_kernel
import pytest

from metallab import plain_cells

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has a real Apple GPU")

CPU = {"METALLAB_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": "-1"}
SETUP = """
import metallab.device
import torch
from metallab import plots, tables, timing, units

lab = metallab.device.pick()
short = timing.Budget(max_samples=6, min_samples=6, min_seconds=0.0, max_seconds=1.0)
same = timing.Unchecked("the same work")
y = torch.ones(8, 8)
"""
ASKED = """
print(torch.backends.mps.is_available(), torch.accelerator.is_available())
print(torch.accelerator.current_accelerator(), torch.mps.device_count(), lab.kind)
"""
SAYS_CPU = ["False False", "None 0 cpu"]


@pytest.fixture(scope="module")
def kernel():
    """A notebook on the CPU that has sent a tensor to ``mps``."""
    with live_kernel.start(**CPU) as running:
        running.run(SETUP)
        running.run('x = torch.ones(8, 8, device="mps")')
        yield running


# ---- by its name, and for nobody else ------------------------------------------------------------------------------


def test_nothing_is_loaded_before_a_cell_names_it():
    with live_kernel.start(**CPU) as fresh:
        fresh.run(SETUP)
        said = fresh.run("import metalsim; print(metalsim.is_installed(), (y + y).sum().item())")
        assert said == "False 128.0\n"


def test_the_cell_that_imports_may_name_it():
    with live_kernel.start(**CPU) as fresh:
        said = fresh.run(f'{SETUP}\nprint(torch.ones(2, device="mps").sum().item())')
        assert said.splitlines() == [plain_cells.NOTICE, "2.0"]


def test_a_model_trains_on_it(kernel):
    said = kernel.run(
        'model = torch.nn.Linear(8, 2).to("mps")\nmodel(x).sum().backward()\n'
        "print(model.weight.grad.device)"
    )
    assert said == "mps:0\n"


def test_the_notice_is_one_line_and_comes_once():
    with live_kernel.start(**CPU) as fresh:
        fresh.run(SETUP)
        assert fresh.run('_ = y.to("mps")') == f"{plain_cells.NOTICE}\n"
        assert fresh.run('_ = y.to("mps")') == ""


def test_torch_goes_on_saying_that_there_is_none(kernel):
    assert kernel.run(ASKED).splitlines() == SAYS_CPU


def test_the_device_that_is_picked_by_its_name_says_that_it_is_simulated(kernel):
    said = kernel.run(
        'gpu = metallab.device.pick("mps"); print(gpu.kind, gpu.simulated, gpu.label)'
    )
    assert said.startswith("mps True simulated Apple GPU")


def test_the_banner_says_that_mps_is_simulated(kernel):
    assert "simulated" in kernel.run("print(lab.banner())")


def draw_in_a_fresh_kernel() -> str:
    """Return the numbers that a GPU draws first, in a kernel that set a seed before it used the GPU."""
    with live_kernel.start(**CPU) as fresh:
        fresh.run(f"{SETUP}\ntorch.manual_seed(7)")
        return fresh.run('print(torch.rand(3, device="mps").tolist())')


def test_a_seed_that_was_set_before_it_was_used_counts():
    assert draw_in_a_fresh_kernel() == draw_in_a_fresh_kernel()


def test_keras_on_pytorch_computes_on_the_cpu():
    """Keras takes ``mps`` where torch says that it is available, which it does not say where a cell only names it."""
    training = """
import keras
import numpy as np

model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
model.compile(loss="mse", optimizer="sgd")
model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)
print({weight.value.device.type for weight in model.weights})
"""
    with live_kernel.start(**CPU, KERAS_BACKEND="torch") as running:
        running.run(SETUP)
        running.run('x = torch.ones(2, device="mps")')
        assert running.run(training) == "{'cpu'}\n"


# ---- where it cannot be had ----------------------------------------------------------------------------------------


def test_without_a_compiler_the_first_use_says_what_is_missing(tmp_path):
    with live_kernel.start(**CPU, PATH=str(tmp_path)) as running:
        assert "Error" not in running.run(SETUP)
        said = running.run('torch.ones(2, device="mps")')
        assert "g++" in said.splitlines()[0]


def test_without_a_compiler_a_marked_cell_is_left_out(tmp_path):
    with live_kernel.start(**CPU, PATH=str(tmp_path)) as running:
        running.run(SETUP)
        said = running.run('# device: mps\ntorch.ones(2, device="mps")')
        assert said.startswith("NOT RUN")
        assert "Error" not in said


def test_where_torch_came_first_that_is_told_and_a_marked_cell_runs_in_another_process():
    with live_kernel.start(**CPU) as running:
        assert running.run(f"import torch\n{SETUP}") == f"{plain_cells.TOO_LATE}\n"
        assert "RuntimeError" in running.run('y.to("mps")')

        running.run(
            "# device: mps -> total\nimport os, torch\n"
            'total = torch.ones(3, device="mps").sum().item(), os.getpid()'
        )
        said = running.run("import os; print(total[0], total[1] != os.getpid())")
        assert said == "3.0 True\n"


@pytest.mark.parametrize("pattern", plain_cells.OTHER_GPUS)
def test_another_gpu_is_known_by_its_file(monkeypatch, tmp_path, pattern):
    here = f"{tmp_path}{pattern}"
    file = tmp_path / pattern.replace("[0-9]*", "0").replace("*", "0").lstrip("/")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(plain_cells, "OTHER_GPUS", (here,))
    assert not plain_cells.has_other_gpu()
    file.parent.mkdir(parents=True)
    file.touch()
    assert plain_cells.has_other_gpu()


def test_a_gpu_that_is_hidden_is_none(monkeypatch, tmp_path):
    monkeypatch.setattr(plain_cells, "OTHER_GPUS", (str(tmp_path),))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not plain_cells.has_other_gpu()


# ---- marked cells --------------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(monkeypatch):
    """A kernel in which ``mps`` does not work."""
    monkeypatch.setattr(plain_cells, "_runs_here", lambda: False)
    monkeypatch.setattr(plain_cells, "_tools", set())


@pytest.mark.parametrize(
    ("mark", "magic"),
    [
        ("# device: mps", "%%isolated --device mps"),
        ("# device: mps -> a", "%%isolated a --device mps"),
        ("# device: mps -> a, b", "%%isolated a b --device mps"),
    ],
)
def test_a_marked_cell_becomes_an_isolated_one(elsewhere, mark, magic):
    assert plain_cells.send_elsewhere([f"{mark}\n", "x = 1\n"]) == [f"{magic}\n", "x = 1\n"]


@pytest.mark.parametrize("line", ["x = 1\n", "# device: cuda\n", "# device: mps, or another\n", ""])
def test_other_cells_are_left_alone(elsewhere, line):
    assert plain_cells.send_elsewhere([line, "y = 2\n"]) == [line, "y = 2\n"]


def test_a_cell_that_compiles_shaders_needs_their_compiler_and_so_do_later_ones(elsewhere):
    compiling = plain_cells.send_elsewhere(["# device: mps\n", "torch.mps.compile_shader(text)\n"])
    later = plain_cells.send_elsewhere(["# device: mps\n", "call()\n"])
    assert compiling[0].endswith("--needs shader-compiler\n")
    assert later[0].endswith("--needs shader-compiler\n")


def test_a_marked_cell_stays_where_mps_works(monkeypatch):
    monkeypatch.setattr(plain_cells, "_runs_here", lambda: True)
    monkeypatch.setattr(plain_cells, "_tools", set())
    cell = ["# device: mps -> x\n", "x = 1\n"]
    assert plain_cells.send_elsewhere(cell) == cell


# ---- no kernel, no change ------------------------------------------------------------------------------------------

TRAINS = """
import metallab, sys, torch
device = "mps" if torch.backends.mps.is_available() else "cpu"
model = torch.nn.Linear(2, 1).to(device)
model(torch.ones(3, 2, device=device)).sum().backward()
print(model.weight.grad.device.type, "metalsim" in sys.modules)
"""


def run_script(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "METALLAB_DEVICE": "auto", "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=live_kernel.LIMIT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_script_trains_on_the_cpu():
    assert run_script(TRAINS) == "cpu False\n"


def test_a_cell_with_such_a_script_trains_on_the_cpu(kernel):
    assert kernel.run(TRAINS.replace('"metalsim" in sys.modules', "1")) == "cpu 1\n"


STARTED = {
    "a program": "import subprocess, sys\n"
    "subprocess.run([sys.executable, '-c', 'from metallab import plain_cells as p; "
    "import sys; sys.exit(p.is_notebook())'], check=True)\nprint('not one')",
    "a fork": "import os\nif not (child := os.fork()):\n"
    "    from metallab import plain_cells\n    os._exit(plain_cells.is_notebook())\n"
    "print('not one' if os.waitpid(child, 0)[1] == 0 else 'one')",
    "an isolated cell": "%%isolated\nfrom metallab import plain_cells\n"
    "print('one' if plain_cells.is_notebook() else 'not one')",
}


@pytest.mark.parametrize("cell", STARTED.values(), ids=STARTED)
def test_what_a_kernel_starts_is_no_notebook(kernel, cell):
    assert kernel.run(cell).strip() == "not one"


def test_a_kernel_is_a_notebook(kernel):
    assert kernel.run("print(metallab.plain_cells.is_notebook())") == "True\n"


def test_a_kernel_that_writes_out_of_bounds_leaves_the_variables_intact(kernel):
    kernel.run("kept = list(range(1000))")
    said = kernel.run(
        "%%isolated --device mps --needs shader-compiler\nimport torch\n"
        'source = "kernel void f(device float* x, uint i [[thread_position_in_grid]]) '
        '{ x[i + 100000000] = 7; }"\n'
        'torch.mps.compile_shader(source).f(torch.ones(4, device="mps"))'
    )
    assert "ChildFailed" in said
    assert kernel.run("print(kept == list(range(1000)), x.sum().item())") == "True 64.0\n"


# ---- labels --------------------------------------------------------------------------------------------------------

MEASURED = "m = timing.measure(lambda: x @ x, on=lab, budget=short)\n"
COMPARED = (
    'c = timing.compare({"cpu": lambda: y @ y, "gpu": lambda: x @ x}, on=lab, baseline="cpu", '
    'parity=same, series="product, n", size=8, budget=short)\n'
)
TIMED = {
    "measured, on= the CPU": MEASURED + "print(m)",
    "measured, on= the host": "print(timing.measure(lambda: x @ x, on=timing.Host(), budget=short))",
    "measured, on= the GPU": "gpu = metallab.device.pick('mps')\n"
    "print(timing.measure(lambda: x @ x, on=gpu, budget=short))",
    "compared, a baseline on the CPU": COMPARED + "print(c.sentences[0])",
    "compared, the GPU as baseline": "print(timing.compare({'cpu': lambda: y @ y, 'gpu': lambda: x @ x}, "
    "on=lab, baseline='gpu', parity=same, budget=short).sentences[0])",
    "compared, a device for each": "on = {'cpu': lab, 'gpu': metallab.device.pick('mps')}\n"
    "print(timing.compare({'cpu': lambda: y @ y, 'gpu': lambda: x @ x}, on=on, baseline='cpu', "
    "parity=same, budget=short).sentences[0])",
    "a throughput": "m = timing.measure(lambda: x @ x, on=lab, question='throughput', budget=short)\n"
    "print(units.rate(1024 / m.median, 'FLOP/s'))",
    "a median": MEASURED + "print(units.seconds(m.median))",
    "a sample": MEASURED + "print(units.seconds(min(m.samples)))",
    "the first call": MEASURED + "print(f'{1e3 * m.first_call:.2f} ms')",
    "a ratio": MEASURED + "n = timing.measure(lambda: y @ y, on=lab, budget=short)\n"
    "print(f'{n.median / m.median:.2f} times as fast')",
    "a curve": MEASURED + "f = plots.curves({'gpu': {8: m}}, xlabel='n', heading='Product')\n"
    "print(f.get_suptitle())",
    "speed-ups drawn": COMPARED + "print(plots.speedups([c]).get_label())",
    "stages drawn": MEASURED + "print(plots.stages({'a': {'product': m}}).get_suptitle())",
    "a table": MEASURED + "print(repr(tables.Table(['time'], [[m.median]])))",
    "a file of results": COMPARED + "from metallab import records\nfrom pathlib import Path\n"
    "import tempfile\nwith tempfile.TemporaryDirectory() as folder:\n"
    "    kept = records.load(records.save('99_planted', c, on=lab, folder=Path(folder)))\n"
    "    print({str(each.measurement) for each in kept if each.measurement.name == 'gpu'})",
    "a shader": "f = torch.mps.compile_shader('kernel void f(device float* x, "
    "uint i [[thread_position_in_grid]]) { x[i] *= 1; }').f\n"
    "print(timing.measure(lambda: f(x), on=lab, budget=short))",
    "an allocation": "print(timing.measure(lambda: torch.empty(3, device='mps'), on=lab, budget=short))",
}


@pytest.mark.parametrize("cell", TIMED.values(), ids=TIMED)
def test_a_time_of_the_simulated_gpu_says_so(kernel, cell):
    said = kernel.run(cell)
    assert "simulated" in said.lower()
    assert "Error" not in said


@pytest.mark.parametrize(
    "cell",
    [
        "print(timing.measure(lambda: y @ y, on=lab, budget=short))",
        "print(f'{timing.measure(lambda: y @ y, on=lab, budget=short).median:.3g}')",
        "print(timing.compare({'a': lambda: y @ y, 'b': lambda: y + y}, on=lab, baseline='a', "
        "parity=same, budget=short))",
    ],
    ids=["measured", "a median", "compared"],
)
def test_a_time_of_the_cpu_in_the_same_notebook_does_not(kernel, cell):
    said = kernel.run(cell)
    assert "simulated" not in said.lower()
    assert "Error" not in said
