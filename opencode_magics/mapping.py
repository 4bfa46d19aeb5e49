"""One prompt for each row of a table: what is sent, and what came of it as a DataFrame."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from string import Formatter
from typing import TYPE_CHECKING, Any

from .errors import OpenCodeError, UnfitAnswer, UnknownNameError
from .history.frames import COUNT, FLAG, NUMBER, TEXT, WORD, Column, Columns, frame
from .limits import spent
from .model import total_usage
from .structured import Schema
from .turn import Turn

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Answered:
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
    def cost(self) -> float | None:
        """USD of all its turns; None where none is known."""
        return spent(self.turns)

    @property
    def tokens(self) -> int | None:
        """Tokens of all its turns, subagents included."""
        usages = [u for t in self.turns for u in (t.usage, *(s.usage for s in t.subagents))]
        usage = total_usage(usages)
        return usage.total if usage else None


def failed(prompt: str, turns: tuple[Turn, ...], error: BaseException) -> Answered:
    """What came of a row that has no answer, and why."""
    unfit = isinstance(error, UnfitAnswer) and turns[-1].outcome == "succeeded"
    outcome = "unfit" if unfit else turns[-1].outcome if turns else "not_sent"
    why = error.what if isinstance(error, OpenCodeError) else str(error) or "interrupted"
    return Answered(prompt, turns, outcome, error=why)


COLUMNS: Columns = {
    "prompt": Column(TEXT, lambda a: a.prompt, "What was sent, or was to be sent."),
    "answer": Column(TEXT, lambda a: a.turn and a.turn.text, "What the agent said at last."),
    "outcome": Column(WORD, lambda a: a.outcome, "How it ended; unfit, or not_sent."),
    "cost": Column(NUMBER, lambda a: a.cost, "USD, retries and subagents included."),
    "tokens": Column(COUNT, lambda a: a.tokens, "All tokens, of retries and subagents, too."),
    "duration": Column(NUMBER, lambda a: a.turn and a.turn.duration, "Seconds of the last turn."),
    "from_history": Column(FLAG, lambda a: a.recalled, "It was answered before (--once)."),
    "session": Column(TEXT, lambda a: a.turn and a.turn.session, "Where it was asked."),
    "error": Column(TEXT, lambda a: a.error or None, "Why there is no answer."),
}


# -- what is sent ----------------------------------------------------------------------------------


def prompts(table: pd.DataFrame, template: str, row: str | None = None) -> list[str]:
    """A prompt for each row of a table.

    Args:
        table: The rows.
        template: The prompt, with `{column}` where a value goes; `{{` and `}}` are braces.
        row: A name for the whole row: `{row}` is the row as JSON, `{row.column}` one value.

    Raises:
        UnknownNameError: The table has no such column.
        OpenCodeError: It is no template, or there is nothing in it to fill in.
    """
    pieces = _pieces(template)
    columns = {str(c): place for place, c in enumerate(table.columns)}
    named = [p for p in pieces if p[1] is not None]
    if not named:
        raise OpenCodeError(
            "Every row would get the same prompt: the template has no {column} in it.",
            f"The columns are: {', '.join(columns)}.",
        )
    if row is not None and row in columns:
        raise OpenCodeError(f"--as {row}: the table has a column of that name. Take another.")
    for _, name, _ in named:
        if name != row and _column(name, row) not in columns:
            raise UnknownNameError(
                f"The table has no column {name!r}. It has: {', '.join(columns)}.",
                "Braces that are none of its columns are written {{ and }}.",
            )
    return ["".join(_filled(pieces, columns, values, row)) for values in table.itertuples(False)]


def _pieces(template: str) -> list[tuple[str, str | None, str]]:
    """Stretches of text, each with the name that follows it and its format."""
    try:
        parsed = list(Formatter().parse(template))
    except ValueError as error:
        raise OpenCodeError(
            f"The template can't be read: {error}.", "Write {{ and }} for braces."
        ) from None
    return [(text, name, form or "") for text, name, form, _ in parsed]


def _column(name: str | None, row: str | None) -> str:
    return (name or "").removeprefix(f"{row}." if row else "")


def _filled(
    pieces: list[tuple[str, str | None, str]],
    columns: dict[str, int],
    values: tuple[Any, ...],
    row: str | None,
) -> Iterator[str]:
    for text, name, form in pieces:
        yield text
        if name is not None and name == row:
            told = {column: values[place] for column, place in columns.items()}
            yield json.dumps(told, default=str, ensure_ascii=False)
        elif name is not None:
            yield format(values[columns[_column(name, row)]], form)


# -- what came of it -------------------------------------------------------------------------------


def results(
    table: pd.DataFrame, answers: list[Answered], schema: Schema | None = None
) -> pd.DataFrame:
    """What came of the rows of a table: one row each, under the index of the table.

    Where the answers had to fit the schema of an object, each of its fields is a column behind
    `answer`; what they say is in the column `value` where it is anything else.
    """
    frame_ = frame(COLUMNS, answers)
    if schema is not None:
        told = _values(schema, answers)
        taken = {name: f"answer_{name}" if name in COLUMNS else name for name in told}
        for place, (name, values) in enumerate(told.items(), list(COLUMNS).index("answer") + 1):
            frame_.insert(place, taken[name], values)
    return frame_.set_axis(table.index[: len(answers)], axis="index")


def _values(schema: Schema, answers: list[Answered]) -> dict[str, Any]:
    import pandas as pd

    if not schema.one_object:
        return {"value": pd.Series([a.value for a in answers], dtype="object")}
    return {
        name: pd.Series([_field(a.value, name) for a in answers], dtype="object").convert_dtypes()
        for name in schema.fields
    }


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)
