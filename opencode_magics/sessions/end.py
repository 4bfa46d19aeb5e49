"""Stops and ends sessions, and believes no answer: every step is read back.

The order of an end is fixed: stop the turn, see that it stopped, reject what it still asks, delete
or archive, see that. A session at work is never deleted, since 1.18.33 goes on with its turn and
retries for ever to store it. A step that can't be proved leaves the rest undone, to be done later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from ..client.client import Client
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
_NEWEST = 2  # messages that tell whether a turn is open
_ROUNDS = 3  # times that a session may be set to work again while it is being ended


@dataclass(frozen=True, slots=True, repr=False)
class StopResult:
    """What came of stopping a session.

    Attributes:
        status: stopped, was_idle (there was nothing to stop), unconfirmed, or not_found.
        rejected: Ids of permissions and questions of its tree that were rejected.
        kept: What is left of the turn that was stopped.
        evidence: What was seen.
        elapsed: Seconds.
    """

    session: Session
    status: Literal["stopped", "was_idle", "unconfirmed", "not_found"]
    rejected: tuple[str, ...] = ()
    kept: str = ""
    evidence: str = ""
    elapsed: float = 0.0

    def __repr__(self) -> str:
        told = [f"{self.session.id} {self.status}", self.kept, _listed("rejected", self.rejected)]
        return f"<Stopped {'; '.join(t for t in (*told, self.evidence) if t)}>"


@dataclass(frozen=True, slots=True, repr=False)
class EndResult:
    """What came of ending a session.

    Attributes:
        status: ended, not_found (nothing to end), or unconfirmed (call again to finish).
        action: delete or archive; None if nothing was to be done.
        aborted_running_turn: Whether it was at work; None if that isn't known.
        rejected: Ids of permissions and questions of its tree that were rejected.
        cleanup: Whether nothing of it is left at work or waiting.
        evidence: What was seen.
        elapsed: Seconds.
        todo: What to do next; "" if nothing.
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
        told = (self.status, aborted, _listed("rejected", self.rejected), self.evidence, self.todo)
        return f"<EndResult {self.session}: {'; '.join(t for t in told if t)}>"


def _listed(what: str, ids: tuple[str, ...]) -> str:
    return f"{what} {', '.join(ids)}" if ids else ""


# -- stopping --------------------------------------------------------------------------------------


def stop(client: Client, session: Session, within: float = STOP_TIMEOUT) -> StopResult:
    """Stop what a session and its subagents do, see that it stopped, reject what they ask.

    Args:
        client: Its server.
        session: Which; only its id and directory count.
        within: Seconds in which it has to be seen idle.

    Returns:
        What was seen. No error of the server is raised: it makes a stop unconfirmed, and is its
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
        why = f"not seen idle within {within:.0f} s, though the server was asked again and again"
        return StopResult(session, "unconfirmed", evidence=why)
    rejected.extend(iter_rejected(client, session.directory, tree()))
    if left := [r for r in rejected if r in _waiting(client, session)]:
        why = f"{', '.join(left)} still waits although it was rejected"
        return StopResult(session, "unconfirmed", evidence=why)
    if was_idle:
        seen = _with_parked("its last turn is finished", client, session)
        return StopResult(session, "was_idle", evidence=seen)
    after = _newest(client, session)
    if not busy and after == newest:
        why = "it did not seem at work, but its last turn has no end; aborted all the same"
        seen = _with_parked(why, client, session)
        return StopResult(session, "was_idle", kept=_kept(after), evidence=seen)
    seen = _with_parked("seen idle twice", client, session)
    return StopResult(session, "stopped", kept=_kept(after), evidence=seen)


def _parked(client: Client, session: Session) -> str:
    """What a session's inbox (2.x) still has: it is not stopped with a turn, but runs later."""
    try:
        waits = len(client.run(client.dialect.inbox(session)))
    except (NotFoundError, UnsupportedOperation):
        return ""
    except OpenCodeError as error:
        return f"what waits in its inbox is not known: {error.what}"
    what = "1 prompt waits" if waits == 1 else f"{waits} prompts wait"
    return f"{what} in its inbox and will run with the next one: %oc_inbox" if waits else ""


def _with_parked(seen: str, client: Client, session: Session) -> str:
    parked = _parked(client, session)
    return f"{seen}; {parked}" if parked else seen


def _tree(client: Client, session: Session) -> Callable[[], frozenset[str]]:
    """The ids of a session and its subagents, read anew each time: there may be more of them."""
    known = {session.id}

    def now() -> frozenset[str]:
        with suppress(NotFoundError):  # deleted: what was known before counts
            known.update(s.id for s in descendants(client, session, 0))
        return frozenset(known)

    return now


def _newest(client: Client, session: Session) -> tuple[Message, ...] | None:
    """The newest messages; None if the session doesn't exist."""
    try:
        return client.run(client.dialect.latest_messages(session, _NEWEST))
    except NotFoundError:
        return None


def _waiting(client: Client, session: Session) -> set[str]:
    permissions, questions = waiting_requests(client, session.directory)
    return {p.id for p in permissions} | {q.id for q in questions}


def _kept(newest: tuple[Message, ...] | None) -> str:
    """What a stopped turn leaves."""
    if newest is None:
        return "kept nothing: it was deleted meanwhile"
    answer = next((m for m in reversed(newest) if m.role == "assistant"), None)
    if answer is None:
        return "nothing was answered yet"
    done = sum(map(is_tool_completed, answer.tools))
    tools = f", {len(answer.tools)} tool calls ({done} completed)" if answer.tools else ""
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
    """Stop a session, then delete or archive it; the same call finishes what could not be proved.

    Args:
        client: Its server.
        session: Which.
        action: What becomes of it.
        resumed: It was begun before: one that is gone now has been ended, not lost.
        within: Seconds in which it has to be seen idle.

    Returns:
        What was seen. No error of the server is raised: it makes an end unconfirmed, and is its
        evidence; `resumed` then says to the next call that this one was made.
    """
    began = time.monotonic()
    result = EndResult(session.id, session.title, "unconfirmed", action)
    stops: list[StopResult] = []
    try:
        result = _end(client, session, result, resumed, within, stops)
    except OpenCodeError as error:
        result = _unproved(result, error.what)
    return replace(
        result,
        aborted_running_turn=_aborted(stops),
        rejected=tuple(r for s in stops for r in s.rejected),
        elapsed=time.monotonic() - began,
    )


def _aborted(stops: list[StopResult]) -> bool | None:
    """Whether a turn was stopped; None if that isn't known."""
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
    for _ in range(_ROUNDS):
        stopped = stop(client, session, within)
        stops.append(stopped)
        if stopped.status == "not_found":
            return _gone(result, resumed)
        if stopped.status == "unconfirmed":
            return _unproved(result, stopped.evidence)
        if not _at_work(client, session):
            return _away(client, session, result)
    return _unproved(result, "somebody set it to work again each time it was stopped")


def _at_work(client: Client, session: Session) -> frozenset[str]:
    return _tree(client, session)() & client.statuses(session.directory).keys()


def _away(client: Client, session: Session, result: EndResult) -> EndResult:
    """Delete or archive a session that is stopped, and see it."""
    tree = _tree(client, session)
    tree()  # once it is deleted nobody tells
    if result.action == "archive":
        done = archive_tree(client, session, int(time.time() * 1000)).archived is not None
    else:
        with suppress(NotFoundError):  # somebody else did it in this moment
            client.run(client.dialect.delete(session))
        done = _newest(client, session) is None and _is_gone(client, session)
    if not done:
        return _unproved(result, f"the server took the {result.action}, but it shows no effect")
    if tree() & client.statuses(session.directory).keys():
        quiet = abort_until_idle(client, session, tree, STOP_TIMEOUT)
        if not quiet:
            return _unproved(result, "it was set to work just before, and works on although ended")
    if result.action == "delete":
        return replace(result, status="ended", evidence="the server has it no more")
    parked = _parked(client, session)
    seen = f"seen archived; {parked}" if parked else "seen archived"
    cleanup: Cleanup = "unconfirmed" if parked else "complete"
    return replace(result, status="ended", cleanup=cleanup, evidence=seen)


def _is_gone(client: Client, session: Session) -> bool:
    try:
        client.session(session.id)
    except NotFoundError:
        return True
    return False


def _gone(result: EndResult, resumed: bool) -> EndResult:
    if resumed and result.action == "delete":
        return replace(result, status="ended", evidence="the server has it no more")
    why = "it was deleted elsewhere"
    return replace(result, status="not_found", action=None, evidence=why)


def _unproved(result: EndResult, why: str) -> EndResult:
    todo = f"The same call finishes it: %oc_end {result.session}"
    return replace(result, status="unconfirmed", cleanup="unconfirmed", evidence=why, todo=todo)
