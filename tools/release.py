"""Set the number of a release in all files that have it, and begin its part of the changelog.

    python tools/release.py 1.1.0 [--dry-run]

What is listed under *Unreleased* in CHANGELOG.md gets the release as its heading. The number is changed in the three
packages and in CITATION.cff, which a test compares, and in the names of the wheels that documents install. Then what is
left to do is printed. The exit code is 2 if a file is not as expected or the number is not larger; nothing was changed
then.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.version import Version

from metallab import paths

CHANGELOG = "CHANGELOG.md"
NUMBERED = (
    "pyproject.toml",
    "metalsim/pyproject.toml",
    "metalsim/objc/pyproject.toml",
    "CITATION.cff",
)
NUMBER = re.compile(r'^(version(?: = "|: ))(\d+\.\d+\.\d+)', re.MULTILINE)
NAMING_WHEELS = (
    *("docs/your_own_code.md", "metalsim/README.md", "metalsim/objc/README.md", "utils/README.md"),
    "tests/project/commands.toml",
)
WHEEL = re.compile(r"\b(metal_lab|metalsim|metalsim_objc)-\d+\.\d+\.\d+-py3-none-any\.whl")
UNRELEASED = "## [Unreleased]\n"
NEVER_RELEASED = re.compile(r"^Nothing has been released yet.*\n", re.MULTILINE)

FILES = (*NUMBERED, *NAMING_WHEELS, CHANGELOG)

NEXT = """\
1. git diff, then git add -A && git commit -m "Metal Lab {0}" && git push: linux.yml tests a fresh clone, book.yml
   makes the book. Without a host: make test book and make test SUITE=cpu in a clone.
2. When they are green: git tag -a v{0} -m "Metal Lab {0}" && git push --follow-tags
3. .venv/bin/python tools/try_pages.py: both wheels, and pages that install them, in build/try."""


class NotDone(Exception):
    """A file is not as expected, or the number is not larger: nothing is changed."""


def set_number(text: str, number: str) -> str:
    """Return the text of a file with another number.

    Raises
    ------
    NotDone
        If the file has none, or one that is not smaller.
    """
    found = NUMBER.search(text)
    if found is None:
        raise NotDone("no line begins with version")
    if Version(number) <= Version(found[2]):
        raise NotDone(f"{number} is not larger than {found[2]}")
    return NUMBER.sub(rf"\g<1>{number}", text, count=1)


def name_wheels(text: str, number: str) -> str:
    """Return the text of a document with the names that the wheels will have.

    Raises
    ------
    NotDone
        If it names none.
    """
    if WHEEL.search(text) is None:
        raise NotDone("names no wheel of ours")
    return WHEEL.sub(rf"\g<1>-{number}-py3-none-any.whl", text)


def begin_part(changelog: str, number: str, day: str) -> str:
    """Return the changelog with a heading for the release, above what was unreleased.

    Raises
    ------
    NotDone
        If nothing is unreleased, or the release is there.
    """
    if f"## [{number}]" in changelog:
        raise NotDone(f"{number} has its part")
    if UNRELEASED not in changelog:
        raise NotDone(f"there is no {UNRELEASED.strip()}")

    changelog = NEVER_RELEASED.sub("", changelog)
    return changelog.replace(UNRELEASED, f"{UNRELEASED}\n## [{number}] - {day}\n", 1)


def change(file: str, text: str, number: str, day: str) -> str:
    """Return the new text of a file."""
    if file == CHANGELOG:
        return begin_part(text, number, day)
    if file in NAMING_WHEELS:
        return name_wheels(text, number)
    return set_number(text, number)


def plan(texts: Mapping[str, str], number: str, day: str) -> dict[str, str]:
    """Return the new text of each file, by name. NotDone with the file's name if one is not as expected."""
    changed = {}
    for file, text in texts.items():
        try:
            changed[file] = change(file, text, number, day)
        except NotDone as error:
            raise NotDone(f"{file}: {error}") from error
    return changed


def main(given: Sequence[str] | None = None, root: Path = paths.ROOT) -> int:
    """Write the number into `FILES` and print what is left to do; return 0, or 2 with a message if it cannot be done.

    With ``--dry-run`` the same is printed, and no file is changed.
    """
    parser = argparse.ArgumentParser(
        prog="python tools/release.py", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("number", help="such as 1.1.0")
    parser.add_argument(
        "--dry-run", action="store_true", help="print all of it, and change nothing"
    )
    wish = parser.parse_args(given)
    if not re.fullmatch(r"\d+\.\d+\.\d+", wish.number):
        parser.error(f"{wish.number} is no version with three numbers, such as 1.1.0")

    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    try:
        texts = {file: (root / file).read_text(encoding="utf-8") for file in FILES}
        changed = plan(texts, wish.number, day)
        if not wish.dry_run:
            for file, text in changed.items():
                (root / file).write_text(text, encoding="utf-8")
    except (NotDone, OSError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 2

    print("Would change:" if wish.dry_run else "Changed:")
    for file in changed:
        print(f"    {file}")
    print(f"\nThen:\n{NEXT.format(wish.number)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
