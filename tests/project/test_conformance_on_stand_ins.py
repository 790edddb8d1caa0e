"""Claims that only a Mac can answer, each run here too, with stand-ins for what is missing, so that it runs at all."""

from __future__ import annotations

import copy
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
    test_jax,
    test_machines,
    test_mps,
    test_mpsgraph,
    test_profiler,
    test_shaders,
)

from metallab import checks, isolated, machine, paths
from metallab.pytorch.kernels import extension

CONFORMANCE = Path(test_mps.__file__).parent
CONFIRMED = ("confirmed", "")


def judge(test: Callable, **fixtures: object) -> tuple[str, str]:
    """What would come of a claim: its outcome, and why it is refuted or not applicable."""
    if "evidence" in test.__code__.co_varnames[: test.__code__.co_argcount]:
        fixtures["evidence"] = drop_evidence
    try:
        test(**fixtures)
    except (AssertionError, checks.Mismatch, pytest.fail.Exception) as error:
        return "refuted", str(error)
    except pytest.skip.Exception as error:
        return "not applicable", str(error)
    return CONFIRMED


def drop_evidence(name: str, value: object) -> None:
    """Keep nothing of what a claim shows."""


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
    programs = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    flags = " ".join(test_converting.FLAGS)

    put(
        programs,
        clang="echo Apple clang version 17.0.0",
        # compiles with -Wall in silence, and else says its version
        metal='[ "$1" = -Wall ] || echo Apple metal version 32023; exit 0',
        metallib="echo metallib",
        sw_vers="echo 24A335",
        **{"xcode-select": "echo /Library/Developer/CommandLineTools"},
        # "$5" and "$7" are the folder and the name that the claim has asked for
        mpsgraphtool=f'case "$*" in *-path*) mkdir -p "$5/$7.mpsgraphpackage";; *) echo usage: {flags};; esac',
        xctrace="""
            case "$1" in
              record) mkdir run.trace; echo Recording completed ;;
              export) echo '<row><subsystem>PyTorchMPS</subsystem></row>' ;;
              *) echo xctrace version 16.0 ;;
            esac""",
        # replaced by sleep, so that it ends when it is told to
        log="echo 'signpost PyTorchMPS PyTorchKernelIntervals softshrink'; exec sleep 600",
    )

    return types.SimpleNamespace(bin=programs, folder=tmp_path)


def well(**results):
    return lambda *_, **__: isolated.Outcome("ok", results=results)


ASK_A_PROGRAM = [
    test_shaders.test_metal_compiler_takes_our_files,
    test_profiler.test_instruments_records_them,
    test_converting.test_mpsgraphtool_takes_our_flags,
]
"""Claims of which a program of Xcode decides."""


@pytest.mark.parametrize("claim", ASK_A_PROGRAM, ids=lambda claim: claim.__name__)
def test_what_apples_programs_say_confirms_a_claim(mac, monkeypatch, claim):
    monkeypatch.setattr(isolated, "run", well())

    assert judge(claim) == CONFIRMED


@pytest.mark.parametrize("claim", ASK_A_PROGRAM, ids=lambda claim: claim.__name__)
def test_a_program_of_apples_that_fails_refutes_a_claim(mac, monkeypatch, claim):
    monkeypatch.setattr(isolated, "run", well())
    put(mac.bin, mpsgraphtool="echo usage: -onnx", metal="echo error: no; exit 1", xctrace="exit 1")

    outcome, _ = judge(claim)
    assert outcome == "refuted"


@pytest.mark.parametrize("is_there", [True, False], ids=["with Xcode", "without"])
def test_the_tools_of_xcode_are_told_on_every_mac(mac, is_there):
    if not is_there:
        remove_xcode(mac.bin)

    assert judge(test_machines.test_tools_of_xcode) == CONFIRMED


def remove_xcode(programs: Path) -> None:
    for name in ("metal", "xctrace", "mpsgraphtool"):
        (programs / name).unlink()


@pytest.mark.parametrize(
    ("claim", "fixtures"),
    [
        *((claim, {}) for claim in ASK_A_PROGRAM),
        (test_converting.test_mpsgraphtool_converts, {"source": "small.onnx"}),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_without_xcode_a_claim_is_not_applicable(mac, claim, fixtures):
    remove_xcode(mac.bin)

    outcome, message = judge(claim, **fixtures)
    assert outcome == "not applicable"
    assert "xcode" in message.lower()


@pytest.fixture
def worked(mac, monkeypatch):
    """The list of what claims on signposts have run, where the stand-in for macOS's ``log`` is heard.

    Their pause lasts until it has written its line: on a busy machine it may start later than macOS's would.
    """
    sources = []

    def sleep_until_heard(_):
        end = time.monotonic() + 300
        while not Path("heard.txt").read_text().endswith("\n"):
            assert time.monotonic() < end
            time.sleep(0.01)

    def run(source, **_):
        sources.append(source)
        return isolated.Outcome("ok")

    monkeypatch.setattr(test_profiler, "time", types.SimpleNamespace(sleep=sleep_until_heard))
    monkeypatch.setattr(isolated, "run", run)
    return sources


def test_a_signpost_of_an_operator_that_is_heard_confirms_the_claim(worked):
    assert judge(test_profiler.test_signposts_of_operators_are_seen) == CONFIRMED
    assert "nn.functional.softshrink(x, 0.5)" in worked[0]


def test_a_signpost_of_an_own_kernel_that_is_heard_refutes_the_claim(worked):
    outcome, _ = judge(test_profiler.test_signposts_of_own_kernels_are_not_seen)

    assert outcome == "refuted"
    assert "library.softshrink_forward_float(out, x, 0.5)" in worked[0]


@pytest.mark.parametrize(
    "missing",
    [
        "there is no C++ compiler (clang++). `xcode-select --install`, then try again",
        "Objective-C++ (.mm) needs the compiler for shaders",
    ],
    ids=["a compiler", "the compiler for shaders"],
)
def test_without_a_compiler_the_claim_of_objective_cpp_is_not_applicable(monkeypatch, missing):
    plant_failure(monkeypatch, missing)

    outcome, message = judge(test_shaders.test_objective_cpp_builds_and_is_right, shaders=None)
    assert outcome == "not applicable"
    assert missing in message


def test_objective_cpp_that_the_linker_refuses_is_no_reason_to_skip(monkeypatch):
    """A linker's complaint begins with the name of the compiler that called it."""
    plant_failure(monkeypatch, "clang++: error: linker command failed with exit code 1")

    with pytest.raises(extension.CannotBuild):
        judge(test_shaders.test_objective_cpp_builds_and_is_right, shaders=None)


def plant_failure(monkeypatch, words: str) -> None:
    """Let no source be built, for the reason in these words."""

    def load(name):
        raise extension.CannotBuild(f"{name} cannot be built or loaded: {words}")

    monkeypatch.setattr(extension, "load", load)


@pytest.mark.skipif(claims.ON_A_MAC, reason="there the program runs in another process")
def test_a_result_of_another_shape_refutes_a_claim_of_jax(monkeypatch):
    """NumPy's own refusal to compare it would count as one of JAX's, which the claim allows."""
    pytest.importorskip("jax")
    monkeypatch.setitem(test_jax.PROGRAMS, "pad", "got, want = jnp.pad(x, 1), np.pad(x, 2)")

    assert judge(test_jax.test_risky_programs_are_right_or_refused, program="pad")[0] == "refuted"


@pytest.fixture
def answer_of_add(monkeypatch):
    """Return a function that asks about the operator ``add``, where each side returns the tensors that it is given."""
    from conformance import operator_database

    def ask(**sides):
        def run(op, sample, side):
            return copy.deepcopy(sides[side])  # results that share memory are not compared

        monkeypatch.setattr(operator_database, "_foretold_missing", lambda op, sample: [])
        monkeypatch.setattr(operator_database, "run", run)
        return operator_database.ask("add").answer

    return ask


ONE = torch.ones(2)


@pytest.mark.parametrize(
    ("cpu", "mps", "answer"),
    [
        (((ONE,), [ONE]), ((ONE,), [ONE]), "agrees"),
        (((ONE,), [ONE]), ((ONE,), [2 * ONE]), "differs"),
        (((ONE,), [ONE]), ((ONE,), [None]), "differs"),
        (((ONE[:0],), None), ((ONE[:0],), None), "agrees"),
        (((ONE[:0],), None), ((ONE,), None), "differs"),
    ],
    ids=["the same", "another gradient", "no gradient", "nothing", "something for nothing"],
)
def test_results_and_gradients_of_an_operator_are_compared(answer_of_add, cpu, mps, answer):
    assert answer_of_add(cpu=cpu, mps=mps) == answer


KNOWN = {field.name: "something" for field in dataclasses.fields(machine.Machine)}


def test_a_machine_of_which_all_is_known_confirms_the_claim(monkeypatch):
    monkeypatch.setattr(machine, "describe", lambda: machine.Machine(**KNOWN))

    assert judge(test_machines.test_description_is_complete) == CONFIRMED


def test_what_is_not_known_of_a_machine_refutes_the_claim_by_name(monkeypatch):
    lacking = machine.Machine(**KNOWN | {"gpu_cores": None})
    monkeypatch.setattr(machine, "describe", lambda: lacking)

    outcome, message = judge(test_machines.test_description_is_complete)
    assert outcome == "refuted"
    assert "not found out: gpu_cores" in message


def test_a_version_that_is_not_locked_is_seen_however_a_package_spells_its_name(
    monkeypatch, tmp_path
):
    names = [*(f"package-{number}" for number in range(60)), "other-package"]
    lock = tmp_path / "constraints.txt"
    lock.write_text("".join(f"{name}==1.0\n" for name in names))
    installed = [types.SimpleNamespace(name=name, version="1.0") for name in names[:-1]]
    installed.append(types.SimpleNamespace(name="Other_Package", version="2.0"))

    monkeypatch.setattr(paths, "CONSTRAINTS", lock)
    monkeypatch.setattr(test_machines.metadata, "distributions", lambda path: installed)

    assert judge(test_machines.test_locked_versions_are_installed)[0] == "refuted"


def test_films_in_another_format_refute_the_claim(mac, monkeypatch):
    monkeypatch.setattr(test_machines, "H264", "mp4v")  # the one that is everywhere

    outcome, message = judge(test_machines.test_films_are_written_in_h264)
    assert outcome == "refuted"
    assert "another format" in message


@pytest.mark.parametrize(
    ("busy", "outcome"),
    [(3.4, "confirmed"), (1.02, "refuted")],
    ids=["several cores", "one core"],
)
def test_threads_of_accelerate_are_seen_by_their_time(monkeypatch, busy, outcome):
    monkeypatch.setattr(isolated, "run", well(busy=busy))

    assert judge(test_machines.test_accelerate_keeps_its_own_threads)[0] == outcome


def test_accelerate_is_asked_with_one_thread_of_pytorch_and_no_variables(monkeypatch):
    """With the variables that limit Accelerate the question would be another."""
    asked = []

    def run(source, *, threads=None, environment=None, **_):
        asked.append((source, threads, environment))
        return isolated.Outcome("ok", results={"busy": 3.4})

    monkeypatch.setattr(isolated, "run", run)
    judge(test_machines.test_accelerate_keeps_its_own_threads)

    ((source, threads, environment),) = asked
    assert "torch.set_num_threads(1)" in source
    assert threads is None, "it would set the variables"
    assert environment is None


def test_without_an_answer_nothing_is_said_of_accelerate(monkeypatch):
    late = isolated.Outcome("timeout", reason="too long")
    monkeypatch.setattr(isolated, "run", lambda *_, **__: late)

    assert judge(test_machines.test_accelerate_keeps_its_own_threads)[0] == "not applicable"


GIB = 2**30


@pytest.fixture
def mps_memory(monkeypatch):
    """A recommended limit of 10 GiB."""
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 10 * GIB)
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: None)


def test_the_memory_limit_is_read_in_the_message(mps_memory, monkeypatch):
    """Of 10 GiB the claim asks for 4 at a time: the fifth tensor would be beyond 17, which are 1.7 times 10."""
    given = []

    def empty(size, **_):
        if (sum(given) + size) / GIB > 17:
            raise RuntimeError(
                "MPS backend out of memory (MPS allocated: 16.00 GiB, max allowed: 17.00 GiB). Tried"
            )
        given.append(size)

    monkeypatch.setattr(torch, "empty", empty)

    assert judge(test_mps.test_limit_is_1_7_unless_set) == CONFIRMED
    assert len(given) == 4


def test_memory_without_a_limit_refutes_the_claim(mps_memory, monkeypatch):
    monkeypatch.setattr(torch, "empty", lambda size, **_: None)

    assert judge(test_mps.test_limit_is_1_7_unless_set)[0] == "refuted"


@pytest.fixture
def judge_package(mac, monkeypatch):
    """Return a function that judges what a package of mpsgraphtool computes, where all ones are right."""

    def make(core_ml):
        np.save("truth.npy", np.ones((1, 10), np.float32))

    def judge_outputs(value: float) -> tuple[str, str]:
        monkeypatch.setattr(isolated, "run", well(y=np.full(10, value, np.float32)))
        return judge(test_converting.test_mpsgraphtool_converts, source="small.onnx")

    monkeypatch.setattr(test_converting, "make", make)
    return judge_outputs


def test_a_package_of_mpsgraphtool_that_computes_right_confirms_the_claim(judge_package):
    assert judge_package(1) == CONFIRMED


def test_a_package_of_mpsgraphtool_that_computes_wrong_refutes_the_claim(judge_package):
    outcome, message = judge_package(0)

    assert outcome == "refuted"
    assert "DIFFERS" in message


def test_an_mpsgraphtool_that_fails_refutes_the_claim(mac, judge_package):
    put(mac.bin, mpsgraphtool="exit 134")

    assert judge_package(1)[0] == "refuted"


@pytest.mark.parametrize(
    ("ended", "outcome"), [("crashed", "confirmed"), ("raised", "refuted"), ("ok", "refuted")]
)
def test_on_a_mac_an_invalid_graph_is_expected_to_crash(monkeypatch, ended, outcome):
    monkeypatch.setattr(isolated, "run", lambda *_, **__: isolated.Outcome(ended))
    for module in (claims, test_mpsgraph):
        monkeypatch.setattr(module, "ON_A_MAC", True)
    assert judge(test_mpsgraph.test_invalid_graph_ends_the_process, G=None)[0] == outcome
