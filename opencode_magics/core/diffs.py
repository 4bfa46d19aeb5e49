"""The file changes of a session or of one turn: a `Diff`.

Servers report changes turn by turn. Consecutive changes of a file are merged into one if each
starts from the result of the previous one; otherwise they are listed separately. Text that no patch
contains is never reconstructed.
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
    """Return the source of changes reported by "turns", by "tools", or by both."""
    if len(kinds) == 2:
        return "turns and tools"
    return "tools" if "tools" in kinds else "turns"


_MERGE_LIMIT = 20_000  # lines; longer changes are not merged, since comparing them is slow


@dataclass(frozen=True, slots=True)
class Edit:
    """One turn's change of one file; `message` is the turn's prompt, "" for a whole session."""

    change: FileChange
    message: str = ""


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file of a `Diff`.

    Attributes:
        name: Its final name.
        edits: Its reported changes, turn by turn, oldest first.
        changes: The same changes, merged into one where each follows from the previous one.
    """

    name: str
    edits: tuple[Edit, ...]
    changes: tuple[FileChange, ...]

    @property
    def before(self) -> str:
        """Its name before a rename or copy; "" if it was neither renamed nor copied."""
        old = next((c.old for c in self.changes if c.status in ("renamed", "copied")), "")
        return "" if old == self.name else old

    @property
    def status(self) -> str:
        """What happened to it overall: added, modified, deleted, renamed or copied."""
        if len(self.changes) == 1:
            return self.changes[0].status
        first, last = self.changes[0].status, self.changes[-1].status
        return "deleted" if last == "deleted" else "modified" if first == "deleted" else first

    @property
    def counts(self) -> tuple[int | None, int | None]:
        """Lines added and deleted, summed over its changes; None if unknown."""
        return _sums(c.counts for c in self.changes)


@dataclass(frozen=True)
class Diff:
    """All changes of a session or a turn, file by file; displayed in full in a notebook.

    Attributes:
        edits: The reported changes, in order.
        source: Where they come from: the server's report on the whole `session` or on its `turns`;
            or, if the server doesn't track files (no git), the edit `tools`.
        layout: How it is displayed.

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
        cls, reports: Iterable[tuple[str, FileDiff]], source: Source = "turns", directory: str = ""
    ) -> Diff:
        """Build a diff from (prompt id, changed file) pairs.

        Names of files in `directory` are made relative to it.
        """
        edits = (
            Edit(_relative(change, directory), message)
            for message, diff in reports
            for change in changes_in(diff)
        )
        return cls(tuple(edits), source)

    @cached_property
    def files(self) -> tuple[ChangedFile, ...]:
        """The changed files, in the order in which they were first changed."""
        edits_by_name: dict[str, list[Edit]] = {}
        for edit in self.edits:
            edits_by_name.setdefault(edit.change.new or edit.change.old, []).append(edit)
        return tuple(
            ChangedFile(name, tuple(edits), _merge([e.change for e in edits]))
            for name, edits in edits_by_name.items()
        )

    @property
    def counts(self) -> tuple[int | None, int | None]:
        """Lines added and deleted in all files; None if unknown."""
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
        """All changes as one patch for `git apply`; binary files are only comments in it."""
        return "".join(format_patch(c) for f in self.files for c in f.changes)

    def side_by_side(self) -> Diff:
        """Return the diff in side-by-side layout: old lines on the left, new ones on the right."""
        return replace(self, layout="side by side")

    def unified(self) -> Diff:
        """Return the diff in unified layout: removed lines above added ones."""
        return replace(self, layout="unified")

    def to_frame(self, lines: bool = False) -> pd.DataFrame:
        """Return a DataFrame with one row per changed file, or one row per line.

        Args:
            lines: Return one row per line of every change, without any limit.

        Returns:
            Per file: file, before (its name before a rename), status, additions, deletions,
            edits (how many turns or tools changed it), changes (how many are left after merging;
            1 if each follows from the previous one), message (the last prompt that changed it).
            Per line: file, message (NA in a merged change), change and hunk (numbers from 1),
            kind (context, added, removed), old_line, new_line, text.
            Unknown values are NA.
        """
        if lines:
            return frame_from_rows(_LINE, (row for f in self.files for row in _lines(f)))
        return frame_from_rows(_FILE, self.files)

    def __getitem__(self, name: str) -> Diff:
        """Return the diff of one file, by its name or by a unique suffix of its path.

        Raises:
            UnknownNameError: No file or several files match the name.
        """
        matches = [f for f in self.files if name in (f.name, f.before)]
        matches = matches or [f for f in self.files if f.name.endswith(f"/{name}")]
        if len(matches) == 1:
            return replace(self, edits=matches[0].edits)
        names = ", ".join(repr(f.name) for f in (matches or self.files)[:10])
        if matches:
            raise UnknownNameError(
                f"{len(matches)} files in the diff match {name!r}.", f"Choose one: {names}."
            )
        raise UnknownNameError(
            f"No such file in the diff: {name!r}.", f"Changed files: {names or 'none'}."
        )

    def __contains__(self, name: object) -> bool:
        return any(f.name == name for f in self.files)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the files."""
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


def _merge(changes: list[FileChange]) -> tuple[FileChange, ...]:
    """Merge the changes of one file if each starts from the result of the previous one."""
    if len(changes) > 1 and (merged := _merged(changes)):
        return (merged,)
    return tuple(replace(c, hunks=tuple(trim_context(c.hunks))) for c in changes)


def _merged(changes: list[FileChange]) -> FileChange | None:
    """All changes as one; None if their texts don't prove that each follows the previous one."""
    texts = [t for t in map(_texts, changes) if t is not None]
    consecutive = all(after == before for (_, after), (before, _) in pairwise(texts))
    if len(texts) < len(changes) or not consecutive:
        return None
    before, after = texts[0][0], texts[-1][1]
    if len(before) + len(after) > _MERGE_LIMIT:
        return None
    patch = parse(make_patch(before, after))
    hunks = patch[0].hunks if patch else ()
    signs = [line[0] for hunk in hunks for line in hunk.lines]
    old, new = changes[0].old, changes[-1].new
    status: Any = "modified" if bool(old) == bool(new) else "added" if new else "deleted"
    if not (old or new):  # added and deleted again
        old = new = changes[0].new
    return FileChange(old, new, status, False, hunks, signs.count("+"), signs.count("-"))


def _texts(change: FileChange) -> tuple[list[str], list[str]] | None:
    """The lines before and after, if a change consists of one hunk that begins at line 1.

    Lines after that hunk, if any, are unchanged.
    """
    added = sum(line[0] == "+" for h in change.hunks for line in h.lines)
    deleted = sum(line[0] == "-" for h in change.hunks for line in h.lines)
    if not change.has_patch or change.mode or change.counts != (added, deleted):
        return None  # lines that aren't UTF-8 are counted, but not in the patch
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
        unterminated = hunk.lines[n + 1 : n + 2] and hunk.lines[n + 1].startswith("\\")
        text = line[1:] if unterminated else f"{line[1:]}\n"
        for side, kind in zip(sides, (" -", " +"), strict=True):
            if line[0] in kind:
                side.append(text)
    return sides


# -- frames ----------------------------------------------------------------------------------------

_KINDS = {" ": "context", "+": "added", "-": "removed"}


def _item(n: int) -> Callable[[tuple[Any, ...]], Any]:
    return lambda row: row[n]


_FILE: Columns = {
    "file": Column(TEXT, lambda f: f.name, "Its final name."),
    "before": Column(TEXT, lambda f: f.before or None, "Its name before a rename or copy."),
    "status": Column(CATEGORY, lambda f: f.status, "added, modified, deleted, renamed or copied."),
    "additions": Column(COUNT, lambda f: f.counts[0], "Lines added."),
    "deletions": Column(COUNT, lambda f: f.counts[1], "Lines deleted."),
    "edits": Column(COUNT, lambda f: len(f.edits), "How many turns or tools changed it."),
    "changes": Column(COUNT, lambda f: len(f.changes), "Changes left after merging its edits."),
    "message": Column(TEXT, lambda f: f.edits[-1].message or None, "The last prompt to change it."),
}

_LINE: Columns = {
    "file": Column(TEXT, _item(0), "Final name of the file."),
    "message": Column(TEXT, _item(1), "The prompt that changed it; NA in a merged change."),
    "change": Column(COUNT, _item(2), "Number of the change in the file, from 1."),
    "hunk": Column(COUNT, _item(3), "Number of the hunk in the change, from 1."),
    "kind": Column(CATEGORY, _item(4), "context, added or removed."),
    "old_line": Column(COUNT, _item(5), "Line number before the change, from 1."),
    "new_line": Column(COUNT, _item(6), "Line number after the change, from 1."),
    "text": Column(TEXT, _item(7), "Text of the line."),
}


def _lines(file: ChangedFile) -> Iterator[tuple[Any, ...]]:
    unmerged = len(file.changes) == len(file.edits)
    for c, change in enumerate(file.changes, 1):
        message = file.edits[c - 1].message if unmerged else ""
        for h, hunk in enumerate(change.hunks, 1):
            for sign, old, new, text in hunk.numbered():
                if sign in _KINDS:
                    yield file.name, message or None, c, h, _KINDS[sign], old, new, text
