"""What a server says while a turn runs: a dozen frozen dataclasses, the same for every dialect.

A dialect turns frames of its stream into these, `turn.advance` folds them, nothing else reads the
wire. The last two don't come from a server: they are what the follower of a stream knows itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from .model import Failure, FileDiff, Message, Outcome, Part, Permission, Question, Session, Status


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """A session as it is now: new, renamed, its cost risen. What is not told stays as it was."""

    session: Session


@dataclass(frozen=True, slots=True)
class SessionDeleted:
    """A session is gone."""

    session: str


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """A session became busy, idle, or waits before a retry."""

    session: str
    status: Status


@dataclass(frozen=True, slots=True)
class SessionFailed:
    """Something went wrong in a session. Not an end: the turn may recover (1.18.33: overflow)."""

    session: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class MessageChanged:
    """A message's header as it is now; its parts are told apart from it.

    Who made it, when, and for which prompt stays as it was where that isn't told again.
    """

    message: Message


@dataclass(frozen=True, slots=True)
class PromptDelivered:
    """A prompt left the inbox: the agent has it from now (`at`) on."""

    session: str
    message: str
    at: int | None


@dataclass(frozen=True, slots=True)
class MessageRemoved:
    """A message is gone, from the session or from its inbox."""

    session: str
    message: str


@dataclass(frozen=True, slots=True)
class PartChanged:
    """A snapshot of one part; of a tool call without a name, only what is new about it.

    `message` may be "" for a call that was told of before.
    """

    session: str
    message: str
    part: Part


@dataclass(frozen=True, slots=True)
class PartDelta:
    """More text for one part, which may not have been told of yet."""

    session: str
    message: str
    part: str
    text: str


@dataclass(frozen=True, slots=True)
class PartRemoved:
    """A part is gone."""

    session: str
    message: str
    part: str


@dataclass(frozen=True, slots=True)
class PermissionAsked:
    """An agent waits for a permission."""

    permission: Permission


@dataclass(frozen=True, slots=True)
class QuestionAsked:
    """An agent waits for an answer."""

    question: Question


@dataclass(frozen=True, slots=True)
class RequestReplied:
    """A permission or question was settled, here or elsewhere.

    `reply` is once, always or reject for a permission, "answered" or "dismissed" for a question.
    """

    session: str
    request: str
    reply: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class ShellChanged:
    """A shell began to run a command, exited, or is gone (`status` "deleted") (2.x).

    Whose it is and its command are told when it begins, and "" after that.
    """

    session: str
    shell: str
    status: str
    command: str = ""
    exit: int | None = None


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """The store, read again: what is true now, whatever the stream said or missed.

    `sessions` are the subagent sessions below the turn's own; permissions and questions are all
    that still wait in the tree; `diffs` is what the turn changed, where its prompt doesn't tell.
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
    """The follower's own verdict where no server can give one."""

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
    """Join neighbouring deltas of the same part, so that a long answer is folded a few times."""
    held: PartDelta | None = None
    texts: list[str] = []
    for event in events:
        if isinstance(event, PartDelta) and held is not None and event.part == held.part:
            texts.append(event.text)
            continue
        if held is not None:
            yield replace(held, text="".join(texts))
            held = None
        if isinstance(event, PartDelta):
            held, texts = event, [event.text]
        else:
            yield event
    if held is not None:
        yield replace(held, text="".join(texts))
