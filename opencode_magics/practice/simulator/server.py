"""A simulated OpenCode 2.x: a small real server that behaves as 2.x is known to.

No 2.x server is part of this package's tests, so this one stands in: real sockets, real event
streams, basic authentication, with the shapes and the order that recordings of 2.0.16 show. The
model is the practice model, and its tools really run. What it can't prove is what 2.x does
otherwise.
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


class Refused(Exception):  # noqa: N818 - an answer
    """The answer is no; `tag` is the wire's name of the error."""

    def __init__(self, status: int, tag: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"_tag": tag, "message": message, **more}


class BrokenOff(Exception):  # noqa: N818 - a fault that is meant
    """The connection breaks instead of an answer."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one event stream.

    Attributes:
        cut: Break off after so many frames.
        stall: Seconds of silence, before frame number `at`.
        twice: Send every frame two times.
    """

    cut: int | None = None
    stall: float = 0.0
    at: int = 0
    twice: bool = False


Cut = Literal["before", "after"]


def _nothing(session: str, when: Cut) -> None:
    """Nobody comes in between."""


class Simulator(World):
    """A running simulated server: `with Simulator() as practice: practice.url`.

    Args:
        root: The folder for everything it writes; by default a temporary one.
        progress: Called with one line for each thing that takes a while.
        booting: For how many seconds it answers 503 at first.

    `faults` are taken by the next event streams, one each, `cuts` by the next commands: the
    connection breaks before the command is run, or after it. `asked` are the requests that came, as
    `METHOD /path`. `commands` are those that it has; `meanwhile` is called with the session before
    a command is run and after it, so that another client can come in between.
    """

    name = "simulated OpenCode"
    what = "A simulator of OpenCode 2.x, not the real one,"
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
        self.meanwhile: Callable[[str, Cut], None] = _nothing
        self.asked: list[str] = []
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
        self._say("Starting a simulated OpenCode 2.x with the practice model")
        self._serve(0)
        self._ready = time.monotonic() + self._booting
        closing.callback(self._silence)

    def _serve(self, port: int) -> None:
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.world = self
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def _silence(self) -> None:
        self.backend.stop()
        self._server.shutdown()
        self._server.server_close()

    def restart(self) -> None:
        """Stop all that runs and begin anew at the same address, with what was written down."""
        port = self._server.server_port
        self._silence()
        self._serve(port)

    @property
    def boots(self) -> bool:
        """Whether it is still starting."""
        return time.monotonic() < self._ready


# -- HTTP ------------------------------------------------------------------------------------------


class _Server(QuietServer):
    world: Simulator


class _Handler(QuietHandler):
    @property
    def world(self) -> Simulator:
        return cast(_Server, self.server).world

    def _any(self) -> None:
        url = urlsplit(self.path)
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.world.asked.append(f"{self.command} {unquote(url.path)}")
        try:
            self._check()
            query = dict(parse_qsl(url.query, keep_blank_values=True))
            if (self.command, url.path) == ("GET", "/api/event"):
                return self._follow()
            if found := _LOG.fullmatch(url.path):
                return self._log(found[1], query)
            self._send(200, *self._call(url.path, query, raw))
        except Refused as refused:
            self._send(refused.status, refused.body)
        except BrokenOff:
            self.close_connection = True
        return None

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any  # noqa: N815 - the library's names

    def _check(self) -> None:
        secret = f"{DEFAULT_USER}:{self.world.password}".encode()
        if self.headers.get("authorization") != f"Basic {base64.b64encode(secret).decode()}":
            raise Refused(401, "UnauthorizedError", "Authentication required")
        if self.world.boots:
            raise Refused(503, "ServiceUnavailableError", "The server is starting", service="boot")

    def _call(self, path: str, query: Mapping[str, str], raw: bytes) -> tuple[Any, ...]:
        try:
            body = json.loads(raw) if raw else {}
        except ValueError:
            raise Refused(400, "InvalidRequestError", "Expected a valid JSON body") from None
        for method, pattern, answer in ROUTES:
            found = pattern.fullmatch(path) if method == self.command else None
            if found:
                names = [unquote(part) for part in found.groups()]
                try:
                    return (answer(Api(self.world, query, body), *names),)
                except KeyError as missing:
                    message = f"Missing key\n  at [{missing}]"
                    raise Refused(400, "InvalidRequestError", message, kind="Payload") from None
        return (404,)  # without a body: there is no such route

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
        """Tell all events from now on, with whatever is to go wrong."""
        journal = self.world.backend.journal
        fault = self.world.faults.popleft() if self.world.faults else Fault()
        listener = journal.listen()
        try:
            self._open_stream()
            connected = {"id": journal.ids.new("evt"), "type": "server.connected", "data": {}}
            self._frame(connected)
            self.wfile.write(b": heartbeat\n\n")
            self._tell(listener, fault)
        except OSError:
            pass  # the client hung up
        finally:
            journal.leave(listener)

    def _tell(self, listener: queue.SimpleQueue[Wire | None], fault: Fault) -> None:
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

    def _log(self, session: str, query: Mapping[str, str]) -> None:
        """Tell what was written down of a session after a number, and go on if asked to."""
        record = _record(self.world, session)
        listener = self.world.backend.journal.listen()
        try:
            after = int(query.get("after") or -1)
            self._open_stream()
            for event in list(record.log):
                if event["durable"]["seq"] > after:
                    after = event["durable"]["seq"]
                    self._frame(event)
            self._frame({"type": "log.synced", "aggregateID": record.id, "seq": after})
            while query.get("follow") == "true" and (new := listener.get()) is not None:
                place = new.get("durable", {})
                if place.get("aggregateID") == record.id and place["seq"] > after:
                    self._frame(new)
        except OSError:
            pass
        finally:
            self.world.backend.journal.leave(listener)

    def _frame(self, event: Wire) -> None:
        self.wfile.write(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n")


_LOG = re.compile(r"/api/experimental/session/([^/]+)/log")


# -- what can be asked -----------------------------------------------------------------------------

Answer = Callable[..., Any]
ROUTES: list[tuple[str, re.Pattern[str], Answer]] = []


def route(method: str, path: str) -> Callable[[Answer], Answer]:
    """Make a method of `Api` the answer to a route; `:name` stands for one word of the path."""
    pattern = re.compile(re.sub(r":\w+", "([^/]+)", path))

    def add(answer: Answer) -> Answer:
        ROUTES.append((method, pattern, answer))
        return answer

    return add


def _record(world: Simulator, session: str) -> SessionRecord:
    found = world.backend.sessions.get(session)
    if found is None:
        message = f"Session not found: {session}"
        raise Refused(404, "SessionNotFoundError", message, sessionID=session)
    return found


class Api:
    """The answers to one request: its query and its body are at hand."""

    def __init__(self, world: Simulator, query: Mapping[str, str], body: Any) -> None:
        self.world, self.query, self.body = world, query, body
        self.backend = world.backend

    def _session(self, key: str) -> SessionRecord:
        return _record(self.world, key)

    def _here(self) -> str:
        return self.query.get("location[directory]") or str(self.world.directory)

    def _located(self, data: Any) -> Wire:
        directory = self._here()
        if not os.path.isdir(directory):
            location = {"directory": directory}
            message = f"Location not found: {directory}"
            raise Refused(404, "LocationNotFoundError", message, location=location)
        return {"location": {"directory": directory}, "data": data}

    def _page(self, rows: list[Wire], limit: int) -> Wire:
        """One page; there is a next one as long as there are rows, even behind the last."""
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
        kept = {k: v for k, v in self.query.items() if k not in ("cursor", "limit")}
        kept |= self._kept()
        return base64.urlsafe_b64encode(json.dumps({"start": start, "by": kept}).encode()).decode()

    def _kept(self) -> dict[str, str]:
        """The filters that a cursor carries."""
        cursor = self.query.get("cursor")
        found: dict[str, str] = json.loads(base64.urlsafe_b64decode(cursor))["by"] if cursor else {}
        return found

    def _filters(self) -> dict[str, str]:
        try:
            return {**self.query, **self._kept()}
        except (ValueError, KeyError, TypeError):
            raise Refused(400, "InvalidCursorError", "The cursor can't be read") from None

    def _limit(self) -> int:
        text = self.query.get("limit") or "50"
        if not text.isdigit() or not 1 <= int(text) <= 200:
            raise Refused(400, "InvalidRequestError", "Expected a number from 1 to 200",
                          kind="Query", field="limit")  # fmt: skip
        return int(text)

    def _idle(self, record: SessionRecord) -> None:
        if record.id in self.backend.running:
            raise Refused(409, "SessionBusyError", "The session is busy", sessionID=record.id)

    # -- the server and its places -------------------------------------------------------------

    @route("GET", "/api/info")
    def info(self) -> Wire:
        """Who answers."""
        paths = {"tmp": tempfile.gettempdir()}
        return {"version": VERSION, "pid": os.getpid(), "urls": [self.world.url], "paths": paths}

    @route("GET", "/api/location")
    def location(self) -> Wire:
        """Where it works."""
        here = self._here()
        return {"directory": here, "project": {"id": project_of(here), "directory": here}}

    @route("GET", "/api/model")
    def models(self) -> Wire:
        """The models; none yet where nothing was loaded."""
        known = sorted(MODELS) if self._here() in self.backend.warm else []
        return self._located([_model(provider, key) for provider, key in known])

    @route("GET", "/api/model/default")
    def default_model(self) -> Wire:
        """The configured model."""
        return self._located(_model("practice", "scripted"))

    @route("GET", "/api/agent")
    def agents(self) -> Wire:
        """The agents."""
        return self._located([_agent(name) for name in AGENTS])

    @route("GET", "/api/command")
    def commands(self) -> Wire:
        """The commands."""
        listed = [
            {"name": n, "description": c.get("description", "")}
            for n, c in self.world.commands.items()
        ]
        return self._located(listed)

    @route("GET", "/api/skill")
    def skills(self) -> Wire:
        """The skills."""
        path = f"{self._here()}/.opencode/skill/party/SKILL.md"
        text = "How to greet the guests of a party."
        skill = {"id": "party", "name": "party", "description": text, "path": path}
        return self._located([skill | {"content": text}])

    @route("GET", "/api/integration")
    def integrations(self) -> Wire:
        """The accounts that could be used; all else is loaded when this is answered."""
        self.backend.warm.add(self._here())
        method = {"type": "key", "id": "key", "label": "API key"}
        held = {"type": "env", "name": "PRACTICE_KEY"}
        return self._located(
            [{"id": "practice", "name": "Practice", "methods": [method], "connections": [held]}]
        )

    @route("GET", "/api/mcp")
    def mcp(self) -> Wire:
        """The MCP servers."""
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
        """The sessions that somebody works on."""
        return {"data": {key: {"type": "running"} for key in list(self.backend.running)}}

    @route("GET", "/api/session")
    def sessions(self) -> Wire:
        """Sessions, latest first."""
        by, limit = self._filters(), self._limit()
        listed = [r.info for r in self.backend.sessions.values() if _fits(r.info, by)]
        listed.sort(key=lambda i: i["time"]["updated"], reverse=by.get("order") != "asc")
        return self._page(listed, limit)

    @route("POST", "/api/session")
    def create(self) -> Wire:
        """A new session, or the one that has this id already."""
        known = self.backend.sessions.get(self.body.get("id") or "")
        if known is not None:
            return {"data": known.info}
        parent = self.body.get("parentID")
        above = self._session(parent) if parent else None
        place = (self.body.get("location") or {}).get("directory")
        directory = above.directory if above else place or str(self.world.directory)
        return {"data": self.backend.open(self.body, directory).info}

    @route("GET", "/api/session/:id")
    def session(self, key: str) -> Wire:
        """One session."""
        return {"data": self._session(key).info}

    @route("PATCH", "/api/session/:id")
    def patch(self, key: str) -> None:
        """Change what is known of a session."""
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
        """Delete a session and those below it."""
        record = self._session(key)
        for other in list(self.backend.sessions.values()):
            if other.info.get("parentID") == key:
                self.delete(other.id)
        if running := self.backend.running.get(key):
            running.interrupt("user")
            running.join(5)
        self.backend.publish("deleted", record)
        self.backend.sessions.pop(key, None)  # another one may have been quicker

    @route("POST", "/api/session/:id/fork")
    def fork(self, key: str) -> Wire:
        """A copy of a session, up to a message."""
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
        """Another agent from now on; its name is not checked."""
        self.backend.publish("agent.selected", self._session(key), agent=self.body["agent"])

    @route("POST", "/api/session/:id/model")
    def switch_model(self, key: str) -> None:
        """Another model from now on; its name is not checked."""
        self.backend.publish("model.selected", self._session(key), model=self.body["model"])

    @route("POST", "/api/session/:id/interrupt")
    def interrupt(self, key: str) -> Wire:
        """Stop what runs."""
        self._session(key)
        running = self.backend.running.get(key)
        if running is not None:
            running.interrupt("user", self.query.get("resume") == "true")
        return {"interrupted": running is not None}

    @route("POST", "/api/experimental/session/:id/wait")
    def wait(self, key: str) -> None:
        """Answer when nobody works on a session."""
        self._session(key)
        while (running := self.backend.running.get(key)) is not None:
            running.join(0.1)

    @route("PUT", "/api/session/:id/environment")
    def environment(self, key: str) -> None:
        """Other variables for shell commands."""
        self._session(key).environment = dict(self.body["variables"])

    @route("GET", "/api/experimental/session/:id/instructions/entries")
    def instructions(self, key: str) -> Wire:
        """What was added to the instructions."""
        entries = self._session(key).instructions
        return {"data": [{"key": k, "value": v} for k, v in entries.items()]}

    @route("PUT", "/api/experimental/session/:id/instructions/entries/:key")
    def put_instruction(self, key: str, name: str) -> None:
        """Add to the instructions."""
        self._session(key).instructions[name] = self.body["value"]

    @route("DELETE", "/api/experimental/session/:id/instructions/entries/:key")
    def delete_instruction(self, key: str, name: str) -> None:
        """Take from the instructions; also what isn't there."""
        self._session(key).instructions.pop(name, None)

    # -- messages and the inbox ----------------------------------------------------------------

    def _message(self, record: SessionRecord, message: str) -> Wire:
        found = next((r for r in record.rows if r["id"] == message), None)
        if found is None:
            raise Refused(404, "MessageNotFoundError", f"Message not found: {message}",
                          sessionID=record.id, messageID=message)  # fmt: skip
        return found

    @route("GET", "/api/session/:id/message")
    def messages(self, key: str) -> Wire:
        """The messages of a session."""
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
        """One message."""
        return {"data": self._message(self._session(key), message)}

    @route("POST", "/api/session/:id/prompt")
    def prompt(self, key: str) -> Wire:
        """Put a prompt into the inbox; the first of an id counts."""
        record, told = self._session(key), ("text", "files", "agents", "skills", "metadata")
        name = self.body.get("id") or self.backend.journal.ids.new("msg")
        if not re.match(r"^msg_", name):
            raise Refused(400, "InvalidRequestError", "Expected an id of a message", field="id")
        payload = {"text": self.body["text"]}
        payload |= {k: self.body[k] for k in told if self.body.get(k) is not None}
        if "files" in payload:
            payload["files"] = [_held(f) for f in payload["files"]]
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
        """Run a command. The answer says nothing of what it admitted."""
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
        record, name = (
            self._session(key),
            self.body.get("id") or self.backend.journal.ids.new("msg"),
        )
        delivery = self.body.get("delivery") or "steer"
        item = self.backend.enqueue(record, "compaction", {}, delivery, name)
        self.backend.wake(record)
        return {"data": item}

    @route("GET", "/api/session/:id/inbox")
    def inbox(self, key: str) -> Wire:
        """What waits."""
        record = self._session(key)
        return {"data": [receipt(record, name) for name in record.inbox]}

    @route("DELETE", "/api/session/:id/inbox/:item")
    def cancel(self, key: str, item: str) -> None:
        """Take something out of the inbox; also what isn't there any more."""
        record = self._session(key)
        with record.lock:
            if item in record.inbox:
                self.backend.publish("inbox.cancelled", record, inboxID=item)

    @route("PATCH", "/api/session/:id/inbox/:item")
    def deliver(self, key: str, item: str) -> None:
        """Deliver something otherwise."""
        record, delivery = self._session(key), self.body["delivery"]
        if item not in record.inbox:
            raise Refused(409, "ConflictError", "It is delivered already", resource=item)
        self.backend.publish("inbox.delivery.changed", record, inboxID=item, delivery=delivery)
        if delivery == "steer":
            self.backend.wake(record)

    # -- what changed --------------------------------------------------------------------------

    @route("GET", "/api/session/:id/diff")
    def diff(self, key: str) -> Wire:
        """What changed from one prompt on to the next end of a turn, or to another message."""
        record = self._session(key)
        rows = self._visible(record)
        start = self.query.get("from") or next((r["id"] for r in rows), None)
        if start is None:
            return {"data": []}
        self._message(record, start)
        rows = rows[[r["id"] for r in rows].index(start) :]
        ends = [n for n, r in enumerate(rows) if r["type"] == "idle"]
        steps = [r for r in rows[: ends[0] if ends else None] if "snapshot" in r]
        shots = [self.backend.snapshots[s] for r in steps for s in r["snapshot"].values()]
        return {"data": changes_between(shots[0], shots[-1]) if shots else []}

    @route("POST", "/api/session/:id/revert/stage")
    def revert(self, key: str) -> Wire:
        """Hide a message and all after it; put the files back if asked to."""
        record, message = self._session(key), self.body["messageID"]
        self._idle(record)
        self._message(record, message)
        rows = record.rows[[r["id"] for r in record.rows].index(message) :]
        before = next((r["snapshot"]["start"] for r in rows if "snapshot" in r), None)
        staged: Wire = {"messageID": message}
        if before is not None:
            here = self.backend.snapshot(record.directory) or before
            staged |= {"snapshot": here, "files": self._changed(before, here)}
            if self.body.get("files"):
                self._restore(record, here, before)
        record.info["revert"] = staged
        self.backend.publish("revert.staged", record, revert=staged)
        return {"data": staged}

    def _changed(self, before: str, after: str) -> list[Wire]:
        return changes_between(self.backend.snapshots[before], self.backend.snapshots[after])

    def _restore(self, record: SessionRecord, there: str, target: str) -> None:
        wanted = self.backend.snapshots[target]
        for change in self._changed(there, target):
            path = Path(record.directory) / change["file"]
            if change["file"] in wanted:
                path.write_text(wanted[change["file"]], encoding="utf-8")
            else:
                path.unlink(missing_ok=True)

    @route("DELETE", "/api/session/:id/revert")
    def unrevert(self, key: str) -> None:
        """Show again what was hidden, and put the files back."""
        record = self._session(key)
        self._idle(record)
        staged = record.info.pop("revert", None)
        if staged is None:
            return
        here = self.backend.snapshot(record.directory)
        if here is not None and "snapshot" in staged:
            self._restore(record, here, staged["snapshot"])
        self.backend.publish("revert.cleared", record)

    @route("POST", "/api/session/:id/revert/commit")
    def commit_revert(self, key: str) -> None:
        """Drop what was hidden."""
        record = self._session(key)
        self._idle(record)
        self._commit_revert(record)

    def _commit_revert(self, record: SessionRecord) -> None:
        if staged := record.info.get("revert"):
            record.rows = self._visible(record)
            del record.info["revert"]
            self.backend.publish("revert.committed", record, to=staged["messageID"])

    # -- what waits for a person ---------------------------------------------------------------

    def _asked(self, waiting: Mapping[str, PendingRequest], session: str | None) -> list[Wire]:
        here = self._here()
        found = [a.wire for a in list(waiting.values())]
        if session is not None:
            return [w for w in found if w["sessionID"] == session]
        return [w for w in found if self._session(w["sessionID"]).directory == here]

    @route("GET", "/api/permission/request")
    def permissions(self) -> Wire:
        """Permissions that wait in a place."""
        return self._located(self._asked(self.backend.permissions, None))

    @route("GET", "/api/session/:id/permission")
    def session_permissions(self, key: str) -> Wire:
        """Permissions that a session waits for."""
        return {"data": self._asked(self.backend.permissions, self._session(key).id)}

    @route("POST", "/api/session/:id/permission/:request/reply")
    def reply(self, key: str, request: str) -> None:
        """Decide a permission."""
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
        """What "always" saved."""
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
        """Take an "always" back."""
        self.backend.saved[:] = [s for s in self.backend.saved if s.id != key]

    @route("GET", "/api/form")
    def forms(self) -> Wire:
        """Forms that wait in a place."""
        return self._located(self._asked(self.backend.forms, None))

    @route("GET", "/api/session/:id/form")
    def session_forms(self, key: str) -> Wire:
        """Forms that a session waits for."""
        return {"data": self._asked(self.backend.forms, self._session(key).id)}

    @route("POST", "/api/session/:id/form")
    def ask(self, key: str) -> Wire:
        """A form of a client's own."""
        record, name = (
            self._session(key),
            self.body.get("id") or self.backend.journal.ids.new("frm"),
        )
        wire = {"id": name, "sessionID": record.id, "title": self.body["title"]}
        wire |= {"metadata": self.body.get("metadata") or {}, "fields": self.body["fields"]}
        self.backend.forms[name] = PendingRequest(wire)
        self.backend.journal.publish("form.created", {"form": wire}, record)
        return {"data": wire}

    @route("POST", "/api/session/:id/form/:form/reply")
    def answer(self, key: str, form: str) -> None:
        """Fill in a form."""
        asked, answer = self._form(form), self.body["answer"]
        for complaint in _complaints(asked.wire["fields"], answer):
            raise Refused(400, "FormInvalidAnswerError", complaint, id=form)
        told = {"id": form, "sessionID": key, "answer": answer}
        self._settle(key, form, "form.replied", told)
        asked.answer = answer
        asked.settled.set()

    @route("DELETE", "/api/session/:id/form/:form")
    def dismiss(self, key: str, form: str) -> None:
        """Cancel a form."""
        asked = self._form(form)
        self._settle(key, form, "form.cancelled", {"id": form, "sessionID": key})
        asked.cancelled, asked.message = True, self.query.get("message") or ""
        asked.settled.set()

    def _form(self, form: str) -> PendingRequest:
        asked = self.backend.forms.get(form)
        if asked is None:
            raise Refused(404, "FormNotFoundError", f"Form not found: {form}", id=form)
        return asked

    def _settle(self, key: str, form: str, kind: str, told: Wire) -> None:
        del self.backend.forms[form]
        self.backend.journal.publish(kind, told, self._session(key))

    # -- shells --------------------------------------------------------------------------------

    @route("GET", "/api/shell/:id/output")
    def output(self, key: str) -> Wire:
        """What a shell printed from a byte on."""
        shell = self.backend.shells.get(key)
        if shell is None:
            raise Refused(404, "ShellNotFoundError", f"Shell not found: {key}", id=key)
        whole, start = shell.output.read_bytes(), int(self.query.get("cursor") or 0)
        text = whole[start:].decode("utf-8", "ignore")
        told = {"output": text, "cursor": start + len(text.encode()), "size": len(whole)}
        return self._located(told | {"truncated": False})

    @route("POST", "/api/session/:id/shell")
    def run_shell(self, key: str) -> None:
        """A command of a person's own."""
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


def _held(file: Wire) -> Wire:
    """An attached file as the server keeps it: its bytes, whatever its address was."""
    head, _, content = file["uri"].partition(",")
    if not head.startswith("data:"):
        raise Refused(400, "InvalidRequestError", "The file can't be read", field="files")
    mime = head.removeprefix("data:").removesuffix(";base64")
    named = {"name": file["name"]} if file.get("name") else {}
    return {"data": content, "mime": mime, "source": {"type": "inline"}, **named}


def _fits(info: Wire, by: Mapping[str, str]) -> bool:
    wanted = {
        "directory": info["location"]["directory"],
        "project": info["projectID"],
        "parentID": info.get("parentID") or "null",
    }
    archived = "archived" in info["time"]
    return (
        all(by[k] == v for k, v in wanted.items() if k in by)
        and by.get("search", "").casefold() in (info.get("title") or "").casefold()
        and archived == (by.get("archived") == "true")
    )


def _model(provider: str, key: str) -> Wire:
    prices = dict.fromkeys(PRICES, 0.0) if key == "small" else PRICES
    cache = {"read": prices["cache_read"], "write": prices["cache_write"]}
    takes = ["text"] if key == "small" else ["text", "image"]
    return {
        "id": key,
        "modelID": key,
        "providerID": provider,
        "name": key.title(),
        "capabilities": {"tools": True, "input": takes, "output": ["text"]},
        "variants": [{"id": v} for v in ("low", "medium", "high")] if key == "scripted" else [],
        "time": {},
        "cost": [{"input": prices["input"], "output": prices["output"], "cache": cache}],
        "status": "active",
        "enabled": True,
        "limit": {"context": 200_000, "output": 8_192},
    }


def _agent(name: str) -> Wire:
    mode, description, rules = AGENTS[name]
    listed = [{"action": r.action, "resource": r.resource, "effect": r.effect} for r in rules]
    told = {"id": name, "name": name.title(), "description": description, "mode": mode}
    return told | {"request": {}, "hidden": False, "permissions": listed}


def _complaints(fields: list[Wire], answer: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the answers to a form."""
    known = {f["key"]: f for f in fields}
    yield from (f"Unknown form field: {key}" for key in answer if key not in known)
    for key, field in known.items():
        value, title = answer.get(key), field.get("title") or key
        if value is None:
            if field.get("required") and _counts(field, answer):
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


def _counts(field: Wire, answer: Mapping[str, Any]) -> bool:
    """Whether a field is asked, by what was said to others."""

    def holds(condition: Wire) -> bool:
        said = answer.get(condition["key"])
        is_so = condition["value"] in (said if isinstance(said, list) else [said])
        return is_so if condition["op"] == "eq" else not is_so

    return all(map(holds, field.get("when") or ()))


def _bounds(title: str, field: Wire, value: Any) -> Iterator[str]:
    size = value if isinstance(value, int | float) else len(value)
    least = next((field[k] for k in ("minimum", "minLength", "minItems") if k in field), size)
    most = next((field[k] for k in ("maximum", "maxLength", "maxItems") if k in field), size)
    if not isinstance(value, bool) and not least <= size <= most:
        yield f"{title}: expected {least} to {most}"
    if field.get("pattern") and not re.search(field["pattern"], str(value)):
        yield f"{title}: expected {field['pattern']}"
