"""Stopping and ending sessions: each step is confirmed, and nothing else is reported as done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from IPython.core.error import UsageError
from support.fake_server import (
    DISCONNECT,
    SESSION,
    FakeServer,
    answers_in_turn,
    assistant,
    user,
    v1_routes,
)
from support.ipython_shell import Shell

from opencode_magics.client.client import Client
from opencode_magics.core.model import Session
from opencode_magics.dialects.base import Prompt, Request
from opencode_magics.errors import NotFoundError, StatusError, TurnInterrupted
from opencode_magics.sessions import end as ending
from opencode_magics.sessions import status
from opencode_magics.sessions.end import EndResult
from opencode_magics.sessions.store import pending_requests

ROOT = Session("ses_root01", "root", "/work/p")
JSON = {"content-type": "application/json"}
GONE = (404, JSON, b'{"name":"NotFoundError","data":{"message":"Session not found: ses_root01"}}')
BUSY = {"ses_root01": {"type": "busy"}}
DELETE = "DELETE /session/ses_root01"
ASKED = [
    {"id": f"per_{n}", "sessionID": "ses_root01", "permission": "bash", "patterns": ["x"]}
    for n in (1, 2)
]
ABORT = "POST /session/ses_root01/abort"


# -- servers that lag, lie, or die -----------------------------------------------------------------


class Store:
    """The routes of a fake server with one session, which can be deleted."""

    def __init__(self, **changes: Any) -> None:
        self.deleted = False
        messages = changes.pop("message", [user("msg_1"), assistant("msg_2", "msg_1", "hi")])
        self.routes = v1_routes(**changes) | {DELETE: self.delete}
        for path, answer in (("", SESSION), ("/message", messages), ("/children", [])):
            self.routes[f"GET /session/ses_root01{path}"] = self.unless_deleted(answer)

    def delete(self, seen: Any) -> Any:
        self.deleted = True
        return True

    def unless_deleted(self, answer: Any) -> Callable[[Any], Any]:
        return lambda seen: GONE if self.deleted else answer


def ended(fake: FakeServer, **options: Any) -> EndResult:
    with Client(fake.url) as client:
        return ending.end(client, ROOT, "delete", **options)


def test_an_idle_session_is_deleted_without_an_abort_and_seen_gone() -> None:
    with FakeServer(Store().routes) as fake:
        result = ended(fake)
    assert (result.status, result.cleanup, result.aborted_running_turn) == (
        "ended",
        "complete",
        False,
    )
    assert not fake.asked(ABORT)
    assert fake.asked("GET /session/ses_root01")[-1] is not None


def test_a_session_busy_after_an_abort_is_waited_for_and_then_deleted() -> None:
    looks: list[float] = []

    def busy(seen: Any) -> Any:
        looks.append(time.monotonic())
        return BUSY if looks[-1] - looks[0] < 10 else {}

    with FakeServer(Store(status=busy).routes) as fake:
        result = ended(fake)
    assert result.status == "ended"
    assert result.aborted_running_turn
    assert result.elapsed >= 10


def test_a_session_that_never_stops_is_never_deleted() -> None:
    with FakeServer(Store(status=BUSY).routes) as fake:
        result = ended(fake, within=1.0)
    assert (result.status, result.cleanup) == ("unconfirmed", "unconfirmed")
    assert "%oc_end ses_root01" in result.todo
    assert not fake.asked(DELETE)


def test_a_server_that_answers_true_to_everything_has_ended_nothing() -> None:
    liar = dict.fromkeys(v1_routes(), True) | {DELETE: True}
    liar["GET /global/health"] = {"healthy": True, "version": "1.18.33"}
    with FakeServer(liar) as fake:
        result = ended(fake)
    assert result.status == "unconfirmed"


def test_a_delete_without_an_effect_is_unconfirmed() -> None:
    with FakeServer(Store().routes | {DELETE: True}) as fake:
        result = ended(fake)
    assert result.status == "unconfirmed"
    assert "shows no effect" in result.evidence


def test_a_session_with_a_request_pending_after_its_rejection_is_not_deleted() -> None:
    routes = Store(permission=ASKED[:1]).routes | {"POST /permission/per_1/reply": True}
    with FakeServer(routes) as fake:
        result = ended(fake)
    assert result.status == "unconfirmed"
    assert "per_1 still pending" in result.evidence
    assert not fake.asked(DELETE)


def test_a_session_prompted_again_by_another_client_is_stopped_again() -> None:
    """It becomes busy right after it was seen idle, and isn't deleted while busy."""
    statuses = answers_in_turn({}, BUSY, BUSY, {}, {}, {}, {})
    with FakeServer(Store(status=statuses).routes) as fake:
        result = ended(fake)
    assert result.status == "ended"
    assert result.aborted_running_turn
    assert fake.seen.index(fake.asked(ABORT)[0]) < fake.seen.index(fake.asked(DELETE)[0])


def test_a_session_deleted_by_another_client_is_not_found() -> None:
    store = Store()
    store.deleted = True
    with FakeServer(store.routes) as fake:
        result = ended(fake)
        again = ended(fake, resumed=True)
    assert (result.status, result.action) == ("not_found", None)
    assert "deleted elsewhere" in result.evidence
    assert again.status == "ended"


def test_a_session_deleted_while_busy_is_still_stopped() -> None:
    store = Store(status=answers_in_turn(BUSY, BUSY, {}))
    store.deleted = True
    with FakeServer(store.routes) as fake:
        ended(fake)
    assert fake.asked(ABORT)


def test_an_end_interrupted_by_a_server_crash_can_be_finished() -> None:
    store = Store()
    with FakeServer(
        store.routes | {DELETE: lambda seen: (store.delete(seen), DISCONNECT)[1]}
    ) as fake:
        result = ended(fake)
        assert result.status == "unconfirmed"
        assert "broke during DELETE" in result.evidence
        assert result.todo == "Repeat the call to finish: %oc_end ses_root01"
        again = ended(fake, resumed=True)
    assert again.status == "ended"
    assert len(fake.asked(DELETE)) == 1


def test_stopping_an_unknown_session_is_not_found() -> None:
    store = Store()
    store.deleted = True
    with FakeServer(store.routes) as fake, Client(fake.url) as client:
        assert ending.stop(client, ROOT).status == "not_found"


def test_without_a_server_a_stop_is_unconfirmed() -> None:
    with FakeServer(v1_routes()) as fake, Client(fake.url) as client:
        client.check()
        fake.break_connections()
        stopped = ending.stop(client, ROOT)
    assert stopped.status == "unconfirmed"


# -- the magics, and a real server -----------------------------------------------------------------


@pytest.fixture
def shell(shell: Shell) -> Iterator[Shell]:
    """A shell with a new session that is ended after the test."""
    shell.run("%oc_new to be ended")
    yield shell
    shell.see("%oc_end")


def current(shell: Shell) -> Session:
    session: Session = shell.run("%oc_session").value
    return session


def until(shell: Shell, state: str) -> None:
    deadline = time.monotonic() + 120
    while [*shell.run("%oc_status").value["state"]][-1] != state:
        assert time.monotonic() < deadline, shell.run("%oc_status").value
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("prompt", "state", "rejected"),
    [
        ("#slow 400 .1", "running", 0),
        ("#bash touch made", "waiting_for_permission", 1),
        ("#task #bash touch made", "waiting_for_permission", 1),
        ("#question", "waiting_for_question", 1),
        ("#err500", "retrying", 0),
        ("#hang", "running", 0),
    ],
)
def test_a_session_in_any_state_is_stopped_and_then_deleted(
    shell: Shell, client: Client, workspace: Any, prompt: str, state: str, rejected: int
) -> None:
    session = current(shell)
    shell.run(f"%oc_prompt --no-wait {prompt}")
    until(shell, state)
    result = shell.run("%oc_end").value
    assert (result.status, result.action, result.cleanup) == ("ended", "delete", "complete")
    assert result.aborted_running_turn
    assert len(result.rejected) == rejected
    with pytest.raises(NotFoundError):
        client.session(session.id)
    assert session.id not in client.statuses()
    assert (client.permissions(), client.questions()) == ((), ())
    assert not (workspace / "made").exists()
    assert len(shell.run("%oc_status").value) == 0
    assert "There is no current session" in shell.fails("%oc_session").text


def test_a_second_end_of_a_session_sends_nothing(shell: Shell, client: Client) -> None:
    session = current(shell)
    shown = shell.run("%oc_end")
    assert f"<EndResult {session.id}: ended" in shown.text
    again = shell.run(f"%oc_end {session.id}").value
    assert (again.status, again.elapsed) == ("not_found", 0.0)
    assert "the server was not asked" in again.evidence


def test_another_clients_session_is_ended_only_by_force(shell: Shell, client: Client) -> None:
    other = client.create("somebody else's session")
    assert shell.run(f"%oc_end {other.id}").value.status == "not_found"
    assert client.session(other.id).id == other.id
    assert shell.run(f"%oc_end --force {other.id}").value.status == "ended"
    assert shell.run("%oc_end --force no such title").value.status == "not_found"


def test_without_a_connection_nothing_is_asked(alone: Shell) -> None:
    result = alone.run("%oc_end ses_of_another_server").value
    assert (result.status, result.action) == ("not_found", None)


def test_several_are_ended_in_one_frame_and_archived_as_configured(
    shell: Shell, client: Client
) -> None:
    first = current(shell)
    second = shell.run("%oc_new second").value
    shell.run("%config OpenCodeMagics.end_action = 'archive'")
    frame = shell.run(f"%oc_end {first.id} ses_unknown {second.id}").value
    assert [*frame["status"]] == ["ended", "not_found", "ended"]
    assert [*frame["action"].dropna()] == ["archive", "archive"]
    assert client.session(first.id).archived is not None
    client.run(client.dialect.delete(first))
    client.run(client.dialect.delete(second))


def test_an_unconfirmed_session_stays_tracked_and_says_so(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unconfirmed(client: Client, session: Session, *args: Any, **options: Any) -> EndResult:
        return EndResult(session.id, session.title, "unconfirmed", todo="Again.")

    session = current(shell)
    monkeypatch.setattr(ending, "end", unconfirmed)
    assert shell.run("%oc_end").value.todo == "The session stays `ending`. Again."
    (row,) = shell.run(f"%oc_status {session.id}").value.to_dict("records")
    assert row["state"] == "ending"


def test_an_ambiguous_title_ends_nothing(shell: Shell) -> None:
    shell.run("%oc_new twin")
    shell.run("%oc_new twin")
    result = shell.run("%oc_end twin").value
    assert result.status == "not_found"
    assert "matches 2 sessions" in result.evidence
    part = shell.run("%oc_end to be").value
    assert part.status == "not_found"


def test_a_shared_title_is_ambiguous_even_if_the_other_session_is_ended(shell: Shell) -> None:
    first = shell.run("%oc_new double").value
    second = shell.run("%oc_new double").value
    frame = shell.run(f"%oc_end {first.id} 'double'").value
    assert [*frame["status"]] == ["ended", "not_found"]
    assert second.id in [*shell.run("%oc_status").value["session"]]
    once = shell.run(f"%oc_end {second.id} 'double'").value
    assert (once.session, once.status) == (second.id, "ended")


def test_a_session_is_ended_by_its_current_title(shell: Shell, client: Client) -> None:
    """Another kernel may have renamed it; %oc_status updates the title."""
    session = current(shell)
    client.run(client.dialect.rename(session, "still needed"))
    assert shell.run(f"%oc_end {session.title}").value.status == "not_found"
    assert shell.run("%oc_end still needed").value.status == "not_found"
    assert client.session(session.id).title == "still needed"
    shell.run("%oc_status")
    assert shell.run("%oc_end still needed").value.status == "ended"


def test_ending_an_untracked_session_sends_nothing(alone: Shell) -> None:
    with FakeServer(v1_routes()) as fake:
        alone.run(f"%oc_connect {fake.url}\n%oc_session ses_root01")
        before = len(fake.seen)
        for name in ("ses_elsewhere", "some title"):
            assert "was not asked" in alone.run(f"%oc_end {name}").value.evidence
        several = alone.run("%oc_end 'some title' 'another'").value
        assert several["status"].tolist() == ["not_found"] * 2
        assert len(fake.seen) == before


def test_an_abort_is_confirmed_and_the_session_accepts_prompts(
    shell: Shell, client: Client
) -> None:
    session = current(shell)
    shell.run("%oc_prompt --no-wait #slow 400 .1")
    until(shell, "running")
    stopped = shell.run("%oc_abort").value
    assert stopped.status == "stopped"
    assert "kept" in stopped.kept
    assert session.id not in client.statuses()
    assert shell.run("%oc_abort").value.status == "was_idle"
    shell.run("%oc_prompt -o turn #text 3")
    assert shell.user_ns["turn"].outcome == "succeeded"


def test_a_running_shell_is_stopped(shell: Shell, client: Client) -> None:
    session = current(shell)
    body = {"agent": "build", "command": "sleep 30"}
    request = Request("POST", f"/session/{session.id}/shell", body=body, timeout=120)
    shell_run = threading.Thread(target=client.transport.send, args=[request], daemon=True)
    shell_run.start()
    until(shell, "running")
    result = shell.run("%oc_end").value
    assert (result.status, result.aborted_running_turn) == ("ended", True)
    shell_run.join()


def test_an_interrupted_end_reports_its_progress_and_is_finished_later(
    shell: Shell, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = current(shell)
    second = shell.run("%oc_new second").value
    end = ending.end

    def interrupted_at_second(
        client: Client, session: Session, *args: Any, **options: Any
    ) -> EndResult:
        if session.id == second.id:
            raise KeyboardInterrupt
        return end(client, session, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(ending, "end", interrupted_at_second)
        shown = shell.fails(f"%oc_end {first.id} {second.id}")
    assert isinstance(shown.error, TurnInterrupted)
    assert f"{first.id}: ended" in shown.text
    assert [*shell.run("%oc_status").value["state"]] == ["ending"]
    assert shell.run(f"%oc_end {second.id}").value.status == "ended"


def test_an_interrupted_abort_does_not_say_that_it_stopped(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ending, "stop", stop)
    shown = shell.fails("%oc_abort")
    assert isinstance(shown.error, TurnInterrupted)
    assert "is not known" in shown.text


def test_two_simultaneous_ends_agree_that_the_session_is_gone(shell: Shell, client: Client) -> None:
    session = current(shell)
    client.models()
    new_id = client.dialect.new_prompt_id(int(time.time() * 1000))
    client.prompt(session, Prompt(new_id, "#slow 400 .1"))
    results: list[EndResult] = []
    both = [
        threading.Thread(target=lambda: results.append(ending.end(client, session, "delete")))
        for _ in range(2)
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert "ended" in {r.status for r in results}
    assert session.id not in client.statuses()
    assert status.read_states(client, [session])[0].missing


@pytest.mark.parametrize("line", ["--delete --archive"])
def test_contradictory_options_are_an_error(alone: Shell, line: str) -> None:
    with pytest.raises(UsageError, match="either --delete or --archive"):
        alone.run(f"%oc_end {line}")


def test_a_timeout_of_zero_is_an_error(alone: Shell) -> None:
    with pytest.raises(UsageError, match="above 0"):
        alone.run("%oc_abort --timeout 0")


@pytest.mark.parametrize("route", ["permission", "question"])
def test_an_unreadable_list_of_requests_is_not_taken_as_empty(route: str) -> None:
    """A stop is unconfirmed, and `pending_requests` raises an error."""
    broken = {f"GET /{route}": (500, {}, b"{}")}
    with FakeServer(v1_routes() | broken) as fake, Client(fake.url) as client:
        session = client.session("ses_root01")
        assert ending.stop(client, session, 2.0).status == "unconfirmed"
        with pytest.raises(StatusError):
            pending_requests(client, session)


@pytest.mark.parametrize(
    "broken",
    [
        {"POST /permission/per_2/reply": (500, {}, b"{}")},
        {"GET /permission": [ASKED, (500, {}, b"{}")]},
        {"GET /question": [[], (500, {}, b"{}")]},
    ],
)
def test_a_stop_reports_rejections_although_a_later_step_failed(broken: dict[str, Any]) -> None:
    routes = Store(permission=ASKED).routes | {"POST /permission/per_1/reply": True}
    for route, answer in broken.items():
        routes[route] = answers_in_turn(*answer) if isinstance(answer, list) else answer
    with FakeServer(routes) as fake, Client(fake.url) as client:
        stopped = ending.stop(client, ROOT, 2.0)
    assert (stopped.status, stopped.rejected[0]) == ("unconfirmed", "per_1")


def test_an_end_reports_rejections_although_a_later_step_failed() -> None:
    routes = Store(permission=answers_in_turn(ASKED[:1], [])).routes
    routes |= {"POST /permission/per_1/reply": True, DELETE: (500, {}, b"{}")}
    with FakeServer(routes) as fake:
        result = ended(fake)
    assert (result.status, result.rejected) == ("unconfirmed", ("per_1",))
    assert result.aborted_running_turn is False
