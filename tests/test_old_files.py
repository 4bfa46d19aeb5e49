"""Files and metadata that version 0.1 wrote are still read.

`data/version-0.1` holds recordings, a cache, exports and metadata as that version wrote them; only
the address and the folder of the practice world are replaced. `history.json` is the history of a
server, the source of `history.db` and of the exports; `turns.json` describes the recorded turns.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pytest
from support.fake_server import FakeServer
from support.histories import serving
from support.ipython_shell import Shell

from opencode_magics import history
from opencode_magics.practice.simulator.server import Simulator

OLD = Path(__file__).parent / "data" / "version-0.1"
TURNS: dict[str, list[dict[str, Any]]] = json.loads((OLD / "turns.json").read_text("utf-8"))
HISTORY: dict[str, Any] = json.loads((OLD / "history.json").read_text("utf-8"))
METADATA: dict[str, Any] = json.loads((OLD / "metadata.json").read_text("utf-8"))
STORED: dict[str, Any] = METADATA["metadata"]["opencode_magics"]


# -- recordings ------------------------------------------------------------------------------------


def values(turn: Any) -> dict[str, Any]:
    """A turn as `turns.json` describes it."""
    return {
        "prompt": turn.question_text,
        "outcome": turn.outcome,
        "text": turn.text,
        "steps": turn.steps,
        "cost": turn.cost,
        "tokens": turn.usage and turn.usage.total,
        "model": turn.model and str(turn.model),
        "agent": turn.agent,
        "duration": turn.duration,
        "tools": [[t.tool, t.status, t.title, t.exit, t.declined] for t in turn.tools],
        "diffs": [[d.file, d.additions, d.deletions] for d in turn.diffs],
        "settled": [[kind_of(s.request), s.reply] for s in turn.settled_requests],
        "subagents": len(turn.subagents),
        "failure": turn.failure and str(turn.failure),
    }


def kind_of(request: Any) -> str:
    return "Question" if hasattr(request, "items") else "Permission"


@pytest.mark.parametrize(
    ("server", "number"),
    [(server, n) for server, turns in TURNS.items() for n in range(len(turns))],
)
def test_a_recording_replays_to_the_recorded_turn(alone: Shell, server: str, number: int) -> None:
    file = OLD / f"turns_{server}.jsonl"
    alone.run(f"%oc_replay {file} --turn {number + 1} --speed instant -o turn")
    assert values(alone.user_ns["turn"]) == TURNS[server][number]


@pytest.mark.parametrize("generation", ["2.x"])
def test_turns_are_added_to_a_recording(shell: Shell, tmp_path: Path) -> None:
    file = shutil.copy(OLD / "turns_1x.jsonl", tmp_path / "lesson.jsonl")
    shell.run(f"%oc_record {file}")
    shell.run("%oc_prompt --title 'A lesson' #text 2")
    texts = []
    for number in (1, 4):
        shell.run(f"%oc_replay {file} --turn {number} --speed instant -o turn")
        texts.append(shell.user_ns["turn"].text)
    assert texts == ["Done.", "word0 word1"]


# -- histories -------------------------------------------------------------------------------------


def messages_read(fake: FakeServer) -> list[str]:
    return [seen.path for seen in fake.seen if seen.path.endswith("/message")]


@pytest.mark.parametrize("kind", ["messages", "steps", "parts", "tools"])
def test_rows_in_the_cache_are_not_read_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache is found where that version put it, and its rows are those of the server."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "opencode_magics").mkdir()
    shutil.copy(OLD / "history.db", tmp_path / "opencode_magics")
    load = getattr(history, kind)
    with serving(HISTORY["sessions"], HISTORY["messages"]) as (client, fake):
        cached = load(client, progress=False)
        assert messages_read(fake) == []
        read = load(client, cache=False, progress=False)
        assert len(messages_read(fake)) == 2
    pd.testing.assert_frame_equal(cached, read)


EXPORTS = {"jsonl": None, "parquet": ["ses_A"]}


@pytest.mark.parametrize("format", EXPORTS)
def test_an_export_of_unchanged_sessions_writes_nothing(format: str, tmp_path: Path) -> None:
    folder = shutil.copytree(OLD / f"export_{format}", tmp_path / "export")
    with serving(HISTORY["sessions"], HISTORY["messages"]) as (client, _):
        done = history.export(
            client, folder, EXPORTS[format], format=format, source="lab", cache=False
        )
    assert (done.unchanged, done.written, done.removed) == (done.sessions, 0, 0)


def test_exported_lines_are_the_same_to_the_byte(tmp_path: Path) -> None:
    with serving(HISTORY["sessions"], HISTORY["messages"]) as (client, _):
        history.export(client, tmp_path, format="jsonl", source="lab", cache=False)
    assert contents(tmp_path) == contents(OLD / "export_jsonl")


def contents(folder: Path) -> dict[str, str]:
    """The text of every file in a folder."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_text("utf-8") for file in files}


# -- metadata and passwords ------------------------------------------------------------------------


def leave_metadata(simulator: Simulator, session: str, kind: str, **ids: str) -> None:
    """Give a session metadata of that version, with the ids of messages that it has."""
    text = json.dumps({"opencode_magics": {kind: STORED[kind]}})
    for old, new in ({METADATA["session"]: session} | ids).items():
        text = text.replace(old, new)
    httpx.patch(
        f"{simulator.url}/api/session/{session}",
        json={"metadata": json.loads(text)},
        auth=("opencode", simulator.password),
    ).raise_for_status()


@pytest.mark.parametrize(
    ("place", "prompt"),
    [
        (0, "#text 2"),
        (1, "--agent build -m practice/scripted #text 3"),
    ],
)
@pytest.mark.parametrize("generation", ["2.x"])
def test_an_answer_is_found_by_the_digest_of_its_prompt(
    shell: Shell, simulator: Simulator, tmp_path: Path, place: int, prompt: str
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("one line\n")
    session = shell.run("%oc_new Digests").value.id
    shell.run(f"%oc_prompt -o first --file {file} {prompt}")
    first = shell.user_ns["first"]
    recorded = list(STORED["prompts"].values())[place]
    leave_metadata(simulator, session, "prompts", **{recorded: first.prompt})
    shell.run(f"%oc_prompt --once -o again --file {file} {prompt}")
    assert shell.user_ns["again"].prompt == first.prompt


@pytest.mark.parametrize("generation", ["2.x"])
def test_a_recorded_command_is_listed_and_recovered(shell: Shell, simulator: Simulator) -> None:
    session = shell.run("%oc_new Commands").value.id
    shell.run("%oc_prompt -o turn Explain greet.py #text 3")
    prompt = shell.user_ns["turn"].prompt
    ((invocation, record),) = STORED["commands"].items()
    leave_metadata(simulator, session, "commands", **{record["inputs"][0]: prompt})
    listed = shell.run("%oc_command --given").value.set_index("invocation").loc[invocation]
    assert listed["command"] == "explain"
    assert listed["arguments"] == record["text"]
    assert listed["given"].timestamp() * 1000 == record["at"]
    assert listed["matched"]
    assert not listed["isolated"]
    assert listed["session"] == session
    receipt = shell.run(f"%oc_command --recover {invocation}").value
    assert (receipt.status, receipt.inputs) == ("matched", (prompt,))
    assert receipt.text == "word0 word1 word2"


def test_the_stored_password_of_a_kept_server_is_used(bare: Shell, simulator: Simulator) -> None:
    passwords = Path(os.environ["XDG_STATE_HOME"], "opencode_magics", "servers.json")
    passwords.parent.mkdir(parents=True)
    passwords.write_text(json.dumps({simulator.url: simulator.password}))
    bare.run("%load_ext opencode_magics")
    connected = bare.run(f"%oc_connect {simulator.url} -d {simulator.directory}").value
    assert connected.url == simulator.url
