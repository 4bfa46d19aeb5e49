"""A client for one OpenCode server, of whichever generation: the only place with network IO.

`Client` runs the flows of a dialect on one `httpx.Client`; `Stream` reads events in a thread that
only puts them into a queue. What may be repeated is repeated (GET), what may have been received is
not sent again (everything else).
"""

from __future__ import annotations

import copy
import ipaddress
import json
import queue
import re
import socket
import threading
import time
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import httpx_sse

from ..core import retry_safety
from ..core.diffs import Diff
from ..core.events import Event
from ..core.model import (
    Agent,
    Command,
    Decision,
    FileDiff,
    InboxItem,
    Integration,
    LogEntry,
    McpServer,
    Message,
    Model,
    ModelRef,
    Permission,
    Question,
    Rule,
    SavedRule,
    Server,
    Session,
    ShellOutput,
    Skill,
    Status,
    Todo,
)
from ..dialects import base
from ..dialects.base import (
    Delivery,
    Dialect,
    EventPosition,
    Flow,
    Prompt,
    Reply,
    Request,
    SessionOptions,
)
from ..errors import (
    AuthenticationError,
    OpenCodeError,
    ServerConnectionError,
    StatusError,
    StreamError,
    TurnInterrupted,
)

T = TypeVar("T")
Tap = Callable[[str, int, bytes], None]
U = TypeVar("U")
DEFAULT_PORT = 4096
DEFAULT_USER = "opencode"

_WAITS = (0.2, 0.6)  # seconds before a GET is tried again
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
_NAP = 0.03
_CONNECT = 10.0  # seconds until a connection stands, and until a stream has begun
_STEADY = 5.0  # seconds after which a stream has been one
_SHORT = 6  # characters
_WORDY = 12  # characters of letters alone: a name or a word
_CALLED = rb"(?i:passw[\w.-]{0,40}[\"'\\\s]{0,8}[=:][\"'\\\s]{0,8}|://[^\s/:@\"']{0,100}:)"
_REMEMBERED = 64  # events; one that is sent twice is sent soon again


class Secret(str):
    """A password that doesn't show itself, not even among the variables of a traceback."""

    def __repr__(self) -> str:
        return "'********'"


class Client:
    """A synchronous client for one server.

    Args:
        url: Its address; a path is kept (`http://hub/user/ana/proxy/4096`), a bare host or
            `host:port` will do.
        directory: The directory to work in; None takes the server's own.
        password: For HTTP basic authentication; None for a server without.
        user: The user name that goes with it, unless the address names one.

    Raises:
        ServerConnectionError: The address can't be used.

    Whatever asks the server raises ServerConnectionError if no answer comes, StatusError if the
    server says no (NotFoundError of what it doesn't have), StreamError if its answer can't be read,
    and UnsupportedOperation if its generation can't do that; what asks first also raises
    UnsupportedServerError if no OpenCode answers. What else a method raises stands there.

    Nothing is sent until something is asked. Safe to use from several threads; close it when done
    or use it in a `with` statement.
    """

    def __init__(
        self,
        url: str,
        *,
        directory: str | None = None,
        password: str | None = None,
        user: str = DEFAULT_USER,
    ) -> None:
        parsed = parse_url(url)
        user = parsed.username or user
        if parsed.password and not password:
            password = Secret(parsed.password)
        parsed = parsed.copy_with(username=None, password=None)
        self.url = str(parsed).rstrip("/")
        self.local = is_loopback(parsed.host)
        self._directory = directory
        self._auth = httpx.BasicAuth(user, password) if password else None
        self._masks = _masks(user, password)
        self._http = _http(parsed, self._auth, self.local)
        self._tap: Tap | None = None
        self._original: Client | None = None  # of which this is a twin

    def __repr__(self) -> str:
        return f"<Client {self}>"

    def __str__(self) -> str:
        known = self.__dict__.get("_detected")
        version = f"OpenCode {known[0].version} at " if known else ""
        doubt = (
            f"{base.version_warning(*known)}: " if known and base.version_warning(*known) else ""
        )
        tested = f" ({doubt}tested with {known[1].tested})" if known else ""
        where = f", directory {self._directory}" if self._directory else ""
        return f"{version}{self.url}{where}{tested}"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the server. Streams end by their own `close`."""
        self._http.close()

    def with_tap(self, tap: Tap) -> Client:
        """The same client, which also tells `tap` what it reads: request, HTTP status and body."""
        twin = copy.copy(self)
        twin._tap, twin._original = tap, self
        return twin

    # -- who answers -----------------------------------------------------------------------------

    @property
    def server(self) -> Server:
        """What answers at the address; asked once.

        Raises:
            ServerConnectionError: Nothing answers.
            AuthenticationError: A password is missing or wrong.
            UnsupportedServerError: It is no server that this package speaks to.
        """
        return self._detected[0]

    def check(self) -> None:
        """Make sure now that the server answers, and learn where it works; raises like `server`.

        Of a version that nobody tested it warns in the log.
        """
        _ = self.server, self.directory
        if doubt := base.version_warning(*self._detected):
            base.logger.warning(
                "OpenCode %s is %s: what it sends may be misread. This package was tested with %s.",
                self.server.version, doubt, self.dialect.tested,
            )  # fmt: skip

    @property
    def dialect(self) -> Dialect:
        """How it is spoken to."""
        return self._detected[1]

    @cached_property
    def _detected(self) -> tuple[Server, Dialect]:
        return self._original._detected if self._original else self.run(base.detect())

    @property
    def directory(self) -> str:
        """The directory to work in, in the server's spelling."""
        if self._directory is None:
            self._directory = self.run(self.dialect.server_directory())
        return self._directory

    # -- running flows ---------------------------------------------------------------------------

    def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end: send what it yields, send it what comes back."""
        written: Request | None = None
        try:
            request = next(flow)
            while True:
                try:
                    reply = self._ask(request)
                except OpenCodeError as error:
                    request = flow.throw(error)
                else:
                    written = request if request.method != "GET" else written
                    request = flow.send(reply)
        except StopIteration as stop:
            value: T = stop.value
            return value
        except OpenCodeError as error:
            if written is not None and error.resend is None:
                error.resend = retry_safety.assess_unreadable_reply(str(written))
            raise

    def _ask(self, request: Request) -> Reply:
        reply = self._send(request)
        if self._tap is not None and request.method == "GET":
            self._tap(request.address, reply.status, reply.body)
        if reply.status >= 300:
            error = base.error_from_reply(reply)
            if request.method != "GET":
                error.resend = retry_safety.assess_refusal(str(request), reply.status)
            raise error
        return reply

    def _send(self, request: Request) -> Reply:
        """Send once; a GET up to three times, since reading twice changes nothing."""
        waits = _WAITS if request.method == "GET" else ()
        for wait in (*waits, None):
            try:
                response = self._http.send(self._build(request))
            except httpx.RequestError as error:
                # Who did not answer in time is not asked again in vain.
                if wait is None or isinstance(error, httpx.TimeoutException):
                    raise self._unreachable(request, error) from error
            except KeyboardInterrupt:
                # Frames of httpcore have the password among their variables (%xmode Verbose).
                raise self._stopped(request) from None
            else:
                if wait is None or response.status_code not in (502, 503, 504):
                    return self._reply(request, response)
            time.sleep(wait)
        raise AssertionError("the last round returns or raises")

    def _stopped(self, request: Request) -> KeyboardInterrupt:
        """What an interrupt means for what was being asked."""
        if request.method == "GET":
            return KeyboardInterrupt()
        stands = retry_safety.assess_unanswered_request(str(request), sent=True)
        stopped = TurnInterrupted(f"Stopped before the server said that it was done. {stands}")
        stopped.resend = stands
        return stopped

    def _reply(self, request: Request, response: httpx.Response) -> Reply:
        headers = {k.lower(): v for k, v in response.headers.items()}
        return Reply(request, response.status_code, headers, self._masked(response.content))

    def _masked(self, body: bytes) -> bytes:
        """What came without the server's password: an agent's shell can print it (`env`)."""
        for before, secret in self._masks:
            if before and secret.encode() in body:
                pattern = rb"(" + before + rb")" + re.escape(secret.encode())
                body = re.sub(pattern, rb"\1********", body)
            elif not before:
                body = body.replace(secret.encode(), b"********")
        return body

    def _masked_text(self, text: str) -> str:
        if not self._masks:  # of thousands of frames none is copied twice for nothing
            return text
        return self._masked(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def _build(self, request: Request, patience: float | None = None) -> httpx.Request:
        return self._http.build_request(
            request.method,
            request.path,
            params={k: v for k, v in request.query.items() if v is not None},
            content=None if request.body is None else base.dumps(request.body),
            headers={} if request.body is None else {"content-type": "application/json"},
            timeout=httpx.Timeout(patience or request.timeout, connect=_CONNECT),
        )

    def _unreachable(self, request: Request, error: httpx.RequestError) -> ServerConnectionError:
        sent = not isinstance(error, _NOT_SENT)
        if sent:
            what = f"The connection to {self.url} broke during {request} ({reason(error)})."
            todo = "Is the server still running?"
        else:
            what = f"No server answers at {self.url} ({reason(error)})."
            todo = (
                "Start one with %oc_start, or `opencode serve` in a terminal; "
                "another address goes to %oc_connect URL."
            )
        told = ServerConnectionError(what, todo, sent=sent)
        if request.method != "GET":
            told.resend = retry_safety.assess_unanswered_request(str(request), sent=sent)
        return told

    # -- what can be asked -----------------------------------------------------------------------

    def sessions(
        self, directory: str | None = None, *, project: bool = True, everywhere: bool = False
    ) -> tuple[Session, ...]:
        """Sessions, latest first, archived ones and subagents' included.

        Args:
            directory: Where; None takes the client's directory.
            project: Of the whole project that the directory belongs to.
            everywhere: Of all directories that the server knows.
        """
        where = None if everywhere else (directory or self.directory)
        return self.run(self.dialect.sessions(where, project=project))

    def session(self, session: str) -> Session:
        """One session by its id, wherever it lives."""
        return self.run(self.dialect.session(session))

    def children(self, session: Session) -> tuple[Session, ...]:
        """The subagent sessions directly below a session."""
        return self.run(self.dialect.children(session))

    def create(
        self,
        title: str | None = None,
        directory: str | None = None,
        options: SessionOptions | None = None,
    ) -> Session:
        """A new session in a directory (default: the client's).

        Raises:
            UnsupportedOperation: Options, which only 2.x has.
        """
        where = directory or self.directory
        if options is None:
            return self.run(self.dialect.create(where, title))
        return self.run(self.dialect.create_with_options(where, title, options))

    def messages(self, session: Session) -> tuple[Message, ...]:
        """Every message of a session, oldest first."""
        return self.run(self.dialect.messages(session))

    def message_pages(self, session: Session) -> tuple[Reply, ...]:
        """Every message of a session as the server sends them, for `transcript`."""
        return self.run(self.dialect.message_pages(session))

    def readable_messages(
        self, session: Session, pages: Sequence[Reply] | None = None
    ) -> tuple[Message, ...]:
        """Every message of a session, oldest first, as far as it can be read.

        Args:
            session: Whose.
            pages: What the server sent already, if it was asked before.
        """
        return self.dialect.readable_messages(
            session, self.message_pages(session) if pages is None else pages
        )

    def message(self, session: Session, message: str) -> Message:
        """One message of a session."""
        return self.run(self.dialect.message(session, message))

    def latest_messages(self, session: Session, count: int) -> tuple[Message, ...]:
        """The newest messages of a session, oldest first."""
        return self.run(self.dialect.latest_messages(session, count))

    def diffs(self, session: Session, message: str | None = None) -> Diff:
        """What changed in a session, or in the turn of one message (the prompt's or an answer's).

        Raises:
            NotFoundError: The session has no such message.
        """
        return self.run(self.dialect.diffs(session, message))

    def turn_diffs(self, session: Session, prompt: str) -> tuple[FileDiff, ...]:
        """What the turn of a prompt changed, where the prompt itself doesn't tell (2.x)."""
        return self.run(self.dialect.turn_diffs(session, prompt))

    def prompt(self, session: Session, prompt: Prompt) -> None:
        """Hand over a prompt, once. The answer comes on the stream; open that first."""
        self.run(self.dialect.prompt(session, prompt))

    def command(self, session: Session, prompt: Prompt) -> None:
        """Give a session a command, once.

        On 1.x this takes until its turn is over. On 2.x until it is admitted, and nothing comes
        back: `commands.give` finds out what it admitted.
        """
        self.run(self.dialect.command(session, prompt))

    def abort(self, session: Session) -> None:
        """Ask a session to stop. No proof that it did: watch `statuses`."""
        self.run(self.dialect.abort(session))

    def delete(self, session: Session) -> None:
        """Delete a session and its subagents'. Not while it works: `control.end` stops it first."""
        self.run(self.dialect.delete(session))

    def archive(self, session: Session, at: int | None) -> None:
        """Archive a session as of `at` (ms since the epoch), or bring it back (None)."""
        self.run(self.dialect.archive(session, at))

    def rename(self, session: Session, title: str) -> None:
        """Give a session another title."""
        self.run(self.dialect.rename(session, title))

    def set_metadata(self, session: Session, metadata: Mapping[str, Any]) -> None:
        """Replace what stays with a session on the server."""
        self.run(self.dialect.set_metadata(session, metadata))

    def fork(self, session: Session, before: str | None = None) -> Session:
        """A new session with a copy of all messages, or of those before one."""
        return self.run(self.dialect.fork(session, before))

    def revert(self, session: Session, message: str, *, files: bool = True) -> tuple[FileDiff, ...]:
        """Take a session and its files back to before a message.

        Args:
            session: Which.
            message: The first one that is taken back.
            files: False leaves the files as they are (2.x).

        Returns:
            What the files lose, or would lose if they didn't stay, where the server tells (2.x).

        Raises:
            SessionBusyError: It is at work.
            UnsupportedOperation: Files that are to stay, on 1.x.
        """
        return self.run(self.dialect.revert(session, message, files))

    def unrevert(self, session: Session) -> None:
        """Bring back what a revert took away."""
        self.run(self.dialect.unrevert(session))

    def commit_revert(self, session: Session) -> None:
        """Let go of what a revert took away, for good.

        Raises:
            UnsupportedOperation: On 1.x, where the next prompt does it.
        """
        self.run(self.dialect.commit_revert(session))

    def compact(self, session: Session, model: ModelRef) -> str | None:
        """Have a session summed up; None when that is done, else the message that will tell it."""
        return self.run(self.dialect.compact(session, model))

    def todos(self, session: Session) -> tuple[Todo, ...]:
        """The list that a session's agent keeps."""
        return self.run(self.dialect.todos(session))

    def share(self, session: Session) -> str | None:
        """Make a session public; its address, None if the server doesn't tell one."""
        return self.run(self.dialect.share(session))

    def unshare(self, session: Session) -> None:
        """Take a session back from the public."""
        self.run(self.dialect.unshare(session))

    def statuses(self, directory: str | None = None) -> dict[str, Status]:
        """The sessions of a directory that are not idle, by id."""
        return self.run(self.dialect.statuses(directory or self.directory))

    def pending_retry(self, session: Session) -> Status | None:
        """The retry that a busy session waits for, where `statuses` doesn't tell (2.x)."""
        return self.run(self.dialect.pending_retry(session))

    def permissions(self, directory: str | None = None) -> tuple[Permission, ...]:
        """Permissions that wait in a directory."""
        return self.run(self.dialect.permissions(directory or self.directory))

    def questions(self, directory: str | None = None) -> tuple[Question, ...]:
        """Questions that wait in a directory."""
        return self.run(self.dialect.questions(directory or self.directory))

    def reply(
        self, permission: Permission, directory: str, decision: Decision, message: str = ""
    ) -> None:
        """Decide a permission that waits in a directory.

        Raises:
            NotFoundError: It doesn't wait any more.
        """
        self.run(self.dialect.reply(permission, directory, decision, message))

    def answer(self, question: Question, directory: str, answers: Sequence[Sequence[str]]) -> None:
        """Answer a question: per item a list of option labels or free texts."""
        self.run(self.dialect.answer(question, directory, answers))

    def dismiss(self, question: Question, directory: str) -> None:
        """Refuse to answer a question."""
        self.run(self.dialect.dismiss(question, directory))

    def models(self, directory: str | None = None) -> tuple[Model, ...]:
        """The models that can be used in a directory."""
        return self.run(self.dialect.models(directory or self.directory))

    def prices(self, directory: str | None = None) -> tuple[Model, ...]:
        """The models of a directory, for their prices alone: `default` is not known."""
        return self.run(self.dialect.prices(directory or self.directory))

    def agents(self, directory: str | None = None) -> tuple[Agent, ...]:
        """The agents that can be named in a directory."""
        return self.run(self.dialect.agents(directory or self.directory))

    def commands(self, directory: str | None = None) -> tuple[Command, ...]:
        """The commands that a session in a directory can be given."""
        return self.run(self.dialect.commands(directory or self.directory))

    def skills(self, directory: str | None = None) -> tuple[Skill, ...]:
        """The skills that agents in a directory can read."""
        return self.run(self.dialect.skills(directory or self.directory))

    def mcp(self, directory: str | None = None) -> tuple[McpServer, ...]:
        """The MCP servers of a directory, and how they stand."""
        return self.run(self.dialect.mcp(directory or self.directory))

    def add_mcp(self, name: str, config: dict[str, Any], directory: str | None = None) -> None:
        """Add an MCP server to a directory, until the server restarts.

        Args:
            name: What its tools begin with.
            config: As in OpenCode's configuration: `{"type": "local", "command": [...]}` or
                `{"type": "remote", "url": ...}`.
            directory: Where; None takes the client's.
        """
        self.run(self.dialect.add_mcp(directory or self.directory, name, config))

    # -- what only 2.x has: UnsupportedOperation elsewhere ----------------------------------------

    def remove_mcp(self, name: str, directory: str | None = None) -> None:
        """Take an MCP server away that was added."""
        self.run(self.dialect.remove_mcp(directory or self.directory, name))

    def integrations(self, directory: str | None = None) -> tuple[Integration, ...]:
        """The accounts that the server can use, and those that it has."""
        return self.run(self.dialect.integrations(directory or self.directory))

    def inbox(self, session: Session) -> tuple[InboxItem, ...]:
        """What waits to be delivered to a session, in the order in which it came."""
        return self.run(self.dialect.inbox(session))

    def cancel(self, session: Session, item: str) -> bool:
        """Take an item out of a session's inbox; False if an agent has it already."""
        return self.run(self.dialect.cancel(session, item))

    def interrupt(self, session: Session) -> bool:
        """Stop what a session does and go on with the prompts that steer; False if it was idle."""
        return self.run(self.dialect.interrupt(session))

    def set_delivery(self, session: Session, item: str, delivery: Delivery) -> None:
        """Let an item of the inbox join at the next step (steer), or after the turn (queue)."""
        self.run(self.dialect.set_delivery(session, item, delivery))

    def wait(self, session: Session, timeout: float = 600.0) -> None:
        """Wait until a session is idle.

        Raises:
            ServerConnectionError: It isn't within `timeout` seconds.
        """
        self.run(self.dialect.wait(session, timeout))

    def switch(
        self, session: Session, *, agent: str | None = None, model: ModelRef | None = None
    ) -> None:
        """Give a session another agent or model. The server doesn't check the names."""
        self.run(self.dialect.switch(session, agent=agent, model=model))

    def set_environment(self, session: Session, variables: dict[str, str]) -> None:
        """Replace the environment variables of a session's shell commands."""
        self.run(self.dialect.set_environment(session, variables))

    def instructions(self, session: Session) -> dict[str, Any]:
        """The instructions that were added to a session, by key."""
        return self.run(self.dialect.instructions(session))

    def put_instruction(self, session: Session, key: str, value: Any) -> None:
        """Tell a session's agent something, from its next step on."""
        self.run(self.dialect.put_instruction(session, key, value))

    def delete_instruction(self, session: Session, key: str) -> None:
        """Take back what a session's agent was told."""
        self.run(self.dialect.delete_instruction(session, key))

    def set_rules(self, session: Session, rules: Sequence[Rule]) -> None:
        """Replace the permission rules of a session; they come after those of its agent."""
        self.run(self.dialect.set_rules(session, rules))

    def saved_rules(self) -> tuple[SavedRule, ...]:
        """What "always" saved, for all projects."""
        return self.run(self.dialect.saved_rules())

    def delete_saved_rule(self, rule: str) -> None:
        """Take an "always" back, by the id of what it saved."""
        self.run(self.dialect.delete_saved_rule(rule))

    def shell_output(
        self, shell: str, cursor: int = 0, directory: str | None = None
    ) -> ShellOutput:
        """What a shell printed from a byte on; go on from the `cursor` that comes back."""
        return self.run(self.dialect.shell_output(directory or self.directory, shell, cursor))

    def log(
        self, session: Session, after: int | None = None, follow: bool = False
    ) -> Iterator[Event]:
        """The durable events of a session.

        Args:
            session: Whose.
            after: Only those with a higher number.
            follow: Go on with what comes, until the iteration is given up.
        """
        for data in self.frames(self.dialect.log(session.id, after, follow)):
            yield from self.dialect.events(base.decode_frame(data))

    def log_entries(self, session: Session, after: int | None = None) -> tuple[LogEntry, ...]:
        """The lines of a session's log as it is now, all or those with a higher number."""
        frames = self.frames(self.dialect.log(session.id, after, False))
        lines = (self.dialect.log_entry(base.decode_frame(data)) for data in frames)
        return tuple(line for line in lines if line is not None)

    def frames(self, request: Request) -> Iterator[str]:
        """The frames of an event stream that ends, or is given up.

        Raises:
            StatusError: The server has no such stream.
            ServerConnectionError: The connection broke.
        """
        built = self._build(request, self.dialect.silence)
        built.headers["accept"] = "text/event-stream"
        try:
            response = self._http.send(built, stream=True)
            try:
                if response.status_code >= 300:
                    response.read()
                    raise base.error_from_reply(self._reply(request, response))
                for sse in httpx_sse.EventSource(response).iter_sse():
                    yield self._masked_text(sse.data)
            finally:
                response.close()
        except httpx.HTTPError as error:
            what = f"The connection to {self.url} broke during {request} ({reason(error)})."
            raise ServerConnectionError(what, "Is the server still running?") from error

    def stream(
        self, directory: str | None = None, tap: Callable[[str], None] | None = None
    ) -> Stream:
        """Start to read the events of a directory; each frame goes to `tap` as well, as it came."""
        return Stream(self, directory or self.directory, tap)


# -- the event stream ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connected:
    """The stream stands. What happened before is not told again."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The stream broke; it is opened again until it is closed.

    `refused` means that nothing listens there any more.
    """

    reason: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class StreamProblem:
    """The stream can't be had (`fatal`), or one frame of it can't be read."""

    error: OpenCodeError
    fatal: bool = False


StreamItem = Event | Connected | Disconnected | StreamProblem


class Stream:
    """The events of one directory, as they come.

    A daemon thread reads and decodes; whoever owns the stream takes from it. It reconnects with
    backoff by itself and says so (`Lost`, then `Opened`), since the gap is not repeated. Of the
    `sessions` it then tells what they wrote down meanwhile, where the server numbers that (2.x);
    nothing is told twice.
    """

    def __init__(
        self, client: Client, directory: str, tap: Callable[[str], None] | None = None
    ) -> None:
        self._client = client
        self._tap = tap
        self._request = client.dialect.stream(directory)
        self._queue: queue.SimpleQueue[StreamItem] = queue.SimpleQueue()
        self.sessions: frozenset[str] = frozenset()
        self._told = _Told()
        self._closing = threading.Event()
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._read, name="opencode-stream", daemon=True)
        self._thread.start()

    def take(self, timeout: float) -> list[StreamItem]:
        """All that has come; waits up to `timeout` seconds for the first.

        The nap lets a burst gather: a long answer then costs a third less CPU.
        """
        heard: list[StreamItem] = []
        with suppress(queue.Empty):
            heard.append(self._queue.get(timeout=timeout))
            time.sleep(_NAP)
            while True:
                heard.append(self._queue.get_nowait())
        return heard

    def next(self, timeout: float) -> StreamItem | None:
        """What came first; None if nothing does within `timeout` seconds.

        What came behind it stays, for who takes.
        """
        with suppress(queue.Empty):
            return self._queue.get(timeout=timeout)
        return None

    def close(self) -> None:
        """End the reader at once, by shutting its socket down.

        Closing the HTTP client instead took 9 s to end a read that was under way (httpx 0.28.1).
        """
        self._closing.set()
        held = self._socket  # the reader lets go of it at any time
        if held is not None:
            with suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=2.0)

    def _read(self) -> None:
        wait, stood = 0.25, False
        while not self._closing.is_set():
            began = time.monotonic()
            try:
                for item in self._connection():
                    self._queue.put(item)
                    stood = True
                lost = Disconnected("the server ended the stream")
            except httpx.HTTPError as error:
                lost = Disconnected(reason(error), refused="refused" in str(error).lower())
            except OpenCodeError as error:
                if not stood:
                    self._queue.put(StreamProblem(error, fatal=True))
                    return
                lost = Disconnected(error.what)
            except RuntimeError:
                if not self._client._http.is_closed:
                    raise
                self._queue.put(Disconnected("the client was closed"))
                return
            if not self._closing.is_set():
                self._queue.put(lost)
            self._closing.wait(wait)
            # A stream that ends as soon as it began is not opened ever faster.
            wait = 0.25 if time.monotonic() - began > _STEADY else min(wait * 2, 4.0)

    def _connection(self) -> Iterator[StreamItem]:
        """One connection from its opening to its end."""
        dialect = self._client.dialect
        request = self._client._build(self._request, _CONNECT)
        request.headers["accept"] = "text/event-stream"
        response = self._client._http.send(request, stream=True)
        # Its head comes soon or not at all: a request that meets 1.18.33 as it begins to listen is
        # never answered. Between frames there may be silence.
        request.extensions["timeout"]["read"] = dialect.silence
        try:
            self._check(response)
            self._socket = response.extensions["network_stream"].get_extra_info("socket")
            if self._closing.is_set():
                return
            yield Connected()
            yield from self._missed()
            for sse in httpx_sse.EventSource(response).iter_sse():
                text = self._client._masked_text(sse.data)
                if self._tap is not None:
                    self._tap(text)
                yield from _decoded(dialect, text, self._told.news)
        finally:
            self._socket = None
            response.close()

    def _missed(self) -> Iterator[StreamItem]:
        """What the sessions wrote down since they were last heard."""
        for session in self.sessions & self._told.numbers.keys():
            request = self._client.dialect.log(session, self._told.numbers[session], False)
            try:
                for data in self._client.frames(request):
                    yield from _decoded(self._client.dialect, data, self._told.news)
            except OpenCodeError:
                continue  # the messages tell, which are read after every gap

    def _check(self, response: httpx.Response) -> None:
        if response.status_code in (502, 503, 504):
            raise httpx.ReadError(f"HTTP {response.status_code}")
        if response.status_code != 200:
            response.read()
            raise base.error_from_reply(self._client._reply(self._request, response))
        kind = response.headers.get("content-type", "no content type")
        if "text/event-stream" not in kind:
            raise StreamError(
                f"{self._request} answered {kind} where an event stream was expected.",
                "Does a proxy stand between? It has to let event streams through.",
            )


class _Told:
    """What was told already: events by their ids, durable ones by their numbers."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self._ids: deque[str] = deque(maxlen=_REMEMBERED)

    def news(self, place: EventPosition | None) -> bool:
        """Whether an event is new; it isn't any more after that."""
        if place is None:
            return True
        if place.id in self._ids or self._passed(place):
            return False
        self._ids.append(place.id)
        if place.seq is not None:
            self.numbers[place.session] = place.seq
        return True

    def _passed(self, place: EventPosition) -> bool:
        return place.seq is not None and place.seq <= self.numbers.get(place.session, -1)


def _decoded(
    dialect: Dialect, data: str, news: Callable[[EventPosition | None], bool]
) -> Iterator[StreamItem]:
    try:
        frame = base.decode_frame(data)
        if news(dialect.event_position(frame)):
            yield from dialect.events(frame)
    except StreamError as error:
        yield StreamProblem(error)


# -- what a result can do without ------------------------------------------------------------------


def log_warning(what: str) -> None:
    """Warn in the log."""
    base.logger.warning("%s", what)


def optional(
    ask: Callable[[], T], default: U, warn: Callable[[str], object] = log_warning
) -> T | U:
    """What makes a result richer and isn't the result: `default`, where the server fails at it.

    Args:
        ask: The call.
        default: What stands for its answer then: nothing known.
        warn: Is told why; the log by default.

    Raises:
        AuthenticationError: That is wrong for everything.
        ServerConnectionError: So is that.
    """
    try:
        return ask()
    except AuthenticationError:
        raise
    except (StatusError, StreamError) as error:
        warn(error.what)
        return default


# -- addresses and transport -----------------------------------------------------------------------


def parse_url(text: str) -> httpx.URL:
    """The address of a server; a bare host gets http and port 4096.

    Raises:
        ServerConnectionError: It is no address of a server.
    """
    text = text.strip()
    if "://" not in text:
        text = _with_scheme(text)
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError) as error:
        # What is wrong may be a password: one with a slash in it is taken for a port.
        why = "it can't be read" if "@" in text else str(error)
        raise _bad_url(text, why) from (None if "@" in text else error)
    if url.port is not None and not 0 < url.port < 65536:
        raise _bad_url(text, "its port is out of range")
    if url.scheme not in ("http", "https") or not url.host:
        raise _bad_url(text, "it needs http:// or https:// and a host")
    if url.query or url.fragment:
        raise _bad_url(text, "leave out what follows ? or #")
    return url.copy_with(path=url.path.rstrip("/") + "/")


def _with_scheme(host: str) -> str:
    """A bare host, host:port or IPv6 address as a URL."""
    bare, slash, path = host.partition("/")
    with suppress(ValueError):
        if ipaddress.ip_address(bare.strip("[]")).version == 6:
            bare = f"[{bare.strip('[]')}]"
    has_port = bare.rpartition(":")[2].isdigit() and not bare.endswith("]")
    return f"http://{bare}{'' if has_port else f':{DEFAULT_PORT}'}{slash}{path}"


def _bad_url(text: str, why: str) -> ServerConnectionError:
    # A password may stand before an @; what is shown begins after it.
    shown = text.rpartition("@")[2]
    return ServerConnectionError(
        f"{shown!r} is no address of a server: {why}.",
        "Write it like http://127.0.0.1:4096",
        sent=False,
    )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, as far as its name says."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    with suppress(ValueError):
        address = ipaddress.ip_address(host.strip("[]"))
        return address.is_loopback or address.is_unspecified
    return False


def _http(url: httpx.URL, auth: httpx.Auth | None, local: bool) -> httpx.Client:
    """The transport: no proxy and no compression to this machine, the environment's beyond it."""
    headers = {"accept-encoding": "identity"} if local else {}
    try:
        return httpx.Client(
            base_url=url,
            auth=auth,
            headers=headers,
            trust_env=not local,
            verify=url.scheme == "https",  # else 25 ms go into certificates that nobody asks for
        )
    except (httpx.InvalidURL, ValueError) as error:
        # httpx 0.28.1 can't read "[::1]" or "fd12::/64" in NO_PROXY.
        raise ServerConnectionError(
            f"The proxy settings of this environment can't be read: {error}.",
            "Look at HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY.",
            sent=False,
        ) from error


def _masks(user: str, password: str | None) -> tuple[tuple[bytes, Secret], ...]:
    """What would give a password away, each with what has to stand before it: b"" if nothing.

    It is looked for as it is, as it stands in JSON and in an address, and in a header. One that may
    stand anywhere by chance is hidden only where it is called one: a directory without it would be
    another one, and a server says of any directory that nothing is at work there.
    """
    if not password:
        return ()
    by_chance = len(password) < _SHORT or (len(password) < _WORDY and password.isalpha())
    before = _CALLED if by_chance else b""
    written = (json.dumps(password, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))
    header = b64encode(f"{user}:{password}".encode()).decode()
    forms = dict.fromkeys((*written, password, quote(password, safe="")))
    told = tuple((before, Secret(text)) for text in forms)
    return (*told, (b"", Secret(header))) if len(password) >= _SHORT else told


def reason(error: Exception) -> str:
    """What a transport error says, or its kind where it says nothing."""
    text: Any = str(error)
    return text or type(error).__name__
