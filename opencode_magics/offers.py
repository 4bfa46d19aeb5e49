"""What a server offers and what waits in a session, as DataFrames.

Columns and dtypes are the same whatever is in them; unknown is NA.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .history.frames import TEXT, TIME, WORD, Column, Columns, frame
from .model import Command, InboxItem, Integration, McpServer, Rule, Skill

if TYPE_CHECKING:
    import pandas as pd


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
