"""What agents used and what it cost, by whatever you ask.

Two ways lead there. What the list of sessions tells (cost and tokens of whole sessions) is taken
from it; only forks, whose copies would count twice, and sessions across the border of a period
have their messages read. Everything else is added up from messages. `cost` is what the server
stored; the list price stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import TYPE_CHECKING, Any, NamedTuple

from ..client.client import Client, optional
from ..core.columns import COUNT, DAY, NUMBER, TEXT, Column, Columns, frame_from_rows
from ..core.model import Model, Session
from . import prices as price_lists
from .cache import Cache
from .gc_pause import gc_paused
from .prices import prices_from_mapping
from .queries import documents_columns, resolve_cache, resolve_sessions
from .sums import UsageEntry, UsageSum, sum_of, sums_by_key, sums_with_subagents
from .times import PERIODS
from .usage_entries import UsageCollector, UsageQuery, parse_query

if TYPE_CHECKING:
    import pandas as pd


class UsageRow(NamedTuple):
    """A line of the frame: what was added up, and with the subagents below it."""

    sum: UsageSum
    whole: UsageSum | None = None
    title: str | None = None


def _of(name: str) -> Callable[[UsageRow], Any]:
    return lambda row: getattr(row.sum, name)


_TITLE: Columns = {
    "title": Column(
        TEXT,
        lambda r: r.title,
        "Title of the session or root session; only if grouped by one of these.",
    ),
}
_WHOLE: Columns = {
    "cost_inclusive": Column(
        NUMBER,
        lambda r: r.whole.cost if r.whole else None,
        "USD, including all subagents; only if grouped by session.",
    ),
    "subagents": Column(
        COUNT,
        lambda r: r.whole.sessions - r.sum.sessions if r.whole else None,
        "Number of subagent sessions; only if grouped by session.",
    ),
}
_SUMS: Columns = {
    "calls": Column(COUNT, _of("calls"), "Model calls; if grouped by tool, calls of the tool."),
    "input": Column(
        COUNT, _of("input"), "Prompt tokens, without those read from or written to the cache."
    ),
    "output": Column(COUNT, _of("output"), "Tokens of answers, without reasoning."),
    "reasoning": Column(COUNT, _of("reasoning"), "Reasoning tokens."),
    "cache_read": Column(COUNT, _of("cache_read"), "Prompt tokens read from the cache."),
    "cache_write": Column(COUNT, _of("cache_write"), "Prompt tokens written to the cache."),
    "cache_share": Column(
        NUMBER, _of("cache_share"), "`cache_read` as a fraction of all prompt tokens, 0 to 1."
    ),
    "sessions": Column(COUNT, _of("sessions"), "Number of sessions that contributed."),
    "turns": Column(COUNT, _of("turns"), "Prompts sent by people, without those to subagents."),
    "errors": Column(COUNT, _of("errors"), "Failed calls; stopped calls don't count."),
    "retries": Column(COUNT, lambda r: None, "NA, because no server stores retries."),
    "unknown": Column(
        COUNT, _of("unknown"), "Calls whose usage is unknown: stopped, failed or unfinished."
    ),
    "duplicates": Column(
        COUNT, _of("copies"), "Calls copied by forks, not counted in the other columns."
    ),
    "cost_listed": Column(NUMBER, _of("cost_listed"), "USD at list prices, where they are known."),
    "gap": Column(NUMBER, _of("gap"), "`cost_listed` minus `cost`, where both are known."),
    "gap_reason": Column(
        TEXT,
        _of("gap_reason"),
        "Reasons for the gap, with the number of calls or sessions: zero-priced, subscription, not "
        "metered, price changed, unknown model, cache price missing, usage unknown.",
    ),
}
_COST: Columns = {"cost": Column(NUMBER, _of("cost"), "USD, as stored by the server.")}
USAGE: Columns = {**_TITLE, **_COST, **_WHOLE, **_SUMS}


@documents_columns(USAGE)
def usage(
    client: Client,
    by: str | Iterable[str] = "session",
    *,
    since: str | date | None = None,
    until: str | date | None = None,
    tz: str | None = None,
    sessions: Iterable[Session | str] | None = None,
    everywhere: bool = False,
    keep_duplicates: bool = False,
    prices: Mapping[str, Mapping[str, float]] | None = None,
    cache: Cache | bool = True,
    refresh: bool = False,
    progress: bool = True,
) -> pd.DataFrame:
    """Usage as a frame: a line per session, day, model, ..., or per combination of these.

    By session, root, project or directory the messages are not downloaded: turns, calls, errors
    and unknown are NA then. By session there are also `title`, `subagents` (how many are below it)
    and `cost_inclusive` (USD, with all of them). By tool, tokens and cost are NA: they belong to
    steps. A message counts when it began.

    Args:
        client: The server.
        by: One or several of total, day, week, month, session, root, project, directory, agent,
            provider, model, variant, tool. A model comes with its provider, since two may have one
            of the same name.
        since: From then on: `7d`, `12h`, `30m` (ago), a date or time in `tz`, a date or datetime.
        until: Up to then, itself not included.
        tz: By the clocks of which zone (`Europe/Berlin`); default: this machine's.
        sessions: Only these, by value, id or title; default: all of the client's project.
        everywhere: All of all directories that the server knows.
        keep_duplicates: Count messages that forks copied like all others.
        prices: A price list, `{"provider/model": {"input": 3, "output": 15, "cache_read": 0.3,
            "cache_write": 3.75}}` in USD per million tokens; default: the server's own.
        cache: Where the rows of unchanged sessions are kept; False reads all and keeps none.
        refresh: Read all messages again.
        progress: Show a bar if it takes a while.

    Returns:
        A frame, the most expensive lines first, or by time. Its `attrs` have `total` (a dict: in
        it nothing counts twice), `tz`, and `warnings`, a sentence each.

    Raises:
        UnknownNameError: There is no such key, time zone or session.
        ValueError: A time or a price can't be read, or `until` is not later than `since`.
    """
    query = parse_query(by, since, until, tz, keep_duplicates)
    given = None if prices is None else prices_from_mapping(prices)
    chosen = None if sessions is None else resolve_sessions(client, sessions)
    with ThreadPoolExecutor(1) as beside:
        unpriced: list[str] = []
        models = None if given is not None else beside.submit(_prices, client, unpriced)
        everyone = client.sessions(everywhere=everywhere or chosen is not None)
        listing = price_lists.prices_from_models(models.result()) if models else given or {}
    kept = resolve_cache(cache)
    reading = UsageCollector(
        client, everyone, listing, cache=kept, refresh=refresh, progress=progress
    )
    entries = reading.entries(query, everyone if chosen is None else chosen)
    shown = _framed(query, entries, everyone)
    shown.attrs["total"] = _total(entries)
    shown.attrs["tz"] = str(query.where)
    shown.attrs["warnings"] = [*reading.warnings, *unpriced]
    return shown


def _prices(client: Client, unpriced: list[str]) -> tuple[Model, ...]:
    """The server's list; `unpriced` gets a sentence where there is none to be had."""

    def tell(what: str) -> None:
        unpriced.append(f"No list price is known, since the server's list can't be read: {what}")

    return optional(lambda: client.run(client.dialect.prices(client.directory)), (), tell)


@gc_paused()
def _framed(
    query: UsageQuery, entries: Sequence[UsageEntry], sessions: Sequence[Session]
) -> pd.DataFrame:
    """A line per sum: its keys, whose session it is, and what it comes to."""
    keys: Columns = {
        name: Column(DAY if name in PERIODS else TEXT, _key(at), f"The {name}.")
        for at, name in enumerate(query.by)
    }
    titles = {s.id: s.title for s in sessions}
    sums = sums_by_key(entries) or ([] if query.by else [sum_of((), ())])
    by_session = query.by == ("session",)
    whole = sums_with_subagents(sums, sessions) if by_session else {}
    titled = next((at for at, name in enumerate(query.by) if name in ("session", "root")), None)
    rows = [
        UsageRow(one, whole[one.key[0]] if by_session else None, _title(titles, one, titled))
        for one in sorted(sums, key=_order(query))
    ]
    title = {} if titled is None else _TITLE
    return frame_from_rows(
        {**keys, **title, **_COST, **(_WHOLE if by_session else {}), **_SUMS}, rows
    )


def _key(at: int) -> Callable[[UsageRow], Any]:
    return lambda row: row.sum.key[at]


def _title(titles: Mapping[str, str], one: UsageSum, at: int | None) -> str | None:
    return None if at is None else titles.get(one.key[at])


def _order(query: UsageQuery) -> Callable[[UsageSum], Any]:
    """By time where that is asked for, else what costs most first."""
    times = [at for at, name in enumerate(query.by) if name in PERIODS]

    def order(one: UsageSum) -> Any:
        return ([str(one.key[at]) for at in times], -(one.cost or 0), str(one.key))

    return order


def _total(entries: Sequence[UsageEntry]) -> dict[str, Any]:
    """The grand total: of entries, of which each is there once, and never of sums."""
    row = UsageRow(sum_of((), entries))
    return {name: column.read(row) for name, column in {**_COST, **_SUMS}.items()}
