"""One prompt for each row of a table: templates, results, and %%oc_map in cells."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.generations import both_generations
from support.ipython_shell import Shell, is_short_error
from support.sample_turns import says

from opencode_magics.client.client import Client
from opencode_magics.errors import OpenCodeError, TurnInterrupted, UnknownNameError
from opencode_magics.prompts import mapping
from opencode_magics.prompts import schema as schemas
from opencode_magics.prompts.mapping import RowResult
from opencode_magics.sessions.run import Run, prepare

TRIPS = pd.DataFrame(
    {"city": ["Oslo", "Rome"], "days": [3, 5], "full name": ["a b", "c"]}, index=["x", "y"]
)


# -- templates -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "first"),
    [
        ("See {city}.", "See Oslo."),
        ("{city}: {days:02d} days", "Oslo: 03 days"),
        ("{full name}", "a b"),
        ('{{"city": "{city}"}}', '{"city": "Oslo"}'),
        ("{trip.city} of {trip}", 'Oslo of {"city": "Oslo", "days": 3, "full name": "a b"}'),
    ],
)
def test_a_template_is_filled_in(template: str, first: str) -> None:
    assert mapping.fill_template(TRIPS, template, "trip")[0] == first


@pytest.mark.parametrize(
    "template", ["{nowhere}", "{city.__class__}", "{}", '{"city": 1}', "{trip.x}"]
)
def test_only_columns_are_filled_in(template: str) -> None:
    with pytest.raises(UnknownNameError, match="has no column"):
        mapping.fill_template(TRIPS, template)


@pytest.mark.parametrize("template", ["{city", "no place", "}"])
def test_an_invalid_template_is_an_error(template: str) -> None:
    with pytest.raises(OpenCodeError, match="template"):
        mapping.fill_template(TRIPS, template)


@pytest.mark.parametrize(
    "template", ["{n:zz}", "{n:{n}}", "{n!q}", "{n:>9999999999999999999}", "{o:>5}"]
)
def test_a_value_that_cannot_be_formatted_is_an_error(template: str) -> None:
    table = pd.DataFrame({"n": ["a"], "o": [object()]}, index=["x"])
    with pytest.raises(OpenCodeError, match="can't be filled in for row x"):
        mapping.fill_template(table, template)


def test_an_ambiguous_column_is_an_error() -> None:
    table = pd.DataFrame([[1, 2, 3]], columns=[1, "1", "a"])
    assert mapping.fill_template(table, "{a!r:>2}") == [" 3"]
    for template in ("{1}", "{row}", "{row.1}"):
        with pytest.raises(OpenCodeError, match="several columns named '1'"):
            mapping.fill_template(table, template, "row")


def test_missing_values_are_null_and_lone_surrogates_are_replaced() -> None:
    table = pd.DataFrame(
        {"a": [float("nan")], "b": [pd.NaT], "c": pd.Series(["\ud800"], dtype=object)}
    )
    assert mapping.fill_template(table, "{row} {c}", "row") == [
        '{"a": null, "b": null, "c": "\ufffd"} \ufffd'
    ]


# -- results ---------------------------------------------------------------------------------------


def test_results_have_the_tables_index_and_fixed_columns() -> None:
    answers = [RowResult("one", (says("yes"),), "succeeded"), RowResult("two")]
    frame = mapping.results_frame(TRIPS, answers)
    assert frame.index.tolist() == ["x", "y"]
    assert list(frame.columns) == list(mapping.COLUMNS)
    assert frame["answer"].tolist() == ["yes", pd.NA]
    assert frame["cost"].isna().tolist() == [False, True]
    assert frame["cost_complete"].tolist() == [True, pd.NA]
    empty = mapping.results_frame(TRIPS.iloc[:0], [])
    assert empty.dtypes.drop("outcome").equals(frame.dtypes.drop("outcome"))


def test_an_objects_fields_are_columns_with_free_names() -> None:
    schema = schemas.schema_from({"sunny": True, "cost": 3})
    answers = [RowResult("one", (), "succeeded", {"sunny": True, "cost": 3}), RowResult("two")]
    frame = mapping.results_frame(TRIPS, answers, schema)
    assert list(frame.columns)[:4] == ["prompt", "answer", "sunny", "answer_cost"]
    assert frame["sunny"].dtype == "boolean"
    assert frame["answer_cost"].tolist() == [3, pd.NA]


def test_no_two_fields_become_one_column() -> None:
    value = {"prompt": 1, "answer_prompt": 2, "answer": 3}
    frame = mapping.results_frame(
        TRIPS,
        [RowResult("one", (), "succeeded", value), RowResult("two")],
        schemas.schema_from(value),
    )
    columns = ["answer_answer_prompt", "answer_prompt", "answer_answer"]
    assert frame[columns].iloc[0].tolist() == [1, 2, 3]


def test_values_that_are_not_objects_are_one_column() -> None:
    schema = schemas.schema_from([{"a": 1}])
    value = schema.parse('[{"a": 1}]')
    frame = mapping.results_frame(
        TRIPS, [RowResult("1", (), "succeeded", value), RowResult("2")], schema
    )
    assert frame["value"].iloc[0] is value


# -- in cells --------------------------------------------------------------------------------------


@pytest.fixture
def trips(shell: Shell) -> pd.DataFrame:
    table = pd.DataFrame({"n": [2, 3, 4]}, index=[10, 20, 30])
    shell.user_ns["trips"] = table
    return table


@both_generations
def test_every_row_gets_its_answer_in_a_session_of_its_own(
    shell: Shell, client: Client, trips: pd.DataFrame
) -> None:
    shell.run("%oc_new mine")
    shown = shell.run("%%oc_map trips -o out\n#text {n}")
    frame = shown.value
    assert frame is shell.user_ns["out"]
    assert frame.index.tolist() == [10, 20, 30]
    assert frame["answer"].tolist() == [
        "word0 word1",
        "word0 word1 word2",
        "word0 word1 word2 word3",
    ]
    assert set(frame["outcome"]) == {"succeeded"}
    assert frame["session"].nunique() == 3
    assert frame["cost"].gt(0).all()
    assert frame["tokens"].gt(0).all()
    assert frame["duration"].notna().all()
    assert "3 rows · 3 succeeded · $0." in shown.text
    assert "3/3" in shown.text
    titles = {client.session(s).title for s in frame["session"]}
    assert titles == {"trips 10", "trips 20", "trips 30"}
    assert "mine" in shell.run("%oc_session").text + repr(shell.run("%oc_session").value)
    assert shell.run("%oc_map").value is frame


@both_generations
def test_once_costs_nothing_a_second_time(
    shell: Shell, client: Client, trips: pd.DataFrame
) -> None:
    cell = "%%oc_map trips --once\n#text {n} once"
    first = shell.run(cell).value
    before = len(client.sessions())
    again = shell.run(cell)
    assert again.value["answer"].tolist() == first["answer"].tolist()
    assert again.value["from_history"].all()
    assert len(client.sessions()) == before
    assert "3 from history · nothing was sent" in again.text


def test_rows_may_share_a_session(shell: Shell, trips: pd.DataFrame) -> None:
    frame = shell.run("%%oc_map trips --same-session\n#text {n}").value
    assert frame["session"].nunique() == 1
    assert frame["answer"].str.len().is_monotonic_increasing


@both_generations
def test_a_row_that_fails_does_not_stop_the_others(shell: Shell) -> None:
    shell.user_ns["jobs"] = pd.DataFrame({"job": ["#text 1", "#err400", "#text 2"]})
    frame = shell.run("%%oc_map jobs\n{job}").value
    assert frame["outcome"].tolist() == ["succeeded", "failed", "succeeded"]
    assert frame["error"].notna().tolist() == [False, True, False]


def test_a_row_with_unknown_costs_has_a_lower_bound(shell: Shell) -> None:
    unknown = {"prompt_tokens": 0, "completion_tokens": 0}
    shell.user_ns["jobs"] = pd.DataFrame({"job": ["#text 1", f"#usage {json.dumps(unknown)}"]})
    shown = shell.run("%%oc_map jobs\n{job}")
    assert shown.value["cost_complete"].tolist() == [True, False]
    assert " · ≥ $0." in shown.text


@both_generations
def test_every_finished_row_is_counted_at_once(shell: Shell, trips: pd.DataFrame) -> None:
    """However quick it was, since the next one may take minutes."""
    shell.run("%%oc_map trips --once\n#text {n}")
    shown = shell.run("%%oc_map trips --once\n#text {n}")
    assert all(f"{done}/3 [" in shown.text for done in range(4))


@both_generations
def test_a_ceiling_stops_the_map_and_keeps_what_is_done(
    shell: Shell, client: Client, trips: pd.DataFrame
) -> None:
    before = len(client.sessions())
    shown = shell.run("%%oc_map trips --max-cost 0.05\n#text {n}")
    assert shown.value["outcome"].tolist() == ["succeeded", "succeeded", "not_sent"]
    assert "Stopped: cost $0.0" in shown.text
    assert "exceeded --max-cost $0.05" in shown.text
    assert len(client.sessions()) == before + 2


@both_generations
def test_a_schema_gives_columns(shell: Shell, trips: pd.DataFrame) -> None:
    shell.user_ns["like"] = {"name": "x", "score": 1}
    frame = shell.run("%%oc_map trips --schema like\nRate {n}").value
    assert frame[["name", "score"]].values.tolist() == [["the name", 1]] * 3


def test_an_answer_that_does_not_fit_is_a_row_without_a_value(
    shell: Shell, trips: pd.DataFrame
) -> None:
    shell.user_ns["odd"] = {"type": "string", "pattern": "^x{9}$"}
    frame = shell.run("%%oc_map trips --retries 0 --schema odd\nRate {n}").value
    assert set(frame["outcome"]) == {"unfit"}
    assert frame["value"].isna().all()
    assert frame["cost"].gt(0).all()
    assert frame["error"].str.contains("does not match").all()


@both_generations
def test_an_answer_from_history_that_does_not_fit_is_from_history(
    shell: Shell, trips: pd.DataFrame
) -> None:
    shell.user_ns["odd"] = {"type": "string", "pattern": "^y{9}$"}
    cell = "%%oc_map trips --once --retries 1 --schema odd\nRate {n} once"
    assert not shell.run(cell).value["from_history"].any()
    again = shell.run(cell)
    assert set(again.value["outcome"]) == {"unfit"}
    assert again.value["from_history"].all()
    assert "3 from history · nothing was sent" in again.text


def test_permissions_are_asked_as_usual(shell: Shell, workspace: Path) -> None:
    shell.user_ns["files"] = pd.DataFrame({"name": ["one", "two"]})
    shell.types("1", "3")
    shown = shell.run("%%oc_map files\n#bash touch {name}.made")
    assert sorted(p.name for p in workspace.glob("*.made")) == ["one.made"]
    assert shown.value["outcome"].tolist() == ["succeeded", "rejected"]
    assert "0: Permission: " in shown.text
    assert "→ once" in shown.text
    assert "1: Permission: " in shown.text
    assert "→ reject" in shown.text


def test_an_interrupt_keeps_what_is_done(
    shell: Shell, trips: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []

    def second_time_interrupted(*args: Any, **options: Any) -> Run:
        sent.append(args)
        if len(sent) == 2:
            raise KeyboardInterrupt
        return prepare(*args, **options)

    monkeypatch.setattr("opencode_magics.sessions.run.prepare", second_time_interrupted)
    shown = shell.fails("%%oc_map trips -o out\n#text {n}")
    assert isinstance(shown.error, TurnInterrupted)
    assert "the results so far are in out" in shown.text
    assert shell.user_ns["out"]["outcome"].tolist() == ["succeeded", "not_sent", "not_sent"]
    assert shell.run("%oc_map").value is shell.user_ns["out"]


def test_an_error_in_a_class_keeps_the_costs(shell: Shell, trips: pd.DataFrame) -> None:
    @dataclass
    class Picky:
        score: int

        def __post_init__(self) -> None:
            built.append(self.score)
            if len(built) == 2:
                raise RuntimeError("not twice")

    built: list[int] = []
    shell.user_ns["Picky"] = Picky
    shown = shell.fails("%%oc_map trips --schema Picky -o out\nRate {n}")
    assert isinstance(shown.error, RuntimeError)
    assert shell.user_ns["out"]["cost"].notna().tolist() == [True, True, False]
    assert shell.user_ns["out"]["error"].iloc[1] == "not twice"


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("%%oc_map\n{n}", "there is no name"),
        ("%%oc_map nowhere\n{n}", "'nowhere' is not one"),
        ("%%oc_map trips\n{m}", "no column 'm'"),
        ("%%oc_map trips\nsame", "the same prompt"),
        ("%%oc_map trips --as n\n{n}", "Choose another"),
        ("%%oc_map trips -s abc\n{n}", "--same-session"),
        ("%%oc_map trips --max-cost nan\n{n}", "0 or more"),
        ("%%oc_map trips --max-cost=-1\n{n}", "0 or more"),
        ("%%oc_map trips\n{n:zz}", "can't be filled in for row"),
        ("%%oc_map trips --schema nowhere\n{n}", "no variable 'nowhere'"),
        ("%oc_map trips", "with the prompt below it"),
        ("%oc_map", "No %%oc_map has run yet"),
        ("# mine\n%%oc_map trips\n{n}", "the first line of its cell"),
    ],
)
def test_errors_in_the_cell_are_reported_before_anything_is_sent(
    shell: Shell, client: Client, trips: pd.DataFrame, cell: str, why: str
) -> None:
    before = len(client.sessions())
    shown = shell.fails(cell)
    assert is_short_error(shown)
    assert why in shown.text
    assert len(client.sessions()) == before


def test_a_body_that_looks_like_a_doctest_is_sent_as_it_is(shell: Shell) -> None:
    shell.user_ns["one"] = pd.DataFrame({"t": ["hi"]})
    frame = shell.run("%%oc_map one\n>>> {t}").value
    assert frame["prompt"].tolist() == [">>> hi"]


def test_json_in_a_template_is_written_with_double_braces(shell: Shell) -> None:
    shell.user_ns["one"] = pd.DataFrame({"t": ["hi"]})
    plan = json.dumps([{"text": "PLACE"}]).replace("{", "{{").replace("}", "}}")
    frame = shell.run(f"%%oc_map one\n#plan {plan.replace('PLACE', '{t}')}").value
    assert frame["answer"].tolist() == ["hi"]
