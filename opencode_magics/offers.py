"""What a server offers and what waits in a session, as DataFrames.

Columns and dtypes are the same whatever is in them; unknown is NA.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from .history.frames import TEXT, TIME, WORD, Column, _frame
from .model import Command, InboxItem, Integration, McpServer, Rule, Skill

if TYPE_CHECKING:
    import pandas as pd


def commands(values: Iterable[Command]) -> pd.DataFrame:
    """Commands, one row each: command, description, agent and model (their own, else NA)."""
    return _frame(_COMMAND, values)


def skills(values: Iterable[Skill]) -> pd.DataFrame:
    """Skills, one row each: skill (its id), name, description, path."""
    return _frame(_SKILL, values)


def mcp(values: Iterable[McpServer]) -> pd.DataFrame:
    """MCP servers, one row each: server, status, error."""
    return _frame(_MCP, values)


def integrations(values: Iterable[Integration]) -> pd.DataFrame:
    """Integrations, one row each: integration, name, methods and connections (listed)."""
    return _frame(_INTEGRATION, values)


def inbox(values: Iterable[InboxItem]) -> pd.DataFrame:
    """What waits in an inbox, one row each: id, kind, delivery, text, created (UTC, ms)."""
    return _frame(_INBOX, values)


def rules(values: Iterable[tuple[str, Rule, str]]) -> pd.DataFrame:
    """Permission rules in the order in which they count, the last that matches wins.

    Returns:
        Columns origin (agent, session, saved), effect, action, resource, and id (of a saved rule).
    """
    return _frame(_RULE, values)


_COMMAND: Mapping[str, Column] = {
    "command": (TEXT, lambda c: c.name),
    "description": (TEXT, lambda c: c.description or None),
    "agent": (TEXT, lambda c: c.agent),
    "model": (TEXT, lambda c: c.model),
}

_SKILL: Mapping[str, Column] = {
    "skill": (TEXT, lambda s: s.id),
    "name": (TEXT, lambda s: s.name),
    "description": (TEXT, lambda s: s.description or None),
    "path": (TEXT, lambda s: s.path or None),
}

_MCP: Mapping[str, Column] = {
    "server": (TEXT, lambda m: m.name),
    "status": (WORD, lambda m: m.status or None),
    "error": (TEXT, lambda m: m.error or None),
}

_INTEGRATION: Mapping[str, Column] = {
    "integration": (TEXT, lambda i: i.id),
    "name": (TEXT, lambda i: i.name),
    "methods": (TEXT, lambda i: ", ".join(i.methods) or None),
    "connections": (TEXT, lambda i: ", ".join(i.connections) or None),
}

_INBOX: Mapping[str, Column] = {
    "id": (TEXT, lambda i: i.id),
    "kind": (WORD, lambda i: i.kind),
    "delivery": (WORD, lambda i: i.delivery),
    "text": (TEXT, lambda i: i.text or None),
    "created": (TIME, lambda i: i.created),
}

_RULE: Mapping[str, Column] = {
    "origin": (WORD, lambda r: r[0]),
    "effect": (WORD, lambda r: r[1].effect),
    "action": (TEXT, lambda r: r[1].action),
    "resource": (TEXT, lambda r: r[1].resource),
    "id": (TEXT, lambda r: r[2] or None),
}
