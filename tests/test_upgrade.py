"""Files of results written before records had fields: read with the fields that their labels meant, and told as ever.

``results_of_schema_1.json`` is what the code of that time said of the files in ``data/results``, word by word: each row
of each table and each conclusion (by sha256, where words are many). When new results take the place of those files, it
goes with them.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from mutate import Rules

from metallab import paths, records, upgrade
from metallab.results import findings

RULES = Rules(upgrade)
SAID_THEN = json.loads((Path(__file__).parent / "results_of_schema_1.json").read_text(encoding="utf-8"))
FILES = sorted((paths.ROOT / "data" / "results").glob("*.json"))


def digest(value) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode()).hexdigest()[:16]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_of_a_file_of_schema_1_is_said_what_was_said_then(path):
    read = records.load(path)
    then = SAID_THEN["files"][path.name]
    assert findings.trust(read) == then["trust"]
    words_of: dict[str, list] = {}
    for one in findings.conclusions(read):
        words = [one.comparison, one.variant, one.baseline, one.outcome, one.words, one.reason]
        words += [one.device, one.baseline_measured.device, one.by_gpu, one.label, one.speed_up, one.interval]
        words_of.setdefault(one.lesson, []).append(words)
    assert {lesson: digest(words) for lesson, words in words_of.items()} == then["conclusions"]


def test_the_tables_of_machines_are_what_they_were_then():
    columns, unreadable = findings.references()
    assert not unreadable
    columns = [*columns, *findings.wanted(columns)]
    assert [column.head for column in columns] == SAID_THEN["heads"]
    tables = {
        "provenance": findings.provenance(columns),
        "gpu": findings.by_lesson(columns, by_gpu=True),
        "ways": findings.by_lesson(columns, by_gpu=False),
        "crossovers": findings.crossovers(columns),
        "dtypes": findings.dtypes(columns),
    }
    for name, rows in tables.items():
        assert [[label, list(cells)] for label, cells in rows] == SAID_THEN[name], name
    every = {label: digest(list(cells)) for label, cells in findings.every(columns)}
    assert digest(every) == SAID_THEN["every"]


def about(**changes) -> dict:
    """What a file of schema 1 kept under ``metallab``."""
    measured = {"name": "v", "question": "latency", "warmup_calls": 3, "stop_reason": "quiet", "mode": "full"}
    measured |= {"device": "Xeon CPU, 16 threads", "simulated": False, "others": 0.0}
    return {"schema": 1, "lesson": "01_a", "taken": "2026-11-20", "sentinel_drift": None, "comparison": None} | (
        measured | changes
    )


def compared(variant: str, name: str = "c") -> dict:
    return {"name": name, "variant": variant, "baseline": "b", "verdict": "faster", "median": 2.0}


@RULES.rule(
    ('if cpu or label == "host":', "if cpu:"),
    ('"simulated apple": "mps"', '"simulated apple": "cpu"'),
    ("if cpu and int(cpu[1]) else None", "if False else None"),
)
def a_label_of_a_device_meant_its_kind_and_threads(upgrade):
    for label, kind, threads in (
        ("Xeon CPU, 16 threads", "cpu", 16),
        ("Apple M2 Max (products: Accelerate's own threads) CPU, 1 thread", "cpu", 1),
        ("host", "cpu", None),
        ("NVIDIA H200", "cuda", None),
        ("Apple M2 GPU", "mps", None),
        ("simulated Apple GPU (on a Xeon CPU, really)", "mps", None),
        ("AMD Radeon Pro", "gpu", None),
    ):
        measured = upgrade.upgraded(about(device=label))["measurement"]
        assert (measured["kind"], measured.get("threads"), measured["device"]) == (kind, threads, label)


@RULES.rule(
    ("re.search(pattern, variant, re.IGNORECASE)", "re.search(pattern, variant)"),
    ('(r"bfloat16|bf16", "bfloat16"),', ""),
    ('(r"uint8", "uint8"),', ""),
    (r'^(mps|cuda)\b"', r'(mps|cuda)"'),
    (r"(?:n = )?{size[0]}", r"(?:n = )?\\d+"),
    (", count=1)", ")"),
    ("if kind in get_args(DoubtKind) else {}", "if kind else {}"),
    ('compared["outcome"] = compared.pop("verdict")', "pass"),
)
def a_label_of_a_variant_meant_its_number_format_and_role(upgrade):
    for variant, dtype, role in (
        ("cuda, float16, graph", "float16", "GPU, float16, graph"),
        ("mixed_bfloat16", "bfloat16", "mixed_bfloat16"),
        ("CPU, BF16", "bfloat16", "CPU, BF16"),
        ("uint8 weights", "uint8", "uint8 weights"),
        ("first layer too", None, "first layer too"),
        ("CPU, 16 threads", None, "CPU"),
        ("CPU, 1 thread", None, "CPU, 1 thread"),
        ("on cuda", None, "on cuda"),
    ):
        record = upgrade.upgraded(about(comparison=compared(variant)))
        assert (record["measurement"]["dtype"], record["comparison"]["role"]) == (dtype, role), variant
        assert (record["comparison"]["outcome"], "verdict" in record["comparison"]) == ("faster", False)
    for withheld, doubt, reason in (
        ("outputs differ: by 3", "outputs differ", "by 3"),
        ("simulated", "simulated", ""),
        ("no reason: none", None, "no reason: none"),
    ):
        told = upgrade.upgraded(about(comparison=compared("v") | {"withheld": withheld}))["comparison"]
        assert (told.get("doubt"), told["withheld"]) == (doubt, reason)
    for name, series, size in (
        ("matrix product, n = 64", "matrix product, n", {"number": 64}),
        ("31 x 31, batch of 31", "n x n, batch of 31", {"number": 31}),
        ("640 x 384 pixels", "n x 384 pixels", {"number": 640}),
        ("batch of 16", "batch of n", {"number": 16}),
        ("softshrink", "", None),
    ):
        record = upgrade.upgraded(about(comparison=compared("v", name)))
        assert (record["comparison"]["series"], record["measurement"]["size"]) == (series, size)


@RULES.rule(("    if version != 1 or type(version) is not int:\n", "    if version is None:\n"))
def another_schema_is_refused(upgrade):
    for version in (0, 3, True, 1.0, "1", None, [1]):
        with pytest.raises(ValueError, match="another version of metallab: update, or measure again"):
            upgrade.upgraded(about(schema=version))
    for nothing in (None, [], "x", {}):
        with pytest.raises(ValueError, match="another version"):
            upgrade.upgraded(nothing)


def test_what_is_written_again_is_of_today_s_schema(tmp_path):
    """`records.merge` writes what it reads: an old file comes out with fields, and says the same."""
    path = FILES[-1]
    merged = records.merge([path], tmp_path / "new.json")
    assert '\\"schema\\": 2' in merged.read_text(encoding="utf-8")
    assert records.load(merged) == records.load(path)


test_rule_holds, test_broken_rule_goes_red = RULES.tests()
