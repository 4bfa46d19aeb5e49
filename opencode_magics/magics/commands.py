"""The magic that gives a session a command: %%oc_command."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.core.magic import line_cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument

from ..errors import TurnInterrupted
from .options import (
    documented_arguments,
    no_wait_option,
    parse,
    queue_option,
    split,
    target_options,
    turn_options,
    variant_option,
)
from .turns import TurnMagics, check_prompt_options

if TYPE_CHECKING:
    import pandas as pd

    from ..core.model import Session
    from ..prompts.ask import Notice, PromptRequest
    from ..sessions.commands import CommandReceipt, Dispatched


@magics_class
class CommandMagics(TurnMagics):
    """Commands of OpenCode"""

    @no_var_expand
    @documented_arguments
    @target_options
    @argument("--isolated", action="store_true", help="In a session of its own, which is exact.")
    @argument("--fork", action="store_true", help="With --isolated: in a fork of the session.")
    @argument(
        "--mark",
        action="store_true",
        help="Put the invocation's id behind the arguments, to know what becomes of them (2.x).",
    )
    @argument("--recover", metavar="INVOCATION", help="Show what came of one; nothing is sent.")
    @argument("--given", action="store_true", help="List those that can be recovered (2.x).")
    @argument("-m", "--model", help="provider/model; default: the command's, else the session's.")
    @argument("--agent", help="Who answers; default: the command's, else the session's.")
    @variant_option
    @turn_options
    @queue_option
    @no_wait_option
    @argument("name", nargs="?", help="The command's name.")
    @line_cell_magic
    def oc_command(
        self, line: str, cell: str | None = None
    ) -> CommandReceipt | pd.DataFrame | None:
        """The answer to a command of OpenCode's configuration, live, and its receipt.

        What follows the name, or stands below it in a cell, goes to the command as its arguments,
        exactly as typed. What the agent asks is answered here, interrupting stops the agent, and
        `%oc_turn` is the turn afterwards.

        Returns a `CommandReceipt`: `.turn` and `.text` are what came of it, `.invocation` its id,
        `.status`, `.inputs` and `.children` what it became, `.evidence` how that is known, and
        `.resend_safety` whether it can be given again. It is sent once, whatever happens.

        OpenCode 1.x names the prompt that it makes of a command: the status is always `matched`.
        OpenCode 2.x names nothing. What was admitted to the session meanwhile is then the
        command's only if it says so: by the arguments (8 characters or more) or by the title of a
        subagent, if nothing else was admitted and no notebook gave another command just then; or
        for certain by the invocation's id in it (--mark, for commands that repeat their
        arguments). Else the status is `ambiguous`, or `none`, and nothing is shown as the
        command's. --isolated is exact for every command: there is nothing else in its session.
        Of a subtask `.turn` is the subagent's, and the session's own turn about it is played below.

        Example::

            %oc_command review greet.py

            receipt = %oc_command --isolated --fork review greet.py
            receipt
        """
        options, name, text = self._read(line, cell)
        if options is None:
            return None
        if options.given:
            return self._given()
        if options.recover:
            return self._recover(options)
        return self._give(options, name, text)

    def _read(self, line: str, cell: str | None) -> tuple[Namespace | None, str, str]:
        """The options, the command's name, and the arguments to send."""
        if cell is None:
            options, rest = split(self.oc_command, line, verbatim=True)
            name, _, text = rest.partition(" ")
        else:
            options, text = parse(self.oc_command, line), cell.removesuffix("\n")
            name = (options and options.name) or ""
        if options is None:
            return None, "", ""
        if name == "%%oc_command":
            raise UsageError("%%oc_command has to be the first line of its cell.")
        found_again = options.recover or options.given
        if name and found_again:
            raise UsageError("--recover and --given send nothing: no command goes with them.")
        if not name and not found_again:
            raise UsageError("Name a command. For example: %oc_command review greet.py")
        check_prompt_options(options)
        _check_place(options)
        return options, name, text

    def _give(self, options: Namespace, name: str, text: str) -> CommandReceipt:
        from ..notebook.interrupts import interruptible
        from ..sessions import commands

        request = self._prompt_request(options, text)
        with interruptible():
            try:
                given = commands.send_command(
                    self.state.client,
                    self._place(options, request),
                    name,
                    text,
                    model=request.model,
                    agent=request.agent,
                    variant=request.variant,
                    queue=options.queue,
                    mark=options.mark,
                    isolated=options.isolated,
                    fork=options.fork,
                    limits=request.limits,
                )
            except TurnInterrupted:
                raise
            except KeyboardInterrupt:
                raise TurnInterrupted("Stopped; the command had not been sent.") from None
        return self._shown(given, options)

    def _place(self, options: Namespace, request: PromptRequest) -> Session:
        """The session of a command; of an isolated one where it is to be."""
        from ..prompts.ask import existing_session, session_for, unmade_session

        client = self.state.client
        if not options.isolated:
            return session_for(client, request, self._observer(options, request))
        if options.fork and not options.session:
            return self.state.require_session()
        return existing_session(client, request) or unmade_session(client, request)

    def _shown(self, given: Dispatched, options: Namespace) -> CommandReceipt:
        """The receipt, after the turn was played that it tells of."""
        from ..prompts.ask import complete
        from ..sessions import commands

        def observe(notice: Notice) -> None:
            self._note(notice, options.out)

        self.state.track(given.session, "made" if options.isolated else "prompted")
        if given.run is None:
            return given.receipt
        runner = self._runner_of(options)
        complete(given.run, runner, observe)
        if options.no_wait:
            return given.receipt
        turn = given.run.turn
        if turn.outcome != "running" and (
            after := commands.follow_subagent_result(self.state.client, given)
        ):
            # The next cell would find the session at work.
            complete(after, runner, observe)
            self.state.remember_turn(turn, options.out)
        return commands.with_turn(given.receipt, turn)

    def _recover(self, options: Namespace) -> CommandReceipt:
        from ..sessions import commands
        from ..sessions.lookup import find_session

        client = self.state.client
        first = [find_session(client, options.session)] if options.session else []
        first = first or [t.session for t in self.state.tracked.values()]
        return self._shown(commands.recover(client, options.recover, first), options)

    def _given(self) -> pd.DataFrame:
        from .. import tables
        from ..sessions import commands

        return tables.recoverable(commands.list_sent_commands(self.state.client))


def _check_place(options: Namespace) -> None:
    if options.fork and not options.isolated:
        raise UsageError("--fork goes with --isolated; %oc_fork makes a fork to go on in.")
    if options.isolated and (options.new or options.title):
        raise UsageError("--isolated makes a session of its own: leave out --new and --title.")
    if options.isolated and options.session and not options.fork:
        raise UsageError("--isolated takes no session, but for a --fork of it.")
