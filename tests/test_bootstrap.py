"""Set-up in every broken situation: it says what to do, changes nothing it should not, and the next try recovers.

Nothing is really installed: a small program stands in for pip. It follows ``plan.txt`` in the project, so that one
test can let it fail and then let it work. Everything else is the real thing: the virtual environment, the lock, the
signals.
"""

import ast
import importlib.util
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "utils" / "metallab" / "bootstrap.py"

FAKE_PIP = """
import pathlib, subprocess, sys, sysconfig, time
root = pathlib.Path.cwd()
plan = (root / "plan.txt").read_text().splitlines()
site = pathlib.Path(sysconfig.get_paths()["purelib"])
print("Collecting nothing", flush=True)
with open(root / "pip-calls.txt", "a") as calls:
    calls.write("called\\n")
for line in plan:
    word, _, rest = line.partition(" ")
    if word == "say":
        print(rest, flush=True)
    elif word == "sleep":
        time.sleep(float(rest))
    elif word == "wait":
        deadline = time.monotonic() + 60
        while not (root / rest).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    elif word == "child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        (root / "child.new").write_text(str(child.pid))
        (root / "child.new").rename(root / "child.txt")
    elif word == "module":
        name, _, body = rest.partition(" ")
        (site / (name + ".py")).write_text(body)
    elif word == "elsewhere":
        (site / "metallab").mkdir(exist_ok=True)
        (site / "metallab" / "__init__.py").touch()
    elif word == "fail":
        sys.exit(1)
(site / "project.pth").write_text(str(root / "utils"))
"""

PARTS = "module tensorflow\nmodule jax\nmodule onnxruntime\nmodule coremltools\n"
WORKS = f"module torch\nmodule cv2\n{PARTS}"

DRIVER = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("bootstrap", {source!r})
bootstrap = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bootstrap)
make_venv = bootstrap.venv_command
bootstrap.venv_command = lambda project: [*make_venv(project), "--without-pip"]
bootstrap.pip_command = lambda project: [project.python, {pip!r}]
bootstrap.check_compiler = lambda: None
bootstrap.disk_free = lambda folder: 2**40
bootstrap.catch_signals()
sys.exit(bootstrap.main([], bootstrap.Project({root!r})))
"""


class Setup:
    """A small project, bootstrap loaded from its file, and the stand-in for pip."""

    def __init__(self, folder, monkeypatch, capfd):
        spec = importlib.util.spec_from_file_location("bootstrap", SOURCE)
        self.bootstrap = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.bootstrap)
        self.monkeypatch, self.capfd = monkeypatch, capfd
        self.pip = folder / "fake_pip.py"
        self.pip.write_text(FAKE_PIP)
        self.at(folder / "checkout")
        (self.root / "utils" / "metallab").mkdir(parents=True)
        (self.root / "utils" / "metallab" / "__init__.py").touch()
        (self.root / "utils" / "metallab" / "simulation.py").write_text("def arm(required):\n    assert required\n")
        (self.root / "pyproject.toml").write_text(
            '[project]\ndependencies = [\n  "one",\n]\n\n[tool.ruff]\nwidth = 1\n'
        )
        (self.root / "constraints.txt").write_text("one==1\n")
        self.plan(WORKS)
        make_venv = self.bootstrap.venv_command
        replace = {
            "venv_command": lambda project: [*make_venv(project), "--without-pip"],
            "pip_command": lambda project: [project.python, "-I", str(self.pip)],
            "disk_free": lambda folder: 2**40,
        }
        for name, value in replace.items():
            monkeypatch.setattr(self.bootstrap, name, value)
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        monkeypatch.setenv("CXX", "true")  # a compiler that accepts everything; the real check has tests of its own

    def at(self, root):
        """The project is (now) in this folder."""
        self.root = root
        self.project = self.bootstrap.Project(str(root))
        self.venv = root / ".venv"

    def plan(self, text):
        self.root.mkdir(exist_ok=True)
        (self.root / "plan.txt").write_text(text)

    def calls(self):
        """How often pip was called."""
        path = self.root / "pip-calls.txt"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def run(self, *arguments):
        """(exit status, what was printed on both streams)"""
        self.capfd.readouterr()
        status = self.bootstrap.main(list(arguments), self.project)
        printed = self.capfd.readouterr()
        return status, printed.out + printed.err

    def start(self):
        """Set-up in a process of its own."""
        code = DRIVER.format(source=str(SOURCE), pip=str(self.pip), root=str(self.root))
        return subprocess.Popen(
            [sys.executable, "-I", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def wait_for(self, path):
        deadline = time.monotonic() + 20
        while not path.exists():
            assert time.monotonic() < deadline, f"{path} never appeared"
            time.sleep(0.01)

    def stamp(self):
        return json.loads((self.venv / "metallab-setup.json").read_text())

    def works_and_is_current(self):
        """The next try succeeds, and the one after it has nothing to do and says nothing."""
        status, printed = self.run()
        assert status == 0, printed
        assert "Set-up is complete" in printed
        calls = self.calls()
        assert self.run() == (0, "")
        assert self.calls() == calls
        return printed


@pytest.fixture
def setup(tmp_path, monkeypatch, capfd):
    return Setup(tmp_path, monkeypatch, capfd)


def refused(setup, *phrases):
    """Set-up ends with 1 and all of these phrases. Returns what was printed."""
    status, printed = setup.run()
    assert status == 1, printed
    for phrase in phrases:
        assert phrase in printed
    return printed


# ---------------------------------------------------------------- the ordinary way


def test_sets_up_once_and_then_does_nothing(setup):
    setup.works_and_is_current()
    assert setup.calls() == 1
    assert setup.run("--verbose") == (0, ".venv is current.\n")


def test_force_makes_it_anew(setup):
    setup.works_and_is_current()
    mine = setup.venv / "goes"
    mine.touch()
    status, printed = setup.run("--force")
    assert status == 0
    assert "Removing .venv to make it again" in printed
    assert not mine.exists()
    assert setup.calls() == 2


def test_a_changed_dependency_updates_and_a_changed_linter_setting_does_not(setup):
    setup.works_and_is_current()
    mine = setup.venv / "still-the-same-folder"
    mine.touch()
    pyproject = setup.root / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace("width = 1", "width = 2"))
    assert setup.run() == (0, "")
    pyproject.write_text(pyproject.read_text().replace('"one"', '"two"'))
    assert "Updating .venv: pyproject.toml or constraints.txt has changed" in setup.works_and_is_current()
    (setup.root / "constraints.txt").write_text("two==2\n")
    assert "Updating" in setup.works_and_is_current()
    assert mine.exists()


def test_check_reports_and_changes_nothing(setup):
    status, printed = setup.run("--check")
    assert status == 0
    for line in ("platform", "venv and ensurepip", "Python's header files", "C++ compiler", "disk space"):
        assert f"{line:<24}ok\n" in printed
    assert "not made yet" in printed
    assert not setup.venv.exists()


def test_an_empty_folder_on_another_disk_may_stand_behind_a_link(setup, tmp_path):
    big = tmp_path / "big-disk"
    big.mkdir()
    setup.venv.symlink_to(big)
    setup.works_and_is_current()
    (big / "metallab-setup.json").unlink()
    setup.works_and_is_current()
    assert setup.venv.is_symlink()
    assert (big / "metallab-setup.json").exists()


def test_pip_gets_the_project_the_lock_and_no_setting_that_leads_elsewhere(setup, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("PIP_TARGET", "/elsewhere")
    monkeypatch.setenv("PIP_INDEX_URL", "kept")
    command = setup.bootstrap.pip_command(setup.project)
    assert command[:2] == [str(setup.venv / "bin" / "python"), "-I"]
    assert command[-4:] == ["-c", "constraints.txt", "-e", ".[dev]"]
    environment = setup.bootstrap.pip_environment(setup.project)
    assert "PIP_USER" not in environment
    assert "PIP_TARGET" not in environment
    assert environment["PIP_INDEX_URL"] == "kept"
    assert Path(environment["TMPDIR"]).parent == setup.root / "build"


# ---------------------------------------------------------------- which Python


def test_parses_where_python_is_too_old_and_is_not_shadowed_by_its_neighbours(tmp_path):
    ast.parse(SOURCE.read_text(), feature_version=(3, 6))
    package = tmp_path / "utils" / "metallab"
    package.mkdir(parents=True)
    shutil.copy(SOURCE, package)
    for name in ("trace.py", "json.py", "argparse.py", "signal.py"):
        (package / name).write_text("raise SystemExit('shadowed')")
    done = subprocess.run(
        [sys.executable, "-I", package / "bootstrap.py", "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--check" in done.stdout


def test_a_wrong_python_without_a_better_one(setup, monkeypatch):
    monkeypatch.setattr(setup.bootstrap, "running_version", lambda: (3, 9))
    with monkeypatch.context() as without:
        without.setenv("PATH", str(setup.root))
        refused(setup, "this is 3.9", "brew install python@3.11", "apt-get install python3.11 python3.11-venv")
    assert not setup.venv.exists()
    monkeypatch.setattr(setup.bootstrap, "running_version", lambda: (3, 11))
    setup.works_and_is_current()


def test_a_wrong_python_hands_over_to_one_that_really_starts(setup, monkeypatch, tmp_path):
    version = "python{}.{}".format(*sys.version_info[:2])
    shims, good = tmp_path / "shims", tmp_path / "good"
    shims.mkdir()
    good.mkdir()
    (shims / version).write_text("#!/bin/sh\necho 'version not installed' >&2\nexit 127\n")
    (shims / version).chmod(0o755)
    (good / version).symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{shims}{os.pathsep}{good}")
    monkeypatch.setattr(setup.bootstrap, "running_version", lambda: (3, 13))

    class Replaced(Exception):
        pass

    def execv(*arguments):
        raise Replaced(arguments)

    monkeypatch.setattr(os, "execv", execv)
    with pytest.raises(Replaced) as replaced:
        setup.bootstrap.main(["--verbose"], setup.project)
    program, command = replaced.value.args[0]
    assert program == str(good / version)
    assert command == [program, "-I", str(SOURCE), "--verbose"]


def test_the_python_inside_venv_does_not_remove_itself(setup, monkeypatch):
    setup.works_and_is_current()
    monkeypatch.setattr(sys, "prefix", str(setup.venv))
    (setup.venv / "metallab-setup.json").unlink()
    seen = []
    monkeypatch.setattr(os, "execv", lambda *arguments: seen.append(arguments) or sys.exit(0))
    with pytest.raises(SystemExit):
        setup.bootstrap.main([], setup.project)
    assert Path(seen[0][0]).resolve() == Path(sys._base_executable).resolve()
    assert not Path(seen[0][0]).is_relative_to(setup.venv)


# ---------------------------------------------------------------- checks before anything is made


def test_everything_that_is_missing_is_told_in_one_go_and_nothing_is_made(setup, monkeypatch, tmp_path):
    found = importlib.util.find_spec
    with monkeypatch.context() as broken:
        broken.setattr(importlib.util, "find_spec", lambda name: None if name == "ensurepip" else found(name))
        broken.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
        broken.setenv("CXX", "")
        broken.setenv("PATH", str(tmp_path))
        broken.setattr(setup.bootstrap, "disk_free", lambda folder: 2**30)
        version = "python{}.{}".format(*sys.version_info[:2])
        refused(
            setup,
            "has no module ensurepip",
            f"sudo apt-get install {version}-venv",
            "has no header files",
            f"sudo apt-get install {version}-dev",
            "There is no C++ compiler",
            "too little disk space",
            "Nothing was changed",
        )
        assert not setup.venv.exists()
    assert setup.calls() == 0
    setup.works_and_is_current()


@pytest.mark.parametrize(
    ("system", "phrase"), [("Linux", "sudo apt-get install g++"), ("Darwin", "xcode-select --install")]
)
def test_no_compiler(setup, monkeypatch, tmp_path, system, phrase):
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr(subprocess, "call", lambda *a, **k: 0)  # xcode-select finds its folder
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(setup.bootstrap.Problem, match="There is no C") as problem:
        setup.bootstrap.check_compiler()
    assert phrase in str(problem.value)


def test_a_mac_without_command_line_tools_is_not_asked_through_the_stub(setup, monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr(subprocess, "call", lambda *a, **k: 2)
    with pytest.raises(setup.bootstrap.Problem, match="xcode-select --install"):
        setup.bootstrap.check_compiler()


def test_a_compiler_that_does_not_work(setup, monkeypatch, tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'no such header: vector' >&2\nexit 1\n")
    broken.chmod(0o755)
    for named, reason in ((str(broken), "no such header: vector"), ("/no/such/compiler", "No such file")):
        monkeypatch.setenv("CXX", named)
        refused(setup, f"{named} (from CXX) does not work", reason, "unset CXX")
    monkeypatch.setenv("CXX", "")
    setup.bootstrap.check_compiler()  # this machine has one: with the real check it passes
    setup.works_and_is_current()


def test_disk_space_is_added_up_for_each_disk(setup, monkeypatch, tmp_path):
    installed, wheels = setup.bootstrap.ROOM["Linux"]
    monkeypatch.setattr("platform.system", lambda: "Linux")
    gib = 2**30
    monkeypatch.setattr(setup.bootstrap, "disk_free", lambda folder: (installed + wheels + 0.1) * gib)
    setup.bootstrap.check_disk(setup.project, "build")
    monkeypatch.delenv("PIP_NO_CACHE_DIR")
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(setup.bootstrap.Problem, match=r"needs 17\.0 GiB more") as problem:  # the cache wants its copy
        setup.bootstrap.check_disk(setup.project, "build")
    assert "PIP_NO_CACHE_DIR=1" in str(problem.value)
    setup.bootstrap.check_disk(setup.project, "update")
    monkeypatch.setattr(setup.bootstrap, "folder_size", lambda folder: 8 * gib)  # what .venv and cache already hold
    monkeypatch.setattr(setup.bootstrap, "disk_free", lambda folder: (installed + wheels - 8 + 0.1) * gib)
    setup.bootstrap.check_disk(setup.project, "rebuild")
    with pytest.raises(setup.bootstrap.Problem):
        setup.bootstrap.check_disk(setup.project, "build")


@pytest.mark.parametrize(
    ("system", "machine", "mac", "libc", "phrase"),
    [
        ("Windows", "AMD64", "", ("", ""), "use WSL 2"),
        ("Linux", "aarch64", "", ("glibc", "2.36"), "this is Linux on aarch64"),
        ("Darwin", "x86_64", "15.1", ("", ""), "this is an Intel Python"),
        ("Darwin", "arm64", "14.6.1", ("", ""), "needed by the MPS device of torch 2.15; this is 14.6.1. Update macOS"),
        ("Linux", "x86_64", "", ("glibc", "2.27"), "this has glibc 2.27"),
        ("Linux", "x86_64", "", ("", ""), "this has another C library"),
        ("Darwin", "arm64", "15.0", ("", ""), None),
        ("Darwin", "arm64", "26.1", ("", ""), None),
        ("Linux", "x86_64", "", ("glibc", "2.36"), None),
    ],
)
def test_platforms(setup, monkeypatch, system, machine, mac, libc, phrase):
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("platform.mac_ver", lambda: (mac, ("", "", ""), machine))
    monkeypatch.setattr("platform.libc_ver", lambda: libc)
    if phrase is None:
        setup.bootstrap.check_platform()
    else:
        refused(setup, phrase)
        assert not (setup.root / "build").exists()


# ---------------------------------------------------------------- pip fails

RETRY = (
    "say WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError(Temporary failure in "
    "name resolution)': /simple/one/\n"
)
NONE_FOUND = "say ERROR: No matching distribution found for one==1\n"


@pytest.mark.parametrize(
    ("said", "phrases"),
    [
        (RETRY + NONE_FOUND, ["could not reach the package server", "HTTPS_PROXY"]),
        ("say ReadTimeoutError: Read timed out.\n", ["could not reach the package server"]),
        (
            RETRY + "say ERROR: Cannot install one\nsay The user requested (constraint) one==1\n"
            "say ERROR: ResolutionImpossible: for help visit\n",
            ["contradict each other", "The user requested (constraint) one==1", "make lock"],
        ),
        ("say ERROR: [SSL: CERTIFICATE_VERIFY_FAILED]\n", ["does not trust the certificate", "PIP_CERT="]),
        ("say ERROR: Could not install: [Errno 28] No space left on device\n", ["The disk is full"]),
        (NONE_FOUND, ["cannot be found", "No matching distribution found for one==1"]),
        ("".join(f"say line {n}.\n" for n in range(30)), ["pip failed", "line 10.", "line 29."]),
    ],
    ids=["no network", "timeout", "conflict", "certificate", "disk full", "not found", "other"],
)
def test_pip_fails(setup, said, phrases):
    setup.plan(said + "fail\n")
    printed = refused(setup, *phrases, "The full log: build/setup.log")
    assert "line 9." not in printed
    assert said.splitlines()[-1].partition(" ")[2] in (setup.root / "build" / "setup.log").read_text()
    setup.plan(WORKS)
    assert "Removing .venv" in setup.works_and_is_current()


def test_a_wheel_that_the_reader_s_own_folder_lacks_is_no_fault_of_the_lists(setup, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    setup.plan(NONE_FOUND + "fail\n")
    said = refused(setup, "PIP_FIND_LINKS")
    assert "same Python" in said
    assert "make lock" not in said


def test_a_failed_update_keeps_venv_unless_pip_had_begun_to_install(setup):
    setup.works_and_is_current()
    mine = setup.venv / "still-the-same-folder"
    mine.touch()
    (setup.root / "constraints.txt").write_text("one==2\n")
    setup.plan(RETRY + NONE_FOUND + "fail\n")
    refused(setup, "could not reach")
    refused(setup, "could not reach")
    setup.plan(WORKS)
    assert "Updating .venv" in setup.works_and_is_current()
    assert mine.exists()
    (setup.root / "constraints.txt").write_text("one==3\n")
    setup.plan("say Installing collected packages: a, b\nsay ERROR: broken wheel\nfail\n")
    refused(setup, "broken wheel")
    setup.plan(WORKS)
    assert "Removing .venv" in setup.works_and_is_current()
    assert not mine.exists()


def test_making_the_environment_fails(setup, monkeypatch):
    with monkeypatch.context() as broken:
        failing = [sys.executable, "-c", "import sys; sys.exit('no room for a pip')"]
        broken.setattr(setup.bootstrap, "venv_command", lambda project: failing)
        refused(setup, "Making .venv failed", "no room for a pip", "build/setup.log")
    setup.works_and_is_current()


# ---------------------------------------------------------------- installed, but does it work?


def test_a_missing_system_library_is_a_warning_that_is_recorded(setup):
    reason = "libGL.so.1: cannot open shared object file: No such file or directory"
    setup.plan(f"module torch\nmodule cv2 raise ImportError({reason!r})\n{PARTS}")
    printed = setup.works_and_is_current()
    assert "apt-get install libgl1 libglib2.0-0" in printed
    assert "libGL.so.1" in printed
    assert "OpenCV does not import. Only 08 of the pages need it" in printed
    assert printed.count("Warning") == 1
    assert reason in setup.stamp()["broken"]["cv2"]
    assert "apt-get install libgl1" in setup.run("--check")[1]


def test_another_failure_of_opencv_does_not_name_packages(setup):
    setup.plan(f"module torch\nmodule cv2 raise ImportError('numpy is too new')\n{PARTS}")
    printed = setup.works_and_is_current()
    assert "numpy is too new" in printed
    assert "apt-get" not in printed


@pytest.mark.parametrize("module", ["tensorflow", "jax", "onnxruntime", "coremltools"])
def test_what_only_some_pages_need_is_a_warning(setup, module):
    setup.plan(WORKS + f"module {module} raise OSError('torn file')\n")
    printed = setup.works_and_is_current()
    assert "does not import. Only 0" in printed
    assert "  OSError: torn file" in printed
    assert list(setup.stamp()["broken"]) == [module]
    assert "torn file" in setup.run("--check")[1]


def test_a_warning_names_the_pages_that_say_so(setup):
    pages = SOURCE.parents[2].glob("notebooks/[0-9]*.ipynb")
    needs = {page.name[:2]: json.loads(page.read_text())["metadata"]["metallab"]["needs"] for page in sorted(pages)}
    for module, _, said in setup.bootstrap.PARTS:
        package = {"cv2": "opencv-python"}.get(module, module)
        assert re.findall(r"\d+", said) == [page for page, packages in needs.items() if package in packages], module


@pytest.mark.parametrize("system", ["Linux", "Darwin"])
def test_the_simulated_gpu_is_built_at_set_up_where_there_is_one(setup, system, monkeypatch):
    code = "import pathlib\ndef arm(required):\n    pathlib.Path('armed').touch()\n    raise RuntimeError('no room')\n"
    (setup.root / "utils" / "metallab" / "simulation.py").write_text(code)
    for name in ("check_platform", "check_compiler"):
        monkeypatch.setattr(setup.bootstrap, name, lambda: None)
    monkeypatch.setattr("platform.system", lambda: system)
    printed = setup.works_and_is_current()
    assert (setup.root / "armed").exists() == (system == "Linux")
    assert ("the simulated Apple GPU cannot be had" in printed) == (system == "Linux")
    assert ("RuntimeError: no room" in printed) == (system == "Linux")


@pytest.mark.parametrize(
    ("plan", "phrase"),
    [
        ("module torch raise ImportError('no such symbol')\n", "torch is installed and does not import"),
        (WORKS + "elsewhere\n", "metallab should be imported from"),
    ],
)
def test_an_installation_that_does_not_work(setup, plan, phrase):
    setup.plan(plan)
    refused(setup, phrase)
    setup.plan(WORKS)
    assert "Removing .venv" in setup.works_and_is_current()


# ---------------------------------------------------------------- an environment in a bad state


def damage_interrupted(setup):
    """Killed while the environment was being made: only our mark is there."""
    shutil.rmtree(setup.venv)
    setup.venv.mkdir()
    (setup.venv / "metallab-setup.started").touch()


def damage_stamp(setup):
    (setup.venv / "metallab-setup.json").write_text('{"checkout": ')


def damage_no_stamp(setup):
    (setup.venv / "metallab-setup.json").unlink()


def damage_python(setup):
    (setup.venv / "bin" / "python").unlink()
    (setup.venv / "bin" / "python").symlink_to("/no/such/python")


def damage_python_version(setup):
    stamp = setup.stamp()
    stamp["python"] = [3, 12] if sys.version_info[:2] == (3, 11) else [3, 11]
    (setup.venv / "metallab-setup.json").write_text(json.dumps(stamp))


def damage_place(setup):
    setup.at(setup.root.rename(setup.root.parent / "moved"))


@pytest.mark.parametrize(
    ("damage", "phrase"),
    [
        (damage_interrupted, "not complete"),
        (damage_stamp, "not complete"),
        (damage_no_stamp, "not complete"),
        (damage_python, "no longer starts"),
        (damage_python_version, "has changed to"),
        (damage_place, "made in another folder"),
    ],
)
def test_a_damaged_environment_is_made_again(setup, damage, phrase):
    setup.works_and_is_current()
    damage(setup)
    mine = setup.venv / "old"
    mine.touch()
    printed = setup.works_and_is_current()
    assert "Removing .venv to make it again: " in printed
    assert phrase in printed
    assert not mine.exists()
    assert setup.stamp()["checkout"] == str(setup.root)


def test_a_folder_that_is_no_environment_is_left_alone(setup):
    setup.venv.mkdir()
    (setup.venv / "thesis.txt").write_text("mine")
    refused(setup, "no virtual environment", "Move it away")
    assert (setup.venv / "thesis.txt").read_text() == "mine"
    setup.venv.rename(setup.root / "moved-away")
    setup.works_and_is_current()


# ---------------------------------------------------------------- interrupted, and two at once


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted(setup, number, status):
    setup.plan("child\nsleep 60\n")
    process = setup.start()
    setup.wait_for(setup.root / "child.txt")
    process.send_signal(number)
    printed, _ = process.communicate(timeout=20)
    assert process.returncode == status, printed
    assert "Set-up was interrupted" in printed
    assert "Traceback" not in printed
    assert not alive(int((setup.root / "child.txt").read_text()))
    setup.plan(WORKS)
    assert "Removing .venv" in setup.works_and_is_current()


@pytest.mark.skipif(sys.platform != "linux", reason="it is built on Linux only")
def test_interrupted_while_the_simulated_gpu_is_built(setup):
    code = "import os, pathlib, time\ndef arm(required):\n    pathlib.Path('new').write_text(str(os.getpid()))\n"
    code += "    pathlib.Path('new').rename('built-by.txt')\n    time.sleep(60)\n"
    simulation = setup.root / "utils" / "metallab" / "simulation.py"
    simulation.write_text(code)
    process = setup.start()
    setup.wait_for(setup.root / "built-by.txt")
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=20)
    assert process.returncode == 143, printed
    assert "Set-up was interrupted" in printed
    assert not alive(int((setup.root / "built-by.txt").read_text()))
    simulation.write_text("def arm(required):\n    pass\n")
    assert "Removing .venv" in setup.works_and_is_current()


def test_a_crash_of_an_import_is_told_as_one(setup):
    setup.plan(WORKS + "module jax import os, sys; print('a note', file=sys.stderr, flush=True); os.abort()\n")
    printed = setup.works_and_is_current()
    assert "JAX does not import. Only 07 of the pages need it" in printed
    assert "it was killed by signal 6" in printed
    assert "a note" not in printed


def alive(pid):
    """Whether a process still runs: one that has ended and waits to be collected does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


def test_the_second_of_two_waits_and_has_nothing_left_to_do(setup):
    setup.plan("wait go\n" + WORKS)
    first = setup.start()
    setup.wait_for(setup.root / "pip-calls.txt")
    second = setup.start()
    assert "Another set-up of this checkout is running: waiting" in second.stdout.readline()
    (setup.root / "go").touch()
    printed, _ = second.communicate(timeout=20)
    assert second.returncode == 0, printed
    assert "The other set-up has finished" in printed
    first.communicate(timeout=20)
    assert first.returncode == 0
    assert setup.calls() == 1


def test_a_killed_set_up_leaves_the_lock_to_the_pip_that_is_still_writing(setup):
    setup.plan("wait go\n" + WORKS)
    first = setup.start()
    setup.wait_for(setup.root / "pip-calls.txt")
    first.kill()
    first.communicate(timeout=20)
    second = setup.start()
    assert "waiting" in second.stdout.readline()
    setup.plan(WORKS)
    (setup.root / "go").touch()
    printed, _ = second.communicate(timeout=20)
    assert second.returncode == 0, printed
    assert "Removing .venv" in printed
    assert setup.run() == (0, "")


# ---------------------------------------------------------------- progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_a_line_now_and_then_or_one_line_that_changes(setup):
    now = [0.0]
    plain, terminal = io.StringIO(), Terminal()
    both = [setup.bootstrap.Progress(stream, clock=lambda: now[0]) for stream in (plain, terminal)]
    for second in range(66):
        now[0] = float(second)
        for progress in both:
            progress.update(f"step {second}")
    lines = plain.getvalue().splitlines()
    assert lines[0] == "[0:00] step 0"
    assert lines[-1] == "[1:00] step 60"
    assert len(lines) == 7
    assert "\n" not in terminal.getvalue()
    assert terminal.getvalue().endswith("[1:05] step 65")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("Collecting torch==2.15.0 (from metal-lab==0.1.0)", "looking up torch==2.15.0"),
        ("Downloading torch-2.15.0-cp311-linux.whl (539.1 MB)", "downloading torch (539.1 MB)"),
        ("Processing /some/where/scipy-1.17.1-cp311.whl (from x)", "unpacking scipy"),
        ("Installing collected packages: a, b", "installing"),
        ("WARNING: Retrying (Retry(total=4, connect=None))", "the network fails, pip tries again"),
        ("Requirement already satisfied: six", None),
        ("", None),
    ],
)
def test_what_pip_says_becomes_progress(setup, line, text):
    assert setup.bootstrap.phase(line) == text


def test_only_python_s_own_folder_is_counted(setup):
    """Finder and `make hub` put other things beside it."""
    lib = Path(setup.project.venv, "lib")
    for name in ("node_modules/site-packages/odd-info", "python3.11/site-packages/one-1.dist-info"):
        (lib / name).mkdir(parents=True)
    (lib / ".DS_Store").write_text("")
    (lib / "python3.11/site-packages/one").mkdir()
    assert setup.bootstrap.count_installed(setup.project) == 1


def test_a_silent_pip_still_shows_progress(setup, monkeypatch):
    monkeypatch.setattr(setup.bootstrap, "SHOW_EVERY", 0.5)
    setup.plan("say Installing collected packages: a, b\nsleep 1.3\n" + WORKS)
    assert "installing 0 of 2" in setup.works_and_is_current()
