"""The lists of dependencies agree, the lock covers both systems, and the Makefile does what it says."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
HEADLINE = (
    "jupyterlab",
    "torch",
    "tensorflow-macos",
    "tensorflow-metal",
    "jax-metal",
    "matplotlib",
    "ultralytics",
)
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PYPROJECT["optional-dependencies"]
(LAB,) = map(Requirement, EXTRAS["lab"])
SETUP_EXTRAS = [*sorted(LAB.extras), "mlx", "dev"]
DEPENDENCIES = PYPROJECT["dependencies"] + [
    text for extra in SETUP_EXTRAS for text in EXTRAS[extra]
]
LOCKS = {
    name: (ROOT / name).read_text() for name in ("lock.txt", "lock-jax.txt", "lock-coreai.txt")
}
CONSTRAINTS = (ROOT / "constraints.txt").read_text()
SYSTEMS = {
    "linux": {
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "os_name": "posix",
    },
    "mac": {
        "sys_platform": "darwin",
        "platform_system": "Darwin",
        "platform_machine": "arm64",
        "os_name": "posix",
    },
}


def name_of(requirement):
    return canonicalize_name(Requirement(requirement).name)


def environment_yml():
    """(conda's dependencies, pip's) of environment.yml"""
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert listed["name"] == "metal-lab"
    assert listed["channels"] == ["conda-forge"]
    *conda, pip = listed["dependencies"]
    return conda, pip["pip"]


# ---------------------------------------------------------------- the lists


def test_environment_yml_installs_this_project_with_the_lock():
    conda, pip = environment_yml()

    assert conda == ["python=3.11", "pip"]
    assert pip[:4] == [
        "--constraint constraints.txt",
        "--editable ./metalsim",
        "--editable ./metalsim/objc",
        "--editable .[lab,mlx,dev]",
    ]


def test_the_constraints_are_the_lock_s():
    assert dict(locked(LOCKS["lock.txt"])).keys() == {*versions(CONSTRAINTS)}


@pytest.mark.nightly
def test_pip_resolves_environment_yml_to_what_is_installed(tmp_path):
    """As conda asks it to, with no network: whatever is not here already, or does not fit, fails.

    Nothing is installed. What pip would put there are the packages of this project, and no others.
    """
    _, pip = environment_yml()
    # pip looks for the file of constraints beside the list that names it, and for packages in the current folder
    lines = [line.replace("--constraint ", f"--constraint {ROOT}/") for line in pip]
    listed = tmp_path / "environment.txt"
    listed.write_text("\n".join(lines) + "\n")

    options = ["--dry-run", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "-r", str(listed)]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    (would,) = re.findall("Would install (.*)", done.stdout)
    packages = ("metal-lab", "metalsim", "metalsim-objc")
    assert set(would.split()) == {f"{name}-{PYPROJECT['version']}" for name in packages}


def test_environment_yml_repeats_the_headline_packages_exactly():
    ours = {name_of(dependency): dependency for dependency in reversed(DEPENDENCIES)}
    assert environment_yml()[1][4:] == [ours[name] for name in HEADLINE]


@pytest.fixture(params=SYSTEMS)
def system(request):
    return request.param


@pytest.fixture(params=["3.11", "3.12"])
def applying(request, system):
    """Return a function that parses requirements, and keeps those whose marker is true of a system and a Python.

    Both are parameters of the test that uses it, which runs for each pair of them.
    """
    python = request.param
    where = SYSTEMS[system] | {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }

    def select(texts):
        requirements = map(Requirement, texts)
        return [each for each in requirements if not each.marker or each.marker.evaluate(where)]

    return select


def test_each_package_is_pinned_once_and_to_one_version(applying):
    pins = applying(versions(CONSTRAINTS))

    times = Counter(canonicalize_name(pin.name) for pin in pins)
    assert [name for name, count in times.items() if count > 1] == []
    exact = re.compile(r"==[\w.]+")
    assert [str(pin) for pin in pins if not exact.fullmatch(str(pin.specifier))] == []


def test_every_dependency_is_pinned_to_a_version_that_it_allows(applying):
    """Of the dependencies that set-up installs; None stands for a version that constraints.txt does not have."""
    pins = {
        canonicalize_name(pin.name): str(pin.specifier).removeprefix("==")
        for pin in applying(versions(CONSTRAINTS))
    }

    needed = {str(each): each for each in applying(DEPENDENCIES)}
    pinned = {text: pins.get(canonicalize_name(each.name)) for text, each in needed.items()}
    assert {
        text: pin
        for text, pin in pinned.items()
        if pin is None or not needed[text].specifier.contains(pin)
    } == {}


def test_a_mac_alone_needs_tensorflow_metal(applying, system):
    names = {dependency.name for dependency in applying(DEPENDENCIES)}

    assert ("tensorflow-metal" in names) == (system == "mac")


ALL_LOCKS = {**LOCKS, "constraints.txt": CONSTRAINTS}


@pytest.mark.parametrize("text", ALL_LOCKS.values(), ids=ALL_LOCKS)
def test_a_lock_names_no_host_and_no_path(text):
    assert "://" not in text
    assert [line for line in versions(text) if re.search(r"[/@]|^-|:(?!\w{64}\b)", line)] == []


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_file_has_its_hash(name):
    pins = locked(LOCKS[name])
    is_hash = re.compile(r"--hash=sha256:[0-9a-f]{64}").fullmatch

    assert len(pins) > {"lock-coreai.txt": 7}.get(name, 100)
    assert [pin for pin, hashes in pins if not hashes or not all(map(is_hash, hashes))] == []


def versions(text):
    """The lines of a list, less its head."""
    return [line for line in text.splitlines() if not line.startswith("#")]


def locked(text):
    """[(requirement, its hashes)] of a lock."""
    logical = [
        line.split("    --hash")
        for line in "\n".join(versions(text)).replace(" \\\n", "").splitlines()
    ]
    return [(pin, [f"--hash{digest}" for digest in hashes]) for pin, *hashes in logical]


# ---------------------------------------------------------------- the Makefile

SETUP = "python -I utils/metallab/bootstrap.py"
UV = f"{SETUP} uv"
PROGRAM = """#!/bin/sh
echo "$(basename "$0") $*" >> calls.txt
case "$*" in $FAILING) exit 3;; esac
"""


class Make:
    """The Makefile in a folder of its own, where the programs in .venv only write down how they were called."""

    def __init__(self, folder):
        self.folder = folder
        shutil.copy(ROOT / "Makefile", folder)
        programs = folder / ".venv" / "bin"
        programs.mkdir(parents=True)
        for name in ("python", "ruff", "jupyter"):
            (programs / name).write_text(PROGRAM)
            (programs / name).chmod(0o755)
        (folder / "tests" / "project").mkdir(parents=True)

    def __call__(self, *arguments, failing=""):
        """Run make, and return its exit status, its output, and the calls of programs, a line for each.

        Calls whose arguments match ``failing``, a pattern of a shell's case, fail with 3. Variables that a make which
        runs this hands on are left out; those of a user have their defaults.
        """
        calls = self.folder / "calls.txt"
        calls.write_text("")

        of_make = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "JOBS")
        inherited = {name: value for name, value in os.environ.items() if name not in of_make}
        done = subprocess.run(
            ["make", "PYTHON=.venv/bin/python", *arguments],
            cwd=self.folder,
            env=inherited | {"FAILING": failing, "DEVICE": "auto", "MODE": "full", "ONLY": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, calls.read_text().splitlines()


@pytest.fixture
def make(tmp_path):
    return Make(tmp_path)


NAMED = ("A=a", "B=b", "REF=HEAD", "FILE=c", "CLASS=Makefile", "ONLY=14")
LISTED = re.search(
    r"^targets := (.*?[^\\])$", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL
)[1]
TARGETS = LISTED.replace("\\\n", " ").split()


def explained(help_):
    """The targets that a help lists, which end at the first of the variables."""
    return re.findall(r"^  ([a-z-]+) ", help_, re.MULTILINE)


def test_help_lists_few_targets_the_common_ones_among_them(make):
    listed = explained(make()[1])

    assert {"setup", "lab", "run", "test"} < {*listed} < {*TARGETS}
    assert len(listed) <= 12


def test_help_with_all_lists_every_target(make):
    assert sorted(explained(make("help", "ALL=1")[1])) == sorted(TARGETS)
    assert len(TARGETS) <= 25


@pytest.mark.parametrize(
    "target",
    [
        *TARGETS,
        "setup COREAI=1",
        *(f"test SUITE={name}" for name in ("book", "cpu", "fuzz", "hub", "jax", "lab")),
    ],
)
def test_every_target_can_be_made(make, target):
    """Set-up comes first where a target needs what it installs."""
    (make.folder / "lock.txt").touch()

    status, would, _ = make("-n", *target.split(), *NAMED)

    assert status == 0, would
    assert (SETUP in would.replace(UV, "")) == (target not in {"help", "packages", "lock", "clean"})


@pytest.mark.parametrize(
    "command",
    [
        *("run JOBS=2", "gate JOBS=2 REF=HEAD", "test SUITE=no", "versus A=a", "gate REF=missing"),
        *("check-results", "hub", "mutants", "stick"),
    ],
)
def test_what_is_missing_or_parallel_is_refused(make, command):
    status, _, calls = make(*command.split())

    assert status == 2
    assert [call for call in calls if call != SETUP] == []


@pytest.mark.parametrize("command", ["test SUITE=foo", "test ONLY=99", "tests ONLY=99"])
def test_what_there_is_not_is_refused_before_anything_is_installed_or_run(make, command):
    (make.folder / "notebooks").mkdir(exist_ok=True)
    (make.folder / "notebooks" / "03_see.ipynb").touch()

    status, printed, calls = make(*command.split())

    assert status == 2
    assert calls == []
    assert "Syntax error" not in printed
    assert any(name in printed for name in ("03", "lab")), "what there is is named"


@pytest.mark.parametrize("folder", ["docs", "notebooks", "utils"])
def test_the_name_of_a_folder_is_no_target(make, folder):
    (make.folder / folder).mkdir(exist_ok=True)

    status, printed, calls = make(folder)

    assert status == 2
    assert calls == []
    assert "make help" in printed


def test_tests_are_what_test_makes(make):
    assert make("-n", "tests")[1].splitlines() == make("-n", "test")[1].splitlines()


IDENTITY = ("user.name=nobody", "user.email=nobody@example.org", "commit.gpgsign=false")


@pytest.fixture
def one_commit(make):
    """The folder of the Makefile as a checkout with one commit."""
    subprocess.run(["git", "init", "--quiet", make.folder], check=True)
    options = [word for setting in IDENTITY for word in ("-c", setting)]
    commit = ["commit", "--quiet", "--allow-empty", "-m", "one"]
    subprocess.run(["git", "-C", make.folder, *options, *commit], check=True)


def test_a_gate_compares_with_a_revision(make, one_commit):
    _, _, calls = make("gate", "REF=HEAD")

    assert calls[1].startswith("python -m metallab versus HEAD . ")


def test_a_gate_compares_with_no_revision_that_is_not_there(make, one_commit):
    _, _, calls = make("gate", "REF=HEAD~1")

    assert calls == [SETUP]


@pytest.mark.parametrize("failing", ["*headless*", "*report*"])
def test_run_makes_the_report_also_after_a_failure_and_fails(make, failing):
    status, _, calls = make("run", failing=failing)
    assert status != 0
    assert calls[-1] == "python -m metallab report"


NARROWED = """import pytest

@pytest.mark.parametrize("x", range(4), ids=["03_see", "03b_more", "04_x", "10_at_03"])
def test_03_runs(x): pass
"""


def collect(command, folder):
    """The names in brackets of the tests that a command of pytest's would run."""
    options = {"-n '2' --dist worksteal": "--collect-only -q", ".venv/bin/python": sys.executable}
    for old, new in options.items():
        command = command.replace(old, new)
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # they take a second to load

    done = subprocess.run(
        command, shell=True, cwd=folder, env=alone, capture_output=True, text=True, check=False
    )
    return re.findall(r"\[(.*)\]", done.stdout)


@pytest.mark.parametrize("only", ["03", "03b"])
def test_test_is_narrowed_to_one_notebook(make, only):
    """With the real pytest, which has the last word on what -k means."""
    command = make("-n", "test", "JOBS=2", f"ONLY={only}")[1].splitlines()[-1]
    for name in re.findall(r"tests/\S+\.py", command):
        (make.folder / name).parent.mkdir(exist_ok=True)
        (make.folder / name).touch()
    (make.folder / "tests" / "project" / "test_notebooks.py").write_text(NARROWED)

    collected = collect(command, make.folder)

    assert [name.partition("_")[0] for name in collected] == [only]


def test_check_results_adds_a_file(make):
    _, _, calls = make("check-results", "ADD=1", "FILE=c")

    assert calls[-1] == "python -m metallab.results.check_results --add c"


def test_format_tidies_exercises(make):
    assert "python -m metallab.authoring.exercise_cells" in make("-n", "format")[1]


@pytest.fixture
def used(make):
    """The folder of the Makefile with all that runs and set-ups have written."""
    for name in ("build", ".venv-jax", ".venv-coreai", ".venv-python"):
        (make.folder / name).mkdir()
    return make.folder


def test_clean_keeps_the_environment(make, used):
    assert make("clean")[0] == 0

    assert not (used / "build").exists()
    assert (used / ".venv").exists()


def test_clean_with_all_removes_every_environment(make, used):
    assert make("clean", "ALL=1")[0] == 0

    assert list(used.glob(".venv*")) == []


LOCK_TOOL = """#!/bin/sh
echo "$MACOSX_DEPLOYMENT_TARGET $*" >> calls.txt
while test "$1" != -o; do shift; done
grep -q '^kept==1 ' "$2" || exit 4
cat answer.txt > "$2"
"""
HASH = f"    --hash=sha256:{'0' * 64}"


KEPT = f"kept==1 \\\n{HASH} \\\n{HASH}\n"
ANSWER = f"{KEPT}new==2 ; sys_platform == 'linux' \\\n{HASH}\n"


@pytest.fixture
def lock(make):
    """Return a function that makes the locks anew, where what resolves has an answer of ours."""
    (make.folder / ".venv/bin/python").write_text(LOCK_TOOL)
    for name in LOCKS:
        (make.folder / name).write_text(KEPT)

    def make_lock(*arguments, answer=ANSWER):
        (make.folder / "answer.txt").write_text(answer)
        return make("lock", *arguments)

    return make_lock


def test_a_lock_is_resolved_from_what_was_locked_for_macos_15(make, lock):
    status, printed, calls = lock()

    assert status == 0, printed
    assert [call for call in calls if not call.startswith("15.0 ")] == []
    assert (make.folder / "lock.txt").read_text().endswith(ANSWER)


def test_the_constraints_are_the_lock_without_its_hashes(make, lock):
    lock()

    constraints = (make.folder / "constraints.txt").read_text()
    assert versions(constraints) == ["kept==1", "new==2 ; sys_platform == 'linux'"]


@pytest.mark.parametrize(
    ("upgrade", "options"),
    [
        ("UPGRADE=", set()),
        ("UPGRADE=1", {"--upgrade"}),
        ("UPGRADE=kept new", {"--upgrade-package kept", "--upgrade-package new"}),
    ],
    ids=["none", "all", "two packages"],
)
def test_what_is_upgraded_is_what_was_asked_for(lock, upgrade, options):
    _, _, calls = lock(upgrade)

    found = re.findall(r"--upgrade(?:-package \w+)?(?= |$)", calls[0])
    assert set(found) == options


@pytest.mark.parametrize(
    "line",
    ["--index-url https://example.org/simple", "kept @ file:///somewhere/kept.whl"],
    ids=["an index", "a path"],
)
def test_a_lock_that_names_a_host_or_a_path_is_refused_and_the_old_one_stays(make, lock, line):
    status, _, _ = lock(answer=f"{KEPT}{line}\n")

    assert status != 0
    assert (make.folder / "lock.txt").read_text() == KEPT


# ---------------------------------------------------------------- continuous integration


@pytest.mark.parametrize(
    ("told", "strict", "option"),
    [
        ("STRICT=", False, ""),
        ("STRICT=0", False, "--strict='0'"),
        ("STRICT=no", False, "--strict='no'"),
        ("STRICT=1", True, "--strict='1'"),
    ],
)
def test_strict_is_off_unless_it_is_asked_for(make, told, strict, option):
    tests, run = (make("-n", target, told)[1] for target in ("test", "run"))
    assert ("METALLAB_TEST_STRICT=1" in tests) == strict
    assert option in run
    assert ("--strict" in run) == bool(option)


@pytest.mark.parametrize("told", ["STRICT=yes", "STRICT=1 1", "STRICT=2"])
def test_another_word_for_strict_is_refused(make, told):
    status, printed, _ = make("-n", "run", told)
    assert status == 2
    assert "STRICT is" in printed


CI_COMMANDS = {"test STRICT=1": "x", "test SUITE=cpu": "xcpu", "test SUITE=torch": "xtorch"}
"""What continuous integration makes, and what the Makefile below compares with what shall fail."""


@pytest.fixture
def run_ci(tmp_path):
    """Return a function that runs continuous integration from another folder, and lets the test of one suite fail.

    It takes "x" with the name of the suite, or "" for none. The Makefile has stand-ins for the tests and for the
    environment of an older PyTorch; anything else that is made fails, and is reported as not tested.
    """
    (tmp_path / ".ci").mkdir()
    script = Path(shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci"))
    (tmp_path / "Makefile").write_text("a-torch:\ntest:\n\t@test '$(FAILING)' != 'x$(SUITE)'\n")

    # programs that it would install where they are not here
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("clang++-19", "qemu-x86_64"):
        (programs / name).symlink_to(shutil.which("sh"))
    of_make = ("MAKE", "MFLAGS")
    alone = {name: value for name, value in os.environ.items() if not name.startswith(of_make)}

    def run(failing):
        given = alone | {"PATH": f"{programs}:{os.environ['PATH']}", "FAILING": failing}
        return subprocess.run(
            [script], cwd="/", env=given, capture_output=True, text=True, timeout=600, check=False
        )

    return run


@pytest.mark.parametrize("failing", ["", *CI_COMMANDS.values()], ids=["none", *CI_COMMANDS])
def test_ci_fails_where_a_command_does_and_says_which(run_ci, failing):
    done = run_ci(failing)

    assert (done.returncode != 0) == bool(failing)
    ended = {
        name: "FAILED" if failing == suite else "passed" for name, suite in CI_COMMANDS.items()
    }
    closing = done.stdout.splitlines()[-len(CI_COMMANDS) :]
    assert {*closing} == {f"make {name}: {outcome}" for name, outcome in ended.items()}
