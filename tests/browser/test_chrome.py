"""The watch that the other tests here rely on: it sees what it must see."""

from __future__ import annotations

from pathlib import Path

import chrome
import pytest


def written(folder: Path, html: str) -> str:
    """The address of a page that holds a piece of HTML."""
    file = folder / "page.html"
    file.write_text(f"<title>t</title>{html}", encoding="utf-8")
    return file.as_uri()


@pytest.mark.parametrize(
    ("html", "complaint"),
    [
        ("<script>console.error('broken')</script>", r"console error: broken"),
        ("<script>missing()</script>", r"uncaught: .*missing is not defined"),
        (
            "<img src='https://example.org/a.png' alt=''>",
            r"leaves the machine: https://example\.org/a\.png",
        ),
        (
            "<script>new WebSocket('ws://example.org/s')</script>",
            r"leaves the machine: ws://example\.org/s",
        ),
        (
            "<iframe srcdoc='<link rel=stylesheet href=//example.org/a.css>'></iframe>",
            r"leaves the machine",
        ),
    ],
    ids=["an error", "an exception", "a picture", "a socket", "a frame"],
)
def test_what_a_page_must_not_do_fails(browser, tmp_path, html, complaint):
    file = written(tmp_path, html)
    with pytest.raises(pytest.fail.Exception, match=complaint), chrome.watched(browser) as page:
        page.goto(file, wait_until="networkidle")


def test_a_page_that_behaves_passes(page, tmp_path):
    page.goto(
        written(tmp_path, "<script>console.warn('a warning'); document.title = 'ran'</script>")
    )
    assert page.title() == "ran"


def test_a_machine_without_a_browser_is_told_how_to_get_one(monkeypatch):
    class Playwright:
        class chromium:
            executable_path = "/nowhere/chrome"

    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(chrome, "_ON_A_MAC", ())
    with pytest.raises(
        chrome.NoBrowser,
        match=r"apt-get install chromium.*brew install.*playwright install chromium",
    ):
        chrome.executable(Playwright())
