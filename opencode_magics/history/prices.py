"""The cost of model calls at list prices, and the reason if it differs from the stored cost.

The price list is the server's own, which needs no network access, or a mapping. The stored cost
remains the true one: a subscription stores 0, and a later price change doesn't alter an invoice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple

from ..core.model import Model, PriceTier, Usage

_PER = 1e6  # tokens per price unit
_TOLERANCE = 1e-9  # USD


class ListPrice(NamedTuple):
    """A cost at list prices (None if unknown), and the reason if it isn't the stored cost."""

    cost: float | None
    reason: str | None


class Price(NamedTuple):
    """A model's prices: the base tier, and tiers for longer prompts in ascending order.

    `over_200k` is what 1.18.33 charges above 200,000 tokens if no tier is exceeded.
    """

    base: PriceTier
    tiers: tuple[PriceTier, ...] = ()
    over_200k: PriceTier | None = None

    def tier(self, prompt_tokens: int) -> PriceTier:
        """Return the tier for a prompt of this length."""
        return next((t for t in reversed(self.tiers) if prompt_tokens > t.above), self.base)


def prices_from_models(models: Iterable[Model]) -> dict[tuple[str, str], Price]:
    """Build a price list from the server's models, by provider and model id."""
    return {
        (m.provider, m.id): Price(
            PriceTier(0, m.price_input, m.price_output, m.price_cache_read, m.price_cache_write),
            m.tiers,
            m.over_200k,
        )
        for m in models
    }


def prices_from_mapping(prices: Mapping[str, Mapping[str, float]]) -> dict[tuple[str, str], Price]:
    """Read a list like `{"provider/model": {"input": 3, "output": 15, "cache_read": 0.3}}`.

    Raises:
        ValueError: A name isn't `provider/model`, a kind of price is unknown, or a price isn't a
            number of at least 0.
    """
    if not isinstance(prices, Mapping):
        raise ValueError(f"{_EXPECTED}, not {prices!r}")
    price_list: dict[tuple[str, str], Price] = {}
    for name, values in prices.items():
        provider, _, model = name.partition("/") if isinstance(name, str) else ("", "", "")
        if not (provider and model and isinstance(values, Mapping) and _are_prices(values)):
            raise ValueError(f"{_EXPECTED}, not {{{name!r}: {values!r}}}")
        tier = {kind: None if price is None else float(price) for kind, price in values.items()}
        price_list[provider, model] = Price(PriceTier(0, **tier))
    return price_list


def _are_prices(values: Mapping[str, Any]) -> bool:
    numbers = [price for price in values.values() if price is not None]
    return values.keys() <= _KINDS and all(map(_is_price, numbers))


def _is_price(value: object) -> bool:
    if not isinstance(value, Real | Decimal) or isinstance(value, bool):
        return False
    try:
        return 0 <= float(value) < math.inf
    except OverflowError:  # 10 ** 400
        return False


_KINDS = {"input", "output", "cache_read", "cache_write"}
_EXPECTED = (
    f"prices must be {{'provider/model': {{{', '.join(sorted(_KINDS))}}}}}, "
    "in USD per million tokens"
)


def list_price(price: Price | None, usage: Usage, stored: float | None) -> ListPrice:
    """Compute the cost of a call at list prices; reasoning costs as much as output."""
    if usage.input is None or usage.output is None:
        return ListPrice(None, "usage unknown")
    free = stored == 0 and bool(usage.total)
    if price is None:
        return ListPrice(None, "not metered" if free else "unknown model")
    read, written = usage.cache_read or 0, usage.cache_write or 0
    tier = price.tier(usage.input + read + written)
    if tier.input is None or tier.output is None:
        return ListPrice(None, "unknown model")
    cost = _cost(usage, tier)
    if not tier.input and not tier.output:
        return ListPrice(cost, "zero-priced" if stored == 0 else "price changed")
    if free and cost:
        return ListPrice(cost, "subscription")
    if (read and not tier.cache_read) or (written and not tier.cache_write):
        return ListPrice(cost, "cache price missing")
    if stored is None:
        return ListPrice(cost, "stored cost unknown")
    if abs(cost - stored) < _TOLERANCE:
        return ListPrice(cost, None)
    legacy = price.over_200k
    over = usage.input + read + written > 200_000
    if over and legacy and abs(_cost(usage, legacy) - stored) < _TOLERANCE:
        return ListPrice(cost, "the server charged the over-200k price")
    return ListPrice(cost, "price changed")


def _cost(usage: Usage, tier: PriceTier) -> float:
    return (
        (usage.input or 0) * (tier.input or 0)
        + ((usage.output or 0) + (usage.reasoning or 0)) * (tier.output or 0)
        + (usage.cache_read or 0) * (tier.cache_read or 0)
        + (usage.cache_write or 0) * (tier.cache_write or 0)
    ) / _PER
