"""The magics that talk to an agent: %%oc_prompt and %oc_turn."""

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
    @argument("-m", "--model", help="provider/model; default: the session's.")
    @argument("--agent", help="Who answers; default: the session's agent.")
    @variant_option
    @file_option
    @argument(
        "--var",
        action="append",
        default=[],
        metavar="NAME",
        help="Variable to tell of: a DataFrame, an array, a figure, text; may be repeated.",
    )
    @schema_options
    @turn_options
    @queue_option
    @argument(
        "--steer", action="store_true", help="Join the turn that runs, at its next step (2.x)."
    )
    @no_wait_option
    @argument("--expand", action="store_true", help="Fill in {{name}} from the notebook.")
    @argument(
        "--once",
        action="store_true",
        help="If this very prompt was answered before, show that and send nothing.",
    )
    @line_cell_magic
    def oc_prompt(self, line: str, cell: str | None = None) -> Any:
        """An agent's answer to a prompt, live: text, reasoning, tool calls, diffs, questions, cost.

        The body is sent exactly as typed. What the agent asks is answered here. The cell shows
        text, reasoning, tool calls, diffs, tokens and cost, and returns nothing: keep the turn
        with -o NAME, or take it from %oc_turn. Nothing may stand above %%oc_prompt in its cell,
        not even a comment. Interrupting the cell stops the agent.

        With --once a prompt that has a successful answer in the session already (same text,
        files, model and agent), or with -n in a session of this directory, isn't sent: the answer
        is shown from history, and what it did is not done again.

        With --schema the cell returns the answer as a value: an instance of a dataclass, a dict, or
        a DataFrame where the schema is an array of objects. An answer that doesn't fit is asked for
        again with the reason. `turn.value` is the value, `turn.earlier` the turns that didn't fit.
        With --var what goes along of a variable is said in the cell, at most 8,000 characters.

        The turn is stopped when it passes `OpenCodeMagics.max_cost`, or repeats itself
        (`loop_guard`): the cell fails, and `turn.stopped` says why.

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
        request = self._whole_request(options, text)
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

        One that was left running is read again from the server; %oc_attach follows it live. It
        fails as long as no prompt was sent.

        Example::

            turn = %oc_turn
            turn.outcome, turn.cost
        """
        from ..sessions.store import refresh

        if self.state.turn is None:
            raise UsageError("No prompt was sent yet. Send one: %oc_prompt Explain this project")
        if not self.state.turn.replayed:  # else no server has it
            self.state.turn = refresh(self.state.client, self.state.turn)
        return self.state.turn

    def _read(self, line: str, cell: str | None) -> tuple[Namespace | None, str]:
        """The options and the text to send, checked as far as that goes without a server."""
        if cell is None:
            options, text = split(self.oc_prompt, line, verbatim=True)
        else:
            options, text = parse(self.oc_prompt, line), cell.removesuffix("\n")
        if options is None:
            return None, ""
        if text.lstrip().startswith("%%oc_prompt"):
            raise UsageError(
                "%%oc_prompt has to be the first line of its cell, above all comments."
            )
        if not text.strip():
            raise UsageError("The prompt is empty. For example: %oc_prompt Explain this project")
        check_prompt_options(options)
        if options.queue and options.steer:
            raise UsageError("--queue comes after the turn that runs, --steer joins it: give one.")
        check_retries(options)
        if options.schema and options.no_wait:
            raise UsageError("--schema reads the answer, --no-wait doesn't wait for it: give one.")
        return options, text

    def _whole_request(self, options: Namespace, text: str) -> PromptRequest:
        """The request of a line; what goes along of variables is said in the cell."""
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
        return replace(self._with_answer(request, options), delivery=delivery)
