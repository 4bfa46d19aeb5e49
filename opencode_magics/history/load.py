"""Load the messages of many sessions from a server into columns.

Eight threads download one session each; sessions keep their order, and messages are freed as soon
as their rows are built. Four downloads keep a server of 1.18.33 busy, but the threads wait for the
GIL while this thread decodes; with eight there is always a pending request.
`LoadedRows.warnings` counts what could not be read. An interrupt keeps the rows loaded so far.
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
_AHEAD = 20  # sessions downloaded in advance
_BAR_AFTER = 0.5  # seconds


@dataclass
class LoadedRows:
    """The columns of many sessions.

    Attributes:
        lists: The columns.
        rows: Number of rows by session, in order.
        unread: Unreadable fields and parts, counted by wire name.
        failed: The error of each session that could not be read at all.
        cached: Number of sessions from the cache.
        oldest: Time at which the oldest of these was read, seconds since the epoch.
        not_loaded: Number of sessions not loaded because of an interrupt.
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
        count = len(rows.lists["session"])
        for name, values in (rows.lists | {"session_title": [session.title] * count}).items():
            self.lists[name].extend(values)
        self.rows[session.id] = count
        self.unread.update(rows.unread)

    def add_cached(self, session: Session, rows: Rows) -> None:
        """Append a session's rows from the cache."""
        self.add(session, rows)
        self.cached += 1
        self.oldest = min(self.oldest or rows.read_at, rows.read_at)

    def trim(self) -> None:
        """Drop the rows of a half-added session, so that all columns have the same length."""
        rows = sum(self.rows.values())
        for values in self.lists.values():
            if isinstance(values, PackedTexts):
                values.cut(rows)
            else:
                del values[rows:]

    @property
    def warnings(self) -> list[str]:
        """Warnings about these rows, one sentence each."""
        warnings = [
            f"{name} could not be read in {pluralize(count, 'place')}; the values are NA."
            for name, count in sorted(self.unread.items())
        ]
        for reason, count in sorted(Counter(_reason(e) for e in self.failed.values()).items()):
            warnings.append(f"{pluralize(count, 'session')} could not be read: {reason}")
        if self.not_loaded:
            warnings.append(f"Interrupted: {pluralize(self.not_loaded, 'session')} not loaded.")
        if self.cached and self.oldest is not None:
            since = datetime.fromtimestamp(self.oldest, UTC).astimezone()
            warnings.append(
                f"{pluralize(self.cached, 'session')} from the cache, "
                f"read at {since:%Y-%m-%d %H:%M} or later. "
                "The cache can't detect a shell run or an edited part; --refresh reads again."
            )
        return warnings


def load(
    client: Client,
    sessions: Sequence[Session],
    kind: str,
    *,
    cache: Cache | None = None,
    refresh: bool = False,
    progress: bool = True,
) -> LoadedRows:
    """Load the rows of sessions, in order.

    Args:
        client: The server.
        sessions: As the server lists them now; a session whose entry changed is read again.
        kind: The frame: "messages", "steps", "parts" or "tools".
        cache: Cache of rows; None reads everything and caches nothing.
        refresh: Read everything again, and update the cache.
        progress: Show a progress bar if it takes a while.
    """
    loaded = LoadedRows(empty_lists(FRAME_KINDS[kind].columns))
    cached = cache.get(kind, sessions) if cache is not None and not refresh else {}
    uncached = [s for s in sessions if s.id not in cached]

    with read_transcripts(client, uncached, progress) as transcripts:
        try:
            for session in sessions:
                if session.id in cached:
                    loaded.add_cached(session, cached.pop(session.id))
                    continue
                messages = next(transcripts)
                if isinstance(messages, OpenCodeError):
                    loaded.failed[session.id] = messages
                    continue
                rows = _rows_from_messages(kind, messages)
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


def _rows_from_messages(kind: str, messages: Sequence[Message]) -> Rows:
    columns, make_rows = FRAME_KINDS[kind]
    unread = Counter(name for m in messages for name in m.unread)
    return Rows(lists_from_rows(columns, make_rows(messages)), unread, is_finished(messages))


@contextmanager
def read_transcripts(
    client: Client, sessions: Sequence[Session], progress: bool
) -> Iterator[Iterator[TranscriptResult]]:
    """Iterate over the sessions' messages, or the error if a session can't be read, in order.

    Threads download ahead. They don't decode, since Python would keep the memory in every thread.
    """

    def download(session: Session) -> tuple[Reply, ...] | OpenCodeError:
        try:
            return client.run(client.dialect.message_pages(session))
        except StatusError as error:  # deleted meanwhile, or unreadable for good
            return error

    def decode(
        downloads: Iterator[tuple[Reply, ...] | OpenCodeError],
    ) -> Iterator[TranscriptResult]:
        for session, pages in zip(sessions, downloads, strict=True):
            if isinstance(pages, OpenCodeError):
                bar.advance(0)
                yield pages
                continue
            bar.advance(sum(len(page.body) for page in pages))
            try:
                yield client.readable_messages(session, pages)
            except (StatusError, StreamError) as error:
                yield error

    with _Bar(len(sessions), progress) as bar, _map_ahead(download, sessions) as downloads:
        yield decode(downloads)


@contextmanager
def _map_ahead(function: Callable[[Q], T], items: Iterable[Q]) -> Iterator[Iterator[T]]:
    """Map a function over items in threads that work a few items ahead, until the block ends."""
    pool = ThreadPoolExecutor(_WORKERS, "opencode-history")
    remaining = iter(items)

    def results() -> Iterator[T]:
        futures = deque(pool.submit(function, item) for item in islice(remaining, _AHEAD))
        while futures:
            result = futures.popleft().result()
            futures.extend(pool.submit(function, item) for item in islice(remaining, 1))
            yield result

    try:
        yield results()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class _Bar:
    """A progress bar of sessions and megabytes read."""

    def __init__(self, total: int, enabled: bool) -> None:
        from tqdm import tqdm

        self._size = 0
        self._bar = tqdm(
            total=total,
            desc="Reading sessions",
            unit=" sessions",
            delay=_BAR_AFTER,
            leave=False,
            file=_bar_output(),
            disable=not enabled,
        )

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.close()

    def advance(self, size: int) -> None:
        """Count one more session, of `size` bytes."""
        self._size += size
        self._bar.set_postfix_str(f"{self._size / 1e6:.0f} MB", refresh=False)
        self._bar.update()


def _bar_output() -> TextIO:
    """Return stdout in a notebook, where stderr looks like a failure (red); else stderr.

    A script's stdout may be piped; a kernel's never is.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return sys.stdout if getattr(shell, "kernel", None) is not None else sys.stderr


def _reason(error: OpenCodeError) -> str:
    if isinstance(error, NotFoundError):
        return "deleted meanwhile."
    return error.what
