"""Choose the copy of a page to which README and the gallery lead, where several machines have run it."""

from __future__ import annotations

from collections.abc import Sequence

import nbformat

from metallab import paths
from metallab.authoring import course_tables
from metallab.results.publish import executed, pages
from metallab.results.publish.executed import ExecutedPage, ExecutedSet


def choose_copy(copies: Sequence[ExecutedPage]) -> ExecutedPage | None:
    """Return the copy of a page that readers are led to; None if none ran whole and has a headline to give.

    One of today's code comes first, then the one that withholds the fewest speed-ups, then one of a quiet machine. Of
    equals the first is taken: the copy of a GPU, in the order of `executed.read_sets`.
    """
    return min(filter(is_linked, copies), key=_list_shortcomings, default=None)


def is_linked(page: ExecutedPage) -> bool:
    """Return True if a copy may be led to: it ran whole, and has a headline, which is not that no speed-up is given."""
    has_headline = page.record.headline is not None and not page.entry.headline_is_withheld
    return has_headline and not page.entry.not_run


def _list_shortcomings(page: ExecutedPage) -> tuple[bool, int, bool]:
    """Return what speaks against a copy, the gravest first."""
    return not is_current(page), page.entry.withheld, executed.is_disturbed(page.record)


def is_current(page: ExecutedPage) -> bool:
    """Return True if a stored page ran the code of today's notebook."""
    original = paths.NOTEBOOKS / page.path.name
    if not original.exists():
        return False

    stored, today = nbformat.read(page.path, 4), nbformat.read(original, 4)
    return pages.read_code(stored) == pages.read_code(today)


def find_linked(sets: Sequence[ExecutedSet]) -> dict[str, list[ExecutedSet]]:
    """Return the sets that a reader is led to, for each of today's pages by its name."""
    names = [path.stem for path in sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))]

    linked: dict[str, list[ExecutedSet]] = {name: [] for name in names}
    for each in sets:
        for name, page in each.pages.items():
            if name in linked and is_linked(page):
                linked[name].append(each)
    return linked


def link_readme(text: str, sets: Sequence[ExecutedSet]) -> str:
    """Return README whose titles of pages lead to stored copies, as far as `choose_copy` finds one."""
    addresses: dict[str, str | None] = {}
    for name in {name for each in sets for name in each.pages}:
        best = choose_copy([each.pages[name] for each in sets if name in each.pages])
        addresses[f"{name}.ipynb"] = _find_address(best) if best is not None else None
    return course_tables.link_copies(text, addresses)


def _find_address(page: ExecutedPage) -> str:
    """Return where a copy is, seen from README."""
    return f"data/{page.folder.parent.name}/{page.folder.name}/{page.path.name}"
