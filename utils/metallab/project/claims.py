"""Which sentence of a reader is supported by results: its numbers, its words about speed, its words about Macs.

The only text that is read here is the reader's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from metallab.outcomes import Verdict

SPEED = re.compile(
    r"\b(?:fast|slow|quick|speed|sooner|times|twice|halv|outperform)\w*|\bhalf (?:of )?the time\b"
    r"|\d\s*(?:ns|µs|us|ms|s|sec\w*|min\w*)\b",
    re.IGNORECASE,
)
NEGATED = re.compile(r"\b(?:no|not|nothing|never|whether)\b[^,;.]*", re.IGNORECASE)
NUMBER = re.compile(r"(?<![\w.])\d+(?:[.,]\d+)*(?:e[-+]?\d+)?")
MAC = re.compile(r"\b(?:i?macs?|macbook\w*|macos|apple\w*|mps|m[1-9])\b", re.IGNORECASE)
NOT_A_MAC = re.compile("simulated|tables|no Mac")


def find_speed_word(text: str) -> str:
    """Return the first word about speed; empty if there is none."""
    found = SPEED.search(text)
    return found[0] if found else ""


def find_unknown_number(text: str, shown: str) -> str:
    """Return a number of a text that is not in what was shown; empty if there is none."""
    known = set(NUMBER.findall(shown))
    return next((number for number in NUMBER.findall(text) if number not in known), "")


def find_unsupported_speed_word(text: str, verdicts: Mapping[str, Verdict]) -> str:
    """Return the first word about speed in a text that no verdict supports; empty if there is none.

    A word such as *slower* needs the verdict ``slower``, and any other ``faster``, a time in seconds too. What is
    negated, up to the next comma or stop, claims nothing.

    Parameters
    ----------
    text
        What the reader wrote.
    verdicts
        By the sentences that state them, which the reader may quote: words in a quotation are supported.
    """
    for sentence in verdicts:
        text = text.replace(sentence, "")

    for match in SPEED.finditer(NEGATED.sub("", text)):
        word = match[0]
        needed = "slower" if word.lower().startswith("slow") else "faster"
        if needed not in verdicts.values():
            return word
    return ""


def is_about_a_mac(text: str) -> bool:
    """Return True if a text says something of a Mac, and not that none was asked."""
    return bool(MAC.search(text)) and not NOT_A_MAC.search(text)
