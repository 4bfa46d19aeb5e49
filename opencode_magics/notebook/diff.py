r"""What a cell shows of changes: which lines, how many of them, and what to say beside a file's name.

Pure words and rows; `html` and `text` draw them. Strange characters become marks that one can see.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ..diffs import Change, changes
from ..model import FileDiff

MAX_LINES = 400  # of one file
MAX_WIDTH = 400  # characters of one line
MAX_TOGETHER = 1_200  # lines of all files of one tool call


# -- what to say of a change -----------------------------------------------------------------------


def notes(change: Change) -> tuple[str, ...]:
    """What to say beside name and counts: `added`, `binary`, `too large to show`, ..."""
    what = () if change.status == "modified" else (change.status,)
    mode = (f"mode {change.mode}",) if change.mode else ()
    ends = line_endings(change)
    if ends:
        return (*what, *mode, f"line endings changed {ends}, no text change")
    return (*what, *mode, *_missing(change))


def _missing(change: Change) -> tuple[str, ...]:
    """Why there are no lines to show, if there are none."""
    if change.hunks or change.mode or change.status in ("renamed", "copied"):
        return ()
    if change.binary:
        return ("binary",)
    if change.told:
        return ("no change",) if change.status == "modified" else ("empty",)
    edited = (change.additions or 0) + (change.deletions or 0)
    return ("too large to show" if edited > MAX_LINES else "no text",)


def line_endings(change: Change) -> str:
    """`CRLF → LF` when line ends are all that changed, else ""."""
    removed, added = (
        [line[1:] for h in change.hunks for line in h.lines if line[0] == sign] for sign in "-+"
    )
    bare = [[line.rstrip("\r") for line in lines] for lines in (removed, added)]
    if not removed or bare[0] != bare[1] or removed == added:
        return ""
    kinds = [{"CRLF" if line.endswith("\r") else "LF" for line in ls} for ls in (removed, added)]
    return " → ".join("/".join(sorted(k)) for k in kinds)


def shown(diffs: Iterable[FileDiff]) -> Iterator[tuple[Change, list[tuple[str, str]]]]:
    """All changes with the lines to show; the more there are, the fewer of each."""
    left = MAX_TOGETHER
    for change in (c for d in diffs for c in changes(d)):
        found = list(lines(change, min(MAX_LINES, left)))
        yield change, found
        left = max(0, left - len(found))


def lines(change: Change, limit: int = MAX_LINES) -> Iterator[tuple[str, str]]:
    r"""What to show of a change: pairs of a kind (`@`, space, `+`, `-`, `\`, `…`) and a line.

    The line has its sign; strange characters are marks that one can see.
    """
    if line_endings(change):
        return
    all_crlf = all(line.endswith("\r") for h in change.hunks for line in h.lines if line[0] != "\\")
    left = limit
    for hunk in change.hunks:
        if left <= 0:
            break
        yield "@", visible(hunk.header)
        for line in hunk.lines[:left]:
            yield line[0], _narrow(line.removesuffix("\r") if all_crlf else line)
        left -= len(hunk.lines)
    more = sum(len(h.lines) for h in change.hunks) - limit
    if more > 0:
        yield "…", f"… {more:,} more lines"


def _narrow(line: str) -> str:
    if len(line) <= MAX_WIDTH:
        return visible(line)
    return f"{visible(line[:MAX_WIDTH])} … {len(line) - MAX_WIDTH:,} more characters"


_STRANGE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """A line with its control, separator and direction characters as visible marks."""
    return _STRANGE.sub(_mark, text)


def all_visible(text: str) -> str:
    """The same for many lines: nothing is taken away, so it is what a shell would be given."""
    return "\n".join(map(visible, text.split("\n")))


def _mark(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"
