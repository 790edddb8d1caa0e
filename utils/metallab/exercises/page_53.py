"""The exercises of page 53."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from metallab.exercises.judging import exercise, expect, require_attempt


def _load_digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    return (pixels / 16).astype("float32"), classes


def _make_model(policy: str) -> Any:
    """Return a network with a penalty and a normalisation, the same weights each time."""
    import keras

    keras.utils.set_random_seed(0)
    keras.mixed_precision.set_global_policy(policy)
    penalty = keras.regularizers.L2(0.01)
    layers = [
        keras.Input((64,)),
        keras.layers.Dense(16, "tanh", kernel_regularizer=penalty, name="first"),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.Dense(10, dtype="float32", name="last"),
    ]
    model = keras.Sequential(layers)
    keras.mixed_precision.set_global_policy("float32")

    optimizer = keras.optimizers.SGD(0.1)
    if policy == "mixed_float16":  # another scale than Keras begins with
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, 256.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # not as a graph, which can be wrong
    model.compile(optimizer, loss, run_eagerly=True, jit_compile=False)
    return model


def _fit_once(model: Any, images: Any, classes: Any) -> float:
    """Return the loss of Keras' own step."""
    return float(model.fit(images, classes, verbose=0).history["loss"][0])


def _try_step(step: Callable[..., Any], policy: str) -> tuple[Any, dict[str, np.ndarray]]:
    """Return the loss that a step of training returns, and the weights after it, by names such as ``first/kernel``.

    The model, with the same weights each time, is made under a policy, and the step is given 16 digits. ValueError if
    it finds no gradients.
    """
    import tensorflow as tf

    images, classes = _load_digits()
    model = _make_model(policy)
    try:
        loss = step(model, tf.constant(images[:16]), tf.constant(classes[:16]))
    except ValueError as error:
        if "No gradients" in str(error):  # which Keras says in many lines
            raise ValueError(f"{policy}: the tape has no gradients of it") from None
        raise
    # without the name of the model, which is a new one each time
    return loss, {w.path.split("/", 1)[1]: np.array(w) for w in model.weights}


@exercise(
    "53.1",
    hint="training=True; scale_loss inside the tape; return the loss that was not scaled",
)
def judge_train_step(train_step: Callable[..., Any], lab: Any) -> bool:
    """Compare loss and weights after a step with those of Keras' own step, in float32 and in mixed precision."""
    for policy in ("float32", "mixed_float16"):
        with lab.active():
            loss, weights = _try_step(train_step, policy)
            fit_loss, fit_weights = _try_step(_fit_once, policy)

        is_right = bool(np.isclose(float(loss), fit_loss, rtol=0.001))
        expect(f"{policy}: train_step", float(loss), fit_loss, holds=is_right)
        for name, wanted in fit_weights.items():
            off = np.abs(weights[name] - wanted).max()
            assert off < 1e-4, f"{policy}: {name} is off by {off:.2g} after a step, expected 0"
    return True


def _make_ready(ready: Callable[..., Any]) -> Any:
    """Return the model that the answer makes under the policy."""
    import keras

    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        return require_attempt(ready())
    finally:
        keras.mixed_precision.set_global_policy("float32")


@exercise(
    "53.2",
    hint="a Dense layer without activation, then keras.layers.Activation",
)
def judge_ready(ready: Callable[..., Any]) -> bool:
    """Look at the formats of a network that was made for mixed precision, and compare its probabilities with NumPy's.

    Its layers have to compute in float16 and keep their weights in float32, and its softmax in float32: else the
    probabilities have been rounded to 16 bits.
    """
    model, images = _make_ready(ready), _load_digits()[0]
    layers = [layer for layer in model.layers if layer.weights]
    dtypes = [(layer.compute_dtype, layer.variable_dtype) for layer in layers]
    expect("in what the layers compute, and keep weights: it", dtypes, [("float16", "float32")] * 2)
    shapes = [tuple(weight.shape) for weight in model.weights]
    expect("as shapes of the weights it", shapes, [(64, 64), (64,), (64, 10), (10,)])

    bright = 8 * images[:99]  # makes hidden numbers above 6, too
    probabilities = np.array(model(bright, training=True))
    # computed in 16 bits and cast, each number is one that 16 bits hold
    dtype, halves = probabilities.dtype, probabilities.astype("float16")
    in_float32 = dtype == "float32" and (halves != probabilities).any()
    assert in_float32, f"the softmax is {dtype}, and computed in 16 bits, expected float32"

    first, bias, last, last_bias = map(np.array, model.weights)
    powers = np.exp(np.maximum(bright @ first + bias, 0) @ last + last_bias)
    off = np.abs(probabilities - powers / powers.sum(axis=1, keepdims=True)).max()
    assert off < 0.01, f"the probabilities are off by {off:.2g}, expected 0: relu, then softmax"
    return True
