"""Decode the stream frames of 1.x into events.

`_EVENTS` maps each kind to its decoder: to read another kind, add an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..core.events import (
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
from ..core.model import Status
from . import v1_shapes as shapes
from .base import logger
from .jsonwire import decode
from .v1_shapes import Wire
from .values import required_string, string


def events(frame: Any) -> Iterator[Event]:
    """Decode one frame. Unknown kinds yield nothing."""
    kind = string(frame.get("type")) if isinstance(frame, dict) else ""
    read = _EVENTS.get(kind)
    if read is not None:
        yield decode(f"a {kind} event", read, frame.get("properties"))
    elif kind.startswith(("permission.", "question.")):
        logger.warning("The server sent %s, which this package does not know.", kind)


def _session_failed(p: Wire) -> Event:
    return SessionFailed(string(p.get("sessionID")), shapes.failure(p.get("error") or {}))


def _message_changed(p: Wire) -> Event:
    return MessageChanged(shapes.message(p["info"]))


def _part_changed(p: Wire) -> Event:
    w = p["part"]
    session = required_string(w.get("sessionID") or p["sessionID"])
    return PartChanged(session, required_string(w["messageID"]), shapes.part(w))


def _delta(p: Wire) -> Event:
    # Deltas of reasoning also have the field "text"; the kind of the part distinguishes them.
    text = string(p["delta"]) if p.get("field") == "text" else ""
    return PartDelta(*_part_ids(p), text)


def _permission_replied(p: Wire) -> Event:
    request = required_string(p.get("requestID") or p["permissionID"])
    return RequestReplied(
        required_string(p["sessionID"]), request, required_string(p.get("reply") or p["response"])
    )


def _settled(p: Wire, reply: str) -> Event:
    return RequestReplied(required_string(p["sessionID"]), required_string(p["requestID"]), reply)


def _status_changed(p: Wire, status: Status) -> Event:
    return StatusChanged(required_string(p["sessionID"]), status)


def _part_ids(p: Wire) -> tuple[str, str, str]:
    """Return the ids of a part's session, its message, and the part."""
    return (
        required_string(p["sessionID"]),
        required_string(p["messageID"]),
        required_string(p["partID"]),
    )


_EVENTS: dict[str, Callable[[Wire], Event]] = {
    "session.created": lambda p: SessionChanged(shapes.session(p["info"])),
    "session.updated": lambda p: SessionChanged(shapes.session(p["info"])),
    "session.deleted": lambda p: SessionDeleted(
        required_string(p.get("sessionID") or p["info"]["id"])
    ),
    "session.status": lambda p: _status_changed(p, shapes.status(p["status"])),
    "session.idle": lambda p: _status_changed(p, Status("idle")),
    "session.error": _session_failed,
    "message.updated": _message_changed,
    "message.removed": lambda p: MessageRemoved(
        required_string(p["sessionID"]), required_string(p["messageID"])
    ),
    "message.part.updated": _part_changed,
    "message.part.delta": _delta,
    "message.part.removed": lambda p: PartRemoved(*_part_ids(p)),
    "permission.asked": lambda p: PermissionAsked(shapes.permission(p)),
    "permission.updated": lambda p: PermissionAsked(shapes.permission(p)),
    "permission.replied": _permission_replied,
    "question.asked": lambda p: QuestionAsked(shapes.question(p)),
    "question.replied": lambda p: _settled(p, "answered"),
    "question.rejected": lambda p: _settled(p, "dismissed"),
}
