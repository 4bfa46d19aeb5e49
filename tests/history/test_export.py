"""Exports: what DuckDB reads is what the frames say, however often and from wherever it is done."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from IPython.core.error import UsageError
from support.generations import both_generations
from support.histories import T0, asked, forks, many, said, serving, usage, wire_session
from support.ipython_shell import Shell, is_short_error
from support.transport import CannedTransport

from opencode_magics import history
from opencode_magics.client.client import Client
from opencode_magics.core.model import Session
from opencode_magics.dialects.base import Reply, Request
from opencode_magics.errors import MissingPackageError, UnknownNameError
from opencode_magics.history import Exported
from opencode_magics.history.frames import FRAME_KINDS, SESSIONS
from opencode_magics.history.sums import exact_sum

DAY = 86_400_000
FORMATS = {"parquet": "read_parquet", "jsonl": "read_json"}


def export(client: Client, path: Path, *args: Any, **options: Any) -> Exported:
    return history.export(client, path, *args, **{"cache": False, "progress": False} | options)


def ask(path: Path, sql: str, format: str = "parquet") -> list[tuple[Any, ...]]:
    """What DuckDB answers; `{messages}` and its kin are the exported tables."""
    tables = {
        kind: f"{FORMATS[format]}('{path}/{kind}/*/*.{format}', hive_partitioning = true)"
        for kind in ("sessions", *FRAME_KINDS)
    }
    with duckdb.connect() as db:
        return db.execute("set timezone = 'UTC'").execute(sql.format(**tables)).fetchall()


def cost(path: Path, where: str = "duplicate_of is null", format: str = "parquet") -> float:
    sql = f"select cost from {{messages}} where cost is not null and {where}"
    return exact_sum(row[0] for row in ask(path, sql, format))


def files(path: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with when it was written and what is in it."""
    every = (f for f in path.rglob("*") if f.is_file())
    return {str(f.relative_to(path)): (f.stat().st_mtime_ns, f.read_bytes()) for f in every}


# -- what is written -------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_sums_by_day_model_and_session_are_those_of_usage(tmp_path: Path, format: str) -> None:
    """Over midnight, with a fork, a call that nobody knows the usage of, and two models."""
    sessions, messages, expected = forks()
    sessions.append(wire_session("ses_Z", time={"created": T0 + DAY}, cost=0.5))
    messages["ses_Z"] = [
        asked("z0", "ses_Z", T0 + DAY),
        said("z1", "ses_Z", T0 + DAY + 1, 0.5, modelID="m-2"),
        said("z2", "ses_Z", T0 + 2 * DAY, None, time={"created": T0 + 2 * DAY}, finish=None),
    ]
    with serving(sessions, messages) as (client, _):
        export(client, tmp_path, format=format)
        by = ["day", "model", "session"]
        found = usage(client, by)
        assert cost(tmp_path, format=format) == exact_sum([expected["billed_total"], 0.5])
        assert (
            cost(tmp_path, "true", format)
            == usage(client, "total", keep_duplicates=True).attrs["total"]["cost"]
        )
    rows = ask(
        tmp_path,
        "select day, model, session, sum(cost), sum(input), count(*) filter (cost is null) "
        "from {messages} where duplicate_of is null and role = 'assistant' group by 1, 2, 3",
        format,
    )
    told = {(str(d), m, s): (c and exact_sum([c]), i, n) for d, m, s, c, i, n in rows}
    wanted = {
        (f"{row['day']:%Y-%m-%d}", row["model"], row["session"]): (
            row["cost"],
            row["input"],
            row["unknown"],
        )
        for row in found[found["calls"] > 0].astype(object).to_dict("records")
    }
    assert told == wanted


RICH = {
    "id": "p1",
    "type": "tool",
    "callID": "c1",
    "tool": "bash",
    "state": {
        "status": "completed",
        "input": {"command": "echo ü", "deep": [{"a": None}]},
        "output": "ü\n",
        "title": "echo",
        "metadata": {"exit": 0},
        "time": {"start": T0 + 100, "end": T0 + 350},
    },
}


@pytest.mark.parametrize("format", FORMATS)
def test_every_value_comes_back_with_its_type(tmp_path: Path, format: str) -> None:
    messages = [asked("m0", "ses_A", T0), said("m1", "ses_A", T0 + 7, parts=[RICH])]
    with serving([wire_session("ses_A", title="a 'b' ü")], {"ses_A": messages}) as (client, _):
        export(client, tmp_path, format=format, source="lab")
    ((call, given, text, code, took, started, waited, day),) = ask(
        tmp_path,
        "select call, input, output, exit, duration, started, waited, day::varchar from {tools}",
        format,
    )
    assert (call, text, code, took, waited) == ("c1", "ü\n", 0, 0.25, None)
    assert json.loads(given) == RICH["state"]["input"]
    assert started.timestamp() * 1000 == T0 + 100
    assert day == f"{started:%Y-%m-%d}"
    row = ask(tmp_path, "select title, source, root, depth, status from {sessions}", format)
    assert row == [("a 'b' ü", "lab", "ses_A", 0, None)]
    ((role, synthetic, error),) = ask(
        tmp_path, "select role, synthetic, error from {messages} where message = 'm0'", format
    )
    assert (role, synthetic, error) == ("user", False, None)


def test_a_column_has_its_type_where_it_is_empty_too(tmp_path: Path) -> None:
    """Readers take the types of the first file for those of all."""
    one, two = (
        said("m1", "ses_A", T0, None, tokens=None),
        said("m2", "ses_A", T0 + DAY, parts=[RICH]),
    )
    with serving([wire_session("ses_A")], {"ses_A": [one, two]}) as (client, _):
        export(client, tmp_path)
    for kind, columns in {
        "sessions": SESSIONS,
        **{k: v.columns for k, v in FRAME_KINDS.items()},
    }.items():
        shapes = {str(pq.read_schema(f)) for f in (tmp_path / kind).rglob("*.parquet")}
        assert len(shapes) == 1
        schema = pq.read_schema(next((tmp_path / kind).rglob("*.parquet")))
        assert {*columns} <= {*schema.names}
        types = {name: str(schema.field(name).type) for name in columns}
        plain = {"string", "int64", "double", "bool", "timestamp[ms, tz=UTC]"}
        assert {*types.values()} <= plain


def test_a_message_without_a_time_is_in_the_partition_of_no_day(tmp_path: Path) -> None:
    messages = [said("m1", "ses_A", T0, time={}), said("m2", "ses_A", T0)]
    with serving([wire_session("ses_A")], {"ses_A": messages}) as (client, _):
        export(client, tmp_path)
    rows = ask(tmp_path, "select message, day is null from {messages} order by 1")
    assert rows == [("m1", True), ("m2", False)]


def test_who_may_read_the_files_is_what_this_persons_files_are_like(tmp_path: Path) -> None:
    """In a shared folder others have to read them."""
    mine = tmp_path / "mine"
    mine.write_text("")
    with serving([wire_session("ses_A")], {"ses_A": []}) as (client, _):
        export(client, tmp_path / "out")
    (row,) = (tmp_path / "out").glob("sessions/*/*")
    assert row.stat().st_mode == mine.stat().st_mode


def test_an_id_is_no_path(tmp_path: Path) -> None:
    evil = "../../../ses_A"
    with serving([], {}) as (client, fake):
        fake.routes["GET /session"] = [wire_session(evil)]
        fake.routes["GET /session/..%2F..%2F..%2Fses_A/message"] = [said("m1", evil, T0)]
        done = export(client, tmp_path / "out")
    written = [f.relative_to(tmp_path).parts for f in tmp_path.rglob("*") if f.is_file()]
    assert (done.written, done.warnings) == (len(written), [])
    assert {len(parts) for parts in written} == {4}  # out, kind, day, file


# -- again -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_what_did_not_change_is_neither_read_nor_written_again(tmp_path: Path, format: str) -> None:
    sessions, messages, _ = forks()
    with serving(sessions, messages) as (client, fake):
        first = export(client, tmp_path, format=format)
        before = files(tmp_path)
        fake.seen.clear()
        again = export(client, tmp_path, format=format)
        assert not [s for s in fake.seen if s.path.endswith("/message")]
    assert (first.unchanged, first.written) == (0, len(before))
    assert (again.unchanged, again.written, again.removed) == (3, 0, 0)
    assert files(tmp_path) == before


def test_a_refresh_reads_all_and_changes_no_content(tmp_path: Path) -> None:
    sessions, messages, _ = forks()
    with serving(sessions, messages) as (client, _):
        export(client, tmp_path)
        before = {name: body for name, (_, body) in files(tmp_path).items()}
        assert export(client, tmp_path, refresh=True).unchanged == 0
    assert {name: body for name, (_, body) in files(tmp_path).items()} == before


def test_a_session_that_went_on_is_written_again_and_no_other(tmp_path: Path) -> None:
    sessions, messages = many(3)
    with serving(sessions, messages) as (client, fake):
        export(client, tmp_path)
        before = files(tmp_path)
        sessions[1] |= {"cost": 0.03, "time": {"created": T0, "updated": T0 + 2 * DAY}}
        fake.routes["GET /session/ses_01/message"] = [
            *messages["ses_01"],
            said("later", "ses_01", T0 + 2 * DAY, 0.02),
        ]
        again = export(client, tmp_path)
    assert (again.unchanged, again.sessions) == (2, 3)
    changed = {name for name, file in files(tmp_path).items() if before.get(name) != file}
    assert {Path(name).stem for name in changed} == {"ses_01"}
    assert len([n for n in changed if n.startswith("messages/")]) == 1  # the new day's only
    assert cost(tmp_path) == 0.05


def test_a_message_that_was_unfinished_is_completed_by_the_next_export(tmp_path: Path) -> None:
    """Although the list of sessions says the same as before."""
    half = said("m1", "ses_A", T0, None, time={"created": T0}, finish=None, tokens=None)
    with serving([wire_session("ses_A")], {"ses_A": [half]}) as (client, fake):
        export(client, tmp_path)
        assert ask(tmp_path, "select mark from {sessions}") == [(None,)]
        assert ask(tmp_path, "select outcome, cost from {messages}") == [("unfinished", None)]
        fake.routes["GET /session/ses_A/message"] = [said("m1", "ses_A", T0, 0.5)]
        assert export(client, tmp_path).unchanged == 0
        assert export(client, tmp_path).unchanged == 1
    assert ask(tmp_path, "select outcome, cost from {messages}") == [("succeeded", 0.5)]


def test_messages_that_are_gone_go_from_the_export_too(tmp_path: Path) -> None:
    """As `usage` counts: what a session's messages cost is what is still there."""
    sessions = [wire_session("ses_A", cost=0.3)]
    both = [said("m1", "ses_A", T0, 0.1), said("m2", "ses_A", T0 + DAY, 0.2)]
    with serving(sessions, {"ses_A": both}) as (client, fake):
        export(client, tmp_path)
        sessions[0]["cost"] = 0.1
        fake.routes["GET /session/ses_A/message"] = both[:1]
        assert export(client, tmp_path).removed == 2  # its messages and its steps of that day
    assert cost(tmp_path) == 0.1


def test_deleted_sessions_stay(tmp_path: Path) -> None:
    sessions, messages = many(3)
    with serving(sessions, messages) as (client, _):
        export(client, tmp_path)
    with serving(sessions[:1], messages) as (client, _):
        assert export(client, tmp_path).unchanged == 1
    assert cost(tmp_path) == 0.03


def test_two_machines_write_into_one_folder(tmp_path: Path) -> None:
    """One session that both know (imported) is there once, by whoever exported it last."""
    sessions, messages = many(4)
    for at, (some, name) in enumerate([(sessions[:3], "one"), (sessions[2:], "two")] * 2):
        with serving(some, messages) as (client, _):
            done = export(client, tmp_path, source=name)
            assert done.unchanged == (len(some) if at > 1 else at)
    assert cost(tmp_path) == 0.04
    assert ask(tmp_path, "select source, count(*) from {sessions} group by 1 order by 1") == [
        ("one", 3),
        ("two", 1),
    ]


# -- forks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("title", ["ses_P (fork #1)", "a new title"])
def test_a_copy_is_marked_whichever_sessions_are_exported(tmp_path: Path, title: str) -> None:
    """Exporting one of them later takes nothing back; the title of a fork may be anything."""
    sessions, messages, expected = forks()
    for session in sessions:
        if session["id"] == "ses_F1":
            session["title"] = title
    with serving(sessions, messages) as (client, _):
        export(client, tmp_path)
        assert cost(tmp_path) == expected["billed_total"]
        export(client, tmp_path, ["ses_F1"], refresh=True)
    assert cost(tmp_path) == expected["billed_total"]
    told = ask(tmp_path, "select id, fork_of from {sessions} where fork_of is not null order by 1")
    assert told == [("ses_F1", "ses_P"), ("ses_F2", "ses_P")]


def test_copies_can_be_told_by_their_key_alone(tmp_path: Path) -> None:
    """For what this server can't know: copies of messages of another machine."""
    sessions, messages, expected = forks()
    with serving(sessions, messages) as (client, _):
        export(client, tmp_path)
    sql = "select any_value(cost) from {messages} where cost is not null group by key"
    assert exact_sum(row[0] for row in ask(tmp_path, sql)) == expected["billed_total"]


def test_an_original_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    sessions, messages, _ = forks()
    broken = (400, {}, json.dumps({"message": "Expected string"}).encode())
    with serving(sessions, messages | {"ses_P": broken}) as (client, _):
        told = export(client, tmp_path, ["ses_F1"]).warnings
    assert len(told) == 1
    assert "copies from session ses_P is unknown" in told[0]


# -- interrupted -----------------------------------------------------------------------------------


class InterruptingTransport(CannedTransport):
    """A transport that is interrupted while it reads the messages of one of many sessions."""

    at = ""

    def send(self, request: Request) -> Reply:
        if request.path == f"/session/{self.at}/message":
            raise KeyboardInterrupt
        return super().send(request)


def test_forks_that_were_not_all_looked_for_are_no_answer() -> None:
    sessions, messages, _ = forks()
    with serving(sessions, messages) as (client, fake):
        transport = InterruptingTransport(fake.routes)
        transport.at = "ses_F2"
        with pytest.raises(KeyboardInterrupt):
            history.forks(client.over(transport), client.sessions(), cache=False)


@pytest.mark.parametrize("format", FORMATS)
def test_an_interrupted_export_is_completed_by_the_next(tmp_path: Path, format: str) -> None:
    sessions, messages = many(30)
    with serving(sessions, messages) as (client, fake):
        cache = history.Cache(tmp_path / "cache.db")
        history.messages(client, cache=cache)
        transport = InterruptingTransport(fake.routes)
        transport.at = "ses_17"
        with pytest.raises(KeyboardInterrupt):
            export(client.over(transport), tmp_path / "out", format=format, cache=cache)
        half = files(tmp_path / "out")
        assert {Path(f).stem for f in half if f.startswith("sessions/")} == {
            f"ses_{n:02}" for n in range(17)
        }
        assert cost(tmp_path / "out", format=format) == 0.17
        done = export(client, tmp_path / "out", format=format)
        assert (done.unchanged, done.written) == (17, 13 * 3)
        now = files(tmp_path / "out")
        assert half.items() <= now.items()
        assert cost(tmp_path / "out", format=format) == 0.30
        assert not [name for name in now if ".part" in name]


def test_a_session_that_was_written_in_part_is_written_again(tmp_path: Path) -> None:
    """Its own row comes last, so that nobody takes a part for the whole."""
    sessions = [wire_session("ses_A")]
    with serving(sessions, {"ses_A": [said("m1", "ses_A", T0, parts=[RICH])]}) as (client, _):
        (tmp_path / "parts").write_text("in the way")
        with pytest.raises(OSError, match="parts"):
            export(client, tmp_path)
        assert (tmp_path / "messages").is_dir()
        assert not (tmp_path / "sessions").exists()
        (tmp_path / "parts").unlink()
        assert export(client, tmp_path).unchanged == 0
        assert export(client, tmp_path).unchanged == 1
    assert ask(tmp_path, "select count(*) from {tools}") == [(1,)]


def test_a_refresh_that_was_interrupted_is_not_taken_for_done(tmp_path: Path) -> None:
    """Although the list of sessions tells nothing new: a shell run isn't seen in it."""
    before = [said("m1", "ses_A", T0, parts=[RICH])]
    with serving([wire_session("ses_A")], {"ses_A": before}) as (client, fake):
        export(client, tmp_path)
        (tools,) = tmp_path.glob("tools/*/*")
        tools.unlink()
        tools.mkdir()  # so that it can't be written
        more = [{**RICH, "id": "p2", "callID": "c2"}]
        fake.routes["GET /session/ses_A/message"] = [*before, said("m2", "ses_A", T0, parts=more)]
        with pytest.raises(OSError, match="ses_A"):
            export(client, tmp_path, refresh=True)
        tools.rmdir()
        assert export(client, tmp_path).unchanged == 0
    assert ask(tmp_path, "select call from {tools} order by 1") == [("c1",), ("c2",)]


@pytest.mark.parametrize("body", [b"", b"PAR1", b'{"mark": 5}', b"\xff"])
@pytest.mark.parametrize("format", FORMATS)
def test_a_file_that_cannot_be_read_is_written_anew(
    tmp_path: Path, body: bytes, format: str
) -> None:
    with serving([wire_session("ses_A")], {"ses_A": []}) as (client, _):
        export(client, tmp_path, format=format)
        (row,) = tmp_path.glob("sessions/*/*")
        row.write_bytes(body)
        assert export(client, tmp_path, format=format).written == 1
        assert export(client, tmp_path, format=format).unchanged == 1


def test_exports_at_the_same_time_leave_whole_files(tmp_path: Path) -> None:
    sessions, messages = many(12)
    with serving(sessions, messages) as (client, _):
        exporting = [threading.Thread(target=export, args=(client, tmp_path)) for _ in range(3)]
        for thread in exporting:
            thread.start()
        for thread in exporting:
            thread.join()
        assert export(client, tmp_path).unchanged == 12
    assert cost(tmp_path) == 0.12


# -- what can't be done ----------------------------------------------------------------------------


def test_a_session_that_cannot_be_read_is_told_and_tried_again(tmp_path: Path) -> None:
    sessions, messages = many(2)
    broken = (400, {"content-type": "application/json"}, b'{"name":"BadRequest","data":{}}')
    with serving(sessions, messages | {"ses_01": broken}) as (client, fake):
        done = export(client, tmp_path)
        assert len(done.warnings) == 1
        assert "ses_01 could not be read" in done.warnings[0]
        fake.routes["GET /session/ses_01/message"] = messages["ses_01"]
        assert export(client, tmp_path).unchanged == 1
    assert cost(tmp_path) == 0.02


def test_one_folder_takes_one_format(tmp_path: Path) -> None:
    with serving([wire_session("ses_A")], {}) as (client, _):
        export(client, tmp_path, format="jsonl")
        with pytest.raises(ValueError, match=r"has \.jsonl files: one folder takes one format"):
            export(client, tmp_path)


def test_a_format_or_a_session_that_is_not_there_is_told(tmp_path: Path) -> None:
    with serving([], {}) as (client, fake):
        with pytest.raises(UnknownNameError, match="no format 'csv'"):
            export(client, tmp_path, format="csv")
        gone = {"name": "NotFoundError", "data": {"message": "gone"}}
        reply = (404, {"content-type": "application/json"}, json.dumps(gone).encode())
        fake.routes["GET /session/ses_nope"] = reply
        with pytest.raises(UnknownNameError, match="No session 'ses_nope'"):
            export(client, tmp_path, ["ses_nope"])
    assert not [*tmp_path.iterdir()]


def test_without_pyarrow_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with serving([wire_session("ses_A")], {}) as (client, _):
        with pytest.raises(MissingPackageError, match="Parquet files need pyarrow") as caught:
            export(client, tmp_path)
        export(client, tmp_path, format="jsonl")
    assert caught.value.todo == "Install it with: pip install 'opencode-magics[parquet]'"


# -- in a shell, on a real server ------------------------------------------------------------------


@pytest.fixture
def worked(shell: Shell, client: Client, request: pytest.FixtureRequest) -> Sequence[Session]:
    """A session, its subagent's, and a fork of it that went on."""
    title = request.node.name
    shell.run(f'%oc_prompt --title "{title}" --permission once #task #bash echo hi')
    origin = shell.run("%oc_session").value
    forked = client.run(client.dialect.fork(origin))
    made = {origin.id, forked.id}
    shell.run(f"%oc_prompt --session {forked.id} #text 3")
    return [s for s in client.sessions() if s.id in made or s.parent in made]


@both_generations
@pytest.mark.parametrize("format", FORMATS)
def test_what_a_real_server_did_is_exported_with_its_magic(
    shell: Shell,
    client: Client,
    worked: Sequence[Session],
    tmp_path: Path,
    format: str,
    bash: str,
) -> None:
    ids = " ".join(s.id for s in worked)
    line = f"%oc_export {tmp_path}/out {ids} --format {format}"
    done = shell.run(line).value
    assert (done.sessions, done.unchanged) == (3, 0)
    assert shell.run(line).value.written == 0
    found = usage(client, "session", sessions=worked)
    copied = "select count(*) from {messages} where duplicate_of is not null and cost is not null"
    assert ask(tmp_path / "out", copied, format) == [(2,)]
    assert cost(tmp_path / "out", format=format) == found.attrs["total"]["cost"]
    assert ask(
        tmp_path / "out",
        "select tool, status, json_extract_string(input, '$.command') from {tools} "
        f"where tool = '{bash}' and duplicate_of is null",
        format,
    ) == [(bash, "completed", "echo hi")]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "required: path"),
        ("/dev/null/out --all", "can't be written"),
        ("out", "There is no current session"),
        ("out --all ses_1", "one of these"),
    ],
)
def test_what_cannot_be_meant_is_a_sentence(shell: Shell, line: str, told: str) -> None:
    failed = shell.fails(f"%oc_export {line}")
    assert isinstance(failed.error, UsageError)
    assert told in failed.text
    assert is_short_error(failed)
