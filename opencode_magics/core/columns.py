"""Column definitions, and the one place where DataFrames are built from them.

A column has a dtype, a function that reads its value from a row, and a description. Rows are
converted to lists column by column (`lists_from_rows`), so that the rows of a long history can be
freed early. pandas is imported when the first frame is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas as pd


class Column(NamedTuple):
    """A column: dtype, function that reads it from a row, description (with unit and source).

    `long` marks a column of long texts, which are packed while more rows are read.
    """

    dtype: str
    read: Callable[[Any], Any]
    about: str
    long: bool = False


Columns = Mapping[str, Column]
ColumnLists = dict[str, Any]  # column name: a list, or `PackedTexts`

TIME = "datetime64[ms, UTC]"
DAY = "datetime64[ms]"
COUNT = "Int64"
NUMBER = "Float64"
TEXT = "string"
CATEGORY = "category"
FLAG = "boolean"
OBJECT = "object"


# -- rows to columns -------------------------------------------------------------------------------


def lists_from_rows(columns: Columns, rows: Iterable[Any]) -> ColumnLists:
    """Return the values of rows, column by column."""
    rows = list(rows)
    return {name: [column.read(row) for row in rows] for name, column in columns.items()}


class PackedTexts:
    """A growing column of texts in pandas' own storage, so that no text is in memory twice."""

    def __init__(self) -> None:
        self._packed: list[pd.Series] = []
        self._new: list[str | None] = []

    def extend(self, values: Iterable[str | None]) -> None:
        """Append texts."""
        self._new.extend(values)
        if len(self._new) > _PACK_SIZE:
            self._pack()

    def cut(self, rows: int) -> None:
        """Truncate to the first `rows` texts."""
        self._pack()
        self._packed = [self.series().iloc[:rows]]

    def series(self) -> pd.Series:
        """Return the column."""
        import pandas as pd

        self._pack()
        return (
            self._packed[0]
            if len(self._packed) == 1
            else pd.concat(self._packed, ignore_index=True)
        )

    def _pack(self) -> None:
        import pandas as pd

        packed = pd.Series(self._new, dtype=TEXT)
        # One statement, so that no interrupt can come between the two assignments.
        self._packed, self._new = [*self._packed, packed], []


_PACK_SIZE = 2_000


def empty_lists(columns: Columns) -> ColumnLists:
    """Return empty columns, to be extended."""
    return {name: PackedTexts() if column.long else [] for name, column in columns.items()}


def frame_from_lists(columns: Columns, lists: ColumnLists) -> pd.DataFrame:
    """Build a frame from column lists; empties `lists` as it goes to save memory."""
    import pandas as pd

    return pd.DataFrame({n: _array(c.dtype, lists.pop(n)) for n, c in columns.items()}, copy=False)


def frame_from_rows(columns: Columns, rows: Iterable[Any]) -> pd.DataFrame:
    """Build a frame with one row per value, in the same order."""
    return frame_from_lists(columns, lists_from_rows(columns, rows))


def _array(dtype: str, values: Any) -> Any:
    import numpy as np
    import pandas as pd

    if isinstance(values, PackedTexts):
        return values.series().array
    match dtype:
        case "datetime64[ms, UTC]":
            times, missing = _integers(values)
            times[missing] = np.iinfo(np.int64).min  # NaT
            return pd.DatetimeIndex(times.view("datetime64[ms]")).tz_localize("UTC")
        case "Int64":
            return pd.arrays.IntegerArray(*_integers(values))
        case "Float64":
            numbers = np.array(values, dtype=np.float64)  # None becomes NaN
            return pd.arrays.FloatingArray(numbers, np.isnan(numbers))
        case "category":
            names = [v for v in dict.fromkeys(values) if v is not None]
            code = {None: -1} | {name: n for n, name in enumerate(names)}
            codes = np.fromiter(map(code.__getitem__, values), np.int32, len(values))
            # Categories are strings even if the column is empty.
            return pd.Categorical.from_codes(codes, pd.Index(names, dtype=TEXT))
        case "object":
            return pd.Series(values, dtype=dtype)  # pd.array would read dicts as columns
        case _:
            return pd.array(values, dtype=dtype)


def _integers(values: Sequence[int | None]) -> tuple[Any, Any]:
    """Return integers as an array and the mask of missing ones; beyond 64 bits is missing."""
    import numpy as np

    with suppress(OverflowError):
        floats = np.array(values, dtype=np.float64)  # fast, and None becomes NaN
        missing = np.isnan(floats)
        if np.abs(floats[~missing]).max(initial=0) < 2**53:  # exact below this
            floats[missing] = 0
            return floats.astype(np.int64), missing
    integers = [None if v is None or abs(v) >= 2**63 else v for v in values]
    return (
        np.array([v or 0 for v in integers], dtype=np.int64),
        np.array([v is None for v in integers], dtype=bool),
    )
