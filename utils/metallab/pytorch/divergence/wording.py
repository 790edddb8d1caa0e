"""The sentences about a divergence: whatever shows a `Report` takes them from here.

The classes of this package hold numbers and kinds; the functions of this module turn them into text. Their ``str`` and
their text properties call these functions, and nothing reads the text back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metallab import units
from metallab.pytorch.divergence.threads import PUBLIC_THREADS

if TYPE_CHECKING:
    import torch

    from metallab.pytorch.divergence.conditions import (
        Fix,
        HiddenRow,
        HoldsInteger,
        HoldsNaN,
        MinElements,
        MinSize,
        NonzeroOffset,
        NotContiguous,
        OnCPU,
        Setting,
    )
    from metallab.pytorch.divergence.differences import (
        NotCompared,
        Number,
        StrayWrite,
        WrongDraw,
        WrongKind,
        WrongOrder,
        WrongPositions,
        WrongShare,
        WrongValues,
        WrongWrite,
    )
    from metallab.pytorch.divergence.report import (
        CallSite,
        DivergentCall,
        NotRun,
        Place,
        RandomOperator,
        Report,
    )
    from metallab.pytorch.divergence.runs import RunMode

ABORTED_CALLS = "https://github.com/pytorch/pytorch/pull/193571"
"""The report that PyTorch does not notice when macOS aborts a GPU job."""

PHRASES = {
    # what a fault needs
    "not float32": "not in float32",
    "no elements": "a tensor without elements",
    "not contiguous": "{argument} is not contiguous ({view})",
    "expanded": "an expanded view",
    "gaps": "a view with gaps",
    "permuted": "a permuted view",
    "offset": "{argument} begins at an offset in its storage",
    "odd offset": "{argument} begins at an odd offset in its storage",
    "elements": "{count:,} elements or more",
    "size": "{sizes} of {size:,} or more",
    "on CPU": "{argument} lies on the CPU",
    "holds NaN": "{argument} holds NaN",
    "unwritten": "{argument} is memory that nobody wrote to, and holds NaN",
    "holds integer": "{argument} holds {value:,} or a larger integer",
    "hidden row": "a row of {argument} is False or -inf throughout, and hides everything",
    "setting": "{argument}={value!r}",
    # what to do
    "fix: less work": "give the GPU less work at a time, such as smaller batches, close what else uses it, "
    "and run again",
    "fix: float32": "compute it in float32",
    "fix: skip empty": "leave it out where there is nothing to compute",
    "fix: fewer elements": "give it fewer elements at a time, or compute it on the CPU",
    "fix: contiguous weights": "make the weights contiguous before training, "
    "weight.data = weight.data.contiguous()",
    "fix: copy arguments": "give it {argument}.{method}() in place of {argument}",
    "fix: number": "give it a number, {argument}.item(), or keep the tensor on the GPU",
    "fix: write first": "give it torch.zeros in place of torch.empty as {argument}",
    "fix: no NaN": "replace the NaN of {argument} first, torch.nan_to_num",
    "fix: small integers": "keep the integers of {argument} smaller, or compute it on the CPU",
    "fix: one key": "let {argument} keep something in each row, or replace NaN in the result, torch.nan_to_num",
    "fix: CPU draw": "draw on the CPU, and move what was drawn",
    "raising loss": "where the loss meets a tensor at another place or of another dtype than the output, write "
    "w.to(output) in it, which takes both from the output; what lies behind a function that the loss calls is not "
    "moved with the model",
    "fix: other operators": "compute it on the CPU, or write it with other operators",
    # how a result is wrong
    "wrong values": "{count:,} of {total:,} values differ too much, {place}{value} for {right}; {cause}",
    "not equal": "they must be equal",
    "not finite": "infinite or NaN on one side only",
    "not rounding": "{error:.3g} apart, and rounding explains at most {allowed:.3g}",
    "scaled": "what is kept is scaled wrongly",
    "wrong kind": "It is {kind}, not {right}.",
    "wrong positions": "{count:,} of {total:,} positions point at other values, or are there twice.",
    "wrong order": "{count:,} of {total:,} positions break the order of equal values.",
    "positions outside": "Positions lie outside of what they point into.",
    "wrong share": "It keeps {kept:.3g} of the values, not {right:.3g}.",
    "outside": "{count:,} of {total:,} random numbers lie outside of their range.",
    "impossible": "{count:,} of {total:,} draws have probability 0.",
    "drawn twice": "{count:,} of {total:,} draws are there twice.",
    "drawn NaN": "{count:,} of {total:,} random numbers are NaN.",
    "wrong write": "What it writes to {argument}: {difference}",
    "stray write": "It changes the memory of {argument} where it has nothing to write (elements: {count:,}).",
    "new NaN": "Its inputs have none.",
    # why something was not compared
    "unordered": "its results are in no order",
    "other count": "{on_device} results, and {on_cpu} on the CPU",
    "kept results": "the first {on_cpu} of its {on_device} results were compared, the device keeps the others for the "
    "gradient",
    "integers": "whole numbers beside its values",
    "random numbers": "random: devices draw numbers of their own",
    "not strided": "a sparse or nested tensor",
    "only there": "the CPU has no such operator; compare what the whole model returns, or its gradients",
    "CPU raises": "{message}",
    "own dtype": "{message}: the model was run in float64, to be compared with, and makes a tensor of another dtype; "
    "write x.new_zeros(3) for torch.zeros(3, device=x.device), which takes the dtype from x as well",
    "other layers": "the CPU went through other layers",
    # where
    "forward": "the forward pass",
    "backward": "the backward pass",
    "step": "the optimizer's step",
    "training": "training mode",
    "evaluation": "evaluation mode",
    "kept": "in {mode}",
    "no_grad": "in {mode} under torch.no_grad()",
    "inference_mode": "in {mode} under torch.inference_mode()",
    # how far a search is
    "in run": "find, {seconds:.0f} s: run {run} of {runs}, calls compared: {compared:,}; {place}",
    "repeating": "find, {seconds:.0f} s: what was right once is made again, calls: {calls:,}",
    "layers": "find, {seconds:.0f} s: the errors of the layers",
    "done": "find took {seconds:.0f} s",
    # the report
    "agrees": "On {device} {compared:,} of {calls:,} calls of operators were compared, and agree with the CPU in "
    "float64.",
    "once": "each call was compared once; a fault that comes and goes may not show",
    "repeated": "{calls} of {kinds}, with other numbers; a fault that comes and goes may not show",
    "thread": " Others report this operator: {thread}.",
    "known": "{known} of a kind that was compared when the model was run in another way",
    "not run": "{mode}: {error}",
    "raised": "On {device} this raises {error}, on the CPU it does not. Before that {compared:,} of {calls:,} calls "
    "of operators agree with the CPU in float64.",
    "fault of find": "find raises {error} while it looks at each operator on {device}, where the model runs when "
    "nothing looks: this is a fault of find, and says nothing about the device; report it with the traceback above",
    "raises later": "then this raises {error}",
    "narrowed": "the loss has float64 around it, which no Apple GPU has: float32 stood in its place; in a program of "
    "yours write .float()",
    "NaN": "A NaN appears in {where}, on the CPU in {dtype} as well.",
    "origin of NaN": " Its infinity comes from {infinity}.",
    "intermittent": "INTERMITTENT: {where}, on {device}, was wrong in {wrong:,} of {calls:,} calls with the same "
    "numbers. macOS may have aborted the call, which PyTorch does not notice ({aborted_calls}), or threads race.",
    "wrong draw": "WRONG DRAW: {where}, on {device}, in {wrong:,} of {calls:,} calls.",
    "wrong kernel": "WRONG KERNEL: {where}, on {device}.",
    "needs": " The fault needs: {conditions}.",
    "rounding": "up to {largest:.1e} of the root mean square",
    "first infinity": "first in {infinity}",
    "random": "{operator}: devices draw numbers of their own",
}


# ---- what a fault needs, and what to do ------------------------------------------------------------------------------


def not_contiguous(condition: NotContiguous) -> str:
    """Return that an argument is not contiguous, and why."""
    view = PHRASES[condition.view]
    return PHRASES["not contiguous"].format(argument=condition.argument, view=view)


def nonzero_offset(condition: NonzeroOffset) -> str:
    """Return that an argument begins at an offset."""
    phrase = PHRASES["odd offset" if condition.is_odd else "offset"]
    return phrase.format(argument=condition.argument)


def min_elements(condition: MinElements) -> str:
    """Return from how many elements on a fault occurs."""
    return PHRASES["elements"].format(count=condition.count)


def min_size(condition: MinSize) -> str:
    """Return from which size on a fault occurs, ``self.shape[0] of 1024 or more``."""
    sizes = [f"{condition.argument}.shape[{d}]" for d in condition.dimensions]
    return PHRASES["size"].format(sizes=" and ".join(sizes), size=condition.size)


def on_cpu(condition: OnCPU) -> str:
    """Return that an argument lies on the CPU."""
    return PHRASES["on CPU"].format(argument=condition.argument)


def holds_nan(condition: HoldsNaN) -> str:
    """Return that an argument holds NaN, and whether anybody wrote it."""
    phrase = PHRASES["unwritten" if condition.is_unwritten else "holds NaN"]
    return phrase.format(argument=condition.argument)


def holds_integer(condition: HoldsInteger) -> str:
    """Return from which integer on a fault occurs."""
    return PHRASES["holds integer"].format(argument=condition.argument, value=condition.value)


def hidden_row(condition: HiddenRow) -> str:
    """Return that a mask keeps nothing in a row."""
    return PHRASES["hidden row"].format(argument=condition.argument)


def setting(condition: Setting) -> str:
    """Return a setting, ``beta=0``."""
    return PHRASES["setting"].format(argument=condition.argument, value=condition.value)


def fix(fix: Fix) -> str:
    """Return what to do about a fault, one advice for each argument that is to be copied."""
    phrase = PHRASES[f"fix: {fix.kind}"]
    if fix.argument is not None:
        return phrase.format(argument=fix.argument)
    if not fix.copies:
        return phrase
    return "; ".join(phrase.format(argument=name, method=method) for name, method in fix.copies)


# ---- how a result is wrong, and why it was not compared --------------------------------------------------------------


def wrong_values(difference: WrongValues) -> str:
    """Return how many values differ, one of them with its position, and why they count as wrong.

    A tensor without dimensions has no position. Floating numbers are shown with six digits, others as they are.
    """
    cause = PHRASES[difference.cause].format(error=difference.error, allowed=difference.allowed)
    is_floating = isinstance(difference.right, float | complex)
    return PHRASES["wrong values"].format(
        count=difference.count,
        total=difference.total,
        place=f"at {difference.position}: " if difference.position else "",
        value=_number(difference.value, is_floating),
        right=_number(difference.right, is_floating),
        cause=cause,
    )


def wrong_kind(difference: WrongKind) -> str:
    """Return the dtype and the shape of a result, and those that it should have."""
    return PHRASES["wrong kind"].format(
        kind=_kind(difference.dtype, difference.shape),
        right=_kind(difference.right_dtype, difference.right_shape),
    )


def wrong_positions(difference: WrongPositions) -> str:
    """Return how many positions are wrong."""
    return PHRASES["wrong positions"].format(count=difference.count, total=difference.total)


def wrong_order(difference: WrongOrder) -> str:
    """Return how many positions break the order of equal values."""
    return PHRASES["wrong order"].format(count=difference.count, total=difference.total)


def wrong_share(difference: WrongShare) -> str:
    """Return which share dropout keeps."""
    return PHRASES["wrong share"].format(kept=difference.kept, right=difference.right)


def wrong_draw(difference: WrongDraw) -> str:
    """Return how many random numbers cannot have been drawn."""
    return PHRASES[difference.fault].format(count=difference.count, total=difference.total)


def wrong_write(difference: WrongWrite) -> str:
    """Return how an argument that is written to is wrong."""
    return PHRASES["wrong write"].format(
        argument=difference.argument, difference=difference.difference
    )


def stray_write(difference: StrayWrite) -> str:
    """Return where memory changes that is not to be written."""
    return PHRASES["stray write"].format(argument=difference.argument, count=difference.count)


def not_compared(why: NotCompared) -> str:
    """Return why something was not compared."""
    on_device, on_cpu = why.counts or (0, 0)
    return PHRASES[why.reason].format(message=why.message, on_device=on_device, on_cpu=on_cpu)


def _number(value: Number, is_floating: bool) -> str:
    return f"{value:.6g}" if is_floating else f"{value}"


def _kind(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{units.dtype_name(dtype)} of shape {shape}"


# ---- how the model was run -------------------------------------------------------------------------------------------


def run_mode(mode: RunMode) -> str:
    """Return how a model was run, ``in evaluation mode under torch.no_grad()``."""
    name = PHRASES["training" if mode.is_training else "evaluation"]
    return PHRASES[mode.gradients].format(mode=name)


def not_run(not_run: NotRun) -> str:
    """Return a way to run the model, and what it raises there."""
    return PHRASES["not run"].format(mode=not_run.mode, error=not_run.error)


# ---- how far a search is ---------------------------------------------------------------------------------------------


def place(place: Place) -> str:
    """Return what of a model runs, ``in training mode, the backward pass, layer blocks.0``."""
    where = f"{place.mode}, {PHRASES[place.direction]}"
    return f"{where}, layer {place.module}" if place.module else where


def run_progress(place: Place, compared: int, run: int, runs: int, seconds: float) -> str:
    """Return how far a run is: how many calls were compared, in which run, after how long."""
    return PHRASES["in run"].format(
        run=run, runs=runs, place=place, compared=compared, seconds=seconds
    )


def repeat_progress(calls: int, seconds: float) -> str:
    """Return how many calls were made again."""
    return PHRASES["repeating"].format(calls=calls, seconds=seconds)


def layers_progress(seconds: float) -> str:
    """Return that the errors of layers are computed."""
    return PHRASES["layers"].format(seconds=seconds)


def fault_of_find(device: str, error: str) -> str:
    """Return that an error comes from looking at a model, and not from the device."""
    return PHRASES["fault of find"].format(device=device, error=error)


def search_time(seconds: float) -> str:
    """Return how long a search took."""
    return PHRASES["done"].format(seconds=seconds)


# ---- the report ------------------------------------------------------------------------------------------------------


def call_site(site: CallSite) -> str:
    """Return where an operator is called, ``aten::mul in 0, the forward pass``."""
    return f"{site.operator} in {site.module or 'the model itself'}, {PHRASES[site.direction]}"


def random_operator(random: RandomOperator) -> str:
    """Return an operator with its module."""
    return f"{random.operator} in {random.module or 'the model'}"


def headline(report: Report) -> str:
    """Return the report in one sentence, or two: that all agree, or which call makes a NaN or is wrong, and where.

    The second one says where a NaN's infinity comes from, or what the fault of a wrong kernel needs, if that is known.
    Of a fault that comes and goes the sentence counts the calls, and leads to the report on calls that macOS aborts.
    """
    first = report.divergent_call
    if first is None:
        phrase = PHRASES["agrees" if report.raised is None else "raised"]
        return phrase.format(
            device=report.device,
            compared=report.compared,
            calls=report.calls,
            error=report.raised,
        )

    where = _where(first)
    if report.kind == "NaN":
        sentence = PHRASES["NaN"].format(where=where, dtype=first.dtype)
        if report.infinity is not None:
            sentence += PHRASES["origin of NaN"].format(infinity=report.infinity)
        return sentence

    if report.fix.kind == "CPU draw":
        phrase = PHRASES["wrong draw"]
    elif report.kind == "intermittent":
        phrase = PHRASES["intermittent"]
    else:
        return _wrong_kernel(report, where)

    sentence = phrase.format(
        where=where,
        device=report.device,
        wrong=first.wrong_calls,
        calls=first.wrong_calls + first.right_calls,
        aborted_calls=ABORTED_CALLS,
    )
    thread = PUBLIC_THREADS.get(first.operator.rpartition("::")[2])
    return sentence if thread is None else sentence + PHRASES["thread"].format(thread=thread)


def _wrong_kernel(report: Report, where: str) -> str:
    """Return where a kernel is wrong each time, and what the fault needs."""
    sentence = PHRASES["wrong kernel"].format(where=where, device=report.device)
    if report.conditions:
        conditions = "; ".join(map(str, report.conditions))
        sentence += PHRASES["needs"].format(conditions=conditions)
    return sentence


def rows(report: Report) -> list[tuple[str, str]]:
    """Return what stands below the headline, a name and a text each.

    That is the first call that is wrong or makes a NaN, what to do or how large rounding was, where the first infinity
    comes up, in which modes the model was run, what is random, and what is not compared.
    """
    rows = []
    if first := report.divergent_call:
        shapes = ", ".join(map(str, first.shapes))
        rows.append(("given", f"{first.dtype}, {shapes}"))
        rows.append(("result", str(first.difference)))
        if report.raised is not None:
            rows.append(("what follows", PHRASES["raises later"].format(error=report.raised)))

    if report.agreement == "differs":
        rows.append(("what to do", report.advice))
    elif report.is_raised_by_loss:
        rows.append(("what to do", PHRASES["raising loss"]))
    if report.agreement != "differs":
        rows.append(("rounding", PHRASES["rounding"].format(largest=report.largest)))
    if report.infinity is not None and report.kind != "NaN":  # with a NaN the headline names it
        rows.append(("infinity", PHRASES["first infinity"].format(infinity=report.infinity)))

    rows += _rows_of_runs(report)
    rows += [("random", PHRASES["random"].format(operator=each)) for each in report.random]
    rows += [("not compared", f"{name}: {why}") for name, why in report.not_compared.items()]
    if report.layers_not_compared is not None:
        rows.append(("not compared", f"layers: {report.layers_not_compared}"))
    return rows


def _rows_of_runs(report: Report) -> list[tuple[str, str]]:
    """Return how the model was run, and what was compared more than once, or less."""
    rows = []
    if report.divergent_call is None:
        phrase = PHRASES["repeated" if report.repeated else "once"]
        calls = units.count(report.repeated, "more call")
        kinds = units.count(report.repeated_kinds, "kind")
        rows.append(("again", phrase.format(calls=calls, kinds=kinds)))
    if report.is_loss_narrowed:
        rows.append(("float64", PHRASES["narrowed"]))
    if report.known:
        known = units.count(report.known, "more call")
        rows.append(("compared before", PHRASES["known"].format(known=known)))
    if len(report.modes) > 1:
        rows.append(("run", ", ".join(map(str, report.modes))))
    return rows + [("not run", str(each)) for each in report.not_run]


def _where(first: DivergentCall) -> str:
    """Return where the first wrong call is made; nothing of the module if that is the model itself."""
    module = f"{first.module}, " if first.module else ""
    where = f"{first.operator} in {module}{PHRASES[first.direction]}"
    # with gradients it is the run that was asked for
    return where if first.mode.has_gradients else f"{where} {first.mode}"
