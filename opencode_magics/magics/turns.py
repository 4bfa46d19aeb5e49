"""What the magics that play a turn share: what a line asks for, who answers, what is kept of it."""

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
    """Magics that send something to a session and play the turn that comes of it."""

    def _base_request(self, options: Namespace, text: str) -> PromptRequest:
        """Return the request of a line without where it goes: a text, and who answers it."""
        from ..prompts.ask import PromptRequest

        return PromptRequest(
            text,
            model=options.model or self.state.model or None,
            agent=options.agent or self.state.agent or None,
            variant=options.variant,
            limits=self.state.limits,
        )

    def _prompt_request(self, options: Namespace, text: str) -> PromptRequest:
        """Return the request of a line that names a session, or means the current one."""
        return replace(
            self._base_request(options, text),
            session=options.session or self._current(options),
            title=options.title,
            delivery="queue" if options.queue else None,
        )

    def _with_answer(self, request: PromptRequest, options: Namespace) -> PromptRequest:
        """Return a request with the files of a line, and with what it says about the answer."""
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
        self, permission: Policy | None, timeout: float | None = None, shown: View | None = None
    ) -> TurnRunner:
        """Return what plays a turn in this cell.

        Args:
            permission: What to do with permissions; None is what is configured.
            timeout: Seconds after which the cell ends while the turn goes on.
            shown: What shows the turn; None is the cell.
        """
        from ..notebook.cell import play

        answerer = self.state.answerer(permission)
        return partial(
            play,
            shell=self.shell,
            answerer=answerer,
            timeout=timeout,
            ui=self.state.ui,
            shown=shown,
        )

    def _runner_of(self, options: Namespace) -> TurnRunner:
        """Return what plays the turn of a line, or only sends its prompt for --no-wait."""
        if options.no_wait:
            return _send_only
        return self._runner(options.permission, options.timeout)

    def _observer(self, options: Namespace, request: PromptRequest) -> Observer:
        """Return what keeps track of a request; a session that it had to choose becomes current."""
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
        """Keep track of a session that was prompted, and of its turn."""
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
        "%oc_attach follows it, %oc_turn shows how far it is."
    )
    if run.limits.ceilings:
        print("Its cost is watched only while a cell follows it.")
    return turn


def attachments(names: list[str]) -> tuple[Attachment, ...]:
    """Return the files of --file, ready to send.

    Raises:
        UsageError: One can't be sent.
    """
    from ..prompts.files import attachment

    try:
        return tuple(attachment(name) for name in names)
    except OpenCodeError as error:
        raise UsageError(f"--file {error.what} {error.todo}".rstrip()) from None


def check_prompt_options(options: Namespace) -> None:
    """Check the options that all of them have.

    Raises:
        UsageError: They can't be what was meant.
    """
    check_turn_options(options)
    if options.session and (options.new or options.title):
        raise UsageError("--session names an old session; --new and --title make one.")


def check_retries(options: Namespace) -> None:
    """Check --retries, which goes with every --schema.

    Raises:
        UsageError: It is below 0.
    """
    if options.retries < 0:
        raise UsageError("--retries takes a number from 0 on")
