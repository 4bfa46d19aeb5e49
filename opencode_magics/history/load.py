"""Loads the messages of many sessions from a server into columns.

Eight threads read, one session each; the order is kept, and a session's messages are dropped as
soon as their rows are taken. Four would keep a server of 1.18.33 at work, if Python let them: while
this thread decodes they wait, and with eight a request is there all the time.
What could not be read is counted in `LoadedRows.warnings`, and an interrupt keeps what was loaded.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import TextIO, TypeVar

from ..client.client import Client
from ..core.columns import ColumnLists, PackedTexts, empty_lists, lists_from_rows
from ..core.formatting import pluralize
from ..core.model import Message, Session
from ..core.outcome import is_finished
from ..dialects.base import Reply
from ..errors import NotFoundError, OpenCodeError, StatusError, StreamError
from .cache import Cache, Rows
from .frames import FRAME_KINDS

TranscriptResult = tuple[Message, ...] | OpenCodeError
T = TypeVar("T")
Q = TypeVar("Q")

_WORKERS = 8
_AHEAD = 20  # sessions that are read before their turn comes
_BAR_AFTER = 0.5  # seconds


@dataclass
class LoadedRows:
    """The columns of many sessions.

    Attributes:
        lists: The columns.
        rows: How many rows each session has, in order.
        unread: Fields and parts that could not be read, counted by their wire names.
        failed: Sessions that could not be read at all, and why.
        cached: How many sessions came from the cache, and from when the oldest of these is.
        not_loaded: How many sessions were left when it was interrupted.
    """

    lists: ColumnLists
    rows: dict[str, int] = field(default_factory=dict)
    unread: Counter[str] = field(default_factory=Counter)
    failed: dict[str, OpenCodeError] = field(default_factory=dict)
    cached: int = 0
    oldest: float | None = None
    not_loaded: int = 0

    def add(self, session: Session, rows: Rows) -> None:
        """Append a session's rows."""
        number = len(rows.lists["session"])
        for name, values in (rows.lists | {"session_title": [session.title] * number}).items():
            self.lists[name].extend(values)
        self.rows[session.id] = number
        self.unread.update(rows.unread)

    def add_cached(self, session: Session, rows: Rows) -> None:
        """Append a session's rows from the cache."""
        self.add(session, rows)
        self.cached += 1
        self.oldest = min(self.oldest or rows.read_at, rows.read_at)

    def trim(self) -> None:
        """Drop what an interrupt left half added: the columns are of the same length again."""
        rows = sum(self.rows.values())
        for values in self.lists.values():
            if isinstance(values, PackedTexts):
                values.cut(rows)
            else:
                del values[rows:]

    @property
    def warnings(self) -> list[str]:
        """What a person should know about these rows, a sentence each."""
        told = [
            f"{name} could not be read in {pluralize(number, 'place')}: NA there."
            for name, number in sorted(self.unread.items())
        ]
        for reason, number in sorted(Counter(_why(e) for e in self.failed.values()).items()):
            told.append(f"{pluralize(number, 'session')} could not be read: {reason}")
        if self.not_loaded:
            told.append(f"Interrupted: {pluralize(self.not_loaded, 'session')} not loaded.")
        if self.cached and self.oldest is not None:
            since = datetime.fromtimestamp(self.oldest, UTC).astimezone()
            told.append(
                f"{pluralize(self.cached, 'session')} from the cache, "
                f"read at {since:%Y-%m-%d %H:%M} "
                "or later; --refresh reads again (a shell run or an edited part can't be seen)."
            )
        return told


def load(
    client: Client,
    sessions: Sequence[Session],
    kind: str,
    *,
    cache: Cache | None = None,
    refresh: bool = False,
    progress: bool = True,
) -> LoadedRows:
    """The rows of one kind ("messages", "steps", "parts", "tools") of sessions, in their order.

    Args:
        client: The server.
        sessions: As it lists them now; what differs from the cached list is read again.
        kind: Which frame.
        cache: Where rows are kept; None keeps none.
        refresh: Read all again, and cache that.
        progress: Show a bar if it takes a while.
    """
    loaded = LoadedRows(empty_lists(FRAME_KINDS[kind].columns))
    kept = cache.get(kind, sessions) if cache is not None and not refresh else {}
    wanted = [s for s in sessions if s.id not in kept]

    with read_transcripts(client, wanted, progress) as fresh:
        try:
            for session in sessions:
                if session.id in kept:
                    loaded.add_cached(session, kept.pop(session.id))
                    continue
                messages = next(fresh)
                if isinstance(messages, OpenCodeError):
                    loaded.failed[session.id] = messages
                    continue
                rows = _rows(kind, messages)
                if cache is not None and rows.finished:
                    cache.put(kind, session, rows)
                loaded.add(session, rows)
        except KeyboardInterrupt:
            loaded.trim()
            loaded.not_loaded = len(sessions) - len(loaded.rows) - len(loaded.failed)
        finally:
            if cache is not None:
                cache.flush()
    return loaded


def _rows(kind: str, messages: Sequence[Message]) -> Rows:
    columns, rows_of = FRAME_KINDS[kind]
    unread = Counter(name for m in messages for name in m.unread)
    return Rows(lists_from_rows(columns, rows_of(messages)), unread, is_finished(messages))


@contextmanager
def read_transcripts(
    client: Client, sessions: Sequence[Session], progress: bool
) -> Iterator[Iterator[TranscriptResult]]:
    """The messages of sessions in their order, or why they can't be read; threads read ahead.

    Decoded here and not in the threads: Python would keep the memory of what each decodes.
    """

    def read(session: Session) -> tuple[Reply, ...] | OpenCodeError:
        try:
            return client.run(client.dialect.message_pages(session))
        except StatusError as error:  # deleted meanwhile, or unreadable for ever
            return error

    def decoded(reading: Iterator[tuple[Reply, ...] | OpenCodeError]) -> Iterator[TranscriptResult]:
        for session, pages in zip(sessions, reading, strict=True):
            if isinstance(pages, OpenCodeError):
                bar.advance(0)
                yield pages
                continue
            bar.advance(sum(len(page.body) for page in pages))
            try:
                yield client.readable_messages(session, pages)
            except (StatusError, StreamError) as error:
                yield error

    with _Bar(len(sessions), progress) as bar, _in_order(read, sessions) as reading:
        yield decoded(reading)


@contextmanager
def _in_order(read: Callable[[Q], T], wanted: Iterable[Q]) -> Iterator[Iterator[T]]:
    """The results of some threads that are a few items ahead; they end with the block."""
    pool = ThreadPoolExecutor(_WORKERS, "opencode-history")
    coming = iter(wanted)

    def results() -> Iterator[T]:
        reading = deque(pool.submit(read, item) for item in islice(coming, _AHEAD))
        while reading:
            result = reading.popleft().result()
            reading.extend(pool.submit(read, item) for item in islice(coming, 1))
            yield result

    try:
        yield results()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class _Bar:
    """Sessions and megabytes read, where it takes a while."""

    def __init__(self, total: int, shown: bool) -> None:
        from tqdm import tqdm

        self._size = 0
        self._bar = tqdm(
            total=total,
            desc="Reading sessions",
            unit=" sessions",
            delay=_BAR_AFTER,
            leave=False,
            file=_seen(),
            disable=not shown,
        )

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.close()

    def advance(self, size: int) -> None:
        """One more session, of so many bytes."""
        self._size += size
        self._bar.set_postfix_str(f"{self._size / 1e6:.0f} MB", refresh=False)
        self._bar.update()


def _seen() -> TextIO:
    """Where a bar is seen and spoils nothing.

    On a notebook's stderr it would stand on red, as if something had failed; a kernel's stdout is
    never piped, and that of a script may be.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return sys.stdout if getattr(shell, "kernel", None) is not None else sys.stderr


def _why(error: OpenCodeError) -> str:
    if isinstance(error, NotFoundError):
        return "deleted meanwhile."
    return error.what
