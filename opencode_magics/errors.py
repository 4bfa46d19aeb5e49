"""The errors of this package.

* OpenCodeError
  - ServerConnectionError     no reply, or the connection broke
  - ServerStartError          `opencode serve` did not start
  - StatusError               the server replied with an error
    + AuthenticationError     401: the password is missing or wrong
    + NotFoundError           404
    + SessionBusyError        409, or the session is running another prompt
  - StreamError               the event stream could not be decoded
  - InsecureError             a password would be sent over plain http; nothing was sent
  - UnsupportedServerError    the address is not a supported OpenCode server
  - UnsupportedOperation      this server generation doesn't support the operation
  - UnknownNameError          no such session, model, agent, column, time zone, ...
  - MissingPackageError       an optional package is not installed
  - AnswerNeeded              a permission or question came up that nobody can answer
  - InvalidAnswer             an answer that its question doesn't accept
  - CostLimitError            a cost limit is already exceeded; nothing was sent
  - RecordingError            a recording can't be written, read or replayed
  - TurnError                 a turn did not succeed; `.turn` is the turn as received
    + UnfitAnswer             no answer matched the schema; `.turns` are all attempts

A message says what failed, with its name, and then what to do. IPython shows only these lines,
without a traceback.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Return a text of a server without what a terminal might interpret, such as colors."""
    return _UNPRINTABLE.sub("", text)


class ResendAdvice(Protocol):
    """Interface of `core.retry_safety.RetrySafety`: can a failed request be sent again?"""

    @property
    def execution_state(self) -> str:
        """not_sent, running, stopped, or unknown."""

    @property
    def resend_safety(self) -> str:
        """safe, no_effects_seen, inspect, or unknown."""

    @property
    def evidence(self) -> tuple[str, ...]:
        """The observations that support the advice."""


class OpenCodeError(Exception):
    """Base of all errors of this package.

    `resend` is the advice on sending the failed request again; None if there was no request.

    Args:
        what: One sentence: what failed, with its name.
        todo: One sentence: what to do about it; "" if nothing can be done.
    """

    resend: ResendAdvice | None = None

    def __init__(self, what: str, todo: str = "") -> None:
        what, todo = printable(what), printable(todo)
        super().__init__(what, todo)
        self.what = what
        self.todo = todo

    def __str__(self) -> str:
        return f"{self.what}\n{self.todo}" if self.todo else self.what

    def _render_traceback_(self) -> list[str]:
        # IPython calls this, if it exists, instead of formatting a traceback.
        todo = " ".join(str(t) for t in (self.todo, self.resend) if t)
        return [f"{type(self).__name__}: {self.what}", *([todo] if todo else [])]


class ServerConnectionError(OpenCodeError):
    """The server could not be reached, or the connection broke before the reply.

    `sent` is False if the request certainly did not reach the server.
    """

    def __init__(self, what: str, todo: str = "", *, sent: bool = True) -> None:
        super().__init__(what, todo)
        self.sent = sent


class ServerStartError(OpenCodeError):
    """`opencode serve` could not be started or did not answer in time."""


class StatusError(OpenCodeError):
    """The server replied to a request with an error.

    Attributes:
        status: The HTTP status.
        name: The server's name for the error; "" if it sent none.
        reason: The server's message; "" if it sent none.
    """

    def __init__(
        self, what: str, todo: str = "", *, status: int, name: str = "", reason: str = ""
    ) -> None:
        super().__init__(what, todo)
        self.status = status
        self.name = name
        self.reason = reason

    @property
    def permanent(self) -> bool:
        """Whether the same request will fail again: the server itself refused it."""
        return 400 <= self.status < 500 and self.status not in (408, 425, 429)


class AuthenticationError(StatusError):
    """The password is missing or wrong."""


class NotFoundError(StatusError):
    """The server has no such resource."""


class SessionBusyError(StatusError):
    """The session is running another prompt."""


class StreamError(OpenCodeError):
    """The event stream could not be decoded."""


class InsecureError(OpenCodeError):
    """A password would be sent to another machine over plain http. Nothing was sent."""


class UnsupportedServerError(OpenCodeError):
    """The address answers, but not as a supported OpenCode server."""


class UnsupportedOperation(OpenCodeError):  # noqa: N818 - the field's term (io.UnsupportedOperation)
    """This server generation doesn't support the operation."""


class UnknownNameError(OpenCodeError):
    """Nothing has that name: a session, a model, an agent, a time zone, ..."""


class MissingPackageError(OpenCodeError):
    """An optional package that the operation needs is not installed."""


class AnswerNeeded(OpenCodeError):  # noqa: N818 - a state, not a fault
    """A permission or question came up, nobody can answer, and the policy is "error"."""


class InvalidAnswer(OpenCodeError):  # noqa: N818 - a state, not a fault
    """An answer that its question doesn't accept. Nothing was sent."""


class CostLimitError(OpenCodeError):
    """A cost limit is already exceeded. Nothing was sent."""


class RecordingError(OpenCodeError):
    """A recording that can't be written, read or replayed."""


class TurnError(OpenCodeError):
    """A turn that failed, was interrupted, or whose outcome is unknown.

    Attributes:
        turn: The `core.turn.Turn` as received. (Typed as `Any`, because this module imports
            nothing; annotate a variable with `Turn` to have it checked.)
    """

    def __init__(self, what: str, todo: str = "", *, turn: Any) -> None:
        super().__init__(what, todo)
        self.turn = turn


class UnfitAnswer(TurnError):  # noqa: N818 - a state, not a fault
    """No answer matched the schema; `turns` are the turns of all attempts."""

    def __init__(self, what: str, todo: str = "", *, turns: tuple[Any, ...]) -> None:
        super().__init__(what, todo, turn=turns[-1])
        self.turns = turns


class TurnInterrupted(KeyboardInterrupt):
    """The cell was interrupted; displayed as one line, and queued cells are not run.

    `turn` is the `core.turn.Turn` at that time, None if there was none yet; `resend` is the advice
    on sending its prompt again (`sys.last_value.resend`).
    """

    resend: ResendAdvice | None = None

    def __init__(self, what: str, *, turn: Any | None = None) -> None:
        super().__init__(what)
        self.turn = turn

    def _render_traceback_(self) -> list[str]:
        return [str(self)]
