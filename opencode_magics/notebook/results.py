"""Results of session operations (end, stop, edit, command) in a common form for display."""

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
    """A result for display.

    Attributes:
        state: The state, which selects the icon.
        head: The status in words.
        about: The session or command that it is about.
        why: Details and evidence; "" entries are left out.
        todo: The next step; "" if there is none.
    """

    state: ToolOutcome
    head: str
    about: str
    why: tuple[str, ...]
    todo: str


def view_of(value: Result) -> ResultView:
    """Return the display form of a result."""
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
            note = "" if value.confirmed else "not confirmed: the session does not show the change"
            state: ToolOutcome = "ok" if value.confirmed else "unfinished"
            undo = f"Undo: {value.undo}" if value.undo else ""
            return ResultView(state, value.what, value.session.id, (note,), undo)
        case CommandReceipt():
            ids = ", ".join((*value.inputs, *value.children))
            why = (ids, *value.evidence)
            return ResultView(_STATES[value.status], value.status, value.what, why, value.todo)


def _rejected(ids: tuple[str, ...]) -> str:
    return f"rejected {', '.join(ids)}" if ids else ""
