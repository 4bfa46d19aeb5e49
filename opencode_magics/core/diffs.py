"""What changed in a session, or in one of its turns: a `Diff`, file by file.

A server tells of changes turn by turn. Where the text after one turn is the text before the next,
the two are one change of the file; else they are listed one after the other. No text is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from ..errors import UnknownNameError
from .columns import CATEGORY, COUNT, TEXT, Column, Columns, frame_from_rows
from .model import FileDiff
from .patches import FileChange, Hunk, changes_in, format_patch, make_patch, parse, trim_context

if TYPE_CHECKING:
    import pandas as pd

Source = Literal["session", "turns", "tools", "turns and tools", "nothing"]
Layout = Literal["unified", "side by side"]


def source_of(kinds: Collection[str]) -> Source:
    """Who told of changes, where some came of "turns", or of "tools", or of both."""
    if len(kinds) == 2:
        return "turns and tools"
    return "tools" if "tools" in kinds else "turns"


_COMPARED = 20_000  # lines to compare at most, to make one change of several


@dataclass(frozen=True, slots=True)
class Edit:
    """What one turn did to one file; `message` is the turn's prompt, "" for a whole session."""

    change: FileChange
    message: str = ""


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file of a `Diff`.

    Attributes:
        name: What it is called in the end; `before` what it was called, if something else.
        edits: What was told of it, turn by turn, oldest first.
        changes: The same as few changes as can be: one, where they follow from each other.
    """

    name: str
    edits: tuple[Edit, ...]
    changes: tuple[FileChange, ...]

    @property
    def before(self) -> str:
        """What it was called before a rename or a copy, else ""."""
        old = next((c.old for c in self.changes if c.status in ("renamed", "copied")), "")
        return "" if old == self.name else old

    @property
    def status(self) -> str:
        """What happened to it in the end: added, modified, deleted, renamed or copied."""
        if len(self.changes) == 1:
            return self.changes[0].status
        first, last = self.changes[0].status, self.changes[-1].status
        return "deleted" if last == "deleted" else "modified" if first == "deleted" else first

    @property
    def counts(self) -> tuple[int | None, int | None]:
        """Lines added and deleted; of several changes the sums, None where nobody counted."""
        return _sums(c.counts for c in self.changes)


@dataclass(frozen=True)
class Diff:
    """All changes of a session or a turn, file by file. A notebook shows it in full.

    Attributes:
        edits: What was told, in order.
        source: Who told it: the server of the whole `session` or of its `turns`; or, where it
            keeps no track of files (no git), the edit `tools` of what they did themselves.
        layout: How it is shown.

    Example::

        diff["cart.py"].side_by_side()
        diff.to_frame().nlargest(5, "additions")
        open("agent.patch", "w").write(diff.patch)
    """

    edits: tuple[Edit, ...] = ()
    source: Source = "turns"
    layout: Layout = "unified"

    @classmethod
    def of(
        cls, told: Iterable[tuple[str, FileDiff]], source: Source = "turns", directory: str = ""
    ) -> Diff:
        """Made of what was told of single files, each with the id of the prompt that led to it.

        Names of files in `directory` are made relative to it.
        """
        edits = (
            Edit(_relative(change, directory), message)
            for message, diff in told
            for change in changes_in(diff)
        )
        return cls(tuple(edits), source)

    @cached_property
    def files(self) -> tuple[ChangedFile, ...]:
        """The changed files, in the order in which they were first changed."""
        found: dict[str, list[Edit]] = {}
        for edit in self.edits:
            found.setdefault(edit.change.new or edit.change.old, []).append(edit)
        return tuple(
            ChangedFile(name, tuple(edits), _few([e.change for e in edits]))
            for name, edits in found.items()
        )

    @property
    def counts(self) -> tuple[int | None, int | None]:
        """Lines added and deleted in all files; None where nobody counted any."""
        return _sums(f.counts for f in self.files)

    @property
    def additions(self) -> int | None:
        """Lines added in all files."""
        return self.counts[0]

    @property
    def deletions(self) -> int | None:
        """Lines deleted in all files."""
        return self.counts[1]

    @property
    def patch(self) -> str:
        """All of it as one patch that `git apply` takes, without what is not text."""
        return "".join(format_patch(c) for f in self.files for c in f.changes)

    def side_by_side(self) -> Diff:
        """The same, shown with the lines before on the left and after on the right."""
        return replace(self, layout="side by side")

    def unified(self) -> Diff:
        """The same, shown with removed lines above added ones."""
        return replace(self, layout="unified")

    def to_frame(self, lines: bool = False) -> pd.DataFrame:
        """The changed files as a DataFrame, one row each; or all their lines, one row each.

        Args:
            lines: A row for every line of every change, however long the diff is.

        Returns:
            Of files: file, before (its name before a rename), status, additions, deletions,
            edits (how many turns or tools changed it), changes (what that came to; 1 unless they
            don't follow from each other), message (the last prompt that changed it).
            Of lines: file, message (NA where a change is the sum of several), change and hunk
            (numbers from 1), kind (context, added, removed), old_line, new_line, text.
            Unknown is NA.
        """
        if lines:
            return frame_from_rows(_LINE, (row for f in self.files for row in _lines(f)))
        return frame_from_rows(_FILE, self.files)

    def __getitem__(self, name: str) -> Diff:
        """The part about one file, by its name or by the end of it where that is unique.

        Raises:
            UnknownNameError: No file is called so, or several are.
        """
        found = [f for f in self.files if name in (f.name, f.before)]
        found = found or [f for f in self.files if f.name.endswith(f"/{name}")]
        if len(found) == 1:
            return replace(self, edits=found[0].edits)
        known = ", ".join(repr(f.name) for f in (found or self.files)[:10])
        what = f"{len(found)} files end so" if found else "No such file"
        raise UnknownNameError(f"{what} in the diff: {name!r}.", f"There is {known or 'none'}.")

    def __contains__(self, name: object) -> bool:
        return any(f.name == name for f in self.files)

    def __iter__(self) -> Iterator[str]:
        """The names of the files."""
        return (f.name for f in self.files)

    def __len__(self) -> int:
        return len(self.files)

    def __repr__(self) -> str:
        plus, minus = ("?" if n is None else n for n in self.counts)
        return f"<Diff of {len(self)} files, +{plus} -{minus}, from {self.source}>"


def _relative(change: FileChange, directory: str) -> FileChange:
    root = directory.rstrip("/\\")
    if not root:
        return change
    old, new = (
        name[len(root) + 1 :] if name.startswith((f"{root}/", f"{root}\\")) else name
        for name in (change.old, change.new)
    )
    return replace(change, old=old, new=new)


def _sums(counts: Iterable[tuple[int | None, int | None]]) -> tuple[int | None, int | None]:
    known = list(counts)
    plus, minus = ([c[side] for c in known if c[side] is not None] for side in (0, 1))
    return sum(plus) if plus else None, sum(minus) if minus else None  # type: ignore[arg-type]


# -- several changes of a file ---------------------------------------------------------------------


def _few(told: list[FileChange]) -> tuple[FileChange, ...]:
    """The changes of one file; one where each begins with the text that the one before left."""
    if len(told) > 1 and (whole := _one(told)):
        return (whole,)
    return tuple(replace(c, hunks=tuple(trim_context(c.hunks))) for c in told)


def _one(told: list[FileChange]) -> FileChange | None:
    """All changes as one, None if their texts don't prove that they follow from each other."""
    texts = [_texts(c) for c in told]
    known = [t for t in texts if t is not None]
    follow = all(after == before for (_, after), (before, _) in pairwise(known))
    if len(known) < len(told) or not follow:
        return None
    before, after = known[0][0], known[-1][1]
    if len(before) + len(after) > _COMPARED:
        return None
    patch = parse(make_patch(before, after))
    hunks = patch[0].hunks if patch else ()
    signs = [line[0] for hunk in hunks for line in hunk.lines]
    old, new = told[0].old, told[-1].new
    status: Any = "modified" if bool(old) == bool(new) else "added" if new else "deleted"
    if not (old or new):  # it came and went
        old = new = told[0].new
    return FileChange(old, new, status, False, hunks, signs.count("+"), signs.count("-"))


def _texts(change: FileChange) -> tuple[list[str], list[str]] | None:
    """The lines before and after, if a change tells them from the first line on in one piece.

    What stands behind that piece, if anything, is the same before and after.
    """
    counted = sum(line[0] == "+" for h in change.hunks for line in h.lines)
    deleted = sum(line[0] == "-" for h in change.hunks for line in h.lines)
    if not change.told or change.mode or change.counts != (counted, deleted):
        return None  # lines that aren't UTF-8 are counted but can't be told apart
    if not change.hunks:
        return ([], []) if change.status in ("added", "deleted") else None
    if len(change.hunks) > 1 or change.hunks[0].starts != (1, 1):
        return None
    return None if change.status in ("renamed", "copied") else _sides(change.hunks[0])


def _sides(hunk: Hunk) -> tuple[list[str], list[str]]:
    sides: tuple[list[str], list[str]] = ([], [])
    for n, line in enumerate(hunk.lines):
        if line[0] == "\\":
            continue
        bare = hunk.lines[n + 1 : n + 2] and hunk.lines[n + 1].startswith("\\")
        text = line[1:] if bare else f"{line[1:]}\n"
        for side, kind in zip(sides, (" -", " +"), strict=True):
            if line[0] in kind:
                side.append(text)
    return sides


# -- frames ----------------------------------------------------------------------------------------

_KINDS = {" ": "context", "+": "added", "-": "removed"}


def _place(n: int) -> Callable[[tuple[Any, ...]], Any]:
    return lambda row: row[n]


_FILE: Columns = {
    "file": Column(TEXT, lambda f: f.name, "What it is called in the end."),
    "before": Column(TEXT, lambda f: f.before or None, "What it was called before a rename."),
    "status": Column(CATEGORY, lambda f: f.status, "added, modified, deleted, renamed or copied."),
    "additions": Column(COUNT, lambda f: f.counts[0], "Lines added."),
    "deletions": Column(COUNT, lambda f: f.counts[1], "Lines deleted."),
    "edits": Column(COUNT, lambda f: len(f.edits), "How many turns or tools changed it."),
    "changes": Column(COUNT, lambda f: len(f.changes), "What that came to."),
    "message": Column(TEXT, lambda f: f.edits[-1].message or None, "The last prompt behind it."),
}

_LINE: Columns = {
    "file": Column(TEXT, _place(0), "What it is called in the end."),
    "message": Column(TEXT, _place(1), "The prompt behind it; NA of several."),
    "change": Column(COUNT, _place(2), "Which change of the file, from 1."),
    "hunk": Column(COUNT, _place(3), "Which hunk of the change, from 1."),
    "kind": Column(CATEGORY, _place(4), "context, added or removed."),
    "old_line": Column(COUNT, _place(5), "Its number before, from 1."),
    "new_line": Column(COUNT, _place(6), "Its number after, from 1."),
    "text": Column(TEXT, _place(7), "What it says."),
}


def _lines(file: ChangedFile) -> Iterator[tuple[Any, ...]]:
    apart = len(file.changes) == len(file.edits)
    for c, change in enumerate(file.changes, 1):
        message = file.edits[c - 1].message if apart else ""
        for h, hunk in enumerate(change.hunks, 1):
            for sign, old, new, text in hunk.numbered():
                if sign in _KINDS:
                    yield file.name, message or None, c, h, _KINDS[sign], old, new, text
