"""Follow the links of what JupyterLab shows, as a reader does: click, see what opens, close it.

For tests of ``make lab`` and of the hub. What a link should open is read from the file that has it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import nbformat
from playwright.sync_api import Locator, Page, expect
from served import links_of

from metallab import paths
from metallab.authoring import contents

IN_THE_GALLERY = (paths.ROOT / "docs" / "gallery.md").read_text(encoding="utf-8").count("[![")
"""Pictures: of each page that ran whole on some machine, and whose headline is not that the machine was busy."""

READ = {
    contents.FILE: 40,
    "README.md": 40,
    "docs/gallery.md": IN_THE_GALLERY + 2,
    "60_detect_with_yolov5.ipynb": 5,
    "30_run_a_language_model.ipynb": 7,
}
"""Files whose links are followed, and how many targets each has at least."""
JUPYTERLAB_S_OWN = (
    r"Canceled future for \w+ message before replies",  # a page was closed while its kernel was still starting
    r"ERR_UNKNOWN_URL_SCHEME \(attachment:",  # before it puts a cell's own picture in place, which is then seen
)
"""Complaints that a browser writes and that are not ours, as `chrome.watched` excuses them."""
TRACKER = "@jupyterlab/notebook-extension:tracker"
SHUT_DOWN_CLOSED = {"kernelShutdown": True}
"""Of that extension's settings: a kernel ends when its page is closed. Links lead to all pages."""

_OWN_OF_JUPYTERLAB = ".jp-InternalAnchorLink"  # the paragraph sign at a heading
_SHOWN = {
    ".md": ".jp-MarkdownViewer:visible",
    ".ipynb": ".jp-NotebookPanel:visible",
    "": ".jp-FileEditor:visible",
}
"""What shows a file, by how its name ends; the last for any other."""


@dataclass(frozen=True)
class Reader:
    """Somebody who reads in JupyterLab."""

    page: Page
    address: str
    """Where the server is, without ``/lab``."""
    folder: Path
    """What it serves."""

    def open(self, name: str) -> Locator:
        """Open a file as by a link from elsewhere; what shows it, when all its links are there."""
        self.page.goto(f"{self.address}/lab/tree/{name}?reset")
        return self.see(name)

    def see(self, name: str) -> Locator:
        """What shows a file that is open and in front, when all its links are there."""
        expect(self.page).to_have_url(re.compile(re.escape(f"/tree/{quote(name)}") + r"(\?.*)?$"))
        shown = self.page.locator(_SHOWN.get(os.path.splitext(name)[1], _SHOWN[""]))
        expect(shown).to_have_count(1)
        if name.endswith((".md", ".ipynb")):
            expect(self._links(shown)).to_have_count(len(self._targets(name)))
        return shown

    def follow_all(self, name: str) -> list[str]:
        """Click each link that a file has to another file or to a heading, each target once; return the targets.

        AssertionError if one does not open what it names, or does not show the heading.
        """
        followed: list[str] = []
        for number, target in enumerate(self._targets(name)):
            leads_elsewhere = re.match(r"[a-z]+:", target)  # such as https:
            if leads_elsewhere or target in followed:
                continue
            link = self._links(self.see(name)).nth(number)
            link.scroll_into_view_if_needed()
            link.click()
            self._arrive(name, target)
            followed.append(target)
        return followed

    def _arrive(self, name: str, target: str) -> None:
        """See what a link of a file opens, with its heading; then be back at the file."""
        there, _, fragment = target.partition("#")
        opened = os.path.normpath(os.path.join(os.path.dirname(name), there)) if there else name
        shown = self.see(opened)
        if fragment:
            expect(self._heading(shown, opened, fragment)).to_be_in_viewport()
        if opened != name:
            self._close()

    def _heading(self, shown: Locator, name: str, fragment: str) -> Locator:
        """The heading that the part of a link behind its # names."""
        cell = fragment.removeprefix("cell-id=")
        if cell == fragment:
            named = self.page.locator(f'[data-jupyter-id="{fragment}"]')
            heading = shown.locator("h1, h2, h3, h4")
            return heading.and_(named).or_(heading.filter(has=named))
        cells = [each.id for each in nbformat.read(self.folder / name, 4).cells]
        return shown.locator(".jp-Cell").nth(cells.index(cell)).locator("h1, h2, h3, h4").first

    def _close(self) -> None:
        """Close what is in front. A page is asked about: its first kernel writes the kernel's language into it."""
        in_front = self.page.url
        self.page.keyboard.press("Alt+w")
        dialog = self.page.get_by_role("button", name=re.compile("^Discard"))
        while self.page.url == in_front:
            if dialog.is_visible():
                dialog.click()
            self.page.wait_for_timeout(50)

    def _targets(self, name: str) -> list[str]:
        """Where the links of a file lead, in order."""
        pictures = re.compile(r"\.(png|jpg|gif|svg)$|^attachment:")
        return [target for target in links_of(self.folder / name) if not pictures.search(target)]

    def _links(self, shown: Locator) -> Locator:
        """The links in what shows a file."""
        return shown.locator(f".jp-RenderedMarkdown a[href]:not({_OWN_OF_JUPYTERLAB})")
