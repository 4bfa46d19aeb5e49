"""The agent and the model that a prompt asks for are those that answer it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.ipython_shell import Shell

import opencode_magics
from opencode_magics.client.client import Client
from opencode_magics.core.model import ModelRef, Session
from opencode_magics.core.turn import Turn
from opencode_magics.errors import UnknownNameError
from opencode_magics.notebook import wording

BOTH_GENERATIONS = True
FRUGAL = ModelRef("practice", "frugal")


@pytest.fixture
def notes(shell: Shell, workspace: Path) -> Path:
    """A file that only "reviewer" may not edit, in the workspace of a new session."""
    shell.run("%oc_new")
    shell.run("%config OpenCodeMagics.permission = 'once'")
    (workspace / "notes.txt").write_text("hello\n")
    return workspace / "notes.txt"


@pytest.mark.parametrize("options", ["--agent reviewer", "", "-m practice/frugal --agent reviewer"])
def test_the_agent_of_a_prompt_is_compared_with_that_of_the_session_now(
    shell: Shell, client: Client, notes: Path, options: str
) -> None:
    """Case W3: the session was read while its agent was "reviewer"; "build" answered since."""
    shell.run("%oc_prompt --agent reviewer #text 1")
    session = shell.run("%oc_session").value
    shell.run(f"%oc_session {session.id}")
    shell.run("%oc_prompt --agent build #text 1")
    if not options:
        shell.run("%config OpenCodeMagics.agent = 'reviewer'")
    shell.run(f"%oc_prompt -o turn {options} #edit notes.txt")
    assert shell.run("turn").value.agent == "reviewer"
    assert notes.read_text() == "hello\n"
    assert client.session(session.id).agent == "reviewer"


def test_a_model_is_compared_with_that_of_the_session_now(shell: Shell, client: Client) -> None:
    """Case W3, for the model."""
    shell.run("%oc_new")
    session = shell.run("%oc_session").value
    shell.run("%oc_prompt -m practice/frugal #text 1")
    shell.run(f"%oc_session {session.id}")
    shell.run("%oc_prompt -m practice/scripted #text 1")
    shell.run("%oc_prompt -o turn -m practice/frugal #text 1")
    assert shell.run("turn").value.model == FRUGAL


def test_an_agent_and_a_model_stay_with_the_session(client: Client, session: Session) -> None:
    """Case W3: the same rule on both generations, whatever the caller knows of the session."""
    turn = opencode_magics.ask(client, "#text 1", session=session, agent="plan", model=str(FRUGAL))
    later = opencode_magics.ask(client, "#text 1", session=session)
    assert [(t.agent, t.model) for t in (turn, later)] == [("plan", FRUGAL)] * 2


def test_a_variant_is_one_of_the_sessions_model(
    client: Client, session: Session, generation: str
) -> None:
    """Case W4: not of the default model."""
    opencode_magics.ask(client, "#text 1", session=session, model=str(FRUGAL))
    with pytest.raises(UnknownNameError, match="practice/frugal has no variant 'none'"):
        opencode_magics.ask(client, "#text 1", session=session, variant="none")
    if generation == "1.x":
        turn = opencode_magics.ask(client, "#text 1", session=session, variant="high")
        assert turn.model == replace(FRUGAL, variant="high")


@pytest.mark.parametrize("other", ["-m practice/frugal", "--agent reviewer"])
def test_a_cell_is_not_sent_again_after_another_model_or_agent_answered(
    shell: Shell, client: Client, other: str
) -> None:
    """Case W6: what was asked decides, so that Run All sends nothing."""
    shell.run("%oc_new")
    session = shell.run("%oc_session").value
    for _ in range(3):
        shell.run("%oc_prompt --once #text 1")
        shell.run(f"%oc_prompt --once {other} #text 2")
    prompts = [m for m in client.messages(session) if m.role == "user"]
    assert len(prompts) == 2


def test_the_first_line_names_who_will_answer(client: Client, session: Session) -> None:
    """Case W3: before the agent does anything."""
    opencode_magics.ask(client, "#text 1", session=session, agent="plan", model=str(FRUGAL))
    seen: list[Turn] = []
    opencode_magics.ask(client, "#slow 4 .1", session=session, on_update=seen.append)
    assert wording.summary(seen[0]).startswith("running · plan · practice/frugal")
