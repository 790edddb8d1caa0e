"""The commands that README and the guides print do what they say: each runs in a throwaway clone of this checkout.

The clone has an environment of its own, which is empty but for links: what is installed here is found behind the
clone's sources. `commands.toml` is the list, with the status that each command has to end with, or why it is not run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import documented_commands
import pytest
from documented_commands import Documented

from metallab import bootstrap, paths

ROOT = paths.ROOT
KNOWN = documented_commands.read_list()
LIMIT = 1800  # seconds, against a hang
PAGE_OF_THE_RUN = "01_time_it_right"
"""In the run that commands show, report and put into a book. The guides look into its results."""

MODEL = """import torch


def example():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), torch.ones(4, 8)
"""
TRAIN = """import torch

device = "mps" if torch.backends.mps.is_available() else "cpu"
model = torch.nn.Linear(4, 1).to(device)
model(torch.ones(2, 4, device=device)).sum().backward()
"""
CASES = """from metallab.versus import case


@case
def product():
    numbers = list(range(1000))
    return lambda: sum(numbers)
"""
TESTS = """import torch


def test_ones():
    device = "mps" if torch.backends.mps.is_available() else "cpu"
    assert torch.ones(2, device=device).sum() == 2
"""


def git(*arguments: str, cwd: Path = ROOT) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=cwd, check=True, capture_output=True, text=True
    ).stdout


# ---------------------------------------------------------------- the list


def test_the_list_names_every_printed_command_and_no_other():
    printed = {
        command
        for page in documented_commands.PAGES
        for command in documented_commands.printed((ROOT / page).read_text())
    }
    assert len(printed) > 100

    assert sorted(printed - set(KNOWN.commands())) == [], "add them to tests/project/commands.toml"
    assert sorted(set(KNOWN.commands()) - printed) == [], "no page prints them any more"


def test_the_list_names_no_command_twice():
    commands = KNOWN.commands()

    assert sorted(commands) == sorted(set(commands))


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        pytest.param(
            "```sh\nmake run  # all\n\nmake \\\n  lab\n```", ["make run", "make lab"], id="a-block"
        ),
        pytest.param('```sh\npython -c "a\nb"\n```', ['python -c "a\nb"'], id="several-lines"),
        pytest.param("```\nmake run\n```", [], id="output"),
        pytest.param(
            "call `make run ONLY=14` or `make`, see `makefile x`",
            ["make run ONLY=14"],
            id="in-a-sentence",
        ),
        pytest.param("`A=1 make lab` and `A=1`", ["A=1 make lab"], id="with-a-variable"),
    ],
)
def test_commands_are_found(text, commands):
    assert list(documented_commands.printed(text)) == commands


@pytest.mark.parametrize("page", documented_commands.PAGES)
def test_lines_to_paste_have_no_comments(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert documented_commands.commented(text) == []


@pytest.mark.parametrize(
    "path", sorted(paths.ROOT.glob("notebooks/[0-9]*.ipynb")), ids=lambda p: p.stem
)
def test_lines_to_paste_of_a_page_have_no_comments(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert documented_commands.commented(text) == []


def test_a_comment_behind_a_command_is_found():
    block = "```sh\nmake lab  # all of it\nprintf '# group\\nada\\n'\n```"
    assert documented_commands.commented(block) == ["make lab  # all of it"]


# ---------------------------------------------------------------- tests that a command selects


def find_words_that_select_nothing(command: str) -> list[str]:
    """Return the words behind -k, in a command of pytest, that no name of a test in the files of the command holds.

    Names are read in the files' text, without importing them. Another command has no such words.
    """
    parts = shlex.split(command)
    if "pytest" not in parts or "-k" not in parts:
        return []

    files = [ROOT / part for part in parts if part.endswith(".py")]
    names = [
        name
        for file in files
        for name in re.findall(r"^ *def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    expression = parts[parts.index("-k") + 1]
    words = set(re.findall(r"\w+", expression)) - {"and", "or", "not"}
    return sorted(word for word in words if not any(word in name for name in names))


def test_each_word_of_a_documented_selection_selects_a_test():
    selecting = [command for command in KNOWN.commands() if " -k " in command]
    assert selecting

    empty = {each: find_words_that_select_nothing(each) for each in selecting}
    assert {each: words for each, words in empty.items() if words} == {}


def test_a_word_that_selects_nothing_is_found():
    command = 'python -m pytest tests/project/test_commands.py -k "selects or nowhere"'
    assert find_words_that_select_nothing(command) == ["nowhere"]


# ---------------------------------------------------------------- the clone


class Clone:
    """A clone of this checkout as it is now, with changes that are not committed, and an environment of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        git("clone", "--quiet", str(ROOT), str(folder))
        self._take_over_changes()
        self._make_environment()

    def _take_over_changes(self) -> None:
        """Change the clone as this checkout was changed since its last commit, and commit it there.

        `reset` goes back to that commit.
        """
        changed = git(
            "ls-files", "-z", "--modified", "--others", "--deleted", "--exclude-standard"
        ).split("\0")
        for name in filter(None, changed):
            source, target = ROOT / name, self.folder / name
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
            else:
                target.unlink(missing_ok=True)

        # for a machine whose git knows no name, or wants to sign
        identity = [
            "-c",
            "user.name=nobody",
            "-c",
            "user.email=nobody@example.org",
            "-c",
            "commit.gpgsign=false",
        ]
        git("add", "--all", cwd=self.folder)
        git(
            *identity,
            "commit",
            "--quiet",
            "--allow-empty",
            "--message",
            "as it is now",
            cwd=self.folder,
        )

    def _make_environment(self) -> None:
        """Make .venv, complete for `make setup`: the clone's sources, then what is installed here."""
        environment = self.folder / ".venv"
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True
        )

        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        sources = ("utils", "metalsim/src", "metalsim/objc/src")
        own = [str(self.folder / source) for source in sources]
        here = sysconfig.get_path("purelib")
        (environment / "lib" / python / "site-packages" / "clone.pth").write_text(
            "\n".join([*own, f"import site; site.addsitedir({here!r})", ""])
        )

        for script in Path(sysconfig.get_path("scripts")).iterdir():
            self._take_over_script(script, environment / "bin" / script.name)

        # what nbconvert keeps beside the packages: its templates
        jupyter = environment / "share" / "jupyter"
        jupyter.parent.mkdir(exist_ok=True)
        jupyter.symlink_to(Path(sysconfig.get_path("data"), "share", "jupyter"))

        # `bootstrap` reads the files by their names in the current folder
        before = Path.cwd()
        os.chdir(self.folder)
        try:
            (self.folder / bootstrap.COMPLETE).write_text(bootstrap.state())
        finally:
            os.chdir(before)

    @staticmethod
    def _take_over_script(script: Path, target: Path) -> None:
        """A script of Python names the interpreter of its environment in its first line; a program is linked."""
        if target.exists() or not script.is_file():
            return
        with script.open("rb") as file:
            first = file.readline()
            rest = file.read() if first.startswith(b"#!") and b"python" in first else b""
        if not rest:
            target.symlink_to(script)
            return
        target.write_bytes(b"#!" + os.fsencode(target.with_name("python")) + b"\n" + rest)
        target.chmod(0o755)

    def reset(self) -> None:
        """Make it as it was, with the files that documented commands work on."""
        git("reset", "--quiet", "--hard", cwd=self.folder)
        git("clean", "-ffdxq", "--exclude", ".venv", cwd=self.folder)

        self._make_run(self.folder / "build" / "full-cpu")
        bench = self.folder / "build" / "bench"
        bench.mkdir()
        (results, *_) = sorted((self.folder / "data" / "results").glob("*.json"))
        shutil.copy(results, bench / "mine.json")

        files = {
            "my_model.py": MODEL,
            "my_project/__init__.py": "",
            "my_project/model.py": MODEL,
            "train.py": TRAIN,
            "cases.py": CASES,
            "my_tests/test_ones.py": TESTS,
        }
        for name, text in files.items():
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_text(text)

    def _make_run(self, run: Path) -> None:
        """Make the folder of a run of one stored page, as ``make run`` leaves it.

        Of one page a report takes seconds, and of all pages half a minute.
        """
        (page, *_) = sorted(self.folder.glob(f"data/executed/*cpu*/{PAGE_OF_THE_RUN}.ipynb"))
        (run / "results").mkdir(parents=True)
        shutil.copy(page, run)
        for result in page.parent.glob(f"results/{PAGE_OF_THE_RUN}*"):
            shutil.copy(result, run / "results")

        summary = json.loads((page.parent / "summary.json").read_text(encoding="utf-8"))
        summary["notebooks"] = [
            each for each in summary["notebooks"] if each["name"] == PAGE_OF_THE_RUN
        ]
        (run / "summary.json").write_text(json.dumps(summary), encoding="utf-8")

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a line of the documents in the clone, as somebody whose PATH begins with its environment.

        What a make or a pytest that runs this has set is left out, and so is what Metal Lab reads. The simulated GPU
        that this checkout has built is used, where no other cache is named.
        """
        of_make = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MODE", "DEVICE", "ONLY")
        of_us = ("METALLAB_", "PYTEST_", "PYTHONPATH", "VIRTUAL_ENV")
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in of_make and not name.startswith(of_us)
        }

        environment["PATH"] = f"{self.folder / '.venv' / 'bin'}{os.pathsep}{environment['PATH']}"
        environment["METALLAB_CLASSROOM"] = str(self.folder / "build" / "classroom")
        environment["JUPYTER_CONFIG_DIR"] = str(self.folder / "build" / "jupyter")
        environment.setdefault("METALSIM_CACHE", str(ROOT / "build" / "metalsim"))

        return subprocess.run(
            ["sh", "-c", command],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
            check=False,
        )


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there is nothing to clone")
    return Clone(tmp_path_factory.mktemp("clone") / "metal-lab")


def _parameters():
    for known in KNOWN.run:
        marks = [pytest.mark.nightly] if known.nightly else []
        yield pytest.param(known, id=known.command.splitlines()[0][:60], marks=marks)


@pytest.mark.parametrize("known", list(_parameters()))
def test_it_ends_with_the_expected_status(clone, known: Documented):
    clone.reset()

    done = clone.run(known.line)

    assert done.returncode == known.status, f"{known.line}\n{done.stdout}"
