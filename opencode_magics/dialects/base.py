"""The wire's edge: what a dialect is, and which one a server speaks.

An operation is a *flow*: a generator that yields `Request` values, is sent the `Reply` to each and
returns a value of the model. `Client` runs flows; a reply that says no is thrown into the flow as
a `StatusError`, which it may catch. No IO happens here. A generation of the server is one class;
what only that one knows stands in the files that bear its name.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from ..core.diffs import Diff
from ..core.events import Event
from ..core.model import (
    Agent,
    Attachment,
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
from ..errors import (
    AuthenticationError,
    NotFoundError,
    OpenCodeError,
    SessionBusyError,
    StatusError,
    StreamError,
    UnsupportedOperation,
    UnsupportedServerError,
)
from .values import as_list

logger = logging.getLogger(__name__)
T = TypeVar("T")
Query = Mapping[str, str | int | None]


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, without a server.

    Query values of None are left out. `timeout` is how many seconds the answer may take.
    """

    method: str
    path: str
    query: Query = field(default_factory=dict)
    body: Any = None
    timeout: float = 30.0

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def address(self) -> str:
        """What tells it from other requests: its query, too, in plain text."""
        query = "&".join(f"{k}={v}" for k, v in self.query.items() if v is not None)
        return f"{self}?{query}" if query else str(self)


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP reply; `request` is what it answers. Header names are lower case."""

    request: Request
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def json(self) -> Any:
        """The decoded body.

        Raises:
            StatusError: It is no JSON: an unknown path of 1.x answers 200 with a web page.
        """
        try:
            return loads(self.body.decode("utf-8", "replace"))
        except (ValueError, RecursionError) as error:
            kind = self.headers.get("content-type", "no content type")
            raise StatusError(
                f"{self.request} answered {kind} where JSON was expected.",
                "Check that the address is that of an OpenCode server, path included.",
                status=self.status,
            ) from error


Flow = Generator[Request, Reply, T]
Delivery = Literal["steer", "queue"]
Decoded = TypeVar("Decoded")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is sent to a session.

    Attributes:
        command: The name of a command that is given instead; `text` is what follows it.
        skills: Ids of skills that the agent is given with it (2.x).
        metadata: What stays with it on the server (2.x).
        delivery: How it joins a turn that runs: at its next step (2.x), or after it.
        resume: False only puts it into the inbox, where it waits until something wakes the
            session (2.x).
    """

    id: str
    text: str
    agent: str | None = None
    model: ModelRef | None = None
    files: tuple[Attachment, ...] = ()
    skills: tuple[str, ...] = ()
    metadata: Mapping[str, Any] | None = None
    delivery: Delivery | None = None
    resume: bool = True
    command: str | None = None


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What a 2.x session can be made with, besides its title and its directory.

    Attributes:
        id: The id that it gets; a session that has it already is returned as it is.
        parent: The session that it is below; it works in that one's directory.
        agent, model: Who answers. The server doesn't check the names.
        metadata: What stays with it on the server.
        rules: Permission rules of its own.
    """

    id: str | None = None
    parent: str | None = None
    agent: str | None = None
    model: ModelRef | None = None
    metadata: Mapping[str, Any] | None = None
    rules: tuple[Rule, ...] = ()


class EventPosition(NamedTuple):
    """An event's own id, and the number that a durable one has in its session."""

    id: str
    session: str = ""
    seq: int | None = None


class Dialect(Protocol):
    """What a server generation can be asked, and how its stream reads.

    Directories go to the server as it spells them. `silence` is how many seconds without a frame
    mean that the stream is dead; `always_scope` says how far an "always" reaches; `tested` says
    what this package was tested with, `tested_releases` the first and the last release that this
    is to stand for, `queue_hint` how a prompt can join a turn that runs, `busy_route` what is
    asked for the sessions that work, with `{directory}` where one is asked at a time,
    `command_keeps_prompt_id` whether the prompt that a server makes of a command gets the id that
    the command was given with, `reports_fork_source` whether a session names the one that it was
    copied from, `fork_cost_includes_copies` whether what a fork cost includes what the messages
    cost that were copied.
    """

    generation: str
    tested: str
    tested_releases: tuple[str, str]
    queue_hint: str
    busy_route: str
    command_keeps_prompt_id: bool
    reports_fork_source: bool
    fork_cost_includes_copies: bool
    silence: float
    always_scope: str

    def sessions(self, directory: str | None, *, project: bool) -> Flow[tuple[Session, ...]]:
        """All sessions of a directory, of its whole project, or (None) of the server."""

    def session(self, session: str) -> Flow[Session]:
        """One session."""

    def children(self, session: Session) -> Flow[tuple[Session, ...]]:
        """The subagent sessions directly below a session."""

    def create(self, directory: str | None, title: str | None) -> Flow[Session]:
        """A new session."""

    def messages(self, session: Session) -> Flow[tuple[Message, ...]]:
        """Every message of a session, oldest first."""

    def message_pages(self, session: Session) -> Flow[tuple[Reply, ...]]:
        """Every message of a session as the server sends them, in one reply or several."""

    def readable_messages(self, session: Session, pages: Sequence[Reply]) -> tuple[Message, ...]:
        """The messages in these replies, oldest first, as far as they can be read.

        What `messages` would fail on is left out and named in `Message.unread`.
        """

    def message(self, session: Session, message: str) -> Flow[Message]:
        """One message."""

    def latest_messages(self, session: Session, count: int) -> Flow[tuple[Message, ...]]:
        """The newest messages of a session, oldest first."""

    def diffs(self, session: Session, message: str | None) -> Flow[Diff]:
        """What changed in a session, or in the turn of one message."""

    def turn_diffs(self, session: Session, prompt: str) -> Flow[tuple[FileDiff, ...]]:
        """What the turn of a prompt changed, where the prompt itself doesn't tell."""

    def new_prompt_id(self, now: int) -> str:
        """An id for a prompt sent now (ms since the epoch)."""

    def check(self, prompt: Prompt) -> None:
        """Make sure that a prompt can be sent as it is.

        Raises:
            UnsupportedOperation: This generation doesn't know all that it says.
        """

    def prompt(self, session: Session, prompt: Prompt) -> Flow[None]:
        """Hand over a prompt; the answer comes on the stream."""

    def command(self, session: Session, prompt: Prompt) -> Flow[None]:
        """Give a session a command. May take until its turn is over; the stream tells of that."""

    def abort(self, session: Session) -> Flow[None]:
        """Ask a session to stop. Not a proof that it did."""

    def delete(self, session: Session) -> Flow[None]:
        """Delete a session and its subagents' sessions. Never one that is at work."""

    def archive(self, session: Session, at: int | None) -> Flow[None]:
        """Archive a session, as of `at` (ms since the epoch), or (None) bring it back."""

    def rename(self, session: Session, title: str) -> Flow[None]:
        """Give a session another title."""

    def set_metadata(self, session: Session, metadata: Mapping[str, Any]) -> Flow[None]:
        """Replace what stays with a session on the server."""

    def fork(self, session: Session, before: str | None) -> Flow[Session]:
        """A new session with a copy of the messages, of all or of those before one."""

    def revert(
        self, session: Session, message: str, files: bool = True
    ) -> Flow[tuple[FileDiff, ...]]:
        """Take a session and its files back to before a message; `unrevert` can undo it.

        Gives what the files lose, or (`files` is False: they stay) would lose, where the server
        tells.
        """

    def unrevert(self, session: Session) -> Flow[None]:
        """Bring back what a revert took away."""

    def commit_revert(self, session: Session) -> Flow[None]:
        """Let go of what a revert took away, for good."""

    def compact(self, session: Session, model: ModelRef) -> Flow[str | None]:
        """Have a session summed up, to make room.

        Gives None when that is done (1.x), or the id of the message that will tell it; 2.x takes
        the session's own model.
        """

    def todos(self, session: Session) -> Flow[tuple[Todo, ...]]:
        """The list that the session's agent keeps."""

    def share(self, session: Session) -> Flow[str | None]:
        """Make a session public; its address as read back, None where the session has none."""

    def unshare(self, session: Session) -> Flow[None]:
        """Take a session back from the public."""

    def statuses(self, directory: str) -> Flow[dict[str, Status]]:
        """The sessions of a directory that are not idle."""

    def pending_retry(self, session: Session) -> Flow[Status | None]:
        """The retry that a busy session waits for, where `statuses` doesn't tell."""

    def permissions(self, directory: str) -> Flow[tuple[Permission, ...]]:
        """Permissions that wait in a directory."""

    def questions(self, directory: str) -> Flow[tuple[Question, ...]]:
        """Questions that wait in a directory."""

    def reply(
        self, permission: Permission, directory: str, decision: Decision, message: str
    ) -> Flow[None]:
        """Decide a permission."""

    def answer(
        self, question: Question, directory: str, answers: Sequence[Sequence[str]]
    ) -> Flow[None]:
        """Answer a question, one list of labels or free texts per item."""

    def dismiss(self, question: Question, directory: str) -> Flow[None]:
        """Refuse to answer a question."""

    def models(self, directory: str | None) -> Flow[tuple[Model, ...]]:
        """The models of a directory; on 1.x this also warms the directory's instance."""

    def prices(self, directory: str | None) -> Flow[tuple[Model, ...]]:
        """The models of a directory with their prices; which is the default may not be said."""

    def agents(self, directory: str | None) -> Flow[tuple[Agent, ...]]:
        """The agents of a directory."""

    def commands(self, directory: str | None) -> Flow[tuple[Command, ...]]:
        """The commands of a directory."""

    def skills(self, directory: str | None) -> Flow[tuple[Skill, ...]]:
        """The skills of a directory."""

    def mcp(self, directory: str | None) -> Flow[tuple[McpServer, ...]]:
        """The MCP servers of a directory."""

    def add_mcp(self, directory: str | None, name: str, config: dict[str, Any]) -> Flow[None]:
        """Add an MCP server, until the server restarts."""

    def server_directory(self) -> Flow[str]:
        """The directory that the server itself runs in."""

    # What only one generation has; the others raise UnsupportedOperation.

    def create_with_options(
        self, directory: str | None, title: str | None, options: SessionOptions
    ) -> Flow[Session]:
        """A new session that is more than a title in a directory."""

    def inbox(self, session: Session) -> Flow[tuple[InboxItem, ...]]:
        """What waits to be delivered to a session, in the order in which it came."""

    def cancel(self, session: Session, item: str) -> Flow[bool]:
        """Take an item out of the inbox; False if an agent has it already."""

    def set_delivery(self, session: Session, item: str, delivery: Delivery) -> Flow[None]:
        """Change how an item of the inbox joins."""

    def interrupt(self, session: Session) -> Flow[bool]:
        """Stop what a session does and go on with what steers; False if nothing was at work."""

    def wait(self, session: Session, timeout: float) -> Flow[None]:
        """Wait until a session is idle, at most so many seconds."""

    def switch(
        self, session: Session, *, agent: str | None = None, model: ModelRef | None = None
    ) -> Flow[None]:
        """Give a session another agent or model."""

    def set_environment(self, session: Session, variables: dict[str, str]) -> Flow[None]:
        """Replace the environment variables of a session's shell commands."""

    def instructions(self, session: Session) -> Flow[dict[str, Any]]:
        """The instructions that were added to a session, by key."""

    def put_instruction(self, session: Session, key: str, value: Any) -> Flow[None]:
        """Tell a session's agent something, from its next step on."""

    def delete_instruction(self, session: Session, key: str) -> Flow[None]:
        """Take back what a session's agent was told."""

    def set_rules(self, session: Session, rules: Sequence[Rule]) -> Flow[None]:
        """Replace the permission rules of a session."""

    def saved_rules(self) -> Flow[tuple[SavedRule, ...]]:
        """What "always" saved."""

    def delete_saved_rule(self, rule: str) -> Flow[None]:
        """Take an "always" back."""

    def remove_mcp(self, directory: str | None, name: str) -> Flow[None]:
        """Take an MCP server away that was added."""

    def integrations(self, directory: str | None) -> Flow[tuple[Integration, ...]]:
        """The accounts that the server can use."""

    def shell_output(self, directory: str | None, shell: str, cursor: int) -> Flow[ShellOutput]:
        """What a shell printed from a byte on."""

    def log(self, session: str, after: int | None, follow: bool) -> Request:
        """The request for the durable events of a session, as a stream of frames."""

    def log_excerpt(self, log: str) -> str:
        """The part of a log, read as one reply, that `transcript` needs."""

    def log_entry(self, frame: Any) -> LogEntry | None:
        """A frame of a session's log as a line of it; None of one that is none."""

    def event_position(self, frame: Any) -> EventPosition | None:
        """Where a frame stands among the others, None where the server doesn't tell."""

    def stream(self, directory: str) -> Request:
        """The request that opens the event stream of a directory."""

    def events(self, frame: Any) -> Iterator[Event]:
        """Decode one frame. Unknown kinds yield nothing.

        Raises:
            StreamError: A known kind that can't be read.
        """


class BaseDialect:
    """What all have in common, and none of what only some have: a dialect overrides what it has."""

    generation = ""
    command_keeps_prompt_id = True
    reports_fork_source = False
    fork_cost_includes_copies = True

    def _missing(self, what: str) -> UnsupportedOperation:
        return UnsupportedOperation(
            f"OpenCode {self.generation} has no {what}; OpenCode 2.x has one.",
            "%oc_connect says which server answers.",
        )

    def new_prompt_id(self, now: int) -> str:
        """An id in the servers' own form: 48 bits of time and counter, then chance.

        Ids are global: 1.18.33 writes one that another session used into that session's message.
        """
        return f"msg_{(now * 4096 + 1) % 2**48:012x}{secrets.token_hex(7)}"

    def check(self, prompt: Prompt) -> None:
        """Make sure that a prompt can be sent as it is."""
        if prompt.delivery == "steer":
            raise self._missing("way to steer a turn that runs (--queue lines up behind it)")
        if prompt.skills or prompt.metadata or not prompt.resume:
            raise self._missing("prompt with skills, with metadata, or that only waits")

    def turn_diffs(self, session: Session, prompt: str) -> Flow[tuple[FileDiff, ...]]:
        """What the turn of a prompt changed: the prompt itself tells."""
        return ()
        yield

    def pending_retry(self, session: Session) -> Flow[Status | None]:
        """The retry that a busy session waits for: its status tells."""
        return None
        yield

    def create_with_options(
        self, directory: str | None, title: str | None, options: SessionOptions
    ) -> Flow[Session]:
        """A new session that is more than a title in a directory."""
        raise self._missing("session with an id, a parent, rules or metadata of one's own")

    def interrupt(self, session: Session) -> Flow[bool]:
        """Stop what a session does and go on with what steers."""
        raise self._missing("way to interrupt a turn and go on")

    def inbox(self, session: Session) -> Flow[tuple[InboxItem, ...]]:
        """What waits to be delivered to a session."""
        raise self._missing("inbox of a session")

    def cancel(self, session: Session, item: str) -> Flow[bool]:
        """Take an item out of the inbox."""
        raise self._missing("inbox of a session")

    def set_delivery(self, session: Session, item: str, delivery: Delivery) -> Flow[None]:
        """Change how an item of the inbox joins."""
        raise self._missing("inbox of a session")

    def wait(self, session: Session, timeout: float) -> Flow[None]:
        """Wait until a session is idle."""
        raise self._missing("way to wait for a session")

    def switch(
        self, session: Session, *, agent: str | None = None, model: ModelRef | None = None
    ) -> Flow[None]:
        """Give a session another agent or model."""
        raise self._missing("agent or model of a session apart from its prompts")

    def set_environment(self, session: Session, variables: dict[str, str]) -> Flow[None]:
        """Replace the environment variables of a session's shell commands."""
        raise self._missing("environment of a session")

    def instructions(self, session: Session) -> Flow[dict[str, Any]]:
        """The instructions that were added to a session."""
        raise self._missing("instructions of a session")

    def put_instruction(self, session: Session, key: str, value: Any) -> Flow[None]:
        """Tell a session's agent something."""
        raise self._missing("instructions of a session")

    def delete_instruction(self, session: Session, key: str) -> Flow[None]:
        """Take back what a session's agent was told."""
        raise self._missing("instructions of a session")

    def set_rules(self, session: Session, rules: Sequence[Rule]) -> Flow[None]:
        """Replace the permission rules of a session."""
        raise self._missing("way to replace the rules of a session")

    def saved_rules(self) -> Flow[tuple[SavedRule, ...]]:
        """What "always" saved."""
        raise self._missing('list of what an "always" saved')

    def delete_saved_rule(self, rule: str) -> Flow[None]:
        """Take an "always" back."""
        raise self._missing('way to take an "always" back')

    def remove_mcp(self, directory: str | None, name: str) -> Flow[None]:
        """Take an MCP server away."""
        raise self._missing("way to remove an MCP server")

    def integrations(self, directory: str | None) -> Flow[tuple[Integration, ...]]:
        """The accounts that the server can use."""
        raise self._missing("list of integrations")

    def shell_output(self, directory: str | None, shell: str, cursor: int) -> Flow[ShellOutput]:
        """What a shell printed from a byte on."""
        raise self._missing("output of a shell")

    def log(self, session: str, after: int | None, follow: bool) -> Request:
        """The request for the durable events of a session."""
        raise self._missing("log of a session")

    def log_excerpt(self, log: str) -> str:
        """The part of a log that `transcript` needs: none."""
        return ""

    def log_entry(self, frame: Any) -> LogEntry | None:
        """A frame of a session's log as a line of it: there is no log."""
        return None

    def event_position(self, frame: Any) -> EventPosition | None:
        """Where a frame stands among the others: nobody tells."""
        return None


def detect() -> Flow[tuple[Server, Dialect]]:
    """Find out what answers, by its own words: never by a status code alone.

    Raises:
        StatusError: A server that is starting (503).
        AuthenticationError: It wants a password, or another one.
        UnsupportedServerError: Nothing that answers is an OpenCode server; says what was tried.
    """
    from . import v1, v2

    tried: list[str] = []
    dialects: tuple[tuple[Callable[[], Flow[Server | None]], Callable[[], Dialect]], ...]
    dialects = ((v2.probe, v2.V2), (v1.probe, v1.V1))
    for probe, dialect in dialects:
        found = yield from _tried(probe(), tried)
        if found is not None:
            return found, dialect()
    raise UnsupportedServerError(
        f"No OpenCode server answers there. Tried: {'; '.join(tried)}.",
        "Check the address, path included; start a server with: opencode serve",
    )


def for_generation(generation: str) -> Dialect:
    """The dialect of a generation, as `Server.generation` names it.

    Raises:
        UnsupportedServerError: There is none.
    """
    from . import v1, v2

    known: dict[str, Callable[[], Dialect]] = {v1.V1.generation: v1.V1, v2.V2.generation: v2.V2}
    if generation not in known:
        raise UnsupportedServerError(
            f"Nothing here speaks to OpenCode {generation}; known are {' and '.join(known)}."
        )
    return known[generation]()


def _tried(probe: Flow[Server | None], tried: list[str]) -> Flow[Server | None]:
    """Run a probe and note what each of its requests brought."""
    reply: Reply | OpenCodeError | None = None
    try:
        request = next(probe)
        while True:
            try:
                reply = yield request
            except AuthenticationError:
                raise
            except StatusError as error:
                tried.append(f"{request} -> HTTP {error.status}")
                request = probe.throw(error)
            else:
                kind = reply.headers.get("content-type", "no content type").partition(";")[0]
                tried.append(f"{request} -> {reply.status} {kind}")
                request = probe.send(reply)
    except StopIteration as stop:
        found: Server | None = stop.value
        return found


def version_warning(server: Server, dialect: Dialect) -> str:
    """Where a server's version stands beside those that this package was tested for; "" if among.

    A version that doesn't begin with two numbers ("local") can't be compared.
    """
    first, last = (_release(text) for text in dialect.tested_releases)
    told = _release(server.version)
    if first and last and told and first <= told <= last:
        return ""
    return f"outside the tested {_span(*dialect.tested_releases)}"


def _release(version: str) -> tuple[int, int] | None:
    found = re.match(r"v?(\d{1,9})\.(\d{1,9})(?!\d)", version.strip())
    return (int(found[1]), int(found[2])) if found else None


def _span(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"


def json_object(reply: Reply) -> dict[str, Any] | None:
    """A reply's body if it is a JSON object, else None."""
    try:
        body = reply.json()
    except StatusError:
        return None
    return body if isinstance(body, dict) else None


# -- errors ----------------------------------------------------------------------------------------

_TODO = {
    400: "The server did not understand the request; is it of a tested version?",
    403: "This password may not do that.",
    500: "The reason stands in the server's log.",
    503: "The server is starting; try again in a moment.",
}


def error_from_reply(reply: Reply) -> StatusError:
    """What a reply that says no means, with the server's own reason in it."""
    name, reason, ref = _reason(json_object(reply) or {})
    kind, what, todo = _meaning(reply, reason)
    if ref:
        todo = f"{todo} Its reference is {ref}."
    return kind(what, todo, status=reply.status, name=name, reason=reason)


def _meaning(reply: Reply, reason: str) -> tuple[type[StatusError], str, str]:
    what = f"{reply.request} failed with HTTP {reply.status}" + (f": {reason}" if reason else ".")
    match reply.status:
        case 401:
            return (
                AuthenticationError,
                "The server wants a password, or another one than it got.",
                "Set OPENCODE_SERVER_PASSWORD to the password that the server was started with.",
            )
        case 404:
            return (
                NotFoundError,
                reason or what,
                "Was it deleted? %oc_sessions lists what is there.",
            )
        case 409:
            return SessionBusyError, reason or what, "Wait until it is idle, or stop its turn."
        case status if 300 <= status < 400:
            target = reply.headers.get("location", "elsewhere")
            what = f"{reply.request} was redirected to {target}."
            return StatusError, what, "Give the final address of the server."
        case status:
            return StatusError, what, _TODO.get(status, "")


def _reason(body: dict[str, Any]) -> tuple[str, str, str]:
    """Name, words and log reference of an error body.

    1.18.33 has three shapes: `{name, data: {message}}`, `{_tag, message}` and a bare `{_tag}`.
    """
    data = body.get("data")
    inner = data if isinstance(data, dict) else body
    name = body.get("name") or body.get("_tag") or body.get("code") or ""
    reason = inner.get("message") or ""
    return str(name), str(reason), str(inner.get("ref") or "")


# -- JSON ------------------------------------------------------------------------------------------


# Three times as fast as looking for the two texts.
_SURROGATE = re.compile(r"\\u[dD]")


def loads(text: str) -> Any:
    """Decode JSON, with lone halves of surrogate pairs made U+FFFD.

    Servers do send them (anomalyco/opencode#13988) and every later encoder would fail.
    """
    value = json.loads(text)
    return clean_json(value) if _SURROGATE.search(text) else value


def decode_frame(text: str) -> Any:
    """Decode a frame of an event stream.

    Raises:
        StreamError: It is no JSON.
    """
    try:
        return loads(text)
    except (ValueError, RecursionError) as error:
        raise StreamError(
            f"The server sent a frame that is no JSON ({error}).",
            "Does something else answer at this address?",
        ) from error


def dumps(value: Any) -> bytes:
    """Encode JSON, with lone surrogates made U+FFFD."""
    return clean_text(json.dumps(value, ensure_ascii=False)).encode()


def clean_text(text: str) -> str:
    """A text without lone surrogates; proper pairs become their character."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def clean_json(value: Any) -> Any:
    """A JSON value without lone surrogates."""
    match value:
        case str():
            return clean_text(value)
        case list():
            return [clean_json(v) for v in value]
        case dict():
            return {clean_text(k): clean_json(v) for k, v in value.items()}
        case _:
            return value


def decode_list(what: str, read: Callable[[Any], Decoded], values: Any) -> tuple[Decoded, ...]:
    """Read a list of wire values, as `decode` does."""
    return decode(what, lambda vs: tuple(read(v) for v in as_list(vs)), values)


def decode(what: str, read: Callable[[Any], Decoded], value: Any) -> Decoded:
    """Read a wire value, turning what is missing in it into a `StreamError` that names it."""
    try:
        return read(value)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise StreamError(
            f"The server sent {what} in a shape that can't be read ({type(error).__name__}: "
            f"{error}).",
            "Is it of a tested version? Please report it with the server's version.",
        ) from error
