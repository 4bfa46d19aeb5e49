"""The simulated 2.x follows the protocol, and a client copes with its faults."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.ipython_shell import until, wait_until_busy

from opencode_magics import history
from opencode_magics.client import server
from opencode_magics.client.client import Client
from opencode_magics.core.events import PermissionAsked
from opencode_magics.core.fold import advance
from opencode_magics.core.model import InboxItem, ModelRef, Rule, Session
from opencode_magics.core.turn import Turn
from opencode_magics.dialects.base import Prompt, Request, SessionOptions
from opencode_magics.errors import (
    AuthenticationError,
    NotFoundError,
    OpenCodeError,
    SessionBusyError,
    StatusError,
    UnsupportedOperation,
)
from opencode_magics.notebook import text
from opencode_magics.practice.simulator.server import Fault, Simulator
from opencode_magics.practice.workspace import reset_workspace
from opencode_magics.sessions import edit, end, status, store
from opencode_magics.sessions.lookup import create_session
from opencode_magics.sessions.polling import QUIET
from opencode_magics.sessions.run import Run, attach, prepare


@pytest.fixture
def generation() -> str:
    return "2.x"


def finish(run: Run, decision: Any = "once", seconds: float = 120.0) -> Turn:
    deadline = time.monotonic() + seconds
    for turn in run:
        assert time.monotonic() < deadline, f"still {turn!r}; {run.note}"
        for permission in turn.permissions:
            run.decide(permission, decision)
    return run.turn


def prompted(client: Client, session: Session, text: str, decision: Any = "once") -> Turn:
    with prepare(client, session, text) as run:
        run.start()
        return finish(run, decision)


def ask(world: Simulator, method: str, path: str, **more: Any) -> httpx.Response:
    access = ("opencode", str(world.password))
    return httpx.request(method, f"{world.url}{path}", auth=access, trust_env=False, **more)


# -- HTTP ------------------------------------------------------------------------------------------


def test_a_request_without_the_password_is_refused(simulator: Simulator) -> None:
    reply = httpx.get(f"{simulator.url}/api/info", trust_env=False)
    assert (reply.status_code, reply.json()["_tag"]) == (401, "UnauthorizedError")
    assert reply.headers["www-authenticate"] == 'Basic realm="Secure Area"'


def test_an_unknown_route_has_an_empty_reply(simulator: Simulator) -> None:
    for method, path in (("GET", "/api/health"), ("PUT", "/api/session"), ("GET", "/session")):
        reply = ask(simulator, method, path)
        assert (reply.status_code, reply.content) == (404, b"")


def test_unknown_keys_are_dropped_and_missing_ones_refused(simulator: Simulator) -> None:
    session = ask(simulator, "POST", "/api/session", json={"titel": "x"}).json()["data"]
    assert "title" not in session
    reply = ask(simulator, "POST", f"/api/session/{session['id']}/prompt", json={"txt": "x"})
    assert (reply.status_code, reply.json()["_tag"]) == (400, "InvalidRequestError")


def test_connecting_waits_for_a_starting_server(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    with Simulator(booting=1.5) as world:
        with server.connect_to(world.url, password=world.password) as client:
            assert client.server.generation == "2.x"
        assert time.monotonic() - began >= 1.5
        assert "GET /global/health" not in world.requests


def test_a_wrong_password_is_not_taken_for_a_starting_server(simulator: Simulator) -> None:
    with pytest.raises(AuthenticationError):
        server.connect_to(simulator.url, password="not it")


# -- discovery -------------------------------------------------------------------------------------


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a home of its own without a configured server."""
    for name in [n for n in os.environ if n.startswith("OPENCODE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(server, "DEFAULT_URL", "http://127.0.0.1:9")
    return tmp_path


def write(home: Path, kind: str, **fields: Any) -> None:
    folder = home / kind / "opencode"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "service.json").write_text(json.dumps(fields))


def test_the_registered_service_is_found(simulator: Simulator, homes: Path) -> None:
    write(homes, "state", url=simulator.url, pid=os.getpid(), version="2.0.16",
          password=simulator.password)  # fmt: skip
    with server.connect_to() as client:
        assert client.url == simulator.url
        assert "OpenCode 2.0.16" in str(client)
        assert "tested with" in str(client)


def test_its_password_can_be_in_its_configuration(simulator: Simulator, homes: Path) -> None:
    write(homes, "state", url=simulator.url, pid=os.getpid(), password="an old one")
    write(homes, "config", password=simulator.password)
    with server.connect_to() as client:
        assert client.url == simulator.url


@pytest.mark.parametrize("lie", [{"pid": 1}, {"version": "2.9.9"}, {"url": "http://127.0.0.1:9"}])
def test_a_stale_registration_is_ignored(
    simulator: Simulator, homes: Path, lie: dict[str, Any]
) -> None:
    registration = {"url": simulator.url, "pid": os.getpid(), "password": simulator.password}
    write(homes, "state", **registration | lie)
    with pytest.raises(OpenCodeError, match=r"No server answers at http://127\.0\.0\.1:9"):
        server.connect_to()


def test_an_explicit_address_comes_before_the_service(
    simulator: Simulator, homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(homes, "state", url="http://127.0.0.1:9", pid=1)
    for name, value in simulator.access.items():
        monkeypatch.setenv(name, value)
    with server.connect_to() as client:
        assert client.url == simulator.url


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": 7}', '{"pid": 7}'])
def test_an_unreadable_registration_is_ignored(homes: Path, text: str) -> None:
    write(homes, "state")
    (homes / "state" / "opencode" / "service.json").write_text(text)
    with pytest.raises(OpenCodeError, match="No server answers"):
        server.connect_to()


# -- prompts and the inbox -------------------------------------------------------------------------


def test_a_second_prompt_with_the_same_id_is_ignored(client: Client, session: Session) -> None:
    first, other = Prompt("msg_0001", "#text 2"), Prompt("msg_0001", "something else")
    client.prompt(session, first)
    client.prompt(session, first)
    with pytest.raises(OpenCodeError, match="already has another prompt"):
        client.prompt(session, other)
    client.run(client.dialect.wait(session))
    texts = [m.text for m in client.messages(session) if m.role == "user"]
    assert texts == ["#text 2"]
    with pytest.raises(SessionBusyError):
        client.prompt(create_session(client, "another"), first)


def test_a_deferred_prompt_starts_no_execution(client: Client, session: Session) -> None:
    client.prompt(session, Prompt("msg_0002", "#text 2", resume=False))
    (item,) = client.run(client.dialect.inbox(session))
    assert item == InboxItem("msg_0002", session.id, "user", "steer", "#text 2", item.created)
    assert client.run(client.dialect.message(session, "msg_0002")).queued
    assert session.id not in client.statuses()
    assert client.run(client.dialect.cancel(session, "msg_0002"))
    assert client.run(client.dialect.inbox(session)) == ()
    with pytest.raises(NotFoundError):
        client.run(client.dialect.message(session, "msg_0002"))


def test_a_delivered_prompt_cannot_be_cancelled(client: Client, session: Session) -> None:
    turn = prompted(client, session, "#text 2")
    assert not client.run(client.dialect.cancel(session, turn.prompt))
    with pytest.raises(SessionBusyError):
        client.run(client.dialect.set_delivery(session, turn.prompt, "steer"))


def test_a_cancelled_prompt_ends_its_turn(client: Client, session: Session) -> None:
    with prepare(client, session, "#slow 400 .1") as first:
        first.start()
        wait_until_busy(client, session)
        with prepare(client, session, "#text 2", queue=True) as second:
            second.start()
            assert client.run(client.dialect.cancel(session, second.turn.prompt))
            turn = finish(second)
        assert (turn.outcome, turn.failure and turn.failure.name) == ("aborted", "Cancelled")
        assert first.abort().outcome == "aborted"


def test_a_queued_prompt_is_cancelled_without_stopping_the_turn_before_it(
    client: Client, session: Session
) -> None:
    with prepare(client, session, "#slow 50 .1") as first:
        first.start()
        wait_until_busy(client, session)
        with prepare(client, session, "#text 2", queue=True) as second:
            second.start()
            until(lambda: next(iter(second)).inbox)
            assert second.abort().outcome == "aborted"
        assert finish(first).outcome == "succeeded"
    assert len([m for m in client.messages(session) if m.role == "user"]) == 1


def test_a_steered_prompt_joins_and_a_queued_one_waits(
    client: Client, session: Session, simulator: Simulator
) -> None:
    with prepare(client, session, "#bash sleep 1") as first:
        first.start()
        turn = until(lambda: next(iter(first)).waiting and first.turn)
        with (
            prepare(client, session, "#text 2", queue=True) as queued,
            prepare(client, session, "#text 3", steer=True) as steered,
        ):
            queued.start()
            steered.start()
            first.decide(turn.permissions[0], "once")
            ends = [finish(run) for run in (first, steered, queued)]
    assert [t.outcome for t in ends] == ["succeeded"] * 3
    assert [t.text for t in ends] == ["word0 word1 word2", "word0 word1 word2", "word0 word1"]
    assert ends[0].merged
    kinds = [e["type"] for e in simulator.backend.sessions[session.id].events]
    assert kinds.count("session.execution.started") == 1
    assert kinds.count("session.execution.succeeded") == 1


def test_a_busy_session_says_how_to_join_it(client: Client, session: Session) -> None:
    """Case G1-19."""
    with prepare(client, session, "#slow 400 .1") as first:
        first.start()
        wait_until_busy(client, session)
        with pytest.raises(SessionBusyError, match="join it with --steer"):
            prepare(client, session, "#text 2")
        with prepare(client, session, "#text 2", queue=True) as second:
            second.start()
            until(lambda: next(iter(first)).text and next(iter(second)).inbox)
            assert (second.turn.answers, second.turn.outcome) == ((), "running")
            second.abort()
        first.abort()


def test_a_prompt_parked_by_an_abort_runs_with_the_next_prompt(
    client: Client, session: Session
) -> None:
    with prepare(client, session, "#slow 400 .1") as first:
        first.start()
        wait_until_busy(client, session)
        client.prompt(session, Prompt("msg_0005", "#text 2", delivery="queue"))
        assert first.abort().outcome == "aborted"
    assert [i.id for i in client.run(client.dialect.inbox(session))] == ["msg_0005"]
    assert prompted(client, session, "#text 3").text == "word0 word1 word2"
    client.run(client.dialect.wait(session))
    assert client.run(client.dialect.inbox(session)) == ()


def test_an_interrupt_can_resume_with_steering_prompts(client: Client, session: Session) -> None:
    def interrupted() -> bool:
        path = f"/api/session/{session.id}/interrupt"
        reply = client.transport.send(Request("POST", path, {"resume": "true"}, {}))
        return bool(reply.json()["interrupted"])

    assert not interrupted()
    with prepare(client, session, "#slow 400 .1") as first:
        first.start()
        until(lambda: next(iter(first)).text)
        client.prompt(session, Prompt("msg_0008", "#text 2", delivery="steer"))
        assert interrupted()
        finish(first)
    client.run(client.dialect.wait(session))
    assert client.run(client.dialect.inbox(session)) == ()
    assert client.messages(session)[-2].text == "word0 word1"


def test_a_parked_prompt_is_told_apart_from_a_lost_one(client: Client, session: Session) -> None:
    with Run(client, session, Prompt("msg_0006", "#text 2", resume=False)) as run:
        run.start()
        turn = finish(run)
    assert (turn.outcome, turn.failure and turn.failure.name) == ("interrupted", "Parked")


# -- turns -----------------------------------------------------------------------------------------


def test_an_abort_withdraws_pending_requests(client: Client, session: Session) -> None:
    """The server drops the request without an event."""
    with prepare(client, session, "#bash touch never") as run:
        run.start()
        until(lambda: next(iter(run)).waiting)
        client.abort(session)
        until(lambda: not next(iter(run)).waiting)
        assert finish(run).outcome == "aborted"


def test_an_unknown_model_or_agent_fails_at_the_next_turn(client: Client, session: Session) -> None:
    client.run(client.dialect.switch(session, agent="nobody"))
    with Run(client, client.session(session.id), Prompt("msg_0007", "#text 2")) as run:
        run.start()
        turn = finish(run)
    assert (turn.outcome, turn.answers) == ("failed", ())
    assert "nobody" in str(turn.failure)
    fresh = store.refresh(client, Turn(session.id, turn.prompt, verdict="unknown"))
    assert (fresh.outcome, str(fresh.failure)) == ("failed", "Failed: the server stored no reason")


def test_a_prompt_with_another_model_switches_the_session(client: Client, session: Session) -> None:
    with prepare(client, session, "#text 2", model="practice/frugal") as run:
        run.start()
        assert str(finish(run).model) == "practice/frugal"
    assert str(client.session(session.id).model) == "practice/frugal"
    kinds = [m.kind for m in client.messages(session)]
    assert kinds == ["model-switched", "", "", "idle"]


def test_the_cost_of_titles_counts_for_the_session_but_no_turn(client: Client) -> None:
    session = client.create()
    turn = prompted(client, session, "#text 2")
    stored = client.session(session.id)
    assert stored.title == "Practice session"
    assert stored.usage != turn.usage


def test_an_overflow_is_compacted_in_the_turn(client: Client, session: Session) -> None:
    turn = prompted(client, session, "#overflow")
    assert (turn.outcome, turn.text) == ("succeeded", "It fits now.")
    assert [m.summary for m in turn.answers] == [True, False]


def test_the_output_of_a_command_is_shown_while_it_runs(
    client: Client, session: Session, workspace: Path
) -> None:
    command = "echo one; until [ -e seen ]; do sleep .1; done; echo two"
    with prepare(client, session, f"#bash {command}") as run:
        run.start()
        for turn in run:
            for permission in turn.permissions:
                run.decide(permission, "once")
            if any((t.status, t.output) == ("running", "one\n") for t in turn.tools):
                (workspace / "seen").touch()
    assert run.turn.tools[0].output == "one\ntwo\n"


def cut_off(reason: str) -> Callable[[Simulator, Client, Session], None]:
    return lambda world, client, session: world.backend.running[session.id].interrupt(reason)


def stopped(world: Simulator, client: Client, session: Session) -> None:
    client.abort(session)


ENDS: dict[str, tuple[str, Any, str]] = {
    "succeeded": ("#text 2", None, "once"),
    "rejected": ("#bash touch never", None, "reject"),
    "failed": ("#err400", None, "once"),
    "aborted": ("#slow 400 .1", stopped, "once"),
    "interrupted by shutdown": ("#slow 400 .1", cut_off("shutdown"), "once"),
}


@pytest.mark.parametrize("end", ENDS)
def test_how_a_turn_ended_is_the_same_live_stored_and_in_the_history(
    client: Client, session: Session, simulator: Simulator, end: str
) -> None:
    prompt, act, decision = ENDS[end]
    with prepare(client, session, prompt) as run:
        run.start()
        if act is not None:
            until(lambda: next(iter(run)).text)
            act(simulator, client, session)
        turn = finish(run, decision)
    fresh = store.refresh(client, Turn(session.id, turn.prompt, verdict="unknown"))
    in_history = history.messages(client, [session], cache=False)["outcome"].dropna().iloc[-1]
    assert {turn.outcome, fresh.outcome, in_history} == {end.split()[0]}
    assert (fresh.failure is None) == (turn.failure is None)


@pytest.mark.parametrize("reason", ["superseded", "inactivity"])
def test_only_the_stream_says_that_the_server_itself_interrupted_a_turn(
    client: Client, session: Session, simulator: Simulator, reason: str
) -> None:
    """The store has the same rows as after a person's stop; no recording shows these reasons."""
    with prepare(client, session, "#slow 400 .1") as run:
        run.start()
        until(lambda: next(iter(run)).text)
        cut_off(reason)(simulator, client, session)
        turn = finish(run, "once")
    assert (turn.outcome, turn.stored) == ("interrupted", True)
    fresh = store.refresh(client, Turn(session.id, turn.prompt, verdict="unknown"))
    assert fresh.outcome == "aborted"


def test_a_directory_that_is_not_loaded_yet_has_its_models(client: Client, tmp_path: Path) -> None:
    (tmp_path / "cold").mkdir()
    assert [m.id for m in client.models(str(tmp_path / "cold"))] == ["frugal", "scripted", "small"]


def test_reattaching_shows_requests_from_before(client: Client, session: Session) -> None:
    """Case G1-14."""
    client.prompt(session, Prompt("msg_0014", "#bash echo hi"))
    until(lambda: client.permissions())
    (standing,) = status.read_states(client, [session])
    assert (standing.state, len(standing.requests)) == ("waiting_for_permission", 1)
    with attach(client, session) as run:
        run.start()
        turn = finish(run)
    assert (turn.prompt, turn.outcome) == ("msg_0014", "succeeded")
    assert [s.reply for s in turn.settled_requests] == ["once"]


def test_a_second_answer_does_nothing(client: Client, session: Session) -> None:
    """Repeating the request has no effect, either: it stays answered. Case G1-15."""
    with prepare(client, session, "#bash sleep 1") as run:
        run.start()
        permission = until(lambda: next(iter(run)).permissions)[0]
        client.run(client.dialect.reply(permission, session.directory, "once"))
        assert run.decide(permission, "reject") is False
        assert "elsewhere" in run.turn.settled_requests[0].reply
        assert advance(run.turn, PermissionAsked(permission)).waiting == ()
        assert finish(run).outcome == "succeeded"


def test_a_request_of_a_nested_subagent_is_shown_and_answered(
    client: Client, session: Session
) -> None:
    """Case G1-02."""
    with prepare(client, session, "#task #task #bash touch deep") as run:
        run.start()
        (permission,) = until(lambda: next(iter(run)).permissions)
        (parent,) = client.run(client.dialect.children(session))
        assert [s.id for s in client.run(client.dialect.children(parent))] == [permission.session]
        assert status.read_states(client, [session])[0].state == "waiting_for_permission"
        turn = finish(run)
    assert (turn.outcome, [s.reply for s in turn.settled_requests]) == ("succeeded", ["once"])


def test_an_empty_execution_belongs_to_no_turn(client: Client, session: Session) -> None:
    """A prompt that is sent once more wakes the session, which finds nothing to do. Case G1-07."""
    client.prompt(session, Prompt("msg_0009", "#text 2"))
    client.run(client.dialect.wait(session))
    with prepare(client, session, "#slow 10 .1") as run:
        client.prompt(session, Prompt("msg_0009", "#text 2"))
        client.run(client.dialect.wait(session))
        run.start()
        assert finish(run).text.startswith("slow0")
    assert len(run.turn.answers) == 1


def test_a_failure_has_its_reason_and_a_retry_its_time(client: Client, session: Session) -> None:
    """Case G1-18."""
    failed = prompted(client, session, "#err401")
    assert failed.outcome == "failed"
    assert failed.failure
    assert failed.failure.name == "provider.auth"
    assert failed.failure.message
    (retry,) = prompted(client, session, "#err429 1").retries
    assert (retry.attempt, bool(retry.message), bool(retry.next)) == (2, True, True)


# -- faults of the stream --------------------------------------------------------------------------


@pytest.fixture
def faulty(simulator: Simulator) -> Iterator[Simulator]:
    reset_workspace(simulator.directory)
    yield simulator
    simulator.faults.clear()


def end_of(turn: Turn) -> tuple[Any, ...]:
    return turn.outcome, turn.text, [(t.tool, t.status, t.output) for t in turn.tools], turn.usage


@pytest.mark.parametrize("cut", [0, 1, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28])
def test_a_stream_cut_at_any_frame_ends_in_the_same_turn(
    faulty: Simulator, client: Client, session: Session, cut: int
) -> None:
    other = end_of(prompted(client, create_session(client, "whole"), "#bash echo hi"))
    faulty.faults.append(Fault(cut=cut))
    assert end_of(prompted(client, session, "#bash echo hi")) == other


def test_a_request_made_in_a_gap_is_shown_although_the_log_says_busy(
    faulty: Simulator, client: Client, session: Session
) -> None:
    """Requests are not in the log, and a session that is listed as busy is not read at once."""
    faulty.faults.append(Fault(cut=1))
    began = time.monotonic()
    turn = prompted(client, session, "#bash echo hi")
    assert [s.reply for s in turn.settled_requests] == ["once"]
    assert time.monotonic() - began < QUIET


def test_a_gap_is_filled_from_the_store(
    faulty: Simulator, client: Client, session: Session
) -> None:
    """Case V1: no log is read, since real servers keep none."""
    faulty.faults.append(Fault(cut=8))
    faulty.requests.clear()
    assert prompted(client, session, "#bash echo hi").outcome == "succeeded"
    assert not [r for r in faulty.requests if r.endswith("/log")]


def test_a_duplicated_frame_counts_once(
    faulty: Simulator, client: Client, session: Session
) -> None:
    faulty.faults.append(Fault(twice=True))
    texts = []
    with prepare(client, session, "#slow 40 .1") as run:
        run.start()
        for turn in run:
            texts.append(turn.text)
    final = run.turn.text
    assert len(set(texts)) > 3
    assert all(final.startswith(text) for text in texts)


def test_two_seconds_of_silence_do_not_end_a_turn(
    faulty: Simulator, client: Client, session: Session
) -> None:
    faulty.faults.append(Fault(stall=2.0, at=6))
    assert prompted(client, session, "#text 5").outcome == "succeeded"


def test_silence_longer_than_three_heartbeats_counts_as_a_broken_stream(client: Client) -> None:
    assert client.dialect.silence == 45.0


# -- the log ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["archive", "delete"])
def test_ending_a_session_ends_its_tree_leaves_first(
    client: Client, simulator: Simulator, action: Any
) -> None:
    """Case G1-34."""
    key, made = iter(["R", "1", "2", "G"]), dict[str, Session]()
    for parent in (None, "R", "R", "1"):
        name = next(key)
        above = made[parent].id if parent else None
        made[name] = client.create(name, options=SessionOptions(parent=above))
    simulator.requests.clear()
    assert end.end(client, made["R"], action).status == "ended"
    names = {f"/api/session/{s.id}": name for name, s in made.items()}
    method = "PATCH" if action == "archive" else "DELETE"
    requests = [r.partition(" ") for r in simulator.requests if r.startswith(method)]
    order = "".join(names[path] for _, _, path in requests)
    # The server deletes child sessions itself.
    assert order in ("G12R", "21GR", "2G1R") if action == "archive" else order == "R"
    if action == "archive":
        assert all(client.session(s.id).archived for s in made.values())
        edit.archive(client, made["R"], undo=True)
        assert not any(client.session(s.id).archived for s in made.values())
    else:
        assert not {s.id for s in client.sessions()} & {s.id for s in made.values()}
        assert end.end(client, made["R"], action, resumed=True).status == "ended"


def test_two_turns_at_once_each_show_their_own_text(client: Client, session: Session) -> None:
    """Each has 2,000 deltas, and the output of one is cleared in between. Case G4-07."""
    runs, shown = [], dict[str, str]()
    for word in ("alpha", "omega"):
        words = " ".join(f"{word}{n}" for n in range(2_000))
        plan = json.dumps([{"text": words, "deltas": 2_000}])
        runs.append(prepare(client, client.create(word), f"#plan {plan}"))
    for run in runs:
        run.start()
    deadline = time.monotonic() + 240
    while any(run.turn.outcome == "running" for run in runs):
        assert time.monotonic() < deadline
        for run in runs:
            shown[run.session.title] = text.render(next(iter(run)))
        if "alpha900" in shown["alpha"]:
            shown.clear()
    for run in runs:
        run.close()
        mine, other = run.session.title, ({"alpha", "omega"} - {run.session.title}).pop()
        assert f"{mine}1999" in text.render(run.turn)
        assert other not in text.render(run.turn).replace(run.turn.question_text, "")


def test_the_log_is_empty_as_on_real_servers(simulator: Simulator, session: Session) -> None:
    """Case V1: five reports, 2.0.8 to 2.0.24."""
    path = f"/api/experimental/session/{session.id}/log?follow=true"
    with httpx.stream(
        "GET", f"{simulator.url}{path}", auth=("opencode", simulator.password)
    ) as log:
        (line,) = [line for line in log.iter_lines() if line]
    assert json.loads(line.removeprefix("data: "))["type"] == "log.synced"


# -- sessions --------------------------------------------------------------------------------------


def test_sessions_of_a_project_are_read_from_all_pages(client: Client) -> None:
    made = {create_session(client, f"page {n}").id for n in range(3)}
    everything = client.sessions(everywhere=True)
    assert made <= {s.id for s in everything}
    assert made <= {s.id for s in client.sessions()}
    assert len(everything) == len({s.id for s in everything})
    assert len({s.project for s in client.sessions()}) == 1


def test_a_long_list_is_read_to_its_end(client: Client, session: Session) -> None:
    for n in range(205):  # in pages of 200
        client.prompt(session, Prompt(f"msg_{n:04}l", "#empty", resume=n == 204))
    client.run(client.dialect.wait(session))
    users = [m for m in client.messages(session) if m.role == "user"]
    assert len(users) == 205


def test_a_session_is_created_with_every_option(client: Client, session: Session) -> None:
    options = SessionOptions(
        id="ses_mine",
        parent=session.id,
        agent="plan",
        model=ModelRef("practice", "frugal"),
        metadata={"notebook": "tour"},
        rules=(Rule("shell", "*", "deny"),),
    )
    made = client.create("all of it", options=options)
    assert (made.id, made.parent, made.agent) == ("ses_mine", session.id, "plan")
    assert (made.model, made.metadata) == (options.model, {"notebook": "tour"})
    assert made.rules == options.rules
    assert client.create("again", options=options).title == "all of it"
    client.run(client.dialect.set_metadata(made, {"other": 1}))
    assert client.session("ses_mine").metadata == {"other": 1}
    assert [s.id for s in client.run(client.dialect.children(session))] == ["ses_mine"]
    with pytest.raises(NotFoundError):
        client.create(options=SessionOptions(parent="ses_nowhere"))


def test_an_archived_session_is_listed_as_archived(client: Client, session: Session) -> None:
    client.run(client.dialect.archive(session, 1))
    assert next(s for s in client.sessions() if s.id == session.id).archived
    client.run(client.dialect.archive(session, None))
    assert client.session(session.id).archived is None


def test_a_fork_ends_before_its_message(client: Client, session: Session) -> None:
    prompted(client, session, "#text 2")
    second = prompted(client, session, "#text 3")
    fork = client.run(client.dialect.fork(session, second.prompt))
    assert (fork.forked_from, fork.forked_at) == (session.id, second.prompt)
    assert [m.text for m in client.messages(fork) if m.role == "user"] == ["#text 2"]


def test_a_revert_can_be_undone(client: Client, session: Session, workspace: Path) -> None:
    dialect: Any = client.dialect
    turn = prompted(client, session, "#edit notes.txt hello goodbye")
    assert (workspace / "notes.txt").read_text().startswith("goodbye")
    (lost,) = client.run(dialect.revert(session, turn.prompt, True))
    assert lost.file == "notes.txt"
    assert (workspace / "notes.txt").read_text().startswith("hello")
    assert client.messages(session) == ()
    client.run(dialect.unrevert(session))
    assert (workspace / "notes.txt").read_text().startswith("goodbye")
    client.run(dialect.revert(session, turn.prompt, False))
    client.run(dialect.commit_revert(session))
    assert client.messages(session) == ()
    with pytest.raises(NotFoundError):
        client.run(dialect.revert(session, turn.prompt, False))


def test_a_compaction_is_a_message_with_its_own_id(client: Client, session: Session) -> None:
    turn = prompted(client, session, "#text 2")
    item = client.run(client.dialect.compact(session, ModelRef("practice", "scripted")))
    client.run(client.dialect.wait(session))
    summary = next(m for m in client.messages(session) if m.id == item)
    assert (summary.summary, summary.kind, summary.parent) == (True, "compaction", None)
    assert summary.usage
    assert store.refresh(client, turn).outcome == "succeeded"


def test_a_session_is_renamed_and_deleted_with_its_children(client: Client) -> None:
    dialect: Any = client.dialect
    session = create_session(client, "a parent")
    prompted(client, session, "#task #text 2")
    (child,) = client.run(client.dialect.children(session))
    client.run(dialect.rename(session, "another title"))
    assert client.session(session.id).title == "another title"
    client.run(dialect.delete(session))
    for gone in (session, child):
        with pytest.raises(NotFoundError):
            client.session(gone.id)


def test_changes_are_reported_by_the_server_or_by_the_tools(
    client: Client, session: Session, workspace: Path, tmp_path: Path
) -> None:
    turn = prompted(client, session, "#edit")
    assert client.run(client.dialect.diffs(session)).source == "turns"
    assert client.run(client.dialect.diffs(session, turn.prompt)) == client.run(
        client.dialect.diffs(session, turn.answers[-1].id)
    )
    (tmp_path / "notes.txt").write_text("hello one\n")
    outside = create_session(client, "outside of git", str(tmp_path))
    prompted(client, outside, "#edit")
    assert client.run(client.dialect.diffs(outside)).source == "tools"
    with pytest.raises(NotFoundError):
        client.run(client.dialect.diffs(session, "msg_nowhere"))


# -- environment, instructions, catalog, rules -----------------------------------------------------


def test_shells_have_the_environment_of_their_session(client: Client, session: Session) -> None:
    client.run(client.dialect.set_environment(session, {"PARTY": "tonight"}))
    turn = prompted(client, session, "#bash echo $PARTY")
    assert turn.tools[0].output == "tonight\n"


def test_instructions_are_added_and_removed(client: Client, session: Session) -> None:
    client.run(client.dialect.put_instruction(session, "tone/of voice", {"be": "kind"}))
    assert client.run(client.dialect.instructions(session)) == {"tone/of voice": {"be": "kind"}}
    for _ in range(2):
        client.run(client.dialect.delete_instruction(session, "tone/of voice"))
    assert client.run(client.dialect.instructions(session)) == {}


def test_mcp_servers_are_added_and_removed(client: Client) -> None:
    client.run(
        client.dialect.add_mcp(client.directory, "tools", {"type": "local", "command": ["tools"]})
    )
    assert ("tools", "connected") in [
        (m.name, m.status) for m in client.run(client.dialect.mcp(client.directory))
    ]
    client.run(client.dialect.remove_mcp(client.directory, "tools"))
    assert "tools" not in [m.name for m in client.run(client.dialect.mcp(client.directory))]
    with pytest.raises(NotFoundError):
        client.run(client.dialect.remove_mcp(client.directory, "tools"))


def test_the_catalog_of_a_directory_is_listed(client: Client) -> None:
    assert {c.name for c in client.commands()} == {"explain", "review"}
    assert [s.id for s in client.run(client.dialect.skills(client.directory))] == ["party"]
    assert [
        (i.id, i.connections) for i in client.run(client.dialect.integrations(client.directory))
    ] == [("practice", ("PRACTICE_KEY",))]
    assert [str(m.ref) for m in client.models() if m.default] == ["practice/scripted"]
    assert "reviewer" in {a.name for a in client.agents()}
    with pytest.raises(NotFoundError):
        client.models("/no/such/place")


def test_a_rule_saved_by_always_can_be_deleted(client: Client, session: Session) -> None:
    prompted(client, session, "#bash true x", "always")
    saved = next(r for r in client.run(client.dialect.saved_rules()) if r.resource == "true *")
    assert saved.action == "shell"
    again = prompted(client, session, "#bash true y")
    assert again.settled_requests == ()
    client.run(client.dialect.delete_saved_rule(saved.id))
    assert saved not in client.run(client.dialect.saved_rules())
    assert len(prompted(client, session, "#bash true z").settled_requests) == 1


def test_the_rules_of_a_session_come_last(client: Client, session: Session) -> None:
    client.run(client.dialect.set_rules(session, [Rule("shell", "*", "deny")]))
    assert client.session(session.id).rules == (Rule("shell", "*", "deny"),)
    turn = prompted(client, session, "#bash echo hi")
    assert (turn.outcome, turn.tools[0].error) == ("succeeded", "Permission denied: shell")


def test_the_output_of_a_shell_is_read_by_bytes(
    client: Client, session: Session, workspace: Path
) -> None:
    command = "printf é; until [ -e read ]; do sleep .1; done; echo done"
    with prepare(client, session, f"#bash {command}") as run:
        run.start()
        turn = until(lambda: next(iter(run)).waiting and run.turn)
        run.decide(turn.permissions[0], "once")
        until(lambda: any(t.shell for t in next(iter(run)).tools))
        shell = next(t.shell for t in run.turn.tools)
        first = until(
            lambda: (
                (o := client.run(client.dialect.shell_output(client.directory, shell)))
                and o.text
                and o
            )
        )
        assert (first.text, first.cursor) == ("é", 2)
        (workspace / "read").touch()
        finish(run)
        assert (
            client.run(client.dialect.shell_output(client.directory, shell, first.cursor)).text
            == "done\n"
        )


# -- operations missing in 1.x ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "act",
    [
        lambda c, s: c.run(c.dialect.inbox(s)),
        lambda c, s: c.run(c.dialect.cancel(s, "msg_1")),
        lambda c, s: c.run(c.dialect.set_delivery(s, "msg_1", "steer")),
        lambda c, s: c.run(c.dialect.wait(s)),
        lambda c, s: c.run(c.dialect.switch(s, agent="plan")),
        lambda c, s: c.run(c.dialect.set_environment(s, {})),
        lambda c, s: c.run(c.dialect.instructions(s)),
        lambda c, s: c.run(c.dialect.put_instruction(s, "k", 1)),
        lambda c, s: c.run(c.dialect.delete_instruction(s, "k")),
        lambda c, s: c.run(c.dialect.set_rules(s, [])),
        lambda c, s: c.create("x", options=SessionOptions(parent=s.id)),
        lambda c, s: c.run(c.dialect.saved_rules()),
        lambda c, s: c.run(c.dialect.delete_saved_rule("psv_1")),
        lambda c, s: c.run(c.dialect.remove_mcp(c.directory, "x")),
        lambda c, s: c.run(c.dialect.integrations(c.directory)),
        lambda c, s: c.run(c.dialect.shell_output(c.directory, "sh_1")),
        lambda c, s: prepare(c, s, "hi", steer=True),
    ],
)
@pytest.mark.parametrize("generation", ["1.x"])
def test_an_operation_missing_in_1x_names_both_generations(
    client: Client, session: Session, act: Callable[[Client, Session], Any]
) -> None:
    with pytest.raises(UnsupportedOperation, match=r"OpenCode 1\.x doesn't support .*2\.x does"):
        act(client, session)


def test_an_unknown_session_is_not_found(client: Client) -> None:
    with pytest.raises(NotFoundError, match="Session not found: ses_nowhere"):
        client.session("ses_nowhere")
    with pytest.raises(StatusError):
        client.run(_one(Request("GET", "/api/session", {"limit": 0})))


def _one(request: Request) -> Any:
    return (yield request)
