"""OpenCode 1.x: the `/session` API, as observed on 1.18.33.

Routes with a session id work in the session's own directory. All other routes, including replies to
permissions and questions, see only the directory that the request names. So every request carries
the directory as the server spells it. `v1_shapes` decodes the replies, `v1_events` the stream.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from ..core.diffs import Diff
from ..core.events import Event
from ..core.model import (
    Agent,
    Command,
    Decision,
    FileDiff,
    McpServer,
    Message,
    Model,
    ModelRef,
    Permission,
    Question,
    Server,
    Session,
    Skill,
    Status,
    Todo,
)
from ..errors import NotFoundError, StatusError, UnsupportedOperation, printable
from . import v1_events
from . import v1_shapes as shapes
from .base import Dialect, Flow, Prompt, Query, Reply, Request
from .jsonwire import decode, decode_list
from .replies import json_object
from .turn_diffs import TurnDiffs
from .v1_shapes import Wire
from .values import as_dict, as_list, string

# Without a limit, the server silently truncates the list at 100.
_ALL = 1_000_000
_PAGE = 1_000

# Seconds: a long session has a long list of messages.
_SLOW_REPLY = 120.0

# Seconds, for routes that reply only after the turn; a turn may take a day.
_TURN_TIMEOUT = 86_400.0


def probe() -> Flow[Server | None]:
    """Return the server if it is 1.x: then its health route returns JSON with a version."""
    try:
        body = json_object((yield Request("GET", "/global/health")))
    except StatusError:
        return None
    version = (body or {}).get("version")
    return Server("1.x", printable(version)) if isinstance(version, str) else None


logger = logging.getLogger(__name__)

# As 1.18.33 names them. All tools that change files ask for "edit".
_ACTIONS = {
    "bash": "bash",
    "doom_loop": "doom_loop",
    "edit": "edit",
    "external_directory": "external_directory",
    "glob": "glob",
    "grep": "grep",
    "lsp": "lsp",
    "plan_enter": "plan_enter",
    "plan_exit": "plan_exit",
    "question": "question",
    "read": "read",
    "skill": "skill",
    "task": "task",
    "todowrite": "todowrite",
    "webfetch": "webfetch",
    "websearch": "websearch",
    "write": "edit",
    "apply_patch": "edit",
}


class V1(Dialect):
    """The dialect of OpenCode 1.x."""

    generation = "1.x"
    tested = "the real 1.18.33"
    tested_releases = ("1.18", "1.18")
    queue_hint = "line up behind it with --queue"
    busy_route = "/session/status of {directory}"
    command_keeps_prompt_id = True
    reports_fork_source = False
    fork_cost_includes_copies = True
    silence = 30.0  # there is a heartbeat every 10 s
    always_scope = "for every session in this directory, until the server restarts"
    actions = _ACTIONS

    # -- sessions ----------------------------------------------------------------------------

    def sessions(self, directory: str | None, *, project: bool) -> Flow[tuple[Session, ...]]:
        if directory is None:
            return (yield from self._all_sessions())
        scope = "project" if project else None
        query: Query = {"directory": directory, "limit": _ALL, "scope": scope}
        try:
            listed = (yield Request("GET", "/session", query)).json()
        except StatusError as error:
            if error.status != 400:
                raise
            # One row that 1.18.33 can't validate spoils this list, but not that of all directories.
            everything = yield from self._all_sessions()
            logger.warning("%s The sessions of all directories were read instead.", error.what)
            return _within(everything, directory, project)
        return _unique(decode_list("a session", shapes.session, listed))

    def _all_sessions(self) -> Flow[tuple[Session, ...]]:
        # Only this route includes all directories. By default it hides archived sessions.
        found: list[Session] = []
        cursor: str | None = None
        seen: set[str] = set()
        while True:
            query: Query = {"archived": "true", "limit": _PAGE, "cursor": cursor}
            reply = yield Request("GET", "/experimental/session", query)
            found += decode_list("a session", shapes.session, reply.json())
            cursor = reply.headers.get("x-next-cursor")
            if not cursor or cursor in seen:
                return _unique(found)
            seen.add(cursor)

    def session(self, session: str) -> Flow[Session]:
        reply = yield Request("GET", _path(session))
        return decode("a session", shapes.session, reply.json())

    def children(self, session: Session) -> Flow[tuple[Session, ...]]:
        reply = yield Request("GET", _path(session.id, "children"), _scope(session.directory))
        return decode_list("a session", shapes.session, reply.json())

    def create(self, directory: str | None, title: str | None) -> Flow[Session]:
        body = {"title": title} if title else {}
        reply = yield Request("POST", "/session", _scope(directory), body)
        return decode("a session", shapes.session, reply.json())

    # -- messages and prompts ------------------------------------------------------------------

    def messages(self, session: Session) -> Flow[tuple[Message, ...]]:
        reply = yield from self._message_list(session)
        return decode_list("a message", shapes.message_with_parts, reply.json())

    def message_pages(self, session: Session) -> Flow[tuple[Reply, ...]]:
        return ((yield from self._message_list(session)),)

    def readable_messages(self, session: Session, pages: Sequence[Reply]) -> tuple[Message, ...]:
        listed = (w for page in pages for w in decode("messages", as_list, page.json()))
        return tuple(shapes.readable_message(w, session.id) for w in listed)

    def _message_list(self, session: Session) -> Flow[Reply]:
        # Older 1.x servers find a session only in its own directory, and reply 404 elsewhere.
        path = _path(session.id, "message")
        try:
            return (yield Request("GET", path, _scope(session.directory), timeout=_SLOW_REPLY))
        except NotFoundError:
            home = yield from self.session(session.id)
            return (yield Request("GET", path, _scope(home.directory), timeout=_SLOW_REPLY))

    def message(self, session: Session, message: str) -> Flow[Message]:
        path = _path(session.id, "message", message)
        reply = yield Request("GET", path, _scope(session.directory))
        return decode("a message", shapes.message_with_parts, reply.json())

    def latest_messages(self, session: Session, count: int) -> Flow[tuple[Message, ...]]:
        query = {**_scope(session.directory), "limit": count}
        reply = yield Request("GET", _path(session.id, "message"), query)
        return decode_list("a message", shapes.message_with_parts, reply.json())

    # -- diffs -----------------------------------------------------------------------------------

    def diffs(self, session: Session, message: str | None = None) -> Flow[Diff]:
        """Return the changes of a session, or of the turn of a message.

        1.18.33 has no total for a session, but each prompt lists the changes of its turn. Outside
        of git the list is empty; then the edit tools' own reports are used, including those of
        subagents. Reverted turns are omitted.
        """
        prompt, listed = None, None
        if message is not None:
            found = yield from self.message(session, message)
            prompt = found.id if found.role == "user" else found.parent or found.id
            # The route garbles names with quotes or non-ASCII letters; the prompt does not.
            if found.diffs:
                return Diff.of(((prompt, d) for d in found.diffs), "turns", session.directory)
        query = {**_scope(session.directory), "messageID": prompt}
        reply = yield Request("GET", _path(session.id, "diff"), query)
        with suppress(StatusError):  # no such route
            listed = reply.json()
        if diffs := shapes.diffs(listed):
            changes = [(prompt or "", d) for d in diffs]
            return Diff.of(changes, "turns" if prompt else "session", session.directory)
        turns = yield from self._turns(session, prompt)
        diff = yield from self._diff_of(session, turns)
        if diff is None:
            return Diff((), "turns" if isinstance(listed, list) else "nothing")
        return diff

    def _turns(self, session: Session, prompt: str | None) -> Flow[dict[str, tuple[Wire, ...]]]:
        """Read the turn of a prompt, or all turns that were not reverted, by prompt id."""
        path = _path(session.id, "message")
        body = (yield Request("GET", path, _scope(session.directory))).json()
        turns = decode("messages", shapes.turns, body)
        if prompt is not None:
            return {prompt: turns.get(prompt, ())}
        now = json_object((yield Request("GET", _path(session.id)))) or {}
        return shapes.turns_before(turns, (now.get("revert") or {}).get("messageID"))

    def _diff_of(self, session: Session, turns: Mapping[str, Sequence[Wire]]) -> Flow[Diff | None]:
        def reported(prompt: str, messages: Sequence[Wire]) -> Flow[Sequence[FileDiff]]:
            return shapes.prompt_diffs(messages)
            yield

        def messages(child: str) -> Flow[Sequence[Wire]]:
            path = _path(child, "message")
            body = (yield Request("GET", path, _scope(session.directory))).json()
            return decode("messages", as_list, body)

        return TurnDiffs(reported, shapes.tool_edits, messages).collect(session, turns)

    def prompt(self, session: Session, prompt: Prompt) -> Flow[None]:
        """Send a prompt, without `tools`: those would replace the session's rules."""
        body: Wire = {"messageID": prompt.id, "parts": [shapes.file_part(f) for f in prompt.files]}
        body["parts"].append({"type": "text", "text": prompt.text})
        if prompt.agent:
            body["agent"] = prompt.agent
        if prompt.model:
            body["model"] = {"providerID": prompt.model.provider, "modelID": prompt.model.id}
            if prompt.model.variant:
                body["variant"] = prompt.model.variant
        path = _path(session.id, "prompt_async")
        yield Request("POST", path, _scope(session.directory), body)

    def command(self, session: Session, prompt: Prompt) -> Flow[None]:
        """Run a command; the reply comes after its turn.

        The server turns it into a prompt with our id. For a `subtask` command, that prompt contains
        only the subagent's call; the agent's comment on it answers a later synthetic prompt.
        """
        body: Wire = {"messageID": prompt.id, "command": prompt.command, "arguments": prompt.text}
        if prompt.agent:
            body["agent"] = prompt.agent
        if prompt.model:
            body["model"] = f"{prompt.model.provider}/{prompt.model.id}"
            if prompt.model.variant:
                body["variant"] = prompt.model.variant
        path = _path(session.id, "command")
        yield Request("POST", path, _scope(session.directory), body, timeout=_TURN_TIMEOUT)

    def abort(self, session: Session) -> Flow[None]:
        """Ask a session to stop. The reply is true even for an idle or unknown session."""
        path = _path(session.id, "abort")
        yield Request("POST", path, _scope(session.directory), {}, timeout=5.0)

    # -- changing a session ----------------------------------------------------------------------

    def delete(self, session: Session) -> Flow[None]:
        """Delete a session and its subagents' sessions.

        Never delete a busy session: 1.18.33 continues its turn, fails to store it, and retries
        forever.
        """
        yield Request("DELETE", _path(session.id), _scope(session.directory))

    def archive(self, session: Session, at: int | None) -> Flow[None]:
        """Archive a session, or restore it by sending 0: null is ignored (1.18.33)."""
        yield from self._patched(session, {"time": {"archived": at or 0}})

    def rename(self, session: Session, title: str) -> Flow[None]:
        yield from self._patched(session, {"title": title})

    def set_metadata(self, session: Session, metadata: Mapping[str, Any]) -> Flow[None]:
        """Replace the values that the server stores with a session; a fork copies them."""
        yield from self._patched(session, {"metadata": dict(metadata)})

    def _patched(self, session: Session, body: Wire) -> Flow[None]:
        yield Request("PATCH", _path(session.id), _scope(session.directory), body)

    def fork(self, session: Session, before: str | None = None) -> Flow[Session]:
        """Create a session with a copy of the messages; an unknown `before` copies all of them."""
        body = {"messageID": before} if before else {}
        reply = yield from self._posted(session, "fork", body)
        return decode("a session", shapes.session, reply.json())

    def revert(
        self, session: Session, message: str, files: bool = True
    ) -> Flow[tuple[FileDiff, ...]]:
        """Revert a session and its files; an unknown message is silently ignored."""
        if not files:
            raise self._unsupported("reverting messages without their files", "2.x")
        yield from self._posted(session, "revert", {"messageID": message})
        return ()

    def unrevert(self, session: Session) -> Flow[None]:
        yield from self._posted(session, "unrevert", {})

    def commit_revert(self, session: Session) -> Flow[None]:
        """Raise an error: on 1.x, the next prompt makes a revert final."""
        raise UnsupportedOperation(
            "OpenCode 1.x doesn't support making a revert final.",
            "The next prompt to the session makes it final: it deletes the reverted messages.",
        )
        yield  # makes this a generator, like the other flows

    def _posted(self, session: Session, action: str, body: Wire) -> Flow[Reply]:
        path = _path(session.id, action)
        return (yield Request("POST", path, _scope(session.directory), body, timeout=_SLOW_REPLY))

    def compact(self, session: Session, model: ModelRef) -> Flow[str | None]:
        """Summarize a session; the reply comes when it is done."""
        body = {"providerID": model.provider, "modelID": model.id}
        path = _path(session.id, "summarize")
        yield Request("POST", path, _scope(session.directory), body, timeout=_TURN_TIMEOUT)
        return None

    def todos(self, session: Session) -> Flow[tuple[Todo, ...]]:
        reply = yield Request("GET", _path(session.id, "todo"), _scope(session.directory))
        return decode_list("a todo", shapes.todo, reply.json())

    def share(self, session: Session) -> Flow[str | None]:
        """Publish a session. If sharing is disabled, 1.18.33 replies 500 without a reason."""
        yield Request("POST", _path(session.id, "share"), _scope(session.directory), {})
        reply = yield Request("GET", _path(session.id))
        return string(as_dict((json_object(reply) or {}).get("share")).get("url")) or None

    def unshare(self, session: Session) -> Flow[None]:
        yield Request("DELETE", _path(session.id, "share"), _scope(session.directory))

    # -- a directory's state ---------------------------------------------------------------------

    def statuses(self, directory: str) -> Flow[dict[str, Status]]:
        """Return statuses by session id. Without a directory, an empty reply proves nothing."""
        reply = yield Request("GET", "/session/status", _scope(directory), timeout=5.0)
        return decode("statuses", shapes.statuses, reply.json())

    def permissions(self, directory: str) -> Flow[tuple[Permission, ...]]:
        reply = yield Request("GET", "/permission", _scope(directory), timeout=5.0)
        return decode_list("a permission", shapes.permission, reply.json())

    def questions(self, directory: str) -> Flow[tuple[Question, ...]]:
        reply = yield Request("GET", "/question", _scope(directory), timeout=5.0)
        return decode_list("a question", shapes.question, reply.json())

    def reply(
        self, permission: Permission, directory: str, decision: Decision, message: str = ""
    ) -> Flow[None]:
        body = {"reply": decision} | ({"message": message} if message else {})
        path = f"/permission/{quote(permission.id, safe='')}/reply"
        yield Request("POST", path, _scope(directory), body)

    def answer(
        self, question: Question, directory: str, answers: Sequence[Sequence[str]]
    ) -> Flow[None]:
        path = f"/question/{quote(question.id, safe='')}/reply"
        yield Request("POST", path, _scope(directory), {"answers": [list(a) for a in answers]})

    def dismiss(self, question: Question, directory: str, message: str = "") -> Flow[None]:
        if message:
            raise self._unsupported("a message with a dismissed question", "2.x")
        path = f"/question/{quote(question.id, safe='')}/reject"
        yield Request("POST", path, _scope(directory), {})

    def models(self, directory: str | None) -> Flow[tuple[Model, ...]]:
        """List the models of a directory.

        `/config/providers` also warms the directory's instance: an abort sent to a cold instance
        breaks it until it is disposed of. Its `default` is not the configured model; `/config` has
        that.
        """
        body = (yield Request("GET", "/config/providers", _scope(directory))).json()
        config = (yield Request("GET", "/config", _scope(directory))).json()
        return decode("models", lambda b: tuple(shapes.models(b, config.get("model"))), body)

    def prices(self, directory: str | None) -> Flow[tuple[Model, ...]]:
        """List the models with one request, without looking up the default."""
        body = (yield Request("GET", "/config/providers", _scope(directory))).json()
        return decode("models", lambda b: tuple(shapes.models(b, None)), body)

    def agents(self, directory: str | None) -> Flow[tuple[Agent, ...]]:
        reply = yield Request("GET", "/agent", _scope(directory))
        return decode("agents", shapes.agents, reply.json())

    def default_agent(self, directory: str | None) -> Flow[str]:
        config = as_dict((yield Request("GET", "/config", _scope(directory))).json())
        return string(config.get("default_agent")) or "build"

    def commands(self, directory: str | None) -> Flow[tuple[Command, ...]]:
        reply = yield Request("GET", "/command", _scope(directory))
        return decode_list("a command", shapes.command, reply.json())

    def skills(self, directory: str | None) -> Flow[tuple[Skill, ...]]:
        return decode_list(
            "a skill", shapes.skill, (yield Request("GET", "/skill", _scope(directory))).json()
        )

    def mcp(self, directory: str | None) -> Flow[tuple[McpServer, ...]]:
        body = (yield Request("GET", "/mcp", _scope(directory))).json()
        return decode("MCP servers", shapes.mcp_servers, body)

    def add_mcp(self, directory: str | None, name: str, config: dict[str, Any]) -> Flow[None]:
        yield Request("POST", "/mcp", _scope(directory), {"name": name, "config": config})

    def server_directory(self) -> Flow[str]:
        body = (yield Request("GET", "/path")).json()
        return decode("paths", lambda b: str(b["directory"]), body)

    # -- the stream ------------------------------------------------------------------------------

    def stream(self, directory: str) -> Request:
        return Request("GET", "/event", _scope(directory))

    def events(self, frame: Any) -> Iterator[Event]:
        return v1_events.events(frame)


def _path(*parts: str) -> str:
    return "/session/" + "/".join(quote(p, safe="") for p in parts)


def _scope(directory: str | None) -> Query:
    return {"directory": directory or None}


def _within(sessions: Sequence[Session], directory: str, project: bool) -> tuple[Session, ...]:
    """The sessions of a directory, or of the whole project that it belongs to."""
    here = [s for s in sessions if s.directory == directory]
    projects = {s.project for s in here if s.project not in (None, "global")} if project else set()
    return tuple(s for s in sessions if s in here or s.project in projects)


def _unique(sessions: Iterable[Session]) -> tuple[Session, ...]:
    return tuple({s.id: s for s in sessions}.values())
