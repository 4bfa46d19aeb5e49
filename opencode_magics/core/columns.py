"""Column definitions, and the code that builds every DataFrame of this package from them.

A column has a dtype, a function that reads its value from a row, and a description, which
docstrings and notebooks/columns.md repeat. `lists_from_rows` turns rows into one list per column,
so that a long history needs no memory for rows. pandas is imported when the first frame is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas as pd


class Column(NamedTuple):
    """A column of a frame.

    Attributes:
        dtype: One of the dtypes below.
        read: Reads the value from a row.
        about: Description with unit and source.
        long: Whether the texts are long enough to pack them while other sessions are being read.
    """

    dtype: str
    read: Callable[[Any], Any]
    about: str
    long: bool = False


Columns = Mapping[str, Column]
ColumnLists = dict[str, Any]  # a list or `PackedTexts` per column name

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
    """Return a list of values per column."""
    rows = list(rows)
    return {name: [column.read(row) for row in rows] for name, column in columns.items()}


class PackedTexts:
    """A growing text column in pandas' own storage, so that no text is in memory twice."""

    def __init__(self) -> None:
        self._packed: list[pd.Series] = []
        self._new: list[str | None] = []

    def extend(self, values: Iterable[str | None]) -> None:
        """Append texts."""
        self._new.extend(values)
        if len(self._new) > _PACK_AFTER:
            self._pack()

    def cut(self, rows: int) -> None:
        """Keep only the first `rows` texts."""
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
        # One assignment, so that an interrupt can't separate the two.
        self._packed, self._new = [*self._packed, packed], []


_PACK_AFTER = 2_000  # texts


def empty_lists(columns: Columns) -> ColumnLists:
    """Return empty columns that can be extended."""
    return {name: PackedTexts() if column.long else [] for name, column in columns.items()}


def frame_from_lists(columns: Columns, lists: ColumnLists) -> pd.DataFrame:
    """Build a frame; `lists` is emptied meanwhile, so that no column is in memory twice."""
    import pandas as pd

    return pd.DataFrame({n: _array(c.dtype, lists.pop(n)) for n, c in columns.items()}, copy=False)


def frame_from_rows(columns: Columns, rows: Iterable[Any]) -> pd.DataFrame:
    """Build a frame with one row per item, in order."""
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
            # Categories have a string dtype even if there are none.
            return pd.Categorical.from_codes(codes, pd.Index(names, dtype=TEXT))
        case "object":
            return pd.Series(values, dtype=dtype)  # pandas would read an array of dicts as columns
        case _:
            return pd.array(values, dtype=dtype)


def _integers(values: Sequence[int | None]) -> tuple[Any, Any]:
    """Return an int64 array and a mask of missing values; what int64 can't hold is missing."""
    import numpy as np

    with suppress(OverflowError):
        floats = np.array(values, dtype=np.float64)  # fastest conversion of None, to NaN
        missing = np.isnan(floats)
        if np.abs(floats[~missing]).max(initial=0) < 2**53:  # floats are exact below this
            floats[missing] = 0
            return floats.astype(np.int64), missing
    in_range = [None if v is None or abs(v) >= 2**63 else v for v in values]
    return (
        np.array([v or 0 for v in in_range], dtype=np.int64),
        np.array([v is None for v in in_range], dtype=bool),
    )
