"""Plays recorded turns again as they were: no server, no network.

A `Replay` is a `Run` whose server is a recording. Frames go through the dialect that they were
spoken in, reads of the store through its flows, and everything through the same fold; only the
clock is its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from textwrap import shorten
from typing import Any, get_args

from ..client.client import Client, Tap
from ..core.events import (
    Event,
    PartDelta,
    PermissionAsked,
    QuestionAsked,
    RequestReplied,
    TurnEnded,
)
from ..core.model import Decision, Failure, Outcome, Permission, Question, Server, Session
from ..core.turn import Turn, advance_all, as_replay
from ..dialects import base
from ..dialects.base import Prompt, Reply, Request
from ..errors import OpenCodeError, RecordingError
from ..recording.format import Line, Recording
from .run import TICK, Run
from .store import read_store

LONGEST_WAIT = 5.0  # seconds that a replay waits for an answer which took a person longer
LONGEST_SILENCE = 60.0  # seconds in which nothing comes, of a tool that took longer
_SOON = 2.0  # seconds in which the reply to a request stands after what led to it
_PEOPLES = ("once", "always", "reject", "answered", "dismissed")


class RecordedClient(Client):
    """A client whose server is a recording: it answers what was asked then, and reaches nothing."""

    def __init__(self, recording: Recording) -> None:
        head = recording.head
        super().__init__("http://recording.invalid", directory=head["session"]["directory"])
        self.close()  # whatever would still be sent fails
        dialect = base.for_generation(head["generation"])
        server = Server(head["generation"], str(head.get("server", "")))
        self.__dict__["_detected"] = (server, dialect)
        self._replies: dict[str, list[tuple[float, int, bytes]]] = {}
        for line in recording.lines:
            if isinstance(line.get("reply"), str):
                text = line.get("text")
                body = text.encode() if isinstance(text, str) else base.dumps(line.get("body"))
                status = line.get("status")
                told = float(line["t"]), status if isinstance(status, int) else 200, body
                self._replies.setdefault(line["reply"], []).append(told)
        self.clock: Callable[[], float] = lambda: math.inf

    def with_tap(self, tap: Tap) -> Client:
        """Itself: nothing of a recording is recorded."""
        return self

    def _send(self, request: Request) -> Reply:
        """What was answered last, else what will be in a moment."""
        now, told = self.clock(), self._replies.get(request.address, [])
        known = [reply for reply in told if reply[0] <= now]
        soon = [reply for reply in told if now < reply[0] <= now + _SOON]
        if request.method != "GET" or not (known or soon):
            raise RecordingError(f"The recording doesn't say what the server answers: {request}.")
        _, status, body = known[-1] if known else soon[0]
        return Reply(request, status, {}, body)


class Replay(Run):
    """A recorded turn, played again: iterate for its states, as with any `Run`.

    Args:
        recording: What is played.
        speed: How many times as fast as it was; infinity plays it at once.
        interactive: Wait for a person's own answer where there was one, by `decide`, `answer` or
            `dismiss`. What comes of it is as recorded.

    Where a person took long to answer, a replay takes 5 s; where a tool did, a minute.

    Raises:
        RecordingError: Nothing of this package speaks the recording's dialect.

    Example::

        for turn in Replay(load("lesson.jsonl")[0], speed=math.inf):
            pass
        print(turn.text)
    """

    def __init__(
        self, recording: Recording, speed: float = 1.0, *, interactive: bool = False
    ) -> None:
        told, prompt = recording.head["session"], recording.head["prompt"]
        session = Session(told["id"], str(told.get("title", "")), told["directory"])
        archive = RecordedClient(recording)
        asked = Prompt(prompt["id"], recording.text, agent=prompt.get("agent"))
        queued = bool(recording.head.get("queued"))
        super().__init__(archive, session, asked, running=True, queued=queued)
        assert isinstance(self.client, RecordedClient)
        self.client.clock = self._now
        self.recording = recording
        self.speed = speed
        self.interactive = interactive
        self.differences: list[str] = []
        prompt_line = shorten(recording.text, 200, placeholder=" …")
        told_by = f"Replay of a turn of {recording.label}: {prompt_line or '(no text)'}"
        self.turn = as_replay(self.turn, told_by)
        self._lines = recording.lines
        self._next = 0
        self._at = 0.0  # where in the recording we are, in its seconds
        self._clock = time.monotonic()
        self._answered: set[str] = set()
        self._answers = {
            line["answer"]: line
            for line in recording.lines
            if _is_answer(line) and line["given"] in _PEOPLES
        }

    @property
    def over(self) -> bool:
        """Whether all of it was played."""
        return self._next >= len(self._lines)

    @property
    def waiting(self) -> tuple[Permission | Question, ...]:
        """What a person answered then, and nobody has answered now."""
        if not self.interactive:
            return ()
        open_ = self._answers.keys() - self._answered
        return tuple(r for r in self.turn.waiting if r.id in open_)

    @property
    def progress(self) -> str:
        """How far it is, in seconds of the recording."""
        return f"{self._at:.1f} of {self.recording.duration:.1f} s"

    def start(self) -> None:
        """Begin: nothing is sent."""
        self._clock = time.monotonic()

    def close(self) -> None:
        """Nothing is to be closed."""

    def __iter__(self) -> Iterator[Turn]:
        self.start()
        while not self.over:
            self._listen(TICK)
            yield self.turn
        self._conclude()
        yield self.turn

    def step(self, look: Callable[[Turn], object]) -> Turn:
        """Play until what a look at the turn finds is something else, or all is over."""
        before = look(self.turn)
        while not self.over and look(self.turn) == before:
            if not self._play(self._lines[self._next : self._next + 1]):
                break  # an answer is waited for
        if self.over:
            self._conclude()
        return self.turn

    def leave(self, reason: str) -> Turn:
        """Stop playing: how the turn went on is not shown."""
        self._next = len(self._lines)
        return self._end("unknown", Failure("Left", reason))

    def abort(self, why: str = "") -> Turn:
        """Stop playing: there is nothing else to stop."""
        return self.leave("the replay was stopped")

    def _now(self) -> float:
        return self._at

    def _conclude(self) -> None:
        if self.turn.outcome == "running":
            self._fold([TurnEnded("unknown", Failure("RecordingEnds", "the recording ends here"))])

    # -- the clock -------------------------------------------------------------------------------

    def _listen(self, wait: float) -> None:
        """Wait a little, then play what is due."""
        line_at = self._time_of(self._next)
        self._cut_silence(line_at)
        if not math.isinf(self.speed):
            time.sleep(max(0.0, min(wait, (line_at - self._at) / self.speed)))
        passed = time.monotonic() - self._clock
        self._clock += passed
        reached = math.inf if math.isinf(self.speed) else self._at + passed * self.speed
        end = self._next
        while end < len(self._lines) and self._time_of(end) <= reached:
            end += 1
        if not self._play(self._lines[self._next : end]):
            time.sleep(wait)  # an answer is waited for, and meanwhile no time passes
            self._clock = time.monotonic()
        elif not math.isinf(reached):
            self._at = max(self._at, min(reached, self._time_of(self._next)))

    def _cut_silence(self, until: float) -> None:
        longest = LONGEST_WAIT if self.turn.waiting else LONGEST_SILENCE
        self._at = max(self._at, until - longest)

    def _time_of(self, n: int) -> float:
        return float(self._lines[min(n, len(self._lines) - 1)]["t"])

    # -- what happened -----------------------------------------------------------------------------

    def _play(self, lines: Sequence[Line]) -> bool:
        """Fold some lines, each at its own time; False if one of them has to wait for an answer."""
        deltas: list[Event] = []
        for line in lines:
            said = self._said(line)
            if said and all(isinstance(event, PartDelta) for event in said):
                deltas += said  # thousands, which are folded at once
            else:
                self._fold(deltas)
                deltas = []
                if self.interactive and self._unanswered(said):
                    return False
                self._at = max(self._at, float(line["t"]))
                self._fold([e for event in said for e in (*self._line_of(event), event)])
                if "reply" in line:
                    self._read_shells()
            self._next += 1
        self._fold(deltas)
        return True

    def _said(self, line: Line) -> list[Event]:
        """What a line says."""
        match line:
            case {"frame": frame}:
                said = self._heard_in(lambda: list(self.client.dialect.events(frame)))
                return [self._as_given(event) for event in said]
            case {"read": True}:
                self._at = max(self._at, float(line["t"]))
                return self._heard_in(lambda: [read_store(self.client, self.session, self.turn)])
            case _ if _is_answer(line):
                return [_reply(line)]
            case {"end": str(told)}:
                return [TurnEnded(_outcome(told), _failure(line.get("failure")))]
            case {"note": str(note)}:
                self.note = note
        return []

    def _as_given(self, event: Event) -> Event:
        """What was answered here, as it was: the stream tells of it earlier, and less."""
        line = self._answers.get(event.request) if isinstance(event, RequestReplied) else None
        return event if line is None else _reply(line)

    def _heard_in(self, read: Callable[[], list[Event]]) -> list[Event]:
        try:
            return read()
        except OpenCodeError as error:
            self.note = error.what
            return []

    def _line_of(self, event: Event) -> list[Event]:
        """The sessions above a subagent that asks, where the stream didn't tell of them."""
        return self._ancestry(event) if isinstance(event, PermissionAsked | QuestionAsked) else []

    def _unanswered(self, events: Iterable[Event]) -> bool:
        """Whether these would settle what a person answered then, and nobody has answered now."""
        open_ = self._answers.keys() - self._answered
        if not open_ or not any(isinstance(e, RequestReplied) for e in events):
            return False
        after = advance_all(self.turn, events).settled_requests
        return any(s.request.id in open_ for s in after[len(self.turn.settled_requests) :])

    # -- answering ---------------------------------------------------------------------------------

    def decide(
        self, permission: Permission, decision: Decision, message: str = "", by: str = ""
    ) -> bool:
        """Take an answer, and say so if it was another one then."""
        return self._given(permission, decision, message)

    def answer(self, question: Question, answers: Sequence[Sequence[str]]) -> bool:
        """Take an answer, and say so if it was another one then."""
        told = "; ".join(", ".join(a) or "no answer" for a in answers)
        return self._given(question, "answered", told)

    def dismiss(self, question: Question, by: str = "") -> bool:
        """Take that nothing is answered, and say so if something was then."""
        return self._given(question, "dismissed", "")

    def _given(self, request: Permission | Question, reply: str, message: str) -> bool:
        self._answered.add(request.id)
        line = self._answers.get(request.id)
        if line is None:
            return False
        self._at = max(self._at, float(line["t"]))  # it is not waited for twice
        then = str(line["given"]), str(line.get("message", ""))
        same = then == (reply, message) if reply == "answered" else then[0] == reply
        if not same:
            self.differences.append(
                f"You answered {_words(reply, message)}; in the recording it was "
                f"{_words(*then)}, and the replay goes on with that."
            )
            self.note = self.differences[-1]
        return True


def _is_answer(line: Line) -> bool:
    return all(isinstance(line.get(key), str) for key in ("answer", "session", "given"))


def _reply(line: Line) -> RequestReplied:
    message = str(line.get("message", ""))
    return RequestReplied(line["session"], line["answer"], line["given"], message)


def _words(reply: str, message: str) -> str:
    return f'"{message}"' if reply == "answered" else f"{reply} ({message})" if message else reply


def _outcome(told: str) -> Outcome:
    """A verdict of a recording; a word that this package doesn't know says nothing."""
    return next((known for known in get_args(Outcome) if known == told), "unknown")


def _failure(told: Any) -> Failure | None:
    match told:
        case [str(name), str(message), (int() | None) as status, (str() | None) as provider]:
            return Failure(name, message, status, provider)
        case _:
            return None
