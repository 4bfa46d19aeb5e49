"""Tab completion for lines of our magics: options, sessions, models, files, ...

Only a connected server is queried, with a short timeout: a late answer is used at the next Tab.
Errors are logged and never raised, because they would interrupt typing.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from IPython.core.completer import SimpleCompletion, context_matcher

from .cursor import CursorContext, cursor_context
from .input_transforms import FREE_TEXT_MAGICS
from .state import OpenCodeMagics

if TYPE_CHECKING:
    from ..client.client import Client
    from ..core.model import Session

_ID = "opencode_magics"  # identifies our matcher among those of a shell
_TIMEOUT = 0.5  # seconds that Tab waits for the server
_MAX_AGE = 5.0  # seconds for which an answer of the server is reused

_CELL = re.compile(r"%%(oc_\w+)\s")
_LINE = re.compile(r"\s*(?:[\w.\[\]'\", ]+=\s*)?%(oc_\w+)[ \t]")
_PLAIN = r"[^\W_][^\s\";$?]*"  # a word that needs no quotes
# Control characters, line separators and lone surrogates can't be typed; a front end may fail.
_UNTYPABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
T = TypeVar("T")
_log = logging.getLogger(__name__)


class Suggestion(NamedTuple):
    """One completion: its text, and the kind that the front end displays."""

    text: str
    kind: str


class Completer:
    """Completes the lines of our magics in one shell."""

    def __init__(self, shell: Any, state: OpenCodeMagics) -> None:
        self.shell = shell
        self.state = state
        self._answers: dict[str, tuple[float, tuple[Any, ...]]] = {}  # by kind: time, values
        self._requests: dict[str, threading.Thread] = {}
        self._client: Client | None = None  # the server of these answers

    def suggestions(self, cell: str, row: int, column: int) -> tuple[str, list[Suggestion]]:
        """Return the text before the cursor to replace, and the suggestions to replace it with.

        Args:
            cell: The text of the whole cell.
            row: The line of the cursor, from 0. The body of our cell magics gets no suggestions.
            column: The column of the cursor, from 0.
        """
        line = cell.split("\n")[row]
        in_cell = _CELL.match(cell)
        match = (in_cell if row == 0 else None) if in_cell else _LINE.match(line[:column])
        if match is None or match.end() > column:
            return "", []
        name = match[1]
        magic = self.shell.magics_manager.magics["cell" if in_cell else "line"].get(name)
        if magic is None:
            return "", []
        context = cursor_context(
            magic, line[match.end() : column], verbatim=not in_cell and name in FREE_TEXT_MAGICS
        )
        typed, matching = self._values(name, context, line[column : column + 1])
        may_be_option = not context.typed or context.typed.startswith("-")
        if context.options and may_be_option and typed == context.typed:
            matching += _options(magic, context)
        return typed, matching

    def _values(
        self, name: str, context: CursorContext, after: str
    ) -> tuple[str, list[Suggestion]]:
        """Return the values that start with all typed words, or else with the last word."""
        source = SOURCES.get(f"{name}.{context.dest}") or SOURCES.get(context.dest or "")
        if source is None:
            return context.typed, []
        for typed in dict.fromkeys((context.words, context.typed)):
            quote = typed[:1] if typed[:1] in ("'", '"') else ""
            prefix = typed.removeprefix(quote)
            many = context.options and context.dest == "session"
            closing = quote if after == quote else ""  # front ends add the closing quote themselves
            matching = [
                Suggestion(text.removesuffix(closing), kind)
                for value, kind in dict.fromkeys(source(self, prefix))
                if value.casefold().startswith(prefix.casefold())
                and (text := _quote(value, quote, many)) is not None
            ]
            if matching:
                return typed, matching
        return context.typed, []

    # -- values ----------------------------------------------------------------------------------

    def sessions(self, prefix: str) -> Iterator[Suggestion]:
        """Yield unique titles, then ids; sessions that this notebook tracks come first."""
        tracked = [tracked.session for tracked in reversed(self.state.tracked.values())]
        listed = self.from_server("sessions", _sessions)
        sessions = {s.id: s for s in (*tracked, *listed)}.values()
        counts = Counter(s.title.casefold() for s in sessions)
        counts[""] = 0
        yield from (
            Suggestion(s.title, "session") for s in sessions if counts[s.title.casefold()] == 1
        )
        yield from (Suggestion(s.id, "session id") for s in sessions)

    def variables(self, prefix: str) -> Iterator[Suggestion]:
        """Yield the variables that the user defined, except names with a leading underscore."""
        hidden = self.shell.user_ns_hidden
        names = (n for n in self.shell.user_ns if not n.startswith("_") and n not in hidden)
        yield from (Suggestion(name, "variable") for name in sorted(names))

    def tables(self, prefix: str) -> Iterator[Suggestion]:
        """Yield the variables that are DataFrames."""
        frame = getattr(sys.modules.get("pandas"), "DataFrame", ())
        names = self.shell.user_ns
        yield from (s for s in self.variables(prefix) if isinstance(names[s.text], frame))

    def magics(self, prefix: str) -> Iterator[Suggestion]:
        """Yield the names of our magics without percent signs."""
        from .help import overview

        yield from (Suggestion(magic.name.lstrip("%"), "magic") for magic in overview().magics)

    def from_server(self, kind: str, fetch: Callable[[Client], Iterable[T]]) -> tuple[T, ...]:
        """Return values of the connected server, up to a few seconds old; () without a server.

        Args:
            kind: The key that the values are cached under.
            fetch: Requests the values; runs in a thread.
        """
        client = self.state.connected
        if client is not self._client:
            self._client, self._answers, self._requests = client, {}, {}
        if client is None:
            return ()
        time_of_answer, values = self._answers.get(kind, (-_MAX_AGE, ()))
        if time.monotonic() - time_of_answer < _MAX_AGE:
            return values
        request = self._requests.get(kind)
        if request is None or not request.is_alive():
            answers = self._answers  # those of this server, even if another is connected meanwhile

            def store_answer() -> None:
                answers[kind] = time.monotonic(), _fetch(client, kind, fetch)

            request = self._requests[kind] = threading.Thread(
                target=store_answer, name="opencode-tab", daemon=True
            )
            request.start()
        request.join(_TIMEOUT)
        return self._answers.get(kind, (time_of_answer, values))[1]


def _fetch(client: Client, kind: str, fetch: Callable[[Client], Iterable[T]]) -> tuple[T, ...]:
    """Request values; return () after an error, which is cached like any other answer."""
    try:
        return tuple(fetch(client))
    except Exception:
        _log.debug("Can't complete %s", kind, exc_info=True)
        return ()


def _sessions(client: Client) -> list[Session]:
    return sorted(client.sessions(), key=lambda s: s.archived is not None)


def _models(client: Client) -> Iterator[Suggestion]:
    yield from (Suggestion(str(model.ref), "model") for model in client.models())


def _variants(client: Client) -> Iterator[Suggestion]:
    yield from (Suggestion(v, "variant") for model in client.models() for v in model.variants)


def _agents(client: Client) -> Iterator[Suggestion]:
    yield from (Suggestion(agent.name, "agent") for agent in client.agents())


def _commands(client: Client) -> Iterator[Suggestion]:
    yield from (Suggestion(command.name, "command") for command in client.commands())


def _requests(client: Client) -> Iterator[Suggestion]:
    from ..sessions.store import pending_requests

    yield from (Suggestion(request.id, "request") for request, _ in pending_requests(client, None))


def _files(prefix: str, *, folders: bool = False) -> Iterator[Suggestion]:
    """Yield the files of the typed folder; hidden ones only after a dot was typed."""
    head, tail = os.path.split(prefix)
    with suppress(OSError), os.scandir(os.path.expanduser(head) or ".") as entries:
        for entry in sorted(entries, key=lambda e: e.name):
            if entry.name.startswith(".") and not tail.startswith("."):
                continue
            if entry.is_dir():
                yield Suggestion(os.path.join(head, entry.name, ""), "folder")
            elif not folders:
                yield Suggestion(os.path.join(head, entry.name), "file")


Source = Callable[[Completer, str], Iterable[Suggestion]]


def _words(*words: str) -> Source:
    return lambda completer, prefix: (Suggestion(word, "word") for word in words)


def _replies(completer: Completer, prefix: str) -> Iterator[Suggestion]:
    """Yield the replies to a permission or a question."""
    from ..core.model import DECISIONS

    return (Suggestion(word, "word") for word in (*DECISIONS, "dismiss"))


def _from_server(kind: str, fetch: Callable[[Client], Iterable[Suggestion]]) -> Source:
    return lambda completer, prefix: completer.from_server(kind, fetch)


def _keys(completer: Completer, prefix: str) -> Iterator[Suggestion]:
    """Yield the keys of %oc_usage --by, after those that were typed with commas."""
    from ..history.usage_entries import GROUP_KEYS

    earlier = prefix[: prefix.rfind(",") + 1]
    yield from (
        Suggestion(f"{earlier}{key}", "key") for key in GROUP_KEYS if key not in earlier.split(",")
    )


# The values of an option or argument, by its name or by "magic.name". A source gets the typed
# prefix, but may yield values that don't start with it.
SOURCES: dict[str, Source] = {
    "session": Completer.sessions,
    "model": _from_server("model", _models),
    "variant": _from_server("variant", _variants),
    "agent": _from_server("agent", _agents),
    "file": lambda completer, prefix: _files(prefix),
    "path": lambda completer, prefix: _files(prefix),
    "oc_command.text": lambda completer, prefix: _files(prefix),
    "directory": lambda completer, prefix: _files(prefix, folders=True),
    "permission": _words("ask", "once", "reject"),
    "wait": _words("any", "all"),
    "format": _words("parquet", "jsonl"),
    "reply": _replies,
    "by": _keys,
    "var": Completer.variables,
    "schema": Completer.variables,
    "oc_map.table": Completer.tables,
    "oc_command.name": _from_server("command", _commands),
    "oc_reply.request": _from_server("request", _requests),
    "oc_help.magic": Completer.magics,
}


def _quote(value: str, quote: str, many: bool) -> str | None:
    """Return a value as it is typed, in quotes if necessary; None if that isn't possible.

    Args:
        value: The value.
        quote: The quote that was typed before it; "" if none was.
        many: True if several words without quotes are one value.
    """
    if _UNTYPABLE.search(value):
        return None
    plain = rf"{_PLAIN}(?: {_PLAIN})*" if many else r"[^\s\"'-][^\s\";$?]*"
    if not quote and re.fullmatch(plain, value):
        return value
    quotes = [q for q in (quote or "\"'") if q not in value]
    if not quotes:
        return None
    closing = "" if value.endswith(os.sep) else quotes[0]  # the path continues after a folder
    return f"{quotes[0]}{value}{closing}"


def _options(magic: Any, context: CursorContext) -> Iterator[Suggestion]:
    """Yield the long names of the options that are not in the line yet or may be repeated."""
    for action in magic.parser._actions:
        names = [name for name in action.option_strings if name.startswith(context.typed)]
        allowed = not context.used & {*names} or action.default == []
        if names and allowed:
            yield Suggestion(max(names, key=len), "option")


# -- in a shell ------------------------------------------------------------------------------------


def register_completer(shell: Any, state: OpenCodeMagics) -> None:
    """Add the completion of our magics to a shell."""
    completer = Completer(shell, state)

    @context_matcher(identifier=_ID)
    def matcher(context: Any) -> dict[str, Any]:
        """Suppress other matchers when there are suggestions: jedi would read a title as Python."""
        position = context.full_text, context.cursor_line, context.cursor_position
        try:
            typed, suggestions = completer.suggestions(*position)
        except Exception:
            _log.debug("Completion failed", exc_info=True)
            return {"completions": [], "suppress": False}
        return {
            "completions": [SimpleCompletion(s.text, type=s.kind) for s in suggestions],
            "matched_fragment": typed,
            "suppress": True,
            "ordered": True,
        }

    shell.Completer.custom_matchers.append(matcher)


def unregister_completer(shell: Any) -> None:
    """Undo `register_completer`."""
    matchers = shell.Completer.custom_matchers
    matchers[:] = [m for m in matchers if getattr(m, "matcher_identifier", None) != _ID]
