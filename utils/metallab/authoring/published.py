"""Where strangers find this project: one address, in ``pyproject.toml``, from which all others follow.

``[tool.metal-lab] repository`` is that address. As long as it is empty nobody can be led to a copy on the web, so
README, the guides and the book lead to what lies in the checkout instead; `make course` writes both.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from metallab import paths

PYPROJECT = paths.ROOT / "pyproject.toml"
BRANCH = "main"
"""Of the pages and documents."""
TRY_BRANCH = "try"
"""Of the pages that install themselves, which a release makes (``tools/try_pages.py``)."""
FIRST_TO_TRY = "20_solve_metal_puzzles.ipynb"
"""The page that README's link *Try it* opens: it needs no Mac, no data and no other page."""
HOST = "github.com"
"""Whose repositories Colab and Codespaces open, and where this project's workflow publishes the book."""


class BadAddress(ValueError):
    """The address in ``pyproject.toml`` is none; the message says what it has to look like."""


@dataclass(frozen=True)
class Addresses:
    """The addresses that follow from that of the repository."""

    repository: str
    """Such as ``https://github.com/owner/metal-lab``."""

    @property
    def is_on_host(self) -> bool:
        """Whether Colab, Codespaces and the book's workflow know this repository."""
        return urlsplit(self.repository).hostname == HOST

    @property
    def name(self) -> str:
        """Owner and name, such as ``owner/metal-lab``."""
        return urlsplit(self.repository).path.strip("/")

    @property
    def book(self) -> str | None:
        """Of the book's first page; None where no workflow publishes it."""
        if not self.is_on_host:
            return None
        owner, _, project = self.name.partition("/")
        return f"https://{owner.lower()}.github.io/{project}/"

    @property
    def codespaces(self) -> str | None:
        """Opens the repository in an editor in a browser; None on another host."""
        return f"https://codespaces.new/{self.name}" if self.is_on_host else None

    def colab(self, page: str) -> str | None:
        """Return what opens a page that installs itself in Colab, by the page's file name; None on another host."""
        if not self.is_on_host:
            return None
        return f"https://colab.research.google.com/github/{self.name}/blob/{TRY_BRANCH}/{page}"

    def file(self, path: str) -> str:
        """Return where a file of the checkout is shown, by its path from the root."""
        return f"{self.repository}/blob/{BRANCH}/{path}"

    def downloads(self, version: str) -> str:
        """Return the folder that holds the wheels of a release."""
        return f"{self.repository}/releases/download/v{version}"


def find_addresses(
    pyproject: Path = PYPROJECT, environment: Mapping[str, str] = os.environ
) -> Addresses | None:
    """Return the project's addresses, or None while it has none.

    Parameters
    ----------
    pyproject : Path
        The file that holds the address. Empty there, that of the host counts whose workflow is running.
    environment : mapping of str to str
        What such a workflow says: ``GITHUB_SERVER_URL`` and ``GITHUB_REPOSITORY``.

    Returns
    -------
    Addresses or None
        None as well where metallab was installed alone, without the file.

    Raises
    ------
    BadAddress
        What is there is no address of a repository.
    """
    given = ""
    if pyproject.is_file():
        tables = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("tool", {})
        given = tables.get("metal-lab", {}).get("repository", "")
    if not given:
        server, name = environment.get("GITHUB_SERVER_URL"), environment.get("GITHUB_REPOSITORY")
        return Addresses(f"{server}/{name}") if server and name else None

    parts = urlsplit(given)
    if parts.scheme != "https" or not parts.hostname or parts.path.count("/") < 2:
        raise BadAddress(
            f"pyproject.toml, tool.metal-lab: {given!r} is no address of a repository, such as "
            "https://github.com/owner/metal-lab"
        )
    return Addresses(given.rstrip("/").removesuffix(".git"))


# ---- what README says ------------------------------------------------------------------------------------------------


def describe_entrances(addresses: Addresses | None, pages: int) -> str:
    """Return README's table of three entrances, and the two lines to paste, as Markdown.

    Parameters
    ----------
    addresses : Addresses or None
        Without them the entrances lead to what lies in the checkout.
    pages : int
        How many there are.
    """
    cells = [
        _describe_reading(addresses),
        _describe_trying(addresses),
        f"All {pages} pages on your machine, by the two lines below: 1 GB to download on a Mac, 4 GB on Linux. "
        "(Page 42 wants `make setup COREAI=1` before.)",
    ]
    table = ["| Read it now | Try it | Run it |", "|---|---|---|", f"| {' | '.join(cells)} |"]

    lines = describe_lines_to_paste(addresses)
    if addresses is None:
        lines = [
            "Type `ADDRESS=` and the address that this page shows under *Code*; then paste:",
            "",
            *lines,
        ]
    return "\n".join([*table, "", *lines])


def describe_lines_to_paste(addresses: Addresses | None) -> list[str]:
    """Return the two lines that set the project up, as a block of code.

    No comment stands in them: a Mac's shell, zsh, takes one that is typed for words of the command.
    """
    if addresses is None:
        # an empty address stops the line with what to do, and git is not asked for nothing
        clone = (
            'git clone "${ADDRESS:?is what this page shows under Code}" metal-lab && cd metal-lab'
        )
    else:
        clone = f"git clone {addresses.repository} metal-lab && cd metal-lab"
    return ["```sh", clone, "make lab", "```"]


def _describe_reading(addresses: Addresses | None) -> str:
    here = (
        "a click on a page's title [in the list of pages](#pages) opens it as it ran, with its pictures; "
        "[the gallery](docs/gallery.md) shows most of them at a glance"
    )
    if addresses is None or addresses.book is None:
        return f"{here[0].upper()}{here[1:]}."
    return f"[The book]({addresses.book}), also on a phone; or {here}."


def _describe_trying(addresses: Addresses | None) -> str:
    if addresses is None or not addresses.is_on_host:
        return (
            "Install two small packages, from a checkout, into [a Python of your own](docs/try_it.md) that has "
            "PyTorch; then [any of six pages](docs/try_it.md#which-pages) runs. "
            "In a browser: [Codespaces](docs/try_it.md#in-a-browser), not tried; Colab: not yet."
        )
    return (
        f"[The puzzles in Colab]({addresses.colab(FIRST_TO_TRY)}), everything in "
        f"[Codespaces]({addresses.codespaces}), or two small packages, from a checkout, in "
        "[a Python of your own](docs/try_it.md) that has PyTorch."
    )
