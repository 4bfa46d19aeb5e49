"""The live feed of a directory, as rows: who, what, in a few words, and the frame as it came."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .client import Client, Lost, Opened, Unusable
from .dialects import Dialect, frame
from .errors import OpenCodeError, StreamError
from .events import (
    Event,
    MessageChanged,
    MessageRemoved,
    PartChanged,
    PartDelta,
    PartRemoved,
    PermissionAsked,
    QuestionAsked,
    RequestReplied,
    SessionChanged,
    SessionDeleted,
    SessionFailed,
    StatusChanged,
)
from .model import Message, Part, Reasoning, Status, Text, ToolCall

_TICK = 0.1
_BEATS = ("server.heartbeat", "server.connected")


@dataclass(frozen=True, slots=True)
class Noted:
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


def noted(dialect: Dialect, frame: Any, at: int) -> Noted | None:
    """A frame as a row; None of a heartbeat."""
    frame = frame if isinstance(frame, dict) else {"frame": frame}
    kind = str(frame.get("type") or "")
    if kind in _BEATS:
        return None
    try:
        event = next(iter(dialect.events(frame)), None)
    except OpenCodeError as error:
        return Noted(at, None, kind, error.what, frame)
    session = (session_of(event) if event else None) or _named(frame)
    parent = event.session.parent if isinstance(event, SessionChanged) else None
    return Noted(at, session, kind, summary(event) if event else "", frame, parent)


def _named(value: Any, depth: int = 3) -> str | None:
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


def summary(event: Event) -> str:
    """What an event says, in a few words."""
    match event:
        case SessionChanged(session):
            return session.title
        case SessionDeleted():
            return "deleted"
        case StatusChanged(_, status):
            return _status(status)
        case SessionFailed(_, failure):
            return str(failure)
        case MessageChanged(message):
            return _message(message)
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
        case PartRemoved(_, message, _):
            return f"a part of {message} removed"
        case _:
            return ""


def _status(status: Status) -> str:
    attempt = f" {status.attempt}" if status.attempt is not None else ""
    return f"{status.name}{attempt}{f': {status.message}' if status.message else ''}"


def _message(message: Message) -> str:
    if message.role != "assistant":
        return message.role
    end = str(message.error) if message.error else message.finish
    return f"answer: {end or ('ended' if message.completed else 'goes on')}"


def _part(part: Part) -> str:
    match part:
        case Text() | Reasoning():
            return part.text
        case ToolCall():
            return f"{part.tool} {part.status}{f': {part.title}' if part.title else ''}"
        case _:
            return type(part).__name__


def watch(
    client: Client, directory: str, seconds: float, tree: Iterable[str] = ()
) -> Iterator[list[Noted]]:
    """What is heard of a directory, in lists that may be empty, until the time is over.

    Args:
        client: Its server.
        directory: Which.
        seconds: For how long.
        tree: Only of these sessions and of subagents that they open; none for all.
    """
    told: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    known = set(tree)
    stream = client.stream(directory, tap=lambda text: told.put((_now(), text)))
    deadline = time.monotonic() + seconds
    try:
        while (left := deadline - time.monotonic()) > 0:
            heard = stream.take(min(_TICK, left))
            rows = [r for h in heard if (r := _of_connection(h)) is not None]
            while not told.empty():
                at, text = told.get()
                row = noted(client.dialect, _read(text), at)
                if row is not None and _wanted(row, known):
                    rows.append(row)
            yield rows
    finally:
        stream.close()


def _read(text: str) -> Any:
    try:
        return frame(text)
    except StreamError:
        return text


def _of_connection(heard: object) -> Noted | None:
    match heard:
        case Opened():
            return Noted(_now(), None, "connection.opened")
        case Lost(reason):
            return Noted(_now(), None, "connection.lost", reason)
        case Unusable(error, fatal=True):
            raise error
        case _:
            return None


def _wanted(row: Noted, known: set[str]) -> bool:
    if not known:
        return True
    if row.parent in known and row.session:
        known.add(row.session)
    return row.session in known


def _now() -> int:
    return int(time.time() * 1000)
