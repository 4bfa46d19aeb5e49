"""Run a prompt to its end: send it once, follow its turn, send answers, stop it.

`prepare` checks a prompt and returns a `Run`; `attach` returns one for a turn that is already
running. A `Run` joins four objects around one `Progress`: `PromptDelivery` sends, `Follower`
listens, `Answers` replies and `Stop` stops. It displays nothing and makes no decisions for a user.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from ..client.client import Client
from ..client.stream import Stream
from ..client.transport import RecordingTransport
from ..core.limits import Limits
from ..core.model import Attachment, Decision, Failure, Permission, Question, Session
from ..core.turn import LocalData, Turn
from ..dialects.base import Delivery, Prompt
from ..errors import OpenCodeError, UnknownNameError
from ..recording.format import FORMAT_VERSION, VERSION_KEY, Recorder
from .answer import Answers
from .deliver import PromptDelivery
from .follow import TICK, Follower
from .lookup import resolve_model_and_agent
from .progress import Progress
from .stop import Stop
from .store import add_session_ceiling, is_busy


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
    """Check a prompt against the server's models and agents, and prepare it for sending.

    Args:
        client: The server.
        session: The session.
        text: The prompt, sent verbatim.
        model: `provider/model`; None uses the session's model.
        agent: The agent that answers; None uses the session's agent.
        variant: A variant of the model.
        files: The files to attach.
        queue: If the session is busy, run the prompt after the current turn.
        steer: If the session is busy, join the current turn at its next step (2.x).
        limits: Limits on the turn while it is followed; None only guards against loops.

    Returns:
        The run; its `start()` sends the prompt.

    Raises:
        UnknownNameError: There is no such model, agent or variant.
        SessionBusyError: The session is working on another prompt.
        UnsupportedOperation: The server doesn't support steering.
        CostLimitError: A cost limit is already reached.
    """
    session = client.session(session.id)  # its agent and model may have changed since it was read
    chosen, named = resolve_model_and_agent(client, session, model, agent, variant)
    new_id = client.dialect.new_prompt_id(int(time.time() * 1000))
    delivery: Delivery | None = "steer" if steer else "queue" if queue else None
    prompt = Prompt(new_id, text, named, chosen, files, delivery=delivery)
    client.dialect.check(prompt)
    busy = is_busy(client, session, queued=delivery is not None)
    limits = add_session_ceiling(client, session, limits or Limits())
    return Run(client, session, prompt, queued=busy, limits=limits)


def attach(client: Client, session: Session, limits: Limits | None = None) -> Run:
    """Prepare to follow the current turn of a session, or its last one.

    The limit on the session's cost is not applied, since its earlier cost isn't read.

    Raises:
        UnknownNameError: The session has no prompt yet.
    """
    messages = client.messages(session)
    prompts = [m for m in messages if m.role == "user" and not m.synthetic]
    if not prompts:
        raise UnknownNameError(
            f"Session {session.id} ({session.title}) has no prompt yet.",
            "Send one: %oc_prompt Explain this project",
        )
    # Queued prompts are newer than the running one. Only the last answer can be in progress: a
    # killed server leaves unfinished answers behind.
    last = next((m for m in reversed(messages) if m.role == "assistant"), None)
    at_work = None if last is None or last.completed else last
    before = [p for p in prompts if at_work and (p.created or 0) <= (at_work.created or 0)]
    prompt = (before or prompts)[-1]
    return Run(client, session, Prompt(prompt.id, prompt.text), running=True, limits=limits)


class Run:
    """A turn on the server that is followed by this client.

    `start()` sends the prompt; then iterate for the states of the turn, at least one per tick,
    until it has an outcome. A turn that exceeds its `limits` is aborted, and `turn.stopped` says
    why.

    Args:
        client: The server.
        session: The session that the turn runs in.
        prompt: The prompt.
        running: Whether the server already has the prompt.
        queued: Whether the prompt waits for another turn to end.
        limits: Limits on the turn.
        stream: An open stream, if there is one.
        recorder: The recorder that receives the frames of that stream.
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
        recorder = recorder or Recorder()
        turn = Turn(session.id, prompt.id, queued=queued, local=_asked(session, prompt))
        self.client = client.with_transport(RecordingTransport(client.transport, recorder.reply))
        self.session = session
        self.prompt = prompt
        self.limits = limits or Limits()
        self._checked: Turn | None = None
        self._progress = Progress(turn, recorder)
        self._delivery = PromptDelivery(self.client, session, prompt, self._progress, sent=running)
        self._follower = Follower(self.client, session, self._progress, stream)
        self._answers = Answers(self.client, session, self._progress)
        self._stop = Stop(self.client, session, self._progress, self._delivery, self._follower)

    @property
    def turn(self) -> Turn:
        """The latest state of the turn."""
        return self._progress.turn

    @property
    def note(self) -> str:
        """The state of the connection in a sentence; "" if there is no problem."""
        return self._progress.note

    @property
    def sent(self) -> bool:
        """Whether the server has the prompt or may have it."""
        return self._delivery.sent

    @property
    def directory(self) -> str:
        """The directory of the session."""
        return self.session.directory

    @property
    def always_scope(self) -> str:
        """The scope of an "always" reply on this server, in words."""
        return self.client.dialect.always_scope

    @property
    def waiting(self) -> tuple[Permission | Question, ...]:
        """The requests that can be answered now, oldest first."""
        return self.turn.waiting if self.turn.outcome == "running" else ()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening. The turn itself continues."""
        self._follower.close()
        if self.turn.outcome == "running":  # else it is attached, and an error may hold this turn
            self._progress.attach_capture()

    def start(self) -> None:
        """Open the stream, then send the prompt, once, unless the server already has it.

        If it is unknown whether the prompt arrived, it is read back.

        Raises:
            ServerConnectionError: The stream doesn't open within 15 s, or no server is reached;
                the prompt was not sent.
            StatusError: The server refused the prompt.
            TurnError: It is unknown whether the prompt arrived.
        """
        try:
            self._follower.open()
        except OpenCodeError as error:
            if not self.sent:
                self._delivery.not_sent(error)
            raise
        self._progress.recorder.begin(self._head())
        if self.sent:
            self._follower.poll_now()
        else:
            self._delivery.send()

    def confirm_stored(self) -> None:
        """Read the prompt back from the server.

        Raises:
            TurnError: The server doesn't list it, or doesn't reply.
        """
        self._delivery.confirm()

    def __iter__(self) -> Iterator[Turn]:
        while True:
            self._follower.listen(TICK)
            if why := self._exceeded_limit():
                self._progress.note = f"Stopping the turn: {why}."
                yield self.turn
                self.abort(why)
                self._progress.note = ""
            yield self.turn
            if self.turn.outcome != "running":
                return

    def _exceeded_limit(self) -> str:
        """Describe the limit that the turn has exceeded; each state is checked once."""
        if self.turn is self._checked:
            return ""
        self._checked = self.turn
        return self.limits.exceeded_limit(self.turn)

    def decide(
        self, permission: Permission, decision: Decision, message: str = "", by: str = ""
    ) -> bool:
        """Answer a pending permission.

        Args:
            permission: The permission.
            decision: "once", "always" or "reject".
            message: The message to the agent with a rejection.
            by: The name of the policy that decided, if not a person; recorded with the answer.

        Returns:
            Whether this answer settled it: False if it had already been settled elsewhere.

        Raises:
            ServerConnectionError: There was no reply, and the server still lists the permission.
            StatusError: The server replied with an error, and still lists the permission.
        """
        return self._answers.decide(permission, decision, message, by)

    def answer(self, question: Question, answers: Sequence[Sequence[str]]) -> bool:
        """Answer a pending question: per item a list of option labels or free texts.

        Returns and raises like `decide`; also raises InvalidAnswer if an answer is invalid; then
        nothing was sent (2.x).
        """
        return self._answers.answer(question, answers)

    def dismiss(self, question: Question, by: str = "") -> bool:
        """Dismiss a question, which stops the turn; `by` is as for `decide`.

        Returns and raises like `decide`.
        """
        return self._answers.dismiss(question, by)

    def abort(self, why: str = "") -> Turn:
        """Stop the turn on the server, confirm that, and read its final state.

        An abort right after the prompt can be lost, and after an abort that only reaches a
        subagent the parent continues (1.18.33). So it is repeated until the session and its
        subagents are seen idle twice. Pending requests are then rejected, since the server leaves
        them in its lists. A prompt that is still in the inbox is withdrawn instead, and nothing
        else is stopped, even if the withdrawal can't be confirmed.

        Args:
            why: The limit that the turn exceeded, if that is the reason.

        Returns:
            The turn: "aborted", or its own outcome if it ended first; "unknown" if it was not
            seen to stop within 30 s.
        """
        return self._stop.abort(why)

    def abort_in_background(self) -> threading.Thread:
        """Request the abort in a thread that finishes even if nobody waits for it."""
        return self._stop.request()

    def leave(self, reason: str) -> Turn:
        """Stop following the turn; its outcome stays unknown."""
        return self._progress.end("unknown", Failure("Left", reason))

    def reread(self) -> Turn:
        """Read the store, and return the turn as stored."""
        self._progress.add([self._follower.reread()])
        return self.turn

    def _head(self) -> dict[str, object]:
        """The first line of a recording of this turn."""
        session, prompt = self.session, self.prompt
        fields = {"text": prompt.text, "agent": prompt.agent, "command": prompt.command}
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
            "prompt": {"id": prompt.id, **{k: v for k, v in fields.items() if v}},
            "queued": self.turn.queued,
        }


def _asked(session: Session, prompt: Prompt) -> LocalData:
    """Who is asked to answer a prompt. A command may choose its own agent and model."""
    if prompt.command:
        return LocalData(agent=prompt.agent, model=prompt.model)
    return LocalData(agent=prompt.agent or session.agent, model=prompt.model or session.model)
