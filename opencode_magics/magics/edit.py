"""Magics that change a session without a turn: fork, revert, compact, rename, archive, share."""

from __future__ import annotations

import shlex
from argparse import Namespace
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument

from .options import (
    documented_arguments,
    session_argument,
    session_option,
    split,
    with_parsed_options,
)
from .topic import Topic

if TYPE_CHECKING:
    import pandas as pd

    from ..core.model import Session
    from ..sessions.edit import EditResult

_yes = argument("-y", "--yes", action="store_true", help="Don't ask for confirmation.")


@magics_class
class EditMagics(Topic):
    """Edit a session; list its subagents and to-dos"""

    @no_var_expand
    @documented_arguments
    @session_option
    @argument("--before", metavar="MESSAGE", help="Copy only the messages before this prompt.")
    @line_magic
    @with_parsed_options
    def oc_fork(self, options: Namespace) -> EditResult:
        """A copy of a session, which becomes the current session.

        Files are not changed. On 1.x the cost of the copied messages is also part of the copy's
        cost; %oc_usage counts it once.

        Example::

            %oc_fork
        """
        from ..sessions import edit

        result = edit.fork(self.state.client, self._session(options), options.before)
        self.state.session = self.state.track(result.session, "made")
        return result

    @no_var_expand
    @documented_arguments
    @session_option
    @argument("message", nargs="?", help="Id of a prompt, or its beginning; default: the last one.")
    @argument("--commit", action="store_true", help="Make the current revert permanent (2.x).")
    @argument("--keep-files", action="store_true", help="Don't change the files (2.x).")
    @argument(
        "--force",
        action="append",
        default=[],
        metavar="FILE",
        help="Overwrite this file although its content now would be lost; may be repeated.",
    )
    @_yes
    @line_magic
    @with_parsed_options
    def oc_revert(self, options: Namespace) -> EditResult:
        """A session and its files, reverted to the state before a prompt.

        %oc_unrevert restores everything, until the next prompt deletes what was reverted. Files
        are only reverted if the directory is a git repository; --keep-files reverts only messages.
        --commit makes the revert permanent at once.

        The server restores all files of the directory, also those that the agent didn't change. You
        are asked before that if you can answer here. A notebook that is open here, and a file that
        was changed since, are only overwritten if you say so: by your answer, or by --force FILE
        (--yes is not enough).

        Example::

            %oc_revert
        """
        from ..sessions import edit

        client, session = self.state.client, self._session(options)
        if not options.commit:
            if not options.keep_files:
                self._confirm_plan(options, session)
            return edit.revert(client, session, options.message, files=not options.keep_files)
        if options.message or options.keep_files:
            raise UsageError(
                "--commit makes the current revert permanent: it takes neither a message nor "
                "--keep-files."
            )
        self._confirm(options, "The reverted messages will be lost permanently.")
        return edit.commit(client, session)

    @no_var_expand
    @documented_arguments
    @session_option
    @line_magic
    @with_parsed_options
    def oc_unrevert(self, options: Namespace) -> EditResult:
        """The messages and files that %oc_revert removed, restored.

        Example::

            %oc_revert
            %oc_unrevert
        """
        from ..sessions import edit

        return edit.unrevert(self.state.client, self._session(options))

    @no_var_expand
    @documented_arguments
    @session_option
    @argument(
        "-m", "--model", help="Model for the summary, provider/model; default: the session's."
    )
    @line_magic
    @with_parsed_options
    def oc_compact(self, options: Namespace) -> EditResult:
        """A summarized session, whose next prompts use fewer tokens.

        The summary costs a model call; it is refused if the session already cost more than
        OpenCodeMagics.max_session_cost. The messages stay; %oc_revert removes the summary.

        Example::

            %oc_compact
        """
        from ..sessions import edit

        client, session = self.state.client, self._session(options)
        return edit.compact(client, session, options.model, self.state.limits)

    @no_var_expand
    @documented_arguments
    @session_option
    @argument("title", nargs="*", help="The new title.")
    @line_magic
    def oc_rename(self, line: str) -> EditResult | None:
        """A session with its new title.

        Example::

            %oc_rename The login page, second try
        """
        from ..sessions import edit

        options, title = split(self.oc_rename, line, verbatim=True)
        if options is None:
            return None
        if not title.strip():
            raise UsageError("Give a title. For example: %oc_rename The login page")
        result = edit.rename(self.state.client, self._session(options), title.strip())
        self._update_session(result.session)
        return result

    @no_var_expand
    @documented_arguments
    @session_argument
    @argument("--undo", action="store_true", help="Restore the session.")
    @line_magic
    @with_parsed_options
    def oc_archive(self, options: Namespace) -> EditResult:
        """An archived session: hidden from lists, but it can still be prompted.

        Example::

            %oc_archive Fix the login page
            %oc_archive --undo Fix the login page
        """
        from ..sessions import edit

        result = edit.archive(self.state.client, self._session(options), undo=options.undo)
        self._update_session(result.session)
        return result

    @no_var_expand
    @documented_arguments
    @session_argument
    @argument("--undo", action="store_true", help="Make the session private again.")
    @_yes
    @line_magic
    @with_parsed_options
    def oc_share(self, options: Namespace) -> EditResult:
        """A public session, with an address that anyone can open.

        Example::

            %oc_share --yes
        """
        from ..sessions import edit

        session = self._session(options)
        if not options.undo:
            self._confirm(options, "Anyone with the address will be able to read the session.")
        return edit.share(self.state.client, session, undo=options.undo)

    @no_var_expand
    @documented_arguments
    @session_argument
    @line_magic
    @with_parsed_options
    def oc_children(self, options: Namespace) -> pd.DataFrame:
        """The subagents of a session at every depth, as a DataFrame with parents first.

        Example::

            %oc_children
        """
        from .. import tables
        from ..sessions import status, store

        client, top = self.state.client, self._session(options)
        children = tuple(store.descendants(client, top, 0))
        return tables.children(top, status.read_states(client, children))

    @no_var_expand
    @documented_arguments
    @session_argument
    @line_magic
    @with_parsed_options
    def oc_todo(self, options: Namespace) -> pd.DataFrame:
        """The to-do list of a session's agent, as a DataFrame.

        Example::

            %oc_todo
        """
        from .. import tables

        client, session = self.state.client, self._session(options)
        return tables.todos(client.run(client.dialect.todos(session)))

    def _session(self, options: Namespace) -> Session:
        name = options.session or ""
        return self.state.resolve_session(name if isinstance(name, str) else " ".join(name))

    def _update_session(self, session: Session) -> None:
        """Update the tracked session and the current session after a change."""
        if session.id in self.state.tracked:
            self.state.track(session, "chosen")
        if self.state.session is not None and self.state.session.id == session.id:
            self.state.session = session

    def _confirm_plan(self, options: Namespace, session: Session) -> None:
        """Ask before files are overwritten; refuse to lose what nobody named.

        Raises:
            UsageError: The answer is no, or a file at risk is neither named nor can be asked about.
        """
        from ..notebook.answerer import can_ask
        from ..sessions.edit import plan_revert
        from ..sessions.revert_plan import refused
        from .open_notebook import is_open

        plan = plan_revert(self.state.client, session, options.message, is_open(self.shell))
        at_risk = refused(plan, options.force)
        if at_risk and (options.yes or not can_ask(self.shell)):
            named = " ".join(f"--force {shlex.quote(file.path)}" for file in at_risk)
            raise UsageError(
                f"Nothing was reverted. It would overwrite {', '.join(map(str, at_risk))}. "
                f"Save a copy, or add {named}"
            )
        if plan.files and can_ask(self.shell):
            self._confirm(options, str(plan))

    def _confirm(self, options: Namespace, consequence: str) -> None:
        """Ask for confirmation of a step that can't be undone, unless --yes is set.

        Raises:
            UsageError: The answer is no, or nobody can be asked.
        """
        from ..notebook.answerer import can_ask

        if options.yes:
            return
        if not can_ask(self.shell):
            raise UsageError(f"{consequence} Add --yes to confirm.")
        if input(f"{consequence} Continue? [y/N] ").strip().lower() not in ("y", "yes"):
            raise UsageError("Cancelled; nothing was changed.")
