"""Collects what is added up: from the list of sessions where that will do, else from messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from ..client.client import Client
from ..core.formatting import format_usd, pluralize
from ..core.model import Session, Usage, total_usage
from ..core.outcome import SHELL
from ..errors import UnknownNameError
from .cache import Cache
from .fork_copies import fork_families, is_fork
from .frames import session_rows
from .load import LoadedRows, load
from .prices import Price, listed
from .queries import fork_copies_in
from .sums import TOKENS, UsageEntry, exact_sum
from .times import PERIODS, parse_time, period, zone

OF_SESSION = ("session", "root", "project", "directory")
OF_MESSAGE = ("agent", "provider", "model", "variant")
GROUP_KEYS = ("total", *PERIODS, *OF_SESSION, *OF_MESSAGE, "tool")
UNKNOWN = "(unknown)"
RENAMED_FORKS_WARNING = (
    "A fork with a new title can't be told by the list of sessions, and counts in full here; by "
    "day, agent or model it is found."
)
# A model's id says nothing without its provider: two may have the same, at other prices.
_WITH = {"model": ("provider", "model")}

_DAY = 86_400_000  # ms


@dataclass(frozen=True)
class UsageQuery:
    """What is asked: by which keys, of which time, by which clock."""

    by: tuple[str, ...]
    where: ZoneInfo
    since: int | None = None
    until: int | None = None
    keep_duplicates: bool = False

    @property
    def of_sessions(self) -> bool:
        """Whether the list of sessions can answer it."""
        return set(self.by) <= {*OF_SESSION}

    @property
    def whole(self) -> bool:
        """Whether it is about all time."""
        return self.since is None and self.until is None

    def within(self, time: int | None) -> bool:
        """Whether a time lies in the period; an unknown one lies only in all time."""
        if time is None:
            return self.whole
        return (self.since or 0) <= time and (self.until is None or time < self.until)

    def covers(self, session: Session) -> bool:
        """Whether all of a session lies in the period, as far as the list tells."""
        if self.whole:
            return True
        if self.keep_duplicates and is_fork(session):
            return False  # its copies are older than it is
        if session.created is None or session.updated is None:
            return False
        # A turn ends before `updated` is set again: what still runs is looked into.
        end = session.updated if self.until is None else session.updated + _DAY
        return self.within(session.created) and self.within(end)

    def excludes(self, session: Session) -> bool:
        """Whether nothing of a session lies in the period."""
        if session.created is None or session.updated is None:
            return False
        if self.keep_duplicates and is_fork(session):
            return False
        late = self.since is not None and session.updated + _DAY < self.since
        return late or (self.until is not None and session.created >= self.until)


def parse_query(
    by: str | Iterable[str],
    since: str | date | None,
    until: str | date | None,
    tz: str | None,
    keep_duplicates: bool,
) -> UsageQuery:
    """Read what a person asks for.

    Raises:
        UnknownNameError: There is no such key or time zone; it lists those that there are.
        ValueError: A time can't be read.
    """
    names = tuple([by] if isinstance(by, str) or not isinstance(by, Iterable) else by)
    for name in names:
        if name not in GROUP_KEYS:
            raise UnknownNameError(
                f"Usage can't be added up by {name!r}.", f"It can be by: {', '.join(GROUP_KEYS)}."
            )
    where = zone(tz)
    begin, end = (t if t is None else parse_time(t, where) for t in (since, until))
    if begin is not None and end is not None and end <= begin:
        raise ValueError(f"nothing is both since {since} and until {until}: that is not later")
    told = (key for name in names if name != "total" for key in _WITH.get(name, (name,)))
    return UsageQuery(tuple(dict.fromkeys(told)), where, begin, end, keep_duplicates)


class _Said(NamedTuple):
    """A message or a tool call, as much of it as counts."""

    session: str
    created: int | None
    who: Mapping[str, str | None]
    usage: Usage | None
    is_call: bool
    is_turn: bool
    is_error: bool
    copy: bool


class UsageCollector:
    """Collects entries, and what a person should know about them.

    Args:
        client: The server.
        everyone: All sessions that may be originals or roots of those that are asked about.
        prices: What models cost.
        cache, refresh, progress: How messages are loaded.

    Attributes:
        warnings: Sentences.
    """

    def __init__(
        self,
        client: Client,
        everyone: Sequence[Session],
        prices: Mapping[tuple[str, str], Price],
        *,
        cache: Cache | None,
        refresh: bool,
        progress: bool,
    ) -> None:
        self._client = client
        self._everyone = everyone
        self._places = {row.session.id: row for row in session_rows(everyone)}
        self._prices = prices
        self._cache, self._refresh, self._progress = cache, refresh, progress
        self.warnings: list[str] = []

    def entries(self, query: UsageQuery, chosen: Iterable[Session]) -> list[UsageEntry]:
        """What is added up to answer a query about some sessions."""
        asked = [s for s in chosen if not query.excludes(s)]
        if query.of_sessions:
            return self._of_sessions(query, asked)
        kind = "tools" if "tool" in query.by else "messages"
        return self._of_messages(query, asked, kind)

    # -- whole sessions --------------------------------------------------------------------------

    def _of_sessions(self, query: UsageQuery, asked: Sequence[Session]) -> list[UsageEntry]:
        """An entry per session."""
        keep, bills = query.keep_duplicates, self._client.dialect.fork_cost_includes_copies
        across = [s for s in asked if not query.covers(s)]
        as_stored = keep == bills  # else copies are to be taken away from it, or to be added
        forks = fork_families(self._everyone, across if as_stored else asked)
        said = self._said(_once((*across, *forks)), "messages")
        copied = _usages(m for m in said if m.copy and m.is_call)
        inside = _usages(
            m for m in said if m.is_call and query.within(m.created) and (keep or not m.copy)
        )
        if not (keep or self._client.dialect.reports_fork_source):
            self.warnings.append(RENAMED_FORKS_WARNING)
        crossing = {s.id for s in across}
        found: list[UsageEntry] = []
        for session in asked:
            copies, usage = copied.get(session.id, []), session.usage
            unread = as_stored and session.id not in crossing and is_fork(session)
            if session.id in crossing:
                if session.id not in inside:  # nothing of it lies in the period
                    continue
                usage = total_usage(inside[session.id])
            elif copies and not as_stored:
                usage = total_usage([usage, *copies]) if keep else self._less(session, copies)
            left_out = 0 if keep else None if unread else len(copies)
            found.append(self._session_entry(query, session, usage, left_out))
        return found

    def _session_entry(
        self, query: UsageQuery, session: Session, usage: Usage | None, copies: int | None
    ) -> UsageEntry:
        ref = session.model
        price = None
        if usage is not None and not usage.empty:
            known = self._prices.get((ref.provider, ref.id)) if ref else None
            price = listed(known, usage, usage.cost)
        key = tuple(self._of_session(session.id, name) for name in query.by)
        return UsageEntry(key, session.id, usage, price, None, None, None, None, copies)

    def _less(self, session: Session, copies: Sequence[Usage | None]) -> Usage | None:
        """A session's usage without that of its copied messages."""
        copied = total_usage(copies)
        if session.usage is None or copied is None:
            return session.usage
        left = {n: _less(getattr(session.usage, n), getattr(copied, n)) for n in TOKENS}
        cost = _less(session.usage.cost, copied.cost)
        cost = None if cost is None else exact_sum([cost])
        if any(v is not None and v < 0 for v in (*left.values(), cost)):
            self.warnings.append(
                f"Session {session.id} tells less usage than its copied messages have: 0 is taken."
            )
        left = {n: None if v is None else max(v, 0) for n, v in left.items()}
        return Usage(**left, cost=None if cost is None else max(cost, 0.0))

    # -- messages and tool calls -----------------------------------------------------------------

    def _of_messages(
        self, query: UsageQuery, asked: Sequence[Session], kind: str
    ) -> list[UsageEntry]:
        """An entry per message, or per tool call."""
        originals = [] if query.keep_duplicates else fork_families(self._everyone, asked)
        wanted = {s.id for s in asked}
        said = self._said(_once((*asked, *originals)), kind)
        said = [m for m in said if m.session in wanted]
        if kind == "messages" and query.whole:
            self._compare(asked, said)
        # What is neither (the end of a turn, a person's command) would only add empty rows.
        said = [m for m in said if (m.is_call or m.is_turn) and query.within(m.created)]
        dates = {n: _dates(said, n, query) for n in query.by if n in PERIODS}
        return [
            self._entry(query, m, tuple(self._key(m, n, at, dates) for n in query.by), kind)
            for at, m in enumerate(said)
        ]

    def _entry(self, query: UsageQuery, said: _Said, key: tuple[Any, ...], kind: str) -> UsageEntry:
        if said.copy and not query.keep_duplicates:
            return UsageEntry(key, said.session, copies=int(said.is_call))
        if kind == "tools":
            return UsageEntry(key, said.session, None, None, None, 1, int(said.is_error), None)
        if not said.is_call:
            root = self._places.get(said.session)
            turn = said.is_turn and (root is None or root.session.parent is None)
            return UsageEntry(key, said.session, turns=int(turn))
        usage, who = said.usage, said.who
        name = (who["provider"] or "", who["model"] or "")
        price = listed(self._prices.get(name), usage or Usage(), usage.cost if usage else None)
        unknown = int(usage is None or usage.cost is None or usage.total is None)
        return UsageEntry(key, said.session, usage, price, 0, 1, int(said.is_error), unknown)

    def _key(self, said: _Said, name: str, at: int, dates: Mapping[str, list[Any]]) -> Any:
        if name in PERIODS:
            return dates[name][at]
        if name in OF_SESSION:
            return self._of_session(said.session, name)
        return said.who[name] or UNKNOWN

    def _of_session(self, session: str, name: str) -> str:
        place = self._places.get(session)
        if name == "session" or place is None:
            return session
        if name == "root":
            return place.root or session
        return getattr(place.session, name) or UNKNOWN

    def _compare(self, asked: Sequence[Session], said: Sequence[_Said]) -> None:
        """Say what sessions cost beyond their messages, or the other way round."""
        told = exact_sum(s.usage.cost for s in asked if s.usage and s.usage.cost is not None)
        billed = [m for m in said if self._client.dialect.fork_cost_includes_copies or not m.copy]
        summed = exact_sum(m.usage.cost for m in billed if m.usage and m.usage.cost is not None)
        if told - summed > _CENT:
            self.warnings.append(
                f"{format_usd(told - summed)} of what these sessions cost "
                "is in none of their messages."
            )
        elif summed - told > _CENT:
            self.warnings.append(
                f"The messages of these sessions cost {format_usd(summed - told)} more than the "
                "sessions tell."
            )

    # -- loading ---------------------------------------------------------------------------------

    def _said(self, sessions: Sequence[Session], kind: str) -> list[_Said]:
        loaded = load(
            self._client,
            sessions,
            kind,
            cache=self._cache,
            refresh=self._refresh,
            progress=self._progress,
        )
        self.warnings += loaded.warnings
        copies = fork_copies_in(loaded, self._everyone)
        read = _tool_calls if kind == "tools" else _messages
        said = [*read(loaded, copies.originals)]
        if orphans := sum(said[at].is_call for at in copies.orphans):
            self.warnings.append(
                f"{pluralize(orphans, 'call')} older than the session, "
                "copies whose original is gone or "
                "not among these sessions: counted."
            )
        return said


_CENT = 1e-9  # USD


def _once(sessions: Iterable[Session]) -> list[Session]:
    return [*{s.id: s for s in sessions}.values()]


def _usages(said: Iterable[_Said]) -> dict[str, list[Usage | None]]:
    found: dict[str, list[Usage | None]] = {}
    for message in said:
        found.setdefault(message.session, []).append(message.usage)
    return found


def _less(whole: Any, part: Any) -> Any:
    return None if whole is None else whole - (part or 0)


def _dates(said: Sequence[_Said], name: str, query: UsageQuery) -> list[Any]:
    import pandas as pd

    times = pd.to_datetime(pd.Series([m.created for m in said], dtype="Int64"), unit="ms", utc=True)
    return [*period(times, name, query.where)]


def _messages(loaded: LoadedRows, originals: Sequence[str | None]) -> Iterator[_Said]:
    lists = loaded.lists
    tokens = zip(*(lists[name] for name in (*TOKENS, "cost")), strict=True)
    who = zip(*(lists[name] for name in OF_MESSAGE), strict=True)
    other = ("session", "created", "role", "outcome", "synthetic")
    rest = zip(*(lists[name] for name in other), strict=True)
    for used, names, (session, created, role, outcome, synthetic), original in zip(
        tokens, who, rest, originals, strict=True
    ):
        yield _Said(
            session,
            created,
            dict(zip(OF_MESSAGE, names, strict=True)),
            None if all(v is None for v in used) else Usage(*used),
            is_call=role in ("assistant", "compaction") and outcome != SHELL,
            is_turn=role == "user" and not synthetic,
            is_error=outcome == "failed",
            copy=original is not None,
        )


def _tool_calls(loaded: LoadedRows, originals: Sequence[str | None]) -> Iterator[_Said]:
    lists = loaded.lists
    names = ("agent", "provider", "model", "tool")
    who = zip(*(lists[name] for name in names), strict=True)
    rest = zip(lists["session"], lists["created"], lists["status"], lists["declined"], strict=True)
    for named, (session, created, status, declined), original in zip(
        who, rest, originals, strict=True
    ):
        yield _Said(
            session,
            created,
            {"variant": None} | dict(zip(names, named, strict=True)),
            None,
            is_call=True,
            is_turn=False,
            is_error=status == "error" and not declined,
            copy=original is not None,
        )
