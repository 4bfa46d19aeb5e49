"""Tokens and cost, grouped by session, day, model and other keys.

Usage by session, root, project or directory comes from the session list. Messages are read for two
kinds of sessions only: forks, whose copies would count twice, and sessions that are only partly in
the period. All other usage is the sum of messages. `cost` is the cost that the server stored;
`cost_listed` is the cost at list prices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import TYPE_CHECKING, Any, NamedTuple

from ..client.client import Client, optional
from ..core.columns import COUNT, DAY, NUMBER, TEXT, Column, Columns, frame_from_rows
from ..core.model import Model, Session
from .cache import Cache
from .gc_pause import gc_paused
from .prices import prices_from_mapping, prices_from_models
from .queries import documents_columns, resolve_cache, resolve_sessions
from .sums import UsageEntry, UsageSum, sum_of, sums_by_key, sums_with_subagents
from .times import PERIODS
from .usage_entries import UsageCollector, UsageQuery, parse_query

if TYPE_CHECKING:
    import pandas as pd


class UsageRow(NamedTuple):
    """A row of the frame: its sum, and the sum that includes subagents."""

    sum: UsageSum
    inclusive: UsageSum | None = None
    title: str | None = None


def _sum(name: str) -> Callable[[UsageRow], Any]:
    return lambda row: getattr(row.sum, name)


_TITLE: Columns = {
    "title": Column(
        TEXT,
        lambda r: r.title,
        "Title of the session or root session; only if grouped by one of these.",
    ),
}
_INCLUSIVE: Columns = {
    "cost_inclusive": Column(
        NUMBER,
        lambda r: r.inclusive.cost if r.inclusive else None,
        "USD, including all subagents; only if grouped by session.",
    ),
    "subagents": Column(
        COUNT,
        lambda r: r.inclusive.sessions - r.sum.sessions if r.inclusive else None,
        "Number of subagent sessions; only if grouped by session.",
    ),
}
_SUMS: Columns = {
    "calls": Column(COUNT, _sum("calls"), "Model calls; if grouped by tool, calls of the tool."),
    "input": Column(
        COUNT, _sum("input"), "Prompt tokens, without those read from or written to the cache."
    ),
    "output": Column(COUNT, _sum("output"), "Tokens of answers, without reasoning."),
    "reasoning": Column(COUNT, _sum("reasoning"), "Reasoning tokens."),
    "cache_read": Column(COUNT, _sum("cache_read"), "Prompt tokens read from the cache."),
    "cache_write": Column(COUNT, _sum("cache_write"), "Prompt tokens written to the cache."),
    "cache_share": Column(
        NUMBER, _sum("cache_share"), "`cache_read` as a fraction of all prompt tokens, 0 to 1."
    ),
    "sessions": Column(COUNT, _sum("sessions"), "Number of sessions that contributed."),
    "turns": Column(COUNT, _sum("turns"), "Prompts sent by people, without those to subagents."),
    "errors": Column(COUNT, _sum("errors"), "Failed calls; stopped calls don't count."),
    "retries": Column(COUNT, lambda r: None, "NA, because no server stores retries."),
    "unknown": Column(
        COUNT, _sum("unknown"), "Calls whose usage is unknown: stopped, failed or unfinished."
    ),
    "duplicates": Column(
        COUNT, _sum("copies"), "Calls copied by forks, not counted in the other columns."
    ),
    "cost_listed": Column(NUMBER, _sum("cost_listed"), "USD at list prices, where they are known."),
    "gap": Column(NUMBER, _sum("gap"), "`cost_listed` minus `cost`, where both are known."),
    "gap_reason": Column(
        TEXT,
        _sum("gap_reason"),
        "Reasons for the gap, with the number of calls or sessions: zero-priced, subscription, not "
        "metered, price changed, unknown model, cache price missing, usage unknown.",
    ),
}
_COST: Columns = {"cost": Column(NUMBER, _sum("cost"), "USD, as stored by the server.")}
USAGE: Columns = {**_TITLE, **_COST, **_INCLUSIVE, **_SUMS}


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
    """Return a frame of usage, one row per session, day, model, ..., or per combination of these.

    By session, root, project or directory no messages are downloaded, so turns, calls, errors and
    unknown are NA. By session there are also `title`, `subagents` (the number below it) and
    `cost_inclusive` (USD including all of them). By tool, tokens and cost are NA, since they belong
    to steps. A message counts at its start time.

    Args:
        client: The server.
        by: One or more of total, day, week, month, session, root, project, directory, agent,
            provider, model, variant, tool. `model` adds `provider`, since two providers may have a
            model of the same name.
        since: Start of the period: `7d`, `12h`, `30m` (ago), a date or time in `tz`, a date or
            datetime.
        until: End of the period, exclusive.
        tz: Time zone of days and dates (`Europe/Berlin`); default: this machine's.
        sessions: Sessions by value, id or title; default: all of the client's project.
        everywhere: Include the sessions of all directories that the server knows.
        keep_duplicates: Count messages that forks copied, too.
        prices: A price list, `{"provider/model": {"input": 3, "output": 15, "cache_read": 0.3,
            "cache_write": 3.75}}` in USD per million tokens; default: the server's own.
        cache: Cache for the rows of unchanged sessions; False neither reads nor writes one.
        refresh: Read all messages again.
        progress: Show a progress bar if it takes a while.

    Returns:
        A frame, the most expensive rows first, or by time. Its `attrs` have `total` (a dict in
        which nothing counts twice), `tz`, and `warnings`, one sentence each.

    Raises:
        UnknownNameError: There is no such key, time zone or session.
        ValueError: A time or a price can't be read, or `until` is not later than `since`.
    """
    query = parse_query(by, since, until, tz, keep_duplicates)
    own_prices = None if prices is None else prices_from_mapping(prices)
    chosen = None if sessions is None else resolve_sessions(client, sessions)
    with ThreadPoolExecutor(1) as pool:
        price_warnings: list[str] = []
        models = pool.submit(_models, client, price_warnings) if own_prices is None else None
        everyone = client.sessions(everywhere=everywhere or chosen is not None)
        price_list = prices_from_models(models.result()) if models else own_prices or {}
    collector = UsageCollector(
        client,
        everyone,
        price_list,
        cache=resolve_cache(cache),
        refresh=refresh,
        progress=progress,
    )
    entries = collector.entries(query, everyone if chosen is None else chosen)
    frame = _frame(query, entries, everyone)
    frame.attrs["total"] = _total(entries)
    frame.attrs["tz"] = str(query.tz)
    frame.attrs["warnings"] = [*collector.warnings, *price_warnings]
    return frame


def _models(client: Client, warnings: list[str]) -> tuple[Model, ...]:
    """Read the server's models with their prices; append a warning if that fails."""

    def warn(error: str) -> None:
        warnings.append(f"No list price is known: the server's models can't be read: {error}")

    return optional(lambda: client.run(client.dialect.prices(client.directory)), (), warn)


@gc_paused()
def _frame(
    query: UsageQuery, entries: Sequence[UsageEntry], sessions: Sequence[Session]
) -> pd.DataFrame:
    """Build a frame with one row per sum."""
    keys: Columns = {
        name: Column(DAY if name in PERIODS else TEXT, _key(position), f"The {name}.")
        for position, name in enumerate(query.by)
    }
    titles = {s.id: s.title for s in sessions}
    sums = sums_by_key(entries) or ([] if query.by else [sum_of((), ())])
    by_session = query.by == ("session",)
    inclusive = sums_with_subagents(sums, sessions) if by_session else {}
    id_position = next((n for n, name in enumerate(query.by) if name in ("session", "root")), None)
    rows = [
        UsageRow(
            row_sum,
            inclusive[row_sum.key[0]] if by_session else None,
            None if id_position is None else titles.get(row_sum.key[id_position]),
        )
        for row_sum in sorted(sums, key=_order(query))
    ]
    title = {} if id_position is None else _TITLE
    return frame_from_rows(
        {**keys, **title, **_COST, **(_INCLUSIVE if by_session else {}), **_SUMS}, rows
    )


def _key(position: int) -> Callable[[UsageRow], Any]:
    return lambda row: row.sum.key[position]


def _order(query: UsageQuery) -> Callable[[UsageSum], Any]:
    """Return a sort key: by time if the query has a period key, then the highest cost first."""
    times = [position for position, name in enumerate(query.by) if name in PERIODS]

    def order(row_sum: UsageSum) -> Any:
        return (
            [str(row_sum.key[position]) for position in times],
            -(row_sum.cost or 0),
            str(row_sum.key),
        )

    return order


def _total(entries: Sequence[UsageEntry]) -> dict[str, Any]:
    """Add up all entries: inclusive sums would count subagents twice."""
    row = UsageRow(sum_of((), entries))
    return {name: column.read(row) for name, column in {**_COST, **_SUMS}.items()}
