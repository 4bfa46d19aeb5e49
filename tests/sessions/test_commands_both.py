"""Commands on 1.x: normal turns, whose prompt the server makes from a name and arguments."""

from __future__ import annotations

import time
from typing import Any

import pytest
from IPython.core.error import UsageError
from support.fake_server import DISCONNECT, FakeServer, v1_routes
from support.ipython_shell import Shell, wait_until_busy

from opencode_magics.client.client import Client
from opencode_magics.core.model import Session
from opencode_magics.core.turn import Turn
from opencode_magics.errors import (
    SessionBusyError,
    StatusError,
    TurnError,
    UnknownNameError,
    UnsupportedOperation,
)
from opencode_magics.sessions import commands

ROOT = Session("ses_root01", "root", "/work/p")


@pytest.fixture
def shell(shell: Shell) -> Shell:
    """A shell with a new session in which everything is allowed."""
    shell.run("%config OpenCodeMagics.noninteractive = 'once'")
    shell.run("%oc_new commands")
    return shell


def turn(shell: Shell, cell: str) -> Turn:
    shell.run(cell)
    last: Turn = shell.run("%oc_turn").value
    return last


def test_a_command_is_a_normal_turn(shell: Shell) -> None:
    made = turn(shell, "%oc_command explain #text 3")
    assert (made.outcome, made.text) == ("succeeded", "word0 word1 word2")
    assert made.question_text == "Explain #text 3"


def test_a_cell_is_sent_as_arguments_as_typed(shell: Shell) -> None:
    body = ">>> f({x!r}, $HOME)\n\n#text 2\n;"
    made = turn(shell, f"%%oc_command /explain\n{body}")
    assert made.question_text == f"Explain {body}"
    assert made.text == "word0 word1"


def test_the_answer_to_a_subtask_belongs_to_a_synthetic_message(shell: Shell) -> None:
    made = turn(shell, "%oc_command review #text 3")
    assert made.outcome == "succeeded"
    assert made.text.startswith("The work is done")
    assert [t.tool for t in made.tools] == ["task"]
    assert "word0 word1 word2" in made.tools[0].output


def test_a_commands_permissions_are_answered_while_it_runs(shell: Shell, workspace: Any) -> None:
    made = turn(shell, "%oc_command explain #bash touch made")
    assert made.outcome == "succeeded"
    assert (workspace / "made").exists()


def test_a_command_accepts_a_model_and_a_timeout(shell: Shell, client: Client) -> None:
    made = turn(shell, "%oc_command -m practice/frugal explain #text 2")
    assert str(made.model) == "practice/frugal"
    left = turn(shell, "%oc_command --timeout 1 explain #slow 20 .2")
    assert left.outcome == "running"
    shell.run("%oc_status --wait all --timeout 120")
    assert shell.run("%oc_turn").value.outcome == "succeeded"


def test_a_command_with_no_wait_goes_on(shell: Shell, client: Client) -> None:
    assert "Sent to session" in shell.run("%oc_command --no-wait explain #slow 20 .2").text
    wait_until_busy(client, shell.run("%oc_session").value)
    with pytest.raises(SessionBusyError):
        shell.run("%oc_command explain #text 2")
    shell.run("%oc_attach -o turn")
    assert shell.user_ns["turn"].outcome == "succeeded"


def test_an_unknown_name_is_not_sent(shell: Shell, client: Client) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'review'"):
        shell.run("%oc_command reveiw greet.py")
    assert client.messages(shell.run("%oc_session").value) == ()


def test_a_model_that_fails_fails_the_command(shell: Shell) -> None:
    with pytest.raises(TurnError, match="scripted failure 400"):
        shell.run("%oc_command explain #err400")


@pytest.mark.parametrize("cell", ["%oc_command", "# a comment\n%%oc_command review\nx"])
def test_invalid_options_are_an_error(shell: Shell, cell: str) -> None:
    with pytest.raises(UsageError):
        shell.run(cell)


def test_the_receipt_of_a_command_is_exact(shell: Shell, client: Client) -> None:
    receipt = shell.run("%oc_command explain #text 3").value
    turn = shell.run("%oc_turn").value
    assert (receipt.status, receipt.inputs, receipt.turn) == ("matched", (turn.prompt,), turn)
    assert receipt.invocation == turn.prompt
    again = shell.run(f"%oc_command --recover {receipt.invocation}").value
    assert (again.session, again.text) == (receipt.session, "word0 word1 word2")
    with pytest.raises(UnknownNameError):
        shell.run("%oc_command --recover msg_nope")
    with pytest.raises(UnsupportedOperation, match=r"1\.x .* 2\.x"):
        shell.run("%oc_command --given")


@pytest.mark.parametrize("fork", ["", "--fork"])
def test_an_isolated_command_has_a_session_of_its_own(shell: Shell, fork: str) -> None:
    current = shell.run("%oc_session").value
    shell.run("%oc_prompt #text 1")
    receipt = shell.run(f"%oc_command --isolated {fork} explain #text 2").value
    assert (receipt.text, receipt.turn.session) == ("word0 word1", receipt.session)
    assert receipt.session != current.id
    assert shell.run("%oc_session").value.id == current.id


# -- against a server that misbehaves --------------------------------------------------------------


def test_a_command_is_posted_once_after_a_disconnect() -> None:
    with FakeServer(v1_routes(command=DISCONNECT)) as fake, Client(fake.url) as client:
        run = commands.send_command(client, ROOT, "review", "x").run
        assert run
        began = time.monotonic()
        with run, pytest.raises(TurnError, match="sent once"):
            run.start()
        assert time.monotonic() - began < 30
        assert run.turn.outcome == "unknown"
    assert len(fake.asked("POST /session/ses_root01/command")) == 1


def test_a_refusal_is_reported_in_the_servers_words() -> None:
    no = (
        400,
        {"content-type": "application/json"},
        b'{"name":"BadRequest","data":{"message":"No"}}',
    )
    with FakeServer(v1_routes(command=no)) as fake, Client(fake.url) as client:
        run = commands.send_command(client, ROOT, "review", "x").run
        assert run
        with run, pytest.raises(StatusError, match="No"):
            run.start()
        assert not run.sent
