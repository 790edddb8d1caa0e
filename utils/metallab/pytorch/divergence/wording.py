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
        Unexplained,
        UnexplainedLayer,
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
    "unwritten argument": "{argument} is memory that nobody wrote to, and holds NaN",
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
    "fix: fill memory": "write torch.zeros in place of torch.empty in that line, zeros_like in place of empty_like, "
    "or write to all of it before it is read",
    "fix: find source": "look in forward at each value that comes in before the layer or the output that is named; "
    "call the model twice on the device with the same inputs: two outputs that differ point at memory or at random "
    "numbers, two that are equal at a branch or at a decision",
    "more time": "give more time, a larger seconds=, or leave seconds= out",
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
    "longest run": "; the first run is the longest",
    "repeating": "find, {seconds:.0f} s: what was right once is made again, calls: {calls:,}",
    "layers": "find, {seconds:.0f} s: the errors of the layers",
    "done": "find took {seconds:.0f} s",
    # the report
    "agrees": "On {device} {compared:,} of {calls:,} calls of operators were compared, and agree with the CPU in "
    "float64.",
    "agrees as a whole": "On {device} {compared:,} of {calls:,} calls of operators were compared, and agree with the "
    "CPU in float64; so does what the model returns.",
    "time ran out": "TIME RAN OUT, so this is no pass: on {device} {compared:,} of {calls:,} calls of operators were "
    "compared, and agree with the CPU in float64; {skipped:,} were not compared.",
    "output differs": "OUTPUT DIFFERS: on {device} {compared:,} of {calls:,} calls of operators were compared, and "
    "agree with the CPU in float64, but {what} does not.",
    "the output": "what the model returns",
    "the layer's output": "what the layer {module} returns",
    "the layer's gradient": "the gradient by what the layer {module} returns",
    "one may be wrong": " {skipped:,} calls were not compared, because time ran out, and one of them may be wrong.",
    "unexplained layer": "{module} in {direction} is the first that is off, by {error:.1e} of the root mean square; "
    "the CPU in the model's dtype by {on_cpu:.1e}",
    "layer before": "; {before}, which ran before it, agrees",
    "unexplained": "a value comes in that no compared operator made: memory that nobody wrote to (torch.empty), a "
    "branch on the device in your code (x.device, autocast of one device), random numbers of NumPy or of Python, a "
    "decision that rounding turned (argmax, topk, a comparison of numbers that are nearly equal), or an operator that "
    "is listed as not compared",
    "unwritten": "memory is read that nobody wrote to: with NaN in all new memory the CPU's output is NaN as well. The "
    "model asks for memory at {lines}",
    "reads memory": "UNWRITTEN MEMORY: what the model returns depends on memory that nobody wrote to; on {device} it "
    "agrees with the CPU this time.",
    "the whole agrees": " What the model returns agrees.",
    "output not compared": "what the model returns: {why}",
    "random output": "; after model.eval() it is compared, if all of the random numbers are dropout's",
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
    phrase = PHRASES["unwritten argument" if condition.is_unwritten else "holds NaN"]
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
    text = PHRASES["in run"].format(
        run=run, runs=runs, place=place, compared=compared, seconds=seconds
    )
    return text + PHRASES["longest run"] if run == 1 and runs > 1 else text


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


def first_layer_off(layer: UnexplainedLayer) -> str:
    """Return where an error begins that rounding does not explain, and how large it is there."""
    is_forward = layer.direction == "forward"
    text = PHRASES["unexplained layer"].format(
        module=layer.error.module,
        direction=PHRASES[layer.direction],
        error=layer.error.forward if is_forward else layer.error.backward,
        on_cpu=layer.error.forward_cpu if is_forward else layer.error.backward_cpu,
    )
    if layer.before is not None:
        text += PHRASES["layer before"].format(before=layer.before)
    return text


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
        return _headline_without_call(report)

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


def _headline_without_call(report: Report) -> str:
    """Return what was found where no call is wrong: what was not looked at for lack of time is said before all else."""
    if report.raised is not None:
        phrase = PHRASES["raised"]
    elif report.unexplained is not None:
        return _output_differs(report, report.unexplained)
    elif not report.is_complete:
        phrase = PHRASES["time ran out"]
    else:
        phrase = PHRASES["agrees as a whole" if report.is_output_compared else "agrees"]

    sentence = phrase.format(
        device=report.device,
        compared=report.compared,
        calls=report.calls,
        skipped=report.skipped,
        error=report.raised,
    )
    if report.is_output_compared and not report.is_complete:
        sentence += PHRASES["the whole agrees"]
    return sentence


def _output_differs(report: Report, unexplained: Unexplained) -> str:
    """Return that calls agree, and that what the model returns does not, or what a layer computes."""
    if unexplained.output is None and unexplained.layer is None:
        return PHRASES["reads memory"].format(device=report.device)

    what = PHRASES["the output"]
    if unexplained.output is None and unexplained.layer is not None:
        is_gradient = unexplained.layer.direction == "backward"
        phrase = PHRASES["the layer's gradient" if is_gradient else "the layer's output"]
        what = phrase.format(module=unexplained.layer.error.module)

    sentence = PHRASES["output differs"].format(
        device=report.device, compared=report.compared, calls=report.calls, what=what
    )
    if not report.is_complete:
        sentence += PHRASES["one may be wrong"].format(skipped=report.skipped)
    return sentence


def _wrong_kernel(report: Report, where: str) -> str:
    """Return where a kernel is wrong each time, and what the fault needs."""
    sentence = PHRASES["wrong kernel"].format(where=where, device=report.device)
    if report.conditions:
        conditions = "; ".join(map(str, report.conditions))
        sentence += PHRASES["needs"].format(conditions=conditions)
    return sentence


def rows(report: Report) -> list[tuple[str, str]]:
    """Return what stands below the headline, a name and a text each.

    That is the first call that is wrong or makes a NaN, or what differs though no call is wrong; what to do or how
    large rounding was, where the first infinity comes up, in which modes the model was run, what is random, and what is
    not compared.
    """
    rows = []
    if report.divergent_call is not None:
        rows += _rows_of_call(report, report.divergent_call)
    if report.unexplained is not None:
        rows += _rows_of_unexplained(report.unexplained)

    rows += [("what to do", advice) for advice in _list_advice(report)]
    if report.agreement != "differs":
        rows.append(("rounding", PHRASES["rounding"].format(largest=report.largest)))
    if report.infinity is not None and report.kind != "NaN":  # with a NaN the headline names it
        rows.append(("infinity", PHRASES["first infinity"].format(infinity=report.infinity)))

    rows += _rows_of_runs(report)
    rows += [("random", PHRASES["random"].format(operator=each)) for each in report.random]
    return rows + _rows_of_not_compared(report)


def _rows_of_call(report: Report, call: DivergentCall) -> list[tuple[str, str]]:
    """Return what a call that is wrong was given, what it made of it, and what the model raises then."""
    shapes = ", ".join(map(str, call.shapes))
    rows = [("given", f"{call.dtype}, {shapes}"), ("result", str(call.difference))]
    if report.raised is not None:
        rows.append(("what follows", PHRASES["raises later"].format(error=report.raised)))
    return rows


def _list_advice(report: Report) -> list[str]:
    """Return what to do: about what is wrong, about a loss that raises, or about time that ran out; or nothing."""
    if report.agreement == "differs":
        return [report.advice]
    if report.is_raised_by_loss:
        return [PHRASES["raising loss"]]
    is_without_finding = report.raised is None and report.divergent_call is None
    if is_without_finding and not report.is_complete:
        return [PHRASES["more time"]]
    return []


def _rows_of_not_compared(report: Report) -> list[tuple[str, str]]:
    """Return what was not compared, and why."""
    rows = [("not compared", f"{name}: {why}") for name, why in report.not_compared.items()]
    if report.layers_not_compared is not None:
        rows.append(("not compared", f"layers: {report.layers_not_compared}"))
    if report.output_not_compared is None:
        return rows

    text = PHRASES["output not compared"].format(why=report.output_not_compared)
    if report.output_not_compared.reason == "random numbers":
        text += PHRASES["random output"]
    return [*rows, ("not compared", text)]


def _rows_of_unexplained(unexplained: Unexplained) -> list[tuple[str, str]]:
    """Return what differs though each compared call agrees, where it begins, and what that means."""
    rows = []
    if unexplained.output is not None:
        rows.append(("result", str(unexplained.output)))
    if unexplained.layer is not None:
        rows.append(("layer", str(unexplained.layer)))

    meaning = PHRASES["unexplained"]
    if unexplained.unwritten_lines:
        meaning = PHRASES["unwritten"].format(lines=", ".join(unexplained.unwritten_lines))
    return [*rows, ("what it means", meaning)]


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
