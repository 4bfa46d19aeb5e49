"""Collect usage entries, from the session list if it suffices, otherwise from messages."""

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
from .prices import Price, list_price
from .queries import fork_copies_in
from .sums import TOKENS, UsageEntry, exact_sum
from .times import PERIODS, parse_time, period, zone

SESSION_KEYS = ("session", "root", "project", "directory")
MESSAGE_KEYS = ("agent", "provider", "model", "variant")
GROUP_KEYS = ("total", *PERIODS, *SESSION_KEYS, *MESSAGE_KEYS, "tool")
UNKNOWN = "(unknown)"
RENAMED_FORKS_WARNING = (
    "A renamed fork can't be recognized in the session list, so its copied messages count here; "
    "usage by day, agent or model leaves them out."
)
# Two providers may have a model of the same id, at different prices.
_EXPANDED_KEYS = {"model": ("provider", "model")}

_DAY = 86_400_000  # ms


@dataclass(frozen=True)
class UsageQuery:
    """A usage query: keys, time zone, period (milliseconds since the epoch)."""

    by: tuple[str, ...]
    tz: ZoneInfo
    since: int | None = None
    until: int | None = None
    keep_duplicates: bool = False

    @property
    def needs_sessions_only(self) -> bool:
        """True if all keys are in the session list."""
        return set(self.by) <= {*SESSION_KEYS}

    @property
    def all_time(self) -> bool:
        """True if the period has no limits."""
        return self.since is None and self.until is None

    def within(self, time: int | None) -> bool:
        """Return True if a time is in the period; an unknown time is only in an unlimited one."""
        if time is None:
            return self.all_time
        return (self.since or 0) <= time and (self.until is None or time < self.until)

    def covers(self, session: Session) -> bool:
        """Return True if the session list shows that the entire session is in the period."""
        if self.all_time:
            return True
        if self.keep_duplicates and is_fork(session):
            return False  # its copied messages are older than the session
        if session.created is None or session.updated is None:
            return False
        # `updated` is older than the end of a turn that is still running: allow a day.
        end = session.updated if self.until is None else session.updated + _DAY
        return self.within(session.created) and self.within(end)

    def excludes(self, session: Session) -> bool:
        """Return True if the session list shows that no part of a session is in the period."""
        if session.created is None or session.updated is None:
            return False
        if self.keep_duplicates and is_fork(session):
            return False
        too_old = self.since is not None and session.updated + _DAY < self.since
        return too_old or (self.until is not None and session.created >= self.until)


def parse_query(
    by: str | Iterable[str],
    since: str | date | None,
    until: str | date | None,
    tz: str | None,
    keep_duplicates: bool,
) -> UsageQuery:
    """Build a query from a user's arguments.

    Raises:
        UnknownNameError: There is no such key or time zone.
        ValueError: A time can't be parsed, or `until` is not later than `since`.
    """
    names = tuple([by] if isinstance(by, str) or not isinstance(by, Iterable) else by)
    for name in names:
        if name not in GROUP_KEYS:
            raise UnknownNameError(
                f"Usage can't be grouped by {name!r}.", f"Use any of: {', '.join(GROUP_KEYS)}."
            )
    time_zone = zone(tz)
    start, end = (t if t is None else parse_time(t, time_zone) for t in (since, until))
    if start is not None and end is not None and end <= start:
        raise ValueError(f"until {until} is not later than since {since}")
    keys = (key for name in names if name != "total" for key in _EXPANDED_KEYS.get(name, (name,)))
    return UsageQuery(tuple(dict.fromkeys(keys)), time_zone, start, end, keep_duplicates)


class _Item(NamedTuple):
    """The parts of a message or a tool call that usage needs."""

    session: str
    created: int | None
    keys: Mapping[str, str | None]
    usage: Usage | None
    is_call: bool
    is_turn: bool
    is_error: bool
    is_copy: bool


class UsageCollector:
    """Collects usage entries, and warnings about them.

    Args:
        client: The server.
        everyone: All sessions that may be originals or roots of the selected sessions.
        prices: Prices by provider and model id.
        cache, refresh, progress: As for `history.messages`.

    Attributes:
        warnings: Warnings, one sentence each.
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
        self._session_rows = {row.session.id: row for row in session_rows(everyone)}
        self._prices = prices
        self._cache, self._refresh, self._progress = cache, refresh, progress
        self.warnings: list[str] = []

    def entries(self, query: UsageQuery, sessions: Iterable[Session]) -> list[UsageEntry]:
        """Return the entries to add up for a query about some sessions."""
        selected = [s for s in sessions if not query.excludes(s)]
        if query.needs_sessions_only:
            return self._session_entries(query, selected)
        kind = "tools" if "tool" in query.by else "messages"
        return self._item_entries(query, selected, kind)

    # -- entire sessions -------------------------------------------------------------------------

    def _session_entries(self, query: UsageQuery, selected: Sequence[Session]) -> list[UsageEntry]:
        """Return one entry per session."""
        keep, includes = query.keep_duplicates, self._client.dialect.fork_cost_includes_copies
        partial = [s for s in selected if not query.covers(s)]
        as_stored = keep == includes  # else the usage of copies must be subtracted or added
        forks = fork_families(self._everyone, partial if as_stored else selected)
        items = self._load(_unique((*partial, *forks)), "messages")
        copied = _usages_by_session(m for m in items if m.is_copy and m.is_call)
        in_period = _usages_by_session(
            m for m in items if m.is_call and query.within(m.created) and (keep or not m.is_copy)
        )
        if not (keep or self._client.dialect.reports_fork_source):
            self.warnings.append(RENAMED_FORKS_WARNING)
        partial_ids = {s.id for s in partial}
        entries: list[UsageEntry] = []
        for session in selected:
            copies, usage = copied.get(session.id, []), session.usage
            unread = as_stored and session.id not in partial_ids and is_fork(session)
            if session.id in partial_ids:
                if session.id not in in_period:
                    continue
                usage = total_usage(in_period[session.id])
            elif copies and not as_stored:
                usage = (
                    total_usage([usage, *copies]) if keep else self._without_copies(session, copies)
                )
            left_out = 0 if keep else None if unread else len(copies)
            entries.append(self._session_entry(query, session, usage, left_out))
        return entries

    def _session_entry(
        self, query: UsageQuery, session: Session, usage: Usage | None, copies: int | None
    ) -> UsageEntry:
        ref = session.model
        price = None
        if usage is not None and not usage.empty:
            known = self._prices.get((ref.provider, ref.id)) if ref else None
            price = list_price(known, usage, usage.cost)
        key = tuple(self._session_key(session.id, name) for name in query.by)
        return UsageEntry(key, session.id, usage, price, None, None, None, None, copies)

    def _without_copies(self, session: Session, copies: Sequence[Usage | None]) -> Usage | None:
        """Subtract the usage of copied messages from a session's usage."""
        copied = total_usage(copies)
        if session.usage is None or copied is None:
            return session.usage
        tokens = {n: _difference(getattr(session.usage, n), getattr(copied, n)) for n in TOKENS}
        cost = _difference(session.usage.cost, copied.cost)
        cost = None if cost is None else exact_sum([cost])
        if any(v is not None and v < 0 for v in (*tokens.values(), cost)):
            self.warnings.append(
                f"Session {session.id} reports less usage than its copied messages: counted as 0."
            )
        tokens = {n: None if v is None else max(v, 0) for n, v in tokens.items()}
        return Usage(**tokens, cost=None if cost is None else max(cost, 0.0))

    # -- messages and tool calls -----------------------------------------------------------------

    def _item_entries(
        self, query: UsageQuery, selected: Sequence[Session], kind: str
    ) -> list[UsageEntry]:
        """Return one entry per message or per tool call."""
        originals = [] if query.keep_duplicates else fork_families(self._everyone, selected)
        ids = {s.id for s in selected}
        items = self._load(_unique((*selected, *originals)), kind)
        items = [m for m in items if m.session in ids]
        if kind == "messages" and query.all_time:
            self._compare_costs(selected, items)
        # Other rows (the end of a turn, a person's shell command) would only add empty groups.
        items = [m for m in items if (m.is_call or m.is_turn) and query.within(m.created)]
        dates = {n: _dates(items, n, query) for n in query.by if n in PERIODS}
        return [
            self._entry(query, m, tuple(self._key(m, n, row, dates) for n in query.by), kind)
            for row, m in enumerate(items)
        ]

    def _entry(self, query: UsageQuery, item: _Item, key: tuple[Any, ...], kind: str) -> UsageEntry:
        if item.is_copy and not query.keep_duplicates:
            return UsageEntry(key, item.session, copies=int(item.is_call))
        if kind == "tools":
            return UsageEntry(key, item.session, None, None, None, 1, int(item.is_error), None)
        if not item.is_call:
            row = self._session_rows.get(item.session)
            is_turn = item.is_turn and (row is None or row.session.parent is None)
            return UsageEntry(key, item.session, turns=int(is_turn))
        usage, keys = item.usage, item.keys
        name = (keys["provider"] or "", keys["model"] or "")
        price = list_price(self._prices.get(name), usage or Usage(), usage.cost if usage else None)
        unknown = int(usage is None or usage.cost is None or usage.total is None)
        return UsageEntry(key, item.session, usage, price, 0, 1, int(item.is_error), unknown)

    def _key(self, item: _Item, name: str, row: int, dates: Mapping[str, list[Any]]) -> Any:
        if name in PERIODS:
            return dates[name][row]
        if name in SESSION_KEYS:
            return self._session_key(item.session, name)
        return item.keys[name] or UNKNOWN

    def _session_key(self, session: str, name: str) -> str:
        row = self._session_rows.get(session)
        if name == "session" or row is None:
            return session
        if name == "root":
            return row.root or session
        return getattr(row.session, name) or UNKNOWN

    def _compare_costs(self, selected: Sequence[Session], items: Sequence[_Item]) -> None:
        """Warn if the sessions' stored cost differs from the sum of their messages."""
        stored = exact_sum(s.usage.cost for s in selected if s.usage and s.usage.cost is not None)
        includes = self._client.dialect.fork_cost_includes_copies
        usages = [m.usage for m in items if m.usage and (includes or not m.is_copy)]
        summed = exact_sum(usage.cost for usage in usages if usage.cost is not None)
        if stored - summed > _TOLERANCE:
            self.warnings.append(
                f"These sessions cost {format_usd(stored - summed)} more than their messages: the "
                "difference is missing here."
            )
        elif summed - stored > _TOLERANCE:
            self.warnings.append(
                f"The messages of these sessions cost {format_usd(summed - stored)} more than the "
                "sessions report."
            )

    # -- loading ---------------------------------------------------------------------------------

    def _load(self, sessions: Sequence[Session], kind: str) -> list[_Item]:
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
        read_items = _tool_calls if kind == "tools" else _messages
        items = [*read_items(loaded, copies.originals)]
        if orphans := sum(items[row].is_call for row in copies.orphans):
            self.warnings.append(
                f"Counted {pluralize(orphans, 'copied call')} whose original is deleted or not "
                "among these sessions."
            )
        return items


_TOLERANCE = 1e-9  # USD


def _unique(sessions: Iterable[Session]) -> list[Session]:
    return [*{s.id: s for s in sessions}.values()]


def _usages_by_session(items: Iterable[_Item]) -> dict[str, list[Usage | None]]:
    usages: dict[str, list[Usage | None]] = {}
    for item in items:
        usages.setdefault(item.session, []).append(item.usage)
    return usages


def _difference(total: Any, part: Any) -> Any:
    return None if total is None else total - (part or 0)


def _dates(items: Sequence[_Item], name: str, query: UsageQuery) -> list[Any]:
    import pandas as pd

    created = pd.Series([m.created for m in items], dtype="Int64")
    return [*period(pd.to_datetime(created, unit="ms", utc=True), name, query.tz)]


def _messages(loaded: LoadedRows, originals: Sequence[str | None]) -> Iterator[_Item]:
    lists = loaded.lists
    usages = zip(*(lists[name] for name in (*TOKENS, "cost")), strict=True)
    keys = zip(*(lists[name] for name in MESSAGE_KEYS), strict=True)
    other_columns = ("session", "created", "role", "outcome", "synthetic")
    other = zip(*(lists[name] for name in other_columns), strict=True)
    for values, names, (session, created, role, outcome, synthetic), original in zip(
        usages, keys, other, originals, strict=True
    ):
        yield _Item(
            session,
            created,
            dict(zip(MESSAGE_KEYS, names, strict=True)),
            None if all(v is None for v in values) else Usage(*values),
            is_call=role in ("assistant", "compaction") and outcome != SHELL,
            is_turn=role == "user" and not synthetic,
            is_error=outcome == "failed",
            is_copy=original is not None,
        )


def _tool_calls(loaded: LoadedRows, originals: Sequence[str | None]) -> Iterator[_Item]:
    lists = loaded.lists
    key_columns = ("agent", "provider", "model", "tool")
    keys = zip(*(lists[name] for name in key_columns), strict=True)
    other = zip(lists["session"], lists["created"], lists["status"], lists["declined"], strict=True)
    for names, (session, created, status, declined), original in zip(
        keys, other, originals, strict=True
    ):
        yield _Item(
            session,
            created,
            {"variant": None} | dict(zip(key_columns, names, strict=True)),
            None,
            is_call=True,
            is_turn=False,
            is_error=status == "error" and not declined,
            is_copy=original is not None,
        )
