"""The command that stores executed pages: what it names, and where README and the gallery lead after it."""

from __future__ import annotations

import json

import pytest
from run_folder import entry

from metallab.results.publish import gallery, show


@pytest.fixture
def failed(finished_run):
    """The folder of a run of which one page has failed."""
    finished_run.summary(entry("01_a"), entry("02_b", status="failed", reason="Boom"))
    return str(finished_run.folder)


def test_the_command_names_what_it_refused_and_shows_the_rest(finished_run, failed, capsys):
    assert show.main([failed]) == 1

    assert "make run ONLY=02" in capsys.readouterr().err
    assert "some_cpu/01_a.ipynb" in finished_run.gallery.read_text()


def test_the_command_leads_from_readme_to_a_stored_page(failed):
    show.main([failed])

    row, _, task, _, begin = gallery.README.read_text().splitlines()
    assert "[A](data/executed/some_cpu/01_a.ipynb) | 5 | how" in row
    assert task == "| a task | [A](notebooks/01_a.ipynb) |"
    assert begin == "[Begin here](data/executed/some_cpu/01_a.ipynb)"


def test_readme_stays_as_it_is_when_nothing_has_changed(failed):
    show.main([failed])
    before = gallery.README.read_text()

    assert show.main([]) == 0

    assert gallery.README.read_text() == before


@pytest.fixture
def withheld_later(finished_run):
    """A run whose page was shown, and whose headline was withheld the next time."""
    finished_run.stored("01_a")
    show.update(finished_run.executed, finished_run.gallery)
    summary = finished_run.executed / "some_cpu" / "summary.json"
    told = json.loads(summary.read_text())

    for each in told["notebooks"]:
        each["headline_is_withheld"] = True
    summary.write_text(json.dumps(told))
    show.update(finished_run.executed, finished_run.gallery)
    return finished_run


def test_a_page_whose_headline_is_withheld_loses_its_link(withheld_later):
    assert "data/executed" not in gallery.README.read_text()
    assert "01_a" not in withheld_later.gallery.read_text()


def test_a_page_whose_headline_is_withheld_can_still_be_opened(withheld_later):
    row, *_ = gallery.README.read_text().splitlines()
    assert row.startswith("| [01](notebooks/01_a.ipynb) | [A](notebooks/01_a.ipynb) | 5 |")
