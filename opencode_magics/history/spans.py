"""What happened when: steps, tool calls and waiting for people, as spans of time, lane by lane.

A lane is a session: at the top the one that was asked about, below it its subagents. Times are the
server's; only how long a request waited was taken by our own clock, and only while a turn was
followed: no store has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..client.client import Client
from ..core.columns import CATEGORY, COUNT, NUMBER, TEXT, TIME, Column, Columns, frame_from_rows
from ..core.formatting import seconds_between
from ..core.model import Message, Session, ToolCall
from ..core.outcome import of_message
from ..core.turn import SettledRequest, Turn
from ..sessions.lookup import find_session
from .queries import documents_columns

if TYPE_CHECKING:
    import pandas as pd


class Span(NamedTuple):
    """Something that took time, and the session it happened in."""

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
    """What happened when, as a frame: prompts, steps, tool calls, and waiting for permission.

    A session's rows come together, those of a subagent behind its parent's. How long a permission
    or a question waited is known of a turn that was followed here, and of nothing in a history:
    1.x does not store it. `attrs["waiting"]` says whether it is known, `attrs["earlier"]` how many
    turns were left out.

    Args:
        client: The server.
        of: A turn, or a session by value, id or title.
        last: Only so many turns of a session, the latest.

    Returns:
        A frame with the columns below, whatever is in it, and these `attrs`.

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
    found = [*_of_session(top, 0, own, settled)]
    for depth, session in _below(top, _children(client, top)):
        if not isinstance(of, Turn) or session.id in of.tree:
            meanwhile = _within(client.readable_messages(session), own, isinstance(of, Turn))
            found += _of_session(session, depth, meanwhile, settled)
    shown = frame_from_rows(SPANS, found)
    shown.attrs |= {"waiting": isinstance(of, Turn), "earlier": earlier}
    return shown


def _latest(messages: tuple[Message, ...], last: int | None) -> tuple[tuple[Message, ...], int]:
    """The messages of the latest turns, and how many turns were before these."""
    prompts = [at for at, m in enumerate(messages) if m.role == "user" and not m.synthetic]
    if last is None or len(prompts) <= last:
        return messages, 0
    return messages[prompts[-last] :], len(prompts) - last


def _within(
    messages: Sequence[Message], own: Sequence[Message], ended: bool
) -> tuple[Message, ...]:
    """The messages of a subagent that came while its parent was at work."""
    begin = own[0].created or 0 if own else 0
    end = own[-1].completed if own and ended else None
    return tuple(
        m
        for m in messages
        if (m.created or 0) >= begin and (end is None or (m.created or 0) <= end)
    )


def _children(client: Client, top: Session) -> Mapping[str, list[Session]]:
    """The subagents of each session of a project, the first at first."""
    found: dict[str, list[Session]] = {}
    for session in sorted(client.sessions(top.directory), key=lambda s: (s.created or 0, s.id)):
        if session.parent is not None:
            found.setdefault(session.parent, []).append(session)
    return found


def _below(
    top: Session, children: Mapping[str, list[Session]], above: tuple[str, ...] = ()
) -> Iterator[tuple[int, Session]]:
    """All subagents below a session, with their depths, each behind its parent."""
    line = (*above, top.id)
    for child in children.get(top.id, ()):
        if child.id not in line:
            yield len(line), child
            yield from _below(child, children, line)


def _of_session(
    session: Session, depth: int, messages: Iterable[Message], settled: Sequence[SettledRequest]
) -> Iterator[Span]:
    """The spans of one session, in the order of its messages."""
    for message in messages:
        began, ended = message.created, message.completed
        if message.role == "user" and not message.synthetic:
            yield Span(session, depth, "prompt", None, began, began, None, message.text)
        if message.role != "assistant":
            continue
        name = "compaction" if message.summary else str(message.model) if message.model else None
        if not message.shell:
            yield Span(session, depth, "step", name, began, ended, of_message(message))
        for tool in message.tools:
            yield _call(session, depth, tool)
            waits = [s for s in settled if s.request.call == tool.call]
            yield from _waiting(session, depth, tool, waits)


def _call(session: Session, depth: int, tool: ToolCall) -> Span:
    status = "declined" if tool.declined else tool.status
    return Span(
        session, depth, "tool", tool.tool, tool.start, tool.end, status, _detail(tool), tool.child
    )


def _detail(tool: ToolCall) -> str | None:
    """What a call is about: the server's title, else the first text that it was called with."""
    return tool.title or next((v for v in tool.input.values() if isinstance(v, str)), None)


def _waiting(
    session: Session, depth: int, tool: ToolCall, waits: Iterable[SettledRequest]
) -> Iterator[Span]:
    """What a call waited for, one after the other.

    1.18.33 asks as soon as a call begins: its start is when the waiting began.
    """
    start = tool.start
    for wait in waits:
        if wait.waited is None or wait.request.session != session.id:
            continue
        end = None if start is None else start + round(wait.waited * 1000)
        if end is not None and tool.end is not None:
            end = min(end, tool.end)
        kind = type(wait.request).__name__.lower()
        yield Span(session, depth, "waiting", kind, start, end, wait.reply, _detail(tool))
        start = end
