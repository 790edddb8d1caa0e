"""The lists of dependencies agree, the lock covers both systems, and the Makefile does what it says."""

import ast
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from metallab import records

ROOT = Path(__file__).parents[1]
HEADLINE = ("jupyterlab", "torch", "tensorflow-macos", "tensorflow-metal", "jax-metal", "matplotlib", "ultralytics")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PYPROJECT["optional-dependencies"]
(LAB,) = map(Requirement, EXTRAS["lab"])
SETUP_EXTRAS = [*sorted(LAB.extras), "mlx", "dev"]
DEPENDENCIES = PYPROJECT["dependencies"] + [text for extra in SETUP_EXTRAS for text in EXTRAS[extra]]
LOCKS = {name: (ROOT / name).read_text() for name in ("lock.txt", "lock-jax.txt")}
CONSTRAINTS = (ROOT / "constraints.txt").read_text()
SYSTEMS = {
    "linux": {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix"},
    "mac": {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64", "os_name": "posix"},
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
    assert pip[:2] == ["--constraint constraints.txt", "--editable .[lab,mlx,dev]"]


def test_the_list_for_conda_is_the_lock_without_its_hashes():
    assert dict(locked(LOCKS["lock.txt"])).keys() == {*versions(CONSTRAINTS)}
    assert len(versions(CONSTRAINTS)) > 200


def test_pip_resolves_environment_yml_to_what_is_installed(tmp_path):
    """As conda asks it to, with no network: whatever is not here already, or does not fit, fails."""
    _, pip = environment_yml()
    listed = tmp_path / "environment.txt"
    listed.write_text("\n".join(line.replace("--constraint ", f"--constraint {ROOT}/") for line in pip) + "\n")
    options = ["--dry-run", "--no-index", "--no-build-isolation", "--disable-pip-version-check", "-r", str(listed)]
    command = [sys.executable, "-m", "pip", "install", *options]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (would,) = re.findall("Would install (.*)", done.stdout)
    assert would == f"metal-lab-{PYPROJECT['version']}"


MEASURES_ALONE = """
import importlib.abc, sys
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        known = sys.stdlib_module_names | {"numpy", "psutil", "pyperf", "metallab", "metalsim"}
        if name.partition(".")[0] not in known and not name.startswith("_"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import numpy as np
from metallab import allowance, checks, device, fake_device, isolated, machine, memory, mode, needs, peaks, records
from metallab import timing, turns, units
a = np.ones((64, 64))
variants = {"one": lambda: a @ a, "two": lambda: np.dot(a, a)}
parity = checks.matches("float32")
result = timing.compare(variants, on=timing.Host(), baseline="one", parity=parity, budget=timing.FAST)
path = records.save("alone", result, on=device.PyTorchDevice("cpu", "a CPU"))
try:
    records.load(path)
except records.RecordError as refusal:
    print(refusal)
"""


def test_measuring_needs_numpy_psutil_and_pyperf_alone(tmp_path):
    assert [name_of(text) for text in PYPROJECT["dependencies"]] == ["numpy", "psutil", "pyperf"]
    done = subprocess.run(
        [sys.executable, "-c", MEASURES_ALONE],
        env=os.environ | {"METALLAB_OUT": str(tmp_path), "METALLAB_DEVICE": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    path, _, reason = done.stdout.partition(": ")
    assert reason == "reading results needs msgspec, which is not installed: pip install msgspec\n"
    assert [one.measurement.name for one in records.load(path)] == ["one", "two"]


def test_environment_yml_repeats_the_headline_packages_exactly():
    ours = {name_of(dependency): dependency for dependency in reversed(DEPENDENCIES)}
    assert environment_yml()[1][2:] == [ours[name] for name in HEADLINE]


def test_every_dependency_gives_its_reason():
    conda, pip = environment_yml()
    listed = [("pyproject.toml", '"{}",', DEPENDENCIES), ("environment.yml", "- {} ", conda + pip[2:])]
    for file, form, dependencies in listed:
        of_the_project = (ROOT / file).read_text().split("[dependency-groups]")[0]
        lines = [line.strip() for line in of_the_project.splitlines()]
        for dependency in dependencies:
            (line,) = [line for line in lines if line.startswith(form.format(dependency))]
            assert re.search(r"\s# \w+", line[len(dependency) :]), f"{file} gives no reason for {dependency}"


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
        assert dependency.specifier.contains(pins[name]), f"{dependency} does not allow {pins[name]}"


def test_a_lock_names_no_host_no_path_and_not_the_torch_that_some_machines_replace():
    for text in [*LOCKS.values(), CONSTRAINTS]:
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        assert not [line for line in lines if re.search(r"[/@]|^-|:(?!\w{64}\b)", line)]
        assert "://" not in text
        assert not re.search(r"^torch==2\.13\.0", text, re.MULTILINE)


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_file_has_its_hash(name):
    pins = locked(LOCKS[name])
    assert len(pins) > 100
    for pin, hashes in pins:
        assert hashes, f"{pin} has no hash"
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", digest) for digest in hashes), pin


def versions(text):
    """The lines of a list, less its head."""
    return [line for line in text.splitlines() if not line.startswith("#")]


def locked(text):
    """[(requirement, its hashes)] of a lock."""
    logical = [line.split("    --hash") for line in "\n".join(versions(text)).replace(" \\\n", "").splitlines()]
    return [(pin, [f"--hash{digest}" for digest in hashes]) for pin, *hashes in logical]


# ---------------------------------------------------------------- the Makefile

PROGRAM = """#!/bin/sh
echo "$(basename "$0") $*${PYTHONDONTWRITEBYTECODE:+ (compiles everything anew)}" >> calls.txt
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
        (folder / "tests").mkdir()

    def __call__(self, *arguments, failing=""):
        """(exit status, output, the calls made)"""
        calls = self.folder / "calls.txt"
        calls.write_text("")
        inherited = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "JOBS")}
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


SETUP = "python -I utils/metallab/bootstrap.py"
UV = f"{SETUP} uv"


@pytest.fixture
def make(tmp_path):
    return Make(tmp_path)


def test_help_is_the_default_and_explains_every_target_and_variable(make):
    status, printed, calls = make()
    assert status == 0
    assert calls == []
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    assert {"setup", "lab", "run", "test", "bench", "gate", "report", "check-results", "lint"} < {*targets}
    for target in targets:
        assert re.search(rf"^  {target} +\w", printed, re.MULTILINE), f"{target} is not explained"
    for variable in ("ONLY=03", "A= B=", "REF=", "FILE="):
        assert variable in printed
    defaults = dict(re.findall(r"^(\w+) +\?= (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for variable in ("DEVICE", "MODE", "JOBS", "CPU", "RUNS", "PORT"):
        assert re.search(rf"^  {variable}={defaults[variable]} ", printed, re.MULTILINE), "help tells another default"


@pytest.mark.parametrize(
    "target",
    [
        "lab",
        "run",
        "test",
        "fuzz",
        "test-cpu",
        "bench",
        "report",
        "versus",
        "check-results",
        "lint",
    ],
)
def test_set_up_comes_first(make, target):
    files = ("A=a", "B=b", "FILE=c")
    status, printed, calls = make(target, *files)
    assert status == 0, printed
    assert calls[0] == SETUP
    assert len(calls) > 1
    status, _, calls = make(target, *files, failing="*bootstrap.py")
    assert status != 0
    assert calls == [SETUP]


def test_fuzz_looks_for_so_many_minutes(make):
    assert make("fuzz")[2][1].startswith("python -m pytest tests/test_fuzz")
    for arguments, minutes in (((), "10"), (("MINUTES=2",), "2")):
        assert f"METALLAB_FUZZ='{minutes}' " in make("-n", "fuzz", *arguments)[1]


def test_mutants_are_made_of_a_copy(make):
    (make.folder / "utils/metallab").mkdir(parents=True)
    (make.folder / "utils/metallab/units.py").write_text("one = 1\n")
    (make.folder / "pyproject.toml").touch()
    (make.folder / "tests/test_units.py").touch()
    named = ("MODULE=metallab.units", "TESTS=tests/test_units.py")
    status, printed, calls = make("mutants", *named)
    assert status == 0, printed
    ran = f"{UV} run --directory build/mutants --quiet --no-project --active --with mutmut=="
    assert [call.partition(ran)[2].split()[1:] for call in calls[1:]] == [
        ["mutmut", "run", "--max-children", "1"],
        ["mutmut", "results"],
    ]
    assert (make.folder / "build/mutants/src/metallab/units.py").read_text() == "one = 1\n"
    settings = (make.folder / "build/mutants/setup.cfg").read_text()
    assert "source_paths = src/metallab/units.py\n" in settings
    assert settings.endswith("test_selection =\n  tests/test_units.py\n")
    assert make("mutants", "MUTANT=metallab.units.x")[2][-1].endswith("mutmut show metallab.units.x")
    assert make("mutants", "MODULE=metallab.nothing", named[1])[0] == 2


def test_what_python_compiled_is_kept(make, monkeypatch):
    """Containers set this variable; each process would then compile PyTorch again, for seconds."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert not any("compiles everything anew" in call for call in make("test")[2])


def test_run_passes_its_variables_on(make):
    assert make("run")[2][1:] == [
        "python -m metallab.headless --mode full --device auto",
        "python -m metallab report",
    ]
    narrowed = make("run", "ONLY=03", "DEVICE=sim", "MODE=fast")[2]
    assert narrowed[1] == "python -m metallab.headless --mode fast --device sim --only 03"


@pytest.mark.parametrize("failing", ["*headless*", "*report*"])
def test_run_makes_the_report_also_after_a_failure_and_fails(make, failing):
    status, printed, calls = make("run", failing=failing)
    assert status != 0
    assert "Error 3" in printed
    assert calls[-1] == "python -m metallab report"


@pytest.mark.parametrize("target", ["run", "bench", "versus", "gate"])
def test_measuring_in_parallel_is_refused(make, target):
    status, printed, calls = make(target, "JOBS=2", "REF=HEAD", "A=a", "B=b")
    assert status != 0
    assert "JOBS is for make test" in printed
    assert calls == [SETUP]


def test_test_lints_and_ends_with_pytest(make):
    calls = make("test", "JOBS=3")[2]
    assert calls[1:] == [
        "ruff check --quiet utils tests book classroom/*.py notebooks",
        "ruff check --quiet --select E501 --line-length 88 notebooks",
        "ruff format --quiet --check utils tests book classroom/*.py",
        "python -m pytest -n 3 --dist worksteal",
    ]
    for failing in ("check*", "format*", "*pytest*"):
        assert make("test", failing=failing)[0] != 0


@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [
        (["ONLY=03"], ["03_see"]),
        (["ONLY=03b"], ["03b_more"]),
        (["ONLY=03_see"], ["03_see"]),
    ],
)
def test_test_is_narrowed_to_one_notebook(make, arguments, chosen):
    """With the real pytest, which has the last word on what -k means."""
    names = ["03_see", "03b_more", "04_simple", "10_at_03"]
    tests = "import pytest\n\n@pytest.mark.parametrize('x', range(4), ids={})\ndef test_03_runs(x): pass\n"
    (make.folder / "tests" / "test_notebooks.py").write_text(tests.format(names))
    status, printed, _ = make("-n", "test", "JOBS=2", *arguments)
    assert status == 0
    command = printed.splitlines()[-1].replace(".venv/bin/python", sys.executable)
    collected = subprocess.run(
        command.replace("-n '2' --dist worksteal", "--collect-only -q"),
        shell=True,
        cwd=make.folder,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # they take a second to load
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    assert re.findall(r"\[(.*)\]", collected) == chosen


def test_test_cpu_names_a_processor_and_fails_when_pytest_does(make):
    emulated = "python tests/emulated.py Haswell -n 2 --dist worksteal"
    assert make("test-cpu", "JOBS=2")[2] == [SETUP, emulated]
    assert make("test-cpu", "CPU=EPYC", "JOBS=4")[2][-1] == emulated.replace("Haswell -n 2", "EPYC -n 4")
    assert make("test-cpu", failing="*emulated*")[0] != 0


def test_bench_passes_its_variables_on(make):
    assert make("bench")[2][1:] == ["python -m metallab.headless.bench --runs 3 --device auto"]
    narrowed = make("bench", "ONLY=03", "DEVICE=cpu", "RUNS=5", "ANEW=1")[2]
    assert narrowed[1:] == ["python -m metallab.headless.bench --runs 5 --device cpu --only 03 --anew"]


def test_a_gate_takes_a_revision(make):
    subprocess.run(["git", "init", "--quiet", make.folder], check=True)
    identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", make.folder, *identity, "commit", "--quiet", "--allow-empty", "-m", "one"], check=True)
    held = "python -m metallab versus HEAD . --device auto --only 02b --factor"
    assert make("gate", "REF=HEAD", "ONLY=02b")[2][1:] == [f"{held} 1.05"]
    assert make("gate", "REF=HEAD", "ONLY=02b", "FACTOR=1.2")[2][1:] == [f"{held} 1.2"]
    subprocess.run(["git", "-C", make.folder, "branch", "tests"], check=True)  # which also is a folder
    assert make("gate", "REF=tests", "ONLY=02b")[2][1:] == [f"{held.replace('HEAD', 'tests')} 1.05"]
    status, printed, calls = make("gate", "REF=HEAD~1")
    assert (status != 0, calls) == (True, [SETUP])
    assert "make gate REF=HEAD~1" in printed


def test_versus_wants_two_sides(make):
    assert make("versus", "A=HEAD~1", "B=.", "ONLY=02b")[2][-1] == (
        "python -m metallab versus HEAD~1 . --device auto --only 02b"
    )
    status, printed, calls = make("versus", "A=HEAD~1")
    assert (status != 0, calls) == (True, [SETUP])
    assert "make versus A=HEAD~1 B=HEAD" in printed


def test_a_contributor_s_file_is_checked(make):
    assert make("check-results", "FILE=mine.json")[2][-1] == "python -m metallab.results.check_results mine.json"
    status, printed, calls = make("check-results")
    assert (status != 0, calls) == (True, [SETUP])
    assert "make check-results FILE=" in printed
    benches = make.folder / "build" / "bench"
    benches.mkdir(parents=True)
    (benches / "ours.json").touch()
    assert make("check-results")[2][-1].endswith(" build/bench/ours.json"), "after make bench it needs no name"
    (benches / "others.json").touch()
    status, printed, calls = make("check-results")
    assert (status != 0, calls) == (True, [SETUP]), "of two files one has to be named"
    assert "Name one file" in printed


def test_lab_listens_here_only_and_keeps_its_token(make):
    at = f"--notebook-dir={make.folder}"
    calls = [make("lab", *given)[2][-1] for given in ((), ("LAB=notebooks/01.ipynb",), ("LAB=/tmp/mine",))]
    assert calls == [
        f"jupyter lab --ip=127.0.0.1 {at} --preferred-dir={make.folder}/notebooks",
        f"jupyter lab --ip=127.0.0.1 {at} {make.folder}/notebooks/01.ipynb",
        "jupyter lab --ip=127.0.0.1 /tmp/mine",
    ]


def test_an_extra_is_installed_for_its_target_once_and_again_after_a_new_lock(make):
    lock = make.folder / "lock.txt"
    lock.touch()
    into = "--quiet --python .venv/bin/python --require-hashes"
    installs = f"{UV} pip install {into} -r pyproject.toml --extra book -c lock.txt"
    assert make("book", failing="*--extra book*")[0] != 0
    assert make("book")[2] == [SETUP, installs, "python book/build.py"]
    assert make("book", "RUN=build/full-mps")[2] == [SETUP, "python book/build.py build/full-mps"]
    later = time.time() + 5
    os.utime(lock, (later, later))
    assert installs in make("book")[2]


@pytest.mark.parametrize(
    ("target", "message"),
    [("hub", "make hub CLASS=names.txt"), ("mutants", "make mutants MODULE=")],
)
def test_what_is_missing_is_said_before_anything_is_installed(make, target, message):
    status, printed, calls = make(target)
    assert (status, calls) == (2, [])
    assert message in printed


RUN_BY = {  # what a target runs beside metallab and metalsim, which do with what set-up installs
    "test": ["tests/*.py"],
    "test-lab": [f"tests/browser/{name}.py" for name in ("conftest", "chrome", "test_chrome", "test_lab")],
    "test-book": ["tests/browser/*.py", "book/*.py"],
    "book": ["book/*.py"],
    "test-hub": ["tests/classroom/*.py", "classroom/*.py"],
    "hub": ["classroom/*.py"],
    "setup": ["utils/**/*.py"],
}


@pytest.mark.parametrize("target", RUN_BY)
def test_a_target_installs_the_extras_that_its_files_import(target):
    """Whoever has them all would never notice."""
    makefile = (ROOT / "Makefile").read_text()
    installs = set(re.findall(r"\.venv/extra-(\w+)", re.search(rf"^{target}:([^#]*)", makefile, re.MULTILINE)[1]))
    extras = EXTRAS.keys() - {"lab", *LAB.extras}
    owner = {name_of(text).replace("-", "_"): extra for extra in extras for text in EXTRAS[extra]}
    files = [path for pattern in RUN_BY[target] for path in ROOT.glob(pattern)]
    assert files
    wanted = {owner[name]: path for path in files for name in imported(path) & set(owner)}
    assert set(wanted) - {"mlx", "dev"} <= installs, {extra: str(path) for extra, path in wanted.items()}


def imported(path: Path) -> set[str]:
    """The packages that a file imports, also inside functions."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in names}


def test_clean_keeps_the_environment_and_distclean_does_not(make):
    (make.folder / "build").mkdir()
    (make.folder / ".venv-jax").mkdir()
    (make.folder / ".venv-python").mkdir()
    assert make("clean")[0] == 0
    assert not (make.folder / "build").exists()
    assert (make.folder / ".venv").exists()
    assert make("distclean")[0] == 0
    assert not list(make.folder.glob(".venv*"))


PYTHON_THAT_MAKES_ENVIRONMENTS = """#!/bin/sh
echo "$0 $* out=$METALLAB_OUT" >> calls.txt
case "$*" in $FAILING) exit 3;; esac
case "$*" in *" uv venv "*) mkdir -p .venv-jax/bin; cp "$0" .venv-jax/bin/python;; esac
"""


def test_a_newer_jax_has_an_environment_of_its_own_and_runs_the_same_pages(make):
    """Each lock makes it once; a set-up that broke off is none."""
    (make.folder / ".venv/bin/python").write_text(PYTHON_THAT_MAKES_ENVIRONMENTS)
    lock = make.folder / "lock-jax.txt"
    lock.write_text("jax==0.10.2\n")
    page = "-m metallab.headless --mode fast --device cpu --only 07 --only 07b out="
    tests = ".venv-jax/bin/python -m pytest tests/test_jax.py out="
    runs = [f".venv/bin/python {page}", tests, f".venv-jax/bin/python {page}build/fast-jax"]

    def installed(calls):
        return [call.split(" uv pip install ")[1] for call in calls if " uv pip install " in call]

    status, _, calls = make("test-jax", "DEVICE=cpu", failing="*--no-deps*")
    assert status != 0
    assert len(installed(calls)) == 2
    assert not [call for call in calls if "headless" in call]
    status, printed, calls = make("test-jax", "DEVICE=cpu")
    assert status == 0, printed
    into = "--quiet --python .venv-jax/bin/python"
    assert installed(calls) == [
        f"{into} --require-hashes -r lock-jax.txt out=",
        f"{into} --no-deps --no-build-isolation -e . out=",
    ]
    assert calls[-3:] == runs
    _, _, calls = make("test-jax", "DEVICE=cpu")
    assert (installed(calls), calls[-3:]) == ([], runs)
    os.utime(lock, (time.time() + 5, time.time() + 5))
    assert len(installed(make("test-jax")[2])) == 2
    assert make("test-jax", failing="*--only 07b")[0] != 0


def test_jax_mps_is_for_apple_silicon(make):
    (make.folder / ".venv/bin/python").write_text(PYTHON_THAT_MAKES_ENVIRONMENTS)
    (make.folder / "lock-jax.txt").touch()
    names = make.folder / "names"
    names.mkdir()
    for system, made in (("Linux x86_64", False), ("Darwin x86_64", False), ("Darwin arm64", True)):
        (names / "uname").write_text(f"#!/bin/sh\necho '{system}'\n")
        (names / "uname").chmod(0o755)
        status, printed, _ = make("setup-jax-mps", f"PATH={names}:{os.environ['PATH']}")
        assert (status == 0) == made, printed
        assert (make.folder / ".venv-jax/complete").exists() == made
        assert ("make lab BIN=.venv-jax/bin" if made else "make test-jax") in printed


LOCK_TOOL = """#!/bin/sh
echo "$MACOSX_DEPLOYMENT_TARGET $*" >> calls.txt
while test "$1" != -o; do shift; done
grep -q '^kept==1 ' "$2" || exit 4
cat answer.txt > "$2"
"""
HASH = f"    --hash=sha256:{'0' * 64}"


def test_lock_keeps_versions_writes_how_it_was_made_and_lets_no_host_in(make):
    (make.folder / ".venv/bin/python").write_text(LOCK_TOOL)
    lock, answer = make.folder / "lock.txt", make.folder / "answer.txt"
    jax, conda = make.folder / "lock-jax.txt", make.folder / "constraints.txt"
    kept = f"kept==1 \\\n{HASH} \\\n{HASH}\n"
    lock.write_text(kept)
    jax.write_text(kept)
    answer.write_text(f"{kept}new==2 ; sys_platform == 'linux' \\\n{HASH}\n")
    status, printed, calls = make("lock")
    assert status == 0, printed
    options = "--universal --python-version 3.11 --generate-hashes --no-header --no-annotate"
    command, of_jax = (
        f"pip compile pyproject.toml --all-extras {options}",
        f"pip compile --group pyproject.toml:jax {options}",
    )
    program = UV.removeprefix("python ")
    assert calls == [
        f"15.0 {program} {command} --quiet -o build/lock/lock.txt",
        f"15.0 {program} {of_jax} --quiet -o build/lock/lock-jax.txt",
    ]
    written = lock.read_text()
    assert f"# MACOSX_DEPLOYMENT_TARGET=15.0 uv {command}\n" in written
    assert written.endswith(answer.read_text())
    assert jax.read_text() == written.replace(command, of_jax)
    assert versions(conda.read_text()) == ["kept==1", "new==2 ; sys_platform == 'linux'"]
    assert "--upgrade" in make("lock", "UPGRADE=1")[2][0]
    for bad in ("--index-url https://example.org/simple", "kept @ file:///somewhere/kept.whl"):
        answer.write_text(f"{kept}{bad}\n")
        assert make("lock")[0] != 0
        assert lock.read_text() == written


# ---------------------------------------------------------------- continuous integration


CI_MAKEFILE = """
test test-cpu:
	@echo $@ in $(CURDIR); cat; case " $(FAILING) " in *" $@ "*) exit 5;; esac
"""


class Ci:
    """`.ci/run` in a folder of its own, where nothing is installed but what it is started with."""

    def __init__(self, folder, programs):
        self.folder, self.programs = folder, programs
        self.script = folder / ".ci" / "run"
        self.script.parent.mkdir(parents=True)
        shutil.copy(ROOT / ".ci" / "run", self.script)
        (folder / "Makefile").write_text(CI_MAKEFILE)
        programs.mkdir()
        for name in ("bash", "env", "dirname", "make", "sh", "cat"):
            (programs / name).symlink_to(shutil.which(name))
        self.program("id", "echo 0")

    def program(self, name, text):
        (self.programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.programs / name).chmod(0o755)

    def __call__(self, failing=""):
        """(exit status, the targets that were made, the closing lines), from another folder and with an open stdin."""
        inherited = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
        never_ends, _ = os.pipe()
        done = subprocess.run(
            [str(self.script)],
            cwd="/",
            env=inherited | {"CI": "true", "PATH": str(self.programs), "FAILING": failing},
            stdin=never_ends,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        made = re.findall(rf"^(\S+) in {re.escape(str(self.folder))}$", done.stdout, re.MULTILINE)
        return done.returncode, made, done.stdout.rpartition("\n\n")[2].splitlines()


@pytest.fixture
def ci(tmp_path):
    return Ci(tmp_path / "project", tmp_path / "programs")


NO_CLANG = "no clang-19: the sanitizers of shaders are not tested"
NO_QEMU = "make test-cpu: not run, there is no qemu-user"


def test_ci_fails_where_a_command_does_and_says_which(ci):
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    ci.program("clang++-19", "")
    ci.program("qemu-x86_64", "")
    for failing in ([], ["test"], ["test-cpu"], ["test", "test-cpu"]):
        status, made, closing = ci(" ".join(failing))
        assert (status != 0) == bool(failing)
        assert made == ["test", "test-cpu"]
        assert closing == [f"make {name}: {'FAILED' if name in failing else 'passed'}" for name in made]


def test_ci_asks_for_packages_and_says_what_is_not_tested_without(ci):
    """With stand-ins for the package manager: that it fails, or is not there, keeps nobody from testing."""
    asked = ci.folder / "asked"
    for apt, closing in (
        (None, [NO_CLANG, "make test: passed", NO_QEMU]),
        ("exit 1", [NO_CLANG, "make test: passed", NO_QEMU]),
        ("exit 0", ["make test: passed", "make test-cpu: passed"]),
    ):
        if apt:
            ci.program("apt-get", f'echo "$*" >> {asked}\n{apt}')
        assert ci() == (0, [line.split()[1].rstrip(":") for line in closing if "passed" in line], closing)
    installs = [line for line in asked.read_text().splitlines() if line != "update"]
    assert [line.split("recommends ")[1] for line in installs] == ["clang-19 libclang-rt-19-dev", "qemu-user"]
    ci.program("id", "echo 1000")
    assert ci()[2] == [NO_CLANG, "make test: passed", NO_QEMU], "only root may install"
