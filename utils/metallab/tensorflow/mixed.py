"""Mixed precision in Keras: what a step takes under each policy, and training from several seeds (notebook 06).

A *policy* is Keras's word for two dtypes, the one that a layer computes in and the one that it keeps its weights in.
Keras and TensorFlow are imported inside functions.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from metallab import checks, quality, timing, units
from metallab.allowance import Allowance
from metallab.device import Device
from metallab.mode import by_mode

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
HOPELESS = 8.0
"""How many times the baseline's time a policy's step may take and still be measured where time is short."""
Build = Callable[[str], Any]
"""Makes a compiled Keras model under a policy, or in one dtype throughout ("float64"): the same layers each time."""


def train_step(model: Any, images: Any, classes: Any) -> tuple[Any, Any]:
    """One step of training as Keras's `fit` does it, to be put into a `tf.function`: loss and outputs before the step.

    (Not `train_on_batch`: in Keras 3.6 it writes a new graph in each call.)
    """
    import tensorflow as tf

    with tf.GradientTape() as tape:
        outputs = model(images, training=True)
        loss = model.compute_loss(y=classes, y_pred=outputs)
        scaled = model.optimizer.scale_loss(loss)  # itself where the optimizer scales none
    gradients = tape.gradient(scaled, model.trainable_variables)
    model.optimizer.apply(gradients, model.trainable_variables)
    return loss, outputs


def step_times(
    build: Build,
    images: np.ndarray,
    classes: np.ndarray,
    *,
    on: Device,
    name: str,
    seconds: float,
    policies: Sequence[str] = POLICIES,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[timing.Comparison, list[str]]:
    """Time a `train_step` of a model under each policy, in turns, in about ``seconds``; the first is the baseline.

    The learning rate is set to 0, so that loss and outputs are the same in each call. They are compared with those
    that the CPU computes without a graph in float64, at bfloat16's tolerance. A step with few of the pictures is timed
    first: a policy that takes more than `HOPELESS` times the baseline's, and more than its share for six such steps, is
    left out, and so is one that the device refuses.

    Parameters
    ----------
    images, classes
        (n, ...) in float32, and what the model's loss is given for them.

    Returns
    -------
    comparison, left_out
        The times, and a sentence for each policy that was refused or left out.

    Raises
    ------
    ValueError
        For a model that draws random numbers: no two of its steps are alike.
    """
    import tensorflow as tf

    start, truth = _in_float64(build, policies[0], images, classes)
    within, steps, costs, left_out = Allowance(seconds, clock), {}, {}, []
    # a CPU without float16 would take minutes for all of them; a quick run's are few, and write one graph less
    few = by_mode(full=max(1, len(images) // 32), fast=len(images))
    for policy in policies:
        try:
            with on.active():
                model = build(policy)
                model.set_weights(start)
                model.optimizer.learning_rate = 0.0
                model.optimizer.build(model.trainable_variables)  # or the first graph is written twice
                step = tf.function(functools.partial(train_step, model), jit_compile=False)
                costs[policy] = len(images) / few * _seconds(step, images[:few], classes[:few], clock)
                steps[policy] = functools.partial(step, tf.constant(images), tf.constant(classes))
        except (tf.errors.OpError, ValueError, TypeError, NotImplementedError) as error:
            if policy == policies[0]:
                raise
            left_out.append(f"{policy}: it does not train on this device: {units.first_line(error, kind=True)}")
    limit = max(seconds / len(policies) / timing.FEWEST_PAIRS, HOPELESS * costs[policies[0]])
    for policy in [policy for policy, cost in costs.items() if cost > limit]:
        left_out.append(f"{policy}: left out for time: a step takes about {units.seconds(costs[policy])}")
        del steps[policy]
    comparison = timing.compare(
        steps,
        on=on,
        baseline=policies[0],
        parity=checks.matches("bfloat16", truth=truth),
        name=name,
        dtype={policy: policy.removeprefix("mixed_") for policy in steps},
        budget=within.budget(variants=len(steps)),
    )
    return comparison, left_out


def _in_float64(build: Build, policy: str, images: np.ndarray, classes: np.ndarray) -> tuple[list[np.ndarray], Any]:
    """First weights of a model, and the loss and outputs that it has with them on the CPU in float64."""
    import tensorflow as tf

    start = build(policy).get_weights()
    with tf.device("/CPU:0"):
        exact = build("float64")
        exact.set_weights(start)
        if any("seed_generator" in variable.path for variable in exact.variables):
            raise ValueError("the model draws random numbers: build it with a Dropout rate of 0 to compare its steps")
        outputs = exact(images, training=True)
        return start, (float(exact.compute_loss(y=classes, y_pred=outputs)), np.asarray(outputs))


def _seconds(step: Callable, images: np.ndarray, classes: np.ndarray, clock: Callable[[], float]) -> float:
    """What the second call takes; in the first one TensorFlow writes the graph."""
    import tensorflow as tf

    inputs = tf.constant(images), tf.constant(classes)
    float(step(*inputs)[0])
    begun = clock()
    float(step(*inputs)[0])
    return clock() - begun


def train_in_turns(
    build: Build,
    policies: Sequence[str],
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    *,
    on: Device,
    seeds: int,
    epochs: int,
    seconds: float,
    batch: int = 64,
    clock: Callable[[], float] = time.perf_counter,
) -> quality.Trainings:
    """Train a model under each policy from the same seeds, as `metallab.quality.train_in_turns`.

    A seed decides the first weights and the order of the pictures, whatever the policy, so that trainings are paired.
    ``train`` and ``test`` are pictures (n, ...) in float32 and their classes (n,); the largest output is the answer.
    ValueError as `metallab.quality.assert_trainable`.
    """
    import keras

    quality.assert_trainable(len(train[0]), seeds=seeds, epochs=epochs, batch=batch)

    @functools.cache
    def first_weights(seed: int) -> list[np.ndarray]:
        keras.utils.set_random_seed(seed)
        return build("float32").get_weights()

    def run(policy: str, seed: int) -> quality.Run:
        model = models[policy]
        model.set_weights(first_weights(seed))
        for variable, value in zip(model.optimizer.variables, fresh[policy], strict=True):
            variable.assign(value)
        rng, losses = np.random.default_rng(seed), []
        for _ in range(epochs):
            order = rng.permutation(len(train[0]))[: len(train[0]) // batch * batch]
            ran = model.fit(train[0][order], train[1][order], batch_size=batch, shuffle=False, verbose=0)
            losses.append(ran.history["loss"][-1])
        answers = model.predict_on_batch(test[0]).argmax(axis=1)
        return losses, float((answers == test[1]).mean())

    with on.active():
        models = {policy: build(policy) for policy in policies}
        for model in models.values():
            model.optimizer.build(model.trainable_variables)
        fresh = {policy: [np.array(each) for each in model.optimizer.variables] for policy, model in models.items()}
        return quality.train_in_turns(policies, run, seeds=seeds, seconds=seconds, clock=clock)
