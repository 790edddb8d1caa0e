"""README's list of the reasons why no speed-up is given is that of the code, and the only list in the documents."""

from __future__ import annotations

import re

import pytest

from metallab import paths, timing
from metallab.timing import Reason, Withheld

HEADING = "### Why no speed-up is given\n"
README = (paths.ROOT / "README.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (.+) \| (.+) \| (yes|no) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def rows() -> list[tuple[str, str, str]]:
    """The rows of the table: the reason, what it means, and whether it may pass."""
    _, section = README.split(HEADING)
    return ROW.findall(section.partition("\n#")[0])


def test_the_table_has_each_reason_with_a_name_in_the_order_of_the_code(rows):
    named = [reason.value for reason in Reason if Withheld(reason).named_reason]
    assert [name for name, _, _ in rows] == named


@pytest.mark.parametrize("reason", [each for each in Reason if each is not Reason.OTHER])
def test_the_table_says_whether_another_run_may_be_without_it(rows, reason):
    (passes,) = [passes for name, _, passes in rows if name == reason.value]
    assert (passes == "yes") == Withheld(reason).is_transient


def test_the_table_has_the_threshold_of_drift(rows):
    (meaning,) = [meaning for name, meaning, _ in rows if name == Reason.DRIFTED.value]
    assert re.findall(r"over ([\d.]+) %", meaning) == [f"{100 * timing.DRIFT:.3g}"]


@pytest.mark.parametrize(
    "name",
    ["docs/teaching.md", "docs/your_own_code.md", "data/results/README.md", "CONTRIBUTING.md"],
)
def test_whoever_speaks_of_reasons_leads_to_the_table(name):
    text = (paths.ROOT / name).read_text(encoding="utf-8")
    assert "README.md#why-no-speed-up-is-given" in text
