"""What a search for a divergence finds is values: comparisons, conditions and fixes. One module has the words."""

from __future__ import annotations

import ast
import dataclasses
import string
from pathlib import Path

import pytest
import torch
from torch import nn

from metallab import device
from metallab.doctor import formats
from metallab.pytorch.divergence import (
    conditions,
    differences,
    layers,
    report,
    unwritten,
    wording,
)
from metallab.pytorch.divergence.calls import Call
from metallab.pytorch.divergence.compare import Comparison, compare, compute_reference
from metallab.pytorch.divergence.conditions import (
    Fix,
    FixKind,
    HiddenRow,
    HoldsInteger,
    HoldsNaN,
    MinElements,
    MinSize,
    NoElements,
    NonzeroOffset,
    NotContiguous,
    NotFloat32,
    OnCPU,
    Setting,
    View,
    choose_fix,
)
from metallab.pytorch.divergence.differences import (
    Cause,
    DrawFault,
    NewNaN,
    NotCompared,
    PositionsOutside,
    Reason,
    StrayWrite,
    WrongDraw,
    WrongKind,
    WrongOrder,
    WrongPositions,
    WrongShare,
    WrongValues,
    WrongWrite,
)
from metallab.pytorch.divergence.find import find
from metallab.pytorch.divergence.layouts import Layout
from metallab.pytorch.divergence.program import write_program
from metallab.pytorch.divergence.report import (
    CallSite,
    DivergentCall,
    LayerError,
    NotRun,
    Place,
    RandomOperator,
    Report,
    Unexplained,
    UnexplainedLayer,
)
from metallab.pytorch.divergence.runs import WITHOUT_GRADIENTS, Gradients, RunMode

# ---- comparisons -----------------------------------------------------------------------------------------------------


def compare_call(call: Call, *returned: torch.Tensor) -> Comparison:
    """Compare results with those of the CPU, of a call that changes no argument."""
    reference = compute_reference(call, list(returned))
    return compare(reference, call, list(returned))


@pytest.mark.parametrize(
    ("positions", "is_wrong"),
    [
        pytest.param([4, 1], False, id="equal-values"),
        pytest.param([4, 9], True, id="outside"),
        pytest.param([4, 4], True, id="twice"),
    ],
)
def test_positions_are_compared_by_the_values_that_they_point_at(positions, is_wrong):
    largest = Call(torch.ops.aten.topk.default, (torch.ones(5), 2), {})
    comparison = compare_call(largest, torch.ones(2), torch.tensor(positions))
    assert (comparison.difference is not None) == is_wrong


def test_a_position_below_0_is_outside_though_python_would_count_from_the_end():
    largest = Call(torch.ops.aten.argmax.default, (torch.tensor([1.0, 2.0]),), {})
    comparison = compare_call(largest, torch.tensor(-1))
    assert comparison.difference == PositionsOutside()


@pytest.mark.parametrize("relative_error", [layers.relative_error, formats._relative_error])
@pytest.mark.parametrize("size", [1e200, 1e-200])
def test_an_error_is_known_where_a_square_is_too_large_or_too_small_for_float64(
    size, relative_error
):
    exact = torch.tensor([size, -size], dtype=torch.float64)
    assert relative_error(exact, 2 * exact) == pytest.approx(1)


@pytest.mark.parametrize(
    ("value", "is_wrong"),
    [pytest.param(2e-6, False, id="other-order"), pytest.param(2e-3, True, id="no-order")],
)
def test_rounding_of_a_sum_that_cancels_is_allowed(value, is_wrong):
    torch.manual_seed(0)
    x = torch.randn(1000)
    cancelling = Call(torch.ops.aten.sum.default, (torch.cat([x, -x.flip(0)]),), {})
    comparison = compare_call(cancelling, torch.tensor(value))
    assert (comparison.difference is not None) == is_wrong


def test_results_in_no_order_are_not_compared():
    unordered = Call(torch.ops.aten.topk.default, (torch.ones(5), 2, -1, True, False), {})
    comparison = compare_call(unordered, torch.zeros(2), torch.tensor([0, 1]))
    assert comparison == Comparison(not_compared=NotCompared(Reason.UNORDERED))


def test_another_number_of_results_is_not_compared():
    cosine = Call(torch.ops.aten.cos.default, (torch.ones(2),), {})
    comparison = compare_call(cosine, torch.ones(2), torch.ones(2))
    assert comparison.not_compared == NotCompared(Reason.OTHER_COUNT, counts=(2, 1))


LSTM_RESULTS = {
    "right": (lambda output, hidden, cell: (output, hidden, cell), False),
    "wrong output": (lambda output, hidden, cell: (output + 0.1, hidden, cell), True),
    "wrong cell state": (lambda output, hidden, cell: (output, hidden, cell + 0.1), True),
}


def compare_lstm(change) -> Comparison:
    """Compare an LSTM of MPS whose results were changed, and whose three tensors for the gradient are ones."""
    torch.manual_seed(0)
    layer, x, state = nn.LSTM(3, 4), torch.randn(5, 2, 3), torch.zeros(1, 2, 4)
    weights = [weight.detach() for weight in layer.parameters()]
    args = (x, [state, state], weights, True, 1, 0.0, False, False, False)

    right = torch.ops.aten.lstm.input(*args)
    call = Call(torch.ops.aten._lstm_mps.default, args, {})
    return compare_call(call, *change(*right), *[torch.ones(7)] * 3)


@pytest.mark.parametrize(("change", "is_wrong"), LSTM_RESULTS.values(), ids=LSTM_RESULTS)
def test_an_lstm_of_mps_is_compared(change, is_wrong):
    assert (compare_lstm(change).difference is not None) is is_wrong


def test_of_an_lstm_of_mps_what_it_keeps_for_the_gradient_is_not_compared():
    comparison = compare_lstm(lambda *right: right)
    assert comparison.not_compared == NotCompared(Reason.KEPT, counts=(6, 3))


BAG_RESULTS = {
    "right": (lambda output: output, False),
    "wrong output": (lambda output: output + 0.1, True),
}


@pytest.mark.parametrize(("change", "is_wrong"), BAG_RESULTS.values(), ids=BAG_RESULTS)
@pytest.mark.parametrize("name", ["_embedding_bag", "_embedding_bag_forward_only"])
def test_of_a_sum_of_embeddings_the_bookkeeping_is_not_compared(name, change, is_wrong):
    """The CPU leaves it empty in float32 and fills it in in float64."""
    args = (torch.rand(10, 8), torch.tensor([1, 4, 2, 0]), torch.tensor([0, 2]))
    call = Call(getattr(torch.ops.aten, name).default, args, {})
    output, *bookkeeping = call.compute()

    comparison = compare_call(call, change(output), *bookkeeping)
    assert (comparison.difference is not None) == is_wrong
    assert comparison.not_compared == NotCompared(Reason.KEPT, counts=(4, 1)) or is_wrong


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("learns", [True, False], ids=["learns", "frozen"])
def test_no_sound_bag_of_embeddings_is_accused(mode, learns):
    bag = nn.EmbeddingBag(10, 8, mode=mode).requires_grad_(learns)
    report = find(bag, (torch.tensor([[1, 4], [2, 0]]),), on=device.cpu(1))
    assert report.kind == "agrees", report


def test_a_program_for_a_sum_of_embeddings_asks_of_the_sum_alone():
    index = Layout.of(torch.tensor([1, 4, 2, 0]))
    tensors = (Layout.of(torch.rand(10, 8)), index, Layout.of(torch.tensor([0, 2])))
    call = Call(torch.ops.aten._embedding_bag.default, tensors, {})
    exec(write_program(call, "cpu"), {})


def test_an_operator_that_the_cpu_does_not_have_is_not_compared():
    call = Call(torch.ops.aten.lstm_mps_backward.default, (), {})
    assert compute_reference(call, []) == NotCompared(Reason.ONLY_THERE)


def test_a_sparse_tensor_is_not_compared():
    call = Call(torch.ops.aten.cos.default, (torch.eye(2).to_sparse(),), {})
    assert compute_reference(call, []) == NotCompared(Reason.NOT_STRIDED)


def test_what_the_cpu_refuses_is_not_compared():
    call = Call(torch.ops.aten.mm.default, (torch.ones(2, 3), torch.ones(2, 3)), {})
    assert compute_reference(call, []).reason is Reason.CPU_RAISES


def test_values_that_differ_are_counted():
    cosine = Call(torch.ops.aten.cos.default, (torch.zeros(4),), {})
    difference = compare_call(cosine, torch.tensor([1.0, 1.0, 3.0, 2.0])).difference
    assert difference.count == 2
    assert difference.total == 4
    assert difference.cause == Cause.NOT_ROUNDING


def test_the_value_that_is_shown_is_the_worst():
    cosine = Call(torch.ops.aten.cos.default, (torch.zeros(4),), {})
    difference = compare_call(cosine, torch.tensor([1.0, 2.0, 3.0, 1.0])).difference
    assert difference.position == (2,)
    assert difference.value == 3.0
    assert difference.right == 1.0


# ---- fixes -----------------------------------------------------------------------------------------------------------

VIEW = NotContiguous("input", View.GAPS)
OFFSET = NonzeroOffset("input", is_odd=True)


@pytest.mark.parametrize(
    ("found", "fix"),
    [
        pytest.param((), Fix(FixKind.OTHER_OPERATORS), id="none"),
        pytest.param((VIEW, NotFloat32()), Fix(FixKind.FLOAT32), id="float32-first"),
        pytest.param((VIEW, NoElements()), Fix(FixKind.SKIP_EMPTY), id="empty"),
        pytest.param((VIEW, MinElements(17)), Fix(FixKind.FEWER_ELEMENTS), id="elements"),
        pytest.param((MinSize("self", (0,), 17),), Fix(FixKind.FEWER_ELEMENTS), id="size"),
        pytest.param((OFFSET,), Fix(FixKind.COPY_ARGUMENTS, (("input", "clone"),)), id="offset"),
        pytest.param(
            (OFFSET, VIEW), Fix(FixKind.COPY_ARGUMENTS, (("input", "contiguous"),)), id="both"
        ),
    ],
)
def test_a_fix_follows_from_the_conditions(found, fix):
    assert choose_fix(found) == fix


def test_weights_are_made_contiguous_for_a_step():
    assert choose_fix((VIEW,), is_step=True) == Fix(FixKind.CONTIGUOUS_WEIGHTS)


# ---- words -----------------------------------------------------------------------------------------------------------

KIND = WrongKind(torch.float32, (2,), torch.bfloat16, (2, 1))
SENTENCES = {
    "on-the-cpu": (OnCPU("x"), "x lies on the CPU"),
    "nan": (HoldsNaN("x"), "x holds NaN"),
    "unwritten": (HoldsNaN("x", is_unwritten=True), "x is memory that nobody wrote to, and holds NaN"),
    "large-integers": (HoldsInteger("x", 2**24), "x holds 16,777,216 or a larger integer"),
    "hidden-row": (HiddenRow("x"), "a row of x is False or -inf throughout, and hides everything"),
    "setting": (Setting("beta", 0), "beta=0"),
    "not-float32": (NotFloat32(), "not in float32"),
    "no-elements": (NoElements(), "a tensor without elements"),
    "expanded": (NotContiguous("x", View.EXPANDED), "x is not contiguous (an expanded view)"),
    "gaps": (NotContiguous("x", View.GAPS), "x is not contiguous (a view with gaps)"),
    "permuted": (NotContiguous("x", View.PERMUTED), "x is not contiguous (a permuted view)"),
    "offset": (NonzeroOffset("x", False), "x begins at an offset in its storage"),
    "odd-offset": (NonzeroOffset("x", True), "x begins at an odd offset in its storage"),
    "elements": (MinElements(1030), "1,030 elements or more"),
    "size": (MinSize("x", (0, 2), 64), "x.shape[0] and x.shape[2] of 64 or more"),
    "copies": (
        Fix(FixKind.COPY_ARGUMENTS, (("x", "clone"), ("y", "contiguous"))),
        "give it x.clone() in place of x; give it y.contiguous() in place of y",
    ),
    "integers": (
        WrongValues(3, 8, (1, 0), 5, 4, Cause.NOT_EQUAL),
        "3 of 8 values differ too much, at (1, 0): 5 for 4; they must be equal",
    ),
    "a-number": (
        WrongValues(1, 1, (), 0.5, 1 / 3, Cause.NOT_ROUNDING, 0.16667, 1e-6),
        "1 of 1 values differ too much, 0.5 for 0.333333; "
        "0.167 apart, and rounding explains at most 1e-06",
    ),
    "kind": (KIND, "It is float32 of shape (2,), not bfloat16 of shape (2, 1)."),
    "written": (WrongWrite("x", KIND), f"What it writes to x: {KIND}"),
    "share": (WrongShare(1.0, 0.7), "It keeps 1 of the values, not 0.7."),
    "positions": (
        WrongPositions(2, 9),
        "2 of 9 positions point at other values, or are there twice.",
    ),
    "order": (WrongOrder(2, 9), "2 of 9 positions break the order of equal values."),
    "outside": (PositionsOutside(), "Positions lie outside of what they point into."),
    "stray": (
        StrayWrite("x", 3),
        "It changes the memory of x where it has nothing to write (elements: 3).",
    ),
    "new-nan": (NewNaN(), "Its inputs have none."),
    "counts": (NotCompared(Reason.OTHER_COUNT, counts=(2, 1)), "2 results, and 1 on the CPU"),
    "message": (NotCompared(Reason.CPU_RAISES, "{} is no matrix"), "{} is no matrix"),
    "site": (CallSite("aten::mul", "", "step"), "aten::mul in the model itself, the optimizer's step"),
    "place": (Place("0", "forward", RunMode(True)), "in training mode, the forward pass, layer 0"),
    "random": (RandomOperator("aten::rand", ""), "aten::rand in the model"),
}  # fmt: skip


@pytest.mark.parametrize(("value", "sentence"), SENTENCES.values(), ids=SENTENCES)
def test_a_value_is_its_sentence_as_text(value, sentence):
    assert str(value) == sentence


def report_on(difference, *, right_calls: int | None = None, **fields) -> Report:
    """Return a report with a wrong call, or one that makes a NaN."""
    first = DivergentCall("aten::cos", "0", "forward", "float32", ((2,),), difference)
    if right_calls is not None:
        first = dataclasses.replace(first, right_calls=right_calls)
    return Report("differs", "GPU", divergent_call=first, **fields)


SUM_AT_TIMES = DivergentCall("aten::sum", "", "forward", "float32", ((2,),), KIND, right_calls=2)
REPORTS = {
    "agrees": Report("agrees", "GPU", compared=3, largest=1e-7, random=(RandomOperator("aten::rand", ""),)),
    "wrong kernel": report_on(KIND, conditions=(VIEW, MinElements(17))),
    "intermittent": report_on(KIND, right_calls=2),
    "output differs": Report("differs", "GPU", unexplained=Unexplained(KIND)),
    "raised": Report("refused", "GPU", compared=3, raised="RuntimeError: shapes"),
    "NaN": dataclasses.replace(
        report_on(NewNaN(), infinity=CallSite("aten::exp", "0", "forward")), agreement="agrees"
    ),
}  # fmt: skip


def test_a_run_that_agrees_makes_none_good_that_raised():
    merged = REPORTS["raised"].merge(REPORTS["agrees"])
    assert merged.agreement == "refused"
    assert merged.kind == "raised"


@pytest.mark.parametrize("phrase", wording.PHRASES)
@pytest.mark.parametrize("outcome", REPORTS)
def test_a_reworded_phrase_changes_no_decision(outcome, phrase, monkeypatch):
    fix = REPORTS[outcome].fix
    monkeypatch.setitem(wording.PHRASES, phrase, "agrees or more contiguous float32 DIFFERS")
    assert REPORTS[outcome].kind == outcome
    assert REPORTS[outcome].fix == fix


OFF = LayerError("1", 0.8, 0.7, 1e-7, 1e-7)


def report_unexplained(
    output=None, layer: UnexplainedLayer | None = None, lines: tuple[str, ...] = (), **fields
) -> Report:
    """Return a report in which no call is wrong, and something else is."""
    return Report("differs", "GPU", unexplained=Unexplained(output, layer, lines), **fields)


HERE = Place("blocks.0", "backward", RunMode(True))
SHOWN = [
    *(value for value, _ in SENTENCES.values()),
    *(Fix(kind) for kind in FixKind),
    *(NotCompared(reason) for reason in Reason),
    *(WrongValues(1, 1, (), 1, 0, cause, 1.0, 1.0) for cause in Cause),
    *(WrongDraw(fault, 1, 2) for fault in DrawFault),
    *(CallSite("aten::cos", "", direction) for direction in ("forward", "backward")),
    *WITHOUT_GRADIENTS,
    RunMode(True),
    NotRun(RunMode(True), "no targets"),
    *REPORTS.values(),
    Report("agrees", "GPU", known=3, modes=WITHOUT_GRADIENTS),
    Report("agrees", "GPU", repeated=40, repeated_kinds=4),
    Report("differs", "GPU", divergent_call=SUM_AT_TIMES),
    report_on(KIND, raised="RuntimeError: shapes"),
    Report("refused", "GPU", raised="RuntimeError: shapes", is_raised_by_loss=True),
    Report("agrees", "GPU", is_loss_narrowed=True),
    Report("agrees", "GPU", is_output_compared=True),
    Report("agrees", "GPU", skipped=3, is_output_compared=True),
    Report("agrees", "GPU", output_not_compared=NotCompared(Reason.RANDOM)),
    report_unexplained(KIND, skipped=3),
    report_unexplained(layer=UnexplainedLayer(OFF, "forward", before="0")),
    report_unexplained(layer=UnexplainedLayer(OFF, "backward")),
    report_unexplained(lines=("model.py:7",)),
    report_on(WrongDraw(DrawFault.NAN, 1, 2)),
    dataclasses.replace(report_on(KIND), infinity=CallSite("aten::cos", "", "forward")),
]
"""A value of each kind, and a report with each part that one may have."""


def show_progress() -> list[str]:
    """Return each line that a search shows while it runs."""
    return [
        wording.run_progress(HERE, 3, 1, 5, 6.0),
        wording.repeat_progress(20, 7.0),
        wording.layers_progress(8.0),
        wording.fault_of_find("GPU", "KeyError"),
        wording.search_time(9.0),
    ]


@pytest.mark.parametrize("phrase", wording.PHRASES)
def test_a_phrase_is_shown_somewhere(phrase, monkeypatch):
    """So a phrase that nothing uses is found, and each is taken from here whenever it is shown."""
    monkeypatch.setitem(wording.PHRASES, phrase, "REWORDED")
    assert "REWORDED" in "\n".join([*map(str, SHOWN), *show_progress()])


@pytest.mark.parametrize(
    ("kind", "prefix"),
    [
        pytest.param(View, "", id="views"),
        pytest.param(Cause, "", id="causes"),
        pytest.param(Reason, "", id="reasons"),
        pytest.param(FixKind, "fix: ", id="fixes"),
        pytest.param(Gradients, "", id="gradients"),
        pytest.param(DrawFault, "", id="draws"),
    ],
)
def test_each_kind_has_a_phrase(kind, prefix):
    assert [member for member in kind if f"{prefix}{member}" not in wording.PHRASES] == []


def test_no_more_layers_have_a_name_than_there_is_room_for():
    layers = tuple(LayerError(f"{n}", 0.0, 0.0, 0.0, 0.0) for n in range(report.MOST_LABELS + 4))
    below = Report("agrees", "GPU", layers=layers).draw().axes[1]
    assert len(below.get_xticks()) <= report.MOST_LABELS


MODULES = [conditions, differences, report]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_no_sentence_stands_beside_the_values(module):
    """No text of a module has three words, apart from docstrings and what it draws: `wording` has the sentences."""
    tree = ast.parse(Path(module.__file__).read_text("utf-8"))
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    pictures = [node for node in ast.walk(tree) if getattr(node, "name", "") in PICTURES]
    labels = {id(node) for picture in pictures for node in ast.walk(picture)}

    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in documentation | labels
    ]
    assert [text for text in texts if is_sentence(text)] == []


PICTURES = {"draw", "_draw_errors", "_label_layers", "_repr_html_"}
"""Functions of the modules that show a picture."""


def is_sentence(text: str) -> bool:
    """Return True for three words or more."""
    words = [word.strip(string.punctuation) for word in text.split()]
    return sum(word.isalpha() for word in words) >= 3


# ---- results that are written in part --------------------------------------------------------------------------------

CTC_LENGTHS = {"input": [6, 3], "target": [2, 1]}
"""The second item ends early in both: behind its 3 steps and its 3 states CTC writes nothing."""


def ctc_call() -> Call:
    torch.manual_seed(0)
    log_probabilities = torch.randn(6, 2, 4).log_softmax(-1)
    args = (log_probabilities, torch.tensor([[1, 2], [3, 0]]), *CTC_LENGTHS.values())
    return Call(torch.ops.aten._ctc_loss.default, args, {})


CTC_CHANGES = {
    "behind its input": ((1, slice(3, 6)), False),
    "behind its target": ((1, slice(None), slice(3, 5)), False),
    "in the shorter item": ((1, 2, 2), True),
    "in the longer item": ((0, 5, 4), True),
}


@pytest.mark.parametrize("left", [1e8, float("nan")], ids=["number", "NaN"])
@pytest.mark.parametrize(("place", "is_wrong"), CTC_CHANGES.values(), ids=CTC_CHANGES)
def test_of_ctc_only_what_it_writes_is_compared(place, is_wrong, left):
    call = ctc_call()
    loss, log_alpha = call.compute()
    log_alpha[place] = left
    assert (compare_call(call, loss, log_alpha).difference is not None) == is_wrong


def test_a_wrong_loss_of_ctc_is_found():
    call = ctc_call()
    loss, log_alpha = call.compute()
    assert compare_call(call, loss + torch.tensor([0, 0.1]), log_alpha).difference.count == 1


@pytest.mark.parametrize("kind", [list, torch.tensor], ids=["lists", "tensors"])
def test_lengths_of_ctc_are_lists_or_tensors(kind):
    lengths = [kind(each) for each in CTC_LENGTHS.values()]
    call = Call(torch.ops.aten._ctc_loss.default, (*ctc_call().args[:2], *lengths), {})
    _, log_alpha = unwritten.clear_unwritten(call, [torch.ones(2), torch.ones(2, 6, 5)])
    assert log_alpha.sum(dim=(1, 2)).tolist() == [6 * 5, 3 * 3]


@pytest.mark.parametrize("infinite", ["log_alpha", "loss"])
def test_of_ctc_an_infinite_loss_is_traced_and_the_logarithm_of_0_is_not(infinite):
    values = {"loss": torch.zeros(2), "log_alpha": torch.zeros(2, 6, 5)}
    values[infinite][0] = -torch.inf
    left = unwritten.clear_expected_infinities(ctc_call(), list(values.values()))
    assert any(tensor.isinf().any() for tensor in left) == (infinite == "loss")
