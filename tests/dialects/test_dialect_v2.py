"""The dialect of OpenCode 2.x: recordings of 2.0.16, requests, and misbehaving servers."""

from __future__ import annotations

import copy
import json
import math
import operator
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import pandas as pd
import pytest
from support.fake_server import DISCONNECT, answers_in_turn, v2_routes
from support.recorded_flows import DATA, V2_FLOWS, case, transcript
from support.transport import CannedTransport
from support.wire import reply_of, run

from opencode_magics import history
from opencode_magics.client.client import Client
from opencode_magics.core import columns
from opencode_magics.core.events import (
    MessageChanged,
    PermissionAsked,
    StatusChanged,
    StoreSnapshot,
)
from opencode_magics.core.fold import advance, advance_all
from opencode_magics.core.model import (
    Attachment,
    Message,
    ModelRef,
    Permission,
    Rule,
    Session,
    Status,
    StepEnd,
    Text,
    Usage,
)
from opencode_magics.core.turn import Turn
from opencode_magics.dialects import v2_shapes as shapes
from opencode_magics.dialects.base import Prompt, Reply, Request
from opencode_magics.dialects.jsonwire import decode
from opencode_magics.dialects.v2 import V2
from opencode_magics.errors import (
    OpenCodeError,
    StatusError,
    StreamError,
    TurnError,
    UnknownNameError,
)
from opencode_magics.history import prices
from opencode_magics.history.frames import FRAME_KINDS
from opencode_magics.history.load import is_finished
from opencode_magics.sessions import permissions, status
from opencode_magics.sessions import transcript as transcripts
from opencode_magics.sessions.lookup import create_session
from opencode_magics.sessions.polling import QUIET
from opencode_magics.sessions.run import Run, attach, prepare

# -- the transcripts -------------------------------------------------------------------------------

# By transcript and prompt: outcome, last words, tools with their status, input tokens.
TURNS: dict[tuple[str, int], tuple[str, str, list[tuple[str, str]], int | None]] = {
    ("turn", 0): ("succeeded", "finished", [("shell", "completed")], 5712),
    ("steer", 0): ("succeeded", "finished\n\nmarble", [("shell", "completed")], 5698),
    ("steer", 1): ("succeeded", "finished\n\nmarble", [], 2888),
    ("interrupt", 0): ("aborted", "", [("shell", "error")], 2811),
    ("permission", 0): ("succeeded", "finished", [("shell", "completed")], 5689),
    ("permission", 1): ("rejected", "", [("shell", "error")], 52),
    ("question", 0): ("succeeded", "Red it is — noted 🎨", [("question", "completed")], 5741),
    ("question", 1): ("rejected", "", [("question", "error")], 121),
    ("failure", 0): ("failed", "", [], None),
}
EVERY = [(name, n) for name in V2_FLOWS for n in range(len(transcript(name).prompts))]


def final_turn(name: str, prompt: int) -> Turn:
    """Return a turn after its stream and its store."""
    recorded = transcript(name)
    start = Turn(recorded.session, recorded.prompts[prompt])
    return advance(advance_all(start, recorded.events()), recorded.stored())


@pytest.mark.parametrize(("name", "prompt"), EVERY)
def test_every_transcript_has_its_outcome(name: str, prompt: int) -> None:
    turn = final_turn(name, prompt)
    tools = [(t.tool, t.status) for t in turn.tools]
    tokens = turn.usage.input if turn.usage else None
    assert (turn.outcome, turn.text, tools, tokens) == TURNS[name, prompt]


@pytest.mark.parametrize(("name", "prompt"), EVERY)
def test_a_stream_cut_at_any_frame_and_reread_ends_in_the_same_turn(name: str, prompt: int) -> None:
    recorded = transcript(name)
    turn, end, stored = (
        Turn(recorded.session, recorded.prompts[prompt]),
        final_turn(name, prompt),
        recorded.stored(),
    )
    for event in recorded.events():
        assert advance(turn, stored) == end
        turn = advance(turn, event)


@pytest.mark.parametrize("name", V2_FLOWS)
def test_a_complete_stream_gives_the_same_messages_as_the_store(name: str) -> None:
    """Except for data that 2.0.16 doesn't store (times of texts, reasons of failures).

    Also except for a refused step, which only the store distinguishes from an abort.
    """
    recorded = transcript(name)
    turn = advance_all(Turn(recorded.session, recorded.prompts[0]), recorded.events())
    assert comparable(turn.log) == comparable(advance(turn, recorded.stored()).log)


def comparable(log: tuple[Message, ...]) -> list[Message]:
    def bare(part: Any) -> Any:
        return replace(part, start=None, end=0) if isinstance(part, Text) else part

    def comparable_message(message: Message) -> Message:
        refused = any(t.declined for t in message.tools)
        failure = None if message.role == "system" or refused else message.error
        finish = "tool-calls" if refused else message.finish
        parts = [bare(p) for p in message.parts if not (refused and isinstance(p, StepEnd))]
        return replace(message, error=failure, finish=finish, parts=tuple(parts))

    return [comparable_message(m) for m in log]


def test_a_turn_that_a_person_stopped_is_aborted_live_and_in_the_store() -> None:
    """Case V2: the server's own stop leaves no row for the end of the turn."""
    recorded = transcript("interrupt")
    start = Turn(recorded.session, recorded.prompts[0])

    def outcome(*rows: Any) -> tuple[str, str]:
        read = shapes.messages(recorded.session, rows)
        turn = advance(start, StoreSnapshot(recorded.session, Status("idle"), read))
        return turn.outcome, str(turn.failure)

    person = ("aborted", "aborted: Step interrupted")
    live = advance_all(start, recorded.events())
    assert (live.outcome, advance(live, recorded.stored()).outcome) == ("running", "aborted")
    assert outcome(*recorded.rows) == person
    before_an_answer = [r for r in recorded.rows if r["type"] != "assistant"]
    assert outcome(*before_an_answer) == ("aborted", "Aborted: a person stopped the turn")
    by_the_server = [r for r in recorded.rows if r["type"] != "idle"]
    stopped = ("interrupted", "Interrupted: the server stopped during the turn")
    assert outcome(*by_the_server) == stopped


def test_the_end_of_a_later_turn_is_not_that_of_an_earlier_one() -> None:
    """Case V6: the server stopped the first turn, a person the second."""
    rows = transcript("interrupt").rows
    first = [r for r in rows if r["type"] != "idle"]
    later = [
        {**r, "id": f"{r['id']}_2", "time": {k: at + 10**6 for k, at in r["time"].items()}}
        for r in rows
    ]
    read = shapes.messages("ses_1", [*first, *later])
    prompts = [m.id for m in read if m.role == "user"]
    stored = StoreSnapshot("ses_1", Status("idle"), read)
    ends = [advance(Turn("ses_1", prompt), stored).outcome for prompt in prompts]
    assert ends == ["interrupted", "aborted"]


def test_a_turn_ends_although_its_session_goes_on_with_another_prompt() -> None:
    """Case V4: 2.0.19 starts again 1 ms after a refusal if a prompt waits.

    The permissions of that prompt's turn are not its own.
    """
    recorded = transcript("permission")
    second = recorded.prompts[1]
    refused = advance_all(Turn(recorded.session, second), recorded.events())
    assert refused.ended
    steer = Message("msg_z", recorded.session, "user", created=10**15, parts=(Text("t", "and"),))
    again = [MessageChanged(steer), StatusChanged(recorded.session, Status("busy"))]
    asked = Permission("per_z", recorded.session, "shell", message="msg_zz", call="call_z")
    turn = advance_all(refused, [*again, PermissionAsked(asked)])
    assert turn.waiting == ()
    stored = recorded.stored()
    busy = replace(stored, status=Status("busy"), messages=(*stored.messages, steer))
    assert advance(turn, busy).outcome == "rejected"
    assert advance(Turn(recorded.session, second), busy).outcome == "running"


# -- reading ---------------------------------------------------------------------------------------

HERE_2 = Session("ses_1", directory="/data/100% done/分析 é")
MISSING = (404, {"content-type": "application/json"}, b'{"_tag":"MessageNotFoundError"}')


def frames_of(name: str) -> list[Any]:
    """Return the frames of a case."""
    lines = (DATA / "cases" / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line]


def test_a_turn_beside_other_events() -> None:
    """A child's text, the session's usage and unknown kinds are not part of the turn."""
    frames = [f | {"created": n} for n, f in enumerate(frames_of("sse_v2_turn.sse"), 1)]
    turn = advance_all(
        Turn("ses_root01", "msg_mine01"), [e for f in frames for e in V2().events(f)]
    )
    turn = advance(turn, StoreSnapshot("ses_root01", Status("idle"), turn.log))
    expected = case("sse_v2_turn.expected.json")
    assert (turn.text, turn.outcome, turn.cost) == (
        expected["text"],
        expected["state"],
        expected["turn_cost"],
    )
    assert turn.tools[0].tool == "subagent"


@pytest.mark.parametrize(
    ("mine", "text"), [("msg_cmd77", "review result"), ("msg_other01", "for the other")]
)
def test_a_turn_does_not_include_another_clients_turn(mine: str, text: str) -> None:
    """With two clients in a session each gets its own answer, by the id of its prompt.

    The event of the other prompt's arrival was missed, so the store decides.

    Case G5-04.
    """
    frames: list[Any] = []
    rows: list[Any] = []
    for prompt, answer in (("msg_other01", "for the other"), ("msg_cmd77", "review result")):
        of, key = {"sessionID": "ses_1"}, f"{prompt}_a"
        step = of | {"assistantMessageID": key}
        frames += [
            ("session.inbox.delivered", of | {"inboxID": prompt}),
            ("session.execution.started", of),
            ("session.step.started", step | {"agent": "build"}),
            ("session.text.ended", step | {"ordinal": 0, "text": answer}),
            ("session.step.ended", step | {"finish": "stop"}),
            ("session.execution.succeeded", of),
        ]
        at = {"time": {"created": len(frames), "completed": len(frames)}}
        content = [{"type": "text", "text": answer}]
        rows += [
            {"id": prompt, "type": "user", "text": "do it"} | at,
            {"id": key, "type": "assistant", "content": content, "finish": "stop"} | at,
        ]
    events = [
        event
        for at, (kind, data) in enumerate(frames, 1)
        for event in V2().events({"type": kind, "id": f"evt_{at}", "created": at, "data": data})
    ]
    turn = advance_all(Turn("ses_1", mine), events)
    turn = advance(turn, StoreSnapshot("ses_1", Status("idle"), shapes.messages("ses_1", rows)))
    assert turn.text == text
    assert turn.outcome == "succeeded"


def test_a_permission_of_2x_is_decoded_and_an_unknown_kind_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Case G1-09."""
    frames = frames_of("sse_permission_event_shapes.sse")
    events = [e for f in frames if "data" in f for e in V2().events(f)]
    (permission,) = [e.permission for e in events if isinstance(e, PermissionAsked)]
    assert (permission.id, permission.action, permission.subject) == (
        "per_v2",
        "shell",
        "echo hello",
    )
    assert list(V2().events({"type": "permission.v3.asked", "data": {}})) == []
    assert "permission.v3.asked" in caplog.text


def test_unknown_kinds_are_ignored_and_malformed_known_ones_are_named() -> None:
    assert list(V2().events({"type": "session.future", "data": {}})) == []
    assert list(V2().events("nonsense")) == []
    for kind in ("session.step.started", "session.tool.called", "form.created"):
        for data in ({}, {"sessionID": "ses_1"}, None, []):
            with pytest.raises(StreamError, match=re.escape(kind)):
                list(V2().events({"type": kind, "data": data}))
        with pytest.raises(StreamError, match=re.escape(kind)):
            list(V2().events({"type": kind}))


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values in a wire value."""
    items = dict(enumerate(value)) if isinstance(value, list) else value
    for key, inner in items.items() if isinstance(items, dict) else ():
        yield (*at, key)
        yield from places(inner, (*at, key))


def spoilt(frame: Any) -> Iterator[Any]:
    """Yield copies of a frame in which one value is removed or replaced."""
    for place in places(frame):
        for other in (None, 7, "x", [7], {"a": 1}, True, math.inf, ...):
            changed = copy.deepcopy(frame)
            holder = reduce(operator.getitem, place[:-1], changed)
            if other is ...:
                del holder[place[-1]]
            else:
                holder[place[-1]] = other
            yield changed


def test_no_malformed_frame_breaks_a_turn() -> None:
    """It is reported or folded, once and twice; every kind of frame in a transcript is tried."""
    tried = set()
    for name in V2_FLOWS:
        recorded = transcript(name)
        turn = Turn(recorded.session, recorded.prompts[0])
        for frame in recorded.frames:
            shape = (frame["type"], *map(str, places(frame)))
            for wrong in spoilt(frame) if shape not in tried else ():
                with suppress(StreamError):
                    events = list(V2().events(wrong))
                    after = advance_all(turn, events * 2)
                    assert after.outcome
                    assert isinstance(after.text, str)
            tried.add(shape)
            turn = advance_all(turn, list(V2().events(frame)))
    assert len(tried) > 20


def test_no_malformed_row_breaks_a_turn_or_a_frame() -> None:
    """Reading a turn can fail; a history includes every readable field."""
    tried = set()
    messages: list[Message] = []
    for name in V2_FLOWS:
        recorded = transcript(name)
        for at, row in enumerate(recorded.rows):
            shape = (row["type"], *map(str, places(row)))
            for wrong in spoilt(row) if shape not in tried else ():
                rows = [*recorded.rows[:at], wrong, *recorded.rows[at + 1 :]]
                with suppress(StreamError):
                    read = decode("messages", partial(shapes.messages, recorded.session), rows)
                    stored = StoreSnapshot(recorded.session, Status("idle"), read)
                    assert advance(Turn(recorded.session, recorded.prompts[0]), stored).outcome
                messages += shapes.messages(recorded.session, [wrong], shapes.readable_message)
            tried.add(shape)
    for kind in FRAME_KINDS.values():
        columns.frame_from_rows(kind.columns, kind.rows(messages))
    assert len(tried) > 5


def test_unknown_values_are_accepted() -> None:
    frames: list[Any] = [
        ("session.execution.interrupted", {"sessionID": "s", "reason": "eclipse"}),
        ("session.step.ended", {"sessionID": "s", "assistantMessageID": "m", "finish": "tired"}),
    ]
    for kind, data in frames:
        assert list(V2().events({"type": kind, "id": "evt_1", "created": 1, "data": data}))


PAGES = case("messages_v2_pages.json")


def paged(request: Request) -> Reply:
    cursors = {None: 0, "c1": 1, "c2": 2}
    return reply_of(request, PAGES["pages"][cursors[request.query.get("cursor")]])


def test_pages_are_read_until_one_is_empty() -> None:
    """Case G1-20."""
    messages, requests = run(V2().messages(Session("ses_1")), paged)
    expected = PAGES["expected"]
    assert (len(messages), len(requests)) == (expected["rows"], expected["requests"])
    assert requests[0].query["order"] == "asc"
    assert all("order" not in request.query for request in requests[1:])


def test_a_cursor_that_repeats_ends_the_list(caplog: pytest.LogCaptureFixture) -> None:
    """Case G1-20."""
    page = {"data": PAGES["pages"][0]["data"], "cursor": {"next": "same"}}
    _, requests = run(V2().messages(Session("ses_1")), lambda request: reply_of(request, page))
    assert len(requests) == 2
    assert "repeated a cursor" in caplog.text


def test_every_row_is_kept_with_its_kind_model_and_cost() -> None:
    """Case G2-13."""
    messages, _ = run(V2().messages(Session("ses_1")), paged)
    expected = PAGES["expected"]
    assert [m.kind or m.role for m in messages] == expected["roles"]
    assert str(messages[1].model) == expected["model"]
    assert messages[1].text == expected["text_of_msg_2"]
    costs = [m.usage.cost for m in messages if m.usage and m.usage.cost is not None]
    assert sum(costs) == pytest.approx(expected["cost_sum"])


def test_both_names_of_provider_metadata_are_ignored() -> None:
    for name in ("state", "native"):
        part = {"type": "reasoning", "text": "x", name: {"field": 1}}
        row = {"id": "m", "type": "assistant", "content": [part], "time": {"created": 1}}
        assert shapes.messages("s", [row])[0].parts[1].text == "x"  # type: ignore[union-attr]


def test_an_unreadable_field_is_named_and_the_rest_of_its_row_is_kept() -> None:
    good = {"id": "m1", "type": "user", "text": "hi", "time": {"created": 1}}
    bad = {"id": "m2", "type": "assistant", "content": [{"no": "type"}], "time": {"created": 2}}
    messages = shapes.messages("s", [good, bad, {"type": "user"}], shapes.readable_message)
    assert [m.unread for m in messages] == [(), ("content",), ("id",)]
    assert messages[1].created == 2
    with pytest.raises(KeyError):
        shapes.messages("s", [good, bad])


def test_placeholder_zeros_are_unknown() -> None:
    zeros = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
    row = {"id": "m", "type": "assistant", "time": {}, "cost": 0, "tokens": zeros}
    assert shapes.messages("s", [row])[0].usage is None
    assert shapes.messages("s", [row | {"tokens": zeros | {"input": 5}}])[0].usage == Usage(
        5, 0, 0, 0, 0, 0
    )


def test_any_progress_after_a_retry_means_busy() -> None:
    """No status event follows the retry."""
    frames = [
        ("session.inbox.delivered", {"inboxID": "msg_1"}),
        ("session.step.started", {"assistantMessageID": "m", "agent": "build", "model": None}),
        ("session.retry.scheduled", {"attempt": 2, "at": 9, "error": {"message": "busy"}}),
        ("session.text.started", {"assistantMessageID": "m", "ordinal": 0}),
    ]
    turn = Turn("s", "msg_1")
    names = []
    for n, (kind, data) in enumerate(frames, 1):
        frame = {"type": kind, "id": f"evt_{n}", "created": n, "data": data | {"sessionID": "s"}}
        turn = advance_all(turn, V2().events(frame))
        names.append(turn.status.name if turn.status else "")
    assert names == ["", "", "retry", "busy"]
    assert [(r.attempt, r.message, r.next) for r in turn.retries] == [(2, "busy", 9)]


# -- requests --------------------------------------------------------------------------------------


def sent(flow: Any, answer: Any = None) -> list[Request]:
    return run(flow, lambda request: reply_of(request, {"data": answer}))[1]


def test_a_prompt_has_its_id_and_switches_agent_and_model_if_they_differ() -> None:
    prompt = Prompt(
        "msg_1",
        "do it",
        "plan",
        ModelRef("acme", "m", "high"),
        (Attachment("", "text/plain", "a.txt", "data:,a"),),
        skills=("party",),
        metadata={"cell": 3},
        delivery="queue",
        resume=False,
    )
    receipt = {"id": "msg_1", "payload": {"text": "do it"}}

    def requests(**now: Any) -> list[Request]:
        """The requests for the prompt, to a session that has this agent and model now."""
        replies = {"GET": {"id": "ses_1"} | now, "POST": receipt}
        flow = V2().prompt(Session("ses_1"), prompt)
        return run(flow, lambda request: reply_of(request, {"data": replies[request.method]}))[1]

    read, agent, model, posted = requests()
    assert agent.body == {"agent": "plan"}
    assert model.body == {"model": {"id": "m", "providerID": "acme", "variant": "high"}}
    assert posted.path == "/api/session/ses_1/prompt"
    assert posted.body == {
        "id": "msg_1",
        "text": "do it",
        "files": [{"uri": "data:,a", "name": "a.txt"}],
        "skills": [{"id": "party"}],
        "metadata": {"cell": 3},
        "delivery": "queue",
        "resume": False,
    }
    assert [r.path for r in requests(**agent.body, **model.body)] == [read.path, posted.path]


@pytest.mark.parametrize(
    "flow", [V2().permissions, V2().questions, V2().agents, V2().commands, V2().skills, V2().mcp]
)
def test_requests_without_a_session_have_a_location(flow: Any) -> None:
    """Case G1-12."""
    requests = sent(flow(HERE_2.directory), [])
    assert {r.query["location[directory]"] for r in requests} == {HERE_2.directory}


def test_a_session_is_created_in_the_requested_directory() -> None:
    """Case G1-12."""
    (request,) = sent(V2().create("/work/p", "a title"), {"id": "ses_1"})
    assert request.body == {"title": "a title", "location": {"directory": "/work/p"}}
    elsewhere = {"data": {"id": "ses_x", "location": {"directory": "/home/srv"}}}
    wrong = pytest.raises(UnknownNameError, match="/home/srv instead of /work/p")
    with (
        CannedTransport(v2_routes(create=elsewhere)) as fake,
        Client(fake.url, transport=fake) as client,
        wrong,
    ):
        create_session(client, "title", "/work/p")


def test_rules_are_replaced_as_a_whole() -> None:
    (request,) = sent(V2().set_rules(HERE_2, [Rule("shell", "git *", "allow")]))
    rule = {"action": "shell", "resource": "git *", "effect": "allow"}
    assert (request.method, request.body) == ("PATCH", {"permissions": [rule]})


# -- against a server that misbehaves --------------------------------------------------------------

ROOT = Session("ses_root01", "root", "/work/p")
USER = {"id": "msg_u1", "type": "user", "text": "hi", "time": {"created": 1}}
ANSWER = {
    "id": "msg_a1",
    "type": "assistant",
    "agent": "build",
    "model": {"id": "m", "providerID": "p"},
    "content": [{"type": "text", "text": "done"}],
    "time": {"created": 2, "completed": 3},
    "finish": "stop",
}
ONE = "GET /api/session/ses_root01/message/msg_u1"
POST = "POST /api/session/ses_root01/prompt"


def rows(*listed: Any) -> Any:
    return lambda seen: {
        "data": [] if "cursor" in seen.query else list(listed),
        "cursor": {"next": "end"},
    }


@pytest.mark.parametrize("status", [400, 500])
def test_the_error_about_archived_sessions_names_the_generation_that_lists_them(
    status: int,
) -> None:
    """Otherwise they would be missing from totals. Servers before 2.1 may ignore the parameter."""

    def listed(seen: Any) -> Any:
        refused = (status, {}, b'{"_tag": "UnknownError"}')
        return refused if "archived" in seen.query else {"data": [], "cursor": {}}

    with (
        CannedTransport(v2_routes(sessions=listed)) as fake,
        Client(fake.url, transport=fake) as client,
    ):
        if status == 400:
            assert client.sessions(everywhere=True) == ()
        else:
            with pytest.raises(StatusError):
                client.sessions(everywhere=True)


def played(fake: CannedTransport) -> Turn:
    with Client(fake.url, transport=fake, directory="/work/p") as client:
        with Run(client, ROOT, Prompt("msg_u1", "hi")) as turn:
            turn.start()
            end = time.monotonic() + 120
            for now in turn:
                assert time.monotonic() < end, f"{now!r} {turn.note}"
        return turn.turn


def test_a_prompt_that_arrived_before_the_connection_broke_is_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case G1-05."""
    monkeypatch.setattr("opencode_magics.sessions.polling.QUIET", 0.5)
    routes = v2_routes(prompt=DISCONNECT, message=rows(USER, ANSWER)) | {ONE: {"data": USER}}
    with CannedTransport(routes) as fake:
        assert played(fake).text == "done"
        assert len(fake.asked(POST)) == 1


def test_a_prompt_that_may_have_been_lost_is_not_sent_again() -> None:
    """Case G1-05."""
    inbox = {"GET /api/session/ses_root01/inbox": {"data": []}}
    with CannedTransport(v2_routes(prompt=DISCONNECT) | {ONE: MISSING} | inbox) as fake:
        with pytest.raises(TurnError, match="unknown whether"):
            played(fake)
        assert len(fake.asked(POST)) == 1


def test_what_happened_in_a_gap_is_read_from_the_store() -> None:
    """Case G1-06."""
    with CannedTransport(
        v2_routes(message=rows(USER, ANSWER)), [[b": heartbeat\n\n", DISCONNECT], []]
    ) as fake:
        began = time.monotonic()
        assert played(fake).text == "done"
        assert time.monotonic() - began < QUIET


def test_a_list_of_active_sessions_that_lags_behind_is_polled() -> None:
    """Case G1-36."""
    busy = {"data": {ROOT.id: {"type": "running"}}}
    active = answers_in_turn(busy, busy, busy, {"data": {}})
    over = b'data: {"type":"session.idle","data":{"sessionID":"ses_root01"}}\n\n'
    routes = v2_routes(message=rows(USER, ANSWER), active=active)
    with CannedTransport(routes, [[over, DISCONNECT], []]) as fake:
        assert played(fake).outcome == "succeeded"
        assert len(fake.asked("GET /api/session/active")) >= 4


DISJOINT = {"input": 70, "output": 15, "reasoning": 5, "cache": {"read": 30, "write": 2}}


def framed(*stored: Any, kind: str = "messages") -> Any:
    read = shapes.messages(ROOT.id, stored)
    return columns.frame_from_rows(FRAME_KINDS[kind].columns, FRAME_KINDS[kind].rows(read))


def test_reasoning_is_separate_from_output_and_the_cost_is_the_servers() -> None:
    """Case G2-04."""
    row = framed(USER, ANSWER | {"tokens": DISJOINT, "cost": 0.25}).iloc[-1]
    assert (row["output"], row["reasoning"], row["total"]) == (15, 5, 122)
    assert row["cost"] == 0.25


def test_cached_tokens_are_not_input_and_have_their_own_price() -> None:
    """Case G2-05."""
    row = framed(USER, ANSWER | {"tokens": DISJOINT, "cost": 0.25}).iloc[-1]
    assert (row["input"], row["cache_read"], row["cache_write"]) == (70, 30, 2)
    assert row["context"] == 70 + 30 + 2
    dear = {"acme/m": {"input": 1e6, "output": 0, "cache_read": 1, "cache_write": 1}}
    (price,) = prices.prices_from_mapping(dear).values()
    used = shapes.messages(ROOT.id, [ANSWER | {"tokens": DISJOINT}])[0].usage
    assert used
    assert prices.list_price(price, used, None).cost == pytest.approx(70 + 32e-6)


def test_a_streaming_message_is_not_final() -> None:
    """Case G2-21."""
    half = {k: v for k, v in ANSWER.items() if k != "finish"} | {"time": {"created": 2}}
    row = framed(USER, half).iloc[-1]
    assert (row["outcome"], row["completed"] is pd.NaT, row["duration"] is pd.NA) == (
        "unfinished",
        True,
        True,
    )
    assert row[["input", "output", "cost", "tokens_per_second"]].isna().all()
    assert not is_finished(shapes.messages(ROOT.id, [USER, half]))  # so that it is read again
    assert is_finished(shapes.messages(ROOT.id, [USER, ANSWER]))


def test_a_missing_route_is_not_an_empty_result() -> None:
    routes = v2_routes() | {"GET /api/model": (404, {}, b"")}
    with (
        CannedTransport(routes) as fake,
        Client(fake.url, transport=fake, directory="/work/p") as client,
        pytest.raises(StatusError),
    ):
        client.models()


READ = ["name", "key", "text", "time", "model", "tokens", "permissions", "fields", "type"]
READ += ["content", "cost", "limit", "variants", "methods", "connections", "status", "location"]
READ += ["action", "resource", "resources", "delivery", "payload", "metadata", "value"]
WRONG_TYPES = dict.fromkeys(READ, 7)
EVERYTHING: dict[str, Any] = {
    "true": True,
    "ids that are numbers": {"data": [{"id": 7, "name": 7, "key": 7}]},
    "one thing where many are": {"data": {"id": "x"}},
    "wrong types": {"data": [{"id": "x", "sessionID": "s"} | WRONG_TYPES], "cursor": 7},
    "a web page": (200, {"content-type": "text/html"}, b"<!doctype html>"),
    "too deep": (200, {"content-type": "application/json"}, b"[" * 100_000),
    "bytes": (200, {"content-type": "application/json"}, b"\xff\xfe{"),
}
VERBS = ["sessions", "permissions", "questions", "statuses", "models", "agents", "commands"]
OF_A_DIRECTORY = ["prices", "skills", "mcp", "integrations"]
OF_A_SESSION = ["children", "inbox", "instructions", "diffs", "delete", "fork"]


def operation(name: str, *args: Any) -> Any:
    """Call an operation that the client has no method for."""
    return lambda c: c.run(getattr(c.dialect, name)(*args))


CALLS: dict[str, Any] = {name: operator.methodcaller(name) for name in VERBS}
CALLS |= {name: operator.methodcaller(name, ROOT) for name in ("messages", "readable_messages")}
CALLS |= {name: operation(name, "/work/p") for name in OF_A_DIRECTORY}
CALLS |= {name: operation(name, ROOT) for name in OF_A_SESSION}
CALLS |= {
    "saved_rules": operation("saved_rules"),
    "session": lambda c: c.session(ROOT.id),
    "prompt": lambda c: c.prompt(ROOT, Prompt("msg_1", "hi")),
    "revert": lambda c: c.run(c.dialect.revert(ROOT, "msg_1")),
    "compact": lambda c: c.run(c.dialect.compact(ROOT, ModelRef("a", "b"))),
    "shell_output": lambda c: c.run(c.dialect.shell_output(c.directory, "sh_1")),
    "usage": lambda c: history.usage(c, "model", cache=False),
    "history": lambda c: history.messages(c, [ROOT], cache=False),
    "status": lambda c: status.read_states(c, [ROOT]),
    "rules": lambda c: permissions.session_rules(c, ROOT),
    "attach": lambda c: attach(c, ROOT),
    "show": lambda c: transcripts.read_transcript(c, ROOT),
}


class Always(dict[str, Any]):
    """Routes that all give the same reply, except for the one that identifies the server."""

    def __init__(self, answer: Any) -> None:
        super().__init__({"GET /api/info": {"version": "2.0.16", "pid": 1}})
        self.answer = answer

    def get(self, route: str, default: Any = None) -> Any:
        return super().get(route, self.answer)


@pytest.mark.parametrize("answer", EVERYTHING)
def test_a_call_succeeds_or_raises_our_error_whatever_the_reply(answer: str) -> None:
    fake = CannedTransport(Always(EVERYTHING[answer]))
    with fake, Client(fake.url, transport=fake, directory="/work/p") as client:
        for call in CALLS.values():
            with suppress(OpenCodeError):
                call(client)


# Replies with status 200 that are not receipts.
NONSENSE = [True, [], {"data": True}, {"data": {"id": 7}}, {"data": {"payload": True}}, "<html>"]


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_a_prompt_with_an_unreadable_receipt_is_followed_if_it_arrived(nonsense: Any) -> None:
    routes = v2_routes(prompt=nonsense, message=rows(USER, ANSWER)) | {ONE: {"data": USER}}
    succeeded = (
        b'data: {"type":"session.execution.succeeded","data":{"sessionID":"ses_root01"}}\n\n'
    )
    with CannedTransport(routes, [[succeeded]]) as fake:
        assert played(fake).text == "done"
        assert len(fake.asked(POST)) == 1
    inbox = {"GET /api/session/ses_root01/inbox": {"data": []}}
    with CannedTransport(v2_routes(prompt=nonsense) | {ONE: MISSING} | inbox) as fake:
        with pytest.raises(TurnError, match="unknown whether"):
            played(fake)
        assert len(fake.asked(POST)) == 1


# -- optional requests -----------------------------------------------------------------------------

BAD: dict[str, Any] = {
    "no such route": (404, {}, b""),
    "broken": (500, {"content-type": "application/json"}, b'{"_tag":"UnknownError","message":"x"}'),
    "a web page": (200, {"content-type": "text/html"}, b"<!doctype html>"),
    "true": True,
    "true inside": {"data": True},
    "numbers inside": {"data": [7]},
    "null inside": {"data": None},
}
ASIDE = {
    "GET /api/location": "sessions",
    "GET /api/model": "a turn, usage",
    "GET /api/model/default": "a turn",
    "GET /api/agent": "a turn",
    "GET /api/permission/request": "a turn, status",
    "GET /api/form": "a turn, status",
    "GET /api/session/ses_root01/diff": "a turn",
    "GET /api/session/active": "sessions, show",
}
STORED = {
    "id": "ses_root01",
    "title": "root",
    "projectID": "prj_1",
    "location": {"directory": "/work/p"},
    "time": {"created": 1, "updated": 2},
    "cost": 0.5,
    "tokens": {"input": 5},
}


@pytest.fixture(params=BAD)
def bad(request: pytest.FixtureRequest) -> Any:
    return BAD[request.param]


@contextmanager
def spoilt_for(use: str, bad: Any, *stored: Any) -> Iterator[Client]:
    """A client of a server with a session, whose optional routes all fail."""
    done = v2_routes(sessions=rows(STORED), message=rows(*stored or (USER, ANSWER)))
    done |= {"GET /api/model": {"data": []}, "GET /api/agent": {"data": []}}
    done |= {route: bad for route, uses in ASIDE.items() if use in uses}
    ended = b'{"type":"session.execution.succeeded","data":{"sessionID":"ses_root01"}}'
    over = [b"data: " + ended + b"\n\n"]
    with (
        CannedTransport(done, [over]) as fake,
        Client(fake.url, transport=fake, directory="/work/p") as client,
    ):
        yield client


def test_a_turn_ends_although_optional_requests_fail(bad: Any) -> None:
    with spoilt_for("a turn", bad, USER | {"id": "msg_here"}, ANSWER) as client:
        client.dialect.new_prompt_id = lambda now: "msg_here"  # type: ignore[method-assign]
        with prepare(client, ROOT, "hi") as run:
            run.start()
            end = time.monotonic() + 120
            for turn in run:
                assert time.monotonic() < end, f"{turn!r} {run.note}"
        assert (run.turn.outcome, run.turn.text) == ("succeeded", "done")


def test_usage_is_available_without_a_price_list(bad: Any) -> None:
    with spoilt_for("usage", bad) as client:
        frame = history.usage(client, cache=False)
    assert frame["cost"].tolist() == [0.5]
    assert frame["cost_listed"].isna().all()
    assert any("No list price is known" in w for w in frame.attrs["warnings"])


def test_sessions_are_listed_without_their_status_and_project(bad: Any) -> None:
    with spoilt_for("sessions", bad) as client:
        frame = history.sessions(client)
    assert frame["id"].tolist() == ["ses_root01"]
    assert frame["status"].isna().all()


def test_a_status_is_available_without_pending_requests(bad: Any) -> None:
    with spoilt_for("status", bad) as client:
        (idle,) = status.read_states(client, [ROOT])
        assert idle.state == "idle"
        assert idle.error


def test_a_session_is_shown_without_its_status_and_log(bad: Any) -> None:
    stopped = ANSWER | {"finish": "error", "error": {"type": "aborted", "message": "x"}}
    end = {"id": "msg_z", "type": "idle", "outcome": "interrupted", "time": {"created": 9}}
    with spoilt_for("show", bad, USER, stopped, end) as client:
        (turn,) = transcripts.read_transcript(client, ROOT).turns
    assert (turn.text, turn.outcome) == ("done", "unknown")
