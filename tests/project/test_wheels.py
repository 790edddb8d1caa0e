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
from types import SimpleNamespace

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
PIP = [sys.executable, "-m", "pip"]
OFFLINE = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
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
    run([*PIP, "wheel", *OFFLINE, "--no-build-isolation", "-w", str(copy / "wheels"), *folders])

    paths_made = (copy / "wheels").iterdir()
    made = {path.name.partition("-")[0].replace("_", "-"): path for path in paths_made}
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


PACKAGES = {
    "metal-lab": "metallab",
    "metalsim": "metalsim",
    "metalsim-objc": "metalsim_objc",
}
"""By distribution, the package that it holds."""


@pytest.mark.parametrize(("name", "package"), PACKAGES.items(), ids=PACKAGES)
def test_a_wheel_has_every_file_of_its_package_and_no_other(wheels, name, package):
    with zipfile.ZipFile(wheels[name]) as wheel:
        held = {path for path in wheel.namelist() if ".dist-info/" not in path}

    assert held == sources(package)


@pytest.mark.parametrize("name", DISTS)
def test_a_wheel_is_for_every_machine(wheels, name):
    with zipfile.ZipFile(wheels[name]) as wheel:
        (tags,) = (path for path in wheel.namelist() if path.endswith(".dist-info/WHEEL"))
        text = wheel.read(tags).decode()

    assert "Root-Is-Purelib: true" in text
    assert wheels[name].name.endswith("-py3-none-any.whl")


def test_the_pytorch_of_metal_lab_is_the_one_that_metalsim_knows():
    assert f"torch=={TORCH}" in PROJECTS["metal-lab"]["project"]["optional-dependencies"]["pytorch"]


@pytest.fixture(params=DISTS)
def readme(request, wheels):
    """What a wheel says of itself, and its files."""
    path = wheels[request.param]
    with zipfile.ZipFile(path) as wheel:
        (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        _, _, text = wheel.read(metadata).decode().partition("\n\n")
        return SimpleNamespace(text=text, wheel=path.name, files=set(wheel.namelist()))


def parse(text):
    return MarkdownIt("commonmark").enable("table").parse(text)


def test_every_link_in_the_readme_of_a_wheel_leads_to_the_web_or_to_a_heading(readme):
    inside = [child for token in parse(readme.text) for child in token.children or ()]
    targets = [token.attrs["href"] for token in inside if token.type == "link_open"]

    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


def test_every_command_in_the_readme_of_a_wheel_runs_without_a_checkout(readme):
    commands = "".join(token.content for token in parse(readme.text) if token.type == "fence")

    assert f"pip install ./{readme.wheel}" in commands
    assert not re.search(r"^make |\.venv/", commands, re.MULTILINE)


def test_every_file_that_the_readme_of_a_wheel_names_is_in_it(readme):
    package = next(iter(readme.files)).partition("/")[0]
    named = re.findall(rf"`({package}/(?!tests/)[\w/]+\.\w+)`", readme.text)

    assert set(named) <= readme.files


@pytest.fixture
def install(wheels, tmp_path):
    """Return a function that has pip install a wheel from its address, if it has a digest."""

    def install_by_address(sha256, code=0):
        requirement = f"metalsim @ {wheels['metalsim'].as_uri()}#sha256={sha256}"
        _, errors = run([*PIP, "install", *OFFLINE, "--target", tmp_path, requirement], code)
        return errors

    return install_by_address


def test_a_wheel_of_its_sha256_is_installed(wheels, install, tmp_path):
    install(hashlib.sha256(wheels["metalsim"].read_bytes()).hexdigest())

    assert (tmp_path / "metalsim" / "device.py").is_file()


def test_a_wheel_of_another_sha256_is_refused(install, tmp_path):
    errors = install("0" * 64, code=1)

    assert "do not match the hashes" in errors.lower().replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- environments


class Environment:
    """A virtual environment with some of what is installed here, and one of our wheels."""

    def __init__(self, folder, wheel, packages):
        run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        self.bin = folder / "bin"
        where = "import sysconfig; print(sysconfig.get_path('purelib'))"
        self.packages = Path(run([self.bin / "python", "-c", where])[0].strip())

        for name in needed(packages):
            self.link(importlib.metadata.distribution(name))
        run([*PIP, "--python", self.bin / "python", "install", *OFFLINE, wheel])

    def link(self, distribution):
        """Link what a distribution has installed here into this environment, and write its scripts anew.

        Its files lie beside the packages, or above them, such as programs in ``../../../bin``. Programs that are no
        scripts are linked; a script names the Python of its environment in its first line. Other files above are left
        out.
        """
        for file in distribution.files:
            there, target = Path(distribution.locate_file(file)), self.bin / file.name
            if file.parts[0] != "..":
                top = file.parts[0]  # a package's whole folder at once
                there, target = Path(distribution.locate_file(top)), self.packages / top
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
    """Return the names of distributions and of all that they require here, as far as it is installed."""
    installed, waiting = [], list(names)
    while waiting:
        name = waiting.pop()
        if name in installed:
            continue

        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # wanted by an extra of another one, or on another system
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


NOT_ASKED = {
    "cython_runtime",
    "sitecustomize",  # of the system's Python
    "typing_extensions",  # which msgspec looks for, and does without
}


@pytest.fixture(scope="module")
def packages():
    """The packages that are there after each line of `IMPORTED`."""
    environment = {key: value for key, value in os.environ.items() if key != "METALLAB_DEVICE"}
    code = "\n".join(["import sys", *(f"{line}\n{LOADED}" for line in IMPORTED)])
    printed, _ = run([sys.executable, "-c", code], env=environment)
    named = ({name for name in line.split() if name[0] != "_"} for line in printed.splitlines())
    return dict(zip(IMPORTED, named, strict=True))


@pytest.mark.parametrize("line", IMPORTED)
def test_importing_the_core_imports_no_framework(packages, line):
    """Where all are installed: in an environment without them nobody would notice."""
    assert packages[line] - NOT_ASKED == IMPORTED[line]


@functools.cache
def programs_of_own_code():
    """The three programs of the page: of one's own, on PyTorch, and a comparison."""
    first, on_torch, compared, *_ = blocks(OWN_CODE, "py")
    return {"first": first, "on torch": on_torch, "compared": compared}


def test_the_first_program_of_the_page_has_five_lines():
    lines = programs_of_own_code()["first"].splitlines()

    assert len([line for line in lines if line]) <= 5


def test_the_core_runs_the_first_program_and_prints_as_the_page_does(core, tmp_path):
    (shown,) = blocks(OWN_CODE, "")

    first = programs_of_own_code()["first"]
    printed, _ = core.python(first, cwd=tmp_path, METALLAB_MODE="fast")

    assert shape(re.sub(r" \[.*\]", "", printed)) == shape(shown)
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_the_core_runs_the_comparison_of_the_page(core, tmp_path):
    compared = programs_of_own_code()["compared"]
    printed, _ = core.python(compared, cwd=tmp_path, METALLAB_MODE="fast")

    assert "map" in printed
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_the_program_of_the_page_on_pytorch_runs():
    """Here: the core alone has no torch."""
    environment = os.environ | {"METALLAB_MODE": "fast", "METALLAB_DEVICE": "cpu"}
    on_torch = programs_of_own_code()["on torch"]

    printed, _ = run([sys.executable, "-c", on_torch], env=environment)

    assert "device.pick()" in on_torch
    assert printed.startswith("product: ")


def shape(text):
    """A line without its numbers and their units."""
    return re.sub(r"\d+(\.\d+)?( (n|µ|m)?s\b)?", "#", text)


def commands_of_own_code():
    """The arguments of each command that the page prints, by its name."""
    (commands,) = (block for block in blocks(OWN_CODE, "sh") if "metallab time" in block)
    return dict(line.split(maxsplit=2)[1:] for line in commands.splitlines())


def test_the_page_prints_the_commands_that_help_lists(core, tmp_path):
    names = commands_of_own_code().keys()

    printed, _ = core("metallab", "--help", cwd=tmp_path)

    assert names == {"time", "coverage", "doctor", "trace", "report", "versus"}
    assert [name for name in names if f"metallab {name} " not in printed] == []


def test_the_core_times_what_the_page_times(core, tmp_path):
    arguments = shlex.split(commands_of_own_code()["time"])

    printed, _ = core("metallab", "time", *arguments, cwd=tmp_path, METALLAB_MODE="fast")

    assert printed.startswith("sum(numbers): ")


def test_the_core_has_what_versus_imports(core, tmp_path):
    core("metallab", "versus", "--help", cwd=tmp_path)


SAVES = """
from metallab import device, records, timing

measured = timing.measure(lambda: 1, on=timing.Host(), name="mine")
path = records.save("mine", measured, on=device.PyTorchDevice("cpu", "a CPU"))
print(records.load(path)[0].measurement.name)
"""


def test_what_the_core_writes_lies_where_it_was_started_and_is_no_change_of_a_project(
    core, tmp_path
):
    run(["git", "init", "--quiet", str(tmp_path)])

    printed, _ = core.python(SAVES, cwd=tmp_path, METALLAB_MODE="fast")

    assert printed == "mine\n"
    written = tmp_path / "build" / "metallab" / "fast-cpu" / "results" / "mine.json"
    assert [record.measurement.name for record in records.load(written)] == ["mine"]
    status = ["git", "-C", str(tmp_path), "status", "--porcelain", "--untracked-files=all"]
    assert run(status)[0] == ""


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


def lines_of_linux():
    """The words of the commands around ``train.py`` on the page: as a script, and as a module with pytest."""
    block = next(block for block in blocks(ON_LINUX, "sh") if "train.py" in block)
    _, as_script, as_module, _ = map(shlex.split, block.splitlines())
    return as_script, as_module


@pytest.mark.nightly
@NOT_ON_A_MAC
def test_a_program_runs_as_the_page_prints(with_torch, tmp_path):
    program, *_ = blocks(ON_LINUX, "py")
    (tmp_path / "train.py").write_text(program)
    as_script, _ = lines_of_linux()

    printed, errors = with_torch(*as_script, code=1, cwd=tmp_path)

    (shown,) = blocks(ON_LINUX, "")
    assert printed == shown
    assert "\nSimulated Apple GPU: PyTorch " in f"\n{errors}"
    assert re.search(r"raises `(.*)`", ON_LINUX.read_text("utf-8"))[1] in errors


@pytest.mark.nightly
@NOT_ON_A_MAC
def test_tests_run_as_the_page_prints(with_torch, tmp_path):
    """Also with pytest's workers, each a process of its own."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_mps.py").write_text(MPS_TEST)
    _, (python, m, name, *rest) = lines_of_linux()

    options = ["--pretend", "processor", *rest, "-n1", "-Werror::pytest.PytestWarning"]
    printed, _ = with_torch(python, m, name, *options, cwd=tmp_path)

    assert "1 passed" in printed
    told = "torch's mps device is a simulated Apple GPU, computed by this machine's CPU, processor"
    assert f"metalsim: {told}" in printed


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


EARLY = "import sys, types\nsys.modules['torch'] = types.ModuleType('torch')\n"


@NOT_ON_A_MAC
def test_the_option_comes_before_any_torch_or_says_so(with_torch, tmp_path):
    (tmp_path / "early.py").write_text(EARLY)

    options = ["-p", "early", "--metalsim"]
    _, errors = with_torch("pytest", *options, code=4, cwd=tmp_path, PYTHONPATH=str(tmp_path))

    told = "torch was imported before the simulated Apple GPU was armed"
    assert f"ERROR: --metalsim: {told}" in errors


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Metalsim as if it lay among installed packages, with a home and none of the variables."""
    module = tmp_path / "lib" / "site-packages" / "metalsim" / "building.py"
    monkeypatch.setattr(building, "__file__", str(module))
    for name in ("METALSIM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_the_cache_of_a_checkout_lies_in_it(monkeypatch):
    monkeypatch.delenv("METALSIM_CACHE", raising=False)

    assert building._base() == ROOT / "build" / "metalsim"


def test_the_cache_of_an_installed_package_lies_at_home(installed, tmp_path):
    assert building.cache() == tmp_path / "home" / ".cache" / "metalsim"


def test_the_cache_lies_where_the_desktop_s_variable_says(installed, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))

    assert building.cache() == tmp_path / "kept" / "metalsim"


def test_the_cache_lies_where_its_own_variable_says(installed, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    monkeypatch.setenv("METALSIM_CACHE", str(tmp_path / "named"))

    assert building.cache() == tmp_path / "named"
