"""Plays a recorded turn in a cell, through the same view and the same desk as a live one."""

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
        run: What is played.
        shell: The shell whose cell this is.
        answerer: Who answers, where the replay is interactive, and goes on, where it is by steps.
        ui: How to ask: "auto", "widgets" or "text".
        by_steps: Wait for a person before everything that happens; where nobody is, play on.

    Returns:
        The turn, which says that it is a replay.

    Raises:
        TurnInterrupted: A person stopped it.
    """
    shown = view(shell)
    with interruptible(), pump_for(shell) as pump:
        desk = Prompter(run, shown, answerer, ui, pump.reason)
        try:
            if by_steps:
                _step(run, shown, desk, pump)
            for turn in run:
                _look(turn, run, shown, desk, pump)
        except KeyboardInterrupt:
            run.leave("the replay was stopped")
            raise TurnInterrupted(
                "The replay is stopped; nothing was running.", turn=run.turn
            ) from None
        finally:
            with DeferredInterrupt(in_flight=sys.exc_info()[0]):
                desk.close()
                shown.close(run.turn, " ".join((*run.differences, *_cut(run))))
    return run.turn


def _look(turn: Turn, run: Replay, shown: View, desk: Prompter, pump: Pump | NoPump) -> None:
    shown.show(turn, run.note)
    pump.poll()
    if run.interactive:
        desk.handle_requests()


def _step(run: Replay, shown: View, desk: Prompter, pump: Pump | NoPump) -> None:
    """Play one thing after another, each when a person wants it, until all or the rest is due."""
    run.start()
    number = 0
    while not run.over:
        _look(run.turn, run, shown, desk, pump)
        if run.waiting:
            pump.poll(TICK)
            continue
        if (said := desk.pause(f"step-{number}", f"Replay, {run.progress}")) is None:
            pump.poll(TICK)
            continue
        if said == "rest":
            return
        number += 1
        run.step(_things)


def _things(turn: Turn) -> object:
    """What happened in a turn: texts that are whole, tools and requests as they stand."""
    return [
        (b.key, b.closed, getattr(b.value, "status", ""), getattr(b.value, "reply", ""))
        for b in blocks(turn)
        if b.closed or isinstance(b.value, ToolCall | RequestState)
    ]


def _cut(run: Replay) -> tuple[str, ...]:
    return ("The end of the recording is missing.",) if run.recording.cut else ()
