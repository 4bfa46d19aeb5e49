"""Sends one prompt for each row of a table, and collects the results in a DataFrame."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.columns import CATEGORY, COUNT, FLAG, NUMBER, TEXT, Column, Columns, frame_from_rows
from ..core.formatting import in_one_line
from ..core.limits import TotalCost, total_cost
from ..core.model import total_usage
from ..core.turn import Turn
from ..dialects.jsonwire import clean_text
from ..errors import OpenCodeError, UnfitAnswer, UnknownNameError
from .schema import Schema

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class RowResult:
    """The result of one row.

    Attributes:
        prompt: The prompt that was sent, or would have been sent.
        turns: Its turns, more than one after retries for a schema; empty if nothing was sent.
        outcome: The outcome of the last turn, or "unfit" (no valid answer), or "not_sent".
        value: The answer as a value, if a schema was given.
        recalled: Whether the answer was reused from history and nothing was sent.
        error: Why there is no answer; "" if there is one.
    """

    prompt: str
    turns: tuple[Turn, ...] = ()
    outcome: str = "not_sent"
    value: Any = None
    recalled: bool = False
    error: str = ""

    @property
    def turn(self) -> Turn | None:
        """The last turn."""
        return self.turns[-1] if self.turns else None

    @property
    def spent(self) -> TotalCost:
        """The known cost of all turns."""
        return total_cost(self.turns)

    @property
    def tokens(self) -> int | None:
        """Tokens of all turns, including subagents."""
        usages = [u for t in self.turns for u in (t.usage, *(s.usage for s in t.subagents))]
        usage = total_usage(usages)
        return usage.total if usage else None


def failed_row(
    prompt: str, turns: tuple[Turn, ...], error: BaseException, *, recalled: bool = False
) -> RowResult:
    """Make the result of a row without an answer."""
    unfit = isinstance(error, UnfitAnswer) and turns[-1].outcome == "succeeded"
    outcome = "unfit" if unfit else turns[-1].outcome if turns else "not_sent"
    why = error.what if isinstance(error, OpenCodeError) else str(error) or "interrupted"
    return RowResult(prompt, turns, outcome, recalled=recalled, error=why)


COLUMNS: Columns = {
    "prompt": Column(TEXT, lambda a: a.prompt, "Prompt that was sent, or would have been sent."),
    "answer": Column(TEXT, lambda a: a.turn and a.turn.text, "Final answer of the agent."),
    "outcome": Column(
        CATEGORY,
        lambda a: a.outcome,
        "Outcome of the turn, or unfit (no valid answer), or not_sent.",
    ),
    "cost": Column(NUMBER, lambda a: a.spent.known, "USD, including retries and subagents."),
    "cost_complete": Column(
        FLAG,
        lambda a: a.spent.complete if a.turns else None,
        "Whether `cost` is complete; if not, it is a lower bound.",
    ),
    "tokens": Column(COUNT, lambda a: a.tokens, "Tokens, including retries and subagents."),
    "duration": Column(NUMBER, lambda a: a.turn and a.turn.duration, "Seconds of the final turn."),
    "from_history": Column(
        FLAG, lambda a: a.recalled, "Whether the answer was reused from history (--once)."
    ),
    "session": Column(TEXT, lambda a: a.turn and a.turn.session, "Id of the session."),
    "error": Column(TEXT, lambda a: a.error or None, "Why there is no answer."),
}


# -- filling in templates --------------------------------------------------------------------------


def fill_template(table: pd.DataFrame, template: str, row: str | None = None) -> list[str]:
    """Fill in a template for each row of a table.

    Args:
        table: The rows.
        template: The prompt, with `{column}` where a value goes; `{{` and `}}` are braces.
        row: A name for the whole row: `{row}` is the row as JSON, `{row.column}` one value.

    Raises:
        UnknownNameError: The table has no such column.
        OpenCodeError: The template is invalid or has no fields, a column is ambiguous, or a value
            can't be formatted.
    """
    pieces = _pieces(template)
    columns = {str(c): place for place, c in enumerate(table.columns)}
    several = {name for name, n in Counter(map(str, table.columns)).items() if n > 1}
    named = [p for p in pieces if p.name is not None]
    if not named:
        raise OpenCodeError(
            "Every row would get the same prompt: the template contains no {column}.",
            f"The columns are: {', '.join(columns)}.",
        )
    if row is not None and row in columns:
        raise OpenCodeError(f"--as {row}: the table has a column with that name. Choose another.")
    for name in (p.name for p in named):
        twice = several if name == row else several & {_column(name, row)}
        if twice:
            raise OpenCodeError(
                f"The table has several columns named {min(twice)!r}.", "Rename all but one."
            )
        if name != row and _column(name, row) not in columns:
            raise UnknownNameError(
                f"The table has no column {name!r}. It has: {', '.join(columns)}.",
                "For literal braces write {{ and }}.",
            )
    rows = zip(table.index, table.itertuples(False), strict=True)
    return [_prompt(pieces, columns, values, row, label) for label, values in rows]


class Piece(NamedTuple):
    """A piece of text and the field name after it, with its format and conversion."""

    text: str
    name: str | None
    form: str
    conversion: str | None


def _pieces(template: str) -> list[Piece]:
    try:
        parsed = list(Formatter().parse(template))
    except ValueError as error:
        raise OpenCodeError(
            f"The template is invalid: {error}.", "For literal braces write {{ and }}."
        ) from None
    return [Piece(text, name, form or "", conversion) for text, name, form, conversion in parsed]


def _column(name: str | None, row: str | None) -> str:
    return (name or "").removeprefix(f"{row}." if row else "")


def _prompt(
    pieces: list[Piece], columns: dict[str, int], values: Sequence[Any], row: str | None, label: Any
) -> str:
    try:
        return clean_text("".join(_filled(pieces, columns, values, row)))
    except Exception as error:  # a format that doesn't suit the value, or the value's own code
        raise OpenCodeError(
            f"The template can't be filled in for row {label}: "
            f"{in_one_line(f'{type(error).__name__}: {error}', 200)}.",
            "Nothing was sent.",
        ) from error


def _filled(
    pieces: list[Piece], columns: dict[str, int], values: Sequence[Any], row: str | None
) -> Iterator[str]:
    for text, name, form, conversion in pieces:
        yield text
        if name is not None and name == row:
            told = {column: _known(values[place]) for column, place in columns.items()}
            yield json.dumps(told, default=str, ensure_ascii=False)
        elif name is not None:
            value = values[columns[_column(name, row)]]
            yield format(Formatter().convert_field(value, conversion), form)


def _known(value: Any) -> Any:
    """Convert a missing value to None, since JSON has no NaN."""
    import pandas as pd

    return None if pd.api.types.is_scalar(value) and pd.isna(value) else value


# -- results ---------------------------------------------------------------------------------------


def results_frame(
    table: pd.DataFrame, answers: list[RowResult], schema: Schema | None = None
) -> pd.DataFrame:
    """Collect the results of a table's rows in a DataFrame with the table's index.

    With the schema of an object, each of its fields is a column after `answer`; with any other
    schema the values are in the column `value`.
    """
    frame_ = frame_from_rows(COLUMNS, answers)
    if schema is not None:
        told = _values(schema, answers)
        taken = {name: _free(name, told) for name in told}
        for place, (name, values) in enumerate(told.items(), list(COLUMNS).index("answer") + 1):
            frame_.insert(place, taken[name], values)
    return frame_.set_axis(table.index[: len(answers)], axis="index")


def _free(name: str, names: Collection[str]) -> str:
    """A column name for a field that is not in use: the field's name, prefixed if necessary."""
    column = name
    while column in COLUMNS or (column != name and column in names):
        column = f"answer_{column}"
    return column


def _values(schema: Schema, answers: list[RowResult]) -> dict[str, Any]:
    import pandas as pd

    if not schema.is_object:
        return {"value": pd.Series([a.value for a in answers], dtype="object")}
    return {
        name: pd.Series([_field(a.value, name) for a in answers], dtype="object").convert_dtypes()
        for name in schema.fields
    }


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)
