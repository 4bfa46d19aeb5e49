"""A turn as HTML that is safe and reads well in a light and a dark theme, and without any style.

Markdown comes from `markdown.render` alone; everything else that a model, a tool or a server wrote
goes through `escape_html`. Styles are inline and mostly
see-through greys; there are no scripts, no <style>
and no classes but the two that keep `$5` from becoming a formula.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html import escape
from itertools import groupby

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
from ..core.outcome import ToolOutcome, is_granted, of_tool
from ..core.patches import FileChange, changes_in
from ..core.turn import Retry, SettledRequest, Turn
from ..sessions.transcript import Transcript
from . import diff_rows, markdown, results, wording
from .blocks import Block, Changes, Note, Recap, RequestState, blocks
from .results import Result
from .wording import clean

# Plain middle tones: JupyterLab drops var(...) from the outputs of a notebook it doesn't trust yet,
# and a reopened notebook should look as it did.
_OK, _BAD, _WARN, _BUSY = "#2c974b", "#e0443e", "#c87a00", "#3b7fd9"
# No line begins with the unit of a number that ended the line above it.
_AFTER_NUMBER, _NO_BREAK = re.compile(r"(?<=[\d≥?]) (?!·)"), "\N{NO-BREAK SPACE}"
_RULE = "1px solid rgba(128,128,128,.3)"
_QUIET = "opacity:.65"
_SMALL = "font-size:.92em"
_PRE = (
    "font-size:.86em;line-height:1.45;margin:.3em 0;overflow:auto;max-height:26em;"
    "border-radius:4px;background:rgba(128,128,128,.09);color:inherit;padding:"
)
_INSIDE = "margin:.1em 0 .5em 1.1em"
_SUMMARY = "cursor:pointer;font-size:.7em"  # a small triangle ...
_HEAD = "font-size:1.4286em"  # ... before text of the usual size
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
    """Text as HTML shows it, whatever is in it."""
    return escape(clean(text))


# -- whole things ----------------------------------------------------------------------------------


def turn(turn: Turn, note: str = "") -> str:
    """A whole turn."""
    return page([*map(block, blocks(turn)), last_line(turn, note)])


def page(fragments: Iterable[str], width: str = "62em") -> str:
    """What stands in one output. The classes stop MathJax; see `ignoreHtmlClass` there."""
    style = f"max-width:{width};line-height:1.5;overflow-wrap:break-word"
    inside = "\n".join(fragments)
    return f'<div class="mathjax_ignore tex2jax_ignore" style="{style}">\n{inside}\n</div>'


def last_line(turn: Turn, note: str = "") -> str:
    """Outcome, who, how much, how long; above it a note, if there is one."""
    outcome, *rest = wording.summary_parts(turn)
    icon, colour = _OUTCOMES[turn.outcome]
    told = _AFTER_NUMBER.sub(_NO_BREAK, escape_html(" · ".join(["", *rest])).lstrip())
    line = (
        f'<div style="margin:.6em 0 .2em;padding-top:.35em;border-top:{_RULE};{_SMALL}">'
        f'<b style="color:{colour};font-weight:600">{icon} {outcome}</b> '
        f'<span style="{_QUIET}">{told}</span></div>'
    )
    return _line("!", _WARN, escape_html(note)) + line if note else line


def prose(value: Text | Reasoning | Recap, html: str, continued: bool = False) -> str:
    """Rendered markdown as the answer, or folded away as what led to it."""
    if isinstance(value, Text):
        return f'<div style="margin:.5em 0">{html}</div>'
    name = "Summary of the conversation" if isinstance(value, Recap) else "Reasoning"
    took = wording.elapsed(value.start, value.end) if isinstance(value, Reasoning) else ""
    head = f'<i style="{_QUIET}">{name}</i>{_aside("continued" if continued else took)}'
    rail = "border-left:2px solid rgba(128,128,128,.35);padding-left:.8em;margin:.2em 0 .6em .3em"
    return _details(head, html, inside=f"{rail};opacity:.8")


def block(block: Block) -> str:
    """One block."""
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
            return _changes(block.value.diffs)


# -- tool calls ------------------------------------------------------------------------------------


def _tool(tool: ToolCall, closed: bool) -> str:
    icon, style = _STATES[of_tool(tool, closed)]
    error = (
        f' <span style="color:{_BAD}">{escape_html(wording.first_line(tool.error or ""))}</span>'
    )
    head = (
        f'<span style="{style}">{icon}</span> <b style="font-weight:600">'
        f"{escape_html(tool.tool)}</b> "
        f"{_code(wording.tool_subject(tool))}{_counts(tool.diffs)}{error if tool.error else ''}"
        f"{_aside(*wording.tool_notes(tool, closed))}"
    )
    edits, exchange = _edits(tool.diffs), _exchange(tool, closed)
    if edits:
        return _details(head, edits + _details(_IO, exchange, inside="margin:0"), opened=True)
    return _details(head, exchange)


_IO = f'<span style="{_SMALL};{_QUIET}">input and output</span>'


def _edits(diffs: Iterable[FileDiff]) -> str:
    """The edits of a tool; a single one needs no heading under the line that names it."""
    shown = list(diff_rows.rows_by_change(diffs))
    if len(shown) == 1 and not diff_rows.notes(shown[0][0]):
        return _lines(shown[0][1])
    return "".join(_change(*c, folded=len(shown) > 3) for c in shown)


def _exchange(tool: ToolCall, closed: bool) -> str:
    """What went into a tool and what came out."""
    command = tool.input.get("command")
    if isinstance(command, str):
        asked = f"$ {diff_rows.visible_lines(command)}"
    else:
        asked = json.dumps(tool.input, indent=2, ensure_ascii=False, default=str)
    # A running command tells all its output with each line of it: its end is enough until then.
    output = without_middle(tool.output, wording.LONGEST) if closed else _end(tool.output)
    parts = [
        _pre(without_middle(asked, wording.LONGEST)),
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
    return output if left_out <= 0 else f"… {left_out:,} characters before …\n{output[-limit:]}"


# -- requests, failures, changes -------------------------------------------------------------------


def _request(request: RequestState) -> str:
    line = escape_html(wording.request_line(request))
    if request.reply:
        good = is_granted(request.reply)
        return _line("✓" if good else "✗", _OK if good else _WARN, line, quiet=True)
    return _line("●", _WARN, f"<b>{line}</b>")  # who asks a person shows all of it


def _asked(asked: Permission | Question) -> str:
    """All of what is asked: nobody should have to allow what can't be seen."""
    match asked:
        case Question(items=items):
            return "".join(
                (f"<div>{escape_html(i.question or i.header)}</div>" if len(items) > 1 else "")
                + _options(i.options)
                for i in items
            )
        case Permission(diff=FileDiff() as edit):
            return _diff(edit)
        case Permission():
            told = f"$ {asked.command}" if asked.command else "\n".join(asked.patterns)
            return _pre(diff_rows.visible_lines(told))


def _options(options: Iterable[Option]) -> str:
    offered = "".join(f"<li>{escape_html(o.label)}{_aside(o.description)}</li>" for o in options)
    return f'<ul style="margin:.2em 0">{offered}</ul>' if offered else ""


def _failure(failure: Failure) -> str:
    text = escape_html(without_middle(wording.failure_line(failure), wording.LONGEST_FAILURE))
    if failure.aborted:
        return _line("■", _WARN, text)
    style = f"margin:.4em 0;padding:.3em .8em;border-left:3px solid {_BAD};white-space:pre-wrap"
    return f'<div style="{style}"><b style="color:{_BAD}">Error</b> {text}</div>'


def _changes(diffs: Iterable[FileDiff]) -> str:
    files = wording.changed_files(diffs)
    shown = [
        f"{_code(diff_rows.visible_line(name))}{_signed(*counts)}"
        for name, counts in list(files.items())[:20]
    ]
    more = [f"{len(files) - 20} more"] if len(files) > 20 else []
    title = f"Changed {pluralize(len(files), 'file')}:"
    return _line("±", "inherit", f"{title} {' · '.join([*shown, *more])}")


# -- diffs -----------------------------------------------------------------------------------------

_TINTS = {"+": "rgba(46,160,67,.17)", "-": "rgba(248,81,73,.16)"}
_MARKS = {"+": ("ins", "rgba(46,160,67,.4)"), "-": ("del", "rgba(248,81,73,.38)")}
_OPENED = 60  # lines of a file that isn't folded
_TALL = ";max-height:42em"  # where a diff is all that a cell shows
# As wide as its widest line, so that a tint doesn't end where one begins to scroll. In the HTML of
# nbconvert only <code> has letters of equal width.
_WIDE = "display:inline-block;min-width:100%;font-size:1em;background:none;padding:0;color:inherit"
_SPLIT_PAGE = "110em"


def file_diff(edit: FileDiff) -> str:
    """A changed file, in colours that need no theme; the signs stay for where styles are gone."""
    return page([_diff(edit)])


def _diff(edit: FileDiff) -> str:
    return "".join(_change(*c, folded=False) for c in diff_rows.rows_by_change([edit]))


def _change(change: FileChange, rows: list[diff_rows.DiffRow], folded: bool) -> str:
    head = (
        _code(diff_rows.visible_line(change.name))
        + _signed(*change.counts)
        + _aside(*diff_rows.notes(change))
    )
    return _file(head, _lines(rows) if rows else "", not folded and len(rows) <= _OPENED)


def _file(head: str, body: str, opened: bool) -> str:
    """A file under its name, folded if it is long."""
    if not body:
        return f'<div style="margin:.2em 0;padding-left:.85em">{head}</div>'
    return _details(head, body, opened=opened, inside="margin:0")


def _lines(rows: list[diff_rows.DiffRow], numbers: int = 0) -> str:
    """Lines one below the other, with line numbers of so many digits."""
    runs = (
        _run(kind, "\n".join(_numbers(row, numbers) + _text(row) for row in run))
        for kind, run in groupby(rows, key=lambda row: row.kind)
    )
    inside = f'<code style="{_WIDE}">{"".join(runs)}</code>'
    return f'<pre style="{_PRE}.35em 0{_TALL if numbers else ""}">{inside}</pre>'


def _numbers(row: diff_rows.DiffRow, digits: int) -> str:
    if not digits or row.kind in "@…":
        return ""
    told = " ".join(f"{'' if n is None else n:>{digits}}" for n in (row.old, row.new))
    return f'<span style="opacity:.5;user-select:none">{told} </span>'


def _text(row: diff_rows.DiffRow) -> str:
    """A line; what differs in it stands out with styles and without."""
    if not row.marks:
        return escape(row.text)
    tag, tint = _MARKS[row.kind]
    style = f"background:{tint};border-radius:2px;text-decoration:none;color:inherit"
    told, at = "", 0
    for begin, end in row.marks:
        marked = f'<{tag} style="{style}">{escape(row.text[begin:end])}</{tag}>'
        told, at = told + escape(row.text[at:begin]) + marked, end
    return told + escape(row.text[at:])


def _run(kind: str, html: str) -> str:
    """Neighbouring lines of one kind; each ends itself, so that it reads without styles too."""
    tint = f"background:{_TINTS[kind]};" if kind in _TINTS else ""
    quiet = "" if kind in " +-" else f"{_QUIET};"
    style = f"display:block;padding:0 .7em;{tint}{quiet}"
    return f'<span style="{style}">{html}\n</span>'


def _counts(diffs: Iterable[FileDiff]) -> str:
    found = [c for d in diffs for c in changes_in(d)]
    return _signed(*found[0].counts) if len(found) == 1 else ""


def _signed(additions: int | None, deletions: int | None) -> str:
    told = (("+", additions, _OK), ("-", deletions, _BAD))
    return "".join(
        f' <span style="color:{colour}">{sign}{n}</span>'
        for sign, n, colour in told
        if n is not None
    )


def whole_diff(told: Diff) -> str:
    """A Diff: where it is from, then file by file, unified or side by side."""
    shown = list(diff_rows.rows_by_file(told))
    head = f'<b style="font-weight:600">{diff_rows.title(told)}</b>{_signed(*told.counts)}'
    parts = [f"<div>{head}{_aside(diff_rows.source(told)) if told else ''}</div>"]
    parts += [_changed_file(*f, told, n < 10) for n, f in enumerate(shown)]
    if more := diff_rows.omission_note(told, [row for _, rows in shown for row in rows]):
        parts.append(_line("…", "inherit", escape_html(more), quiet=True))
    return page(parts, "62em" if told.layout == "unified" else _SPLIT_PAGE)


def _changed_file(
    file: ChangedFile, rows: list[diff_rows.DiffRow], told: Diff, opened: bool
) -> str:
    name = f"{file.before} → {file.name}" if file.before else file.name
    head = _code(diff_rows.visible_line(name) or "(unnamed file)") + _signed(*file.counts)
    head += _aside(*diff_rows.file_notes(file))
    digits = max((len(str(n)) for row in rows for n in (row.old, row.new) if n), default=1)
    body = _lines(rows, digits) if told.layout == "unified" else _split(rows)
    return _file(head, body if rows else "", opened and (len(told) == 1 or len(rows) <= _OPENED))


# A front-end's own look of tables (stripes, right-aligned cells) is overruled cell by cell.
_ROW = "background:none;border:0"
_CELL = "padding:0 .5em;border:0;vertical-align:top;text-align:"
_SPLIT = "white-space:pre-wrap;overflow-wrap:anywhere;font-size:1em;background:none;padding:0"


def _split(rows: list[diff_rows.DiffRow]) -> str:
    """Lines before on the left and after on the right."""
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
    place = f'<span style="opacity:.5">{"" if number is None else number}</span>'
    code = f'<code style="{_SPLIT};color:inherit">{_text(row)}</code>'
    left = f'<td style="{_CELL}right{tint}">{place}</td>'
    return f'{left}<td style="{_CELL}left{tint}{quiet}">{code}</td>'


# -- small cards -----------------------------------------------------------------------------------


def session(session: Session) -> str:
    """A session as a small card."""
    title = escape_html(wording.first_line(session.title)) or "(untitled)"
    told = escape_html(wording.session_line(session))
    return page(
        [
            f'<div><b style="font-weight:600">{title}</b> {_code(session.id)}</div>'
            f'<div style="{_SMALL};{_QUIET}">{told}</div>'
        ]
    )


def conversation(told: Transcript) -> str:
    """An old session: what was asked, and each turn as it looks when it is over."""
    above = [session(told.session)]
    if told.left_out:
        above.append(_line("↑", _WARN, escape_html(wording.omitted_turns(told)), quiet=True))
    return page([*above, *(_prompt(t) + turn(t) for t in told.turns)])


def _prompt(told: Turn) -> str:
    style = (
        "margin:1.4em 0 .4em;padding:.5em .8em;border-radius:4px;background:rgba(128,128,128,.09)"
    )
    return (
        f'<div style="{style};white-space:pre-wrap">{escape_html(wording.prompt_text(told))}</div>'
    )


def request(asked: Permission | Question) -> str:
    """A permission or question that waits, with all that it asks."""
    return page([_request(RequestState(asked)), f'<div style="{_INSIDE}">{_asked(asked)}</div>'])


def settled(answered: SettledRequest) -> str:
    """A permission or question and how it was answered, in one line."""
    return page([_request(RequestState(answered.request, answered.reply, answered.message))])


def result(value: Result) -> str:
    """What came of something that was done to a session: how it stands, then why, then what next.

    Here the plain text is the value's repr.
    """
    told = results.view_of(value)
    icon, style = _STATES[told.state]
    head = f'<b style="font-weight:600">{escape_html(told.head)}</b> {_code(told.about)}'
    lines = [f'<div><span style="{style}">{icon}</span> {head}</div>']
    if why := " · ".join(filter(None, told.why)):
        lines.append(f'<div style="{_SMALL};{_QUIET};{_INSIDE}">{escape_html(why)}</div>')
    if told.todo:
        lines.append(f'<div style="{_SMALL};{_INSIDE}">{escape_html(told.todo)}</div>')
    return page(lines)


# -- pieces ----------------------------------------------------------------------------------------


def _line(icon: str, colour: str, html: str, quiet: bool = False) -> str:
    text = f'<span style="{_QUIET}">{html}</span>' if quiet else html
    style = "margin:.25em 0;padding-left:.85em"  # as far as a folded line's triangle
    return f'<div style="{style}"><span style="color:{colour}">{icon}</span> {text}</div>'


def _details(head: str, body: str, opened: bool = False, inside: str = _INSIDE) -> str:
    return (
        f'<details{" open" if opened else ""} style="margin:.25em 0">'
        f'<summary style="{_SUMMARY}"><span style="{_HEAD}">{head}</span></summary>'
        f'<div style="{inside}">{body}</div></details>'
    )


def _pre(text: str, colour: str = "") -> str:
    if not text.strip():
        return ""
    style = f"{_PRE}.5em .7em;white-space:pre-wrap" + (f";color:{colour}" if colour else "")
    return f'<pre style="{style}">{escape_html(text)}</pre>'


def _code(text: str) -> str:
    style = "font-size:.9em;background:none;padding:0;color:inherit"
    return f'<code style="{style}">{escape_html(text)}</code>' if text else ""


def _aside(*told: str) -> str:
    text = "".join(f" · {escape_html(t)}" for t in told if t)
    return f'<span style="{_QUIET}">{text}</span>' if text else ""
