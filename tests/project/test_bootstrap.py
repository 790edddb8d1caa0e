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
        self.root, self.capfd = root, capfd
        (root / "utils" / "metallab").mkdir(parents=True)
        (root / "metalsim").mkdir()
        shutil.copy(SOURCE, root / "utils" / "metallab")
        (root / "pyproject.toml").write_text("[project]\n")
        (root / "lock.txt").write_text(UV_VERSION)
        (root / "build" / "uv" / "bin").mkdir(parents=True)
        (root / "build" / "uv" / "uv.txt").write_text(UV_VERSION)
        (root / "pip.txt").touch()
        self.uv()
        self.load()

    def load(self):
        path = self.root / "utils" / "metallab" / "bootstrap.py"
        spec = importlib.util.spec_from_file_location("bootstrap", path)
        self.bootstrap = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.bootstrap)

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


def test_it_is_done_once(checkout):
    status, printed, calls = checkout()
    assert (status, words(calls)) == (0, MADE), printed
    assert checkout() == (0, "", [])
    others, ours = (arguments for arguments, _ in calls[1:])
    assert {"--require-hashes", "pyproject.toml", "lock.txt", "lab", "dev"} <= set(others)
    own = [".", "metalsim", "metalsim/objc"]
    assert ours[-6:] == [word for folder in own for word in ("--editable", folder)]
    mine = checkout.root / ".venv" / "mine"
    mine.touch()
    assert words(checkout("--force")[2]) == MADE
    assert not mine.exists()


@pytest.mark.parametrize("name", ["pyproject.toml", "lock.txt"])
def test_a_change_of_what_it_is_made_from_updates(checkout, name):
    checkout()
    with (checkout.root / name).open("a") as file:
        file.write("# changed\n")
    assert words(checkout()[2]) == UPDATED
    assert checkout() == (0, "", [])


def test_a_failed_update_keeps_the_environment(checkout):
    checkout()
    (checkout.root / "pyproject.toml").write_text("[project]\n# changed\n")
    (checkout.root / "fails").touch()
    for _ in range(2):
        status, _, calls = checkout()
        assert (status, words(calls)) == (1, UPDATED[:1])
    (checkout.root / "fails").unlink()
    assert words(checkout()[2]) == UPDATED


def test_an_interrupted_set_up_goes_on(checkout, monkeypatch):
    (checkout.root / "fails").touch()
    assert checkout()[0] == 1
    (checkout.root / "fails").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(
            checkout.bootstrap, "must", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        assert checkout()[0] == 130
    assert words(checkout()[2]) == MADE
    assert checkout() == (0, "", [])


def test_a_moved_checkout_and_a_python_that_is_gone_are_noticed(checkout):
    checkout()
    checkout.root = checkout.root.rename(checkout.root.with_name("moved"))
    checkout.load()
    assert words(checkout()[2]) == MADE
    python = checkout.root / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python")
    assert words(checkout()[2]) == MADE


def test_the_environment_may_be_a_link_to_another_disk(checkout, tmp_path):
    (tmp_path / "disk").mkdir()
    (checkout.root / ".venv").symlink_to(tmp_path / "disk")
    for _ in range(2):
        assert checkout("--force")[0] == 0
    assert (tmp_path / "disk" / "complete").exists()


def test_the_environment_of_another_checkout_is_kept(checkout, tmp_path):
    (other := tmp_path / "other" / ".venv").mkdir(parents=True)
    (other / "pyvenv.cfg").touch()
    (other / "complete").write_text(f"{other.parent}\nhash\n", encoding="utf-8")
    (checkout.root / ".venv").symlink_to(other)
    status, printed, calls = checkout("--force")
    assert (status, calls) == (1, [])
    assert "remove the link" in printed
    assert (other / "complete").exists()


def test_a_folder_that_is_no_environment_is_kept(checkout):
    (checkout.root / ".venv").mkdir()
    (checkout.root / ".venv" / "thesis.txt").touch()
    status, printed, calls = checkout()
    assert (status, calls) == (1, [])
    assert "move it away" in printed
    assert (checkout.root / ".venv" / "thesis.txt").exists()


def test_a_python_without_header_files_is_passed_over(checkout, monkeypatch):
    reasons = iter(["no header files"] * 2)
    fails = checkout.bootstrap.fails
    asked = lambda command: next(reasons, None) if "Python.h" in command[-1] else fails(command)
    monkeypatch.setattr(checkout.bootstrap, "fails", asked)
    monkeypatch.setattr(sys, "version_info", (3, 8, 1))
    status, _, calls = checkout()
    assert status == 1
    assert ["--managed-python" in arguments for arguments, _ in calls] == [False, True]


LINUX, MAC = ("Linux", "x86_64", "", "2.36"), ("Darwin", "arm64", "15.0", "")


@pytest.mark.parametrize(
    ("system", "machine", "mac", "libc", "word"),
    [
        ("Windows", "AMD64", "", "", "WSL 2"),
        ("Linux", "riscv64", "", "2.36", "riscv64"),
        ("Linux", "aarch64", "", "2.36", None),
        ("Darwin", "x86_64", "15.1", "", "Intel"),
        ("Darwin", "arm64", "13.6.1", "", "13.6.1"),
        ("Darwin", "arm64", "14.6.1", "", None),
        ("Linux", "x86_64", "", "2.27", "glibc"),
        (*LINUX, None),
        (*MAC, None),
    ],
)
def test_a_platform_that_cannot_work_is_named(
    checkout, monkeypatch, system, machine, mac, libc, word
):
    for name, value in {
        "system": system,
        "machine": machine,
        "mac_ver": (mac,),
        "libc_ver": ("glibc", libc),
    }.items():
        monkeypatch.setattr(f"platform.{name}", lambda value=value: value)
    monkeypatch.setattr(checkout.bootstrap, "fails", lambda command: None)
    monkeypatch.setattr(checkout.bootstrap, "read", lambda path: "flags : avx2 fma\n")
    said = list(checkout.bootstrap.missing())
    assert [word in sentence for sentence in said] == [True] * bool(word)


@pytest.mark.parametrize("libc", ["2.35", "2.34"])
def test_mlx_is_left_out_where_its_wheel_does_not_load(checkout, monkeypatch, libc):
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", libc))
    monkeypatch.setattr(checkout.bootstrap, "fails", lambda command: None)
    assert ("mlx" in checkout()[2][1][0]) == (libc == "2.35")


@pytest.mark.parametrize(
    ("system", "machine", "mac", "compiler", "words"),
    [
        ("Linux", "x86_64", "", "true", []),
        ("Linux", "x86_64", "", "/nowhere/g++ -O1", ["C++"]),
        ("Linux", "aarch64", "", "false", ["C++", "ARM"]),
        ("Darwin", "arm64", "14.6.1", "true", ["macOS 14"]),
    ],
)
def test_what_pages_will_lack_is_listed_once(
    checkout, monkeypatch, system, machine, mac, compiler, words
):
    """And set-up is complete all the same."""
    monkeypatch.setenv("CXX", compiler)
    fails = checkout.bootstrap.fails
    monkeypatch.setattr(
        checkout.bootstrap, "fails", lambda it: None if it[0] == "xcode-select" else fails(it)
    )
    for name, value in {"system": system, "machine": machine, "mac_ver": (mac,)}.items():
        monkeypatch.setattr(f"platform.{name}", lambda value=value: value)
    listed = list(checkout.bootstrap.limits())
    assert [word in line for word, line in zip(words, listed, strict=True)] == [True] * len(words)
    if (system, machine) == ("Linux", "x86_64"):
        status, printed, _ = checkout()
        assert (status, printed.count("23 and 24")) == (0, len(words))


def test_all_that_is_missing_is_named_at_once(checkout, monkeypatch):
    """Before anything is downloaded or changed."""
    monkeypatch.setattr(
        shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(2**40, 2**40, 0)
    )
    read = checkout.bootstrap.read
    flags = lambda path: "flags : sse2 fma\n" if path == "/proc/cpuinfo" else read(path)
    monkeypatch.setattr(checkout.bootstrap, "read", flags)
    status, printed, calls = checkout()
    assert (status, calls) == (1, [])
    for word in ("AVX2", "disk space"):
        assert word in printed
    assert not (checkout.root / ".venv").exists()


def test_what_pip_knows_of_mirrors_uv_knows(checkout, monkeypatch):
    monkeypatch.setenv("UV_INDEX", "https://mine.example")
    (checkout.root / "pip.txt").write_text(
        ":env:.cert='/newer.pem'\n:env:.find-links='/stick /more'\n:env:.no-index='1'\nglobal.cert='/company.pem'\n"
        "global.extra-index-url='https://one.example\\nhttps://two.example'\nglobal.index-url='https://company.example'\n"
    )
    settings = checkout()[2][1][1]
    assert settings["UV_DEFAULT_INDEX"] == "https://company.example"
    assert settings["UV_INDEX"] == "https://mine.example", "uv's own variables win"
    assert settings["UV_FIND_LINKS"] == "/stick,/more"
    assert settings["UV_OFFLINE"] == "1"
    assert settings["SSL_CERT_FILE"] == "/newer.pem", "a variable wins over a file"


def test_what_does_not_import_is_a_warning_that_names_its_pages(checkout):
    checkout.uv(broken=("cv2",))
    status, printed, _ = checkout()
    assert status == 0
    assert "60 and 61" in printed
    assert "make packages" in printed
    assert printed.count("Warning") == 1


def wheel(folder: Path, name: str, files: dict[str, str]) -> str:
    """A wheel that pip and uv install; returns its line of a lock."""
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
    """Wheels in a folder, their lines of a lock, and the real pip, which installs a script that calls the real uv."""
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


def set_up(root: Path, *arguments: str) -> subprocess.CompletedProcess:
    path = str(root / "utils" / "metallab" / "bootstrap.py")
    code = f"import shutil, sys, runpy; sys.argv[1:] = {arguments!r}; "
    code += "shutil.disk_usage = lambda _: shutil._ntuple_diskusage(0, 0, 2**40); "
    code += f"runpy.run_path({path!r}, run_name='__main__')"
    return subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=1800
    )


def test_a_file_with_another_hash_is_not_installed(checkout, real):
    one, two, uv = real
    spoilt = lambda line: line[:-10] + line[-10:-1][::-1] + "\n"
    outcomes = []
    for lock in (one + two + spoilt(uv), spoilt(one) + two + uv, one + two + uv):
        (checkout.root / "lock.txt").write_text(lock)
        done = set_up(checkout.root)
        outcomes.append(
            (done.returncode, "HASHES" in done.stderr, "Hash mismatch" in done.stderr, done.stderr)
        )
    assert [outcome[:3] for outcome in outcomes[:2]] == [(1, True, False), (1, False, True)], (
        outcomes
    )
    assert list((checkout.root / ".venv").rglob("one.py")), outcomes[2]


def test_a_stick_is_installed_from_without_a_network(checkout, real, monkeypatch, tmp_path):
    """Into a folder whose name has a space, with what mlx brings where set-up installs it."""
    (checkout.root / "lock.txt").write_text("".join(real))
    (checkout.root / "names.txt").write_text("ada")  # which nobody committed
    for command in (["init", "-q"], ["add", "utils", "pyproject.toml", "lock.txt"]):
        subprocess.run(["git", *command], cwd=checkout.root, check=True)
    stick = tmp_path / "a stick"
    done = set_up(checkout.root, "stick", str(stick))
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in stick.iterdir()} == {
        "utils",
        "pyproject.toml",
        "lock.txt",
        "wheels",
    }
    shutil.rmtree(tmp_path / "found")
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "another cache"))
    done = set_up(stick)
    installed = {path.name for path in (stick / ".venv").rglob("*.py")}
    libc = checkout.bootstrap.numbers(checkout.bootstrap.platform.libc_ver()[1])
    has_mlx = sys.platform == "darwin" or libc >= (2, 35)
    assert ("one.py" in installed, "two.py" in installed) == (True, has_mlx), (
        done.stdout + done.stderr
    )
    assert "metalsim" in done.stderr, (
        "only the checkout itself, which is no package here, is not installed"
    )
