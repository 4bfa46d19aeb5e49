"""OpenCode 2.x: the `/api` routes of 2.0 to 2.2.

A prompt, its inbox item and its stored message share one id; one execution may serve several
prompts. `v2_shapes` decodes the replies, `v2_events` the stream. Names that no known release uses
are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from ..core import questions
from ..core.diffs import Diff
from ..core.events import Event
from ..core.model import (
    Agent,
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
    QuestionItem,
    Rule,
    SavedRule,
    Server,
    Session,
    SessionEvent,
    ShellOutput,
    Skill,
    Status,
    ToolCall,
)
from ..errors import NotFoundError, StatusError, StreamError, printable
from . import v2_events
from . import v2_shapes as shapes
from .base import (
    Delivery,
    Dialect,
    Flow,
    Prompt,
    Query,
    Reply,
    Request,
    SessionOptions,
    logger,
)
from .jsonwire import decode, decode_list
from .replies import json_object
from .turn_diffs import TurnDiffs
from .v2_shapes import Wire
from .values import as_dict, as_list, file_diffs, required_string, string

_COMMAND_TIMEOUT = 3_600.0  # seconds: a command's template may run shell commands first
_PAGE = 200  # the maximum page size of a list of messages
_BUSY = Status("busy")


def probe() -> Flow[Server | None]:
    """Return the server if it is 2.x: then its info route returns a version and a pid.

    A reply at `/api/health` or `/api/session` alone proves nothing: 1.18.33 has both routes. Two
    early builds of 2.x have the info at another path.

    Raises:
        StatusError: It is a 2.x server that is still starting (503).
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
            return Server("2.x", printable(version), pid)
    return None


# By the documentation of 2.0. All tools that change files ask for "edit".
_ACTIONS = {
    "browser": "browser",
    "edit": "edit",
    "execute": "execute",
    "external_directory": "external_directory",
    "glob": "glob",
    "grep": "grep",
    "question": "question",
    "read": "read",
    "shell": "shell",
    "skill": "skill",
    "subagent": "subagent",
    "webfetch": "webfetch",
    "websearch": "websearch",
    "write": "edit",
    "patch": "edit",
}


class V2(Dialect):
    """The dialect of OpenCode 2.x."""

    generation = "2.x"
    tested = "transcripts of 2.0.16 and a simulation of 2.0 to 2.2"
    tested_releases = ("2.0", "2.2")
    queue_hint = "line up behind it with --queue, or join it with --steer"
    busy_route = "/api/session/active"
    command_keeps_prompt_id = False
    reports_fork_source = True
    fork_cost_includes_copies = False  # by the server's source
    silence = 45.0  # there is a heartbeat every 15 s, as a comment
    always_scope = "for every session of this project, until the rule is deleted"
    actions = _ACTIONS

    # -- sessions ----------------------------------------------------------------------------

    def sessions(self, directory: str | None, *, project: bool) -> Flow[tuple[Session, ...]]:
        query: Query = {"directory": directory}
        if directory is not None and project:
            # Outside of git, every directory has the project "global".
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
        """List sessions, archived ones included: since 2.1 those are listed separately."""
        found = yield from self._listed(query)
        try:
            found += yield from self._listed({**query, "archived": "true"})
        except StatusError as error:
            if error.status != 400:  # an older server doesn't know the parameter
                raise
        return tuple({s.id: s for s in found}.values())

    def _listed(self, query: Query) -> Flow[list[Session]]:
        pages = yield from _pages(Request("GET", "/api/session", {**query, "limit": _PAGE}))
        return [decode("a session", shapes.session, w) for w in _rows(pages)]

    def session(self, session: str) -> Flow[Session]:
        return decode("a session", shapes.session, _data((yield Request("GET", _path(session)))))

    def children(self, session: Session) -> Flow[tuple[Session, ...]]:
        return (yield from self._all({"parentID": session.id}))

    def create(self, directory: str | None, title: str | None) -> Flow[Session]:
        """Create a session. The server reads the directory only from the body."""
        return (yield from self.create_with_options(directory, title, SessionOptions()))

    def create_with_options(
        self, directory: str | None, title: str | None, options: SessionOptions
    ) -> Flow[Session]:
        fields: Wire = {
            "title": title,
            "location": {"directory": directory} if directory else None,
            "id": options.id,
            "parentID": options.parent,
            "agent": options.agent,
            "model": _ref_out(options.model) if options.model else None,
            "metadata": dict(options.metadata) if options.metadata else None,
            "permissions": [_rule_out(r) for r in options.rules],
        }
        body = {name: value for name, value in fields.items() if value}
        reply = yield Request("POST", "/api/session", {}, body)
        return decode("a session", shapes.session, _data(reply))

    def fork(self, session: Session, before: str | None = None) -> Flow[Session]:
        body = {"before": before} if before else {}
        reply = yield Request("POST", _path(session.id, "fork"), {}, body)
        return decode("a session", shapes.session, _data(reply))

    def rename(self, session: Session, title: str) -> Flow[None]:
        yield Request("PATCH", _path(session.id), {}, {"title": title})

    def archive(self, session: Session, at: int | None) -> Flow[None]:
        """Archive or restore a session (since 2.1; older servers ignore this)."""
        yield Request("PATCH", _path(session.id), {}, {"archived": at is not None})

    def set_rules(self, session: Session, rules: Sequence[Rule]) -> Flow[None]:
        yield Request(
            "PATCH", _path(session.id), {}, {"permissions": [_rule_out(r) for r in rules]}
        )

    def set_metadata(self, session: Session, metadata: Mapping[str, Any]) -> Flow[None]:
        yield Request("PATCH", _path(session.id), {}, {"metadata": dict(metadata)})

    def delete(self, session: Session) -> Flow[None]:
        yield Request("DELETE", _path(session.id))

    def compact(self, session: Session, model: ModelRef) -> Flow[str | None]:
        reply = yield Request("POST", _path(session.id, "compact"), {}, {})
        return decode("an item of the inbox", lambda w: required_string(w["id"]), _data(reply))

    def revert(
        self, session: Session, message: str, files: bool = True
    ) -> Flow[tuple[FileDiff, ...]]:
        body = {"messageID": message, "files": files}
        reply = yield Request("POST", _path(session.id, "revert", "stage"), {}, body)
        return decode("a revert", lambda w: file_diffs(w.get("files")), _data(reply))

    def unrevert(self, session: Session) -> Flow[None]:
        """Undo a revert, unless there was another prompt since."""
        yield Request("DELETE", _path(session.id, "revert"))

    def commit_revert(self, session: Session) -> Flow[None]:
        yield Request("POST", _path(session.id, "revert", "commit"), {}, {})

    def command(self, session: Session, prompt: Prompt) -> Flow[None]:
        """Run a command; the reply comes when the command itself has ended.

        The reply names neither the command nor the inputs it admitted (2.0.6 to 2.2.0), and the
        server gives its prompt a new id. The log shows what was admitted meanwhile.
        """
        yield from self._switched(session, prompt)
        body: Wire = {"name": prompt.command, "text": prompt.text}
        if prompt.delivery:
            body["delivery"] = prompt.delivery
        yield Request("POST", _path(session.id, "command"), {}, body, timeout=_COMMAND_TIMEOUT)

    def wait(self, session: Session, timeout: float = 600.0) -> Flow[None]:
        path = f"/api/experimental{_path(session.id, 'wait').removeprefix('/api')}"
        yield Request("POST", path, {}, {}, timeout=timeout)

    # -- messages and prompts ------------------------------------------------------------------

    def messages(self, session: Session) -> Flow[tuple[Message, ...]]:
        """List every message of a session, oldest first, including the server's own records."""
        rows = _rows((yield from self.message_pages(session)))
        return decode("messages", lambda rows: shapes.messages(session.id, rows), rows)

    def message_pages(self, session: Session) -> Flow[tuple[Reply, ...]]:
        query: Query = {"order": "asc", "limit": _PAGE}
        return (yield from _pages(Request("GET", _path(session.id, "message"), query)))

    def readable_messages(self, session: Session, pages: Sequence[Reply]) -> tuple[Message, ...]:
        # Caches and recordings of version 0.2.0 also have a page of the session's log.
        rows = _rows(page for page in pages if page.request.path.endswith("/message"))
        return shapes.messages(session.id, rows, shapes.readable_message)

    def latest_messages(self, session: Session, count: int) -> Flow[tuple[Message, ...]]:
        """List the newest messages of a session, oldest first, with the server's records."""
        query: Query = {"order": "desc", "limit": min(4 * count, _PAGE)}
        rows = _rows([(yield Request("GET", _path(session.id, "message"), query))])
        return decode("messages", lambda rows: shapes.messages(session.id, rows), rows[::-1])

    def message(self, session: Session, message: str) -> Flow[Message]:
        """Return one message; an undelivered prompt is read from the inbox."""
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
        """Accept every prompt."""

    def prompt(self, session: Session, prompt: Prompt) -> Flow[None]:
        """Send a prompt, after switching the session's agent and model if necessary.

        The receipt only proves that the server has an item with this id. That may be an earlier
        one (the first admission wins), so its text is compared.
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
            stored = decode("a receipt", lambda w: string(w["payload"]["text"]), _data(reply))
        except (StatusError, StreamError) as unread:  # read the item itself instead
            try:
                stored = (yield from self.message(session, prompt.id)).text
            except (StatusError, StreamError):
                raise unread from None
        if stored != prompt.text:
            raise StreamError(
                f"The server already has another prompt with the id {prompt.id}.",
                "Send the prompt again; it will get a new id.",
            )

    def _switched(self, session: Session, prompt: Prompt) -> Flow[None]:
        """Change a session's agent and model to those of a prompt.

        They are compared with the server's state now: an earlier prompt, or another client, may
        have changed them since the session was read.
        """
        if not prompt.agent and not prompt.model:
            return
        now = yield from self.session(session.id)
        agent = prompt.agent if prompt.agent != now.agent else None
        model = prompt.model if prompt.model != now.model else None
        yield from self.switch(session, agent=agent, model=model)

    def abort(self, session: Session) -> Flow[None]:
        """Ask a session to stop. Its inbox is unchanged."""
        yield Request("POST", _path(session.id, "interrupt"), {}, {}, timeout=5.0)

    def switch(
        self, session: Session, *, agent: str | None = None, model: ModelRef | None = None
    ) -> Flow[None]:
        if agent:
            yield Request("POST", _path(session.id, "agent"), {}, {"agent": agent})
        if model:
            yield Request("POST", _path(session.id, "model"), {}, {"model": _ref_out(model)})

    # -- the inbox -------------------------------------------------------------------------------

    def inbox(self, session: Session) -> Flow[tuple[InboxItem, ...]]:
        return decode_list(
            "an item of the inbox", shapes.inbox_item, (yield from self._inbox(session))
        )

    def _inbox(self, session: Session) -> Flow[list[Wire]]:
        items = _data((yield Request("GET", _path(session.id, "inbox"))))
        return [w for w in items if isinstance(w, dict)] if isinstance(items, list) else []

    def cancel(self, session: Session, item: str) -> Flow[bool]:
        """Remove an item from the inbox. The reply is always 204, so check the messages."""
        yield Request("DELETE", _path(session.id, "inbox", item))
        try:
            yield Request("GET", _path(session.id, "message", item))
        except NotFoundError:
            return True
        return False

    def set_delivery(self, session: Session, item: str, delivery: Delivery) -> Flow[None]:
        yield Request("PATCH", _path(session.id, "inbox", item), {}, {"delivery": delivery})

    # -- a session's environment and instructions ------------------------------------------------

    def set_environment(self, session: Session, variables: dict[str, str]) -> Flow[None]:
        yield Request("PUT", _path(session.id, "environment"), {}, {"variables": variables})

    def instructions(self, session: Session) -> Flow[dict[str, Any]]:
        body = _data((yield Request("GET", _entries(session))))
        return decode(
            "instructions", lambda ws: {required_string(w["key"]): w.get("value") for w in ws}, body
        )

    def put_instruction(self, session: Session, key: str, value: Any) -> Flow[None]:
        yield Request("PUT", f"{_entries(session)}/{quote(key, safe='')}", {}, {"value": value})

    def delete_instruction(self, session: Session, key: str) -> Flow[None]:
        yield Request("DELETE", f"{_entries(session)}/{quote(key, safe='')}")

    # -- diffs -----------------------------------------------------------------------------------

    def diffs(self, session: Session, message: str | None = None) -> Flow[Diff]:
        """Return the changes of a session, or of the turn of a message.

        The route reports one turn at a time, and nothing without git or snapshots; then the edit
        tools' own reports are used, including those of subagents.
        """
        turns = _turns((yield from self.messages(session)))
        if message is not None:
            prompt = _prompt_of(turns, message)
            turns = {prompt: turns[prompt]}
        turns = {p: answers for p, answers in turns.items() if any(m.tools for m in answers)}

        def reported(prompt: str, answers: Sequence[Message]) -> Flow[Sequence[FileDiff]]:
            return (yield from self.turn_diffs(session, prompt))

        def messages(child: str) -> Flow[Sequence[Message]]:
            return (yield from self.messages(Session(child)))

        diff = yield from TurnDiffs(reported, _tool_edits, messages).collect(session, turns)
        return Diff() if diff is None else diff

    def turn_diffs(self, session: Session, prompt: str) -> Flow[tuple[FileDiff, ...]]:
        """List the files that a turn changed; empty if the server takes no snapshots."""
        try:
            reply = yield Request("GET", _path(session.id, "diff"), {"from": prompt})
            return file_diffs(_data(reply))
        except (StatusError, StreamError):
            return ()

    # -- states and pending requests -------------------------------------------------------------

    def statuses(self, directory: str) -> Flow[dict[str, Status]]:
        """Return the statuses of all busy sessions of the server, whatever their directory."""
        active = _data((yield Request("GET", "/api/session/active", timeout=5.0)))
        return decode("the active sessions", lambda w: dict.fromkeys(w.keys(), _BUSY), active)

    def permissions(self, directory: str) -> Flow[tuple[Permission, ...]]:
        request = Request("GET", "/api/permission/request", _scope(directory), timeout=5.0)
        return decode_list("a permission", shapes.permission, _data((yield request)))

    def questions(self, directory: str) -> Flow[tuple[Question, ...]]:
        """List the pending forms of a directory, as questions."""
        request = Request("GET", "/api/form", _scope(directory), timeout=5.0)
        return decode_list("a form", shapes.question, _data((yield request)))

    def reply(
        self, permission: Permission, directory: str, decision: Decision, message: str = ""
    ) -> Flow[None]:
        body = {"decision": decision} | ({"message": message} if message else {})
        yield Request(
            "POST", _path(permission.session, "permission", permission.id, "reply"), {}, body
        )

    def answer(
        self, question: Question, directory: str, answers: Sequence[Sequence[str]]
    ) -> Flow[None]:
        """Fill in a form, with answers converted to the type of each field.

        Raises:
            InvalidAnswer: An answer is invalid; nothing is sent.
        """
        questions.check_answers(question, answers)
        pairs = zip(question.items, answers, strict=False)
        filled = {
            item.key: _answer(item, texts)
            for item, texts in pairs
            if texts and item.kind != "external" and questions.applies(question, item, answers)
        }
        path = _path(question.session, "form", question.id, "reply")
        yield Request("POST", path, {}, {"answer": filled})

    def dismiss(self, question: Question, directory: str, message: str = "") -> Flow[None]:
        """Cancel a form, which stops the turn that asked unless there is a message."""
        query: Query = {"message": message or None}
        yield Request("DELETE", _path(question.session, "form", question.id), query)

    def saved_rules(self) -> Flow[tuple[SavedRule, ...]]:
        return decode_list(
            "a saved rule",
            shapes.saved_rule,
            _data((yield Request("GET", "/api/permission/saved"))),
        )

    def delete_saved_rule(self, rule: str) -> Flow[None]:
        yield Request("DELETE", f"/api/permission/saved/{quote(rule, safe='')}")

    # -- catalog of a directory ------------------------------------------------------------------

    def models(self, directory: str | None) -> Flow[tuple[Model, ...]]:
        listed = yield from self._catalog("/api/model", directory)
        default: Any = None
        with suppress(StatusError, StreamError):
            default = _data((yield Request("GET", "/api/model/default", _scope(directory))))
        return decode("models", lambda ws: shapes.models(ws, default), listed)

    def prices(self, directory: str | None) -> Flow[tuple[Model, ...]]:
        listed = yield from self._catalog("/api/model", directory)
        return decode("models", lambda ws: shapes.models(ws, None), listed)

    def agents(self, directory: str | None) -> Flow[tuple[Agent, ...]]:
        return decode("agents", shapes.agents, (yield from self._catalog("/api/agent", directory)))

    def _catalog(self, path: str, directory: str | None) -> Flow[Any]:
        """Read a list of a directory's catalog, which is empty until its plugins are loaded.

        The request for integrations waits until they are (2.0.24).
        """
        request = Request("GET", path, _scope(directory))
        if listed := _data((yield request)):
            return listed
        with suppress(StatusError):
            yield Request("GET", "/api/integration", _scope(directory))
        return _data((yield request))

    def default_agent(self, directory: str | None) -> Flow[str]:
        """Return "build", by the documentation of 2.0: no route that we know reports it."""
        yield from ()
        return "build"

    def commands(self, directory: str | None) -> Flow[tuple[Command, ...]]:
        listed = _data((yield Request("GET", "/api/command", _scope(directory))))
        return decode_list("a command", shapes.command, listed)

    def skills(self, directory: str | None) -> Flow[tuple[Skill, ...]]:
        return decode_list(
            "a skill", shapes.skill, _data((yield Request("GET", "/api/skill", _scope(directory))))
        )

    def mcp(self, directory: str | None) -> Flow[tuple[McpServer, ...]]:
        listed = _data((yield Request("GET", "/api/mcp", _scope(directory))))
        return decode_list("an MCP server", shapes.mcp_server, listed)

    def add_mcp(self, directory: str | None, name: str, config: dict[str, Any]) -> Flow[None]:
        path = f"/api/experimental/mcp/{quote(name, safe='')}"
        yield Request("PUT", path, _scope(directory), {"config": config})

    def remove_mcp(self, directory: str | None, name: str) -> Flow[None]:
        yield Request("DELETE", f"/api/experimental/mcp/{quote(name, safe='')}", _scope(directory))

    def integrations(self, directory: str | None) -> Flow[tuple[Integration, ...]]:
        listed = _data((yield Request("GET", "/api/integration", _scope(directory))))
        return decode_list("an integration", shapes.integration, listed)

    def shell_output(self, directory: str | None, shell: str, cursor: int = 0) -> Flow[ShellOutput]:
        path = f"/api/shell/{quote(shell, safe='')}/output"
        query: Query = {**_scope(directory), "cursor": cursor}
        return decode(
            "a shell's output", shapes.shell_output, _data((yield Request("GET", path, query)))
        )

    def server_directory(self) -> Flow[str]:
        body = json_object((yield Request("GET", "/api/location"))) or {}
        place = as_dict(body.get("data")) or body
        return decode("its location", lambda w: str(w["directory"]), place)

    # -- the stream ------------------------------------------------------------------------------

    def stream(self, directory: str) -> Request:
        """Return the request for the event stream, which covers the whole server."""
        return Request("GET", "/api/event")

    def session_event(self, frame: Any) -> SessionEvent | None:
        if not isinstance(frame, dict) or "durable" not in frame:
            return None
        return decode("an event of a session", shapes.session_event, frame)

    def event_id(self, frame: Any) -> str:
        return string(as_dict(frame).get("id"))

    def events(self, frame: Any) -> Iterator[Event]:
        return v2_events.events(frame)


# -- requests and replies --------------------------------------------------------------------------


def _path(*parts: str) -> str:
    return "/api/session/" + "/".join(quote(p, safe="") for p in parts)


def _entries(session: Session) -> str:
    return f"/api/experimental/session/{quote(session.id, safe='')}/instructions/entries"


def _scope(directory: str | None) -> Query:
    return {"location[directory]": directory or None}


def _data(reply: Reply) -> Any:
    """Return the `data` of a reply."""
    return decode(f"a reply to {reply.request}", lambda body: body["data"], reply.json())


def _rows(pages: Iterable[Reply]) -> list[Wire]:
    """Return the rows of a list."""
    listed = (decode("a page", as_list, _data(page)) for page in pages)
    return [w for page in listed for w in page if isinstance(w, dict)]


def _pages(request: Request) -> Flow[tuple[Reply, ...]]:
    """Read all pages of a list until one is empty: there is always a next cursor."""
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
            logger.warning("%s repeated a cursor; the list is cut off there.", request)
            return tuple(pages)
        seen.add(cursor)
        query = {"cursor": cursor, "limit": request.query.get("limit")}


# -- model to wire ---------------------------------------------------------------------------------


def _ref_out(model: ModelRef) -> Wire:
    ref = {"id": model.id, "providerID": model.provider}
    return ref | ({"variant": model.variant} if model.variant else {})


def _rule_out(rule: Rule) -> Wire:
    return {"action": rule.action, "resource": rule.resource, "effect": rule.effect}


def _answer(item: QuestionItem, texts: Sequence[str]) -> Any:
    """Convert an answer to the type of its field; a single choice must not be a list (2.0.23)."""
    chosen = questions.answer_values(item, texts)
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


# -- edits of tools --------------------------------------------------------------------------------


def _tool_edits(message: Message) -> Iterator[tuple[tuple[FileDiff, ...], str | None]]:
    """Yield the edits of each tool call of a message, and its subagent's session."""
    for tool in message.tools:
        yield _edits_of(tool), tool.child


def _edits_of(tool: ToolCall) -> tuple[FileDiff, ...]:
    """Return the edits of a completed tool call; a write reports only the path (2.0.16)."""
    if tool.status != "completed":
        return ()
    path = string(tool.input.get("path"))
    written = tool.tool == "write" and path and not tool.diffs
    return (FileDiff(path),) if written else tool.diffs


def _turns(rows: Iterable[Message]) -> dict[str, tuple[Message, ...]]:
    """Group the answers of a session by their prompt."""
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
    """Return the id of the prompt whose turn contains a message.

    Raises:
        NotFoundError: The session has no such message.
    """
    for prompt, answers in turns.items():
        if message == prompt or any(m.id == message for m in answers):
            return prompt
    raise NotFoundError(f"The session has no message {message}.", status=404)
