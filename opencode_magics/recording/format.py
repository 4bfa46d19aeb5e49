"""The file format of recorded turns, and the recorder that collects their events.

A recording is JSONL. Each turn begins with a head, `{"recording": 1, ...}`; every other line has
`t`, the seconds since the turn began, and one of these:

    {"t": 0.31, "frame": {...}}                  a frame of the event stream, as the server sent it
    {"t": 0.52, "reply": "GET /path?query", "body": ...}    a response, unless it is unchanged
    {"t": 0.52, "reply": "GET /path?query", "text": "..."}  a response that is not JSON
    {"t": 0.52, "reply": "GET /path", "status": 404, "body": ...}  an error response
    {"t": 0.52, "read": true}                    the store was read, and the replies were folded
    {"t": 4.10, "answer": "per_1", "session": "ses_1", "given": "once", "message": ""}
    {"t": 5.00, "note": "Connection lost."}      the state of the connection; "" if it is up
    {"t": 6.00, "end": "aborted", "failure": null}          an outcome decided by the client
    {"t": 6.20, "outcome": "succeeded"}          the last line of a complete turn

A recorded turn is folded by the same dialect and the same `advance` as a live one. A reader of
version 1 skips lines of unknown kinds.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..core.formatting import shorten
from ..core.model import Failure
from ..errors import RecordingError

FORMAT_VERSION = 1
VERSION_KEY = "recording"  # the key in a head whose value is the version

_LARGEST = 32_000_000  # compressed bytes of one turn: several hundred megabytes of frames
_LATEST = 1e10  # seconds; a later line is invalid
_BLOCK = 256_000  # characters that are compressed together

Line = dict[str, Any]


class Recorder:
    """Collects what a run receives and sends, compressed, so that its turn can be saved.

    Any thread may add to it. At about 32 MB it is `full` and drops the rest, so the turn can't be
    saved. `capture()` returns the value that is attached to a turn.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.head: Line = {}
        self.full = False
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()
        self._buffer: list[str] = []
        self._buffer_size = 0
        self._blocks: list[bytes] = []
        self._size = 0
        self._replies: dict[str, int] = {}  # by request: the hash of its last reply
        self._note = ""

    def begin(self, head: Line) -> None:
        """Start the turn now, with its head."""
        self.head = head
        self._began = self._clock()

    def frame(self, text: str) -> None:
        """Add a frame of the stream, as received."""
        self._add("frame", text)

    def reply(self, request: str, status: int, body: bytes) -> None:
        """Add a response, unless it is the same as the last one."""
        if self._replies.get(request) != (reply := hash((status, body))):
            self._replies[request] = reply
            self._add("reply", request, status, body.decode("utf-8", "replace"))

    def read(self) -> None:
        """Add that the store was read and folded."""
        self._add("read")

    def answer(self, session: str, request: str, reply: str, message: str) -> None:
        """Add the answer given here to a permission or question."""
        self._add("answer", session, request, reply, message)

    def note(self, note: str) -> None:
        """Add the state of the connection, unless it is unchanged."""
        if note != self._note:
            self._note = note
            self._add("note", note)

    def end(self, outcome: str, failure: Failure | None) -> None:
        """Add an outcome decided by the client."""
        values = failure and [failure.name, failure.message, failure.status, failure.provider]
        self._add("end", outcome, values)

    def capture(self) -> Capture:
        """Return the data collected so far, as a value."""
        with self._lock:
            rest = (_compressed(self._buffer),) if self._buffer else ()
            return Capture(self.head, self._began, (*self._blocks, *rest), self.full)

    def _add(self, kind: str, *values: Any) -> None:
        with self._lock:
            if self.full:
                return
            line = json.dumps([self._clock(), kind, *values])
            self._buffer.append(line)
            self._buffer_size += len(line)
            if self._buffer_size > _BLOCK:
                self._compress()

    def _compress(self) -> None:
        self._blocks.append(_compressed(self._buffer))
        self._buffer.clear()
        self._buffer_size = 0
        self._size += len(self._blocks[-1])
        self.full = self._size > _LARGEST


def _compressed(lines: Iterable[str]) -> bytes:
    return zlib.compress("\n".join(lines).encode(), 1)


@dataclass(frozen=True, slots=True, repr=False)
class Capture:
    """The data that a run has received and sent so far.

    Attributes:
        head: The head of the turn; empty if the turn never began.
        began: When the turn began, by the clock of the recorder.
        blocks: The lines, compressed.
        full: Whether lines were dropped because there were too many.
    """

    head: Line
    began: float
    blocks: tuple[bytes, ...]
    full: bool

    def __repr__(self) -> str:
        size = sum(map(len, self.blocks))
        return f"<Capture of {size:,} bytes{', incomplete' if self.full else ''}>"

    def items(self) -> Iterator[tuple[float, str, list[Any]]]:
        """Yield for every line the seconds since the turn began, the kind, and the values."""
        for block in self.blocks:
            for line in zlib.decompress(block).decode().split("\n"):
                at, kind, *values = json.loads(line)
                yield round(max(at - self.began, 0.0), 3), kind, values


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded turn.

    Attributes:
        head: The generation and version of the server, the time, the session and the prompt.
        lines: The lines, in order.
        cut: Whether its end is missing.
    """

    head: Line
    lines: tuple[Line, ...]
    cut: bool = False

    def __repr__(self) -> str:
        end = " (its end is missing)" if self.cut else ""
        return (
            f"<Recording of {self.label}: {shorten(self.text, 60)!r}, {self.duration:.1f} s{end}>"
        )

    @property
    def text(self) -> str:
        """The prompt."""
        return str(self.head["prompt"].get("text", ""))

    @property
    def duration(self) -> float:
        """Seconds from the beginning to the last line."""
        return float(self.lines[-1]["t"]) if self.lines else 0.0

    @property
    def label(self) -> str:
        """The time of the recording and the version of the server, in words."""
        when = str(self.head.get("at", ""))[:16].replace("T", " ")
        label = f"{when} UTC, OpenCode {self.head.get('server', '?')}"
        return "".join(c for c in label[:80] if c.isprintable())  # no terminal control codes


def dumps(recording: Recording) -> str:
    """Format a recorded turn as JSONL."""
    lines = (recording.head, *recording.lines)
    return "".join(
        json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines
    )


def loads(
    lines: Iterable[str], name: str, decode: Callable[[str], Any] = json.loads
) -> tuple[Recording, ...]:
    """Parse the recorded turns in the lines of a file.

    The last line of a turn may be broken if its kernel died; then the turn is `cut`.

    Args:
        lines: The lines.
        name: The name of the file in errors.
        decode: The JSON decoder.

    Raises:
        RecordingError: The file is not a recording, or its version is unknown.
    """
    turns: list[Recording] = []
    head: Line | None = None
    body: list[Line] = []
    broken = 0
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        line = _line(text, decode)
        if line is not None and VERSION_KEY in line:
            if head is not None:
                turns.append(_turn(head, body))
            head, body, broken = _head(line, name), [], 0
        elif head is None:
            raise _not_a_recording(name, "its first line is not the head of a turn")
        elif broken:
            raise _not_a_recording(name, f"line {broken} can't be read")
        elif line is None:
            broken = number
        else:
            body.append(line)
    if head is None:
        raise _not_a_recording(name, "it is empty")
    return (*turns, _turn(head, body))


def _turn(head: Line, body: list[Line]) -> Recording:
    return Recording(head, tuple(body), cut=not any("outcome" in line for line in body[-1:]))


def _line(text: str, decode: Callable[[str], Any]) -> Line | None:
    """Decode a line; None if it is not a line of a recording."""
    try:
        line = decode(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict):
        return None
    at = line.get("t")
    timed = isinstance(at, int | float) and not isinstance(at, bool) and abs(at) < _LATEST
    return line if VERSION_KEY in line or timed else None


def _head(line: Line, name: str) -> Line:
    if line[VERSION_KEY] != FORMAT_VERSION:
        raise RecordingError(
            f"{name} is a recording of version {line[VERSION_KEY]!r}; "
            f"this package reads version {FORMAT_VERSION}.",
            "Use the version of opencode_magics that made it, or a newer one.",
        )
    match line:
        case {
            "generation": str(),
            "session": {"id": str(), "directory": str()},
            "prompt": {"id": str()},
        }:
            return line
        case _:
            raise _not_a_recording(name, "its head is incomplete")


def _not_a_recording(name: str, reason: str) -> RecordingError:
    return RecordingError(
        f"{name} is not a recording of turns: {reason}.",
        "Make one with %oc_record PATH or opencode_magics.save(turn, PATH).",
    )
