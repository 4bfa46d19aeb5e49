"""Frames of a server's history: sessions, messages, steps, parts and tool calls."""

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

    Messages that a fork copied are rows like all others; `duplicate_of` names the original if it
    is loaded as well. `attrs["warnings"]` says in one sentence each what could not be read, what
    came from the cache, and how many copies lack their original.

    Args:
        client: The server.
        sessions: Sessions by value, id or title; default: all of the client's project.
        everywhere: Load the sessions of all directories that the server knows.
        cache: Cache for the rows of unchanged sessions; False neither reads nor writes one.
        refresh: Read all sessions again.
        progress: Show a progress bar if it takes a while.

    Returns:
        A frame with the columns below, even if it is empty. Its `attrs` have `warnings` and
        `forks`, a dict from the id of a fork to the id of its original session. After an interrupt
        it has the rows loaded so far.

    Raises:
        UnknownNameError: There is no such session.
        ServerConnectionError: The connection was lost; the sessions read so far are in the cache.
"""


def documents_columns(columns: Columns, more: str = "") -> Callable[[F], F]:
    """Decorate a function so that its docstring ends with `more` and a list of columns."""

    def decorate(function: F) -> F:
        entries = (f"{n} ({c.dtype}): {c.about}" for n, c in columns.items() if n not in _HIDDEN)
        section = "\n        ".join(entries)
        function.__doc__ = f"{function.__doc__}{more}\n    Columns:\n        {section}\n"
        return function

    return decorate


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
        """Load the frame."""


@documents_columns(frames.SESSIONS)
def sessions(
    client: Client, *, directory: str | None = None, everywhere: bool = False
) -> pd.DataFrame:
    """Return a frame of sessions, latest first, including archived and subagents' sessions.

    Args:
        client: The server.
        directory: A directory of the project; default: the client's directory.
        everywhere: Include the sessions of all directories that the server knows.

    Returns:
        A frame with the columns below, even if it is empty.
    """
    directory = directory or client.directory
    listed = client.sessions(directory, everywhere=everywhere)
    return frames.sessions(listed, known_status(client, directory, listed))


def known_status(client: Client, directory: str, listed: Iterable[Session]) -> dict[str, str]:
    """Read the status of the sessions in one directory.

    Other directories are not queried, since that makes the server start an instance for each.

    Returns:
        "idle", "busy" or "retry" by session id, for sessions of this directory only; empty if the
        server fails the request.
    """
    statuses = optional(lambda: client.statuses(directory), None)
    if statuses is None:
        return {}
    ids = (s.id for s in listed if s.directory == directory)
    return {id: statuses[id].name if id in statuses else "idle" for id in ids}


class Forks(NamedTuple):
    """Forked sessions and their originals.

    Attributes:
        origins: Id of the original session, by id of the fork.
        warnings: What could not be read and what came from the cache, one sentence each.
    """

    origins: dict[str, str]
    warnings: list[str]


def forks(client: Client, everyone: Sequence[Session], *, cache: Cache | bool = True) -> Forks:
    """Find forked sessions and their originals.

    2.x reports the original of a fork. 1.x doesn't store it, so the messages of sessions whose
    titles suggest a fork are compared.

    Args:
        client: The server.
        everyone: The sessions to search.
        cache: Cache for the rows of unchanged sessions; False neither reads nor writes one.

    Returns:
        The originals, and warnings about sessions that could not be read.

    Raises:
        KeyboardInterrupt: Interrupted; a partial result would be wrong.
        ServerConnectionError: The connection was lost; the sessions read so far are in the cache.
    """
    members = fork_families(everyone, everyone)
    loaded = load(client, members, "messages", cache=resolve_cache(cache))
    if loaded.not_loaded:
        raise KeyboardInterrupt
    return Forks(fork_copies_in(loaded, everyone).forks, loaded.warnings)


def resolve_cache(cache: Cache | bool) -> Cache | None:
    """Return the user's default cache for True, None for False."""
    return Cache() if cache is True else cache or None


def _table(kind: str, summary: str) -> Table:
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
    table.__doc__ = summary
    return documents_columns(FRAME_KINDS[kind].columns, _ARGUMENTS)(table)


messages = _table("messages", "Return a frame of messages, oldest first within a session.")
steps = _table("steps", "Return a frame of steps (model calls) with their own tokens and cost.")
parts = _table("parts", "Return a frame of message parts, in the order of the messages.")
tools = _table("tools", "Return a frame of tool calls, in the order of the messages.")


def resolve_sessions(
    client: Client, sessions: Iterable[Session | str] | Session
) -> tuple[Session, ...]:
    """Look up sessions by value, id or title, without duplicates; a single one is accepted, too."""
    sessions = [sessions] if isinstance(sessions, str | Session) else sessions
    chosen = (s if isinstance(s, Session) else find_session(client, s) for s in sessions)
    return tuple({s.id: s for s in chosen}.values())


@gc_paused()
def history_frame(kind: str, loaded: LoadedRows, sessions: Sequence[Session]) -> pd.DataFrame:
    """Build the frame of loaded rows, with copied messages marked."""
    copies = fork_copies_in(loaded, sessions)
    warnings = loaded.warnings
    lists = loaded.lists
    if orphans := {(lists["session"][row], lists["message"][row]) for row in copies.orphans}:
        warnings.append(
            f"{pluralize(len(orphans), 'message')} older than the session: "
            "copied from a session that is not loaded."
        )
    lists["duplicate_of"] = copies.originals
    frame = frame_from_lists(
        {n: c for n, c in FRAME_KINDS[kind].columns.items() if n not in _HIDDEN}, lists
    )
    frame.attrs["warnings"] = warnings
    frame.attrs["forks"] = copies.forks
    return frame


def fork_copies_in(loaded: LoadedRows, sessions: Sequence[Session]) -> Copies:
    """Find the copied messages among loaded rows."""
    lists = loaded.lists
    rows = map(CopyCandidate, lists["session"], lists["message"], lists["created"], lists["key"])
    return find_fork_copies([*rows], {s.id: s for s in sessions})
