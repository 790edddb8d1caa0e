"""The colours of the pages of HTML: legible on their grounds, and written once."""

import re

import pytest
from doctor_results import report_of

from metallab import device, paths, project
from metallab.classroom import class_pages

LIGHT, DARK = [
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
    for block in paths.PALETTE.read_text(encoding="utf-8").split("@media")
]
LEGIBLE = 4.5
"""The contrast that WCAG 2.2 asks of text (criterion 1.4.3)."""
STYLES = sorted(paths.PALETTE.parent.rglob("*.css"))
"""The book has a theme of its own, with names of its own."""
TEMPLATES = sorted(paths.PALETTE.parent.rglob("*.j2"))
ALL_STYLES = "".join(path.read_text(encoding="utf-8") for path in STYLES)
LOCAL = {"mark", "sign"}
"""Names that a style sets for itself, from colours of the palette: of a status, and the sign beside its word."""
OF_TEXT = sorted(
    set(re.findall(r"(?<![-\w])(?:color|--mark): var\(--([\w-]+)", ALL_STYLES)) - LOCAL
)
"""The colours that a style gives to text."""
IN_NOTEBOOKS = sorted(set(re.findall(r"var\(--[\w-]+, (#[0-9a-f]{6})\)", ALL_STYLES)))
"""The colours that stand for those of the palette in a notebook, which has none."""
SEEN = 3
"""The contrast that WCAG 2.2 asks of what is no text (criterion 1.4.11): beside each such sign stands its word."""


def luminance(colour: str) -> float:
    """The relative luminance of WCAG, of a colour such as #005a9c."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted([luminance(one), luminance(other)])
    return (lighter + 0.05) / (darker + 0.05)


def test_black_on_white_has_the_largest_contrast():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["paper", "card"])
@pytest.mark.parametrize("text", OF_TEXT)
def test_text_is_legible(palette, ground, text):
    assert contrast(palette[text], palette[ground]) >= LEGIBLE


def test_light_and_dark_have_the_same_names():
    assert LIGHT.keys() == DARK.keys()


@pytest.mark.parametrize("path", STYLES, ids=lambda path: path.name)
def test_each_colour_that_a_style_uses_is_in_the_palette(path):
    used = re.findall(r"var\(--([\w-]+)", path.read_text(encoding="utf-8"))
    assert set(used) <= LIGHT.keys() | LOCAL


@pytest.mark.parametrize(
    "path", [each for each in STYLES if each != paths.PALETTE], ids=lambda path: path.name
)
def test_a_style_takes_the_colour_of_text_from_the_palette(path):
    """Black on yellow, which says *simulated*, is the same in light and dark."""
    raw = re.findall(r"(?<![-\w])color: (#[0-9a-f]+|[a-z]+);", path.read_text(encoding="utf-8"))
    assert set(raw) <= {"inherit", "#000"}


@pytest.mark.parametrize("path", STYLES, ids=lambda path: path.name)
def test_a_colour_of_the_palette_is_written_there_alone(path):
    assert ("--good:" in path.read_text(encoding="utf-8")) == (path == paths.PALETTE)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_template_leaves_colours_to_the_styles(path):
    assert re.findall(r"#[0-9a-f]{3,8}\b", path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("ground", ["#ffffff", "#111111"], ids=["light", "dark"])
@pytest.mark.parametrize("colour", IN_NOTEBOOKS)
def test_what_stands_for_the_palette_in_a_notebook_is_seen_in_light_and_dark(colour, ground):
    assert contrast(colour, ground) >= SEEN


def test_the_pages_of_a_class_have_the_palette():
    assert f"--good: {LIGHT['good']}" in class_pages.render_slips({}, "http://hub")


def test_the_doctor_s_page_has_the_palette():
    assert f"--good: {LIGHT['good']}" in report_of()._html(page=True)


def test_the_report_of_a_project_has_the_palette(tmp_path):
    assert (
        f"--good: {LIGHT['good']}" in project.Project(tmp_path, on=device.cpu()).save().read_text()
    )


def test_in_a_notebook_the_doctor_changes_no_colours_but_its_own():
    shown = report_of()._repr_html_()

    assert ":root" not in shown
    assert "body" not in shown
