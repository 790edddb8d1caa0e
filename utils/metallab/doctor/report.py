"""All answers about a model, as text, as a page and as JSON. This module imports no PyTorch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from metallab import paths
from metallab.doctor import wording
from metallab.doctor.answer import Answer
from metallab.doctor.questions import Question, R
from metallab.doctor.results import ModelSummary, Trouble
from metallab.outcomes import STATUSES, Status

WORST_FIRST: tuple[Status, ...] = ("failed", "skipped", "incomplete", "passed")
SCHEMA = "metallab doctor 2"
"""Of ``doctor.json``; 1 had sentences and no results."""
TEMPLATES = Path(__file__).parent


class OtherSchema(ValueError):
    """A file that another version of this library wrote; the message says what to do."""


@dataclass(frozen=True)
class Report:
    """The answers about a model; fewer than there are questions after an interruption."""

    factory: str
    model: ModelSummary
    answers: tuple[Answer[Any], ...]
    torch: str
    """PyTorch's version."""
    interrupted: bool = False
    date: str = ""
    """When it was made, such as ``2026-11-30 09:15 UTC``; empty where that is not known."""

    @property
    def worst(self) -> Answer[Any]:
        """The worst answer, the first of several; one that another one may explain comes behind that."""
        return min(self.answers, key=_rank)

    @property
    def headline(self) -> str:
        """The worst finding and the first step, in a sentence."""
        return wording.headline(self)

    @property
    def description(self) -> str:
        """The model's class with its size."""
        return wording.model(self.model)

    @property
    def subject(self) -> str:
        """What was asked about, with which PyTorch, and when."""
        told = f"{self.factory}: {self.description}, PyTorch {self.torch}"
        return f"{told}, {self.date}" if self.date else told

    def __getitem__(self, question: Question[R]) -> Answer[R]:
        """Return the answer to a question. KeyError if it was not asked."""
        for answer in self.answers:
            if answer.question.key == question.key:
                return answer
        raise KeyError(question.text)

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``doctor.json`` as plain values.

        Status and headline are those of the worst answer, for people; `from_json` computes them again.
        """
        return {
            "schema": SCHEMA,
            "status": self.worst.status,
            "headline": self.headline,
            "factory": self.factory,
            "description": self.description,
            "model": msgspec.to_builtins(self.model),
            "torch": self.torch,
            "interrupted": self.interrupted,
            "date": self.date,
            "answers": [answer.to_json() for answer in self.answers],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        """Return the report that `to_json` was called of.

        Raises
        ------
        OtherSchema
            If another version of this library wrote it; the message says what to do.
        KeyError, TypeError, ValueError
            If somebody has changed it so that a field is missing, or has another type or a value that there is not.
        """
        schema = data.get("schema", "none") if isinstance(data, Mapping) else "none"
        if schema != SCHEMA:
            raise OtherSchema(
                f"it has the schema {schema!r} and not {SCHEMA!r}: run metallab doctor again"
            )
        answers = tuple(map(Answer.from_json, data["answers"]))
        model = msgspec.convert(data["model"], ModelSummary)
        date = str(data.get("date", ""))  # files of earlier versions have none
        return cls(data["factory"], model, answers, data["torch"], data["interrupted"], date)

    def save(self, out: Path | str) -> Path:
        """Write the page, and beside it the same as JSON; return the page.

        Parameters
        ----------
        out
            A folder, for ``doctor.html`` and ``doctor.json``; or a file, if the name ends in ``.html``.

        Raises
        ------
        OSError
            If the folder takes no files.
        """
        page = name_page(Path(out))
        page.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_json(), indent=1) + "\n"
        page.with_suffix(".json").write_text(text, encoding="utf-8")

        page.write_text(self._html(page=True), encoding="utf-8")
        return page

    def __str__(self) -> str:
        head = [self.headline, self.subject]
        return "\n".join([*head, *(f"{answer.number}. {answer}" for answer in self.answers)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self._html(page=False)

    def _html(self, page: bool) -> str:
        legend = {status: wording.status(status) for status in STATUSES}
        return render("doctor.html.j2", report=self, legend=legend, page=page)


def name_page(out: Path) -> Path:
    """Return the file of the page for what somebody named: a file if it ends in ``.html``, else a folder."""
    return out if out.suffix == ".html" else out / "doctor.html"


def _rank(answer: Answer[Any]) -> tuple[int, bool]:
    """Return how far behind an answer stands."""
    return WORST_FIRST.index(answer.status), answer.trouble is Trouble.UNEXPLAINED


def load_report(file: Path) -> Report:
    """Return the report of a ``doctor.json``.

    Parameters
    ----------
    file
        As `Report.save` has written it.

    Raises
    ------
    OtherSchema
        If another version of this library or another program wrote it; the message names the file, and says what to do.
    OSError
        If the file cannot be read.
    KeyError, TypeError, ValueError
        If it is no JSON, or somebody has changed it so that a field is missing, or has another type or a value that
        there is not.
    """
    try:
        return Report.from_json(json.loads(file.read_text("utf-8")))
    except OtherSchema as error:  # which does not know the file
        raise OtherSchema(f"{file} cannot be read: {error}") from None


def render(template: str, *, folder: Path = TEMPLATES, **values: Any) -> str:
    """Fill in a template, and return the page or text.

    Parameters
    ----------
    template
        The file's name; values are escaped if it is one of HTML.
    folder
        Where it lies; it may include those of this package, and the palette.
    values
        What stands for the names in the template.

    Raises
    ------
    jinja2.UndefinedError
        If the template has a name that is not among the values, which would else be an empty text.
    jinja2.TemplateNotFound
        If there is no such file.
    ModuleNotFoundError
        If Jinja is not installed.
    """
    # PyTorch brings it, so it may be missing where only reports are read
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, TEMPLATES, paths.PALETTE.parent]),
        autoescape=".html" in template,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(template).render(**values)
