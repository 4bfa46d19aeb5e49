"""Read the data that the server stores about sessions: messages, pending requests, subagents.

Nothing is cached, and a value that can't be read is never guessed. Stopping, rejecting and
archiving include a session's subagents.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from ..client.client import Client, log_warning, optional
from ..core.decision import with_call
from ..core.events import StoreSnapshot
from ..core.fold import advance
from ..core.limits import Ceiling, Limits
from ..core.model import Permission, Question, Session, Status, total_usage
from ..core.outcome import with_pending_retry
from ..core.turn import Turn
from ..errors import (
    CostLimitError,
    NotFoundError,
    ServerConnectionError,
    SessionBusyError,
)

_IDLE = Status("idle")
STOP_TIMEOUT = 30.0  # seconds in which a turn must be seen to stop
_MISSES = 5  # consecutive connection errors that end an abort


# -- turns and sessions ----------------------------------------------------------------------------


def read_store(
    client: Client, session: Session, turn: Turn, warn: Callable[[str], object] = log_warning
) -> StoreSnapshot:
    """Read everything the server stores about a turn, the status first so that nothing is older.

    Subagents and requests that can't be read keep their last known value; `warn` receives the
    reason.
    """
    status = client.statuses(session.directory).get(session.id)
    messages = client.messages(session)
    began = next((m.created for m in messages if m.id == turn.prompt), None) or 0
    below = optional(lambda: tuple(descendants(client, session, began)), turn.sessions, warn)
    tree = turn.tree | {s.id for s in below}
    permissions, questions = waiting_or_known_requests(client, session.directory, turn, warn)
    if status is not None:  # the list of 2.x only says that it is active
        status = with_pending_retry(status, messages, int(time.time() * 1000))
    over = status is None and any(m.parent == turn.prompt for m in messages)
    return StoreSnapshot(
        session.id,
        status or _IDLE,
        messages,
        below,
        tuple(_with_call(client, turn, p) for p in permissions if p.session in tree),
        tuple(q for q in questions if q.session in tree),
        client.run(client.dialect.turn_diffs(session, turn.prompt)) if over else (),
    )


def _with_call(client: Client, turn: Turn, permission: Permission) -> Permission:
    """The permission with the tool call of a subagent, which is not among the turn's messages."""
    if permission.session == turn.session:
        return permission
    known = next((p for p in turn.permissions if p == permission), permission)
    return known if known.input else read_call(client, permission)


def read_call(client: Client, permission: Permission) -> Permission:
    """Return the permission with the tool call that waits for it, if that can be read."""
    if permission.input or not permission.call or not permission.message:
        return permission
    message_id, session = permission.message, Session(permission.session)
    message = optional(lambda: client.run(client.dialect.message(session, message_id)), None)
    calls = (t for t in (message.tools if message else ()) if t.call == permission.call)
    return with_call(permission, next(calls, None))


def refresh(client: Client, turn: Turn) -> Turn:
    """Update a turn from the server if its outcome is "running" or "unknown"."""
    if turn.outcome not in ("running", "unknown") or turn.replayed:
        return turn
    return advance(turn, read_store(client, client.session(turn.session), turn))


def descendants(
    client: Client, session: Session, since: int, above: tuple[str, ...] = ()
) -> Iterator[Session]:
    """Yield subagent sessions at any depth that changed since a time (ms); parents come first.

    `above` are the ids of the session's ancestors, to stop at a cycle if a server reports one.
    """
    path = (*above, session.id)
    for child in client.run(client.dialect.children(session)):
        if (child.updated or since) >= since and child.id not in path:
            yield child
            yield from descendants(client, child, since, path)


# -- checks before sending -------------------------------------------------------------------------


def is_busy(client: Client, session: Session, *, queued: bool) -> bool:
    """Return whether a session is busy, which is an error unless the new prompt is `queued`.

    Raises:
        SessionBusyError: The session is busy, and `queued` is False.
    """
    busy = session.id in client.statuses(session.directory)
    if busy and not queued:
        raise SessionBusyError(
            f"Session {session.id} ({session.title}) is working on another prompt.",
            f"Wait for it, or {client.dialect.queue_hint}.",
            status=409,
        )
    return busy


def add_session_ceiling(client: Client, session: Session | None, limits: Limits) -> Limits:
    """Turn the session limit into a ceiling that includes what the session has cost so far.

    Args:
        client: The session's server.
        session: The session; None if it is yet to be created.
        limits: The limits.

    Returns:
        The limits, unchanged if there is no session limit.

    Raises:
        CostLimitError: The session limit or another ceiling is already exceeded.
    """
    limits.check()
    if limits.session is None:
        return limits
    known = (client.session(session.id), *descendants(client, session, 0)) if session else ()
    if unknown := [s.id for s in known if s.usage is None or s.usage.cost is None]:
        log_warning(
            f"The earlier cost of session {', '.join(unknown)} is unknown; max_session_cost "
            "doesn't include it."
        )
    usage = total_usage(s.usage for s in known)
    ceiling = Ceiling("max_session_cost", limits.session, (usage and usage.cost) or 0.0)
    if ceiling.exceeded_by(0.0):
        raise CostLimitError(
            f"Nothing was sent: session {known[0].id} is over its limit: "
            f"cost {ceiling.describe()}.",
            "Continue in a new session (%oc_new), or raise the limit: %config "
            f"OpenCodeMagics.max_session_cost = {limits.session * 2:g}",
        )
    return replace(limits, ceilings=(*limits.ceilings, ceiling), session=None)


# -- pending requests ------------------------------------------------------------------------------


def pending_requests(
    client: Client, session: Session | None = None
) -> tuple[tuple[Permission | Question, Session], ...]:
    """List pending permissions and questions, each with the session that asks.

    Args:
        client: The server.
        session: The session whose tree is listed; None lists the client's directory.
    """
    permissions, questions = waiting_requests(
        client, session.directory if session else client.directory
    )
    requests: tuple[Permission | Question, ...] = (*permissions, *questions)
    known = {session.id: session} if session else {}
    if session and requests:
        known |= {s.id: s for s in descendants(client, session, 0)}
    elif requests:
        known |= {r.session: client.session(r.session) for r in requests}
    return tuple(
        (read_call(client, r) if isinstance(r, Permission) else r, known[r.session])
        for r in requests
        if r.session in known
    )


def waiting_requests(
    client: Client, directory: str
) -> tuple[tuple[Permission, ...], tuple[Question, ...]]:
    """The pending requests of a directory; a list that can't be read raises an error."""
    return client.permissions(directory), client.questions(directory)


def waiting_or_known_requests(
    client: Client, directory: str, known: Turn | None, warn: Callable[[str], object]
) -> tuple[tuple[Permission, ...], tuple[Question, ...]]:
    """The pending requests of a directory; a list that can't be read keeps its known value."""
    return (
        optional(lambda: client.permissions(directory), known.permissions if known else (), warn),
        optional(lambda: client.questions(directory), known.questions if known else (), warn),
    )


def reject_requests(client: Client, directory: str, tree: frozenset[str]) -> None:
    """Reject a tree's pending requests: 1.18.33 leaves them in its lists after an abort."""
    for _ in iter_rejected(client, directory, tree):
        pass


def iter_rejected(client: Client, directory: str, tree: frozenset[str]) -> Iterator[str]:
    """Reject a tree's pending requests one by one, and yield each id.

    Yields:
        The id of each request, even if the rejection of another one had settled it.
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


# -- stopping and archiving ------------------------------------------------------------------------


def abort_until_idle(
    client: Client, session: Session, tree: Callable[[], frozenset[str]], within: float
) -> bool:
    """Abort until a session's tree is seen idle twice; False if that doesn't happen in time.

    A session may be missing from the busy list for a moment after it accepted a prompt (1.18.33,
    1 of 8 tries), so the second look comes later, and after another abort. A subagent is aborted
    separately only if the session itself is idle: otherwise the session would continue.
    """
    deadline = time.monotonic() + within
    quiet = misses = 0
    while quiet < 2 and misses < _MISSES and time.monotonic() < deadline:
        time.sleep(0.1 if quiet == 0 else 0.4)
        try:
            busy = tree() & client.statuses(session.directory).keys()
            quiet = 0 if busy else quiet + 1
            below = () if session.id in busy else busy
            root = (session.id,) if quiet < 2 else ()
            for key in (*root, *below):
                with suppress(NotFoundError):  # deleted meanwhile; the busy list still counts
                    client.abort(Session(key, directory=session.directory))
        except ServerConnectionError:
            quiet, misses = 0, misses + 1
    return quiet == 2


def archive_tree(client: Client, session: Session, at: int | None) -> Session:
    """Archive a session and its subagents' sessions, or restore them if `at` is None.

    Neither generation includes the subagents itself; they would be listed as root sessions. The
    deepest come first, so that an error never leaves one without its parent.

    Returns:
        The session, read back.
    """
    for member in (*reversed(tuple(descendants(client, session, 0))), session):
        client.run(client.dialect.archive(member, at))
    return client.session(session.id)
