"""One prompt for each row of a DataFrame: %%oc_map."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.core.magic import line_cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument

from ..errors import TurnInterrupted
from .options import (
    check_turn_options,
    documented_arguments,
    file_option,
    parse,
    permission_option,
    schema_options,
    variant_option,
)
from .state import OpenCodeMagics
from .turns import TurnMagics, check_retries

if TYPE_CHECKING:
    import pandas as pd


@magics_class
class MapMagics(TurnMagics):
    """Send a prompt for each row of a table"""

    def __init__(self, shell: object, state: OpenCodeMagics) -> None:
        super().__init__(shell, state)
        self._last_results: pd.DataFrame | None = None

    @no_var_expand
    @documented_arguments
    @argument("table", nargs="?", help="Name of the variable with the DataFrame.")
    @argument("--as", dest="row", metavar="NAME", help="Name for the whole row in the prompt.")
    @argument("--same-session", action="store_true", help="Use one session for all rows.")
    @argument(
        "-s", "--session", help="With --same-session: the session to use; default: a new one."
    )
    @argument(
        "--title",
        help="Title of the new sessions, before the row's index; default: the table's name.",
    )
    @argument("-m", "--model", help="provider/model; default: OpenCodeMagics.model.")
    @argument("--agent", help="Agent that answers; default: OpenCodeMagics.agent.")
    @variant_option
    @file_option
    @schema_options
    @argument("--max-cost", type=float, metavar="USD", help="Cost limit for all rows together.")
    @permission_option
    @argument(
        "--once",
        action="store_true",
        help="Skip rows that already have an answer; show that answer.",
    )
    @argument("-o", "--out", help="Variable to store the results in.")
    @line_cell_magic
    def oc_map(self, line: str, cell: str | None = None) -> pd.DataFrame | None:
        """An agent's answer for each row of a DataFrame, as a DataFrame.

        The cell body is the prompt template: {column} is replaced by the row's value, and {{ and }}
        are literal braces. Rows run one after another, each in its own session; your current
        session doesn't change. The result has the table's index and columns for prompt, answer
        (with --schema, one column per field), outcome, cost and whether it is complete, tokens,
        duration, session, and the error if there is no answer. A failed row doesn't stop the
        others; reaching --max-cost or an interrupt does. The results so far are then in the
        variable of -o, and %oc_map without arguments returns them again. With --once, running the
        cell again costs nothing.

        Example::

            import pandas as pd
            files = pd.DataFrame({"name": ["greet.py", "party.py"]})

            %%oc_map files --once --max-cost 0.50 -o answers
            Explain {name} in one sentence.
        """
        options = parse(self.oc_map, line)
        if options is None:
            return None
        if cell is None:
            return self._previous_results(options)
        table, prompts = self._read(options, cell.removesuffix("\n"))
        return self._run(options, table, prompts)

    def _previous_results(self, options: Namespace) -> pd.DataFrame:
        if options.table == "%%oc_map":
            raise UsageError("%%oc_map must be the first line of its cell.")
        if options.table:
            raise UsageError("Write %%oc_map in a cell, with the prompt below it. See %oc_map -h")
        if self._last_results is None:
            raise UsageError("No %%oc_map has run yet. See %oc_map -h")
        return self._last_results

    def _read(self, options: Namespace, template: str) -> tuple[pd.DataFrame, list[str]]:
        """Return the table and its prompts, after all checks that need no server."""
        import pandas as pd

        from ..prompts import mapping

        check_turn_options(options)
        check_retries(options)
        if options.max_cost is not None and not options.max_cost >= 0:  # also rejects NaN
            raise UsageError("--max-cost must be an amount in USD, 0 or more.")
        if options.session and not options.same_session:
            raise UsageError(
                "--session requires --same-session; otherwise each row gets its own session."
            )
        table = self.shell.user_ns.get(options.table)
        if not isinstance(table, pd.DataFrame):
            problem = f"{options.table!r} is not one" if options.table else "there is no name"
            raise UsageError(f"%%oc_map takes the name of a DataFrame variable; {problem}.")
        return table, mapping.fill_template(table, template, options.row)

    def _run(self, options: Namespace, table: pd.DataFrame, prompts: list[str]) -> pd.DataFrame:
        from ..notebook.rows import RowsBar, summary
        from ..prompts import mapping

        title = options.title or options.table
        request = self._with_answer_options(self._base_request(options, ""), options)
        request = replace(
            request, session=options.session, title=None if options.session else title
        )
        client = self.state.client
        stopped: BaseException | None = None
        with RowsBar(self.shell, title, len(prompts)) as bar:
            rows = mapping.Rows(
                client,
                request,
                lambda label: self._runner(options.permission, view=bar.view(label)),
                self._note,
                same_session=options.same_session,
                max_cost=options.max_cost,
            )
            try:
                for _ in rows.ask([str(label) for label in table.index], prompts):
                    bar.advance(rows)
            except (KeyboardInterrupt, Exception) as error:  # keep the rows that were paid for
                stopped = error
        self._last_results = rows.results(table, prompts)
        if options.out:
            self.shell.user_ns[options.out] = self._last_results
        print(summary(rows, len(prompts)))
        if isinstance(stopped, KeyboardInterrupt):
            where = options.out or "%oc_map"
            raise TurnInterrupted(f"Stopped; the results so far are in {where}.") from None
        if stopped is not None:
            raise stopped
        return self._last_results
