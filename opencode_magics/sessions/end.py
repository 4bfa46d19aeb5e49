"""Stop and end sessions, and confirm every step by reading it back.

Ending a session has a fixed order: stop its turn, confirm that, reject its pending requests, delete
or archive it, confirm that. A busy session is never deleted, since 1.18.33 continues its turn
and retries forever to store it. If a step can't be confirmed, the later ones are left to the next
call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from ..client.client import Client
from ..core.formatting import pluralize
from ..core.model import Message, Session
from ..core.outcome import is_at_rest, is_tool_completed
from ..errors import NotFoundError, OpenCodeError, UnsupportedOperation
from .store import (
    STOP_TIMEOUT,
    abort_until_idle,
    archive_tree,
    descendants,
    iter_rejected,
    waiting_requests,
)

Action = Literal["delete", "archive"]
Cleanup = Literal["complete", "unconfirmed"]
_NEWEST = 2  # messages that show whether the last turn has ended
_MAX_STOPS = 3  # a session may be prompted again while it is being ended


@dataclass(frozen=True, slots=True, repr=False)
class StopResult:
    """The result of stopping a session.

    Attributes:
        status: stopped, was_idle (there was nothing to stop), unconfirmed, or not_found.
        rejected: Ids of the session's and its subagents' requests that were rejected.
        kept: The part of the stopped turn that the server keeps, in words.
        evidence: The observations that support the status.
        elapsed: Duration of the call, in seconds.
    """

    session: Session
    status: Literal["stopped", "was_idle", "unconfirmed", "not_found"]
    rejected: tuple[str, ...] = ()
    kept: str = ""
    evidence: str = ""
    elapsed: float = 0.0

    def __repr__(self) -> str:
        state = f"{self.session.id} {self.status}"
        details = (state, self.kept, _listed("rejected", self.rejected), self.evidence)
        return f"<StopResult {'; '.join(d for d in details if d)}>"


@dataclass(frozen=True, slots=True, repr=False)
class EndResult:
    """The result of ending a session.

    Attributes:
        status: ended, not_found (nothing to end), or unconfirmed (call again to finish).
        action: delete or archive; None if there was no session.
        aborted_running_turn: Whether it was busy; None if that isn't known.
        rejected: Ids of the session's and its subagents' requests that were rejected.
        cleanup: complete if nothing of the session is left running or waiting, or unconfirmed.
        evidence: The observations that support the status.
        elapsed: Duration of the call, in seconds.
        todo: The next step for the user; "" if there is none.
    """

    session: str
    title: str
    status: Literal["ended", "not_found", "unconfirmed"]
    action: Action | None = None
    aborted_running_turn: bool | None = None
    rejected: tuple[str, ...] = ()
    cleanup: Cleanup = "complete"
    evidence: str = ""
    elapsed: float = 0.0
    todo: str = ""

    def __repr__(self) -> str:
        aborted = "its turn was stopped" if self.aborted_running_turn else ""
        rejected = _listed("rejected", self.rejected)
        details = (self.status, aborted, rejected, self.evidence, self.todo)
        return f"<EndResult {self.session}: {'; '.join(d for d in details if d)}>"


def _listed(verb: str, ids: tuple[str, ...]) -> str:
    return f"{verb} {', '.join(ids)}" if ids else ""


# -- stopping --------------------------------------------------------------------------------------


def stop(client: Client, session: Session, within: float = STOP_TIMEOUT) -> StopResult:
    """Stop a session and its subagents, confirm that, and reject their pending requests.

    Args:
        client: The session's server.
        session: The session; only its id and directory are used.
        within: Seconds in which it must be seen idle.

    Returns:
        The result. A server error is not raised: the stop is unconfirmed, with the error as its
        evidence.
    """
    began = time.monotonic()
    rejected: list[str] = []
    try:
        stopped = _stop(client, session, within, rejected)
    except OpenCodeError as error:
        stopped = StopResult(session, "unconfirmed", evidence=error.what)
    return replace(stopped, rejected=tuple(rejected), elapsed=time.monotonic() - began)


def _stop(client: Client, session: Session, within: float, rejected: list[str]) -> StopResult:
    tree = _tree(client, session)
    busy = tree() & client.statuses(session.directory).keys()
    newest = _newest(client, session)
    if newest is None and not busy:
        return StopResult(session, "not_found", evidence="the server has no such session")
    was_idle = not busy and is_at_rest(newest)
    if not was_idle and not abort_until_idle(client, session, tree, within):
        reason = f"not seen idle within {within:.0f} s, despite repeated aborts"
        return StopResult(session, "unconfirmed", evidence=reason)
    rejected.extend(iter_rejected(client, session.directory, tree()))
    if left := [r for r in rejected if r in _pending(client, session)]:
        reason = f"{', '.join(left)} still pending after its rejection"
        return StopResult(session, "unconfirmed", evidence=reason)
    if was_idle:
        evidence = _with_inbox("its last turn is finished", client, session)
        return StopResult(session, "was_idle", evidence=evidence)
    after = _newest(client, session)
    if not busy and after == newest:
        reason = "it was not listed as busy, but its last turn never finished; aborted anyway"
        evidence = _with_inbox(reason, client, session)
        return StopResult(session, "was_idle", kept=_kept(after), evidence=evidence)
    evidence = _with_inbox("seen idle twice", client, session)
    return StopResult(session, "stopped", kept=_kept(after), evidence=evidence)


def _inbox(client: Client, session: Session) -> str:
    """Describe the prompts in a session's inbox (2.x): stopping a turn leaves them there."""
    try:
        count = len(client.run(client.dialect.inbox(session)))
    except (NotFoundError, UnsupportedOperation):
        return ""
    except OpenCodeError as error:
        return f"its inbox can't be read: {error.what}"
    prompts = "1 prompt waits" if count == 1 else f"{count} prompts wait"
    return f"{prompts} in its inbox and will run with the next one: %oc_inbox" if count else ""


def _with_inbox(evidence: str, client: Client, session: Session) -> str:
    inbox = _inbox(client, session)
    return f"{evidence}; {inbox}" if inbox else evidence


def _tree(client: Client, session: Session) -> Callable[[], frozenset[str]]:
    """Return a function that reads the current ids of a session and its subagents."""
    known = {session.id}

    def read() -> frozenset[str]:
        with suppress(NotFoundError):  # the session was deleted: use the ids read before
            known.update(s.id for s in descendants(client, session, 0))
        return frozenset(known)

    return read


def _newest(client: Client, session: Session) -> tuple[Message, ...] | None:
    """The newest messages; None if the session doesn't exist."""
    try:
        return client.run(client.dialect.latest_messages(session, _NEWEST))
    except NotFoundError:
        return None


def _pending(client: Client, session: Session) -> set[str]:
    """Ids of the pending requests in a session's directory."""
    permissions, questions = waiting_requests(client, session.directory)
    return {p.id for p in permissions} | {q.id for q in questions}


def _kept(newest: tuple[Message, ...] | None) -> str:
    """Describe what the server keeps of a stopped turn."""
    if newest is None:
        return "kept nothing: it was deleted meanwhile"
    answer = next((m for m in reversed(newest) if m.role == "assistant"), None)
    if answer is None:
        return "there was no answer yet"
    completed = sum(map(is_tool_completed, answer.tools))
    calls = f", {pluralize(len(answer.tools), 'tool call')} ({completed} completed)"
    tools = calls if answer.tools else ""
    return f"kept {len(answer.text)} characters of its last message{tools}"


# -- ending ----------------------------------------------------------------------------------------


def end(
    client: Client,
    session: Session,
    action: Action,
    *,
    resumed: bool = False,
    within: float = STOP_TIMEOUT,
) -> EndResult:
    """Stop a session, then delete or archive it.

    Repeat the call to finish an unconfirmed end.

    Args:
        client: The session's server.
        session: The session.
        action: "delete" or "archive".
        resumed: Whether an earlier call was unconfirmed; then a missing session counts as ended.
        within: Seconds in which it must be seen idle.

    Returns:
        The result. A server error is not raised: the end is unconfirmed, with the error as its
        evidence.
    """
    began = time.monotonic()
    result = EndResult(session.id, session.title, "unconfirmed", action)
    stops: list[StopResult] = []
    try:
        result = _end(client, session, result, resumed, within, stops)
    except OpenCodeError as error:
        result = _unconfirmed(result, error.what)
    return replace(
        result,
        aborted_running_turn=_aborted(stops),
        rejected=tuple(r for s in stops for r in s.rejected),
        elapsed=time.monotonic() - began,
    )


def _aborted(stops: list[StopResult]) -> bool | None:
    """Return whether a turn was stopped; None if that isn't known."""
    if any(s.status == "stopped" for s in stops):
        return True
    return None if any(s.status == "unconfirmed" for s in stops) else False


def _end(
    client: Client,
    session: Session,
    result: EndResult,
    resumed: bool,
    within: float,
    stops: list[StopResult],
) -> EndResult:
    for _ in range(_MAX_STOPS):
        stopped = stop(client, session, within)
        stops.append(stopped)
        if stopped.status == "not_found":
            return _not_found(result, resumed)
        if stopped.status == "unconfirmed":
            return _unconfirmed(result, stopped.evidence)
        if not _busy(client, session):
            return _remove(client, session, result)
    return _unconfirmed(result, "each time it was stopped, another client prompted it again")


def _busy(client: Client, session: Session) -> frozenset[str]:
    return _tree(client, session)() & client.statuses(session.directory).keys()


def _remove(client: Client, session: Session, result: EndResult) -> EndResult:
    """Delete or archive a stopped session, and confirm that."""
    tree = _tree(client, session)
    tree()  # reads the ids while the session exists
    if result.action == "archive":
        done = archive_tree(client, session, int(time.time() * 1000)).archived is not None
    else:
        with suppress(NotFoundError):  # another client has just deleted it
            client.run(client.dialect.delete(session))
        done = _newest(client, session) is None and _is_deleted(client, session)
    if not done:
        return _unconfirmed(result, f"the server accepted the {result.action}, but shows no effect")
    if tree() & client.statuses(session.directory).keys():
        quiet = abort_until_idle(client, session, tree, STOP_TIMEOUT)
        if not quiet:
            return _unconfirmed(
                result, f"it was prompted just before the {result.action}, and is still busy"
            )
    if result.action == "delete":
        return replace(result, status="ended", evidence="the server no longer has it")
    inbox = _inbox(client, session)
    evidence = f"seen archived; {inbox}" if inbox else "seen archived"
    cleanup: Cleanup = "unconfirmed" if inbox else "complete"
    return replace(result, status="ended", cleanup=cleanup, evidence=evidence)


def _is_deleted(client: Client, session: Session) -> bool:
    try:
        client.session(session.id)
    except NotFoundError:
        return True
    return False


def _not_found(result: EndResult, resumed: bool) -> EndResult:
    if resumed and result.action == "delete":
        return replace(result, status="ended", evidence="the server no longer has it")
    reason = "it was deleted elsewhere"
    return replace(result, status="not_found", action=None, evidence=reason)


def _unconfirmed(result: EndResult, reason: str) -> EndResult:
    todo = f"Repeat the call to finish: %oc_end {result.session}"
    return replace(result, status="unconfirmed", cleanup="unconfirmed", evidence=reason, todo=todo)
