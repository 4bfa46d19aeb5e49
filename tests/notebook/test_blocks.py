"""The blocks of a turn and their order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.recorded_flows import V1_FLOWS, flow
from support.sample_turns import (
    CHILD,
    EDIT,
    PROMPT,
    SESSION,
    answer,
    permission,
    running,
    says,
    tool,
    turn,
)

from opencode_magics.core.fold import advance, advance_all
from opencode_magics.core.model import (
    Compaction,
    Failure,
    Message,
    Permission,
    Reasoning,
    Session,
    Status,
    StepStart,
    Text,
)
from opencode_magics.core.turn import Retry, SettledRequest, Turn
from opencode_magics.notebook.blocks import Block, Changes, Note, Recap, RequestState, blocks


def kinds(turn: Turn) -> list[str]:
    return [b.kind for b in blocks(turn)]


def notes(turn: Turn) -> list[str]:
    return [b.value.text for b in blocks(turn) if isinstance(b.value, Note)]


def test_parts_are_shown_in_order_without_steps() -> None:
    shown = turn(answer(Reasoning("a", "hm", 0, 1), Text("b", "Hello", 1, 2), tool()))
    assert kinds(shown) == ["reasoning", "text", "toolcall"]


def test_streaming_blocks_are_open_until_the_turn_ends() -> None:
    parts = (Text("a", "Hel", 0), tool(status="running", end=None))
    assert [b.closed for b in blocks(running(*parts))] == [False, False]
    assert all(b.closed for b in blocks(turn(answer(*parts))))


def test_an_empty_part_shows_nothing() -> None:
    """A failed attempt leaves an empty text part."""
    assert kinds(says("")) == ["note"]
    assert blocks(running(Text("a", " \n"))) == ()


def test_keys_are_stable_while_a_turn_runs() -> None:
    before = blocks(running(Text("a", "Hel"), tool(status="running")))
    after = blocks(turn(answer(Text("a", "Hello", 0, 1), tool())))
    assert [b.key for b in before] == [b.key for b in after]


# -- permissions and questions ---------------------------------------------------------------------


def test_a_settled_permission_follows_its_tool_call() -> None:
    settled = SettledRequest(permission("call_1"), "once")
    shown = running(tool(call="call_1"), tool(call="call_2"), settled_requests=(settled,))
    assert kinds(shown) == ["toolcall", "requeststate", "toolcall"]
    assert blocks(shown)[1].value == RequestState(settled.request, "once")


def test_a_permission_without_a_known_call_is_at_the_end() -> None:
    settled = SettledRequest(permission(None), "once")
    shown = turn(answer(tool(), Text("z", "Done", 0, 1)), settled_requests=(settled,))
    assert kinds(shown) == ["toolcall", "text", "requeststate"]


def test_a_waiting_request_is_open_and_follows_its_tool_call() -> None:
    shown = running(tool(status="running"), Text("z", "…"), permissions=(permission(),))
    assert [(b.kind, b.closed) for b in blocks(shown)][1] == ("requeststate", False)


def test_a_request_keeps_its_key_when_it_is_settled() -> None:
    waits = running(tool(status="running"), permissions=(permission(),))
    done = running(tool(), settled_requests=(SettledRequest(permission(), "once"),))
    assert blocks(waits)[1].key == blocks(done)[1].key


def test_a_subagents_request_names_it_and_follows_the_task() -> None:
    """The request names a call of the subagent, which this turn does not have."""
    request = permission("call_of_child", session=CHILD)
    title = "Look around (@general subagent)"
    child = Session(CHILD, title, parent=SESSION)
    task = tool("task", call="call_task", status="running", child=CHILD)
    shown = running(task, tool(call="call_2"), permissions=(request,), sessions=(child,))
    assert kinds(shown) == ["toolcall", "requeststate", "toolcall"]
    assert blocks(shown)[1].value == RequestState(request, subagent=title)


def test_a_nested_subagents_request_follows_the_outer_task() -> None:
    grandchild = Session("ses_3", "Deeper", parent=CHILD, created=2)
    child = Session(CHILD, "Look around", parent=SESSION, created=1)
    request = permission("other", session="ses_3")
    task = tool("task", status="running", child=CHILD)
    shown = running(task, tool(call="b"), permissions=(request,), sessions=(child, grandchild))
    assert kinds(shown) == ["toolcall", "requeststate", "toolcall"]


def test_a_write_shows_the_diff_of_its_permission() -> None:
    """1.18.33 reports no diff for the write itself."""
    request = permission(action="edit", command=None, diff=EDIT)
    shown = turn(answer(tool("write")), settled_requests=(SettledRequest(request, "once"),))
    assert blocks(shown)[0].value.diffs == (EDIT,)


# -- retries and failures --------------------------------------------------------------------------


def test_retries_before_the_first_text_are_above_it() -> None:
    retries = (Retry(1, "429", None, "msg_1"), Retry(2, "429", None, "msg_1"))
    assert kinds(says("Recovered", retries=retries)) == ["retry", "retry", "text"]


def test_a_later_retry_is_between_the_attempts() -> None:
    first = (tool(call="done"), Text("c", "", 1))
    shown = turn(
        answer(*first, StepStart("d"), Text("e", "whole", 2, 3)),
        retries=(Retry(1, "reset", None, "msg_1"),),
    )
    assert kinds(shown) == ["toolcall", "retry", "text"]


def test_a_pending_retry_is_last() -> None:
    shown = running(Text("a", "half"), retries=(Retry(1, "reset", 5, "msg_1"),))
    shown = replace(shown, status=Status("retry", 1, "reset", 5))
    assert kinds(shown) == ["text", "retry"]


def test_a_retry_before_any_answer_is_shown() -> None:
    shown = turn(checked=False, retries=(Retry(1, "busy", None, PROMPT.id),))
    assert kinds(shown) == ["retry"]


def test_a_messages_error_follows_it_and_is_shown_once() -> None:
    """1.18.33 reports a message's error again as an error of its session."""
    error = Failure("APIError", "no key", 401)
    shown = turn(answer(Text("a", "Hm", 0, 1), error=error, finish=None), failures=(error,))
    assert kinds(shown) == ["text", "failure"]


def test_a_session_failure_is_shown_even_if_the_turn_continued() -> None:
    shown = says("Recovered", failures=(Failure("ContextOverflowError", "too long"),))
    assert kinds(shown) == ["text", "failure"]


def test_a_cut_off_reply_has_a_note() -> None:
    cut = turn(answer(Text("a", "Once upon", 0, 1), finish="length"))
    assert notes(cut) == ["The reply is cut off: the model reached its output limit."]


def test_a_compaction_shows_as_a_note_and_a_recap() -> None:
    request = Message("msg_1a", SESSION, "user", 1_150, 1_150, parts=(Compaction("c", True, True),))
    summary = answer(Text("s", "We did much", 0, 1), id="msg_1b", summary=True, parent="msg_1a")
    shown = turn(request, summary, answer(Text("t", "Done", 0, 1), id="msg_2", parent="msg_1a"))
    assert kinds(shown) == ["note", "recap", "text"]
    assert blocks(shown)[1].value == Recap("We did much", 1)


# -- after the end ---------------------------------------------------------------------------------


def test_a_reply_with_reasoning_only_has_a_note() -> None:
    """Case G1-38."""
    shown = turn(answer(Reasoning("a", "hm", 0, 1)))
    assert notes(shown) == ["no text in the reply (reasoning only)"]


def test_an_empty_reply_has_a_note() -> None:
    assert notes(turn(answer())) == ["no text in the reply"]


def test_a_merged_turn_has_a_note() -> None:
    """1.x answers queued prompts together."""
    later = Message("msg_9", SESSION, "user", 2_000, 2_000, parts=(Text("x", "And this", 0, 0),))
    shown = turn(later, answer(Text("a", "Both done", 0, 1), parent="msg_9"))
    assert notes(shown) == ["answered together with a later prompt"]


def test_changed_files_are_at_the_end_of_a_finished_turn() -> None:
    edits = (tool("edit", diffs=(EDIT,)), Text("z", "Done", 0, 1))
    assert blocks(turn(answer(*edits)))[-1] == Block("changes", Changes((EDIT,)))
    assert "changes" not in kinds(running(*edits))


# -- recorded turns --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", V1_FLOWS)
def test_every_state_of_a_recorded_turn_can_be_shown(name: str) -> None:
    """Keys are unique, and a closed text no longer changes."""
    recorded = flow(name)
    state, closed = recorded.start, dict[str, Block]()
    for event in (*recorded.events, recorded.stored):
        state = advance(state, event)
        shown = {b.key: b for b in blocks(state)}
        assert len(shown) == len(blocks(state))
        assert all(shown[key] == block for key, block in closed.items() if key in shown)
        closed |= {k: b for k, b in shown.items() if b.closed and isinstance(b.value, Text)}


def test_recorded_requests_directly_follow_their_tool_calls() -> None:
    recorded = flow("bash_once")
    state = advance(advance_all(recorded.start, recorded.events), recorded.stored)
    shown = blocks(state)
    at = next(n for n, b in enumerate(shown) if isinstance(b.value, RequestState))
    request = shown[at].value.request
    assert isinstance(request, Permission)
    assert shown[at - 1].value.call == request.call
