"""The course: its parts and paths, and what each page says of itself.

A page describes itself once, in ``metadata.metallab.course`` of its notebook. README's tables, the teacher's table, the
paths, the lines *You need* and *Next* of the pages, the gallery and the page of contents are made from that
(``make course``), and tests hold them equal to it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metallab import paths


@dataclass(frozen=True)
class Part:
    """Pages that belong together: their numbers have the same first digit."""

    digit: str
    title: str
    about: str
    """What one can do after it: a sentence."""


PARTS = (
    Part("0", "Start", "Know your machine, and time a call right."),
    Part(
        "1",
        "Your model on the GPU",
        "Move a model, check it, find what is wrong or slow in it, and train it in 16 bits.",
    ),
    Part("2", "Kernels", "Write a Metal kernel, call it from PyTorch, and make it an operator."),
    Part("3", "Language models", "Run one, shrink it, and adapt it to a text of your own."),
    Part(
        "4",
        "Shipping",
        "Load a model sooner, compile it for Apple's chips, and quantise it to 8 bits.",
    ),
    Part("5", "Other frameworks", "The same work in MLX, JAX and Keras."),
    Part(
        "6",
        "Case studies",
        "Whole applications: a detector, filters of pictures, a comparison of machines.",
    ),
    Part("9", "Your own project", "From a script of yours to a measured program for the Mac."),
)


@dataclass(frozen=True)
class Route:
    """A way through the pages for somebody who does not take all of them."""

    name: str
    """By which pages say that they are on it."""
    title: str
    about: str
    """For whom it is, or what one has at its end: a sentence or two."""


ROUTES = (
    Route(
        "half a day",
        "Half a day",
        "A morning with a class: [the plan, on five sheets](half_day.md), says which sections.",
    ),
    Route(
        "two days",
        "Two days",
        "First your model on the GPU; on the second day kernels in the morning and language models in the afternoon. "
        "Page 90 is the homework.",
    ),
    Route(
        "slow",
        "It is slow",
        "Time it, find the operators that take the time, then make them cheaper.",
    ),
    Route(
        "memory", "It is out of memory", "What a step and a text take, and what makes them smaller."
    ),
    Route(
        "wrong", "It is wrong", "Which layer, which operator, which format computes something else."
    ),
    Route(
        "ship",
        "I want to ship it",
        "From a trained network to a program that starts quickly on other Macs.",
    ),
    Route(
        "framework", "I use another framework", "MLX, JAX, or Keras on TensorFlow and on PyTorch."
    ),
    Route(
        "kernel",
        "I want to write a kernel",
        "From the first thread to an operator with a gradient.",
    ),
)
TALK = Route(
    "talk",
    "In the order of the talk",
    'For a teacher who shows Apple\'s "Optimize machine learning for Metal apps" (WWDC23, session 10050) first. '
    "[From the talk to the page](talks.md) lists its subjects one by one.",
)


SUBJECTS = (
    "1 the MPS backend: device, copies, views, memory",
    "2 the talks' operators and the community's",
    "2b networks that adopted MPS",
    "3 profiler, log of operators, and a portable trace",
    "4 the Softshrink network that falls back",
    "5 a custom operator in four steps",
    "6 automatic mixed precision",
    "7 events and allocator",
    "8 times of whole networks, between machines",
    "9 TensorFlow's remapper",
    "10 TensorFlow's mixed precision policy",
    "11 plain pip install of TensorFlow and plug-in",
    "12 JAX: grad, higher derivatives, vmap, jit",
    "13 YOLOv5 live, CPU beside MPS",
    "14 MPSGraph: build, compile, executable",
    "15 MPSGraphPackage: store once, load fast",
    "16 Core ML or ONNX to MPSGraphPackage",
    "17 GPU and Neural Engine; Core ML and ONNX",
    "18 int8",
    "19 complex numbers, FFT up to four dimensions, filters",
    "20 conv3d, grid sampling, sort, cumulative",
    "21 the layer that is wrong",
    "22 MLX beside PyTorch and JAX",
    "23 a small language model",
    "24 Core AI: convert, refusals, state, small weights",
    "25 Metal puzzles, graded without a Mac",
    "26 a project of one's own",
)
"""The subjects that must not get lost when pages are rewritten or merged. Each is shown by a cell of at least one page.

A page names under ``subjects`` those that it shows, with the ids of the cells that show them, and ``make test`` looks
whether these cells ran. Most pages teach more than that, and a page may show none of them: then ``subjects`` is ``{}``.
A subject joins this list, at its end, if the course is to show it whatever becomes of the page.
"""

RETIRED = {"19": "is part of 13 and 64"}
"""Numbers of pages that there were once, with what became of each. People quote them, so no new page takes one.

A page that is merged into another one leaves its number here.
"""


@dataclass(frozen=True)
class Page:
    """What a page says of itself."""

    name: str
    """The notebook's, without its ending: ``01_time_it_right``."""
    title: str
    """Its heading."""
    question: str
    """The one question that it answers, as Markdown."""
    minutes: int
    """In a room, with the exercises and without what is *Deeper*: a plan. README and the plans of a day show it."""
    exercises: int
    """Of these, the minutes for the exercises."""
    after: tuple[str, ...]
    """Numbers of the pages whose ideas it takes for granted."""
    without_a_mac: str
    """What of it is real, simulated or stored on a machine without an Apple GPU."""
    subjects: dict[str, str]
    """What it shows of the course's `SUBJECTS`, perhaps nothing: ids of cells, with spaces between, by the subject."""
    routes: tuple[str, ...]
    """Names of the `ROUTES` that it is on."""
    talk: int | None
    """Its place in the order of the talk; None if the talk does not speak of it."""
    merge: str | None
    """What it is to be merged into: the number of that page, which need not be there yet. Its own then is `RETIRED`."""

    @property
    def number(self) -> str:
        """Such as ``23``: the digit of its part, and its place there."""
        return self.name.partition("_")[0]

    @property
    def file(self) -> str:
        """The notebook's name."""
        return f"{self.name}.ipynb"

    @property
    def short_title(self) -> str:
        """Its heading up to a colon."""
        return self.title.partition(":")[0]


class CourseError(ValueError):
    """What a page says of itself is missing or not as it should be; the message says what to change."""


def read(folder: Path | None = None) -> list[Page]:
    """Return the pages in the order of their numbers.

    Parameters
    ----------
    folder
        Where the notebooks lie; by default those of the checkout.

    Raises
    ------
    CourseError
        A notebook does not describe itself, or names something that there is not.
    """
    folder = paths.NOTEBOOKS if folder is None else folder
    pages = [read_page(path) for path in sorted(folder.glob("[0-9]*.ipynb"))]
    _check(pages)
    return pages


def read_page(path: Path) -> Page:
    """Return what a notebook says of itself in its metadata. CourseError if something of it is missing.

    Whether the numbers, paths and subjects that it names exist is asked of all pages together, in `read`.
    """
    notebook = json.loads(path.read_text(encoding="utf-8"))
    told: dict[str, Any] = notebook["metadata"].get("metallab", {}).get("course", {})

    try:
        return Page(
            name=path.stem,
            title=_read_heading(notebook),
            question=told["question"],
            minutes=told["minutes"],
            exercises=told["exercises"],
            after=tuple(told["after"]),
            without_a_mac=told["without_a_mac"],
            subjects=dict(told.get("subjects", {})),
            routes=tuple(told.get("routes", ())),
            talk=told.get("talk"),
            merge=told.get("merge"),
        )
    except KeyError as missing:
        raise CourseError(
            f"{path.name}: metadata.metallab.course has no {missing}; it wants question, minutes, exercises, after and "
            "without_a_mac, and may have subjects, routes, talk and merge"
        ) from None


def _read_heading(notebook: dict[str, Any]) -> str:
    """Return the first line of a notebook, without its #."""
    first = notebook["cells"][0]["source"]
    text = first if isinstance(first, str) else "".join(first)
    return text.partition("\n")[0].lstrip("# ")


def _check(pages: Sequence[Page]) -> None:
    """Raise CourseError where pages do not fit together."""
    leading = {page.number for page in pages if page.merge is None}
    for page in pages:
        _check_page(page)
        _check_order(page, leading)


def _check_page(page: Page) -> None:
    """Raise CourseError where a page's number, paths, subjects or minutes cannot be."""
    digits = {part.digit for part in PARTS}
    if len(page.number) != 2 or page.number[0] not in digits:
        raise CourseError(
            f"{page.file}: a number is two digits, the first that of a part: {sorted(digits)}"
        )
    if page.number in RETIRED:
        raise CourseError(
            f"{page.file}: {describe_retired(page.number)}; give the page another number"
        )

    names = {route.name for route in ROUTES}
    if unknown := set(page.routes) - names:
        raise CourseError(f"{page.file} is on {sorted(unknown)}: routes are {sorted(names)}")

    if unknown := page.subjects.keys() - set(SUBJECTS):
        raise CourseError(
            f"{page.file} shows {sorted(unknown)}, and SUBJECTS in metallab/authoring/course.py has no such subject: "
            "take a name from there, or add this one to it"
        )

    if not 0 <= page.exercises <= page.minutes:
        raise CourseError(f"{page.file}: exercises are a part of the minutes")


def describe_retired(number: str) -> str:
    """Return the sentence that says why a number of `RETIRED` cannot be taken."""
    return f"number {number} was that of a page that {RETIRED[number]}, and readers quote it"


def _check_order(page: Page, leading: set[str]) -> None:
    """Raise CourseError where a page comes after one that it cannot come after."""
    for number in page.after:
        if number not in leading or number >= page.number:
            raise CourseError(
                f"{page.file} comes after {number}: name a page that is there, has a smaller number, and is not to "
                "be merged into another"
            )


def group(pages: Sequence[Page]) -> list[tuple[Part, list[Page]]]:
    """Return the parts that have pages, each with its pages."""
    members: dict[str, list[Page]] = {}
    for page in pages:
        members.setdefault(page.number[0], []).append(page)
    return [(part, members[part.digit]) for part in PARTS if part.digit in members]


def find_on_route(pages: Sequence[Page], route: Route) -> list[Page]:
    """Return the pages of a route, in the order in which one takes them."""
    if route is TALK:
        return sorted(
            (page for page in pages if page.talk is not None), key=lambda page: page.talk or 0
        )
    return [page for page in pages if route.name in page.routes]


def collect_subjects(pages: Sequence[Page]) -> dict[str, dict[str, str]]:
    """Return what shows each of the `SUBJECTS`: ids of cells, with spaces between, by the page's number."""
    shown: dict[str, dict[str, str]] = {subject: {} for subject in SUBJECTS}
    for page in pages:
        for subject, cells in page.subjects.items():
            shown[subject][page.number] = cells
    return shown
