"""Mixed precision in Keras: what a step takes under each policy, and training from several seeds (notebook 06).

A *policy* is Keras's word for two dtypes, the one that a layer computes in and the one that it keeps its weights in.
Keras and TensorFlow are imported inside functions.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metallab import checks, quality, timing, units
from metallab.allowance import Allowance
from metallab.device import Device
from metallab.mode import by_mode
from metallab.quality import Trainings
from metallab.timing import Comparison

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
HOPELESS = 8.0
"""How many times the baseline's time a policy's step may take and still be measured where time is short."""
Build = Callable[[str], Any]
"""Makes a compiled Keras model under a policy, or in one dtype throughout ("float64"): the same layers each time."""


def train_step(model: Any, images: Any, classes: Any) -> Any:
    """One step of training, as Keras's `fit` does it, to be put into a `tf.function`: the loss, before the step.

    (Not `train_on_batch`: in Keras 3.6 it writes a new graph in each call.)
    """
    return _step(model, images, classes)[0]


def _step(model: Any, images: Any, classes: Any) -> tuple[Any, Any]:
    """The loss and the outputs, both before the step."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        outputs = model(images, training=True)
        loss = model.compute_loss(y=classes, y_pred=outputs)
        scaled = model.optimizer.scale_loss(loss)  # itself where the optimizer scales none
    gradients = tape.gradient(scaled, model.trainable_variables)
    model.optimizer.apply(gradients, model.trainable_variables)
    return loss, outputs


@dataclass(frozen=True)
class StepTimes:
    """What a training step takes under each policy."""

    comparison: Comparison
    refused: Mapping[str, str]
    """Policies that the device does not train with, and what it raised."""
    left_out: str
    """What was not measured for want of time, in words; empty if nothing was left out."""

    @property
    def sentences(self) -> list[str]:
        """What may be said of each policy against float32, or why nothing is."""
        refused = [f"{policy}: it does not train on this device: {why}" for policy, why in self.refused.items()]
        return [*self.comparison.sentences, *refused, *filter(None, [self.left_out])]

    def __repr__(self) -> str:
        return units.lines(*self.sentences)


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
) -> StepTimes:
    """Time a `train_step` of a model under each policy, in turns, in about ``seconds``; the first is the baseline.

    The learning rate is set to 0, so that loss and outputs are the same in each call and can be compared: with those
    that the CPU computes without a graph in float64, at bfloat16's tolerance. A device that computes something else
    gets no speed-up. ``images`` are (n, ...) in float32, ``classes`` what the model's loss is given for them. A step
    with few of the pictures is timed first; a policy that takes more than `HOPELESS` times the baseline's, and more
    than its share for six such steps, is left out, and so is one that the device refuses. What the baseline raises is
    raised. ValueError for a model that draws random numbers: no two of its steps are alike.
    """
    import tensorflow as tf

    start = build(policies[0]).get_weights()
    with tf.device("/CPU:0"):
        exact = build("float64")
        exact.set_weights(start)
        if any("seed_generator" in variable.path for variable in exact.variables):
            raise ValueError(
                "the model draws random numbers: build it with a Dropout rate of 0 to have its steps checked"
            )
        outputs = exact(images, training=True)
        truth = (float(exact.compute_loss(y=classes, y_pred=outputs)), np.asarray(outputs))
    within, steps, costs, refused = Allowance(seconds, clock), {}, {}, {}
    # a CPU without float16 would take minutes for all of them; a quick run's are few, and write one graph less
    few = by_mode(full=max(1, len(images) // 32), fast=len(images))
    for policy in policies:
        try:
            with on.active():
                model = build(policy)
                model.set_weights(start)
                model.optimizer.learning_rate = 0.0
                model.optimizer.build(model.trainable_variables)  # or the first graph is written twice
                step = tf.function(functools.partial(_step, model), jit_compile=False)
                steps[policy] = functools.partial(step, tf.constant(images), tf.constant(classes))
                costs[policy] = len(images) / few * _seconds(step, images[:few], classes[:few], clock)
        except (tf.errors.OpError, ValueError, TypeError, NotImplementedError) as error:
            if policy == policies[0]:
                raise
            refused[policy] = units.first_line(error, kind=True)
            steps.pop(policy, None)
    share = seconds / len(policies) / timing.FEWEST_PAIRS
    for policy in [policy for policy in costs if costs[policy] > max(share, HOPELESS * costs[policies[0]])]:
        within.left_out.append(f"{policy} (a step takes about {units.seconds(costs[policy])})")
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
    return StepTimes(comparison, refused, str(within) if within.left_out else "")


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
) -> Trainings:
    """Train a model under each policy from the same seeds, as `metallab.quality.train_in_turns`.

    A seed decides the first weights and the order of the pictures, whatever the policy, so that trainings are paired.
    ``train`` and ``test`` are pictures (n, ...) in float32 and their classes (n,); classes are told by the largest
    output. ValueError as `metallab.quality.assert_trainable`.
    """
    quality.assert_trainable(len(train[0]), seeds=seeds, epochs=epochs, batch=batch)
    first_weights = functools.cache(functools.partial(_first_weights, build))
    with on.active():
        models = {policy: build(policy) for policy in policies}
        for model in models.values():
            model.optimizer.build(model.trainable_variables)
        fresh = {policy: _variables(model.optimizer) for policy, model in models.items()}

        def run(policy: str, seed: int) -> quality.Run:
            model = models[policy]
            model.set_weights(first_weights(seed))
            for variable, value in zip(model.optimizer.variables, fresh[policy], strict=True):
                variable.assign(value)
            return _trained(model, train, test, seed, epochs, batch)

        return quality.train_in_turns(policies, run, seeds=seeds, seconds=seconds, clock=clock)


def _variables(optimizer: Any) -> list[np.ndarray]:
    return [np.array(variable) for variable in optimizer.variables]


def _first_weights(build: Build, seed: int) -> list[np.ndarray]:
    import keras

    keras.utils.set_random_seed(seed)
    return build("float32").get_weights()


def _trained(
    model: Any, train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray], seed: int, epochs: int,
    batch: int,
) -> quality.Run:  # fmt: skip
    images, classes = train
    rng, losses = np.random.default_rng(seed), []
    for _ in range(epochs):
        order = rng.permutation(len(images))[: len(images) // batch * batch]
        ran = model.fit(images[order], classes[order], batch_size=batch, shuffle=False, verbose=0)
        losses.append(ran.history["loss"][-1])
    answers = model.predict_on_batch(test[0]).argmax(axis=1)
    return losses, float((answers == test[1]).mean())
