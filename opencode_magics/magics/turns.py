"""What the magics that play a turn share: where it goes, who answers, what is kept of it."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from ..errors import OpenCodeError, TurnInterrupted
from .options import check_turn_options
from .topic import Topic

if TYPE_CHECKING:
    from ..core.model import Session
    from ..core.turn import Turn
    from ..notebook.live import View
    from ..sessions.run import Run


class TurnMagics(Topic):
    """Magics that send something to a session and play the turn that comes of it."""

    def _names(self, options: Namespace) -> dict[str, str | None]:
        """Who is to answer, as far as anybody said so."""
        return {
            "model": options.model or self.state.model or None,
            "agent": options.agent or self.state.agent or None,
            "variant": options.variant,
        }

    def _play(
        self,
        run: Run,
        options: Namespace,
        shown: View | None = None,
        sent: list[Turn] | None = None,
    ) -> Turn:
        """Send what a run has to send, and play its turn in the cell.

        Args:
            run: The turn to be.
            options: The line's.
            shown: What shows it; else the cell.
            sent: Where the turn is noted if it was sent, however it ends.
        """
        from ..core import retry_safety
        from ..notebook.cell import play, raise_for_outcome

        try:
            if options.no_wait:
                with run:
                    run.start()
                    run.confirm_stored()
                print(
                    f"Sent to session {run.session.id}; the turn runs on the server.\n"
                    "%oc_attach follows it, %oc_turn shows how far it is."
                )
                if run.limits.ceilings:
                    print("Its cost is watched only while a cell follows it.")
            else:
                answerer = self.state.answerer(options.permission)
                play(run, self.shell, answerer, options.timeout, self.state.ui, shown)
            raise_for_outcome(run.turn)
            return run.turn
        except (OpenCodeError, TurnInterrupted) as error:
            error.resend = retry_safety.assess_turn(run.turn, sent=run.sent)
            raise
        finally:
            if run.sent:
                self.state.track(run.session, "prompted")
                self.state.remember_turn(run.turn, options.out)
                if sent is not None:
                    sent.append(run.turn)

    def _old_session(self, options: Namespace) -> Session | None:
        """The session that a prompt goes to, None if one would be made."""
        from ..sessions.lookup import find_session

        if options.session:
            return find_session(self.state.client, options.session)
        return None if options.new or options.title else self.state.session

    def _no_session(self) -> Session:
        """A session that is still to be made."""
        from ..core.model import Session

        return Session("", directory=self.state.client.directory)

    def _session(self, options: Namespace, names: dict[str, str | None]) -> Session:
        """The session to send to; a new one is made only for names that the server has."""
        from ..sessions.lookup import create_session, resolve_model_and_agent

        client = self.state.client
        if old := self._old_session(options):
            return old
        resolve_model_and_agent(client, self._no_session(), **names)
        self.state.session = create_session(client, options.title)
        return self.state.track(self.state.session, "made")


def check_prompt_options(options: Namespace) -> None:
    """Check the options that all of them have.

    Raises:
        UsageError: They can't be what was meant.
    """
    check_turn_options(options)
    if options.session and (options.new or options.title):
        raise UsageError("--session names an old session; --new and --title make one.")
