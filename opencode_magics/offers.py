"""What a server offers and what waits in a session, as DataFrames.

Columns and dtypes are the same whatever is in them; unknown is NA.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .columns import COUNT, FLAG, NUMBER, TEXT, TIME, WORD, Column, Columns, frame
from .model import (
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
)

if TYPE_CHECKING:
    import pandas as pd


def models(values: Iterable[Model]) -> pd.DataFrame:
    """Models as a frame, one row each."""
    return frame(_MODEL, values)


def agents(values: Iterable[Agent]) -> pd.DataFrame:
    """Agents as a frame, one row each."""
    return frame(_AGENT, values)


def requests(values: Iterable[tuple[Permission | Question, Session]]) -> pd.DataFrame:
    """Permissions and questions that wait, one row each."""
    return frame(_REQUEST, values)


def commands(values: Iterable[Command]) -> pd.DataFrame:
    """Commands, one row each: command, description, agent and model (their own, else NA)."""
    return frame(_COMMAND, values)


def skills(values: Iterable[Skill]) -> pd.DataFrame:
    """Skills, one row each: skill (its id), name, description, path."""
    return frame(_SKILL, values)


def mcp(values: Iterable[McpServer]) -> pd.DataFrame:
    """MCP servers, one row each: server, status, error."""
    return frame(_MCP, values)


def integrations(values: Iterable[Integration]) -> pd.DataFrame:
    """Integrations, one row each: integration, name, methods and connections (listed)."""
    return frame(_INTEGRATION, values)


def inbox(values: Iterable[InboxItem]) -> pd.DataFrame:
    """What waits in an inbox, one row each: id, kind, delivery, text, created (UTC, ms)."""
    return frame(_INBOX, values)


def rules(values: Iterable[tuple[str, Rule, str]]) -> pd.DataFrame:
    """Permission rules in the order in which they count, the last that matches wins.

    Returns:
        Columns origin (agent, session, saved), effect, action, resource, and id (of a saved rule).
    """
    return frame(_RULE, values)


def _asks(request: Permission | Question) -> str:
    if isinstance(request, Permission):
        return request.subject
    return " / ".join(item.question for item in request.items)


def _options(request: Permission | Question) -> str | None:
    if isinstance(request, Permission):
        return None
    offered = (", ".join(o.label for o in item.options) for item in request.items)
    return " / ".join(offered)


_MODEL: Columns = {
    "model": Column(TEXT, lambda m: str(m.ref), "`provider/model`, as prompts take it."),
    "name": Column(TEXT, lambda m: m.name, "Its name."),
    "variants": Column(TEXT, lambda m: ", ".join(m.variants), "Its variants."),
    "default": Column(FLAG, lambda m: m.default, "The server's configured model."),
    "context": Column(COUNT, lambda m: m.context, "Tokens that fit into a prompt."),
    "output": Column(COUNT, lambda m: m.output, "Tokens that an answer may have."),
    "images": Column(FLAG, lambda m: m.images, "Whether it takes images; NA where nobody tells."),
    "price_input": Column(NUMBER, lambda m: m.price_input, "USD per million tokens."),
    "price_output": Column(
        NUMBER, lambda m: m.price_output, "USD per million tokens, reasoning included."
    ),
    "price_cache_read": Column(NUMBER, lambda m: m.price_cache_read, "USD per million tokens."),
    "price_cache_write": Column(NUMBER, lambda m: m.price_cache_write, "USD per million tokens."),
}

_AGENT: Columns = {
    "agent": Column(TEXT, lambda a: a.name, "Its name, as prompts take it."),
    "mode": Column(WORD, lambda a: a.mode, "primary, subagent or all."),
    "model": Column(TEXT, lambda a: str(a.model) if a.model else None, "Its own model, if any."),
    "description": Column(TEXT, lambda a: a.description, "What it is for."),
}

_REQUEST: Columns = {
    "id": Column(TEXT, lambda r: r[0].id, "The request, for %oc_reply."),
    "kind": Column(WORD, lambda r: type(r[0]).__name__.lower(), "permission or question."),
    "session": Column(TEXT, lambda r: r[0].session, "Who asks."),
    "title": Column(TEXT, lambda r: r[1].title, "The title of that session."),
    "action": Column(WORD, lambda r: getattr(r[0], "action", None), "bash, edit, ..."),
    "asks": Column(TEXT, lambda r: _asks(r[0]), "The command, the files, the question."),
    "always": Column(
        TEXT,
        lambda r: ", ".join(getattr(r[0], "always", ())) or None,
        "What `always` would allow.",
    ),
    "options": Column(TEXT, lambda r: _options(r[0]), "What a question offers."),
}

_COMMAND: Columns = {
    "command": Column(TEXT, lambda c: c.name, "Its name."),
    "description": Column(TEXT, lambda c: c.description or None, "What it is for."),
    "agent": Column(TEXT, lambda c: c.agent, "The agent that it is for, else NA."),
    "model": Column(TEXT, lambda c: c.model, "Its own model, else NA."),
}

_SKILL: Columns = {
    "skill": Column(TEXT, lambda s: s.id, "Its id."),
    "name": Column(TEXT, lambda s: s.name, "Its name."),
    "description": Column(TEXT, lambda s: s.description or None, "When an agent should read it."),
    "path": Column(TEXT, lambda s: s.path or None, "Where it stands."),
}

_MCP: Columns = {
    "server": Column(TEXT, lambda m: m.name, "Its name."),
    "status": Column(
        WORD, lambda m: m.status or None, "connected, disabled, failed, needs_auth, ..."
    ),
    "error": Column(TEXT, lambda m: m.error or None, "Why it failed."),
}

_INTEGRATION: Columns = {
    "integration": Column(TEXT, lambda i: i.id, "Its id."),
    "name": Column(TEXT, lambda i: i.name, "Its name."),
    "methods": Column(TEXT, lambda i: ", ".join(i.methods) or None, "How one can log in."),
    "connections": Column(
        TEXT, lambda i: ", ".join(i.connections) or None, "The accounts that the server has."
    ),
}

_INBOX: Columns = {
    "id": Column(TEXT, lambda i: i.id, "Its id, which is that of its message later."),
    "kind": Column(WORD, lambda i: i.kind, "user, synthetic, compaction, move."),
    "delivery": Column(WORD, lambda i: i.delivery, "steer or queue."),
    "text": Column(TEXT, lambda i: i.text or None, "What it says."),
    "created": Column(TIME, lambda i: i.created, "When it came (UTC)."),
}

_RULE: Columns = {
    "origin": Column(WORD, lambda r: r[0], "agent, session or saved."),
    "effect": Column(WORD, lambda r: r[1].effect, "allow, ask or deny."),
    "action": Column(TEXT, lambda r: r[1].action, "What is done."),
    "resource": Column(TEXT, lambda r: r[1].resource, "To what."),
    "id": Column(TEXT, lambda r: r[2] or None, "Of a saved rule."),
}
