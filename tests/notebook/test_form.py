"""The form of a running cell: its content and its clicks."""

from __future__ import annotations

import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support import hostile_payloads
from support.fake_front_end import WIDGET, FrontEnd

from opencode_magics.core.model import FileDiff, Option, Permission, Question, QuestionItem
from opencode_magics.notebook.form import AskWidget, Click, Form, permission_spec, question_spec

PUSH = Permission("per_1", "ses_1", "bash", ("git push",), ("git *",), "git push --force")
SCOPE = "for every session in this directory, until the server restarts"
SPEC = {"id": "per_1", "title": "Permission", "choices": []}


def clicks(form: Form) -> list[Click]:
    return list(iter(form.next_click, None))


def edit(patch: str) -> Permission:
    return Permission("per_2", "ses_1", "edit", ("a.py",), ("*",), diff=FileDiff("a.py", patch))


def effects(spec: dict[str, Any], key: str = "effect") -> dict[str, str]:
    return {c["value"]: c[key] for c in spec["choices"] if key in c}


def shown(spec: dict[str, Any]) -> dict[str, str]:
    """The details of a form, by label."""
    return {detail["label"]: detail["text"] for detail in spec["details"]}


# -- permissions -----------------------------------------------------------------------------------


def test_a_command_is_shown_in_full() -> None:
    command = "echo " + "x" * 5_000 + "\nrm -rf /"
    permission = Permission("per_1", "ses_1", "bash", ("echo *",), ("echo *",), command)
    spec = permission_spec(permission, "", SCOPE, 0, "/p")
    assert shown(spec)["In"] == "/p"
    (text,) = [text for label, text in shown(spec).items() if label.startswith("Command")]
    assert text == command
    assert spec["title"].startswith("Permission: bash 'echo xx")


def test_it_shows_the_effect_of_each_answer() -> None:
    spec = permission_spec(PUSH, "", SCOPE, 0, "/p")
    assert effects(spec) == {
        "once": "Allow once: only this time.",
        "always": f"Always allow: git * {SCOPE}.",
        "reject": "Reject without a message: the turn stops.",
    }
    assert effects(spec, "with_message") == {
        "reject": "Reject with this message: the agent reads it and continues."
    }


def test_a_subagents_permission_names_it_and_says_that_the_parent_continues() -> None:
    spec = permission_spec(PUSH, "Run the tests", SCOPE, 2, "/p")
    assert spec["title"] == "Permission for subagent 'Run the tests': bash 'git push --force'"
    assert effects(spec)["reject"] == (
        "Reject without a message: that subagent's task fails, and the parent continues; "
        "also rejects 2 other waiting permissions of this session."
    )
    assert "2 other waiting permissions" in effects(spec, "with_message")["reject"]


def test_an_edit_is_shown_with_its_full_lines() -> None:
    hidden = "x = 1" + " " * 5_000 + "; evil()"
    spec = permission_spec(edit(f"--- a\n+++ a\n@@ -1 +1 @@\n-x\n+{hidden}\n"), "", SCOPE, 0, "/p")
    assert spec["diff"] == [("@", "@@ -1 +1 @@"), ("-", "-x"), ("+", f"+{hidden}")]
    assert shown(spec) == {"Files": "a.py"}


def test_an_edit_of_several_files_names_each() -> None:
    patch = "--- {0}\n+++ {0}\n@@ -1 +1 @@\n-x\n+y\n"
    spec = permission_spec(edit(patch.format("a.py") + patch.format("b.py")), "", SCOPE, 0, "/p")
    headings = [text for kind, text in spec["diff"] if kind == "@"]
    assert headings == ["a.py", "@@ -1 +1 @@", "b.py", "@@ -1 +1 @@"]


def test_an_edit_of_line_endings_is_noted() -> None:
    spec = permission_spec(edit("--- a\n+++ a\n@@ -1 +1 @@\n-x\r\n+x\n"), "", SCOPE, 0, "/p")
    assert "CRLF → LF" in spec["diff"][0][1]
    assert spec["diff"][2:] == [("-", "-x␍"), ("+", "+x")]


@pytest.mark.parametrize("patch", ["nonsense\nof two lines", "old mode 100644\nnew mode 100755"])
def test_a_patch_that_does_not_parse_is_shown_raw(patch: str) -> None:
    spec = permission_spec(edit(patch), "", SCOPE, 0, "/p")
    assert "\n".join(text for _, text in spec["diff"]) == patch


def test_an_edit_without_a_patch_shows_at_least_its_files() -> None:
    spec = permission_spec(edit(""), "", SCOPE, 0, "/p")
    assert (spec["diff"], shown(spec)) == ([], {"Files": "a.py"})


def test_unchanged_line_endings_are_not_shown() -> None:
    spec = permission_spec(edit("--- a\n+++ a\n@@ -1 +1 @@\n-x\r\n+y\r\n"), "", SCOPE, 0, "/p")
    assert spec["diff"][1:] == [("-", "-x"), ("+", "+y")]


def test_invisible_characters_are_made_visible() -> None:
    permission = Permission("p", "s", "bash", command="ls\u202e\x1b[8m\u200b")
    spec = permission_spec(permission, "", SCOPE, 0, "/p")
    assert shown(spec)["Command"] == "ls⟨U+202E⟩␛[8m⟨U+200B⟩"


def test_content_too_long_for_a_message_is_cut_with_a_note() -> None:
    patch = "--- a\n+++ a\n@@ -0,0 +1,9999 @@\n" + f"+{'x' * 100}\n" * 9_999
    spec = permission_spec(edit(patch), "", SCOPE, 0, "/p")
    assert spec["diff"][-1] == ("@", "… the rest is too long to show here")
    assert sum(len(text) for _, text in spec["diff"]) < 250_000
    long = Permission("p", "s", "bash", command="x" * 1_000_000)
    (command, _) = permission_spec(long, "", SCOPE, 0, "/p")["details"]
    assert command["folded"]
    assert re.fullmatch(r"Command \(\d+ lines?, [\d,]+ characters\)", command["label"])
    assert "characters left out" in command["text"]


# -- questions -------------------------------------------------------------------------------------


def test_a_question_is_shown_in_full() -> None:
    long = "Which one? " * 100
    item = QuestionItem(long, "Choice", (Option("A", "first\nline " * 50), Option("B")), True)
    spec = question_spec(Question("que_1", "ses_1", (item,)), "")
    assert spec["title"] == "Question"
    assert spec["items"] == [
        {
            "header": "Choice",
            "question": long,
            "note": "",
            "asks": True,
            "required": False,
            "key": "",
            "when": [],
            "default": [],
            "multiple": True,
            "options": [
                {"label": "A", "value": "A", "description": "first\nline " * 50, "chosen": False},
                {"label": "B", "value": "B", "description": "", "chosen": False},
            ],
            "input": "text",
            "own": "",
            "least": None,
            "most": None,
            "step": "",
        }
    ]


YES_OR_NO = (Option("Yes", value="true"), Option("No", value="false"))


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (QuestionItem("?"), {"input": "text", "options": []}),
        (QuestionItem("?", kind="integer", least=1, most=5), {"least": 1, "most": 5, "step": "1"}),
        (QuestionItem("?", kind="integer"), {"input": "number", "least": None}),
        (QuestionItem("?", kind="number"), {"input": "number", "step": "any"}),
        (QuestionItem("?", least=3), {"input": "text", "least": None}),
        (QuestionItem("?", format="email"), {"input": "email"}),
        (QuestionItem("?", format="uri"), {"input": "url"}),
        (QuestionItem("?", format="date"), {"input": "date"}),
        (QuestionItem("?", format="date-time"), {"input": "text"}),
        (QuestionItem("?", format="colour"), {"input": "text"}),
        (QuestionItem("?", options=YES_OR_NO, kind="boolean"), {"input": "", "multiple": False}),
        (QuestionItem("?", options=YES_OR_NO, custom=False), {"input": ""}),
        (QuestionItem("?", required=True), {"required": True}),
        (
            QuestionItem("?", required=True, when=(("k", "eq", "v"),)),
            {"required": True, "when": [["k", "eq", "v"]]},  # the page checks whether it applies
        ),
        (QuestionItem("?", default=("7",), kind="integer"), {"own": "7"}),
        (
            QuestionItem("?", kind="external", url="https://example.org", required=True),
            {"input": "", "note": "https://example.org", "asks": False, "required": False},
        ),
    ],
)
def test_every_kind_of_field_has_an_input_of_its_own(
    item: QuestionItem, expected: dict[str, Any]
) -> None:
    (spec,) = question_spec(Question("que_1", "ses_1", (item,)), "")["items"]
    assert {key: spec[key] for key in expected} == expected


def test_the_default_is_preselected() -> None:
    item = QuestionItem("?", options=YES_OR_NO, kind="boolean", custom=False, default=("false",))
    (spec,) = question_spec(Question("que_1", "ses_1", (item,)), "")["items"]
    assert [o["chosen"] for o in spec["options"]] == [False, True]
    mixed = QuestionItem("?", options=(Option("A", value="a"),), multiple=True, default=("a", "b"))
    (spec,) = question_spec(Question("que_1", "ses_1", (mixed,)), "")["items"]
    assert (spec["options"][0]["chosen"], spec["own"]) == (True, "b")


def test_a_subagents_question_names_it() -> None:
    question = Question("que_1", "ses_1", (QuestionItem("Why?"),))
    spec = question_spec(question, "Look around (@explore subagent)")
    assert spec["title"] == "Question for subagent 'Look around'"
    effect = "that subagent's task fails, and the parent continues"
    assert spec["dismissal"] == f"Dismiss: no answer, and {effect}."
    assert question_spec(question, "")["dismissal"] == "Dismiss: no answer, and the turn stops."


# -- clicks ----------------------------------------------------------------------------------------


def test_only_the_first_click_counts(front: FrontEnd) -> None:
    form = Form()
    form.place("here")
    form.show(SPEC)
    front.click("reject", message="  not now ")
    front.click("once")
    assert clicks(form) == [Click("per_1", "reject", "not now")]
    assert clicks(form) == []


class SlowId(str):
    """An id whose lookup is slow, so that another thread runs in between."""

    __slots__ = ()

    def __hash__(self) -> int:
        time.sleep(0.001)
        return super().__hash__()


def test_two_simultaneous_clicks_count_once(front: FrontEnd) -> None:
    """Case G4-03."""
    form = Form()
    for n in range(5):
        form.show({"id": f"per_{n}", "title": ""})
        barrier = threading.Barrier(2)

        def press(reply: str, n: int = n, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            front.click(reply, id=SlowId(f"per_{n}"))

        threads = [threading.Thread(target=press, args=(r,)) for r in ("once", "reject")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(clicks(form)) == 1


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"kind": "other"},
        {"kind": "answer"},
        {"kind": "answer", "id": 7, "reply": "once"},
        {"kind": "answer", "id": "per_1", "reply": "sudo"},
        {"kind": "answer", "id": "per_1", "reply": "answer"},
        {"kind": "answer", "id": "per_1", "reply": "answer", "answers": "Red"},
    ],
)
def test_other_messages_are_ignored(front: FrontEnd, content: dict[str, Any]) -> None:
    form = Form()
    form.show(SPEC)
    front.form.hear(**content)
    assert clicks(form) == []
    assert not form.ready


def test_answers_are_returned_unchanged(front: FrontEnd) -> None:
    form = Form()
    form.show(SPEC)
    front.click("answer", answers=[["Red"], ["S", "my own"]])
    assert clicks(form) == [Click("per_1", "answer", answers=(("Red",), ("S", "my own")))]


def test_a_request_that_is_shown_again_can_be_answered_again(front: FrontEnd) -> None:
    """The page gets an update, although the spec is equal."""
    form = Form()
    for _ in range(3):
        before = front.form.updates
        form.show(SPEC)
        assert front.form.updates == before + 1
        front.click("once")
    assert len(clicks(form)) == 3


def test_it_is_ready_only_after_the_pages_message(front: FrontEnd) -> None:
    front.draws = False
    form = Form()
    form.place("here")
    assert not form.ready
    front.form.hear(kind="ready")
    assert form.ready


# -- outputs ---------------------------------------------------------------------------------------


def test_it_is_displayed_in_the_given_output(front: FrontEnd) -> None:
    form = Form()
    front.publish({"text/plain": "something else"})
    form.place("here")
    assert list(front.outputs)[1:] == ["here"]
    assert front.forms == [1]


def test_a_hidden_form_asks_nothing(front: FrontEnd) -> None:
    form = Form()
    form.place("here")
    form.show(SPEC)
    form.hide()
    assert front.asks == {}


def test_a_closed_form_leaves_nothing(front: FrontEnd) -> None:
    form = Form()
    form.place("here")
    form.close("here")
    assert not front.form.open_
    assert not any(WIDGET in data for data in front.outputs.values())


# -- safety ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", hostile_payloads.ALL.values(), ids=hostile_payloads.ALL)
def test_any_request_can_be_sent_to_the_page(front: FrontEnd, payload: str) -> None:
    """A lone surrogate would make sending fail, and with it the cell."""
    permission = Permission("p", "s", payload, (payload,), (payload,), payload)
    patch = f"--- {payload}\n+++ {payload}\n@@ -1 +1 @@\n-x\n+{payload}\n"
    item = QuestionItem(payload, payload, (Option(payload, payload),))
    form = Form()
    for spec in (
        permission_spec(permission, payload, SCOPE, 0, "/p"),
        permission_spec(edit(patch), payload, SCOPE, 0, "/p"),
        question_spec(Question("q", "s", (item,)), payload),
    ):
        form.show(spec | {"note": "?"})
        assert front.asks["id"] == spec["id"]


@pytest.mark.parametrize("api", ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"])
def test_the_form_creates_no_markup_from_text(api: str) -> None:
    """All its texts go through `textContent`; the browser tests check the effect."""
    assert api not in Path(str(sys.modules[AskWidget.__module__].__file__)).with_name(
        "ask.js"
    ).read_text(encoding="utf-8")
