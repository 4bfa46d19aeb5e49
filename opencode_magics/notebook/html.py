"""Turns, requests, diffs and sessions as safe HTML, readable in any theme and without styles.

Markdown is rendered by `markdown.render` only; all other text of a model, a tool or a server goes
through `escape_html`. Styles are inline, mostly translucent grays. There are no scripts, no
<style> and no classes except the two that keep `$5` from becoming a formula.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html import escape
from itertools import groupby

from ..core import decision
from ..core.diffs import ChangedFile, Diff
from ..core.formatting import pluralize, without_middle
from ..core.model import (
    Failure,
    FileDiff,
    Option,
    Permission,
    Question,
    Reasoning,
    Session,
    Text,
    ToolCall,
)
from ..core.outcome import ToolOutcome, is_granted, tool_outcome
from ..core.patches import FileChange, changes_in
from ..core.turn import Retry, SettledRequest, Turn
from ..sessions.transcript import Transcript
from . import diff_rows, markdown, results, wording
from .blocks import Block, Changes, Note, Recap, RequestState, blocks
from .results import Result
from .wording import clean

# Fixed mid-tones for both themes: JupyterLab removes var(...) from the outputs of an untrusted
# notebook, which would make a reopened notebook look different.
_OK, _BAD, _WARN, _BUSY = "#2c974b", "#e0443e", "#c87a00", "#3b7fd9"
# No line break between a number and its unit.
_AFTER_NUMBER, _NO_BREAK = re.compile(r"(?<=[\d≥?]) (?!·)"), "\N{NO-BREAK SPACE}"
_RULE = "1px solid rgba(128,128,128,.3)"
_QUIET = "opacity:.65"
_SMALL = "font-size:.92em"
_PRE = (
    "font-size:.86em;line-height:1.45;margin:.3em 0;overflow:auto;max-height:26em;"
    "border-radius:4px;background:rgba(128,128,128,.09);color:inherit;padding:"
)
_INSIDE = "margin:.1em 0 .5em 1.1em"
_SUMMARY = "cursor:pointer;font-size:.7em"  # makes the triangle small
_HEAD = "font-size:1.4286em"  # restores the normal size for the text after it
_STATES: dict[ToolOutcome, tuple[str, str]] = {
    "pending": ("○", _QUIET),
    "running": ("●", f"color:{_BUSY}"),
    "ok": ("✓", f"color:{_OK}"),
    "nonzero": ("!", f"color:{_WARN}"),
    "failed": ("✗", f"color:{_BAD}"),
    "declined": ("✗", f"color:{_WARN}"),
    "unfinished": ("?", f"color:{_WARN}"),
}
_OUTCOMES = {
    "running": ("●", _BUSY),
    "succeeded": ("✓", _OK),
    "rejected": ("✗", _WARN),
    "aborted": ("■", _WARN),
    "failed": ("✗", _BAD),
    "interrupted": ("!", _BAD),
    "unknown": ("?", _WARN),
}


def escape_html(text: str) -> str:
    """Return the text cleaned and escaped for HTML."""
    return escape(clean(text))


# -- turns -----------------------------------------------------------------------------------------


def turn(turn: Turn, note: str = "") -> str:
    """Return a turn as HTML: all blocks and the last line."""
    return page([*map(block, blocks(turn)), last_line(turn, note)])


def page(fragments: Iterable[str], width: str = "62em") -> str:
    """Wrap the content of an output. The classes disable MathJax (its `ignoreHtmlClass`)."""
    style = f"max-width:{width};line-height:1.5;overflow-wrap:break-word"
    inside = "\n".join(fragments)
    return f'<div class="mathjax_ignore tex2jax_ignore" style="{style}">\n{inside}\n</div>'


def last_line(turn: Turn, note: str = "") -> str:
    """Return the summary line (outcome, agent, usage, time), below the note if there is one."""
    outcome, *rest = wording.summary_parts(turn)
    icon, color = _OUTCOMES[turn.outcome]
    details = _AFTER_NUMBER.sub(_NO_BREAK, escape_html(" · ".join(["", *rest])).lstrip())
    line = (
        f'<div style="margin:.6em 0 .2em;padding-top:.35em;border-top:{_RULE};{_SMALL}">'
        f'<b style="color:{color};font-weight:600">{icon} {outcome}</b> '
        f'<span style="{_QUIET}">{details}</span></div>'
    )
    return _line("!", _WARN, escape_html(note)) + line if note else line


def prose(value: Text | Reasoning | Recap, html: str, continued: bool = False) -> str:
    """Wrap rendered markdown: an answer openly, reasoning and summaries folded."""
    if isinstance(value, Text):
        return f'<div style="margin:.5em 0">{html}</div>'
    name = "Summary of the conversation" if isinstance(value, Recap) else "Reasoning"
    took = wording.elapsed(value.start, value.end) if isinstance(value, Reasoning) else ""
    head = f'<i style="{_QUIET}">{name}</i>{_suffix("continued" if continued else took)}'
    rail = "border-left:2px solid rgba(128,128,128,.35);padding-left:.8em;margin:.2em 0 .6em .3em"
    return _details(head, html, inside=f"{rail};opacity:.8")


def block(block: Block) -> str:
    """Return a block as HTML."""
    match block.value:
        case Text() | Reasoning() | Recap():
            return prose(block.value, markdown.render(block.value.text))
        case ToolCall():
            return _tool(block.value, block.closed)
        case RequestState():
            return _request(block.value)
        case Retry():
            return _line("↻", _WARN, escape_html(wording.retry_line(block.value)))
        case Failure():
            return _failure(block.value)
        case Note():
            return _line("·", "inherit", f'<i style="{_QUIET}">{escape_html(block.value.text)}</i>')
        case Changes():
            return _changes(block.value)


# -- tool calls ------------------------------------------------------------------------------------


def _tool(tool: ToolCall, closed: bool) -> str:
    icon, style = _STATES[tool_outcome(tool, closed)]
    error = (
        f' <span style="color:{_BAD}">{escape_html(wording.first_line(tool.error or ""))}</span>'
    )
    head = (
        f'<span style="{style}">{icon}</span> <b style="font-weight:600">'
        f"{escape_html(tool.tool)}</b> "
        f"{_code(wording.tool_subject(tool))}{_counts(tool.diffs)}{error if tool.error else ''}"
        f"{_suffix(*wording.tool_notes(tool, closed))}"
    )
    edits, input_output = _edits(tool.diffs), _input_output(tool, closed)
    if edits:
        folded = _details(_INPUT_OUTPUT, input_output, inside="margin:0")
        return _details(head, edits + folded, opened=True)
    return _details(head, input_output)


_INPUT_OUTPUT = f'<span style="{_SMALL};{_QUIET}">input and output</span>'


def _edits(diffs: Iterable[FileDiff]) -> str:
    """The edits of a tool. The tool's line already names a single file, so it gets no heading."""
    edits = list(diff_rows.rows_by_change(diffs))
    if len(edits) == 1 and not diff_rows.notes(edits[0][0]):
        return _lines(edits[0][1])
    return "".join(_change(*edit, folded=len(edits) > 3) for edit in edits)


def _input_output(tool: ToolCall, closed: bool) -> str:
    """The input and output of a tool."""
    command = tool.input.get("command")
    if isinstance(command, str):
        arguments = f"$ {diff_rows.visible_lines(command)}"
    else:
        arguments = json.dumps(tool.input, indent=2, ensure_ascii=False, default=str)
    # While a command runs, every new line sends its whole output again: show only the end.
    output = without_middle(tool.output, wording.LONGEST) if closed else _end(tool.output)
    parts = [
        _pre(without_middle(arguments, wording.LONGEST)),
        _pre(output),
        _pre(tool.error or "", _BAD),
    ]
    child = (
        f'<div style="{_SMALL};{_QUIET}">session {escape_html(tool.child)}</div>'
        if tool.child
        else ""
    )
    return "".join(parts) + child


def _end(output: str, limit: int = 2_000) -> str:
    left_out = len(output) - limit
    return output if left_out <= 0 else f"… {left_out:,} earlier characters …\n{output[-limit:]}"


# -- requests, failures, changes -------------------------------------------------------------------


def _request(request: RequestState) -> str:
    line = escape_html(wording.request_line(request))
    if request.reply:
        granted = is_granted(request.reply)
        return _line("✓" if granted else "✗", _OK if granted else _WARN, line, quiet=True)
    return _line("●", _WARN, f"<b>{line}</b>")  # the form or prompt shows the details


def _request_details(request: Permission | Question) -> str:
    """Return the full content of a request: a person must see all that they allow."""
    match request:
        case Question(items=items):
            return "".join(
                (f"<div>{escape_html(i.question or i.header)}</div>" if len(items) > 1 else "")
                + _options(i.options)
                for i in items
            )
        case Permission():
            details = (
                f'<div style="{_SMALL};{_QUIET}">{escape_html(label)}</div>'
                f"{_pre(diff_rows.visible_lines(content))}"
                for label, content in decision.details(request, "")
            )
            return "".join([*details, *map(_diff, decision.edits_of(request))])


def _options(options: Iterable[Option]) -> str:
    items = "".join(f"<li>{escape_html(o.label)}{_suffix(o.description)}</li>" for o in options)
    return f'<ul style="margin:.2em 0">{items}</ul>' if items else ""


def _failure(failure: Failure) -> str:
    text = escape_html(without_middle(wording.failure_line(failure), wording.LONGEST_FAILURE))
    if failure.aborted:
        return _line("■", _WARN, text)
    style = f"margin:.4em 0;padding:.3em .8em;border-left:3px solid {_BAD};white-space:pre-wrap"
    return f'<div style="{style}"><b style="color:{_BAD}">Error</b> {text}</div>'


def _changes(changes: Changes) -> str:
    title = f"Changed {pluralize(len(wording.changed_files(changes.diffs)), 'file')}"
    own = _file_list(title, changes.diffs) if changes.diffs else ""
    others = _file_list(wording.meanwhile_title(changes.during), changes.meanwhile, quiet=True)
    return own + (others if changes.meanwhile else "")


def _file_list(title: str, diffs: Iterable[FileDiff], quiet: bool = False) -> str:
    files = wording.changed_files(diffs)
    shown = [
        f"{_code(diff_rows.visible_line(name))}{_signed(*counts)}"
        for name, counts in list(files.items())[:20]
    ]
    more = [f"{len(files) - 20} more"] if len(files) > 20 else []
    text = f"{escape_html(title)}: {' · '.join([*shown, *more])}"
    return _line("±", "inherit", text, quiet=quiet)


# -- diffs -----------------------------------------------------------------------------------------

_TINTS = {"+": "rgba(46,160,67,.17)", "-": "rgba(248,81,73,.16)"}
_MARKS = {"+": ("ins", "rgba(46,160,67,.4)"), "-": ("del", "rgba(248,81,73,.38)")}
_MAX_OPEN = 60  # lines; longer files are folded
_TALL = ";max-height:42em"  # for a diff that is a cell's only output
# As wide as the widest line, so that tints don't end at the scroll edge. In nbconvert's HTML only
# <code> has a monospace font.
_WIDE = "display:inline-block;min-width:100%;font-size:1em;background:none;padding:0;color:inherit"
_SPLIT_PAGE = "110em"


def file_diff(edit: FileDiff) -> str:
    """Return a changed file as HTML. Lines have their signs, which also read without styles."""
    return page([_diff(edit)])


def _diff(edit: FileDiff) -> str:
    return "".join(_change(*c, folded=False) for c in diff_rows.rows_by_change([edit]))


def _change(change: FileChange, rows: list[diff_rows.DiffRow], folded: bool) -> str:
    head = (
        _code(diff_rows.visible_line(change.name))
        + _signed(*change.counts)
        + _suffix(*diff_rows.notes(change))
    )
    return _file(head, _lines(rows) if rows else "", not folded and len(rows) <= _MAX_OPEN)


def _file(head: str, body: str, opened: bool) -> str:
    """A file's diff below its name, folded unless `opened`."""
    if not body:
        return f'<div style="margin:.2em 0;padding-left:.85em">{head}</div>'
    return _details(head, body, opened=opened, inside="margin:0")


def _lines(rows: list[diff_rows.DiffRow], numbers: int = 0) -> str:
    """Rows as unified lines, with line numbers `numbers` digits wide (0: without)."""
    runs = (
        _run(kind, "\n".join(_numbers(row, numbers) + _text(row) for row in run))
        for kind, run in groupby(rows, key=lambda row: row.kind)
    )
    inside = f'<code style="{_WIDE}">{"".join(runs)}</code>'
    return f'<pre style="{_PRE}.35em 0{_TALL if numbers else ""}">{inside}</pre>'


def _numbers(row: diff_rows.DiffRow, digits: int) -> str:
    if not digits or row.kind in "@…":
        return ""
    pair = " ".join(f"{'' if n is None else n:>{digits}}" for n in (row.old, row.new))
    return f'<span style="opacity:.5;user-select:none">{pair} </span>'


def _text(row: diff_rows.DiffRow) -> str:
    """The text of a row; <ins> and <del> mark changed spans, with and without styles."""
    if not row.marks:
        return escape(row.text)
    tag, tint = _MARKS[row.kind]
    style = f"background:{tint};border-radius:2px;text-decoration:none;color:inherit"
    html, at = "", 0
    for begin, end in row.marks:
        marked = f'<{tag} style="{style}">{escape(row.text[begin:end])}</{tag}>'
        html, at = html + escape(row.text[at:begin]) + marked, end
    return html + escape(row.text[at:])


def _run(kind: str, html: str) -> str:
    """Consecutive lines of one kind; the line break at the end is for pages without styles."""
    tint = f"background:{_TINTS[kind]};" if kind in _TINTS else ""
    quiet = "" if kind in " +-" else f"{_QUIET};"
    style = f"display:block;padding:0 .7em;{tint}{quiet}"
    return f'<span style="{style}">{html}\n</span>'


def _counts(diffs: Iterable[FileDiff]) -> str:
    changes = [c for d in diffs for c in changes_in(d)]
    return _signed(*changes[0].counts) if len(changes) == 1 else ""


def _signed(additions: int | None, deletions: int | None) -> str:
    counts = (("+", additions, _OK), ("-", deletions, _BAD))
    return "".join(
        f' <span style="color:{color}">{sign}{n}</span>'
        for sign, n, color in counts
        if n is not None
    )


def whole_diff(diff: Diff) -> str:
    """Return a Diff as HTML: its source, then each file, unified or side by side."""
    files = list(diff_rows.rows_by_file(diff))
    head = f'<b style="font-weight:600">{diff_rows.title(diff)}</b>{_signed(*diff.counts)}'
    parts = [f"<div>{head}{_suffix(diff_rows.source(diff)) if diff else ''}</div>"]
    parts += [_changed_file(*f, diff, n < 10) for n, f in enumerate(files)]
    if note := diff_rows.omission_note(diff, [row for _, rows in files for row in rows]):
        parts.append(_line("…", "inherit", escape_html(note), quiet=True))
    return page(parts, "62em" if diff.layout == "unified" else _SPLIT_PAGE)


def _changed_file(
    file: ChangedFile, rows: list[diff_rows.DiffRow], diff: Diff, opened: bool
) -> str:
    name = f"{file.before} → {file.name}" if file.before else file.name
    head = _code(diff_rows.visible_line(name) or "(unnamed file)") + _signed(*file.counts)
    head += _suffix(*diff_rows.file_notes(file))
    digits = max((len(str(n)) for row in rows for n in (row.old, row.new) if n), default=1)
    body = _lines(rows, digits) if diff.layout == "unified" else _split(rows)
    return _file(head, body if rows else "", opened and (len(diff) == 1 or len(rows) <= _MAX_OPEN))


# Each cell overrides the front end's table style (stripes, right-aligned cells).
_ROW = "background:none;border:0"
_CELL = "padding:0 .5em;border:0;vertical-align:top;text-align:"
_SPLIT = "white-space:pre-wrap;overflow-wrap:anywhere;font-size:1em;background:none;padding:0"


def _split(rows: list[diff_rows.DiffRow]) -> str:
    """Rows as a table with the lines before on the left and after on the right."""
    columns = (("", "3.5em"), ("before", ""), ("", "3.5em"), ("after", ""))
    heads = "".join(
        f'<th style="{_CELL}left;font-weight:400;{_QUIET}{f";width:{w}" if w else ""}">{name}</th>'
        for name, w in columns
    )
    body = "".join(_split_row(*pair) for pair in diff_rows.side_by_side(rows))
    table = "width:100%;table-layout:fixed;border-collapse:collapse;margin:0;border:0;font-size:1em"
    return (
        f'<div style="{_PRE}.35em 0{_TALL}"><table style="{table}">'
        f'<tr style="{_ROW}">{heads}</tr>{body}</table></div>'
    )


def _split_row(old: diff_rows.DiffRow | None, new: diff_rows.DiffRow | None) -> str:
    if old is not None and old.kind in "@…":
        text = f'<td colspan="4" style="{_CELL}left;{_QUIET}"><code style="{_SPLIT};color:inherit">'
        return f'<tr style="{_ROW}">{text}{escape(old.text)}</code></td></tr>'
    left = _half(old, old.old if old else None)
    return f'<tr style="{_ROW}">{left}{_half(new, new.new if new else None)}</tr>'


def _half(row: diff_rows.DiffRow | None, number: int | None) -> str:
    if row is None:
        return f'<td style="{_CELL}right"></td><td style="{_CELL}left"></td>'
    tint = f";background:{_TINTS[row.kind]}" if row.kind in _TINTS else ""
    quiet = f";{_QUIET}" if row.kind == "\\" else ""
    line_number = f'<span style="opacity:.5">{"" if number is None else number}</span>'
    code = f'<code style="{_SPLIT};color:inherit">{_text(row)}</code>'
    left = f'<td style="{_CELL}right{tint}">{line_number}</td>'
    return f'{left}<td style="{_CELL}left{tint}{quiet}">{code}</td>'


# -- sessions, requests, results -------------------------------------------------------------------


def session(session: Session) -> str:
    """Return a session as a small card."""
    title = escape_html(wording.first_line(session.title)) or "(untitled)"
    details = escape_html(wording.session_line(session))
    return page(
        [
            f'<div><b style="font-weight:600">{title}</b> {_code(session.id)}</div>'
            f'<div style="{_SMALL};{_QUIET}">{details}</div>'
        ]
    )


def transcript(transcript: Transcript) -> str:
    """Return a transcript as HTML: the session, then each prompt with its finished turn."""
    above = [session(transcript.session)]
    if transcript.left_out:
        above.append(_line("↑", _WARN, escape_html(wording.omitted_turns(transcript)), quiet=True))
    return page([*above, *(_prompt(t) + turn(t) for t in transcript.turns)])


def _prompt(turn: Turn) -> str:
    style = (
        "margin:1.4em 0 .4em;padding:.5em .8em;border-radius:4px;background:rgba(128,128,128,.09)"
    )
    return (
        f'<div style="{style};white-space:pre-wrap">{escape_html(wording.prompt_text(turn))}</div>'
    )


def request(request: Permission | Question) -> str:
    """Return a waiting permission or question with all its details."""
    details = f'<div style="{_INSIDE}">{_request_details(request)}</div>'
    return page([_request(RequestState(request)), details])


def settled_request(settled: SettledRequest) -> str:
    """Return a permission or question with its answer, in one line."""
    state = RequestState(settled.request, settled.reply, settled.message, "", settled.together)
    return page([_request(state)])


def result(value: Result) -> str:
    """Return the result of a session operation: its state, then the reasons, then the next step.

    `text.result` is the value's repr.
    """
    view = results.view_of(value)
    icon, style = _STATES[view.state]
    head = f'<b style="font-weight:600">{escape_html(view.head)}</b> {_code(view.about)}'
    lines = [f'<div><span style="{style}">{icon}</span> {head}</div>']
    if why := " · ".join(filter(None, view.why)):
        lines.append(f'<div style="{_SMALL};{_QUIET};{_INSIDE}">{escape_html(why)}</div>')
    if view.todo:
        lines.append(f'<div style="{_SMALL};{_INSIDE}">{escape_html(view.todo)}</div>')
    return page(lines)


# -- building blocks -------------------------------------------------------------------------------


def _line(icon: str, color: str, html: str, quiet: bool = False) -> str:
    text = f'<span style="{_QUIET}">{html}</span>' if quiet else html
    style = "margin:.25em 0;padding-left:.85em"  # aligned with the text after a folding triangle
    return f'<div style="{style}"><span style="color:{color}">{icon}</span> {text}</div>'


def _details(head: str, body: str, opened: bool = False, inside: str = _INSIDE) -> str:
    return (
        f'<details{" open" if opened else ""} style="margin:.25em 0">'
        f'<summary style="{_SUMMARY}"><span style="{_HEAD}">{head}</span></summary>'
        f'<div style="{inside}">{body}</div></details>'
    )


def _pre(text: str, color: str = "") -> str:
    if not text.strip():
        return ""
    style = f"{_PRE}.5em .7em;white-space:pre-wrap" + (f";color:{color}" if color else "")
    return f'<pre style="{style}">{escape_html(text)}</pre>'


def _code(text: str) -> str:
    style = "font-size:.9em;background:none;padding:0;color:inherit"
    return f'<code style="{style}">{escape_html(text)}</code>' if text else ""


def _suffix(*notes: str) -> str:
    text = "".join(f" · {escape_html(note)}" for note in notes if note)
    return f'<span style="{_QUIET}">{text}</span>' if text else ""
