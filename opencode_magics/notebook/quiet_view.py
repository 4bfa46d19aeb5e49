"""A turn that is one of many: nothing of it is shown but what it asks, and what was answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from ..core.turn import Turn
from . import wording
from .blocks import RequestState


class QuietView:
    """Shows requests alone.

    Args:
        shell: The shell whose cell this is.
        write: Where a line goes.
    """

    def __init__(self, shell: Any, write: Callable[[str], object]) -> None:
        self._live = getattr(shell, "kernel", None) is not None
        self._write = write
        self._told: set[str] = set()

    def show(self, turn: Turn, note: str = "") -> None:
        """Write down what was answered since."""
        titles = {s.id: s.title for s in turn.sessions}
        for settled in turn.settled_requests:
            asked = settled.request
            if asked.id not in self._told:
                self._told.add(asked.id)
                subagent = titles.get(asked.session, "")
                self._write(
                    wording.request_line(
                        RequestState(asked, settled.reply, settled.message, subagent)
                    )
                )

    @property
    def outputs(self) -> int | None:
        """None of its own; None where there can't be any."""
        return 0 if self._live else None

    def lend_output(self) -> str:
        """A display id to show something with."""
        return f"opencode-{uuid4().hex[:12]}"

    def step_aside(self) -> None:
        """Nothing is in the way."""

    def close(self, turn: Turn, note: str = "") -> None:
        """Write down the last of it."""
        self.show(turn)
