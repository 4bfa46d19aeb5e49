"""Magics that send prompts and return turns: %%oc_prompt and %oc_turn."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import line_cell_magic, line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument

from ..errors import UnknownNameError
from .options import (
    documented_arguments,
    file_option,
    no_wait_option,
    parse,
    queue_option,
    schema_options,
    split,
    target_options,
    turn_options,
    variant_option,
    with_parsed_options,
)
from .turns import TurnMagics, check_prompt_options, check_retries

if TYPE_CHECKING:
    from ..core.turn import Turn
    from ..prompts.ask import PromptRequest


@magics_class
class PromptMagics(TurnMagics):
    """Talk to an agent"""

    @no_var_expand
    @documented_arguments
    @target_options
    @argument("-m", "--model", help="provider/model, from now on; default: the session's.")
    @argument("--agent", help="Agent that answers, from now on; default: the session's agent.")
    @variant_option
    @file_option
    @argument(
        "--var",
        action="append",
        default=[],
        metavar="NAME",
        help="Variable to attach: a DataFrame, an array, a figure or text; may be repeated.",
    )
    @schema_options
    @turn_options
    @queue_option
    @argument("--steer", action="store_true", help="Join the running turn at its next step (2.x).")
    @no_wait_option
    @argument("--expand", action="store_true", help="Replace {{name}} by the variable.")
    @argument(
        "--once",
        action="store_true",
        help="If this prompt already has an answer, show it and send nothing.",
    )
    @line_cell_magic
    def oc_prompt(self, line: str, cell: str | None = None) -> Any:
        """An agent's answer to a prompt, live: text, reasoning, tool calls, diffs, questions, cost.

        The cell body is sent exactly as typed. You answer permissions and questions in the cell.
        The cell shows text, reasoning, tool calls, diffs, tokens and cost, and returns nothing: -o
        NAME stores the turn, and %oc_turn returns it. %%oc_prompt must be the first line of its
        cell; not even a comment may come before it. Interrupting the cell stops the agent.

        With --once, a prompt is not sent if it already has a successful answer (same text, files,
        model and agent) in this session or, with -n, in any session of this directory. The answer
        is shown from history; its tool calls are not repeated.

        With --schema, the cell returns the answer as a value: an instance of a dataclass, a dict,
        or a DataFrame if the schema is an array of objects. If an answer is invalid, the agent is
        asked again with the reason. `turn.value` is the value, `turn.earlier` has the turns with
        invalid answers. With --var, the cell shows what is sent of each variable, at most 8,000
        characters.

        A turn that exceeds `OpenCodeMagics.max_cost` or repeats itself (`loop_guard`) is stopped:
        the cell fails, and `turn.stopped` has the reason.

        Example::

            %%oc_prompt --agent plan -o turn
            Explain how the tests in this project are organised.

            review = {"file": "greet.py", "bugs": ["what is wrong"]}
            %oc_prompt --schema review Review greet.py
        """
        from ..prompts.ask import ask

        options, text = self._read(line, cell)
        if options is None:
            return None
        request = self._full_request(options, text)
        observe = self._observer(options, request)
        turn = ask(self.state.client, request, self._runner_of(options), observe)
        if request.schema:
            self.state.remember_turn(turn, options.out)  # with the value of its answer
        return turn.value

    @documented_arguments
    @line_magic
    @with_parsed_options
    def oc_turn(self, options: Namespace) -> Turn:
        """The last turn of this notebook, as an object: text, outcome, tools, diffs, usage, cost.

        If the turn was still running, it is read again from the server; %oc_attach follows it
        live. The magic fails if no prompt has been sent yet.

        Example::

            turn = %oc_turn
            turn.outcome, turn.cost
        """
        from ..sessions.store import refresh

        if self.state.turn is None:
            raise UsageError("No prompt has been sent yet. Try: %oc_prompt Explain this project")
        if not self.state.turn.replayed:  # no server stores a replayed turn
            self.state.turn = refresh(self.state.client, self.state.turn)
        return self.state.turn

    def _read(self, line: str, cell: str | None) -> tuple[Namespace | None, str]:
        """Return the options and the text to send, after all checks that need no server."""
        if cell is None:
            options, text = split(self.oc_prompt, line, verbatim=True)
        else:
            options, text = parse(self.oc_prompt, line), cell.removesuffix("\n")
        if options is None:
            return None, ""
        if text.lstrip().startswith("%%oc_prompt"):
            raise UsageError("%%oc_prompt must be the first line of its cell.")
        if not text.strip():
            raise UsageError("The prompt is empty. For example: %oc_prompt Explain this project")
        check_prompt_options(options)
        if options.queue and options.steer:
            raise UsageError(
                "Use either --queue (after the running turn) or --steer (join it), not both."
            )
        check_retries(options)
        if options.schema and options.no_wait:
            raise UsageError(
                "--schema needs the answer, but --no-wait doesn't wait for it. Use only one."
            )
        return options, text

    def _full_request(self, options: Namespace, text: str) -> PromptRequest:
        """Return the complete request of a line; print what is sent of each variable."""
        from ..prompts import variables

        names = self.shell.user_ns
        if options.expand:
            try:
                text = variables.expand(text, names)
            except UnknownNameError as error:
                raise UsageError(error.what) from None
        request = self._prompt_request(options, text)
        if options.var:
            described = [
                variables.variable_context(name, names) for name in dict.fromkeys(options.var)
            ]
            request = variables.add_variables(self.state.client, request, described)
            print("\n".join(map(str, described)))
        delivery = "steer" if options.steer else request.delivery
        return replace(self._with_answer_options(request, options), delivery=delivery)
