"""Decide whether a tool call, an answer, a turn or a session is over, and how it ended.

All such decisions of the package are made here, by pure functions. The outcomes are declared in
`model` (`Outcome`, `ToolStatus`, `Reply`) and, for messages and tool calls, below.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from .events import TurnEnded
from .model import (
    Failure,
    Message,
    Outcome,
    Part,
    Reasoning,
    Status,
    StepEnd,
    Text,
    ToolCall,
    ToolStatus,
)

MessageOutcome = Literal[
    "succeeded", "rejected", "aborted", "failed", "interrupted", "unfinished", "shell"
]
ToolOutcome = Literal["pending", "running", "ok", "nonzero", "failed", "declined", "unfinished"]

SHELL: Final = "shell"
UNFINISHED: Final = "unfinished"
IDLE_FOR = 3.0  # seconds of idleness after which an unfinished answer counts as abandoned

_OPEN: tuple[ToolStatus, ...] = ("pending", "running")
_OVER: tuple[ToolStatus, ...] = ("completed", "error")
_TOOL_CALLS = "tool-calls"  # finish of an answer that another step follows
_FAILED = ("error", "content-filter")  # finishes that are failures
_FINAL = ("stop", "length", "content-filter")  # 1.18.33 continues after all others, "unknown" too


# -- tool calls and other parts --------------------------------------------------------------------


def is_tool_open(tool: ToolCall) -> bool:
    """Return whether a tool call has not ended, according to its status."""
    return tool.status in _OPEN


def is_tool_completed(tool: ToolCall) -> bool:
    """Return whether a tool call ended without an error."""
    return tool.status == "completed"


def tool_outcome(tool: ToolCall, turn_over: bool = True) -> ToolOutcome:
    """Return the outcome of a tool call.

    Args:
        tool: The tool call.
        turn_over: Its turn is over, so an open call is "unfinished" (its server was killed).
    """
    if is_tool_open(tool):
        if turn_over:
            return UNFINISHED
        return "running" if tool.status == "running" else "pending"
    if tool.declined:
        return "declined"
    if tool.status == "error":
        return "failed"
    return "nonzero" if tool.exit else "ok"


def is_part_over(part: Part) -> bool:
    """Return whether a part is final."""
    match part:
        case Text() | Reasoning():
            return part.end is not None
        case ToolCall():
            return part.status in _OVER
        case _:
            return True


# -- permissions and questions ---------------------------------------------------------------------


def is_granted(reply: str) -> bool:
    """Return whether a reply granted the agent's request."""
    return reply in ("once", "always", "answered")


# -- answers ---------------------------------------------------------------------------------------


def message_outcome(message: Message) -> MessageOutcome | None:
    """Return the outcome of an answer.

    "shell" is a command that a person ran, not an answer of a model. None for messages that are
    not from an assistant.
    """
    if message.role != "assistant":
        return None
    if message.shell:
        return SHELL
    if message.completed is None and message.error is None:
        return UNFINISHED
    return _answer_outcome(message)


def _answer_outcome(
    answer: Message,
) -> Literal["succeeded", "rejected", "aborted", "failed", "interrupted"]:
    """Return the outcome of an answer that has an error or a completion time."""
    declined = _is_declined(answer)
    if answer.error is not None and not (declined and answer.error.aborted):
        if answer.error.interrupted:
            return "interrupted"
        return "aborted" if answer.error.aborted else "failed"
    if declined:
        return "rejected"
    if answer.finish in _FAILED:
        return "failed"
    # 1.18.33 leaves an answer completed without a finish when a retry is interrupted.
    return "succeeded" if answer.finish else "interrupted"


def expects_step(answer: Message) -> bool:
    """Return whether another step must follow: the model has not read its tool results yet."""
    return answer.finish == _TOOL_CALLS and answer.error is None and not _is_declined(answer)


def is_last_step(answer: Message) -> bool:
    """Return whether the last part of an answer ends its final step."""
    return any(isinstance(p, StepEnd) and p.reason in _FINAL for p in answer.parts[-1:])


def _is_declined(message: Message) -> bool:
    return any(t.declined for t in message.tools)


# -- turns -----------------------------------------------------------------------------------------


def needs_answer(answers: Sequence[Message]) -> bool:
    """Return whether a turn continues after its answers: it has none, or a step must follow."""
    return not answers or expects_step(answers[-1])


def is_complete(answers: Iterable[Message]) -> bool:
    """Return whether every answer has ended."""
    return all(m.completed is not None for m in answers)


def turn_outcome(
    answers: Sequence[Message], ends: Sequence[Failure] = (), failures: Sequence[Failure] = ()
) -> Outcome:
    """Return the outcome of a settled turn: "succeeded" needs a finish, no error and no refusal.

    Args:
        answers: Its answers, in order.
        ends: The failure that the server recorded after them (2.x), if any.
        failures: The failures that the stream reported, in order.
    """
    if not answers:
        return _unanswered((*ends, *failures))
    last = answers[-1]
    outcome = _answer_outcome(last)
    if last.error is not None and outcome in ("aborted", "interrupted"):
        interrupted = any(f.interrupted for f in ends or (last.error, *failures))
        return "interrupted" if interrupted else "aborted"
    # A settled turn does not continue: unread tool results and open tool calls stay that way.
    unfinished = expects_step(last) or any(is_tool_open(t) for m in answers for t in m.tools)
    return "interrupted" if outcome == "succeeded" and unfinished else outcome


def _unanswered(failures: Sequence[Failure]) -> Outcome:
    if failures and failures[-1].interrupted:
        return "interrupted"
    return "aborted" if failures and failures[-1].aborted else "failed"


def is_stopped_by_abort(
    outcome: Outcome, *, answered: bool, before: Iterable[ToolCall], after: Iterable[ToolCall]
) -> bool:
    """Return whether an abort ended a turn, rather than the turn ending by itself.

    Args:
        outcome: The outcome according to the store, read after the abort.
        answered: Whether it has answers.
        before: Its tool calls when the abort was sent.
        after: Its stored tool calls after the abort.
    """
    if outcome in ("running", "interrupted", "aborted") or (outcome == "failed" and not answered):
        return True
    open_before = {t.id for t in before if is_tool_open(t)}
    return any(t.id in open_before and t.status == "error" for t in after)


# -- turns whose end no server reports -------------------------------------------------------------

STATUS_UNKNOWN = TurnEnded(
    "unknown", Failure("StatusUnknown", "the server doesn't report the session's status")
)


def idle_verdict(
    idle_for: float, *, stored: bool, parked: bool, failures: Sequence[Failure]
) -> TurnEnded | None:
    """Return the verdict on a running turn whose session is idle.

    Args:
        idle_for: Seconds that its session has been idle.
        stored: Whether its prompt is among the messages of the session.
        parked: Whether its prompt is in the inbox.
        failures: The failures that the stream reported, in order.

    Returns:
        None while it may still continue. Otherwise the verdict: its answer is unfinished, or its
        prompt is still in the inbox or missing.
    """
    if idle_for < IDLE_FOR:
        return None
    if stored:
        reason = "the session is idle, but its answer was never finished"
        if failures:
            reason = f"{reason} ({failures[-1]})"
        return TurnEnded("interrupted", Failure("HalfDone", reason))
    if failures:
        return TurnEnded("failed")
    if parked:
        reason = "the session is idle, but the prompt is still in its inbox (%oc_inbox)"
        return TurnEnded("interrupted", Failure("Parked", reason))
    reason = "the session is idle and does not have the prompt"
    return TurnEnded("unknown", Failure("PromptMissing", reason))


def overtaken_verdict(outcome: Outcome, later: Iterable[Message]) -> TurnEnded | None:
    """Return the verdict on a turn that seems to run although a later prompt was answered.

    Args:
        outcome: Its outcome according to its own messages.
        later: The messages after them.

    Returns:
        None if the turn is not running, or no later prompt was answered.
    """
    if outcome != "running" or not any(m.role == "assistant" for m in later):
        return None
    reason = "another prompt was answered, and this answer never finished"
    return TurnEnded("interrupted", Failure("HalfDone", reason))


# -- sessions --------------------------------------------------------------------------------------


def with_pending_retry(status: Status, newest: Sequence[Message], now: int) -> Status:
    """Return the status of a session, with the retry that its last answer waits for (2.x).

    The answer keeps its retry after that has started.

    Args:
        status: The status that the server lists.
        newest: The newest messages of the session.
        now: The time, in ms since the epoch.
    """
    last = next((m.retry for m in reversed(newest) if m.role == "assistant"), None)
    waits = last is not None and last.next is not None and last.next > now
    return last if last is not None and waits and status.name == "busy" else status


def is_at_rest(newest: Sequence[Message] | None) -> bool:
    """Return whether a session is at rest: its last message is a complete answer, or it is empty.

    False if `newest`, its newest messages, could not be read (None).
    """
    if newest is None:
        return False
    dialog = [m for m in newest if m.role in ("user", "assistant")]
    return not dialog or (dialog[-1].completed is not None and not expects_step(dialog[-1]))


def is_finished(messages: Sequence[Message]) -> bool:
    """Return whether no message of a session is being written or about to be.

    An answer or tool call that was left open when its server died is unfinished, too.
    """
    dialog = [m for m in messages if m.role != "system"]  # in 2.x, the record of a turn's end
    if not dialog:
        return True
    return (
        dialog[-1].role == "assistant"
        and not expects_step(dialog[-1])
        and is_complete(m for m in messages if m.role == "assistant")
        and all(is_part_over(t) for m in messages for t in m.tools)
    )
