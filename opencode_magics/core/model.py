"""What a server holds, as frozen values.

Names are the field's, not the wire's: each dialect decodes into these and nothing else. Times are
milliseconds since the epoch (UTC), money is US dollars, and `None` means unknown or absent: a
count that nobody reported is `None`, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

Decision = Literal["once", "always", "reject"]  # the reply to a permission
Reply = Literal[Decision, "answered", "dismissed"]  # and to a question
StatusName = Literal["idle", "busy", "retry"]
Outcome = Literal["running", "succeeded", "rejected", "aborted", "failed", "interrupted", "unknown"]
ToolStatus = Literal["pending", "running", "completed", "error"]
DECISIONS: tuple[Decision, ...] = get_args(Decision)
REPLIES: tuple[Reply, ...] = get_args(Reply)


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answered a probe."""

    generation: Literal["1.x", "2.x"]
    version: str
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class ModelRef:
    """Which model: written `provider/model`, as in OpenCode's own configuration."""

    provider: str
    id: str
    variant: str | None = None

    def __str__(self) -> str:
        return f"{self.provider}/{self.id}"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and cost of a step, a message, a session or a turn.

    `input` leaves out what came from the cache and `output` leaves out the reasoning, so that
    `total` is the plain sum of the five. `cost` is what the server stored, never recomputed here.
    """

    input: int | None = None
    output: int | None = None
    reasoning: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    cost: float | None = None

    @property
    def total(self) -> int | None:
        """All tokens; None when none of the five is known."""
        total: int | None = _add(
            self.input, self.output, self.reasoning, self.cache_read, self.cache_write
        )
        return total

    @property
    def empty(self) -> bool:
        """Whether nothing but zeros and unknowns is here."""
        return not self.total and not self.cost


def total_usage(usages: Iterable[Usage | None]) -> Usage | None:
    """Add up what is known; None when nothing is."""
    known = [u for u in usages if u is not None]
    if len(known) < 2:
        return known[0] if known else None
    return Usage(
        input=_add(*(u.input for u in known)),
        output=_add(*(u.output for u in known)),
        reasoning=_add(*(u.reasoning for u in known)),
        cache_read=_add(*(u.cache_read for u in known)),
        cache_write=_add(*(u.cache_write for u in known)),
        cost=_add(*(u.cost for u in known)),
    )


def _add(*values: Any) -> Any:
    known = [v for v in values if v is not None]
    return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a message or a session failed, in the server's words."""

    name: str
    message: str
    status: int | None = None
    provider: str | None = None

    @property
    def aborted(self) -> bool:
        """Whether somebody stopped it, rather than something breaking."""
        return "abort" in self.name.lower()

    @property
    def interrupted(self) -> bool:
        """Whether the server itself cut it off: 2.x says so, and nobody asked for it."""
        return self.name == "Interrupted"

    def __str__(self) -> str:
        source = f"{self.provider}: " if self.provider else ""
        return f"{self.name}: {source}{self.message}" if self.message else self.name


@dataclass(frozen=True, slots=True)
class FileDiff:
    """One changed file. Counts are None where no text lines exist or nobody counted.

    `patch` is a unified diff; "" when the server sent none.
    """

    file: str
    patch: str = ""
    additions: int | None = None
    deletions: int | None = None
    status: Literal["added", "modified", "deleted"] | None = None


# -- messages and their parts ----------------------------------------------------------------------
#
# The id of a part tells its place among the parts of its message, except where it begins with a
# colon: such a part has no id on the wire (2.x), and stays where it came.


@dataclass(frozen=True, slots=True)
class Text:
    """A stretch of answer (or of a prompt). Open while `end` is None."""

    id: str
    text: str = ""
    start: int | None = None
    end: int | None = None
    synthetic: bool = False


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A stretch of the model's reasoning. Open while `end` is None."""

    id: str
    text: str = ""
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One use of a tool.

    Attributes:
        call: The model's id of the call; permissions and questions name it.
        status: A `ToolStatus`; another word if a server has one.
        output: What the tool gave back so far; "" while it has nothing.
        error: Why it failed, else None.
        exit: The exit code of a shell command, where the server tells.
        diffs: The edits it made.
        child: The session of the subagent it started, else None.
        shell: The server's id of the shell that runs its command, where it has one.
        declined: A person (or policy) said no to it, and the turn stops there.
    """

    id: str
    call: str
    tool: str
    status: str
    input: dict[str, Any] = field(default_factory=dict)
    title: str | None = None
    output: str = ""
    error: str | None = None
    exit: int | None = None
    diffs: tuple[FileDiff, ...] = ()
    child: str | None = None
    shell: str | None = field(default=None, compare=False)  # no store keeps it
    declined: bool = False
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True)
class StepStart:
    """A model call begins."""

    id: str


@dataclass(frozen=True, slots=True)
class StepEnd:
    """A model call is over; the server knows its usage now."""

    id: str
    reason: str | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that went with a message."""

    id: str
    mime: str
    filename: str | None = None
    url: str = ""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The conversation is summarised here to make room."""

    id: str
    auto: bool = False
    overflow: bool = False


@dataclass(frozen=True, slots=True)
class OtherPart:
    """A part of a kind this package doesn't show; `kind` is the wire's name."""

    id: str
    kind: str


Part = Text | Reasoning | ToolCall | StepStart | StepEnd | Attachment | Compaction | OtherPart


@dataclass(frozen=True, slots=True)
class Message:
    """A prompt (`role="user"`) or one step of an answer (`role="assistant"`), with its parts.

    What is neither has another role, and is kept: with `role="system"` a 2.x server notes that a
    turn ended, a model was chosen, a person ran a command.

    Attributes:
        kind: The wire's own word for it where it is more than the role ("idle", "compaction").
        queued: It waits in the inbox of its session, and no agent has seen it.
        parent: The prompt that an answer answers.
        finish: Why the model stopped ("stop", "tool-calls", "length", ...); None if it didn't.
        reported: Usage as the message itself tells it; `usage` prefers the steps.
        diffs: Files that a prompt's turn changed, where the server tells.
        unread: Fields that the server sent and that could not be read, by their wire names.
    """

    id: str
    session: str
    role: str
    created: int | None = None
    completed: int | None = None
    parent: str | None = None
    agent: str | None = None
    model: ModelRef | None = None
    finish: str | None = None
    error: Failure | None = None
    reported: Usage | None = None
    summary: bool = False
    diffs: tuple[FileDiff, ...] = ()
    parts: tuple[Part, ...] = ()
    unread: tuple[str, ...] = field(default=(), compare=False)
    kind: str = ""
    queued: bool = False

    @property
    def text(self) -> str:
        """What it says, its text parts joined by blank lines."""
        return "\n\n".join(p.text for p in self.parts if isinstance(p, Text) and p.text)

    @property
    def tools(self) -> tuple[ToolCall, ...]:
        """Its tool calls, in order."""
        return tuple(p for p in self.parts if isinstance(p, ToolCall))

    @property
    def usage(self) -> Usage | None:
        """Tokens and cost, None while unknown.

        A message of several steps keeps only its last step's tokens in its header on 1.x
        (anomalyco/opencode#42324), so the steps are added up where they exist.
        """
        steps = total_usage([p.usage for p in self.parts if isinstance(p, StepEnd)])
        if steps is None or self.reported is None or steps == self.reported:
            return steps or self.reported
        cost = steps.cost if self.reported.cost is None else self.reported.cost
        return Usage(
            steps.input, steps.output, steps.reasoning, steps.cache_read, steps.cache_write, cost
        )

    @property
    def synthetic(self) -> bool:
        """Whether a user message was made by the server, not by a person."""
        return (
            self.role == "user"
            and bool(self.parts)
            and all(
                isinstance(p, Compaction) or (isinstance(p, Text) and p.synthetic)
                for p in self.parts
            )
        )

    @property
    def shell(self) -> bool:
        """Whether it is a command that a person ran, which is no answer and no call of a model.

        1.18.33 stores it as an answer to a synthetic prompt: a bash call without a step and without
        an end. The call of a subtask has no step either, nor an end while it runs, but is a task.
        """
        stepped = any(isinstance(p, StepStart | StepEnd) for p in self.parts)
        ended = stepped or self.finish or self.error
        return self.role == "assistant" and not ended and {t.tool for t in self.tools} == {"bash"}


# -- sessions --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation. `directory` is the server's own spelling: send it back verbatim.

    Attributes:
        rules: Permission rules of its own, which come after those of the agent.
        metadata: What clients left with it.
        forked_from, forked_at: The session that it was copied from, and before which message.
        outcome: How its last turn ended, where the server tells (2.x).
        revert: The message it was taken back to, while it can still be brought forward again.
        changed, additions, deletions: Counts of files and lines, where the server tells.
    """

    id: str
    title: str = ""
    directory: str = ""
    project: str | None = None
    parent: str | None = None
    agent: str | None = None
    model: ModelRef | None = None
    created: int | None = None
    updated: int | None = None
    archived: int | None = None
    usage: Usage | None = None
    revert: str | None = None
    changed: int | None = None
    additions: int | None = None
    deletions: int | None = None
    rules: tuple[Rule, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    forked_from: str | None = None
    forked_at: str | None = None
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class Todo:
    """One item of an agent's own list; `status` is pending, in_progress, completed, cancelled."""

    content: str
    status: str
    priority: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """What a session does right now. `next` is when a retry comes, in ms since the epoch."""

    name: StatusName
    attempt: int | None = None
    message: str = ""
    next: int | None = None


# -- what waits for a person -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Permission:
    """An agent asks whether it may do something.

    Attributes:
        action: What kind of thing ("bash", "edit", "external_directory", ...).
        patterns: What exactly: the command, the files.
        always: What "always" would allow from then on; where it `saves` nothing, it is a "once".
        command: The whole shell command, where it is one.
        diff: The edit it wants to make, where it is one.
        call, message: The tool call that waits for it, and the message that is in.
    """

    id: str
    session: str
    action: str
    patterns: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    command: str | None = None
    diff: FileDiff | None = None
    call: str | None = None
    message: str | None = None
    saves: bool = True

    @property
    def subject(self) -> str:
        """What is asked, in one line's worth of words."""
        return self.command or ", ".join(self.patterns)


class Option(NamedTuple):
    """One answer that a question offers. `value` is what the server is told; "" is the label."""

    label: str
    description: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True)
class QuestionItem:
    """One question of a request: pick one option, several if `multiple`, or write your own.

    Attributes:
        key: The field that it fills, where the server names one.
        kind: What an answer has to be.
        custom: Whether an answer in one's own words counts, too.
        required: Whether it has to be answered.
        default: The answer that counts where none is given.
        least, most: Bounds: of the number, of the length of a text, of how many are chosen.
        pattern, format: What a text has to look like: a regular expression; email, uri, date.
        url: Where to go and come back from, for the kind "external".
        when: It is asked only where other fields have (or have not) these values.
    """

    question: str
    header: str = ""
    options: tuple[Option, ...] = ()
    multiple: bool = False
    key: str = ""
    kind: Literal["string", "number", "integer", "boolean", "external"] = "string"
    custom: bool = True
    required: bool = False
    default: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    pattern: str = ""
    format: str = ""
    url: str = ""
    when: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """An agent asks a person something; `items` are answered together."""

    id: str
    session: str
    items: tuple[QuestionItem, ...]
    call: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class InboxItem:
    """What waits in the inbox of a session (2.x): a prompt, a compaction, a move.

    `delivery` says when it joins: steer at the next step, queue after the running turn.
    """

    id: str
    session: str
    kind: str
    delivery: str
    text: str = ""
    created: int | None = None


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One line of a session's log (2.x), as far as it tells what was admitted there.

    Attributes:
        seq: Its number in the session.
        kind: What it tells, by the wire's name without "session.".
        at: When, in ms since the epoch.
        item: Of an admitted input: its id.
        type: Of an admitted input: user, synthetic, compaction, ...
        text: Of an admitted input: its text.
        delivery: Of an admitted input: steer or queue.
        metadata: Of an admitted input, or of the session where that changed.
    """

    seq: int
    kind: str
    at: int | None = None
    item: str = ""
    type: str = ""
    text: str = ""
    delivery: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


# -- permission rules ------------------------------------------------------------------------------

Effect = Literal["allow", "deny", "ask"]


@dataclass(frozen=True, slots=True)
class Rule:
    """What happens when an agent wants to do something; `*` and `?` stand for any text."""

    action: str
    resource: str
    effect: Effect

    def __str__(self) -> str:
        return f"{self.effect} {self.action} {self.resource}"


@dataclass(frozen=True, slots=True)
class SavedRule:
    """What an "always" saved for a whole project (2.x)."""

    id: str
    action: str
    resource: str
    project: str = ""
    created: int | None = None


# -- what a server offers --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PriceTier:
    """Prices of calls with a prompt of more than `above` tokens, cached ones included."""

    above: int
    input: float | None = None
    output: float | None = None
    cache_read: float | None = None
    cache_write: float | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """A model that the server can use. Prices are USD per million tokens.

    `tiers` are the prices of a call with a longer prompt, the shortest first. `images` says whether
    it takes images, where the server tells.
    """

    provider: str
    id: str
    name: str = ""
    variants: tuple[str, ...] = ()
    context: int | None = None
    output: int | None = None
    price_input: float | None = None
    price_output: float | None = None
    price_cache_read: float | None = None
    price_cache_write: float | None = None
    default: bool = False
    tiers: tuple[PriceTier, ...] = ()
    images: bool | None = None

    @property
    def ref(self) -> ModelRef:
        """Its address, `provider/model`."""
        return ModelRef(self.provider, self.id)


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent that a prompt can name. `mode` is primary, subagent or all."""

    name: str
    description: str = ""
    mode: str = ""
    model: ModelRef | None = None
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """A command that a session can be given by its name.

    `template` is what its prompt is made of; "" where the server doesn't tell (2.x).
    """

    name: str
    description: str = ""
    agent: str | None = None
    model: str | None = None
    template: str = ""


@dataclass(frozen=True, slots=True)
class Skill:
    """Instructions that an agent can read when it needs them; `path` is where they stand."""

    id: str
    name: str
    description: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class McpServer:
    """A server of tools and how it stands: connected, disabled, failed, needs_auth, ..."""

    name: str
    status: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Integration:
    """An account that the server can use (2.x); `connections` are those that it has."""

    id: str
    name: str
    methods: tuple[str, ...] = ()
    connections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShellOutput:
    """A stretch of what a shell printed; read on from `cursor` (bytes of `size`)."""

    text: str
    cursor: int
    size: int
