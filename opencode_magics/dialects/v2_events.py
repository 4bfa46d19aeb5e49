"""Decode the stream frames of 2.x into events.

The stream sends changes only, so an event often has part of a message or tool call, which the fold
completes. `_EVENTS` maps each kind to its decoder: to read another kind, add an entry. A known kind
without a required field raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..core.events import (
    Event,
    MessageChanged,
    MessageRemoved,
    PartChanged,
    PartDelta,
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
from ..core.model import (
    Compaction,
    Message,
    Reasoning,
    Session,
    Status,
    StepEnd,
    StepStart,
    Text,
    ToolCall,
    ToolStatus,
)
from ..errors import printable
from . import v2_shapes as shapes
from .base import logger
from .jsonwire import decode
from .v2_shapes import Wire
from .values import as_dict, call_usage, integer, required_string, string, timestamp, usage

_BUSY, _IDLE = Status("busy"), Status("idle")
_Read = Callable[[Wire, Wire], Iterable[Event]]


def events(frame: Any) -> Iterator[Event]:
    """Decode one frame. Unknown kinds yield nothing."""
    kind = string(frame.get("type")) if isinstance(frame, dict) else ""
    read = _EVENTS.get(kind)
    if read is not None:
        yield from decode(f"a {kind} event", lambda f: tuple(read(_checked(f["data"]), f)), frame)
    elif kind.startswith(("permission.", "form.")):
        logger.warning("The server sent %s, which this package does not know.", kind)


_STRING_FIELDS = (
    *("id", "sessionID", "messageID", "assistantMessageID", "inboxID", "requestID"),
    *("text", "title", "name", "reply"),
)


def _checked(d: Wire) -> Wire:
    """The data of an event, after checking that its ids and texts are strings."""
    for fields in (d, as_dict(d.get("form"))):
        for name in _STRING_FIELDS:
            if not isinstance(fields.get(name), str | None):
                raise TypeError(f"{name} is not a string")
    return d


def _at(frame: Wire) -> int | None:
    return timestamp(frame.get("created"))


# -- prompts and steps -----------------------------------------------------------------------------


def _on_enqueued(d: Wire, f: Wire) -> Iterator[Event]:
    item = d["item"]
    if item["type"] in ("user", "synthetic"):
        w = {**item, "id": d["inboxID"], "time": {"created": _at(f)}}
        yield MessageChanged(shapes.inbox_message(d["sessionID"], w))


def _on_step_started(d: Wire, f: Wire) -> Iterator[Event]:
    session, key = d["sessionID"], d["assistantMessageID"]
    began = integer(d.get("started")) or _at(f)
    agent, model = string(d["agent"]) or None, shapes.model_ref(d.get("model"))
    yield MessageChanged(Message(key, session, "assistant", began, agent=agent, model=model))
    yield PartChanged(session, key, StepStart(":start"))


def _on_step_ended(d: Wire, f: Wire) -> Iterator[Event]:
    session, key, used = d["sessionID"], d["assistantMessageID"], call_usage(d)
    finish = string(d["finish"])
    yield PartChanged(session, key, StepEnd(":end", finish, used))
    ended = Message(key, session, "assistant", completed=_at(f), finish=finish, reported=used)
    yield MessageChanged(ended)


def _on_step_failed(d: Wire, f: Wire) -> Iterator[Event]:
    ended = Message(
        d["assistantMessageID"],
        d["sessionID"],
        "assistant",
        completed=_at(f),
        finish=string(d.get("finish")) or "error",
        error=shapes.failure(d["error"]),
        reported=call_usage(d),
    )
    yield MessageChanged(ended)


def _on_part(part: type[Text] | type[Reasoning], closed: bool) -> _Read:
    kind = part.__name__.lower()

    def read(d: Wire, f: Wire) -> Iterator[Event]:
        start, end = (None, _at(f)) if closed else (_at(f), None)
        text = string(d["text"]) if closed else ""
        new = part(f":{kind}:{d['ordinal']}", text, start, end)
        yield PartChanged(d["sessionID"], d["assistantMessageID"], new)

    return read


def _on_delta(kind: str) -> _Read:
    def read(d: Wire, f: Wire) -> Iterator[Event]:
        key = f":{kind}:{d['ordinal']}"
        yield PartDelta(d["sessionID"], d["assistantMessageID"], key, string(d["delta"]))

    return read


def _on_tool(status: ToolStatus) -> _Read:
    def read(d: Wire, f: Wire) -> Iterator[Event]:
        over = status in ("completed", "error")
        arguments = d.get("input")
        call = ToolCall(
            id=f":tool:{d['id']}",
            call=d["id"],
            tool=string(d["name"]) if status == "pending" else "",
            status=status,
            input=arguments if isinstance(arguments, dict) else {},
            start=_at(f) if "input" in d else None,
            end=_at(f) if over else None,
            **shapes.tool_result(d),
        )
        yield PartChanged(d["sessionID"], string(d.get("assistantMessageID")), call)

    return read


def _on_content(d: Wire, f: Wire) -> Iterator[Event]:
    for part in shapes.step_parts(d["content"], _at(f)):
        yield PartChanged(d["sessionID"], d["messageID"], part)


# -- a session's turns -----------------------------------------------------------------------------


def _on_started(d: Wire, f: Wire) -> Iterator[Event]:
    yield StatusChanged(d["sessionID"], _BUSY)


def _ended(outcome: str, d: Wire, f: Wire) -> Message:
    """The message that the server stores at the end of a turn; its id derives from the event's."""
    reported = shapes.failure(d["error"]) if d.get("error") else None
    error = reported or shapes.end_failure(outcome, string(d.get("reason")))
    key = shapes.row_id(string(f.get("id")))
    return Message(
        key, d["sessionID"], "system", _at(f), _at(f), finish=outcome, error=error, kind="idle"
    )


def _on_succeeded(d: Wire, f: Wire) -> Iterator[Event]:
    yield MessageChanged(_ended("succeeded", d, f))
    yield StatusChanged(d["sessionID"], _IDLE)


def _on_failed(d: Wire, f: Wire) -> Iterator[Event]:
    yield SessionFailed(d["sessionID"], shapes.failure(d["error"]))
    yield MessageChanged(_ended("failed", d, f))
    yield StatusChanged(d["sessionID"], _IDLE)


def _on_interrupted(d: Wire, f: Wire) -> Iterator[Event]:
    reason = string(d["reason"])
    failure = shapes.end_failure("interrupted", reason)
    if failure is not None and failure.interrupted:
        yield SessionFailed(d["sessionID"], failure)
    if reason != "shutdown":  # a shutdown stores no message
        yield MessageChanged(_ended("interrupted", d, f))
    yield StatusChanged(d["sessionID"], _IDLE)


def _on_created(d: Wire, f: Wire) -> Iterator[Event]:
    now = {"created": _at(f), "updated": _at(f)}
    yield SessionChanged(shapes.session({**d, "id": d["sessionID"], "time": now}))


def _on_renamed(d: Wire, f: Wire) -> Iterator[Event]:
    yield SessionChanged(Session(d["sessionID"], title=printable(d["title"])))


def _on_usage(d: Wire, f: Wire) -> Iterator[Event]:
    yield SessionChanged(Session(d["sessionID"], usage=usage(d), updated=_at(f)))


def _on_selected(d: Wire, f: Wire) -> Iterator[Event]:
    agent = string(d.get("agent")) or None
    yield SessionChanged(
        Session(d["sessionID"], agent=agent, model=shapes.model_ref(d.get("model")))
    )


def _settled(d: Wire, request: Any, reply: Any) -> Event:
    return RequestReplied(
        required_string(d["sessionID"]), required_string(request), required_string(reply)
    )


def _on_shell(d: Wire, f: Wire) -> Iterator[Event]:
    info = as_dict(d.get("info"))
    fields = info or d
    yield ShellChanged(
        string(as_dict(info.get("metadata")).get("sessionID")),
        required_string(fields["id"]),
        string(fields.get("status")) or f["type"].removeprefix("shell."),
        string(info.get("command")),
        integer(fields.get("exit")),
    )


# -- compaction ------------------------------------------------------------------------------------


def _on_compacting(d: Wire, f: Wire) -> Iterator[Event]:
    # A placeholder, which the stored message replaces when the turn is over.
    if d.get("reason") == "auto":
        session, key = d["sessionID"], f"compaction_{d['sessionID']}"
        yield MessageChanged(
            Message(key, session, "assistant", _at(f), summary=True, kind="compaction")
        )
        yield PartChanged(session, key, Compaction(":compaction", auto=True))
        yield PartChanged(session, key, Text(":text:0", "", _at(f)))


def _on_compaction_delta(d: Wire, f: Wire) -> Iterator[Event]:
    session = d["sessionID"]
    yield PartDelta(session, f"compaction_{session}", ":text:0", string(d["text"]))


def _on_compacted(d: Wire, f: Wire) -> Iterator[Event]:
    session, key = d["sessionID"], f"compaction_{d['sessionID']}"
    if d.get("reason") != "auto":
        return
    error = shapes.failure(d["error"]) if d.get("error") else None
    if error is None:
        yield PartChanged(session, key, Text(":text:0", string(d["text"]), None, _at(f)))
    yield MessageChanged(
        Message(
            key,
            session,
            "assistant",
            completed=_at(f),
            finish=None if error else "stop",
            error=error,
            reported=call_usage(d),
            summary=True,
            kind="compaction",
        )
    )


_EVENTS: dict[str, _Read] = {
    "session.created": _on_created,
    "session.renamed": _on_renamed,
    "session.archived": lambda d, f: [SessionChanged(Session(d["sessionID"], archived=_at(f)))],
    "session.deleted": lambda d, f: [SessionDeleted(d["sessionID"])],
    "session.agent.selected": _on_selected,
    "session.model.selected": _on_selected,
    "session.usage.updated": _on_usage,
    "session.inbox.enqueued": _on_enqueued,
    "session.inbox.delivered": lambda d, f: [PromptDelivered(d["sessionID"], d["inboxID"], _at(f))],
    "session.inbox.cancelled": lambda d, f: [MessageRemoved(d["sessionID"], d["inboxID"])],
    "session.execution.started": _on_started,
    "session.execution.succeeded": _on_succeeded,
    "session.execution.failed": _on_failed,
    "session.execution.interrupted": _on_interrupted,
    "session.step.started": _on_step_started,
    "session.step.ended": _on_step_ended,
    "session.step.failed": _on_step_failed,
    "session.retry.scheduled": lambda d, f: [StatusChanged(d["sessionID"], shapes.retry_status(d))],
    "session.message.content.updated": _on_content,
    "session.text.started": _on_part(Text, closed=False),
    "session.text.delta": _on_delta("text"),
    "session.text.ended": _on_part(Text, closed=True),
    "session.reasoning.started": _on_part(Reasoning, closed=False),
    "session.reasoning.delta": _on_delta("reasoning"),
    "session.reasoning.ended": _on_part(Reasoning, closed=True),
    "session.tool.input.started": _on_tool("pending"),
    "session.tool.called": _on_tool("running"),
    "session.tool.progress": _on_tool("running"),
    "session.tool.success": _on_tool("completed"),
    "session.tool.failed": _on_tool("error"),
    "session.compaction.started": _on_compacting,
    "session.compaction.delta": _on_compaction_delta,
    "session.compaction.ended": _on_compacted,
    "session.compaction.failed": _on_compacted,
    "permission.asked": lambda d, f: [PermissionAsked(shapes.permission(d))],
    "permission.replied": lambda d, f: [_settled(d, d["requestID"], d["reply"])],
    "shell.created": _on_shell,
    "shell.exited": _on_shell,
    "shell.deleted": _on_shell,
    "form.created": lambda d, f: [QuestionAsked(shapes.question(d["form"]))],
    "form.replied": lambda d, f: [_settled(d, d["id"], "answered")],
    "form.cancelled": lambda d, f: [_settled(d, d["id"], "dismissed")],
}
