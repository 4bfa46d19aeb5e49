"""Magics about history and cost: messages, usage, transcripts, export."""

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
    @argument("-a", "--all", action="store_true", help="All sessions in this project.")
    @argument("--everywhere", action="store_true", help="All sessions in all directories.")
    @argument("--messages", action="store_true", help="One row per message (the default).")
    @argument("--steps", action="store_true", help="One row per model call.")
    @argument("--parts", action="store_true", help="One row per part, with the full content.")
    @argument("--tools", action="store_true", help="One row per tool call.")
    @argument("--refresh", action="store_true", help="Ignore the cache and read everything again.")
    @argument("session", nargs="*", help="Ids, quoted titles, or one title; default: the current.")
    @line_magic
    @with_parsed_options
    def oc_history(self, options: Namespace) -> pd.DataFrame:
        """The messages, steps, parts or tool calls of sessions, as a DataFrame.

        Without options, the messages of the current session. Messages that a fork copied are
        marked (`duplicate_of`). Unknown values are NA, never 0: an aborted message has no tokens,
        and 1.x stores neither retries nor how long a permission waited. Unchanged sessions are
        read from a cache; the cell shows how old it is, and --refresh reads everything again. The
        docstrings of `opencode_magics.history.messages`, `steps`, `parts` and `tools` describe the
        columns.

        Example::

            %oc_history
            tools = %oc_history --all --tools
        """
        from .. import history

        load = getattr(history, _kind(options))
        with interruptible():
            frame: pd.DataFrame = load(
                self.state.client,
                self._sessions(options),
                everywhere=options.everywhere,
                cache=self.state.history_cache,
                refresh=options.refresh,
            )
        _print_lines(frame.attrs["warnings"])
        return frame

    @no_var_expand
    @documented_arguments
    @argument(
        "-b",
        "--by",
        action="append",
        help="total, day, week, month, session, root, project, directory, agent, provider, model, "
        "variant or tool, or several with commas: agent,model,day. Default: session.",
    )
    @argument("--since", help="Start: 7d, 12h or 30m ago, or a date.")
    @argument("--until", help="End (exclusive), in the same format.")
    @argument(
        "--tz", help="Time zone of the days: Europe/Berlin, UTC. Default: that of this machine."
    )
    @argument(
        "--all-projects", "--everywhere", action="store_true", help="Sessions in all directories."
    )
    @argument("-s", "--session", action="append", help="Only this session; may be repeated.")
    @argument("--keep-duplicates", action="store_true", help="Also count copies in forks.")
    @argument("--refresh", action="store_true", help="Ignore the cache and read everything again.")
    @argument("-p", "--plot", action="store_true", help="Also show a chart.")
    @line_magic
    @with_parsed_options
    def oc_usage(self, options: Namespace) -> pd.DataFrame:
        """Tokens and cost as a DataFrame: by session, day, model, agent, ... or several of these.

        Calls that a fork copied are not added up, but counted in `duplicates`. Subagents have
        sessions of their own; by session, `cost_inclusive` includes them. A model is listed with
        its provider, because two providers may use the same name. `cost` is what the server
        stored, `cost_listed` is the same usage at its list prices, and `gap_reason` says why they
        differ. By session, root, project or directory no messages are downloaded: turns and calls
        are NA, and on 1.x a fork that was renamed counts in full. Deleted sessions and the
        server's calls to generate titles are not included.

        Example::

            %oc_usage --by model --since 7d
            df = %oc_usage --by agent,model,day --all-projects
            df = %oc_usage --by day,model --plot
        """
        from .. import history
        from ..history.usage_entries import RENAMED_FORKS_WARNING

        if options.plot:
            history.plots.picture_module()  # fails before anything is read
        keys = _split_keys(options.by)
        try:
            with interruptible():
                usage = history.usage(
                    self.state.client,
                    keys or "session",
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
        print(_summary(usage, keys, bool(options.since or options.until)))
        # The help of the magic mentions renamed forks.
        _print_lines([w for w in usage.attrs["warnings"] if w != RENAMED_FORKS_WARNING])
        if options.plot:
            display(history.chart(usage))
        return usage

    @no_var_expand
    @documented_arguments
    @argument("-n", "--last", type=int, default=20, help="Show the last N turns; default: 20.")
    @argument("session", nargs="*", help="Id or title of a session; default: the current session.")
    @line_magic
    @with_parsed_options
    def oc_show(self, options: Namespace) -> Transcript:
        """The transcript of a session, with each turn as it looked when it ended.

        `.turns` has its turns with text, tools, diffs, usage and cost. The server doesn't store
        how permissions were answered or what was retried, so these are not shown.

        Example::

            %oc_show
            old = %oc_show Fix the login page --last 3
        """
        from ..sessions.transcript import read_transcript

        if options.last < 1:
            raise UsageError("--last must be at least 1.")
        sessions = self._find_sessions(options.session) or [self.state.require_session()]
        if len(sessions) > 1:
            raise UsageError("%oc_show takes only one session.")
        return read_transcript(self.state.client, sessions[0], options.last)

    @no_var_expand
    @documented_arguments
    @argument("-a", "--all", action="store_true", help="All sessions in this project.")
    @argument("--everywhere", action="store_true", help="All sessions in all directories.")
    @argument("--format", default="parquet", help="parquet (the default) or jsonl.")
    @argument("--source", help="Name of the source; default: this machine's name.")
    @argument("--refresh", action="store_true", help="Also read unchanged sessions again.")
    @argument("path", help="Folder: a new one, or one with an earlier export.")
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

        Each kind has a folder with one folder per day (UTC), which has one file per session. You
        can export to the same folder again, from several machines too: nothing is written twice,
        and unfinished sessions are completed. Exclude rows with a `duplicate_of` to count nothing
        twice; `key` is the same for a message and all its copies, and `source` in `sessions` names
        the machine. Times are UTC timestamps, and a tool's input is JSON text. Parquet needs
        pyarrow: pip install 'opencode-magics[parquet]'.

        Example::

            %oc_export history --all
            import duckdb
            duckdb.sql("from 'history/messages/*/*.parquet' where duplicate_of is null")
        """
        from .. import history

        try:
            with interruptible():
                exported = history.export(
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
            raise UsageError(f"Can't write {error.filename or options.path}: {reason}") from error
        except ValueError as error:
            raise UsageError(str(error)) from error
        _print_lines(exported.warnings)
        return exported

    def _sessions(self, options: argparse.Namespace) -> list[Session] | None:
        """Return the named sessions, or the current one; None for --all and --everywhere."""
        if options.all or options.everywhere:
            if options.session:
                raise UsageError("Use only one of: sessions, --all, --everywhere.")
            return None
        return self._find_sessions(options.session) or [self.state.require_session()]

    def _find_sessions(self, names: list[str] | None) -> list[Session] | None:
        """Find sessions by ids and quoted titles, or by one title; None without names."""
        from ..sessions.lookup import find_session

        if not names:
            return None
        return [find_session(self.state.client, name) for name in session_names(names)]


def _kind(options: argparse.Namespace) -> str:
    kinds = [kind for kind in _KINDS if getattr(options, kind)]
    if len(kinds) > 1:
        raise UsageError(f"Use only one of: {', '.join('--' + k for k in _KINDS)}.")
    return kinds[0] if kinds else "messages"


def _split_keys(values: list[str] | None) -> list[str]:
    return [key.strip() for value in values or () for key in value.split(",") if key.strip()]


def _print_lines(lines: list[str]) -> None:
    for line in lines:
        print(line)


def _summary(usage: pd.DataFrame, by: list[str], period: bool) -> str:
    """Return a line with the totals."""
    from ..core.formatting import format_usd, pluralize
    from ..history.times import PERIODS

    total = usage.attrs["total"]
    if not total["sessions"]:
        return "No sessions."
    sessions = pluralize(total["sessions"], "session")
    if "tool" in by:
        return f"{pluralize(total['calls'] or 0, 'tool call')} in {sessions}."
    cost = "unknown cost" if total["cost"] is None else f"{format_usd(total['cost'])} as stored"
    days = f" Days in {usage.attrs['tz']}." if period or {*by} & {*PERIODS} else ""
    copies = f" Not counted: {pluralize(total['duplicates'] or 0, 'call')} copied by forks."
    unknown = f" Unknown usage: {pluralize(total['unknown'] or 0, 'call')}."
    return (
        f"{sessions}, {cost}, without deleted sessions.{days}"
        f"{copies if total['duplicates'] else ''}{unknown if total['unknown'] else ''}"
    )
