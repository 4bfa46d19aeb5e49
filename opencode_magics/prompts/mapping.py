"""One prompt for each row of a table: what is sent, and what came of it as a DataFrame."""

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
    """What came of one row.

    Attributes:
        prompt: What was sent, or was to be sent.
        turns: Its turn, after those whose answers did not fit a schema; none if nothing was sent.
        outcome: That of its turn; "unfit" where the answer did not fit; "not_sent".
        value: What the answer says, where it was asked to fit a schema.
        recalled: Nothing was sent: the answer is from history.
        error: Why there is no answer, "" if there is one.
    """

    prompt: str
    turns: tuple[Turn, ...] = ()
    outcome: str = "not_sent"
    value: Any = None
    recalled: bool = False
    error: str = ""

    @property
    def turn(self) -> Turn | None:
        """The last of its turns."""
        return self.turns[-1] if self.turns else None

    @property
    def spent(self) -> TotalCost:
        """What all its turns cost, as far as it is known."""
        return total_cost(self.turns)

    @property
    def tokens(self) -> int | None:
        """Tokens of all its turns, subagents included."""
        usages = [u for t in self.turns for u in (t.usage, *(s.usage for s in t.subagents))]
        usage = total_usage(usages)
        return usage.total if usage else None


def failed_row(
    prompt: str, turns: tuple[Turn, ...], error: BaseException, *, recalled: bool = False
) -> RowResult:
    """What came of a row that has no answer, and why."""
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


# -- what is sent ----------------------------------------------------------------------------------


def fill_template(table: pd.DataFrame, template: str, row: str | None = None) -> list[str]:
    """A prompt for each row of a table.

    Args:
        table: The rows.
        template: The prompt, with `{column}` where a value goes; `{{` and `}}` are braces.
        row: A name for the whole row: `{row}` is the row as JSON, `{row.column}` one value.

    Raises:
        UnknownNameError: The table has no such column.
        OpenCodeError: It is no template, there is nothing in it to fill in, it isn't clear with
            what, or a value can't be written so.
    """
    pieces = _pieces(template)
    columns = {str(c): place for place, c in enumerate(table.columns)}
    several = {name for name, n in Counter(map(str, table.columns)).items() if n > 1}
    named = [p for p in pieces if p.name is not None]
    if not named:
        raise OpenCodeError(
            "Every row would get the same prompt: the template has no {column} in it.",
            f"The columns are: {', '.join(columns)}.",
        )
    if row is not None and row in columns:
        raise OpenCodeError(f"--as {row}: the table has a column of that name. Take another.")
    for name in (p.name for p in named):
        twice = several if name == row else several & {_column(name, row)}
        if twice:
            raise OpenCodeError(
                f"The table has several columns called {min(twice)!r}.", "Rename all but one."
            )
        if name != row and _column(name, row) not in columns:
            raise UnknownNameError(
                f"The table has no column {name!r}. It has: {', '.join(columns)}.",
                "Braces that are none of its columns are written {{ and }}.",
            )
    rows = zip(table.index, table.itertuples(False), strict=True)
    return [_prompt(pieces, columns, values, row, label) for label, values in rows]


class Piece(NamedTuple):
    """A stretch of text, and the name that follows it, with its format and conversion."""

    text: str
    name: str | None
    form: str
    conversion: str | None


def _pieces(template: str) -> list[Piece]:
    try:
        parsed = list(Formatter().parse(template))
    except ValueError as error:
        raise OpenCodeError(
            f"The template can't be read: {error}.", "Write {{ and }} for braces."
        ) from None
    return [Piece(text, name, form or "", conversion) for text, name, form, conversion in parsed]


def _column(name: str | None, row: str | None) -> str:
    return (name or "").removeprefix(f"{row}." if row else "")


def _prompt(
    pieces: list[Piece], columns: dict[str, int], values: Sequence[Any], row: str | None, label: Any
) -> str:
    try:
        return clean_text("".join(_filled(pieces, columns, values, row)))
    except Exception as error:  # a format that is none for this value, or the value's own code
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
    """A value for JSON, which has no NaN: what is missing is null."""
    import pandas as pd

    return None if pd.api.types.is_scalar(value) and pd.isna(value) else value


# -- what came of it -------------------------------------------------------------------------------


def results_frame(
    table: pd.DataFrame, answers: list[RowResult], schema: Schema | None = None
) -> pd.DataFrame:
    """What came of the rows of a table: one row each, under the index of the table.

    Where the answers had to fit the schema of an object, each of its fields is a column behind
    `answer`; what they say is in the column `value` where it is anything else.
    """
    frame_ = frame_from_rows(COLUMNS, answers)
    if schema is not None:
        told = _values(schema, answers)
        taken = {name: _free(name, told) for name in told}
        for place, (name, values) in enumerate(told.items(), list(COLUMNS).index("answer") + 1):
            frame_.insert(place, taken[name], values)
    return frame_.set_axis(table.index[: len(answers)], axis="index")


def _free(name: str, names: Collection[str]) -> str:
    """What the column of a field is called: nothing else is called so."""
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
