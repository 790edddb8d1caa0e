"""TensorFlow's graph optimiser, Grappler: read what it made of a function, check its results, draw it (notebook 06b).

Its *remapper* replaces a chain of operations, such as a convolution, a bias and a ReLU, by one fused operation.
TensorFlow reports both graphs in a run's metadata, for functions that are first called while graphs are collected.
TensorFlow is imported inside functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metallab import checks, units
from metallab.device import Device
from metallab.tables import Table
from metallab.tensorflow import mixed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NO_WORK = ("_Arg", "_Retval", "Const", "NoOp", "Identity", "_Send", "_Recv", "_HostSend", "_HostRecv")

Make = Callable[[str], Callable[[], Any]]
"""``make(dtype)()`` computes a pattern from the same numbers in any floating dtype, on the device that is active."""


@dataclass(frozen=True)
class Node:
    """One operation of a graph."""

    name: str
    op: str
    inputs: tuple[str, ...] = ()
    """Names of the nodes it reads from; control dependencies are left out."""
    parts: tuple[str, ...] = ()
    """What was fused into it besides its own work, from its attribute ``fused_ops``: ``("BiasAdd", "Relu")``."""

    @property
    def fused(self) -> bool:
        """True for what an optimiser put there: ``_FusedConv2D``, but not a user's ``FusedBatchNormV3``."""
        return bool(self.parts) or (self.op.startswith("_") and "Fused" in self.op)

    def __str__(self) -> str:
        return f"{self.op}({', '.join(self.parts)})" if self.parts else self.op


@dataclass(frozen=True)
class Reading:
    """A function's graphs before and after optimisation, and what the call returned."""

    before: tuple[Node, ...]
    after: tuple[Node, ...]
    result: Any = None
    devices: tuple[str, ...] = ()
    """Where its operations were placed: ``("CPU",)``. Soft placement moves silently what a GPU lacks."""

    @property
    def fused(self) -> tuple[str, ...]:
        """The fused operations of the optimised graph, each once, as text."""
        return tuple(dict.fromkeys(str(node) for node in self.after if node.fused))

    @property
    def new(self) -> tuple[str, ...]:
        """Operations of the optimised graph that the original one does not have."""
        known = {node.op for node in self.before}
        return tuple(dict.fromkeys(node.op for node in self.after if node.op not in known))


def collect(call: Callable[..., Any], *inputs: Any) -> Reading:
    """Call ``call(*inputs)`` and read the graphs that TensorFlow optimised meanwhile, all of them together.

    That happens once for each function, signature and set of optimiser options. ValueError if nothing was optimised.
    """
    from tensorflow.python.eager import context

    ours = context.context()
    ours.enable_graph_collection()
    try:
        result = call(*inputs)
        graphs = ours.export_run_metadata().function_graphs
    finally:
        ours.disable_graph_collection()
    if not graphs:
        raise ValueError("no graph was optimised during this call: give a tf.function that was not called before")
    before, after = (
        tuple(_node(node, f"{number}/") for number, graph in enumerate(graphs) for node in getattr(graph, which).node)
        for which in ("pre_optimization_graph", "post_optimization_graph")
    )
    placed = [node for graph in graphs for part in graph.partition_graphs for node in part.node]
    working = [node for node in placed if node.op not in _NO_WORK and not node.op.startswith("_Arg")]
    devices = {node.device.rpartition("device:")[2].split(":")[0] for node in working}  # GPU of /job:.../device:GPU:0
    return Reading(before, after, result, tuple(sorted(devices - {""})))


def read(fn: Callable[..., Any], *inputs: Any, remapping: bool = True) -> Reading:
    """Make a graph of a Python function (or of that in a `tf.function`), run it once, and read both graphs."""
    import tensorflow as tf

    fresh = tf.function(getattr(fn, "python_function", fn), jit_compile=False, autograph=False)
    return collect(under(fresh, remapping=remapping), *inputs)


def under(fn: Callable[..., Any], *, remapping: bool) -> Callable[..., Any]:
    """``fn``, called with the remapper on or off whatever the option is at that time.

    TensorFlow reads its optimiser options at each *call* of a graph, not when it is traced: two functions that take
    turns need this, or both run under whichever option was set last. The option is left as it was.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context

    ours = context.context()
    options = tf.config.optimizer
    before = options.get_experimental_options().get("remapping", True)
    options.set_experimental_options({"remapping": remapping})
    mine = ours.function_call_options
    options.set_experimental_options({"remapping": before})

    @functools.wraps(fn, updated=())
    def call(*inputs: Any) -> Any:
        theirs = ours.function_call_options
        ours.function_call_options = mine
        try:
            return fn(*inputs)
        finally:
            ours.function_call_options = theirs

    return call


@dataclass(frozen=True)
class Outcome:
    """What a device made of one computation, compared with the CPU in float64.

    Errors are the largest in tolerances of `metallab.checks`: up to 1 agrees. NaN and other shapes are infinite.
    """

    name: str
    graph: float
    eager: float = 0.0
    reading: Reading = Reading((), ())
    raised: str = ""
    """What it raised on the device; empty if it did not."""

    @property
    def ok(self) -> bool:
        return max(self.graph, self.eager) <= 1

    @property
    def verdict(self) -> str:
        """``agrees``, ``WRONG in graph``, or what was raised."""
        wrong = [how for how in ("eager", "graph") if getattr(self, how) > 1]
        return self.raised or (f"WRONG in {' and '.join(wrong)}" if wrong else "agrees")


def table(outcomes: Iterable[Outcome]) -> Table:
    """The outcomes of several computations: what was fused, the graph's error, the verdict, and where they ran."""
    outcomes = list(outcomes)
    rows = [(o.name, ", ".join(o.reading.fused) or "nothing fused", f"{o.graph:.2g}", o.verdict) for o in outcomes]
    devices = sorted({device for outcome in outcomes for device in outcome.reading.devices})
    agree = sum(outcome.ok for outcome in outcomes)
    note = f"{agree} of {len(rows)} agree with the CPU in float64; they ran on {' and '.join(devices) or 'no device'}."
    return Table(["computed", "fused in the graph", "error [tolerances]", "verdict"], rows, note)


def error(reference: Any, result: Any) -> float:
    """The largest difference of two arrays, or lists of arrays, as a share of float32's tolerance there."""
    if isinstance(reference, list | tuple):
        return max(error(*pair) for pair in zip(reference, result, strict=True))
    a, b = np.asarray(reference, np.float64), np.asarray(result, np.float64)
    if a.shape != b.shape:
        return float("inf")
    allowed = checks.tolerance("float32")
    limit = allowed.relative * (np.abs(a) + checks.array_size(a)) + allowed.absolute
    shares = np.where(np.isnan(a) & np.isnan(b), 0.0, np.abs(a - b) / limit)
    return float(np.nan_to_num(shares, nan=np.inf, posinf=np.inf).max(initial=0.0))


def survey(patterns: Mapping[str, Make], *, on: Device, remapping: bool = True) -> list[Outcome]:
    """Compute each pattern on a device, eagerly and as a graph, and compare with the CPU, eagerly in float64.

    A pattern that raises on the device is wrong as well.
    """
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")  # it warns of many functions, which are made on purpose
    outcomes = []
    for name, make in patterns.items():
        with tf.device("/CPU:0"):
            reference = make("float64")()
        try:
            with on.active():
                compute = make("float32")
                eager = compute()
                reading = read(compute, remapping=remapping)
        except (tf.errors.OpError, ValueError, TypeError, NotImplementedError) as problem:
            raised = f"WRONG: it raised {units.first_line(problem, kind=True)}"
            outcomes.append(Outcome(name, float("inf"), float("inf"), raised=raised))
            continue
        errors = error(reference, reading.result), error(reference, eager)
        outcomes.append(Outcome(name, *errors, Reading(reading.before, reading.after, devices=reading.devices)))
    return outcomes


OPTIMIZERS = {
    "SGD": {},
    "RMSprop": {},
    "Adagrad": {},
    "Adam": {"epsilon": 1e-3},  # else it divides by tiny gradients, and blows their rounding up
}
"""Keras optimizers whose steps are checked, with their options."""


def steps(*, on: Device, names: Iterable[str] = tuple(OPTIMIZERS)) -> list[Outcome]:
    """One training step of a small network on real digits with each optimizer, as a graph on a device.

    Compared is how far each weight moved, with one step from equal weights on the CPU, eagerly in float64.
    """
    import tensorflow as tf
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    images, classes = pixels[:32] / 16, tf.constant(classes[:32].astype("int32"))
    outcomes = []
    for name in names:
        with on.active():
            ours = _network("float32", name)
            start = ours.get_weights()
            reading = read(functools.partial(mixed.train_step, ours), tf.constant(images, "float32"), classes)
        with tf.device("/CPU:0"):
            exact = _network("float64", name)
            exact.set_weights(start)
            mixed.train_step(exact, tf.constant(images), classes)
        moved = [[b - a for a, b in zip(start, model.get_weights(), strict=True)] for model in (exact, ours)]
        outcomes.append(Outcome(f"a step of {name}", error(*moved), reading=reading))
    return outcomes


def _network(dtype: str, optimizer: str) -> Any:
    """A compiled Keras model (64 to 10) in one dtype throughout."""
    import keras

    keras.utils.set_random_seed(0)
    hidden = keras.layers.Dense(64, activation="relu", dtype=dtype)
    model = keras.Sequential([keras.Input((64,), dtype=dtype), hidden, keras.layers.Dense(10, dtype=dtype)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype=dtype)
    options = {"learning_rate": 0.01, **OPTIMIZERS[optimizer]}
    model.compile(getattr(keras.optimizers, optimizer)(**options), loss, jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def patterns() -> dict[str, Make]:
    """The patterns of notebook 06b: matrix product, convolution, batch norm, LSTM, with inputs of a fixed seed."""
    import tensorflow as tf

    nn = tf.nn
    made = {"matmul + bias": _product, "conv2d + bias": _convolution, "conv2d + fused_batch_norm": _normalised}
    for start, then in (
        ("matmul + bias", (nn.relu, nn.tanh, nn.sigmoid, nn.gelu, nn.softplus)),
        ("conv2d + bias", (nn.relu, nn.relu6, nn.elu, nn.leaky_relu, nn.tanh)),
        ("conv2d + fused_batch_norm", (nn.relu,)),
    ):
        made |= {f"{start} + {f.__name__}": functools.partial(_followed, made[start], f) for f in then}
    made["conv2d + Keras BatchNormalization"] = functools.partial(_layers, _keras_normalised)
    made["Keras LSTM"] = functools.partial(_layers, _keras_lstm)
    return made


def draw(panels: Mapping[str, Sequence[Node]], *, heading: str, device: str) -> Figure:
    """Graphs of a few operations side by side, each operation a box below the one before; fused ones are coloured."""
    import matplotlib.pyplot as plt

    from metallab import plots

    graphs = {title: [node for node in nodes if node.op not in _NO_WORK] for title, nodes in panels.items()}
    arguments = {node.name for nodes in panels.values() for node in nodes if node.op == "_Arg"}
    rows = max(map(len, graphs.values()))
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(1, len(graphs), figsize=(7.5, 1.2 + 0.8 * rows), squeeze=False)
        for axis, (title, nodes) in zip(axes[0], graphs.items(), strict=True):
            for row, node in enumerate(nodes):
                read = [name.split("/", 1)[1] for name in node.inputs if name in arguments]
                _draw_box(axis, node, -row, ", ".join(read), last=node is nodes[-1])
            axis.set_title(f"{title}: {len(nodes)} operation{'s' if len(nodes) != 1 else ''}")
            axis.set(xlim=(-1, 1), ylim=(-rows - 0.2, 0.5))
            axis.axis("off")
        plots.title(figure, heading, [device])
    return plots.described(figure, "; ".join(f"{title}: {' -> '.join(map(str, n))}" for title, n in graphs.items()))


def _draw_box(axes: Any, node: Node, y: float, arguments: str, last: bool) -> None:
    """One operation, the arguments that it reads beside it, and the arrow to what is below."""
    from metallab import plots

    face, edge = ("#f8dfae", plots.ORANGE) if node.fused else ("#cfe6f5", plots.BLUE)
    box = {"boxstyle": "round,pad=0.35", "facecolor": face, "edgecolor": edge}
    words = "\n".join(filter(None, [node.op, " + ".join(node.parts)]))
    axes.text(0.2, y, words, ha="center", va="center", fontsize=9, bbox=box)
    arrow = {"arrowstyle": "-|>", "color": "#555555"}
    axes.annotate("", (0.2, y - 0.72), (0.2, y - 0.28), arrowprops=arrow)
    if arguments:
        axes.text(-1, y, arguments, va="center", fontsize=9)
        axes.annotate("", (-0.2, y), (-0.4, y), arrowprops=arrow)
    if last:
        axes.text(0.2, y - 0.9, "result", ha="center", va="center", fontsize=9)


def _node(node: Any, graph: str) -> Node:
    inputs = tuple(graph + name.split(":")[0] for name in node.input if not name.startswith("^"))
    parts = tuple(part.decode() for part in node.attr["fused_ops"].list.s) if "fused_ops" in node.attr else ()
    return Node(graph + node.name, node.op, inputs, parts)


def _followed(make: Make, then: Callable, dtype: str) -> Callable[[], Any]:
    compute = make(dtype)
    return lambda: then(compute())


def _numbers(dtype: str, *shape: int, seed: int = 0) -> Any:
    """Standard normal numbers / sqrt(terms of a sum), rounded to float32, so that every dtype starts from the same."""
    import tensorflow as tf

    terms = np.prod(shape[:-1]) if len(shape) > 1 else 1
    values = np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32) / np.float32(terms**0.5)
    return tf.constant(values, dtype)


def _product(dtype: str) -> Callable[[], Any]:
    import tensorflow as tf

    x, weight, bias = _numbers(dtype, 64, 96) * 8, _numbers(dtype, 96, 80), _numbers(dtype, 80)
    return lambda: tf.nn.bias_add(tf.linalg.matmul(x, weight), bias)


def _images(dtype: str) -> Any:
    return _numbers(dtype, 4, 12, 12, 8) * 24  # standard normal again


def _convolution(dtype: str) -> Callable[[], Any]:
    import tensorflow as tf

    x, kernel, bias = _images(dtype), _numbers(dtype, 3, 3, 8, 16), _numbers(dtype, 16)
    return lambda: tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias)


def _normalised(dtype: str) -> Callable[[], Any]:
    import tensorflow as tf

    x, kernel = _images(dtype), _numbers(dtype, 3, 3, 8, 16)
    scale, offset, mean = (_numbers(dtype, 16, seed=seed) for seed in (1, 2, 3))
    variance = tf.abs(_numbers(dtype, 16, seed=4)) + 0.5
    if dtype == "float64":  # which the fused operation does not have: the same by the formula
        return lambda: tf.nn.batch_normalization(
            tf.nn.conv2d(x, kernel, 1, "SAME"), mean, variance, offset, scale, 0.001
        )
    norm = functools.partial(tf.compat.v1.nn.fused_batch_norm, epsilon=0.001, is_training=False)
    return lambda: norm(tf.nn.conv2d(x, kernel, 1, "SAME"), scale, offset, mean, variance)[0]


def _layers(build: Callable, dtype: str) -> Callable[[], Any]:
    """Keras layers in one dtype throughout, with weights that are the same in each."""
    layers, x = build(dtype)
    compute = lambda: functools.reduce(lambda value, layer: layer(value), layers, x)
    compute()  # builds them
    for number, weight in enumerate(weight for layer in layers for weight in layer.weights):
        values = _numbers("float32", *weight.shape, seed=number)
        weight.assign(np.abs(values) + 0.5 if "variance" in weight.name else values)
    return compute


def _keras_normalised(dtype: str) -> tuple[list, Any]:
    import keras

    convolution = keras.layers.Conv2D(16, 3, padding="same", use_bias=False, dtype=dtype)
    return [convolution, keras.layers.BatchNormalization(dtype=dtype)], _images(dtype)


def _keras_lstm(dtype: str) -> tuple[list, Any]:
    import keras

    return [keras.layers.LSTM(16, dtype=dtype)], _numbers(dtype, 4, 10, 8) * 6
