"""Writes a session's columns small and reads them fast, for the cache.

JSON would do, and take five times as long to read: so numbers are written as they are in memory,
texts one after another, and a column in which every value is the same (most are) once.
"""

from __future__ import annotations

import json
from array import array
from itertools import accumulate, pairwise
from math import nan
from typing import Any, NamedTuple

from ..core.columns import CATEGORY, COUNT, NUMBER, OBJECT, TEXT, TIME, ColumnLists, Columns

_WHOLE = {COUNT, TIME}
_ABSENT = -(2**63)  # stands for None among them
_SHORT = {TEXT, CATEGORY}
_BETWEEN, _NONE = "\x1f", "\x1e"  # between short texts, and for None: ids and names have neither


class PackedColumns(NamedTuple):
    """Columns as they are written: what stands where (JSON), numbers, texts."""

    plan: str
    numbers: bytes
    words: str

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return len(self.plan) + len(self.numbers) + len(self.words)


def pack(columns: Columns, lists: ColumnLists) -> PackedColumns:
    """Columns as they are written: those of one kind one after another."""
    same: dict[str, Any] = {}
    plain: dict[str, list[Any]] = {}
    whole: dict[str, array[int]] = {}
    real: dict[str, array[float]] = {}
    long: dict[str, list[int | None]] = {}
    short: dict[str, list[str | None]] = {}
    texts: list[str] = []
    for name, values in lists.items():
        column = columns[name]
        if values and column.dtype != OBJECT and values.count(values[0]) == len(values):
            same[name] = values[0]
        elif column.dtype in _WHOLE and (numbers := _whole(values)) is not None:
            whole[name] = numbers
        elif column.dtype == NUMBER:
            real[name] = array("d", [nan if v is None else v for v in values])
        elif column.long:
            long[name] = [None if v is None else len(v) for v in values]
            texts += [v for v in values if v is not None]
        elif column.dtype in _SHORT and _is_plain(values):
            short[name] = values
        else:
            plain[name] = values
    joined = _BETWEEN.join([_NONE if v is None else v for vs in short.values() for v in vs])
    rows = len(next(iter(lists.values())))
    plan = (rows, len(joined), same, plain, [*whole], [*real], [*short], long)
    return PackedColumns(
        json.dumps(plan, ensure_ascii=False),
        b"".join([*whole.values(), *real.values()]),
        "".join([joined, *texts]),
    )


def unpack(written: PackedColumns) -> ColumnLists:
    """The columns again, in any order.

    Raises:
        ValueError: It is not what `pack` wrote.
    """
    try:
        return _unpacked(written)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("these are no packed columns") from error


def _unpacked(written: PackedColumns) -> ColumnLists:
    lists: ColumnLists
    rows, end, same, lists, whole, real, short, long = json.loads(written.plan)
    for name, value in same.items():
        lists[name] = [value] * rows
    numbers, middle = memoryview(written.numbers), 8 * rows * len(whole)
    _deal(lists, whole, rows, _wholes(numbers[:middle]))
    _deal(lists, real, rows, _reals(numbers[middle:]))
    _deal(lists, short, rows, _split(written.words[:end]) if short and rows else [])
    for name, lengths in long.items():
        lists[name], end = _texts(written.words, lengths, end)
    if any(len(values) != rows for values in lists.values()):
        raise ValueError("columns of different lengths")
    return lists


def _deal(lists: ColumnLists, names: list[str], rows: int, values: list[Any]) -> None:
    """Columns that stand one after another, each to its name."""
    if len(values) != len(names) * rows:
        raise ValueError("columns of different lengths")
    for n, name in enumerate(names):
        lists[name] = values[n * rows : (n + 1) * rows]


def _whole(values: list[int | None]) -> array[int] | None:
    try:
        return array("q", [_ABSENT if v is None else v for v in values])
    except OverflowError:  # absurd counts, added up
        return None


def _is_plain(values: list[str | None]) -> bool:
    text = "".join([v for v in values if v is not None])
    return _BETWEEN not in text and _NONE not in text


def _split(joined: str) -> list[str | None]:
    told: list[str | None] = [*joined.split(_BETWEEN)]
    return [None if v == _NONE else v for v in told] if _NONE in joined else told


def _wholes(written: memoryview) -> list[int | None]:
    values: list[int | None] = [*written.cast("q").tolist()]
    return [None if v == _ABSENT else v for v in values] if _ABSENT in values else values


def _reals(written: memoryview) -> list[float | None]:
    # Not a number is the one that is not equal to itself.
    return [v if v == v else None for v in written.cast("d").tolist()]


def _texts(words: str, lengths: list[int | None], start: int) -> tuple[list[str | None], int]:
    """Texts of these lengths from a place on, and where they end."""
    places = list(accumulate((n or 0 for n in lengths), initial=start))
    told = zip(lengths, pairwise(places), strict=True)
    return [None if n is None else words[a:b] for n, (a, b) in told], places[-1]
