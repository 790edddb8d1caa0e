"""What only a Mac can answer: trials, what becomes of them, and a report without anything personal in it."""

from __future__ import annotations

import dataclasses
import getpass
import json
import os
import re
import socket
import sys
import textwrap
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from mutate import Rules, broken
from pretend import pretend

from metallab import isolated, machine, paths
from metallab.detection import video
from metallab.verify_mac import catalogue, cli, converting, graphs, privacy, profiler, report, runner, trial
from metallab.verify_mac import operators as operators_module

TRIALS = '''
import getpass, os, pwd, socket, sys, tempfile, time
from pathlib import Path
from metallab import paths
from metallab.verify_mac.trial import Finding, judged, not_applicable, trial

common = dict(on="cpu", used_in="a test")

@trial(**common)
def right():
    """One and one is two.

    By adding.
    """
    print("added")
    return judged(1 + 1 == 2, "2", total=2, odd=[float("nan"), Path("x")])

@trial(**common)
def wrong():
    """One and one is three."""
    return judged(1 + 1 == 3, "it is 2 | not `3`")

@trial(**common)
def raises():
    """It works."""
    raise ValueError("no such thing")

@trial(**common)
def differs():
    """Two numbers agree."""
    from metallab import checks
    checks.assert_close(1.0, 2.0, "float32")

@trial(**common)
def crashes():
    """It does not crash."""
    print("last words", flush=True)
    os.abort()

@trial(on="cpu", used_in="a test", seconds=2.5)
def hangs():
    """It comes to an end."""
    time.sleep(60)

@trial(**common)
def cannot():
    """Something else."""
    return not_applicable("there is no such thing here")

@trial(**common)
def silent():
    """It forgets to say."""

@trial(on="mac", used_in="a test")
def needs_a_mac():
    """Only there."""
    raise AssertionError

@trial(**common)
def tells_everything():
    """It tells what is nobody's business, and closes fences."""
    home = pwd.getpwuid(os.getuid()).pw_dir
    print("```\\n```json\\n{}\\n```", home, os.getcwd(), socket.gethostname())
    print(f"/Users/somebody/secret {paths.ROOT}/utils {tempfile.gettempdir()}", file=sys.stderr)
    Path.home().joinpath("left-behind").write_text("x")
    return judged(True, f"I am {pwd.getpwuid(os.getuid()).pw_name}", places=[{home: socket.gethostname()}])
'''


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of the trials above, and where it had worked."""
    folder = tmp_path_factory.mktemp("trials")
    (folder / "some_trials.py").write_text(TRIALS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "TRIALS", found := {})
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", str(folder))
        import some_trials  # noqa: F401

        with runner.workplace() as work:
            results = runner.run(list(found.values()), "sim", work)
    kept = report.Report(machine.describe(), True, "2026-11-21", 1.0, tuple(results))
    return types.SimpleNamespace(by_name={r.name.partition(".")[2]: r for r in results}, report=kept, work=work)


@pytest.mark.parametrize(
    ("name", "outcome", "said"),
    [
        ("right", "confirmed", "2"),
        ("wrong", "refuted", "it is 2 | not `3`"),
        ("raises", "raised", "ValueError: no such thing"),
        ("differs", "refuted", "Mismatch: "),
        ("crashes", "crashed", "the process was killed by SIGABRT"),
        ("hangs", "timed out", "took longer than 2.5 s and was stopped"),
        ("cannot", "not applicable", "there is no such thing here"),
        ("silent", "raised", "TypeError: the trial silent returned None"),
        ("needs_a_mac", "not applicable", "it needs a Mac"),
    ],
)
def test_whatever_becomes_of_a_trial_is_an_outcome(made, name, outcome, said):
    assert made.by_name[name].outcome == outcome
    assert made.by_name[name].said.startswith(said)


def test_what_it_printed_and_found_is_kept(made):
    right = made.by_name["right"]
    assert (right.printed, right.values, right.claim, right.how) == (
        "added\n",
        {"total": 2, "odd": ["NaN", "x"]},
        "One and one is two.",
        "By adding.",
    )
    assert made.by_name["crashes"].printed == "last words\n"
    assert 'raise ValueError("no such thing")' in made.by_name["raises"].printed, "where it was, in the trial itself"


def test_without_a_mac_nothing_passes_for_one(made):
    assert {result.evidence for result in made.report.results} == {"CPU", "none"}
    text = str(made.report)
    assert "**SIMULATED.** No Mac took part." in text
    assert made.report.name == "verify-mac-simulated-2026-11-21.md"
    assert "confirmed (no Mac's CPU)" in text
    assert not re.search(r"\| confirmed \| (?!\d)", text), "no outcome stands there without its label"


def test_a_report_is_read_back_whatever_was_printed(made, tmp_path):
    file = tmp_path / "report.md"
    file.write_text(str(made.report), encoding="utf-8")
    data = report.read(file)
    assert [result["name"] for result in data["results"]] == [result.name for result in made.report.results]
    assert data["simulated"] is True
    assert data["machine"]["versions"]["torch"] == machine.describe().versions["torch"]
    file.write_text(str(made.report)[:-200], encoding="utf-8")
    with pytest.raises(report.NotAReport, match="damaged"):
        report.read(file)
    file.write_text("# Something else\n", encoding="utf-8")
    with pytest.raises(report.NotAReport, match="no report"):
        report.read(file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(report.NotAReport, match="damaged"):
        report.read(file)


def test_cells_and_fences_hold_what_a_machine_said(made):
    text = str(made.report)
    assert "it is 2 \\| not `3`" in text
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 6 for row in rows), "five cells in each row"
    assert "````text\n```\n```json" in text, "a fence longer than what is inside"


def test_nothing_personal_is_in_the_report(made):
    told = made.by_name["tells_everything"]
    assert told.outcome == "confirmed"
    text = str(made.report)
    places = {os.path.expanduser("~"), str(paths.ROOT), str(made.work), socket.gethostname(), sys.prefix, "somebody"}
    assert not [place for place in places if place in text]
    assert not re.search(rf"\b{re.escape(getpass.getuser())}\b", text)
    assert told.said == "I am (user)"
    assert told.values == {"places": [{"~": "(host)"}]}
    assert "~/secret (checkout)/utils" in told.detail


def test_the_machine_is_left_as_it_was(made):
    assert not made.work.exists()
    assert not Path.home().joinpath("left-behind").exists()


RULES = Rules(privacy)


@RULES.rule(
    ("if f not in usual), key=lambda pair: -len(pair[0]))", "if f not in usual), key=lambda pair: len(pair[0]))"),
    ("names.items(), key=lambda pair: -len(pair[0]))", "names.items(), key=lambda pair: len(pair[0]))"),
    ("(?<![A-Za-z0-9_])", ""),
    ("flags=re.IGNORECASE", "flags=0"),
    ("_TEMPORARY.sub", "(lambda word, text: text) or _TEMPORARY.sub"),
    ('|= {name.partition(".")[0] for name in names}', "|= set()"),
)
def names_and_folders_are_replaced_as_whole_words(privacy, monkeypatch):
    entry = types.SimpleNamespace(pw_name="anna", pw_gecos="Anna Lena Muster,,,", pw_dir="/Users/anna")
    monkeypatch.setattr("pwd.getpwuid", lambda number: entry)
    monkeypatch.setattr("getpass.getuser", lambda: "anna")
    monkeypatch.setattr("socket.gethostname", lambda: "annas-air.local")
    monkeypatch.setattr("platform.node", lambda: "annas-air.local")
    monkeypatch.setattr("metallab.paths.ROOT", Path("/Users/anna/metal-lab"))
    monkeypatch.setattr("sys.prefix", "/Users/anna/metal-lab/.venv")
    clean = privacy.scrubber("/private/var/folders/zz/abc123/T/metallab-verify-1").text
    assert clean("/private/var/folders/zz/abc123/T/metallab-verify-1/tmp") == "(work)/tmp"
    assert clean("/var/folders/zz/abc123/T/other") == "(temporary)/T/other"
    assert clean("/Users/anna/metal-lab/.venv/lib") == "(environment)/lib"
    assert (
        clean("Annas-Air.local, annas-air, Anna Lena Muster, ANNA, susanna")
        == "(host), (host), (user), (user), susanna"
    )


test_rule_holds, test_broken_rule_goes_red = RULES.tests()


def test_a_computers_own_name_is_asked_of_macos(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(privacy, "_told", lambda *command: {"ComputerName": "Anna’s MacBook Air"}.get(command[-1], ""))
    assert privacy.scrubber("/tmp/w").text("on Anna’s MacBook Air") == "on (host)"


def test_an_account_without_a_name_hides_nothing_else(monkeypatch):
    def unknown(number):
        raise KeyError(f"uid not found: {number}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.setattr("socket.gethostname", lambda: "annas-air")
    monkeypatch.setattr("getpass.getuser", lambda: "anna")
    assert privacy.scrubber("/tmp/w").text("anna on annas-air") == "(user) on (host)"


def some(name="group.first", **changes):
    fields = {"claim": "Yes.", "how": "", "used_in": "a test", "on": "cpu", "function": lambda: None}
    return trial.Trial(**{"name": name, "seconds": 5.0, "environment": {}, **fields, **changes})


def test_what_is_left_when_the_time_is_up_or_after_control_c_is_not_run(monkeypatch, tmp_path):
    results = runner.run([some(), some("group.second")], "sim", tmp_path, minutes=-1)
    assert [result.outcome for result in results] == ["not run", "not run"]
    assert "make verify-mac ONLY=group" in results[0].said

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "_run", interrupted)
    results = runner.run([some(), some("group.second")], "sim", tmp_path)
    assert [(result.outcome, result.evidence) for result in results] == [("not run", "none")] * 2
    assert "Control-C" in results[1].said


def test_a_process_keeps_to_the_runs_folder(tmp_path):
    folders = [value for value in runner.environment(tmp_path).values() if value.startswith("/")]
    assert len(folders) > 8
    assert all(Path(folder).is_relative_to(tmp_path) for folder in folders)


@pytest.mark.parametrize(
    ("platform", "name", "found"),
    [("linux", "auto", "sim"), ("linux", "sim", "sim"), ("darwin", "auto", "mps"), ("darwin", "mps", "mps")],
)
def test_a_mac_is_a_mac_and_elsewhere_it_is_simulated(monkeypatch, platform, name, found):
    monkeypatch.setattr(sys, "platform", platform)
    assert runner.device(name) == found


@pytest.mark.parametrize(
    ("platform", "name", "said"),
    [("linux", "mps", "this is no Mac"), ("darwin", "sim", "not simulated"), ("linux", "cuda", "no device 'cuda'")],
)
def test_a_device_that_is_not_here_is_refused(monkeypatch, capsys, platform, name, said):
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["--device", name])
    assert said in capsys.readouterr().err


def test_the_command_line_chooses_runs_and_says_where_the_report_is(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")  # on a Mac as well
    with pytest.raises(SystemExit, match="2"):
        cli.main(["--only", "mps.nothing"])
    assert "mps.nothing is no trial and no group; groups are machines, mps" in capsys.readouterr().err
    file = tmp_path / "r.md"
    assert cli.main(["--only", "machines.scenes_have_the_same_bytes", "--out", str(file)]) == 0
    said = capsys.readouterr().out
    assert "No Mac here: 1 trials, SIMULATED" in said
    assert "confirmed (no Mac's CPU)" in said
    assert said.endswith(f"1 confirmed.\nThe report: {file}\n")
    assert report.read(file)["results"][0]["outcome"] == "confirmed"


def test_on_the_simulation_a_claim_that_does_not_hold_is_a_fault_and_on_a_mac_a_result():
    result = lambda outcome: types.SimpleNamespace(outcome=outcome)
    run = lambda simulated, *outcomes: cli._status(
        report.Report(machine.describe(), simulated, "2026-11-21", 1.0, tuple(map(result, outcomes)))
    )
    assert run(True, "confirmed", "not applicable") == 0
    assert [run(True, bad) for bad in report.LOOK] == [1] * 4
    assert [run(False, bad) for bad in report.LOOK] == [0] * 4
    assert run(False, "confirmed", "not run") == 1


def test_every_trial_claims_something_and_says_where_that_is_used():
    for each in catalogue.trials().values():
        assert each.claim.endswith((".", ")")), f"{each.name} claims {each.claim!r}"
        assert each.used_in, each.name
        assert each.seconds <= 600, f"{each.name}: a hang must not take the hour"
    assert {each.group for each in catalogue.trials().values()} == set(catalogue.GROUPS)


def test_a_trial_without_a_claim_is_refused():
    with pytest.raises(ValueError, match="claims nothing"):
        trial.trial(on="cpu", used_in="a test")(lambda: None)


# ---- trials that only a Mac runs: each is run here with stand-ins for what is missing --------------------------------


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
    flags = " ".join(converting.FLAGS)
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
        log="echo 'signpost PyTorchMPS PyTorchKernelIntervals softshrink'; exec sleep 30",
    )
    return types.SimpleNamespace(bin=bin, folder=tmp_path)


def well(**results):
    return lambda *_, **__: isolated.Outcome("well", results=results)


def judge(name: str) -> tuple[str, str]:
    found = catalogue.trials()[name].function()
    return found.verdict, found.said


def test_apples_programs_are_asked(mac, monkeypatch):
    monkeypatch.setattr(isolated, "run", well())
    assert judge("machines.tools_of_xcode") == ("confirmed", "all are there")
    assert judge("kernels.metal_compiler_takes_our_files")[0] == "confirmed"
    assert judge("profiler.instruments_records_them") == ("confirmed", "1 rows name PyTorchMPS")
    assert judge("converting.mpsgraphtool_takes_our_flags") == ("confirmed", "not in its usage: none")
    put(mac.bin, mpsgraphtool="echo usage: -onnx", metal="echo error: no; exit 1", xctrace="exit 1")
    assert judge("converting.mpsgraphtool_takes_our_flags")[0] == "refuted"
    assert judge("kernels.metal_compiler_takes_our_files")[0] == "refuted"
    assert judge("profiler.instruments_records_them")[0] == "refuted"


def test_without_xcode_trials_say_so(mac):
    for name in ("metal", "xctrace", "mpsgraphtool"):
        (mac.bin / name).unlink()
    for name in (
        *("kernels.metal_compiler_takes_our_files", "profiler.instruments_records_them"),
        *("converting.mpsgraphtool_takes_our_flags", "converting.mpsgraphtool_converts"),
    ):
        verdict, said = judge(name)
        assert verdict == "not applicable"
        assert "Xcode" in said
    assert judge("machines.tools_of_xcode") == ("confirmed", "missing: metal, xctrace, mpsgraphtool")


def test_signposts_are_listened_to_while_work_is_done(mac, monkeypatch):
    worked = []
    monkeypatch.setattr(profiler, "PAUSE", 0.5)
    monkeypatch.setattr(isolated, "run", lambda source, **_: worked.append(source) or isolated.Outcome("well"))
    assert judge("profiler.signposts_of_operators_are_seen")[0] == "confirmed"
    assert judge("profiler.signposts_of_own_kernels_are_not_seen")[0] == "refuted"
    assert "nn.functional.softshrink(x, 0.5)" in worked[0]
    assert "library.softshrink_forward_float(out, x, 0.5)" in worked[1]
    put(mac.bin, log="echo log: must be admin; exit 77")
    verdict, said = judge("profiler.signposts_of_operators_are_seen")
    assert (verdict, "must be admin" in said) == ("not applicable", True)


def test_the_machine_is_described_and_films_are_written(mac, monkeypatch):
    known = {field.name: "something" for field in dataclasses.fields(machine.Machine)}
    monkeypatch.setattr(machine, "describe", lambda: machine.Machine(**known))
    assert judge("machines.description_is_complete") == ("confirmed", "all of it was found out")
    monkeypatch.setattr(machine, "describe", lambda: machine.Machine(**known | {"gpu_cores": None}))
    assert judge("machines.description_is_complete") == ("refuted", "not found out: gpu_cores")
    monkeypatch.setattr(video, "ENCODERS", ("mp4v",))  # the one that is everywhere
    verdict, said = judge("machines.films_are_written_in_h264")
    assert (verdict, said) == ("refuted", "another format, 8 of 8 frames came back")


@pytest.mark.parametrize(("busy", "verdict"), [(3.4, "confirmed"), (1.02, "refuted")])
def test_threads_of_accelerate_are_seen_by_the_time_that_they_take(monkeypatch, busy, verdict):
    asked = []
    monkeypatch.setattr(
        isolated, "run", lambda source, **given: asked.append((source, given.get("threads"))) or well(busy=busy)()
    )
    assert judge("machines.accelerate_keeps_its_own_threads")[0] == verdict
    ((source, threads),) = asked
    assert "torch.set_num_threads(1)" in source
    assert threads is None, "with its variables the question would be another"
    monkeypatch.setattr(isolated, "run", lambda *_, **__: isolated.Outcome("hung", reason="too long"))
    assert judge("machines.accelerate_keeps_its_own_threads")[0] == "not applicable"


def test_the_memory_limit_is_read_in_the_message(monkeypatch):
    gib = 2**30
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 10 * gib)
    monkeypatch.setattr(torch.mps, "synchronize", lambda: None)
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: None)
    given = []

    def empty(size, **_):
        if (sum(given) + size) / gib > 17:
            raise RuntimeError("MPS backend out of memory (MPS allocated: 16.00 GiB, max allowed: 17.00 GiB). Tried")
        given.append(size)

    monkeypatch.setattr(torch, "empty", empty)
    assert judge("mps.limit_is_1_7_unless_set") == ("confirmed", "the limit is 1.700 times the recommended size")
    assert len(given) == 4
    monkeypatch.setattr(torch, "empty", lambda size, **_: None)
    assert judge("mps.limit_is_1_7_unless_set")[0] == "refuted"


def test_a_storage_is_asked_for_its_class(monkeypatch):
    pretend(monkeypatch, "mps")

    class Buffer:
        def __init__(self, c_void_p):
            import ctypes

            self.memory = (ctypes.c_float * 16).from_address(c_void_p.value)

        storageMode = lambda self: 0
        length = lambda self: 64
        contents = lambda self: types.SimpleNamespace(as_buffer=lambda n: memoryview(self.memory).cast("B")[:n])

    monkeypatch.setitem(sys.modules, "objc", types.SimpleNamespace(objc_object=Buffer))
    assert judge("mps.storage_is_a_metal_buffer") == ("confirmed", "a shared Buffer of 64 bytes")


def test_selectors_are_asked_of_the_classes(monkeypatch):
    class MPSGraph:
        respondsToSelector_ = staticmethod(lambda selector: True)
        instancesRespondToSelector_ = staticmethod(lambda selector: not selector.startswith("sortWith"))

    monkeypatch.setitem(sys.modules, "MetalPerformanceShadersGraph", types.SimpleNamespace(MPSGraph=MPSGraph))
    monkeypatch.setattr("platform.mac_ver", lambda: ("15.1", ("", "", ""), "arm64"))
    found = catalogue.trials()["graphs.selectors_exist"].function()
    assert found.verdict == "refuted"
    assert found.values["missing"]
    assert all("sortWith" in name for name in found.values["missing"])
    assert "MPSGraphExecutable" in found.values["absent"]
    monkeypatch.setattr(MPSGraph, "instancesRespondToSelector_", staticmethod(lambda selector: True))
    assert judge("graphs.selectors_exist")[0] == "confirmed"


CORE_ML = """
import types
from coremltools import models
ComputeUnit = types.SimpleNamespace(CPU_ONLY="CPU_ONLY", CPU_AND_GPU="CPU_AND_GPU", CPU_AND_NE="CPU_AND_NE", ALL="ALL")
"""
CORE_ML_MODEL = """
import types
import numpy as np
class MLModel:
    def __init__(self, package, compute_units=None):
        self.units = compute_units
    def get_spec(self):
        one = lambda name: [types.SimpleNamespace(name=name)]
        return types.SimpleNamespace(description=types.SimpleNamespace(input=one("x"), output=one("y")))
    def predict(self, given):
        return {"y": given["x"].sum() * np.ones((1, 10), "f") * (2 if self.units == WRONG else 1)}
    def get_compiled_model_path(self):
        return "small.mlmodelc"
"""
COMPUTE_PLAN = """
from types import SimpleNamespace as Some
class NeuralEngine: pass
class MLComputePlan:
    @staticmethod
    def load_from_path(path, compute_units):
        assert (path, compute_units) == ("small.mlmodelc", "ALL")
        block = Some(operations=[Some(operator_name="conv"), Some(operator_name="const")])
        usage = lambda op: Some(preferred_compute_device=NeuralEngine()) if op.operator_name == "conv" else None
        program = Some(functions={"main": Some(block=block)})
        return Some(model_structure=Some(program=program), get_compute_device_usage_for_mlprogram_operation=usage)
"""


@pytest.mark.parametrize(("wrong", "verdict"), [("None", "confirmed"), ("'CPU_AND_NE'", "refuted")])
def test_core_ml_is_asked_on_each_unit_and_for_its_plan(mac, monkeypatch, wrong, verdict):
    package = mac.folder / "stand-ins" / "coremltools"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text(CORE_ML)
    (package / "models" / "__init__.py").write_text(f"WRONG = {wrong}\n{CORE_ML_MODEL}")
    (package / "models" / "compute_plan.py").write_text(COMPUTE_PLAN)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))

    def made(core_ml):
        np.save("x.npy", np.ones((1, 1, 16, 16), np.float32))
        np.save("truth.npy", np.full((1, 10), 256, np.float32))

    monkeypatch.setattr(converting, "_made", made)
    assert judge("converting.core_ml_predicts_on_each_unit")[0] == verdict
    if verdict == "confirmed":
        said = "operations by preferred unit: {'NeuralEngine': 1}"
        assert judge("converting.core_ml_tells_its_plan") == ("confirmed", said)


def test_what_mpsgraphtool_made_is_loaded_and_compared(mac, monkeypatch):
    monkeypatch.setattr(converting, "_made", lambda core_ml: np.save("truth.npy", np.ones((1, 10), np.float32)))
    monkeypatch.setattr(isolated, "run", well(y=np.ones(10, np.float32)))
    assert judge("converting.mpsgraphtool_converts")[0] == "confirmed"
    monkeypatch.setattr(isolated, "run", well(y=np.zeros(10, np.float32)))
    verdict, said = judge("converting.mpsgraphtool_converts")
    assert (verdict, "DIFFERS" in said) == ("refuted", True)
    put(mac.bin, mpsgraphtool="exit 134")
    assert "exit code 134" in judge("converting.mpsgraphtool_converts")[1]


def test_every_trial_that_needs_a_mac_is_run_by_these_tests():
    text = Path(__file__).read_text()
    left_out = [each.name for each in catalogue.trials().values() if each.on == "mac" and f'"{each.name}"' not in text]
    assert not left_out


# ---- and what else a Mac does otherwise than the simulation ----------------------------------------------------------


@pytest.mark.parametrize(("ended", "verdict"), [("crashed", "confirmed"), ("raised", "refuted"), ("well", "refuted")])
def test_on_a_mac_an_invalid_graph_is_expected_to_crash(monkeypatch, ended, verdict):
    monkeypatch.setattr(isolated, "run", lambda *_, **__: isolated.Outcome(ended))
    monkeypatch.setattr(graphs, "simulated", lambda: False)
    assert judge("graphs.invalid_graph_ends_the_process")[0] == verdict


def test_an_operator_that_ends_its_process_is_noted_and_the_others_go_on(monkeypatch):
    told = [
        "begin add\nend add\tagrees\t\nbegin empty\nend empty\tdiffers\tNaN\nbegin bad\n",
        "begin mul\nend mul\tdiffers\tby 1\nbegin mode\nend mode\tmissing as foretold\taten::mode\n",
    ]
    asked = []

    def run(source, **_):
        if "names()" in source:
            return isolated.Outcome("well", results={"names": ["add", "empty", "bad", "mul", "mode"]})
        asked.append(source)
        return isolated.Outcome(
            "crashed" if len(told) == 2 else "well", told.pop(0), "the process was killed by SIGABRT"
        )

    monkeypatch.setattr(isolated, "run", run)
    monkeypatch.setattr(operators_module, "simulated", lambda: False)
    found = catalogue.trials()["operators.database_agrees_and_is_foretold"].function()
    assert found.verdict == "refuted"
    assert found.values["surprises"] == {
        "differs": {"mul": "by 1"},
        "ended its process": {"bad": "the process was killed by SIGABRT"},
    }
    assert found.values["others"]["missing as foretold"] == {"mode": "aten::mode"}
    assert found.values["others"]["differs, as it must"] == {"empty": "NaN"}
    assert "['mul', 'mode']" in asked[1], "what was done is not asked again"
    assert json.dumps(found.values)


@pytest.mark.parametrize(
    ("name", "may"),
    [
        *[(name, True) for name in ("normal.in_place", "log_normal", "rand_like", "geometric", "new_empty_strided")],
        *[(name, True) for name in ("nn.functional.dropout2d", "nn.functional.alpha_dropout", "nn.functional.rrelu")],
        *[(name, False) for name in ("nn.functional.normalize", "native_dropout_backward", "mul")],
    ],
)
def test_only_what_draws_numbers_or_reads_unwritten_memory_may_differ(name, may):
    tally = operators_module.Tally()
    tally.note(name, "differs")
    assert list(tally.found) == ["differs, as it must" if may else "differs"]


def test_operators_are_told_apart_by_what_they_do(monkeypatch):
    from metallab.verify_mac import operator_database as database

    add = next(op for op in database.invocations.op_db if op.full_name == "add")
    run, shifts = database.run, [0.0]

    def on_either(op, sample, device):
        results, gradients = run(op, sample, "cpu")
        return (tuple(r + shifts[0] * (device == "mps") for r in results), gradients)

    monkeypatch.setattr(database, "run", on_either)
    assert database.ask(add).verdict == "agrees"
    shifts[0] = 1.0
    assert database.ask(add).verdict == "differs"
    monkeypatch.setattr(database.coverage.operators, "status", lambda name: "missing")
    assert database.ask(add).verdict == "runs but was foretold missing"

    def missing(op, sample, device):
        if device == "mps":
            raise NotImplementedError(
                "The operator 'aten::add.out' is not currently implemented for the MPS device. If"
            )
        return run(op, sample, device)

    monkeypatch.setattr(database, "run", missing)
    assert database.ask(add) == database.Asked("add", "missing as foretold", "aten::add.out")
    monkeypatch.setattr(database.coverage.operators, "status", lambda name: "native")
    assert database.ask(add).verdict == "missing but not foretold"


def test_a_broken_scrubber_would_be_seen():
    """The run above tells this machine's own names; a scrubber that forgets the host lets them through."""
    leaky = broken(privacy, "for name, word in self.names:", "for name, word in ():")
    assert socket.gethostname() in leaky.scrubber("/tmp/w").text(f"on {socket.gethostname()}")
