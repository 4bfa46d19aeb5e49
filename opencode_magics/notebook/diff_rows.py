"""What a cell shows of changes: which lines, what differs in them, what to say beside a name.

Pure words and rows; `html` and `text` draw them. Strange characters are marks that one can see.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import chain, zip_longest
from typing import NamedTuple

from ..core.diffs import ChangedFile, Diff, Source
from ..core.model import FileDiff
from ..core.patches import FileChange, Hunk, changes_in, trim_context

MAX_LINES = 400  # of one file
MAX_WIDTH = 400  # characters of one line
MAX_TOGETHER = 1_200  # lines of all files of one tool call, or of one Diff
MAX_FILES = 100  # of one Diff

Marks = tuple[tuple[int, int], ...]


class DiffRow(NamedTuple):
    r"""A line to show.

    Attributes:
        kind: `@`, space, `+`, `-`, `\` (a note on the line above) or `…` (on what is left out).
        text: The line with its sign.
        old, new: Its numbers before and after.
        marks: From where to where it differs from the line that it replaces.
    """

    kind: str
    text: str
    old: int | None = None
    new: int | None = None
    marks: Marks = ()


# -- what to say of a change -----------------------------------------------------------------------


def notes(change: FileChange) -> tuple[str, ...]:
    """What to say beside name and counts: `added`, `binary`, `too large to show`, ..."""
    what = () if change.status == "modified" else (change.status,)
    mode = (f"mode {change.mode}",) if change.mode else ()
    ends = line_endings(change)
    if ends:
        return (*what, *mode, f"line endings changed {ends}, no text change")
    return (*what, *mode, *_missing(change))


def _missing(change: FileChange) -> tuple[str, ...]:
    """Why there are no lines to show, if there are none."""
    if change.hunks:
        return _untold(change)
    if change.mode or change.status in ("renamed", "copied"):
        return ()
    if change.binary:
        return ("binary",)
    edited = (change.additions or 0) + (change.deletions or 0)
    if change.told and not edited:
        return ("no text change",) if change.status == "modified" else ("empty",)
    return ("too large to show" if edited > MAX_LINES else "no text",)


def _untold(change: FileChange) -> tuple[str, ...]:
    """Where a patch has other lines than the server counts: it was cut, or isn't UTF-8."""
    signs = [line[0] for hunk in change.hunks for line in hunk.lines]
    plus, minus = signs.count("+"), signs.count("-")
    return (
        () if change.counts in ((plus, minus), (None, None)) else (f"patch has +{plus} -{minus}",)
    )


def line_endings(change: FileChange) -> str:
    """`CRLF → LF` when line ends are all that changed, else ""."""
    before, after = (_texts(change, sign) for sign in "-+")
    kinds: tuple[set[str], set[str]] = (set(), set())
    for old, new in zip_longest(before, after):
        if old is None or new is None or old.rstrip("\r") != new.rstrip("\r"):
            return ""  # at the first line as a rule, however many there are
        for kind, line in zip(kinds, (old, new), strict=True):
            kind.add("CRLF" if line.endswith("\r") else "LF")
    told = ["/".join(sorted(kind)) for kind in kinds]
    return "" if told[0] == told[1] else " → ".join(told)


def _texts(change: FileChange, sign: str) -> Iterator[str]:
    return (line[1:] for hunk in change.hunks for line in hunk.lines if line[0] == sign)


def source(diff: Diff) -> str:
    """Where a Diff is from, in words."""
    turns = len({e.message for e in diff.edits})
    together = f"{turns} turns together, " if turns > 1 else ""
    return together + _SOURCES[diff.source]


_SOURCES: dict[Source, str] = {
    "session": "as the server tells it",
    "turns": "as the server tells it",
    "tools": "as the edit tools tell it: the server lists no changes, commands tell none",
    "turns and tools": "as the server tells it, and where it lists none the edit tools",
    "nothing": "",
}


def title(diff: Diff) -> str:
    """How many files changed, or that none did."""
    n = len(diff)
    if n:
        return f"{n:,} {'file' if n == 1 else 'files'} changed"
    return "No diff data" if diff.source == "nothing" else "The server lists no changes"


def file_notes(file: ChangedFile) -> tuple[str, ...]:
    """What to say of a file of a Diff; of several changes, how many they are."""
    edits, apart = len(file.edits), len(file.changes)
    if apart > 1:
        what = () if file.status == "modified" else (file.status,)
        return (*what, f"{apart} changes, one after the other")
    together = f"{edits} changes in one" if file.changes[0].hunks else f"{edits} changes undone"
    return (together,) if edits > 1 else notes(file.changes[0])


# -- which lines -----------------------------------------------------------------------------------


def rows_by_change(diffs: Iterable[FileDiff]) -> Iterator[tuple[FileChange, list[DiffRow]]]:
    """All changes with the lines to show; the more there are, the fewer of each."""
    left = MAX_TOGETHER
    for change in (c for d in diffs for c in changes_in(d)):
        found = with_emphasis(rows(change, min(MAX_LINES, left)))
        yield change, found
        left = max(0, left - len(found))


def rows_by_file(diff: Diff) -> Iterator[tuple[ChangedFile, list[DiffRow]]]:
    """The files of a Diff with the lines to show; a single file may have as many as all."""
    left, most = MAX_TOGETHER, MAX_LINES if len(diff.files) > 1 else MAX_TOGETHER
    for file in diff.files[:MAX_FILES]:
        found: list[DiffRow] = []
        for n, change in enumerate(file.changes, 1):
            if len(file.changes) > 1:
                counted = " ".join(f"{s}{c}" for s, c in zip("+-", change.counts, strict=True) if c)
                told = [f"{n} of {len(file.changes)}", counted, *notes(change)]
                found.append(DiffRow("@", " · ".join(w for w in told if w)))
            room = max(0, min(most, left) - len(found))
            found += with_emphasis(_rows(change, change.hunks, room))
        yield file, found
        left = max(0, left - len(found))


def omission_note(diff: Diff, found: Iterable[DiffRow]) -> str:
    """What is not among the rows shown of a Diff, and how to get it; "" if it is all there."""
    files = len(diff.files) - MAX_FILES
    if files <= 0 and not any(row.kind == "…" or len(row.text) > MAX_WIDTH for row in found):
        return ""
    more = f"{files:,} more files. " if files > 0 else ""
    one = 'diff["FILE"] shows more of one file. ' if len(diff.files) > 1 else ""
    return f"{more}{one}All of it: diff.to_frame(lines=True), diff.patch"


def rows(change: FileChange, limit: int = MAX_LINES) -> Iterator[DiffRow]:
    """What to show of a change; strange characters are marks that one can see."""
    return _rows(change, tuple(trim_context(change.hunks)), limit)


def _rows(change: FileChange, hunks: tuple[Hunk, ...], limit: int) -> Iterator[DiffRow]:
    if line_endings(change):
        return
    all_crlf = all(line.endswith("\r") for h in change.hunks for line in h.lines if line[0] != "\\")
    left = limit
    for hunk in hunks:
        if left <= 0:
            break
        yield DiffRow("@", visible_line(hunk.header))
        for sign, old, new, text in hunk.numbered():
            if left <= 0:
                break
            text = _narrow(sign + (text.removesuffix("\r") if all_crlf else text))
            yield DiffRow(sign, text, old, new)
            left -= 1
    more = sum(len(h.lines) for h in hunks) - limit
    if more > 0:
        yield DiffRow("…", f"… {more:,} more lines")


# -- what differs in them --------------------------------------------------------------------------

_TOKEN = re.compile(r"\w+|\s+|.", re.DOTALL)
_TOKENS = 200  # of one line, to look into it at all
_SEARCHED = 12  # lines on a side, to look which one became which
_ALIKE = 0.5

Pair = tuple[DiffRow | None, DiffRow | None]


def with_emphasis(rows: Iterable[DiffRow]) -> list[DiffRow]:
    """The same rows, with marks where a line differs from the one it replaces."""
    found: list[DiffRow] = []
    for pairs in _blocks(rows):
        told = [_marked(*pair) for pair in pairs]
        found += [old for old, _ in told if old is not None]
        found += [new for old, new in told if new is not None and new is not old]
    return found


def side_by_side(rows: Iterable[DiffRow]) -> Iterator[Pair]:
    """Rows side by side: before and after, the same row twice where nothing changed."""
    return chain.from_iterable(_blocks(rows))


def _blocks(rows: Iterable[DiffRow]) -> Iterator[list[Pair]]:
    """Rows in pairs, a block of changed lines at a time."""
    block: tuple[list[DiffRow], list[DiffRow]] = ([], [])
    side = 0
    for row in rows:
        if row.kind == "\\" and any(block):
            block[side].append(row)
        elif row.kind in ("-", "+"):
            if row.kind == "-" and block[1]:
                yield _paired(*block)
                block = ([], [])
            side = int(row.kind == "+")
            block[side].append(row)
        else:
            if any(block):
                yield _paired(*block)
            block = ([], [])
            yield [(row, row)]
    if any(block):
        yield _paired(*block)


def _paired(removed: list[DiffRow], added: list[DiffRow]) -> list[Pair]:
    """Which line became which: one by one if they are equally many, else those that are alike."""
    pairs: list[Pair] = []
    left = right = 0
    for here, there in _matches(removed, added):
        pairs += [(row, None) for row in removed[left:here]]
        pairs += [(None, row) for row in added[right:there]]
        pairs.append((removed[here], added[there]))
        left, right = here + 1, there + 1
    pairs += [(row, None) for row in removed[left:]]
    return pairs + [(None, row) for row in added[right:]]


def _matches(removed: list[DiffRow], added: list[DiffRow]) -> Iterator[tuple[int, int]]:
    plain = all(row.kind != "\\" for row in (*removed, *added))
    if plain and len(removed) == len(added):
        yield from ((n, n) for n in range(len(added)))
        return
    if max(len(removed), len(added)) > _SEARCHED:
        return
    begin = 0
    for here, row in enumerate(removed):
        for there in range(begin, len(added)):
            if row.kind == "-" and added[there].kind == "+" and _alike(row, added[there]):
                yield here, there
                begin = there + 1
                break


def _alike(old: DiffRow, new: DiffRow) -> bool:
    matcher = SequenceMatcher(None, old.text[1:], new.text[1:], autojunk=False)
    return matcher.quick_ratio() > _ALIKE and any(_marks(old.text, new.text))


def _marked(old: DiffRow | None, new: DiffRow | None) -> Pair:
    if old is None or new is None or (old.kind, new.kind) != ("-", "+"):
        return old, new
    before, after = _marks(old.text, new.text)
    return old._replace(marks=before), new._replace(marks=after)


@lru_cache(maxsize=4_096)
def _marks(old: str, new: str) -> tuple[Marks, Marks]:
    """Where two lines differ, by words; nothing where they have too little in common."""
    if max(len(old), len(new)) > MAX_WIDTH:
        return (), ()
    before, after = (_TOKEN.findall(line[1:]) for line in (old, new))
    if not before or not after or max(len(before), len(after)) > _TOKENS:
        return (), ()
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    same = [b for b in matcher.get_matching_blocks() if b.size]
    kept = sum(len(t.strip()) for b in same for t in before[b.a : b.a + b.size])
    if kept < _ALIKE * min(len(line[1:].strip()) for line in (old, new)):
        return (), ()
    left = _between(before, [(b.a, b.a + b.size) for b in same])
    return left, _between(after, [(b.b, b.b + b.size) for b in same])


def _between(tokens: Sequence[str], same: list[tuple[int, int]]) -> Marks:
    """The stretches outside of what is the same, as places in the line; a blank joins two."""
    changed = [True] * len(tokens)
    for begin, end in same:
        for n in range(begin, end):
            changed[n] = False
    for n in range(1, len(tokens) - 1):
        changed[n] = changed[n] or (tokens[n].isspace() and changed[n - 1] and changed[n + 1])
    marks: list[tuple[int, int]] = []
    at = 1
    for token, different in zip(tokens, changed, strict=True):
        end = at + len(token)
        if different:
            joined = marks and marks[-1][1] == at
            marks = [*marks[:-1], (marks[-1][0], end)] if joined else [*marks, (at, end)]
        at = end
    return tuple(marks)


# -- strange characters ----------------------------------------------------------------------------


def _narrow(line: str) -> str:
    if len(line) <= MAX_WIDTH:
        return visible_line(line)
    return f"{visible_line(line[:MAX_WIDTH])} … {len(line) - MAX_WIDTH:,} more characters"


# Controls, line separators, directions, what takes no room (but not the joiners of scripts and
# emoji), halves of pairs, tags.
_STRANGE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible_line(text: str) -> str:
    """A line with its control, separator and direction characters as visible marks."""
    return _STRANGE.sub(_mark, text)


def visible_lines(text: str) -> str:
    """The same for many lines: nothing is taken away, so it is what a shell would be given."""
    return "\n".join(map(visible_line, text.split("\n")))


def _mark(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"
