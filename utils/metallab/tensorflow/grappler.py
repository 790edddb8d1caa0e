"""What TensorFlow's graph optimiser, Grappler, made of a function: reading it, judging its results, drawing it.

Its *remapper* replaces a chain of operations, such as a convolution, a bias and a ReLU, by one fused operation.
TensorFlow tells which in a run's metadata, for functions that are first called while graphs are collected. TensorFlow
is imported inside functions.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from metallab import checks, units
from metallab.device import Device
from metallab.tables import Table
from metallab.tensorflow import mixed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NO_WORK = ("_Arg", "_Retval", "Const", "NoOp", "Identity", "_Send", "_Recv", "_HostSend", "_HostRecv")

MOST_DRAWN = 16
"""Graphs with more operations are not drawn."""


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
    """Where its operations were placed: ``("CPU",)``. Soft placement moves what a GPU lacks without a word."""

    @property
    def fused(self) -> tuple[str, ...]:
        """The fused operations of the optimised graph, in words, each once."""
        return tuple(dict.fromkeys(str(node) for node in self.after if node.fused))

    @property
    def ops(self) -> Counter[str]:
        """How often each operation stands in the optimised graph; arguments and results are no operations."""
        return Counter(node.op for node in self.after if node.op not in ("_Arg", "_Retval", "NoOp"))

    @property
    def new(self) -> tuple[str, ...]:
        """Operations of the optimised graph that did not stand in the original one."""
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
        placed = [node for graph in graphs for part in graph.partition_graphs for node in part.node]
    finally:
        ours.disable_graph_collection()
    if not graphs:
        raise ValueError("no graph was optimised during this call: give a tf.function that was not called before")
    before, after = (
        tuple(_node(node, f"{number}/") for number, graph in enumerate(graphs) for node in getattr(graph, which).node)
        for which in ("pre_optimization_graph", "post_optimization_graph")
    )
    working = [node for node in placed if node.op not in _NO_WORK and not node.op.startswith("_Arg")]
    return Reading(before, after, result, tuple(sorted({_device_type(node.device) for node in working} - {""})))


def read(fn: Callable[..., Any], *inputs: Any, remapping: bool = True) -> Reading:
    """Make a graph of a Python function (or of that in a `tf.function`), run it once, and read what became of it."""
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
class GraphParity:
    """How far one result is from its reference."""

    name: str
    error: float
    """The largest error in tolerances of `metallab.checks`: up to 1 agrees. Infinite for NaN or another shape."""
    says: str = ""
    """The complaint of the check; empty if the results agree."""

    @property
    def ok(self) -> bool:
        return not self.says

    @property
    def row(self) -> tuple[str, str, str]:
        """Name, error in tolerances, verdict."""
        return self.name, f"{self.error:.2g}", "agrees" if self.ok else f"WRONG: {self.says}"

    def __str__(self) -> str:
        return f"{self.name}: agrees ({self.error:.2g} tolerances)" if self.ok else f"{self.name}: WRONG: {self.says}"


def judge(name: str, reference: Any, result: Any, dtype: Any = "float32") -> GraphParity:
    """Compare a result (an array, or a list of arrays) with its reference at the tolerance of ``dtype``."""
    try:
        checks.assert_close(reference, result, dtype)
        says = ""
    except checks.Mismatch as reason:
        says = str(reason)
    return GraphParity(name, _error(reference, result, checks.tolerance(dtype)), says)


@dataclass(frozen=True)
class Pattern:
    """A chain of operations that a remapper may fuse."""

    name: str
    make: Callable[[str], Callable[[], Any]]
    """``make(dtype)()`` computes it from the same numbers in any floating dtype, on the device that is active."""


@dataclass(frozen=True)
class PatternResult:
    """What a device made of a pattern."""

    pattern: str
    reading: Reading
    eager: GraphParity
    graph: GraphParity

    @property
    def ok(self) -> bool:
        return self.eager.ok and self.graph.ok

    @property
    def row(self) -> tuple[str, ...]:
        """Pattern, fused operations, where they ran, error in tolerances without and with a graph, and the verdict."""
        wrong = " and ".join(how for how, parity in (("eager", self.eager), ("graph", self.graph)) if not parity.ok)
        errors = (f"{parity.error:.2g}" for parity in (self.eager, self.graph))
        verdict = f"WRONG in {wrong}" if wrong else "agrees"
        where = " and ".join(self.reading.devices) or "-"
        return (self.pattern, ", ".join(self.reading.fused) or "nothing fused", where, *errors, verdict)


HEADINGS = (
    "pattern",
    "fused in the graph",
    "ran on",
    "eager: error [tolerances]",
    "graph: error [tolerances]",
    "verdict",
)

SHOWN = ("pattern", "fused in the graph", "graph: error [tolerances]", "verdict")
"""The columns of a `Survey`'s table; where they ran stands below it, an eager error in the verdict."""


class Survey(tuple[PatternResult, ...]):
    """What a device made of several patterns; it shows as a table.

    >>> survey(patterns()[:2], on=lab)
    pattern               fused in the graph           graph: error [tolerances]  verdict
    matmul + bias         _FusedMatMul(BiasAdd)        0.0012                     agrees
    matmul + bias + relu  _FusedMatMul(BiasAdd, Relu)  0.0012                     agrees
    All 2 agree with the CPU in float64, eagerly and as graphs. They ran on CPU.
    """

    @property
    def wrong(self) -> tuple[PatternResult, ...]:
        """Those that do not agree."""
        return tuple(result for result in self if not result.ok)

    @property
    def _table(self) -> Table:
        note = f"All {len(self)} agree with the CPU in float64, eagerly and as graphs."
        if self.wrong:
            note = "; ".join(str(p) for result in self.wrong for p in (result.eager, result.graph) if not p.ok)
        where = sorted({device for result in self for device in result.reading.devices})
        note += f" They ran on {' and '.join(where)}." if where else ""
        shown = [HEADINGS.index(heading) for heading in SHOWN]
        return Table(SHOWN, [[result.row[column] for column in shown] for result in self], note)

    def __repr__(self) -> str:
        return repr(self._table)

    def _repr_html_(self) -> str:
        return self._table._repr_html_()


def survey(patterns: Iterable[Pattern], *, on: Device, remapping: bool = True) -> Survey:
    """Compute each pattern on a device, eagerly and as a graph, and compare with the CPU, eagerly in float64.

    A pattern that raises on the device is a finding as well.
    """
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")  # it warns of many functions, which are made on purpose
    findings = []
    for pattern in patterns:
        with tf.device("/CPU:0"):
            reference = np.asarray(pattern.make("float64")())
        try:
            with on.active():
                compute = pattern.make("float32")
                eager = np.asarray(compute())
                reading = read(compute, remapping=remapping)
        except (tf.errors.OpError, ValueError, TypeError, NotImplementedError) as error:
            raised = f"it raised {units.first_line(error, kind=True)}"
            wrong = GraphParity(pattern.name, float("inf"), raised)
            findings.append(PatternResult(pattern.name, Reading((), ()), wrong, wrong))
            continue
        graph = np.asarray(reading.result)
        reading = replace(reading, result=graph)
        pair = (judge(f"{pattern.name}, {how}", reference, got) for how, got in (("eager", eager), ("graph", graph)))
        findings.append(PatternResult(pattern.name, reading, *pair))
    return Survey(findings)


OPTIMIZERS = {
    "SGD": {},
    "RMSprop": {},
    "Adagrad": {},
    "Adam": {"epsilon": 1e-3},  # else it divides by tiny gradients, and blows their rounding up
}
"""Keras optimizers whose steps are checked, with their options."""


@dataclass(frozen=True)
class StepResult:
    """A training step as a graph on a device: what was fused, and how far the weights' movement is from the CPU's."""

    reading: Reading
    parity: GraphParity


class Steps(dict[str, StepResult]):
    """The training steps of several optimizers, by name; they show as a table."""

    @property
    def wrong(self) -> tuple[str, ...]:
        """Optimizers whose step moves the weights otherwise."""
        return tuple(name for name, step in self.items() if not step.parity.ok)

    @property
    def _table(self) -> Table:
        headings = ["one step of", "fused in the graph", "error [tolerances]", "verdict"]
        rows = [
            (name, ", ".join(step.reading.fused) or "nothing fused", *step.parity.row[1:])
            for name, step in self.items()
        ]
        return Table(headings, rows)

    def __repr__(self) -> str:
        return repr(self._table)

    def _repr_html_(self) -> str:
        return self._table._repr_html_()


def steps(*, on: Device, names: Iterable[str] = tuple(OPTIMIZERS)) -> Steps:
    """One training step of a small network on real digits with each optimizer, as a graph on a device.

    Compared is how far each weight moved, with one step from equal weights on the CPU, eagerly in float64.

    >>> steps(on=lab, names=["SGD"])
    one step of  fused in the graph                error [tolerances]  verdict
    SGD          _FusedMatMul(BiasAdd, Relu), ...  0.0035              agrees
    """
    import tensorflow as tf
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    images, classes = pixels[:32] / 16, classes[:32].astype("int32")
    results = Steps()
    for name in names:
        with on.active():
            ours = _network("float32", name)
            start = ours.get_weights()
            reading = read(
                functools.partial(mixed.train_step, ours), tf.constant(images, "float32"), tf.constant(classes)
            )
        with tf.device("/CPU:0"):
            exact = _network("float64", name)
            exact.set_weights(start)
            mixed.train_step(exact, tf.constant(images), tf.constant(classes))
        moved = [[b - a for a, b in zip(start, model.get_weights(), strict=True)] for model in (exact, ours)]
        results[name] = StepResult(reading, judge(f"one step of {name}", *moved))
    return results


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


def advice(patterns: Survey, steps: Steps, *, on: Device) -> str:
    """May graphs be trusted on this device, in words."""
    wrong = [*(result.pattern for result in patterns.wrong), *(f"a step of {name}" for name in steps.wrong)]
    if not wrong:
        return f"Graphs on {on.label} agree with the CPU: {len(patterns)} patterns, {len(steps)} training steps."
    return f"WRONG on {on.label}: {', '.join(wrong)}. Compile with run_eagerly=True there, or use the CPU."


def effect(without: Sequence[PatternResult], with_setting: Sequence[PatternResult], setting: str) -> str:
    """What a setting changed, in words: which patterns were wrong and how many were fused, without it and with it."""
    wrong, still = ([f.pattern for f in findings if not f.ok] for findings in (without, with_setting))
    fused = [sum(bool(f.reading.fused) for f in findings) for findings in (without, with_setting)]
    counts = f"With {setting}, {fused[1]} of {len(with_setting)} patterns were fused ({fused[0]} without it)"
    if not wrong and not still:
        return f"{counts}, and all agree either way: there is nothing to repair on this device."
    if not wrong:
        return f"{counts}, but now these are wrong: {', '.join(still)}. Do not set it here."
    if not still:
        return f"{counts}, and what was wrong now agrees: {', '.join(wrong)}. Set it before TensorFlow starts."
    return f"{counts}, and still wrong: {', '.join(still)}. Compute these eagerly or on the CPU."


def patterns() -> list[Pattern]:
    """The patterns of notebook 06b: matrix product, convolution, batch norm, LSTM, with inputs of a fixed seed."""
    import tensorflow as tf

    nn = tf.nn
    after_product = [nn.relu, nn.tanh, nn.sigmoid, nn.gelu, nn.softplus]
    after_convolution = [nn.relu, nn.relu6, nn.elu, nn.leaky_relu, nn.tanh]
    return [
        _chain("matmul + bias", _product, ()),
        *(_chain(f"matmul + bias + {f.__name__}", _product, (f,)) for f in after_product),
        _chain("conv2d + bias", _convolution, ()),
        *(_chain(f"conv2d + bias + {f.__name__}", _convolution, (f,)) for f in after_convolution),
        _chain("conv2d + fused_batch_norm", _normalised, ()),
        _chain("conv2d + fused_batch_norm + relu", _normalised, (nn.relu,)),
        Pattern("conv2d + Keras BatchNormalization", functools.partial(_layers, _keras_normalised)),
        Pattern("Keras LSTM", functools.partial(_layers, _keras_lstm)),
    ]


def draw(panels: Mapping[str, Sequence[Node]], *, heading: str, device: str) -> Figure:
    """Graphs side by side, inputs on top, each operation a box; fused ones are coloured.

    Nodes stand in rows by the longest way from an input, and arrows are straight. A graph of more than `MOST_DRAWN`
    operations is not drawn but counted.
    """
    import matplotlib.pyplot as plt

    from metallab import plots

    graphs = {title: _named(nodes) for title, nodes in panels.items()}
    small = [nodes for nodes in graphs.values() if len(_operations(nodes)) <= MOST_DRAWN]
    rows = max([max(_depths(nodes).values()) + 1 for nodes in small], default=3)
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(1, len(graphs), figsize=(7.5, 0.8 + 0.72 * rows), squeeze=False)
        for axis, (title, nodes) in zip(axes[0], graphs.items(), strict=True):
            (_draw_graph if nodes in small else _count_graph)(axis, nodes, rows)
            axis.set_title(f"{title}: {_count(nodes)}")
        plots.title(figure, heading, [device])
    description = "; ".join(f"{title}: {' -> '.join(map(str, _operations(nodes)))}" for title, nodes in graphs.items())
    return plots.described(figure, description)


def _node(node: Any, graph: str) -> Node:
    inputs = tuple(graph + name.split(":")[0] for name in node.input if not name.startswith("^"))
    parts = tuple(part.decode() for part in node.attr["fused_ops"].list.s) if "fused_ops" in node.attr else ()
    return Node(graph + node.name, node.op, inputs, parts)


def _device_type(name: str) -> str:
    """``GPU`` of ``/job:localhost/replica:0/task:0/device:GPU:0``."""
    return name.rpartition("device:")[2].split(":")[0]


def _error(reference: Any, result: Any, allowed: checks.Tolerance) -> float:
    """The largest difference as a share of what `metallab.checks` allows there."""
    if isinstance(reference, list | tuple):
        pairs = zip(reference, result, strict=True) if len(reference) == len(result) else [(1.0, np.inf)]
        return max(_error(*pair, allowed) for pair in pairs)
    a, b = np.asarray(reference, np.float64), np.asarray(result, np.float64)
    if a.shape != b.shape:
        return float("inf")
    limit = allowed.relative * (np.abs(a) + checks.array_size(a)) + allowed.absolute
    with np.errstate(invalid="ignore"):
        shares = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b) / limit)
    return float(np.nan_to_num(shares, nan=np.inf, posinf=np.inf).max(initial=0.0))


def _chain(name: str, start: Callable, then: tuple[Callable, ...]) -> Pattern:
    def make(dtype: str) -> Callable[[], Any]:
        compute = start(dtype)
        return lambda: functools.reduce(lambda value, f: f(value), then, compute())

    return Pattern(name, make)


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


def _named(nodes: Sequence[Node]) -> dict[str, Node]:
    """Nodes by name, without copies (Identity), which say nothing about the work."""
    stands_for = {node.name: node.inputs[0] for node in nodes if node.op == "Identity" and node.inputs}

    def source(name: str) -> str:
        while name in stands_for:
            name = stands_for[name]
        return name

    kept = [node for node in nodes if node.name not in stands_for and node.op != "NoOp"]
    return {node.name: Node(node.name, node.op, tuple(map(source, node.inputs)), node.parts) for node in kept}


def _operations(nodes: dict[str, Node]) -> list[Node]:
    return [node for node in nodes.values() if node.op not in ("_Arg", "_Retval", "Const")]


def _count(nodes: dict[str, Node]) -> str:
    count = len(_operations(nodes))
    return f"{count} operation{'s' if count != 1 else ''}"


def _depths(nodes: dict[str, Node]) -> dict[str, int]:
    """The row of each node; what has no inputs stands right above the first that reads it."""
    depths: dict[str, int] = {}

    def depth(name: str) -> int:
        if name not in depths:
            depths[name] = max([depth(i) + 1 for i in nodes[name].inputs if i in nodes], default=0)
        return depths[name]

    for name in nodes:
        depth(name)
    for name, node in nodes.items():
        readers = [depths[reader.name] for reader in nodes.values() if name in reader.inputs]
        if not node.inputs and readers:
            depths[name] = min(readers) - 1
    return depths


def _draw_graph(axes: Any, nodes: dict[str, Node], rows: int) -> None:
    depths = _depths(nodes)
    positions: dict[str, tuple[float, float]] = {}
    for row in range(rows):
        # what goes on comes first, so that a chain runs straight down and its arguments stand beside it
        level = sorted((n for n in nodes if depths[n] == row), key=lambda name: not nodes[name].inputs)
        for column, name in enumerate(level):
            positions[name] = (column - (len(level) - 1) / 2 if row == 0 or len(level) > 2 else float(column), -row)
    boxes = {name: _draw_box(axes, nodes[name], position) for name, position in positions.items()}
    for name, node in nodes.items():
        for source in dict.fromkeys(node.inputs):
            arrow = {"arrowstyle": "-|>", "color": "#555555", "shrinkA": 1, "shrinkB": 1}
            arrow |= {"patchA": boxes[source], "patchB": boxes[name]}
            axes.annotate("", xy=positions[name], xytext=positions[source], arrowprops=arrow)
    across = [x for x, _ in positions.values()]
    axes.set_xlim(min(across) - 0.75, max(across) + 0.75)
    axes.set_ylim(-rows + 0.5, 0.5)
    axes.axis("off")


def _count_graph(axes: Any, nodes: dict[str, Node], rows: int) -> None:
    counts = Counter(node.op for node in _operations(nodes)).most_common(8)
    words = "\n".join(["too many to draw:", *(f"{count} {op}" for op, count in counts)])
    axes.text(0, 1, words, va="top", fontsize=9, transform=axes.transAxes)
    axes.axis("off")


def _draw_box(axes: Any, node: Node, position: tuple[float, float]) -> Any:
    from metallab import plots

    plain = {"_Arg": node.name.split("/", 1)[1][:14], "_Retval": "result"}.get(node.op)
    words = plain or (f"{node.op}\n{' + '.join(node.parts)}" if node.parts else node.op)
    face = "white" if plain else ("#f8dfae" if node.fused else "#cfe6f5")
    edge = "#aaaaaa" if plain else (plots.ORANGE if node.fused else plots.BLUE)
    box = {"boxstyle": "round,pad=0.35", "facecolor": face, "edgecolor": edge}
    return axes.text(*position, words, ha="center", va="center", fontsize=9, bbox=box).get_bbox_patch()
