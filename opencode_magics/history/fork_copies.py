"""Finds messages that are in a history twice, because their session was forked.

A fork of 1.18.33 copies messages under new ids and says nowhere that it did, but in its title; 2.x
names the session that it was copied from. What a copy keeps is in `frames.key`; and a copy is older
than the session it is in, which no other message is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..core.model import Session

_FORK = re.compile(r" \(fork #\d+\)$")


class Copies(NamedTuple):
    """What was found.

    Attributes:
        originals: Per row the message that it is a copy of, or None.
        forks: Which session is a fork of which: as the server tells, else as its copies do.
        orphans: Rows of copies whose original is not among the rows: older than their session.
    """

    originals: list[str | None]
    forks: dict[str, str]
    orphans: list[int]


class CopyCandidate(NamedTuple):
    """Where a row stands: its session, its message, when that began, and what a copy keeps."""

    session: str
    message: str | None
    created: int | None
    key: str | None


def find_fork_copies(rows: Sequence[CopyCandidate], sessions: Mapping[str, Session]) -> Copies:
    """Which rows belong to a copied message, and to which message of which session.

    The original is in the session that was made first. Rows of the same session are never copies
    of each other.
    """
    originals: list[str | None] = [None] * len(rows)
    forks = _mark(rows, sessions, originals) if _meet(rows) else {}
    forks |= {s.id: s.forked_from for s in sessions.values() if s.forked_from}
    made = {s.id: s.created or 0 for s in sessions.values()}
    orphans = [
        at
        for at, row in enumerate(rows)
        if originals[at] is None
        and row.created is not None
        and row.created < made.get(row.session, 0)
    ]
    return Copies(originals, forks, orphans)


def _mark(
    rows: Sequence[CopyCandidate], sessions: Mapping[str, Session], originals: list[str | None]
) -> dict[str, str]:
    """Put the original of each copy into its place; which session is a fork of which."""
    firsts: dict[str, tuple[str, str | None]] = {}
    taken_from: dict[str, Counter[str]] = {}
    for session, places in _by_age(rows, sessions):
        made = sessions[session].created if session in sessions else None
        for at in places:
            row = rows[at]
            if row.key is None:
                continue
            older = made is None or row.created is None or row.created < made
            owner, message = firsts.setdefault(row.key, (session, row.message))
            if older and owner != session:
                originals[at] = message
                taken_from.setdefault(session, Counter())[owner] += 1
    return {s: owners.most_common(1)[0][0] for s, owners in taken_from.items()}


def _meet(rows: Iterable[CopyCandidate]) -> bool:
    """Whether any two sessions have something that a copy keeps: most histories have not."""
    owners: dict[str, str] = {}
    return any(owners.setdefault(r.key, r.session) != r.session for r in rows if r.key is not None)


def _by_age(
    rows: Iterable[CopyCandidate], sessions: Mapping[str, Session]
) -> list[tuple[str, list[int]]]:
    """Row numbers by session, the session that was made first at first."""
    places: dict[str, list[int]] = {}
    for at, row in enumerate(rows):
        places.setdefault(row.session, []).append(at)

    def age(item: tuple[str, list[int]]) -> int:
        session = sessions.get(item[0])
        return (session.created if session else None) or 0

    return sorted(places.items(), key=age)


def is_fork(session: Session) -> bool:
    """Whether a session is a fork, by what the server tells or by its title."""
    return session.forked_from is not None or _FORK.search(session.title) is not None


def fork_families(everyone: Iterable[Session], asked: Iterable[Session]) -> list[Session]:
    """Sessions that are forks, and what they are or may be forks of, if asked about.

    1.18.33 titles a fork of "work" "work (fork #1)", and a fork of that "work (fork #2)".
    """
    known = {s.id: s for s in everyone}
    titled = {_titled(s) for s in known.values() if _FORK.search(s.title)}

    def family(session: Session) -> object:
        first = _first(session, known)
        name = _titled(known.get(first, session))
        return name if name in titled else first

    found: dict[object, list[Session]] = {}
    for session in known.values():
        found.setdefault(family(session), []).append(session)
    wanted = {family(s) for s in asked}
    return [s for name, members in found.items() if name in wanted and members[1:] for s in members]


def _titled(session: Session) -> tuple[str | None, str]:
    return session.project, _FORK.sub("", session.title)


def _first(session: Session, known: Mapping[str, Session]) -> str:
    """The session that a fork, or the fork it was made of, was made of; it may be gone."""
    line = [session.id]
    above: Session | None = session
    while above and above.forked_from and above.forked_from not in line:
        line.append(above.forked_from)
        above = known.get(line[-1])
    return line[-1]
