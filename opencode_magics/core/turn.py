"""A turn: one prompt and everything that the agent did about it, as a value.

A turn is identified by its own prompt, never by "the latest message" or "the session went idle".
`fold` makes each state of it from the one before, `outcome` decides whether it is over and how.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from . import outcome as decided
from .diffs import Diff
from .formatting import format_usd, pluralize, seconds_between
from .model import (
    Failure,
    FileDiff,
    Message,
    ModelRef,
    Outcome,
    Permission,
    Question,
    Session,
    Status,
    StepEnd,
    ToolCall,
    Usage,
    total_usage,
)

LIMIT_EXCEEDED = "Stopped"  # name of the failure of a turn that passed a limit


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


@dataclass(frozen=True, slots=True)
class LocalData:
    """Data about a turn that exists only in this process, and on no server.

    Attributes:
        value: The parsed answer, where the prompt had a schema.
        earlier: The turns before it whose answers didn't match the schema.
        replay_of: The recording that it replays, in words; "" if it is no replay.
        capture: What was received while this process followed it (`recording.format.Capture`).
    """

    value: Any = None
    earlier: tuple[Turn, ...] = ()
    replay_of: str = ""
    capture: object | None = None


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
        local: What only this process knows of it, as `value`, `earlier` and `replayed`.
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
    local: LocalData = field(default=LocalData(), compare=False)

    def __repr__(self) -> str:
        what = f"{self.outcome} (replay)" if self.replayed else self.outcome
        done = f"{pluralize(self.steps, 'step')}, {pluralize(len(self.tools), 'tool')}"
        return f"<Turn {what}: {done}, {format_usd(self.cost)}, session {self.session}>"

    # -- what only this process knows ----------------------------------------------------------

    @property
    def value(self) -> Any:
        """The parsed answer, where the prompt had a schema; else None."""
        return self.local.value

    @property
    def earlier(self) -> tuple[Turn, ...]:
        """The turns before it whose answers didn't match the schema."""
        return self.local.earlier

    @property
    def replayed(self) -> str:
        """The recording that it replays, in words; "" if it is no replay."""
        return self.local.replay_of

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
        return own + later if decided.needs_answer(own) else own

    @property
    def merged(self) -> bool:
        """Whether the answer came together with that of a later prompt (queued on 1.x)."""
        own, later = _split_answers(self.log, self.prompt)
        return bool(later) and decided.needs_answer(own)

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
        return told or tuple(d for t in self.tools if decided.is_tool_completed(t) for d in t.diffs)

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
        return self.checked and self.stored and decided.is_complete(self.answers)

    @property
    def outcome(self) -> Outcome:
        """How it ended, or "running". "succeeded" needs a finish, no error and no refusal."""
        if self.verdict is not None:
            return self.verdict
        if not self.settled:
            return "running"
        return decided.of_answers(self.answers, self._ends, self.failures)

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


# -- what only this process knows ------------------------------------------------------------------


def with_value(turn: Turn, value: Any, earlier: Iterable[Turn]) -> Turn:
    """The turn with its parsed answer, and the turns before it whose answers didn't match."""
    return replace(turn, local=replace(turn.local, value=value, earlier=tuple(earlier)))


def with_capture(turn: Turn, capture: object) -> Turn:
    """The turn with what was received of it, so that it can be recorded; not if it is a replay."""
    return turn if turn.replayed else replace(turn, local=replace(turn.local, capture=capture))


def as_replay(turn: Turn, recording: str) -> Turn:
    """The turn as a replay of a recording."""
    return replace(turn, local=replace(turn.local, replay_of=recording, capture=None))
