"""The progress of a map in a cell: a bar while it runs, and a summary line at the end."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from ..core.formatting import pluralize
from ..prompts.mapping import Rows
from .quiet_view import QuietView
from .wording import at_least


class RowsBar:
    """A progress bar for rows; other lines can be written above it.

    It writes to stdout, because notebooks show stderr on red, as if something had failed. It is
    redrawn after every row, since the next one may take minutes.
    """

    def __init__(self, shell: Any, title: str, total: int) -> None:
        from tqdm import tqdm

        self._shell = shell
        self._bar = tqdm(total=total, desc=title, unit="row", file=sys.stdout, mininterval=0)

    def __enter__(self) -> RowsBar:
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.close()

    def view(self, label: str) -> QuietView:
        """Return a view that writes the requests of a row's turn, each after the row's label."""
        write: Callable[[str], object] = self._bar.write
        return QuietView(self._shell, lambda line: write(f"{label}: {line}"))

    def advance(self, rows: Rows) -> None:
        """Count one more row as done."""
        self._bar.set_postfix_str(cost(rows), refresh=False)
        self._bar.update()


def cost(rows: Rows) -> str:
    """Format the cost of the rows so far."""
    return at_least(*rows.spent) if rows.spent else "nothing was sent"


def summary(rows: Rows, total: int) -> str:
    """Summarize the outcomes and cost of a map in one line."""
    outcomes = Counter(r.outcome for r in rows.done)
    outcomes["not_sent"] += total - len(rows.done)
    recalled = sum(r.recalled for r in rows.done)
    parts = [pluralize(total, "row"), *(f"{n:,} {what}" for what, n in outcomes.items() if n)]
    parts += [f"{recalled:,} from history"] * bool(recalled)
    why = f" Stopped: {rows.stopped}." if rows.stopped else ""
    return f"{' · '.join([*parts, cost(rows)])}.{why}"
