r"""What changed: unified diffs, read by their own rules, and `Diff`, all changes of a session.

A hunk's length comes from its `@@` counts, so a removed line `-- note` is never taken for a header;
lines end at `\n` and nowhere else. Headers are git's, or the shorter `Index:` kind that OpenCode's
edit tool writes.

The reader is our own because unidiff 1.0.1 leaves quoted names as `"Pl\303\244ne"`, tells no modes,
takes a copy for a rename, raises on a patch that was cut off, and needs 1.6 s for 20 MB (0.3 s here);
on the other shapes of our tests it gives the same counts.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from .errors import UnknownNameError
from .model import FileDiff

if TYPE_CHECKING:
    import pandas as pd

Status = Literal["added", "modified", "deleted", "renamed", "copied"]


@dataclass(frozen=True, slots=True)
class Hunk:
    """One changed place. Every line begins with its sign: space, `+`, `-`, or a backslash note."""

    header: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one file.

    Attributes:
        old, new: Its name before and after; "" where there was no such file.
        additions, deletions: Counted lines; None where nobody can count.
        mode: A changed file mode, as `100644 → 100755`.
        told: Whether a patch told of it; else only its name and counts are known.
    """

    old: str = ""
    new: str = ""
    status: Status = "modified"
    binary: bool = False
    hunks: tuple[Hunk, ...] = ()
    additions: int | None = 0
    deletions: int | None = 0
    mode: str = ""
    told: bool = True

    @property
    def name(self) -> str:
        """What to call it; a rename shows both names."""
        if self.old and self.new and self.old != self.new:
            return f"{self.old} → {self.new}"
        return self.new or self.old or "(unnamed file)"

    @property
    def counts(self) -> tuple[int | None, int | None]:
        """Lines added and deleted."""
        return self.additions, self.deletions


def changes(diff: FileDiff) -> tuple[Change, ...]:
    """The changes that a server's FileDiff tells of; its own name, status and counts come first."""
    found = parse(diff.patch)
    if len(found) > 1:
        return found
    change = found[0] if found else Change(additions=None, deletions=None, told=False)
    if diff.status and change.status == "modified":
        change = replace(change, status=diff.status)
    if diff.file and change.status not in ("renamed", "copied"):
        old, new = ("" if change.status == s else diff.file for s in ("added", "deleted"))
        change = replace(change, old=old, new=new)
    return (_counted(change, diff),)


def _counted(change: Change, diff: FileDiff) -> Change:
    """The server's counts, but for a binary file, or zeros of one that it sent no text of."""
    if change.binary or not (change.told or diff.additions or diff.deletions):
        return change
    plus, minus = (
        ours if theirs is None else theirs
        for ours, theirs in zip(change.counts, (diff.additions, diff.deletions), strict=True)
    )
    return replace(change, additions=plus, deletions=minus)


# -- reading ---------------------------------------------------------------------------------------


def parse(patch: str) -> tuple[Change, ...]:
    """All changes of a unified diff, in order."""
    return tuple(_Reader(patch.removesuffix("\n").split("\n")).read())


@dataclass(slots=True)
class _Draft:
    """A change while it is read."""

    old: str = ""
    new: str = ""
    status: Status = "modified"
    binary: bool = False
    modes: list[str] = field(default_factory=list)
    hunks: list[Hunk] = field(default_factory=list)

    def done(self) -> Change:
        old = "" if self.status == "added" else self.old
        new = "" if self.status == "deleted" else self.new
        signs = [line[0] for hunk in self.hunks for line in hunk.lines]
        plus, minus = (None, None) if self.binary else (signs.count("+"), signs.count("-"))
        mode = " → ".join(self.modes)
        return Change(old, new, self.status, self.binary, tuple(self.hunks), plus, minus, mode)


class _Reader:
    """Walks the lines of a patch. Hunks are taken whole, so headers are only seen outside them."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 0

    def read(self) -> Iterator[Change]:
        draft: _Draft | None = None
        while self._at < len(self._lines):
            line = self._line().removesuffix("\r")
            self._at += 1
            if draft and (lengths := _HUNK.match(line)):
                draft.hunks.append(
                    Hunk(line, self._hunk(*(int(n or "1") for n in lengths.groups())))
                )
            elif self._begins(line, draft):
                if draft:
                    yield draft.done()
                draft = _Draft()
            if draft:
                _header(draft, line)
        if draft:
            yield draft.done()

    def _line(self) -> str:
        return self._lines[self._at] if self._at < len(self._lines) else ""

    def _begins(self, line: str, draft: _Draft | None) -> bool:
        """Whether a line is the first of a file; `---` is one only where nothing else began it."""
        if line.startswith(("diff --git ", "Index: ")):
            return True
        named = line.startswith("--- ") and self._line().startswith("+++ ")
        return named and (draft is None or bool(draft.hunks))

    def _hunk(self, old: int, new: int) -> tuple[str, ...]:
        """The lines of a hunk, by its lengths; one that was cut off ends where no line can be."""
        start = self._at
        while (old > 0 or new > 0) and self._at < len(self._lines):
            sign = self._line()[:1].strip("\r") or " "  # some tools strip empty context lines
            if sign not in " +-\\":
                break
            old -= sign in " -"
            new -= sign in " +"
            self._at += 1
        if self._line().startswith("\\"):
            self._at += 1
        lines = self._lines[start : self._at]
        return tuple(line if line.strip("\r") else f" {line}" for line in lines)


_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


def _header(draft: _Draft, line: str) -> None:
    match line.split(" "):
        case ["diff", "--git", *_]:
            draft.old, draft.new = _git_names(line.removeprefix("diff --git "))
        case ["Index:", *_]:
            draft.old = draft.new = line.removeprefix("Index: ").rstrip()
        case ["---", *_]:
            draft.old = _name(line[4:])[0]
        case ["+++", *_]:
            draft.new = _name(line[4:])[0]
            _settle_names(draft)
        case ["rename" | "copy" as how, "from", *_]:
            draft.old = _name(line[len(how) + 6 :])[0]
            draft.status = "renamed" if how == "rename" else "copied"
        case ["rename" | "copy" as how, "to", *_]:
            draft.new = _name(line[len(how) + 4 :])[0]
        case ["new" | "deleted" as how, "file", "mode", _]:
            draft.status = "added" if how == "new" else "deleted"
        case ["old" | "new", "mode", mode]:
            draft.modes.append(mode)
        case ["Binary", "files", *_, "differ"] | ["GIT", "binary", "patch"]:
            draft.binary = True


def _git_names(rest: str) -> tuple[str, str]:
    if '"' in rest:
        old, rest = _name(rest, " b/")
        new, _ = _name(rest.lstrip())
    else:  # twice the same name, unquoted even if it has spaces; a rename tells its names again
        old, new = rest[: len(rest) // 2], rest[len(rest) // 2 + 1 :]
    return old.removeprefix("a/"), new.removeprefix("b/")


def _settle_names(draft: _Draft) -> None:
    """`---` and `+++` are read: /dev/null is no name, and git's a/ and b/ are no folders."""
    old, new = draft.old, draft.new
    if old == "/dev/null":
        draft.status, old = "added", "a/"
    if new == "/dev/null":
        draft.status, new = "deleted", "b/"
    if old.startswith("a/") and new.startswith("b/"):
        old, new = old[2:], new[2:]
    draft.old, draft.new = old, new


def _name(text: str, end: str = "\t") -> tuple[str, str]:
    """A file name at the start of a text, unquoted, and what follows it."""
    quoted = re.match(r'"((?:[^"\\]|\\.)*)"', text)
    if quoted:
        return _unquote(quoted[1]), text[quoted.end() :]
    name, _, rest = text.partition(end)
    return name, end.strip() + rest


_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}


def _unquote(text: str) -> str:
    r"""Git's quoting: `\303\244` are bytes of UTF-8. Bytes that are not stay as they were."""
    raw = bytearray()
    for octal, escape, plain in re.findall(r"\\([0-7]{3})|\\(.)|([^\\]+)", text):
        if octal:
            raw.append(int(octal, 8) & 0xFF)
        elif escape:
            raw += bytes([_ESCAPES[escape]]) if escape in _ESCAPES else escape.encode()
        else:
            raw += plain.encode("utf-8", "surrogatepass")
    name = raw.decode("utf-8", "surrogateescape")
    return re.sub("[\udc80-\udcff]", lambda m: f"\\{ord(m[0]) - 0xDC00:03o}", name)


