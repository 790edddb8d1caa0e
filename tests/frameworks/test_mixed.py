"""Policies of Keras: what layers compute in, steps that are timed where they are right, trainings that are paired."""

from __future__ import annotations

import functools
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
from lazily import Lazily

from metallab import device
from metallab.tensorflow import mixed

keras, tf = Lazily("keras"), Lazily("tensorflow")
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(96, 4)).astype("float32")
CLASSES = (IMAGES.sum(axis=1) > 0).astype("int32")


FAST = {"seconds": 3, "clock": lambda: 0.0}
"""A machine that takes no time: nothing is left out for want of it."""


@pytest.fixture
def lab():
    tf.get_logger().setLevel("ERROR")
    return device.cpu(framework="tensorflow")


def build(policy):
    keras.mixed_precision.set_global_policy(policy)
    layers = [keras.layers.Dense(8, activation="relu", name="hidden"), keras.layers.Dense(2, dtype="float32")]
    model = keras.Sequential([keras.Input((4,)), *layers])
    keras.mixed_precision.set_global_policy("float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.03), loss, jit_compile=False)
    return model


def test_a_step_is_that_of_fit():
    ends = []
    for step in (mixed.train_step, lambda model, x, y: model.fit(x, y, batch_size=len(x), verbose=0)):
        keras.utils.set_random_seed(0)
        model = build("mixed_float16")
        model.compile(keras.optimizers.SGD(0.5), model.loss, jit_compile=False)
        before = model.get_weights()[0]
        step(model, tf.constant(IMAGES), tf.constant(CLASSES))
        ends.append(model.get_weights()[0] - before)
    assert np.abs(ends[0]).max() > 1e-3
    np.testing.assert_allclose(*ends, atol=1e-4)


def test_steps_of_all_policies_are_compared(lab):
    times, left_out = mixed.step_times(build, IMAGES, CLASSES, on=lab, name="tiny", **FAST)
    assert set(times.measurements) == set(mixed.POLICIES)
    assert left_out == []
    assert times.measurements["mixed_float16"].dtype == "float16"
    assert not times.refused


def test_a_wrong_graph_gets_no_speed_up(lab, monkeypatch):
    relu = tf.nn.relu
    monkeypatch.setattr(tf.nn, "relu", lambda x: relu(x) * (0.2 if tf.inside_function() else 1))
    times, _ = mixed.step_times(build, IMAGES, CLASSES, on=lab, name="tiny", policies=mixed.POLICIES[:2], **FAST)
    assert "the baseline's is wrong" in times.sentences[0]


@pytest.mark.parametrize("layer", ["BatchNormalization", "Dropout"])
def test_layers_that_train_otherwise(lab, layer):
    def other(policy):
        made = keras.layers.Dropout(0.5) if layer == "Dropout" else keras.layers.BatchNormalization()
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, dtype=policy), made])
        model.add(keras.layers.Dense(2, dtype="float64" if policy == "float64" else "float32"))
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
        return model

    timed = functools.partial(mixed.step_times, on=lab, name="tiny", policies=mixed.POLICIES[:2], **FAST)
    if layer == "BatchNormalization":
        assert not timed(other, IMAGES, CLASSES)[0].refused
    else:
        with pytest.raises(ValueError, match="Dropout"):
            timed(other, IMAGES, CLASSES)


def test_what_a_device_lacks_is_left_out(lab, monkeypatch):
    now = [0.0]
    step = mixed.train_step

    def slow(model, images, classes):
        policy = model.layers[0].dtype_policy.name
        if policy == "mixed_bfloat16":
            raise tf.errors.UnimplementedError(None, None, "no bfloat16\nand a long story")
        now[0] += 9.0 if policy == "mixed_float16" else 0.01
        return step(model, images, classes)

    monkeypatch.setattr(mixed, "train_step", slow)
    monkeypatch.setattr("tensorflow.function", lambda call, **_: call)  # so that time passes in each call
    times, left_out = mixed.step_times(build, IMAGES, CLASSES, on=lab, name="tiny", seconds=5, clock=lambda: now[0])
    assert list(times.measurements) == ["float32"]
    assert left_out[0].startswith("mixed_bfloat16: it does not train on this device: UnimplementedError")
    assert "mixed_float16: left out for time: a step takes about 288 s" in left_out


def test_trainings_are_paired_by_seed(lab, monkeypatch):
    monkeypatch.setenv("METALLAB_MODE", "full")
    data = (IMAGES, CLASSES), (IMAGES[:32], CLASSES[:32])
    trained = mixed.train_in_turns(
        build, ["float32", "mixed_bfloat16"], *data, on=lab, seeds=3, epochs=4, batch=16, **FAST
    )
    assert trained.left_out == "Nothing was left out for time."
    plain, small = trained["float32"], trained["mixed_bfloat16"]
    assert plain.losses.shape == small.losses.shape == (3, 4)
    assert (plain.losses[:, -1] < plain.losses[:, 0]).all(), "it learns"
    assert 0 < np.abs(plain.losses - small.losses).max() < 0.05, "the same start and order, in 16 bits"
    assert np.abs(plain.losses[0] - plain.losses[1]).max() > 0.005, "seeds differ"
    assert len({tuple(row) for row in plain.losses}) == 3
    assert (plain.accuracies > 0.5).all()


def test_one_training_does_not_begin_where_another_ended(lab):
    data = (IMAGES, CLASSES), (IMAGES[:32], CLASSES[:32])
    options = {"on": lab, "seeds": 2, "epochs": 2, "batch": 16, **FAST}
    once, again = (mixed.train_in_turns(build, ["float32"], *data, **options)["float32"] for _ in range(2))
    np.testing.assert_allclose(once.losses, again.losses, rtol=1e-4)
    assert np.abs(once.losses[0, 0] - once.losses[1, 0]) < 1, "the second seed starts anew"
