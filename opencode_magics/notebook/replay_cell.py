"""Play a recorded turn in a cell, with the same view and prompter as a live turn."""

from __future__ import annotations

import sys
from typing import Any

from ..core.model import ToolCall
from ..core.turn import Turn
from ..errors import TurnInterrupted
from ..sessions.follow import TICK
from ..sessions.replay import Replay
from .answerer import Answerer
from .blocks import RequestState, blocks
from .interrupts import DeferredInterrupt, interruptible
from .live import View, view
from .prompter import Prompter, Ui
from .pump import NoPump, Pump, pump_for


def replay(
    run: Replay, shell: Any, answerer: Answerer, ui: Ui = "auto", *, by_steps: bool = False
) -> Turn:
    """Play a replay to its end.

    Args:
        run: The replay.
        shell: The shell that runs the cell.
        answerer: Answers the requests of an interactive replay, and continues one by steps.
        ui: How to ask: "auto", "widgets" or "text".
        by_steps: Wait for a click before every event, unless nobody can answer.

    Returns:
        The turn, marked as a replay.

    Raises:
        TurnInterrupted: A person interrupted the cell.
    """
    shown = view(shell)
    with interruptible(), pump_for(shell) as pump:
        prompter = Prompter(run, shown, answerer, ui, pump.reason)
        try:
            if by_steps:
                _step(run, shown, prompter, pump)
            for turn in run:
                _update(turn, run, shown, prompter, pump)
        except KeyboardInterrupt:
            run.leave("the replay was stopped")
            raise TurnInterrupted(
                "The replay was stopped; no turn was running.", turn=run.turn
            ) from None
        finally:
            with DeferredInterrupt(in_flight=sys.exc_info()[0]):
                prompter.close()
                shown.close(run.turn, " ".join((*run.differences, *_truncation_note(run))))
    return run.turn


def _update(turn: Turn, run: Replay, shown: View, prompter: Prompter, pump: Pump | NoPump) -> None:
    shown.show(turn, run.note)
    pump.poll()
    if run.interactive:
        prompter.handle_requests()


def _step(run: Replay, shown: View, prompter: Prompter, pump: Pump | NoPump) -> None:
    """Play event by event, each on a person's click, until the end or "Play the rest"."""
    run.start()
    number = 0
    while not run.over:
        _update(run.turn, run, shown, prompter, pump)
        if run.waiting:
            pump.poll(TICK)
            continue
        if (answer := prompter.pause(f"step-{number}", f"Replay, {run.progress}")) is None:
            pump.poll(TICK)
            continue
        if answer == "rest":
            return
        number += 1
        run.step(_visible_events)


def _visible_events(turn: Turn) -> object:
    """Return what a step advances: complete texts, and the states of tools and requests."""
    return [
        (b.key, b.closed, getattr(b.value, "status", ""), getattr(b.value, "reply", ""))
        for b in blocks(turn)
        if b.closed or isinstance(b.value, ToolCall | RequestState)
    ]


def _truncation_note(run: Replay) -> tuple[str, ...]:
    return ("The end of the recording is missing.",) if run.recording.cut else ()
