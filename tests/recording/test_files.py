"""Saving and loading recorded turns: appending, refusals, size limits and redaction."""

from __future__ import annotations

import json
import os
import pickle
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.ipython_shell import Shell, is_short_error

import opencode_magics
from opencode_magics.core.turn import Turn, with_capture
from opencode_magics.errors import RecordingError
from opencode_magics.recording import files
from opencode_magics.recording.files import load, make_recording, save
from opencode_magics.recording.format import FORMAT_VERSION, Recorder
from opencode_magics.recording.redact import Redactor

HEAD = {
    "recording": FORMAT_VERSION,
    "generation": "1.x",
    "server": "1.18.33",
    "at": "2026-01-02T03:04:05+00:00",
    "session": {"id": "ses_1", "title": "t", "directory": "/work/p"},
    "prompt": {"id": "msg_1", "text": "hi"},
    "queued": False,
}


def delta(text: str, part: str = "prt_1", session: str = "ses_1") -> str:
    ids = {"sessionID": session, "messageID": "msg_2", "partID": part, "field": "text"}
    return json.dumps({"type": "message.part.delta", "properties": {**ids, "delta": text}})


def heard(*frames: str, prompt: str = "hi") -> Turn:
    """A turn whose run received these frames."""
    return with_capture(Turn("ses_1", "msg_1"), recorder_of(*frames, prompt=prompt).capture())


def recorder_of(*frames: str, prompt: str = "hi") -> Recorder:
    """The recorder of a turn that received these frames."""
    recorder = Recorder()
    recorder.begin({**HEAD, "prompt": {"id": "msg_1", "text": prompt}})
    for frame in frames:
        recorder.frame(frame)
    return recorder


@contextmanager
def little_room(size: int) -> Iterator[None]:
    """Limit the size of files, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_saving_replaces_a_recording_and_appending_adds_to_it(tmp_path: Path) -> None:
    path = tmp_path / "it.jsonl"
    save(heard(prompt="one"), path)
    save(heard(prompt="two"), path, append=True)
    assert [r.text for r in load(path)] == ["one", "two"]
    assert save(heard(prompt="three"), path) == path
    assert [r.text for r in load(path)] == ["three"]
    assert os.listdir(tmp_path) == ["it.jsonl"]


def test_a_recording_of_a_long_prompt_can_be_added_to(tmp_path: Path) -> None:
    path = tmp_path / "it.jsonl"
    for text in ("x" * 2_000_000, "two"):
        save(heard(prompt=text), path, append=True)
    assert [len(r.text) for r in load(path)] == [2_000_000, 3]


@pytest.mark.parametrize("append", [False, True])
def test_a_file_of_another_kind_is_left_alone(tmp_path: Path, append: bool) -> None:
    path = tmp_path / "thesis.ipynb"
    path.write_text('{"cells": []}\n')
    with pytest.raises(RecordingError, match="is not a recording"):
        save(heard(), path, append=append)
    assert path.read_text() == '{"cells": []}\n'


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("name", ["", "no/such/folder/it.jsonl", "x" * 300])
def test_a_file_that_can_not_be_written_is_an_error(
    tmp_path: Path, name: str, append: bool
) -> None:
    with pytest.raises(RecordingError) as failed:
        save(heard(), tmp_path / name, append=append)
    assert str(tmp_path) in failed.value.what


@pytest.mark.parametrize("append", [False, True])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, append: bool) -> None:
    path = tmp_path / "it.jsonl"
    save(heard(prompt="one"), path)
    before = path.read_bytes()
    with (
        little_room(len(before) + 5_000),
        pytest.raises(RecordingError, match="can't be written: File too large"),
    ):
        save(heard(delta("x" * 20_000)), path, append=append)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["it.jsonl"]


def test_a_failed_recording_is_reported_and_does_not_fail_the_turn(
    alone: Shell, tmp_path: Path
) -> None:
    path = tmp_path / "it.jsonl"
    alone.run(f"%oc_record {path}")
    state = next(c for c in alone.configurables if type(c).__name__ == "OpenCodeMagics")
    path.mkdir()
    done = replace(heard(), verdict="succeeded")
    alone.user_ns.update(state=state, turn=done)
    shown = alone.run("state.remember_turn(turn, 'kept')")
    assert "The turn was not recorded." in shown.text
    assert alone.user_ns["kept"] is done
    assert "is not a file" in alone.run("%oc_record").text


@pytest.mark.parametrize("append", [True, False])
def test_only_the_user_can_read_a_recording(tmp_path: Path, append: bool) -> None:
    """Case G3: they were 0644."""
    path = save(heard(), tmp_path / "it.jsonl", append=append)
    assert path.stat().st_mode & 0o777 == 0o600


def test_two_kernels_can_write_to_one_file(tmp_path: Path, thorough: bool) -> None:
    rounds = 20 if thorough else 5
    path = tmp_path / "it.jsonl"
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_files import heard, delta, save\n"
        f"for n in range({rounds}):\n"
        "    save(heard(*[delta('y' * 50_000)] * 4, prompt=sys.argv[3]), sys.argv[2], append=True)"
    )
    here = Path(__file__).parent
    places = (Path(opencode_magics.__file__).parents[1], here.parent)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(here), str(path), name], env=env)
        for name in "ab"
    ]
    assert [w.wait(240) for w in writers] == [0, 0]
    turns = load(path)
    assert sorted(t.text for t in turns) == ["a"] * rounds + ["b"] * rounds
    assert not any(t.cut for t in turns)


def test_a_file_locked_by_another_kernel_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    monkeypatch.setattr(files, "_LOCKED", 0.1)
    path = tmp_path / "it.jsonl"
    save(heard(), path)
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(RecordingError, match="locked by another kernel"):
            save(heard(), path, append=True)
    assert len(load(path)) == 1


def test_a_recorder_has_a_size_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("opencode_magics.recording.format._LARGEST", 10_000)
    capture = recorder_of(*(delta(os.urandom(50_000).hex()) for _ in range(10))).capture()
    assert capture.full
    assert len(list(capture.items())) < 10
    turn = with_capture(Turn("ses_1", "msg_1"), capture)
    with pytest.raises(RecordingError, match="too long"):
        save(turn, tmp_path / "it.jsonl")


def test_replies_alone_fill_a_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream may be down for hours, while the store is polled."""
    monkeypatch.setattr("opencode_magics.recording.format._BLOCK", 1_000)
    monkeypatch.setattr("opencode_magics.recording.format._LARGEST", 10_000)
    recorder = Recorder()
    for _ in range(100):
        recorder.reply("GET /session/ses_1/message", 200, os.urandom(500).hex().encode())
    assert recorder.full
    assert len(list(recorder.capture().items())) < 50


def test_a_frame_added_during_a_capture_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opencode_magics.recording.format._BLOCK", 100)
    recorder = Recorder()

    class Growing(list[bytes]):
        """Blocks that grow while they are being copied."""

        def __iter__(self) -> Iterator[bytes]:
            known = [*super().__iter__()]
            adding = threading.Thread(target=recorder.frame, args=("2" * 100,))
            adding.start()
            adding.join(0.3)
            return iter(known)

    recorder.frame("1")
    recorder._blocks = Growing()
    assert [values for _, _, values in recorder.capture().items()] == [["1"]]


def test_a_long_answer_is_stored_compressed() -> None:
    capture = recorder_of(*(delta(f"word {n} ") for n in range(20_000))).capture()
    assert sum(map(len, capture.blocks)) < 300_000
    assert len(make_recording(with_capture(Turn("ses_1", "msg_1"), capture)).lines) == 20_001


def test_a_capture_is_a_value_and_does_not_grow_with_its_recorder() -> None:
    recorder = recorder_of(delta("a"))
    capture = recorder.capture()
    recorder.frame(delta("b"))
    assert len(list(capture.items())) == 1
    assert len(list(recorder.capture().items())) == 2
    assert capture == pickle.loads(pickle.dumps(capture))


def test_a_turn_with_a_capture_can_be_pickled_and_saved_again(tmp_path: Path) -> None:
    turn = pickle.loads(pickle.dumps(heard(delta("x"), prompt="one")))
    assert turn == heard(delta("x"))
    assert [r.text for r in load(save(turn, tmp_path / "it.jsonl"))] == ["one"]


def test_frames_without_events_are_left_out() -> None:
    beat = json.dumps({"type": "server.heartbeat", "properties": {"sessionID": "ses_1"}})
    turn = heard(beat, "no json", delta("x", session="ses_2"), delta("y"))
    assert [
        x["frame"]["properties"]["delta"] for x in make_recording(turn).lines if "frame" in x
    ] == ["y"]


def test_a_value_too_deep_to_redact_is_an_error() -> None:
    state = f'{{"status":"running","input":{{"a":{"[" * 800}{"]" * 800}}}}}'
    part = f'{{"id":"prt_1","messageID":"msg_2","type":"tool","tool":"x","state":{state}}}'
    turn = heard(
        f'{{"type":"message.part.updated","properties":{{"sessionID":"ses_1","part":{part}}}}}'
    )
    with pytest.raises(RecordingError, match="too deep"):
        make_recording(turn, Redactor())
    assert len(make_recording(turn).lines) == 2


def test_a_secret_in_pieces_is_hidden_and_the_text_fits(tmp_path: Path) -> None:
    pieces = ["The key is sk-", "abcdef", "ghijklmnop", "qrst. Use", " it."]
    lines = load(save(heard(*map(delta, pieces)), tmp_path / "it.jsonl"))[0].lines
    deltas = [x["frame"]["properties"]["delta"] for x in lines if "frame" in x]
    assert "".join(deltas) == "The key is ********. Use it."
    raw = load(save(heard(*map(delta, pieces)), tmp_path / "it.jsonl", raw=True))[0].lines
    assert "".join(x["frame"]["properties"]["delta"] for x in raw if "frame" in x) == "".join(
        pieces
    )


def test_the_recording_file_is_checked_first(alone: Shell, tmp_path: Path) -> None:
    assert is_short_error(alone.fails(f"%oc_record {tmp_path}"))
    assert is_short_error(alone.fails(f"%oc_record {tmp_path}/no/such/it.jsonl"))
    assert alone.fails("%oc_record --raw").lines
    assert alone.fails(f"%oc_record --stop {tmp_path}/it.jsonl").lines
    assert "Not recording." in alone.run("%oc_record").text
    assert (
        "unredacted, including secrets" in alone.run(f"%oc_record --raw {tmp_path}/it.jsonl").text
    )
    assert not list(tmp_path.glob("*.jsonl"))
