"""Tables of columns, and values as DataFrames by them: one loop for every frame of the house.

A column is its dtype, how a value is read from a row, and what it means; docstrings and the page
of columns tell the same. Rows become lists column by column (`taken`), so that nothing but the
columns is kept of a long history; pandas is imported when the first frame is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas as pd


class Column(NamedTuple):
    """A column: dtype, how it is read from a row, what it is (unit and source).

    `long` says that its texts are worth packing away while others are still read.
    """

    dtype: str
    read: Callable[[Any], Any]
    about: str
    long: bool = False


Columns = Mapping[str, Column]
ColumnLists = dict[str, Any]  # columns: lists, or `Packed` texts

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
    """The values of rows, column by column."""
    rows = list(rows)
    return {name: [column.read(row) for row in rows] for name, column in columns.items()}


class PackedTexts:
    """A growing column of texts, packed as pandas keeps them: so they are never held twice."""

    def __init__(self) -> None:
        self._packed: list[pd.Series] = []
        self._new: list[str | None] = []

    def extend(self, values: Iterable[str | None]) -> None:
        """Add texts at the end."""
        self._new.extend(values)
        if len(self._new) > _AT_ONCE:
            self._pack()

    def cut(self, rows: int) -> None:
        """Keep only so many."""
        self._pack()
        self._packed = [self.series().iloc[:rows]]

    def series(self) -> pd.Series:
        """The column."""
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
        # No interrupt comes in between these two.
        self._packed, self._new = [*self._packed, packed], []


_AT_ONCE = 2_000


def empty_lists(columns: Columns) -> ColumnLists:
    """Columns without rows, to be extended."""
    return {name: PackedTexts() if column.long else [] for name, column in columns.items()}


def frame_from_lists(columns: Columns, lists: ColumnLists) -> pd.DataFrame:
    """A frame of columns; the lists are emptied on the way, so that nothing is held twice."""
    import pandas as pd

    return pd.DataFrame({n: _array(c.dtype, lists.pop(n)) for n, c in columns.items()}, copy=False)


def frame_from_rows(columns: Columns, rows: Iterable[Any]) -> pd.DataFrame:
    """A frame with one row per value, in the order given."""
    return frame_from_lists(columns, lists_from_rows(columns, rows))


def _array(dtype: str, values: Any) -> Any:
    import numpy as np
    import pandas as pd

    if isinstance(values, PackedTexts):
        return values.series().array
    match dtype:
        case "datetime64[ms, UTC]":
            times, missing = _whole_numbers(values)
            times[missing] = np.iinfo(np.int64).min  # NaT
            return pd.DatetimeIndex(times.view("datetime64[ms]")).tz_localize("UTC")
        case "Int64":
            return pd.arrays.IntegerArray(*_whole_numbers(values))
        case "Float64":
            numbers = np.array(values, dtype=np.float64)  # None becomes NaN
            return pd.arrays.FloatingArray(numbers, np.isnan(numbers))
        case "category":
            names = [v for v in dict.fromkeys(values) if v is not None]
            code = {None: -1} | {name: n for n, name in enumerate(names)}
            codes = np.fromiter(map(code.__getitem__, values), np.int32, len(values))
            # Categories are strings even where there are none.
            return pd.Categorical.from_codes(codes, pd.Index(names, dtype=TEXT))
        case "object":
            return pd.Series(values, dtype=dtype)  # an array of dicts would be taken for columns
        case _:
            return pd.array(values, dtype=dtype)


def _whole_numbers(values: Sequence[int | None]) -> tuple[Any, Any]:
    """Whole numbers as an array, and where there are none; absurd ones count as none."""
    import numpy as np

    with suppress(OverflowError):
        read = np.array(values, dtype=np.float64)  # the fastest way past None, which becomes NaN
        missing = np.isnan(read)
        if np.abs(read[~missing]).max(initial=0) < 2**53:  # up to there they are exact
            read[missing] = 0
            return read.astype(np.int64), missing
    fitting = [None if v is None or abs(v) >= 2**63 else v for v in values]
    return (
        np.array([v or 0 for v in fitting], dtype=np.int64),
        np.array([v is None for v in fitting], dtype=bool),
    )
