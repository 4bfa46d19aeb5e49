"""Forms of 2.x: reading fields as questions, validating and encoding answers."""

from __future__ import annotations

from typing import Any

import pytest
from support.recorded_flows import case
from support.wire import reply_of, run

from opencode_magics.client.client import Client
from opencode_magics.core import questions
from opencode_magics.core.events import QuestionAsked
from opencode_magics.core.model import Option, Question, Session
from opencode_magics.dialects.v2 import V2
from opencode_magics.dialects.v2_shapes import _field
from opencode_magics.errors import InvalidAnswer, StatusError
from opencode_magics.notebook.answerer import Answerer
from opencode_magics.practice.simulator.server import Simulator


@pytest.fixture
def generation() -> str:
    return "2.x"


def field(kind: str, **more: Any) -> dict[str, Any]:
    return {"key": "k", "title": "Name", "description": "What is it?", "type": kind, **more}


NAMED = [{"value": "a", "label": "A"}, {"value": "b", "label": "B", "description": "the other"}]


@pytest.mark.parametrize(
    ("wire", "answers", "value"),
    [
        (field("string"), ["my words"], "my words"),
        (field("string", options=NAMED), ["B"], "b"),
        (field("string", options=NAMED, custom=True), ["neither"], "neither"),
        (field("multiselect", options=NAMED), ["A", "B"], ["a", "b"]),
        (field("multiselect", options=NAMED, custom=True), ["A", "more"], ["a", "more"]),
        (field("multiselect", options=NAMED), ["A"], ["a"]),
        (field("boolean"), ["Yes"], True),
        (field("boolean"), ["No"], False),
        (field("integer", minimum=1), ["7"], 7),
        (field("number"), ["7.5"], 7.5),
        (field("number"), ["7"], 7),
        (field("string", format="email"), ["a@b.c"], "a@b.c"),
    ],
)
def test_an_answer_is_converted_to_the_type_of_its_field(
    wire: dict[str, Any], answers: list[str], value: Any
) -> None:
    question = Question("frm_1", "ses_1", (_field(wire),))
    _, requests = run(V2().answer(question, "/w", [answers]), lambda r: reply_of(r, None))
    assert requests[0].path == "/api/session/ses_1/form/frm_1/reply"
    assert requests[0].body == {"answer": {"k": value}}


@pytest.mark.parametrize(
    ("wire", "answers", "words"),
    [
        (field("string", required=True), [], "an answer is needed"),
        (field("string", required=True), [" "], "an answer is needed"),
        (field("string", options=NAMED), ["C"], "'C' is not an option; choose 'A' or 'B'"),
        (field("string", minLength=3), ["ab"], "at least 3 characters, not 2"),
        (field("string", maxLength=3), ["abcd"], "at most 3 characters, not 4"),
        (field("string", pattern="^v"), ["1.0"], "does not match ^v"),
        (field("string", format="email"), ["me"], "is not an email address"),
        (field("string", format="uri"), ["me"], "is not an address"),
        (field("string", format="date"), ["today"], "is not a date"),
        (field("string", format="date-time"), ["2026-11-29"], "is not a date and time"),
        (field("multiselect", options=NAMED, minItems=2), ["A"], "at least 2 answers, not 1"),
        (field("multiselect", options=NAMED, maxItems=1), ["A", "B"], "at most 1 answers, not 2"),
        (field("boolean"), ["maybe"], "is not an option; choose 'Yes' or 'No'"),
        (field("integer"), ["many"], "is not a number"),
        (field("integer"), ["1.5"], "is not a whole number"),
        (field("integer", minimum=1, maximum=5), ["7"], "at most 5, not 7"),
        (field("number", minimum=0.5), ["0.1"], "at least 0.5, not 0.1"),
    ],
)
def test_problems_are_reported_before_anything_is_sent(
    wire: dict[str, Any], answers: list[str], words: str
) -> None:
    question = Question("frm_1", "ses_1", (_field(wire),))
    with pytest.raises(InvalidAnswer) as caught:
        run(V2().answer(question, "/w", [answers]), {})
    assert caught.value.what.startswith("Name: ")
    assert words in caught.value.what


@pytest.mark.parametrize("pattern", ["(", "(?<name>x)", "\\p{L}"])
def test_a_pattern_that_python_cannot_compile_is_left_to_the_server(pattern: str) -> None:
    assert questions.answer_error(_field(field("string", pattern=pattern)), ["x"]) == ""


def test_a_field_applies_only_if_its_condition_holds() -> None:
    first = _field({"key": "kind", "type": "string", "options": NAMED})
    when = [{"key": "kind", "op": "eq", "value": "b"}]
    second = _field({"key": "why", "type": "string", "required": True, "when": when})
    question = Question("frm_1", "ses_1", (first, second))
    _, requests = run(V2().answer(question, "/w", [["A"], []]), lambda r: reply_of(r, None))
    assert requests[0].body == {"answer": {"kind": "a"}}
    with pytest.raises(InvalidAnswer, match="an answer is needed"):
        run(V2().answer(question, "/w", [["B"], []]), {})


def conditional(*fields: dict[str, Any]) -> Question:
    return Question("frm_1", "ses_1", tuple(map(_field, fields)))


def when(key: str, value: Any, op: str = "eq") -> list[dict[str, Any]]:
    return [{"key": key, "op": op, "value": value}]


@pytest.mark.parametrize(
    ("first", "condition", "answers", "counts"),
    [
        (field("boolean"), when("k", True), ["Yes"], True),
        (field("boolean"), when("k", True), ["No"], False),
        (field("boolean"), when("k", True), [], False),
        (field("boolean", default=True), when("k", True), [], True),
        (field("integer"), when("k", 3), ["3"], True),
        (field("integer"), when("k", 3.0), ["03"], True),
        (field("number"), when("k", 2.5), ["2.50"], True),
        (field("number"), when("k", 2.5), ["many"], False),
        (field("string", options=NAMED), when("k", "b"), ["B"], True),
        (field("multiselect", options=NAMED), when("k", "b"), ["A", "B"], True),
        (field("multiselect", options=NAMED), when("k", "b", "neq"), ["A", "B"], False),
        (field("multiselect", options=NAMED), when("k", "b", "neq"), [], True),
        (field("string"), when("nowhere", "x"), ["x"], False),
        (field("string"), when("nowhere", "x", "neq"), ["x"], True),
        (field("string"), when("k", "x", "resembles"), ["y"], True),
    ],
)
def test_a_condition_compares_values(
    first: dict[str, Any], condition: Any, answers: list[str], counts: bool
) -> None:
    question = conditional(first, {"key": "more", "type": "string", "when": condition})
    assert questions.applies(question, question.items[1], [answers, ["x"]]) is counts


def test_a_field_that_does_not_apply_counts_as_unanswered() -> None:
    """Conditions can be circular, and answers to hidden fields are not sent."""
    question = conditional(
        {"key": "sure", "type": "boolean"},
        {"key": "kind", "type": "string", "when": when("sure", True)},
        {"key": "size", "type": "integer", "required": True, "when": when("kind", "b")},
        {"key": "mine", "type": "string", "when": when("yours", "x")},
        {"key": "yours", "type": "string", "when": when("mine", "x")},
    )
    answers = [["No"], ["b"], ["many"], ["x"], ["x"]]
    _, sent = run(V2().answer(question, "/w", answers), lambda r: reply_of(r, None))
    assert sent[0].body == {"answer": {"sure": False}}
    with pytest.raises(InvalidAnswer, match="'many' is not a number"):
        run(V2().answer(question, "/w", [["Yes"], *answers[1:]]), {})


def test_a_person_is_asked_only_fields_that_apply() -> None:
    question = conditional(
        {"key": "sure", "type": "boolean", "title": "Sure?"},
        {"key": "why", "type": "string", "title": "Why not?", "when": when("sure", False)},
        {"key": "doc", "type": "external", "title": "Read this", "url": "https://example.org/a"},
        {"key": "name", "type": "string", "title": "Name?", "when": when("sure", True)},
    )
    typed, written = iter(["1", "done", "Ada"]), list[str]()
    answerer = Answerer(can_ask=True, read=lambda prompt: next(typed), write=written.append)
    assert answerer.question(question).answers == (("Yes",), (), ("done",), ("Ada",))
    assert "Why not?" not in written
    assert "    https://example.org/a" in written


def test_a_question_of_2x_is_answered_on_the_form_route() -> None:
    """Case G1-17."""
    import json

    from support.recorded_flows import DATA

    lines = (DATA / "cases" / "sse_question_and_form.sse").read_text().splitlines()
    frames = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    (event,) = [e for f in frames for e in V2().events(f)]
    assert isinstance(event, QuestionAsked)
    expected = case("sse_question_and_form.expected.json")["v2_reply"]
    _, requests = run(V2().answer(event.question, "/w", [["a.py"]]), lambda r: reply_of(r, None))
    assert (requests[0].path, requests[0].body) == (expected["path"], expected["body"])
    assert event.question.items[0].options == (Option("a.py", "", "a"),)


EVERY: list[dict[str, Any]] = [
    {"key": "name", "type": "string", "required": True, "minLength": 2},
    {"key": "age", "type": "integer", "minimum": 0},
    {"key": "share", "type": "number"},
    {"key": "sure", "type": "boolean"},
    {"key": "kinds", "type": "multiselect", "options": NAMED, "custom": True},
    {"key": "secret", "type": "string", "hidden": True},
]


def test_a_form_with_every_kind_of_field_is_filled_in(client: Client, session: Session) -> None:
    client.run(_posted(session, EVERY))
    (question,) = [q for q in client.questions() if q.session == session.id]
    assert [i.kind for i in question.items] == ["string", "integer", "number", "boolean", "string"]
    with pytest.raises(InvalidAnswer, match="name: at least 2 characters"):
        client.run(client.dialect.answer(question, session.directory, [["x"], [], [], [], []]))
    client.run(
        client.dialect.answer(
            question, session.directory, [["Ada"], ["36"], ["0.5"], ["Yes"], ["A", "own"]]
        )
    )
    assert [q for q in client.questions() if q.session == session.id] == []


def test_an_error_that_only_the_server_detects_is_reported(
    client: Client, session: Session
) -> None:
    client.run(_posted(session, [{"key": "name", "type": "string", "pattern": "(?<a>x)"}]))
    (question,) = [q for q in client.questions() if q.session == session.id]
    client.run(client.dialect.dismiss(question, session.directory))
    with pytest.raises(StatusError, match="Form not found"):
        client.run(client.dialect.dismiss(question, session.directory))


def _posted(session: Session, fields: list[dict[str, Any]]) -> Any:
    from opencode_magics.dialects.base import Request

    body = {"title": "About you", "fields": fields}
    return (yield Request("POST", f"/api/session/{session.id}/form", {}, body))


def test_the_simulator_validates_forms(simulator: Simulator) -> None:
    from opencode_magics.practice.simulator.server import _form_errors

    assert list(_form_errors(EVERY, {"name": "Ada", "kinds": ["a"]})) == []
    more = {"key": "why", "type": "string", "required": True, "when": when("sure", False)}
    assert list(_form_errors([*EVERY, more], {"name": "Ada", "sure": True})) == []
    assert list(_form_errors([*EVERY, more], {"name": "Ada", "sure": False})) == ["why is required"]
    assert list(_form_errors(EVERY, {"age": -1, "other": 1})) == [
        "Unknown form field: other",
        "name is required",
        "age: expected 0 to -1",
    ]
