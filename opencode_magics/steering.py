"""How sessions stand, and what became of them, as DataFrames.

Columns and dtypes are the same whatever is in them; unknown is NA.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .history.frames import COUNT, TEXT, TIME, WORD, Column, Columns, frame
from .status import Standing

if TYPE_CHECKING:
    import pandas as pd


def standings(values: Iterable[Standing]) -> pd.DataFrame:
    """How sessions stand, one row each, in the order given."""
    return frame(STATUS, values)


STATUS: Columns = {
    "session": Column(TEXT, lambda s: s.session.id, "Its id."),
    "title": Column(TEXT, lambda s: s.session.title or None, "Its title."),
    "state": Column(
        WORD,
        lambda s: s.state,
        "idle, running, retrying, waiting_for_permission, waiting_for_question, ending, stale "
        "(its turn never ended, and nobody works on it), unknown.",
    ),
    "since": Column(TIME, lambda s: s.since, "When that began, where the server tells."),
    "attempt": Column(COUNT, lambda s: s.attempt, "Which retry comes next."),
    "next_retry": Column(TIME, lambda s: s.retry_at, "When it comes."),
    "pending": Column(
        COUNT,
        lambda s: None if s.error else len(s.requests),
        "Permissions and questions that wait, subagents' included.",
    ),
    "subagents": Column(COUNT, lambda s: s.subagents, "Subagents that are at work."),
    "last_activity": Column(TIME, lambda s: s.last_activity, "When it was last heard of."),
    "directory": Column(WORD, lambda s: s.session.directory or None, "Where it works."),
    "evidence": Column(TEXT, lambda s: s.evidence or None, "Which calls said so."),
    "error": Column(TEXT, lambda s: s.error or None, "Why it is not known."),
}
