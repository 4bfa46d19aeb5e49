"""Sums of usage: entries with the same key become one sum, without rounding errors.

An entry is a model call, a prompt, a tool call, or an entire session. An unknown value is None; it
makes the sum unknown, or is counted in a column of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..core.model import Session, Usage
from .prices import ListPrice

TOKENS = ("input", "output", "reasoning", "cache_read", "cache_write")
_DECIMALS = 10  # of USD; further digits are floating-point error


class UsageEntry(NamedTuple):
    """The usage of a model call, a prompt, a tool call, or an entire session."""

    key: tuple[Any, ...]
    session: str
    usage: Usage | None = None
    price: ListPrice | None = None
    turns: int | None = 0
    calls: int | None = 0
    errors: int | None = 0
    unknown: int | None = 0
    copies: int | None = 0


class UsageSum(NamedTuple):
    """The sum of entries with the same key.

    A count is None if it is unknown for any entry. Tokens and cost cover the calls for which they
    are known, and are None if there is no such call.

    Attributes:
        sessions: Number of sessions that contribute, not counting copies.
        cost: USD as stored.
        cost_listed: USD at list prices, for the calls with a known price.
        gap: Listed minus stored cost, for the calls where both are known.
        gap_reason: Reasons for the gap, with the number of entries.
        cache_share: Share of the prompt tokens that came from the cache.
    """

    key: tuple[Any, ...]
    entries: Sequence[UsageEntry]
    sessions: int
    turns: int | None
    calls: int | None
    errors: int | None
    unknown: int | None
    copies: int | None
    input: int | None
    output: int | None
    reasoning: int | None
    cache_read: int | None
    cache_write: int | None
    cache_share: float | None
    cost: float | None
    cost_listed: float | None
    gap: float | None
    gap_reason: str | None


def sum_of(key: tuple[Any, ...], entries: Sequence[UsageEntry]) -> UsageSum:
    """Add up entries."""
    return _sum_of_one(key, entries) if len(entries) == 1 else _sum_of_many(key, entries)


def _sum_of_one(key: tuple[Any, ...], entries: Sequence[UsageEntry]) -> UsageSum:
    """Convert a single entry. Faster than `_sum_of_many`; usage by session has thousands."""
    (entry,) = entries
    default = 0 if entry.calls == 0 else None
    used = entry.usage or Usage(default, default, default, default, default, default)
    prompts = (used.input or 0) + (used.cache_read or 0) + (used.cache_write or 0)
    gap = _gap(entry)
    return UsageSum(
        key,
        entries,
        sessions=int(not entry.copies or entry.usage is not None),
        turns=entry.turns,
        calls=entry.calls,
        errors=entry.errors,
        unknown=entry.unknown,
        copies=entry.copies,
        input=used.input,
        output=used.output,
        reasoning=used.reasoning,
        cache_read=used.cache_read,
        cache_write=used.cache_write,
        cache_share=(used.cache_read or 0) / prompts if prompts else None,
        cost=None if used.cost is None else exact_sum([used.cost]),
        cost_listed=None
        if entry.price is None or entry.price.cost is None
        else exact_sum([entry.price.cost]),
        gap=exact_sum(gap) if gap else None,
        gap_reason=_reason_counts([entry.price.reason])
        if entry.price is not None and entry.price.reason is not None
        else None,
    )


def _sum_of_many(key: tuple[Any, ...], entries: Sequence[UsageEntry]) -> UsageSum:
    usages = [e.usage for e in entries if e.usage is not None]
    prices = [e.price for e in entries if e.price is not None]
    gaps = [x for e in entries for x in _gap(e)]
    # 0 if there was no call; None if there were calls of unknown usage.
    default = 0 if all(e.calls == 0 for e in entries) else None
    uncached = _total([u.input for u in usages], default)
    read = _total([u.cache_read for u in usages], default)
    written = _total([u.cache_write for u in usages], default)
    prompts = (uncached or 0) + (read or 0) + (written or 0)
    costs = [u.cost for u in usages if u.cost is not None]
    listed = [p.cost for p in prices if p.cost is not None]
    reasons = [p.reason for p in prices if p.reason is not None]
    return UsageSum(
        key,
        entries,
        sessions=len({e.session for e in entries if not e.copies or e.usage}),
        turns=_count([e.turns for e in entries]),
        calls=_count([e.calls for e in entries]),
        errors=_count([e.errors for e in entries]),
        unknown=_count([e.unknown for e in entries]),
        copies=_count([e.copies for e in entries]),
        input=uncached,
        output=_total([u.output for u in usages], default),
        reasoning=_total([u.reasoning for u in usages], default),
        cache_read=read,
        cache_write=written,
        cache_share=(read or 0) / prompts if prompts else None,
        cost=exact_sum(costs) if costs else default,
        cost_listed=exact_sum(listed) if listed else None,
        gap=exact_sum(gaps) if gaps else None,
        gap_reason=_reason_counts(reasons) if reasons else None,
    )


def _gap(entry: UsageEntry) -> tuple[float, ...]:
    """Return the listed cost and the negative stored cost; () unless both are known."""
    list_cost = entry.price.cost if entry.price else None
    stored = entry.usage.cost if entry.usage else None
    return () if list_cost is None or stored is None else (list_cost, -stored)


def _count(values: list[int | None]) -> int | None:
    return None if None in values else sum(values)  # type: ignore[arg-type]


def _total(values: list[int | None], default: int | None) -> int | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else default


def _reason_counts(reasons: list[str]) -> str:
    return ", ".join(f"{reason} ({n})" for reason, n in Counter(reasons).most_common())


def exact_sum(costs: Iterable[float]) -> float:
    """Add up costs without floating-point error."""
    return round(math.fsum(costs), _DECIMALS) + 0.0  # never -0.0


def sums_by_key(entries: Iterable[UsageEntry]) -> list[UsageSum]:
    """Add up entries by key, in order of the keys' first appearance."""
    entries_by_key: dict[tuple[Any, ...], list[UsageEntry]] = {}
    for entry in entries:
        entries_by_key.setdefault(entry.key, []).append(entry)
    return [sum_of(key, group) for key, group in entries_by_key.items()]


def sums_with_subagents(
    sums: Sequence[UsageSum], sessions: Iterable[Session]
) -> dict[str, UsageSum]:
    """Return each session's sum including all subagents below it, by session id."""
    parents = {s.id: s.parent for s in sessions}
    subagent_entries: dict[str, list[UsageEntry]] = {}
    for usage_sum in sums:
        (session,) = usage_sum.key
        visited, ancestor = {session}, parents.get(session)
        while ancestor is not None and ancestor not in visited:
            visited.add(ancestor)
            subagent_entries.setdefault(ancestor, []).extend(usage_sum.entries)
            ancestor = parents.get(ancestor)
    inclusive: dict[str, UsageSum] = {}
    for usage_sum in sums:
        (session,) = usage_sum.key
        below = subagent_entries.get(session)
        inclusive[session] = (
            sum_of(usage_sum.key, [*usage_sum.entries, *below]) if below else usage_sum
        )
    return inclusive
