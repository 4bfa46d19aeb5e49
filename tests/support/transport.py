"""A server in memory: a transport that answers from a table of routes, without a socket.

Takes the routes and streams of `fake_server.FakeServer`, which is for tests of the network itself.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from opencode_magics.client.transport import StreamLost
from opencode_magics.dialects.base import Reply, Request
from opencode_magics.dialects.replies import error_from_reply
from opencode_magics.errors import ServerConnectionError

from .fake_server import DISCONNECT, HTML_PAGE, ReceivedRequest

JSON = {"content-type": "application/json"}
END = object()  # in a stream: it ends there


class CannedTransport:
    """Answers `"GET /path"` with JSON, `(status, headers, bytes)`, a function, or DISCONNECT."""

    def __init__(self, routes: Mapping[str, Any], streams: Iterable[list[Any]] = ()) -> None:
        self.url = "http://127.0.0.1:4096"
        self.routes = routes
        self.streams = [list(s) for s in streams]
        self.seen: list[ReceivedRequest] = []

    def __enter__(self) -> CannedTransport:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is open."""

    def break_connections(self) -> None:
        """Break every request from now on."""
        self.routes = dict.fromkeys(self.routes, DISCONNECT)

    def asked(self, route: str) -> list[ReceivedRequest]:
        """The requests to one route, oldest first."""
        return [s for s in self.seen if f"{s.method} {s.path}" == route]

    def send(self, request: Request) -> Reply:
        """Return the canned reply."""
        query = {k: str(v) for k, v in request.query.items() if v is not None}
        self.seen.append(ReceivedRequest(request.method, request.path, query, {}, request.body))
        answer = self.routes.get(str(request), HTML_PAGE)
        answer = answer(self.seen[-1]) if callable(answer) else answer
        if answer is DISCONNECT:
            raise ServerConnectionError(f"The connection broke during {request}.")
        if not isinstance(answer, tuple):
            answer = (200, JSON, json.dumps(answer).encode())
        return Reply(request, *answer)

    def stream(self, request: Request, silence: float) -> CannedFrames:
        """Open the next canned stream; a log is answered by its route."""
        if f"{request}" in self.routes or not request.path.endswith("/event"):
            reply = self.send(request)
            if reply.status >= 300:
                raise error_from_reply(reply)
            return CannedFrames([reply.body, END], request)
        return CannedFrames(self.streams.pop(0) if self.streams else [], request)


class CannedFrames:
    """The frames of a canned stream, which stays open; END in it ends it, DISCONNECT breaks it."""

    def __init__(self, chunks: list[Any], request: Request) -> None:
        self.chunks, self.request = chunks, request
        self.closed = threading.Event()

    def close(self) -> None:
        """End the iteration."""
        self.closed.set()

    def __iter__(self) -> Iterator[str]:
        for chunk in self.chunks:
            if chunk is END:
                return
            if chunk is DISCONNECT:
                raise StreamLost("", self.request, "cut")
            if callable(chunk):
                chunk()
            else:
                frames = (line for line in chunk.decode().split("\n") if line.startswith("data:"))
                yield from (frame.removeprefix("data:").strip() for frame in frames)
        self.closed.wait()
