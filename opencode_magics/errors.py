"""Everything that can go wrong, as one tree.

* OpenCodeError
  - ServerConnectionError     no answer, or the connection broke
  - ServerStartError          `opencode serve` did not start
  - StatusError               the server answered, and said no
    + AuthenticationError     401: a password is needed, or it is wrong
    + NotFoundError           404
    + SessionBusyError        409, or a session that works on another prompt
  - StreamError               the event stream said something unreadable
  - UnsupportedServerError    something answers there, but it can't be spoken to
  - UnsupportedOperation      this server generation can't do that
  - UnknownNameError          no such session, model, agent, column, time zone, ...
  - MissingPackageError       a package that this needs, of one of the extras
  - AnswerNeeded              a permission or question, and nobody may answer it
  - InvalidAnswer             an answer that its question can't take
  - CostLimitError            a cost that may not be passed is passed; nothing was sent
  - RecordingError            a recording that can't be written, read or played
  - TurnError                 a turn that did not succeed; `.turn` is what was received
    + UnfitAnswer             answers that did not fit their schema; `.turns` are all of them

Each error is written for the person at the prompt: what failed, with its name, then what to do.
In IPython it shows as those lines, without a traceback.
"""

from __future__ import annotations

from typing import Any, Protocol


class ResendAdvice(Protocol):
    """Whether a request that failed can be sent again: a `RetrySafety` of `core.retry_safety`."""

    @property
    def execution_state(self) -> str:
        """not_sent, running, stopped, or unknown."""

    @property
    def resend_safety(self) -> str:
        """safe, no_effects_seen, inspect, or unknown."""

    @property
    def evidence(self) -> tuple[str, ...]:
        """The observations behind it."""


class OpenCodeError(Exception):
    """Base of all errors of this package.

    `resend` says whether the failed request can be sent again; None if nothing was to be sent.

    Args:
        what: One sentence: what failed, with its name.
        todo: One sentence: what to do about it. Empty if there is nothing to do.
    """

    resend: ResendAdvice | None = None

    def __init__(self, what: str, todo: str = "") -> None:
        super().__init__(what, todo)
        self.what = what
        self.todo = todo

    def __str__(self) -> str:
        return f"{self.what}\n{self.todo}" if self.todo else self.what

    def _render_traceback_(self) -> list[str]:
        # IPython asks an exception for this before it formats a traceback.
        todo = " ".join(str(t) for t in (self.todo, self.resend) if t)
        return [f"{type(self).__name__}: {self.what}", *([todo] if todo else [])]


class ServerConnectionError(OpenCodeError):
    """The server could not be reached, or the connection broke before the answer.

    `sent` is False when the request certainly never reached the server.
    """

    def __init__(self, what: str, todo: str = "", *, sent: bool = True) -> None:
        super().__init__(what, todo)
        self.sent = sent


class ServerStartError(OpenCodeError):
    """An `opencode serve` of our own did not come up."""


class StatusError(OpenCodeError):
    """The server answered a request with an error.

    Attributes:
        status: The HTTP status.
        name: The server's own name of the error, "" if it gave none.
        reason: The server's own words, "" if it gave none.
    """

    def __init__(
        self, what: str, todo: str = "", *, status: int, name: str = "", reason: str = ""
    ) -> None:
        super().__init__(what, todo)
        self.status = status
        self.name = name
        self.reason = reason


class AuthenticationError(StatusError):
    """A password is needed, or the one given is wrong."""


class NotFoundError(StatusError):
    """The server knows no such thing."""


class SessionBusyError(StatusError):
    """The session works on another prompt."""


class StreamError(OpenCodeError):
    """The event stream carried something that can't be read."""


class UnsupportedServerError(OpenCodeError):
    """Something answers at the address, but it is no server this package can speak to."""


class UnsupportedOperation(OpenCodeError):  # noqa: N818 - the field's term (io.UnsupportedOperation)
    """This server generation can't do that."""


class UnknownNameError(OpenCodeError):
    """There is nothing of that name: a session, a model, an agent, a time zone, ..."""


class MissingPackageError(OpenCodeError):
    """What was asked for needs a package that is not installed here."""


class AnswerNeeded(OpenCodeError):  # noqa: N818 - a state, not a fault
    """A permission or a question came up, nobody can answer, and the policy is "error"."""


class InvalidAnswer(OpenCodeError):  # noqa: N818 - a state, not a fault
    """An answer that its question can't take. Nothing was sent."""


class CostLimitError(OpenCodeError):
    """A prompt that may cost nothing more: what was spent passed a limit. Nothing was sent."""


class RecordingError(OpenCodeError):
    """A recording of turns that can't be written, read or played."""


class TurnError(OpenCodeError):
    """A turn that failed, was interrupted, or whose end is unknown.

    Attributes:
        turn: The `core.turn.Turn` with everything that was received. (Its type is `Any`, because
            this module imports nothing; annotate a variable with `Turn` to have it checked.)
    """

    def __init__(self, what: str, todo: str = "", *, turn: Any) -> None:
        super().__init__(what, todo)
        self.turn = turn


class UnfitAnswer(TurnError):  # noqa: N818 - a state, not a fault
    """No answer matched the schema; `turns` has the turn of the prompt and those of its retries."""

    def __init__(self, what: str, todo: str = "", *, turns: tuple[Any, ...]) -> None:
        super().__init__(what, todo, turn=turns[-1])
        self.turns = turns


class TurnInterrupted(KeyboardInterrupt):
    """A person stopped the cell; shows as one quiet line, and queued cells don't run.

    `turn` is the `core.turn.Turn` as it was when it stopped, None if there was none yet; `resend`
    says whether its prompt can be sent again (`sys.last_value.resend`).
    """

    resend: ResendAdvice | None = None

    def __init__(self, what: str, *, turn: Any | None = None) -> None:
        super().__init__(what)
        self.turn = turn

    def _render_traceback_(self) -> list[str]:
        return [str(self)]
