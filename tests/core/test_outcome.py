"""Outcomes of tool calls, answers, turns and sessions, decided from plain values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from opencode_magics.core.events import TurnEnded
from opencode_magics.core.model import (
    DECISIONS,
    REPLIES,
    Failure,
    Message,
    Outcome,
    Part,
    StepEnd,
    StepStart,
    Text,
    ToolCall,
)
from opencode_magics.core.outcome import (
    IDLE_FOR,
    MessageOutcome,
    ToolOutcome,
    expects_step,
    idle_verdict,
    is_at_rest,
    is_finished,
    is_granted,
    is_last_step,
    is_part_over,
    is_stopped_by_abort,
    message_outcome,
    needs_answer,
    overtaken_verdict,
    tool_outcome,
    turn_outcome,
)

ABORTED = Failure("MessageAbortedError", "Aborted")
INTERRUPTED = Failure("Interrupted", "The server was stopped")
BROKEN = Failure("APIError", "The provider failed")


def answer(*parts: Part, finish: str | None = "stop", **more: Any) -> Message:
    completed = more.pop("completed", 2)
    return Message(
        "a",
        "s",
        "assistant",
        1,
        completed,
        "p",
        parts=(StepStart("0"), *parts),
        finish=finish,
        **more,
    )


def tool(status: str = "completed", **more: Any) -> ToolCall:
    return ToolCall("t", "c", "bash", status, **more)


PROMPT = Message("p", "s", "user", 1)
REFUSED = tool("error", declined=True)


@pytest.mark.parametrize(
    ("call", "turn_over", "outcome"),
    [
        (tool("pending"), False, "pending"),
        (tool("running"), False, "running"),
        (tool("running"), True, "unfinished"),
        (tool("completed"), False, "ok"),
        (tool("completed", exit=0), True, "ok"),
        (tool("completed", exit=2), True, "nonzero"),
        (tool("error"), True, "failed"),
        (REFUSED, True, "declined"),
    ],
)
def test_a_tool_call_has_an_outcome(call: ToolCall, turn_over: bool, outcome: ToolOutcome) -> None:
    assert tool_outcome(call, turn_over) == outcome


@pytest.mark.parametrize(
    ("part", "over"),
    [
        (Text("x", "a"), False),
        (Text("x", "a", 1, 2), True),
        (tool("running"), False),
        (tool("error"), True),
        (tool("of a later server"), False),
        (StepStart("x"), True),
    ],
)
def test_a_part_is_over_when_nothing_more_comes(part: Part, over: bool) -> None:
    assert is_part_over(part) is over


@pytest.mark.parametrize(
    ("message", "outcome"),
    [
        (PROMPT, None),
        (answer(), "succeeded"),
        (answer(finish="tool-calls"), "succeeded"),
        (answer(finish=None), "interrupted"),
        (answer(completed=None), "unfinished"),
        (answer(error=ABORTED), "aborted"),
        (answer(error=INTERRUPTED), "interrupted"),
        (answer(error=BROKEN, completed=None), "failed"),
        (answer(finish="content-filter"), "failed"),
        (answer(REFUSED, finish="tool-calls"), "rejected"),
        (answer(REFUSED, error=ABORTED), "rejected"),
        (answer(REFUSED, error=BROKEN), "failed"),
        (Message("a", "s", "assistant", 1, 2, "p", parts=(tool(),)), "shell"),
    ],
)
def test_a_message_has_an_outcome(message: Message, outcome: MessageOutcome | None) -> None:
    assert message_outcome(message) == outcome


@pytest.mark.parametrize(
    ("answers", "ends", "failures", "outcome"),
    [
        ([answer()], (), (), "succeeded"),
        ([answer()], (), (BROKEN,), "succeeded"),  # the turn recovered
        ([answer(finish="tool-calls"), answer()], (), (), "succeeded"),
        ([answer(finish="tool-calls")], (), (), "interrupted"),
        ([answer(tool("running"))], (), (), "interrupted"),
        ([answer(finish="")], (), (), "interrupted"),
        ([answer(finish="error")], (), (), "failed"),
        ([answer(error=BROKEN)], (), (), "failed"),
        ([answer(REFUSED, finish="tool-calls")], (), (), "rejected"),
        ([answer(REFUSED, error=ABORTED)], (), (), "rejected"),
        ([answer(error=ABORTED)], (), (), "aborted"),
        ([answer(error=ABORTED)], (), (INTERRUPTED,), "interrupted"),
        ([answer(error=INTERRUPTED)], (ABORTED,), (), "aborted"),  # a person did it (2.x)
        ([answer(error=ABORTED)], (INTERRUPTED,), (), "interrupted"),
        ([], (), (), "failed"),
        ([], (), (BROKEN, ABORTED), "aborted"),
        ([], (INTERRUPTED,), (), "interrupted"),
    ],
)
def test_a_settled_turn_has_an_outcome(
    answers: list[Message],
    ends: tuple[Failure, ...],
    failures: tuple[Failure, ...],
    outcome: Outcome,
) -> None:
    assert turn_outcome(answers, ends, failures) == outcome


@pytest.mark.parametrize(
    ("message", "more"),
    [
        (answer(finish="tool-calls"), True),
        (answer(finish="tool-calls", error=BROKEN), False),
        (answer(REFUSED, finish="tool-calls"), False),
        (answer(), False),
    ],
)
def test_an_answer_with_tool_calls_goes_on_unless_it_failed_or_was_refused(
    message: Message, more: bool
) -> None:
    assert expects_step(message) is more
    assert needs_answer([message]) is more
    assert is_at_rest([PROMPT, message]) is not more
    assert is_finished([PROMPT, message]) is not more


def test_a_turn_without_an_answer_needs_one() -> None:
    assert needs_answer([])


@pytest.mark.parametrize(
    ("reason", "last"), [("stop", True), ("length", True), ("tool-calls", False), (None, False)]
)
def test_some_reasons_end_the_last_step(reason: str | None, last: bool) -> None:
    assert is_last_step(answer(StepEnd("z", reason))) is last
    assert not is_last_step(answer(StepEnd("z", reason), Text("zz", "more")))


@pytest.mark.parametrize(
    ("outcome", "answered", "before", "after", "stopped"),
    [
        ("running", True, [], [], True),
        ("aborted", True, [], [], True),
        ("failed", False, [], [], True),
        ("failed", True, [], [], False),
        ("succeeded", True, [tool()], [tool()], False),
        ("succeeded", True, [tool("running")], [tool()], False),
        ("rejected", True, [tool("running")], [tool("error")], True),
    ],
)
def test_an_abort_stops_only_an_unfinished_turn(
    outcome: Outcome, answered: bool, before: list[ToolCall], after: list[ToolCall], stopped: bool
) -> None:
    result = is_stopped_by_abort(outcome, answered=answered, before=before, after=after)
    assert result is stopped


@pytest.mark.parametrize(
    ("stored", "parked", "failed", "outcome", "name"),
    [
        (True, False, True, "interrupted", "HalfDone"),
        (False, True, True, "failed", None),
        (False, True, False, "interrupted", "Parked"),
        (False, False, False, "unknown", "PromptMissing"),
    ],
)
def test_a_turn_of_an_idle_session_ends_after_a_while(
    stored: bool, parked: bool, failed: bool, outcome: Outcome, name: str | None
) -> None:
    reason = Failure("UnknownError", "FileSystem.realPath /work/p")
    state = {"stored": stored, "parked": parked, "failures": (reason,) if failed else ()}
    assert idle_verdict(IDLE_FOR - 0.1, **state) is None
    ended = idle_verdict(IDLE_FOR, **state)
    assert ended is not None
    assert ended.outcome == outcome
    assert (ended.failure and ended.failure.name) == name
    if name == "HalfDone":  # case F3
        assert ended.failure is not None
        assert "FileSystem.realPath /work/p" in ended.failure.message


def test_a_turn_is_over_when_a_later_prompt_was_answered() -> None:
    later = [replace(PROMPT, id="q"), answer()]
    assert isinstance(overtaken_verdict("running", later), TurnEnded)
    assert overtaken_verdict("running", later[:1]) is None
    assert overtaken_verdict("aborted", later) is None


@pytest.mark.parametrize(
    ("newest", "rest"),
    [
        (None, False),
        ([], True),
        ([PROMPT], False),
        ([PROMPT, answer(completed=None)], False),
        ([PROMPT, answer()], True),
        ([PROMPT, answer(), Message("n", "s", "system", 3)], True),
    ],
)
def test_a_session_is_at_rest_after_a_complete_answer(
    newest: list[Message] | None, rest: bool
) -> None:
    assert is_at_rest(newest) is rest


@pytest.mark.parametrize(
    ("messages", "finished"),
    [
        ([], True),
        ([PROMPT], False),
        ([PROMPT, answer(completed=None)], False),
        ([PROMPT, answer(completed=None), PROMPT, answer()], False),
        ([PROMPT, answer(tool("running"))], False),
        ([PROMPT, answer(tool()), Message("n", "s", "system", 3)], True),
        ([PROMPT, answer(completed=2, error=ABORTED)], True),
    ],
)
def test_a_session_is_finished_when_nothing_is_open(
    messages: list[Message], finished: bool
) -> None:
    assert is_finished(messages) is finished


def test_a_reply_is_granted_or_refused() -> None:
    assert [r for r in REPLIES if not is_granted(r)] == ["reject", "dismissed"]
    assert [d for d in DECISIONS if d not in REPLIES] == []
