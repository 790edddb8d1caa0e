"""PyTorch on the GPU: errors, memory, events, number formats"""

from __future__ import annotations

import ctypes
import gc
import re
import time
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils import benchmark

from conformance.claims import ON_A_MAC
from metallab import device, units
from metallab.imaging import edges
from metallab.pytorch import coverage, networks
from metalsim import refusals

pytestmark = pytest.mark.claim(on="gpu")
FLOAT64 = (
    "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
    "Please use float32 instead."
)
MISSING = "The operator 'aten::{}' is not currently implemented for the MPS device."
LOW = {
    "linear": lambda x: F.linear(x, torch.ones(8, 4, device=x.device)), "matmul": lambda x: x @ x,
    "conv2d": lambda x: F.conv2d(x, torch.ones(8, 4, 3, 3, device=x.device)),
}  # fmt: skip
HIGH = {
    "exp": torch.exp, "sum": torch.sum, "norm": torch.linalg.vector_norm, "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]), "mse_loss": lambda x: F.mse_loss(x, x),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
}  # fmt: skip


def _heard(action: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a call returns, and the warnings that were heard meanwhile."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        result = action()
    return result, [str(warning.message) for warning in heard]


@pytest.mark.claim(used_in="metallab.device.probe, every notebook")
def test_product_is_exact(evidence):
    """A product of small whole numbers is exact on the GPU, and PyTorch names the device as this project expects."""
    current = torch.accelerator.current_accelerator()
    evidence("accelerator", str(current))
    evidence("devices", torch.mps.device_count())
    if ON_A_MAC:
        evidence("name", torch.backends.mps.get_name())
        evidence("GPU cores", torch.backends.mps.get_core_count())
    assert device.probe("mps") is None
    assert str(current) == "mps"


@pytest.mark.claim(used_in="notebook 10, what goes wrong")
def test_float64_is_refused():
    """Moving a float64 tensor to the GPU raises the TypeError whose words notebook 10 shows."""
    with pytest.raises(TypeError, match=f"^{re.escape(FLOAT64)}"):
        torch.zeros(2, dtype=torch.float64).to("mps")


@pytest.mark.claim(used_in="notebook 10, what goes wrong")
def test_mixed_devices_are_refused():
    """A sum of a tensor on the GPU and one on the CPU raises RuntimeError: all tensors on the same device."""
    with pytest.raises(RuntimeError, match=r"^Expected all tensors to be on the same device"):
        torch.ones(2, 2, device="mps") + torch.ones(2, 2)


@pytest.mark.claim(used_in="docs/test_mps_on_linux.md, words of a tensor left on the CPU")
def test_a_product_of_two_devices_has_no_storage():
    """A product of a tensor on the GPU with one on the CPU raises RuntimeError: placeholder storage not allocated."""
    with pytest.raises(RuntimeError, match=r"^Placeholder storage has not been allocated"):
        torch.ones(2, 2, device="mps") @ torch.ones(2, 2)


@pytest.mark.claim(used_in="notebooks 10 and 14")
def test_missing_kernel_raises():
    """RReLU, the missing operator of today, raises NotImplementedError with the words that notebook 10 shows."""
    with pytest.raises(
        NotImplementedError, match=f"^{re.escape(MISSING.format('rrelu_with_noise'))}"
    ):
        torch.nn.RReLU()(torch.ones(2, device="mps"))


@pytest.mark.claim(
    used_in="notebooks 10 and 14, metallab.pytorch.coverage",
    environment={"PYTORCH_ENABLE_MPS_FALLBACK": "1"},
)
def test_fallback_variable_computes(evidence):
    """With PYTORCH_ENABLE_MPS_FALLBACK=1 RReLU computes on the CPU, and warns once in all."""
    rrelu, x = torch.nn.RReLU().eval(), torch.linspace(-1, 1, 8)
    results, heard = _heard(lambda: [rrelu(x.to("mps")).cpu() for _ in range(3)])
    evidence("warnings", heard)
    torch.testing.assert_close(results, [rrelu(x)] * 3)
    assert sum("fall back" in text for text in heard) == 1


@pytest.mark.claim(used_in="metalsim.operators.OTHERWISE")
def test_one_operator_falls_back_by_itself(evidence):
    """embedding_renorm_ computes without the variable: PyTorch itself sends it to the CPU, and warns."""
    table, rows = torch.rand(5, 4), torch.tensor([1, 2])
    truth = F.embedding(rows, table.clone(), max_norm=0.5)
    result, heard = _heard(lambda: F.embedding(rows.to("mps"), table.to("mps"), max_norm=0.5).cpu())
    evidence("warnings", heard)
    torch.testing.assert_close(result, truth, atol=1e-4, rtol=1e-4)
    assert sum("fall back" in text for text in heard) == 1


def _symmetric(*shape: int) -> torch.Tensor:
    x = torch.rand(shape)
    return x + x.mT


VALUES = {
    "aten::_linalg_svd": torch.linalg.svdvals,
    "aten::_linalg_eigh": torch.linalg.eigvalsh,
}


def _values_with_warnings(operator: str, x: torch.Tensor) -> list[str]:
    """Compute a matrix's values on the GPU, compare them with the CPU's, and return the warnings that were heard."""
    result, heard = _heard(lambda: VALUES[operator](x.to("mps")).cpu())
    torch.testing.assert_close(result, VALUES[operator](x), atol=1e-3, rtol=1e-3)
    return heard


def _warnings_foretold(operator: str, x: torch.Tensor) -> list[str]:
    expected = refusals.outcome(operator, (x,))
    return [expected.warning] if expected else []


@pytest.mark.claim(used_in="metalsim.refusals.detours")
def test_linalg_kernels_warn_beyond_their_limits(evidence):
    """svd and eigh are right without a word as long as a threadgroup's memory of 32 KiB holds what they stage.

    Beyond it they are right, too, and warn with the words and the numbers that `metalsim.refusals` has. That
    eigh leaves small work to the CPU without a word cannot be seen here.
    """
    asked = {  # within the limit first: each warning comes once in a process
        "svd of 64 x 128": ("aten::_linalg_svd", torch.rand(64, 128)),
        "eigh of 3 times 64 x 64": ("aten::_linalg_eigh", _symmetric(3, 64, 64)),
        "svd of 64 x 129": ("aten::_linalg_svd", torch.rand(64, 129)),
        "eigh of 3 times 65 x 65": ("aten::_linalg_eigh", _symmetric(3, 65, 65)),
    }
    foretold = {name: _warnings_foretold(*given) for name, given in asked.items()}

    heard = {name: _values_with_warnings(*given) for name, given in asked.items()}
    for name, told in heard.items():
        evidence(name, told)

    words = {name: [text.split(" (Triggered")[0] for text in told] for name, told in heard.items()}
    assert words == foretold


def _refused() -> dict[str, tuple]:
    """Return by operator arguments that its kernel refuses.

    Pooling to sizes that do not divide the image's, attention with dropout, a convolution of whole numbers, a transform
    over five dimensions, the inverse of a complex matrix, and half precision.
    """
    image, query = torch.rand(1, 2, 12, 12), torch.rand(1, 2, 3, 8)

    return {
        "aten::_adaptive_avg_pool2d": (image, [5, 5]),
        "aten::_scaled_dot_product_attention_math_for_mps": (query, query, query, None, 0.5),
        "aten::convolution": (
            image.long(),
            image.long(),
            None,
            [1, 1],
            [0, 0],
            [1, 1],
            False,
            [0, 0],
            1,
        ),
        "aten::_fft_c2c": (
            torch.rand(1, 2, 2, 2, 2, dtype=torch.complex64),
            [0, 1, 2, 3, 4],
            0,
            True,
        ),
        "aten::linalg_inv_ex": (torch.eye(3, dtype=torch.complex64),),
        "torchvision::_roi_align_backward": (
            *(torch.ones(1, 2, 2, 2).half(), torch.zeros(1, 5).half()),
            *(1.0, 2, 2, 1, 2, 4, 4, -1, False),
        ),
    }


@pytest.mark.claim(used_in="metalsim.refusals.rules")
@pytest.mark.parametrize("operator", _refused())
def test_kernels_refuse_arguments_in_these_words(operator):
    """Pooling, attention, convolution, Fourier transforms and an inverse refuse what is foretold, in the same words.

    So does the gradient of torchvision's roi_align in float16, after the file and the line that say so.
    """
    import torchvision  # noqa: F401  # its operators

    arguments = _refused()[operator]
    foretold = refusals.outcome(operator, arguments)
    namespace, _, name = operator.partition("::")
    call = getattr(getattr(torch.ops, namespace), name).default
    with pytest.raises(foretold.error) as refused:
        call(*(x.to("mps") if isinstance(x, torch.Tensor) else x for x in arguments))
    assert refused.type is foretold.error  # and no subclass, which is raised for other reasons
    # without the source file and its line, whose folder is another one on each machine that builds PyTorch
    assert str(refused.value).splitlines()[0].endswith(foretold.words.rpartition(".mm, ")[2])


@pytest.mark.claim(used_in="metalsim.operators.TORCHVISION")
def test_deform_conv2d_has_no_backward():
    """torchvision's deform_conv2d computes on the GPU, and its backward pass raises NotImplementedError."""
    import torchvision

    x, offset, weight = torch.rand(1, 2, 5, 5), torch.rand(1, 18, 3, 3), torch.rand(1, 2, 3, 3)
    y = torchvision.ops.deform_conv2d(
        x.to("mps"), offset.to("mps"), weight.to("mps").requires_grad_()
    )
    torch.testing.assert_close(
        y.detach().cpu(), torchvision.ops.deform_conv2d(x, offset, weight), atol=1e-4, rtol=1e-4
    )
    with pytest.raises(NotImplementedError):
        y.sum().backward()


ABSENT = {
    "mode": lambda x, _: x.mode(),
    "special_ndtri": lambda x, _: torch.special.ndtri(x),
    "special_log_ndtr": lambda x, _: torch.special.log_ndtr(x),
    "multi_margin_loss": lambda x, _: F.multi_margin_loss(
        x, torch.zeros(3, dtype=torch.long).to("mps")
    ),
    "multilabel_margin_loss": lambda x, _: F.multilabel_margin_loss(
        x, torch.zeros(3, 4, dtype=torch.long).to("mps")
    ),
    "adaptive_avg_pool3d": lambda _, video: F.adaptive_avg_pool3d(video, 2),
    "adaptive_max_pool3d": lambda _, video: F.adaptive_max_pool3d(video, 2),
    "fractional_max_pool2d": lambda _, video: F.fractional_max_pool2d(video[0], 2, output_size=3),
    "fractional_max_pool3d": lambda _, video: F.fractional_max_pool3d(video, 2, output_size=3),
    "linalg_eig": lambda x, _: torch.linalg.eig(x[:, :3]),
}


@pytest.mark.claim(used_in="notebooks 10 and 14, metallab.pytorch.coverage")
@pytest.mark.parametrize("operator", ABSENT)
def test_these_operators_are_missing(operator):
    """What has no Metal kernel by PyTorch's table raises: mode, ndtri, multi_margin_loss, 3-D pooling, eig and others.

    Each raises NotImplementedError, and no other error.
    """
    with pytest.raises(NotImplementedError):
        ABSENT[operator](torch.rand(3, 4).to("mps"), torch.rand(1, 1, 6, 6, 6).to("mps"))


@pytest.mark.claim(used_in="notebook 10, will my model run on MPS", seconds=180, slow=True)
@pytest.mark.parametrize("make", [networks.talk_mlp, networks.cnn, networks.transformer])
def test_coverage_foretells_networks(make, evidence):
    """What `coverage` foretells of the talk's network, convolutions and a Transformer block happens on the GPU."""
    network = make()
    model = network.model.eval()
    foretold = coverage.mps_coverage(model, *network.inputs)
    evidence("foretold", foretold.answer)
    assert foretold.runs
    with torch.no_grad():
        model.to("mps")(*(each.to("mps") for each in network.inputs))
    torch.mps.synchronize()


@pytest.mark.claim(used_in="notebook 10, copies and views")
def test_moving_to_the_cpu_copies():
    """``.to("cpu")`` copies on an Apple GPU, although both use the same memory; views on the GPU share it."""
    base = torch.zeros(4, 4, device="mps")
    base.to("cpu").fill_(1)
    base.t()[1:].fill_(1)
    assert base[:, 0].sum().item() == 0
    assert base.sum().item() == 12


@pytest.mark.claim(used_in="notebook 10, events")
def test_events_measure(evidence):
    """Two events with enable_timing, waited for, give a time above 0 and not above what Python waited.

    A product of two matrices of 1024 x 1024, after three that warm up.
    """
    a = torch.rand(1024, 1024).to("mps")
    start, end = (torch.mps.Event(enable_timing=True) for _ in range(2))

    def time_a_product() -> tuple[float, float]:
        torch.mps.synchronize()
        begin = time.perf_counter()
        start.record()
        a @ a
        end.record()
        end.synchronize()
        return start.elapsed_time(end), 1e3 * (time.perf_counter() - begin)

    pairs = [time_a_product() for _ in range(4)]
    evidence("milliseconds between events, and waited", pairs)
    between, waited = pairs[-1]
    if not ON_A_MAC and not between > 0:
        pytest.skip("the simulated events have no times")
    assert 0 < between <= waited


@pytest.mark.claim(used_in="notebook 10, the talk's events")
def test_events_without_waiting(evidence):
    """``elapsed_time`` before the second event was waited for is an error, or a number that is not to be believed.

    The claim is weak on purpose: what happens is recorded.
    """
    a = torch.rand(2048, 2048).to("mps")
    start, end = (torch.mps.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(4):
        a @ a
    end.record()
    try:
        at_once = start.elapsed_time(end)
    except RuntimeError as error:
        evidence("at once", units.first_line(error, kind=True))
        return
    end.synchronize()
    true = start.elapsed_time(end)
    evidence("milliseconds at once, and after waiting", (at_once, true))

    assert at_once <= 1.01 * true


@pytest.mark.claim(used_in="notebook 17, metallab.memory")
def test_accelerator_counts_memory(evidence):
    """``torch.accelerator`` counts memory on MPS: current, peak, and a peak that can be reset."""
    told = torch.accelerator
    gc.collect()  # what other tests left
    torch.mps.synchronize()
    told.reset_peak_memory_stats()
    before = told.memory_allocated()

    block = torch.empty(16 * 2**20, dtype=torch.uint8, device="mps")
    during, peak = told.memory_allocated() - before, told.max_memory_allocated() - before
    del block
    after, kept = told.memory_allocated() - before, told.max_memory_allocated() - before
    told.reset_peak_memory_stats()
    reset = told.max_memory_allocated() - before

    evidence(
        "of 16 MiB",
        {"during": during, "peak": peak, "after": after, "peak after": kept, "peak reset": reset},
    )
    assert during >= 16 * 2**20
    assert peak >= during
    assert after < during
    assert kept >= during
    assert reset < during


@pytest.mark.claim(used_in="notebook 10, memory: current, peak, pool")
def test_pool_keeps_what_was_freed(evidence):
    """What the driver gave stays in PyTorch's pool when tensors are freed, until ``empty_cache``."""
    gc.collect()  # what other tests left
    torch.mps.empty_cache()

    block = torch.empty(64 * 2**20, dtype=torch.uint8, device="mps")
    full = torch.mps.driver_allocated_memory()
    del block
    freed = torch.mps.driver_allocated_memory()
    torch.mps.empty_cache()
    emptied = torch.mps.driver_allocated_memory()

    evidence("bytes with 64 MiB, freed, emptied", (full, freed, emptied))
    assert freed >= full - 2**20
    assert emptied < freed


@pytest.mark.claim(used_in="notebook 10, the talk's set_per_process_memory_fraction(0)")
def test_memory_fraction_wants_a_float():
    """``set_per_process_memory_fraction`` raises TypeError for an int, ValueError beyond 2, and takes floats."""
    limit = torch.mps.set_per_process_memory_fraction
    with pytest.raises(TypeError):
        limit(0)
    with pytest.raises(ValueError, match=""):  # noqa: PT011  # its words are nobody's business
        limit(2.5)

    limit(0.0)
    limit(0.5)
    limit(1.7)


@pytest.mark.claim(used_in="notebook 10, metallab.memory")
def test_limit_ends_in_out_of_memory(evidence):
    """A tensor beyond the limit raises a plain RuntimeError that has the limit, a fraction of what is recommended.

    The limit is 0.02 of ``recommended_max_memory``, the tensor 0.04 of it; nothing is written into it.
    """
    recommended = torch.mps.recommended_max_memory()
    torch.mps.set_per_process_memory_fraction(0.02)
    try:
        with pytest.raises(RuntimeError) as refused:
            torch.empty(int(0.04 * recommended), dtype=torch.uint8, device="mps")
    finally:
        torch.mps.set_per_process_memory_fraction(1.7)  # as it is unless it is set
    evidence("message", str(refused.value))
    assert type(refused.value) is RuntimeError
    assert _share_of(refused.value, recommended) == pytest.approx(0.02, abs=0.002)


@pytest.mark.claim(on="mac", used_in="notebook 10, which sets the fraction back to 1.7")
def test_limit_is_1_7_unless_set(evidence):
    """Unless it is set, the limit is 1.7 times what the driver recommends.

    Asks for tensors of 0.4 of the recommended size, up to 2.4 in all, until one is refused, and reads the limit in the
    message. Nothing is written into them, so that macOS need not find memory for them.
    """
    recommended = torch.mps.recommended_max_memory()
    size = int(0.4 * recommended)
    held = []

    def fill():
        while len(held) < 6:
            held.append(torch.empty(size, dtype=torch.uint8, device="mps"))

    with pytest.raises(RuntimeError) as refused:
        fill()
    held.clear()
    torch.mps.empty_cache()
    evidence("message", str(refused.value))
    share = _share_of(refused.value, recommended)
    if share is None:
        pytest.skip(f"another limit came first: {units.first_line(refused.value, kind=True)}")
    assert share == pytest.approx(1.7, abs=0.05)


def _share_of(error: BaseException, recommended: int) -> float | None:
    """The limit in the words of an out-of-memory error, as a share of the recommended size."""
    match = re.search(r"max allowed: ([\d.]+) (bytes|[KMG]i?B)", str(error))
    if not match:
        return None
    scale = {"b": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match[2][0]]
    return float(match[1]) * scale / recommended


@pytest.mark.claim(used_in="notebook 17, what autocast lists")
def test_autocast_is_float16_unless_told_otherwise():
    """autocast on the GPU is float16 unless told otherwise."""
    assert torch.get_autocast_dtype("mps") == torch.float16


@pytest.mark.claim(used_in="notebook 17, what autocast lists")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_keeps_to_its_lists(dtype, evidence):
    """Under autocast products and convolutions go low; exponentials, norms and sums stay in float32.

    As in notebook 17, in float16 and in bfloat16: the dtype of a result, whatever the dtype of the input.
    """
    inputs = [torch.ones(2, 4, 4, 4, device="mps", dtype=given) for given in (torch.float32, dtype)]
    with torch.autocast("mps", dtype):
        came_out = {name: {call(x).dtype for x in inputs} for name, call in (LOW | HIGH).items()}
    evidence("results", {name: sorted(map(str, dtypes)) for name, dtypes in came_out.items()})
    assert came_out == {name: {dtype if name in LOW else torch.float32} for name in came_out}


@pytest.mark.claim(used_in="notebook 16, loss scaling")
def test_grad_scaler_skips_infinities():
    """``GradScaler("mps")`` halves its scale and skips the step when a gradient is infinite, and else takes it."""
    weight = torch.nn.Parameter(torch.ones(4, device="mps"))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler = torch.amp.GradScaler("mps", init_scale=4.0)

    def step(factor: float) -> tuple[float, float]:
        optimizer.zero_grad()
        scaler.scale((factor * weight).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        return weight[0].item(), scaler.get_scale()

    assert step(1.0) == (0.5, 4.0)
    assert step(float("inf")) == (0.5, 2.0)


@pytest.mark.claim(used_in="pyproject.toml: why torch 2.15")
def test_large_inner_sizes_are_right(evidence):
    """A product over 40000 numbers is right: releases up to 2.13 are wrong beyond 32768."""
    a, b = torch.randn(8, 40000), torch.randn(40000, 8)
    layer = torch.nn.Linear(40000, 8)
    want = layer(a).detach().double()
    mm = ((a.to("mps") @ b.to("mps")).cpu().double() - a.double() @ b.double()).abs().max().item()
    linear = (layer.to("mps")(a.to("mps")).detach().cpu().double() - want).abs().max().item()
    evidence("largest errors", {"mm": mm, "linear": linear})
    assert mm < 0.05
    assert linear < 0.005


@pytest.mark.claim(used_in="notebook 65", slow=True)
@pytest.mark.parametrize("operator", edges.OPERATORS)
def test_operators_agree_at_their_edges(operator, evidence):
    """Of nothing, one element, ties, NaN and odd sizes, operators give what NumPy gives.

    Those on complex32 may be refused, which is no fault; a wrong result is.
    """
    lab = device.pick()
    outcomes = {case.name: case.outcome(lab) for case in edges.cases(operator)}
    evidence("outcomes", {name: str(outcome) for name, outcome in outcomes.items()})
    may_be_refused = operator == "complex32"
    wrong = [
        f"{name}: {outcome}"
        for name, outcome in outcomes.items()
        if not outcome.agrees and not (may_be_refused and outcome.outcome == "refused")
    ]
    assert not wrong


@pytest.mark.claim(on="mac", used_in="notebook 24 and softshrink.mm")
def test_storage_is_a_metal_buffer(evidence):
    """A tensor's storage pointer is an MTLBuffer, whose contents PyObjC can read without a copy by PyTorch.

    The object at the pointer is asked for its class, its length and its bytes.
    """
    import objc

    x = torch.arange(16.0).to("mps")
    torch.mps.synchronize()
    buffer = objc.objc_object(c_void_p=ctypes.c_void_p(x.untyped_storage().data_ptr()))
    evidence("class", type(buffer).__name__)
    evidence("bytes", int(buffer.length()))
    evidence("storageMode", mode := int(buffer.storageMode()))
    assert buffer.length() >= 64
    if mode == 0:  # MTLStorageModeShared: the CPU can read it
        assert np.frombuffer(buffer.contents().as_buffer(64), np.float32).tolist() == x.tolist()


@pytest.fixture
def waits():
    """PyTorch's functions that wait for a GPU, as mocks."""
    with (
        mock.patch.object(torch.mps, "synchronize") as of_mps,
        mock.patch.object(torch.accelerator, "synchronize") as of_accelerator,
    ):
        yield lambda: of_mps.call_count + of_accelerator.call_count


@pytest.mark.claim(used_in="metallab.timing, after torch.utils.benchmark")
def test_benchmark_timer_waits(waits):
    """``torch.utils.benchmark.Timer`` waits for MPS before it reads the clock, as it does since 2.9.

    Counts how often PyTorch's functions that wait are called meanwhile.
    """
    benchmark.Timer("a @ a", globals={"a": torch.ones(8, 8).to("mps")}).timeit(3)
    assert waits() >= 2


@pytest.mark.claim(used_in="notebook 61, the library's own figures", seconds=120)
def test_ultralytics_does_not_wait(waits):
    """The times of ultralytics' stages do not wait for MPS."""
    from ultralytics.utils.ops import Profile

    with Profile(device=torch.device("mps")):
        torch.ones(8, 8).to("mps") @ torch.ones(8, 8).to("mps")
    assert waits() == 0
