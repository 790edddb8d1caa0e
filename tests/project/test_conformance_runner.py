"""`make verify-mac`: the outcome of a claim, even if its process ends; a report that loses nothing and is private."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
from conformance import report
from conformance.__main__ import main
from conformance.claims import ON_A_MAC

from metallab import paths, redact

CLAIMS = '''
"""some claims: and what they are about"""

import os, pwd, signal, socket, sys, time
from pathlib import Path

import pytest
from metallab import checks, paths

pytestmark = pytest.mark.claim(on="cpu", used_in="a test")


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
    os.abort()


def test_after_the_crash():
    """What comes next is asked all the same."""


@pytest.mark.claim(seconds=1)
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
    print(f"/Users/somebody/secret {paths.ROOT}/utils/x.py", file=sys.stderr)
    Path.home().joinpath("left-behind").write_text("x")
    evidence("places", [{home: socket.gethostname()}])
'''
SLOW = """
import pytest, time
from pathlib import Path
pytestmark = pytest.mark.claim(on="cpu", used_in="a test")

def test_first(): pass
def test_second():
    Path(__file__).with_name("begun").touch()
    time.sleep(900)
def test_third(): pass
"""


def start(folder: Path, text: str, *options: str) -> subprocess.Popen:
    """Write claims into a folder and start ``make verify-mac`` on them, with its report there.

    It is a process group of its own, as in a terminal: a test interrupts it and all that it has started.
    """
    (folder / "conftest.py").write_text("from conformance.conftest import *\n")
    (folder / "test_some.py").write_text(text)

    # what pytest has set in this process is not meant for another one
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(paths.ROOT / "tests"), os.environ.get("PYTHONPATH")])
    )

    command = [sys.executable, "-m", "conformance"]
    command += ["--folder", str(folder), "--out", str(folder / "report.md")]
    return subprocess.Popen(
        [*command, *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, preexec_fn=heed_interrupts,
    )  # fmt: skip


def heed_interrupts() -> None:
    """Let Ctrl-C end a process: a shell's job in the background does not heed it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finished(folder: Path, text: str, *options: str) -> tuple[int, str]:
    """Return the exit code, and what was printed."""
    run = start(folder, text, *options)
    out, _ = run.communicate(timeout=600)
    return run.returncode, out


def results(folder: Path) -> dict[str, dict]:
    """Return the results of a report by name, without the group."""
    return {
        each["name"].partition(".")[2]: each
        for each in report.read(folder / "report.md")["results"]
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of the claims above."""
    folder = tmp_path_factory.mktemp("claims")
    code, out = finished(folder, CLAIMS)
    return types.SimpleNamespace(
        by_name=results(folder),
        text=(folder / "report.md").read_text(),
        code=code,
        out=out,
        folder=folder,
    )


@pytest.mark.parametrize(
    ("name", "outcome", "message"),
    [
        ("right", "confirmed", "total: 2; odd: ['NaN', 'x']"),
        ("wrong", "refuted", "it is 2 | not `3`"),
        ("raises", "raised", "ValueError: no such thing"),
        ("differs", "refuted", ""),
        ("nothing_is_raised", "refuted", "Failed: DID NOT RAISE"),
        ("crashes", "crashed", ""),
        ("after_the_crash", "confirmed", "as claimed"),
        ("hangs", "timed out", ""),
        ("cannot[this | that]", "not applicable", "there is no such thing here"),
        ("has_its_setting", "confirmed", "as claimed"),
        ("needs_a_mac", "confirmed" if ON_A_MAC else "not applicable", ""),
    ],
)
def test_outcome_of_a_claim(made, name, outcome, message):
    assert made.by_name[name]["outcome"] == outcome
    assert made.by_name[name]["message"].startswith(message)


def test_a_report_says_what_was_printed_and_recorded(made):
    right = made.by_name["right"]

    assert right["printed"] == "added\n"
    assert right["values"] == {"total": 2, "odd": ["NaN", "x"]}


def test_a_report_says_what_a_claim_is_and_how_it_is_asked(made):
    right = made.by_name["right"]

    assert right["claim"] == "One and one is two."
    assert right["how"] == "By adding."


def test_a_report_has_the_traceback_of_an_error(made):
    assert "ValueError" in made.by_name["raises"]["detail"]


def test_exit_code_is_1_if_a_claim_is_refuted(made):
    assert made.code == 1


def test_exit_code_is_0_if_all_claims_are_confirmed_or_not_applicable(made, tmp_path):
    head, *noted = map(json.loads, (made.folder / "report.jsonl").read_text().splitlines())
    fine = [each["nodeid"] for each in noted if each["outcome"] in ("confirmed", "not applicable")]
    head["claims"] = {nodeid: head["claims"][nodeid] for nodeid in fine}
    lines = [json.dumps(each) + "\n" for each in (head, *noted)]
    (tmp_path / "fine.jsonl").write_text("".join(lines))

    assert main(["--report", str(tmp_path / "fine.jsonl")]) == 0


def test_a_journal_that_is_not_there_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--report", str(tmp_path / "report.md")])

    assert f"there is no journal {tmp_path / 'report.jsonl'}" in capsys.readouterr().err


def test_unknown_claims_are_refused(tmp_path):
    code, out = finished(tmp_path, CLAIMS, "--only", "nothing")
    assert code == 4
    assert "ONLY=nothing" in out


@pytest.mark.skipif(ON_A_MAC, reason="there everything is a Mac's")
def test_without_a_mac_nothing_passes_for_one(made):
    assert {each["evidence"] for each in made.by_name.values()} == {"CPU", "none"}
    assert "**SIMULATED.**" in made.text
    assert "SIMULATED" in made.out


def test_cells_and_fences_hold_any_text(made):
    assert "it is 2 \\| not `3`" in made.text
    assert "````text\n```\n```json" in made.text


def test_nothing_private_is_in_the_report(made):
    places = {os.path.expanduser("~"), str(paths.ROOT), "somebody", *redact.find_names()}
    assert not [place for place in places if place in made.text]
    assert not Path.home().joinpath("left-behind").exists()


def wait_for(path: Path, run: subprocess.Popen) -> None:
    """Wait until a file is there, which a program writes that still runs."""
    end = time.monotonic() + 300
    while not path.exists():
        assert time.monotonic() < end
        assert run.poll() is None
        time.sleep(0.05)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A run of the slow claims that was interrupted at the second."""
    folder = tmp_path_factory.mktemp("interrupted")
    run = start(folder, SLOW)
    wait_for(folder / "begun", run)
    os.killpg(run.pid, signal.SIGINT)
    run.communicate(timeout=300)
    return types.SimpleNamespace(folder=folder, code=run.returncode)


def outcomes_in(folder: Path) -> list[str]:
    return [each["outcome"] for each in results(folder).values()]


def test_an_interrupted_run_reports_what_was_answered_and_what_was_not_run(interrupted):
    assert interrupted.code == 1
    assert outcomes_in(interrupted.folder)[0] == "confirmed"
    assert "not run" in outcomes_in(interrupted.folder)


def test_a_claim_is_in_the_journal_before_the_run_ends(interrupted):
    _, first, *_ = (interrupted.folder / "report.jsonl").read_text().splitlines()

    assert json.loads(first)["outcome"] == "confirmed"


def test_a_report_is_made_again_from_a_journal_that_breaks_off(interrupted, tmp_path):
    text = (interrupted.folder / "report.jsonl").read_text()
    journal = tmp_path / "report.jsonl"
    journal.write_text(f'{text}{{"name": "half a li')

    again = [sys.executable, "-m", "conformance", "--report", str(journal)]
    subprocess.run(again, cwd=paths.ROOT / "tests", timeout=300, check=False)

    assert outcomes_in(tmp_path) == outcomes_in(interrupted.folder)


def test_after_the_time_is_up_nothing_begins(tmp_path):
    code, _ = finished(tmp_path, CLAIMS, "--only", "right,cannot", "--minutes", "-1")

    assert code == 1
    outcomes = {name: each["outcome"] for name, each in results(tmp_path).items()}
    assert outcomes == {"right": "not run", "cannot[this | that]": "not run"}
