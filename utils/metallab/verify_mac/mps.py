"""PyTorch's MPS device: errors, missing operators, memory, events, number formats."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

from metallab import units
from metallab.verify_mac.trial import Finding, judged, not_applicable, simulated, trial

FLOAT64 = (
    "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
    "Please use float32 instead."
)
MISSING = "The operator 'aten::{}' is not currently implemented for the MPS device."
FALLBACK = {"PYTORCH_ENABLE_MPS_FALLBACK": "1"}
LOW = ("linear", "matmul", "conv2d", "prelu")
HIGH = ("exp", "log", "pow", "softmax", "log_softmax", "layer_norm", "group_norm", "batch_norm", "sum", "mse_loss")


def _raised(action: Callable[[], Any]) -> BaseException | None:
    import torch

    try:
        action()
        torch.mps.synchronize()
    except Exception as error:  # noqa: BLE001  # whatever it is, it is what the trial asked for
        return error
    return None


def _is(error: BaseException | None, kind: type, begins: str) -> Finding:
    """Judge an exception by its type and the beginning of its message."""
    if error is None:
        return judged(False, f"nothing was raised; expected {kind.__name__}: {begins}")
    holds = type(error) is kind and str(error).startswith(begins)
    return judged(holds, units.first_line(error, kind=True), message=str(error), expected=f"{kind.__name__}: {begins}")


@trial(on="gpu", used_in="metallab.device.probe, every notebook")
def product_is_exact() -> Finding:
    """A product of small whole numbers is exact on the GPU, and PyTorch names the device as this project expects."""
    import torch

    from metallab import device

    fault = device.probe("mps")
    current = torch.accelerator.current_accelerator()
    named = {"accelerator": str(current), "devices": torch.mps.device_count()}
    if not simulated():
        named |= {"name": torch.backends.mps.get_name(), "GPU cores": torch.backends.mps.get_core_count()}
    return judged(fault is None and str(current) == "mps", fault or f"exact, and the accelerator is {current}", **named)


@trial(on="gpu", used_in="notebook 02, three errors that everybody meets")
def float64_is_refused() -> Finding:
    """Moving a float64 tensor to the GPU raises the TypeError whose words notebook 02 shows."""
    import torch

    return _is(_raised(lambda: torch.zeros(2, dtype=torch.float64).to("mps")), TypeError, FLOAT64)


@trial(on="gpu", used_in="notebook 02, three errors that everybody meets")
def mixed_devices_are_refused() -> Finding:
    """A product of a tensor on the GPU with one on the CPU raises RuntimeError: all tensors on the same device."""
    import torch

    error = _raised(lambda: torch.ones(2, 2, device="mps") @ torch.ones(2, 2))
    return _is(error, RuntimeError, "Expected all tensors to be on the same device")


@trial(on="gpu", used_in="notebooks 02 and 03")
def missing_kernel_raises() -> Finding:
    """RReLU, the missing operator of today, raises NotImplementedError with the words that notebook 02 shows."""
    import torch

    error = _raised(lambda: torch.nn.RReLU()(torch.ones(2, device="mps")))
    return _is(error, NotImplementedError, MISSING.format("rrelu_with_noise"))


@trial(on="gpu", used_in="notebooks 02 and 03, metallab.pytorch.coverage", environment=FALLBACK)
def fallback_variable_computes() -> Finding:
    """With PYTORCH_ENABLE_MPS_FALLBACK=1 RReLU computes on the CPU, and warns once in all."""
    import torch

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        rrelu = torch.nn.RReLU().eval()
        x = torch.linspace(-1, 1, 8)
        for _ in range(3):
            result = rrelu(x.to("mps")).cpu()
    told = [str(warning.message) for warning in heard if "fall back" in str(warning.message)]
    right = torch.allclose(result, rrelu(x))
    return judged(right and len(told) == 1, f"{'right' if right else 'WRONG'}, {len(told)} warnings", warnings=told)


@trial(on="gpu", used_in="metalsim.operators.FALLS_BACK_BY_ITSELF")
def one_operator_falls_back_by_itself() -> Finding:
    """embedding_renorm_ computes without the variable: PyTorch itself sends it to the CPU, and warns."""
    import torch
    from torch.nn import functional as F

    table, rows = torch.rand(5, 4), torch.tensor([1, 2])
    truth = F.embedding(rows, table.clone(), max_norm=0.5)
    result, heard = _heard(lambda: F.embedding(rows.to("mps"), table.to("mps"), max_norm=0.5).cpu())
    right, told = torch.allclose(result, truth, atol=1e-4), [text for text in heard if "fall back" in text]
    return judged(right and len(told) == 1, f"{'right' if right else 'WRONG'}, {len(told)} warnings", warnings=heard)


@trial(on="gpu", used_in="metalsim.refusals.detours")
def linalg_kernels_warn_beyond_their_limits() -> Finding:
    """svd and eigh are right without a word as long as a threadgroup's memory of 32 KiB holds what they stage.

    Beyond it they are right, too, and warn with the words and the numbers that `metalsim.refusals` has. That
    eigh leaves small work to the CPU without a word cannot be seen here.
    """
    import torch

    from metalsim import refusals

    def symmetric(*shape: int) -> torch.Tensor:
        x = torch.rand(shape)
        return x + x.mT

    values = {"aten::_linalg_svd": torch.linalg.svdvals, "aten::_linalg_eigh": torch.linalg.eigvalsh}
    asked = {  # within the limit first: each warning comes once in a process
        "svd of 64 x 128": ("aten::_linalg_svd", torch.rand(64, 128)),
        "eigh of 3 times 64 x 64": ("aten::_linalg_eigh", symmetric(3, 64, 64)),
        "svd of 64 x 129": ("aten::_linalg_svd", torch.rand(64, 129)),
        "eigh of 3 times 65 x 65": ("aten::_linalg_eigh", symmetric(3, 65, 65)),
    }
    said, faults = {}, []
    for name, (operator, x) in asked.items():
        result, heard = _heard(lambda operator=operator, x=x: values[operator](x.to("mps")).cpu())
        foretold = refusals.outcome(operator, (x,))
        wanted = [foretold.warning] if foretold else []
        right = torch.allclose(result, values[operator](x), atol=1e-3)
        said[name] = {"right": right, "warnings": heard, "expected": wanted}
        if not right or [text.split(" (Triggered")[0] for text in heard] != wanted:
            faults.append(name)
    return judged(not faults, f"other than foretold: {', '.join(faults) or 'none'}", said=said)


@trial(on="gpu", used_in="metalsim.refusals.rules")
def kernels_refuse_arguments_in_these_words() -> Finding:
    """Pooling, attention, convolution, Fourier transforms and an inverse refuse what is foretold, in the same words.

    So does the gradient of torchvision's roi_align in float16, after the file and the line that say so.
    """
    import torch
    import torchvision  # noqa: F401 - its operators

    from metalsim import refusals

    image, query = torch.rand(1, 2, 12, 12), torch.rand(1, 2, 3, 8)
    asked = {
        "aten::_adaptive_avg_pool2d": (image, [5, 5]),
        "aten::_scaled_dot_product_attention_math_for_mps": (query, query, query, None, 0.5),
        "aten::convolution": (image.long(), image.long(), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        "aten::_fft_c2c": (torch.rand(1, 2, 2, 2, 2, dtype=torch.complex64), [0, 1, 2, 3, 4], 0, True),
        "aten::linalg_inv_ex": (torch.eye(3, dtype=torch.complex64),),
        "torchvision::_roi_align_backward": (
            torch.ones(1, 2, 2, 2).half(), torch.zeros(1, 5).half(), 1.0, 2, 2, 1, 2, 4, 4, -1, False,
        ),
    }  # fmt: skip
    said, faults = {}, []
    for operator, arguments in asked.items():
        foretold = refusals.outcome(operator, arguments)
        namespace, _, name = operator.partition("::")
        call = getattr(getattr(torch.ops, namespace), name).default
        try:
            call(*(x.to("mps") if isinstance(x, torch.Tensor) else x for x in arguments))
            raised = "nothing"
        except (RuntimeError, TypeError) as error:
            raised = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        said[operator] = raised
        words = foretold.words.rpartition(".mm, ")[2]
        if not (raised.startswith(f"{foretold.error.__name__}: ") and raised.endswith(words)):
            faults.append(operator)
    return judged(not faults, f"other than foretold: {', '.join(faults) or 'none'}", said=said)


def _heard(action: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a call returns, and the warnings that were heard meanwhile."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        result = action()
    return result, [str(warning.message) for warning in heard]


@trial(on="gpu", used_in="metalsim.operators.TORCHVISION")
def deform_conv2d_has_no_backward() -> Finding:
    """torchvision's deform_conv2d computes on the GPU, and its backward pass raises NotImplementedError."""
    import torch
    import torchvision

    x, offset = torch.rand(1, 2, 5, 5), torch.rand(1, 18, 3, 3)
    weight = torch.rand(1, 2, 3, 3)
    moved = weight.to("mps").requires_grad_()
    y = torchvision.ops.deform_conv2d(x.to("mps"), offset.to("mps"), moved)
    right = torch.allclose(y.detach().cpu(), torchvision.ops.deform_conv2d(x, offset, weight), atol=1e-4)
    error = _raised(lambda: y.sum().backward())
    backward = units.first_line(error, kind=True) if error else "its backward pass ran"
    said = f"{'right' if right else 'WRONG'}; {backward}"
    return judged(right and isinstance(error, NotImplementedError), said, message=str(error))


@trial(on="gpu", used_in="notebooks 02 and 03, metallab.pytorch.coverage")
def these_operators_are_missing() -> Finding:
    """What has no Metal kernel by PyTorch's table raises: mode, ndtri, multi_margin_loss, 3-D pooling, eig and others.

    Each raises NotImplementedError, and no other error.
    """
    import torch
    from torch.nn import functional as F

    x, video = torch.rand(3, 4).to("mps"), torch.rand(1, 1, 6, 6, 6).to("mps")
    classes = torch.zeros(3, dtype=torch.long).to("mps")
    calls = {
        "mode": lambda: x.mode(),
        "special_ndtri": lambda: torch.special.ndtri(x),
        "special_log_ndtr": lambda: torch.special.log_ndtr(x),
        "multi_margin_loss": lambda: F.multi_margin_loss(x, classes),
        "multilabel_margin_loss": lambda: F.multilabel_margin_loss(x, torch.zeros(3, 4, dtype=torch.long).to("mps")),
        "adaptive_avg_pool3d": lambda: F.adaptive_avg_pool3d(video, 2),
        "adaptive_max_pool3d": lambda: F.adaptive_max_pool3d(video, 2),
        "fractional_max_pool2d": lambda: F.fractional_max_pool2d(video[0], 2, output_size=3),
        "fractional_max_pool3d": lambda: F.fractional_max_pool3d(video, 2, output_size=3),
        "linalg_eig": lambda: torch.linalg.eig(x[:, :3]),
    }
    errors = {name: _raised(call) for name, call in calls.items()}
    said = {name: units.first_line(error, kind=True)[:160] if error else "it ran" for name, error in errors.items()}
    other = [name for name, error in errors.items() if not isinstance(error, NotImplementedError)]
    return judged(not other, f"did not raise NotImplementedError: {', '.join(other) or 'none'}", said=said)


@trial(on="gpu", used_in="notebook 02, will my model run on MPS", seconds=180)
def coverage_foretells_networks() -> Finding:
    """What `coverage` foretells of the talk's network, an audio encoder and a diffusion block happens on the GPU."""
    from metallab.pytorch import coverage, networks

    said = {}
    for make in (networks.talk_mlp, networks.audio_encoder, networks.diffusion_block):
        network = make()
        model = network.model.eval()
        found = coverage.mps_coverage(model, *network.inputs)
        said[network.name] = coverage.confirm(found, model, *network.inputs)
    return judged(not any("NOT" in text for text in said.values()), "; ".join(said.values()), said=said)


@trial(on="gpu", used_in="notebook 02, copies and views")
def moving_to_the_cpu_copies() -> Finding:
    """``.to("cpu")`` copies on an Apple GPU, although both use the same memory; views on the GPU share it."""
    import torch

    base = torch.zeros(4, 4, device="mps")
    moved = base.to("cpu")
    moved.fill_(1)
    view = base.t()[1:]
    view.fill_(1)
    untouched, total = base[:, 0].sum().item(), base.sum().item()
    said = f"after writing into a copy and into a view the sum is {total:g}"
    return judged(untouched == 0 and total == 12, said, first_column=untouched)


@trial(on="gpu", used_in="notebook 02, events")
def events_measure() -> Finding:
    """Two events with enable_timing, waited for, give a time above 0 and not above what Python waited.

    A product of two matrices of 1024 x 1024, after three that warm up.
    """
    import time

    import torch

    a = torch.rand(1024, 1024).to("mps")
    start, end = (torch.mps.Event(enable_timing=True) for _ in range(2))
    pairs = []
    for _ in range(4):
        torch.mps.synchronize()
        begin = time.perf_counter()
        start.record()
        a @ a
        end.record()
        end.synchronize()
        pairs.append((start.elapsed_time(end), 1e3 * (time.perf_counter() - begin)))
    between, waited = pairs[-1]
    if simulated() and not between > 0:
        return not_applicable("the simulated events have no times")
    return judged(0 < between <= waited, f"{between:.3f} ms between events, {waited:.3f} ms waited", pairs=pairs)


@trial(on="gpu", used_in="notebook 02, the talk's events")
def events_without_waiting() -> Finding:
    """``elapsed_time`` before the second event was waited for is an error, or a number that is not to be believed.

    The claim is weak on purpose: what happens is recorded.
    """
    import torch

    a = torch.rand(2048, 2048).to("mps")
    start, end = (torch.mps.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(4):
        a @ a
    end.record()
    got: list[float] = []
    error = _raised(lambda: got.append(start.elapsed_time(end)))
    end.synchronize()
    true = start.elapsed_time(end)
    said = units.first_line(error, kind=True) if error else f"{got[0]:.3f} ms at once, {true:.3f} ms after waiting"
    return judged(error is not None or got[0] <= 1.01 * true, said, at_once=got, waited=true)


@trial(on="gpu", used_in="notebooks 02, 05 and 08, metallab.memory")
def accelerator_counts_memory() -> Finding:
    """``torch.accelerator`` counts memory on MPS: current, peak, and a peak that can be reset."""
    import torch

    told = torch.accelerator
    torch.mps.synchronize()
    told.reset_peak_memory_stats()
    before = told.memory_allocated()
    block = torch.empty(16 * 2**20, dtype=torch.uint8, device="mps")
    during, peak = told.memory_allocated() - before, told.max_memory_allocated() - before
    del block
    after = told.memory_allocated() - before
    kept = told.max_memory_allocated() - before
    told.reset_peak_memory_stats()
    reset = told.max_memory_allocated() - before
    values = {"during": during, "peak": peak, "after": after, "peak after": kept, "peak reset": reset}
    holds = during >= 16 * 2**20 and peak >= during and after < during and kept >= during and reset < during
    return judged(holds, f"of 16 MiB: {values}", **values)


@trial(on="gpu", used_in="notebook 02, memory: current, peak, pool")
def pool_keeps_what_was_freed() -> Finding:
    """What the driver gave stays in PyTorch's pool when tensors are freed, until ``empty_cache``."""
    import torch

    block = torch.empty(64 * 2**20, dtype=torch.uint8, device="mps")
    full = torch.mps.driver_allocated_memory()
    del block
    freed = torch.mps.driver_allocated_memory()
    torch.mps.empty_cache()
    emptied = torch.mps.driver_allocated_memory()
    said = f"with 64 MiB {full}, freed {freed}, emptied {emptied} bytes"
    return judged(freed >= full - 2**20 and emptied < freed, said, full=full, freed=freed, emptied=emptied)


@trial(on="gpu", used_in="notebook 02, the talk's set_per_process_memory_fraction(0)")
def memory_fraction_wants_a_float() -> Finding:
    """``set_per_process_memory_fraction`` raises TypeError for an int, ValueError beyond 2, and takes floats."""
    import torch

    limit = torch.mps.set_per_process_memory_fraction
    tried = [(value, _raised(lambda value=value: limit(value))) for value in (0, 2.5, 0.0, 0.5, 1.7)]
    said = {repr(value): units.first_line(error, kind=True) if error else "taken" for value, error in tried}
    kinds = [type(error) for _, error in tried]
    return judged(kinds == [TypeError, ValueError, *[type(None)] * 3], f"{said}", said=said)


@trial(on="gpu", used_in="notebook 02, metallab.memory")
def limit_ends_in_out_of_memory() -> Finding:
    """A tensor beyond the limit raises OutOfMemoryError with the limit in its words, a fraction of what is recommended.

    The limit is 0.02 of ``recommended_max_memory``, the tensor 0.04 of it; nothing is written into it.
    """
    import torch

    recommended = torch.mps.recommended_max_memory()
    torch.mps.set_per_process_memory_fraction(0.02)
    error = _raised(lambda: torch.empty(int(0.04 * recommended), dtype=torch.uint8, device="mps"))
    share = _share_of(error, recommended)
    torch.mps.set_per_process_memory_fraction(1.7)
    if error is None:
        return judged(False, "no error: the tensor was made")
    holds = isinstance(error, torch.OutOfMemoryError) and share is not None and abs(share - 0.02) < 0.002
    values = {"message": str(error), "kind": type(error).__name__, "recommended": recommended}
    return judged(holds, units.first_line(error, kind=True), **values)


@trial(on="mac", used_in="notebook 02, which sets the fraction back to 1.7")
def limit_is_1_7_unless_set() -> Finding:
    """Unless it is set, the limit is 1.7 times what the driver recommends.

    Asks for tensors of 0.4 of the recommended size, up to 2.4 in all, until one is refused, and reads the limit in the
    message. Nothing is written into them, so that macOS need not find memory for them.
    """
    import torch

    recommended, held = torch.mps.recommended_max_memory(), []
    take = lambda: held.append(torch.empty(int(0.4 * recommended), dtype=torch.uint8, device="mps"))
    error = None
    while error is None and len(held) < 6:
        error = _raised(take)
    held.clear()
    torch.mps.empty_cache()
    if error is None:
        return judged(False, "2.4 times the recommended size was given", recommended=recommended)
    share = _share_of(error, recommended)
    if share is None:
        return not_applicable(f"another limit came first: {units.first_line(error, kind=True)}", message=str(error))
    return judged(abs(share - 1.7) < 0.05, f"the limit is {share:.3f} times the recommended size", message=str(error))


def _share_of(error: BaseException | None, recommended: int) -> float | None:
    """The limit in the words of an out-of-memory error, as a share of the recommended size."""
    found = re.search(r"max allowed: ([\d.]+) (bytes|[KMG]i?B)", str(error or ""))
    if not found:
        return None
    scale = {"b": 1, "K": 2**10, "M": 2**20, "G": 2**30}[found[2][0]]
    return float(found[1]) * scale / recommended


@trial(on="gpu", used_in="notebook 05, what autocast chooses")
def autocast_keeps_to_its_lists() -> Finding:
    """autocast is float16 unless told otherwise; products and convolutions go low, exponentials, norms and sums stay.

    As in notebook 05, in float16 and in bfloat16: in which dtype each function of a list computes.
    """
    import torch

    from metallab.pytorch import precision

    usual = torch.get_autocast_dtype("mps")
    found = {str(dtype): precision.choices("mps", dtype) for dtype in (torch.float16, torch.bfloat16)}
    wrong = [
        f"{name} in {dtype}: {choice[name]}"
        for dtype, choice in found.items()
        for names, wanted in ((LOW, "low"), (HIGH, "float32"))
        for name in names
        if choice[name] != wanted
    ]
    said = f"{usual} by default; not as said: {', '.join(wrong) or 'nothing'}"
    return judged(usual == torch.float16 and not wrong, said, choices=found)


@trial(on="gpu", used_in="notebook 05, loss scaling")
def grad_scaler_skips_infinities() -> Finding:
    """``GradScaler("mps")`` halves its scale and skips the step when a gradient is infinite, and else takes it."""
    import torch

    weight = torch.nn.Parameter(torch.ones(4, device="mps"))
    optimizer, scaler = torch.optim.SGD([weight], lr=0.5), torch.amp.GradScaler("mps", init_scale=4.0)
    seen = []
    for factor in (1.0, float("inf")):
        optimizer.zero_grad()
        scaler.scale((factor * weight).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        seen.append((weight[0].item(), scaler.get_scale()))
    return judged(seen == [(0.5, 4.0), (0.5, 2.0)], f"weight and scale after each step: {seen}", seen=seen)


@trial(on="gpu", used_in="constraints.txt: why torch 2.15")
def large_inner_sizes_are_right() -> Finding:
    """A product over 40000 numbers is right: releases up to 2.13 are wrong beyond 32768."""
    import torch

    a, b = torch.randn(8, 40000), torch.randn(40000, 8)
    truth, got = a.double() @ b.double(), (a.to("mps") @ b.to("mps")).cpu().double()
    layer = torch.nn.Linear(40000, 8)
    want = layer(a).detach().double()
    linear = layer.to("mps")(a.to("mps")).detach().cpu().double()
    errors = {"mm": (got - truth).abs().max().item(), "linear": (linear - want).abs().max().item()}
    return judged(errors["mm"] < 0.05 and errors["linear"] < 0.005, f"largest errors: {errors}", errors=errors)


@trial(on="gpu", used_in="notebook 11, complex numbers")
def complex_numbers_compute() -> Finding:
    """complex64 and complex32 compute products, matrix products and Fourier transforms as NumPy does, or are refused.

    The table of notebook 11; a refusal is no fault, a wrong result is.
    """
    import numpy as np
    import torch

    from metallab import device, parity

    z = np.random.default_rng(0).normal(size=(8, 24)).view(complex)
    operations = {
        "product": (lambda z: z * z, np.square),
        "matrix product": (lambda z: z @ z.mT, lambda z: z @ z.T),
        "absolute": (torch.abs, np.abs),
        "FFT of 12": (torch.fft.fft, np.fft.fft),
        "FFT of 8": (lambda z: torch.fft.fft(z, dim=0), lambda z: np.fft.fft(z, axis=0)),
    }
    lab = device.pick()
    said = {
        f"{name}, pairs of {parts}": parity.against_numpy(*pair, z, on=lab, dtype=parts)
        for name, pair in operations.items()
        for parts in ("float32", "float16")
    }
    wide = [text for name, text in said.items() if "float32" in name]
    wrong = [name for name, text in said.items() if text.startswith("DIFFERS")]
    agree = sum(text == parity.AGREES for text in said.values())
    holds = not wrong and all(text == parity.AGREES for text in wide)
    return judged(holds, f"{agree} of {len(said)} agree with NumPy", said=said)


@trial(on="mac", used_in="notebook 04 and softshrink.mm")
def storage_is_a_metal_buffer() -> Finding:
    """A tensor's storage pointer is an MTLBuffer, whose contents PyObjC can read without a copy by PyTorch.

    The object at the pointer is asked for its class, its length and its bytes.
    """
    import ctypes

    import numpy as np
    import objc
    import torch

    x = torch.arange(16.0).to("mps")
    torch.mps.synchronize()
    buffer = objc.objc_object(c_void_p=ctypes.c_void_p(x.untyped_storage().data_ptr()))
    mode, length = int(buffer.storageMode()), int(buffer.length())
    values = {"class": type(buffer).__name__, "length": length, "storageMode": mode}
    if mode != 0:  # MTLStorageModeShared
        return judged(length >= 64, "a buffer that the CPU cannot read (it is not shared)", **values)
    read = np.frombuffer(buffer.contents().as_buffer(64), np.float32)
    return judged(read.tolist() == x.tolist(), f"a shared {values['class']} of {length} bytes", **values)


@trial(on="gpu", used_in="metallab.timing, after torch.utils.benchmark")
def benchmark_timer_waits() -> Finding:
    """``torch.utils.benchmark.Timer`` waits for MPS before it reads the clock, as it does since 2.9.

    Counts how often PyTorch's functions that wait are called meanwhile.
    """
    import torch
    from torch.utils import benchmark

    calls = _counted_waits(lambda: benchmark.Timer("a @ a", globals={"a": torch.ones(8, 8).to("mps")}).timeit(3))
    return judged(sum(calls.values()) >= 2, f"it waited {sum(calls.values())} times", calls=calls)


@trial(on="gpu", used_in="notebook 08, the library's own figures", seconds=120)
def ultralytics_does_not_wait() -> Finding:
    """The times of ultralytics' stages do not wait for MPS."""
    import torch
    from ultralytics.utils.ops import Profile

    def stage() -> None:
        with Profile(device=torch.device("mps")):
            torch.ones(8, 8).to("mps") @ torch.ones(8, 8).to("mps")

    calls = _counted_waits(stage)
    return judged(sum(calls.values()) == 0, f"it waited {sum(calls.values())} times", calls=calls)


def _counted_waits(action: Callable[[], Any]) -> dict[str, int]:
    """How often each of PyTorch's functions that wait for a GPU is called."""
    from unittest import mock

    import torch

    places = {"torch.mps": torch.mps, "torch.accelerator": torch.accelerator}
    with (
        mock.patch.multiple(torch.mps, synchronize=mock.DEFAULT),
        mock.patch.multiple(torch.accelerator, synchronize=mock.DEFAULT),
    ):
        action()
        return {name: place.synchronize.call_count for name, place in places.items()}
