"""What calls would cost by a price list, beside what the server stored; and why they differ.

The list is the server's own, which needs no network, or a mapping. The stored cost stays what it
is: a subscription stores 0, and a price that changed since makes no invoice wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple

from ..core.model import Model, PriceTier, Usage

PER = 1e6  # tokens that a price is for
_SAME = 1e-9  # USD


class ListPrice(NamedTuple):
    """A cost by the list (None if it can't be known), and why it isn't the stored one."""

    cost: float | None
    reason: str | None


class Price(NamedTuple):
    """A model's prices: of calls with a short prompt, and of longer ones."""

    base: PriceTier
    tiers: tuple[PriceTier, ...] = ()

    def of(self, prompt: int) -> PriceTier:
        """Those that hold for a prompt of so many tokens."""
        return next((t for t in reversed(self.tiers) if prompt > t.above), self.base)


def prices_from_models(models: Iterable[Model]) -> dict[tuple[str, str], Price]:
    """The server's own list."""
    return {
        (m.provider, m.id): Price(
            PriceTier(0, m.price_input, m.price_output, m.price_cache_read, m.price_cache_write),
            m.tiers,
        )
        for m in models
    }


def prices_from_mapping(prices: Mapping[str, Mapping[str, float]]) -> dict[tuple[str, str], Price]:
    """A list like `{"provider/model": {"input": 3, "output": 15, "cache_read": 0.3}}`.

    Raises:
        ValueError: A name is no `provider/model`, a price no known kind, or no number from 0 on.
    """
    if not isinstance(prices, Mapping):
        raise ValueError(f"{_TAKES}, not {prices!r}")
    read: dict[tuple[str, str], Price] = {}
    for name, given in prices.items():
        provider, _, model = name.partition("/") if isinstance(name, str) else ("", "", "")
        if not (provider and model and isinstance(given, Mapping) and _are_prices(given)):
            raise ValueError(f"{_TAKES}, not {{{name!r}: {given!r}}}")
        numbers = {kind: None if price is None else float(price) for kind, price in given.items()}
        read[provider, model] = Price(PriceTier(0, **numbers))
    return read


def _are_prices(given: Mapping[str, Any]) -> bool:
    numbers = [price for price in given.values() if price is not None]
    return given.keys() <= _KINDS and all(
        isinstance(n, Real | Decimal) and not isinstance(n, bool) and 0 <= float(n) < math.inf
        for n in numbers
    )


_KINDS = {"input", "output", "cache_read", "cache_write"}
_TAKES = (
    f"prices takes {{'provider/model': {{{', '.join(sorted(_KINDS))}}}}} in USD per million tokens"
)


def listed(price: Price | None, usage: Usage, stored: float | None) -> ListPrice:
    """What one call costs by the list, reasoning at the output price as OpenCode bills it."""
    if usage.input is None or usage.output is None:
        return ListPrice(None, "usage unknown")
    free = stored == 0 and bool(usage.total)
    if price is None:
        return ListPrice(None, "not metered" if free else "unknown model")
    read, written = usage.cache_read or 0, usage.cache_write or 0
    now = price.of(usage.input + read + written)
    if now.input is None or now.output is None:
        return ListPrice(None, "unknown model")
    cost = (
        usage.input * now.input
        + (usage.output + (usage.reasoning or 0)) * now.output
        + read * (now.cache_read or 0)
        + written * (now.cache_write or 0)
    ) / PER
    if not now.input and not now.output:
        return ListPrice(cost, "zero-priced" if stored == 0 else "price changed")
    if free and cost:
        return ListPrice(cost, "subscription")
    if (read and not now.cache_read) or (written and not now.cache_write):
        return ListPrice(cost, "cache price missing")
    if stored is None:
        return ListPrice(cost, "stored cost unknown")
    return ListPrice(cost, None if abs(cost - stored) < _SAME else "price changed")
