"""Formatting for people: dollars, counts with nouns, durations, shortened texts.

Used everywhere (cells, pictures, errors, `repr`), so that values look the same.
"""

from __future__ import annotations

_MAX_DIGITS = 9  # decimal places of USD


def format_usd(cost: float | None, distinct_from: float | None = None) -> str:
    """Format US dollars: `$12.50`, `$0.0139`; tiny amounts with two significant digits.

    Args:
        cost: USD; None is unknown and formatted as "cost unknown".
        distinct_from: An amount shown next to it; if the two differ, they are not rounded to the
            same text.
    """
    if not cost:
        return "cost unknown" if cost is None else "$0"
    size = abs(cost)
    digits = 2 if size >= 1 else 4 if size >= 0.001 else -int(f"{size:e}".split("e")[1]) + 1
    if distinct_from is not None and distinct_from != cost:
        while digits < _MAX_DIGITS and round(cost, digits) == round(distinct_from, digits):
            digits += 1
    dollars, _, cents = f"{size:,.{digits}f}".partition(".")
    return f"{'-' if cost < 0 else ''}${dollars}.{cents.rstrip('0'):0<2}"


def pluralize(number: int, noun: str) -> str:
    """Format a number and its noun, in the plural unless it is 1: `1 step`, `2,000 steps`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def seconds_between(start: int | None, end: int | None) -> float | None:
    """Return the seconds between two times (ms); None if one is unknown or they are reversed."""
    if start is None or end is None or end < start:
        return None
    return (end - start) / 1000


def shorten(text: str, limit: int) -> str:
    """Cut a text to at most `limit` characters; a cut text ends with an ellipsis."""
    return text if len(text) <= limit else f"{text[: max(0, limit - 1)].rstrip()}…"


def in_one_line(text: str, limit: int) -> str:
    """Put a text on one line of at most `limit` characters, with single spaces."""
    return shorten(" ".join(text.split()), limit)


def without_middle(text: str, limit: int, note: str = "… {:,} characters left out …") -> str:
    """Cut the middle out of a text, leaving `limit` characters; `note` says how many were cut."""
    if len(text) <= limit:
        return text
    head = limit * 4 // 5
    return f"{text[:head]}\n{note.format(len(text) - limit)}\n{text[head - limit :]}"
