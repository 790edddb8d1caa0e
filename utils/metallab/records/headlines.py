"""What a page says of itself: sentences that its samples support, and a picture beside its file."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from metallab import figure_words, isolated, machine, paths
from metallab.fields import SENTENCE_LIMIT
from metallab.records.format import compare_runs, put
from metallab.records.record import Headline, Record, RecordError
from metallab.timing import Answer

PICTURE_BYTES = 4 * 2**20
"""What a page's picture may have, at most."""

_NUMBER = re.compile(r"(?<![\w.])\d")
"""A number that stands by itself."""

_COMPARES_SPEEDS = re.compile(r"\b(?:fast|slow|quick|speed|times|twice)", re.IGNORECASE)
"""A word that compares speeds, with a number or without one."""

_IS_ABOUT_TIME = re.compile(
    rf"{_COMPARES_SPEEDS.pattern}|\b(?:time|sooner|longer|shorter|latency|throughput|per second)"
    r"|×|/s\b|\d\s?(?:ns|µs|us|ms|s|min|h)\b",
    re.IGNORECASE,
)
"""A word or a unit beside which a number may be a time, a rate or a speed-up."""


def put_picture_beside(path: Path, headline: Headline) -> Headline:
    """Write a headline's picture beside a file of results, and return the headline as the file keeps it.

    A picture that an isolated cell was to draw and did not, for want of a tool, is left out.

    Parameters
    ----------
    path
        The file of results.
    headline
        As a page gives it: its picture may be a figure of matplotlib or a path, and its sentences may be long.

    Raises
    ------
    ValueError
        If it has no sentence or more than three, or its picture is no PNG, is too large or has no words.
    OSError
        If the picture cannot be read or written.
    """
    given: Any = headline.sentences
    if isinstance(given, str) or not 1 <= len(given) <= 3:
        raise ValueError(f"a headline has one to three sentences, not {given!r}")
    sentences = tuple(map(_shorten, given))

    picture: Any = headline.picture
    if picture is None or isinstance(picture, isolated.Skipped):
        return Headline(sentences)

    content, words = _draw(picture, headline.alternative_text)
    if not words or not content.startswith(b"\x89PNG") or len(content) > PICTURE_BYTES:
        most = PICTURE_BYTES // 2**20
        raise ValueError(
            f"a headline's picture is a PNG of at most {most} MiB with words for it: alternative_text="
        )
    file = put(path.with_suffix(".png"), content)
    digest = hashlib.sha256(content).hexdigest()
    return Headline(sentences, file.name, machine.one_line(words), digest)


def _draw(picture: Any, words: str) -> tuple[bytes, str]:
    """Return the bytes of a picture, and words for it: of a figure they are made if none are given."""
    if isinstance(picture, (str, Path)):
        return Path(picture).read_bytes(), words

    words = words or figure_words.describe_figure(picture)
    drawn = io.BytesIO()
    picture.savefig(drawn, format="png")
    return drawn.getvalue(), words


def read_picture(results: Path, headline: Headline) -> bytes:
    """Return the picture that `save` wrote beside a file of results.

    Parameters
    ----------
    results
        The file of results.
    headline
        Its headline, which has a picture.

    Raises
    ------
    RecordError
        If another picture, or none, is there.
    """
    file = results.with_suffix(".png")
    try:
        content = paths.read_regular(file, PICTURE_BYTES)
    except OSError as error:
        raise RecordError(
            f"the picture {file.name} cannot be read ({error.strerror}): run the page again"
        ) from error

    if (file.name, hashlib.sha256(content).hexdigest()) != (headline.picture, headline.sha256):
        raise RecordError(
            f"{file.name} is not the picture that was saved with the results: run the page again"
        )
    return content


def headline_of(records: Sequence[Record]) -> Headline | None:
    """Return the headline that a file's last process saved, with the sentences that its samples support.

    A sentence of the page that tells no time, rate or speed-up is kept: its numbers are counts, sizes or errors, which
    the page has computed and no sample could tell. One that does is kept if the comparisons and the measurements of the
    file give all of it. If none is kept, the first comparison's is taken, or else the first measurement in words.
    """
    last = _find_last(records)
    if last.headline is None:
        return None
    left_out = find_left_out(records)

    kept = tuple(text for text in last.headline.sentences if text not in left_out)
    if not kept:
        kept = (_shorten(_list_given(records)[0]),)
    return replace(last.headline, sentences=kept)


def find_left_out(records: Sequence[Record]) -> tuple[str, ...]:
    """Return the sentences of a page's own headline that `headline_of` leaves out, since no sample gives them."""
    last = _find_last(records)
    if last.headline is None:
        return ()
    given = _list_given(records)
    return tuple(text for text in last.headline.sentences if not _is_supported(text, given))


def headline_is_replaced(records: Sequence[Record]) -> bool:
    """Return True if a page says something of itself, and nothing of it is in the headline that `headline_of` gives."""
    said = _find_last(records).headline
    return said is not None and len(find_left_out(records)) == len(said.sentences)


def _find_last(records: Sequence[Record]) -> Record:
    """Return a record of the last process."""
    return max(records, key=lambda record: record.moment)


def _list_given(records: Sequence[Record]) -> list[str]:
    """Return what comparisons and measurements of the last process give, as a page may have put it in words."""
    last = _find_last(records)
    compared = [text for _, texts in _answers_of_last_process(records) for text in texts]
    measured = [str(each.measurement) for each in records if each.taken == last.taken]
    return [*compared, *measured]


def _is_supported(sentence: str, given: Sequence[str]) -> bool:
    """Return whether a sentence tells no time, rate or speed-up beyond what is given."""
    rest = sentence
    for text in given:
        rest = rest.replace(text, "")

    if _COMPARES_SPEEDS.search(rest):
        return False
    if not _NUMBER.search(rest):
        return True
    # where a number is left that nothing gives, any word about time in the sentence makes it a possible time
    return not _IS_ABOUT_TIME.search(sentence)


def headline_is_withheld(records: Sequence[Record]) -> bool:
    """Return True if a file's headline, as `headline_of` gives it, is that a disturbed machine got no speed-up.

    That outputs differ is a finding, which another run has as well.
    """
    headline = headline_of(records)
    if headline is None:
        return False

    # a sentence of the headline may be cut, and it may hold more than one of these
    lost = [
        _shorten(text).removesuffix("…")
        for answer, texts in _answers_of_last_process(records)
        if answer.withheld and answer.withheld.is_transient
        for text in texts
    ]
    return any(text in sentence for text in lost for sentence in headline.sentences)


def _answers_of_last_process(records: Sequence[Record]) -> list[tuple[Answer, tuple[str, str]]]:
    """Return the speed-ups of the last process, or why there are none, each with two ways in which a page may say it.

    That is with the comparison's name and without it. Records are as `load` returns them: each variant's baseline is
    among them.
    """
    last = _find_last(records)
    runs = {record.name: record for record in records if record.taken == last.taken}

    answers = []
    for run in runs.values():
        compared = run.comparison
        if compared is None or compared.outcome == "baseline":
            continue

        if withheld := run.withheld:
            answer = Answer(compared.variant, withheld)
        else:
            base = runs[f"{run.lesson}/{compared.name}/{compared.baseline}"]
            answer = compare_runs(run, base).answers[compared.variant]
        answers.append((answer, (f"{compared.name}: {answer}", str(answer))))
    return answers


def _shorten(sentence: object) -> str:
    """Return a sentence as one line, cut where it quotes long outputs."""
    line = machine.one_line(str(sentence))
    return line if len(line) <= SENTENCE_LIMIT else f"{line[: SENTENCE_LIMIT - 1]}…"
