"""Another project's own tests on the simulated Apple GPU: how many pass, and why the others do not.

    python tests/benchmarks/foreign_tests.py CHECKOUT [--python PYTHON] [--results FILE] [--tests FOLDER ...]

CHECKOUT is a project whose tests take ``--device`` as an option of pytest, as kornia's do. PYTHON is one that has this
project's torch, what those tests import, and pytest-timeout. They run with ``mps``, and those that fail once more with
``cpu``; without a network, each for at most so many seconds. What each gave is written to FILE at once: a test that
ends the process is a failure like others, and the next call with that FILE goes on where this one stopped.

Told are, of each folder, how many tests passed, failed and were skipped, and of each failure one of `CAUSES`. Ends with
code 1 if one is not known; without a CHECKOUT there is nothing to do. This file is also the plugin of that pytest.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve()
RESULTS, ONLY = "FOREIGN_TESTS_RESULTS", "FOREIGN_TESTS_ONLY"
"""Variables that name two files for the plugin: its results, one JSON object a line, and the only tests to run."""
OFFLINE = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1"}
FAILED = ("failed", "ended the process")

DOWNLOAD, SAME_ON_CPU, UNKNOWN = "asks a server for weights or pictures", "fails on the CPU as well", "not known"
CAUSES: Mapping[str, str] = {
    DOWNLOAD: r"Connection refused|Failed to load weights|Unable to load the model from",
    "mixes devices, an error on any GPU": r"at least two devices|must be on the same device",
    "wants float64, which no Apple GPU has": r"MPS framework doesn't support float64",
    "calls an operator without a Metal kernel": r"not currently implemented for the MPS device",
    "expects the CPU's random numbers, on the device": r"values for attribute 'device' do not match",
}
"""For each cause a regular expression that a failure's last words have."""


def pytest_configure(config) -> None:
    """Record, if whoever runs this pytest says where."""
    if path := os.environ.get(RESULTS):
        config.pluginmanager.register(_Recorder(Path(path)))


class _Recorder:
    """Leaves out tests that have a result, and writes that of each other."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_collection_modifyitems(self, items: list) -> None:
        done, only = read(self._path), os.environ.get(ONLY)
        wanted = set(Path(only).read_text().splitlines()) if only else {item.nodeid for item in items}
        items[:] = [item for item in items if item.nodeid in wanted - done.keys()]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._outcome, self._words = "passed", ""
        self._write(nodeid, "ended the process", "")  # unless another line follows

    def pytest_runtest_logreport(self, report) -> None:
        if report.outcome != "passed" and self._outcome != "failed":
            self._outcome = "skipped" if hasattr(report, "wasxfail") else report.outcome  # expected by that project
            self._words = report.longreprtext[-4000:]

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._write(nodeid, self._outcome, self._words)

    def _write(self, *result: str) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(dict(zip(("test", "outcome", "words"), result, strict=True))) + "\n")


def read(path: Path) -> dict[str, dict[str, str]]:
    """What each test gave: the last line about it."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return {line["test"]: line for line in map(json.loads, lines)}


def on(device: str, test: str) -> str:
    """The same test on another device: kornia's name it among their parameters."""
    return re.sub(r"(?<=[\[-])mps(?=[-\]])", device, test)


def run(device: str, given: argparse.Namespace, results: Path, only: Sequence[str] | None = None) -> dict[str, dict]:
    """Run the tests on a device until pytest has been through them all."""
    paths = f"{HERE.parents[2] / 'utils'}{os.pathsep}{HERE.parent}"
    kind = "sim" if device == "mps" else "cpu"
    variables = os.environ | OFFLINE | {RESULTS: str(results), "PYTHONPATH": paths, "METALLAB_DEVICE": kind}
    plugins = ["-p", "metallab", "-p", HERE.stem, "-p", "no:cacheprovider"]  # metallab before torch
    if only is not None:
        wanted = results.with_suffix(".only")
        wanted.write_text("\n".join(only))
        variables[ONLY] = str(wanted)
    limit = ["--timeout", str(given.limit)] if given.limit else []
    command = [given.python, "-m", "pytest", *plugins, "--device", device, *limit, *given.tests]
    while True:  # a test may end the process
        code = subprocess.run([*command, "-q", "--color=no"], cwd=given.checkout, env=variables).returncode
        if 2 <= code <= 4:  # pytest's own trouble; 5: nothing is left to run
            sys.exit(f"foreign_tests: pytest ended with code {code} and says above why; mend that, and call this again")
        if code in (0, 1, 5):
            return read(results)


def causes(results: Mapping[str, dict], again: Mapping[str, dict]) -> Iterator[tuple[str, str]]:
    """Each failed test, with its cause."""
    for test, result in results.items():
        if result["outcome"] in FAILED:
            cause = next((why for why, words in CAUSES.items() if re.search(words, result["words"])), UNKNOWN)
            if cause != DOWNLOAD and again[on("cpu", test)]["outcome"] in FAILED:
                cause = SAME_ON_CPU
            yield test, cause


def main() -> int:
    """0, or 1 if a failure has no cause."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", nargs="?", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one test; 0: none")
    parser.add_argument("--results", type=lambda name: Path(name).resolve(), default="foreign-tests.jsonl")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="folders or files of CHECKOUT")
    given = parser.parse_args()
    if given.checkout is None:
        print("foreign_tests: nothing to do; name the checkout of a project whose tests take --device")
        return 0
    results = run("mps", given, given.results)
    failed = [on("cpu", test) for test, result in results.items() if result["outcome"] in FAILED]
    again = run("cpu", given, given.results.with_suffix(".cpu"), failed)
    folders = collections.defaultdict(collections.Counter)
    for test, result in results.items():
        for folder in ("/".join(test.partition("::")[0].split("/")[:2]), "all"):
            folders[folder][result["outcome"]] += 1
    print("\n| tests | passed | failed | skipped |\n|---|---|---|---|")
    for folder in [*sorted(folders.keys() - {"all"}), "all"]:
        passed, skipped, *bad = (folders[folder][outcome] for outcome in ("passed", "skipped", *FAILED))
        print(f"| {folder} | {passed} | {sum(bad)} | {skipped} |")
    why = collections.Counter(cause for _, cause in causes(results, again))
    rows = ("\n| why they fail | tests |\n|---|---|", *(f"| {cause} | {n} |" for cause, n in why.most_common()))
    print(*rows, sep="\n")
    print(
        *(f"{test}: {results[test]['words']}" for test, cause in causes(results, again) if cause == UNKNOWN), sep="\n"
    )
    return 1 if why[UNKNOWN] else 0


if __name__ == "__main__":
    sys.exit(main())
