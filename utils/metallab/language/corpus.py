"""The text of notebooks 30 and 31: Python's own help on its language, as one version of Python has it.

``pydoc_data.topics`` is what ``help("if")`` shows: English prose and grammar, under the licence of the Python Software
Foundation. It differs from version to version, so one is kept: ``data/text/write_topics.py`` wrote it.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

DATA = Path(__file__).with_name("data")
"""The folder of what comes with this package: weights and texts, with a README and the licence of the one text."""

FILE = DATA / "python_3_11_topics.json.xz"
"""The text: a JSON object from topic to text, compressed."""

RECIPES = DATA / "recipes.txt"
"""26 recipes with an empty line between them, written for this project."""

REMEDY = "install metallab again, or fetch it in a checkout, `git checkout -- utils/metallab/language/data`"
"""What to do where one of these files is missing or damaged."""

SHA256 = "4717ccc51e2e7bd1eed2feddb0bcb5a7da19a1a923fd2f258cf81e4285e31683"
"""The checksum of what is in it, decompressed."""

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
"""The vocabulary: a line's end and the 95 characters of ASCII that print. A token is an index into it."""

_ASCII = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "–": "-", "—": "--", "…": "..."})
_TESTED, _TUNED = 0.10, 0.05
"""Shares of the topics' characters that are held out to judge by, and to choose the moment to stop by."""


@dataclass(frozen=True)
class Corpus:
    """The text in three parts, split by whole topics. No paragraph is in it twice."""

    training: str
    validation: str
    """What training looks at to know when to stop."""
    test: str
    """What nothing but the final score looks at."""


def load(path: str | Path = FILE, sha256: str | None = SHA256) -> Corpus:
    """Load the text in its parts.

    Half of the topics repeat paragraphs of others: each stays where it stands first, in the order test, validation,
    training, so that the network cannot have learned a test paragraph by heart. Whole topics are held out, in the order
    of their names' SHA-256, which has nothing to do with what they say.

    Parameters
    ----------
    path
        The text, as ``data/text/write_topics.py`` writes it.
    sha256
        The checksum of what is in it, decompressed; None leaves the check out.

    Raises
    ------
    ValueError
        If the file is missing, damaged or another one.
    """
    topics = _read_topics(Path(path), sha256)
    names = sorted(topics, key=lambda name: hashlib.sha256(name.encode()).digest())
    total = sum(map(len, topics.values()))

    test, names = _hold_out(topics, names, _TESTED * total)
    validation, names = _hold_out(topics, names, _TUNED * total)

    # paragraphs that stand in a part already. The order of the lines below decides which part keeps one.
    seen: set[str] = set()
    return Corpus(
        test=_join([topics[name] for name in test], seen),
        validation=_join([topics[name] for name in validation], seen),
        training=_join([topics[name] for name in names], seen),
    )


def _read_topics(path: Path, sha256: str | None) -> dict[str, str]:
    """Return the text of each topic; ValueError if the file is missing, damaged or another one."""
    try:
        raw = lzma.decompress(path.read_bytes())
    except (OSError, lzma.LZMAError) as error:
        raise ValueError(f"{path} cannot be read ({error}): {REMEDY}") from error

    actual = hashlib.sha256(raw).hexdigest()
    if sha256 is not None and actual != sha256:
        raise ValueError(f"the text in {path} has sha256 {actual} instead of {sha256}: {REMEDY}")
    topics: dict[str, str] = json.loads(raw)
    return topics


def _hold_out(
    topics: dict[str, str], names: list[str], limit: float
) -> tuple[list[str], list[str]]:
    """Return the first names whose texts have no more characters than a limit together, and the other names.

    A topic that is too long is passed over, and shorter ones behind it may still fit.
    """
    held_out: list[str] = []
    left: list[str] = []
    size = 0
    for name in names:
        if size + len(topics[name]) > limit:
            left.append(name)
            continue
        held_out.append(name)
        size += len(topics[name])
    return held_out, left


def _join(texts: list[str], seen: set[str]) -> str:
    """Return topics in ASCII, one after the other, without the paragraphs in ``seen``, to which theirs are added.

    Two paragraphs are the same if their words are, whatever space is between them.
    """
    kept = []
    for text in texts:
        for paragraph in _to_ascii(text).split("\n\n"):
            words = " ".join(paragraph.split())
            if words and words not in seen:
                seen.add(words)
                kept.append(paragraph.strip("\n"))
    return "\n\n".join(kept)


def _to_ascii(text: str) -> str:
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")


def encode(text: str) -> Tensor:
    """Return a text's tokens, int64 (characters,). ValueError for a character that is not in `CHARACTERS`."""
    try:
        return torch.tensor([_INDEX[character] for character in text], dtype=torch.int64)
    except KeyError as error:
        raise ValueError(
            f"{error} is not in the vocabulary: write with letters of ASCII and line ends"
        ) from None


def decode(tokens: Tensor) -> str:
    """Return the text of tokens, whole numbers of shape (n,)."""
    return "".join(CHARACTERS[index] for index in tokens.tolist())


_INDEX = {character: index for index, character in enumerate(CHARACTERS)}
