"""What kernel.check() looks for, and how it is told."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from metalsim.shader import binding, compiler
from metalsim.shader.program import Outcome, Program

ORDERS = {1: "backwards", 2: "shuffled", 3: "shuffled another way"}
GARBAGE = {0x7F: "3.4e38", 0xFE: "-1.7e38"}  # as float; an ordinary run has 0xFF, NaN

TOOLS = {
    "address": "address and undefined behaviour sanitizers",
    "race": "races, and accesses outside of buffers",
}
_DIFFERENCES = ("thread order", "uninitialised memory")  # of two runs that should give the same
ENDED_BY_HOOKS = 66
"""The exit status of a run that the watched accesses ended; what they say is a finding, the status is none."""
# what a sanitizer writes -> kind of finding
_KINDS = (
    (r"AddressSanitizer: (?!FPE)([\w-]+)", "address"),
    (r"program_source:\d+(?::\d+)?: runtime error: (.*)", "undefined behaviour"),
)


@dataclass(frozen=True)
class KernelFault:
    """One thing that is wrong with a kernel.

    Kinds: address (outside of a buffer or an array), undefined behaviour, race, barrier, thread order (the result
    depends on it), uninitialised memory (the result depends on threadgroup memory that nobody wrote, or on lanes that
    are not there), crash, hang.
    """

    kind: str
    line: int | None  # of the Metal source, from 1; None where no line is to blame
    message: str

    def __str__(self) -> str:
        return f"{self.kind}{f', line {self.line}' if self.line else ''}: {self.message}"


@dataclass(frozen=True)
class Report:
    """What check() did and found. `skipped` says what was not looked for, and why.

    `effects` are differences between runs beside a race, which is likely to be their cause: no findings of their own.
    """

    kernel: str
    findings: tuple[KernelFault, ...]
    ran: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Nothing was found. What was skipped was not looked for."""
        return not self.findings

    def __str__(self) -> str:
        found = "nothing found" if self.ok else f"{len(self.findings)} found"
        lines = [f"{self.kernel}: {found}; ran {', '.join(self.ran)}"]
        lines += [f"  {finding}" for finding in self.findings]
        lines += [f"  seen with it: {effect}" for effect in self.effects]
        lines += [f"  skipped: {reason}" for reason in self.skipped]
        return "\n".join(lines)

    __repr__ = __str__


def check(kernel: str, program: Program, call: binding.Call, timeout: float) -> Report:
    """Run a kernel in every way that may show something wrong with it, and report what did.

    Parameters
    ----------
    kernel
        Its name, for the report.
    program, call
        The kernel, and how it is called. The buffers keep their values.
    timeout
        Seconds for each run.

    Raises
    ------
    ValueError
        For a timeout that is not above 0.
    """
    if not timeout > 0:
        raise ValueError(f"timeout is a number of seconds above 0, not {timeout!r}")
    if 0 in call.threads:
        return Report(kernel, (), (), ("everything: there are no threads",))

    usual = program.run("plain", call, timeout)
    if usual.status is None:
        return _report_hang(kernel, program, call, timeout)

    sanitized = _run_sanitizers(program, call, timeout)
    differing = _compare_runs(program, call, timeout, usual)
    findings, effects = _merge(sanitized.findings, differing)
    return Report(
        kernel=kernel,
        findings=tuple(dict.fromkeys(findings)),
        ran=(*sanitized.ran, "thread orders", "garbage in threadgroup memory"),
        skipped=tuple(sanitized.skipped),
        effects=tuple(effects),
    )


def _merge(
    found: Sequence[KernelFault], differing: Sequence[KernelFault]
) -> tuple[list[KernelFault], list[str]]:
    """Return all findings, and the differences between runs that are effects of a race and no findings."""
    findings = list(found)
    effects: list[str] = []
    has_race = any(finding.kind == "race" for finding in found)

    # a crash says nothing new where a sanitizer has named its line, or where it has no line of its own
    blamed: set[int | None] = {finding.line for finding in found}
    if found:
        blamed.add(None)

    for fault in differing:
        if has_race and fault.kind in _DIFFERENCES:
            effects.append(fault.message)
        elif fault.kind != "crash" or fault.line not in blamed:
            findings.append(fault)
    return findings, effects


def _report_hang(kernel: str, program: Program, call: binding.Call, timeout: float) -> Report:
    """Report on a kernel that did not end in a plain run: why, if leaving a buffer is to blame.

    The sanitizers are run for that, where there are some: they end a kernel as soon as it leaves a buffer. Nothing else
    is looked for, since there is no result to compare.
    """
    findings = [_hang(timeout)]
    ran = ("a plain run",)
    skipped: tuple[str, ...] = ("races, thread orders, garbage: there is no result to compare",)

    if missing := compiler.find_compiler().missing_sanitizers:
        skipped = (f"address and undefined behaviour: {missing}", *skipped)
        return Report(kernel, tuple(findings), ran, skipped)

    outcome = program.run("address", call, timeout)
    if outcome.status is not None:
        findings += findings_in(outcome)
    return Report(
        kernel, tuple(findings), (*ran, "address and undefined behaviour sanitizers"), skipped
    )


def _hang(timeout: float, how: str = "") -> KernelFault:
    """Return the finding for a kernel that did not end."""
    why = "it loops for ever, or waits for a thread that runs after it; pass a larger timeout if it is only slow"
    return KernelFault("hang", None, f"the kernel did not end within {timeout:g} s{how}: {why}")


@dataclass
class _Sanitized:
    """What came of the runs with sanitizers."""

    findings: list[KernelFault] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def _run_sanitizers(program: Program, call: binding.Call, timeout: float) -> _Sanitized:
    """Run the kernel with each tool of `TOOLS` that there is, and return what they found.

    A tool that does not come with this compiler, and one that is not done in time, is skipped with its reason: the
    plain run has ended, so that the kernel is not what hangs.
    """
    result = _Sanitized()
    for tool, name in TOOLS.items():
        if tool == "address" and (missing := compiler.find_compiler().missing_sanitizers):
            result.skipped.append(f"{name}: {missing}")
            continue

        outcome = program.run(tool, call, timeout)
        if outcome.status is None:  # slow, and no hang: it ended without them
            too_slow = f"not done within {timeout:g} s; pass a larger timeout or fewer threads"
            result.skipped.append(f"{name}: {too_slow}")
            continue

        # of a line that another tool has named, only a race is news
        seen = {finding.line for finding in result.findings}
        result.findings += [
            finding
            for finding in findings_in(outcome)
            if finding.kind == "race" or finding.line not in seen
        ]
        result.ran.append(name)
    return result


def _compare_runs(
    program: Program, call: binding.Call, timeout: float, usual: Outcome
) -> list[KernelFault]:
    """Return what is wrong with plain runs that should all give the same as the usual one: the first of each kind.

    They run the threads in other orders, and over other garbage in memory that nobody wrote. Where something is wrong
    with the usual run itself, that is returned, and nothing is compared.
    """
    if faults := findings_in(usual):
        return faults

    findings: list[KernelFault] = []
    for order, words in ORDERS.items():
        when = f" when threads run {words}"
        again = program.run("plain", call, timeout, order=order)
        findings += _compare("thread order", when, call, usual, again, timeout)

    for garbage, words in GARBAGE.items():
        when = f" when threadgroup memory that nobody wrote, or an absent lane, holds {words}"
        again = program.run("plain", call, timeout, garbage=garbage)
        findings += _compare("uninitialised memory", when, call, usual, again, timeout)

    first_of_kind = {finding.kind: finding for finding in reversed(findings)}
    return [*first_of_kind.values()]


def _compare(
    kind: str, when: str, call: binding.Call, usual: Outcome, again: Outcome, timeout: float
) -> list[KernelFault]:
    """Return what is wrong with a run that should give the same as the usual one."""
    if again.status is None:
        return [_hang(timeout, when)]
    if faults := findings_in(again):
        return faults
    if again.memory == usual.memory:
        return []
    return [KernelFault(kind, None, f"{_name_buffers(call, usual, again)} other values{when}")]


def _name_buffers(call: binding.Call, usual: Outcome, again: Outcome) -> str:
    """Return the names of the buffers that differ between two runs, with a verb."""
    if len(again.memory) != len(usual.memory):
        return "the buffers have"

    regions = binding.regions(call.buffers)
    names = [
        f"buffer({index})"
        for region, before, after in zip(regions, usual.memory, again.memory, strict=True)
        for index in region.buffers
        if before != after
    ]
    return f"{', '.join(names)} {'has' if len(names) == 1 else 'have'}"


def findings_in(outcome: Outcome) -> list[KernelFault]:
    """Return what is wrong according to one run that ended.

    It is read from what the run wrote on standard error: by the watched accesses, by the run time (a barrier, a crash),
    or by sanitizers. Who says most about a fault is asked first, and the exit status last, which names no line.
    """
    said = outcome.standard_error
    if findings := _read_accesses(said):
        return findings
    if match := re.search(r"METALSIM (\S+):(\d+) (.*)", said):
        kind = "barrier" if "barrier" in match[3] else "crash"
        return [KernelFault(kind, int(match[2]) or None, match[3])]

    if findings := _read_sanitizers(said):
        return findings
    if outcome.status in (0, ENDED_BY_HOOKS):
        return []
    return [KernelFault("crash", None, f"exit status {outcome.status}: {said[-300:]}")]


def _read_sanitizers(text: str) -> list[KernelFault]:
    """Return what the sanitizers of address and undefined behaviour say, each report once."""
    findings = []
    # the address sanitizer begins a report with a line of `=`, that of undefined behaviour with the line of the source;
    # the text in front of the first one is a part that matches nothing
    reports = re.split(r"(?=={65,}|={18}\n)|(?=program_source:\d+:\d+: runtime error)", text)
    for report in reports:
        for pattern, kind in _KINDS:
            match = re.search(pattern, report)
            if match is None:
                continue

            line = re.search(r"program_source:(\d+)", report)
            number = int(line[1]) if line else None
            findings.append(KernelFault(kind, number, _shorten(match[1], report)))
            break
    return list(dict.fromkeys(findings))


def _read_accesses(text: str) -> list[KernelFault]:
    """Return what runtime/hooks.h says of accesses; of a race between two lines, the first report."""
    findings: dict[frozenset[str], KernelFault] = {}
    pattern = r"METALSIM \S+:(\d+) METALSIM \S+:(\d+) (race|address): (.*)"
    for line, other, kind, what in re.findall(pattern, text):
        message = what
        if kind == "race":
            message = f"data race: {what}, unordered with the access in line {other}"
        fault = KernelFault(kind, int(line) or None, message)
        findings.setdefault(frozenset((line, other)), fault)
    return [*findings.values()]


def _shorten(what: str, report: str) -> str:
    """Return a sanitizer's report in a line."""
    access = re.search(r"\b(READ|WRITE|Read|Write) of size (\d+)", report)
    if not access:
        return what
    return f"{what}: {access[1].lower()} of {access[2]} bytes"
