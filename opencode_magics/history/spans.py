"""Timeline data: steps, tool calls and pending requests as spans of time.

Rows are grouped by session: first the selected session, then its subagents' sessions. Times are
the server's, except how long a request waited: no server stores it, so it is known only for a turn
that this notebook followed, by this machine's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..client.client import Client
from ..core.columns import CATEGORY, COUNT, NUMBER, TEXT, TIME, Column, Columns, frame_from_rows
from ..core.formatting import seconds_between
from ..core.model import Message, Session, ToolCall
from ..core.outcome import message_outcome
from ..core.turn import SettledRequest, Turn
from ..sessions.lookup import find_session
from .queries import documents_columns

if TYPE_CHECKING:
    import pandas as pd


class Span(NamedTuple):
    """A span of time in a session, in milliseconds since the epoch."""

    session: Session
    depth: int
    kind: str
    name: str | None
    start: int | None
    end: int | None
    status: str | None
    detail: str | None = None
    child: str | None = None


SPANS: Columns = {
    "session": Column(TEXT, lambda s: s.session.id, "Id of the session."),
    "title": Column(TEXT, lambda s: s.session.title, "Title of the session."),
    "depth": Column(
        COUNT, lambda s: s.depth, "0 for the requested session, 1 for its subagents, and so on."
    ),
    "kind": Column(CATEGORY, lambda s: s.kind, "prompt, step, tool or waiting."),
    "name": Column(TEXT, lambda s: s.name, "Model of a step, name of a tool or kind of a request."),
    "detail": Column(TEXT, lambda s: s.detail, "The call or request, in one line."),
    "started": Column(TIME, lambda s: s.start, "Start, by the server's clock."),
    "ended": Column(TIME, lambda s: s.end, "End; NA if it never ended."),
    "duration": Column(
        NUMBER,
        lambda s: seconds_between(s.start, s.end),
        "Seconds. A step includes its tools; a tool includes the time it waited for permission.",
    ),
    "status": Column(
        CATEGORY,
        lambda s: s.status,
        "Outcome of a step, status of a tool call, or answer to a request.",
    ),
    "child": Column(TEXT, lambda s: s.child, "Session of the subagent that a tool started."),
}


@documents_columns(SPANS)
def spans(client: Client, of: Turn | Session | str, *, last: int | None = None) -> pd.DataFrame:
    """Return a frame of prompts, steps, tool calls and pending requests, with their times.

    Rows are grouped by session, a subagent's after its parent's. How long a permission or a
    question waited is known only if `of` is a turn that this notebook followed, since no server
    stores it.

    Args:
        client: The server.
        of: A turn, or a session by value, id or title.
        last: For a session, the number of latest turns to include; default: all.

    Returns:
        A frame with the columns below, even if it is empty. `attrs["waiting"]` is True if waiting
        times are known, `attrs["earlier"]` is the number of turns left out.

    Raises:
        UnknownNameError: There is no such session.
    """
    if isinstance(of, Turn):
        top, settled, earlier = client.session(of.session), of.settled_requests, 0
        prompt = tuple(m for m in of.log if m.id == of.prompt)
        own = (*prompt, *of.answers)
    else:
        top, settled = of if isinstance(of, Session) else find_session(client, of), ()
        own, earlier = _latest(client.readable_messages(top), last)
    rows = [*_session_spans(top, 0, own, settled)]
    for depth, session in _descendants(top, _children(client, top)):
        if not isinstance(of, Turn) or session.id in of.tree:
            meanwhile = _within(client.readable_messages(session), own, isinstance(of, Turn))
            rows += _session_spans(session, depth, meanwhile, settled)
    frame = frame_from_rows(SPANS, rows)
    frame.attrs |= {"waiting": isinstance(of, Turn), "earlier": earlier}
    return frame


def _latest(messages: tuple[Message, ...], last: int | None) -> tuple[tuple[Message, ...], int]:
    """Return the messages of the latest turns, and the number of earlier turns."""
    prompts = [n for n, m in enumerate(messages) if m.role == "user" and not m.synthetic]
    if last is None or len(prompts) <= last:
        return messages, 0
    return messages[prompts[-last] :], len(prompts) - last


def _within(
    messages: Sequence[Message], own: Sequence[Message], ended: bool
) -> tuple[Message, ...]:
    """Return the messages of a subagent that were created while its parent was running."""
    start = own[0].created or 0 if own else 0
    end = own[-1].completed if own and ended else None
    return tuple(
        m
        for m in messages
        if (m.created or 0) >= start and (end is None or (m.created or 0) <= end)
    )


def _children(client: Client, top: Session) -> Mapping[str, list[Session]]:
    """Group the subagents' sessions of a project by parent, oldest first."""
    children: dict[str, list[Session]] = {}
    for session in sorted(client.sessions(top.directory), key=lambda s: (s.created or 0, s.id)):
        if session.parent is not None:
            children.setdefault(session.parent, []).append(session)
    return children


def _descendants(
    top: Session, children: Mapping[str, list[Session]], ancestors: tuple[str, ...] = ()
) -> Iterator[tuple[int, Session]]:
    """Yield all subagents' sessions below a session with their depths, parents first."""
    path = (*ancestors, top.id)
    for child in children.get(top.id, ()):
        if child.id not in path:
            yield len(path), child
            yield from _descendants(child, children, path)


def _session_spans(
    session: Session, depth: int, messages: Iterable[Message], settled: Sequence[SettledRequest]
) -> Iterator[Span]:
    """Yield the spans of one session, in the order of its messages."""
    for message in messages:
        start, end = message.created, message.completed
        if message.role == "user" and not message.synthetic:
            yield Span(session, depth, "prompt", None, start, start, None, message.text)
        if message.role != "assistant":
            continue
        name = "compaction" if message.summary else str(message.model) if message.model else None
        if not message.shell:
            yield Span(session, depth, "step", name, start, end, message_outcome(message))
        for tool in message.tools:
            yield _tool_span(session, depth, tool)
            requests = [s for s in settled if s.request.call == tool.call]
            yield from _waiting_spans(session, depth, tool, requests)


def _tool_span(session: Session, depth: int, tool: ToolCall) -> Span:
    status = "declined" if tool.declined else tool.status
    return Span(
        session, depth, "tool", tool.tool, tool.start, tool.end, status, _detail(tool), tool.child
    )


def _detail(tool: ToolCall) -> str | None:
    """Return the server's title of a call, else the first string among its arguments."""
    return tool.title or next((v for v in tool.input.values() if isinstance(v, str)), None)


def _waiting_spans(
    session: Session, depth: int, tool: ToolCall, requests: Iterable[SettledRequest]
) -> Iterator[Span]:
    """Yield the waiting times of a call's requests, one after another.

    The first starts with the call, since 1.18.33 asks for permission as soon as a call starts.
    """
    start = tool.start
    for settled in requests:
        if settled.waited is None or settled.request.session != session.id:
            continue
        end = None if start is None else start + round(settled.waited * 1000)
        if end is not None and tool.end is not None:
            end = min(end, tool.end)
        kind = type(settled.request).__name__.lower()
        yield Span(session, depth, "waiting", kind, start, end, settled.reply, _detail(tool))
        start = end
