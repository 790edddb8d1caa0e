"""What a student's server begins with: ``student_server.py LESSONS [options of jupyterhub-singleuser]``.

It runs as the student, in the student's folder, so that nothing here is done with anybody else's rights.
"""

import contextlib
import json
import os
import sys
from pathlib import Path

from metallab import workshop


def give(lessons: Path, folder: Path) -> None:
    """Copy the lessons that are new to a folder; what a student has edited or run stays as it is."""
    for lesson in sorted(lessons.glob("*.ipynb")):
        workshop.give(json.loads(lesson.read_text(encoding="utf-8")), folder / lesson.name)


def keep_temporary_files(folder: Path) -> None:
    """In the student's folder. MLX loads what lies compiled there under a name that everybody knows: never share it."""
    temporary = folder / ".tmp"
    temporary.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = str(temporary)


def main(lessons: str, *options: str) -> None:
    """Give the lessons, then become the server."""
    os.umask(0o077)
    with contextlib.suppress(OSError):  # Linux: if memory runs out a student's process ends, and not the hub
        Path("/proc/self/oom_score_adj").write_text("500")
    keep_temporary_files(Path.cwd())
    give(Path(lessons), Path.cwd())
    os.execv(sys.executable, [sys.executable, "-m", "jupyterhub.singleuser", *options])


if __name__ == "__main__":
    main(*sys.argv[1:])
