"""How Sphinx makes the book of the pages that `build.py` lays out. No notebook is run, and no network asked."""

from __future__ import annotations

import hashlib
import html
import json
from base64 import b64decode
from pathlib import Path

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from myst_nb.sphinx_ import HideCodeCellNode
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

from metallab.authoring import published

project = "Metal Lab"
html_title = "Metal Lab"
language = "en"
extensions = ["myst_nb"]
include_patterns = [
    "index.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "notebooks/**.ipynb",
    "notebooks/*/index.md",
    "classroom/**.md",
    "data/**.md",
    "docs/**.md",
    "metalsim/**.md",
    "utils/metallab/language/data/README.md",
    "utils/metallab/reported/data/README.md",
]

nb_execution_mode = "off"
nb_ipywidgets_js: dict[
    str, str
] = {}  # fetched from another machine; a widget's text stands in for it
nb_mime_priority_overrides = [
    ("html", "application/vnd.jupyter.widget-view+json", None),
    # A plot is there as HTML with its words and as a PNG. The PNG becomes a file, which keeps the page small, and gets
    # the words from `_describe_pictures`. Of a table there is HTML alone.
    ("html", "image/png", 25),
]
nb_output_stderr = "show"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4  # the anchors that links within a page use on GitHub as well

# Code in a language near the one that its block names, such as Objective-C++, keeps its text and loses some colours.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "sphinx_book_theme"
html_theme_options = {
    "use_download_button": False,  # a page's notebook needs the checkout around it
    "use_fullscreen_button": False,
    "home_page_in_toc": True,
    "footer_content_items": [],  # author and copyright, which the repository tells
    "navbar_persistent": [],  # search stands above the contents already
    "show_toc_level": 2,
}
if addresses := published.find_addresses():
    html_theme_options |= {"repository_url": addresses.repository, "use_repository_button": True}
# light or dark as the reader's system; the theme's own default is an error
html_context = {"default_mode": "auto"}
html_favicon = "static/favicon.svg"
html_static_path = ["static"]
html_css_files = ["book.css"]
html_js_files = ["book.js"]
html_copy_source = False
html_show_copyright = False
html_math_renderer = "mathml"


def setup(app: Sphinx) -> None:
    """Give Sphinx what is our own: formulas without a script, solutions that unfold, words for every picture."""
    app.add_html_math_renderer("mathml", (_write_inline_formula, None), (_write_formula, None))
    app.add_node(HideCodeCellNode, override=True, html=(_open_fold, _close_fold))
    app.connect("doctree-read", _describe_pictures)


def _write_inline_formula(writer: HTML5Translator, node: nodes.math) -> None:
    writer.body.append(_to_mathml(node, as_block=False))
    raise nodes.SkipNode


def _write_formula(writer: HTML5Translator, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="formula">{_to_mathml(node, as_block=True)}</div>')
    raise nodes.SkipNode


def _to_mathml(node: nodes.Element, *, as_block: bool) -> str:
    """Return a formula as MathML, which browsers draw by themselves. MathJax would be a script of several megabytes."""
    try:
        return tex2mathml(node.astext(), as_block=as_block)
    except MathError as error:
        logging.getLogger(__name__).warning("the formula cannot be shown: %s", error, location=node)
        return f"<code>{html.escape(node.astext())}</code>"


def _open_fold(writer: HTML5Translator, node: HideCodeCellNode) -> None:
    """Begin a part of a page that Enter or a click unfolds; its name is read out, which myst-nb's own label hides."""
    name = html.escape(node["prompt_show"])
    writer.body.append(f'<details class="fold"><summary>{name}</summary>\n')


def _close_fold(writer: HTML5Translator, _node: HideCodeCellNode) -> None:
    writer.body.append("</details>\n")


def _describe_pictures(app: Sphinx, doctree: nodes.document) -> None:
    """Give each picture of a page its words: those that its plot left in the notebook, else the heading above it."""
    source = Path(app.env.doc2path(app.env.current_document.docname))
    words = _read_words(source) if source.suffix == ".ipynb" else {}

    for picture in doctree.findall(nodes.image):
        if not picture.get("alt"):
            heading = _find_heading(picture) or app.config.project
            picture["alt"] = words.get(Path(picture["uri"]).stem, f"Picture: {heading}")


def _find_heading(picture: nodes.image) -> str | None:
    """Return the heading above a picture, or None if there is none."""
    section: nodes.Node | None = picture
    while section is not None and not isinstance(section, nodes.section):
        section = section.parent
    title = section.next_node(nodes.title) if section is not None else None
    return title.astext() if title is not None else None


def _read_words(notebook: Path) -> dict[str, str]:
    """Return the alternative texts in a notebook's outputs, by the picture's hash, which names its file in the book."""
    words = {}
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", []):
            for kind in ("image/png", "image/jpeg", "image/gif"):
                alt = output.get("metadata", {}).get(kind, {}).get("alt")
                if alt and kind in output["data"]:
                    data = "".join(output["data"][kind])
                    words[hashlib.sha256(b64decode(data)).hexdigest()] = alt
    return words
