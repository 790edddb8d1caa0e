"""Executed notebooks as HTML pages that ask the network for nothing.

nbconvert's page loads require.js, MathJax, Mermaid and a widget manager from content delivery networks. The template
``notebook.html.j2`` leaves all four out. What is left is made self-contained here: formulas become pictures, local
pictures are embedded, links lead to the neighbouring pages, and whatever a notebook's own output would fetch is
taken out. A Content-Security-Policy in the page forbids scripts and the network besides, should something slip through.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import mimetypes
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from metallab import paths, plots, units
from metallab.paths import NOTEBOOKS, REPORT, ROOT

if TYPE_CHECKING:
    from bs4 import BeautifulSoup, NavigableString, Tag
    from nbformat import NotebookNode

TEMPLATES = Path(__file__).parent / "templates"

POLICY = (
    "default-src 'none'; img-src data:; media-src data:; font-src data:; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'"
)
"""The Content-Security-Policy of every page of the report: no script, and nothing from outside the page."""

_FORBIDDEN = "script, link, base, iframe, frame, object, embed, form, noscript, meta[http-equiv]"
_FETCHING = ("src", "srcset", "poster", "background", "data", "xlink:href", "action", "formaction", "ping", "longdesc")
# $...$ and $$...$$ as MathJax reads them: no space just inside, no digit right behind ("$5 and $6" is money)
_FORMULA = re.compile(r"\$\$(?P<block>.+?)\$\$|(?<![\\$])\$(?!\s)(?P<inline>[^$\n]+?)(?<![\s\\])\$(?!\d)", re.DOTALL)
_NO_ALT = "No description has been provided for this image"


class PageError(ValueError):
    """A notebook that cannot be read or shown; the message says why."""


def read_notebook(path: Path) -> NotebookNode:
    """A notebook of format 4, to be shown to others: its outputs name no folder of this machine.

    Folders may name a person: the checkout's is left out, the home folder becomes ``~``. What is more than a page can
    hold is cut, and the page says so. PageError if the file is missing or not a notebook.
    """
    import nbformat
    from nbformat.v4.rwbase import rejoin_lines

    try:
        given = json.loads(paths.read_regular(path))
    except FileNotFoundError as problem:
        raise PageError("there is no such file; did the run stop before it was written?") from problem
    except OSError as problem:
        raise PageError(f"cannot be read: {problem.strerror}") from problem  # without the path, which may name a person
    except (ValueError, RecursionError) as problem:
        raise PageError(f"is not JSON: {problem}") from problem
    if not isinstance(given, dict) or given.get("nbformat") != 4:
        raise PageError("not a notebook of format 4")
    notebook = nbformat.from_dict(given)
    try:
        nbformat.validate(notebook)
    except (nbformat.ValidationError, LookupError, TypeError, AttributeError) as problem:
        # nbformat mends what it can before it looks, and stumbles where nothing is as it should be
        raise PageError(f"not a valid notebook: {units.first_line(problem)}") from problem
    notebook = rejoin_lines(notebook)  # files hold long texts as lists of lines
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            _forget_folders(output)
    return notebook


def _forget_folders(output: NotebookNode) -> None:
    """Take this machine's folders out of an output's texts: what it printed, what it shows, where it failed."""
    for texts in (output, output.get("data", {})):
        for kind, text in texts.items():
            if isinstance(text, str) and not kind.startswith("image/"):
                texts[kind] = _without_folders(text)
    if "traceback" in output:
        output.traceback = [_without_folders(line) for line in output.traceback]


def _without_folders(text: str) -> str:
    """Paths in this checkout from its folder on, others in the home folder from ``~`` on."""
    text, home = text.replace(f"{ROOT}{os.sep}", ""), str(Path.home())
    return text.replace(f"{home}{os.sep}", f"~{os.sep}") if home != os.sep else text


def to_html(notebook: NotebookNode, name: str, *, banner: str = "", pages: Collection[str] = ()) -> str:
    """The page of one executed notebook.

    ``banner`` is a line of text that stands on top; ``pages`` are the names of the notebooks that have pages of
    their own: links to these lead there. PageError if nbconvert cannot show it.
    """
    import jinja2
    import nbformat
    from bs4 import BeautifulSoup
    from nbconvert.filters.markdown_mistune import InvalidNotebook

    # without widgets' state: it is large, and the script that would read it is not on the page
    metadata = {key: value for key, value in notebook.metadata.items() if key != "widgets"}
    notebook = nbformat.from_dict({**notebook, "metadata": metadata})
    resources = {"metadata": {"name": name}, "metallab": {"banner": banner, "policy": POLICY}}
    try:
        html, _ = _exporter().from_notebook_node(notebook, resources=resources)
    except (ValueError, LookupError, TypeError, AttributeError, jinja2.TemplateError, InvalidNotebook) as problem:
        raise PageError(f"nbconvert cannot show it: {problem}") from problem
    soup = BeautifulSoup(html, "html.parser")
    for picture in soup.find_all("img"):
        _embed_picture(picture)
    _typeset(soup)
    _forget_the_network(soup.body)
    for link in soup.find_all(["a", "area"], href=True):
        _redirect(link, pages)
    return str(soup)


def _exporter():
    """nbconvert's exporter with our template, and text where the page would have needed a script."""
    from nbconvert.exporters import HTMLExporter
    from traitlets.config import Config

    readable = ("text/html", "text/markdown", "image/svg+xml", "text/latex", "image/png", "image/jpeg", "text/plain")
    config = Config({"NbConvertBase": {"display_data_priority": list(readable)}})
    # nbconvert warns of pictures without alternative text; they get theirs below
    quiet = logging.getLogger(__name__ + ".nbconvert")
    quiet.setLevel(logging.ERROR)
    return HTMLExporter(template_file=str(TEMPLATES / "notebook.html.j2"), config=config, log=quiet)


def _embed_picture(picture: Tag) -> None:
    """Put a local picture into the page, and name each after the heading that it stands under."""
    source = str(picture.get("src", ""))
    if not source.startswith("data:"):
        file = _local_file(source)
        kind = mimetypes.guess_type(file.name)[0] if file else None
        if kind and kind.startswith("image/"):
            picture["src"] = f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"
    if picture.get("alt") == _NO_ALT:
        heading = picture.find_previous(["h1", "h2", "h3", "h4", "h5", "h6"])
        picture["alt"] = f"Picture: {heading.get_text().rstrip('¶').strip()}" if heading else "Picture"


def _local_file(reference: str) -> Path | None:
    """The file of this checkout that a notebook refers to, or None."""
    try:
        parts = urlsplit(reference)
        file = (NOTEBOOKS / unquote(parts.path)).resolve()
        inside = not parts.scheme and not parts.netloc and parts.path and file.is_relative_to(ROOT)
        return file if inside and file.is_file() else None
    except (OSError, ValueError):  # a name too long, a zero byte, a bad address
        return None


def _typeset(soup: BeautifulSoup) -> None:
    """Draw the formulas of markdown as pictures, by matplotlib: MathJax would be the only script on the page."""
    for text in [text for markdown in soup.select(".jp-RenderedMarkdown") for text in markdown.find_all(string=True)]:
        if _FORMULA.search(text) and text.find_parent(["code", "pre", "script", "style", "a"]) is None:
            text.replace_with(*_with_formulas(text, soup))


def _with_formulas(text: NavigableString, soup: BeautifulSoup) -> Iterator[str | Tag]:
    end = 0
    for match in _FORMULA.finditer(text):
        yield text[end : match.start()]
        yield _formula(match["inline"] or match["block"], soup, alone=match["block"] is not None)
        end = match.end()
    yield text[end:]


def _formula(tex: str, soup: BeautifulSoup, alone: bool) -> Tag:
    """A picture of a formula, its TeX as alternative text; the TeX itself where matplotlib does not know it."""
    from matplotlib import rc_context
    from matplotlib.font_manager import FontProperties
    from matplotlib.mathtext import math_to_image

    line = " ".join(tex.split())
    drawing = io.BytesIO()
    try:
        points = 12.5 if alone else 10.5  # the page's text is 14 px = 10.5 pt
        with rc_context(plots.STYLE):
            depth = math_to_image(f"${line}$", drawing, prop=FontProperties(size=points), dpi=72, format="svg")
    except ValueError:
        plain = soup.new_tag("code")
        plain.string = line
        return plain
    source = f"data:image/svg+xml;base64,{base64.b64encode(drawing.getvalue()).decode()}"
    style = "display: block; margin: 0.5em auto" if alone else f"vertical-align: {-depth:.1f}pt"
    return soup.new_tag("img", attrs={"src": source, "alt": line, "style": style, "class": "formula"})


def _forget_the_network(body: Tag) -> None:
    """Take out everything that would be fetched, run or submitted when the page is opened."""
    for element in body.select(_FORBIDDEN):
        element.decompose()
    for picture in body.find_all("img"):
        if not (source := str(picture.get("src", "")).strip()).lower().startswith("data:"):
            picture.replace_with(f"(picture not included: {source})")
    for element in body.find_all(True):
        for name in list(element.attrs):
            outside = name.lower() in _FETCHING and not str(element[name]).strip().lower().startswith("data:")
            if outside or name.lower().startswith("on"):
                del element[name]
        # an SVG's image and use fetch what their href names
        if element.name not in ("a", "area") and not str(element.get("href", "#")).startswith(("#", "data:")):
            del element["href"]
        if "style" in element.attrs:
            element["style"] = _local_style(str(element["style"]))
    for style in body.find_all("style"):
        style.string = _local_style(style.get_text())


def _local_style(css: str) -> str:
    """A style without imports and without addresses, but for what it holds itself."""
    css = re.sub(r"@import[^;]*(;|$)", "", css, flags=re.IGNORECASE)
    return re.sub(r"url\(\s*(?!['\"]?\s*(?:data:|#))[^)]*(\)|$)", "none", css, flags=re.IGNORECASE)


def _redirect(link: Tag, pages: Collection[str]) -> None:
    """Lead a link where it leads from the notebook: to another page, a file of the checkout, or the web."""
    target = str(link["href"]).strip()
    notebook = re.fullmatch(r"(?:\./)?([\w.-]+)\.ipynb(#.*)?", target)
    if notebook and notebook[1] in pages:
        link["href"] = f"{notebook[1]}.html{notebook[2] or ''}"
    elif target == "index.html" or target.startswith("#") or re.match(r"(https?|mailto):", target, re.IGNORECASE):
        link["rel"] = "noopener noreferrer"
    elif file := _local_file(target):
        link["href"] = Path(os.path.relpath(file, REPORT)).as_posix()
    else:
        del link["href"]  # leads nowhere from here, or is a script
