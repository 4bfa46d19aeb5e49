"""Session states: derived from plain values, and read from a busy real server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import pandas as pd
import pytest
from IPython.core.error import UsageError
from support.fake_server import (
    SESSION,
    FakeServer,
    ReceivedRequest,
    answers_in_turn,
    assistant,
    user,
    v1_routes,
    v2_routes,
)
from support.generations import both_generations
from support.ipython_shell import Shell, until, wait_until_busy
from support.transport import CannedTransport

from opencode_magics import tables
from opencode_magics.client.client import Client
from opencode_magics.core.model import Message, Permission, Question, Session, Status
from opencode_magics.dialects.base import Prompt, Request
from opencode_magics.sessions import status
from opencode_magics.sessions.status import SessionReading, SessionState, derive_state
from opencode_magics.sessions.store import reject_requests

ROOT = Session("ses_root01", "root", "/work/p", updated=7)
DONE = Message("msg_2", "ses_root01", "assistant", created=2, completed=9, finish="stop")
OPEN = Message("msg_2", "ses_root01", "assistant", created=2)
PROMPT = Message("msg_1", "ses_root01", "user", created=1)
PERMISSION = Permission("per_1", "ses_child", "bash")
QUESTION = Question("que_1", "ses_child", ())
BUSY, RETRY = Status("busy"), Status("retry", 3, "429 Too Many", 99)
BELOW = {"ses_child": BUSY}
reading = partial(SessionReading, route="/session/status of {directory}")


# -- deriving --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reading", "state"),
    [
        (reading(ROOT, newest=()), "idle"),
        (reading(ROOT, newest=(PROMPT, DONE)), "idle"),
        (reading(ROOT, newest=(PROMPT,)), "unknown"),
        (reading(ROOT, newest=(PROMPT,), looks=2), "idle"),
        (reading(ROOT, newest=(PROMPT, OPEN)), "unknown"),
        (reading(ROOT, newest=(PROMPT, OPEN), looks=2), "stale"),
        (reading(ROOT, newest=None, looks=2), "idle"),
        (reading(ROOT, BUSY, newest=(PROMPT, OPEN)), "running"),
        (reading(ROOT, BUSY, newest=None), "running"),
        (reading(ROOT, RETRY, newest=(PROMPT,)), "retrying"),
        (reading(ROOT, BUSY, subagents={"ses_child": RETRY}, newest=()), "retrying"),
        (reading(ROOT, subagents=BELOW, newest=(PROMPT, DONE)), "running"),
        (reading(ROOT, BUSY, subagents=BELOW, requests=(PERMISSION,)), "waiting_for_permission"),
        (reading(ROOT, BUSY, subagents=BELOW, requests=(QUESTION,)), "waiting_for_question"),
        (reading(ROOT, BUSY, requests=(QUESTION, PERMISSION)), "waiting_for_permission"),
        (reading(ROOT, requests=(PERMISSION,), newest=(PROMPT, DONE)), "idle"),
        (reading(ROOT, BUSY, error="no answer"), "unknown"),
        (reading(ROOT, error="gone", missing=True), "unknown"),
        (reading(ROOT, RETRY, error="gone", missing=True), "retrying"),
    ],
)
def test_a_state_follows_from_what_was_read(reading: SessionReading, state: str) -> None:
    assert derive_state(reading).state == state


def test_evidence_names_the_request_and_its_result() -> None:
    assert derive_state(reading(ROOT, BUSY)).evidence == "/session/status of /work/p: busy"
    retrying = derive_state(reading(ROOT, RETRY))
    assert (retrying.attempt, retrying.retry_at) == (3, 99)
    assert "429 Too Many" in retrying.evidence
    assert "per_1" in derive_state(reading(ROOT, BUSY, requests=(PERMISSION,))).evidence
    left = derive_state(reading(ROOT, requests=(PERMISSION,), newest=(DONE,)))
    assert "per_1 is left from a turn that is over" in left.evidence
    assert (
        "the session itself is deleted" in derive_state(reading(ROOT, RETRY, missing=True)).evidence
    )


def test_a_session_being_ended_is_ending_whatever_its_status() -> None:
    state = derive_state(reading(ROOT, BUSY), ending=True)
    assert state.state == "ending"
    assert state.evidence.endswith("busy")


def test_what_is_unknown_is_na() -> None:
    frame = tables.session_states([derive_state(reading(ROOT, error="no answer"))])
    assert frame.loc[0, ["attempt", "next_retry", "pending", "subagents"]].isna().all()
    assert frame.loc[0, "error"] == "no answer"


def test_every_frame_has_the_same_columns() -> None:
    full, empty = (
        tables.session_states([derive_state(reading(ROOT, BUSY))]),
        tables.session_states([]),
    )
    assert [*map(str, full.dtypes)] == [*map(str, empty.dtypes)]


# -- a server that lags, lies or dies --------------------------------------------------------------


def read_from(routes: dict[str, Any]) -> tuple[SessionState, FakeServer]:
    with CannedTransport(routes) as fake, Client(fake.url, transport=fake) as client:
        (state,) = status.read_states(client, [ROOT])
    return state, fake


def test_status_is_asked_in_the_sessions_own_directory() -> None:
    def scoped(seen: ReceivedRequest) -> Any:
        return {"ses_root01": {"type": "busy"}} if seen.query.get("directory") == "/work/p" else {}

    state, fake = read_from(v1_routes(status=scoped))
    assert state.state == "running"
    assert [s.query for s in fake.asked("GET /session/status")] == [{"directory": "/work/p"}]


def test_a_session_that_is_missing_from_the_list_for_a_moment_is_not_idle() -> None:
    lagging = answers_in_turn({}, {"ses_root01": {"type": "busy"}})
    state, _ = read_from(v1_routes(status=lagging, message=[user("msg_1")]))
    assert state.state == "running"


def test_a_session_whose_server_died_is_stale_and_not_running() -> None:
    half = assistant("msg_2", "msg_1", finish=None, time={"created": 2})
    state, _ = read_from(v1_routes(message=[user("msg_1"), half]))
    assert state.state == "stale"
    assert "msg_2 was never finished" in state.evidence


@pytest.mark.parametrize(
    ("routes", "asked"),
    [
        (v1_routes(status={"ses_root01": {"type": "busy"}}), "/session/status of /work/p"),
        (v2_routes(active={"data": {"ses_root01": {"type": "running"}}}), "/api/session/active"),
    ],
)
def test_evidence_of_a_deleted_busy_session_names_the_request_that_was_sent(
    routes: dict[str, Any], asked: str
) -> None:
    gone = (404, {"content-type": "application/json"}, b'{"_tag":"SessionNotFoundError"}')
    found = {r: gone for r in routes if r.endswith("/ses_root01")}
    state, fake = read_from(routes | found)
    assert state.evidence == f"{asked}: busy; the session itself is deleted"
    assert fake.asked(f"GET {asked.split()[0]}")


def test_a_deleted_session_is_one_row_with_an_error() -> None:
    gone = (404, {"content-type": "application/json"}, b'{"name":"NotFoundError","data":{}}')
    state, _ = read_from(v1_routes(session=gone))
    assert (state.state, state.missing) == ("unknown", True)
    assert "no such session" in state.error


def test_a_server_that_answers_true_to_everything_proves_nothing() -> None:
    routes = dict.fromkeys(v1_routes(), True) | {
        "GET /global/health": {"healthy": True, "version": "1.18.33"},
    }
    state, _ = read_from(routes)
    assert state.state == "unknown"
    assert "can't be decoded" in state.error


def test_a_server_that_is_gone_leaves_every_session_unknown() -> None:
    with CannedTransport(v1_routes()) as fake, Client(fake.url, transport=fake) as client:
        client.check()
        fake.break_connections()
        states = status.read_states(client, [ROOT, Session("ses_b", directory="/b")])
    assert [s.state for s in states] == ["unknown", "unknown"]


def test_a_session_that_cannot_be_read_does_not_affect_the_others() -> None:
    routes = v1_routes() | {"GET /session/ses_b": {**SESSION, "id": "ses_b"}}
    routes["GET /session/ses_b/message"] = (500, {}, b"")
    with CannedTransport(routes) as fake, Client(fake.url, transport=fake) as client:
        states = status.read_states(client, [Session("ses_b", directory="/work/p"), ROOT])
    assert [s.state for s in states] == ["unknown", "idle"]


OPEN_STEP = {"id": "msg_2", "type": "assistant", "agent": "build", "time": {"created": 2}}
RETRIED = {"attempt": 2, "error": {"type": "provider.rate-limit", "status": 429}}


def read_of_2_x(**step: Any) -> SessionState:
    """The state of a busy 2.x session, read from its open step."""
    active = {"data": {"ses_root01": {"type": "running"}}}
    page = {"data": [{**OPEN_STEP, **step}], "cursor": {}}
    return read_from(v2_routes(active=active, message=page))[0]


def test_a_retry_of_2_x_is_read_from_the_open_step() -> None:
    """Case V3: `retry.at` in the future is a wait."""
    at = int(time.time() * 1000) + 60_000
    state = read_of_2_x(retry={**RETRIED, "at": at})
    assert (state.state, state.attempt, state.retry_at) == ("retrying", 2, at)
    busy = "/api/session/active: busy"
    assert state.evidence == f"{busy}, waiting to retry: provider.rate-limit"


@pytest.mark.parametrize("retry", [None, {**RETRIED, "at": 99}, {"attempt": 2}])
def test_a_retry_of_2_x_is_over_once_it_has_started(retry: Any) -> None:
    """The step keeps its `retry`."""
    state = read_of_2_x(retry=retry)
    assert (state.state, state.attempt) == ("running", None)
    assert state.evidence == "/api/session/active: busy"


def test_a_session_whose_messages_can_not_be_read_is_running_and_says_so() -> None:
    active = {"data": {"ses_root01": {"type": "running"}}}
    state, _ = read_from(v2_routes(active=active, message=(400, {}, b"")))
    assert (state.state, state.error) == ("running", "")
    assert "its messages could not be read" in state.evidence


def test_messages_that_the_server_cannot_read_itself_hide_no_state() -> None:
    state, _ = read_from(v1_routes(message=(400, {}, b"")))
    assert (state.state, state.error) == ("idle", "")


# -- waiting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "reason"), [("any", "condition"), ("all", "deadline")])
def test_waiting_for_any_of_sixteen_ends_with_the_first(mode: Any, reason: str) -> None:
    ids = [f"ses_{n:02}" for n in range(16)]
    routes = v1_routes(status={i: {"type": "busy"} for i in ids[1:]})
    for i in ids:
        routes |= {f"GET /session/{i}": {**SESSION, "id": i}, f"GET /session/{i}/children": []}
        routes[f"GET /session/{i}/message"] = []
    with CannedTransport(routes) as fake, Client(fake.url, transport=fake) as client:
        result = status.wait(client, [Session(i, directory="/work/p") for i in ids], mode, 0.2)
    assert result.reason == reason
    assert result.ready == ("ses_00",)
    assert result.pending == tuple(ids[1:])
    assert result.elapsed < 30


def test_a_wait_for_sessions_that_do_not_exist_ends_at_once() -> None:
    gone = (404, {"content-type": "application/json"}, b'{"name":"NotFoundError","data":{}}')
    with (
        CannedTransport(v1_routes(session=gone)) as fake,
        Client(fake.url, transport=fake) as client,
    ):
        result = status.wait(client, [ROOT], "all", 60)
    assert (result.ready, result.pending, result.reason) == ((), (), "condition")


# -- a real server ---------------------------------------------------------------------------------


@pytest.fixture
def sent(client: Client, session: Session) -> Iterator[Callable[..., Session]]:
    """A function that sends a prompt without waiting; busy sessions are stopped after the test."""
    client.models(session.directory)  # an abort into a cold directory breaks it

    def send(text: str, to: Session = session) -> Session:
        new_id = client.dialect.new_prompt_id(int(time.time() * 1000))
        client.prompt(to, Prompt(new_id, text))
        return to

    yield send
    until(lambda: nothing_left(client, session.directory))


def nothing_left(client: Client, directory: str) -> bool:
    """Try to stop everything in a directory; return whether it was idle."""
    busy = client.statuses(directory).keys()
    asking = {r.session for r in chain(client.permissions(directory), client.questions(directory))}
    for session in busy:
        client.abort(Session(session, directory=directory))
    reject_requests(client, directory, frozenset(asking))
    return not (busy or asking)


def state_of(client: Client, session: Session) -> str:
    return status.read_states(client, [session])[0].state


def test_a_busy_shell_is_running_until_it_is_done(
    client: Client, session: Session, workspace: Any
) -> None:
    done = workspace / "done"
    body = {"agent": "build", "command": "until [ -e done ]; do sleep .1; done"}
    request = Request("POST", f"/session/{session.id}/shell", body=body, timeout=120)
    shell = threading.Thread(target=client.transport.send, args=[request])
    shell.start()
    until(lambda: state_of(client, session) == "running")
    assert status.wait(client, [session], "all", 0.2).reason == "deadline"
    done.touch()
    result = status.wait(client, [session], "all", 60)
    shell.join()
    assert (result.reason, state_of(client, session)) == ("condition", "idle")


def test_a_subagents_pending_permission_is_included(
    client: Client, sent: Callable[[str], Session], workspace: Any
) -> None:
    session = sent("#bash touch made")
    until(lambda: state_of(client, session) == "waiting_for_permission")
    (permission,) = (p for p in client.permissions() if p.session == session.id)
    client.run(client.dialect.reply(permission, session.directory, "once"))
    until(lambda: state_of(client, session) == "idle")
    sent("#task #bash touch more")
    until(lambda: state_of(client, session) == "waiting_for_permission")
    (state,) = status.read_states(client, [session])
    assert state.subagents == 1
    assert state.requests[0].session != session.id


def test_a_grandchilds_pending_question_is_included(
    client: Client, session: Session, sent: Callable[..., Session]
) -> None:
    """Agents of 1.18.33 never create this situation, but users can."""
    grandchild = below(client, below(client, session))
    sent("#question", to=grandchild)
    until(lambda: state_of(client, session) == "waiting_for_question")
    (state,) = status.read_states(client, [session])
    assert [r.session for r in state.requests] == [grandchild.id]
    assert state.subagents == 1


def below(client: Client, parent: Session) -> Session:
    """A new child session of another one."""
    body = {"parentID": parent.id, "title": "below"}
    request = Request("POST", "/session", {"directory": parent.directory}, body)
    return client.session(client.transport.send(request).json()["id"])


@both_generations
def test_a_retry_loop_shows_the_next_attempt_and_its_time(
    client: Client, sent: Callable[[str], Session]
) -> None:
    session = sent("#err500")
    until(lambda: state_of(client, session) == "retrying")
    (state,) = status.read_states(client, [session])
    assert (state.attempt or 0) >= 1
    assert (state.retry_at or 0) > time.time() * 1000 - 60_000
    assert "scripted failure 500" in state.evidence


# -- the magic -------------------------------------------------------------------------------------


def test_sessions_made_chosen_or_prompted_here_are_shown(shell: Shell, client: Client) -> None:
    assert len(shell.run("%oc_status").value) == 0
    other = client.create("of another client")
    shell.run("%oc_new mine")
    shell.run("%oc_prompt --no-wait #slow 25 .2")
    wait_until_busy(client, shell.run("%oc_session").value)
    frame = shell.run("%oc_status").value
    assert [*frame["title"]] == ["mine"]
    assert frame.loc[0, "state"] == "running"
    shell.run(f"%oc_session {other.id}")
    result = shell.run("%oc_status --wait all --timeout 120")
    assert [*result.value["state"]] == ["idle", "idle"]
    assert result.value.attrs["reason"] == "condition"
    assert other.id in result.value.attrs["ready"]
    assert "mine" in result.text
    assert "2 of 2 ready" in result.text


def test_a_directory_shows_its_busy_sessions_of_any_client(
    shell: Shell, client: Client, sent: Callable[[str], Session]
) -> None:
    session = sent("#slow 400 .2")
    wait_until_busy(client, session)
    frame = shell.run(f"%oc_status -d {session.directory}").value
    assert [*frame["session"]] == [session.id]
    assert "No session is busy in" in shell.run("%oc_status -d /").text


def test_an_unknown_or_ambiguous_name_is_a_row_with_an_error(shell: Shell, client: Client) -> None:
    for _ in range(2):
        client.create("an ambiguous title")
    known = client.create("known")
    unknown = shell.run(f"%oc_status ses_nope {known.id}").value.set_index("session")
    assert unknown.loc[known.id, "state"] == "idle"
    assert pd.isna(unknown.loc[known.id, "error"])
    assert "No session 'ses_nope'" in unknown.loc["ses_nope", "error"]
    ambiguous = shell.run("%oc_status an ambiguous title").value
    assert "matches 2 sessions" in ambiguous.loc[0, "error"]


@both_generations
def test_several_sessions_can_be_named_by_their_titles(shell: Shell, client: Client) -> None:
    made = [client.create(f"quoted {n}") for n in ("one", "two")]
    found = shell.run("%oc_status 'quoted one' \"quoted two\"").value
    assert found["session"].tolist() == [s.id for s in made]
    shell.run("%oc_end --force --delete 'quoted one' 'quoted two'")
    assert not {s.id for s in made} & {s.id for s in client.sessions()}


def test_without_a_connection_nothing_is_tracked(alone: Shell) -> None:
    assert len(alone.run("%oc_status").value) == 0


@pytest.mark.parametrize("line", ["--wait some", "--timeout 3"])
def test_invalid_waits_are_an_error(alone: Shell, line: str) -> None:
    with pytest.raises(UsageError, match="--wait"):
        alone.run(f"%oc_status {line}")


def test_a_live_table_is_drawn_once_for_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    from opencode_magics.notebook.live_table import LiveTable

    drawn: list[dict[str, Any]] = []
    monkeypatch.setattr(LiveTable, "_draw", lambda self, html, text, update: drawn.append(locals()))
    shell = type("Kernel", (), {"kernel": object()})()
    table = LiveTable(shell, ("session", "state"))
    for row in (("<b>", "idle"), ("<b>", "idle"), ("<b>", "running")):
        table.show([row])
    table.close("over")
    assert [d["update"] for d in drawn] == [False, True, True]
    assert "<b>" not in json.dumps(drawn[0]["html"])
    assert drawn[-1]["text"] == "over"
