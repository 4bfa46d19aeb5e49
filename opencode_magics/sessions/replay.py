"""Replay recorded turns as they happened, without a server or network.

A `Replay` reads the lines of a recording by its own clock. Frames are decoded by the recorded
dialect, reads of the store run its operations, and all events go through the same fold as live.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, get_args

from ..client.client import Client
from ..client.transport import FrameStream
from ..core.events import (
    Event,
    PartDelta,
    PermissionAsked,
    QuestionAsked,
    RequestReplied,
    TurnEnded,
)
from ..core.fold import advance_all
from ..core.formatting import in_one_line
from ..core.model import REPLIES, Decision, Failure, Outcome, Permission, Question, Server, Session
from ..core.turn import Turn, as_replay
from ..dialects import jsonwire
from ..dialects.base import Reply, Request
from ..errors import OpenCodeError, RecordingError
from ..recording.format import Line, Recorder, Recording
from .answer import in_words
from .follow import TICK, RunningShells, ancestors
from .progress import Progress
from .store import read_store

LONGEST_WAIT = 5.0  # seconds to wait for an answer that took a person longer
LONGEST_SILENCE = 60.0  # seconds without a line, for a tool that took longer
_SOON = 2.0  # seconds from an event to the reply to a request that it caused


class RecordedTransport:
    """A transport that returns the replies of a recording.

    Args:
        recording: The recording.
        clock: Returns the position in the recording, in its seconds.
    """

    url = "http://recording.invalid"

    def __init__(self, recording: Recording, clock: Callable[[], float] = lambda: math.inf) -> None:
        self._clock = clock
        self._replies: dict[str, list[tuple[float, int, bytes]]] = {}
        for line in recording.lines:
            if isinstance(line.get("reply"), str):
                text = line.get("text")
                body = text.encode() if isinstance(text, str) else jsonwire.dumps(line.get("body"))
                status = line.get("status")
                reply = float(line["t"]), status if isinstance(status, int) else 200, body
                self._replies.setdefault(line["reply"], []).append(reply)

    def send(self, request: Request) -> Reply:
        """Return the last reply before the current position, or else the next one soon after it."""
        now, replies = self._clock(), self._replies.get(request.address, [])
        known = [reply for reply in replies if reply[0] <= now]
        soon = [reply for reply in replies if now < reply[0] <= now + _SOON]
        if request.method != "GET" or not (known or soon):
            raise RecordingError(f"The recording has no reply to {request}.")
        _, status, body = known[-1] if known else soon[0]
        return Reply(request, status, {}, body)

    def stream(self, request: Request, silence: float) -> FrameStream:
        """Raise an error: a replay reads the frames from the recording itself."""
        raise RecordingError(f"The recording has no stream {request}.")

    def close(self) -> None:
        """Do nothing."""


def recorded_client(recording: Recording, clock: Callable[[], float]) -> Client:
    """Return a client that reads from a recording."""
    head = recording.head
    return Client(
        RecordedTransport.url,
        directory=head["session"]["directory"],
        transport=RecordedTransport(recording, clock),
        server=Server(head["generation"], str(head.get("server", ""))),
    )


class Replay:
    """The replay of a recorded turn: iterate for its states, as with a `Run`.

    Args:
        recording: The recording.
        speed: The playback speed, 1.0 for real time; infinity has no waits.
        interactive: Wherever a person answered, wait for a new answer by `decide`, `answer` or
            `dismiss`. The replay then continues as recorded.

    Waits for a person are shortened to 5 s, other waits to a minute.

    Attributes:
        turn: The latest state of the turn.
        note: The recorded state of the connection, in a sentence; "" if there was no problem.
        differences: Sentences about answers that differ from the recorded ones.

    Raises:
        RecordingError: This package doesn't know the recording's dialect.

    Example::

        for turn in Replay(load("lesson.jsonl")[0], speed=math.inf):
            pass
        print(turn.text)
    """

    def __init__(
        self, recording: Recording, speed: float = 1.0, *, interactive: bool = False
    ) -> None:
        head = recording.head["session"]
        self.recording = recording
        self.speed = speed
        self.interactive = interactive
        self.differences: list[str] = []
        self._session = Session(head["id"], str(head.get("title", "")), head["directory"])
        self._client = recorded_client(recording, self._now)
        self._lines = recording.lines
        self._next = 0
        self._at = 0.0  # the position in the recording, in its seconds
        self._wall = time.monotonic()
        self._progress = Progress(_first_state(recording), Recorder(), self._now)
        self._shells = RunningShells(self._client, self._session, self._progress)
        self._recorded = RecordedAnswers(recording.lines)

    @property
    def turn(self) -> Turn:
        """The latest state of the turn."""
        return self._progress.turn

    @property
    def note(self) -> str:
        """The recorded state of the connection, or how an answer differs; "" if neither."""
        return self._progress.note

    @property
    def directory(self) -> str:
        """The directory of the recorded session."""
        return self._session.directory

    @property
    def always_scope(self) -> str:
        """The scope of an "always" reply on the recorded server, in words."""
        return self._client.dialect.always_scope

    @property
    def over(self) -> bool:
        """Whether the recording was played to its end."""
        return self._next >= len(self._lines)

    @property
    def waiting(self) -> tuple[Permission | Question, ...]:
        """The requests that a person answered in the recording, but not yet in this replay."""
        if not self.interactive:
            return ()
        return tuple(r for r in self.turn.waiting if r.id in self._recorded.open)

    @property
    def progress(self) -> str:
        """The position, in seconds of the recording."""
        return f"{self._at:.1f} of {self.recording.duration:.1f} s"

    def start(self) -> None:
        """Start the clock."""
        self._wall = time.monotonic()

    def __iter__(self) -> Iterator[Turn]:
        self.start()
        while not self.over:
            self.listen(TICK)
            yield self.turn
        self._conclude()
        yield self.turn

    def step(self, look: Callable[[Turn], object]) -> Turn:
        """Play until `look(turn)` changes, or to the end of the recording."""
        before = look(self.turn)
        while not self.over and look(self.turn) == before:
            if not self._play(self._lines[self._next : self._next + 1]):
                break  # waits for an answer
        if self.over:
            self._conclude()
        return self.turn

    def leave(self, reason: str) -> Turn:
        """Stop the replay; the rest of the turn is not shown."""
        self._next = len(self._lines)
        return self._progress.end("unknown", Failure("Left", reason))

    def _conclude(self) -> None:
        if self.turn.outcome == "running":
            self._progress.end("unknown", Failure("RecordingEnds", "the recording ends here"))

    # -- the clock -------------------------------------------------------------------------------

    def listen(self, wait: float) -> None:
        """Wait at most `wait` seconds, then play the lines that are due."""
        line_at = self._time_of(self._next)
        self._cut_silence(line_at)
        if not math.isinf(self.speed):
            time.sleep(max(0.0, min(wait, (line_at - self._at) / self.speed)))
        passed = time.monotonic() - self._wall
        self._wall += passed
        reached = math.inf if math.isinf(self.speed) else self._at + passed * self.speed
        end = self._next
        while end < len(self._lines) and self._time_of(end) <= reached:
            end += 1
        if not self._play(self._lines[self._next : end]):
            time.sleep(wait)  # waits for an answer; the clock stops
            self._wall = time.monotonic()
        elif not math.isinf(reached):
            self._at = max(self._at, min(reached, self._time_of(self._next)))

    def _now(self) -> float:
        return self._at

    def _cut_silence(self, until: float) -> None:
        longest = LONGEST_WAIT if self.turn.waiting else LONGEST_SILENCE
        self._at = max(self._at, until - longest)

    def _time_of(self, n: int) -> float:
        return float(self._lines[min(n, len(self._lines) - 1)]["t"])

    # -- playing lines ---------------------------------------------------------------------------

    def _play(self, lines: Sequence[Line]) -> bool:
        """Fold lines, each at its own time; False at a line that must wait for an answer."""
        deltas: list[Event] = []
        for line in lines:
            events = self._events(line)
            if events and all(isinstance(event, PartDelta) for event in events):
                deltas += events  # thousands; folded together
            else:
                self._progress.add(deltas)
                deltas = []
                if self.interactive and self._settles_open(events):
                    return False
                self._at = max(self._at, float(line["t"]))
                self._progress.add([e for event in events for e in (*self._above(event), event)])
                if "reply" in line:
                    self._shells.read()
            self._next += 1
        self._progress.add(deltas)
        return True

    def _events(self, line: Line) -> list[Event]:
        """The events of a line."""
        match line:
            case {"frame": frame}:
                events = self._read(lambda: list(self._client.dialect.events(frame)))
                return [self._recorded.in_place_of(event) for event in events]
            case {"read": True}:
                self._at = max(self._at, float(line["t"]))
                return self._read(lambda: [read_store(self._client, self._session, self.turn)])
            case _ if _is_answer(line):
                return [_reply(line)]
            case {"end": str(outcome)}:
                return [TurnEnded(_outcome(outcome), _failure(line.get("failure")))]
            case {"note": str(note)}:
                self._progress.note = note
        return []

    def _read(self, read: Callable[[], list[Event]]) -> list[Event]:
        try:
            return read()
        except OpenCodeError as error:
            self._progress.note = error.what
            return []

    def _above(self, event: Event) -> list[Event]:
        """The ancestors of a subagent that asks, if the stream didn't announce them."""
        if not isinstance(event, PermissionAsked | QuestionAsked):
            return []
        return ancestors(self._client, self._progress, event, set())

    def _settles_open(self, events: Iterable[Event]) -> bool:
        """Return whether events settle a request in `waiting`, which a person must answer first."""
        if not self._recorded.open or not any(isinstance(e, RequestReplied) for e in events):
            return False
        after = advance_all(self.turn, events).settled_requests
        new = after[len(self.turn.settled_requests) :]
        return any(s.request.id in self._recorded.open for s in new)

    # -- answering -------------------------------------------------------------------------------

    def decide(
        self, permission: Permission, decision: Decision, message: str = "", by: str = ""
    ) -> bool:
        """Accept an answer, and note it if it differs from the recorded one."""
        return self._answered(permission, decision, message)

    def answer(self, question: Question, answers: Sequence[Sequence[str]]) -> bool:
        """Accept an answer, and note it if it differs from the recorded one."""
        return self._answered(question, "answered", in_words(answers))

    def dismiss(self, question: Question, by: str = "") -> bool:
        """Accept a dismissal, and note it if the question was answered in the recording."""
        return self._answered(question, "dismissed", "")

    def _answered(self, request: Permission | Question, reply: str, message: str) -> bool:
        line = self._recorded.answered(request)
        if line is None:
            return False
        self._at = max(self._at, float(line["t"]))  # skips the recorded wait
        recorded = str(line["given"]), str(line.get("message", ""))
        same = recorded == (reply, message) if reply == "answered" else recorded[0] == reply
        if not same:
            self.differences.append(
                f"You answered {_words(reply, message)}; in the recording it was "
                f"{_words(*recorded)}, and the replay continues with that."
            )
            self._progress.note = self.differences[-1]
        return True


class RecordedAnswers:
    """The answers that people gave in a recording, and the requests answered in the replay."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._lines = {
            line["answer"]: line for line in lines if _is_answer(line) and line["given"] in REPLIES
        }
        self._answered: set[str] = set()

    @property
    def open(self) -> frozenset[str]:
        """Ids of the requests that were answered in the recording but not yet in the replay."""
        return frozenset(self._lines.keys() - self._answered)

    def answered(self, request: Permission | Question) -> Line | None:
        """Mark a request as answered, and return its recorded answer, if there is one."""
        self._answered.add(request.id)
        return self._lines.get(request.id)

    def in_place_of(self, event: Event) -> Event:
        """Replace the stream's event for an answer by the recorded answer, which says more."""
        line = self._lines.get(event.request) if isinstance(event, RequestReplied) else None
        return event if line is None else _reply(line)


def _first_state(recording: Recording) -> Turn:
    head = recording.head
    text = in_one_line(recording.text, 200) or "(no text)"
    turn = Turn(head["session"]["id"], head["prompt"]["id"], queued=bool(head.get("queued")))
    return as_replay(turn, f"Replay of a turn of {recording.label}: {text}")


def _is_answer(line: Line) -> bool:
    return all(isinstance(line.get(key), str) for key in ("answer", "session", "given"))


def _reply(line: Line) -> RequestReplied:
    message = str(line.get("message", ""))
    return RequestReplied(line["session"], line["answer"], line["given"], message)


def _words(reply: str, message: str) -> str:
    return f'"{message}"' if reply == "answered" else f"{reply} ({message})" if message else reply


def _outcome(name: str) -> Outcome:
    """A recorded outcome; "unknown" if this package doesn't know the word."""
    return next((known for known in get_args(Outcome) if known == name), "unknown")


def _failure(value: Any) -> Failure | None:
    match value:
        case [str(name), str(message), (int() | None) as status, (str() | None) as provider]:
            return Failure(name, message, status, provider)
        case _:
            return None
