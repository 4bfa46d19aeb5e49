"""Plays a turn in a cell: draw what comes, let clicks through, ask what is asked, stop when told.

Everything happens in the main thread of the cell, so every output lands in it.
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
            ):  # how it ended is shown, whatever comes
                run.close()
                desk.close()
                if run.sent:  # else there is nothing to show
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
    """Stop the turn and say what came of it. Another interrupt doesn't wait for the proof."""
    if not run.sent:
        return "Stopped; the prompt had not been sent."
    try:
        run.abort_in_background()  # before anything that a second interrupt could cut short
        view.show(run.turn, "Stopping the turn on the server.")
        run.abort()
    except KeyboardInterrupt:
        run.leave("the stop was not waited for")
    match run.turn.outcome:
        case "aborted":
            return "Stopped; the turn is aborted on the server."
        case "unknown":
            return (
                f"Stopped here; whether session {run.turn.session} still works on the server is "
                "not known."
            )
        case outcome:
            return f"Stopped; the turn had {outcome} before."


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


def raise_for_outcome(turn: Turn) -> None:
    """Raise if the turn did not end as a turn should.

    Raises:
        TurnError: It failed, was interrupted, or stopped for a limit; or nobody knows.
    """
    if turn.stopped:
        raise TurnError(f"The turn was stopped: {turn.stopped}.", _STOPPED, turn=turn)
    if turn.outcome not in _ENDINGS:
        return
    what, todo = _ENDINGS[turn.outcome]
    why = f": {' '.join(str(turn.failure).split()).rstrip('.')}" if turn.failure else ""
    raise TurnError(f"{what}{why}.", todo.format(session=turn.session), turn=turn)


_STOPPED = "What it did until then is in its turn: %oc_turn. %config OpenCodeMagics has the limits."
_ENDINGS = {
    "failed": ("The turn failed", "What was received is in its turn: %oc_turn."),
    "interrupted": (
        "The turn was cut off",
        "What was received is in its turn: %oc_turn. Look at what it did before you send it again.",
    ),
    "unknown": (
        "It is not known how the turn ended",
        "It may still run. Look at session {session} before you send it again.",
    ),
}
