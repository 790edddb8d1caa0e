"""What a visitor sees first: the picture, the entrances, and the addresses that they follow from."""

from __future__ import annotations

import importlib.util
import re
import sys
from xml.etree import ElementTree

import nbformat
import pytest

from metallab import paths, reported
from metallab.authoring import published

README = (paths.ROOT / "README.md").read_text(encoding="utf-8")
ON_HOST = published.Addresses("https://github.com/Owner/metal-lab")
ELSEWHERE = published.Addresses("https://git.example.org/owner/metal-lab")


def load_tool(name):
    """A program of tools/, as a module."""
    spec = importlib.util.spec_from_file_location(name, paths.ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where a dataclass looks its annotations up
    spec.loader.exec_module(module)
    return module


rooflines = load_tool("draw_rooflines")


# ---- the picture -----------------------------------------------------------------------------------------------------


def test_the_picture_is_what_the_tables_give():
    drawn = rooflines.draw(rooflines.read_roofs(), rooflines.PLACES)
    assert rooflines.PICTURE.read_text(encoding="utf-8") == drawn, "python tools/draw_rooflines.py"


def test_readme_gives_the_words_of_the_picture():
    words = rooflines.describe(rooflines.read_roofs(), rooflines.PLACES)
    assert f"![{words}](data/images/rooflines.svg)" in README


def test_the_picture_names_the_kind_of_its_numbers_and_has_text_as_text():
    picture = ElementTree.parse(rooflines.PICTURE).getroot()
    texts = ["".join(each.itertext()) for each in picture.iter("{http://www.w3.org/2000/svg}text")]
    shown = " ".join(texts)
    assert reported.LABEL in shown
    assert "calculated" in shown
    assert all(chip in shown for chip in rooflines.CHIPS)


def test_the_picture_has_colours_for_both_themes():
    style = rooflines.PICTURE.read_text(encoding="utf-8").partition("</style>")[0]
    light, _, dark = style.partition("prefers-color-scheme: dark")
    named = r"\.(\w+)(?:, \.\w+)* \{[^}]*(?:fill|stroke): #"
    assert {"ground", "place", "c0", "c1", "c2"} <= set(re.findall(named, dark))
    assert {"ground", "place", "c0", "c1", "c2"} <= set(re.findall(named, light))


def test_a_chip_without_a_peak_is_not_drawn(monkeypatch):
    monkeypatch.setattr(rooflines, "CHIPS", ("M1", "M5 Ultra"))
    with pytest.raises(LookupError, match="M5 Ultra"):
        rooflines.read_roofs()


# ---- what README says ------------------------------------------------------------------------------------------------


def test_the_number_of_puzzles_is_that_of_the_pages():
    pages = [nbformat.read(path, 4) for path in paths.NOTEBOOKS.glob("2[012]_*.ipynb")]
    tags = [cell.metadata.get("tags", []) for page in pages for cell in page.cells]
    assert f"in {sum('solution' in each for each in tags)} puzzles" in README


def test_the_first_screen_says_that_no_mac_has_run_it():
    first_screen, _, _ = README.partition("## Pages")
    assert "**no Mac has run it yet**" in first_screen


@pytest.mark.parametrize(
    ("addresses", "clone"),
    [
        pytest.param(
            None,
            'git clone "${ADDRESS:?is what this page shows under Code}" metal-lab',
            id="without an address",
        ),
        pytest.param(
            ON_HOST, "git clone https://github.com/Owner/metal-lab metal-lab", id="with one"
        ),
    ],
)
def test_two_lines_are_to_be_pasted(addresses, clone):
    opening, first, second, closing = published.describe_lines_to_paste(addresses)
    assert (opening, closing) == ("```sh", "```")
    assert first.startswith(f"{clone} && cd metal-lab")
    assert second.startswith("make lab")


def test_where_there_is_an_address_the_entrances_lead_to_the_web():
    text = published.describe_entrances(ON_HOST, 34)
    assert "](https://owner.github.io/metal-lab/)" in text
    assert "/github/Owner/metal-lab/blob/try/20_solve_metal_puzzles.ipynb)" in text
    assert "](https://codespaces.new/Owner/metal-lab)" in text
    assert "All 34 pages" in text


@pytest.mark.parametrize("addresses", [None, ELSEWHERE], ids=["no address", "another host"])
def test_where_nothing_is_known_no_entrance_leads_to_the_web(addresses):
    text = published.describe_entrances(addresses, 34)
    assert re.findall(r"\]\((https?:[^)]*)\)", text) == []
    assert "](docs/try_it.md)" in text


def test_the_page_to_try_is_one_that_installs_itself():
    pages = load_tool("try_pages").PAGES
    assert published.FIRST_TO_TRY.removesuffix(".ipynb") in pages


# ---- the one address -------------------------------------------------------------------------------------------------


@pytest.fixture
def pyproject(tmp_path):
    """Returns a file that holds an address."""

    def write(repository):
        path = tmp_path / "pyproject.toml"
        path.write_text(f'[tool.metal-lab]\nrepository = "{repository}"\n', encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("given", ["https://github.com/o/lab", "https://github.com/o/lab.git"])
def test_all_addresses_follow_from_one(pyproject, given):
    found = published.find_addresses(pyproject(given), {})
    assert found.book == "https://o.github.io/lab/"
    assert found.downloads("1.0.0") == "https://github.com/o/lab/releases/download/v1.0.0"
    assert found.file("docs/a.md") == "https://github.com/o/lab/blob/main/docs/a.md"


def test_without_an_address_a_workflow_s_host_counts(pyproject):
    host = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "some/lab"}
    assert published.find_addresses(pyproject(""), {}) is None
    assert published.find_addresses(pyproject(""), host).name == "some/lab"


@pytest.mark.parametrize(
    "given",
    [
        "github.com/o/lab",
        "http://github.com/o/lab",
        "https://github.com/lab",
        "git@github.com:o/lab",
    ],
)
def test_what_is_no_address_is_refused(pyproject, given):
    with pytest.raises(published.BadAddress, match=re.escape(given)):
        published.find_addresses(pyproject(given), {})
