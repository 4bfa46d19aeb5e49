"""Sends one prompt for each row of a table, and collects the results in a DataFrame."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from string import Formatter
from typing import TYPE_CHECKING, Any, NamedTuple

from ..client.client import Client
from ..core.columns import CATEGORY, COUNT, FLAG, NUMBER, TEXT, Column, Columns, frame_from_rows
from ..core.formatting import in_one_line
from ..core.limits import Ceiling, Limits, TotalCost, total_cost
from ..core.model import total_usage
from ..core.turn import Turn
from ..dialects.jsonwire import clean_text
from ..errors import OpenCodeError, TurnError, UnfitAnswer, UnknownNameError
from .ask import Notice, Observer, PromptRequest, Sent, ask, ignore
from .runner import TurnRunner
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
            fields = {column: _known(values[place]) for column, place in columns.items()}
            yield json.dumps(fields, default=str, ensure_ascii=False)
        elif name is not None:
            value = values[columns[_column(name, row)]]
            yield format(Formatter().convert_field(value, conversion), form)


def _known(value: Any) -> Any:
    """Convert a missing value to None, since JSON has no NaN."""
    import pandas as pd

    return None if pd.api.types.is_scalar(value) and pd.isna(value) else value


# -- asking ----------------------------------------------------------------------------------------


class Rows:
    """Asks for one row after the other, each in a session of its own or all in one.

    Args:
        client: The server.
        request: The settings that all rows share. Its `title` is the title of the session, before
            the row's label if each row has its own; `session` is for rows that share one.
        runner: Makes the runner of a row from its label.
        observer: Called with a notice of each step.
        same_session: Ask all rows in one session.
        max_cost: USD that all rows may cost together.

    Attributes:
        done: The results so far.
        stopped: The limit that was passed, so that no further row was sent; "" if none.
    """

    def __init__(
        self,
        client: Client,
        request: PromptRequest,
        runner: Callable[[str], TurnRunner],
        observer: Observer = ignore,
        *,
        same_session: bool = False,
        max_cost: float | None = None,
    ) -> None:
        self._client = client
        self._request = request
        self._runner = runner
        self._observer = observer
        self._same_session = same_session
        self._max_cost = max_cost
        self._sent: list[Turn] = []
        self.done: list[RowResult] = []
        self.stopped = ""

    @property
    def spent(self) -> TotalCost | None:
        """What was spent on the rows so far; None if nothing was sent."""
        return total_cost(self._sent) if self._sent else None

    def ask(self, labels: Sequence[str], prompts: Sequence[str]) -> Iterator[RowResult]:
        """Ask for each row until a limit is passed, and yield each result when it is complete.

        Raises:
            OpenCodeError: An error other than a failed turn; its row is in `done` as well.
        """
        for label, prompt in zip(labels, prompts, strict=True):
            limits = self._limits()
            self.stopped = limits.already_exceeded()
            if self.stopped:
                return
            self._ask(label, prompt, limits)
            yield self.done[-1]

    def results(self, table: pd.DataFrame, prompts: Sequence[str]) -> pd.DataFrame:
        """Return the results with the table's index, including rows that were not sent."""
        unsent = [RowResult(prompt) for prompt in prompts[len(self.done) :]]
        return results_frame(table, [*self.done, *unsent], self._request.schema)

    def _limits(self) -> Limits:
        limits = self._request.limits
        if self._max_cost is None:
            return limits
        ceiling = Ceiling("--max-cost", self._max_cost, total_cost(self._sent).known or 0.0)
        return replace(limits, ceilings=(*limits.ceilings, ceiling))

    def _ask(self, label: str, prompt: str, limits: Limits) -> None:
        """Ask for one row; record its result even after an error, since it may have cost money."""
        request, before = self._in_session(label), len(self._sent)
        request = replace(request, text=prompt, limits=limits)
        try:
            turn = ask(self._client, request, self._runner(label), self._note)
        except (KeyboardInterrupt, Exception) as error:
            sent = tuple(self._sent[before:])
            turns = getattr(error, "turns", None) or sent
            self.done.append(failed_row(prompt, turns, error, recalled=bool(turns and not sent)))
            if not isinstance(error, TurnError):
                raise
        else:
            turns, recalled = (*turn.earlier, turn), len(self._sent) == before
            self.done.append(RowResult(prompt, turns, turn.outcome, turn.value, recalled))

    def _note(self, notice: Notice) -> None:
        if isinstance(notice, Sent):
            self._sent.append(notice.turn)
        self._observer(notice)

    def _in_session(self, label: str) -> PromptRequest:
        """Return the request with the session of a row: a new one, or the shared one."""
        if not self._same_session:
            return replace(self._request, title=f"{self._request.title} {label}")
        shared = next((r.turn.session for r in self.done if r.turn), self._request.session)
        return replace(self._request, session=shared, title=None if shared else self._request.title)


# -- results ---------------------------------------------------------------------------------------


def results_frame(
    table: pd.DataFrame, answers: list[RowResult], schema: Schema | None = None
) -> pd.DataFrame:
    """Collect the results of a table's rows in a DataFrame with the table's index.

    With the schema of an object, each of its fields is a column after `answer`; with any other
    schema the values are in the column `value`.
    """
    frame = frame_from_rows(COLUMNS, answers)
    if schema is not None:
        fields = _values(schema, answers)
        for place, (name, values) in enumerate(fields.items(), list(COLUMNS).index("answer") + 1):
            frame.insert(place, _free(name, fields), values)
    return frame.set_axis(table.index[: len(answers)], axis="index")


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
