"""`%oc_permissions check` never says "allow" where the server would ask or deny."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from support.generations import tool_names
from support.ipython_shell import Shell

import opencode_magics
from opencode_magics.client.client import Client
from opencode_magics.core.model import Permission, Rule, Session
from opencode_magics.core.rules import Rulebook, needed_permissions
from opencode_magics.errors import UnknownNameError
from opencode_magics.practice.world import Practice
from opencode_magics.sessions.permissions import check, check_rule

BOTH_GENERATIONS = True
ALL_ASK = [{"permission": "*", "pattern": "*", "action": "ask"}]
SOME_COMMANDS = (
    "(cd /tmp; ls)",
    "cat /etc/hosts ../../x.txt",
    "echo $(rm x) `ls`",
    'echo "$(whoami)"',
    'echo "a;b" | cat',
    "if true; then ls; fi",
    "for i in 1 2; do echo $i; done",
    "sleep 0 & ls",
    "echo 'x && y' && pwd",
    "git commit -m 'a|b' 2>&1",
)


def test_a_tool_is_checked_by_the_action_that_it_asks_for(
    client: Client, session: Session, generation: str
) -> None:
    """Case W5: a new file is written by the action "edit"."""
    for tool in ("edit", "write", "apply_patch" if generation == "1.x" else "patch"):
        verdict = check(client, session, tool, ["new.txt"])
        assert (verdict.effect, str(verdict.rule)) == ("ask", "ask edit *"), tool


def test_an_unknown_action_is_refused_with_the_known_ones(
    client: Client, session: Session, shell: Shell, generation: str
) -> None:
    """Case W5: `shell` is an action of 2.x and `bash` of 1.x."""
    known, other = ("bash", "shell") if generation == "1.x" else ("shell", "bash")
    shell.run(f"%oc_session {session.id}")
    shown = shell.fails(f"%oc_permissions check {other} 'git push'")
    assert isinstance(shown.error, UnknownNameError)
    assert f"has no action or tool '{other}'. It has: " in shown.text.replace("\n", " ")
    assert known in shown.text
    with pytest.raises(UnknownNameError, match="no action"):
        check_rule(client, session.directory, Rule(other, "rm *", "deny"))
    with pytest.raises(UnknownNameError, match="would never apply: the server asks for 'edit'"):
        check_rule(client, session.directory, Rule("write", "*", "deny"))
    for action in (known, "*", "web*"):
        check_rule(client, session.directory, Rule(action, "rm *", "deny"))


def test_the_agent_of_the_session_now_is_checked(client: Client, session: Session) -> None:
    """Case W5: also after a switch that this copy of the session doesn't know."""
    assert check(client, session, "edit", ["notes.txt"]).effect == "ask"
    opencode_magics.ask(client, "#text 1", session=session, agent="reviewer")
    assert check(client, session, "edit", ["notes.txt"]).effect == "deny"


def test_the_rules_of_a_subagent_are_checked(
    client: Client, session: Session, generation: str
) -> None:
    """Case W5: the session of a subagent has the rules of its own agent."""
    task = "task" if generation == "1.x" else "subagent"
    opencode_magics.ask(client, "#task #text 1", session=session, on_permission="once")
    (child,) = client.run(client.dialect.children(session))
    assert child.agent == "general"
    if generation == "1.x":
        assert check(client, child, task, ["general"]).origin == "session"
    assert check(client, child, "edit", ["notes.txt"]).effect == "ask"


@pytest.mark.parametrize("path", ["/etc/hosts", "../else/x.txt", "sub/../../x"])
def test_a_path_outside_the_project_needs_another_permission(
    client: Client, session: Session, path: str
) -> None:
    """Case W5, its kind: the server asks for `external_directory` first."""
    verdict = check(client, session, "read", [path])
    assert (verdict.effect, verdict.rule.action) == ("ask", "external_directory")


def test_a_compound_command_is_as_strict_as_its_strictest_part(
    generation: str,
) -> None:
    """Case W5, its kind: an allowed beginning doesn't allow the rest."""
    (bash,) = tool_names(generation, "bash")
    rules = (Rule(bash, "git *", "allow"), Rule(bash, "rm *", "deny"))
    for command in ("git status && rm x", "git log; rm x", "git log $(rm x)", "git log | rm x"):
        needed = needed_permissions(bash, command, "/p")
        effects = {Rulebook(rules).decide(a, [r]).effect for a, r in needed}
        assert "deny" in effects, command


@pytest.mark.parametrize("folder", ["", "sub"])
def test_the_server_asks_for_what_a_check_looks_at(
    practice: Practice, folder: str, tmp_path: Path
) -> None:
    """The real 1.18.33, in the project's root and in a folder below it."""
    directory = practice.directory / folder
    directory.mkdir(exist_ok=True)
    (practice.directory / "x.txt").write_text("x")
    reply = httpx.post(
        f"{practice.url}/session",
        params={"directory": str(directory)},
        auth=("opencode", practice.password),
        json={"permission": ALL_ASK},
    )
    asked: list[tuple[str, str]] = []

    def allow(permission: Permission) -> str:
        asked.extend((permission.action, pattern) for pattern in permission.patterns)
        return "once"

    paths = ["x.txt", str(practice.directory / "x.txt"), str(tmp_path / "x.txt")]
    reads = [("read", "filePath", path) for path in paths]
    commands = [("bash", "command", command) for command in SOME_COMMANDS]
    with Client(practice.url, directory=str(directory), password=practice.password) as client:
        session = client.session(reply.json()["id"])
        for tool, name, value in [*reads, *commands]:
            asked.clear()
            calls = [[tool, {name: value, "description": "x"}]]
            plan = f"#plan {json.dumps([{'calls': calls}, {'text': 'Done.'}])}"
            opencode_magics.ask(client, plan, session=session, on_permission=allow)
            needed = needed_permissions(tool, value, session.directory, session.path)
            # A command with a substitution is also asked for as a whole.
            whole = {(tool, value)} if tool == "bash" else set()
            assert {*asked} <= {*needed} | whole, value
