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

from metalsim import building, device, preload  # noqa: E402

plain, with_fallback = (
    children.Session(lambda: child("plain")),
    children.Session(lambda: child("fallback")),
)
SESSIONS = {"plain": plain, "fallback": with_fallback}


# ---- in the child: programs -----------------------------------------------------------------------------------------


@plain
def test_tensors_are_made_moved_and_viewed():
    x = torch.arange(12.0, device="mps").view(3, 4)
    assert (x.device, x.is_mps, x.dtype) == (torch.device("mps:0"), True, torch.float32)
    y = torch.arange(12.0).view(3, 4)
    for view in (
        lambda t: t.t(), lambda t: t[1:, ::2], lambda t: t[:, 1], lambda t: t.expand(2, 3, 4),
        lambda t: t.unfold(1, 2, 1),
        lambda t: t.as_strided((2, 2), (1, 3), 1), lambda t: t.t().reshape(2, 6), lambda t: t.t().contiguous(),
        lambda t: t.detach(), lambda t: t.unsqueeze(0).squeeze(0), lambda t: t.flatten(), lambda t: t.chunk(2)[1],
        lambda t: t.transpose(0, 1).view(4, 3), lambda t: t.diagonal(), lambda t: t.view(torch.int32),
        lambda t: torch.ops.aten.alias(t), lambda t: t.movedim(0, 1), lambda t: t.narrow(1, 1, 2),
    ):  # fmt: skip
        viewed, expected = view(x), view(y)
        assert (viewed.device.type, viewed.stride(), viewed.storage_offset()) == (
            "mps", expected.stride(), expected.storage_offset(),
        )  # fmt: skip
        assert torch.equal(viewed.cpu(), expected)


@plain
def test_views_share_memory_and_writing_through_them_shows():
    x = torch.zeros(4, 4, device="mps")
    x[1:3, ::2] = 5
    x.t()[0] += 1
    x.view(-1)[15] = 7
    x[x > 4] *= 2
    expected = torch.zeros(4, 4)
    expected[1:3, ::2] = 5
    expected.t()[0] += 1
    expected.view(-1)[15] = 7
    expected[expected > 4] *= 2
    assert torch.equal(x.cpu(), expected)
    x.resize_(5, 5)
    assert torch.equal(x.view(-1)[:16].cpu(), expected.view(-1))
    with pytest.raises(RuntimeError, match="single memory location"):
        x[0].expand(3, 5).add_(1)
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        torch.add(x.view(-1)[:-1], 1, out=x.view(-1)[1:])


@plain
def test_shapes_that_depend_on_data():
    x = torch.tensor([3.0, -1.0, 0.0, 2.0, -1.0], device="mps")
    assert x.nonzero().flatten().tolist() == [0, 1, 3, 4]
    assert x[x > 0].tolist() == [3, 2]
    assert torch.masked_select(x, x < 0).tolist() == [-1, -1]
    assert torch.unique(x).tolist() == [-1, 0, 2, 3]
    assert x.topk(2).values.tolist() == [3, 2]
    assert x.cumsum(0).tolist() == [3, 2, 2, 4, 3]
    assert x[torch.tensor([0, 1])].tolist() == [3, -1], "indices may be on the CPU"
    spectrum = torch.fft.rfft(x)
    assert (spectrum.dtype, spectrum.device.type) == (torch.complex64, "mps")
    assert torch.equal(spectrum.conj().cpu(), torch.fft.rfft(x.cpu()).conj())
    x.index_put_(
        (torch.tensor([0, 0], device="mps"),),
        torch.tensor([1.0, 1.0], device="mps"),
        accumulate=True,
    )
    assert x[0].item() == 5


@plain
def test_storages_are_made_of_sizes_and_of_bytes_and_grow():
    assert (
        torch.UntypedStorage(5, device="mps").nbytes()
        == torch.UntypedStorage(size=5, device="mps").nbytes()
        == 5
    )
    assert torch.UntypedStorage([1, 2, 255], device="mps").cpu().tolist() == [1, 2, 255]
    x = torch.tensor([1.0, 2.0], device="mps")
    y = torch.empty(0, device="mps").set_(x.untyped_storage(), 1, (2, 2), (2, 1))
    assert (y[0, 0].item(), y.isnan().sum().item()) == (2, 3)
    y.fill_(7)
    assert x.tolist() == [1, 7]
    with pytest.raises(RuntimeError, match="different device"):
        y.set_(torch.zeros(9).untyped_storage(), 0, (9,))


@plain
def test_memory_that_nobody_wrote_is_nan():
    assert torch.empty(1000, device="mps").isnan().all()
    assert torch.empty_strided((3, 4), (1, 3), device="mps", dtype=torch.float16).isnan().all()
    assert torch.ones(2, device="mps").resize_(1000)[2:].isnan().all()


@plain
def test_deterministic_memory_is_what_it_is_on_the_cpu():
    whole = torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.bool
    torch.use_deterministic_algorithms(True)
    try:
        for dtype in (*whole, torch.float32, torch.float16, torch.bfloat16, torch.complex64):
            for make in (torch.empty, lambda n, **how: torch.empty_strided((n,), (2,), **how)):
                assert str(make(2, dtype=dtype, device="mps").tolist()) == str(
                    make(2, dtype=dtype).tolist()
                ), dtype
            grown = [
                torch.ones(2, dtype=dtype, device=device).resize_(4).tolist()
                for device in ("mps", "cpu")
            ]
            assert str(grown[0]) == str(grown[1]), dtype
    finally:
        torch.use_deterministic_algorithms(False)


@since("2.13", "asking a storage whether it is pinned")
@plain
def test_pinned_memory_is_known_as_such():
    pinned = torch.ones(3).pin_memory()
    assert (pinned.device.type, pinned.tolist()) == ("cpu", [1, 1, 1])
    for tensor in (pinned, pinned[1:], torch.empty(3, pin_memory=True), pinned.untyped_storage()):
        assert tensor.is_pinned()
    for tensor in (torch.ones(3), pinned.clone(), torch.ones(3, device="mps")):
        assert not tensor.is_pinned()


CNN = lambda: nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=2),
    nn.GroupNorm(2, 8), nn.Softshrink(), nn.Dropout(0.2), nn.ConvTranspose2d(8, 4, 2), nn.Flatten(), nn.Linear(36, 10),
)  # fmt: skip


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
    "cnn": CNN, "transformer": Transformer,
    "lstm": lambda: Recurrent(nn.LSTM), "gru": lambda: Recurrent(nn.GRU),
}  # fmt: skip
ADAMW = functools.partial(torch.optim.AdamW, lr=1e-2)


def curve(
    name: str, device: str, optimiser: Callable = ADAMW, dtype: torch.dtype | None = None
) -> list[float]:
    """Losses of a short training; attention by its plain formula, as on MPS."""
    torch.manual_seed(0)
    model = MODELS[name]().to(device)
    x, y = (tensor.to(device) for tensor in data(name))
    torch.manual_seed(1)
    low = torch.autocast(device, dtype=dtype) if dtype else contextlib.nullcontext()

    def loss() -> torch.Tensor:
        with low, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return F.cross_entropy(model(x), y)

    return training.losses(loss, optimiser(model.parameters()), 5)


@since("2.13", "a gradient of GroupNorm")
@plain
def test_training_curves_are_the_cpus_to_the_last_bit():
    for name in ("cnn", "transformer", "lstm"):
        on_cpu = curve(name, "cpu")
        assert curve(name, "mps") == on_cpu, name
        assert on_cpu[-1] < on_cpu[0], f"{name} learns nothing"
    gru, on_cpu = curve("gru", "mps"), curve("gru", "cpu")
    assert all(abs(a - b) < 1e-6 for a, b in zip(gru, on_cpu, strict=True))


@since("2.13", "a gradient of GroupNorm")
@plain
def test_training_curves_are_close_under_autocast():
    for name in ("cnn", "transformer"):
        on_cpu = curve(name, "cpu")
        for dtype in (torch.float16, torch.bfloat16):
            low = curve(name, "mps", dtype=dtype)
            assert low != on_cpu, "autocast changed nothing"
            assert all(abs(a - b) < 0.02 for a, b in zip(low, on_cpu, strict=True)), (
                name,
                dtype,
                low,
                on_cpu,
            )


@since("2.13", "a gradient of GroupNorm")
@plain
def test_optimisers_take_their_steps():
    optim = torch.optim
    for make in (
        functools.partial(optim.SGD, lr=0.1, momentum=0.9), functools.partial(optim.SGD, lr=0.1, fused=True),
        functools.partial(optim.Adam, lr=1e-2, foreach=True), functools.partial(optim.Adam, lr=1e-2, foreach=False),
        functools.partial(optim.AdamW, lr=1e-2, fused=True), functools.partial(optim.RMSprop, lr=1e-3),
    ):  # fmt: skip
        assert curve("cnn", "mps", make) == curve("cnn", "cpu", make), make


@plain
def test_autocast_keeps_pytorchs_lists():
    x = torch.randn(4, 4, device="mps")
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast("mps", dtype=dtype):
            assert (
                (x @ x).dtype
                == F.linear(x, x).dtype
                == F.conv1d(x[None], x[:, :, None]).dtype
                == dtype
            )
            assert (x @ x).softmax(0).dtype == (x @ x).exp().dtype == torch.float32
    assert torch.amp.autocast_mode.is_autocast_available("mps")


@plain
def test_autocast_of_the_cpu_leaves_the_device_alone():
    torch.manual_seed(0)
    x, heads = torch.randn(3, 5, 8, device="mps"), torch.randn(2, 2, 6, 8, device="mps")
    attend = lambda q: F.scaled_dot_product_attention(q, q, q)
    modules = (
        nn.Linear(8, 4),
        nn.LSTM(8, 6, 2),
        nn.GRU(8, 6),
        nn.Conv1d(5, 4, 3),
        nn.TransformerEncoderLayer(8, 2, 16),
    )
    bilinear, multihead = nn.Bilinear(8, 8, 4).to("mps"), nn.MultiheadAttention(8, 2).to("mps")
    functions = (
        lambda x: bilinear(x, x),
        lambda x: multihead(x, x, x)[0],
        lambda x: torch.einsum("abc,dbc->ad", x, x),
    )
    runs = [(run, x) for run in (*(module.to("mps").eval() for module in modules), *functions)] + [
        (attend, heads)
    ]

    def values(run, given):
        """With and without a gradient, which choose other operators, and the gradient."""
        leaf = given.clone().requires_grad_()
        with torch.no_grad():
            alone = run(given)
        y = run(leaf)
        first = lambda y: y[0] if isinstance(y, tuple) else y
        return [
            first(alone),
            first(y).detach(),
            *torch.autograd.grad(first(y).square().sum(), leaf),
        ]

    for run, given in runs:
        expected = values(run, given)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for value, other in zip(values(run, given), expected, strict=True):
                assert value.dtype == torch.float32, run
                assert torch.equal(value, other), run


@plain
def test_a_gradient_scaler_skips_what_overflowed():
    model = nn.Linear(3, 1).to("mps")
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("mps", init_scale=4.0)
    before = model.weight.detach().clone()
    scaler.scale(model(torch.full((2, 3), float("inf"), device="mps")).sum()).backward()
    scaler.step(optimiser)
    scaler.update()
    assert torch.equal(model.weight, before)
    assert scaler.get_scale() == 2.0
    optimiser.zero_grad()
    scaler.scale(model(torch.ones(2, 3, device="mps")).sum()).backward()
    scaler.step(optimiser)
    assert torch.allclose(model.weight, before - 0.2)


@plain
def test_models_are_saved_loaded_and_copied():
    model = nn.Linear(3, 2).to("mps")
    buffer = io.BytesIO()
    tensor = torch.arange(10.0, device="mps")
    torch.save({"model": model.state_dict(), "view": tensor[3:7], "all": tensor}, buffer)
    for location, expected in ((None, "mps"), ("cpu", "cpu"), ("mps", "mps")):
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=location)
        assert loaded["view"].device.type == loaded["model"]["weight"].device.type == expected
        assert loaded["view"].tolist() == [3, 4, 5, 6]
        loaded["all"][3] = 9
        assert loaded["view"][0].item() == 9, "tensors shared a storage before"
        fresh = nn.Linear(3, 2).to("mps")
        fresh.load_state_dict(loaded["model"])
        assert torch.equal(fresh.weight, model.weight)
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


@since("2.13", "one of these ways")
@plain
def test_what_leaves_a_storage_and_comes_back_is_what_it_was():
    different = []
    for kind, make in KINDS.items():
        on_cpu, on_mps = make(torch.arange(12.0)), make(torch.arange(12.0).to("mps"))
        for name, way in WAYS.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # TypedStorage and TorchScript are deprecated
                expected, result = tried(way, on_cpu), tried(way, on_mps)
            if result != expected:
                different.append(
                    f"{name} of {kind}: {str(result)[:300]} on mps, {str(expected)[:300]} on the CPU"
                )
    assert not different, "\n".join(different)


@plain
def test_strides_offsets_and_shared_storages_come_back():
    x = torch.arange(12.0, device="mps")
    for way in (WAYS["pickle 2"], saved, WAYS["save, old format"], WAYS["from_dlpack"]):
        made = way(x.view(3, 4)[1:, 1::2].t())
        assert (made.stride(), made.storage_offset()) == ((2, 4), 5)
    for way in (saved, WAYS["save, old format"]):
        whole, part = way([x, x[3:5]])
        whole[4] = 9
        assert part.tolist() == [3, 9]
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to("mps")
    model[1].weight = model[0].weight
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert twin[0].weight is twin[1].weight is not model[0].weight
        assert torch.equal(twin[1].bias, model[1].bias)
    generator = torch.Generator("mps").manual_seed(3)
    torch.rand(5, device="mps", generator=generator)
    for twin in (
        copy.deepcopy(generator),
        pickle.loads(pickle.dumps(generator)),
        generator.clone_state(),
    ):
        state = generator.get_state()
        assert torch.equal(*(torch.rand(4, device="mps", generator=g) for g in (generator, twin)))
        generator.set_state(state)


@plain
def test_dlpack_and_storages_share_memory():
    x = torch.arange(6.0, device="mps")
    for alias in (torch.from_dlpack(x[2:5]), over(x[2:5], x.untyped_storage()[:])):
        alias[1] = alias[1] + 10
    assert x.tolist() == [0, 1, 2, 23, 4, 5]
    first = torch.empty(0, device="mps").set_(x.untyped_storage()[:8])
    first += 1
    assert (x.tolist(), first.untyped_storage().nbytes()) == ([1, 2, 2, 23, 4, 5], 8)
    with pytest.raises(RuntimeError, match="not resizable"):
        first.resize_(3)
    alias, before = torch.from_dlpack(x), torch.mps.current_allocated_memory()
    del x, first
    assert alias.tolist() == [1, 2, 2, 23, 4, 5], "memory lives as long as who shares it"
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
@plain
def test_what_cannot_leave_the_device_raises():
    x = torch.arange(10.0).to("mps")
    for name, (do, kind, words) in REFUSED.items():
        error, text = raised(lambda do=do: do(x.clone()))
        assert (error, words in text) == (kind, True), (name, error, text)
    assert x.untyped_storage().share_memory_().device.type == "mps"
    assert torch.equal(pickle.loads(reduction.ForkingPickler.dumps(x.cpu())), x.cpu())


@plain
def test_torchscript_indexes_with_masks_and_lists():
    def write(y: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y[mask] = 0.0
        y[1, mask[0]] = y[0, mask[1]]
        y[:, torch.tensor([1, 0], device=y.device)] += y[mask].sum()
        return torch.cat([y, y[:, 1:]], 1)[:, mask[0].nonzero()[0]]

    devices = ("cpu", "mps")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        scripted, made = torch.jit.script(write), {}
        for device in devices:
            for how, function in (("eager", write), ("scripted", scripted)):
                y = torch.arange(6.0, device=device).view(2, 3)
                mask = torch.tensor([[True, False, True], [False, True, True]], device=device)
                for _ in range(3):  # TorchScript rewrites what it has seen run
                    made[device, how] = function(y.clone(), mask).tolist()
    assert len({str(values) for values in made.values()}) == 1, made


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


@plain
def test_a_worker_that_uses_the_device_is_refused():
    inherited = torch.arange(20.0, device="mps")
    for item in (
        lambda i: torch.ones(2).to("mps"),
        lambda i: inherited[i],
        lambda i: inherited[i].cpu(),
    ):
        error, text = raised(lambda item=item: read_by_a_worker(item))
        assert (error, "on the CPU" in text) == (RuntimeError, True), text
    assert (
        raised(lambda: read_by_a_worker(lambda i: inherited, None))[0] is RuntimeError
    )  # as it is, without a use
    assert inherited.sum().item() == 190


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
def test_each_side_draws_its_own_random_numbers():
    torch.manual_seed(3)
    cpu, mps, dropped = (
        torch.randn(5),
        torch.randn(5, device="mps"),
        F.dropout(torch.ones(50, device="mps")),
    )
    torch.manual_seed(3)
    torch.randn(7, device="mps")
    assert torch.equal(torch.randn(5), cpu), "the device drew from the CPU's generator"
    torch.manual_seed(3)
    torch.randn(7)
    assert torch.equal(torch.randn(5, device="mps"), mps), (
        "the CPU drew from the device's generator"
    )
    assert torch.equal(F.dropout(torch.ones(50, device="mps")), dropped)
    state = torch.mps.get_rng_state()
    first = torch.rand(3, device="mps")
    torch.mps.set_rng_state(state)
    assert torch.equal(torch.rand(3, device="mps"), first)
    own = torch.Generator("mps").manual_seed(5)
    assert own.device.type == "mps"
    once = torch.rand(3, device="mps", generator=own)
    assert torch.equal(torch.rand(3, device="mps", generator=own.manual_seed(5)), once)
    with pytest.raises(
        RuntimeError, match="Expected a 'mps' device type for generator but found 'cpu'"
    ):
        torch.rand(3, device="mps", generator=torch.Generator())
    for draw in (lambda: torch.rand(3, generator=own), lambda: torch.randperm(3, generator=own)):
        with pytest.raises(RuntimeError, match="Passed CPU tensor to MPS op"):
            draw()
    rng = torch.get_rng_state()
    ones = torch.ones(100, device="mps", requires_grad=True)
    F.dropout(ones).sum().backward()
    assert set(ones.grad.tolist()) == {0.0, 2.0}
    assert torch.equal(torch.get_rng_state(), rng), "dropout drew from the CPU's generator"


@plain
def test_an_lstm_drops_the_same_values_in_both_passes():
    torch.manual_seed(0)
    lstm = nn.LSTM(4, 5, 2, dropout=0.5).to("mps")
    x = torch.randn(3, 2, 4, device="mps", requires_grad=True)
    torch.manual_seed(1)
    out, (h, c) = lstm(x)
    torch.randn(5, device="mps")  # somebody draws between the passes
    (out.sum() + h.sum() + c.sum()).backward()
    reference, leaf = copy.deepcopy(lstm).cpu(), x.detach().cpu().requires_grad_()
    torch.manual_seed(1)
    expected, (h, c) = reference(leaf)
    (expected.sum() + h.sum() + c.sum()).backward()
    assert torch.equal(out.cpu(), expected)
    assert torch.equal(x.grad.cpu(), leaf.grad)


@plain
def test_detection_operators_run():
    import torchvision

    boxes = torch.tensor(
        [[0.0, 0.0, 9.0, 9.0], [0.0, 0.0, 9.0, 8.0], [20.0, 20.0, 30.0, 30.0]], device="mps"
    )
    kept = torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7], device="mps"), 0.5)
    assert (kept.device.type, kept.tolist()) == ("mps", [0, 2])
    image = torch.rand(1, 2, 32, 32, device="mps", requires_grad=True)
    torchvision.ops.roi_align(image, [boxes], 4).sum().backward()
    assert image.grad.abs().sum() > 0


# ---- in the child: what torch says about its device -----------------------------------------------------------------


@plain
def test_torch_says_that_it_has_mps():
    assert torch.backends.mps.is_available()
    assert torch.backends.mps.is_built()
    assert torch.backends.mps.is_macos_or_newer(15, 0)
    assert not torch.backends.mps.is_macos_or_newer(26, 0)
    assert "Simulated" in torch.backends.mps.get_name()
    assert torch.mps.is_available()
    assert torch.mps.device_count() == torch.accelerator.device_count() == 1
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("mps")
    assert torch.accelerator.current_device_index() == 0
    assert not torch.cuda.is_available()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    torch.mps.synchronize()
    torch.accelerator.synchronize()
    assert torch.float64 not in torch.accelerator.get_device_capability()["supported_dtypes"]
    assert metalsim.is_installed()
    assert "Simulated Apple GPU" in metalsim.install()
    assert torch.ones(2, device="mps").add(1).sum().item() == 4


@plain
def test_memory_is_counted():
    torch.mps.empty_cache()
    before = torch.mps.current_allocated_memory()
    torch.accelerator.reset_peak_memory_stats()
    big = torch.zeros(1 << 20, device="mps")
    product = big * 2
    view = product[5:].view(-1)
    assert torch.mps.current_allocated_memory() - before == 8 << 20
    del big
    assert torch.accelerator.memory_allocated() - before == 4 << 20
    del product
    assert torch.accelerator.memory_allocated() - before == 4 << 20, "a view holds its storage"
    del view
    assert torch.accelerator.memory_allocated() == before
    assert torch.accelerator.max_memory_allocated() - before == 8 << 20
    assert torch.accelerator.memory_reserved() >= before + (8 << 20)
    assert torch.mps.driver_allocated_memory() == torch.accelerator.memory_reserved()
    torch.accelerator.empty_cache()
    assert torch.mps.driver_allocated_memory() == before
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == before
    assert torch.mps.recommended_max_memory() > 1 << 33


@plain
def test_the_cpu_s_random_numbers_stay_its_own():
    """Also while another thread draws on the device, as a data loader beside a training step does."""
    import threading

    x, done = torch.ones(4096, device="mps"), threading.Event()

    def drop():
        while not done.is_set():
            torch.nn.functional.dropout(x, 0.5)

    torch.manual_seed(0)
    alone = [torch.rand(3).tolist() for _ in range(400)]
    thread = threading.Thread(target=drop)
    thread.start()
    try:
        for _ in range(5):
            torch.manual_seed(0)
            assert [torch.rand(3).tolist() for _ in range(400)] == alone
    finally:
        done.set()
        thread.join()


@plain
def test_too_much_memory_is_refused_in_torchs_words():
    with pytest.raises(TypeError, match="must be `float`"):
        torch.mps.set_per_process_memory_fraction(0)
    with pytest.raises(ValueError, match="Allowed range: 0~2"):
        torch.mps.set_per_process_memory_fraction(2.5)
    torch.mps.set_per_process_memory_fraction(0.001)
    try:
        with pytest.raises(
            RuntimeError, match=r"MPS backend out of memory \(MPS allocated: .* 256.00 MiB on"
        ):
            torch.empty(1 << 26, device="mps")
        x = torch.ones(1 << 20, device="mps")  # 4 MiB of some 11 that are allowed
        for too_large in (
            lambda: torch.cat([x, x, x]),
            lambda: x[:4096, None] + x[:4096],
            lambda: x.repeat(4),
        ):
            with pytest.raises(RuntimeError, match="MPS backend out of memory") as refused:
                too_large()
            assert type(refused.value) is RuntimeError
    finally:
        torch.mps.set_per_process_memory_fraction(0.0)
    torch.empty(1 << 26, device="mps")
    with pytest.raises(RuntimeError, match="Invalid buffer size"):
        torch.empty(1 << 31, device="mps")


@plain
def test_events():
    start, end = (torch.mps.Event(enable_timing=True) for _ in range(2))
    assert not start.query()
    start.record()
    torch.ones(10, device="mps").sum()
    end.record()
    end.synchronize()
    end.wait()
    assert end.query()
    assert start.elapsed_time(end) > 0
    with pytest.raises(RuntimeError, match=r"End event \d+ was not recorded after start event \d+"):
        end.elapsed_time(start)
    untimed = torch.mps.Event()
    untimed.record()
    with pytest.raises(
        RuntimeError, match="Events were not created with argument 'enable_timing=True'"
    ):
        untimed.elapsed_time(end)
    generic = [torch.Event("mps", enable_timing=True) for _ in range(2)]
    for event in generic:
        event.record()
    assert generic[0].elapsed_time(generic[1]) > 0


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


@plain
def test_float64_raises_as_on_a_mac():
    x = torch.ones(3, device="mps")
    for do in (
        lambda: torch.zeros(3, dtype=torch.float64, device="mps"), lambda: torch.ones(3, dtype=torch.float64).to("mps"),
        lambda: torch.tensor([1.0], dtype=torch.float64, device="mps"), x.double, lambda: x.sum(dtype=torch.float64),
        lambda: nn.Linear(2, 2).double().to("mps"),
    ):  # fmt: skip
        assert raised(do) == (TypeError, FLOAT64)


@plain
def test_one_type_of_8_bits_is_there():
    for name in (name for name in dir(torch) if re.match("float[48]_", name)):
        make = lambda name=name: torch.empty(2, dtype=getattr(torch, name), device="mps")
        if name == "float8_e4m3fn":
            assert make().float().cpu().isnan().all()
            a = torch.eye(3, device="mps").to(torch.float8_e4m3fn)
            words = "Trying to convert Float8_e4m3fn to the MPS backend but it does not have support for that dtype."
            for do in (
                torch.mm,
                torch.mul,
                lambda a, b: torch.addmm(a, a, b),
                lambda a, _: a.abs(),
            ):
                assert raised(lambda do=do: do(a, a)) == (TypeError, words)  # noqa: B023
            _, said = raised(lambda a=a: F.linear(a, a))
            assert said == "MPS device does not support linear for non-float inputs"
            assert (
                a.gather(0, torch.zeros(1, 3, dtype=torch.long, device="mps")).float().sum().item()
                == 1
            )
        else:
            error, text = raised(make)
            assert (error, name.capitalize() in text) == (TypeError, True), text


@plain
def test_mixed_devices_raise_as_on_a_mac():
    x, y = torch.ones(2, 2, device="mps"), torch.ones(2, 2)
    for do in (
        lambda: x + y, lambda: y * x, lambda: x.add_(y), lambda: y.add_(x), lambda: torch.cat([x, y]),
        lambda: torch.where(x > 0, y, y), lambda: torch.add(x, x, out=y),
        lambda: F.scaled_dot_product_attention(x, x, x, y),
        lambda: F.scaled_dot_product_attention(x, x, x, y > 0),
    ):  # fmt: skip
        assert raised(do) == (RuntimeError, TWO_DEVICES)
    assert (x + torch.tensor(2.0)).sum().item() == 12, "one number may be on the CPU"
    assert raised(lambda: F.linear(x, y)) == (
        RuntimeError,
        "Tensor for argument weight is on cpu but expected on mps",
    )
    assert raised(lambda: F.linear(y, x)) == (
        RuntimeError,
        "Tensor for argument input is on cpu but expected on mps",
    )
    assert raised(lambda: F.linear(x, x, y[0])) == (
        RuntimeError, "Tensor for argument bias is on cpu but expected on mps"
    )  # fmt: skip
    lstm, states = nn.LSTM(2, 2).to("mps"), (torch.ones(1, 2),) * 2
    for do in (lambda: lstm(y), lambda: lstm(x, states)):
        error, text = raised(do)
        assert (error, "not at the same device" in text) == (RuntimeError, True), text
    image, weight = torch.ones(1, 1, 4, 4, device="mps"), torch.ones(1, 1, 2, 2)
    assert raised(lambda: F.conv2d(image, weight)) == (
        RuntimeError, "Input type (MPSFloatType) and weight type (torch.FloatTensor) should be the same",
    )  # fmt: skip


@since("2.15", "these words of two of the kernels")
@plain
def test_what_was_left_on_the_cpu_has_the_words_of_its_kernel():
    x, y, ids = torch.ones(2, 2, device="mps"), torch.ones(2, 2), torch.tensor([0, 1])
    no_buffer = "Passed CPU tensor to MPS op"
    for do, words in (
        (lambda: x @ y, "Placeholder storage has not been allocated on MPS device!"),
        (lambda: F.embedding(ids, x), no_buffer),
        (lambda: F.cross_entropy(x, ids), no_buffer),
        (lambda: F.cross_entropy(x[0], torch.tensor(1)), no_buffer),
        (lambda: F.layer_norm(y, (2,), x[0], x[0]), no_buffer),
        (lambda: x.masked_fill(y > 0, 0.0), "expected self and mask to be on the same device, but got mask on cpu"),
        (lambda: y[ids.to("mps")], "indices should be either on cpu or on the same device as the indexed tensor (cpu)"),
        (lambda: y[x > 0], "indices should be either on cpu or on the same device as the indexed tensor (cpu)"),
        (lambda: torch.dot(x[0], y[0]), "Expected all tensors to be on the same device. Found: mps:0, cpu"),
        (lambda: torch.baddbmm(x[None], x[None], y[None]), "Expected batch2.is_mps() to be true, but got false."),
        (
            lambda: torch.searchsorted(x[0], torch.tensor(1.0)),
            "torch.searchsorted(): boundaries and input value tensors should have same device type",
        ),
    ):  # fmt: skip
        error, text = raised(do)
        assert (error, text.startswith(words)) == (RuntimeError, True), text


@plain
def test_a_generator_of_the_cpu_is_refused_in_two_ways():
    cpu = torch.Generator("cpu")
    assert raised(lambda: torch.randperm(6, generator=cpu, device="mps")) == (
        RuntimeError, "Expected a 'mps:0' generator device but found 'cpu'",
    )  # fmt: skip
    assert raised(lambda: torch.rand(6, generator=cpu, device="mps")) == (
        RuntimeError, "Expected a 'mps' device type for generator but found 'cpu'",
    )  # fmt: skip


@since("2.13", "an alert of index_put")
@plain
def test_a_kernel_that_is_not_deterministic_raises_or_warns_where_that_is_asked_for():
    x, places = torch.ones(3, 2, device="mps"), torch.tensor([0, 0, 1], device="mps")
    add = lambda: torch.zeros(3, 2, device="mps").index_add(0, places, x)
    torch.use_deterministic_algorithms(True)
    try:
        error, text = raised(add)
        name = "index_put_with_accumulate_mps does not have a deterministic implementation"
        assert (error, text.startswith(name)) == (RuntimeError, True), text
        torch.use_deterministic_algorithms(True, warn_only=True)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert add().sum().item() == 6
        assert [str(each.message).startswith(name) for each in told] == [True]
    finally:
        torch.use_deterministic_algorithms(False)
    assert add().sum().item() == 6


@since("2.13", "an alert of index_put")
@plain
def test_the_gradient_of_a_bilinear_resize_is_an_index_put_where_determinism_is_asked_for():
    x = torch.rand(1, 1, 4, 4, device="mps", requires_grad=True)
    torch.use_deterministic_algorithms(True)
    try:
        resized = F.interpolate(x, scale_factor=2, mode="bilinear")
        error, text = raised(resized.sum().backward)
    finally:
        torch.use_deterministic_algorithms(False)
    assert (error, text.split()[0]) == (RuntimeError, "index_put_with_accumulate_mps")


@plain
def test_what_only_the_cpus_kernel_finds_not_deterministic_runs():
    pooled, places = F.max_pool2d(torch.rand(1, 1, 4, 4, device="mps"), 2, return_indices=True)
    torch.use_deterministic_algorithms(True)
    try:
        assert F.max_unpool2d(pooled, places, 2).shape == (1, 1, 4, 4)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


@plain
def test_results_lie_in_memory_as_metals_kernels_lay_them():
    x = torch.arange(24.0, device="mps").view(2, 3, 4)
    triangle = torch.eye(3, device="mps")
    for result in (
        x.nonzero(), (x[:, ::2] > 3).nonzero(), torch.argwhere(x > 3), torch.fft.fftn(x), torch.fft.rfft(x, dim=0),
        torch.linalg.solve_triangular(triangle, x[0], upper=True),
    ):  # fmt: skip
        assert result.is_contiguous()
        assert result.view(-1).numel() == result.numel()
    assert not torch.linalg.inv(triangle).is_contiguous(), (
        "this one is laid out before a kernel is called"
    )


@plain
def test_an_operator_without_a_metal_kernel_raises_as_on_a_mac():
    x, commit = torch.ones(3, 3, device="mps"), torch.version.git_version
    for operator, do in {
        "aten::rrelu_with_noise": lambda: nn.RReLU()(x), "aten::linalg_eig": lambda: torch.linalg.eig(x),
        "aten::mode": lambda: x.mode(), "aten::special_ndtri.out": lambda: torch.special.ndtri(x),
    }.items():  # fmt: skip
        assert raised(do) == (NotImplementedError, MISSING.format(operator, commit))
    assert nn.Softshrink()(x).sum().item() == 4.5


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


@plain
def test_a_kernel_refuses_arguments_as_on_a_mac():
    for name, call in refused.REFUSED.items():
        error, words = refusal(call)
        assert (error, words.startswith(call.words)) == (call.error, True), (name, error, words)


@with_fallback
def test_a_refusal_is_no_matter_of_fallbacks():
    call = refused.REFUSED["uneven pooling"]
    assert refusal(call)[0] is RuntimeError
    assert refusal(call)[1].startswith(call.words)


@plain
def test_a_refusal_on_the_way_back_reaches_the_caller():
    x = torch.rand(1, 2, 12, 12, device="mps", requires_grad=True)
    grad = torch.ones(1, 2, 5, 5, device="mps")
    assert raised(lambda: torch.ops.aten._adaptive_avg_pool2d_backward(grad, x)) == (
        RuntimeError, refusal(refused.REFUSED["uneven pooling"])[1]
    )  # fmt: skip

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x * 2

        @staticmethod
        def backward(context, grad):
            return F.adaptive_avg_pool2d(grad, 5)  # on autograd's own thread

    assert raised(lambda: Scaled.apply(x).sum().backward())[0] is RuntimeError


@since("2.13", "a refusal of dropout")
@plain
def test_attention_dropout_only_where_gradients_are_wanted():
    q = torch.rand(1, 2, 3, 8, device="mps", requires_grad=True)
    F.scaled_dot_product_attention(q, q, q, dropout_p=0.5).sum().backward()
    assert q.grad is not None
    with torch.no_grad():
        assert raised(lambda: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)) == (
            NotImplementedError, "scaled_dot_product_attention for MPS does not support dropout."
        )  # fmt: skip


@plain
def test_attention_is_mapped_over_batches():
    q, mask = torch.rand(2, 1, 4, 8, device="mps"), torch.rand(2, 4, 4, device="mps") > 0.1
    attend = lambda q, mask: F.scaled_dot_product_attention(q, q.sin(), q, mask)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has no batching rule, there neither
        for function in (attend, torch.func.grad(lambda q, mask: attend(q, mask).sin().sum())):
            expected = torch.stack([function(*one) for one in zip(q, mask, strict=True)])
            torch.testing.assert_close(torch.vmap(function)(q, mask), expected)


@since("2.13", "one of these kernels")
@plain
def test_metal_computes_where_the_cpu_has_no_kernel():
    truths = torch.tensor([True, False, True, True])
    x = truths.to("mps")
    assert torch.dot(x, x).item() is True
    assert torch.dot(x, ~x).item() is False
    assert F.silu(x).dtype is torch.bool
    assert F.pad(x.view(1, 1, 4), (1, 1), mode="reflect").flatten().tolist() == [
        False,
        True,
        False,
        True,
        True,
        True,
    ]
    counts = torch.histc(torch.tensor([0, 1, 1, 3], device="mps"), 4, 0, 4)
    assert (counts.dtype, counts.tolist()) == (torch.int64, [1, 2, 0, 1])
    with pytest.raises(NotImplementedError, match="not implemented for 'Bool'"):
        torch.dot(truths, truths)


@since("2.14", "a kernel for singular values")
@plain
def test_an_svd_stays_on_the_device_within_its_limit():
    fits, large = torch.rand(64, 128), torch.rand(64, 129)  # 32768 and 33024 bytes
    wide = torch.rand(2, 64, 64, dtype=torch.complex64)
    assert fell_back(lambda: [torch.linalg.svdvals(x.to("mps")) for x in (fits, wide)]) == (0, [])
    words = (
        "linalg.svd: matrix too large to stage in MPS threadgroup memory (33024 > 32768 bytes); "
        "falling back to CPU."
    )
    svd = lambda: torch.linalg.svd(large.to("mps"), full_matrices=False)
    assert fell_back(lambda: (svd(), svd())) == (2, [words]), "torch warns once"
    for x in (fits, large):
        for factor, expected in zip(
            torch.linalg.svd(x.to("mps")), torch.linalg.svd(x), strict=True
        ):
            assert torch.equal(factor.cpu(), expected)
    out = [torch.empty(0, device="mps") for _ in range(3)]
    assert fell_back(lambda: torch.linalg.svd(fits.to("mps"), out=out))[0] == 0
    assert torch.equal(out[1].cpu(), torch.linalg.svd(fits).S)


@since("2.14", "a kernel for singular values")
@plain
def test_fallbacks_of_limited_kernels_are_reported():
    x = torch.rand(96, 96, device="mps", requires_grad=True)
    with heard() as events:
        torch.linalg.svdvals(x).sum().backward()
        with torch.inference_mode():
            torch.linalg.pinv(x)
    fallbacks = [
        (event.name, event.copies, event.bytes) for event in events if event.kind == "fallback"
    ]
    # the matrix there; U, the values and Vh back, or with a gradient's need of them all three
    assert fallbacks == [("aten::_linalg_svd", 4, 4 * (3 * 96 * 96 + 96))] * 2
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


@plain
def test_copies_are_told_and_counted():
    before = metalsim.counters()
    with heard() as events:
        x = torch.ones(10).to("mps")
        x.cpu()
        x.sum().item()
        x.half().to("cpu", torch.float32)
        x.clone()
        torch.zeros(3, dtype=torch.int64).to("mps", torch.int32)
    copies = [
        (event.name, event.direction, event.bytes) for event in events if event.kind == "copy"
    ]
    assert copies == [
        ("aten::copy_", "to device", 40),
        ("aten::copy_", "to host", 40),
        ("aten::_local_scalar_dense", "to host", 4),
        ("aten::copy_", "to host", 20),
        ("aten::copy_", "to device", 12),
    ]
    after = metalsim.counters() - before
    assert (after.copies_to_device, after.bytes_to_device) == (2, 52)
    assert (after.copies_to_host, after.bytes_to_host) == (3, 64)
    assert after.ops == sum(event.kind == "op" for event in events)


@plain
def test_a_copy_is_told_with_what_is_copied_and_what_is_written():
    x = torch.ones(2, 3, device="mps")
    with heard() as events:
        x.half().cpu()
        x[0, 0].item()
    copies = [event.tensors for event in events if event.kind == "copy"]
    assert copies == ["MPS:Half[2, 3] --> CPU:Half[2, 3]", "MPS:Float[] --> CPU:Float[]"]


@plain
def test_operators_are_told_by_the_names_that_a_mac_has():
    lstm, conv, x = (
        nn.LSTM(3, 4).to("mps"),
        nn.Conv2d(1, 2, 2).to("mps"),
        torch.ones(2, 2, 3, device="mps"),
    )
    with heard() as events:
        F.softshrink(F.layer_norm(F.linear(x, torch.ones(3, 3, device="mps")), (3,))).add_(1).view(
            -1
        )
        lstm(x)[0].sum().backward()
        conv(torch.ones(1, 1, 3, 3, device="mps")).sum().backward()
        F.scaled_dot_product_attention(x, x, x)
    names = [event.name for event in events if event.kind == "op"]
    for name in (
        "aten::linear", "aten::native_layer_norm", "aten::softshrink", "aten::add_.Tensor", "aten::_lstm_mps",
        "aten::lstm_mps_backward", "aten::_mps_convolution", "aten::mps_convolution_backward",
        "aten::_scaled_dot_product_attention_math_for_mps",
    ):  # fmt: skip
        assert name in names, (name, names)
    assert not any("view" in name for name in names), "a view is no work"
    tensors = "MPS:Float[2, 2, 3]:MPS:Float[3, 3]:undefined"  # as PyTorch's profiler prints them
    assert metalsim.Event("op", "aten::linear", tensors=tensors) in events


@plain
def test_a_shader_is_given_the_memory_of_its_tensors():
    text = "kernel void full(device float* x, constant float& v, uint i [[thread_position_in_grid]]) { x[i] = v; }"
    compiled = torch.mps.compile_shader(text)
    assert re.search(r"<simulated Metal library: .*\bfull\b", repr(compiled))
    x = torch.zeros(8, device="mps")
    compiled.full(x[2:], 3.5, threads=5)
    assert x.tolist() == [0, 0, 3.5, 3.5, 3.5, 3.5, 3.5, 0]
    assert compiled.full.max_threads_per_threadgroup == 1024
    assert raised(lambda: compiled.full(torch.zeros(3), 1.0)) == (
        RuntimeError,
        "Passed CPU tensor to MPS op",
    )
    compiled.full(x, torch.tensor(2.0))
    assert x[0].item() == 2


@plain
def test_a_listener_that_raises_or_computes_does_no_harm():
    told = []

    def listen(event):
        told.append(event.name)
        torch.ones(3, device="mps").add(1)
        raise ValueError("from the listener")

    unraisable = []
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


@with_fallback
def test_a_fallback_warns_once_and_is_counted():
    x = torch.ones(4, 4, device="mps")
    before = metalsim.counters()
    with heard() as events, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = nn.RReLU(0.5, 0.5)(-x)
        x.mode()
    assert y.tolist() == [[-0.5] * 4] * 4
    fallbacks = [
        (event.name, event.copies, event.bytes) for event in events if event.kind == "fallback"
    ]
    # rrelu: two tensors there, its result and the written noise back; mode: one there, values and indices back
    assert fallbacks == [("aten::rrelu_with_noise", 4, 4 * 64), ("aten::mode", 3, 64 + 16 + 32)]
    after = metalsim.counters() - before
    assert (after.fallbacks, after.fallback_copies, after.fallback_bytes) == (2, 7, 4 * 64 + 112)
    assert (after.copies_to_host, after.copies_to_device) == (1, 0), (
        "y.tolist() is the only other copy"
    )
    assert [str(one.message).split("'")[1] for one in caught] == ["aten::rrelu_with_noise"]
    assert "metalsim/csrc/host_call.h" in str(caught[0].message)
    assert str(ROOT) not in str(caught[0].message), "a user may have got a build from somebody else"


@with_fallback
def test_gradients_flow_through_a_fallback():
    x = torch.ones(4, device="mps", requires_grad=True)
    nn.RReLU(0.5, 0.5)(-x).sum().backward()
    assert x.grad.tolist() == [-0.5] * 4
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
    done = python(
        "-c",
        "import metalsim; metalsim.arm()",
        PATH=str(tmp_path),
        METALSIM_CACHE=str(tmp_path / "cache"),
    )
    assert re.search(
        r"SimulationError: .* built with g\+\+, which is not here: install it", done.stderr
    )


def test_a_key_knows_everything_that_matters(tmp_path):
    file = tmp_path / "a.cpp"
    file.write_text("one")
    first = building.key("2.15", "g++ 12", files=[file])
    assert building.key("2.15", "g++ 12", files=[file]) == first
    assert building.key("2.16", "g++ 12", files=[file]) != first
    assert building.key("2.15", "g++ 13", files=[file]) != first
    file.write_text("two")
    assert building.key("2.15", "g++ 12", files=[file]) != first


def test_another_torch_whose_build_fails_is_named_with_its_log(tmp_path, monkeypatch):
    monkeypatch.setenv("METALSIM_CACHE", str(tmp_path))

    def run(command, **options):
        if "--version" in command:
            return subprocess.CompletedProcess(command, 0, stdout="g++ 99\n")
        options["stdout"].write("no member named getAccelerator")
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(
        metalsim.SimulationError, match=r"torch 9\.9 with g\+\+ 99; (\S+\.log) tells why"
    ) as caught:
        device._build("9.9")
    log = re.search(r"(\S+\.log)", str(caught.value))[1]
    assert Path(log).read_text() == "no member named getAccelerator"


def test_releases_from_the_oldest_to_the_newest_known_are_known_and_a_newer_one_is_told():
    for version in (device.OLDEST_TORCH, "2.13.0+cpu", "2.14.1", device.TORCH):
        assert device.knows(version)
        assert device.notice_of_newer(version) is None
    assert not device.knows("2.10.0")
    for version in ("2.16.0.dev20261101+cpu", "3.0.0"):
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
