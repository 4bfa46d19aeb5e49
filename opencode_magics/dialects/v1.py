"""OpenCode 1.x: the `/session` surface, as measured on 1.18.33.

Two rules of scope run through it. Routes with a session id work in the session's own directory;
all others see only the directory they are asked for, replies to permissions and questions
included, so every request carries the directory that the server itself named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from ..core.diffs import Diff, source_of
from ..core.events import (
    Event,
    MessageChanged,
    MessageRemoved,
    PartChanged,
    PartDelta,
    PartRemoved,
    PermissionAsked,
    QuestionAsked,
    RequestReplied,
    SessionChanged,
    SessionDeleted,
    SessionFailed,
    StatusChanged,
)
from ..core.model import (
    Agent,
    Attachment,
    Command,
    Compaction,
    Decision,
    Failure,
    FileDiff,
    McpServer,
    Message,
    Model,
    ModelRef,
    Option,
    OtherPart,
    Part,
    Permission,
    PriceTier,
    Question,
    QuestionItem,
    Reasoning,
    Rule,
    Server,
    Session,
    Skill,
    Status,
    StepEnd,
    StepStart,
    Text,
    Todo,
    ToolCall,
)
from ..core.patches import make_patch, split_lines
from ..errors import NotFoundError, StatusError, UnsupportedOperation
from .base import (
    BaseDialect,
    Flow,
    Prompt,
    Query,
    Reply,
    Request,
    decode,
    decode_list,
    json_object,
    logger,
)
from .values import (
    as_dict,
    as_list,
    call_usage,
    cost_usd,
    count,
    file_diffs,
    integer,
    optional_string,
    required_string,
    string,
    timestamp,
    usage,
)

Wire = dict[str, Any]

# The list is cut at 100 without a word unless a limit is sent.
_ALL = 1_000_000
_PAGE = 1_000

# A list of messages has no other bound than what a session holds.
_PATIENCE = 120.0

# Routes that answer when a turn is over: no bytes come before, and a turn may take a day.
_TURN = 86_400.0

# A refusal that stops the turn; one with feedback has another text and the turn goes on.
_DECLINED = (
    "The user rejected permission to use this specific tool call.",
    "The user dismissed this question",
)

# Some messages bring the server's own stack with them.
_STACK = re.compile(r"\n\s+at .*", re.DOTALL)


def probe() -> Flow[Server | None]:
    """The server, if it is of 1.x: only if its health route answers JSON with a version."""
    try:
        body = json_object((yield Request("GET", "/global/health")))
    except StatusError:
        return None
    version = (body or {}).get("version")
    return Server("1.x", version) if isinstance(version, str) else None


class V1(BaseDialect):
    """The dialect of OpenCode 1.x."""

    generation = "1.x"
    tested = "the real 1.18.33"
    tested_releases = ("1.18", "1.18")
    queue_hint = "line up behind it with --queue"
    busy_route = "/session/status of {directory}"
    silence = 30.0  # heartbeats come every 10 s
    always_scope = "for every session in this directory, until the server restarts"

    # -- sessions ----------------------------------------------------------------------------

    def sessions(self, directory: str | None, *, project: bool) -> Flow[tuple[Session, ...]]:
        """All sessions of a directory, of its whole project, or (None) of the server."""
        if directory is None:
            return (yield from self._all_sessions())
        scope = "project" if project else None
        query: Query = {"directory": directory, "limit": _ALL, "scope": scope}
        return _once(
            decode_list("a session", _session, (yield Request("GET", "/session", query)).json())
        )

    def _all_sessions(self) -> Flow[tuple[Session, ...]]:
        # Only this route crosses directories. It hides archived sessions unless asked.
        found: list[Session] = []
        cursor: str | None = None
        seen: set[str] = set()
        while True:
            query: Query = {"archived": "true", "limit": _PAGE, "cursor": cursor}
            reply = yield Request("GET", "/experimental/session", query)
            found += decode_list("a session", _session, reply.json())
            cursor = reply.headers.get("x-next-cursor")
            if not cursor or cursor in seen:
                return _once(found)
            seen.add(cursor)

    def session(self, session: str) -> Flow[Session]:
        """One session."""
        reply = yield Request("GET", _path(session))
        return decode("a session", _session, reply.json())

    def children(self, session: Session) -> Flow[tuple[Session, ...]]:
        """The subagent sessions directly below a session."""
        reply = yield Request("GET", _path(session.id, "children"), _scope(session.directory))
        return decode_list("a session", _session, reply.json())

    def create(self, directory: str | None, title: str | None) -> Flow[Session]:
        """A new session."""
        body = {"title": title} if title else {}
        reply = yield Request("POST", "/session", _scope(directory), body)
        return decode("a session", _session, reply.json())

    # -- messages and prompts ------------------------------------------------------------------

    def messages(self, session: Session) -> Flow[tuple[Message, ...]]:
        """Every message of a session, oldest first."""
        reply = yield from self._message_list(session)
        return decode_list("a message", _message_with_parts, reply.json())

    def message_pages(self, session: Session) -> Flow[tuple[Reply, ...]]:
        """Every message of a session as the server sends them: in one reply."""
        return ((yield from self._message_list(session)),)

    def readable_messages(self, session: Session, pages: Sequence[Reply]) -> tuple[Message, ...]:
        """The messages in these replies, oldest first, as far as they can be read."""
        listed = (w for page in pages for w in decode("messages", as_list, page.json()))
        return tuple(_readable(w, session.id) for w in listed)

    def _message_list(self, session: Session) -> Flow[Reply]:
        # Older 1.x servers know a session only in its own directory and answer 404 elsewhere.
        path = _path(session.id, "message")
        try:
            return (yield Request("GET", path, _scope(session.directory), timeout=_PATIENCE))
        except NotFoundError:
            home = yield from self.session(session.id)
            return (yield Request("GET", path, _scope(home.directory), timeout=_PATIENCE))

    def message(self, session: Session, message: str) -> Flow[Message]:
        """One message."""
        path = _path(session.id, "message", message)
        reply = yield Request("GET", path, _scope(session.directory))
        return decode("a message", _message_with_parts, reply.json())

    def latest_messages(self, session: Session, count: int) -> Flow[tuple[Message, ...]]:
        """The newest messages of a session, oldest first."""
        query = {**_scope(session.directory), "limit": count}
        reply = yield Request("GET", _path(session.id, "message"), query)
        return decode_list("a message", _message_with_parts, reply.json())

    # -- what changed ----------------------------------------------------------------------------

    def diffs(self, session: Session, message: str | None) -> Flow[Diff]:
        """What changed in a session, or in the turn of one message.

        1.18.33 has no total of a session: there each prompt tells what its turn changed. Outside
        of git it tells nothing; then the edit tools tell what they did, subagents' included. Turns
        that were reverted are left out.
        """
        prompt, listed = None, None
        if message is not None:
            found = yield from self.message(session, message)
            prompt = found.id if found.role == "user" else found.parent or found.id
            # The route garbles a name with quotes and letters beyond ASCII, the prompt does not.
            if found.diffs:
                return Diff.of(((prompt, d) for d in found.diffs), "turns", session.directory)
        query = {**_scope(session.directory), "messageID": prompt}
        reply = yield Request("GET", _path(session.id, "diff"), query)
        with suppress(StatusError):  # no such route
            listed = reply.json()
        if diffs := _diffs(listed):
            told = [(prompt or "", d) for d in diffs]
            return Diff.of(told, "turns" if prompt else "session", session.directory)
        path = _path(session.id, "message")
        body = (yield Request("GET", path, _scope(session.directory))).json()
        turns = decode("messages", _turns, body)
        if prompt is None:
            now = json_object((yield Request("GET", _path(session.id)))) or {}
            turns = _before(turns, (now.get("revert") or {}).get("messageID"))
        else:
            turns = {prompt: turns.get(prompt, ())}
        return (yield from self._told(session, turns, readable=isinstance(listed, list)))

    def _told(
        self, session: Session, turns: dict[str, tuple[Wire, ...]], readable: bool
    ) -> Flow[Diff]:
        """A Diff of what prompts and edit tools tell."""
        told: list[tuple[str, FileDiff]] = []
        kinds: set[str] = set()
        seen = {session.id}
        for prompt, messages in turns.items():
            diffs: Sequence[FileDiff] = _summarised(messages)
            kind = "turns" if diffs else "tools"
            diffs = diffs or (yield from self._edits(session, messages, seen))
            kinds |= {kind} if diffs else set()
            told += [(prompt, d) for d in diffs]
        if not kinds:
            return Diff((), "turns" if readable else "nothing")
        return Diff.of(told, source_of(kinds), session.directory)

    def _edits(
        self, session: Session, messages: Sequence[Wire], seen: set[str]
    ) -> Flow[list[FileDiff]]:
        """What edit tools say that they did, those of subagents where these were called."""
        found: list[FileDiff] = []
        for part in (p for m in messages for p in m.get("parts") or ()):
            state = part.get("state") or {}
            found += _tool_edits(state)
            child = (state.get("metadata") or {}).get("sessionId")
            if child and child not in seen:
                seen.add(child)  # one that is called again tells all of it
                path = _path(child, "message")
                with suppress(NotFoundError):  # deleted
                    body = (yield Request("GET", path, _scope(session.directory))).json()
                    found += yield from self._edits(session, body, seen)
        return found

    def prompt(self, session: Session, prompt: Prompt) -> Flow[None]:
        """Hand over a prompt. `tools` is never sent: it would rewrite the session's rules."""
        body: Wire = {"messageID": prompt.id, "parts": [_file_part(f) for f in prompt.files]}
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
        """Give a session a command; the answer comes when its turn is over.

        The server makes a prompt of it that has our id. With `subtask` that holds the subagent's
        call only, and what the agent says of it answers a synthetic prompt behind it.
        """
        body: Wire = {"messageID": prompt.id, "command": prompt.command, "arguments": prompt.text}
        if prompt.agent:
            body["agent"] = prompt.agent
        if prompt.model:
            body["model"] = f"{prompt.model.provider}/{prompt.model.id}"
            if prompt.model.variant:
                body["variant"] = prompt.model.variant
        path = _path(session.id, "command")
        yield Request("POST", path, _scope(session.directory), body, timeout=_TURN)

    def abort(self, session: Session) -> Flow[None]:
        """Ask a session to stop. Answers true for an idle or unknown session as well."""
        path = _path(session.id, "abort")
        yield Request("POST", path, _scope(session.directory), {}, timeout=5.0)

    # -- what becomes of a session -----------------------------------------------------------------

    def delete(self, session: Session) -> Flow[None]:
        """Delete a session and its subagents' sessions.

        Never one that is at work: 1.18.33 goes on with the turn, fails to store it, and tries that
        again for ever.
        """
        yield Request("DELETE", _path(session.id), _scope(session.directory))

    def archive(self, session: Session, at: int | None) -> Flow[None]:
        """Archive a session, or bring it back: 0 does that, null is ignored (1.18.33)."""
        yield from self._patched(session, {"time": {"archived": at or 0}})

    def rename(self, session: Session, title: str) -> Flow[None]:
        """Give a session another title."""
        yield from self._patched(session, {"title": title})

    def set_metadata(self, session: Session, metadata: Mapping[str, Any]) -> Flow[None]:
        """Replace what stays with a session on the server; a fork takes a copy along."""
        yield from self._patched(session, {"metadata": dict(metadata)})

    def _patched(self, session: Session, body: Wire) -> Flow[None]:
        yield Request("PATCH", _path(session.id), _scope(session.directory), body)

    def fork(self, session: Session, before: str | None) -> Flow[Session]:
        """A new session with a copy of the messages; an unknown `before` is taken for none."""
        body = {"messageID": before} if before else {}
        reply = yield from self._posted(session, "fork", body)
        return decode("a session", _session, reply.json())

    def revert(
        self, session: Session, message: str, files: bool = True
    ) -> Flow[tuple[FileDiff, ...]]:
        """Take a session and its files back; an unknown message changes nothing, silently."""
        if not files:
            raise self._missing("way to take messages back and leave the files as they are")
        yield from self._posted(session, "revert", {"messageID": message})
        return ()

    def unrevert(self, session: Session) -> Flow[None]:
        """Bring back what a revert took away."""
        yield from self._posted(session, "unrevert", {})

    def commit_revert(self, session: Session) -> Flow[None]:
        """Not to be had: the next prompt does it."""
        raise UnsupportedOperation(
            "OpenCode 1.x has no way to make a revert final.",
            "The next prompt to the session does: it deletes the messages that were taken back.",
        )
        yield  # a flow like the others

    def _posted(self, session: Session, action: str, body: Wire) -> Flow[Reply]:
        path = _path(session.id, action)
        return (yield Request("POST", path, _scope(session.directory), body, timeout=_PATIENCE))

    def compact(self, session: Session, model: ModelRef) -> Flow[str | None]:
        """Have a model sum the session up; the answer comes when that is done."""
        body = {"providerID": model.provider, "modelID": model.id}
        path = _path(session.id, "summarize")
        yield Request("POST", path, _scope(session.directory), body, timeout=_TURN)
        return None

    def todos(self, session: Session) -> Flow[tuple[Todo, ...]]:
        """The list that the session's agent keeps."""
        reply = yield Request("GET", _path(session.id, "todo"), _scope(session.directory))
        return decode_list("a todo", _todo, reply.json())

    def share(self, session: Session) -> Flow[str | None]:
        """Make a session public. Where sharing is disabled, 1.18.33 answers a bare 500."""
        yield Request("POST", _path(session.id, "share"), _scope(session.directory), {})
        reply = yield Request("GET", _path(session.id))
        return string(as_dict((json_object(reply) or {}).get("share")).get("url")) or None

    def unshare(self, session: Session) -> Flow[None]:
        """Take a session back from the public."""
        yield Request("DELETE", _path(session.id, "share"), _scope(session.directory))

    # -- a directory's state ---------------------------------------------------------------------

    def statuses(self, directory: str) -> Flow[dict[str, Status]]:
        """The sessions of a directory that are not idle. Asked without it, {} proves nothing."""
        reply = yield Request("GET", "/session/status", _scope(directory), timeout=5.0)
        return decode("statuses", _statuses, reply.json())

    def permissions(self, directory: str) -> Flow[tuple[Permission, ...]]:
        """Permissions that wait in a directory."""
        reply = yield Request("GET", "/permission", _scope(directory), timeout=5.0)
        return decode_list("a permission", _permission, reply.json())

    def questions(self, directory: str) -> Flow[tuple[Question, ...]]:
        """Questions that wait in a directory."""
        reply = yield Request("GET", "/question", _scope(directory), timeout=5.0)
        return decode_list("a question", _question, reply.json())

    def reply(
        self, permission: Permission, directory: str, decision: Decision, message: str
    ) -> Flow[None]:
        """Decide a permission. "reject" without a message stops the turn, with one it goes on."""
        body = {"reply": decision} | ({"message": message} if message else {})
        path = f"/permission/{quote(permission.id, safe='')}/reply"
        yield Request("POST", path, _scope(directory), body)

    def answer(
        self, question: Question, directory: str, answers: Sequence[Sequence[str]]
    ) -> Flow[None]:
        """Answer a question, one list of labels or free texts per item."""
        path = f"/question/{quote(question.id, safe='')}/reply"
        yield Request("POST", path, _scope(directory), {"answers": [list(a) for a in answers]})

    def dismiss(self, question: Question, directory: str) -> Flow[None]:
        """Refuse to answer a question; the turn stops."""
        path = f"/question/{quote(question.id, safe='')}/reject"
        yield Request("POST", path, _scope(directory), {})

    def models(self, directory: str | None) -> Flow[tuple[Model, ...]]:
        """The models of a directory.

        `/config/providers` also warms the directory's instance: an abort into a cold one breaks it
        until it is disposed of. Its own `default` is not the configured model, `/config` has that.
        """
        body = (yield Request("GET", "/config/providers", _scope(directory))).json()
        config = (yield Request("GET", "/config", _scope(directory))).json()
        return decode("its models", lambda b: tuple(_models(b, config.get("model"))), body)

    def prices(self, directory: str | None) -> Flow[tuple[Model, ...]]:
        """The models of a directory for their prices: in one request, not saying the default."""
        body = (yield Request("GET", "/config/providers", _scope(directory))).json()
        return decode("its models", lambda b: tuple(_models(b, None)), body)

    def agents(self, directory: str | None) -> Flow[tuple[Agent, ...]]:
        """The agents of a directory that a person may name."""
        reply = yield Request("GET", "/agent", _scope(directory))
        return decode("its agents", _agents, reply.json())

    def commands(self, directory: str | None) -> Flow[tuple[Command, ...]]:
        """The commands of a directory."""
        reply = yield Request("GET", "/command", _scope(directory))
        return decode_list("a command", _command, reply.json())

    def skills(self, directory: str | None) -> Flow[tuple[Skill, ...]]:
        """The skills of a directory."""
        return decode_list(
            "a skill", _skill, (yield Request("GET", "/skill", _scope(directory))).json()
        )

    def mcp(self, directory: str | None) -> Flow[tuple[McpServer, ...]]:
        """The MCP servers of a directory."""
        body = (yield Request("GET", "/mcp", _scope(directory))).json()
        return decode("MCP servers", _mcp_servers, body)

    def add_mcp(self, directory: str | None, name: str, config: dict[str, Any]) -> Flow[None]:
        """Add an MCP server, until the server restarts."""
        yield Request("POST", "/mcp", _scope(directory), {"name": name, "config": config})

    def server_directory(self) -> Flow[str]:
        """The directory that the server itself runs in."""
        body = (yield Request("GET", "/path")).json()
        return decode("its paths", lambda b: str(b["directory"]), body)

    # -- the stream ------------------------------------------------------------------------------

    def stream(self, directory: str) -> Request:
        """The request that opens the event stream of a directory."""
        return Request("GET", "/event", _scope(directory))

    def events(self, frame: Any) -> Iterator[Event]:
        """Decode one frame. Unknown kinds yield nothing."""
        kind = string(frame.get("type")) if isinstance(frame, dict) else ""
        read = _EVENTS.get(kind)
        if read is not None:
            yield decode(f"a {kind} event", read, frame.get("properties"))
        elif kind.startswith(("permission.", "question.")):
            logger.warning("The server sent %s, which this package does not know.", kind)


def _path(*parts: str) -> str:
    return "/session/" + "/".join(quote(p, safe="") for p in parts)


def _scope(directory: str | None) -> Query:
    return {"directory": directory or None}


def _once(sessions: Iterable[Session]) -> tuple[Session, ...]:
    return tuple({s.id: s for s in sessions}.values())


# -- wire to model ---------------------------------------------------------------------------------


def _session(w: Wire) -> Session:
    time, model, summary = (
        as_dict(w.get("time")),
        as_dict(w.get("model")),
        as_dict(w.get("summary")),
    )
    changes = [count(summary.get(name)) for name in ("files", "additions", "deletions")]
    files, additions, deletions = changes if any(changes) else (None, None, None)  # 0 is not told
    provider, model_id = string(model.get("providerID")), string(model.get("id"))
    return Session(
        id=required_string(w["id"]),
        title=string(w.get("title")),
        directory=string(w.get("directory")),
        project=string(w.get("projectID")) or None,
        parent=string(w.get("parentID")) or None,
        agent=string(w.get("agent")) or None,
        model=_ref(provider, model_id, model.get("variant")) if provider and model_id else None,
        created=timestamp(time.get("created")),
        updated=timestamp(time.get("updated")),
        archived=timestamp(time.get("archived")) or None,  # an unarchived session keeps a 0
        usage=usage(w),
        revert=string(as_dict(w.get("revert")).get("messageID")) or None,
        changed=files,
        additions=additions,
        deletions=deletions,
        metadata=as_dict(w.get("metadata")),
        rules=_rules(w.get("permission")),
    )


def _todo(w: Wire) -> Todo:
    return Todo(string(w["content"]), string(w["status"]), string(w.get("priority")))


def _ref(provider: str, model: str, variant: Any = None) -> ModelRef:
    return ModelRef(provider, model, None if variant == "default" else optional_string(variant))


def _statuses(body: Wire) -> dict[str, Status]:
    return {session: _status(w) for session, w in body.items()}


def _status(w: Wire) -> Status:
    return Status(
        w["type"] if w["type"] in ("idle", "retry") else "busy",
        attempt=integer(w.get("attempt")),
        message=string(w.get("message")),
        next=integer(w.get("next")),
    )


def _message_with_parts(w: Wire) -> Message:
    return _message(w["info"], tuple(_part(p) for p in w.get("parts") or ()))


def _message(w: Wire, parts: tuple[Part, ...] = (), unread: tuple[str, ...] = ()) -> Message:
    time, model = w.get("time") or {}, w.get("model") or w
    provider, model_id = string(model.get("providerID")), string(model.get("modelID"))
    role = str(w["role"])
    variant = w.get("variant") or model.get("variant")
    summary = w.get("summary")
    return Message(
        id=required_string(w["id"]),
        session=string(w.get("sessionID")),
        role=role,
        created=timestamp(time.get("created")),
        completed=timestamp(time.get("completed")),
        parent=optional_string(w.get("parentID")),
        agent=optional_string(w.get("agent")),
        model=_ref(provider, model_id, variant) if provider and model_id else None,
        finish=optional_string(w.get("finish")),
        error=_failure(w["error"]) if w.get("error") else None,
        reported=call_usage(w) if role == "assistant" else None,
        summary=summary is True,
        diffs=_diffs(summary.get("diffs")) if isinstance(summary, dict) else (),
        parts=parts,
        unread=unread,
    )


def _readable(w: Any, session: str) -> Message:
    """A stored message: all of it that can be read, and the names of what can't."""
    w = as_dict(w)
    info, unread = _fitting(as_dict(w.get("info")))
    listed = w.get("parts") if isinstance(w.get("parts"), list) else ()
    parts = tuple([_readable_part(p, unread) for p in listed or ()])
    return _message(info | {"sessionID": session}, parts, tuple(unread))


def _fitting(info: Wire) -> tuple[Wire, list[str]]:
    """A message's header without the fields that are of another kind than they should be."""
    odd = [n for n, kind in _KINDS.items() if not isinstance(info.get(n), kind | None)]
    odd += [n for n in ("id", "role") if info.get(n) is None]
    if odd:
        info = {"id": "", "role": ""} | {n: v for n, v in info.items() if n not in odd}
    tokens, time = info.get("tokens") or {}, info.get("time") or {}
    cache, model = as_dict(tokens.get("cache")), info.get("model") or {}
    told = (
        ("cost", info.get("cost"), cost_usd),
        ("tokens.input", tokens.get("input"), count),
        ("tokens.output", tokens.get("output"), count),
        ("tokens.reasoning", tokens.get("reasoning"), count),
        ("tokens.cache.read", cache.get("read"), count),
        ("tokens.cache.write", cache.get("write"), count),
        ("time.created", time.get("created"), timestamp),
        ("time.completed", time.get("completed"), timestamp),
        ("model.providerID", model.get("providerID"), optional_string),
        ("model.modelID", model.get("modelID"), optional_string),
        ("model.variant", model.get("variant"), optional_string),
    )
    odd += [name for name, value, read in told if value is not None and read(value) is None]
    if info["role"] not in ("user", "assistant", ""):
        odd.append("role")
    return info, odd


_KINDS: dict[str, type] = {
    **dict.fromkeys(("id", "role", "sessionID", "parentID", "agent", "variant", "finish"), str),
    **dict.fromkeys(("modelID", "providerID"), str),
    **dict.fromkeys(("time", "tokens", "model", "error"), dict),
}


def _readable_part(w: Any, unread: list[str]) -> Part:
    try:
        return _part(w)
    except (KeyError, TypeError, AttributeError, ValueError):
        unread.append("part")
        return OtherPart(string(as_dict(w).get("id")), string(as_dict(w).get("type")))


def _failure(w: Wire) -> Failure:
    data = as_dict(w.get("data"))
    return Failure(
        name=str(w.get("name") or w.get("_tag") or "UnknownError"),
        message=_STACK.sub("", str(data.get("message") or w.get("message") or "")),
        status=integer(data.get("statusCode")),
        provider=string(data.get("providerID")) or None,
    )


def _diffs(values: Any) -> tuple[FileDiff, ...]:
    return file_diffs(values, _patch)


def _patch(w: Wire) -> str:
    return string(w.get("patch")) or string(w.get("diff")) or _compared(w)


def _turns(body: Any) -> dict[str, tuple[Wire, ...]]:
    """Messages by the prompt that they belong to, which comes first."""
    turns: dict[str, tuple[Wire, ...]] = {}
    for w in body:
        info = w["info"]
        prompt = info["id"] if info["role"] == "user" else info.get("parentID") or ""
        turns[prompt] = (*turns.get(prompt, ()), w)
    return turns


def _before(turns: dict[str, tuple[Wire, ...]], message: str | None) -> dict[str, tuple[Wire, ...]]:
    """The turns before a message, all if it is none of theirs."""
    places = (n for n, t in enumerate(turns.values()) for m in t if m["info"]["id"] == message)
    return dict(list(turns.items())[: next(places, None)])


def _summarised(messages: Sequence[Wire]) -> tuple[FileDiff, ...]:
    """What a prompt tells of its turn."""
    summaries = (m["info"].get("summary") for m in messages if m["info"]["role"] == "user")
    return tuple(d for s in summaries if isinstance(s, dict) for d in _diffs(s.get("diffs")))


def _tool_edits(state: Wire) -> tuple[FileDiff, ...]:
    """What a tool that came to its end changed."""
    meta, given = state.get("metadata") or {}, state.get("input") or {}
    if state.get("status") != "completed":
        return ()
    file = string(meta.get("filepath"))
    if "exists" not in meta or not file:
        return _tool_diffs(meta)
    if meta["exists"]:  # a write over a file: what was there before is not told
        return (FileDiff(file, status="modified"),)
    made = _compared({"before": "", "after": given.get("content")})
    return (FileDiff(file, made, status="added"),)


def _compared(w: Wire) -> str:
    """The patch of an entry that has the two texts instead, as servers before 1.1 sent it."""
    before, after = w.get("before"), w.get("after")
    if not isinstance(before, str) or not isinstance(after, str):
        return ""
    return make_patch(split_lines(before), split_lines(after))


def _part(w: Wire) -> Part:
    read = _PARTS.get(w["type"])
    return read(w) if read else OtherPart(string(w["id"]), string(w["type"]))


def _text(w: Wire) -> Text:
    time = w.get("time") or {}
    synthetic = bool(w.get("synthetic"))
    start, end = timestamp(time.get("start")), timestamp(time.get("end"))
    return Text(string(w["id"]), string(w.get("text")), start, end, synthetic)


def _reasoning(w: Wire) -> Reasoning:
    time = w.get("time") or {}
    start, end = timestamp(time.get("start")), timestamp(time.get("end"))
    return Reasoning(string(w["id"]), string(w.get("text")), start, end)


def _tool(w: Wire) -> ToolCall:
    state = w["state"]
    meta, time = state.get("metadata") or {}, state.get("time") or {}
    error = state.get("error")
    return ToolCall(
        id=string(w["id"]),
        call=string(w.get("callID")),
        tool=string(w["tool"]),
        status=string(state["status"]),
        input=as_dict(state.get("input")),
        title=string(state.get("title")) or None,
        output=string(state.get("output")) or string(meta.get("output")),
        error=None if error is None else string(error) or repr(error),
        exit=integer(meta.get("exit")),
        diffs=tuple(_named(d, state.get("title")) for d in _tool_diffs(meta)),
        child=string(meta.get("sessionId")) or None,
        declined=error in _DECLINED,
        start=timestamp(time.get("start")),
        end=timestamp(time.get("end")),
    )


def _tool_diffs(meta: Wire) -> tuple[FileDiff, ...]:
    if isinstance(meta.get("filediff"), dict):
        return _diffs([meta["filediff"]])
    if isinstance(meta.get("files"), list):
        return _diffs(meta["files"])
    patch = meta.get("diff")
    return (FileDiff(string(meta.get("filepath")), patch),) if isinstance(patch, str) else ()


def _named(diff: FileDiff, title: Any) -> FileDiff:
    """An edit under the name in its title: that is relative, the report's own is absolute."""
    known = isinstance(title, str) and title and diff.file.endswith(f"/{title}")
    return replace(diff, file=title) if known else diff


def _step_end(w: Wire) -> StepEnd:
    return StepEnd(string(w["id"]), string(w.get("reason")) or None, call_usage(w))


def _attachment(w: Wire) -> Attachment:
    # The address is left out where it carries the whole file.
    url = string(w.get("url"))
    url = "" if url.startswith("data:") else url
    return Attachment(
        string(w["id"]), string(w.get("mime")), optional_string(w.get("filename")), url
    )


def _file_part(file: Attachment) -> Wire:
    return {"type": "file", "mime": file.mime, "filename": file.filename, "url": file.url}


_PARTS: dict[str, Callable[[Wire], Part]] = {
    "text": _text,
    "reasoning": _reasoning,
    "tool": _tool,
    "step-start": lambda w: StepStart(string(w["id"])),
    "step-finish": _step_end,
    "file": _attachment,
    "compaction": lambda w: Compaction(
        string(w["id"]), bool(w.get("auto")), bool(w.get("overflow"))
    ),
}


def _permission(w: Wire) -> Permission:
    """A permission in its present shape, or in the old one (type, pattern, title)."""
    meta = w.get("metadata") or {}
    patterns = w.get("patterns") or w.get("pattern") or ()
    tool = w.get("tool") or w
    diff = meta.get("diff")
    return Permission(
        id=required_string(w["id"]),
        session=required_string(w["sessionID"]),
        action=required_string(w.get("permission") or w["type"]),
        patterns=(patterns,) if isinstance(patterns, str) else tuple(map(str, patterns)),
        always=tuple(map(str, w.get("always") or ())),
        command=string(meta.get("command")) or None,
        diff=FileDiff(string(meta.get("filepath")), diff) if isinstance(diff, str) else None,
        call=optional_string(tool.get("callID")),
        message=optional_string(tool.get("messageID")),
    )


def _question(w: Wire) -> Question:
    items = tuple(
        QuestionItem(
            question=required_string(q["question"]),
            header=string(q.get("header")),
            options=tuple(
                Option(required_string(o["label"]), string(o.get("description")))
                for o in q.get("options") or ()
            ),
            multiple=bool(q.get("multiple")),
            custom=q.get("custom") is not False,
            required=True,
        )
        for q in w["questions"]
    )
    tool = w.get("tool") or {}
    call, message = optional_string(tool.get("callID")), optional_string(tool.get("messageID"))
    return Question(required_string(w["id"]), required_string(w["sessionID"]), items, call, message)


def _models(body: Wire, default: str | None) -> Iterator[Model]:
    for provider in body["providers"]:
        for key, w in provider["models"].items():
            limit, price = as_dict(w.get("limit")), as_dict(w.get("cost"))
            cache = as_dict(price.get("cache"))
            images = as_dict(as_dict(w.get("capabilities")).get("input")).get("image")
            yield Model(
                provider=provider["id"],
                id=key,
                name=w.get("name") or "",
                variants=tuple(w.get("variants") or ()),
                context=count(limit.get("context")),
                output=count(limit.get("output")),
                price_input=cost_usd(price.get("input")),
                price_output=cost_usd(price.get("output")),
                price_cache_read=cost_usd(cache.get("read")),
                price_cache_write=cost_usd(cache.get("write")),
                default=default == f"{provider['id']}/{key}",
                tiers=tuple(_tiers(price)),
                images=images if isinstance(images, bool) else None,
            )


def _tiers(price: Wire) -> Iterator[PriceTier]:
    """Prices of long prompts, as 1.18.33 bills: the longest tier that is passed, else the other."""
    listed = [
        t for t in price.get("tiers") or () if as_dict(t.get("tier")).get("type") == "context"
    ]
    tiers = {t["tier"]["size"]: t for t in listed}
    beyond = price.get("experimentalOver200K")
    if beyond and not any(size <= 200_000 for size in tiers):
        tiers[200_000] = beyond
    for above, w in sorted(tiers.items()):
        cache = as_dict(w.get("cache"))
        told = (w.get("input"), w.get("output"), cache.get("read"), cache.get("write"))
        yield PriceTier(above, *map(cost_usd, told))


def _agents(body: Any) -> tuple[Agent, ...]:
    return tuple(_agent(a) for a in body if not a.get("hidden"))


def _agent(w: Wire) -> Agent:
    model = w.get("model")
    return Agent(
        w["name"],
        w.get("description") or "",
        w.get("mode") or "",
        _ref(model["providerID"], model["modelID"]) if model else None,
        _rules(w.get("permission")),
    )


def _rules(values: Any) -> tuple[Rule, ...]:
    listed = values if isinstance(values, list) else []
    return tuple(Rule(w["permission"], w["pattern"], w["action"]) for w in listed)


def _command(w: Wire) -> Command:
    return Command(w["name"], string(w.get("description")), w.get("agent"), w.get("model"))


def _skill(w: Wire) -> Skill:
    return Skill(w["name"], w["name"], string(w.get("description")), string(w.get("location")))


def _mcp_servers(body: Wire) -> tuple[McpServer, ...]:
    return tuple(
        McpServer(name, string(w.get("status")), string(w.get("error"))) for name, w in body.items()
    )


# -- frames to events ------------------------------------------------------------------------------


def _session_failed(p: Wire) -> Event:
    return SessionFailed(string(p.get("sessionID")), _failure(p.get("error") or {}))


def _message_changed(p: Wire) -> Event:
    return MessageChanged(_message(p["info"]))


def _part_changed(p: Wire) -> Event:
    w = p["part"]
    session = required_string(w.get("sessionID") or p["sessionID"])
    return PartChanged(session, required_string(w["messageID"]), _part(w))


def _delta(p: Wire) -> Event:
    # Deltas of reasoning have the field "text" too; the part's own kind tells them apart.
    text = string(p["delta"]) if p.get("field") == "text" else ""
    return PartDelta(*_place_of(p), text)


def _permission_replied(p: Wire) -> Event:
    request = required_string(p.get("requestID") or p["permissionID"])
    return RequestReplied(
        required_string(p["sessionID"]), request, required_string(p.get("reply") or p["response"])
    )


def _settled(p: Wire, reply: str) -> Event:
    return RequestReplied(required_string(p["sessionID"]), required_string(p["requestID"]), reply)


def _status_changed(p: Wire, status: Status) -> Event:
    return StatusChanged(required_string(p["sessionID"]), status)


def _place_of(p: Wire) -> tuple[str, str, str]:
    """Where a part is: in which session and message, and its id."""
    return (
        required_string(p["sessionID"]),
        required_string(p["messageID"]),
        required_string(p["partID"]),
    )


_EVENTS: dict[str, Callable[[Wire], Event]] = {
    "session.created": lambda p: SessionChanged(_session(p["info"])),
    "session.updated": lambda p: SessionChanged(_session(p["info"])),
    "session.deleted": lambda p: SessionDeleted(
        required_string(p.get("sessionID") or p["info"]["id"])
    ),
    "session.status": lambda p: _status_changed(p, _status(p["status"])),
    "session.idle": lambda p: _status_changed(p, Status("idle")),
    "session.error": _session_failed,
    "message.updated": _message_changed,
    "message.removed": lambda p: MessageRemoved(
        required_string(p["sessionID"]), required_string(p["messageID"])
    ),
    "message.part.updated": _part_changed,
    "message.part.delta": _delta,
    "message.part.removed": lambda p: PartRemoved(*_place_of(p)),
    "permission.asked": lambda p: PermissionAsked(_permission(p)),
    "permission.updated": lambda p: PermissionAsked(_permission(p)),
    "permission.replied": _permission_replied,
    "question.asked": lambda p: QuestionAsked(_question(p)),
    "question.replied": lambda p: _settled(p, "answered"),
    "question.rejected": lambda p: _settled(p, "dismissed"),
}
