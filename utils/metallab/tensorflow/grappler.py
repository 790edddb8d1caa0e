"""TensorFlow's graph optimiser, Grappler: what it fused in a function, and whether the result is right (notebook 54).

Its *remapper* replaces a chain of operations, such as a convolution, a bias and a ReLU, by one fused operation.
TensorFlow is imported inside functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from metallab import checks, units

if TYPE_CHECKING:
    from pandas import DataFrame

_NO_WORK = ("_Retval", "Const", "NoOp", "Identity", "_Send", "_Recv", "_HostSend", "_HostRecv")
"""Operations that compute nothing: where they were placed does not tell where a function computes."""

Make = Callable[[str], Callable[[], Any]]
"""``make(dtype)()`` computes a pattern from the same numbers in any floating dtype, on the device that is active."""


class Reading(NamedTuple):
    """What became of a function's graph, and what the call returned."""

    fused: tuple[str, ...]
    """The fused operations of the optimised graph, each once: ``_FusedConv2D(BiasAdd, Relu)``."""
    new: tuple[str, ...]
    """Operations of the optimised graph that the written one does not have."""
    devices: tuple[str, ...]
    """Where its operations were placed: ``("CPU",)``. Soft placement moves silently what a GPU lacks."""
    result: Any


def read(fn: Callable[..., Any], *inputs: Any, remapping: bool = True) -> Reading:
    """Make a graph of a Python function, run it once with the remapper on or off, and read what was optimised.

    Whether the remapper was on before is restored.

    Parameters
    ----------
    fn
        A function of TensorFlow tensors.
    inputs
        What it is called with.
    remapping
        Whether operations may be fused.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context

    # as it is written: XLA would fuse in place of Grappler, and AutoGraph would rewrite the Python function
    fresh = tf.function(fn, jit_compile=False, autograph=False)
    ours = context.context()
    before = tf.config.optimizer.get_experimental_options().get("remapping", True)
    tf.config.optimizer.set_experimental_options({"remapping": remapping})  # read at each call
    ours.enable_graph_collection()  # of the graphs of each call, before and after optimising
    try:
        result = fresh(*inputs)
        graphs = ours.export_run_metadata().function_graphs
    finally:
        ours.disable_graph_collection()
        tf.config.optimizer.set_experimental_options({"remapping": before})

    written = {node.op for graph in graphs for node in graph.pre_optimization_graph.node}
    ran = [node for graph in graphs for node in graph.post_optimization_graph.node]
    fused = dict.fromkeys(filter(None, map(_describe_fusion, ran)))
    new = dict.fromkeys(node.op for node in ran if node.op not in written)
    return Reading(tuple(fused), tuple(new), _list_devices(graphs), result)


def _list_devices(graphs: Iterable[Any]) -> tuple[str, ...]:
    """Return the devices on which graphs were placed, such as GPU of ``/job:.../device:GPU:0``."""
    placed = [node for graph in graphs for part in graph.partition_graphs for node in part.node]

    devices = set()
    for node in placed:
        if node.op not in _NO_WORK and not node.op.startswith("_Arg"):
            devices.add(node.device.rpartition("device:")[2].split(":")[0])
    return tuple(sorted(devices - {""}))


def _describe_fusion(node: Any) -> str:
    """Return what was fused into a node, after its name; empty for one that a user wrote, as ``FusedBatchNormV3``."""
    if "fused_ops" in node.attr:
        parts = [part.decode() for part in node.attr["fused_ops"].list.s]
        if parts:
            return f"{node.op}({', '.join(parts)})"
    return node.op if node.op.startswith("_") and "Fused" in node.op else ""


def error(reference: Any, result: Any) -> float:
    """Return the largest difference of two arrays, or lists of arrays, as a share of float32's tolerance there.

    Parameters
    ----------
    reference, result
        Arrays, or lists of as many.

    Returns
    -------
    float
        Up to 1 they agree; infinite for other shapes, for NaN on one side only, and for an infinity beside anything but
        the same one. Of lists the largest.
    """
    if isinstance(reference, list | tuple):
        return max(error(*pair) for pair in zip(reference, result, strict=True))

    a, b = np.asarray(reference, np.float64), np.asarray(result, np.float64)
    if a.shape != b.shape:
        return float("inf")

    allowed = checks.tolerance("float32")
    limit = allowed.relative * (np.abs(a) + checks.typical_size(a)) + allowed.absolute
    is_same = (a == b) | (np.isnan(a) & np.isnan(b))
    # the difference of two infinities is NaN; where both are equal the share is not taken
    with np.errstate(invalid="ignore"):
        shares = np.where(is_same, 0.0, np.abs(a - b) / limit)
    return float(np.nan_to_num(shares, nan=np.inf, posinf=np.inf).max(initial=0.0))


def survey(
    patterns: Mapping[str, Make] | None = None, *, on: Any, remapping: bool = True
) -> DataFrame:
    """Compute each pattern on a device, eagerly and as a graph, and compare with the CPU, eagerly in float64.

    Parameters
    ----------
    patterns
        Sixteen from a matrix product to an LSTM (`common_patterns`) unless given.
    on
        A device of `metallab.device.tensorflow`.
    remapping
        Whether operations may be fused.

    Returns
    -------
    pandas.DataFrame
        A row for each: what was ``fused`` in the graph, the graph's ``error`` in tolerances of `metallab.checks` (up to
        1 agrees; NaN and other shapes are infinite), the ``verdict`` (``agrees``, ``WRONG in graph``, ``WRONG in
        eager``, both, or what was raised), the devices that it ``ran on``, and ``new`` operations that the written
        graph lacks.
    """
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")  # it warns of many functions, which are made on purpose
    if patterns is None:
        patterns = common_patterns()

    rows: dict[str, Row] = {}
    for name, make in patterns.items():
        # outside of `try`: a pattern that raises on the CPU is no finding about the device
        with tf.device("/CPU:0"):
            reference = make("float64")()
        try:
            with on.active():
                compute = make("float32")
                eager = compute()
                reading = read(compute, remapping=remapping)
        except (tf.errors.OpError, ValueError, TypeError, NotImplementedError) as problem:
            verdict = f"WRONG: it raised {units.first_line(problem, kind=True)}"
            rows[name] = ("", float("inf"), verdict, "", "")
            continue
        rows[name] = _make_row(reading, error(reference, reading.result), error(reference, eager))
    return _make_frame(rows)


Row = tuple[str, float, str, str, str]
"""What was fused, its error, the verdict, where it ran, and new operations."""


def _make_row(reading: Reading, graph: float, eager: float = 0.0) -> Row:
    """Return the row of a pattern from the errors of its graph and of its eager run, in tolerances.

    What has not run eagerly has no error there.
    """
    wrong = [how for how, off in (("eager", eager), ("graph", graph)) if off > 1]
    verdict = f"WRONG in {' and '.join(wrong)}" if wrong else "agrees"

    fused = ", ".join(reading.fused)
    new = ", ".join(reading.new)
    ran_on = ", ".join(reading.devices)
    return fused or "nothing fused", graph, verdict, ran_on, new


def _make_frame(rows: Mapping[str, Row]) -> DataFrame:
    import pandas as pd

    return pd.DataFrame.from_dict(
        rows, orient="index", columns=["fused", "error", "verdict", "ran on", "new"]
    )


OPTIMIZERS: dict[str, dict[str, float]] = {
    "SGD": {},
    "RMSprop": {},
    "Adagrad": {},
    "Adam": {"epsilon": 1e-3},  # else it divides by tiny gradients, and blows their rounding up
}
"""Keras optimizers whose steps are checked, with their options."""


def steps(*, on: Any, names: Iterable[str] = tuple(OPTIMIZERS)) -> DataFrame:
    """Take a training step of a small network on real digits with each optimizer, as a graph on a device.

    Compared is how far each weight moved, with one step from equal weights on the CPU, eagerly in float64. The device
    takes no eager step, so none is found wrong.

    Parameters
    ----------
    on
        A device of `metallab.device.tensorflow`.
    names
        Keys of `OPTIMIZERS`.

    Returns
    -------
    pandas.DataFrame
        As `survey`'s, with a row ``a step of Adam`` for each optimizer. What TensorFlow raises in a step is raised, and
        is no row.
    """
    import tensorflow as tf
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    images, classes = pixels[:32] / 16, tf.constant(classes[:32].astype("int32"))

    rows: dict[str, Row] = {}
    for name in names:
        with on.active():
            ours = _make_network("float32", name)
            start = ours.get_weights()
            reading = read(functools.partial(_train, ours), tf.constant(images, "float32"), classes)
        with tf.device("/CPU:0"):
            exact = _make_network("float64", name)
            exact.set_weights(start)
            _train(exact, tf.constant(images), classes)

        # a step is small beside a weight: an error in it would not be seen in the weight itself
        moved = error(_subtract(exact.get_weights(), start), _subtract(ours.get_weights(), start))
        rows[f"a step of {name}"] = _make_row(reading, moved)
    return _make_frame(rows)


def _train(model: Any, *batch: Any) -> Any:
    """Take one training step."""
    return model.train_step(batch)


def _subtract(after: Sequence[np.ndarray], before: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [now - then for now, then in zip(after, before, strict=True)]


def _make_network(dtype: str, optimizer: str) -> Any:
    """Return a compiled Keras model (64 to 10) in one dtype throughout."""
    import keras

    keras.utils.set_random_seed(0)
    hidden = keras.layers.Dense(64, activation="relu", dtype=dtype)
    model = keras.Sequential(
        [keras.Input((64,), dtype=dtype), hidden, keras.layers.Dense(10, dtype=dtype)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype=dtype)
    make_optimizer = getattr(keras.optimizers, optimizer)
    rule = make_optimizer(learning_rate=0.01, **OPTIMIZERS[optimizer])
    model.compile(rule, loss, jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def common_patterns() -> dict[str, Make]:
    """Return the patterns of notebook 54: matrix product, convolution, batch norm, LSTM; their inputs have a seed.

    All but those of Keras also with an activation function behind them, which Grappler fuses or not.
    """
    import tensorflow as tf

    nn = tf.nn
    patterns: dict[str, Make] = {
        "matmul + bias": _product,
        "conv2d + bias": _convolution,
        "conv2d + fused_batch_norm": _normalization,
    }
    followers: dict[str, tuple[Callable[..., Any], ...]] = {
        "matmul + bias": (nn.relu, nn.tanh, nn.sigmoid, nn.gelu, nn.softplus),
        "conv2d + bias": (nn.relu, nn.relu6, nn.elu, nn.leaky_relu, nn.tanh),
        "conv2d + fused_batch_norm": (nn.relu,),
    }
    for start, functions in followers.items():
        for function in functions:
            follow = functools.partial(_follow, patterns[start], function)
            patterns[f"{start} + {function.__name__}"] = follow

    keras_normalization = functools.partial(_compute_layers, _keras_normalization)
    patterns["conv2d + Keras BatchNormalization"] = keras_normalization
    patterns["Keras LSTM"] = functools.partial(_compute_layers, _keras_lstm)
    return patterns


def _follow(make: Make, then: Callable[..., Any], dtype: str) -> Callable[[], Any]:
    """Return a pattern with a function behind it."""
    compute = make(dtype)
    return lambda: then(compute())


def _numbers(dtype: str, *shape: int, seed: int = 0) -> Any:
    """Draw standard normal numbers / sqrt(terms of a sum), in float32, so that every dtype starts from the same."""
    import tensorflow as tf

    terms = np.prod(shape[:-1]) if len(shape) > 1 else 1
    values = np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)
    return tf.constant(values / np.float32(terms**0.5), dtype)


def _product(dtype: str) -> Callable[[], Any]:
    import tensorflow as tf

    # * 8: standard normal again
    x, weight, bias = _numbers(dtype, 64, 96) * 8, _numbers(dtype, 96, 80), _numbers(dtype, 80)
    return lambda: tf.nn.bias_add(tf.linalg.matmul(x, weight), bias)


def _images(dtype: str) -> Any:
    return _numbers(dtype, 4, 12, 12, 8) * 24  # standard normal again


def _convolution(dtype: str) -> Callable[[], Any]:
    import tensorflow as tf

    x, kernel, bias = _images(dtype), _numbers(dtype, 3, 3, 8, 16), _numbers(dtype, 16)
    return lambda: tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias)


def _normalization(dtype: str) -> Callable[[], Any]:
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


def _compute_layers(build: Callable[[str], Any], dtype: str) -> Callable[[], Any]:
    """Return a function that computes Keras layers in one dtype, with weights that are the same in each dtype.

    ``build`` makes the layers, of which each takes what the one before it gives, and the input of the first. The
    weights that Keras draws are replaced, by numbers that depend on nothing but their place and shape.
    """
    layers, x = build(dtype)

    def compute() -> Any:
        value = x
        for layer in layers:
            value = layer(value)
        return value

    compute()  # builds them
    weights = [weight for layer in layers for weight in layer.weights]
    for number, weight in enumerate(weights):
        values = _numbers("float32", *weight.shape, seed=number)
        # a variance is above 0
        weight.assign(np.abs(values) + 0.5 if "variance" in weight.name else values)
    return compute


def _keras_normalization(dtype: str) -> tuple[list, Any]:
    import keras

    convolution = keras.layers.Conv2D(16, 3, padding="same", use_bias=False, dtype=dtype)
    return [convolution, keras.layers.BatchNormalization(dtype=dtype)], _images(dtype)


def _keras_lstm(dtype: str) -> tuple[list, Any]:
    import keras

    return [keras.layers.LSTM(16, dtype=dtype)], _numbers(dtype, 4, 10, 8) * 6
