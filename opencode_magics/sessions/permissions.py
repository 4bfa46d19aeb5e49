"""What the agent of a session may do: the rules that apply now, and a check of one action."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

from ..client.client import Client, optional
from ..core.model import Rule, SavedRule, Session
from ..core.rules import Rulebook, Verdict, needed_permissions, strictest
from ..errors import UnknownNameError, UnsupportedOperation


def session_rules(client: Client, session: Session) -> Rulebook:
    """The permission rules that apply in a session now, for the agent that it has now.

    On 2.x they include the rules saved by "always" for the session's project; 1.x doesn't
    report those.
    """
    now = client.session(session.id)
    name = now.agent or client.run(client.dialect.default_agent(now.directory))
    agent = next((a.rules for a in client.agents(now.directory) if a.name == name), None)
    saved: tuple[SavedRule, ...] = ()
    with suppress(UnsupportedOperation):
        saved = optional(lambda: client.run(client.dialect.saved_rules()), saved)
    return Rulebook(agent, now.rules, tuple(s for s in saved if s.project in ("", now.project)))


def check(client: Client, session: Session, action: str, resources: Sequence[str]) -> Verdict:
    """Decide as the server would if the session's agent acted now.

    Args:
        client: The server.
        session: The session.
        action: An action, or a tool: `write` asks for the action `edit`.
        resources: What it acts on: paths as seen from the session's directory, commands, agents.

    Returns:
        The strictest of the decisions on everything that the server would ask for.

    Raises:
        UnknownNameError: The server has no such action or tool.
    """
    action = choose_action(client, session.directory, action)
    rules, now = session_rules(client, session), client.session(session.id)
    return strictest(
        rules.decide(needed, [target])
        for resource in resources
        for needed, target in needed_permissions(action, resource, now.directory, now.path)
    )


def choose_action(client: Client, directory: str, name: str) -> str:
    """Return the action that the server asks for when an agent uses a tool or takes an action.

    Raises:
        UnknownNameError: There is no such action or tool, so a rule for it would never apply.
    """
    actions = client.dialect.actions
    if name in actions:
        return actions[name]
    servers = optional(lambda: client.run(client.dialect.mcp(directory)), ())
    # The name of an MCP tool begins with that of its server, with "_" for special characters.
    prefixes = [re.sub(r"[^A-Za-z0-9_-]", "_", server.name) + "_" for server in servers]
    if name.startswith(tuple(prefixes)):
        return name
    raise UnknownNameError(
        f"OpenCode {client.dialect.generation} has no action or tool {name!r}.",
        f"It has: {', '.join(sorted(actions))}, and <server>_<tool> of MCP servers.",
    )


def check_rule(client: Client, directory: str, rule: Rule) -> None:
    """Check that a new rule can apply: a rule for an unknown action would do nothing.

    Raises:
        UnknownNameError: There is no such action, or it is the name of a tool.
    """
    if "*" in rule.action or "?" in rule.action:
        return
    action = choose_action(client, directory, rule.action)
    if action != rule.action:
        raise UnknownNameError(
            f"A rule for {rule.action!r} would never apply: the server asks for {action!r}.",
            f"Write it as '{rule.effect} {action} {rule.resource}'.",
        )
