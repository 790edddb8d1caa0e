"""tools/release.py sets a release's number wherever it stands, and begins its part of the changelog."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import tomllib

import pytest

from metallab import paths

SPEC = importlib.util.spec_from_file_location("release", paths.ROOT / "tools" / "release.py")
release = importlib.util.module_from_spec(SPEC)
sys.modules["release"] = release
SPEC.loader.exec_module(release)

NUMBER = "99.1.0"
DAY = "2026-11-30"


@pytest.fixture
def checkout(tmp_path):
    """The files of this checkout that a release changes."""
    for name in release.FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(paths.ROOT / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def changed(checkout):
    assert release.main([NUMBER], checkout) == 0
    return checkout


@pytest.mark.parametrize("folder", [".", "metalsim", "metalsim/objc"])
def test_each_package_has_the_number(changed, folder):
    project = tomllib.loads((changed / folder / "pyproject.toml").read_text())
    assert project["project"]["version"] == NUMBER


def test_the_citation_has_the_number(changed):
    lines = (changed / "CITATION.cff").read_text().splitlines()
    assert f"version: {NUMBER}" in lines
    assert lines[0] == "cff-version: 1.2.0"


@pytest.mark.parametrize("name", release.NAMING_WHEELS)
def test_wheels_that_documents_install_have_the_number(changed, name):
    numbers = re.findall(r"-(\d[\d.]*)-py3-none-any", (changed / name).read_text())
    assert set(numbers) == {NUMBER}


def test_no_other_document_names_a_wheel():
    naming = [
        str(path.relative_to(paths.ROOT))
        for path in [*paths.ROOT.glob("*.md"), *paths.ROOT.glob("[cdmu]*/**/*.md")]
        if release.WHEEL.search(path.read_text(encoding="utf-8"))
    ]
    assert set(naming) <= set(release.NAMING_WHEELS)


def test_what_was_unreleased_is_of_the_release():
    log = "Nothing has been released yet: no.\n\n## [Unreleased]\n\n### Added\n\n- A page.\n"

    changed = release.begin_part(log, NUMBER, DAY)

    assert changed == (f"\n## [Unreleased]\n\n## [{NUMBER}] - {DAY}\n\n### Added\n\n- A page.\n")


def test_a_release_has_one_part():
    log = release.begin_part("## [Unreleased]\n", NUMBER, DAY)
    with pytest.raises(release.NotDone):
        release.begin_part(log, NUMBER, DAY)


@pytest.mark.parametrize(
    ("asked", "code"),
    [([NUMBER, "--dry-run"], 0), (["0.0.1"], 2)],
    ids=["a dry run", "a number that is not larger"],
)
def test_nothing_is_changed(checkout, asked, code):
    assert release.main(asked, checkout) == code

    changed = [
        name
        for name in release.FILES
        if (checkout / name).read_bytes() != (paths.ROOT / name).read_bytes()
    ]
    assert changed == []


def test_a_file_that_is_not_as_expected_is_named_and_nothing_is_changed(checkout, capsys):
    (checkout / "CITATION.cff").write_text("title: none\n")

    assert release.main([NUMBER], checkout) == 2

    assert "CITATION.cff" in capsys.readouterr().err
    assert NUMBER not in (checkout / "pyproject.toml").read_text()
