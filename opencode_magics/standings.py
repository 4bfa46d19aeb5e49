"""How sessions stand, and what became of them, as DataFrames.

Columns and dtypes are the same whatever is in them; unknown is NA.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from .columns import COUNT, FLAG, NUMBER, OBJECT, TEXT, TIME, WORD, Column, Columns, frame
from .control import EndResult
from .matching import Invocation
from .model import Session, Todo
from .status import Standing
from .watch import Noted

if TYPE_CHECKING:
    import pandas as pd


def standings(values: Iterable[Standing]) -> pd.DataFrame:
    """How sessions stand, one row each, in the order given."""
    return frame(STATUS, values)


def ended(values: Iterable[EndResult]) -> pd.DataFrame:
    """What came of ending sessions, one row each, in the order given."""
    return frame(ENDED, values)


def given(values: Iterable[tuple[Invocation, Session, bool]]) -> pd.DataFrame:
    """Commands that can be recovered, one row each, in the order given."""
    return frame(GIVEN, values)


def children(top: Session, values: Iterable[Standing]) -> pd.DataFrame:
    """Subagents' sessions below one, one row each, parents before their children."""
    depths = {top.id: 0}
    rows = []
    for standing in values:
        depth = depths.get(standing.session.parent or "", 0) + 1
        depths[standing.session.id] = depth
        rows.append(Child(standing, depth))
    return frame(CHILDREN, rows)


def todos(values: Iterable[Todo]) -> pd.DataFrame:
    """What an agent wants to do, one row each, in its order."""
    return frame(TODOS, values)


def events(values: Iterable[Noted]) -> pd.DataFrame:
    """What was heard, one row each, in the order in which it came."""
    return frame(EVENTS, values)


class Child(NamedTuple):
    """A subagent's session, and how many steps it is below the session that was asked for."""

    standing: Standing
    depth: int


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

ENDED: Columns = {
    "session": Column(TEXT, lambda e: e.session, "Its id, or the name that fits none."),
    "title": Column(TEXT, lambda e: e.title or None, "Its title."),
    "status": Column(WORD, lambda e: e.status, "ended, not_found or unconfirmed."),
    "action": Column(WORD, lambda e: e.action, "delete or archive."),
    "aborted_running_turn": Column(FLAG, lambda e: e.aborted_running_turn, "It was at work."),
    "rejected": Column(TEXT, lambda e: ", ".join(e.rejected) or None, "Requests that were."),
    "cleanup": Column(WORD, lambda e: e.cleanup, "complete or unconfirmed."),
    "elapsed": Column(NUMBER, lambda e: e.elapsed, "Seconds."),
    "evidence": Column(TEXT, lambda e: e.evidence or None, "What was seen."),
    "next": Column(TEXT, lambda e: e.todo or None, "What to do next."),
}

GIVEN: Columns = {
    "invocation": Column(TEXT, lambda g: g[0].id, "Its id, for %oc_command --recover."),
    "command": Column(WORD, lambda g: g[0].name, "The command's name."),
    "arguments": Column(TEXT, lambda g: g[0].text or None, "What followed it; 2,000 characters."),
    "given": Column(TIME, lambda g: g[0].at, "When, by the clock of the machine that gave it."),
    "matched": Column(FLAG, lambda g: g[2], "What it led to was known for certain at once."),
    "isolated": Column(FLAG, lambda g: g[0].isolated, "In a session of its own."),
    "title": Column(TEXT, lambda g: g[1].title or None, "Title of its session."),
    "session": Column(TEXT, lambda g: g[1].id, "The session it was given to."),
}

CHILDREN: Columns = {
    "session": Column(TEXT, lambda c: c.standing.session.id, "Its id."),
    "tree": Column(
        TEXT,
        lambda c: f"{'   ' * (c.depth - 1)}└─ {c.standing.session.title}",
        "Its title, indented by its depth.",
    ),
    "depth": Column(COUNT, lambda c: c.depth, "Sessions between, and 1."),
    "parent": Column(TEXT, lambda c: c.standing.session.parent, "The session above it."),
    "state": Column(WORD, lambda c: c.standing.state, "What it does."),
    "agent": Column(WORD, lambda c: c.standing.session.agent, "Who works in it."),
    "created": Column(TIME, lambda c: c.standing.session.created, "When it was made."),
    "cost": Column(NUMBER, lambda c: _cost(c.standing.session), "USD as the server stored it."),
}

TODOS: Columns = {
    "todo": Column(TEXT, lambda t: t.content, "What is to be done."),
    "status": Column(WORD, lambda t: t.status, "pending, in_progress, completed or cancelled."),
    "priority": Column(WORD, lambda t: t.priority or None, "high, medium or low."),
}

EVENTS: Columns = {
    "time": Column(TIME, lambda n: n.time, "When it was heard, by the clock of this machine."),
    "session": Column(TEXT, lambda n: n.session, "Whose it is; NA where the frame doesn't tell."),
    "type": Column(WORD, lambda n: n.type, "The wire's name for it."),
    "summary": Column(TEXT, lambda n: n.summary or None, "What it says, in a few words."),
    "raw": Column(OBJECT, lambda n: n.raw, "The frame as it came, a dict."),
}


# Which magic's frame has which columns.
FRAMES: Mapping[str, Columns] = {
    "%oc_status": STATUS,
    "%oc_end": ENDED,
    "%oc_command --given": GIVEN,
    "%oc_children": CHILDREN,
    "%oc_todo": TODOS,
    "%oc_watch": EVENTS,
}


def _cost(session: Session) -> float | None:
    return session.usage.cost if session.usage else None
