"""Gives a session a command, once, and finds out what came of it.

1.x makes a prompt of it that has our id. On 2.x what the session's log and its subagents show
afterwards is all there is, and `matching` concludes from that; what isn't certain is not shown as
the command's. What was given is kept with the session before it is sent, so that it can be found
again. It is never sent twice.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, TypeVar

from ..client.client import Client
from ..client.stream import Stream
from ..core.formatting import in_one_line
from ..core.limits import Limits
from ..core.model import LogEntry, Message, Session
from ..core.retry_safety import (
    GATEWAY_STATUSES,
    RetrySafety,
    SafetyLevel,
    assess_turn,
    assess_unanswered_request,
    of_match,
)
from ..core.turn import Turn
from ..dialects.base import Prompt, SessionOptions
from ..errors import (
    NotFoundError,
    OpenCodeError,
    ServerConnectionError,
    StatusError,
    TurnInterrupted,
    UnknownNameError,
    UnsupportedOperation,
)
from ..recording.format import Recorder
from .correlate import (
    DELIVERY,
    SHORT,
    AdmittedInput,
    ChildSession,
    Correlation,
    CorrelationStatus,
    Invocation,
    admitted_inputs,
    agent_was_busy,
    correlate,
    includes_arguments,
    is_admitted,
    subagent_source,
)
from .deliver import send_in_thread
from .follow import open_stream
from .lookup import choose_command, resolve_model_and_agent
from .metadata import load_records, save_record, with_records
from .run import Run
from .store import add_session_ceiling, is_busy

Thing = TypeVar("Thing", "AdmittedInput", "ChildSession")

_KIND = "commands"  # of what is kept
_MOST = 20  # of them, in one session
_LONG = 2_000  # characters of the arguments that are kept
_OPEN = 60_000  # ms in which a command without an answer may still arrive
_LATE = 3.0  # seconds in which a command whose answer was lost shows itself


# -- the receipt -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class CommandReceipt:
    """What is known of a command that was given once.

    Attributes:
        invocation: Its id, with which `%oc_command --recover` finds it again.
        command: The command's name.
        session: Where it was given.
        status: matched (what it led to is known for certain), none (nothing was admitted), or
            ambiguous (something was, and nothing says whose it is).
        inputs: Ids of the prompts that it became.
        children: Ids of the subagents' sessions that it became.
        evidence: What was seen.
        turn: What came of it; None of what isn't matched or wasn't followed.
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
        told = (self.status, became, *self.evidence, self.todo)
        shown = "; ".join(t for t in told if t)
        return f"<CommandReceipt {self.what}: {shown}>"

    @property
    def what(self) -> str:
        """Command and invocation; of one that 1.x made its prompt of, the prompt alone is known."""
        return f"/{self.command} {self.invocation}" if self.command else self.invocation

    @property
    def text(self) -> str:
        """What the agent said at last; "" if nothing is known to be the command's."""
        return self.turn.text if self.turn else ""

    @property
    def resend(self) -> RetrySafety:
        """Whether it can be given again, as far as that is known."""
        if self.turn is not None:
            return assess_turn(self.turn)
        return of_match(self.status, self.evidence)

    @property
    def resend_safety(self) -> SafetyLevel:
        """safe, no_effects_seen, inspect (look at what it did first), or unknown."""
        return self.resend.resend_safety

    @property
    def todo(self) -> str:
        """What to do next; "" if nothing."""
        if self.status == "matched":
            return ""
        again = f"look again: %oc_command --recover {self.invocation}"
        return again if self.status == "none" else f"{again}; exact is: %oc_command --isolated"


# -- giving ----------------------------------------------------------------------------------------


def with_turn(receipt: CommandReceipt, turn: Turn) -> CommandReceipt:
    """A receipt with the turn that came of it."""
    shared = ("its answer is that to a later prompt, too",) if turn.merged else ()
    return replace(receipt, turn=turn, evidence=(*receipt.evidence, *shared))


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A command that was given, or is as soon as its `run` starts; without a run it isn't known."""

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
    """Give a session a command, once.

    Args:
        client: Its server.
        session: Which; of an isolated one where it is to be, of a fork what it is made of.
        name: The command's, with or without a slash.
        text: Its arguments, sent exactly as they are.
        model: `provider/model`; None leaves it to the command and the session.
        agent: Who answers; None leaves it to the command and the session.
        variant: A variant of the model.
        queue: Also give it to a session that works; it comes after that turn.
        mark: Put the invocation's id behind the arguments (2.x), so that what it becomes can be
            told. Done by itself where the server tells a template that says the arguments.
        isolated: Give it to a new session that nothing else is done in.
        fork: Make that one a fork.
        limits: What stops its turn while it is followed.

    Returns:
        The receipt. What is matched has a run: `start()` it, and iterate for its turn.

    Raises:
        UnknownNameError: No such command, model, agent or variant.
        SessionBusyError: The session works on another prompt.
        CostLimitError: What may be spent is spent.
        StatusError: The server refused it.
        ServerConnectionError: It wasn't sent, or what came of it can't be read.
    """
    # Names first: they are checked where the command would be run.
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
        named if agent else None,  # else a command's own agent would never be asked
        chosen,
        delivery=DELIVERY,
        command=command.name,
    )
    busy = not isolated and is_busy(client, session, queued=queue)
    limits = add_session_ceiling(client, None if isolated else session, limits or Limits())
    if client.dialect.command_keeps_prompt_id:
        given = _give_named(client, session, prompt, isolated, fork, busy)
    else:
        if isolated:
            session = _own_session(client, session, invocation, fork)
        with _alone(client, session):
            given = _give_unnamed(client, session, invocation, prompt, busy)
    if given.run is not None:
        given.run.limits = limits
    return given


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"


def _title(name: str, text: str) -> str:
    return f"/{name} {in_one_line(text, SHORT)}".rstrip()


def _give_named(
    client: Client, session: Session, prompt: Prompt, isolated: bool, fork: bool, busy: bool
) -> Dispatched:
    """A server that takes our id for the prompt it makes: nothing has to be found out."""
    name = prompt.command or ""
    if isolated:
        title = _title(name, prompt.text)
        session = (
            client.run(client.dialect.fork(session))
            if fork
            else client.create(title, session.directory)
        )
    run = Run(client, session, prompt, queued=busy)
    return Dispatched(_named(session, prompt.id, name), session, run)


def _named(session: Session, prompt: str, name: str) -> CommandReceipt:
    why = "the server gave its prompt the id that it was sent with"
    return CommandReceipt(prompt, name, session.id, "matched", (prompt,), evidence=(why,))


def _own_session(client: Client, session: Session, invocation: Invocation, fork: bool) -> Session:
    """A session for one command; a fork gets to know of it when it is noted."""
    if fork:
        made, rules = client.run(client.dialect.fork(session)), client.session(session.id).rules
        if rules != made.rules:
            # What is forbidden there is forbidden here.
            client.run(client.dialect.set_rules(made, rules))
        return made
    own = replace(session, id=invocation.id)
    metadata = with_records({}, _KIND, {invocation.id: _record(own, invocation)})
    title = _title(invocation.name, invocation.text)
    options = SessionOptions(id=invocation.id, metadata=metadata)
    return client.create(title, session.directory, options)


def _give_unnamed(
    client: Client, session: Session, invocation: Invocation, prompt: Prompt, busy: bool
) -> Dispatched:
    if invocation.id != session.id:  # a session of that id was made with it
        save_record(client, session, _KIND, invocation.id, _record(session, invocation), _MOST)
    before = client.log_entries(session)
    seen = _Seen(before, frozenset(c.id for c in client.run(client.dialect.children(session))))
    recorder = Recorder()
    stream = open_stream(client, session.directory, recorder.frame)
    with _told_if_stopped(invocation), ExitStack() as held:  # a second one may hit the closing
        held.callback(stream.close)
        answered = _post(client, session, invocation, prompt)
        with _told_if_unread(invocation):
            found = _look(client, session, invocation, seen, answered)
            run = _follow(client, session, found, busy, stream, recorder)
        receipt = _receipt(session, invocation, found)
        _note_found(client, session, invocation, receipt, answered)
        if run is not None:
            held.pop_all()  # from here on the run closes it
        return Dispatched(receipt, session, run)


def _note_found(
    client: Client,
    session: Session,
    invocation: Invocation,
    receipt: CommandReceipt,
    answered: bool,
) -> None:
    """Keep what was found out. Where that fails it is concluded again when it is asked for."""
    if answered or receipt.status == "matched":
        found = {"inputs": receipt.inputs, "children": receipt.children, "settled": True}
        with suppress(OpenCodeError):
            record = _record(session, invocation) | found
            save_record(client, session, _KIND, invocation.id, record, _MOST)


_locks: dict[tuple[str, str], threading.Lock] = {}
_locking = threading.Lock()


@contextmanager
def _alone(client: Client, session: Session) -> Iterator[None]:
    """One command at a time in a session, as far as this kernel goes."""
    with _locking:
        lock = _locks.setdefault((client.url, session.id), threading.Lock())
    with lock:
        yield


@contextmanager
def _told_if_stopped(invocation: Invocation) -> Iterator[None]:
    """Say of an interrupt from now on that the command may have been run, and where to look."""
    try:
        yield
    except KeyboardInterrupt:
        stopped = TurnInterrupted(
            f"Stopped; the command may have been run. %oc_command --recover {invocation.id} shows "
            "what came of it."
        )
        stopped.resend = assess_unanswered_request(f"command {invocation.name}", sent=True)
        raise stopped from None


@contextmanager
def _told_if_unread(invocation: Invocation) -> Iterator[None]:
    """Say of what can't be read that the command was sent, and where to look."""
    try:
        yield
    except OpenCodeError as error:
        again = f"Look again later: %oc_command --recover {invocation.id}"
        gone = "Was the session deleted meanwhile? Then nothing tells any more what came of it."
        told = ServerConnectionError(
            f"Command {invocation.name} was sent once, and what came of it can't be read: "
            f"{error.what}",
            gone if isinstance(error, NotFoundError) else again,
        )
        told.resend = assess_unanswered_request(f"command {invocation.name}", sent=True)
        raise told from error


def _post(client: Client, session: Session, invocation: Invocation, prompt: Prompt) -> bool:
    """Send the command, once; False if no answer says whether the server ran it."""
    answered: list[bool] = []

    def send() -> None:
        client.run(client.dialect.command(session, prompt))
        answered.append(True)

    # In a thread, so that an interrupt needn't wait for what the command runs first.
    sending, failed = send_in_thread(send)
    while sending.is_alive():
        sending.join(0.05)
    match failed:
        case [ServerConnectionError(sent=True)]:
            return False
        case [StatusError() as error] if error.status in GATEWAY_STATUSES or not error.name:
            return False  # something before the server said so
        case [StatusError(status=status) as error] if status >= 500:
            error.todo = f"See what it admitted: %oc_command --recover {invocation.id}"
            raise error
        case [error]:
            raise error
    return bool(answered)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What there was before: the log, and the sessions below."""

    log: tuple[LogEntry, ...]
    children: frozenset[str]

    @property
    def after(self) -> int | None:
        """The log's last number."""
        return self.log[-1].seq if self.log else None


def _look(
    client: Client, session: Session, invocation: Invocation, seen: _Seen, answered: bool
) -> Correlation:
    """What came of a command. One whose answer was lost may still show itself."""
    deadline = time.monotonic() + (0 if answered else _LATE)
    while True:
        since = client.log_entries(session, seen.after)
        new = [c for c in client.run(client.dialect.children(session)) if c.id not in seen.children]
        children = [_child(client, c) for c in new]
        found = correlate(
            invocation,
            admitted_inputs(since),
            children,
            answered=answered,
            competing=_rivals(session, seen.log, since) - {invocation.id},
            at_work=agent_was_busy(seen.log, since),
        )
        if found.status == "matched" or time.monotonic() >= deadline:
            return found
        time.sleep(0.2)


def _rivals(
    session: Session, before: Sequence[LogEntry], since: Sequence[LogEntry]
) -> frozenset[str]:
    """The commands that were noted since, or shortly before and without an answer by then."""
    first: dict[str, int] = {}
    settled: set[str] = set()
    for entry in before:
        for key, record in _noted(session, entry.metadata).items():
            first.setdefault(key, entry.at or 0)
            if record.get("settled"):  # whatever another notebook, which had read it before, writes
                settled.add(key)
    recent = (before[-1].at or 0) - _OPEN if before else 0
    unsettled = {key for key, at in first.items() if at >= recent} - settled
    # What a command becomes comes after its note: one noted later did not become this.
    earlier = takewhile(lambda e: not is_admitted(e) or subagent_source(e), since)
    new = {key for entry in earlier for key in _noted(session, entry.metadata)} - first.keys()
    return frozenset(unsettled | new)


def _child(client: Client, session: Session) -> ChildSession:
    first = next(
        (i for i in admitted_inputs(client.log_entries(session)) if i.kind == "user"),
        AdmittedInput(""),
    )
    return ChildSession(session.id, session.title, first.id, first.text)


def _receipt(session: Session, invocation: Invocation, found: Correlation) -> CommandReceipt:
    return CommandReceipt(
        invocation.id,
        invocation.name,
        session.id,
        found.status,
        tuple(i.id for i in found.inputs),
        tuple(c.id for c in found.children),
        found.evidence,
    )


def _follow(
    client: Client,
    session: Session,
    found: Correlation,
    queued: bool,
    stream: Stream | None = None,
    recorder: Recorder | None = None,
) -> Run | None:
    """The turn of what was matched, as one that runs already."""
    if found.inputs:
        first = found.inputs[0]
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
    if found.children and found.children[0].prompt:
        child = found.children[0]
        below = client.session(child.id)
        prompt = Prompt(child.prompt, child.text)
        return Run(client, below, prompt, running=True, stream=stream, recorder=recorder)
    return None


def follow_subagent_result(client: Client, given: Dispatched) -> Run | None:
    """The turn in which a session hears what a command's subagent found.

    Args:
        client: Its server.
        given: The command, whose own turn is over.

    Returns:
        A run that follows that turn, once it is there; None if none comes within 3 s.

    Raises:
        ServerConnectionError: The server doesn't answer.
        StatusError: The server refuses to be read.
    """
    deadline = time.monotonic() + _LATE
    with suppress(NotFoundError):  # deleted meanwhile: it hears nothing any more
        while given.receipt.children and time.monotonic() < deadline:
            for told in admitted_inputs(client.log_entries(given.session)):
                if told.subagent_session in given.receipt.children:
                    prompt = Prompt(told.id, told.text)
                    return Run(client, given.session, prompt, running=True, queued=True)
            time.sleep(0.1)
    return None


# -- finding again ---------------------------------------------------------------------------------


def recover(client: Client, invocation: str, sessions: Sequence[Session] = ()) -> Dispatched:
    """Find out again what came of a command, whoever gave it. Nothing is sent.

    Args:
        client: Its server.
        invocation: The id of its receipt.
        sessions: Where to look first; then all of the server are looked through.

    Returns:
        The receipt as it can be written now; what is matched has a run, which follows its turn.

    Raises:
        UnknownNameError: No session of this server knows it.
        ServerConnectionError: The server doesn't answer.
        StatusError: The server refuses to be read.
    """
    places = _places(client, invocation, sessions)
    if client.dialect.command_keeps_prompt_id:
        return _recover_named(client, invocation, places)
    for session in places:
        entries = client.log_entries(session)
        for told in (session.metadata, *(e.metadata for e in reversed(entries))):
            if record := _noted(session, told).get(invocation):
                return _recover(client, session, _invocation(invocation, record), record, entries)
    raise _unknown(invocation)


def _noted(session: Session, metadata: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What is kept of a session's own commands."""
    records = load_records(metadata, _KIND).items()
    return {k: r for k, r in records if isinstance(r, dict) and r.get("session") == session.id}


def _places(client: Client, invocation: str, sessions: Sequence[Session]) -> Iterator[Session]:
    """Sessions that may know of a command; those first that are said to."""
    for session in sessions:
        with suppress(NotFoundError):
            yield client.session(session.id)
    if invocation.startswith("ses_"):
        with suppress(NotFoundError):
            yield client.session(invocation)
        return
    tried = {s.id for s in sessions}
    named = client.dialect.command_keeps_prompt_id
    for session in client.sessions(everywhere=True):
        if session.id not in tried and (named or invocation in _noted(session, session.metadata)):
            yield session


def _unknown(invocation: str) -> UnknownNameError:
    return UnknownNameError(
        f"No session of this server knows of command {invocation!r}.",
        "%oc_command --given lists those that are kept.",
    )


def _recover_named(client: Client, invocation: str, places: Iterator[Session]) -> Dispatched:
    for session in places:
        message: Message | None = None
        with suppress(NotFoundError):
            message = client.run(client.dialect.message(session, invocation))
        if message is not None:
            run = Run(client, session, Prompt(message.id, message.text), running=True, queued=True)
            return Dispatched(_named(session, invocation, ""), session, run)
    raise _unknown(invocation)


def _recover(
    client: Client,
    session: Session,
    invocation: Invocation,
    record: dict[str, Any],
    entries: Sequence[LogEntry],
) -> Dispatched:
    """What was concluded then; else what can be concluded now."""
    began = next((e for e in entries if invocation.id in _noted(session, e.metadata)), None)
    since = [e for e in entries if began is None or e.seq > began.seq]
    below = [c for c in client.run(client.dialect.children(session)) if _younger(c, began)]
    inputs, children = admitted_inputs(since), [_child(client, c) for c in below]
    if record.get("inputs") or record.get("children"):
        found = Correlation(
            "matched",
            tuple(_by_id(i, inputs) or AdmittedInput(i) for i in record.get("inputs", ())),
            tuple(_by_id(c, children) or ChildSession(c) for c in record.get("children", ())),
            ("it was matched when it was given",),
        )
    else:
        found = correlate(invocation, inputs, children, answered=False)
    return Dispatched(
        _receipt(session, invocation, found), session, _follow(client, session, found, queued=True)
    )


def _by_id(key: str, things: Sequence[Thing]) -> Thing | None:
    return next((t for t in things if t.id == key), None)


def _younger(child: Session, began: LogEntry | None) -> bool:
    return began is None or (child.created or 0) >= (began.at or 0)


def list_sent_commands(client: Client) -> tuple[tuple[Invocation, Session, bool], ...]:
    """The commands that are kept with a project's sessions.

    Returns:
        Of each, the latest first: what was given, where, and whether what it led to is known.

    Raises:
        UnsupportedOperation: On 1.x, where a command is the prompt that it became.
        ServerConnectionError: The server doesn't answer.
        StatusError: The server refuses to be read.
    """
    if client.dialect.command_keeps_prompt_id:
        raise UnsupportedOperation(
            "OpenCode 1.x keeps no list of commands: each is a prompt, with an id. OpenCode 2.x "
            "names none, so there this package keeps one.",
            "%oc_history lists prompts, and %oc_command --recover takes their ids.",
        )
    found = [
        (_invocation(key, record), session, bool(record.get("inputs") or record.get("children")))
        for session in client.sessions()
        for key, record in _noted(session, session.metadata).items()
    ]
    return tuple(sorted(found, key=lambda f: f[0].at or 0, reverse=True))


def _record(session: Session, invocation: Invocation) -> dict[str, Any]:
    """What is kept of a command, as JSON. A fork may have a copy: it names its session."""
    return {
        "session": session.id,
        "name": invocation.name,
        "text": invocation.text[:_LONG],
        "marked": invocation.marked,
        "isolated": invocation.isolated,
        "at": invocation.at,
    }


def _invocation(key: str, record: dict[str, Any]) -> Invocation:
    def told(name: str) -> str:
        return str(record.get(name) or "")

    at = record.get("at")
    return Invocation(
        key,
        told("name"),
        told("text"),
        marked=record.get("marked") is True,
        isolated=record.get("isolated") is True,
        at=at if isinstance(at, int) else None,
    )
