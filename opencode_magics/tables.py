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
    "model": Column(TEXT, lambda m: str(m.ref), "`provider/model`, as `--model` expects it."),
    "name": Column(TEXT, lambda m: m.name, "Display name."),
    "variants": Column(TEXT, lambda m: ", ".join(m.variants), "Variants (reasoning efforts)."),
    "default": Column(FLAG, lambda m: m.default, "Whether it is the server's configured model."),
    "context": Column(COUNT, lambda m: m.context, "Maximum prompt size, in tokens."),
    "output": Column(COUNT, lambda m: m.output, "Maximum answer size, in tokens."),
    "images": Column(FLAG, lambda m: m.images, "Whether it accepts images; NA if unknown."),
    "price_input": Column(NUMBER, lambda m: m.price_input, "USD per million tokens."),
    "price_output": Column(
        NUMBER, lambda m: m.price_output, "USD per million tokens, including reasoning."
    ),
    "price_cache_read": Column(NUMBER, lambda m: m.price_cache_read, "USD per million tokens."),
    "price_cache_write": Column(NUMBER, lambda m: m.price_cache_write, "USD per million tokens."),
}

_AGENT: Columns = {
    "agent": Column(TEXT, lambda a: a.name, "Name, as `--agent` expects it."),
    "mode": Column(CATEGORY, lambda a: a.mode, "primary, subagent or all."),
    "model": Column(
        TEXT, lambda a: str(a.model) if a.model else None, "Model of the agent, if it has its own."
    ),
    "description": Column(TEXT, lambda a: a.description, "Purpose of the agent."),
}

_REQUEST: Columns = {
    "id": Column(TEXT, lambda r: r[0].id, "Id of the request, for %oc_reply."),
    "kind": Column(CATEGORY, lambda r: type(r[0]).__name__.lower(), "permission or question."),
    "session": Column(TEXT, lambda r: r[0].session, "Session that is asking."),
    "title": Column(TEXT, lambda r: r[1].title, "Title of the session."),
    "action": Column(
        CATEGORY, lambda r: getattr(r[0], "action", None), "Requested action: bash, edit, ..."
    ),
    "asks": Column(TEXT, lambda r: _request_text(r[0]), "The command, the files or the question."),
    "always": Column(
        TEXT,
        lambda r: ", ".join(getattr(r[0], "always", ())) or None,
        'What "always" would allow.',
    ),
    "options": Column(TEXT, lambda r: _option_labels(r[0]), "Options of a question."),
}

_COMMAND: Columns = {
    "command": Column(TEXT, lambda c: c.name, "Name of the command."),
    "description": Column(TEXT, lambda c: c.description or None, "Purpose of the command."),
    "agent": Column(TEXT, lambda c: c.agent, "Agent that runs it, if it names one."),
    "model": Column(TEXT, lambda c: c.model, "Model that runs it, if it names one."),
}

_SKILL: Columns = {
    "skill": Column(TEXT, lambda s: s.id, "Id of the skill."),
    "name": Column(TEXT, lambda s: s.name, "Display name."),
    "description": Column(
        TEXT, lambda s: s.description or None, "When an agent should read the skill."
    ),
    "path": Column(TEXT, lambda s: s.path or None, "Path of the skill's file."),
}

_MCP: Columns = {
    "server": Column(TEXT, lambda m: m.name, "Name of the MCP server."),
    "status": Column(
        CATEGORY, lambda m: m.status or None, "connected, disabled, failed, needs_auth, ..."
    ),
    "error": Column(TEXT, lambda m: m.error or None, "Why the server failed."),
}

_INTEGRATION: Columns = {
    "integration": Column(TEXT, lambda i: i.id, "Id of the integration."),
    "name": Column(TEXT, lambda i: i.name, "Display name."),
    "methods": Column(TEXT, lambda i: ", ".join(i.methods) or None, "Ways to log in."),
    "connections": Column(TEXT, lambda i: ", ".join(i.connections) or None, "Connected accounts."),
}

_INBOX: Columns = {
    "id": Column(TEXT, lambda i: i.id, "Id of the item, and later of its message."),
    "kind": Column(CATEGORY, lambda i: i.kind, "user, synthetic, compaction or move."),
    "delivery": Column(CATEGORY, lambda i: i.delivery, "steer or queue."),
    "text": Column(TEXT, lambda i: i.text or None, "Text of the item."),
    "created": Column(TIME, lambda i: i.created, "Time of arrival."),
}

_RULE: Columns = {
    "origin": Column(CATEGORY, lambda r: r[0], "agent, session or saved."),
    "effect": Column(CATEGORY, lambda r: r[1].effect, "allow, ask or deny."),
    "action": Column(TEXT, lambda r: r[1].action, "Action that the rule applies to."),
    "resource": Column(TEXT, lambda r: r[1].resource, "Resource that the rule applies to."),
    "id": Column(TEXT, lambda r: r[2] or None, "Id of a saved rule, for %oc_permissions forget."),
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
    "session": Column(TEXT, lambda s: s.session.id, "Id of the session."),
    "title": Column(TEXT, lambda s: s.session.title or None, "Title of the session."),
    "state": Column(
        CATEGORY,
        lambda s: s.state,
        "idle, running, retrying, waiting_for_permission, waiting_for_question, ending, stale (its "
        "turn never ended and is no longer being worked on) or unknown.",
    ),
    "since": Column(TIME, lambda s: s.since, "Start of that state, if the server reports it."),
    "attempt": Column(COUNT, lambda s: s.attempt, "Number of the next retry."),
    "next_retry": Column(TIME, lambda s: s.retry_at, "Time of the next retry."),
    "pending": Column(
        COUNT,
        lambda s: None if s.error else len(s.requests),
        "Number of pending permissions and questions, including those of subagents.",
    ),
    "subagents": Column(COUNT, lambda s: s.subagents, "Number of running subagents."),
    "last_activity": Column(TIME, lambda s: s.last_activity, "Time of the last known activity."),
    "directory": Column(CATEGORY, lambda s: s.session.directory or None, "Working directory."),
    "evidence": Column(TEXT, lambda s: s.evidence or None, "Requests that reported the state."),
    "error": Column(TEXT, lambda s: s.error or None, "Why the state is unknown."),
}

ENDED: Columns = {
    "session": Column(
        TEXT, lambda e: e.session, "Id of the session, or the given name if no session matches."
    ),
    "title": Column(TEXT, lambda e: e.title or None, "Title of the session."),
    "status": Column(CATEGORY, lambda e: e.status, "ended, not_found or unconfirmed."),
    "action": Column(CATEGORY, lambda e: e.action, "delete or archive."),
    "aborted_running_turn": Column(
        FLAG, lambda e: e.aborted_running_turn, "Whether a running turn was aborted."
    ),
    "rejected": Column(
        TEXT, lambda e: ", ".join(e.rejected) or None, "Requests that were rejected."
    ),
    "cleanup": Column(CATEGORY, lambda e: e.cleanup, "complete or unconfirmed."),
    "elapsed": Column(NUMBER, lambda e: e.elapsed, "Duration in seconds."),
    "evidence": Column(TEXT, lambda e: e.evidence or None, "What the server reported."),
    "next": Column(TEXT, lambda e: e.todo or None, "What to do next."),
}

SENT_COMMANDS: Columns = {
    "invocation": Column(
        TEXT, lambda g: g[0].id, "Id of the invocation, for %oc_command --recover."
    ),
    "command": Column(CATEGORY, lambda g: g[0].name, "Name of the command."),
    "arguments": Column(
        TEXT, lambda g: g[0].text or None, "Arguments of the command, up to 2,000 characters."
    ),
    "given": Column(
        TIME, lambda g: g[0].at, "Time of the command, by the clock of the machine that sent it."
    ),
    "matched": Column(FLAG, lambda g: g[2], "Whether its turn was identified immediately."),
    "isolated": Column(FLAG, lambda g: g[0].isolated, "Whether it ran in its own session."),
    "title": Column(TEXT, lambda g: g[1].title or None, "Title of the session."),
    "session": Column(TEXT, lambda g: g[1].id, "Session that it was sent to."),
}

CHILDREN: Columns = {
    "session": Column(TEXT, lambda c: c.state.session.id, "Id of the subagent's session."),
    "tree": Column(
        TEXT,
        lambda c: f"{'   ' * (c.depth - 1)}└─ {c.state.session.title}",
        "Title, indented by depth.",
    ),
    "depth": Column(
        COUNT,
        lambda c: c.depth,
        "1 for a direct subagent, 2 for a subagent of that one, and so on.",
    ),
    "parent": Column(TEXT, lambda c: c.state.session.parent, "Parent session."),
    "state": Column(CATEGORY, lambda c: c.state.state, "State of the session, as in `%oc_status`."),
    "agent": Column(CATEGORY, lambda c: c.state.session.agent, "Agent of the session."),
    "created": Column(TIME, lambda c: c.state.session.created, "Time of creation."),
    "cost": Column(NUMBER, lambda c: _cost(c.state.session), "USD, as stored by the server."),
}

TODOS: Columns = {
    "todo": Column(TEXT, lambda t: t.content, "The task."),
    "status": Column(CATEGORY, lambda t: t.status, "pending, in_progress, completed or cancelled."),
    "priority": Column(CATEGORY, lambda t: t.priority or None, "high, medium or low."),
}

EVENTS: Columns = {
    "time": Column(TIME, lambda n: n.time, "Time of arrival, by the clock of this machine."),
    "session": Column(
        TEXT, lambda n: n.session, "Session of the event; NA if the event names none."
    ),
    "type": Column(CATEGORY, lambda n: n.type, "Type of the event, as the server names it."),
    "summary": Column(TEXT, lambda n: n.summary or None, "The event, in a few words."),
    "raw": Column(OBJECT, lambda n: n.raw, "The event as received, a dict."),
}


# The columns of each magic's frame.
FRAMES: Mapping[str, Columns] = {
    "%oc_models": _MODEL,
    "%oc_agents": _AGENT,
    "%oc_commands": _COMMAND,
    "%oc_skills": _SKILL,
    "%oc_mcp": _MCP,
    "%oc_integrations": _INTEGRATION,
    "%oc_permissions": _REQUEST,
    "%oc_permissions rules": _RULE,
    "%oc_inbox": _INBOX,
    "%oc_status": STATUS,
    "%oc_end": ENDED,
    "%oc_command --given": SENT_COMMANDS,
    "%oc_children": CHILDREN,
    "%oc_todo": TODOS,
    "%oc_watch": EVENTS,
}


def _cost(session: Session) -> float | None:
    return session.usage.cost if session.usage else None
