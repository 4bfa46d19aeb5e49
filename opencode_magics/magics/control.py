"""Magics that monitor, stop and end sessions: %oc_status, %oc_watch, %oc_abort, %oc_end."""

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

_SHOWN_EVENTS = 12  # the latest ones, in the live table
_SESSIONS = "Ids, beginnings of ids, quoted titles, or one title"


@magics_class
class ControlMagics(Topic):
    """Monitor, stop and end sessions"""

    @no_var_expand
    @documented_arguments
    @argument(
        "session", nargs="*", help=f"{_SESSIONS}; default: all sessions this notebook tracks."
    )
    @argument(
        "-d",
        "--directory",
        action="append",
        default=[],
        help="All busy sessions in this directory; may be repeated.",
    )
    @argument("--wait", metavar="any|all", help="Wait until any, or all, are idle or need you.")
    @argument("--timeout", type=float, help="With --wait: seconds to wait; default: 600.")
    @line_magic
    @with_parsed_options
    def oc_status(self, options: Namespace) -> pd.DataFrame:
        """The current state of sessions and the request that reported it, as a DataFrame.

        By default, the sessions that this notebook created, selected or prompted. A state is idle,
        running, retrying, waiting_for_permission, waiting_for_question, ending (%oc_end has not
        finished), stale (the turn never ended, and the server no longer works on it) or unknown.
        If there are none, as after a restart of the kernel, the sessions at work in the directory
        are shown. With --wait, `attrs` of the frame has `reason` (condition or deadline), and the
        session ids `ready` and `pending`. Interrupting the wait doesn't stop any agent.

        Example::

            %oc_status --wait any --timeout 60
        """
        from .. import tables

        _check_wait(options)
        sessions, unknown = self._resolve(options.session, options.directory)
        if not (sessions or options.session or options.directory):
            sessions = self._at_work_here()
        if options.wait is None:
            return tables.session_states((*self._update_tracked(self._read(sessions)), *unknown))
        result = self._wait(sessions, options)
        self._update_tracked(result.states)
        frame = tables.session_states((*result.states, *unknown))
        frame.attrs |= {"reason": result.reason, "ready": result.ready, "pending": result.pending}
        return frame

    @no_var_expand
    @documented_arguments
    @argument(
        "-s",
        "--session",
        help="Only events of this session and its subagents: id, beginning of an id, or title.",
    )
    @argument(
        "-d",
        "--directory",
        help="Directory to watch; default: that of the session, else of %%oc_connect.",
    )
    @argument("--seconds", type=float, default=30.0, help="How long to watch; default: 30.")
    @line_magic
    @with_parsed_options
    def oc_watch(self, options: Namespace) -> pd.DataFrame:
        """The server's events in a live table, and all of them as a DataFrame at the end.

        The live table shows the latest events; the DataFrame has all of them, each with its
        original JSON in `raw`. Events sent while the connection is down are lost. An interrupt
        stops watching, and the DataFrame is returned as usual.

        Example::

            events = %oc_watch --seconds 2
        """
        from .. import tables
        from ..sessions import store
        from ..sessions.lookup import find_session

        if options.seconds <= 0:
            raise UsageError("--seconds must be above 0.")
        client, directory = self.state.client, self.state.resolve_directory(options.directory)
        tree: list[str] = []
        if options.session:
            top = find_session(client, options.session)
            tree = [top.id, *(s.id for s in store.descendants(client, top, 0))]
            directory = directory or top.directory
        return tables.events(self._watch(directory or client.directory, options.seconds, tree))

    def _watch(self, directory: str, seconds: float, tree: list[str]) -> list[FeedRow]:
        from ..core.formatting import pluralize
        from ..notebook.interrupts import interruptible
        from ..notebook.live_table import LiveTable
        from ..notebook.wording import clock
        from ..sessions import feed

        table = LiveTable(self.shell, ("time", "session", "type", "summary"))
        rows: list[FeedRow] = []
        with interruptible():
            try:
                for new in feed.watch(self.state.client, directory, seconds, tree):
                    rows += new
                    latest = rows[-_SHOWN_EVENTS:]
                    table.show(
                        [(clock(r.time), r.session or "", r.type, r.summary) for r in latest]
                    )
            except KeyboardInterrupt:
                pass
        table.close(f"{pluralize(len(rows), 'event')} received")
        return rows

    @no_var_expand
    @documented_arguments
    @session_argument
    @argument(
        "--timeout", type=float, default=30.0, help="Seconds to wait for the stop; default: 30."
    )
    @line_magic
    @with_parsed_options
    def oc_abort(self, options: Namespace) -> StopResult:
        """The confirmed stop of a session and its subagents.

        The output so far is kept, and pending permissions and questions are rejected. You can
        prompt the session again. `.status` is stopped, was_idle, unconfirmed or not_found.

        Example::

            %oc_abort Fix the login page
        """
        from ..sessions import end

        if not options.timeout:  # with 0, the stop could never be confirmed
            raise UsageError("--timeout must be above 0.")
        session = self.state.resolve_session(" ".join(options.session))
        message = f"Interrupted; it is not known whether {_name(session)} stopped. See %oc_status."
        with _report_interrupt(lambda: message):
            return end.stop(self.state.client, session, options.timeout)

    @no_var_expand
    @documented_arguments
    @argument("session", nargs="*", help="Ids, quoted titles, or one title; default: the current.")
    @argument("--delete", action="store_true", help="Delete the session permanently.")
    @argument(
        "--archive",
        action="store_true",
        help="Archive the session; %%oc_archive --undo restores it.",
    )
    @argument("--force", action="store_true", help="Also end sessions of other notebooks.")
    @line_magic
    @with_parsed_options
    def oc_end(self, options: Namespace) -> EndResult | pd.DataFrame:
        """The confirmed end of a session: stopped, cleaned up, then deleted or archived.

        `OpenCodeMagics.end_action` is the default action. There is no confirmation prompt. Only
        sessions that this notebook created, selected or prompted are ended; for others the result
        is not_found, without a request to the server. If a step can't be confirmed, the result is
        `unconfirmed`, and the session stays `ending` until you run the same line again. Subagents'
        sessions are deleted too. For several sessions, returns a DataFrame with a row for each.

        Example::

            %oc_end --archive Fix the login page
        """
        from .. import tables
        from ..sessions.end import EndResult

        if options.delete and options.archive:
            raise UsageError("Use either --delete or --archive, not both.")
        action: Action | None = (
            "delete" if options.delete else "archive" if options.archive else None
        )
        names = session_names(options.session) or [self.state.require_session().id]
        ended: list[EndResult] = []
        with _report_interrupt(lambda: _interrupted_message(ended)):
            # Resolve all names first: a title of two sessions is unique once one of them is ended.
            targets = [self._find_target(name, options.force) for name in names]
            unique = {t.session if isinstance(t, EndResult) else t.id: t for t in targets}
            for target in unique.values():
                ended.append(target if isinstance(target, EndResult) else self._end(target, action))
        return ended[0] if len(ended) == 1 else tables.end_results(ended)

    def _find_target(self, name: str, force: bool) -> Session | EndResult:
        """Return the session to end, or a not_found result that says why there is none."""
        from ..sessions import end
        from ..sessions.lookup import pick_session

        try:
            # Ending can't be undone, so a part of a title is not enough.
            tracked = [t.session for t in self.state.tracked.values()]
            session = pick_session(name, tracked, parts=False)
            if session is not None and not session.id.startswith(name):
                session = pick_session(name, [self._with_latest_title(session)], parts=False)
            if session is None and force:
                everyone = self.state.client.sessions(everywhere=True)
                session = pick_session(name, everyone, parts=False)
        except UnknownNameError as error:
            return end.EndResult(name, "", "not_found", evidence=error.what, todo=error.todo)
        if session is None:
            if force:
                evidence, todo = "the server has no such session", "%oc_sessions --all lists them."
            else:
                evidence = "this notebook tracks no such session, so the server was not asked"
                todo = "%oc_status lists the tracked sessions; --force also ends others."
            return end.EndResult(name, "", "not_found", evidence=evidence, todo=todo)
        return session

    def _with_latest_title(self, session: Session) -> Session:
        """Read a session again, because another kernel may have renamed it."""
        try:
            return self.state.client.session(session.id)
        except NotFoundError:
            return session

    def _end(self, session: Session, action: Action | None) -> EndResult:
        from ..sessions import end

        attempt = self.state.mark_ending(session, action)
        result = end.end(self.state.client, session, attempt.action, resumed=attempt.resumed)
        if result.status == "unconfirmed":
            return replace(result, todo=f"The session stays `ending`. {result.todo}")
        self.state.forget(session.id)
        return result

    # -- sessions and their states ---------------------------------------------------------------

    def _at_work_here(self) -> list[Session]:
        """The busy sessions of the directory, for a notebook that has none of its own."""
        from ..core.formatting import pluralize
        from ..sessions.status import busy_sessions

        client = self.state.connected
        if client is None:
            return []
        if sessions := list(busy_sessions(client, client.directory)):
            print(
                f"This notebook has no session yet. {pluralize(len(sessions), 'session')} at work "
                f"or waiting in {client.directory}: %oc_attach ID takes one up."
            )
        return sessions

    def _resolve(
        self, names: list[str], directories: list[str]
    ) -> tuple[list[Session], list[SessionState]]:
        """Return the sessions to report, and an unknown state for each name that is not unique."""
        from ..sessions import status
        from ..sessions.lookup import find_session

        if not names and not directories:
            return [t.session for t in self.state.tracked.values()], []
        sessions: dict[str, Session] = {}
        unknown: dict[str, SessionState] = {}
        for name in session_names(names):
            try:
                session = find_session(self.state.client, name)
            except UnknownNameError as error:
                unknown[name] = status.unknown_session(name, error.what)
            else:
                sessions[session.id] = session
        for name in directories:
            directory = self.state.resolve_directory(name) or name
            busy = status.busy_sessions(self.state.client, directory)
            sessions |= {s.id: s for s in busy}
            if not busy:
                print(f"No session is busy in {directory}.")
        return [*sessions.values()], [*unknown.values()]

    def _read(self, sessions: list[Session]) -> tuple[SessionState, ...]:
        from ..sessions import status

        return status.read_states(self.state.client, sessions, self._ending) if sessions else ()

    def _update_tracked(self, states: tuple[SessionState, ...]) -> tuple[SessionState, ...]:
        """Update tracked sessions to what was read: another kernel may have renamed them."""
        for state in states:
            if state.session.id in self.state.tracked and not state.missing:
                self.state.track(state.session, "chosen")
        return states

    @property
    def _ending(self) -> list[str]:
        """Ids of the sessions whose end has not finished."""
        return [k for k, t in self.state.tracked.items() if t.ending]

    # -- waiting ---------------------------------------------------------------------------------

    def _wait(self, sessions: list[Session], options: Any) -> WaitResult:
        from ..notebook.interrupts import interruptible
        from ..notebook.live_table import LiveTable
        from ..notebook.wording import seconds
        from ..sessions import status

        table = LiveTable(self.shell, ("session", "state", "evidence"))

        def show(states: tuple[SessionState, ...]) -> None:
            table.show([(_name(s.session), s.state, s.evidence) for s in states])

        timeout = 600.0 if options.timeout is None else options.timeout
        with interruptible():
            try:
                result = status.wait(
                    self.state.client,
                    sessions,
                    options.wait,
                    timeout,
                    ending=self._ending,
                    on_reading=show,
                )
            except KeyboardInterrupt:
                table.close("Stopped waiting; the agents keep running.")
                raise TurnInterrupted("Stopped waiting.") from None
        timed_out = "" if result.reason == "condition" else " (timed out)"
        ready = f"{len(result.ready)} of {len(result.ready) + len(result.pending)} ready"
        table.close(f"{ready} after {seconds(result.elapsed)}{timed_out}")
        return result


@contextmanager
def _report_interrupt(message: Callable[[], str]) -> Iterator[None]:
    """Raise an interrupt as TurnInterrupted with a message about the progress."""
    from ..notebook.interrupts import interruptible

    with interruptible():
        try:
            yield
        except KeyboardInterrupt:
            raise TurnInterrupted(message()) from None


def _interrupted_message(ended: list[EndResult]) -> str:
    results = [f"{e.session}: {e.status}" for e in ended]
    rest = "an unfinished session stays `ending` (%oc_status); run the same line again to finish"
    return f"Interrupted. {'; '.join((*results, rest))}."


def _check_wait(options: Any) -> None:
    if options.wait not in (None, "any", "all"):
        raise UsageError(f"--wait takes any or all, not {options.wait!r}.")
    if options.timeout is not None and options.wait is None:
        raise UsageError("--timeout requires --wait.")


def _name(session: Session) -> str:
    return f"{session.title} ({session.id})" if session.title else session.id
