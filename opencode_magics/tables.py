"""DataFrames of a server's catalog and of its sessions' states.

Columns and dtypes don't depend on the data; unknown values are NA.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from .core.columns import (
    CATEGORY,
    COUNT,
    FLAG,
    NUMBER,
    OBJECT,
    TEXT,
    TIME,
    Column,
    Columns,
    frame_from_rows,
)
from .core.model import (
    Agent,
    Command,
    InboxItem,
    Integration,
    McpServer,
    Model,
    Permission,
    Question,
    Rule,
    Session,
    Skill,
    Todo,
)
from .sessions.correlate import Invocation
from .sessions.end import EndResult
from .sessions.feed import FeedRow
from .sessions.status import SessionState

if TYPE_CHECKING:
    import pandas as pd


# -- catalog --


def models(values: Iterable[Model]) -> pd.DataFrame:
    """Return a frame of models, one row each."""
    return frame_from_rows(_MODEL, values)


def agents(values: Iterable[Agent]) -> pd.DataFrame:
    """Return a frame of agents, one row each."""
    return frame_from_rows(_AGENT, values)


def requests(values: Iterable[tuple[Permission | Question, Session]]) -> pd.DataFrame:
    """Return a frame of pending permissions and questions, one row each."""
    return frame_from_rows(_REQUEST, values)


def commands(values: Iterable[Command]) -> pd.DataFrame:
    """Return a frame of commands: command, description, and their own agent and model, if any."""
    return frame_from_rows(_COMMAND, values)


def skills(values: Iterable[Skill]) -> pd.DataFrame:
    """Return a frame of skills: skill (the id), name, description, path."""
    return frame_from_rows(_SKILL, values)


def mcp(values: Iterable[McpServer]) -> pd.DataFrame:
    """Return a frame of MCP servers: server, status, error."""
    return frame_from_rows(_MCP, values)


def integrations(values: Iterable[Integration]) -> pd.DataFrame:
    """Return a frame of integrations: integration (the id), name, methods, connections."""
    return frame_from_rows(_INTEGRATION, values)


def inbox(values: Iterable[InboxItem]) -> pd.DataFrame:
    """Return a frame of inbox items: id, kind, delivery, text, created (UTC, ms)."""
    return frame_from_rows(_INBOX, values)


def rules(values: Iterable[tuple[str, Rule, str]]) -> pd.DataFrame:
    """Return a frame of permission rules in order of evaluation; the last match wins.

    Returns:
        Columns origin (agent, session, saved), effect, action, resource, and id (saved rules only).
    """
    return frame_from_rows(_RULE, values)


def _request_text(request: Permission | Question) -> str:
    if isinstance(request, Permission):
        return request.subject
    return " / ".join(item.question for item in request.items)


def _option_labels(request: Permission | Question) -> str | None:
    if isinstance(request, Permission):
        return None
    labels = (", ".join(o.label for o in item.options) for item in request.items)
    return " / ".join(labels)


_MODEL: Columns = {
    "model": Column(TEXT, lambda m: str(m.ref), "`provider/model`, as `--model` takes it."),
    "name": Column(TEXT, lambda m: m.name, "Display name."),
    "variants": Column(TEXT, lambda m: ", ".join(m.variants), "Variants (reasoning efforts)."),
    "default": Column(FLAG, lambda m: m.default, "True for the server's default model."),
    "context": Column(COUNT, lambda m: m.context, "Context window in tokens."),
    "output": Column(COUNT, lambda m: m.output, "Maximum tokens of an answer."),
    "images": Column(FLAG, lambda m: m.images, "Accepts images; NA if the server doesn't say."),
    "price_input": Column(NUMBER, lambda m: m.price_input, "USD per million tokens."),
    "price_output": Column(
        NUMBER, lambda m: m.price_output, "USD per million tokens, reasoning included."
    ),
    "price_cache_read": Column(NUMBER, lambda m: m.price_cache_read, "USD per million tokens."),
    "price_cache_write": Column(NUMBER, lambda m: m.price_cache_write, "USD per million tokens."),
}

_AGENT: Columns = {
    "agent": Column(TEXT, lambda a: a.name, "Name, as `--agent` takes it."),
    "mode": Column(CATEGORY, lambda a: a.mode, "primary, subagent or all."),
    "model": Column(TEXT, lambda a: str(a.model) if a.model else None, "Its own model, if any."),
    "description": Column(TEXT, lambda a: a.description, "Purpose."),
}

_REQUEST: Columns = {
    "id": Column(TEXT, lambda r: r[0].id, "Id of the request, for %oc_reply."),
    "kind": Column(CATEGORY, lambda r: type(r[0]).__name__.lower(), "permission or question."),
    "session": Column(TEXT, lambda r: r[0].session, "Session that asks."),
    "title": Column(TEXT, lambda r: r[1].title, "Title of that session."),
    "action": Column(CATEGORY, lambda r: getattr(r[0], "action", None), "bash, edit, ..."),
    "asks": Column(TEXT, lambda r: _request_text(r[0]), "The command, files or question."),
    "always": Column(
        TEXT,
        lambda r: ", ".join(getattr(r[0], "always", ())) or None,
        "Patterns that `always` would allow.",
    ),
    "options": Column(TEXT, lambda r: _option_labels(r[0]), "Answers that a question offers."),
}

_COMMAND: Columns = {
    "command": Column(TEXT, lambda c: c.name, "Name."),
    "description": Column(TEXT, lambda c: c.description or None, "Purpose."),
    "agent": Column(TEXT, lambda c: c.agent, "Agent that runs it; NA for any."),
    "model": Column(TEXT, lambda c: c.model, "Its own model; NA if none."),
}

_SKILL: Columns = {
    "skill": Column(TEXT, lambda s: s.id, "Id."),
    "name": Column(TEXT, lambda s: s.name, "Name."),
    "description": Column(TEXT, lambda s: s.description or None, "When an agent should read it."),
    "path": Column(TEXT, lambda s: s.path or None, "Path of its file."),
}

_MCP: Columns = {
    "server": Column(TEXT, lambda m: m.name, "Name."),
    "status": Column(
        CATEGORY, lambda m: m.status or None, "connected, disabled, failed, needs_auth, ..."
    ),
    "error": Column(TEXT, lambda m: m.error or None, "Reason for a failure."),
}

_INTEGRATION: Columns = {
    "integration": Column(TEXT, lambda i: i.id, "Id."),
    "name": Column(TEXT, lambda i: i.name, "Name."),
    "methods": Column(TEXT, lambda i: ", ".join(i.methods) or None, "Login methods."),
    "connections": Column(TEXT, lambda i: ", ".join(i.connections) or None, "Connected accounts."),
}

_INBOX: Columns = {
    "id": Column(TEXT, lambda i: i.id, "Id, later the id of its message."),
    "kind": Column(CATEGORY, lambda i: i.kind, "user, synthetic, compaction, move."),
    "delivery": Column(CATEGORY, lambda i: i.delivery, "steer or queue."),
    "text": Column(TEXT, lambda i: i.text or None, "Text."),
    "created": Column(TIME, lambda i: i.created, "Arrival time (UTC)."),
}

_RULE: Columns = {
    "origin": Column(CATEGORY, lambda r: r[0], "agent, session or saved."),
    "effect": Column(CATEGORY, lambda r: r[1].effect, "allow, ask or deny."),
    "action": Column(TEXT, lambda r: r[1].action, "Action it applies to."),
    "resource": Column(TEXT, lambda r: r[1].resource, "Resource it applies to."),
    "id": Column(TEXT, lambda r: r[2] or None, "Id, for saved rules only."),
}


# -- session states --


def session_states(values: Iterable[SessionState]) -> pd.DataFrame:
    """Return a frame of session states, one row each, in order."""
    return frame_from_rows(STATUS, values)


def end_results(values: Iterable[EndResult]) -> pd.DataFrame:
    """Return a frame of the results of ending sessions, one row each, in order."""
    return frame_from_rows(ENDED, values)


def recoverable(values: Iterable[tuple[Invocation, Session, bool]]) -> pd.DataFrame:
    """Return a frame of recoverable commands, one row each, in order."""
    return frame_from_rows(SENT_COMMANDS, values)


def children(top: Session, values: Iterable[SessionState]) -> pd.DataFrame:
    """Return a frame of the subagents' sessions below `top`, parents before their children."""
    depths = {top.id: 0}
    rows = []
    for state in values:
        depth = depths.get(state.session.parent or "", 0) + 1
        depths[state.session.id] = depth
        rows.append(ChildRow(state, depth))
    return frame_from_rows(CHILDREN, rows)


def todos(values: Iterable[Todo]) -> pd.DataFrame:
    """Return a frame of an agent's to-do list, one row per item, in order."""
    return frame_from_rows(TODOS, values)


def events(values: Iterable[FeedRow]) -> pd.DataFrame:
    """Return a frame of events, one row each, in order of arrival."""
    return frame_from_rows(EVENTS, values)


class ChildRow(NamedTuple):
    """The state of a subagent's session, and its depth below the top session."""

    state: SessionState
    depth: int


STATUS: Columns = {
    "session": Column(TEXT, lambda s: s.session.id, "Session id."),
    "title": Column(TEXT, lambda s: s.session.title or None, "Session title."),
    "state": Column(
        CATEGORY,
        lambda s: s.state,
        "idle, running, retrying, waiting_for_permission, waiting_for_question, ending, stale "
        "(its turn never ended, and no agent works on it), unknown.",
    ),
    "since": Column(TIME, lambda s: s.since, "Start of this state, if the server reports it."),
    "attempt": Column(COUNT, lambda s: s.attempt, "Number of the next retry."),
    "next_retry": Column(TIME, lambda s: s.retry_at, "Time of the next retry."),
    "pending": Column(
        COUNT,
        lambda s: None if s.error else len(s.requests),
        "Pending permissions and questions, subagents' included.",
    ),
    "subagents": Column(COUNT, lambda s: s.subagents, "Number of running subagents."),
    "last_activity": Column(TIME, lambda s: s.last_activity, "Time of the last known activity."),
    "directory": Column(CATEGORY, lambda s: s.session.directory or None, "Working directory."),
    "evidence": Column(TEXT, lambda s: s.evidence or None, "Server calls that report this state."),
    "error": Column(TEXT, lambda s: s.error or None, "Reason why the state is unknown."),
}

ENDED: Columns = {
    "session": Column(
        TEXT, lambda e: e.session, "Session id, or the name that matches no session."
    ),
    "title": Column(TEXT, lambda e: e.title or None, "Session title."),
    "status": Column(CATEGORY, lambda e: e.status, "ended, not_found or unconfirmed."),
    "action": Column(CATEGORY, lambda e: e.action, "delete or archive."),
    "aborted_running_turn": Column(
        FLAG, lambda e: e.aborted_running_turn, "A turn was running and was aborted."
    ),
    "rejected": Column(TEXT, lambda e: ", ".join(e.rejected) or None, "Ids of rejected requests."),
    "cleanup": Column(CATEGORY, lambda e: e.cleanup, "complete or unconfirmed."),
    "elapsed": Column(NUMBER, lambda e: e.elapsed, "Seconds."),
    "evidence": Column(
        TEXT, lambda e: e.evidence or None, "Observation that the status is based on."
    ),
    "next": Column(TEXT, lambda e: e.todo or None, "What to do next."),
}

SENT_COMMANDS: Columns = {
    "invocation": Column(TEXT, lambda g: g[0].id, "Id, for %oc_command --recover."),
    "command": Column(CATEGORY, lambda g: g[0].name, "Name of the command."),
    "arguments": Column(
        TEXT, lambda g: g[0].text or None, "Arguments; the first 2,000 characters."
    ),
    "given": Column(TIME, lambda g: g[0].at, "Time of sending, by the sender's clock."),
    "matched": Column(FLAG, lambda g: g[2], "Its prompt or subagent session is identified."),
    "isolated": Column(FLAG, lambda g: g[0].isolated, "Ran in its own session."),
    "title": Column(TEXT, lambda g: g[1].title or None, "Title of its session."),
    "session": Column(TEXT, lambda g: g[1].id, "Session it was sent to."),
}

CHILDREN: Columns = {
    "session": Column(TEXT, lambda c: c.state.session.id, "Session id."),
    "tree": Column(
        TEXT,
        lambda c: f"{'   ' * (c.depth - 1)}└─ {c.state.session.title}",
        "Session title, indented by depth.",
    ),
    "depth": Column(COUNT, lambda c: c.depth, "Levels below the top session, from 1."),
    "parent": Column(TEXT, lambda c: c.state.session.parent, "Parent session."),
    "state": Column(CATEGORY, lambda c: c.state.state, "State, as in %oc_status."),
    "agent": Column(CATEGORY, lambda c: c.state.session.agent, "Agent that works in it."),
    "created": Column(TIME, lambda c: c.state.session.created, "Creation time."),
    "cost": Column(NUMBER, lambda c: _cost(c.state.session), "USD as the server stored it."),
}

TODOS: Columns = {
    "todo": Column(TEXT, lambda t: t.content, "Task."),
    "status": Column(CATEGORY, lambda t: t.status, "pending, in_progress, completed or cancelled."),
    "priority": Column(CATEGORY, lambda t: t.priority or None, "high, medium or low."),
}

EVENTS: Columns = {
    "time": Column(TIME, lambda n: n.time, "Arrival time, by this machine's clock."),
    "session": Column(TEXT, lambda n: n.session, "Session id; NA if the event names none."),
    "type": Column(CATEGORY, lambda n: n.type, "Event type, as the server names it."),
    "summary": Column(TEXT, lambda n: n.summary or None, "Content in a few words."),
    "raw": Column(OBJECT, lambda n: n.raw, "Event as received, a dict."),
}


# The columns of each magic's frame.
FRAMES: Mapping[str, Columns] = {
    "%oc_status": STATUS,
    "%oc_end": ENDED,
    "%oc_command --given": SENT_COMMANDS,
    "%oc_children": CHILDREN,
    "%oc_todo": TODOS,
    "%oc_watch": EVENTS,
}


def _cost(session: Session) -> float | None:
    return session.usage.cost if session.usage else None
