"""Replays of recorded turns: the same fold and the same view, without a server."""

from __future__ import annotations

import json
import math
import pickle
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError
from support.fake_front_end import FrontEnd
from support.fake_server import FakeServer, assistant, frame, user, v1_routes
from support.generations import both_generations
from support.ipython_shell import Shell, is_short_error
from support.recorded_flows import DATA, V1_FLOWS, V2_FLOWS, flow, recording, transcript
from support.turns import live, played

from opencode_magics.client.client import Client
from opencode_magics.core.fold import advance, advance_all
from opencode_magics.core.model import Permission, Question, Session
from opencode_magics.core.turn import Turn
from opencode_magics.dialects.base import Prompt
from opencode_magics.errors import RecordingError, TurnInterrupted
from opencode_magics.notebook import html
from opencode_magics.notebook import prompter as prompters
from opencode_magics.recording.files import load, make_recording, save
from opencode_magics.recording.format import Recording, dumps
from opencode_magics.sessions.replay import Replay
from opencode_magics.sessions.run import Run, prepare

RECORDINGS = DATA / "recordings"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every attempt to open a connection fail."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


# -- the same turn ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("name", V1_FLOWS)
def test_a_recording_of_1x_is_played_to_the_turn_that_its_frames_fold_to(name: str) -> None:
    frames = flow(name)
    expected = advance(advance_all(frames.start, frames.events), frames.stored)
    turn = played(recording(f"v1/{name}"))
    assert turn.replayed
    # The tests' fold leaves out requests that were still pending after an abort.
    assert replace(turn, verdict=None, permissions=(), questions=()) == expected


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("name", V2_FLOWS)
def test_a_recording_of_2x_is_played_to_the_turn_that_its_frames_fold_to(name: str) -> None:
    source = transcript(name)
    expected = advance_all(Turn(source.session, source.prompts[0]), source.events())
    turn = played(recording(f"v2/{name}"))
    assert turn.log == expected.log
    assert turn.settled_requests == expected.settled_requests


PROMPTS = [
    "#reason",
    "#bash echo hi",
    "#edit",
    "#question",
    "#task #bash echo hi",
    "#err400",
    "#long",
]


@both_generations
@pytest.mark.usefixtures("workspace")
@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_saved_turn_is_replayed_as_it_was(
    client: Client, session: Session, prompt: str, tmp_path: Path
) -> None:
    turn = live(client, session, prompt)
    (saved,) = load(save(turn, tmp_path / "turn.jsonl", raw=True))
    replayed = played(saved)
    assert replayed == turn, dumps(saved)
    assert replayed.settled_requests == turn.settled_requests
    assert replayed.failures == turn.failures
    assert html.turn(replace(replayed, local=turn.local)) == html.turn(turn)
    assert not saved.cut
    assert saved.text == prompt


@pytest.mark.parametrize("route", ["children", "permission", "question"])
def test_a_replay_repeats_the_servers_refusals(route: str) -> None:
    stored = [user("msg_u1"), assistant("msg_a1", "msg_u1", "done")]
    routes = v1_routes(message=stored, **{route: (500, {}, b'{"name":"Oops"}')})
    with (
        FakeServer(routes, [[frame("session.idle", sessionID="ses_root01")]]) as fake,
        Client(fake.url, directory="/work/p") as client,
        Run(client, Session("ses_root01", "root", "/work/p"), Prompt("msg_u1", "hi")) as run,
    ):
        run.start()
        for _ in run:
            pass
    saved = make_recording(run.turn)
    assert any(line.get("status") == 500 for line in saved.lines)
    assert played(saved) == run.turn
    assert run.turn.text == "done"


@both_generations
@pytest.mark.usefixtures("workspace")
def test_an_aborted_turn_is_played_to_its_abort(
    client: Client, session: Session, tmp_path: Path
) -> None:
    def stop(run: Run) -> None:
        if run.turn.text:
            run.abort()

    turn = live(client, session, "#slow 400 .1", stop)
    assert turn.outcome == "aborted"
    (saved,) = load(save(turn, tmp_path / "turn.jsonl"))
    assert played(saved) == turn


@both_generations
@pytest.mark.usefixtures("workspace")
def test_a_running_turn_can_be_saved_once_its_run_is_closed(
    client: Client, session: Session, tmp_path: Path
) -> None:
    with prepare(client, session, "#slow 400 .1") as run:
        run.start()
        next(turn for turn in run if turn.text)
    turn = run.turn
    assert turn.outcome == "running"
    (saved,) = load(save(turn, tmp_path / "turn.jsonl"))
    assert played(saved).text == turn.text
    run.abort()


@both_generations
@pytest.mark.usefixtures("workspace")
def test_a_recording_leaves_out_earlier_turns(client: Client, session: Session) -> None:
    live(client, session, "#text 5 nobody needs this")
    first = live(client, session, "#text 2")
    saved = make_recording(first)
    assert "nobody needs this" not in str(saved)
    assert played(saved) == first


@pytest.mark.usefixtures("workspace")
def test_a_recording_leaves_out_other_sessions(client: Client, session: Session) -> None:
    other = client.create("another session of the directory")
    with prepare(client, session, "#slow 6 .1") as run:
        run.start()
        live(client, other, "#text 3")
        for _ in run:
            pass
    saved = make_recording(run.turn)
    assert other.id not in str(saved.lines)
    assert session.id in str(saved.lines)


@pytest.mark.usefixtures("workspace")
def test_a_turn_can_be_pickled_and_saved_after_that(
    client: Client, session: Session, tmp_path: Path
) -> None:
    turn = pickle.loads(pickle.dumps(live(client, session, "#text 2")))
    assert played(load(save(turn, tmp_path / "turn.jsonl"))[0]) == turn


def test_a_turn_that_nobody_followed_can_not_be_saved(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="not followed live"):
        save(Turn("ses_1", "msg_1"), tmp_path / "turn.jsonl")
    with pytest.raises(RecordingError, match="is a replay"):
        save(played(recording("v1/text")), tmp_path / "turn.jsonl")
    assert not list(tmp_path.iterdir())


# -- timing ----------------------------------------------------------------------------------------


def test_a_replay_takes_the_time_of_the_turn_by_its_speed() -> None:
    source = recording("v1/subagent_permission")
    began = time.monotonic()
    states = [t.outcome for t in Replay(source, 2.0)]
    assert time.monotonic() - began >= source.duration / 2
    assert states.count("running") > 3


def test_a_replay_shows_events_at_their_times() -> None:
    run = Replay(answered_after(1.0), 4.0)
    subjects = [r.subject for turn in run for r in turn.permissions]
    assert set(subjects) == {"echo hi"}


def test_a_long_wait_for_a_person_is_cut_to_five_seconds() -> None:
    began = time.monotonic()
    run = Replay(answered_after(3600.0), 10.0)
    assert [t.outcome for t in run][-1] == "succeeded"
    assert time.monotonic() - began < 30
    assert run.turn.settled_requests[0].waited == pytest.approx(3600.0, abs=1)


def answered_after(seconds: float) -> Recording:
    """A recording in which a permission waits that much longer."""
    source = recording("v1/bash_once")
    asked = next(n for n, x in enumerate(source.lines) if "permission.asked" in str(x))
    late = (x | {"t": x["t"] + seconds} if n > asked else x for n, x in enumerate(source.lines))
    return replace(source, lines=tuple(late))


# -- answering -------------------------------------------------------------------------------------


def test_an_interactive_replay_waits_for_the_answer() -> None:
    run = Replay(answered("v1/bash_once", "once"), math.inf, interactive=True)
    states = iter(run)
    assert [next(states).waiting[0].id for _ in range(5)]
    (request,) = run.waiting
    assert isinstance(request, Permission)
    assert run.decide(request, "once")
    assert run.waiting == ()
    assert [t.outcome for t in states][-1] == "succeeded"
    assert run.differences == []


def test_an_answer_after_an_end_is_waited_for_and_taken() -> None:
    """A replay that waits must say for what, or it never goes on."""
    source = answered("v1/bash_once", "once")
    asked = next(n for n, x in enumerate(source.lines) if "permission.asked" in str(x)) + 1
    end = {"t": source.lines[asked - 1]["t"], "end": "unknown"}
    lines = (*source.lines[:asked], end, *source.lines[asked:])
    run = Replay(replace(source, lines=lines), math.inf, interactive=True)
    states = iter(run)
    next(states)
    (request,) = run.waiting
    assert isinstance(request, Permission)
    assert run.decide(request, "once")
    next(states)
    assert run.over


def test_a_different_decision_is_reported_and_changes_nothing() -> None:
    run = Replay(answered("v1/bash_once", "once"), math.inf, interactive=True)
    for _ in run:
        for request in run.waiting:
            assert isinstance(request, Permission)
            run.decide(request, "reject", "Use a branch")
    assert run.turn.outcome == "succeeded"
    assert run.turn.settled_requests[0].reply == "once"
    (difference,) = run.differences
    assert "You answered reject (Use a branch); in the recording it was once" in difference


def test_a_different_answer_to_a_question_is_reported() -> None:
    run = Replay(answered("v1/question_answered", "answered", "Red; S"), 99, interactive=True)
    for _ in run:
        for request in run.waiting:
            assert isinstance(request, Question)
            run.answer(request, [["Blue"], ["S"]])
    assert run.turn.outcome == "succeeded"
    assert 'You answered "Blue; S"; in the recording it was "Red; S"' in run.differences[0]


@pytest.mark.parametrize(("word", "outcome"), [("aborted", "aborted"), ("exploded", "unknown")])
def test_an_unrecognized_outcome_is_unknown(word: str, outcome: str) -> None:
    source = recording("v1/abort_hang")
    frames = tuple(line for line in source.lines if "frame" in line)
    end = {"t": source.duration, "end": word, "failure": None}
    assert played(replace(source, lines=(*frames, end))).outcome == outcome


def test_requests_without_a_recorded_answer_are_not_asked() -> None:
    """The tests' recordings have no answers in them, as if given elsewhere."""
    run = Replay(recording("v1/bash_once"), math.inf, interactive=True)
    assert all(run.waiting == () for _ in run)
    assert run.turn.outcome == "succeeded"


def answered(name: str, reply: str, message: str = "") -> Recording:
    """A recording of the tests with an answer, as a notebook would have recorded it."""
    source = recording(name)
    asked = next(
        x["frame"]["properties"]
        for x in source.lines
        if x.get("frame", {}).get("type") in ("permission.asked", "question.asked")
    )
    replied = next(n for n, x in enumerate(source.lines) if ".replied" in str(x))
    line = {
        "t": source.lines[replied]["t"],
        "answer": asked["id"],
        "session": asked["sessionID"],
        "given": reply,
        "message": message,
    }
    return replace(source, lines=(*source.lines[: replied + 1], line, *source.lines[replied + 1 :]))


# -- in a cell -------------------------------------------------------------------------------------


@both_generations
def test_a_notebook_records_and_replays(shell: Shell, tmp_path: Path, bash: str) -> None:
    path = tmp_path / "lesson.jsonl"
    assert "Recording turns to" in shell.run(f"%oc_record {path}").text
    shell.types("1")
    shell.run("%oc_new lesson;\n%oc_prompt #bash echo hi")
    shell.run("%oc_prompt #text 2")
    assert "2 recorded so far" in shell.run("%oc_record").text
    assert "The recording stopped." in shell.run("%oc_record --stop").text
    shell.run("%oc_prompt #text 3")
    assert "Not recording" in shell.run("%oc_record").text
    turn, session = shell.run("%oc_turn").value, shell.run("%oc_session").value
    assert [r.text for r in load(path)] == ["#bash echo hi", "#text 2"]

    shown = shell.run(f"%oc_replay {path} --speed instant --turn 1 -o again")
    assert re.search(r"Replay of a turn of 2\d{3}-.*, OpenCode .*: #bash echo hi", shown.text)
    assert f"Permission: {bash} 'echo hi' → once" in shown.text
    assert "succeeded · replay" in shown.text
    again = shell.user_ns["again"]
    assert again.prompt != turn.prompt
    assert repr(again).startswith("<Turn succeeded (replay): ")
    assert shell.run("%oc_turn").value is again
    assert shell.run("%oc_session").value.id == session.id


@pytest.mark.usefixtures("no_network")
def test_a_replay_needs_no_server(alone: Shell) -> None:
    shown = alone.run(f"%oc_replay {RECORDINGS}/v1/edit.jsonl --speed instant")
    assert "succeeded · replay" in shown.text
    turn = alone.run("%oc_turn").value
    diff = alone.run("%oc_diff").value
    assert turn.text
    assert list(diff) == [d.file for d in turn.diffs] != []
    assert alone.user_ns.get("again") is None


@pytest.mark.usefixtures("no_network")
def test_the_timeline_of_a_replay_sends_nothing(alone: Shell) -> None:
    alone.run(f"%oc_replay {RECORDINGS / 'v1/text.jsonl'} --speed instant")
    assert "is a replay" in alone.fails("%oc_timeline").text


def test_a_replay_of_several_turns_plays_them_in_order(alone: Shell, tmp_path: Path) -> None:
    path = tmp_path / "two.jsonl"
    path.write_text("".join((RECORDINGS / f"v1/{n}.jsonl").read_text() for n in ("text", "edit")))
    shown = alone.run(f"%oc_replay {path} --speed instant")
    assert shown.text.count("Replay of a turn") == 2
    shown = alone.fails(f"%oc_replay {path} --turn 3")
    assert "--turn must be from 1 to 2, not 3." in str(shown.error)


def test_without_a_user_a_replay_goes_on_as_recorded(alone: Shell) -> None:
    line = f"%oc_replay {RECORDINGS}/v1/bash_once.jsonl --interactive --step --speed instant"
    shown = alone.run(line)
    assert "Nobody can answer here" in shown.text
    assert "succeeded · replay" in shown.text


def test_steps_can_be_typed(alone: Shell) -> None:
    alone.types("", "", "r")
    shown = alone.run(f"%oc_replay {RECORDINGS}/v1/bash_once.jsonl --step --speed instant")
    assert shown.text.count("Enter for the next step") == 3
    assert "succeeded · replay" in shown.text


def test_a_failed_turn_is_shown_and_does_not_fail_the_cell(alone: Shell) -> None:
    shown = alone.run(f"%oc_replay {RECORDINGS}/v1/err400.jsonl --speed instant")
    assert "failed · replay" in shown.text


@pytest.mark.parametrize("speed", ["0", "-1", "fast", "nan", "inf"])
def test_an_invalid_speed_is_an_error(alone: Shell, speed: str) -> None:
    shown = alone.fails(f"%oc_replay {RECORDINGS}/v1/text.jsonl --speed={speed}")
    assert isinstance(shown.error, UsageError)


class Kernel:
    """The attribute of a kernel that makes a shell show outputs."""

    _allow_stdin = True


@pytest.fixture
def page(alone: Shell, front: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> FrontEnd:
    """A page in front of a shell whose cells have outputs, with a form that can be clicked."""
    monkeypatch.setattr(alone, "kernel", Kernel(), raising=False)
    return front


def cell(shell: Shell, code: str) -> None:
    """Run a cell that shows its outputs on the page; raise if it fails."""
    shell.run_cell(code).raise_error()


def read(page: FrontEnd) -> str:
    """The text on the page."""
    return "\n".join(output["text/plain"] for output in page.outputs.values())


def clicking(page: FrontEnd, monkeypatch: pytest.MonkeyPatch, *clicks: str) -> list[str]:
    """Simulate clicks, one for each new request of the form; return the requests' ids."""
    left, asked = list(clicks), list[str]()

    def poll(pump: object, timeout: float = 0.0) -> bool:
        spec = page.asks
        if spec and left and (not asked or asked[-1] != spec["id"]):
            asked.append(spec["id"])
            page.click(left.pop(0))
        return False

    monkeypatch.setattr("opencode_magics.notebook.pump.NoPump.poll", poll)
    return asked


def test_next_shows_one_step_after_another(
    alone: Shell, page: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = clicking(page, monkeypatch, *["next"] * 3, "rest")
    cell(alone, f"%oc_replay {RECORDINGS}/v1/bash_once.jsonl --step --speed instant")
    assert asked == ["step-0", "step-1", "step-2", "step-3"]
    assert "succeeded · replay" in read(page)
    assert page.asks == {}


def test_a_click_answers_in_an_interactive_replay(
    alone: Shell, page: FrontEnd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "asks.jsonl"
    path.write_text(dumps(answered("v1/bash_once", "once")))
    asked = clicking(page, monkeypatch, "reject")
    cell(alone, f"%oc_replay {path} --interactive --speed instant")
    assert len(asked) == 1
    assert "→ once" in read(page)
    assert "You answered reject; in the recording it was once" in read(page)


def test_without_a_drawn_form_steps_are_typed(
    alone: Shell, page: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.draws = False
    monkeypatch.setattr(prompters, "READY_TIMEOUT", 0.0)
    alone.types("r")
    shown = alone.run(f"%oc_replay {RECORDINGS}/v1/bash_once.jsonl --step --speed instant")
    assert "Enter for the next step" in shown.text


def test_an_interrupt_stops_a_replay(alone: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(run: Replay, wait: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Replay, "listen", interrupt)
    shown = alone.fails(f"%oc_replay {RECORDINGS}/v1/text.jsonl")
    assert isinstance(shown.error, TurnInterrupted)
    assert "The replay was stopped" in shown.text
    assert alone.run("%oc_turn").value.outcome == "unknown"


def test_reloading_ends_the_recording(alone: Shell, tmp_path: Path) -> None:
    path = tmp_path / "lesson.jsonl"
    alone.run(f"%oc_record {path}")
    assert f"Recording to {path} stopped." in alone.run("%reload_ext opencode_magics").text
    assert "Not recording." in alone.run("%oc_record").text
    assert not list(tmp_path.glob("*.jsonl"))


# -- invalid files ---------------------------------------------------------------------------------


BAD = {
    "empty": b"",
    "blank": b"\n\n",
    "binary": bytes(range(256)) * 100,
    "text": b"Dear diary,\n",
    "json": b'{"cells": []}\n',
    "list": b"[1, 2]\n",
    "headless": b'{"t": 1, "read": true}\n',
    "a bare head": b'{"recording": 1}\n',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_not_a_recording_is_an_error(
    alone: Shell, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "it.jsonl"
    path.write_bytes(BAD[name])
    shown = alone.fails(f"%oc_replay {path}")
    assert isinstance(shown.error, RecordingError)
    assert "is not a recording" in shown.text
    assert is_short_error(shown)
    if BAD[name].strip():
        assert "is not a recording" in alone.fails(f"%oc_record {path}").text
        assert path.read_bytes() == BAD[name]


def test_another_version_is_an_error(alone: Shell, tmp_path: Path) -> None:
    path = tmp_path / "it.jsonl"
    path.write_text('{"recording": 2, "generation": "1.x"}\n')
    assert (
        "is a recording of version 2; this package reads version 1"
        in alone.fails(f"%oc_replay {path}").text
    )


def test_another_generation_is_an_error(alone: Shell, tmp_path: Path) -> None:
    path = tmp_path / "it.jsonl"
    text = (RECORDINGS / "v1/text.jsonl").read_text()
    path.write_text(text.replace('"generation":"1.x"', '"generation":"3.x"'))
    assert is_short_error(shown := alone.fails(f"%oc_replay {path}"))
    assert "3.x" in shown.text


@pytest.mark.parametrize("path", ["nothing.jsonl", "/dev/null", "."])
def test_a_path_that_is_not_a_file_is_an_error(alone: Shell, path: str) -> None:
    assert is_short_error(alone.fails(f"%oc_replay {path}"))


@pytest.mark.parametrize("path", ["x" * 300, "x" * 300 + "/it.jsonl", "a\0b", "~a\0b", "a\ud800b"])
def test_an_impossible_path_is_an_error(path: str) -> None:
    with pytest.raises(RecordingError, match="can't be a recording"):
        load(path)


def test_a_file_that_is_too_large_is_not_read(alone: Shell, tmp_path: Path) -> None:
    path = tmp_path / "it.jsonl"
    with path.open("wb") as file:
        file.truncate(300_000_000)
    assert "300,000,000 bytes" in alone.fails(f"%oc_replay {path}").text


@pytest.mark.parametrize("cut", [40, 3_000, 12_000, -1, -30])
def test_a_truncated_recording_is_played_to_where_it_ends(
    alone: Shell, cut: int, tmp_path: Path
) -> None:
    path = tmp_path / "it.jsonl"
    whole = (RECORDINGS / "v1/bash_once.jsonl").read_bytes()
    path.write_bytes(whole[:cut])
    if cut == 40:
        assert is_short_error(alone.fails(f"%oc_replay {path}"))
        return
    shown = alone.run(f"%oc_replay {path} --speed instant")
    assert "The end of the recording is missing." in shown.text


def test_a_head_alone_is_replayed_as_unknown() -> None:
    assert played(replace(recording("v1/text"), lines=())).outcome == "unknown"


@pytest.mark.parametrize("when", ["NaN", "Infinity", "-1e16", "1e16", "9" * 400, '"soon"', "true"])
def test_an_invalid_time_cuts_the_recording(tmp_path: Path, when: str) -> None:
    path = tmp_path / "it.jsonl"
    head = (RECORDINGS / "v1/text.jsonl").read_text().splitlines()[0]
    path.write_text(f'{head}\n{{"t": {when}, "read": true}}\n')
    (cut,) = load(path)
    assert cut.cut
    assert cut.lines == ()


def test_a_long_silence_is_cut() -> None:
    source = recording("v1/text")
    late = tuple(x | {"t": x["t"] + 1e9 * (n > 5)} for n, x in enumerate(source.lines))
    began = time.monotonic()
    assert played(replace(source, lines=late), 100.0).outcome == "succeeded"
    assert time.monotonic() - began < 60


def test_turns_after_a_truncated_one_are_played(tmp_path: Path) -> None:
    path = tmp_path / "it.jsonl"
    whole = (RECORDINGS / "v1/bash_once.jsonl").read_text()
    path.write_text(whole[:9_000] + "\n" + whole)
    first, second = load(path)
    assert first.cut
    assert played(first).outcome == "unknown"
    assert played(second).outcome == "succeeded"


def test_a_broken_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "it.jsonl"
    lines = (RECORDINGS / "v1/bash_once.jsonl").read_text().splitlines()
    path.write_text("\n".join([*lines[:9], "?", *lines[9:]]))
    with pytest.raises(RecordingError, match="line 10 can't be read"):
        load(path)


@pytest.mark.parametrize(
    "line",
    [
        {"t": 0.1, "frame": None},
        {"t": 0.1, "frame": {"type": "message.updated"}},
        {"t": 0.1, "frame": {"type": "message.part.updated", "properties": {"part": 3}}},
        {"t": 0.1, "reply": 3},
        {"t": 0.1, "answer": 3},
        {"t": 0.1, "end": "nonsense", "failure": 3},
        {"t": 0.1, "answer": "per_1"},
        {"t": 0.1, "answer": [], "given": "once"},
        {"t": 0.1, "answer": "per_1", "given": "once"},
        {"t": 0.1, "answer": "per_1", "session": "ses_1", "given": "nonsense"},
        {"t": 0.1, "reply": "GET /session/status?directory=/work/p", "body": 3},
        {"t": 0.1, "read": True},
        {"t": -5, "note": 3},
        {"t": 0.1, "something": "new"},
    ],
)
def test_an_invalid_line_is_skipped(line: dict[str, Any]) -> None:
    source = recording("v1/text")
    turn = played(replace(source, lines=(line, *source.lines)))
    if "end" not in line:
        assert turn.outcome == "succeeded"


def fields(value: Any, *above: str | int) -> Iterator[tuple[str | int, ...]]:
    """The paths of all values in a JSON value."""
    if above:
        yield above
    if isinstance(value, dict | list):
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from fields(each, *above, name)


def replaced(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    """A copy of a JSON value with the value at a path replaced."""
    name, *below = path
    changed = value.copy()
    changed[name] = replaced(value[name], tuple(below), new) if below else new
    return changed


@pytest.mark.parametrize("odd", [7, [None], {"a": 1}, None], ids=repr)
@pytest.mark.parametrize(
    "name",
    ["v1/two_one_rejected", "v1/question_answered", "v1/write", "v2/permission", "v2/question"],
)
def test_no_field_of_any_frame_can_break_a_replay(name: str, odd: Any, thorough: bool) -> None:
    """A value of the wrong type counts as absent, or its frame as unreadable."""
    source, seen = recording(name), set()
    for n, line in enumerate(source.lines):
        for path in fields(line.get("frame")):
            kind = line["frame"]["type"], *(p for p in path if isinstance(p, str))
            if kind in seen:
                continue
            seen.add(kind)
            if len(seen) % 5 and not thorough:
                continue
            changed = line | {"frame": replaced(line["frame"], path, odd)}
            lines = (*source.lines[:n], changed, *source.lines[n + 1 :])
            turn = played(replace(source, lines=lines))
            assert html.turn(turn)


def test_a_recording_can_not_control_the_terminal() -> None:
    source = recording("v1/text")
    odd = replace(source, head=source.head | {"server": "1\x1b]0;x\x07\0" + "9" * 1_000})
    assert repr(odd).isprintable()
    assert len(odd.label) <= 80


def test_a_lone_surrogate_anywhere_in_a_recording_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "it.jsonl"
    text = (RECORDINGS / "v1/write.jsonl").read_text()
    session = json.loads(text.splitlines()[0])["session"]["id"]
    path.write_text(text.replace(session, "\\ud800"))
    (saved,) = load(path)
    turn = played(saved)
    assert turn.session == "\ufffd"
    assert html.turn(turn)
