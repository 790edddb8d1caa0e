"""The book in a real browser: a reader finds, unfolds, turns pages, and nothing is fetched from anywhere.

``METALLAB_BOOK`` names a book that is there already. Without it one is made of a fast run of two notebooks, and of a
copy that claims to be another machine's and lacks one of them; the other pages are those of notebooks that did not run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import chrome
import nbformat
import pytest
from bs4 import BeautifulSoup
from playwright.sync_api import Browser, Locator, Page, expect

from metallab import paths, timing

EXECUTED = ("01", "14")
ELSEWHERE = "Another machine"
LACKS = "14"
REASON = "its framework is not there"


def build(folder: Path, *runs: Path) -> subprocess.CompletedProcess:
    """What became of ``python book/build.py``."""
    command = [sys.executable, paths.ROOT / "book/build.py", *runs, "--into", folder]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Path:
    """A fast run of two notebooks on the CPU."""
    folder = tmp_path_factory.mktemp("run")
    only = [word for number in EXECUTED for word in ("--only", number)]
    options = ["--mode", "fast", "--device", "cpu", *only]

    command = [sys.executable, "-m", "metallab.headless", *options]
    subprocess.run(command, check=True, env={**os.environ, "METALLAB_OUT": str(folder)})
    return folder


@pytest.fixture(scope="session")
def elsewhere(run, tmp_path_factory) -> Path:
    """The same run as if of another machine, which lacks one of the two."""
    folder = tmp_path_factory.mktemp("elsewhere") / "elsewhere"
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns(f"{LACKS}_*"))
    summary = json.loads((folder / "summary.json").read_text())
    for notebook in summary["notebooks"]:
        if notebook["name"].startswith(f"{LACKS}_"):
            notebook.update(status="skipped", reason=REASON)
    (folder / "summary.json").write_text(json.dumps(summary | {"label": ELSEWHERE}))
    return folder


@pytest.fixture(scope="session")
def made(run, elsewhere, tmp_path_factory) -> Path:
    """The folder of the book of those runs."""
    folder = tmp_path_factory.mktemp("made") / "book"
    built = build(folder, elsewhere, run)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="session")
def book(request) -> Path:
    """The folder of the book to read."""
    given = os.environ.get("METALLAB_BOOK")
    return Path(given).resolve() if given else request.getfixturevalue("made")


def lessons(book: Path) -> list[Path]:
    """The pages of the notebooks on the first machine, in their order."""
    return sorted((book / "notebooks").glob("*.html"))


def every_page(book: Path) -> list[Path]:
    """All pages, without what the theme keeps beside its scripts."""
    return sorted(path for path in book.rglob("*.html") if "_static" not in path.parts)


def one(book: Path, number: str) -> str:
    """The address of a lesson."""
    return next((book / "notebooks").glob(f"{number}_*.html")).as_uri()


def search(page: Page, words: str) -> Page:
    """Look for words as a reader does, by keyboard; the page then shows what was found."""
    page.keyboard.press("Control+K")
    page.keyboard.type(words)
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=*")
    # before that the list still grows, and what is to be clicked moves
    expect(page.locator(".search-summary")).to_contain_text("found")
    return page


def test_search_finds_a_term_from_a_folder(book, page):
    page.goto((book / "index.html").as_uri())
    links = search(page, "Softshrink").locator("#search-results li a")
    links.filter(has_text="Find where the time goes").first.click()
    expect(page.locator("article h1")).to_contain_text("Find where the time goes")


@pytest.fixture
def plain(made, browser: Browser) -> Iterator[Page]:
    """The first lesson in a browser that runs no scripts."""
    with chrome.watched(browser, scripts=False) as page:
        page.goto(one(made, "01"))
        yield page


@pytest.fixture
def here(run) -> str:
    """What the machine of the run is called."""
    return json.loads((run / "summary.json").read_text())["label"]


def switch_of(page: Page) -> Locator:
    return page.get_by_role("navigation", name="This page on each machine")


def folder_of(page: Page, book: Path) -> tuple[str, ...]:
    """The folders of the page that is open, in the book."""
    return Path(unquote(urlsplit(page.url).path)).relative_to(book).parent.parts


def test_a_switch_names_each_machine_and_marks_the_one_that_is_shown(plain, here):
    switch = switch_of(plain)

    assert switch.get_by_role("link").all_inner_texts() == [here, ELSEWHERE]
    expect(switch.locator("[aria-current=page]")).to_have_text(here)


def test_a_switch_leads_to_the_same_page_of_another_machine(plain, made):
    switch_of(plain).get_by_role("link", name=ELSEWHERE).click()

    assert folder_of(plain, made) == ("notebooks", "elsewhere")
    expect(plain.locator("article h1")).to_contain_text("Time it right")
    expect(switch_of(plain).locator("[aria-current=page]")).to_have_text(ELSEWHERE)
    expect(plain.locator(".executed summary")).to_contain_text(f"Executed on {ELSEWHERE}")


def test_the_next_page_is_that_of_the_same_machine(plain):
    switch_of(plain).get_by_role("link", name=ELSEWHERE).click()
    plain.locator("a.right-next").click()

    assert "/notebooks/elsewhere/02_" in plain.url
    expect(switch_of(plain)).to_have_count(0)  # no machine executed that page


def test_a_switch_leads_back(plain, made, here):
    switch_of(plain).get_by_role("link", name=ELSEWHERE).click()
    switch_of(plain).get_by_role("link", name=here).click()

    assert plain.url == one(made, "01")


def test_a_page_that_a_machine_lacks_says_so_with_the_reason_and_leads_to_one_that_ran_it(
    made, page
):
    (lacking,) = (made / "notebooks" / "elsewhere").glob(f"{LACKS}_*.html")
    page.goto(lacking.as_uri())

    expect(page.locator("div.executed")).to_contain_text(f"Not executed on {ELSEWHERE}: {REASON}")
    switch_of(page).get_by_role("link").click()
    assert page.url == one(made, LACKS)


def test_the_first_page_says_what_a_machine_lacks_and_leads_to_what_it_ran(made, page):
    page.goto((made / "index.html").as_uri())
    where = page.locator("div.executed")

    expect(where).to_contain_text(f"{LACKS}: {REASON}.")
    where.get_by_role("link", name=ELSEWHERE).click()
    expect(page.get_by_role("row", name="Time it right")).to_contain_text("executed")
    expect(page.get_by_role("row", name="Find where the time goes")).to_contain_text("not executed")


def tab_to(page: Page, element: Locator) -> None:
    """Press the tabulator key until an element has the focus, 20 times at most."""
    for _ in range(20):
        page.keyboard.press("Tab")
        if element.evaluate("element => element === document.activeElement"):
            return
    pytest.fail("the keyboard does not get there")


def test_a_solution_is_reached_and_unfolded_by_keyboard(book, page):
    page.goto(one(book, "01"))
    folded = page.locator("details.fold").first
    title, solution = folded.locator("summary"), folded.locator("pre").first
    expect(solution).to_be_hidden()
    assert title.inner_text() == "Solution"

    page.locator("h2", has_text="On your own").click()  # from here on by keyboard
    tab_to(page, title)

    page.keyboard.press("Enter")
    expect(solution).to_be_visible()
    page.keyboard.press("Enter")
    expect(solution).to_be_hidden()


def test_the_first_page_leads_to_the_first_lesson(book, page):
    page.goto((book / "index.html").as_uri())
    page.locator(".begin a").click()
    assert page.url == lessons(book)[0].as_uri()


@pytest.fixture
def clipboard(made, browser: Browser) -> Iterator[Page]:
    """The first lesson, which may use the clipboard."""
    with chrome.watched(browser) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.goto(one(made, "01"))
        yield page


def test_code_is_copied_by_a_button(clipboard):
    block = clipboard.locator("article .cell_input .highlight").first
    block.get_by_role("button", name="Copy").click()
    expect(block.get_by_role("button")).to_have_text("Copied")

    copied = clipboard.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("import metallab.device")
    assert "Copy" not in copied


def test_outputs_have_no_button(clipboard):
    expect(clipboard.locator("article .cell_input .copy").first).to_be_visible()

    expect(clipboard.locator(".cell_output .copy")).to_have_count(0)


def test_lines_of_output_are_not_cut_on_a_phone(made, browser: Browser):
    with chrome.watched(browser, size=chrome.PHONE) as page:
        page.goto(one(made, "01"))

        cut = page.locator("article .cell_output pre").evaluate_all(
            "all => all.filter(it => it.scrollWidth > it.clientWidth + 1).map(it => it.innerText)"
        )
        assert cut == []


def cells_of(path: Path, tag: str) -> list[bool]:
    """Of the cells of a page with a tag, which ones are folded."""
    soup = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
    cells = soup.select(f".cell.tag_{tag}")
    return [bool(cell.select("details.fold:not([open])")) for cell in cells]


@pytest.mark.parametrize(("tag", "is_folded"), [("solution", True), ("exercise", False)])
def test_every_solution_is_folded_and_every_exercise_is_not(book, tag, is_folded):
    folded = {path.name: cells_of(path, tag) for path in lessons(book)}

    assert [name for name, each in folded.items() if set(each) != {is_folded}] == []


def turn(page: Page, link: str) -> str:
    """Turn the page, and return where one gets."""
    page.locator(link).click()
    return page.url


def test_next_turns_the_pages_and_previous_turns_back(book, page):
    first, *others = [path.as_uri() for path in lessons(book)]
    page.goto(first)

    assert [turn(page, "a.right-next") for _ in others] == others
    assert turn(page, "a.left-prev") == others[-2]


def faults_of(page: Page, path: Path, width: int) -> Iterator[str]:
    """Yield what a reader misses of a page: a part that does not fit into the window's width, a picture, its words."""
    page.goto(path.as_uri())
    needed = page.evaluate("document.documentElement.scrollWidth")
    if needed > width:
        yield f"{path.name} is {needed} pixels wide"

    pictures = page.locator("article img").evaluate_all(
        "all => all.map(it => [it.alt, it.naturalWidth, it.src])"
    )
    for words, loaded, source in pictures:
        if not words.strip():
            yield f"{path.name}: no words for {source}"
        if not loaded:
            yield f"{path.name}: {source} does not show"


@pytest.mark.parametrize("size", [chrome.DESKTOP, chrome.PHONE], ids=["desktop", "phone"])
def test_every_page_is_quiet_fits_and_has_words_for_its_pictures(book, browser: Browser, size):
    width, _ = size
    with chrome.watched(browser, size=size) as page:
        faults = [fault for path in every_page(book) for fault in faults_of(page, path, width)]

        assert faults == []


@pytest.fixture(scope="session")
def plots(run) -> list[str]:
    """The words of each plot of the first lesson."""
    (executed,) = run.glob("01_*.ipynb")
    cells = nbformat.read(executed, 4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    pictures = [
        each.metadata["image/png"] for each in outputs if "image/png" in each.get("metadata", {})
    ]
    return [picture["alt"] for picture in pictures]


def test_words_for_a_picture_are_those_of_its_plot(plots, made, page):
    page.goto(one(made, "01"))

    counts = {words: page.get_by_alt_text(words, exact=True).count() for words in plots}
    assert counts
    assert counts == Counter(plots)


def test_a_plot_is_a_file_and_the_page_stays_small(plots, made, page):
    page.goto(one(made, "01"))

    pictures = {words: page.get_by_alt_text(words, exact=True).first for words in plots}
    sources = {words: each.get_attribute("src") for words, each in pictures.items()}
    assert [words for words, source in sources.items() if source.startswith("data:")] == []
    assert [words for words, each in pictures.items() if not each.is_visible()] == []


@pytest.mark.parametrize("number", EXECUTED)
def test_a_page_says_what_it_ran_on_and_how(here, made, page, number):
    page.goto(one(made, number))

    told = " ".join(page.locator("article .executed").all_inner_texts())
    assert timing.FAST_MODE.detail in told
    assert here in told
    page.locator("details.executed > summary").click()
    expect(page.locator("details.executed").get_by_role("row", name="Chip")).to_be_visible()


def test_a_page_that_did_not_run_says_so(made):
    others = [path for path in lessons(made) if not path.name.startswith(EXECUTED)]
    texts = {path.name: path.read_text(encoding="utf-8") for path in others}

    assert texts
    assert [name for name, text in texts.items() if "Not executed on" not in text] == []


def read_pages(book: Path) -> dict[Path, BeautifulSoup]:
    return {
        path: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        for path in every_page(book)
    }


def links_within(path: Path, soup: BeautifulSoup) -> Iterator[tuple[str, Path, str]]:
    """Yield the links of a page to this book: the link, and the file and the heading that it leads to."""
    for element in soup.select("[href], [src]"):
        link = element.get("href") or element.get("src")
        parts = urlsplit(link)
        if not parts.scheme and not parts.netloc:
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            yield link, target, unquote(parts.fragment)


def test_every_link_within_the_book_leads_somewhere(book):
    """Sphinx checks those that it writes; a notebook's HTML outputs and the theme have some as well."""
    soups = read_pages(book)

    def leads(target: Path, heading: str) -> bool:
        if not target.is_file():
            return False
        return not heading or target not in soups or bool(soups[target].find(id=heading))

    assert [
        f"{path.relative_to(book)}: {link}"
        for path, soup in soups.items()
        for link, target, heading in links_within(path, soup)
        if not leads(target, heading)
    ] == []


def test_a_dead_link_is_no_book(run, tmp_path):
    """A run with one page that leads to a page that there is not: the link is named, and no book is left."""
    broken = tmp_path / "run"
    broken.mkdir()
    (broken / "summary.json").write_bytes((run / "summary.json").read_bytes())
    (notebook,) = run.glob("01_*.ipynb")
    text = notebook.read_text(encoding="utf-8")
    link = "](02_look_inside_an_apple_gpu.ipynb)"
    assert link in text
    (broken / notebook.name).write_text(text.replace(link, "](02_gone.ipynb)"))

    built = build(tmp_path / "book", broken)

    assert built.returncode == 1
    assert "02_gone.ipynb" in built.stderr
    assert "unfit to be shown" in built.stderr
    assert not (tmp_path / "book").exists()


def test_without_a_run_there_is_no_book(tmp_path):
    built = build(tmp_path / "book", tmp_path)
    assert built.returncode == 2
    assert str(tmp_path / "summary.json") in built.stderr


def test_a_folder_that_holds_something_else_is_left_alone(run, tmp_path):
    mine = tmp_path / "mine.txt"
    mine.touch()
    built = build(tmp_path, run)
    assert built.returncode == 1
    assert "is no book" in built.stderr
    assert mine.exists()
