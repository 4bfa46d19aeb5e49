"""The event stream of a directory, read by a thread that reconnects by itself.

The thread only reads and decodes, and puts `StreamItem` values into a queue; the owner of the
`Stream` takes them from it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from ..core.events import Event
from ..dialects.base import Dialect, EventPosition, Request
from ..dialects.jsonwire import decode_frame
from ..errors import OpenCodeError, StatusError, StreamError
from .transport import FrameStream, StreamLost, Transport

_NAP = 0.03
_OPEN_WITHIN = 10.0  # seconds until the server must have opened a stream
_STEADY = 5.0  # seconds after which a connection counts as a good one
_REMEMBERED = 64  # events; a repetition comes soon after the first


@dataclass(frozen=True, slots=True)
class Connected:
    """The stream is open. Earlier events are not repeated."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The stream broke; it is opened again until it is closed.

    `refused` means that nothing listens there any more.
    """

    reason: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class StreamProblem:
    """The stream can't be opened (`fatal`), or one of its frames can't be read."""

    error: OpenCodeError
    fatal: bool = False


StreamItem = Event | Connected | Disconnected | StreamProblem


class Stream:
    """The events of one directory, as they come.

    A daemon thread reads and decodes. It reconnects with backoff and reports that (`Disconnected`,
    then `Connected`), since the server doesn't repeat what happened meanwhile. For the `sessions`
    it then reads the events that the server has logged, if it numbers them (2.x); no event is
    reported twice.

    Args:
        transport: The way to the server.
        dialect: Its dialect.
        directory: The directory, as the server spells it.
        tap: Called in the thread with the text of every frame of the stream.
    """

    def __init__(
        self,
        transport: Transport,
        dialect: Dialect,
        directory: str,
        tap: Callable[[str], None] | None = None,
    ) -> None:
        self._transport = transport
        self._dialect = dialect
        self._tap = tap
        self._request = replace(dialect.stream(directory), timeout=_OPEN_WITHIN)
        self._queue: queue.SimpleQueue[StreamItem] = queue.SimpleQueue()
        self.sessions: frozenset[str] = frozenset()
        self._seen = _Seen()
        self._closing = threading.Event()
        self._frames: FrameStream | None = None
        self._thread = threading.Thread(target=self._read, name="opencode-stream", daemon=True)
        self._thread.start()

    def take(self, timeout: float) -> list[StreamItem]:
        """Return all that has come; wait up to `timeout` seconds for the first item.

        The nap lets a burst gather, so that a long answer takes a third less CPU.
        """
        items: list[StreamItem] = []
        with suppress(queue.Empty):
            items.append(self._queue.get(timeout=timeout))
            time.sleep(_NAP)
            while True:
                items.append(self._queue.get_nowait())
        return items

    def next(self, timeout: float) -> StreamItem | None:
        """Return the first item, None if none comes within `timeout` seconds.

        Later items stay for `take`.
        """
        with suppress(queue.Empty):
            return self._queue.get(timeout=timeout)
        return None

    def close(self) -> None:
        """End the thread at once."""
        self._closing.set()
        frames = self._frames  # the thread may release it at any time
        if frames is not None:
            frames.close()
        self._thread.join(timeout=2.0)

    def _read(self) -> None:
        wait, opened = 0.25, False
        while not self._closing.is_set():
            began = time.monotonic()
            try:
                for item in self._connection():
                    self._queue.put(item)
                    opened = True
                lost = Disconnected("the server ended the stream")
            except StreamLost as error:
                lost = Disconnected(error.reason, error.refused)
                if error.closed:
                    self._queue.put(lost)
                    return
            except OpenCodeError as error:
                if isinstance(error, StatusError) and error.status in (502, 503, 504):
                    lost = Disconnected(f"HTTP {error.status}")  # it is starting, or restarting
                elif opened:
                    lost = Disconnected(error.what)
                else:
                    self._queue.put(StreamProblem(error, fatal=True))
                    return
            if not self._closing.is_set():
                self._queue.put(lost)
            self._closing.wait(wait)
            # A stream that ends as soon as it began is reopened ever more slowly.
            wait = 0.25 if time.monotonic() - began > _STEADY else min(wait * 2, 4.0)

    def _connection(self) -> Iterator[StreamItem]:
        """Read one connection from its opening to its end."""
        self._frames = frames = self._transport.stream(self._request, self._dialect.silence)
        try:
            if self._closing.is_set():
                return
            yield Connected()
            yield from self._missed()
            for text in frames:
                if self._tap is not None:
                    self._tap(text)
                yield from decode_items(self._dialect, text, self._seen.is_new)
        finally:
            self._frames = None
            frames.close()

    def _missed(self) -> Iterator[StreamItem]:
        """Read what the sessions have logged since their last event here."""
        for session in self.sessions & self._seen.numbers.keys():
            request = self._dialect.log(session, self._seen.numbers[session])
            try:
                for text in read_frames(self._transport, self._dialect, request):
                    yield from decode_items(self._dialect, text, self._seen.is_new)
            except OpenCodeError:
                continue  # the messages, which are read after every gap, have it


def read_frames(transport: Transport, dialect: Dialect, request: Request) -> Iterator[str]:
    """Read the frames of a stream until it ends, or the iteration is given up.

    Raises:
        StatusError: The server has no such stream.
        ServerConnectionError: The connection broke.
    """
    request = replace(request, timeout=dialect.silence)
    frames = transport.stream(request, dialect.silence)
    try:
        yield from frames
    finally:
        frames.close()


class _Seen:
    """The events that were reported: by their ids, durable ones by their numbers."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self._ids: deque[str] = deque(maxlen=_REMEMBERED)

    def is_new(self, position: EventPosition | None) -> bool:
        """Whether an event is new; from now on it isn't."""
        if position is None:
            return True
        if position.id in self._ids or self._passed(position):
            return False
        self._ids.append(position.id)
        if position.seq is not None:
            self.numbers[position.session] = position.seq
        return True

    def _passed(self, position: EventPosition) -> bool:
        return position.seq is not None and position.seq <= self.numbers.get(position.session, -1)


def decode_items(
    dialect: Dialect, text: str, is_new: Callable[[EventPosition | None], bool]
) -> Iterator[StreamItem]:
    """Decode the events in a frame, if it is new."""
    try:
        frame = decode_frame(text)
        if is_new(dialect.position(frame)):
            yield from dialect.events(frame)
    except StreamError as error:
        yield StreamProblem(error)
