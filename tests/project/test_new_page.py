"""`make page` writes a notebook that runs, and its rows where they belong."""

from __future__ import annotations

import shutil

import pytest
from one_page import run_notebook

from metallab import new_page, paths


def test_a_new_page_runs_and_has_its_rows(tmp_path, monkeypatch, capsys):
    (tmp_path / "docs").mkdir()
    for document, _ in new_page.LISTS:
        shutil.copy(paths.ROOT / document, tmp_path / document)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "notebooks")
    paths.NOTEBOOKS.mkdir()
    assert new_page.main(["03c_do_this"]) == 0
    assert "make test ONLY=03c" in capsys.readouterr().out
    for document, folder in new_page.LISTS:
        lines = (tmp_path / document).read_text("utf-8").splitlines()
        begin = f"| 03c | [Do this]({folder}03c_do_this.ipynb) |"
        row = next(i for i, line in enumerate(lines) if line.startswith(begin))
        assert (lines[row - 1][:5], lines[row + 1][:5]) == ("| 03 ", "| 04 ")
        assert lines[row].count("|") == lines[row - 1].count("|")
    result = run_notebook(paths.NOTEBOOKS / "03c_do_this.ipynb", device="cpu", out=tmp_path / "out")
    assert result.status == "passed", result.reason


@pytest.mark.parametrize("name", ["03c", "make", "3_x", "01_time_it_right", "01_other_words"])
def test_bad_names_and_existing_pages_are_refused(name, capsys):
    with pytest.raises(SystemExit) as ended:
        new_page.main([name])
    assert ended.value.code == 2
    assert name in capsys.readouterr().err
