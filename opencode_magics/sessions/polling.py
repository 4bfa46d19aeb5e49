"""When to look at the store again, and when to give up: times, and nothing that acts.

A stream says what happens, but not everything and not always. A `Lookout` is told what was heard
and seen, each time with the clock of whoever follows, and says whether a look is due.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SOON = 0.25  # seconds to the second look; the pauses double from there
QUIET = 15.0  # seconds in which nothing is heard: perhaps an end was missed
_LONGEST = 4.0  # seconds between two looks
_ENOUGH = 2.0  # a pause of so many seconds is reached by looks without a reason of their own


@dataclass(frozen=True, slots=True)
class Lookout:
    """What the clock says of a turn that is followed; every method gives how it is afterwards.

    Attributes:
        changed: When the turn changed last.
        due: When to look; None is not before there is a reason.
        pause: Seconds from the next look to the one after it.
        gap: The stream was opened, and the store not read since.
        out_since: Since when nothing came by any way; None while something does.
        idle_since: Since when the store says that the session is idle, and the turn not over.
    """

    changed: float
    due: float | None = None
    pause: float = SOON
    gap: bool = False
    out_since: float | None = None
    idle_since: float | None = None

    def soon(self, now: float) -> Lookout:
        """There is a reason to look at once, and then again before long."""
        return replace(self, due=now, pause=SOON)

    def opened(self, now: float) -> Lookout:
        """The stream was opened: what happened before is nowhere but in the store."""
        return replace(self.soon(now), gap=True)

    def heard(self) -> Lookout:
        """Something came on the stream."""
        return replace(self, out_since=None)

    def moved(self, now: float) -> Lookout:
        """The turn changed."""
        return replace(self, changed=now)

    def missed(self, now: float) -> Lookout:
        """Nothing comes by one way; the clock runs until something comes by any way."""
        due = now + self.pause if self.due is None else self.due
        return replace(self, due=due, out_since=now if self.out_since is None else self.out_since)

    def busy(self) -> Lookout:
        """The session is at work: no need to look, unless there was a gap."""
        return replace(self, due=self.due if self.gap else None, idle_since=None)

    def at(self, now: float) -> Lookout:
        """A time came: after a long silence a look is due."""
        silent = self.due is None and now - self.changed > QUIET
        return self.moved(now).soon(now) if silent else self

    def is_due(self, now: float) -> bool:
        """Whether it is time to look."""
        return self.due is not None and now >= self.due

    def read(self) -> Lookout:
        """The store was read."""
        return replace(self, out_since=None, gap=False)

    def resting(self, now: float, idle: bool) -> Lookout:
        """What the store said: whether the session is idle, and the turn not over."""
        since = now if self.idle_since is None else self.idle_since
        return replace(self, idle_since=since if idle else None)

    def idle_for(self, now: float) -> float:
        """For how many seconds the session is known to be idle, and the turn not over."""
        return 0.0 if self.idle_since is None else now - self.idle_since

    def looked(self, now: float, again: bool) -> Lookout:
        """A look is over, however it went; `again` if what it found calls for another.

        The status lags behind the end of a turn, so the first few are followed by another anyway,
        less and less often.
        """
        again = again or self.pause < _ENOUGH or self.out_since is not None
        due = now + self.pause if again else None
        return replace(self, due=due, pause=min(self.pause * 2, _LONGEST))

    def is_hopeless(self, now: float, patience: float) -> bool:
        """Whether nothing came by any way for more than so many seconds."""
        return self.out_since is not None and now - self.out_since > patience
