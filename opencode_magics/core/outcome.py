"""Decides whether something is over, and how it ended: a tool call, an answer, a turn, a session.

All such decisions of the package are made here, by pure functions of plain values. The words are
declared in `model`: `Outcome`, `ToolStatus`, `Reply`; those for a message and for a tool call are
below.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from .events import TurnEnded
from .model import Failure, Message, Outcome, Part, Reasoning, StepEnd, Text, ToolCall, ToolStatus

MessageOutcome = Literal[
    "succeeded", "rejected", "aborted", "failed", "interrupted", "unfinished", "shell"
]
ToolOutcome = Literal["pending", "running", "ok", "nonzero", "failed", "declined", "unfinished"]

SHELL: Final = "shell"
UNFINISHED: Final = "unfinished"
IDLE_FOR = 3.0  # seconds of idleness after which an unfinished answer will never be finished

_OPEN: tuple[ToolStatus, ...] = ("pending", "running")
_OVER: tuple[ToolStatus, ...] = ("completed", "error")
_GOES_ON = "tool-calls"  # the finish of an answer whose tool results the next step reads
_FAILED = ("error", "content-filter")  # finishes that are failures
_FINAL = ("stop", "length", "content-filter")  # 1.18.33 goes on after all others, also "unknown"


# -- tool calls and other parts --------------------------------------------------------------------


def is_tool_open(tool: ToolCall) -> bool:
    """Whether a tool call has not ended, by its status."""
    return tool.status in _OPEN


def is_tool_completed(tool: ToolCall) -> bool:
    """Whether a tool call ended without an error."""
    return tool.status == "completed"


def of_tool(tool: ToolCall, turn_over: bool = True) -> ToolOutcome:
    """How a tool call went.

    Args:
        tool: The tool call.
        turn_over: Its turn is over. A server that was killed leaves its tools running for ever.
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
    """Whether nothing more will come for a part."""
    match part:
        case Text() | Reasoning():
            return part.end is not None
        case ToolCall():
            return part.status in _OVER
        case _:
            return True


# -- permissions and questions ---------------------------------------------------------------------


def is_granted(reply: str) -> bool:
    """Whether a reply gave the agent what it asked for."""
    return reply in ("once", "always", "answered")


# -- answers ---------------------------------------------------------------------------------------


def of_message(message: Message) -> MessageOutcome | None:
    """How an answer ended: succeeded, rejected, aborted, failed, interrupted or unfinished.

    Or "shell": a command that a person ran, which is no answer and no model call. None for
    messages of other roles.
    """
    if message.role != "assistant":
        return None
    if message.shell:
        return SHELL
    if message.completed is None and message.error is None:
        return UNFINISHED
    return _of_answer(message)


def _of_answer(
    answer: Message,
) -> Literal["succeeded", "rejected", "aborted", "failed", "interrupted"]:
    """How an answer ended that has an error or a time of completion."""
    declined = _is_declined(answer)
    if answer.error is not None and not (declined and answer.error.aborted):
        if answer.error.interrupted:
            return "interrupted"
        return "aborted" if answer.error.aborted else "failed"
    if declined:
        return "rejected"
    if answer.finish in _FAILED:
        return "failed"
    # Completed without a finish: 1.18.33 leaves this when a retry is cut off.
    return "succeeded" if answer.finish else "interrupted"


def goes_on(answer: Message) -> bool:
    """Whether another step follows an answer: it called tools, and no step has read the results."""
    return answer.finish == _GOES_ON and answer.error is None and not _is_declined(answer)


def is_last_step(answer: Message) -> bool:
    """Whether the latest part of an answer is the end of a step after which no other comes."""
    return any(isinstance(p, StepEnd) and p.reason in _FINAL for p in answer.parts[-1:])


def _is_declined(message: Message) -> bool:
    return any(t.declined for t in message.tools)


# -- turns -----------------------------------------------------------------------------------------


def needs_answer(answers: Sequence[Message]) -> bool:
    """Whether a turn goes on after its answers: there are none, or another step follows."""
    return not answers or goes_on(answers[-1])


def is_complete(answers: Iterable[Message]) -> bool:
    """Whether every answer has ended."""
    return all(m.completed is not None for m in answers)


def of_answers(
    answers: Sequence[Message], ends: Sequence[Failure] = (), failures: Sequence[Failure] = ()
) -> Outcome:
    """How a settled turn ended. "succeeded" needs a finish, no error and no refusal.

    Args:
        answers: Its answers, in order.
        ends: The failure that the server noted after them (2.x), if any.
        failures: The failures that the stream reported, in order.
    """
    if not answers:
        return _unanswered((*ends, *failures))
    last = answers[-1]
    word = _of_answer(last)
    if last.error is not None and word in ("aborted", "interrupted"):
        cut_off = any(f.interrupted for f in ends or (last.error, *failures))
        return "interrupted" if cut_off else "aborted"
    # Nobody goes on with tool results that no step has read, or with a tool that seems to run.
    halfway = goes_on(last) or any(is_tool_open(t) for m in answers for t in m.tools)
    return "interrupted" if word == "succeeded" and halfway else word


def _unanswered(failures: Sequence[Failure]) -> Outcome:
    if failures and failures[-1].interrupted:
        return "interrupted"
    return "aborted" if failures and failures[-1].aborted else "failed"


def is_stopped_by_abort(
    outcome: Outcome, *, answered: bool, before: Iterable[ToolCall], after: Iterable[ToolCall]
) -> bool:
    """Whether an abort, and nothing else, ended a turn.

    Args:
        outcome: The outcome by the store, read after the abort.
        answered: It has answers.
        before: Its tool calls when the abort was sent.
        after: Its tool calls as the store has them after it.
    """
    if outcome in ("running", "interrupted", "aborted") or (outcome == "failed" and not answered):
        return True
    open_before = {t.id for t in before if is_tool_open(t)}
    return any(t.id in open_before and t.status == "error" for t in after)


# -- turns that no server will end -----------------------------------------------------------------

STATUS_UNKNOWN = TurnEnded(
    "unknown", Failure("StatusUnknown", "the server doesn't tell whether it works")
)


def of_idle(idle_for: float, *, stored: bool, parked: bool, failed: bool) -> TurnEnded | None:
    """How a running turn ends whose session is idle.

    Args:
        idle_for: Seconds that its session has been idle.
        stored: The server has its prompt among the messages of the session.
        parked: Its prompt waits in the inbox.
        failed: The stream reported a failure.

    Returns:
        None while it may still go on. Else the verdict: its answer is unfinished, or its prompt
        still waits in the inbox or is gone.
    """
    if idle_for < IDLE_FOR:
        return None
    if stored:
        reason = "the session is idle, but its answer was never finished"
        return TurnEnded("interrupted", Failure("HalfDone", reason))
    if failed:
        return TurnEnded("failed")
    if parked:
        reason = "the session is idle, and the prompt still waits in its inbox (%oc_inbox)"
        return TurnEnded("interrupted", Failure("Parked", reason))
    reason = "the session is idle and does not hold the prompt"
    return TurnEnded("unknown", Failure("PromptMissing", reason))


def of_overtaken(outcome: Outcome, later: Iterable[Message]) -> TurnEnded | None:
    """How a turn ends that seems to run although a later prompt was answered; None if it doesn't.

    Args:
        outcome: Its outcome by its own messages.
        later: The messages after them.
    """
    if outcome != "running" or not any(m.role == "assistant" for m in later):
        return None
    reason = "another prompt was answered, and this answer never finished"
    return TurnEnded("interrupted", Failure("HalfDone", reason))


# -- sessions --------------------------------------------------------------------------------------


def is_at_rest(newest: Sequence[Message] | None) -> bool:
    """Whether the newest messages leave nothing open: there are none, or the last is a full answer.

    False if they could not be read (None).
    """
    if newest is None:
        return False
    said = [m for m in newest if m.role in ("user", "assistant")]
    return not said or (said[-1].completed is not None and not goes_on(said[-1]))


def is_finished(messages: Sequence[Message]) -> bool:
    """Whether no message of a session is still being written, or about to be.

    An answer or a tool call that a server left open when it died counts as unfinished, too.
    """
    said = [m for m in messages if m.role != "system"]  # 2.x notes the end of a turn in a row
    if not said:
        return True
    return (
        said[-1].role == "assistant"
        and not goes_on(said[-1])
        and is_complete(m for m in messages if m.role == "assistant")
        and all(is_part_over(t) for m in messages for t in m.tools)
    )
