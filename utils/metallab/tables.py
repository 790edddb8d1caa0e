"""What a page reports, as a table: in a browser with lines, elsewhere as text."""

from __future__ import annotations

import html
from collections.abc import Sequence


class Table:
    """Rows under headings, all of them shown.

    >>> Table(["program", "purpose"], [["git", "puts the revision beside each number"]])
    program  purpose
    git      puts the revision beside each number
    """

    def __init__(self, headings: Sequence[str], rows: Sequence[Sequence[object]], note: str = ""):
        """``rows`` have as many values as there are ``headings``, else ValueError; `str` writes each.

        ``note`` stands below the table, and alone where there are no rows.
        """
        self.note = note
        self.headings = list(headings)
        self.rows = [list(map(str, row)) for row in rows]
        if any(len(row) != len(self.headings) for row in self.rows):
            raise ValueError(
                f"each row of this table needs {len(self.headings)} values: {', '.join(self.headings)}"
            )

    def __repr__(self) -> str:
        lines = [self.headings, *self.rows] if self.rows else []
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        return "\n".join([*text, *filter(None, [self.note])])

    def _repr_html_(self) -> str:
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        if not self.rows:
            return note
        import pandas as pd

        frame = pd.DataFrame(self.rows, columns=self.headings)
        # notebooks align right, as suits numbers
        left = [{"selector": "th, td", "props": "text-align: left"}]
        style = frame.style.hide(axis="index").format(escape="html").set_table_styles(left)
        return style.to_html() + note
