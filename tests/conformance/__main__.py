"""``make verify-mac``: run each group of claims in a pytest process of its own, then write the report.

A worker of pytest-xdist runs the tests of a group, and another one the rest if a test ends it. Each result is on disk
before the next test begins: Control-C and a killed run lose one, and ``--report JOURNAL`` makes the report again.
Tests write into a temporary folder, which is deleted at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance import report
from conformance.claims import ON_A_MAC, Claim
from metallab import machine, paths

MINUTES = 20.0
LAST = ("converting", "inductor", "jax", "tensorflow", "operators")
"""Groups that take minutes: what is quick and basic comes first."""
PYTEST = (
    sys.executable,
    "-m",
    "pytest",
    "-c",
    str(paths.ROOT / "pyproject.toml"),
    "-m",
    "",
    "--tb=short",
)
"""With the tests that pyproject.toml leaves out by its ``-m``."""


def environment(work: Path) -> dict[str, str]:
    """Return the variables of every process, with which what a test writes stays inside of the folder ``work``.

    The folders for the home and for temporary files are made; they must not be there yet. Variables of pytest are left
    out: those of a pytest that runs this are not meant for the ones that it starts.
    """
    home, cache = work / "home", work / "home" / "cache"
    inside = {
        "HOME": home,
        "CFFIXED_USER_HOME": home,  # where Apple's frameworks look for the home folder
        "TMPDIR": work / "tmp",
        "XDG_CACHE_HOME": cache,
        "XDG_CONFIG_HOME": home / "config",
        "MPLCONFIGDIR": cache / "matplotlib",
        "TORCHINDUCTOR_CACHE_DIR": cache / "inductor",
        "TORCH_EXTENSIONS_DIR": cache / "extensions",
        "TORCH_HOME": cache / "torch",
        "KERAS_HOME": cache / "keras",
        "YOLO_CONFIG_DIR": cache / "ultralytics",
        "METALLAB_OUT": work / "out",
        "METALLAB_BUILD": work / "build",
    }
    for folder in (home, work / "tmp"):
        folder.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}

    return kept | {name: str(path) for name, path in inside.items()} | QUIET


QUIET = {
    "METALLAB_DEVICE": "auto",
    "PYTORCH_ENABLE_MPS_FALLBACK": "0",  # a claim that is about it says so
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TQDM_DISABLE": "1",
    "YOLO_OFFLINE": "1",
    "YOLO_AUTOINSTALL": "false",
    "ENABLE_PJRT_COMPATIBILITY": "1",  # jax-metal does not start without it
}


def _place(group: str) -> int:
    """Return a group's place among all: those of `LAST` come in its order behind the others."""
    return LAST.index(group) + 1 if group in LAST else 0


def run(folder: Path, only: str, minutes: float, journal: Path, work: Path) -> dict[str, Claim]:
    """Run the claims of a folder that ``only`` names, and return them by node id, those that were not run as well.

    They are collected first, and stand in the journal before any of them runs. Then each group has a pytest of its own,
    which adds its results to the journal; tests that need variables set have a further one. After so many minutes no
    test begins any more; Control-C ends the runs, and is not raised.

    Raises
    ------
    SystemExit
        With pytest's code if the claims cannot be collected, as for an unknown word in ``only``.
    """
    variables, listed = environment(work), work / "claims.json"
    options = ["--only", only, "--claims", str(listed)]
    command = [*PYTEST, f"--rootdir={folder}", str(folder), "--collect-only", "-qq", *options]
    collected = subprocess.run(command, env=variables, check=False)
    if collected.returncode:
        raise SystemExit(collected.returncode)
    found = {nodeid: Claim(**each) for nodeid, each in json.loads(listed.read_text()).items()}
    report.start(journal, machine.describe(), found)
    runs = {(_group(claim), tuple(claim.environment.items())) for claim in found.values()}
    print(f"{len(found)} tests{'' if ON_A_MAC else ', SIMULATED where they are about a GPU'}; stops after {minutes:g} "
          "minutes. If macOS says that Python quit unexpectedly, choose Ignore.", flush=True)  # fmt: skip
    # of one clock in all processes, so that `--until` can have it
    end = time.monotonic() + 60 * minutes
    with contextlib.suppress(KeyboardInterrupt):
        for group, own in sorted(runs, key=lambda run: (_place(run[0]), *run)):
            if time.monotonic() > end:
                break
            command = [
                *PYTEST,
                f"--rootdir={folder}",
                str(folder / f"test_{group}.py"),
                # the tests run in a worker: one that ends its process is lost alone, and another worker goes on
                "-n1",
                "--dist=load",
            ]
            command += ["--max-worker-restart=999"]
            # with the -q of pyproject.toml this names each test as it ends; what a summary says is in the report
            command += ["--no-summary", "-vv"]
            command += ["--only", only, "--journal", str(journal), "--until", str(end)]
            _wait(
                subprocess.Popen(
                    [*command, *(["--alone"] if own else [])], env=variables | dict(own)
                )
            )

    return found


def _group(claim: Claim) -> str:
    return claim.name.partition(".")[0]


def _wait(process: subprocess.Popen) -> None:
    """Wait for pytest, which hears Control-C as well: it ends its test and its worker."""
    try:
        process.wait()
    except KeyboardInterrupt:
        process.wait()
        raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the claims and write the report, or with ``--report`` write that of an earlier run again.

    Returns
    -------
    int
        0 if each claim is confirmed or not applicable, and 1 if not.

    Raises
    ------
    SystemExit
        With 2 for arguments that are refused, and with pytest's code if the claims cannot be collected: 4 for an
        unknown word in ``--only``.
    """
    here = "mps" if ON_A_MAC else "sim"
    parser = argparse.ArgumentParser(
        prog="make verify-mac",
        usage="make verify-mac [DEVICE=auto|mps|sim] [ONLY=WORDS]\n"
        "       PYTHONPATH=tests .venv/bin/python -m conformance [options]",
        description=__doc__.partition("\n")[0],
    )
    parser.add_argument(
        "--device",
        default="auto",
        choices=["auto", "mps", "sim"],
        help="mps on a Mac, sim elsewhere: the simulated Apple GPU",
    )
    parser.add_argument("--only", default="", metavar="WORDS", help="groups and tests, by name")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="begin no test after so many minutes"
    )
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent, help="the claims")
    parser.add_argument("--out", type=Path, help="the report's file (default: in build/verify-mac)")
    parser.add_argument(
        "--report", type=Path, metavar="JOURNAL", help="write the report of a run that was killed"
    )
    given = parser.parse_args(arguments)
    if given.device not in ("auto", here):
        missing = (
            "no Apple GPU here" if given.device == "mps" else "no simulated Apple GPU on a Mac"
        )
        parser.error(f"there is {missing}: leave DEVICE= away, or give DEVICE={here}")

    path = (
        given.report
        or given.out
        or paths.BUILD / "verify-mac" / report.file_name(machine.describe())
    )
    journal = path.with_suffix(".jsonl")  # beside the report, which --report may name as well
    if given.report and not journal.is_file():
        parser.error(
            f"--report: there is no journal {journal}; each run leaves one beside its report"
        )
    if not given.report:
        with tempfile.TemporaryDirectory(
            prefix="metallab-verify-", ignore_cleanup_errors=True
        ) as work:
            run(given.folder, given.only, given.minutes, journal, Path(work).resolve())
    return _report(journal)


def _report(journal: Path) -> int:
    head, results = report.read_journal(journal)
    path = journal.with_suffix(".md")
    path.write_text(report.markdown(head, results), encoding="utf-8", errors="backslashreplace")
    counts: Mapping[str, Any] = Counter(result["outcome"] for result in results)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    print(f"The report: {path}")
    if ON_A_MAC:
        print("Read it, then attach it to an issue: docs/first_hour_on_a_mac.md says where.")
    return 0 if counts.keys() <= {"confirmed", "not applicable"} else 1


if __name__ == "__main__":
    sys.exit(main())
