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

from metallab import device, isolated, machine, timing

of_both = pytest.mark.parametrize("framework", ["tensorflow", "jax"])


class Array:
    """An array of a stand-in: its products are off by ``error``."""

    def __init__(self, values, error) -> None:
        self.values, self.error = np.asarray(values), error

    def __matmul__(self, other):
        return Array(self.values @ np.asarray(getattr(other, "values", other)) + self.error, 0)

    def __array__(self, dtype=None, copy=None):
        return self.values


def stand_in(
    monkeypatch, *, gpu: bool, platform: str = "METAL", error: float = 0.0
) -> list[str | tuple]:
    """Put stand-ins in the place of TensorFlow and JAX, with or without a GPU, and return a list of what they are told.

    Its entries are the names of devices to compute on, and, as pairs, what was set or waited for. The GPU's products
    are off by ``error``; ``platform`` is what JAX calls it.
    """
    placed = []

    @contextlib.contextmanager
    def hold(name):
        placed.append(str(name))
        yield

    jax = make_jax(placed, hold, gpu, platform, error)
    tensorflow = make_tensorflow(placed, hold, gpu, error)
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    return placed


def make_jax(placed, hold, gpu, platform, error):
    """A module that stands in for JAX, with what `metallab.device` uses; ``placed`` gets what it is told."""
    cpu = SimpleNamespace(platform="cpu", device_kind="cpu")
    other = SimpleNamespace(platform=platform, device_kind="NVIDIA H200")

    # without a kind those of its first platform, a GPU's if there is one
    def list_devices(
        kind=None,
    ):
        return [cpu] if kind == "cpu" or not gpu else [other]

    def hold_device(device):
        return hold(device.platform)

    def note_waiting(results):
        placed.append(("waited for", results))

    def jit(function):
        return lambda a, b: function(Array(a, error), b)

    def note_setting(name, value):
        placed.append((name, value))

    jax = ModuleType("jax")
    jax.config = SimpleNamespace(jax_platforms=None, update=note_setting)
    jax.devices, jax.default_device = list_devices, hold_device
    jax.block_until_ready, jax.jit = note_waiting, jit
    return jax


def make_tensorflow(placed, hold, gpu, error):
    """A module that stands in for TensorFlow, with what `metallab.device` uses; ``placed`` gets what it is told."""

    def list_devices(kind):
        return ["gpu"] if gpu and kind == "GPU" else []

    def make_constant(values):
        return Array(values, error)

    tensorflow = ModuleType("tensorflow")
    tensorflow.config = SimpleNamespace(
        list_physical_devices=list_devices,
        experimental=SimpleNamespace(get_device_details=lambda gpu: {"device_name": "NVIDIA H200"}),
        threading=SimpleNamespace(get_intra_op_parallelism_threads=lambda: 0),
    )
    waiting = SimpleNamespace(sync_devices=lambda: placed.append(("waited", "all")))
    tensorflow.test = SimpleNamespace(experimental=waiting)
    tensorflow.linalg = SimpleNamespace(matmul=lambda a, b: a @ b)
    tensorflow.device, tensorflow.constant = hold, make_constant
    return tensorflow


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
    """A Mac with both plugins, whose trial in a child process succeeds.

    ``tried`` is a list of the programs that such children were given, and ``versions`` those of the plugins, by name:
    one that a test takes out is not installed.
    """
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


def raising(*_):
    raise NotImplementedError("no dot_general\nand a long story")


# --- TensorFlow and JAX on an Apple GPU ---


@of_both
@pytest.mark.parametrize("platform", ["METAL", "mps"])
def test_an_apple_gpu_is_taken_where_the_plugin_works(monkeypatch, mac, framework, platform):
    stand_in(monkeypatch, gpu=True, platform=platform)
    lab = device.pick("auto", framework)
    assert lab.kind == "mps"
    assert lab.label == "Apple M2 Max GPU"
    assert lab.framework == framework
    assert lab.instead_of == ""
    assert not lab.simulated


@of_both
def test_a_plugin_is_tried_in_a_child_process_first(monkeypatch, mac, framework):
    stand_in(monkeypatch, gpu=True)
    device.pick("auto", framework)
    assert framework in mac.tried[-1]


@of_both
def test_a_page_names_the_framework_of_its_gpu(monkeypatch, mac, framework):
    stand_in(monkeypatch, gpu=True)
    banner = str(device.pick("auto", framework).banner())
    title = device.TITLES[framework]
    assert banner == f"This page ran on Apple M2 Max GPU ({title} device 'mps')."


@of_both
def test_a_gpu_that_computes_wrongly_is_passed_over_and_told(monkeypatch, mac, framework):
    stand_in(monkeypatch, gpu=True, error=0.5)
    lab = device.pick("auto", framework)
    assert lab.kind == "cpu"
    assert lab.instead_of == "a product on mps is wrong by 0.5"
    assert "(a product on mps is wrong by 0.5). No GPU takes part" in str(lab.banner())


@of_both
def test_a_gpu_that_computes_wrongly_is_refused_by_name(monkeypatch, mac, framework):
    stand_in(monkeypatch, gpu=True, error=0.5)
    with pytest.raises(
        device.DeviceUnavailable, match=r"mps was asked for, but a product on mps is wrong by"
    ):
        device.pick("mps", framework)


@of_both
def test_a_gpu_that_fails_is_told_in_a_line(monkeypatch, mac, framework):
    stand_in(monkeypatch, gpu=True)
    monkeypatch.setattr(sys.modules["jax"], "jit", raising)
    monkeypatch.setattr(sys.modules["tensorflow"], "constant", raising)
    assert device.probe("mps", framework) == "a product on mps failed: no dot_general"


@pytest.mark.parametrize(
    ("framework", "plugin"),
    [
        pytest.param("tensorflow", "tensorflow-metal 1.2.0", id="tensorflow"),
        pytest.param("jax", "jax-metal 0.1.1", id="jax"),
    ],
)
def test_a_plugin_that_aborts_is_a_reason(monkeypatch, mac, framework, plugin):
    stand_in(monkeypatch, gpu=True)
    crash = isolated.Outcome("crashed", reason="the process was killed by SIGABRT")
    monkeypatch.setattr(isolated, "run", lambda source, results: crash)

    lab = device.pick("auto", framework)
    assert lab.kind == "cpu"
    assert lab.instead_of == f"{plugin} cannot be used: the process was killed by SIGABRT"


@pytest.mark.parametrize(
    ("installed", "framework", "plugin"),
    [
        pytest.param({}, "tensorflow", "tensorflow-metal 1.2.0", id="of TensorFlow"),
        pytest.param({}, "jax", "jax-metal 0.1.1", id="of JAX"),
        pytest.param({"jax-mps": "0.10.11"}, "jax", "jax-mps 0.10.11", id="the newer of JAX's two"),
        pytest.param({"mlx-metal": "0.32.4"}, "mlx", "mlx-metal 0.32.4", id="of MLX"),
    ],
)
def test_the_plugin_is_named_with_its_version(mac, installed, framework, plugin):
    mac.versions.update(installed)
    assert device.plugin(framework) == plugin


def test_without_a_plugin_none_is_named(mac):
    mac.versions.clear()
    assert device.plugin("jax") == ""


def test_a_missing_plugin_is_named_to_whoever_asks_for_its_gpu(monkeypatch, mac):
    mac.versions.clear()
    stand_in(monkeypatch, gpu=False)
    with pytest.raises(device.DeviceUnavailable, match="jax-mps or jax-metal is not installed"):
        device.pick("mps", "jax")


# --- MLX ---


@pytest.fixture
def mlx(monkeypatch):
    """A stand-in for MLX, whose GPU computes right; return a list of the devices that it was told to compute on."""
    held = []

    @contextlib.contextmanager
    def stream(name):
        held.append(name)
        yield

    def is_available(name):
        return True

    def make_array(values):
        return Array(values, 0)

    def describe_device(name):
        return {"device_name": "NVIDIA H200"}

    package, core = ModuleType("mlx"), ModuleType("mlx.core")
    package.core = core
    core.cpu, core.gpu, core.Device, core.stream = "cpu", "gpu", str, stream
    core.is_available, core.array, core.device_info = is_available, make_array, describe_device
    monkeypatch.setitem(sys.modules, "mlx", package)
    monkeypatch.setitem(sys.modules, "mlx.core", core)
    return held


@pytest.fixture
def mac_with_mlx(mac):
    """A Mac on which MLX's kernels are installed as well."""
    mac.versions["mlx-metal"] = "0.32.4"
    return mac


def test_mlx_takes_an_apple_gpu_on_a_mac(mlx, mac_with_mlx):
    lab = device.pick(framework="mlx")
    assert lab.kind == "mps"
    assert lab.label == "Apple M2 Max GPU"
    assert mlx == ["gpu"], "one product, to see whether it computes right"


def test_mlx_is_tried_in_a_child_process_first(mlx, mac_with_mlx):
    device.pick(framework="mlx")
    assert "'mlx'" in mac_with_mlx.tried[-1]


def test_mlx_takes_an_nvidia_gpu_elsewhere(mlx, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    lab = device.pick(framework="mlx")
    assert lab.kind == "cuda"
    assert lab.label == "NVIDIA H200"


@pytest.mark.parametrize(
    ("platform", "label"),
    [
        pytest.param(
            "darwin",
            "Apple M2 Max (products: Accelerate's own threads) CPU, 1 thread",
            id="a Mac",
        ),
        pytest.param("linux", "Apple M2 Max CPU, 1 thread", id="elsewhere"),
    ],
)
def test_the_cpu_of_mlx_says_which_threads_are_held(mlx, monkeypatch, platform, label):
    monkeypatch.setattr(sys, "platform", platform)
    assert device.cpu(framework="mlx").label == label


# --- TensorFlow and JAX on other devices ---


@pytest.mark.parametrize(
    ("chosen", "updates"),
    [
        pytest.param("mps", [("jax_platforms", "mps,cpu")], id="a GPU alone"),
        pytest.param("cuda,cpu", [], id="both"),
        pytest.param("cpu", [], id="the CPU"),
        pytest.param(None, [], id="nothing"),
    ],
)
def test_the_cpu_stays_beside_a_platform_that_was_chosen(monkeypatch, chosen, updates):
    asked = stand_in(monkeypatch, gpu=True, platform="mps")
    sys.modules["jax"].config.jax_platforms = chosen
    device.jax.devices()
    assert asked == updates


@of_both
def test_an_nvidia_gpu_is_named(monkeypatch, framework):
    stand_in(monkeypatch, gpu=True, platform="gpu")
    lab = device.pick("auto", framework)
    assert lab.kind == "cuda"
    assert lab.label == "NVIDIA H200"


@of_both
@pytest.mark.parametrize(
    ("setting", "why"),
    [
        pytest.param(
            "cuda", "the run asked for cuda, but {} sees no cuda device on this machine", id="cuda"
        ),
        pytest.param(
            "mps", "the run asked for mps, but {} sees no mps device on this machine", id="mps"
        ),
        pytest.param("sim", "the run asked for sim, but {} is not simulated", id="sim"),
        pytest.param("cpu", "", id="cpu"),
        pytest.param("auto", "", id="auto"),
    ],
)
def test_a_run_s_device_is_a_wish(monkeypatch, framework, setting, why):
    stand_in(monkeypatch, gpu=False)
    monkeypatch.setenv("METALLAB_DEVICE", setting)
    lab = device.pick("auto", framework)
    assert lab.kind == "cpu"
    assert lab.instead_of == why.format(device.TITLES[framework])


@of_both
def test_without_a_wish_nothing_is_missed(monkeypatch, framework):
    stand_in(monkeypatch, gpu=False)
    assert device.pick("auto", framework).instead_of == ""


@of_both
def test_a_device_that_is_named_is_an_order(monkeypatch, framework):
    stand_in(monkeypatch, gpu=False)
    with pytest.raises(
        device.DeviceUnavailable, match=r"cuda was asked for, but .* sees no cuda device"
    ):
        device.pick("cuda", framework)


@of_both
def test_a_run_s_device_that_does_not_exist_is_named(monkeypatch, framework):
    stand_in(monkeypatch, gpu=False)
    monkeypatch.setenv("METALLAB_DEVICE", "gpu")
    with pytest.raises(ValueError, match="no device 'gpu'"):
        device.pick("auto", framework)


@pytest.mark.parametrize(
    ("framework", "names"),
    [
        pytest.param("tensorflow", ["/CPU:0", "/GPU:0"], id="tensorflow"),
        pytest.param("jax", ["cpu", "gpu"], id="jax"),
    ],
)
def test_work_is_held_to_its_device(monkeypatch, framework, names):
    placed = stand_in(monkeypatch, gpu=True, platform="gpu")
    cpu, gpu = device.cpu(framework=framework), device.pick("cuda", framework)
    placed.clear()

    with cpu.active():
        pass
    with gpu.active():
        pass
    assert placed == names


# --- threads ---


@pytest.fixture
def three_cores(monkeypatch):
    """Three cores for this process, and TensorFlow and JAX without a GPU."""
    stand_in(monkeypatch, gpu=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 4}, raising=False)


@of_both
def test_a_cpu_has_a_thread_for_each_core(three_cores, framework):
    cpu = device.cpu(framework=framework)
    assert cpu.threads == 3
    assert cpu.label == "Apple M2 Max CPU, 3 threads"


@pytest.mark.parametrize(
    ("framework", "variables", "threads"),
    [
        pytest.param("jax", {"NPROC": "2"}, 2, id="JAX by NPROC"),
        pytest.param("jax", {"NPROC": "2", "PJRT_NPROC": "1"}, 1, id="JAX by PJRT_NPROC first"),
        pytest.param("tensorflow", {"TF_NUM_INTRAOP_THREADS": "1"}, 1, id="TensorFlow"),
    ],
)
def test_a_cpu_has_as_many_threads_as_a_variable_says(
    three_cores, monkeypatch, framework, variables, threads
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert device.cpu(framework=framework).threads == threads


def test_a_cpu_has_as_many_threads_as_tensorflow_was_told_to_take(three_cores, monkeypatch):
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    threading = sys.modules["tensorflow"].config.threading
    monkeypatch.setattr(threading, "get_intra_op_parallelism_threads", lambda: 4)
    assert device.cpu(framework="tensorflow").threads == 4


# --- waiting ---


class Waits:
    """What a framework without a GPU waited for while launches were measured, each a microsecond of a clock.

    It is made of the list that `stand_in` returned. ``waited`` are the pairs that were added to it meanwhile.
    """

    def __init__(self, placed: list, framework: str) -> None:
        """Measure the throughput of launches on the CPU of a framework's stand-in: 20 are a sample, by that clock."""
        self.launched = 0
        place = device.cpu(framework=framework)
        placed.clear()  # of what it was told before
        self.measured = timing.measure(
            self.launch,
            on=place,
            question="throughput",
            budget=timing.Budget(
                min_samples=3, max_samples=3, warmup_calls=1, warmup_seconds=0, block_seconds=2e-5
            ),
            clock=lambda: 1000 * self.launched,
        )
        self.waited = [what for what in placed if isinstance(what, tuple)]

    def launch(self) -> int:
        self.launched += 1
        return self.launched


def test_tensorflow_is_waited_for_before_and_after_every_sample(monkeypatch):
    waits = Waits(stand_in(monkeypatch, gpu=False), "tensorflow")
    assert waits.measured.block > 1
    assert len(waits.waited) >= 2 * waits.measured.n


def test_each_result_of_jax_is_waited_for(monkeypatch):
    waits = Waits(stand_in(monkeypatch, gpu=False), "jax")
    results = [number for _, numbers in waits.waited for number in numbers]
    assert results == list(range(1, waits.launched + 1))


# --- JAX's old plugin ---


def test_jax_s_old_plugin_may_start(monkeypatch):
    stand_in(monkeypatch, gpu=True)
    monkeypatch.delenv("ENABLE_PJRT_COMPATIBILITY")
    device.jax.devices()
    assert os.environ["ENABLE_PJRT_COMPATIBILITY"] == "1"


def test_the_first_of_jax_s_devices_counts(monkeypatch):
    stand_in(monkeypatch, gpu=True, platform="gpu")
    jax = sys.modules["jax"]
    first, others = SimpleNamespace(platform="gpu", device_kind="first"), jax.devices
    monkeypatch.setattr(
        jax, "devices", lambda kind=None: others(kind) if kind else [first, *others()]
    )
    assert device.jax.devices()["cuda"] is first


# --- the real frameworks ---

REAL = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
from metallab import device, timing
lab = device.pick("cpu", framework={framework!r})
{load}
wrong = device.plugins.error_of_product("cpu", {framework!r})
fast = timing.Budget(min_samples=3, max_samples=3, warmup_calls=1, warmup_seconds=0)
got = timing.measure(lambda: x @ x, on=lab, question="throughput", budget=fast)
label, waits, samples = lab.label, lab.waits_for_results, got.n
lab.synchronize(x)
"""


@pytest.mark.parametrize(
    ("framework", "load", "waits"),
    [
        pytest.param(
            "tensorflow",
            "import tensorflow as tf; x = tf.ones((9, 9))",
            False,
            id="tensorflow",
        ),
        pytest.param(
            "jax",
            "import jax; x = jax.device_put(jax.numpy.ones((9, 9)), lab.jax_device)",
            True,
            id="jax",
        ),
        pytest.param("mlx", "import mlx.core as mx; x = mx.ones((9, 9))", True, id="mlx"),
    ],
)
def test_the_real_frameworks_have_what_is_asked_of_them(framework, load, waits):
    """A name for their CPU, whether single results are waited for, a measurement, and a product that is right."""
    if framework == "mlx":
        pytest.importorskip(
            "mlx.core", reason="set-up leaves MLX out where glibc is older than 2.35"
        )

    source = REAL.format(framework=framework, load=load)
    outcome = isolated.run(source, results=["label", "waits", "samples", "wrong"], threads=1)

    assert outcome.ok, outcome.detail
    assert outcome["label"].endswith("CPU, 1 thread")
    assert outcome["waits"] is waits
    assert outcome["samples"] == 3
    assert outcome["wrong"] == 0.0
