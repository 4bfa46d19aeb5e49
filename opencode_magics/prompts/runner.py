"""Follow a run to its end: show its states, answer its requests, stop it on an interrupt.

`follow` is the loop, for cells and for plain Python. `ask` takes a `TurnRunner`, a function that
follows a prepared run and returns its turn. `callback_runner` makes one for plain Python.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..core.turn import Turn
from ..errors import AnswerNeeded, OpenCodeError, TurnError, TurnInterrupted
from ..sessions.run import Run
from .answering import Callbacks, send

TurnRunner = Callable[[Run], Turn]


def follow(
    run: Run,
    show: Callable[[Turn, str], object],
    attend: Callable[[], object],
    timeout: float | None = None,
) -> Turn:
    """Send the prompt of a run and follow its turn to the end. The caller closes the run.

    Args:
        run: A prepared run.
        show: Called with every state of the turn, and a note about the connection.
        attend: Called after each state, to answer pending requests.
        timeout: Seconds after which to return while the turn continues.

    Returns:
        The turn; "running" if the timeout passed.

    Raises:
        TurnInterrupted: The user interrupted; the turn was stopped on the server.
        AnswerNeeded: `attend` could not answer; the turn was stopped.
        TurnError: The connection was lost, or it is unknown whether the server has the prompt.
        OpenCodeError: The prompt was not sent.
    """
    try:
        run.start()
        deadline = None if timeout is None else time.monotonic() + timeout
        for turn in run:
            show(turn, run.note)
            attend()
            if deadline is not None and time.monotonic() > deadline:
                break
    except KeyboardInterrupt:
        raise TurnInterrupted(_stop(run, show), turn=run.turn) from None
    except AnswerNeeded:
        if run.turn.outcome == "running":
            run.abort()
        raise
    except TurnError:
        raise
    except OpenCodeError as error:
        if not run.sent or run.turn.outcome != "running":
            raise
        run.leave(error.what)
        raise_for_outcome(run.turn)
    return run.turn


def _stop(run: Run, show: Callable[[Turn, str], object]) -> str:
    """Stop the turn and describe the outcome. A second interrupt skips the wait for it."""
    if not run.sent:
        return "Stopped before the prompt was sent."
    try:
        run.abort_in_background()  # first, so that a second interrupt can't prevent it
        show(run.turn, "Stopping the turn on the server.")
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


def dispatch(run: Run) -> Turn:
    """Send the prompt of a run, confirm that the server has it, and leave the turn running.

    Raises:
        TurnError: It is unknown whether the server has the prompt.
        OpenCodeError: The prompt was not sent.
    """
    with run:
        run.start()
        run.confirm_stored()
    return run.turn


def raise_for_outcome(turn: Turn) -> None:
    """Raise if the turn did not succeed.

    Raises:
        TurnError: The turn failed, was interrupted, exceeded a limit, or its outcome is unknown.
    """
    if turn.stopped:
        raise TurnError(f"The turn was stopped: {turn.stopped}.", _STOPPED, turn=turn)
    if turn.outcome not in _ENDINGS:
        return
    what, todo = _ENDINGS[turn.outcome]
    why = f": {' '.join(str(turn.failure).split()).rstrip('.')}" if turn.failure else ""
    raise TurnError(f"{what}{why}.", todo.format(session=turn.session), turn=turn)


_STOPPED = "%oc_turn shows the turn so far. %config OpenCodeMagics shows the limits."
_ENDINGS = {
    "failed": ("The turn failed", "%oc_turn shows what was received."),
    "interrupted": (
        "The turn was cut off",
        "%oc_turn shows what was received. Check its effects before you send the prompt again.",
    ),
    "unknown": (
        "The outcome of the turn is unknown",
        "It may still be running. Check session {session} before you send the prompt again.",
    ),
}


# -- plain Python ----------------------------------------------------------------------------------


def callback_runner(
    answers: Callbacks,
    on_update: Callable[[Turn], object] | None = None,
    timeout: float | None = None,
) -> TurnRunner:
    """Return a runner that calls `answers` and `on_update`; an exception in them stops the turn.

    Args:
        answers: Answers permissions and questions.
        on_update: Called with every new state of the turn.
        timeout: Seconds after which to return while the turn continues.

    Raises:
        ValueError: The timeout is not a number of seconds.
    """
    if timeout is not None and not timeout >= 0:  # also rejects NaN
        raise ValueError(f"timeout must be 0 or more seconds, not {timeout!r}")

    def follow_run(run: Run) -> Turn:
        last: Turn | None = None

        def show(turn: Turn, note: str) -> None:
            nonlocal last
            if on_update is not None and turn is not last:
                last = turn
                with _stops(run):
                    on_update(turn)

        def attend() -> None:
            if not run.waiting:
                return
            request = run.waiting[0]  # one at a time: a rejection may settle others
            with _stops(run):
                answer = answers.answer(request)
            send(run, request, answer)

        with run:
            follow(run, show, attend, timeout)
        return run.turn  # with its recording attached

    return follow_run


@contextmanager
def _stops(run: Run) -> Iterator[None]:
    """Stop the turn on the server if the block raises an exception."""
    try:
        yield
    except KeyboardInterrupt:
        raise  # `follow` stops the turn, and says so
    except BaseException:  # sys.exit(), too
        run.abort()
        raise
