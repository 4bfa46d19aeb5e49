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
    """Ask for each row of a table"""

    def __init__(self, shell: object, state: OpenCodeMagics) -> None:
        super().__init__(shell, state)
        self._last: pd.DataFrame | None = None

    @no_var_expand
    @documented_arguments
    @argument("table", nargs="?", help="Variable with the DataFrame.")
    @argument("--as", dest="row", metavar="NAME", help="Name of the whole row in the template.")
    @argument("--same-session", action="store_true", help="All rows in one session.")
    @argument("-s", "--session", help="With --same-session: in this one; default: a new one.")
    @argument("--title", help="Of the new sessions, before the row's index; default: the table's.")
    @argument("-m", "--model", help="provider/model; default: OpenCodeMagics.model.")
    @argument("--agent", help="Who answers; default: OpenCodeMagics.agent.")
    @variant_option
    @file_option
    @schema_options
    @argument("--max-cost", type=float, metavar="USD", help="What all rows may cost together.")
    @permission_option
    @argument("--once", action="store_true", help="Send only what has no answer yet.")
    @argument("-o", "--out", help="Variable to keep the results in.")
    @line_cell_magic
    def oc_map(self, line: str, cell: str | None = None) -> pd.DataFrame | None:
        """An agent's answer for each row of a DataFrame, as a DataFrame.

        The body is the prompt, with {column} where a value of the row goes ({{ and }} are braces).
        One row after the other, each in a session of its own; the current session stays. The
        result has the table's index, the prompt, the answer (with --schema a column for each of
        its fields), outcome, cost (and whether that is all), tokens, duration, session, and the
        error where there is no answer. A row that fails doesn't stop the others; --max-cost does,
        and an interrupt: what is done is kept in the variable of -o, and %oc_map gives it again.
        With --once running the cell again costs nothing.

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
            return self._again(options)
        table, prompts = self._read(options, cell.removesuffix("\n"))
        return self._run(options, table, prompts)

    def _again(self, options: Namespace) -> pd.DataFrame:
        if options.table == "%%oc_map":
            raise UsageError("%%oc_map has to be the first line of its cell, above all comments.")
        if options.table:
            raise UsageError("The prompt stands below %%oc_map, in a cell. See %oc_map -h")
        if self._last is None:
            raise UsageError("No %%oc_map ran yet. See %oc_map -h")
        return self._last

    def _read(self, options: Namespace, template: str) -> tuple[pd.DataFrame, list[str]]:
        """The table and its prompts, checked as far as that goes without a server."""
        import pandas as pd

        from ..prompts import mapping

        check_turn_options(options)
        check_retries(options)
        if options.max_cost is not None and not options.max_cost >= 0:  # NaN would be no ceiling
            raise UsageError("--max-cost takes USD, a number from 0 on")
        if options.session and not options.same_session:
            raise UsageError("--session goes with --same-session: each row has a new one else.")
        table = self.shell.user_ns.get(options.table)
        if not isinstance(table, pd.DataFrame):
            named = f"{options.table!r} is none" if options.table else "none is named"
            raise UsageError(f"%%oc_map takes the variable of a DataFrame, and {named}.")
        return table, mapping.fill_template(table, template, options.row)

    def _run(self, options: Namespace, table: pd.DataFrame, prompts: list[str]) -> pd.DataFrame:
        from ..notebook.rows import RowsBar, summary
        from ..prompts import mapping

        title = options.title or options.table
        request = self._with_answer(self._base_request(options, ""), options)
        request = replace(
            request, session=options.session, title=None if options.session else title
        )
        client = self.state.client
        stopped: BaseException | None = None
        with RowsBar(self.shell, title, len(prompts)) as bar:
            rows = mapping.Rows(
                client,
                request,
                lambda label: self._runner(options.permission, shown=bar.view(label)),
                self._note,
                same_session=options.same_session,
                max_cost=options.max_cost,
            )
            try:
                for _ in rows.ask([str(label) for label in table.index], prompts):
                    bar.advance(rows)
            except (KeyboardInterrupt, Exception) as error:  # whatever it is, rows were paid
                stopped = error
        self._last = rows.results(table, prompts)
        if options.out:
            self.shell.user_ns[options.out] = self._last
        print(summary(rows, len(prompts)))
        if isinstance(stopped, KeyboardInterrupt):
            where = options.out or "%oc_map"
            raise TurnInterrupted(f"Stopped; what is done is in {where}.") from None
        if stopped is not None:
            raise stopped
        return self._last
