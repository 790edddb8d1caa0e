"""To which machine's copy of a page readers are led."""

from __future__ import annotations

import dataclasses

import pytest
from stored_pages import copy_of

from metallab.results.publish import copies

GAPS = ({"where": "cell 1", "what": "it", "fix": "make it"},)


@pytest.mark.parametrize(
    ("first", "second", "best"),
    [
        pytest.param({}, {}, "some_cpu", id="of-equals-the-first"),
        pytest.param({"not_run": GAPS}, {"withheld": 5}, "other", id="one-that-ran-whole"),
        pytest.param(
            {"headline_is_withheld": True}, {"withheld": 5}, "other", id="with-a-headline"
        ),
        pytest.param({"withheld": 2}, {"withheld": 1}, "other", id="fewest-withheld"),
        pytest.param({"not_run": GAPS}, {"headline_is_withheld": True}, None, id="neither"),
    ],
)
def test_readers_are_led_to_the_best_copy(stored_page, monkeypatch, first, second, best):
    monkeypatch.setattr(copies, "is_current", lambda page: True)
    stored = [copy_of(stored_page, "some_cpu", **first), copy_of(stored_page, "other", **second)]

    chosen = copies.choose_copy(stored)

    assert (chosen and chosen.folder.name) == best


def test_nobody_is_led_to_a_copy_without_a_headline(stored_page):
    without = dataclasses.replace(stored_page.record, headline=None)

    assert copies.is_linked(stored_page)
    assert not copies.is_linked(dataclasses.replace(stored_page, record=without))


def test_a_copy_of_today_s_code_comes_before_an_older_one(stored_page, monkeypatch):
    stored = [copy_of(stored_page, "old"), copy_of(stored_page, "new", withheld=3)]
    monkeypatch.setattr(copies, "is_current", lambda page: page.folder.name == "new")
    assert copies.choose_copy(stored).folder.name == "new"
