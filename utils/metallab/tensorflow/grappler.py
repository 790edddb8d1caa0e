"""TensorFlow's graph optimiser, Grappler: what it fused in a function, and whether the result is right (notebook 54).

Its *remapper* replaces a chain of operations, such as a convolution, a bias and a ReLU, by one fused operation.
TensorFlow is imported inside functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from metallab import checks, units
from metallab.device import Device

if TYPE_CHECKING:
    from pandas import DataFrame

_NO_WORK = ("_Retval", "Const", "NoOp", "Identity", "_Send", "_Recv", "_HostSend", "_HostRecv")

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
    """Make a graph of a Python function, run it once with the remapper on or off, and read what was optimised."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    fresh, ours = tf.function(fn, jit_compile=False, autograph=False), context.context()
    before = tf.config.optimizer.get_experimental_options().get("remapping", True)
    tf.config.optimizer.set_experimental_options({"remapping": remapping})  # read at each call
    ours.enable_graph_collection()
    try:
        result = fresh(*inputs)
        graphs = ours.export_run_metadata().function_graphs
    finally:
        ours.disable_graph_collection()
        tf.config.optimizer.set_experimental_options({"remapping": before})
    written = {node.op for graph in graphs for node in graph.pre_optimization_graph.node}
    ran = [node for graph in graphs for node in graph.post_optimization_graph.node]
    placed = [node for graph in graphs for part in graph.partition_graphs for node in part.node]
    working = [
        node for node in placed if node.op not in _NO_WORK and not node.op.startswith("_Arg")
    ]
    devices = {
        node.device.rpartition("device:")[2].split(":")[0] for node in working
    }  # GPU of /job:.../device:GPU:0
    fused = dict.fromkeys(filter(None, map(_fused, ran)))
    new = dict.fromkeys(node.op for node in ran if node.op not in written)
    return Reading(tuple(fused), tuple(new), tuple(sorted(devices - {""})), result)


def _fused(node: Any) -> str:
    """What was fused into a node, after its name; empty for one that a user wrote, as ``FusedBatchNormV3``."""
    parts = (
        [part.decode() for part in node.attr["fused_ops"].list.s]
        if "fused_ops" in node.attr
        else []
    )
    if parts:
        return f"{node.op}({', '.join(parts)})"
    return node.op if node.op.startswith("_") and "Fused" in node.op else ""


def error(reference: Any, result: Any) -> float:
    """The largest difference of two arrays, or lists of arrays, as a share of float32's tolerance there."""
    if isinstance(reference, list | tuple):
        return max(error(*pair) for pair in zip(reference, result, strict=True))
    a, b = np.asarray(reference, np.float64), np.asarray(result, np.float64)
    if a.shape != b.shape:
        return float("inf")
    allowed = checks.tolerance("float32")
    limit = allowed.relative * (np.abs(a) + checks.typical_size(a)) + allowed.absolute
    shares = np.where(np.isnan(a) & np.isnan(b), 0.0, np.abs(a - b) / limit)
    return float(np.nan_to_num(shares, nan=np.inf, posinf=np.inf).max(initial=0.0))


def survey(
    patterns: Mapping[str, Make] | None = None, *, on: Device, remapping: bool = True
) -> DataFrame:
    """Compute each pattern on a device, eagerly and as a graph, and compare with the CPU, eagerly in float64.

    Parameters
    ----------
    patterns
        Sixteen from a matrix product to an LSTM (`common_patterns`) unless given.

    Returns
    -------
    pandas.DataFrame
        A row for each: what was ``fused`` in the graph, its ``error`` in tolerances of `metallab.checks` (up to 1
        agrees; NaN and other shapes are infinite), the ``verdict`` (``agrees``, ``WRONG in graph``, ``WRONG in eager``,
        or what was raised), the devices that it ``ran on``, and ``new`` operations that the written graph lacks.
    """
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")  # it warns of many functions, which are made on purpose
    rows = {}
    for name, make in (common_patterns() if patterns is None else patterns).items():
        with tf.device("/CPU:0"):
            reference = make("float64")()
        try:
            with on.active():
                compute = make("float32")
                eager = compute()
                reading = read(compute, remapping=remapping)
        except (tf.errors.OpError, ValueError, TypeError, NotImplementedError) as problem:
            rows[name] = (
                "",
                float("inf"),
                f"WRONG: it raised {units.first_line(problem, kind=True)}",
                "",
                "",
            )
            continue
        rows[name] = _row(reading, error(reference, reading.result), error(reference, eager))
    return _frame(rows)


def _row(reading: Reading, graph: float, eager: float = 0.0) -> tuple[str, float, str, str, str]:
    wrong = [how for how, off in (("eager", eager), ("graph", graph)) if off > 1]
    verdict = f"WRONG in {' and '.join(wrong)}" if wrong else "agrees"
    fused, new, ran_on = (", ".join(names) for names in reading[:3])
    return fused or "nothing fused", graph, verdict, ran_on, new


def _frame(rows: Mapping[str, tuple]) -> DataFrame:
    import pandas as pd

    return pd.DataFrame.from_dict(
        rows, orient="index", columns=["fused", "error", "verdict", "ran on", "new"]
    )


OPTIMIZERS = {
    "SGD": {},
    "RMSprop": {},
    "Adagrad": {},
    "Adam": {"epsilon": 1e-3},  # else it divides by tiny gradients, and blows their rounding up
}
"""Keras optimizers whose steps are checked, with their options."""


def steps(*, on: Device, names: Iterable[str] = tuple(OPTIMIZERS)) -> DataFrame:
    """One training step of a small network on real digits with each optimizer, as a graph on a device.

    Compared is how far each weight moved, with one step from equal weights on the CPU, eagerly in float64. The result
    is as `survey`'s.
    """
    import tensorflow as tf
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    images, classes = pixels[:32] / 16, tf.constant(classes[:32].astype("int32"))
    rows = {}
    for name in names:
        with on.active():
            ours = _network("float32", name)
            start = ours.get_weights()
            step = lambda *batch, ours=ours: ours.train_step(batch)
            reading = read(step, tf.constant(images, "float32"), classes)
        with tf.device("/CPU:0"):
            exact = _network("float64", name)
            exact.set_weights(start)
            exact.train_step((tf.constant(images), classes))
        moved = [
            [b - a for a, b in zip(start, model.get_weights(), strict=True)]
            for model in (exact, ours)
        ]
        rows[f"a step of {name}"] = _row(reading, error(*moved))
    return _frame(rows)


def _network(dtype: str, optimizer: str) -> Any:
    """A compiled Keras model (64 to 10) in one dtype throughout."""
    import keras

    keras.utils.set_random_seed(0)
    hidden = keras.layers.Dense(64, activation="relu", dtype=dtype)
    model = keras.Sequential(
        [keras.Input((64,), dtype=dtype), hidden, keras.layers.Dense(10, dtype=dtype)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype=dtype)
    options = {"learning_rate": 0.01, **OPTIMIZERS[optimizer]}
    model.compile(getattr(keras.optimizers, optimizer)(**options), loss, jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def common_patterns() -> dict[str, Make]:
    """The patterns of notebook 54: matrix product, convolution, batch norm, LSTM, with inputs of a fixed seed."""
    import tensorflow as tf

    nn = tf.nn
    made = {
        "matmul + bias": _product,
        "conv2d + bias": _convolution,
        "conv2d + fused_batch_norm": _normalised,
    }
    for start, then in (
        ("matmul + bias", (nn.relu, nn.tanh, nn.sigmoid, nn.gelu, nn.softplus)),
        ("conv2d + bias", (nn.relu, nn.relu6, nn.elu, nn.leaky_relu, nn.tanh)),
        ("conv2d + fused_batch_norm", (nn.relu,)),
    ):
        made |= {
            f"{start} + {f.__name__}": functools.partial(_followed, made[start], f) for f in then
        }
    made["conv2d + Keras BatchNormalization"] = functools.partial(_layers, _keras_normalised)
    made["Keras LSTM"] = functools.partial(_layers, _keras_lstm)
    return made


def _followed(make: Make, then: Callable, dtype: str) -> Callable[[], Any]:
    compute = make(dtype)
    return lambda: then(compute())


def _numbers(dtype: str, *shape: int, seed: int = 0) -> Any:
    """Standard normal numbers / sqrt(terms of a sum), rounded to float32, so that every dtype starts from the same."""
    import tensorflow as tf

    terms = np.prod(shape[:-1]) if len(shape) > 1 else 1
    values = np.random.default_rng([seed, *shape]).normal(size=shape).astype(
        np.float32
    ) / np.float32(terms**0.5)
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
