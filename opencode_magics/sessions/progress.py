"""The latest state of a turn that is followed, and the recording of how it got there.

A `Progress` is shared by the objects that send the prompt, follow the stream, answer requests and
stop the turn: each of them adds events, and all of them see the same turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from ..core.events import Event, TurnEnded
from ..core.fold import advance_all, with_wait_times
from ..core.model import Failure, Outcome
from ..core.turn import Turn, with_capture
from ..recording.format import Recorder


class Progress:
    """The turn so far.

    Attributes:
        turn: The latest state.
        changed: When the turn last changed, by `clock`.
        note: The state of the connection in a sentence; "" if there is no problem.
        recorder: Collects the received data, so that the turn can be saved.
    """

    def __init__(
        self, turn: Turn, recorder: Recorder, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.turn = turn
        self.changed = clock()
        self.note = ""
        self.recorder = recorder
        self._clock = clock
        self._waiting_since: dict[str, float] = {}

    def add(self, events: Iterable[Event]) -> None:
        """Fold events into the turn."""
        events = list(events)
        for event in events:
            if isinstance(event, TurnEnded):
                self.recorder.end(event.outcome, event.failure)
        before, self.turn = self.turn, advance_all(self.turn, events)
        if self.turn is not before:
            self.changed = self._clock()
            self._measure_waits()
            if self.turn.outcome != "running":
                self.attach_capture()

    def end(self, outcome: Outcome, failure: Failure | None = None) -> Turn:
        """End the turn with an outcome decided by this client."""
        self.add([TurnEnded(outcome, failure)])
        return self.turn

    def attach_capture(self) -> None:
        """Attach the data received so far to the turn, so that it can be saved."""
        self.turn = with_capture(self.turn, self.recorder.capture())

    def _measure_waits(self) -> None:
        """Measure with our own clock how long requests waited: 1.18.33 reports it nowhere."""
        for request in self.turn.waiting:
            self._waiting_since.setdefault(request.id, self.changed)
        settled = {s.request.id for s in self.turn.settled_requests} & self._waiting_since.keys()
        if settled:
            waits = {r: self.changed - self._waiting_since.pop(r) for r in settled}
            self.turn = with_wait_times(self.turn, waits)
