"""The magic that runs OpenCode commands: %%oc_command."""

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
    """Run OpenCode commands"""

    @no_var_expand
    @documented_arguments
    @target_options
    @argument(
        "--isolated",
        action="store_true",
        help="Run in a separate session, where the result is never ambiguous.",
    )
    @argument("--fork", action="store_true", help="With --isolated: use a fork of the session.")
    @argument(
        "--mark",
        action="store_true",
        help="Append the invocation id to the arguments, to identify the result (2.x).",
    )
    @argument(
        "--recover",
        metavar="INVOCATION",
        help="Look up the result of an earlier command; nothing is sent.",
    )
    @argument("--given", action="store_true", help="List the commands that can be recovered (2.x).")
    @argument("-m", "--model", help="provider/model; default: the command's, else the session's.")
    @argument("--agent", help="Agent that answers; default: the command's, else the session's.")
    @variant_option
    @turn_options
    @queue_option
    @no_wait_option
    @argument("name", nargs="?", help="The command's name.")
    @line_cell_magic
    def oc_command(
        self, line: str, cell: str | None = None
    ) -> CommandReceipt | pd.DataFrame | None:
        """The answer to an OpenCode command, live, and a receipt of the command.

        The text after the name, or the body of the cell, is passed to the command as its
        arguments, exactly as typed. You answer permissions and questions in the cell, an interrupt
        stops the agent, and `%oc_turn` returns the turn afterwards.

        Returns a `CommandReceipt`: `.turn` and `.text` are the result, `.invocation` is the id of
        the command, `.inputs` and `.children` are the prompts and subagents that it started,
        `.status` and `.evidence` say how certain that is, and `.resend_safety` says whether it can
        be sent again. A command is never sent twice.

        On OpenCode 1.x the prompt of a command has a known id: the status is always `matched`. On
        OpenCode 2.x it has none. A prompt or subagent that the session started at that time
        belongs to the command if it contains the invocation id (--mark, for commands that repeat
        their arguments). It probably does if it contains the arguments (8 characters or more) and
        other text, or if it is a subagent with the command's title; if nothing else was started;
        and if no notebook sent another command. Otherwise the status is `ambiguous` or `none`, and
        no turn is shown. With --isolated the result is certain unless somebody else writes into
        the command's own session. For a subtask, `.turn` is the subagent's turn; the session's own
        turn about it is shown below.

        Example::

            %oc_command review greet.py

            receipt = %oc_command --isolated --fork review greet.py
            receipt
        """
        options, name, text = self._parse(line, cell)
        if options is None:
            return None
        if options.given:
            return self._list_sent()
        if options.recover:
            return self._recover(options)
        return self._send_command(options, name, text)

    def _parse(self, line: str, cell: str | None) -> tuple[Namespace | None, str, str]:
        """Return the options, the command's name, and the arguments to send."""
        if cell is None:
            options, rest = split(self.oc_command, line, verbatim=True)
            name, _, text = rest.partition(" ")
        else:
            options, text = parse(self.oc_command, line), cell.removesuffix("\n")
            name = (options and options.name) or ""
        if options is None:
            return None, "", ""
        if name == "%%oc_command":
            raise UsageError("%%oc_command must be the first line of its cell.")
        sends_nothing = options.recover or options.given
        if name and sends_nothing:
            raise UsageError("--recover and --given take no command, because they send nothing.")
        if not name and not sends_nothing:
            raise UsageError("Name a command. For example: %oc_command review greet.py")
        check_prompt_options(options)
        _check_target(options)
        return options, name, text

    def _send_command(self, options: Namespace, name: str, text: str) -> CommandReceipt:
        from ..notebook.interrupts import interruptible
        from ..sessions import commands

        request = self._prompt_request(options, text)
        with interruptible():
            try:
                dispatched = commands.send_command(
                    self.state.client,
                    self._target(options, request),
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
                raise TurnInterrupted("Stopped before the command was sent.") from None
        return self._follow(dispatched, options)

    def _target(self, options: Namespace, request: PromptRequest) -> Session:
        """Return the session to send to; with --isolated, the one to fork or a placeholder."""
        from ..prompts.ask import existing_session, placeholder_session, session_for

        client = self.state.client
        if not options.isolated:
            return session_for(client, request, self._observer(options, request))
        if options.fork and not options.session:
            return self.state.require_session()
        return existing_session(client, request) or placeholder_session(client, request)

    def _follow(self, dispatched: Dispatched, options: Namespace) -> CommandReceipt:
        """Follow the turn of a command in the cell and return its receipt."""
        from ..prompts.ask import complete
        from ..sessions import commands

        def observe(notice: Notice) -> None:
            self._note(notice, options.out)

        self.state.track(dispatched.session, "made" if options.isolated else "prompted")
        if dispatched.run is None:
            return dispatched.receipt
        runner = self._runner_of(options)
        complete(dispatched.run, runner, observe)
        if options.no_wait:
            return dispatched.receipt
        turn = dispatched.run.turn
        if turn.outcome != "running" and (
            parent_run := commands.follow_subagent_result(self.state.client, dispatched)
        ):
            # Without this, the session would still be busy in the next cell.
            complete(parent_run, runner, observe)
            self.state.remember_turn(turn, options.out)
        return commands.with_turn(dispatched.receipt, turn)

    def _recover(self, options: Namespace) -> CommandReceipt:
        from ..sessions.lookup import find_session
        from ..sessions.recover import recover

        client = self.state.client
        sessions = [find_session(client, options.session)] if options.session else []
        sessions = sessions or [t.session for t in self.state.tracked.values()]
        return self._follow(recover(client, options.recover, sessions), options)

    def _list_sent(self) -> pd.DataFrame:
        from .. import tables
        from ..sessions.command_records import list_sent_commands

        return tables.recoverable(list_sent_commands(self.state.client))


def _check_target(options: Namespace) -> None:
    if options.fork and not options.isolated:
        raise UsageError("--fork requires --isolated. To continue in a fork, use %oc_fork.")
    if options.isolated and (options.new or options.title):
        raise UsageError("--isolated always uses a new session: leave out --new and --title.")
    if options.isolated and options.session and not options.fork:
        raise UsageError("--isolated takes --session only together with --fork.")
