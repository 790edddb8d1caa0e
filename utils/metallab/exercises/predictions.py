"""Predict, run, explain: a guess is kept before the measurement, and an explanation is an experiment.

No check knows the right number, since it is this machine's. On the page::

    predict("13.1", seconds=0.005)
    reveal("13.1", lambda: x * 2, measure=time_on(lab))
    explain(
        "13.1",
        because="each call asks the system for new memory",
        instead=lambda: torch.mul(x, 2, out=y),
    )

`predict` keeps the guess. `reveal` measures, and says how far apart the two are and in which direction. If they are
more than a factor of two apart, `explain` takes a cause, and a call that computes the same without it: the measured gap
has to close by half at least. A guess after the measurement, another computation and no cause are *wrong*. That the gap
stays is *open*: on this machine another cause counts for more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from metallab import checks, timing, units
from metallab.judgement import Judgement

Call = Callable[[], Any]
Measure = Callable[[Call], tuple[float, Any]]
"""Runs a call: what is measured, in the unit of the guess, and what the call returned."""
Same = Callable[[Any, Any], None]
"""Raises `metallab.checks.Mismatch` if two results are not the same."""

WORDS = 4
"""So many words has a cause at least; whether it is one, the experiment decides."""


@dataclass
class _Prediction:
    """A guess, and what was measured afterwards."""

    guess: float
    unit: str
    measured: float | None = None
    reference: Any = None
    measure: Measure | None = None
    within: float = 2.0


_PREDICTIONS: dict[str, _Prediction] = {}


def predict(exercise: str, **guess: Any) -> Judgement:
    """Keep a guess until `reveal` measures.

    Parameters
    ----------
    exercise
        Its number, such as ``13.1``.
    **guess
        One number above 0, by the name of its unit, such as ``seconds=0.005``; ``...`` is not attempted yet.

    Returns
    -------
    Judgement
        *open* until it is measured, or *not attempted*.

    Raises
    ------
    metallab.checks.WrongAnswer
        For what is no number above 0, and for another guess once it has been measured: the first one stays.
    TypeError
        Unless one guess is given.
    """
    if len(guess) != 1:
        raise TypeError("a prediction is one number with its unit, such as seconds=0.005")
    ((unit, value),) = guess.items()
    name = _name(exercise)
    if value is ...:
        return Judgement(name, "not attempted", "not attempted yet")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:
        raise checks.wrong_answer(name, f"a prediction is a number above 0, not {value!r}.")

    before = _PREDICTIONS.get(exercise)
    if before is not None and before.measured is not None:
        return _keep_first(name, before, value)
    _PREDICTIONS[exercise] = _Prediction(float(value), unit)
    return Judgement(name, "open", f"your guess is kept: {value:.3g} {unit}. Now measure")


def _keep_first(name: str, before: _Prediction, value: float) -> Judgement:
    """Return that a guess is kept which was measured already; refuse another one."""
    if math.isclose(before.guess, value):
        return Judgement(name, "open", f"your guess is kept: {value:.3g} {before.unit}")
    raise checks.wrong_answer(
        name,
        f"you have seen the measurement, {before.measured:.3g} {before.unit}. "
        f"Your first guess, {before.guess:.3g}, stays: it is worth more.",
    )


def reveal(exercise: str, call: Call, *, measure: Measure, within: float = 2.0) -> Judgement:
    """Measure what was predicted, and say how far apart both are, and in which direction.

    Parameters
    ----------
    exercise
        Its number.
    call
        What the guess was about.
    measure
        Runs a call, and returns what is measured in the unit of the guess and the call's result: `time_on` a device.
    within
        A prediction holds that is off by this factor at most.

    Returns
    -------
    Judgement
        *right* if the prediction holds, which ends the exercise; else *open*; *not attempted* without a guess. What is
        measured is kept for `explain`, as are ``measure`` and ``within``.
    """
    kept, name = _PREDICTIONS.get(exercise), _name(exercise)
    if kept is None:
        return Judgement(
            name, "not attempted", "not attempted yet: predict first, in the cell above"
        )

    kept.measured, kept.reference = measure(call)
    kept.measure, kept.within = measure, within
    said = f"predicted {kept.guess:.3g}, measured {kept.measured:.3g} {kept.unit}: {_describe_gap(kept)}."
    if _factor(kept.guess, kept.measured) <= within:
        return Judgement(name, "right", f"{said} The prediction holds: say in a sentence why")
    return Judgement(
        name, "open", f"{said} Which assumption is wrong? Explain it with an experiment"
    )


def explain(exercise: str, because: Any, instead: Any, *, same: Same | None = None) -> Judgement:
    """Judge the explanation of a prediction that failed: an experiment without the cause.

    Parameters
    ----------
    exercise
        Its number.
    because
        The cause, in a sentence of four words at least. It is shown, and not judged.
    instead
        The call without the cause, which computes the same.
    same
        Compares its result with that of the call that was measured, and raises `metallab.checks.Mismatch`; by default
        with the tolerance of float32.

    Returns
    -------
    Judgement
        *right* if the gap closes by half at least, or if the prediction held and nothing is to be explained; *open*
        if the gap stays, as on this machine another cause counts for more; *not attempted* for ``...``, or before
        `reveal`.

    Raises
    ------
    metallab.checks.WrongAnswer
        If no cause is named, or the experiment computes something else.
    """
    kept, name = _PREDICTIONS.get(exercise), _name(exercise)
    if kept is None or kept.measured is None or kept.measure is None:
        return Judgement(name, "not attempted", "not attempted yet: predict and measure first")
    before = _factor(kept.guess, kept.measured)
    if before <= kept.within:
        return Judgement(
            name,
            "right",
            f"your prediction held within a factor of {kept.within:g}: nothing is open",
        )
    if because is ... or instead is ...:
        return Judgement(name, "not attempted", "not attempted yet")

    if not isinstance(because, str) or len(because.split()) < WORDS:
        raise checks.wrong_answer(
            name, f"say the cause in a sentence of at least {WORDS} words, not {because!r}."
        )
    without, result = kept.measure(instead)
    _require_same(name, kept.reference, result, same or checks.matches("float32"))

    after = _factor(kept.guess, without)
    said = (
        f"without '{because}' it is {without:.3g} {kept.unit}, {after:.2f} times from your prediction; "
        f"before, {before:.2f} times"
    )
    # a factor of 1 is no gap, of which half may be left
    if after > 1 + (before - 1) / 2:
        return Judgement(
            name, "open", f"{said}. On this machine that is not the main cause: look for another"
        )
    return Judgement(name, "right", said)


def judge_formula(
    exercise: str,
    seconds: Any,
    call: Call,
    *,
    because: Any,
    instead: Call | None,
    measure: Measure,
) -> Judgement:
    """Predict, reveal and explain in one, for a prediction that a formula has made.

    A formula is put in anew at each check, perhaps with newer numbers of the machine, so no earlier value is kept.

    Parameters
    ----------
    exercise
        Its number.
    seconds
        What the learner's formula gives.
    call
        What the formula is about.
    because, instead
        The cause if the formula fails, and the call without it, as `explain` takes them; None if nothing was tried.
    measure
        Runs a call, as `reveal` takes it.

    Returns
    -------
    Judgement
        That of `reveal` if the formula holds or nothing was tried, else that of `explain`.

    Raises
    ------
    metallab.checks.WrongAnswer
        As `predict` and `explain`.
    """
    _PREDICTIONS.pop(exercise, None)
    predict(exercise, seconds=seconds)

    revealed = reveal(exercise, call, measure=measure)
    is_tried = because is not ... and instead is not None
    if revealed.outcome == "right" or not is_tried:
        return revealed
    return explain(exercise, because, instead)


def _require_same(name: str, reference: Any, result: Any, same: Same) -> None:
    """Refuse an experiment that computes something else."""
    try:
        same(reference, result)
    except (checks.Mismatch, TypeError) as difference:
        raise checks.wrong_answer(
            name,
            "your experiment computes something else, so that it explains nothing: change the cause and nothing "
            f"besides ({units.first_line(difference)}).",
        ) from difference


def _name(exercise: str) -> str:
    return f"Exercise {exercise}"


def _factor(one: float, other: float) -> float:
    """Return by which factor, above 1, two numbers are apart."""
    return max(one / other, other / one)


def _describe_gap(kept: _Prediction) -> str:
    """Say by which factor it was longer or shorter than predicted."""
    measured = kept.measured or math.inf
    way = "more" if measured > kept.guess else "less"
    return f"{_factor(kept.guess, measured):.2f} times {way}"


def time_on(device: timing.DeviceLike) -> Measure:
    """Return what times a call on a device, in seconds.

    Parameters
    ----------
    device
        Where the call computes; ``timing.Host()`` for what is no framework's.

    Returns
    -------
    Measure
        It gives the median of `metallab.timing.measure`. ValueError for the simulated GPU, whose times predict nothing.
    """

    def measure(call: Call) -> tuple[float, Any]:
        result = call()
        measured = timing.measure(call, on=device, name="prediction")
        if measured.simulated:
            raise ValueError(
                "a time on the simulated GPU says nothing about a machine: time it on a device that is here"
            )
        return measured.median, result

    return measure
