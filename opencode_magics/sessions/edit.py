"""Edit sessions without starting a turn: fork, revert, compact, rename, archive, share.

Each edit is sent once, then read back. Its `confirmed` is False if the server accepted the edit but
the session doesn't show it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..client.client import Client, optional
from ..core.formatting import format_usd
from ..core.limits import Limits
from ..core.model import Message, ModelRef, Session
from ..core.retry_safety import assess_running_request
from ..errors import SessionBusyError, TurnInterrupted, UnknownNameError
from .lookup import choose_model, default_model
from .revert_plan import RevertPlan, make_plan
from .store import add_session_ceiling, archive_tree


@dataclass(frozen=True, slots=True, repr=False)
class EditResult:
    """The result of an edit.

    Attributes:
        session: The session after the edit; for a fork, the new session.
        what: The edit, in words.
        confirmed: Whether the edit was visible when the session was read back.
        undo: The magic that undoes it, with the session's id; "" if it can't be undone.
    """

    session: Session
    what: str
    confirmed: bool = True
    undo: str = ""

    def __repr__(self) -> str:
        seen = "" if self.confirmed else "; NOT CONFIRMED: the session doesn't show it"
        undo = f"; undo: {self.undo}" if self.undo else ""
        return f"<EditResult {self.session.id}: {self.what}{seen}{undo}>"


def find_prompt(messages: Sequence[Message], reference: str | None) -> Message:
    """Find a prompt by its id or a unique prefix of it; None finds the last prompt.

    An answer's id finds the prompt that it answers.

    Raises:
        UnknownNameError: No message matches, or several do.
    """
    prompts = [m for m in messages if m.role == "user" and not m.synthetic]
    if reference is None and prompts:
        return prompts[-1]
    matches = [m for m in messages if reference and m.id.startswith(reference)]
    matches = [m for m in matches if m.id == reference] or matches
    if len(matches) == 1:
        return next((m for m in prompts if m.id == matches[0].parent), matches[0])
    problem = "has no prompt yet" if reference is None else f"has no message {reference!r}"
    if len(matches) > 1:
        problem = f"has {len(matches)} messages whose ids begin with {reference!r}"
    raise UnknownNameError(f"The session {problem}.", "%oc_history lists its messages.")


def check_idle(client: Client, session: Session) -> None:
    """Raise an error if a session is busy.

    Raises:
        SessionBusyError: The session is busy.
    """
    if session.id in client.statuses(session.directory):
        raise SessionBusyError(
            f"Session {session.id} ({session.title}) is busy.",
            "Wait for it (%oc_status --wait all), or stop it: %oc_abort",
            status=409,
        )


def fork(client: Client, session: Session, before: str | None = None) -> EditResult:
    """Create a session with a copy of all messages, or of those before a prompt.

    Raises:
        UnknownNameError: There is no such message. (The server would copy all messages.)
    """
    messages = client.messages(session)
    at = find_prompt(messages, before).id if before else None
    expected = next((n for n, m in enumerate(messages) if m.id == at), len(messages))
    forked = client.run(client.dialect.fork(session, at))
    copied = len(client.messages(forked))
    which = f"the first {expected} messages" if at else f"all {expected} messages"
    what = f"a fork of {session.id} with {which}"
    return EditResult(forked, what, copied == expected, f"%oc_end {forked.id}")


def plan_revert(
    client: Client,
    session: Session,
    reference: str | None = None,
    is_open: Callable[[Path], bool] = lambda file: False,
) -> RevertPlan:
    """Plan a revert; nothing is changed.

    Args:
        client: The session's server.
        session: The session.
        reference: The prompt's id or a unique prefix of it; None is the last prompt.
        is_open: Returns whether a file is a notebook that is open here.

    Raises:
        SessionBusyError: The session is busy.
        UnknownNameError: There is no such message.
    """
    check_idle(client, session)
    messages = client.messages(session)
    prompt = find_prompt(messages, reference)
    reverted = messages[[m.id for m in messages].index(prompt.id) :]
    diffs = tuple(d for m in reverted for d in m.diffs)
    if not diffs:  # 2.x reports them by turn
        prompts = [m.id for m in reverted if m.role == "user" and not m.synthetic]
        diffs = tuple(d for p in prompts for d in client.run(client.dialect.turn_diffs(session, p)))
    diffs = diffs or tuple(d for m in reverted for t in m.tools for d in t.diffs)
    unique = {d.file: d for d in diffs}
    written = _restored_at.get((client.url, session.id), 0.0)
    return make_plan(
        session,
        reverted,
        tuple(unique.values()),
        local=client.local,
        is_open=is_open,
        written=written,
    )


def revert(
    client: Client, session: Session, reference: str | None = None, *, files: bool = True
) -> EditResult:
    """Return a session and its files to their state before a prompt.

    `unrevert` undoes this until the next prompt. `plan_revert` says what will be overwritten.

    Args:
        client: The session's server.
        session: The session.
        reference: The prompt's id or a unique prefix of it; None reverts the last prompt.
        files: False leaves the files as they are (2.x).

    Raises:
        SessionBusyError: The session is busy.
        UnknownNameError: There is no such message. (The server would report no error.)
        UnsupportedOperation: `files` is False on 1.x.
    """
    check_idle(client, session)
    messages = client.messages(session)
    prompt = find_prompt(messages, reference)
    reverted = messages[[m.id for m in messages].index(prompt.id) :]
    diffs = client.run(client.dialect.revert(session, prompt.id, files=files))
    now = client.session(session.id)
    paths = sorted({d.file for d in diffs or (d for m in reverted for d in m.diffs)})
    restored = f", and {', '.join(paths)} restored" if paths else "; no changed file is known"
    restored = restored if files else "; the files are unchanged"
    what = f"{len(reverted)} messages from {prompt.id} on reverted{restored}"
    undo = f"%oc_unrevert -s {session.id}, until the next prompt"
    return EditResult(now, what, now.revert == prompt.id, undo)


def unrevert(client: Client, session: Session) -> EditResult:
    """Undo a revert.

    Raises:
        SessionBusyError: The session is busy.
    """
    check_idle(client, session)
    before = client.session(session.id)
    if before.revert is None:
        return EditResult(before, "there was no revert to undo")
    client.run(client.dialect.unrevert(session))
    _restored_at[client.url, session.id] = time.time()
    now = client.session(session.id)
    restored = now.revert is None and _has(client, session, before.revert)
    return EditResult(now, f"the messages from {before.revert} on are back", restored)


# When this process last had the server restore a session's files: they are newer than the turn.
_restored_at: dict[tuple[str, str], float] = {}


def _has(client: Client, session: Session, message: str) -> bool:
    return any(m.id == message for m in client.messages(session))


def commit(client: Client, session: Session) -> EditResult:
    """Make a revert final.

    Raises:
        UnsupportedOperation: On 1.x, where the next prompt makes it final.
    """
    before = client.session(session.id)
    if before.revert is None:
        return EditResult(before, "there was no revert to make final")
    client.run(client.dialect.commit_revert(session))
    now = client.session(session.id)
    deleted = now.revert is None and not _has(client, session, before.revert)
    return EditResult(now, "the reverted messages are deleted for good", deleted)


def compact(
    client: Client, session: Session, model: str | None = None, limits: Limits | None = None
) -> EditResult:
    """Have a model summarize a session; later prompts build on the summary, not on all messages.

    Args:
        client: The session's server.
        session: The session.
        model: `provider/model`; None uses the session's model, else the server's default.
        limits: Limits on the session's cost.

    Raises:
        SessionBusyError: The session is busy.
        UnknownNameError: There is no such model.
        CostLimitError: The session's cost limit is already reached.
    """
    check_idle(client, session)
    add_session_ceiling(client, session, limits or Limits())
    chosen = _model(client, session, model)
    known = {m.id for m in client.messages(session)}
    with _explain_interrupt(session):
        if client.run(client.dialect.compact(session, chosen)) is not None:
            client.run(client.dialect.wait(session))
    new = [m for m in client.messages(session) if m.id not in known]
    summary = next((m for m in new if m.summary), None)
    done = summary is not None and summary.error is None and summary.finish is not None
    usage = summary.usage if summary else None
    length = len(summary.text) if summary else 0
    what = (
        f"summarized by {chosen} in {length} characters, "
        f"{format_usd(usage.cost if usage else None)}"
    )
    return EditResult(client.session(session.id), what, done)


@contextmanager
def _explain_interrupt(session: Session) -> Iterator[None]:
    """Turn an interrupt into an error that says that the server continues."""
    try:
        yield
    except KeyboardInterrupt:
        stopped = TurnInterrupted(
            f"Stopped waiting. The server is still summarizing {session.id}; %oc_abort stops it."
        )
        stopped.resend = assess_running_request()
        raise stopped from None


def _model(client: Client, session: Session, name: str | None) -> ModelRef:
    if name is not None:
        return choose_model(client.models(session.directory), name).ref
    models = optional(lambda: client.models(session.directory), ())  # also warms the directory
    default = default_model(models)
    chosen = client.session(session.id).model or (default.ref if default else None)
    if chosen is None:
        raise UnknownNameError("The server has no default model.", "Add --model provider/model.")
    return chosen


def rename(client: Client, session: Session, title: str) -> EditResult:
    """Change a session's title."""
    before = client.session(session.id).title
    client.run(client.dialect.rename(session, title))
    now = client.session(session.id)
    undo = f"%oc_rename -s {session.id} -- {before}" if before else ""
    return EditResult(now, f"renamed from {before!r} to {now.title!r}", now.title == title, undo)


def archive(client: Client, session: Session, *, undo: bool = False) -> EditResult:
    """Archive or restore a session and its subagents' sessions; all still accept prompts."""
    now = archive_tree(client, session, None if undo else int(time.time() * 1000))
    if undo:
        return EditResult(now, "restored from the archive", now.archived is None)
    return EditResult(now, "archived", now.archived is not None, f"%oc_archive --undo {session.id}")


def share(client: Client, session: Session, *, undo: bool = False) -> EditResult:
    """Publish a session on OpenCode's website, or make it private again.

    An undo can't be confirmed: 1.18.33 keeps the address in the session, and also accepts an undo
    if the session was never public or sharing is turned off.
    """
    if undo:
        client.run(client.dialect.unshare(session))
        what = "the server says that it is no longer public; open its address to be sure"
        return EditResult(client.session(session.id), what, confirmed=False)
    address = client.run(client.dialect.share(session))
    what = f"public at {address}" if address else "publishing was requested"
    undo_magic = f"%oc_share --undo {session.id}"
    return EditResult(client.session(session.id), what, address is not None, undo_magic)
