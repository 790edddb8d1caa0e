"""What the pages for people say is there: links to files and headings, commands, notebooks, one version."""

import re
import textwrap
import tomllib
from collections import Counter
from functools import cache

import nbformat
import pytest
import yaml
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner
from markdown_it import MarkdownIt

from metallab import paths, timing
from metallab.authoring import new_page
from metalsim.device import TESTED_TORCH

ROOT = paths.ROOT
PAGES = [page.name for page in sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))]
NOT_OURS = ("build", "workshop")  # a run's files, a learner's
FOLDERS = [
    path
    for path in ROOT.iterdir()
    if path.is_dir() and path.name[0] != "." and path.name not in NOT_OURS
]
FILES = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in folder.rglob("*.md"))]
DOCUMENTS = sorted(
    path for path in FILES if not path.is_symlink() and "checkpoint" not in path.name
)  # made by Jupyter
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
VARIABLES = set(re.findall(r"^([A-Z]+) *\?=", MAKEFILE, re.MULTILINE)) | {"BIN"}


def named(path):
    return str(path.relative_to(ROOT))


def prose(path):
    """The Markdown of a page or of a notebook's cells."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = nbformat.reads(text, nbformat.NO_CONVERT).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def tokens(path):
    """The tokens of a page, those inside paragraphs, headings and tables too."""
    for token in MarkdownIt("commonmark").enable("table").parse(prose(path)):
        yield token
        yield from token.children or ()


def targets(path):
    """Where its links and pictures lead."""
    return [
        token.attrs.get("href") or token.attrs["src"]
        for token in tokens(path)
        if token.type in ("link_open", "image")
    ]


@cache
def anchors(path):
    """Return the names by which links reach headings: as GitHub names those of a document, or JupyterLab a notebook's.

    The second heading of a name gets ``-1``, the third ``-2``.
    """
    names, seen, heading = set(), Counter(), False
    for token in tokens(path):
        if heading:
            text = "".join(
                part.content for part in token.children if part.type in ("text", "code_inline")
            )
            name = text if path.suffix == ".ipynb" else re.sub(r"[^\w\- ]", "", text.lower())
            name = name.replace(" ", "-")
            names.add(f"{name}-{seen[name]}" if seen[name] else name)
            seen[name] += 1
        heading = token.type == "heading_open"  # the next token holds its text
    return names


def broken(path):
    """Those of its links that lead to no file or heading of this project."""
    for target in targets(path):
        if re.match(r"https?://", target):
            continue
        file, _, heading = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        if not there.exists() or (heading and heading not in anchors(there)):
            yield target


def programs(path):
    """The Python programs that it shows."""
    return [
        token.content
        for token in tokens(path)
        if token.type == "fence" and token.info in ("python", "py")
    ]


def commands(path):
    """The words behind each ``make`` that begins a command in its code, settings of the environment aside."""
    code = (
        token.content
        for token in tokens(path)
        if token.type in ("fence", "code_block", "code_inline")
    )
    for line in "\n".join(code).splitlines():
        for command in re.split(r"&&|;|\|", re.sub(r"\s#.*|<.*", "", line)):
            if match := re.fullmatch(r"\s*(?:[A-Z_]+=\S+ +)*make((?: +\S+)*)\s*", command):
                yield match[1].split()


NOTEBOOKS = [paths.NOTEBOOKS / name for name in PAGES]


@pytest.mark.parametrize("path", [*DOCUMENTS, *NOTEBOOKS], ids=named)
def test_links_lead_to_a_file_and_a_heading(path):
    assert not list(broken(path))


def test_the_list_of_questions_leads_to_each_of_them_in_order():
    text = prose(ROOT / "docs" / "questions.md")

    first, *_ = re.split(r"^## ", text, maxsplit=1, flags=re.MULTILINE)
    listed = re.findall(r"\[([^]]+)\]\(#", " ".join(first.split()))

    assert listed == re.findall(r"^### (.+)$", text, re.MULTILINE)


@pytest.mark.parametrize("path", [*DOCUMENTS, *NOTEBOOKS], ids=named)
def test_commands_are_targets_of_the_makefile_with_its_variables(path):
    parts = [(word.partition("="), words) for words in commands(path) for word in words]

    assert [
        f"make {' '.join(words)}: the Makefile has no {name}"
        for (name, given, _), words in parts
        if name not in (VARIABLES if given else TARGETS)
    ] == []


CALL = re.compile(r"^\s*(?:- )?(?:run: make|run|.*then run|- make) ([a-z-]+)", re.MULTILINE)
"""What begins a command of make in a workflow, a form, or the script of continuous integration."""


def test_continuous_integration_and_forms_call_targets():
    files = [ROOT / ".ci" / "run", *ROOT.glob(".github/**/*.yml")]

    asked = {(named(path), name) for path in files for name in CALL.findall(path.read_text())}

    assert len(asked) > 10
    assert {target for _, target in asked} <= TARGETS, asked


def syntax_error_in(text):
    """What is wrong with a program; nothing if it can be compiled."""
    try:
        compile(textwrap.dedent(text), "a document", "exec")
    except SyntaxError as error:
        return str(error)
    return None


def test_programs_are_python():
    shown = [(named(path), text) for path in [*DOCUMENTS, *NOTEBOOKS] for text in programs(path)]

    assert len(shown) > 20
    assert [(name, error) for name, text in shown if (error := syntax_error_in(text))] == []


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("README.md", r"^\| \[\w+\]\(notebooks/([^)]+)\) \|"),
        ("docs/teaching.md", r"^\| \w+ \| \[[^]]+\]\(\.\./notebooks/([^)]+)\)"),
    ],
    ids=["README.md", "docs/teaching.md"],
)
def test_every_notebook_has_its_row(name, row):
    text = (ROOT / name).read_text(encoding="utf-8")

    assert re.findall(row, text, re.MULTILINE) == PAGES


WHERE_TO_WRITE = (
    "rows of tables come from the notebook: change its metadata.metallab.course, then make course; "
    "paragraphs are written in docs/teaching.md, and hints in the page's module of metallab/exercises"
)
MODULES = sorted((ROOT / "utils" / "metallab" / "exercises").glob("page_*.py"))
"""What judges the exercises, and has their hints."""


@pytest.mark.parametrize("path", [*NOTEBOOKS, *MODULES, *DOCUMENTS], ids=named)
def test_what_make_page_left_to_be_written_is_written(path):
    left = new_page.find_unwritten(path)

    assert not left, "\n".join(
        [f"{named(path)} has something to be written; {WHERE_TO_WRITE}", *left]
    )


def test_each_notebook_leads_to_the_next():
    texts = [path.read_text(encoding="utf-8") for path in NOTEBOOKS]

    led = [re.search(r"\*\*Next\*\*[^(]*\(([^)#]+)", text)[1] for text in texts]
    assert led == [*PAGES[1:], "../README.md"]


def test_readme_counts_the_notebooks():
    first_number = re.search(r"\d+", (ROOT / "README.md").read_text(encoding="utf-8"))[0]

    assert first_number == str(len(PAGES))


def read_citation():
    return yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def project_in(folder):
    """What a pyproject.toml says of its project."""
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_citation_follows_its_schema():
    schema = ["--builtin-schema", "vendor.citation-file-format", "--default-filetype", "yaml"]

    done = CliRunner().invoke(check_jsonschema, [*schema, str(ROOT / "CITATION.cff")])

    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("folder", [".", "metalsim", "metalsim/objc"])
def test_each_package_has_the_version_of_the_citation(folder):
    assert project_in(ROOT / folder)["version"] == read_citation()["version"]


def test_the_citation_has_the_licence_of_the_code():
    """That of a text is another."""
    assert read_citation()["license"] in project_in(ROOT)["license"].split(" AND ")


def test_who_is_cited_is_who_gives_the_licence():
    (author,) = read_citation()["authors"]

    assert author["name"] in (ROOT / "LICENSE").read_text(encoding="utf-8")


CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_changelog_begins_with_unreleased_and_dates_versions():
    first, *released = re.findall(r"^## (.*)$", CHANGELOG, re.MULTILINE)

    assert first == "[Unreleased]"
    version = re.compile(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d")
    assert [heading for heading in released if not version.fullmatch(heading)] == []


def test_the_changelog_has_the_kinds_of_change_that_readers_know():
    kinds = set(re.findall(r"^### (.*)$", CHANGELOG, re.MULTILINE))

    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


OURS = re.compile(
    r"(?<![\w./-])(?:metalsim-objc|metalsim|metal-lab|metallab|metal_lab)(?:\[[\w,-]*\])?+(?![\w./@-]| @)"
)
"""One of our packages by its bare name, as no index has it: neither a file, nor a folder, nor an address."""


@pytest.mark.parametrize("path", [*DOCUMENTS, *NOTEBOOKS], ids=named)
def test_nobody_is_told_to_install_our_packages_by_a_bare_name(path):
    """The names are not registered: whoever did that would get somebody else's package."""
    text = path.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if re.search(r"\b(?:pip|uv) .*\binstall\b", line)]
    assert [line for line in lines if OURS.search(line.partition("install")[2])] == []


@pytest.mark.parametrize(
    ("command", "is_bare"),
    [
        ("pip install metalsim", True),
        ("pip install metalsim-objc", True),
        ("pip install torch 'metal-lab[pages]'", True),
        ("pip install path/to/metal-lab/metalsim", False),
        ("pip install ./metalsim-0.9.0-py3-none-any.whl", False),
        ("pip install 'metalsim[shaders] @ https://example.org/metalsim.whl'", False),
    ],
    ids=["name", "with a hyphen", "with an extra", "folder", "file", "address"],
)
def test_a_bare_name_is_recognised(command, is_bare):
    assert bool(OURS.search(command.partition("install")[2])) == is_bare


SCRIPT = re.compile(r"(?<![\w/.-])((?:[\w-]+/)+[\w-]+\.py)\b")
EXAMPLES = ("path/to/",)


SOURCES = ("utils", "utils/metallab", "metalsim/src", "metalsim/src/metalsim", "metalsim/objc/src")


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_a_script_that_is_named_is_there(path):
    """By its place in the checkout, in the document's folder or in a package; or it names the revision that had it.

    Left out are paths that stand for files of one's own.
    """
    folders = (ROOT, path.parent, *map(ROOT.joinpath, SOURCES))
    text = path.read_text(encoding="utf-8")

    missing = [
        match[1]
        for match in SCRIPT.finditer(text)
        if not any((folder / match[1]).exists() for folder in folders)
        and not match[1].startswith(EXAMPLES)
        and not text[match.end() :].startswith("` of revision ")
    ]
    assert missing == []


RELEASE = re.compile(r"(?:PyTorch |torch==|torch )(\d+\.\d+\.\d+)")


@pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if "CHANGELOG" not in path.name], ids=named
)
def test_a_release_of_pytorch_that_is_named_was_tested(path):
    """Three numbers name what is installed or was run; two name a release of which something was found."""
    named_there = set(RELEASE.findall(path.read_text(encoding="utf-8")))
    assert named_there <= set(TESTED_TORCH)


THRESHOLD_OF_BUSY = re.compile(r"more than (an? \w+|\d\.\d+) of a core")
IN_WORDS = {"a tenth": 0.1, "a fifth": 0.2, "a quarter": 0.25, "a third": 1 / 3}


@pytest.mark.parametrize(
    "path",
    [
        paths.NOTEBOOKS / "01_time_it_right.ipynb",
        ROOT / "README.md",
        ROOT / "docs" / "teaching.md",
        ROOT / "classroom" / "README.md",
    ],
    ids=named,
)
def test_a_machine_is_told_to_be_busy_from_the_threshold_of_timing_on(path):
    """As *a quarter of a core*, or in digits as *0.15 of a core*."""
    told = THRESHOLD_OF_BUSY.findall(path.read_text(encoding="utf-8"))

    assert [float(IN_WORDS.get(share, share)) for share in told] == [timing.BUSY]


VERSION_TABLES = [ROOT / "docs" / "test_mps_on_linux.md", ROOT / "metalsim" / "README.md"]


@pytest.mark.parametrize("path", VERSION_TABLES, ids=named)
def test_each_release_has_its_row_where_versions_are_told(path):
    text = path.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+\.\d+\.\d+) \|", text, re.MULTILINE)
    assert tuple(rows) == TESTED_TORCH


@pytest.mark.parametrize("path", VERSION_TABLES, ids=named)
def test_each_release_says_which_pythons_have_it_and_which_were_tested(path):
    """tools/new_torch.py writes a row that a person fills in."""
    text = path.read_text(encoding="utf-8")
    cells = re.findall(r"^\| \d+\.\d+\.\d+ \| (.+) \| (.+) \|$", text, re.MULTILINE)
    pythons = re.compile(r"3\.\d+( to 3\.\d+|(, 3\.\d+)*)")

    assert [row for row in cells if not all(map(pythons.fullmatch, row))] == []


def test_the_tables_of_releases_agree():
    row = re.compile(r"^\| \d+\.\d+\.\d+ \|.*$", re.MULTILINE)

    first, second = (row.findall(path.read_text(encoding="utf-8")) for path in VERSION_TABLES)

    assert first == second
