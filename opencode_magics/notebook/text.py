"""Turns as plain text: live in a terminal, and as the text/plain twin of the HTML.

A terminal can't be redrawn, so text is printed as it grows and every other block once, when it is
closed. All text of models and tools is cleaned before it is printed, so no escape sequence reaches
the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator

from ..core import decision
from ..core.diffs import ChangedFile, Diff
from ..core.formatting import pluralize, without_middle
from ..core.model import Failure, FileDiff, Permission, Question, Reasoning, Session, Text, ToolCall
from ..core.outcome import ToolOutcome, tool_outcome
from ..core.patches import FileChange
from ..core.turn import Retry, SettledRequest, Turn
from ..errors import OpenCodeError
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
    """Prints a turn while it runs.

    Args:
        write: Writes text; None writes to standard output.
        dim: Whether to dim the reasoning with ANSI codes; None dims it in a terminal.
    """

    def __init__(self, write: Callable[[str], object] | None = None, dim: bool | None = None):
        self._write = write or _stdout
        self._dim = (write is None and _is_terminal()) if dim is None else dim
        self._printed: dict[str, str] = {}
        self._last: Block | None = None
        self._note = ""
        self._closed = False

    def show(self, turn: Turn, note: str = "") -> None:
        """Print the new parts of a later state of the turn."""
        if self._closed:
            return
        for block in blocks(turn):
            self._print(block)
        if note and note != self._note:
            self._print(Block(f"note/{note}", Note(note)))
        self._note = note

    outputs: None = None

    def lend_output(self) -> str:
        """Return "": plain text has no outputs."""
        return ""

    def step_aside(self) -> None:
        """End the line, so that something else can be printed before the next block."""
        if self._last is not None:
            self._write("\n")
        self._last = None

    def close(self, turn: Turn, note: str = "") -> None:
        """Print the rest and the last line. Later calls do nothing."""
        if self._closed:
            return
        self.show(turn, note)
        self._write(("\n\n" if self._last else "") + wording.summary(turn) + "\n")
        self._closed = True

    def _print(self, block: Block) -> None:
        text, printed = plain(block), self._printed.get(block.key, "")
        # The server reports a failure twice: for the session, then for the failed message.
        repeated = isinstance(block.value, Failure) and text in self._printed.values()
        if printed.startswith(text) or repeated:
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
    """Return the separator of two blocks: a blank line around prose, else a line break."""
    if before is None:
        return ""
    spaced = ("text", "reasoning", "recap", "changes")
    return "\n\n" if before.kind in spaced or after.kind in spaced else "\n"


def render(turn: Turn, note: str = "") -> str:
    """Return a turn as text: all blocks and the last line."""
    parts: list[str] = []
    TextView(parts.append).close(turn, note)
    return "".join(parts).rstrip("\n")


def join(shown: Iterable[Block]) -> str:
    """Return blocks as text, with their separators."""
    text, last = "", None
    for block in shown:
        if block_text := plain(block):
            text, last = text + gap(last, block) + block_text, block
    return text


# -- blocks ----------------------------------------------------------------------------------------


def plain(block: Block) -> str:
    """Return a block as text, "" if it has none yet. The text of an open block only grows."""
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
            return _changes(block.value)


def _rail(text: str) -> str:
    return "│ " + clean(text).strip("\n").replace("\n", "\n│ ")


def _tool(tool: ToolCall) -> str:
    notes = ", ".join(wording.tool_notes(tool))
    state = _STATES[tool_outcome(tool)]
    line = f"{state} {clean(tool.tool)} {wording.tool_subject(tool)}".rstrip()
    line += f" ({notes})" if notes else ""
    error = f"\n  {wording.first_line(tool.error, 300)}" if tool.error else ""
    edits = (line for c in diff_rows.rows_by_change(tool.diffs) for line in _change(*c))
    return "\n".join([line + error, *map(_indent, edits)])


def _changes(changes: Changes) -> str:
    title = f"Changed {pluralize(len(wording.changed_files(changes.diffs)), 'file')}"
    lines = [_file_list(title, changes.diffs)] if changes.diffs else []
    if changes.meanwhile:
        lines.append(_file_list(wording.meanwhile_title(changes.during), changes.meanwhile))
    return "\n".join(lines)


def _file_list(title: str, diffs: Iterable[FileDiff]) -> str:
    files = [
        f"{diff_rows.visible_line(name)} {wording.signed_counts(*counts)}".rstrip()
        for name, counts in wording.changed_files(diffs).items()
    ]
    more = [f"{len(files) - 20} more"] if len(files) > 20 else []
    return f"{title}: {', '.join([*files[:20], *more])}"


def file_diff(edit: FileDiff) -> str:
    """Return a changed file as text: its name and counts, then its hunks."""
    return "\n".join(line for c in diff_rows.rows_by_change([edit]) for line in _change(*c))


def _change(change: FileChange, rows: list[diff_rows.DiffRow]) -> Iterator[str]:
    yield _file_line(change.name, change.counts, diff_rows.notes(change))
    yield from (row.text for row in rows)


def _file_line(name: str, counts: tuple[int | None, int | None], notes: Iterable[str]) -> str:
    count_text, note_text = wording.signed_counts(*counts), ", ".join(notes)
    head = " ".join(part for part in (diff_rows.visible_line(name), count_text) if part)
    return f"{head}{', ' if count_text else ' '}{note_text}" if note_text else head


def whole_diff(diff: Diff) -> str:
    """Return a Diff as text: its source, then each file with line numbers."""
    files = list(diff_rows.rows_by_file(diff))
    counts = wording.signed_counts(*diff.counts)
    parts = [
        f"{diff_rows.title(diff)} {counts}".rstrip()
        + (f" ({diff_rows.source(diff)})" if diff else "")
    ]
    parts += ["\n".join(_changed_file(*f)) for f in files]
    if note := diff_rows.omission_note(diff, [row for _, rows in files for row in rows]):
        parts.append(f"… {note}")
    return "\n\n".join(parts)


def _changed_file(file: ChangedFile, rows: list[diff_rows.DiffRow]) -> Iterator[str]:
    name = f"{file.before} → {file.name}" if file.before else file.name
    yield _file_line(name or "(unnamed file)", file.counts, diff_rows.file_notes(file))
    digits = max((len(str(n)) for row in rows for n in (row.old, row.new) if n), default=1)
    for row in rows:
        numbers = (f"{'' if n is None else n:>{digits}} " for n in (row.old, row.new))
        yield row.text if row.kind in "@…" else f"{''.join(numbers)}{row.text}"


def _indent(text: str) -> str:
    return "  " + text.replace("\n", "\n  ")


# -- sessions, requests, results -------------------------------------------------------------------


def session(session: Session) -> str:
    """Return a session in two lines."""
    title = wording.first_line(session.title) or "(untitled)"
    return f"{title} [{clean(session.id)}]\n{wording.session_line(session)}"


def transcript(transcript: Transcript) -> str:
    """Return a transcript as text: the session, then each prompt with its finished turn."""
    above = [session(transcript.session)]
    if transcript.left_out:
        above.append(wording.omitted_turns(transcript))
    turns = (
        f"> {wording.prompt_text(turn)}".replace("\n", "\n> ") + f"\n\n{render(turn)}"
        for turn in transcript.turns
    )
    return "\n\n".join([*above, *turns])


def request(request: Permission | Question) -> str:
    """Return a waiting permission or question with all its details."""
    line = f"? {wording.request_line(RequestState(request))}"
    return "\n".join([line, *map(_indent, _request_details(request))])


def settled_request(settled: SettledRequest) -> str:
    """Return a permission or question with its answer, in one line."""
    state = RequestState(settled.request, settled.reply, settled.message, "", settled.together)
    return wording.request_line(state)


def result(value: Result) -> str:
    """Return the result of a session operation as its repr."""
    return clean(repr(value))


def _request_details(request: Permission | Question) -> Iterator[str]:
    """The details that the request's line leaves out: an edit, a long command, the options."""
    match request:
        case Question(items=items):
            options = [o for item in items for o in item.options]
            yield from (f"- {clean(o.label)}" + _description(o.description) for o in options)
        case Permission():
            for label, content in decision.details(request, ""):
                yield f"{label}: {diff_rows.visible_lines(content)}"
            yield from map(file_diff, decision.edits_of(request))


def _description(description: str) -> str:
    return f": {wording.first_line(description)}" if description.strip() else ""


def _is_terminal() -> bool:
    try:
        return sys.stdout is not None and sys.stdout.isatty()
    except ValueError:  # stdout is closed
        return False


def _stdout(text: str) -> None:
    if sys.stdout is None:  # as in pythonw
        return
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except (ValueError, OSError) as error:  # closed, or the reader of a pipe is gone
        raise OpenCodeError(
            f"The output can't be written ({error}).",
            "What runs on the server continues; %oc_attach follows it from another place.",
        ) from error
