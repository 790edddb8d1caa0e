"""Let the project follow a new release of PyTorch: change what is sure, and name every place that a person decides.

    python tools/new_torch.py 2.16.0 --torchvision 0.30.0 [--dry-run]

Changed are the pins, the commands that install them, the list of tested releases, the sentence that names the one that
is followed, the tables of releases, which get a row, and the commands that show how this tool is called, which name the
release to come. What was found with the old release stays: it was found with
that one. Such lines are printed, with their places, and then what is to be run. The exit code is 2 if a file is not as
expected or the version is not newer; nothing was changed then.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.version import Version

from metallab import paths
from metalsim.device import TORCH

TO_FILL_IN = "to be written"
"""In the cells of a new row; a test fails until somebody has written which Pythons were tested."""

NEXT = """\
1. make lock, then .venv/bin/python tools/versions.py: the locks, and the table of versions.
2. make check-mac: operators, messages and pools in a Mac's wheels. What it names is changed in
   metalsim/src/metalsim/operators.py and metalsim/src/metalsim/refusals.
3. What no tool compares: the functions that are one operator on MPS (utils/metallab/pytorch/coverage/recorder.py),
   and in operators.py what falls back, CONTIGUOUS and WITHOUT_FLOAT8. CONTRIBUTING.md says where to look.
4. make test NIGHTLY=1, and make test SUITE=torch TORCH=all for the older ones; linux.yml adds make test SUITE=cpu.
5. make setup COREAI=1, and make test ONLY=42: whether coreai-torch converts with this PyTorch.
6. Write in both tables of releases which Pythons have wheels and which were tested.
7. metalsim/README.md says how many entries of PyTorch's list agree: count again with
   tools/benchmarks/simulated_operators.py --samples 100000, and with tools/expected_on_macs.py.
8. Go through the lines above, and write what is new into CHANGELOG.md."""


class NotDone(Exception):
    """A file is not as expected, or the version is not newer: nothing is changed."""


class Release(NamedTuple):
    """A release of PyTorch and the torchvision that belongs to it."""

    torch: str
    torchvision: str

    @property
    def series(self) -> str:
        """The first two numbers of PyTorch's version, such as 2.15."""
        return ".".join(self.torch.split(".")[:2])


class Change(NamedTuple):
    """How the text of a file follows the new release."""

    file: str
    what: str
    """In words."""
    apply: Callable[[str, Release, Release], str]
    """Takes the text, the old release and the new one. The text as it is stands for a place that was not found."""
    may_stay: bool = False
    """Whether the text may be right as it is, as it is for the examples after a release such as 2.15.1."""


def _replace_pins(text: str, old: Release, new: Release) -> str:
    """Change the versions that a requirement or a command asks for."""
    text = re.sub(rf"\btorch=={re.escape(old.torch)}\b", f"torch=={new.torch}", text)
    return re.sub(
        rf"\btorchvision=={re.escape(old.torchvision)}\b", f"torchvision=={new.torchvision}", text
    )


def _replace_pins_and_reason(text: str, old: Release, new: Release) -> str:
    """Change the pins, and beside torchvision's to which PyTorch it belongs."""
    reason = "the release that belongs to torch "
    return _replace_pins(text, old, new).replace(reason + old.series, reason + new.series)


def _append_to_tested(text: str, old: Release, new: Release) -> str:
    """Add the release behind the newest of `TESTED_TORCH`."""
    last = rf'^(TESTED_TORCH = \(.*"{re.escape(old.torch)}")\)$'
    return re.sub(last, rf'\1, "{new.torch}")', text, flags=re.MULTILINE)


def _append_row(text: str, old: Release, new: Release) -> str:
    """Add a row behind the newest release's, which stays."""
    last = rf"^\| {re.escape(old.torch)} \|.*\n"
    row = f"| {new.torch} | {TO_FILL_IN} | {TO_FILL_IN} |\n"
    return re.sub(last, rf"\g<0>{row}", text, flags=re.MULTILINE)


def _follow(text: str, old: Release, new: Release) -> str:
    """Change the sentence that says which release is followed."""
    return text.replace(f"It follows PyTorch {old.torch} ", f"It follows PyTorch {new.torch} ")


_EXAMPLE = re.compile(r"(new_torch\.py )\d+\.\d+\.\d+( --torchvision )\d+\.\d+\.\d+")


def find_next(release: Release) -> Release:
    """Return the release that is expected after one: the second number of both packages is one more."""
    return Release(*(f"{Version(each).major}.{Version(each).minor + 1}.0" for each in release))


def _replace_examples(text: str, old: Release, new: Release) -> str:
    """Have the commands that show this tool name the release after the new one, so that they go on to work."""
    del old  # whichever they named before
    example = find_next(new)
    replaced, count = _EXAMPLE.subn(rf"\g<1>{example.torch}\g<2>{example.torchvision}", text)
    if not count:
        raise NotDone("no command shows how new_torch.py is called: one is expected")
    return replaced


GUIDE, README = "docs/test_mps_on_linux.md", "metalsim/README.md"
CHANGES = (
    Change("pyproject.toml", "the pins, and which PyTorch torchvision belongs to", _replace_pins_and_reason),
    Change("environment.yml", "the pin", _replace_pins),
    Change("metalsim/src/metalsim/device.py", "one more in TESTED_TORCH", _append_to_tested),
    Change(GUIDE, "the command that installs it", _replace_pins),
    Change(GUIDE, "a row in the table of releases", _append_row),
    Change(GUIDE, "which release is followed", _follow),
    Change("tools/no_claims.txt", "the same sentence", _follow),
    Change(README, "the command that installs it", _replace_pins),
    Change(README, "a row in the table of releases", _append_row),
    Change("tests/project/commands.toml", "the command that installs it", _replace_pins),
    *(
        Change(file, "the commands that show this tool, with the release to come", _replace_examples, may_stay=True)
        for file in ("CONTRIBUTING.md", "tests/project/commands.toml", "tools/new_torch.py")
    ),
)  # fmt: skip

NOT_LOOKED_AT = (
    *("data", "build", "CHANGELOG.md", "constraints.txt", "tools/newest.json"),
    *("lock*.txt", "*.csv", "tests/support/saved_earlier"),
)
"""What says how it was at a time, or what make lock and tools/versions.py write; patterns of git."""


def find_pinned(project: str) -> Release:
    """Return the release that the text of pyproject.toml pins.

    Raises
    ------
    NotDone
        If one of the two packages has no pin.
    """
    listed = tomllib.loads(project)["project"]["optional-dependencies"]["pytorch"]
    pins = {
        requirement.name: re.fullmatch(r"==(\d+\.\d+\.\d+)", str(requirement.specifier))
        for requirement in map(Requirement, listed)
    }
    torch, torchvision = pins.get("torch"), pins.get("torchvision")
    if torch is None or torchvision is None:
        raise NotDone("pyproject.toml pins no torch==... and torchvision==... in its extra pytorch")
    return Release(torch[1], torchvision[1])


def plan(texts: Mapping[str, str], old: Release, new: Release) -> dict[str, str]:
    """Return the new text of each file that changes.

    Parameters
    ----------
    texts
        The texts of the files of `CHANGES`, by their names.
    old, new
        Which release is followed now, and which is to be.

    Raises
    ------
    NotDone
        If the version is not newer, or a place is not found: then this file has to learn where it is.
    """
    if Version(new.torch) <= Version(old.torch):
        raise NotDone(f"PyTorch {new.torch} is not newer than {old.torch}, which is followed")

    changed = dict(texts)
    for change in CHANGES:
        try:
            written = change.apply(changed[change.file], old, new)
        except NotDone as error:
            raise NotDone(f"{change.file}: {error}") from None
        if written == changed[change.file] and not change.may_stay:
            raise NotDone(f"{change.file}: {change.what}: not found; look for {old.torch} there")
        changed[change.file] = written
    return changed


class Mention(NamedTuple):
    """A line that speaks of the old release."""

    file: str
    number: int
    line: str

    def __str__(self) -> str:
        return shorten(f"{self.file}:{self.number}: {self.line.strip()}")


def find_mentions(root: Path, old: Release) -> list[Mention]:
    """Return the lines of the checkout that speak of the old release.

    Raises
    ------
    NotDone
        If git cannot look, as where there is no checkout.
    """
    pattern = rf"(^|[^0-9.]){re.escape(old.series)}($|[^0-9])|{re.escape(old.torchvision)}"
    command = ["git", "grep", "--untracked", "-nIE", pattern, "--", "."]
    command += [f":!{each}" for each in NOT_LOOKED_AT]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode > 1:
        raise NotDone(f"git cannot look for {old.series}: {done.stderr.strip()}")

    parts = [line.split(":", 2) for line in done.stdout.splitlines()]
    return [Mention(file, int(number), line) for file, number, line in parts]


def find_reasons(changed: Mapping[str, str], new: Release) -> list[Mention]:
    """Return the new pins beside which a comment stands, such as why it is just this version: true of the old one."""
    return [
        Mention(file, number, line)
        for file, text in changed.items()
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(rf"=={re.escape(new.torch)}\b.*#", line)
    ]


def is_about_newest(mention: Mention, old: Release) -> bool:
    """Return whether a line names the release as the newest or the one that is followed, rather than a finding of it.

    Three numbers do, and the end of a range; not so in a table's row and in a test's case, which stay. A guess for the
    order of reading: a person decides.
    """
    if mention.file.startswith("tests/") or "/tests/" in mention.file:
        return False
    if mention.line.startswith(f"| {old.torch} |"):
        return False
    series = re.escape(old.series)
    return bool(re.search(rf"{re.escape(old.torch)}\b|\b(to|than) {series}\b", mention.line))


def shorten(line: str, most: int = 160) -> str:
    """Return a line that fits a terminal."""
    return line if len(line) <= most else f"{line[: most - 3]}..."


def parse(given: Sequence[str] | None) -> tuple[Release, bool]:
    """Return the release that is asked for, and whether files are to be written."""
    parser = argparse.ArgumentParser(
        prog="python tools/new_torch.py",
        description=__doc__.partition("\n")[0],
        epilog=f"Afterwards:\n{NEXT}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("torch", help=f"the version, with three numbers; {TORCH} is followed now")
    parser.add_argument("--torchvision", required=True, help="the version that belongs to it")
    parser.add_argument(
        "--dry-run", action="store_true", help="print all of it, and change nothing"
    )
    wish = parser.parse_args(given)

    for version in (wish.torch, wish.torchvision):
        if not re.fullmatch(r"\d+\.\d+\.\d+", version):
            parser.error(f"{version} is no version with three numbers, such as {TORCH}")
    return Release(wish.torch, wish.torchvision), not wish.dry_run


def main(given: Sequence[str] | None = None, root: Path = paths.ROOT) -> int:
    """Change the files of `CHANGES`, print what a person decides, and return 0; 2 with a message if it cannot be done.

    With ``--dry-run`` the same is printed, and no file is changed.
    """
    new, is_to_write = parse(given)
    try:
        texts = {each.file: (root / each.file).read_text(encoding="utf-8") for each in CHANGES}
        old = find_pinned(texts["pyproject.toml"])
        changed = plan(texts, old, new)
        found = find_mentions(root, old)  # before: where git cannot look, nothing is changed
        if is_to_write:
            for file, text in changed.items():
                (root / file).write_text(text, encoding="utf-8")
            # again, since the rows that were added have moved lines
            found = find_mentions(root, old)
    except (NotDone, OSError) as error:
        print(f"new_torch: {error}", file=sys.stderr)
        return 2

    # in a dry run the lines that would change are still there; one that names both is about neither alone
    left = [
        each
        for each in found
        if new.torch not in each.line
        and (each.file not in changed or each.line in changed[each.file].splitlines())
    ]
    print("Changed:" if is_to_write else "Would change:")
    for change in CHANGES:
        print(f"    {change.file}: {change.what}")
    print("\nReasons beside the new pins, for you to write anew: each was true of the old one.")
    for mention in find_reasons(changed, new):
        print(f"    {mention}")
    show(left, old)
    print(f"\nThen:\n{NEXT}")
    return 0


def show(mentions: Sequence[Mention], old: Release) -> None:
    """Print the lines that a person decides about, those first that are likely to change."""
    newest = [each for each in mentions if is_about_newest(each, old)]
    others = [each for each in mentions if not is_about_newest(each, old)]

    print(
        f"\nFor you to change where the sentence is to be about the new release ({len(newest)} lines):"
    )
    for mention in newest:
        print(f"    {mention}")
    print(
        f"\nTo read; most stay, because it was found with {old.series}, but a pin's reason and a link to the"
        f" documentation may change ({len(others)} lines):"
    )
    for mention in others:
        print(f"    {mention}")


if __name__ == "__main__":
    sys.exit(main())
