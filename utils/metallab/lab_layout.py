"""The layout in which JupyterLab shows the pages first: its file browser is wide enough for their names.

JupyterLab has no setting for that width. It keeps it in a workspace, a file, together with what is open. So the copies
of the pages have workspaces of their own: ``python -m metallab.lab_layout FOLDER`` writes the first one, unless
JupyterLab has written a later one there. What is open in another project's JupyterLab then stays apart, too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

NAME = "default"
"""The workspace that JupyterLab opens where an address names none."""
SHARES = (0.27, 0.73, 0.0)
"""Of the window's width: the file browser and what else is on the left, the pages, and what is on the right."""


def make_layout() -> str:
    """Return a workspace as JupyterLab writes it, with nothing open."""
    left = {"collapsed": False, "visible": True, "current": "filebrowser"}
    layout = {"left": left, "right": {"collapsed": True, "visible": True}, "relativeSizes": SHARES}
    return json.dumps({"data": {"layout-restorer:data": layout}, "metadata": {"id": NAME}})


def write_first(folder: Path) -> bool:
    """Write the layout into a folder of workspaces that has none of this name; return whether it was written.

    Parameters
    ----------
    folder
        For JupyterLab's option ``LabApp.workspaces_dir``.

    Raises
    ------
    OSError
        If the folder takes no files.
    """
    from jupyterlab_server.workspaces_handler import WorkspacesManager

    workspaces = WorkspacesManager(str(folder))
    if workspaces.load(NAME)["data"]:
        return False
    workspaces.save(NAME, make_layout())
    return True


def main(arguments: Sequence[str]) -> int:
    """Return 0, or 2 with a message."""
    if len(arguments) != 1:
        print("usage: python -m metallab.lab_layout FOLDER", file=sys.stderr)
        return 2

    try:
        write_first(Path(arguments[0]))
    except OSError as error:
        print(f"lab_layout: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
