"""A table that is updated in place while a cell waits; without a kernel, a line per change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from .html import escape_html, page
from .wording import first_line

TableRow = tuple[str, ...]


class LiveTable:
    """Shows rows under fixed headings; a last line replaces them when the table is closed.

    Args:
        shell: The shell that runs the cell; with a kernel, the table updates one output.
        headings: Names of the columns; the first column identifies the row.
    """

    def __init__(self, shell: Any, headings: TableRow) -> None:
        self._headings = headings
        self._id = f"opencode-{uuid4().hex[:12]}" if getattr(shell, "kernel", None) else ""
        self._shown: tuple[TableRow, ...] | None = None

    def show(self, rows: Sequence[TableRow]) -> None:
        """Show these rows, unless they are unchanged."""
        rows = tuple(tuple(first_line(cell, 100) for cell in row) for row in rows)
        if rows == self._shown:
            return
        previous = self._shown or ()
        update, self._shown = self._shown is not None, rows
        if self._id:
            self._draw(table(self._headings, rows), "\n".join(map(" · ".join, rows)), update)
            return
        for row in rows:
            if row not in previous:
                print(" · ".join(cell for cell in row if cell))

    def close(self, line: str) -> None:
        """Replace the rows with one line."""
        if self._id:
            self._draw(page([f"<div>{escape_html(line)}</div>"]), line, self._shown is not None)
        else:
            print(line)

    def _draw(self, html: str, text: str, update: bool) -> None:
        from IPython.display import display

        bundle = {"text/html": html, "text/plain": text}
        display(bundle, raw=True, display_id=self._id, update=update)


def table(headings: TableRow, rows: Sequence[TableRow]) -> str:
    """Return the rows as an HTML table, with all text escaped."""
    head = "".join(f'<th style="{_CELL}">{escape_html(name)}</th>' for name in headings)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape_html(c)}</td>' for c in row) + "</tr>"
        for row in rows
    )
    return page([f'<table style="font-size:.92em"><tr>{head}</tr>{body}</table>'])


_CELL = "text-align:left;padding:.1em .7em"
