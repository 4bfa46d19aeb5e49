"""Stop a turn on the server, and confirm that it stopped."""

from __future__ import annotations

import threading
from contextlib import suppress

from ..client.client import Client
from ..core.model import Failure, Session
from ..core.outcome import is_stopped_by_abort
from ..core.turn import LIMIT_EXCEEDED, Turn
from ..errors import OpenCodeError, UnsupportedOperation
from .deliver import PromptDelivery
from .follow import Follower
from .progress import Progress
from .store import STOP_TIMEOUT, abort_until_idle, reject_requests


class Stop:
    """Stops one turn: withdraws its prompt if it is still in the inbox, or aborts its session."""

    def __init__(
        self,
        client: Client,
        session: Session,
        progress: Progress,
        delivery: PromptDelivery,
        follower: Follower,
    ) -> None:
        self._client = client
        self._session = session
        self._progress = progress
        self._delivery = delivery
        self._follower = follower
        self._request: threading.Thread | None = None
        self._withdrawn = False
        self._withdrawal_error: OpenCodeError | None = None

    def abort(self, why: str) -> Turn:
        """Stop the turn, confirm that, and read its final state; see `Run.abort`."""
        limit = Failure(LIMIT_EXCEEDED, why) if why else None
        if not self._delivery.sent:
            return self._progress.end("aborted", limit)
        before = self._progress.turn
        self.request().join()
        if self._withdrawn:
            return self._progress.end("aborted", limit)
        if self._withdrawal_error is not None:
            return self._unconfirmed(self._withdrawal_error.what, why)
        try:
            if not abort_until_idle(
                self._client, self._session, lambda: self._progress.turn.tree, STOP_TIMEOUT
            ):
                reason = f"it was not seen to stop within {STOP_TIMEOUT:.0f} s"
                return self._unconfirmed(reason, why)
            reject_requests(self._client, self._session.directory, self._progress.turn.tree)
            self._progress.add([self._follower.reread()])
        except OpenCodeError as error:
            return self._unconfirmed(error.what, why)
        turn = self._progress.turn
        if is_stopped_by_abort(
            turn.outcome, answered=bool(turn.answers), before=before.tools, after=turn.tools
        ):
            return self._progress.end("aborted", limit)
        return turn

    def request(self) -> threading.Thread:
        """Send the abort in a thread that finishes even if nobody waits for it. Works once."""

        def run() -> None:
            try:
                self._withdrawn = self._withdraw()
            except OpenCodeError as error:
                self._withdrawal_error = error
                return
            if not self._withdrawn:
                with suppress(OpenCodeError):
                    self._client.abort(self._session)
                    reject_requests(self._client, self._session.directory, self._progress.turn.tree)

        if self._request is None:
            self._request = threading.Thread(target=run, name="opencode-abort", daemon=True)
            self._request.start()
        return self._request

    def _withdraw(self) -> bool:
        """Withdraw the prompt if it may be in the inbox; return whether it was withdrawn."""
        turn = self._progress.turn
        waits = any(m.id == turn.prompt for m in turn.inbox)
        if waits or (turn.queued and not turn.stored):
            with suppress(UnsupportedOperation):  # 1.x has no inbox: both turns are stopped there
                return self._client.run(self._client.dialect.cancel(self._session, turn.prompt))
        return False

    def _unconfirmed(self, reason: str, why: str) -> Turn:
        message = f"the stop is unconfirmed ({why}): {reason}" if why else reason
        return self._progress.end("unknown", Failure("AbortUnconfirmed", message))
