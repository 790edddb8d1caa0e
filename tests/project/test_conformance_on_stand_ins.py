"""Claims that only a Mac can answer, each run here too, with stand-ins for what is missing, so that it runs at all."""

from __future__ import annotations

import dataclasses
import os
import textwrap
import time
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conformance import (
    claims,
    test_converting,
    test_machines,
    test_mps,
    test_mpsgraph,
    test_profiler,
    test_shaders,
)

from metallab import checks, isolated, machine

CONFORMANCE = Path(test_mps.__file__).parent
CONFIRMED = ("confirmed", "")


def judge(test: Callable, **fixtures: object) -> tuple[str, str]:
    """What would come of a claim: its outcome, and why it is refuted or not applicable."""
    if "evidence" in test.__code__.co_varnames[: test.__code__.co_argcount]:
        fixtures["evidence"] = lambda name, value: None
    try:
        test(**fixtures)
    except (AssertionError, checks.Mismatch, pytest.fail.Exception) as error:
        return "refuted", str(error)
    except pytest.skip.Exception as error:
        return "not applicable", str(error)
    return CONFIRMED


def put(folder: Path, **programs: str) -> None:
    """Programs of a shell on PATH, before the system's."""
    folder.mkdir(exist_ok=True)
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{textwrap.dedent(text)}")
        (folder / name).chmod(0o755)


@pytest.fixture
def mac(tmp_path, monkeypatch):
    """A folder to work in, with stand-ins for Apple's programs on PATH."""
    monkeypatch.chdir(tmp_path)
    bin = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{bin}{os.pathsep}{os.environ['PATH']}")
    flags = " ".join(test_converting.FLAGS)
    put(
        bin,
        clang="echo Apple clang version 17.0.0",
        metal='[ "$1" = -Wall ] || echo Apple metal version 32023; exit 0',
        metallib="echo metallib",
        sw_vers="echo 24A335",
        **{"xcode-select": "echo /Library/Developer/CommandLineTools"},
        mpsgraphtool=f'case "$*" in *-path*) mkdir -p "$5/$7.mpsgraphpackage";; *) echo usage: {flags};; esac',
        xctrace="""
            case "$1" in
              record) mkdir run.trace; echo Recording completed ;;
              export) echo '<row><subsystem>PyTorchMPS</subsystem></row>' ;;
              *) echo xctrace version 16.0 ;;
            esac""",
        log="echo 'signpost PyTorchMPS PyTorchKernelIntervals softshrink'; exec sleep 600",
    )
    return types.SimpleNamespace(bin=bin, folder=tmp_path)


def well(**results):
    return lambda *_, **__: isolated.Outcome("ok", results=results)


def test_apples_programs_are_asked(mac, monkeypatch):
    monkeypatch.setattr(isolated, "run", well())
    assert judge(test_machines.test_tools_of_xcode) == CONFIRMED
    asked = (
        test_shaders.test_metal_compiler_takes_our_files,
        test_profiler.test_instruments_records_them,
        test_converting.test_mpsgraphtool_takes_our_flags,
    )
    assert [judge(test) for test in asked] == [CONFIRMED] * 3
    put(mac.bin, mpsgraphtool="echo usage: -onnx", metal="echo error: no; exit 1", xctrace="exit 1")
    assert [judge(test)[0] for test in asked] == ["refuted"] * 3


def test_without_xcode_claims_are_not_applicable(mac):
    for name in ("metal", "xctrace", "mpsgraphtool"):
        (mac.bin / name).unlink()
    for test, fixtures in (
        (test_shaders.test_metal_compiler_takes_our_files, {}),
        (test_profiler.test_instruments_records_them, {}),
        (test_converting.test_mpsgraphtool_takes_our_flags, {}),
        (test_converting.test_mpsgraphtool_converts, {"source": "small.onnx"}),
    ):
        outcome, message = judge(test, **fixtures)
        assert outcome == "not applicable"
        assert "xcode" in message.lower()
    assert judge(test_machines.test_tools_of_xcode) == CONFIRMED


def test_signposts_are_listened_to_while_work_is_done(mac, monkeypatch):
    worked = []

    def sleep(_):
        """Until something was heard."""
        end = time.monotonic() + 300
        while not Path("heard.txt").read_text().endswith("\n"):
            assert time.monotonic() < end
            time.sleep(0.01)

    monkeypatch.setattr(test_profiler, "time", types.SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(
        isolated, "run", lambda source, **_: worked.append(source) or isolated.Outcome("ok")
    )
    assert judge(test_profiler.test_signposts_of_operators_are_seen) == CONFIRMED
    assert judge(test_profiler.test_signposts_of_own_kernels_are_not_seen)[0] == "refuted"
    assert "nn.functional.softshrink(x, 0.5)" in worked[0]
    assert "library.softshrink_forward_float(out, x, 0.5)" in worked[1]


def test_the_machine_is_described_and_films_are_written(mac, monkeypatch):
    known = {field.name: "something" for field in dataclasses.fields(machine.Machine)}
    monkeypatch.setattr(machine, "describe", lambda: machine.Machine(**known))
    assert judge(test_machines.test_description_is_complete) == CONFIRMED
    monkeypatch.setattr(machine, "describe", lambda: machine.Machine(**known | {"gpu_cores": None}))
    outcome, message = judge(test_machines.test_description_is_complete)
    assert outcome == "refuted"
    assert "not found out: gpu_cores" in message
    monkeypatch.setattr(test_machines, "H264", "mp4v")  # the one that is everywhere
    outcome, message = judge(test_machines.test_films_are_written_in_h264)
    assert outcome == "refuted"
    assert "another format" in message


@pytest.mark.parametrize(("busy", "outcome"), [(3.4, "confirmed"), (1.02, "refuted")])
def test_threads_of_accelerate_are_seen_by_their_time(monkeypatch, busy, outcome):
    asked = []
    monkeypatch.setattr(
        isolated,
        "run",
        lambda source, **given: asked.append((source, given.get("threads"))) or well(busy=busy)(),
    )
    assert judge(test_machines.test_accelerate_keeps_its_own_threads)[0] == outcome
    ((source, threads),) = asked
    assert "torch.set_num_threads(1)" in source
    assert threads is None, "with its variables the question would be another"
    monkeypatch.setattr(
        isolated, "run", lambda *_, **__: isolated.Outcome("timeout", reason="too long")
    )
    assert judge(test_machines.test_accelerate_keeps_its_own_threads)[0] == "not applicable"


def test_the_memory_limit_is_read_in_the_message(monkeypatch):
    gib = 2**30
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 10 * gib)
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: None)
    given = []

    def empty(size, **_):
        if (sum(given) + size) / gib > 17:
            raise RuntimeError(
                "MPS backend out of memory (MPS allocated: 16.00 GiB, max allowed: 17.00 GiB). Tried"
            )
        given.append(size)

    monkeypatch.setattr(torch, "empty", empty)
    assert judge(test_mps.test_limit_is_1_7_unless_set) == CONFIRMED
    assert len(given) == 4
    monkeypatch.setattr(torch, "empty", lambda size, **_: None)
    assert judge(test_mps.test_limit_is_1_7_unless_set)[0] == "refuted"


def test_what_mpsgraphtool_made_is_loaded_and_compared(mac, monkeypatch):
    ask = lambda: judge(test_converting.test_mpsgraphtool_converts, source="small.onnx")
    monkeypatch.setattr(
        test_converting, "make", lambda core_ml: np.save("truth.npy", np.ones((1, 10), np.float32))
    )
    monkeypatch.setattr(isolated, "run", well(y=np.ones(10, np.float32)))
    assert ask() == CONFIRMED
    monkeypatch.setattr(isolated, "run", well(y=np.zeros(10, np.float32)))
    outcome, message = ask()
    assert (outcome, "DIFFERS" in message) == ("refuted", True)
    put(mac.bin, mpsgraphtool="exit 134")
    assert ask()[0] == "refuted"


@pytest.mark.parametrize(
    ("ended", "outcome"), [("crashed", "confirmed"), ("raised", "refuted"), ("ok", "refuted")]
)
def test_on_a_mac_an_invalid_graph_is_expected_to_crash(monkeypatch, ended, outcome):
    monkeypatch.setattr(isolated, "run", lambda *_, **__: isolated.Outcome(ended))
    for module in (claims, test_mpsgraph):
        monkeypatch.setattr(module, "ON_A_MAC", True)
    assert judge(test_mpsgraph.test_invalid_graph_ends_the_process, G=None)[0] == outcome
