"""Runs a turn in a cell: draws it, serves clicks, asks its requests, stops it on an interrupt.

All of this runs in the cell's main thread, so that all output goes to the cell.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from ..core.turn import Turn
from ..errors import AnswerNeeded, OpenCodeError, TurnError, TurnInterrupted
from ..sessions.run import Run
from .answerer import Answerer
from .interrupts import DeferredInterrupt, interruptible
from .live import View, view
from .prompter import Prompter, Ui
from .pump import NoPump, Pump, pump_for


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
        desk = Prompter(run, shown, answerer, ui, pump.reason)
        try:
            run.start()
            _follow(run, shown, desk, pump, timeout)
        except KeyboardInterrupt:
            raise TurnInterrupted(_stop(run, shown), turn=run.turn) from None
        except AnswerNeeded:
            run.abort()
            raise
        except TurnError:
            raise
        except OpenCodeError as error:
            if not run.sent:
                raise
            run.leave(error.what)
            raise_for_outcome(run.turn)
        finally:
            with DeferredInterrupt(
                in_flight=sys.exc_info()[0]
            ):  # a second interrupt must not prevent the last drawing
                run.close()
                desk.close()
                if run.sent:  # otherwise there is nothing to show
                    shown.close(run.turn, _remark(run))
    return run.turn


def _follow(
    run: Run, shown: View, desk: Prompter, pump: Pump | NoPump, timeout: float | None
) -> None:
    deadline = None if timeout is None else time.monotonic() + timeout
    for turn in run:
        shown.show(turn, run.note)
        pump.poll()
        desk.handle_requests()
        if deadline is not None and time.monotonic() > deadline:
            return


def _stop(run: Run, view: View) -> str:
    """Stop the turn and describe the outcome. A second interrupt skips the wait for it."""
    if not run.sent:
        return "Stopped; the prompt had not been sent."
    try:
        run.abort_in_background()  # first, so that a second interrupt can't prevent it
        view.show(run.turn, "Stopping the turn on the server.")
        run.abort()
    except KeyboardInterrupt:
        run.leave("the cell did not wait for the stop")
    match run.turn.outcome:
        case "aborted":
            return "Stopped; the turn is aborted on the server."
        case "unknown":
            return (
                f"The cell is stopped; session {run.turn.session} may still be running on the "
                "server."
            )
        case outcome:
            return f"Stopped; the turn had already ended ({outcome})."


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


def raise_for_outcome(turn: Turn) -> None:
    """Raise if the turn did not succeed.

    Raises:
        TurnError: The turn failed, was interrupted or was stopped for a limit, or its outcome is
            unknown.
    """
    if turn.stopped:
        raise TurnError(f"The turn was stopped: {turn.stopped}.", _STOPPED, turn=turn)
    if turn.outcome not in _ENDINGS:
        return
    what, todo = _ENDINGS[turn.outcome]
    why = f": {' '.join(str(turn.failure).split()).rstrip('.')}" if turn.failure else ""
    raise TurnError(f"{what}{why}.", todo.format(session=turn.session), turn=turn)


_STOPPED = "%oc_turn shows what it did until then. %config OpenCodeMagics shows the limits."
_ENDINGS = {
    "failed": ("The turn failed", "%oc_turn shows what was received."),
    "interrupted": (
        "The turn was cut off",
        "%oc_turn shows what was received. Check what it did before you send the prompt again.",
    ),
    "unknown": (
        "The outcome of the turn is unknown",
        "It may still be running. Check session {session} before you send the prompt again.",
    ),
}
