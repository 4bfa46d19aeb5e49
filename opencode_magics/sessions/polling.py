"""Decide when to poll the store, and when to give up on a lost connection. No I/O.

The event stream is incomplete and unreliable. A follower records its observations, with the time by
its own clock, in a `PollingSchedule`, which says whether a poll is due.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SOON = 0.25  # seconds from a first poll to the second; the interval doubles from there
QUIET = 15.0  # seconds without a change after which the end of the turn may have been missed
_LONGEST = 4.0  # the longest interval between two polls, in seconds
_ENOUGH = 2.0  # polls repeat without a further reason until the interval is this long, in seconds


@dataclass(frozen=True, slots=True)
class PollingSchedule:
    """The polling state of a followed turn; methods return the changed schedule.

    Attributes:
        changed: When the turn last changed.
        due: When to poll; None until there is a reason.
        interval: Seconds from the next poll to the one after it.
        gap: Whether the stream was opened and the store not read since.
        disconnected_since: When stream and store were lost; None while either works.
        idle_since: When the store first showed the session idle with the turn not over.
    """

    changed: float
    due: float | None = None
    interval: float = SOON
    gap: bool = False
    disconnected_since: float | None = None
    idle_since: float | None = None

    def due_now(self, now: float) -> PollingSchedule:
        """Make a poll due now, and another one soon after it."""
        return replace(self, due=now, interval=SOON)

    def stream_opened(self, now: float) -> PollingSchedule:
        """Record that the stream was opened: only the store has what happened before."""
        return replace(self.due_now(now), gap=True)

    def event_received(self) -> PollingSchedule:
        """Record that the stream delivered an event."""
        return replace(self, disconnected_since=None)

    def turn_changed(self, now: float) -> PollingSchedule:
        """Record that the turn changed."""
        return replace(self, changed=now)

    def contact_lost(self, now: float) -> PollingSchedule:
        """Record that the stream or the store was lost, until either works again."""
        due = now + self.interval if self.due is None else self.due
        return replace(
            self,
            due=due,
            disconnected_since=now if self.disconnected_since is None else self.disconnected_since,
        )

    def session_busy(self) -> PollingSchedule:
        """Record that the session is busy: no poll is needed, except after a gap."""
        return replace(self, due=self.due if self.gap else None, idle_since=None)

    def tick(self, now: float) -> PollingSchedule:
        """Make a poll due after a long silence."""
        silent = self.due is None and now - self.changed > QUIET
        return self.turn_changed(now).due_now(now) if silent else self

    def is_due(self, now: float) -> bool:
        """Return whether it is time to poll."""
        return self.due is not None and now >= self.due

    def store_read(self) -> PollingSchedule:
        """Record that the store was read."""
        return replace(self, disconnected_since=None, gap=False)

    def idle_observed(self, now: float, idle: bool) -> PollingSchedule:
        """Record whether the session is idle although the turn is not over."""
        since = now if self.idle_since is None else self.idle_since
        return replace(self, idle_since=since if idle else None)

    def idle_for(self, now: float) -> float:
        """Seconds since the session was first seen idle with the turn not over."""
        return 0.0 if self.idle_since is None else now - self.idle_since

    def polled(self, now: float, again: bool) -> PollingSchedule:
        """Record that a poll is over, successful or not; `again` if its result calls for another.

        The status lags behind the end of a turn, so the first few polls repeat anyway, at growing
        intervals.
        """
        again = again or self.interval < _ENOUGH or self.disconnected_since is not None
        due = now + self.interval if again else None
        return replace(self, due=due, interval=min(self.interval * 2, _LONGEST))

    def has_timed_out(self, now: float, patience: float) -> bool:
        """Return whether stream and store have been lost for more than `patience` seconds."""
        return self.disconnected_since is not None and now - self.disconnected_since > patience
