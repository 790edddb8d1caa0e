"""What the doctor's answers hold: numbers, names and enums. Their words are in `metallab.doctor.wording`.

Texts in here are other people's: names of operators and modules, what an exception says, how `metallab.timing`,
`metallab.pytorch.coverage` or `metallab.pytorch.divergence` put what they found. Nothing decides by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from metallab.outcomes import Verdict

Task = Literal["inference", "training"]
"""What is asked of a model: a call in evaluation mode, or a training step."""


@dataclass(frozen=True)
class ModelSummary:
    """What a factory makes."""

    name: str
    """Its class."""
    weights: int
    """How many numbers they are."""
    inputs: tuple[tuple[int, ...], ...]
    """The shapes of the tensors among them."""


# ---- of any answer -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """What a question was asked of; all absent where nothing was."""

    device: str | None = None
    """The label of hardware."""
    tables: str | None = None
    """The version of PyTorch whose tables of operators were read."""
    copies: str | None = None
    """The label of another device, on which copies and fallbacks were counted."""


class Caveat(StrEnum):
    """What limits an answer."""

    WHOLE_FLOAT32 = "whole float32"
    """Float32 was computed without TF32."""
    OTHER_HARDWARE = "other hardware"
    """Nothing here is an Apple GPU's."""
    OTHER_TIMES = "other times"
    """Times are not an Apple GPU's; the rest is."""


class Why(StrEnum):
    """Why a question has no answer."""

    NO_APPLE_GPU = "no Apple GPU"
    RAISED = "raised"
    """An exception of the model or the device."""
    ENDED = "ended"
    """The process that was to answer ended, or its code raised."""
    TIMEOUT = "timeout"
    """It took too long, and was stopped."""
    MEMORY = "memory"
    """It needed more memory than it may have."""


class Trouble(StrEnum):
    """What an answer has found that its status alone does not say."""

    UNEXPLAINED = "unexplained"
    """The model raises on an Apple GPU, and the tables of operators do not say why."""
    NO_PROGRAM = "no program"
    """An operator is wrong, and no short program shows it."""
    OTHER_OUTPUT = "other output"
    """Each operator agrees with the CPU, and what the model returns does not."""
    CONTRADICTED = "contradicted"
    """The model runs on an Apple GPU, and the tables of operators say that it does not."""
    PARTLY_KNOWN = "partly known"
    """There is no Apple GPU, and of inference or of training nothing can be predicted."""


@dataclass(frozen=True)
class NoAnswer:
    """In place of a result."""

    why: Why
    detail: str = ""
    """The exception, or how the process ended."""
    printed: str = ""
    """What the process printed last."""
    max_bytes: int | None = None
    """With `Why.MEMORY`: what it may have."""
    see_support: bool = False
    """Whether the answer on MPS tells more."""


@dataclass(frozen=True)
class CallTime:
    """The time of a call, in seconds."""

    median: float
    low: float
    """The lower quartile."""
    high: float
    """The upper quartile."""
    flags: tuple[str, ...] = ()
    """What `metallab.timing` says against it."""


# ---- 1: support ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskSupport:
    """What PyTorch's tables say of inference or of training."""

    task: Task
    runs: bool | None
    """None if nothing can be predicted."""
    may_leave_gpu: bool = False
    """Operators fall back, or are not PyTorch's own."""
    needs_fallback: bool = False
    """It runs because ``PYTORCH_ENABLE_MPS_FALLBACK`` is set, with operators on the CPU that are missing on the GPU."""
    summary: str = ""
    """What `metallab.pytorch.coverage` found; empty if it found nothing."""
    error: str = ""
    """Why nothing can be predicted."""


@dataclass(frozen=True)
class Trial:
    """A run on an Apple GPU."""

    is_simulated: bool
    raised: str | None = None
    """The exception with its module and line; None if it ran."""
    is_raised_by_loss: bool = False
    """Whether it is the loss that raised, and not the model."""
    is_surprising: bool = False
    """The tables had predicted otherwise."""


class Obstacle(StrEnum):
    """What is in the way of an operator; the first four are statuses of `metallab.pytorch.coverage`."""

    MISSING = "missing"
    REFUSED = "refused"
    FALLS_BACK = "falls back"
    UNKNOWN = "unknown"
    ON_CPU = "on the CPU"
    """It meets a tensor there."""
    ON_GPU = "on the GPU"
    """It meets a tensor there that has to be on the CPU: the lengths of sequences that are packed."""
    FLOAT64 = "float64"
    """It makes a tensor of that dtype. `TaskSupport.summary` tells of one that the model holds or gets as an input."""
    COMPLEX128 = "complex128"
    ARRAY = "array"
    SECOND_DERIVATIVE = "second derivative"
    """A gradient of its gradient is wanted, for which there is no formula."""


@dataclass(frozen=True)
class UnsupportedOperator:
    """An operator that does not run on the GPU, makes float64, or meets a tensor on the CPU.

    A weight, a buffer or an input in float64 is no operator: `TaskSupport.summary` names it, with the way out.
    """

    name: str
    obstacle: Obstacle
    modules: tuple[str, ...]
    lines: tuple[str, ...]
    """Empty where PyTorch's own code calls it."""
    way_out: str


@dataclass(frozen=True)
class SupportResult:
    """What answers *Does it run on MPS?*."""

    tasks: tuple[TaskSupport, ...]
    trial: Trial | None = None
    """None without an Apple GPU."""
    operators: tuple[UnsupportedOperator, ...] = ()

    @property
    def predicted(self) -> tuple[TaskSupport, ...]:
        """Those of which something can be predicted."""
        return tuple(task for task in self.tasks if task.runs is not None)

    @property
    def trouble(self) -> Trouble | None:
        """What the status does not say."""
        if self.trial is None:
            is_partly_known = 0 < len(self.predicted) < len(self.tasks)
            runs_as_far_as_known = all(task.runs for task in self.predicted)
            return Trouble.PARTLY_KNOWN if is_partly_known and runs_as_far_as_known else None
        if not self.trial.is_surprising:
            return None
        return Trouble.CONTRADICTED if self.trial.raised is None else Trouble.UNEXPLAINED


# ---- 2: correctness ------------------------------------------------------------------------------------------------


class Layout(StrEnum):
    """How a model was run, and how its inputs lay in memory."""

    AS_GIVEN = "as given"
    OTHER_MODE = "other mode"
    """As given, in the mode that the model is not used in, or without gradients."""
    SWAPPED = "swapped"
    """The last two dimensions swapped in memory."""
    CHANNELS_LAST = "channels last"
    ODD_OFFSET = "odd offset"
    """Not at the start of their memory."""
    REPEATED = "repeated"
    """Calls of the other runs were made again with other numbers."""


Mode = Literal["training", "evaluation"]
Gradients = Literal["kept", "no_grad", "inference_mode"]
"""Whether a model is run with gradients; the values of `metallab.pytorch.divergence.Gradients`."""


@dataclass(frozen=True)
class Way:
    """One way to run a model."""

    layout: Layout
    mode: Mode
    gradients: Gradients = "kept"


@dataclass(frozen=True)
class ComparedRun:
    """One run of the model whose operators were compared with the CPU in float64."""

    way: Way
    compared: int
    """Calls of operators that were compared."""
    skipped: int
    """Calls that there was no time for."""
    outcome: Literal["agrees", "wrong kernel", "intermittent", "NaN", "output differs", "raised"]
    """See `metallab.pytorch.divergence.Outcome`."""
    largest: float
    """The largest difference of those that agree, over the root mean square."""
    uncompared: int = 0
    """Calls of random operators, and of those that have no right result on the CPU."""
    known: int = 0
    """Calls of a kind that an earlier run has compared: they are passed over."""
    repeated: int = 0
    """Calls of earlier runs that were made again with other numbers, and compared."""

    @property
    def calls(self) -> int:
        """All calls of operators, but those of a kind that an earlier run has compared."""
        return self.compared + self.skipped + self.uncompared

    @property
    def is_compared(self) -> bool:
        """True if calls were compared, in this run or in an earlier one."""
        return self.compared + self.known + self.repeated > 0


@dataclass(frozen=True)
class NotTried:
    """A way that was left out."""

    way: Way
    error: str | None = None
    """What it raised, such as a ``.view()`` of another layout; None for lack of time."""


@dataclass(frozen=True)
class WrongOperator:
    """The first operator whose result differs."""

    operator: str
    """``aten::convolution``."""
    module: str
    """The innermost module that calls it; empty for the model itself."""
    direction: Literal["forward", "backward", "step"]
    wrong_calls: int
    """How many times it was wrong with the same numbers."""
    right_calls: int
    """How many times it was right with the same numbers, when it was made again."""
    headline: str
    difference: str
    advice: str
    details: str
    program: str = ""
    """At most 20 lines that show it; empty if random numbers do not."""

    @property
    def is_intermittent(self) -> bool:
        """Whether the same call was right, too."""
        return self.right_calls > 0


@dataclass(frozen=True)
class OtherOutput:
    """The model returns something else than on the CPU, though each operator that was compared agrees."""

    headline: str
    advice: str
    details: str


@dataclass(frozen=True)
class CorrectnessResult:
    """What answers *Is it right?*."""

    runs: tuple[ComparedRun, ...]
    """One at least; after a wrong operator, or an output that differs, there is no other."""
    not_tried: tuple[NotTried, ...] = ()
    not_compared: Mapping[str, str] = field(default_factory=dict)
    """Operators that cannot be compared, and why."""
    wrong: WrongOperator | None = None
    other_output: OtherOutput | None = None
    """None as well where what the model returns was not compared."""
    output_not_compared: str | None = None
    """Why what the model returns was not compared; None if it was, or if something was found before."""
    nan: str | None = None
    """Where a NaN appears that the CPU has as well; what follows it was not compared."""
    raised: str | None = None
    """What it raises on the Apple GPU as it was given, and not on the CPU; a wrong operator may be the cause."""
    is_raised_by_loss: bool = False
    """Whether it is the loss that raises, and not the model."""
    is_predicted: bool = False
    """Whether the tables of operators say that it raises."""
    without_gradient: tuple[str, ...] = ()
    """Weights that get none in a training step."""
    is_narrowed: bool = False
    """Float64 was replaced by float32."""
    has_fallbacks: bool = False
    """Operators without an MPS kernel ran on the CPU."""

    @property
    def trouble(self) -> Trouble | None:
        """What the status does not say."""
        if self.other_output is not None:
            return Trouble.OTHER_OUTPUT
        if self.wrong is None or self.wrong.program:
            return None
        return Trouble.NO_PROGRAM

    @property
    def compared(self) -> int:
        """Calls of operators that were compared, over all runs."""
        return sum(run.compared for run in self.runs)

    @property
    def repeated(self) -> int:
        """Calls that were made again and compared."""
        return sum(run.repeated for run in self.runs)

    @property
    def calls(self) -> int:
        """All calls of operators, over all runs."""
        return sum(run.calls for run in self.runs)

    @property
    def largest(self) -> float:
        """The largest difference, over the root mean square."""
        return max(run.largest for run in self.runs)

    @property
    def is_out_of_time(self) -> bool:
        """True if calls or ways were left out for lack of time."""
        left_out = any(run.skipped for run in self.runs)
        return left_out or any(each.error is None for each in self.not_tried)


# ---- 3: speed ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpeedUp:
    """The speed-up of a device over the baseline, or that none is given."""

    variant: str
    verdict: Verdict
    sentence: str
    """As `metallab.timing` puts it."""
    median: float | None = None
    """How many times as fast; None if it is withheld."""
    low: float | None = None
    """The ends of its 95 % interval; None if the pairs are too few for one."""
    high: float | None = None
    pairs: int = 0
    reason: str | None = None
    """Why it is withheld: a `metallab.timing.Reason`."""


@dataclass(frozen=True)
class TimedTask:
    """The time of inference, or of a training step."""

    task: Task
    time: CallTime
    """On the best device here."""
    speed_ups: tuple[SpeedUp, ...] | None
    """None if there was no time to compare it."""
    question: Literal["latency", "throughput"] | None = None
    """What was compared."""
    opaque: tuple[str, ...] = ()
    """Parts of the outputs without a tensor, which were not compared."""
    is_random: bool = False
    """No speed-up is given, and outputs differ from call to call."""
    details: str = ""
    """All that `metallab.timing` says of it."""

    @property
    def is_conclusive(self) -> bool:
        """True if a speed-up is given for each device."""
        if self.speed_ups is None:
            return False
        return all(each.verdict != "withheld" for each in self.speed_ups)


@dataclass(frozen=True)
class BatchTimes:
    """The time of inference over batches."""

    batches: tuple[int, ...]
    """The sizes that every device was timed at."""
    seconds: Mapping[str, tuple[float, ...]]
    """By device, the median of a call at each size."""
    crossover: int | None
    """The size from which on the GPU, or the whole CPU, wins."""
    is_withheld: bool
    """Nothing may be predicted from it."""
    sentence: str
    """As `metallab.pytorch.crossover` puts it."""


class NoBatches(StrEnum):
    """Why inference was not timed over batches."""

    ONE_SIZE = "one size"
    """Outputs do not follow the inputs' first dimension."""
    NO_TIME = "no time"


@dataclass(frozen=True)
class SpeedResult:
    """What answers *Is it fast?*."""

    inference: tuple[TimedTask, ...]
    batches: BatchTimes | NoBatches
    training: TimedTask | None
    """None if there is nothing to train."""

    @property
    def is_conclusive(self) -> bool:
        """True if nothing was withheld or left out for lack of time."""
        tasks = [*self.inference, *([self.training] if self.training else [])]
        if not all(task.is_conclusive for task in tasks):
            return False
        if isinstance(self.batches, BatchTimes):
            return not self.batches.is_withheld
        return self.batches is not NoBatches.NO_TIME


# ---- 4: profile ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """A part of the model, by its place and its kind."""

    place: str
    """Such as ``encoder.4``, as `named_modules` calls it."""
    kind: str
    """Its class, such as ``Conv2d``."""


@dataclass(frozen=True)
class OperatorTime:
    """The calls of one operator in a step."""

    name: str
    kind: str
    modules: str
    """Those that call it; empty if none does."""
    calls: int
    seconds: float
    share: float
    """Of the time in operators, from 0 to 1."""
    layers: tuple[Layer, ...] = ()
    """Those of `modules` that are layers of the model; empty in files of earlier versions."""


@dataclass(frozen=True)
class Transfers:
    """Copies between CPU and GPU, or fallbacks, of one line of code."""

    name: str
    direction: str
    """``to host``, ``to device``, or ``fallback``."""
    module: str
    """Empty if no layer makes them."""
    line: str
    """``file:number``; empty for code that is not the reader's."""
    calls: int
    bytes: int
    seconds: float | None
    """None on the simulated GPU, which knows no time."""


@dataclass(frozen=True)
class ProfileResult:
    """What answers *Where does the time go?*."""

    task: Task
    operators: tuple[OperatorTime, ...]
    """The longest first."""
    transfers: tuple[Transfers, ...] | None
    """The most frequent first; None where there is no GPU that could say."""
    copies: int = 0
    fallbacks: int = 0
    packages: tuple[str, ...] = ()
    """The installed packages whose code makes all these copies; empty if other code makes some."""
    raised_on: str | None = None
    """The Apple GPU on which the model raises, so that its copies are not known."""
    flags: tuple[str, ...] = ()
    """What `metallab.timing` says against the times, each of which is that of one step."""

    @property
    def seconds(self) -> float:
        """In all operators together."""
        return sum(operator.seconds for operator in self.operators)


# ---- 5: footprint --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MachineMemory:
    """Memory that a model may use on a machine, in bytes."""

    usable: int
    label: str | None = None
    """The device's, of this machine; None for another."""
    free: int | None = None
    """Of this machine, at the moment."""
    installed: int | None = None
    """Of a Mac that is asked about."""
    macos: int | None = None
    """The Mac's system, which decides how much of it a GPU may use."""
    largest_batch: int | None = None
    """None for a model that takes no other batch."""


@dataclass(frozen=True)
class FootprintResult:
    """What answers *Does it fit?*, in bytes, but for rows and batch."""

    weights: int
    gradients: int
    optimizer: int
    """AdamW's two numbers for each weight."""
    activations: int
    """What belongs to the batch: kept for the backward pass, or by the peak of a step."""
    is_by_peak: bool
    """Whether `activations` are known by the peak of a step, and not counted."""
    rows: int
    """Of the inputs; 0 if they have none."""
    batch: int
    """Rows as well; 0 for a model that takes no other batch."""
    machines: tuple[MachineMemory, ...]
    """This one first."""
    peaks: Mapping[Task, int] = field(default_factory=dict)
    """What PyTorch's allocator held at most beyond the weights; empty if nothing was run."""

    @property
    def can_train(self) -> bool:
        """True if there are weights with a gradient."""
        return self.gradients > 0

    @property
    def fixed(self) -> int:
        """What does not depend on the batch."""
        return self.weights + self.gradients + self.optimizer

    @property
    def needed(self) -> int:
        """What training needs, or a call where there is nothing to train."""
        return self.fixed + self.activations

    def fits(self, machine: MachineMemory) -> bool:
        """Return True if a machine has as much memory as is needed."""
        return self.needed <= machine.usable

    @property
    def is_waiting_for_memory(self) -> bool:
        """True if it fits into this machine when other programs free memory."""
        here = self.machines[0]
        return here.free is not None and here.free < self.needed <= here.usable


# ---- 6: formats ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FirstInfinity:
    """Where finite numbers first become infinite ones or NaN, and in float32 do not."""

    kind: Literal["infinity", "NaN"]
    module: str
    """Empty for the model itself."""
    operator: str
    line: str
    """``file:number``; empty if it is not known."""


@dataclass(frozen=True)
class FormatRun:
    """A run in one number format."""

    dtype: str
    how: Literal["autocast", "cast"] | None = None
    """None for float32, which is neither."""
    error: float | None = None
    """Largest difference from the exact outputs, over their root mean square; None where it cannot be compared."""
    is_infinite: bool = False
    """There is NaN where the exact outputs are finite; `error` is None then."""
    raised: str | None = None
    """The exception; None if it ran."""
    infinity: FirstInfinity | None = None
    time: CallTime | None = None
    """Of inference; None if it was not timed."""
    kept_bytes: int | None = None
    """For the backward pass; None if it was not counted."""

    @property
    def name(self) -> str:
        """``float16, autocast``."""
        return f"{self.dtype}, {self.how}" if self.how else self.dtype

    @property
    def is_sound(self) -> bool:
        """True if it ran, without an infinity or NaN of its own."""
        return self.raised is None and self.infinity is None

    @property
    def is_compared(self) -> bool:
        """True if there is an error, be it infinite."""
        return self.error is not None or self.is_infinite


@dataclass(frozen=True)
class FormatsResult:
    """What answers *Which number format?*."""

    reference: Literal["float64", "itself"]
    """What outputs were compared with: float64, or the model as it is where it does not run in that."""
    formats: tuple[FormatRun, ...]
    is_random: bool = False
    """Outputs differ from call to call, so nothing was compared."""
    nans: int = 0
    """NaN among the reference's outputs."""
    outputs: int = 0
    """Numbers among the outputs."""
    left_out: str = ""
    """What was not timed for lack of time, as `metallab.allowance` puts it."""

    def __getitem__(self, name: str) -> FormatRun:
        """Return the run in a format. KeyError for a format that is not there."""
        for run in self.formats:
            if run.name == name:
                return run
        raise KeyError(name)
