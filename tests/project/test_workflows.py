"""The workflows and issue forms of a public host: well formed, safe, and calling nothing but ``make``.

check-jsonschema reads them with the published schemas, zizmor knows what makes a workflow unsafe. That their targets
exist: tests/project/test_documents.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner

from metallab import paths

FOLDER = paths.ROOT / ".github"
SCHEMAS = {
    "github-workflows": "workflows/*.yml",
    "dependabot": "dependabot.yml",
    "github-issue-forms": "ISSUE_TEMPLATE/*.yml",
}
WORKFLOWS = {
    path.name: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("workflows/*.yml"))
}
JOBS = {
    f"{file} {name}": (job, {*each[True]})
    for file, each in WORKFLOWS.items()
    for name, job in each["jobs"].items()
}
"""Each job, with the events that start it: YAML makes True of the word "on"."""
MAKE_STEP = re.compile(r"make( --keep-going)?(?P<targets>( [a-z]+(-[a-z]+)*)+)( [A-Z]+=[\w./-]+)*")
ON_REQUEST = {"schedule", "workflow_dispatch"}
"""Events that only somebody who may write to the repository can cause."""


def steps(job: dict) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_follow_their_published_schema(schema):
    files = [str(path) for path in FOLDER.glob(SCHEMAS[schema])]
    done = CliRunner().invoke(check_jsonschema, ["--builtin-schema", f"vendor.{schema}", *files])
    assert done.exit_code == 0, done.output


def look(*files: Path) -> subprocess.CompletedProcess:
    """What zizmor says of workflows."""
    zizmor = Path(sys.executable).with_name("zizmor")
    options = ["--offline", "--persona=auditor", "--quiet", "--format=plain"]
    return subprocess.run([zizmor, *options, *files], capture_output=True, text=True, timeout=600)


def test_zizmor_finds_nothing_unsafe():
    done = look(*FOLDER.glob("workflows/*.yml"), FOLDER / "dependabot.yml")

    assert done.returncode == 0, done.stdout + done.stderr


def test_zizmor_finds_a_job_that_may_write(tmp_path):
    text = (FOLDER / "workflows" / "linux.yml").read_text()
    unsafe = tmp_path / "linux.yml"
    unsafe.write_text(text.replace("contents: read", "contents: write"))

    assert look(unsafe).returncode != 0


@pytest.mark.parametrize("name", JOBS)
def test_a_job_calls_make_and_has_a_time_limit(name):
    job, _ = JOBS[name]
    assert job["timeout-minutes"]
    assert [command for command in steps(job) if not MAKE_STEP.fullmatch(command)] == []


@pytest.mark.parametrize(
    "name", [name for name, (job, _) in JOBS.items() if "self-hosted" in job["runs-on"]]
)
def test_no_stranger_s_change_reaches_a_mac(name):
    _, events = JOBS[name]

    assert events <= ON_REQUEST


def writes_pages(job: dict) -> bool:
    return job.get("permissions", {}).get("pages") == "write"


@pytest.mark.parametrize("name", [name for name, (job, _) in JOBS.items() if writes_pages(job)])
def test_no_stranger_s_change_reaches_a_site(name):
    _, events = JOBS[name]

    assert events <= {"push", "workflow_dispatch"}


def is_on_a_hosted_mac(job: dict) -> bool:
    return str(job["runs-on"]).startswith("macos")


def has_gate(job: dict) -> bool:
    return "make gate" in steps(job)


@pytest.mark.parametrize("name", JOBS)
def test_a_hosted_machine_s_times_only_advise(name):
    job, _ = JOBS[name]

    assert job.get("continue-on-error", False) == (is_on_a_hosted_mac(job) or has_gate(job))


@pytest.mark.parametrize(
    "name", [name for name, (job, _) in JOBS.items() if is_on_a_hosted_mac(job)]
)
def test_a_hosted_mac_measures_nothing(name):
    job, _ = JOBS[name]

    assert steps(job) == ["make test STRICT=1"]


@pytest.mark.parametrize("name", [name for name, (job, _) in JOBS.items() if has_gate(job)])
def test_a_gate_fetches_the_other_revision(name):
    job, _ = JOBS[name]

    assert any(step.get("with", {}).get("fetch-depth") == 0 for step in job["steps"])
