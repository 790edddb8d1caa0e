"""Files of results for tests: records whose claims follow from their samples, and the same with a false claim."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from metallab import records


def honest(made: Iterable[records.Record]) -> list[records.Record]:
    """The records, with the baselines that are missing and samples from which the speed-ups follow.

    What a record says of its speed-up is kept. Where its baseline is missing, one is made that fits its samples; where
    it is there, the variant's samples are made to fit.
    """
    made = list(made)
    compared = [one for one in made if one.comparison]
    baselines = {_key(one): one for one in compared if one.comparison.outcome == "baseline"}

    for one in compared:
        if _key(one) not in baselines:
            baselines[_key(one)] = _make_baseline(one)
            made.append(baselines[_key(one)])

    fitting = []
    for one in made:
        if one.comparison and one.comparison.median:
            fitting.append(_fit_samples(one, baselines[_key(one)]))
        else:
            fitting.append(one)
    return fitting


def claim(path: Path, variant: str, /, **claims) -> Path:
    """Change what a file says of a variant's comparison, in every process, and nothing else."""
    data = json.loads(path.read_text())
    for metadata, kind in texts(data):
        text = json.loads(metadata[kind])
        if kind == "metallab" and text["comparison"] and text["comparison"]["variant"] == variant:
            text["comparison"] |= claims
            metadata[kind] = json.dumps(text)
    path.write_text(json.dumps(data))
    return path


def texts(data: dict) -> Iterator[tuple[dict, str]]:
    """Where a file keeps JSON texts: the metadata and its key."""
    levels = [
        data,
        *data["benchmarks"],
        *(run for one in data["benchmarks"] for run in one["runs"]),
    ]
    for level in levels:
        for kind in ("metallab", "machine"):
            if kind in level.get("metadata", ()):
                yield level["metadata"], kind


def _key(one: records.Record) -> tuple[str, str, str, str]:
    """What a variant has in common with its baseline: page, comparison, the baseline's name, process."""
    return one.lesson, one.comparison.name, one.comparison.baseline, one.taken


def _make_baseline(of: records.Record) -> records.Record:
    """The baseline of a variant, with samples that fit the variant's."""
    name = of.comparison.baseline
    compared = records.Compared(
        of.comparison.name, name, name, "baseline", parity=of.comparison.parity
    )
    samples = tuple(
        time * ratio for time, ratio in zip(of.measurement.samples, _pairs(of), strict=True)
    )
    measured = dataclasses.replace(of.measurement, name=name, samples=samples)
    full = f"{of.lesson}/{of.comparison.name}/{name}"
    return dataclasses.replace(of, name=full, measurement=measured, comparison=compared)


def _fit_samples(one: records.Record, base: records.Record) -> records.Record:
    """The variant with samples that fit its baseline's."""
    samples = tuple(
        time / ratio for time, ratio in zip(base.measurement.samples, _pairs(one), strict=True)
    )
    return dataclasses.replace(
        one, measurement=dataclasses.replace(one.measurement, samples=samples)
    )


def _pairs(one: records.Record) -> list[float]:
    """Ratios whose median and interval are those that a record tells; all 1 where it tells none."""
    compared = one.comparison
    middle = compared.median or 1.0
    low, high = (compared.low, compared.high) if compared.high else (middle, middle)

    count = one.measurement.n
    third = count // 3
    return [low] * third + [middle] * (count - 2 * third) + [high] * third
