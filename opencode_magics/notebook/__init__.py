"""What a cell shows: a turn as it goes on, and core values as rich output.

The core knows nothing of this. `register_formatters` tells IPython how turns, sessions, requests
and diffs look; `view` gives what shows a running turn in a given shell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..model import FileDiff, Permission, Question, Session
from ..turn import Turn
from . import html, text
from .live import LiveCell, View, view
from .text import TextView, render

__all__ = [
    "LiveCell",
    "TextView",
    "View",
    "register_formatters",
    "render",
    "unregister_formatters",
    "view",
]

_LOOKS: dict[type, tuple[Callable[[Any], str], Callable[[Any], str]]] = {
    Turn: (html.turn, text.render),
    Session: (html.session, text.session),
    Permission: (html.request, text.request),
    Question: (html.request, text.request),
    FileDiff: (html.file_diff, text.file_diff),
}


def register_formatters(ip: Any) -> None:
    """Let IPython show turns, sessions, requests and diffs."""
    formatters = ip.display_formatter.formatters
    for kind, (rich, plain) in _LOOKS.items():
        formatters["text/html"].for_type(kind, rich)
        formatters["text/plain"].for_type(kind, _printer(plain))


def unregister_formatters(ip: Any) -> None:
    """Undo `register_formatters`."""
    for name in ("text/html", "text/plain"):
        for kind in _LOOKS:
            ip.display_formatter.formatters[name].pop(kind, None)


def _printer(plain: Callable[[Any], str]) -> Callable[[Any, Any, bool], None]:
    """For IPython's pretty printer: the whole text at the top, the repr inside of something."""

    def show(value: Any, printer: Any, cycle: bool) -> None:
        printer.text(plain(value) if len(printer.stack) <= 1 else repr(value))

    return show
