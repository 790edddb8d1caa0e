"""What becomes of a claim, whatever becomes of its process; a report that loses nothing and tells nothing private."""

from __future__ import annotations

import getpass
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
import types
from pathlib import Path

import psutil
import pytest
from conformance import claims, groups, privacy, report, workplace

from metallab import machine, paths

CLAIMS = '''
"""some claims: and what they are about"""

import getpass, os, pwd, socket, sys, tempfile, time
from pathlib import Path

import pytest
from metallab import checks, paths

pytestmark = pytest.mark.claim(on="cpu", used_in="a test")
RUN = []


def test_right(evidence):
    """One and one is two.

    By adding.
    """
    print("added")
    evidence("total", 2)
    evidence("odd", [float("nan"), Path("x")])
    assert 1 + 1 == 2


def test_wrong():
    """One and one is three."""
    assert 1 + 1 == 3, "it is 2 | not `3`"


def test_raises():
    raise ValueError("no such thing")


def test_differs():
    """Two numbers agree."""
    checks.assert_close(1.0, 2.0, "float32")


def test_nothing_is_raised():
    """It is refused."""
    with pytest.raises(ValueError):
        pass


def test_crashes():
    """It does not crash."""
    print("last words", flush=True)
    os.abort()


def test_after_the_crash():
    """What comes next is asked all the same."""
    RUN.append(1)


def test_wants_a_fresh_process():
    """It crashes after others."""
    if RUN:
        os.abort()


@pytest.mark.claim(seconds=3)
def test_hangs():
    """It comes to an end."""
    time.sleep(600)


@pytest.mark.parametrize("thing", ["this | that"])
def test_cannot(thing):
    """Something else."""
    pytest.skip("there is no such thing here")


@pytest.mark.claim(on="mac")
def test_needs_a_mac():
    """Only there."""
    assert sys.platform == "darwin"


@pytest.mark.claim(environment={"SOME_SETTING": "7"})
def test_has_its_setting():
    assert os.environ["SOME_SETTING"] == "7"


def test_tells_everything(evidence):
    """It tells what is nobody's business, and closes fences."""
    home = pwd.getpwuid(os.getuid()).pw_dir
    print("```\\n```json\\n{}\\n```", home, os.getcwd(), socket.gethostname())
    print(f"/Users/somebody/secret {paths.ROOT}/utils {tempfile.gettempdir()}", file=sys.stderr)
    Path.home().joinpath("left-behind").write_text("x")
    evidence("who", f"I am {pwd.getpwuid(os.getuid()).pw_name}")
    evidence("places", [{home: socket.gethostname()}])
'''


def project(folder: Path, text: str) -> Path:
    """A folder with claims as tests/conformance has them."""
    folder.mkdir(exist_ok=True)
    (folder / "conftest.py").write_text("from conformance.conftest import *\n")
    (folder / "test_some.py").write_text(text)
    return folder


def started(folder: Path, *options: str, **more) -> subprocess.Popen:
    """``make verify-mac`` on such a folder."""
    tests = Path(__file__).parent
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(tests), *filter(None, [environment.get("PYTHONPATH")])])
    heeds = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # which a shell's job in the background does not
    given = ["-c", str(paths.ROOT / "pyproject.toml"), "--rootdir", str(folder), "--report"]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", str(folder), *given, "--out", str(folder / "report.md"), *options],
        **{
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
            "env": environment,
            "preexec_fn": heeds,
            **more,
        },
    )


def ran(folder: Path, *options: str, **more) -> tuple[int, str]:
    """The exit code, and what was printed."""
    run = started(folder, *options, **more)
    out, _ = run.communicate(timeout=900)
    return run.returncode, out


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of the claims above."""
    folder = project(tmp_path_factory.mktemp("claims"), CLAIMS)
    code, out = ran(folder, "-vv")
    text = (folder / "report.md").read_text(encoding="utf-8")
    head, results = report.journal(folder / "report.jsonl")
    by_name = {each["name"].partition(".")[2]: each for each in results}
    return types.SimpleNamespace(by_name=by_name, text=text, code=code, out=out, folder=folder, head=head)


@pytest.mark.parametrize(
    ("name", "outcome", "message"),
    [
        ("right", "confirmed", "total: 2; odd: ['NaN', 'x']"),
        ("wrong", "refuted", "it is 2 | not `3`"),
        ("raises", "raised", "ValueError: no such thing"),
        ("differs", "refuted", "result: 1 of 1 values differ too much"),
        ("nothing_is_raised", "refuted", "Failed: DID NOT RAISE"),
        ("crashes", "crashed", "the process was killed by SIGABRT"),
        ("after_the_crash", "confirmed", "as claimed"),
        ("wants_a_fresh_process", "confirmed", "in a process that had run others: the process was killed by SIGABRT"),
        ("hangs", "timed out", "took longer than 3 s and was stopped"),
        ("cannot[this | that]", "not applicable", "there is no such thing here"),
        ("has_its_setting", "confirmed", "as claimed"),
        ("needs_a_mac", *(("confirmed", "") if claims.ON_A_MAC else ("not applicable", "it needs a Mac"))),
    ],
)
def test_whatever_becomes_of_a_claim_is_an_outcome(made, name, outcome, message):
    assert made.by_name[name]["outcome"] == outcome
    assert made.by_name[name]["message"].startswith(message)


def test_what_it_printed_and_found_is_kept(made):
    right = made.by_name["right"]
    assert (right["printed"], right["claim"], right["how"]) == ("added\n", "One and one is two.", "By adding.")
    assert right["values"] == {"total": 2, "odd": ["NaN", "x"]}
    assert right["about"] == "some claims: and what they are about"
    assert made.by_name["raises"]["claim"] == "raises."
    assert "last words" in made.by_name["crashes"]["printed"]
    assert 'raise ValueError("no such thing")' in made.by_name["raises"]["detail"], "where it was, in the test itself"


def test_a_claim_that_does_not_hold_is_the_exit_code(made, tmp_path):
    assert made.code == 1
    folder = project(tmp_path, CLAIMS)
    assert ran(folder, "--only", "right,cannot")[0] == 0
    assert [ran(folder, "--only", word)[0] for word in ("wrong", "raises")] == [1, 1]


@pytest.mark.skipif(claims.ON_A_MAC, reason="there everything is a Mac's")
def test_without_a_mac_nothing_passes_for_one(made):
    assert {each["evidence"] for each in made.by_name.values()} == {"CPU", "none"}
    assert "**SIMULATED.** No Mac took part." in made.text
    assert "No Mac here: 13 tests, SIMULATED" in made.out
    assert "confirmed (no Mac's CPU)" in made.text
    assert not re.search(r"\| confirmed \| (?!\d)", made.text), "no outcome stands there without its label"
    assert report.Head(machine.describe(), True, "2026-11-21").name == "verify-mac-simulated-2026-11-21.md"


def test_a_report_is_read_back_whatever_was_printed(made, tmp_path):
    data = report.read(made.folder / "report.md")
    assert {each["name"].partition(".")[2]: each for each in data["results"]} == made.by_name
    assert data["machine"]["versions"]["torch"] == machine.describe().versions["torch"]
    file = tmp_path / "report.md"
    for text, fault in (
        (made.text[:-200], "damaged"),
        ("# Something else\n", "no report"),
        ("```json\n" + "[" * 200_000 + "\n```\n", "damaged"),
    ):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(report.NotAReport, match=fault):
            report.read(file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(report.NotAReport, match="damaged"):
        report.read(file)


def test_cells_and_fences_hold_what_a_machine_said(made):
    assert "it is 2 \\| not `3`" in made.text
    rows = [line for line in made.text.splitlines() if line.startswith("| `")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 6 for row in rows), "five cells in each row"
    assert "````text\n```\n```json" in made.text, "a fence longer than what is inside"


def test_nothing_personal_is_in_the_report(made):
    told = made.by_name["tells_everything"]
    assert told["outcome"] == "confirmed"
    journal = (made.folder / "report.jsonl").read_text()
    places = {os.path.expanduser("~"), str(paths.ROOT), socket.gethostname(), sys.prefix}
    places |= {"metallab-verify-", "somebody"}
    assert not [place for place in places if place in made.text or place in journal]
    assert not re.search(rf"\b{re.escape(getpass.getuser())}\b", made.text)
    assert told["values"] == {"who": "I am (user)", "places": [{"~": "(host)"}]}
    assert "~/secret (checkout)/utils (work)/tmp" in told["printed"]


def test_the_machine_is_left_as_it_was(made):
    assert not Path.home().joinpath("left-behind").exists()


def test_a_process_that_ended_between_two_claims_is_told_as_one(tmp_path, pytestconfig):
    group = groups.Group(pytestconfig, tmp_path / "nothing.py", "cpu", {})
    group.process.wait(300)
    with pytest.raises(groups.Ended, match="the process exited with code 4"):
        list(group.answers({"run": "any", "next": None}, "done", 60))
    group.stop()


SLOW = """
import os, time, pytest
from pathlib import Path
pytestmark = pytest.mark.claim(on="cpu", used_in="a test")

def test_first(): pass
def test_second():
    Path(__file__).with_name("pid").write_text(str(os.getpid()))
    time.sleep(900)
def test_third(): pass
"""


def in_the_second(folder: Path, run: subprocess.Popen) -> list[psutil.Process]:
    """Wait until the second of `SLOW` runs; the processes of the run's group."""
    try:
        end = time.monotonic() + 600
        while not (folder / "pid").exists() or not (folder / "pid").read_text():
            assert time.monotonic() < end, "the second test does not come"
            time.sleep(0.05)
        assert len((folder / "report.jsonl").read_text().splitlines()) == 2, "what was found is not on disk"
    except BaseException:
        run.kill()
        raise
    return psutil.Process(run.pid).children(recursive=True)


def test_control_c_loses_one_result(tmp_path):
    run = started(project(tmp_path, SLOW), start_new_session=True)
    in_the_second(tmp_path, run)
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=300)
    data = report.read(tmp_path / "report.md")
    assert [each["outcome"] for each in data["results"]] == ["confirmed", "not run", "not run"]
    assert "Control-C" in data["results"][1]["message"]
    assert run.returncode == 1
    assert "1 confirmed" in out


def test_what_a_killed_run_had_found_is_on_disk(tmp_path):
    run = started(project(tmp_path, SLOW), start_new_session=True)
    group = in_the_second(tmp_path, run)
    run.kill()
    run.communicate(timeout=300)
    psutil.wait_procs(group, timeout=300)
    assert not [process for process in group if process.is_running()], "the group's process is left behind"
    with (tmp_path / "report.jsonl").open("a") as file:
        file.write('{"name": "half a li')
    remade = [sys.executable, report.__file__, str(tmp_path / "report.jsonl")]
    printed = subprocess.run(remade, capture_output=True, text=True, check=True, timeout=300).stdout
    assert printed == f"The report: {tmp_path / 'report.md'}\n"
    data = report.read(tmp_path / "report.md")
    assert [each["name"] for each in data["results"]] == ["some.first"]
    assert "in a run that was cut short" in (tmp_path / "report.md").read_text()


def test_when_the_time_is_up_the_rest_is_not_run(tmp_path):
    code, out = ran(project(tmp_path, CLAIMS), "--minutes", "-1")
    assert code == 1
    assert "13 not run" in out
    message = report.read(tmp_path / "report.md")["results"][0]["message"]
    assert message == "the -1 minutes were over; make verify-mac ONLY=some goes on from here"


MUCH = """
import pytest
pytestmark = pytest.mark.claim(on="cpu", used_in="a test")

@pytest.mark.parametrize("number", range(6))
def test_much(number, evidence): evidence("much", "x" * 20_000)
"""


def test_a_full_disk_leaves_what_was_found_before(tmp_path):
    full = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    code, out = ran(project(tmp_path, MUCH), preexec_fn=full)
    assert code == 1
    assert "report.md cannot be written" in out or "report.jsonl cannot be written" in out
    assert "the report stands above; copy it from here" in out
    kept = out[out.index("# Metal Lab on a Mac") :]
    assert "`some.much[1]`" in kept
    assert len(report.journal(tmp_path / "report.jsonl")[1]) == 2
    assert "3 not run" in out, "nothing is begun that could not be kept"


ODD = """
import pytest

@pytest.mark.claim(on="cpu", used_in="a test")
def test_odd(evidence): evidence("it", "\\udcff")
"""


def test_half_a_character_does_not_lose_the_report(tmp_path):
    assert ran(project(tmp_path, ODD))[0] == 0
    assert report.read(tmp_path / "report.md")["results"][0]["values"] == {"it": "\udcff"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "nothing"], "ONLY=nothing is no group and no test: groups are some"),
        (["--device", "cuda"], "there is no device 'cuda'"),
        (["--device", "sim" if claims.ON_A_MAC else "mps"], "leave DEVICE out, or say DEVICE="),
    ],
)
def test_what_is_not_there_is_refused(tmp_path, options, message):
    code, out = ran(project(tmp_path, CLAIMS), *options)
    assert code == 4
    assert message in out


def test_names_and_folders_are_replaced_as_whole_words(monkeypatch):
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
    assert clean("No room in /Users/anna/metal-lab.") == "No room in (checkout)."
    assert "(checkout)" not in clean("/Users/anna/metal-lab.old")
    assert (
        clean("Annas-Air.local, annas-air, Anna Lena Muster, ANNA, susanna")
        == "(host), (host), (user), (user), susanna"
    )


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


def test_a_process_keeps_to_the_runs_folder(tmp_path):
    folders = workplace.environment(tmp_path).values()
    assert len(folders) > 8
    assert all(Path(folder).is_relative_to(tmp_path) for folder in folders)


def test_a_test_that_nobody_relies_on_is_refused(tmp_path):
    code, out = ran(project(tmp_path, "def test_odd(): pass\n"))
    assert code == 4
    assert "test_some.py::test_odd is no claim: say where it is relied on" in out
