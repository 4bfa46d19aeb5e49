"""How a turn ends if the server refuses, forgets, or doesn't answer: in bounded time, by name."""

from __future__ import annotations

import time
from typing import Any

import pytest
from support.fake_server import DISCONNECT, SESSION, FakeServer, v1_routes

import opencode_magics
from opencode_magics.client.client import Client
from opencode_magics.core.events import MessageChanged, StoreSnapshot
from opencode_magics.core.fold import advance_all
from opencode_magics.core.model import Message, Permission, Session, Status, Text
from opencode_magics.core.turn import Turn
from opencode_magics.errors import ServerConnectionError, TurnError
from opencode_magics.prompts import answering
from opencode_magics.prompts.answering import PermissionAnswer
from opencode_magics.sessions import deliver

ROOT = Session(SESSION["id"], directory=SESSION["directory"])
REFUSED = (
    400,
    {"content-type": "application/json"},
    b'{"name": "BadRequest", "data": {"message": "Expected OutputFormatJsonSchema"}}',
)


def test_messages_that_can_never_be_read_end_an_idle_turn_at_once() -> None:
    """Case E1: it waited 120 s and spoke of the connection."""
    routes = v1_routes(message=REFUSED) | {f"POST /session/{ROOT.id}/prompt_async": (204, {}, b"")}
    with FakeServer(routes) as fake, Client(fake.url, directory=ROOT.directory) as client:
        began = time.monotonic()
        with pytest.raises(TurnError, match="Expected OutputFormatJsonSchema") as caught:
            opencode_magics.ask(client, "hi", session=ROOT)
    assert time.monotonic() - began < 30
    assert caught.value.turn is not None
    assert (caught.value.turn.outcome, caught.value.turn.failure.name) == ("unknown", "BadRequest")


@pytest.mark.parametrize(
    ("status", "permanent"), [(400, True), (404, True), (408, False), (429, False), (500, False)]
)
def test_only_a_refusal_is_permanent(status: int, permanent: bool) -> None:
    error = opencode_magics.StatusError("no", status=status)
    assert error.permanent is permanent


def test_a_server_that_does_not_answer_is_not_said_to_have_forgotten_the_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case E2: nobody was asked. It is waited for as long as a turn is followed."""
    monkeypatch.setattr(deliver, "_PATIENCE", 3.0)

    def gone(seen: Any) -> Any:
        fake.break_connections()
        return DISCONNECT

    routes = v1_routes() | {f"POST /session/{ROOT.id}/prompt_async": gone}
    with FakeServer(routes) as fake, Client(fake.url, directory=ROOT.directory) as client:
        fake.routes[f"GET /session/{ROOT.id}/message"] = (503, {}, b"")
        began = time.monotonic()
        with pytest.raises(TurnError, match="the server doesn't answer"):
            opencode_magics.ask(client, "hi", session=ROOT)
    assert time.monotonic() - began > 3.0


class Clock:
    """A clock that only sleeping moves."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Outage:
    """A run whose server is away for some seconds."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds, self.decided = clock, seconds, ""

    def decide(self, permission: Permission, decision: str, message: str, by: str) -> bool:
        if self.clock.now < self.seconds:
            raise ServerConnectionError("away", sent=True)
        self.decided = decision
        return True


@pytest.mark.parametrize(("seconds", "decided"), [(8, "once"), (45, "once"), (90, "")])
def test_an_answer_is_as_patient_as_the_stream(
    monkeypatch: pytest.MonkeyPatch, seconds: float, decided: str
) -> None:
    """Case E3: an outage of 4 to 8 s lost the answer, and the agent waited for ever."""
    clock = Clock()
    monkeypatch.setattr(answering, "time", clock)
    monkeypatch.setattr(answering, "_PATIENCE", 60.0)
    run: Any = Outage(clock, seconds)
    permission = Permission("per_1", "ses_1", "bash")
    if decided:
        answering.send(run, permission, PermissionAnswer("once"))
    else:
        with pytest.raises(ServerConnectionError):
            answering.send(run, permission, PermissionAnswer("once"))
    assert run.decided == decided


def test_a_prompt_that_nobody_began_to_answer_says_so() -> None:
    """Case E5: "The turn failed." without a reason or an id."""
    prompt = Message("msg_1", "ses_1", "user", 1, parts=(Text("p", "hi"),))
    stored = StoreSnapshot("ses_1", Status("idle"), (prompt,))
    turn = advance_all(Turn("ses_1", "msg_1"), [MessageChanged(prompt), stored])
    assert turn.outcome == "failed"
    assert turn.failure is not None
    assert str(turn.failure) == (
        "NotStarted: the server accepted the prompt msg_1, but no agent began to answer it"
    )
