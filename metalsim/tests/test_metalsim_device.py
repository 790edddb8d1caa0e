"""The simulated mps device of torch.

Its checks are functions of this file that run in a child (children.py). What needs no device is tested right here.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import os
import pickle
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from multiprocessing import reduction
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "metalsim" / "src"
CHILD = __name__ == "__main__"

import children  # noqa: E402

import metalsim  # noqa: E402

if CHILD:
    metalsim.install_with_torch()

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import refused  # noqa: E402
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import training  # noqa: E402
from releases import since  # noqa: E402
from torch import nn  # noqa: E402
from without_kernel import WITHOUT_KERNEL  # noqa: E402

from metalsim import building, device, preload  # noqa: E402

plain, with_fallback = (
    children.Session(lambda: child("plain")),
    children.Session(lambda: child("fallback")),
)
SESSIONS = {"plain": plain, "fallback": with_fallback}


# ---- in the child: programs -----------------------------------------------------------------------------------------


@plain
def test_a_tensor_is_made_on_the_device():
    x = torch.arange(12.0, device="mps")
    assert x.device == torch.device("mps:0")
    assert x.is_mps
    assert x.dtype == torch.float32


VIEWS = {
    "t": lambda t: t.t(),
    "rows and steps": lambda t: t[1:, ::2],
    "column": lambda t: t[:, 1],
    "expand": lambda t: t.expand(2, 3, 4),
    "unfold": lambda t: t.unfold(1, 2, 1),
    "as_strided": lambda t: t.as_strided((2, 2), (1, 3), 1),
    "reshape": lambda t: t.t().reshape(2, 6),
    "contiguous": lambda t: t.t().contiguous(),
    "detach": lambda t: t.detach(),
    "squeeze": lambda t: t.unsqueeze(0).squeeze(0),
    "flatten": lambda t: t.flatten(),
    "chunk": lambda t: t.chunk(2)[1],
    "view of a transpose": lambda t: t.transpose(0, 1).view(4, 3),
    "diagonal": lambda t: t.diagonal(),
    "another dtype": lambda t: t.view(torch.int32),
    "alias": lambda t: torch.ops.aten.alias(t),
    "movedim": lambda t: t.movedim(0, 1),
    "narrow": lambda t: t.narrow(1, 1, 2),
}


@plain.cases(VIEWS)
def test_a_view_is_that_of_the_cpu_with_its_strides_and_its_offset(view):
    viewed = view(torch.arange(12.0, device="mps").view(3, 4))
    expected = view(torch.arange(12.0).view(3, 4))
    assert viewed.device.type == "mps"
    assert viewed.stride() == expected.stride()
    assert viewed.storage_offset() == expected.storage_offset()
    assert torch.equal(viewed.cpu(), expected)


def written_through_views(device: str) -> torch.Tensor:
    """Return a tensor that was written through several views of it."""
    x = torch.zeros(4, 4, device=device)
    x[1:3, ::2] = 5
    x.t()[0] += 1
    x.view(-1)[15] = 7
    x[x > 4] *= 2
    return x


@plain
def test_writing_through_a_view_shows_in_the_tensor():
    assert torch.equal(written_through_views("mps").cpu(), written_through_views("cpu"))


@plain
def test_a_tensor_that_grows_keeps_its_values():
    x = written_through_views("mps")
    before = x.flatten().tolist()
    x.resize_(5, 5)
    assert x.view(-1)[:16].tolist() == before


OVERLAPPING = {
    "an expanded view": lambda x: x[0].expand(3, 4).add_(1),
    "a result beside its input": lambda x: torch.add(x.view(-1)[:-1], 1, out=x.view(-1)[1:]),
}


@plain.cases(OVERLAPPING)
def test_writing_where_memory_overlaps_is_refused(write):
    with pytest.raises(RuntimeError, match="single memory location"):
        write(torch.zeros(4, 4, device="mps"))


DEPENDS_ON_DATA = {
    "nonzero": (lambda x: x.nonzero().flatten(), [0, 1, 3, 4]),
    "mask": (lambda x: x[x > 0], [3, 2]),
    "masked_select": (lambda x: torch.masked_select(x, x < 0), [-1, -1]),
    "unique": (torch.unique, [-1, 0, 2, 3]),
    "topk": (lambda x: x.topk(2).values, [3, 2]),
    "cumsum": (lambda x: x.cumsum(0), [3, 2, 2, 4, 3]),
    "indices on the CPU": (lambda x: x[torch.tensor([0, 1])], [3, -1]),
}


@plain.cases(DEPENDS_ON_DATA)
def test_values_and_shapes_that_depend_on_data(case):
    function, expected = case
    x = torch.tensor([3.0, -1.0, 0.0, 2.0, -1.0], device="mps")
    assert function(x).tolist() == expected


@plain
def test_a_spectrum_is_complex_and_on_the_device():
    x = torch.tensor([3.0, -1.0, 0.0, 2.0, -1.0])
    spectrum = torch.fft.rfft(x.to("mps"))
    assert spectrum.dtype == torch.complex64
    assert spectrum.device.type == "mps"
    assert torch.equal(spectrum.conj().cpu(), torch.fft.rfft(x).conj())


@plain
def test_values_with_one_index_add_up():
    x, places = torch.tensor([3.0, -1.0], device="mps"), torch.tensor([0, 0], device="mps")
    x.index_put_((places,), torch.ones(2, device="mps"), accumulate=True)
    assert x.tolist() == [5, -1]


@plain
def test_a_storage_is_made_of_a_size():
    assert torch.UntypedStorage(5, device="mps").nbytes() == 5
    assert torch.UntypedStorage(size=5, device="mps").nbytes() == 5


@plain
def test_a_storage_is_made_of_bytes():
    assert torch.UntypedStorage([1, 2, 255], device="mps").cpu().tolist() == [1, 2, 255]


@plain
def test_a_storage_grows_with_a_tensor_that_is_set_over_it():
    x = torch.tensor([1.0, 2.0], device="mps")
    y = torch.empty(0, device="mps").set_(x.untyped_storage(), 1, (2, 2), (2, 1))
    assert y[0, 0].item() == 2
    assert y.isnan().sum().item() == 3, "nobody wrote the rest"
    y.fill_(7)
    assert x.tolist() == [1, 7]


@plain
def test_a_storage_of_the_cpu_is_refused_for_a_tensor_of_the_device():
    x = torch.zeros(2, device="mps")
    with pytest.raises(RuntimeError, match="different device"):
        x.set_(torch.zeros(9).untyped_storage(), 0, (9,))


@plain
def test_memory_that_nobody_wrote_is_nan():
    assert torch.empty(1000, device="mps").isnan().all()
    assert torch.empty_strided((3, 4), (1, 3), device="mps", dtype=torch.float16).isnan().all()
    assert torch.ones(2, device="mps").resize_(1000)[2:].isnan().all()


@contextlib.contextmanager
def deterministic(**settings: bool):
    """Ask for deterministic algorithms."""
    torch.use_deterministic_algorithms(True, **settings)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


WHOLE = torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.bool
DTYPES = {
    str(dtype): dtype
    for dtype in (*WHOLE, torch.float32, torch.float16, torch.bfloat16, torch.complex64)
}
UNWRITTEN = {
    "empty": torch.empty,
    "with gaps": lambda n, **how: torch.empty_strided((n,), (2,), **how),
    "grown": lambda n, **how: torch.ones(n, **how).resize_(2 * n),
}
"""How memory comes about that nobody writes."""


@plain.cases(UNWRITTEN)
def test_deterministic_memory_is_what_it_is_on_the_cpu(make):
    with deterministic():
        there = {name: str(make(2, dtype=d, device="mps").tolist()) for name, d in DTYPES.items()}
        here = {name: str(make(2, dtype=d).tolist()) for name, d in DTYPES.items()}
    assert there == here, (there, here)


@since("2.13", "asking a storage whether it is pinned")
@plain
def test_pinned_memory_is_known_as_such():
    pinned = torch.ones(3).pin_memory()
    tensors = pinned, pinned[1:], torch.empty(3, pin_memory=True), pinned.untyped_storage()
    assert [each.is_pinned() for each in tensors] == [True] * 4
    assert pinned.device.type == "cpu"
    assert pinned.tolist() == [1, 1, 1]


@since("2.13", "asking a storage whether it is pinned")
@plain
def test_other_memory_is_not_called_pinned():
    tensors = torch.ones(3), torch.ones(3).pin_memory().clone(), torch.ones(3, device="mps")
    assert [each.is_pinned() for each in tensors] == [False] * 3


def cnn() -> nn.Sequential:
    """Return a network for pictures of 8 x 8, with each of the layers that such networks are made of."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.GroupNorm(2, 8),
        nn.Softshrink(),
        nn.Dropout(0.2),
        nn.ConvTranspose2d(8, 4, 2),
        nn.Flatten(),
        nn.Linear(36, 10),
    )


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.1)
        self.embed, self.encode = nn.Embedding(50, 32), nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(32, 10)

    def forward(self, tokens):
        return self.head(self.encode(self.embed(tokens)).mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind) -> None:
        super().__init__()
        self.steps = kind(6, 16, 2, batch_first=True, dropout=0.1, bidirectional=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.steps(x)[0][:, -1])


def data(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs for a model of `MODELS`, on the CPU, with a class for each: the same ones in each call."""
    generator = torch.Generator().manual_seed(1)
    if name == "transformer":
        return torch.randint(50, (8, 12), generator=generator), torch.randint(
            10, (8,), generator=generator
        )
    shape = (16, 1, 8, 8) if name == "cnn" else (8, 12, 6)
    return torch.randn(shape, generator=generator), torch.randint(
        10, shape[:1], generator=generator
    )


MODELS = {
    "cnn": cnn, "transformer": Transformer,
    "lstm": lambda: Recurrent(nn.LSTM), "gru": lambda: Recurrent(nn.GRU),
}  # fmt: skip
ADAMW = functools.partial(torch.optim.AdamW, lr=1e-2)


@functools.cache
def curve(
    name: str, device: str, optimiser: Callable = ADAMW, dtype: torch.dtype | None = None
) -> list[float]:
    """Return the losses of a short training, under autocast to a dtype if one is named.

    Attention is computed by its plain formula, as on MPS. So that two devices can be compared, weights are drawn on the
    CPU, and dropout draws from a seed that is set behind them.
    """
    torch.manual_seed(0)
    model = MODELS[name]().to(device)
    x, y = (tensor.to(device) for tensor in data(name))
    torch.manual_seed(1)
    low = torch.autocast(device, dtype=dtype) if dtype else contextlib.nullcontext()

    def loss() -> torch.Tensor:
        with low, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return F.cross_entropy(model(x), y)

    return training.losses(loss, optimiser(model.parameters()), 5)


def most_apart(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


@since("2.13", "a gradient of GroupNorm")
@plain.cases({name: name for name in ("cnn", "transformer", "lstm")})
def test_a_training_curve_is_the_cpus_to_the_last_bit(name):
    assert curve(name, "mps") == curve(name, "cpu")


@since("2.13", "a gradient of GroupNorm")
@plain
def test_the_training_curve_of_a_gru_is_the_cpus_but_for_rounding():
    assert most_apart(curve("gru", "mps"), curve("gru", "cpu")) < 1e-6


@since("2.13", "a gradient of GroupNorm")
@plain.cases({name: name for name in MODELS})
def test_a_model_learns_on_the_device(name):
    losses = curve(name, "mps")
    assert losses[-1] < losses[0]


@since("2.13", "a gradient of GroupNorm")
@plain.cases(
    {
        f"{name} in {dtype}": (name, dtype)
        for name in ("cnn", "transformer")
        for dtype in (torch.float16, torch.bfloat16)
    }
)
def test_a_training_curve_is_close_under_autocast(case):
    name, dtype = case
    low = curve(name, "mps", dtype=dtype)
    assert low != curve(name, "cpu"), "autocast changed nothing"
    assert most_apart(low, curve(name, "cpu")) < 0.02


OPTIMISERS = {
    "momentum": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "fused SGD": functools.partial(torch.optim.SGD, lr=0.1, fused=True),
    "Adam for all at once": functools.partial(torch.optim.Adam, lr=1e-2, foreach=True),
    "Adam one by one": functools.partial(torch.optim.Adam, lr=1e-2, foreach=False),
    "fused AdamW": functools.partial(torch.optim.AdamW, lr=1e-2, fused=True),
    "RMSprop": functools.partial(torch.optim.RMSprop, lr=1e-3),
}


@since("2.13", "a gradient of GroupNorm")
@plain.cases(OPTIMISERS)
def test_an_optimiser_takes_its_steps(make):
    assert curve("cnn", "mps", make) == curve("cnn", "cpu", make)


LOW = {
    "product": lambda x: x @ x,
    "linear": lambda x: F.linear(x, x),
    "convolution": lambda x: F.conv1d(x[None], x[:, :, None]),
}
HIGH = {"softmax": lambda x: (x @ x).softmax(0), "exponential": lambda x: (x @ x).exp()}
HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@plain.cases(HALVES)
def test_under_autocast_products_are_in_half_precision_and_exponentials_in_float32(dtype):
    x = torch.randn(4, 4, device="mps")
    with torch.autocast("mps", dtype=dtype):
        dtypes = {name: function(x).dtype for name, function in (LOW | HIGH).items()}
    assert dtypes == dict.fromkeys(LOW, dtype) | dict.fromkeys(HIGH, torch.float32)


@plain
def test_autocast_is_available_on_the_device():
    assert torch.amp.autocast_mode.is_autocast_available("mps")


def attend_to_itself(q: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, q, q)


class BilinearOfOne(nn.Bilinear):
    def forward(self, x):
        return super().forward(x, x)


class AttentionToItself(nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x)[0]


LISTED = {
    "linear": lambda: nn.Linear(8, 4),
    "LSTM": lambda: nn.LSTM(8, 6, 2),
    "GRU": lambda: nn.GRU(8, 6),
    "convolution": lambda: nn.Conv1d(5, 4, 3),
    "encoder": lambda: nn.TransformerEncoderLayer(8, 2, 16),
    "bilinear": lambda: BilinearOfOne(8, 8, 4),
    "multihead attention": lambda: AttentionToItself(8, 2),
    "einsum": lambda: lambda x: torch.einsum("abc,dbc->ad", x, x),
    "attention": lambda: attend_to_itself,
}
"""What autocast lists, on the CPU at least."""


def values_and_gradient(run: Callable, given: torch.Tensor) -> list[torch.Tensor]:
    """Return values without and with a gradient, which choose other operators, and the gradient."""
    leaf = given.clone().requires_grad_()
    with torch.no_grad():
        alone = run(given)
    y = run(leaf)
    if isinstance(y, tuple):
        alone, y = alone[0], y[0]
    return [alone, y.detach(), *torch.autograd.grad(y.square().sum(), leaf)]


@plain.cases(LISTED)
def test_autocast_of_the_cpu_leaves_the_device_alone(make):
    """Within it values and gradients of the device are what they are without it, and in float32."""
    torch.manual_seed(0)
    run = make()
    if isinstance(run, nn.Module):
        run = run.to("mps").eval()
    shape = (2, 2, 6, 8) if run is attend_to_itself else (3, 5, 8)
    x = torch.randn(shape, device="mps")

    expected = values_and_gradient(run, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = values_and_gradient(run, x)

    assert [value.dtype for value in values] == [torch.float32] * 3
    assert all(map(torch.equal, values, expected))


def step_scaled(model: nn.Module, scaler: torch.amp.GradScaler, inputs: torch.Tensor) -> None:
    """Take one step of SGD with scaled gradients."""
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    scaler.scale(model(inputs).sum()).backward()
    scaler.step(optimiser)
    scaler.update()


@plain
def test_a_gradient_scaler_skips_what_overflowed_and_halves_its_scale():
    model, scaler = nn.Linear(3, 1).to("mps"), torch.amp.GradScaler("mps", init_scale=4.0)
    before = model.weight.detach().clone()
    step_scaled(model, scaler, torch.full((2, 3), float("inf"), device="mps"))
    assert torch.equal(model.weight, before)
    assert scaler.get_scale() == 2.0


@plain
def test_a_gradient_scaler_takes_a_step_that_does_not_depend_on_its_scale():
    model, scaler = nn.Linear(3, 1).to("mps"), torch.amp.GradScaler("mps", init_scale=4.0)
    before = model.weight.detach().clone()
    step_scaled(model, scaler, torch.ones(2, 3, device="mps"))
    assert torch.allclose(model.weight, before - 0.2)


LOCATIONS = {"where they were": (None, "mps"), "the cpu": ("cpu", "cpu"), "mps": ("mps", "mps")}


@plain.cases(LOCATIONS)
def test_a_model_is_loaded_where_that_is_asked_for(case):
    location, expected = case
    model = nn.Linear(3, 2).to("mps")
    state = saved(model.state_dict(), location)
    fresh = nn.Linear(3, 2).to("mps")
    fresh.load_state_dict(state)
    assert state["weight"].device.type == expected
    assert torch.equal(fresh.weight, model.weight)


@plain.cases(LOCATIONS)
def test_tensors_that_share_a_storage_share_one_when_they_are_loaded(case):
    location, expected = case
    tensor = torch.arange(10.0, device="mps")
    loaded = saved({"view": tensor[3:7], "all": tensor}, location)
    assert loaded["view"].device.type == expected
    assert loaded["view"].tolist() == [3, 4, 5, 6]
    loaded["all"][3] = 9
    assert loaded["view"][0].item() == 9


@plain
def test_the_copy_of_a_model_has_weights_of_its_own():
    model = nn.Linear(3, 2).to("mps")
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.weight.zero_()
    assert model.weight.abs().sum() > 0


def saved(thing, location=None, **how):
    """What comes back of `torch.save` and `torch.load`."""
    file = io.BytesIO()
    torch.save(thing, file, **how)
    file.seek(0)
    return torch.load(file, map_location=location)


def saved_to_disk(thing, **how):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tensors.pt"
        torch.save(thing, path, **how)
        return torch.load(path)


OLD = {"_use_new_zipfile_serialization": False}
WAYS = {  # how a tensor leaves and comes back
    "pickle 2": lambda t: pickle.loads(pickle.dumps(t, 2)),
    "deepcopy": copy.deepcopy,
    "save": saved,
    "save, old format": lambda t: saved(t, **OLD),
    "save to disk": saved_to_disk,
    "load to the device": lambda t: saved(t, "mps") if t.is_mps else saved(t),
    "load to the cpu": lambda t: saved(t, "cpu").to(t.device),
    "from_dlpack": lambda t: torch.from_dlpack(t.detach()),
    "from_dlpack to the cpu": lambda t: torch.from_dlpack(t.detach(), device="cpu").to(t.device),
    "storage": lambda t: over(t, t.untyped_storage()),
    "storage to the cpu and back": lambda t: over(
        t, getattr(t.untyped_storage().cpu(), t.device.type)()
    ),
    "storage, pickled": lambda t: over(
        t, pickle.loads(pickle.dumps(t._typed_storage()))._untyped_storage
    ),
    "share_memory_": lambda t: t.detach().share_memory_(),
    "numpy by force": lambda t: torch.from_numpy(t.numpy(force=True)).to(t.device),
    "safetensors": lambda t: through_safetensors(t.resolve_conj().contiguous()),
    "TorchScript": lambda t: scripted_buffer(t.detach()),
}
KINDS = {  # what leaves
    "view": lambda t: t[3:7], "transposed": lambda t: t.view(2, 6).t(), "with steps": lambda t: t[1::3],
    "number": lambda t: t[5], "one for all": lambda t: t[4:5].expand(3, 2), "bfloat16": torch.Tensor.bfloat16,
    "bytes": lambda t: t.byte()[5:], "truth": lambda t: t > 4, "complex": lambda t: torch.complex(t, -t),
    "conjugate": lambda t: torch.complex(t, -t)[2:].conj(), "large": lambda t: t.repeat(1000)[17:],
    "needs a gradient": lambda t: t.clone().requires_grad_(), "parameter": lambda t: nn.Parameter(t[2:5]),
}  # fmt: skip


def over(tensor, storage):
    """A tensor like another one, over another storage."""
    made = torch.empty(0, dtype=tensor.dtype, device=storage.device)
    made.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    return made.conj() if tensor.is_conj() else made


def through_safetensors(tensor):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tensors.safetensors"
        safetensors.torch.save_file({"tensor": tensor}, path)
        return safetensors.torch.load_file(path, device=tensor.device.type)["tensor"]


def scripted_buffer(tensor):
    module = nn.Module()
    module.register_buffer("tensor", tensor)
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(module), file)
    file.seek(0)
    return torch.jit.load(file).tensor


def tried(way, tensor):
    """What a way gives of a tensor, or the kind of its error."""
    try:
        made = way(tensor)
    except Exception as error:  # noqa: BLE001 - which one it is is compared with the CPU's
        return type(error).__name__
    assert made.device.type == tensor.device.type
    return made.dtype, made.requires_grad, made.tolist()


def send_and_take_back(tensor: torch.Tensor) -> dict[str, Any]:
    """Return what each way gives of a tensor."""
    with warnings.catch_warnings(action="ignore"):  # TypedStorage and TorchScript are deprecated
        return {name: tried(way, tensor) for name, way in WAYS.items()}


@since("2.13", "one of these ways")
@plain.cases(KINDS)
def test_what_leaves_a_storage_and_comes_back_is_what_it_was(make):
    on_mps = send_and_take_back(make(torch.arange(12.0).to("mps")))
    on_cpu = send_and_take_back(make(torch.arange(12.0)))
    different = [name for name in WAYS if on_mps[name] != on_cpu[name]]
    assert not different, {name: (str(on_mps[name])[:300], on_cpu[name]) for name in different}


def pickled(thing):
    return pickle.loads(pickle.dumps(thing))


STRIDED = {name: WAYS[name] for name in ("pickle 2", "save", "save, old format", "from_dlpack")}


@plain.cases(STRIDED)
def test_strides_and_offsets_come_back(way):
    x = torch.arange(12.0, device="mps")
    made = way(x.view(3, 4)[1:, 1::2].t())
    assert made.stride() == (2, 4)
    assert made.storage_offset() == 5


@plain.cases({name: WAYS[name] for name in ("save", "save, old format")})
def test_a_storage_that_is_shared_comes_back_as_one(way):
    x = torch.arange(12.0, device="mps")
    whole, part = way([x, x[3:5]])
    whole[4] = 9
    assert part.tolist() == [3, 9]


@plain.cases({"pickled": pickled, "copied": copy.deepcopy})
def test_a_weight_of_two_layers_comes_back_as_one(way):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to("mps")
    model[1].weight = model[0].weight

    twin = way(model)

    assert twin[0].weight is twin[1].weight
    assert twin[0].weight is not model[0].weight
    assert torch.equal(twin[1].bias, model[1].bias)


@plain.cases(
    {"copied": copy.deepcopy, "pickled": pickled, "cloned": lambda each: each.clone_state()}
)
def test_a_generator_that_comes_back_draws_the_same_numbers(way):
    generator = torch.Generator("mps").manual_seed(3)
    torch.rand(5, device="mps", generator=generator)
    twin = way(generator)
    drawn = [torch.rand(4, device="mps", generator=each) for each in (generator, twin)]
    assert torch.equal(*drawn)


SHARING = {
    "DLPack": lambda x: torch.from_dlpack(x[2:5]),
    "storage": lambda x: over(x[2:5], x.untyped_storage()[:]),
}


@plain.cases(SHARING)
def test_dlpack_and_storages_share_memory(make):
    x = torch.arange(6.0, device="mps")
    alias = make(x)
    alias[1] = alias[1] + 10
    assert x.tolist() == [0, 1, 2, 13, 4, 5]


@plain
def test_the_beginning_of_a_storage_is_shared_and_does_not_grow():
    x = torch.arange(6.0, device="mps")
    first = torch.empty(0, device="mps").set_(x.untyped_storage()[:8])
    first += 1
    assert x.tolist() == [1, 2, 2, 3, 4, 5]
    assert first.untyped_storage().nbytes() == 8
    with pytest.raises(RuntimeError, match="not resizable"):
        first.resize_(3)


@plain
def test_memory_lives_as_long_as_who_shares_it():
    x = torch.arange(6.0, device="mps")
    alias, before = torch.from_dlpack(x), torch.mps.current_allocated_memory()
    del x
    assert alias.tolist() == [0, 1, 2, 3, 4, 5]
    del alias
    assert torch.mps.current_allocated_memory() == before - 24


MAC_CRASHES = "no MTLBuffer"  # here an error: there the pointer of a storage is an object, and so is nothing beside it
ONLY_CPU = "_share_filename_: only available on CPU"
OF_NUMPY = BufferError if np.lib.NumpyVersion(np.__version__) >= "2.5.0" else RuntimeError
"""What NumPy itself raises of a device that it does not know."""

REFUSED = {  # what raises, with the words
    "numpy": (lambda x: x.numpy(), TypeError, "can't convert mps:0 device type tensor to numpy"),
    "NumPy's from_dlpack": (np.from_dlpack, OF_NUMPY, "Unsupported device in DLTensor"),
    "part of a storage": (lambda x: x.untyped_storage()[4:8], RuntimeError, MAC_CRASHES),
    "resize": (lambda x: x.untyped_storage().resize_(80), RuntimeError, "unexpected device type mps"),
    "pin": (lambda x: x.pin_memory(), RuntimeError, "only dense CPU tensors can be pinned"),
    "queue": (lambda x: torch.multiprocessing.SimpleQueue().put(x), RuntimeError, ONLY_CPU),
    "from_file": (
        lambda x: torch.from_file(__file__, size=1, dtype=torch.uint8, device="mps"),
        NotImplementedError, "aten::from_file",
    ),
    "DLPack with a gradient": (lambda x: torch.from_dlpack(x.requires_grad_()), BufferError, "require gradient"),
    "out= beyond DLPack's memory": (
        lambda x: torch.add(x, 1, out=torch.from_dlpack(x[:2].clone())), RuntimeError, "not resizable",
    ),
}  # fmt: skip


@since("2.13", "one of these words")
@plain.cases(REFUSED)
def test_what_cannot_leave_the_device_raises(case):
    leave, kind, words = case
    error, text = raised(lambda: leave(torch.arange(10.0).to("mps")))
    assert error is kind, (error, text)
    assert words in text, text


@since("2.13", "sharing that leaves a device's memory where it is")
@plain
def test_a_storage_that_is_shared_stays_on_the_device():
    x = torch.arange(10.0).to("mps")
    assert x.untyped_storage().share_memory_().device.type == "mps"


@plain
def test_a_tensor_of_the_cpu_leaves_for_another_process():
    x = torch.arange(10.0)
    assert torch.equal(pickle.loads(reduction.ForkingPickler.dumps(x)), x)


def write_by_masks(y: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    y[mask] = 0.0
    y[1, mask[0]] = y[0, mask[1]]
    y[:, torch.tensor([1, 0], device=y.device)] += y[mask].sum()
    return torch.cat([y, y[:, 1:]], 1)[:, mask[0].nonzero()[0]]


def run_three_times(function: Callable, device: str) -> list[Any]:
    """Return its results; TorchScript rewrites what it has seen run."""
    y = torch.arange(6.0, device=device).view(2, 3)
    mask = torch.tensor([[True, False, True], [False, True, True]], device=device)
    return [function(y.clone(), mask).tolist() for _ in range(3)]


@plain
def test_masks_and_lists_index_as_on_the_cpu():
    assert run_three_times(write_by_masks, "mps") == run_three_times(write_by_masks, "cpu")


@plain
def test_torchscript_indexes_with_masks_and_lists():
    with warnings.catch_warnings(action="ignore"):  # TorchScript is deprecated
        scripted = torch.jit.script(write_by_masks)
        made = run_three_times(scripted, "mps")
    assert made == run_three_times(write_by_masks, "cpu")


class Squares(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.tensor(float(i)) ** 2


@plain
def test_a_data_loader_with_workers_feeds_the_device():
    torch.ones(3, device="mps").sum().item()  # the device is in use before the workers fork
    loader = torch.utils.data.DataLoader(Squares(), batch_size=5, num_workers=2)
    assert sum(batch.to("mps").sum().item() for batch in loader) == sum(i**2 for i in range(20))


class OnDevice(Squares):
    """Makes its items on the GPU, or takes them from there."""

    def __init__(self, item: Callable[[int], torch.Tensor]) -> None:
        self.item = item

    def __getitem__(self, i: int) -> torch.Tensor:
        return self.item(i)


def read_by_a_worker(item: Callable[[int], torch.Tensor], batch_size: int | None = 5) -> None:
    for _ in torch.utils.data.DataLoader(OnDevice(item), batch_size=batch_size, num_workers=1):
        pass


@functools.cache
def inherited() -> torch.Tensor:
    """A tensor on the device that is there before a worker is."""
    return torch.arange(20.0, device="mps")


USED_BY_A_WORKER = {
    "moved there": lambda i: torch.ones(2).to("mps"),
    "read": lambda i: inherited()[i],
    "copied from there": lambda i: inherited()[i].cpu(),
}


@plain.cases(USED_BY_A_WORKER)
def test_a_worker_that_uses_the_device_is_refused(item):
    inherited()
    error, text = raised(lambda: read_by_a_worker(item))
    assert error is RuntimeError, text
    assert "on the CPU" in text


@plain
def test_a_worker_that_returns_a_tensor_of_the_device_is_refused():
    tensor = inherited()
    error, _ = raised(lambda: read_by_a_worker(lambda i: tensor, None))
    assert error is RuntimeError


@plain
def test_what_a_worker_does_leaves_the_tensor_as_it_is():
    tensor = inherited()
    raised(lambda: read_by_a_worker(USED_BY_A_WORKER["read"]))
    assert tensor.sum().item() == 190


def test_a_worker_that_is_the_first_to_use_it_is_refused():
    code = """
import metalsim; metalsim.install_with_torch(required=True)
import torch
class Items(torch.utils.data.Dataset):
    __len__ = lambda self: 4
    __getitem__ = lambda self, i: torch.ones(2, device="mps")
try: next(iter(torch.utils.data.DataLoader(Items(), num_workers=1)))
except RuntimeError as error: print("on the CPU" in str(error))
"""
    assert python("-c", code).stdout == "True\n"


@plain
def test_the_device_draws_no_random_numbers_of_the_cpu():
    torch.manual_seed(3)
    expected = torch.randn(5)
    torch.manual_seed(3)
    torch.randn(7, device="mps")
    assert torch.equal(torch.randn(5), expected)


@plain
def test_the_cpu_draws_no_random_numbers_of_the_device():
    torch.manual_seed(3)
    expected = torch.randn(5, device="mps")
    torch.manual_seed(3)
    torch.randn(7)
    assert torch.equal(torch.randn(5, device="mps"), expected)


@plain
def test_a_seed_gives_the_same_dropout():
    torch.manual_seed(3)
    dropped = F.dropout(torch.ones(50, device="mps"))
    torch.manual_seed(3)
    assert torch.equal(F.dropout(torch.ones(50, device="mps")), dropped)


@plain
def test_dropout_drops_in_its_gradient_and_draws_no_random_numbers_of_the_cpu():
    state, ones = torch.get_rng_state(), torch.ones(100, device="mps", requires_grad=True)
    F.dropout(ones).sum().backward()
    assert set(ones.grad.tolist()) == {0.0, 2.0}
    assert torch.equal(torch.get_rng_state(), state)


@plain
def test_a_state_of_the_device_that_is_set_gives_the_same_numbers():
    state = torch.mps.get_rng_state()
    first = torch.rand(3, device="mps")
    torch.mps.set_rng_state(state)
    assert torch.equal(torch.rand(3, device="mps"), first)


@plain
def test_a_generator_of_the_device_has_a_seed_of_its_own():
    own = torch.Generator("mps").manual_seed(5)
    once = torch.rand(3, device="mps", generator=own)
    assert own.device.type == "mps"
    assert torch.equal(torch.rand(3, device="mps", generator=own.manual_seed(5)), once)


@plain.cases(
    {
        "rand": lambda own: torch.rand(3, generator=own),
        "randperm": lambda own: torch.randperm(3, generator=own),
    }
)
def test_a_generator_of_the_device_is_refused_for_the_cpu(draw):
    with pytest.raises(RuntimeError, match="Passed CPU tensor to MPS op"):
        draw(torch.Generator("mps"))


def run_lstm(lstm: nn.LSTM, x: torch.Tensor, *, between: Callable[[], Any]) -> torch.Tensor:
    """Return the outputs of an LSTM with dropout; its input has a gradient afterwards.

    `between` is called between forward and backward pass.
    """
    torch.manual_seed(1)
    out, (h, c) = lstm(x)
    between()
    (out.sum() + h.sum() + c.sum()).backward()
    return out.detach().cpu()


@plain
def test_an_lstm_drops_the_same_values_in_both_passes():
    """Values and gradients are those of the CPU, also where the device draws random numbers between the passes."""
    torch.manual_seed(0)
    lstm = nn.LSTM(4, 5, 2, dropout=0.5).to("mps")
    x = torch.randn(3, 2, 4, device="mps", requires_grad=True)
    reference, leaf = copy.deepcopy(lstm).cpu(), x.detach().cpu().requires_grad_()

    made = run_lstm(lstm, x, between=lambda: torch.randn(5, device="mps"))
    expected = run_lstm(reference, leaf, between=lambda: None)

    assert torch.equal(made, expected)
    assert torch.equal(x.grad.cpu(), leaf.grad)


BOXES = [[0.0, 0.0, 9.0, 9.0], [0.0, 0.0, 9.0, 8.0], [20.0, 20.0, 30.0, 30.0]]


@plain
def test_overlapping_boxes_are_left_out_on_the_device():
    import torchvision

    boxes, scores = torch.tensor(BOXES, device="mps"), torch.tensor([0.9, 0.8, 0.7], device="mps")
    kept = torchvision.ops.nms(boxes, scores, 0.5)
    assert kept.device.type == "mps"
    assert kept.tolist() == [0, 2]


@plain
def test_regions_of_a_picture_have_a_gradient_on_the_device():
    import torchvision

    image = torch.rand(1, 2, 32, 32, device="mps", requires_grad=True)
    torchvision.ops.roi_align(image, [torch.tensor(BOXES, device="mps")], 4).sum().backward()
    assert image.grad.abs().sum() > 0


# ---- in the child: what torch says about its device -----------------------------------------------------------------


@plain
def test_torch_says_that_it_has_mps():
    assert torch.backends.mps.is_available()
    assert torch.backends.mps.is_built()
    assert torch.mps.is_available()
    assert torch.mps.device_count() == 1
    assert "Simulated" in torch.backends.mps.get_name()


@plain
def test_torch_says_that_macos_is_15():
    assert torch.backends.mps.is_macos_or_newer(15, 0)
    assert not torch.backends.mps.is_macos_or_newer(26, 0)


@plain
def test_the_accelerator_of_torch_is_the_device():
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == 1
    assert torch.accelerator.current_accelerator() == torch.device("mps")
    assert torch.accelerator.current_device_index() == 0


@plain
def test_the_accelerator_supports_no_float64():
    assert torch.float64 not in torch.accelerator.get_device_capability()["supported_dtypes"]


@plain
def test_an_nvidia_gpu_is_hidden():
    assert not torch.cuda.is_available()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@plain.cases({"mps": torch.mps, "accelerator": torch.accelerator})
def test_waiting_for_the_device_ends(module):
    module.synchronize()


@plain
def test_installing_the_device_again_changes_nothing_and_says_what_it_is():
    assert metalsim.is_installed()
    assert "Simulated Apple GPU" in metalsim.install()
    assert torch.ones(2, device="mps").add(1).sum().item() == 4


MIB = 1 << 20


@plain
def test_memory_is_counted_as_long_as_a_view_holds_it():
    before = torch.accelerator.memory_allocated()
    whole = torch.zeros(MIB, device="mps")
    view = whole[5:]
    assert torch.accelerator.memory_allocated() - before == 4 * MIB
    del whole
    assert torch.accelerator.memory_allocated() - before == 4 * MIB
    del view
    assert torch.accelerator.memory_allocated() == before


@plain
def test_the_two_modules_of_torch_count_the_same_memory():
    x = torch.zeros(MIB, device="mps")
    assert torch.mps.current_allocated_memory() == torch.accelerator.memory_allocated() >= x.nbytes
    assert torch.mps.driver_allocated_memory() == torch.accelerator.memory_reserved() >= x.nbytes


@plain
def test_the_peak_of_memory_stays_until_it_is_reset():
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_allocated()
    big = torch.zeros(MIB, device="mps")
    product = big * 2
    del big, product
    assert torch.accelerator.max_memory_allocated() - before == 8 * MIB
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == before


@plain.cases({"mps": torch.mps, "accelerator": torch.accelerator})
def test_what_was_freed_stays_reserved_until_the_cache_is_emptied(module):
    module.empty_cache()
    before = torch.mps.driver_allocated_memory()
    x = torch.zeros(MIB, device="mps")
    del x
    assert torch.mps.driver_allocated_memory() >= before + 4 * MIB
    module.empty_cache()
    assert torch.mps.driver_allocated_memory() == before


@plain
def test_the_device_recommends_more_than_8_gib():
    assert torch.mps.recommended_max_memory() > 1 << 33


@contextlib.contextmanager
def somebody_drops():
    """Have a thread that draws on the device all the time, as a data loader beside a training step does."""
    x, done = torch.ones(4096, device="mps"), threading.Event()

    def drop():
        while not done.is_set():
            torch.nn.functional.dropout(x, 0.5)

    thread = threading.Thread(target=drop)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def draw_many() -> list[list[float]]:
    torch.manual_seed(0)
    return [torch.rand(3).tolist() for _ in range(400)]


@plain
def test_the_cpu_s_random_numbers_stay_its_own_while_a_thread_draws_on_the_device():
    alone = draw_many()
    with somebody_drops():
        beside = [draw_many() for _ in range(5)]
    assert beside == [alone] * 5


@contextlib.contextmanager
def memory_for_11_mib():
    """Allow the device a thousandth of the memory that it recommends."""
    torch.mps.set_per_process_memory_fraction(0.001)
    try:
        yield
    finally:
        torch.mps.set_per_process_memory_fraction(0.0)


@plain
def test_a_share_of_memory_has_to_be_a_float():
    with pytest.raises(TypeError, match="must be `float`"):
        torch.mps.set_per_process_memory_fraction(0)


@plain
def test_a_share_of_memory_beyond_2_is_refused():
    with pytest.raises(ValueError, match="Allowed range: 0~2"):
        torch.mps.set_per_process_memory_fraction(2.5)


@plain
def test_too_much_memory_is_refused_with_its_size():
    words = r"MPS backend out of memory \(MPS allocated: .* 256.00 MiB on"
    with memory_for_11_mib(), pytest.raises(RuntimeError, match=words):
        torch.empty(64 * MIB, device="mps")


TOO_LARGE = {
    "cat": lambda x: torch.cat([x, x, x]),
    "broadcast": lambda x: x[:4096, None] + x[:4096],
    "repeat": lambda x: x.repeat(4),
}


@plain.cases(TOO_LARGE)
def test_a_result_that_needs_too_much_memory_is_refused_with_a_plain_runtime_error(compute):
    with memory_for_11_mib():
        error, text = raised(lambda: compute(torch.ones(MIB, device="mps")))
    assert error is RuntimeError
    assert "MPS backend out of memory" in text


@plain
def test_without_a_share_there_is_no_limit_but_that_of_a_buffer():
    with memory_for_11_mib():
        pass
    assert torch.empty(64 * MIB, device="mps").nbytes == 256 * MIB
    with pytest.raises(RuntimeError, match="Invalid buffer size"):
        torch.empty(1 << 31, device="mps")


def record_two(**settings: bool) -> list[torch.mps.Event]:
    """Return two events with work between them."""
    start, end = torch.mps.Event(**settings), torch.mps.Event(**settings)
    start.record()
    torch.ones(10, device="mps").sum()
    end.record()
    return [start, end]


@plain
def test_an_event_has_not_happened_before_it_was_recorded():
    assert not torch.mps.Event(enable_timing=True).query()


@plain
def test_an_event_that_was_waited_for_has_happened():
    _, end = record_two(enable_timing=True)
    end.synchronize()
    end.wait()
    assert end.query()


@plain
def test_time_goes_by_between_two_events():
    start, end = record_two(enable_timing=True)
    end.synchronize()
    assert start.elapsed_time(end) > 0


@plain
def test_time_between_events_is_not_told_backwards():
    start, end = record_two(enable_timing=True)
    words = r"End event \d+ was not recorded after start event \d+"
    with pytest.raises(RuntimeError, match=words):
        end.elapsed_time(start)


@plain
def test_events_without_timing_have_no_time_between_them():
    start, end = record_two()
    words = "Events were not created with argument 'enable_timing=True'"
    with pytest.raises(RuntimeError, match=words):
        start.elapsed_time(end)


@plain
def test_time_goes_by_between_two_events_of_torch_itself():
    start, end = (torch.Event("mps", enable_timing=True) for _ in range(2))
    start.record()
    end.record()
    assert start.elapsed_time(end) > 0


@since("2.15", "torch.mps.Stream")
@plain
def test_another_stream_than_the_default_one_is_refused():
    start = torch.mps.Event(enable_timing=True)
    stream = torch.mps.Stream()
    with torch.mps.stream(stream):
        assert torch.mps.current_stream() == stream
        with pytest.raises(NotImplementedError, match="Non-default streams"):
            start.record()
    assert torch.mps.current_stream() == torch.mps.default_stream() != stream


# ---- in the child: what raises --------------------------------------------------------------------------------------

FLOAT64 = (
    "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
    "Please use float32 instead."
)
TWO_DEVICES = (
    "Expected all tensors to be on the same device, but found at least two devices, mps:0 and cpu!"
)
MISSING = (
    "The operator '{}' is not currently implemented for the MPS device. If you want this op to be considered for "
    "addition please comment on https://github.com/pytorch/pytorch/issues/141287 and mention use-case, that resulted "
    "in missing op as well as commit hash {}. As a temporary fix, you can set the environment variable "
    "`PYTORCH_ENABLE_MPS_FALLBACK=1` to use the CPU as a fallback for this op. WARNING: this will be slower than "
    "running natively on MPS."
)


def raised(do: Callable) -> tuple[type, str]:
    """The error of a call: its type and all of its text."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        do()
    return type(caught.value), str(caught.value)


IN_FLOAT64 = {
    "zeros": lambda x: torch.zeros(3, dtype=torch.float64, device="mps"),
    "moved": lambda x: torch.ones(3, dtype=torch.float64).to("mps"),
    "tensor": lambda x: torch.tensor([1.0], dtype=torch.float64, device="mps"),
    "double": lambda x: x.double(),
    "sum": lambda x: x.sum(dtype=torch.float64),
    "model": lambda x: nn.Linear(2, 2).double().to("mps"),
}


@plain.cases(IN_FLOAT64)
def test_float64_raises_as_on_a_mac(make):
    error, text = raised(lambda: make(torch.ones(3, device="mps")))
    assert error is TypeError
    assert text == FLOAT64


OF_8_BITS = torch.float8_e4m3fn
NAMES_OF_FEW_BITS = [name for name in dir(torch) if re.match("float[48]_", name)]


def eye_of_8_bits() -> torch.Tensor:
    return torch.eye(3, device="mps").to(OF_8_BITS)


@plain
def test_one_type_of_8_bits_can_be_made_and_copied():
    assert torch.empty(2, dtype=OF_8_BITS, device="mps").float().cpu().isnan().all()


@plain
def test_one_type_of_8_bits_can_be_gathered():
    places = torch.zeros(1, 3, dtype=torch.long, device="mps")
    assert eye_of_8_bits().gather(0, places).float().sum().item() == 1


@plain.cases(
    {
        "mm": lambda a: torch.mm(a, a),
        "mul": lambda a: torch.mul(a, a),
        "addmm": lambda a: torch.addmm(a, a, a),
        "abs": lambda a: a.abs(),
    }
)
def test_one_type_of_8_bits_cannot_be_computed_with(compute):
    error, text = raised(lambda: compute(eye_of_8_bits()))
    assert error is TypeError
    assert text == (
        "Trying to convert Float8_e4m3fn to the MPS backend but it does not have support for that dtype."
    )


@plain
def test_a_linear_layer_of_8_bits_is_refused_in_words_of_its_own():
    _, text = raised(lambda: F.linear(eye_of_8_bits(), eye_of_8_bits()))
    assert text == "MPS device does not support linear for non-float inputs"


@plain.cases({name: name for name in NAMES_OF_FEW_BITS if name != "float8_e4m3fn"})
def test_other_types_of_few_bits_are_refused_by_name(name):
    error, text = raised(lambda: torch.empty(2, dtype=getattr(torch, name), device="mps"))
    assert error is TypeError
    assert name.capitalize() in text


MIXED = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: y * x,
    "add_": lambda x, y: x.add_(y),
    "add_ on the CPU": lambda x, y: y.add_(x),
    "cat": lambda x, y: torch.cat([x, y]),
    "where": lambda x, y: torch.where(x > 0, y, y),
    "out=": lambda x, y: torch.add(x, x, out=y),
    "mask": lambda x, y: F.scaled_dot_product_attention(x, x, x, y),
    "mask of bools": lambda x, y: F.scaled_dot_product_attention(x, x, x, y > 0),
}
"""Calls with a tensor of the device and one of the CPU."""


@plain.cases(MIXED)
def test_mixed_devices_raise_as_on_a_mac(compute):
    error, text = raised(lambda: compute(torch.ones(2, 2, device="mps"), torch.ones(2, 2)))
    assert error is RuntimeError
    assert text == TWO_DEVICES


@plain
def test_one_number_may_be_on_the_cpu():
    assert (torch.ones(2, 2, device="mps") + torch.tensor(2.0)).sum().item() == 12


@plain.cases(
    {
        "weight": lambda x, y: F.linear(x, y),
        "input": lambda x, y: F.linear(y, x),
        "bias": lambda x, y: F.linear(x, x, y[0]),
    }
)
def test_a_linear_layer_names_its_argument_that_is_on_the_cpu(compute):
    error, text = raised(lambda: compute(torch.ones(2, 2, device="mps"), torch.ones(2, 2)))
    assert error is RuntimeError
    assert re.fullmatch(r"Tensor for argument \w+ is on cpu but expected on mps", text)


@plain.cases(
    {
        "input": lambda lstm, x, y: lstm(y),
        "states": lambda lstm, x, y: lstm(x, (y[:1], y[:1])),
    }
)
def test_an_lstm_with_an_argument_on_the_cpu_raises_as_on_a_mac(compute):
    lstm = nn.LSTM(2, 2).to("mps")
    error, text = raised(lambda: compute(lstm, torch.ones(2, 2, device="mps"), torch.ones(2, 2)))
    assert error is RuntimeError
    assert "not at the same device" in text, text


@plain
def test_a_convolution_with_weights_on_the_cpu_names_both_types():
    image, weight = torch.ones(1, 1, 4, 4, device="mps"), torch.ones(1, 1, 2, 2)
    error, text = raised(lambda: F.conv2d(image, weight))
    assert error is RuntimeError
    assert text == (
        "Input type (MPSFloatType) and weight type (torch.FloatTensor) should be the same"
    )


NO_BUFFER = "Passed CPU tensor to MPS op"
OTHER_INDEX = "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
IDS = torch.tensor([0, 1])
LEFT_ON_THE_CPU = {
    "product": (lambda x, y: x @ y, "Placeholder storage has not been allocated on MPS device!"),
    "embedding": (lambda x, y: F.embedding(IDS, x), NO_BUFFER),
    "classes": (lambda x, y: F.cross_entropy(x, IDS), NO_BUFFER),
    "a class": (lambda x, y: F.cross_entropy(x[0], torch.tensor(1)), NO_BUFFER),
    "layer norm": (lambda x, y: F.layer_norm(y, (2,), x[0], x[0]), NO_BUFFER),
    "masked_fill": (
        lambda x, y: x.masked_fill(y > 0, 0.0),
        "expected self and mask to be on the same device, but got mask on cpu",
    ),
    "indices on the device": (lambda x, y: y[IDS.to("mps")], OTHER_INDEX),
    "mask on the device": (lambda x, y: y[x > 0], OTHER_INDEX),
    "dot": (
        lambda x, y: torch.dot(x[0], y[0]),
        "Expected all tensors to be on the same device. Found: mps:0, cpu",
    ),
    "baddbmm": (
        lambda x, y: torch.baddbmm(x[None], x[None], y[None]),
        "Expected batch2.is_mps() to be true, but got false.",
    ),
    "searchsorted": (
        lambda x, y: torch.searchsorted(x[0], torch.tensor(1.0)),
        "torch.searchsorted(): boundaries and input value tensors should have same device type",
    ),
}


@since("2.15", "these words of two of the kernels")
@plain.cases(LEFT_ON_THE_CPU)
def test_what_was_left_on_the_cpu_has_the_words_of_its_kernel(case):
    compute, words = case
    error, text = raised(lambda: compute(torch.ones(2, 2, device="mps"), torch.ones(2, 2)))
    assert error is RuntimeError
    assert text.startswith(words), text


@plain.cases(
    {
        "randperm": (torch.randperm, "Expected a 'mps:0' generator device but found 'cpu'"),
        "rand": (torch.rand, "Expected a 'mps' device type for generator but found 'cpu'"),
    }
)
def test_a_generator_of_the_cpu_is_refused_in_the_words_of_the_function(case):
    draw, words = case
    error, text = raised(lambda: draw(6, generator=torch.Generator("cpu"), device="mps"))
    assert error is RuntimeError
    assert text == words


ALERT = "index_put_with_accumulate_mps does not have a deterministic implementation"


def add_at_places() -> torch.Tensor:
    """Add six ones to a tensor, by a kernel that is not deterministic."""
    x, places = torch.ones(3, 2, device="mps"), torch.tensor([0, 0, 1], device="mps")
    return torch.zeros(3, 2, device="mps").index_add(0, places, x)


@plain
def test_a_kernel_that_is_not_deterministic_runs_where_nobody_minds():
    assert add_at_places().sum().item() == 6


@since("2.13", "an alert of index_put")
@plain
def test_a_kernel_that_is_not_deterministic_raises_where_that_is_asked_for():
    with deterministic():
        error, text = raised(add_at_places)
    assert error is RuntimeError
    assert text.startswith(ALERT), text


@since("2.13", "an alert of index_put")
@plain
def test_a_kernel_that_is_not_deterministic_warns_where_that_is_asked_for():
    with deterministic(warn_only=True), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert add_at_places().sum().item() == 6
    assert len(told) == 1
    assert str(told[0].message).startswith(ALERT)


@since("2.13", "an alert of index_put")
@plain
def test_the_gradient_of_a_bilinear_resize_is_an_index_put_where_determinism_is_asked_for():
    x = torch.rand(1, 1, 4, 4, device="mps", requires_grad=True)
    with deterministic():
        resized = F.interpolate(x, scale_factor=2, mode="bilinear")
        error, text = raised(resized.sum().backward)
    assert error is RuntimeError
    assert text.startswith(ALERT), text


@plain
def test_what_only_the_cpus_kernel_finds_not_deterministic_runs():
    pooled, places = F.max_pool2d(torch.rand(1, 1, 4, 4, device="mps"), 2, return_indices=True)
    with deterministic():
        assert F.max_unpool2d(pooled, places, 2).shape == (1, 1, 4, 4)
        assert torch.are_deterministic_algorithms_enabled()


TRIANGLE = torch.eye(3)
CONTIGUOUS = {
    "nonzero": lambda x: x.nonzero(),
    "nonzero of a view": lambda x: (x[:, ::2] > 3).nonzero(),
    "argwhere": lambda x: torch.argwhere(x > 3),
    "fftn": torch.fft.fftn,
    "rfft": lambda x: torch.fft.rfft(x, dim=0),
    "solve_triangular": lambda x: torch.linalg.solve_triangular(
        TRIANGLE.to("mps"), x[0], upper=True
    ),
}


@plain.cases(CONTIGUOUS)
def test_results_lie_in_memory_as_metals_kernels_lay_them(compute):
    result = compute(torch.arange(24.0, device="mps").view(2, 3, 4))
    assert result.is_contiguous()
    assert result.view(-1).numel() == result.numel()


@plain
def test_an_inverse_is_laid_out_before_a_kernel_is_called():
    assert not torch.linalg.inv(TRIANGLE.to("mps")).is_contiguous()


@plain.cases({operator: operator for operator in WITHOUT_KERNEL})
def test_an_operator_without_a_metal_kernel_raises_as_on_a_mac(operator):
    call = WITHOUT_KERNEL[operator]
    error, text = raised(lambda: call.model(call.input.to("mps")))
    assert error is NotImplementedError
    assert text == MISSING.format(operator, torch.version.git_version)


@plain
def test_softshrink_which_had_no_kernel_computes():
    assert nn.Softshrink()(torch.ones(3, 3, device="mps")).sum().item() == 4.5


def fell_back(do: Callable) -> tuple[int, list[str]]:
    """Fallbacks of a call, and the warnings that were heard."""
    before = metalsim.counters().fallbacks
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        do()
    return metalsim.counters().fallbacks - before, [
        str(one.message).split(" (Triggered")[0] for one in caught
    ]


def refusal(call: Any) -> tuple[type, str]:
    """What a call of `refused` raises on the device."""
    model = copy.deepcopy(call.model).to("mps") if isinstance(call.model, nn.Module) else call.model
    with torch.no_grad():
        return raised(lambda: model(*(x.to("mps") for x in call.inputs)))


@plain.cases(refused.REFUSED)
def test_a_kernel_refuses_arguments_as_on_a_mac(call):
    error, words = refusal(call)
    assert error is call.error
    assert words.startswith(call.words), words


@with_fallback
def test_a_refusal_is_no_matter_of_fallbacks():
    call = refused.REFUSED["uneven pooling"]
    error, words = refusal(call)
    assert error is RuntimeError
    assert words.startswith(call.words)


@plain
def test_a_backward_pass_refuses_arguments_as_the_forward_pass_does():
    x = torch.rand(1, 2, 12, 12, device="mps", requires_grad=True)
    grad = torch.ones(1, 2, 5, 5, device="mps")
    error, text = raised(lambda: torch.ops.aten._adaptive_avg_pool2d_backward(grad, x))
    assert error is RuntimeError
    assert text == refusal(refused.REFUSED["uneven pooling"])[1]


class RefusedOnTheWayBack(torch.autograd.Function):
    """Calls what is refused in its backward pass, on autograd's own thread."""

    @staticmethod
    def forward(context, x):
        return x * 2

    @staticmethod
    def backward(context, grad):
        return F.adaptive_avg_pool2d(grad, 5)


@plain
def test_a_refusal_on_the_way_back_reaches_the_caller():
    x = torch.rand(1, 2, 12, 12, device="mps", requires_grad=True)
    error, text = raised(lambda: RefusedOnTheWayBack.apply(x).sum().backward())
    assert error is RuntimeError
    assert text.startswith(refused.REFUSED["uneven pooling"].words), text


@since("2.13", "a refusal of dropout")
@plain
def test_attention_drops_where_gradients_are_wanted():
    q = torch.rand(1, 2, 3, 8, device="mps", requires_grad=True)
    F.scaled_dot_product_attention(q, q, q, dropout_p=0.5).sum().backward()
    assert q.grad is not None


@since("2.13", "a refusal of dropout")
@plain
def test_attention_refuses_dropout_where_no_gradients_are_wanted():
    q = torch.rand(1, 2, 3, 8, device="mps", requires_grad=True)
    with torch.no_grad():
        error, text = raised(lambda: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5))
    assert error is NotImplementedError
    assert text == "scaled_dot_product_attention for MPS does not support dropout."


def attend_under_a_mask(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, q.sin(), q, mask)


@plain.cases(
    {
        "values": attend_under_a_mask,
        "gradients": torch.func.grad(lambda q, mask: attend_under_a_mask(q, mask).sin().sum()),
    }
)
def test_attention_is_mapped_over_batches(function):
    q, mask = torch.rand(2, 1, 4, 8, device="mps"), torch.rand(2, 4, 4, device="mps") > 0.1
    with warnings.catch_warnings(action="ignore"):  # it has no batching rule, there neither
        expected = torch.stack([function(*one) for one in zip(q, mask, strict=True)])
        torch.testing.assert_close(torch.vmap(function)(q, mask), expected)


TRUTHS = torch.tensor([True, False, True, True])


@plain
def test_a_product_of_truth_values_is_one_on_the_device_alone():
    x = TRUTHS.to("mps")
    assert torch.dot(x, x).item() is True
    assert torch.dot(x, ~x).item() is False
    with pytest.raises(NotImplementedError, match="not implemented for 'Bool'"):
        torch.dot(TRUTHS, TRUTHS)


@since("2.13", "one of these kernels")
@plain
def test_silu_of_truth_values_is_one():
    assert F.silu(TRUTHS.to("mps")).dtype is torch.bool


@since("2.13", "one of these kernels")
@plain
def test_truth_values_are_reflected_at_their_ends():
    padded = F.pad(TRUTHS.to("mps").view(1, 1, 4), (1, 1), mode="reflect")
    assert padded.flatten().tolist() == [False, True, False, True, True, True]


@since("2.13", "one of these kernels")
@plain
def test_a_histogram_of_whole_numbers_has_whole_counts():
    counts = torch.histc(torch.tensor([0, 1, 1, 3], device="mps"), 4, 0, 4)
    assert counts.dtype == torch.int64
    assert counts.tolist() == [1, 2, 0, 1]


FITS, LARGE = torch.rand(64, 128), torch.rand(64, 129)  # 32768 and 33024 bytes
WIDE = torch.rand(2, 64, 64, dtype=torch.complex64)
MATRICES = {"fits": FITS, "too large": LARGE}


@since("2.14", "a kernel for singular values")
@plain.cases({"real": FITS, "complex": WIDE})
def test_an_svd_stays_on_the_device_within_its_limit(matrix):
    fallbacks, told = fell_back(lambda: torch.linalg.svdvals(matrix.to("mps")))
    assert fallbacks == 0
    assert told == []


@since("2.14", "a kernel for singular values")
@plain
def test_an_svd_into_tensors_that_are_there_stays_on_the_device():
    out = [torch.empty(0, device="mps") for _ in range(3)]
    fallbacks, _ = fell_back(lambda: torch.linalg.svd(FITS.to("mps"), out=out))
    assert fallbacks == 0
    assert torch.equal(out[1].cpu(), torch.linalg.svd(FITS).S)


@since("2.14", "a kernel for singular values")
@plain
def test_each_svd_beyond_the_limit_falls_back_and_torch_warns_once():
    def twice():
        torch.linalg.svd(LARGE.to("mps"), full_matrices=False)
        torch.linalg.svd(LARGE.to("mps"), full_matrices=False)

    fallbacks, told = fell_back(twice)
    assert fallbacks == 2
    assert told == [
        "linalg.svd: matrix too large to stage in MPS threadgroup memory (33024 > 32768 bytes); "
        "falling back to CPU."
    ]


@since("2.14", "a kernel for singular values")
@plain.cases(MATRICES)
def test_the_factors_of_an_svd_are_the_cpus(matrix):
    factors = [factor.cpu() for factor in torch.linalg.svd(matrix.to("mps"))]
    assert all(map(torch.equal, factors, torch.linalg.svd(matrix)))


@since("2.14", "a kernel for singular values")
@plain
def test_fallbacks_of_limited_kernels_are_reported():
    """Each copies four tensors: the matrix to the CPU; U, the singular values and Vh, as the gradient needs, back."""
    x = torch.rand(96, 96, device="mps", requires_grad=True)

    with heard() as events:
        torch.linalg.svdvals(x).sum().backward()
        with torch.inference_mode():
            torch.linalg.pinv(x)

    assert fallbacks_of(events) == [("aten::_linalg_svd", 4, 4 * (3 * 96 * 96 + 96))] * 2
    assert x.grad.isfinite().all().item()


# ---- in the child: what is told -------------------------------------------------------------------------------------


@contextlib.contextmanager
def heard():
    """The events of a block."""
    events: list = []
    metalsim.install(events.append)
    try:
        yield events
    finally:
        metalsim.install()


def fallbacks_of(events: list) -> list[tuple[str, int, int]]:
    """Return the operator of each fallback, how many tensors it copies, and their bytes."""
    return [(event.name, event.copies, event.bytes) for event in events if event.kind == "fallback"]


def copies_of(events: list) -> list[tuple[str, str, int]]:
    """Return the operator of each copy, its direction, and its bytes."""
    return [(event.name, event.direction, event.bytes) for event in events if event.kind == "copy"]


def copy_to_and_fro() -> None:
    """Copy 40 and 12 bytes to the device, and 40, 4 and 20 bytes from it; a clone is no copy."""
    x = torch.ones(10).to("mps")
    x.cpu()
    x.sum().item()
    x.half().to("cpu", torch.float32)
    x.clone()
    torch.zeros(3, dtype=torch.int64).to("mps", torch.int32)


@plain
def test_copies_are_told_with_their_direction_and_their_bytes():
    with heard() as events:
        copy_to_and_fro()
    assert copies_of(events) == [
        ("aten::copy_", "to device", 40),
        ("aten::copy_", "to host", 40),
        ("aten::_local_scalar_dense", "to host", 4),
        ("aten::copy_", "to host", 20),
        ("aten::copy_", "to device", 12),
    ]


@plain
def test_copies_are_counted():
    before = metalsim.counters()
    copy_to_and_fro()
    after = metalsim.counters() - before
    assert after.copies_to_device == 2
    assert after.bytes_to_device == 52
    assert after.copies_to_host == 3
    assert after.bytes_to_host == 64


@plain
def test_as_many_operators_are_counted_as_are_told():
    before = metalsim.counters()
    with heard() as events:
        copy_to_and_fro()
    assert (metalsim.counters() - before).ops == sum(event.kind == "op" for event in events) > 0


@plain
def test_a_copy_is_told_with_what_is_copied_and_what_is_written():
    x = torch.ones(2, 3, device="mps")
    with heard() as events:
        x.half().cpu()
        x[0, 0].item()
    copies = [event.tensors for event in events if event.kind == "copy"]
    assert copies == ["MPS:Half[2, 3] --> CPU:Half[2, 3]", "MPS:Float[] --> CPU:Float[]"]


TOLD = {
    "linear": (lambda x: F.linear(x, torch.ones(3, 3, device="mps")), {"aten::linear"}),
    "layer norm": (lambda x: F.layer_norm(x, (3,)), {"aten::native_layer_norm"}),
    "softshrink in place": (lambda x: F.softshrink(x).add_(1), {"aten::softshrink", "aten::add_.Tensor"}),
    "LSTM": (
        lambda x: nn.LSTM(3, 4).to("mps")(x)[0].sum().backward(),
        {"aten::_lstm_mps", "aten::lstm_mps_backward"},
    ),
    "convolution": (
        lambda x: nn.Conv2d(2, 2, 2).to("mps")(x).sum().backward(),
        {"aten::_mps_convolution", "aten::mps_convolution_backward"},
    ),
    "attention": (
        lambda x: F.scaled_dot_product_attention(x, x, x),
        {"aten::_scaled_dot_product_attention_math_for_mps"},
    ),
}  # fmt: skip


@plain.cases(TOLD)
def test_operators_are_told_by_the_names_that_a_mac_has(case):
    compute, expected = case
    x = torch.ones(2, 2, 3, device="mps")
    with heard() as events:
        compute(x)
    names = {event.name for event in events if event.kind == "op"}
    assert names >= expected, names


@plain
def test_a_view_is_told_as_no_operator():
    x = torch.ones(2, 2, 3, device="mps")
    with heard() as events:
        x.view(-1)
    assert [event.name for event in events if event.kind == "op"] == []


@plain
def test_an_operator_is_told_with_its_tensors_as_pytorchs_profiler_prints_them():
    x, weight = torch.ones(2, 2, 3, device="mps"), torch.ones(3, 3, device="mps")
    with heard() as events:
        F.linear(x, weight)
    tensors = "MPS:Float[2, 2, 3]:MPS:Float[3, 3]:undefined"
    assert metalsim.Event("op", "aten::linear", tensors=tensors) in events


FULL = """
kernel void full(device float* x, constant float& v, uint i [[thread_position_in_grid]]) { x[i] = v; }
"""


@functools.cache
def library_of_full() -> Any:
    return torch.mps.compile_shader(FULL)


@plain
def test_a_library_of_shaders_shows_its_kernels():
    assert re.search(r"<simulated Metal library: .*\bfull\b", repr(library_of_full()))
    assert library_of_full().full.max_threads_per_threadgroup == 1024


@plain
def test_a_shader_is_given_the_memory_of_its_tensors():
    x = torch.zeros(8, device="mps")
    library_of_full().full(x[2:], 3.5, threads=5)
    assert x.tolist() == [0, 0, 3.5, 3.5, 3.5, 3.5, 3.5, 0]


@plain
def test_a_number_for_a_shader_may_be_on_the_cpu():
    x = torch.zeros(8, device="mps")
    library_of_full().full(x, torch.tensor(2.0))
    assert x.tolist() == [2.0] * 8


@plain
def test_a_tensor_of_the_cpu_is_refused_for_a_shader():
    error, text = raised(lambda: library_of_full().full(torch.zeros(3), 1.0))
    assert error is RuntimeError
    assert text == "Passed CPU tensor to MPS op"


@plain
def test_a_listener_that_raises_or_computes_does_no_harm():
    """What it computes is not told to it, and each of its exceptions goes to `sys.unraisablehook` and no further."""
    told, unraisable = [], []

    def listen(event):
        told.append(event.name)
        torch.ones(3, device="mps").add(1)
        raise ValueError("from the listener")

    sys.unraisablehook, hook = unraisable.append, sys.unraisablehook
    try:
        metalsim.install(listen)
        assert torch.ones(3, device="mps").mul(2).cpu().tolist() == [2, 2, 2]
    finally:
        metalsim.install()
        sys.unraisablehook = hook

    assert told[-2:] == ["aten::mul.Tensor", "aten::copy_"]
    assert len(unraisable) == len(told)


# ---- in the child with PYTORCH_ENABLE_MPS_FALLBACK=1 ----------------------------------------------------------------


def fall_back_twice() -> torch.Tensor:
    """Compute RReLU and a mode on the CPU."""
    x = torch.ones(4, 4, device="mps")
    y = nn.RReLU(0.5, 0.5)(-x)
    x.mode()
    return y


FALLS_BACK = """
import metalsim, warnings
metalsim.install_with_torch(required=True)
import torch
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    x = torch.ones(4, 4, device="mps")
    torch.nn.functional.rrelu(x)
    x.mode()
print(*(str(each.message) for each in caught), sep="|")
"""


def test_the_first_fallback_alone_warns_and_names_no_path_of_its_builder():
    """Of a process; a user may have got a build from somebody else."""
    told = python("-c", FALLS_BACK, PYTORCH_ENABLE_MPS_FALLBACK="1").stdout.strip()
    assert "|" not in told
    assert told.split("'")[1] == "aten::rrelu_with_noise"
    assert "metalsim/csrc/host_call.h" in told
    assert str(ROOT) not in told


@with_fallback
def test_a_fallback_is_right():
    assert fall_back_twice().tolist() == [[-0.5] * 4] * 4


@with_fallback
def test_a_fallback_is_told_with_its_copies_and_their_bytes():
    """RReLU: two tensors there, its result and the written noise back; mode: one there, values and indices back."""
    with heard() as events:
        fall_back_twice()
    assert fallbacks_of(events) == [
        ("aten::rrelu_with_noise", 4, 4 * 64),
        ("aten::mode", 3, 64 + 16 + 32),
    ]


@with_fallback
def test_fallbacks_are_counted_and_their_copies_are_no_others():
    before = metalsim.counters()
    fall_back_twice()
    after = metalsim.counters() - before
    assert after.fallbacks == 2
    assert after.fallback_copies == 7
    assert after.fallback_bytes == 4 * 64 + 112
    assert after.copies_to_host == 0
    assert after.copies_to_device == 0


@with_fallback
def test_gradients_flow_through_a_fallback():
    x = torch.ones(4, device="mps", requires_grad=True)
    nn.RReLU(0.5, 0.5)(-x).sum().backward()
    assert x.grad.tolist() == [-0.5] * 4


@with_fallback
def test_the_device_says_that_missing_operators_run_on_the_cpu():
    assert "run on the CPU and are counted" in device.description()


def test_a_program_whose_last_act_is_a_backward_pass_ends_well():
    """Autograd's thread still holds a Python object then, and must give it back while there is a Python."""
    program = "import torch; torch.ones(4, device='mps', requires_grad=True).sum().backward()"
    ended = [python("-m", "metalsim", "-c", program) for _ in range(4)]
    assert [done.returncode for done in ended] == [0] * 4, ended[0].stderr


# ---- running the child ----------------------------------------------------------------------------------------------


def python(*arguments: str, **changes: str) -> subprocess.CompletedProcess:
    """Run Python with the package."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True, text=True, env=variables(**changes), timeout=children.LIMIT, cwd=ROOT,
    )  # fmt: skip


def variables(**changes: str) -> dict[str, str]:
    """The environment of a child."""
    given = {
        "METALSIM_CACHE": str(building.cache()),
        **os.environ,
        "PYTORCH_ENABLE_MPS_FALLBACK": "0",
    }
    return {**given, "PYTHONPATH": os.pathsep.join(map(str, (SOURCES, ROOT / "tests"))), **changes}


@functools.cache
def child(session: str) -> dict[str, str]:
    """What came of a session's checks."""
    environment = variables(PYTORCH_ENABLE_MPS_FALLBACK=str(int(session == "fallback")))
    return children.run(__file__, session, SESSIONS[session].checks, environment)


needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="the simulated device is built with g++"
)
if not CHILD:
    pytestmark = [
        needs_compiler,
        pytest.mark.skipif(
            (platform.system(), platform.machine()) != preload.SYSTEM,
            reason="simulated on Linux and x86-64 only",
        ),
    ]


# ---- without a child, or in one that is made to fail ----------------------------------------------------------------


def test_arming_after_torch_says_what_to_do():
    with pytest.raises(metalsim.SimulationError, match=re.escape(f"or begin with {preload.FIRST}")):
        metalsim.arm()  # pytest's process has torch


def test_without_a_compiler_it_says_what_to_install(tmp_path):
    empty = {"PATH": str(tmp_path), "METALSIM_CACHE": str(tmp_path / "cache")}
    done = python("-c", "import metalsim; metalsim.arm()", **empty)
    words = r"SimulationError: .* built with g\+\+, which is not here: install it"
    assert re.search(words, done.stderr)


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "a.cpp"
    file.write_text("one")
    return file


def test_a_build_of_the_same_sources_with_the_same_tools_has_the_same_key(source):
    first = building.key("2.15", "g++ 12", files=[source])
    assert building.key("2.15", "g++ 12", files=[source]) == first


@pytest.mark.parametrize(
    ("torch_version", "compiler"),
    [pytest.param("2.16", "g++ 12", id="torch"), pytest.param("2.15", "g++ 13", id="compiler")],
)
def test_a_build_with_another_tool_has_another_key(source, torch_version, compiler):
    first = building.key("2.15", "g++ 12", files=[source])
    assert building.key(torch_version, compiler, files=[source]) != first


def test_a_build_of_another_text_has_another_key(source):
    first = building.key("2.15", "g++ 12", files=[source])
    source.write_text("two")
    assert building.key("2.15", "g++ 12", files=[source]) != first


def test_another_torch_whose_build_fails_is_named_with_its_log(tmp_path, monkeypatch):
    monkeypatch.setenv("METALSIM_CACHE", str(tmp_path))

    def run(command, **options):
        if "--version" in command:
            return subprocess.CompletedProcess(command, 0, stdout="g++ 99\n")
        options["stdout"].write("no member named getAccelerator")
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    words = r"torch 9\.9 with g\+\+ 99; (\S+\.log) tells why"
    with pytest.raises(metalsim.SimulationError, match=words) as caught:
        device._build("9.9")

    log = re.search(r"(\S+\.log)", str(caught.value))[1]
    assert Path(log).read_text() == "no member named getAccelerator"


@pytest.mark.parametrize("version", [device.OLDEST_TORCH, "2.13.0+cpu", "2.14.1", device.TORCH])
def test_a_release_from_the_oldest_to_the_newest_known_is_known(version):
    assert device.knows(version)
    assert device.notice_of_newer(version) is None


def test_a_release_before_the_oldest_is_not_known():
    assert not device.knows("2.10.0")


@pytest.mark.parametrize("version", ["2.16.0.dev20261101+cpu", "3.0.0"])
def test_a_newer_release_than_the_newest_known_is_told(version):
    assert not device.knows(version)
    assert f"torch {version} is newer than {device.TORCH}" in device.notice_of_newer(version)


def test_a_torch_with_mps_is_left_alone(monkeypatch):
    monkeypatch.setattr(preload, "is_armed", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: True)
    with pytest.raises(metalsim.SimulationError, match="has a real MPS device: use it"):
        metalsim.install()


# ---- torch's own database of operators ------------------------------------------------------------------------------

if CHILD:
    children.answer(SESSIONS[sys.argv[1]].checks, Path(sys.argv[2]))
