"""What sessions do right now, and how sure that is.

`read` asks the server, `decide` concludes from what was read and from nothing else. The rules: a
directory is asked for its own sessions and the answer for all directories at once is never used;
idle is believed at once only after a finished answer, else after a second look; and what could not
be read is unknown, never idle.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from ..client.client import Client
from ..core.model import Message, Permission, Question, Session, Status
from ..core.outcome import is_at_rest
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
_AGAIN = 0.5  # seconds to the second look at a session that may only seem idle
_POLL = 0.5
_NEWEST = 4  # messages that are read to see how the last turn stands


@dataclass(frozen=True, slots=True)
class SessionReading:
    """What was read about one session, before anything is concluded.

    Attributes:
        status: What its directory said of it; None if it isn't among those at work there.
        tree: Ids of the session and its subagents, where anything in the directory is at work.
        others: Sessions of the tree below it that are at work.
        requests: What waits for a person in the whole tree.
        newest: Its newest messages, oldest first; None if they were not read.
        looks: How often it was looked at.
        error: Why the reading is not complete; "" if it is.
        unasked: What could not be read of what waits for a person; "" if all could.
        missing: The server has no such session.
        route: What was asked for the sessions that work, with {directory} where one was; "" where
            that failed.
        logs: What was asked for the retry of a session where that didn't tell, by its id.
        unlogged: The answer to that could not be read of one of them at least.
    """

    session: Session
    status: Status | None = None
    tree: frozenset[str] = frozenset()
    others: Mapping[str, Status] = field(default_factory=dict)
    requests: tuple[Permission | Question, ...] = ()
    newest: tuple[Message, ...] | None = None
    looks: int = 1
    error: str = ""
    unasked: str = ""
    missing: bool = False
    route: str = field(kw_only=True)
    logs: Mapping[str, str] = field(default_factory=dict)
    unlogged: bool = False

    @property
    def answer(self) -> Message | None:
        """The newest answer, None if there is none among the newest messages."""
        return next((m for m in reversed(self.newest or ()) if m.role == "assistant"), None)


@dataclass(frozen=True, slots=True)
class SessionState:
    """What a session does, and how that is known.

    Attributes:
        since: When that began, ms since the epoch; None where nobody tells.
        attempt, retry_at: Which retry comes next, and when (ms since the epoch).
        requests: What waits for a person, in the session and its subagents.
        subagents: How many of its subagents are at work.
        last_activity: When it was last heard of, ms since the epoch.
        evidence: Which calls said so.
        error: Why it isn't known; "" if it is.
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
        """Whether waiting longer is of no use: it is idle, or it waits for a person itself."""
        return self.state not in _AT_WORK


# -- concluding ------------------------------------------------------------------------------------


def unknown_session(name: str, why: str) -> SessionState:
    """What can be said of a session that no session was found for."""
    return SessionState(Session(name), "unknown", error=why, missing=True)


def derive_state(reading: SessionReading, ending: bool = False) -> SessionState:
    """What a session does, from what was read about it.

    Args:
        reading: What was read.
        ending: Somebody began to end it here, and that isn't finished.
    """
    session = reading.session
    state, evidence = _state(reading)
    if ending and not reading.missing:
        evidence = f"an end was begun and is not finished; {evidence}"
        state = "ending"
    _, retry = _retry(reading) if state == "retrying" else ("", None)
    complete = not (reading.error or reading.missing)
    if reading.unasked and state == "running":
        evidence += "; whether it waits for a person could not be read"
    if reading.unlogged and state == "running":
        evidence += "; whether it waits for a retry could not be read"
    return SessionState(
        session,
        state,
        since=session.updated if state in ("idle", "running", "stale") else None,
        attempt=retry.attempt if retry else None,
        retry_at=retry.next if retry else None,
        requests=reading.requests,
        subagents=len(reading.others) if complete else None,
        last_activity=_last_activity(reading),
        evidence=evidence,
        error=reading.error or reading.unasked,
        missing=reading.missing,
    )


def _state(reading: SessionReading) -> tuple[State, str]:
    """The state, and which calls said so."""
    asked = reading.route.format(directory=reading.session.directory)
    deleted = "; the session itself is deleted" if reading.missing else ""
    if reading.missing and reading.status is None:
        return "unknown", "the server has no such session"
    if reading.error and not reading.missing:
        return "unknown", "the server could not be read"
    if reading.status is None and not reading.others:
        return _at_rest(reading, asked)
    if any(isinstance(r, Permission) for r in reading.requests):
        return "waiting_for_permission", f"{_ids(reading.requests)} waits{deleted}"
    if reading.requests:
        return "waiting_for_question", f"{_ids(reading.requests)} waits{deleted}"
    waits, retry = _retry(reading)
    if retry is not None:
        told = reading.logs.get(waits, asked)
        return "retrying", f"{told}: {retry.message or 'retry'}{deleted}"
    if reading.status is not None:
        return "running", f"{asked}: busy{deleted}"
    return "running", f"{asked}: {', '.join(sorted(reading.others))} busy below it"


def _at_rest(reading: SessionReading, asked: str) -> tuple[State, str]:
    """Of a session that its directory doesn't list as being at work."""
    answer, quiet = reading.answer, f"{asked} does not list it"
    if reading.requests:  # 1.18.33 leaves them in its lists after an abort
        quiet += f", and {_ids(reading.requests)} is left from a turn that is over"
    if is_at_rest(reading.newest):
        return "idle", quiet
    if reading.looks < 2:
        return "unknown", f"{quiet}, once; its last turn has no end yet"
    if answer is not None and answer.completed is None:
        return "stale", f"{quiet}, twice, but its answer {answer.id} was never finished"
    return "idle", f"{quiet}, twice"


def _retry(reading: SessionReading) -> tuple[str, Status | None]:
    """Which waits for a retry, the session or one of its subagents, and for which."""
    known = ((reading.session.id, reading.status), *reading.others.items())
    return next(((k, s) for k, s in known if s is not None and s.name == "retry"), ("", None))


def _ids(requests: Iterable[Permission | Question]) -> str:
    return ", ".join(r.id for r in requests)


def _last_activity(reading: SessionReading) -> int | None:
    times = [m.completed or m.created for m in reading.newest or ()]
    return max((t for t in (*times, reading.session.updated) if t is not None), default=None)


# -- reading ---------------------------------------------------------------------------------------


def read_states(
    client: Client, sessions: Sequence[Session], ending: Iterable[str] = ()
) -> tuple[SessionState, ...]:
    """What sessions do, in the order given; one that can't be read doesn't spoil the others.

    Args:
        client: Their server.
        sessions: Which; each is asked for in its own directory.
        ending: Ids of those that somebody began to end here.
    """
    readings = _look(client, sessions)
    doubtful = [s for s in sessions if derive_state(readings[s.id]).state == "unknown"]
    doubtful = [s for s in doubtful if not (readings[s.id].error or readings[s.id].missing)]
    if doubtful:
        time.sleep(_AGAIN)
        readings |= {k: replace(r, looks=2) for k, r in _look(client, doubtful).items()}
    begun = set(ending)
    return tuple(derive_state(readings[s.id], s.id in begun) for s in sessions)


def _look(client: Client, sessions: Sequence[Session]) -> dict[str, SessionReading]:
    """One look at every session; its directory is read first, so the rest is no older."""
    readings: dict[str, SessionReading] = {}
    for directory in dict.fromkeys(s.directory for s in sessions):
        within = [s for s in sessions if s.directory == directory]
        try:
            scene = _Scene.of(client, directory)
        except OpenCodeError as error:
            readings |= {s.id: SessionReading(s, error=error.what, route="") for s in within}
        else:
            readings |= {s.id: scene.reading(client, s) for s in within}
    return readings


@dataclass(frozen=True, slots=True)
class _Scene:
    """What a directory says of all its sessions at once."""

    statuses: dict[str, Status]
    requests: tuple[Permission | Question, ...]
    unasked: str = ""

    @classmethod
    def of(cls, client: Client, directory: str) -> _Scene:
        statuses = {k: s for k, s in client.statuses(directory).items() if s.name != "idle"}
        unread: list[str] = []
        permissions, questions = waiting_or_known_requests(client, directory, None, unread.append)
        return cls(statuses, (*permissions, *questions), " ".join(unread))

    @property
    def quiet(self) -> bool:
        return not (self.statuses or self.requests)

    def reading(self, client: Client, session: Session) -> SessionReading:
        status = self.statuses.get(session.id)
        told = partial(SessionReading, route=client.dialect.busy_route)
        try:
            now = client.session(session.id)
            below = () if self.quiet else tuple(s.id for s in descendants(client, now, 0))
            newest = _newest(client, now)
        except NotFoundError:
            gone, asked = "the server has no such session", self._asked(frozenset({session.id}))
            return told(session, status, requests=asked, missing=True, error=gone)
        except OpenCodeError as error:
            return told(session, status, error=error.what)
        tree = frozenset({session.id, *below})
        asked = self._asked(tree)
        busy = {k: s for k, s in self.statuses.items() if k in tree}
        retries = _Retries() if asked else _Retries.of(client, busy)
        busy |= retries.found
        status = busy.pop(session.id, None)
        return told(
            now, status, tree, busy, asked, newest, unasked=self.unasked,
            logs=retries.logs, unlogged=retries.unlogged,
        )  # fmt: skip

    def _asked(self, tree: frozenset[str]) -> tuple[Permission | Question, ...]:
        return tuple(r for r in self.requests if r.session in tree)


@dataclass(frozen=True, slots=True)
class _Retries:
    """What waits for a retry among busy sessions, as their logs tell where their status doesn't."""

    found: dict[str, Status] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    unlogged: bool = False

    @classmethod
    def of(cls, client: Client, busy: Mapping[str, Status]) -> _Retries:
        found: dict[str, Status | None] = {}
        unlogged = False
        for key in (k for k, s in busy.items() if s.name == "busy"):
            try:
                found[key] = client.run(client.dialect.pending_retry(Session(key)))
            except OpenCodeError:  # that it works is known
                unlogged = True
        known = {k: s for k, s in found.items() if s is not None}
        logs = {k: client.dialect.log(k, None, False).path for k in known}
        return cls(known, logs, unlogged)


def _newest(client: Client, session: Session) -> tuple[Message, ...] | None:
    """The newest messages; None of a session whose messages the server can't read itself.

    1.18.33 answers 400 for good once a prompt had a JSON schema as its format.
    """
    try:
        return client.run(client.dialect.latest_messages(session, _NEWEST))
    except NotFoundError:
        raise
    except StatusError as error:
        if error.status != 400:
            raise
        return None


def busy_sessions(client: Client, directory: str) -> tuple[Session, ...]:
    """The topmost sessions of a directory below which something works, or waits for a person.

    One that was deleted while it worked is still at work on 1.x; of that only its id is known.
    """
    scene = _Scene.of(client, directory)
    found: dict[str, Session] = {}
    for session in (*scene.statuses, *(r.session for r in scene.requests)):
        top = _root(client, session, directory)
        if same_directory(top.directory, directory):  # 2.x tells of all directories at once
            found[top.id] = top
    return tuple(found.values())


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
    """How a wait ended: `reason` is "condition" or "deadline"."""

    states: tuple[SessionState, ...]
    reason: Literal["condition", "deadline"]
    elapsed: float

    @property
    def ready(self) -> tuple[str, ...]:
        """Ids of sessions that need no more waiting: idle, or waiting for a person."""
        return tuple(s.session.id for s in self.states if s.ready)

    @property
    def pending(self) -> tuple[str, ...]:
        """Ids of sessions that are still at work, or that can't be read right now."""
        return tuple(s.session.id for s in self.states if not s.ready and not s.missing)


def wait(
    client: Client,
    sessions: Sequence[Session],
    mode: Mode,
    timeout: float,
    *,
    ending: Iterable[str] = (),
    on_reading: Callable[[tuple[SessionState, ...]], None] = lambda standings: None,
) -> WaitResult:
    """Wait until any or all of some sessions need no more waiting.

    Args:
        client: Their server.
        sessions: Which; those that don't exist are not waited for.
        mode: "any" or "all".
        timeout: Seconds after which it ends in any case.
        ending: Ids of those that somebody began to end here.
        on_reading: Called with every reading.
    """
    began = time.monotonic()
    while True:
        waited = WaitResult(
            read_states(client, sessions, ending), "condition", time.monotonic() - began
        )
        on_reading(waited.states)
        if not waited.pending or (mode == "any" and waited.ready):
            return waited
        if waited.elapsed >= timeout:
            return replace(waited, reason="deadline")
        time.sleep(min(_POLL, max(timeout - waited.elapsed, 0.0)))
