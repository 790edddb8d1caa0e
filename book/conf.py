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
from sphinx.util import logging

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
nb_ipywidgets_js = {}  # fetched from another machine; a widget's text stands in for it
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
html_context = {
    "default_mode": "auto"
}  # light or dark as the reader's system; the theme's own default is an error
html_favicon = "static/favicon.svg"
html_static_path = ["static"]
html_css_files = ["book.css"]
html_js_files = ["book.js"]
html_copy_source = False
html_show_copyright = False
html_math_renderer = "mathml"


def setup(app) -> None:
    """What Sphinx calls: formulas without a script, solutions that unfold, words for every picture."""
    app.add_html_math_renderer("mathml", (_inline_formula, None), (_formula, None))
    app.add_node(HideCodeCellNode, override=True, html=(_open_fold, _close_fold))
    app.connect("doctree-read", _describe_pictures)


def _inline_formula(self, node: nodes.math) -> None:
    self.body.append(_mathml(node, as_block=False))
    raise nodes.SkipNode


def _formula(self, node: nodes.math_block) -> None:
    self.body.append(f'<div class="formula">{_mathml(node, as_block=True)}</div>')
    raise nodes.SkipNode


def _mathml(node: nodes.Element, as_block: bool) -> str:
    """A formula as MathML, which browsers draw by themselves. MathJax would be a script of several megabytes."""
    try:
        return tex2mathml(node.astext(), as_block=as_block)
    except MathError as error:
        logging.getLogger(__name__).warning("the formula cannot be shown: %s", error, location=node)
        return f"<code>{html.escape(node.astext())}</code>"


def _open_fold(self, node: HideCodeCellNode) -> None:
    """A part of a page that Enter or a click unfolds; its name is read out, which myst-nb's own label hides."""
    self.body.append(
        f'<details class="fold"><summary>{html.escape(node["prompt_show"])}</summary>\n'
    )


def _close_fold(self, node: HideCodeCellNode) -> None:
    self.body.append("</details>\n")


def _describe_pictures(app, doctree: nodes.document) -> None:
    """Give each picture of a page its words: those that its plot left in the notebook, else the heading above it."""
    source = Path(app.env.doc2path(app.env.current_document.docname))
    words = _words_by_picture(source) if source.suffix == ".ipynb" else {}
    for picture in doctree.findall(nodes.image):
        if not picture.get("alt"):
            section = picture
            while section and not isinstance(section, nodes.section):
                section = section.parent
            heading = section.next_node(nodes.title).astext() if section else app.config.project
            picture["alt"] = words.get(Path(picture["uri"]).stem, f"Picture: {heading}")


def _words_by_picture(notebook: Path) -> dict[str, str]:
    """The alternative texts in a notebook's outputs, by the picture's hash, which names its file in the book."""
    found = {}
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", []):
            for kind in ("image/png", "image/jpeg", "image/gif"):
                alt = output.get("metadata", {}).get(kind, {}).get("alt")
                if alt and kind in output["data"]:
                    data = "".join(output["data"][kind])
                    found[hashlib.sha256(b64decode(data)).hexdigest()] = alt
    return found
