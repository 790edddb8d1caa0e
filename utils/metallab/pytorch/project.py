"""Page 90: what the tools report of a script of one's own, step by step, and a page of report.

A step is given what its reader wrote, asks the tools, and keeps what they report in ``steps.json``. Page 90 is the
example: ``check("90.1", "my_project:example", work)``, and at the end ``work.save()``.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import platform
import re
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from metallab import checks, device, mode, needs, paths, records, timing, units
from metallab.device import Device
from metallab.pytorch import crossover, divergence, doctor
from metallab.pytorch.copies import tensors_in
from metallab.pytorch.dispatch import explain
from metallab.pytorch.doctor.answer import QUESTIONS
from metallab.pytorch.doctor.formats import is_random
from metallab.pytorch.doctor.report import rendered
from metallab.pytorch.doctor.subject import Subject, checked, forget, made
from metalsim import refusals

STEPS = (
    "Does the script run on MPS?", "What was changed?", "Does it compute the same?", "Is it finite for feared inputs?",
    "What takes the time?", "Is it faster?", "Which number format?", "Does it fit?", "What was found?",
)  # fmt: skip
ON_AN_APPLE_GPU = (2, 3)
"""Steps whose answer is computed on one, be it simulated."""
DONE, REFUSED, OPEN, OLD = (
    "good",
    "bad",
    "unanswered",
    "attention",
)  # as the doctor marks its answers
IN_WORDS = {
    DONE: "done",
    REFUSED: "refused",
    OPEN: "not done",
    OLD: "done with an older version of the file",
}
SPEED = re.compile(
    r"\b(?:fast|slow|quick|speed|sooner|times|twice|halv|outperform)\w*|\bhalf (?:of )?the time\b"
    r"|\d\s*(?:ns|µs|us|ms|s|sec\w*|min\w*)\b", re.IGNORECASE,
)  # fmt: skip
NEGATED = re.compile(r"\b(?:no|not|nothing|never|whether)\b[^,;.]*", re.IGNORECASE)
NUMBER = re.compile(r"(?<![\w.])\d+(?:[.,]\d+)*(?:e[-+]?\d+)?")
OF_A_MAC = re.compile(r"\b(?:i?macs?|macbook\w*|macos|apple\w*|mps|m[1-9])\b", re.IGNORECASE)


class Refused(ValueError):
    """What a step was given is not supported by what the tools report; the message says by what."""


class Project:
    """The nine steps of one project."""

    def __init__(self, folder: Path | str, *, on: Device, minutes: float = 3.0) -> None:
        self.folder, self.on, self.minutes = Path(folder), on, minutes
        self.on_a_mac = on.kind == "mps" and not on.simulated
        self.devices = [device.cpu(), *([on] if on.kind != "cpu" else [])]
        self.places = " and ".join(each.label for each in self.devices)
        self.kept: dict[str, Any] = {"examined": {}, "steps": {}}  # in steps.json
        self.comparisons: list[timing.Comparison] = []  # of step 6, for records.save
        if (before := self.folder / "steps.json").exists():
            self.kept = json.loads(before.read_text("utf-8"))

    def step(self, number: int) -> Callable[[Any], bool]:
        """Return a function that judges what a step was given, from 1 to 9; see `metallab.exercises`."""
        asked = (
            self._script, self._moved, self._agrees, self._finite, self._longest, self._compared, self._format,
            self._fits, self._sentence,
        )[number - 1]  # fmt: skip

        def judge(given: Any) -> bool:
            entry = {
                "given": _shown(given)[:300],
                "outcome": REFUSED,
                "on": "",
                "found": ["Interrupted."],
                "files": {},
            }
            self.kept["steps"][str(number)] = entry
            if number in ON_AN_APPLE_GPU:
                for tool in needs.missing(["apple-gpu"]):
                    needs.show(tool.missed_by(f"step {number}"))
            try:
                entry["on"], *entry["found"] = (
                    line.replace(f"{self.folder}/", "") for line in asked(given)
                )
                entry["outcome"] = DONE
            except Exception as error:
                why = (
                    str(error)
                    if isinstance(error, Refused | doctor.NotAModel)
                    else f"It raised {explain(error)}"
                )
                entry["found"] = [why]
                raise Refused(why) from error
            finally:
                entry["files"] = {
                    each["factory"]: _digest(each["factory"])
                    for each in self.kept["examined"].values()
                }
                paths.write_atomically(
                    self.folder / "steps.json", json.dumps(self.kept, indent=1) + "\n"
                )
            print("\n".join(entry["found"]))
            return True

        return judge

    # ---- the steps: each returns where it asked, the answer and what else it found, or raises Refused ----------------

    def _script(self, factory: Any) -> list[str]:
        report = self.kept["examined"]["script"] = self._examined(factory, "script")
        runs = report["answers"][0]
        names = {
            _plain(row[0]): row[1] for each in runs["evidence"] for row in each.get("rows", ())
        }
        stops = f"Not as it is: {', '.join(f'{name} ({how})' for name, how in names.items())}."
        return [
            runs["on"],
            stops if names and runs["outcome"] != DONE else _predicted(runs),
            _first(runs),
        ]

    def _moved(self, given: Any) -> list[str]:
        factory, changed = _pair(
            given, "name the factory of what you moved, and say in a sentence what you changed"
        )
        if not isinstance(changed, str) or len(changed.split()) < 2:
            raise Refused("say in a sentence what you changed")
        if SPEED.search(changed):
            raise Refused(
                f"{SPEED.search(changed)[0]!r} is for step 6 to find: say what you changed, not what for"
            )
        self._answer(1, "script")
        after = (report := self._examined(factory, "moved"))["answers"][0]
        if after["outcome"] in (REFUSED, OPEN):
            raise Refused(f"it does not run on MPS yet: {_first(after)}")
        self.kept["examined"]["moved"] = report
        tried = after["sentence"].splitlines()[-1]  # on an Apple GPU, or the simulated one
        return [after["on"], f"{changed.rstrip('.')}. Does it run now? {_predicted(after)}", tried]

    def _agrees(self, dtype: Any) -> list[str]:
        script, moved = self._subject("script"), self._subject("moved")
        outputs = tensors_in(moved.inference()())
        own = next((units.dtype_name(t.dtype) for t in outputs if t.is_floating_point()), "float32")
        if not isinstance(dtype, str) or dtype not in checks.TOLERANCES:
            raise Refused(
                f"name the number format to compare in, as a text: {', '.join(checks.TOLERANCES)}"
            )
        if checks.tolerance(dtype).relative > checks.tolerance(own).relative:
            raise Refused(f"outputs are in {own}: {dtype} would let too much pass")
        if is_random(script) or is_random(moved):
            raise Refused(
                "outputs differ from call to call: seed what is random; turn F.dropout off by hand"
            )
        wanted, got = (each.gradients(evaluating=True) for each in (script, moved))
        both = [name for name in wanted if name in got and got[name].shape == wanted[name].shape]
        ours, theirs = (
            {f"gradient of {name}": each[name] for name in both} for each in (wanted, got)
        )
        try:
            checks.assert_close(
                [*tensors_in(script.inference()()), ours], [*outputs, theirs], dtype
            )
            if self.on.kind != "cpu":
                checks.assert_close(
                    outputs, tensors_in(moved.to(self.on.torch_device).inference()()), dtype
                )
        except checks.Mismatch as difference:
            raise Refused(f"moved and script differ: {difference}") from None
        judged = self._answer(2, "moved")
        if judged["outcome"] == REFUSED:
            raise Refused(_first(judged))
        count, others = sum(t.numel() for t in outputs), len(wanted) - len(both)
        calls, known = map(
            int,
            (re.findall(r"(\d+) of (\d+) calls of operators", judged["sentence"]) or [(0, 0)])[0],
        )
        said = {
            f"{count:,} number{'s agree' if count > 1 else ' agrees'} within {checks.tolerance(dtype)}.": True,
            f"So do the gradients of {len(both)} tensors of weights, in evaluation mode.": both,
            "There are no gradients.": not wanted,
            f"{calls} calls of operators, one by one, agree with float64.": calls,
            "Not compared: what the outputs are made of; return that, too.": count < 10,
            f"Not compared: gradients of {others} tensors of weights, whose names or shapes are not in both.": others,
            f"Not compared: {known - calls} of {known} calls of operators, for lack of time.": known
            > calls,
            f"Not compared: operators, one by one. {_first(judged)}": not calls,
        }
        rest = "".join(
            re.split(r"root mean square\)[^.]*\.\s", judged["sentence"])[1:]
        ).splitlines()
        lines = [line for line, holds in said.items() if holds] + rest
        agree = [line for line in [*said][:4] if said[line]]
        found = " ".join(agree) + " Not all was compared: see below." * (agree != lines)
        return [
            self.places + f"; operators: {judged['on']}" * bool(calls),
            found,
            *lines[len(agree) :],
        ]

    def _finite(self, worst: Any) -> list[str]:
        moved = self._subject("moved")
        if not callable(worst):
            raise Refused(
                "give a function that is called with the inputs of your factory and returns worse ones"
            )
        given = worst(*moved.inputs, **moved.named)
        old, new = tensors_in([moved.inputs, moved.named]), tensors_in(given)
        if not new or (len(old) == len(new) and all(map(torch.equal, old, new))):
            these = "the inputs of your factory" if new else "no tensors"
            raise Refused(
                f"these are {these}: return a tuple of inputs that you fear, such as equal numbers"
            )
        hard = checked((moved.model, given, moved.loss), "your function")
        for what, each in (("its inputs", moved), ("yours", hard)):
            for on in self.devices:
                _assert_finite(each, on, what)
        counted = sum(1 for weight in moved.model.parameters() if weight.requires_grad)
        gradients = f", and the gradients of {counted} tensors of weights," * bool(
            counted and moved.trains
        )
        return [
            self.places,
            f"Outputs{gradients} are finite for its own inputs and for the feared ones.",
        ]

    def _longest(self, name: Any) -> list[str]:
        if not isinstance(name, str) or not (wanted := _plain(name)):
            raise Refused("name one operator, copy or fallback of answer 4, such as 'aten::exp'")
        lines, there = [], []
        for which in ("script", "moved"):
            answer, rows = self._answer(4, which), []
            for each in answer["evidence"]:
                for row in each["rows"]:
                    last = dict(zip(each["headings"], row, strict=True))
                    of = (
                        last["share"] + " of the time"
                        if "share" in last
                        else f"{last['bytes']} {last['which way']}"
                    )
                    rows.append((row[0], f"{of}, calls: {last['calls']}"))
            there += [row[0] for row in rows]
            if said := [text for known, text in rows if _plain(known) == wanted]:
                most = f" (most: {_plain(rows[0][0])}, {rows[0][1].partition(',')[0]})" * (
                    rows[0][1] != said[0]
                )
                lines.append(f"{which.capitalize()}: {'; '.join(said)}{most or ' (most of all)'}.")
        if wanted not in map(_plain, there):
            known = (
                f"{', '.join(dict.fromkeys(there[:4]))} are"
                if there
                else f"answer 4 knows none: {_first(answer)}"
            )
            raise Refused(f"{name} is not among what takes the time; {known}")
        copied = [
            f"Moved: {line}"
            for line in answer["sentence"].splitlines()
            if "between" in line.lower()
        ]
        lines += [] if self.on_a_mac else ["A Mac may have another operator for the same call."]
        return [
            f"operators of {answer['on']}",
            f"The author looked into {wanted}. {' '.join(lines)}",
            *copied,
        ]

    def _compared(self, task: Any) -> list[str]:
        tasks = {"inference": "inference", "training step": "training_step"}
        if not isinstance(task, str) or task not in tasks:
            raise Refused(f"name what to time: {' or '.join(tasks)}")
        script, moved, cpu = self._subject("script"), self._subject("moved"), device.cpu()
        if task == "training step" and not (script.trains and moved.trains):
            raise Refused("the loss has no gradient, so there is no training step: take inference")
        ways = {"script on the CPU": (script, cpu), "moved on the CPU": (moved, cpu)}
        if self.on.kind != "cpu":
            ways[f"moved on {self.on.kind.upper()}"] = (moved, self.on)
        timed = {
            name: getattr(each.to(on.torch_device), tasks[task])()
            for name, (each, on) in ways.items()
        }
        with crossover.whole_float32():
            compared = timing.compare(
                {name: lambda run=run: tensors_in(run()) for name, run in timed.items()},
                on={name: on for name, (_, on) in ways.items()}, baseline="script on the CPU",
                parity=checks.matches("float32"), name=task, budget=crossover.budget_here(),
            )  # fmt: skip
        self.comparisons = [compared]
        records.save("results", compared, on=self.on, folder=self.folder)
        if differing := [str(why) for why in compared.refused.values() if "differ" in str(why)]:
            dropout = "; a training step is compared without dropout: turn it off in both factories"
            raise Refused(
                f"no time is compared: {differing[0]}{dropout * ('itself' in differing[0])}"
            )
        return [
            self.places,
            f"{task}: {'; '.join(compared.sentences)}",
            *map(str, compared.measurements.values()),
        ]

    def _format(self, given: Any) -> list[str]:
        name, accepted = _pair(
            given, "name a format of answer 6, and the largest error that you accept, such as 1e-3"
        )
        answer = self._answer(6, "moved")
        rows = {row[0]: row for each in answer["evidence"] for row in each.get("rows", ())}
        if name not in rows:
            raise Refused(
                f"answer 6 has {'; '.join(map(repr, rows)) or 'no format: ' + _first(answer)}"
            )
        if not isinstance(accepted, int | float) or not 0 < accepted < 1:
            raise Refused(
                "the error is relative to the outputs' root mean square: accept one between 0 and 1"
            )
        if not re.match(r"\d", rows[name][1]):
            raise Refused(f"{name} is not sound: {rows[name][1]}")
        if float(rows[name][1]) > accepted:
            raise Refused(f"{name} has an error of {rows[name][1]}, and you accept {accepted:g}")
        exact = "in float64" if "differ from float64" in answer["sentence"] else "as it is"
        error = f"{name}: outputs differ from those of the moved model {exact} by {rows[name][1]}"
        within = f"{error} of their root mean square; {accepted:g} is accepted."
        return [
            answer["on"],
            within,
            "Inference: {2}; kept for the backward pass: {3}.".format(*rows[name]),
        ]

    def _fits(self, gigabytes: Any) -> list[str]:
        if (
            isinstance(gigabytes, bool)
            or not isinstance(gigabytes, int | float)
            or not 1 <= gigabytes <= 2048
        ):
            raise Refused("give the memory of a Mac in GB, such as 16")
        self._answer(5, "moved")
        asked = {
            "minutes": self.minutes,
            "memory": int(gigabytes * 2**30),
            "questions": [5],
            "together": True,
        }
        [answer] = doctor.examine(
            self.kept["examined"]["moved"]["factory"], progress=lambda _: None, **asked
        ).answers
        lines = [line for line in answer.sentence.splitlines() if "this machine" not in line]
        if answer.status in ("failed", "skipped"):
            raise Refused(next((line for line in lines if "NOT FIT" in line), lines[0]))
        return [
            "counted",
            f"Into a Mac with {gigabytes:g} GB, yes: {lines[0][0].lower()}{lines[0][1:]}",
            *lines[1:],
        ]

    def _sentence(self, text: Any) -> list[str]:
        if not isinstance(text, str) or len(text.split()) < 4 or "\n" in text.strip():
            raise Refused("write one sentence, in which a colleague reads what you found")
        shown = " ".join(
            line
            for number, each in self.kept["steps"].items()
            if number != "9"
            for line in each["found"]
        )
        for each in self.kept["examined"].values():
            shown += " ".join([each["model"], *(answer["sentence"] for answer in each["answers"])])
        if unknown := {*NUMBER.findall(text)} - {*NUMBER.findall(shown)}:
            raise Refused(
                f"{unknown.pop()} is in no result: copy a number of the report as printed, or give none"
            )
        verdicts, rest = self._verdicts(), text
        for sentence in verdicts:
            rest = rest.replace(sentence, "")
        word = SPEED.search(NEGATED.sub("", rest))
        if (
            word
            and ("slower" if word[0].lower().startswith("slow") else "faster")
            not in verdicts.values()
        ):
            instead = next(iter(verdicts), "no time was compared")
            raise Refused(f"{word[0]!r} is not established: leave it out, or write {instead!r}")
        if (
            OF_A_MAC.search(text)
            and not self.on_a_mac
            and not re.search("simulated|tables|no Mac", text)
        ):
            raise Refused(
                "no Mac has run it: write what PyTorch's tables or the simulated Apple GPU say of one"
            )
        return ["", text.strip()]

    # ---- what steps know of each other -------------------------------------------------------------------------------

    def _examined(self, factory: Any, which: str) -> dict[str, Any]:
        """Return the doctor's report as plain values; asked again only if the file, PyTorch or this library changed."""
        if not isinstance(factory, str):
            raise Refused(
                "give the name of your factory as a text, file:function, such as 'my_project:example'"
            )
        known = self.kept["examined"].get(which, {})
        asked = {
            "factory": factory,
            "digest": _digest(factory),
            "minutes": self.minutes,
            **_versions(),
        }
        if any(known.get(name) != value for name, value in asked.items()):
            report = doctor.examine(
                factory, minutes=self.minutes, progress=lambda _: None, together=True
            )
            page = report.save(self.folder / which)
            print(f"{report.headline}\nAll six answers: {paths.shown(page)}")
            known = json.loads((page.parent / "doctor.json").read_text("utf-8")) | asked
        return known

    def _answer(self, number: int, which: str) -> dict[str, Any]:
        step, known = 1 if which == "script" else 2, self.kept["examined"].get(which)
        if known is None:
            raise Refused(f"do step {step} first")
        now = _versions() | ({"digest": _digest(known["factory"])} if which == "moved" else {})
        if changed := [name for name, value in now.items() if known.get(name) != value]:
            what = (
                f"the file of {known['factory']}"
                if changed == ["digest"]
                else "PyTorch or this library"
            )
            raise Refused(f"{what} has changed since: repeat step {step}")
        return known["answers"][number - 1]

    def _subject(self, which: str) -> Subject:
        self._answer(1, which)
        factory = self.kept["examined"][which]["factory"]
        forget(factory)
        return made(factory)

    def _verdicts(self) -> dict[str, str]:
        """Return the sentences of the file of results with their verdicts, computed again from its samples."""
        if self.rows[5]["outcome"] != DONE:
            return {}
        answers = [each.answer for each in records.load(self.folder / "results.json")]
        return {str(answer): answer.outcome for answer in answers if answer}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The steps in their order: number, name, outcome, given, on, found."""
        rows = []
        for number, name in enumerate(STEPS, 1):
            kept = {"outcome": OPEN, "given": "", "on": "", "found": [], "files": {}}
            kept |= self.kept["steps"].get(str(number), {})
            if kept["outcome"] == DONE and any(
                _digest(each) != digest for each, digest in kept["files"].items()
            ):
                kept["outcome"] = OLD
            unsure = " without a verdict" * ("no speed-up is given" in "".join(kept["found"][:1]))
            rows.append(
                {
                    "number": number,
                    "name": name,
                    **kept,
                    "words": IN_WORDS[kept["outcome"]] + unsure,
                }
            )
        return rows

    @property
    def unknown(self) -> list[str]:
        """What the report does not know."""
        rows = self.rows
        lines = [
            f"Step {row['number']} ({row['name']}): {row['words']}."
            for row in rows
            if row["words"] != "done"
        ]
        if not self.on_a_mac:
            lines.append(
                "How fast it is on an Apple GPU, and whether it is right there: repeat the steps on a Mac."
            )
        lines += ["Fast mode: the doctor had little time, and no time is compared."] * (
            mode.current() == "fast"
        )
        for each in self.kept["examined"].get("moved", {}).get("answers", ()):
            if (
                each["outcome"] != DONE and each["question"] not in QUESTIONS[1:3]
            ):  # see steps 3 and 6
                lines.append(f"{each['question']} {_first(each)}")
        return lines + rows[2]["found"][1:]

    def _report(self, template: str, page: bool = True) -> str:
        macos = f"macOS {platform.mac_ver()[0]}" if self.on_a_mac else platform.system()
        today = f"{datetime.now(UTC):%Y-%m-%d}, PyTorch {torch.__version__}, Python {platform.python_version()}"
        return rendered(
            template, work=self, cpu=device.cpu().label, versions=f"{today}, {macos}", page=page
        )

    def save(self) -> Path:
        """Write ``report.html`` and ``report.md`` into the folder; return the page."""
        page = self.folder / "report.html"
        paths.write_atomically(page.with_suffix(".md"), self._report("project.md.j2"))
        paths.write_atomically(page, self._report("project.html.j2"))
        return page

    def _repr_html_(self) -> str:
        return self._report("project.html.j2", page=False)


def _assert_finite(subject: Subject, on: Device, what: str) -> None:
    """Refused, with the place of the first NaN, unless outputs and gradients are finite on a device."""
    there = subject.to(on.torch_device)
    bad = [name for name, gradient in there.gradients().items() if not gradient.isfinite().all()]
    computed = tensors_in((there.value(), there.inference()()))
    if bad or not all(each.isfinite().all() for each in computed if each.is_floating_point()):
        found = divergence.find(
            subject.model, subject.named or subject.inputs, subject.loss, on=on, layers=False
        )
        where = found.headline if found.divergent_call else f"in {', '.join(bad) or 'the outputs'}"
        raise Refused(f"with {what} there is NaN or infinity on {on.label}: {where}")


def _first(answer: dict[str, Any]) -> str:
    """The first point of an answer; of the first question what training needs, if there is any, and what was tried."""
    lines = answer["sentence"].splitlines()
    return " ".join(lines[-2:]) if answer["question"] == QUESTIONS[0] else lines[0]


def _predicted(answer: dict[str, Any]) -> str:
    """What the first question found of training, if there is any; all of it if something is in the way."""
    lines = [
        line
        for line in answer["sentence"].splitlines()
        if line.startswith(("Inference:", "Training:"))
    ]
    return lines[-1].partition(": ")[2] if lines and answer["outcome"] == DONE else _first(answer)


@functools.cache
def _versions() -> dict[str, str]:
    """What an answer of the doctor depends on, beside the model: PyTorch, and the code of these packages."""
    files = (
        file
        for package in (doctor, refusals)
        for file in sorted(Path(package.__file__).parents[1].rglob("*.py"))
    )
    code = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    return {"torch": torch.__version__, "library": code}


def _shown(given: Any) -> str:
    """What a step was given: of a function its source, if there is one."""
    with contextlib.suppress(OSError, TypeError):
        return inspect.getsource(given)
    return repr(getattr(given, "__name__", given))


def _pair(given: Any, wanted: str) -> tuple[Any, Any]:
    if not isinstance(given, list | tuple) or len(given) != 2 or None in given:
        raise Refused(wanted)
    return given[0], given[1]


def _plain(name: str) -> str:
    """An operator's name without namespace and overload."""
    return name.strip().removeprefix("aten::").partition(".")[0] or name.strip(". ")


def _digest(factory: str) -> str:
    """A digest of the file of a factory; '' where there is none."""
    try:
        found = find_spec(factory.partition(":")[0])
        return (
            hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()
            if found and found.origin
            else ""
        )
    except (ImportError, ValueError, OSError):
        return ""
