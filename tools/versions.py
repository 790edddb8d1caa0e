"""Write the table of versions in docs/setup.md: what is pinned, why, and what the newest was on which day.

``python tools/versions.py`` asks the package registry that pip and uv are set up for about every package of the table;
with names, about these alone; with ``--offline`` about none. What it heard is kept in ``tools/newest.json``.

The version is that of a lock. The reason is the comment beside the package in pyproject.toml, so that it is written
once. *Newest* means the newest with a wheel for a Mac with macOS 26 and Python 3.12, the newest that set-up takes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from metallab import paths

PAGE = paths.ROOT / "docs" / "setup.md"
PROJECT = paths.ROOT / "pyproject.toml"
NEWEST = paths.ROOT / "tools" / "newest.json"
BEGIN, END = "<!-- versions: made by tools/versions.py -->", "<!-- versions: end -->"

ASKED_FOR = {"jupyterlab", "matplotlib", "onnxruntime", "pyperf", "torchao", "transformers"}
"""Packages that have a row although nothing here needs a certain version of them."""

PINNING = {"==", "<", "<=", "~="}
"""Operators of a requirement that keep a newer version out."""

NEWEST_PYTHON = "3.12"
NEWEST_MACOS = "26.0"

REPOSITORIES = {
    "coremltools": "apple/coremltools",
    "keras": "keras-team/keras",
    "tensorflow": "tensorflow/tensorflow",
}
"""On GitHub, of the projects whose issues the reasons name, such as keras#21668."""


class NotAnswered(Exception):
    """The registry cannot be asked, or does not know a package."""


class NotWritten(Exception):
    """The table cannot be made; the message says why."""


@dataclass(frozen=True)
class Row:
    """A package in one environment."""

    package: str
    environment: str
    """Its folder, such as ``.venv``."""
    only: tuple[str, ...]
    """What the requirement is restricted to, such as a Mac."""
    version: str
    exact: bool
    """Whether pyproject.toml keeps newer ones out; the lock alone does otherwise."""
    why: str


@dataclass(frozen=True)
class Newest:
    """The newest version of a package on a day, in the form 2026-11-29."""

    version: str
    day: str


# ---------------------------------------------------------------- what is pinned


def rows(project: str, locks: dict[str, str]) -> list[Row]:
    """Return the rows of the table, in the order of pyproject.toml.

    ``project`` is the text of pyproject.toml, ``locks`` the texts of the locks, by the names that `sections` gives.
    A package that an environment's requirements name several times has one row for each of its versions there. One that
    is not pinned has a row for the first environment alone.
    """
    reasons = comments(project)
    found: dict[tuple[str, str, str], list[tuple[Requirement, str]]] = {}
    for lock, environment, texts in sections(project):
        elsewhere = {package for package, folder, _ in found if folder != environment}
        for text in texts:
            requirement = Requirement(text)
            name = canonicalize_name(requirement.name)
            if not is_pinned(requirement) and (name not in ASKED_FOR or name in elsewhere):
                continue
            version = find_version(requirement, locks[lock])
            found.setdefault((name, environment, version), []).append((requirement, reasons[text]))

    return [row(*key, named) for key, named in found.items()]


def row(package: str, environment: str, version: str, named: list[tuple[Requirement, str]]) -> Row:
    """Return the row of a package from the requirements that name it; a pin's reason hides what it is used for."""
    pins = [(requirement, why) for requirement, why in named if is_pinned(requirement)]
    chosen = pins or named[:1]
    why = "; ".join(dict.fromkeys(why for _, why in chosen))
    return Row(package, environment, restrictions(chosen[0][0]), version, bool(pins), why)


def sections(project: str) -> list[tuple[str, str, list[str]]]:
    """Return (lock, folder of the environment, requirements) for each lock."""
    content = tomllib.loads(project)
    extras = content["project"]["optional-dependencies"]
    main = [*content["project"]["dependencies"]]
    for listed in extras.values():
        main += listed
    groups = content["dependency-groups"]
    return [
        ("lock.txt", ".venv", main),
        ("lock-jax.txt", ".venv-jax", groups["jax"]),
        ("lock-coreai.txt", ".venv-coreai", groups["coreai"]),
    ]


def comments(project: str) -> dict[str, str]:
    """Return the comment behind each requirement of pyproject.toml; of one that is listed twice, the first.

    A comment is of all requirements in its line. One without a comment has an empty text.
    """
    found: dict[str, str] = {}
    for line in project.splitlines():
        listed = re.fullmatch(r'[^"#]*((?:"[^"]*"[^"#]*)+)(?:#\s*(.*))?', line)
        if listed is None:
            continue
        for requirement in re.findall(r'"([^"]*)"', listed[1]):
            if not found.get(requirement):
                found[requirement] = listed[2] or ""
    return found


def is_pinned(requirement: Requirement) -> bool:
    """Return whether the requirement keeps a newer version out."""
    return any(each.operator in PINNING for each in requirement.specifier)


def find_version(requirement: Requirement, lock: str) -> str:
    """Return the version that a lock has of what is required; several, with commas, where it differs by Python.

    ValueError if it has none that the requirement allows.
    """
    name = canonicalize_name(requirement.name)
    versions = re.findall(rf"^{re.escape(name)}==([\w.+]+)", lock, re.MULTILINE)
    fitting = [each for each in versions if requirement.specifier.contains(each, prereleases=True)]
    if not fitting:
        raise ValueError(f"no lock has {requirement}: run make lock")
    return ", ".join(fitting)


def restrictions(requirement: Requirement) -> tuple[str, ...]:
    """Return in words where a requirement holds: on a Mac, on some versions of Python."""
    marker = str(requirement.marker or "")
    words = []
    if re.search(r'sys_platform == "darwin"', marker):
        words.append("Mac")
    if python := re.search(r'python_version (>=|<) "([\d.]+)"', marker):
        bound = "from" if python[1] == ">=" else "before"
        words.append(f"Python {bound} {python[2]}")
    return tuple(words)


# ---------------------------------------------------------------- what is the newest


def ask(packages: list[str]) -> dict[str, str]:
    """Return the newest version of each package that has a wheel for a Mac, by name as PyPI normalizes it.

    NotAnswered if the registry does not answer, or does not know one of them.
    """
    command = [sys.executable, "-I", "utils/metallab/bootstrap.py", "uv", "pip", "compile", "-"]
    # --no-deps: each package by itself, whatever the others want
    command += ["--no-deps", "--only-binary=:all:", "--quiet", "--no-header", "--no-annotate"]
    # resolved for NEWEST_PYTHON, which need not be here: any Python does for that
    command += ["--no-python-downloads", f"--python={sys.executable}"]
    command += [f"--python-version={NEWEST_PYTHON}", "--python-platform=aarch64-apple-darwin"]

    done = subprocess.run(
        command,
        cwd=paths.ROOT,
        env=os.environ | {"MACOSX_DEPLOYMENT_TARGET": NEWEST_MACOS},
        input="\n".join(packages),
        capture_output=True,
        text=True,
    )

    if done.returncode != 0:
        raise NotAnswered(done.stderr.strip() or "uv failed without a word")
    return dict(re.findall(r"^([\w.-]+)==([\w.+]+)", done.stdout, re.MULTILINE))


def load_newest() -> dict[str, Newest]:
    """Return what the registry answered when it was asked last, by package."""
    if not NEWEST.exists():
        return {}
    stored = json.loads(NEWEST.read_text(encoding="utf-8"))
    return {package: Newest(**each) for package, each in stored.items()}


def save_newest(newest: dict[str, Newest]) -> None:
    """Write what the registry answered, a line for each package."""
    lines = [
        f'  {json.dumps(package)}: {{"version": "{each.version}", "day": "{each.day}"}}'
        for package, each in sorted(newest.items())
    ]
    NEWEST.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


# ---------------------------------------------------------------- the table


def table(listed: list[Row], newest: dict[str, Newest]) -> str:
    """Return the table in Markdown: a line for each row, with the newest version of its package.

    Behind a version that the lock alone holds stands *(lock)*. KeyError for a package without a newest version.
    """
    lines = [
        "| package | where | version | why | newest | asked on |",
        "|---|---|---|---|---|---|",
    ]
    for each in listed:
        where = ", ".join([f"`{each.environment}`", *each.only])
        version = each.version if each.exact else f"{each.version} (lock)"
        seen = newest[each.package]
        package = f"[{each.package}](https://pypi.org/project/{each.package}/)"
        cells = [package, where, version, link_issues(each.why), seen.version, seen.day]
        # 92 is the backslash, by which a | does not end a cell
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def link_issues(why: str) -> str:
    """Return a reason whose issues, such as keras#21668, are links."""

    def link(issue: re.Match) -> str:
        return f"[{issue[0]}](https://github.com/{REPOSITORIES[issue[1]]}/issues/{issue[2]})"

    return re.sub(rf"\b({'|'.join(REPOSITORIES)})#(\d+)", link, why)


def replace_table(page: str, written: str) -> str:
    """Return the text of a page with another table between the two marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"docs/setup.md lacks {BEGIN} or {END}")
    return f"{before}{BEGIN}\n\n{written}\n\n{END}{after}"


def current_rows() -> list[Row]:
    """Return the rows of this checkout."""
    project = PROJECT.read_text(encoding="utf-8")
    locks = {
        lock: (paths.ROOT / lock).read_text(encoding="utf-8") for lock, _, _ in sections(project)
    }
    return rows(project, locks)


def read_arguments(given: list[str] | None) -> argparse.Namespace:
    """Return what the command asks for."""
    parser = argparse.ArgumentParser(
        prog="python tools/versions.py", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "package", nargs="*", help="ask about this one alone (default: about all of the table)"
    )
    parser.add_argument(
        "--offline", action="store_true", help="ask about none: write the table with what is known"
    )
    return parser.parse_args(given)


def find_newest(listed: Sequence[Row], named: Sequence[str], is_offline: bool) -> dict[str, Newest]:
    """Return the newest version of each package of the table, as far as the registry is asked, and as was known.

    Parameters
    ----------
    listed
        The rows of the table.
    named
        Packages to ask about; empty for all of the table.
    is_offline
        Ask about none.

    Raises
    ------
    NotWritten
        For a package without a row, where the registry does not answer, and for a package that nobody has asked about.
    """
    newest = load_newest()
    packages = list(dict.fromkeys(each.package for each in listed))
    asked: list[str] = [canonicalize_name(name) for name in named] or packages
    if is_offline:
        asked = []

    unknown = set(asked) - set(packages)
    if unknown:
        raise NotWritten(f"The table has no row of {', '.join(sorted(unknown))}.")

    if asked:
        today = datetime.date.today().isoformat()
        try:
            answers = ask(asked)
        except NotAnswered as why:
            raise NotWritten(
                f"The package registry did not answer; nothing was changed.\n{why}"
            ) from why
        newest |= {package: Newest(version, today) for package, version in answers.items()}
        # a package that left the table is forgotten
        newest = {package: newest[package] for package in newest if package in packages}

    missing = [package for package in packages if package not in newest]
    if missing:
        raise NotWritten(
            f"Nobody has asked yet about {', '.join(missing)}: run it without --offline."
        )
    return newest


def main(given: list[str] | None = None) -> int:
    """Write the table; return 0, or 2 with a message if it cannot be done, which changes nothing."""
    wish = read_arguments(given)

    try:
        listed = current_rows()
        newest = find_newest(listed, wish.package, wish.offline)
        page = replace_table(PAGE.read_text("utf-8"), table(listed, newest))
    except NotWritten as why:
        print(why, file=sys.stderr)
        return 2
    except ValueError as why:
        print(f"The table was not written: {why}", file=sys.stderr)
        return 2

    save_newest(newest)
    PAGE.write_text(page, encoding="utf-8")
    print(f"{len(listed)} rows in {PAGE.relative_to(paths.ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
