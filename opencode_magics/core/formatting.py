"""Numbers and texts as people read them: dollars, counts with nouns, durations, abbreviate texts.

They look the same everywhere: in a cell, in a picture, in an error, in a `repr`.
"""

from __future__ import annotations

_MOST = 9  # decimal places of USD


def format_usd(cost: float | None, distinct_from: float | None = None) -> str:
    """US dollars: `$12.50`, `$0.0139`, and tiny ones with two digits that count: `$0.0000041`.

    Args:
        cost: USD; None is unknown, and said to be.
        distinct_from: An amount that it stands next to, and is not rounded to look like.
    """
    if not cost:
        return "cost unknown" if cost is None else "$0"
    size = abs(cost)
    digits = 2 if size >= 1 else 4 if size >= 0.001 else -int(f"{size:e}".split("e")[1]) + 1
    if distinct_from is not None and distinct_from != cost:
        while digits < _MOST and round(cost, digits) == round(distinct_from, digits):
            digits += 1
    whole, _, cents = f"{size:,.{digits}f}".partition(".")
    return f"{'-' if cost < 0 else ''}${whole}.{cents.rstrip('0'):0<2}"


def pluralize(number: int, noun: str) -> str:
    """A number and its noun, in the plural where that is right: `1 step`, `2,000 steps`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def seconds_between(start: int | None, end: int | None) -> float | None:
    """Seconds between two times (ms); None where one is unknown, or a clock ran backwards."""
    if start is None or end is None or end < start:
        return None
    return (end - start) / 1000


def shorten(text: str, limit: int) -> str:
    """The text cut to at most `limit` characters; the last is an ellipsis if any are left out."""
    return text if len(text) <= limit else f"{text[: max(0, limit - 1)].rstrip()}…"


def in_one_line(text: str, limit: int) -> str:
    """The text in one line of at most `limit` characters, with single spaces."""
    return shorten(" ".join(text.split()), limit)


def without_middle(text: str, limit: int, note: str = "… {:,} characters left out …") -> str:
    """The text with `limit` characters of its beginning and end; `note` counts the others."""
    if len(text) <= limit:
        return text
    head = limit * 4 // 5
    return f"{text[:head]}\n{note.format(len(text) - limit)}\n{text[head - limit :]}"
