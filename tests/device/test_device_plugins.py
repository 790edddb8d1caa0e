"""TensorFlow, JAX and MLX: the device that is said is the device that computes, and a missing one is told.

The lines for an Apple GPU and for CUDA run here with stand-ins for the two frameworks; what they ask of the real ones
is tried on the CPU, TensorFlow in a process of its own.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from metallab import device, isolated, machine

BOTH = ("tensorflow", "jax")


class Array:
    """An array of a stand-in: its products are off by ``error``."""

    def __init__(self, values, error) -> None:
        self.values, self.error = np.asarray(values), error

    def __matmul__(self, other):
        return Array(self.values @ np.asarray(getattr(other, "values", other)) + self.error, 0)

    def __array__(self, dtype=None, copy=None):
        return self.values


def stand_in(monkeypatch, *, gpu: bool, platform: str = "METAL", error: float = 0.0) -> list[str]:
    """TensorFlow and JAX with or without a GPU that computes with an error; returns where they were told to compute."""
    placed = []

    @contextlib.contextmanager
    def hold(name):
        placed.append(str(name))
        yield

    cpu = SimpleNamespace(platform="cpu", device_kind="cpu")
    other = SimpleNamespace(platform=platform, device_kind="NVIDIA H200")
    jax = ModuleType("jax")
    jax.config = SimpleNamespace(
        jax_platforms=None, update=lambda name, value: placed.append((name, value))
    )
    jax.devices = lambda kind=None: [cpu] if kind == "cpu" or not gpu else [other]
    jax.default_device = lambda device: hold(device.platform)
    jax.block_until_ready = lambda results: placed.append(("waited for", results))
    jax.jit = lambda fn: lambda a, b: fn(Array(a, error), b)
    tf = ModuleType("tensorflow")
    details = SimpleNamespace(get_device_details=lambda gpu: {"device_name": "NVIDIA H200"})
    threads = SimpleNamespace(get_intra_op_parallelism_threads=lambda: 0)
    list_devices = lambda kind: ["gpu"] if gpu and kind == "GPU" else []
    tf.config = SimpleNamespace(
        list_physical_devices=list_devices, experimental=details, threading=threads
    )
    tf.device = hold
    waiting = SimpleNamespace(sync_devices=lambda: placed.append(("waited", "all")))
    tf.test = SimpleNamespace(experimental=waiting)
    tf.constant = lambda values: Array(values, error)
    tf.linalg = SimpleNamespace(matmul=lambda a, b: a @ b)
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "tensorflow", tf)
    return placed


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """No settings from outside, and a known chip."""
    for name in ("METALLAB_DEVICE", "NPROC", "PJRT_NPROC", "TF_NUM_INTRAOP_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ENABLE_PJRT_COMPATIBILITY", "unset by the test's end")
    monkeypatch.setattr(machine, "describe", lambda: SimpleNamespace(chip="Apple M2 Max"))
    device.jax.devices.cache_clear()
    yield
    device.jax.devices.cache_clear()


@pytest.fixture
def mac(monkeypatch):
    """A Mac with both plugins, whose trial in a child process succeeds."""
    versions = {"tensorflow-metal": "1.2.0", "jax-metal": "0.1.1"}

    def version(name):
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    tried = []

    def run(source, results):
        tried.append(source)
        return isolated.Outcome("ok", results={"wrong": 0.0})

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(isolated, "run", run)
    return SimpleNamespace(tried=tried, versions=versions)


def test_an_apple_gpu_is_taken_where_the_plugin_works(monkeypatch, mac):
    for platform in ("METAL", "mps"):
        stand_in(monkeypatch, gpu=True, platform=platform)
        for framework in BOTH:
            lab = device.pick("auto", framework)
            assert (lab.kind, lab.label, lab.framework, lab.instead_of) == (
                "mps",
                "Apple M2 Max GPU",
                framework,
                "",
            )
            assert not lab.simulated
            title = device.TITLES[framework]
            assert str(lab.banner()) == f"This page ran on Apple M2 Max GPU ({title} device 'mps')."
            assert framework in mac.tried[-1], "the plugin is tried in a child process first"


def test_a_gpu_that_computes_wrongly_is_passed_over_and_told(monkeypatch, mac):
    for framework in BOTH:
        stand_in(monkeypatch, gpu=True, error=0.5)
        lab = device.pick("auto", framework)
        assert (lab.kind, lab.instead_of) == ("cpu", "a product on mps is wrong by 0.5")
        assert "(a product on mps is wrong by 0.5). No GPU takes part" in str(lab.banner())
        with pytest.raises(
            device.DeviceUnavailable, match=r"mps was asked for, but a product on mps is wrong by"
        ):
            device.pick("mps", framework)
        stand_in(monkeypatch, gpu=True)
        monkeypatch.setattr(sys.modules["jax"], "jit", raising)
        monkeypatch.setattr(sys.modules["tensorflow"], "constant", raising)
        assert device.probe("mps", framework) == "a product on mps failed: no dot_general"


def raising(*_):
    raise NotImplementedError("no dot_general\nand a long story")


def test_a_plugin_that_aborts_is_a_reason(monkeypatch, mac):
    stand_in(monkeypatch, gpu=True)
    crash = isolated.Outcome("crashed", reason="the process was killed by SIGABRT")
    monkeypatch.setattr(isolated, "run", lambda source, results: crash)
    for framework, plugin in (("tensorflow", "tensorflow-metal 1.2.0"), ("jax", "jax-metal 0.1.1")):
        lab = device.pick("auto", framework)
        assert lab.kind == "cpu"
        assert lab.instead_of == f"{plugin} cannot be used: the process was killed by SIGABRT"


def test_the_plugin_is_named_with_its_version(monkeypatch, mac):
    stand_in(monkeypatch, gpu=True)
    assert device.plugin("tensorflow") == "tensorflow-metal 1.2.0"
    assert device.plugin("jax") == "jax-metal 0.1.1"
    mac.versions["jax-mps"] = "0.10.11"
    assert device.plugin("jax") == "jax-mps 0.10.11", "the newer of the two"
    mac.versions.clear()
    assert device.plugin("jax") == ""
    stand_in(monkeypatch, gpu=False)
    with pytest.raises(device.DeviceUnavailable, match="jax-mps or jax-metal is not installed"):
        device.pick("mps", "jax")


def test_mlx_takes_an_apple_gpu_or_an_nvidia_one(monkeypatch, mac):
    held = []

    @contextlib.contextmanager
    def stream(name):
        held.append(name)
        yield

    mlx, mx = ModuleType("mlx"), ModuleType("mlx.core")
    mlx.core, mx.cpu, mx.gpu, mx.Device, mx.stream = mx, "cpu", "gpu", str, stream
    mx.is_available = lambda name: True
    mx.array = lambda values: Array(values, 0)
    mx.device_info = lambda name: {"device_name": "NVIDIA H200"}
    monkeypatch.setitem(sys.modules, "mlx", mlx)
    monkeypatch.setitem(sys.modules, "mlx.core", mx)
    mac.versions["mlx-metal"] = "0.32.4"
    lab = device.pick(framework="mlx")
    assert (lab.kind, lab.label, held) == ("mps", "Apple M2 Max GPU", ["gpu"])
    assert "'mlx'" in mac.tried[-1], "tried in a child process first"
    assert device.plugin("mlx") == "mlx-metal 0.32.4"
    assert (
        device.cpu(framework="mlx").label
        == "Apple M2 Max (products: Accelerate's own threads) CPU, 1 thread"
    )
    monkeypatch.setattr(sys, "platform", "linux")
    assert (device.pick(framework="mlx").kind, device.pick(framework="mlx").label) == (
        "cuda",
        "NVIDIA H200",
    )
    assert device.cpu(framework="mlx").label == "Apple M2 Max CPU, 1 thread"


def test_the_cpu_stays_beside_a_platform_that_was_chosen(monkeypatch):
    for chosen, updates in (
        ("mps", [("jax_platforms", "mps,cpu")]),
        ("cuda,cpu", []),
        ("cpu", []),
        (None, []),
    ):
        asked = stand_in(monkeypatch, gpu=True, platform="mps")
        sys.modules["jax"].config.jax_platforms = chosen
        device.jax.devices.cache_clear()
        device.jax.devices()
        assert asked == updates


def test_an_nvidia_gpu_is_named(monkeypatch):
    stand_in(monkeypatch, gpu=True, platform="gpu")
    for framework in BOTH:
        assert (device.pick("auto", framework).kind, device.pick("auto", framework).label) == (
            "cuda",
            "NVIDIA H200",
        )


def test_a_run_s_device_is_a_wish_and_a_named_one_an_order(monkeypatch):
    stand_in(monkeypatch, gpu=False)
    for framework in BOTH:
        title = device.TITLES[framework]
        monkeypatch.delenv("METALLAB_DEVICE", raising=False)
        assert device.pick("auto", framework).instead_of == ""
        for setting, why in (
            ("cuda", f"the run asked for cuda, but {title} sees no cuda device on this machine"),
            ("mps", f"the run asked for mps, but {title} sees no mps device on this machine"),
            ("sim", f"the run asked for sim, but {title} is not simulated"),
            ("cpu", ""),
        ):
            monkeypatch.setenv("METALLAB_DEVICE", setting)
            lab = device.pick("auto", framework)
            assert (lab.kind, lab.instead_of) == ("cpu", why)
        with pytest.raises(
            device.DeviceUnavailable, match=r"cuda was asked for, but .* sees no cuda device"
        ):
            device.pick("cuda", framework)
        monkeypatch.setenv("METALLAB_DEVICE", "gpu")
        with pytest.raises(ValueError, match="no device 'gpu'"):
            device.pick("auto", framework)


def test_work_is_held_to_its_device(monkeypatch):
    placed = stand_in(monkeypatch, gpu=True, platform="gpu")
    for framework, names in (("tensorflow", ["/CPU:0", "/GPU:0"]), ("jax", ["cpu", "gpu"])):
        places = device.cpu(framework=framework), device.pick("cuda", framework)
        placed.clear()
        for place in places:
            with place.active():
                pass
        assert placed == names


def test_a_cpu_has_as_many_threads_as_its_framework(monkeypatch):
    stand_in(monkeypatch, gpu=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 4}, raising=False)
    for framework in BOTH:
        assert (device.cpu(framework=framework).threads, device.cpu(framework=framework).label) == (
            3,
            "Apple M2 Max CPU, 3 threads",
        )
    monkeypatch.setenv("NPROC", "2")
    assert device.cpu(framework="jax").threads == 2
    monkeypatch.setenv("PJRT_NPROC", "1")
    assert device.cpu(framework="jax").label == "Apple M2 Max CPU, 1 thread"
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    assert device.cpu(framework="tensorflow").threads == 1
    threading = sys.modules["tensorflow"].config.threading
    monkeypatch.setattr(threading, "get_intra_op_parallelism_threads", lambda: 4)
    assert device.cpu(framework="tensorflow").threads == 4


def test_a_place_waits_for_its_framework(monkeypatch):
    """Around every sample; of JAX each result is waited for."""
    from metallab import timing

    asked = stand_in(monkeypatch, gpu=False)
    budget = timing.Budget(
        min_samples=3, max_samples=3, warmup_calls=1, warmup_seconds=0, block_seconds=2e-5
    )
    for framework in BOTH:
        place = device.cpu(framework=framework)
        asked.clear()
        calls = []
        clock = lambda calls=calls: 1000 * len(calls)  # a microsecond each
        launch = lambda calls=calls: calls.append(0) or len(calls)
        got = timing.measure(launch, on=place, question="throughput", budget=budget, clock=clock)
        waits = [what for what in asked if isinstance(what, tuple)]
        if framework == "tensorflow":
            assert len(waits) >= 2 * got.n
            assert got.block > 1
        else:
            assert [number for _, results in waits for number in results] == list(
                range(1, len(calls) + 1)
            )


def test_the_old_plugin_may_start_and_its_first_device_counts(monkeypatch):
    stand_in(monkeypatch, gpu=True, platform="gpu")
    first = SimpleNamespace(platform="gpu", device_kind="first")
    others = sys.modules["jax"].devices
    monkeypatch.setattr(
        sys.modules["jax"],
        "devices",
        lambda kind=None: others(kind) if kind else [first, *others()],
    )
    monkeypatch.delenv("ENABLE_PJRT_COMPATIBILITY")
    assert device.jax.devices()["cuda"] is first
    assert os.environ["ENABLE_PJRT_COMPATIBILITY"] == "1"


REAL = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
from metallab import device, timing
lab = device.pick("cpu", framework={framework!r})
{load}
wrong = device.plugins.error_of_product("cpu", {framework!r})
fast = timing.Budget(min_samples=3, max_samples=3, warmup_calls=1, warmup_seconds=0)
got = timing.measure(lambda: x @ x, on=lab, question="throughput", budget=fast)
seen = lab.label, lab.waits_for_results, got.n
lab.synchronize(x)
"""


@pytest.mark.parametrize(
    ("framework", "load", "waits"),
    [("tensorflow", "import tensorflow as tf; x = tf.ones((9, 9))", False),
     ("jax", "import jax; x = jax.device_put(jax.numpy.ones((9, 9)), lab.jax_device)", True),
     ("mlx", "import mlx.core as mx; x = mx.ones((9, 9))", True)],
)  # fmt: skip
def test_the_real_frameworks_have_what_is_asked_of_them(framework, load, waits):
    if framework == "mlx":
        pytest.importorskip(
            "mlx.core", reason="set-up leaves MLX out where glibc is older than 2.35"
        )
    source = REAL.format(framework=framework, load=load)
    outcome = isolated.run(source, results=["wrong", "seen"], threads=1)
    assert outcome.ok, outcome.detail
    label, waits_for_results, samples = outcome["seen"]
    assert label.endswith("CPU, 1 thread")
    assert (waits_for_results, samples, outcome["wrong"]) == (waits, 3, 0.0)
