"""Values of the model as DataFrames: a table of columns per frame, one loop for all of them.

A column is its name, its dtype, and how a value is read from a row. pandas is imported when the
first frame is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..model import Agent, Model, ModelRef, Permission, Question, Session, Usage

if TYPE_CHECKING:
    import pandas as pd

Column = tuple[str, Callable[[Any], Any]]

TIME = "datetime64[ms, UTC]"
COUNT = "Int64"
MONEY = "Float64"
TEXT = "string"
WORD = "category"


def sessions(values: Iterable[Session]) -> pd.DataFrame:
    """Sessions as a frame, one row each, in the order given.

    Returns:
        Columns id, title; updated (UTC, ms); cost (USD, as the server stored it: what is still in
        the session, subagents not included) and the five token counts input, output, reasoning,
        cache_read, cache_write; agent, provider, model, variant; created, archived (UTC, ms);
        parent (the session it is a subagent of), directory, project. Unknown is NA.
    """
    return _frame(_SESSION, values)


def models(values: Iterable[Model]) -> pd.DataFrame:
    """Models as a frame, one row each.

    Returns:
        Columns model (`provider/model`, as prompts take it), name, variants (comma separated),
        default (the server's configured model), context and output (tokens), and the prices
        price_input, price_output, price_cache_read, price_cache_write (USD per million tokens).
    """
    return _frame(_MODEL, values)


def agents(values: Iterable[Agent]) -> pd.DataFrame:
    """Agents as a frame, one row each.

    Returns:
        Columns agent, mode (primary, subagent, all), model (its own, else NA), description.
    """
    return _frame(_AGENT, values)


def requests(values: Iterable[tuple[Permission | Question, Session]]) -> pd.DataFrame:
    """Permissions and questions that wait, one row each.

    Returns:
        Columns id, kind (permission, question), session and title (who asks), action (bash,
        edit, ...; NA for a question), asks (the command, the files, the question), always (what
        "always" would allow) and options (what a question offers, comma separated).
    """
    return _frame(_REQUEST, values)


def _of_model(name: str) -> Callable[[Session], Any]:
    return lambda s: getattr(s.model, name) if isinstance(s.model, ModelRef) else None


def _of_usage(name: str) -> Callable[[Session], Any]:
    return lambda s: getattr(s.usage, name) if isinstance(s.usage, Usage) else None


_SESSION: Mapping[str, Column] = {
    "id": (TEXT, lambda s: s.id),
    "title": (TEXT, lambda s: s.title),
    "updated": (TIME, lambda s: s.updated),
    "cost": (MONEY, _of_usage("cost")),
    "input": (COUNT, _of_usage("input")),
    "output": (COUNT, _of_usage("output")),
    "reasoning": (COUNT, _of_usage("reasoning")),
    "cache_read": (COUNT, _of_usage("cache_read")),
    "cache_write": (COUNT, _of_usage("cache_write")),
    "agent": (WORD, lambda s: s.agent),
    "provider": (WORD, _of_model("provider")),
    "model": (WORD, _of_model("id")),
    "variant": (WORD, _of_model("variant")),
    "created": (TIME, lambda s: s.created),
    "archived": (TIME, lambda s: s.archived),
    "parent": (TEXT, lambda s: s.parent),
    "directory": (WORD, lambda s: s.directory),
    "project": (WORD, lambda s: s.project),
}

_MODEL: Mapping[str, Column] = {
    "model": (TEXT, lambda m: str(m.ref)),
    "name": (TEXT, lambda m: m.name),
    "variants": (TEXT, lambda m: ", ".join(m.variants)),
    "default": ("boolean", lambda m: m.default),
    "context": (COUNT, lambda m: m.context),
    "output": (COUNT, lambda m: m.output),
    "price_input": (MONEY, lambda m: m.price_input),
    "price_output": (MONEY, lambda m: m.price_output),
    "price_cache_read": (MONEY, lambda m: m.price_cache_read),
    "price_cache_write": (MONEY, lambda m: m.price_cache_write),
}

_AGENT: Mapping[str, Column] = {
    "agent": (TEXT, lambda a: a.name),
    "mode": (WORD, lambda a: a.mode),
    "model": (TEXT, lambda a: str(a.model) if a.model else None),
    "description": (TEXT, lambda a: a.description),
}

_REQUEST: Mapping[str, Column] = {
    "id": (TEXT, lambda r: r[0].id),
    "kind": (WORD, lambda r: type(r[0]).__name__.lower()),
    "session": (TEXT, lambda r: r[0].session),
    "title": (TEXT, lambda r: r[1].title),
    "action": (WORD, lambda r: getattr(r[0], "action", None)),
    "asks": (TEXT, lambda r: _asks(r[0])),
    "always": (TEXT, lambda r: ", ".join(getattr(r[0], "always", ())) or None),
    "options": (TEXT, lambda r: _options(r[0])),
}


def _asks(request: Permission | Question) -> str:
    if isinstance(request, Permission):
        return request.subject
    return " / ".join(item.question for item in request.items)


def _options(request: Permission | Question) -> str | None:
    if isinstance(request, Permission):
        return None
    offered = (", ".join(o.label for o in item.options) for item in request.items)
    return " / ".join(offered)


def _frame(columns: Mapping[str, Column], values: Iterable[Any]) -> pd.DataFrame:
    import pandas as pd

    rows = list(values)
    return pd.DataFrame(
        {
            name: _series(dtype, [read(row) for row in rows])
            for name, (dtype, read) in columns.items()
        }
    )


def _series(dtype: str, values: list[Any]) -> pd.Series:
    import pandas as pd

    if dtype == TIME:
        times = pd.array(values, dtype="Int64").to_numpy("float64", na_value=float("nan"))
        return pd.Series(pd.to_datetime(times, unit="ms", utc=True)).astype(TIME)
    if dtype == WORD:
        return pd.Series(values, dtype=TEXT).astype(WORD)
    return pd.Series(values, dtype=dtype)
