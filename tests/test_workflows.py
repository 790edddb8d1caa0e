"""The workflows and issue forms of a public host: well formed, safe, and calling nothing but ``make``.

Two tools read them: check-jsonschema with the published schemas, and zizmor, which knows what makes a workflow unsafe.
The rest is this project's own: each step is a make target, a hosted Mac measures nothing, and nobody's pull request
reaches our own Mac.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".github"
SCHEMAS = {
    "github-workflows": "workflows/*.yml",
    "dependabot": "dependabot.yml",
    "github-issue-forms": "ISSUE_TEMPLATE/*.yml",
}
MAKE_STEP = re.compile(r"make( --keep-going)?(?P<targets>( [a-z]+(-[a-z]+)*)+)( [A-Z]+=[\w./-]+)*")
CONCURRENCY = (
    "concurrency:\n  group: linux-${{ github.event.pull_request.number || github.sha }}\n  cancel-in-progress: true\n"
)
ON_REQUEST = {"schedule", "workflow_dispatch"}
"""Events that only somebody who may write to the repository can cause."""


def faults(folder: Path) -> list[str]:
    """What is wrong in a folder that is laid out as ``.github``: the first kind of fault that is found."""
    return next((messages for check in (_schema, _safety, _ours) if (messages := list(check(folder)))), [])


def _schema(folder: Path) -> Iterator[str]:
    for schema, pattern in SCHEMAS.items():
        files = map(str, folder.glob(pattern))
        done = CliRunner().invoke(check_jsonschema, ["--builtin-schema", f"vendor.{schema}", *files])
        if done.exit_code != 0:
            yield f"not as the schema {schema} says: {done.output}"


def _safety(folder: Path) -> Iterator[str]:
    zizmor = Path(sys.executable).with_name("zizmor")
    options = ["--offline", "--strict-collection", "--persona=auditor", "--quiet", "--format=plain"]
    done = subprocess.run(
        [zizmor, *options, *folder.glob("workflows/*.yml"), folder / "dependabot.yml"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0:
        yield f"zizmor: {done.stdout}{done.stderr}"


def _ours(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("workflows/*.yml")):
        workflow = yaml.safe_load(path.read_text())
        events = set(workflow[True])  # what YAML makes of the word "on"
        for name, job in workflow["jobs"].items():
            yield from (f"{path.name}, job {name}: {fault}" for fault in _of_a_job(job, events))
    for path in sorted(folder.glob("ISSUE_TEMPLATE/*.yml")):
        asked = re.findall(r"\bmake ([a-z][a-z-]*)", path.read_text())
        yield from (f"{path.name}: {fault}" for fault in _no_targets(asked))


def _of_a_job(job: dict, events: set[str]) -> Iterator[str]:
    if "timeout-minutes" not in job:
        yield "it may hang for hours: give it timeout-minutes"
    if "self-hosted" in job["runs-on"] and not events <= ON_REQUEST:
        yield f"a stranger's change reaches our own Mac by {', '.join(sorted(events - ON_REQUEST))}"
    targets: list[str] = []
    for command in filter(None, (step.get("run") for step in job["steps"])):
        if asked := MAKE_STEP.fullmatch(command):
            targets += asked["targets"].split()
        else:
            yield f"{command!r} is more than a call of make"
    yield from _no_targets(targets)
    if "book" in targets and {*targets} & {"run", "bench", "test"}:
        yield "publishing runs no page"
    if job.get("permissions", {}).get("pages") == "write" and not events <= {"push", "workflow_dispatch"}:
        yield "a stranger's change would be published"
    if "gate" in targets:
        if not any(step.get("with", {}).get("fetch-depth") == 0 for step in job["steps"]):
            yield "make gate REF=revision needs fetch-depth: 0"
        if job.get("continue-on-error") is not True:
            yield "times of a hosted machine advise: continue-on-error"
    if str(job["runs-on"]).startswith("macos"):
        if others := {*targets} - {"test"}:
            yield f"a hosted Mac measures nothing, and this runs make {', '.join(sorted(others))}"
        if job.get("continue-on-error") is not True:
            yield "a hosted Mac advises: continue-on-error"


def _no_targets(asked: Iterable[str]) -> Iterator[str]:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    yield from (f"the Makefile has no target {target}" for target in asked if target not in phony.split())


def test_workflows_are_well_formed_and_safe_and_call_make():
    assert faults(FOLDER) == []
    assert {path.name for path in FOLDER.glob("workflows/*")} == {
        "linux.yml",
        "macos.yml",
        "browser.yml",
        "book.yml",
        "apple-gpu.yml",
        "check-mac.yml",
        "versus.yml",
    }
    assert {path.name for path in FOLDER.glob("ISSUE_TEMPLATE/*")} == {"mac_result.yml", "page_did_not_run.yml"}


PLANTED = {
    "linux": [
        ("runs-on:", "run-on:", "schema github-workflows"),
        ("cancel-in-progress:", "cancel:", "schema github-workflows"),
        ("python-version: ${{ matrix.python }}", "python-version: [", "Failed to parse"),
        ("@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1", "@v7", "unpinned-uses"),
        ("contents: read", "contents: write", "excessive-permissions"),
        ("persist-credentials: false", "fetch-depth: 1", "artipacked"),
        ("  pull_request:\n", "  pull_request_target:\n", "dangerous-triggers"),
        (CONCURRENCY, "", "concurrency-limits"),
        ("make test JOBS=4", "make test ONLY=${{ github.head_ref }}", "template-injection"),
        ("    timeout-minutes: 90\n", "", "timeout-minutes"),
        ("make test JOBS=4", "make tset JOBS=4", "no target tset"),
        ("make test JOBS=4", "make test; curl example.org", "more than a call of make"),
    ],
    "macos": [
        ("run: make test", "run: make bench", "measures nothing"),
        ("    continue-on-error: true\n", "", "continue-on-error"),
    ],
    "book": [
        ("      pages: write # to put the site there\n", "      contents: write\n", "undocumented-permissions"),
        ("run: make book\n", "run: make run book\n", "publishing runs no page"),
        ("@cd2ce8fcbc39b97be8ca5fce6e763baed58fa128 # v5.0.0", "@v5", "unpinned-uses"),
        ("  workflow_dispatch:\n", "  pull_request:\n", "a stranger's change would be published"),
    ],
    "check-mac": [
        ("run: make check-mac", "run: make chek-mac", "no target chek-mac"),
        ("run: make check-mac", "run: cd tests && python -m check_mac", "more than a call of make"),
        ("    timeout-minutes: 60\n", "", "timeout-minutes"),
    ],
    "versus": [
        ("fetch-depth: 0 ", "fetch-depth: 1 ", "make gate REF=revision needs fetch-depth: 0"),
        ("    continue-on-error: true\n", "", "times of a hosted machine advise: continue-on-error"),
    ],
    "apple-gpu": [
        ("  workflow_dispatch:\n", "  pull_request:\n", "reaches our own Mac by pull_request"),
        ("# zizmor: ignore[self-hosted-runner]", "#", "self-hosted-runner"),
    ],
    "mac_result": [
        ("    id: command\n", "    id: which command\n", "schema github-issue-forms"),
        ("        - make bench\n", "        - make banch\n", "no target banch"),
        (
            "label: What does `make check-results` say?",
            "label: What does `make chek-results` say?",
            "no target chek-results",
        ),
    ],
    "page_did_not_run": [
        ("      label: Which machine?\n", "", "schema github-issue-forms"),
        ("make run MODE=fast ONLY=00", "make rum MODE=fast ONLY=00", "no target rum"),
    ],
}
"""By file: a piece of its text, what takes its place, and what is then said of it."""


@pytest.mark.parametrize(
    ("file", "old", "new", "message"), [(file, *fault) for file, planted in PLANTED.items() for fault in planted]
)
def test_a_planted_fault_is_found(tmp_path, file, old, new, message):
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    (planted,) = tmp_path.rglob(f"{file}.yml")
    text = planted.read_text()
    assert text.count(old) == 1, f"{file}.yml has {old!r} {text.count(old)} times: adapt the planted fault"
    planted.write_text(text.replace(old, new))
    assert message in "\n".join(faults(tmp_path))
