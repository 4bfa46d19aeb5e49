"""Frozen values for everything that a server holds.

Every dialect decodes into these; their names are independent of the wire. Times are milliseconds
since the epoch (UTC), money is US dollars, and `None` means unknown or absent: a count that was not
reported is `None`, never 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

Decision = Literal["once", "always", "reject"]  # the reply to a permission
Reply = Literal[Decision, "answered", "dismissed"]  # the last two are replies to a question
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
    """A model's address, written `provider/model` as in OpenCode's configuration."""

    provider: str
    id: str
    variant: str | None = None

    def __str__(self) -> str:
        return f"{self.provider}/{self.id}"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and cost of a step, a message, a session or a turn.

    `input` excludes cached tokens and `output` excludes reasoning, so that `total` is the sum of
    the five counts. `cost` is the server's stored value and is never recomputed here.
    """

    input: int | None = None
    output: int | None = None
    reasoning: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    cost: float | None = None

    @property
    def total(self) -> int | None:
        """All tokens; None if none of the five counts is known."""
        total: int | None = _add(
            self.input, self.output, self.reasoning, self.cache_read, self.cache_write
        )
        return total

    @property
    def empty(self) -> bool:
        """Whether all counts and the cost are zero or unknown."""
        return not self.total and not self.cost


def total_usage(usages: Iterable[Usage | None]) -> Usage | None:
    """Add up the known usages; None if there are none."""
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
    """The reason why a message or a session failed, as the server reports it."""

    name: str
    message: str
    status: int | None = None
    provider: str | None = None

    @property
    def aborted(self) -> bool:
        """Whether it was stopped on request rather than by an error."""
        return "abort" in self.name.lower()

    @property
    def interrupted(self) -> bool:
        """Whether the server itself interrupted it, without a request (2.x)."""
        return self.name == "Interrupted"

    def __str__(self) -> str:
        source = f"{self.provider}: " if self.provider else ""
        return f"{self.name}: {source}{self.message}" if self.message else self.name


@dataclass(frozen=True, slots=True)
class FileDiff:
    """One changed file. Counts are None for a binary file or if they are unknown.

    `patch` is a unified diff; "" when the server sent none. `before` is the name before a rename.
    """

    file: str
    patch: str = ""
    additions: int | None = None
    deletions: int | None = None
    status: Literal["added", "modified", "deleted", "renamed"] | None = None
    before: str = ""

    @property
    def name(self) -> str:
        """Its name for display: both names of a rename; what happens to it, unless it is edited."""
        if self.status == "renamed":
            return f"{self.before} → {self.file}"
        return f"{self.file} ({self.status})" if self.status in ("added", "deleted") else self.file


# -- messages and their parts ----------------------------------------------------------------------
#
# Parts of a message are ordered by id, except those whose id begins with a colon: they have no id
# on the wire (2.x) and stay in order of arrival.


@dataclass(frozen=True, slots=True)
class Text:
    """A text part of an answer or a prompt. Open while `end` is None."""

    id: str
    text: str = ""
    start: int | None = None
    end: int | None = None
    synthetic: bool = False


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A reasoning part of an answer. Open while `end` is None."""

    id: str
    text: str = ""
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One use of a tool.

    Attributes:
        call: The model's id of the call; permissions and questions refer to it.
        status: A `ToolStatus`, or an unknown word from a newer server.
        output: Its output so far.
        error: Why it failed, else None.
        exit: The exit code of a shell command, if the server reports it.
        diffs: The edits it made.
        child: The id of the subagent session it started, else None.
        shell: The server's id of the shell that runs its command, if it has one.
        declined: A person or policy declined it, which ends the turn.
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
    shell: str | None = field(default=None, compare=False)  # only in the stream, not in the store
    declined: bool = False
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True)
class StepStart:
    """The start of a model call."""

    id: str


@dataclass(frozen=True, slots=True)
class StepEnd:
    """The end of a model call, with its usage."""

    id: str
    reason: str | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file attached to a message."""

    id: str
    mime: str
    filename: str | None = None
    url: str = ""


@dataclass(frozen=True, slots=True)
class Compaction:
    """A point where the conversation was summarized to free context."""

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

    Other roles are preserved: a 2.x server uses `role="system"` to record that a turn ended, a
    model was selected, or a person ran a command.

    Attributes:
        kind: The wire's type of the message if it is more specific than its role ("idle").
        queued: It is in the inbox of its session; no agent has seen it yet.
        metadata: Data that came with a prompt (2.x).
        retry: The retry that an unfinished answer waited or waits for, if it names one (2.x).
        parent: The id of the prompt that an answer belongs to.
        finish: Why the model stopped ("stop", "tool-calls", "length", ...); None if it didn't.
        reported: Usage in the message's own header; `usage` prefers that of its steps.
        diffs: Files that a prompt's turn changed, if the server reports them.
        unread: Wire names of fields that could not be decoded.
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
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False)
    retry: Status | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        """Its text parts, joined by blank lines."""
        return "\n\n".join(p.text for p in self.parts if isinstance(p, Text) and p.text)

    @property
    def tools(self) -> tuple[ToolCall, ...]:
        """Its tool calls, in order."""
        return tuple(p for p in self.parts if isinstance(p, ToolCall))

    @property
    def usage(self) -> Usage | None:
        """Tokens and cost; None while unknown.

        On 1.x the header of a message with several steps has the tokens of its last step only
        (anomalyco/opencode#42324), so the steps are added up if there are any.
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
        """Whether it is a shell command that a person ran, not an answer of a model.

        1.18.33 stores it as an answer to a synthetic prompt: a bash call without steps or a finish.
        The message of a subtask has no steps either, but calls the tool "task".
        """
        stepped = any(isinstance(p, StepStart | StepEnd) for p in self.parts)
        ended = stepped or self.finish or self.error
        return self.role == "assistant" and not ended and {t.tool for t in self.tools} == {"bash"}


# -- sessions --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation. `directory` is spelled as the server spells it; send it back verbatim.

    Attributes:
        rules: Its own permission rules, applied after those of the agent.
        metadata: Data that clients stored with it.
        path: Its directory as seen from the project's root; "" for the root, or if unknown.
        forked_from, forked_at: The session it was copied from, and the message it was cut before.
        outcome: How its last turn ended, if the server reports it (2.x).
        revert: The message to which it was reverted, while the revert can be undone.
        changed, additions, deletions: Counts of files and lines, if the server reports them.
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
    path: str = ""


@dataclass(frozen=True, slots=True)
class Todo:
    """An item of an agent's todo list; `status` is pending, in_progress, completed, cancelled."""

    content: str
    status: str
    priority: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """The current activity of a session; `next` is the time of its next retry (ms)."""

    name: StatusName
    attempt: int | None = None
    message: str = ""
    next: int | None = None


# -- requests to a person --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Permission:
    """An agent's request for a permission.

    Attributes:
        action: The kind of action ("bash", "edit", "external_directory", ...).
        patterns: Its resources: the command, the files.
        always: Patterns that the reply "always" would allow from then on.
        command: The complete shell command, if it is one.
        diff: The proposed edit, if it is one, as a single patch.
        files: The files that the edit changes, if the server names them one by one.
        call, message: The tool call that waits for it, and the message with that call.
        tool, input: The name and the input of that tool call, if they are known.
        saves: Whether "always" saves a rule; if not, it is equivalent to "once".
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
    files: tuple[FileDiff, ...] = ()
    tool: str = field(default="", compare=False)
    input: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def subject(self) -> str:
        """What it is about, in one line: the command, the files, or the input of the tool."""
        if self.command is not None:
            where = f" in {self.workdir}" if self.workdir else ""
            return f"{self.command}{where}"
        if self.action == "external_directory" and self.path:
            return f"{self.tool} {self.path}".lstrip()
        if self.files:
            return ", ".join(file.name for file in self.files)
        named = ", ".join(pattern for pattern in self.patterns if pattern != "*")
        if self.task:
            return f"{named}: {self.task}"
        if self.input and not named:
            return ", ".join(self.input_lines)
        return named or ", ".join(self.patterns)

    @property
    def input_lines(self) -> tuple[str, ...]:
        """The input of the tool call, a line for each value; a text may have several lines."""
        return tuple(
            f"{name}: {value if isinstance(value, str) else json.dumps(value, default=str)}"
            for name, value in self.input.items()
        )

    @property
    def workdir(self) -> str:
        """The folder in which a command runs; "" if it is the session's directory."""
        return _text(self.input.get("workdir"))

    @property
    def path(self) -> str:
        """The file or folder that the tool call names; "" if it names none."""
        return _text(self.input.get("filePath")) or _text(self.input.get("path"))

    @property
    def task(self) -> str:
        """The prompt for a subagent; "" if it is for something else."""
        agent = self.input.get("subagent_type") or self.input.get("agent")
        return _text(self.input.get("prompt")) if agent else ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


class Option(NamedTuple):
    """An option of a question. `value` is sent to the server; if it is "", the label is sent."""

    label: str
    description: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True)
class QuestionItem:
    """One question of a request: choose an option, several if `multiple`, or write an answer.

    Attributes:
        key: The form field that it fills, if the server names one.
        kind: The type of the answer.
        custom: Whether an answer that is not among the options is accepted.
        required: Whether it must be answered.
        default: The answer used if there is none.
        least, most: Bounds of the number, the length of the text, or the number of choices.
        pattern, format: Constraints on a text: a regular expression; email, uri, date, date-time.
        url: The page to visit, for the kind "external".
        when: Conditions (field, "eq" or "neq", value); it is asked only if all of them hold.
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
    """An agent's question to a person; its `items` are answered together."""

    id: str
    session: str
    items: tuple[QuestionItem, ...]
    call: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class InboxItem:
    """An item in the inbox of a session (2.x): a prompt, a compaction, a move.

    `delivery` is "steer" (at the next step) or "queue" (after the running turn).
    """

    id: str
    session: str
    kind: str
    delivery: str
    text: str = ""
    created: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """An event of a session (2.x), with the fields of an admitted input.

    Attributes:
        session: The session's id.
        seq: Its number in the session.
        kind: The wire's event type without "session.".
        item: The id of the input.
        type: The type of the input: user, synthetic, compaction, ...
        text: The text of the input.
        delivery: The delivery of the input: steer or queue.
        metadata: Metadata of the input, or of the session if the event changes that.
    """

    session: str
    seq: int
    kind: str
    item: str = ""
    type: str = ""
    text: str = ""
    delivery: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


# -- permission rules ------------------------------------------------------------------------------

Effect = Literal["allow", "deny", "ask"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A permission rule; `*` and `?` in its action and resource are wildcards."""

    action: str
    resource: str
    effect: Effect

    def __str__(self) -> str:
        return f"{self.effect} {self.action} {self.resource}"


@dataclass(frozen=True, slots=True)
class SavedRule:
    """A rule that the reply "always" saved for a project (2.x)."""

    id: str
    action: str
    resource: str
    project: str = ""
    created: int | None = None


# -- catalog of a server ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PriceTier:
    """Prices of calls whose prompt has more than `above` tokens, cached ones included."""

    above: int
    input: float | None = None
    output: float | None = None
    cache_read: float | None = None
    cache_write: float | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """A model that the server can use. Prices are USD per million tokens.

    `tiers` are the prices of calls with longer prompts, in ascending order. `over_200k` are the
    prices above 200,000 tokens that 1.18.33 charges if the prompt exceeds none of the tiers.
    `images` is whether it accepts images; None if unknown.
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
    over_200k: PriceTier | None = None

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
    """A command that can be run in a session by its name.

    `template` is the template of its prompt; "" on 2.x, which doesn't report it.
    """

    name: str
    description: str = ""
    agent: str | None = None
    model: str | None = None
    template: str = ""


@dataclass(frozen=True, slots=True)
class Skill:
    """Instructions that an agent can read when it needs them; `path` is their file."""

    id: str
    name: str
    description: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server; `status` is connected, disabled, failed, needs_auth, ..."""

    name: str
    status: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Integration:
    """An account type that the server supports (2.x), and its existing `connections`."""

    id: str
    name: str
    methods: tuple[str, ...] = ()
    connections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShellOutput:
    """A chunk of a shell's output; the next one begins at byte `cursor` of `size`."""

    text: str
    cursor: int
    size: int
