"""Runs a model once, on the meta device or on the CPU, and says what it would do on MPS."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from metallab import units
from metallab.pytorch.copies import copy_model, map_tensors, tensors_in
from metallab.pytorch.coverage.recorder import NARROWER, Ended, Recorder, require_dense
from metallab.pytorch.coverage.report import WORST_FIRST, Coverage, Problem, ProblemKind, shorten
from metallab.pytorch.dispatch import explain

NO_SUCH_DEVICE = ("not compiled with CUDA", "No CUDA GPUs", "NVIDIA driver")
"""What PyTorch says where a model names a device that this machine lacks."""
LARGEST_SHARE_ROUNDED = 1e-4
"""The share of a standard deviation by which `.float()` may round numbers before coverage warns of it."""
LOSES_DIGITS = (
    "and before that, in float64, subtract the first number from {names}: float32 loses the digits in which "
    "the numbers differ"
)
WITHOUT_THE_TUPLE = (
    "it was given one {kind}: if it takes none, give its inputs one by one, mps_coverage(model, x) or "
    "mps_coverage(model, *inputs)"
)
TRAINING_BY_ITS_NAME = (
    "a training step is training=True here, while train= is given to the model, as other names are"
)
TAKE_THE_DEVICE = "take the device from a tensor that is there: .to(x.device) for .cuda()"


class NothingToTrain(ValueError):
    """A training step was asked about, and no output has a gradient; nothing is wrong with the inputs."""


class TraceFailed(RuntimeError):
    """The model could not be run with these inputs, neither on the meta device nor on the CPU."""


def mps_coverage(
    model: Callable[..., Any], /, *inputs: Any, training: bool = False, **named: Any
) -> Coverage:
    """Predict which operators ``model(*inputs, **named)`` calls, and whether each runs on MPS with what it is given.

    Parameters
    ----------
    model
        An `nn.Module`, traced as a copy, or a function of tensors and modules; a module that the function has in a
        closure is neither seen nor copied.
    inputs, named
        What it is called with, on any device.
    training
        Trace the backward pass of the summed outputs as well.

    Returns
    -------
    Coverage
        Its ``answer`` is a line; ``uses`` has the operators, ``problems`` what raises despite a kernel. ``is_sure`` is
        False for a model that could not be followed where its tensors would lie.

    Raises
    ------
    TraceFailed
        If the model does not run, or computes with sparse or nested tensors, whose kernels are others.
    """
    return predict_coverage(model, inputs, named, training)


def predict_coverage(
    model: Callable[..., Any], inputs: Sequence[Any], named: Mapping[str, Any], training: bool
) -> Coverage:
    """Predict the same as `mps_coverage`, of named inputs that may have any name, such as ``training``.

    Parameters
    ----------
    model, inputs, named, training
        See `mps_coverage`; the inputs as a sequence and a mapping.
    """
    held = _find_held_wide_dtypes(model, inputs, named)
    repaired = _trace_repaired(model, inputs, named, training) if held else None
    recorder, limits = repaired or _trace(model, inputs, named, training)
    # with wide dtypes as they are held, nobody can tell which of those that it makes follow from them
    tells_dtypes = not held or repaired is not None

    uses = [recorder.summarize(operator) for operator in recorder.calls]
    uses.sort(key=lambda use: (WORST_FIRST.index(use.status), use.operator))
    problems = [*held, *recorder.list_problems(tells_dtypes)]
    return Coverage(
        _name(model),
        tuple(uses),
        recorder.device,
        tuple(problems),
        not_followed=limits.not_followed,
        needs_gradients=limits.needs_gradients,
    )


def _name(model: Callable[..., Any]) -> str:
    if isinstance(model, nn.Module):
        return type(model).__name__
    return getattr(model, "__name__", str(model))


def _trace_repaired(
    model: Callable, inputs: Any, named: Any, training: bool
) -> tuple[Recorder, Limits] | None:
    """Trace a model that holds dtypes which MPS lacks with the narrower ones in their place.

    So what it makes in such a dtype by itself is told apart from what follows from the dtypes that it holds, and all of
    it comes in one answer. None where it does not run so, such as where it multiplies one of each.
    """
    try:
        return _trace(model, inputs, named, training, is_narrowed=True)
    except TraceFailed:
        return None


@dataclass(frozen=True)
class Limits:
    """What a trace did not do that others do; each text is empty where it did."""

    not_followed: str = ""
    """Why it is not known where tensors would lie."""
    needs_gradients: str = ""
    """What the model raises without gradients, so that they were kept where nothing is trained."""


def _trace(
    model: Callable, inputs: Any, named: Any, training: bool, is_narrowed: bool = False
) -> tuple[Recorder, Limits]:
    """Return the first trace that succeeds, and what limits it.

    On the meta device nothing is computed, so it is tried first. On the CPU the model is told that its device is mps,
    which some code cannot bear: ``torch.Generator(x.device)`` raises without such a device. So at last it runs as it
    is, when nobody can tell which tensors would be left on the CPU.

    Inference keeps no gradients. A model that computes some by itself, such as forces, may want them in inference, too:
    what fails without them is tried with them.

    TraceFailed if it fails in all of these ways, with what to do about the last failure.
    """
    needs_gradients = not_followed = ""
    problem: Problem | None = None
    for way in _list_ways(training, is_narrowed):
        try:
            recorder = trace_on(way, model, inputs, named, training)
        except (Exception, Ended) as error:  # noqa: BLE001 - a model may raise anything; it is reported below
            failure = error
            not_followed = str(explain(error))
            if not way.has_gradients:
                needs_gradients = not_followed
            # What the first way ended at raises on a Mac, too. The trace that succeeds may not see it, so it is
            # reported there; a later way may end before that place.
            problem = problem or getattr(error, "problem", None)
            continue

        if problem is not None:
            recorder.report(problem)
        return recorder, Limits(
            not_followed="" if way.is_followed else not_followed,
            needs_gradients=needs_gradients if way.has_gradients else "",
        )

    # the last failure is that of the CPU, which the model raises anywhere
    if isinstance(failure, Ended):
        raise TraceFailed(f"the model {failure}") from None
    if isinstance(failure, NothingToTrain):
        raise TraceFailed(str(failure)) from None
    why = explain(failure)
    way_out = _find_way_out_of_failure(failure, inputs, named)
    raise TraceFailed(
        f"the model does not run with these inputs on the CPU: {why}; {way_out}"
    ) from failure


def _find_way_out_of_failure(failure: BaseException, inputs: Any, named: Any) -> str:
    """Return what to do where a model does not run at all, by how it was called."""
    if any(words in str(failure) for words in NO_SUCH_DEVICE):
        return TAKE_THE_DEVICE
    if "train" in named and "'train'" in str(failure):
        return TRAINING_BY_ITS_NAME
    if len(inputs) == 1 and isinstance(inputs[0], tuple | list):
        return WITHOUT_THE_TUPLE.format(kind=type(inputs[0]).__name__)
    return "do they fit it?"


@dataclass(frozen=True)
class Way:
    """How a model is traced."""

    device: str
    """``meta`` or ``cpu``."""
    is_followed: bool
    """Whether it is noted, on the CPU, where each tensor would lie."""
    has_gradients: bool
    """Whether gradients are kept, which a backward pass needs."""
    is_narrowed: bool = False
    """Whether the copies have the narrower dtype where they would have one that MPS lacks."""


def _list_ways(training: bool, is_narrowed: bool) -> list[Way]:
    """Return the ways to trace a model, in the order in which they are tried."""
    ways = []
    for has_gradients in (True,) if training else (False, True):
        for device, is_followed in (("meta", True), ("cpu", True), ("cpu", False)):
            ways.append(Way(device, is_followed, has_gradients, is_narrowed))
    return ways


def trace_on(way: Way, model: Callable, inputs: Any, named: Any, training: bool) -> Recorder:
    """Run a copy of a model on a device, and return what was recorded; `calling_line` stops at this name.

    Parameters
    ----------
    way
        On which device, and how.
    model, inputs, named, training
        See `mps_coverage`.

    Raises
    ------
    Ended
        Where the trace cannot go on: the model asks for numbers, or computes with sparse or nested tensors.
    NothingToTrain
        If no output has a gradient, and it is asked about training.
    Exception
        What the model raises.
    """
    with _as_on_mps(way.has_gradients):
        values = (model, inputs, named)
        subject, arguments, keywords = (
            _move(value, way.device, way.is_narrowed) for value in values
        )
        recorder = Recorder(way.device, way.is_followed)
        recorder.whereabouts.place_parts(subject, arguments, keywords)

        with recorder.recording():
            outputs = subject(*arguments, **keywords)
            if training:
                _sum_outputs(outputs).backward()

    if recorder.ended_by:  # the model caught even that
        raise recorder.ended_by
    return recorder


@contextlib.contextmanager
def _as_on_mps(has_gradients: bool) -> Iterator[None]:
    """Keep the CPU from taking kernels that MPS does not have, and the caller's random numbers as they were.

    Gradients are kept or not as it is asked, in whatever mode the caller is.
    """
    # PyTorch's fused encoder stays on, because a Mac asks for it, too, and on the way calls an operator that MPS lacks.
    # It is not taken: any tensor counts as one with functions of its own while `Recorder.recording` watches
    # oneDNN has a fused LSTM; the public function that switches it off warns of TensorFloat-32
    onednn = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)

    try:
        with (
            torch.random.fork_rng(devices=[]),
            torch.inference_mode(False),
            torch.set_grad_enabled(has_gradients),
            # no fused attention
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        ):
            yield
    finally:
        torch._C._set_mkldnn_enabled(onednn)


def _move(value: Any, device: str, is_narrowed: bool) -> Any:
    """Copy a module, or every tensor in a value, to a device, in narrower dtypes if that is asked.

    Parameters and buffers are copied there first, and put into the memo of the module's deep copy, which takes them for
    their copies: so no second copy of them is made where they lie.
    """
    if isinstance(value, torch.jit.ScriptModule):  # its parameters are in C++
        moved_script = copy_model(value).to(device)
        return moved_script._apply(_narrow) if is_narrowed else moved_script

    def copy(tensor: Tensor) -> Tensor:
        require_dense(tensor, "are among its inputs, parameters or buffers")
        copied = tensor.detach().to(device, copy=True)
        if is_narrowed:
            copied = _narrow(copied)
        return copied.requires_grad_(tensor.requires_grad)

    if isinstance(value, nn.Module):
        moved: dict[int, Any] = {}
        for parameter in value.parameters():
            moved[id(parameter)] = nn.Parameter(copy(parameter), parameter.requires_grad)
        for buffer in value.buffers():
            moved[id(buffer)] = copy(buffer)
        return copy_model(value, moved)

    return map_tensors(copy, value, lambda module: _move(module, device, is_narrowed))


def _narrow(tensor: Tensor) -> Tensor:
    """Return a tensor in the narrower dtype if MPS lacks its own, else as it is."""
    narrower = NARROWER.get(units.dtype_name(tensor.dtype))
    return tensor if narrower is None else tensor.to(getattr(torch, narrower))


def _sum_outputs(outputs: Any) -> Tensor:
    """Return the sum of all differentiable outputs; NothingToTrain if there is none."""
    differentiable = [leaf for leaf in tensors_in(outputs) if leaf.requires_grad]
    if not differentiable:
        raise NothingToTrain(
            "of a training step nothing can be told, since no output depends on a parameter or input that requires a "
            "gradient: ask without training; a checkpoint that hides them needs use_reentrant=False"
        )

    real = [leaf.abs() if leaf.is_complex() else leaf for leaf in differentiable]
    return sum(leaf.sum() for leaf in real)


def _find_held_wide_dtypes(model: Any, inputs: Any, named: Any) -> list[Problem]:
    """Return a problem for each dtype that MPS lacks, naming the parameters, buffers and inputs that have it."""
    tensors = _list_held(model, inputs, named)

    problems = []
    for dtype in NARROWER:
        wide = [each for each in tensors if units.dtype_name(each[1].dtype) == dtype]
        if not wide:
            continue

        names = [name for name, _ in wide]
        verb = "is" if len(names) == 1 else "are"
        text = f"MPS has no {dtype}, but {shorten(names)} {verb}"
        problems.append(Problem(cast(ProblemKind, dtype), text, _find_way_out(dtype, wide)))
    return problems


def _find_way_out(dtype: str, wide: Sequence[tuple[str, Tensor]]) -> str:
    """Return what to do with tensors of a dtype that MPS lacks, each with its name."""
    if dtype != "float64":
        return f"make it with dtype=torch.{NARROWER[dtype]}"

    losing = [name for name, tensor in wide if _loses_digits(tensor)]
    if not losing:
        return "call .float() first"
    return f"call .float() first, {LOSES_DIGITS.format(names=shorten(losing))}"


def _loses_digits(tensor: Tensor) -> bool:
    """Return True if float32 rounds numbers by more than a small share of what they differ from each other in.

    False where there are no numbers to look at, as on the meta device, fewer than two finite ones, or only equal ones.
    """
    if tensor.is_meta or tensor.layout is not torch.strided:
        return False
    numbers = tensor.detach()[tensor.isfinite()]
    if numbers.numel() < 2:
        return False
    rounding = (numbers - numbers.float().double()).abs().max()
    return bool(rounding > LARGEST_SHARE_ROUNDED * numbers.std() > 0)


def _list_held(model: Any, inputs: Any, named: Any) -> list[tuple[str, Tensor]]:
    """Return the inputs, parameters and buffers with their names."""
    tensors = [(f"input {number}", leaf) for number, leaf in enumerate(tensors_in(inputs))]
    for name, value in named.items():
        tensors += [(name, leaf) for leaf in tensors_in(value)]

    given = (model, *inputs, *named.values())
    modules = [each for each in given if isinstance(each, nn.Module)]
    for module in modules:
        tensors += [*module.named_parameters(), *module.named_buffers()]
    return tensors
