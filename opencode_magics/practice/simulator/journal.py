"""The store of the simulated 2.x server: numbered events, and the messages derived from them.

Only events are stored; `project` derives a session's messages from its durable events, as the real
server does. Fields and order of events are taken from recordings of 2.0.16.
"""

from __future__ import annotations

import queue
import secrets
import string
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Wire = dict[str, Any]

_LETTERS = string.digits + string.ascii_letters
_VERSION_2 = ("session.tool.success", "session.tool.failed", "session.instructions.updated",
              "session.deleted", "session.forked")  # fmt: skip
# Published but not stored.
_VOLATILE = (
    "session.text.delta",
    "session.reasoning.delta",
    "session.tool.input.delta",
    "session.tool.progress",
    "session.usage.updated",
    "session.compaction.delta",
)
_WITHOUT_LOCATION = (
    "session.execution.",
    "session.usage.",
    "session.viewed",
    "session.deleted",
    "server.",
)


class Ids:
    """Ascending ids like the server's: 48 bits of time and counter in hex, then random letters."""

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def new(self, prefix: str, falling: bool = False) -> str:
        """Return an id that sorts after (or, `falling`, before) all earlier ones."""
        with self._lock:
            self._last = max(self._last + 1, (now() << 12) + 1)
            bits = self._last % 2**48
        bits = 2**48 - 1 - bits if falling else bits
        return f"{prefix}_{bits:012x}" + "".join(secrets.choice(_LETTERS) for _ in range(14))


def now() -> int:
    """Return the current time in milliseconds since the epoch."""
    return int(time.time() * 1000)


@dataclass
class SessionRecord:
    """A session: its fields, its durable events, and its messages."""

    info: Wire
    events: list[Wire] = field(default_factory=list)
    rows: list[Wire] = field(default_factory=list)
    items: dict[str, Wire] = field(default_factory=dict)  # all present and past inbox items
    inbox: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    instructions: dict[str, Any] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def id(self) -> str:
        """The session id."""
        return str(self.info["id"])

    @property
    def directory(self) -> str:
        """The working directory."""
        return str(self.info["location"]["directory"])


class Journal:
    """Numbers events, applies the durable ones to their sessions, and sends all to listeners."""

    def __init__(self) -> None:
        self.ids = Ids()
        self._listeners: list[queue.SimpleQueue[Wire | None]] = []
        self._lock = threading.Lock()

    def publish(
        self, kind: str, data: Wire, record: SessionRecord | None = None, **more: Any
    ) -> Wire:
        """Publish an event; with a record it belongs to that session and may be durable."""
        with self._lock:
            event: Wire = {"id": self.ids.new("evt"), "created": now(), **more, "type": kind}
            if record is not None and not kind.startswith(_WITHOUT_LOCATION):
                event["location"] = {"directory": record.directory}
            event["data"] = data
            if record is not None and kind.startswith("session.") and kind not in _VOLATILE:
                version = 2 if kind in _VERSION_2 else 1
                seq = len(record.events)
                event["durable"] = {"aggregateID": record.id, "seq": seq, "version": version}
                record.events.append(event)
                project(record, event)
            if kind != "session.usage.recorded":  # stored but not published (2.0.16)
                for listener in self._listeners:
                    listener.put(event)
        return event

    def listen(self) -> queue.SimpleQueue[Wire | None]:
        """Return a queue of all events from now on."""
        with self._lock:
            listener: queue.SimpleQueue[Wire | None] = queue.SimpleQueue()
            self._listeners.append(listener)
            return listener

    def leave(self, listener: queue.SimpleQueue[Wire | None]) -> None:
        """Remove a listener."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def close(self) -> None:
        """End all listeners."""
        with self._lock:
            for listener in self._listeners:
                listener.put(None)


def project(record: SessionRecord, event: Wire) -> None:
    """Apply a durable event to the messages of its session."""
    d, at = event["data"], event["created"]
    match event["type"].removeprefix("session."):
        case "inbox.enqueued":
            record.items[d["inboxID"]] = d["item"] | {"time": {"created": at}}
            record.inbox.append(d["inboxID"])
        case "inbox.delivery.changed":
            record.items[d["inboxID"]]["delivery"] = d["delivery"]
        case "inbox.cancelled":
            record.inbox.remove(d["inboxID"])
        case "inbox.delivered":
            record.inbox.remove(d["inboxID"])
            item = record.items[d["inboxID"]]
            if item["type"] in ("user", "synthetic"):
                row = {"id": d["inboxID"], "type": item["type"], **item["payload"]}
                record.rows.append(row | {"time": {"created": at}})
        case "step.started":
            record.rows.append(_assistant(d))
        case "compaction.started":
            record.rows.append(_summary(d, event))
        case "compaction.ended" | "compaction.failed" as kind:
            row = next(r for r in reversed(record.rows) if r["type"] == "compaction")
            fields = {k: d[k] for k in ("model", "cost", "tokens", "error", "recent") if k in d}
            row.update(fields, summary=d.get("text", ""), status=_ENDS[kind])
            row["time"]["completed"] = at
        case "execution.succeeded" | "execution.failed" | "execution.interrupted" as kind:
            if d.get("reason") != "shutdown" and not _idle(record.rows):
                row = {"id": f"msg_{event['id'][4:]}", "type": "idle"}
                outcome = kind.removeprefix("execution.")
                record.rows.append(row | {"outcome": outcome, "time": {"created": at}})
                record.info |= {"outcome": outcome}
        case "agent.selected" | "model.selected" as kind:
            name = kind.removesuffix(".selected")
            row = {"id": f"msg_{event['id'][4:]}", "type": f"{name}-switched", name: d[name]}
            record.rows.append(row | {"time": {"created": at}})
            record.info[name] = d[name]
        case "renamed":
            record.info["title"] = d["title"]
        case "shell.ended":
            shell, out = d["shell"], d["output"]
            row = {"id": f"msg_{event['id'][4:]}", "type": "shell", "shellID": shell["id"]}
            row |= {k: shell[k] for k in ("command", "status", "exit") if k in shell}
            record.rows.append(row | {"output": out, "time": {"created": at, "completed": at}})
        case kind if "assistantMessageID" in d:
            _step(_row(record, d["assistantMessageID"]), kind, d, at)
    record.info["time"]["updated"] = at


_ENDS = {"compaction.ended": "completed", "compaction.failed": "failed"}


def _idle(rows: list[Wire]) -> bool:
    """Return whether nothing ran since the last turn: an empty execution stores no message."""
    return not rows or rows[-1]["type"] in ("idle", "agent-switched", "model-switched", "shell")


def _row(record: SessionRecord, key: str) -> Wire:
    return next(r for r in reversed(record.rows) if r["id"] == key)


def _assistant(d: Wire) -> Wire:
    row = {"id": d["assistantMessageID"], "type": "assistant", "agent": d["agent"]}
    row |= {"model": d["model"], "content": [], "time": {"created": d["started"]}}
    return row | ({"snapshot": {"start": d["snapshot"]}} if "snapshot" in d else {})


def _summary(d: Wire, event: Wire) -> Wire:
    key = d.get("inputID") or f"msg_{event['id'][4:]}"
    row = {"id": key, "type": "compaction", "status": "running", "reason": d["reason"]}
    return row | {"summary": "", "time": {"created": event["created"]}}


def _step(row: Wire, kind: str, d: Wire, at: int) -> None:
    """Apply an event of a step to its message."""
    part: Wire
    names: tuple[str, ...]
    match kind:
        case "step.streamed":
            row["time"]["streamed"] = at
        case "step.ended" | "step.failed":
            row["time"]["completed"] = at
            names = ("finish", "rawFinish", "error", "cost", "tokens")
            row |= {"finish": "error"} | {k: d[k] for k in names if k in d}
            if "snapshot" in d and kind == "step.ended":
                row["snapshot"]["end"] = d["snapshot"]
        case "retry.scheduled":
            row["retry"] = {k: d[k] for k in ("attempt", "at", "error")}
        case "text.started":
            row["content"].append({"type": "text", "text": ""})
        case "reasoning.started":
            part = {"type": "reasoning", "text": "", "time": {"created": at}}
            row["content"].append(part | {"state": d["state"]})
        case "text.ended" | "reasoning.ended":
            part = _nth(row, kind.partition(".")[0], d["ordinal"])
            part["text"] = d["text"]
            if "time" in part:
                part["time"]["completed"] = at
        case "tool.input.started":
            state = {"status": "streaming", "input": ""}
            part = {"type": "tool", "id": d["id"], "name": d["name"], "state": state}
            row["content"].append(part | {"time": {"created": at}, "executed": False})
        case "tool.input.ended":
            _tool(row, d["id"])["state"]["input"] = d["text"]
        case "tool.called":
            part = _tool(row, d["id"])
            part["state"] = {"status": "running", "input": d["input"], "metadata": {}}
            part["time"]["ran"] = at
        case "tool.success" | "tool.failed":
            part = _tool(row, d["id"])
            status = "completed" if kind == "tool.success" else "error"
            names = ("content", "metadata", "error")
            args = part["state"]["input"]
            args = args if isinstance(args, dict) else {}
            part["state"] = {"status": status, "input": args} | {k: d[k] for k in names if k in d}
            part["time"]["completed"] = at


def _nth(row: Wire, kind: str, ordinal: int) -> Wire:
    parts: list[Wire] = [p for p in row["content"] if p["type"] == kind]
    return parts[ordinal]


def _tool(row: Wire, call: str) -> Wire:
    return next(p for p in _parts(row) if p.get("id") == call)


def _parts(row: Wire) -> Iterator[Wire]:
    return (p for p in row["content"] if p["type"] == "tool")
