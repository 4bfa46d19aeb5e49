"""The event stream of a directory, read by a thread that reconnects automatically.

The thread only reads and decodes. It puts `StreamItem` values into a queue, from which the owner of
the `Stream` takes them.
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
from ..dialects.base import Dialect
from ..dialects.jsonwire import decode_frame
from ..errors import OpenCodeError, StatusError, StreamError
from .transport import FrameStream, StreamLost, Transport

_NAP = 0.03  # seconds
_OPEN_WITHIN = 10.0  # seconds in which the server must open a stream
_STEADY = 5.0  # seconds after which a connection counts as stable
_REMEMBERED = 64  # event ids; a duplicate follows soon after the original


@dataclass(frozen=True, slots=True)
class Connected:
    """The stream is open. Earlier events are not repeated."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The stream broke; it will be reopened unless it was closed.

    `refused` means that no server listens at the address any more.
    """

    reason: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class StreamProblem:
    """The stream can't be opened (`fatal`), or one of its frames can't be decoded."""

    error: OpenCodeError
    fatal: bool = False


StreamItem = Event | Connected | Disconnected | StreamProblem


class Stream:
    """The events of one directory, as they arrive.

    A daemon thread reads and decodes. It reconnects with backoff and reports that (`Disconnected`,
    then `Connected`), since the server doesn't repeat missed events. No event is reported twice.

    Args:
        transport: The transport to the server.
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
        self._seen: deque[str] = deque(maxlen=_REMEMBERED)
        self._closing = threading.Event()
        self._frames: FrameStream | None = None
        self._thread = threading.Thread(target=self._read, name="opencode-stream", daemon=True)
        self._thread.start()

    def take(self, timeout: float) -> list[StreamItem]:
        """Return all items that have arrived; wait up to `timeout` seconds for the first one.

        The short sleep collects a burst of items, which takes a third less CPU for a long answer.
        """
        items: list[StreamItem] = []
        with suppress(queue.Empty):
            items.append(self._queue.get(timeout=timeout))
            time.sleep(_NAP)
            while True:
                items.append(self._queue.get_nowait())
        return items

    def next(self, timeout: float) -> StreamItem | None:
        """Return the next item; None if none arrives within `timeout` seconds."""
        with suppress(queue.Empty):
            return self._queue.get(timeout=timeout)
        return None

    def close(self) -> None:
        """Close the connection and stop the thread."""
        self._closing.set()
        frames = self._frames  # copied: the thread may set it to None at any time
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
                    lost = Disconnected(f"HTTP {error.status}")  # the server is starting
                elif opened:
                    lost = Disconnected(error.what)
                else:
                    self._queue.put(StreamProblem(error, fatal=True))
                    return
            if not self._closing.is_set():
                self._queue.put(lost)
            self._closing.wait(wait)
            # Back off if streams keep ending right after they were opened.
            wait = 0.25 if time.monotonic() - began > _STEADY else min(wait * 2, 4.0)

    def _connection(self) -> Iterator[StreamItem]:
        """Read one connection from its opening to its end."""
        self._frames = frames = self._transport.stream(self._request, self._dialect.silence)
        try:
            if self._closing.is_set():
                return
            yield Connected()
            for text in frames:
                if self._tap is not None:
                    self._tap(text)
                yield from decode_items(self._dialect, text, self._seen)
        finally:
            self._frames = None
            frames.close()


def decode_items(dialect: Dialect, text: str, seen: deque[str]) -> Iterator[StreamItem]:
    """Decode the events in a frame, unless its id was `seen`; add its id."""
    try:
        frame = decode_frame(text)
        event_id = dialect.event_id(frame)
        if event_id and event_id in seen:
            return
        seen.append(event_id)
        yield from dialect.events(frame)
    except StreamError as error:
        yield StreamProblem(error)
