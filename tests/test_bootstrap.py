"""Set-up in every broken situation: it says what to do, changes nothing it should not, and the next try recovers.

Little is really installed: a small program stands in for uv. It follows ``plan.txt`` in the project, so that one test
can let it fail and then let it work. Everything else is the real thing: the virtual environment, the lock, the signals;
and one test has the real pip fetch and the real uv install wheels that it made, with right and wrong hashes.
"""

import ast
import hashlib
import importlib.util
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from test_turns import until

SOURCE = Path(__file__).parents[1] / "utils" / "metallab" / "bootstrap.py"

FAKE_UV = """#!{python}
import json, os, pathlib, subprocess, sys, time
root = pathlib.Path.cwd()
settings = {{name: value for name, value in os.environ.items() if name.startswith(("UV_", "SSL_", "HTTPS_"))}}
with open(root / "uv-calls.txt", "a") as calls:
    calls.write(json.dumps([sys.argv[1:], settings]) + "\\n")
if sys.argv[1] == "venv":
    sys.exit(subprocess.call([{python!r}, "-I", "-m", "venv", "--without-pip", sys.argv[-1]]))
(site,) = root.glob(".venv/lib/python*/site-packages") if sys.argv[1] == "pip" else [root]
if "--editable" in sys.argv:
    (site / "project.pth").write_text(str(root / "utils"))
    sys.exit()
plan = (root / ("python-plan.txt" if sys.argv[1] == "python" else "plan.txt")).read_text().splitlines()
print("Resolved nothing", flush=True)
for line in plan:
    word, _, rest = line.partition(" ")
    if word == "say":
        print(rest, flush=True)
    elif word == "wait":
        (root / "waiting.txt").touch()
        deadline = time.monotonic() + 600
        while not (root / rest).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    elif word == "child":
        child = subprocess.Popen([{python!r}, "-c", "import time; time.sleep(600)"])
        (root / "child.new").write_text(str(child.pid))
        (root / "child.new").rename(root / "child.txt")
    elif word == "module":
        name, _, body = rest.partition(" ")
        file = site / (name.replace(".", "/") + ".py")
        file.parent.mkdir(exist_ok=True)
        file.write_text(body)
    elif word == "elsewhere":
        (site / "metallab").mkdir(exist_ok=True)
        (site / "metallab" / "__init__.py").touch()
    elif word == "fail":
        sys.exit(1)
"""
UV_VERSION = "uv==1.2.3 \\\n    --hash=sha256:00\n"

PARTS = "module tensorflow\nmodule jax\nmodule onnxruntime\nmodule coremltools\nmodule mlx.core\n"
WORKS = f"module torch\nmodule cv2\n{PARTS}"

DRIVER = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("bootstrap", {source!r})
bootstrap = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bootstrap)
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
        self.at(folder / "checkout")
        (self.root / "utils" / "metallab").mkdir(parents=True)
        (self.root / "utils" / "metallab" / "__init__.py").touch()
        (self.root / "utils" / "metallab" / "simulation.py").write_text("def arm(required):\n    assert required\n")
        (self.root / "pyproject.toml").write_text(
            '[project]\ndependencies = [\n  "one",\n]\n\n[tool.ruff]\nwidth = 1\n'
        )
        self.lock("one==1\n")
        self.plan(WORKS)
        self.fake_uv()
        monkeypatch.setattr(self.bootstrap, "disk_free", lambda folder: 2**40)
        for name in [name for name in os.environ if name.startswith(("UV_", "PIP_"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("UV_CACHE_DIR", str(folder / "cache"))
        monkeypatch.setenv("CXX", "true")  # a compiler that accepts everything; the real check has tests of its own

    def at(self, root):
        """The project is (now) in this folder."""
        self.root = root
        self.project = self.bootstrap.Project(str(root))
        self.venv = root / ".venv"

    def lock(self, text):
        (self.root / "lock.txt").write_text(text + UV_VERSION)

    def fake_uv(self):
        """What set-up would have fetched: uv, and the pip that knows the user's settings."""
        programs = self.root / "build" / "uv" / "bin"
        programs.mkdir(parents=True)
        (programs / "uv").write_text(FAKE_UV.format(python=sys.executable))
        (programs / "python").write_text(f"#!/bin/sh\ncat {self.root}/pip-settings.txt\n")
        for program in programs.iterdir():
            program.chmod(0o755)
        (self.root / "pip-settings.txt").touch()
        (programs.parent / "uv.txt").write_text(UV_VERSION)

    def plan(self, text):
        self.root.mkdir(exist_ok=True)
        (self.root / "plan.txt").write_text(text)

    def uv_calls(self):
        """[arguments, environment] of each call of uv."""
        path = self.root / "uv-calls.txt"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def calls(self):
        """How often uv was asked to install what others made."""
        return sum("--require-hashes" in arguments for arguments, _ in self.uv_calls())

    def run(self, *arguments):
        """(exit status, what was printed on both streams)"""
        self.capfd.readouterr()
        status = self.bootstrap.main(list(arguments), self.project)
        printed = self.capfd.readouterr()
        return status, printed.out + printed.err

    def start(self):
        """Set-up in a process of its own."""
        code = DRIVER.format(source=str(SOURCE), root=str(self.root))
        return subprocess.Popen(
            [sys.executable, "-I", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def wait_for(self, path):
        until(path.exists)

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
    assert "Updating .venv: pyproject.toml or lock.txt has changed" in setup.works_and_is_current()
    setup.lock("two==2\n")
    assert "Updating" in setup.works_and_is_current()
    assert mine.exists()


def test_check_reports_and_changes_nothing(setup):
    status, printed = setup.run("--check")
    assert status == 0
    for line in ("platform", "Python", "C++ compiler", "disk space"):
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


@pytest.mark.parametrize(
    ("system", "libc", "and_mlx"),
    [("Linux", "2.35", True), ("Linux", "2.34", False), ("Linux", "2.4", False), ("Darwin", "", True)],
)
def test_uv_holds_what_others_made_against_the_lock_and_installs_the_project_alone(
    setup, monkeypatch, system, libc, and_mlx
):
    """MLX alone is left out where its wheel would not load."""
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", libc) if libc else ("", ""))
    for name in ("check_platform", "check_compiler"):
        monkeypatch.setattr(setup.bootstrap, name, lambda: None)
    setup.works_and_is_current()
    made, installed, linked = [arguments for arguments, _ in setup.uv_calls()]
    assert made[0] == "venv"
    assert made[-3] == "--python"
    extras = ["--extra", "lab", "--extra", "dev"] + ["--extra", "mlx"] * and_mlx
    into = ["pip", "install", "--python", str(setup.venv / "bin" / "python")]
    assert installed == [*into, "--require-hashes", "-r", "pyproject.toml", *extras, "-c", "lock.txt"]
    assert linked == [
        *into,
        "--offline",
        "--no-deps",
        "--no-build-isolation",
        "--editable",
        ".",
        "--editable",
        "metalsim",
    ]


PIP_KNOWS = """
global.index-url='https://company.example/simple'
global.extra-index-url='https://one.example/simple\\nhttps://two.example/simple'
global.cert='/company.pem'
install.trusted-host='three.example'
user.something='else'
:env:.find-links='/media/stick /media/more'
:env:.cert='/newer.pem'
"""


def test_what_pip_was_told_of_mirrors_uv_is_told(setup, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    (setup.root / "pip-settings.txt").write_text(PIP_KNOWS)
    setup.works_and_is_current()
    told = setup.uv_calls()[1][1]
    assert told["UV_DEFAULT_INDEX"] == "https://company.example/simple"
    assert told["UV_INDEX"] == "https://one.example/simple https://two.example/simple"
    assert told["UV_INDEX_STRATEGY"] == "unsafe-best-match", "pip takes the best file of all indexes"
    assert told["UV_FIND_LINKS"] == "/media/stick,/media/more"
    assert told["UV_INSECURE_HOST"] == "three.example"
    assert told["SSL_CERT_FILE"] == "/newer.pem", "a variable wins over a file"
    assert "--no-index" not in setup.uv_calls()[1][0]


def test_a_cache_that_cannot_be_written_is_replaced_by_one_of_ours(setup, monkeypatch, tmp_path):
    monkeypatch.setattr(
        os, "access", lambda path, mode: mode != os.W_OK or not str(path).startswith(str(tmp_path / "ro"))
    )
    (tmp_path / "ro").mkdir()
    monkeypatch.delenv("UV_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "ro"))
    setup.works_and_is_current()
    assert setup.uv_calls()[1][1]["UV_CACHE_DIR"] == str(setup.root / "build" / "uv-cache")
    (tmp_path / "ro").rename(tmp_path / "writable")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "writable"))
    assert setup.bootstrap.uv_cache(setup.project) == str(tmp_path / "writable" / "uv")


def wheel(folder, name, files):
    """A wheel that pip and uv install; returns its line of a lock, with the right hash."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: us\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            about = zipfile.ZipInfo(file)
            about.external_attr = 0o100755 << 16  # a file that may be started
            archive.writestr(about, text)
    return f"{name}==1.0 \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def spoilt(line):
    digest = line.split("sha256:")[1].strip()
    return line.replace(digest, digest[::-1])


@pytest.mark.nightly
def test_a_file_with_another_hash_is_not_installed(setup, monkeypatch, tmp_path):
    """With the real pip, which fetches uv, and the real uv, which the wheel that it fetches only calls."""
    real = shutil.which("uv", path=os.path.dirname(sys.executable))
    assert real, "uv belongs to this environment: make setup"
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    script = f'#!/bin/sh\ncase "$1" in python) exit 1;; esac\nexec {real} "$@"\n'
    uv = wheel(wheels, "uv", {"uv-1.0.data/scripts/uv": script})
    one = wheel(wheels, "one", {"one.py": ""})
    (setup.root / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["none"]\nbuild-backend = "none"\n'
        '[project]\nname = "metal-lab"\nversion = "1.0"\n'
        '[project.optional-dependencies]\nlab = ["one"]\nmlx = []\ndev = []\n'
    )
    (setup.root / "metalsim").mkdir()
    second = (setup.root / "pyproject.toml").read_text().replace("metal-lab", "metalsim")
    (setup.root / "metalsim" / "pyproject.toml").write_text(second)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    lock = setup.root / "lock.txt"
    lock.write_text(one + spoilt(uv))
    spoken = "not the one that lock.txt names (its hash differs)"
    refused(setup, spoken, "THESE PACKAGES DO NOT MATCH THE HASHES", "uv==1.0")  # the uv that is there is another one
    assert not setup.venv.exists()
    lock.write_text(one + "uv==1.0\n")
    refused(setup, "lock.txt names no version of uv, with its hashes")
    lock.write_text(spoilt(one) + uv)
    refused(setup, spoken, "Hash mismatch for `one==1.0`")
    lock.write_text(uv)
    refused(setup, "PIP_NO_INDEX keeps set-up to the wheels", "no trusted hash was provided for: `one`")
    assert not list(setup.venv.rglob("one.py"))
    lock.write_text(one + uv)
    refused(setup, "Installing failed", "No module named 'none'")  # the project's own part, which this one lacks
    assert list(setup.venv.rglob("one.py"))


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


def python_stand_in(folder, version, machine="", headers=True):
    """A Python that answers the two questions that it is asked."""
    folder.mkdir(exist_ok=True)
    machine = machine or "$(uname -m)"
    path = folder / "python{}.{}".format(*version)
    about = f'echo "{machine} {headers}"'
    path.write_text(f'#!/bin/sh\ncase "$*" in *-S*) echo {version[0]} {version[1]};; *) {about};; esac\n')
    path.chmod(0o755)
    return str(path)


def test_a_python_has_to_start_to_have_headers_and_to_be_for_this_processor(setup, tmp_path):
    find = setup.bootstrap.find_python
    old, new = python_stand_in(tmp_path / "old", (3, 9)), python_stand_in(tmp_path / "new", (3, 13))
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "python3.11").write_text("#!/bin/sh\necho 'version not installed' >&2\nexit 127\n")
    (shims / "python3.11").chmod(0o755)
    bare = python_stand_in(tmp_path / "bare", (3, 11), headers=False)
    intel = python_stand_in(tmp_path / "intel", (3, 11), machine="vax")
    good = python_stand_in(tmp_path / "good", (3, 12))
    folders = [tmp_path / name for name in ("shims", "bare", "intel")]
    path = os.pathsep.join(map(str, folders))
    chosen, lacking = find(old, path)
    assert chosen is None
    assert [line.split(" ", 1)[0] for line in lacking] == [bare, intel]
    assert "sudo apt-get install python3.11-dev" in lacking[0]
    assert "another kind of processor" in lacking[1]
    assert find(new, f"{path}{os.pathsep}{tmp_path / 'good'}")[0] == good
    assert find(good, path)[0] == good
    (tmp_path / "good" / "pyvenv.cfg").touch()
    (tmp_path / "good" / "bin").mkdir()
    inside = python_stand_in(tmp_path / "good" / "bin", (3, 12))
    assert find(new, os.path.dirname(inside))[0] is None, "an environment that somebody activated"


def test_without_a_python_that_will_do_uv_brings_one_or_says_what_to_do(setup, monkeypatch):
    with monkeypatch.context() as without:
        without.setattr(setup.bootstrap, "find_python", lambda *_: (None, ["/usr/bin/python3.11 has no header files"]))
        (setup.root / "python-plan.txt").write_text("say error: dns error\nfail\n")
        printed = refused(setup, "none could be downloaded", "brew install python@3.11", "apt-get install python3.11")
        assert "/usr/bin/python3.11 has no header files" in printed
        assert "dns error" in printed
        assert not setup.venv.exists()
        (setup.root / "python-plan.txt").write_text("")
        setup.works_and_is_current()
    (python, own), (made, _) = [call for call in setup.uv_calls() if call[0][0] in ("python", "venv")][1:]
    assert python == ["python", "install", "3.12"]
    assert own["UV_PYTHON_INSTALL_DIR"] == str(setup.root / ".venv-python"), "where a class can read it, too"
    assert made[-4:-1] == ["--managed-python", "--python", "3.12"]


def test_a_python_that_is_too_old_for_uv_is_told_so(setup, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 7, 1))
    refused(setup, "Python 3.8 or newer, this is 3.7", "PYTHON=")
    assert not setup.venv.exists()


# ---------------------------------------------------------------- checks before anything is made


def test_everything_that_is_missing_is_told_in_one_go_and_nothing_is_made(setup, monkeypatch, tmp_path):
    find_spec = importlib.util.find_spec
    with monkeypatch.context() as broken:
        broken.setattr(importlib.util, "find_spec", lambda name: None if name == "ensurepip" else find_spec(name))
        broken.setenv("CXX", "")
        broken.setenv("PATH", str(tmp_path))
        broken.setattr(setup.bootstrap, "disk_free", lambda folder: 2**30)
        version = "python{}.{}".format(*sys.version_info[:2])
        refused(
            setup,
            "has no module ensurepip",
            f"sudo apt-get install {version}-venv",
            "There is no C++ compiler",
            "too little disk space",
            "Nothing was changed",
        )
        assert not setup.venv.exists()
    assert setup.calls() == 0
    setup.works_and_is_current()


def test_a_mac_without_command_line_tools_is_not_asked_through_the_stub(setup, monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr(subprocess, "call", lambda *a, **k: 2)
    with pytest.raises(setup.bootstrap.SetupError, match="xcode-select --install"):
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


def test_disk_space_is_asked_for_what_is_not_there_yet(setup, monkeypatch, tmp_path):
    installed = setup.bootstrap.ROOM["Linux"]
    gib = 2**30
    monkeypatch.setattr("platform.system", lambda: "Linux")

    def needs(gibibytes, action="build"):
        """Exactly so much is enough."""
        monkeypatch.setattr(setup.bootstrap, "disk_free", lambda folder: (gibibytes + 0.1) * gib)
        setup.bootstrap.check_disk(setup.project, action)
        monkeypatch.setattr(setup.bootstrap, "disk_free", lambda folder: (gibibytes - 0.1) * gib)
        with pytest.raises(setup.bootstrap.SetupError, match=rf"needs {gibibytes:.1f} GiB more") as problem:
            setup.bootstrap.check_disk(setup.project, action)
        assert "UV_CACHE_DIR=" in str(problem.value)

    needs(installed)  # .venv links to the files in the cache
    needs(setup.bootstrap.ROOM_FOR_UPDATE, "update")
    sizes = {str(tmp_path / "cache"): 3 * gib, setup.project.venv: 5 * gib}
    monkeypatch.setattr(setup.bootstrap, "folder_size", lambda folder: sizes[folder])
    needs(installed - 3)  # what is cached is not fetched again
    needs(installed - 5, "rebuild")  # what .venv holds goes first
    (tmp_path / "cache").mkdir()
    stat = os.stat
    elsewhere = os.stat_result([*stat(tmp_path)[:2], 999, *stat(tmp_path)[3:10]])
    monkeypatch.setattr(
        os, "stat", lambda path, **more: elsewhere if str(path) == str(tmp_path / "cache") else stat(path, **more)
    )
    needs(installed)  # copies, on two disks


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
        assert not (setup.root / "build" / "setup.lock").exists()


# ---------------------------------------------------------------- uv fails

NO_NETWORK = "say error: Request failed after 3 retries\nsay   cause: Failed to fetch: `simple/one/`\n"
NONE_FOUND = "say error: No solution found when resolving dependencies\nsay   cause: there is no version of one==1\n"


@pytest.mark.parametrize(
    ("plan", "phrases"),
    [
        (NO_NETWORK, ["could not be reached", "HTTPS_PROXY", "PIP_INDEX_URL", "Failed to fetch"]),
        (
            "say WARNING: Retrying (Retry(total=4)) after NewConnectionError('x')\n"
            "say ERROR: No matching distribution found for uv==1.2.3\n",
            ["could not be reached", "No matching distribution found for uv==1.2.3"],
        ),
        (NONE_FOUND, ["do not agree", "no version of one==1", "make lock"]),
        (
            "say error: Hash-checking is required, but no trusted hash was provided for: `two`\n",
            ["do not agree", "`two`"],
        ),
        (
            "say error: Failed to download `one==1`\nsay   cause: Hash mismatch for `one==1`\n",
            ["is not the one that lock.txt names", "Hash mismatch for `one==1`", "git checkout lock.txt"],
        ),
        ("say error: x\nsay   cause: invalid peer certificate: UnknownIssuer\n", ["not trusted", "PIP_CERT="]),
        ("say error: failed: No space left on device (os error 28)\n", ["The disk is full"]),
        ("".join(f"say line {n}.\n" for n in range(30)), ["Installing failed", "line 10.", "line 29."]),
    ],
    ids=["no network", "no network for pip", "not found", "not locked", "hash", "certificate", "disk full", "other"],
)
def test_uv_fails(setup, plan, phrases):
    setup.plan(plan + "fail\n")
    printed = refused(setup, *phrases, "The full log: build/setup.log")
    assert "line 9." not in printed
    assert plan.splitlines()[-1].partition(" ")[2] in (setup.root / "build" / "setup.log").read_text()
    setup.plan(WORKS)
    assert "Removing .venv" in setup.works_and_is_current()


def test_a_failed_update_keeps_venv_unless_uv_may_have_begun_to_install(setup):
    setup.works_and_is_current()
    mine = setup.venv / "still-the-same-folder"
    mine.touch()
    setup.lock("one==2\n")
    setup.plan(NO_NETWORK + "fail\n")
    refused(setup, "could not be reached")
    refused(setup, "could not be reached")
    setup.plan(WORKS)
    assert "Updating .venv" in setup.works_and_is_current()
    assert mine.exists()
    setup.lock("one==3\n")
    setup.plan("say error: Failed to install: one\nfail\n")
    refused(setup, "Failed to install: one")
    setup.plan(WORKS)
    assert "Removing .venv" in setup.works_and_is_current()
    assert not mine.exists()


def test_what_cannot_be_fetched_removes_no_environment(setup, monkeypatch):
    setup.works_and_is_current()
    mine = setup.venv / "still-the-same-folder"
    mine.touch()
    monkeypatch.setattr(setup.bootstrap, "find_python", lambda *_: (None, []))
    (setup.root / "python-plan.txt").write_text("fail\n")
    assert setup.run("--force")[0] == 1
    assert mine.exists()
    assert setup.run() == (0, "")


def test_uv_runs_with_the_settings_of_set_up(setup, monkeypatch):
    """`make lock`, extras and the second environment call it this way."""
    (setup.root / "pip-settings.txt").write_text(PIP_KNOWS)
    seen = []
    monkeypatch.setattr(os, "execve", lambda *arguments: seen.append(arguments) or sys.exit(0))
    with pytest.raises(SystemExit):
        setup.bootstrap.main(["uv", "pip", "compile", "--quiet"], setup.project)
    ((program, command, environment),) = seen
    assert (program, command) == (setup.project.uv, [setup.project.uv, "pip", "compile", "--quiet"])
    assert environment["UV_DEFAULT_INDEX"] == "https://company.example/simple"


# ---------------------------------------------------------------- installed, but does it work?


def test_a_missing_system_library_is_a_warning_that_is_recorded(setup):
    reason = "libGL.so.1: cannot open shared object file: No such file or directory"
    setup.plan(f"module torch\nmodule cv2 raise ImportError({reason!r})\n{PARTS}")
    printed = setup.works_and_is_current()
    assert "apt-get install libgl1 libglib2.0-0" in printed
    assert "libGL.so.1" in printed
    assert "OpenCV does not import. Only 08 and 08b of the pages need it" in printed
    assert printed.count("Warning") == 1
    assert reason in setup.stamp()["broken"]["cv2"]
    assert "apt-get install libgl1" in setup.run("--check")[1]


def test_another_failure_of_opencv_does_not_name_packages(setup):
    setup.plan(f"module torch\nmodule cv2 raise ImportError('numpy is too new')\n{PARTS}")
    printed = setup.works_and_is_current()
    assert "numpy is too new" in printed
    assert "apt-get" not in printed


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
    setup.plan("child\nwait for ever\n")
    process = setup.start()
    setup.wait_for(setup.root / "child.txt")
    process.send_signal(number)
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == status, printed
    assert "Set-up was interrupted" in printed
    assert "Traceback" not in printed
    until(lambda: not alive(int((setup.root / "child.txt").read_text())))
    setup.plan(WORKS)
    assert "Removing .venv" in setup.works_and_is_current()


def alive(pid):
    """Whether a process still runs: one that has ended and waits to be collected does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


def test_the_second_of_two_waits_and_has_nothing_left_to_do(setup):
    setup.plan("wait go\n" + WORKS)
    first = setup.start()
    setup.wait_for(setup.root / "waiting.txt")
    second = setup.start()
    assert "Another set-up of this checkout is running: waiting" in second.stdout.readline()
    (setup.root / "go").touch()
    printed, _ = second.communicate(timeout=300)
    assert second.returncode == 0, printed
    assert "The other set-up has finished" in printed
    first.communicate(timeout=300)
    assert first.returncode == 0
    assert setup.calls() == 1


def test_a_killed_set_up_leaves_the_lock_to_the_uv_that_is_still_writing(setup):
    setup.plan("wait go\n" + WORKS)
    first = setup.start()
    setup.wait_for(setup.root / "waiting.txt")
    first.kill()
    first.communicate(timeout=300)
    second = setup.start()
    assert "waiting" in second.stdout.readline()
    setup.plan(WORKS)
    (setup.root / "go").touch()
    printed, _ = second.communicate(timeout=300)
    assert second.returncode == 0, printed
    assert "Removing .venv" in printed
    assert setup.run() == (0, "")


# ---------------------------------------------------------------- progress


def test_a_silent_uv_still_shows_progress(setup, monkeypatch):
    """The stand-in goes on once that has happened."""
    again = setup.bootstrap.Progress.again
    monkeypatch.setattr(setup.bootstrap, "SHOW_EVERY", 0.0)
    monkeypatch.setattr(setup.bootstrap.Progress, "again", lambda one: again(one) or (setup.root / "go").touch())
    setup.plan("say Prepared 2 packages\nwait go\n" + WORKS)
    assert setup.works_and_is_current().count("] Prepared 2 packages\n") >= 2


def test_the_stick_holds_what_set_up_installs(setup):
    """The command of docs/teaching.md, as sets of requirements with their extras resolved."""
    setup.monkeypatch.setattr(setup.bootstrap, "loads_mlx", lambda: True)
    command, _ = setup.bootstrap.install_commands(setup.project, [])
    installed = [after for before, after in itertools.pairwise(command) if before == "--extra"]
    (given,) = re.findall(r"pip download .*'\.\[(.+)\]'", (SOURCE.parents[2] / "docs" / "teaching.md").read_text())
    known = tomllib.loads((SOURCE.parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    def requirements(extras: list[str]) -> set[str]:
        inside = [requirement for extra in extras for requirement in known[extra]]
        own = [re.findall(r"[\w-]+", each)[1:] for each in inside if each.startswith("metal-lab[")]
        return {each for each in inside if not each.startswith("metal-lab[")}.union(*map(requirements, own))

    assert requirements(given.split(",")) == requirements(installed)
    assert {"uv", "pip"} <= requirements(installed), "set-up needs them as well"
