"""Plays a turn in a cell: draw what comes, let clicks through, ask what is asked, stop when told.

Everything happens in the main thread of the cell, so every output lands in it.
"""

from __future__ import annotations

import sys
from typing import Any

from ..core.turn import Turn
from ..prompts.runner import follow
from ..sessions.run import Run
from .answerer import Answerer
from .interrupts import DeferredInterrupt, interruptible
from .live import View, view
from .prompter import Prompter, Ui
from .pump import pump_for


def play(
    run: Run,
    shell: Any,
    answerer: Answerer,
    timeout: float | None = None,
    ui: Ui = "auto",
    shown: View | None = None,
) -> Turn:
    """Send the prompt of a run and play its turn to the end.

    Args:
        run: A prepared run.
        shell: The shell whose cell this is.
        answerer: Who answers where there are no buttons.
        timeout: Seconds after which the cell ends while the turn goes on.
        ui: How to ask: "auto", "widgets" or "text".
        shown: What shows the turn; by default what fits the shell.

    Returns:
        The turn; "running" if the timeout passed.

    Raises:
        TurnInterrupted: A person stopped it.
        AnswerNeeded: Nobody could answer and the policy forbids to decide; the turn was stopped.
    """
    shown = shown or view(shell)
    with interruptible(), pump_for(shell) as pump:
        prompter = Prompter(run, shown, answerer, ui, pump.reason)

        def attend() -> None:
            pump.poll()
            prompter.handle_requests()

        try:
            follow(run, shown.show, attend, timeout)
        finally:
            # How it ended is shown, whatever comes.
            with DeferredInterrupt(in_flight=sys.exc_info()[0]):
                run.close()
                prompter.close()
                if run.sent:  # else there is nothing to show
                    shown.close(run.turn, _remark(run))
    return run.turn  # with what was recorded of it


def _remark(run: Run) -> str:
    """What a person should know about how the cell ended; "" if nothing."""
    turn, asked = run.turn, run.prompt.agent
    if turn.outcome == "running":
        return (
            f"Still running on the server, in session {turn.session}. Nothing was stopped, and "
            "nothing has to be sent again: %oc_attach follows it."
        )
    if asked and turn.agent and turn.agent != asked:
        return f"Agent {turn.agent!r} answered, although {asked!r} was asked."
    return _about_cost(run)


def _about_cost(run: Run) -> str:
    """What is to be said of a turn whose ceiling could not hold it; "" if nothing."""
    if not run.limits.ceilings or run.turn.stopped:
        return ""
    names = " and ".join(c.name for c in run.limits.ceilings)
    if run.turn.cost is None:
        return f"Its cost is unknown, so {names} could not be watched."
    if over := run.limits.exceeded_ceiling(run.turn):
        return f"The {over}, but the turn was over before it could be stopped."
    return "" if run.turn.cost_complete else f"Some of its cost is unknown, and {names} missed it."


def show_recalled(turn: Turn, shell: Any, shown: View | None = None) -> None:
    """Show a turn that was played before, marked as such."""
    (shown or view(shell)).close(
        turn, f"From history, session {turn.session}: nothing was sent or done again."
    )
