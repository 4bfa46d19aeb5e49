"""Magics about what was done, and what it cost: messages, usage, old conversations."""

from __future__ import annotations

import argparse
from argparse import Namespace
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument
from IPython.display import display

from ..notebook.interrupts import interruptible
from .options import documented_arguments, session_names, with_parsed_options
from .topic import Topic

if TYPE_CHECKING:
    import pandas as pd

    from ..core.model import Session
    from ..history import Exported
    from ..sessions.transcript import Transcript

_KINDS = ("messages", "steps", "parts", "tools")


@magics_class
class HistoryMagics(Topic):
    """History and cost"""

    @no_var_expand
    @documented_arguments
    @argument("-a", "--all", action="store_true", help="All sessions of this project.")
    @argument("--everywhere", action="store_true", help="All sessions of all directories.")
    @argument("--messages", action="store_true", help="A row per message (the default).")
    @argument("--steps", action="store_true", help="A row per call of a model.")
    @argument("--parts", action="store_true", help="A row per part, with all that was said.")
    @argument("--tools", action="store_true", help="A row per tool call.")
    @argument("--refresh", action="store_true", help="Read again what is in the cache.")
    @argument("session", nargs="*", help="Ids, quoted titles, or one title; default: the current.")
    @line_magic
    @with_parsed_options
    def oc_history(self, options: Namespace) -> pd.DataFrame:
        """What was said and done in sessions, as a DataFrame: messages, steps, parts or tool calls.

        Without options, the messages of the current session. Messages that a fork copied are
        marked (`duplicate_of`). What is not known is NA and never 0: an aborted message has no
        tokens, and 1.x stores neither retries nor how long a permission was waited for. Sessions
        that did not change come from a cache: from when is said, and --refresh reads all again.
        `opencode_magics.history.messages` and its kin tell what each column is.

        Example::

            %oc_history
            tools = %oc_history --all --tools
        """
        from .. import history

        load = getattr(history, _kind(options))
        with interruptible():
            found: pd.DataFrame = load(
                self.state.client,
                self._sessions(options),
                everywhere=options.everywhere,
                cache=self.state.history_cache,
                refresh=options.refresh,
            )
        _say(found.attrs["warnings"])
        return found

    @no_var_expand
    @documented_arguments
    @argument(
        "-b",
        "--by",
        action="append",
        help="total, day, week, month, session, root, project, directory, agent, provider, model, "
        "variant or tool; several, with commas: agent,model,day. Default: session.",
    )
    @argument("--since", help="From then on: 7d, 12h, 30m (ago), or a date.")
    @argument("--until", help="Up to then, itself not included.")
    @argument("--tz", help="Whose days: Europe/Berlin, UTC. Default: this machine's.")
    @argument(
        "--all-projects", "--everywhere", action="store_true", help="Sessions of all directories."
    )
    @argument("-s", "--session", action="append", help="Only of this session; may be repeated.")
    @argument("--keep-duplicates", action="store_true", help="Count copies in forks as well.")
    @argument("--refresh", action="store_true", help="Read again what is in the cache.")
    @argument("-p", "--plot", action="store_true", help="Show a picture of it, too.")
    @line_magic
    @with_parsed_options
    def oc_usage(self, options: Namespace) -> pd.DataFrame:
        """Tokens and cost as a DataFrame: by session, day, model, agent, ... or several of these.

        What forks copied is left out and counted in `duplicates`; subagents are sessions of their
        own, and by session `cost_inclusive` has those below it. A model comes with its provider:
        two may have one of the same name. `cost` is what the server stored; `cost_listed` is by
        its price list, and `gap_reason` says why they differ. By session,
        root, project and directory no message is downloaded, so that turns and calls are NA, and on
        1.x a fork whose title was changed counts in full. What was deleted, and the titles that the
        server makes up, are in no figure.

        Example::

            %oc_usage --by model --since 7d
            df = %oc_usage --by agent,model,day --all-projects
            df = %oc_usage --by day,model --plot
        """
        from .. import history
        from ..history.usage_entries import RENAMED_FORKS_WARNING

        if options.plot:
            history.plots.picture_module()  # said before anything is read
        try:
            with interruptible():
                found = history.usage(
                    self.state.client,
                    _names(options.by) or "session",
                    since=options.since,
                    until=options.until,
                    tz=options.tz,
                    sessions=options.session,
                    everywhere=options.all_projects,
                    keep_duplicates=options.keep_duplicates,
                    cache=self.state.history_cache,
                    refresh=options.refresh,
                )
        except ValueError as error:
            raise UsageError(str(error)) from error
        by, told = _names(options.by), found.attrs["warnings"]
        _say([_summary(found, by, bool(options.since or options.until))])
        _say([w for w in told if w != RENAMED_FORKS_WARNING])  # the help says so
        if options.plot:
            display(history.chart(found))
        return found

    @no_var_expand
    @documented_arguments
    @argument("-n", "--last", type=int, default=20, help="At most so many turns; default: 20.")
    @argument("session", nargs="*", help="Id or title of a session; default: the current one.")
    @line_magic
    @with_parsed_options
    def oc_show(self, options: Namespace) -> Transcript:
        """An old conversation, each turn as it looked when it was over, as a Conversation.

        `.turns` are its turns: text, tools, diffs, usage, cost. How permissions were answered and
        what was tried again is stored nowhere and can't be shown.

        Example::

            %oc_show
            old = %oc_show Fix the login page --last 3
        """
        from ..sessions.transcript import read_transcript

        if options.last < 1:
            raise UsageError("--last takes a number from 1 on")
        sessions = self._named(options.session) or [self.state.require_session()]
        if len(sessions) > 1:
            raise UsageError("%oc_show shows one session")
        return read_transcript(self.state.client, sessions[0], options.last)

    @no_var_expand
    @documented_arguments
    @argument("-a", "--all", action="store_true", help="All sessions of this project.")
    @argument("--everywhere", action="store_true", help="All sessions of all directories.")
    @argument("--format", default="parquet", help="parquet (the default) or jsonl.")
    @argument("--source", help="A name for where these come from; default: this machine's.")
    @argument("--refresh", action="store_true", help="Read again what seems unchanged.")
    @argument("path", help="The folder: a new one, or one with an earlier export.")
    @argument(
        "session",
        nargs="*",
        default=[],
        help="Ids, quoted titles, or one title; default: the current.",
    )
    @line_magic
    @with_parsed_options
    def oc_export(self, options: Namespace) -> Exported:
        """History as files for DuckDB, Polars or Spark: sessions, messages, steps, parts, tools.

        A folder per kind, in it one per day (UTC), in it a file per session. Export again into the
        same folder whenever you like, from several machines too: what is there is not repeated,
        and what was unfinished or interrupted is completed. Leave out rows with a `duplicate_of`
        to count nothing twice; `key` is the same for a message and its copies, wherever they come
        from, and `source` in `sessions` names the machine. Times are UTC timestamps, a tool's input
        is JSON text. Parquet needs pyarrow: pip install 'opencode-magics[parquet]'.

        Example::

            %oc_export history --all
            import duckdb
            duckdb.sql("from 'history/messages/*/*.parquet' where duplicate_of is null")
        """
        from .. import history

        try:
            with interruptible():
                done = history.export(
                    self.state.client,
                    options.path,
                    self._sessions(options),
                    everywhere=options.everywhere,
                    format=options.format,
                    source=options.source,
                    cache=self.state.history_cache,
                    refresh=options.refresh,
                )
        except OSError as error:
            reason = error.strerror or str(error)
            raise UsageError(
                f"{error.filename or options.path} can't be written: {reason}"
            ) from error
        except ValueError as error:
            raise UsageError(str(error)) from error
        _say(done.warnings)
        return done

    def _sessions(self, options: argparse.Namespace) -> list[Session] | None:
        """Those that are named, the current one, or (None) all."""
        if options.all or options.everywhere:
            if options.session:
                raise UsageError("Give sessions, --all or --everywhere: one of these")
            return None
        return self._named(options.session) or [self.state.require_session()]

    def _named(self, names: list[str] | None) -> list[Session] | None:
        """Sessions by ids and titles in quotes, or by one title of several words."""
        from ..sessions.lookup import find_session

        if not names:
            return None
        return [find_session(self.state.client, name) for name in session_names(names)]


def _kind(options: argparse.Namespace) -> str:
    chosen = [kind for kind in _KINDS if getattr(options, kind)]
    if len(chosen) > 1:
        raise UsageError(f"Give one of {', '.join('--' + k for k in _KINDS)}")
    return chosen[0] if chosen else "messages"


def _names(given: list[str] | None) -> list[str]:
    return [name.strip() for text in given or () for name in text.split(",") if name.strip()]


def _say(sentences: list[str]) -> None:
    for sentence in sentences:
        print(sentence)


def _summary(usage: pd.DataFrame, by: list[str], period: bool) -> str:
    """What it comes to, in a line."""
    from ..core.formatting import format_usd, pluralize
    from ..history.times import PERIODS

    total = usage.attrs["total"]
    if not total["sessions"]:
        return "No sessions."
    many = pluralize(total["sessions"], "session")
    if "tool" in by:
        return f"{pluralize(total['calls'] or 0, 'tool call')} in {many}."
    cost = "of unknown cost" if total["cost"] is None else f"{format_usd(total['cost'])} as stored"
    days = f" Days of {usage.attrs['tz']}." if period or {*by} & {*PERIODS} else ""
    left = f" Left out: {pluralize(total['duplicates'], 'call')} copied by forks."
    blind = f" Of unknown usage: {pluralize(total['unknown'] or 0, 'call')}."
    return (
        f"{many}, {cost}; deleted ones are not in it.{days}"
        f"{left if total['duplicates'] else ''}{blind if total['unknown'] else ''}"
    )
