"""TensorFlow, Keras, and the Metal plugin's remapper. Where the plugin is not, all of it runs on the CPU."""

from __future__ import annotations

import sys
from typing import Any

from metallab import units
from metallab.verify_mac.trial import Finding, judged, not_applicable, trial

SURVEY = """
from metallab import device
from metallab.tensorflow import grappler
findings = grappler.survey(grappler.patterns(), on=device.pick(framework="tensorflow"))
"""
STEPS = 40


def _lab() -> Any:
    from metallab import device

    return device.pick(framework="tensorflow")


@trial(on="tensorflow", used_in="notebook 06, is the plugin there", seconds=120)
def plugin_computes() -> Finding:
    """tensorflow-metal loads on TensorFlow 2.16.2, and a product of small whole numbers is exact on its GPU."""
    import tensorflow as tf

    from metallab import device

    lab = _lab()
    fault = device.probe(lab.kind, "tensorflow")
    seen = [f"{found.device_type}: {found.name}" for found in tf.config.list_physical_devices()]
    named = {"devices": seen, "plugin": device.plugin("tensorflow"), "TensorFlow": tf.__version__}
    if lab.kind != "mps" and sys.platform != "darwin":
        return judged(fault is None, "no plugin here: the product is the CPU's", **named)
    return judged(lab.kind == "mps" and fault is None, fault or lab.instead_of or f"exact on {lab.label}", **named)


@trial(on="tensorflow", used_in="notebook 06: sixteen patterns before any timing", seconds=300)
def patterns_agree_with_the_cpu() -> Finding:
    """Sixteen patterns agree with the CPU in float64, also as a graph: reports say relu(bias_add(matmul)) does not.

    Each with what was fused in the optimised graph, by the names that stand there.
    """
    from metallab.tensorflow import grappler

    findings = grappler.survey(grappler.patterns(), on=_lab())
    wrong = [finding.pattern for finding in findings if not finding.ok]
    rows = [dict(zip(grappler.HEADINGS, finding.row, strict=True)) for finding in findings]
    new = {finding.pattern: finding.reading.new for finding in findings}
    said = f"{len(findings) - len(wrong)} of {len(findings)} agree; wrong: {', '.join(wrong) or 'none'}"
    return judged(not wrong, said, patterns=rows, not_in_the_written_graph=new)


@trial(on="tensorflow", used_in="notebook 06: TURN_OFF_REMAPPER", seconds=400)
def turning_the_remapper_off_is_heard() -> Finding:
    """The Metal plugin reads TURN_OFF_REMAPPER=1: other operations are fused, or wrong ones become right.

    The sixteen patterns in two processes, with the variable and without it.
    """
    from metallab import device, isolated
    from metallab.tensorflow import grappler

    runs = [
        isolated.run(SURVEY, results=["findings"], environment=setting, timeout=180)
        for setting in ({}, {"TURN_OFF_REMAPPER": "1"})
    ]
    if ended := [str(ran) for ran in runs if not ran.ok]:
        return judged(False, f"a survey did not end well: {ended}")
    without, turned_off = (ran["findings"] for ran in runs)
    said = grappler.effect(without, turned_off, "TURN_OFF_REMAPPER=1")
    fused = [{finding.pattern: finding.reading.fused for finding in found} for found in (without, turned_off)]
    if not device.plugin("tensorflow"):
        return not_applicable(f"no plugin here; on the CPU: {said}", without=fused[0], turned_off=fused[1])
    changed = fused[0] != fused[1] or [f.ok for f in without] != [f.ok for f in turned_off]
    return judged(changed, said, without=fused[0], turned_off=fused[1])


@trial(on="tensorflow", used_in="notebook 06, with and without remapping", seconds=300)
def option_turns_fusing_off() -> Finding:
    """TensorFlow's own option turns fusing off: reports say that on Metal it does not help."""
    from metallab.tensorflow import grappler

    findings = grappler.survey(grappler.patterns(), on=_lab(), remapping=False)
    fused = {finding.pattern: finding.reading.fused for finding in findings if finding.reading.fused}
    wrong = [finding.pattern for finding in findings if not finding.ok]
    said = f"still fused: {', '.join(fused) or 'nothing'}; wrong: {', '.join(wrong) or 'none'}"
    return judged(not fused, said, fused=fused, wrong=wrong)


@trial(on="tensorflow", used_in="notebook 06: what the remapper does to a training step", seconds=240)
def optimizers_step_right() -> Finding:
    """One step of SGD, RMSprop, Adagrad and Adam as a graph moves the weights as on the CPU in float64.

    With the names of fused and of new operations in each step's graph: the plugin is said to fuse the updates.
    """
    import keras
    import tensorflow as tf

    from metallab.tensorflow import grappler

    optimizers, said, graphs = keras.optimizers, {}, {}
    makers = {"SGD": optimizers.SGD, "RMSprop": optimizers.RMSprop, "Adagrad": optimizers.Adagrad}
    makers["Adam"] = lambda rate: optimizers.Adam(rate, epsilon=1e-3)  # else tiny gradients blow their rounding up
    x, y = _digits()
    with _lab().active():
        for name, make in makers.items():
            ours = _network("float32", make(0.01))
            start = ours.get_weights()
            reading = grappler.read(_step(ours), tf.constant(x[:32]), tf.constant(y[:32]))
            graphs[name] = {"fused": reading.fused, "new": reading.new, "ran on": reading.devices}
            with tf.device("/CPU:0"):
                exact = _network("float64", make(0.01))
                exact.set_weights(start)
                _step(exact)(tf.constant(x[:32], "float64"), tf.constant(y[:32]))
            moved = [[b - a for a, b in zip(start, m.get_weights(), strict=True)] for m in (exact, ours)]
            said[name] = grappler.judge(name, *moved).row[-1]
    return judged(set(said.values()) == {"agrees"}, f"{said}", said=said, graphs=graphs)


@trial(on="tensorflow", used_in="constraints.txt: why Keras 3.6.0", seconds=240)
def keras_trains_as_on_the_cpu() -> Finding:
    """Keras 3.6.0 trains on the GPU to the loss it reaches on the CPU, and to the accuracy.

    Forty steps of a small dense network on real digits, from equal weights.
    """
    import tensorflow as tf

    found = {}
    for name, place in {"device": _lab().active(), "CPU": tf.device("/CPU:0")}.items():
        with place:
            found[name] = _trained("float32")
    (loss, score), (want, best) = found["device"], found["CPU"]
    said = f"loss {loss[-1]:.4f} (CPU {want[-1]:.4f}), accuracy {score:.3f} (CPU {best:.3f})"
    return judged(abs(loss[-1] - want[-1]) < 0.05 * want[0] and abs(score - best) < 0.02, said, losses=found)


@trial(on="tensorflow", used_in="notebook 06, one policy for a whole model", seconds=300)
def mixed_precision_trains() -> Finding:
    """mixed_float16, with loss scaling, and mixed_bfloat16 train: the loss falls as in float32."""
    losses = {}
    with _lab().active():
        for policy in ("float32", "mixed_float16", "mixed_bfloat16"):
            losses[policy], _ = _trained(policy)
    ends = {policy: round(values[-1] / values[0], 3) for policy, values in losses.items()}
    holds = all(abs(end - ends["float32"]) < 0.1 for end in ends.values())
    return judged(holds, f"last loss by first: {ends}", losses=losses)


@trial(on="tensorflow", used_in="notebook 06: soft placement", seconds=120)
def soft_placement_covers_what_is_missing() -> Finding:
    """With soft placement an operation that the GPU lacks runs on the CPU, and is right: determinants and the like.

    Determinant, eigenvalues, inverse and distinct values, asked of /GPU:0.
    """
    import numpy as np
    import tensorflow as tf

    tf.config.set_soft_device_placement(True)
    a = np.random.default_rng(0).normal(size=(6, 6)).astype("f") + 6 * np.eye(6, dtype="f")
    calls = {
        "det": (tf.linalg.det, np.linalg.det(a.astype(float))),
        "eigvalsh of a @ a.T": (lambda x: tf.linalg.eigvalsh(x @ tf.transpose(x)), np.linalg.eigvalsh(a @ a.T)),
        "inverse": (tf.linalg.inv, np.linalg.inv(a.astype(float))),
        "unique": (lambda x: tf.unique(tf.reshape(tf.sign(x), [-1]))[0], np.unique(np.sign(a))[::-1]),
    }
    said = {}
    with tf.device("/GPU:0"):
        for name, (call, truth) in calls.items():
            try:
                got = call(tf.constant(a))
                error = np.abs(np.sort(np.ravel(got)) - np.sort(np.ravel(truth))).max() / np.abs(truth).max()
                said[name] = f"off by {error:.1g}, on {got.device.rpartition(':')[0].rpartition('device:')[2]}"
            except (tf.errors.OpError, ValueError) as problem:
                said[name], error = units.first_line(problem)[:200], np.inf
            if error > 1e-3:
                said[name] = f"WRONG: {said[name]}"
    return judged(not any(text.startswith("WRONG") for text in said.values()), f"{said}", said=said)


@trial(on="tensorflow", used_in="notebook 06, metallab.memory", seconds=120)
def peak_memory_is_told() -> Finding:
    """`memory.peak` tells a peak for TensorFlow's device: by its allocator, or where that does not count, sampled."""
    import tensorflow as tf

    from metallab import memory

    lab = _lab()
    with memory.peak(on=lab) as used, lab.active():
        tf.reduce_sum(tf.ones((4096, 4096))).numpy()
    return judged(used.bytes > 0, f"{used.bytes} bytes, {used}")


def _digits() -> tuple[Any, Any]:
    from sklearn.datasets import load_digits

    digits, labels = load_digits(return_X_y=True)
    return (digits / 16).astype("float32"), labels.astype("int32")


def _network(policy: str, optimizer: Any) -> Any:
    import keras

    keras.mixed_precision.set_global_policy(policy)
    keras.utils.set_random_seed(0)
    last = "float64" if policy == "float64" else "float32"
    layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10, dtype=last)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    model.compile(optimizer, jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    keras.mixed_precision.set_global_policy("float32")
    return model


def _step(model: Any) -> Any:
    """A step of training as a Python function: forward, backward, update."""
    import keras
    import tensorflow as tf

    score = keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype=model.layers[-1].compute_dtype)

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = score(labels, model(images, training=True))
            scaled = model.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        return loss

    return step


def _trained(policy: str) -> tuple[list[float], float]:
    """Losses of each step on the device that is active, and the accuracy afterwards."""
    import keras
    import tensorflow as tf

    x, y = _digits()
    model = _network(policy, keras.optimizers.Adam(0.01))
    step = tf.function(_step(model), jit_compile=False, autograph=False)
    batches = [(x[64 * k : 64 * k + 64], y[64 * k : 64 * k + 64]) for k in range(STEPS // 2)]
    losses = [float(step(*map(tf.constant, batch))) for batch in batches * 2]
    guessed = tf.argmax(model(tf.constant(x[-400:])), axis=1).numpy()
    return losses, float((guessed == y[-400:]).mean())
