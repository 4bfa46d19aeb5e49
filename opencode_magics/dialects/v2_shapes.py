"""Decode the stored values of 2.x: sessions, messages, requests, the catalog.

`v2_events` uses these functions, too, since the stream sends parts of the same objects. A missing
required field raises an error; all other fields are optional.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    SessionEvent,
    ShellOutput,
    Skill,
    Status,
    StepEnd,
    StepStart,
    Text,
    ToolCall,
)
from ..errors import printable
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
_INTERRUPTED = "Interrupted"


# -- sessions --------------------------------------------------------------------------------------


def session(w: Wire) -> Session:
    """Read a session, which may be partial."""
    time, fork = as_dict(w.get("time")), as_dict(w.get("fork"))
    return Session(
        id=required_string(w["id"]),
        title=printable(string(w.get("title"))),
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
        path=string(w.get("subpath")),
    )


def model_ref(w: Any) -> ModelRef | None:
    """Read a reference to a model; None if there is none."""
    names = map(as_dict(w).get, ("providerID", "id", "variant"))
    provider, model, variant = map(string, names)
    if not provider or not model:
        return None
    return ModelRef(provider, model, None if variant in ("", "default") else variant)


def rules(values: Any) -> tuple[Rule, ...]:
    """Read permission rules, in order of evaluation."""
    listed = values if isinstance(values, list) else []
    return tuple(Rule(w["action"], w["resource"], w["effect"]) for w in listed)


# -- messages --------------------------------------------------------------------------------------


def messages(
    session: str,
    rows: Sequence[Wire],
    read: _Reader | None = None,
) -> tuple[Message, ...]:
    """Read stored rows as messages; an answer belongs to the prompt before it."""
    read = read or message
    decoded: list[Message] = []
    prompt: str | None = None
    for n, row in enumerate(rows):
        new = read(session, row, prompt)
        if new.role == "user":
            prompt = new.id
        if new.error is not None and new.error.aborted:
            new = replace(new, error=_abort_failure(new.error, rows[n + 1 :]))
        elif new.kind == "idle" and new.error is None:
            new = replace(new, error=end_failure(new.finish))
        decoded.append(new)
    return tuple(decoded)


_Reader = Callable[[str, Wire, str | None], Message]


def readable_message(session: str, w: Wire, prompt: str | None) -> Message:
    """Read a stored row as far as possible; `unread` names the fields that can't be read."""
    unread: list[str] = []
    try:
        return message(session, w, prompt)
    except (KeyError, TypeError, AttributeError, ValueError):
        pass
    readable = dict(w)
    for name in [n for n in w if n not in ("id", "type")]:
        try:
            message(session, {k: w[k] for k in ("id", "type", name) if k in w}, prompt)
        except (KeyError, TypeError, AttributeError, ValueError):
            unread.append(name)
            del readable[name]
    try:
        partial = message(session, readable, prompt)
    except (KeyError, TypeError, AttributeError, ValueError):
        partial = Message(string(w.get("id")), session, "", kind=string(w.get("type")))
        unread.append("type" if partial.id else "id")
    return replace(partial, unread=tuple(unread))


def _abort_failure(error: Failure, after: Iterable[Wire]) -> Failure:
    """The failure of an aborted step: a person's stop, or a stop of the server.

    After a person's stop, a row records the end of the turn; after the server's, none does (2.0.12
    to 2.0.26).
    """
    following = (w for w in after if w.get("type") in ("idle", "user", "assistant"))
    if next(following, {}).get("type") != "idle":
        return Failure(_INTERRUPTED, "the server stopped during the turn")
    return error


def end_failure(outcome: str | None, reason: str | None = None) -> Failure | None:
    """Return the failure of a turn by its recorded outcome; None if it succeeded.

    Args:
        outcome: The outcome, in a stored row or an event.
        reason: The reason of an interruption, which only an event has. A row is stored only if a
            person stopped the turn.
    """
    match outcome:
        case "failed":
            return Failure("Failed", "the server stored no reason")
        case "interrupted" if reason in (None, "", "user"):
            return Failure("Aborted", "a person stopped the turn")
        case "interrupted":
            return Failure(_INTERRUPTED, f"the server interrupted the turn ({reason})")
        case _:
            return None


def row_id(event: str) -> str:
    """Return the id of the row that is stored for the final event of a turn (2.0.16)."""
    return "msg_" + event.removeprefix("evt_")


def message(session: str, w: Wire, prompt: str | None) -> Message:
    """Read a stored row; an answer belongs to `prompt`, the id of the last prompt before it."""
    required_string(w["id"])
    kind = string(w.get("type"))
    time = w.get("time") or {}
    read = _ROWS.get(kind, _other)
    return read(
        session, w, prompt, timestamp(time.get("created")), timestamp(time.get("completed"))
    )


def inbox_message(session: str, w: Wire) -> Message:
    """Read a queued prompt from an inbox item."""
    row = {**as_dict(w.get("payload")), "id": w["id"], "type": w["type"], "time": w.get("time")}
    return replace(message(session, row, None), queued=True, completed=None)


_Row = Callable[[str, Wire, str | None, int | None, int | None], Message]


def _user(
    session: str, w: Wire, prompt: str | None, created: int | None, completed: int | None
) -> Message:
    files: list[Part] = [_file(n, f) for n, f in enumerate(w.get("files") or ())]
    parts = (*files, Text(":text:0", string(w.get("text"))))
    metadata = as_dict(w.get("metadata"))
    return Message(w["id"], session, "user", created, completed, parts=parts, metadata=metadata)


def _synthetic(
    session: str, w: Wire, prompt: str | None, created: int | None, completed: int | None
) -> Message:
    parts = (Text(":text:0", string(w.get("text")), synthetic=True),)
    return Message(
        w["id"], session, "user", created, completed, parts=parts, kind=w["type"],
        metadata=as_dict(w.get("metadata")),
    )  # fmt: skip


def _assistant(
    session: str, w: Wire, prompt: str | None, created: int | None, completed: int | None
) -> Message:
    used, finish = call_usage(w), string(w.get("finish")) or None
    error = failure(w["error"]) if w.get("error") else None
    parts: list[Part] = [StepStart(":start"), *step_parts(w.get("content") or (), completed)]
    if error is not None and error.aborted and _declined(parts):
        # After a refusal the step is stored as aborted, although the model call was complete.
        finish, error = "tool-calls", None
    if finish and error is None:
        parts.append(StepEnd(":end", finish, used))
    return Message(
        id=w["id"],
        session=session,
        role="assistant",
        created=created,
        completed=completed,
        parent=prompt,
        agent=string(w.get("agent")) or None,
        model=model_ref(w.get("model")),
        finish=finish,
        error=error,
        reported=used,
        parts=tuple(parts),
        retry=retry_status(w["retry"]) if w.get("retry") and completed is None else None,
    )


def _declined(parts: Iterable[Part]) -> bool:
    return any(isinstance(p, ToolCall) and p.declined for p in parts)


def _compaction(
    session: str, w: Wire, prompt: str | None, created: int | None, completed: int | None
) -> Message:
    """Read a summary. If a person requested it, it is not an answer to the prompt before it."""
    running = w.get("status") == "running"
    auto = w.get("reason") == "auto"
    summary = Text(
        ":text:0", string(w.get("summary")), created, None if running else completed or created
    )
    failed = w.get("status") == "failed"
    return Message(
        id=w["id"],
        session=session,
        role="assistant",
        created=created,
        completed=None if running else completed or created,
        parent=prompt if auto else None,
        model=model_ref(w.get("model")),
        finish=None if running or failed else "stop",
        error=failure(w["error"]) if w.get("error") else None,
        reported=call_usage(w),
        summary=True,
        parts=(Compaction(":compaction", auto), summary),
        kind="compaction",
    )


def _other(
    session: str, w: Wire, prompt: str | None, created: int | None, completed: int | None
) -> Message:
    """Read a row that is neither prompt nor answer, or of an unknown type."""
    error = failure(w["error"]) if isinstance(w.get("error"), dict) else None
    text = string(w.get("text")) or string(w.get("command"))
    parts = (Text(":text:0", text, created, created, synthetic=True),) if text else ()
    finish = string(w.get("outcome")) or None
    kind = string(w.get("type")) or "unknown"
    return Message(
        w["id"], session, "system", created, completed or created, None, finish=finish, error=error,
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


def step_parts(content: Iterable[Wire], completed: int | None) -> Iterator[Part]:
    """Read the parts of a step. A text has no times of its own: it ends with the step."""
    counts = {"text": 0, "reasoning": 0}
    for w in content:
        kind = required_string(w["type"])
        if kind == "tool":
            yield _tool(w)
        elif kind in counts:
            key, time = f":{kind}:{counts[kind]}", w.get("time") or {}
            counts[kind] += 1
            created = timestamp(time.get("created"))
            end = timestamp(time.get("completed")) or completed
            part = Text if kind == "text" else Reasoning
            yield part(key, string(w.get("text")), created, end)
        else:
            yield OtherPart(f":{kind}", kind)


def _tool(w: Wire) -> ToolCall:
    state, time = w["state"], w.get("time") or {}
    arguments = state.get("input")
    return ToolCall(
        id=f":tool:{w['id']}",
        call=required_string(w["id"]),
        tool=string(w["name"]),
        status="pending" if state["status"] == "streaming" else string(state["status"]),
        input=arguments if isinstance(arguments, dict) else {},
        start=timestamp(time.get("ran")) or timestamp(time.get("created")),
        end=timestamp(time.get("completed")),
        **tool_result(state),
    )


def tool_result(w: Wire) -> Wire:
    """Read the fields of a tool's result, which are the same in rows and events."""
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
        # For a shell that printed nothing, 2.0.16 sends its status as JSON instead.
        with suppress(ValueError):
            status = json.loads(texts[0])
            if set(status) == {"exit", "truncated", "output", "status"} and not status["output"]:
                return ""
    return "\n".join(texts)


def failure(w: Wire) -> Failure:
    """Read an error, named by its type or its tag."""
    kind = string(w.get("type")) or string(w.get("_tag")) or "UnknownError"
    return Failure(kind, string(w.get("message")), integer(w.get("status")))


def _file(index: int, w: Wire) -> Attachment:
    source = as_dict(w.get("source"))
    address = string(w.get("uri")) or string(source.get("uri")) or string(source.get("path"))
    url = "" if address.startswith("data:") else address
    return Attachment(f":file:{index}", string(w.get("mime")), optional_string(w.get("name")), url)


# -- requests to a person --------------------------------------------------------------------------


def permission(w: Wire) -> Permission:
    """Read a permission request."""
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
    """Read a form as a question, without its hidden fields."""
    tool = as_dict(as_dict(w.get("metadata")).get("tool"))
    items = tuple(_field(f) for f in w["fields"] if not f.get("hidden"))
    call, message = optional_string(tool.get("id")), optional_string(tool.get("messageID"))
    return Question(required_string(w["id"]), required_string(w["sessionID"]), items, call, message)


def _field(w: Wire) -> QuestionItem:
    kind: Any = string(w.get("type"))
    options = [_option(n, o) for n, o in enumerate(w.get("options") or (), 1)]
    if kind == "boolean":
        options = [Option("Yes", value="true"), Option("No", value="false")]
    default = w.get("default")
    defaults = default if isinstance(default, list) else [] if default is None else [default]
    title, description = string(w.get("title")), string(w.get("description"))
    least, most = (_bound(w, *names) for names in _BOUNDS)
    return QuestionItem(
        question=description or title or required_string(w["key"]),
        header=title if description else "",
        options=tuple(options),
        multiple=kind == "multiselect",
        key=required_string(w["key"]),
        kind=kind if kind in ("integer", "number", "boolean", "external") else "string",
        custom=bool(w.get("custom")) or (kind != "boolean" and not options),
        required=bool(w.get("required")),
        default=tuple(_as_text(v) for v in defaults),
        least=least,
        most=most,
        pattern=string(w.get("pattern")),
        format=string(w.get("format")),
        url=string(w.get("url")),
        when=tuple(
            (required_string(c["key"]), c["op"], _as_text(c["value"]))
            for c in w.get("when") or ()
            if c["op"] in ("eq", "neq")  # an unknown operator hides nothing
        ),
    )


_BOUNDS = (("minimum", "minLength", "minItems"), ("maximum", "maxLength", "maxItems"))


def _bound(w: Wire, *names: str) -> float | None:
    return next((n for n in map(number, map(w.get, names)) if n is not None), None)


def _option(number: int, w: Wire) -> Option:
    """Read an option; one without value and label is named by its description (2.0.19)."""
    value, description = string(w.get("value")), string(w.get("description"))
    label = string(w.get("label")) or value
    if label:
        return Option(label, description, value)
    return Option(description or f"option {number}")


def _as_text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def retry_status(d: Wire) -> Status:
    """Read a scheduled retry as the status of its session."""
    error = as_dict(d.get("error"))
    reason = string(error.get("message")) or string(error.get("type"))
    return Status("retry", integer(d.get("attempt")), reason, integer(d.get("at")))


# -- saved rules, inbox, events --------------------------------------------------------------------


def saved_rule(w: Wire) -> SavedRule:
    """Read a rule that "always" saved."""
    created = integer(as_dict(w.get("time")).get("created"))
    return SavedRule(
        required_string(w["id"]), w["action"], w["resource"], string(w.get("projectID")), created
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
        metadata=as_dict(as_dict(w.get("payload")).get("metadata")),
    )


def session_event(w: Wire) -> SessionEvent:
    """Read a durable event of a session."""
    data, durable = w["data"], w["durable"]
    item = as_dict(data.get("item"))
    payload = as_dict(item.get("payload"))
    return SessionEvent(
        session=string(durable.get("aggregateID")),
        seq=int(durable["seq"]),
        kind=w["type"].removeprefix("session."),
        item=string(data.get("inboxID")),
        type=string(item.get("type")),
        text=string(payload.get("text")),
        delivery=string(item.get("delivery")),
        metadata=as_dict(payload.get("metadata")) or as_dict(data.get("metadata")),
    )


# -- catalog of a directory ------------------------------------------------------------------------


def models(values: Iterable[Wire], default: Any) -> tuple[Model, ...]:
    """Read the enabled models; `default` is the server's default model."""
    chosen = model_ref(default) if as_dict(default).get("id") else None
    return tuple(_model(w, chosen) for w in values if w.get("enabled", True))


def _model(w: Wire, default: ModelRef | None) -> Model:
    limit, prices = w.get("limit") or {}, w.get("cost") or ()
    # The price without a tier is the base price; tiers apply above a size of context.
    price: Wire = (
        next((p for p in prices if not p.get("tier")), {}) if isinstance(prices, list) else {}
    )
    cache = price.get("cache") or {}
    inputs = as_dict(w.get("capabilities")).get("input")
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
        images="image" in inputs if isinstance(inputs, list) else None,
    )


def _tiers(prices: Any) -> Iterator[PriceTier]:
    """Yield the prices of longer prompts, in ascending order of size."""
    sized = [(integer(as_dict(p.get("tier")).get("size")), p) for p in prices]
    for above, p in sorted(((s, p) for s, p in sized if s), key=lambda pair: pair[0]):
        cache = p.get("cache") or {}
        values = (p.get("input"), p.get("output"), cache.get("read"), cache.get("write"))
        yield PriceTier(above, *map(number, values))


def agents(values: Iterable[Wire]) -> tuple[Agent, ...]:
    """Read the agents that are not hidden."""
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
    template = string(w.get("template"))  # only before 2.0; 2.0 to 2.2 send none
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
    fields = as_dict(status)
    name = string(status) or string(fields.get("status")) or string(fields.get("type"))
    error = string(fields.get("error")) or string(fields.get("message"))
    return McpServer(required_string(w["name"]), name, error)


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
    """Read a chunk of a shell's output."""
    return ShellOutput(string(w.get("output")), w["cursor"], w["size"])
