"""The magic that shows what an agent changed in the files: %oc_diff."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument

from .options import documented_arguments, with_parsed_options
from .topic import Topic

if TYPE_CHECKING:
    from ..core.diffs import Diff


@magics_class
class DiffMagics(Topic):
    """Show file changes"""

    @no_var_expand
    @documented_arguments
    @argument("-m", "--message", help="Only changes of one turn; takes the id of its prompt.")
    @argument(
        "-s",
        "--side-by-side",
        action="store_true",
        help="Show before on the left, after on the right.",
    )
    @argument("session", nargs="*", help="Id or title of a session; default: the current session.")
    @line_magic
    @with_parsed_options
    def oc_diff(self, options: Namespace) -> Diff:
        """The file changes of a session, as a Diff: shown file by file with line numbers.

        The diff covers all turns that were not reverted; its first line names the source.
        `diff["cart.py"]` is the part for one file, `diff.side_by_side()` shows it side by side,
        `diff.to_frame()` is a DataFrame, and `diff.patch` is a patch for `git apply`. After
        %oc_replay, without a session, it shows the changes of the replayed turn.

        Example::

            diff = %oc_diff
            %oc_diff --side-by-side Fix the login page
        """
        last = self.state.turn
        if last is not None and last.replayed and not (options.session or options.message):
            diff = last.diff
        else:
            session = self.state.resolve_session(" ".join(options.session))
            client = self.state.client
            diff = client.run(client.dialect.diffs(session, options.message))
        return diff.side_by_side() if options.side_by_side else diff
