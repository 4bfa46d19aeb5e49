"""Plan a revert: which files it overwrites, who changed them last, and what would be lost.

A revert restores a snapshot of the whole directory, also files that the agent never touched: a
notebook that was saved meanwhile, or a file that was edited since.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..core.attribution import attribute
from ..core.formatting import pluralize
from ..core.model import FileDiff, Message, Session

Risk = Literal["open here", "a checkpoint", "changed since", ""]
_CLOCKS = 2.0  # seconds by which the times of the server and the file system may differ


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file that a revert overwrites.

    Attributes:
        path: Its path in the session's directory.
        by: Who changed it: "the agent's edits", or what else ran meanwhile.
        risk: Why its content now would be lost; "" if it is what the agent left.
    """

    path: str
    by: str
    risk: Risk = ""

    def __str__(self) -> str:
        return f"{self.path} ({', '.join(filter(None, (self.by, self.risk)))})"


@dataclass(frozen=True, slots=True)
class RevertPlan:
    """What a revert to before a prompt will do.

    Attributes:
        prompt: The prompt's id.
        messages: The number of messages that are reverted.
        files: The files that it overwrites.
    """

    prompt: str
    messages: int
    files: tuple[PlannedFile, ...]

    @property
    def at_risk(self) -> tuple[PlannedFile, ...]:
        """The files whose content now would be lost."""
        return tuple(f for f in self.files if f.risk)

    def __str__(self) -> str:
        what = f"{pluralize(self.messages, 'message')} from {self.prompt} on will be reverted"
        if not self.files:
            return f"{what}; no changed file is known."
        return f"{what}, and these files overwritten: {', '.join(map(str, self.files))}."


def make_plan(
    session: Session,
    reverted: Sequence[Message],
    diffs: Sequence[FileDiff],
    *,
    local: bool,
    is_open: Callable[[Path], bool],
    written: float = 0.0,
) -> RevertPlan:
    """Make the plan of a revert.

    Args:
        session: The session.
        reverted: The messages that are reverted; the first one is the prompt.
        diffs: The changes of their turns.
        local: Whether the session's files are on this machine; else they can't be checked.
        is_open: Returns whether a file is a notebook that is open here.
        written: When the server is known to have written the files (s since the epoch), if that
            was after the turns.
    """
    found = attribute(diffs, reverted)
    last = max(written, *((m.completed or m.created or 0) / 1000 for m in reverted))
    root = Path(session.directory)

    def planned(diff: FileDiff, by: str) -> PlannedFile:
        risk: Risk = _risk(root / diff.file, last, is_open) if local else ""
        return PlannedFile(diff.file, by, risk)

    others = f"during {found.during}" if found.during else "not by this agent"
    return RevertPlan(
        reverted[0].id,
        len(reverted),
        (
            *(planned(diff, "by the agent's edits") for diff in found.edited),
            *(planned(diff, others) for diff in found.meanwhile),
        ),
    )


def _risk(file: Path, last: float, is_open: Callable[[Path], bool]) -> Risk:
    if ".ipynb_checkpoints" in file.parts:
        return "a checkpoint"
    if is_open(file):
        return "open here"
    try:
        changed = file.stat().st_mtime
    except OSError:  # it is gone, so nothing of it can be lost
        return ""
    return "changed since" if changed > last + _CLOCKS else ""


def refused(plan: RevertPlan, forced: Collection[str]) -> tuple[PlannedFile, ...]:
    """The files at risk that nobody named explicitly."""
    return tuple(f for f in plan.at_risk if f.path not in forced)
