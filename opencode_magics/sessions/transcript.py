"""Read a stored session as a sequence of turns."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ..client.client import Client, optional
from ..core.events import StoreSnapshot
from ..core.fold import advance
from ..core.model import Message, Session, Status
from ..core.outcome import STATUS_UNKNOWN, overtaken_verdict
from ..core.turn import Turn
from .store import descendants


@dataclass(frozen=True, slots=True, repr=False)
class Transcript:
    """A session and its latest turns, oldest first; `left_out` counts the earlier ones."""

    session: Session
    turns: tuple[Turn, ...]
    left_out: int = 0

    def __repr__(self) -> str:
        return f"<Transcript {self.session.id}: {len(self.turns)} turns>"


_IDLE = Status("idle")


def read_transcript(client: Client, session: Session, last: int | None = None) -> Transcript:
    """Read a session's turns from the server: all of them, or the last few.

    The server stores neither permissions nor retries, so these are missing from the turns.
    """
    busy = optional(lambda: client.statuses(session.directory), None)
    status = _IDLE if busy is None else busy.get(session.id, _IDLE)
    messages = client.readable_messages(session)
    below = optional(lambda: tuple(descendants(client, session, 0)), ())
    prompts = [at for at, m in enumerate(messages) if m.role == "user" and not m.synthetic]
    shown = prompts if last is None else prompts[-last:]
    ends = [*prompts, len(messages)]
    turns = []
    for at in shown:
        within = messages[at : _end(messages, ends, at)]
        is_last = at == prompts[-1]
        state = status if is_last else _IDLE
        snapshot = StoreSnapshot(session.id, state, within, _subagents(within, below))
        turn = advance(Turn(session.id, messages[at].id), snapshot)
        if ended := overtaken_verdict(turn.outcome, messages[at + len(within) :]):
            turn = advance(turn, ended)
        turns.append(advance(turn, STATUS_UNKNOWN) if is_last and busy is None else turn)
    return Transcript(session, tuple(turns), len(prompts) - len(shown))


def _end(messages: tuple[Message, ...], ends: list[int], at: int) -> int:
    """Index of the end of a turn: the next prompt, or the end of a shared answer."""
    for here, following in pairwise(ends[ends.index(at) :]):
        if _answered(messages[here:following]):
            return following
    return len(messages)


def _answered(messages: tuple[Message, ...]) -> bool:
    return any(m.role == "assistant" for m in messages)


def _subagents(messages: tuple[Message, ...], below: tuple[Session, ...]) -> tuple[Session, ...]:
    """The subagent sessions started in a turn, at any depth."""
    called = {t.child for m in messages for t in m.tools}
    started: list[Session] = []
    for session in below:  # parents come first
        if session.id in called or session.parent in {s.id for s in started}:
            started.append(session)
    return tuple(started)
