"""What a turn's events look like on disk, and how a run keeps them until then.

A recording is JSONL. Each turn begins with a head, `{"recording": 1, ...}`; every other line has
`t`, the seconds since the turn began, and one of these:

    {"t": 0.31, "frame": {...}}                  a frame of the event stream, as the server sent it
    {"t": 0.52, "reply": "GET /path?query", "body": ...}    what the server answered; only if new
    {"t": 0.52, "reply": "GET /path?query", "text": "..."}  the same of what is no JSON: a log
    {"t": 0.52, "reply": "GET /path", "status": 404, "body": ...}  the same of a refusal
    {"t": 0.52, "read": true}                    the store was read: the replies so far are folded
    {"t": 4.10, "answer": "per_1", "session": "ses_1", "given": "once", "message": ""}
    {"t": 5.00, "note": "Connection lost."}      how the connection was; "" if well again
    {"t": 6.00, "end": "aborted", "failure": null}          the follower's own verdict
    {"t": 6.20, "outcome": "succeeded"}          the last line of a turn that is complete

So a turn folds from its recording through the same dialect and the same `advance` as it did live.
A reader of version 1 leaves out lines of kinds that it doesn't know.
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
VERSION_KEY = "recording"  # the key of a head that has the version

_LARGEST = 32_000_000  # bytes, packed, of one turn: some hundred megabytes of frames
_LATEST = 1e10  # seconds of a turn: a clock that has to show more stands still
_BLOCK = 256_000  # characters that are packed together

Line = dict[str, Any]


class Recorder:
    """Keeps what a run receives and sends, packed, so that its turn can be recorded.

    Any thread may add to it. It grows with the turn to about 32 MB and no further; then it is
    `full`, and what it has is not a whole turn. `capture()` is what a turn carries.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.head: Line = {}
        self.full = False
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()
        self._fresh: list[str] = []
        self._fresh_size = 0
        self._packed: list[bytes] = []
        self._size = 0
        self._known: dict[str, int] = {}
        self._note = ""

    def begin(self, head: Line) -> None:
        """The turn begins now; `head` is what is known of it."""
        self.head = head
        self._began = self._clock()

    def frame(self, text: str) -> None:
        """A frame of the stream, as it came."""
        self._keep("frame", text)

    def reply(self, request: str, status: int, body: bytes) -> None:
        """What the server answered; nothing if it is what it answered before."""
        if self._known.get(request) != (told := hash((status, body))):
            self._known[request] = told
            self._keep("reply", request, status, body.decode("utf-8", "replace"))

    def read(self) -> None:
        """The store was read, and folded."""
        self._keep("read")

    def answer(self, session: str, request: str, reply: str, message: str) -> None:
        """What a permission or question was answered here."""
        self._keep("answer", session, request, reply, message)

    def note(self, note: str) -> None:
        """How the connection is; nothing if it is as before."""
        if note != self._note:
            self._note = note
            self._keep("note", note)

    def end(self, outcome: str, failure: Failure | None) -> None:
        """A verdict of the follower's own."""
        told = failure and [failure.name, failure.message, failure.status, failure.provider]
        self._keep("end", outcome, told)

    def capture(self) -> Capture:
        """What was received so far, as a value."""
        with self._lock:
            fresh = (_packed(self._fresh),) if self._fresh else ()
            return Capture(self.head, self._began, (*self._packed, *fresh), self.full)

    def _keep(self, kind: str, *told: Any) -> None:
        with self._lock:
            if self.full:
                return
            line = json.dumps([self._clock(), kind, *told])
            self._fresh.append(line)
            self._fresh_size += len(line)
            if self._fresh_size > _BLOCK:
                self._pack()

    def _pack(self) -> None:
        self._packed.append(_packed(self._fresh))
        self._fresh.clear()
        self._fresh_size = 0
        self._size += len(self._packed[-1])
        self.full = self._size > _LARGEST


def _packed(lines: Iterable[str]) -> bytes:
    return zlib.compress("\n".join(lines).encode(), 1)


@dataclass(frozen=True, slots=True, repr=False)
class Capture:
    """What a run received and sent, up to some moment.

    Attributes:
        head: What is known of the turn; empty if it never began.
        began: When it began, by the clock of the recorder.
        blocks: The lines, packed.
        full: There was more than can be kept.
    """

    head: Line
    began: float
    blocks: tuple[bytes, ...]
    full: bool

    def __repr__(self) -> str:
        size = sum(map(len, self.blocks))
        return f"<Capture of {size:,} bytes{', incomplete' if self.full else ''}>"

    def items(self) -> Iterator[tuple[float, str, list[Any]]]:
        """The seconds since the turn began, the kind, and the values of every line."""
        for block in self.blocks:
            for line in zlib.decompress(block).decode().split("\n"):
                at, kind, *told = json.loads(line)
                yield round(max(at - self.began, 0.0), 3), kind, told


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded turn.

    Attributes:
        head: What is known of it: generation and version of the server, when, session, prompt.
        lines: What happened, in order.
        cut: Its end is missing.
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
        """Seconds from its beginning to its last line."""
        return float(self.lines[-1]["t"]) if self.lines else 0.0

    @property
    def label(self) -> str:
        """When it was recorded, and with what."""
        when = str(self.head.get("at", ""))[:16].replace("T", " ")
        label = f"{when} UTC, OpenCode {self.head.get('server', '?')}"
        return "".join(c for c in label[:80] if c.isprintable())  # a terminal obeys others


def dumps(recording: Recording) -> str:
    """The lines of a recorded turn, each with its end."""
    lines = (recording.head, *recording.lines)
    return "".join(
        json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines
    )


def loads(
    lines: Iterable[str], name: str, decode: Callable[[str], Any] = json.loads
) -> tuple[Recording, ...]:
    """The recorded turns in the lines of a file.

    The last line of a turn may be broken, as a kernel leaves it that died: the turn is `cut` there.

    Args:
        lines: The lines.
        name: What the file is called in an error.
        decode: Reads the JSON of a line.

    Raises:
        RecordingError: It is no recording, or one of another version.
    """
    turns: list[Recording] = []
    head: Line | None = None
    told: list[Line] = []
    broken = 0
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        line = _line(text, decode)
        if line is not None and VERSION_KEY in line:
            if head is not None:
                turns.append(_turn(head, told))
            head, told, broken = _head(line, name), [], 0
        elif head is None:
            raise _no_recording(name, "its first line is no head of a recording")
        elif broken:
            raise _no_recording(name, f"line {broken} can't be read")
        elif line is None:
            broken = number
        else:
            told.append(line)
    if head is None:
        raise _no_recording(name, "there is nothing in it")
    return (*turns, _turn(head, told))


def _turn(head: Line, told: list[Line]) -> Recording:
    return Recording(head, tuple(told), cut=not any("outcome" in line for line in told[-1:]))


def _line(text: str, decode: Callable[[str], Any]) -> Line | None:
    """A line as a dict; None if it is none of a recording's."""
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
            f"this package reads {FORMAT_VERSION}.",
            "Play it with the version of opencode_magics that made it, or a newer one.",
        )
    match line:
        case {
            "generation": str(),
            "session": {"id": str(), "directory": str()},
            "prompt": {"id": str()},
        }:
            return line
        case _:
            raise _no_recording(name, "its head doesn't say whose turn it is")


def _no_recording(name: str, why: str) -> RecordingError:
    return RecordingError(
        f"{name} is no recording of turns: {why}.",
        "%oc_record PATH makes one, and so does opencode_magics.save(turn, PATH).",
    )
