"""The live feed: recorded traffic as rows, a broken stream, a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from IPython.core.error import UsageError
from support.fake_server import DISCONNECT, FakeServer, frame, v1_routes
from support.generations import both_generations
from support.ipython_shell import Shell
from support.recorded_flows import V1_FLOWS, V2_FLOWS, recording, transcript

from opencode_magics.client.client import Client
from opencode_magics.dialects.base import Prompt
from opencode_magics.dialects.v1 import V1
from opencode_magics.dialects.v2 import V2
from opencode_magics.sessions.feed import FeedMemory, FeedRow, feed_row, watch


def rows(scenario: str) -> list[FeedRow]:
    frames = [line["frame"] for line in recording(f"v1/{scenario}").lines if "frame" in line]
    return [r for n, f in enumerate(frames) if (r := feed_row(V1(), f, n))]


@pytest.mark.parametrize("scenario", V1_FLOWS)
def test_every_recorded_frame_is_a_row_that_names_its_session(scenario: str) -> None:
    for row in rows(scenario):
        assert row.type
        assert row.raw["type"] == row.type
        of_session = row.type.startswith(("session.", "message.", "permission.", "question."))
        assert not of_session or (row.session or "").startswith("ses_")


def test_rows_say_what_happened() -> None:
    lines = [f"{r.type}: {r.summary}" for r in rows("bash_once")]
    assert "session.status: busy" in lines
    assert "permission.asked: asks for bash: echo hi" in lines
    assert any(t.startswith("message.part.updated: bash completed") for t in lines)
    assert any(t.startswith("message.updated: answer: stop") for t in lines)
    assert "session.status: idle" in lines


def rows_of_2_x(scenario: str) -> list[FeedRow]:
    names = FeedMemory()
    frames = enumerate(transcript(scenario).frames)
    return [r for n, frame in frames if (r := feed_row(V2(), frame, n, names))]


@pytest.mark.parametrize("scenario", V2_FLOWS)
def test_every_frame_of_a_2_x_transcript_has_a_session_and_a_summary(scenario: str) -> None:
    names_of_parts = {"StepStart", "StepEnd", "Text", "Reasoning", "ToolCall", "system"}
    for row in rows_of_2_x(scenario):
        of_session = row.type != "project.updated"
        assert (row.session or "").startswith("ses_") == of_session, row
        assert row.summary if row.type.endswith(".delta") else row.summary.strip(), row
        assert row.summary not in names_of_parts
        assert not (row.type.startswith("session.tool.") and row.summary.startswith((" ", "a ")))


def summaries(scenario: str, kind: str) -> list[str]:
    return [r.summary for r in rows_of_2_x(scenario) if r.type == kind]


def test_rows_of_2_x_say_what_happened() -> None:
    (called,) = summaries("interrupt", "session.tool.called")
    (failed,) = summaries("interrupt", "session.tool.failed")
    assert (called, failed) == ("shell running", "shell error: Tool execution interrupted")
    (ended,) = summaries("interrupt", "session.execution.interrupted")
    assert ended == "idle interrupted: Aborted: a person stopped the turn"
    assert summaries("turn", "session.execution.succeeded") == ["idle succeeded"]
    assert summaries("turn", "session.step.ended")[0].startswith("step ends: tool-calls, ")
    assert all("tokens, $" in s for s in summaries("turn", "session.usage.updated"))
    assert summaries("turn", "session.inbox.delivered")[0].endswith("delivered to the agent")
    assert "{" in summaries("turn", "session.tool.input.ended")[0]


def test_every_event_of_a_2_x_shell_names_its_session() -> None:
    """Only its first event names the session."""
    shells = [r for r in rows_of_2_x("interrupt") if r.type.startswith("shell.")]
    assert {r.session for r in shells} == {transcript("interrupt").session}
    states = [r.summary.partition(" ")[2] for r in shells]
    assert states == ["running: sleep 50", "deleted", "exited"]
    assert any("exited with 0" in s for s in summaries("permission", "shell.exited"))


def test_a_call_whose_start_was_missed_is_an_unnamed_tool() -> None:
    frame = next(f for f in transcript("turn").frames if f["type"] == "session.tool.called")
    row = feed_row(V2(), frame, 1)
    assert row is not None
    assert row.summary == "a tool running"


@pytest.mark.parametrize("odd", [7, "x", [], {}, {"type": "session.status"}, {"type": None}])
def test_an_unreadable_frame_is_a_row_too(odd: Any) -> None:
    row = feed_row(V1(), odd, 1)
    assert row is not None
    assert row.session is None


def rows_until(
    client: Client, last: Callable[[FeedRow], bool], sessions: Sequence[str] = ()
) -> list[FeedRow]:
    """The rows of a feed up to the first that matches."""
    heard: list[FeedRow] = []
    for new in watch(client, "/work/p", 60.0, sessions):
        heard += new
        if any(map(last, new)):
            return heard
    raise AssertionError(f"the row never came: {heard}")


def test_a_gap_in_the_feed_is_a_row() -> None:
    busy = frame("session.status", sessionID="ses_root01", status={"type": "busy"})
    streams = [[busy, DISCONNECT], [b"data: no json\n\n", b"data: " + b"[" * 100_000 + b"\n\n"]]
    with FakeServer(v1_routes(), streams) as fake, Client(fake.url) as client:
        heard = rows_until(client, lambda row: row.raw == {"frame": "no json"})
    kinds = [r.type for r in heard]
    assert kinds.count("connection.opened") == 2
    assert "connection.lost" in kinds
    assert ("session.status", "busy") in [(r.type, r.summary) for r in heard]
    assert {"frame": "no json"} in [r.raw for r in heard]
    assert {"frame": "[" * 100_000} in [r.raw for r in heard]


def test_a_feed_can_be_limited_to_a_session_and_its_subagents() -> None:
    child = {"id": "ses_child", "parentID": "ses_root01", "directory": "/work/p"}
    frames = [
        frame("session.status", sessionID="ses_other", status={"type": "busy"}),
        frame("session.created", sessionID="ses_child", info=child),
        frame("session.status", sessionID="ses_child", status={"type": "busy"}),
    ]
    with FakeServer(v1_routes(), [frames]) as fake, Client(fake.url) as client:
        heard = rows_until(client, lambda row: row.type == "session.status", ["ses_root01"])
    assert [r.session for r in heard if r.session] == ["ses_child", "ses_child"]


@both_generations
def test_a_real_feed_is_returned_as_a_frame(shell: Shell, client: Client) -> None:
    session = client.create("watched")

    def soon() -> None:
        time.sleep(2)  # the feed has to be open by then
        new_id = client.dialect.new_prompt_id(int(time.time() * 1000))
        client.prompt(session, Prompt(new_id, "#text 3"))

    sending = threading.Thread(target=soon)
    sending.start()
    shown = shell.run(f"%oc_watch --seconds 12 --session {session.id}")
    sending.join()
    heard = shown.value
    assert str(heard["time"].dtype) == "datetime64[ms, UTC]"
    assert {*heard["session"].dropna()} == {session.id}
    assert heard["summary"].str.contains("idle").any()
    assert heard.loc[heard["session"].notna(), "summary"].notna().all()
    assert heard["raw"].map(lambda raw: isinstance(raw, dict)).all()
    assert f"{len(heard)} events received" in shown.text


def test_the_duration_is_checked(alone: Shell) -> None:
    with pytest.raises(UsageError, match="--seconds"):
        alone.run("%oc_watch --seconds 0")
