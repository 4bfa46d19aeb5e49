"""Send a command to a session, once, and determine its effects.

1.x turns a command into a prompt with the id that we send. 2.x returns no id, so `correlate`
examines the session's new inputs and subagents; nothing uncertain is attributed to the command. A
record is saved in the session's metadata before the command is sent, so that it can be recovered
later. A command is never sent twice.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace

from ..client.client import Client
from ..client.stream import Stream
from ..core.formatting import in_one_line
from ..core.limits import Limits
from ..core.model import Session
from ..core.retry_safety import (
    GATEWAY_STATUSES,
    RetrySafety,
    SafetyLevel,
    assess_match,
    assess_turn,
    assess_unanswered_request,
)
from ..core.turn import Turn
from ..dialects.base import Prompt, SessionOptions
from ..errors import (
    NotFoundError,
    OpenCodeError,
    ServerConnectionError,
    StatusError,
    TurnInterrupted,
)
from ..recording.format import Recorder
from . import command_records
from .command_effects import (
    LATE,
    Baseline,
    LiveEvents,
    observe,
    subagent_results,
)
from .correlate import (
    DELIVERY,
    SHORT,
    Correlation,
    CorrelationStatus,
    Invocation,
    includes_arguments,
)
from .deliver import send_in_thread
from .follow import open_stream
from .lookup import choose_command, resolve_model_and_agent
from .run import Run
from .store import add_session_ceiling, is_busy

# -- the receipt -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class CommandReceipt:
    """What is known about a command that was sent once.

    Attributes:
        invocation: Its id; `%oc_command --recover` looks it up.
        command: The command's name.
        session: Id of the session that it was sent to.
        status: matched (its effect is known for certain), none (nothing was admitted), or
            ambiguous (something was admitted, but it may belong to something else).
        inputs: Ids of the prompts that it was turned into.
        children: Ids of the subagents' sessions that it started.
        evidence: The observations that support the status.
        turn: The turn that it started; None if it isn't matched or wasn't followed.
    """

    invocation: str
    command: str
    session: str
    status: CorrelationStatus
    inputs: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    turn: Turn | None = None

    def __repr__(self) -> str:
        became = ", ".join((*self.inputs, *self.children))
        details = (self.status, became, *self.evidence, self.todo)
        shown = "; ".join(d for d in details if d)
        return f"<CommandReceipt {self.what}: {shown}>"

    @property
    def what(self) -> str:
        """Command and invocation; only the invocation for a recovered 1.x command."""
        return f"/{self.command} {self.invocation}" if self.command else self.invocation

    @property
    def text(self) -> str:
        """The agent's last message; "" if no turn is known to be the command's."""
        return self.turn.text if self.turn else ""

    @property
    def resend(self) -> RetrySafety:
        """How safe it is to send the command again."""
        if self.turn is not None:
            return assess_turn(self.turn)
        return assess_match(self.status, self.evidence)

    @property
    def resend_safety(self) -> SafetyLevel:
        """safe, no_effects_seen, inspect (check its effects first), or unknown."""
        return self.resend.resend_safety

    @property
    def todo(self) -> str:
        """The next step for the user; "" if there is none."""
        if self.status == "matched":
            return ""
        again = f"look again: %oc_command --recover {self.invocation}"
        if self.status == "none":
            return again
        return f"{again}; for an exact result use %oc_command --isolated"


# -- sending ---------------------------------------------------------------------------------------


def with_turn(receipt: CommandReceipt, turn: Turn) -> CommandReceipt:
    """Return a copy of a receipt that includes the command's turn."""
    shared = ("its answer also answers a later prompt",) if turn.merged else ()
    return replace(receipt, turn=turn, evidence=(*receipt.evidence, *shared))


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A command that was sent, or will be sent when `run` starts; None if its turn is unknown."""

    receipt: CommandReceipt
    session: Session
    run: Run | None = None


def send_command(
    client: Client,
    session: Session,
    name: str,
    text: str,
    *,
    model: str | None = None,
    agent: str | None = None,
    variant: str | None = None,
    queue: bool = False,
    mark: bool = False,
    isolated: bool = False,
    fork: bool = False,
    limits: Limits | None = None,
) -> Dispatched:
    """Send a command to a session, once.

    Args:
        client: The session's server.
        session: The session; with `isolated`, it supplies the directory, with `fork`, the messages.
        name: The command's name, with or without a slash.
        text: The command's arguments, sent verbatim.
        model: `provider/model`; None leaves it to the command and the session.
        agent: The agent that answers; None leaves it to the command and the session.
        variant: A variant of the model.
        queue: If the session is busy, run the command after the current turn.
        mark: Append the invocation's id to the arguments (2.x), so that its effects can be
            identified. Automatic if the server reports a template that includes the arguments.
        isolated: Run the command in a new session of its own.
        fork: Create that session as a fork.
        limits: Limits on its turn while it is followed.

    Returns:
        The receipt, and for a matched command a run: `start()` it, then iterate for its turn.

    Raises:
        UnknownNameError: There is no such command, model, agent or variant.
        SessionBusyError: The session is working on another prompt.
        CostLimitError: A cost limit is already reached.
        StatusError: The server refused the command.
        ServerConnectionError: The command wasn't sent, or its effects can't be read.
    """
    # Check the names before a session is created: they depend on the directory.
    chosen, named = resolve_model_and_agent(client, session, model, agent, variant)
    command = choose_command(client.commands(session.directory), name)
    exact = client.dialect.command_keeps_prompt_id or isolated
    invocation = Invocation(
        _new_id("ses" if isolated and not fork else "cmd"),
        command.name,
        text,
        marked=not exact and (mark or includes_arguments(command.template)),
        isolated=isolated,
        description=command.description,
        at=int(time.time() * 1000),
    )
    prompt = Prompt(
        client.dialect.new_prompt_id(int(time.time() * 1000)),
        invocation.sent,
        named if agent else None,  # the session's agent would override the command's own
        chosen,
        delivery=DELIVERY,
        command=command.name,
    )
    busy = not isolated and is_busy(client, session, queued=queue)
    limits = add_session_ceiling(client, None if isolated else session, limits or Limits())
    if client.dialect.command_keeps_prompt_id:
        dispatched = _dispatch_as_prompt(client, session, prompt, isolated, fork, busy)
    else:
        if isolated:
            session = _isolated_session(client, session, invocation, fork)
        with _session_lock(client, session):
            dispatched = _dispatch_and_correlate(client, session, invocation, prompt, busy)
    if dispatched.run is not None:
        dispatched.run.limits = limits
    return dispatched


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"


def _title(name: str, text: str) -> str:
    return f"/{name} {in_one_line(text, SHORT)}".rstrip()


def _dispatch_as_prompt(
    client: Client, session: Session, prompt: Prompt, isolated: bool, fork: bool, busy: bool
) -> Dispatched:
    """Prepare a command for a server that uses our id for its prompt (1.x)."""
    name = prompt.command or ""
    if isolated:
        title = _title(name, prompt.text)
        session = (
            client.run(client.dialect.fork(session))
            if fork
            else client.create(title, session.directory)
        )
    run = Run(client, session, prompt, queued=busy)
    return Dispatched(receipt_of_prompt(session, prompt.id, name), session, run)


def receipt_of_prompt(session: Session, prompt: str, name: str) -> CommandReceipt:
    """Return the receipt of a command that became the prompt with our id (1.x)."""
    evidence = ("the server used the prompt id that we sent",)
    return CommandReceipt(prompt, name, session.id, "matched", (prompt,), evidence=evidence)


def _isolated_session(
    client: Client, session: Session, invocation: Invocation, fork: bool
) -> Session:
    """Create a session for one command. A fork gets its record later, as other sessions do."""
    if fork:
        forked, rules = client.run(client.dialect.fork(session)), client.session(session.id).rules
        if rules != forked.rules:
            # A fork must not allow what its original forbids.
            client.run(client.dialect.set_rules(forked, rules))
        return forked
    record = command_records.make_record(replace(session, id=invocation.id), invocation)
    metadata = command_records.metadata_with(invocation.id, record)
    title = _title(invocation.name, invocation.text)
    options = SessionOptions(id=invocation.id, metadata=metadata)
    return client.create(title, session.directory, options)


def _dispatch_and_correlate(
    client: Client, session: Session, invocation: Invocation, prompt: Prompt, busy: bool
) -> Dispatched:
    recorder, live = Recorder(), LiveEvents(client.dialect, session.id)

    def tap(text: str) -> None:
        recorder.frame(text)
        live.frame(text)

    stream = open_stream(client, session.directory, tap)
    # The interrupt handler is outermost: a second interrupt may hit while the stream closes.
    with _explain_interrupt(invocation), ExitStack() as cleanup:
        cleanup.callback(stream.close)
        before = Baseline.read(client, session)
        record = command_records.make_record(session, invocation) | before.fields
        command_records.save(client, session, invocation.id, record)
        answered = _post(client, session, invocation, prompt)
        with _explain_read_failure(invocation):
            correlation = observe(client, session, invocation, before, live, answered=answered)
            run = follow_effects(client, session, correlation, busy, stream, recorder)
        receipt = receipt_of(session, invocation, correlation)
        if answered or receipt.status == "matched":
            record |= {"inputs": receipt.inputs, "children": receipt.children}
            record |= {"status": receipt.status, "settled": True}
            with suppress(OpenCodeError):  # then `recover` correlates again
                command_records.save(client, session, invocation.id, record)
        if run is not None:
            cleanup.pop_all()  # from here on the run closes the stream
        return Dispatched(receipt, session, run)


_locks: dict[tuple[str, str], threading.Lock] = {}
_locks_guard = threading.Lock()


@contextmanager
def _session_lock(client: Client, session: Session) -> Iterator[None]:
    """Allow one command at a time per session; this covers only the current kernel."""
    with _locks_guard:
        lock = _locks.setdefault((client.url, session.id), threading.Lock())
    with lock:
        yield


@contextmanager
def _explain_interrupt(invocation: Invocation) -> Iterator[None]:
    """Turn an interrupt into an error that says how to find out whether the command ran."""
    try:
        yield
    except KeyboardInterrupt:
        stopped = TurnInterrupted(
            "Interrupted; the command may have run. To see its result: "
            f"%oc_command --recover {invocation.id}"
        )
        stopped.resend = assess_unanswered_request(f"command {invocation.name}", sent=True)
        raise stopped from None


@contextmanager
def _explain_read_failure(invocation: Invocation) -> Iterator[None]:
    """Turn a failed read into an error that says that the command was sent, and how to recover."""
    try:
        yield
    except OpenCodeError as error:
        again = f"Look again later: %oc_command --recover {invocation.id}"
        gone = "The session may have been deleted; then the result can't be recovered."
        unread = ServerConnectionError(
            f"Command {invocation.name} was sent once, but its result can't be read: {error.what}",
            gone if isinstance(error, NotFoundError) else again,
        )
        unread.resend = assess_unanswered_request(f"command {invocation.name}", sent=True)
        raise unread from error


def _post(client: Client, session: Session, invocation: Invocation, prompt: Prompt) -> bool:
    """Send the command, once; False if it is unknown whether the server ran it."""
    answered: list[bool] = []

    def send() -> None:
        client.run(client.dialect.command(session, prompt))
        answered.append(True)

    # In a thread, so that an interrupt needn't wait for shell commands in the template.
    sending, failed = send_in_thread(send)
    while sending.is_alive():
        sending.join(0.05)
    match failed:
        case [ServerConnectionError(sent=True)]:
            return False
        case [StatusError() as error] if error.status in GATEWAY_STATUSES or not error.name:
            return False  # the refusal came from a gateway
        case [StatusError(status=status) as error] if status >= 500:
            error.todo = f"To see its effects: %oc_command --recover {invocation.id}"
            raise error
        case [error]:
            raise error
    return bool(answered)


def receipt_of(
    session: Session, invocation: Invocation, correlation: Correlation
) -> CommandReceipt:
    """Return the receipt of a command whose effects were correlated (2.x)."""
    return CommandReceipt(
        invocation.id,
        invocation.name,
        session.id,
        correlation.status,
        tuple(i.id for i in correlation.inputs),
        tuple(c.id for c in correlation.children),
        correlation.evidence,
    )


def follow_effects(
    client: Client,
    session: Session,
    correlation: Correlation,
    queued: bool,
    stream: Stream | None = None,
    recorder: Recorder | None = None,
) -> Run | None:
    """Return a run that follows the matched turn, which is already running; None if no match."""
    if correlation.inputs:
        first = correlation.inputs[0]
        prompt = Prompt(first.id, first.text)
        return Run(
            client,
            session,
            prompt,
            running=True,
            queued=queued,
            stream=stream,
            recorder=recorder,
        )
    if correlation.children and correlation.children[0].prompt:
        child = correlation.children[0]
        below = client.session(child.id)
        prompt = Prompt(child.prompt, child.text)
        return Run(client, below, prompt, running=True, stream=stream, recorder=recorder)
    return None


def follow_subagent_result(client: Client, dispatched: Dispatched) -> Run | None:
    """Follow the turn in which a session receives the result of a command's subagent.

    Args:
        client: The session's server.
        dispatched: The command, whose own turn is over.

    Returns:
        A run that follows that turn; None if it doesn't start within 3 s.

    Raises:
        ServerConnectionError: The server doesn't answer.
        StatusError: The server refused a read.
    """
    deadline = time.monotonic() + LATE
    with suppress(NotFoundError):  # the session was deleted meanwhile
        while dispatched.receipt.children and time.monotonic() < deadline:
            results = subagent_results(client, dispatched.session)
            for child in dispatched.receipt.children:
                if result := results.get(child):
                    prompt = Prompt(result.id, result.text)
                    return Run(client, dispatched.session, prompt, running=True, queued=True)
            time.sleep(0.1)
    return None
