"""The names of headings, by which a link finds a part of a page."""

from __future__ import annotations

from metallab.results.publish import pages


def test_headings_are_named_as_a_viewer_names_them():
    text = (
        "# A `b_c` and **d**: [e](f.md)?\n\n```sh\n# no heading\n```\n\nUnderlined &amp; wide\n---"
    )
    jupyter = {"A-b_c-and-d:-e?", "Underlined-&-wide"}
    assert pages.find_anchors([text], pages.make_jupyter_anchor) == jupyter
    assert pages.find_anchors([text], pages.make_github_anchor) == {
        "a-b_c-and-d-e",
        "underlined--wide",
    }


def test_headings_of_one_name_are_numbered():
    assert pages.find_anchors(["# A\n\n## B", "## B\n\n## B"], pages.make_github_anchor) == {
        "a",
        "b",
        "b-1",
        "b-2",
    }
