"""Magics that see, stop and end sessions: %oc_status, %oc_watch, %oc_abort, %oc_end."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument

from ..errors import NotFoundError, TurnInterrupted, UnknownNameError
from .options import documented_arguments, session_argument, session_names, with_parsed_options
from .topic import Topic

if TYPE_CHECKING:
    import pandas as pd

    from ..core.model import Session
    from ..sessions.end import Action, EndResult, StopResult
    from ..sessions.feed import FeedRow
    from ..sessions.status import SessionState, WaitResult

_LATEST = 12  # events that are shown at a time
_SESSIONS = "Ids, beginnings of ids, quoted titles, or one title"


@magics_class
class ControlMagics(Topic):
    """What runs: see it, wait for it, stop it, end it"""

    @no_var_expand
    @documented_arguments
    @argument("session", nargs="*", help=f"{_SESSIONS}; default: all that this notebook tracks.")
    @argument(
        "-d",
        "--directory",
        action="append",
        default=[],
        help="All that is at work in a directory; may be repeated.",
    )
    @argument("--wait", metavar="any|all", help="Until any, or all, are idle or wait for you.")
    @argument("--timeout", type=float, help="With --wait: at most so many seconds; default 600.")
    @line_magic
    @with_parsed_options
    def oc_status(self, options: Namespace) -> pd.DataFrame:
        """What sessions do right now, and which call said so, as a DataFrame.

        Without sessions: those that this notebook made, chose or prompted. A state is idle,
        running, retrying, waiting_for_permission, waiting_for_question, ending (%oc_end was not
        finished), stale (its turn never ended, and the server works on it no more), or unknown.
        With --wait the frame's `attrs` have `reason` (condition or deadline), `ready` and
        `pending`, which are ids. Interrupting the wait stops no agent.

        Example::

            %oc_status --wait any --timeout 60
        """
        from .. import tables

        _check_wait(options)
        chosen, unfound = self._chosen(options.session, options.directory)
        if options.wait is None:
            return tables.session_states((*self._now_known(self._read(chosen)), *unfound))
        waited = self._wait(chosen, options)
        self._now_known(waited.states)
        frame = tables.session_states((*waited.states, *unfound))
        frame.attrs |= {"reason": waited.reason, "ready": waited.ready, "pending": waited.pending}
        return frame

    @no_var_expand
    @documented_arguments
    @argument("-s", "--session", help="Only this one and its subagents: id, its beginning, title.")
    @argument("-d", "--directory", help="Where; default: where the session is, else %%oc_connect.")
    @argument("--seconds", type=float, default=30.0, help="For how long; default 30.")
    @line_magic
    @with_parsed_options
    def oc_watch(self, options: Namespace) -> pd.DataFrame:
        """What a server tells while it tells it: a live table, and then all of it as a DataFrame.

        The cell shows the latest events; the frame has every one, with the frame of the wire in
        `raw`. What happened while the connection was lost is not told. Interrupting only ends the
        watching, and the frame comes all the same.

        Example::

            events = %oc_watch --seconds 2
        """
        from .. import tables
        from ..sessions import store
        from ..sessions.lookup import find_session

        if options.seconds <= 0:
            raise UsageError("--seconds takes a number above 0")
        client, tree, where = self.state.client, [], self.state.resolve_directory(options.directory)
        if options.session:
            top = find_session(client, options.session)
            tree = [top.id, *(s.id for s in store.descendants(client, top, 0))]
            where = where or top.directory
        return tables.events(self._watch(where or client.directory, options.seconds, tree))

    def _watch(self, where: str, seconds: float, tree: list[str]) -> list[FeedRow]:
        from ..notebook.interrupts import interruptible
        from ..notebook.live_table import LiveTable
        from ..notebook.wording import clock
        from ..sessions import feed

        table = LiveTable(self.shell, ("time", "session", "type", "summary"))
        rows: list[FeedRow] = []
        with interruptible():
            try:
                for new in feed.watch(self.state.client, where, seconds, tree):
                    rows += new
                    latest = rows[-_LATEST:]
                    table.show(
                        [(clock(n.time), n.session or "", n.type, n.summary) for n in latest]
                    )
            except KeyboardInterrupt:
                pass
        table.close(f"{len(rows)} events heard")
        return rows

    @no_var_expand
    @documented_arguments
    @session_argument
    @argument("--timeout", type=float, default=30.0, help="Seconds to see it stop; default 30.")
    @line_magic
    @with_parsed_options
    def oc_abort(self, options: Namespace) -> StopResult:
        """A session and its subagents, stopped and seen to have stopped.

        What is received so far is kept. What they still ask is rejected. The session can be
        prompted again. `.status` is stopped, was_idle, unconfirmed or not_found.

        Example::

            %oc_abort Fix the login page
        """
        from ..sessions import end

        if not options.timeout:  # it would be asked nothing, and be told not to have stopped
            raise UsageError("--timeout takes a number above 0")
        session = self.state.resolve_session(" ".join(options.session))
        what = f"Stopped looking; whether {_name(session)} stopped is not known: %oc_status"
        with _told_if_stopped(lambda: what):
            return end.stop(self.state.client, session, options.timeout)

    @no_var_expand
    @documented_arguments
    @argument("session", nargs="*", help="Ids, quoted titles, or one title; default: the current.")
    @argument("--delete", action="store_true", help="Delete it for good.")
    @argument("--archive", action="store_true", help="Archive it; %%oc_archive --undo takes back.")
    @argument("--force", action="store_true", help="Also one that this notebook doesn't track.")
    @line_magic
    @with_parsed_options
    def oc_end(self, options: Namespace) -> EndResult | pd.DataFrame:
        """The end of a session, step by step and each proved: stopped, cleaned up, then deleted.

        Or archived: `OpenCodeMagics.end_action` says which. Nothing is asked back. Only sessions
        that this notebook made, chose or prompted are ended; others are not_found, and the server
        isn't even asked. A step that can't be proved leaves it `unconfirmed` and tracked as
        ending, and the same line finishes it later. Subagents' sessions are deleted with it.
        Several sessions give a DataFrame, one row each.

        Example::

            %oc_end --archive Fix the login page
        """
        from .. import tables
        from ..sessions.end import EndResult

        if options.delete and options.archive:
            raise UsageError("Give --delete or --archive: one of them")
        action: Action | None = (
            "delete" if options.delete else "archive" if options.archive else None
        )
        names = session_names(options.session) or [self.state.require_session().id]
        ended: list[EndResult] = []
        with _told_if_stopped(lambda: _so_far(ended)):
            # All are looked up first: a title that two have is of one when the other is ended.
            found = [self._tracked(name, options.force) for name in names]
            for one in {f.session if isinstance(f, EndResult) else f.id: f for f in found}.values():
                ended.append(one if isinstance(one, EndResult) else self._end(one, action))
        return ended[0] if len(ended) == 1 else tables.end_results(ended)

    def _tracked(self, name: str, force: bool) -> Session | EndResult:
        """The session that may be ended by a name; else why there is none."""
        from ..sessions import end
        from ..sessions.lookup import pick_session

        try:
            # A part of a title is not enough for what can't be undone.
            tracked = [t.session for t in self.state.tracked.values()]
            session = pick_session(name, tracked, parts=False)
            if session is not None and not session.id.startswith(name):
                session = pick_session(name, [self._now(session)], parts=False)
            if session is None and force:
                everyone = self.state.client.sessions(everywhere=True)
                session = pick_session(name, everyone, parts=False)
        except UnknownNameError as error:
            return end.EndResult(name, "", "not_found", evidence=error.what, todo=error.todo)
        if session is None:
            if force:
                what, todo = "the server has no such session", "%oc_sessions --all lists them."
            else:
                what = "this notebook tracks no such session, so the server was not asked"
                todo = "%oc_status shows those that it tracks; --force ends any other."
            return end.EndResult(name, "", "not_found", evidence=what, todo=todo)
        return session

    def _now(self, session: Session) -> Session:
        """A session with the title that it has by now: another kernel may have renamed it."""
        try:
            return self.state.client.session(session.id)
        except NotFoundError:
            return session

    def _end(self, session: Session, action: Action | None) -> EndResult:
        from ..sessions import end

        begun = self.state.mark_ending(session, action)
        result = end.end(self.state.client, session, begun.action, resumed=begun.resumed)
        if result.status == "unconfirmed":
            return replace(result, todo=f"It stays tracked as ending. {result.todo}")
        self.state.forget(session.id)
        return result

    # -- which sessions --------------------------------------------------------------------------

    def _chosen(
        self, names: list[str], directories: list[str]
    ) -> tuple[list[Session], list[SessionState]]:
        """The sessions that are meant, and what can be said of names that fit none or several."""
        from ..sessions import status
        from ..sessions.lookup import find_session

        if not names and not directories:
            return [t.session for t in self.state.tracked.values()], []
        found: dict[str, Session] = {}
        unfound: dict[str, SessionState] = {}
        for name in session_names(names):
            try:
                session = find_session(self.state.client, name)
            except UnknownNameError as error:
                unfound[name] = status.unknown_session(name, error.what)
            else:
                found[session.id] = session
        for named in directories:
            where = self.state.resolve_directory(named) or named
            working = status.busy_sessions(self.state.client, where)
            found |= {s.id: s for s in working}
            if not working:
                print(f"Nothing is at work in {where}.")
        return [*found.values()], [*unfound.values()]

    def _read(self, chosen: list[Session]) -> tuple[SessionState, ...]:
        from ..sessions import status

        return status.read_states(self.state.client, chosen, self._ending) if chosen else ()

    def _now_known(self, standings: tuple[SessionState, ...]) -> tuple[SessionState, ...]:
        """Keep what is known here of sessions as it is now: others rename them, too."""
        for standing in standings:
            if standing.session.id in self.state.tracked and not standing.missing:
                self.state.track(standing.session, "chosen")
        return standings

    @property
    def _ending(self) -> list[str]:
        return [k for k, t in self.state.tracked.items() if t.ending]

    # -- waiting ---------------------------------------------------------------------------------

    def _wait(self, chosen: list[Session], options: Any) -> WaitResult:
        from ..notebook.interrupts import interruptible
        from ..notebook.live_table import LiveTable
        from ..notebook.wording import seconds
        from ..sessions import status

        table = LiveTable(self.shell, ("session", "state", "evidence"))

        def shown(standings: tuple[SessionState, ...]) -> None:
            table.show([(_name(s.session), s.state, s.evidence) for s in standings])

        timeout = 600.0 if options.timeout is None else options.timeout
        with interruptible():
            try:
                waited = status.wait(
                    self.state.client,
                    chosen,
                    options.wait,
                    timeout,
                    ending=self._ending,
                    on_reading=shown,
                )
            except KeyboardInterrupt:
                table.close("Stopped waiting; nothing was stopped on the server.")
                raise TurnInterrupted("Stopped waiting.") from None
        ended = "" if waited.reason == "condition" else ": the time was over"
        ready = f"{len(waited.ready)} of {len(waited.ready) + len(waited.pending)} ready"
        table.close(f"{ready} after {seconds(waited.elapsed)}{ended}")
        return waited


@contextmanager
def _told_if_stopped(told: Callable[[], str]) -> Iterator[None]:
    """Say of an interrupt how far it came."""
    from ..notebook.interrupts import interruptible

    with interruptible():
        try:
            yield
        except KeyboardInterrupt:
            raise TurnInterrupted(told()) from None


def _so_far(ended: list[EndResult]) -> str:
    """What became of those sessions that an end came to before it was interrupted."""
    known = [f"{e.session}: {e.status}" for e in ended]
    rest = "what was begun is tracked as ending (%oc_status): the same line finishes it"
    return f"Stopped. {'; '.join((*known, rest))}."


def _check_wait(options: Any) -> None:
    if options.wait not in (None, "any", "all"):
        raise UsageError(f"--wait takes any or all, not {options.wait!r}")
    if options.timeout is not None and options.wait is None:
        raise UsageError("--timeout goes with --wait")


def _name(session: Session) -> str:
    return f"{session.title} ({session.id})" if session.title else session.id
