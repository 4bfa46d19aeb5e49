"""Checked reading of wire values: a value of the wrong type counts as absent.

Also reads the objects that are the same in both generations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..core.model import FileDiff, Usage

# Larger values are treated as errors.
_MAX_INTEGER = 2**63 - 1  # a 64-bit column
_MAX_TIMESTAMP = 253_402_300_799_999  # the end of the year 9999
_MAX_USD = 1e12


def string(value: Any) -> str:
    """Return a string, "" for anything else."""
    return value if isinstance(value, str) else ""


def number(value: Any) -> float | None:
    """Return a finite number, None for anything else."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def integer(value: Any) -> int | None:
    """Return the integer part of a number, None for anything else."""
    read = number(value)
    return int(read) if read is not None and -_MAX_INTEGER <= read <= _MAX_INTEGER else None


def count(value: Any) -> int | None:
    """Return a count, None for an invalid value."""
    if value is None or (type(value) is int and 0 <= value <= _MAX_INTEGER):  # the usual case
        return value
    read = integer(value)
    return read if read is not None and read >= 0 else None


def timestamp(value: Any) -> int | None:
    """Return a time in ms since the epoch, None for an invalid value."""
    if value is None or (type(value) is int and 0 <= value <= _MAX_TIMESTAMP):
        return value
    read = integer(value)
    return read if read is not None and 0 <= read <= _MAX_TIMESTAMP else None


def cost_usd(value: Any) -> float | None:
    """Return a cost in USD, None for an invalid value."""
    read = number(value)
    return read if read is not None and 0 <= read <= _MAX_USD else None


def optional_string(value: Any) -> str | None:
    """Return a string, None for anything else."""
    return value if isinstance(value, str) else None


def required_string(value: Any) -> str:
    """Return a required string, such as an id.

    Raises:
        TypeError: It is not a string.
    """
    if not isinstance(value, str):
        raise TypeError("expected a string for an id")
    return value


def as_dict(value: Any) -> dict[str, Any]:
    """Return an object, an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return a list.

    Raises:
        TypeError: It is not a list.
    """
    if not isinstance(value, list):
        raise TypeError("expected a list")
    return value


def usage(w: dict[str, Any]) -> Usage | None:
    """Read tokens and cost; None if both are absent."""
    tokens, cost = w.get("tokens"), w.get("cost")
    if tokens is None and cost is None:
        return None
    tokens = as_dict(tokens)
    cache = as_dict(tokens.get("cache"))
    return Usage(
        input=count(tokens.get("input")),
        output=count(tokens.get("output")),
        reasoning=count(tokens.get("reasoning")),
        cache_read=count(cache.get("read")),
        cache_write=count(cache.get("write")),
        cost=cost_usd(cost),
    )


def call_usage(w: dict[str, Any]) -> Usage | None:
    """Read the usage of a model call; None if it consists of placeholder zeros.

    A message starts with zeros, and they stay if it is aborted or fails, whatever was billed, or if
    the provider reports nothing. No real call uses 0 tokens.
    """
    reported = usage(w)
    return None if reported and reported.empty else reported


def file_diffs(
    values: Any, patch: Callable[[dict[str, Any]], str] = lambda w: string(w.get("patch"))
) -> tuple[FileDiff, ...]:
    """Read changed files; `patch` reads the patch of one."""
    listed = values if isinstance(values, list) else ()
    return tuple(_file_diff(w, patch(w)) for w in listed if isinstance(w, dict))


def _file_diff(w: dict[str, Any], patch: str) -> FileDiff:
    file, before = next((n for n in map(string, map(w.get, _NAMES)) if n), ""), ""
    status = _STATUSES.get(string(w.get("status")) or string(w.get("type")))
    if status == "renamed":
        # `relativePath` is that of the destination, `filePath` the source in full (1.18.33).
        root = string(w.get("movePath")).removesuffix(file)
        before = string(w.get("filePath")).removeprefix(root)
    counts = integer(w.get("additions")), integer(w.get("deletions"))
    return FileDiff(file, patch, *counts, status, before)


_NAMES = ("file", "relativePath", "filePath")
_STATUSES: dict[str, Any] = {
    "added": "added",
    "modified": "modified",
    "deleted": "deleted",
    "add": "added",
    "update": "modified",
    "delete": "deleted",
    "move": "renamed",
}
