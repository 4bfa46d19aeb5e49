"""A view for one of many turns: it shows only requests and their answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from ..core.turn import Turn
from . import wording
from .blocks import RequestState


class QuietView:
    """Shows only requests.

    Args:
        shell: The shell that runs the cell.
        write: Writes a line.
    """

    def __init__(self, shell: Any, write: Callable[[str], object]) -> None:
        self._live = getattr(shell, "kernel", None) is not None
        self._write = write
        self._written: set[str] = set()

    def show(self, turn: Turn, note: str = "") -> None:
        """Write a line for each request that was answered since the last call."""
        titles = {s.id: s.title for s in turn.sessions}
        for settled in turn.settled_requests:
            request = settled.request
            if request.id not in self._written:
                self._written.add(request.id)
                subagent = titles.get(request.session, "")
                state = RequestState(
                    request, settled.reply, settled.message, subagent, settled.together
                )
                self._write(wording.request_line(state))

    @property
    def outputs(self) -> int | None:
        """0, since the view makes no outputs; None without a kernel."""
        return 0 if self._live else None

    def lend_output(self) -> str:
        """Return a new display id."""
        return f"opencode-{uuid4().hex[:12]}"

    def step_aside(self) -> None:
        """Do nothing: the view has no output to move below."""

    def close(self, turn: Turn, note: str = "") -> None:
        """Write the lines of the last requests."""
        self.show(turn)
