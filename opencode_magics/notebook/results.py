"""What came of something that was done to a session, in the same few words whatever it was."""

from __future__ import annotations

from typing import NamedTuple

from ..core.outcome import ToolOutcome
from ..sessions.commands import CommandReceipt
from ..sessions.edit import EditResult
from ..sessions.end import EndResult, StopResult

Result = EndResult | StopResult | EditResult | CommandReceipt

_STATES: dict[str, ToolOutcome] = {
    "ended": "ok",
    "stopped": "ok",
    "was_idle": "ok",
    "matched": "ok",
    "not_found": "nonzero",
    "none": "nonzero",
    "ambiguous": "unfinished",
    "unconfirmed": "unfinished",
}


class ResultView(NamedTuple):
    """How it stands, of what, why that is known, and what can be done next ("" if nothing)."""

    state: ToolOutcome
    head: str
    about: str
    why: tuple[str, ...]
    todo: str


def view_of(value: Result) -> ResultView:
    """A result in words."""
    why: tuple[str, ...]
    match value:
        case EndResult():
            stopped = "its turn was stopped" if value.aborted_running_turn else ""
            why = (value.title, stopped, _rejected(value.rejected), value.evidence)
            head = value.status if value.action is None else f"{value.status} ({value.action})"
            return ResultView(_STATES[value.status], head, value.session, why, value.todo)
        case StopResult():
            why = (value.session.title, value.kept, _rejected(value.rejected), value.evidence)
            return ResultView(_STATES[value.status], value.status, value.session.id, why, "")
        case EditResult():
            seen = "" if value.confirmed else "not confirmed: read back, it doesn't show"
            state: ToolOutcome = "ok" if value.confirmed else "unfinished"
            undo = f"Undo: {value.undo}" if value.undo else ""
            return ResultView(state, value.what, value.session.id, (seen,), undo)
        case CommandReceipt():
            became = ", ".join((*value.inputs, *value.children))
            why = (became, *value.evidence)
            return ResultView(_STATES[value.status], value.status, value.what, why, value.todo)


def _rejected(ids: tuple[str, ...]) -> str:
    return f"rejected {', '.join(ids)}" if ids else ""
