"""Tools that a machine may lack: each is missed when it is hidden, and what mends that is named."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from nbformat import v4

from metallab import needs, notebook
from metallab.isolated import magic
from metallab.notebook import not_run

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="asks for what Linux has")


@pytest.fixture(autouse=True)
def nothing_is_known():
    """What another test has found on this machine is not known here, and the other way round."""
    from metalsim import clang

    clang._find_compiler.cache_clear()
    yield
    clang._find_compiler.cache_clear()


@pytest.fixture
def no_tools(monkeypatch, tmp_path):
    """A PATH without any program; nothing else names a compiler."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("METALSIM_CXX", raising=False)


@LINUX
def test_programs_are_missed_when_they_are_hidden(no_tools):
    """ziglang, a Python package, compiles shaders all the same; Objective-C++ wants g++ besides."""
    hidden = {tool.name for tool in needs.missing(needs.TOOLS)}
    programs = ("apple-gpu", "objective-c++")
    assert {needs.TOOLS[name].name for name in programs} <= hidden
    assert (needs.TOOLS["shader-compiler"].name in hidden) == (
        importlib.util.find_spec("ziglang") is None
    )


@LINUX
def test_objective_cpp_is_missed_without_its_package(monkeypatch):
    monkeypatch.setattr(needs, "has_compiler", lambda: True)
    monkeypatch.setattr(needs, "_has_shader_compiler", lambda: True)
    assert needs.TOOLS["objective-c++"].is_here()

    monkeypatch.setattr(needs.importlib.util, "find_spec", lambda name: None)
    assert not needs.TOOLS["objective-c++"].is_here()


@LINUX
def test_python_packages_are_missed_when_they_are_hidden(no_tools, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name in ("coremltools", "ziglang") else find(name, *more),
    )
    names = ("coremltools", "shader-compiler")
    assert [tool.fix() for tool in needs.missing(names)] == ["make setup FORCE=1"] * 2


@pytest.mark.parametrize(
    ("code", "lacking"),
    [
        pytest.param(0, set(), id="with Xcode's tools"),
        pytest.param(2, {"xcode-select --install"}, id="without them"),
    ],
)
def test_a_mac_lacks_nothing_that_it_cannot_have(monkeypatch, tmp_path, code, lacking):
    """A Mac without Core AI lacks that alone, and the compilers where Xcode's command-line tools are not installed.

    Commands that only other systems need are not missed: none at all is found here.
    """

    def run(command, **_):
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(needs, "CORE_AI", tmp_path)  # an empty folder
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(needs.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(subprocess, "run", run)  # `xcode-select -p`, which asks for Xcode's tools

    fixes = {tool.fix() for tool in needs.missing(needs.TOOLS)}
    assert fixes == {"make setup COREAI=1"} | lacking


def test_a_linux_without_apt_is_told_what_to_install(no_tools, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    assert needs.TOOLS["objective-c++"].fix().startswith("install g++ ")


def test_a_linux_with_apt_is_told_what_calls_it(no_tools, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert needs.TOOLS["c++"].fix() == "make packages"
    assert needs.TOOLS["objective-c++"].fix() == "make setup FORCE=1"


@pytest.mark.parametrize(
    ("system", "machine", "word"),
    [
        pytest.param("linux", "x86_64", "g++", id="what-can-be-installed"),
        pytest.param("linux", "aarch64", "x86-64", id="what-cannot"),
        pytest.param("darwin", "arm64", "GPU", id="a-mac"),
    ],
)
def test_who_lacks_an_apple_gpu_is_told_what_would_simulate_one(monkeypatch, system, machine, word):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)

    name = needs._name_apple_gpu()

    assert word in name
    assert ("simulate" in name) == (system == "linux")


@pytest.mark.parametrize(
    ("machine", "can_be_had"), [("x86_64", True), ("aarch64", False)], ids=["Intel", "ARM"]
)
def test_no_compiler_gives_a_linux_on_arm_the_simulated_gpu(
    no_tools, monkeypatch, machine, can_be_had
):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert needs.TOOLS["apple-gpu"].is_here() is can_be_had


@pytest.mark.parametrize(
    "told",
    [
        pytest.param({"expects": "better", "comparison": "a", "variant": "b"}, id="no verdict"),
        pytest.param({"expects": "faster"}, id="of no comparison"),
    ],
)
def test_an_expectation_that_is_not_understood_names_its_cell(told):
    cell = v4.new_code_cell("1", id="measure", metadata={"metallab": told})
    with pytest.raises(notebook.Failure, match=r"measure.*expects"):
        notebook.expectations(v4.new_notebook(cells=[cell]))


MISSING = needs.MissingTool("the <model>", "make it")
TOLD = "NOT RUN: the <model>.\nTo fix it: make it"


def test_what_is_missing_is_shown_as_words_and_as_nothing_that_a_page_would_execute():
    shown = MISSING._repr_mimebundle_()
    assert shown["text/plain"] == TOLD
    assert "&lt;model&gt;" in shown["text/html"]


def test_the_runner_reads_what_is_missing_from_the_output_that_shows_it():
    output = v4.new_output("display_data", MISSING._repr_mimebundle_())
    cells = [v4.new_markdown_cell("# One\n\n## Two"), v4.new_code_cell("1", outputs=[output])]

    (gap,) = not_run(v4.new_notebook(cells=cells))
    assert gap == {"where": "cell 1 (Two)", "what": "the <model>", "fix": "make it"}


def test_outside_of_a_notebook_what_is_missing_is_printed(capsys):
    needs.incomplete("the <model>", "make it")
    assert capsys.readouterr().out == f"{TOLD}\n"


COMPILERS = [
    pytest.param("Linux", "", ["g++", "c++"], "g++", id="g++"),
    pytest.param("Linux", " ", ["c++", "clang++"], "c++", id="no g++"),
    pytest.param("Linux", "", ["clang++"], "clang++", id="clang++ alone"),
    pytest.param("Linux", "ccache g++ -m64", ["ccache", "c++"], "ccache g++ -m64", id="CXX"),
    pytest.param("Darwin", "", ["g++", "clang++"], "clang++", id="Mac"),
]


@pytest.fixture
def machine_with(monkeypatch):
    """Makes a machine with these programs, where ``CXX`` is told; none of a Mac's tools is asked."""

    def make(system: str, told: str, programs: list[str]) -> None:
        monkeypatch.setattr(needs.sys, "platform", "linux")
        monkeypatch.setattr(needs.platform, "system", lambda: system)
        monkeypatch.setenv("CXX", told)
        monkeypatch.setattr(shutil, "which", lambda name: name if name in programs else None)

    return make


@pytest.mark.parametrize(("system", "told", "programs", "command"), COMPILERS)
def test_one_compiler_is_found_and_used_by_all_of_pytorch(
    system, told, programs, command, machine_with
):
    machine_with(system, told, programs)
    assert needs.has_compiler()
    needs.use_compiler()
    assert os.environ["CXX"] == command


class Started(Exception):
    """The second kernel would be started now."""


def test_a_cell_that_needs_a_compiler_is_run_with_the_one_that_was_found(machine_with, monkeypatch):
    def start(*_, **__):
        raise Started(os.environ["CXX"])

    machine_with("Linux", "", ["c++"])
    monkeypatch.setattr(magic, "run_in_kernel", start)
    with pytest.raises(Started, match=r"^c\+\+$"):
        magic.Cells(SimpleNamespace(user_ns={})).run("--needs c++", "1 + 1")


def test_a_compiler_that_cxx_names_and_that_is_not_here_is_missing(machine_with):
    machine_with("Linux", "no-such-compiler", ["g++", "c++"])
    assert not needs.has_compiler()


@pytest.fixture
def cells(monkeypatch):
    """The cells that were run so far, to which a test adds."""
    run = [""]
    monkeypatch.setattr(needs, "_cells_run", lambda: run)
    monkeypatch.setattr(needs, "_not_run", [])
    monkeypatch.setenv("METALLAB_STRICT", "1")
    return run


def test_a_page_that_did_not_run_whole_is_told_so_each_time_its_last_cell_is_run(cells):
    cells.append("convert()")
    needs.incomplete("the model was not converted", "buy it")

    cells.append("records.save()")
    with pytest.raises(needs.NotRun, match="cell 1: the model was not converted"):
        needs.close_page("01_page")

    cells.append("records.save()")
    with pytest.raises(needs.NotRun, match="cell 1: the model was not converted"):
        needs.close_page("01_page")


def test_a_cell_that_was_run_again_with_its_tool_no_longer_counts(cells):
    cells.append("convert()")
    needs.incomplete("the model was not converted", "buy it")
    cells.append("convert()")  # now it has what it lacked
    cells.append("records.save()")
    needs.close_page("01_page")


def test_a_cell_that_lacks_its_tool_twice_is_named_once(cells):
    cells.append("convert()")
    needs.incomplete("the model was not converted", "buy it")
    cells.append("convert()")
    needs.incomplete("the model was not converted", "buy it")

    with pytest.raises(needs.NotRun) as raised:
        needs.close_page("01_page")
    assert str(raised.value).count("was not converted") == 1


@pytest.mark.parametrize("key", ["fix", "mend"])
def test_a_stored_page_may_have_the_older_key(key):
    assert needs.read_fix({"what": "it", key: "make setup"}) == "make setup"


def test_asking_for_a_tool_does_not_wait_for_pytorch():
    """The worker of a page asks before it starts the page's kernel."""
    code = """
import sys
from metallab import needs
needs.missing(needs.TOOLS)
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
