"""`Turn`: one prompt and everything that the agent did in response, as a frozen value.

A turn is identified by its own prompt, never by "the latest message" or "the session went idle".
`fold` derives each state from the previous one, and `outcome` decides how a turn ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from . import outcome as outcomes
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

LIMIT_EXCEEDED = "Stopped"  # name of the failure of a turn that exceeded a limit


@dataclass(frozen=True, slots=True)
class SettledRequest:
    """A permission or question and the reply to it.

    Attributes:
        waited: The number of seconds it is known to have waited; None if not measured.
        together: The subject of the permission whose reply settled this one, too; "" if it was
            answered itself.
        also: Ids of the permissions of its session that were pending at that time.
    """

    request: Permission | Question
    reply: str
    message: str = ""
    waited: float | None = field(default=None, compare=False)
    together: str = field(default="", compare=False)
    also: frozenset[str] = field(default=frozenset(), compare=False)


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry after an error of the provider. `after` is the message in which it occurred."""

    attempt: int | None
    message: str
    next: int | None
    after: str | None


@dataclass(frozen=True, slots=True)
class LocalData:
    """Data about a turn that exists only in this process, not on the server.

    Attributes:
        value: The parsed answer, if the prompt had a schema.
        earlier: The previous attempts, whose answers didn't match the schema.
        replay_of: A description of the recording that it replays; "" if it is not a replay.
        capture: The data received while this process followed it (`recording.format.Capture`).
        agent, model: Who was asked to answer; None if the server decides, or if it is unknown.
    """

    value: Any = None
    earlier: tuple[Turn, ...] = ()
    replay_of: str = ""
    capture: object | None = None
    agent: str | None = None
    model: ModelRef | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Turn:
    """One prompt and everything that the agent did in response.

    Attributes:
        session: The session it runs in.
        prompt: The id of its prompt message.
        log: The session's messages from the prompt on; `answers` selects the turn's own.
        sessions: Subagent sessions below this one.
        status: The last known status of the session.
        checked: Whether the store was read again after the turn seemed over.
        ended: Whether the stream reported an end of work after its last answer, even if the
            session then began to work on another prompt.
        verdict: The outcome as decided by its follower, if the server can't; overrides `outcome`.
        queued: Whether it was sent while another turn was running, whose requests are not its own.
        inbox: Prompts in the session's inbox, if the server has one (2.x).
        permissions, questions: Pending requests to a person, in the whole tree.
        settled_requests, retries, failures: Observed in the stream and not stored by the server;
            two turns that differ only here are equal.
        local: Data known only to this process, such as `value`, `earlier` and `replayed`.
    """

    session: str
    prompt: str
    log: tuple[Message, ...] = ()
    sessions: tuple[Session, ...] = ()
    status: Status | None = None
    checked: bool = False
    verdict: Outcome | None = None
    ended: bool = field(default=False, compare=False)
    queued: bool = field(default=False, compare=False)
    inbox: tuple[Message, ...] = field(default=(), compare=False)
    permissions: tuple[Permission, ...] = ()
    questions: tuple[Question, ...] = ()
    settled_requests: tuple[SettledRequest, ...] = field(default=(), compare=False)
    retries: tuple[Retry, ...] = field(default=(), compare=False)
    failures: tuple[Failure, ...] = field(default=(), compare=False)
    local: LocalData = field(default=LocalData(), compare=False)

    def __repr__(self) -> str:
        outcome = f"{self.outcome} (replay)" if self.replayed else self.outcome
        counts = f"{pluralize(self.steps, 'step')}, {pluralize(len(self.tools), 'tool')}"
        return f"<Turn {outcome}: {counts}, {format_usd(self.cost)}, session {self.session}>"

    # -- data of this process --------------------------------------------------------------------

    @property
    def value(self) -> Any:
        """The parsed answer, if the prompt had a schema; else None."""
        return self.local.value

    @property
    def earlier(self) -> tuple[Turn, ...]:
        """The previous attempts, whose answers didn't match the schema."""
        return self.local.earlier

    @property
    def replayed(self) -> str:
        """A description of the recording that it replays; "" if it is not a replay."""
        return self.local.replay_of

    # -- content ---------------------------------------------------------------------------------

    @property
    def stored(self) -> bool:
        """Whether the server is known to have stored the prompt."""
        return any(m.id == self.prompt for m in self.log)

    @property
    def question_text(self) -> str:
        """The text of the prompt as the server has it."""
        messages = (*self.log, *self.inbox)  # in the inbox until an agent sees it (2.x)
        return next((m.text for m in messages if m.id == self.prompt), "")

    @property
    def answers(self) -> tuple[Message, ...]:
        """The assistant messages of this turn, in order."""
        own, later = _split_answers(self.log, self.prompt)
        return own + later if outcomes.needs_answer(own) else own

    @property
    def merged(self) -> bool:
        """Whether it was answered together with a later prompt (queued on 1.x)."""
        own, later = _split_answers(self.log, self.prompt)
        return bool(later) and outcomes.needs_answer(own)

    @property
    def text(self) -> str:
        """The text of the last answer; "" if there is none."""
        return next((m.text for m in reversed(self.answers) if not m.summary), "")

    @property
    def tools(self) -> tuple[ToolCall, ...]:
        """Every tool call, in order."""
        return tuple(t for m in self.answers for t in m.tools)

    @property
    def diffs(self) -> tuple[FileDiff, ...]:
        """Changed files, as reported by the server, or else by the edit tools."""
        reported = next((m.diffs for m in self.log if m.id == self.prompt), ())
        completed = (t for t in self.tools if outcomes.is_tool_completed(t))
        return reported or tuple(d for t in completed for d in t.diffs)

    @property
    def diff(self) -> Diff:
        """The changes of all files as one `Diff`."""
        reported = any(m.diffs for m in self.log if m.id == self.prompt)
        return Diff.of(((self.prompt, d) for d in self.diffs), "turns" if reported else "tools")

    @property
    def steps(self) -> int:
        """The number of completed model calls."""
        return sum(isinstance(p, StepEnd) for m in self.answers for p in m.parts)

    @property
    def usage(self) -> Usage | None:
        """Tokens and cost without subagents; None while unknown."""
        return total_usage(m.usage for m in self.answers)

    @property
    def usage_complete(self) -> bool:
        """Whether the usage of all answers and subagents is known.

        An aborted message has none (1.18.33), and the share of this turn in a subagent session
        that an earlier turn started is unknown.
        """
        usages = [m.usage for m in self.answers] + [s.usage for s in self.subagents]
        known = not any(u is None or u.empty for u in usages)
        resumed = {t.child for t in self.tools if t.child} - {s.id for s in self.subagents}
        return bool(self.answers) and known and not resumed

    @property
    def subagents(self) -> tuple[Session, ...]:
        """The subagent sessions that this turn started, without resumed ones."""
        began = next((m.created for m in self.log if m.id == self.prompt), None)
        return tuple(s for s in self.sessions if began and s.created and s.created >= began)

    @property
    def cost(self) -> float | None:
        """USD, subagents included; None while unknown."""
        usages = [self.usage, *(s.usage for s in self.subagents)]
        usage = total_usage(u for u in usages if u and not u.empty)
        return usage.cost if usage else None

    @property
    def cost_complete(self) -> bool:
        """Whether `cost` includes all calls of the turn and its subagents; else it is a minimum."""
        usages = [m.usage for m in self.answers] + [s.usage for s in self.subagents]
        return self.usage_complete and all(u and u.cost is not None for u in usages)

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

    # -- state -----------------------------------------------------------------------------------

    @property
    def waiting(self) -> tuple[Permission | Question, ...]:
        """Pending requests to a person: permissions, then questions, each oldest first."""
        return (*self.permissions, *self.questions)

    @property
    def settled(self) -> bool:
        """Whether the turn is over according to the store, and all answers are complete."""
        return self.checked and self.stored and outcomes.is_complete(self.answers)

    @property
    def outcome(self) -> Outcome:
        """The outcome, or "running". "succeeded" needs a finish, no error and no refusal."""
        if self.verdict is not None:
            return self.verdict
        if not self.settled:
            return "running"
        return outcomes.turn_outcome(self.answers, self._ends, self.failures)

    @property
    def failure(self) -> Failure | None:
        """Why it failed or was aborted, according to the server or the follower."""
        if self.outcome == "rejected":
            return None
        if self.stopped:
            return Failure(LIMIT_EXCEEDED, self.stopped)
        errors = [m.error for m in self.answers[-1:] if m.error]
        if errors or self.outcome in ("succeeded", "running"):
            return errors[0] if errors else None
        failures = (*self._ends, *self.failures)
        if not failures and not self.answers:
            what = f"the server accepted the prompt {self.prompt}, but no agent began to answer it"
            return Failure("NotStarted", what)
        return failures[-1] if failures else None

    @property
    def _ends(self) -> tuple[Failure, ...]:
        """The failure that the server recorded after the turn (2.x): one, or none."""
        own = {self.prompt, *(m.id for m in self.answers)}
        last = max((n for n, m in enumerate(self.log) if m.id in own), default=-1)
        after = takewhile(lambda m: m.role != "user" or m.synthetic, self.log[last + 1 :])
        errors = (m.error for m in after if m.role == "system")
        return tuple(error for error in errors if error)[:1]

    @property
    def stopped(self) -> str:
        """The exceeded limit that stopped it, described by `limits`; "" if none did."""
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

    1.18.33 compacts by adding synthetic user messages and answering them: such answers belong to
    the turn until the next real prompt. A shell command of a person follows such a message, too,
    but is not an answer.
    """
    own_prompts, later_prompts = {prompt}, dict[str, str]()
    own: list[Message] = []
    later: list[Message] = []
    owner = ""
    for message in (m for m in log if not m.shell):
        if message.role == "user" and message.id != prompt:
            if not message.synthetic:
                owner = message.id
            if owner:
                later_prompts[message.id] = owner
            else:
                own_prompts.add(message.id)
        elif message.role == "assistant" and message.parent in own_prompts:
            own.append(message)
        elif message.role == "assistant" and message.parent in later_prompts:
            later.append(message)
    first = later_prompts.get(later[0].parent or "") if later else None
    return tuple(own), tuple(m for m in later if later_prompts.get(m.parent or "") == first)


# -- data of this process --------------------------------------------------------------------------


def with_value(turn: Turn, value: Any, earlier: Iterable[Turn]) -> Turn:
    """Return the turn with its parsed answer and the previous attempts."""
    return replace(turn, local=replace(turn.local, value=value, earlier=tuple(earlier)))


def with_capture(turn: Turn, capture: object) -> Turn:
    """Return the turn with its captured data, for recording; a replay is returned unchanged."""
    return turn if turn.replayed else replace(turn, local=replace(turn.local, capture=capture))


def as_replay(turn: Turn, recording: str) -> Turn:
    """Return the turn as a replay of a recording."""
    return replace(turn, local=replace(turn.local, replay_of=recording, capture=None))
