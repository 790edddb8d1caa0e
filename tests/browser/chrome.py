"""A real browser without a window, for tests of pages.

The browser is a Chromium or Chrome that is installed already; playwright drives it. A page opened by `watched` may ask
nothing of any other machine and may write no error to its console: both are found out, and fail the test.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, Request

DESKTOP = (1280, 900)
"""Width and height of a window in CSS pixels."""
PHONE = (390, 844)

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_ON_A_MAC = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
_NONE = (
    "these tests open a real browser, and there is none: install Chromium or Chrome (Debian, Ubuntu: "
    "sudo apt-get install chromium; macOS: brew install --cask google-chrome), "
    "or let playwright fetch one: .venv/bin/playwright install chromium"
)
_LOCAL_HOSTS = (None, "127.0.0.1", "localhost", "::1")  # None: a file, data within the page


class NoBrowser(RuntimeError):
    """No browser is installed; the message says how to get one."""


def executable(playwright: Playwright) -> Path:
    """The browser to start: one on PATH, in a Mac's Applications, or playwright's own. NoBrowser if there is none."""
    candidates = [shutil.which(name) for name in _NAMES] + [
        *_ON_A_MAC,
        playwright.chromium.executable_path,
    ]
    for candidate in filter(None, candidates):
        if Path(candidate).is_file():
            return Path(candidate)
    raise NoBrowser(_NONE)


@contextlib.contextmanager
def started(playwright: Playwright) -> Iterator[Browser]:
    """A running browser that resolves no name but localhost and uses no proxy: what leaves fails besides being seen."""
    offline = [
        "--no-proxy-server",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
    ]
    browser = playwright.chromium.launch(executable_path=executable(playwright), args=offline)
    try:
        yield browser
    finally:
        browser.close()


@dataclass
class Complaints:
    """What a page did that it must not do."""

    excused: Sequence[re.Pattern]
    lines: list[str] = field(default_factory=list)

    def watch(self, context: BrowserContext) -> None:
        """Listen to every page of a context, also to those that it opens later."""
        context.on("request", self._request)
        context.on("console", self._console)
        context.on("weberror", lambda error: self._add(f"uncaught: {error.error}"))
        context.on(
            "page", lambda page: page.on("websocket", lambda socket: self._address(socket.url))
        )

    def _request(self, request: Request) -> None:
        self._address(request.url)

    def _address(self, url: str) -> None:
        if urlsplit(url).hostname not in _LOCAL_HOSTS:
            self._add(f"a request leaves the machine: {url}")

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._add(f"console error: {message.text} ({message.location['url']})")

    def _add(self, complaint: str) -> None:
        if not any(pattern.search(complaint) for pattern in self.excused):
            self.lines.append(complaint)


@contextlib.contextmanager
def watched(
    browser: Browser,
    *,
    size: tuple[int, int] = DESKTOP,
    excused: Sequence[str] = (),
    scripts: bool = True,
) -> Iterator[Page]:
    """An empty page in a fresh profile; at its end the test fails if it wrote an error or asked another machine.

    ``size`` is the window's in CSS pixels. ``excused`` are regular expressions of complaints that are known and not
    ours; say beside each why. Without ``scripts`` no page may run any.
    """
    complaints = Complaints([re.compile(text) for text in excused])
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, java_script_enabled=scripts
    )
    complaints.watch(context)
    try:
        yield context.new_page()
    finally:
        context.close()
    if complaints.lines:
        pytest.fail("\n".join(dict.fromkeys(complaints.lines)), pytrace=False)
