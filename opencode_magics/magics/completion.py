"""What the Tab key offers in a line of our magics: options, sessions, models, files, ...

Only a server that is connected is asked, and with short patience: what comes too late is there at
the next Tab. Nothing is ever raised, since it would land in the middle of what somebody types.
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

from ..core.model import DECISIONS
from .cursor import CursorContext, cursor_context
from .input_transforms import FREE_TEXT_MAGICS
from .state import OpenCodeMagics

if TYPE_CHECKING:
    from ..client.client import Client
    from ..core.model import Session

_ID = "opencode_magics"  # our matcher's among those of a shell
_PATIENCE = 0.5  # seconds that a person waits for Tab
_FRESH = 5.0  # seconds for which an answer of the server is good

_CELL = re.compile(r"%%(oc_\w+)\s")
_LINE = re.compile(r"\s*(?:[\w.\[\]'\", ]+=\s*)?%(oc_\w+)[ \t]")
_PLAIN = r"[^\W_][^\s\";$?]*"  # what needs no quotes
# What ends a line, moves a cursor or is half a character: nobody types it, a front-end may fail.
_UNTYPED = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
T = TypeVar("T")
_log = logging.getLogger(__name__)


class Suggestion(NamedTuple):
    """One completion: what would stand there, and what kind of thing it is."""

    text: str
    kind: str


class Completer:
    """Completes the lines of our magics in one shell."""

    def __init__(self, shell: Any, state: OpenCodeMagics) -> None:
        self.shell = shell
        self.state = state
        self._known: dict[str, tuple[float, tuple[Any, ...]]] = {}
        self._asking: dict[str, threading.Thread] = {}
        self._client: Client | None = None  # whom that is known of

    def suggestions(self, cell: str, row: int, column: int) -> tuple[str, list[Suggestion]]:
        """How much before the cursor is to be replaced, and what could stand there instead.

        Args:
            cell: The whole cell.
            row: The cursor's line, from 0. Below a `%%` magic of ours nothing is offered.
            column: Its place in the line, from 0.
        """
        line = cell.split("\n")[row]
        whole = _CELL.match(cell)
        found = (whole if row == 0 else None) if whole else _LINE.match(line[:column])
        if found is None or found.end() > column:
            return "", []
        magic = self.shell.magics_manager.magics["cell" if whole else "line"].get(found[1])
        if magic is None:
            return "", []
        spot = cursor_context(
            magic, line[found.end() : column], verbatim=not whole and found[1] in FREE_TEXT_MAGICS
        )
        typed, fitting = self._values(found[1], spot, line[column : column + 1])
        begun = not spot.typed or spot.typed.startswith("-")
        if spot.options and begun and typed == spot.typed:
            fitting += _options(magic, spot)
        return typed, fitting

    def _values(self, name: str, spot: CursorContext, after: str) -> tuple[str, list[Suggestion]]:
        """The values that fit: to all words as one title, else to the last word."""
        known = KINDS.get(f"{name}.{spot.dest}") or KINDS.get(spot.dest or "")
        if known is None:
            return spot.typed, []
        for typed in dict.fromkeys((spot.words, spot.typed)):
            quote = typed[:1] if typed[:1] in ("'", '"') else ""
            begun = typed.removeprefix(quote)
            many = spot.options and spot.dest == "session"
            there = quote if after == quote else ""  # front-ends close a quote by themselves
            fitting = [
                Suggestion(text.removesuffix(there), kind)
                for value, kind in dict.fromkeys(known(self, begun))
                if value.casefold().startswith(begun.casefold())
                and (text := _written(value, quote, many)) is not None
            ]
            if fitting:
                return typed, fitting
        return spot.typed, []

    # -- what there is ---------------------------------------------------------------------------

    def sessions(self, begun: str) -> Iterator[Suggestion]:
        """Titles that only one has, then ids; what this notebook has to do with comes first."""
        here = [tracked.session for tracked in reversed(self.state.tracked.values())]
        every = {s.id: s for s in (*here, *self.asked("sessions", _sessions))}.values()
        titles = Counter(s.title.casefold() for s in every)
        titles[""] = 0
        yield from (
            Suggestion(s.title, "session") for s in every if titles[s.title.casefold()] == 1
        )
        yield from (Suggestion(s.id, "session id") for s in every)

    def variables(self, begun: str) -> Iterator[Suggestion]:
        """What a person made in the notebook: nothing hidden, and nothing that was there before."""
        there = self.shell.user_ns_hidden
        mine = (n for n in self.shell.user_ns if not n.startswith("_") and n not in there)
        yield from (Suggestion(name, "variable") for name in sorted(mine))

    def tables(self, begun: str) -> Iterator[Suggestion]:
        """The variables that are DataFrames."""
        kind = getattr(sys.modules.get("pandas"), "DataFrame", ())
        names = self.shell.user_ns
        yield from (o for o in self.variables(begun) if isinstance(names[o.text], kind))

    def magics(self, begun: str) -> Iterator[Suggestion]:
        """The magics of this package, without their signs."""
        from .help import overview

        yield from (Suggestion(magic.name.lstrip("%"), "magic") for magic in overview().magics)

    def asked(self, kind: str, ask: Callable[[Client], Iterable[T]]) -> tuple[T, ...]:
        """What the connected server has, as it was a few seconds ago; nothing without one."""
        client = self.state.connected
        if client is not self._client:
            self._client, self._known, self._asking = client, {}, {}
        if client is None:
            return ()
        then, found = self._known.get(kind, (-_FRESH, ()))
        if time.monotonic() - then < _FRESH:
            return found
        asking = self._asking.get(kind)
        if asking is None or not asking.is_alive():
            known = self._known  # of this server, whoever is connected when the answer comes

            def answer() -> None:
                known[kind] = time.monotonic(), _answer(client, kind, ask)

            asking = self._asking[kind] = threading.Thread(
                target=answer, name="opencode-tab", daemon=True
            )
            asking.start()
        asking.join(_PATIENCE)
        return self._known.get(kind, (then, found))[1]


def _answer(client: Client, kind: str, ask: Callable[[Client], Iterable[T]]) -> tuple[T, ...]:
    """What a server answers; nothing if it doesn't, so that it isn't asked again at once."""
    try:
        return tuple(ask(client))
    except Exception:
        _log.debug("No %s to complete with", kind, exc_info=True)
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


def _files(begun: str, *, folders: bool = False) -> Iterator[Suggestion]:
    """Files below the kernel's directory, or anywhere; hidden ones once a dot is typed."""
    head, tail = os.path.split(begun)
    with suppress(OSError), os.scandir(os.path.expanduser(head) or ".") as entries:
        for entry in sorted(entries, key=lambda e: e.name):
            if entry.name.startswith(".") and not tail.startswith("."):
                continue
            if entry.is_dir():
                yield Suggestion(os.path.join(head, entry.name, ""), "folder")
            elif not folders:
                yield Suggestion(os.path.join(head, entry.name), "file")


Kind = Callable[[Completer, str], Iterable[Suggestion]]


def _words(*words: str) -> Kind:
    return lambda completer, begun: (Suggestion(word, "word") for word in words)


def _listed(kind: str, ask: Callable[[Client], Iterable[Suggestion]]) -> Kind:
    return lambda completer, begun: completer.asked(kind, ask)


def _keys(completer: Completer, begun: str) -> Iterator[Suggestion]:
    """Keys of %oc_usage, of which there may be several with commas."""
    from ..history.usage_entries import GROUP_KEYS

    first = begun[: begun.rfind(",") + 1]
    yield from (
        Suggestion(f"{first}{key}", "key") for key in GROUP_KEYS if key not in first.split(",")
    )


# What an option or argument of this name takes, or that of one magic. The function gets what is
# typed of it, and need not look which of its offers begin with that.
KINDS: dict[str, Kind] = {
    "session": Completer.sessions,
    "model": _listed("model", _models),
    "variant": _listed("variant", _variants),
    "agent": _listed("agent", _agents),
    "file": lambda completer, begun: _files(begun),
    "path": lambda completer, begun: _files(begun),
    "oc_command.text": lambda completer, begun: _files(begun),
    "directory": lambda completer, begun: _files(begun, folders=True),
    "permission": _words("ask", "once", "reject"),
    "wait": _words("any", "all"),
    "format": _words("parquet", "jsonl"),
    "reply": _words(*DECISIONS, "dismiss"),
    "by": _keys,
    "var": Completer.variables,
    "schema": Completer.variables,
    "oc_map.table": Completer.tables,
    "oc_command.name": _listed("command", _commands),
    "oc_reply.request": _listed("request", _requests),
    "oc_help.magic": Completer.magics,
}


def _written(value: str, quote: str, many: bool) -> str | None:
    """A value as a line takes it, in quotes if it needs them; None if it can't be written.

    Args:
        value: The value.
        quote: The quote that is typed already.
        many: Whether several words are one value.
    """
    if _UNTYPED.search(value):
        return None
    plain = rf"{_PLAIN}(?: {_PLAIN})*" if many else r"[^\s\"'-][^\s\";$?]*"
    if not quote and re.fullmatch(plain, value):
        return value
    quotes = [q for q in (quote or "\"'") if q not in value]
    if not quotes:
        return None
    closed = "" if value.endswith(os.sep) else quotes[0]  # in a folder there is more to type
    return f"{quotes[0]}{value}{closed}"


def _options(magic: Any, spot: CursorContext) -> Iterator[Suggestion]:
    """The options that the line doesn't have yet, or may have again, by their long names."""
    for action in magic.parser._actions:
        names = [name for name in action.option_strings if name.startswith(spot.typed)]
        again = not spot.used & {*names} or action.default == []
        if names and again:
            yield Suggestion(max(names, key=len), "option")


# -- in a shell ------------------------------------------------------------------------------------


def register_completer(shell: Any, state: OpenCodeMagics) -> None:
    """Have a shell's Tab key know our magics."""
    completer = Completer(shell, state)

    @context_matcher(identifier=_ID)
    def matcher(context: Any) -> dict[str, Any]:
        """Alone where it has something to say: jedi would take a title for Python."""
        where = context.full_text, context.cursor_line, context.cursor_position
        try:
            typed, offers = completer.suggestions(*where)
        except Exception:
            _log.debug("Completing failed", exc_info=True)
            return {"completions": [], "suppress": False}
        return {
            "completions": [SimpleCompletion(o.text, type=o.kind) for o in offers],
            "matched_fragment": typed,
            "suppress": True,
            "ordered": True,
        }

    shell.Completer.custom_matchers.append(matcher)


def unregister_completer(shell: Any) -> None:
    """Undo `register_completer`."""
    matchers = shell.Completer.custom_matchers
    matchers[:] = [m for m in matchers if getattr(m, "matcher_identifier", None) != _ID]
