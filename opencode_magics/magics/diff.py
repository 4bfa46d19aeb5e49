"""The magic about changes: what an agent did to the files."""

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
    """Changes to files"""

    @no_var_expand
    @documented_arguments
    @argument("-m", "--message", help="Only the turn of this message: the id of its prompt.")
    @argument("-s", "--side-by-side", action="store_true", help="Before on the left, after right.")
    @argument("session", nargs="*", help="Id or title of a session; default: the current one.")
    @line_magic
    @with_parsed_options
    def oc_diff(self, options: Namespace) -> Diff:
        """What an agent changed in the files, as a Diff: shown file by file with line numbers.

        The diff covers all turns of the session that were not reverted; its first line says who
        told it. `diff["cart.py"]` is the part about one file, `diff.side_by_side()` another look
        at it, `diff.to_frame()` a DataFrame, and `diff.patch` what `git apply` takes. After
        %oc_replay and without a session it is what the replayed turn changed.

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
