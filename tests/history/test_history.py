"""Frames of histories and sums of usage: correct numbers, and NA for unknown values."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from support.fake_server import DISCONNECT, v2_routes
from support.histories import (
    T0,
    Wire,
    answer,
    forks,
    make_sessions,
    prompt,
    serving,
    tool,
    usage,
    wire_session,
)
from support.transport import CannedTransport

from opencode_magics import history, tables
from opencode_magics.client.client import Client
from opencode_magics.core.columns import empty_lists, frame_from_lists, lists_from_rows
from opencode_magics.core.model import PriceTier, Session, Usage
from opencode_magics.dialects.base import Reply, Request
from opencode_magics.dialects.v1 import V1
from opencode_magics.errors import ServerConnectionError, StreamError, UnknownNameError
from opencode_magics.history import Cache, frames
from opencode_magics.history.cache import Rows
from opencode_magics.history.load import LoadedRows, load
from opencode_magics.history.packing import pack, unpack
from opencode_magics.history.prices import Price, list_price
from opencode_magics.history.sums import UsageEntry, exact_sum, sum_of
from opencode_magics.history.usage import USAGE
from opencode_magics.prompts import mapping

CASES = Path(__file__).parents[1] / "data" / "cases"
TOKENS = ["input", "output", "reasoning", "cache_read", "cache_write"]


def case(name: str) -> Any:
    return json.loads((CASES / name).read_text(encoding="utf-8"))


def all_messages(messages: Sequence[Any], **session: Any) -> pd.DataFrame:
    """Return the messages frame of one session."""
    with serving([wire_session("ses_A", **session)], {"ses_A": messages}) as (client, _):
        return history.messages(client, cache=False)


# -- the dtypes of every frame ---------------------------------------------------------------------

ONE = [answer("m1", "ses_A", T0, parts=[{"id": "p", "type": "text", "text": "hi"}])]


@pytest.mark.parametrize("kind", ["messages", "steps", "parts", "tools"])
def test_columns_and_dtypes_do_not_depend_on_the_data(kind: str) -> None:
    shapes = []
    for messages in ([], ONE, case("messages_v1_usage.json"), [None, {}, {"info": {"id": 5}}]):
        with serving([wire_session("ses_A")], {"ses_A": messages}) as (client, _):
            frame = getattr(history, kind)(client, cache=False)
        shapes.append([(name, getattr(d, "name", d)) for name, d in frame.dtypes.items()])
        wanted = {n: c.dtype for n, c in frames.FRAME_KINDS[kind].columns.items() if n != "key"}
        assert dict(shapes[-1]) == wanted
        for name, column in frame.items():
            if wanted[name] == "category":
                assert str(column.cat.categories.dtype).startswith("str")
    assert len({tuple(shape) for shape in shapes}) == 1


def test_an_empty_sessions_frame_has_all_columns() -> None:
    with serving([], {}) as (client, _):
        frame = history.sessions(client)
    assert {n: d.name for n, d in frame.dtypes.items()} == {
        n: c.dtype for n, c in frames.SESSIONS.items()
    }


def test_help_lists_every_column() -> None:
    for kind, table in frames.FRAME_KINDS.items():
        doc = getattr(history, kind).__doc__
        for name, column in table.columns.items():
            assert (f"{name} ({column.dtype}): {column.about}" in doc) == (name != "key")


FUNCTIONS = [name for name in history.__all__ if inspect.isfunction(getattr(history, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_says_what_functions_return(name: str) -> None:
    assert "\n    Returns:\n" in getattr(history, name).__doc__


def test_the_page_of_columns_has_every_column() -> None:
    page = (Path(__file__).parents[2] / "notebooks" / "columns.md").read_text(encoding="utf-8")
    declared = {"sessions": frames.SESSIONS, "usage": USAGE}
    declared |= {kind: table.columns for kind, table in frames.FRAME_KINDS.items()}
    declared |= {f"`{name}`": columns for name, columns in tables.FRAMES.items()}
    declared |= {"`%%oc_map`": mapping.COLUMNS}
    for kind, columns in declared.items():
        section = page.partition(f"\n## {kind}\n")[2].partition("\n## ")[0]
        for name, column in columns.items():
            if name != "key":
                assert f"| `{name}` | {column.dtype} | {column.about} |" in section


# -- tokens and cost -------------------------------------------------------------------------------


def test_messages_have_their_tokens_and_cost() -> None:
    """Cases G2-03, G2-04, G2-05, G2-06, G2-09, G2-10, G2-19, G2-21."""
    expected = case("messages_v1_usage.expected.json")
    frame = all_messages(case("messages_v1_usage.json")).set_index("message")
    answers = frame[frame["role"] == "assistant"]
    assert len(answers) == expected["usage_rows"]
    for message, tokens in expected[
        "per_message_tokens[input,output,reasoning,cache_read,cache_write]"
    ].items():
        assert [None if pd.isna(v) else v for v in frame.loc[message, TOKENS]] == tokens
    assert frame.loc["m1", "total"] == expected["m1_total"]
    assert frame.loc["m2", "total"] == expected["m2_total"]
    assert pd.isna(frame.loc["m5", "total"])
    assert frame.loc["m1", "steps"] == 2
    assert frame.loc["m2", "context"] == 375 + 15856
    assert math.isclose(exact_sum(frame["cost"].dropna()), expected["cost_sum"], abs_tol=1e-12)
    assert frame.loc["m8", "cost"] == 0.0000041
    assert frame.loc["m4", "cost"] == 0.0
    unknown = answers[answers["cost"].isna()]
    assert [*unknown.index] == ["m3", "m5", "m6"]
    assert [*unknown["outcome"]] == ["aborted", "interrupted", "unfinished"]
    assert pd.isna(frame.loc["m6", "completed"])
    assert pd.isna(frame.loc["m6", "reasoning"])


def test_the_steps_of_a_message_have_their_own_tokens() -> None:
    messages = case("messages_v1_usage.json")
    with serving([wire_session("ses_A")], {"ses_A": messages}) as (client, _):
        steps = history.steps(client, cache=False).set_index(["message", "step"])
    assert [*steps.loc[("m1", 0), TOKENS]] == [1200, 300, 60, 0, 11000]
    assert [*steps.loc[("m1", 1), TOKENS]] == [900, 150, 40, 12000, 0]
    assert steps.loc[("m1", 0), "cost"] == 0.02
    assert steps.loc[("m2", 0), "total"] == 16423


def test_large_counts_are_exact() -> None:
    tokens = {"input": 9007199254740993, "output": 1, "reasoning": 0, "cache": {}}
    frame = all_messages(
        [answer("m1", "ses_A", T0, tokens=tokens), answer("m2", "ses_A", T0, None)]
    )
    assert frame.loc[0, "input"] == 9007199254740993


def test_unreadable_values_are_na_and_counted() -> None:
    bad: list[Any] = [
        answer("m1", "ses_A", T0, tokens={"input": "12", "output": -1, "cache": {"read": 1e30}}),
        answer("m2", "ses_A", T0, cost="free"),
        answer("m3", "ses_A", T0, cost=-5),
        answer("m4", "ses_A", T0, time={"created": T0, "completed": T0 - 5000}),
        answer("m5", "ses_A", T0, time={"created": 10**20}),
        answer("m6", "ses_A", T0, role="oracle", agent=7, parts=[{"type": "hologram", "id": "p"}]),
        answer("m7", "ses_A", T0, parts=[{"type": "tool", "id": "p"}, "not a part", None]),
        answer("m8", "ses_A", T0, tokens=[1, 2]),
        {"info": {"id": "m9", "role": "user"}},
        {"info": None, "parts": None},
        "not a message",
    ]
    frame = all_messages(bad)
    assert len(frame) == len(bad)
    first = frame.iloc[0]
    assert pd.isna(first["input"])
    assert pd.isna(first["output"])
    assert pd.isna(first["cache_read"])
    assert pd.isna(frame.loc[1, "cost"])
    assert pd.isna(frame.loc[2, "cost"])
    assert pd.isna(frame.loc[3, "duration"])
    assert pd.isna(frame.loc[4, "created"])
    assert frame.loc[5, "role"] == "oracle"
    assert frame.loc[6, "parts"] == 3
    assert pd.isna(frame.loc[7, "input"])
    assert frame.loc[8, "parts"] == 0
    assert frame["message"].isna().sum() == 2
    warnings = "\n".join(frame.attrs["warnings"])
    for name in ("tokens.input", "tokens.output", "tokens.cache.read", "cost", "role", "agent"):
        assert f"{name} could not be read" in warnings
    assert "cost could not be read in 2 places; the values are NA." in warnings
    assert "part could not be read in 3 places; the values are NA." in warnings


ODD: list[Any] = [
    *(None, True, -1, 0.5, 2**63 - 1, -(2**63), 10**400, 1e308, math.nan),
    *("", "12", "\x00", "\x1f\x1e", [], [None], {}, {"a": {"b": 1}}),
]
MESSAGES: list[Wire] = [
    {
        "info": {
            **{"id": "m0", "sessionID": "ses_A", "role": "user", "agent": "build"},
            "time": {"created": T0},
            "model": {"providerID": "acme", "modelID": "m-1", "variant": "high"},
            "summary": {"diffs": [{"file": "a", "additions": 1, "deletions": 2, "patch": "p"}]},
        },
        "parts": [
            {"id": "p0", "type": "text", "text": "hi", "synthetic": False},
            {"id": "p1", "type": "file", "mime": "text/plain", "filename": "x", "url": "file:///x"},
        ],
    },
    {
        "info": {
            **{"id": "m1", "sessionID": "ses_A", "role": "assistant", "parentID": "m0"},
            **{"providerID": "acme", "modelID": "m-1", "variant": "high", "finish": "stop"},
            **{"agent": "build", "cost": 0.01, "summary": True},
            "tokens": {"input": 1, "output": 2, "reasoning": 0, "cache": {"read": 0, "write": 0}},
            "time": {"created": T0, "completed": T0 + 1000},
            "error": {"name": "APIError", "data": {"message": "m", "statusCode": 500}},
        },
        "parts": [
            {"id": "p2", "type": "step-start"},
            {"id": "p3", "type": "reasoning", "text": "hm", "time": {"start": T0, "end": T0 + 9}},
            {
                **{"id": "p4", "type": "tool", "tool": "bash", "callID": "c1"},
                "state": {
                    **{"status": "completed", "input": {"command": "ls"}, "output": "x"},
                    "title": "ls",
                    "metadata": {
                        "exit": -1,
                        "sessionId": "ses_B",
                        "filediff": {"file": "a.py", "additions": 1, "deletions": 2, "patch": ""},
                    },
                    "time": {"start": T0, "end": T0 + 5},
                },
            },
            {"id": "p5", "type": "compaction", "auto": True},
            *(
                {
                    **{"id": f"p{n}", "type": "step-finish", "reason": "stop", "cost": 0.01},
                    "tokens": {"input": 1, "output": 2, "reasoning": 0, "cache": {"read": 0}},
                }
                for n in (6, 7)
            ),
        ],
    },
]


REPLY = Reply(Request("GET", "/message"), 200, {}, json.dumps(MESSAGES).encode())


def paths(value: Any, parents: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a wire value."""
    if not isinstance(value, dict | list):
        return
    for name, child in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*parents, name)
        yield from paths(child, (*parents, name))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a copy with another value at a path."""
    if not path:
        return new
    name, *rest = path
    copy = list(value) if isinstance(value, list) else dict(value)
    copy[name] = replaced(value[name], tuple(rest), new)
    return copy


@pytest.mark.parametrize("kind", ["messages", "steps", "parts", "tools"])
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: repr(odd)[:20])
def test_an_odd_value_anywhere_keeps_the_frames_dtypes(kind: str, odd: Any, thorough: bool) -> None:
    columns, rows = frames.FRAME_KINDS[kind]
    for path in [*paths(MESSAGES)][:: 1 if thorough else 5]:
        wire = json.dumps(replaced(MESSAGES, path, odd)).encode()
        reply = Reply(Request("GET", "/message"), 200, {}, wire)
        try:
            messages = V1().readable_messages(Session("ses_A"), [reply])
        except StreamError:
            assert not isinstance(odd, dict | list)
            continue
        lists = lists_from_rows(columns, rows(messages))
        # The cache changes nothing.
        assert unpack(pack(columns, lists)) == lists
        assert {n: c.dtype for n, c in columns.items()} == {
            n: getattr(d, "name", d) for n, d in frame_from_lists(columns, lists).dtypes.items()
        }


def test_absurd_sessions_and_prices_are_unknown() -> None:
    bad = {"input": 10**400, "output": "2", "cache": {"read": True}}
    session = wire_session("ses_A", cost=1e300, tokens=bad, model={"providerID": [], "id": {}})
    session["time"] = {"created": "now", "updated": -1, "archived": 10**400}
    prices = {"input": "3", "output": -1, "cache": [], "tiers": [{"tier": {"size": 9}, "cache": 5}]}
    providers = {"providers": [{"id": "acme", "models": {"m-1": {"cost": prices, "limit": 5}}}]}
    with serving([session], {"ses_A": ONE}, providers=providers) as (client, _):
        (row,) = history.sessions(client).to_dict("records")
        (by_model,) = usage(client, "model").to_dict("records")
        models = tables.models(client.models())
    for name in ("cost", *TOKENS, "created", "updated", "archived", "provider", "model"):
        assert pd.isna(row[name])
    assert by_model["gap_reason"] == "unknown model (1)"
    assert models.loc[0, ["price_input", "price_output", "context"]].isna().all()


def test_counts_that_overflow_are_unknown() -> None:
    largest = {"input": 2**63 - 1, "output": 2**63 - 1, "reasoning": 0, "cache": {}}
    answers = [answer(f"m{n}", "ses_A", T0, tokens=largest) for n in range(2)]
    with serving([wire_session("ses_A")], {"ses_A": answers}) as (client, _):
        assert history.messages(client, cache=False)["input"].sum() != 0
        assert usage(client, "model")["input"].isna().all()


# -- odd arguments and histories -------------------------------------------------------------------


@pytest.mark.parametrize("by", ["session", "root", "day", "model", "tool", ["agent", "day"]])
def test_empty_usage_has_the_same_columns(by: Any) -> None:
    with serving([wire_session("ses_A")], {"ses_A": ONE}) as (client, _):
        some = usage(client, by)
    with serving([], {}) as (client, _):
        none = usage(client, by)
    assert [*none.columns] == [*some.columns]
    assert [*none.dtypes] == [*some.dtypes]


def test_the_same_model_of_two_providers_has_two_rows() -> None:
    answers = [answer(f"m{n}", "ses_A", T0 + n, 0.1 * n, providerID=f"p{n}") for n in (1, 2)]
    with serving([wire_session("ses_A")], {"ses_A": answers}) as (client, _):
        frame = usage(client, ["day", "model"])
        alone = usage(client, "provider")
    assert [*frame.columns[:3]] == ["day", "provider", "model"]
    assert frame[["provider", "model", "cost"]].values.tolist() == [
        ["p2", "m-1", 0.2],
        ["p1", "m-1", 0.1],
    ]
    assert "model" not in alone


def test_a_shell_run_is_not_a_model_call() -> None:
    zeros = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
    shell_run = {"cost": 0, "tokens": zeros, "finish": None, "parts": [tool(T0)]}
    answers = [answer("m1", "ses_A", T0, **shell_run), answer("m2", "ses_A", T0 + 5000)]
    with serving([wire_session("ses_A")], {"ses_A": answers}) as (client, _):
        messages = history.messages(client, cache=False)
        steps = history.steps(client, cache=False)
        spans = history.spans(client, "ses_A")
        (row,) = usage(client, "model").to_dict("records")
    assert [*messages["outcome"]] == ["shell", "succeeded"]
    assert [*steps["message"]] == ["m2"]
    assert [*spans["kind"]] == ["tool", "step"]
    assert (row["calls"], row["unknown"]) == (1, 0)
    assert pd.isna(row["gap_reason"]) or "usage unknown" not in row["gap_reason"]


def test_steps_mark_compactions() -> None:
    answers = [answer("m1", "ses_A", T0, summary=True), answer("m2", "ses_A", T0 + 5)]
    with serving([wire_session("ses_A")], {"ses_A": answers}) as (client, _):
        assert [*history.steps(client, cache=False)["compaction"]] == [True, False]


def test_a_sum_of_zero_is_not_negative() -> None:
    assert math.copysign(1, exact_sum([0.1, 0.2, -0.3 - 1e-13])) == 1
    assert math.copysign(1, exact_sum([-0.0])) == 1


def test_a_fork_without_its_original_gets_a_warning() -> None:
    fork = wire_session("ses_F", time={"created": T0 + 50})
    rows = [prompt("u", "ses_F", T0), answer("m", "ses_F", T0 + 1), answer("n", "ses_F", T0 + 60)]
    undated = answer("x", "ses_F", T0, time={"created": None})
    with serving([fork], {"ses_F": [*rows, undated]}) as (client, _):
        for load in (history.messages, history.parts):
            (warning,) = load(client, "ses_F", cache=False).attrs["warnings"]
            assert "older than the session" in warning
        assert warning.startswith("1 message ")  # the one that has a part
        warnings = [w for w in usage(client, "model").attrs["warnings"] if "original" in w]
    assert warnings[0].startswith("Counted 1 copied call whose original is deleted")


def test_a_fork_that_reports_less_than_its_copies_counts_as_0() -> None:
    sessions = [
        wire_session("ses_A", title="work", cost=0.02, tokens={"input": 20, "output": 4}),
        wire_session(
            "ses_F",
            title="work (fork #1)",
            time={"created": T0 + 50},
            cost=0.01,
            tokens={"input": 5, "output": 4},
        ),
    ]
    messages = {
        s: [answer("m1" + s, s, T0), answer("m2" + s, s, T0 + 2)] for s in ("ses_A", "ses_F")
    }
    with serving(sessions, messages) as (client, _):
        frame = usage(client).set_index("session")
    assert [*frame.loc["ses_F", ["cost", "input", "output"]]] == [0.0, 0, 0]
    assert any("reports less usage" in w for w in frame.attrs["warnings"])


@pytest.mark.parametrize(
    "prices",
    [
        *([], 5, "acme", {5: {}}, {"a/b": 5}, {"acme": {"input": 3}}, {"/m": {"input": 3}}),
        *({"acme/": {}}, {"a/b": {"in": 3}}, {"a/b": {1: 2}}, {"a/b": {"input": "3"}}),
        *({"a/b": {"input": n}} for n in (-3, math.nan, math.inf, True, [3])),
        {"a/b": pd.Series({"input": 3.0})},
    ],
    ids=repr,
)
def test_invalid_prices_are_refused(prices: Any) -> None:
    with serving([], {}) as (client, _), pytest.raises(ValueError, match="prices must be"):
        usage(client, "model", prices=prices)


def test_prices_can_be_any_type_of_number() -> None:
    prices = {"acme/m-1": {"input": Decimal("3"), "output": 1, "cache_read": None}}
    with serving([wire_session("ses_A")], {"ses_A": ONE}) as (client, _):
        assert usage(client, "model", prices=prices).loc[0, "cost_listed"] == 3.2e-05


@pytest.mark.parametrize("since", ["9" * 400 + "d", "", "now", "-7d", b"7d", 7, pd.NaT])
def test_invalid_times_are_refused(since: Any) -> None:
    with serving([], {}) as (client, _), pytest.raises(ValueError, match="is not a time"):
        usage(client, since=since)


def test_since_and_until_can_be_dates() -> None:
    answers = [answer("m", "ses_A", T0), answer("n", "ses_A", T0 + 86_400_000)]
    day = datetime.fromtimestamp(T0 / 1000, UTC).date()
    with serving([wire_session("ses_A")], {"ses_A": answers}) as (client, _):
        frame = usage(client, "day", since=day, until=day + timedelta(days=1))
    assert [*frame["calls"]] == [1]


def test_a_period_that_ends_before_it_starts_is_refused() -> None:
    with serving([], {}) as (client, _), pytest.raises(ValueError, match="not later"):
        usage(client, since="1d", until="2d")


@pytest.mark.parametrize("tz", ["Mars/X", "", "../x", "UTC+3", 5, UTC])
def test_invalid_time_zones_are_refused(tz: Any) -> None:
    with serving([], {}) as (client, _), pytest.raises(UnknownNameError, match="Unknown time zone"):
        usage(client, tz=tz)


def test_an_unknown_local_time_zone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC+3")
    with (
        serving([], {}) as (client, _),
        pytest.raises(UnknownNameError, match="this machine is unknown"),
    ):
        usage(client, tz=None)


@pytest.mark.parametrize("by", [None, 5, "Day", ["model", 5]])
def test_invalid_keys_are_refused(by: Any) -> None:
    with (
        serving([], {}) as (client, _),
        pytest.raises(UnknownNameError, match="be grouped by"),
    ):
        usage(client, by)


def some_history(random: Random) -> tuple[list[Wire], dict[str, list[Wire]], list[Wire]]:
    """Make sessions with forks and subagents, their messages, and the messages without copies."""
    sessions: list[Wire] = []
    messages: dict[str, list[Wire]] = {}
    originals: list[Wire] = []
    for number in range(random.randint(1, 8)):
        id, title, start, copied = (
            f"ses_{number}",
            f"work {number}",
            T0 + random.randint(0, 4 * DAY),
            [],
        )
        parent = random.choice([None, *(s["id"] for s in sessions)])
        if sessions and random.random() < 0.5:
            source = random.choice(sessions)
            copied = messages[source["id"]][: random.randint(0, 4)]
            title, parent = f"{source['title'].partition(' (')[0]} (fork #{number})", None
            times = [source["time"]["created"], *(m["info"]["time"]["created"] for m in copied)]
            start = max([start, *times]) + 1
        at, own = start, []
        for n in range(random.randint(0, 4)):
            at += random.choice([1, 60_000, DAY, 2 * DAY])
            own.append(answer(f"{id}_{n}", id, at, random.choice([0.01, 0.0000041, 0.3, 0.0])))
        copies = [m | {"info": m["info"] | {"id": f"{id}_c{n}"}} for n, m in enumerate(copied)]
        originals += own
        messages[id] = [*copies, *own]
        cost = math.fsum(m["info"]["cost"] for m in messages[id])
        time = {"created": start, "updated": at + 1000}
        sessions.append(wire_session(id, title=title, parentID=parent, cost=cost, time=time))
    return sessions, messages, originals


DAY = 86_400_000


@pytest.mark.parametrize("seed", range(12))
def test_the_cost_of_any_period_counts_each_message_once(seed: int) -> None:
    random = Random(seed)
    sessions, messages, originals = some_history(random)
    costs = [(m["info"]["time"]["created"], m["info"]["cost"]) for m in originals]
    limits = [at for at, _ in costs] + [t for s in sessions for t in s["time"].values()]
    since, until = sorted(random.choices(limits, k=2))
    until += 1
    expected = exact_sum(cost for at, cost in costs if since <= at < until)
    start, end = (datetime.fromtimestamp(t / 1000, UTC) for t in (since, until))
    with serving(sessions, messages) as (client, _):
        for by in ("session", "root", "total", "model", "day"):
            frame = usage(client, by, since=start, until=end, progress=False)
            assert (
                (frame.attrs["total"]["cost"] or 0) == exact_sum(frame["cost"].dropna()) == expected
            )


class Interrupted(list[Any]):
    """A column that is interrupted (Ctrl-C) when it is read."""

    def __iter__(self) -> Iterator[Any]:
        raise KeyboardInterrupt


@pytest.mark.parametrize("column", ["session", "created", "text", "key"])
def test_an_interrupt_leaves_no_half_added_session(column: str) -> None:
    columns, rows = frames.FRAME_KINDS["messages"]
    lists = lists_from_rows(columns, rows(V1().readable_messages(Session("ses_A"), [REPLY])))
    loaded = LoadedRows(empty_lists(columns))
    loaded.add(Session("ses_A"), Rows(lists))
    with pytest.raises(KeyboardInterrupt):
        loaded.add(Session("ses_B"), Rows(lists | {column: Interrupted(lists[column])}))
    loaded.trim()
    assert [*frame_from_lists(columns, loaded.lists)["session"]] == ["ses_A", "ses_A"]


def test_lone_surrogates_can_be_shown_and_saved(tmp_path: Path) -> None:
    text = json.dumps([answer("m1", "ses_A", T0, parts=[{"id": "p", "type": "text", "text": "x"}])])
    body = text.replace('"x"', '"bad \\ud800 half, good \\ud83d\\ude00"').encode()
    reply = (200, {"content-type": "application/json"}, body)
    with serving([wire_session("ses_A")], {"ses_A": reply}) as (client, _):
        frame = history.messages(client, cache=Cache(tmp_path / "h.db"))
        again = history.messages(client, cache=Cache(tmp_path / "h.db"))
    assert frame.loc[0, "text"] == "bad � half, good 😀" == again.loc[0, "text"]
    frame.to_csv(tmp_path / "out.csv", encoding="utf-8")
    assert "😀" in repr(frame["text"].tolist())


# -- speed -----------------------------------------------------------------------------------------


def text(start: int, end: int | None, words: str = "hi") -> Wire:
    return {"id": f"p{start}", "type": "text", "text": words, "time": {"start": start, "end": end}}


SLOW = {"time": {"created": T0, "completed": T0 + 9000}}


@pytest.mark.parametrize(
    ("parts", "first", "rate", "note"),
    [
        ([text(T0 + 500, T0 + 2500)], 0.5, 1.0, None),
        ([text(T0 + 500, T0 + 1500), tool(T0 + 4500)], 0.5, 0.5, None),
        ([tool(T0 + 4500)], None, None, "no text"),
        ([text(T0 + 500, T0 + 510)], 0.5, None, "too short"),
        ([text(T0 - 500, T0 + 1500)], None, 1.0, None),
        ([], None, None, "no text"),
    ],
)
def test_speed_is_computed_or_the_reason_given(
    parts: list[Wire], first: float | None, rate: float | None, note: str | None
) -> None:
    row = all_messages([answer("m1", "ses_A", T0, parts=parts, **SLOW)]).iloc[0]
    assert (None if pd.isna(row["first_token"]) else row["first_token"]) == first
    assert (None if pd.isna(row["tokens_per_second"]) else row["tokens_per_second"]) == rate
    assert pd.isna(row["rate_note"]) if note is None else row["rate_note"].startswith(note)


def test_an_unfinished_message_has_no_speed() -> None:
    parts = [text(T0 + 500, None)]
    row = all_messages([answer("m1", "ses_A", T0, parts=parts, time={"created": T0})]).iloc[0]
    assert row["rate_note"] == "unfinished"
    assert pd.isna(row["tokens_per_second"])


# -- tools and parts -------------------------------------------------------------------------------


QUARTER = {"start": T0, "end": T0 + 250}


def test_tool_calls_are_rows_with_their_unchanged_input() -> None:
    arguments = {"command": "ls", "nested": [{"a": 1}]}
    parts = [
        tool(T0, input=arguments, output="x", metadata={"exit": 3}, time=QUARTER),
        tool(T0 + 1, status="error", error="No."),
        tool(T0 + 2, status="running"),
    ]
    with serving([wire_session("ses_A")], {"ses_A": [answer("m1", "ses_A", T0, parts=parts)]}) as (
        client,
        _,
    ):
        tools = history.tools(client, cache=False)
        all_parts = history.parts(client, cache=False)
    assert tools.loc[0, "input"] == arguments
    assert tools.loc[0, "exit"] == 3
    assert tools.loc[0, "duration"] == 0.25
    assert tools.loc[1, "error"] == "No."
    assert [*tools["status"]] == ["completed", "error", "running"]
    assert tools["waited"].isna().all()
    assert [*all_parts["text"]] == ["x", "No.", ""]


# -- sessions --------------------------------------------------------------------------------------


def session_tree() -> tuple[list[Wire], Wire]:
    """Sessions with subagents, one of them archived, and their expected costs."""
    tree = case("sessions_tree.json")
    sessions = [wire_session(**{"session": s.pop("id"), **s}) for s in tree["sessions"]]
    return sessions, tree["expected"]


def test_a_session_tree_has_roots_depths_and_sums_without_double_counting() -> None:
    """Case G2-02."""
    sessions, expected = session_tree()
    with serving(sessions, {}) as (client, _):
        listed = history.sessions(client).set_index("id")
        frame = usage(client).set_index("session")
    for session in ("ses_R", "ses_C1"):
        assert frame.loc[session, "cost"] == expected[session]["own"]
        assert frame.loc[session, "cost_inclusive"] == expected[session]["inclusive"]
    assert frame.attrs["total"]["cost"] == expected["grand_total_all_sessions"]
    assert exact_sum(frame["cost"]) == expected["grand_total_all_sessions"]
    assert frame.loc["ses_R", "subagents"] == 3
    assert [*listed.loc[["ses_R", "ses_C1", "ses_G"], "depth"]] == [0, 1, 2]
    assert {*listed.loc[["ses_R", "ses_C1", "ses_C2", "ses_G"], "root"]} == {"ses_R"}
    assert listed.loc[["ses_loop", "ses_orphan"], "depth"].isna().all()


def test_archived_sessions_count() -> None:
    """Archiving ses_C2 changes no sum. Case G2-16."""
    sums = []
    for archived in (True, False):
        sessions, expected = session_tree()
        (second,) = [s for s in sessions if s["id"] == "ses_C2"]
        if not archived:
            del second["time"]["archived"]
        with serving(sessions, {}) as (client, _):
            listed = history.sessions(client).set_index("id")
            frame = usage(client).set_index("session")
        assert pd.notna(listed.loc["ses_C2", "archived"]) == archived
        assert listed["archived"].notna().sum() == archived
        assert frame.loc["ses_C2", "cost"] == 0.5
        sums.append((exact_sum(frame["cost"]), frame.loc["ses_R", "cost_inclusive"]))
    assert sums == [(expected["grand_total_all_sessions"], expected["ses_R"]["inclusive"])] * 2


def test_usage_by_root_has_one_row_per_tree() -> None:
    sessions, _ = session_tree()
    with serving(sessions, {}) as (client, _):
        frame = usage(client, "root").set_index("root")
    assert frame.loc["ses_R", "cost"] == 6.75
    assert frame.loc["ses_R", "sessions"] == 4
    assert len(frame) == 3


# -- forks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["session", "root", "model", "day", "total", ["agent", "day"]])
def test_copied_messages_count_once(by: Any) -> None:
    """Case G2-01."""
    sessions, messages, expected = forks()
    with serving(sessions, messages) as (client, _):
        frame = usage(client, by)
        doubled = usage(client, by, keep_duplicates=True)
    assert exact_sum(frame["cost"].dropna()) == expected["billed_total"]
    assert frame.attrs["total"]["input"] == expected["input_tokens"]
    assert exact_sum(doubled["cost"].dropna()) == expected["naive_wrong_total"]
    assert frame.attrs["total"]["duplicates"] == 4
    assert doubled.attrs["total"]["duplicates"] == 0
    if by == "session":
        assert dict(zip(frame[by], frame["cost"], strict=True)) == expected["per_session_new"]


def test_copies_are_rows_marked_as_duplicates() -> None:
    sessions, messages, _ = forks()
    with serving(sessions, messages) as (client, _fake):
        frame = history.messages(client, cache=False)
        listed = history.forks(client, client.sessions(), cache=False).origins
    copies = frame[frame["duplicate_of"].notna()]
    assert len(frame) == sum(len(m) for m in messages.values())
    assert {*copies["session"]} == {"ses_F1", "ses_F2"}
    assert {*copies["duplicate_of"]} <= {"p1", "p2", "p3"}
    assert listed == {"ses_F1": "ses_P", "ses_F2": "ses_P"} == frame.attrs["forks"]


def test_equal_messages_at_the_same_time_are_not_copies() -> None:
    sessions = [wire_session("ses_A"), wire_session("ses_B")]
    messages = {s: [prompt(f"u{s}", s, T0), answer(f"m{s}", s, T0 + 1)] for s in ("ses_A", "ses_B")}
    with serving(sessions, messages) as (client, _):
        frame = history.messages(client, cache=False)
    assert frame["duplicate_of"].isna().all()


def test_usage_by_session_reads_only_forks_and_their_originals() -> None:
    sessions, messages, _ = forks()
    others = [wire_session(f"ses_{n}", cost=1.0) for n in range(5)]
    with serving([*sessions, *others], messages) as (client, fake):
        frame = usage(client)
    read = {s.path for s in fake.seen if s.path.endswith("/message")}
    assert read == {f"/session/{s}/message" for s in ("ses_P", "ses_F1", "ses_F2")}
    assert frame["turns"].isna().all()
    assert any("renamed fork" in warning for warning in frame.attrs["warnings"])


def test_copies_without_their_original_count_and_get_a_warning() -> None:
    sessions, messages, _ = forks()
    with serving(sessions[1:2], messages) as (client, _):
        frame = usage(client, "model")
    assert frame.attrs["total"]["cost"] == 0.45
    assert any("Counted 2 copied calls" in w for w in frame.attrs["warnings"])


# -- time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", ["America/New_York", "UTC", "Asia/Shanghai", "Pacific/Auckland"])
def test_days_are_local_to_the_time_zone(zone: str) -> None:
    """Case G2-08."""
    boundaries = case("messages_day_boundaries.json")
    first = min(m["info"]["time"]["created"] for m in boundaries["messages"])
    sessions = [wire_session("ses_A", time={"created": first})]
    with serving(sessions, {"ses_A": boundaries["messages"]}) as (client, _):
        frame = usage(client, "day", tz=zone)
    days = dict(zip(frame["day"].dt.strftime("%Y-%m-%d"), frame["calls"], strict=True))
    assert days == boundaries["expected_rows_per_day"][zone]
    assert frame.attrs["tz"] == zone


def test_weeks_start_on_monday_and_months_on_the_first() -> None:
    at = [1_793_502_000_000 + n * 86_400_000 for n in (0, 1, 2, 31)]  # Sunday, 1 November 2026
    messages = [answer(f"m{n}", "ses_A", t) for n, t in enumerate(at)]
    with serving([wire_session("ses_A", time={"created": at[0]})], {"ses_A": messages}) as (
        client,
        _,
    ):
        weeks, months = usage(client, "week"), usage(client, "month")
    assert [str(w.date()) for w in weeks["week"]] == ["2026-10-26", "2026-11-02", "2026-11-30"]
    assert [str(m.date()) for m in months["month"]] == ["2026-11-01", "2026-12-01"]
    assert [*weeks["calls"]] == [1, 2, 1]


def test_only_messages_in_the_period_count() -> None:
    """Case G2-07."""
    old, new = T0 - 41 * 86_400_000, T0
    sessions = [wire_session("ses_A", cost=0.30, time={"created": old, "updated": new + 2000})]
    messages = {"ses_A": [answer("m1", "ses_A", old, 0.29), answer("m2", "ses_A", new, 0.01)]}
    since = pd.Timestamp(new - 86_400_000, unit="ms", tz="UTC").to_pydatetime()
    with serving(sessions, messages) as (client, _):
        for by in ("session", "day", "model"):
            frame = usage(client, by, since=since)
            assert exact_sum(frame["cost"]) == 0.01, by
            assert exact_sum(usage(client, by, until=since)["cost"]) == 0.29, by
        assert exact_sum(usage(client, since="2020-01-01")["cost"]) == 0.30


def test_sessions_entirely_inside_or_outside_a_period_are_not_read() -> None:
    day = 86_400_000
    sessions = [
        wire_session("ses_in", cost=1.0, time={"created": T0, "updated": T0 + 5}),
        wire_session("ses_out", cost=2.0, time={"created": T0 - 9 * day, "updated": T0 - 8 * day}),
        wire_session("ses_x", cost=4.0, time={"created": T0 - 3 * day, "updated": T0}),
    ]
    messages = {"ses_x": [answer("m1", "ses_x", T0 - 3 * day, 1.5), answer("m2", "ses_x", T0, 2.5)]}
    with serving(sessions, messages) as (client, fake):
        since = pd.Timestamp(T0 - day, unit="ms", tz="UTC").to_pydatetime()
        frame = usage(client, since=since).set_index("session")
    assert {s.path for s in fake.seen if s.path.endswith("/message")} == {"/session/ses_x/message"}
    assert dict(frame["cost"]) == {"ses_in": 1.0, "ses_x": 2.5}


def test_errors_for_unknown_keys_and_zones_list_valid_ones() -> None:
    with serving([], {}) as (client, _):
        with pytest.raises(UnknownNameError, match="total, day, week, month, session"):
            usage(client, "colour")
        with pytest.raises(UnknownNameError, match="Europe/Berlin"):
            usage(client, tz="Mars/Base")
        with pytest.raises(ValueError, match="'yesterday' is not a time"):
            usage(client, since="yesterday")


# -- sums ------------------------------------------------------------------------------------------


def test_a_million_tiny_costs_add_up() -> None:
    """Case G2-19."""
    assert exact_sum([0.0000041] * 1_000_000) == 4.1
    entry = UsageEntry((), "s", Usage(cost=0.0000041), calls=1)
    assert sum_of((), [entry] * 1000).cost == 0.0041
    assert exact_sum([0.1, 0.2, -0.3]) == 0


def test_a_call_without_cost_or_price_is_not_metered() -> None:
    """Case G2-09."""
    m4 = next(m for m in case("messages_v1_usage.json") if m["info"]["id"] == "m4")
    with serving([wire_session("ses_A")], {"ses_A": [m4]}) as (client, _):
        frame = usage(client, "model")
        empty = usage(client, "total")
    assert frame.loc[0, "cost"] == 0.0
    assert frame.loc[0, "gap_reason"] == "not metered (1)"
    assert frame.loc[0, "cache_share"] == 0.0
    assert pd.isna(empty.loc[0, "cache_share"]) or empty.loc[0, "cache_share"] == 0.0


def test_calls_of_unknown_usage_are_counted() -> None:
    """Case G2-10."""
    messages = case("messages_v1_usage.json")
    with serving([wire_session("ses_A")], {"ses_A": messages}) as (client, _):
        frame = usage(client, ["session", "model"])
        by_model = usage(client, "model").set_index("model")
    assert frame.attrs["total"]["unknown"] == 3
    assert frame.attrs["total"]["calls"] == 8
    assert frame.attrs["total"]["cost"] == 0.0854041
    assert by_model.loc["(unknown)", "cost"] == 0.0031


def test_a_group_of_unknown_calls_costs_na_and_not_0() -> None:
    error = {"name": "MessageAbortedError", "data": {"message": "Aborted"}}
    aborted = answer("m1", "ses_A", T0, 0, error=error, tokens={"input": 0, "output": 0})
    with serving([wire_session("ses_A")], {"ses_A": [aborted]}) as (client, _):
        frame = usage(client, "model")
    assert pd.isna(frame.loc[0, "cost"])
    assert pd.isna(frame.loc[0, "input"])
    assert frame.loc[0, "unknown"] == 1
    assert frame.loc[0, "errors"] == 0


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (0.503, "These sessions cost $0.003 more than their messages"),
        (0.4, "The messages of these sessions cost $0.10 more than"),
    ],
)
def test_a_difference_between_sessions_and_messages_is_a_warning(cost: float, text: str) -> None:
    """Case G2-15."""
    messages = {"ses_A": [answer("m1", "ses_A", T0, 0.5)]}
    with serving([wire_session("ses_A", cost=cost)], messages) as (client, _):
        frame = usage(client, "model")
    assert frame.attrs["total"]["cost"] == 0.5
    assert any(text in warning for warning in frame.attrs["warnings"])


def test_turns_are_prompts_from_people() -> None:
    sessions = [wire_session("ses_A"), wire_session("ses_B", parentID="ses_A")]
    synthetic = prompt("u2", "ses_A", T0 + 5)
    synthetic["parts"][0]["synthetic"] = True
    messages = {
        "ses_A": [prompt("u1", "ses_A", T0), answer("m1", "ses_A", T0 + 1), synthetic],
        "ses_B": [prompt("u3", "ses_B", T0), answer("m2", "ses_B", T0 + 1)],
    }
    with serving(sessions, messages) as (client, _):
        frame = usage(client, "model")
    assert frame.loc[0, "turns"] == 1
    assert frame.loc[0, "calls"] == 2


def test_usage_by_tool_counts_calls_and_has_no_cost() -> None:
    parts = [tool(T0), tool(T0 + 1, status="error", error="No.")]
    messages = {"ses_A": [answer("m1", "ses_A", T0, parts=parts)]}
    with serving([wire_session("ses_A")], messages) as (client, _):
        frame = usage(client, ["tool", "model"])
    assert [*frame.loc[0, ["tool", "model", "calls", "errors"]]] == ["bash", "m-1", 2, 1]
    assert frame.loc[0, ["cost", "turns", *TOKENS]].isna().all()


# -- prices ----------------------------------------------------------------------------------------

CACHED = {"input": 1000, "output": 100, "reasoning": 50, "cache": {"read": 4000, "write": 0}}
FULL = {"input": 3.0, "output": 15.0, "cache_read": 0.3, "cache_write": 3.75}
BILLED = (1000 * 3 + 150 * 15 + 4000 * 0.3) / 1e6


@pytest.mark.parametrize(
    ("stored", "prices", "listed", "reason"),
    [
        (BILLED, FULL, BILLED, None),
        (BILLED, FULL | {"output": 30.0}, BILLED + 150 * 15 / 1e6, "price changed (1)"),
        (0, FULL, BILLED, "subscription (1)"),
        (0, {"input": 0, "output": 0}, 0.0, "zero-priced (1)"),
        (0.5, {"input": 0, "output": 0}, 0.0, "price changed (1)"),
        (BILLED, {"input": 3.0, "output": 15.0}, BILLED - 0.0012, "cache price missing (1)"),
        (None, FULL, BILLED, "stored cost unknown (1)"),
        (0.5, None, None, "unknown model (1)"),
        (0, None, None, "not metered (1)"),
    ],
)
def test_the_listed_cost_has_a_reason_if_it_differs_from_the_stored_one(
    stored: float | None, prices: Any, listed: float | None, reason: str | None
) -> None:
    messages = {"ses_A": [answer("m1", "ses_A", T0, stored, tokens=CACHED)]}
    with serving([wire_session("ses_A")], messages) as (client, _):
        price_list = {"acme/other": FULL} if prices is None else {"acme/m-1": prices}
        row = usage(client, "model", prices=price_list).iloc[0]
    assert (None if pd.isna(row["cost"]) else row["cost"]) == stored
    assert (None if pd.isna(row["gap_reason"]) else row["gap_reason"]) == reason
    if listed is None:
        assert pd.isna(row["cost_listed"])
    else:
        assert math.isclose(row["cost_listed"], listed, abs_tol=1e-9)


OVER_200K = "the server charged the over-200k price"


def priced(factor: int, **more: Any) -> Wire:
    """Prices as a server lists them."""
    price = {"input": factor, "output": 2 * factor, "cache": {"read": factor / 10, "write": 0}}
    return price | more


def tier(size: int, factor: int, kind: str = "context") -> Wire:
    return priced(factor, tier={"type": kind, "size": size})


@pytest.mark.parametrize(
    ("price", "prompt", "factor"),
    [
        (priced(1, tiers=[tier(5000, 2)]), 5000, 1),
        (priced(1, tiers=[tier(5000, 2)]), 5001, 2),
        (priced(1, tiers=[tier(5000, 2), tier(9000, 3)]), 9001, 3),
        (priced(1, tiers=[tier(5000, 2, "batch")]), 5001, 1),
        (priced(1, experimentalOver200K=priced(4)), 200_000, 1),
        (priced(1, experimentalOver200K=priced(4)), 200_001, 4),
        (priced(1, experimentalOver200K=priced(4), tiers=[tier(272_000, 3)]), 250_000, 1),
        (priced(1, experimentalOver200K=priced(4), tiers=[tier(512_000, 3)]), 400_000, 1),
        (priced(1, experimentalOver200K=priced(4), tiers=[tier(272_000, 3)]), 272_001, 3),
        (priced(1, experimentalOver200K=priced(4), tiers=[tier(5000, 2)]), 250_000, 2),
    ],
)
def test_a_long_prompt_has_the_price_of_its_tier(price: Wire, prompt: int, factor: int) -> None:
    """The prompt's length includes cached tokens, as 1.18.33 bills it."""
    model = {"name": "M", "cost": price}
    providers = {"providers": [{"id": "acme", "models": {"m-1": model}}]}
    tokens = {"input": prompt - 4000, "output": 100, "reasoning": 50, "cache": {"read": 4000}}
    messages = {"ses_A": [answer("m1", "ses_A", T0, 0.01, tokens=tokens)]}
    with serving([wire_session("ses_A")], messages, providers=providers) as (client, _):
        row = usage(client, "model").iloc[0]
    expected = (prompt - 4000 + 150 * 2 + 4000 / 10) * factor / 1e6
    assert math.isclose(row["cost_listed"], expected, abs_tol=1e-9)


@pytest.mark.parametrize(
    ("tiers", "tokens", "stored", "listed", "reason"),
    [
        ([272_000], (250_000, 0, 1000), 0.1018, 0.0512, OVER_200K),
        ([272_000], (121_000, 150_000, 1000), 0.0562, 0.0284, OVER_200K),
        ([512_000], (400_000, 0, 1000), 0.1618, 0.0812, OVER_200K),
        ([], (250_000, 0, 1000), 0.1018, 0.1018, None),
        ([272_000], (250_000, 0, 1000), 0.5, 0.0512, "price changed"),
    ],
)
def test_the_exact_tier_is_listed_and_the_rule_that_was_charged_is_named(
    tiers: list[int],
    tokens: tuple[int, int, int],
    stored: float,
    listed: float,
    reason: str | None,
) -> None:
    """Case M1: 1.18.33 charges the over-200k price below the first tier."""
    above = PriceTier(200_000, 0.4, 1.8, 0.04)
    price = Price(
        PriceTier(0, 0.2, 1.2, 0.02),
        tuple(PriceTier(size, 0.4, 1.8, 0.04) for size in tiers) or (above,),
        above,
    )
    used, read, out = tokens
    found = list_price(price, Usage(used, out, 0, read, 0), stored)
    assert found.cost is not None
    assert math.isclose(found.cost, listed, abs_tol=1e-9)
    assert found.reason == reason


def test_an_invalid_price_list_is_refused() -> None:
    """Case G5: also a number that no float can hold."""
    with serving([], {}) as (client, _):
        for bad in (
            {"m-1": {"input": 1}},
            {"acme/m-1": {"price": 1}},
            {"acme/m-1": {"input": 10**400}},
        ):
            with pytest.raises(ValueError, match="prices must be"):
                usage(client, prices=bad)


# -- loading ---------------------------------------------------------------------------------------


GONE = {"name": "NotFoundError", "data": {"message": "Session not found: ses_01"}}
NO = {"name": "BadRequest", "data": {"message": "Expected string"}}


def http_reply(status: int, body: Any) -> tuple[int, dict[str, str], bytes]:
    return status, {"content-type": "application/json"}, json.dumps(body).encode()


def test_an_unreadable_session_has_the_cost_from_the_list(tmp_path: Path) -> None:
    """1.18.33 answers every request for the messages with 400 after a prompt with `format`."""
    sessions, messages = make_sessions(3)
    messages["ses_00"], messages["ses_01"] = http_reply(400, NO), http_reply(404, GONE)
    with serving(sessions, messages) as (client, _):
        frame = history.messages(client, cache=Cache(tmp_path / "h.db"))
        by_model = usage(client, ["session", "model"])
        by_session = usage(client, "session")
    assert [*frame["session"].unique()] == ["ses_02"]
    assert any("HTTP 400: Expected string" in w for w in frame.attrs["warnings"])
    assert any("1 session could not be read: deleted" in w for w in frame.attrs["warnings"])
    assert any("These sessions cost $0.02 more" in w for w in by_model.attrs["warnings"])
    assert by_session.attrs["total"]["cost"] == 0.03


def test_a_lost_connection_is_an_error_and_keeps_the_cache(tmp_path: Path) -> None:
    sessions, messages = make_sessions(20)
    with serving(sessions, messages | {"ses_19": DISCONNECT}) as (client, fake):
        cache = Cache(tmp_path / "h.db")
        with pytest.raises(ServerConnectionError):
            history.messages(client, cache=cache)
        fake.seen.clear()
        fake.routes["GET /session/ses_19/message"] = messages["ses_19"]
        assert len(history.messages(client, cache=cache)) == 20
        read = [s for s in fake.seen if s.path.endswith("/message")]
    assert [s.path for s in read] == ["/session/ses_19/message"]


@pytest.mark.parametrize("kernel", [None, "a kernel"])
def test_the_progress_bar_avoids_red_and_pipes(
    kernel: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions, messages = make_sessions(3)
    monkeypatch.setattr("opencode_magics.history.load._BAR_AFTER", 0)
    monkeypatch.setattr("IPython.get_ipython", lambda: SimpleNamespace(kernel=kernel))
    with serving(sessions, messages) as (client, _):
        history.messages(client, cache=False)
    output = capsys.readouterr()
    used, unused = (output.out, output.err) if kernel else (output.err, output.out)
    assert "Reading sessions" in used
    assert not unused


def test_an_interrupt_keeps_the_rows_loaded_so_far(tmp_path: Path) -> None:
    sessions, messages = make_sessions(40)
    with serving(sessions, messages) as (client, _):
        listed = client.sessions()
        calls = 0

        class Stop(Cache):
            def put(self, kind: str, session: Session, rows: Any) -> None:
                nonlocal calls
                calls += 1
                if calls == 11:
                    raise KeyboardInterrupt
                super().put(kind, session, rows)

        loaded = load(client, listed, "messages", cache=Stop(tmp_path / "h.db"), progress=False)
    assert len(loaded.rows) == 10
    assert loaded.warnings == ["Interrupted: 30 sessions not loaded."]


def test_rows_stay_in_the_order_of_the_sessions() -> None:
    sessions, messages = make_sessions(30)
    with serving(sessions, messages) as (client, _):
        frame = history.messages(client, cache=False)
        some = history.messages(client, ["ses_05", "ses_03", "ses_05"], cache=False)
    assert [*frame["session"]] == [s["id"] for s in sessions]
    assert [*some["session"]] == ["ses_05", "ses_03"]


def test_usage_works_without_list_prices() -> None:
    session = {"id": "ses_root01", "title": "r", "location": {"directory": "/work/p"}}
    listed = {
        "data": [session | {"time": {"created": T0, "updated": T0}, "cost": 0.5}],
        "cursor": {},
    }
    not_found = (404, {}, b"no such route")
    with (
        CannedTransport(v2_routes(sessions=listed) | {"GET /api/model": not_found}) as fake,
        Client(fake.url, transport=fake, directory="/work/p") as client,
    ):
        frame = usage(client)
    assert frame.attrs["total"]["cost"] == 0.5
    assert any("No list price is known" in w and "404" in w for w in frame.attrs["warnings"])


# -- what only 2.x stores --------------------------------------------------------------------------


def test_rows_of_2_x_keep_their_kind_model_and_cost() -> None:
    """Case G2-13."""
    recorded = case("messages_v2_pages.json")
    pages = {p["cursor"]["previous"]: p for p in recorded["pages"]}
    expected = recorded["expected"]
    session = {"id": "ses_root01", "title": "r", "location": {"directory": "/work/p"}}
    listed = {"data": [session | {"time": {"created": T0, "updated": T0}}], "cursor": {}}
    route = "GET /api/session/ses_root01/message"
    before = {None: None, "c1": "c0", "c2": "c1"}
    page = lambda seen: pages[before[seen.query.get("cursor")]]  # noqa: E731
    with (
        CannedTransport(
            v2_routes(sessions=listed) | {route: page, "GET /api/model": {"data": []}}
        ) as fake,
        Client(fake.url, transport=fake, directory="/work/p") as client,
    ):
        frame = history.messages(client, ["ses_root01"], cache=False)
        used = history.usage(client, "model", sessions=["ses_root01"], cache=False)
    assert [*frame["role"]] == expected["roles"]
    assert frame.loc[1, "provider"] + "/" + frame.loc[1, "model"] == expected["model"]
    assert frame["cost"].sum() == pytest.approx(expected["cost_sum"])
    assert [*frame["cost"].notna()] == [False, True, False, True, False]
    assert used.attrs["total"]["cost"] == pytest.approx(expected["cost_sum"])
