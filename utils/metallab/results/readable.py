"""Executed pages as HTML, for whoever reads a report without JupyterLab: one file each, which loads nothing.

Nothing in an output runs: what would is taken out, and the page's own policy forbids the rest.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from metallab import paths
from metallab.results.publish import pages

if TYPE_CHECKING:
    import jinja2
    from nbformat import NotebookNode

TEMPLATES = Path(__file__).parent / "templates"

_RUNS = ["script", "iframe", "object", "embed", "link", "meta", "base", "form"]
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(#[^)\s]*)?(?=\))")


def write_page(path: Path, target: Path, title: str, others: Collection[str], back: str) -> None:
    """Write an executed notebook as a page of HTML.

    Parameters
    ----------
    path
        The executed notebook.
    target
        The file to write.
    title
        The page's title.
    others
        Names of the notebooks that have a page in the same folder: links to these lead there.
    back
        The address of the report.

    Raises
    ------
    pages.PageError
        If the notebook cannot be read.
    OSError
        If the file cannot be written.
    """
    notebook = pages.read_notebook(path)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = lead_links(cell.source, target.parent, others)

    text = _load_template().render(
        body=_convert(notebook), title=title, back=back, highlighting=_make_highlighting()
    )
    paths.write_atomically(target, text)


def lead_links(text: str, folder: Path, others: Collection[str]) -> str:
    """Return a page's Markdown with links that lead somewhere from a folder.

    A link to a notebook of ``others`` leads to its page, any other one to the checkout's file, if that is there.
    """

    def lead(link: re.Match[str]) -> str:
        target, anchor = link.groups(default="")
        if target.removesuffix(".ipynb") in others:
            return quote(f"{target.removesuffix('.ipynb')}.html") + anchor
        file = paths.NOTEBOOKS / target
        if not file.exists():
            return link[0]
        return quote(Path(os.path.relpath(file, folder)).as_posix()) + anchor

    return _LINK.sub(lead, text)


def _convert(notebook: NotebookNode) -> str:
    """Return the cells of a notebook as HTML, without scripts, and with its pictures in it."""
    body, _ = _load_exporter().from_notebook_node(
        notebook, resources={"metadata": {"path": str(paths.NOTEBOOKS)}}
    )
    return clean(str(body))


def clean(body: str) -> str:
    """Return HTML without what could run, load or send something, or lead elsewhere by itself.

    The page's policy forbids nearly all of it as well; a reload by ``<meta>`` it would not.
    """
    from bs4 import BeautifulSoup  # which nbconvert brings

    soup = BeautifulSoup(body, "html.parser")
    for element in soup.find_all(_RUNS):
        element.decompose()
    for element in soup.find_all(True):
        for name, value in [*element.attrs.items()]:
            if name.lower().startswith("on") or "script:" in "".join(str(value).lower().split()):
                del element[name]
    return str(soup)


@functools.cache
def _load_exporter() -> Any:
    from nbconvert import HTMLExporter

    return HTMLExporter(template_name="basic", embed_images=True)


@functools.cache
def _make_highlighting() -> str:
    """Return the style sheet of highlighted code, on light and on dark paper."""
    from pygments.formatters import HtmlFormatter

    light = HtmlFormatter(style="default").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}"


@functools.cache
def _load_template() -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([TEMPLATES, paths.PALETTE.parent]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2")
