"""Advice on sending requests again, and prompts whose answer is taken from history."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_server import DISCONNECT, HTML_PAGE, FakeServer, assistant, user, v1_routes
from support.generations import both_generations
from support.ipython_shell import Shell

from opencode_magics.client.client import Client
from opencode_magics.core import retry_safety
from opencode_magics.core.events import TurnEnded
from opencode_magics.core.fold import advance
from opencode_magics.core.model import (
    Attachment,
    FileDiff,
    Message,
    ModelRef,
    Session,
    StepStart,
    ToolCall,
)
from opencode_magics.core.turn import Turn
from opencode_magics.dialects.base import Request
from opencode_magics.errors import (
    OpenCodeError,
    ServerConnectionError,
    StatusError,
    TurnError,
    TurnInterrupted,
)
from opencode_magics.prompts import answered
from opencode_magics.prompts.answered import PromptKey
from opencode_magics.sessions import transcript
from opencode_magics.sessions.run import attach

ROOT = Session("ses_root01", "root", "/work/p")
PROMPT = Message("msg_1", "ses_root01", "user", created=1)


def turn_of(*tools: ToolCall, outcome: str = "aborted", diffs: tuple[FileDiff, ...] = ()) -> Turn:
    prompt = Message("msg_1", "ses_root01", "user", created=1, diffs=diffs)
    parts = (StepStart("prt_0"), *tools)
    answer = Message("msg_2", "ses_root01", "assistant", 2, parent="msg_1", parts=parts)
    turn = Turn("ses_root01", "msg_1", log=(prompt, answer))
    return turn if outcome == "running" else advance(turn, TurnEnded(outcome))


def tool(name: str, status: str = "completed") -> ToolCall:
    return ToolCall("prt_1", "call_1", name, status)


# -- assessments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turn", "state", "safety"),
    [
        (turn_of(), "stopped", "no_effects_seen"),
        (turn_of(tool("read")), "stopped", "no_effects_seen"),
        (turn_of(tool("bash", "pending")), "stopped", "no_effects_seen"),
        (turn_of(tool("bash", "error")), "stopped", "inspect"),
        (turn_of(tool("task")), "stopped", "inspect"),
        (turn_of(diffs=(FileDiff("a.txt"),)), "stopped", "inspect"),
        (turn_of(outcome="failed"), "stopped", "no_effects_seen"),
        (turn_of(outcome="running"), "running", "inspect"),
        (turn_of(outcome="unknown"), "unknown", "unknown"),
        (turn_of(tool("edit"), outcome="unknown"), "unknown", "inspect"),
    ],
)
def test_the_effects_of_a_turn_decide_whether_it_can_be_sent_again(
    turn: Turn, state: str, safety: str
) -> None:
    advice = retry_safety.assess_turn(turn)
    assert (advice.execution_state, advice.resend_safety) == (state, safety)
    assert "the request was sent" in advice.evidence


def test_only_requests_that_never_arrived_or_were_refused_are_safe() -> None:
    assert retry_safety.assess_turn(turn_of(), sent=False).resend_safety == "safe"
    assert retry_safety.assess_unanswered_request("POST /x", sent=False).resend_safety == "safe"
    assert retry_safety.assess_unanswered_request("POST /x", sent=True).resend_safety == "unknown"
    assert retry_safety.assess_refusal("POST /x", 404).resend_safety == "safe"
    assert retry_safety.assess_refusal("POST /x", 500).resend_safety == "unknown"
    for status in retry_safety.GATEWAY_STATUSES:
        assert retry_safety.assess_refusal("POST /x", status).resend_safety == "unknown"


def test_evidence_names_the_tools_and_the_files() -> None:
    advice = retry_safety.assess_turn(turn_of(tool("bash"), diffs=(FileDiff("a.txt"),)))
    assert "tools run: bash" in advice.evidence
    assert "files changed: a.txt" in advice.evidence
    assert str(advice).startswith("Check its effects before")


# -- advice in errors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "state", "safety"),
    [
        (DISCONNECT, "unknown", "unknown"),
        ((404, {}, b""), "stopped", "safe"),
        ((500, {}, b""), "unknown", "unknown"),
    ],
)
def test_every_failed_write_has_resend_advice(answer: Any, state: str, safety: str) -> None:
    routes = v1_routes() | {"POST /session/ses_root01/fork": answer}
    with FakeServer(routes) as fake, Client(fake.url) as client:
        with pytest.raises((ServerConnectionError, StatusError)) as caught:
            client.run(client.dialect.fork(ROOT))
        assert len(fake.asked("POST /session/ses_root01/fork")) == 1
    advice = caught.value.resend
    assert advice is not None
    assert (advice.execution_state, advice.resend_safety) == (state, safety)


@pytest.mark.parametrize("answer", [HTML_PAGE, {}, ["x"], 7, None], ids=repr)
@pytest.mark.parametrize(
    ("route", "write"),
    [
        ("POST /session", lambda c: c.create("title")),
        ("POST /session/ses_root01/fork", lambda c: c.run(c.dialect.fork(ROOT))),
    ],
)
def test_a_write_with_an_unreadable_reply_may_have_been_done(
    route: str, write: Callable[[Client], object], answer: Any
) -> None:
    with FakeServer(v1_routes() | {route: answer}) as fake, Client(fake.url) as client:
        with pytest.raises(OpenCodeError) as caught:
            write(client)
        assert len(fake.asked(route)) == 1
    advice = caught.value.resend
    assert advice is not None
    assert (advice.execution_state, advice.resend_safety) == ("unknown", "unknown")
    assert f"{route} was answered" in advice.evidence


@pytest.mark.parametrize(
    ("route", "line"),
    [
        ("POST /session", "%oc_new perhaps"),
        ("POST /session/ses_root01/fork", "%oc_fork"),
        ("PATCH /session/ses_root01", "%oc_rename perhaps"),
        ("POST /session/ses_root01/revert", "%oc_revert --yes"),
        ("POST /session/ses_root01/summarize", "%oc_compact"),
        ("POST /permission/per_1/reply", "%oc_reply per_1 once"),
    ],
)
def test_an_interrupted_write_shows_its_resend_advice_in_one_line(
    alone: Shell, route: str, line: str
) -> None:
    def interrupt(seen: Any) -> Any:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        fake.closing.wait(10.0)
        return DISCONNECT

    request = {"id": "per_1", "sessionID": "ses_root01", "permission": "bash", "patterns": ["ls"]}
    stored = [user("msg_u1"), assistant("msg_a1", "msg_u1", "done")]
    routes = v1_routes(message=stored, permission=[request]) | {route: interrupt}
    with FakeServer(routes) as fake:
        alone.run(f"%oc_connect {fake.url}\n%oc_session ses_root01")
        shown = alone.fails(line)
        fake.closing.set()
        assert len(fake.asked(route)) == 1
    assert isinstance(shown.error, TurnInterrupted)
    assert shown.error.resend is not None
    assert shown.error.resend.execution_state in ("unknown", "running")
    (message,) = (text for text in shown.lines if "Stopped" in text)
    assert "%oc_abort" in message or "It is unknown whether" in message


def test_a_failed_read_has_no_resend_advice() -> None:
    fake = FakeServer(v1_routes(session=(404, {}, b"")))
    with fake, Client(fake.url) as client, pytest.raises(StatusError) as caught:
        client.session("ses_root01")
    assert caught.value.resend is None


@pytest.fixture
def shell(shell: Shell) -> Shell:
    """Use a new session, and allow every permission."""
    shell.run("%config OpenCodeMagics.noninteractive = 'once'")
    shell.run("%oc_new once")
    return shell


def test_a_failed_turn_shows_its_resend_advice(shell: Shell) -> None:
    harmless = shell.fails("%oc_prompt #err400")
    assert isinstance(harmless.error, TurnError)
    assert harmless.error.resend is not None
    assert harmless.error.resend.resend_safety == "no_effects_seen"
    assert "No effects were seen" in harmless.text
    plan = '[{"calls": [["bash", {"command": "touch made", "description": "x"}]]}, '
    harmful = shell.fails(f'%oc_prompt #plan {plan}{{"failure": "garbage"}}]')
    assert "tools run: bash" in harmful.text
    assert "Check its effects" in harmful.text


# -- --once ----------------------------------------------------------------------------------------

TEXTS = st.text(max_size=5)
NAMES = st.sampled_from([None, "a", "b"])
FILES = st.lists(
    st.sampled_from([Attachment("", "m", n, u) for n in "ab" for u in "xy"]), max_size=2
)


@given(first=st.tuples(TEXTS, NAMES, NAMES, FILES), second=st.tuples(TEXTS, NAMES, NAMES, FILES))
def test_only_identical_prompts_have_the_same_digest(first: Any, second: Any) -> None:
    def digest(text: str, model: Any, agent: Any, files: Any) -> str:
        return answered.digest(text, files, model, agent, None)

    assert (digest(*first) == digest(*second)) == (first == second)


def prompt_key(**changes: Any) -> PromptKey:
    fields = {"text": "hi", "files": (), "digest": "d1", "model": ModelRef("acme", "m-1")}
    return PromptKey(**(fields | {"agent": "build"} | changes))


MODEL = {"providerID": "acme", "modelID": "m-1"}


def stored_messages(finish: str | None = "stop", **info: Any) -> list[dict[str, Any]]:
    from support.fake_server import assistant, user

    prompt = user("msg_1")
    prompt["info"] |= {"model": MODEL, "agent": "build"} | info
    return [prompt, assistant("msg_2", "msg_1", "hello", finish=finish)]


@pytest.mark.parametrize(
    ("messages", "prompt", "cached"),
    [
        (stored_messages(), prompt_key(), True),
        (stored_messages(), prompt_key(text="hi "), False),
        (stored_messages(), prompt_key(model=ModelRef("acme", "m-2")), False),
        (stored_messages(), prompt_key(model=ModelRef("acme", "m-1", "high")), False),
        (stored_messages(), prompt_key(agent="plan"), False),
        (stored_messages(), prompt_key(files=(Attachment("", "text/plain", "a", "x"),)), False),
        (stored_messages(finish=None), prompt_key(), False),
        (stored_messages(finish="tool-calls"), prompt_key(), False),
        ([], prompt_key(), False),
    ],
)
def test_only_an_identical_prompt_that_succeeded_has_a_cached_answer(
    messages: Any, prompt: PromptKey, cached: bool
) -> None:
    with FakeServer(v1_routes(message=messages)) as fake, Client(fake.url) as client:
        assert (answered.find_in_session(client, ROOT, prompt) is not None) == cached


@pytest.mark.parametrize(
    "metadata", [None, {"opencode_magics": 1}, {"opencode_magics": {"prompts": {"d1": 7}}}]
)
def test_metadata_of_other_clients_is_ignored(metadata: Any) -> None:
    from support.fake_server import SESSION

    routes = v1_routes(sessions=[{**SESSION, "metadata": metadata}], message=stored_messages())
    with FakeServer(routes) as fake, Client(fake.url) as client:
        assert answered.find_in_directory(client, "/work/p", prompt_key()) is None


def test_the_second_run_of_a_prompt_costs_nothing_and_says_so(shell: Shell, client: Client) -> None:
    session = shell.run("%oc_session").value
    assert "From history" not in shell.run("%oc_prompt --once #text 3").text
    again = shell.run("%oc_prompt --once -o turn #text 3")
    assert "From history" in again.text
    assert "word0 word1 word2" in again.text
    assert shell.user_ns["turn"].text == "word0 word1 word2"
    assert len(client.messages(session)) == 2
    shell.run("%oc_prompt --once #text 4")
    assert len(client.messages(session)) == 4


def test_a_prompt_that_was_sent_without_once_is_found_too(shell: Shell, client: Client) -> None:
    shell.run("%oc_prompt #text 3")
    assert "From history" in shell.run("%oc_prompt --once #text 3").text


@both_generations
def test_a_shell_command_run_since_does_not_change_the_answer(
    shell: Shell, client: Client, generation: str
) -> None:
    session = shell.run("%oc_session").value
    shell.run("%oc_prompt --once #text 3")
    root = "/api/session" if generation == "2.x" else "/session"
    body = {"agent": "build", "command": "echo hi"}
    reply = client.transport.send(Request("POST", f"{root}/{session.id}/shell", body=body))
    assert reply.status < 300
    (turn,) = transcript.read_transcript(client, session).turns
    assert (turn.outcome, turn.text) == ("succeeded", "word0 word1 word2")
    with attach(client, session) as run:
        run.start()
        *_, turn = run
    assert (turn.outcome, turn.text) == ("succeeded", "word0 word1 word2")
    assert "From history" in shell.run("%oc_prompt --once #text 3").text


def test_a_failed_turn_is_not_a_cached_answer(shell: Shell, client: Client) -> None:
    session = shell.run("%oc_session").value
    for _ in range(2):
        assert "From history" not in shell.fails("%oc_prompt --once #err400").text
    assert len(client.messages(session)) == 4


def test_a_reverted_turn_is_not_a_cached_answer(shell: Shell) -> None:
    shell.run("%oc_prompt --once #text 3")
    shell.run("%oc_revert")
    assert "From history" not in shell.run("%oc_prompt --once #text 3").text


def test_run_all_tomorrow_finds_the_sessions_of_today(
    shell: Shell, client: Client, workspace: Path
) -> None:
    (workspace / "note.txt").write_text("remember the milk")
    cells = (
        "%oc_prompt -n --once --file note.txt #text 3",
        "%oc_prompt --once #bash touch made",
    )
    for cell in cells:
        assert "From history" not in shell.run(cell).text
    session = shell.run("%oc_session").value
    (workspace / "made").unlink()
    shell.run("%reload_ext opencode_magics")
    before = len(client.sessions())
    for cell in cells:
        assert "From history" in shell.run(cell).text
    assert shell.run("%oc_session").value.id == session.id
    assert not (workspace / "made").exists()
    assert len(client.sessions()) == before
    (workspace / "note.txt").write_text("remember the bread")
    assert "From history" not in shell.run(cells[0]).text
