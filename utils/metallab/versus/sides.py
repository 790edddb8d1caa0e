r"""The two sides of a comparison: a git revision, a Python environment, variables, or several of them together.

A side is written as its parts with commas between: ``HEAD~1``, ``/tmp/older``, ``HEAD~1,/tmp/older``,
``.,OMP_WAIT_POLICY=PASSIVE``. ``.`` is the working tree, which is also used where no revision is named; ``\,`` is a
comma in a value. A revision is a git worktree, made once and kept: see `worktree`.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
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

MOST_DIFFERENCES = 20
"""Rows of the table of what differs."""


class SideError(ValueError):
    """Sides that do not exist or cannot be compared; the message says what to do."""


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
    """The folder with ``pyproject.toml``, below the checkout."""
    version: str = ""
    """Of its Python. This and what follows is what `describe` asks of that Python."""
    packages: Mapping[str, str] = field(default_factory=dict)
    imported: Mapping[str, str | None] = field(default_factory=dict)
    """The file that NumPy and each of its packages would be imported from."""
    device: str = ""
    """``cpu``, ``cuda`` or ``mps``; empty if the requested one is not there."""
    label: str = ""
    """The device's name; empty for a CPU."""

    @property
    def source(self) -> Path:
        """The folder with the project's packages."""
        return _source(self.checkout / self.project)

    @property
    def modules(self) -> set[str]:
        """The names of its packages."""
        return {file.parent.name for file in self.source.glob("*/__init__.py")} - {"tests"}

    @property
    def state(self) -> tuple[str | None, bool | None]:
        """The commit, and whether the checkout differs from it; None for both outside of a repository."""
        return (self.revision, False) if self.revision else machine.git_state(self.checkout)

    @property
    def command(self) -> Command:
        """How its processes are started: its packages come before any other ``PYTHONPATH``."""
        beside = (_source(file.parent) for file in sorted(self.checkout.glob("*/pyproject.toml")))
        folders = dict.fromkeys(map(str, (self.source, *beside)))
        inherited = (self.variables.get("PYTHONPATH"), os.environ.get("PYTHONPATH"))
        path = os.pathsep.join(filter(None, (*folders, *inherited)))
        return Command(self.python, {**self.variables, "PYTHONPATH": path}, self.checkout)


def _source(project: Path) -> Path:
    """Return the folder with a project's packages, as setuptools finds it: as configured, ``src``, or the project."""
    folders = [project / name for name in _read_sources(project)]

    src = project / "src"
    is_layout = any(src.rglob("*.py")) and not (src / "__init__.py").exists()
    if is_layout:
        folders.append(src)
    return next((folder for folder in folders if folder.is_dir()), project)


def _read_sources(project: Path) -> list[str]:
    """Return the folders in which a project tells setuptools to look for packages."""
    file = project / "pyproject.toml"
    if not file.is_file():
        return []
    try:
        tools = tomllib.loads(file.read_text("utf-8")).get("tool", {})
    except ValueError as error:
        raise SideError(f"{file}: {error}; fix it, or name a revision where it is right") from error

    settings = tools.get("setuptools", {})
    # the empty name stands for all packages
    folders = [folder for name, folder in settings.get("package-dir", {}).items() if not name]
    packages = settings.get("packages")
    if isinstance(packages, dict):  # else it is a list of names
        folders += packages.get("find", {}).get("where", [])
    return folders


def parse(text: str, root: Path) -> Side:
    """Return the side that a text describes, and make its worktree; ``root`` is the working tree.

    Without a revision it is the working tree, without an environment this Python. SideError for an unknown part, two
    revisions or environments, a folder of ``PYTHONPATH`` that does not exist, or where no worktree can be made.
    """
    revisions: list[str | None] = []
    pythons: list[Path] = []
    variables: dict[str, str] = {}

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

    if len(revisions) > 1:
        raise SideError(f"{text!r} names more than one revision: one is enough")
    if len(pythons) > 1:
        raise SideError(f"{text!r} names more than one environment: one is enough")

    revision = revisions[0] if revisions else None
    return Side(
        text,
        checkout=worktree(revision, root) if revision else root,
        revision=revision,
        python=pythons[0] if pythons else Path(sys.executable),
        variables=variables,
        project=_project(root),
    )


def describe(side: Side, device: str) -> Side:
    """Return a side with what its Python says of its packages, modules and device.

    SideError if it does not answer as `metallab.versus.worker` would, or has no NumPy.
    """
    question = json.dumps({"modules": ["numpy", *sorted(side.modules)], "device": device})
    done = subprocess.run(
        [side.python, WORKER, question],
        capture_output=True,
        text=True,
        errors="replace",
        cwd=side.checkout,
        env=environment(side.command, 1),
        stdin=subprocess.DEVNULL,
    )

    try:
        described = replace(side, **json.loads(done.stdout))
    except (ValueError, TypeError):
        lines = done.stderr.strip().splitlines() or [processes.describe_exit(done.returncode)]
        raise SideError(f"{side.python} does not answer as Python would: {lines[-1]}") from None
    if described.imported["numpy"] is None:
        raise SideError(f"{side.python} has no NumPy, which transfers outputs: install it there")
    return described


def assert_comparable(described: Mapping[str, Side], threads: int = 0) -> None:
    """Raise SideError if both sides are the same, import other code than their own, or run on different devices.

    Also if a side sets its own number of threads although ``threads`` sets it for both.
    """
    for name, side in described.items():
        _assert_usable(f"{name} ({side.text})", side, threads)

    a, b = described.values()
    if all(getattr(a, what) == getattr(b, what) for what in ("python", "source", "variables")):
        raise SideError(
            "both sides are the same: name another revision, environment or variable for one of them"
        )
    if (a.device, a.label) != (b.device, b.label):
        devices = f"A would run on {a.label or a.device} and B on {b.label or b.device}"
        raise SideError(f"{devices}: name one device that both have with --device")


def _assert_usable(name: str, side: Side, threads: int) -> None:
    """Raise SideError if a side sets threads that are set for it, imports other code, or has no device."""
    own = sorted(ONE_THREAD.keys() & side.variables)
    if threads and own:
        raise SideError(
            f"{name} sets {', '.join(own)}, but --threads {threads} sets it for both sides: "
            "compare numbers of threads with --threads 0"
        )

    for module in sorted(side.modules):
        file = side.imported[module]
        if file is None or not Path(file).is_relative_to(side.source):
            raise SideError(
                f"{name} imports {module} from {file}, not from {side.source}: uninstall it there"
            )

    if not side.device:
        raise SideError(f"{name} has no such device: name another one with --device")


def differences(described: Mapping[str, Side]) -> Table:
    """Return what differs between the sides: revision, folder, Python, environment, variables, packages."""
    columns = list(map(_facts, described.values()))
    names = dict.fromkeys(itertools.chain.from_iterable(columns))

    rows = []
    for name in names:
        values = [column.get(name, "none") for column in columns]
        if len(set(values)) > 1:
            rows.append([name, *values])

    note = ""
    if not rows:
        note = "Nothing differs."
    elif len(rows) > MOST_DIFFERENCES:
        note = f"and {len(rows) - MOST_DIFFERENCES} more"
    return Table(["what differs", *described], rows[:MOST_DIFFERENCES], note)


def repository(folder: Path) -> Path:
    """Return the checkout that contains a folder; the folder itself outside of a repository."""
    try:
        return Path(_git(folder, "rev-parse", "--show-toplevel"))
    except SideError:
        return folder


def _project(root: Path) -> Path:
    """Return the project of the current folder, below the working tree; the tree itself if none is nearer."""
    here = Path.cwd()
    inner = [folder for folder in (here, *here.parents) if folder.is_relative_to(root)]
    return next(
        (folder for folder in inner if (folder / "pyproject.toml").is_file()), root
    ).relative_to(root)


def _facts(side: Side) -> dict[str, str]:
    """Return what may differ between a side and the other, by its name."""
    variables = {f"variable {name}": value for name, value in side.variables.items()}
    packages = {f"package {name}": version for name, version in sorted(side.packages.items())}
    return {
        "revision": (side.revision or "working tree")[:12],
        "folder": paths.shorten(side.checkout),
        "Python": side.version,
        "environment": paths.shorten(side.python),
        **variables,
        **packages,
    }


def worktree(revision: str, root: Path) -> Path:
    """Return the kept worktree of a commit, made if necessary. SideError if it was changed, or git fails.

    Metal Lab's own are under its ``build/``, those of another repository in the user's cache folder
    (``XDG_CACHE_HOME``, or ``~/.cache``). A repository that was moved gets new ones.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metallab"
    where = hashlib.sha256(os.fsencode(root)).hexdigest()[:8]
    kept = paths.BUILD if root == paths.ROOT else cache
    folder = kept / "versus" / "worktrees" / f"{root.name}-{where}-{revision[:12]}"

    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "a") as lock:  # another command may be making it
        fcntl.flock(lock, fcntl.LOCK_EX)  # not filelock, which is not a core dependency
        if not (folder / ".git").exists():
            _git(root, "worktree", "prune")  # git still knows one whose folder was removed by hand
            _git(root, "worktree", "add", "--detach", "--quiet", str(folder), revision)

    changed = _git(folder, "status", "--porcelain", "--", ".", ":(exclude,glob)**/__pycache__/**")
    if _git(folder, "rev-parse", "HEAD") != revision or changed:
        raise SideError(
            f"{folder} is not what was committed as {revision[:12]}: remove that folder, and try again"
        )
    return folder


def _folders(text: str) -> str:
    """Return the folders of a ``PYTHONPATH`` as absolute paths: a side's processes run in another folder."""
    folders = [
        os.path.abspath(os.path.expanduser(folder)) for folder in text.split(os.pathsep) if folder
    ]
    if missing := [folder for folder in folders if not os.path.exists(folder)]:
        raise SideError(
            f"PYTHONPATH names {missing[0]}, which does not exist: name a folder that does"
        )
    return os.pathsep.join(folders)


def _python(path: Path) -> Path | None:
    """Return the Python of an environment, or that file itself; None if it is neither. Links are kept."""
    for file in (path / "bin" / "python", path):
        if file.is_file() and os.access(file, os.X_OK):
            return Path(os.path.abspath(file))
    return None


def _commit(part: str, root: Path) -> str:
    _git(root, "--version")
    try:
        return _git(
            root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{part}^{{commit}}"
        )
    except SideError:
        raise SideError(
            f"{part!r} is no revision of {root}, and no Python or its folder; a variable is NAME=value"
        ) from None


def _git(folder: Path, *arguments: str) -> str:
    """Return git's answer. SideError, with its last line, if it fails or is not installed."""
    # within a hook git names the repository by variables
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", folder, *arguments],
            capture_output=True,
            text=True,
            env=variables,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise SideError("git is needed for revisions, and is not there: install it") from None

    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it failed"]
        raise SideError(f"git {arguments[0]}: {lines[-1]}")
    return done.stdout.strip()
