"""A turn as plain text: for a terminal while it goes on, and as the text/plain twin of its HTML.

A terminal can't be redrawn, so text is printed as it grows and every other block once, when it is
closed. What a model or a tool wrote is cleaned before it is printed: no escape sequence gets
through.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator

from ..core.diffs import ChangedFile, Diff
from ..core.formatting import pluralize, without_middle
from ..core.model import Failure, FileDiff, Permission, Question, Reasoning, Session, Text, ToolCall
from ..core.outcome import ToolOutcome, of_tool
from ..core.patches import FileChange
from ..core.turn import Retry, SettledRequest, Turn
from ..sessions.transcript import Transcript
from . import diff_rows, wording
from .blocks import Block, Changes, Note, Recap, RequestState, blocks
from .results import Result
from .wording import clean

_STATES: dict[ToolOutcome, str] = {
    "pending": "○",
    "running": "●",
    "ok": "✓",
    "nonzero": "!",
    "failed": "✗",
    "declined": "✗",
    "unfinished": "?",
}


class TextView:
    """Prints a turn as it goes on.

    Args:
        write: Where text goes; standard output if None.
        dim: Whether to dim the reasoning with ANSI codes; None asks whether this is a terminal.
    """

    def __init__(self, write: Callable[[str], object] | None = None, dim: bool | None = None):
        self._write = write or _stdout
        self._dim = (write is None and _terminal()) if dim is None else dim
        self._printed: dict[str, str] = {}
        self._last: Block | None = None
        self._note = ""
        self._closed = False

    def show(self, turn: Turn, note: str = "") -> None:
        """Print what is new in a later state of the turn."""
        if self._closed:
            return
        for block in blocks(turn):
            self._print(block)
        if note and note != self._note:
            self._print(Block(f"note/{note}", Note(note)))
        self._note = note

    outputs: None = None

    def lend_output(self) -> str:
        """Nothing: there are no outputs."""
        return ""

    def step_aside(self) -> None:
        """End the line, so that something else can be printed; what comes next stands below it."""
        if self._last is not None:
            self._write("\n")
        self._last = None

    def close(self, turn: Turn, note: str = "") -> None:
        """Print the rest and the last line. After that the view shows no more."""
        if self._closed:
            return
        self.show(turn, note)
        self._write(("\n\n" if self._last else "") + wording.summary(turn) + "\n")
        self._closed = True

    def _print(self, block: Block) -> None:
        text, printed = plain(block), self._printed.get(block.key, "")
        # A failure is heard of twice: of the session, then of the message that it broke.
        again = isinstance(block.value, Failure) and text in self._printed.values()
        if printed.startswith(text) or again:
            return
        grown = bool(printed) and text.startswith(printed) and self._last_key == block.key
        new = text[len(printed) :] if text.startswith(printed) else text
        self._write(("" if grown else self._gap(block)) + self._dimmed(block, new))
        self._printed[block.key], self._last = text, block

    @property
    def _last_key(self) -> str:
        return self._last.key if self._last else ""

    def _gap(self, block: Block) -> str:
        return gap(self._last, block)

    def _dimmed(self, block: Block, text: str) -> str:
        return f"\x1b[2m{text}\x1b[22m" if self._dim and block.kind == "reasoning" else text


def gap(before: Block | None, after: Block) -> str:
    """What stands between two blocks: one-liners keep together, the rest has air."""
    if before is None:
        return ""
    airy = ("text", "reasoning", "recap", "changes")
    return "\n\n" if before.kind in airy or after.kind in airy else "\n"


def render(turn: Turn, note: str = "") -> str:
    """A whole turn."""
    parts: list[str] = []
    TextView(parts.append).close(turn, note)
    return "".join(parts).rstrip("\n")


def join(shown: Iterable[Block]) -> str:
    """Some blocks, one after another."""
    text, last = "", None
    for block in shown:
        words_ = plain(block)
        if words_:
            text, last = text + gap(last, block) + words_, block
    return text


# -- blocks ----------------------------------------------------------------------------------------


def plain(block: Block) -> str:
    """One block; "" while there is nothing to print of it. What is open only grows."""
    match block.value:
        case Text(text=text):
            return clean(text).strip("\n")
        case Reasoning(text=text):
            return _rail(text)
        case Recap(text=text):
            return "Summary of the conversation:\n" + _rail(text)
        case ToolCall():
            return _tool(block.value) if block.closed else ""
        case RequestState():
            return f"{'→' if block.value.reply else '?'} {wording.request_line(block.value)}"
        case Retry():
            return f"↻ {wording.retry_line(block.value)}"
        case Failure():
            return f"✗ {without_middle(wording.failure_line(block.value), wording.LONGEST_FAILURE)}"
        case Note():
            return f"· {clean(block.value.text)}"
        case Changes():
            return _changes(block.value.diffs)


def _rail(text: str) -> str:
    return "│ " + clean(text).strip("\n").replace("\n", "\n│ ")


def _tool(tool: ToolCall) -> str:
    aside = ", ".join(wording.tool_notes(tool))
    state = _STATES[of_tool(tool)]
    line = f"{state} {clean(tool.tool)} {wording.tool_subject(tool)}".rstrip()
    line += f" ({aside})" if aside else ""
    error = f"\n  {wording.first_line(tool.error, 300)}" if tool.error else ""
    edits = (line for c in diff_rows.rows_by_change(tool.diffs) for line in _change(*c))
    return "\n".join([line + error, *map(_indent, edits)])


def _changes(diffs: Iterable[FileDiff]) -> str:
    files = wording.changed_files(diffs)
    told = [
        f"{diff_rows.visible_line(f)} {wording.signed_counts(*n)}".rstrip()
        for f, n in files.items()
    ]
    more = [f"{len(told) - 20} more"] if len(told) > 20 else []
    return f"Changed {pluralize(len(told), 'file')}: {', '.join([*told[:20], *more])}"


def file_diff(edit: FileDiff) -> str:
    """A changed file: its name and counts, then its hunks."""
    return "\n".join(line for c in diff_rows.rows_by_change([edit]) for line in _change(*c))


def _change(change: FileChange, rows: list[diff_rows.DiffRow]) -> Iterator[str]:
    yield _file_line(change.name, change.counts, diff_rows.notes(change))
    yield from (row.text for row in rows)


def _file_line(name: str, counts: tuple[int | None, int | None], notes: Iterable[str]) -> str:
    counted, told = wording.signed_counts(*counts), ", ".join(notes)
    head = " ".join(w for w in (diff_rows.visible_line(name), counted) if w)
    return f"{head}{', ' if counted else ' '}{told}" if told else head


def whole_diff(told: Diff) -> str:
    """A Diff: where it is from, then file by file with line numbers."""
    shown = list(diff_rows.rows_by_file(told))
    counts = wording.signed_counts(*told.counts)
    parts = [
        f"{diff_rows.title(told)} {counts}".rstrip()
        + (f" ({diff_rows.source(told)})" if told else "")
    ]
    parts += ["\n".join(_changed_file(*f)) for f in shown]
    if more := diff_rows.omission_note(told, [row for _, rows in shown for row in rows]):
        parts.append(f"… {more}")
    return "\n\n".join(parts)


def _changed_file(file: ChangedFile, rows: list[diff_rows.DiffRow]) -> Iterator[str]:
    name = f"{file.before} → {file.name}" if file.before else file.name
    yield _file_line(name or "(unnamed file)", file.counts, diff_rows.file_notes(file))
    digits = max((len(str(n)) for row in rows for n in (row.old, row.new) if n), default=1)
    for row in rows:
        places = (f"{'' if n is None else n:>{digits}} " for n in (row.old, row.new))
        yield row.text if row.kind in "@…" else f"{''.join(places)}{row.text}"


def _indent(text: str) -> str:
    return "  " + text.replace("\n", "\n  ")


# -- small cards -----------------------------------------------------------------------------------


def session(session: Session) -> str:
    """A session in two lines."""
    title = wording.first_line(session.title) or "(untitled)"
    return f"{title} [{clean(session.id)}]\n{wording.session_line(session)}"


def conversation(told: Transcript) -> str:
    """An old session: what was asked, and each turn as it looks when it is over."""
    above = [session(told.session), *([wording.omitted_turns(told)] if told.left_out else [])]
    turns = (
        f"> {wording.prompt_text(t)}".replace("\n", "\n> ") + f"\n\n{render(t)}" for t in told.turns
    )
    return "\n\n".join([*above, *turns])


def request(asked: Permission | Question) -> str:
    """A permission or question that waits, with all that it asks."""
    line = f"? {wording.request_line(RequestState(asked))}"
    return "\n".join([line, *map(_indent, _asked(asked))])


def settled(answered: SettledRequest) -> str:
    """A permission or question and how it was answered, in one line."""
    return wording.request_line(RequestState(answered.request, answered.reply, answered.message))


def result(value: Result) -> str:
    """What came of something that was done to a session: its repr says all."""
    return clean(repr(value))


def _asked(asked: Permission | Question) -> Iterator[str]:
    """What the line itself can't say: an edit, a command of many lines, the options."""
    match asked:
        case Question(items=items):
            options = [o for item in items for o in item.options]
            yield from (f"- {clean(o.label)}" + _because(o.description) for o in options)
        case Permission(diff=FileDiff() as edit):
            yield file_diff(edit)
        case _ if len(asked.subject) > wording.LIMIT or "\n" in asked.subject:
            yield diff_rows.visible_lines(asked.subject)


def _because(description: str) -> str:
    return f": {wording.first_line(description)}" if description.strip() else ""


def _terminal() -> bool:
    try:
        return sys.stdout is not None and sys.stdout.isatty()
    except ValueError:  # it is closed
        return False


def _stdout(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()
