"""Deliver a prompt exactly once, and confirm that the server has it.

A prompt is never sent twice: if the reply is lost or inconclusive, the message is read back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NoReturn

from ..client.client import Client
from ..core.events import MessageChanged, PartChanged
from ..core.model import Failure, Session
from ..core.retry_safety import GATEWAY_STATUSES
from ..dialects.base import Prompt
from ..errors import (
    NotFoundError,
    OpenCodeError,
    ServerConnectionError,
    StatusError,
    StreamError,
    TurnError,
)
from .progress import Progress

_CONFIRM_REFUSAL = 3.0  # seconds to look for a prompt after an error reply
_CONFIRM_SENT = 5.0  # seconds to look for a prompt after a lost reply
_PATIENCE = 60.0  # seconds to wait for a server that doesn't answer at all


class PromptDelivery:
    """The delivery of one prompt to the server.

    Attributes:
        prompt: The prompt.
        sent: Whether the server has the prompt or may have it.
    """

    def __init__(
        self, client: Client, session: Session, prompt: Prompt, progress: Progress, *, sent: bool
    ) -> None:
        self.prompt = prompt
        self.sent = sent
        self._client = client
        self._session = session
        self._progress = progress

    def send(self) -> None:
        """Send the prompt, once.

        Raises:
            StatusError: The server refused it.
            ServerConnectionError: No server was reached; the prompt was not sent.
            TurnError: It is unknown whether it arrived.
        """
        self.sent = True
        try:
            self._post()
        except StatusError as error:
            self._refused(error)
        except StreamError as error:
            self._fail_unconfirmed(error, answered=True)
        except ServerConnectionError as error:
            self.sent = error.sent
            if not error.sent:
                self.not_sent(error)
                raise
            self.confirm(cause=error)

    def not_sent(self, error: OpenCodeError) -> None:
        """End the turn as failed, since its prompt was not sent."""
        self._progress.end("failed", Failure("NotSent", error.what))

    def confirm(self, cause: Exception | None = None) -> None:
        """Read the prompt back from the server.

        Raises:
            TurnError: The server doesn't list it, or doesn't reply.
        """
        stored = self._is_stored(within=_CONFIRM_SENT)
        deadline = time.monotonic() + _PATIENCE
        while stored is None and time.monotonic() < deadline:
            stored = self._is_stored(within=1.0)
        if not stored:
            self._fail_unconfirmed(cause, answered=stored is not None)

    def _post(self) -> None:
        """Post the prompt. Don't wait for the reply to a command: it may come only after its turn.

        A command's template may run shell commands before there is a prompt.
        """
        if self.prompt.command is None:
            self._client.prompt(self._session, self.prompt)
            return
        sending, failed = send_in_thread(
            lambda: self._client.run(self._client.dialect.command(self._session, self.prompt))
        )
        while sending.is_alive() and not self._is_stored(within=0.2):
            pass
        if failed and not self._progress.turn.stored:
            raise failed[0]

    def _refused(self, error: StatusError) -> None:
        """Handle an error reply from the server, or from a gateway that may have forwarded it."""
        by_server = bool(error.name) and error.status not in GATEWAY_STATUSES
        # 409 on 2.x: a prompt with this id exists.
        conclusive = by_server and error.status < 500 and error.status != 409
        stored = False if conclusive else self._is_stored(within=_CONFIRM_REFUSAL)
        if stored:
            return
        if stored is None or not by_server:
            self._fail_unconfirmed(error, answered=stored is not None)
        self.sent = False
        self._progress.end("failed", Failure(error.name or type(error).__name__, error.what))
        raise error

    def _is_stored(self, within: float) -> bool | None:
        """Look for the prompt on the server; None if the last attempt got no answer."""
        deadline = time.monotonic() + within
        while True:
            try:
                message = self._client.run(
                    self._client.dialect.message(self._session, self.prompt.id)
                )
            except OpenCodeError as error:
                stored = False if isinstance(error, NotFoundError) else None
            else:
                parts = [PartChanged(message.session, message.id, p) for p in message.parts]
                self._progress.add([MessageChanged(message), *parts])
                return True
            time.sleep(0.2)
            if time.monotonic() >= deadline:
                return stored

    def _fail_unconfirmed(self, cause: Exception | None, *, answered: bool) -> NoReturn:
        why = "the server doesn't list the prompt" if answered else "the server doesn't answer"
        turn = self._progress.end("unknown", Failure("PromptUnconfirmed", why))
        raise TurnError(
            f"It is unknown whether session {self._session.id} has the prompt: {why}. "
            "It was sent once.",
            "Check the session before you send it again.",
            turn=turn,
        ) from cause


def send_in_thread(send: Callable[[], None]) -> tuple[threading.Thread, list[OpenCodeError]]:
    """Call `send` in a new thread.

    Returns:
        The thread, and a list that contains the error if it failed.
    """
    failed: list[OpenCodeError] = []

    def run() -> None:
        try:
            send()
        except OpenCodeError as error:
            failed.append(error)

    sending = threading.Thread(target=run, name="opencode-send", daemon=True)
    sending.start()
    return sending, failed
