"""A turn as HTML that is safe and reads well in a light and a dark theme, and without any style.

Markdown comes from `markdown.render` alone; everything else that a model, a tool or a server wrote
goes through `esc`. Styles are inline and mostly see-through greys; there are no scripts, no <style>
and no classes but the two that keep `$5` from becoming a formula.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from itertools import groupby

from ..model import Failure, FileDiff, Permission, Question, Reasoning, Session, Text, ToolCall
from ..turn import Retry, Turn
from . import diff, markdown, words
from .blocks import Block, Changes, Note, Recap, Request, blocks
from .words import State, clean

_RULE = "1px solid var(--jp-border-color2,rgba(128,128,128,.3))"
_MONO = "font-family:var(--jp-code-font-family,ui-monospace,Menlo,Consolas,monospace)"
_OK = "var(--jp-success-color1,#1a7f37)"
_BAD = "var(--jp-error-color1,#cf222e)"
_WARN = "var(--jp-warn-color1,#bf6a02)"
_BUSY = "var(--jp-brand-color1,#0969da)"
_QUIET = "opacity:.65"
_SMALL = "font-size:.92em"
_PRE = (
    f"{_MONO};font-size:.86em;line-height:1.45;margin:.3em 0;padding:.5em .7em;overflow:auto;"
    "max-height:26em;border-radius:4px;background:rgba(128,128,128,.09);color:inherit;"
)
_INSIDE = "margin:.1em 0 .7em 1.35em"
_STATES: dict[State, tuple[str, str]] = {
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


def esc(text: str) -> str:
    """Text as HTML shows it, whatever is in it."""
    return escape(clean(text))


# -- whole things ----------------------------------------------------------------------------------


def turn(turn: Turn, note: str = "") -> str:
    """A whole turn."""
    return page([*map(block, blocks(turn)), last_line(turn, note)])


def page(fragments: Iterable[str]) -> str:
    """What stands in one output. The classes stop MathJax; see `ignoreHtmlClass` there."""
    style = "max-width:62em;line-height:1.5;overflow-wrap:break-word"
    inside = "\n".join(fragments)
    return f'<div class="mathjax_ignore tex2jax_ignore" style="{style}">\n{inside}\n</div>'


def last_line(turn: Turn, note: str = "") -> str:
    """Outcome, who, how much, how long; above it a note, if there is one."""
    outcome, *rest = words.summary_parts(turn)
    icon, colour = _OUTCOMES[outcome]
    told = esc(" · ".join(["", *rest])).lstrip()
    line = (
        f'<div style="margin:.6em 0 .2em;padding-top:.35em;border-top:{_RULE};{_SMALL}">'
        f'<b style="color:{colour};font-weight:600">{icon} {outcome}</b> '
        f'<span style="{_QUIET}">{told}</span></div>'
    )
    return _line("!", _WARN, esc(note)) + line if note else line


def prose(value: Text | Reasoning | Recap, html: str, continued: bool = False) -> str:
    """Rendered markdown as the answer, or folded away as what led to it."""
    if isinstance(value, Text):
        return f'<div style="margin:.5em 0">{html}</div>'
    name = "Summary of the conversation" if isinstance(value, Recap) else "Reasoning"
    took = words.between(value.start, value.end) if isinstance(value, Reasoning) else ""
    more = "continued" if continued else took
    rail = "border-left:2px solid rgba(128,128,128,.35);padding-left:.9em;margin:.2em 0 .6em .35em"
    return (
        f'<details style="margin:.25em 0;{_SMALL};opacity:.8"><summary style="cursor:pointer">'
        f"<i>{name}</i>{_aside(more)}</summary>"
        f'<div style="{rail}">{html}</div></details>'
    )


def block(block: Block) -> str:
    """One block."""
    match block.value:
        case Text() | Reasoning() | Recap():
            return prose(block.value, markdown.render(block.value.text))
        case ToolCall():
            return _tool(block.value, block.closed)
        case Request():
            return _request(block.value)
        case Retry():
            return _line("↻", _WARN, esc(words.retry_line(block.value)))
        case Failure():
            return _failure(block.value)
        case Note():
            return _line("·", "inherit", f'<i style="{_QUIET}">{esc(block.value.text)}</i>')
        case Changes():
            return _changes(block.value.diffs)


# -- tool calls ------------------------------------------------------------------------------------


def _tool(tool: ToolCall, closed: bool) -> str:
    icon, style = _STATES[words.state(tool, closed)]
    head = (
        f'<span style="{style}">{icon}</span> <b style="font-weight:600">{esc(tool.tool)}</b> '
        f"{_code(words.subject(tool))}{_counts(tool.diffs)}{_aside(*words.aside(tool, closed))}"
    )
    if tool.error:
        head += f' <span style="color:{_BAD}">{esc(words.one_line(tool.error))}</span>'
    edits = "".join(_diff(d, folded=len(tool.diffs) > 1) for d in tool.diffs)
    body = edits + (_fold("input and output", _exchange(tool, closed)) if edits else "")
    return _details(head, body or _exchange(tool, closed), opened=bool(edits))


def _exchange(tool: ToolCall, closed: bool) -> str:
    """What went into a tool and what came out."""
    command = tool.input.get("command")
    if isinstance(command, str):
        asked = f"$ {command}"
    else:
        asked = json.dumps(tool.input, indent=2, ensure_ascii=False, default=str)
    # A running command tells all its output with each line of it: its end is enough until then.
    output = words.shorten(tool.output) if closed else _end(tool.output)
    parts = [_pre(words.shorten(asked)), _pre(output), _pre(tool.error or "", _BAD)]
    child = f'<div style="{_SMALL};{_QUIET}">session {esc(tool.child)}</div>' if tool.child else ""
    return "".join(parts) + child


def _end(output: str, limit: int = 2_000) -> str:
    left_out = len(output) - limit
    return output if left_out <= 0 else f"… {left_out:,} characters before …\n{output[-limit:]}"


# -- requests, failures, changes -------------------------------------------------------------------


def _request(request: Request) -> str:
    line = esc(words.request_line(request))
    if request.reply:
        good = request.reply in ("once", "always", "answered")
        return _line("✓" if good else "✗", _OK if good else _WARN, line, quiet=True)
    head = _line("●", _BUSY, f"<b>{line}</b>")
    return head + f'<div style="{_INSIDE}">{_asked(request.request)}</div>'


def _asked(asked: Permission | Question) -> str:
    """All of what is asked: nobody should have to allow what can't be seen."""
    match asked:
        case Question(items=items):
            return "".join(
                f"<div>{esc(item.question or item.header)}</div><ul>"
                + "".join(f"<li>{_option(*option)}</li>" for option in item.options)
                + "</ul>"
                for item in items
            )
        case Permission(diff=FileDiff() as edit):
            return _diff(edit)
        case _:
            return _pre(f"$ {asked.command}" if asked.command else "\n".join(asked.patterns))


def _option(label: str, description: str) -> str:
    return f"{esc(label)}{_aside(description)}"


def _failure(failure: Failure) -> str:
    text = esc(words.shorten(words.failure_line(failure), 4_000))
    if failure.aborted:
        return _line("■", _WARN, text)
    style = f"margin:.4em 0;padding:.3em .8em;border-left:3px solid {_BAD};white-space:pre-wrap"
    return f'<div style="{style}"><b style="color:{_BAD}">Error</b> {text}</div>'


def _changes(diffs: Iterable[FileDiff]) -> str:
    files = words.changed_files(list(diffs))
    shown = [
        f"{_code(diff.visible(name or '(unnamed file)'))}{_signed(*counts)}"
        for name, counts in list(files.items())[:20]
    ]
    more = [f"{len(files) - 20} more"] if len(files) > 20 else []
    title = f"Changed {words.count(len(files), 'file')}:"
    return _line("±", "inherit", f"{title} {' · '.join([*shown, *more])}")


# -- diffs -----------------------------------------------------------------------------------------

_TINTS = {"+": "rgba(46,160,67,.17)", "-": "rgba(248,81,73,.16)"}


def file_diff(edit: FileDiff) -> str:
    """A changed file, in colours that need no theme; the signs stay for where styles are gone."""
    return page([_diff(edit)])


def _diff(edit: FileDiff, folded: bool = False) -> str:
    return "".join(_change(c, folded) for c in diff.changes(edit))


def _change(change: diff.Change, folded: bool) -> str:
    notes = "".join(f'<span style="{_QUIET}"> · {esc(n)}</span>' for n in diff.notes(change))
    head = _code(diff.visible(change.name)) + _signed(change.additions, change.deletions) + notes
    lines = list(diff.lines(change))
    if not lines:
        return f'<div style="margin:.2em 0">{head}</div>'
    runs = (
        _run(kind, "\n".join(line for _, line in run))
        for kind, run in groupby(lines, key=lambda line: line[0])
    )
    style = _PRE.replace("padding:.5em .7em", "padding:.35em 0")
    code = f'<pre style="{style}">{"".join(runs)}</pre>'
    return _details(head, code, opened=not folded and len(lines) <= 60, flush=True)


def _run(kind: str, text: str) -> str:
    """Neighbouring lines of one kind; each ends itself, so that it reads without styles too."""
    tint = f"background:{_TINTS[kind]};" if kind in _TINTS else ""
    quiet = "" if kind in " +-" else f"{_QUIET};"
    style = f"display:block;padding:0 .7em;{tint}{quiet}"
    return f'<span style="{style}">{escape(text)}\n</span>'


def _counts(diffs: Iterable[FileDiff]) -> str:
    found = [c for d in diffs for c in diff.changes(d)]
    return _signed(*found[0].counts) if len(found) == 1 else ""


def _signed(additions: int | None, deletions: int | None) -> str:
    told = (("+", additions, _OK), ("-", deletions, _BAD))
    return "".join(
        f' <span style="color:{colour}">{sign}{n}</span>'
        for sign, n, colour in told
        if n is not None
    )


# -- small cards -----------------------------------------------------------------------------------


def session(session: Session) -> str:
    """A session as a small card."""
    title = esc(words.one_line(session.title)) or "(untitled)"
    told = esc(words.session_line(session))
    return page(
        [
            f'<div><b style="font-weight:600">{title}</b> {_code(session.id)}</div>'
            f'<div style="{_SMALL};{_QUIET}">{told}</div>'
        ]
    )


def request(asked: Permission | Question) -> str:
    """A permission or question that waits, with all that it asks."""
    return page([_request(Request(asked))])


# -- pieces ----------------------------------------------------------------------------------------


def _line(icon: str, colour: str, html: str, quiet: bool = False) -> str:
    text = f'<span style="{_QUIET}">{html}</span>' if quiet else html
    return f'<div style="margin:.25em 0"><span style="color:{colour}">{icon}</span> {text}</div>'


def _details(head: str, body: str, opened: bool = False, flush: bool = False) -> str:
    inside = "margin:0" if flush else _INSIDE
    return (
        f'<details{" open" if opened else ""} style="margin:.25em 0">'
        f'<summary style="cursor:pointer">{head}</summary>'
        f'<div style="{inside}">{body}</div></details>'
    )


def _fold(name: str, body: str) -> str:
    return (
        f'<details style="{_SMALL}"><summary style="cursor:pointer;{_QUIET}">{name}</summary>'
        f"{body}</details>"
    )


def _pre(text: str, colour: str = "") -> str:
    if not text.strip():
        return ""
    style = _PRE + "white-space:pre-wrap" + (f";color:{colour}" if colour else "")
    return f'<pre style="{style}">{esc(text)}</pre>'


def _code(text: str) -> str:
    style = f"{_MONO};font-size:.9em;background:none;padding:0;color:inherit"
    return f'<code style="{style}">{esc(text)}</code>' if text else ""


def _aside(*told: str) -> str:
    text = "".join(f" · {esc(t)}" for t in told if t)
    return f'<span style="{_QUIET}">{text}</span>' if text else ""
