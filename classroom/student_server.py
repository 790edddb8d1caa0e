"""What a student's server begins with: ``student_server.py LESSONS [options of jupyterhub-singleuser]``.

It runs as the student, in the student's folder, so that nothing here is done with anybody else's rights.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from metallab.authoring import contents, workshop

LAB_SETTINGS = Path(__file__).resolve().parent / "lab"
"""JupyterLab's settings where a student has none: Markdown is shown as it reads."""


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


def main(lessons: str, *options: str) -> None:
    """Give the lessons, then become the server."""
    os.umask(0o077)
    # Linux has this file: if memory runs out a student's process ends, and not the hub
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")

    folder = Path.cwd()
    keep_temporary_files(folder)
    give(Path(lessons), folder)
    choose_first_page(folder)

    settings = f"--LabApp.app_settings_dir={LAB_SETTINGS}"
    os.execv(sys.executable, [sys.executable, "-m", "jupyterhub.singleuser", settings, *options])


if __name__ == "__main__":
    main(*sys.argv[1:])
