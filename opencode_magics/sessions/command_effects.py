"""Observe what a command does to its session (2.x): new inputs and new subagents.

The server admits a command's prompt before it replies, and announces it on the event stream. The
store has the same inputs, but not the order among other changes, so both are read. No durable log
is needed: real servers (2.0.8 to 2.0.24) keep none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile

from ..client.client import Client
from ..core.model import Message, Session, SessionEvent
from ..dialects.base import Dialect
from ..dialects.jsonwire import decode_frame
from ..errors import StreamError
from .command_records import Record, records_in
from .correlate import (
    AdmittedInput,
    ChildSession,
    Correlation,
    Invocation,
    admitted_inputs,
    agent_started,
    correlate,
    is_admitted,
    stored_input,
    subagent_source,
    waiting_input,
)

LATE = 3.0  # seconds in which a command whose response was lost may still show an effect
_ANNOUNCED = 1.0  # seconds in which the stream announces what the store already has
_IN_FLIGHT = 60_000  # ms in which a command that was never confirmed may still arrive
_NEWEST = 50  # messages that are compared before and after


class LiveEvents:
    """The events of one session, from the frames of an open stream."""

    def __init__(self, dialect: Dialect, session: str) -> None:
        self._dialect = dialect
        self._session = session
        self._events: dict[int, SessionEvent] = {}

    def frame(self, text: str) -> None:
        """Add the event in a frame. Called by the thread that reads the stream."""
        with suppress(StreamError):  # the owner of the stream receives it as a problem
            event = self._dialect.session_event(decode_frame(text))
            if event is not None and event.session == self._session:
                self._events.setdefault(event.seq, event)

    def __iter__(self) -> Iterator[SessionEvent]:
        yield from list(self._events.values())


@dataclass(frozen=True, slots=True)
class Baseline:
    """A session before a command is sent.

    Attributes:
        last: The id of its newest message; None if it has none.
        waiting: Ids of the items in its inbox.
        inputs: Ids of its newest inputs, waiting ones included.
        children: Ids of its child sessions.
        born: When the newest of these was created (ms since the epoch).
        busy: Whether an agent is at work.
        records: Records of the commands that were sent to it.
    """

    last: str | None
    waiting: tuple[str, ...]
    inputs: frozenset[str]
    children: frozenset[str]
    born: int
    busy: bool
    records: dict[str, Record]

    @classmethod
    def read(cls, client: Client, session: Session) -> Baseline:
        """Read the state of a session."""
        messages, inputs = _newest(client, session)
        below = client.run(client.dialect.children(session))
        stored = {m.id for m in messages}
        return cls(
            last=messages[-1].id if messages else None,
            waiting=tuple(i.id for i in inputs if i.id not in stored),
            inputs=frozenset(i.id for i in inputs),
            children=frozenset(c.id for c in below),
            born=max((c.created or 0 for c in below), default=0),
            busy=session.id in client.statuses(session.directory),
            records=records_in(session.id, client.session(session.id).metadata),
        )

    @property
    def fields(self) -> Record:
        """The fields by which a later reader can tell what is new."""
        return {"last": self.last, "waiting": [*self.waiting], "born": self.born}


def observe(
    client: Client,
    session: Session,
    invocation: Invocation,
    before: Baseline,
    live: LiveEvents,
    *,
    answered: bool,
) -> Correlation:
    """Correlate a command with its effects, for 3 s at most if its response was lost."""
    deadline = time.monotonic() + (_ANNOUNCED if answered else LATE)
    while True:
        stored = [i for i in _newest(client, session)[1] if i.id not in before.inputs]
        events = [*live]
        announced = {i.id: i for i in admitted_inputs(events) if i.id not in before.inputs}
        inputs = announced | {i.id: announced.get(i.id, i) for i in stored}
        below = client.run(client.dialect.children(session))
        children = [child_session(client, c) for c in below if c.id not in before.children]
        complete = all(i.id in announced for i in stored)
        competing = _in_flight(before, invocation) | _sent_meanwhile(session, before, events)
        if not complete:  # the stream broke, so the order is unknown
            now = client.session(session.id).metadata
            competing |= records_in(session.id, now).keys() - before.records.keys()
        correlation = correlate(
            invocation,
            [*inputs.values()],
            children,
            answered=answered,
            competing=competing - {invocation.id},
            agent_busy=before.busy or agent_started(events),
        )
        settled = correlation.status == "matched" or (answered and complete)
        if settled or time.monotonic() >= deadline:
            return correlation
        time.sleep(0.1)


def observe_later(
    client: Client, session: Session, invocation: Invocation, record: Record
) -> Correlation:
    """Correlate a command with the effects that its session shows at any later time."""
    queued = _waiting(client, session)
    messages = client.messages(session)
    known = [n for n, m in enumerate(messages) if m.id == record.get("last")]
    waiting = record.get("waiting")
    earlier = set(waiting) if isinstance(waiting, list) else set()
    if known:
        since = messages[known[0] + 1 :]
    else:  # its newest message was removed, or the record is of version 0.2.0
        since = tuple(m for m in messages if (m.created or 0) >= (invocation.at or 0))
    inputs = [i for i in _inputs(since, queued) if i.id not in earlier]
    born = record.get("born")
    born = born if isinstance(born, int) else (invocation.at or 0) - 1
    below = [c for c in client.run(client.dialect.children(session)) if (c.created or 0) > born]
    children = [child_session(client, c) for c in below]
    return correlate(invocation, inputs, children, answered=False)


def child_session(client: Client, session: Session) -> ChildSession:
    """Read a child session with its first prompt."""
    prompts = (i for i in _newest(client, session)[1] if i.kind == "user")
    first = next(prompts, AdmittedInput(""))
    return ChildSession(session.id, session.title, first.id, first.text)


def subagent_results(client: Client, session: Session) -> dict[str, AdmittedInput]:
    """The newest inputs that deliver the result of a subagent, by the subagent's session."""
    inputs = _newest(client, session)[1]
    return {i.subagent_session: i for i in inputs if i.subagent_session}


def _newest(client: Client, session: Session) -> tuple[tuple[Message, ...], list[AdmittedInput]]:
    """The newest messages of a session, and its newest inputs, oldest first."""
    # The inbox first: an item that is delivered in between is then in both.
    waiting = _waiting(client, session)
    messages = client.run(client.dialect.latest_messages(session, _NEWEST))
    return messages, _inputs(messages, waiting)


def _waiting(client: Client, session: Session) -> list[AdmittedInput]:
    return [waiting_input(i) for i in client.run(client.dialect.inbox(session))]


def _inputs(messages: tuple[Message, ...], waiting: list[AdmittedInput]) -> list[AdmittedInput]:
    """The inputs among some messages and in the inbox."""
    stored = [i for i in map(stored_input, messages) if i is not None]
    ids = {i.id for i in stored}
    return [*stored, *(i for i in waiting if i.id not in ids)]


def _in_flight(before: Baseline, invocation: Invocation) -> set[str]:
    """Ids of commands sent up to a minute before, whose effects are not known yet."""
    recent = (invocation.at or 0) - _IN_FLIGHT
    return {
        key
        for key, record in before.records.items()
        if not record.get("settled") and (record.get("at") or 0) >= recent
    }


def _sent_meanwhile(session: Session, before: Baseline, events: list[SessionEvent]) -> set[str]:
    """Ids of commands that were recorded since. A command's effects follow its record."""
    earlier = takewhile(lambda e: not is_admitted(e) or subagent_source(e.metadata), events)
    new = {key for event in earlier for key in records_in(session.id, event.metadata)}
    return new - before.records.keys()
