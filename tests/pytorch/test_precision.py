"""Number formats, autocast's choices, gradients and quality: each against an answer from elsewhere."""

from __future__ import annotations

import functools
import math
import re
import struct

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from metallab import quality
from metallab.pytorch import precision

NUMBERS = (0.1, -0.1, 1.0, -3.0, 0.0, 65504.0, 1e-6, -6e-8, 3.0e38, math.pi)


def by_struct(number: float, dtype: torch.dtype) -> str:
    """The bits of a number by Python's own `struct`; bfloat16 is the upper half of float32, rounded to even."""
    if dtype == torch.float16:
        return f"{struct.unpack('>H', struct.pack('>e', number))[0]:016b}"
    (whole,) = struct.unpack(">I", struct.pack(">f", number))
    if dtype == torch.bfloat16:
        return f"{(whole + 0x7FFF + (whole >> 16 & 1)) >> 16:016b}"
    return f"{whole:032b}"


def test_bits_are_those_of_the_standard():
    for dtype in precision.FORMATS:
        for number in NUMBERS:
            if dtype == torch.float16 and abs(number) > 65504:
                continue
            kept = precision.stored(number, dtype)
            assert kept.bits == by_struct(number, dtype), (number, dtype)
            assert kept.value == torch.tensor(number).to(dtype).item()
    each = [precision.stored(1, dtype) for dtype in precision.FORMATS]
    lengths = [[len(part) for part in (kept.sign, kept.exponent, kept.fraction)] for kept in each]
    assert lengths == [[1, 8, 23], [1, 5, 10], [1, 8, 7]]


def test_a_cast_loses_what_the_format_says():
    powers = range(-30, 20)
    half, brain = (precision.cast_errors(dtype, "cpu", powers) for dtype in (torch.float16, torch.bfloat16))
    at = dict(zip(powers, half, strict=True))
    assert all(at[power] == 1 for power in range(-30, -25)), "below half of the smallest subnormal nothing is left"
    assert 0.2 < at[-24] <= 0.5, "one bit is left"
    assert all(2**-12 < at[power] <= 2**-11 for power in range(-14, 15)), "half a unit in the last of 11 bits"
    assert all(math.isinf(at[power]) for power in range(16, 20))
    assert (brain <= 2**-8).all()
    assert (brain > 2**-9).all()


def test_autocast_s_choice_is_read_from_calls():
    """Of both kinds of device, without one of them: fake tensors have the dispatcher's lists and no numbers."""
    here = precision.choices("cpu", torch.bfloat16)
    x = torch.ones(2, 4, 4, 4)
    for name, given in ((name, given) for name in here for given in (torch.float32, torch.bfloat16)):
        with torch.autocast("cpu", torch.bfloat16):
            came_out = precision.TRIED[name](x.to(given)).dtype
        assert came_out == {"low": torch.bfloat16, "float32": torch.float32, "as given": given}[here[name]], name
    with FakeTensorMode():
        assert precision.choices("cpu", torch.bfloat16, size=64) == here
        there = precision.choices("mps")
    expected = {"linear": "low", "conv2d": "low", "softmax": "float32", "sum": "float32", "relu": "as given"}
    assert {name: there[name] for name in expected} == expected
    added = lambda: torch.ones(2, dtype=torch.float16).sum(dtype=torch.float32)
    assert precision.formats(added) == {torch.float32}, "what is asked for a float32 sum adds up in float32"
    assert there["attention"] in ("raises", "low"), "its kernel for mps wants to know the device"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.filterwarnings("ignore:.*Disabling autocast")
def test_a_device_without_autocast_is_refused():
    with pytest.raises(ValueError, match="no autocast for 'cuda'"):
        precision.choices("cuda")
    with pytest.raises(ValueError, match="float64"):
        precision.choices("cpu", torch.float64)


def test_gradients_are_those_of_outputs_and_weights():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
        model[2].weight.copy_(torch.tensor([[-2.0, 3.0]]))
    x = torch.tensor([[5.0, 0.0]])  # hidden: 5 and -5, after ReLU 5 and 0; the output is -10
    sizes = precision.gradient_sizes(model, lambda: model(x).sum())
    # by the output 1; by ReLU's output -2, 3; by its input -2, 0; by the weights 5, 0 and -10, 0, 0, 0
    assert sorted(sizes.tolist()) == [1, 2, 2, 3, 5, 10]
    assert all(weight.grad is None for weight in model.parameters())


def test_gradients_vanish_while_they_are_rounded():
    model = nn.Linear(1, 1)
    for scale, kept in ((2.0**-20, True), (2.0**-30, False)):
        model.zero_grad()
        with precision.gradients_rounded(model, torch.float16):
            (model(torch.ones(1, 1)).sum() * scale).backward()
        assert (model.weight.grad.item() != 0) is kept
    (model(torch.ones(1, 1)).sum() * 2.0**-30).backward()
    assert model.weight.grad.item() == 2.0**-30, "as before, after the block"


def test_the_outcome_of_casts_is_counted():
    sizes = torch.tensor([2.0**-40, 2.0**-26, 2.0**-30, 2.0**-24, 2.0**-15, 2.0**-14, 1.0, 2.0**17])
    shares = lambda *arguments: re.findall(r"[\d.]+(?=%)", precision.cast_outcome(sizes, *arguments))
    assert shares(torch.float16) == ["37.5", "25.0", "12.5"]
    assert shares(torch.float16, 2.0**-4)[2] == "0.0"
    assert shares(torch.bfloat16) == ["0.0", "0.0", "0.0"]


def test_what_is_kept_is_counted_once_and_without_the_weights():
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4))
    x = torch.randn(2, 8)

    def loss():
        out = model(x)
        return (out * out.exp()).sum()

    # the input, what the first layer gives to the second, the output, its exponential: float32
    assert precision.kept_for_backward(model, loss) == 4 * (2 * 8 + 3 * 2 * 4)


class Blobs:
    """Two kinds of pictures that a line tells apart."""

    def __init__(self, pictures: int = 96) -> None:
        generator = torch.Generator().manual_seed(1)
        classes = torch.arange(pictures) % 2
        images = torch.randn(pictures, 1, 8, 8, generator=generator) + 0.35 * (2 * classes - 1)[:, None, None, None]
        self.data = precision.Data((images[:64], classes[:64]), (images[64:], classes[64:]))


def build() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 2))


def starter(rate: float = 0.01, notes: list | None = None):
    """A plain training step."""

    def start(model, dtype):
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)

        def step(images, classes):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype != torch.float32):
                loss = F.cross_entropy(model(images), classes)
            loss.backward()
            optimizer.step()
            if notes is not None:
                notes.append((optimizer.param_groups[0]["lr"], images.sum().item(), loss.item()))
            return loss.detach()

        return step, optimizer

    return start


def train(kinds, data=None, **options):
    """Each kind's training, by its name, from Blobs in batches of 16."""
    return precision.train_in_turns(kinds, build, data or Blobs().data, **{"seconds": 1e6, "batch": 16} | options)


def test_runs_are_paired_by_their_seed():
    data, notes = Blobs().data, []
    kinds = {"a": (starter(notes=notes), torch.float32), "b": (starter(), torch.bfloat16)}
    before = torch.get_rng_state()
    trained = train(kinds, data, seeds=2, epochs=3)
    assert torch.equal(torch.get_rng_state(), before)
    first, again = trained["a"], trained["b"]
    assert first.losses.shape == (2, 3)
    assert np.allclose(first.losses, again.losses, rtol=0.02)
    assert (first.losses != again.losses).any()
    rates, sums, losses = zip(*notes, strict=True)
    assert np.allclose(np.diff(rates[:12]), -0.01 / 12), "in a line, to 0 after the last step"
    assert math.isclose(sum(sums[:4]), data.train[0].sum().item(), rel_tol=1e-3), "an epoch is all of the pictures"
    assert sums[:4] != sums[12:16], "another seed, another order"
    assert math.isclose(first.losses[1, 0], np.mean(losses[12:16]), rel_tol=1e-5)


def test_nothing_is_trained_without_seeds_epochs_or_a_batch():
    for wrong in ({"seeds": 0}, {"seeds": -1}, {"epochs": 0}, {"batch": 0}):
        (name,) = wrong
        with pytest.raises(ValueError, match=f"^{name} is {wrong[name]}"):
            train({"a": (starter(), torch.float32)}, **{"seeds": 1, "epochs": 1} | wrong)


def without_scaler(scale):
    return functools.partial(precision.start_without_scaler, scale=scale, rate=0.01)


def test_a_planted_loss_is_found_in_real_trainings():
    """float16 gradients of a loss that is far too small train badly; bfloat16 as well as float32."""
    kinds = {
        "float32": (starter(), torch.float32),
        "bfloat16": (starter(), torch.bfloat16),
        "planted": (without_scaler(2.0**-26), torch.float32),
        "scaled": (without_scaler(2.0**-6), torch.float32),
    }
    base, small, planted, harmless = train(kinds, seeds=6, epochs=4).runs.values()
    assert quality.compare(base, planted, margin=3.0).conclusion == "loss"
    assert quality.compare(base, small, margin=3.5).conclusion == "no loss"  # a picture of the test is 3.1 points
    assert quality.compare(base, harmless, margin=3.5).conclusion == "no loss"


def test_lists_stand_side_by_side():
    table = precision.compare_lists("cpu", "mps")
    assert table.data.loc["softmax"].tolist() == ["as given", "float32"]
    assert table.data.loc["conv2d"].tolist() == ["low", "low"]
    assert "raises" not in table.data.to_numpy(), "what fake tensors cannot tell is not called an error"
    assert table.to_html().count("background") >= 2, "low and float32 have colours"


def test_half_the_bits_keep_half_the_bytes():
    model, x = nn.Linear(64, 64), torch.randn(8, 64)

    def loss(model, dtype):
        return model(x).to(dtype).exp().sum()  # exp keeps its result

    kept = precision.kept_in_formats(model, loss)
    exact = {"float32": 4, "float16": 2, "bfloat16": 2}
    assert kept == {name: 4 * x.numel() + size * x.numel() for name, size in exact.items()}


def test_kinds_train_from_the_same_seeds_while_there_is_time():
    """A slow format costs seeds of all kinds, never pairs."""
    now = [0.0]

    def slow(model, dtype):
        now[0] += 4
        return starter()(model, dtype)

    kinds = {"float32": (starter(), torch.float32), "slow": (slow, torch.bfloat16)}
    trained = train(kinds, seeds=7, epochs=2, seconds=10, clock=lambda: now[0])
    assert [training.losses.shape for training in trained.runs.values()] == [(2, 2), (2, 2)]
    assert "numbered 2, 3, 4, 5, 6" in trained.left_out
    assert trained.losses.keys() == kinds.keys()


def test_digits_are_scikit_learns_and_split_once():
    data = precision.digits()
    pixels, classes = load_digits(return_X_y=True)
    assert np.array_equal(torch.cat([data.train[0], data.test[0]]).flatten(1).numpy(), (pixels / 16).astype("float32"))
    assert np.array_equal(torch.cat([data.train[1], data.test[1]]).numpy(), classes)
    assert [tuple(part[0].shape) for part in (data.train, data.test)] == [(1257, 1, 8, 8), (540, 1, 8, 8)]


def test_pictures_name_the_device_and_say_what_they_show():
    sizes = torch.tensor([2.0**-30, 2.0**-20, 1.0, 1.0])
    pictures = {
        "01111011": precision.draw_bits(0.1, device="cpu", label="a device"),
        "bfloat16: relative error": precision.draw_cast_errors(device="cpu", label="a device"),
        "as they are: 25.0% become 0": precision.draw_gradients(sizes, 1024.0, label="a device"),
    }
    for words, figure in pictures.items():
        assert "a device" in figure.get_suptitle()
        assert words in figure.get_label()
