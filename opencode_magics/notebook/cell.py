"""Run a turn in a cell: draw it, serve clicks, answer its requests, stop it on an interrupt.

All of this runs in the cell's main thread, so that all output goes to the cell.
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
    """Send the prompt of a run and follow its turn to the end.

    Args:
        run: A prepared run.
        shell: The shell that runs the cell.
        answerer: Answers requests where buttons don't work.
        timeout: Seconds after which the cell ends while the turn continues.
        ui: How to ask: "auto", "widgets" or "text".
        shown: The view that shows the turn; by default the one that fits the shell.

    Returns:
        The turn; its outcome is "running" if the timeout passed.

    Raises:
        TurnInterrupted: A person interrupted the cell.
        AnswerNeeded: Nobody could answer and the policy is "error"; the turn was stopped.
        TurnError: The turn ended without succeeding.
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
            # A second interrupt must not prevent the last drawing.
            with DeferredInterrupt(in_flight=sys.exc_info()[0]):
                run.close()
                prompter.close()
                if run.sent:  # otherwise there is nothing to show
                    shown.close(run.turn, _remark(run))
    return run.turn  # now including its recording


def _remark(run: Run) -> str:
    """A remark on how the cell ended, for its last line; "" if there is none."""
    turn, asked = run.turn, run.prompt.agent
    if turn.outcome == "running":
        return (
            f"Still running on the server, in session {turn.session}. %oc_attach follows it; "
            "don't send the prompt again."
        )
    if asked and turn.agent and turn.agent != asked:
        return f"Agent {turn.agent!r} answered, although the prompt was for {asked!r}."
    return _about_cost(run)


def _about_cost(run: Run) -> str:
    """A warning if the turn's cost limits could not be enforced; "" otherwise."""
    if not run.limits.ceilings or run.turn.stopped:
        return ""
    names = " and ".join(c.name for c in run.limits.ceilings)
    if run.turn.cost is None:
        return f"The cost is unknown, so {names} could not be enforced."
    if over := run.limits.exceeded_ceiling(run.turn):
        return f"The {over}, but the turn ended before it could be stopped."
    return (
        ""
        if run.turn.cost_complete
        else f"Part of the cost is unknown and does not count toward {names}."
    )


def show_recalled(turn: Turn, shell: Any, shown: View | None = None) -> None:
    """Show an earlier turn, marked as recalled."""
    (shown or view(shell)).close(
        turn, f"From history, session {turn.session}: nothing was sent or done again."
    )
