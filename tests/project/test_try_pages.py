"""Pages that install themselves: their first cell is well made, and they run in the Python of a stranger.

A stranger has a PyTorch and Jupyter, and nothing of ours. Quick tests look at the cell; at night each page runs in
bare environments, with wheels from a web server on this machine.
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import re
import shutil
import subprocess
import threading
from pathlib import Path

import nbformat
import pytest
from test_extras import LIMIT, UV, registry, variables  # noqa: F401  registry is a fixture
from test_front import ON_HOST, load_tool
from test_wheels import NOT_ON_A_MAC

from metallab import needs
from metallab.authoring import documents
from metalsim import device

try_pages = load_tool("try_pages")

STRANGERS = {
    "oldest": (
        "3.11",
        f"torch=={min(device.TESTED_TORCH, key=lambda text: [*map(int, text.split('.'))])}",
    ),
    "between": ("3.12", "torch==2.13.0"),
    "newest": ("3.13", "torch"),
}
"""Python and PyTorch of people who try a page."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder that the program writes, without an address."""
    folder = tmp_path_factory.mktemp("try")
    try_pages.make(folder)
    return folder


def first_code(page):
    """The first cell of code."""
    return next(cell for cell in page.cells if cell.cell_type == "code")


@pytest.fixture(scope="module", params=try_pages.PAGES)
def page(made, request):
    """Each page that installs itself."""
    return nbformat.read(made / f"{request.param}.ipynb", nbformat.NO_CONVERT)


# ---- the cell --------------------------------------------------------------------------------------------------------


def test_a_page_that_installs_itself_is_a_notebook(page):
    nbformat.validate(page)

    assert page.cells[0].source.startswith("# ")


def test_the_first_cell_installs_and_imports_nothing(page):
    comment, command, *requirements = first_code(page).source.splitlines()

    assert comment.startswith("# ")
    assert command == "%pip install --quiet \\"
    assert len(requirements) == len(try_pages.EXTRAS)


def test_each_sha256_is_that_of_the_wheel(page, made):
    named = re.findall(r"@ (\S+)#sha256=([0-9a-f]{64})", first_code(page).source)
    wheels = {Path(address).name: digest for address, digest in named}

    assert len(wheels) == 2
    assert wheels == {
        name: hashlib.sha256((made / name).read_bytes()).hexdigest() for name in wheels
    }


def test_what_is_installed_is_the_two_packages_with_their_extras(page):
    assert re.findall(r'"([\w-]+\[\w+\]) @', first_code(page).source) == [
        "metal-lab[pages]",
        "metalsim[shaders]",
    ]


def test_a_page_to_try_holds_no_solution(page):
    assert not [cell.id for cell in page.cells if "solution" in cell.metadata.get("tags", [])]


def test_a_page_without_an_address_has_no_link_to_a_file(page):
    texts = [cell.source for cell in page.cells if cell.cell_type == "markdown"]
    targets = [link.target for text in texts for link in documents.find_links(text)]
    assert [each for each in targets if not re.match(r"https://|#|attachment:", each)] == []


def test_the_same_sources_give_the_same_wheels(made, tmp_path):
    again = try_pages.build_wheels(tmp_path).values()

    assert again
    assert [
        wheel.name for wheel in again if wheel.read_bytes() != (made / wheel.name).read_bytes()
    ] == []


@pytest.mark.parametrize(
    ("link", "led"),
    [
        (
            "[a](../docs/setup.md#conda)",
            "[a](https://github.com/Owner/metal-lab/blob/main/docs/setup.md#conda)",
        ),
        (
            "[b](02_b.ipynb)",
            "[b](https://github.com/Owner/metal-lab/blob/main/notebooks/02_b.ipynb)",
        ),
        ("[c](https://example.org)", "[c](https://example.org)"),
        ("[d](#Here)", "[d](#Here)"),
    ],
    ids=["a document", "another page", "an address", "a heading"],
)
def test_with_an_address_links_lead_to_the_web(link, led):
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(link)])
    made = try_pages.make_page(page, "01_a.ipynb", "%pip", ON_HOST)
    assert made.cells[0].source == led


def test_with_an_address_the_wheels_are_those_of_the_release(tmp_path):
    wheel = tmp_path / "metalsim-0.9.0-py3-none-any.whl"
    wheel.write_bytes(b"")
    cell = try_pages.write_cell({"metalsim": wheel}, ON_HOST.downloads("0.9.0"))
    assert f"@ https://github.com/Owner/metal-lab/releases/download/v0.9.0/{wheel.name}#" in cell


# ---- in the Python of a stranger -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The pages with their solutions, whose wheels a web server on this machine serves."""
    folder = tmp_path_factory.mktemp("served")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try_pages.make(folder, f"http://127.0.0.1:{server.server_port}", is_solved=True)
    yield folder
    server.shutdown()


@pytest.fixture(scope="module", params=STRANGERS)
def stranger(request, tmp_path_factory, registry):  # noqa: F811  the fixture that was imported
    """A folder with an environment that holds PyTorch and Jupyter alone, for each of the `STRANGERS`.

    The environment is deleted afterwards. The test is skipped where that Python cannot be had.
    """
    version, torch = STRANGERS[request.param]
    folder = tmp_path_factory.mktemp("stranger")
    environment = folder / "environment"

    # --seed brings pip, by which a page installs itself
    options = ["--quiet", "--no-project", "--seed", "--python", version]
    made = subprocess.run([*UV, "venv", *options, environment], check=False)
    if made.returncode != 0:
        pytest.skip(f"there is no Python {version}, and none can be fetched")

    wanted = [torch, "nbconvert", "ipykernel"]
    python = environment / "bin" / "python"
    subprocess.run(
        [*UV, "pip", "install", "--quiet", "--python", python, *wanted], check=True, timeout=LIMIT
    )
    yield folder
    shutil.rmtree(environment)


@pytest.mark.nightly
@NOT_ON_A_MAC
@pytest.mark.parametrize("name", try_pages.PAGES)
def test_a_page_runs_in_the_python_of_a_stranger(name, stranger, served):
    """It installs its wheels in its first cell, and then every cell runs: none is left out for want of a tool."""
    shutil.copy(served / f"{name}.ipynb", stranger)
    settings = variables(stranger / "environment", stranger / "home")
    settings |= {"METALSIM_CACHE": str(stranger / "cache"), "METALLAB_STRICT": "1"}

    jupyter = stranger / "environment" / "bin" / "jupyter"
    options = ["nbconvert", "--execute", "--to=notebook", "--output=ran", f"{name}.ipynb"]
    done = subprocess.run(
        [jupyter, *options],
        cwd=stranger,
        env=settings,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert not_run(stranger / "ran.ipynb") == []


def not_run(path):
    """The ids of the cells of an executed page that lacked something."""
    outputs = [
        (cell.id, output)
        for cell in nbformat.read(path, nbformat.NO_CONVERT).cells
        for output in cell.get("outputs", [])
    ]
    return [name for name, output in outputs if needs.MIME in output.get("data", {})]
