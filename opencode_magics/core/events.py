"""Events of a running turn, the same for every dialect.

A dialect decodes frames of its stream into these, and `fold.advance` applies them to a `Turn`.
The last two, `StoreSnapshot` and `TurnEnded`, come from the follower of a stream instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from .model import Failure, FileDiff, Message, Outcome, Part, Permission, Question, Session, Status


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """The current values of a session (new title, higher cost); absent values are unchanged."""

    session: Session


@dataclass(frozen=True, slots=True)
class SessionDeleted:
    """A session was deleted."""

    session: str


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """A session became busy or idle, or is waiting to retry."""

    session: str
    status: Status


@dataclass(frozen=True, slots=True)
class SessionFailed:
    """An error in a session. The turn may recover from it (1.18.33: context overflow)."""

    session: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class MessageChanged:
    """The current header of a message; its parts have events of their own.

    An absent agent, model, creation time or parent is unchanged.
    """

    message: Message


@dataclass(frozen=True, slots=True)
class PromptDelivered:
    """A prompt left the inbox at time `at`: the agent has it now."""

    session: str
    message: str
    at: int | None


@dataclass(frozen=True, slots=True)
class MessageRemoved:
    """A message was removed from the session or from its inbox."""

    session: str
    message: str


@dataclass(frozen=True, slots=True)
class PartChanged:
    """A snapshot of one part; a tool call without a tool name is an update of a known call.

    `message` may be "" in such an update.
    """

    session: str
    message: str
    part: Part


@dataclass(frozen=True, slots=True)
class PartDelta:
    """More text for one part, which may not be known yet."""

    session: str
    message: str
    part: str
    text: str


@dataclass(frozen=True, slots=True)
class PartRemoved:
    """A part was removed."""

    session: str
    message: str
    part: str


@dataclass(frozen=True, slots=True)
class PermissionAsked:
    """An agent is waiting for a permission."""

    permission: Permission


@dataclass(frozen=True, slots=True)
class QuestionAsked:
    """An agent is waiting for an answer to a question."""

    question: Question


@dataclass(frozen=True, slots=True)
class RequestReplied:
    """A permission or question was settled, here or elsewhere.

    `reply` is once, always or reject for a permission, "answered" or "dismissed" for a question.
    `ours` says that this process answered exactly this request.
    """

    session: str
    request: str
    reply: str
    message: str = ""
    ours: bool = False


@dataclass(frozen=True, slots=True)
class ShellChanged:
    """A shell started a command, exited, or was deleted (`status` "deleted") (2.x).

    `session` and `command` are "" except when it starts.
    """

    session: str
    shell: str
    status: str
    command: str = ""
    exit: int | None = None


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """The state of a session as read from the server; it overrides what the stream reported.

    `sessions` are the subagent sessions below the turn's own; `permissions` and `questions` are all
    pending ones of the tree; `diffs` are the turn's changes if its prompt message has none.
    """

    session: str
    status: Status
    messages: tuple[Message, ...]
    sessions: tuple[Session, ...] = ()
    permissions: tuple[Permission, ...] = ()
    questions: tuple[Question, ...] = ()
    diffs: tuple[FileDiff, ...] = ()


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The follower's verdict on a turn whose end the server doesn't report."""

    outcome: Outcome
    failure: Failure | None = None


Event = (
    SessionChanged
    | SessionDeleted
    | StatusChanged
    | SessionFailed
    | MessageChanged
    | PromptDelivered
    | MessageRemoved
    | PartChanged
    | PartDelta
    | PartRemoved
    | PermissionAsked
    | QuestionAsked
    | RequestReplied
    | ShellChanged
    | StoreSnapshot
    | TurnEnded
)


def coalesce(events: Iterable[Event]) -> Iterator[Event]:
    """Join consecutive deltas of a part, so that a long answer is folded in a few steps.

    On 2.x the first text of every message has the same part id, also in other sessions.
    """
    delta: PartDelta | None = None
    texts: list[str] = []
    for event in events:
        if (
            isinstance(event, PartDelta)
            and delta is not None
            and (event.session, event.message, event.part)
            == (delta.session, delta.message, delta.part)
        ):
            texts.append(event.text)
            continue
        if delta is not None:
            yield replace(delta, text="".join(texts))
            delta = None
        if isinstance(event, PartDelta):
            delta, texts = event, [event.text]
        else:
            yield event
    if delta is not None:
        yield replace(delta, text="".join(texts))
