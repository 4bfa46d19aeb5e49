"""Changes of a session that are no turn: fork, revert, compact, rename, archive, share.

Each is sent once, read back, and told as what it did: `confirmed` is False where the server took it
and the reading doesn't show it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ..client.client import Client, optional
from ..core.formatting import format_usd
from ..core.limits import Limits
from ..core.model import Message, ModelRef, Session
from ..core.retry_safety import of_running_request
from ..errors import SessionBusyError, TurnInterrupted, UnknownNameError
from .lookup import choose_model, default_model
from .store import add_session_ceiling, archive_tree


@dataclass(frozen=True, slots=True, repr=False)
class EditResult:
    """What was done to a session.

    Attributes:
        session: The session as it is now; of a fork, the new one.
        what: What was done, in words.
        confirmed: Whether it was seen when the session was read again.
        undo: How it is undone, whichever session is current then; "" if it can't be.
    """

    session: Session
    what: str
    confirmed: bool = True
    undo: str = ""

    def __repr__(self) -> str:
        seen = "" if self.confirmed else "; NOT CONFIRMED: read back, it doesn't show"
        undo = f"; undo: {self.undo}" if self.undo else ""
        return f"<Change {self.session.id}: {self.what}{seen}{undo}>"


def find_prompt(messages: Sequence[Message], reference: str | None) -> Message:
    """The prompt of an id, the beginning of an id, or the last one.

    An answer's id means the prompt that it answers.

    Raises:
        UnknownNameError: None fits, or more than one does.
    """
    prompts = [m for m in messages if m.role == "user" and not m.synthetic]
    if reference is None and prompts:
        return prompts[-1]
    found = [m for m in messages if reference and m.id.startswith(reference)]
    exact = [m for m in found if m.id == reference] or found
    if len(exact) == 1:
        return next((m for m in prompts if m.id == exact[0].parent), exact[0])
    what = "has no prompt yet" if reference is None else f"has no message {reference!r}"
    if len(exact) > 1:
        what = f"has {len(exact)} messages that begin with {reference!r}"
    raise UnknownNameError(f"The session {what}.", "%oc_history lists its messages.")


def check_idle(client: Client, session: Session) -> None:
    """Make sure that a session isn't at work.

    Raises:
        SessionBusyError: It is.
    """
    if session.id in client.statuses(session.directory):
        raise SessionBusyError(
            f"Session {session.id} ({session.title}) is at work.",
            "Wait for it (%oc_status --wait all), or stop it: %oc_abort",
            status=409,
        )


def fork(client: Client, session: Session, before: str | None = None) -> EditResult:
    """A new session with a copy of the messages: of all, or of those before a prompt.

    Raises:
        UnknownNameError: There is no such message; the server would copy all for an unknown one.
    """
    messages = client.messages(session)
    at = find_prompt(messages, before).id if before else None
    expected = next((n for n, m in enumerate(messages) if m.id == at), len(messages))
    made = client.run(client.dialect.fork(session, at))
    copied = len(client.messages(made))
    which = f"the first {expected} messages" if at else f"all {expected} messages"
    what = f"a fork of {session.id} with {which}"
    return EditResult(made, what, copied == expected, f"%oc_end {made.id}")


def revert(
    client: Client, session: Session, reference: str | None = None, *, files: bool = True
) -> EditResult:
    """Take a session and its files back to before a prompt, until `unrevert` or the next prompt.

    Args:
        client: Its server.
        session: Which.
        reference: Id of the prompt, or its beginning; None takes the last.
        files: False leaves the files as they are (2.x).

    Raises:
        SessionBusyError: It is at work.
        UnknownNameError: There is no such message; the server would say nothing.
        UnsupportedOperation: Files that are to stay, on 1.x.
    """
    check_idle(client, session)
    messages = client.messages(session)
    prompt = find_prompt(messages, reference)
    back = messages[[m.id for m in messages].index(prompt.id) :]
    told = client.run(client.dialect.revert(session, prompt.id, files=files))
    now = client.session(session.id)
    lost = sorted({d.file for d in told or (d for m in back for d in m.diffs)})
    touched = f" and {', '.join(lost)}" if lost else "; no changed file is known"
    touched = touched if files else "; the files stay as they are"
    what = f"{len(back)} messages from {prompt.id} on are taken back{touched}"
    undo = f"%oc_unrevert -s {session.id}, until the next prompt"
    return EditResult(now, what, now.revert == prompt.id, undo)


def unrevert(client: Client, session: Session) -> EditResult:
    """Bring back what a revert took away.

    Raises:
        SessionBusyError: It is at work.
    """
    check_idle(client, session)
    before = client.session(session.id)
    if before.revert is None:
        return EditResult(before, "nothing was taken back, so nothing came back")
    client.run(client.dialect.unrevert(session))
    now = client.session(session.id)
    back = now.revert is None and _has(client, session, before.revert)
    return EditResult(now, f"what was from {before.revert} on is back", back)


def _has(client: Client, session: Session, message: str) -> bool:
    return any(m.id == message for m in client.messages(session))


def commit(client: Client, session: Session) -> EditResult:
    """Make a revert final.

    Raises:
        UnsupportedOperation: On 1.x, where the next prompt does it.
    """
    before = client.session(session.id)
    if before.revert is None:
        return EditResult(before, "nothing was taken back, so nothing is gone")
    client.run(client.dialect.commit_revert(session))
    now = client.session(session.id)
    gone = now.revert is None and not _has(client, session, before.revert)
    return EditResult(now, "what was taken back is gone for good", gone)


def compact(
    client: Client, session: Session, model: str | None = None, limits: Limits | None = None
) -> EditResult:
    """Have a model sum a session up: later prompts begin with that instead of all messages.

    Args:
        client: Its server.
        session: Which.
        model: `provider/model`; None takes the session's own, else the server's default.
        limits: What the session may cost.

    Raises:
        SessionBusyError: It is at work.
        UnknownNameError: There is no such model.
        CostLimitError: What the session may cost is spent.
    """
    check_idle(client, session)
    add_session_ceiling(client, session, limits or Limits())
    chosen = _model(client, session, model)
    known = {m.id for m in client.messages(session)}
    with _goes_on(session):
        if client.run(client.dialect.compact(session, chosen)) is not None:
            client.run(client.dialect.wait(session))
    new = [m for m in client.messages(session) if m.id not in known]
    summary = next((m for m in new if m.summary), None)
    done = summary is not None and summary.error is None and summary.finish is not None
    usage = summary.usage if summary else None
    length = len(summary.text) if summary else 0
    what = (
        f"summed up by {chosen} in {length} characters, {format_usd(usage.cost if usage else None)}"
    )
    return EditResult(client.session(session.id), what, done)


@contextmanager
def _goes_on(session: Session) -> Iterator[None]:
    """Say of an interrupt that the server doesn't stop with it."""
    try:
        yield
    except KeyboardInterrupt:
        stopped = TurnInterrupted(
            f"Stopped waiting; the server goes on summing up {session.id}, and %oc_abort stops it."
        )
        stopped.resend = of_running_request()
        raise stopped from None


def _model(client: Client, session: Session, name: str | None) -> ModelRef:
    if name is not None:
        return choose_model(client.models(session.directory), name).ref
    models = optional(lambda: client.models(session.directory), ())  # warms the directory, too
    default = default_model(models)
    chosen = client.session(session.id).model or (default.ref if default else None)
    if chosen is None:
        raise UnknownNameError("The server names no default model.", "Add --model provider/model.")
    return chosen


def rename(client: Client, session: Session, title: str) -> EditResult:
    """Give a session another title."""
    before = client.session(session.id).title
    client.run(client.dialect.rename(session, title))
    now = client.session(session.id)
    undo = f"%oc_rename -s {session.id} -- {before}" if before else ""
    return EditResult(now, f"renamed from {before!r} to {now.title!r}", now.title == title, undo)


def archive(client: Client, session: Session, *, undo: bool = False) -> EditResult:
    """Archive a session with its subagents', or bring them back; all still take prompts."""
    now = archive_tree(client, session, None if undo else int(time.time() * 1000))
    if undo:
        return EditResult(now, "brought back from the archive", now.archived is None)
    return EditResult(now, "archived", now.archived is not None, f"%oc_archive --undo {session.id}")


def share(client: Client, session: Session, *, undo: bool = False) -> EditResult:
    """Make a session public at an address of OpenCode's, or take it back.

    That it is taken back nothing shows: 1.18.33 goes on naming the address in the session, and says
    yes to an undo of what was never public, and where sharing is turned off.
    """
    if undo:
        client.run(client.dialect.unshare(session))
        told = "not public any more, says the server; open its address to be sure"
        return EditResult(client.session(session.id), told, confirmed=False)
    address = client.run(client.dialect.share(session))
    what = f"public at {address}" if address else "to be public"
    back = f"%oc_share --undo {session.id}"
    return EditResult(client.session(session.id), what, address is not None, back)
