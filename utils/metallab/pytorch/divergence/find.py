"""Find the first operator that computes wrongly on a device, in a model."""

from __future__ import annotations

import dataclasses
import inspect
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from metallab import units
from metallab.device import PyTorchDevice, require_picked
from metallab.pytorch.copies import has_float64, narrow_tensors, open_function, tensors_in
from metallab.pytorch.dispatch import Raised, explain
from metallab.pytorch.divergence import wording
from metallab.pytorch.divergence.calls import is_floating
from metallab.pytorch.divergence.compared import ComparedCalls
from metallab.pytorch.divergence.comparer import OperatorComparer
from metallab.pytorch.divergence.differences import NotCompared, Reason
from metallab.pytorch.divergence.layers import (
    RecordedRun,
    TrainingRun,
    compute_layer_errors,
    mean_square,
    run_on_cpu,
)
from metallab.pytorch.divergence.minimize import minimize
from metallab.pytorch.divergence.outputs import find_unexplained
from metallab.pytorch.divergence.repeat import repeat_calls
from metallab.pytorch.divergence.report import DivergentCall, NotRun, Outcome, Report
from metallab.pytorch.divergence.runs import WITHOUT_GRADIENTS, RunMode
from metallab.status_line import StatusLine

REPEATS = 2
"""Bursts of calls of each kind that are made again where nothing is wrong."""
MIN_REPEAT_SECONDS = 10.0
"""They may take so long, or as long as the comparison."""


def find(
    model: nn.Module,
    inputs: Sequence[Any] | Mapping[str, Any],
    loss: Callable[[Any], Tensor] | None = None,
    *,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
    on: PyTorchDevice,
    seconds: float = math.inf,
    layers: bool = True,
) -> Report:
    """Run ``loss(model(*inputs)).backward()`` on a copy on a device, and find the first operator that is wrong there.

    The model is called without gradients as well, in evaluation and in training mode, under ``torch.no_grad()`` and
    ``torch.inference_mode()``: PyTorch takes other operators there, for attention for example. What was compared in
    one run is not compared again in the next. What takes longer than some seconds shows how far it is, on a terminal
    and in a notebook, and on stderr every ten seconds where that is a file or a pipe.

    Parameters
    ----------
    model
        Stays as it is. It is run in its mode (training or evaluation) and its dtypes, float16 and bfloat16 included.
    inputs
        A tuple or list of arguments, or a dict of those that have names.
    loss
        Takes the model's output and returns one number; by default the mean square of all floating outputs. It is
        copied for each run, so that one that counts its calls begins anew. What it has around it is moved and cast with
        the model (`copies.open_function`): targets and criterions of its closure, of its module and of its object. On
        an Apple GPU, which has no float64, that is float32 there.
    optimizer
        A class such as ``torch.optim.AdamW``, or with settings ``functools.partial(torch.optim.AdamW, lr=1e-2)``: is
        given the copy's parameters and takes one step, which is compared as well.
    on
        The device.
    seconds
        After these no more calls are compared; the run that has begun is finished.
    layers
        Whether to compute the errors of layers, which takes two more runs on the CPU.

    Returns
    -------
    Report
        What is wrong, where, what the fault needs, and a program that shows it. If the model raises on the device
        alone, what it raises, and what is known of the operators before that.

    Raises
    ------
    TypeError
        If ``on`` is no device that was picked, ``model`` no module, ``inputs`` neither a tuple, a list nor a dict,
        ``optimizer`` an optimizer or a name in place of a class, or if ``loss`` takes more than the output or returns
        other than one number.
    ValueError
        If the model has no floating parameter and no floating input, or float64 where the device has none.
    RuntimeError
        If the model raises only while something looks at its operators, which is a fault of this function.
    Exception
        What the model raises on the CPU as well.

    Notes
    -----
    On an NVIDIA GPU set ``torch.backends.cudnn.allow_tf32 = False`` first: convolutions in TensorFloat-32 are further
    off than float32 explains.

    Examples
    --------
    >>> from metallab import device
    >>> from metallab.pytorch import divergence
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
    >>> report = divergence.find(model, (torch.ones(3, 4),), on=device.cpu())
    >>> print(report.kind)
    agrees
    """
    require_picked(on)
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model is a {type(model).__name__}: give the nn.Module itself, or a class of nn.Module whose forward does "
            "what your function does, since find copies the model and names its layers"
        )
    if not isinstance(inputs, list | tuple | Mapping):
        raise TypeError(
            f"inputs is a {type(inputs).__name__}: give a tuple or a list of what the model is called with, (x,), or a "
            "dict of what it is called with by name"
        )
    if isinstance(inputs, Mapping):
        inputs = dict(inputs)  # PyTorch goes through no other mapping
    _check_optimizer(optimizer)
    _check_loss(loss)
    opened = open_function(loss or mean_square)
    is_narrowed = on.kind == "mps" and has_float64(opened)
    if is_narrowed:
        opened = narrow_tensors(opened, model)
    run = TrainingRun(model, inputs, opened, optimizer)
    with StatusLine(prints_lines=True) as line:
        search = Search(on, seconds, line, runs=1 + len(WITHOUT_GRADIENTS))
        report, on_device = _compare_all_runs(search, run, record=layers)
        report = dataclasses.replace(report, is_loss_narrowed=is_narrowed)
        line.ending = wording.search_time(line.seconds)
        if not layers or report.raised is not None:
            return report

        line.show(lambda: wording.layers_progress(line.seconds))
        report = compare_whole(report, run, on_device)
        line.ending = wording.search_time(line.seconds)
    return report


def compare_whole(report: Report, run: TrainingRun, on_device: RecordedRun) -> Report:
    """Return a report with the errors of layers, and, where no call is wrong, with that of what the model returns.

    Parameters
    ----------
    report
        What was found so far; the model did not raise.
    run
        The model. It is run on the CPU twice, and once more if it asks for memory; if it does not keep its layers
        (``keeps_layers``), forward alone.
    on_device
        What the device computed, with gradients, in the mode in which the model is.

    Returns
    -------
    Report
        *Output differs* if the model returns something else than on the CPU, by more than rounding explains, or reads
        memory that nobody wrote to. Where the CPU cannot be asked, or random numbers are drawn, the report says so.
    """
    on_cpu = run_on_cpu(run)
    if isinstance(on_cpu, NotCompared):
        return dataclasses.replace(report, layers_not_compared=on_cpu, output_not_compared=on_cpu)

    errors = compute_layer_errors(on_device, on_cpu)
    if isinstance(errors, NotCompared):
        report = dataclasses.replace(report, layers_not_compared=errors)
        errors = ()
    report = dataclasses.replace(report, layers=errors)
    if report.divergent_call is not None:
        return report
    if on_device.has_random_numbers:
        return dataclasses.replace(report, output_not_compared=NotCompared(Reason.RANDOM))

    unexplained = find_unexplained(run, on_device, on_cpu, errors)
    return dataclasses.replace(
        report,
        unexplained=unexplained,
        is_output_compared=True,
        agreement="agrees" if unexplained is None else "differs",
    )


def _compare_all_runs(
    search: Search, run: TrainingRun, *, record: bool
) -> tuple[Report, RecordedRun]:
    """Compare a model as it was given, then without gradients, and make calls again if nothing is wrong."""
    report, on_device = search.compare(run, RunMode(run.model.training), record=record)
    for mode in WITHOUT_GRADIENTS:
        if report.agreement == "differs":
            break
        report = _add_run(report, search, run, mode)

    # A fault may come and go: one in ten calls of a kernel that does not wait for memory, say. Each kind of call was
    # compared once so far, so where nothing was wrong the calls are made again, with other numbers.
    if report.kind in (Outcome.AGREES, Outcome.RAISED):
        # as long as the comparison took, or a little longer if it was quick, but not beyond the end of the time:
        # if that is past, none is made
        seconds = min(search.until - time.monotonic(), max(MIN_REPEAT_SECONDS, search.seconds_used))
        report = search.repeat(report, REPEATS, seconds)
    return report, on_device


class Search:
    """Compares runs of one model on a device, each kind of call in one of them.

    Parameters
    ----------
    on
        The device.
    seconds
        After these no more calls are compared.
    line
        Shows how far it is; by default nothing does.
    runs
        How many there will be, for that line.
    """

    def __init__(
        self,
        on: PyTorchDevice,
        seconds: float = math.inf,
        line: StatusLine | None = None,
        runs: int = 1,
    ) -> None:
        self.on = on
        self.began = time.monotonic()
        self.until = self.began + seconds
        self.runs = runs
        self._known = ComparedCalls()
        self._line = line
        self._run = 0
        """The number of the run that is compared, from 1."""

    def _show_progress(self, comparer: OperatorComparer) -> None:
        """Show how far a run is."""
        if self._line is None:
            return
        seconds = self._line.seconds
        self._line.show(
            lambda: wording.run_progress(
                comparer.here, comparer.report.compared, self._run, self.runs, seconds
            )
        )

    def _show_repeating(self, calls: int) -> None:
        """Show how many calls were made again."""
        if self._line is None:
            return
        seconds = self._line.seconds
        self._line.show(lambda: wording.repeat_progress(calls, seconds))

    @property
    def seconds_used(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    def repeat(self, report: Report, rounds: int, seconds: float) -> Report:
        """Make calls again that were right, with other numbers, and add to a report what was found.

        Parameters
        ----------
        report
            What was found so far: nothing wrong.
        rounds
            How many bursts of calls of each kind there are at most.
        seconds
            After these no more are made.

        Returns
        -------
        Report
            The same with how many calls were made again. One that was wrong is its `divergent_call`.
        """
        with torch.no_grad():
            found = repeat_calls(
                self._known.samples,
                self.on,
                rounds,
                time.monotonic() + seconds,
                self._show_repeating,
            )
        report = dataclasses.replace(report, repeated=found.calls, repeated_kinds=found.kinds)
        if found.sample is None or found.difference is None:
            return report

        tensors = found.sample.before.tensors
        call = DivergentCall(
            operator=found.sample.before.name,
            module=found.sample.module,
            direction=found.sample.direction,
            dtype=units.dtype_name(tensors[0].dtype) if tensors else "",
            shapes=tuple(tuple(tensor.shape) for tensor in tensors),
            difference=found.difference,
            wrong_calls=found.wrong,
            right_calls=found.right,
            mode=found.sample.mode,
        )
        return dataclasses.replace(report, agreement="differs", divergent_call=call)

    def compare(
        self, run: TrainingRun, mode: RunMode, *, seconds: float = math.inf, record: bool = False
    ) -> tuple[Report, RecordedRun]:
        """Compare one run, and minimize its first wrong call.

        Parameters
        ----------
        run
            The model with its inputs.
        mode
            How it is run.
        seconds
            For this run, of those that the search has.
        record
            Whether to keep what the layers and the model compute.

        Returns
        -------
        Report, RecordedRun
            What was found, and what was kept: nothing unless ``record``, or if the model raises.

        Raises
        ------
        ValueError
            If nothing is floating, or something is in float64 where the device has none.
        RuntimeError
            If the model raises only while something looks at its operators.
        Exception
            What the model raises on the CPU as well. If it raises on the device alone, or after a wrong call, the
            report says so, and keeps what was compared before.
        """
        _check_dtypes(run.model, run.inputs, self.on)
        began = time.monotonic()
        seconds = min(seconds, self.until - began)
        self._known.begin_run()
        self._run += 1
        comparer = OperatorComparer(self.on, seconds, mode, self._known, self._show_progress)
        on_device = RecordedRun()
        raised: Raised | None = None
        try:
            on_device = run.compare(self.on.torch_device, comparer, record=record)
        except Exception as error:
            # a wrong call before it is taken for the cause, and the model is not run again to look for another
            is_known = comparer.report.agreement == "differs"
            if not is_known and not self._is_of_device(error, run, mode):
                raise
            raised = explain(error)

        on_device.has_random_numbers = bool(comparer.report.random)
        report = dataclasses.replace(comparer.report, modes=(mode,))
        if raised is not None:
            report = dataclasses.replace(
                report, raised=str(raised), is_raised_by_loss=raised.is_of_loss
            )
        if raised is not None and report.agreement == "agrees":
            report = dataclasses.replace(report, agreement="refused")
        if comparer.always_wrong_call is not None:
            conditions, program = minimize(
                comparer.always_wrong_call, self.on.torch_device, comparer.began + seconds
            )
            report = dataclasses.replace(report, conditions=conditions, program=program)
        return report, on_device

    def _is_of_device(self, error: Exception, run: TrainingRun, mode: RunMode) -> bool:
        """Return True if the device raises an error and the CPU does not; False if the CPU raises as well.

        RuntimeError if the device raises nothing where its operators are not looked at: the error comes from looking.
        """
        if _raises(run, "cpu", mode):
            return False
        if not _raises(run, self.on.torch_device, mode):
            raise RuntimeError(wording.fault_of_find(self.on.label, str(explain(error)))) from error
        return True


def _raises(run: TrainingRun, device: Any, mode: RunMode) -> bool:
    """Return True if a model raises on a device where nothing looks at its operators."""
    try:
        run.compute(device, mode)
    except Exception:  # noqa: BLE001 - whatever a model raises
        return True
    return False


def _add_run(report: Report, search: Search, run: TrainingRun, mode: RunMode) -> Report:
    """Return what was found with one run more, in a mode that nobody asked for.

    What a model raises in it, anywhere or on the device alone, is noted in ``not_run`` and says nothing against the
    device: MPS refuses attention with dropout where nothing needs a gradient, for example, which nobody may call. What
    agreed before that counts. After a wrong call the report has the exception as what follows.
    """
    try:
        other, _ = search.compare(run, mode)
    except Exception as error:  # noqa: BLE001 - whatever a model raises that wants gradients, or targets
        left_out = NotRun(mode, units.first_line(error))
        return dataclasses.replace(report, not_run=(*report.not_run, left_out))
    if other.raised is None or other.agreement == "differs":
        return report.merge(other)

    left_out = NotRun(mode, other.raised)
    report = report.merge(dataclasses.replace(other, raised=None, agreement="agrees"))
    return dataclasses.replace(report, not_run=(*report.not_run, left_out))


def _check_optimizer(optimizer: Any) -> None:
    """Raise TypeError if an optimizer cannot be given the parameters of a copy, with what to give instead."""
    if optimizer is None or callable(optimizer):
        return
    name = optimizer if isinstance(optimizer, str) else type(optimizer).__name__
    settings = getattr(optimizer, "defaults", {})
    example = f"torch.optim.{name}" if hasattr(torch.optim, name) else "torch.optim.Adam"
    rate = f", lr={settings['lr']:g}" if isinstance(settings.get("lr"), float) else ", lr=1e-3"
    raise TypeError(
        f"optimizer is {_describe_optimizer(optimizer)}: give a class, optimizer={example}, or with settings "
        f"functools.partial({example}{rate}), since each run makes an optimizer of its own for a copy of the model"
    )


def _check_loss(loss: Callable[[Any], Tensor] | None) -> None:
    """Raise TypeError if a loss cannot be called with the output alone, such as a criterion that wants targets."""
    if loss is None:
        return
    name = getattr(loss, "__name__", type(loss).__name__)
    if not callable(loss):
        raise TypeError(f"loss is a {name}: give a function of the model's output")

    # the call of a module takes anything, and hands it on
    called = loss.forward if isinstance(loss, nn.Module) else loss
    try:
        signature = inspect.signature(called)
    except ValueError:  # a function in C tells nothing of its arguments
        return
    try:
        signature.bind(None)
    except TypeError as error:
        example = f"nn.{name}()" if hasattr(nn, name) else name
        raise TypeError(
            f"the loss {name} cannot be called with the model's output alone ({error}): give a function that holds "
            f"the rest, lambda output: {example}(output, y) with your targets y"
        ) from error


def _describe_optimizer(optimizer: Any) -> str:
    """Return what stands where a class is wanted."""
    if isinstance(optimizer, torch.optim.Optimizer):
        return f"an {type(optimizer).__name__} object with the weights of your model"
    return f"{optimizer!r}"


def _check_dtypes(model: nn.Module, inputs: Any, on: PyTorchDevice) -> None:
    """Raise ValueError if a model and its inputs have no floating tensor, or one that the device cannot have."""
    tensors = (*model.parameters(), *tensors_in(inputs))
    dtypes = {tensor.dtype for tensor in tensors if is_floating(tensor)}

    if not dtypes:
        raise ValueError(
            "the model has no floating parameter and no floating input: there is nothing to compare"
        )
    dtypes.update(buffer.dtype for buffer in model.buffers())
    if on.kind == "mps" and dtypes & {torch.float64, torch.complex128}:
        raise ValueError("no Apple GPU has float64: give model.float() and inputs in float32")
