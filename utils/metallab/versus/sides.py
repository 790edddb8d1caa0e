"""What is held against what: a git revision, a Python environment, variables, or several of them together.

A side is written as its parts with commas between: ``HEAD~1``, ``/tmp/older``, ``HEAD~1,/tmp/older``,
``.,OMP_WAIT_POLICY=PASSIVE``; ``.`` is the working tree, which also is meant where no revision is named; ``\\,`` is a
comma in a value. A revision is a git worktree, made once and kept: see `worktree`. Both sides run on one machine by
construction, so what differs between them is what the parts say, and what follows from these: `differences` lists it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from metallab import machine, paths, processes
from metallab.isolated import ONE_THREAD
from metallab.tables import Table
from metallab.versus.lockstep import WORKER, Command, environment


class SideError(ValueError):
    """Sides that cannot be had or held against each other; the message says what to do."""


class _GitError(SideError):
    """What git says that it cannot do."""


@dataclass(frozen=True)
class Side:
    """One of the two."""

    text: str
    """As it was written."""
    checkout: Path
    revision: str | None
    """The commit's hash; None for the working tree."""
    python: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    project: Path = Path()
    """Below the checkout, the folder with ``pyproject.toml``."""

    @property
    def source(self) -> Path:
        """The folder with the project's packages."""
        return _source(self.checkout / self.project)

    @property
    def modules(self) -> set[str]:
        """The packages that it has."""
        return {file.parent.name for file in self.source.glob("*/__init__.py")} - {"tests"}

    @property
    def state(self) -> tuple[str | None, bool | None]:
        """The commit, and whether the checkout differs from it; None for both where it is no checkout."""
        return (self.revision, False) if self.revision else machine.git_state(self.checkout)

    @property
    def command(self) -> Command:
        """How its processes are started: its packages come first, then a ``PYTHONPATH`` of its own, then this one's."""
        beside = (folder.parent for folder in sorted(self.checkout.glob("*/pyproject.toml")))
        sources = dict.fromkeys([self.source, *map(_source, beside)])  # a checkout may hold several projects
        folders = [*map(str, sources), self.variables.get("PYTHONPATH"), os.environ.get("PYTHONPATH")]
        path = os.pathsep.join(filter(None, folders))
        return Command(self.python, {**self.variables, "PYTHONPATH": path}, self.checkout)


@dataclass(frozen=True)
class Description:
    """A side, and what its Python says of itself."""

    side: Side
    python: str
    packages: Mapping[str, str]
    modules: Mapping[str, str | None]
    """The file that each of the side's packages would be imported from, as far as can be told before that."""
    device: str
    """``cpu``, ``cuda`` or ``mps``; empty if the one that was wished for is not there."""
    label: str
    """The device's name, where it is no CPU."""


def _source(project: Path) -> Path:
    """The folder with a project's packages: what setuptools is told, or else finds: ``src``, or the project."""
    src = project / "src"
    is_layout = any(src.rglob("*.py")) and not (src / "__init__.py").exists()
    told = [project / name for name in _told_sources(project / "pyproject.toml")]
    return next((folder for folder in told if folder.is_dir()), src if is_layout else project)


def parse(text: str, root: Path) -> Side:
    """A side from its text; ``root`` is the working tree, whose repository has the revisions. Makes the worktree.

    SideError, with what to do, for a part that is nothing of the kind, two of one kind, or a folder that is not there.
    """
    revisions, pythons, variables = [], [], {}
    parts = [part.replace(r"\,", ",") for part in re.split(r"(?<!\\),", text)]
    for part in filter(None, parts):
        name, equals, value = part.partition("=")
        if equals and re.fullmatch(r"[A-Za-z_]\w*", name):
            variables[name] = _folders(value) if name == "PYTHONPATH" else value
        elif part == ".":
            revisions.append(None)
        elif python := _python(Path(part)):
            pythons.append(python)
        else:
            revisions.append(_commit(part, root))
    for what, given in (("revision", revisions), ("environment", pythons)):
        if len(given) > 1:
            raise SideError(f"{text!r} names more than one {what}: one is enough")
    revision = revisions[0] if revisions else None
    python = pythons[0] if pythons else Path(sys.executable)
    checkout = worktree(revision, root) if revision else root
    return Side(text, checkout, revision, python, variables, _project(root))


def describe(side: Side, device: str) -> Description:
    """Ask a side's Python. SideError if it does not answer, or has no NumPy, which hands over outputs."""
    asked = subprocess.run(
        [side.python, WORKER, json.dumps({"modules": ["numpy", *sorted(side.modules)], "device": device})],
        capture_output=True,
        text=True,
        errors="replace",
        cwd=side.checkout,
        env=environment(side.command, 1),
        stdin=subprocess.DEVNULL,
    )
    try:
        told = Description(side, **json.loads(asked.stdout))
    except (ValueError, TypeError):
        last = (asked.stderr.strip().splitlines() or [processes.describe_exit(asked.returncode)])[-1]
        raise SideError(f"{side.python} does not answer as Python would: {last}") from None
    if told.modules["numpy"] is None:
        raise SideError(f"{side.python} has no NumPy, which hands over outputs: install it there")
    return replace(told, modules={name: told.modules[name] for name in sorted(side.modules)})


def assert_held(sides: Mapping[str, Side], threads: int) -> None:
    """SideError if a side sets its own number of threads, where each is held to so many, and to as many cores."""
    for name, side in sides.items():
        if threads and (own := sorted(ONE_THREAD.keys() & side.variables)):
            raise SideError(
                f"{name} ({side.text}) sets {', '.join(own)}, but each side is held to {threads} thread"
                f"{'s' * (threads > 1)} and as many cores, where more threads would only take more of what others "
                "leave: compare numbers of threads with --threads 0"
            )


def assert_comparable(described: Mapping[str, Description]) -> None:
    """SideError if both sides are the same, run other code than they say, or have not one device."""
    for name, description in described.items():
        side = description.side
        for module, file in description.modules.items():
            if file is None or not Path(file).is_relative_to(side.source):
                raise SideError(
                    f"{name} ({side.text}) imports {module} from {file}, and not from {side.source}: "
                    "uninstall it from that environment"
                )
        if not description.device:
            raise SideError(
                f"{name} ({side.text}) has no such device, or no PyTorch that finds it: name another one with --device"
            )
    a, b = described.values()
    variables = [_variables(description.side, described) for description in (a, b)]
    if (a.side.python, a.side.source) == (b.side.python, b.side.source) and variables[0] == variables[1]:
        what = ", ".join(f"{name} from {file}" for name, file in a.modules.items())
        raise SideError(
            f"both sides are the same{f' and import {what}' if what else ''}: name another revision, another "
            "environment or a variable for one of them"
        )
    if (a.device, a.label) != (b.device, b.label):
        raise SideError(
            f"A would run on {a.label or a.device} and B on {b.label or b.device}: name one device that both have "
            "with --device"
        )


def differences(described: Mapping[str, Description]) -> Table:
    """What is not the same on both sides: revision, folder, Python, variables, packages; `MOST_DIFFERENCES` of it."""
    columns = [_facts(description, described) for description in described.values()]
    rows = [[what, *(column.get(what, "none") for column in columns)] for what in set().union(*columns)]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    rows.sort(key=lambda row: (_ORDER.index(row[0].split()[0]), "none" in row, row[0]))
    more = len(rows) - MOST_DIFFERENCES
    a, b = described.values()
    notes = [f"and {more} more"] if more > 0 else [] if rows else ["Nothing differs."]
    if a.side.source == b.side.source and a.side.python != b.side.python and a.modules:
        notes.append(
            f"Both run {', '.join(a.modules)} of {a.side.source}. To compare what environments have installed of it, "
            "start in a folder outside of that one."
        )
    return Table(["what differs", *described], rows[:MOST_DIFFERENCES], note="\n".join(notes))


MOST_DIFFERENCES = 20
_ORDER = ("revision", "folder", "Python", "environment", "variable", "package")
"""What stands first; of packages those that both sides have."""


def _variables(side: Side, described: Mapping[str, Description]) -> dict[str, str]:
    """Of the variables that any side names, those that this side's processes have, however they come by them."""
    named = set().union(*(description.side.variables for description in described.values()))
    has = environment(side.command, 0)
    return {name: has[name] for name in named & has.keys()}


def _facts(description: Description, described: Mapping[str, Description]) -> dict[str, str]:
    side = description.side
    facts = {"revision": side.revision[:12] if side.revision else "working tree", "Python": description.python}
    facts |= {"folder": paths.shown(side.checkout), "environment": paths.shown(side.python)}
    facts |= {f"variable {name}": value for name, value in _variables(side, described).items()}
    return facts | {f"package {name}": version for name, version in sorted(description.packages.items())}


def repository(folder: Path) -> Path:
    """The checkout that a folder lies in; the folder itself where that is none."""
    try:
        return Path(_git(folder, "rev-parse", "--show-toplevel"))
    except SideError:
        return folder


def _project(root: Path) -> Path:
    """Below the working tree, the project that the current folder belongs to; the tree itself if none is nearer."""
    here = Path.cwd()
    inner = [folder for folder in (here, *here.parents) if folder.is_relative_to(root)]
    return next((folder for folder in inner if (folder / "pyproject.toml").is_file()), root).relative_to(root)


def worktree(revision: str, root: Path) -> Path:
    """The kept worktree of a commit, made if it is not there. SideError if somebody has changed it, or git fails.

    Metal Lab's own lie under its ``build/``, those of another repository in the user's cache folder
    (``XDG_CACHE_HOME``, or ``~/.cache``). A repository that was moved gets new ones.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metallab"
    where = hashlib.sha256(os.fsencode(root)).hexdigest()[:8]
    kept = paths.BUILD if root == paths.ROOT else cache
    folder = kept / "versus" / "worktrees" / f"{root.name}-{where}-{revision[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "a") as lock:  # another command may be making it
        fcntl.flock(lock, fcntl.LOCK_EX)  # not filelock, which measuring alone does not install
        if not (folder / ".git").exists():
            _git(root, "worktree", "prune")
            _git(root, "worktree", "add", "--detach", "--quiet", str(folder), revision)
    changed = _git(folder, "status", "--porcelain", "--", ".", ":(exclude,glob)**/__pycache__/**")
    if _git(folder, "rev-parse", "HEAD") != revision or changed:
        raise SideError(f"{folder} is not what was committed as {revision[:12]}: remove that folder, and ask again")
    return folder


def _folders(text: str) -> str:
    """Return a ``PYTHONPATH`` as seen from the current folder, which is not that of a side's processes."""
    folders = [os.path.abspath(os.path.expanduser(folder)) for folder in text.split(os.pathsep) if folder]
    if lost := [folder for folder in folders if not os.path.exists(folder)]:
        raise SideError(f"PYTHONPATH names {lost[0]}, which is not there: name a folder that is")
    return os.pathsep.join(folders)


def _told_sources(file: Path) -> list[str]:
    """Folders with packages that a project's file names to setuptools. SideError if the file cannot be read."""
    try:
        tools = tomllib.loads(file.read_text("utf-8")).get("tool", {}) if file.is_file() else {}
    except ValueError as error:
        raise SideError(f"{file}: {error}; fix it, or name a revision where it is right") from error
    told = tools.get("setuptools", {})
    packages = told.get("packages")  # a table, or a list of names
    where = packages.get("find", {}).get("where", []) if isinstance(packages, dict) else []
    return [folder for name, folder in told.get("package-dir", {}).items() if not name] + where


def _python(path: Path) -> Path | None:
    """The Python of an environment, or that file itself; None if it is neither. A venv's is a link, and kept."""
    for file in (path / "bin" / "python", path):
        if file.is_file() and os.access(file, os.X_OK):
            return Path(os.path.abspath(file))
    return None


def _commit(part: str, root: Path) -> str:
    try:
        return _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{part}^{{commit}}")
    except _GitError:
        whose = f"of {root}" if (root / ".git").exists() else f"({root} lies in no git repository)"
        name = part if part.isidentifier() else "NAME"
        raise SideError(
            f"{part!r} is no revision {whose}, and no Python or folder of one; a variable is {name}=value"
        ) from None


def _git(folder: Path, *arguments: str) -> str:
    """What git answers. `_GitError`, with its last words, if it fails; SideError if there is no git."""
    # within a hook git names the repository by variables
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", folder, *arguments], capture_output=True, text=True, env=variables, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise SideError("git is needed for revisions, and is not there: install it") from None
    if done.returncode:
        raise _GitError(f"git {arguments[0]}: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")
    return done.stdout.strip()
