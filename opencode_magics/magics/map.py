"""One prompt for each row of a DataFrame: %%oc_map."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import line_cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument

from ..errors import TurnError, TurnInterrupted
from .context import check_schema_options, follow_up_options
from .options import (
    check_turn_options,
    documented_arguments,
    parse,
    permission_option,
    variant_option,
)
from .prompt import PromptMagics
from .state import OpenCodeMagics
from .topic import Topic

if TYPE_CHECKING:
    import pandas as pd

    from ..core.limits import Limits
    from ..core.turn import Turn
    from ..prompts.mapping import RowResult
    from ..prompts.schema import Schema


@magics_class
class MapMagics(Topic):
    """Ask for each row of a table"""

    def __init__(self, shell: object, state: OpenCodeMagics) -> None:
        super().__init__(shell, state)
        self._prompts = PromptMagics(shell, state)
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
    @argument("--file", action="append", default=[], help="File to attach; may be repeated.")
    @argument("--schema", metavar="MODEL", help="What answers have to look like, as %%oc_prompt.")
    @argument("--retries", type=int, default=2, help="With --schema, as %%oc_prompt; default 2.")
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
        table, prompts, schema = self._read(options, cell.removesuffix("\n"))
        return self._run(options, table, prompts, schema)

    def _again(self, options: Namespace) -> pd.DataFrame:
        if options.table == "%%oc_map":
            raise UsageError("%%oc_map has to be the first line of its cell, above all comments.")
        if options.table:
            raise UsageError("The prompt stands below %%oc_map, in a cell. See %oc_map -h")
        if self._last is None:
            raise UsageError("No %%oc_map ran yet. See %oc_map -h")
        return self._last

    def _read(
        self, options: Namespace, template: str
    ) -> tuple[pd.DataFrame, list[str], Schema | None]:
        """The table, its prompts and the schema: all that can be wrong before anything is sent."""
        import pandas as pd

        from ..prompts import mapping
        from ..prompts import schema as schemas

        check_turn_options(options)
        check_schema_options(options)
        if options.max_cost is not None and not options.max_cost >= 0:  # NaN would be no ceiling
            raise UsageError("--max-cost takes USD, a number from 0 on")
        if options.session and not options.same_session:
            raise UsageError("--session goes with --same-session: each row has a new one else.")
        table = self.shell.user_ns.get(options.table)
        if not isinstance(table, pd.DataFrame):
            named = f"{options.table!r} is none" if options.table else "none is named"
            raise UsageError(f"%%oc_map takes the variable of a DataFrame, and {named}.")
        schema = (
            schemas.schema_by_name(options.schema, self.shell.user_ns) if options.schema else None
        )
        return table, mapping.fill_template(table, template, options.row), schema

    def _run(
        self, options: Namespace, table: pd.DataFrame, prompts: list[str], schema: Schema | None
    ) -> pd.DataFrame:
        from ..prompts import mapping

        rows = _Rows(self._prompts, options, schema)
        stopped: BaseException | None = None
        with self._current_session_kept():
            try:
                rows.answer([str(label) for label in table.index], prompts)
            except (KeyboardInterrupt, Exception) as error:  # whatever it is, rows were paid
                stopped = error
        done = rows.done + [mapping.RowResult(p) for p in prompts[len(rows.done) :]]
        self._last = mapping.results_frame(table, done, schema)
        if options.out:
            self.shell.user_ns[options.out] = self._last
        print(rows.told(len(prompts)))
        if isinstance(stopped, KeyboardInterrupt):
            where = options.out or "%oc_map"
            raise TurnInterrupted(f"Stopped; what is done is in {where}.") from None
        if stopped is not None:
            raise stopped
        return self._last

    @contextmanager
    def _current_session_kept(self) -> Iterator[None]:
        before = self.state.session
        try:
            yield
        finally:
            self.state.session = before


class _Rows:
    """The rows of a map that are done, and what they took so far."""

    def __init__(self, prompts: PromptMagics, options: Namespace, schema: Schema | None) -> None:
        more = {"expand": False, "no_wait": False, "out": None, "queue": False, "steer": False}
        more |= {"new": False, "timeout": None}
        self._prompts = prompts
        self._options = Namespace(**(vars(options) | more))
        self._schema = schema
        self._title = options.title or options.table
        self._sent: list[Turn] = []
        self._why = ""
        self.done: list[RowResult] = []

    def answer(self, labels: list[str], prompts: list[str]) -> None:
        """Have one row after the other answered, until nothing may be spent any more."""
        from tqdm import tqdm

        # On a notebook's stderr it would stand on red, as if something had failed. No row is too
        # quick to be shown: the next one may take minutes.
        with tqdm(
            total=len(prompts), desc=self._title, unit="row", file=sys.stdout, mininterval=0
        ) as bar:
            for label, prompt in zip(labels, prompts, strict=True):
                limits = self._limits()
                self._why = limits.already_exceeded()
                if self._why:
                    return
                self._answer(label, prompt, limits, bar)
                bar.set_postfix_str(self._cost, refresh=False)
                bar.update()

    @property
    def _cost(self) -> str:
        from ..core.limits import total_cost
        from ..notebook.wording import at_least

        return at_least(*total_cost(self._sent)) if self._sent else "nothing was sent"

    def _limits(self) -> Limits:
        from ..core.limits import Ceiling, total_cost

        limits, most = self._prompts.state.limits, self._options.max_cost
        if most is None:
            return limits
        ceiling = Ceiling("--max-cost", most, total_cost(self._sent).known or 0.0)
        return replace(limits, ceilings=(*limits.ceilings, ceiling))

    def _answer(self, label: str, prompt: str, limits: Limits, bar: Any) -> None:
        """Have one row answered; what became of it is kept whatever comes."""
        from ..notebook.quiet_view import QuietView
        from ..prompts import mapping

        shown = QuietView(self._prompts.shell, lambda said: bar.write(f"{label}: {said}"))
        options, before = self._in_session(label), len(self._sent)
        try:
            turn = self._prompts.run_prompt(
                options, prompt, self._schema, limits=limits, shown=shown, sent=self._sent
            )
        except (KeyboardInterrupt, Exception) as error:
            sent = tuple(self._sent[before:])
            turns = getattr(error, "turns", None) or sent
            self.done.append(
                mapping.failed_row(prompt, turns, error, recalled=bool(turns and not sent))
            )
            if not isinstance(error, TurnError):
                raise
        else:
            turns, recalled = (*turn.earlier, turn), len(self._sent) == before
            self.done.append(mapping.RowResult(prompt, turns, turn.outcome, turn.value, recalled))

    def _in_session(self, label: str) -> Namespace:
        """The options of a row: where it goes."""
        options = self._options
        if not options.same_session:
            return Namespace(**(vars(options) | {"title": f"{self._title} {label}"}))
        known = next((a.turn.session for a in self.done if a.turn), options.session)
        if known:
            return Namespace(**(vars(follow_up_options(options, known)) | {"file": options.file}))
        return Namespace(**(vars(options) | {"title": self._title}))

    def told(self, count: int) -> str:
        """What came of it, in one line."""
        from collections import Counter

        from ..core.formatting import pluralize

        outcomes = Counter(a.outcome for a in self.done)
        outcomes["not_sent"] += count - len(self.done)
        recalled = sum(a.recalled for a in self.done)
        told = [pluralize(count, "row"), *(f"{n:,} {what}" for what, n in outcomes.items() if n)]
        told += [f"{recalled:,} from history"] * bool(recalled)
        why = f" Stopped: {self._why}." if self._why else ""
        return f"{' · '.join([*told, self._cost])}.{why}"
