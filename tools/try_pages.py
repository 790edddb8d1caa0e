"""Make pages that install themselves into a stranger's Python: ``python tools/try_pages.py``, a step of a release.

A folder, ``build/try``, gets both wheels and a few pages. Each page is a student copy with one cell more, the first
one: it installs the two wheels and the extra ``pages``, by address and sha256, and nothing of the lock. PyTorch and
Jupyter are the reader's. Where the project has an address (``[tool.metal-lab]`` in ``pyproject.toml``), the wheels are
those of its release and the pages open in Colab; else they are the files in this folder.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import nbformat

from metallab import paths
from metallab.authoring import documents, published, workshop

PAGES = (
    "01_time_it_right",
    "11_check_your_model",
    "20_solve_metal_puzzles",
    "21_share_threadgroup_memory",
    "22_use_simd_groups",
    "23_launch_a_kernel_from_pytorch",
)
"""Pages that need PyTorch and no other framework, no file of the checkout, and no Mac."""

EXTRAS = {"metal-lab": "pages", "metalsim": "shaders"}
"""The two distributions, and the extra that pages want of each."""

SOURCES = {"metal-lab": ".", "metalsim": "metalsim"}
"""Their folders in the checkout."""

INSTALLS = "install"
"""The id of the first cell."""

FOLDER = paths.BUILD / "try"

_ABOUT = """\
**This copy installs itself.** The next cell brings the two packages of Metal Lab, and what its pages draw and compute
with, into the Python that runs this page. It takes a minute. PyTorch has to be there already: 2.11 or newer, on Python
3.11, 3.12 or 3.13. On Linux a simulated Apple GPU is then built with `g++` at its first use: another minute."""

_CELL = """\
# Fetched by address, and refused by pip if its sha256 is another one. What is here already stays as it is.
%pip install --quiet \\
{requirements}"""


def build_wheels(folder: Path) -> dict[str, Path]:
    """Build both wheels into a folder and return them by the names of their distributions.

    They are built of a copy, since building leaves files beside the sources, and of files with one date, so that the
    same sources give the same sha256 again. `subprocess.CalledProcessError` if one cannot be built; pip says why.
    """
    with tempfile.TemporaryDirectory(prefix="metallab-try-") as work:
        checkout = _copy_sources(Path(work))
        sources = [str(checkout / place) for place in SOURCES.values()]
        # with the setuptools of this environment, and without a network
        options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
        command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(folder)]
        # the date that files in a wheel get: the beginning of 2020
        subprocess.run(
            [*command, *sources], check=True, env=os.environ | {"SOURCE_DATE_EPOCH": "1577836800"}
        )

    version = read_version()
    return {
        name: folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl" for name in SOURCES
    }


def _copy_sources(folder: Path) -> Path:
    """Copy what the wheels are built of, and return the folder."""
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(paths.ROOT / name, folder)
    made_by_python = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for name in ("utils", "metalsim"):
        shutil.copytree(paths.ROOT / name, folder / name, ignore=made_by_python)
    return folder


def read_version() -> str:
    """Return the version of the project."""
    text = (paths.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["project"]["version"]


def write_cell(wheels: Mapping[str, Path], address: str) -> str:
    """Return the source of the cell that installs wheels, each by its address and the sha256 of the file.

    Parameters
    ----------
    wheels : mapping of str to Path
        The files, by the names of their distributions.
    address : str
        Of the folder that strangers fetch them from.
    """
    requirements = []
    for name, wheel in wheels.items():
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        where = f"{address.rstrip('/')}/{wheel.name}#sha256={digest}"
        requirements.append(f'  "{name}[{EXTRAS[name]}] @ {where}"')
    return _CELL.format(requirements=" \\\n".join(requirements))


def make_page(
    notebook: nbformat.NotebookNode,
    name: str,
    cell: str,
    addresses: published.Addresses | None,
) -> nbformat.NotebookNode:
    """Return a page that installs itself.

    Parameters
    ----------
    notebook : NotebookNode
        The page; its cells stay as they are, but for the targets of links.
    name : str
        Its file name, such as ``20_solve_metal_puzzles.ipynb``.
    cell : str
        The source of the cell that installs, as `write_cell` returns it.
    addresses : Addresses or None
        Where links lead; without it their words remain, as nothing lies beside the page.
    """

    def lead(link: documents.Link) -> str | None:
        target, fragment = documents.resolve(f"notebooks/{name}", link.target)
        if target is None:
            return link.target
        if addresses is None:
            return None
        return addresses.file(target) + fragment

    page = nbformat.from_dict(notebook)
    for each in page.cells:
        if each.cell_type == "markdown":
            each.source = documents.relink(each.source, lead)

    title, *others = page.cells
    page.cells = [
        title,
        nbformat.v4.new_markdown_cell(_ABOUT, id=f"{INSTALLS}-md"),
        nbformat.v4.new_code_cell(cell, id=INSTALLS),
        *others,
    ]
    return page


def make(
    folder: Path,
    address: str | None = None,
    addresses: published.Addresses | None = None,
    *,
    is_solved: bool = False,
) -> list[Path]:
    """Write the wheels and the pages into a folder, in place of what is there, and return the pages.

    Parameters
    ----------
    folder : Path
        It is made if it is not there.
    address : str, optional
        Of the folder that strangers fetch the wheels from; by default that of the release, or of ``folder`` itself.
    addresses : Addresses, optional
        The project's.
    is_solved : bool
        Keep the solutions of the exercises, for a test that runs them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wheels = build_wheels(folder)
    if address is None:
        address = addresses.downloads(read_version()) if addresses else folder.resolve().as_uri()
    cell = write_cell(wheels, address)

    written = []
    for page in PAGES:
        path = paths.NOTEBOOKS / f"{page}.ipynb"
        notebook = nbformat.read(path, nbformat.NO_CONVERT)
        if not is_solved:
            notebook = workshop.make_copy(notebook)
        made = make_page(notebook, path.name, cell, addresses)
        written.append(folder / path.name)
        paths.write_atomically(written[-1], nbformat.writes(made) + "\n")
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0; 1 if a wheel cannot be built."""
    parser = argparse.ArgumentParser(
        prog="python tools/try_pages.py", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--into", type=Path, default=FOLDER, help="a folder, by default build/try")
    parser.add_argument(
        "--wheels-at", metavar="ADDRESS", help="of the folder that holds the wheels"
    )
    wish = parser.parse_args(arguments)

    try:
        pages = make(wish.into, wish.wheels_at, published.find_addresses())
    except (subprocess.CalledProcessError, published.BadAddress) as fault:
        print(f"try: {fault}", file=sys.stderr)
        return 1

    for page in pages:
        print(paths.shorten(page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
