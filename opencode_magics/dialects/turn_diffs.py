"""Collect the changes of a session turn by turn, from the server's reports or from the edit tools.

The algorithm is the same for both generations; each passes functions that read its own messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..core.diffs import Diff, source_of
from ..core.model import FileDiff, Session
from ..errors import NotFoundError
from .base import Flow

M = TypeVar("M")  # a message: decoded, or as on the wire


@dataclass(frozen=True, slots=True)
class TurnDiffs(Generic[M]):
    """Collects the changes of turns.

    Attributes:
        reported: Returns the server's report on a turn, given its prompt's id and its messages.
        tool_edits: Yields, for each tool call of a message, its edits and its subagent's session.
        messages: Reads the messages of a subagent's session.
    """

    reported: Callable[[str, Sequence[M]], Flow[Sequence[FileDiff]]]
    tool_edits: Callable[[M], Iterable[tuple[Sequence[FileDiff], str | None]]]
    messages: Callable[[str], Flow[Sequence[M]]]

    def collect(self, session: Session, turns: Mapping[str, Sequence[M]]) -> Flow[Diff | None]:
        """Collect the changes of turns, by prompt id; None if there are none.

        If the server reports nothing, as outside of git, the edit tools' own reports are used,
        including those of subagents.
        """
        changes: list[tuple[str, FileDiff]] = []
        kinds: set[str] = set()
        seen = {session.id}
        for prompt, messages in turns.items():
            diffs = yield from self.reported(prompt, messages)
            kind = "turns" if diffs else "tools"
            diffs = diffs or (yield from self._edits(messages, seen))
            kinds |= {kind} if diffs else set()
            changes += [(prompt, d) for d in diffs]
        return Diff.of(changes, source_of(kinds), session.directory) if kinds else None

    def _edits(self, messages: Sequence[M], seen: set[str]) -> Flow[list[FileDiff]]:
        edits: list[FileDiff] = []
        for diffs, child in (edit for m in messages for edit in self.tool_edits(m)):
            edits += diffs
            if child and child not in seen:
                seen.add(child)  # its session has the edits of all calls
                with suppress(NotFoundError):  # deleted
                    below = yield from self.messages(child)
                    edits += yield from self._edits(below, seen)
        return edits
