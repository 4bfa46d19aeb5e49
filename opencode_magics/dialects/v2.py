"""OpenCode 2.x: the `/api` surface of 2.0 to 2.2.

A prompt, its item in the inbox and its stored message have one id; one execution may serve several
prompts. What the answers hold is read by `v2_shapes`, what the stream says by `v2_events`. Names
that no release is known to use are passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import quote

from ..core import questions
from ..core.diffs import Diff, source_of
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
    PriceTier,
    Question,
    QuestionItem,
    Rule,
    SavedRule,
    Server,
    Session,
    ShellOutput,
    Skill,
    Status,
    Todo,
    ToolCall,
)
from ..errors import NotFoundError, OpenCodeError, StatusError, StreamError, UnsupportedOperation
from . import v2_events
from . import v2_shapes as shapes
from .base import (
    BaseDialect,
    EventPosition,
    Flow,
    Prompt,
    Query,
    Reply,
    Request,
    SessionOptions,
    decode,
    decode_list,
    json_object,
    loads,
    logger,
)
from .base import decode_frame as read_frame
from .v2_shapes import Wire
from .values import (
    as_dict,
    as_list,
    file_diffs,
    integer,
    number,
    required_string,
    string,
    timestamp,
)

_CALLBACK = 3_600.0  # seconds: the template of a command may run shell commands first
_PAGE = 200  # the most that a list of messages takes
_FEW = 4  # rows in which the step that is open stands
_BUSY = Status("busy")


def probe() -> Flow[Server | None]:
    """The server, if it is of 2.x: only if its info route answers with a version and a pid.

    `/api/health` and `/api/session` prove nothing, since 1.18.33 answers both. Two early builds of
    2.x had the same answer at another path.

    Raises:
        StatusError: It is a 2.x server that still starts (503).
    """
    for path in ("/api/info", "/api/status", "/api/health"):
        try:
            body = json_object((yield Request("GET", path)))
        except StatusError as error:
            if error.status == 503:
                raise
            continue
        version, pid = (body or {}).get("version"), (body or {}).get("pid")
        if isinstance(version, str) and isinstance(pid, int):
            return Server("2.x", version, pid)
    return None


class V2(BaseDialect):
    """The dialect of OpenCode 2.x."""

    generation = "2.x"
    tested = "transcripts of 2.0.16 and a simulation of 2.0 to 2.2"
    tested_releases = ("2.0", "2.2")
    queue_hint = "line up behind it with --queue, or join it with --steer"
    busy_route = "/api/session/active"
    command_keeps_prompt_id = False
    reports_fork_source = True
    fork_cost_includes_copies = False  # by the server's source
    silence = 45.0  # heartbeats come every 15 s, as comments
    always_scope = "for every session of this project, until it is taken back"

    # -- sessions ----------------------------------------------------------------------------

    def sessions(self, directory: str | None, *, project: bool) -> Flow[tuple[Session, ...]]:
        """All sessions of a directory, of its whole project, or (None) of the server."""
        query: Query = {"directory": directory}
        if directory is not None and project:
            # Outside of git the project is "global" for every directory there is.
            known = yield from self._project(directory)
            query = {"project": known} if known and known != "global" else query
        return (yield from self._all(query))

    def _project(self, directory: str) -> Flow[str | None]:
        body: Wire = {}
        with suppress(StatusError):
            body = json_object((yield Request("GET", "/api/location", _scope(directory)))) or {}
        place = as_dict(body.get("data")) or body
        project = place.get("project")
        named = project.get("id") if isinstance(project, dict) else project
        return string(place.get("projectID")) or string(named) or None

    def _all(self, query: Query) -> Flow[tuple[Session, ...]]:
        """Archived ones, too: since 2.1 they are a list of their own, before it is the same one."""
        found = yield from self._listed(query)
        try:
            found += yield from self._listed({**query, "archived": "true"})
        except StatusError as error:
            if error.status != 400:  # of one that doesn't know the parameter
                raise
        return tuple({s.id: s for s in found}.values())

    def _listed(self, query: Query) -> Flow[list[Session]]:
        pages = yield from _pages(Request("GET", "/api/session", {**query, "limit": _PAGE}))
        return [decode("a session", shapes.session, w) for w in _rows(pages)]

    def session(self, session: str) -> Flow[Session]:
        """One session."""
        return decode("a session", shapes.session, _data((yield Request("GET", _path(session)))))

    def children(self, session: Session) -> Flow[tuple[Session, ...]]:
        """The subagent sessions directly below a session."""
        return (yield from self._all({"parentID": session.id}))

    def create(self, directory: str | None, title: str | None) -> Flow[Session]:
        """A new session. The server takes its directory from the body only."""
        return (yield from self.create_with_options(directory, title, SessionOptions()))

    def create_with_options(
        self, directory: str | None, title: str | None, options: SessionOptions
    ) -> Flow[Session]:
        """A new session that is more than a title in a directory."""
        told: Wire = {
            "title": title,
            "location": {"directory": directory} if directory else None,
            "id": options.id,
            "parentID": options.parent,
            "agent": options.agent,
            "model": _ref_out(options.model) if options.model else None,
            "metadata": dict(options.metadata) if options.metadata else None,
            "permissions": [_rule_out(r) for r in options.rules],
        }
        body = {name: value for name, value in told.items() if value}
        reply = yield Request("POST", "/api/session", {}, body)
        return decode("a session", shapes.session, _data(reply))

    def fork(self, session: Session, before: str | None) -> Flow[Session]:
        """A new session with what stands before a message, or with everything."""
        body = {"before": before} if before else {}
        reply = yield Request("POST", _path(session.id, "fork"), {}, body)
        return decode("a session", shapes.session, _data(reply))

    def rename(self, session: Session, title: str) -> Flow[None]:
        """Give a session another title."""
        yield Request("PATCH", _path(session.id), {}, {"title": title})

    def archive(self, session: Session, at: int | None) -> Flow[None]:
        """Put a session away, or take it back (since 2.1; before, nothing happens)."""
        yield Request("PATCH", _path(session.id), {}, {"archived": at is not None})

    def set_rules(self, session: Session, rules: Sequence[Rule]) -> Flow[None]:
        """Replace the permission rules of a session."""
        yield Request(
            "PATCH", _path(session.id), {}, {"permissions": [_rule_out(r) for r in rules]}
        )

    def set_metadata(self, session: Session, metadata: Mapping[str, Any]) -> Flow[None]:
        """Replace what stays with a session on the server."""
        yield Request("PATCH", _path(session.id), {}, {"metadata": dict(metadata)})

    def delete(self, session: Session) -> Flow[None]:
        """Delete a session and its subagents' sessions for good."""
        yield Request("DELETE", _path(session.id))

    def compact(self, session: Session, model: ModelRef) -> Flow[str | None]:
        """Summarise a session's conversation; gives the id of the message that will tell it."""
        reply = yield Request("POST", _path(session.id, "compact"), {}, {})
        return decode("an item of the inbox", lambda w: required_string(w["id"]), _data(reply))

    def revert(
        self, session: Session, message: str, files: bool = True
    ) -> Flow[tuple[FileDiff, ...]]:
        """Set a session back to before a message; what its files lose, or would lose."""
        body = {"messageID": message, "files": files}
        reply = yield Request("POST", _path(session.id, "revert", "stage"), {}, body)
        return decode("a revert", lambda w: file_diffs(w.get("files")), _data(reply))

    def unrevert(self, session: Session) -> Flow[None]:
        """Undo a revert, as long as nothing was prompted since."""
        yield Request("DELETE", _path(session.id, "revert"))

    def commit_revert(self, session: Session) -> Flow[None]:
        """Make a revert final: the messages after it are gone."""
        yield Request("POST", _path(session.id, "revert", "commit"), {}, {})

    def todos(self, session: Session) -> Flow[tuple[Todo, ...]]:
        """Not to be had: the list is among the session's tool calls only."""
        raise _only_1x("list of todos")

    def share(self, session: Session) -> Flow[str | None]:
        """Not to be had."""
        raise _only_1x("way to make a session public")

    def unshare(self, session: Session) -> Flow[None]:
        """Not to be had."""
        raise _only_1x("way to make a session public")

    def command(self, session: Session, prompt: Prompt) -> Flow[None]:
        """Give a session a command; the answer comes when what it calls has come to its end.

        That names neither the command nor what it admitted (2.0.6 to 2.2.0), and its prompt gets an
        id of the server's own: the log tells what was admitted meanwhile.
        """
        yield from self._switched(session, prompt)
        body: Wire = {"name": prompt.command, "text": prompt.text}
        if prompt.delivery:
            body["delivery"] = prompt.delivery
        yield Request("POST", _path(session.id, "command"), {}, body, timeout=_CALLBACK)

    def wait(self, session: Session, timeout: float) -> Flow[None]:
        """Wait until a session is idle, at most so many seconds."""
        path = f"/api/experimental{_path(session.id, 'wait').removeprefix('/api')}"
        yield Request("POST", path, {}, {}, timeout=timeout)

    # -- messages and prompts ------------------------------------------------------------------

    def messages(self, session: Session) -> Flow[tuple[Message, ...]]:
        """Every message of a session, oldest first, and the lines that the server put between."""
        rows, why = _told_in((yield from self.message_pages(session)))
        return decode("messages", lambda rows: shapes.messages(session.id, rows, why=why), rows)

    def message_pages(self, session: Session) -> Flow[tuple[Reply, ...]]:
        """Every message of a session as the server sends them.

        And its log, where a turn was cut off: messages don't tell by whom.
        """
        query: Query = {"order": "asc", "limit": _PAGE}
        pages = yield from _pages(Request("GET", _path(session.id, "message"), query))
        if any(b'"interrupted"' in page.body for page in pages):
            with suppress(OpenCodeError):  # it is experimental: then nobody tells
                pages += ((yield self.log(session.id, None, False)),)
        return pages

    def readable_messages(self, session: Session, pages: Sequence[Reply]) -> tuple[Message, ...]:
        """The messages in these replies, oldest first, as far as they can be read."""
        rows, why = _told_in(pages)
        return shapes.messages(session.id, rows, shapes.readable_message, why)

    def latest_messages(self, session: Session, count: int) -> Flow[tuple[Message, ...]]:
        """The newest messages of a session, oldest first, and the lines between them."""
        query: Query = {"order": "desc", "limit": min(4 * count, _PAGE)}
        rows = _rows([(yield Request("GET", _path(session.id, "message"), query))])
        return decode("messages", lambda rows: shapes.messages(session.id, rows), rows[::-1])

    def message(self, session: Session, message: str) -> Flow[Message]:
        """One message; a prompt that no agent has seen yet waits in the inbox."""
        try:
            reply = yield Request("GET", _path(session.id, "message", message))
        except NotFoundError:
            waiting = yield from self._inbox(session)
            item = next((w for w in waiting if w.get("id") == message), None)
            if item is None:
                raise
            return decode(
                "an item of the inbox", lambda w: shapes.inbox_message(session.id, w), item
            )
        return decode("a message", lambda w: shapes.message(session.id, w, None), _data(reply))

    def check(self, prompt: Prompt) -> None:
        """Make sure that a prompt can be sent as it is: all can."""

    def prompt(self, session: Session, prompt: Prompt) -> Flow[None]:
        """Hand over a prompt. Agent and model are the session's: they are switched before it.

        The receipt proves that the server holds an item of this id, not that it is this one (the
        first admission wins): what it holds is compared.
        """
        yield from self._switched(session, prompt)
        body: Wire = {"id": prompt.id, "text": prompt.text}
        if prompt.files:
            body["files"] = [{"uri": f.url, "name": f.filename} for f in prompt.files]
        if prompt.skills:
            body["skills"] = [{"id": s} for s in prompt.skills]
        if prompt.metadata:
            body["metadata"] = dict(prompt.metadata)
        if prompt.delivery:
            body["delivery"] = prompt.delivery
        if not prompt.resume:
            body["resume"] = False
        reply = yield Request("POST", _path(session.id, "prompt"), {}, body)
        try:
            held = decode("a receipt", lambda w: string(w["payload"]["text"]), _data(reply))
        except (StatusError, StreamError) as unread:  # then what it holds has to tell
            try:
                held = (yield from self.message(session, prompt.id)).text
            except (StatusError, StreamError):
                raise unread from None
        if held != prompt.text:
            raise StreamError(
                f"The server holds another text under the id {prompt.id} of this prompt.",
                "Send the prompt again: it gets another id.",
            )

    def _switched(self, session: Session, prompt: Prompt) -> Flow[None]:
        """Give a session the agent and the model of a prompt, where it has others."""
        agent = prompt.agent if prompt.agent != session.agent else None
        model = prompt.model if prompt.model != session.model else None
        yield from self.switch(session, agent=agent, model=model)

    def abort(self, session: Session) -> Flow[None]:
        """Ask a session to stop. What waits in its inbox stays there."""
        yield Request("POST", _path(session.id, "interrupt"), {}, {}, timeout=5.0)

    def interrupt(self, session: Session) -> Flow[bool]:
        """Stop what a session does and go on with what steers; what is queued stays where it is."""
        path, query = _path(session.id, "interrupt"), {"resume": "true"}
        body = json_object((yield Request("POST", path, query, {}, timeout=5.0))) or {}
        return body.get("interrupted") is True

    def switch(
        self, session: Session, *, agent: str | None = None, model: ModelRef | None = None
    ) -> Flow[None]:
        """Give a session another agent or model. Names are not checked by the server."""
        if agent:
            yield Request("POST", _path(session.id, "agent"), {}, {"agent": agent})
        if model:
            yield Request("POST", _path(session.id, "model"), {}, {"model": _ref_out(model)})

    # -- the inbox -------------------------------------------------------------------------------

    def inbox(self, session: Session) -> Flow[tuple[InboxItem, ...]]:
        """What waits to be delivered, in the order in which it came."""
        return decode_list("an item of the inbox", _inbox_item, (yield from self._inbox(session)))

    def _inbox(self, session: Session) -> Flow[list[Wire]]:
        items = _data((yield Request("GET", _path(session.id, "inbox"))))
        return [w for w in items if isinstance(w, dict)] if isinstance(items, list) else []

    def cancel(self, session: Session, item: str) -> Flow[bool]:
        """Take an item out of the inbox; False if an agent has it already.

        The route answers 204 either way.
        """
        yield Request("DELETE", _path(session.id, "inbox", item))
        try:
            yield Request("GET", _path(session.id, "message", item))
        except NotFoundError:
            return True
        return False

    def set_delivery(
        self, session: Session, item: str, delivery: Literal["steer", "queue"]
    ) -> Flow[None]:
        """Let an item of the inbox join at the next step (steer), or after the turn (queue)."""
        yield Request("PATCH", _path(session.id, "inbox", item), {}, {"delivery": delivery})

    # -- a session's surroundings ----------------------------------------------------------------

    def set_environment(self, session: Session, variables: dict[str, str]) -> Flow[None]:
        """Replace the environment variables of a session's shell commands."""
        yield Request("PUT", _path(session.id, "environment"), {}, {"variables": variables})

    def instructions(self, session: Session) -> Flow[dict[str, Any]]:
        """The instructions that were added to a session, by key."""
        body = _data((yield Request("GET", _entries(session))))
        return decode(
            "instructions", lambda ws: {required_string(w["key"]): w.get("value") for w in ws}, body
        )

    def put_instruction(self, session: Session, key: str, value: Any) -> Flow[None]:
        """Tell a session's agent something, from its next step on."""
        yield Request("PUT", f"{_entries(session)}/{quote(key, safe='')}", {}, {"value": value})

    def delete_instruction(self, session: Session, key: str) -> Flow[None]:
        """Take back what a session's agent was told."""
        yield Request("DELETE", f"{_entries(session)}/{quote(key, safe='')}")

    # -- what changed ----------------------------------------------------------------------------

    def diffs(self, session: Session, message: str | None) -> Flow[Diff]:
        """What changed in a session, or in the turn of one message.

        The route tells one turn at a time, and nothing without git or snapshots; then the edit
        tools tell what they did, subagents' included.
        """
        turns = _turns((yield from self.messages(session)))
        if message is not None:
            prompt = _prompt_of(turns, message)
            turns = {prompt: turns[prompt]}
        told: list[tuple[str, FileDiff]] = []
        kinds: set[str] = set()
        seen = {session.id}
        for prompt, messages in turns.items():
            if not any(m.tools for m in messages):
                continue
            diffs: Sequence[FileDiff] = yield from self.turn_diffs(session, prompt)
            kind = "turns" if diffs else "tools"
            diffs = diffs or (yield from self._edits(messages, seen))
            kinds |= {kind} if diffs else set()
            told += [(prompt, d) for d in diffs]
        return Diff.of(told, source_of(kinds), session.directory)

    def turn_diffs(self, session: Session, prompt: str) -> Flow[tuple[FileDiff, ...]]:
        """What the turn of a prompt changed; nothing where no snapshots are taken."""
        try:
            reply = yield Request("GET", _path(session.id, "diff"), {"from": prompt})
            return file_diffs(_data(reply))
        except (StatusError, StreamError):
            return ()

    def _edits(self, messages: Iterable[Message], seen: set[str]) -> Flow[list[FileDiff]]:
        found: list[FileDiff] = []
        for tool in (t for m in messages for t in m.tools):
            found += _told_edits(tool)
            if tool.child and tool.child not in seen:
                seen.add(tool.child)
                with suppress(NotFoundError):  # deleted
                    below = yield from self.messages(Session(tool.child))
                    found += yield from self._edits(below, seen)
        return found

    # -- what waits for a person -----------------------------------------------------------------

    def statuses(self, directory: str) -> Flow[dict[str, Status]]:
        """The sessions of the server that are not idle; it doesn't tell them by directory."""
        active = _data((yield Request("GET", "/api/session/active", timeout=5.0)))
        return decode("the active sessions", lambda w: dict.fromkeys(w.keys(), _BUSY), active)

    def pending_retry(self, session: Session) -> Flow[Status | None]:
        """The retry that a busy session waits for, by its log: active is all that its status says.

        A step that goes on after a retry keeps it until its end. So the log is read of a session
        whose open step has one, and of no other; its last line about that step tells.
        """
        query: Query = {"order": "desc", "limit": _FEW}
        page = yield Request("GET", _path(session.id, "message"), query, timeout=5.0)
        step = next((w for w in _rows([page]) if w.get("type") == "assistant"), {})
        if not step.get("retry"):
            return None
        lines = (yield replace(self.log(session.id, None, False), timeout=5.0)).body
        last = _last_about(string(step.get("id")), lines)
        if last.get("type") != "session.retry.scheduled":
            return None
        return decode("a retry", shapes.retry_status, last["data"])

    def permissions(self, directory: str) -> Flow[tuple[Permission, ...]]:
        """Permissions that wait in a directory."""
        request = Request("GET", "/api/permission/request", _scope(directory), timeout=5.0)
        return decode_list("a permission", shapes.permission, _data((yield request)))

    def questions(self, directory: str) -> Flow[tuple[Question, ...]]:
        """Forms that wait in a directory, as questions."""
        request = Request("GET", "/api/form", _scope(directory), timeout=5.0)
        return decode_list("a form", shapes.question, _data((yield request)))

    def reply(
        self, permission: Permission, directory: str, decision: Decision, message: str
    ) -> Flow[None]:
        """Decide a permission. "reject" without a message stops the turn, with one it goes on."""
        body = {"decision": decision} | ({"message": message} if message else {})
        yield Request(
            "POST", _path(permission.session, "permission", permission.id, "reply"), {}, body
        )

    def answer(
        self, question: Question, directory: str, answers: Sequence[Sequence[str]]
    ) -> Flow[None]:
        """Fill in a form: per item the chosen labels or free text, as the field wants it.

        Raises:
            InvalidAnswer: A field can't take its answer; nothing is sent.
        """
        questions.check_answers(question, answers)
        pairs = zip(question.items, answers, strict=False)
        filled = {
            item.key: _answer(item, given)
            for item, given in pairs
            if given and item.kind != "external" and questions.applies(question, item, answers)
        }
        path = _path(question.session, "form", question.id, "reply")
        yield Request("POST", path, {}, {"answer": filled})

    def dismiss(self, question: Question, directory: str) -> Flow[None]:
        """Cancel a form; without a message the turn that asked stops."""
        yield Request("DELETE", _path(question.session, "form", question.id))

    def saved_rules(self) -> Flow[tuple[SavedRule, ...]]:
        """What "always" saved, for all projects."""
        return decode_list(
            "a saved rule", _saved, _data((yield Request("GET", "/api/permission/saved")))
        )

    def delete_saved_rule(self, rule: str) -> Flow[None]:
        """Take an "always" back."""
        yield Request("DELETE", f"/api/permission/saved/{quote(rule, safe='')}")

    # -- what a directory offers -----------------------------------------------------------------

    def models(self, directory: str | None) -> Flow[tuple[Model, ...]]:
        """The models of a directory."""
        listed = yield from self._catalog("/api/model", directory)
        default: Any = None
        with suppress(StatusError, StreamError):
            default = _data((yield Request("GET", "/api/model/default", _scope(directory))))
        return decode("its models", lambda ws: _models(ws, default), listed)

    def prices(self, directory: str | None) -> Flow[tuple[Model, ...]]:
        """The models of a directory for their prices, not saying the default."""
        listed = yield from self._catalog("/api/model", directory)
        return decode("its models", lambda ws: _models(ws, None), listed)

    def agents(self, directory: str | None) -> Flow[tuple[Agent, ...]]:
        """The agents of a directory that a person may name."""
        return decode("its agents", _agents, (yield from self._catalog("/api/agent", directory)))

    def _catalog(self, path: str, directory: str | None) -> Flow[Any]:
        """What a directory offers. A cold one offers nothing until its plugins are loaded.

        The list of integrations is answered no sooner than that (2.0.24).
        """
        request = Request("GET", path, _scope(directory))
        if listed := _data((yield request)):
            return listed
        with suppress(StatusError):
            yield Request("GET", "/api/integration", _scope(directory))
        return _data((yield request))

    def commands(self, directory: str | None) -> Flow[tuple[Command, ...]]:
        """The commands of a directory."""
        listed = _data((yield Request("GET", "/api/command", _scope(directory))))
        return decode_list("a command", _command, listed)

    def skills(self, directory: str | None) -> Flow[tuple[Skill, ...]]:
        """The skills of a directory."""
        return decode_list(
            "a skill", _skill, _data((yield Request("GET", "/api/skill", _scope(directory))))
        )

    def mcp(self, directory: str | None) -> Flow[tuple[McpServer, ...]]:
        """The MCP servers of a directory."""
        listed = _data((yield Request("GET", "/api/mcp", _scope(directory))))
        return decode_list("an MCP server", _mcp_server, listed)

    def add_mcp(self, directory: str | None, name: str, config: dict[str, Any]) -> Flow[None]:
        """Add an MCP server, until the server restarts."""
        path = f"/api/experimental/mcp/{quote(name, safe='')}"
        yield Request("PUT", path, _scope(directory), {"config": config})

    def remove_mcp(self, directory: str | None, name: str) -> Flow[None]:
        """Take an MCP server away that was added."""
        yield Request("DELETE", f"/api/experimental/mcp/{quote(name, safe='')}", _scope(directory))

    def integrations(self, directory: str | None) -> Flow[tuple[Integration, ...]]:
        """The accounts that the server can use, and those that it has."""
        listed = _data((yield Request("GET", "/api/integration", _scope(directory))))
        return decode_list("an integration", _integration, listed)

    def shell_output(self, directory: str | None, shell: str, cursor: int) -> Flow[ShellOutput]:
        """What a shell printed from a byte on."""
        path = f"/api/shell/{quote(shell, safe='')}/output"
        query: Query = {**_scope(directory), "cursor": cursor}
        return decode("a shell's output", _shell_output, _data((yield Request("GET", path, query))))

    def server_directory(self) -> Flow[str]:
        """The directory that the server itself runs in."""
        body = json_object((yield Request("GET", "/api/location"))) or {}
        place = as_dict(body.get("data")) or body
        return decode("its location", lambda w: str(w["directory"]), place)

    # -- the stream ------------------------------------------------------------------------------

    def stream(self, directory: str) -> Request:
        """The request that opens the event stream, which is of the whole server."""
        return Request("GET", "/api/event")

    def log(self, session: str, after: int | None, follow: bool) -> Request:
        """The request for what the server wrote down of a session, as a stream of frames."""
        path = f"/api/experimental/session/{quote(session, safe='')}/log"
        return Request("GET", path, {"after": after, "follow": "true" if follow else None})

    def log_excerpt(self, log: str) -> str:
        """What `transcript` reads of a log: the lines that tell of an interruption."""
        return b"\n".join(_lines_of_ends(log.encode())).decode()

    def log_entry(self, frame: Any) -> LogEntry | None:
        """A durable event as a line of its session's log; None of the mark at the log's end."""
        if not isinstance(frame, dict) or "durable" not in frame:
            return None
        return decode("an entry of a log", _entry, frame)

    def event_position(self, frame: Any) -> EventPosition | None:
        """An event's id, and its number if it is durable; numbers rise, and some are never sent."""
        match frame:
            case {"id": str(key), "durable": {"aggregateID": str(session), "seq": int(seq)}}:
                return EventPosition(key, session, seq)
            case {"id": str(key)}:
                return EventPosition(key)
            case _:
                return None

    def events(self, frame: Any) -> Iterator[Event]:
        """Decode one frame. Unknown kinds yield nothing."""
        return v2_events.events(frame)


# -- requests and replies --------------------------------------------------------------------------


def _only_1x(what: str) -> UnsupportedOperation:
    return UnsupportedOperation(
        f"OpenCode 2.x has no {what}; OpenCode 1.x has one.",
        "%oc_connect says which server answers.",
    )


def _path(*parts: str) -> str:
    return "/api/session/" + "/".join(quote(p, safe="") for p in parts)


def _entries(session: Session) -> str:
    return f"/api/experimental/session/{quote(session.id, safe='')}/instructions/entries"


def _scope(directory: str | None) -> Query:
    return {"location[directory]": directory or None}


def _data(reply: Reply) -> Any:
    """What an answer holds: the value below `data`."""
    return decode(f"the answer to {reply.request}", lambda body: body["data"], reply.json())


def _rows(pages: Iterable[Reply]) -> list[Wire]:
    """The rows of a list."""
    listed = (decode("a page", as_list, _data(page)) for page in pages)
    return [w for page in listed for w in page if isinstance(w, dict)]


def _told_in(pages: Iterable[Reply]) -> tuple[list[Wire], dict[str, str]]:
    """The rows in the pages of a session, and what its log, if it is there, says of its ends."""
    logs = [page for page in pages if page.request.path.endswith("/log")]
    rows = _rows(page for page in pages if page not in logs)
    ends = (frame for log in logs for frame in _ends(log.body))
    return rows, dict(shapes.interruption_reasons(ends))


def _ends(body: bytes) -> Iterator[Any]:
    """The frames of a log that tell of an interruption; each is a line of JSON."""
    for line in _lines_of_ends(body):
        with suppress(ValueError, RecursionError):
            yield loads(line.removeprefix(b"data:").decode("utf-8", "replace"))


def _lines_of_ends(body: bytes) -> list[bytes]:
    return [x for x in _lines(body) if b".interrupted" in x]


def _lines(body: bytes) -> list[bytes]:
    return body.replace(b"\r", b"\n").split(b"\n")


def _last_about(step: str, body: bytes) -> Wire:
    """The last frame of a log that tells of a step; {} if none does."""
    for line in reversed(_lines(body)):
        if step.encode() in line:
            told = as_dict(read_frame(line.removeprefix(b"data:").decode("utf-8", "replace")))
            if as_dict(told.get("data")).get("assistantMessageID") == step:
                return told
    return {}


def _pages(request: Request) -> Flow[tuple[Reply, ...]]:
    """All pages of a list. There is always a next cursor, so an empty page is the end."""
    pages: list[Reply] = []
    query, seen = request.query, set[str]()
    while True:
        reply = yield Request(request.method, request.path, query)
        body = as_dict(reply.json())
        cursor = as_dict(body.get("cursor")).get("next")
        pages.append(reply)
        if not body.get("data") or not isinstance(cursor, str) or not cursor:
            return tuple(pages)
        if cursor in seen:
            logger.warning("%s repeats a cursor: the list ends there.", request)
            return tuple(pages)
        seen.add(cursor)
        query = {"cursor": cursor, "limit": request.query.get("limit")}


# -- model to wire ---------------------------------------------------------------------------------


def _ref_out(model: ModelRef) -> Wire:
    ref = {"id": model.id, "providerID": model.provider}
    return ref | ({"variant": model.variant} if model.variant else {})


def _rule_out(rule: Rule) -> Wire:
    return {"action": rule.action, "resource": rule.resource, "effect": rule.effect}


def _answer(item: QuestionItem, given: Sequence[str]) -> Any:
    """What a person said, as the field wants it: a single choice must be no list (2.0.23)."""
    chosen = questions.answer_values(item, given)
    if item.multiple:
        return chosen
    text = chosen[0]
    match item.kind:
        case "boolean":
            return text == "true"
        case "integer" | "number":
            with suppress(ValueError):
                value = float(text)
                return int(value) if value.is_integer() else value
    return ", ".join(chosen)


# -- what a session's tools changed ----------------------------------------------------------------


def _told_edits(tool: ToolCall) -> tuple[FileDiff, ...]:
    """What a tool that came to its end changed; a write tells only where (2.0.16)."""
    if tool.status != "completed":
        return ()
    path = string(tool.input.get("path"))
    written = tool.tool == "write" and path and not tool.diffs
    return (FileDiff(path),) if written else tool.diffs


def _turns(rows: Iterable[Message]) -> dict[str, tuple[Message, ...]]:
    """The answers of a session by the prompt that led to them."""
    turns: dict[str, tuple[Message, ...]] = {}
    prompt = ""
    for message in rows:
        if message.role == "user" and not message.synthetic:
            prompt = message.id
            turns[prompt] = ()
        elif message.role == "assistant":
            turns[prompt] = (*turns.get(prompt, ()), message)
    return turns


def _prompt_of(turns: dict[str, tuple[Message, ...]], message: str) -> str:
    """The prompt of a turn of which one message is named.

    Raises:
        NotFoundError: The session has no such message.
    """
    for prompt, answers in turns.items():
        if message == prompt or any(m.id == message for m in answers):
            return prompt
    raise NotFoundError(f"The session has no message {message}.", status=404)


# -- wire to model: what is kept beside messages ---------------------------------------------------


def _saved(w: Wire) -> SavedRule:
    made = integer(as_dict(w.get("time")).get("created"))
    return SavedRule(
        required_string(w["id"]), w["action"], w["resource"], string(w.get("projectID")), made
    )


def _inbox_item(w: Wire) -> InboxItem:
    return InboxItem(
        id=required_string(w["id"]),
        session=string(w.get("sessionID")),
        kind=string(w.get("type")),
        delivery=string(w.get("delivery")),
        text=string(as_dict(w.get("payload")).get("text")),
        created=integer(as_dict(w.get("time")).get("created")),
    )


def _entry(w: Wire) -> LogEntry:
    data = w["data"]
    item = as_dict(data.get("item"))
    payload = as_dict(item.get("payload"))
    told = as_dict(payload.get("metadata")) or as_dict(data.get("metadata"))
    return LogEntry(
        seq=int(w["durable"]["seq"]),
        kind=w["type"].removeprefix("session."),
        at=timestamp(w.get("created")),
        item=string(data.get("inboxID")),
        type=string(item.get("type")),
        text=string(payload.get("text")),
        delivery=string(item.get("delivery")),
        metadata=told,
    )


# -- wire to model: what a directory offers --------------------------------------------------------


def _models(values: Iterable[Wire], default: Any) -> tuple[Model, ...]:
    chosen = shapes.model_ref(default) if as_dict(default).get("id") else None
    return tuple(_model(w, chosen) for w in values if w.get("enabled", True))


def _model(w: Wire, default: ModelRef | None) -> Model:
    limit, prices = w.get("limit") or {}, w.get("cost") or ()
    # Dearer tiers count from a size of context on; the first is the plain price.
    price: Wire = (
        next((p for p in prices if not p.get("tier")), {}) if isinstance(prices, list) else {}
    )
    cache = price.get("cache") or {}
    takes = as_dict(w.get("capabilities")).get("input")
    provider, name = required_string(w["providerID"]), required_string(w["id"])
    return Model(
        provider=provider,
        id=name,
        name=string(w.get("name")),
        variants=tuple(v["id"] for v in w.get("variants") or ()),
        context=integer(limit.get("context")),
        output=integer(limit.get("output")),
        price_input=number(price.get("input")),
        price_output=number(price.get("output")),
        price_cache_read=number(cache.get("read")),
        price_cache_write=number(cache.get("write")),
        default=default is not None and (default.provider, default.id) == (provider, name),
        tiers=tuple(_tiers(prices)),
        images="image" in takes if isinstance(takes, list) else None,
    )


def _tiers(prices: Any) -> Iterator[PriceTier]:
    """Prices of longer prompts, the shortest first."""
    sized = [(integer(as_dict(p.get("tier")).get("size")), p) for p in prices]
    for above, p in sorted(((s, p) for s, p in sized if s), key=lambda pair: pair[0]):
        cache = p.get("cache") or {}
        told = (p.get("input"), p.get("output"), cache.get("read"), cache.get("write"))
        yield PriceTier(above, *map(number, told))


def _agents(values: Iterable[Wire]) -> tuple[Agent, ...]:
    return tuple(
        Agent(
            required_string(w["id"]),
            string(w.get("description")),
            string(w.get("mode")),
            shapes.model_ref(w.get("model")),
            shapes.rules(w.get("permissions")),
        )
        for w in values
        if not w.get("hidden")
    )


def _command(w: Wire) -> Command:
    template = string(w.get("template"))  # before 2.0; the interface of 2.0 to 2.2 has none
    return Command(required_string(w["name"]), string(w.get("description")), template=template)


def _skill(w: Wire) -> Skill:
    name = string(w.get("name")) or w["id"]
    return Skill(
        required_string(w["id"]), name, string(w.get("description")), string(w.get("path"))
    )


def _mcp_server(w: Wire) -> McpServer:
    status = w.get("status")
    told = as_dict(status)
    kind = string(status) or string(told.get("status")) or string(told.get("type"))
    return McpServer(
        required_string(w["name"]), kind, string(told.get("error")) or string(told.get("message"))
    )


def _integration(w: Wire) -> Integration:
    methods = (string(m.get("type")) or string(m.get("id")) for m in w.get("methods") or ())
    links = (string(c.get("label")) or string(c.get("name")) for c in w.get("connections") or ())
    return Integration(
        required_string(w["id"]),
        string(w.get("name")) or required_string(w["id"]),
        tuple(methods),
        tuple(links),
    )


def _shell_output(w: Wire) -> ShellOutput:
    return ShellOutput(string(w.get("output")), w["cursor"], w["size"], bool(w.get("truncated")))
