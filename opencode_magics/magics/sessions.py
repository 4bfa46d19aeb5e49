"""Magics about sessions: list, choose, make."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument

from ..notebook.interrupts import interruptible
from .options import documented_arguments, split, with_parsed_options
from .topic import Topic

if TYPE_CHECKING:
    import pandas as pd

    from ..core.model import Session
    from ..history.queries import Forks


@magics_class
class SessionMagics(Topic):
    """Sessions: list, choose, make"""

    @documented_arguments
    @argument("-d", "--directory", help="Only sessions of exactly this directory.")
    @argument(
        "-a", "--all", "--everywhere", action="store_true", help="Sessions of all directories."
    )
    @argument("--roots", action="store_true", help="Leave out the sessions of subagents.")
    @argument("--since", "--start", help="Only those active since: 7d, 12h, 30m, or a date.")
    @argument("--search", help="Only titles with this text in them.")
    @argument("--limit", type=int, help="At most so many, the latest. Default: all.")
    @argument("--archived", action="store_true", help="Archived sessions too.")
    @argument("--forks", action="store_true", help="Find out which is a fork of which: reads them.")
    @line_magic
    @with_parsed_options
    def oc_sessions(self, options: Namespace) -> pd.DataFrame:
        """The sessions of this project as a DataFrame, latest first, with tokens and cost.

        Nothing is cut off unless you ask for it. `cost` is in USD as the server stored it and does
        not include the sessions of subagents, which are rows of their own (`parent`).

        Example::

            df = %oc_sessions --since 7d --roots
        """
        from .. import history

        keep = _filter(options)
        client, where = self.state.client, self.state.resolve_directory(options.directory)
        found = client.sessions(where, project=where is None, everywhere=options.all)
        forks = self._forks(found) if options.forks else None
        status = history.known_status(client, where or client.directory, found)
        shown = {s.id for s in [s for s in found if keep(s)][: options.limit]}
        frame = history.frames.sessions(found, status, forks.origins if forks else {}, shown)
        frame.attrs["warnings"] = forks.warnings if forks else []
        for sentence in frame.attrs["warnings"]:
            print(sentence)
        return frame

    def _forks(self, sessions: Sequence[Session]) -> Forks:
        from .. import history

        with interruptible():
            return history.forks(self.state.client, sessions, cache=self.state.history_cache)

    @no_var_expand
    @documented_arguments
    @argument("session", nargs="*", help="Id, unique beginning of an id, or title.")
    @line_magic
    @with_parsed_options
    def oc_session(self, options: Namespace) -> Session:
        """The current session, or another one, which becomes current.

        A name that fits none, or several, is told with those that it could be.

        Example::

            %oc_session Fix the login page
        """
        from ..sessions.lookup import find_session

        if options.session:
            self.state.session = find_session(self.state.client, " ".join(options.session))
            self.state.track(self.state.session, "chosen")
        else:
            current = self.state.require_session()
            self.state.session = self.state.client.session(current.id)
        return self.state.session

    @no_var_expand
    @documented_arguments
    @argument("-d", "--directory", help="Directory of the session; default: that of %%oc_connect.")
    @argument("title", nargs="*", help="Its title; without one, the server makes one up.")
    @line_magic
    def oc_new(self, line: str) -> Session | None:
        """A new session, which becomes the current one.

        Example::

            %oc_new Try another sorting algorithm
        """
        from ..sessions.lookup import create_session

        options, title = split(self.oc_new, line, verbatim=True)
        if options is None:
            return None
        client, where = self.state.client, self.state.resolve_directory(options.directory)
        if where and client.local and not os.path.isdir(where):
            raise UsageError(f"No such directory: {where}")  # 1.x would take any name
        self.state.session = create_session(client, _unquoted(title) or None, where)
        return self.state.track(self.state.session, "made")


def _unquoted(text: str) -> str:
    text = text.strip()
    whole = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if whole else text


def _filter(options: Any) -> Any:
    since = _start(options.since)
    search = (options.search or "").casefold()
    if options.limit is not None and options.limit < 1:
        raise UsageError("--limit takes a number from 1 on")
    if options.all and options.directory:
        raise UsageError("--all means every directory, --directory only one: give one of them")

    def keep(session: Session) -> bool:
        return (
            (options.archived or session.archived is None)
            and not (options.roots and session.parent)
            and (session.updated or 0) >= since
            and search in session.title.casefold()
        )

    return keep


def _start(text: str | None) -> int:
    """Milliseconds since the epoch; 0 without a text."""
    from ..history.times import parse_time, zone

    try:
        return 0 if text is None else parse_time(text, zone(None))
    except ValueError as error:
        raise UsageError(f"--since: {error}") from None
