"""Recorded flows as plain values: the events of the stream, and the store at the end."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx_sse

from opencode_magics.client.stream import StreamItem, decode_items
from opencode_magics.core.events import Event, StoreSnapshot
from opencode_magics.core.model import Status
from opencode_magics.core.turn import Turn
from opencode_magics.dialects import v1_shapes
from opencode_magics.dialects import v2_shapes as shapes
from opencode_magics.dialects.jsonwire import loads
from opencode_magics.dialects.v1 import V1
from opencode_magics.dialects.v2 import V2
from opencode_magics.recording.files import load
from opencode_magics.recording.format import Recording

DATA = Path(__file__).parents[1] / "data"
V2_FLOWS = sorted(p.stem for p in (DATA / "recordings" / "v2").iterdir())
V1_FLOWS = sorted(p.stem for p in (DATA / "recordings" / "v1").iterdir())


@dataclass(frozen=True)
class Flow:
    """One recorded prompt."""

    events: tuple[Event, ...]
    stored: StoreSnapshot
    start: Turn
    raw: bytes


def recording(name: str) -> Recording:
    """Load a recording by its folder and name, such as v1/bash_once."""
    (turn,) = load(DATA / "recordings" / f"{name}.jsonl")
    return turn


def body(recording: Recording, request: str) -> Any:
    """Return the body of the last reply to a request."""
    return next(
        line["body"]
        for line in reversed(recording.lines)
        if str(line.get("reply", "")).startswith(f"GET {request}")
    )


def flow(name: str) -> Flow:
    """Load a flow of 1.18.33 by its name."""
    turn = recording(f"v1/{name}")
    session = turn.head["session"]["id"]
    frames = (json.dumps(line["frame"]) for line in turn.lines if "frame" in line)
    raw = "".join(f"data: {frame}\n\n" for frame in frames).encode()
    stored = StoreSnapshot(
        session,
        Status("idle"),
        tuple(v1_shapes.message_with_parts(m) for m in body(turn, f"/session/{session}/message")),
        tuple(v1_shapes.session(c) for c in body(turn, f"/session/{session}/children")),
    )
    return Flow(tuple(events(raw)), stored, Turn(session, turn.head["prompt"]["id"]), raw)


@dataclass(frozen=True)
class RecordedSession:
    """A session of 2.0.16 as a client sees it: its frames, and its rows at the end.

    Fields and order are those of real recordings; ids, texts, paths and numbers are made up.
    """

    session: str
    prompts: tuple[str, ...]
    frames: tuple[Any, ...]
    rows: tuple[Any, ...]

    def stored(self) -> StoreSnapshot:
        """Return the store at the end."""
        messages = shapes.messages(self.session, self.rows)
        return StoreSnapshot(self.session, Status("idle"), messages)

    def events(self) -> tuple[Event, ...]:
        """Decode the frames."""
        return tuple(e for frame in self.frames for e in V2().events(frame))


def transcript(name: str) -> RecordedSession:
    """Load a transcript of 2.0.16 by its name."""
    turn = recording(f"v2/{name}")
    session = turn.head["session"]["id"]
    frames = tuple(line["frame"] for line in turn.lines if "frame" in line)
    rows = tuple(body(turn, f"/api/session/{session}/message")["data"])
    prompts = tuple(row["id"] for row in rows if row["type"] == "user")
    return RecordedSession(session, prompts, frames, rows)


def events(raw: bytes) -> Iterator[Any]:
    """Decode the frames in a byte string."""
    return events_in([raw])


def events_in(chunks: list[bytes]) -> Iterator[StreamItem]:
    """Decode the frames in chunks of bytes."""
    import httpx

    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=chunks)
    for sse in httpx_sse.EventSource(response).iter_sse():
        yield from decode_items(V1(), sse.data, deque())


def case(name: str) -> Any:
    """Load the input of a case: the events of a .sse file, or decoded JSON."""
    path = DATA / "cases" / name
    raw = path.read_bytes()
    return tuple(events(raw)) if path.suffix == ".sse" else loads(raw.decode())
