"""Find messages that appear twice in a history because their session was forked.

A fork on 1.18.33 copies messages under new ids, and only its title shows that it is a fork; 2.x
reports the session it was copied from. A copy has the same `frames.message_key` as its original,
and unlike any other message it is older than its session.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..core.model import Session

_FORK = re.compile(r" \(fork #\d+\)$")


class Copies(NamedTuple):
    """Copied messages and forked sessions.

    Attributes:
        originals: For each row the id of the message that it is a copy of, or None.
        forks: Id of the original session, by id of the fork; from the server, else from the copies.
        orphans: Indices of copies whose original is not among the rows: older than their session.
    """

    originals: list[str | None]
    forks: dict[str, str]
    orphans: list[int]


class CopyCandidate(NamedTuple):
    """A row's session, its message, the creation time of the message, and the message's key."""

    session: str
    message: str | None
    created: int | None
    key: str | None


def find_fork_copies(rows: Sequence[CopyCandidate], sessions: Mapping[str, Session]) -> Copies:
    """Find the rows of copied messages, and their originals.

    The original is in the oldest session. Rows of the same session are never copies of each other.
    """
    originals: list[str | None] = [None] * len(rows)
    forks = _find_originals(rows, sessions, originals) if _any_shared_key(rows) else {}
    forks |= {s.id: s.forked_from for s in sessions.values() if s.forked_from}
    creation_times = {s.id: s.created or 0 for s in sessions.values()}
    orphans = [
        index
        for index, row in enumerate(rows)
        if originals[index] is None
        and row.created is not None
        and row.created < creation_times.get(row.session, 0)
    ]
    return Copies(originals, forks, orphans)


def _find_originals(
    rows: Sequence[CopyCandidate], sessions: Mapping[str, Session], originals: list[str | None]
) -> dict[str, str]:
    """Fill in the original of each copy; return the original session of each fork."""
    firsts: dict[str, tuple[str, str | None]] = {}
    copies_by_owner: dict[str, Counter[str]] = {}
    for session, indices in _oldest_session_first(rows, sessions):
        session_created = sessions[session].created if session in sessions else None
        for index in indices:
            row = rows[index]
            if row.key is None:
                continue
            older = session_created is None or row.created is None or row.created < session_created
            owner, message = firsts.setdefault(row.key, (session, row.message))
            if older and owner != session:
                originals[index] = message
                copies_by_owner.setdefault(session, Counter())[owner] += 1
    return {s: owners.most_common(1)[0][0] for s, owners in copies_by_owner.items()}


def _any_shared_key(rows: Iterable[CopyCandidate]) -> bool:
    """Return True if two sessions share a key; in most histories none do."""
    owners: dict[str, str] = {}
    return any(owners.setdefault(r.key, r.session) != r.session for r in rows if r.key is not None)


def _oldest_session_first(
    rows: Iterable[CopyCandidate], sessions: Mapping[str, Session]
) -> list[tuple[str, list[int]]]:
    """Group row indices by session, the oldest session first."""
    indices: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        indices.setdefault(row.session, []).append(index)

    def created(item: tuple[str, list[int]]) -> int:
        session = sessions.get(item[0])
        return (session.created if session else None) or 0

    return sorted(indices.items(), key=created)


def is_fork(session: Session) -> bool:
    """Return True if the server or the title says that a session is a fork."""
    return session.forked_from is not None or _FORK.search(session.title) is not None


def fork_families(everyone: Iterable[Session], selected: Iterable[Session]) -> list[Session]:
    """Return the families of the selected sessions: original sessions and their (likely) forks.

    1.18.33 titles a fork of "work" "work (fork #1)", and a fork of that fork "work (fork #2)".
    """
    sessions = {s.id: s for s in everyone}
    fork_titles = {_base_title(s) for s in sessions.values() if _FORK.search(s.title)}

    def family(session: Session) -> object:
        original = _original(session, sessions)
        title = _base_title(sessions.get(original, session))
        return title if title in fork_titles else original

    families: dict[object, list[Session]] = {}
    for session in sessions.values():
        families.setdefault(family(session), []).append(session)
    wanted = {family(s) for s in selected}
    return [
        s for name, members in families.items() if name in wanted and members[1:] for s in members
    ]


def _base_title(session: Session) -> tuple[str | None, str]:
    return session.project, _FORK.sub("", session.title)


def _original(session: Session, sessions: Mapping[str, Session]) -> str:
    """Follow `forked_from` to the first session; it may no longer exist."""
    path = [session.id]
    source: Session | None = session
    while source and source.forked_from and source.forked_from not in path:
        path.append(source.forked_from)
        source = sessions.get(path[-1])
    return path[-1]
