"""Columns and rows of a history's frames: sessions, messages, steps, parts and tool calls."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.columns import (
    CATEGORY,
    COUNT,
    FLAG,
    NUMBER,
    OBJECT,
    TEXT,
    TIME,
    Column,
    Columns,
    frame_from_rows,
)
from ..core.formatting import seconds_between
from ..core.model import (
    Attachment,
    Message,
    ModelRef,
    Part,
    Reasoning,
    Session,
    StepEnd,
    Text,
    ToolCall,
    Usage,
)
from ..core.outcome import UNFINISHED, message_outcome

if TYPE_CHECKING:
    import pandas as pd


# -- sessions --------------------------------------------------------------------------------------


class SessionRow(NamedTuple):
    """A session with its place in the session tree, its status and its original."""

    session: Session
    root: str | None = None
    depth: int | None = None
    status: str | None = None
    fork_of: str | None = None


def session_rows(sessions: Iterable[Session]) -> Iterator[SessionRow]:
    """Yield each session with its place in the tree that these sessions form."""
    sessions_by_id = {s.id: s for s in sessions}
    for session in sessions_by_id.values():
        path = [session.id]
        while (parent := sessions_by_id[path[-1]].parent) in sessions_by_id and parent not in path:
            path.append(parent)
        # The depth is unknown if a parent is missing or the tree has a cycle.
        reaches_root = parent is None
        yield SessionRow(session, path[-1], len(path) - 1 if reaches_root else None)


def _model(name: str) -> Callable[[Any], Any]:
    return lambda v: getattr(v.model, name) if isinstance(v.model, ModelRef) else None


_TOKENS = {
    "input": "Prompt tokens, without those read from or written to the cache.",
    "output": "Tokens of the answer, without reasoning.",
    "reasoning": "Reasoning tokens, billed as output.",
    "cache_read": "Prompt tokens read from the provider's cache; not part of `input`.",
    "cache_write": "Prompt tokens written to the cache; not part of `input`.",
}


def _usage(read: Callable[[Any], Usage | None], about_cost: str) -> dict[str, Column]:
    """Return the cost column and the five token columns."""

    def reader(name: str) -> Callable[[Any], Any]:
        return lambda row: getattr(read(row), name, None)

    tokens = {name: Column(COUNT, reader(name), about) for name, about in _TOKENS.items()}
    return {"cost": Column(NUMBER, reader("cost"), about_cost)} | tokens


def _session(read: Callable[[Session], Any]) -> Callable[[SessionRow], Any]:
    return lambda row: read(row.session)


SESSIONS: Columns = {
    "title": Column(TEXT, _session(lambda s: s.title), "Title of the session."),
    "updated": Column(
        TIME,
        _session(lambda s: s.updated),
        "Start or end of its latest turn; shell commands and renames don't count.",
    ),
    "model": Column(CATEGORY, _session(_model("id")), "Model of the latest prompt."),
    "agent": Column(CATEGORY, _session(lambda s: s.agent), "Agent of the latest prompt."),
    "status": Column(
        CATEGORY,
        lambda r: r.status,
        "idle, busy or retry; NA for sessions of other directories.",
    ),
    **_usage(
        _session(lambda s: s.usage),
        "USD, as stored by the server: existing messages only, without subagents.",
    ),
    "provider": Column(CATEGORY, _session(_model("provider")), "Provider of the latest prompt."),
    "variant": Column(
        CATEGORY, _session(_model("variant")), "Variant of the model (reasoning effort)."
    ),
    "created": Column(TIME, _session(lambda s: s.created), "Time of creation."),
    "archived": Column(TIME, _session(lambda s: s.archived), "Time of archiving."),
    "parent": Column(
        TEXT, _session(lambda s: s.parent), "Session that started this one as a subagent."
    ),
    "root": Column(TEXT, lambda r: r.root, "Topmost ancestor, or the session itself."),
    "depth": Column(COUNT, lambda r: r.depth, "Number of ancestors; NA if one of them is missing."),
    "fork_of": Column(
        TEXT,
        lambda r: r.session.forked_from or r.fork_of,
        "Session that this one was forked from; on 1.x, known only once messages are loaded.",
    ),
    "files": Column(
        COUNT, _session(lambda s: s.changed), "Changed files; NA, because no server reports it."
    ),
    "additions": Column(
        COUNT, _session(lambda s: s.additions), "Added lines; NA, because no server reports it."
    ),
    "deletions": Column(
        COUNT, _session(lambda s: s.deletions), "Deleted lines; NA, because no server reports it."
    ),
    "directory": Column(CATEGORY, _session(lambda s: s.directory), "Working directory."),
    "project": Column(CATEGORY, _session(lambda s: s.project), "Project of the directory."),
    "id": Column(TEXT, _session(lambda s: s.id), "Id of the session."),
}


# -- messages --------------------------------------------------------------------------------------


class _Speed(NamedTuple):
    """Seconds to the first token, tokens per second, and the reason if the rate is unknown."""

    first: float | None = None
    rate: float | None = None
    note: str | None = None


_TOO_SHORT = 100  # ms; times are stored to the millisecond, and tokens arrive in bursts


def _speed(message: Message, usage: Usage | None) -> _Speed:
    if message.role != "assistant":
        return _Speed()
    if message.completed is None or message.created is None:
        return _Speed(note=UNFINISHED)
    texts = [p for p in message.parts if isinstance(p, Text | Reasoning) and p.start is not None]
    starts = [p.start for p in texts if p.start is not None]
    if not starts:
        return _Speed(note="no text: tool calls have no time of their first token")
    start = min(starts)
    first = (start - message.created) / 1000 if start >= message.created else None
    if sum(isinstance(p, StepEnd) for p in message.parts) > 1:
        return _Speed(first, note="several steps")
    if usage is None or usage.output is None:
        return _Speed(first, note="usage unknown")
    # A tool call starts when the model has written its arguments, which are output, too.
    ends = [p.end for p in texts] + [t.start for t in message.tools]
    end = max((e for e in ends if e is not None), default=start)
    if end - start < _TOO_SHORT:
        return _Speed(first, note="too short to tell")
    return _Speed(first, (usage.output + (usage.reasoning or 0)) * 1000 / (end - start))


def _total(usage: Usage | None) -> int | None:
    if usage is None:
        return None
    counts = (usage.input, usage.output, usage.reasoning, usage.cache_read, usage.cache_write)
    return None if None in counts else usage.total


def _context(usage: Usage | None) -> int | None:
    if usage is None or usage.input is None:
        return None
    return usage.input + (usage.cache_read or 0) + (usage.cache_write or 0)


def _last_context(row: MessageRow) -> int | None:
    steps = [p.usage for p in row.message.parts if isinstance(p, StepEnd) and p.usage]
    return _context(steps[-1] if steps else row.usage)


def message_key(message: Message, usage: Usage | None) -> str | None:
    """Return a key that a message shares only with its copies in forks.

    A fork on 1.18.33 gives messages new ids, but copies their times, model, tokens, cost and the
    ids of tool calls. Without usage the key includes the text as well.
    """
    if message.created is None or message.role not in ("user", "assistant"):
        return None
    header = (message.role, message.created, message.completed, message.model, usage)
    calls = tuple(t.call for t in message.tools)
    text = message.text if usage is None else None
    content = repr((header, calls, text)).encode("utf-8", "replace")
    return blake2b(content, digest_size=12).hexdigest()


class MessageRow(NamedTuple):
    """A message and the values computed from it."""

    message: Message
    usage: Usage | None
    speed: _Speed
    key: str | None


def message_rows(messages: Iterable[Message]) -> Iterator[MessageRow]:
    """Yield rows of the messages frame. A prompt without an agent gets that of its answer."""
    messages = [*messages]
    answers = {m.parent: m for m in reversed(messages) if m.role == "assistant" and m.agent}
    for message in messages:
        usage = message.usage
        known = usage if message.completed is not None else None  # the server stores 0 until then
        speed, key = _speed(message, usage), message_key(message, usage)
        answer = answers.get(message.id) if message.agent is None else None
        if answer:
            message = replace(message, agent=answer.agent, model=answer.model)
        yield MessageRow(message, known, speed, key)


def _message(read: Callable[[Message], Any]) -> Callable[[Any], Any]:
    return lambda row: read(row.message)


def _role(message: Message) -> str | None:
    return message.kind or message.role or None


# A message doesn't contain the title of its session: `LoadedRows.add` fills it in.
_SESSION_TITLE = Column(CATEGORY, lambda r: None, "Title of the session.")
_ABOUT_DUPLICATE = "Original message, if this one was copied by a fork; otherwise NA."
_KEY = Column(TEXT, lambda r: r.key, "Fingerprint that copies of a message share.")

MESSAGES: Columns = {
    "created": Column(TIME, _message(lambda m: m.created), "Start of the message."),
    "role": Column(
        CATEGORY,
        _message(_role),
        "user or assistant; other rows have the server's own name, such as idle or compaction.",
    ),
    "text": Column(TEXT, _message(lambda m: m.text), "Text of the message.", long=True),
    "outcome": Column(
        CATEGORY,
        _message(message_outcome),
        "succeeded, rejected, aborted, failed, interrupted, unfinished, or shell for a command "
        "that a person ran. NA for prompts.",
    ),
    "model": Column(CATEGORY, _message(_model("id")), "Model that was prompted or that answered."),
    "agent": Column(
        CATEGORY, _message(lambda m: m.agent), "Agent that was prompted or that answered."
    ),
    **_usage(lambda r: r.usage, "USD, as stored by the server; NA if aborted or unfinished."),
    "total": Column(COUNT, lambda r: _total(r.usage), "Sum of the five token counts."),
    "context": Column(
        COUNT,
        _last_context,
        "Tokens of the last prompt of the message: input and both caches.",
    ),
    "session_title": _SESSION_TITLE,
    "duration": Column(
        NUMBER,
        _message(lambda m: seconds_between(m.created, m.completed)),
        "Seconds, including tools.",
    ),
    "tools": Column(COUNT, _message(lambda m: len(m.tools)), "Number of tool calls."),
    "steps": Column(
        COUNT,
        _message(lambda m: sum(isinstance(p, StepEnd) for p in m.parts)),
        "Number of completed model calls.",
    ),
    "parts": Column(COUNT, _message(lambda m: len(m.parts)), "Number of parts."),
    "first_token": Column(NUMBER, lambda r: r.speed.first, "Seconds until the first token."),
    "tokens_per_second": Column(
        NUMBER,
        lambda r: r.speed.rate,
        "Output and reasoning tokens per second, counted from the first token.",
    ),
    "rate_note": Column(CATEGORY, lambda r: r.speed.note, "Why the rate is unknown."),
    "completed": Column(
        TIME, _message(lambda m: m.completed), "End of the message; NA while it is being written."
    ),
    "provider": Column(CATEGORY, _message(_model("provider")), "Provider of the model."),
    "variant": Column(
        CATEGORY, _message(_model("variant")), "Variant of the model (reasoning effort)."
    ),
    "finish": Column(
        CATEGORY, _message(lambda m: m.finish), "Why the model stopped, as the provider reports it."
    ),
    "error": Column(CATEGORY, _message(lambda m: m.error and m.error.name), "Name of the error."),
    "error_message": Column(
        TEXT, _message(lambda m: m.error and m.error.message), "Message of the error."
    ),
    "compaction": Column(
        FLAG, _message(lambda m: m.summary), "Whether the message summarizes the conversation."
    ),
    "synthetic": Column(
        FLAG, _message(lambda m: m.synthetic), "Whether the server created the prompt."
    ),
    "session": Column(CATEGORY, _message(lambda m: m.session), "Id of the session."),
    "message": Column(TEXT, _message(lambda m: m.id or None), "Id of the message."),
    "parent": Column(TEXT, _message(lambda m: m.parent), "Prompt that the message answers."),
    "duplicate_of": Column(TEXT, lambda r: None, _ABOUT_DUPLICATE),
    "key": _KEY,
}


# -- steps, parts and tools ------------------------------------------------------------------------


class PartRow(NamedTuple):
    """A part, its index in the message, the message, and the key of the message."""

    part: Any
    position: int
    message: Message
    key: str | None


def part_rows(messages: Iterable[Message]) -> Iterator[PartRow]:
    """Yield rows of the parts frame."""
    for message in messages:
        key = message_key(message, message.usage)
        for index, part in enumerate(message.parts):
            yield PartRow(part, index, message, key)


def tool_rows(messages: Iterable[Message]) -> Iterator[PartRow]:
    """Yield rows of the tools frame: the parts that are tool calls."""
    return (row for row in part_rows(messages) if isinstance(row.part, ToolCall))


class StepRow(NamedTuple):
    """A model call of a message: its position, its usage, and whether it is the only one."""

    position: int
    reason: str | None
    usage: Usage | None
    only: bool
    message: Message
    key: str | None


def step_rows(messages: Iterable[Message]) -> Iterator[StepRow]:
    """Yield rows of the steps frame; an answer without step parts counts as one step."""
    for message in messages:
        if message.role != "assistant" or message.shell:
            continue
        ends = [p for p in message.parts if isinstance(p, StepEnd)]
        usage = message.usage
        key = message_key(message, usage)
        if len(ends) < 2:
            known = usage if message.completed is not None else None
            yield StepRow(0, message.finish, known, True, message, key)
            continue
        for index, end in enumerate(ends):
            yield StepRow(index, end.reason, end.usage, False, message, key)


def _part_type(part: Part) -> str:
    return _PART_TYPES.get(type(part).__name__) or getattr(part, "kind", "") or "unknown"


_PART_TYPES = {
    "Text": "text",
    "Reasoning": "reasoning",
    "ToolCall": "tool",
    "StepStart": "step-start",
    "StepEnd": "step-finish",
    "Attachment": "file",
    "Compaction": "compaction",
}


def _part(name: str) -> Callable[[PartRow], Any]:
    return lambda row: getattr(row.part, name, None)


def _tool(read: Callable[[ToolCall], Any]) -> Callable[[PartRow], Any]:
    return lambda row: read(row.part) if isinstance(row.part, ToolCall) else None


def _part_text(row: PartRow) -> str | None:
    if isinstance(row.part, ToolCall):
        return row.part.error if row.part.error is not None else row.part.output
    return getattr(row.part, "text", None)


def _file(row: PartRow) -> str | None:
    return row.part.filename or row.part.url if isinstance(row.part, Attachment) else None


def _duration(row: PartRow) -> float | None:
    return seconds_between(getattr(row.part, "start", None), getattr(row.part, "end", None))


def _changed_lines(name: str) -> Callable[[PartRow], int | None]:
    def total(row: PartRow) -> int | None:
        counts = [getattr(d, name) for d in row.part.diffs]
        return sum(counts) if counts and None not in counts else None

    return total


_ID_COLUMNS: Columns = {
    "session_title": _SESSION_TITLE,
    "session": Column(CATEGORY, _message(lambda m: m.session), "Id of the session."),
    "message": Column(TEXT, _message(lambda m: m.id or None), "Id of the message."),
}
_MODEL_COLUMNS: Columns = {
    "model": Column(CATEGORY, _message(_model("id")), "Model that answered."),
    "agent": Column(CATEGORY, _message(lambda m: m.agent), "Agent that answered."),
    "provider": Column(CATEGORY, _message(_model("provider")), "Provider of the model."),
}
_TIME_COLUMNS: Columns = {
    "started": Column(TIME, _part("start"), "Start; NA if unknown."),
    "ended": Column(TIME, _part("end"), "End; NA if unknown."),
    "duration": Column(NUMBER, _duration, "Seconds from `started` to `ended`."),
}
_COPY_COLUMNS: Columns = {
    "duplicate_of": Column(TEXT, lambda r: None, _ABOUT_DUPLICATE),
    "key": _KEY,
}

STEPS: Columns = {
    "created": Column(TIME, _message(lambda m: m.created), "Start of the message."),
    "outcome": Column(CATEGORY, _message(message_outcome), "Outcome of the message."),
    "finish": Column(
        CATEGORY, lambda r: r.reason, "Why the model stopped, as the provider reports it."
    ),
    **_MODEL_COLUMNS,
    **_usage(lambda r: r.usage, "USD, as stored by the server; NA if aborted or unfinished."),
    "total": Column(COUNT, lambda r: _total(r.usage), "Sum of the five token counts."),
    "context": Column(
        COUNT,
        lambda r: _context(r.usage),
        "Tokens of the prompt of the step: input and both caches.",
    ),
    "duration": Column(
        NUMBER,
        lambda r: seconds_between(r.message.created, r.message.completed) if r.only else None,
        "Seconds, including tools; NA if the message has several steps.",
    ),
    "step": Column(COUNT, lambda r: r.position, "Position in the message, from 0."),
    "compaction": Column(
        FLAG, _message(lambda m: m.summary), "Whether the message summarizes the conversation."
    ),
    **_ID_COLUMNS,
    **_COPY_COLUMNS,
}

PARTS: Columns = {
    "created": Column(TIME, _message(lambda m: m.created), "Start of the message."),
    "role": Column(CATEGORY, _message(_role), "Role of the message."),
    "type": Column(
        CATEGORY,
        lambda r: _part_type(r.part),
        "text, reasoning, tool, step-start, step-finish, file, ...",
    ),
    "text": Column(
        TEXT, _part_text, "Text of the part; for a tool call, its output or error.", long=True
    ),
    "tool": Column(CATEGORY, _tool(lambda t: t.tool), "Name of the tool."),
    "status": Column(CATEGORY, _tool(lambda t: t.status), "pending, running, completed or error."),
    "title": Column(
        TEXT, _tool(lambda t: t.title), "The call in one line, as the server describes it."
    ),
    **_TIME_COLUMNS,
    "file": Column(TEXT, _file, "Name or URL of an attachment."),
    "index": Column(COUNT, lambda r: r.position, "Position in the message, from 0."),
    "part": Column(TEXT, lambda r: r.part.id or None, "Id of the part."),
    **_ID_COLUMNS,
    **_COPY_COLUMNS,
}

TOOLS: Columns = {
    "created": Column(TIME, _message(lambda m: m.created), "Start of the message."),
    "tool": Column(CATEGORY, lambda r: r.part.tool or None, "Name of the tool."),
    "title": Column(
        TEXT, lambda r: r.part.title, "The call in one line, as the server describes it."
    ),
    "status": Column(
        CATEGORY,
        lambda r: r.part.status,
        "pending, running, completed or error; stays running if the server was killed.",
    ),
    "exit": Column(COUNT, lambda r: r.part.exit, "Exit code of a shell command."),
    "output": Column(TEXT, lambda r: r.part.output, "Output of the tool.", long=True),
    "error": Column(TEXT, lambda r: r.part.error, "Error of the tool."),
    "input": Column(OBJECT, lambda r: r.part.input, "Arguments of the call, a dict."),
    **_TIME_COLUMNS,
    "waited": Column(
        NUMBER, lambda r: None, "Seconds it waited for permission; NA, because no server stores it."
    ),
    **_MODEL_COLUMNS,
    "declined": Column(
        FLAG, lambda r: r.part.declined, "Whether a rejection of the call stopped the turn."
    ),
    "additions": Column(COUNT, _changed_lines("additions"), "Lines that the call added."),
    "deletions": Column(COUNT, _changed_lines("deletions"), "Lines that the call deleted."),
    "child": Column(TEXT, lambda r: r.part.child, "Session of the subagent that the call started."),
    "call": Column(
        TEXT, lambda r: r.part.call or None, "Id of the call, as the model assigned it."
    ),
    **_ID_COLUMNS,
    **_COPY_COLUMNS,
}


class FrameKind(NamedTuple):
    """A frame of a history: its columns, and the function that turns messages into rows."""

    columns: Columns
    rows: Callable[[Iterable[Message]], Iterable[Any]]


FRAME_KINDS: Mapping[str, FrameKind] = {
    "messages": FrameKind(MESSAGES, message_rows),
    "steps": FrameKind(STEPS, step_rows),
    "parts": FrameKind(PARTS, part_rows),
    "tools": FrameKind(TOOLS, tool_rows),
}


def sessions(
    values: Iterable[Session],
    status: Mapping[str, str] | None = None,
    forks: Mapping[str, str] | None = None,
    shown: Container[str] | None = None,
) -> pd.DataFrame:
    """Return a frame of sessions, one row each, with their places in the session tree.

    Args:
        values: The sessions of the tree.
        status: Known statuses, by session id.
        forks: The original session of forks that don't report it themselves, by id of the fork.
        shown: The ids of the sessions that get a row; None means all.
    """
    statuses, originals = status or {}, forks or {}
    rows = (
        r._replace(status=statuses.get(r.session.id), fork_of=originals.get(r.session.id))
        for r in session_rows(values)
        if shown is None or r.session.id in shown
    )
    return frame_from_rows(SESSIONS, rows)
