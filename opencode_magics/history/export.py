"""Export the history to files that DuckDB, Polars and Spark read: Parquet or JSON Lines.

    PATH/messages/day=2026-11-29/ses_1a2b.parquet

A file contains one session's rows for one day (UTC) and is always replaced as a whole, so a second
export never duplicates rows, and machines that share a folder never write the same file, because
session ids are unique. The row of the session is written last, with a `mark`: a hash of its entry
in the session list. The mark says that the export of the session is complete; it is NA if a turn
was unfinished. A session whose mark is up to date is not read again.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit
from uuid import uuid4

from ..client.client import Client
from ..core.columns import (
    COUNT,
    FLAG,
    NUMBER,
    OBJECT,
    TEXT,
    TIME,
    Column,
    ColumnLists,
    Columns,
    lists_from_rows,
)
from ..core.formatting import pluralize
from ..core.model import Message, Session
from ..core.outcome import is_finished
from ..errors import OpenCodeError, UnknownNameError
from . import frames
from .cache import Cache, mark
from .fork_copies import Copies, fork_families
from .frames import FRAME_KINDS, SessionRow, session_rows
from .load import LoadedRows, load, read_transcripts
from .optional_imports import import_extra
from .queries import fork_copies_in, resolve_cache, resolve_sessions

_NO_DAY = "__HIVE_DEFAULT_PARTITION__"  # Hive partitioning's name for NULL


@dataclass
class Exported:
    """The result of an export.

    Attributes:
        path: The folder.
        sessions: Number of sessions in the selection.
        unchanged: Number of these that were already exported and have the same list entry.
        written, removed: Number of files written, and of old files of these sessions removed.
        warnings: Warnings, one sentence each.
    """

    path: Path
    sessions: int = 0
    unchanged: int = 0
    written: int = 0
    removed: int = 0
    warnings: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        sessions = pluralize(self.sessions, "session")
        return (
            f"<Exported {sessions} to {self.path}: {self.unchanged} unchanged, "
            f"{self.written} files written>"
        )


def export(
    client: Client,
    path: str | Path,
    sessions: Iterable[Session | str] | None = None,
    *,
    everywhere: bool = False,
    format: str = "parquet",
    source: str | None = None,
    cache: Cache | bool = True,
    refresh: bool = False,
    progress: bool = True,
) -> Exported:
    """Write sessions, messages, steps, parts and tool calls to a folder, by day.

    The columns are those of the frames; categories are strings, times UTC timestamps, a tool's
    input is JSON text. There are three more: `key`, the same for a message and its copies in
    forks; `source`, the origin of a session; and `mark`, which tells the next export whether the
    session changed. Sessions deleted from the server stay in the folder. The next export
    completes an interrupted one.

    Args:
        client: The server.
        path: The folder; created if missing, added to if it exists.
        sessions: Sessions by value, id or title; default: all of the client's project.
        everywhere: Export the sessions of all directories that the server knows.
        format: "parquet" or "jsonl".
        source: Origin of these sessions; default: this machine's name, or the host name of a
            remote server.
        cache: Cache for the rows of unchanged sessions; False neither reads nor writes one.
        refresh: Read all sessions again, to see changes that the session list doesn't show (a
            shell run, an edited part).
        progress: Show a progress bar if it takes a while.

    Returns:
        The number of sessions, the number of files written, and warnings.

    Raises:
        UnknownNameError: There is no such format or session.
        MissingPackageError: Parquet needs pyarrow: `pip install 'opencode-magics[parquet]'`.
        OSError: The folder can't be written.
        ValueError: The folder contains files of the other format.
    """
    if format not in _FORMATS:
        raise UnknownNameError(f"Unknown format {format!r}.", f"Use one of: {', '.join(_FORMATS)}.")
    folder = _Folder(Path(path).expanduser().absolute(), _FORMATS[format]())
    chosen = None if sessions is None else resolve_sessions(client, sessions)
    everyone = client.sessions(everywhere=everywhere or chosen is not None)
    selected = everyone if chosen is None else chosen
    marks = {} if refresh else folder.marks(selected)
    changed = [s for s in selected if marks.get(s.id) != _mark(s)]
    result = Exported(folder.path, len(selected), len(selected) - len(changed))
    copies = _fork_copies(client, everyone, changed, resolve_cache(cache), refresh, progress)
    result.warnings += copies.warnings
    rows = {row.session.id: row for row in session_rows((*everyone, *selected))}
    source_name = source or _source(client)
    with read_transcripts(client, changed, progress) as transcripts:
        for session, messages in zip(changed, transcripts, strict=True):
            if isinstance(messages, OpenCodeError):
                result.warnings.append(f"Session {session.id} could not be read: {messages.what}")
                continue
            row = rows[session.id]._replace(fork_of=copies.forks.get(session.id))
            _write(folder, row, source_name, messages, copies, result)
    return result


class _ForkCopies(NamedTuple):
    """Copied messages and forked sessions.

    Attributes:
        originals: Id of the original message, by session and message id of the copy.
        forks: Id of the original session, by id of the fork.
        warnings: Warnings about originals that could not be read.
    """

    originals: Mapping[tuple[str, str | None], str]
    forks: Mapping[str, str]
    warnings: Sequence[str]


def _fork_copies(
    client: Client,
    everyone: Sequence[Session],
    changed: Sequence[Session],
    cache: Cache | None,
    refresh: bool,
    progress: bool,
) -> _ForkCopies:
    """Find the copies among the messages of the changed sessions.

    The title of a fork names the original session. If a fork was renamed, its copied messages are
    older than the fork itself; then all sessions are searched for the originals.
    """

    def search(sessions: Iterable[Session]) -> tuple[LoadedRows, Copies]:
        unique = list({s.id: s for s in sessions}.values())
        loaded = load(client, unique, "messages", cache=cache, refresh=refresh, progress=progress)
        if loaded.not_loaded:
            raise KeyboardInterrupt
        return loaded, fork_copies_in(loaded, unique)

    loaded, copies = search((*changed, *fork_families(everyone, changed)))
    changed_ids = {s.id for s in changed}
    if any(loaded.lists["session"][row] in changed_ids for row in copies.orphans):
        loaded, copies = search((*changed, *everyone))
    ids = zip(loaded.lists["session"], loaded.lists["message"], strict=True)
    pairs = zip(ids, copies.originals, strict=True)
    # `export` itself warns about the changed sessions that can't be read.
    unread = [(s, e) for s, e in loaded.failed.items() if s not in changed_ids]
    return _ForkCopies(
        {copy: original for copy, original in pairs if original},
        copies.forks,
        [f"Can't tell which messages are copies from session {s}: {e.what}" for s, e in unread],
    )


def _source(client: Client) -> str:
    return socket.gethostname() if client.local else urlsplit(client.url).hostname or client.url


def _mark(session: Session) -> str:
    """Hash a session's list entry and the names of our columns; a new hash means a new export."""
    marks = "".join(mark(kind, session) for kind in FRAME_KINDS)
    return blake2b(marks.encode(), digest_size=16).hexdigest()


# -- one session -----------------------------------------------------------------------------------


_SESSIONS: Columns = {
    **frames.SESSIONS,
    "source": Column(TEXT, lambda r: None, "Origin, as named by the export."),
    "mark": Column(TEXT, lambda r: None, "Hash of the session's list entry; NA if unfinished."),
}


def _write(
    folder: _Folder,
    row: SessionRow,
    source: str,
    messages: Sequence[Message],
    copies: _ForkCopies,
    result: Exported,
) -> None:
    """Write all rows of a session, its row in `sessions` last."""
    session = row.session
    session_lists = lists_from_rows(_SESSIONS, [row]) | {"source": [source]}

    def write_session_row(mark: str | None) -> int:
        days = {_day(session.created): session_lists | {"mark": [mark]}}
        return folder.put("sessions", session, _SESSIONS, days)[0]

    if folder.marks([session]).get(session.id) == _mark(session):
        result.written += write_session_row(None)  # incomplete if interrupted from here on
    for kind, (columns, rows) in FRAME_KINDS.items():
        lists = lists_from_rows(columns, rows(messages))
        ids = zip(lists["session"], lists["message"], strict=True)
        lists["session_title"] = [session.title] * len(lists["session"])
        lists["duplicate_of"] = [copies.originals.get(copy) for copy in ids]
        written, removed = folder.put(kind, session, columns, _lists_by_day(lists))
        result.written, result.removed = result.written + written, result.removed + removed
    result.written += write_session_row(_mark(session) if is_finished(messages) else None)


def _lists_by_day(lists: ColumnLists) -> dict[str, ColumnLists]:
    """Split rows by the day (UTC) on which their message started."""
    rows_by_day: dict[str, list[int]] = {}
    for row, created in enumerate(lists["created"]):
        rows_by_day.setdefault(_day(created), []).append(row)
    return {
        day: {name: [values[row] for row in rows] for name, values in lists.items()}
        for day, rows in rows_by_day.items()
    }


def _day(time: int | None) -> str:
    utc = _datetime(time)
    return _NO_DAY if utc is None else f"{utc:%Y-%m-%d}"


def _datetime(time: int | None) -> datetime | None:
    """Convert milliseconds since the epoch; None if out of range."""
    with suppress(ValueError, OverflowError, OSError):
        return None if time is None else datetime.fromtimestamp(time / 1000, UTC)
    return None


# -- the folder ------------------------------------------------------------------------------------


class _Folder:
    """The export folder: KIND/day=DAY/SESSION.SUFFIX."""

    def __init__(self, path: Path, format: _Format) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)  # fail before reading any session
        self.path = path
        self._format = format
        self._files = {kind: self._list_files(kind) for kind in ("sessions", *FRAME_KINDS)}

    def _list_files(self, kind: str) -> dict[str, set[Path]]:
        """Return the files of each session, by stem."""
        files_by_stem: dict[str, set[Path]] = {}
        for file in (self.path / kind).glob("day=*/[!.]*"):
            if file.suffix != self._format.suffix:
                raise ValueError(
                    f"{self.path} contains {file.suffix} files. Use one folder per format."
                )
            files_by_stem.setdefault(file.stem, set()).add(file)
        return files_by_stem

    def marks(self, sessions: Iterable[Session]) -> dict[str, str | None]:
        """Return the marks of the sessions that are already exported."""
        files_by_id = {s.id: self._files["sessions"].get(_stem(s), set()) for s in sessions}
        # A session with two rows has no mark, so that it is written again.
        return {
            id: self._format.mark(*files) for id, files in files_by_id.items() if len(files) == 1
        }

    def put(
        self, kind: str, session: Session, columns: Columns, days: Mapping[str, ColumnLists]
    ) -> tuple[int, int]:
        """Replace the rows of a session; return the numbers of files written and removed."""
        stem, written = _stem(session), 0
        old, new = self._files[kind].get(stem, set()), set()
        for day, lists in days.items():
            file = self.path / kind / f"day={day}" / f"{stem}{self._format.suffix}"
            written += _replace(file, self._format.encode(columns, lists))
            new.add(file)
        for file in old - new:  # the messages of that day are gone, as after a revert
            file.unlink(missing_ok=True)
        self._files[kind][stem] = new
        return written, len(old - new)


def _stem(session: Session) -> str:
    return quote(session.id, safe="")


def _replace(file: Path, body: bytes) -> bool:
    """Write a file atomically; return False if it has this content already."""
    with suppress(FileNotFoundError):
        if file.read_bytes() == body:
            return False
    for folder in (file.parent.parent, file.parent):  # `parents=True` would make public ones
        folder.mkdir(mode=0o700, exist_ok=True)
    # Readers of this layout ignore names that start with a dot.
    temporary = file.with_name(f".{uuid4().hex}.part")
    try:
        temporary.touch(mode=0o600)  # only the user can read it
        temporary.write_bytes(body)
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return True


# -- formats ---------------------------------------------------------------------------------------


class _Format(NamedTuple):
    """A file format: its suffix, its encoder, and the reader of a session's mark."""

    suffix: str
    encode: Callable[[Columns, ColumnLists], bytes]
    mark: Callable[[Path], str | None]


def _objects_as_json(column: Column, values: Iterable[Any]) -> Iterator[Any]:
    """Convert objects to JSON text; leave other values unchanged."""
    if column.dtype != OBJECT:
        return iter(values)
    return (None if v is None else json.dumps(v, ensure_ascii=False) for v in values)


def _parquet() -> _Format:
    pa = import_extra("pyarrow", "Parquet files", "parquet")
    pq = import_extra("pyarrow.parquet", "Parquet files", "parquet")
    types = {
        TIME: pa.timestamp("ms", "UTC"),
        COUNT: pa.int64(),
        NUMBER: pa.float64(),
        FLAG: pa.bool_(),
    }

    def encode(columns: Columns, lists: ColumnLists) -> bytes:
        # Explicit types, so that an empty column has the same type in every file.
        arrays = {
            name: pa.array(list(_objects_as_json(c, lists[name])), types.get(c.dtype, pa.string()))
            for name, c in columns.items()
        }
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(arrays), sink, compression="zstd")
        body: bytes = sink.getvalue().to_pybytes()
        return body

    def read_mark(file: Path) -> str | None:
        try:
            (mark,) = pq.read_table(file, columns=["mark"])["mark"].to_pylist()
        except (pa.ArrowException, ValueError, OSError):  # damaged: write it again
            return None
        return mark if isinstance(mark, str) else None

    return _Format(".parquet", encode, read_mark)


def _jsonl() -> _Format:
    def encode(columns: Columns, lists: ColumnLists) -> bytes:
        json_lists = {name: _json_values(c, lists[name]) for name, c in columns.items()}
        rows = (
            dict(zip(json_lists, row, strict=True))
            for row in zip(*json_lists.values(), strict=True)
        )
        return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)

    def read_mark(file: Path) -> str | None:
        try:
            mark = json.loads(file.read_bytes())["mark"]
        except (ValueError, KeyError, TypeError, OSError):
            return None
        return mark if isinstance(mark, str) else None

    return _Format(".jsonl", encode, read_mark)


def _json_values(column: Column, values: Iterable[Any]) -> list[Any]:
    """Convert the values of a column to JSON values: times to ISO 8601, objects to JSON text."""
    if column.dtype == TIME:
        return [_iso(time) for time in values]
    return [*_objects_as_json(column, values)]


def _iso(time: int | None) -> str | None:
    utc = _datetime(time)
    return None if utc is None else utc.isoformat(timespec="milliseconds")


_FORMATS: Mapping[str, Callable[[], _Format]] = {"parquet": _parquet, "jsonl": _jsonl}
