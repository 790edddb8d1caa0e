"""Older files of results, read as what is written today. **The only place that reads anything out of a label.**

A record of schema 1 had labels where one of schema 2 has fields: what kind of device it was, how many threads, which
number format, how large the work was, what a variant is on any machine. `upgraded` reads them out of the labels that
version 1's pages gave, once, when a file is read. Nothing new is ever added here: what is not in a field is not known.
"""

from __future__ import annotations

import re
from typing import Any, get_args

from metallab.timing import DoubtKind

SCHEMA = 2
"""The number of the form that is written; it grows when an older reader would misunderstand a newer file."""

_OF_THE_RECORD = ("lesson", "taken", "sentinel_drift", "comparison")
_LOW_PRECISION = (
    (r"bfloat16|bf16", "bfloat16"),
    (r"float16|fp16|half", "float16"),
    (r"uint8", "uint8"),
    (r"int8", "int8"),
    (r"float32", "float32"),
)


def upgraded(about: Any) -> dict[str, Any]:
    """What a file keeps under ``metallab``, without its schema's number, in the form of `SCHEMA`.

    It is not checked: that is `metallab.fields.read`'s part, on what comes out. ValueError for another schema.
    """
    version = about.pop("schema", None) if isinstance(about, dict) else None
    if version == SCHEMA and type(version) is int:
        return about
    if version != 1 or type(version) is not int:
        raise ValueError("it was written by another version of metallab: update, or measure again")
    measured = {name: value for name, value in about.items() if name not in _OF_THE_RECORD}
    measured |= _device(about.get("device"))
    record = {name: value for name, value in about.items() if name in _OF_THE_RECORD} | {"measurement": measured}
    if (compared := about.get("comparison")) is not None:
        record["comparison"], more = _comparison(compared)
        measured |= more
    return record


def _device(label: Any) -> dict[str, Any]:
    """What computed: ``NVIDIA H200``, ``Apple M2 GPU``, ``Xeon CPU, 16 threads``; plain Python was ``host``."""
    label = label if isinstance(label, str) else ""
    cpu = re.search(r" CPU, (\d{1,9}) threads?$", label)
    if cpu or label == "host":
        return {"kind": "cpu", "threads": int(cpu[1]) if cpu and int(cpu[1]) else None}
    known = {"nvidia": "cuda", "apple": "mps", "simulated apple": "mps"}
    return {"kind": next((kind for maker, kind in known.items() if label.lower().startswith(maker)), "gpu")}


def _comparison(compared: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A variant's comparison, and what its labels say of its measurement."""
    if not isinstance(compared, dict):
        raise ValueError("`comparison` must be an object, or nothing")
    compared = dict(compared)
    if "verdict" in compared:
        compared["outcome"] = compared.pop("verdict")
    variant, name = (value if isinstance(value := compared.get(key), str) else "" for key in ("variant", "name"))
    if isinstance(withheld := compared.get("withheld"), str):
        kind, _, reason = withheld.partition(":")
        compared |= {"doubt": kind, "withheld": reason.strip()} if kind in get_args(DoubtKind) else {}
    dtype = next((dtype for pattern, dtype in _LOW_PRECISION if re.search(pattern, variant, re.IGNORECASE)), None)
    series, size = _series(name)
    return compared | {"role": _role(variant), "series": series}, {"dtype": dtype, "size": size}


def _role(variant: str) -> str:
    """A variant's name without what only its machine has: ``cuda, float16`` is ``GPU, float16``."""
    role = re.sub(r"^(mps|cuda)\b", "GPU", variant)
    return re.sub(r"\bCPU, \d+ threads\b", "CPU", role)


def _series(comparison: str) -> tuple[str, dict[str, int] | None]:
    """The first number of a name was its size: ``matrix product, n = 64`` is ``matrix product, n`` at 64."""
    size = re.search(r"\b\d{1,15}\b", comparison)
    if not size:
        return "", None
    square = lambda match: "n x n" if match[1] else "n"
    work = re.sub(rf"\b(?:n = )?{size[0]}\b( x {size[0]}\b)?", square, comparison, count=1)
    return work, {"number": int(size[0])}
