"""Files that an earlier revision saved can still be read: people have them, and measured for days.

Those in ``support/saved_earlier`` were written by the code of the revision in their name, from made-up times.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from metallab import records, timing

RESULTS = Path(__file__).parents[1] / "support" / "saved_earlier" / "results_51ae4ba7.json"


@pytest.fixture
def saved() -> dict[str, records.Record]:
    """Return the records by name."""
    return {record.name: record for record in records.load(RESULTS)}


def test_a_speed_up_is_the_one_that_was_saved(saved):
    answer = saved["03_page/softshrink/fused"].answer
    assert answer.ratio.median == pytest.approx(2.0)
    assert answer.outcome == "faster"


@pytest.mark.parametrize(
    ("name", "reason", "detail"),
    [
        pytest.param("softshrink/wrong", timing.Reason.OUTPUTS_DIFFER, "by 3", id="differs"),
        pytest.param(
            "busy/fused",
            timing.Reason.BUSY_MACHINE,
            "other programs used 1.0 cores meanwhile: close them and run again",
            id="busy",
        ),
    ],
)
def test_the_reason_for_none_is_the_one_that_was_saved(saved, name, reason, detail):
    withheld = saved[f"03_page/{name}"].comparison.withheld
    assert withheld == timing.Withheld(reason, detail)


def test_what_was_measured_alone_has_its_size_and_dtype(saved):
    measured = saved["03_page/alone"].measurement
    assert measured.size == timing.Size(64, "rows")
    assert measured.dtype == "float16"


def test_the_headline_is_the_one_that_was_saved(saved):
    headline = records.headline_of(list(saved.values()))
    assert headline.sentences == (str(saved["03_page/softshrink/fused"].answer),)


def test_nothing_in_it_is_foreign(saved):
    assert records.find_foreign_texts(RESULTS, saved.values()) == []


def test_saved_again_it_has_the_keys_of_today(saved, tmp_path):
    again = records.write(tmp_path / "again.json", saved.values())
    written = again.read_text()
    assert [key for key in records.format.OLDER_KEYS if f'\\"{key}\\":' in written] == []
    assert records.load(again) == list(saved.values())
