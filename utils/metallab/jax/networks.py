"""Small, named networks in plain JAX: the same weights and inputs on every machine and with every version of JAX.

A network is a function of its parameters and inputs, and of the module ``xp`` whose arrays it computes with:
`jax.numpy`, or NumPy where nothing but array functions is used. So the very same code runs in both. Numbers are drawn
by NumPy, from the same seed each time. None is trained: what is measured is how fast they compute, not what.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from metallab import allowance, checks, device, mode, timing, units


@dataclass(frozen=True)
class Network:
    """A function with its parameters and a batch of inputs, all float32."""

    name: str
    function: Callable[..., Any]
    """``function(params, *inputs, xp=jnp)`` returns an array or a tuple of arrays."""
    params: Any
    """A dict of arrays: NumPy's from a maker, JAX's after `on`."""
    inputs: tuple[Any, ...]
    in_numpy: bool = True
    """Whether ``xp=numpy`` will do; convolutions are in `jax.lax` alone."""

    def on(self, device: Any) -> Network:
        """A copy whose arrays lie on a `jax.Device`, and are computed with there."""
        return replace(self, params=jax.device_put(self.params, device), inputs=jax.device_put(self.inputs, device))

    def inference(self, compiled: bool = True) -> Callable[[], Any]:
        """A function that computes the outputs: as one program, or with one call of JAX for each operation."""
        function = jax.jit(self.function) if compiled else self.function
        return lambda: function(self.params, *self.inputs)

    def gradient(self, compiled: bool = True) -> Callable[[], Any]:
        """A function that computes the loss and its gradient, which has the shape of the parameters."""
        function = jax.value_and_grad(self.loss)
        function = jax.jit(function) if compiled else function
        return lambda: function(self.params, *self.inputs)

    def numpy(self) -> Callable[[], Any]:
        """A function that computes the outputs in NumPy. ValueError for a network that NumPy alone cannot compute."""
        if not self.in_numpy:
            raise ValueError(f"NumPy has no convolutions, of which {self.name} is made; look at in_numpy first")
        params, inputs = jax.tree.map(np.asarray, (self.params, self.inputs))
        return lambda: self.function(params, *inputs, xp=np)

    def loss(self, params: Any, *inputs: Any) -> Any:
        """The mean square of all outputs, a float32 scalar."""
        outputs = jax.tree.leaves(self.function(params, *inputs))
        return sum(jnp.mean(jnp.square(output)) for output in outputs)


def mlp(batch: int = 256, width: int = 512) -> Network:
    """Three linear layers with ReLU: (batch, 784) -> width -> width -> (batch, 10)."""
    draw = _Draw()
    sizes = {"in": (784, width), "hidden": (width, width), "out": (width, 10)}
    params = {name: draw.linear(*shape) for name, shape in sizes.items()}
    return Network("MLP", _mlp, params, (draw.normal(batch, 784),))


def cnn(batch: int = 32, channels: int = 32, size: int = 32) -> Network:
    """Two 3 x 3 convolutions with ReLU and 2 x 2 pooling, and a linear layer: (batch, size, size, 3) -> (batch, 10)."""
    draw = _Draw()
    params = {
        "first": draw.convolution(3, channels),
        "second": draw.convolution(channels, 2 * channels),
        "out": draw.linear(2 * channels, 10),
    }
    return Network("CNN", _cnn, params, (draw.normal(batch, size, size, 3),), in_numpy=False)


def resnet_block(batch: int = 8, channels: int = 64, size: int = 32) -> Network:
    """Two convolutions with batch norm around a shortcut: (batch, size, size, channels) -> the same.

    After He et al., *Deep Residual Learning for Image Recognition*, 2015, figure 2; the statistics are the batch's.
    """
    draw = _Draw()
    convolutions = {name: draw.convolution(channels, channels) for name in ("first", "second")}
    norms = {f"{name} norm": draw.norm(channels) for name in convolutions}
    inputs = (draw.normal(batch, size, size, channels),)
    return Network("ResNet block", _resnet_block, convolutions | norms, inputs, in_numpy=False)


def attention_block(batch: int = 8, steps: int = 64, width: int = 128, heads: int = 4) -> Network:
    """A Transformer block, norms first: (batch, steps, width) -> the same. ValueError if the heads do not divide width.

    After Vaswani et al., *Attention Is All You Need*, 2017, sections 3.2 and 3.3.
    """
    if width % heads:
        raise ValueError(f"{heads} heads cannot share a width of {width}; take a number that divides it")
    draw = _Draw()
    # one matrix for each head, so that the number of heads is a shape and not a setting
    params = {name: draw.scaled(heads, width, width // heads, fan_in=width) for name in ("query", "key", "value")}
    params |= {"join": draw.scaled(heads, width // heads, width, fan_in=width)}
    params |= {"norm 1": draw.norm(width), "norm 2": draw.norm(width)}
    params |= {"up": draw.linear(width, 4 * width), "down": draw.linear(4 * width, width)}
    return Network("Attention block", _attention_block, params, (draw.normal(batch, steps, width),))


def n_body(bodies: int = 512) -> Network:
    """One leapfrog step of bodies under gravity: positions and velocities (bodies, 3) -> the same two.

    The parameters are the masses (bodies,). Distances are softened, so that no two bodies come infinitely close.
    """
    draw = _Draw()
    masses = np.abs(draw.normal(bodies)) / np.float32(bodies)
    return Network("n-body step", _n_body, {"masses": masses}, (draw.normal(bodies, 3), draw.normal(bodies, 3)))


MEASURED: Mapping[str, Callable[..., Network]] = {
    "MLP": mlp,
    "n-body step": n_body,
    "Attention block": attention_block,
    "CNN": cnn,
    "ResNet block": resnet_block,
}
"""The networks that notebook 07b measures, those first that take little time."""


FLOAT32 = "highest"
"""The precision of JAX's products that is float32: by itself JAX takes TensorFloat-32 on NVIDIA's GPUs."""


def race(
    names: Sequence[str], *, on: device.JaxDevice, seconds: float = 9.0
) -> tuple[dict[str, list[timing.Comparison]], str]:
    """Time inference and gradient of some of `MEASURED`: a GPU against the whole CPU, each as one program.

    Where ``on`` is the CPU, ways to run there: as one program (``jit``), with one call of JAX for each operation (``op
    by op``) and, for inference, NumPy where it can. On a GPU inference is timed by throughput as well. Outputs are
    compared first, float32 means float32, and a sentinel watches the machine.

    Returns
    -------
    comparisons : dict
        A list for each question: ``inference, latency``, ``gradient, latency``, ``inference, throughput``.
    left_out : str
        The networks for which nothing was left of ``seconds``; empty if there are none.
    """
    tasks = [("inference", "latency"), ("gradient", "latency")]
    tasks += [("inference", "throughput")] if on.kind != "cpu" else []
    groups: dict[str, list[timing.Comparison]] = {f"{task}, {question}": [] for task, question in tasks}
    within, left = allowance.Allowance(seconds), len(names) * len(tasks)
    full = mode.by_mode(full=timing.Budget(min_samples=20, min_seconds=0.15, max_seconds=0.8), fast=timing.FAST)
    square = jax.device_put(np.ones((512, 512), np.float32), on.jax_device)
    with jax.default_matmul_precision(FLOAT32), timing.sentinel(lambda: square @ square, on=on):
        for name in within.items(names, "the networks", least=2):
            network = MEASURED[name]()
            for task, question in tasks:
                budget = within.budget(left, full, variants=2)
                groups[f"{task}, {question}"].append(_compared(network, task, question, on, budget))
                left -= 1
    return groups, str(within) if within.left_out else ""


def means(comparisons: Mapping[str, Sequence[timing.Comparison]]) -> list[str]:
    """For each question and variant the range of its speed-ups and their geometric mean, or why there is none.

    Speed-ups that are withheld or have no interval are left out.
    """
    sentences = []
    for question, group in comparisons.items():
        for variant in dict.fromkeys(name for one in group for name in one.measurements if name != one.baseline):
            ratios = [one.ratios[variant] for one in group if variant in one.ratios]
            ratios = [ratio for ratio in ratios if math.isfinite(ratio.high)]
            if ratios:
                networks = f"{len(ratios)} network{'s' * (len(ratios) > 1)}"
                sentences.append(f"{question}, {networks}: {_range_and_mean(ratios)}.")
            else:
                withheld = [one.withheld[variant] for one in group if variant in one.withheld]
                why = withheld[0] if withheld else "too few pairs for a 95 % interval"
                sentences.append(f"{question}: no speed-up of {variant} is given: {why}.")
    return sentences


def _range_and_mean(ratios: Sequence[timing.Ratio]) -> str:
    """The range of several speed-ups and its geometric mean; of a single one its interval."""
    first, medians = ratios[0], [ratio.median for ratio in ratios]
    if len(ratios) == 1:
        return str(first)
    slower = statistics.geometric_mean(medians) < 1
    times = [1 / median if slower else median for median in medians]
    low, mean, high = map(units.times, (min(times), statistics.geometric_mean(times), max(times)))
    words = f"takes {low} to {high} times as long as" if slower else f"is {low} to {high} times as fast as"
    return f"{first.variant} {words} {first.baseline}, geometric mean {mean}"


def _compared(
    network: Network, task: str, question: timing.Question, on: device.JaxDevice, budget: timing.Budget
) -> timing.Comparison:
    host = device.cpu(framework="jax")
    variants, devices, roles = _ways(network, task, on, host)
    return timing.compare(
        variants,
        on=devices,
        baseline=next(iter(variants)),
        parity=checks.matches("float32"),
        question=question,
        name=f"{network.name}, {task}" + (", throughput" if question == "throughput" else ""),
        roles=roles,
        budget=budget,
    )


def _ways(
    network: Network, task: str, on: device.JaxDevice, host: device.JaxDevice
) -> tuple[dict[str, Callable[[], Any]], dict[str, device.JaxDevice], dict[str, str]]:
    """What is timed, the baseline first; where; and what each is on any machine."""
    here = network.on(host.jax_device)
    if on.kind != "cpu":
        cpu = f"CPU, {host.threads} threads"
        there = network.on(on.jax_device)
        variants = {cpu: getattr(here, task)(), on.kind: getattr(there, task)()}
        return variants, {cpu: host, on.kind: on}, {cpu: "CPU", on.kind: "GPU"}
    variants = {"jit": getattr(here, task)(), "op by op": getattr(here, task)(compiled=False)}
    if network.in_numpy and task == "inference":
        variants["NumPy"] = here.numpy()
    return variants, dict.fromkeys(variants, host), {}


def _mlp(params: Any, x: Any, xp: Any = jnp) -> Any:
    for name in ("in", "hidden"):
        x = xp.maximum(_linear(params[name], x), 0)
    return _linear(params["out"], x)


def _cnn(params: Any, x: Any, xp: Any = jnp) -> Any:
    for name in ("first", "second"):
        x = _halved(jnp.maximum(_convolved(params[name], x), 0))
    return _linear(params["out"], x.mean(axis=(1, 2)))


def _resnet_block(params: Any, x: Any, xp: Any = jnp) -> Any:
    y = jnp.maximum(_normalised(params["first norm"], _convolved(params["first"], x), (0, 1, 2), jnp), 0)
    y = _normalised(params["second norm"], _convolved(params["second"], y), (0, 1, 2), jnp)
    return jnp.maximum(x + y, 0)


def _attention_block(params: Any, x: Any, xp: Any = jnp) -> Any:
    y = _normalised(params["norm 1"], x, -1, xp)[:, None]  # the new axis is that of the heads
    query, key, value = (y @ params[name] for name in ("query", "key", "value"))
    weights = _softmax(query @ xp.swapaxes(key, -1, -2) * query.shape[-1] ** -0.5, xp)
    x = x + ((weights @ value) @ params["join"]).sum(axis=1)
    y = xp.maximum(_linear(params["up"], _normalised(params["norm 2"], x, -1, xp)), 0)
    return x + _linear(params["down"], y)


def _n_body(params: Any, positions: Any, velocities: Any, xp: Any = jnp) -> tuple[Any, Any]:
    step = 1e-2
    halfway = velocities + step / 2 * _acceleration(params["masses"], positions, xp)
    positions = positions + step * halfway
    return positions, halfway + step / 2 * _acceleration(params["masses"], positions, xp)


def _acceleration(masses: Any, positions: Any, xp: Any, softening: float = 0.05) -> Any:
    """Acceleration (bodies, 3) by gravity of constant 1, softened (Aarseth, *Gravitational N-Body Simulations*)."""
    apart = positions[None, :, :] - positions[:, None, :]
    squared = (apart**2).sum(axis=-1) + softening**2
    return (apart * (masses / (squared * xp.sqrt(squared)))[:, :, None]).sum(axis=1)


def _linear(layer: Mapping[str, Any], x: Any) -> Any:
    return x @ layer["weight"] + layer["bias"]


def _convolved(kernel: Any, x: Any) -> Any:
    """A 3 x 3 convolution that keeps the size: x (batch, h, w, channels), kernel (3, 3, channels, new channels)."""
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _halved(x: Any) -> Any:
    """The maximum of each 2 x 2 square: (batch, h, w, channels) -> (batch, h / 2, w / 2, channels)."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def _normalised(norm: Mapping[str, Any], x: Any, axes: Any, xp: Any) -> Any:
    """Mean 0 and variance 1 over the axes, then scaled and shifted channel by channel."""
    centred = x - x.mean(axis=axes, keepdims=True)
    variance = (centred**2).mean(axis=axes, keepdims=True)
    return centred / xp.sqrt(variance + 1e-5) * norm["scale"] + norm["shift"]


def _softmax(x: Any, xp: Any) -> Any:
    grown = xp.exp(x - x.max(axis=-1, keepdims=True))
    return grown / grown.sum(axis=-1, keepdims=True)


class _Draw:
    """Random float32 arrays of NumPy, the same for each network and everywhere."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def normal(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape, dtype=np.float32)

    def scaled(self, *shape: int, fan_in: int) -> np.ndarray:
        """Weights whose sums over ``fan_in`` inputs of size 1 are again of about size 1."""
        return self.normal(*shape) * np.float32((2 / fan_in) ** 0.5)

    def linear(self, before: int, after: int) -> dict[str, np.ndarray]:
        return {"weight": self.scaled(before, after, fan_in=before), "bias": self.normal(after) * np.float32(0.1)}

    def convolution(self, before: int, after: int) -> np.ndarray:
        return self.scaled(3, 3, before, after, fan_in=9 * before)

    def norm(self, channels: int) -> dict[str, np.ndarray]:
        noise = self.normal(2, channels) * np.float32(0.1)
        return {"scale": 1 + noise[0], "shift": noise[1]}
