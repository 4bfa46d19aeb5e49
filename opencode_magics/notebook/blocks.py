"""What a turn shows, in order: the one list that every face draws.

`blocks(turn)` is pure. A block's key stays its own while the turn goes on, so a face that is shown
one state after another can tell what is new, what grew and what is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

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
    """A permission or question and how it stands.

    Attributes:
        reply: How it was settled; "" while it waits.
        message: What was said with the reply.
        subagent: The subagent that asks; "" for the turn's own agent.
    """

    request: Permission | Question
    reply: str = ""
    message: str = ""
    subagent: str = ""


@dataclass(frozen=True, slots=True)
class Recap:
    """What a compaction wrote down of the conversation so far."""

    text: str
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth knowing about the turn, in one line."""

    text: str


@dataclass(frozen=True, slots=True)
class Changes:
    """All files that the turn changed."""

    diffs: tuple[FileDiff, ...]


BlockValue = Text | Reasoning | Recap | ToolCall | RequestState | Retry | Failure | Note | Changes


@dataclass(frozen=True, slots=True)
class Block:
    """One thing that a turn shows. A closed block changes no more."""

    key: str
    value: BlockValue
    closed: bool = True

    @property
    def kind(self) -> str:
        """What it is, in one lowercase word: text, reasoning, toolcall, request, ..."""
        return type(self.value).__name__.lower()


def blocks(turn: Turn) -> tuple[Block, ...]:
    """What the turn shows, in order, without its last line."""
    requests, retries = _requests(turn), _retries(turn)
    shown = [b for m in _messages(turn) for b in _message(turn, m, requests, retries.get(m.id, []))]
    shown += retries.get("", [])
    shown += [b for homeless in requests.values() for b in homeless]
    shown += _failures(turn)
    if turn.replayed:
        shown.insert(0, Block("replay", Note(turn.replayed)))
    if turn.outcome == "running":
        return tuple(shown)
    shown += _changes(turn)
    shown += _notes(turn)
    return tuple(b if b.closed else replace(b, closed=True) for b in shown)


def _messages(turn: Turn) -> Iterator[Message]:
    """The answers, and between them what the server itself said to compact the conversation."""
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
    refused = any(t.declined for t in message.tools)  # 2.x calls that aborted, too
    if message.error is not None and not refused:
        yield Block(f"{message.id}/error", message.error)
    if message.finish in _CUT_OFF:
        yield Block(f"{message.id}/finish", Note(_CUT_OFF[message.finish]))


_CUT_OFF = {
    "length": "The reply is cut off: the model reached its output limit.",
    "content-filter": "The reply is cut off by the provider's content filter.",
}


def _part(message: Message, part: Part) -> Block | None:
    """What a part shows, None for nothing: an attempt that was given up is an empty part."""
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
    why = "the context was full" if part.overflow else "to make room" if part.auto else "as asked"
    return f"The conversation so far is summarised here ({why})."


# -- permissions and questions ---------------------------------------------------------------------


def _requests(turn: Turn) -> dict[str, list[Block]]:
    """Requests by the turn's own tool call that they belong to; "" is the rest."""
    named: dict[str, list[Block]] = {}
    requests = [RequestState(s.request, s.reply, s.message) for s in turn.settled_requests]
    requests += [RequestState(r) for r in turn.waiting]
    if requests:
        homes, titles = _homes(turn), {s.id: s.title for s in turn.sessions}
        for r in requests:
            asked, own = r.request, r.request.session == turn.session
            home = asked.call if own else homes.get(asked.session)
            subagent = "" if own else titles.get(asked.session) or asked.session
            block = Block(f"request/{asked.id}", replace(r, subagent=subagent), bool(r.reply))
            named.setdefault(home or "", []).append(block)
    return named


def _homes(turn: Turn) -> dict[str, str]:
    """For every subagent session below the turn: the turn's own tool call that leads to it."""
    homes = {t.child: t.call for t in turn.tools if t.child}
    for session in turn.sessions:  # oldest first, so parents come before their children
        if session.parent in homes:
            homes.setdefault(session.id, homes[session.parent])
    return homes


def _with_diff(block: Block, requests: dict[str, list[Block]]) -> Block:
    """A write tells its diff only in its permission (1.18.33): show it once it was allowed."""
    tool = block.value
    if not isinstance(tool, ToolCall) or tool.diffs or not is_tool_completed(tool):
        return block
    asked = (
        r.value.request for r in requests.get(tool.call, ()) if isinstance(r.value, RequestState)
    )
    diffs = tuple(r.diff for r in asked if isinstance(r, Permission) and r.diff is not None)
    return replace(block, value=replace(tool, diffs=diffs)) if diffs else block


# -- what went wrong on the way --------------------------------------------------------------------


def _retries(turn: Turn) -> dict[str, list[Block]]:
    """Retries by the message they happened in; by the first answer where there was none yet."""
    answers = [m.id for m in turn.answers] if turn.retries else []
    found: dict[str, list[Block]] = {}
    for n, retry in enumerate(turn.retries):
        home = retry.after if retry.after in answers else next(iter(answers), "")
        found.setdefault(home or "", []).append(Block(f"retry/{n}", retry))
    return found


def _last_step(turn: Turn, message: Message) -> Part | None:
    """The attempt that retries led to; None while the next one hasn't begun."""
    if turn.status is not None and turn.status.name == "retry":
        return None
    return next((p for p in reversed(message.parts) if isinstance(p, StepStart)), None)


def _failures(turn: Turn) -> list[Block]:
    told = {(m.error.name, m.error.message) for m in turn.answers if m.error is not None}
    untold = [f for f in turn.failures if (f.name, f.message) not in told]
    return [Block(f"failure/{n}", f) for n, f in enumerate(dict.fromkeys(untold))]


# -- when it is over -------------------------------------------------------------------------------


def _changes(turn: Turn) -> list[Block]:
    return [Block("changes", Changes(turn.diffs))] if turn.diffs else []


def _notes(turn: Turn) -> Iterable[Block]:
    if turn.outcome == "succeeded" and not turn.text.strip():
        thought = any(isinstance(p, Reasoning) for m in turn.answers for p in m.parts)
        why = " (reasoning only)" if thought else ""
        yield Block("note/empty", Note(f"no text in the reply{why}"))
    if turn.merged:
        yield Block("note/merged", Note("answered together with a later prompt"))
