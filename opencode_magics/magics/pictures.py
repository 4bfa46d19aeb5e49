"""Magics that draw charts: the timeline of a turn or session, and the growth of its context."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument

from .options import documented_arguments, with_parsed_options
from .topic import Topic

if TYPE_CHECKING:
    from ..core.model import Session
    from ..history.picture import Picture


@magics_class
class PictureMagics(Topic):
    """Charts"""

    @no_var_expand
    @documented_arguments
    @argument("-n", "--last", type=int, default=10, help="Draw the last N turns; default: 10.")
    @argument("session", nargs="*", help="Id or title; default: the last turn of this notebook.")
    @line_magic
    @with_parsed_options
    def oc_timeline(self, options: Namespace) -> Picture:
        """A timeline of steps, tool calls and waiting times, with subagents below.

        Without a session, it shows the last turn of this notebook, including how long permissions
        waited for an answer. The server doesn't store that, so the timeline of a whole session
        doesn't show it. `opencode_magics.history.spans` returns the same data as a DataFrame. The
        chart needs matplotlib: pip install 'opencode-magics[plots]'.

        Example::

            %oc_timeline
            %oc_timeline Fix the login page --last 3
        """
        from .. import history
        from ..sessions.store import refresh

        if options.last < 1:
            raise UsageError("--last must be at least 1.")
        history.plots.picture_module()
        if options.session or self.state.turn is None:
            session = self._session(options.session)
            return history.timeline(self.state.client, session, last=options.last)
        if self.state.turn.replayed:
            raise UsageError("The last turn is a replay, which no server stores. Name a session.")
        self.state.turn = refresh(self.state.client, self.state.turn)
        return history.timeline(self.state.client, self.state.turn)

    @no_var_expand
    @documented_arguments
    @argument("session", nargs="*", help="Id or title; default: the current session.")
    @line_magic
    @with_parsed_options
    def oc_context(self, options: Namespace) -> Picture:
        """A chart of how the context of a session grew, step by step.

        Each bar is the prompt of one step, split into new tokens and tokens from the provider's
        cache. Compactions are marked; a step with unknown usage has no bar. The chart needs
        matplotlib: pip install 'opencode-magics[plots]'.

        Example::

            %oc_context
        """
        from .. import history

        history.plots.picture_module()
        session = self._session(options.session)
        return history.context(self.state.client, session, cache=self.state.history_cache)

    def _session(self, words: list[str]) -> Session:
        session = self.state.resolve_session(" ".join(words))
        # The server may have generated a title for the current session since it was read.
        return session if words else self.state.client.session(session.id)
