"""When a turn has to be stopped: it cost more than it may, or its model says the same for ever.

Everything here is decided from the state of a turn alone. `Run` asks after every change and stops
the turn; whoever drives a turn, in a cell or in a program, only says which limits count.
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

LOOP = 6  # equal answers of a model
LOOP_WITHIN = 10.0  # seconds, by the server's clock


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What a turn may cost, in USD, with what was `spent` before it counted in.

    `name` is what a person set.
    """

    name: str
    most: float
    spent: float = 0.0

    def exceeded_by(self, cost: float) -> bool:
        """Whether so much more is too much."""
        return self.spent + cost > self.most

    def describe(self, cost: float = 0.0) -> str:
        """The ceiling and what it stands at, in words."""
        spent = format_usd(self.spent + cost, distinct_from=self.most)
        return f"{spent} passed {self.name} {format_usd(self.most)}"


@dataclass(frozen=True, slots=True)
class Limits:
    """What stops a turn.

    Attributes:
        ceilings: Costs of which none may be passed.
        session: USD that its session may cost in all, subagents included; None is no limit.
        loop_guard: Stop a model that answers six times alike within ten seconds.
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
            max_cost: What the turn may cost, subagents included.
            max_session_cost: What its session may cost in all, subagents included.
            loop_guard: Stop a model that answers six times alike within ten seconds.

        Raises:
            ValueError: A cost is below 0, or not a number.

        Example::

            turn = opencode_magics.ask(client, "Fix the bug", limits=Limits.of(max_cost=0.50))
        """
        for name, most in (("max_cost", max_cost), ("max_session_cost", max_session_cost)):
            if most is not None and not most >= 0:  # NaN would be no ceiling
                raise ValueError(f"{name} takes USD, a number from 0 on, not {most!r}")
        ceilings = () if max_cost is None else (Ceiling("max_cost", max_cost),)
        return cls(ceilings, max_session_cost, loop_guard)

    def after(self, cost: float | None) -> Limits:
        """The same limits when so much was spent under them."""
        more = cost or 0.0
        spent = tuple(replace(c, spent=c.spent + more) for c in self.ceilings)
        return replace(self, ceilings=spent)

    def check(self) -> None:
        """See that there is anything left to spend.

        Raises:
            CostLimitError: A ceiling is passed already.
        """
        if why := self.already_exceeded():
            raise CostLimitError(f"Nothing was sent: {why}.", "Raise it to go on.")

    def already_exceeded(self) -> str:
        """Which ceiling is passed before a turn begins, in words; "" if none."""
        passed = [c for c in self.ceilings if c.exceeded_by(0.0)]
        return f"cost {passed[0].describe()}" if passed else ""

    def passed(self, turn: Turn) -> str:
        """Which limit a turn that runs has passed, in words; "" if none.

        Only what is known counts: an unknown cost passes nothing. A turn whose model has just said
        its last word is over by itself, and isn't stopped.
        """
        if turn.outcome != "running" or not turn.answers:
            return ""
        return (
            "" if is_last_step(turn.answers[-1]) else self.exceeded_ceiling(turn)
        ) or self._loop(turn)

    def exceeded_ceiling(self, turn: Turn) -> str:
        """Which ceiling the known cost of a turn has passed, in words; "" if none."""
        cost = turn.cost
        passed = [c for c in self.ceilings if cost is not None and c.exceeded_by(cost)]
        return f"cost {passed[0].describe(cost or 0.0)}" if passed else ""

    def _loop(self, turn: Turn) -> str:
        if not self.loop_guard or not is_looping(turn.answers):
            return ""
        return f"{LOOP} equal answers of the model within {LOOP_WITHIN:.0f} s (loop_guard)"


def is_looping(answers: tuple[Message, ...]) -> bool:
    """Whether the last answers of a model are one and the same, in no time.

    What its tools gave back doesn't count, nor do answers that are not finished.
    """
    last = [m for m in answers if m.completed is not None and m.error is None][-LOOP:]
    if len(last) < LOOP or any(_said(m) != _said(last[0]) for m in last):
        return False
    took = (last[-1].completed or 0) - (last[0].completed or 0)
    return took <= LOOP_WITHIN * 1000


def _said(message: Message) -> tuple[Any, ...]:
    """What a model said in a message, as it counts for being the same."""
    calls = tuple((p.tool, p.input) for p in message.parts if isinstance(p, ToolCall))
    texts = tuple(getattr(p, "text", "") for p in message.parts)
    return (message.text, texts, calls, message.finish)


class TotalCost(NamedTuple):
    """What turns cost together: USD as far as it is known, None if nothing is; and if that is all.

    Where it is not, they cost at least so much.
    """

    known: float | None
    complete: bool


def total_cost(turns: Iterable[Turn]) -> TotalCost:
    """What turns cost together, and whether all of it is known."""
    turns = list(turns)
    known = [t.cost for t in turns if t.cost is not None]
    return TotalCost(sum(known) if known else None, all(t.cost_complete for t in turns))
