"""Decode the stored values of 1.x: sessions, messages, requests, the catalog.

`v1_events` uses these functions, too, since events contain the same objects. A missing required
field raises an error; all other fields are optional.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..core.model import (
    Agent,
    Attachment,
    Command,
    Compaction,
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
from ..errors import printable
from .values import (
    as_dict,
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

# Errors of a refusal that stops the turn. With feedback, the text differs and the turn continues.
_DECLINED = (
    "The user rejected permission to use this specific tool call.",
    "The user dismissed this question",
)

# Some error messages contain the server's own stack trace.
_STACK = re.compile(r"\n\s+at .*", re.DOTALL)


def session(w: Wire) -> Session:
    """Read a session."""
    time, model, summary = (
        as_dict(w.get("time")),
        as_dict(w.get("model")),
        as_dict(w.get("summary")),
    )
    changes = [count(summary.get(name)) for name in ("files", "additions", "deletions")]
    files, additions, deletions = changes if any(changes) else (None, None, None)  # 0 is unknown
    provider, model_id = string(model.get("providerID")), string(model.get("id"))
    return Session(
        id=required_string(w["id"]),
        title=printable(string(w.get("title"))),
        directory=string(w.get("directory")),
        project=string(w.get("projectID")) or None,
        parent=string(w.get("parentID")) or None,
        agent=string(w.get("agent")) or None,
        model=_ref(provider, model_id, model.get("variant")) if provider and model_id else None,
        created=timestamp(time.get("created")),
        updated=timestamp(time.get("updated")),
        archived=timestamp(time.get("archived")) or None,  # 0 after a restore
        usage=usage(w),
        revert=string(as_dict(w.get("revert")).get("messageID")) or None,
        changed=files,
        additions=additions,
        deletions=deletions,
        metadata=as_dict(w.get("metadata")),
        rules=_rules(w.get("permission")),
        path=string(w.get("path")),
    )


def todo(w: Wire) -> Todo:
    """Read a todo."""
    return Todo(string(w["content"]), string(w["status"]), string(w.get("priority")))


def _ref(provider: str, model: str, variant: Any = None) -> ModelRef:
    return ModelRef(provider, model, None if variant == "default" else optional_string(variant))


def statuses(body: Wire) -> dict[str, Status]:
    """Read statuses by session."""
    return {session: status(w) for session, w in body.items()}


def status(w: Wire) -> Status:
    """Read a status; a kind that this package doesn't know counts as busy."""
    return Status(
        w["type"] if w["type"] in ("idle", "retry") else "busy",
        attempt=integer(w.get("attempt")),
        message=string(w.get("message")),
        next=integer(w.get("next")),
    )


def message_with_parts(w: Wire) -> Message:
    """Read a stored message."""
    return message(w["info"], tuple(part(p) for p in w.get("parts") or ()))


def message(w: Wire, parts: tuple[Part, ...] = (), unread: tuple[str, ...] = ()) -> Message:
    """Read a message's header, and combine it with its parts."""
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
        error=failure(w["error"]) if w.get("error") else None,
        reported=call_usage(w) if role == "assistant" else None,
        summary=summary is True,
        diffs=diffs(summary.get("diffs")) if isinstance(summary, dict) else (),
        parts=parts,
        unread=unread,
    )


def readable_message(w: Any, session: str) -> Message:
    """Read as much of a stored message as possible, and name the rest in `unread`."""
    w = as_dict(w)
    info, unread = _readable_header(as_dict(w.get("info")))
    listed = w.get("parts") if isinstance(w.get("parts"), list) else ()
    parts = tuple([_readable_part(p, unread) for p in listed or ()])
    return message(info | {"sessionID": session}, parts, tuple(unread))


def _readable_header(info: Wire) -> tuple[Wire, list[str]]:
    """Return a message's header without values of the wrong type, and the names of those."""
    unread = [n for n, kind in _KINDS.items() if not isinstance(info.get(n), kind | None)]
    unread += [n for n in ("id", "role") if info.get(n) is None]
    if unread:
        info = {"id": "", "role": ""} | {n: v for n, v in info.items() if n not in unread}
    tokens, time = info.get("tokens") or {}, info.get("time") or {}
    cache, model = as_dict(tokens.get("cache")), info.get("model") or {}
    numbers = (
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
    unread += [name for name, value, read in numbers if value is not None and read(value) is None]
    if info["role"] not in ("user", "assistant", ""):
        unread.append("role")
    return info, unread


_KINDS: dict[str, type] = {
    **dict.fromkeys(("id", "role", "sessionID", "parentID", "agent", "variant", "finish"), str),
    **dict.fromkeys(("modelID", "providerID"), str),
    **dict.fromkeys(("time", "tokens", "model", "error"), dict),
}


def _readable_part(w: Any, unread: list[str]) -> Part:
    try:
        return part(w)
    except (KeyError, TypeError, AttributeError, ValueError):
        unread.append("part")
        return OtherPart(string(as_dict(w).get("id")), string(as_dict(w).get("type")))


def failure(w: Wire) -> Failure:
    """Read an error."""
    data = as_dict(w.get("data"))
    return Failure(
        name=str(w.get("name") or w.get("_tag") or "UnknownError"),
        message=_STACK.sub("", str(data.get("message") or w.get("message") or "")),
        status=integer(data.get("statusCode")),
        provider=string(data.get("providerID")) or None,
    )


def diffs(values: Any) -> tuple[FileDiff, ...]:
    """Read changed files."""
    return file_diffs(values, _patch)


def _patch(w: Wire) -> str:
    return string(w.get("patch")) or string(w.get("diff")) or _patch_from_texts(w)


def turns(body: Any) -> dict[str, tuple[Wire, ...]]:
    """Group messages by their prompt, which comes first."""
    grouped: dict[str, tuple[Wire, ...]] = {}
    for w in body:
        info = w["info"]
        prompt = info["id"] if info["role"] == "user" else info.get("parentID") or ""
        grouped[prompt] = (*grouped.get(prompt, ()), w)
    return grouped


def turns_before(
    turns: dict[str, tuple[Wire, ...]], message: str | None
) -> dict[str, tuple[Wire, ...]]:
    """Return the turns before a message; all turns if none contains it."""
    indexes = (n for n, t in enumerate(turns.values()) for m in t if m["info"]["id"] == message)
    return dict(list(turns.items())[: next(indexes, None)])


def prompt_diffs(messages: Sequence[Wire]) -> tuple[FileDiff, ...]:
    """Return the changes that a turn's prompt reports."""
    summaries = (m["info"].get("summary") for m in messages if m["info"]["role"] == "user")
    return tuple(d for s in summaries if isinstance(s, dict) for d in diffs(s.get("diffs")))


def tool_edits(message: Wire) -> Iterator[tuple[tuple[FileDiff, ...], str | None]]:
    """Yield the edits of each tool call of a stored message, and its subagent's session."""
    for w in message.get("parts") or ():
        state = w.get("state") or {}
        child = (state.get("metadata") or {}).get("sessionId")
        yield _edits_of(state), child or None


def _edits_of(state: Wire) -> tuple[FileDiff, ...]:
    meta, arguments = state.get("metadata") or {}, state.get("input") or {}
    if state.get("status") != "completed":
        return ()
    file = string(meta.get("filepath"))
    if "exists" not in meta or not file:
        return _tool_diffs(meta)
    if meta["exists"]:  # overwritten: the text before is unknown
        return (FileDiff(file, status="modified"),)
    made = _patch_from_texts({"before": "", "after": arguments.get("content")})
    return (FileDiff(file, made, status="added"),)


def _patch_from_texts(w: Wire) -> str:
    """Make a patch from the texts before and after; servers before 1.1 sent these, not a patch."""
    before, after = w.get("before"), w.get("after")
    if not isinstance(before, str) or not isinstance(after, str):
        return ""
    return make_patch(split_lines(before), split_lines(after))


def part(w: Wire) -> Part:
    """Read a part; a kind that this package doesn't know becomes an OtherPart."""
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
        return diffs([meta["filediff"]])
    if isinstance(meta.get("files"), list):
        return diffs(meta["files"])
    patch = meta.get("diff")
    return (FileDiff(string(meta.get("filepath")), patch),) if isinstance(patch, str) else ()


def _named(diff: FileDiff, title: Any) -> FileDiff:
    """Name an edit by its title, a relative path; its own path is absolute."""
    known = isinstance(title, str) and title and diff.file.endswith(f"/{title}")
    return replace(diff, file=title) if known else diff


def _step_end(w: Wire) -> StepEnd:
    return StepEnd(string(w["id"]), string(w.get("reason")) or None, call_usage(w))


def _attachment(w: Wire) -> Attachment:
    # Omit a data: URL, which contains the whole file.
    url = string(w.get("url"))
    url = "" if url.startswith("data:") else url
    return Attachment(
        string(w["id"]), string(w.get("mime")), optional_string(w.get("filename")), url
    )


def file_part(file: Attachment) -> Wire:
    """Encode a prompt's file as a part."""
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


def permission(w: Wire) -> Permission:
    """Read a permission, in its current or its old shape (type, pattern, title)."""
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
        files=diffs(meta.get("files")),
        call=optional_string(tool.get("callID")),
        message=optional_string(tool.get("messageID")),
    )


def question(w: Wire) -> Question:
    """Read a question."""
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


def models(body: Wire, default: str | None) -> Iterator[Model]:
    """Read the models of all providers; `default` is the configured one."""
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
                over_200k=_tier(200_000, beyond) if (beyond := price.get(_OVER_200K)) else None,
                images=images if isinstance(images, bool) else None,
            )


_OVER_200K = "experimentalOver200K"


def _tiers(price: Wire) -> Iterator[PriceTier]:
    """Yield the prices of longer prompts, in ascending order.

    Without tiers, `experimentalOver200K` is the only one. With tiers it is out of date.
    """
    listed = [
        t for t in price.get("tiers") or () if as_dict(t.get("tier")).get("type") == "context"
    ]
    tiers = {t["tier"]["size"]: t for t in listed}
    if not tiers and price.get(_OVER_200K):
        tiers[200_000] = price[_OVER_200K]
    for above, w in sorted(tiers.items()):
        yield _tier(above, w)


def _tier(above: int, w: Wire) -> PriceTier:
    cache = as_dict(w.get("cache"))
    prices = (w.get("input"), w.get("output"), cache.get("read"), cache.get("write"))
    return PriceTier(above, *map(cost_usd, prices))


def agents(body: Any) -> tuple[Agent, ...]:
    """Read the agents that are not hidden."""
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


def command(w: Wire) -> Command:
    """Read a command."""
    return Command(w["name"], string(w.get("description")), w.get("agent"), w.get("model"))


def skill(w: Wire) -> Skill:
    """Read a skill."""
    return Skill(w["name"], w["name"], string(w.get("description")), string(w.get("location")))


def mcp_servers(body: Wire) -> tuple[McpServer, ...]:
    """Read the MCP servers and their states."""
    return tuple(
        McpServer(name, string(w.get("status")), string(w.get("error"))) for name, w in body.items()
    )
