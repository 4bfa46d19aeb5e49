"""Magics for commands, skills, MCP servers, rules, inbox, environment and instructions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from IPython.core.error import UsageError
from support.generations import tool_names
from support.ipython_shell import Shell, connect_to_practice, is_short_error, isolated_shell

from opencode_magics.errors import UnknownNameError, UnsupportedOperation
from opencode_magics.practice.simulator.server import Simulator
from opencode_magics.practice.world import Practice

BOTH_GENERATIONS = True
second_only = pytest.mark.parametrize("generation", ["2.x"])
first_only = pytest.mark.parametrize("generation", ["1.x"])


@pytest.fixture
def shell(
    world: Practice | Simulator,
    workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Shell]:
    """A shell in the workspace, with the practice world's server and a new session."""
    with isolated_shell(tmp_path, monkeypatch) as shell:
        connect_to_practice(shell, world, monkeypatch)
        shell.run("%oc_new about offers")
        yield shell


# -- on both generations ---------------------------------------------------------------------------


def test_commands_and_skills_are_frames(shell: Shell) -> None:
    commands, skills = shell.run("%oc_commands").value, shell.run("%oc_skills").value
    assert {"explain", "review"} <= set(commands["command"])
    assert list(commands.columns) == ["command", "description", "agent", "model"]
    assert list(skills.columns) == ["skill", "name", "description", "path"]
    assert list(map(str, skills.dtypes)) == ["string"] * 4


def test_an_mcp_server_is_added_and_listed(shell: Shell) -> None:
    listed = shell.run("%oc_mcp --add nothing --command 'no-such-program --x'").value
    assert list(listed["server"]) == ["nothing"]
    assert next(iter(listed["status"])) in ("failed", "connected")


@pytest.mark.parametrize("line", ["--add x", "--url http://x", "--add x --url u --command c"])
def test_an_incomplete_mcp_server_is_refused(shell: Shell, line: str) -> None:
    with pytest.raises(UsageError):
        shell.run(f"%oc_mcp {line}")


def test_a_check_says_what_would_happen_and_why(shell: Shell, generation: str) -> None:
    (bash,) = tool_names(generation, "bash")
    verdict = shell.run(f"%oc_permissions check {bash} 'git push'").value
    assert (verdict.effect, verdict.origin, verdict.rule.action) == ("ask", "agent", bash)
    assert shell.run("%oc_permissions check read greet.py").value.effect == "allow"
    rules = shell.run("%oc_permissions rules").value
    assert list(rules.columns) == ["origin", "effect", "action", "resource", "id"]
    assert (rules["origin"] == "agent").any()


@pytest.mark.parametrize("line", ["check", "check shell", "set", "set 'allow'", "set 'may x y'",
                                  "rules x", "forget"])  # fmt: skip
def test_an_invalid_rules_line_is_refused(shell: Shell, line: str) -> None:
    with pytest.raises(UsageError):
        shell.run(f"%oc_permissions {line}")


# -- on 2.x ----------------------------------------------------------------------------------------


@second_only
def test_the_rules_of_a_session_are_set_and_obeyed(shell: Shell, workspace: Path) -> None:
    rules = shell.run("%oc_permissions set 'deny shell touch *' 'allow shell echo *'").value
    assert list(rules[rules["origin"] == "session"]["effect"]) == ["deny", "allow"]
    verdict = shell.run("%oc_permissions check shell 'touch made'").value
    assert (verdict.effect, verdict.origin) == ("deny", "session")
    shell.run("%oc_prompt #bash touch made")
    assert not (workspace / "made").exists()
    shell.run("%oc_prompt #bash echo hi > made")
    assert (workspace / "made").exists()
    rules = shell.run("%oc_permissions set none").value
    assert not (rules["origin"] == "session").any()


@second_only
def test_an_always_answer_is_listed_and_revoked(shell: Shell) -> None:
    shell.types("2")
    shell.run("%oc_prompt #bash hostname")
    rules = shell.run("%oc_permissions rules").value
    saved = rules[(rules["origin"] == "saved") & (rules["resource"] == "hostname *")]
    assert list(saved["effect"]) == ["allow"]
    assert shell.run("%oc_permissions check shell hostname").value.origin == "saved"
    left = shell.run(f"%oc_permissions forget {saved['id'].iloc[0]}").value
    assert not (left["resource"] == "hostname *").any()


@second_only
def test_the_inbox_lists_waiting_prompts(shell: Shell) -> None:
    shell.run("%oc_prompt --no-wait #slow 400 .1")
    shell.run("%oc_prompt --no-wait --queue #text 2")
    shell.run("%oc_prompt --no-wait --queue #text 3")
    inbox = shell.run("%oc_inbox").value
    assert list(inbox["text"]) == ["#text 2", "#text 3"]
    assert list(inbox["delivery"]) == ["queue", "queue"]
    assert str(inbox["created"].dtype) == "datetime64[ms, UTC]"
    first, second = inbox["id"]
    with pytest.raises(UnknownNameError, match="could be any of"):
        shell.run("%oc_inbox --cancel msg_")
    assert list(shell.run(f"%oc_inbox --cancel {first}").value["id"]) == [second]
    assert list(shell.run(f"%oc_inbox --steer {second}").value["delivery"]) == ["steer"]
    failed = shell.fails(f"%oc_inbox --cancel {first}")
    assert is_short_error(failed)


@second_only
def test_a_prompt_steers_the_running_turn(shell: Shell) -> None:
    shell.run("%oc_prompt --no-wait #bash sleep 1")
    shell.run("%oc_prompt --no-wait --steer #text 3")
    shell.run("%oc_attach --permission once -o turn")
    assert shell.user_ns["turn"].text == "word0 word1 word2"


@second_only
def test_variables_reach_the_shell_commands_of_the_session(shell: Shell) -> None:
    assert "commands: PARTY, TZ." in shell.run("%oc_env PARTY=tonight TZ=UTC").text
    shell.run("%oc_prompt --permission once -o turn #bash echo $PARTY")
    assert shell.user_ns["turn"].tools[0].output == "tonight\n"
    assert "commands: none." in shell.run("%oc_env --clear").text
    for line in ("", "PARTY", "--clear A=1", "=x"):
        with pytest.raises(UsageError):
            shell.run(f"%oc_env {line}")


@second_only
def test_instructions_are_added_and_removed(shell: Shell) -> None:
    assert shell.run('%oc_instructions tone "Be kind."').value == {"tone": "Be kind."}
    instructions = shell.run('%oc_instructions limits {"words": 9}').value
    assert instructions == {"tone": "Be kind.", "limits": {"words": 9}}
    assert shell.run("%oc_instructions --delete tone").value == {"limits": {"words": 9}}
    with pytest.raises(UsageError):
        shell.run("%oc_instructions tone")


@second_only
def test_integrations_are_a_frame_and_mcp_servers_are_removed(shell: Shell) -> None:
    frame = shell.run("%oc_integrations").value
    assert isinstance(frame, pd.DataFrame)
    assert list(frame["connections"]) == ["PRACTICE_KEY"]
    shell.run("%oc_mcp --add far --url http://127.0.0.1:9/mcp")
    assert "far" not in set(shell.run("%oc_mcp --remove far").value["server"])


# -- on 1.x ----------------------------------------------------------------------------------------


@first_only
@pytest.mark.parametrize(
    "line",
    [
        "%oc_inbox",
        "%oc_env A=1",
        "%oc_instructions",
        "%oc_integrations",
        "%oc_mcp --remove x",
        "%oc_permissions set 'allow bash ls'",
        "%oc_prompt --steer hello",
    ],
)
def test_features_that_1x_lacks_raise_a_short_error(shell: Shell, line: str) -> None:
    shown = shell.fails(line)
    assert isinstance(shown.error, UnsupportedOperation)
    assert "OpenCode 1.x doesn't support" in shown.text
    assert "OpenCode 2.x does" in shown.text
    assert is_short_error(shown)
