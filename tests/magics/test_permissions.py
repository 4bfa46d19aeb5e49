"""Following a running turn, and answering its requests with %oc_reply."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError
from support.fake_server import FakeServer, v1_routes
from support.generations import tool_names
from support.ipython_shell import Shell, is_short_error

from opencode_magics.core.turn import SettledRequest, Turn
from opencode_magics.errors import InvalidAnswer, UnknownNameError

BOTH_GENERATIONS = True


@pytest.fixture
def shell(shell: Shell) -> Iterator[Shell]:
    """A shell with a new session; its pending requests are rejected after the test."""
    shell.run("%oc_new a test;")
    yield shell
    shell.see("%oc_attach --permission reject")


def pending_after(shell: Shell, prompt: str, count: int = 1) -> Any:
    """Send a prompt without waiting and return the frame of its pending requests."""
    shell.run(f"%oc_prompt --no-wait {prompt}")
    deadline = time.monotonic() + 120
    while len(frame := shell.run("%oc_permissions").value) < count:
        assert time.monotonic() < deadline, "the agent asked nothing"
        time.sleep(0.1)
    return frame


def attach(shell: Shell, options: str = "") -> Turn:
    """Follow the running turn with %oc_attach and return it."""
    shell.run(f"%oc_attach -o turn {options}")
    turn: Turn = shell.user_ns["turn"]
    return turn


def test_a_permission_is_listed_and_allowed(shell: Shell, workspace: Path, generation: str) -> None:
    (bash,) = tool_names(generation, "bash")
    (row,) = pending_after(shell, "#bash touch made").itertuples()
    assert (row.kind, row.action, row.asks, row.always) == (
        "permission",
        bash,
        "touch made",
        "touch *",
    )
    settled = shell.run(f"%oc_reply {row.id} once")
    assert isinstance(settled.value, SettledRequest)
    assert f"Permission: {bash} 'touch made' → once" in settled.text
    assert attach(shell).outcome == "succeeded"
    assert (workspace / "made").exists()


def test_a_rejection_with_a_message_lets_the_turn_continue(shell: Shell, workspace: Path) -> None:
    pending_after(shell, "#bash touch made")
    shell.run("%oc_reply per_ reject it's not the time")
    turn = attach(shell)
    assert turn.outcome == "succeeded"
    assert "it's not the time" in (turn.tools[0].error or "")


def test_a_question_is_answered_with_oc_reply(shell: Shell) -> None:
    (row,) = pending_after(shell, "#question").itertuples()
    assert row.kind == "question"
    assert "Red" in row.options
    with pytest.raises(InvalidAnswer, match="Give --answer"):
        shell.run(f"%oc_reply {row.id} --answer Red --answer S --answer more")
    items = row.asks.count(" / ") + 1
    shell.run(f"%oc_reply {row.id} " + " ".join(["--answer 'my own words'"] * items))
    turn = attach(shell)
    assert turn.outcome == "succeeded"
    assert "my own words" in turn.tools[0].output


def test_a_question_is_dismissed_with_oc_reply(shell: Shell) -> None:
    (row,) = pending_after(shell, "#question").itertuples()
    shell.run(f"%oc_reply {row.id[:6]} dismiss")
    assert attach(shell).outcome == "rejected"


def test_a_request_of_a_subagent_is_listed_with_its_session(shell: Shell) -> None:
    (row,) = pending_after(shell, "#task #bash touch made").itertuples()
    assert row.session != shell.run("%oc_session").value.id
    assert "do sub work" in row.title
    shell.run(f"%oc_reply {row.id} reject")
    assert attach(shell).outcome == "succeeded"


def test_attaching_answers_earlier_requests(shell: Shell, workspace: Path) -> None:
    """The request was pending before the cell listened. Case G1-14."""
    pending_after(shell, "#bash touch made")
    turn = attach(shell, "--permission once")
    assert turn.outcome == "succeeded"
    assert [s.reply for s in turn.settled_requests] == ["once"]
    assert (workspace / "made").exists()


def test_attaching_to_an_idle_session_shows_its_last_turn(shell: Shell) -> None:
    shell.run("%oc_prompt #text 3")
    shown = shell.run("%oc_attach")
    assert "word0 word1 word2" in shown.text
    assert "succeeded" in shown.lines[-1]


def test_attaching_sends_nothing(shell: Shell, client: Any) -> None:
    shell.run("%oc_prompt #text 3")
    session = shell.run("%oc_session").value
    attach(shell)
    roles = [m.role for m in client.messages(session) if m.role != "system"]
    assert roles == ["user", "assistant"]


def test_attaching_by_title_makes_that_session_the_current_one(shell: Shell) -> None:
    first = shell.run("%oc_new the first of two").value
    shell.run("%oc_prompt #text 3")
    shell.run("%oc_new the second of two;")
    shell.run("%oc_attach the first of two")
    assert shell.run("%oc_session").value.id == first.id


def test_a_session_without_a_prompt_cannot_be_attached_to(shell: Shell) -> None:
    shown = shell.fails("%oc_attach")
    assert isinstance(shown.error, UnknownNameError)
    assert is_short_error(shown)
    shell.run("%oc_prompt #text 1")


@pytest.mark.parametrize("line", ["%oc_reply per_nothing once", "%oc_reply nonsense reject no"])
def test_a_request_that_is_not_pending_is_an_error(shell: Shell, line: str) -> None:
    shown = shell.fails(line)
    assert isinstance(shown.error, UnknownNameError)
    assert "answered, expired, or never sent" in shown.text
    shell.run("%oc_prompt #text 1")


@pytest.mark.parametrize("reply", ["", "maybe", "once please", "--answer yes"])
def test_an_invalid_reply_to_a_permission_is_refused(shell: Shell, reply: str) -> None:
    pending_after(shell, "#bash touch made")
    with pytest.raises(InvalidAnswer):
        shell.run(f"%oc_reply per_ {reply}")


def test_a_frame_without_requests_has_the_same_columns(shell: Shell) -> None:
    empty = shell.run("%oc_permissions").value
    full = pending_after(shell, "#bash touch made")
    assert list(empty.columns) == list(full.columns)
    assert list(map(str, empty.dtypes)) == list(map(str, full.dtypes))


def test_an_empty_id_is_refused_and_a_full_id_matches_only_itself(alone: Shell) -> None:
    asks = [
        {"id": key, "sessionID": "ses_root01", "permission": "bash", "patterns": ["x"]}
        for key in ("per_1", "per_10")
    ]
    routes = v1_routes(permission=asks[:1]) | {"POST /permission/per_1/reply": True}
    with FakeServer(routes) as fake:
        alone.run(f"%oc_connect {fake.url};")
        with pytest.raises(UsageError, match="is empty"):
            alone.run("%oc_reply '' once")
        assert not fake.asked("POST /permission/per_1/reply")
        fake.routes["GET /permission"] = asks
        assert alone.run("%oc_reply per_1 once").value.request.id == "per_1"
        with pytest.raises(UnknownNameError, match="could be any of"):
            alone.run("%oc_reply per_ once")


def test_a_restarted_kernel_is_shown_what_waits_and_takes_it_up(
    shell: Shell, workspace: Path
) -> None:
    """Case E7: the status was an empty frame."""
    pending_after(shell, "#bash touch made")
    shell.run("%unload_ext opencode_magics")
    shell.run("%load_ext opencode_magics")
    shell.run("%oc_connect;")
    shown = shell.run("%oc_status")
    assert [*shown.value["state"]] == ["waiting_for_permission"]
    assert "1 session at work or waiting in" in shown.text
    assert "%oc_attach ID takes one up" in shown.text
    shell.types("1")
    shell.run("%oc_attach")
    assert (workspace / "made").exists()
