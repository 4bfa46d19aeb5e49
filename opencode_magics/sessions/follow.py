"""Follow a turn: take events from the stream, and read the store where they aren't enough.

The stream doesn't repeat events missed while it was down, and doesn't announce that a turn is over.
So after every gap, whenever the session is idle and after a long silence, the store is read and
compared; `polling` decides when.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from ..client.client import Client
from ..client.stream import Connected, Disconnected, Stream, StreamProblem
from ..core.events import (
    Event,
    PartChanged,
    PermissionAsked,
    QuestionAsked,
    SessionChanged,
    SessionFailed,
    StatusChanged,
    StoreSnapshot,
)
from ..core.fold import judge_idle_turn
from ..core.model import Failure, Session, Status
from ..dialects.base import logger
from ..errors import NotFoundError, OpenCodeError, ServerConnectionError, StatusError
from .polling import PollingSchedule
from .progress import Progress
from .store import read_call, read_store

TICK = 0.05  # seconds between two states of a quiet turn

_OPEN_WITHIN = 15.0  # a cold directory takes up to 6 s on 1.18.33
_RESTART = 20.0  # seconds without a connection, if no local server listens any more
_OUTAGE = 120.0  # seconds without a connection for any other reason
_SHELLS_EVERY = 0.5


class Follower:
    """Keeps the turn of a `Progress` up to date.

    Args:
        client: The server.
        session: The session that the turn runs in.
        progress: The turn.
        stream: An open stream, if there is one; otherwise `open` opens one.
    """

    def __init__(
        self, client: Client, session: Session, progress: Progress, stream: Stream | None = None
    ) -> None:
        self._client = client
        self._session = session
        self._progress = progress
        self._stream = stream
        self._lost: Disconnected | None = None  # set while the stream is down
        self._schedule = PollingSchedule(time.monotonic())
        self._unrelated: set[str] = set()
        self._warned: set[str] = set()
        self._shells = RunningShells(client, session, progress)

    def open(self) -> None:
        """Open the stream, unless it is open.

        Raises:
            ServerConnectionError: It can't be opened within 15 s.
        """
        if self._stream is None:
            tap = self._progress.recorder.frame
            self._stream = open_stream(self._client, self._session.directory, tap)

    def close(self) -> None:
        """Stop listening. The turn itself continues."""
        if self._stream is not None:
            self._stream.close()

    def listen(self, wait: float) -> None:
        """Fold the events that arrive within `wait` seconds, and read the store if that is due."""
        assert self._stream is not None, "call open() first"
        batch: list[Event] = []
        for item in self._stream.take(wait):
            match item:
                case Connected():
                    self._lost, self._progress.note = None, ""
                    self._schedule = self._schedule.stream_opened(time.monotonic())
                case Disconnected():
                    self._lost = item
                    self._lose_contact(f"Connection lost ({item.reason}); trying again.")
                case StreamProblem(error, fatal):
                    self._handle_problem(error, fatal)
                case PermissionAsked() | QuestionAsked():
                    self._progress.add(batch)
                    batch = [*self._ancestors(item), self._with_call(item)]
                case event:
                    self._schedule = self._schedule.event_received()
                    self._watch(event)
                    batch.append(event)
        self._progress.add(batch)
        if self._progress.turn.ended and self._schedule.due is None:
            self.poll_now()  # the session may be busy again, with another prompt
        self._shells.read()
        self._poll_if_due()
        self._give_up_if_lost()
        self._progress.recorder.note(self._progress.note)
        if self._progress.turn.outcome != "running":
            self._progress.attach_capture()

    def poll_now(self) -> None:
        """Schedule a read of the store for the next `listen`."""
        self._schedule = self._schedule.due_now(time.monotonic())

    def reread(self) -> StoreSnapshot:
        """Read the store. If the session is idle without an answer, read it twice."""
        snapshot = read_store(self._client, self._session, self._progress.turn, self._warn_once)
        answered = any(m.parent == self._progress.turn.prompt for m in snapshot.messages)
        if snapshot.status.name == "idle" and not answered:
            time.sleep(0.25)
            snapshot = read_store(self._client, self._session, self._progress.turn, self._warn_once)
        self._progress.recorder.read()
        return snapshot

    def _lose_contact(self, note: str) -> None:
        self._progress.note = note
        self._schedule = self._schedule.contact_lost(time.monotonic())

    def _watch(self, event: Event) -> None:
        """Schedule a poll when the turn may have ended; cancel it while the session is busy.

        A failure may be the only event about a prompt: 1.18.33 accepts an image that can't be
        decoded, and then only reports that.
        """
        match event:
            case SessionFailed(session=self._session.id):
                self.poll_now()
            case StatusChanged(self._session.id, Status(name="idle")):
                self.poll_now()
            case StatusChanged(self._session.id):
                self._schedule = self._schedule.session_busy()

    def _handle_problem(self, error: OpenCodeError, fatal: bool) -> None:
        if fatal:
            self._progress.end("unknown", Failure(type(error).__name__, error.what))
        else:
            self._progress.note = error.what
            self.poll_now()

    def _ancestors(self, event: PermissionAsked | QuestionAsked) -> list[Event]:
        return ancestors(self._client, self._progress, event, self._unrelated)

    def _with_call(self, event: PermissionAsked | QuestionAsked) -> Event:
        """The event, with the tool call of a subagent, whose messages the turn doesn't have."""
        match event:
            case PermissionAsked(permission) if permission.session != self._session.id:
                return PermissionAsked(read_call(self._client, permission))
        return event

    def _poll_if_due(self) -> None:
        now = time.monotonic()
        if self._progress.changed > self._schedule.changed:
            self._schedule = self._schedule.turn_changed(self._progress.changed)
        self._schedule = self._schedule.tick(now)
        if not self._schedule.is_due(now):
            return
        try:
            snapshot = self.reread()
        except NotFoundError as error:
            self._progress.end("interrupted", Failure("SessionGone", error.what))
            return
        except OpenCodeError as error:
            if isinstance(error, StatusError) and error.permanent and self._seems_over():
                name = error.name or type(error).__name__
                self._progress.end("unknown", Failure(name, error.what))
                return
            self._lose_contact(error.what)
        else:
            self._schedule = self._schedule.store_read()
            self._progress.add([snapshot])
            self._judge(snapshot)
        # Without a stream the store is the only source.
        status = self._progress.turn.status
        idle = status is not None and status.name == "idle"
        self._schedule = self._schedule.polled(time.monotonic(), idle or self._lost is not None)

    def _seems_over(self) -> bool:
        """Whether nothing more can be learned of the turn if its messages can't be read.

        1.18.33 answers 400 for ever after a prompt with a JSON Schema as its format.
        """
        status = self._progress.turn.status
        return self._lost is not None or status is None or status.name == "idle"

    def _judge(self, snapshot: StoreSnapshot) -> None:
        """End the turn if its session is idle and nothing will continue it."""
        now = time.monotonic()
        idle = snapshot.status.name == "idle" and self._progress.turn.outcome == "running"
        self._schedule = self._schedule.idle_observed(now, idle)
        if ended := judge_idle_turn(self._progress.turn, self._schedule.idle_for(now)):
            self._progress.add([ended])

    def _give_up_if_lost(self) -> None:
        refused = self._lost is not None and self._lost.refused and self._client.local
        patience = _RESTART if refused else _OUTAGE
        if self._schedule.has_timed_out(time.monotonic(), patience):
            reason = f"no connection for {patience:.0f} s ({self._progress.note})"
            self._progress.end("unknown", Failure("ConnectionLost", reason))

    def _warn_once(self, what: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("%s", what)


class RunningShells:
    """Reads what running commands print: 2.x doesn't send it, but returns it on request."""

    def __init__(self, client: Client, session: Session, progress: Progress) -> None:
        self._client = client
        self._session = session
        self._progress = progress
        self._read_at = 0.0
        self._printed: dict[str, tuple[str, int]] = {}  # by call: text and bytes so far

    def read(self) -> None:
        """Add new output to the turn, at most every half second."""
        running = [
            (m.id, t)
            for m in self._progress.turn.answers
            for t in m.tools
            if t.shell and t.status == "running"
        ]
        if not running or time.monotonic() - self._read_at < _SHELLS_EVERY:
            return
        self._read_at = time.monotonic()
        for message, tool in running:
            text, cursor = self._printed.get(tool.call, ("", 0))
            try:
                new = self._client.run(
                    self._client.dialect.shell_output(
                        self._session.directory, tool.shell or "", cursor
                    )
                )
            except OpenCodeError:
                continue  # the shell has ended; its result arrives as an event
            if new.text:
                self._printed[tool.call] = (text + new.text, new.cursor)
                shown = replace(tool, tool="", output=text + new.text)
                self._progress.add([PartChanged(self._session.id, message, shown)])


def ancestors(
    client: Client,
    progress: Progress,
    event: PermissionAsked | QuestionAsked,
    unrelated: set[str],
) -> list[Event]:
    """Read the sessions between a subagent that asks and the turn's own session.

    1.18.33 announces a subagent's session when it is created, but not one created before the
    stream was opened.

    Args:
        client: The server.
        progress: The turn.
        event: The request, from a session that may not be in the turn's tree yet.
        unrelated: Ids of sessions that don't belong to the turn; new ones are added.

    Returns:
        The sessions as events, parents first; empty if the asking session is not a descendant.
    """
    request = event.permission if isinstance(event, PermissionAsked) else event.question
    path: list[Session] = []
    current: str | None = request.session
    while current and current not in progress.turn.tree:
        if current in unrelated or any(s.id == current for s in path):
            return []
        try:
            path.append(client.session(current))
        except OpenCodeError:
            return []
        current = path[-1].parent
    if current is None:
        unrelated.update(s.id for s in path)
        return []
    return [SessionChanged(s) for s in reversed(path)]


def open_stream(client: Client, directory: str, tap: Callable[[str], None] | None = None) -> Stream:
    """Open the event stream of a directory.

    Args:
        client: The server.
        directory: The directory.
        tap: Receives the text of each frame.

    Raises:
        ServerConnectionError: The stream can't be opened within 15 s.
    """
    stream = client.stream(directory, tap)
    try:
        _await_opening(client, stream)
    except BaseException:
        stream.close()
        raise
    return stream


def _await_opening(client: Client, stream: Stream) -> None:
    deadline = time.monotonic() + _OPEN_WITHIN
    why = "no answer"
    while time.monotonic() < deadline:
        match stream.next(TICK):
            case Connected():
                return  # later items stay in the queue
            case Disconnected(reason):
                why = reason
            case StreamProblem(error, fatal=True):
                raise error
    raise ServerConnectionError(
        f"The event stream of {client.url} could not be opened ({why}).",
        "Is the server still running? %oc_connect checks it.",
        sent=False,
    )
