"""Magics that list, select and create sessions."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Sequence
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
    """List, select and create sessions"""

    @documented_arguments
    @argument("-d", "--directory", help="Only sessions in exactly this directory.")
    @argument(
        "-a", "--all", "--everywhere", action="store_true", help="Sessions in all directories."
    )
    @argument("--roots", action="store_true", help="Exclude the sessions of subagents.")
    @argument(
        "--since", "--start", help="Only sessions active since then: 7d, 12h or 30m ago, or a date."
    )
    @argument("--search", help="Only sessions whose title contains this text.")
    @argument("--limit", type=int, help="Only the latest N sessions. Default: all.")
    @argument("--archived", action="store_true", help="Include archived sessions.")
    @argument(
        "--forks", action="store_true", help="Fill in `fork_of`, which needs to read the sessions."
    )
    @line_magic
    @with_parsed_options
    def oc_sessions(self, options: Namespace) -> pd.DataFrame:
        """The sessions of this project as a DataFrame, latest first, with tokens and cost.

        All sessions are listed, unless you set a limit. `cost` is in USD as the server stored it.
        It doesn't include subagents, whose sessions have rows of their own (`parent`).

        Example::

            df = %oc_sessions --since 7d --roots
        """
        from .. import history

        matches = _filter(options)
        client, directory = self.state.client, self.state.resolve_directory(options.directory)
        sessions = client.sessions(directory, project=directory is None, everywhere=options.all)
        forks = self._forks(sessions) if options.forks else None
        status = history.known_status(client, directory or client.directory, sessions)
        shown = {s.id for s in [s for s in sessions if matches(s)][: options.limit]}
        frame = history.frames.sessions(sessions, status, forks.origins if forks else {}, shown)
        frame.attrs["warnings"] = forks.warnings if forks else []
        for warning in frame.attrs["warnings"]:
            print(warning)
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
        """The current session, or the named one, which becomes current.

        If the name matches several sessions, the error lists them; if it matches none, it suggests
        similar titles.

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
    @argument("title", nargs="*", help="Title; without one, the server generates one.")
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
        client, directory = self.state.client, self.state.resolve_directory(options.directory)
        if directory and client.local and not os.path.isdir(directory):
            raise UsageError(f"No such directory: {directory}")  # 1.x accepts any name
        self.state.session = create_session(client, _unquote(title) or None, directory)
        return self.state.track(self.state.session, "made")


def _unquote(text: str) -> str:
    text = text.strip()
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if quoted else text


def _filter(options: Any) -> Callable[[Session], bool]:
    since = _parse_since(options.since)
    search = (options.search or "").casefold()
    if options.limit is not None and options.limit < 1:
        raise UsageError("--limit must be at least 1.")
    if options.all and options.directory:
        raise UsageError("Use either --all or --directory, not both.")

    def matches(session: Session) -> bool:
        return (
            (options.archived or session.archived is None)
            and not (options.roots and session.parent)
            and (session.updated or 0) >= since
            and search in session.title.casefold()
        )

    return matches


def _parse_since(text: str | None) -> int:
    """Return a time in milliseconds since the epoch; 0 for None."""
    from ..history.times import parse_time, zone

    try:
        return 0 if text is None else parse_time(text, zone(None))
    except ValueError as error:
        raise UsageError(f"--since: {error}") from None
