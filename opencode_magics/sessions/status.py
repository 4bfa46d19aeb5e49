"""Determine the current states of sessions, with the evidence for each.

`read_states` reads from the server; `derive_state` uses only these readings.
Three rules apply: busy sessions are listed per directory, since the list for all directories is
unreliable; without a finished answer, a session counts as idle only after a second look; and if
something can't be read, the state is unknown, never idle.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from ..client.client import Client, optional
from ..core.model import Message, Permission, Question, Session, Status
from ..core.outcome import is_at_rest, with_pending_retry
from ..errors import NotFoundError, OpenCodeError, StatusError
from .lookup import same_directory
from .store import descendants, waiting_or_known_requests

State = Literal[
    "idle",
    "running",
    "retrying",
    "waiting_for_permission",
    "waiting_for_question",
    "ending",
    "stale",
    "unknown",
]
Mode = Literal["any", "all"]

_AT_WORK = ("running", "retrying", "ending", "unknown")
_SECOND_LOOK = 0.5  # seconds before the second look at a session that seems idle
_POLL = 0.5  # seconds between two readings while waiting
_NEWEST = 4  # messages that are read to see whether the last turn has ended


@dataclass(frozen=True, slots=True)
class SessionReading:
    """What the server reported about one session.

    Attributes:
        status: Its status in its directory; None if it isn't listed as busy.
        tree: Ids of the session and its subagents, if anything in the directory is busy.
        subagents: Statuses of its busy subagents, by session id.
        requests: Pending permissions and questions of the whole tree.
        newest: Its newest messages, oldest first; None if they were not read.
        unreadable: Whether the server itself can't read its messages.
        looks: The number of readings that agree.
        error: Why the reading is incomplete; "" if it is complete.
        requests_error: Why pending requests could not be read; "" if they were read.
        missing: Whether the server has no such session.
        route: The request that lists busy sessions, with a {directory} field; "" if it failed.
    """

    session: Session
    status: Status | None = None
    tree: frozenset[str] = frozenset()
    subagents: Mapping[str, Status] = field(default_factory=dict)
    requests: tuple[Permission | Question, ...] = ()
    newest: tuple[Message, ...] | None = None
    unreadable: bool = False
    looks: int = 1
    error: str = ""
    requests_error: str = ""
    missing: bool = False
    route: str = field(kw_only=True)

    @property
    def answer(self) -> Message | None:
        """The newest answer among the newest messages, if there is one."""
        return next((m for m in reversed(self.newest or ()) if m.role == "assistant"), None)


@dataclass(frozen=True, slots=True)
class SessionState:
    """The state of a session, and the evidence for it.

    Attributes:
        since: When the state began, in ms since the epoch; None if unknown.
        attempt, retry_at: The number of the next retry, and its time (ms since the epoch).
        requests: Pending permissions and questions of the session and its subagents.
        subagents: The number of busy subagents.
        last_activity: The time of the last sign of activity, in ms since the epoch.
        evidence: The requests and replies that support the state.
        error: Why the state is unknown or incomplete; "" if it is complete.
        missing: Whether the server has no such session.
    """

    session: Session
    state: State
    since: int | None = None
    attempt: int | None = None
    retry_at: int | None = None
    requests: tuple[Permission | Question, ...] = ()
    subagents: int | None = None
    last_activity: int | None = None
    evidence: str = ""
    error: str = ""
    missing: bool = False

    @property
    def ready(self) -> bool:
        """Whether there is nothing to wait for: it is idle, stale, or waiting for a person."""
        return self.state not in _AT_WORK


# -- deriving --------------------------------------------------------------------------------------


def unknown_session(name: str, why: str) -> SessionState:
    """Return the state for a name that matches no session; `why` is its error."""
    return SessionState(Session(name), "unknown", error=why, missing=True)


def derive_state(reading: SessionReading, ending: bool = False) -> SessionState:
    """Derive the state of a session from a reading.

    Args:
        reading: The reading.
        ending: Whether this process has begun to end the session, and has not finished.
    """
    session = reading.session
    state, evidence = _state(reading)
    if ending and not reading.missing:
        evidence = f"ending it was started and is not finished; {evidence}"
        state = "ending"
    retry = _retry(reading) if state == "retrying" else None
    complete = not (reading.error or reading.missing)
    if reading.requests_error and state == "running":
        evidence += "; its pending requests could not be read"
    if reading.unreadable and state == "running":
        evidence += "; its messages could not be read"
    return SessionState(
        session,
        state,
        since=session.updated if state in ("idle", "running", "stale") else None,
        attempt=retry.attempt if retry else None,
        retry_at=retry.next if retry else None,
        requests=reading.requests,
        subagents=len(reading.subagents) if complete else None,
        last_activity=_last_activity(reading),
        evidence=evidence,
        error=reading.error or reading.requests_error,
        missing=reading.missing,
    )


def _state(reading: SessionReading) -> tuple[State, str]:
    """Return the state, and the evidence for it."""
    route = reading.route.format(directory=reading.session.directory)
    deleted = "; the session itself is deleted" if reading.missing else ""
    if reading.missing and reading.status is None:
        return "unknown", "the server has no such session"
    if reading.error and not reading.missing:
        return "unknown", "the server could not be read"
    if reading.status is None and not reading.subagents:
        return _state_if_unlisted(reading, route)
    if any(isinstance(r, Permission) for r in reading.requests):
        return "waiting_for_permission", f"pending: {_ids(reading.requests)}{deleted}"
    if reading.requests:
        return "waiting_for_question", f"pending: {_ids(reading.requests)}{deleted}"
    if retry := _retry(reading):
        return "retrying", f"{route}: busy, waiting to retry: {retry.message or '?'}{deleted}"
    if reading.status is not None:
        return "running", f"{route}: busy{deleted}"
    return "running", f"{route}: subagents {', '.join(sorted(reading.subagents))} busy"


def _state_if_unlisted(reading: SessionReading, route: str) -> tuple[State, str]:
    """The state and evidence of a session that its directory doesn't list as busy."""
    answer, evidence = reading.answer, f"{route} does not list it"
    if reading.requests:  # 1.18.33 leaves them in its lists after an abort
        evidence += f", and {_ids(reading.requests)} is left from a turn that is over"
    if is_at_rest(reading.newest):
        return "idle", evidence
    if reading.looks < 2:
        return "unknown", f"{evidence}, once; its last turn is unfinished"
    if answer is not None and answer.completed is None:
        return "stale", f"{evidence}, twice, but its answer {answer.id} was never finished"
    return "idle", f"{evidence}, twice"


def _retry(reading: SessionReading) -> Status | None:
    """The retry that the session or one of its subagents is waiting for."""
    known = (reading.status, *reading.subagents.values())
    return next((s for s in known if s is not None and s.name == "retry"), None)


def _ids(requests: Iterable[Permission | Question]) -> str:
    return ", ".join(r.id for r in requests)


def _last_activity(reading: SessionReading) -> int | None:
    times = [m.completed or m.created for m in reading.newest or ()]
    return max((t for t in (*times, reading.session.updated) if t is not None), default=None)


# -- reading ---------------------------------------------------------------------------------------


def read_states(
    client: Client, sessions: Sequence[Session], ending: Iterable[str] = ()
) -> tuple[SessionState, ...]:
    """Read the states of sessions, in their order; one that can't be read doesn't affect others.

    Args:
        client: The sessions' server.
        sessions: The sessions; each is read in its own directory.
        ending: Ids of sessions that this process has begun to end, and not finished.
    """
    readings = _read(client, sessions)
    doubtful = [s for s in sessions if derive_state(readings[s.id]).state == "unknown"]
    doubtful = [s for s in doubtful if not (readings[s.id].error or readings[s.id].missing)]
    if doubtful:
        time.sleep(_SECOND_LOOK)
        readings |= {k: replace(r, looks=2) for k, r in _read(client, doubtful).items()}
    ending = set(ending)
    return tuple(derive_state(readings[s.id], s.id in ending) for s in sessions)


def _read(client: Client, sessions: Sequence[Session]) -> dict[str, SessionReading]:
    """Read every session once, after the listing of its directory, so that it is no older."""
    readings: dict[str, SessionReading] = {}
    for directory in dict.fromkeys(s.directory for s in sessions):
        within = [s for s in sessions if s.directory == directory]
        try:
            listing = _Listing.read(client, directory)
        except OpenCodeError as error:
            readings |= {s.id: SessionReading(s, error=error.what, route="") for s in within}
        else:
            readings |= {s.id: listing.reading(client, s) for s in within}
    return readings


@dataclass(frozen=True, slots=True)
class _Listing:
    """The statuses and pending requests of all sessions of a directory."""

    statuses: dict[str, Status]
    requests: tuple[Permission | Question, ...]
    requests_error: str = ""

    @classmethod
    def read(cls, client: Client, directory: str) -> _Listing:
        statuses = {k: s for k, s in client.statuses(directory).items() if s.name != "idle"}
        errors: list[str] = []
        permissions, questions = waiting_or_known_requests(client, directory, None, errors.append)
        return cls(statuses, (*permissions, *questions), " ".join(errors))

    @property
    def quiet(self) -> bool:
        return not (self.statuses or self.requests)

    def reading(self, client: Client, session: Session) -> SessionReading:
        status = self.statuses.get(session.id)
        reading = partial(SessionReading, route=client.dialect.busy_route)
        try:
            now = client.session(session.id)
            below = () if self.quiet else tuple(s.id for s in descendants(client, now, 0))
            newest = _newest(client, now)
        except NotFoundError:
            error, requests = "the server has no such session", self._of(frozenset({session.id}))
            return reading(session, status, requests=requests, missing=True, error=error)
        except OpenCodeError as failure:
            return reading(session, status, error=failure.what)
        tree = frozenset({session.id, *below})
        requests = self._of(tree)
        busy = {k: s for k, s in self.statuses.items() if k in tree}
        for key in busy:
            known = newest if key == now.id else _newest_below(client, now, key)
            busy[key] = with_pending_retry(busy[key], known or (), int(time.time() * 1000))
        status = busy.pop(session.id, None)
        return reading(
            now, status, tree, busy, requests, newest, newest is None,
            requests_error=self.requests_error,
        )  # fmt: skip

    def _of(self, tree: frozenset[str]) -> tuple[Permission | Question, ...]:
        return tuple(r for r in self.requests if r.session in tree)


def _newest(client: Client, session: Session) -> tuple[Message, ...] | None:
    """The newest messages; None if the server itself can't read the session's messages.

    1.18.33 replies 400 forever after a prompt with a JSON Schema as its format.
    """
    try:
        return client.run(client.dialect.latest_messages(session, _NEWEST))
    except NotFoundError:
        raise
    except StatusError as error:
        if error.status != 400:
            raise
        return None


def _newest_below(client: Client, session: Session, key: str) -> tuple[Message, ...]:
    """The newest message of a subagent's session; none if it can't be read."""
    below = Session(key, directory=session.directory)
    return optional(lambda: client.run(client.dialect.latest_messages(below, 1)), ())


def busy_sessions(client: Client, directory: str) -> tuple[Session, ...]:
    """The root sessions of a directory whose tree is busy or has a pending request.

    On 1.x a session that was deleted while busy continues; only its id is known.
    """
    listing = _Listing.read(client, directory)
    roots: dict[str, Session] = {}
    for session in (*listing.statuses, *(r.session for r in listing.requests)):
        root = _root(client, session, directory)
        if same_directory(root.directory, directory):  # 2.x lists all directories at once
            roots[root.id] = root
    return tuple(roots.values())


def _root(client: Client, session: str, directory: str) -> Session:
    line: list[Session] = []
    current: str | None = session
    while current is not None and not any(s.id == current for s in line):
        try:
            line.append(client.session(current))
        except NotFoundError:
            break
        current = line[-1].parent
    return line[-1] if line else Session(session, directory=directory)


# -- waiting ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WaitResult:
    """The result of a wait: `reason` is "condition" (fulfilled) or "deadline" (timed out)."""

    states: tuple[SessionState, ...]
    reason: Literal["condition", "deadline"]
    elapsed: float

    @property
    def ready(self) -> tuple[str, ...]:
        """Ids of sessions with nothing to wait for: idle, stale, or waiting for a person."""
        return tuple(s.session.id for s in self.states if s.ready)

    @property
    def pending(self) -> tuple[str, ...]:
        """Ids of sessions that are still busy, or can't be read right now."""
        return tuple(s.session.id for s in self.states if not s.ready and not s.missing)


def wait(
    client: Client,
    sessions: Sequence[Session],
    mode: Mode,
    timeout: float,
    *,
    ending: Iterable[str] = (),
    on_reading: Callable[[tuple[SessionState, ...]], None] = lambda states: None,
) -> WaitResult:
    """Wait until any or all of some sessions are idle, stale, or waiting for a person.

    Args:
        client: The sessions' server.
        sessions: The sessions; missing ones are not waited for.
        mode: "any" or "all".
        timeout: Maximum duration, in seconds.
        ending: Ids of sessions that this process has begun to end, and not finished.
        on_reading: Called with the states after every reading.
    """
    began = time.monotonic()
    while True:
        result = WaitResult(
            read_states(client, sessions, ending), "condition", time.monotonic() - began
        )
        on_reading(result.states)
        if not result.pending or (mode == "any" and result.ready):
            return result
        if result.elapsed >= timeout:
            return replace(result, reason="deadline")
        time.sleep(min(_POLL, max(timeout - result.elapsed, 0.0)))
