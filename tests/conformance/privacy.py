"""Nothing personal leaves the machine: names of the person, of the machine and of folders are taken out of a report."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from metallab import machine, paths

# What macOS calls a user's own temporary folder names the user by a number.
_TEMPORARY = re.compile(r"(?:/private)?/var/folders/[\w+]+/[\w+]+")


@dataclass(frozen=True)
class Scrubber:
    """Replaces what is personal in text."""

    folders: tuple[tuple[str, str], ...]
    """A folder and the word for it, the longest folder first."""
    names: tuple[tuple[str, str], ...]
    """A name and the word for it."""

    def text(self, text: str) -> str:
        """The text without folders and names of this machine and its user."""
        for folder, word in self.folders:
            text = re.sub(rf"{re.escape(folder)}(?![\w-]|\.\w)", word, text)
        text = _TEMPORARY.sub("(temporary)", machine.without_home(text))
        for name, word in self.names:
            text = re.sub(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", word, text, flags=re.IGNORECASE)
        return text

    def value(self, value: Any) -> Any:
        """The same for everything inside of lists and dictionaries."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value


def scrubber(work: str) -> Scrubber:
    """What is personal here: ``work`` is the folder of this run."""
    folders = {work: "(work)", str(paths.ROOT): "(checkout)", sys.prefix: "(environment)", sys.base_prefix: "(Python)"}
    for folder, word in list(folders.items()):
        folders.setdefault(os.path.realpath(folder), word)
    usual = {"/", "/usr", "/usr/local", "/opt", "/opt/homebrew"}  # where many have it: says nothing of a person
    longest_first = sorted(((f, w) for f, w in folders.items() if f not in usual), key=lambda pair: -len(pair[0]))
    names = dict.fromkeys(machine.user_names(), "(user)") | dict.fromkeys(_host_names(), "(host)")
    return Scrubber(tuple(longest_first), tuple(sorted(names.items(), key=lambda pair: -len(pair[0]))))


def _host_names() -> Iterable[str]:
    names = {socket.gethostname(), platform.node()}
    if sys.platform == "darwin":
        names |= {_told("scutil", "--get", kind) for kind in ("ComputerName", "LocalHostName", "HostName")}
    names |= {name.partition(".")[0] for name in names}
    return names - {"", "localhost"}


def _told(*command: str) -> str:
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    return asked.stdout.strip() if asked.returncode == 0 else ""
