"""The live feed of a directory, as rows: who, what, in a few words, and the frame as it came.

What a server tells only once of a tool call or a shell is remembered for the rows that follow.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ..client.client import Client
from ..client.stream import Connected, Disconnected, StreamProblem
from ..core.events import (
    Event,
    MessageChanged,
    MessageRemoved,
    PartChanged,
    PartDelta,
    PartRemoved,
    PermissionAsked,
    PromptDelivered,
    QuestionAsked,
    RequestReplied,
    SessionChanged,
    SessionDeleted,
    SessionFailed,
    ShellChanged,
    StatusChanged,
)
from ..core.formatting import format_usd
from ..core.model import (
    Attachment,
    Compaction,
    Message,
    OtherPart,
    Part,
    Reasoning,
    Session,
    Status,
    StepEnd,
    StepStart,
    Text,
    ToolCall,
    Usage,
)
from ..dialects.base import Dialect
from ..dialects.jsonwire import decode_frame
from ..errors import OpenCodeError, StreamError

_TICK = 0.1
_BEATS = ("server.heartbeat", "server.connected")
_DEPTH = 4  # levels of a frame that are searched for a session: data.info.metadata.sessionID
_WORDS = 3  # things that are told of a frame that this package doesn't decode


@dataclass(frozen=True, slots=True)
class FeedRow:
    """One event of the feed.

    Attributes:
        time: When it was heard, by the clock of this machine (ms since the epoch).
        session: Whose it is; None where the frame doesn't tell.
        type: The wire's own name. "connection.lost" and "connection.opened" are ours: what
            happens between them is not told again.
        summary: What it says, in a few words.
        raw: The frame as it came.
        parent: The session that this one is a subagent of, where the event tells.
    """

    time: int
    session: str | None
    type: str
    summary: str = ""
    raw: dict[str, Any] = field(default_factory=dict)
    parent: str | None = None


@dataclass(slots=True)
class FeedMemory:
    """What was told once: the tool of a call, and whose a shell is."""

    tools: dict[tuple[str, str], str] = field(default_factory=dict)
    shells: dict[str, str] = field(default_factory=dict)

    def fill_in(self, event: Event) -> Event:
        """The event, with what was told before and isn't told again."""
        match event:
            case PartChanged(session, _, ToolCall() as call):
                if call.shell:
                    self.shells[call.shell] = session
                tool = call.tool or self.tools.get((session, call.call), "")
                self.tools[session, call.call] = tool
                return replace(event, part=replace(call, tool=tool))
            case ShellChanged(session, shell):
                owner = self.shells[shell] = session or self.shells.get(shell, "")
                return replace(event, session=owner)
            case _:
                return event


def feed_row(
    dialect: Dialect, frame: Any, at: int, names: FeedMemory | None = None
) -> FeedRow | None:
    """A frame as a row; None of a heartbeat.

    Args:
        dialect: How to read it.
        frame: As it came.
        at: When, in ms since the epoch.
        names: What the frames before it told.
    """
    frame = frame if isinstance(frame, dict) else {"frame": frame}
    kind = str(frame.get("type") or "")
    if kind in _BEATS:
        return None
    try:
        event = next(iter(dialect.events(frame)), None)
    except OpenCodeError as error:
        return FeedRow(at, None, kind, error.what, frame)
    event = (names or FeedMemory()).fill_in(event) if event else None
    session = (session_of(event) if event else None) or _named(frame)
    parent = event.session.parent if isinstance(event, SessionChanged) else None
    told = summarize(event) if event else _undecoded(kind, frame)
    return FeedRow(at, session, kind, told, frame, parent)


def _undecoded(kind: str, frame: dict[str, Any]) -> str:
    """What a frame holds besides ids, or else the last words of its kind."""
    held = frame.get("data") or frame.get("properties")
    pairs = held.items() if isinstance(held, dict) else ()
    told = [f"{k}: {v}" for k, v in pairs if isinstance(v, str | int | float) and not _id(k)]
    return ", ".join(told[:_WORDS]) or " ".join(kind.split(".")[-2:])


def _id(name: str) -> bool:
    return name == "id" or name.endswith("ID")


def _named(value: Any, depth: int = _DEPTH) -> str | None:
    """The session that an unknown frame names."""
    if not isinstance(value, dict) or not depth:
        return None
    found = value.get("sessionID")
    if isinstance(found, str):
        return found
    return next((s for v in value.values() if (s := _named(v, depth - 1))), None)


def session_of(event: Event) -> str | None:
    """Whose event it is."""
    match event:
        case SessionChanged(session):
            return session.id
        case MessageChanged(message):
            return message.session
        case PermissionAsked(permission):
            return permission.session
        case QuestionAsked(question):
            return question.session
        case _:
            return getattr(event, "session", None) or None


def summarize(event: Event) -> str:
    """What an event says, in a few words."""
    match event:
        case SessionChanged(session):
            return session.title or _session(session)
        case SessionDeleted():
            return "deleted"
        case StatusChanged(_, status):
            return _status(status)
        case SessionFailed(_, failure):
            return str(failure)
        case MessageChanged(message):
            return _message(message)
        case PromptDelivered(_, message):
            return f"{message} is with the agent"
        case PartChanged(_, _, part):
            return _part(part)
        case PartDelta(_, _, _, text):
            return text
        case PermissionAsked(permission):
            return f"may I {permission.action}: {permission.subject}"
        case QuestionAsked(question):
            return " / ".join(i.question for i in question.items)
        case RequestReplied(_, request, reply, _):
            return f"{request}: {reply}"
        case MessageRemoved(_, message):
            return f"{message} removed"
        case ShellChanged(_, shell, status, command, code):
            exited = "" if code is None else f" with {code}"
            return f"{shell} {status}{exited}{f': {command}' if command else ''}"
        case PartRemoved(_, message, _):
            return f"a part of {message} removed"
        case _:
            return ""


def _status(status: Status) -> str:
    attempt = f" {status.attempt}" if status.attempt is not None else ""
    return f"{status.name}{attempt}{f': {status.message}' if status.message else ''}"


def _session(session: Session) -> str:
    """Of one whose title isn't told."""
    by = " ".join(map(str, filter(None, (session.agent, session.model))))
    used = _usage(session.usage)
    archived = "" if session.archived is None else "archived"
    return ", ".join(filter(None, (by, session.directory, used, archived))) or "untitled"


def _usage(usage: Usage | None) -> str:
    cost = "" if usage is None or usage.cost is None else format_usd(usage.cost)
    tokens = "" if usage is None or usage.total is None else f"{usage.total} tokens"
    return ", ".join(filter(None, (tokens, cost)))


def _message(message: Message) -> str:
    if message.role == "user":
        waits = " waits" if message.queued else ""
        return f"user{waits}{f': {message.text}' if message.text else ''}"
    if message.role != "assistant":
        line = " ".join(filter(None, (message.kind or message.role, message.finish)))
        return f"{line}: {message.error}" if message.error else line
    end = str(message.error) if message.error else message.finish
    return f"answer: {end or ('ended' if message.completed else 'goes on')}"


def _part(part: Part) -> str:
    match part:
        case Text() | Reasoning():
            word = type(part).__name__.lower()
            return part.text or f"{word} {'begins' if part.end is None else 'without words'}"
        case ToolCall():
            why = part.error or part.title
            return f"{part.tool or 'a tool'} {part.status}{f': {why}' if why else ''}"
        case StepStart():
            return "step begins"
        case StepEnd(_, finish, usage):
            return ", ".join(filter(None, (f"step ends: {finish or 'no reason'}", _usage(usage))))
        case Attachment(_, mime, name):
            return f"file {name or mime}"
        case Compaction():
            return "compaction"
        case OtherPart(_, kind):
            return kind


def watch(
    client: Client, directory: str, seconds: float, tree: Iterable[str] = ()
) -> Iterator[list[FeedRow]]:
    """What is heard of a directory, in lists that may be empty, until the time is over.

    Args:
        client: Its server.
        directory: Which.
        seconds: For how long.
        tree: Only of these sessions and of subagents that they open; none for all.
    """
    told: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    known, names = set(tree), FeedMemory()
    stream = client.stream(directory, tap=lambda text: told.put((_now(), text)))
    deadline = time.monotonic() + seconds
    try:
        while (left := deadline - time.monotonic()) > 0:
            heard = stream.take(min(_TICK, left))
            rows = [r for h in heard if (r := _of_connection(h)) is not None]
            while not told.empty():
                at, text = told.get()
                row = feed_row(client.dialect, _read(text), at, names)
                if row is not None and _wanted(row, known):
                    rows.append(row)
            yield rows
    finally:
        stream.close()


def _read(text: str) -> Any:
    try:
        return decode_frame(text)
    except StreamError:
        return text


def _of_connection(heard: object) -> FeedRow | None:
    match heard:
        case Connected():
            return FeedRow(_now(), None, "connection.opened")
        case Disconnected(reason):
            return FeedRow(_now(), None, "connection.lost", reason)
        case StreamProblem(error, fatal=True):
            raise error
        case _:
            return None


def _wanted(row: FeedRow, known: set[str]) -> bool:
    if not known:
        return True
    if row.parent in known and row.session:
        known.add(row.session)
    return row.session in known


def _now() -> int:
    return int(time.time() * 1000)
