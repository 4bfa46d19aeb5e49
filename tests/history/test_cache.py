"""The history cache: unchanged sessions are not read again, all others are."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import sqlite3
import stat
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_server import FakeServer
from support.histories import T0, answer, make_sessions, prompt, serving, tool, usage, wire_session

from opencode_magics import history
from opencode_magics.client.client import Client
from opencode_magics.core.model import Session
from opencode_magics.history import Cache
from opencode_magics.history.cache import Rows
from opencode_magics.history.frames import FRAME_KINDS
from opencode_magics.history.packing import pack, unpack


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache" / "history.db")


def sessions_read(fake: FakeServer) -> list[str]:
    """Return the sessions whose messages were requested since the last call."""
    sessions = [s.path.split("/")[2] for s in fake.seen if s.path.endswith("/message")]
    fake.seen.clear()
    return sorted(sessions)


def load(client: Client, cache: Cache, **options: Any) -> pd.DataFrame:
    return history.messages(client, cache=cache, progress=False, **options)


@pytest.mark.parametrize("kind", ["messages", "steps", "parts", "tools"])
def test_a_second_load_reads_nothing_and_returns_the_same_frame(cache: Cache, kind: str) -> None:
    sessions, messages = make_sessions(5)
    for answers in messages.values():
        answers[0]["parts"] = [tool(T0, input={"a": ["é", None, 1.5]}), {"id": "x", "type": "odd"}]
    with serving(sessions, messages) as (client, fake):
        first = getattr(history, kind)(client, cache=cache)
        assert len(sessions_read(fake)) == 5
        second = getattr(history, kind)(client, cache=cache)
        assert sessions_read(fake) == []
    pd.testing.assert_frame_equal(first, second)
    assert first.attrs["warnings"] == []
    assert second.attrs["warnings"][0].startswith("5 sessions from the cache, read at ")


@pytest.mark.parametrize(
    "change",
    [
        {"time": {"updated": T0 + 99_999}},
        {"cost": 0.02},
        {"tokens": {"input": 1}},
        {"title": "another"},
        {"revert": {"messageID": "m1"}},
        {"time": {"archived": T0}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_only_sessions_whose_list_entry_changed_are_read_again(
    cache: Cache, change: dict[str, Any]
) -> None:
    sessions, messages = make_sessions(5)
    with serving(sessions, messages) as (client, fake):
        load(client, cache)
        sessions_read(fake)
        time_ = sessions[2]["time"] | change.pop("time", {})
        fake.routes["GET /session"][2] = sessions[2] | change | {"time": time_}
        load(client, cache)
        assert sessions_read(fake) == ["ses_02"]


def test_refresh_reads_everything_again(cache: Cache) -> None:
    sessions, messages = make_sessions(3)
    with serving(sessions, messages) as (client, fake):
        load(client, cache)
        sessions_read(fake)
        messages["ses_01"].append(answer("new", "ses_01", T0 + 5))  # as a shell run: unseen
        assert len(load(client, cache)) == 3
        assert len(load(client, cache, refresh=True)) == 4
        assert len(sessions_read(fake)) == 3
        assert len(load(client, cache)) == 4


RUNNING = answer("m1", "ses_A", T0, parts=[tool(T0, status="running")])
UNFINISHED = {
    "a streaming answer": [answer("m1", "ses_A", T0, time={"created": T0})],
    "an unanswered prompt": [answer("m1", "ses_A", T0), prompt("u1", "ses_A", T0 + 1)],
    "another step to come": [answer("m1", "ses_A", T0, finish="tool-calls")],
    "a running tool": [RUNNING],
}


@pytest.mark.parametrize("messages", UNFINISHED.values(), ids=UNFINISHED)
def test_unfinished_sessions_are_never_cached(cache: Cache, messages: list[Any]) -> None:
    with serving([wire_session("ses_A")], {"ses_A": messages}) as (client, fake):
        for _ in range(2):
            load(client, cache)
            assert sessions_read(fake) == ["ses_A"]


def test_a_rejected_turn_is_finished(cache: Cache) -> None:
    error = "The user rejected permission to use this specific tool call."
    parts = [tool(T0, status="error", error=error)]
    messages = {"ses_A": [answer("m1", "ses_A", T0, finish="tool-calls", parts=parts)]}
    with serving([wire_session("ses_A")], messages) as (client, fake):
        load(client, cache)
        load(client, cache)
        assert sessions_read(fake) == ["ses_A"]


def test_warnings_about_unreadable_fields_are_cached(cache: Cache) -> None:
    messages = {"ses_A": [answer("m1", "ses_A", T0, cost="free")]}
    with serving([wire_session("ses_A")], messages) as (client, _):
        first, second = load(client, cache), load(client, cache)
    assert first.attrs["warnings"] == ["cost could not be read in 1 place; the values are NA."]
    assert second.attrs["warnings"][0] == first.attrs["warnings"][0]


# -- the file --------------------------------------------------------------------------------------


def test_only_the_owner_can_read_the_cache(cache: Cache) -> None:
    sessions, messages = make_sessions(2)
    with serving(sessions, messages) as (client, _):
        load(client, cache)
    assert stat.S_IMODE(cache.path.parent.stat().st_mode) == 0o700
    for file in cache.path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "content", [b"not a database at all" * 200, b"SQLite format 3\x00" + b"x" * 4096]
)
def test_a_damaged_file_is_deleted_and_recreated(
    cache: Cache, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cache.path.parent.mkdir()
    cache.path.write_bytes(content)
    sessions, messages = make_sessions(2)
    with serving(sessions, messages) as (client, fake), caplog.at_level(logging.WARNING):
        assert len(load(client, cache)) == 2
        assert "Deleting the damaged history cache" in caplog.text
        load(client, cache)
        sessions_read(fake)
        load(client, cache)
        assert sessions_read(fake) == []


def test_unreadable_rows_are_read_from_the_server(cache: Cache) -> None:
    sessions, messages = make_sessions(2)
    with serving(sessions, messages) as (client, _):
        load(client, cache)
        with sqlite3.connect(cache.path) as db:
            db.execute("update rows set plan = '{' || plan")
        db.close()
        assert len(load(client, cache)) == 2


@pytest.mark.parametrize(
    "damage",
    [
        "update rows set plan = '[1, 5]'",
        "update rows set plan = '5'",
        "update rows set plan = '[1, {\"session\": 5}]'",
        'update rows set plan = \'[1, {"session": {"lengths": 5}}]\'',
        'update rows set plan = \'[1, {"session": ["a", "b"]}]\'',
        "update rows set numbers = x''",
        "update rows set numbers = null",
        "update rows set words = 5",
        "update rows set unread = '7'",
        "alter table rows rename column plan to plans",
        "drop table rows",
    ],
)
def test_damaged_rows_are_repaired_by_the_next_load(cache: Cache, damage: str) -> None:
    sessions, messages = make_sessions(2)
    for answers in messages.values():  # with different numbers, which are packed one by one
        answers += [answer("m", answers[0]["info"]["sessionID"], T0 + 7, cost=0.5)]
    with serving(sessions, messages) as (client, fake):
        undamaged = load(client, cache)
        with sqlite3.connect(cache.path) as db:
            db.execute(damage)
        db.close()
        for _ in range(2):
            pd.testing.assert_frame_equal(load(client, cache), undamaged)
        sessions_read(fake)
        load(client, cache)
        assert sessions_read(fake) == []


def test_a_full_disk_damages_nothing(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    sessions, messages = make_sessions(2)
    with serving(sessions, messages) as (client, _), caplog.at_level(logging.WARNING):
        load(client, cache)
        cache.flush()
        content = cache.path.read_bytes()

        def fill(db: sqlite3.Connection) -> None:
            db.execute("pragma max_page_count = 1")
            db.execute(
                "insert into rows (kind, session, words) values ('x', 'y', hex(zeroblob(1e5)))"
            )

        cache._use(fill)
        assert "full" in caplog.text
        assert "Deleting" not in caplog.text
        assert cache.path.read_bytes() == content


def test_rows_larger_than_the_limit_are_not_cached(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "h.db", limit=3000)
    cache.put("messages", Session("small"), Rows({"text": ["x"]}))
    cache.put("messages", Session("large"), Rows({"text": ["x" * 4000, "y"]}))
    cache.flush()
    assert [*cache.get("messages", [Session("small"), Session("large")])] == ["small"]


def test_calls_with_the_same_input_do_not_share_it(cache: Cache) -> None:
    parts = [
        tool(T0, input={"a": 1}),
        tool(T0 + 1, input={"a": True}),
        tool(T0 + 2, input={"a": 1}),
    ]
    with serving([wire_session("ses_A")], {"ses_A": [answer("m", "ses_A", T0, parts=parts)]}) as (
        client,
        _,
    ):
        history.tools(client, cache=cache)
        inputs = history.tools(client, cache=cache)["input"]
    assert [repr(i) for i in inputs] == ["{'a': 1}", "{'a': True}", "{'a': 1}"]
    assert inputs[0] is not inputs[2]


def test_a_session_listed_twice_counts_once(cache: Cache) -> None:
    session = wire_session("ses_A", cost=0.01)
    with serving([session, session], {"ses_A": [answer("m", "ses_A", T0)]}) as (client, _):
        for _ in range(2):
            assert len(load(client, cache)) == 1
        assert [*usage(client, "session")["cost"]] == [0.01]


def test_a_file_of_another_version_is_emptied(cache: Cache) -> None:
    sessions, messages = make_sessions(2)
    with serving(sessions, messages) as (client, fake):
        load(client, cache)
        with sqlite3.connect(cache.path) as db:
            db.execute("pragma user_version = 99")
        db.close()
        sessions_read(fake)
        load(client, cache)
        assert len(sessions_read(fake)) == 2


def test_an_unwritable_cache_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    sessions, messages = make_sessions(2)
    with serving(sessions, messages) as (client, _), caplog.at_level(logging.WARNING):
        assert len(load(client, Cache(tmp_path / "file" / "history.db"))) == 2
    assert "was not used" in caplog.text


def test_a_locked_file_is_skipped(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opencode_magics.history.cache._BUSY", 0.05)
    sessions, messages = make_sessions(2)
    with serving(sessions, messages) as (client, fake):
        load(client, cache)
        db = sqlite3.connect(cache.path)
        db.execute("begin exclusive")
        fake.routes["GET /session"][0] = sessions[0] | {"title": "changed"}
        assert len(load(client, cache)) == 2
        db.rollback()
        db.close()
        sessions_read(fake)
        load(client, cache)
        assert sessions_read(fake) == ["ses_00"]


def test_the_oldest_rows_over_the_limit_are_deleted(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "h.db", limit=3000)
    for n in range(10):
        rows = Rows({"text": ["x" * 900, ""]}, read_at=float(n))
        cache.put("messages", Session(f"s{n}"), rows)
        cache.flush()
    rows_by_session = cache.get("messages", [Session(f"s{n}") for n in range(10)])
    assert sorted(rows_by_session) == ["s7", "s8", "s9"]


def write_rows(path: Path, first: int) -> None:
    cache = Cache(path)
    for n in range(first, first + 60):
        cache.put("messages", Session(f"s{n}"), Rows({"session": [f"s{n}"] * 50}))
        cache.flush()


def test_several_kernels_can_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=write_rows, args=(path, first)) for first in (0, 30, 60)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [w.exitcode for w in writers] == [0, 0, 0]
    cached = Cache(path).get("messages", [Session(f"s{n}") for n in range(120)])
    assert len(cached) == 120
    assert cached["s5"].lists == {"session": ["s5"] * 50}
    assert cached["s5"].read_at <= time.time()


def test_usage_uses_the_cache_too(cache: Cache) -> None:
    sessions, messages = make_sessions(4)
    with serving(sessions, messages) as (client, fake):
        first = usage(client, "model", cache=cache)
        sessions_read(fake)
        second = usage(client, ["agent", "day"], cache=cache)
        assert sessions_read(fake) == []
    assert first.attrs["total"] == second.attrs["total"]


@given(st.data())
def test_unpacked_columns_equal_packed_columns(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(FRAME_KINDS)))
    columns = FRAME_KINDS[kind].columns
    rows = data.draw(st.integers(0, 6))
    values = {
        "string": st.text(max_size=5) | st.sampled_from(["\x1e", "\x1f", "a\x1fb"]),
        "category": st.text(max_size=3),
        "Int64": st.integers(-(2**64), 2**64),
        "datetime64[ms, UTC]": st.integers(0, 253_402_300_799_999),
        "Float64": st.floats(allow_nan=False, allow_infinity=False),
        "boolean": st.booleans(),
        "object": st.dictionaries(st.text(max_size=2), st.integers() | st.none(), max_size=2),
    }
    lists = {
        name: data.draw(st.lists(values[c.dtype] | st.none(), min_size=rows, max_size=rows))
        for name, c in columns.items()
    }
    assert unpack(pack(columns, lists)) == lists


@pytest.mark.parametrize("on", [True, False])
def test_the_garbage_collector_is_restored(tmp_path: Path, on: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        Cache(tmp_path / "history.db").get("messages", [])
        assert gc.isenabled() == on
    finally:
        (gc.enable if before else gc.disable)()
