"""When to look at the store again, and when to give up: times, and nothing that acts.

A stream says what happens, but not everything and not always. A `Lookout` is told what was heard
and seen, each time with the clock of whoever follows, and says whether a look is due.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SOON = 0.25  # seconds to the second look; the pauses double from there
QUIET = 15.0  # seconds in which nothing is heard: perhaps an end was missed
_LONGEST = 4.0  # seconds between two looks
_ENOUGH = 2.0  # a interval of so many seconds is reached by looks without a reason of their own


@dataclass(frozen=True, slots=True)
class PollingSchedule:
    """What the clock says of a turn that is followed; every method gives how it is afterwards.

    Attributes:
        changed: When the turn changed last.
        due: When to look; None is not before there is a reason.
        interval: Seconds from the next look to the one after it.
        gap: The stream was opened, and the store not read since.
        disconnected_since: Since when nothing came by any way; None while something does.
        idle_since: Since when the store says that the session is idle, and the turn not over.
    """

    changed: float
    due: float | None = None
    interval: float = SOON
    gap: bool = False
    disconnected_since: float | None = None
    idle_since: float | None = None

    def due_now(self, now: float) -> PollingSchedule:
        """There is a reason to look at once, and then again before long."""
        return replace(self, due=now, interval=SOON)

    def stream_opened(self, now: float) -> PollingSchedule:
        """The stream was opened: what happened before is nowhere but in the store."""
        return replace(self.due_now(now), gap=True)

    def event_received(self) -> PollingSchedule:
        """Something came on the stream."""
        return replace(self, disconnected_since=None)

    def turn_changed(self, now: float) -> PollingSchedule:
        """The turn changed."""
        return replace(self, changed=now)

    def contact_lost(self, now: float) -> PollingSchedule:
        """Nothing comes by one way; the clock runs until something comes by any way."""
        due = now + self.interval if self.due is None else self.due
        return replace(
            self,
            due=due,
            disconnected_since=now if self.disconnected_since is None else self.disconnected_since,
        )

    def session_busy(self) -> PollingSchedule:
        """The session is at work: no need to look, unless there was a gap."""
        return replace(self, due=self.due if self.gap else None, idle_since=None)

    def tick(self, now: float) -> PollingSchedule:
        """A time came: after a long silence a look is due."""
        silent = self.due is None and now - self.changed > QUIET
        return self.turn_changed(now).due_now(now) if silent else self

    def is_due(self, now: float) -> bool:
        """Whether it is time to look."""
        return self.due is not None and now >= self.due

    def store_read(self) -> PollingSchedule:
        """The store was read."""
        return replace(self, disconnected_since=None, gap=False)

    def idle_observed(self, now: float, idle: bool) -> PollingSchedule:
        """What the store said: whether the session is idle, and the turn not over."""
        since = now if self.idle_since is None else self.idle_since
        return replace(self, idle_since=since if idle else None)

    def idle_for(self, now: float) -> float:
        """For how many seconds the session is known to be idle, and the turn not over."""
        return 0.0 if self.idle_since is None else now - self.idle_since

    def polled(self, now: float, again: bool) -> PollingSchedule:
        """A look is over, however it went; `again` if what it found calls for another.

        The status lags behind the end of a turn, so the first few are followed by another anyway,
        less and less often.
        """
        again = again or self.interval < _ENOUGH or self.disconnected_since is not None
        due = now + self.interval if again else None
        return replace(self, due=due, interval=min(self.interval * 2, _LONGEST))

    def has_timed_out(self, now: float, patience: float) -> bool:
        """Whether nothing came by any way for more than so many seconds."""
        return self.disconnected_since is not None and now - self.disconnected_since > patience
