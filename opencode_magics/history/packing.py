"""Encode a session's columns compactly, for the cache.

JSON alone takes five times as long to read, so numbers are written in their memory format, texts
are concatenated, and a column with one value in all rows (most columns) is stored as that value.
"""

from __future__ import annotations

import json
from array import array
from itertools import accumulate, pairwise
from math import nan
from typing import Any, NamedTuple

from ..core.columns import CATEGORY, COUNT, NUMBER, OBJECT, TEXT, TIME, ColumnLists, Columns

_INTEGER = {COUNT, TIME}
_MISSING_INTEGER = -(2**63)
_SHORT = {TEXT, CATEGORY}
_SEPARATOR, _MISSING_TEXT = "\x1f", "\x1e"  # of short texts; ids and names contain neither


class PackedColumns(NamedTuple):
    """Encoded columns: the layout (JSON), the numbers, the texts."""

    plan: str
    numbers: bytes
    texts: str

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        return len(self.plan) + len(self.numbers) + len(self.texts)


def pack(columns: Columns, lists: ColumnLists) -> PackedColumns:
    """Encode columns, grouped by how they are stored."""
    constants: dict[str, Any] = {}
    plain: dict[str, list[Any]] = {}
    integers: dict[str, array[int]] = {}
    floats: dict[str, array[float]] = {}
    long: dict[str, list[int | None]] = {}
    short: dict[str, list[str | None]] = {}
    texts: list[str] = []
    for name, values in lists.items():
        column = columns[name]
        if values and column.dtype != OBJECT and values.count(values[0]) == len(values):
            constants[name] = values[0]
        elif column.dtype in _INTEGER and (numbers := _encode_integers(values)) is not None:
            integers[name] = numbers
        elif column.dtype == NUMBER:
            floats[name] = array("d", [nan if v is None else v for v in values])
        elif column.long:
            long[name] = [None if v is None else len(v) for v in values]
            texts += [v for v in values if v is not None]
        elif column.dtype in _SHORT and _can_be_joined(values):
            short[name] = values
        else:
            plain[name] = values
    joined = _SEPARATOR.join(
        [_MISSING_TEXT if v is None else v for vs in short.values() for v in vs]
    )
    rows = len(next(iter(lists.values())))
    plan = (rows, len(joined), constants, plain, [*integers], [*floats], [*short], long)
    return PackedColumns(
        json.dumps(plan, ensure_ascii=False),
        b"".join([*integers.values(), *floats.values()]),
        "".join([joined, *texts]),
    )


def unpack(packed: PackedColumns) -> ColumnLists:
    """Decode columns; their order may differ.

    Raises:
        ValueError: `pack` did not write this.
    """
    try:
        return _unpack(packed)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("not packed columns") from error


def _unpack(packed: PackedColumns) -> ColumnLists:
    lists: ColumnLists
    rows, end, constants, lists, integers, floats, short, long = json.loads(packed.plan)
    for name, value in constants.items():
        lists[name] = [value] * rows
    numbers, middle = memoryview(packed.numbers), 8 * rows * len(integers)
    _add_columns(lists, integers, rows, _decode_integers(numbers[:middle]))
    _add_columns(lists, floats, rows, _decode_floats(numbers[middle:]))
    _add_columns(lists, short, rows, _split(packed.texts[:end]) if short and rows else [])
    for name, lengths in long.items():
        lists[name], end = _cut_texts(packed.texts, lengths, end)
    if any(len(values) != rows for values in lists.values()):
        raise ValueError("columns of different lengths")
    return lists


def _add_columns(lists: ColumnLists, names: list[str], rows: int, values: list[Any]) -> None:
    """Split the values of consecutive columns and add them by name."""
    if len(values) != len(names) * rows:
        raise ValueError("columns of different lengths")
    for n, name in enumerate(names):
        lists[name] = values[n * rows : (n + 1) * rows]


def _encode_integers(values: list[int | None]) -> array[int] | None:
    try:
        return array("q", [_MISSING_INTEGER if v is None else v for v in values])
    except OverflowError:  # sums of absurd counts
        return None


def _can_be_joined(values: list[str | None]) -> bool:
    text = "".join([v for v in values if v is not None])
    return _SEPARATOR not in text and _MISSING_TEXT not in text


def _split(joined: str) -> list[str | None]:
    texts: list[str | None] = [*joined.split(_SEPARATOR)]
    if _MISSING_TEXT not in joined:
        return texts
    return [None if v == _MISSING_TEXT else v for v in texts]


def _decode_integers(data: memoryview) -> list[int | None]:
    values: list[int | None] = [*data.cast("q").tolist()]
    if _MISSING_INTEGER not in values:
        return values
    return [None if v == _MISSING_INTEGER else v for v in values]


def _decode_floats(data: memoryview) -> list[float | None]:
    # Only NaN differs from itself.
    return [v if v == v else None for v in data.cast("d").tolist()]


def _cut_texts(texts: str, lengths: list[int | None], start: int) -> tuple[list[str | None], int]:
    """Return texts of the given lengths, from position `start`, and their end position."""
    positions = list(accumulate((n or 0 for n in lengths), initial=start))
    slices = zip(lengths, pairwise(positions), strict=True)
    return [None if n is None else texts[a:b] for n, (a, b) in slices], positions[-1]
