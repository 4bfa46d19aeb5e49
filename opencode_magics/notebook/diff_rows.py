"""Diffs as rows and labels: the lines to show, their changed spans, the notes beside file names.

Pure text and rows; `html` and `text` draw them. Invisible characters become visible marks.
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

MAX_LINES = 400  # per file
MAX_WIDTH = 400  # characters per line
MAX_TOGETHER = 1_200  # lines of all files of one tool call, or of one Diff
MAX_FILES = 100  # per Diff

Marks = tuple[tuple[int, int], ...]


class DiffRow(NamedTuple):
    r"""A line to show.

    Attributes:
        kind: `@`, space, `+`, `-`, `\` (a note on the line above) or `…` (a note on omitted lines).
        text: The line with its sign.
        old, new: Line numbers before and after.
        marks: Spans (begin, end) of `text` that differ from the line that it replaces.
    """

    kind: str
    text: str
    old: int | None = None
    new: int | None = None
    marks: Marks = ()


_LOST = "\N{REPLACEMENT CHARACTER}"

# -- labels ----------------------------------------------------------------------------------------


def notes(change: FileChange) -> tuple[str, ...]:
    """Return the notes beside name and counts: `added`, `binary`, `too large to show`, ..."""
    status = () if change.status == "modified" else (change.status,)
    mode = (f"mode {change.mode}",) if change.mode else ()
    endings = line_endings(change)
    damage = _damage(change)
    if endings and not damage:
        return (*status, *mode, f"line endings changed {endings}, no text change")
    return (*status, *mode, *damage, *_missing(change))


def _damage(change: FileChange) -> tuple[str, ...]:
    """A note on lines that lost bytes: tools of 1.18.33 read and write every file as UTF-8.

    A server shows the lost byte of the line before as the same replacement character.
    """
    kept, added = ({t for t in _texts(change, sign) if _LOST in t} for sign in "-+")
    lost = len(added)
    if not lost:
        return ()
    unchanged = " (the bytes there were not UTF-8)" if added <= kept else ""
    return (f"replacement characters in {lost} {'line' if lost == 1 else 'lines'}{unchanged}",)


def _missing(change: FileChange) -> tuple[str, ...]:
    """The reason why there are no lines to show, or why some are missing."""
    if change.hunks:
        return _count_mismatch(change)
    if change.mode or change.status in ("renamed", "copied"):
        return ()
    if change.binary:
        return ("binary",)
    edited = (change.additions or 0) + (change.deletions or 0)
    if change.has_patch and not edited:
        return ("no text change",) if change.status == "modified" else ("empty",)
    return ("too large to show" if edited > MAX_LINES else "no text",)


def _count_mismatch(change: FileChange) -> tuple[str, ...]:
    """A note where patch and server count differ: the patch was cut or isn't UTF-8."""
    signs = [line[0] for hunk in change.hunks for line in hunk.lines]
    plus, minus = signs.count("+"), signs.count("-")
    return (
        () if change.counts in ((plus, minus), (None, None)) else (f"patch has +{plus} -{minus}",)
    )


def line_endings(change: FileChange) -> str:
    """Return `CRLF → LF` or the like if only line endings changed, else ""."""
    before, after = (_texts(change, sign) for sign in "-+")
    kinds: tuple[set[str], set[str]] = (set(), set())
    for old, new in zip_longest(before, after):
        if old is None or new is None or old.rstrip("\r") != new.rstrip("\r"):
            return ""  # usually at the first line, so a long patch costs little
        for kind, line in zip(kinds, (old, new), strict=True):
            kind.add("CRLF" if line.endswith("\r") else "LF")
    names = ["/".join(sorted(kind)) for kind in kinds]
    return "" if names[0] == names[1] else " → ".join(names)


def _texts(change: FileChange, sign: str) -> Iterator[str]:
    return (line[1:] for hunk in change.hunks for line in hunk.lines if line[0] == sign)


def source(diff: Diff) -> str:
    """Describe the source of a Diff."""
    turns = len({e.message for e in diff.edits})
    combined = f"{turns} turns combined, " if turns > 1 else ""
    return combined + _SOURCES[diff.source]


_SOURCES: dict[Source, str] = {
    "session": "from the server",
    "turns": "from the server",
    "tools": "from the edit tools only: the server lists no changes, and commands report none",
    "turns and tools": "from the server, or from the edit tools where it lists no changes",
    "nothing": "",
}


def title(diff: Diff) -> str:
    """Return the number of changed files as a heading."""
    n = len(diff)
    if n:
        return f"{n:,} {'file' if n == 1 else 'files'} changed"
    return "No diff data" if diff.source == "nothing" else "The server lists no changes"


def file_notes(file: ChangedFile) -> tuple[str, ...]:
    """Return the notes on a file of a Diff; with several changes, their number."""
    edits, separate = len(file.edits), len(file.changes)
    if separate > 1:
        status = () if file.status == "modified" else (file.status,)
        return (*status, f"{separate} successive changes")
    merged = f"{edits} changes combined" if file.changes[0].hunks else f"{edits} changes undone"
    return (merged,) if edits > 1 else notes(file.changes[0])


# -- rows ------------------------------------------------------------------------------------------


def rows_by_change(diffs: Iterable[FileDiff]) -> Iterator[tuple[FileChange, list[DiffRow]]]:
    """Yield every change with its rows, at most `MAX_LINES` each and `MAX_TOGETHER` in all."""
    left = MAX_TOGETHER
    for change in (c for d in diffs for c in changes_in(d)):
        change_rows = with_emphasis(rows(change, min(MAX_LINES, left)))
        yield change, change_rows
        left = max(0, left - len(change_rows))


def rows_by_file(diff: Diff) -> Iterator[tuple[ChangedFile, list[DiffRow]]]:
    """Yield the files of a Diff with their rows; a single file may have `MAX_TOGETHER` rows."""
    left, most = MAX_TOGETHER, MAX_LINES if len(diff.files) > 1 else MAX_TOGETHER
    for file in diff.files[:MAX_FILES]:
        file_rows: list[DiffRow] = []
        for n, change in enumerate(file.changes, 1):
            if len(file.changes) > 1:
                counts = " ".join(f"{s}{c}" for s, c in zip("+-", change.counts, strict=True) if c)
                labels = [f"{n} of {len(file.changes)}", counts, *notes(change)]
                file_rows.append(DiffRow("@", " · ".join(label for label in labels if label)))
            room = max(0, min(most, left) - len(file_rows))
            file_rows += with_emphasis(_rows(change, change.hunks, room))
        yield file, file_rows
        left = max(0, left - len(file_rows))


def omission_note(diff: Diff, shown: Iterable[DiffRow]) -> str:
    """Return a note on omitted files or lines and how to get them; "" if all of it is shown."""
    files = len(diff.files) - MAX_FILES
    if files <= 0 and not any(row.kind == "…" or len(row.text) > MAX_WIDTH for row in shown):
        return ""
    more_files = f"{files:,} more files. " if files > 0 else ""
    per_file = 'diff["FILE"] shows more of one file. ' if len(diff.files) > 1 else ""
    return f"{more_files}{per_file}Full diff: diff.to_frame(lines=True), diff.patch"


def rows(change: FileChange, limit: int = MAX_LINES) -> Iterator[DiffRow]:
    """Yield the rows of a change, with invisible characters as visible marks."""
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


# -- emphasis --------------------------------------------------------------------------------------

_TOKEN = re.compile(r"\w+|\s+|.", re.DOTALL)
_MAX_TOKENS = 200  # in a line; longer ones get no emphasis
_MAX_MATCHED = 12  # lines on a side; larger blocks are not matched line by line
_MIN_SIMILARITY = 0.5

Pair = tuple[DiffRow | None, DiffRow | None]


def with_emphasis(rows: Iterable[DiffRow]) -> list[DiffRow]:
    """Return the rows with marks where a line differs from the one it replaces."""
    result: list[DiffRow] = []
    for pairs in _blocks(rows):
        marked = [_marked(*pair) for pair in pairs]
        result += [old for old, _ in marked if old is not None]
        result += [new for old, new in marked if new is not None and new is not old]
    return result


def side_by_side(rows: Iterable[DiffRow]) -> Iterator[Pair]:
    """Yield pairs (before, after); an unchanged row is on both sides."""
    return chain.from_iterable(_blocks(rows))


def _blocks(rows: Iterable[DiffRow]) -> Iterator[list[Pair]]:
    """Yield the pairs of each block of changed lines, and each unchanged row as its own block."""
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
    """Pair removed with added lines: in order if their numbers are equal, else by similarity."""
    pairs: list[Pair] = []
    left = right = 0
    for old, new in _matches(removed, added):
        pairs += [(row, None) for row in removed[left:old]]
        pairs += [(None, row) for row in added[right:new]]
        pairs.append((removed[old], added[new]))
        left, right = old + 1, new + 1
    pairs += [(row, None) for row in removed[left:]]
    return pairs + [(None, row) for row in added[right:]]


def _matches(removed: list[DiffRow], added: list[DiffRow]) -> Iterator[tuple[int, int]]:
    without_notes = all(row.kind != "\\" for row in (*removed, *added))
    if without_notes and len(removed) == len(added):
        yield from ((n, n) for n in range(len(added)))
        return
    if max(len(removed), len(added)) > _MAX_MATCHED:
        return
    begin = 0
    for old, row in enumerate(removed):
        for new in range(begin, len(added)):
            if row.kind == "-" and added[new].kind == "+" and _similar(row, added[new]):
                yield old, new
                begin = new + 1
                break


def _similar(old: DiffRow, new: DiffRow) -> bool:
    matcher = SequenceMatcher(None, old.text[1:], new.text[1:], autojunk=False)
    return matcher.quick_ratio() > _MIN_SIMILARITY and any(_marks(old.text, new.text))


def _marked(old: DiffRow | None, new: DiffRow | None) -> Pair:
    if old is None or new is None or (old.kind, new.kind) != ("-", "+"):
        return old, new
    before, after = _marks(old.text, new.text)
    return old._replace(marks=before), new._replace(marks=after)


@lru_cache(maxsize=4_096)
def _marks(old: str, new: str) -> tuple[Marks, Marks]:
    """The spans in which two lines differ, by words; empty if they have too little in common."""
    if max(len(old), len(new)) > MAX_WIDTH:
        return (), ()
    before, after = (_TOKEN.findall(line[1:]) for line in (old, new))
    if not before or not after or max(len(before), len(after)) > _MAX_TOKENS:
        return (), ()
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    equal = [b for b in matcher.get_matching_blocks() if b.size]
    equal_length = sum(len(t.strip()) for b in equal for t in before[b.a : b.a + b.size])
    if equal_length < _MIN_SIMILARITY * min(len(line[1:].strip()) for line in (old, new)):
        return (), ()
    left = _changed_spans(before, [(b.a, b.a + b.size) for b in equal])
    return left, _changed_spans(after, [(b.b, b.b + b.size) for b in equal])


def _changed_spans(tokens: Sequence[str], equal: list[tuple[int, int]]) -> Marks:
    """The spans of a line outside the equal tokens; white space between two spans joins them."""
    changed = [True] * len(tokens)
    for begin, end in equal:
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


# -- invisible characters --------------------------------------------------------------------------


def _narrow(line: str) -> str:
    if len(line) <= MAX_WIDTH:
        return visible_line(line)
    return f"{visible_line(line[:MAX_WIDTH])} … {len(line) - MAX_WIDTH:,} more characters"


# Control, line separator and direction characters, zero-width characters (except the joiners that
# scripts and emoji need), surrogates, tags.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible_line(text: str) -> str:
    """Replace the invisible characters of a line by visible marks."""
    return _INVISIBLE.sub(_mark, text)


def visible_lines(text: str) -> str:
    """Like `visible_line`, for several lines. Nothing is removed from what a shell would run."""
    return "\n".join(map(visible_line, text.split("\n")))


def _mark(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"
