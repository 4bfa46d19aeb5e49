"""Attribute new prompts and subagents to the command that caused them, without guessing.

2.x's response to a command contains no ids, and other clients may use the same session.
`correlate` returns "matched" only for a prompt or subagent that shows a trace of the command, and
"ambiguous" for everything else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..core.formatting import in_one_line
from ..core.model import InboxItem, Message, SessionEvent

CorrelationStatus = Literal["matched", "none", "ambiguous"]

DELIVERY: Literal["queue"] = "queue"  # so that the command doesn't share a turn with another prompt
SHORT = 41  # characters of a command's arguments in one line
_MIN_LENGTH = 8  # shorter arguments may occur in another text by chance
_ADMITTED = ("user", "compaction", "synthetic")


# -- the command and its possible effects ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Invocation:
    """One use of a command.

    Attributes:
        id: Our id for it; also the id of the new session of an isolated command without a fork.
        name: The command's name.
        text: Its arguments.
        marked: Whether the id is appended to the arguments.
        isolated: Whether it has its own session.
        description: The server's description of the command, used as a title for a subagent's
            session.
        at: When it was sent, in ms since the epoch.
    """

    id: str
    name: str
    text: str = ""
    marked: bool = False
    isolated: bool = False
    description: str = ""
    at: int | None = None

    @property
    def sent(self) -> str:
        """The arguments as they are sent."""
        return f"{self.text} {self.id}".lstrip() if self.marked else self.text


@dataclass(frozen=True, slots=True)
class AdmittedInput:
    """A prompt or another input that was admitted to a session.

    Attributes:
        delivery: The requested delivery, steer or queue.
        has_metadata: Whether it has metadata.
        subagent_session: The session of the subagent whose result it reports; "" if there is none.
    """

    id: str
    text: str = ""
    kind: str = "user"
    delivery: str = ""
    has_metadata: bool = False
    subagent_session: str = ""


@dataclass(frozen=True, slots=True)
class ChildSession:
    """A new child session and its first prompt."""

    id: str
    title: str = ""
    prompt: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Correlation:
    """The effects attributed to a command.

    Attributes:
        status: matched, none (nothing was admitted), or ambiguous.
        inputs, children: The command's effects; empty unless matched.
        evidence: The reasons.
    """

    status: CorrelationStatus
    inputs: tuple[AdmittedInput, ...] = ()
    children: tuple[ChildSession, ...] = ()
    evidence: tuple[str, ...] = ()


def correlate(
    invocation: Invocation,
    inputs: Sequence[AdmittedInput],
    children: Sequence[ChildSession],
    *,
    answered: bool,
    competing: Collection[str] = (),
    agent_busy: bool = False,
) -> Correlation:
    """Attribute the inputs and child sessions that appeared after a command was recorded.

    The invocation's id in the arguments is proof. Without it, a match requires that there is only
    one effect, that the server confirmed the command, that no other command was sent meanwhile,
    and that there is a trace: a prompt with the command's delivery contains the arguments and more,
    or a subagent's session has the command's name or description as its title and no busy agent
    can have opened it. In a session of its own, the only effect needs no trace. One case can't be
    detected: the command has no effect, while another program causes exactly the expected one.

    Args:
        invocation: The command.
        inputs: The inputs admitted to the session since.
        children: The child sessions created since.
        answered: Whether the server responded; if not, the command may never have arrived.
        competing: Ids of other commands that were sent to the session at that time.
        agent_busy: Whether an agent was busy in the session.
    """
    own = tuple(i for i in inputs if not i.subagent_session)
    effects: tuple[AdmittedInput | ChildSession, ...] = (*own, *children)
    if not effects:
        return Correlation(
            "none", evidence=("nothing was admitted to the session or its subagents",)
        )
    if invocation.isolated and not invocation.marked:
        return _in_own_session(invocation, own or tuple(children), answered)
    if invocation.marked:
        return _by_mark(invocation, own, children)
    if not answered:
        return _ambiguous(
            effects, "the server didn't respond, and they may belong to another prompt"
        )
    if len(effects) > 1:
        return _ambiguous(effects, "any of them could be the command's")
    if competing:
        return _ambiguous(effects, f"it could also belong to {', '.join(sorted(competing))}")
    if children and agent_busy:
        return _ambiguous(effects, "an agent was busy in the session, and may have opened it")
    trace = _trace(invocation, effects[0])
    if not trace:
        return _ambiguous(effects, "it shows no trace of the command")
    return _matched(effects[0], (f"nothing else was admitted, and {trace}",))


def _in_own_session(
    invocation: Invocation, effects: Sequence[AdmittedInput | ChildSession], answered: bool
) -> Correlation:
    """Attribute the effects in a session that was created for the command."""
    if len(effects) > 1:
        return _ambiguous(effects, "others have written to the command's own session")
    if answered or _has_arguments(invocation, effects[0].text):
        return _matched(effects[0], ("nothing else was admitted to the command's own session",))
    return _ambiguous(effects, "the server didn't respond, and it doesn't contain the arguments")


def _by_mark(
    invocation: Invocation, inputs: Sequence[AdmittedInput], children: Sequence[ChildSession]
) -> Correlation:
    marked: list[AdmittedInput | ChildSession] = [i for i in inputs if invocation.id in i.text]
    # A marked prompt comes before a marked child: its agent may have passed the id on.
    marked = marked or [c for c in children if invocation.id in c.text]
    if len(marked) == 1:
        others = len(inputs) + len(children) - 1
        also = (f"{others} others were admitted as well",) if others else ()
        return _matched(marked[0], ("it contains the invocation's id", *also))
    containing = "none of them contains" if not marked else f"{len(marked)} of them contain"
    return _ambiguous((*inputs, *children), f"{containing} the invocation's id")


def _matched(effect: AdmittedInput | ChildSession, evidence: tuple[str, ...]) -> Correlation:
    if isinstance(effect, AdmittedInput):
        return Correlation("matched", (effect,), evidence=evidence)
    return Correlation("matched", children=(effect,), evidence=evidence)


def _ambiguous(effects: Sequence[AdmittedInput | ChildSession], reason: str) -> Correlation:
    return Correlation("ambiguous", evidence=(*map(_described, effects), reason))


def _described(effect: AdmittedInput | ChildSession) -> str:
    if isinstance(effect, ChildSession):
        return f"child session {effect.id} ({effect.title})"
    return f"{effect.id} ({effect.kind}: {in_one_line(effect.text, SHORT)})"


def _trace(invocation: Invocation, effect: AdmittedInput | ChildSession) -> str:
    """The trace of a command in an effect, in words; "" if there is none."""
    if isinstance(effect, AdmittedInput) and not _may_be_command(effect):
        return ""
    # A prompt that is just the arguments could come from anybody.
    if _has_arguments(invocation, effect.text) and effect.text.strip() != invocation.text.strip():
        return "it contains the arguments"
    titles = {invocation.name, invocation.description} - {""}
    if isinstance(effect, ChildSession) and effect.title in titles:
        return "its title is the command's"
    return ""


def _has_arguments(invocation: Invocation, text: str) -> bool:
    arguments = invocation.text.strip()
    return len(arguments) >= _MIN_LENGTH and arguments in text


def _may_be_command(admitted: AdmittedInput) -> bool:
    """Return whether an input may come from a command: a queued prompt without metadata."""
    return admitted.kind == "user" and admitted.delivery == DELIVERY and not admitted.has_metadata


def includes_arguments(template: str) -> bool:
    """Return whether a template has the arguments in its text, but in no shell command."""
    plain = re.sub(r"!`[^`]*`", "", template)
    return "$ARGUMENTS" in plain and template.count("$ARGUMENTS") == plain.count("$ARGUMENTS")


# -- reading events and messages -------------------------------------------------------------------


def admitted_inputs(events: Iterable[SessionEvent]) -> list[AdmittedInput]:
    """The inputs that some events of a session admit, in order."""
    return [
        AdmittedInput(
            e.item, e.text, e.type, e.delivery, bool(e.metadata), subagent_source(e.metadata)
        )
        for e in filter(is_admitted, events)
    ]


def stored_input(message: Message) -> AdmittedInput | None:
    """The input that became a stored message; None for an answer. Its delivery is not stored."""
    kind = message.kind or message.role
    if kind not in _ADMITTED:
        return None
    source = subagent_source(message.metadata)
    return AdmittedInput(message.id, message.text, kind, "", bool(message.metadata), source)


def waiting_input(item: InboxItem) -> AdmittedInput:
    """The input in an item of the inbox."""
    source = subagent_source(item.metadata)
    return AdmittedInput(item.id, item.text, item.kind, item.delivery, bool(item.metadata), source)


def is_admitted(event: SessionEvent) -> bool:
    """Return whether an event admits an input that may begin a turn."""
    return event.kind == "inbox.enqueued" and event.type in _ADMITTED


def subagent_source(metadata: Mapping[str, Any]) -> str:
    """The session of the subagent whose result an input delivers; "" if there is none."""
    return str(metadata.get("childID") or "") if metadata.get("source") == "subagent" else ""


def agent_started(events: Iterable[SessionEvent]) -> bool:
    """Return whether an agent began to work, on anything but a subagent's result."""
    for event in events:
        if is_admitted(event) and subagent_source(event.metadata):
            return False
        if event.kind == "execution.started":
            return True
    return False
