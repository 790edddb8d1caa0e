"""Training in small number formats: their bits, what autocast does to an operator, gradients that vanish, and quality.

Formats are read off by casting on the device that is asked about. What autocast chooses is read from calls that it
changed, never from a list in here. Trainings are compared seed by seed by `metallab.quality`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metallab import device as devices
from metallab import mode, quality, units
from metallab.pytorch.dispatch import watching
from metallab.quality import Trainings

if TYPE_CHECKING:
    from types import EllipsisType

    from matplotlib.figure import Figure
    from pandas.io.formats.style import Styler

    from metallab.device import Device

FORMATS = (torch.float32, torch.float16, torch.bfloat16)

# --- number formats ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """A number as a dtype holds it."""

    dtype: str
    sign: str
    """One bit: 1 is minus."""
    exponent: str
    """Its bits: a whole number; the power of two is that number minus a fixed one, the bias."""
    fraction: str
    """Its bits: what follows the leading ``1.`` (``0.`` in numbers too small for that)."""
    value: float

    @property
    def bits(self) -> str:
        """All of them, from the left."""
        return self.sign + self.exponent + self.fraction


def stored(number: float, dtype: torch.dtype, device: torch.device | str = "cpu") -> Stored:
    """What a device keeps of a Python number in float32, float16 or bfloat16: it arrives in float32 and is cast there.

    ValueError for another dtype. The layout is that of IEEE 754: sign, exponent, fraction.
    """
    if dtype not in FORMATS:
        raise ValueError(f"{dtype} is not among the formats here; take one of {', '.join(map(str, FORMATS))}")
    whole = torch.int32 if dtype == torch.float32 else torch.int16
    cast = torch.tensor(number, dtype=torch.float32).to(device).to(dtype).cpu()
    info = torch.finfo(dtype)
    fraction = -round(math.log2(info.eps))  # 1 + eps is 1 and a last bit
    bits = format(cast.view(whole).item() & (2**info.bits - 1), f"0{info.bits}b")
    split = info.bits - fraction
    return Stored(units.dtype_name(dtype), bits[0], bits[1:split], bits[split:], cast.item())


def draw_bits(number: float, *, device: torch.device | str, label: str) -> Figure:
    """A number in each of the formats, bit by bit, with what is stored and how far off that is."""
    import matplotlib.pyplot as plt

    from metallab import plots

    rows = [stored(number, dtype, device) for dtype in FORMATS]
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 3.3))
        for row, kept in enumerate(rows):
            _draw_row(axes, -1.9 * row, kept, number)
        axes.set_xlim(-6.2, 33.4)
        axes.set_ylim(1.3 - 1.9 * len(rows), 1.3)
        axes.axis("off")
        plots.title(figure, f"{number:g}, bit by bit", [label])
    return plots.described(figure, "; ".join(f"{r.dtype}: {r.bits} = {r.value:.9g}" for r in rows))


def _draw_row(axes, y: float, kept: Stored, number: float) -> None:
    from matplotlib.patches import Rectangle

    from metallab import plots

    parts = [("sign", kept.sign, plots.RED), ("exponent", kept.exponent, plots.ORANGE)]
    start = 0
    axes.text(-0.4, y + 0.4, kept.dtype, ha="right", va="center")
    for name, bits, colour in [*parts, ("fraction", kept.fraction, plots.SKY)]:
        for position, bit in enumerate(bits, start):
            axes.add_patch(Rectangle((position, y), 1, 0.8, facecolor=colour, alpha=0.55, edgecolor="white"))
            axes.text(position + 0.5, y + 0.4, bit, ha="center", va="center", fontsize=9, family="monospace")
        text = name if len(bits) == 1 else f"{len(bits)} {name} bits"
        axes.text(start, y + 0.95, text, fontsize=8, va="bottom")
        start += len(bits) + (name == "sign")  # a gap, where its name needs room
    off = "exact" if kept.value == number else f"relative error {abs(kept.value - number) / abs(number or 1):.2g}"
    axes.text(0, y - 0.1, f"= {kept.value:.9g}, {off}", fontsize=9, va="top")


def cast_errors(dtype: torch.dtype, device: torch.device | str, powers: Sequence[int]) -> np.ndarray:
    """The largest relative error of a cast, for 33 numbers from each power of two up to the next.

    1 where numbers become 0, infinite where they become infinite. The cast to a small format is from float32, on the
    device; that to float32 is from float64, on the CPU, since not every device has float64.
    """
    exact = torch.linspace(1, 1.98, 33, dtype=torch.float64) * 2.0 ** torch.tensor(list(powers))[:, None]
    cast = exact.float().to(device).to(dtype).cpu().double()
    return ((cast - exact).abs() / exact).amax(dim=1).numpy()


def draw_cast_errors(*, device: torch.device | str, label: str) -> Figure:
    """How much of a number each format loses, over its size: flat where it is at home, rising where it underflows."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter

    from metallab import plots

    powers = range(-48, 41)
    sentences = []
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 3.2))
        for dtype, colour, style in zip(FORMATS, plots.COLOURS, ("-", "--", ":"), strict=False):
            errors = cast_errors(dtype, device, powers)
            finite = np.isfinite(errors)
            name = units.dtype_name(dtype)
            kept = np.array(powers)[finite]
            axes.plot(kept, errors[finite], style, color=colour, label=name, linewidth=2)
            if not finite.all():
                end = (math.log2(torch.finfo(dtype).max), errors[finite][-1])
                axes.plot(*end, "x", color=colour, markersize=9, markeredgewidth=2)
                axes.annotate("beyond: infinity", end, xytext=(6, 6), textcoords="offset points", fontsize=9)
            sentences.append(f"{name}: relative error {errors[powers.index(0)]:.2g} near 1")
        axes.set_yscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda power, _: f"$2^{{{power:.0f}}}$"))
        axes.set_xlabel("size of the number")
        axes.set_ylabel("worst relative error (1: all lost)")
        axes.legend(loc="center left")
        plots.title(figure, "What a cast loses", [label])
    return plots.described(figure, "; ".join(sentences))


# --- what autocast chooses -----------------------------------------------------------------------------------------

AutocastChoice = Literal["low", "float32", "as given", "both", "raises"]


def _weights(like: Tensor, *shape: int) -> Tensor:
    """Weights as a model holds them: in float32, whatever its inputs are in."""
    return torch.ones(shape, device=like.device)


def _classes(like: Tensor) -> Tensor:
    return torch.zeros(len(like), dtype=torch.long, device=like.device)


TRIED: Mapping[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: F.linear(x, _weights(x, 8, x.shape[-1])),
    "matmul": lambda x: x @ x,
    "conv2d": lambda x: F.conv2d(x, _weights(x, 8, x.shape[1], 3, 3)),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "relu": F.relu,
    "add": lambda x: x + x,
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "softmax": lambda x: x.softmax(-1),
    "exp": torch.exp,
    "sum": torch.sum,
    "mean": torch.mean,
    "norm": lambda x: torch.linalg.vector_norm(x),
    "cross_entropy": lambda x: F.cross_entropy(x.flatten(1), _classes(x)),
    "mse_loss": lambda x: F.mse_loss(x, x),
}
"""Functions of a picture (n, c, h, w) with h = w. What autocast makes of each is not written down here: `choices`."""


def choices(device: str, dtype: torch.dtype = torch.float16, size: int = 4) -> dict[str, AutocastChoice]:
    """In which dtype each of `TRIED` computes under ``torch.autocast(device, dtype)``, given float32 and given dtype.

    ``low`` and ``float32`` if that is so for either, ``as given`` if it depends, ``both`` if it is made of operators of
    which some do this and some do that. Inside a `FakeTensorMode` nothing is computed, and the device need not be
    there. ValueError where autocast is not to be had, as for a GPU that is not there outside of that mode.
    """
    with torch.autocast(device, dtype=dtype):
        if not torch.is_autocast_enabled(device):
            raise ValueError(
                f"PyTorch {torch.__version__} has no autocast for {device!r} on this machine, or not in {dtype}"
            )
        return {name: _choice(function, device, dtype, size) for name, function in TRIED.items()}


def _choice(function: Callable[[Tensor], Tensor], device: str, low: torch.dtype, size: int) -> AutocastChoice:
    used = []
    for given in (torch.float32, low):
        try:
            used.append(formats(function, torch.ones(2, 4, size, size, dtype=given, device=device)))
        except (RuntimeError, TypeError):  # no kernel for this dtype on this device
            return "raises"
    names = {frozenset({torch.float32}): "float32", frozenset({low}): "low"}
    first, second = (names.get(each, "both") for each in used)
    if first == second:
        return first
    return "as given" if (first, second) == ("float32", "low") else "both"


def compare_lists(*devices: str) -> Styler:
    """The `choices` for kinds of device, such as ``"cpu"`` and ``"mps"``: a column each, coloured.

    A device that is not there is asked with fake tensors, which have a shape and no numbers. What cannot be asked that
    way is ``not known here``. ValueError as `choices`.

    >>> compare_lists("cpu", "mps").data.loc["softmax"].tolist()
    ['as given', 'float32']
    """
    import pandas as pd

    colours = {"low": "background: #cfe8f7; color: black", "float32": "background: #fbe3b5; color: black"}
    table = pd.DataFrame({device: _choices_anywhere(device) for device in devices})
    return table.style.map(lambda choice: colours.get(choice, ""))


def _choices_anywhere(device: str) -> dict[str, str]:
    if device == "cpu" or getattr(torch, device).is_available():
        return dict(choices(device, torch.get_autocast_dtype(device)))
    with torch._subclasses.FakeTensorMode():
        chosen = choices(device, torch.get_autocast_dtype(device))
    return {name: "not known here" if choice == "raises" else choice for name, choice in chosen.items()}


def formats(compute: Callable[..., object], *inputs: Tensor) -> frozenset[torch.dtype]:
    """The dtypes in which the operators of a call compute: casts and views do not compute."""
    seen: set[torch.dtype] = set()

    def see(function, args: tuple, kwargs: dict):
        result = function(*args, **kwargs)
        given, made = _first_floating(args), _first_floating(result)
        moves = function.is_view or function._schema.name == "aten::_to_copy"
        if given is not None and made is not None and not moves:
            # a sum of float16 that is asked for a float32 result adds up in float32
            seen.add(torch.promote_types(given.dtype, made.dtype))
        return result

    with watching(see):
        compute(*inputs)
    return frozenset(seen)


def _first_floating(values: object) -> Tensor | None:
    leaves = torch.utils._pytree.tree_leaves(values)
    return next((leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()), None)


# --- gradients -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _each_gradient(model: nn.Module, look: Callable[[Tensor], Tensor | None]) -> Iterator[None]:
    """While the block runs: show ``look`` the gradient of each layer's output and of each weight.

    What it returns, if anything, takes the gradient's place.
    """

    def watch(_module: nn.Module, _inputs: tuple, output: object) -> None:
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(look)

    layers = [module for module in model.modules() if next(module.children(), None) is None]
    handles = [layer.register_forward_hook(watch) for layer in layers]
    handles += [weight.register_hook(look) for weight in model.parameters() if weight.requires_grad]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def gradient_sizes(model: nn.Module, loss: Callable[[], Tensor]) -> Tensor:
    """Absolute gradients of ``loss()`` with respect to each layer's output and each weight: float32 (n,), on the CPU.

    Those that are exactly 0, as behind a ReLU, are left out. The weights' ``grad`` is cleared. ValueError if ``loss()``
    depends on nothing in the model.
    """
    seen: list[Tensor] = []

    def look(gradient: Tensor) -> None:
        seen.append(gradient.detach().flatten().float().abs().cpu())

    with _each_gradient(model, look):
        loss().backward()
    model.zero_grad(set_to_none=True)
    if not seen:
        raise ValueError("no gradient reaches the model: compute loss() with it, and with weights that want gradients")
    sizes = torch.cat(seen)
    return sizes[sizes != 0]


@contextlib.contextmanager
def gradients_rounded(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """While the block runs, gradients pass through a dtype at each layer's output and each weight.

    They overflow and vanish as they would if the layers computed in it, on hardware that is slow at that.
    """

    def rounded(gradient: Tensor) -> Tensor:
        return gradient.to(dtype).to(gradient.dtype)

    with _each_gradient(model, rounded):
        yield


def cast_outcome(sizes: Tensor, dtype: torch.dtype, scale: float = 1.0) -> str:
    """Cast positive numbers, times a scale, to a dtype, and report the shares that vanish, lose bits, or overflow.

    >>> cast_outcome(torch.tensor([1.0, 1e-9, 1e-6, 1e6]), torch.float16)
    '25.0% become 0, 25.0% are subnormal, 25.0% overflow'
    """
    cast = (sizes * scale).to(dtype).float()
    subnormal = (cast > 0) & (cast < torch.finfo(dtype).smallest_normal)
    shares = (hit.float().mean().item() for hit in (cast == 0, subnormal, cast.isinf()))
    return "{:.1%} become 0, {:.1%} are subnormal, {:.1%} overflow".format(*shares)


def draw_gradients(sizes: Tensor, scale: float, *, dtype: torch.dtype = torch.float16, label: str) -> Figure:
    """How large gradients are, as they are and times a scale, before the range of a dtype."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter

    from metallab import plots

    info, name = torch.finfo(dtype), units.dtype_name(dtype)
    edges = [math.log2(info.smallest_normal * info.eps / 2), math.log2(info.smallest_normal), math.log2(info.max)]
    powers = sizes.log2().numpy()
    shift = math.log2(scale)
    low, high = min(powers.min(), edges[0]) - 2, max(powers.max() + shift, edges[2]) + 2
    bins = np.arange(math.floor(low), math.ceil(high) + 1)
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 3.4))
        zones = [("becomes 0", low, edges[0], plots.RED), ("fewer bits", edges[0], edges[1], plots.YELLOW)]
        for words, start, end, colour in [*zones, ("infinite", edges[2], high, plots.PURPLE)]:
            axes.axvspan(start, end, color=colour, alpha=0.25, linewidth=0, label=f"{words} in {name}")
        share = np.full(len(powers), 100 / len(powers))
        axes.hist(powers, bins, weights=share, color=plots.BLUE, alpha=0.75, label="gradients")
        scaled = {"histtype": "step", "color": plots.BLACK, "linewidth": 1.6, "label": f"gradients of {scale:g} x loss"}
        axes.hist(powers + shift, bins, weights=share, **scaled)
        axes.set_xlim(low, high)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda power, _: f"$2^{{{power:.0f}}}$"))
        axes.set_xlabel("size of a gradient")
        axes.set_ylabel("share of gradients [%]")
        figure.legend(loc="outside lower center", ncols=3, fontsize=8)
        plots.title(figure, f"Gradients and the range of {name}", [label])
    description = f"as they are: {cast_outcome(sizes, dtype)}; times {scale:g}: {cast_outcome(sizes, dtype, scale)}"
    return plots.described(figure, f"{len(powers)} gradients in {name}; {description}")


def kept_for_backward(model: nn.Module, loss: Callable[[], Tensor]) -> int:
    """Bytes that computing ``loss()`` keeps for its backward pass, without the model's own weights and buffers.

    Each piece of memory counts once. An exact count on any device; what an operator takes for itself meanwhile is not
    in it.
    """
    own = {_storage(tensor) for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[_storage(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        graph = loss()  # holds on to all of it, so that no memory is used twice
        total = sum(size for storage, size in kept.items() if storage not in own)
        del graph
    return total


def kept_in_formats(model: nn.Module, loss: Callable[[nn.Module, torch.dtype], Tensor]) -> dict[str, int]:
    """Bytes that ``loss(model, dtype)`` keeps in each of `FORMATS`, counted as `kept_for_backward` does.

    >>> kept_in_formats(model, loss)
    {'float32': 19099648, 'float16': 9549824, 'bfloat16': 9549824}
    """
    return {
        units.dtype_name(dtype): kept_for_backward(model, functools.partial(loss, model, dtype)) for dtype in FORMATS
    }


def _storage(tensor: Tensor) -> int:
    """Which piece of memory: also on the ``meta`` device, where none has an address."""
    return tensor.untyped_storage()._cdata


# --- training and quality ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """Pictures (n, 1, 8, 8) in float32 and their classes (n,), to train on and to test with, on one device."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def digits(device: torch.device | str = "cpu") -> Data:
    """Real handwritten digits, which come with scikit-learn: 1257 to train on, the last 540 of the 1797 for the test.

    >>> images, labels = digits().train
    >>> tuple(images.shape), labels[:3].tolist()
    ((1257, 1, 8, 8), [0, 1, 2])
    """
    # its load_digits reads the same file, but to import it takes a second
    file = importlib.metadata.distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = np.loadtxt(file, np.float32, delimiter=",")
    images = torch.tensor(rows[:, :-1] / 16).reshape(-1, 1, 8, 8).to(device)  # 0 to 16 in the file
    labels = torch.tensor(rows[:, -1]).long().to(device)
    return Data((images[:1257], labels[:1257]), (images[1257:], labels[1257:]))


Step = Callable[[Tensor, Tensor], Tensor]
"""One step of training on pictures and classes: changes the model, returns the loss."""
Start = Callable[[nn.Module, torch.dtype], tuple[Step, torch.optim.Optimizer]]
"""Makes the steps of a training, and their optimizer, for a model and the dtype to compute in."""


def start_without_scaler(
    model: nn.Module, _dtype: torch.dtype, *, scale: float = 2.0**-16, rate: float = 3e-3
) -> tuple[Step, torch.optim.Optimizer]:
    """A `Start` with a fault: float16 training without a `torch.amp.GradScaler`, where gradients have become small.

    Cross-entropy times ``scale`` goes backward through gradients that are rounded to float16 at each layer's output and
    weight; what is left is divided by ``scale`` again. All else is float32, where so small a loss does no harm.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)

    def step(images: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        with gradients_rounded(model, torch.float16):
            loss = F.cross_entropy(model(images), labels)
            (loss * scale).backward()
        for weight in model.parameters():
            weight.grad /= scale
        optimizer.step()
        return loss.detach()

    return step, optimizer


def train_in_turns(
    kinds: Mapping[str, tuple[Start, torch.dtype]],
    build: Callable[[], nn.Module],
    data: Data,
    *,
    seeds: int,
    epochs: int,
    seconds: float,
    batch: int = 64,
    clock: Callable[[], float] = time.perf_counter,
) -> Trainings:
    """Train each kind, a start and its dtype, from the same seeds, and test it under autocast to that dtype.

    A seed decides the first weights and the order of the pictures, whatever the kind, so that runs are paired. The
    learning rate falls in a line from the optimizer's own to 0, which makes the end depend less on the last batches.
    On a CPU they have one thread: more gain nothing with small networks, and lose much where other programs run. The
    caller's random state stays as it was. ValueError as `metallab.quality.assert_trainable`.

    >>> trained = train_in_turns({"float32": (start, torch.float32)}, build, digits(), seeds=7, epochs=4, seconds=20)
    >>> trained
    float32: 91.9% recognised (median of 7 seeds, 90.6% to 93.3%)
    Nothing was left out for time.
    """
    quality.assert_trainable(len(data.train[0]), seeds=seeds, epochs=epochs, batch=batch)

    def run(name: str, seed: int) -> quality.Run:
        start, dtype = kinds[name]
        return _trained(build, start, dtype, data, seed, epochs, batch)

    with devices.cpu(threads=1).active():
        return quality.train_in_turns(kinds, run, seeds=seeds, seconds=seconds, clock=clock)


def _trained(
    build: Callable[[], nn.Module], start: Start, dtype: torch.dtype, data: Data, seed: int, epochs: int, batch: int
) -> quality.Run:
    model = _first_model(build, seed, data.train[0].device)
    step, optimizer = start(model, dtype)
    return _run(step, optimizer, data.train, seed, epochs, batch), _accuracy(model, dtype, data.test)


def _first_model(build: Callable[[], nn.Module], seed: int, device: torch.device) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return build().to(device)


def _run(step: Step, optimizer, train: tuple[Tensor, Tensor], seed: int, epochs: int, batch: int) -> list[float]:
    """The mean loss of each epoch."""
    images, classes = train
    generator, means, done = torch.Generator().manual_seed(seed), [], 0
    rates = [group["lr"] for group in optimizer.param_groups]
    batches = len(images) // batch
    for _ in range(epochs):
        order = torch.randperm(len(images), generator=generator)[: batches * batch].reshape(batches, batch)
        losses = []
        for chosen in order.to(images.device):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * (1 - done / (epochs * batches))
            losses.append(step(images[chosen], classes[chosen]))
            done += 1
        means.append(torch.stack(losses).mean().item())
    return means


def _accuracy(model: nn.Module, dtype: torch.dtype, test: tuple[Tensor, Tensor]) -> float:
    images, classes = test
    model.eval()
    with torch.no_grad(), torch.autocast(images.device.type, dtype=dtype, enabled=dtype != torch.float32):
        return (model(images).argmax(dim=1) == classes).float().mean().item()


def pictures_for(on: Device) -> int:
    """How many pictures of 32 x 32 pixels give a device enough to do in a step: a GPU many, a CPU few."""
    few = on.kind == "cpu" or on.simulated
    return mode.by_mode(full=16 if few else 1024, fast=2)


class Stepped(NamedTuple):
    """What came of some training steps."""

    weights: Tensor
    """Of the linear layer, (10, 64), on the CPU."""
    losses: list
    """What the steps returned."""
    formats: set[torch.dtype]
    """What the layer computed in."""


def after(step: Callable[..., object], batches: Sequence[tuple[Tensor, Tensor]]) -> Stepped | EllipsisType:
    """A linear layer after ``step(model, images, labels, optimizer, scaler)`` on each batch.

    The first weights, the optimizer (SGD with a learning rate of 1) and the scaler (at 1/4) are always the
    same, so that two ways to write a step can be compared. ``...`` as soon as a step returns that: not written yet.
    """
    device = batches[0][0].device
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    # below 1, so that gradients that were not cleared, and are no longer scaled, weigh much beside the new ones
    scaler = torch.amp.GradScaler(device.type, init_scale=0.25)
    formats, losses = set(), []
    model.register_forward_hook(lambda _, inputs, outputs: formats.add(outputs.dtype))
    for images, labels in batches:
        losses.append(step(model, images, labels, optimizer, scaler))
        if losses[-1] is ...:
            return ...
    return Stepped(model[1].weight.detach().cpu(), losses, formats)
