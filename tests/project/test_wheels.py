"""What pip installs from a checkout, in environments that have nothing else: wheels, and what the docs print of them.

An environment is made without downloading: packages that are installed here are linked into it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from packaging.requirements import Requirement

from metallab import paths, records
from metalsim import building
from metalsim.device import TORCH

ROOT = paths.ROOT
DISTS = {
    "metal-lab": ROOT,
    "metalsim": ROOT / "metalsim",
    "metalsim-objc": ROOT / "metalsim" / "objc",
}
SOURCES = {
    "metallab": ROOT / "utils",
    "metalsim": ROOT / "metalsim" / "src",
    "metalsim_objc": ROOT / "metalsim" / "objc" / "src",
}
PROJECTS = {
    name: tomllib.loads((folder / "pyproject.toml").read_text()) for name, folder in DISTS.items()
}
OWN_CODE = ROOT / "docs" / "your_own_code.md"
ON_LINUX = ROOT / "docs" / "test_mps_on_linux.md"
LIMIT = 1800  # seconds: the first run builds the simulated device
NOT_ON_A_MAC = pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has a real Apple GPU")


# ---------------------------------------------------------------- the wheels


def copy_checkout(folder):
    """Copy what a checkout is installed from into a folder, and return it."""
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("utils", "metalsim"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    return folder


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """All, by name, as pip makes them of a checkout; of a copy, since making them leaves files beside the sources."""
    copy = copy_checkout(tmp_path_factory.mktemp("checkout"))
    folders = [str(copy / folder.relative_to(ROOT)) for folder in DISTS.values()]
    options = [
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--disable-pip-version-check",
    ]
    run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            *options,
            "--wheel-dir",
            str(copy / "wheels"),
            *folders,
        ]
    )
    made = {
        path.name.partition("-")[0].replace("_", "-"): path for path in (copy / "wheels").iterdir()
    }
    assert made.keys() == DISTS.keys()
    return made


def run(command, code=0, **options):
    """Run a command, which has to end with the exit code; its output and its errors."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT, check=False, **options
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def sources(package):
    """The files of a package, as a wheel names them."""
    folder = SOURCES[package]
    files = (path.relative_to(folder) for path in (folder / package).rglob("*") if path.is_file())
    return {path.as_posix() for path in files if "__pycache__" not in path.parts}


@pytest.mark.parametrize(
    ("name", "packages"),
    [
        ("metal-lab", ["metallab"]),
        ("metalsim", ["metalsim"]),
        ("metalsim-objc", ["metalsim_objc"]),
    ],
)
def test_a_wheel_has_every_file_of_its_packages_and_no_other(wheels, name, packages):
    with zipfile.ZipFile(wheels[name]) as wheel:
        held = {path for path in wheel.namelist() if ".dist-info/" not in path}
        tags = wheel.read(
            next(path for path in wheel.namelist() if path.endswith(".dist-info/WHEEL"))
        ).decode()
    assert held == set().union(*map(sources, packages))
    assert "Root-Is-Purelib: true" in tags
    assert wheels[name].name.endswith("-py3-none-any.whl")


def test_the_distributions_agree():
    lab = PROJECTS["metal-lab"]
    assert {project["project"]["version"] for project in PROJECTS.values()} == {
        lab["project"]["version"]
    }
    assert f"torch=={TORCH}" in lab["project"]["optional-dependencies"]["pytorch"]


@pytest.mark.parametrize("name", DISTS)
def test_the_readme_of_a_wheel_stands_alone(wheels, name):
    """Whoever has the file alone can follow every link, and run every command."""
    with zipfile.ZipFile(wheels[name]) as wheel:
        (metadata,) = (path for path in wheel.namelist() if path.endswith(".dist-info/METADATA"))
        text = wheel.read(metadata).decode().partition("\n\n")[2]
        files = set(wheel.namelist())
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    inside = [child for token in tokens for child in token.children or ()]
    targets = [token.attrs["href"] for token in inside if token.type == "link_open"]
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []

    commands = "".join(token.content for token in tokens if token.type == "fence")
    assert not re.search(r"^make |\.venv/", commands, re.MULTILINE)
    assert f"pip install ./{wheels[name].name}" in commands
    package = next(iter(files)).partition("/")[0]
    assert set(re.findall(rf"`({package}/(?!tests/)[\w/]+\.\w+)`", text)) <= files


def test_a_wheel_of_another_sha256_is_refused(wheels, tmp_path):
    """By pip itself, of a file as of an address."""
    wheel = wheels["metalsim"]
    right = hashlib.sha256(wheel.read_bytes()).hexdigest()
    options = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    for code, sha256 in ((0, right), (1, "0" * 64)):
        requirement = f"metalsim @ {wheel.as_uri()}#sha256={sha256}"
        where = ["--target", str(tmp_path / sha256)]
        _, errors = run(
            [sys.executable, "-m", "pip", "install", *options, *where, requirement], code
        )
    assert "do not match the hashes" in errors.lower().replace("\n", " ")
    assert (tmp_path / right / "metalsim" / "device.py").is_file()


# ---------------------------------------------------------------- environments


class Environment:
    """A virtual environment with some of what is installed here, and one of our wheels."""

    def __init__(self, folder, wheel, packages):
        run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        self.bin = folder / "bin"
        self.packages = Path(
            run(
                [
                    self.bin / "python",
                    "-c",
                    "import sysconfig; print(sysconfig.get_path('purelib'))",
                ]
            )[0].strip()
        )
        for name in needed(packages):
            self.link(importlib.metadata.distribution(name))
        options = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
        run(
            [
                sys.executable,
                "-m",
                "pip",
                "--python",
                str(self.bin / "python"),
                "install",
                *options,
                str(wheel),
            ]
        )

    def link(self, distribution):
        """Link what a distribution has installed, and write its scripts, which name another Python where they are."""
        for file in distribution.files:
            there, target = Path(distribution.locate_file(file)), self.bin / file.name
            if file.parts[0] != "..":
                there, target = (
                    Path(distribution.locate_file(file.parts[0])),
                    self.packages / file.parts[0],
                )
            elif file.parts[-2] != "bin" or there.read_bytes()[:2] == b"#!":
                continue
            if not target.exists():
                target.symlink_to(there)
        for entry in distribution.entry_points.select(group="console_scripts"):
            script = self.bin / entry.name
            call = f"{entry.module}.{entry.attr}()"
            script.write_text(
                f"#!{self.bin}/python\nimport {entry.module}\nraise SystemExit({call})\n"
            )
            script.chmod(0o755)

    def __call__(self, *command, code=0, cwd=None, **environment):
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("METAL", "PYTHON", "PYTEST"))
        }
        kept["PATH"] = f"{self.bin}{os.pathsep}{kept['PATH']}"
        kept["METALSIM_CACHE"] = str(building.cache())  # the checkout's: its sources are equal
        return run([*map(str, command)], code, cwd=cwd, env=kept | environment)

    def python(self, code, **options):
        return self(self.bin / "python", "-c", code, **options)


def needed(names):
    """Distributions, and what they require here."""
    installed, waiting = [], list(names)
    while waiting:
        name = waiting.pop()
        if name in installed:
            continue
        try:
            requires = importlib.metadata.requires(name) or []
        except (
            importlib.metadata.PackageNotFoundError
        ):  # wanted by an extra of another one, or on another system
            continue
        installed.append(name)
        wanted = map(Requirement, requires)
        waiting += [
            one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})
        ]
    return installed


@pytest.fixture(scope="module")
def core(wheels, tmp_path_factory):
    """The measuring core, with what pip brings for it."""
    requires = PROJECTS["metal-lab"]["project"]["dependencies"]
    return Environment(tmp_path_factory.mktemp("core") / "venv", wheels["metal-lab"], requires)


@pytest.fixture(scope="module")
def with_torch(wheels, tmp_path_factory):
    """torch and pytest, and metalsim with what pip brings for it."""
    requires = [*PROJECTS["metalsim"]["project"]["dependencies"], "torch", "pytest", "pytest-xdist"]
    return Environment(tmp_path_factory.mktemp("torch") / "venv", wheels["metalsim"], requires)


# ---------------------------------------------------------------- the measuring core


@functools.cache
def blocks(page, language):
    """The code of a language on a page for people."""
    tokens = MarkdownIt("commonmark").parse(page.read_text("utf-8"))
    return [token.content for token in tokens if token.type == "fence" and token.info == language]


LOADED = "print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names - {'metallab'})"
IMPORTED = {
    "import metallab": set(),
    "from metallab.__main__ import main": set(),
    "from metallab import device, timing": {"msgspec", "numpy", "psutil"},
    "from metallab import checks, isolated, memory, records, units": {
        "msgspec",
        "numpy",
        "psutil",
        "pyperf",
    },
}
"""What is there after each of these lines, one after the other in a process."""


def test_importing_the_core_imports_no_framework():
    """Where all are installed: in an environment without them nobody would notice."""
    environment = {key: value for key, value in os.environ.items() if key != "METALLAB_DEVICE"}
    code = "\n".join(["import sys", *(f"{line}\n{LOADED}" for line in IMPORTED)])
    printed, _ = run([sys.executable, "-c", code], env=environment)
    other = {
        "cython_runtime",
        "sitecustomize",  # of the system's Python
        "typing_extensions",
    }  # msgspec looks for the second, and does without it
    packages = [
        {name for name in line.split() if name[0] != "_"} - other for line in printed.splitlines()
    ]
    assert dict(zip(IMPORTED, packages, strict=True)) == IMPORTED


def test_the_core_runs_what_its_page_prints(core, tmp_path):
    first, on_torch, compared, *_ = blocks(OWN_CODE, "py")
    assert len([line for line in first.splitlines() if line]) <= 5
    assert "device.pick()" in on_torch
    (shown,) = blocks(OWN_CODE, "")
    printed, _ = core.python(first, cwd=tmp_path, METALLAB_MODE="fast")
    assert shape(re.sub(r" \[.*\]", "", printed)) == shape(shown)
    printed, _ = core.python(compared, cwd=tmp_path, METALLAB_MODE="fast")
    assert "map" in printed
    assert not list(tmp_path.iterdir()), "nothing is written"
    environment = os.environ | {"METALLAB_MODE": "fast", "METALLAB_DEVICE": "cpu"}
    printed, _ = run(
        [sys.executable, "-c", on_torch], env=environment
    )  # the core alone has no torch
    assert printed.startswith("product: ")


def shape(text):
    """A line without its numbers and their units."""
    return re.sub(r"\d+(\.\d+)?( (n|µ|m)?s\b)?", "#", text)


def test_the_commands_of_the_page_are_there(core, tmp_path):
    (commands,) = (block for block in blocks(OWN_CODE, "sh") if "metallab time" in block)
    lines = dict(line.split(maxsplit=2)[1:] for line in commands.splitlines())
    assert lines.keys() == {"time", "coverage", "doctor", "trace", "report", "versus"}
    printed, _ = core(
        "metallab", "time", *shlex.split(lines["time"]), cwd=tmp_path, METALLAB_MODE="fast"
    )
    assert printed.startswith("sum(numbers): ")
    printed, _ = core("metallab", "--help", cwd=tmp_path)
    assert all(f"metallab {name} " in printed for name in lines)
    core("metallab", "versus", "--help", cwd=tmp_path)  # its modules are imported


def test_what_the_core_writes_lies_where_it_was_started(core, tmp_path):
    """Hidden from git, as what is no change of somebody's project."""
    run(["git", "init", "--quiet", str(tmp_path)])
    code = (
        "from metallab import device, records, timing\n"
        "measured = timing.measure(lambda: 1, on=timing.Host(), name='mine')\n"
        "path = records.save('mine', measured, on=device.PyTorchDevice('cpu', 'a CPU'))\n"
        "print(records.load(path)[0].measurement.name)"
    )
    printed, _ = core.python(code, cwd=tmp_path, METALLAB_MODE="fast")
    assert printed == "mine\n"
    written = tmp_path / "build" / "metallab" / "fast-cpu" / "results" / "mine.json"
    assert [record.measurement.name for record in records.load(written)] == ["mine"]
    assert (
        run(["git", "-C", str(tmp_path), "status", "--porcelain", "--untracked-files=all"])[0] == ""
    )


def test_what_others_reported_is_a_part_of_the_core(core, tmp_path):
    code = (
        "from metallab import reported\n"
        "from metallab.reported import figures, peaks\n"
        "print(len(reported.measurements()) > 60, reported.chip('M1').gpu_cores, peaks.bandwidth('M1'))\n"
        "print(all(map(figures.find, reported.impossible())), (reported.DATA / 'README.md').is_file())"
    )
    printed, _ = core.python(code, cwd=tmp_path)
    assert printed == "True (7, 8) 68.3 GB/s to 70.3 GB/s\nTrue True\n"


@pytest.fixture(scope="module")
def with_language(wheels, tmp_path_factory):
    """The core, and what the language model takes beside it."""
    requires = [*PROJECTS["metal-lab"]["project"]["dependencies"], "torch", "safetensors"]
    folder = tmp_path_factory.mktemp("language") / "venv"
    return Environment(folder, wheels["metal-lab"], requires)


def test_the_language_model_and_its_texts_are_a_part_of_the_wheel(with_language, tmp_path):
    code = (
        "from metallab.language import corpus, decoder\n"
        "text, recipes = corpus.load(), corpus.RECIPES.read_text('utf-8')\n"
        "logits = decoder.load()(corpus.encode(text.test[:8])[None])\n"
        "licence = corpus.DATA.joinpath('PYTHON_LICENSE.txt').read_text('utf-8')\n"
        "print(*logits.shape, 'CARROT' in recipes, 'PYTHON SOFTWARE FOUNDATION' in licence)"
    )
    printed, _ = with_language.python(code, cwd=tmp_path)
    assert printed == "1 8 96 True True\n"


# ---------------------------------------------------------------- metalsim

MPS_TEST = """
import os
import platform

import pytest
import torch


def test_mps_is_simulated():
    assert torch.ones(3, device="mps").sum().item() == 3
    assert "PYTEST_XDIST_WORKER" in os.environ
    with pytest.raises(NotImplementedError):
        torch.nn.RReLU()(torch.ones(3, device="mps"))
    assert platform.processor() == "arm"
"""


@pytest.mark.nightly
@NOT_ON_A_MAC
def test_a_program_and_its_tests_run_as_the_page_prints(with_torch, tmp_path):
    """Also with pytest's workers, each a process of its own."""
    program, *_ = blocks(ON_LINUX, "py")
    (tmp_path / "train.py").write_text(program)
    (shown,) = blocks(ON_LINUX, "")
    commands = next(block for block in blocks(ON_LINUX, "sh") if "train.py" in block).splitlines()
    _, as_script, as_module, _ = map(shlex.split, commands)
    printed, errors = with_torch(*as_script, code=1, cwd=tmp_path)
    assert printed == shown
    assert "\nSimulated Apple GPU: PyTorch " in f"\n{errors}"
    raised = re.search(r"raises `(.*)`", ON_LINUX.read_text("utf-8"))[1]
    assert raised in errors
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_mps.py").write_text(MPS_TEST)
    python, m, name, *rest = as_module
    printed, _ = with_torch(
        python,
        m,
        name,
        "--pretend",
        "processor",
        *rest,
        "-n1",
        "-Werror::pytest.PytestWarning",
        cwd=tmp_path,
    )
    assert "1 passed" in printed
    assert (
        "metalsim: torch's mps device is a simulated Apple GPU, computed by this machine's CPU, processor"
        in printed
    )


NOTHING_HAPPENED = """
import sys


def test_x():
    assert "torch" not in sys.modules
    assert not sys.modules["metalsim"].is_armed()
"""


@NOT_ON_A_MAC
def test_without_the_option_the_plugin_imports_no_torch(with_torch, tmp_path):
    (tmp_path / "test_x.py").write_text(NOTHING_HAPPENED)
    printed, _ = with_torch("pytest", tmp_path / "test_x.py", cwd=tmp_path)
    assert "1 passed" in printed
    assert "metalsim:" not in printed


@NOT_ON_A_MAC
def test_the_option_comes_before_any_torch_or_says_so(with_torch, tmp_path):
    (tmp_path / "early.py").write_text(
        "import sys, types\nsys.modules['torch'] = types.ModuleType('torch')\n"
    )
    _, errors = with_torch(
        "pytest", "-p", "early", "--metalsim", code=4, cwd=tmp_path, PYTHONPATH=str(tmp_path)
    )
    assert (
        "ERROR: --metalsim: torch was imported before the simulated Apple GPU was armed" in errors
    )


def test_the_cache_is_the_checkout_s_or_the_user_s(monkeypatch, tmp_path):
    monkeypatch.delenv("METALSIM_CACHE", raising=False)
    assert building._base() == ROOT / "build" / "metalsim"
    monkeypatch.setattr(
        building, "__file__", str(tmp_path / "lib" / "site-packages" / "metalsim" / "building.py")
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    assert building.cache() == tmp_path / "kept" / "metalsim"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert building.cache() == tmp_path / "home" / ".cache" / "metalsim"
    monkeypatch.setenv("METALSIM_CACHE", str(tmp_path / "named"))
    assert building.cache() == tmp_path / "named"
