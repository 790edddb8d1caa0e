"""The lists of dependencies agree, the lock covers both systems, and the Makefile does what it says."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
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
    assert dict(locked(LOCKS["lock.txt"])).keys() == {*versions(CONSTRAINTS)}


@pytest.mark.nightly
def test_pip_resolves_environment_yml_to_what_is_installed(tmp_path):
    """As conda asks it to, with no network: whatever is not here already, or does not fit, fails."""
    _, pip = environment_yml()
    listed = tmp_path / "environment.txt"
    listed.write_text(
        "\n".join(line.replace("--constraint ", f"--constraint {ROOT}/") for line in pip) + "\n"
    )
    options = [
        "--dry-run",
        "--no-index",
        "--no-build-isolation",
        "--disable-pip-version-check",
        "-r",
        str(listed),
    ]
    command = [sys.executable, "-m", "pip", "install", *options]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (would,) = re.findall("Would install (.*)", done.stdout)
    assert set(would.split()) == {
        f"metal-lab-{PYPROJECT['version']}",
        f"metalsim-{PYPROJECT['version']}",
        f"metalsim-objc-{PYPROJECT['version']}",
    }


def test_environment_yml_repeats_the_headline_packages_exactly():
    ours = {name_of(dependency): dependency for dependency in reversed(DEPENDENCIES)}
    assert environment_yml()[1][4:] == [ours[name] for name in HEADLINE]


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_every_dependency_is_pinned_exactly_on(system, python):
    where = SYSTEMS[system] | {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }

    def applies(requirement):
        return requirement.marker is None or requirement.marker.evaluate(where)

    pins = {}
    for pin in filter(applies, map(Requirement, versions(CONSTRAINTS))):
        assert canonicalize_name(pin.name) not in pins, f"{pin.name} is pinned twice"
        assert re.fullmatch(r"==[\w.]+", str(pin.specifier)), f"{pin} is not one version"
        pins[canonicalize_name(pin.name)] = str(pin.specifier)[2:]
    needed = list(filter(applies, map(Requirement, DEPENDENCIES)))
    assert ("tensorflow-metal" in {dependency.name for dependency in needed}) == (system == "mac")
    for dependency in needed:
        name = canonicalize_name(dependency.name)
        assert name in pins, f"{name} is not in constraints.txt"
        assert dependency.specifier.contains(pins[name]), (
            f"{dependency} does not allow {pins[name]}"
        )


def test_a_lock_names_no_host_and_no_path():
    for text in [*LOCKS.values(), CONSTRAINTS]:
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        assert not [line for line in lines if re.search(r"[/@]|^-|:(?!\w{64}\b)", line)]
        assert "://" not in text
        assert not re.search(r"^torch==2\.13\.0", text, re.MULTILINE)


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_file_has_its_hash(name):
    pins = locked(LOCKS[name])
    assert len(pins) > {"lock-coreai.txt": 7}.get(name, 100)
    for pin, hashes in pins:
        assert hashes, f"{pin} has no hash"
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", digest) for digest in hashes), pin


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
        """(exit status, output, the calls made)"""
        calls = self.folder / "calls.txt"
        calls.write_text("")
        inherited = {
            k: v
            for k, v in os.environ.items()
            if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "JOBS")
        }
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


def test_help_lists_the_common_targets_and_with_all_every_one(make):
    assert sorted(explained(make("help", "ALL=1")[1])) == sorted(TARGETS)
    assert len(TARGETS) <= 25
    assert {"setup", "lab", "run", "test"} < {*explained(make()[1])} < {*TARGETS}
    assert len(explained(make()[1])) <= 12


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
    "arguments",
    [
        *(["run", "JOBS=2"], ["gate", "JOBS=2", "REF=HEAD"], ["test", "SUITE=no"]),
        *(
            ["versus", "A=a"],
            ["gate", "REF=missing"],
            ["check-results"],
            ["hub"],
            ["mutants"],
            ["stick"],
        ),
    ],
)
def test_what_is_missing_or_parallel_is_refused(make, arguments):
    status, _, calls = make(*arguments)
    assert (status, [call for call in calls if call != SETUP]) == (2, [])


@pytest.mark.parametrize(
    "arguments", [["test", "SUITE=foo"], ["test", "ONLY=99"], ["tests", "ONLY=99"]]
)
def test_what_there_is_not_cannot_be_tested(make, arguments):
    (make.folder / "notebooks").mkdir(exist_ok=True)
    (make.folder / "notebooks" / "03_see.ipynb").touch()
    status, printed, calls = make(*arguments)
    assert (status, calls) == (2, []), "it is said before anything is installed or run"
    assert "Syntax error" not in printed
    assert any(name in printed for name in ("03", "lab"))


@pytest.mark.parametrize("folder", ["docs", "notebooks", "utils"])
def test_the_name_of_a_folder_is_no_target(make, folder):
    (make.folder / folder).mkdir(exist_ok=True)
    status, printed, calls = make(folder)
    assert (status, calls) == (2, [])
    assert "make help" in printed


def test_tests_are_what_test_makes(make):
    assert make("-n", "tests")[1].splitlines() == make("-n", "test")[1].splitlines()


def test_a_gate_takes_a_revision(make):
    subprocess.run(["git", "init", "--quiet", make.folder], check=True)
    identity = [
        "-c",
        "user.name=nobody",
        "-c",
        "user.email=nobody@example.org",
        "-c",
        "commit.gpgsign=false",
    ]
    subprocess.run(
        ["git", "-C", make.folder, *identity, "commit", "--quiet", "--allow-empty", "-m", "one"],
        check=True,
    )
    assert make("gate", "REF=HEAD")[2][1].startswith("python -m metallab versus HEAD . ")
    assert make("gate", "REF=HEAD~1")[2] == [SETUP]


@pytest.mark.parametrize("failing", ["*headless*", "*report*"])
def test_run_makes_the_report_also_after_a_failure_and_fails(make, failing):
    status, _, calls = make("run", failing=failing)
    assert status != 0
    assert calls[-1] == "python -m metallab report"


@pytest.mark.parametrize("only", ["03", "03b"])
def test_test_is_narrowed_to_one_notebook(make, only):
    """With the real pytest, which has the last word on what -k means."""
    tests = "import pytest\n\n@pytest.mark.parametrize('x', range(4), ids={})\ndef test_03_runs(x): pass\n"
    (make.folder / "tests" / "project" / "test_notebooks.py").write_text(
        tests.format(["03_see", "03b_more", "04_x", "10_at_03"])
    )
    command = make("-n", "test", "JOBS=2", f"ONLY={only}")[1].splitlines()[-1]
    for name in re.findall(r"tests/\S+\.py", command):
        (make.folder / name).parent.mkdir(exist_ok=True)
        (make.folder / name).touch()
    collected = subprocess.run(
        command.replace("-n '2' --dist worksteal", "--collect-only -q").replace(
            ".venv/bin/python", sys.executable
        ),
        shell=True,
        cwd=make.folder,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # they take a second to load
        capture_output=True,
        text=True,
    ).stdout
    assert [name.partition("_")[0] for name in re.findall(r"\[(.*)\]", collected)] == [only]


def test_a_maintainer_s_commands_reach_their_modules(make):
    assert (
        make("check-results", "ADD=1", "FILE=c")[2][-1]
        == "python -m metallab.results.check_results --add c"
    )
    assert "python -m metallab.authoring.exercise_cells" in make("-n", "format")[1]


def test_clean_keeps_the_environment_unless_all_shall_go(make):
    for name in ("build", ".venv-jax", ".venv-coreai", ".venv-python"):
        (make.folder / name).mkdir()
    assert make("clean")[0] == 0
    assert not (make.folder / "build").exists()
    assert (make.folder / ".venv").exists()
    assert make("clean", "ALL=1")[0] == 0
    assert not list(make.folder.glob(".venv*"))


LOCK_TOOL = """#!/bin/sh
echo "$MACOSX_DEPLOYMENT_TARGET $*" >> calls.txt
while test "$1" != -o; do shift; done
grep -q '^kept==1 ' "$2" || exit 4
cat answer.txt > "$2"
"""
HASH = f"    --hash=sha256:{'0' * 64}"


def test_lock_keeps_versions_and_lets_no_host_in(make):
    (make.folder / ".venv/bin/python").write_text(LOCK_TOOL)
    lock, answer = make.folder / "lock.txt", make.folder / "answer.txt"
    kept = f"kept==1 \\\n{HASH} \\\n{HASH}\n"
    for name in LOCKS:
        (make.folder / name).write_text(kept)
    answer.write_text(f"{kept}new==2 ; sys_platform == 'linux' \\\n{HASH}\n")
    status, printed, calls = make("lock")
    assert status == 0, printed
    assert all(call.startswith("15.0 ") for call in calls)
    assert lock.read_text().endswith(answer.read_text())
    constraints = (make.folder / "constraints.txt").read_text()
    assert versions(constraints) == ["kept==1", "new==2 ; sys_platform == 'linux'"]
    assert "--upgrade" in make("lock", "UPGRADE=1")[2][0].split()
    some = make("lock", "UPGRADE=kept new")[2][0].split()
    assert "--upgrade-package kept --upgrade-package new" in " ".join(some)
    assert "--upgrade" not in some
    written = lock.read_text()
    for bad in ("--index-url https://example.org/simple", "kept @ file:///somewhere/kept.whl"):
        answer.write_text(f"{kept}{bad}\n")
        assert make("lock")[0] != 0
        assert lock.read_text() == written


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


def test_ci_fails_where_a_command_does_and_says_which(tmp_path):
    """Also where it is started elsewhere."""
    (tmp_path / ".ci").mkdir()
    script = Path(shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci"))
    (tmp_path / "Makefile").write_text("a-torch:\ntest:\n\t@test '$(FAILING)' != 'x$(SUITE)'\n")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("clang++-19", "qemu-x86_64"):
        (programs / name).symlink_to(shutil.which("sh"))
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }
    for failing in ("", *CI_COMMANDS.values()):
        variables = inherited | {"PATH": f"{programs}:{os.environ['PATH']}", "FAILING": failing}
        done = subprocess.run(
            [script], cwd="/", env=variables, capture_output=True, text=True, timeout=600
        )
        assert (done.returncode != 0) == bool(failing)
        closing = {
            f"make {name}: {'FAILED' if failing == suite else 'passed'}"
            for name, suite in CI_COMMANDS.items()
        }
        assert {*done.stdout.splitlines()[-len(CI_COMMANDS) :]} == closing


CI_COMMANDS = {"test STRICT=1": "x", "test SUITE=cpu": "xcpu", "test SUITE=torch": "xtorch"}
