"""What ``import metallab`` adds to a notebook that runs: fast sizes, saved results, pictures in words, and an end.

It works in any kernel of Jupyter, be it JupyterLab's, nbconvert's or that of this project's runner, because all of it
happens in the kernel:

* `metallab.fast_sizes` takes what stands behind ``# fast:`` where ``METALLAB_MODE`` is ``fast``.
* After each cell the results that `metallab.timing` made in it are written to the page's file of results. A cell that
  is run again replaces what it made before; of two results with one name the newer is kept.
* A figure of matplotlib is shown with an alternative text made from its title, axes and legend.
* ``metallab.finish()``, the last line of a page, says what did not run and where the results are.

**Which page it is** a kernel is not told. JupyterLab names the file in ``JPY_SESSION_NAME``; elsewhere it is the
notebook in the folder of the kernel's start that holds the cells which have run. Its metadata say the rest, so that
nothing of it stands in a cell: ``metadata.metallab.headline`` names the variables that the headline is made of, and a
cell with ``"metallab": {"saves": false}`` saves nothing, nor does one of an exercise, unless it says ``true``; a list
of names there says which results are saved.

In a script, a program or a test nothing of this happens: `metallab.records.save` writes what it is given.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from metallab import fast_sizes, mode

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult, InteractiveShell
    from matplotlib.figure import Figure

    from metallab.records import Headline
    from metallab.timing import Comparison, Measurement

    Result: TypeAlias = Measurement | Comparison

LARGEST_PAGE = 64 * 2**20
"""Bytes of a notebook up to which it is read to find out whether it is the one that runs."""

_session: Session | None = None


def install(shell: InteractiveShell) -> None:
    """Let a kernel take fast sizes, show figures with words, and save results after each cell.

    It is done once, however often metallab is imported there. SyntaxError if the cell that imports it has a fast size.
    """
    global _session
    if _session is not None:
        return
    if mode.current() == "fast":
        _refuse_fast_size_in(shell.user_ns.get("In", [""])[-1])
        shell.input_transformers_post.append(fast_sizes.take_fast)

    formatters = shell.display_formatter
    formatters.mimebundle_formatter.for_type_by_name("matplotlib.figure", "Figure", _show_figure)

    _session = Session(shell, Path.cwd())
    shell.events.register("pre_run_cell", _session.begin_cell)
    shell.events.register("post_run_cell", _session.end_cell)


def _refuse_fast_size_in(cell: str) -> None:
    """SyntaxError for a fast size in the cell that imports metallab: it has been read before this import."""
    if fast_sizes.find_fast(cell):
        raise SyntaxError(
            f"'{fast_sizes.MARK}' in the cell that imports metallab comes too early: "
            "move the line to a later cell"
        )


def _show_figure(figure: Figure) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Return a figure as a notebook shows it, with words."""
    from metallab import plots

    return plots.show(figure)


def finish() -> None:
    """End a page: say what did not run, and where its results are; see `metallab.finish`."""
    from metallab import needs

    if _session is None:
        needs.close_page("this program")
        return

    _session.save(is_last=True)
    for line in _session.closing_lines():
        print(line)
    needs.close_page(_session.name or "this notebook", print)


@dataclass(frozen=True)
class Page:
    """A notebook's file, as far as its cells and metadata go."""

    path: Path
    metadata: Mapping[str, Any]
    """What stands in ``metadata.metallab``."""
    cells: tuple[Cell, ...]
    """Those with code."""

    @property
    def name(self) -> str:
        """The name of its file of results: the notebook's, with _ for what such a name cannot have."""
        return re.sub(r"[^A-Za-z0-9_.-]", "_", self.path.stem)

    @property
    def sources(self) -> frozenset[str]:
        """The text of each of its cells."""
        return frozenset(cell.source for cell in self.cells)

    def find(self, key: CellKey) -> Cell | None:
        """Return the cell that ran, by its id or else by its text; None for one that the file does not have."""
        for cell in self.cells:
            if key.id and cell.id == key.id:
                return cell
        return next((cell for cell in self.cells if cell.source == key.source), None)


@dataclass(frozen=True)
class Cell:
    """A cell with code, in a notebook's file."""

    id: str
    source: str
    saves: bool = True
    """Whether its results are the page's: not of an exercise, nor where its metadata say no."""
    names: frozenset[str] | None = None
    """The results that are the page's, where its metadata name some; None for all."""

    def has(self, result: Result) -> bool:
        """Return whether a result that the cell made is the page's."""
        return self.saves and (self.names is None or result.name in self.names)


@dataclass(frozen=True)
class CellKey:
    """A cell that was run: JupyterLab tells its id, and other programs its text alone."""

    id: str = ""
    source: str = ""

    @property
    def identity(self) -> str:
        """What stays the same when the cell is run again."""
        return self.id or self.source


@dataclass
class Session:
    """A notebook while it runs."""

    shell: InteractiveShell
    folder: Path
    """Where the kernel was started, in the notebook's folder; a cell may change to another one."""
    made: dict[str, tuple[CellKey, list[Result]]] = field(default_factory=dict)
    """What cells made, by the cell's identity, in the order of their first run."""
    run: dict[str, None] = field(default_factory=dict)
    """The text of each cell that was run."""
    current: CellKey = CellKey()
    pending: list[Result] = field(default_factory=list)
    """What the cell that runs now has made."""
    written: Path | None = None
    problem: str = ""
    """Why the last attempt to save wrote nothing; empty if it did."""
    without_headline: str = ""
    """Why the page has no headline although its metadata name one; empty if it has, or if they name none."""

    def __post_init__(self) -> None:
        from metallab import results_made

        results_made.listen(self.pending.append)

    @property
    def page(self) -> Page | None:
        """The notebook that runs; None as long as several may be it, or none."""
        return find_page(self.folder, self.shell.user_ns, self.run)

    @property
    def name(self) -> str:
        """The page's, or an empty text."""
        page = self.page
        return page.name if page else ""

    def begin_cell(self, info: ExecutionInfo) -> None:
        """Note which cell begins; what an interrupted one has made is dropped."""
        self.pending.clear()
        self._note(info)

    def _note(self, info: ExecutionInfo) -> None:
        source = _without_blank_ends(info.raw_cell)
        self.current = CellKey(getattr(info, "cell_id", None) or "", source)
        self.run[source] = None

    def end_cell(self, result: ExecutionResult) -> None:
        """Save what the cell made, if it made something."""
        if not self.run:  # the cell that imported metallab: nobody has told of its beginning
            self._note(result.info)
        if self.pending:
            self.save()

    def save(self, is_last: bool = False) -> None:
        """Write what the page's cells have made so far; nothing if they have made nothing.

        Where no notebook holds these cells, or the file cannot be written, the reason is kept for `closing_lines`; that
        the file cannot be written is printed at once, too.

        Parameters
        ----------
        is_last
            Whether the page ends and `closing_lines` follow, so that nothing is printed here.
        """
        if self.pending:
            self.made[self.current.identity] = (self.current, list(self.pending))
            self.pending.clear()
        if not self.made:
            return

        page = self.page
        if page is None:
            self.problem = f"no notebook in {self.folder.name}/ holds these cells: save it there"
            return
        results = chosen_results(page, self.made.values())
        if not results:
            return
        try:
            self._write(page, results)
        except (OSError, ValueError) as error:
            self.problem = str(error)
            if not is_last:
                print(f"The results so far are not saved: {error}")

    def _write(self, page: Page, results: Sequence[Result]) -> None:
        from metallab import records

        headline = self._headline(page)
        self.written = records.save_page(page.name, results, headline, self.without_headline)
        self.problem = ""

    def _headline(self, page: Page) -> Headline | None:
        """Return what the page says of itself, as its metadata tell; None while something of it is not there."""
        from metallab import records

        told = page.metadata.get("headline")
        self.without_headline = ""
        if not told:
            return None
        try:
            sentences = sentences_of(told.get("sentences", []), self.shell.user_ns)
            picture = told.get("picture")
            drawn = value_of(picture, self.shell.user_ns) if picture else None
        except NameError as error:
            self.without_headline = str(error)
            return None
        if not sentences:
            self.without_headline = "the names in the page's metadata hold no sentence"
            return None
        return records.Headline(tuple(sentences[:3]), drawn)

    def closing_lines(self) -> list[str]:
        """Return what a page says at its end of its results."""
        if self.problem:
            return [f"The results are not saved: {self.problem}."]
        if self.written is None:
            return ["This page has no results to save."]

        lines = [f"Saved with this machine's description: {_shorten_path(self.written)}"]
        if mode.current() == "fast":
            lines.append("Fast sizes: these results only show whether the page runs.")
        if self.without_headline:
            lines.append(f"Without a headline: {self.without_headline}.")
        return lines


def chosen_results(page: Page, made: Iterable[tuple[CellKey, Sequence[Result]]]) -> list[Result]:
    """Return the results that a page saves: of two with one name the newer, at the older's place."""
    chosen: dict[tuple[type, str], Result] = {}
    for key, results in made:
        cell = page.find(key) or Cell("", key.source)
        for result in filter(cell.has, results):
            chosen[type(result), result.name] = result
    return list(chosen.values())


def sentences_of(
    paths: Iterable[str | Mapping[str, str]], namespace: Mapping[str, Any]
) -> list[str]:
    """Return the sentences that a headline's paths lead to: a text, several, or what says itself in words.

    In the place of a path ``{"text": ...}`` is a sentence that no cell computes.
    """
    sentences: list[str] = []
    for path in paths:
        if isinstance(path, Mapping):
            sentences.append(str(path["text"]))
            continue
        value = value_of(path, namespace)
        if isinstance(value, list | tuple):
            sentences.extend(map(str, value))
        else:
            sentences.append(str(value))
    return sentences


_STEP = re.compile(r"\.(?P<attribute>[A-Za-z]\w*)|\[(?P<from>-?\d+)?(?P<colon>:)?(?P<to>-?\d+)?\]")


def value_of(path: str, namespace: Mapping[str, Any]) -> Any:
    """Return what a path of names leads to, such as ``race.sentences[:2]``; nothing is called.

    Parameters
    ----------
    path
        A variable, with attributes and whole numbers in brackets behind it.
    namespace
        The notebook's variables.

    Raises
    ------
    NameError
        With the path, if something of it does not exist.
    """
    start = re.match(r"[A-Za-z]\w*", path)
    if start is None or start[0] not in namespace:
        raise NameError(f"no cell has made {path}")

    value, place = namespace[start[0]], start.end()
    while place < len(path):
        step = _STEP.match(path, place)
        if step is None:
            raise NameError(f"{path} is no name with attributes and numbers in brackets")
        try:
            value = _take_step(value, step)
        except (AttributeError, LookupError, TypeError):
            raise NameError(f"no cell has made {path}") from None
        place = step.end()
    return value


def _take_step(value: Any, step: re.Match[str]) -> Any:
    """Return the attribute, item or slice of a value that one step of a path names."""
    if step["attribute"]:
        return getattr(value, step["attribute"])
    first = None if step["from"] is None else int(step["from"])
    last = None if step["to"] is None else int(step["to"])
    if step["colon"]:
        return value[first:last]
    return value[first]


def find_page(folder: Path, namespace: Mapping[str, Any], run: Mapping[str, None]) -> Page | None:
    """Return the notebook that holds the cells which have run.

    Parameters
    ----------
    folder
        Where the kernel was started.
    namespace
        Its variables: Visual Studio Code names the file in one.
    run
        The text of each cell that was run.

    Returns
    -------
    Page or None
        The file that the server or the editor names; or else, of the folder's notebooks, the one that holds most of
        the cells; of equal copies that with the shortest name. None if there is none, or if others hold as many.
    """
    file = os.environ.get("JPY_SESSION_NAME") or namespace.get("__vsc_ipynb_file__")
    named = read_page(Path(file)) if isinstance(file, str) else None
    # without such a cell it may be the notebook that started this one, and left the variable
    if named is not None and named.sources.intersection(run):
        return named

    pages = [read_page(path) for path in sorted(folder.glob("*.ipynb"))]
    scores = [(len(page.sources.intersection(run)), page) for page in pages if page is not None]
    most = max((score for score, _ in scores), default=0)
    if most == 0:
        return named  # whose cells are not saved yet

    best = [page for score, page in scores if score == most]
    are_copies = len({page.sources for page in best}) == 1
    if not are_copies:
        return None
    return min(best, key=lambda page: (len(page.path.name), page.path.name))


def read_page(path: Path) -> Page | None:
    """Return a notebook's cells and metadata; None for what is no notebook, or too large to be looked into."""
    try:
        about = path.stat()
        if about.st_size > LARGEST_PAGE:
            return None
        return _read_page(path, about.st_mtime_ns)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # somebody else's file, or one that is being written


@lru_cache(maxsize=256)
def _read_page(path: Path, _written: int) -> Page:
    """Return a notebook's cells and metadata; once for each time at which the file was written, ``_written``.

    What somebody else's file raises is raised.
    """
    notebook = json.loads(path.read_text("utf-8"))
    told = notebook["metadata"].get("metallab", {})

    cells: list[Cell] = []
    in_exercise = False  # from a stub to the next text
    for each in notebook["cells"]:
        if each["cell_type"] != "code":
            in_exercise = False
            continue
        in_exercise = in_exercise or "exercise" in each["metadata"].get("tags", [])
        cells.append(_read_cell(each, in_exercise))
    return Page(path, told, tuple(cells))


def _read_cell(cell: Mapping[str, Any], in_exercise: bool) -> Cell:
    says = cell["metadata"].get("metallab", {}).get("saves", not in_exercise)
    return Cell(
        cell.get("id", ""),
        _without_blank_ends("".join(cell["source"])),
        saves=bool(says),
        names=frozenset(says) if isinstance(says, list) else None,
    )


def _without_blank_ends(source: str) -> str:
    """Return a cell's text as it compares: programs differ in the line break at its end."""
    return source.strip()


def _shorten_path(path: Path) -> str:
    """Return where a file is, from the folder that holds ``build``, so that no machine's folders stand on a page."""
    from metallab import paths

    above = paths.BUILD.parent
    if paths.BUILD.parts[-2:] == paths.OWN_BUILD.parts:
        above = above.parent
    if path.is_relative_to(above):
        return path.relative_to(above).as_posix()
    return "/".join(path.parts[-2:])
