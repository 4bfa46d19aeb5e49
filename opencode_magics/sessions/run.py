"""Runs a prompt to its end: sends it once, follows its turn, passes answers on, stops it.

`prepare` checks a prompt and gives a `Run`; `start()` opens the stream and sends; iterate over it
for the states of the turn. A `Run` does no drawing and asks nobody; it tells what waits and passes
answers on. Where the stream isn't enough, it reads the store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import NoReturn

from ..client.client import Client, Connected, Disconnected, Stream, StreamProblem
from ..core.events import (
    Event,
    MessageChanged,
    PartChanged,
    PermissionAsked,
    QuestionAsked,
    RequestReplied,
    SessionChanged,
    SessionFailed,
    StatusChanged,
    StoreSnapshot,
    TurnEnded,
)
from ..core.limits import Limits
from ..core.model import (
    Attachment,
    Decision,
    Failure,
    Outcome,
    Permission,
    Question,
    Session,
    Status,
)
from ..core.retry_safety import GATEWAY_STATUSES
from ..core.turn import LIMIT_EXCEEDED, Turn, advance_all, judge_idle_turn, with_wait_times
from ..dialects.base import Delivery, Prompt, logger
from ..errors import (
    NotFoundError,
    OpenCodeError,
    ServerConnectionError,
    StatusError,
    StreamError,
    TurnError,
    UnknownNameError,
    UnsupportedOperation,
)
from ..recording.format import FORMAT_VERSION, VERSION_KEY, Recorder
from .lookup import resolve_model_and_agent
from .polling import PollingSchedule
from .store import (
    STOP_TIMEOUT,
    abort_until_idle,
    add_session_ceiling,
    is_busy,
    read_store,
    reject_requests,
)

TICK = 0.05  # seconds between two states of a quiet turn

_OPEN_WITHIN = 15.0  # a cold directory takes up to 6 s on 1.18.33
_RESTART = 20.0  # nothing listens any more: how long a restart may take
_OUTAGE = 120.0  # any other loss of the stream
_SHELLS_EVERY = 0.5


def prepare(
    client: Client,
    session: Session,
    text: str,
    *,
    model: str | None = None,
    agent: str | None = None,
    variant: str | None = None,
    files: tuple[Attachment, ...] = (),
    queue: bool = False,
    steer: bool = False,
    limits: Limits | None = None,
) -> Run:
    """Check a prompt against what the server has, and make it ready to send.

    Args:
        client: The server.
        session: Where to.
        text: The prompt, sent exactly as it is.
        model: `provider/model`; None leaves the session's own.
        agent: Who answers; None takes the session's own.
        variant: A variant of the model.
        files: What goes with it.
        queue: Also prompt a session that works on another prompt; this one comes after it.
        steer: The same, but it joins the turn that runs at its next step (2.x).
        limits: What stops the turn while it is followed; None is the guard against loops alone.

    Returns:
        The turn to be; `start()` sends it.

    Raises:
        UnknownNameError: No such model, agent or variant.
        SessionBusyError: The session works on another prompt.
        UnsupportedOperation: The server can't be asked to steer.
        CostLimitError: What may be spent is spent.
    """
    chosen, named = resolve_model_and_agent(client, session, model, agent, variant)
    new_id = client.dialect.new_prompt_id(int(time.time() * 1000))
    delivery: Delivery | None = "steer" if steer else "queue" if queue else None
    prompt = Prompt(new_id, text, named, chosen, files, delivery=delivery)
    client.dialect.check(prompt)
    busy = is_busy(client, session, queued=delivery is not None)
    limits = add_session_ceiling(client, session, limits or Limits())
    return Run(client, session, prompt, queued=busy, limits=limits)


def attach(client: Client, session: Session, limits: Limits | None = None) -> Run:
    """Make ready to follow the turn that a session works on, or its last one.

    What the session cost before is not known here: of its limits that one doesn't count.

    Raises:
        UnknownNameError: It never got a prompt.
    """
    messages = client.messages(session)
    prompts = [m for m in messages if m.role == "user" and not m.synthetic]
    if not prompts:
        raise UnknownNameError(
            f"Session {session.id} ({session.title}) has no prompt yet.",
            "Send one: %oc_prompt Explain this project",
        )
    # A prompt that is queued behind the running one comes later. Only the last answer can be at
    # work: a server that was killed leaves its own half done for good.
    last = next((m for m in reversed(messages) if m.role == "assistant"), None)
    at_work = None if last is None or last.completed else last
    before = [p for p in prompts if at_work and (p.created or 0) <= (at_work.created or 0)]
    prompt = (before or prompts)[-1]
    return Run(client, session, Prompt(prompt.id, prompt.text), running=True, limits=limits)


class Run:
    """A turn on the server, followed from here.

    `running` says that the server has its prompt already, `queued` that it lines up behind another
    turn; `stream` is one that is open already, so that nothing of the turn is missed,
    and `recorder` what keeps its frames.

    `start()` sends the prompt; iterate for the states of the turn: one whenever something came,
    and one a tick at least, until it has an outcome. One that passes its `limits` is aborted, and
    `turn.stopped` says why. `turn` is the latest state, `note` says how
    the connection is, `sent` whether the server has the prompt or may have it.
    """

    def __init__(
        self,
        client: Client,
        session: Session,
        prompt: Prompt,
        *,
        running: bool = False,
        queued: bool = False,
        limits: Limits | None = None,
        stream: Stream | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.recorder = recorder or Recorder()
        self.client = client.with_tap(self.recorder.reply)
        self.session = session
        self.turn = Turn(session.id, prompt.id, queued=queued, recorder=self.recorder)
        self.note = ""
        self.sent = running
        self.prompt = prompt
        self.limits = limits or Limits()
        self._judged: Turn | None = None
        self._stream = stream
        self._strangers: set[str] = set()
        self._untold: set[str] = set()
        self._asked: dict[str, float] = {}  # when a request was heard of
        self._lost: Disconnected | None = None  # the stream is down
        self._schedule = PollingSchedule(time.monotonic())
        self._errand: threading.Thread | None = None
        self._withdrawn = False
        self._not_withdrawn: OpenCodeError | None = None  # nobody knows whether it still waits
        self._shells_read = 0.0
        self._printed: dict[str, tuple[str, int]] = {}  # by call: text and bytes so far

    @property
    def always_scope(self) -> str:
        """How far an "always" reaches on this server, in words."""
        return self.client.dialect.always_scope

    @property
    def waiting(self) -> tuple[Permission | Question, ...]:
        """What can be answered here and now, oldest first."""
        return self.turn.waiting if self.turn.outcome == "running" else ()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening. The turn itself goes on."""
        if self._stream is not None:
            self._stream.close()

    def __iter__(self) -> Iterator[Turn]:
        while True:
            self._listen(TICK)
            if why := self._passed():
                self.note = f"Stopping the turn: {why}."
                yield self.turn
                self.abort(why)
                self.note = ""
            yield self.turn
            if self.turn.outcome != "running":
                return

    def _passed(self) -> str:
        """Which limit the turn has passed, looked at once for every state of it."""
        if self.turn is self._judged:
            return ""
        self._judged = self.turn
        return self.limits.passed(self.turn)

    # -- beginning --------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the stream, then send the prompt, once, unless the server has it already.

        If it isn't clear whether the prompt arrived, the store is asked.

        Raises:
            ServerConnectionError: The stream doesn't open within 15 s, or nothing listens any
                more; the prompt was not sent.
            StatusError: The server refused the prompt.
            TurnError: It isn't known whether the prompt arrived.
        """
        try:
            self._stream = self._stream or open_stream(
                self.client, self.session.directory, self.recorder.frame
            )
        except OpenCodeError as error:
            if not self.sent:
                self._end("failed", Failure("NotSent", error.what))
            raise
        self.recorder.begin(self._head())
        if self.sent:
            self._look_now()
            return
        self.sent = True
        try:
            self._hand_over()
        except StatusError as error:
            self._refused(error)
        except StreamError as error:
            self._unproved(error)
        except ServerConnectionError as error:
            self.sent = error.sent
            if not error.sent:
                self._end("failed", Failure("NotSent", error.what))
                raise
            self.confirm_stored(cause=error)

    def _head(self) -> dict[str, object]:
        """What a recording of this turn begins with."""
        session, prompt = self.session, self.prompt
        told = {"text": prompt.text, "agent": prompt.agent, "command": prompt.command}
        return {
            VERSION_KEY: FORMAT_VERSION,
            "generation": self.client.dialect.generation,
            "server": self.client.server.version,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "session": {
                "id": session.id,
                "title": session.title,
                "directory": session.directory,
            },
            "prompt": {"id": prompt.id, **{k: v for k, v in told.items() if v}},
            "queued": self.turn.queued,
        }

    def _hand_over(self) -> None:
        """Send the prompt; of a command, whose answer may come at its end, don't wait for that."""
        if self.prompt.command is None:
            self.client.prompt(self.session, self.prompt)
            return
        sending, failed = send_in_thread(lambda: self.client.command(self.session, self.prompt))
        while sending.is_alive() and not self._stored(within=0.2):
            pass  # its template may run commands before there is a prompt
        if failed and not self.turn.stored:
            raise failed[0]

    def _refused(self, error: StatusError) -> None:
        """The server, or something before it, said no: that it has no prompt is not yet said."""
        by_server = bool(error.name) and error.status not in GATEWAY_STATUSES
        plain = by_server and error.status < 500 and error.status != 409  # its id is taken (2.x)
        stored = False if plain else self._stored(within=3.0)
        if stored:
            return
        if stored is None or not by_server:
            self._unproved(error)
        self.sent = False
        self._end("failed", Failure(error.name or type(error).__name__, error.what))
        raise error

    def confirm_stored(self, cause: Exception | None = None) -> None:
        """Read the prompt back from the server.

        Raises:
            TurnError: It is not there, or nobody can tell.
        """
        if not self._stored(within=5.0):
            self._unproved(cause)

    def _stored(self, within: float) -> bool | None:
        """Whether the server shows the prompt before long; None if it couldn't tell at last."""
        deadline = time.monotonic() + within
        while True:
            try:
                message = self.client.message(self.session, self.turn.prompt)
            except OpenCodeError as error:
                shown = False if isinstance(error, NotFoundError) else None
            else:
                parts = [PartChanged(message.session, message.id, p) for p in message.parts]
                self._fold([MessageChanged(message), *parts])
                return True
            time.sleep(0.2)
            if time.monotonic() >= deadline:
                return shown

    def _unproved(self, cause: Exception | None) -> NoReturn:
        self._end("unknown", Failure("PromptUnconfirmed", "the server doesn't show it"))
        raise TurnError(
            f"It is not known whether session {self.session.id} got the prompt; it was sent once.",
            "Look at the session before you send it again.",
            turn=self.turn,
        ) from cause

    # -- following --------------------------------------------------------------------------------

    def _listen(self, wait: float) -> None:
        """Take what came, fold it, and look at the store where the stream isn't enough."""
        assert self._stream is not None, "start() comes first"
        batch: list[Event] = []
        for heard in self._stream.take(wait):
            match heard:
                case Connected():
                    self._lost, self.note = None, ""
                    self._schedule = self._schedule.stream_opened(time.monotonic())
                case Disconnected():
                    self._lost = heard
                    self._out_of_touch(f"Connection lost ({heard.reason}); trying again.")
                case StreamProblem(error, fatal):
                    self._unusable(error, fatal)
                case PermissionAsked() | QuestionAsked():
                    self._fold(batch)
                    batch = [*self._ancestry(heard), heard]
                case event:
                    self._schedule = self._schedule.event_received()
                    self._watch(event)
                    batch.append(event)
        self._fold(batch)
        self._read_shells()
        self._look_if_due()
        self._give_up_if_lost()
        self.recorder.note(self.note)

    def _fold(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, TurnEnded):
                self.recorder.end(event.outcome, event.failure)
        before, self.turn = self.turn, advance_all(self.turn, events)
        if self.turn is not before:
            self._schedule = self._schedule.turn_changed(self._now())
            self._take_time()
        if self._stream is not None:
            self._stream.sessions = self.turn.tree

    def _now(self) -> float:
        return time.monotonic()

    def _take_time(self) -> None:
        """Note how long requests waited, by our own clock: 1.18.33 tells nowhere."""
        for request in self.turn.waiting:
            self._asked.setdefault(request.id, self._schedule.changed)
        settled = {s.request.id for s in self.turn.settled_requests} & self._asked.keys()
        if settled:
            now = self._schedule.changed
            self.turn = with_wait_times(self.turn, {r: now - self._asked.pop(r) for r in settled})

    def _out_of_touch(self, note: str) -> None:
        self.note = note
        self._schedule = self._schedule.contact_lost(time.monotonic())

    def _watch(self, event: Event) -> None:
        """An idle session may be the end of the turn: the store tells. A busy one is not.

        A failure may be all that is ever heard of a prompt: 1.18.33 takes one with an image that
        can't be read, and says no more than that.
        """
        match event:
            case SessionFailed(session=self.session.id):
                self._look_now()
            case StatusChanged(self.session.id, Status(name="idle")):
                self._look_now()
            case StatusChanged(self.session.id):
                self._schedule = self._schedule.session_busy()

    def _unusable(self, error: OpenCodeError, fatal: bool) -> None:
        if fatal:
            self._fold([TurnEnded("unknown", Failure(type(error).__name__, error.what))])
        else:
            self.note = error.what
            self._look_now()

    def _ancestry(self, asked: PermissionAsked | QuestionAsked) -> list[Event]:
        """The sessions between an unknown asker and this turn; nothing if it is a stranger.

        1.18.33 tells of a subagent's session when it is made, but not of those made before.
        """
        request = asked.permission if isinstance(asked, PermissionAsked) else asked.question
        line: list[Session] = []
        current: str | None = request.session
        while current and current not in self.turn.tree:
            if current in self._strangers or any(s.id == current for s in line):
                return []
            try:
                line.append(self.client.session(current))
            except OpenCodeError:
                return []
            current = line[-1].parent
        if current is None:
            self._strangers.update(s.id for s in line)
            return []
        return [SessionChanged(s) for s in reversed(line)]

    def _read_shells(self) -> None:
        """What running commands print: 2.x doesn't send it, but gives it to who asks."""
        running = [
            (m.id, t)
            for m in self.turn.answers
            for t in m.tools
            if t.shell and t.status == "running"
        ]
        if not running or time.monotonic() - self._shells_read < _SHELLS_EVERY:
            return
        self._shells_read = time.monotonic()
        for message, tool in running:
            text, cursor = self._printed.get(tool.call, ("", 0))
            try:
                new = self.client.shell_output(tool.shell or "", cursor, self.session.directory)
            except OpenCodeError:
                continue  # it is over, and its result on the way
            if new.text:
                self._printed[tool.call] = (text + new.text, new.cursor)
                shown = replace(tool, tool="", output=text + new.text)
                self._fold([PartChanged(self.session.id, message, shown)])

    # -- the store --------------------------------------------------------------------------------

    def _look_now(self) -> None:
        self._schedule = self._schedule.due_now(time.monotonic())

    def _look_if_due(self) -> None:
        now = time.monotonic()
        self._schedule = self._schedule.tick(now)
        if not self._schedule.is_due(now):
            return
        try:
            found = self.reread()
        except NotFoundError as error:
            self._fold([TurnEnded("interrupted", Failure("SessionGone", error.what))])
            return
        except OpenCodeError as error:
            self._out_of_touch(error.what)
        else:
            self._schedule = self._schedule.store_read()
            self._fold([found])
            self._judge(found)
        # Without a stream the store is all there is.
        idle = self.turn.status is not None and self.turn.status.name == "idle"
        again = idle or self._lost is not None
        self._schedule = self._schedule.polled(time.monotonic(), again)

    def reread(self) -> StoreSnapshot:
        """The store as it is now. Idle without an answer is looked at twice."""
        found = read_store(self.client, self.session, self.turn, self._unreadable)
        answered = any(m.parent == self.turn.prompt for m in found.messages)
        if found.status.name == "idle" and not answered:
            time.sleep(0.25)
            found = read_store(self.client, self.session, self.turn, self._unreadable)
        self.recorder.read()
        return found

    def _unreadable(self, what: str) -> None:
        """Say once what the server can't tell."""
        if what not in self._untold:
            self._untold.add(what)
            logger.warning("%s", what)

    def _judge(self, reread: StoreSnapshot) -> None:
        now = time.monotonic()
        idle = reread.status.name == "idle" and self.turn.outcome == "running"
        self._schedule = self._schedule.idle_observed(now, idle)
        if ended := judge_idle_turn(self.turn, self._schedule.idle_for(now)):
            self._fold([ended])

    def _give_up_if_lost(self) -> None:
        refused = self._lost is not None and self._lost.refused and self.client.local
        patience = _RESTART if refused else _OUTAGE
        if self._schedule.has_timed_out(time.monotonic(), patience):
            reason = f"no connection for {patience:.0f} s ({self.note})"
            self._fold([TurnEnded("unknown", Failure("ConnectionLost", reason))])

    # -- answering --------------------------------------------------------------------------------

    def decide(
        self, permission: Permission, decision: Decision, message: str = "", by: str = ""
    ) -> bool:
        """Answer a permission that waits. `by` is kept beside it: who decided, if no person did.

        Returns:
            Whether it was this answer: False if it had been answered elsewhere before.

        Raises:
            ServerConnectionError: No answer came, and it isn't seen to be settled.
            StatusError: The server said no, and it isn't seen to be settled.
        """
        where = self._directory_of(permission.session)
        return self._settle(
            permission,
            decision,
            message or by,
            lambda: self.client.reply(permission, where, decision, message),
        )

    def answer(self, question: Question, answers: Sequence[Sequence[str]]) -> bool:
        """Answer a question that waits: per item a list of option labels or free texts.

        Returns:
            Whether it was this answer, as for `decide`.

        Raises:
            InvalidAnswer: A field can't take its answer; nothing was sent (2.x).
            ServerConnectionError: No answer came, and it isn't seen to be settled.
            StatusError: The server said no, and it isn't seen to be settled.
        """
        where = self._directory_of(question.session)
        told = "; ".join(", ".join(a) or "no answer" for a in answers)
        return self._settle(
            question, "answered", told, lambda: self.client.answer(question, where, answers)
        )

    def dismiss(self, question: Question, by: str = "") -> bool:
        """Refuse to answer a question; the turn stops. `by` says who did, if no person.

        Returns:
            Whether it was this answer, as for `decide`.

        Raises:
            ServerConnectionError: No answer came, and it isn't seen to be settled.
            StatusError: The server said no, and it isn't seen to be settled.
        """
        where = self._directory_of(question.session)
        return self._settle(question, "dismissed", by, lambda: self.client.dismiss(question, where))

    def _directory_of(self, session: str) -> str:
        known = next((s for s in self.turn.sessions if s.id == session), self.session)
        return known.directory or self.session.directory

    def _settle(
        self,
        request: Permission | Question,
        reply: str,
        message: str,
        send: Callable[[], None],
    ) -> bool:
        ours = True
        try:
            send()
        except NotFoundError:
            ours, reply = False, "answered elsewhere, or expired"
        except (ServerConnectionError, StatusError):
            if self._still_waits(request):
                raise
            ours, reply = False, "settled, perhaps by this answer"
        told = RequestReplied(request.session, request.id, reply, message if ours else "")
        self.recorder.answer(told.session, told.request, told.reply, told.message)
        self._fold([told])
        return ours

    def _still_waits(self, request: Permission | Question) -> bool:
        where = self._directory_of(request.session)
        waiting = {p.id for p in self.client.permissions(where)}
        return request.id in waiting | {q.id for q in self.client.questions(where)}

    # -- stopping ---------------------------------------------------------------------------------

    def abort(self, why: str = "") -> Turn:
        """Stop the turn on the server, prove it, and read what is left of it.

        An abort right after the prompt can be lost, and one that cancels a subagent lets the
        parent go on (1.18.33), so it is repeated until the session and its subagents are seen
        idle twice. Requests that still wait are then rejected, since the server leaves them in
        its lists. A prompt that waits in the inbox is taken back, and nothing else is stopped,
        also where that can't be proved.

        Args:
            why: The limit that it passed, if it is stopped for one.

        Returns:
            The turn: "aborted", or how it ended if it was quicker; "unknown" if it could not be
            seen to stop within 30 s.
        """
        limit = Failure(LIMIT_EXCEEDED, why) if why else None
        if not self.sent:
            return self._end("aborted", limit)
        before = self.turn
        self.abort_in_background().join()
        if self._withdrawn:
            return self._end("aborted", limit)
        if self._not_withdrawn is not None:
            return self._unconfirmed(self._not_withdrawn.what, why)
        try:
            if not abort_until_idle(
                self.client, self.session, lambda: self.turn.tree, STOP_TIMEOUT
            ):
                reason = f"it was not seen to stop within {STOP_TIMEOUT:.0f} s"
                return self._unconfirmed(reason, why)
            reject_requests(self.client, self.session.directory, self.turn.tree)
            self._fold([self.reread()])
        except OpenCodeError as error:
            return self._unconfirmed(error.what, why)
        never = self.turn.outcome == "failed" and not self.turn.answers
        unclear = self.turn.outcome in ("running", "interrupted", "aborted")
        if never or unclear or _cut_short(before, self.turn):
            return self._end("aborted", limit)
        return self.turn

    def _unconfirmed(self, reason: str, why: str) -> Turn:
        told = f"it was to be stopped ({why}): {reason}" if why else reason
        return self._end("unknown", Failure("AbortUnconfirmed", told))

    def leave(self, reason: str) -> Turn:
        """Stop caring: how the turn ends stays unknown."""
        return self._end("unknown", Failure("Left", reason))

    def _end(self, outcome: Outcome, failure: Failure | None) -> Turn:
        self._fold([TurnEnded(outcome, failure)])
        return self.turn

    def abort_in_background(self) -> threading.Thread:
        """Abort and reject, in a thread that also finishes when nobody waits for it. Works once."""

        def run() -> None:
            try:
                self._withdrawn = self._withdraw()
            except OpenCodeError as error:
                self._not_withdrawn = error
                return
            if not self._withdrawn:
                with suppress(OpenCodeError):
                    self.client.abort(self.session)
                    reject_requests(self.client, self.session.directory, self.turn.tree)

        if self._errand is None:
            self._errand = threading.Thread(target=run, name="opencode-abort", daemon=True)
            self._errand.start()
        return self._errand

    def _withdraw(self) -> bool:
        """Take a prompt back that waits in the inbox, or may: what runs there is another turn."""
        waits = any(m.id == self.turn.prompt for m in self.turn.inbox)
        if waits or (self.turn.queued and not self.turn.stored):
            with suppress(UnsupportedOperation):  # 1.x has none: there it is stopped with the other
                return self.client.cancel(self.session, self.turn.prompt)
        return False


def _cut_short(before: Turn, after: Turn) -> bool:
    """Whether a tool that was at work before did not come to its end."""
    open_then = {t.id for t in before.tools if t.status in ("pending", "running")}
    return any(t.id in open_then and t.status == "error" for t in after.tools)


# -- opening and sending ---------------------------------------------------------------------------


def open_stream(client: Client, directory: str, tap: Callable[[str], None] | None = None) -> Stream:
    """The events of a directory from now on; `tap` gets each frame as it came.

    Raises:
        ServerConnectionError: They can't be had within 15 s.
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
                return  # what came right behind it is for who follows
            case Disconnected(reason):
                why = reason
            case StreamProblem(error, fatal=True):
                raise error
    raise ServerConnectionError(
        f"The event stream of {client.url} could not be opened ({why}).",
        "Is the server still running? %oc_connect asks it.",
        sent=False,
    )


def send_in_thread(send: Callable[[], None]) -> tuple[threading.Thread, list[OpenCodeError]]:
    """Send something in a thread of its own; and the errors that came of it when that is over."""
    failed: list[OpenCodeError] = []

    def run() -> None:
        try:
            send()
        except OpenCodeError as error:
            failed.append(error)

    sending = threading.Thread(target=run, name="opencode-send", daemon=True)
    sending.start()
    return sending, failed
