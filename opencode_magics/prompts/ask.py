"""Ask an agent: one typed request in, its turn out.

A request says what to send and where. How the turn is followed is the runner's business
(`follow`), and who wants to know what was done on the way, such as a new session, passes an
observer. Cells, `%%oc_map` and plain Python all come here.
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
    """A prompt, where to send it, and what may come of it.

    Attributes:
        text: The prompt, sent exactly as it is.
        session: An existing session, or its id, the beginning of it, or its title. None makes a
            new session.
        title: Title of the new session.
        directory: Directory of the new session; None is the client's.
        model: `provider/model`; None is the session's own.
        agent: Who answers; None is the session's own.
        variant: Variant of the model.
        files: Attachments.
        schema: What the answer has to look like; `turn.value` is then the answer as a value.
        retries: How often to ask again for an answer that fits the schema.
        limits: What stops the turn. With a schema they hold for all its turns together.
        delivery: How to prompt a session that works on another prompt: "queue" after that turn,
            "steer" into it at its next step (2.x). None is an error then.
        once: Return the turn that answered this prompt before, if there is one, and send nothing.

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
            raise ValueError("session is an existing one; title and directory are for a new one")
        if self.retries < 0:
            raise ValueError(f"retries takes a number from 0 on, not {self.retries}")
        if self.delivery is not None and self.delivery not in get_args(Delivery):
            raise ValueError(f'delivery takes "queue", "steer" or None, not {self.delivery!r}')


# -- what an observer hears ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionMade:
    """A new session was made for the prompt."""

    session: Session


@dataclass(frozen=True, slots=True)
class Recalled:
    """The prompt was answered before, by this turn; nothing was sent."""

    session: Session
    turn: Turn


@dataclass(frozen=True, slots=True)
class Sent:
    """The prompt was sent, and this is its turn, however it ended."""

    session: Session
    turn: Turn


@dataclass(frozen=True, slots=True)
class Retrying:
    """The answer didn't fit the schema; another one is asked for. `reason` says which and why."""

    reason: str


Notice = SessionMade | Recalled | Sent | Retrying
Observer = Callable[[Notice], object]


def ignore(notice: Notice) -> None:
    """Observe nothing."""


# -- asking ----------------------------------------------------------------------------------------


def ask(
    client: Client, request: PromptRequest, runner: TurnRunner, observer: Observer = ignore
) -> Turn:
    """Have a prompt answered, and again until the answer fits the schema, if it has one.

    Args:
        client: The server.
        request: What to send, and where.
        runner: Sends and follows the prepared run; the run is not started yet.
        observer: Hears what was done on the way.

    Returns:
        The turn. With a schema its `value` is the answer, and `earlier` has the turns before it.

    Raises:
        TurnError: The turn failed, was cut off, or passed a limit; `.turn` is the turn.
        UnfitAnswer: No answer fits the schema; `.turns` has all of them.
        TurnInterrupted: The user interrupted; the turn was stopped on the server.
        UnknownNameError: No such session, model, agent or variant.
        SessionBusyError: The session works on another prompt.
        CostLimitError: What may be spent is spent.
        OpenCodeError: Anything else. `resend` says whether the prompt can be sent again.
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
        # The files went with the first prompt.
        where = replace(request, session=turn.session, title=None, directory=None, files=())
        return turn

    return schemas.ask_for_schema(
        send, request.text, request.schema, request.retries, lambda why: observer(Retrying(why))
    )


def _answer(client: Client, request: PromptRequest, runner: TurnRunner, observer: Observer) -> Turn:
    """Return an earlier answer if the request allows one, else send the prompt and follow it."""
    try:
        session = existing_session(client, request)
        key = _prompt_key(client, request, session) if request.once else None
        if key and (earlier := _earlier(client, request, session, key)):
            observer(Recalled(earlier.session, earlier.turn))
            return earlier.turn
        session = session or _make_session(client, request, observer)
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
        raise TurnInterrupted("Stopped; the prompt had not been sent.") from None
    return complete(run, runner, observer)


def complete(run: Run, runner: TurnRunner, observer: Observer = ignore) -> Turn:
    """Have a prepared run followed, and raise if its turn didn't end well; `ask` has the errors."""
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
    """Return the prompt as it would be sent now."""
    return answered.prompt_key(
        client,
        session or unmade_session(client, request),
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


# -- where a prompt goes ---------------------------------------------------------------------------


def session_for(client: Client, request: PromptRequest, observer: Observer = ignore) -> Session:
    """Return the session that a request goes to; make it if it is a new one.

    Raises:
        UnknownNameError: No such session, model, agent or variant; no session was made.
    """
    return existing_session(client, request) or _make_session(client, request, observer)


def existing_session(client: Client, request: PromptRequest) -> Session | None:
    """Return the session that a request names, None if it needs a new one.

    Raises:
        UnknownNameError: No session fits, or more than one does.
    """
    return None if request.session is None else named_session(client, request.session)


def named_session(client: Client, session: Session | str) -> Session:
    """Return the session of an id, the beginning of an id, or a title; a session is itself.

    Raises:
        UnknownNameError: No session fits, or more than one does.
        ValueError: The name is empty.
    """
    if not isinstance(session, str):
        return session
    _check_name(session)
    return find_session(client, session)


def _check_name(session: str) -> None:
    """Check the name of a session: an empty one, as of an unset variable, would fit every one.

    Raises:
        ValueError: It is empty.
    """
    if not session.strip():
        raise ValueError("The name of a session is empty. Give an id or a title.")


def unmade_session(client: Client, request: PromptRequest) -> Session:
    """Return the new session of a request as it is before it is made: without an id."""
    return Session("", directory=request.directory or client.directory)


def _make_session(client: Client, request: PromptRequest, observer: Observer) -> Session:
    """Make a new session, once the server is known to have all that the request names."""
    resolve_model_and_agent(
        client, unmade_session(client, request), request.model, request.agent, request.variant
    )
    session = create_session(client, request.title, request.directory)
    observer(SessionMade(session))
    return session
