"""A cache of the rows of unchanged sessions, in one SQLite file per user.

A session counts as unchanged if its entry in the server's session list is the same. `time.updated`
alone would miss a new title and a deleted message, which changes only cost and tokens (1.18.33).
The cache can't detect changes that the list doesn't show: a shell run, an edited part. A damaged
file is deleted; a busy one is skipped. There are no pickles: nothing in the file is executed.
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
_WRITE_AFTER = 4 << 20  # bytes of new rows in memory
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
_FEW = 200  # sessions; from here on it is faster to read all rows
# Keep the newest rows that fit into the limit.
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
        unread: Unreadable fields and parts, counted by wire name.
        finished: False while the server may still be writing messages of the session.
        read_at: Time of reading from the server, seconds since the epoch.
    """

    lists: ColumnLists
    unread: Counter[str] = field(default_factory=Counter)
    finished: bool = True
    read_at: float = field(default_factory=time.time)


def mark(kind: str, session: Session) -> str:
    """Hash the parts of a session's list entry that change when its rows change."""
    fingerprint = (
        session.updated,
        session.usage,
        session.title,
        session.revert,
        session.archived,
        session.created,
        session.directory,
        *FRAME_KINDS[kind].columns,
    )
    return blake2b(repr(fingerprint).encode("utf-8", "replace"), digest_size=16).hexdigest()


class Cache:
    """A file of rows that several kernels can use at the same time.

    Args:
        path: The file; by default one in the user's cache folder.
        limit: Bytes of rows to keep; the oldest rows are deleted first.
    """

    def __init__(self, path: Path | None = None, limit: int = _LIMIT) -> None:
        self.path = path or platformdirs.user_cache_path("opencode_magics") / "history.db"
        self._limit = limit
        self._new: list[tuple[Any, ...]] = []
        self._new_size, self._written = 0, False

    @gc_paused()
    def get(self, kind: str, sessions: Sequence[Session]) -> dict[str, Rows]:
        """Return the cached rows of unchanged sessions, by session id."""
        marks = {s.id: mark(kind, s) for s in sessions}
        rows: dict[str, Rows] = {}

        def read(db: sqlite3.Connection) -> None:
            few = len(marks) < _FEW
            query = (_FIND_SOME, (kind, json.dumps([*marks]))) if few else (_FIND_ALL, (kind,))
            for session, cached_mark, read_at, unread, *packed in db.execute(*query):
                if cached_mark == marks.get(session):
                    lists = unpack(PackedColumns(*packed))
                    rows[session] = Rows(lists, _counter(unread), read_at=read_at)

        self._use(read)
        return rows

    def put(self, kind: str, session: Session, rows: Rows) -> None:
        """Add rows; they are written by the next `flush`, or earlier if there are many."""
        packed = pack(FRAME_KINDS[kind].columns, rows.lists)
        if packed.size > self._limit:
            return
        header = (kind, session.id, mark(kind, session), rows.read_at, packed.size)
        self._new.append((*header, json.dumps(rows.unread), *packed))
        self._new_size += packed.size
        if self._new_size > _WRITE_AFTER:
            self._write()

    def flush(self) -> None:
        """Write new rows, and delete the oldest rows over the limit."""
        if self._new or self._written:
            self._write()
            self._use(lambda db: db.execute(_EVICT, (self._limit,)))
            self._written = False

    def _write(self) -> None:
        new, self._new, self._new_size, self._written = self._new, [], 0, True
        insert = "insert or replace into rows values (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        self._use(lambda db: db.executemany(insert, new))

    def _use(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Run `work` on the file; log a failure, since the cache only saves time."""
        try:
            with closing(self._connection()) as db, db:
                work(db)
        except (sqlite3.DatabaseError, OSError, ValueError) as error:
            if _is_intact(error):
                log.warning("The history cache %s was not used: %s", self.path, error)
                return
            log.warning("Deleting the damaged history cache %s: %s", self.path, error)
            self._delete()

    def _connection(self) -> sqlite3.Connection:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # SQLite gives its -wal and -shm files the permissions of this one.
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

    def _delete(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                Path(f"{self.path}{suffix}").unlink()


def _counter(text: str) -> Counter[str]:
    counts = json.loads(text)
    if not isinstance(counts, dict):
        raise ValueError("counts of unreadable fields are not a JSON object")
    return Counter(counts)


def _is_intact(error: Exception) -> bool:
    """Return True if the file itself is fine: it is busy, full, or not writable.

    SQLITE_ERROR means that our statement failed: the table is missing or has other columns.
    """
    if isinstance(error, sqlite3.OperationalError):
        return error.sqlite_errorcode != sqlite3.SQLITE_ERROR
    return isinstance(error, OSError)
