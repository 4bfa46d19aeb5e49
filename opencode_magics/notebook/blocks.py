"""The blocks that a turn shows, in order: the list that every view draws.

`blocks(turn)` is pure. A block keeps its key while the turn runs, so a view that gets successive
states can tell new, growing and finished blocks apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ..core.attribution import attribute
from ..core.decision import edits_of
from ..core.model import (
    Compaction,
    Failure,
    FileDiff,
    Message,
    Part,
    Permission,
    Question,
    Reasoning,
    StepStart,
    Text,
    ToolCall,
)
from ..core.outcome import is_part_over, is_tool_completed
from ..core.turn import Retry, Turn


@dataclass(frozen=True, slots=True)
class RequestState:
    """A permission or question and its state.

    Attributes:
        request: The permission or question.
        reply: The reply that settled it; "" while it waits.
        message: The message that came with the reply.
        subagent: The subagent that asks; "" for the turn's own agent.
        together: The subject of the permission whose reply settled it, too; "" if none did.
    """

    request: Permission | Question
    reply: str = ""
    message: str = ""
    subagent: str = ""
    together: str = ""


@dataclass(frozen=True, slots=True)
class Recap:
    """The summary of the conversation so far that a compaction wrote."""

    text: str
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """A remark about the turn, in one line."""

    text: str


@dataclass(frozen=True, slots=True)
class Changes:
    """The files that changed during the turn.

    Attributes:
        diffs: The files that the turn's edits changed.
        meanwhile: Files that something else changed.
        during: What could have changed those: shell commands and subagents, in words.
    """

    diffs: tuple[FileDiff, ...]
    meanwhile: tuple[FileDiff, ...] = ()
    during: str = ""


BlockValue = Text | Reasoning | Recap | ToolCall | RequestState | Retry | Failure | Note | Changes


@dataclass(frozen=True, slots=True)
class Block:
    """An item that a turn shows. A closed block no longer changes."""

    key: str
    value: BlockValue
    closed: bool = True

    @property
    def kind(self) -> str:
        """The kind as one lowercase word: text, reasoning, toolcall, requeststate, ..."""
        return type(self.value).__name__.lower()


def blocks(turn: Turn) -> tuple[Block, ...]:
    """Return the blocks of a turn, in order, without its last line."""
    requests, retries = _requests_by_call(turn), _retries_by_message(turn)
    result = [
        b for m in _messages(turn) for b in _message(turn, m, requests, retries.get(m.id, []))
    ]
    result += retries.get("", [])
    result += [b for unplaced in requests.values() for b in unplaced]
    result += _failures(turn)
    if turn.replayed:
        result.insert(0, Block("replay", Note(turn.replayed)))
    if turn.outcome == "running":
        return tuple(result)
    result += _changes(turn)
    result += _notes(turn)
    return tuple(b if b.closed else replace(b, closed=True) for b in result)


def _messages(turn: Turn) -> Iterator[Message]:
    """The answers, and between them the server's own messages about compaction."""
    answers = {m.id for m in turn.answers}
    return (m for m in turn.log if m.id in answers or m.synthetic)


def _message(
    turn: Turn, message: Message, requests: dict[str, list[Block]], retries: list[Block]
) -> Iterator[Block]:
    last_step = _last_step(turn, message)
    for part in message.parts:
        if part is last_step:
            yield from retries
            retries = []
        block = _part(message, part)
        if block is not None:
            yield _with_diff(block, requests)
        if isinstance(part, ToolCall):
            yield from requests.pop(part.call, ())
    yield from retries
    declined = any(t.declined for t in message.tools)  # 2.x reports "aborted" for it, too
    if message.error is not None and not declined:
        yield Block(f"{message.id}/error", message.error)
    if message.finish in _CUT_OFF:
        yield Block(f"{message.id}/finish", Note(_CUT_OFF[message.finish]))


_CUT_OFF = {
    "length": "The reply is cut off: the model reached its output limit.",
    "content-filter": "The reply is cut off by the provider's content filter.",
}


def _part(message: Message, part: Part) -> Block | None:
    """Return the block of a part; None if it shows nothing, as after a failed attempt."""
    key = f"{message.id}/{part.id}"
    match part:
        case Text(text=text, end=end) if text.strip() and message.summary:
            return Block(key, Recap(text, end), end is not None)
        case Text(text=text, end=end, synthetic=False) if text.strip() and message.role != "user":
            return Block(key, part, end is not None)
        case Reasoning(text=text, end=end) if text.strip():
            return Block(key, part, end is not None)
        case ToolCall():
            return Block(key, part, is_part_over(part))
        case Compaction():
            return Block(key, Note(_compaction(part)))
        case _:
            return None


def _compaction(part: Compaction) -> str:
    reason = (
        "context was full" if part.overflow else "to free context" if part.auto else "on request"
    )
    return f"The conversation so far was summarized here ({reason})."


# -- permissions and questions ---------------------------------------------------------------------


def _requests_by_call(turn: Turn) -> dict[str, list[Block]]:
    """The requests by the turn's own tool call that they belong to; under "" those without one."""
    by_call: dict[str, list[Block]] = {}
    requests = [
        RequestState(s.request, s.reply, s.message, together=s.together)
        for s in turn.settled_requests
    ]
    requests += [RequestState(r) for r in turn.waiting]
    if requests:
        calls, titles = _calls_by_session(turn), {s.id: s.title for s in turn.sessions}
        for state in requests:
            request, own = state.request, state.request.session == turn.session
            call = request.call if own else calls.get(request.session)
            subagent = "" if own else titles.get(request.session) or request.session
            state = replace(state, subagent=subagent)
            block = Block(f"request/{request.id}", state, bool(state.reply))
            by_call.setdefault(call or "", []).append(block)
    return by_call


def _calls_by_session(turn: Turn) -> dict[str, str]:
    """For every subagent session below the turn, the turn's own tool call that led to it."""
    calls = {t.child: t.call for t in turn.tools if t.child}
    for session in turn.sessions:  # oldest first, so parents come before their children
        if session.parent in calls:
            calls.setdefault(session.id, calls[session.parent])
    return calls


def _with_diff(block: Block, requests: dict[str, list[Block]]) -> Block:
    """Add the diff to a completed write: 1.18.33 reports it only in the write's permission."""
    tool = block.value
    if not isinstance(tool, ToolCall) or tool.diffs or not is_tool_completed(tool):
        return block
    permissions = (
        r.value.request for r in requests.get(tool.call, ()) if isinstance(r.value, RequestState)
    )
    diffs = tuple(d for r in permissions if isinstance(r, Permission) for d in edits_of(r))
    return replace(block, value=replace(tool, diffs=diffs)) if diffs else block


# -- retries and failures --------------------------------------------------------------------------


def _retries_by_message(turn: Turn) -> dict[str, list[Block]]:
    """The retries by message id; those before the first answer belong to it."""
    answers = [m.id for m in turn.answers] if turn.retries else []
    by_message: dict[str, list[Block]] = {}
    for n, retry in enumerate(turn.retries):
        message = retry.after if retry.after in answers else next(iter(answers), "")
        by_message.setdefault(message or "", []).append(Block(f"retry/{n}", retry))
    return by_message


def _last_step(turn: Turn, message: Message) -> Part | None:
    """The start of the attempt after the retries; None while it has not begun."""
    if turn.status is not None and turn.status.name == "retry":
        return None
    return next((p for p in reversed(message.parts) if isinstance(p, StepStart)), None)


def _failures(turn: Turn) -> list[Block]:
    shown = {(m.error.name, m.error.message) for m in turn.answers if m.error is not None}
    others = [f for f in turn.failures if (f.name, f.message) not in shown]
    return [Block(f"failure/{n}", f) for n, f in enumerate(dict.fromkeys(others))]


# -- after the end ---------------------------------------------------------------------------------


def _changes(turn: Turn) -> list[Block]:
    return [Block("changes", Changes(*attribute(turn.diffs, turn.answers)))] if turn.diffs else []


def _notes(turn: Turn) -> Iterable[Block]:
    if turn.outcome == "succeeded" and not turn.text.strip():
        reasoned = any(isinstance(p, Reasoning) for m in turn.answers for p in m.parts)
        suffix = " (reasoning only)" if reasoned else ""
        yield Block("note/empty", Note(f"no text in the reply{suffix}"))
    if turn.merged:
        yield Block("note/merged", Note("answered together with a later prompt"))
