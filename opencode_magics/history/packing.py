"""Writes a session's columns small and reads them fast, for the cache.

JSON would do, and take five times as long to read: so numbers are written as they are in memory,
texts one after another, and a column in which every value is the same (most are) once.
"""

from __future__ import annotations

import json
from array import array
from itertools import accumulate, pairwise
from math import isnan, nan
from typing import Any, NamedTuple

from .frames import COUNT, NUMBER, OBJECT, TEXT, TIME, WORD, Columns, Lists

_WHOLE = {COUNT, TIME}
_ABSENT = -(2**63)  # stands for None among them
_SHORT = {TEXT, WORD}
_BETWEEN, _NONE = "\x1f", "\x1e"  # between short texts, and for None: ids and names have neither


class Pack(NamedTuple):
    """Columns as they are written: what stands where (JSON), numbers, texts."""

    plan: str
    numbers: bytes
    words: str

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return len(self.plan) + len(self.numbers) + len(self.words)


def pack(columns: Columns, lists: Lists) -> Pack:
    """Columns as they are written."""
    plan: dict[str, Any] = {}
    numbers = bytearray()
    words: list[str] = []
    for name, values in lists.items():
        column = columns[name]
        if values and column.dtype != OBJECT and values.count(values[0]) == len(values):
            plan[name] = {"all": values[0]}
        elif column.dtype in _WHOLE and (whole := _whole(values)) is not None:
            plan[name] = "whole"
            numbers += whole
        elif column.dtype == NUMBER:
            plan[name] = "real"
            numbers += array("d", [nan if v is None else v for v in values]).tobytes()
        elif column.long:
            plan[name] = {"lengths": [None if v is None else len(v) for v in values]}
            words += [v for v in values if v is not None]
        elif column.dtype in _SHORT and (joined := _joined(values)) is not None:
            plan[name] = {"joined": len(joined)}
            words.append(joined)
        else:
            plan[name] = values
    rows = len(next(iter(lists.values())))
    return Pack(json.dumps((rows, plan), ensure_ascii=False), bytes(numbers), "".join(words))


def unpack(written: Pack) -> Lists:
    """The columns again.

    Raises:
        ValueError: It is not what `pack` wrote.
    """
    try:
        return _unpacked(written)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("these are no packed columns") from error


def _unpacked(written: Pack) -> Lists:
    rows, plan = json.loads(written.plan)
    lists: Lists = {}
    at = said = 0
    for name, column in plan.items():
        if isinstance(column, list):
            lists[name] = column
        elif isinstance(column, str):
            end = at + 8 * rows
            lists[name] = _numbers(written.numbers[at:end], whole=column == "whole")
            at = end
        elif "all" in column:
            lists[name] = [column["all"]] * rows
        elif "joined" in column:
            end = said + column["joined"]
            lists[name] = _split(written.words[said:end])
            said = end
        else:
            lists[name], said = _texts(written.words, column["lengths"], said)
    if any(len(values) != rows for values in lists.values()):
        raise ValueError("columns of different lengths")
    return lists


def _whole(values: list[int | None]) -> bytes | None:
    try:
        return array("q", [_ABSENT if v is None else v for v in values]).tobytes()
    except OverflowError:  # absurd counts, added up
        return None


def _joined(values: list[str | None]) -> str | None:
    joined = _BETWEEN.join([_NONE if v is None else v for v in values])
    safe = joined.count(_BETWEEN) == len(values) - 1 and joined.count(_NONE) == values.count(None)
    return joined if safe else None


def _split(joined: str) -> list[str | None]:
    told: list[str | None] = [*joined.split(_BETWEEN)]
    return [None if v == _NONE else v for v in told] if _NONE in joined else told


def _numbers(written: bytes, whole: bool) -> list[Any]:
    values = array("q" if whole else "d")
    values.frombytes(written)
    if whole:
        told: list[Any] = values.tolist()
        return [None if v == _ABSENT else v for v in told] if _ABSENT in values else told
    return [None if isnan(v) else v for v in values]


def _texts(words: str, lengths: list[int | None], start: int) -> tuple[list[str | None], int]:
    """Texts of these lengths from a place on, and where they end."""
    places = list(accumulate((n or 0 for n in lengths), initial=start))
    told = zip(lengths, pairwise(places), strict=True)
    return [None if n is None else words[a:b] for n, (a, b) in told], places[-1]
