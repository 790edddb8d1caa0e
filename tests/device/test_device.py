"""The device is the one that was asked for, it computes correctly, and it is really waited for.

The lines for mps and cuda run here on pretended devices (`pretend.py`).
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from pretend import pretend, pretend_mac

from metallab import device, machine, simulation, timing


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """No setting from outside, no GPU of this machine's own, and two threads even where there is one core."""
    monkeypatch.delenv("METALLAB_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def chip(monkeypatch):
    monkeypatch.setattr(machine, "describe", lambda: SimpleNamespace(chip="Apple M2 Max"))


# --- which device it is ---


@pytest.mark.parametrize(
    ("there", "kind", "label"),
    [
        pytest.param([], "cpu", "Apple M2 Max CPU, 2 threads", id="no GPU"),
        pytest.param(["cuda"], "cuda", "NVIDIA H200", id="an NVIDIA GPU"),
        pytest.param(["cuda", "mps"], "mps", "Apple M2 Max GPU", id="an Apple GPU as well"),
    ],
)
def test_the_best_device_is_picked(monkeypatch, chip, there, kind, label):
    for each in there:
        pretend(monkeypatch, each)

    lab = device.pick()
    assert lab.kind == kind
    assert lab.label == label
    assert lab.torch_device == torch.device(kind)
    assert not lab.simulated


@pytest.mark.parametrize(
    ("setting", "asked", "kind"),
    [
        pytest.param("", "auto", "mps", id="neither"),
        pytest.param("auto", "auto", "mps", id="both leave it open"),
        pytest.param("cpu", "auto", "cpu", id="environment"),
        pytest.param("cpu", "mps", "mps", id="a name beside the environment"),
        pytest.param("mps", "cpu", "cpu", id="another name beside the environment"),
    ],
)
def test_a_name_goes_before_environment_and_machine(monkeypatch, chip, setting, asked, kind):
    pretend(monkeypatch, "mps")
    monkeypatch.setenv("METALLAB_DEVICE", setting)
    assert device.pick(asked).kind == kind


def test_a_name_that_does_not_exist_is_named_beside_those_that_do():
    with pytest.raises(ValueError, match=f"no device 'gpu'.*{', '.join(device.NAMES)}"):
        device.pick("gpu")


def test_a_name_in_the_environment_that_does_not_exist_is_named_with_its_variable(monkeypatch):
    monkeypatch.setenv("METALLAB_DEVICE", "MPS")
    with pytest.raises(ValueError, match="no device 'MPS'; METALLAB_DEVICE"):
        device.pick()


def test_a_missing_device_that_was_named_is_an_error_with_advice():
    with pytest.raises(
        device.DeviceUnavailable, match=r"mps was asked for, but .* sees no mps.*; pick\(\) takes"
    ):
        device.pick("mps")


def test_a_missing_device_of_the_environment_is_an_error_with_advice(monkeypatch):
    monkeypatch.setenv("METALLAB_DEVICE", "cuda")
    with pytest.raises(
        device.DeviceUnavailable, match=r"sees no cuda.*; METALLAB_DEVICE=auto takes"
    ):
        device.pick()


# --- the simulated GPU, with a stand-in for metalsim, whose own tests run the real one ---


@pytest.fixture
def installed(monkeypatch):
    """Notes how often the simulation was installed."""
    times = []
    monkeypatch.setattr(simulation, "install", lambda: times.append(1))
    return times


def test_the_simulation_is_installed_by_its_name(installed, chip):
    lab = device.pick("sim")
    assert installed == [1]
    assert lab.kind == "mps"
    assert lab.simulated


def test_the_simulation_is_installed_by_the_environment(installed, chip, monkeypatch):
    monkeypatch.setenv("METALLAB_DEVICE", "sim")
    assert device.pick().simulated
    assert installed == [1]


def test_the_simulation_says_that_it_is_one(installed, chip):
    assert device.pick("sim").label == "simulated Apple GPU (on Apple M2 Max)"


def test_a_simulation_that_cannot_be_used_says_what_to_do(monkeypatch):
    def fail():
        raise simulation.SimulationUnavailable("there is no compiler: install g++")

    monkeypatch.setattr(simulation, "install", fail)
    with pytest.raises(
        device.DeviceUnavailable, match=r"cannot be used: there is no compiler: install g\+\+"
    ):
        device.pick("sim")


# --- which framework it is of ---


@pytest.mark.parametrize(
    ("there", "framework"),
    [
        pytest.param({"jax", "tensorflow", "torch"}, "torch", id="all"),
        pytest.param({"jax", "tensorflow"}, "tensorflow", id="no PyTorch"),
        pytest.param({"jax"}, "jax", id="JAX alone"),
        pytest.param(set(), "torch", id="none, and an error says what to install"),
    ],
)
def test_an_environment_without_pytorch_has_a_device_too(monkeypatch, there, framework):
    monkeypatch.setattr(
        device.importlib.util, "find_spec", lambda name: name if name in there else None
    )
    assert device.first_framework() == framework


def test_another_framework_s_device_is_picked_by_its_own_rules(monkeypatch, chip):
    """JAX sees no mps here, so the page runs on the CPU."""
    monkeypatch.setenv("METALLAB_DEVICE", "mps")
    lab = device.pick(framework="jax")
    assert lab.framework == "jax"
    assert lab.kind == "cpu"
    assert lab.waits_for_results


def test_a_page_says_why_it_runs_on_another_device_than_the_run(monkeypatch, chip):
    monkeypatch.setenv("METALLAB_DEVICE", "mps")
    banner = str(device.Banner(device.pick(framework="jax")))
    reason = "the run asked for mps, but JAX sees no mps device on this machine"
    assert f", by JAX ({reason}). No GPU takes part" in banner


# --- whether it computes ---


def make_failure(error: Exception) -> Callable[[torch.Tensor], torch.Tensor]:
    def arrives(tensor):
        raise error

    return arrives


def add_one(tensor: torch.Tensor) -> torch.Tensor:
    return tensor + 1


FAULTS = [
    pytest.param(add_one, "wrong by", id="other values"),
    pytest.param(lambda tensor: tensor * torch.nan, "wrong by nan", id="NaN"),
    pytest.param(torch.zeros_like, "wrong by", id="zeros"),
    pytest.param(
        make_failure(RuntimeError("MPS backend out of memory")),
        "failed: MPS backend out of memory",
        id="no memory",
    ),
    pytest.param(
        make_failure(NotImplementedError("no kernel")), "failed: no kernel", id="no kernel"
    ),
    pytest.param(make_failure(TypeError("no float64")), "failed: no float64", id="no dtype"),
    pytest.param(
        make_failure(AssertionError("not compiled with CUDA")),
        "failed: not compiled",
        id="another build",
    ),
]
of_any_fault = pytest.mark.parametrize(("arrives", "reason"), FAULTS)
of_either_gpu = pytest.mark.parametrize("kind", ["mps", "cuda"])


@of_either_gpu
@of_any_fault
def test_a_device_that_computes_wrongly_is_found_out(monkeypatch, kind, arrives, reason):
    pretend(monkeypatch, kind, arrives=arrives)
    assert reason in device.probe(kind)


@of_either_gpu
@of_any_fault
def test_a_device_that_computes_wrongly_is_refused_by_name(monkeypatch, kind, arrives, reason):
    pretend(monkeypatch, kind, arrives=arrives)
    message = f"{kind} was asked for, but a product on {kind} .*{reason}"
    with pytest.raises(device.DeviceUnavailable, match=message):
        device.pick(kind)


def test_a_device_that_computes_wrongly_is_passed_over_with_a_warning(monkeypatch):
    pretend(monkeypatch, "mps", arrives=add_one)
    with pytest.warns(RuntimeWarning, match="mps is passed over: a product on mps is wrong"):
        assert device.pick().kind == "cpu"


def test_a_missing_device_is_passed_over_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert device.pick().kind == "cpu"


def test_a_right_device_passes_in_a_low_precision(monkeypatch):
    pretend(monkeypatch, "cuda", arrives=lambda tensor: tensor.bfloat16().float())
    assert device.probe("cuda") is None


def test_a_right_device_passes_where_a_page_has_set_another_default(monkeypatch):
    pretend(monkeypatch, "cuda")
    torch.set_default_device("meta")
    try:
        assert device.probe("cuda") is None
    finally:
        torch.set_default_device(None)


# --- waiting ---


@pytest.mark.parametrize(
    ("kind", "waits"),
    [
        pytest.param("cpu", {"mps": 0, "cuda": 0}, id="cpu"),
        pytest.param("cuda", {"mps": 0, "cuda": 1}, id="cuda"),
        pytest.param("mps", {"mps": 1, "cuda": 0}, id="mps"),
    ],
)
def test_a_device_waits_for_itself_alone(monkeypatch, kind, waits):
    asked = {each: pretend(monkeypatch, each) for each in waits}
    device.PyTorchDevice(kind, "a device").synchronize("a result is welcome, not needed")
    assert {each: notes.waits for each, notes in asked.items()} == waits


# --- threads ---


@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_measured_runs_on_as_many_threads_as_its_device_says(threads):
    seen = set()
    place = device.cpu(threads=threads)
    timing.measure(lambda: seen.add(torch.get_num_threads()), on=place, budget=timing.FAST)
    assert seen == {threads}
    assert torch.get_num_threads() == 2, "as before"


def test_variants_run_on_as_many_threads_as_their_devices_say():
    """In each of their calls, though they take turns."""
    seen = {"one": set(), "two": set()}
    timing.compare(
        {
            "one": lambda: seen["one"].add(torch.get_num_threads()),
            "two": lambda: seen["two"].add(torch.get_num_threads()),
        },
        on={"one": device.cpu(threads=1), "two": device.cpu(threads=2)},
        baseline="one",
        parity=timing.Unchecked("nothing"),
        budget=timing.FAST,
    )

    assert seen == {"one": {1}, "two": {2}}


def test_afterwards_there_are_as_many_threads_as_before():
    with device.cpu(threads=1).active():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_after_an_error_there_are_as_many_threads_as_before():
    with pytest.raises(ZeroDivisionError), device.cpu(threads=1).active():
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2


def test_a_gpu_leaves_the_threads_as_they_are():
    with device.PyTorchDevice("mps", "GPU").active():
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("asked", "threads", "label"),
    [
        pytest.param(1, 1, "Apple M2 Max CPU, 1 thread", id="one"),
        pytest.param(None, 2, "Apple M2 Max CPU, 2 threads", id="as many as there are"),
    ],
)
def test_a_baseline_says_its_threads(chip, asked, threads, label):
    baseline = device.cpu(threads=asked)
    assert baseline.threads == threads
    assert baseline.label == label


def test_a_baseline_without_a_thread_is_refused():
    with pytest.raises(ValueError, match=r"threads is 0; .* at least 1"):
        device.cpu(threads=0)


# --- threads on a Mac: products are Accelerate's, which only a variable reaches, and only before the start ---

HELD = "Apple M2 Max CPU, 1 thread"
NOT_HELD = "Apple M2 Max (products: Accelerate's own threads) CPU, 1 thread"


@pytest.fixture
def mac(monkeypatch, chip):
    """A Mac on which nobody has told Accelerate how many threads to use."""
    monkeypatch.delenv("VECLIB_MAXIMUM_THREADS", raising=False)
    pretend_mac(monkeypatch)


def test_one_thread_of_a_mac_says_what_is_not_held(mac):
    assert device.cpu(threads=1).label == NOT_HELD


def test_one_thread_that_somebody_else_set_says_what_is_not_held(mac):
    torch.set_num_threads(1)
    assert device.cpu().label == NOT_HELD


def test_one_thread_of_a_mac_is_one_where_the_variable_says_so(mac, monkeypatch):
    monkeypatch.setenv("VECLIB_MAXIMUM_THREADS", "1")
    assert device.cpu(threads=1).label == HELD


def test_all_threads_of_a_mac_are_held_by_nobody(mac):
    assert device.cpu().label == "Apple M2 Max CPU, 2 threads"


def test_one_thread_of_another_system_is_one(monkeypatch, chip):
    monkeypatch.delenv("VECLIB_MAXIMUM_THREADS", raising=False)
    assert device.cpu(threads=1).label == HELD


# --- what a page says of it ---


def test_unknown_hardware_is_called_unknown(monkeypatch):
    monkeypatch.setattr(machine, "describe", lambda: SimpleNamespace(chip=None))
    assert device.cpu(1).label == "unknown CPU, 1 thread"


REAL = device.Device("mps", "Apple M2 Max GPU")
SIMULATED = device.Device("mps", "Apple M2", simulated=True)


def test_the_banner_of_a_gpu_says_which_one_it_is():
    assert str(REAL.banner()) == "This page ran on Apple M2 Max GPU (PyTorch device 'mps')."


def test_the_banner_of_a_cpu_says_that_no_gpu_takes_part():
    banner = str(device.Device("cpu", "Xeon CPU, 2 threads", threads=2).banner())
    assert "Xeon CPU, 2 threads" in banner
    assert "No GPU takes part" in banner


def test_the_banner_of_a_simulated_gpu_says_that_its_times_are_none():
    banner = str(SIMULATED.banner())
    assert banner.startswith("SIMULATED: this page ran on a Apple M2.")
    assert "no time on this page" in banner


def test_the_banner_of_a_simulated_gpu_looks_different():
    real, _, _ = REAL.banner()._repr_html_().partition(";")
    simulated, _, _ = SIMULATED.banner()._repr_html_().partition(";")
    assert real != simulated


def test_a_name_in_a_banner_is_text():
    html = device.Device("cuda", "<script>&\"'").banner()._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;&amp;" in html


# --- other frameworks ---


class Launches:
    """Products of JAX, each a millisecond of a clock, which notes how many are unready when it is read."""

    def __init__(self) -> None:
        import jax

        self.x = jax.numpy.ones((300, 300))
        self.product = jax.jit(lambda x: x @ x @ x @ x)
        self.product(self.x).block_until_ready()
        self.results, self.unready = [], []

    def launch(self) -> dict:
        self.results.append(self.product(self.x))
        return {"nested": [self.results[-1], None]}

    def clock(self) -> int:
        self.unready.append(sum(not result.is_ready() for result in self.results))
        return 1_000_000 * len(self.results)


@pytest.mark.parametrize(
    ("question", "several"),
    [
        pytest.param("latency", False, id="latency"),
        pytest.param("throughput", True, id="throughput"),
    ],
)
def test_every_result_of_jax_is_waited_for(question, several):
    """Each of a sample, of which there are several where the throughput is measured, before the clock is read."""
    launches = Launches()
    measured = timing.measure(
        launches.launch,
        on=device.cpu(framework="jax"),
        question=question,
        budget=timing.Budget(
            min_samples=3, max_samples=3, warmup_calls=2, warmup_seconds=0, block_seconds=0.02
        ),
        clock=launches.clock,
    )

    assert (measured.block > 1) == several
    assert not any(launches.unready), "the clock was read while results were computed"


def test_a_framework_that_is_not_known_is_named():
    with pytest.raises(
        ValueError, match="framework 'mxnet'; there are torch, tensorflow, jax, mlx"
    ):
        device.pick("cpu", "mxnet")


IMPORTING = """
import sys
import metallab
from metallab import checks, device, fake_device, memory, records, timing
print(sorted({"torch", "tensorflow", "jax", "keras", "matplotlib"} & set(sys.modules)))
print(device.pick("cpu", "jax").framework, device.cpu(framework="jax").kind, "torch" in sys.modules)
"""


def test_a_framework_is_imported_by_who_asks_for_it():
    """Importing asks for none, and a device of one for no other."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING], capture_output=True, text=True, timeout=600
    )
    assert done.stdout == "[]\njax cpu False\n", done.stdout + done.stderr


def test_without_pytorch_it_says_what_to_do(monkeypatch):
    monkeypatch.setattr(device.pytorch.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(device.DeviceUnavailable, match=r"PyTorch is not installed.*make setup"):
        device.pick()
