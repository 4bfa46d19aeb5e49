"""Fold events into a `Turn`.

`advance(turn, event)` is the only function that changes the state of a turn; `with_wait_times` adds
what its follower measured. Nothing here knows about HTTP, a dialect, or a notebook.

Invariants, each with a test: events outside the turn's session tree change nothing; a closed
snapshot outranks deltas and open snapshots; an open snapshot never shortens a text; a delta may
come before its part; applying a snapshot twice equals applying it once; and a stream that breaks
anywhere, followed by one `StoreSnapshot`, results in the same turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import reduce
from typing import Any, TypeVar

from .decision import with_call, with_call_in
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
from .outcome import idle_verdict, is_complete, is_part_over, needs_answer
from .turn import Retry, SettledRequest, Turn

Partial = TypeVar("Partial", Session, ToolCall)
_Change = Callable[[tuple[Part, ...]], tuple[Part, ...]]


def advance_all(turn: Turn, events: Iterable[Event]) -> Turn:
    """Fold many events; consecutive deltas are joined first."""
    return reduce(advance, coalesce(events), turn)


def advance(turn: Turn, event: Event) -> Turn:
    """Return the turn after one event; events of other turns and sessions change nothing."""
    match event:
        case MessageChanged(message) if message.session == turn.session:
            return _message(turn, message)
        case PromptDelivered(session, delivered, at) if session == turn.session:
            return _delivered(turn, delivered, at)
        case MessageRemoved(session, removed) if session == turn.session:
            return _removed(turn, removed)
        case PartChanged(session, owner, part) if session in turn.tree:
            owner = owner or _owner(turn, part)
            turn = _informed(_retracted(turn, owner, part), part)
            own = session == turn.session
            turn = turn if is_part_over(part) or not own else _resumed(turn)
            return _parts(turn, owner, lambda parts: _put(parts, part)) if own else turn
        case PartDelta(session, owner, part_id, text) if session == turn.session:
            return _parts(_resumed(turn), owner, lambda parts: _append(parts, part_id, text))
        case PartRemoved(session, owner, part_id) if session == turn.session:
            return _parts(turn, owner, lambda ps: tuple(p for p in ps if p.id != part_id))
        case StatusChanged(session, status) if session == turn.session:
            ended = turn.ended or (status.name == "idle" and _is_over(turn))
            return replace(_status(turn, status), ended=ended)
        case SessionFailed(session, failure) if session == turn.session:
            declined = any(t.declined for m in turn.answers[-1:] for t in m.tools)
            if declined and failure.interrupted:  # 2.x interrupts a turn after a person declines
                return turn
            return replace(turn, failures=(*turn.failures, failure))
        case SessionChanged(session_now) if _is_in_tree(turn, session_now):
            return _child(turn, session_now)
        case SessionDeleted(deleted):
            return replace(turn, sessions=tuple(s for s in turn.sessions if s.id != deleted))
        case PermissionAsked(permission):
            return _asked(turn, permission)
        case QuestionAsked(question) if _is_new_request(turn, question):
            return replace(turn, questions=(*turn.questions, question))
        case RequestReplied():
            return _replied(turn, event)
        case StoreSnapshot(session) if session == turn.session:
            return _restored(turn, event)
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
        grown = replace(turn, log=_ordered((*turn.log, _with_parent(turn, message))))
        return replace(grown, ended=grown.ended and grown.answers == turn.answers)
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


def _is_over(turn: Turn) -> bool:
    return turn.stored and is_complete(turn.answers) and not needs_answer(turn.answers)


def _with_parent(turn: Turn, message: Message) -> Message:
    """The message, answering the last prompt before it if it names none (2.x)."""
    if message.role != "assistant" or message.parent is not None:
        return message
    prompts = [m.id for m in turn.log if m.role == "user"]
    return replace(message, parent=prompts[-1] if prompts else None)


def _delivered(turn: Turn, delivered: str, at: int | None) -> Turn:
    queued = next((m for m in turn.inbox if m.id == delivered), None)
    if queued is None:
        if delivered != turn.prompt:
            return turn
        queued = Message(delivered, turn.session, "user")
    turn = replace(turn, inbox=tuple(m for m in turn.inbox if m.id != delivered))
    prompt = replace(queued, created=at, queued=False)
    return replace(_message(turn, prompt), checked=False) if at is not None else turn


def _removed(turn: Turn, removed: str) -> Turn:
    if removed == turn.prompt and any(m.id == removed for m in turn.inbox):
        cancelled = Failure("Cancelled", "it was removed from the inbox before an agent saw it")
        turn = replace(turn, verdict="aborted", failures=(*turn.failures, cancelled))
    inbox = tuple(m for m in turn.inbox if m.id != removed)
    return replace(turn, log=tuple(m for m in turn.log if m.id != removed), inbox=inbox)


def _belongs(turn: Turn, message: Message) -> bool:
    """Return whether a message is the prompt or came after it."""
    if message.id == turn.prompt or message.parent == turn.prompt:
        return True
    began = next((m.created for m in turn.log if m.id == turn.prompt), None)
    return began is not None and message.created is not None and message.created >= began


def _ordered(log: Iterable[Message]) -> tuple[Message, ...]:
    # By creation time, as the server lists them; ids break ties.
    return tuple(sorted(log, key=lambda m: (m.created is None, m.created or 0, m.id)))


def _status(turn: Turn, status: Status) -> Turn:
    retries = turn.retries
    if status.name == "retry":
        after = turn.log[-1].id if turn.log else None
        retry = Retry(status.attempt, status.message, status.next, after)
        if not retries or retries[-1].attempt != retry.attempt or retries[-1].after != after:
            retries = (*retries, retry)
    return replace(
        turn,
        status=status,
        checked=turn.checked and (status.name == "idle" or turn.ended),
        retries=retries,
    )


def _is_in_tree(turn: Turn, session: Session) -> bool:
    return session.parent in turn.tree or any(s.id == session.id for s in turn.sessions)


def _resumed(turn: Turn) -> Turn:
    """The turn after a sign of progress: a pending retry has started."""
    retrying = turn.status is not None and turn.status.name == "retry"
    return replace(turn, status=Status("busy")) if retrying else turn


def _child(turn: Turn, session: Session) -> Turn:
    others = tuple(s for s in turn.sessions if s.id != session.id)
    known = next((s for s in turn.sessions if s.id == session.id), session)
    return replace(turn, sessions=_by_age((*others, _updated(known, session))))


def _updated(old: Partial, new: Partial) -> Partial:
    """The new value, with fields that are None or empty taken from the old one."""
    values = ((f.name, getattr(new, f.name)) for f in fields(new))
    updates: dict[str, Any] = {name: v for name, v in values if v or type(v) is int}
    return replace(old, **updates)


def _by_age(sessions: Iterable[Session]) -> tuple[Session, ...]:
    return tuple(sorted(sessions, key=lambda s: (s.created or 0, s.id)))


def _asked(turn: Turn, permission: Permission) -> Turn:
    """The turn with a pending permission, new or changed."""
    known = next((p for p in turn.permissions if p.id == permission.id), None)
    if known is not None:
        new = with_call_in(turn, permission) if permission != known else known
        permissions = tuple(new if p is known else p for p in turn.permissions)
        return turn if new is known else replace(turn, permissions=permissions)
    if not _is_new_request(turn, permission):
        return turn
    return replace(turn, permissions=(*turn.permissions, with_call_in(turn, permission)))


def _informed(turn: Turn, part: Part) -> Turn:
    """The turn with the input of a tool call added to the permission that it waits for."""
    if not isinstance(part, ToolCall) or not part.input:
        return turn
    return replace(
        turn,
        permissions=tuple(
            with_call(p, part) if p.call == part.call and not p.input else p
            for p in turn.permissions
        ),
    )


def _is_new_request(turn: Turn, request: Permission | Question) -> bool:
    """Return whether a request belongs to the turn and is neither pending nor settled."""
    known = {r.id for r in turn.waiting} | {s.request.id for s in turn.settled_requests}
    return request.id not in known and request.session in turn.tree and _is_own(turn, request)


def _is_own(turn: Turn, request: Permission | Question) -> bool:
    """Return whether a request of the tree comes from this turn's own answers.

    Always true unless the turn is queued, or over: then the request may belong to the turn before
    it or after it, unless one of this turn's messages or tool calls leads to it.
    """
    if not turn.queued and not turn.ended:
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
    """The turn without the requests of a finished call, which 2.x drops without an event."""
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
        settled_requests=(*turn.settled_requests, _settled(turn, request, event)),
    )


def _settled(turn: Turn, request: Permission | Question, event: RequestReplied) -> SettledRequest:
    """The request with its reply, and the one that was answered if the server settled both.

    A rejection rejects the other permissions of the session, and "always" allows those that the new
    rule covers (1.18.33).
    """
    also = frozenset(p.id for p in turn.permissions if p.session == request.session)
    together = ""
    if not event.ours:
        by = "reject" if event.reply == "reject" else "always"
        causes = (s for s in turn.settled_requests if request.id in s.also and s.reply == by)
        subjects = (c.request.subject for c in causes if isinstance(c.request, Permission))
        together = next(subjects, "")
    return SettledRequest(
        request, event.reply, event.message, together=together, also=also - {request.id}
    )


def _restored(turn: Turn, event: StoreSnapshot) -> Turn:
    stored = _from_prompt(event.messages, turn.prompt)
    if event.diffs:
        stored = tuple(replace(m, diffs=event.diffs) if m.id == turn.prompt else m for m in stored)
    known = {m.id: m for m in turn.log}
    log = tuple(_merge(known.get(m.id), m) for m in stored) if stored else turn.log
    pending = {p.id: p for p in turn.permissions}
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
        permissions=tuple(
            pending[p.id] if pending.get(p.id) == p else with_call_in(turn, p)
            for p in event.permissions
            if _is_new_request(turn, p)
        ),
        questions=tuple(q for q in event.questions if _is_new_request(turn, q)),
    )
    # The store may decide an outcome that was unknown.
    verdict = None if turn.verdict == "unknown" else turn.verdict
    checked = event.status.name == "idle" or turn.ended
    return replace(_status(turn, event.status), checked=checked, verdict=verdict)


def _from_prompt(messages: tuple[Message, ...], prompt: str) -> tuple[Message, ...]:
    at = next((i for i, m in enumerate(messages) if m.id == prompt), len(messages))
    # If the server's clock was set back, an answer can be listed before its prompt.
    misplaced = tuple(m for m in messages[:at] if m.parent == prompt)
    return messages[at:] + misplaced


def _merge(known: Message | None, stored: Message) -> Message:
    """Merge a message with its stored version, which wins once it is complete.

    A streaming message has more text here than in the store. The reason for an interruption comes
    only in the stream.
    """
    if known is not None and known.role == "system" and known.error and known.error.interrupted:
        return replace(stored, error=known.error)
    if known is None or stored.completed is not None or stored.role == "user":
        return stored
    parts = reduce(_put, stored.parts, known.parts)
    positions = {p.id: n for n, p in enumerate(stored.parts)}
    return replace(
        stored,
        parts=_ordered_parts(sorted(parts, key=lambda p: positions.get(p.id, len(positions)))),
    )


# -- information from the follower -----------------------------------------------------------------


def judge_idle_turn(turn: Turn, idle_for: float) -> TurnEnded | None:
    """Return how a turn ended after `idle_for` idle seconds; None while it may continue."""
    if turn.outcome != "running":
        return None
    parked = any(m.id == turn.prompt for m in turn.inbox)
    return idle_verdict(idle_for, stored=turn.stored, parked=parked, failures=turn.failures)


def with_wait_times(turn: Turn, waited: Mapping[str, float]) -> Turn:
    """Return the turn with the seconds that requests waited, by request id."""
    settled = (replace(s, waited=waited.get(s.request.id, s.waited)) for s in turn.settled_requests)
    return replace(turn, settled_requests=tuple(settled))


# -- parts -----------------------------------------------------------------------------------------


def _parts(turn: Turn, owner: str, change: _Change) -> Turn:
    if not any(m.id == owner for m in turn.log):
        return turn
    return replace(
        turn,
        log=tuple(replace(m, parts=change(m.parts)) if m.id == owner else m for m in turn.log),
    )


def _put(parts: tuple[Part, ...], new: Part) -> tuple[Part, ...]:
    """Parts with one snapshot applied, ordered by id (as 1.18.33 stores them)."""
    old = next((p for p in parts if p.id == new.id), None)
    if old is None:
        others = _abandon(parts, new.id) if isinstance(new, StepStart) else parts
        return _ordered_parts((*others, new))
    if is_part_over(old) and not is_part_over(new):
        return parts
    if isinstance(old, ToolCall) and isinstance(new, ToolCall) and not new.tool:
        new = _updated(old, new)
    if (
        isinstance(old, Text | Reasoning)
        and isinstance(new, Text | Reasoning)
        and not is_part_over(new)
    ):
        new = replace(new, text=max(new.text, old.text, key=len))
    if isinstance(old, Text | Reasoning) and isinstance(new, Text | Reasoning):
        new = replace(new, start=old.start if new.start is None else new.start)
    return tuple(new if p.id == new.id else p for p in parts)


def _ordered_parts(parts: Iterable[Part]) -> tuple[Part, ...]:
    return tuple(sorted(parts, key=lambda p: "" if p.id.startswith(":") else p.id))


def _abandon(parts: tuple[Part, ...], step: str) -> tuple[Part, ...]:
    """Discard the text of a broken attempt when a new step starts.

    After a dropped connection 1.18.33 continues in the same message and stores the open part as "".
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
