"""The proof of `metallab versus` goes on where it was stopped, judges by exact intervals, and plants what it says."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest

from metallab import paths


@pytest.fixture
def planted():
    spec = importlib.util.spec_from_file_location(
        "planted_regressions", paths.ROOT / "tests/benchmarks/planted_regressions.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def made(planted, work, more, answers):
    return [planted.Made(work, more, answer, 1.0, 0.9, 1.1, 8, 9.0) for answer in answers]


def test_so_much_more_is_planted(planted, monkeypatch):
    assert planted.amount(20_000) == 20_000
    monkeypatch.setenv(planted.VARIABLE, "0.05")
    assert planted.amount(20_000) == 21_000


def test_it_goes_on_where_it_was_stopped(planted, tmp_path, monkeypatch):
    """And leaves out a line that was cut short; what is least complete comes first."""
    journal = tmp_path / "journal.jsonl"
    assert planted.read(journal) == []
    done = made(planted, "loop", 0.02, ["SLOWER"] * 20) + made(planted, "copy", 0.0, ["SAME"])
    lines = [json.dumps(vars(each)) for each in done]
    journal.write_text("\n".join(lines) + "\n" + lines[0][:20])
    assert planted.read(journal) == done
    jobs = planted.left(planted.read(journal), "cpu")
    assert ("loop", 0.02) not in jobs
    assert ("copy", 0.0) in jobs
    monkeypatch.setattr(planted, "PLAN", {"cpu": {0.0: 2}})
    monkeypatch.setattr(planted, "WORK", {"cpu": ("loop", "copy")})
    assert planted.left(done, "cpu") == [("loop", 0.0), ("copy", 0.0)]


@pytest.mark.parametrize(
    ("work", "more", "answers", "is_met"),
    [
        ("loop", 0.05, ["SLOWER"] * 55 + ["UNSURE"] * 5, True),
        ("loop", 0.05, ["SLOWER"] * 50 + ["UNSURE"] * 10, False),
        ("copy", 0.05, ["SLOWER"] * 50 + ["UNSURE"] * 10, True),
        ("copy", 0.05, ["FASTER"] * 60, False),
        ("product", 0.0, ["UNSURE"] * 56 + ["SLOWER", "FASTER"] * 2, True),
        ("product", 0.0, ["UNSURE"] * 50 + ["SLOWER", "FASTER"] * 5, False),
        ("copy", 0.02, ["UNSURE"] * 20, True),
    ],
)
def test_a_bar_is_met_unless_the_interval_excludes_it(planted, capsys, work, more, answers, is_met):
    assert planted.tell(made(planted, work, more, answers)) == (0 if is_met else 1)
    assert ("MISSED" in capsys.readouterr().out) is not is_met
