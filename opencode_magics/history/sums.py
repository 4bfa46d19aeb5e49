"""Adds up usage: entries with the same key become one sum, exactly and without pretending.

An entry is a call, a prompt, a tool call, or a whole session. What nobody knows is None and stays
unknown in the sum, or is counted there in a column of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..model import Session, Usage
from .prices import Listed

_DUST = 10  # decimal places of USD beyond which floats only have dust


class Entry(NamedTuple):
    """What adds up: a call, a prompt, a tool call, or a whole session."""

    key: tuple[Any, ...]
    session: str
    usage: Usage | None = None
    price: Listed | None = None
    turns: int | None = 0
    calls: int | None = 0
    errors: int | None = 0
    unknown: int | None = 0
    copies: int = 0


@dataclass
class Sum:
    """Entries added up; what one of them does not know, the sum does not know."""

    key: tuple[Any, ...]
    entries: list[Entry] = field(default_factory=list)

    def count(self, name: str) -> int | None:
        """The sum of a count."""
        values = [getattr(e, name) for e in self.entries]
        return None if None in values else sum(values)

    def used(self, name: str) -> int | None:
        """Tokens of a kind, as far as they are known; None if of no call."""
        known = [v for u in self._usages if (v := getattr(u, name)) is not None]
        return sum(known) if known or self._nothing_used else None

    @property
    def sessions(self) -> int:
        """How many sessions have a part in it, copies apart."""
        return len({e.session for e in self.entries if not e.copies or e.usage})

    @property
    def cost(self) -> float | None:
        """USD as stored, as far as it is known; None if of no call."""
        known = [u.cost for u in self._usages if u.cost is not None]
        return exact(known) if known or self._nothing_used else None

    @property
    def cost_listed(self) -> float | None:
        """USD by the price list, of the calls where it can be known."""
        known = [p.cost for p in self._prices if p.cost is not None]
        return exact(known) if known else None

    @property
    def gap(self) -> float | None:
        """Listed less stored, of the calls where both are known."""
        both = [
            (e.price.cost, e.usage.cost)
            for e in self.entries
            if e.price and e.usage and e.price.cost is not None and e.usage.cost is not None
        ]
        return exact(x for now, then in both for x in (now, -then)) if both else None

    @property
    def gap_reason(self) -> str | None:
        """Why stored and listed differ, and for how many entries."""
        reasons = Counter(p.reason for p in self._prices if p.reason)
        return ", ".join(f"{why} ({n})" for why, n in reasons.most_common()) or None

    @property
    def cache_share(self) -> float | None:
        """The part of the prompts' tokens that came from the cache."""
        parts = [self.used(name) for name in ("input", "cache_read", "cache_write")]
        whole = sum(p or 0 for p in parts)
        return (parts[1] or 0) / whole if whole else None

    @property
    def _usages(self) -> list[Usage]:
        return [e.usage for e in self.entries if e.usage is not None]

    @property
    def _prices(self) -> list[Listed]:
        return [e.price for e in self.entries if e.price is not None]

    @property
    def _nothing_used(self) -> bool:
        """No call at all, rather than calls of which nothing is known."""
        return all(e.calls == 0 or e.copies for e in self.entries)


def exact(costs: Iterable[float]) -> float:
    """A sum without the dust of floats."""
    return round(math.fsum(costs), _DUST)


def summed(entries: Iterable[Entry]) -> list[Sum]:
    """Entries of the same key added up, in the order in which the keys come."""
    sums: dict[tuple[Any, ...], Sum] = {}
    for entry in entries:
        sums.setdefault(entry.key, Sum(entry.key)).entries.append(entry)
    return list(sums.values())


def rolled_up(sums: Sequence[Sum], sessions: Iterable[Session]) -> dict[str, Sum]:
    """Per session its own sum and those of all subagents below it."""
    parents = {s.id: s.parent for s in sessions}
    whole = {s.key[0]: Sum(s.key, list(s.entries)) for s in sums}
    for one in sums:
        seen, above = {one.key[0]}, parents.get(one.key[0])
        while above is not None and above not in seen:
            seen.add(above)
            if above in whole:
                whole[above].entries.extend(one.entries)
            above = parents.get(above)
    return whole
