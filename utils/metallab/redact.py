"""Text for others: without the folders, the user and the host of this machine.

`scrub` replaces them, `find_private` lists what is left. Files that are shared (results, executed pages, reports of
claims) go through these two.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import platform
import pwd
import re
import subprocess

_BEGIN = r"(?<![\w.:/~<}$-])"  # before a path that begins at the root: no letter, nothing of an address or another path
_FOLDERS = rf"{_BEGIN}(?:/[^\s/:\"'<>]+)+?/"
_REPLACED = {
    rf"{_BEGIN}(?:/[^\s/:\"'<>]+)*/ipykernel_\d+/\d+\.py": "cell",
    rf"{_FOLDERS}(?:site|dist)-packages/": ".venv/",
    rf"{_FOLDERS}(?=(?:\.venv[\w-]*|build|utils|metalsim|notebooks|data|tests)/)": "",  # of a checkout
    r"(?:/private)?/var/folders/[\w+]+/[\w+]+": "(temporary)",
}
_HOMES = r"/(?:Users|home)/[^/:;,\s\"']+(?:(?:\s[\w.\\-]*\w\\?){1,3}(?=/))?"  # a name with spaces, if a folder follows
_SYSTEM = {
    "usr",
    "bin",
    "lib",
    "lib64",
    "etc",
    "dev",
    "proc",
    "sys",
    "System",
    "Library",
    "Applications",
}
_OWN = {
    "home",
    "Users",
    "root",
    "tmp",
    "private",
    "var",
    "opt",
    "mnt",
    "media",
    "srv",
    "run",
    "work",
    "Volumes",
}
_COMMON = {"root", "user", "users", "runner", "localhost", "me"}


def scrub(text: str) -> str:
    """Replace paths (by ``build/...``, ``.venv/...``, ``~``), names by ``(user)`` and ``(host)``."""
    text = shorten_paths(text)
    for name, word in find_names().items():
        text = re.sub(_whole(name), word, text, flags=re.IGNORECASE)
    return text


def find_private(text: str) -> list[str]:
    """Return the paths from the root that not every system has, and the names of this machine and its user."""
    own = _OWN | (set(os.listdir("/")) - _SYSTEM)
    paths = [
        match[0]
        for match in re.finditer(rf"{_BEGIN}/([\w.@+-]+)/[\w.@+-]+", text)
        if match[1] in own
    ]
    return paths + [name for name in find_names() if re.search(_whole(name), text)]


def shorten_paths(text: str) -> str:
    """Write paths from the checkout (``build/...``, ``.venv/...``) or from the home folder (``~``) on."""
    for pattern, word in _REPLACED.items():
        text = re.sub(pattern, word, text)
    return shorten_home(text)


def shorten_home(text: str) -> str:
    """Write each home folder as ``~``."""
    for home in {os.path.expanduser("~"), os.path.realpath(os.path.expanduser("~"))} - {"/"}:
        text = re.sub(rf"(?<![\w.-]){re.escape(home)}(?![\w.-])", "~", text)
    return re.sub(_HOMES, "~", text)


@functools.cache
def find_names() -> dict[str, str]:
    """Return the names of the user and of this machine, the longest first, with the word that stands for each.

    Names of two letters and words such as ``root`` are left out: they cannot be told from other text.
    """
    words = dict.fromkeys(_find_user_names(), "(user)")
    hosts = {platform.node()}
    # a program of macOS, or a folder of PATH that this account cannot enter
    with contextlib.suppress(OSError):
        for kind in ("ComputerName", "LocalHostName"):
            asked = subprocess.run(
                ["scutil", "--get", kind], capture_output=True, text=True, check=False
            )
            hosts.add(asked.stdout.strip())

    words |= dict.fromkeys(hosts | {host.partition(".")[0] for host in hosts}, "(host)")
    kept = [name for name in words if len(name) > 2 and name.lower() not in _COMMON]
    return {name: words[name] for name in sorted(kept, key=len, reverse=True)}


def _find_user_names() -> frozenset[str]:
    """Return the account's name, and the person's if the system knows it."""
    found: set[str] = set()
    # an account that is a bare number, as in some containers
    with contextlib.suppress(KeyError, OSError):
        found.add(getpass.getuser())
        entry = pwd.getpwuid(os.getuid())
        found |= {entry.pw_name, entry.pw_gecos.split(",")[0].strip()}
    return frozenset(found - {""})


def _whole(name: str) -> str:
    """Return a pattern for a name that is not a part of another word."""
    return rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])"
