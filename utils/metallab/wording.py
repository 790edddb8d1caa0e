"""The words for a speed-up and for its absence: whatever shows one takes them from here.

The classes of `metallab.timing` hold numbers and reasons; the functions of this module turn them into text. Their
``str`` and their text properties call these functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metallab import units

if TYPE_CHECKING:
    from collections.abc import Iterable

    from metallab.fitness import Fitness
    from metallab.timing import Ratio, Withheld

PHRASES = {
    "faster": "is {times} times as fast{as_baseline}",
    "slower": "takes {times} times as long{as_baseline}",
    "same": "is as fast{as_baseline}, within {percent}",
    "inconclusive": "inconclusive, {words} ({times} times as fast, {note})",
    "may be both": "it may be slower or faster",
    "may be faster": "it may be faster, or as fast within {percent}",
    "may be slower": "it may be slower, or as fast within {percent}",
    "interval": "95 % interval {ends}, {pairs}",
    "too few": "{pairs}{seen}: too few for a 95 % interval, which needs {fewest}",
    "seen": ", {ends} times as fast",
    "too few, in short": "inconclusive: {pairs}; an interval needs {fewest}",
    "withheld": "no speed-up is given",
    "withheld, in short": "no speed-up",
    "not counted": "no speed-up is given at n = {sizes}",
    "simulated": "its times are not those of the hardware it imitates",
    "fast mode": "too few samples for a conclusion",
    "busy machine": "other programs used {others:.1f} cores meanwhile; close them and run again",
    "drifted": "a fixed computation took {change} more time afterwards than before; let the machine rest and run again",
    "sped up": "a fixed computation took {change} less time afterwards than before, so the machine was slower when it "
    "began; run again at once",
    "differs in a round": "in round {round} {whose} returned something else than at first, and so it may in others: "
    "look for a function that draws random numbers, or changes its input or itself, for calls that the system aborted, "
    "or for work that nobody waits for: {difference}",
    "unknown": "no reason is given",
    "samples so far": "{name}: {count} samples in {seconds:.0f} s",
    "rounds so far": "{names}: {count} rounds in {seconds:.0f} s",
    "fit": "Fit for measuring now: {device} kept its speed within {drift:.0%}, and other programs used {others:.1f} "
    "cores; {power}.",
    "not fit": "Not fit for measuring now, because {obstacles}.",
    "not judged": "Whether this machine is fit for measuring was not judged ({reason}): {detail}.",
    "restless": "the times of one computation differ too much, since already the middle half of them spreads over "
    "{noise:.0%} of the median: close other programs, let the machine cool, and run again",
    "battery": "it runs on battery: plug it in",
    "low-power mode": "low-power mode is on: switch it off",
    "mains": "it runs on mains power",
    "power unknown": "where its power comes from could not be asked",
}


# ---- while something is measured ---------------------------------------------------------------------------------


def samples_progress(name: str, count: int, seconds: float) -> str:
    """Return how far a measurement has come, for whoever waits for it."""
    return PHRASES["samples so far"].format(name=name, count=count, seconds=seconds)


def rounds_progress(names: Iterable[str], count: int, seconds: float) -> str:
    """Return how far a comparison of these variants has come."""
    listed = " / ".join(names)
    return PHRASES["rounds so far"].format(names=listed, count=count, seconds=seconds)


# ---- why there is no speed-up ------------------------------------------------------------------------------------


def describe_busy(cores: float) -> str:
    """Return the detail of a busy machine; ``cores`` is what other programs used."""
    return PHRASES["busy machine"].format(others=cores)


def describe_drift(drift: float) -> str:
    """Return the detail of a machine whose speed moved; ``drift`` is relative, 0.1 for 10 % more time."""
    phrase = PHRASES["drifted" if drift > 0 else "sped up"]
    return phrase.format(change=f"{abs(drift):.0%}")


def describe_difference(whose: str, number: int, difference: str) -> str:
    """Return the detail of a result that was wrong in one of the rounds; ``whose`` is a variant, or *it*."""
    return PHRASES["differs in a round"].format(whose=whose, round=number, difference=difference)


def withheld_sentence(withheld: Withheld) -> str:
    """Return that there is no speed-up, and why, for a sentence."""
    if withheld.named_reason and withheld.detail:
        return f"{PHRASES['withheld']} ({withheld.named_reason}): {withheld.detail}"
    return f"{PHRASES['withheld']}: {withheld}"


def withheld_label(withheld: Withheld) -> str:
    """Return the same for a label: the reason without its detail, unless the detail is all there is."""
    return f"{PHRASES['withheld, in short']}: {withheld.named_reason or withheld.detail}"


# ---- whether a machine is fit for measuring ----------------------------------------------------------------------


def fitness_sentence(fitness: Fitness) -> str:
    """Return the verdict on a machine: fit for measuring now, or not because of what, and what to do."""
    withheld = fitness.withheld
    if withheld is not None and not fitness.is_judged:
        return PHRASES["not judged"].format(reason=withheld.named_reason, detail=withheld.detail)

    if fitness.is_fit:
        is_known = fitness.machine.power_source == "AC"
        return PHRASES["fit"].format(
            device=fitness.watch.before.device,
            drift=abs(fitness.watch.drift),
            others=fitness.others,
            power=PHRASES["mains" if is_known else "power unknown"],
        )

    told = []
    for obstacle in fitness.obstacles:
        if withheld is not None and obstacle.is_of_measurements:
            told.append(withheld.detail)
        else:
            told.append(PHRASES[obstacle.value].format(noise=fitness.noise))
    return PHRASES["not fit"].format(obstacles="; and because ".join(told))


# ---- what a speed-up says ----------------------------------------------------------------------------------------


def ratio_phrase(ratio: Ratio, as_baseline: str = "") -> str:
    """Return what a ratio says of its variant, ``is 1.30 times as fast``, or what it leaves open."""
    if not ratio.has_interval:
        return _fill(ratio, "too few", seen=_seen(ratio))

    if ratio.verdict != "inconclusive":
        return _fill(ratio, ratio.verdict, as_baseline=as_baseline)

    may_be_slower = ratio.low < 1 / ratio.factor
    may_be_faster = ratio.high > ratio.factor
    if may_be_slower and may_be_faster:
        return _fill(ratio, "may be both")
    return _fill(ratio, "may be faster" if may_be_faster else "may be slower")


def ratio_sentence(ratio: Ratio, note: str = "") -> str:
    """Return a ratio as a sentence; ``note`` says what it was taken from, in place of the interval."""
    sides = f"{ratio.variant} against {ratio.baseline}"
    if not ratio.has_interval:
        return f"{sides}: {ratio_phrase(ratio)}"

    note = note or _fill(ratio, "interval", ends=ratio_ends(ratio))
    if ratio.verdict == "inconclusive":
        return f"{sides}: {_fill(ratio, 'inconclusive', words=ratio_phrase(ratio), note=note)}"
    return f"{ratio.variant} {ratio_phrase(ratio, f' as {ratio.baseline}')} ({note})"


def ratio_label(ratio: Ratio) -> str:
    """Return the verdict for a label, or what it lacks."""
    return ratio.verdict if ratio.has_interval else _fill(ratio, "too few, in short")


def ratio_ends(ratio: Ratio) -> str:
    """Return the ends of the interval: those of *times as long* where the sentence says *times as long*."""
    low, high = ratio.low, ratio.high
    if ratio.verdict == "slower":
        low, high = 1 / high, 1 / low
    return f"{_times(ratio, low)} to {_times(ratio, high)}"


def sizes_without_verdict(sizes: list[str]) -> str:
    """Return a note on the sizes of a crossover that have no verdict; empty if all have one."""
    return f" ({PHRASES['not counted'].format(sizes=', '.join(sizes))})" if sizes else ""


def _seen(ratio: Ratio) -> str:
    """Return the smallest and the largest of a few paired ratios, which have no interval."""
    if not ratio.pairs:
        return ""
    extremes = dict.fromkeys(_times(ratio, end) for end in (min(ratio.pairs), max(ratio.pairs)))
    return _fill(ratio, "seen", ends=" to ".join(extremes))


def _times(ratio: Ratio, value: float) -> str:
    return units.times(value, ratio.sampling.digits)


def _fill(ratio: Ratio, phrase: str, **fields: str) -> str:
    """Return a phrase with the numbers of a ratio in it."""
    sampling = ratio.sampling
    noun = sampling.singular if ratio.n == 1 else sampling.plural
    return PHRASES[phrase].format(
        times=_times(ratio, 1 / ratio.median if phrase == "slower" else ratio.median),
        pairs=f"{ratio.n} {noun}",
        percent=f"{100 * (ratio.factor - 1):.3g}%",
        fewest=sampling.fewest,
        **fields,
    )
