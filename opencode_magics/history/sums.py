"""Adds up usage: entries with the same key become one sum, exactly and without pretending.

An entry is a call, a prompt, a tool call, or a whole session. What nobody knows is None and stays
unknown in the sum, or is counted there in a column of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..core.model import Session, Usage
from .prices import ListPrice

TOKENS = ("input", "output", "reasoning", "cache_read", "cache_write")
_DUST = 10  # decimal places of USD beyond which floats only have dust


class UsageEntry(NamedTuple):
    """What adds up: a call, a prompt, a tool call, or a whole session."""

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
    """Entries added up.

    A count that one of the entries does not know, nobody knows. Tokens and cost are of those calls
    where they are known, and None if that is none.

    Attributes:
        sessions: How many sessions have a part in it, copies apart.
        cost: USD as stored.
        cost_listed: USD by the price list, of the calls where it can be known.
        gap: Listed less stored, of the calls where both are known.
        gap_reason: Why they differ, and for how many entries.
        cache_share: The part of the prompts' tokens that came from the cache.
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
    """The sum of some entries."""
    return _alone(key, entries) if len(entries) == 1 else _together(key, entries)


def _alone(key: tuple[Any, ...], entries: Sequence[UsageEntry]) -> UsageSum:
    """A sum of one: a line per session is made of a thousand of these."""
    (entry,) = entries
    nothing = 0 if entry.calls == 0 else None
    used = entry.usage or Usage(nothing, nothing, nothing, nothing, nothing, nothing)
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
        gap_reason=_counted([entry.price.reason])
        if entry.price is not None and entry.price.reason is not None
        else None,
    )


def _together(key: tuple[Any, ...], entries: Sequence[UsageEntry]) -> UsageSum:
    usages = [e.usage for e in entries if e.usage is not None]
    prices = [e.price for e in entries if e.price is not None]
    gaps = [x for e in entries for x in _gap(e)]
    # No call at all, rather than calls of which nothing is known.
    nothing = 0 if all(e.calls == 0 for e in entries) else None
    fresh = _total([u.input for u in usages], nothing)
    read = _total([u.cache_read for u in usages], nothing)
    written = _total([u.cache_write for u in usages], nothing)
    prompts = (fresh or 0) + (read or 0) + (written or 0)
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
        input=fresh,
        output=_total([u.output for u in usages], nothing),
        reasoning=_total([u.reasoning for u in usages], nothing),
        cache_read=read,
        cache_write=written,
        cache_share=(read or 0) / prompts if prompts else None,
        cost=exact_sum(costs) if costs else nothing,
        cost_listed=exact_sum(listed) if listed else None,
        gap=exact_sum(gaps) if gaps else None,
        gap_reason=_counted(reasons) if reasons else None,
    )


def _gap(entry: UsageEntry) -> tuple[float, ...]:
    """The listed and, negative, the stored cost, where both are known."""
    now = entry.price.cost if entry.price else None
    then = entry.usage.cost if entry.usage else None
    return () if now is None or then is None else (now, -then)


def _count(values: list[int | None]) -> int | None:
    return None if None in values else sum(values)  # type: ignore[arg-type]


def _total(values: list[int | None], nothing: int | None) -> int | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else nothing


def _counted(reasons: list[str]) -> str:
    return ", ".join(f"{why} ({n})" for why, n in Counter(reasons).most_common())


def exact_sum(costs: Iterable[float]) -> float:
    """A sum without the dust of floats."""
    return round(math.fsum(costs), _DUST) + 0.0  # never -0.0


def sums_by_key(entries: Iterable[UsageEntry]) -> list[UsageSum]:
    """Entries of the same key added up, in the order in which the keys come."""
    found: dict[tuple[Any, ...], list[UsageEntry]] = {}
    for entry in entries:
        found.setdefault(entry.key, []).append(entry)
    return [sum_of(key, some) for key, some in found.items()]


def sums_with_subagents(
    sums: Sequence[UsageSum], sessions: Iterable[Session]
) -> dict[str, UsageSum]:
    """Per session its own sum together with those of all subagents below it."""
    parents = {s.id: s.parent for s in sessions}
    below: dict[str, list[UsageEntry]] = {}
    for one in sums:
        (own,) = one.key
        seen, above = {own}, parents.get(own)
        while above is not None and above not in seen:
            seen.add(above)
            below.setdefault(above, []).extend(one.entries)
            above = parents.get(above)
    whole: dict[str, UsageSum] = {}
    for one in sums:
        (own,) = one.key
        whole[own] = sum_of(one.key, [*one.entries, *below[own]]) if own in below else one
    return whole
