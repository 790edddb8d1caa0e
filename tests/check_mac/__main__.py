"""``make check-mac``: read the wheels that a Mac would install, and report in build/check-mac/report.md."""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import importlib.metadata
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from check_mac import checks, macho, pyobjc, wheels
from check_mac.checks import CheckResult
from metallab import paths
from metalsim import operators
from metalsim.graph import mpsgraph
from metalsim.refusals import wheel as refusals

FOLDER = paths.BUILD / "check-mac"
ASKED_HERE = ("torch", "torchvision", "jaxlib")
"""Packages of which the one installed here is held against the Mac's."""


def planned(locked: Sequence[wheels.Locked], cache: Path) -> Iterator[Callable[[], CheckResult]]:
    """The checks of the locks, the first of which is the project's own. Wheels are fetched when one needs them."""
    python = wheels.PYTHONS[1]
    packages = {package.name: package for package in locked[0].packages}
    chosen, _ = locked[0].for_a_mac(python)

    def wheel(name: str) -> Path:
        if name not in chosen:
            raise macho.NotThere(f"{locked[0].lock.name} has no {name} for a Mac")
        return wheels.fetched(chosen[name], cache)

    yield lambda: checks.every_package_has_a_wheel(locked)
    frameworks = {name: package for name, package in packages.items() if name.startswith("pyobjc-framework-")}
    archives = [wheels.fetched(package.sdist, cache) for package in frameworks.values()]
    metadata = pyobjc.read(archives)
    yield lambda: checks.pyobjc_has_the_names(metadata, pyobjc.of_the_project(paths.ROOT))
    yield lambda: checks.constants_are_pyobjcs(metadata, mpsgraph.CONSTANTS)
    for name in ("torch", "torchvision"):
        yield lambda name=name: checks.python_files_are_linuxs(wheel(name), checks.installed(name))
    yield lambda: _operators(wheel("torch"))
    yield lambda: checks.torchvision_has_its_kernels(
        macho.names(macho.library(wheel("torchvision"), "/_C_stable.so")), operators.TORCHVISION
    )
    yield lambda: checks.kernels_say_what_is_stored([wheel("torch"), wheel("torchvision")], refusals.stored())
    yield lambda: checks.plugin_finds_its_symbols(wheel("tensorflow-metal"), wheel("tensorflow"))
    yield lambda: checks.jaxlib_accepts_the_plugin(wheel("jax-metal"))
    yield lambda: checks.who_brings_openmp(_all([chosen[name] for name in sorted(chosen)], cache))


def _operators(torch: Path) -> CheckResult:
    import torchgen

    folder = Path(torchgen.__file__).parent / "packaged/ATen/native"
    names = macho.names(macho.library(torch, "/libtorch_cpu.dylib"))
    return checks.operators_have_their_kernels(names, operators.table(), folder)


def _all(files: Sequence[wheels.PackageWheel], cache: Path) -> list[Path]:
    """Every wheel with libraries."""
    compiled = [file for file in files if not file.filename.endswith("-any.whl")]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda file: wheels.fetched(file, cache), compiled))


def report(findings: Sequence[CheckResult], locked: Sequence[wheels.Locked]) -> str:
    """The findings as Markdown."""
    contradictions = sum(len(finding.contradictions) for finding in findings)
    lines = [
        "# What a Mac's own wheels say",
        "",
        f"Made by `make check-mac` on {datetime.date.today()}; the locks: {', '.join(e.lock.name for e in locked)}. "
        f"Nothing was run on a Mac. {contradictions or 'No'} contradiction{'' if contradictions == 1 else 's'}.",
    ]
    for finding in findings:
        lines += ["", f"## {finding.title}: {'**no**' if finding.contradictions else 'yes'}", ""]
        lines += [f"- {fact}" for fact in finding.facts]
        lines += [f"- **contradiction**: {contradiction}" for contradiction in finding.contradictions]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if nothing contradicts, 1 if something does, 2 if it could not be asked."""
    parser = argparse.ArgumentParser(prog="check_mac", description=__doc__.partition("\n")[0])
    parser.add_argument("--lock", type=Path, action="append", help="instead of the project's; may be given again")
    given = parser.parse_args(arguments)
    findings = []
    try:
        if platform.system() != "Linux":
            raise wheels.Unreachable(
                "this is for Linux, whose packages it holds against a Mac's; here: make verify-mac"
            )
        locked = [wheels.Locked.ask(lock) for lock in given.lock or wheels.locks(paths.ROOT)]
        for name in ASKED_HERE:
            if (here := importlib.metadata.version(name)) != (there := locked[0].version(name)):
                raise wheels.Unreachable(f"{name} {here} is installed and {there} is locked: make setup")
        for check in planned(locked, FOLDER / "wheels"):
            began = time.monotonic()
            try:
                findings.append(check())
            except macho.NotThere as error:
                findings.append(CheckResult("Everything is where it was", (), (str(error),)))
            last = findings[-1]
            print(
                f"{'no ' if last.contradictions else 'yes'} {last.title} ({time.monotonic() - began:.0f} s)", flush=True
            )
            for contradiction in last.contradictions[:10]:
                print(f"    {contradiction}")
    except wheels.Unreachable as error:
        print(f"check-mac: {error}", file=sys.stderr)
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "report.md").write_text(report(findings, locked), encoding="utf-8")
    print(f"The report: {FOLDER / 'report.md'}")
    return 1 if any(finding.contradictions for finding in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
