"""A simulated OpenCode 2.x server, for tests and practice.

It replaces a real 2.x server, which the tests can't install: real sockets, event streams and basic
authentication, with the fields and the order of events of recordings of 2.0.16. It uses the
practice model, and its tools really run. It can't show where a real 2.x behaves differently.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import re
import secrets
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from ...client.password import DEFAULT_USER, Secret
from ..model import QuietHandler, QuietServer
from ..workspace import COMMANDS, PRICES
from ..world import World
from . import commands
from .agent import (
    AGENTS,
    MODELS,
    Backend,
    PendingRequest,
    changes_between,
    project_of,
    receipt,
    start_shell,
)
from .journal import SessionRecord, Wire, now

VERSION = "2.0.16"
HEARTBEAT = 15.0


class Refused(Exception):  # noqa: N818 - a reply
    """An error reply; `tag` is the name of the error in the protocol."""

    def __init__(self, status: int, tag: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"_tag": tag, "message": message, **more}


class BrokenOff(Exception):  # noqa: N818 - an intended fault
    """Break the connection instead of replying."""


@dataclass(frozen=True)
class Fault:
    """A fault of one event stream.

    Attributes:
        cut: Break the connection after this many frames.
        stall: Seconds of silence before frame number `at`.
        twice: Send every frame twice.
    """

    cut: int | None = None
    stall: float = 0.0
    at: int = 0
    twice: bool = False


Cut = Literal["before", "after"]


def _no_hook(session: str, when: Cut) -> None:
    """Do nothing around a command."""


class Simulator(World):
    """A simulated server: `with Simulator() as practice: practice.url`.

    Args:
        root: The folder for all its files; by default a temporary one.
        progress: Called with a line of text before each slow operation.
        booting: Seconds after the start during which it replies 503.

    Attributes:
        faults: Faults of the next event streams, one each.
        cuts: Faults of the next commands: the connection breaks before or after the command runs.
        requests: The requests received, as `METHOD /path`.
        commands: The commands of the server.
        meanwhile: Called with the session before and after a command runs; it can act as another
            client.
    """

    name = "simulated OpenCode"
    description = "A simulator of OpenCode 2.x, not the real one,"
    version = VERSION

    def __init__(
        self,
        root: Path | str | None = None,
        *,
        progress: Callable[[str], None] | None = None,
        booting: float = 0.0,
    ) -> None:
        super().__init__(root, progress=progress)
        self._booting = booting
        self.faults: deque[Fault] = deque()
        self.cuts: deque[Cut] = deque()
        self.commands: dict[str, Mapping[str, Any]] = dict(COMMANDS)
        self.meanwhile: Callable[[str, Cut], None] = _no_hook
        self.requests: list[str] = []
        self._password = Secret(secrets.token_urlsafe(24))
        self.backend: Backend

    @property
    def url(self) -> str:
        """The server's base URL."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def password(self) -> str:
        """The server's password."""
        return self._password

    def _start(self, closing: ExitStack) -> None:
        super()._start(closing)
        self.backend = Backend(self.root, self.model)
        self._report("Starting a simulated OpenCode 2.x with the practice model")
        self._serve(0)
        self._ready = time.monotonic() + self._booting
        closing.callback(self._shut_down)

    def _serve(self, port: int) -> None:
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.world = self
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def _shut_down(self) -> None:
        self.backend.stop()
        self._server.shutdown()
        self._server.server_close()

    def restart(self) -> None:
        """Stop all executions and start again at the same address with the stored sessions."""
        port = self._server.server_port
        self._shut_down()
        self._serve(port)

    @property
    def booting(self) -> bool:
        """Whether it is still starting."""
        return time.monotonic() < self._ready


# -- HTTP ------------------------------------------------------------------------------------------


class _Server(QuietServer):
    world: Simulator


class _Handler(QuietHandler):
    @property
    def world(self) -> Simulator:
        return cast(_Server, self.server).world

    def _handle(self) -> None:
        url = urlsplit(self.path)
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.world.requests.append(f"{self.command} {unquote(url.path)}")
        try:
            self._check()
            query = dict(parse_qsl(url.query, keep_blank_values=True))
            if (self.command, url.path) == ("GET", "/api/event"):
                return self._follow()
            if match := _LOG.fullmatch(url.path):
                return self._log(match[1])
            self._send(200, *self._call(url.path, query, raw))
        except Refused as refused:
            self._send(refused.status, refused.body)
        except BrokenOff:
            self.close_connection = True
        return None

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815 - names of http.server

    def _check(self) -> None:
        secret = f"{DEFAULT_USER}:{self.world.password}".encode()
        if self.headers.get("authorization") != f"Basic {base64.b64encode(secret).decode()}":
            raise Refused(401, "UnauthorizedError", "Authentication required")
        if self.world.booting:
            raise Refused(503, "ServiceUnavailableError", "The server is starting", service="boot")

    def _call(self, path: str, query: Mapping[str, str], raw: bytes) -> tuple[Any, ...]:
        try:
            body = json.loads(raw) if raw else {}
        except ValueError:
            raise Refused(400, "InvalidRequestError", "Expected a valid JSON body") from None
        for method, pattern, handler in ROUTES:
            match = pattern.fullmatch(path) if method == self.command else None
            if match:
                names = [unquote(part) for part in match.groups()]
                try:
                    return (handler(Api(self.world, query, body), *names),)
                except KeyError as missing:
                    message = f"Missing key\n  at [{missing}]"
                    raise Refused(400, "InvalidRequestError", message, kind="Payload") from None
        return (404,)  # no such route: 2.x replies without a body

    def _send(self, status: int, body: Any) -> None:
        if body == 404:
            status, body = 404, None
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(204 if body is None and status == 200 else status)
        if data:
            self.send_header("content-type", "application/json")
        if status == 401:
            self.send_header("www-authenticate", 'Basic realm="Secure Area"')
        if status == 503:
            self.send_header("retry-after", "1")
        if data or status != 200:
            self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    # -- streams ---------------------------------------------------------------------------------

    def _open_stream(self) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()

    def _follow(self) -> None:
        """Send all events from now on, with the next fault if there is one."""
        journal = self.world.backend.journal
        fault = self.world.faults.popleft() if self.world.faults else Fault()
        listener = journal.listen()
        try:
            self._open_stream()
            connected = {"id": journal.ids.new("evt"), "type": "server.connected", "data": {}}
            self._frame(connected)
            self.wfile.write(b": heartbeat\n\n")
            self._send_events(listener, fault)
        except OSError:
            pass  # the client disconnected
        finally:
            journal.leave(listener)

    def _send_events(self, listener: queue.SimpleQueue[Wire | None], fault: Fault) -> None:
        sent = 0
        while fault.cut is None or sent < fault.cut:
            try:
                event = listener.get(timeout=HEARTBEAT)
            except queue.Empty:
                self.wfile.write(b": heartbeat\n\n")
                continue
            if event is None:
                return
            if fault.stall and sent == fault.at:
                time.sleep(fault.stall)
            for _ in range(2 if fault.twice else 1):
                self._frame(event)
            sent += 1

    def _log(self, session: str) -> None:
        """Send an empty log, as servers do that keep none (five reports, 2.0.8 to 2.0.24)."""
        record = _record(self.world, session)
        self._open_stream()
        seq = len(record.events) - 1
        self._frame({"type": "log.synced", "aggregateID": record.id, "seq": seq})

    def _frame(self, event: Wire) -> None:
        self.wfile.write(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n")


_LOG = re.compile(r"/api/experimental/session/([^/]+)/log")


# -- routes ----------------------------------------------------------------------------------------

Handler = Callable[..., Any]
ROUTES: list[tuple[str, re.Pattern[str], Handler]] = []


def route(method: str, path: str) -> Callable[[Handler], Handler]:
    """Register a method of `Api` as the handler of a route; `:name` is a path parameter."""
    pattern = re.compile(re.sub(r":\w+", "([^/]+)", path))

    def add(handler: Handler) -> Handler:
        ROUTES.append((method, pattern, handler))
        return handler

    return add


def _record(world: Simulator, session: str) -> SessionRecord:
    record = world.backend.sessions.get(session)
    if record is None:
        message = f"Session not found: {session}"
        raise Refused(404, "SessionNotFoundError", message, sessionID=session)
    return record


class Api:
    """The handlers of routes, with the query and the body of one request."""

    def __init__(self, world: Simulator, query: Mapping[str, str], body: Any) -> None:
        self.world, self.query, self.body = world, query, body
        self.backend = world.backend

    def _session(self, key: str) -> SessionRecord:
        return _record(self.world, key)

    def _request_directory(self) -> str:
        return self.query.get("location[directory]") or str(self.world.directory)

    def _located(self, data: Any) -> Wire:
        directory = self._request_directory()
        if not os.path.isdir(directory):
            location = {"directory": directory}
            message = f"Location not found: {directory}"
            raise Refused(404, "LocationNotFoundError", message, location=location)
        return {"location": {"directory": directory}, "data": data}

    def _page(self, rows: list[Wire], limit: int) -> Wire:
        """Return a page; like 2.x, it has a next cursor unless it is empty."""
        start = 0
        if cursor := self.query.get("cursor"):
            if "order" in self.query:
                raise Refused(400, "InvalidRequestError", "Cursor cannot be combined with order")
            try:
                start = int(json.loads(base64.urlsafe_b64decode(cursor))["start"])
            except (ValueError, KeyError, TypeError):
                raise Refused(400, "InvalidCursorError", "The cursor can't be read") from None
        page = rows[start : start + limit]
        ends = (max(start - limit, 0), start + len(page))
        links = [self._cursor(n) if page else None for n in ends]
        return {"data": page, "cursor": dict(zip(("previous", "next"), links, strict=True))}

    def _cursor(self, start: int) -> str:
        filters = {k: v for k, v in self.query.items() if k not in ("cursor", "limit")}
        filters |= self._cursor_filters()
        text = json.dumps({"start": start, "by": filters})
        return base64.urlsafe_b64encode(text.encode()).decode()

    def _cursor_filters(self) -> dict[str, str]:
        """Return the filters that are encoded in a cursor."""
        cursor = self.query.get("cursor")
        if not cursor:
            return {}
        filters: dict[str, str] = json.loads(base64.urlsafe_b64decode(cursor))["by"]
        return filters

    def _filters(self) -> dict[str, str]:
        try:
            return {**self.query, **self._cursor_filters()}
        except (ValueError, KeyError, TypeError):
            raise Refused(400, "InvalidCursorError", "The cursor can't be read") from None

    def _limit(self) -> int:
        text = self.query.get("limit") or "50"
        if not text.isdigit() or not 1 <= int(text) <= 200:
            raise Refused(400, "InvalidRequestError", "Expected a number from 1 to 200",
                          kind="Query", field="limit")  # fmt: skip
        return int(text)

    def _require_idle(self, record: SessionRecord) -> None:
        if record.id in self.backend.running:
            raise Refused(409, "SessionBusyError", "The session is busy", sessionID=record.id)

    # -- the server and its directories ----------------------------------------------------------

    @route("GET", "/api/info")
    def info(self) -> Wire:
        """Return version, process id and address."""
        paths = {"tmp": tempfile.gettempdir()}
        return {"version": VERSION, "pid": os.getpid(), "urls": [self.world.url], "paths": paths}

    @route("GET", "/api/location")
    def location(self) -> Wire:
        """Return the working directory."""
        directory = self._request_directory()
        return {
            "directory": directory,
            "project": {"id": project_of(directory), "directory": directory},
        }

    @route("GET", "/api/model")
    def models(self) -> Wire:
        """List the models; none until the directory's plugins are loaded."""
        known = sorted(MODELS) if self._request_directory() in self.backend.warm else []
        return self._located([_model(provider, key) for provider, key in known])

    @route("GET", "/api/model/default")
    def default_model(self) -> Wire:
        """Return the configured model."""
        return self._located(_model("practice", "scripted"))

    @route("GET", "/api/agent")
    def agents(self) -> Wire:
        """List the agents."""
        return self._located([_agent(name) for name in AGENTS])

    @route("GET", "/api/command")
    def commands(self) -> Wire:
        """List the commands."""
        listed = [
            {"name": n, "description": c.get("description", "")}
            for n, c in self.world.commands.items()
        ]
        return self._located(listed)

    @route("GET", "/api/skill")
    def skills(self) -> Wire:
        """List the skills."""
        path = f"{self._request_directory()}/.opencode/skill/party/SKILL.md"
        text = "How to greet the guests of a party."
        skill = {"id": "party", "name": "party", "description": text, "path": path}
        return self._located([skill | {"content": text}])

    @route("GET", "/api/integration")
    def integrations(self) -> Wire:
        """List the integrations; this request loads the directory's plugins."""
        self.backend.warm.add(self._request_directory())
        method = {"type": "key", "id": "key", "label": "API key"}
        connection = {"type": "env", "name": "PRACTICE_KEY"}
        return self._located(
            [
                {
                    "id": "practice",
                    "name": "Practice",
                    "methods": [method],
                    "connections": [connection],
                }
            ]
        )

    @route("GET", "/api/mcp")
    def mcp(self) -> Wire:
        """List the MCP servers."""
        listed = [{"name": n, "status": {"status": s}} for n, s in self.backend.mcp.items()]
        return self._located(listed)

    @route("PUT", "/api/experimental/mcp/:server")
    def put_mcp(self, name: str) -> None:
        """Add an MCP server."""
        config = self.body["config"]
        self.backend.mcp[name] = "disabled" if config.get("disabled") else "connected"

    @route("DELETE", "/api/experimental/mcp/:server")
    def delete_mcp(self, name: str) -> None:
        """Remove an MCP server."""
        if self.backend.mcp.pop(name, None) is None:
            raise Refused(404, "McpServerNotFoundError", f"MCP server not found: {name}",
                          server=name)  # fmt: skip

    # -- sessions ------------------------------------------------------------------------------

    @route("GET", "/api/session/active")
    def active(self) -> Wire:
        """Return the busy sessions."""
        return {"data": {key: {"type": "running"} for key in list(self.backend.running)}}

    @route("GET", "/api/session")
    def sessions(self) -> Wire:
        """List sessions, latest first."""
        by, limit = self._filters(), self._limit()
        listed = [r.info for r in self.backend.sessions.values() if _matches(r.info, by)]
        listed.sort(key=lambda i: i["time"]["updated"], reverse=by.get("order") != "asc")
        return self._page(listed, limit)

    @route("POST", "/api/session")
    def create(self) -> Wire:
        """Create a session, or return the existing one with this id."""
        existing = self.backend.sessions.get(self.body.get("id") or "")
        if existing is not None:
            return {"data": existing.info}
        parent_id = self.body.get("parentID")
        parent = self._session(parent_id) if parent_id else None
        requested = (self.body.get("location") or {}).get("directory")
        directory = parent.directory if parent else requested or str(self.world.directory)
        return {"data": self.backend.open(self.body, directory).info}

    @route("GET", "/api/session/:id")
    def session(self, key: str) -> Wire:
        """Return a session."""
        return {"data": self._session(key).info}

    @route("PATCH", "/api/session/:id")
    def patch(self, key: str) -> None:
        """Change fields of a session."""
        record = self._session(key)
        if "title" in self.body:
            self.backend.publish("renamed", record, title=self.body["title"])
        if "metadata" in self.body:
            record.info["metadata"] = self.body["metadata"]
            self.backend.publish("metadata.updated", record, metadata=self.body["metadata"])
        if "permissions" in self.body:
            record.info["permissions"] = self.body["permissions"]
            self.backend.publish("permissions", record, permissions=self.body["permissions"])
        if "archived" in self.body:
            self._archive(record, bool(self.body["archived"]))

    def _archive(self, record: SessionRecord, archived: bool) -> None:
        record.info["time"].pop("archived", None)
        if archived:
            record.info["time"]["archived"] = now()
        self.backend.publish("archived" if archived else "unarchived", record)

    @route("DELETE", "/api/session/:id")
    def delete(self, key: str) -> None:
        """Delete a session and its children."""
        record = self._session(key)
        for other in list(self.backend.sessions.values()):
            if other.info.get("parentID") == key:
                self.delete(other.id)
        if running := self.backend.running.get(key):
            running.interrupt("user")
            running.join(5)
        self.backend.publish("deleted", record)
        self.backend.sessions.pop(key, None)  # another request may have deleted it meanwhile

    @route("POST", "/api/session/:id/fork")
    def fork(self, key: str) -> Wire:
        """Copy a session up to a message."""
        record, before = self._session(key), self.body.get("before")
        rows = list(record.rows)
        if before:
            self._message(record, before)
            rows = rows[: [r["id"] for r in rows].index(before)]
        boundary = {"type": "before" if before else "through",
                    "messageID": before or (rows[-1]["id"] if rows else "")}  # fmt: skip
        title = {"title": record.info["title"]} if record.info.get("title") else {}
        copy = self.backend.open(title, record.directory)
        copy.rows = [json.loads(json.dumps(r)) for r in rows]
        copy.info["fork"] = {"sessionID": key, "boundary": boundary}
        self.backend.publish("forked", copy, parentID=key, boundary=boundary)
        return {"data": copy.info}

    @route("POST", "/api/session/:id/agent")
    def switch_agent(self, key: str) -> None:
        """Switch the agent; its name is not checked."""
        self.backend.publish("agent.selected", self._session(key), agent=self.body["agent"])

    @route("POST", "/api/session/:id/model")
    def switch_model(self, key: str) -> None:
        """Switch the model; its name is not checked."""
        self.backend.publish("model.selected", self._session(key), model=self.body["model"])

    @route("POST", "/api/session/:id/interrupt")
    def interrupt(self, key: str) -> Wire:
        """Interrupt the running execution."""
        self._session(key)
        running = self.backend.running.get(key)
        if running is not None:
            running.interrupt("user", self.query.get("resume") == "true")
        return {"interrupted": running is not None}

    @route("POST", "/api/experimental/session/:id/wait")
    def wait(self, key: str) -> None:
        """Reply when the session is idle."""
        self._session(key)
        while (running := self.backend.running.get(key)) is not None:
            running.join(0.1)

    @route("PUT", "/api/session/:id/environment")
    def environment(self, key: str) -> None:
        """Set the variables for shell commands."""
        self._session(key).environment = dict(self.body["variables"])

    @route("GET", "/api/experimental/session/:id/instructions/entries")
    def instructions(self, key: str) -> Wire:
        """List the added instructions."""
        entries = self._session(key).instructions
        return {"data": [{"key": k, "value": v} for k, v in entries.items()]}

    @route("PUT", "/api/experimental/session/:id/instructions/entries/:key")
    def put_instruction(self, key: str, name: str) -> None:
        """Add an instruction."""
        self._session(key).instructions[name] = self.body["value"]

    @route("DELETE", "/api/experimental/session/:id/instructions/entries/:key")
    def delete_instruction(self, key: str, name: str) -> None:
        """Remove an instruction, if it exists."""
        self._session(key).instructions.pop(name, None)

    # -- messages and the inbox ----------------------------------------------------------------

    def _message(self, record: SessionRecord, message: str) -> Wire:
        row = next((r for r in record.rows if r["id"] == message), None)
        if row is None:
            raise Refused(404, "MessageNotFoundError", f"Message not found: {message}",
                          sessionID=record.id, messageID=message)  # fmt: skip
        return row

    @route("GET", "/api/session/:id/message")
    def messages(self, key: str) -> Wire:
        """List the messages of a session."""
        by = self._filters()
        rows = [r for r in self._visible(self._session(key)) if by.get("type") in (None, r["type"])]
        return self._page(rows if by.get("order") == "asc" else rows[::-1], self._limit())

    def _visible(self, record: SessionRecord) -> list[Wire]:
        revert = record.info.get("revert")
        rows = list(record.rows)
        if revert is None:
            return rows
        return rows[: [r["id"] for r in rows].index(revert["messageID"])]

    @route("GET", "/api/session/:id/message/:message")
    def message(self, key: str, message: str) -> Wire:
        """Return a message."""
        return {"data": self._message(self._session(key), message)}

    @route("POST", "/api/session/:id/prompt")
    def prompt(self, key: str) -> Wire:
        """Put a prompt into the inbox; a second one with the same id is ignored."""
        record, fields = self._session(key), ("text", "files", "agents", "skills", "metadata")
        name = self.body.get("id") or self.backend.journal.ids.new("msg")
        if not re.match(r"^msg_", name):
            raise Refused(400, "InvalidRequestError", "Expected an id of a message", field="id")
        payload = {"text": self.body["text"]}
        payload |= {k: self.body[k] for k in fields if self.body.get(k) is not None}
        if "files" in payload:
            payload["files"] = [_inline(f) for f in payload["files"]]
        with record.lock:
            if name not in record.items:
                if any(name in other.items for other in self.backend.sessions.values()):
                    raise Refused(409, "ConflictError", "The id is taken", resource=name)
                self._commit_revert(record)
                delivery = self.body.get("delivery") or "steer"
                self.backend.enqueue(record, "user", payload, delivery, name)
        if self.body.get("resume") is not False:
            self.backend.wake(record)
        return {"data": receipt(record, name)}

    @route("POST", "/api/session/:id/command")
    def command(self, key: str) -> None:
        """Run a command. The reply doesn't refer to the inputs it created."""
        record, name, text = self._session(key), self.body["name"], self.body["text"]
        command = self.world.commands.get(name)
        if command is None:
            raise Refused(404, "CommandNotFoundError", f"Command not found: {name}",
                          command=name)  # fmt: skip
        cut = self.world.cuts.popleft() if self.world.cuts else None
        if cut == "before":
            raise BrokenOff
        self.world.meanwhile(key, "before")
        commands.run_command(
            self.backend, record, name, command, text, self.body.get("delivery") or "steer"
        )
        self.world.meanwhile(key, "after")
        if cut == "after":
            raise BrokenOff

    @route("POST", "/api/session/:id/compact")
    def compact(self, key: str) -> Wire:
        """Put a compaction into the inbox."""
        record = self._session(key)
        name = self.body.get("id") or self.backend.journal.ids.new("msg")
        delivery = self.body.get("delivery") or "steer"
        item = self.backend.enqueue(record, "compaction", {}, delivery, name)
        self.backend.wake(record)
        return {"data": item}

    @route("GET", "/api/session/:id/inbox")
    def inbox(self, key: str) -> Wire:
        """List the inbox."""
        record = self._session(key)
        return {"data": [receipt(record, name) for name in record.inbox]}

    @route("DELETE", "/api/session/:id/inbox/:item")
    def cancel(self, key: str, item: str) -> None:
        """Remove an item from the inbox, if it is still there."""
        record = self._session(key)
        with record.lock:
            if item in record.inbox:
                self.backend.publish("inbox.cancelled", record, inboxID=item)

    @route("PATCH", "/api/session/:id/inbox/:item")
    def deliver(self, key: str, item: str) -> None:
        """Change the delivery of an inbox item."""
        record, delivery = self._session(key), self.body["delivery"]
        if item not in record.inbox:
            raise Refused(409, "ConflictError", "The item is already delivered", resource=item)
        self.backend.publish("inbox.delivery.changed", record, inboxID=item, delivery=delivery)
        if delivery == "steer":
            self.backend.wake(record)

    # -- changed files ---------------------------------------------------------------------------

    @route("GET", "/api/session/:id/diff")
    def diff(self, key: str) -> Wire:
        """Return the changes from a prompt to the end of its turn."""
        record = self._session(key)
        rows = self._visible(record)
        start = self.query.get("from") or next((r["id"] for r in rows), None)
        if start is None:
            return {"data": []}
        self._message(record, start)
        rows = rows[[r["id"] for r in rows].index(start) :]
        ends = [n for n, r in enumerate(rows) if r["type"] == "idle"]
        steps = [r for r in rows[: ends[0] if ends else None] if "snapshot" in r]
        snapshots = [self.backend.snapshots[s] for r in steps for s in r["snapshot"].values()]
        return {"data": changes_between(snapshots[0], snapshots[-1]) if snapshots else []}

    @route("POST", "/api/session/:id/revert/stage")
    def revert(self, key: str) -> Wire:
        """Hide a message and all later ones; restore the files if the body says so."""
        record, message = self._session(key), self.body["messageID"]
        self._require_idle(record)
        self._message(record, message)
        rows = record.rows[[r["id"] for r in record.rows].index(message) :]
        before = next((r["snapshot"]["start"] for r in rows if "snapshot" in r), None)
        staged: Wire = {"messageID": message}
        if before is not None:
            current = self.backend.snapshot(record.directory) or before
            staged |= {"snapshot": current, "files": self._changes(before, current)}
            if self.body.get("files"):
                self._restore(record, current, before)
        record.info["revert"] = staged
        self.backend.publish("revert.staged", record, revert=staged)
        return {"data": staged}

    def _changes(self, before: str, after: str) -> list[Wire]:
        return changes_between(self.backend.snapshots[before], self.backend.snapshots[after])

    def _restore(self, record: SessionRecord, current: str, target: str) -> None:
        texts = self.backend.snapshots[target]
        for change in self._changes(current, target):
            path = Path(record.directory) / change["file"]
            if change["file"] in texts:
                path.write_text(texts[change["file"]], encoding="utf-8")
            else:
                path.unlink(missing_ok=True)

    @route("DELETE", "/api/session/:id/revert")
    def unrevert(self, key: str) -> None:
        """Show the hidden messages again, and restore the files."""
        record = self._session(key)
        self._require_idle(record)
        staged = record.info.pop("revert", None)
        if staged is None:
            return
        current = self.backend.snapshot(record.directory)
        if current is not None and "snapshot" in staged:
            self._restore(record, current, staged["snapshot"])
        self.backend.publish("revert.cleared", record)

    @route("POST", "/api/session/:id/revert/commit")
    def commit_revert(self, key: str) -> None:
        """Delete the hidden messages."""
        record = self._session(key)
        self._require_idle(record)
        self._commit_revert(record)

    def _commit_revert(self, record: SessionRecord) -> None:
        if staged := record.info.get("revert"):
            record.rows = self._visible(record)
            del record.info["revert"]
            self.backend.publish("revert.committed", record, to=staged["messageID"])

    # -- requests to a person --------------------------------------------------------------------

    def _pending(self, requests: Mapping[str, PendingRequest], session: str | None) -> list[Wire]:
        directory = self._request_directory()
        wires = [request.wire for request in list(requests.values())]
        if session is not None:
            return [w for w in wires if w["sessionID"] == session]
        return [w for w in wires if self._session(w["sessionID"]).directory == directory]

    @route("GET", "/api/permission/request")
    def permissions(self) -> Wire:
        """List the pending permissions of a directory."""
        return self._located(self._pending(self.backend.permissions, None))

    @route("GET", "/api/session/:id/permission")
    def session_permissions(self, key: str) -> Wire:
        """List the pending permissions of a session."""
        return {"data": self._pending(self.backend.permissions, self._session(key).id)}

    @route("POST", "/api/session/:id/permission/:request/reply")
    def reply(self, key: str, request: str) -> None:
        """Reply to a permission."""
        self._session(key)
        decision = self.body["decision"]
        with self.backend.lock:
            if request not in self.backend.permissions:
                raise Refused(404, "PermissionNotFoundError",
                              f"Permission request not found: {request}",
                              requestID=request)  # fmt: skip
            self.backend.settle_permission(request, decision, self.body.get("message") or "")

    @route("GET", "/api/permission/saved")
    def saved(self) -> Wire:
        """List the rules that "always" saved."""
        project = self.query.get("projectID")
        listed = [
            {
                "id": s.id,
                "projectID": s.project,
                "action": s.action,
                "resource": s.resource,
                "time": {"created": s.created},
            }
            for s in self.backend.saved
            if project in (None, s.project)
        ]
        return {"data": listed}

    @route("DELETE", "/api/permission/saved/:id")
    def unsave(self, key: str) -> None:
        """Delete a saved rule."""
        self.backend.saved[:] = [s for s in self.backend.saved if s.id != key]

    @route("GET", "/api/form")
    def forms(self) -> Wire:
        """List the pending forms of a directory."""
        return self._located(self._pending(self.backend.forms, None))

    @route("GET", "/api/session/:id/form")
    def session_forms(self, key: str) -> Wire:
        """List the pending forms of a session."""
        return {"data": self._pending(self.backend.forms, self._session(key).id)}

    @route("POST", "/api/session/:id/form")
    def ask(self, key: str) -> Wire:
        """Create a form for a client."""
        record = self._session(key)
        name = self.body.get("id") or self.backend.journal.ids.new("frm")
        wire = {"id": name, "sessionID": record.id, "title": self.body["title"]}
        wire |= {"metadata": self.body.get("metadata") or {}, "fields": self.body["fields"]}
        self.backend.forms[name] = PendingRequest(wire)
        self.backend.journal.publish("form.created", {"form": wire}, record)
        return {"data": wire}

    @route("POST", "/api/session/:id/form/:form/reply")
    def answer(self, key: str, form: str) -> None:
        """Answer a form."""
        request, answer = self._form(form), self.body["answer"]
        for problem in _form_errors(request.wire["fields"], answer):
            raise Refused(400, "FormInvalidAnswerError", problem, id=form)
        data = {"id": form, "sessionID": key, "answer": answer}
        self._settle(key, form, "form.replied", data)
        request.answer = answer
        request.settled.set()

    @route("DELETE", "/api/session/:id/form/:form")
    def dismiss(self, key: str, form: str) -> None:
        """Cancel a form."""
        request = self._form(form)
        self._settle(key, form, "form.cancelled", {"id": form, "sessionID": key})
        request.cancelled, request.message = True, self.query.get("message") or ""
        request.settled.set()

    def _form(self, form: str) -> PendingRequest:
        request = self.backend.forms.get(form)
        if request is None:
            raise Refused(404, "FormNotFoundError", f"Form not found: {form}", id=form)
        return request

    def _settle(self, key: str, form: str, kind: str, data: Wire) -> None:
        del self.backend.forms[form]
        self.backend.journal.publish(kind, data, self._session(key))

    # -- shells --------------------------------------------------------------------------------

    @route("GET", "/api/shell/:id/output")
    def output(self, key: str) -> Wire:
        """Return a shell's output, starting at a byte offset."""
        shell = self.backend.shells.get(key)
        if shell is None:
            raise Refused(404, "ShellNotFoundError", f"Shell not found: {key}", id=key)
        content, start = shell.output.read_bytes(), int(self.query.get("cursor") or 0)
        text = content[start:].decode("utf-8", "ignore")
        data = {"output": text, "cursor": start + len(text.encode()), "size": len(content)}
        return self._located(data | {"truncated": False})

    @route("POST", "/api/session/:id/shell")
    def run_shell(self, key: str) -> None:
        """Run a shell command that a person entered."""
        record = self._session(key)
        shell = start_shell(self.backend, record, self.body["command"], background=True)
        self.backend.publish("shell.started", record, shell=shell.info)
        assert shell.process is not None
        shell.info |= {"exit": shell.process.wait(), "status": "exited"}
        exited = {k: shell.info[k] for k in ("id", "exit", "status")}
        self.backend.journal.publish("shell.exited", exited, record)
        text = shell.output.read_text(encoding="utf-8", errors="replace")
        size = len(text.encode())
        output = {"output": text, "cursor": size, "size": size, "truncated": False}
        self.backend.publish("shell.ended", record, shell=shell.info, output=output)


def _inline(file: Wire) -> Wire:
    """Return an attached file as the server stores it: with its content, without its address."""
    head, _, content = file["uri"].partition(",")
    if not head.startswith("data:"):
        raise Refused(400, "InvalidRequestError", "The file can't be read", field="files")
    mime = head.removeprefix("data:").removesuffix(";base64")
    name = {"name": file["name"]} if file.get("name") else {}
    return {"data": content, "mime": mime, "source": {"type": "inline"}, **name}


def _matches(info: Wire, filters: Mapping[str, str]) -> bool:
    values = {
        "directory": info["location"]["directory"],
        "project": info["projectID"],
        "parentID": info.get("parentID") or "null",
    }
    archived = "archived" in info["time"]
    return (
        all(filters[k] == v for k, v in values.items() if k in filters)
        and filters.get("search", "").casefold() in (info.get("title") or "").casefold()
        and archived == (filters.get("archived") == "true")
    )


def _model(provider: str, key: str) -> Wire:
    prices = dict.fromkeys(PRICES, 0.0) if key == "small" else PRICES
    cache = {"read": prices["cache_read"], "write": prices["cache_write"]}
    inputs = ["text"] if key == "small" else ["text", "image"]
    return {
        "id": key,
        "modelID": key,
        "providerID": provider,
        "name": key.title(),
        "capabilities": {"tools": True, "input": inputs, "output": ["text"]},
        "variants": [{"id": v} for v in ("low", "medium", "high")] if key == "scripted" else [],
        "time": {},
        "cost": [{"input": prices["input"], "output": prices["output"], "cache": cache}],
        "status": "active",
        "enabled": True,
        "limit": {"context": 200_000, "output": 8_192},
    }


def _agent(name: str) -> Wire:
    mode, description, rules = AGENTS[name]
    permissions = [{"action": r.action, "resource": r.resource, "effect": r.effect} for r in rules]
    agent = {"id": name, "name": name.title(), "description": description, "mode": mode}
    return agent | {"request": {}, "hidden": False, "permissions": permissions}


def _form_errors(fields: list[Wire], answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of the answers to a form."""
    fields_by_key = {f["key"]: f for f in fields}
    yield from (f"Unknown form field: {key}" for key in answer if key not in fields_by_key)
    for key, field in fields_by_key.items():
        value, title = answer.get(key), field.get("title") or key
        if value is None:
            if field.get("required") and _applies(field, answer):
                yield f"{title} is required"
            continue
        kinds = {"multiselect": list, "boolean": bool, "integer": int, "number": int | float}
        if not isinstance(value, kinds.get(field["type"], str)):
            yield f"{title}: expected {field['type']}"
            continue
        offered = {o["value"] for o in field.get("options") or ()}
        chosen = value if isinstance(value, list) else [value]
        if offered and not field.get("custom") and not set(chosen) <= offered:
            yield f"{title}: no such option"
        yield from _bounds(title, field, value)


def _applies(field: Wire, answer: Mapping[str, Any]) -> bool:
    """Return whether the conditions of a field hold, given the answers to other fields."""

    def holds(condition: Wire) -> bool:
        value = answer.get(condition["key"])
        equal = condition["value"] in (value if isinstance(value, list) else [value])
        return equal if condition["op"] == "eq" else not equal

    return all(map(holds, field.get("when") or ()))


def _bounds(title: str, field: Wire, value: Any) -> Iterator[str]:
    size = value if isinstance(value, int | float) else len(value)
    least = next((field[k] for k in ("minimum", "minLength", "minItems") if k in field), size)
    most = next((field[k] for k in ("maximum", "maxLength", "maxItems") if k in field), size)
    if not isinstance(value, bool) and not least <= size <= most:
        yield f"{title}: expected {least} to {most}"
    if field.get("pattern") and not re.search(field["pattern"], str(value)):
        yield f"{title}: expected {field['pattern']}"
