"""The networks of notebook 07b are the same everywhere, compute what their names say, and are raced; pages 07 and 07b.

They are checked against loops in NumPy that know nothing of them, on the CPU whatever else there is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metallab import allowance, checks, device, isolated, paths, plots, timing
from metallab.jax import compiling, networks, pictures

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


def test_numbers_stay_of_moderate_size():
    for make in networks.MEASURED.values():
        for leaf in leaves(make().on(CPU).inference()()):
            assert np.isfinite(leaf).all()
            assert 0.1 < leaf.std() < 10


def test_a_copy_lies_on_its_device():
    network = small(networks, "MLP")
    there = network.on(CPU)
    for leaf in jax.tree.leaves((there.params, there.inputs)):
        assert leaf.devices() == {CPU}
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(network.params)), "this one stays where it is"


def test_programs_are_counted_outside_jit_too_and_each_time_from_none():
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


def test_compiled_means_traced_once():
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


def test_softmax_bears_large_scores():
    np.testing.assert_array_equal(networks._softmax(np.float32([1000, 1000]), np), [0.5, 0.5])


def test_the_cnn_convolves_and_pools():
    network = small(networks, "CNN")
    x = network.inputs[0]
    for name in ("first", "second"):
        x = np.maximum(convolved(network.params[name], x), 0)
        x = np.max([x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], axis=0)
    expected = x.mean(axis=(1, 2)) @ network.params["out"]["weight"] + network.params["out"]["bias"]
    checks.assert_close(expected, network.on(CPU).inference()(), "float32")


def test_the_resnet_block_has_a_shortcut_and_two_norms():
    network = small(networks, "ResNet block")
    params, (x,) = network.params, network.inputs

    def normal(layer, x):
        flat = x.reshape(-1, 3)
        return (x - flat.mean(0)) / np.sqrt(flat.var(0) + 1e-5) * layer["scale"] + layer["shift"]

    y = np.maximum(normal(params["first norm"], convolved(params["first"], x)), 0)
    expected = np.maximum(x + normal(params["second norm"], convolved(params["second"], y)), 0)
    checks.assert_close(expected, network.on(CPU).inference()(), "float32")


def test_the_mlp_has_relu_between():
    network = small(networks, "MLP")
    (x,), p = network.inputs, network.params
    for name in ("in", "hidden"):
        x = np.clip(x @ p[name]["weight"] + p[name]["bias"], 0, None)
    checks.assert_close(x @ p["out"]["weight"] + p["out"]["bias"], network.on(CPU).inference()(), "float32")


def test_heads_have_to_divide_the_width():
    with pytest.raises(ValueError, match="3 heads cannot share a width of 8"):
        networks.attention_block(width=8, heads=3)


@pytest.fixture
def quiet_machine(monkeypatch):
    """Full mode's verdicts from few samples; nothing is asserted of a time but what is planted."""
    monkeypatch.setattr(timing.Others, "cores", lambda self: 0.0)
    monkeypatch.setattr(timing, "FAST", timing.Budget(min_samples=8, max_samples=8, min_seconds=0.0, max_seconds=1.0))
    monkeypatch.setattr(timing.mode, "current", lambda: "full")


def measured(name, samples, first_call):
    about = {"question": "latency", "block": 1, "warmup_calls": 1, "stop_reason": "", "mode": "full", "device": "a CPU"}
    return timing.Measurement(name=name, samples=tuple(samples), first_call=first_call, simulated=False, **about)


def compared(name="work", plain_first=0.091, **seconds):
    """A comparison of planted times, the first variant as the baseline."""
    first_calls = {"plain": plain_first}
    variants = {key: measured(key, [each] * 10, first_calls.get(key, 0.091)) for key, each in seconds.items()}
    return timing.compare_samples(variants, baseline=next(iter(seconds)), name=name, parity="planted")


@pytest.mark.parametrize(
    ("first", "seconds", "words"),
    [
        (0.034, {"plain": 0.004, "jit": 0.001}, "later, jit 91 ms and 1 ms. Compiling pays after 20 calls."),
        (0.004, {"plain": 0.004, "jit": 0.001}, "Compiling pays after 30 calls."),
        (0.258, {"plain": 0.004, "jit": 0.001}, "Compiling pays after 1 call."),
        (0.091, {"plain": 0.001, "jit": 0.001}, "It is not shown to be faster than plain."),
        (0.091, {"plain": 0.001, "jit": 0.004}, "It is not shown to be faster than plain."),
    ],
)
def test_compiling_pays_after_so_many_calls(first, seconds, words):
    """The baseline compiles at its first call, too, operation by operation."""
    told = compiling.pays_after(compared(plain_first=first, **seconds))
    assert told.startswith(f"work, a CPU: plain takes {first * 1000:.0f} ms at the first call and ")
    assert told.endswith(words)


def test_whether_compiling_pays_is_withheld_with_the_speed_up():
    withheld = dataclasses.replace(compared(plain=0.004, jit=0.001), refused={"jit": timing.Doubt("outputs differ")})
    told = compiling.pays_after(withheld)
    assert "is not told: " in told
    assert "4 ms" not in told


def test_traces_are_counted():
    pairs = {
        "values": (jnp.ones(2), jnp.zeros(2)),
        "shape": (jnp.ones(2), jnp.ones(3)),
        "key": ({"a": 1.0}, {"b": 1.0}),
    }
    assert list(map(list, compiling.traces(pairs).rows)) == [["values", "1"], ["shape", "2"], ["key", "2"]]


def test_a_mean_is_of_the_networks_that_have_the_rival():
    both = compared("one", jit=1.0, slow=2.0, NumPy=4.0)
    refused = dataclasses.replace(compared("two", jit=1.0, slow=8.0), refused={"slow": timing.Doubt("outputs differ")})
    raced = networks.Race({"inference, latency": (both, compared("three", jit=1.0, slow=8.0), refused)}, "Left out.")
    slow, numpy = raced.means
    assert slow == (
        "inference, latency, 2 networks, 1 withheld: slow takes 2.00 to 8.00 times as long as jit, geometric mean 4.00."
    )
    assert numpy.startswith("inference, latency, 1 network: NumPy takes 4.00 times as long as jit (95 % interval")
    assert str(raced).splitlines() == [slow, numpy, "Left out."]
    assert len(raced.all) == 3
    (nothing,) = networks.Race({"gradient, latency": (refused,)}).means
    assert nothing == "gradient, latency: no speed-up of slow is given: outputs differ."


def test_a_mean_of_too_few_pairs_is_not_given():
    few = [measured(key, [seconds] * 3, 1.0) for key, seconds in (("jit", 1.0), ("slow", 2.0))]
    one = timing.compare_samples({each.name: each for each in few}, baseline="jit", name="one", parity="planted")
    (sentence,) = networks.Race({"inference, latency": (one,) * 5}).means
    assert "no speed-up of slow is given: too few pairs" in sentence


def test_ways_of_a_cpu_are_raced(quiet_machine, monkeypatch):
    """The smallest networks, in full mode; which of them is faster is not asked."""
    monkeypatch.setattr(networks, "MEASURED", {name: functools.partial(MAKERS[name], **SMALL[name]) for name in SMALL})
    monkeypatch.setattr(networks.mode, "by_mode", lambda full, fast: timing.FAST)
    precisions, compare = [], timing.compare

    def noted(*args, **options):
        precisions.append(jax.config.jax_default_matmul_precision)
        return compare(*args, **options)

    monkeypatch.setattr(networks.timing, "compare", noted)
    with jax.default_matmul_precision("default"):
        raced = networks.race(["MLP", "CNN"], on=device.cpu(framework="jax"), seconds=1e6)
    inference, gradient = raced.comparisons["inference, latency"], raced.comparisons["gradient, latency"]
    assert [list(one.measurements) for one in inference] == [["jit", "op by op", "NumPy"], ["jit", "op by op"]]
    assert [list(one.measurements) for one in gradient] == [["jit", "op by op"]] * 2
    assert [one.name for one in raced.all] == [f"{n}, {t}" for t in ("inference", "gradient") for n in ("MLP", "CNN")]
    assert not any(one.refused for one in raced.all), "equal outputs"
    assert all(one.watches for one in raced.all), "a sentinel watched"
    assert set(precisions) == {networks.FLOAT32}
    assert not raced.left_out


def test_what_does_not_fit_is_left_out_and_named(quiet_machine, monkeypatch):
    clock = iter(range(0, 10**6, 10))
    planted = functools.partial(allowance.Allowance, clock=lambda: next(clock))
    monkeypatch.setattr(networks.allowance, "Allowance", planted)
    monkeypatch.setattr(networks, "_compared", lambda network, task, *_: network.name)
    monkeypatch.setattr(networks.timing, "sentinel", lambda work, on: contextlib.nullcontext())
    raced = networks.race(list(networks.MEASURED), on=device.cpu(framework="jax"), seconds=30)
    assert raced.comparisons["gradient, latency"] == ("MLP", "n-body step"), "two are done in any case"
    assert "the networks Attention block, CNN, ResNet block" in raced.left_out


def test_each_first_call_is_of_a_new_function(quiet_machine):
    """Traced anew in every call that is measured; and the larger numbers are left out where time is short."""
    traced = []

    def loop(x, rounds):
        traced.append(rounds)
        return x * rounds

    lab = device.cpu(framework="jax")
    first = compiling.first_calls({"a loop": loop}, jnp.ones(2), [1, 4], on=lab, seconds=1e6)
    for rounds, measured_ in first.lines["a loop"].items():
        calls = 1 + measured_.warmup_calls + measured_.n
        assert traced.count(rounds) >= calls, "compiled once, and measured as a call"
    assert str(first).startswith("The first call of a loop of 4 rounds takes ")
    assert str(first).endswith(f"as a loop (medians, {lab.label}).")
    assert [each.name for each in first.measurements] == [f"first call of a loop, {n} rounds" for n in (1, 4)]
    hopeless = compiling.first_calls({"a loop": loop}, jnp.ones(2), [1, 4, 16], on=lab, seconds=1e-6)
    assert list(hopeless.lines["a loop"]) == [1, 4]
    assert "rounds: 16" in str(hopeless)


def test_of_a_busy_machine_no_first_call_is_told():
    quiet = measured("a", [0.2] * 9, 1.0)
    busy = dataclasses.replace(quiet, others=1.5)
    first = compiling.FirstCalls({"a loop": {4: busy, 8: quiet}}, "Left out: 16.")
    told, figure = str(first), first.draw()
    assert told.endswith(" Left out: 16.")
    assert "busy machine" in told
    assert "200 ms" not in told
    assert figure.get_label() == told, "nor is it in the picture, or in the words of the picture"
    (axes,) = figure.axes
    assert (list(axes.lines), list(axes.collections)) == ([], [])
    assert [text.get_text() for text in axes.texts] == ["no times: busy machine"]
    quiet_figure = compiling.FirstCalls({"a loop": {4: quiet, 8: quiet}}).draw()
    assert "200 ms" in quiet_figure.get_label()
    assert len(quiet_figure.axes[0].lines) == 1


def test_a_race_that_is_withheld_for_one_reason_has_one_row():
    plain = compared(jit=0.001, plain=0.002)
    busy = dataclasses.replace(plain, refused={"plain": timing.Doubt("busy machine", "by 1.0 cores")})
    wrong = dataclasses.replace(plain, refused={"plain": timing.Doubt("outputs differ", "by 0.1")})
    for comparisons, rows in (((busy, plain), 2), ((busy, wrong), 2), ((busy, busy), 1)):
        (axes,) = networks.Race({"inference, latency": comparisons}).draw().axes
        assert len(axes.get_yticks()) == rows


def test_digits_with_a_wrong_label_have_it_in_colour():
    lab = device.cpu(framework="jax")
    labels, truth = np.arange(9), np.array([0, 1, 2, 3, 5, 5, 6, 7, 8])
    figure = pictures.digits(np.zeros((9, 64)), labels, truth, [4, 1, 0, 2, 3, 8, 7], heading="Seven", on=lab)
    titles = {ax.get_title(): ax.title.get_color() for ax in figure.axes if ax.get_title()}
    assert [text for text, colour in titles.items() if colour == plots.RED] == ["labelled 4, is 5"]
    assert list(titles) == ["labelled 4, is 5", *(f"labelled {i}" for i in (1, 0, 2, 3, 8, 7))]
    assert figure.get_label().startswith("Seven: labelled 4, is 5; labelled 1; ")
    with pytest.raises(IndexError):
        pictures.digits(np.zeros((9, 64)), labels, truth, [9], heading="One", on=lab)


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
    compared = {c.name: {key: m.device.split(",")[0] for key, m in c.measurements.items()} for c in space["raced"].all}
    refused = [c.refused for c in space["raced"].all if c.refused]
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


def convolved(kernel, x):
    """A 3 x 3 convolution as machine learning means it, by a loop over the kernel."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    height, width = x.shape[1:3]
    return sum(padded[:, i : i + height, j : j + width] @ kernel[i, j] for i in range(3) for j in range(3))
