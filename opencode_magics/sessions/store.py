"""What the store says of sessions: what they hold, what waits in them, what is below them.

Every answer is read when it is asked for, and what could not be read is not made up. What is
stopped, rejected or put away is so with all that is below it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from ..client.client import Client, log_warning, optional
from ..core.events import StoreSnapshot
from ..core.fold import advance
from ..core.limits import Ceiling, Limits
from ..core.model import Permission, Question, SavedRule, Session, Status, total_usage
from ..core.rules import Rulebook
from ..core.turn import Turn
from ..errors import (
    CostLimitError,
    NotFoundError,
    ServerConnectionError,
    SessionBusyError,
    UnsupportedOperation,
)

_IDLE = Status("idle")
DEFAULT_AGENT = "build"  # of a session that names none
STOP_TIMEOUT = 30.0  # seconds in which a turn has to be seen to stop
_MISSES = 5  # times that the server may not answer on the way


# -- what they hold --------------------------------------------------------------------------------


def read_store(
    client: Client, session: Session, turn: Turn, warn: Callable[[str], object] = log_warning
) -> StoreSnapshot:
    """Everything the server holds of a turn. The status comes first: what follows is no older.

    Of what it can't tell beside the messages that is kept which was known; `warn` is told why.
    """
    status = client.statuses(session.directory).get(session.id)
    messages = client.messages(session)
    began = next((m.created for m in messages if m.id == turn.prompt), None) or 0
    below = optional(lambda: tuple(descendants(client, session, began)), turn.sessions, warn)
    tree = turn.tree | {s.id for s in below}
    permissions, questions = waiting_or_known_requests(client, session.directory, turn, warn)
    over = status is None and any(m.parent == turn.prompt for m in messages)
    return StoreSnapshot(
        session.id,
        status or _IDLE,
        messages,
        below,
        tuple(p for p in permissions if p.session in tree),
        tuple(q for q in questions if q.session in tree),
        client.run(client.dialect.turn_diffs(session, turn.prompt)) if over else (),
    )


def refresh(client: Client, turn: Turn) -> Turn:
    """A turn as the server holds it now; for one that was left running or unknown."""
    if turn.outcome not in ("running", "unknown") or turn.replayed:
        return turn
    return advance(turn, read_store(client, client.session(turn.session), turn))


def descendants(
    client: Client, session: Session, since: int, above: tuple[str, ...] = ()
) -> Iterator[Session]:
    """Subagent sessions at any depth that did something since then; parents come first.

    `above` are those in whose line a session stands: none is below itself, whatever a server says.
    """
    line = (*above, session.id)
    for child in client.run(client.dialect.children(session)):
        if (child.updated or since) >= since and child.id not in line:
            yield child
            yield from descendants(client, child, since, line)


def session_rules(client: Client, session: Session) -> Rulebook:
    """The permission rules that count in a session now.

    Those that an "always" saved are part of it where the server tells them (2.x), and count for
    the project of the session.
    """
    name = session.agent or DEFAULT_AGENT
    agent = next((a.rules for a in client.agents(session.directory) if a.name == name), None)
    saved: tuple[SavedRule, ...] = ()
    with suppress(UnsupportedOperation):
        saved = optional(lambda: client.run(client.dialect.saved_rules()), saved)
    own = client.session(session.id)
    return Rulebook(agent, own.rules, tuple(s for s in saved if s.project in ("", own.project)))


# -- before something is sent ----------------------------------------------------------------------


def is_busy(client: Client, session: Session, *, queued: bool) -> bool:
    """Whether a session works on a prompt; that is fine for another one that lines up or joins.

    Raises:
        SessionBusyError: It does, and the other one would not.
    """
    busy = session.id in client.statuses(session.directory)
    if busy and not queued:
        raise SessionBusyError(
            f"Session {session.id} ({session.title}) works on another prompt.",
            f"Wait for it, or {client.dialect.queue_hint}.",
            status=409,
        )
    return busy


def add_session_ceiling(client: Client, session: Session | None, limits: Limits) -> Limits:
    """Limits with that of the session as one of the ceilings: what it cost so far is read.

    Args:
        client: Its server.
        session: Which; None is one that is still to be made.
        limits: What may be spent.

    Raises:
        CostLimitError: The session, or another ceiling, is passed already.
    """
    limits.check()
    if limits.session is None:
        return limits
    known = (client.session(session.id), *descendants(client, session, 0)) if session else ()
    if unknown := [s.id for s in known if s.usage is None or s.usage.cost is None]:
        which = ", ".join(unknown)
        log_warning(
            f"What session {which} cost before is unknown: max_session_cost can't count that."
        )
    usage = total_usage(s.usage for s in known)
    ceiling = Ceiling("max_session_cost", limits.session, (usage and usage.cost) or 0.0)
    if ceiling.exceeded_by(0.0):
        raise CostLimitError(
            f"Nothing was sent: of session {known[0].id}, cost {ceiling.describe()}.",
            "Go on in a new session (%oc_new), or raise it: %config "
            f"OpenCodeMagics.max_session_cost = {limits.session * 2:g}",
        )
    return replace(limits, ceilings=(*limits.ceilings, ceiling), session=None)


# -- what waits for a person -----------------------------------------------------------------------


def pending_requests(
    client: Client, session: Session | None = None
) -> tuple[tuple[Permission | Question, Session], ...]:
    """What waits for an answer, each with the session that asks.

    Args:
        client: The server.
        session: Only what it and its subagents ask; None takes all in the client's directory.
    """
    permissions, questions = waiting_requests(
        client, session.directory if session else client.directory
    )
    asked: tuple[Permission | Question, ...] = (*permissions, *questions)
    known = {session.id: session} if session else {}
    if session and asked:
        known |= {s.id: s for s in descendants(client, session, 0)}
    elif asked:
        known |= {r.session: client.session(r.session) for r in asked}
    return tuple((r, known[r.session]) for r in asked if r.session in known)


def waiting_requests(
    client: Client, directory: str
) -> tuple[tuple[Permission, ...], tuple[Question, ...]]:
    """What waits for a person in a directory. That nothing waits is only said where it was read."""
    return client.permissions(directory), client.questions(directory)


def waiting_or_known_requests(
    client: Client, directory: str, known: Turn | None, warn: Callable[[str], object]
) -> tuple[tuple[Permission, ...], tuple[Question, ...]]:
    """The same beside something else; of a list that can't be read, what is `known`."""
    return (
        optional(lambda: client.permissions(directory), known.permissions if known else (), warn),
        optional(lambda: client.questions(directory), known.questions if known else (), warn),
    )


def reject_requests(client: Client, directory: str, tree: frozenset[str]) -> None:
    """Reject what a tree of sessions still asks: 1.18.33 leaves it in its lists after an abort."""
    for _ in iter_rejected(client, directory, tree):
        pass


def iter_rejected(client: Client, directory: str, tree: frozenset[str]) -> Iterator[str]:
    """Reject one by one what a tree still asks: what was is known also where the rest fails.

    Yields:
        The ids of what waited, also of what was settled by the rejection of another.
    """
    permissions, questions = waiting_requests(client, directory)
    for permission in (p for p in permissions if p.session in tree):
        with suppress(NotFoundError):
            client.run(client.dialect.reply(permission, directory, "reject"))
        yield permission.id
    for question in (q for q in questions if q.session in tree):
        with suppress(NotFoundError):
            client.run(client.dialect.dismiss(question, directory))
        yield question.id


# -- stopping and putting away ---------------------------------------------------------------------


def abort_until_idle(
    client: Client, session: Session, tree: Callable[[], frozenset[str]], within: float
) -> bool:
    """Abort until nothing of a session's tree is seen to work, twice; False if it isn't in time.

    A session may be missing from the list of busy ones for a moment after its prompt was taken
    (1.18.33, 1 of 8 tries), so the second look comes later, and after another abort. A subagent is
    aborted by itself only where the session isn't at work: else the session would go on.
    """
    deadline = time.monotonic() + within
    quiet = misses = 0
    while quiet < 2 and misses < _MISSES and time.monotonic() < deadline:
        time.sleep(0.1 if quiet == 0 else 0.4)
        try:
            busy = tree() & client.statuses(session.directory).keys()
            quiet = 0 if busy else quiet + 1
            below = () if session.id in busy else busy
            aborted = (session.id,) if quiet < 2 else ()
            for one in (*aborted, *below):
                with suppress(NotFoundError):  # deleted meanwhile: whether it works is seen
                    client.abort(Session(one, directory=session.directory))
        except ServerConnectionError:
            quiet, misses = 0, misses + 1
    return quiet == 2


def archive_tree(client: Client, session: Session, at: int | None) -> Session:
    """Archive a session with its subagents', or (None) bring them back; how it is then.

    Neither generation does that by itself: what is left would stand among the topmost ones. The
    lowest come first, so that what is cut short leaves none of them alone.
    """
    for one in (*reversed(tuple(descendants(client, session, 0))), session):
        client.run(client.dialect.archive(one, at))
    return client.session(session.id)
