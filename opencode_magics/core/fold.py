"""Folds events into a `Turn`: every change of a turn is made here.

`advance(turn, event)` is the only way to a new state of the turn itself; `timed` adds what its
follower measured. Nothing here knows about HTTP, a dialect, or a notebook.

The laws, each of which is a test: events outside the turn's session tree change nothing; a closed
snapshot outranks deltas and open snapshots; an open snapshot never shortens a text; a delta may
come before its part; a snapshot applied twice equals once; and a stream that breaks anywhere,
followed by one `Reread` of the store, ends in the same Turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import reduce
from typing import Any, TypeVar

from .events import (
    Event,
    MessageChanged,
    MessageRemoved,
    PartChanged,
    PartDelta,
    PartRemoved,
    PermissionAsked,
    PromptDelivered,
    QuestionAsked,
    RequestReplied,
    SessionChanged,
    SessionDeleted,
    SessionFailed,
    StatusChanged,
    StoreSnapshot,
    TurnEnded,
    coalesce,
)
from .model import (
    Failure,
    Message,
    Part,
    Permission,
    Question,
    Reasoning,
    Session,
    Status,
    StepStart,
    Text,
    ToolCall,
)
from .outcome import is_part_over, of_idle
from .turn import Retry, SettledRequest, Turn

Partial = TypeVar("Partial", Session, ToolCall)
_Change = Callable[[tuple[Part, ...]], tuple[Part, ...]]


def advance_all(turn: Turn, events: Iterable[Event]) -> Turn:
    """Fold many events, neighbouring deltas at once."""
    return reduce(advance, coalesce(events), turn)


def advance(turn: Turn, event: Event) -> Turn:
    """The turn after one event. Events that are none of its business change nothing."""
    match event:
        case MessageChanged(message) if message.session == turn.session:
            return _message(turn, message)
        case PromptDelivered(session, delivered, at) if session == turn.session:
            return _delivered(turn, delivered, at)
        case MessageRemoved(session, removed) if session == turn.session:
            return _removed(turn, removed)
        case PartChanged(session, owner, part) if session in turn.tree:
            owner = owner or _owner(turn, part)
            turn = _retracted(turn, owner, part)
            ours = session == turn.session
            turn = turn if is_part_over(part) or not ours else _going_on(turn)
            return _parts(turn, owner, lambda parts: _put(parts, part)) if ours else turn
        case PartDelta(session, owner, part_id, text) if session == turn.session:
            return _parts(_going_on(turn), owner, lambda parts: _append(parts, part_id, text))
        case PartRemoved(session, owner, part_id) if session == turn.session:
            return _parts(turn, owner, lambda ps: tuple(p for p in ps if p.id != part_id))
        case StatusChanged(session, status) if session == turn.session:
            return _status(turn, status)
        case SessionFailed(session, failure) if session == turn.session:
            refused = any(t.declined for m in turn.answers[-1:] for t in m.tools)
            told = refused and failure.interrupted  # 2.x cuts a turn off that a person refused
            return turn if told else replace(turn, failures=(*turn.failures, failure))
        case SessionChanged(session_now) if _below(turn, session_now):
            return _child(turn, session_now)
        case SessionDeleted(gone):
            return replace(turn, sessions=tuple(s for s in turn.sessions if s.id != gone))
        case PermissionAsked(permission) if _new(turn, permission):
            return replace(turn, permissions=(*turn.permissions, permission))
        case QuestionAsked(question) if _new(turn, question):
            return replace(turn, questions=(*turn.questions, question))
        case RequestReplied():
            return _replied(turn, event)
        case StoreSnapshot(session) if session == turn.session:
            return _reread(turn, event)
        case TurnEnded(outcome, ending):
            failures = (*turn.failures, ending) if ending else turn.failures
            return replace(turn, verdict=outcome, failures=failures)
        case _:
            return turn


def _message(turn: Turn, message: Message) -> Turn:
    known = next((m for m in turn.log if m.id == message.id), None)
    if message.queued:
        others = tuple(m for m in turn.inbox if m.id != message.id)
        return turn if known else replace(turn, inbox=(*others, message))
    if known is None:
        if not _belongs(turn, message):
            return turn
        return replace(turn, log=_ordered((*turn.log, _answering(turn, message))))
    if known.completed is not None and message.completed is None:
        return turn
    merged = replace(
        message,
        created=known.created if message.created is None else message.created,
        parent=message.parent or known.parent,
        agent=message.agent or known.agent,
        model=message.model or known.model,
        parts=known.parts,
        diffs=message.diffs or known.diffs,
    )
    return replace(turn, log=tuple(merged if m.id == message.id else m for m in turn.log))


def _answering(turn: Turn, message: Message) -> Message:
    """A message that doesn't say which prompt it answers: the one before it (2.x)."""
    if message.role != "assistant" or message.parent is not None:
        return message
    prompts = [m.id for m in turn.log if m.role == "user"]
    return replace(message, parent=prompts[-1] if prompts else None)


def _delivered(turn: Turn, delivered: str, at: int | None) -> Turn:
    waited = next((m for m in turn.inbox if m.id == delivered), None)
    if waited is None:
        if delivered != turn.prompt:
            return turn
        waited = Message(delivered, turn.session, "user")
    turn = replace(turn, inbox=tuple(m for m in turn.inbox if m.id != delivered))
    prompt = replace(waited, created=at, queued=False)
    return replace(_message(turn, prompt), checked=False) if at is not None else turn


def _removed(turn: Turn, removed: str) -> Turn:
    if removed == turn.prompt and any(m.id == removed for m in turn.inbox):
        cancelled = Failure("Cancelled", "it was taken out of the inbox before an agent saw it")
        turn = replace(turn, verdict="aborted", failures=(*turn.failures, cancelled))
    inbox = tuple(m for m in turn.inbox if m.id != removed)
    return replace(turn, log=tuple(m for m in turn.log if m.id != removed), inbox=inbox)


def _belongs(turn: Turn, message: Message) -> bool:
    """Whether a message is the prompt or came after it."""
    if message.id == turn.prompt or message.parent == turn.prompt:
        return True
    began = next((m.created for m in turn.log if m.id == turn.prompt), None)
    return began is not None and message.created is not None and message.created >= began


def _ordered(log: Iterable[Message]) -> tuple[Message, ...]:
    # By creation, as the server lists them; ids break ties.
    return tuple(sorted(log, key=lambda m: (m.created is None, m.created or 0, m.id)))


def _status(turn: Turn, status: Status) -> Turn:
    retries = turn.retries
    if status.name == "retry":
        after = turn.log[-1].id if turn.log else None
        retry = Retry(status.attempt, status.message, status.next, after)
        if not retries or retries[-1].attempt != retry.attempt or retries[-1].after != after:
            retries = (*retries, retry)
    return replace(
        turn, status=status, checked=turn.checked and status.name == "idle", retries=retries
    )


def _below(turn: Turn, session: Session) -> bool:
    return session.parent in turn.tree or any(s.id == session.id for s in turn.sessions)


def _going_on(turn: Turn) -> Turn:
    """The turn when something comes: a retry that was waited for is under way."""
    waited = turn.status is not None and turn.status.name == "retry"
    return replace(turn, status=Status("busy")) if waited else turn


def _child(turn: Turn, session: Session) -> Turn:
    others = tuple(s for s in turn.sessions if s.id != session.id)
    known = next((s for s in turn.sessions if s.id == session.id), session)
    return replace(turn, sessions=_by_age((*others, _filled(known, session))))


def _filled(old: Partial, new: Partial) -> Partial:
    """The new value, with what it doesn't tell (None or empty) taken from the old one."""
    values = ((f.name, getattr(new, f.name)) for f in fields(new))
    told: dict[str, Any] = {name: v for name, v in values if v or type(v) is int}
    return replace(old, **told)


def _by_age(sessions: Iterable[Session]) -> tuple[Session, ...]:
    return tuple(sorted(sessions, key=lambda s: (s.created or 0, s.id)))


def _new(turn: Turn, request: Permission | Question) -> bool:
    """Whether a request belongs to the tree and is neither known nor already answered."""
    seen = {r.id for r in turn.waiting} | {s.request.id for s in turn.settled_requests}
    return request.id not in seen and request.session in turn.tree and _ours(turn, request)


def _ours(turn: Turn, request: Permission | Question) -> bool:
    """Whether a request of the tree comes from this turn's own answers.

    Where no other turn can be at work, it does. Behind another turn it needs a proof.
    """
    if not turn.queued:
        return True
    if request.session == turn.session:
        return any(m.id == request.message for m in turn.answers)
    parents = {s.id: s.parent for s in turn.sessions}
    called = {t.child for t in turn.tools}
    current: str | None = request.session
    while current is not None and current not in called:
        current = parents.get(current)
    return current is not None


def _owner(turn: Turn, part: Part) -> str:
    return next((m.id for m in turn.log if any(p.id == part.id for p in m.parts)), "")


def _retracted(turn: Turn, owner: str, part: Part) -> Turn:
    """A call that is over asks nothing any more: 2.x drops its request without a word."""
    if not (turn.waiting and isinstance(part, ToolCall) and is_part_over(part)):
        return turn
    return replace(
        turn,
        permissions=tuple(p for p in turn.permissions if (p.message, p.call) != (owner, part.call)),
        questions=tuple(q for q in turn.questions if (q.message, q.call) != (owner, part.call)),
    )


def _replied(turn: Turn, event: RequestReplied) -> Turn:
    request = next((r for r in turn.waiting if r.id == event.request), None)
    if request is None:
        return turn
    return replace(
        turn,
        permissions=tuple(p for p in turn.permissions if p.id != event.request),
        questions=tuple(q for q in turn.questions if q.id != event.request),
        settled_requests=(
            *turn.settled_requests,
            SettledRequest(request, event.reply, event.message),
        ),
    )


def _reread(turn: Turn, event: StoreSnapshot) -> Turn:
    stored = _from_prompt(event.messages, turn.prompt)
    if event.diffs:
        stored = tuple(replace(m, diffs=event.diffs) if m.id == turn.prompt else m for m in stored)
    known = {m.id: m for m in turn.log}
    log = tuple(_merge(known.get(m.id), m) for m in stored) if stored else turn.log
    turn = replace(
        turn,
        inbox=tuple(m for m in turn.inbox if m.id not in {s.id for s in stored}),
        log=_ordered(log),
        sessions=_by_age(event.sessions or turn.sessions),
        permissions=(),
        questions=(),
    )
    turn = replace(
        turn,
        permissions=tuple(p for p in event.permissions if _new(turn, p)),
        questions=tuple(q for q in event.questions if _new(turn, q)),
    )
    # What nobody could tell before, the store may tell now.
    verdict = None if turn.verdict == "unknown" else turn.verdict
    checked = event.status.name == "idle"
    return replace(_status(turn, event.status), checked=checked, verdict=verdict)


def _from_prompt(messages: tuple[Message, ...], prompt: str) -> tuple[Message, ...]:
    at = next((i for i, m in enumerate(messages) if m.id == prompt), len(messages))
    # An answer stays an answer when a clock that was set back lists it before its prompt.
    early = tuple(m for m in messages[:at] if m.parent == prompt)
    return messages[at:] + early


def _merge(known: Message | None, stored: Message) -> Message:
    """The store wins for what is complete; what still streams is richer here than there.

    Who cut a turn off is heard, and may not be kept.
    """
    if known is not None and known.role == "system" and stored.error and stored.error.interrupted:
        return replace(stored, error=known.error or stored.error)
    if known is None or stored.completed is not None or stored.role == "user":
        return stored
    parts = reduce(_put, stored.parts, known.parts)
    places = {p.id: n for n, p in enumerate(stored.parts)}
    return replace(
        stored, parts=_in_place(sorted(parts, key=lambda p: places.get(p.id, len(places))))
    )


# -- what the follower knows -----------------------------------------------------------------------


def judge_idle_turn(turn: Turn, idle_for: float) -> TurnEnded | None:
    """How a turn ended whose session has been idle for some seconds; None while it may go on."""
    if turn.outcome != "running":
        return None
    parked = any(m.id == turn.prompt for m in turn.inbox)
    return of_idle(idle_for, stored=turn.stored, parked=parked, failed=bool(turn.failures))


def with_wait_times(turn: Turn, waited: Mapping[str, float]) -> Turn:
    """The turn with how many seconds requests were known to wait, by their ids."""
    settled = turn.settled_requests
    told = (replace(s, waited=waited.get(s.request.id, s.waited)) for s in settled)
    return replace(turn, settled_requests=tuple(told))


# -- parts -----------------------------------------------------------------------------------------


def _parts(turn: Turn, owner: str, change: _Change) -> Turn:
    if not any(m.id == owner for m in turn.log):
        return turn
    return replace(
        turn,
        log=tuple(replace(m, parts=change(m.parts)) if m.id == owner else m for m in turn.log),
    )


def _put(parts: tuple[Part, ...], new: Part) -> tuple[Part, ...]:
    """Parts with one snapshot applied, in the order of their ids (1.18.33 stores them so)."""
    old = next((p for p in parts if p.id == new.id), None)
    if old is None:
        kept = _abandon(parts, new.id) if isinstance(new, StepStart) else parts
        return _in_place((*kept, new))
    if is_part_over(old) and not is_part_over(new):
        return parts
    if isinstance(old, ToolCall) and isinstance(new, ToolCall) and not new.tool:
        new = _filled(old, new)
    if (
        isinstance(old, Text | Reasoning)
        and isinstance(new, Text | Reasoning)
        and not is_part_over(new)
    ):
        new = replace(new, text=max(new.text, old.text, key=len))
    if isinstance(old, Text | Reasoning) and isinstance(new, Text | Reasoning):
        new = replace(new, start=old.start if new.start is None else new.start)
    return tuple(new if p.id == new.id else p for p in parts)


def _in_place(parts: Iterable[Part]) -> tuple[Part, ...]:
    return tuple(sorted(parts, key=lambda p: "" if p.id.startswith(":") else p.id))


def _abandon(parts: tuple[Part, ...], step: str) -> tuple[Part, ...]:
    """A new attempt begins: what the broken one had streamed counts no more.

    1.18.33 goes on in the same message after a dropped connection and stores the open part as "".
    """
    return tuple(
        replace(p, text="")
        if isinstance(p, Text | Reasoning) and p.end is None and p.id < step and p.id[:1] != ":"
        else p
        for p in parts
    )


def _append(parts: tuple[Part, ...], part_id: str, text: str) -> tuple[Part, ...]:
    old = next((p for p in parts if p.id == part_id), None)
    if old is None:
        return _put(parts, Text(part_id, text))
    if not isinstance(old, Text | Reasoning) or is_part_over(old):
        return parts
    return tuple(replace(old, text=old.text + text) if p is old else p for p in parts)
