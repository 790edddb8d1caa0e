"""Pages of HTML for whoever teaches a class at the hub: slips to log in with, to print, and everybody's progress.

What a student wrote is text on them: escaped, and `POLICY` lets no script run, whatever a saved page holds.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from metallab import paths
from metallab.classroom import progress

if TYPE_CHECKING:
    import jinja2

TITLE = "Metal Lab"
"""What pages are called where a class has no name."""
SLIPS = Path("class", "slips.html")
"""Where the slips lie, inside of `paths.BUILD`."""
SECONDS_UNTIL_SAVED = 4
"""After so many seconds JupyterLab saves what a student has changed or run."""
SECONDS = 4
"""After so many seconds a browser asks for the page of progress again."""

_HERE = Path(__file__).parent


def _read_style() -> str:
    files = (paths.PALETTE, _HERE / "style.css")
    return "".join(file.read_text(encoding="utf-8") for file in files)


def _digest(style: str) -> str:
    """Return the digest by which a policy knows a style sheet that stands in the page."""
    return base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()


@functools.cache
def make_policy() -> str:
    """Return the Content-Security-Policy of these pages: our own style sheet, and nothing else.

    No script runs, nothing is loaded, nothing is sent, and no other page can frame them.
    """
    style = f"style-src 'sha256-{_digest(_read_style())}'"
    return (
        f"default-src 'none'; {style}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


@functools.cache
def _load_template(name: str) -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def render_progress(
    students: Sequence[progress.Student],
    now: datetime,
    *,
    title: str = TITLE,
    is_live: bool = True,
) -> str:
    """Return the page of a class's progress.

    Parameters
    ----------
    students
        As `metallab.classroom.progress.read_room` returns them.
    now
        When they were read.
    title
        The name of the class.
    is_live
        Whether the browser asks for it again; the page then links to one that stays.

    Returns
    -------
    str
        HTML, to be served with `make_policy`.
    """
    return _load_template("progress.html.j2").render(
        students=students,
        numbers=progress.find_columns(students),
        marks={**progress.MARKS, "no page": progress.NO_PAGE},
        describe_wrong=progress.describe_wrong,
        now=now,
        title=title,
        is_live=is_live,
        seconds=SECONDS,
        seconds_until_saved=SECONDS_UNTIL_SAVED,
        style=_read_style(),
    )


def render_slips(passwords: Mapping[str, str], address: str, title: str = TITLE) -> str:
    """Return a page with a slip for each student: where to go, name and password.

    Parameters
    ----------
    passwords
        By name; the teacher's is left out.
    address
        Where the hub is found.
    title
        The name of the class.
    """
    of_students = {name: word for name, word in passwords.items() if name != progress.TEACHER}
    return _load_template("slips.html.j2").render(
        passwords=of_students, address=address, title=title, style=_read_style()
    )


def write_slips(
    passwords: Mapping[str, str], address: str, build: Path | None = None, *, title: str = TITLE
) -> Path:
    """Write the slips into the build folder, for their owner alone to read, and return the file.

    It is never open to others, not even while it is written: it begins in a new file with these rights. OSError if the
    folder takes no files.

    Parameters
    ----------
    passwords
        By name.
    address
        Where the hub is reached.
    build
        The folder in place of ``build``.
    title
        The name of the class.
    """
    file = (build or paths.BUILD) / SLIPS
    paths.make_folder(file.parent)
    file.parent.chmod(0o700)

    temporary = file.with_name(f".{file.name}.part")
    temporary.unlink(missing_ok=True)
    opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(opened, "w", encoding="utf-8") as content:
        content.write(render_slips(passwords, address, title))

    os.replace(temporary, file)
    return file
