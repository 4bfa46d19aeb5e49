"""What a wire value must be to count; anything else is as good as absent."""

from __future__ import annotations

import math
from typing import Any


def string(value: Any) -> str:
    """A text, "" for anything else."""
    return value if isinstance(value, str) else ""


def integer(value: Any) -> int | None:
    """A whole number, the whole part of another one, None for anything else."""
    found = number(value)
    return None if found is None else value if isinstance(value, int) else int(found)


def number(value: Any) -> float | None:
    """A finite number, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value
