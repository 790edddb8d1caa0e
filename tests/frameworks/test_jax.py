"""The networks of notebook 07b are the same everywhere, compute what their names say, and are raced; pages 07 and 07b.

They are checked against loops in NumPy that know nothing of them, on the CPU whatever else there is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools

import jax
import numpy as np
import pytest

from metallab import allowance, checks, device, isolated, paths, timing
from metallab.jax import compiling, networks

CPU = jax.devices("cpu")[0]
MAKERS = dict(networks.MEASURED)
SMALL = {
    "MLP": {"batch": 4, "width": 16},
    "CNN": {"batch": 2, "channels": 3, "size": 8},
    "ResNet block": {"batch": 2, "channels": 3, "size": 4},
    "Attention block": {"batch": 2, "steps": 5, "width": 8, "heads": 2},
    "n-body step": {"bodies": 6},
}
SHAPES = {
    "MLP": [(256, 10)],
    "CNN": [(32, 10)],
    "ResNet block": [(8, 32, 32, 64)],
    "Attention block": [(8, 64, 128)],
    "n-body step": [(512, 3), (512, 3)],
}
SUMS = {
    "MLP": -108.5416,
    "CNN": 240.2491,
    "ResNet block": 609.9917,
    "Attention block": 381.1447,
    "n-body step": -16.1447,
}
"""Of all parameters and inputs, so that another seed, order or size is seen, with whatever NumPy."""


@pytest.fixture(autouse=True)
def on_the_cpu():
    """Float32 is float32, and nothing is computed elsewhere."""
    with jax.default_device(CPU), jax.default_matmul_precision("highest"):
        yield


def small(networks, name):
    return networks.MEASURED[name](**SMALL[name])


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def test_a_name_stands_for_one_network():
    for name, make in networks.MEASURED.items():
        network = make()
        arrays = jax.tree.leaves((network.params, network.inputs))
        assert network.name == name
        assert all(isinstance(array, np.ndarray) and array.dtype == np.float32 for array in arrays)
        assert sum(array.sum(dtype=np.float64) for array in arrays) == pytest.approx(SUMS[name], abs=1e-3)
        assert [leaf.shape for leaf in leaves(network.on(CPU).inference()())] == SHAPES[name]


def test_programs_are_counted_outside_jit_too():
    @jax.jit
    def doubled(x):
        return 2 * x

    four = np.ones(4)
    for _ in range(2):
        with compiling.programs() as compiled:
            whole = [doubled(four) for _ in range(3)]
            assert len(compiled) == 1
            for n in (1, 2, 3, 3):
                whole[0][:n].block_until_ready()
        assert len(compiled) == 4, "each new length is cut by a program of its own"
        doubled(four[:2])
        assert len(compiled) == 4, "counted no more"


def test_the_gradient_is_that_of_the_mean_square():
    rng = np.random.default_rng(1)
    for name in networks.MEASURED:
        network = small(networks, name)
        loss, gradient = network.on(CPU).gradient()()
        outputs = leaves(network.on(CPU).inference()())
        assert float(loss) == pytest.approx(sum((output**2).mean() for output in outputs), rel=1e-5)
        assert jax.tree.structure(gradient) == jax.tree.structure(network.params)
        way = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape).astype("f"), network.params)
        by_params = lambda params, network=network: network.loss(params, *network.inputs)
        slope = jax.jvp(by_params, (network.params,), (way,))[1]  # by forward mode, the other way to differentiate
        along = sum((g * w).sum() for g, w in zip(leaves(gradient), leaves(way), strict=True))
        assert along == pytest.approx(float(slope), rel=1e-3), name


def test_the_same_code_runs_in_numpy():
    for name in networks.MEASURED:
        network = small(networks, name)
        if not network.in_numpy:
            with pytest.raises(ValueError, match=f"of which {name} is made"):
                network.numpy()
            continue
        by_numpy = network.on(CPU).numpy()()
        assert all(type(leaf) is np.ndarray and leaf.dtype == np.float32 for leaf in jax.tree.leaves(by_numpy))
        for compiled in (True, False):
            checks.assert_close(by_numpy, network.on(CPU).inference(compiled)(), "float32")


def test_two_bodies_fall_towards_each_other():
    masses, step = np.array([3.0, 1.0]), 1e-2
    r, v = np.array([[0.0, 0, 0], [2, 0, 0]]), np.array([[0.0, 1, 0], [0, -3, 0]])

    def pull(r):
        away = r[1] - r[0]
        unit = away / (away @ away + 0.05**2) ** 1.5
        return np.array([masses[1] * unit, -masses[0] * unit])

    half = v + step / 2 * pull(r)
    expected = r + step * half, half + step / 2 * pull(r + step * half)
    given = (np.float32(array) for array in (r, v))
    network = networks.Network("two", networks._n_body, {"masses": np.float32(masses)}, tuple(given))
    for ours, right in zip(network.inference()(), expected, strict=True):
        np.testing.assert_allclose(ours, right, atol=2e-6)


def test_attention_is_that_of_the_paper():
    network = small(networks, "Attention block")
    p = jax.tree.map(lambda leaf: leaf.astype(np.float64), network.params)

    def normal(layer, x):
        return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * layer["scale"] + layer["shift"]

    for example, ours in zip(network.inputs[0], np.asarray(network.on(CPU).inference()()), strict=True):
        tokens = [normal(p["norm 1"], token) for token in example.astype(np.float64)]
        for step, before in enumerate(example.astype(np.float64)):
            after = before.copy()
            for head in range(2):
                query, keys = tokens[step] @ p["query"][head], [token @ p["key"][head] for token in tokens]
                scores = np.exp([query @ key / np.sqrt(4) for key in keys])
                values = sum(s * (token @ p["value"][head]) for s, token in zip(scores, tokens, strict=True))
                after += values / scores.sum() @ p["join"][head]
            hidden = np.maximum(normal(p["norm 2"], after) @ p["up"]["weight"] + p["up"]["bias"], 0)
            np.testing.assert_allclose(ours[step], after + hidden @ p["down"]["weight"] + p["down"]["bias"], atol=1e-4)


@pytest.fixture
def quiet_machine(monkeypatch):
    """Full mode's verdicts from few samples; nothing is asserted of a time but what is planted."""
    monkeypatch.setattr(timing.Others, "cores", lambda self: 0.0)
    monkeypatch.setattr(timing, "FAST", timing.Budget(min_samples=8, max_samples=8, min_seconds=0.0, max_seconds=1.0))
    monkeypatch.setattr(timing.mode, "current", lambda: "full")


def compared(name, samples=10, **seconds):
    """A comparison of planted times, the first variant as the baseline."""
    about = {"question": "latency", "block": 1, "warmup_calls": 1, "stop_reason": "", "mode": "full", "device": "a CPU"}
    made = {
        key: timing.Measurement(name=key, samples=(each,) * samples, first_call=0.1, simulated=False, **about)
        for key, each in seconds.items()
    }
    return timing.compare_samples(made, baseline=next(iter(seconds)), name=name, parity="planted")


def test_means_are_of_speed_ups_that_may_be_shown():
    refused = dataclasses.replace(compared("two", jit=1.0, slow=8.0), refused={"slow": timing.Doubt("outputs differ")})
    both = compared("one", jit=1.0, slow=2.0, NumPy=4.0)
    slow, numpy = networks.means({"inference, latency": (both, compared("three", jit=1.0, slow=8.0), refused)})
    assert slow == "inference, latency, 2 networks: slow takes 2.00 to 8.00 times as long as jit, geometric mean 4.00."
    assert "1 network: NumPy takes 4.00 times" in numpy
    (nothing,) = networks.means({"gradient, latency": (refused,)})
    assert nothing == "gradient, latency: no speed-up of slow is given: outputs differ."
    (too_few,) = networks.means({"inference, latency": (compared("four", samples=3, jit=1.0, slow=2.0),)})
    assert "too few pairs" in too_few


def test_ways_of_a_cpu_are_raced(quiet_machine, monkeypatch):
    """The smallest networks, in full mode; which of them is faster is not asserted."""
    monkeypatch.setattr(networks, "MEASURED", {name: functools.partial(MAKERS[name], **SMALL[name]) for name in SMALL})
    monkeypatch.setattr(networks.mode, "by_mode", lambda full, fast: timing.FAST)
    raced, left_out = networks.race(["MLP", "CNN"], on=device.cpu(framework="jax"), seconds=1e6)
    inference, gradient = raced["inference, latency"], raced["gradient, latency"]
    assert [list(one.measurements) for one in inference] == [["jit", "op by op", "NumPy"], ["jit", "op by op"]]
    assert [list(one.measurements) for one in gradient] == [["jit", "op by op"]] * 2
    assert [one.name for one in inference] == ["MLP, inference", "CNN, inference"]
    assert not any(one.refused for one in [*inference, *gradient]), "equal outputs"
    assert all(one.watches for one in [*inference, *gradient]), "a sentinel watched"
    assert not left_out


def test_networks_that_do_not_fit_are_named(quiet_machine, monkeypatch):
    clock = iter(range(0, 10**6, 10))
    planted = functools.partial(allowance.Allowance, clock=lambda: next(clock))
    monkeypatch.setattr(networks.allowance, "Allowance", planted)
    monkeypatch.setattr(networks, "_compared", lambda network, task, *_: network.name)
    monkeypatch.setattr(networks.timing, "sentinel", lambda work, on: contextlib.nullcontext())
    raced, left_out = networks.race(list(networks.MEASURED), on=device.cpu(framework="jax"), seconds=30)
    assert raced["gradient, latency"] == ["MLP", "n-body step"], "two are done in any case"
    assert "the networks Attention block, CNN, ResNet block" in left_out


PRETEND_MAC = """
import json, jax
from metallab import device
cpus = jax.devices("cpu")
device.jax.devices = lambda: {"cpu": cpus[0], "mps": cpus[1]}
device.plugin = lambda framework: "jax-metal 0.1.1"
device.pick = lambda framework: device.jax.known("mps")
space = {"display": print}
for cell in json.load(open(PAGE))["cells"]:
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), cell["id"], "exec"), space)
shown = [value for value in space.values() if isinstance(value, (jax.Array, dict, list))]
arrays = [leaf for leaf in jax.tree.leaves(shown) if isinstance(leaf, jax.Array) and not leaf.is_deleted()]
where = {str(d) for array in arrays for d in array.devices()}
elsewhere = where - {str(cpus[1])}
compared = {}
if "raced" in space:
    compared = {c.name: {key: m.device.split(",")[0] for key, m in c.measurements.items()} for c in space["every"]}
    refused = [c.refused for c in space["every"] if c.refused]
    mlp = space["networks"].mlp(batch=2)
    ways, devices, roles = space["networks"]._ways(mlp, "inference", device.pick("jax"), device.jax.known("cpu"))
    computed = {key: str(way().devices()) for key, way in ways.items()}
else:
    refused, computed, roles = [], {}, {}
other = str({cpus[1]})
"""


@pytest.mark.nightly
@pytest.mark.parametrize("page", ["07_transform_with_jax", "07b_compile_with_jit"])
def test_pages_run_with_an_apple_gpu(page, tmp_path):
    """A second CPU device of JAX stands in for the GPU; not run on a Mac."""
    settings = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "METALLAB_MODE": "fast", "MPLBACKEND": "agg"}
    ran = isolated.run(
        PRETEND_MAC.replace("PAGE", repr(str(paths.NOTEBOOKS / f"{page}.ipynb"))),
        results=["compared", "refused", "computed", "roles", "elsewhere", "other"],
        environment=settings | {"METALLAB_OUT": str(tmp_path), "JAX_PLATFORMS": "cpu"},
    )
    assert ran.ok, ran.detail
    assert ran["elsewhere"] == set(), "new arrays went elsewhere than to the page's device"
    assert ran["refused"] == []
    assert list(tmp_path.rglob(f"{page}.json")), "its records are saved"
    if page.startswith("07_"):
        return
    cpu = f"CPU, {device.cpu(framework='jax').threads} threads"
    for name in ("MLP, inference", "MLP, gradient", "MLP, inference, throughput"):
        devices = ran["compared"][name]
        assert (devices[cpu][-4:], devices["mps"][-4:]) == (" CPU", " GPU"), name
    assert ran["computed"] == {cpu: str({CPU}), "mps": ran["other"]}
    assert ran["roles"] == {cpu: "CPU", "mps": "GPU"}
    assert "os.abort(): crashed" in ran.printed
