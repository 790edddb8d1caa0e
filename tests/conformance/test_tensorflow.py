"""TensorFlow, Keras and the Metal plugin's remapper; where the plugin is not, all of it runs on the CPU"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from conformance.claims import ON_A_MAC
from metallab import device, isolated, memory
from metallab.tensorflow import grappler

pytestmark = pytest.mark.claim(on="tensorflow", seconds=300)
SURVEY = """
from metallab import device
from metallab.tensorflow import grappler
findings = grappler.survey(on=device.pick(framework="tensorflow"))
"""
STEPS = 40


@functools.cache
def _lab() -> Any:
    return device.pick(framework="tensorflow")


@pytest.mark.claim(used_in="notebook 53, is the plugin there", seconds=120)
def test_plugin_computes(evidence):
    """tensorflow-metal loads on TensorFlow 2.16.2, and a product of small whole numbers is exact on its GPU."""
    import tensorflow as tf

    lab = _lab()
    evidence(
        "devices",
        [f"{device.device_type}: {device.name}" for device in tf.config.list_physical_devices()],
    )
    evidence("plugin", device.plugin("tensorflow"))
    evidence("TensorFlow", tf.__version__)
    assert device.probe(lab.kind, "tensorflow") is None
    if not ON_A_MAC:
        pytest.skip(f"there is no plugin here; TensorFlow has the {lab.kind}")
    assert lab.kind == "mps", lab.instead_of


@functools.cache
def _survey() -> Any:
    """What each of the sixteen patterns gives, a row for each."""
    return grappler.survey(on=_lab())


def _wrong(surveyed: Any) -> list[str]:
    return list(surveyed.index[surveyed["verdict"] != "agrees"])


@pytest.mark.claim(used_in="notebook 54: sixteen patterns before any timing", slow=True)
def test_patterns_agree_with_the_cpu(evidence):
    """Sixteen patterns agree with the CPU in float64, also as a graph: reports say relu(bias_add(matmul)) does not.

    Each with what was fused in the optimised graph, by the names that stand there.
    """
    surveyed = _survey()
    evidence("patterns", surveyed.to_dict("index"))
    assert len(surveyed) == 16
    assert not _wrong(surveyed)


@pytest.mark.claim(used_in="notebook 54: TURN_OFF_REMAPPER")
def test_turning_the_remapper_off_is_heard(evidence):
    """The Metal plugin reads TURN_OFF_REMAPPER=1: other operations are fused, or wrong ones become right.

    The sixteen patterns in another process, with the variable.
    """
    if not device.plugin("tensorflow"):
        pytest.skip("there is no plugin here")
    ran = isolated.run(
        SURVEY, results=["findings"], environment={"TURN_OFF_REMAPPER": "1"}, timeout=180
    )
    surveys = _survey(), ran["findings"]
    fused = [surveyed["fused"].to_dict() for surveyed in surveys]
    wrong = [_wrong(surveyed) for surveyed in surveys]
    evidence("wrong without, and turned off", wrong)
    evidence("without", fused[0])
    evidence("turned off", fused[1])

    assert fused[0] != fused[1] or wrong[0] != wrong[1]


@pytest.mark.claim(used_in="notebook 54, with and without remapping")
def test_option_turns_fusing_off(evidence):
    """TensorFlow's own option turns fusing off: reports say that on Metal it does not help."""
    surveyed = grappler.survey(on=_lab(), remapping=False)
    evidence("wrong", _wrong(surveyed))
    assert set(surveyed["fused"]) == {"nothing fused"}


@pytest.mark.claim(
    used_in="notebook 54: what the remapper does to a training step", seconds=100, slow=True
)
@pytest.mark.parametrize("name", grappler.OPTIMIZERS)
def test_optimizers_step_right(name, evidence):
    """One step of SGD, RMSprop, Adagrad and Adam as a graph moves the weights as on the CPU in float64.

    With the names of fused and of new operations in each step's graph: the plugin is said to fuse the updates.
    """
    step = grappler.steps(on=_lab(), names=[name]).iloc[0]
    evidence("graph", step.to_dict())
    assert step["verdict"] == "agrees"


@pytest.mark.claim(used_in="pyproject.toml: why Keras 3.6.0", seconds=240, slow=True)
def test_keras_trains_as_on_the_cpu(evidence):
    """Keras 3.6.0 trains on the GPU to the loss it reaches on the CPU, and to the accuracy.

    Forty steps of a small dense network on real digits, from equal weights.
    """
    import tensorflow as tf

    with tf.device("/CPU:0"):
        want, best = _trained("float32")
    loss, score = _on_device("float32")
    evidence("losses", {"device": loss, "CPU": want})
    evidence("accuracies on the device, and on the CPU", (score, best))
    assert loss[-1] == pytest.approx(want[-1], abs=0.05 * want[0])
    assert score == pytest.approx(best, abs=0.02)


@pytest.mark.claim(used_in="notebook 53, one policy for a whole model", slow=True)
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_trains(policy, evidence):
    """mixed_float16, with loss scaling, and mixed_bfloat16 train: the loss falls as in float32."""
    ends = {
        name: losses[-1] / losses[0]
        for name in (policy, "float32")
        for losses, _ in [_on_device(name)]
    }
    evidence("last loss by first", ends)
    assert ends[policy] == pytest.approx(ends["float32"], abs=0.1)


MISSING = {
    "det": lambda tf, x: tf.linalg.det(x),
    "eigvalsh": lambda tf, x: tf.linalg.eigvalsh(x @ tf.transpose(x)),
    "inverse": lambda tf, x: tf.linalg.inv(x),
    "unique": lambda tf, x: tf.unique(tf.reshape(tf.sign(x), [-1]))[0],
}
TRUTH = {
    "det": np.linalg.det,
    "eigvalsh": lambda a: np.linalg.eigvalsh(a @ a.T),
    "inverse": np.linalg.inv,
    "unique": lambda a: np.unique(np.sign(a)),
}


@pytest.mark.claim(used_in="notebook 54: soft placement", seconds=120)
@pytest.mark.parametrize("operation", MISSING)
def test_soft_placement_covers_what_is_missing(operation, evidence):
    """With soft placement an operation that the GPU lacks runs on the CPU, and is right: determinants and the like.

    Determinant, eigenvalues, inverse and distinct values, asked of /GPU:0.
    """
    import tensorflow as tf

    tf.config.set_soft_device_placement(True)
    a = np.random.default_rng(0).normal(size=(6, 6)).astype("f") + 6 * np.eye(6, dtype="f")
    with tf.device("/GPU:0"):
        got = MISSING[operation](tf, tf.constant(a))
    evidence("on", got.device.rpartition("device:")[2])

    # sorted, because eigenvalues and distinct values come in any order
    truth = np.sort(np.ravel(TRUTH[operation](a.astype(float))))
    error = np.abs(np.sort(np.ravel(got)) - truth).max() / np.abs(truth).max()
    evidence("off by, of the largest", float(error))
    assert error <= 1e-3


@pytest.mark.claim(used_in="metallab.memory", seconds=120)
def test_peak_memory_is_told(evidence):
    """`memory.peak` tells a peak for TensorFlow's device: by its allocator, or where that does not count, sampled."""
    import tensorflow as tf

    lab = _lab()
    with memory.peak(on=lab) as used, lab.active():
        tf.reduce_sum(tf.ones((4096, 4096))).numpy()
    evidence("peak", f"{used.bytes} bytes, {used}")
    assert used.bytes > 0


def _digits() -> tuple[Any, Any]:
    from sklearn.datasets import load_digits

    digits, labels = load_digits(return_X_y=True)
    return (digits / 16).astype("float32"), labels.astype("int32")


def _network(policy: str, optimizer: Any) -> Any:
    """Return a small network for digits under a policy of mixed precision, with the same weights each time.

    Its last layer computes in float32 under any policy, and the policy of this process is float32 again afterwards.
    """
    import keras

    keras.mixed_precision.set_global_policy(policy)
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10, dtype="float32")]
    model = keras.Sequential([keras.Input((64,)), *layers])
    model.compile(
        optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False
    )
    model.optimizer.build(model.trainable_variables)  # its variables, before a step is traced
    keras.mixed_precision.set_global_policy("float32")
    return model


@functools.cache
def _on_device(policy: str) -> tuple[list[float], float]:
    with _lab().active():
        return _trained(policy)


def _trained(policy: str) -> tuple[list[float], float]:
    """Train on the active device under a policy; return the loss of each step, and the accuracy afterwards.

    `STEPS` steps, twice over the same batches of 64 digits; the accuracy is that of the last 400 digits.
    """
    import keras
    import tensorflow as tf

    x, y = _digits()
    model = _network(policy, keras.optimizers.Adam(0.01))

    @tf.function(jit_compile=False, autograph=False)
    def step(images, classes):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(y=classes, y_pred=model(images, training=True))
            scaled = model.optimizer.scale_loss(loss)
        model.optimizer.apply(
            tape.gradient(scaled, model.trainable_variables), model.trainable_variables
        )
        return loss

    batches = [(x[64 * k : 64 * k + 64], y[64 * k : 64 * k + 64]) for k in range(STEPS // 2)]
    losses = [float(step(*map(tf.constant, batch))) for batch in batches * 2]
    guessed = tf.argmax(model(tf.constant(x[-400:])), axis=1).numpy()
    return losses, float((guessed == y[-400:]).mean())
