"""What 2.x stores, as the model has it: sessions, messages, and what waits for a person.

The stream tells parts of the same shapes, so `v2_events` reads them here, too. What a shape can't
do without is missed loudly; everything else may be absent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..core.model import (
    Agent,
    Attachment,
    Command,
    Compaction,
    Failure,
    InboxItem,
    Integration,
    LogEntry,
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
    SavedRule,
    Session,
    ShellOutput,
    Skill,
    Status,
    StepEnd,
    StepStart,
    Text,
    ToolCall,
)
from .values import (
    as_dict,
    call_usage,
    file_diffs,
    integer,
    number,
    optional_string,
    required_string,
    string,
    timestamp,
    usage,
)

Wire = dict[str, Any]

_DECLINED = ("The user declined this tool call", "The user dismissed this question")
_CUT_OFF = "Interrupted"


# -- sessions --------------------------------------------------------------------------------------


def session(w: Wire) -> Session:
    """A session; of what is absent nothing is known."""
    time, fork = as_dict(w.get("time")), as_dict(w.get("fork"))
    return Session(
        id=required_string(w["id"]),
        title=string(w.get("title")),
        directory=string(as_dict(w.get("location")).get("directory")),
        project=string(w.get("projectID")) or None,
        parent=string(w.get("parentID")) or None,
        agent=string(w.get("agent")) or None,
        model=model_ref(w.get("model")),
        created=timestamp(time.get("created")),
        updated=timestamp(time.get("updated")),
        archived=timestamp(time.get("archived")) or None,
        usage=usage(w),
        rules=rules(w.get("permissions")),
        metadata=as_dict(w.get("metadata")),
        forked_from=string(fork.get("sessionID")) or None,
        forked_at=string(as_dict(fork.get("boundary")).get("messageID")) or None,
        outcome=string(w.get("outcome")) or None,
        revert=string(as_dict(w.get("revert")).get("messageID")) or None,
    )


def model_ref(w: Any) -> ModelRef | None:
    """The model that something names, if it names one."""
    told = as_dict(w)
    provider, model, variant = (string(told.get(n)) for n in ("providerID", "id", "variant"))
    if not provider or not model:
        return None
    return ModelRef(provider, model, None if variant in ("", "default") else variant)


def rules(values: Any) -> tuple[Rule, ...]:
    """Permission rules, in the order in which they count."""
    listed = values if isinstance(values, list) else []
    return tuple(Rule(w["action"], w["resource"], w["effect"]) for w in listed)


# -- messages --------------------------------------------------------------------------------------


def messages(
    session: str,
    rows: Sequence[Wire],
    read: _Reader | None = None,
    why: Mapping[str, str] | None = None,
) -> tuple[Message, ...]:
    """Stored rows as messages: an answer belongs to the prompt before it.

    `why` is the reason for which a turn was cut off, by the id of the row that notes its end.
    """
    read, why = read or message, why or {}
    found: list[Message] = []
    prompt: str | None = None
    for place, row in enumerate(rows):
        told = read(session, row, prompt)
        if told.role == "user":
            prompt = told.id
        if told.error is not None and told.error.aborted:
            told = replace(told, error=_stopped(told.error, rows[place + 1 :], why))
        elif told.kind == "idle" and told.error is None:
            told = replace(told, error=end_failure(told.finish, why.get(told.id)))
        found.append(told)
    return tuple(found)


_Reader = Callable[[str, Wire, str | None], Message]


def readable_message(session: str, w: Wire, prompt: str | None) -> Message:
    """A stored row: all of it that can be read, and the names of what can't."""
    unread: list[str] = []
    try:
        return message(session, w, prompt)
    except (KeyError, TypeError, AttributeError, ValueError):
        pass
    whole = dict(w)
    for name in [n for n in w if n not in ("id", "type")]:
        try:
            message(session, {k: w[k] for k in ("id", "type", name) if k in w}, prompt)
        except (KeyError, TypeError, AttributeError, ValueError):
            unread.append(name)
            del whole[name]
    try:
        told = message(session, whole, prompt)
    except (KeyError, TypeError, AttributeError, ValueError):
        told = Message(string(w.get("id")), session, "", kind=string(w.get("type")))
        unread.append("type" if told.id else "id")
    return replace(told, unread=tuple(unread))


def _stopped(told: Failure, after: Sequence[Wire], why: Mapping[str, str]) -> Failure:
    """Why a step was stopped: the end of the turn, noted behind it, is a person's or the server's.

    No end is noted of a turn that stopped with the server.
    """
    following = (w for w in after if w.get("type") in ("idle", "user", "assistant"))
    end = next(following, {})
    if end.get("type") != "idle":
        return Failure(_CUT_OFF, "the server stopped, and the turn with it")
    noted = end_failure(end.get("outcome"), why.get(string(end.get("id"))))
    return noted if noted is not None and noted.interrupted else told


def end_failure(outcome: str | None, reason: str | None) -> Failure | None:
    """Why a turn ended so, as far as it is told; None if it succeeded."""
    match outcome, reason:
        case "failed", _:
            return Failure("Failed", "the server keeps no reason")
        case "interrupted", "user":
            return Failure("Aborted", "somebody stopped the turn")
        case "interrupted", None:
            return Failure(_CUT_OFF, "the server does not tell by whom")
        case "interrupted", _:
            return Failure(_CUT_OFF, f"the server cut the turn off ({reason})")
        case _:
            return None


def interruption_reasons(frames: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Why turns were cut off, by the id of the row that notes the end."""
    for frame in frames:
        match frame:
            case {
                "type": "session.execution.interrupted",
                "id": str(key),
                "data": {"reason": str(reason)},
            }:
                yield row_id(key), reason


def row_id(event: str) -> str:
    """The id of the row that a terminal event leaves (2.0.16)."""
    return "msg_" + event.removeprefix("evt_")


def message(session: str, w: Wire, prompt: str | None) -> Message:
    """A stored row; `prompt` is the one before it, which an answer belongs to."""
    required_string(w["id"])
    kind = string(w.get("type"))
    time = w.get("time") or {}
    read = _ROWS.get(kind, _line)
    return read(
        session, w, prompt, timestamp(time.get("created")), timestamp(time.get("completed"))
    )


def inbox_message(session: str, w: Wire) -> Message:
    """A prompt that waits, from an item of the inbox."""
    row = {**as_dict(w.get("payload")), "id": w["id"], "type": w["type"], "time": w.get("time")}
    waiting = message(session, row, None)
    return replace(waiting, queued=True, completed=None)


_Row = Callable[[str, Wire, str | None, int | None, int | None], Message]


def _user(session: str, w: Wire, prompt: str | None, made: int | None, done: int | None) -> Message:
    files: list[Part] = [_file(n, f) for n, f in enumerate(w.get("files") or ())]
    parts = (*files, Text(":text:0", string(w.get("text"))))
    return Message(w["id"], session, "user", made, done, parts=parts)


def _synthetic(
    session: str, w: Wire, prompt: str | None, made: int | None, done: int | None
) -> Message:
    parts = (Text(":text:0", string(w.get("text")), synthetic=True),)
    return Message(w["id"], session, "user", made, done, parts=parts, kind=w["type"])


def _assistant(
    session: str, w: Wire, prompt: str | None, made: int | None, done: int | None
) -> Message:
    used, finish = call_usage(w), string(w.get("finish")) or None
    error = failure(w["error"]) if w.get("error") else None
    parts: list[Part] = [StepStart(":start"), *step_parts(w.get("content") or (), done)]
    if error is not None and error.aborted and _declined(parts):
        # A refusal ends the step as aborted, although the model had come to its end.
        finish, error = "tool-calls", None
    if finish and error is None:
        parts.append(StepEnd(":end", finish, used))
    return Message(
        id=w["id"],
        session=session,
        role="assistant",
        created=made,
        completed=done,
        parent=prompt,
        agent=string(w.get("agent")) or None,
        model=model_ref(w.get("model")),
        finish=finish,
        error=error,
        reported=used,
        parts=tuple(parts),
    )


def _declined(parts: Iterable[Part]) -> bool:
    return any(isinstance(p, ToolCall) and p.declined for p in parts)


def _compaction(
    session: str, w: Wire, prompt: str | None, made: int | None, done: int | None
) -> Message:
    """A summary. One that a person asked for is no answer to the prompt before it."""
    running = w.get("status") == "running"
    auto = w.get("reason") == "auto"
    summary = Text(":text:0", string(w.get("summary")), made, None if running else done or made)
    failed = w.get("status") == "failed"
    return Message(
        id=w["id"],
        session=session,
        role="assistant",
        created=made,
        completed=None if running else done or made,
        parent=prompt if auto else None,
        model=model_ref(w.get("model")),
        finish=None if running or failed else "stop",
        error=failure(w["error"]) if w.get("error") else None,
        reported=call_usage(w),
        summary=True,
        parts=(Compaction(":compaction", auto), summary),
        kind="compaction",
    )


def _line(session: str, w: Wire, prompt: str | None, made: int | None, done: int | None) -> Message:
    """What is neither prompt nor answer; also what this package doesn't know."""
    error = failure(w["error"]) if isinstance(w.get("error"), dict) else None
    told = string(w.get("text")) or string(w.get("command"))
    parts = (Text(":text:0", told, made, made, synthetic=True),) if told else ()
    finish = string(w.get("outcome")) or None
    kind = string(w.get("type")) or "unknown"
    return Message(
        w["id"], session, "system", made, done or made, None, finish=finish, error=error,
        parts=parts, kind=kind,
    )  # fmt: skip


_ROWS: dict[str, _Row] = {
    "user": _user,
    "assistant": _assistant,
    "synthetic": _synthetic,
    "skill": _synthetic,
    "compaction": _compaction,
}


# -- parts -----------------------------------------------------------------------------------------


def step_parts(content: Iterable[Wire], done: int | None) -> Iterator[Part]:
    """The parts of a step. A text has no times of its own: it is closed when the step is."""
    counts = {"text": 0, "reasoning": 0}
    for w in content:
        kind = required_string(w["type"])
        if kind == "tool":
            yield _tool(w)
        elif kind in counts:
            key, time = f":{kind}:{counts[kind]}", w.get("time") or {}
            counts[kind] += 1
            made = timestamp(time.get("created"))
            end = timestamp(time.get("completed")) or done
            part = Text if kind == "text" else Reasoning
            yield part(key, string(w.get("text")), made, end)
        else:
            yield OtherPart(f":{kind}", kind)


def _tool(w: Wire) -> ToolCall:
    state, time = w["state"], w.get("time") or {}
    given = state.get("input")
    return ToolCall(
        id=f":tool:{w['id']}",
        call=required_string(w["id"]),
        tool=string(w["name"]),
        status="pending" if state["status"] == "streaming" else string(state["status"]),
        input=given if isinstance(given, dict) else {},
        start=timestamp(time.get("ran")) or timestamp(time.get("created")),
        end=timestamp(time.get("completed")),
        **tool_result(state),
    )


def tool_result(w: Wire) -> Wire:
    """What is known of a tool's result: its fields in a row and in events are the same."""
    meta, error = as_dict(w.get("metadata")), w.get("error")
    return {
        "output": _output(w.get("content") or ()),
        "error": None if error is None else string(as_dict(error).get("message")) or repr(error),
        "exit": integer(meta.get("exit")),
        "diffs": file_diffs(meta.get("files")),
        "child": string(meta.get("sessionID")) or None,
        "shell": string(meta.get("shellID")) or None,
        "declined": as_dict(error).get("type") == "aborted"
        and as_dict(error).get("message") in _DECLINED,
    }


def _output(content: Iterable[Wire]) -> str:
    texts = [string(c.get("text")) for c in content if c.get("type") == "text"]
    if len(texts) == 1 and texts[0].startswith('{"exit":'):
        # A shell that printed nothing tells how it ended, as JSON (2.0.16).
        with suppress(ValueError):
            told = json.loads(texts[0])
            if set(told) == {"exit", "truncated", "output", "status"} and not told["output"]:
                return ""
    return "\n".join(texts)


def failure(w: Wire) -> Failure:
    """An error, by its type or its tag."""
    kind = string(w.get("type")) or string(w.get("_tag")) or "UnknownError"
    return Failure(kind, string(w.get("message")), integer(w.get("status")))


def _file(place: int, w: Wire) -> Attachment:
    source = as_dict(w.get("source"))
    address = string(w.get("uri")) or string(source.get("uri")) or string(source.get("path"))
    url = "" if address.startswith("data:") else address
    return Attachment(f":file:{place}", string(w.get("mime")), optional_string(w.get("name")), url)


# -- what waits ------------------------------------------------------------------------------------


def permission(w: Wire) -> Permission:
    """A permission that was asked for."""
    source = as_dict(w.get("source"))
    resources = tuple(map(str, w.get("resources") or ()))
    shell = w["action"] == "shell"
    return Permission(
        id=required_string(w["id"]),
        session=required_string(w["sessionID"]),
        action=required_string(w["action"]),
        patterns=resources,
        always=tuple(map(str, w.get("save") or ())),
        saves=bool(w.get("save")),
        command=" && ".join(resources) if shell and resources else None,
        call=optional_string(source.get("id")),
        message=optional_string(source.get("messageID")),
    )


def question(w: Wire) -> Question:
    """A form as a question, without its hidden fields."""
    tool = as_dict(as_dict(w.get("metadata")).get("tool"))
    items = tuple(_field(f) for f in w["fields"] if not f.get("hidden"))
    call, message = optional_string(tool.get("id")), optional_string(tool.get("messageID"))
    return Question(required_string(w["id"]), required_string(w["sessionID"]), items, call, message)


def _field(w: Wire) -> QuestionItem:
    kind: Any = string(w.get("type"))
    several = kind == "multiselect"
    options = [_option(o) for o in w.get("options") or ()]
    if kind == "boolean":
        options = [Option("Yes", value="true"), Option("No", value="false")]
    default = w.get("default")
    given = default if isinstance(default, list) else [] if default is None else [default]
    title, description = string(w.get("title")), string(w.get("description"))
    least, most = (_bound(w, *names) for names in _BOUNDS)
    return QuestionItem(
        question=description or title or required_string(w["key"]),
        header=title if description else "",
        options=tuple(options),
        multiple=several,
        key=required_string(w["key"]),
        kind=kind if kind in ("integer", "number", "boolean", "external") else "string",
        custom=bool(w.get("custom")) or (kind != "boolean" and not options),
        required=bool(w.get("required")),
        default=tuple(_told(v) for v in given),
        least=least,
        most=most,
        pattern=string(w.get("pattern")),
        format=string(w.get("format")),
        url=string(w.get("url")),
        when=tuple(
            (required_string(c["key"]), c["op"], _told(c["value"]))
            for c in w.get("when") or ()
            if c["op"] in ("eq", "neq")  # by what nobody knows nothing is hidden
        ),
    )


_BOUNDS = (("minimum", "minLength", "minItems"), ("maximum", "maxLength", "maxItems"))


def _bound(w: Wire, *names: str) -> float | None:
    return next((n for n in map(number, map(w.get, names)) if n is not None), None)


def _option(w: Wire) -> Option:
    value = required_string(w["value"])
    return Option(string(w.get("label")) or value, string(w.get("description")), value)


def _told(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def retry_status(d: Wire) -> Status:
    """A retry that was scheduled, as what the session does meanwhile."""
    why = string(as_dict(d.get("error")).get("message"))
    return Status("retry", integer(d.get("attempt")), why, integer(d.get("at")))


# -- what a session and the server store besides messages ------------------------------------------


def saved_rule(w: Wire) -> SavedRule:
    """Read a rule that "always" saved."""
    made = integer(as_dict(w.get("time")).get("created"))
    return SavedRule(
        required_string(w["id"]), w["action"], w["resource"], string(w.get("projectID")), made
    )


def inbox_item(w: Wire) -> InboxItem:
    """Read an item of the inbox."""
    return InboxItem(
        id=required_string(w["id"]),
        session=string(w.get("sessionID")),
        kind=string(w.get("type")),
        delivery=string(w.get("delivery")),
        text=string(as_dict(w.get("payload")).get("text")),
        created=integer(as_dict(w.get("time")).get("created")),
    )


def log_entry(w: Wire) -> LogEntry:
    """Read a durable event as an entry of its session's log."""
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


# -- what a directory offers -----------------------------------------------------------------------


def models(values: Iterable[Wire], default: Any) -> tuple[Model, ...]:
    """Read the enabled models; `default` is the one that the server names."""
    chosen = model_ref(default) if as_dict(default).get("id") else None
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


def agents(values: Iterable[Wire]) -> tuple[Agent, ...]:
    """Read the agents that a prompt may name."""
    return tuple(
        Agent(
            required_string(w["id"]),
            string(w.get("description")),
            string(w.get("mode")),
            model_ref(w.get("model")),
            rules(w.get("permissions")),
        )
        for w in values
        if not w.get("hidden")
    )


def command(w: Wire) -> Command:
    """Read a command."""
    template = string(w.get("template"))  # before 2.0; the interface of 2.0 to 2.2 has none
    return Command(required_string(w["name"]), string(w.get("description")), template=template)


def skill(w: Wire) -> Skill:
    """Read a skill."""
    name = string(w.get("name")) or w["id"]
    return Skill(
        required_string(w["id"]), name, string(w.get("description")), string(w.get("path"))
    )


def mcp_server(w: Wire) -> McpServer:
    """Read an MCP server and its state."""
    status = w.get("status")
    told = as_dict(status)
    kind = string(status) or string(told.get("status")) or string(told.get("type"))
    return McpServer(
        required_string(w["name"]), kind, string(told.get("error")) or string(told.get("message"))
    )


def integration(w: Wire) -> Integration:
    """Read an integration."""
    methods = (string(m.get("type")) or string(m.get("id")) for m in w.get("methods") or ())
    links = (string(c.get("label")) or string(c.get("name")) for c in w.get("connections") or ())
    return Integration(
        required_string(w["id"]),
        string(w.get("name")) or required_string(w["id"]),
        tuple(methods),
        tuple(links),
    )


def shell_output(w: Wire) -> ShellOutput:
    """Read what a shell printed."""
    return ShellOutput(string(w.get("output")), w["cursor"], w["size"])
