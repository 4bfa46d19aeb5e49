"""What a wire value must be to count; anything else is as good as absent."""

from __future__ import annotations

import math
from typing import Any

# Beyond these a number is a mistake: what a 64-bit column holds, and the end of the year 9999.
_MOST = 2**63 - 1
_LATEST = 253_402_300_799_999


def string(value: Any) -> str:
    """A text, "" for anything else."""
    return value if isinstance(value, str) else ""


def number(value: Any) -> float | None:
    """A finite number, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def integer(value: Any) -> int | None:
    """A whole number, the whole part of another one, None for anything else."""
    found = number(value)
    return None if found is None else value if isinstance(value, int) else int(found)


def count(value: Any) -> int | None:
    """How many there are, None for what can't be a count."""
    if value is None or (type(value) is int and 0 <= value <= _MOST):  # nearly always
        return value
    found = integer(value)
    return found if found is not None and 0 <= found <= _MOST else None


def moment(value: Any) -> int | None:
    """A time in ms since the epoch, None for what can't be one."""
    if value is None or (type(value) is int and 0 <= value <= _LATEST):
        return value
    found = integer(value)
    return found if found is not None and 0 <= found <= _LATEST else None


def money(value: Any) -> float | None:
    """A cost, None for what can't be one."""
    found = number(value)
    return found if found is not None and found >= 0 else None


def fields(value: Any) -> dict[str, Any]:
    """An object, an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def elements(value: Any) -> list[Any]:
    """A list.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(value, list):
        raise TypeError("a list was expected")
    return value
