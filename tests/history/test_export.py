"""Exports: DuckDB reads the same values as the frames have, after any number of exports."""

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
from support.histories import T0, answer, forks, make_sessions, prompt, serving, usage, wire_session
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


def query(path: Path, sql: str, format: str = "parquet") -> list[tuple[Any, ...]]:
    """Run a DuckDB query, in which `{messages}` etc. are the exported tables."""
    tables = {
        kind: f"{FORMATS[format]}('{path}/{kind}/*/*.{format}', hive_partitioning = true)"
        for kind in ("sessions", *FRAME_KINDS)
    }
    with duckdb.connect() as db:
        return db.execute("set timezone = 'UTC'").execute(sql.format(**tables)).fetchall()


def cost(path: Path, condition: str = "duplicate_of is null", format: str = "parquet") -> float:
    sql = f"select cost from {{messages}} where cost is not null and {condition}"
    return exact_sum(row[0] for row in query(path, sql, format))


def files(path: Path) -> dict[str, tuple[int, bytes]]:
    """Return the modification time and the content of every file."""
    paths = (f for f in path.rglob("*") if f.is_file())
    return {str(f.relative_to(path)): (f.stat().st_mtime_ns, f.read_bytes()) for f in paths}


def test_only_the_user_can_read_an_export(tmp_path: Path) -> None:
    """Case G3: files were 0644."""
    sessions, messages, _ = forks()
    with serving(sessions, messages) as (client, _):
        export(client, tmp_path / "out", format="jsonl")
    modes = {f.stat().st_mode & 0o777 for f in (tmp_path / "out").rglob("*")}
    assert modes == {0o600, 0o700}


# -- exported values -------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_exported_sums_by_day_model_and_session_equal_usage(tmp_path: Path, format: str) -> None:
    """With two days, a fork, a call of unknown usage, and two models."""
    sessions, messages, expected = forks()
    sessions.append(wire_session("ses_Z", time={"created": T0 + DAY}, cost=0.5))
    messages["ses_Z"] = [
        prompt("z0", "ses_Z", T0 + DAY),
        answer("z1", "ses_Z", T0 + DAY + 1, 0.5, modelID="m-2"),
        answer("z2", "ses_Z", T0 + 2 * DAY, None, time={"created": T0 + 2 * DAY}, finish=None),
    ]
    with serving(sessions, messages) as (client, _):
        export(client, tmp_path, format=format)
        by = ["day", "model", "session"]
        frame = usage(client, by)
        assert cost(tmp_path, format=format) == exact_sum([expected["billed_total"], 0.5])
        assert (
            cost(tmp_path, "true", format)
            == usage(client, "total", keep_duplicates=True).attrs["total"]["cost"]
        )
    rows = query(
        tmp_path,
        "select day, model, session, sum(cost), sum(input), count(*) filter (cost is null) "
        "from {messages} where duplicate_of is null and role = 'assistant' group by 1, 2, 3",
        format,
    )
    exported = {(str(d), m, s): (c and exact_sum([c]), i, n) for d, m, s, c, i, n in rows}
    expected_rows = {
        (f"{row['day']:%Y-%m-%d}", row["model"], row["session"]): (
            row["cost"],
            row["input"],
            row["unknown"],
        )
        for row in frame[frame["calls"] > 0].astype(object).to_dict("records")
    }
    assert exported == expected_rows


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
def test_exported_values_keep_their_types(tmp_path: Path, format: str) -> None:
    messages = [prompt("m0", "ses_A", T0), answer("m1", "ses_A", T0 + 7, parts=[RICH])]
    with serving([wire_session("ses_A", title="a 'b' ü")], {"ses_A": messages}) as (client, _):
        export(client, tmp_path, format=format, source="lab")
    ((call, arguments, output, code, duration, started, waited, day),) = query(
        tmp_path,
        "select call, input, output, exit, duration, started, waited, day::varchar from {tools}",
        format,
    )
    assert (call, output, code, duration, waited) == ("c1", "ü\n", 0, 0.25, None)
    assert json.loads(arguments) == RICH["state"]["input"]
    assert started.timestamp() * 1000 == T0 + 100
    assert day == f"{started:%Y-%m-%d}"
    row = query(tmp_path, "select title, source, root, depth, status from {sessions}", format)
    assert row == [("a 'b' ü", "lab", "ses_A", 0, None)]
    ((role, synthetic, error),) = query(
        tmp_path, "select role, synthetic, error from {messages} where message = 'm0'", format
    )
    assert (role, synthetic, error) == ("user", False, None)


def test_an_empty_column_keeps_its_type(tmp_path: Path) -> None:
    """Readers use the first file's types for all files."""
    one, two = (
        answer("m1", "ses_A", T0, None, tokens=None),
        answer("m2", "ses_A", T0 + DAY, parts=[RICH]),
    )
    with serving([wire_session("ses_A")], {"ses_A": [one, two]}) as (client, _):
        export(client, tmp_path)
    for kind, columns in {
        "sessions": SESSIONS,
        **{k: v.columns for k, v in FRAME_KINDS.items()},
    }.items():
        schemas = {str(pq.read_schema(f)) for f in (tmp_path / kind).rglob("*.parquet")}
        assert len(schemas) == 1
        schema = pq.read_schema(next((tmp_path / kind).rglob("*.parquet")))
        assert {*columns} <= {*schema.names}
        types = {name: str(schema.field(name).type) for name in columns}
        simple_types = {"string", "int64", "double", "bool", "timestamp[ms, tz=UTC]"}
        assert {*types.values()} <= simple_types


def test_a_message_without_a_time_is_in_the_null_partition(tmp_path: Path) -> None:
    messages = [answer("m1", "ses_A", T0, time={}), answer("m2", "ses_A", T0)]
    with serving([wire_session("ses_A")], {"ses_A": messages}) as (client, _):
        export(client, tmp_path)
    rows = query(tmp_path, "select message, day is null from {messages} order by 1")
    assert rows == [("m1", True), ("m2", False)]


def test_a_session_id_cannot_escape_the_folder(tmp_path: Path) -> None:
    evil = "../../../ses_A"
    with serving([], {}) as (client, fake):
        fake.routes["GET /session"] = [wire_session(evil)]
        fake.routes["GET /session/..%2F..%2F..%2Fses_A/message"] = [answer("m1", evil, T0)]
        result = export(client, tmp_path / "out")
    written = [f.relative_to(tmp_path).parts for f in tmp_path.rglob("*") if f.is_file()]
    assert (result.written, result.warnings) == (len(written), [])
    assert {len(parts) for parts in written} == {4}  # out, kind, day, file


# -- repeated exports ------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_unchanged_sessions_are_neither_read_nor_written_again(tmp_path: Path, format: str) -> None:
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


def test_a_refresh_reads_everything_and_changes_no_content(tmp_path: Path) -> None:
    sessions, messages, _ = forks()
    with serving(sessions, messages) as (client, _):
        export(client, tmp_path)
        before = {name: body for name, (_, body) in files(tmp_path).items()}
        assert export(client, tmp_path, refresh=True).unchanged == 0
    assert {name: body for name, (_, body) in files(tmp_path).items()} == before


def test_only_the_session_that_continued_is_written_again(tmp_path: Path) -> None:
    sessions, messages = make_sessions(3)
    with serving(sessions, messages) as (client, fake):
        export(client, tmp_path)
        before = files(tmp_path)
        sessions[1] |= {"cost": 0.03, "time": {"created": T0, "updated": T0 + 2 * DAY}}
        fake.routes["GET /session/ses_01/message"] = [
            *messages["ses_01"],
            answer("later", "ses_01", T0 + 2 * DAY, 0.02),
        ]
        again = export(client, tmp_path)
    assert (again.unchanged, again.sessions) == (2, 3)
    changed = {name for name, file in files(tmp_path).items() if before.get(name) != file}
    assert {Path(name).stem for name in changed} == {"ses_01"}
    assert len([n for n in changed if n.startswith("messages/")]) == 1  # the new day's only
    assert cost(tmp_path) == 0.05


def test_the_next_export_completes_an_unfinished_message(tmp_path: Path) -> None:
    """Even if the session's list entry is the same as before."""
    unfinished = answer("m1", "ses_A", T0, None, time={"created": T0}, finish=None, tokens=None)
    with serving([wire_session("ses_A")], {"ses_A": [unfinished]}) as (client, fake):
        export(client, tmp_path)
        assert query(tmp_path, "select mark from {sessions}") == [(None,)]
        assert query(tmp_path, "select outcome, cost from {messages}") == [("unfinished", None)]
        fake.routes["GET /session/ses_A/message"] = [answer("m1", "ses_A", T0, 0.5)]
        assert export(client, tmp_path).unchanged == 0
        assert export(client, tmp_path).unchanged == 1
    assert query(tmp_path, "select outcome, cost from {messages}") == [("succeeded", 0.5)]


def test_deleted_messages_are_removed_from_the_export(tmp_path: Path) -> None:
    """As in `usage`, a session's cost is that of the messages that still exist."""
    sessions = [wire_session("ses_A", cost=0.3)]
    both = [answer("m1", "ses_A", T0, 0.1), answer("m2", "ses_A", T0 + DAY, 0.2)]
    with serving(sessions, {"ses_A": both}) as (client, fake):
        export(client, tmp_path)
        sessions[0]["cost"] = 0.1
        fake.routes["GET /session/ses_A/message"] = both[:1]
        assert export(client, tmp_path).removed == 2  # its messages and its steps of that day
    assert cost(tmp_path) == 0.1


def test_deleted_sessions_stay_in_the_export(tmp_path: Path) -> None:
    sessions, messages = make_sessions(3)
    with serving(sessions, messages) as (client, _):
        export(client, tmp_path)
    with serving(sessions[:1], messages) as (client, _):
        assert export(client, tmp_path).unchanged == 1
    assert cost(tmp_path) == 0.03


def test_two_machines_can_share_a_folder(tmp_path: Path) -> None:
    """A session on both machines (imported) is stored once, as exported last."""
    sessions, messages = make_sessions(4)
    for at, (selected, name) in enumerate([(sessions[:3], "one"), (sessions[2:], "two")] * 2):
        with serving(selected, messages) as (client, _):
            result = export(client, tmp_path, source=name)
            assert result.unchanged == (len(selected) if at > 1 else at)
    assert cost(tmp_path) == 0.04
    assert query(tmp_path, "select source, count(*) from {sessions} group by 1 order by 1") == [
        ("one", 3),
        ("two", 1),
    ]


# -- forks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("title", ["ses_P (fork #1)", "a new title"])
def test_copies_are_marked_whichever_sessions_are_exported(tmp_path: Path, title: str) -> None:
    """Exporting a single fork later keeps the marks; the fork may have any title."""
    sessions, messages, expected = forks()
    for session in sessions:
        if session["id"] == "ses_F1":
            session["title"] = title
    with serving(sessions, messages) as (client, _):
        export(client, tmp_path)
        assert cost(tmp_path) == expected["billed_total"]
        export(client, tmp_path, ["ses_F1"], refresh=True)
    assert cost(tmp_path) == expected["billed_total"]
    rows = query(
        tmp_path, "select id, fork_of from {sessions} where fork_of is not null order by 1"
    )
    assert rows == [("ses_F1", "ses_P"), ("ses_F2", "ses_P")]


def test_copies_can_be_recognized_by_their_key_alone(tmp_path: Path) -> None:
    """The key also identifies copies of another machine's messages."""
    sessions, messages, expected = forks()
    with serving(sessions, messages) as (client, _):
        export(client, tmp_path)
    sql = "select any_value(cost) from {messages} where cost is not null group by key"
    assert exact_sum(row[0] for row in query(tmp_path, sql)) == expected["billed_total"]


def test_an_unreadable_original_is_a_warning(tmp_path: Path) -> None:
    sessions, messages, _ = forks()
    broken = (400, {}, json.dumps({"message": "Expected string"}).encode())
    with serving(sessions, messages | {"ses_P": broken}) as (client, _):
        warnings = export(client, tmp_path, ["ses_F1"]).warnings
    assert len(warnings) == 1
    assert "Can't tell which messages are copies from session ses_P" in warnings[0]


# -- interrupted exports ---------------------------------------------------------------------------


class InterruptingTransport(CannedTransport):
    """A transport that is interrupted while it reads the messages of one of many sessions."""

    at = ""

    def send(self, request: Request) -> Reply:
        if request.path == f"/session/{self.at}/message":
            raise KeyboardInterrupt
        return super().send(request)


def test_an_interrupted_search_for_forks_returns_nothing() -> None:
    sessions, messages, _ = forks()
    with serving(sessions, messages) as (client, fake):
        transport = InterruptingTransport(fake.routes)
        transport.at = "ses_F2"
        with pytest.raises(KeyboardInterrupt):
            history.forks(client.with_transport(transport), client.sessions(), cache=False)


@pytest.mark.parametrize("format", FORMATS)
def test_the_next_export_completes_an_interrupted_one(tmp_path: Path, format: str) -> None:
    sessions, messages = make_sessions(30)
    with serving(sessions, messages) as (client, fake):
        cache = history.Cache(tmp_path / "cache.db")
        history.messages(client, cache=cache)
        transport = InterruptingTransport(fake.routes)
        transport.at = "ses_17"
        with pytest.raises(KeyboardInterrupt):
            export(client.with_transport(transport), tmp_path / "out", format=format, cache=cache)
        before = files(tmp_path / "out")
        assert {Path(f).stem for f in before if f.startswith("sessions/")} == {
            f"ses_{n:02}" for n in range(17)
        }
        assert cost(tmp_path / "out", format=format) == 0.17
        result = export(client, tmp_path / "out", format=format)
        assert (result.unchanged, result.written) == (17, 13 * 3)
        after = files(tmp_path / "out")
        assert before.items() <= after.items()
        assert cost(tmp_path / "out", format=format) == 0.30
        assert not [name for name in after if ".part" in name]


def test_a_partly_written_session_is_written_again(tmp_path: Path) -> None:
    """The session's own row is written last, so its absence shows that rows are missing."""
    sessions = [wire_session("ses_A")]
    with serving(sessions, {"ses_A": [answer("m1", "ses_A", T0, parts=[RICH])]}) as (client, _):
        (tmp_path / "parts").write_text("in the way")
        with pytest.raises(OSError, match="parts"):
            export(client, tmp_path)
        assert (tmp_path / "messages").is_dir()
        assert not (tmp_path / "sessions").exists()
        (tmp_path / "parts").unlink()
        assert export(client, tmp_path).unchanged == 0
        assert export(client, tmp_path).unchanged == 1
    assert query(tmp_path, "select count(*) from {tools}") == [(1,)]


def test_an_interrupted_refresh_is_not_taken_for_complete(tmp_path: Path) -> None:
    """Even if the session's list entry is the same as before, as after a shell run."""
    before = [answer("m1", "ses_A", T0, parts=[RICH])]
    with serving([wire_session("ses_A")], {"ses_A": before}) as (client, fake):
        export(client, tmp_path)
        (tools,) = tmp_path.glob("tools/*/*")
        tools.unlink()
        tools.mkdir()  # so that it can't be written
        more = [{**RICH, "id": "p2", "callID": "c2"}]
        fake.routes["GET /session/ses_A/message"] = [*before, answer("m2", "ses_A", T0, parts=more)]
        with pytest.raises(OSError, match="ses_A"):
            export(client, tmp_path, refresh=True)
        tools.rmdir()
        assert export(client, tmp_path).unchanged == 0
    assert query(tmp_path, "select call from {tools} order by 1") == [("c1",), ("c2",)]


@pytest.mark.parametrize("body", [b"", b"PAR1", b'{"mark": 5}', b"\xff"])
@pytest.mark.parametrize("format", FORMATS)
def test_an_unreadable_file_is_written_again(tmp_path: Path, body: bytes, format: str) -> None:
    with serving([wire_session("ses_A")], {"ses_A": []}) as (client, _):
        export(client, tmp_path, format=format)
        (row,) = tmp_path.glob("sessions/*/*")
        row.write_bytes(body)
        assert export(client, tmp_path, format=format).written == 1
        assert export(client, tmp_path, format=format).unchanged == 1


def test_simultaneous_exports_leave_complete_files(tmp_path: Path) -> None:
    sessions, messages = make_sessions(12)
    with serving(sessions, messages) as (client, _):
        exporting = [threading.Thread(target=export, args=(client, tmp_path)) for _ in range(3)]
        for thread in exporting:
            thread.start()
        for thread in exporting:
            thread.join()
        assert export(client, tmp_path).unchanged == 12
    assert cost(tmp_path) == 0.12


# -- errors ----------------------------------------------------------------------------------------


def test_an_unreadable_session_is_a_warning_and_is_tried_again(tmp_path: Path) -> None:
    sessions, messages = make_sessions(2)
    broken = (400, {"content-type": "application/json"}, b'{"name":"BadRequest","data":{}}')
    with serving(sessions, messages | {"ses_01": broken}) as (client, fake):
        result = export(client, tmp_path)
        assert len(result.warnings) == 1
        assert "ses_01 could not be read" in result.warnings[0]
        fake.routes["GET /session/ses_01/message"] = messages["ses_01"]
        assert export(client, tmp_path).unchanged == 1
    assert cost(tmp_path) == 0.02


def test_a_folder_contains_only_one_format(tmp_path: Path) -> None:
    with serving([wire_session("ses_A")], {}) as (client, _):
        export(client, tmp_path, format="jsonl")
        with pytest.raises(ValueError, match=r"contains \.jsonl files\. Use one folder per format"):
            export(client, tmp_path)


def test_an_unknown_format_or_session_is_an_error(tmp_path: Path) -> None:
    with serving([], {}) as (client, fake):
        with pytest.raises(UnknownNameError, match="Unknown format 'csv'"):
            export(client, tmp_path, format="csv")
        not_found = {"name": "NotFoundError", "data": {"message": "gone"}}
        reply = (404, {"content-type": "application/json"}, json.dumps(not_found).encode())
        fake.routes["GET /session/ses_nope"] = reply
        with pytest.raises(UnknownNameError, match="No session 'ses_nope'"):
            export(client, tmp_path, ["ses_nope"])
    assert not [*tmp_path.iterdir()]


def test_without_pyarrow_the_error_says_what_to_install(
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
def related_sessions(
    shell: Shell, client: Client, request: pytest.FixtureRequest
) -> Sequence[Session]:
    """A session, its subagent's session, and a fork of it with another turn."""
    title = request.node.name
    shell.run(f'%oc_prompt --title "{title}" --permission once #task #bash echo hi')
    origin = shell.run("%oc_session").value
    forked = client.run(client.dialect.fork(origin))
    ids = {origin.id, forked.id}
    shell.run(f"%oc_prompt --session {forked.id} #text 3")
    return [s for s in client.sessions() if s.id in ids or s.parent in ids]


@both_generations
@pytest.mark.parametrize("format", FORMATS)
def test_the_magic_exports_a_real_servers_history(
    shell: Shell,
    client: Client,
    related_sessions: Sequence[Session],
    tmp_path: Path,
    format: str,
    bash: str,
) -> None:
    ids = " ".join(s.id for s in related_sessions)
    line = f"%oc_export {tmp_path}/out {ids} --format {format}"
    result = shell.run(line).value
    assert (result.sessions, result.unchanged) == (3, 0)
    assert shell.run(line).value.written == 0
    frame = usage(client, "session", sessions=related_sessions)
    copied = "select count(*) from {messages} where duplicate_of is not null and cost is not null"
    assert query(tmp_path / "out", copied, format) == [(2,)]
    assert cost(tmp_path / "out", format=format) == frame.attrs["total"]["cost"]
    assert query(
        tmp_path / "out",
        "select tool, status, json_extract_string(input, '$.command') from {tools} "
        f"where tool = '{bash}' and duplicate_of is null",
        format,
    ) == [(bash, "completed", "echo hi")]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("", "required: path"),
        ("/dev/null/out --all", "Can't write /dev/null/out"),
        ("out", "There is no current session"),
        ("out --all ses_1", "Use only one of: sessions, --all, --everywhere"),
    ],
)
def test_impossible_arguments_get_a_short_error(shell: Shell, line: str, text: str) -> None:
    failed = shell.fails(f"%oc_export {line}")
    assert isinstance(failed.error, UsageError)
    assert text in failed.text
    assert is_short_error(failed)
