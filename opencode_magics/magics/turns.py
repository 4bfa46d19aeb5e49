"""The base class of magics that run a turn: its request, its runner, and its place in the state."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from ..errors import OpenCodeError
from .options import check_turn_options
from .topic import Topic

if TYPE_CHECKING:
    from ..core.model import Attachment, Session
    from ..core.turn import Turn
    from ..notebook.answerer import Policy
    from ..notebook.live import View
    from ..prompts.ask import Notice, Observer, PromptRequest
    from ..prompts.runner import TurnRunner
    from ..sessions.run import Run


class TurnMagics(Topic):
    """Magics that send a prompt or command to a session and run its turn in the cell."""

    def _base_request(self, options: Namespace, text: str) -> PromptRequest:
        """Return a request with the text, model and agent of a line, but without a session."""
        from ..prompts.ask import PromptRequest

        return PromptRequest(
            text,
            model=options.model or self.state.model or None,
            agent=options.agent or self.state.agent or None,
            variant=options.variant,
            limits=self.state.limits,
        )

    def _prompt_request(self, options: Namespace, text: str) -> PromptRequest:
        """Return a request to the session that a line names, or to the current one."""
        return replace(
            self._base_request(options, text),
            session=options.session or self._current(options),
            title=options.title,
            delivery="queue" if options.queue else None,
        )

    def _with_answer_options(self, request: PromptRequest, options: Namespace) -> PromptRequest:
        """Add the options --file, --schema, --retries and --once of a line to a request."""
        from ..prompts import schema as schemas

        names = self.shell.user_ns
        return replace(
            request,
            schema=schemas.schema_by_name(options.schema, names) if options.schema else None,
            files=(*attachments(options.file), *request.files),
            retries=options.retries,
            once=options.once,
        )

    def _current(self, options: Namespace) -> Session | None:
        return None if options.new or options.title else self.state.session

    def _runner(
        self, permission: Policy | None, timeout: float | None = None, view: View | None = None
    ) -> TurnRunner:
        """Return a function that runs a turn in this cell.

        Args:
            permission: How to answer permissions; None uses the configured policy.
            timeout: Seconds after which the cell ends while the turn continues.
            view: The view that shows the turn; None uses that of the cell.
        """
        from ..notebook.cell import play

        answerer = self.state.answerer(permission)
        return partial(
            play,
            shell=self.shell,
            answerer=answerer,
            timeout=timeout,
            ui=self.state.ui,
            shown=view,
        )

    def _runner_of(self, options: Namespace) -> TurnRunner:
        """Return the runner for a line; with --no-wait, one that only sends the prompt."""
        if options.no_wait:
            return _send_only
        return self._runner(options.permission, options.timeout)

    def _observer(self, options: Namespace, request: PromptRequest) -> Observer:
        """Return an observer that tracks a request; a session that it selects becomes current."""
        from ..notebook.cell import show_recalled
        from ..prompts.ask import Recalled, Retrying, SessionCreated

        def observe(notice: Notice) -> None:
            if isinstance(notice, SessionCreated | Recalled) and request.session is None:
                self.state.session = notice.session
            if isinstance(notice, Recalled):
                show_recalled(notice.turn, self.shell)
            if isinstance(notice, Retrying):
                print(notice.reason)
            self._note(notice, options.out)

        return observe

    def _note(self, notice: Notice, out: str | None = None) -> None:
        """Track the session of a notice, and remember its turn."""
        from ..prompts.ask import Recalled, Sent, SessionCreated

        match notice:
            case SessionCreated(session):
                self.state.track(session, "made")
            case Recalled(session, turn):
                self.state.track(session, "chosen")
                self.state.remember_turn(turn, out)
            case Sent(session, turn):
                self.state.track(session, "prompted")
                self.state.remember_turn(turn, out)


def _send_only(run: Run) -> Turn:
    from ..prompts.runner import dispatch

    turn = dispatch(run)
    print(
        f"Sent to session {run.session.id}; the turn runs on the server.\n"
        "%oc_attach follows it; %oc_turn shows its progress."
    )
    if run.limits.ceilings:
        print("Cost limits apply only while a cell follows it.")
    return turn


def attachments(names: list[str]) -> tuple[Attachment, ...]:
    """Read the files of --file as attachments.

    Raises:
        UsageError: A file can't be sent.
    """
    from ..prompts.files import attachment

    try:
        return tuple(attachment(name) for name in names)
    except OpenCodeError as error:
        raise UsageError(f"--file {error.what} {error.todo}".rstrip()) from None


def check_prompt_options(options: Namespace) -> None:
    """Check the options that all of these magics share.

    Raises:
        UsageError: The options contradict each other, or one is invalid.
    """
    check_turn_options(options)
    if options.session and (options.new or options.title):
        raise UsageError(
            "Use either --session (an existing session) or --new and --title (a new one)."
        )


def check_retries(options: Namespace) -> None:
    """Check --retries, which belongs to --schema.

    Raises:
        UsageError: The number is negative.
    """
    if options.retries < 0:
        raise UsageError("--retries must be 0 or more.")
