"""Ask an agent: one typed request in, its turn out.

A request says what to send and where. The `runner` follows the turn, and an optional observer is
notified of each step, such as a new session. Cells, `%%oc_map` and plain Python all use it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import get_args

from ..client.client import Client
from ..core import retry_safety
from ..core.limits import Limits, total_cost
from ..core.model import Attachment, Session
from ..core.turn import Turn
from ..dialects.base import Delivery
from ..errors import OpenCodeError, TurnInterrupted
from ..sessions import run as runs
from ..sessions.lookup import create_session, find_session, resolve_model_and_agent
from ..sessions.run import Run
from . import answered
from . import schema as schemas
from .answered import CachedAnswer, PromptKey
from .runner import TurnRunner, raise_for_outcome
from .schema import Schema


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """A prompt, its destination, and the options for its answer.

    Attributes:
        text: The prompt, sent verbatim.
        session: An existing session, or its id, a prefix of its id, or its title. None creates a
            new session.
        title: Title of the new session.
        directory: Directory of the new session; None uses the client's.
        model: `provider/model`; None uses the session's model.
        agent: The agent that answers; None uses the session's agent.
        variant: Variant of the model.
        files: Attachments.
        schema: The required form of the answer; `turn.value` is then the parsed answer.
        retries: The maximum number of retries after an answer that doesn't match the schema.
        limits: Limits that stop the turn. With a schema they cover all its turns together.
        delivery: What to do if the session is busy: "queue" the prompt after the current turn, or
            "steer" the current turn at its next step (2.x). None is an error.
        once: If the same prompt was answered before, return that turn and send nothing.

    Raises:
        ValueError: The values contradict each other.
    """

    text: str
    session: Session | str | None = None
    title: str | None = None
    directory: str | None = None
    model: str | None = None
    agent: str | None = None
    variant: str | None = None
    files: tuple[Attachment, ...] = ()
    schema: Schema | None = None
    retries: int = 2
    limits: Limits = field(default_factory=Limits)
    delivery: Delivery | None = None
    once: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.session, str):
            _check_name(self.session)
        if self.session is not None and (self.title or self.directory):
            raise ValueError("title and directory are only for a new session; omit them or session")
        if self.retries < 0:
            raise ValueError(f"retries must be 0 or more, not {self.retries}")
        if self.delivery is not None and self.delivery not in get_args(Delivery):
            raise ValueError(f'delivery must be "queue", "steer" or None, not {self.delivery!r}')


# -- notices for an observer -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionCreated:
    """A new session was created for the prompt."""

    session: Session


@dataclass(frozen=True, slots=True)
class Recalled:
    """The prompt was already answered by an earlier turn; nothing was sent."""

    session: Session
    turn: Turn


@dataclass(frozen=True, slots=True)
class Sent:
    """The prompt was sent, and this is its turn, however it ended."""

    session: Session
    turn: Turn


@dataclass(frozen=True, slots=True)
class Retrying:
    """The answer didn't match the schema and is requested again; `reason` says why."""

    reason: str


Notice = SessionCreated | Recalled | Sent | Retrying
Observer = Callable[[Notice], object]


def ignore(notice: Notice) -> None:
    """Ignore a notice."""


# -- asking ----------------------------------------------------------------------------------------


def ask(
    client: Client, request: PromptRequest, runner: TurnRunner, observer: Observer = ignore
) -> Turn:
    """Send a prompt and follow its turn; with a schema, retry until the answer matches it.

    Args:
        client: The server.
        request: The prompt and its options.
        runner: Starts and follows a prepared run.
        observer: Called with a notice of each step.

    Returns:
        The turn. With a schema its `value` is the parsed answer, and `earlier` has the previous
        attempts.

    Raises:
        TurnError: The turn failed, was cut off, or exceeded a limit; `.turn` is the turn.
        UnfitAnswer: No answer matched the schema; `.turns` are all attempts.
        TurnInterrupted: The user interrupted; the turn was stopped on the server.
        UnknownNameError: No such session, model, agent or variant.
        SessionBusyError: The session is working on another prompt.
        CostLimitError: A cost limit is already exceeded.
        OpenCodeError: Any other failure. `resend` says whether the prompt can be sent again.
    """
    if request.schema is None:
        return _answer(client, request, runner, observer)
    sent: list[Turn] = []
    where = request

    def note(notice: Notice) -> None:
        if isinstance(notice, Sent):
            sent.append(notice.turn)
        observer(notice)

    def send(text: str) -> Turn:
        nonlocal where
        limits = request.limits.after(total_cost(sent).known)
        turn = _answer(client, replace(where, text=text, limits=limits), runner, note)
        # The files were sent with the first prompt.
        where = replace(request, session=turn.session, title=None, directory=None, files=())
        return turn

    return schemas.ask_for_schema(
        send, request.text, request.schema, request.retries, lambda why: observer(Retrying(why))
    )


def _answer(client: Client, request: PromptRequest, runner: TurnRunner, observer: Observer) -> Turn:
    """Return the earlier answer if the request asks for one, or send the prompt and follow it."""
    try:
        session = existing_session(client, request)
        key = _prompt_key(client, request, session) if request.once else None
        if key and (earlier := _earlier(client, request, session, key)):
            observer(Recalled(earlier.session, earlier.turn))
            return earlier.turn
        session = session or _create_session(client, request, observer)
        run = runs.prepare(
            client,
            session,
            request.text,
            model=request.model,
            agent=request.agent,
            variant=request.variant,
            files=request.files,
            queue=request.delivery == "queue",
            steer=request.delivery == "steer",
            limits=request.limits,
        )
        if key:
            answered.save_prompt(client, session, key, run.prompt.id)
    except KeyboardInterrupt:
        raise TurnInterrupted("Stopped before the prompt was sent.") from None
    return complete(run, runner, observer)


def complete(run: Run, runner: TurnRunner, observer: Observer = ignore) -> Turn:
    """Follow a prepared run with a runner; raises like `ask` if its turn didn't succeed."""
    try:
        runner(run)
        raise_for_outcome(run.turn)
        return run.turn
    except (OpenCodeError, TurnInterrupted) as error:
        error.resend = retry_safety.assess_turn(run.turn, sent=run.sent)
        raise
    finally:
        if run.sent:
            observer(Sent(run.session, run.turn))


def _prompt_key(client: Client, request: PromptRequest, session: Session | None) -> PromptKey:
    """Return the cache key of the prompt as it would be sent now."""
    return answered.prompt_key(
        client,
        session or placeholder_session(client, request),
        request.text,
        request.files,
        model=request.model,
        agent=request.agent,
        variant=request.variant,
    )


def _earlier(
    client: Client, request: PromptRequest, session: Session | None, key: PromptKey
) -> CachedAnswer | None:
    if session is not None:
        return answered.find_in_session(client, session, key)
    return answered.find_in_directory(client, request.directory or client.directory, key)


# -- the session of a prompt -----------------------------------------------------------------------


def session_for(client: Client, request: PromptRequest, observer: Observer = ignore) -> Session:
    """Return the session of a request; create it if it is a new one.

    Raises:
        UnknownNameError: No such session, model, agent or variant; no session was created.
    """
    return existing_session(client, request) or _create_session(client, request, observer)


def existing_session(client: Client, request: PromptRequest) -> Session | None:
    """Return the session that a request names; None if it needs a new one.

    Raises:
        UnknownNameError: No session matches, or several do.
    """
    return None if request.session is None else named_session(client, request.session)


def named_session(client: Client, session: Session | str) -> Session:
    """Return a session by its id, a prefix of its id, or its title; a `Session` is returned as is.

    Raises:
        UnknownNameError: No session matches, or several do.
        ValueError: The name is empty.
    """
    if not isinstance(session, str):
        return session
    _check_name(session)
    return find_session(client, session)


def _check_name(session: str) -> None:
    """Check that the name of a session is not empty: an empty one would match every session.

    Raises:
        ValueError: The name is empty.
    """
    if not session.strip():
        raise ValueError("The name of a session is empty. Give an id or a title.")


def placeholder_session(client: Client, request: PromptRequest) -> Session:
    """Return a placeholder, without an id, for the session that a request will create."""
    return Session("", directory=request.directory or client.directory)


def _create_session(client: Client, request: PromptRequest, observer: Observer) -> Session:
    """Create a session, after checking the model, agent and variant of the request."""
    resolve_model_and_agent(
        client, placeholder_session(client, request), request.model, request.agent, request.variant
    )
    session = create_session(client, request.title, request.directory)
    observer(SessionCreated(session))
    return session
