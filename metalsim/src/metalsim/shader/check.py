"""What kernel.check() looks for, and how it is told."""

from __future__ import annotations

import re
from dataclasses import dataclass

from metalsim.shader import binding, compiler
from metalsim.shader.program import Outcome, Program

ORDERS = {1: "backwards", 2: "shuffled", 3: "shuffled another way"}
GARBAGE = {0x7F: "3.4e38", 0xFE: "-1.7e38"}  # as float; an ordinary run has 0xFF, NaN

TOOLS = {
    "address": "address and undefined behaviour sanitizers",
    "race": "races, and accesses outside of buffers",
}
_DIFFERENCES = ("thread order", "uninitialised memory")  # of two runs that should give the same
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
        lines = [
            f"{self.kernel}: {'nothing found' if self.ok else f'{len(self.findings)} found'}; ran {', '.join(self.ran)}"
        ]
        lines += [f"  {finding}" for finding in self.findings]
        lines += [f"  seen with it: {effect}" for effect in self.effects]
        return "\n".join([*lines, *(f"  skipped: {reason}" for reason in self.skipped)])

    __repr__ = __str__


def check(kernel: str, program: Program, call: binding.Call, timeout: float) -> Report:
    """Every run of a kernel that may show something wrong with it; `timeout` in seconds for each.

    ValueError for a timeout that is not above 0.
    """
    if not timeout > 0:
        raise ValueError(f"timeout is a number of seconds above 0, not {timeout!r}")
    if 0 in call.threads:
        return Report(kernel, (), (), ("everything: there are no threads",))
    usual = program.run("plain", call, timeout)
    if usual.status is None:
        return _without_end(kernel, program, call, timeout)
    findings, ran, skipped = _sanitized(program, call, timeout)
    blamed = {None, *(finding.line for finding in findings)} if findings else set()
    races, effects = any(finding.kind == "race" for finding in findings), []
    for fault in _compared(program, call, timeout, usual):
        if races and fault.kind in _DIFFERENCES:
            effects.append(fault.message)
        elif fault.kind != "crash" or fault.line not in blamed:
            findings.append(fault)
    ran += ("thread orders", "garbage in threadgroup memory")
    return Report(kernel, tuple(dict.fromkeys(findings)), ran, skipped, tuple(effects))


def _without_end(kernel: str, program: Program, call: binding.Call, timeout: float) -> Report:
    """The report on a kernel that did not end in a plain run: why, if leaving a buffer is to blame."""
    findings, ran = [_hang(timeout)], ("a plain run",)
    skipped = ("races, thread orders, garbage: there is no result to compare",)
    if missing := compiler.find_compiler().missing_sanitizers:
        return Report(
            kernel, tuple(findings), ran, (f"address and undefined behaviour: {missing}", *skipped)
        )
    outcome = program.run("address", call, timeout)
    if outcome.status is not None:
        findings += findings_in(outcome)
    return Report(
        kernel, tuple(findings), (*ran, "address and undefined behaviour sanitizers"), skipped
    )


def _hang(timeout: float, how: str = "") -> KernelFault:
    why = "it loops for ever, or waits for a thread that runs after it; pass a larger timeout if it is only slow"
    return KernelFault("hang", None, f"the kernel did not end within {timeout:g} s{how}: {why}")


def _sanitized(
    program: Program, call: binding.Call, timeout: float
) -> tuple[list[KernelFault], tuple[str, ...], tuple[str, ...]]:
    """(findings, what ran, what was skipped) of the sanitizers."""
    findings, ran, skipped = [], (), ()
    for tool, name in TOOLS.items():
        if tool == "address" and (missing := compiler.find_compiler().missing_sanitizers):
            skipped += (f"{name}: {missing}",)
            continue
        outcome = program.run(tool, call, timeout)
        if outcome.status is None:  # slow, and no hang: it ended without them
            skipped += (
                f"{name}: not done within {timeout:g} s; pass a larger timeout or fewer threads",
            )
            continue
        seen = {finding.line for finding in findings}
        findings += [
            found
            for found in findings_in(outcome)
            if found.kind == "race" or found.line not in seen
        ]
        ran += (name,)
    return findings, ran, skipped


def _compared(
    program: Program, call: binding.Call, timeout: float, usual: Outcome
) -> list[KernelFault]:
    """Findings of plain runs that should all give the same as the usual one."""
    if faults := findings_in(usual):
        return faults
    findings = []
    for order, words in ORDERS.items():
        when = f" when threads run {words}"
        findings += _other(
            "thread order",
            when,
            call,
            usual,
            program.run("plain", call, timeout, order=order),
            timeout,
        )
    for garbage, words in GARBAGE.items():
        when = f" when threadgroup memory that nobody wrote, or an absent lane, holds {words}"
        again = program.run("plain", call, timeout, garbage=garbage)
        findings += _other("uninitialised memory", when, call, usual, again, timeout)
    first_of_kind = {finding.kind: finding for finding in reversed(findings)}
    return [*first_of_kind.values()]


def _other(
    kind: str, when: str, call: binding.Call, usual: Outcome, again: Outcome, timeout: float
) -> list[KernelFault]:
    """What is wrong with a run that should give the same as the usual one."""
    if again.status is None:
        return [_hang(timeout, when)]
    text = f"{_buffers(call, usual, again)} other values{when}"
    return findings_in(again) or _difference(kind, text, usual, again)


def _difference(kind: str, text: str, usual: Outcome, again: Outcome) -> list[KernelFault]:
    return [] if again.memory == usual.memory else [KernelFault(kind, None, text)]


def _buffers(call: binding.Call, usual: Outcome, again: Outcome) -> str:
    """Names of the buffers that differ between two runs, with a verb."""
    if len(again.memory) != len(usual.memory):
        return "the buffers have"
    names = [
        f"buffer({index})"
        for region, a, b in zip(
            binding.regions(call.buffers), usual.memory, again.memory, strict=True
        )
        for index in region.buffers
        if a != b
    ]
    return f"{', '.join(names)} {'has' if len(names) == 1 else 'have'}"


def findings_in(outcome: Outcome) -> list[KernelFault]:
    """What is wrong according to one run that ended."""
    if findings := _watched(outcome.standard_error):
        return findings
    if match := re.search(r"METALSIM (\S+):(\d+) (.*)", outcome.standard_error):
        kind = "crash" if "barrier" not in match[3] else "barrier"
        return [KernelFault(kind, int(match[2]) or None, match[3])]
    findings = []
    for part in re.split(
        r"(?=={65,}|={18}\n)|(?=program_source:\d+:\d+: runtime error)", outcome.standard_error
    ):
        for pattern, kind in _KINDS:
            if match := re.search(pattern, part):
                line = re.search(r"program_source:(\d+)", part)
                findings.append(
                    KernelFault(kind, int(line[1]) if line else None, _message(match[1], part))
                )
                break
    if not findings and outcome.status not in (0, 66):
        findings.append(
            KernelFault(
                "crash", None, f"exit status {outcome.status}: {outcome.standard_error[-300:]}"
            )
        )
    return list(dict.fromkeys(findings))


def _watched(text: str) -> list[KernelFault]:
    """What runtime/hooks.h says of accesses; of a race between two lines, the first report."""
    findings = {}
    pattern = r"METALSIM \S+:(\d+) METALSIM \S+:(\d+) (race|address): (.*)"
    for line, other, kind, what in re.findall(pattern, text):
        with_line = f"data race: {what}, unordered with the access in line {other}"
        found = KernelFault(kind, int(line) or None, with_line if kind == "race" else what)
        findings.setdefault(frozenset((line, other)), found)
    return [*findings.values()]


def _message(what: str, report: str) -> str:
    """A sanitizer's report in a line."""
    access = re.search(r"\b(READ|WRITE|Read|Write) of size (\d+)", report)
    if not access:
        return what
    return f"{what}: {access[1].lower()} of {access[2]} bytes"
