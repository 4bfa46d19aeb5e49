"""IPython formatters for turns, sessions, requests, diffs and results.

Types are registered by name, so that nothing is imported until such a value is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Type -> its functions in `html` and in `text`.
_FORMATTERS = {
    "opencode_magics.core.turn.Turn": ("turn", "render"),
    "opencode_magics.core.turn.SettledRequest": ("settled_request", "settled_request"),
    "opencode_magics.sessions.transcript.Transcript": ("transcript", "transcript"),
    "opencode_magics.core.model.Session": ("session", "session"),
    "opencode_magics.core.model.Permission": ("request", "request"),
    "opencode_magics.core.model.Question": ("request", "request"),
    "opencode_magics.core.model.FileDiff": ("file_diff", "file_diff"),
    "opencode_magics.core.diffs.Diff": ("whole_diff", "whole_diff"),
    "opencode_magics.sessions.end.EndResult": ("result", "result"),
    "opencode_magics.sessions.end.StopResult": ("result", "result"),
    "opencode_magics.sessions.edit.EditResult": ("result", "result"),
    "opencode_magics.sessions.commands.CommandReceipt": ("result", "result"),
}


def register(ip: Any) -> None:
    """Register the formatters with an IPython shell."""
    formatters = ip.display_formatter.formatters
    for kind, (rich, plain) in _FORMATTERS.items():
        module, _, name = kind.rpartition(".")
        formatters["text/html"].for_type_by_name(module, name, _html(rich))
        formatters["text/plain"].for_type_by_name(module, name, _text(plain))


def unregister(ip: Any) -> None:
    """Undo `register`."""
    for name in ("text/html", "text/plain"):
        for kind in _FORMATTERS:
            ip.display_formatter.formatters[name].pop(kind, None)


def _html(function: str) -> Callable[[Any], str]:
    def show(value: Any) -> str:
        from . import html

        rendered: str = getattr(html, function)(value)
        return rendered

    return show


def _text(function: str) -> Callable[[Any, Any, bool], None]:
    """Return a pretty printer: full text for a value at the top level, its repr in a container."""

    def show(value: Any, printer: Any, cycle: bool) -> None:
        from . import text

        at_top = len(printer.stack) <= 1
        printer.text(getattr(text, function)(value) if at_top else repr(value))

    return show
