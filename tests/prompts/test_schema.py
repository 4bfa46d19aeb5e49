"""Structured answers: making schemas, parsing answers, and retries."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pytest
from support.generations import both_generations
from support.ipython_shell import Shell, is_short_error
from support.sample_turns import says

from opencode_magics.client.client import Client
from opencode_magics.core.turn import Turn
from opencode_magics.errors import OpenCodeError, UnfitAnswer, UnknownNameError
from opencode_magics.prompts import schema as schemas


@dataclass
class Bug:
    line: int
    what: str
    severity: Literal["low", "high"] = "low"
    tags: list[str] = field(default_factory=list)


POINT = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}


# -- schemas ---------------------------------------------------------------------------------------


def test_a_dataclass_gives_instances() -> None:
    schema = schemas.schema_from(Bug)
    assert schema.fields == ("line", "what", "severity", "tags")
    assert schema.parse('{"line": 3, "what": "off by one"}') == Bug(3, "off by one")


@pytest.mark.parametrize("piece", ["```x\n", "[", '{"a": [', "a [b] c\n"])
def test_the_effort_to_read_an_answer_has_a_limit(
    piece: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case G6: 80 kB of fences took 7 s. The time itself is in `benchmarks/answers.py`."""
    read = 0
    decode = json.JSONDecoder.raw_decode

    def counted(decoder: json.JSONDecoder, text: str, idx: int = 0) -> Any:
        nonlocal read
        try:
            value, end = decode(decoder, text, idx)
        except ValueError as error:
            read += getattr(error, "pos", idx) - idx
            raise
        read += end - idx
        return value, end

    monkeypatch.setattr(json.JSONDecoder, "raw_decode", counted)
    answer = piece * (60_000 // len(piece))
    list(schemas._values(answer))
    assert read <= 30 * len(answer) + 200_000


def test_a_json_schema_gives_json_values() -> None:
    assert schemas.schema_from(POINT).json == POINT
    assert schemas.schema_from(POINT).parse('{"x": 1.5, "y": 2}') == {"x": 1.5, "y": 2}


def test_an_example_asks_for_answers_like_it() -> None:
    schema = schemas.schema_from({"name": "Ada", "born": 1815, "poet": None, "loves": ["x"]})
    answer = {"name": "Alan", "born": 1912, "poet": False, "loves": []}
    assert schema.parse(json.dumps(answer)) == answer
    with pytest.raises(ValueError, match=r"At \$\.born: 'when' is not of type 'integer'"):
        schema.parse(json.dumps(answer | {"born": "when"}))


def test_an_example_may_have_a_field_named_type() -> None:
    assert schemas.schema_from({"type": "cat", "name": "Tom"}).fields == ("type", "name")


@pytest.mark.parametrize("model", [[{"line": 1, "what": ""}], list[Bug]])
def test_an_array_of_objects_gives_a_frame(model: Any) -> None:
    frame = schemas.schema_from(model).parse('[{"line": 1, "what": "a"}, {"line": 2, "what": "b"}]')
    assert isinstance(frame, pd.DataFrame)
    assert frame["line"].tolist() == [1, 2]


def test_an_empty_array_has_its_columns() -> None:
    assert list(schemas.schema_from(list[Bug]).parse("[]").columns) == list(
        schemas.schema_from(Bug).fields
    )


@pytest.mark.parametrize(
    "model", [None, 3, Bug(1, ""), {}, [], {"a": object()}, {"type": "object", "required": 1}, type]
)
def test_a_value_that_is_not_a_schema_is_an_error(model: Any) -> None:
    with pytest.raises(OpenCodeError, match=r"schema|example"):
        schemas.schema_from(model)


def test_a_file_is_a_schema_too(tmp_path: Path) -> None:
    path = tmp_path / "point.json"
    path.write_text(json.dumps(POINT))
    assert schemas.schema_by_name(str(path), {}).json == POINT
    with pytest.raises(UnknownNameError, match="No such file"):
        schemas.schema_by_name(str(tmp_path / "none.json"), {})
    path.write_text("{")
    with pytest.raises(OpenCodeError, match="is not JSON"):
        schemas.schema_by_name(str(path), {})


def test_nothing_is_fetched_for_a_schema() -> None:
    with pytest.raises(OpenCodeError, match="has no definition of http"):
        schemas.schema_from({"type": "array", "items": {"$ref": "http://127.0.0.1:9/none.json"}})


def test_a_schema_may_refer_to_itself() -> None:
    tree = {"type": "object", "properties": {"in": {"$ref": "#"}}, "additionalProperties": False}
    assert schemas.schema_from(tree).parse('{"in": {"in": {}}}') == {"in": {"in": {}}}


ITSELF: dict[str, Any] = {}
ITSELF["me"] = ITSELF


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"$ref": "#"}, "infinite reference"),
        (
            {
                "type": "object",
                "properties": {"x": {"$ref": "#/$defs/a"}},
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
            },
            "infinite reference",
        ),
        (
            {"type": "object", "$dynamicRef": "http://127.0.0.1:9/none.json"},
            "no definition of http",
        ),
        (
            {"type": "object", "title": "x", "properties": {"a": {"$ref": "#/title"}}},
            "checked with this JSON Schema",
        ),
        (
            {"type": "object", "allOf": [{}], "items": {"$ref": "#/allOf/x"}},
            "checked with this JSON Schema",
        ),
        ({"type": "object", "$schema": ["x"]}, "checked with this JSON Schema"),
        ({"type": "object", "$id": 3}, "checked with this JSON Schema"),
        ({"type": "object", "default": b"x"}, "not JSON serializable"),
        ({"type": "number", "minimum": float("nan")}, "not JSON compliant"),
        ({"type": "object", "properties": {"x": ITSELF}}, "Circular"),
        (ITSELF, "can't contain itself"),
    ],
)
def test_a_schema_that_can_not_check_answers_is_an_error_at_once(schema: Any, why: str) -> None:
    with pytest.raises(OpenCodeError, match=why):
        schemas.schema_from(schema)


def test_keys_of_a_schema_are_those_in_the_prompt() -> None:
    schema = schemas.schema_from(
        {"type": "object", "properties": {1: {"type": "string"}, "\ud800": {}}}
    )
    assert schema.fields == ("1", "\ufffd")
    with pytest.raises(ValueError, match="not of type 'string'"):
        schema.parse('{"1": 1}')


# -- answers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        '{"x": 1}',
        'Sure!\n\n```json\n{"x": 1}\n```\nThere it is.',
        '```\n{"x": 1}\n```',
        'The value is {"x": 1}, I think.',
        'Not {this} but {"x": 1}.',
        'First\n```json\n{"wrong": 0}\n```\nno:\n```json\n{"x": 1}\n```',
        '```python\nprint({})\n```\n```json\n{"x": 1}\n```',
    ],
)
def test_json_is_found_anywhere_in_an_answer(answer: str) -> None:
    assert schemas.schema_from(POINT).parse(answer) == {"x": 1}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("", "There is no JSON"),
        ("x = 1", "There is no JSON"),
        ("[" * 100_000, "There is no JSON"),
        ("{'x': 1}", "There is no JSON"),
        ('{"x": 1,}', "There is no JSON"),
        ('{"x": NaN}', "There is no JSON"),
        ('{"x": "1"}', "'1' is not of type 'number'"),
        ('{"x": 1e999}', "There is no JSON"),
        ("".join("`" * (n + 3) + "\n" for n in range(300)), "There is no JSON"),
        ("[1]", "is not of type 'object'"),
        ("{}", "'x' is a required property"),
    ],
)
def test_values_are_never_repaired(answer: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        schemas.schema_from(POINT).parse(answer)


@pytest.mark.parametrize(
    ("schema", "answer", "why"),
    [
        ({"type": "number", "multipleOf": 0.1}, "1" + "0" * 400, "too large"),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}},
            "[" * 400 + "]" * 400,
            "too deep",
        ),
        ({"type": "string", "maxLength": 1}, f'"{"x" * 9_000}"', "^'x{498}…$"),
    ],
)
def test_an_answer_that_cannot_be_checked_does_not_fit(schema: Any, answer: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        schemas.schema_from(schema).parse(answer)


def test_a_frame_accepts_a_lone_surrogate() -> None:
    frame = schemas.schema_from([{"a": ""}]).parse('[{"a": "\\ud800"}]')
    assert frame["a"].tolist() == ["\ufffd"]


def test_a_plain_value_is_json_too() -> None:
    assert schemas.schema_from({"type": "integer"}).parse(" 42\n") == 42


def replies(*texts: str) -> tuple[Any, list[str]]:
    """A `send` that answers with one text after the other, and the list of its prompts."""
    prompts: list[str] = []

    def send(prompt: str) -> Turn:
        prompts.append(prompt)
        return says(texts[len(prompts) - 1])

    return send, prompts


def test_an_answer_that_does_not_fit_is_asked_for_again_with_the_reason() -> None:
    send, prompts = replies("no idea", '{"x": "1"}', '{"x": 1}')
    turn = schemas.ask_for_schema(send, "Where?", schemas.schema_from(POINT))
    assert turn.value == {"x": 1}
    assert [t.text for t in turn.earlier] == ["no idea", '{"x": "1"}']
    assert prompts[0].startswith("Where?\n\nAnswer with JSON that fits this JSON Schema")
    assert "There is no JSON in it." in prompts[1]
    assert "'1' is not of type 'number'" in prompts[2]
    assert all(json.dumps(POINT, indent=2) in p for p in prompts)


def test_the_error_for_no_valid_answer_has_all_turns() -> None:
    send, prompts = replies("no", "no", '{"x": "1"}')
    with pytest.raises(
        UnfitAnswer, match=r"No valid answer after 3 attempts: At \$\.x: '1'"
    ) as failed:
        schemas.ask_for_schema(send, "Where?", schemas.schema_from(POINT))
    assert len(failed.value.turns) == len(prompts) == 3
    assert failed.value.turn is failed.value.turns[-1]


def test_a_turn_that_was_stopped_is_not_asked_again() -> None:
    prompts: list[str] = []

    def send(prompt: str) -> Turn:
        prompts.append(prompt)
        return says("half", verdict="aborted")

    with pytest.raises(UnfitAnswer, match="the turn is aborted"):
        schemas.ask_for_schema(send, "Where?", schemas.schema_from(POINT))
    assert len(prompts) == 1


# -- in cells --------------------------------------------------------------------------------------

MAKE = """
from dataclasses import dataclass

@dataclass
class Review:
    file: str
    bugs: list[str]
    score: int
"""


@both_generations
def test_a_cell_returns_an_instance(shell: Shell) -> None:
    shell.run(MAKE)
    value = shell.run("%%oc_prompt -n -o turn --schema Review\nReview greet.py").value
    assert value == shell.user_ns["Review"]("the file", ["the bugs"] * 2, 1)
    turn = shell.user_ns["turn"]
    assert (turn.value, turn.earlier, turn.outcome) == (value, (), "succeeded")


@both_generations
def test_a_wrong_answer_is_asked_for_again(shell: Shell, client: Client) -> None:
    shell.user_ns["trips"] = [{"city": "Rome", "days": 3}]
    shown = shell.run("%%oc_prompt -n -o turn --schema trips\n#text 3")
    assert shown.value["days"].tolist() == [1, 1]
    assert "Asking again (1 of 2): There is no JSON in it." in shown.text
    turn = shell.user_ns["turn"]
    assert [t.text for t in turn.earlier] == ["word0 word1 word2"]
    assert {t.session for t in turn.earlier} == {turn.session}
    prompts = [m for m in client.messages(client.session(turn.session)) if m.role == "user"]
    assert len(prompts) == 2
    assert "There is no JSON in it." in prompts[1].text


@both_generations
def test_the_messages_of_the_session_stay_readable(shell: Shell, client: Client) -> None:
    """A prompt with a `format` breaks its session forever (1.18.33), so none is sent."""
    shell.user_ns["point"] = POINT
    shell.run("%%oc_prompt -n -o turn --schema point\nWhere?")
    session = client.session(shell.user_ns["turn"].session)
    assert [m.role for m in client.messages(session)][:2] == ["user", "assistant"]


def test_an_answer_that_never_fits_is_a_short_error(shell: Shell) -> None:
    shell.user_ns["odd"] = {"type": "string", "pattern": "^x{9}$"}
    shown = shell.fails("%%oc_prompt -n -o turn --retries 1 --schema odd\nWhere?")
    assert isinstance(shown.error, UnfitAnswer)
    assert len(shown.error.turns) == 2
    assert "does not match" in str(shown.error)
    assert shell.user_ns["turn"] is shown.error.turns[-1]


@both_generations
def test_a_cached_answer_is_checked_again(shell: Shell, client: Client) -> None:
    shell.user_ns["trips"] = [{"city": "Rome", "days": 3}]
    cell = "%%oc_prompt -n --once --schema trips\n#text 4"
    first = shell.run(cell).value
    before = len(client.sessions())
    again = shell.run(cell)
    assert again.value.equals(first)
    assert again.text.count("From history") == 2
    assert len(client.sessions()) == before


def test_retries_count_against_the_ceiling(shell: Shell) -> None:
    shell.run("%config OpenCodeMagics.max_cost = 0.02")
    shell.user_ns["point"] = POINT
    shown = shell.fails("%%oc_prompt -n --schema point\n#text 2")
    assert "CostLimitError: Nothing was sent: cost $0.0" in shown.text


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--schema nowhere", "no variable 'nowhere'"),
        ("--schema none.json", "none.json: No such file"),
        ("--schema five", "type int is not a schema"),
        ("--schema point --no-wait", "--no-wait doesn't wait"),
        ("--schema point --retries -1", "must be 0 or more"),
    ],
)
def test_an_invalid_schema_is_reported_and_nothing_is_sent(
    shell: Shell, client: Client, line: str, why: str
) -> None:
    shell.user_ns |= {"five": 5, "point": POINT}
    before = len(client.sessions())
    shown = shell.fails(f"%%oc_prompt -n {line}\nWhere?")
    assert is_short_error(shown)
    assert why in shown.text
    assert len(client.sessions()) == before
