"""Folds events into a Turn. Everything that changes a turn lives here.

A turn is one prompt and all that the agent did about it. It is keyed by its own prompt, never by
"the latest message" or "the session went idle". `advance(turn, event)` is the only way to a new
state of the turn itself; what its follower knows beside that is noted by `timed`, `valued` and
`as_replay`. Nothing here knows about HTTP, a dialect, or a notebook.

The laws, each of which is a test: events outside the turn's session tree change nothing; a closed
snapshot outranks deltas and open snapshots; an open snapshot never shortens a text; a delta may
come before its part; a snapshot applied twice equals once; and a stream that breaks anywhere,
followed by one `Reread` of the store, ends in the same Turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from typing import Any, TypeVar

from ..recording.format import Recorder
from .diffs import Diff
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
from .formatting import format_usd, seconds_between
from .model import (
    Failure,
    FileDiff,
    Message,
    ModelRef,
    Outcome,
    Part,
    Permission,
    Question,
    Reasoning,
    Session,
    Status,
    StepEnd,
    StepStart,
    Text,
    ToolCall,
    Usage,
    total_usage,
)

Partial = TypeVar("Partial", Session, ToolCall)
_Change = Callable[[tuple[Part, ...]], tuple[Part, ...]]
LIMIT_EXCEEDED = "Stopped"  # name of the failure of a turn that passed a limit
_HALF_DONE = 3.0  # seconds of idleness after which an unfinished answer will never be finished


@dataclass(frozen=True, slots=True)
class SettledRequest:
    """A permission or question that was answered, and how.

    `waited` is for how many seconds it was known to wait; None where nobody took the time.
    """

    request: Permission | Question
    reply: str
    message: str = ""
    waited: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Retry:
    """The provider failed and the server tries again. `after` is the message it happened in."""

    attempt: int | None
    message: str
    next: int | None
    after: str | None


@dataclass(frozen=True, slots=True, repr=False)
class Turn:
    """One prompt and all that the agent did about it.

    Attributes:
        session: The session it runs in.
        prompt: The id of its prompt message.
        log: The session's messages from the prompt on; `answers` picks the turn's own.
        sessions: Sessions of subagents below this one.
        status: What the session was last known to do.
        checked: The store was read again while the session was idle.
        verdict: How it ended by its follower's word, where no server can tell; `outcome` is that.
        queued: It was sent behind another turn, whose requests are none of ours.
        inbox: Prompts that wait in the session's inbox, where the server tells.
        permissions, questions: What waits for a person, in the whole tree.
        settled_requests, retries, failures: What was heard on the way and no store keeps;
            two turns that differ only here are equal.
        value: What its answer says, where it was asked to fit a schema (`structured`).
        earlier: The turns whose answers did not fit before it.
        recorder: What was heard of it as it came, where this process followed it.
        replayed: Of what recording it is a replay; "" if it is none.
    """

    session: str
    prompt: str
    log: tuple[Message, ...] = ()
    sessions: tuple[Session, ...] = ()
    status: Status | None = None
    checked: bool = False
    verdict: Outcome | None = None
    queued: bool = field(default=False, compare=False)
    inbox: tuple[Message, ...] = field(default=(), compare=False)
    permissions: tuple[Permission, ...] = ()
    questions: tuple[Question, ...] = ()
    settled_requests: tuple[SettledRequest, ...] = field(default=(), compare=False)
    retries: tuple[Retry, ...] = field(default=(), compare=False)
    failures: tuple[Failure, ...] = field(default=(), compare=False)
    value: Any = field(default=None, compare=False)
    earlier: tuple[Turn, ...] = field(default=(), compare=False)
    recorder: Recorder | None = field(default=None, compare=False)
    replayed: str = field(default="", compare=False)

    def __repr__(self) -> str:
        what = f"{self.outcome} (replay)" if self.replayed else self.outcome
        return (
            f"<Turn {what}: {self.steps} steps, {len(self.tools)} tools, {format_usd(self.cost)}, "
            f"session {self.session}>"
        )

    # -- what it is made of ------------------------------------------------------------------

    @property
    def stored(self) -> bool:
        """Whether the server is known to have the prompt."""
        return any(m.id == self.prompt for m in self.log)

    @property
    def question_text(self) -> str:
        """The prompt as the server stored it."""
        known = (*self.log, *self.inbox)  # in there as long as no agent has seen it (2.x)
        return next((m.text for m in known if m.id == self.prompt), "")

    @property
    def answers(self) -> tuple[Message, ...]:
        """The assistant messages of this turn, in order."""
        own, later = _split_answers(self.log, self.prompt)
        return own + later if _goes_on(own) else own

    @property
    def merged(self) -> bool:
        """Whether the answer came together with that of a later prompt (queued on 1.x)."""
        own, later = _split_answers(self.log, self.prompt)
        return bool(later) and _goes_on(own)

    @property
    def text(self) -> str:
        """What the agent said at last; "" if it said nothing."""
        return next((m.text for m in reversed(self.answers) if not m.summary), "")

    @property
    def tools(self) -> tuple[ToolCall, ...]:
        """Every tool call, in order."""
        return tuple(t for m in self.answers for t in m.tools)

    @property
    def diffs(self) -> tuple[FileDiff, ...]:
        """What changed on disk: the server's own account, else what the edit tools report."""
        told = next((m.diffs for m in self.log if m.id == self.prompt), ())
        return told or tuple(d for t in self.tools if t.status == "completed" for d in t.diffs)

    @property
    def diff(self) -> Diff:
        """The same, file by file."""
        told = any(m.diffs for m in self.log if m.id == self.prompt)
        return Diff.of(((self.prompt, d) for d in self.diffs), "turns" if told else "tools")

    @property
    def steps(self) -> int:
        """How many model calls came to their end."""
        return sum(isinstance(p, StepEnd) for m in self.answers for p in m.parts)

    @property
    def usage(self) -> Usage | None:
        """Tokens and cost without subagents; None while nothing is known."""
        return total_usage(m.usage for m in self.answers)

    @property
    def usage_complete(self) -> bool:
        """Whether all that was used is told.

        An aborted message never tells (1.18.33), and of a subagent that an earlier turn began
        nobody knows how much it took since.
        """
        told = [m.usage for m in self.answers] + [s.usage for s in self.subagents]
        known = not any(u is None or u.empty for u in told)
        resumed = {t.child for t in self.tools if t.child} - {s.id for s in self.subagents}
        return bool(self.answers) and known and not resumed

    @property
    def subagents(self) -> tuple[Session, ...]:
        """The sessions that this turn's agents opened; not those that it went on with."""
        began = next((m.created for m in self.log if m.id == self.prompt), None)
        return tuple(s for s in self.sessions if began and s.created and s.created >= began)

    @property
    def cost(self) -> float | None:
        """USD, subagents included; None while nothing is known."""
        spent = [self.usage, *(s.usage for s in self.subagents)]
        usage = total_usage(u for u in spent if u and not u.empty)
        return usage.cost if usage else None

    @property
    def cost_complete(self) -> bool:
        """Whether the cost is that of all calls, subagents' included; else it is at least that."""
        told = [m.usage for m in self.answers] + [s.usage for s in self.subagents]
        return self.usage_complete and all(u and u.cost is not None for u in told)

    @property
    def agent(self) -> str | None:
        """The agent that answered."""
        return next((m.agent for m in reversed(self.answers) if not m.summary), None)

    @property
    def model(self) -> ModelRef | None:
        """The model that answered."""
        return next((m.model for m in reversed(self.answers) if not m.summary), None)

    @property
    def duration(self) -> float | None:
        """Seconds from the prompt to the end of the last answer, by the server's clock."""
        began = next((m.created for m in self.log if m.id == self.prompt), None)
        ended = [m.completed for m in self.answers]
        return seconds_between(began, ended[-1]) if ended else None

    # -- where it stands -----------------------------------------------------------------------

    @property
    def waiting(self) -> tuple[Permission | Question, ...]:
        """What waits for a person, oldest first."""
        return (*self.permissions, *self.questions)

    @property
    def settled(self) -> bool:
        """Idle, read again since, and no message of it is half done."""
        return self.checked and self.stored and all(m.completed is not None for m in self.answers)

    @property
    def outcome(self) -> Outcome:
        """How it ended, or "running". "succeeded" needs a finish, no error and no refusal."""
        if self.verdict is not None:
            return self.verdict
        return _outcome(self.answers, self._ends, self.failures) if self.settled else "running"

    @property
    def failure(self) -> Failure | None:
        """Why it failed or was aborted, where the server said so, or who follows it."""
        if self.outcome == "rejected":
            return None
        if self.stopped:
            return Failure(LIMIT_EXCEEDED, self.stopped)
        errors = [m.error for m in self.answers[-1:] if m.error]
        if errors or self.outcome in ("succeeded", "running"):
            return errors[0] if errors else None
        heard = (*self._ends, *self.failures)
        return heard[-1] if heard else None

    @property
    def _ends(self) -> tuple[Failure, ...]:
        """Why it ended, where the server noted that behind it (2.x): one failure, or none."""
        own = {self.prompt, *(m.id for m in self.answers)}
        last = max((n for n, m in enumerate(self.log) if m.id in own), default=-1)
        noted = (m for m in self.log[last + 1 :] if m.role == "system" and m.error)
        return tuple(m.error for m in noted if m.error)[:1]

    @property
    def stopped(self) -> str:
        """Which limit it was stopped for, in words (`limits`); "" if it was not."""
        return next((f.message for f in self.failures if f.name == LIMIT_EXCEEDED), "")

    @property
    def tree(self) -> frozenset[str]:
        """Ids of the session and of all subagents below it."""
        children = {t.child for t in self.tools if t.child}
        return frozenset({self.session, *children, *(s.id for s in self.sessions)})


def _split_answers(
    log: tuple[Message, ...], prompt: str
) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """The answers to the prompt, and those to the first later prompt that has any.

    1.18.33 compacts by adding synthetic user messages and answers these: they count as ours until
    another real prompt comes. A command that a person runs comes behind such a message, too, but
    answers nothing.
    """
    ours, theirs = {prompt}, dict[str, str]()
    own: list[Message] = []
    later: list[Message] = []
    owner = ""
    for message in (m for m in log if not m.shell):
        if message.role == "user" and message.id != prompt:
            if not message.synthetic:
                owner = message.id
            if owner:
                theirs[message.id] = owner
            else:
                ours.add(message.id)
        elif message.role == "assistant" and message.parent in ours:
            own.append(message)
        elif message.role == "assistant" and message.parent in theirs:
            later.append(message)
    first = theirs.get(later[0].parent or "") if later else None
    return tuple(own), tuple(m for m in later if theirs.get(m.parent or "") == first)


def _goes_on(own: tuple[Message, ...]) -> bool:
    """Whether the turn isn't over with its own answers: none, or tool results not yet read."""
    if not own:
        return True
    last = own[-1]
    return (
        last.finish == "tool-calls"
        and last.error is None
        and not any(t.declined for t in last.tools)
    )


def _outcome(
    answers: tuple[Message, ...], ends: tuple[Failure, ...], failures: tuple[Failure, ...]
) -> Outcome:
    if not answers:
        return _unanswered((*ends, *failures))
    last = answers[-1]
    declined = any(t.declined for t in last.tools)
    if last.error is not None and not (declined and last.error.aborted):
        if not (last.error.aborted or last.error.interrupted):
            return "failed"
        cut_off = any(f.interrupted for f in ends or (last.error, *failures))
        return "interrupted" if cut_off else "aborted"
    if declined:
        return "rejected"
    if last.finish in ("error", "content-filter"):
        return "failed"
    # Completed without a finish: 1.18.33 leaves this when a retry is cut off. And nobody goes on
    # with tool results that no step has read, or with a tool that still seems to run.
    at_work = any(t.status in ("pending", "running") for m in answers for t in m.tools)
    halfway = last.finish in (None, "", "tool-calls")
    return "interrupted" if halfway or at_work else "succeeded"


def _unanswered(failures: tuple[Failure, ...]) -> Outcome:
    if failures and failures[-1].interrupted:
        return "interrupted"
    return "aborted" if failures and failures[-1].aborted else "failed"


def judge_idle_turn(turn: Turn, idle_for: float) -> TurnEnded | None:
    """How a turn ended that no server will end: its session is idle, and it won't go on.

    Args:
        turn: The turn as the store has it.
        idle_for: For how many seconds its session has been idle.

    Returns:
        None as long as it may go on. Else why it won't: its answer is half done, its prompt still
        waits in the inbox, or is gone.
    """
    if turn.outcome != "running" or idle_for < _HALF_DONE:
        return None
    if turn.stored:
        reason = "the session is idle, but its answer was never finished"
        return TurnEnded("interrupted", Failure("HalfDone", reason))
    if turn.failures:
        return TurnEnded("failed")
    if any(m.id == turn.prompt for m in turn.inbox):
        reason = "the session is idle, and the prompt still waits in its inbox (%oc_inbox)"
        return TurnEnded("interrupted", Failure("Parked", reason))
    reason = "the session is idle and does not hold the prompt"
    return TurnEnded("unknown", Failure("PromptMissing", reason))


# -- the fold --------------------------------------------------------------------------------------


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
            turn = turn if _closed(part) or not ours else _going_on(turn)
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
    if not (turn.waiting and isinstance(part, ToolCall) and _closed(part)):
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


def with_wait_times(turn: Turn, waited: Mapping[str, float]) -> Turn:
    """The turn with how many seconds requests were known to wait, by their ids."""
    settled = turn.settled_requests
    told = (replace(s, waited=waited.get(s.request.id, s.waited)) for s in settled)
    return replace(turn, settled_requests=tuple(told))


def with_value(turn: Turn, value: Any, earlier: Iterable[Turn]) -> Turn:
    """The turn with what its answer says, and the turns before it whose answers did not fit."""
    return replace(turn, value=value, earlier=tuple(earlier))


def as_replay(turn: Turn, recording: str) -> Turn:
    """The turn as a replay of a recording, which is not recorded again."""
    return replace(turn, recorder=None, replayed=recording)


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
    if _closed(old) and not _closed(new):
        return parts
    if isinstance(old, ToolCall) and isinstance(new, ToolCall) and not new.tool:
        new = _filled(old, new)
    if isinstance(old, Text | Reasoning) and isinstance(new, Text | Reasoning) and not _closed(new):
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
    if not isinstance(old, Text | Reasoning) or _closed(old):
        return parts
    return tuple(replace(old, text=old.text + text) if p is old else p for p in parts)


def _closed(part: Part) -> bool:
    match part:
        case Text() | Reasoning():
            return part.end is not None
        case ToolCall():
            return part.status in ("completed", "error")
        case _:
            return True
