"""Fixtures of the tests that open a browser. They stand apart from ``make test``: ``SUITE=book``, ``SUITE=lab``."""

from __future__ import annotations

from collections.abc import Iterator

import chrome
import pytest
from playwright.sync_api import Browser, Page, sync_playwright


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The browser, once for all tests. A test that cannot have one fails and says how to get it."""
    with sync_playwright() as playwright, chrome.started(playwright) as running:
        yield running


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page of a desktop's size; the test fails if it wrote an error or asked another machine."""
    with chrome.watched(browser) as opened:
        yield opened
