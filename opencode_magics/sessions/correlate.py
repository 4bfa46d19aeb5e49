"""Whose is what appeared after a command was given: concluded from what was seen, never guessed.

2.x answers a command without naming anything, and other clients may be at work in the same session.
`match` says "matched" only of what bears a sign of the command, and "ambiguous" of all else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from ..core.formatting import in_one_line
from ..core.model import LogEntry

CorrelationStatus = Literal["matched", "none", "ambiguous"]

DELIVERY: Literal["queue"] = "queue"  # so that it shares no turn with what is there already
SHORT = 41  # characters of a command's arguments in one line
_TELLING = 8  # characters from which on arguments are not in another text by chance
_ADMITTED = ("user", "compaction", "synthetic")


# -- what was given, and what was seen -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command that is given once.

    Attributes:
        id: Ours. Of an isolated one that isn't in a fork it is the session's id, too.
        name: The command's.
        text: Its arguments.
        marked: The id stands in the arguments that are sent.
        isolated: It is all that its session is for.
        description: What the server says of the command; the title of a subagent's session.
        at: When it was given, in ms since the epoch.
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
    """Something that was admitted to a session.

    Attributes:
        delivery: steer or queue, as it was asked for.
        has_metadata: It has metadata.
        subagent_session: The subagent's session that it tells the result of.
    """

    id: str
    text: str = ""
    kind: str = "user"
    delivery: str = ""
    has_metadata: bool = False
    subagent_session: str = ""


@dataclass(frozen=True, slots=True)
class ChildSession:
    """A session that appeared below, and the prompt that it began with."""

    id: str
    title: str = ""
    prompt: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Correlation:
    """What a command led to, as far as that can be known.

    Attributes:
        status: matched, none (nothing was admitted), or ambiguous.
        inputs, children: What is the command's; of no other status than matched.
        evidence: Why.
    """

    status: CorrelationStatus
    inputs: tuple[AdmittedInput, ...] = ()
    children: tuple[ChildSession, ...] = ()
    evidence: tuple[str, ...] = ()


def correlate(
    asked: Invocation,
    inputs: Sequence[AdmittedInput],
    children: Sequence[ChildSession],
    *,
    answered: bool,
    competing: Collection[str] = (),
    at_work: bool = False,
) -> Correlation:
    """Which of what appeared after a command was noted came of it.

    The id in the arguments proves it. Without it one thing alone must have appeared, the server
    must have said that the command was run, no other command may have been given meanwhile, and
    there must be a sign: the arguments in a prompt that is delivered as the command was, or the
    command's name or description as the title of a subagent's session, where no agent was at work
    that opens its own. What can't be told apart then is a command that admits nothing, while
    another program does just that.

    Args:
        asked: What was given.
        inputs: What was admitted to the session since.
        children: The sessions that appeared below it since.
        answered: Whether the server's answer came; if not, the command may never have arrived.
        competing: Ids of other commands that were given to the session at that time.
        at_work: Whether an agent worked in the session.
    """
    own = tuple(
        i for i in inputs if not i.subagent_session
    )  # a subagent's result is no command's prompt
    found: tuple[AdmittedInput | ChildSession, ...] = (*own, *children)
    if not found:
        return Correlation(
            "none", evidence=("nothing was admitted to the session, and none below it",)
        )
    if asked.isolated:
        why = "the session is the command's own"
        return Correlation("matched", own, () if own else tuple(children), (why,))
    if asked.marked:
        return _by_mark(asked, own, children)
    if not answered:
        return _unclear(found, "no answer came, and nothing says whose they are")
    if len(found) > 1:
        return _unclear(found, "any of them could be the command's")
    if competing:
        return _unclear(found, f"it could be that of {', '.join(sorted(competing))}, too")
    if children and at_work:
        return _unclear(found, "an agent was at work in the session, and may have opened it")
    sign = _sign(asked, found[0])
    if not sign:
        return _unclear(found, "nothing in it says that it is the command's")
    return _matched(found[0], (f"nothing else was admitted, and {sign}",))


def _by_mark(
    asked: Invocation, inputs: Sequence[AdmittedInput], children: Sequence[ChildSession]
) -> Correlation:
    marked: list[AdmittedInput | ChildSession] = [i for i in inputs if asked.id in i.text]
    # A child with the id is the command's only where no prompt is: that one's agent may pass it on.
    marked = marked or [c for c in children if asked.id in c.text]
    if len(marked) == 1:
        others = len(inputs) + len(children) - 1
        beside = (f"{others} others were admitted, too",) if others else ()
        return _matched(marked[0], ("it has the invocation's id in it", *beside))
    having = "none of them has" if not marked else f"{len(marked)} of them have"
    return _unclear((*inputs, *children), f"{having} the invocation's id in it")


def _matched(found: AdmittedInput | ChildSession, evidence: tuple[str, ...]) -> Correlation:
    if isinstance(found, AdmittedInput):
        return Correlation("matched", (found,), evidence=evidence)
    return Correlation("matched", children=(found,), evidence=evidence)


def _unclear(found: Sequence[AdmittedInput | ChildSession], why: str) -> Correlation:
    return Correlation("ambiguous", evidence=(*map(_described, found), why))


def _described(found: AdmittedInput | ChildSession) -> str:
    if isinstance(found, ChildSession):
        return f"session {found.id} below ({found.title})"
    return f"{found.id} ({found.kind}: {in_one_line(found.text, SHORT)})"


def _sign(asked: Invocation, found: AdmittedInput | ChildSession) -> str:
    """What says that a single thing is the command's; "" if nothing does."""
    if isinstance(found, AdmittedInput) and not _plain(found):
        return ""
    arguments = asked.text.strip()
    if len(arguments) >= _TELLING and arguments in found.text:
        return "the arguments stand in it"
    if isinstance(found, ChildSession) and found.title in {asked.name, asked.description} - {""}:
        return "its title is the command's"
    return ""


def _plain(found: AdmittedInput) -> bool:
    """Whether a template may have become it: a prompt without metadata, delivered as was asked."""
    return found.kind == "user" and found.delivery == DELIVERY and not found.has_metadata


def includes_arguments(template: str) -> bool:
    """Whether a template says the arguments in its prompt, and to no shell."""
    plain = re.sub(r"!`[^`]*`", "", template)
    return "$ARGUMENTS" in plain and template.count("$ARGUMENTS") == plain.count("$ARGUMENTS")


# -- what a log says of it -------------------------------------------------------------------------


def admitted_inputs(entries: Sequence[LogEntry]) -> list[AdmittedInput]:
    """What a stretch of a log says was admitted."""
    new = filter(is_admitted, entries)
    return [
        AdmittedInput(e.item, e.text, e.type, e.delivery, bool(e.metadata), subagent_source(e))
        for e in new
    ]


def is_admitted(entry: LogEntry) -> bool:
    """Whether a line says that something was admitted which may begin a turn."""
    return entry.kind == "inbox.enqueued" and entry.type in _ADMITTED


def subagent_source(entry: LogEntry) -> str:
    """The subagent's session whose result a line brings; "" if it brings none."""
    told = entry.metadata
    return str(told.get("childID") or "") if told.get("source") == "subagent" else ""


def agent_was_busy(before: Sequence[LogEntry], since: Sequence[LogEntry]) -> bool:
    """Whether an agent worked in the session, and not only on what a subagent told it."""
    turns = [e.kind for e in before if e.kind.startswith("execution.")]
    if turns and turns[-1] == "execution.started":
        return True
    new = (e for e in since if subagent_source(e) or e.kind == "execution.started")
    first = next(new, None)
    return first is not None and not subagent_source(first)
