"""Convert the live event stream of a directory to rows: session, type, summary and raw frame.

The server sends some details of a tool call or a shell only once; they are remembered for the rows
that follow.
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
_HEARTBEATS = ("server.heartbeat", "server.connected")
_DEPTH = 4  # levels of a frame that are searched for a session: data.info.metadata.sessionID
_MAX_FIELDS = 3  # fields in the summary of a frame that this package doesn't decode


@dataclass(frozen=True, slots=True)
class FeedRow:
    """One event of the feed.

    Attributes:
        time: When it was received, by the clock of this machine (ms since the epoch).
        session: The id of its session; None if the frame doesn't include one.
        type: The type on the wire. "connection.lost" and "connection.opened" are ours: the server
            doesn't repeat events between them.
        summary: The event in a few words.
        raw: The frame as received.
        parent: The parent of its session, if the event includes it.
    """

    time: int
    session: str | None
    type: str
    summary: str = ""
    raw: dict[str, Any] = field(default_factory=dict)
    parent: str | None = None


@dataclass(slots=True)
class FeedMemory:
    """Details that the server sends only once: the tool of a call, the session of a shell."""

    tools: dict[tuple[str, str], str] = field(default_factory=dict)
    shells: dict[str, str] = field(default_factory=dict)

    def fill_in(self, event: Event) -> Event:
        """Return the event with details from earlier events."""
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
    dialect: Dialect, frame: Any, at: int, memory: FeedMemory | None = None
) -> FeedRow | None:
    """Convert a frame to a row; None for a heartbeat.

    Args:
        dialect: The dialect of the frame.
        frame: The frame as received.
        at: When it was received, in ms since the epoch.
        memory: Details from earlier frames.
    """
    frame = frame if isinstance(frame, dict) else {"frame": frame}
    kind = str(frame.get("type") or "")
    if kind in _HEARTBEATS:
        return None
    try:
        event = next(iter(dialect.events(frame)), None)
    except OpenCodeError as error:
        return FeedRow(at, None, kind, error.what, frame)
    event = (memory or FeedMemory()).fill_in(event) if event else None
    session = (session_of(event) if event else None) or _find_session(frame)
    parent = event.session.parent if isinstance(event, SessionChanged) else None
    summary = summarize(event) if event else _summarize_frame(kind, frame)
    return FeedRow(at, session, kind, summary, frame, parent)


def _summarize_frame(kind: str, frame: dict[str, Any]) -> str:
    """The first non-id fields of an unknown frame, or else the end of its type."""
    data = frame.get("data") or frame.get("properties")
    pairs = data.items() if isinstance(data, dict) else ()
    fields = [f"{k}: {v}" for k, v in pairs if isinstance(v, str | int | float) and not _is_id(k)]
    return ", ".join(fields[:_MAX_FIELDS]) or " ".join(kind.split(".")[-2:])


def _is_id(name: str) -> bool:
    return name == "id" or name.endswith("ID")


def _find_session(value: Any, depth: int = _DEPTH) -> str | None:
    """The session id in an unknown frame, if there is one."""
    if not isinstance(value, dict) or not depth:
        return None
    session = value.get("sessionID")
    if isinstance(session, str):
        return session
    return next((s for v in value.values() if (s := _find_session(v, depth - 1))), None)


def session_of(event: Event) -> str | None:
    """The id of an event's session, if it has one."""
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
    """Summarize an event in a few words."""
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
            return f"{message} delivered to the agent"
        case PartChanged(_, _, part):
            return _part(part)
        case PartDelta(_, _, _, text):
            return text
        case PermissionAsked(permission):
            return f"asks for {permission.action}: {permission.subject}"
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
    """Summarize a session without a title."""
    agent = " ".join(map(str, filter(None, (session.agent, session.model))))
    usage = _usage(session.usage)
    archived = "" if session.archived is None else "archived"
    return ", ".join(filter(None, (agent, session.directory, usage, archived))) or "untitled"


def _usage(usage: Usage | None) -> str:
    cost = "" if usage is None or usage.cost is None else format_usd(usage.cost)
    tokens = "" if usage is None or usage.total is None else f"{usage.total} tokens"
    return ", ".join(filter(None, (tokens, cost)))


def _message(message: Message) -> str:
    if message.role == "user":
        waits = " queued" if message.queued else ""
        return f"user{waits}{f': {message.text}' if message.text else ''}"
    if message.role != "assistant":
        line = " ".join(filter(None, (message.kind or message.role, message.finish)))
        return f"{line}: {message.error}" if message.error else line
    end = str(message.error) if message.error else message.finish
    return f"answer: {end or ('ended' if message.completed else 'in progress')}"


def _part(part: Part) -> str:
    match part:
        case Text() | Reasoning():
            word = type(part).__name__.lower()
            return part.text or f"{word} {'begins' if part.end is None else 'without text'}"
        case ToolCall():
            detail = part.error or part.title
            return f"{part.tool or 'a tool'} {part.status}{f': {detail}' if detail else ''}"
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
    """Yield the rows of a directory's feed, in lists that may be empty, for some time.

    Args:
        client: The directory's server.
        directory: The directory.
        seconds: The duration.
        tree: Ids of the sessions to include, with their new subagents; empty includes all.
    """
    frames: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    included, memory = set(tree), FeedMemory()
    stream = client.stream(directory, tap=lambda text: frames.put((_now(), text)))
    deadline = time.monotonic() + seconds
    try:
        while (left := deadline - time.monotonic()) > 0:
            items = stream.take(min(_TICK, left))
            rows = [r for i in items if (r := _connection_row(i)) is not None]
            while not frames.empty():
                at, text = frames.get()
                row = feed_row(client.dialect, _decode(text), at, memory)
                if row is not None and _is_included(row, included):
                    rows.append(row)
            yield rows
    finally:
        stream.close()


def _decode(text: str) -> Any:
    try:
        return decode_frame(text)
    except StreamError:
        return text


def _connection_row(item: object) -> FeedRow | None:
    match item:
        case Connected():
            return FeedRow(_now(), None, "connection.opened")
        case Disconnected(reason):
            return FeedRow(_now(), None, "connection.lost", reason)
        case StreamProblem(error, fatal=True):
            raise error
        case _:
            return None


def _is_included(row: FeedRow, included: set[str]) -> bool:
    """Return whether a row's session is included; subagents of included sessions are added."""
    if not included:
        return True
    if row.parent in included and row.session:
        included.add(row.session)
    return row.session in included


def _now() -> int:
    return int(time.time() * 1000)
