"""The device is the one that was asked for, it computes correctly, and it is really waited for.

The lines for mps and cuda run here on pretended devices (`pretend.py`).
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from pretend import pretend, pretend_mac

from metallab import device, machine, timing


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


def test_the_best_device_is_picked(monkeypatch, chip):
    assert (device.pick().kind, device.pick().label) == ("cpu", "Apple M2 Max CPU, 2 threads")
    pretend(monkeypatch, "cuda")
    assert (device.pick().kind, device.pick().label) == ("cuda", "NVIDIA H200")
    pretend(monkeypatch, "mps")
    assert (device.pick().kind, device.pick().label) == ("mps", "Apple M2 Max GPU")
    assert device.pick().torch_device == torch.device("mps")
    assert not device.pick().simulated


def test_a_name_goes_before_environment_and_machine(monkeypatch, chip):
    pretend(monkeypatch, "mps")
    for setting, asked, got in (
        ("", "auto", "mps"),
        ("auto", "auto", "mps"),
        ("cpu", "auto", "cpu"),
        ("cpu", "mps", "mps"),
        ("mps", "cpu", "cpu"),
    ):
        monkeypatch.setenv("METALLAB_DEVICE", setting)
        assert device.pick(asked).kind == got, f"METALLAB_DEVICE={setting}, pick({asked!r})"


def test_a_name_that_does_not_exist_is_named(monkeypatch):
    with pytest.raises(ValueError, match=f"no device 'gpu'.*{', '.join(device.NAMES)}"):
        device.pick("gpu")
    monkeypatch.setenv("METALLAB_DEVICE", "MPS")
    with pytest.raises(ValueError, match="no device 'MPS'; METALLAB_DEVICE"):
        device.pick()


def test_the_simulation_is_installed_and_says_so(monkeypatch, chip):
    """With a stand-in for metalsim, whose own tests run the real one."""
    from metallab import simulation

    installed = []
    monkeypatch.setattr(simulation, "install", lambda: installed.append(1))
    lab = device.pick("sim")
    assert (lab.kind, lab.label, lab.simulated) == (
        "mps",
        "simulated Apple GPU (on Apple M2 Max)",
        True,
    )
    monkeypatch.setenv("METALLAB_DEVICE", "sim")
    assert device.pick().simulated
    assert len(installed) == 2

    def fails():
        raise simulation.SimulationUnavailable("there is no compiler: install g++")

    monkeypatch.setattr(simulation, "install", fails)
    with pytest.raises(
        device.DeviceUnavailable, match=r"cannot be used: there is no compiler: install g\+\+"
    ):
        device.pick("sim")


def test_a_missing_device_is_an_error_with_advice(monkeypatch):
    with pytest.raises(
        device.DeviceUnavailable, match=r"mps was asked for, but .* sees no mps.*; pick\(\) takes"
    ):
        device.pick("mps")
    monkeypatch.setenv("METALLAB_DEVICE", "cuda")
    with pytest.raises(
        device.DeviceUnavailable, match=r"sees no cuda.*; METALLAB_DEVICE=auto takes"
    ):
        device.pick()


def test_an_environment_without_pytorch_has_a_device_too(monkeypatch):
    there = {"jax", "tensorflow", "torch"}
    monkeypatch.setattr(
        device.importlib.util, "find_spec", lambda name: name if name in there else None
    )
    for expected in ("torch", "tensorflow", "jax", "torch"):
        assert device.first_framework() == expected
        there.discard(expected)


def test_another_framework_s_device_is_picked_by_its_own_rules(monkeypatch, chip):
    """JAX, which sees no mps here: the page runs on the CPU and says why."""
    monkeypatch.setenv("METALLAB_DEVICE", "mps")
    lab = device.pick(framework="jax")
    assert (lab.framework, lab.kind, lab.waits_for_results) == ("jax", "cpu", True)
    banner = str(device.Banner(lab))
    assert (
        ", by JAX (the run asked for mps, but JAX sees no mps device on this machine). No GPU takes part"
        in banner
    )


def raising(error):
    def arrives(tensor):
        raise error

    return arrives


FAULTS = (
    (lambda tensor: tensor + 1, "wrong by"),
    (lambda tensor: tensor * torch.nan, "wrong by nan"),
    (lambda tensor: torch.zeros_like(tensor), "wrong by"),
    (raising(RuntimeError("MPS backend out of memory")), "failed: MPS backend out of memory"),
    (raising(NotImplementedError("no kernel")), "failed: no kernel"),
    (raising(TypeError("no float64")), "failed: no float64"),
    (raising(AssertionError("not compiled with CUDA")), "failed: not compiled"),
)


def test_a_device_that_computes_wrongly_is_found_out(monkeypatch):
    for kind in ("mps", "cuda"):
        for arrives, reason in FAULTS:
            with monkeypatch.context() as patch:
                pretend(patch, kind, arrives=arrives)
                assert reason in (device.probe(kind) or ""), reason
                with pytest.raises(
                    device.DeviceUnavailable, match=f"{kind} was asked for, but a product on {kind}"
                ):
                    device.pick(kind)


def test_a_skipped_device_is_reported_a_missing_one_is_not(monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert device.pick().kind == "cpu"
    pretend(monkeypatch, "mps", arrives=FAULTS[0][0])
    with pytest.warns(RuntimeWarning, match="mps is passed over: a product on mps is wrong"):
        assert device.pick().kind == "cpu"


def test_a_right_device_passes_at_any_precision_and_default(monkeypatch):
    pretend(monkeypatch, "cuda", arrives=lambda tensor: tensor.bfloat16().float())
    assert device.probe("cuda") is None
    torch.set_default_device("meta")
    try:
        assert device.probe("cuda") is None
    finally:
        torch.set_default_device(None)


def test_an_accelerator_waits_for_its_own_device(monkeypatch):
    mps, cuda = pretend(monkeypatch, "mps"), pretend(monkeypatch, "cuda")
    device.PyTorchDevice("cpu", "CPU").synchronize()
    device.PyTorchDevice("cuda", "GPU").synchronize("a result is welcome, not needed")
    assert (mps.waits, cuda.waits) == (0, 1)
    device.PyTorchDevice("mps", "GPU").synchronize()
    assert (mps.waits, cuda.waits) == (1, 1)


def test_one_thread_is_one_thread_while_it_is_measured():
    seen = {1: set(), 2: set()}
    places = {str(n): device.cpu(threads=n) for n in seen}
    for n, threads in seen.items():
        timing.measure(
            lambda t=threads: t.add(torch.get_num_threads()), on=places[str(n)], budget=timing.FAST
        )
        assert torch.get_num_threads() == 2
    timing.compare(
        {str(n): lambda n=n: seen[n].add(torch.get_num_threads()) for n in seen},
        on=places, baseline="1", parity=timing.Unchecked("nothing"), budget=timing.FAST,
    )  # fmt: skip
    assert seen == {1: {1}, 2: {2}}
    with pytest.raises(ZeroDivisionError), places["1"].active():
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2
    with device.PyTorchDevice("mps", "GPU").active():
        assert torch.get_num_threads() == 2


def test_a_baseline_says_its_threads(chip):
    assert device.cpu(threads=1).label == "Apple M2 Max CPU, 1 thread"
    assert device.cpu().label == "Apple M2 Max CPU, 2 threads"
    assert device.cpu().threads == 2
    with pytest.raises(ValueError, match=r"threads is 0; .* at least 1"):
        device.cpu(threads=0)


def test_one_thread_of_a_mac_says_what_is_not_held(monkeypatch, chip):
    """PyTorch's products there are Accelerate's, which only a variable reaches, and only before the start."""
    monkeypatch.delenv("VECLIB_MAXIMUM_THREADS", raising=False)
    assert device.cpu(threads=1).label == "Apple M2 Max CPU, 1 thread", "this is no Mac"
    pretend_mac(monkeypatch)
    label = "Apple M2 Max (products: Accelerate's own threads) CPU, 1 thread"
    assert device.cpu(threads=1).label == label
    assert device.cpu().label == "Apple M2 Max CPU, 2 threads"
    torch.set_num_threads(1)
    assert device.cpu().label == label, "whoever set it"
    monkeypatch.setenv("VECLIB_MAXIMUM_THREADS", "1")
    assert device.cpu(threads=1).label == "Apple M2 Max CPU, 1 thread"


def test_unknown_hardware_is_called_unknown(monkeypatch):
    monkeypatch.setattr(machine, "describe", lambda: SimpleNamespace(chip=None))
    assert device.cpu(1).label == "unknown CPU, 1 thread"


def test_the_banner_says_what_is_real_and_escapes_it():
    real = device.Device("mps", "Apple M2 Max GPU").banner()
    assert str(real) == "This page ran on Apple M2 Max GPU (PyTorch device 'mps')."
    cpu = device.Device("cpu", "Xeon CPU, 2 threads", threads=2).banner()
    assert "Xeon CPU, 2 threads" in str(cpu)
    assert "No GPU takes part" in str(cpu)
    simulated = device.Device("mps", "Apple M2", simulated=True).banner()
    assert str(simulated).startswith("SIMULATED: this page ran on a Apple M2.")
    assert "no time on this page" in str(simulated)
    assert real._repr_html_().split(";")[0] != simulated._repr_html_().split(";")[0], (
        "they look alike"
    )
    hostile = device.Device("cuda", "<script>&\"'").banner()._repr_html_()
    assert "<script>" not in hostile
    assert "&lt;script&gt;&amp;" in hostile


def test_every_result_of_jax_is_waited_for():
    import jax

    x = jax.numpy.ones((300, 300))
    product = jax.jit(lambda x: x @ x @ x @ x)
    product(x).block_until_ready()
    results, unready = [], []

    def launch():
        results.append(product(x))
        return {"nested": [results[-1], None]}

    def clock():
        unready.append(sum(not result.is_ready() for result in results))
        return 1_000_000 * len(results)  # a millisecond each

    budget = timing.Budget(
        min_samples=3, max_samples=3, warmup_calls=2, warmup_seconds=0, block_seconds=0.02
    )
    for question in ("latency", "throughput"):
        got = timing.measure(
            launch, on=device.cpu(framework="jax"), question=question, budget=budget, clock=clock
        )
        assert not any(unready), (
            f"{question}: the clock was read while {max(unready)} results were computed"
        )
    assert got.block > 1


def test_a_framework_that_is_not_known_is_named():
    with pytest.raises(
        ValueError, match="framework 'mxnet'; there are torch, tensorflow, jax, mlx"
    ):
        device.pick("cpu", "mxnet")


def test_a_framework_is_imported_by_who_asks_for_it():
    """Importing asks for none, and a device of one for no other."""
    code = """
import sys
import metallab
from metallab import checks, device, fake_device, memory, records, timing
print(sorted({"torch", "tensorflow", "jax", "keras", "matplotlib"} & set(sys.modules)))
print(device.pick("cpu", "jax").framework, device.cpu(framework="jax").kind, "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout == "[]\njax cpu False\n", done.stdout + done.stderr


def test_without_pytorch_it_says_what_to_do(monkeypatch):
    monkeypatch.setattr(device.pytorch.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(device.DeviceUnavailable, match=r"PyTorch is not installed.*make setup"):
        device.pick()
