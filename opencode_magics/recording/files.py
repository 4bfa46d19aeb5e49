"""Files of recorded turns: what is written into one, and what is read back.

Of what a run heard, its turn's own is kept: frames that its dialect reads and that name a session
of its tree, messages from the prompt on. It is masked before it is written, and written whole or
not at all.
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

_LARGEST = 256_000_000  # bytes of a file
_LOCKED = 5.0  # seconds that another kernel may take to write its turn


# -- writing ---------------------------------------------------------------------------------------


def save(
    turn: Turn, path: str | os.PathLike[str], *, raw: bool = False, append: bool = False
) -> Path:
    """Keep what was heard of a turn in a file, to play it again with `%oc_replay`.

    Args:
        turn: A turn that this process followed, as `%oc_turn` and `-o` give it.
        path: The file; one that holds recordings is replaced.
        raw: Keep secrets, the home directory and the user's name as they are.
        append: Keep what is in the file, and add the turn to it.

    Returns:
        The path of the file.

    Raises:
        RecordingError: Nobody listened to this turn here, the file is no recording, or it can't
            be written.

    Example::

        opencode_magics.save(turn, "lesson.jsonl")
    """
    written = dumps(make_recording(turn, None if raw else Redactor.for_this_machine()))
    return _write(expand_path(path), written, append)


def make_recording(turn: Turn, mask: Redactor | None = None) -> Recording:
    """What was heard of a turn, as a recording.

    Raises:
        RecordingError: Nobody listened to it in this process, or it was too long.
    """
    capture = turn.local.capture
    if turn.replayed:
        raise RecordingError("This turn is a replay already.", "Copy the file that it came from.")
    if not isinstance(capture, Capture) or not capture.head:
        raise RecordingError(
            "Nobody listened to this turn as it went on, so it can't be recorded.",
            "Only turns that a cell or a Run of this process followed can be.",
        )
    if capture.full:
        raise RecordingError("This turn was too long to be kept for a recording.")
    head = capture.head | {"masked": mask is not None}
    dialect = detect.for_generation(str(head["generation"]))
    lines = _trimmed([*_lines(capture, dialect, turn.tree)], turn.prompt)
    end = {"t": lines[-1]["t"] if lines else 0.0, "outcome": turn.outcome}
    recording = Recording(head, (*lines, end))
    try:
        return recording if mask is None else _masked(recording, mask, dialect)
    except RecursionError:
        raise RecordingError(
            "Something in this turn is too deep to look for secrets in it.", "Keep it raw, or not."
        ) from None


def _lines(capture: Capture, dialect: Dialect, tree: frozenset[str]) -> Iterator[Line]:
    """What belongs to a turn and is read by its dialect, each thing once."""
    seen: set[str] = set()
    for at, kind, told in capture.items():
        match kind, told:
            case "frame", [text]:
                if not any(session in text for session in tree):
                    continue
                with suppress(StreamError, ValueError, RecursionError):
                    frame = jsonwire.loads(text)
                    place = dialect.position(frame)
                    if _says(dialect, frame) and not (place and place.id in seen):
                        seen |= {place.id} if place else set()
                        yield {"t": at, "frame": frame}
            case "reply", [request, status, body]:
                line = {"t": at, "reply": request} | ({} if status == 200 else {"status": status})
                try:
                    yield line | {"body": jsonwire.loads(body)}
                except (ValueError, RecursionError):  # a log is a stream
                    yield line | {"text": dialect.log_excerpt(body)}
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


def _says(dialect: Dialect, frame: Any) -> bool:
    """Whether a frame says anything that a turn is made of."""
    return any(not isinstance(e, PartDelta) or e.text for e in dialect.events(frame))


def _trimmed(lines: list[Line], prompt: str) -> list[Line]:
    """The same without the messages before the turn: a conversation may be long."""
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
    early = [row for row in rows[:at] if _told(row).get("parentID") == prompt]
    kept = [*early, *rows[at:]]
    return body | {"data": kept} if isinstance(body, dict) else kept


def _told(row: Any) -> dict[str, Any]:
    """What a row says of itself: 1.x puts it beside the parts of a message."""
    row = row if isinstance(row, dict) else {}
    info = row.get("info")
    return info if isinstance(info, dict) else row


def _id(row: Any) -> Any:
    return _told(row).get("id")


def _masked(recording: Recording, mask: Redactor, dialect: Dialect) -> Recording:
    """The same, masked; a text that came in pieces is looked at as a whole."""
    streams: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for n, line in enumerate(recording.lines):
        if delta := _delta(dialect, line):
            streams.setdefault((delta.message, delta.part), []).append((n, delta.text))
    wholes = ["".join(text for _, text in pieces) for pieces in streams.values()]
    mask.learn([recording.head, *recording.lines, *wholes])
    lines = [mask.redact_value(line) for line in recording.lines]
    for pieces in streams.values():
        news = mask.redact_pieces([text for _, text in pieces])
        for (n, old), new in zip(pieces, news, strict=True):
            masked_alone = mask.redact_text(old)
            lines[n] = recording.lines[n] | {"frame": _put(lines[n]["frame"], masked_alone, new)}
    return replace(recording, head=mask.redact_value(recording.head), lines=tuple(lines))


def _delta(dialect: Dialect, line: Line) -> PartDelta | None:
    said = list(dialect.events(line["frame"])) if "frame" in line else []
    return said[0] if len(said) == 1 and isinstance(said[0], PartDelta) else None


def _put(value: Any, old: str, new: str) -> Any:
    """A frame with the piece of text that it brings exchanged."""
    if not isinstance(value, dict):
        return value
    return {
        key: new if key in ("delta", "text") and each == old else _put(each, old, new)
        for key, each in value.items()
    }


def expand_path(path: str | os.PathLike[str]) -> Path:
    """A path with its `~` written out.

    Raises:
        RecordingError: It is none that a file could have here.
    """
    try:
        named = Path(os.path.expanduser(path))
        os.stat(named)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # too long, in a closed folder, or with a NUL in it
        why = getattr(error, "strerror", None) or error
        raise RecordingError(f"{os.fspath(path)!r} can't be a recording: {why}.") from error
    return named


def check_target(path: Path) -> None:
    """Make sure that turns can be added to a file.

    Raises:
        RecordingError: It is another kind of file, or it can't be written.
    """
    try:
        if path.exists():
            _check_recording(path)
            path.open("ab").close()
        else:  # another file, so that none is made that another kernel could write into meanwhile
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise _not_written(path, error) from error


def _check_recording(path: Path) -> None:
    """Make sure that a file is empty or a recording: nothing else is ever overwritten."""
    if not path.is_file():
        raise RecordingError(f"{path} is no file.", "Name a file, such as lesson.jsonl.")
    try:
        with path.open("rb") as file:
            beginning = file.readline(_LARGEST)
    except OSError as error:
        raise _not_written(path, error) from error
    if beginning.strip():
        loads([beginning.decode("utf-8", "replace")], str(path))


def _write(path: Path, text: str, append: bool) -> Path:
    """Put turns into a file, whole or not at all, one kernel after the other."""
    if path.exists():
        _check_recording(path)
    data = text.encode("utf-8", "replace")
    try:
        if not append:
            beside = path.with_name(f".{path.name}.{os.getpid()}")
            try:
                beside.write_bytes(data)
                beside.replace(path)
            finally:
                beside.unlink(missing_ok=True)
            return path
        with path.open("ab+", buffering=0) as file, _alone(file.fileno(), path):
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
def _alone(file: int, path: Path) -> Iterator[None]:
    """Keep other kernels from writing to a file, where the system can."""
    try:
        import fcntl
    except ImportError:  # Windows: the writes of two kernels are still whole, but not their turns
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
                    f"{path} is being written by another kernel for {_LOCKED:.0f} s.",
                    "Record into a file of this notebook's own.",
                ) from None
            time.sleep(0.05)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def _not_written(path: Path, error: OSError) -> RecordingError:
    return RecordingError(
        f"{path} can't be written: {error.strerror or error}.",
        "What was in it before is as it was. Is there room, and is it yours?",
    )


# -- reading ---------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str]) -> tuple[Recording, ...]:
    """The recorded turns of a file, in the order in which they ended.

    Raises:
        RecordingError: There is no such file, it is no recording, or one of another version.

    Example::

        [recording.text for recording in load("lesson.jsonl")]
    """
    file = expand_path(path)
    if not file.is_file():
        kind = "is no file" if file.exists() else "doesn't exist"
        raise RecordingError(f"{file} {kind}.", "%oc_record PATH makes a recording.")
    try:
        if file.stat().st_size > _LARGEST:
            raise RecordingError(
                f"{file} has {file.stat().st_size:,} bytes; a recording of at most {_LARGEST:,} "
                "can be played.",
                "Record the turns into several files.",
            )
        with file.open(encoding="utf-8", errors="replace", newline="\n") as lines:
            return loads(lines, str(file), jsonwire.loads)
    except OSError as error:
        what = f"{file} can't be read: {error.strerror or error}."
        raise RecordingError(what) from error


def single(path: str | os.PathLike[str]) -> Recording:
    """Read the recorded turn of a file that has one.

    Raises:
        RecordingError: It can't be read, as for `load`, or has several.
    """
    recordings = load(path)
    if len(recordings) > 1:
        raise RecordingError(
            f"{os.fspath(path)} has {len(recordings)} recorded turns.",
            "Choose one: opencode_magics.load(PATH)[0] is the first.",
        )
    return recordings[0]
