"""The networks of notebook 07 are the same everywhere, and compute what their names say.

They are checked against loops in NumPy that know nothing of them, on the CPU whatever else there is.
"""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mutate import Rules

from metallab import checks, device, isolated, paths, timing
from metallab.jax import networks

RULES = Rules(networks)
CPU = jax.devices("cpu")[0]
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


@RULES.rule(
    ("np.random.default_rng(0)", "np.random.default_rng()"),
    ("np.random.default_rng(0)", "np.random.default_rng(1)"),
    ("(2 / fan_in) ** 0.5", "(1 / fan_in) ** 0.5"),
    ("fan_in=9 * before", "fan_in=before"),
    ("steps: int = 64", "steps: int = 32"),
)
def a_name_stands_for_one_network(networks):
    for name, make in networks.MEASURED.items():
        network = make()
        arrays = jax.tree.leaves((network.params, network.inputs))
        assert network.name == name
        assert all(isinstance(array, np.ndarray) and array.dtype == np.float32 for array in arrays)
        assert sum(array.sum(dtype=np.float64) for array in arrays) == pytest.approx(SUMS[name], abs=1e-3)
        assert [leaf.shape for leaf in leaves(network.on(CPU).inference()())] == SHAPES[name]


@RULES.rule(("fan_in=before), ", "fan_in=1), "), ("masses = np.abs(draw.normal(bodies)) / ", "masses = 1e6 * "))
def numbers_stay_of_moderate_size(networks):
    for make in networks.MEASURED.values():
        for leaf in leaves(make().on(CPU).inference()()):
            assert np.isfinite(leaf).all()
            assert 0.1 < leaf.std() < 10


@RULES.rule(
    ("params=jax.device_put(self.params, device)", "params=self.params"),
    ("inputs=jax.device_put(self.inputs, device)", "inputs=self.inputs"),
)
def a_copy_lies_on_its_device(networks):
    network = small(networks, "MLP")
    there = network.on(CPU)
    for leaf in jax.tree.leaves((there.params, there.inputs)):
        assert leaf.devices() == {CPU}
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(network.params)), "this one stays where it is"


@RULES.rule(
    ("jax.jit(self.function) if compiled else self.function", "self.function"),
    ("jax.jit(self.function) if compiled else self.function", "jax.jit(self.function)"),
    ("jax.jit(function) if compiled else function", "function"),
    ("jax.jit(function) if compiled else function", "jax.jit(function)"),
)
def compiled_means_traced_once(networks):
    seen = []

    def counted(params, x, xp=jnp):
        seen.append("run")
        return params * x

    network = networks.Network("counted", counted, np.float32(2), (np.ones(3, np.float32),)).on(CPU)
    for task in (network.inference, network.gradient):
        for compiled, runs in ((True, 1), (False, 3)):
            seen.clear()
            call = task(compiled=compiled)
            for _ in range(3):
                jax.block_until_ready(call())
            assert len(seen) == runs, (task, compiled)


@RULES.rule(
    ("jnp.mean(jnp.square(output)) for", "jnp.mean(jnp.abs(output)) for"),
    ("jnp.mean(jnp.square(output)) for output in outputs", "jnp.mean(jnp.square(output)) for output in outputs[:1]"),
    ("jax.value_and_grad(self.loss)", "jax.value_and_grad(self.loss, argnums=1)"),
)
def the_gradient_is_that_of_the_mean_square(networks):
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


@RULES.rule(("if not self.in_numpy:", "if False:"), ("*inputs, xp=np)", "*inputs, xp=jnp)"))
def the_same_code_runs_in_numpy(networks):
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


@RULES.rule(
    ("positions[None, :, :] - positions[:, None, :]", "positions[:, None, :] - positions[None, :, :]"),
    ("(squared * xp.sqrt(squared))", "squared"),
    ("positions = positions + step * halfway", "positions = positions + step * velocities"),
    ("velocities + step / 2 * _acc", "velocities + step * _acc"),
)
def two_bodies_fall_towards_each_other(networks):
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


@RULES.rule(
    ("query.shape[-1] ** -0.5", "query.shape[-1] ** 0.5"),
    ("xp.swapaxes(key, -1, -2)", "xp.swapaxes(query, -1, -2)"),
    ("return x + _linear(params", "return _linear(params"),
    ("x = x + ((weights", "x = ((weights"),
    ("variance + 1e-5)", "variance + 1e-1)"),
    ('* norm["scale"]', '* norm["shift"]'),
)
def attention_is_that_of_the_paper(networks):
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


@RULES.rule(("xp.exp(x - x.max(axis=-1, keepdims=True))", "xp.exp(x)"))
def softmax_bears_large_scores(networks):
    np.testing.assert_array_equal(networks._softmax(np.float32([1000, 1000]), np), [0.5, 0.5])


@RULES.rule(('x, kernel, (1, 1), "SAME"', 'x, kernel[::-1], (1, 1), "SAME"'), ("lax.max, (1, 2", "lax.min, (1, 2"))
def the_cnn_convolves_and_pools(networks):
    network = small(networks, "CNN")
    x = network.inputs[0]
    for name in ("first", "second"):
        x = np.maximum(convolved(network.params[name], x), 0)
        x = np.max([x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], axis=0)
    expected = x.mean(axis=(1, 2)) @ network.params["out"]["weight"] + network.params["out"]["bias"]
    checks.assert_close(expected, network.on(CPU).inference()(), "float32")


@RULES.rule(
    ("jnp.maximum(x + y, 0)", "jnp.maximum(y, 0)"),
    ('"second norm"], _conv', '"first norm"], _conv'),
    ('params["second"], y), (0, 1, 2)', 'params["second"], y), (1, 2)'),
)
def the_resnet_block_has_a_shortcut_and_two_norms(networks):
    network = small(networks, "ResNet block")
    params, (x,) = network.params, network.inputs

    def normal(layer, x):
        flat = x.reshape(-1, 3)
        return (x - flat.mean(0)) / np.sqrt(flat.var(0) + 1e-5) * layer["scale"] + layer["shift"]

    y = np.maximum(normal(params["first norm"], convolved(params["first"], x)), 0)
    expected = np.maximum(x + normal(params["second norm"], convolved(params["second"], y)), 0)
    checks.assert_close(expected, network.on(CPU).inference()(), "float32")


@RULES.rule(("x = xp.maximum(_linear(params[name], x), 0)", "x = _linear(params[name], x)"))
def the_mlp_has_relu_between(networks):
    network = small(networks, "MLP")
    (x,), p = network.inputs, network.params
    for name in ("in", "hidden"):
        x = np.clip(x @ p[name]["weight"] + p[name]["bias"], 0, None)
    checks.assert_close(x @ p["out"]["weight"] + p["out"]["bias"], network.on(CPU).inference()(), "float32")


@RULES.rule(("    if width % heads:", "    if False:"))
def heads_have_to_divide_the_width(networks):
    with pytest.raises(ValueError, match="3 heads cannot share a width of 8"):
        networks.attention_block(width=8, heads=3)


@RULES.rule(
    ("(time.process_time() - work) / (time.perf_counter() - wall)", "time.process_time() - work"),
    ("        place.synchronize(infer())  # compiled before the clocks start\n", ""),
    ("measured.append(OnCpu(", "measured.insert(0, OnCpu("),
    ("place.threads} thread{", "1} thread{"),
)
def on_the_cpu_the_busy_cores_are_told(networks, monkeypatch):
    """The clocks are pretended: 2 seconds pass for each network, with 3 of processor time."""
    walls, works, waits = iter([0, 2, 5, 7]), iter([0, 3, 9, 12]), []
    clock = SimpleNamespace(perf_counter=lambda: next(walls), process_time=lambda: next(works))
    place = SimpleNamespace(jax_device=CPU, threads=7, label="a CPU", synchronize=waits.append)
    monkeypatch.setattr(networks, "time", clock)
    monkeypatch.setattr(networks.device, "cpu", lambda framework: place)
    monkeypatch.setattr(networks.timing, "measure", lambda fn, **told: told)
    found = networks.measure_on_cpu(["MLP", "n-body step"], timing.FAST)
    assert [each.busy_cores for each in found] == [1.5, 1.5]
    assert [each.measurement["name"] for each in found] == [
        f"{name}, a process of 7 threads" for name in ("MLP", "n-body step")
    ]
    assert all(each.measurement["on"] is place and each.measurement["budget"] is timing.FAST for each in found)
    assert len(waits) == 2, "each was compiled before it was measured"


test_rule_holds, test_broken_rule_goes_red = RULES.tests()


def test_one_thread_is_one_thread():
    """In a child process, with real clocks and without any other framework."""
    source = (
        "import sys; from metallab import timing; from metallab.jax import networks\n"
        "others = {'torch', 'tensorflow', 'sklearn'}\n"
        "found = networks.measure_on_cpu(['MLP'], timing.Budget(min_seconds=0.2, max_seconds=0.5))\n"
        "label, cores, loaded = found[0].measurement.device, found[0].busy_cores, sorted(others & set(sys.modules))"
    )
    child = isolated.run(source, results=["label", "cores", "loaded"], threads=1, environment={"JAX_PLATFORMS": "cpu"})
    assert child["label"].endswith("CPU, 1 thread")
    assert 0 < child["cores"] < 1.2
    assert child["loaded"] == []


PRETEND_MAC = """
import json, jax
from metallab import device
cpus = jax.devices("cpu")
device.jax.devices = lambda: {"cpu": cpus[0], "mps": cpus[1]}
device.plugin = lambda framework: "jax-metal 0.1.1"
device.pick = lambda framework: device.jax.known("mps")
space = {"apart": []}
for cell in json.load(open(PAGE))["cells"]:
    if cell["cell_type"] == "code" and cell["id"] != "one":  # that one is for the CPU alone
        exec(compile("".join(cell["source"]), cell["id"], "exec"), space)
about, ended = space["found"]["about the plugin"], [row["ended"] for row in space["rows"].values()]
compared = {c.name: {key: m.device.split(",")[0] for key, m in c.measurements.items()} for c in space["compared"]}
refused = [c.refused for c in space["compared"] if c.refused]
variants = space["variants_of"](space["networks"].mlp(batch=2), "inference")
computed = {key: str(variant().devices()) for key, variant in variants.items()}
settings, other = space["settings"], str({cpus[1]})
where = {str(d) for leaf in jax.tree.leaves(space["params"]) for d in leaf.devices()} - {str(cpus[1])}
"""


def test_notebook_07_runs_with_an_apple_gpu(tmp_path):
    """A second CPU device of JAX stands in for the GPU; not run on a Mac."""
    settings = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "METALLAB_MODE": "fast", "MPLBACKEND": "agg"}
    ran = isolated.run(
        PRETEND_MAC.replace("PAGE", repr(str(paths.NOTEBOOKS / "07_transform_with_jax.ipynb"))),
        results=["about", "ended", "compared", "refused", "computed", "where", "settings", "other"],
        environment=settings | {"METALLAB_OUT": str(tmp_path), "JAX_PLATFORMS": "cpu"},
    )
    assert ran.ok, ran.detail
    assert "eigh" in ran["about"]
    assert ran["ended"] == ["well", "crashed"]
    assert "JAX_PLATFORMS" not in ran["settings"], "risky programs are for the GPU"
    assert ran["where"] == set(), "new arrays went elsewhere than to the page's device"
    assert ran["refused"] == []
    best = f"CPU, {device.cpu(framework='jax').threads} threads"
    for name in ("MLP, inference", "MLP, gradient", "MLP, inference, throughput"):
        devices = ran["compared"][name]
        assert (devices[best][-4:], devices["mps"][-4:]) == (" CPU", " GPU"), name
    assert ran["computed"] == {best: str({CPU}), "mps": ran["other"]}
    assert list(tmp_path.rglob("07_transform_with_jax.json")), "its records are saved"


def convolved(kernel, x):
    """A 3 x 3 convolution as machine learning means it, by a loop over the kernel."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    height, width = x.shape[1:3]
    return sum(padded[:, i : i + height, j : j + width] @ kernel[i, j] for i in range(3) for j in range(3))
