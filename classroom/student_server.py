"""What a student's server begins with: ``student_server.py LESSONS [options of jupyterhub-singleuser]``.

It runs as the student, in the student's folder, so that nothing here is done with anybody else's rights.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

from metallab import lab_layout, paths
from metallab.authoring import contents, workshop
from metallab.classroom import class_pages

LAB_SETTINGS = Path(__file__).resolve().parent / "lab" / "overrides.json"
"""JupyterLab's settings where a student has none, as `make lab` has them: Markdown is shown as it reads."""
DOCUMENTS = "@jupyterlab/docmanager-extension:plugin"
"""What of JupyterLab opens and saves documents."""


def give(lessons: Path, folder: Path) -> None:
    """Copy what is new of the lessons and their documents to a folder; what a student changed or ran stays as it is."""
    workshop.hand_out(lessons, folder)


def choose_first_page(folder: Path) -> None:
    """Let JupyterLab open at the page of contents. A folder of lessons that a teacher made need not have one."""
    if (folder / contents.FILE).is_file():
        os.environ["JUPYTERHUB_DEFAULT_URL"] = f"/lab/tree/{contents.FILE}"


def keep_temporary_files(folder: Path) -> None:
    """Keep them in the student's folder.

    MLX loads what lies compiled there under a name that everybody knows: never share it.
    """
    temporary = folder / ".tmp"
    temporary.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = str(temporary)


def write_settings(folder: Path) -> Path:
    """Write JupyterLab's settings into a student's folder; return the folder in which they lie.

    They are those of `make lab`, and pages are saved soon, since the teacher's page of progress shows what was saved.
    """
    settings = json.loads(LAB_SETTINGS.read_text(encoding="utf-8"))
    settings[DOCUMENTS]["autosaveInterval"] = class_pages.SECONDS_UNTIL_SAVED

    ours = folder / ".tmp" / "lab"
    ours.mkdir(parents=True, exist_ok=True)
    paths.write_atomically(ours / LAB_SETTINGS.name, json.dumps(settings, indent=2))
    return ours


def main(lessons: str, *options: str) -> None:
    """Give the lessons to the student in whose folder this runs, then become the server, with these options of its own.

    The folder gets JupyterLab's settings and a first layout as well, and what is temporary is kept there.
    """
    os.umask(0o077)  # no other student reads what is written
    # Linux has this file: if memory runs out a student's process ends, and not the hub
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")

    folder = Path.cwd()
    keep_temporary_files(folder)
    give(Path(lessons), folder)
    choose_first_page(folder)

    layouts = folder / ".lab"
    lab_layout.write_first(layouts)
    of_lab = [
        f"--LabApp.app_settings_dir={write_settings(folder)}",
        f"--LabApp.workspaces_dir={layouts}",
    ]
    command = [sys.executable, "-m", "jupyterhub.singleuser", *of_lab, *options]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main(*sys.argv[1:])
