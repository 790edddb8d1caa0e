"""What a comparison found: the measurements of its variants, and for each a speed-up or why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from metallab.timing.measurement import Measurement, Question
from metallab.timing.sentinels import Sentinel, find_open
from metallab.timing.verdicts import Answer, Ratio, Withheld, choose_sampling, why_withheld


@dataclass(frozen=True)
class Comparison:
    """Variants measured side by side, and the conclusions about each against the baseline.

    `compare` makes it. `print` it for everything in words; ``compared.answers["name"]`` is a variant's speed-up or why
    there is none, and ``compared["name"]`` its `Measurement`.
    """

    name: str
    question: Question
    baseline: str
    measurements: Mapping[str, Measurement]
    """By variant, the baseline among them. Samples are paired by position: one of each is from the same round."""
    paired: Mapping[str, Ratio]
    """Ratios of real variants with equal outputs; `ratios` are those that may be shown."""
    refused: Mapping[str, Withheld] = field(default_factory=dict)
    """Variants whose times were not compared, and why."""
    parity: str = ""
    """The check of the first and last outputs."""
    sentinels: tuple[Sentinel, ...] = ()
    """The sentinels around it."""
    series: str = ""
    """The name of comparisons that differ in size only: ``matrix product, n``."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """What a variant is on any machine, such as ``GPU, float16``."""

    def __getitem__(self, variant: str) -> Measurement:
        return self.measurements[variant]

    @property
    def drift(self) -> float | None:
        """The largest drift of a sentinel around it, or None. RuntimeError while a sentinel's block is open."""
        return max((watch.drift for watch in self.sentinels), key=abs, default=None)

    @property
    def answers(self) -> dict[str, Answer]:
        """For each variant the speed-up, or why it is withheld."""
        drift = self.drift
        base = self.measurements[self.baseline]

        answers = {}
        for variant, measured in self.measurements.items():
            if variant == self.baseline:
                continue
            withheld = self.refused.get(variant) or why_withheld(base, measured, drift=drift)
            answers[variant] = Answer(variant, withheld or self.paired[variant])
        return answers

    @property
    def withheld(self) -> dict[str, Withheld]:
        """Variants without a speed-up, and why."""
        reasons = {variant: answer.withheld for variant, answer in self.answers.items()}
        return {variant: withheld for variant, withheld in reasons.items() if withheld is not None}

    @property
    def ratios(self) -> dict[str, Ratio]:
        """The speed-ups that are not withheld."""
        ratios = {variant: answer.ratio for variant, answer in self.answers.items()}
        return {variant: ratio for variant, ratio in ratios.items() if ratio is not None}

    @property
    def sentences(self) -> list[str]:
        """`answers` in words."""
        return list(map(str, self.answers.values()))

    @property
    def headlines(self) -> list[str]:
        """`sentences`, each behind the comparison's name."""
        return [f"{self.name}: {sentence}" for sentence in self.sentences]

    def __str__(self) -> str:
        question = self.measurements[self.baseline].question_in_words
        head = f"{self.name} ({question}, baseline {self.baseline}; {self.parity})"
        lines = [*map(str, self.measurements.values()), *self.sentences]

        times_vary = any(measured.varies for measured in self.measurements.values())
        if self.ratios and times_vary:
            lines.append(
                "(Times vary; a speed-up is of pairs taken in one round, which vary together.)"
            )
        return "\n".join([head, *(f"  {line}" for line in lines)])


def pair_samples(
    measurements: Mapping[str, Measurement], *, baseline: str, name: str, parity: str
) -> Comparison:
    """Return a comparison of samples that are paired by position, and tell no page of it.

    Parameters
    ----------
    measurements
        By variant, the baseline among them, with as many samples each.
    baseline
        The name of the variant that the others are compared with.
    name
        Of the comparison.
    parity
        How outputs were compared before, in words.

    Raises
    ------
    ValueError
        For different numbers of samples.
    """
    base = measurements[baseline]
    if len({measured.n for measured in measurements.values()}) > 1:
        raise ValueError(
            f"{name}: samples are paired, so each variant needs as many as {baseline}, {base.n}"
        )

    ratios = {}
    for variant, measured in measurements.items():
        if variant == baseline or measured.simulated or base.simulated:
            continue
        sampling = choose_sampling(measured.cold)
        ratios[variant] = Ratio.of(variant, baseline, measured.samples, base.samples, sampling)

    return Comparison(
        name=name,
        question=base.question,
        baseline=baseline,
        measurements=dict(measurements),
        paired=ratios,
        parity=parity,
        sentinels=find_open(),  # they watch this machine, and may withhold the speed-ups when their blocks end
    )
