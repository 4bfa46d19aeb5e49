"""Find out what became of a command, from any notebook and at any later time. Nothing is sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from ..client.client import Client
from ..core.model import Message, Session
from ..dialects.base import Prompt
from ..errors import NotFoundError, UnknownNameError
from .command_effects import child_session, observe_later
from .command_records import Record, invocation_of, records_in
from .commands import Dispatched, follow_effects, receipt_of, receipt_of_prompt
from .correlate import AdmittedInput, Correlation, Invocation
from .run import Run


def recover(client: Client, invocation: str, sessions: Sequence[Session] = ()) -> Dispatched:
    """Look up the effects of a command, from any notebook. Nothing is sent.

    Args:
        client: The server.
        invocation: The id from the command's receipt.
        sessions: The sessions to search first, before all others on the server.

    Returns:
        The receipt as of now, and for a matched command a run that follows its turn.

    Raises:
        UnknownNameError: No session of this server has a record of the command.
        ServerConnectionError: The server doesn't answer.
        StatusError: The server refused a read.
    """
    candidates = _candidates(client, invocation, sessions)
    if client.dialect.command_keeps_prompt_id:
        return _recover_prompt(client, invocation, candidates)
    for session in candidates:
        if record := records_in(session.id, session.metadata).get(invocation):
            return _recover(client, session, invocation_of(invocation, record), record)
    raise _unknown(invocation)


def _candidates(client: Client, invocation: str, sessions: Sequence[Session]) -> Iterator[Session]:
    """Yield sessions that may have a record of a command, starting with `sessions`."""
    for session in sessions:
        with suppress(NotFoundError):
            yield client.session(session.id)
    if invocation.startswith("ses_"):
        with suppress(NotFoundError):
            yield client.session(invocation)
        return
    tried = {s.id for s in sessions}
    as_prompt = client.dialect.command_keeps_prompt_id
    for session in client.sessions(everywhere=True):
        recorded = as_prompt or invocation in records_in(session.id, session.metadata)
        if session.id not in tried and recorded:
            yield session


def _unknown(invocation: str) -> UnknownNameError:
    return UnknownNameError(
        f"No session of this server has a record of command {invocation!r}.",
        "%oc_command --given lists the recorded commands.",
    )


def _recover_prompt(client: Client, invocation: str, candidates: Iterator[Session]) -> Dispatched:
    for session in candidates:
        message: Message | None = None
        with suppress(NotFoundError):
            message = client.run(client.dialect.message(session, invocation))
        if message is not None:
            run = Run(client, session, Prompt(message.id, message.text), running=True, queued=True)
            return Dispatched(receipt_of_prompt(session, invocation, ""), session, run)
    raise _unknown(invocation)


def _recover(
    client: Client, session: Session, invocation: Invocation, record: Record
) -> Dispatched:
    """Return the effects saved when the command was sent; without any, correlate now."""
    correlation = _saved(client, session, record) or observe_later(
        client, session, invocation, record
    )
    if record.get("status") == "none" and correlation.status == "ambiguous":
        # What came later belongs to somebody else, unless it has the invocation's id.
        reason = "nothing was admitted while the server ran it"
        correlation = Correlation("none", evidence=(reason,))
    return Dispatched(
        receipt_of(session, invocation, correlation),
        session,
        follow_effects(client, session, correlation, queued=True),
    )


def _saved(client: Client, session: Session, record: Record) -> Correlation | None:
    """The effects in a record, if it was matched."""
    inputs = tuple(AdmittedInput(key) for key in record.get("inputs") or ())
    children = tuple(
        child_session(client, client.session(key)) for key in record.get("children") or ()
    )
    if not inputs and not children:
        return None
    return Correlation("matched", inputs, children, ("it was matched when it was sent",))
