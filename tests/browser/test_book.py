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
from pathlib import Path
from urllib.parse import unquote, urlsplit

import chrome
import nbformat
import pytest
from bs4 import BeautifulSoup
from playwright.sync_api import Browser, Page, expect

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
    command = [
        sys.executable,
        "-m",
        "metallab.headless",
        "--mode",
        "fast",
        "--device",
        "cpu",
        *only,
    ]
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
    return page


def test_search_finds_a_term_from_a_folder(book, page):
    page.goto((book / "index.html").as_uri())
    links = search(page, "Softshrink").locator("#search-results li a")
    links.filter(has_text="Find where the time goes").first.click()
    expect(page.locator("article h1")).to_contain_text("Find where the time goes")


def test_switch_leads_to_the_same_page_of_another_machine(run, made, browser: Browser):
    here = json.loads((run / "summary.json").read_text())["label"]
    with chrome.watched(browser, scripts=False) as page:
        page.goto(one(made, "01"))
        switch = page.get_by_role("navigation", name="This page on each machine")
        assert switch.get_by_role("link").all_inner_texts() == [here, ELSEWHERE]
        expect(switch.locator("[aria-current=page]")).to_have_text(here)
        switch.get_by_role("link", name=ELSEWHERE).click()
        assert Path(unquote(urlsplit(page.url).path)).relative_to(made).parts[:2] == (
            "notebooks",
            "elsewhere",
        )
        expect(page.locator("article h1")).to_contain_text("Time it right")
        expect(switch.locator("[aria-current=page]")).to_have_text(ELSEWHERE)
        expect(page.locator(".executed summary")).to_contain_text(f"Executed on {ELSEWHERE}")
        page.locator("a.right-next").click()
        assert "/notebooks/elsewhere/02_" in page.url, "the next page is that machine's"
        expect(switch).to_have_count(0)  # no machine executed that page
        page.locator("a.left-prev").click()
        switch.get_by_role("link", name=here).click()
        assert page.url == one(made, "01")


def test_a_page_that_a_machine_lacks_says_so_with_the_reason(made, page):
    (lacking,) = (made / "notebooks" / "elsewhere").glob(f"{LACKS}_*.html")
    page.goto(lacking.as_uri())
    expect(page.locator("div.executed")).to_contain_text(f"Not executed on {ELSEWHERE}: {REASON}")
    page.get_by_role("navigation", name="This page on each machine").get_by_role("link").click()
    assert page.url == one(made, LACKS)
    page.goto((made / "index.html").as_uri())
    where = page.locator("div.executed")
    expect(where).to_contain_text(f"{LACKS}: {REASON}.")
    where.get_by_role("link", name=ELSEWHERE).click()
    row = page.get_by_role("row", name="Time it right")
    expect(row).to_contain_text("executed")
    expect(page.get_by_role("row", name="Find where the time goes")).to_contain_text("not executed")


def test_a_solution_is_reached_and_unfolded_by_keyboard(book, page):
    page.goto(one(book, "01"))
    folded = page.locator("details.fold").first
    solution = folded.locator("pre").first
    expect(solution).to_be_hidden()
    title = folded.locator("summary")
    assert title.inner_text() == "Solution"
    page.locator("h2", has_text="On your own").click()  # from here on by keyboard
    for _ in range(20):
        page.keyboard.press("Tab")
        if title.evaluate("title => title === document.activeElement"):
            break
    page.keyboard.press("Enter")
    expect(solution).to_be_visible()
    page.keyboard.press("Enter")
    expect(solution).to_be_hidden()


def test_the_first_page_leads_to_the_first_lesson(book, page):
    page.goto((book / "index.html").as_uri())
    page.locator(".begin a").click()
    assert page.url == lessons(book)[0].as_uri()


def test_code_is_copied_by_a_button_and_outputs_have_none(made, browser: Browser):
    with chrome.watched(browser) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.goto(one(made, "01"))
        block = page.locator("article .cell_input .highlight").first
        block.get_by_role("button", name="Copy").click()
        expect(block.get_by_role("button")).to_have_text("Copied")
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied.startswith("import metallab.device")
        assert "Copy" not in copied
        expect(page.locator(".cell_output .copy")).to_have_count(0)


def test_lines_of_output_are_not_cut_on_a_phone(made, browser: Browser):
    with chrome.watched(browser, size=chrome.PHONE) as page:
        page.goto(one(made, "01"))
        cut = page.locator("article .cell_output pre").evaluate_all(
            "all => all.filter(it => it.scrollWidth > it.clientWidth + 1).map(it => it.innerText)"
        )
        assert cut == []


def test_every_solution_is_folded_and_every_exercise_is_not(book):
    for path in lessons(book):
        soup = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        for tag, folded in (("solution", True), ("exercise", False)):
            cells = soup.select(f".cell.tag_{tag}")
            assert cells, f"{path.name} has no {tag}"
            assert all(bool(cell.select("details.fold:not([open])")) == folded for cell in cells), (
                path.name,
                tag,
            )


def test_next_and_previous_turn_the_pages(book, page):
    first, *others = lessons(book)
    page.goto(first.as_uri())
    for path in others:
        page.locator("a.right-next").click()
        assert page.url == path.as_uri()
    page.locator("a.left-prev").click()
    assert page.url == others[-2].as_uri()


@pytest.mark.parametrize("size", [chrome.DESKTOP, chrome.PHONE], ids=["desktop", "phone"])
def test_every_page_is_quiet_fits_and_has_words_for_its_pictures(book, browser: Browser, size):
    with chrome.watched(browser, size=size) as page:
        for path in every_page(book):
            page.goto(path.as_uri())
            name = path.relative_to(book)
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= size[0], f"{name} is {width} pixels wide"
            pictures = page.locator("article img").evaluate_all(
                "all => all.map(it => [it.alt, it.naturalWidth, it.src])"
            )
            for words, loaded, source in pictures:
                assert words.strip(), f"{name}: no words for {source}"
                assert loaded, f"{name}: {source} does not show"


def test_words_for_a_picture_are_those_of_its_plot(run, made, page):
    page.goto(one(made, "01"))
    (executed,) = run.glob("01_*.ipynb")
    outputs = [
        output for cell in nbformat.read(executed, 4).cells for output in cell.get("outputs", [])
    ]
    words = [
        output.metadata["image/png"]["alt"]
        for output in outputs
        if "image/png" in output.get("metadata", {})
    ]
    assert words
    for each in words:
        picture = page.get_by_alt_text(each, exact=True)
        expect(picture).to_have_count(words.count(each))
        expect(picture.first).to_be_visible()
        assert not picture.first.get_attribute("src").startswith("data:"), (
            "a plot is a file: the page stays small"
        )


def test_a_page_says_what_it_ran_on_and_how(run, made, page):
    label = json.loads((run / "summary.json").read_text())["label"]
    for path in lessons(made):
        page.goto(path.as_uri())
        executed = " ".join(page.locator("article .executed").all_inner_texts())
        if path.name.split("_")[0] in EXECUTED:
            assert timing.FAST_MODE.detail in executed
            assert label in executed
            page.locator("details.executed > summary").click()
            machine = page.locator("details.executed").get_by_role("row", name="Chip")
            expect(machine).to_be_visible()
        else:
            assert "Not executed on" in executed


def test_every_link_within_the_book_leads_somewhere(book):
    """Sphinx checks those that it writes; a notebook's HTML outputs and the theme have some as well."""
    soups = {
        path: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        for path in every_page(book)
    }
    dead = []
    for path, soup in soups.items():
        for link in soup.select("[href], [src]"):
            parts = urlsplit(link.get("href") or link.get("src"))
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = (
                not parts.fragment
                or target not in soups
                or soups[target].find(id=unquote(parts.fragment))
            )
            if not target.is_file() or not anchor:
                dead.append(f"{path.relative_to(book)}: {link.get('href') or link.get('src')}")
    assert not dead


def test_a_dead_link_is_no_book(run, tmp_path):
    broken = tmp_path / "run"
    broken.mkdir()
    (broken / "summary.json").write_bytes((run / "summary.json").read_bytes())
    (notebook,) = run.glob("01_*.ipynb")
    text = notebook.read_text(encoding="utf-8")
    assert "](02_look_inside_an_apple_gpu.ipynb)" in text
    (broken / notebook.name).write_text(
        text.replace("](02_look_inside_an_apple_gpu.ipynb)", "](02_gone.ipynb)")
    )
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
