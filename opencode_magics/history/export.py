"""Writes histories as files that DuckDB, Polars and Spark read: Parquet, or JSON lines.

    PATH/messages/day=2026-11-29/ses_1a2b.parquet

A file has what one session did on one day (UTC), and is only ever replaced as a whole. So a second
export repeats nothing, whatever changed meanwhile, and machines that share a folder never write
the same file, since no two sessions have the same id. The row of the session is written last, with
a `mark` of what the list of sessions told: it says that all of the session is there, and is
missing where something was unfinished. A session whose mark is still right is not read again.
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

_NO_DAY = "__HIVE_DEFAULT_PARTITION__"  # what readers of this layout take for NULL


@dataclass
class Exported:
    """What an export did.

    Attributes:
        path: The folder.
        sessions: How many sessions were looked at.
        unchanged: How many of them were there already, as far as the list of sessions tells.
        written, removed: Files that were written, and old ones of the same sessions taken away.
        warnings: What a person should know, a sentence each.
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
    """Write sessions, messages, steps, parts and tool calls into a folder, by day.

    The columns are those of the frames; categories are strings, times UTC timestamps, a tool's
    input is JSON text. Three more: `key`, the same for a message and its copies in forks;
    `source`, where a session came from; and `mark`, by which the next export knows it again.
    Sessions deleted from the server stay in the folder. An export that was interrupted is
    completed by the next one.

    Args:
        client: The server.
        path: The folder; it is made if it isn't there, and added to if it is.
        sessions: Which, by value, id or title; default: all of the client's project.
        everywhere: All of all directories that the server knows.
        format: "parquet" or "jsonl".
        source: A name for where these sessions come from; default: this machine's name, or the
            host of a server elsewhere.
        cache: Where the rows of unchanged sessions are kept; False reads all and keeps none.
        refresh: Read again what seems unchanged, too: a shell run or an edited part can't be seen.
        progress: Show a bar if it takes a while.

    Returns:
        How many sessions were looked at, how many files were written, and warnings.

    Raises:
        UnknownNameError: There is no such format or session.
        MissingPackageError: Parquet needs pyarrow: `pip install 'opencode-magics[parquet]'`.
        OSError: The folder can't be written.
        ValueError: The folder has files of the other format.
    """
    if format not in _FORMATS:
        raise UnknownNameError(
            f"There is no format {format!r}.", f"There are: {', '.join(_FORMATS)}."
        )
    folder = _Folder(Path(path).expanduser().absolute(), _FORMATS[format]())
    chosen = None if sessions is None else resolve_sessions(client, sessions)
    everyone = client.sessions(everywhere=everywhere or chosen is not None)
    asked = everyone if chosen is None else chosen
    known = {} if refresh else folder.marks(asked)
    changed = [s for s in asked if known.get(s.id) != _mark(s)]
    done = Exported(folder.path, len(asked), len(asked) - len(changed))
    copies = _copies(client, everyone, changed, resolve_cache(cache), refresh, progress)
    done.warnings += copies.warnings
    places = {row.session.id: row for row in session_rows((*everyone, *asked))}
    name = source or _source(client)
    with read_transcripts(client, changed, progress) as reading:
        for session, messages in zip(changed, reading, strict=True):
            if isinstance(messages, OpenCodeError):
                done.warnings.append(f"Session {session.id} could not be read: {messages.what}")
                continue
            row = places[session.id]._replace(fork_of=copies.forks.get(session.id))
            _write(folder, row, name, messages, copies, done)
    return done


class _Found(NamedTuple):
    """Copied messages, by session and id; which sessions are forks of which; what is not known."""

    originals: Mapping[tuple[str, str | None], str]
    forks: Mapping[str, str]
    warnings: Sequence[str]


def _copies(
    client: Client,
    everyone: Sequence[Session],
    changed: Sequence[Session],
    cache: Cache | None,
    refresh: bool,
    progress: bool,
) -> _Found:
    """The copies among the messages of the changed sessions.

    The title of a fork gives its family away. A copy in a session with another title is older than
    the session, which says that there is an original somewhere: then all sessions are looked at.
    """

    def look(sessions: Iterable[Session]) -> tuple[LoadedRows, Copies]:
        once = list({s.id: s for s in sessions}.values())
        loaded = load(client, once, "messages", cache=cache, refresh=refresh, progress=progress)
        if loaded.not_loaded:
            raise KeyboardInterrupt
        return loaded, fork_copies_in(loaded, once)

    loaded, found = look((*changed, *fork_families(everyone, changed)))
    asked = {s.id for s in changed}
    if any(loaded.lists["session"][at] in asked for at in found.orphans):
        loaded, found = look((*changed, *everyone))
    places = zip(loaded.lists["session"], loaded.lists["message"], strict=True)
    pairs = zip(places, found.originals, strict=True)
    # That one of those asked about can't be read is said when it comes to be written.
    unread = [(s, e) for s, e in loaded.failed.items() if s not in asked]
    return _Found(
        {place: original for place, original in pairs if original},
        found.forks,
        [f"Whether messages are copies from session {s} is unknown: {e.what}" for s, e in unread],
    )


def _source(client: Client) -> str:
    return socket.gethostname() if client.local else urlsplit(client.url).hostname or client.url


def _mark(session: Session) -> str:
    """What changes when the list tells something new of a session, or our columns are others."""
    seen = "".join(mark(kind, session) for kind in FRAME_KINDS)
    return blake2b(seen.encode(), digest_size=16).hexdigest()


# -- one session -----------------------------------------------------------------------------------


_SESSIONS: Columns = {
    **frames.SESSIONS,
    "source": Column(TEXT, lambda r: None, "Where it came from, in the words of who exported it."),
    "mark": Column(TEXT, lambda r: None, "What the list of sessions told; NA if unfinished."),
}


def _write(
    folder: _Folder,
    row: SessionRow,
    source: str,
    messages: Sequence[Message],
    copies: _Found,
    done: Exported,
) -> None:
    """Write all of a session, its own row at last."""
    session = row.session
    own = lists_from_rows(_SESSIONS, [row]) | {"source": [source]}

    def put_own_row(seen: str | None) -> int:
        days = {_day(session.created): own | {"mark": [seen]}}
        return folder.put("sessions", session, _SESSIONS, days)[0]

    if folder.marks([session]).get(session.id) == _mark(session):
        done.written += put_own_row(None)  # until all is there, should this be interrupted
    for kind, (columns, rows) in FRAME_KINDS.items():
        lists = lists_from_rows(columns, rows(messages))
        places = zip(lists["session"], lists["message"], strict=True)
        lists["session_title"] = [session.title] * len(lists["session"])
        lists["duplicate_of"] = [copies.originals.get(place) for place in places]
        written, removed = folder.put(kind, session, columns, _days(lists))
        done.written, done.removed = done.written + written, done.removed + removed
    done.written += put_own_row(_mark(session) if is_finished(messages) else None)


def _days(lists: ColumnLists) -> dict[str, ColumnLists]:
    """Rows by the day (UTC) that their message began."""
    places: dict[str, list[int]] = {}
    for at, created in enumerate(lists["created"]):
        places.setdefault(_day(created), []).append(at)
    return {
        day: {name: [values[at] for at in some] for name, values in lists.items()}
        for day, some in places.items()
    }


def _day(time: int | None) -> str:
    moment = _moment(time)
    return _NO_DAY if moment is None else f"{moment:%Y-%m-%d}"


def _moment(time: int | None) -> datetime | None:
    """A time, or None where no calendar has it."""
    with suppress(ValueError, OverflowError, OSError):
        return None if time is None else datetime.fromtimestamp(time / 1000, UTC)
    return None


# -- the folder ------------------------------------------------------------------------------------


class _Folder:
    """A folder with a folder per kind, in it one per day, in it a file per session."""

    def __init__(self, path: Path, format: _Format) -> None:
        path.mkdir(parents=True, exist_ok=True)  # what can't be written is said before all reading
        self.path = path
        self._format = format
        self._files = {kind: self._listed(kind) for kind in ("sessions", *FRAME_KINDS)}

    def _listed(self, kind: str) -> dict[str, set[Path]]:
        """The files of each session."""
        found: dict[str, set[Path]] = {}
        for file in (self.path / kind).glob("day=*/[!.]*"):
            if file.suffix != self._format.suffix:
                raise ValueError(
                    f"{self.path} has {file.suffix} files: one folder takes one format"
                )
            found.setdefault(file.stem, set()).add(file)
        return found

    def marks(self, sessions: Iterable[Session]) -> dict[str, str | None]:
        """The marks of those sessions that are here."""
        found = {s.id: self._files["sessions"].get(_stem(s), set()) for s in sessions}
        # Two rows of a session are one too many: written again.
        return {id: self._format.mark(*files) for id, files in found.items() if len(files) == 1}

    def put(
        self, kind: str, session: Session, columns: Columns, days: Mapping[str, ColumnLists]
    ) -> tuple[int, int]:
        """Make these the rows of a session; how many files were written and taken away."""
        stem, written = _stem(session), 0
        old, new = self._files[kind].get(stem, set()), set()
        for day, lists in days.items():
            file = self.path / kind / f"day={day}" / f"{stem}{self._format.suffix}"
            written += _replace(file, self._format.encode(columns, lists))
            new.add(file)
        for file in old - new:  # messages that are gone, as after a revert
            file.unlink(missing_ok=True)
        self._files[kind][stem] = new
        return written, len(old - new)


def _stem(session: Session) -> str:
    return quote(session.id, safe="")


def _replace(file: Path, body: bytes) -> bool:
    """Give a file these contents at once or not at all; False if it has them already."""
    with suppress(FileNotFoundError):
        if file.read_bytes() == body:
            return False
    file.parent.mkdir(parents=True, exist_ok=True)
    # Readers of this layout pass over names that begin with a dot.
    part = file.with_name(f".{uuid4().hex}.part")
    try:
        part.write_bytes(body)
        os.replace(part, file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return True


# -- formats ---------------------------------------------------------------------------------------


class _Format(NamedTuple):
    """How rows become a file, and how the mark is read from one."""

    suffix: str
    encode: Callable[[Columns, ColumnLists], bytes]
    mark: Callable[[Path], str | None]


def _texts(column: Column, values: Iterable[Any]) -> Iterator[Any]:
    """Values as they are, objects as JSON text."""
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
        # With their types given: a column that is empty here is of the same type everywhere.
        arrays = {
            name: pa.array(list(_texts(c, lists[name])), types.get(c.dtype, pa.string()))
            for name, c in columns.items()
        }
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(arrays), sink, compression="zstd")
        written: bytes = sink.getvalue().to_pybytes()
        return written

    def read_mark(file: Path) -> str | None:
        try:
            (found,) = pq.read_table(file, columns=["mark"])["mark"].to_pylist()
        except (pa.ArrowException, ValueError, OSError):  # no whole file: it is written again
            return None
        return found if isinstance(found, str) else None

    return _Format(".parquet", encode, read_mark)


def _jsonl() -> _Format:
    def encode(columns: Columns, lists: ColumnLists) -> bytes:
        told = {name: [*map(_plain(c), _texts(c, lists[name]))] for name, c in columns.items()}
        rows = (dict(zip(told, row, strict=True)) for row in zip(*told.values(), strict=True))
        return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)

    def read_mark(file: Path) -> str | None:
        try:
            found = json.loads(file.read_bytes())["mark"]
        except (ValueError, KeyError, TypeError, OSError):
            return None
        return found if isinstance(found, str) else None

    return _Format(".jsonl", encode, read_mark)


def _plain(column: Column) -> Callable[[Any], Any]:
    """How a value of a column is written as JSON."""
    return _written if column.dtype == TIME else _same


def _written(time: int | None) -> str | None:
    moment = _moment(time)
    return None if moment is None else moment.isoformat(timespec="milliseconds")


def _same(value: Any) -> Any:
    return value


_FORMATS: Mapping[str, Callable[[], _Format]] = {"parquet": _parquet, "jsonl": _jsonl}
