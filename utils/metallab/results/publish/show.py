"""Executed pages for the repository, and the gallery of them: ``python -m metallab.results.publish.show RUN ...``.

The pages of each run are stored in the set of its machine. Then all stored pages get today's text, the gallery is
written anew, and the rows of README get their links.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from metallab import paths, records
from metallab.results import report
from metallab.results.publish import copies, executed, gallery, store, stored_text


def update(folder: Path, file: Path) -> list[str]:
    """Write today's text into the stored pages, and the gallery; lead README's rows to the best copies.

    Parameters
    ----------
    folder
        The folder of the sets.
    file
        The gallery.

    Returns
    -------
    list of str
        A sentence for each link that lost the heading which it named, because a page or guide does not have it.

    Raises
    ------
    RecordError, ReportError, ShowError
        Where a stored set is not as it was stored.
    """
    sets = executed.read_sets(folder)
    lost = stored_text.update_pages([page for each in sets for page in each.pages.values()])

    gallery.write_pictures(sets)
    paths.write_atomically(file, gallery.render_gallery(sets, f"../data/{folder.name}"))

    readme = gallery.README.read_text(encoding="utf-8")
    paths.write_atomically(gallery.README, copies.link_readme(readme, sets))
    return lost


def main(arguments: Sequence[str] | None = None) -> int:
    """Store the pages of the runs that are named, and renew all that is made of stored pages; return the exit code.

    0; 1 if pages of a run were refused; 2 with a message where something keeps it from going on. What was stored before
    that stays.
    """
    parser = argparse.ArgumentParser(
        prog="python -m metallab.results.publish.show", description=__doc__.splitlines()[0]
    )
    what = "folder of a finished run in full mode; without one, the stored pages' text and the gallery are renewed"
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help=what)
    runs = parser.parse_args(arguments).runs

    refused: dict[str, str] = {}
    try:
        for run in runs:
            folder, reasons = store.store_run(run.resolve(), executed.EXECUTED)
            refused |= reasons
            print(f"show: {paths.shorten(folder)}")
        for lost in update(executed.EXECUTED, gallery.GALLERY):
            print(f"show: {lost}", file=sys.stderr)
    except (executed.ShowError, report.ReportError, records.RecordError, OSError) as problem:
        print(f"show: {problem}", file=sys.stderr)
        return 2

    for reason in refused.values():
        print(f"show: not shown: {reason}", file=sys.stderr)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
