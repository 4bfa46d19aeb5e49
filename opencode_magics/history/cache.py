"""Keeps the rows of sessions that did not change, in one SQLite file of the user's.

A session is known again by what the list of sessions says of it: `time.updated` alone would miss
a deleted message, which changes cost and tokens only, and a new title (1.18.33). What the list
can't show (a shell run, an edited part) the cache can't see. A file that can't be read is thrown
away; one that is busy is left alone this time. Nothing in it is ever executed: no pickles.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import platformdirs

from ..core.columns import ColumnLists
from ..core.model import Session
from .frames import FRAME_KINDS
from .gc_pause import gc_paused
from .packing import PackedColumns, pack, unpack

log = logging.getLogger(__name__)

_LIMIT = 1 << 30  # bytes
_AT_ONCE = 4 << 20  # bytes of new rows that wait to be written
_SCHEMA = 3
_BUSY = 5.0  # seconds to wait for another kernel
_TABLE = """
create table if not exists rows (
    kind text, session text, mark text, read_at real, size integer, unread text,
    plan text, numbers blob, words text,
    primary key (kind, session)
) without rowid
"""
_FIND_ALL = "select session, mark, read_at, unread, plan, numbers, words from rows where kind = ?"
_FIND_SOME = f"{_FIND_ALL} and session in (select value from json_each(?))"
_FEW = 200  # sessions; for more it is faster to look at all
# The newest rows that fit into the limit stay.
_EVICT = """
delete from rows where (kind, session) in (
    select kind, session from (
        select kind, session, sum(size) over (order by read_at desc, kind, session) as upto
        from rows
    ) where upto > ?
)
"""


@dataclass
class Rows:
    """The rows of one session, column by column.

    Attributes:
        lists: The columns.
        unread: What could not be read, counted by wire name.
        finished: Nothing of it is still being written.
        read_at: When it was read from the server, seconds since the epoch.
    """

    lists: ColumnLists
    unread: Counter[str] = field(default_factory=Counter)
    finished: bool = True
    read_at: float = field(default_factory=time.time)


def mark(kind: str, session: Session) -> str:
    """What changes when a session's rows may have changed, as far as the list of sessions tells."""
    seen = (
        session.updated,
        session.usage,
        session.title,
        session.revert,
        session.archived,
        session.created,
        session.directory,
        *FRAME_KINDS[kind].columns,
    )
    return blake2b(repr(seen).encode("utf-8", "replace"), digest_size=16).hexdigest()


class Cache:
    """A file of rows; two kernels may use it at once.

    Args:
        path: The file; by default one in the user's cache folder.
        limit: Bytes of rows to keep; what was read from the server first goes first.
    """

    def __init__(self, path: Path | None = None, limit: int = _LIMIT) -> None:
        self.path = path or platformdirs.user_cache_path("opencode_magics") / "history.db"
        self._limit = limit
        self._new: list[tuple[Any, ...]] = []
        self._waiting, self._written = 0, False

    @gc_paused()
    def get(self, kind: str, sessions: Sequence[Session]) -> dict[str, Rows]:
        """The rows of those sessions that are here and, as far as can be seen, unchanged."""
        marks = {s.id: mark(kind, s) for s in sessions}
        found: dict[str, Rows] = {}

        def read(db: sqlite3.Connection) -> None:
            few = len(marks) < _FEW
            query = (_FIND_SOME, (kind, json.dumps([*marks]))) if few else (_FIND_ALL, (kind,))
            for session, seen, read_at, unread, *written in db.execute(*query):
                if seen == marks.get(session):
                    lists = unpack(PackedColumns(*written))
                    found[session] = Rows(lists, _counter(unread), read_at=read_at)

        self._use(read)
        return found

    def put(self, kind: str, session: Session, rows: Rows) -> None:
        """Keep rows; they are written with the next `flush`, or when there are many."""
        written = pack(FRAME_KINDS[kind].columns, rows.lists)
        if written.size > self._limit:
            return
        about = (kind, session.id, mark(kind, session), rows.read_at, written.size)
        self._new.append((*about, json.dumps(rows.unread), *written))
        self._waiting += written.size
        if self._waiting > _AT_ONCE:
            self._write()

    def flush(self) -> None:
        """Write what waits, and let go of what is too much."""
        if self._new or self._written:
            self._write()
            self._use(lambda db: db.execute(_EVICT, (self._limit,)))
            self._written = False

    def _write(self) -> None:
        new, self._new, self._waiting, self._written = self._new, [], 0, True
        put = "insert or replace into rows values (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        self._use(lambda db: db.executemany(put, new))

    def _use(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Do one piece of work with the file. Without it everything works, only slower."""
        try:
            with closing(self._connection()) as db, db:
                work(db)
        except (sqlite3.DatabaseError, OSError, ValueError) as error:
            if _passes(error):
                log.warning("The history cache %s was not used: %s", self.path, error)
                return
            log.warning("The history cache %s can't be read (%s): made anew.", self.path, error)
            self._throw_away()

    def _connection(self) -> sqlite3.Connection:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # SQLite gives its side files the permissions of this one.
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        db = sqlite3.connect(self.path, timeout=_BUSY)
        try:
            if db.execute("pragma user_version").fetchone() != (_SCHEMA,):
                db.execute("pragma journal_mode = wal")
                with db:
                    db.execute("drop table if exists rows")
                    db.execute(_TABLE)
                    db.execute(f"pragma user_version = {_SCHEMA}")
        except BaseException:
            db.close()
            raise
        return db

    def _throw_away(self) -> None:
        for side in ("", "-wal", "-shm"):
            with suppress(OSError):
                Path(f"{self.path}{side}").unlink()


def _counter(written: str) -> Counter[str]:
    counts = json.loads(written)
    if not isinstance(counts, dict):
        raise ValueError("these are no counts")
    return Counter(counts)


def _passes(error: Exception) -> bool:
    """Whether the file is as good as ever: it is busy, full, or may not be written.

    SQLITE_ERROR is about what we ask: the table is not there, or not as it should be.
    """
    if isinstance(error, sqlite3.OperationalError):
        return error.sqlite_errorcode != sqlite3.SQLITE_ERROR
    return isinstance(error, OSError)
