"""The frames of a server's history: sessions, and what is in their messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from ..client.client import Client, optional
from ..core.columns import Columns, frame_from_lists
from ..core.formatting import pluralize
from ..core.model import Session
from ..sessions.lookup import find_session
from . import frames
from .cache import Cache
from .fork_copies import Copies, CopyCandidate, find_fork_copies, fork_families
from .frames import FRAME_KINDS
from .gc_pause import gc_paused
from .load import LoadedRows, load

if TYPE_CHECKING:
    import pandas as pd

F = TypeVar("F", bound=Callable[..., Any])

_HIDDEN = ("key",)
_ARGUMENTS = """

    Copies that forks made are rows like all others, with `duplicate_of` set where the original is
    loaded with them. `attrs["warnings"]` tells what could not be read, what came from the cache,
    and how many copies have no original here, a sentence each.

    Args:
        client: The server.
        sessions: Which, by value, id or title; default: all of the client's project.
        everywhere: All of all directories that the server knows.
        cache: Where the rows of unchanged sessions are kept; False reads all and keeps none.
        refresh: Read all again.
        progress: Show a bar if it takes a while.

    Returns:
        A frame with the columns below, whatever is in it; its `attrs` have `warnings` and `forks`
        (by the id of a fork, that of the session it is a copy of). Interrupted, what was loaded.

    Raises:
        UnknownNameError: There is no such session.
        ServerConnectionError: The server went away; what was read is in the cache.
"""


def documents_columns(columns: Columns, more: str = "") -> Callable[[F], F]:
    """Completes a docstring by what each column is."""

    def complete(function: F) -> F:
        told = (f"{n} ({c.dtype}): {c.about}" for n, c in columns.items() if n not in _HIDDEN)
        listed = "\n        ".join(told)
        function.__doc__ = f"{function.__doc__}{more}\n    Columns:\n        {listed}\n"
        return function

    return complete


class Table(Protocol):
    """A function that loads one kind of frame."""

    def __call__(
        self,
        client: Client,
        sessions: Iterable[Session | str] | None = None,
        *,
        everywhere: bool = False,
        cache: Cache | bool = True,
        refresh: bool = False,
        progress: bool = True,
    ) -> pd.DataFrame:
        """Load it."""


@documents_columns(frames.SESSIONS)
def sessions(
    client: Client, *, directory: str | None = None, everywhere: bool = False
) -> pd.DataFrame:
    """Sessions as a frame, one row each, latest first; archived and subagents' ones too.

    Args:
        client: The server.
        directory: Those of its project; default: the client's directory.
        everywhere: Those of all directories that the server knows.

    Returns:
        A frame with the columns below, whatever is in it.
    """
    where = directory or client.directory
    listed = client.sessions(where, everywhere=everywhere)
    return frames.sessions(listed, known_status(client, where, listed))


def known_status(client: Client, directory: str, listed: Iterable[Session]) -> dict[str, str]:
    """What the sessions of one directory do, nothing where the server doesn't tell.

    Others are not asked: that would wake them all.

    Returns:
        By the id of a session "idle", "busy" or "retry"; of none in another directory.
    """
    busy = optional(lambda: client.statuses(directory), None)
    here = (s.id for s in listed if s.directory == directory)
    return {} if busy is None else {s: busy[s].name if s in busy else "idle" for s in here}


class Forks(NamedTuple):
    """Which sessions are forks of which.

    Attributes:
        origins: By the id of a fork, that of the session it is a copy of.
        warnings: What could not be read, and what came from the cache, a sentence each.
    """

    origins: dict[str, str]
    warnings: list[str]


def forks(client: Client, everyone: Sequence[Session], *, cache: Cache | bool = True) -> Forks:
    """Which sessions are forks of which: as the server tells, else as their titles give away.

    The messages of forks and of what they may be forks of are read: 1.x stores no link.

    Args:
        client: The server.
        everyone: The sessions that are asked about.
        cache: Where the rows of unchanged sessions are kept; False reads all and keeps none.

    Returns:
        Ids by ids, and warnings: of a session that could not be read nobody knows.

    Raises:
        KeyboardInterrupt: It was interrupted: what is not a fork then nobody knows.
        ServerConnectionError: The server went away; what was read is in the cache.
    """
    members = fork_families(everyone, everyone)
    loaded = load(client, members, "messages", cache=resolve_cache(cache))
    if loaded.not_loaded:
        raise KeyboardInterrupt
    return Forks(fork_copies_in(loaded, everyone).forks, loaded.warnings)


def resolve_cache(cache: Cache | bool) -> Cache | None:
    """The cache that is meant: True is the user's own, False none."""
    return Cache() if cache is True else cache or None


def _table(kind: str, what: str) -> Table:
    def table(
        client: Client,
        sessions: Iterable[Session | str] | None = None,
        *,
        everywhere: bool = False,
        cache: Cache | bool = True,
        refresh: bool = False,
        progress: bool = True,
    ) -> pd.DataFrame:
        chosen = (
            client.sessions(everywhere=everywhere)
            if sessions is None
            else resolve_sessions(client, sessions)
        )
        loaded = load(
            client, chosen, kind, cache=resolve_cache(cache), refresh=refresh, progress=progress
        )
        return history_frame(kind, loaded, chosen)

    table.__name__ = table.__qualname__ = kind
    table.__doc__ = what
    return documents_columns(FRAME_KINDS[kind].columns, _ARGUMENTS)(table)


messages = _table("messages", "Messages as a frame, one row each, those of a session oldest first.")
steps = _table("steps", "Steps (model calls) as a frame, one row each; tokens and cost are theirs.")
parts = _table("parts", "Parts of messages as a frame, one row each, in the order of the messages.")
tools = _table("tools", "Tool calls as a frame, one row each, in the order of the messages.")


def resolve_sessions(
    client: Client, sessions: Iterable[Session | str] | Session
) -> tuple[Session, ...]:
    """The sessions that are meant, each once, by value, id or title; one may stand alone."""
    sessions = [sessions] if isinstance(sessions, str | Session) else sessions
    chosen = (s if isinstance(s, Session) else find_session(client, s) for s in sessions)
    return tuple({s.id: s for s in chosen}.values())


@gc_paused()
def history_frame(kind: str, loaded: LoadedRows, sessions: Sequence[Session]) -> pd.DataFrame:
    """The frame of what was loaded, with its copies marked."""
    copies = fork_copies_in(loaded, sessions)
    warnings = loaded.warnings
    lists = loaded.lists
    if alone := {(lists["session"][at], lists["message"][at]) for at in copies.orphans}:
        told = pluralize(len(alone), "message")
        warnings.append(f"{told} older than the session: copied from one that is not here.")
    lists["duplicate_of"] = copies.originals
    frame = frame_from_lists(
        {n: c for n, c in FRAME_KINDS[kind].columns.items() if n not in _HIDDEN}, lists
    )
    frame.attrs["warnings"] = warnings
    frame.attrs["forks"] = copies.forks
    return frame


def fork_copies_in(loaded: LoadedRows, sessions: Sequence[Session]) -> Copies:
    """Which rows are copies, of what was loaded."""
    lists = loaded.lists
    places = map(CopyCandidate, lists["session"], lists["message"], lists["created"], lists["key"])
    return find_fork_copies([*places], {s.id: s for s in sessions})
