"""Errors say in short what failed and what to do, and partial turns are kept."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from support.fake_server import (
    ACCEPTED,
    DISCONNECT,
    HTML_PAGE,
    FakeServer,
    ReceivedRequest,
    assistant,
    frame,
    user,
    v1_routes,
)
from support.ipython_shell import Shell, connect_to_practice, is_short_error

from opencode_magics.client.client import Client
from opencode_magics.core.turn import Turn
from opencode_magics.dialects.base import Request
from opencode_magics.errors import (
    NotFoundError,
    OpenCodeError,
    ServerConnectionError,
    StatusError,
    TurnError,
    UnknownNameError,
    UnsupportedServerError,
)
from opencode_magics.practice.world import Practice


def fails(shell: Shell, cell: str, error: type[BaseException], *phrases: str) -> None:
    """Run a cell that fails with a short error that contains some phrases."""
    shown = shell.fails(cell)
    assert isinstance(shown.error, error)
    assert is_short_error(shown), shown.text
    assert all(phrase in shown.text for phrase in phrases), shown.text


# -- servers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["%oc_connect", "%oc_sessions", "%%oc_prompt\nhello"])
def test_a_missing_server_is_reported_with_how_to_start_one(alone: Shell, cell: str) -> None:
    fails(alone, cell, ServerConnectionError, "http://127.0.0.1:9", "Start one with %oc_start")


def test_a_web_page_is_not_a_server(alone: Shell) -> None:
    with FakeServer({}) as fake:
        fails(
            alone,
            f"%oc_connect {fake.url}",
            UnsupportedServerError,
            "GET /global/health -> 200 text/html",
            "Check the address",
        )


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:port", "http://x/?a=1"])
def test_an_invalid_address_is_reported(alone: Shell, url: str) -> None:
    fails(alone, f"%oc_connect {url}", ServerConnectionError, "Write it like")


def test_a_web_page_in_place_of_json_is_reported(alone: Shell) -> None:
    with FakeServer(v1_routes(sessions=HTML_PAGE)) as fake:
        alone.run(f"%oc_connect {fake.url};")
        fails(alone, "%oc_sessions", StatusError, "returned text/html instead of JSON")


@pytest.mark.parametrize(
    ("route", "options"),
    [
        ("status", ""),
        ("agent", "--agent plan"),
        ("providers", "--model practice/scripted"),
        ("config", "--variant high"),
    ],
)
def test_a_response_of_the_wrong_shape_is_reported(alone: Shell, route: str, options: str) -> None:
    """Only if the response is needed: names that aren't given aren't looked up."""
    with FakeServer(v1_routes(**{route: ["something", "else"]})) as fake:
        alone.run(f"%oc_connect {fake.url};")
        prompt = f"%%oc_prompt -s ses_root01 {options}\nhello"
        fails(alone, prompt, OpenCodeError, "can't be decoded")
        assert fake.asked("POST /session/ses_root01/prompt_async") == []


def test_a_removed_directory_is_reported(
    alone: Shell, practice: Practice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even `%xmode Verbose` must not show the password."""
    for name, value in practice.access.items():
        monkeypatch.setenv(name, value)
    alone.run("%xmode Verbose")
    monkeypatch.chdir(tmp_path)
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    shutil.rmtree(gone)
    shown = alone.fails("%oc_connect")
    alone.run("%xmode Context")
    assert practice.password not in shown.text
    assert is_short_error(shown)


# -- sessions --------------------------------------------------------------------------------------


def test_a_prompt_to_an_unknown_session_is_not_sent(shell: Shell) -> None:
    fails(shell, "%%oc_prompt -s ses_none\nhello", UnknownNameError, "No session 'ses_none'")
    shell.run("%oc_new one;\n%oc_new two;")
    fails(
        shell,
        "%%oc_prompt -s ses_\nhello",
        UnknownNameError,
        "matches",
        "Use a longer part of the id",
    )


def test_a_prompt_to_a_session_that_was_deleted_runs_nowhere(shell: Shell, client: Client) -> None:
    session = shell.run("%oc_new gone").value
    assert client.transport.send(Request("DELETE", f"/session/{session.id}")).status == 200
    shown = shell.fails("%%oc_prompt -o turn\nhello")
    assert isinstance(shown.error, NotFoundError)
    assert is_short_error(shown), shown.text
    assert session.id in shown.text
    assert "turn" not in shell.user_ns


# -- a prompt that does not arrive -----------------------------------------------------------------


def test_a_prompt_that_the_server_refuses_runs_nowhere(alone: Shell) -> None:
    body = b'{"name":"UnknownError","data":{"message":"Unexpected.","ref":"err_1"}}'

    def refuse(seen: ReceivedRequest) -> Any:
        path = f"/session/ses_root01/message/{seen.body['messageID']}"
        fake.routes[f"GET {path}"] = (404, {}, b'{"name":"NotFoundError"}')
        return 500, {"content-type": "application/json"}, body

    with FakeServer(v1_routes(prompt=refuse)) as fake:
        alone.run(f"%oc_connect {fake.url};")
        cell = "%%oc_prompt -s ses_root01 -o turn\nhello"
        fails(alone, cell, StatusError, "HTTP 500: Unexpected.", "err_1")
    assert "turn" not in alone.user_ns


def test_a_prompt_that_may_be_lost_leaves_an_unknown_turn(alone: Shell) -> None:
    """It is sent once, whatever happens."""
    with FakeServer(v1_routes(prompt=DISCONNECT)) as fake:
        alone.run(f"%oc_connect {fake.url};")
        shown = alone.fails("%%oc_prompt -s ses_root01 -o turn\nhello")
        assert len(fake.asked("POST /session/ses_root01/prompt_async")) == 1
    assert isinstance(shown.error, TurnError)
    assert shown.error.turn is alone.user_ns["turn"]
    assert alone.user_ns["turn"].outcome == "unknown"
    assert "It was sent once" in shown.text
    assert "Traceback" not in shown.text


# -- models ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "reason", "text"),
    [
        ("#err400", "APIError: scripted failure 400", ""),
        ("#err401", "APIError: scripted failure 401", ""),
        ("#garbage", "JSON parsing failed", "This answer turn"),
    ],
)
def test_a_model_that_fails_is_quoted_and_the_turn_is_kept(
    shell: Shell, script: str, reason: str, text: str
) -> None:
    shown = shell.fails(f"%%oc_prompt -o turn\n{script}")
    assert isinstance(shown.error, TurnError)
    assert shown.error.turn is shell.user_ns["turn"] is shell.run("%oc_turn").value
    assert (shown.error.turn.outcome, shown.error.turn.text) == ("failed", text)
    assert shown.lines[-2].startswith("TurnError: The turn failed: ")
    assert reason in shown.lines[-2]
    assert "Traceback" not in shown.text


@pytest.mark.parametrize(
    ("script", "timeout", "phrase"),
    [
        ("#err500", 8, "Retry 1: scripted failure 500"),
        ("#page", 3, "Still running on the server"),
        ("#hang", 3, "Still running on the server"),
    ],
)
def test_a_model_that_never_finishes_does_not_block_the_cell(
    shell: Shell, client: Client, script: str, timeout: int, phrase: str
) -> None:
    """1.18.33 retries forever; the cell shows that. The loop guard would stop `#page`."""
    shell.run("%config OpenCodeMagics.loop_guard = False")
    shown = shell.run(f"%%oc_prompt --timeout {timeout} -o turn\n{script}")
    turn: Turn = shell.user_ns["turn"]
    client.abort(client.session(turn.session))
    assert phrase in shown.text
    assert turn.outcome == "running"


@pytest.mark.parametrize("script", ["#err429 1", "#err500 1", "#drop 1"])
def test_a_model_that_recovers_ends_in_success(shell: Shell, script: str) -> None:
    shown = shell.run(f"%%oc_prompt -o turn\n{script}")
    assert "↻ Retry 1" in shown.text
    assert shell.user_ns["turn"].outcome == "succeeded"


def test_an_invalid_image_is_reported_with_the_servers_reason(shell: Shell, tmp_path: Path) -> None:
    """1.18.33 answers 204, and reports the error only on the stream."""
    (tmp_path / "page.png").write_text("<!doctype html>", encoding="utf-8")
    shown = shell.fails(f"%%oc_prompt --file {tmp_path}/page.png -o turn\nhello")
    assert "ImageDecodeError" in shown.lines[-2]
    assert shell.user_ns["turn"].outcome == "failed"


# -- on the way ------------------------------------------------------------------------------------


def test_a_server_that_is_killed_leaves_what_was_received(
    alone: Shell, opencode: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opencode_magics.sessions.follow._RESTART", 2.0)
    with Practice(command=opencode) as world:
        connect_to_practice(alone, world, monkeypatch)
        killer = threading.Thread(target=kill_when_it_writes, args=(world,))
        killer.start()
        shown = alone.fails("%%oc_prompt -o turn\n#slow 200 .1")
        killer.join()
        fails(alone, "%%oc_prompt\nhello", ServerConnectionError, "Start one with %oc_start")
    assert isinstance(shown.error, TurnError)
    turn: Turn = alone.user_ns["turn"]
    assert shown.error.turn is turn
    assert turn.outcome == "unknown"
    assert turn.text.startswith("slow0 slow1")
    assert "slow0 slow1" in shown.text
    assert shown.lines[-2].startswith("TurnError: The outcome of the turn is unknown: Connection")
    assert turn.session in shown.lines[-1]
    assert "Traceback" not in shown.text


def kill_when_it_writes(world: Practice) -> None:
    """Kill the server of a world once an answer has begun to stream."""
    with Client(world.url, directory=str(world.directory), password=world.password) as client:
        stream = client.stream()
        words = 0
        while words < 5:
            events: list[Any] = stream.take(1.0)
            words += sum("slow" in getattr(event, "text", "") for event in events)
        os.killpg(world.server.pid, signal.SIGKILL)
        stream.close()


class Accepting:
    """A route that accepts a prompt, and remembers its id."""

    def __init__(self) -> None:
        self.sent = threading.Event()
        self.prompt = ""

    def __call__(self, seen: Any) -> Any:
        self.prompt = seen.body["messageID"]
        self.sent.set()
        return ACCEPTED


def test_an_answer_that_the_server_refuses_is_reported_and_the_turn_is_kept(alone: Shell) -> None:
    """The answer is sent four times while the request is pending."""
    asked = {
        "id": "per_1",
        "sessionID": "ses_root01",
        "permission": "bash",
        "patterns": ["ls"],
        "metadata": {"command": "ls"},
    }
    accept = Accepting()
    routes = v1_routes(prompt=accept, permission=[asked])
    routes["POST /permission/per_1/reply"] = (500, {}, b"")
    with FakeServer(routes, [[accept.sent.wait, frame("permission.asked", **asked)]]) as fake:
        alone.run(f"%oc_connect {fake.url};")
        shown = alone.fails("%%oc_prompt -s ses_root01 -o turn\nhello")
        assert len(fake.asked("POST /permission/per_1/reply")) > 1
    assert isinstance(shown.error, TurnError)
    assert "POST /permission/per_1/reply failed with HTTP 500" in shown.text
    turn = alone.user_ns["turn"]
    assert turn.outcome == "unknown"
    assert [r.id for r in turn.waiting] == ["per_1"]


def test_an_answer_from_another_agent_is_reported(alone: Shell) -> None:
    """Case G1-33."""
    accept = Accepting()
    routes = v1_routes(
        prompt=accept,
        message=lambda seen: [user(accept.prompt), assistant("msg_2", accept.prompt, "Done.")],
    )
    idle = frame("session.idle", sessionID="ses_root01")
    with FakeServer(routes, [[accept.sent.wait, idle]]) as fake:
        alone.run(f"%oc_connect {fake.url};")
        shown = alone.run("%%oc_prompt -s ses_root01 --agent plan\nhello")
        (sent,) = fake.asked("POST /session/ses_root01/prompt_async")
    assert sent.body["agent"] == "plan"
    assert "Agent 'build' answered, although the prompt was for 'plan'." in shown.text
