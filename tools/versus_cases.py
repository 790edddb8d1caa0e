"""The core of the lessons as cases: what `make versus` and `make gate REF=revision` time on both sides.

Groups are numbers of lessons. A case imports what it needs inside of its function, from its own side; where that side
is a revision that does not have it yet, the case is listed as new. ``metallab versus A B --only 19``.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from metallab.versus import case

if TYPE_CHECKING:
    from metallab.pytorch.networks import Network

Work = Callable[[], Any]
"""What is timed: the set-up returns it."""


@case(group="01")
def python_loop() -> Work:
    """Nothing but the interpreter."""
    return lambda: sum(i * i for i in range(20_000))


@case(group="01")
def timing_an_empty_function() -> Work:
    """What our own timer costs: a comparison of two functions that do nothing."""
    from metallab import timing

    budget = timing.Budget(
        min_samples=50, max_samples=50, min_seconds=0.0, warmup_seconds=0.0, block_seconds=0.0
    )
    none = timing.Unchecked("they do nothing")

    def compare() -> int:
        variants = {"a": int, "b": int}
        got = timing.compare(variants, on=timing.Host(), baseline="a", parity=none, budget=budget)
        return got["a"].n

    return compare


@case(group="10", sizes={"n": (64, 4096)})
def small_operators(n: int, device: str) -> Work:
    """A chain of additions and products: at a small size what a call of PyTorch costs."""
    import torch

    x = torch.linspace(0, 1, n * 16, device=device)

    def chain() -> Any:
        y = x
        for _ in range(10):
            y = y * 0.5 + x
        return y

    return chain


@case(group="13", sizes={"n": (64, 512)})
def product(n: int, device: str) -> Work:
    """A product of two square matrices."""
    import torch

    a = torch.rand(n, n, generator=torch.Generator().manual_seed(0)).to(device)
    return lambda: a @ a


@case(group="64", sizes={"name": ("mlp", "cnn", "resnet", "transformer", "lstm")})
def inference(name: str, device: str) -> Work:
    """Each of our networks, at its usual size."""
    from metallab.pytorch import networks

    return getattr(networks, name)().to(device).inference()


@case(group="64", sizes={"name": ("mlp", "cnn", "transformer")})
def training_step(name: str, device: str) -> Work:
    """Forward, backward and an update of the weights."""
    from metallab.pytorch import networks

    return getattr(networks, name)().to(device).training_step()


@case(group="11")
def asking_coverage() -> Work:
    """Which operators of a network run on MPS: our own tables and tracer."""
    from metallab.pytorch import coverage, networks

    network = networks.mlp(batch=2, width=16)
    return lambda: len(coverage.mps_coverage(network.model, *network.inputs).uses)


@case(group="23")
def softshrink(device: str) -> Work:
    """The operator of our own."""
    import torch

    from metallab.pytorch.kernels.softshrink import softshrink as operator

    x = torch.linspace(-2, 2, 2**18).to(device)
    return lambda: operator(x, 0.5)


@case(group="16", sizes={"dtype": ("float16", "bfloat16")}, tolerance="bfloat16")
def autocast(dtype: str, device: str) -> Work:
    """A network under autocast; on many CPUs a slower format than float32."""
    import torch

    from metallab.pytorch import networks

    infer = networks.cnn(batch=4).to(device).inference()

    def under_autocast() -> Any:
        with torch.autocast(device, getattr(torch, dtype)):
            return infer()

    return under_autocast


@case(group="53")
def keras_training_step() -> Work:
    """A step of Keras in a graph of TensorFlow."""
    import tensorflow as tf

    tf.keras.utils.set_random_seed(0)
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)]
    )
    # a rate of 0 leaves the weights, so that each step has the same result
    model.compile(tf.keras.optimizers.SGD(0.0), "mean_squared_error")
    x, y = tf.random.stateless_uniform((64, 32), (0, 1)), tf.zeros((64, 10))

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


@case(group="54")
def tensorflow_graph() -> Work:
    """What Grappler may fuse: a product, a bias, an activation."""
    import tensorflow as tf

    x, w = (tf.random.stateless_uniform((256, 256), (0, seed)) for seed in (1, 2))
    b = tf.ones(256)
    return tf.function(lambda: tf.nn.relu(tf.matmul(x, w) + b))


@case(group="51", sizes={"task": ("inference", "gradient")})
def jax_mlp(task: str) -> Work:
    """A perceptron that JAX has compiled, forward or with its gradient."""
    import jax

    layers = [jax.numpy.ones(shape) / shape[0] for shape in ((784, 512), (512, 512), (512, 10))]
    x = jax.numpy.ones((256, 784))

    def mean(layers: Any) -> Any:
        y = x
        for layer in layers:
            y = jax.nn.relu(y @ layer)
        return (y**2).mean()

    compiled = jax.jit(mean if task == "inference" else jax.value_and_grad(mean))
    return lambda: compiled(layers)


@case(group="52")
def jax_n_body() -> Work:
    """A step of bodies that attract each other, all by all."""
    import jax

    positions = jax.random.normal(jax.random.key(0), (256, 3))

    @jax.jit
    def step(positions: Any) -> Any:
        apart = positions[None] - positions[:, None]
        squared = (apart**2).sum(
            axis=-1
        ) + 0.01  # so that a body does not attract itself without end
        forces = apart / squared[:, :, None] ** 1.5
        return positions + 0.01 * forces.sum(axis=1)

    return lambda: step(positions)


@case(group="60")
def detector(device: str) -> Work:
    """The detector, which returns its boxes before any is chosen."""
    import torch

    from metallab.detection import detector as trained

    network = trained.load().to(device)
    x = torch.rand(1, 3, 320, 320, generator=torch.Generator().manual_seed(0)).to(device)

    def detect() -> Any:
        with torch.no_grad():
            return network(x)[0]

    return detect


def write_onnx(network: Network, file: str | io.BytesIO) -> None:
    """Write a network as ONNX, as it computes in evaluation mode."""
    import warnings

    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this exporter is the older one
        torch.onnx.export(
            network.model.eval(),
            network.inputs,
            file,
            dynamo=False,
            opset_version=17,
            input_names=["input"],
            output_names=["output"],
        )


@case(group="40")
def onnx_inference() -> Work:
    """One thread, which sleeps between calls."""
    import onnxruntime

    from metallab.pytorch import networks

    network = networks.cnn(batch=4)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")

    model = io.BytesIO()
    write_onnx(network, model)
    session = onnxruntime.InferenceSession(
        model.getvalue(), options, providers=["CPUExecutionProvider"]
    )
    x = network.inputs[0].numpy()
    return lambda: session.run(None, {"input": x})[0]


@case(group="43")
def int8_inference() -> Work:
    """Linear layers in eight bits, by ONNX Runtime."""
    import tempfile
    from pathlib import Path

    import onnxruntime
    from onnxruntime.quantization import quantize_dynamic

    from metallab.pytorch import networks

    network = networks.mlp(batch=64, width=256)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        model, quantized = Path(folder, "model.onnx"), Path(folder, "quantized.onnx")
        write_onnx(network, str(model))
        quantize_dynamic(model, quantized)
        session = onnxruntime.InferenceSession(
            quantized, options, providers=["CPUExecutionProvider"]
        )
    x = network.inputs[0].numpy()
    return lambda: session.run(None, {"input": x})[0]


@case(group="44")
def reading_digits(device: str) -> Work:
    """The network that reads digits, before it is quantised."""
    import torch

    from metallab.quantization import digits

    torch.manual_seed(0)
    network = digits.classifier(8).eval().to(device)
    x = torch.linspace(0, 1, 32 * 28 * 28).reshape(32, 1, 28, 28).to(device)

    def read() -> Any:
        with torch.no_grad():
            return network(x)

    return read


@case(group="62")
def blur_by_fft(device: str) -> Work:
    """A blur as a product of two spectra."""
    import torch

    picture = torch.rand(3, 384, 512, generator=torch.Generator().manual_seed(0)).to(device)
    kernel = torch.ones(15, 15, device=device) / 225

    def blur() -> Any:
        spectrum = torch.fft.rfft2(picture) * torch.fft.rfft2(kernel, s=(384, 512))
        return torch.fft.irfft2(spectrum, s=(384, 512))

    return blur


@case(group="65")
def sampling_a_grid(device: str) -> Work:
    """A picture that is turned a little, by an operator that few programs use."""
    import torch

    picture = torch.rand(1, 3, 128, 128, generator=torch.Generator().manual_seed(0)).to(device)
    grid = torch.nn.functional.affine_grid(
        torch.tensor([[[0.9, 0.1, 0.0], [-0.1, 0.9, 0.0]]]), [1, 3, 128, 128], False
    )
    grid = grid.to(device)
    return lambda: torch.nn.functional.grid_sample(picture, grid, align_corners=False)


@case(group="64")
def reading_results() -> Work:
    """A file of results: read, held against its classes, its speed-ups computed again."""
    from metallab import paths, records

    file = paths.ROOT / "data" / "results" / "nvidia_h200.json"
    return lambda: len(records.load(file)) > 0
