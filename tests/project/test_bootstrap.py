"""Set-up: what is missing is named, what is done is not done again, what was interrupted goes on.

A small program stands in for uv and writes down how it was called; the last test has the real pip and the real uv.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "utils" / "metallab" / "bootstrap.py"
FAKE_UV = """#!{python}
import json, os, pathlib, subprocess, sys
with open("calls.txt", "a") as calls:
    settings = {{name: value for name, value in os.environ.items() if name.startswith(("UV_", "SSL_"))}}
    calls.write(json.dumps([sys.argv[1:], settings]) + "\\n")
if sys.argv[1] == "venv":
    sys.exit(subprocess.call([{python!r}, "-I", "-m", "venv", "--without-pip", sys.argv[-1]]))
if os.path.exists("fails"):
    sys.exit(2)
(site,) = pathlib.Path(".venv").glob("lib/python*/site-packages")
names = "metallab/__init__ metallab/simulation metalsim torch cv2 tensorflow jax onnxruntime coremltools mlx/core"
for name in names.split():
    (site / name).parent.mkdir(exist_ok=True)
    (site / f"{{name}}.py").write_text("arm = dict" if "simulation" in name else "")
for name in {broken}:
    (site / f"{{name}}.py").write_text("raise ImportError('libGL.so.1: cannot open shared object file')")
"""
UV_VERSION = "uv==1.2.3 \\\n    --hash=sha256:00\n"


class Checkout:
    """A small checkout with a stand-in for uv, and set-up loaded from it."""

    def __init__(self, root: Path, capfd):
        """Lay out what set-up reads, as if uv were installed.

        It has a copy of bootstrap.py, since that sets up the checkout that it lies in.
        """
        self.root, self.capfd = root, capfd
        (root / "utils" / "metallab").mkdir(parents=True)
        # for their pyproject.toml, looked at as well
        (root / "metalsim" / "objc").mkdir(parents=True)
        shutil.copy(SOURCE, root / "utils" / "metallab")
        (root / "pyproject.toml").write_text("[project]\n")
        (root / "pip.txt").touch()  # what the stand-in for pip prints of its settings
        # of the lock only the lines of uv, which set-up compares with the note
        (root / "lock.txt").write_text(UV_VERSION)

        # by this note the uv of the lock counts as installed, and the stand-in is called
        (root / "build" / "uv" / "bin").mkdir(parents=True)
        (root / "build" / "uv" / "uv.txt").write_text(UV_VERSION)
        self.uv()
        self.load()

    def load(self):
        path = self.root / "utils" / "metallab" / "bootstrap.py"
        spec = importlib.util.spec_from_file_location("bootstrap", path)
        self.bootstrap = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.bootstrap)

    @property
    def python(self) -> Path:
        """The interpreter of the environment that set-up makes."""
        return self.root / ".venv" / "bin" / "python"

    def append(self, name: str, text: str) -> None:
        with (self.root / name).open("a") as file:
            file.write(text)

    def uv(self, broken: tuple[str, ...] = ()):
        programs = {
            "uv": FAKE_UV.format(python=sys.executable, broken=broken),
            "python": "#!/bin/sh\ncat pip.txt\n",
        }
        for name, text in programs.items():
            (self.root / "build" / "uv" / "bin" / name).write_text(text)
            (self.root / "build" / "uv" / "bin" / name).chmod(0o755)

    def __call__(self, *arguments: str) -> tuple[int, str, list]:
        """The exit status, what was printed, and the calls of uv: arguments and settings."""
        calls = self.root / "calls.txt"
        calls.write_text("")
        self.capfd.readouterr()
        status = self.bootstrap.main(list(arguments))
        printed = self.capfd.readouterr()
        return (
            status,
            printed.out + printed.err,
            [json.loads(line) for line in calls.read_text().splitlines()],
        )


@pytest.fixture
def checkout(tmp_path, monkeypatch, capfd):
    for name in [name for name in os.environ if name.startswith(("UV_", "PIP_", "SSL_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CXX", "true")  # a compiler that accepts everything
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(
        shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(2**40, 0, 2**40)
    )
    monkeypatch.chdir(tmp_path)
    return Checkout(tmp_path / "a checkout", capfd)


def words(calls: list) -> list[str]:
    """What uv was asked for."""
    return [" ".join(arguments[: 1 if arguments[0] == "venv" else 2]) for arguments, _ in calls]


MADE, UPDATED = ["venv", "pip install", "pip install"], ["pip install", "pip install"]
NOTHING = (0, "", [])
"""What a call gives that finds all done."""


def test_it_is_done_once(checkout):
    status, printed, calls = checkout()
    assert status == 0, printed
    assert words(calls) == MADE

    assert checkout() == NOTHING


def test_others_packages_come_from_the_lock_and_ours_from_the_checkout(checkout):
    _, _, calls = checkout()

    others, ours = (arguments for arguments, _ in calls[1:])
    assert {"--require-hashes", "pyproject.toml", "lock.txt", "lab", "dev"} <= set(others)
    own = [".", "metalsim", "metalsim/objc"]
    assert ours[-6:] == [word for folder in own for word in ("--editable", folder)]


def test_with_force_the_environment_is_made_anew(checkout):
    checkout()
    mine = checkout.root / ".venv" / "mine"
    mine.touch()

    _, _, calls = checkout("--force")

    assert words(calls) == MADE
    assert not mine.exists()


@pytest.mark.parametrize(
    "name",
    ["pyproject.toml", "metalsim/pyproject.toml", "metalsim/objc/pyproject.toml", "lock.txt"],
)
def test_a_change_of_what_it_is_made_from_updates(checkout, name):
    checkout()
    checkout.append(name, "# changed\n")

    _, _, calls = checkout()

    assert words(calls) == UPDATED
    assert checkout() == NOTHING


def test_a_failed_update_keeps_the_environment(checkout):
    checkout()
    checkout.append("pyproject.toml", "# changed\n")
    (checkout.root / "fails").touch()

    status, _, calls = checkout()

    assert status == 1
    assert words(calls) == UPDATED[:1]
    assert checkout.python.exists()


def test_a_failed_update_is_tried_again_each_time(checkout):
    checkout()
    checkout.append("pyproject.toml", "# changed\n")
    (checkout.root / "fails").touch()
    failed = [words(checkout()[2]) for _ in range(2)]

    (checkout.root / "fails").unlink()
    assert failed == [UPDATED[:1]] * 2
    assert words(checkout()[2]) == UPDATED


def test_a_set_up_that_failed_begins_again(checkout):
    (checkout.root / "fails").touch()
    assert checkout()[0] == 1

    (checkout.root / "fails").unlink()
    assert words(checkout()[2]) == MADE
    assert checkout() == NOTHING


def test_a_set_up_that_was_interrupted_begins_again(checkout, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkout.bootstrap, "must", interrupt)
        assert checkout()[0] == 130

    assert words(checkout()[2]) == MADE
    assert checkout() == NOTHING


def test_a_moved_checkout_is_set_up_anew(checkout):
    checkout()
    checkout.root = checkout.root.rename(checkout.root.with_name("moved"))
    checkout.load()

    assert words(checkout()[2]) == MADE


def test_an_environment_whose_python_is_gone_is_made_anew(checkout):
    checkout()
    checkout.python.unlink()
    checkout.python.symlink_to("/nowhere/python")

    assert words(checkout()[2]) == MADE


def test_the_environment_may_be_a_link_to_another_disk(checkout, tmp_path):
    (tmp_path / "disk").mkdir()
    (checkout.root / ".venv").symlink_to(tmp_path / "disk")

    statuses = [checkout("--force")[0] for _ in range(2)]

    assert statuses == [0, 0]
    assert (tmp_path / "disk" / "complete").exists()


def test_the_environment_of_another_checkout_is_kept(checkout, tmp_path):
    (other := tmp_path / "other" / ".venv").mkdir(parents=True)
    (other / "pyvenv.cfg").touch()
    (other / "complete").write_text(f"{other.parent}\nhash\n", encoding="utf-8")
    (checkout.root / ".venv").symlink_to(other)

    status, printed, calls = checkout("--force")

    assert status == 1
    assert calls == []
    assert "remove the link" in printed
    assert (other / "complete").exists()


def test_a_folder_that_is_no_environment_is_kept(checkout):
    (checkout.root / ".venv").mkdir()
    (checkout.root / ".venv" / "thesis.txt").touch()

    status, printed, calls = checkout()

    assert status == 1
    assert calls == []
    assert "move it away" in printed
    assert (checkout.root / ".venv" / "thesis.txt").exists()


def test_a_python_without_header_files_is_passed_over(checkout, monkeypatch):
    """uv then makes an environment of a Python that it brings itself; where that lacks them too, set-up fails."""
    reasons = iter(["no header files"] * 2)
    fails = checkout.bootstrap.fails

    def ask(command):
        return next(reasons, None) if "Python.h" in command[-1] else fails(command)

    monkeypatch.setattr(checkout.bootstrap, "fails", ask)
    monkeypatch.setattr(sys, "version_info", (3, 8, 1))  # too old to be tried itself

    status, _, calls = checkout()

    assert status == 1
    assert ["--managed-python" in arguments for arguments, _ in calls] == [False, True]


@pytest.fixture
def pretend(monkeypatch):
    """Make set-up see another platform."""

    def set_platform(*, system: str, machine: str, mac: str = "", libc: str = "2.36") -> None:
        monkeypatch.setattr("platform.system", lambda: system)
        monkeypatch.setattr("platform.machine", lambda: machine)
        monkeypatch.setattr("platform.mac_ver", lambda: (mac,))
        monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", libc))

    return set_platform


@pytest.fixture
def find_missing(checkout, monkeypatch):
    """Return a function that lists what a machine with every program and a usual processor lacks."""
    monkeypatch.setattr(checkout.bootstrap, "fails", lambda command: None)
    monkeypatch.setattr(checkout.bootstrap, "read", lambda path: "flags : avx2 fma\n")
    return lambda: list(checkout.bootstrap.missing())


@pytest.mark.parametrize(
    ("platform", "word"),
    [
        ({"system": "Windows", "machine": "AMD64", "libc": ""}, "WSL 2"),
        ({"system": "Linux", "machine": "riscv64"}, "riscv64"),
        ({"system": "Darwin", "machine": "x86_64", "mac": "15.1"}, "Intel"),
        ({"system": "Darwin", "machine": "arm64", "mac": "13.6.1"}, "13.6.1"),
        ({"system": "Linux", "machine": "x86_64", "libc": "2.27"}, "glibc"),
    ],
    ids=["Windows", "RISC-V", "Intel's Mac", "macOS 13", "old Linux"],
)
def test_a_platform_that_cannot_work_is_named(pretend, find_missing, platform, word):
    pretend(**platform)

    (said,) = find_missing()
    assert word in said


def test_windows_is_refused_with_words(checkout, pretend, monkeypatch):
    """It has no module fcntl, and does not tell how much room a file takes."""

    def fail(folder):
        raise AttributeError("st_blocks")

    pretend(system="Windows", machine="AMD64", libc="")
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setattr(checkout.bootstrap, "size", fail)

    status, printed, calls = checkout()

    assert status == 1
    assert "WSL 2" in printed
    assert calls == []


@pytest.mark.parametrize(
    "platform",
    [
        {"system": "Linux", "machine": "x86_64"},
        {"system": "Linux", "machine": "aarch64"},
        {"system": "Darwin", "machine": "arm64", "mac": "14.6.1"},
        {"system": "Darwin", "machine": "arm64", "mac": "15.0"},
    ],
    ids=["Linux", "Linux on ARM", "macOS 14", "macOS 15"],
)
def test_a_platform_that_works_lacks_nothing(pretend, find_missing, platform):
    pretend(**platform)

    assert find_missing() == []


@pytest.mark.parametrize(
    ("libc", "has_mlx"), [("2.35", True), ("2.34", False)], ids=["new glibc", "old glibc"]
)
def test_mlx_is_left_out_where_its_wheel_does_not_load(
    checkout, pretend, monkeypatch, libc, has_mlx
):
    pretend(system="Linux", machine="x86_64", libc=libc)
    monkeypatch.setattr(checkout.bootstrap, "fails", lambda command: None)

    _, _, (_, (others, _), _) = checkout()

    assert ("mlx" in others) == has_mlx


@pytest.mark.parametrize(
    ("platform", "compiler", "words"),
    [
        ({"system": "Linux", "machine": "x86_64"}, "true", []),
        ({"system": "Linux", "machine": "x86_64"}, "/nowhere/g++ -O1", ["C++"]),
        ({"system": "Linux", "machine": "aarch64"}, "false", ["C++", "ARM"]),
        ({"system": "Darwin", "machine": "arm64", "mac": "14.6.1"}, "true", ["macOS 14"]),
    ],
    ids=["nothing", "no compiler", "Linux on ARM", "macOS 14"],
)
def test_what_pages_will_lack_is_listed_once(
    checkout, pretend, monkeypatch, platform, compiler, words
):
    """There is a line for each thing, and no other line."""
    pretend(**platform)
    monkeypatch.setenv("CXX", compiler)
    fails = checkout.bootstrap.fails

    def fail_unless_xcode(command):
        """Say of a Mac that its developer tools are there; ask this machine about anything else."""
        return None if command[0] == "xcode-select" else fails(command)

    monkeypatch.setattr(checkout.bootstrap, "fails", fail_unless_xcode)

    listed = list(checkout.bootstrap.limits())

    assert [word in line for word, line in zip(words, listed, strict=True)] == [True] * len(words)


@pytest.mark.parametrize(
    ("compiler", "count"), [("true", 0), ("/nowhere/g++ -O1", 1)], ids=["a compiler", "none"]
)
def test_set_up_without_a_compiler_is_complete_and_names_the_pages_that_need_one(
    checkout, pretend, monkeypatch, compiler, count
):
    pretend(system="Linux", machine="x86_64")
    monkeypatch.setenv("CXX", compiler)

    status, printed, _ = checkout()

    assert status == 0
    assert printed.count("23 and 24") == count


def test_all_that_is_missing_is_named_before_anything_is_downloaded(checkout, monkeypatch):
    """On a full disk and an old processor both are named in one go, and uv is not called."""
    full = shutil._ntuple_diskusage(2**40, 2**40, 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: full)
    read = checkout.bootstrap.read

    def read_old_processor(path):
        return "flags : sse2 fma\n" if path == "/proc/cpuinfo" else read(path)

    monkeypatch.setattr(checkout.bootstrap, "read", read_old_processor)

    status, printed, calls = checkout()

    assert status == 1
    assert "AVX2" in printed
    assert "disk space" in printed
    assert calls == []
    assert not (checkout.root / ".venv").exists()


PIP_KNOWS = r"""
:env:.cert='/newer.pem'
:env:.find-links='/stick /more'
:env:.no-index='1'
global.cert='/company.pem'
global.extra-index-url='https://one.example\nhttps://two.example'
global.index-url='https://company.example'
"""


@pytest.fixture
def settings(checkout, monkeypatch):
    """The settings that uv gets where pip has some, and uv itself has one."""
    monkeypatch.setenv("UV_INDEX", "https://mine.example")
    (checkout.root / "pip.txt").write_text(PIP_KNOWS.lstrip())
    _, _, calls = checkout()
    _, settings = calls[1]
    return settings


def test_what_pip_knows_of_mirrors_uv_knows(settings):
    assert settings["UV_DEFAULT_INDEX"] == "https://company.example"
    assert settings["UV_FIND_LINKS"] == "/stick,/more"
    assert settings["UV_OFFLINE"] == "1"


def test_a_variable_wins_over_a_file_and_uv_s_own_over_pip_s(settings):
    assert settings["SSL_CERT_FILE"] == "/newer.pem"
    assert settings["UV_INDEX"] == "https://mine.example"


def test_what_does_not_import_is_a_warning_that_names_its_pages(checkout):
    checkout.uv(broken=("cv2",))

    status, printed, _ = checkout()

    assert status == 0
    assert "60 and 61" in printed
    assert "make packages" in printed
    assert printed.count("Warning") == 1


def wheel(folder: Path, name: str, files: dict[str, str]) -> str:
    """Write a wheel that pip and uv install, of version 1.0 with these files, and return its lines of a lock."""
    path, info = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
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


PROJECT = '[project]\nname = "metal-lab"\nversion = "1.0"\n[project.optional-dependencies]\n'
PROJECT += 'lab = ["one"]\nmlx = ["two"]\ndev = ["uv"]\n'


@pytest.fixture
def real(checkout, monkeypatch, tmp_path):
    """The lines of a lock for the wheels ``one``, ``two`` and ``uv``, which the real pip finds in a folder alone.

    What ``uv`` installs is a script that calls the real uv of this environment.
    """
    real = shutil.which("uv", path=os.path.dirname(sys.executable))
    found = tmp_path / "found"
    found.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(found))
    (checkout.root / "pyproject.toml").write_text(PROJECT)
    script = {"uv-1.0.data/scripts/uv": f'#!/bin/sh\nexec {real} "$@"\n'}
    return (
        wheel(found, "one", {"one.py": ""}),
        wheel(found, "two", {"two.py": ""}),
        wheel(found, "uv", script),
    )


def spoil(line: str) -> str:
    """Another hash of a line of a lock."""
    return line[:-10] + line[-10:-1][::-1] + "\n"


def set_up(root: Path, *arguments: str) -> subprocess.CompletedProcess:
    path = str(root / "utils" / "metallab" / "bootstrap.py")
    code = f"import shutil, sys, runpy; sys.argv[1:] = {arguments!r}; "
    code += "shutil.disk_usage = lambda _: shutil._ntuple_diskusage(0, 0, 2**40); "
    code += f"runpy.run_path({path!r}, run_name='__main__')"
    return subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=1800
    )


def test_a_package_with_another_hash_is_not_installed(checkout, real):
    """It is installed as soon as the lock has its hash, so that the hash alone was the reason."""
    one, two, uv = real
    (checkout.root / "lock.txt").write_text(spoil(one) + two + uv)

    done = set_up(checkout.root)

    assert done.returncode == 1
    assert "Hash mismatch" in done.stderr
    assert not list((checkout.root / ".venv").rglob("one.py"))

    (checkout.root / "lock.txt").write_text(one + two + uv)
    done = set_up(checkout.root)
    assert list((checkout.root / ".venv").rglob("one.py")), done.stderr


def test_a_uv_with_another_hash_is_not_installed(checkout, real):
    one, two, uv = real
    (checkout.root / "lock.txt").write_text(one + two + spoil(uv))

    done = set_up(checkout.root)

    assert done.returncode == 1
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not (checkout.root / ".venv").exists()


@pytest.fixture
def stick(checkout, real, monkeypatch, tmp_path):
    """The folder for a stick, which ``bootstrap.py stick`` has filled; its name has a space.

    Afterwards neither the wheels' folder nor uv's cache can be used, so that what is installed comes from the stick.
    """
    (checkout.root / "lock.txt").write_text("".join(real))
    (checkout.root / "names.txt").write_text("ada")  # which nobody committed
    for command in (["init", "-q"], ["add", "utils", "pyproject.toml", "lock.txt"]):
        subprocess.run(["git", *command], cwd=checkout.root, check=True)

    stick = tmp_path / "a stick"
    done = set_up(checkout.root, "stick", str(stick))
    assert done.returncode == 0, done.stdout + done.stderr

    shutil.rmtree(tmp_path / "found")
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "another cache"))
    return stick


def test_a_stick_holds_what_is_committed_and_wheels_and_installs_without_a_network(checkout, stick):
    """Set-up from the stick installs the extra ``lab``, and the extra ``mlx`` where its wheel loads."""
    written = {path.name for path in stick.iterdir()}
    assert written == {"utils", "pyproject.toml", "lock.txt", "wheels"}

    done = set_up(stick)

    installed = {path.name for path in (stick / ".venv").rglob("*.py")}
    assert "one.py" in installed, done.stdout + done.stderr
    libc = checkout.bootstrap.numbers(checkout.bootstrap.platform.libc_ver()[1])
    assert ("two.py" in installed) == (sys.platform == "darwin" or libc >= (2, 35))
    assert "metalsim" in done.stderr, (
        "the checkout itself, which is no package here, is alone missing"
    )
