"""How far a map is, in a cell: a bar while its rows are answered, one line when they are done."""

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
    """A progress bar of rows, which lets lines be written above it.

    On a notebook's stderr it would stand on red, as if something had failed. No row is too quick
    to be shown: the next one may take minutes.
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
        """Return a view of the turn of a row: its requests, in lines that begin with its label."""
        write: Callable[[str], object] = self._bar.write
        return QuietView(self._shell, lambda line: write(f"{label}: {line}"))

    def advance(self, rows: Rows) -> None:
        """Show that one more row is done."""
        self._bar.set_postfix_str(cost(rows), refresh=False)
        self._bar.update()


def cost(rows: Rows) -> str:
    """Return what the rows have cost so far, in words."""
    return at_least(*rows.spent) if rows.spent else "nothing was sent"


def summary(rows: Rows, total: int) -> str:
    """Return how the rows of a map ended, in one line."""
    outcomes = Counter(r.outcome for r in rows.done)
    outcomes["not_sent"] += total - len(rows.done)
    recalled = sum(r.recalled for r in rows.done)
    parts = [pluralize(total, "row"), *(f"{n:,} {what}" for what, n in outcomes.items() if n)]
    parts += [f"{recalled:,} from history"] * bool(recalled)
    why = f" Stopped: {rows.stopped}." if rows.stopped else ""
    return f"{' · '.join([*parts, cost(rows)])}.{why}"
