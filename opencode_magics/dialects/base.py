"""The operations of an OpenCode server, declared once for every generation.

An operation is a *flow*: a generator that yields `Request` values, receives the `Reply` to each,
and returns a value of `core.model`. `Client.run` runs it, and throws the error of a failed request
into the flow, which may catch it. No I/O happens here. `Dialect` declares and documents each
operation, and raises UnsupportedOperation; the subclass for a generation implements those that it
supports.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

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
    McpServer,
    Message,
    Model,
    ModelRef,
    Permission,
    Question,
    Rule,
    SavedRule,
    Session,
    SessionEvent,
    ShellOutput,
    Skill,
    Status,
    Todo,
)
from ..errors import StatusError, UnsupportedOperation
from .jsonwire import loads

logger = logging.getLogger(__name__)
T = TypeVar("T")
Query = Mapping[str, str | int | None]


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, independent of a server.

    Query values of None are omitted. `timeout` is in seconds.
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
        """Method, path and query in plain text: the key of a reply in a recording."""
        query = "&".join(f"{k}={v}" for k, v in self.query.items() if v is not None)
        return f"{self}?{query}" if query else str(self)


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP reply to `request`. Header names are lower case."""

    request: Request
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def json(self) -> Any:
        """Decode the body.

        Raises:
            StatusError: It is not JSON: 1.x answers an unknown path with 200 and a web page.
        """
        try:
            return loads(self.body.decode("utf-8", "replace"))
        except (ValueError, RecursionError) as error:
            kind = self.headers.get("content-type", "no content type")
            raise StatusError(
                f"{self.request} returned {kind} instead of JSON.",
                "Check that the address, including its path, is that of an OpenCode server.",
                status=self.status,
            ) from error


Flow = Generator[Request, Reply, T]
Delivery = Literal["steer", "queue"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, or a command, for a session.

    Attributes:
        command: The name of a command to run instead; `text` is its arguments.
        skills: Ids of skills to give to the agent (2.x).
        metadata: Values that the server stores with it (2.x).
        delivery: How it joins a running turn: at the next step (2.x), or after the turn.
        resume: False only adds it to the inbox, without starting a turn (2.x).
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
    """Options of a new 2.x session, other than its title and directory.

    Attributes:
        id: The id to use; an existing session with this id is returned unchanged.
        parent: The parent session, whose directory the new session works in.
        agent, model: The agent and model that answer. The server doesn't check the names.
        metadata: Values that the server stores with the session.
        rules: The session's own permission rules.
    """

    id: str | None = None
    parent: str | None = None
    agent: str | None = None
    model: ModelRef | None = None
    metadata: Mapping[str, Any] | None = None
    rules: tuple[Rule, ...] = ()


class Dialect:
    """The wire protocol of one server generation: its operations and its event stream.

    Every operation raises UnsupportedOperation here. A subclass overrides those that its generation
    supports, with a docstring of its own only if there is more to say. Pass directories as the
    server spells them.

    Attributes:
        generation: Its name, "1.x" or "2.x".
        tested: The versions that this package was tested with, in words.
        tested_releases: The first and the last tested release.
        queue_hint: How a prompt can join a running turn, in words.
        busy_route: The route that lists busy sessions, with `{directory}` if it is per directory.
        command_keeps_prompt_id: Whether the prompt made from a command gets the command's id.
        reports_fork_source: Whether a session names the session that it was forked from.
        fork_cost_includes_copies: Whether the cost of a fork includes that of the copied messages.
        silence: Seconds without a frame after which a stream counts as dead.
        always_scope: The scope of an "always" reply, in words.
        actions: By tool or action, the action that permission rules name.
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
    actions: Mapping[str, str]

    def _unsupported(self, what: str, only: str = "") -> UnsupportedOperation:
        """Make the error for an unsupported operation.

        Args:
            what: The operation, as the object of "doesn't support".
            only: The generation that supports it, if any.
        """
        other = f"; OpenCode {only} does" if only else ""
        return UnsupportedOperation(
            f"OpenCode {self.generation} doesn't support {what}{other}.",
            "%oc_connect shows the server's version.",
        )

    # -- sessions ----------------------------------------------------------------------------

    def sessions(self, directory: str | None, *, project: bool) -> Flow[tuple[Session, ...]]:
        """List the sessions of a directory, of its project, or (None) of the whole server."""
        raise self._unsupported("lists of sessions")

    def session(self, session: str) -> Flow[Session]:
        """Return one session by its id."""
        raise self._unsupported("reading a session")

    def children(self, session: Session) -> Flow[tuple[Session, ...]]:
        """List the subagent sessions directly below a session."""
        raise self._unsupported("subagent sessions")

    def create(self, directory: str | None, title: str | None) -> Flow[Session]:
        """Create a session."""
        raise self._unsupported("new sessions")

    def create_with_options(
        self, directory: str | None, title: str | None, options: SessionOptions
    ) -> Flow[Session]:
        """Create a session with further options."""
        raise self._unsupported("creating a session with an id, a parent, rules or metadata", "2.x")

    def fork(self, session: Session, before: str | None = None) -> Flow[Session]:
        """Create a session with a copy of all messages, or of those before a message."""
        raise self._unsupported("forks")

    def rename(self, session: Session, title: str) -> Flow[None]:
        """Change a session's title."""
        raise self._unsupported("renaming a session")

    def archive(self, session: Session, at: int | None) -> Flow[None]:
        """Archive a session as of `at` (ms since the epoch), or (None) restore it."""
        raise self._unsupported("archiving a session")

    def set_metadata(self, session: Session, metadata: Mapping[str, Any]) -> Flow[None]:
        """Replace the metadata that the server stores with a session."""
        raise self._unsupported("metadata of a session")

    def set_rules(self, session: Session, rules: Sequence[Rule]) -> Flow[None]:
        """Replace a session's permission rules, which come after those of its agent."""
        raise self._unsupported("replacing a session's rules", "2.x")

    def delete(self, session: Session) -> Flow[None]:
        """Delete a session and its subagents' sessions. Never delete a busy one: stop it first."""
        raise self._unsupported("deleting a session")

    def share(self, session: Session) -> Flow[str | None]:
        """Publish a session; return its public address as read back, or None."""
        raise self._unsupported("publishing a session", "1.x")

    def unshare(self, session: Session) -> Flow[None]:
        """Withdraw a published session."""
        raise self._unsupported("publishing a session", "1.x")

    def compact(self, session: Session, model: ModelRef) -> Flow[str | None]:
        """Summarize a session to free context; 2.x uses the session's own model.

        Returns:
            None once it is done (1.x), or the id of the message that will contain the summary
            (2.x).
        """
        raise self._unsupported("compaction")

    def todos(self, session: Session) -> Flow[tuple[Todo, ...]]:
        """List the agent's todos in a session."""
        raise self._unsupported("lists of todos", "1.x")

    # -- messages and prompts ----------------------------------------------------------------

    def messages(self, session: Session) -> Flow[tuple[Message, ...]]:
        """List every message of a session, oldest first."""
        raise self._unsupported("lists of messages")

    def message_pages(self, session: Session) -> Flow[tuple[Reply, ...]]:
        """Return the replies that contain every message of a session, for `readable_messages`."""
        raise self._unsupported("lists of messages")

    def readable_messages(self, session: Session, pages: Sequence[Reply]) -> tuple[Message, ...]:
        """Decode the messages in these replies, oldest first, as far as possible.

        A value that can't be decoded is omitted and named in `Message.unread`; `messages` would
        raise an error instead.
        """
        raise self._unsupported("lists of messages")

    def message(self, session: Session, message: str) -> Flow[Message]:
        """Return one message by its id."""
        raise self._unsupported("reading a message")

    def latest_messages(self, session: Session, count: int) -> Flow[tuple[Message, ...]]:
        """List the newest messages of a session, oldest first."""
        raise self._unsupported("lists of messages")

    def diffs(self, session: Session, message: str | None = None) -> Flow[Diff]:
        """Return the changes of a session, or of the turn of a message (a prompt or an answer).

        Raises:
            NotFoundError: The session has no such message.
        """
        raise self._unsupported("diffs")

    def turn_diffs(self, session: Session, prompt: str) -> Flow[tuple[FileDiff, ...]]:
        """List the files that a turn changed; empty if the prompt message lists them itself."""
        return ()
        yield

    def new_prompt_id(self, now: int) -> str:
        """Make an id for a prompt sent at `now` (ms since the epoch).

        It has the form of the server's own ids: 48 bits of time and counter, then random digits.
        Ids are global: 1.18.33 overwrites another session's message that has the same id.
        """
        return f"msg_{(now * 4096 + 1) % 2**48:012x}{secrets.token_hex(7)}"

    def check(self, prompt: Prompt) -> None:
        """Check that this generation supports all options of a prompt.

        Raises:
            UnsupportedOperation: It doesn't support one of them.
        """
        if prompt.delivery == "steer":
            raise self._unsupported("steering a running turn (--queue lines up behind it)", "2.x")
        if prompt.skills or prompt.metadata or not prompt.resume:
            raise self._unsupported("skills, metadata or deferred start on a prompt", "2.x")

    def prompt(self, session: Session, prompt: Prompt) -> Flow[None]:
        """Send a prompt, once. The answer comes on the stream; open that first."""
        raise self._unsupported("prompts")

    def command(self, session: Session, prompt: Prompt) -> Flow[None]:
        """Run a command, once. The reply may come only after its turn; follow it on the stream."""
        raise self._unsupported("commands")

    def abort(self, session: Session) -> Flow[None]:
        """Ask a session to stop. Check `statuses` to confirm that it did."""
        raise self._unsupported("stopping a turn")

    def wait(self, session: Session, timeout: float = 600.0) -> Flow[None]:
        """Wait until a session is idle.

        Raises:
            ServerConnectionError: It isn't idle within `timeout` seconds.
        """
        raise self._unsupported("waiting for a session", "2.x")

    def switch(
        self, session: Session, *, agent: str | None = None, model: ModelRef | None = None
    ) -> Flow[None]:
        """Change a session's agent or model. The server doesn't check the names."""
        raise self._unsupported("changing a session's agent or model without a prompt", "2.x")

    # -- reverting ---------------------------------------------------------------------------

    def revert(
        self, session: Session, message: str, files: bool = True
    ) -> Flow[tuple[FileDiff, ...]]:
        """Return a session and its files to their state before a message; `unrevert` undoes it.

        Args:
            session: The session.
            message: The first message to revert.
            files: False leaves the files as they are (2.x).

        Returns:
            The file changes that are reverted, or would be, if the server reports them (2.x).

        Raises:
            SessionBusyError: The session is busy.
        """
        raise self._unsupported("reverting a session")

    def unrevert(self, session: Session) -> Flow[None]:
        """Undo a revert."""
        raise self._unsupported("reverting a session")

    def commit_revert(self, session: Session) -> Flow[None]:
        """Make a revert final: delete the reverted messages."""
        raise self._unsupported("making a revert final", "2.x")

    # -- a session's inbox, environment and instructions -------------------------------------

    def inbox(self, session: Session) -> Flow[tuple[InboxItem, ...]]:
        """List the undelivered items of a session, in order of arrival."""
        raise self._unsupported("the inbox of a session", "2.x")

    def cancel(self, session: Session, item: str) -> Flow[bool]:
        """Remove an item from the inbox; return False if it was already delivered."""
        raise self._unsupported("the inbox of a session", "2.x")

    def set_delivery(self, session: Session, item: str, delivery: Delivery) -> Flow[None]:
        """Deliver an item of the inbox at the next step (steer), or after the turn (queue)."""
        raise self._unsupported("the inbox of a session", "2.x")

    def set_environment(self, session: Session, variables: dict[str, str]) -> Flow[None]:
        """Replace the environment variables of a session's shell commands."""
        raise self._unsupported("environment variables of a session", "2.x")

    def instructions(self, session: Session) -> Flow[dict[str, Any]]:
        """Return the instructions that were added to a session, by key."""
        raise self._unsupported("instructions of a session", "2.x")

    def put_instruction(self, session: Session, key: str, value: Any) -> Flow[None]:
        """Add an instruction for a session's agent, effective from its next step."""
        raise self._unsupported("instructions of a session", "2.x")

    def delete_instruction(self, session: Session, key: str) -> Flow[None]:
        """Remove an instruction from a session."""
        raise self._unsupported("instructions of a session", "2.x")

    # -- states and pending requests ---------------------------------------------------------

    def statuses(self, directory: str) -> Flow[dict[str, Status]]:
        """Return the statuses of the sessions of a directory that are not idle, by id."""
        raise self._unsupported("session states")

    def permissions(self, directory: str) -> Flow[tuple[Permission, ...]]:
        """List the pending permissions of a directory."""
        raise self._unsupported("permissions")

    def questions(self, directory: str) -> Flow[tuple[Question, ...]]:
        """List the pending questions of a directory."""
        raise self._unsupported("questions")

    def reply(
        self, permission: Permission, directory: str, decision: Decision, message: str = ""
    ) -> Flow[None]:
        """Reply to a permission. "reject" stops the turn, unless it has a message to the agent.

        Raises:
            NotFoundError: It is no longer pending.
        """
        raise self._unsupported("permissions")

    def answer(
        self, question: Question, directory: str, answers: Sequence[Sequence[str]]
    ) -> Flow[None]:
        """Answer a question, with one list of option labels or free texts per item."""
        raise self._unsupported("questions")

    def dismiss(self, question: Question, directory: str, message: str = "") -> Flow[None]:
        """Refuse to answer a question; the turn stops."""
        raise self._unsupported("questions")

    def saved_rules(self) -> Flow[tuple[SavedRule, ...]]:
        """List the rules that "always" saved, for all projects."""
        raise self._unsupported('listing the rules that "always" saved', "2.x")

    def delete_saved_rule(self, rule: str) -> Flow[None]:
        """Delete a rule that "always" saved, by its id."""
        raise self._unsupported('deleting a rule that "always" saved', "2.x")

    # -- catalog of a directory --------------------------------------------------------------

    def models(self, directory: str | None) -> Flow[tuple[Model, ...]]:
        """List the models of a directory; on 1.x this also warms the directory's instance."""
        raise self._unsupported("lists of models")

    def prices(self, directory: str | None) -> Flow[tuple[Model, ...]]:
        """List the models of a directory with their prices, without looking up the default."""
        raise self._unsupported("prices of models")

    def agents(self, directory: str | None) -> Flow[tuple[Agent, ...]]:
        """List the agents of a directory, without hidden ones."""
        raise self._unsupported("lists of agents")

    def default_agent(self, directory: str | None) -> Flow[str]:
        """Return the agent of sessions that name none."""
        raise self._unsupported("naming the default agent")

    def commands(self, directory: str | None) -> Flow[tuple[Command, ...]]:
        """List the commands of a directory."""
        raise self._unsupported("lists of commands")

    def skills(self, directory: str | None) -> Flow[tuple[Skill, ...]]:
        """List the skills of a directory."""
        raise self._unsupported("lists of skills")

    def mcp(self, directory: str | None) -> Flow[tuple[McpServer, ...]]:
        """List the MCP servers of a directory and their states."""
        raise self._unsupported("lists of MCP servers")

    def add_mcp(self, directory: str | None, name: str, config: dict[str, Any]) -> Flow[None]:
        """Add an MCP server, until the OpenCode server restarts.

        Args:
            directory: The directory to add it to.
            name: The prefix of its tools.
            config: As in OpenCode's configuration: `{"type": "local", "command": [...]}` or
                `{"type": "remote", "url": ...}`.
        """
        raise self._unsupported("adding an MCP server")

    def remove_mcp(self, directory: str | None, name: str) -> Flow[None]:
        """Remove an MCP server that was added."""
        raise self._unsupported("removing an MCP server", "2.x")

    def integrations(self, directory: str | None) -> Flow[tuple[Integration, ...]]:
        """List the account types that the server supports, with their connected accounts."""
        raise self._unsupported("lists of integrations", "2.x")

    def shell_output(self, directory: str | None, shell: str, cursor: int = 0) -> Flow[ShellOutput]:
        """Return a shell's output from byte `cursor` on; the result has the next `cursor`."""
        raise self._unsupported("reading the output of a running shell", "2.x")

    def server_directory(self) -> Flow[str]:
        """Return the directory that the server itself runs in."""
        raise self._unsupported("naming its own directory")

    # -- streams -----------------------------------------------------------------------------

    def stream(self, directory: str) -> Request:
        """Return the request that opens the event stream of a directory."""
        raise self._unsupported("an event stream")

    def events(self, frame: Any) -> Iterator[Event]:
        """Decode one frame. Unknown kinds yield nothing.

        Raises:
            StreamError: A frame of a known kind can't be decoded.
        """
        raise self._unsupported("an event stream")

    def event_id(self, frame: Any) -> str:
        """Return the id of a frame, by which a repeated one is recognized; "" if it has none."""
        return ""

    def session_event(self, frame: Any) -> SessionEvent | None:
        """Decode a frame about what a session admits and does (2.x); None for other frames."""
        return None
