"""An old session read again as the turns it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from .client import Client
from .events import Reread
from .model import Message, Session, Status
from .sessions import descendants
from .turn import Turn, advance


@dataclass(frozen=True, slots=True, repr=False)
class Conversation:
    """A session and its latest turns, oldest first; `left_out` counts those before them."""

    session: Session
    turns: tuple[Turn, ...]
    left_out: int = 0

    def __repr__(self) -> str:
        return f"<Conversation {self.session.id}: {len(self.turns)} turns>"


def read(client: Client, session: Session, last: int | None = None) -> Conversation:
    """Read a session from the server, its last turns or all.

    Permissions, retries and the like are stored nowhere and can't be shown again.
    """
    status = client.statuses(session.directory).get(session.id, Status("idle"))
    messages = client.transcript(session)
    below = tuple(descendants(client, session, 0))
    prompts = [at for at, m in enumerate(messages) if m.role == "user" and not m.synthetic]
    shown = prompts if last is None else prompts[-last:]
    ends = [*prompts, len(messages)]
    turns = []
    for at in shown:
        within = messages[at : _end(messages, ends, at)]
        state = status if at == prompts[-1] else Status("idle")
        reread = Reread(session.id, state, within, _of_turn(within, below))
        turns.append(advance(Turn(session.id, messages[at].id), reread))
    return Conversation(session, tuple(turns), len(prompts) - len(shown))


def _end(messages: tuple[Message, ...], ends: list[int], at: int) -> int:
    """Where a turn's messages end: at the next prompt, or behind the answer it shares with it."""
    for here, following in pairwise(ends[ends.index(at) :]):
        if any(m.role == "assistant" for m in messages[here:following]):
            return following
    return len(messages)


def _of_turn(messages: tuple[Message, ...], below: tuple[Session, ...]) -> tuple[Session, ...]:
    """The subagents' sessions that began in a turn, at any depth."""
    called = {t.child for m in messages for t in m.tools}
    found: list[Session] = []
    for session in below:  # a parent comes before its children
        if session.id in called or session.parent in {s.id for s in found}:
            found.append(session)
    return tuple(found)
