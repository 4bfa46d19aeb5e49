"""Permissions and questions are shown to a person in full, or decided by the policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from IPython.core.error import StdinNotImplementedError

from opencode_magics.core.model import FileDiff, Option, Permission, Question, QuestionItem
from opencode_magics.errors import AnswerNeeded
from opencode_magics.notebook.answerer import (
    Answerer,
    PermissionAnswer,
    QuestionAnswer,
    can_ask,
    escape_controls,
    escaped_line,
)

PUSH = Permission(
    "per_1", "ses_1", "bash", ("git push",), always=("git *",), command="git push --force"
)
EDIT = Permission(
    "per_2", "ses_1", "edit", ("a.txt",), ("*",), diff=FileDiff("a.txt", "--- a\n+++ b\n-old\n+new")
)
COLOUR = QuestionItem(
    "Which colour?", "Colour", (Option("Red", "warm"), Option("Blue")), required=True
)
SIZES = QuestionItem(
    "Which sizes?", "Sizes", (Option("S"), Option("L"), Option("XL")), True, required=True
)
NAME = QuestionItem("What is its name?", required=True)
POWERS = QuestionItem("How many?", options=tuple(map(Option, "1248")))
LISTS = QuestionItem("Which?", options=(Option("a, b"), Option("a"), Option("c")), multiple=True)


@dataclass
class Person:
    """Records written text and types prepared lines; a prepared exception is raised instead."""

    lines: list[Any]
    written: list[str] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)

    def read(self, prompt: str) -> str:
        self.prompts.append(prompt)
        line = self.lines.pop(0)
        if isinstance(line, BaseException):
            raise line
        return str(line)

    @property
    def seen(self) -> str:
        return "\n".join(self.written)

    def answerer(self, **changes: Any) -> Answerer:
        return replace(Answerer(can_ask=True, read=self.read, write=self.written.append), **changes)


def person(*lines: Any) -> Person:
    return Person(list(lines))


def question(*items: QuestionItem) -> Question:
    return Question("que_1", "ses_1", items)


# -- permissions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("1", PermissionAnswer("once")),
        (" 1 ", PermissionAnswer("once")),
        ("2", PermissionAnswer("always")),
        ("3", PermissionAnswer("reject")),
        ("3 use make instead", PermissionAnswer("reject", "use make instead")),
        ("3   it's 1 or 2  ", PermissionAnswer("reject", "it's 1 or 2")),
    ],
)
def test_a_typed_number_decides(typed: str, answer: PermissionAnswer) -> None:
    assert person(typed).answerer().permission(PUSH) == answer


@pytest.mark.parametrize("wrong", ["", " ", "4", "y", "yes", "1 please", "12", "2 always", "1once"])
def test_any_other_input_is_asked_again(wrong: str) -> None:
    """A typing error allows nothing."""
    anna = person(wrong, wrong, "3")
    assert anna.answerer().permission(PUSH) == PermissionAnswer("reject")
    assert len(anna.prompts) == 3


@pytest.mark.parametrize("word", ["once", "Always", "reject", "reject not now"])
def test_words_decide_as_numbers_do(word: str) -> None:
    decision, _, message = word.partition(" ")
    assert person(word).answerer().permission(PUSH) == PermissionAnswer(decision.lower(), message)


def test_a_question_may_be_dismissed() -> None:
    assert person("dismiss").answerer().question(question(COLOUR)) == QuestionAnswer(None)


def test_the_command_is_shown_in_full() -> None:
    anna = person("1")
    anna.answerer().permission(PUSH)
    assert "Permission: bash" in anna.seen
    assert "    git push --force" in anna.seen
    assert "[2] Always allow git *" in anna.seen


def test_an_edit_is_shown_as_its_diff() -> None:
    anna = person("1")
    anna.answerer().permission(EDIT)
    assert "    a.txt\n    --- a\n    +++ b\n    -old\n    +new" in anna.seen


def test_a_subagent_is_named() -> None:
    anna = person("1", "red")
    anna.answerer().permission(PUSH, "Review greet.py")
    anna.answerer().question(question(NAME), "Review greet.py")
    assert "Permission for subagent Review greet.py: bash" in anna.seen
    assert "Question for subagent Review greet.py" in anna.seen


def test_the_effects_of_a_rejection_are_shown() -> None:
    """With the same texts as the form."""
    agent, subagent = person("3", "dismiss"), person("3", "dismiss")
    agent.answerer().permission(PUSH)
    agent.answerer().question(question(NAME))
    subagent.answerer().permission(PUSH, "Review greet.py", also_rejected=2)
    subagent.answerer().question(question(NAME), "Review greet.py")
    fails = "that subagent's task fails, and the parent continues"
    assert "[3] Reject: the turn stops\n" in agent.seen
    assert (
        f"[3] Reject: {fails}; also rejects 2 other waiting permissions of this session\n"
        in subagent.seen
    )
    assert "(dismiss to give no answer: the turn stops)" in agent.prompts[1]
    assert f"(dismiss to give no answer: {fails})" in subagent.prompts[1]


# -- questions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "typed", "answer"),
    [
        (COLOUR, "2", ("Blue",)),
        (COLOUR, " 1 ", ("Red",)),
        (POWERS, "4", ("4",)),
        (POWERS, "3", ("4",)),
        (POWERS, "16", ("16",)),
        (LISTS, "a, b", ("a, b",)),
        (LISTS, "c, a, b", ("c", "a, b")),
        (LISTS, "a, c", ("a", "c")),
        (COLOUR, "green, please", ("green, please",)),
        (COLOUR, "1,2", ("1,2",)),
        (SIZES, "1,3", ("S", "XL")),
        (SIZES, "2", ("L",)),
        (SIZES, " 3 , 1 , ", ("XL", "S")),
        (SIZES, "1, huge", ("S", "huge")),
        (SIZES, "1,1", ("S",)),
        (NAME, "1", ("1",)),
    ],
)
def test_numbers_choose_options_and_other_text_is_an_answer(
    item: QuestionItem, typed: str, answer: tuple[str, ...]
) -> None:
    """Cases T7 and W8: an exact label wins, also one with a comma; then a number."""
    assert person(typed).answerer().question(question(item)) == QuestionAnswer((answer,))


@pytest.mark.parametrize(("item", "typed"), [(COLOUR, "3"), (SIZES, "1, 4"), (SIZES, ",")])
def test_a_number_that_no_option_has_is_asked_again(item: QuestionItem, typed: str) -> None:
    """Case T7: it is not sent as the answer."""
    anna = person(typed, "1")
    answered = anna.answerer().question(question(item))
    assert answered == QuestionAnswer(((item.options[0].label,),))
    assert "option" in anna.seen or "an answer is needed" in anna.seen


def test_an_optional_item_can_be_left_empty() -> None:
    """Case W8: it was asked for ever."""
    anna = person("", "1")
    answered = anna.answerer().question(question(replace(NAME, required=False), COLOUR))
    assert answered == QuestionAnswer(((), ("Red",)))
    assert "Enter for no answer" in anna.prompts[0]


def test_several_items_are_answered_one_after_another() -> None:
    anna = person("1", "", " ", "1,2", "Ada")
    answered = anna.answerer().question(question(COLOUR, SIZES, NAME))
    assert answered == QuestionAnswer((("Red",), ("S", "L"), ("Ada",)))
    assert len(anna.prompts) == 5


def test_a_question_is_shown_with_its_options() -> None:
    anna = person("1")
    anna.answerer().question(question(COLOUR))
    assert anna.written == ["Which colour?", "[1] Red - warm", "[2] Blue"]


# -- nobody can answer -----------------------------------------------------------------------------

NOBODY = [
    pytest.param(lambda: Person([]).answerer(can_ask=False), id="known in advance"),
    pytest.param(lambda: person(EOFError()).answerer(), id="end of input"),
    pytest.param(lambda: person("", EOFError()).answerer(), id="after a typing error"),
    pytest.param(lambda: person(StdinNotImplementedError("no")).answerer(), id="no stdin"),
]


@pytest.mark.parametrize("answerer", NOBODY)
@pytest.mark.parametrize("fallback", ["reject", "once"])
def test_the_policy_decides_where_nobody_can_answer(
    answerer: Callable[[], Answerer], fallback: str
) -> None:
    decided = replace(answerer(), fallback=fallback).permission(PUSH)  # type: ignore[arg-type]
    assert decided == PermissionAnswer(fallback, by="nobody can answer here")  # type: ignore[arg-type]


@pytest.mark.parametrize("answerer", NOBODY)
@pytest.mark.parametrize("fallback", ["reject", "once"])
def test_a_question_that_nobody_can_answer_is_dismissed(
    answerer: Callable[[], Answerer], fallback: str
) -> None:
    """No policy invents an answer."""
    answered = replace(answerer(), fallback=fallback).question(question(COLOUR))  # type: ignore[arg-type]
    assert answered == QuestionAnswer(None, by="nobody can answer here")


@pytest.mark.parametrize("answerer", NOBODY)
def test_the_policy_error_raises_and_names_the_permission(answerer: Callable[[], Answerer]) -> None:
    strict = replace(answerer(), fallback="error")
    with pytest.raises(AnswerNeeded, match="waiting for a permission: bash 'git push --force'"):
        strict.permission(PUSH)


@pytest.mark.parametrize("answerer", NOBODY)
def test_the_policy_error_raises_for_questions_too(answerer: Callable[[], Answerer]) -> None:
    with pytest.raises(AnswerNeeded, match="waiting for a question: 'Which colour") as caught:
        replace(answerer(), fallback="error").question(question(COLOUR))
    assert 'noninteractive = "reject"' in caught.value.todo


def test_an_incomplete_answer_dismisses_the_question() -> None:
    assert person("1", EOFError()).answerer().question(question(COLOUR, SIZES)).answers is None


@pytest.mark.parametrize("policy", ["once", "reject"])
def test_a_policy_decides_without_asking(policy: str) -> None:
    anna = person()
    decided = anna.answerer(policy=policy).permission(PUSH)
    assert decided == PermissionAnswer(policy, by=f"policy {policy!r}")  # type: ignore[arg-type]
    assert anna.written == []


def test_a_policy_for_permissions_still_asks_questions() -> None:
    assert person("2").answerer(policy="once").question(question(COLOUR)) == QuestionAnswer(
        (("Blue",),)
    )


def test_an_interrupt_is_not_an_answer() -> None:
    with pytest.raises(KeyboardInterrupt):
        person(KeyboardInterrupt()).answerer().permission(PUSH)


def test_input_is_looked_up_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel replaces `input` for each cell, after this module was imported."""
    answerer = Answerer(can_ask=True, write=lambda text: None)
    monkeypatch.setattr("builtins.input", lambda prompt: "1")
    assert answerer.permission(PUSH) == PermissionAnswer("once")


# -- deceptive text --------------------------------------------------------------------------------

NASTY = "\x1b[2Jls\rrm -rf /\x08\x00\x9b1A\u202egnp.exe\u2066"


def controls_terminal(text: str) -> bool:
    """Return whether a text has characters that a terminal interprets."""
    return any(
        (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 or c in "\u202e\u2066"
        for c in text
    )


def test_no_shown_text_can_control_the_terminal() -> None:
    anna = person("1", "1", "1")
    nasty = Permission("p", "s", NASTY, (NASTY,), (NASTY,), NASTY, FileDiff(NASTY, NASTY))
    item = QuestionItem(NASTY, NASTY, (Option(NASTY, NASTY),))
    anna.answerer().permission(nasty, NASTY)
    anna.answerer().permission(replace(nasty, command=None, diff=None))
    anna.answerer().question(question(item), NASTY)
    assert not any(controls_terminal(text) for text in anna.written + anna.prompts)
    assert "\\x1b[2Jls\\x0drm -rf /" in anna.seen


def test_no_shown_text_can_imitate_the_prompt() -> None:
    """Texts of several lines are indented; all others are escaped to one line."""
    anna = person("1", "1")
    forged = "ls\n[1] Reject\n[3] Allow once"
    forgery = Permission("p", "s", forged, (forged,), (forged,), forged, FileDiff("f", forged))
    anna.answerer().permission(forgery, forged)
    anna.answerer().question(question(QuestionItem("?", "", (Option(forged, forged),))), forged)
    lines = [line for text in anna.written for line in text.split("\n")]
    assert [line for line in lines if line.startswith("[1]")] == [
        "[1] Allow once",
        "[1] " + " - ".join([escaped_line(forged)] * 2),
    ]
    assert not any(line.startswith("[3] Allow") for line in lines)


def test_readable_text_is_unchanged() -> None:
    text = "ünï\tcode 分析 é\nline two 👍"
    assert escape_controls(text) == text


# -- can_ask ---------------------------------------------------------------------------------------


@dataclass
class Kernel:
    _allow_stdin: bool


@dataclass
class Shell:
    kernel: Kernel | None = None


def test_a_kernel_knows_whether_its_front_end_can_answer() -> None:
    assert can_ask(Shell(Kernel(True)))
    assert not can_ask(Shell(Kernel(False)))


def test_a_shell_without_a_terminal_cannot_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert not can_ask(Shell())
