"""Detecting the generation, reading error replies, and the dialect of 1.x."""

from __future__ import annotations

import json

import pytest
from support.fake_server import assistant, user
from support.recorded_flows import case
from support.wire import PAGE, reply_of, run

from opencode_magics.core.model import (
    Attachment,
    FileDiff,
    ModelRef,
    Permission,
    Question,
    Server,
    Session,
    Usage,
)
from opencode_magics.dialects import v1_shapes
from opencode_magics.dialects.base import Prompt, Reply, Request
from opencode_magics.dialects.detect import detect
from opencode_magics.dialects.jsonwire import clean_text, decode_list, dumps, loads
from opencode_magics.dialects.replies import error_from_reply
from opencode_magics.dialects.v1 import V1
from opencode_magics.errors import (
    AuthenticationError,
    NotFoundError,
    OpenCodeError,
    SessionBusyError,
    StatusError,
    StreamError,
    UnsupportedServerError,
)


def status(code, value=None):
    return lambda request: reply_of(request, value, code)


# -- detection -------------------------------------------------------------------------------------


def test_generations_are_distinguished_by_their_replies():
    """Case G1-08."""
    probes = case("http_version_probe.json")
    for name, expected in probes["expected"].items():
        answers = {k.removeprefix("GET "): probe(v) for k, v in probes[name].items()}
        assert generation(answers) == expected


def generation(answers):
    server, dialect = run(detect(), answers)[0]
    assert dialect.generation == server.generation
    return server.generation


def probe(reply):
    if "json" in reply:
        return reply["json"]
    kind = {"content-type": reply.get("content_type", "")}
    return Reply(Request("GET", "/"), reply["status"], kind, reply.get("body", "").encode())


def test_a_1x_server_that_serves_the_preview_is_1x():
    answers = {"/api/health": {"healthy": True}, "/global/health": {"version": "1.18.33"}}
    assert run(detect(), answers)[0][0] == Server("1.x", "1.18.33")


@pytest.mark.parametrize("info", [{"version": "2.0.3"}, {"version": 2, "pid": 1}, {"pid": 1}, []])
def test_a_partial_reply_is_not_taken_for_2x(info):
    with pytest.raises(UnsupportedServerError, match="No OpenCode server"):
        run(detect(), {"/api/info": info})


def test_the_error_lists_the_requests_and_their_replies():
    with pytest.raises(UnsupportedServerError) as caught:
        run(detect(), lambda request: PAGE)
    assert "GET /api/info -> 200 text/html" in caught.value.what
    assert "GET /global/health -> 200 text/html" in caught.value.what


def test_a_401_asks_for_credentials_at_once():
    with pytest.raises(AuthenticationError):
        run(detect(), lambda request: reply_of(request, None, 401))


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "body", "kind", "words"),
    [
        (
            404,
            {"name": "NotFoundError", "data": {"message": "Session not found: x"}},
            NotFoundError,
            "Session not found: x",
        ),
        (404, {"_tag": "PermissionNotFoundError", "message": "gone"}, NotFoundError, "gone"),
        (409, {"_tag": "SessionBusyError", "message": "busy"}, SessionBusyError, "busy"),
        (
            400,
            {"name": "BadRequest", "data": {"message": "Missing key"}},
            StatusError,
            "Missing key",
        ),
        (400, {"_tag": "BadRequest"}, StatusError, "HTTP 400"),
        (
            500,
            {"name": "UnknownError", "data": {"message": "Unexpected", "ref": "err_1"}},
            StatusError,
            "err_1",
        ),
        (500, None, StatusError, "HTTP 500"),
        (401, None, AuthenticationError, "OPENCODE_SERVER_PASSWORD"),
    ],
)
def test_all_error_shapes_become_exceptions_with_the_servers_reason(code, body, kind, words):
    error = error_from_reply(reply_of(Request("GET", "/session"), body, code))
    assert type(error) is kind
    assert words in str(error)
    assert error.status == code


def test_an_error_body_of_any_shape_is_text():
    """Case G1-33."""
    for body in ([], "text", {"data": "text"}, {"data": {"message": None}}, {"name": None}):
        assert str(error_from_reply(reply_of(Request("GET", "/x"), body, 500)))


def test_a_redirect_of_a_post_is_reported_and_not_followed():
    reply = Reply(Request("POST", "/session"), 307, {"location": "http://elsewhere/"}, b"")
    assert "http://elsewhere/" in str(error_from_reply(reply))


def test_a_web_page_is_not_a_valid_reply():
    with pytest.raises(StatusError, match="text/html instead of JSON"):
        run(V1().session("ses_1"), {})


# -- text ------------------------------------------------------------------------------------------


def test_a_lone_surrogate_is_replaced_in_both_directions():
    """Case G1-29."""
    (wire,) = case("messages_lone_surrogate.json")
    text = v1_shapes.message_with_parts(wire).text
    assert text == "bad \ufffd half, good \U0001f600, nul \0"
    assert json.loads(dumps({"text": "bad \ud83d"}))["text"] == "bad \ufffd"
    assert loads('"\\ud83d\\ude00"') == "\U0001f600"
    assert clean_text("plain") == "plain"


# -- requests of 1.x -------------------------------------------------------------------------------


def sent(flow, answer=None):
    _, requests = run(flow, lambda request: reply_of(request, answer))
    return requests[-1]


HERE = Session("ses_1", directory="/data/100% done/分析 é")


def test_a_prompt_has_its_own_id_and_no_tools():
    prompt = Prompt(
        "msg_1",
        "do it",
        "plan",
        ModelRef("acme", "m", "high"),
        (Attachment("", "text/plain", "a.txt", "data:,a"),),
    )
    request = sent(V1().prompt(HERE, prompt))
    assert request.path == "/session/ses_1/prompt_async"
    assert request.body == {
        "messageID": "msg_1",
        "parts": [
            {"type": "file", "mime": "text/plain", "filename": "a.txt", "url": "data:,a"},
            {"type": "text", "text": "do it"},
        ],
        "agent": "plan",
        "model": {"providerID": "acme", "modelID": "m"},
        "variant": "high",
    }


def test_ids_ascend_with_time_and_never_repeat():
    ids = [V1().new_prompt_id(1795964090797 + n) for n in range(50)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 50
    assert ids[0].startswith("msg_227cd39ad001")  # as 1.18.33 encodes this time


@pytest.mark.parametrize(
    ("flow", "body"),
    [
        (V1().statuses("/w"), {}),
        (V1().permissions("/w"), []),
        (V1().questions("/w"), []),
        (V1().agents("/w"), []),
        (V1().create("/w", None), {"id": "ses_1"}),
        (V1().reply(Permission("per_1", "ses_1", "bash"), "/w", "once", ""), None),
        (V1().answer(Question("que_1", "ses_1", ()), "/w", [["a"]]), None),
        (V1().dismiss(Question("que_1", "ses_1", ()), "/w"), None),
    ],
)
def test_requests_without_a_session_id_have_a_directory(flow, body):
    assert sent(flow, body).query["directory"] == "/w"


def test_answers_are_sent_as_nested_lists_to_the_question_route():
    """Case G1-17."""
    request = sent(V1().answer(Question("que_1", "ses_1", ()), "/w", (("Red",), ("S", "my own"))))
    assert request.path == "/question/que_1/reply"
    assert request.body == {"answers": [["Red"], ["S", "my own"]]}


def test_the_complete_list_of_sessions_is_requested():
    assert sent(V1().sessions("/w", project=True), []).query["limit"] >= 100_000


def test_sessions_of_all_directories_are_paged_until_the_cursor_ends_or_repeats():
    pages = {None: ("a", "1"), "1": ("b", "2"), "2": ("c", "2")}

    def answer(request):
        name, cursor = pages[request.query["cursor"]]
        return reply_of(request, [{"id": name}], x_next_cursor=cursor)

    sessions, requests = run(V1().sessions(None, project=False), answer)
    assert [s.id for s in sessions] == ["a", "b", "c"]
    assert len(requests) == 3


def test_messages_of_another_directory_are_requested_again_there():
    """Case G1-24."""
    messages = [user("msg_1"), assistant("msg_2", "msg_1", "hello")]

    def answer(request):
        if request.path == "/session/ses_1":
            return reply_of(request, {"id": "ses_1", "directory": "/b"})
        received = request.query["directory"] == "/b"
        return reply_of(request, messages if received else None, 200 if received else 404)

    received, _ = run(V1().messages(Session("ses_1", directory="/a")), answer)
    assert [m.text for m in received] == ["hi", "hello"]


def test_a_long_list_of_messages_is_complete():
    """Case G1-20."""
    messages = [user(f"msg_{n}", n) for n in range(250)]
    received, requests = run(V1().messages(HERE), lambda request: reply_of(request, messages))
    assert len(received) == 250
    assert "limit" not in requests[0].query


# -- replies of 1.x --------------------------------------------------------------------------------


def test_unknown_kinds_are_ignored_and_malformed_known_ones_are_named():
    assert list(V1().events({"type": "future.thing", "properties": {}})) == []
    assert list(V1().events("nonsense")) == []
    for properties in (None, {}, {"info": None}, {"info": {"role": "user"}}, {"info": []}):
        with pytest.raises(StreamError, match=r"message\.updated"):
            list(V1().events({"type": "message.updated", "properties": properties}))


@pytest.mark.parametrize("answer", [{}, "", {"error": "no"}])
def test_a_reply_that_is_not_a_list_is_not_an_empty_list(answer):
    """It must not be read as "no permission is pending" or "the turn is over"."""
    with pytest.raises(OpenCodeError, match="expected a list"):
        decode_list("a permission", dict, answer)


def test_an_unexpected_reply_is_an_error_that_names_it():
    with pytest.raises(OpenCodeError, match="a session that can't be decoded"):
        run(V1().session("ses_1"), lambda request: reply_of(request, {"no": "id"}))


def test_placeholder_zeros_are_unknown():
    zeros = {
        "cost": 0,
        "tokens": {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}},
    }
    assert v1_shapes.message_with_parts(assistant("m", "p", **zeros)).usage is None
    free = zeros | {"tokens": zeros["tokens"] | {"input": 5}}
    assert v1_shapes.message_with_parts(assistant("m", "p", **free)).usage == Usage(
        5, 0, 0, 0, 0, 0
    )


def test_missing_counts_are_unknown_not_zero():
    """G2-06: tokens without a cache, a cost of null."""
    part = assistant("m", "p", cost=None, tokens={"input": 9007199254740993, "output": 1})
    assert v1_shapes.message_with_parts(part).usage == Usage(9007199254740993, 1)


def test_an_unarchived_session_is_not_archived():
    assert v1_shapes.session({"id": "s", "time": {"created": 1, "archived": 0}}).archived is None


@pytest.mark.parametrize(
    ("meta", "diffs"),
    [
        (
            {"filediff": {"file": "a", "patch": "p", "additions": 1, "deletions": 0}},
            (FileDiff("a", "p", 1, 0),),
        ),
        ({"diff": "p", "filepath": "a"}, (FileDiff("a", "p"),)),
        ({"files": [{"relativePath": "a", "diff": "p"}]}, (FileDiff("a", "p"),)),
        ({"diff": True}, ()),
        ({}, ()),
    ],
)
def test_edits_are_found_in_every_shape_of_a_tools_report(meta, diffs):
    state = {"status": "completed", "metadata": meta}
    part = {"id": "t", "type": "tool", "tool": "edit", "callID": "c", "state": state}
    message = v1_shapes.message_with_parts({"info": user("m")["info"], "parts": [part]})
    assert message.tools[0].diffs == diffs
