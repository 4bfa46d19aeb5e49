"""Magics that change a session without a turn: fork, revert, compact, rename, archive, share."""

from __future__ import annotations

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

_yes = argument("-y", "--yes", action="store_true", help="Do it without asking back.")


@magics_class
class EditMagics(Topic):
    """Change a session, and see what belongs to it"""

    @no_var_expand
    @documented_arguments
    @session_option
    @argument("--before", metavar="MESSAGE", help="Copy only what is before this prompt.")
    @line_magic
    @with_parsed_options
    def oc_fork(self, options: Namespace) -> EditResult:
        """A copy of a session, which becomes the current session.

        The files stay as they are. On 1.x the copy carries the cost of what was copied: %oc_usage
        counts it once.

        Example::

            %oc_fork
        """
        from ..sessions import edit

        done = edit.fork(self.state.client, self._session(options), options.before)
        self.state.session = self.state.track(done.session, "made")
        return done

    @no_var_expand
    @documented_arguments
    @session_option
    @argument("message", nargs="?", help="Id of a prompt, or its beginning; default: the last.")
    @argument("--commit", action="store_true", help="Make a revert final (2.x).")
    @argument("--keep-files", action="store_true", help="Leave the files as they are (2.x).")
    @_yes
    @line_magic
    @with_parsed_options
    def oc_revert(self, options: Namespace) -> EditResult:
        """A session and its files, taken back to before a prompt.

        %oc_unrevert brings it all back, until the next prompt deletes it. Files come back where
        the directory is a git repository; with --keep-files only the messages go. --commit makes
        it final at once.

        Example::

            %oc_revert
        """
        from ..sessions import edit

        client, session = self.state.client, self._session(options)
        if not options.commit:
            return edit.revert(client, session, options.message, files=not options.keep_files)
        if options.message or options.keep_files:
            raise UsageError(
                "--commit makes the revert final that there is: "
                "neither a message nor --keep-files goes with it."
            )
        self._sure(options, "What was taken back is lost for good.")
        return edit.commit(client, session)

    @no_var_expand
    @documented_arguments
    @session_option
    @line_magic
    @with_parsed_options
    def oc_unrevert(self, options: Namespace) -> EditResult:
        """What %oc_revert took away, brought back: messages and files.

        Example::

            %oc_revert
            %oc_unrevert
        """
        from ..sessions import edit

        return edit.unrevert(self.state.client, self._session(options))

    @no_var_expand
    @documented_arguments
    @session_option
    @argument("-m", "--model", help="Who sums up, provider/model; default: the session's.")
    @line_magic
    @with_parsed_options
    def oc_compact(self, options: Namespace) -> EditResult:
        """A session summed up, so that its next prompts take fewer tokens.

        It costs a model call, and isn't done where OpenCodeMagics.max_session_cost is spent. The
        messages stay; %oc_revert takes the summary back.

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
        """A session with another title.

        Example::

            %oc_rename The login page, second try
        """
        from ..sessions import edit

        options, title = split(self.oc_rename, line, verbatim=True)
        if options is None:
            return None
        if not title.strip():
            raise UsageError("Give a title. For example: %oc_rename The login page")
        done = edit.rename(self.state.client, self._session(options), title.strip())
        self._known(done.session)
        return done

    @no_var_expand
    @documented_arguments
    @session_argument
    @argument("--undo", action="store_true", help="Bring it back.")
    @line_magic
    @with_parsed_options
    def oc_archive(self, options: Namespace) -> EditResult:
        """A session put away, so that lists leave it out; it can still be prompted.

        Example::

            %oc_archive Fix the login page
            %oc_archive --undo Fix the login page
        """
        from ..sessions import edit

        done = edit.archive(self.state.client, self._session(options), undo=options.undo)
        self._known(done.session)
        return done

    @no_var_expand
    @documented_arguments
    @session_argument
    @argument("--undo", action="store_true", help="Make it private again.")
    @_yes
    @line_magic
    @with_parsed_options
    def oc_share(self, options: Namespace) -> EditResult:
        """A session made public, at an address that anybody can open.

        Example::

            %oc_share --yes
        """
        from ..sessions import edit

        session = self._session(options)
        if not options.undo:
            self._sure(options, "Anybody with the address can read the session then.")
        return edit.share(self.state.client, session, undo=options.undo)

    @no_var_expand
    @documented_arguments
    @session_argument
    @line_magic
    @with_parsed_options
    def oc_children(self, options: Namespace) -> pd.DataFrame:
        """The subagents of a session at any depth, as a DataFrame: a tree, parents first.

        Example::

            %oc_children
        """
        from .. import tables
        from ..sessions import status, store

        client, top = self.state.client, self._session(options)
        below = tuple(store.descendants(client, top, 0))
        return tables.children(top, status.read_states(client, below))

    @no_var_expand
    @documented_arguments
    @session_argument
    @line_magic
    @with_parsed_options
    def oc_todo(self, options: Namespace) -> pd.DataFrame:
        """The list of things to do that a session's agent keeps, as a DataFrame.

        Example::

            %oc_todo
        """
        from .. import tables

        client, session = self.state.client, self._session(options)
        return tables.todos(client.run(client.dialect.todos(session)))

    def _session(self, options: Namespace) -> Session:
        given = options.session or ""
        return self.state.resolve_session(given if isinstance(given, str) else " ".join(given))

    def _known(self, session: Session) -> None:
        """Keep what is known here of a session as it is now."""
        if session.id in self.state.tracked:
            self.state.track(session, "chosen")
        if self.state.session is not None and self.state.session.id == session.id:
            self.state.session = session

    def _sure(self, options: Namespace, what: str) -> None:
        """Ask back before something that can't be undone.

        Raises:
            UsageError: Nobody can be asked, or somebody said no.
        """
        from ..notebook.answerer import can_ask

        if options.yes:
            return
        if not can_ask(self.shell):
            raise UsageError(f"{what} Add --yes if that is meant.")
        if input(f"{what} Go on? [y/N] ").strip().lower() not in ("y", "yes"):
            raise UsageError("Nothing was done.")
