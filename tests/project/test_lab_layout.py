"""JupyterLab's first layout: it is written once, and what JupyterLab saved since stays."""

from __future__ import annotations

import json

import pytest
from jupyterlab_server.workspaces_handler import WorkspacesManager

from metallab import lab_layout


def test_the_first_layout_makes_the_file_browser_wide(tmp_path):
    assert lab_layout.main([str(tmp_path)]) == 0
    saved = WorkspacesManager(str(tmp_path)).load(lab_layout.NAME)
    assert saved["data"]["layout-restorer:data"]["relativeSizes"][0] > 0.2


def test_a_layout_that_jupyterlab_saved_stays(tmp_path):
    saved = {"data": {"mine": 1}, "metadata": {"id": lab_layout.NAME}}
    WorkspacesManager(str(tmp_path)).save(lab_layout.NAME, json.dumps(saved))
    assert lab_layout.write_first(tmp_path) is False
    assert WorkspacesManager(str(tmp_path)).load(lab_layout.NAME)["data"] == {"mine": 1}


@pytest.mark.parametrize(
    "arguments", [[], ["one", "two"], ["/dev/null/layouts"]], ids=["none", "two", "no-folder"]
)
def test_what_cannot_be_written_ends_with_2(arguments):
    assert lab_layout.main(arguments) == 2
