"""The fold and its invariants, on flows recorded from 1.18.33."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.recorded_flows import V1_FLOWS, case, events, events_in, flow

from opencode_magics.core.events import (
    MessageChanged,
    PartChanged,
    PartDelta,
    PermissionAsked,
    RequestReplied,
    SessionChanged,
    StatusChanged,
    StoreSnapshot,
    TurnEnded,
    coalesce,
)
from opencode_magics.core.fold import advance, advance_all, judge_idle_turn
from opencode_magics.core.model import (
    Failure,
    Message,
    Permission,
    Reasoning,
    Session,
    Status,
    StepEnd,
    StepStart,
    Text,
    ToolCall,
    Usage,
)
from opencode_magics.core.turn import Turn

OUTCOMES = {
    "abort_hang": "aborted",
    "abort_permission": "aborted",
    "abort_question": "aborted",
    "abort_streaming": "aborted",
    "abort_subagent": "aborted",
    "abort_tool": "aborted",
    "bash_reject": "rejected",
    "edit_reject": "rejected",
    "err400": "failed",
    "err401": "failed",
    "err500_abort": "interrupted",  # completed with neither error nor finish
    "garbage": "failed",
    "page_abort": "aborted",
    "question_dismissed": "rejected",
    "queued_aborted": "aborted",
    "two_both_rejected": "rejected",
    "two_one_rejected": "rejected",
    "unknown_agent": "running",  # 1.18.33 stores no prompt for an agent it doesn't know
    "unknown_model": "failed",
}


@pytest.mark.parametrize("name", V1_FLOWS)
def test_every_recorded_flow_has_its_outcome(name):
    recorded = flow(name)
    turn = advance(advance_all(recorded.start, recorded.events), recorded.stored)
    assert turn.outcome == OUTCOMES.get(name, "succeeded")


@pytest.mark.parametrize("name", V1_FLOWS)
def test_a_stream_cut_at_any_frame_and_reread_ends_in_the_same_turn(name):
    recorded = flow(name)
    complete = advance(advance_all(recorded.start, recorded.events), recorded.stored)
    turn = recorded.start
    for event in recorded.events:
        assert advance(turn, recorded.stored) == complete
        turn = advance(turn, event)


@pytest.mark.parametrize("name", V1_FLOWS)
def test_a_complete_stream_gives_the_same_messages_as_the_store(name):
    recorded = flow(name)
    turn = advance_all(recorded.start, recorded.events)
    assert turn.log == advance(turn, recorded.stored).log


@pytest.mark.parametrize("name", V1_FLOWS)
def test_a_stream_received_twice_ends_in_the_same_turn(name):
    recorded = flow(name)
    once = advance(advance_all(recorded.start, recorded.events), recorded.stored)
    assert advance(advance_all(once, recorded.events), recorded.stored) == once
    assert advance(once, recorded.stored) == once


@pytest.mark.parametrize("name", ["text", "edit", "subagent_permission"])
@pytest.mark.parametrize("size", [1, 7, 4096])
def test_bytes_can_arrive_in_any_chunks(name, size):
    recorded = flow(name)
    pieces = [recorded.raw[i : i + size] for i in range(0, len(recorded.raw), size)]
    assert tuple(events_in(pieces)) == recorded.events


@pytest.mark.parametrize("name", V1_FLOWS)
def test_joining_deltas_changes_nothing(name):
    recorded = flow(name)
    one_by_one = recorded.start
    for event in recorded.events:
        one_by_one = advance(one_by_one, event)
    assert advance_all(recorded.start, recorded.events) == one_by_one
    assert len(list(coalesce(recorded.events))) <= len(recorded.events)


def test_events_outside_the_tree_change_nothing():
    recorded = flow("edit")
    turn = advance_all(recorded.start, recorded.events)
    for stranger in flow("subagent_permission").events:
        assert advance(turn, stranger) is turn


def test_a_subagent_is_recognized_by_its_parent_and_its_cost_counts():
    recorded = flow("subagent")
    turn = advance(advance_all(recorded.start, recorded.events), recorded.stored)
    (child,) = turn.subagents
    assert turn.cost == pytest.approx(turn.usage.cost + child.usage.cost)


def test_every_request_of_a_subagent_is_settled_by_the_stream():
    recorded = flow("subagent_permission")
    turn = advance_all(recorded.start, recorded.events)
    (settled,) = turn.settled_requests
    assert (settled.request.session, settled.reply) == (turn.subagents[0].id, "once")


def test_the_cost_of_an_aborted_turn_is_unknown_not_zero():
    recorded = flow("abort_streaming")
    turn = advance(advance_all(recorded.start, recorded.events), recorded.stored)
    assert (turn.usage, turn.cost, turn.usage_complete) == (None, None, False)
    assert turn.text


def test_a_retry_is_remembered_with_its_attempt_and_reason():
    turn = advance_all(flow("err429_recover").start, flow("err429_recover").events)
    assert [r.attempt for r in turn.retries] == [1, 2]
    assert "429" in turn.retries[0].message


# -- invariants on plain values --------------------------------------------------------------------


def message(number: int, **fields: object) -> Message:
    values = {"role": "assistant", "parent": "p", "created": number, "completed": number}
    return Message(id=f"m{number}", session="s", **(values | fields))


PROMPT = Message("p", "s", "user", created=0, parts=(Text("t", "hi"),))


def turn_of(*log: Message, **fields: object) -> Turn:
    return Turn("s", "p", log=(PROMPT, *log), checked=True, status=Status("idle"), **fields)


def part_of(turn: Turn) -> object:
    return turn.log[-1].parts[0]


def test_a_delta_may_come_before_its_part():
    turn = advance(turn_of(message(1, completed=None)), PartDelta("s", "m1", "x", "think"))
    turn = advance(turn, PartChanged("s", "m1", Reasoning("x", "")))
    assert part_of(turn) == Reasoning("x", "think")


def test_an_open_snapshot_never_shortens_a_text():
    turn = turn_of(message(1, completed=None, parts=(Text("x", "long"),)))
    assert part_of(advance(turn, PartChanged("s", "m1", Text("x", "")))) == Text("x", "long")


@pytest.mark.parametrize(
    "late", [PartDelta("s", "m1", "x", "!"), PartChanged("s", "m1", Text("x"))]
)
def test_a_closed_snapshot_outranks_what_comes_late(late):
    closed = Text("x", "done", start=1, end=2)
    turn = turn_of(message(1, parts=(closed,)))
    assert part_of(advance(turn, late)) == closed


def test_a_finished_tool_does_not_run_again():
    done = ToolCall("x", "c", "bash", "completed", output="ok")
    turn = turn_of(message(1, parts=(done,)))
    running = PartChanged("s", "m1", ToolCall("x", "c", "bash", "running"))
    assert part_of(advance(turn, running)) == done


def test_a_new_attempt_discards_what_the_broken_one_streamed():
    turn = turn_of(message(1, completed=None, parts=(StepStart("a"), Text("b", "half"))))
    turn = advance(turn, PartChanged("s", "m1", StepStart("c")))
    assert turn.log[-1].text == ""


def test_a_late_step_start_keeps_the_text_after_it():
    turn = turn_of(message(1, completed=None, parts=(Text("b", "text"),)))
    assert advance(turn, PartChanged("s", "m1", StepStart("a"))).log[-1].text == "text"


def test_a_completed_message_stays_completed():
    turn = turn_of(message(1, finish="stop"))
    assert advance(turn, MessageChanged(message(1, completed=None))) == turn


def test_idle_alone_ends_nothing():
    turn = advance(Turn("s", "p", log=(PROMPT, message(1, finish="stop"))), idle())
    assert turn.outcome == "running"
    assert advance(turn, reread(PROMPT, message(1, finish="stop"))).outcome == "succeeded"


def test_busy_again_is_running_again():
    turn = turn_of(message(1, finish="stop"))
    assert turn.outcome == "succeeded"
    assert advance(turn, StatusChanged("s", Status("busy"))).outcome == "running"


def test_idle_with_an_unfinished_answer_does_not_end_a_turn():
    assert turn_of(message(1, completed=None)).outcome == "running"


def test_a_prompt_that_nobody_answered_failed():
    assert turn_of().outcome == "failed"


@pytest.mark.parametrize(
    ("finish", "outcome"),
    [
        ("stop", "succeeded"),
        ("length", "succeeded"),  # the answer is truncated, and the view says so
        ("error", "failed"),
        ("content-filter", "failed"),
        ("tool-calls", "interrupted"),
        (None, "interrupted"),
    ],
)
def test_only_a_real_finish_succeeds(finish, outcome):
    assert turn_of(message(1, finish=finish)).outcome == outcome


def test_a_turn_with_an_open_tool_call_did_not_succeed():
    at_work = ToolCall("x", "c", "bash", "running")
    assert turn_of(message(1, finish="stop", parts=(at_work,))).outcome == "interrupted"


def test_a_verdict_stays():
    turn = advance(turn_of(), TurnEnded("aborted"))
    assert advance(turn, reread(PROMPT, message(1, finish="stop"))).outcome == "aborted"


def test_the_store_can_decide_an_unknown_outcome_later():
    turn = advance(turn_of(), TurnEnded("unknown"))
    assert turn.outcome == "unknown"
    assert advance(turn, reread(PROMPT, message(1, finish="stop"))).outcome == "succeeded"


def test_a_request_that_is_repeated_after_its_reply_stays_answered():
    asked = PermissionAsked(Permission("per", "s", "bash", ("ls",)))
    turn = advance(turn_of(), asked)
    assert len(turn.waiting) == 1
    turn = advance(turn, RequestReplied("s", "per", "once"))
    turn = advance(turn, asked)
    assert turn.waiting == ()
    assert advance(turn, reread(PROMPT, permissions=(asked.permission,))).waiting == ()


def test_three_requests_keep_their_order_and_their_own_state():
    """G4-13: a later request doesn't hide an earlier one."""
    asked = [PermissionAsked(Permission(f"per{n}", "s", "bash", (f"{n}",))) for n in range(3)]
    turn = advance_all(turn_of(), asked)
    turn = advance(turn, RequestReplied("s", "per1", "once"))
    assert [r.id for r in turn.waiting] == ["per0", "per2"]


def test_tokens_are_the_sum_of_the_steps():
    """G2-03: a message of several steps holds only the last one's tokens."""
    steps = (
        StepEnd("a", usage=Usage(10, 1, 0, 5, 0, 0.1)),
        StepEnd("b", usage=Usage(20, 2, cost=0.2)),
    )
    answered = message(1, reported=Usage(20, 2, cost=0.3), parts=steps)
    assert answered.usage == Usage(30, 3, 0, 5, 0, 0.3)


def test_a_later_prompt_ends_the_turn():
    other = Message("q", "s", "user", created=2, parts=(Text("t", "next"),))
    turn = turn_of(message(1, finish="stop"), other, message(3, parent="q", finish="stop"))
    assert [m.id for m in turn.answers] == ["m1"]
    assert not turn.merged


def test_a_persons_shell_command_is_not_an_answer():
    recorded = flow("person_shell")
    turn = advance(advance_all(recorded.start, recorded.events), recorded.stored)
    assert [m.shell for m in turn.log if m.role == "assistant"] == [False, True, True]
    assert (turn.text, turn.tools, turn.steps) == ("word0 word1 word2", (), 1)
    assert turn.usage_complete


def test_the_task_of_a_running_command_belongs_to_the_turn():
    recorded = flow("subtask_command")
    turns = [recorded.start]
    for event in recorded.events:
        turns.append(advance(turns[-1], event))
    at_work = [t for t in turns if any(c.status == "running" for c in t.tools)]
    assert {t.tools[0].tool for t in at_work} == {"task"}


def test_a_queued_prompt_without_an_answer_of_its_own_takes_the_next():
    other = Message("q", "s", "user", created=2, parts=(Text("t", "next"),))
    turn = turn_of(other, message(3, parent="q", finish="stop"))
    assert [m.id for m in turn.answers] == ["m3"]
    assert turn.merged


def test_a_later_prompt_may_take_over_after_a_tool():
    other = Message("q", "s", "user", created=2, parts=(Text("t", "next"),))
    turn = turn_of(message(1, finish="tool-calls"), other, message(3, parent="q", finish="stop"))
    assert turn.outcome == "succeeded"
    assert turn.merged


def test_grandchildren_belong_to_the_tree():
    turn = advance_all(
        turn_of(),
        [SessionChanged(Session("c", parent="s")), SessionChanged(Session("g", parent="c"))],
    )
    assert turn.tree == {"s", "c", "g"}


def test_the_repr_is_one_line():
    assert repr(turn_of(message(1, finish="stop"))).count("\n") == 0


def idle() -> StatusChanged:
    return StatusChanged("s", Status("idle"))


def reread(*messages: Message, **fields: object) -> StoreSnapshot:
    return StoreSnapshot("s", Status("idle"), messages, **fields)


# -- from bug reports ------------------------------------------------------------------------------


def test_a_text_that_only_came_in_deltas_is_the_answer():
    """Case G1-01."""
    turn = advance_all(Turn("ses_root01", "msg_u1"), case("sse_v1_final_text_only_in_deltas.sse"))
    assert turn.text == case("sse_v1_final_text_only_in_deltas.expected.json")["final_text"]


def test_separators_inside_a_string_are_text():
    """Case G1-03."""
    expected = case("sse_v1_unicode_separators.expected.json")
    received = case("sse_v1_unicode_separators.sse")
    turn = advance_all(Turn("ses_root01", "msg_u1"), received)
    assert turn.text == expected["text"]
    assert len(received) == expected["events"] - 1  # server.connected says nothing about a turn


def test_a_stale_idle_closes_nothing():
    """Case G1-07."""
    received = case("sse_v1_stale_and_double_idle.sse")
    turn = Turn("ses_root01", "msg_u2")
    for event in received:
        turn = advance(turn, event)
        assert turn.outcome == "running"  # the store has not been read
    answered = advance(turn, StoreSnapshot("ses_root01", Status("idle"), turn.log))
    assert (answered.outcome, answered.text) == ("succeeded", "real answer")


def test_old_and_new_names_of_permission_events():
    """Case G1-09."""
    turn = Turn("ses_root01", "msg_u1")
    seen = []
    for event in case("sse_permission_event_shapes.sse"):
        turn = advance(turn, event)
        seen += [p.id for p in turn.permissions if p.id not in seen]
    assert seen == ["per_old", "per_new"]  # the third is the shape of 2.x
    assert turn.permissions == ()


def test_an_unknown_permission_event_is_logged_not_fatal(caplog):
    """Case G1-09."""
    frame = b'data: {"type":"permission.novel","properties":{}}\n\n'
    assert list(events(frame)) == []
    assert "permission.novel" in caplog.text


def test_an_abort_that_idles_twice_is_aborted_once():
    """Case G3-03."""
    turn = advance(Turn("ses_root01", "msg_u1"), MessageChanged(_user("msg_u1")))
    turn = advance_all(turn, case("sse_v1_abort.sse"))
    turn = advance(turn, StoreSnapshot("ses_root01", Status("idle"), turn.log))
    assert turn.outcome == case("sse_v1_abort.expected.json")["state"]


def test_a_provider_error_is_a_failure_that_names_it():
    """Case G1-18."""
    turn = advance(Turn("ses_root01", "msg_u1"), MessageChanged(_user("msg_u1")))
    turn = advance_all(turn, case("sse_v1_auth_error.sse"))
    turn = advance(turn, StoreSnapshot("ses_root01", Status("idle"), turn.log))
    expected = case("sse_v1_auth_error.expected.json")
    assert turn.outcome == expected["state"]
    assert turn.failure.name == expected["error_name"]
    assert all(word in str(turn.failure) for word in expected["shown"])


def test_the_answer_to_an_earlier_prompt_does_not_belong_to_the_turn():
    """Case G1-19."""
    stored = case("http_queued_prompt_answer.json")
    from opencode_magics.dialects.v1_shapes import message_with_parts

    wire = stored["GET /session/ses_root01/message"]
    messages = tuple(
        replace(message_with_parts(m | {"parts": []}), session="ses_root01", created=n)
        for n, m in enumerate(wire)
    )
    turn = advance(
        Turn("ses_root01", stored["my_message_id"]),
        StoreSnapshot("ses_root01", Status("busy"), messages),
    )
    assert turn.stored
    assert turn.answers == ()
    assert turn.outcome == "running"


def _user(message_id: str) -> Message:
    return Message(message_id, "ses_root01", "user", created=1)


def test_a_prompt_has_its_text_while_it_waits_in_the_inbox() -> None:
    waiting = Message("msg_1", "ses_1", "user", parts=(Text("p", "Why?"),), queued=True)
    turn = advance(Turn("ses_1", "msg_1"), MessageChanged(waiting))
    assert turn.log == ()
    assert turn.question_text == "Why?"


# -- turns whose end no server reports -------------------------------------------------------------

WAITED = Message("msg_1", "ses_1", "user", created=1)
HALF = Message("msg_2", "ses_1", "assistant", created=2, parent="msg_1")


@pytest.mark.parametrize(
    ("turn", "outcome", "why"),
    [
        (Turn("ses_1", "msg_1", log=(WAITED, HALF)), "interrupted", "HalfDone"),
        (Turn("ses_1", "msg_1", inbox=(WAITED,)), "interrupted", "Parked"),
        (Turn("ses_1", "msg_1", failures=(Failure("Bad", "no image"),)), "failed", "Bad"),
        (Turn("ses_1", "msg_1"), "unknown", "PromptMissing"),
    ],
    ids=["half done", "parked", "failed", "missing"],
)
def test_a_running_turn_of_an_idle_session_gets_a_verdict(
    turn: Turn, outcome: str, why: str
) -> None:
    assert judge_idle_turn(turn, idle_for=2.9) is None
    ended = judge_idle_turn(turn, idle_for=3.0)
    assert ended is not None
    over = advance(turn, ended)
    assert (over.outcome, over.failure and over.failure.name) == (outcome, why)
    assert judge_idle_turn(over, idle_for=60.0) is None


def test_texts_that_stream_at_the_same_time_are_not_mixed() -> None:
    """On 2.x the first text of every message has the same part id, also in other sessions."""
    deltas = [
        PartDelta(session, f"msg_{session}", ":text:0", text)
        for text in ("one ", "two ", "three")
        for session in ("ses_a", "ses_b")
    ]
    for session in ("ses_a", "ses_b"):
        prompt = Message(f"msg_p{session}", session, "user", 1)
        answer = Message(f"msg_{session}", session, "assistant", 2, parent=prompt.id)
        begun = [MessageChanged(prompt), MessageChanged(answer)]
        turn = advance_all(Turn(session, prompt.id), [*begun, *deltas])
        assert turn.text == "one two three"
