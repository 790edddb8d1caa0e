"""Results of every class that the doctor's questions have, as they may come out, for tests of what is made of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from metallab.doctor.answer import Answer
from metallab.doctor.questions import QUESTIONS, Question
from metallab.doctor.report import Report
from metallab.doctor.results import (
    Asked,
    BatchTimes,
    CallTime,
    Caveat,
    ComparedRun,
    CorrectnessResult,
    FirstInfinity,
    FootprintResult,
    FormatRun,
    FormatsResult,
    Layer,
    Layout,
    MachineMemory,
    ModelSummary,
    NoAnswer,
    NoBatches,
    NotTried,
    Obstacle,
    OperatorTime,
    OtherOutput,
    ProfileResult,
    SpeedResult,
    SpeedUp,
    SupportResult,
    TaskSupport,
    TimedTask,
    Transfers,
    Trial,
    UnsupportedOperator,
    Way,
    Why,
    WrongOperator,
)
from metallab.outcomes import Status

MODEL = ModelSummary("Net", 3, ((8, 8),))
GIB = 2**30

# ---- does it run on MPS ----------------------------------------------------------------------------------------------

INFERENCE = TaskSupport("inference", True, summary="Yes: 3 operators run.")
TRAINING = TaskSupport("training", True, summary="Yes: 5 operators run.")
RUNS = SupportResult((INFERENCE, TRAINING), Trial(is_simulated=True))
POOL = UnsupportedOperator("aten::pool.default", Obstacle.MISSING, ("pool",), ("net.py:3",), "drop")
STOPS = SupportResult(
    (replace(INFERENCE, runs=False, summary="No: pool is missing."),),
    Trial(is_simulated=False, raised="NotImplementedError", is_surprising=True),
    tuple(replace(POOL, name=f"aten::{kind}", obstacle=kind, lines=()) for kind in Obstacle),
)
UNEXPLAINED = replace(
    RUNS, trial=Trial(is_simulated=False, raised="RuntimeError: shapes", is_surprising=True)
)
CONTRADICTED = replace(STOPS, trial=Trial(is_simulated=True, is_surprising=True))
BY_FALLBACK = replace(
    RUNS, tasks=(replace(STOPS.tasks[0], runs=True, may_leave_gpu=True, needs_fallback=True),)
)
NOT_PREDICTED = SupportResult((TaskSupport("inference", None, error="KeyError: 'words'"),))

# ---- is it right -----------------------------------------------------------------------------------------------------

GIVEN = Way(Layout.AS_GIVEN, "training")
COMPARED = ComparedRun(GIVEN, 12, 0, "agrees", 1e-7)
AGREES = CorrectnessResult((COMPARED,))
SO_FAR = CorrectnessResult(
    (
        COMPARED,
        replace(COMPARED, way=Way(Layout.OTHER_MODE, "evaluation"), skipped=4),
        replace(COMPARED, way=Way(Layout.OTHER_MODE, "evaluation", "no_grad"), known=12),
        replace(COMPARED, way=Way(Layout.REPEATED, "training"), compared=0, repeated=40),
    ),
    not_tried=(
        *(NotTried(Way(layout, "training")) for layout in Layout),
        NotTried(GIVEN, "no view"),
    ),
    not_compared={"aten::lstm": "its results are in no order"},
    output_not_compared="random",
    nan="A NaN appears in norm.",
    without_gradient=tuple(f"layer{number}" for number in range(7)),
    is_narrowed=True,
    has_fallbacks=True,
)
NOTHING_COMPARED = CorrectnessResult((replace(COMPARED, compared=0, skipped=12),))
OPERATOR = WrongOperator(
    operator="aten::convolution",
    module="conv",
    direction="forward",
    wrong_calls=1,
    right_calls=0,
    headline="WRONG KERNEL: aten::convolution.",
    difference="3 of 4 values differ.",
    advice="compute it in float32",
    details="all of it",
    program="assert False",
)
WRONG = CorrectnessResult((replace(COMPARED, outcome="wrong kernel"),), wrong=OPERATOR)
INTERMITTENT = replace(WRONG, wrong=replace(OPERATOR, right_calls=2))
NO_PROGRAM = replace(WRONG, wrong=replace(OPERATOR, program=""))
THEN_RAISED = replace(WRONG, raised="RuntimeError: shapes")
OTHER_OUTPUT = CorrectnessResult(
    (replace(COMPARED, outcome="output differs"),),
    other_output=OtherOutput(
        "OUTPUT DIFFERS: what the model returns.", "look in forward", "all of it"
    ),
)
RAISED = CorrectnessResult((replace(COMPARED, outcome="raised"),), raised="KeyError: 'words'")
MISSING = replace(RAISED, is_predicted=True)
RAISED_BY_LOSS = replace(RAISED, is_raised_by_loss=True)

# ---- is it fast ------------------------------------------------------------------------------------------------------

TIME = CallTime(1e-3, 9e-4, 2e-3, ("noisy",))
FASTER = SpeedUp("mps", "faster", "mps is 2 times as fast", 2.0, 1.9, 2.1, 20)
WITHHELD = SpeedUp("mps", "withheld", "mps: no speed-up is given", reason="busy machine")
TIMED = TimedTask("inference", TIME, (FASTER,), "latency", details="samples")
BATCHES = BatchTimes((1, 4), {"CPU": (1e-3, 2e-3), "mps": (1e-4, 2e-4)}, 1, False, "it wins")
FAST = SpeedResult((TIMED,), BATCHES, replace(TIMED, task="training", question="throughput"))
UNSETTLED = SpeedResult(
    (replace(TIMED, speed_ups=(WITHHELD,), opaque=("loss",), is_random=True),),
    NoBatches.NO_TIME,
    replace(TIMED, task="training", speed_ups=None),
)
NO_TRAINING = SpeedResult((TIMED,), NoBatches.ONE_SIZE, None)

# ---- where does the time go ------------------------------------------------------------------------------------------

LAYERS = (Layer("4", "Conv2d"), Layer("0", "Conv2d"), Layer("head", "Linear"))
ROLL = OperatorTime("aten::roll", "operator", "4; 0; head", 1, 6e-4, 0.6, LAYERS)
COPY = Transfers("_to_copy", "to host", "net", "net.py:7", 2, 8, None)
NO_COPIES = ProfileResult("training", (ROLL,), ())
COPIES = ProfileResult("inference", (replace(ROLL, modules=""),), (COPY,), 1, 0)
OF_PACKAGES = ProfileResult(
    "training", (ROLL,), (replace(COPY, module="", line=""),), 2, 0, ("torchvision",)
)
RAISES_THERE = ProfileResult("training", (), None, raised_on="Apple M5")

# ---- does it fit -----------------------------------------------------------------------------------------------------

HERE = MachineMemory(16 * GIB, label="a CPU", free=8 * GIB, largest_batch=3000)
MAC = MachineMemory(5 * GIB, installed=8 * GIB, macos=15, largest_batch=1000)
FITS = FootprintResult(
    weights=GIB,
    gradients=GIB // 2,
    optimizer=GIB,
    activations=GIB,
    is_by_peak=True,
    rows=8,
    batch=8,
    machines=(HERE, MAC),
    peaks={"inference": GIB, "training": 2 * GIB},
)
TOO_LARGE = replace(FITS, activations=12 * GIB, batch=0)
A_CALL = replace(FITS, gradients=0, optimizer=0, peaks={})

# ---- which number format ---------------------------------------------------------------------------------------------

WHOLE = FormatRun("float32", None, 1e-7, time=TIME, kept_bytes=1024)
INFINITY = FirstInfinity("infinity", "enter", "pow", "net.py:3")
SOUND = FormatsResult("float64", (WHOLE, FormatRun("bfloat16", "autocast", 1e-2)))
OVERFLOWS = FormatsResult(
    "itself",
    (
        replace(WHOLE, time=None, kept_bytes=None),
        FormatRun("bfloat16", "cast", raised="RuntimeError: no kernel"),
        FormatRun("float16", "autocast", infinity=INFINITY),
        FormatRun("float16", "cast", infinity=FirstInfinity("NaN", "", "div", "")),
        FormatRun("bfloat16", "autocast", is_infinite=True),
    ),
    nans=1,
    outputs=4,
)
RANDOM = FormatsResult("float64", (replace(WHOLE, error=None),), is_random=True)
NO_NUMBERS = replace(RANDOM, is_random=False)
ONLY_FLOAT32 = FormatsResult("float64", (WHOLE, FormatRun("float16", "autocast", 1e-7)))

# ---- of each question ------------------------------------------------------------------------------------------------

RESULTS: dict[str, list[Any]] = {
    "support": [RUNS, STOPS, UNEXPLAINED, CONTRADICTED, BY_FALLBACK, NOT_PREDICTED],
    "correctness": [
        *(
            AGREES,
            SO_FAR,
            NOTHING_COMPARED,
            WRONG,
            INTERMITTENT,
            NO_PROGRAM,
            THEN_RAISED,
            OTHER_OUTPUT,
            RAISED,
            RAISED_BY_LOSS,
            MISSING,
        ),
    ],
    "speed": [FAST, UNSETTLED, NO_TRAINING],
    "profile": [NO_COPIES, COPIES, OF_PACKAGES, RAISES_THERE],
    "footprint": [FITS, TOO_LARGE, A_CALL],
    "formats": [SOUND, OVERFLOWS, RANDOM, NO_NUMBERS, ONLY_FLOAT32],
}
"""By the question's key; the first is one in which nothing is wrong."""


def find_results(key: str) -> list[Any]:
    """Return the results of a question; AssertionError with what to write if it has none here."""
    assert key in RESULTS, (
        f"tests/support/doctor_results.py: write RESULTS[{key!r}], results whose answers the tests look at; "
        "the first is one in which nothing is wrong"
    )
    return RESULTS[key]


NO_ANSWERS = [
    NoAnswer(Why.NO_APPLE_GPU),
    NoAnswer(Why.RAISED, "KeyError: 'words'", see_support=True),
    NoAnswer(Why.ENDED, "the process ended.", printed="dyld: gone"),
    NoAnswer(Why.TIMEOUT, "took longer than 9 s and was stopped"),
    NoAnswer(Why.MEMORY, "the process ended with 77", max_bytes=GIB),
]
ASKED = [
    Asked(),
    Asked(device="a CPU"),
    Asked(tables="2.15.0"),
    Asked(device="Apple M5", tables="2.15.0"),
    Asked(device="a CPU", copies="Simulated Apple GPU"),
]


def answer_to(
    question: Question[Any], status: Status = "passed", result: Any = None, **fields: Any
) -> Answer[Any]:
    """Return an answer with the first of the question's results, or with another one."""
    fields.setdefault("asked", Asked(device="a CPU"))
    return Answer(question, status, result or find_results(question.key)[0], **fields)


def report_of(*answers: Answer[Any], factory: str = "mine:example") -> Report:
    """Return a report with these answers, or with one to each question."""
    return Report(factory, MODEL, answers or tuple(map(answer_to, QUESTIONS)), "2.15.0")


def all_answers() -> list[Answer[Any]]:
    """Return an answer for each result, each way to have none, each place and each caveat."""
    answers = []
    for question in QUESTIONS:
        answers += [answer_to(question, result=result) for result in find_results(question.key)]
        answers += [answer_to(question, "skipped", result) for result in NO_ANSWERS]
    first = QUESTIONS[0]
    answers += [answer_to(first, asked=asked, caveats=tuple(Caveat)) for asked in ASKED]
    return answers
