"""Limits that stop a turn: cost ceilings, and a guard against a model that repeats itself.

Decisions depend only on the state of a turn. `Run` checks the limits after every change and stops
the turn; its callers only choose the limits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..errors import CostLimitError
from .formatting import format_usd
from .model import Message, ToolCall
from .outcome import is_last_step
from .turn import Turn

LOOP = 6  # identical model answers
LOOP_WITHIN = 10.0  # seconds, by the server's clock


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A cost limit in USD (`most`), and the amount already `spent` under it.

    `name` is the option or setting that defines it.
    """

    name: str
    most: float
    spent: float = 0.0

    def exceeded_by(self, cost: float) -> bool:
        """Return whether another `cost` USD would exceed it."""
        return self.spent + cost > self.most

    def describe(self, cost: float = 0.0) -> str:
        """Describe the amount spent and the ceiling that it exceeded."""
        spent = format_usd(self.spent + cost, distinct_from=self.most)
        return f"{spent} exceeded {self.name} {format_usd(self.most)}"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a turn.

    Attributes:
        ceilings: Cost ceilings; exceeding any of them stops the turn.
        session: Limit of the session's total cost in USD, subagents included; None is no limit.
        loop_guard: Stop a model that gives six identical answers within ten seconds.
    """

    ceilings: tuple[Ceiling, ...] = ()
    session: float | None = None
    loop_guard: bool = True

    @classmethod
    def of(
        cls,
        max_cost: float | None = None,
        max_session_cost: float | None = None,
        *,
        loop_guard: bool = True,
    ) -> Limits:
        """Return limits in USD; None is no limit.

        Args:
            max_cost: Maximum cost of the turn, subagents included.
            max_session_cost: Maximum total cost of its session, subagents included.
            loop_guard: Stop a model that gives six identical answers within ten seconds.

        Raises:
            ValueError: A cost is below 0, or not a number.

        Example::

            turn = opencode_magics.ask(client, "Fix the bug", limits=Limits.of(max_cost=0.50))
        """
        for name, most in (("max_cost", max_cost), ("max_session_cost", max_session_cost)):
            if most is not None and not most >= 0:  # also rejects NaN
                raise ValueError(f"{name} takes an amount in USD, 0 or more, not {most!r}")
        ceilings = () if max_cost is None else (Ceiling("max_cost", max_cost),)
        return cls(ceilings, max_session_cost, loop_guard)

    def after(self, cost: float | None) -> Limits:
        """Return the limits after another `cost` USD was spent."""
        more = cost or 0.0
        ceilings = tuple(replace(c, spent=c.spent + more) for c in self.ceilings)
        return replace(self, ceilings=ceilings)

    def check(self) -> None:
        """Check the ceilings before a prompt is sent.

        Raises:
            CostLimitError: A ceiling is already exceeded.
        """
        if reason := self.already_exceeded():
            raise CostLimitError(f"Nothing was sent: {reason}.", "Raise the limit to continue.")

    def already_exceeded(self) -> str:
        """Describe the ceiling that is exceeded before a turn begins; "" if none is."""
        exceeded = [c for c in self.ceilings if c.exceeded_by(0.0)]
        return f"cost {exceeded[0].describe()}" if exceeded else ""

    def exceeded_limit(self, turn: Turn) -> str:
        """Describe the limit that a running turn has exceeded; "" if none.

        An unknown cost exceeds nothing. A turn whose model has finished its last step is not
        stopped, since it is about to end.
        """
        if turn.outcome != "running" or not turn.answers:
            return ""
        return (
            "" if is_last_step(turn.answers[-1]) else self.exceeded_ceiling(turn)
        ) or self._loop(turn)

    def exceeded_ceiling(self, turn: Turn) -> str:
        """Describe the ceiling that the known cost of a turn has exceeded; "" if none."""
        cost = turn.cost
        exceeded = [c for c in self.ceilings if cost is not None and c.exceeded_by(cost)]
        return f"cost {exceeded[0].describe(cost or 0.0)}" if exceeded else ""

    def _loop(self, turn: Turn) -> str:
        if not self.loop_guard or not is_looping(turn.answers):
            return ""
        return f"{LOOP} identical model answers within {LOOP_WITHIN:.0f} s (loop_guard)"


def is_looping(answers: tuple[Message, ...]) -> bool:
    """Return whether the last answers of a model are identical and came in quick succession.

    Tool outputs and unfinished answers are ignored.
    """
    last = [m for m in answers if m.completed is not None and m.error is None][-LOOP:]
    if len(last) < LOOP or any(_content(m) != _content(last[0]) for m in last):
        return False
    elapsed = (last[-1].completed or 0) - (last[0].completed or 0)
    return elapsed <= LOOP_WITHIN * 1000


def _content(message: Message) -> tuple[Any, ...]:
    """The model's own output in a message: what is compared to detect a loop."""
    calls = tuple((p.tool, p.input) for p in message.parts if isinstance(p, ToolCall))
    texts = tuple(getattr(p, "text", "") for p in message.parts)
    return (message.text, texts, calls, message.finish)


class TotalCost(NamedTuple):
    """The cost of several turns: known USD (None if none is known), and whether it is complete.

    If it is not complete, the turns cost at least `known`.
    """

    known: float | None
    complete: bool


def total_cost(turns: Iterable[Turn]) -> TotalCost:
    """Add up the cost of turns."""
    turns = list(turns)
    known = [t.cost for t in turns if t.cost is not None]
    return TotalCost(sum(known) if known else None, all(t.cost_complete for t in turns))
