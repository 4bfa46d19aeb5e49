"""A small HTTP server with canned replies, which records its requests.

For behavior that a real server can't be made to show: broken connections, delays, wrong data. Like
1.x it replies to unknown paths with a web page and status 200.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

DISCONNECT = object()  # in a stream or as a reply: break the connection
HTML_PAGE = (200, {"content-type": "text/html"}, b"<!doctype html><div id=root></div>")


@dataclass(frozen=True)
class ReceivedRequest:
    """A request that the server received."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class FakeServer:
    """A server whose routes `"GET /path"` map to JSON, `(status, headers, bytes)` or a function.

    `streams` is the content of the event stream, one list of chunks per connection: bytes, a
    function to call in between, or DISCONNECT. Later connections stay open without content.
    """

    def __init__(self, routes: dict[str, Any], streams: Iterable[list[Any]] = ()) -> None:
        self.routes = routes
        self.streams = [list(s) for s in streams]
        self.seen: list[ReceivedRequest] = []
        self.closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> FakeServer:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    def break_connections(self) -> None:
        """Break every connection from now on, like a server that was killed."""
        self.routes = dict.fromkeys(self.routes, DISCONNECT)

    def asked(self, route: str) -> list[ReceivedRequest]:
        """Return the requests to a route, oldest first."""
        method, _, path = route.partition(" ")
        return [s for s in self.seen if s.method == method and s.path == path]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None:
                pass

            def _handle(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                raw = self.rfile.read(length)
                url = urlsplit(self.path)
                headers = {k.lower(): v for k, v in self.headers.items()}
                query = dict(parse_qsl(url.query, keep_blank_values=True))
                seen = ReceivedRequest(
                    self.command, url.path, query, headers, json.loads(raw or b"null")
                )
                fake.seen.append(seen)
                if url.path.endswith("/event"):
                    return self._stream()
                answer = fake.routes.get(f"{self.command} {url.path}", HTML_PAGE)
                if callable(answer):
                    answer = answer(seen)
                self._answer(answer)

            do_GET = do_POST = do_PATCH = do_DELETE = _handle  # noqa: N815 - names of http.server

            def _answer(self, answer: Any) -> None:
                if answer is DISCONNECT:
                    self.close_connection = True
                    self.connection.close()
                    return
                if not isinstance(answer, tuple):
                    kind = {"content-type": "application/json"}
                    answer = (200, kind, json.dumps(answer).encode())
                status, headers, body = answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _stream(self) -> None:
                self.close_connection = True
                chunks = fake.streams.pop(0) if fake.streams else []
                if chunks == [DISCONNECT]:
                    return self.connection.close()
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                self.wfile.write(b'data: {"type":"server.connected","properties":{}}\n\n')
                for chunk in chunks:
                    if chunk is DISCONNECT:
                        return self.connection.close()
                    if callable(chunk):
                        chunk()
                    else:
                        self.wfile.write(chunk)
                fake.closing.wait(60)
                return None

        return Handler


def frame(kind: str, **properties: Any) -> bytes:
    """Return a frame of a 1.x stream."""
    return b"data: " + json.dumps({"type": kind, "properties": properties}).encode() + b"\n\n"


SESSION = {"id": "ses_root01", "title": "root", "directory": "/work/p", "time": {"created": 1}}
MODELS = {
    "providers": [
        {
            "id": "acme",
            "models": {
                "m-1": {"name": "M 1", "variants": {"high": {}}, "cost": {"input": 3}},
                "m-2": {"name": "M 2", "variants": {}},
            },
        }
    ]
}
AGENTS = [{"name": "build", "mode": "primary"}, {"name": "plan", "mode": "primary"}]
ACCEPTED = (204, {}, b"")


def v1_routes(**changes: Any) -> dict[str, Any]:
    """Return the routes of an idle 1.x server with one session, with some of them changed.

    Keys of changes are the names below (health, session, message, status, ...), or routes.
    """
    root = "/session/ses_root01"
    routes: dict[str, Any] = {
        "health": ("GET /global/health", {"healthy": True, "version": "1.18.33"}),
        "path": ("GET /path", {"directory": "/work/p", "home": "/home/me"}),
        "sessions": ("GET /session", [SESSION]),
        "create": ("POST /session", SESSION),
        "session": (f"GET {root}", SESSION),
        "children": (f"GET {root}/children", []),
        "message": (f"GET {root}/message", []),
        "prompt": (f"POST {root}/prompt_async", ACCEPTED),
        "abort": (f"POST {root}/abort", True),
        "status": ("GET /session/status", {}),
        "permission": ("GET /permission", []),
        "question": ("GET /question", []),
        "providers": ("GET /config/providers", MODELS),
        "config": ("GET /config", {"model": "acme/m-1"}),
        "agent": ("GET /agent", AGENTS),
        "commands": ("GET /command", [{"name": "review", "template": "x"}]),
        "command": (f"POST {root}/command", assistant("msg_2", "msg_1", "done")),
    }
    known = {route: changes.pop(name, answer) for name, (route, answer) in routes.items()}
    return known | changes


def user(message: str, created: int = 1, text: str = "hi") -> dict[str, Any]:
    """Return a stored prompt."""
    info = {
        "id": message,
        "sessionID": "ses_root01",
        "role": "user",
        "time": {"created": created},
    }
    return {"info": info, "parts": [{"id": f"prt_{message}", "type": "text", "text": text}]}


def assistant(
    message: str, parent: str, text: str = "", created: int = 2, **info: Any
) -> dict[str, Any]:
    """Return a stored, finished answer."""
    head = {
        "id": message,
        "sessionID": "ses_root01",
        "role": "assistant",
        "parentID": parent,
        "time": {"created": created, "completed": created + 1},
        "finish": "stop",
        "agent": "build",
    }
    part = {
        "id": f"prt_{message}",
        "type": "text",
        "text": text,
        "time": {"start": created, "end": created + 1},
    }
    return {"info": head | info, "parts": [part] if text else []}


def answers_in_turn(*answers: Any) -> Callable[[ReceivedRequest], Any]:
    """Return a route that gives one reply after the other and repeats the last."""
    remaining = list(answers)
    return lambda seen: remaining.pop(0) if len(remaining) > 1 else remaining[0]


def v2_routes(**changes: Any) -> dict[str, Any]:
    """Return the routes of an idle 2.x server with one session; see `v1_routes`."""
    root = "/api/session/ses_root01"
    here = {"directory": "/work/p"}
    session = {"id": "ses_root01", "title": "root", "location": here, "time": {"created": 1}}

    def data(value: Any) -> dict[str, Any]:
        return {"location": here, "data": value}

    routes: dict[str, Any] = {
        "info": ("GET /api/info", {"version": "2.0.16", "pid": 1, "urls": [], "paths": {}}),
        "location": ("GET /api/location", here),
        "create": ("POST /api/session", data(session)),
        "session": (f"GET {root}", data(session)),
        "sessions": ("GET /api/session", {"data": [], "cursor": {}}),
        "message": (f"GET {root}/message", {"data": [], "cursor": {}}),
        "prompt": (f"POST {root}/prompt", lambda seen: data({"id": "x", "payload": seen.body})),
        "diff": (f"GET {root}/diff", data([])),
        "interrupt": (f"POST {root}/interrupt", {"interrupted": False}),
        "active": ("GET /api/session/active", data({})),
        "permission": ("GET /api/permission/request", data([])),
        "form": ("GET /api/form", data([])),
    }
    known = {route: changes.pop(name, answer) for name, (route, answer) in routes.items()}
    return known | changes
