r"""Parse, trim and write unified diffs.

The length of a hunk comes from its `@@` counts, so a removed line `-- note` is not mistaken for a
header; only `\n` ends a line. Headers are git's, or the shorter `Index:` kind that OpenCode writes.

Why not unidiff (1.0.1): it leaves names quoted (`"Pl\303\244ne"`), rejects a truncated patch,
ignores modes, reports a copy as a rename, and takes 1.6 s for 20 MB instead of 0.3 s.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from .model import FileDiff

ChangeStatus = Literal["added", "modified", "deleted", "renamed", "copied"]


@dataclass(frozen=True, slots=True)
class Hunk:
    r"""One hunk. Every line begins with its sign: space, `+`, `-`, or `\` for a note."""

    header: str
    lines: tuple[str, ...]

    @property
    def starts(self) -> tuple[int, int]:
        """Number of its first line in the old and in the new file (of the next line if empty)."""
        match = _HUNK.match(self.header)
        if match is None:
            return 1, 1
        old, old_length, new, new_length = match.groups()
        return int(old) + (old_length == "0"), int(new) + (new_length == "0")

    def numbered(self) -> Iterator[tuple[str, int | None, int | None, str]]:
        """Yield its lines as (sign, old line number, new line number, text).

        A number is None if the line is not in that version.
        """
        old, new = self.starts
        for line in self.lines:
            sign, in_old, in_new = line[0], line[0] in " -", line[0] in " +"
            yield sign, old if in_old else None, new if in_new else None, line[1:]
            old, new = old + in_old, new + in_new


@dataclass(frozen=True, slots=True)
class FileChange:
    """The change of one file.

    Attributes:
        old, new: Its name before and after; "" if it didn't exist.
        additions, deletions: Numbers of lines; None if unknown or binary.
        mode: A changed file mode, as `100644 → 100755`.
        has_patch: Whether it comes from a patch; else only its name and counts are known.
    """

    old: str = ""
    new: str = ""
    status: ChangeStatus = "modified"
    binary: bool = False
    hunks: tuple[Hunk, ...] = ()
    additions: int | None = 0
    deletions: int | None = 0
    mode: str = ""
    has_patch: bool = True

    @property
    def name(self) -> str:
        """Its name for display; both names of a rename."""
        if self.old and self.new and self.old != self.new:
            return f"{self.old} → {self.new}"
        return self.new or self.old or "(unnamed file)"

    @property
    def counts(self) -> tuple[int | None, int | None]:
        """Lines added and deleted."""
        return self.additions, self.deletions


def changes_in(diff: FileDiff) -> tuple[FileChange, ...]:
    """Return the changes in a server's FileDiff, whose own name, status and counts win."""
    changes = parse(diff.patch)
    if len(changes) > 1:
        return changes
    change = changes[0] if changes else FileChange(additions=None, deletions=None, has_patch=False)
    if diff.status and change.status == "modified":
        change = replace(change, status=diff.status)
    if diff.before:
        return (_counted(replace(change, old=diff.before, new=diff.file), diff),)
    if diff.file and change.status not in ("renamed", "copied"):
        # 1.18.33 reports a name with quotes or control characters in git's quoting.
        name = _name(diff.file)[0] if _QUOTED.fullmatch(diff.file) else diff.file
        old, new = ("" if change.status == s else name for s in ("added", "deleted"))
        change = replace(change, old=old, new=new)
    return (_counted(change, diff),)


def _counted(change: FileChange, diff: FileDiff) -> FileChange:
    """The change with the server's counts, except for a binary file or zeros without a patch."""
    if change.binary or not (change.has_patch or diff.additions or diff.deletions):
        return change
    plus, minus = (
        counted if reported is None else reported
        for counted, reported in zip(change.counts, (diff.additions, diff.deletions), strict=True)
    )
    return replace(change, additions=plus, deletions=minus)


# -- reading ---------------------------------------------------------------------------------------


def parse(patch: str) -> tuple[FileChange, ...]:
    """Parse all changes of a unified diff, in order."""
    return tuple(_Reader(patch.removesuffix("\n").split("\n")).read())


@dataclass(slots=True)
class _Draft:
    """A change that is being parsed."""

    old: str = ""
    new: str = ""
    status: ChangeStatus = "modified"
    binary: bool = False
    modes: list[str] = field(default_factory=list)
    hunks: list[Hunk] = field(default_factory=list)

    def done(self) -> FileChange:
        old = "" if self.status == "added" else self.old
        new = "" if self.status == "deleted" else self.new
        signs = [line[0] for hunk in self.hunks for line in hunk.lines]
        plus, minus = (None, None) if self.binary else (signs.count("+"), signs.count("-"))
        mode = " → ".join(self.modes)
        return FileChange(old, new, self.status, self.binary, tuple(self.hunks), plus, minus, mode)


class _Reader:
    """Parser of the lines of a patch. It consumes whole hunks, so headers only occur outside."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 0

    def read(self) -> Iterator[FileChange]:
        draft: _Draft | None = None
        while self._at < len(self._lines):
            line = self._line().removesuffix("\r")
            self._at += 1
            if draft and (lengths := _HUNK.match(line)):
                old, new = (int(n or "1") for n in lengths.group(2, 4))
                draft.hunks.append(Hunk(line, self._hunk(old, new)))
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
        """Return whether a line starts a file; `---` does only if there is no header before it."""
        if line.startswith(("diff --git ", "Index: ")):
            return True
        named = line.startswith("--- ") and self._line().startswith("+++ ")
        return named and (draft is None or bool(draft.hunks))

    def _hunk(self, old: int, new: int) -> tuple[str, ...]:
        """Consume the lines of a hunk by its lengths; a truncated one ends at an invalid line."""
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


_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


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
    else:  # the same name twice, unquoted even with spaces; a rename has headers of its own
        old, new = rest[: len(rest) // 2], rest[len(rest) // 2 + 1 :]
    return old.removeprefix("a/"), new.removeprefix("b/")


def _settle_names(draft: _Draft) -> None:
    """Interpret the names after `---` and `+++`: /dev/null, and git's prefixes a/ and b/."""
    old, new = draft.old, draft.new
    if old == "/dev/null":
        draft.status, old = "added", "a/"
    if new == "/dev/null":
        draft.status, new = "deleted", "b/"
    if old.startswith("a/") and new.startswith("b/"):
        old, new = old[2:], new[2:]
    draft.old, draft.new = old, new


_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


def _name(text: str, end: str = "\t") -> tuple[str, str]:
    """Split a text into the file name at its start, unquoted, and the rest."""
    quoted = _QUOTED.match(text)
    if quoted:
        return _unquote(quoted[1]), text[quoted.end() :]
    name, _, rest = text.partition(end)
    return name, end.strip() + rest


_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}


def _unquote(text: str) -> str:
    r"""Undo git's quoting: `\303\244` are bytes of UTF-8; other bytes stay escaped."""
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


# -- trimming --------------------------------------------------------------------------------------

_CONTEXT = 3  # unchanged lines around a change


def trim_context(hunks: Iterable[Hunk]) -> Iterator[Hunk]:
    """Split hunks so that they have three lines of context, as git's have.

    A turn's diff from 1.18.33 has the whole file in one hunk.
    """
    for hunk in hunks:
        spans = list(_spans(hunk.lines))
        if spans in ([], [(0, len(hunk.lines))]):
            yield hunk
        else:
            yield from _cut(hunk, spans)


def _spans(lines: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of changed lines, with their context."""
    begin: int | None = None
    end = 0
    for n, line in enumerate(lines):
        if line[0] not in "+-":
            continue
        if begin is not None and n - end > 2 * _CONTEXT:
            yield begin, _with_note(lines, end + _CONTEXT)
            begin = None
        begin = max(0, n - _CONTEXT) if begin is None else begin
        end = n + 1
    if begin is not None:
        yield begin, _with_note(lines, end + _CONTEXT)


def _with_note(lines: tuple[str, ...], end: int) -> int:
    r"""Extend `end` to include the note `\ No newline at end of file` of the line before it."""
    return end + 1 if end < len(lines) and lines[end][0] == "\\" else min(end, len(lines))


def _cut(hunk: Hunk, spans: list[tuple[int, int]]) -> Iterator[Hunk]:
    (old, new), at = hunk.starts, 0
    for begin, end in spans:
        skipped = sum(line[0] == " " for line in hunk.lines[at:begin])
        old, new, at = old + skipped, new + skipped, end
        lines = hunk.lines[begin:end]
        old_size, new_size = (sum(line[0] in kind for line in lines) for kind in (" -", " +"))
        ranges = (f"{first - (not n)},{n}" for first, n in ((old, old_size), (new, new_size)))
        yield Hunk("@@ -{} +{} @@".format(*ranges), lines)
        old, new = old + old_size, new + new_size


# -- comparing -------------------------------------------------------------------------------------


def split_lines(text: str) -> list[str]:
    r"""Split a text into lines with their `\n`; the last may have none."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def make_patch(before: Sequence[str], after: Sequence[str]) -> str:
    """Return the patch between two texts (lines with line ends); "" if they are the same."""
    lines = difflib.unified_diff(before, after)
    note = "\n\\ No newline at end of file\n"
    return "".join(line if line.endswith("\n") else line + note for line in lines)


# -- writing ---------------------------------------------------------------------------------------


def format_patch(change: FileChange) -> str:
    """Return a change as `git apply` accepts it; a comment if its lines are not known."""
    if change.binary or not (change.has_patch or change.hunks):
        counted = None not in change.counts
        counts = f", +{change.additions} -{change.deletions}" if counted else ""
        return f"# {_quote(change.name)}: {change.status}{counts}, no text\n"
    head = [*_heading(change)]
    lines = (line for hunk in change.hunks for line in (hunk.header, *hunk.lines))
    return "\n".join([*head, *lines, ""]) if len(head) > 1 else ""


def _heading(change: FileChange) -> Iterator[str]:
    old, new = _quote(change.old, "a/"), _quote(change.new, "b/")
    yield f"diff --git {old or _quote(change.new, 'a/')} {new or _quote(change.old, 'b/')}"
    if change.mode:
        before, _, after = change.mode.partition(" → ")
        yield from (f"old mode {before}", f"new mode {after}")
    match change.status:
        case "added":
            yield "new file mode 100644"
        case "deleted":
            yield "deleted file mode 100644"
        case "renamed" | "copied" as status:
            verb = {"renamed": "rename", "copied": "copy"}[status]
            yield from (f"{verb} from {_quote(change.old)}", f"{verb} to {_quote(change.new)}")
    if change.hunks:
        yield from (f"--- {_tabbed(old)}", f"+++ {_tabbed(new)}")


def _tabbed(name: str) -> str:
    """A name after `---`; git appends a tab if it has spaces."""
    return (name + "\t" * (" " in name)) or "/dev/null"


_NAMED = {chr(code): letter for letter, code in _ESCAPES.items()}
_UNSAFE = re.compile(r'[\x00-\x1f\x7f"\\]')


def _quote(name: str, prefix: str = "") -> str:
    """Quote a name as git does; "" stays "", and an absolute name takes no prefix."""
    path = f"{'' if name.startswith('/') else prefix}{name}" if name else ""
    return f'"{_UNSAFE.sub(_escape, path)}"' if _UNSAFE.search(path) else path


def _escape(match: re.Match[str]) -> str:
    return f"\\{_NAMED[match[0]]}" if match[0] in _NAMED else f"\\{ord(match[0]):03o}"
