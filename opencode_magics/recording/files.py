"""Save recorded turns to files, and load them.

A file contains only data of the turn: frames that its dialect decodes and that name a session of
its tree, and messages from the prompt on. Secrets are redacted before writing, and a turn is
written as a whole or not at all.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.events import PartDelta
from ..core.turn import Turn
from ..dialects import detect, jsonwire
from ..dialects.base import Dialect
from ..errors import RecordingError, StreamError
from .format import Capture, Line, Recording, dumps, loads
from .redact import Redactor

_LARGEST = 256_000_000  # bytes; larger files are not loaded
_LOCKED = 5.0  # seconds to wait for another kernel that is writing its turn


# -- writing ---------------------------------------------------------------------------------------


def save(
    turn: Turn, path: str | os.PathLike[str], *, raw: bool = False, append: bool = False
) -> Path:
    """Save the recording of a turn to a file, to replay it with `%oc_replay`.

    Args:
        turn: A turn that this process followed, as returned by `%oc_turn` and `-o`.
        path: The file; an existing recording is replaced, any other file is an error.
        raw: Don't redact secrets, the home directory and the user's name.
        append: Add the turn to the recordings in the file.

    Returns:
        The path of the file.

    Raises:
        RecordingError: This process didn't follow the turn, the file is not a recording, or it
            can't be written.

    Example::

        opencode_magics.save(turn, "lesson.jsonl")
    """
    written = dumps(make_recording(turn, None if raw else Redactor.for_this_machine()))
    return _write(expand_path(path), written, append)


def make_recording(turn: Turn, redactor: Redactor | None = None) -> Recording:
    """Make the recording of a turn, redacted if a redactor is given.

    Raises:
        RecordingError: This process didn't follow the turn, or the turn was too long.
    """
    capture = turn.local.capture
    if turn.replayed:
        raise RecordingError("This turn is a replay.", "Copy the original recording instead.")
    if not isinstance(capture, Capture) or not capture.head:
        raise RecordingError(
            "This turn was not followed live, so it can't be recorded.",
            "Only turns that a cell or a Run of this process followed can be recorded.",
        )
    if capture.full:
        raise RecordingError("This turn was too long to be recorded.")
    head = capture.head | {"masked": redactor is not None}
    dialect = detect.for_generation(str(head["generation"]))
    lines = _trimmed([*_lines(capture, dialect, turn.tree)], turn.prompt)
    end = {"t": lines[-1]["t"] if lines else 0.0, "outcome": turn.outcome}
    recording = Recording(head, (*lines, end))
    try:
        return recording if redactor is None else _redacted(recording, redactor, dialect)
    except RecursionError:
        raise RecordingError(
            "A value in this turn is nested too deeply to be searched for secrets.",
            "Save it without redaction (raw), if that is safe.",
        ) from None


def _lines(capture: Capture, dialect: Dialect, tree: frozenset[str]) -> Iterator[Line]:
    """Yield the lines of a turn that its dialect decodes, without repeated frames."""
    seen: set[str] = set()
    for at, kind, values in capture.items():
        match kind, values:
            case "frame", [text]:
                if not any(session in text for session in tree):
                    continue
                with suppress(StreamError, ValueError, RecursionError):
                    frame = jsonwire.loads(text)
                    event_id = dialect.event_id(frame)
                    if _has_events(dialect, frame) and event_id not in seen:
                        seen |= {event_id} - {""}
                        yield {"t": at, "frame": frame}
            case "reply", [request, status, body]:
                line = {"t": at, "reply": request} | ({} if status == 200 else {"status": status})
                try:
                    yield line | {"body": jsonwire.loads(body)}
                except (ValueError, RecursionError):
                    yield line | {"text": body}
            case "read", _:
                yield {"t": at, "read": True}
            case "answer", [session, request, given, message]:
                yield {
                    "t": at,
                    "answer": request,
                    "session": session,
                    "given": given,
                    "message": message,
                }
            case "note", [note]:
                yield {"t": at, "note": note}
            case "end", [outcome, failure]:
                yield {"t": at, "end": outcome, "failure": failure}


def _has_events(dialect: Dialect, frame: Any) -> bool:
    """Return whether a frame decodes to an event other than an empty delta."""
    return any(not isinstance(e, PartDelta) or e.text for e in dialect.events(frame))


def _trimmed(lines: list[Line], prompt: str) -> list[Line]:
    """Remove the messages before the turn, since a session may be long."""
    return [
        line | {"body": _from_prompt(line["body"], prompt)} if "body" in line else line
        for line in lines
    ]


def _from_prompt(body: Any, prompt: str) -> Any:
    rows = body.get("data") if isinstance(body, dict) else body
    if not isinstance(rows, list):
        return body
    at = next((n for n, row in enumerate(rows) if _id(row) == prompt), None)
    if at is None:
        return body
    early = [row for row in rows[:at] if _info(row).get("parentID") == prompt]
    rows = [*early, *rows[at:]]
    return body | {"data": rows} if isinstance(body, dict) else rows


def _info(row: Any) -> dict[str, Any]:
    """The fields of a message, which 1.x has in a separate object next to the parts."""
    row = row if isinstance(row, dict) else {}
    info = row.get("info")
    return info if isinstance(info, dict) else row


def _id(row: Any) -> Any:
    return _info(row).get("id")


def _redacted(recording: Recording, redactor: Redactor, dialect: Dialect) -> Recording:
    """Redact a recording; a text that was streamed in pieces is searched as a whole."""
    streams: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for n, line in enumerate(recording.lines):
        if delta := _delta(dialect, line):
            streams.setdefault((delta.message, delta.part), []).append((n, delta.text))
    texts = ["".join(text for _, text in pieces) for pieces in streams.values()]
    redactor.learn([recording.head, *recording.lines, *texts])
    lines = [redactor.redact_value(line) for line in recording.lines]
    for pieces in streams.values():
        redacted = redactor.redact_pieces([text for _, text in pieces])
        for (n, old), new in zip(pieces, redacted, strict=True):
            current = redactor.redact_text(old)  # the text in lines[n], redacted on its own
            frame = _with_text(lines[n]["frame"], current, new)
            lines[n] = recording.lines[n] | {"frame": frame}
    return replace(recording, head=redactor.redact_value(recording.head), lines=tuple(lines))


def _delta(dialect: Dialect, line: Line) -> PartDelta | None:
    events = list(dialect.events(line["frame"])) if "frame" in line else []
    return events[0] if len(events) == 1 and isinstance(events[0], PartDelta) else None


def _with_text(value: Any, old: str, new: str) -> Any:
    """Replace the piece of text in a frame."""
    if not isinstance(value, dict):
        return value
    return {
        key: new if key in ("delta", "text") and each == old else _with_text(each, old, new)
        for key, each in value.items()
    }


def expand_path(path: str | os.PathLike[str]) -> Path:
    """Expand the `~` in a path.

    Raises:
        RecordingError: The path is invalid or not accessible.
    """
    try:
        expanded = Path(os.path.expanduser(path))
        os.stat(expanded)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # too long, not accessible, or with a NUL in it
        reason = getattr(error, "strerror", None) or error
        raise RecordingError(f"{os.fspath(path)!r} can't be a recording: {reason}.") from error
    return expanded


def check_target(path: Path) -> None:
    """Raise an error unless turns can be added to a file.

    Raises:
        RecordingError: The file is not a recording, or it can't be written.
    """
    try:
        if path.exists():
            _check_recording(path)
            path.open("ab").close()
        else:  # don't create the file itself: another kernel may be about to write it
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise _not_written(path, error) from error


def _check_recording(path: Path) -> None:
    """Raise an error unless a file is empty or a recording: others are never overwritten."""
    if not path.is_file():
        raise RecordingError(f"{path} is not a file.", "Name a file, such as lesson.jsonl.")
    try:
        with path.open("rb") as file:
            first_line = file.readline(_LARGEST)
    except OSError as error:
        raise _not_written(path, error) from error
    if first_line.strip():
        loads([first_line.decode("utf-8", "replace")], str(path))


def _create_private(path: Path) -> None:
    """Create a file that only the user can read, unless it exists."""
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))


def _write(path: Path, text: str, append: bool) -> Path:
    """Write turns to a file as a whole or not at all, under a lock against other kernels."""
    if path.exists():
        _check_recording(path)
    data = text.encode("utf-8", "replace")
    try:
        if not append:
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            try:
                _create_private(temporary)
                temporary.write_bytes(data)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
            return path
        _create_private(path)
        with path.open("ab+", buffering=0) as file, _locked(file.fileno(), path):
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
                data = data if file.read(1) == b"\n" else b"\n" + data
            try:
                while data:
                    data = data[file.write(data) :]
            except OSError:
                os.truncate(file.fileno(), size)
                raise
    except OSError as error:
        raise _not_written(path, error) from error
    return path


@contextmanager
def _locked(file: int, path: Path) -> Iterator[None]:
    """Lock a file against writes by other kernels, if the system supports that."""
    try:
        import fcntl
    except ImportError:  # Windows: single writes are still atomic, but turns may be interleaved
        yield
        return
    deadline = time.monotonic() + _LOCKED
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise RecordingError(
                    f"{path} has been locked by another kernel for {_LOCKED:.0f} s.",
                    "Record each notebook to its own file.",
                ) from None
            time.sleep(0.05)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def _not_written(path: Path, error: OSError) -> RecordingError:
    return RecordingError(
        f"{path} can't be written: {error.strerror or error}.",
        "Its earlier content is unchanged. Check free space and permissions.",
    )


# -- reading ---------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str]) -> tuple[Recording, ...]:
    """Load the recorded turns of a file, in the order in which they ended.

    Raises:
        RecordingError: There is no such file, it is not a recording, or its version is unknown.

    Example::

        [recording.text for recording in load("lesson.jsonl")]
    """
    file = expand_path(path)
    if not file.is_file():
        problem = "is not a file" if file.exists() else "doesn't exist"
        raise RecordingError(f"{file} {problem}.", "%oc_record PATH makes a recording.")
    try:
        if file.stat().st_size > _LARGEST:
            raise RecordingError(
                f"{file} has {file.stat().st_size:,} bytes; the limit is {_LARGEST:,}.",
                "Record the turns to several files.",
            )
        with file.open(encoding="utf-8", errors="replace", newline="\n") as lines:
            return loads(lines, str(file), jsonwire.loads)
    except OSError as error:
        raise RecordingError(f"{file} can't be read: {error.strerror or error}.") from error


def single(path: str | os.PathLike[str]) -> Recording:
    """Load the recorded turn of a file with exactly one.

    Raises:
        RecordingError: The file can't be loaded, or has several recorded turns.
    """
    recordings = load(path)
    if len(recordings) > 1:
        raise RecordingError(
            f"{os.fspath(path)} has {len(recordings)} recorded turns.",
            "Choose one: opencode_magics.load(PATH)[0] is the first.",
        )
    return recordings[0]
