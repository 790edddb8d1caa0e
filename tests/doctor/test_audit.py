"""`metallab doctor --machine`: each device computes and is compared, and what is missing or differs is named."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from importlib import metadata
from types import SimpleNamespace

import numpy as np
import pytest

from metallab import __main__ as metallab_command
from metallab import device, isolated, machine, needs
from metallab.doctor import audit, wording
from metallab.doctor.audit import DeviceCheck, Difference


def multiply(a, b):
    return a @ b


def multiply_with_nan(a, b):
    product = a @ b
    product[3, 5] = np.nan
    return product


def raise_at_once(a, b):
    raise RuntimeError("no kernel\nand more")


@pytest.mark.parametrize(
    ("product", "outcome", "detail"),
    [
        pytest.param(multiply, "agrees", "", id="right"),
        pytest.param(lambda a, b: a @ b + 2, "differs", "2", id="wrong"),
        pytest.param(multiply_with_nan, "differs", "nan", id="NaN"),
        pytest.param(raise_at_once, "refused", "no kernel", id="raises"),
    ],
)
def test_a_product_is_compared_with_numpy_s(product, outcome, detail):
    check = audit.check_product("torch", "mps", product)
    assert check.outcome == outcome
    assert detail in check.detail


def test_the_cpu_of_pytorch_computes():
    assert DeviceCheck("torch", "cpu", "agrees") in audit.try_devices("torch")


def test_a_framework_that_ends_its_process_is_a_device_that_fails(monkeypatch):
    ended = isolated.Outcome("crashed", reason="it was ended by SIGABRT")
    monkeypatch.setattr(audit.isolated, "run", lambda *_, **__: ended)
    (check,) = audit.check_framework("jax")
    assert check.device == ""
    assert check.outcome == "refused"
    assert "SIGABRT" in wording.device_check(check)


def test_a_provider_that_does_not_start_leaves_the_others_their_checks(monkeypatch):
    runtime = pytest.importorskip("onnxruntime")
    core_ml, cpu = "CoreMLExecutionProvider", "CPUExecutionProvider"
    start = runtime.InferenceSession

    def refuse_core_ml(network, providers):
        if providers == [core_ml]:
            raise RuntimeError("no such chip")
        return start(network, providers=providers)

    monkeypatch.setattr(runtime, "get_available_providers", lambda: [core_ml, cpu])
    monkeypatch.setattr(runtime, "InferenceSession", refuse_core_ml)

    assert audit.try_devices("onnxruntime") == (
        DeviceCheck("onnxruntime", cpu, "agrees"),
        DeviceCheck("onnxruntime", core_ml, "refused", "no such chip"),
    )


# ---- what is installed -------------------------------------------------------------------------------------------


def test_packages_that_a_page_needs_and_that_are_missing_are_named(tmp_path):
    told = {"metadata": {"metallab": {"needs": ["numpy", "no-such-package"]}}}
    (tmp_path / "10_page.ipynb").write_text(json.dumps(told))
    assert audit.find_missing_packages(tmp_path) == ("no-such-package",)


def test_a_tool_that_is_missing_comes_with_its_remedy(monkeypatch):
    absent = replace(needs.TOOLS["c++"], is_here=lambda: False, fix=lambda: "buy one")
    monkeypatch.setattr(audit.needs, "TOOLS", {"c++": absent})
    monkeypatch.setattr(audit.shutil, "which", lambda program: program)
    assert [tool.fix for tool in audit.find_missing_tools()] == ["buy one"]


def test_a_program_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(audit.needs, "TOOLS", {})
    monkeypatch.setattr(audit.shutil, "which", lambda program: None)
    assert "git" in audit.find_missing_tools()[0].what


def test_another_version_than_the_tested_one_is_named(tmp_path):
    here = metadata.version("numpy")
    file = tmp_path / "constraints.txt"
    file.write_text("numpy==0.1\npsutil>=0.1\n")
    compared, differences = audit.compare_versions(file)
    assert compared == 2
    assert differences == (Difference("numpy", here, "==0.1"),)


def test_a_package_is_known_by_each_spelling_of_its_name(tmp_path, monkeypatch):
    """The lines have hyphens, and packages call themselves as they like: none may be passed over for that."""
    installed = [SimpleNamespace(name="Typing_extensions")]
    monkeypatch.setattr(audit.metadata, "distributions", lambda: installed)
    monkeypatch.setattr(audit.metadata, "version", lambda _: "4.0")
    file = tmp_path / "constraints.txt"
    file.write_text("typing-extensions==4.1\n")
    told = {"metadata": {"metallab": {"needs": ["typing.extensions"]}}}
    (tmp_path / "10_page.ipynb").write_text(json.dumps(told))

    difference = Difference("typing-extensions", "4.0", "==4.1")
    assert audit.compare_versions(file) == (1, (difference,))
    assert audit.find_missing_packages(tmp_path) == ()


@pytest.mark.parametrize(
    "line",
    ["# a comment", "not-installed==1", "msgspec==0.1 ; sys_platform == 'nowhere'"],
    ids=["a comment", "not installed", "of another system"],
)
def test_a_line_that_says_nothing_of_this_environment_is_not_compared(tmp_path, line):
    file = tmp_path / "constraints.txt"
    file.write_text(f"{line}\n")
    assert audit.compare_versions(file) == (0, ())


def test_nothing_is_compared_outside_of_a_checkout(tmp_path):
    assert audit.compare_versions(tmp_path / "none.txt") == (0, ())


# ---- the command -------------------------------------------------------------------------------------------------

COMMAND = importlib.import_module("metallab.doctor.command")
"""The module: the package has a function of that name."""

SOUND = audit.Audit(
    machine=machine.describe(),
    checks=(DeviceCheck("torch", "cpu", "agrees"),),
    absent=("mlx",),
    packages=(),
    tools=(),
    compared=3,
    differences=(),
    fitness=SimpleNamespace(verdict="fit"),
)
WRONG = replace(SOUND, checks=(*SOUND.checks, DeviceCheck("torch", "mps", "differs", "2")))
LACKING = replace(
    SOUND,
    packages=("jax",),
    tools=(needs.MissingTool("a page needs a compiler", "make packages"),),
    differences=(Difference("numpy", "2.5", "==1.26.4"),),
)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        pytest.param(SOUND, 0, id="sound"),
        pytest.param(WRONG, 1, id="a wrong device"),
        pytest.param(LACKING, 0, id="something is missing"),
    ],
)
def test_the_exit_code_is_that_of_the_devices(monkeypatch, capsys, found, code):
    monkeypatch.setattr(COMMAND, "audit_machine", lambda: found)
    assert metallab_command.main(["doctor", "--machine"]) == code
    assert "torch, cpu" in capsys.readouterr().out


def test_a_device_that_is_named_and_not_there_ends_with_2(monkeypatch, capsys):
    """With the sentence that says so, and no traceback; 1 would mean that a device computes wrongly."""

    def refuse():
        raise device.DeviceUnavailable("no mps here")

    monkeypatch.setattr(COMMAND, "audit_machine", refuse)
    assert metallab_command.main(["doctor", "--machine"]) == 2
    assert capsys.readouterr().err == "metallab doctor: no mps here\n"


@pytest.mark.parametrize("word", ["mlx", "jax", "make packages", "numpy is 2.5", "==1.26.4"])
def test_all_that_is_found_is_told(word):
    assert word in "\n".join(wording.audit_lines(LACKING))


def test_what_is_wrong_is_called_wrong():
    assert "WRONG by up to 2" in "\n".join(wording.audit_lines(WRONG))


@pytest.mark.parametrize("arguments", [[], ["--machine", "my_model:example"]])
def test_a_model_or_the_machine_is_asked_about_and_not_both(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        metallab_command.main(["doctor", *arguments])
    assert "--machine" in capsys.readouterr().err
