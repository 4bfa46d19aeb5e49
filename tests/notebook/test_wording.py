"""The lines that all views share, and the cleaning of foreign text."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sample_turns import (
    CHILD,
    SESSION,
    USAGE,
    answer,
    permission,
    running,
    says,
    tool,
    turn,
)

from opencode_magics.core.model import (
    Failure,
    FileDiff,
    ModelRef,
    Option,
    Question,
    QuestionItem,
    Session,
    Text,
    Usage,
)
from opencode_magics.core.turn import Retry
from opencode_magics.notebook import wording
from opencode_magics.notebook.blocks import RequestState

# -- the last line ---------------------------------------------------------------------------------


def test_the_last_line_has_outcome_agent_model_steps_tools_tokens_cost_and_time() -> None:
    assert wording.summary(says("Hi")) == (
        "succeeded · build · mock/m1 · 1 step · 0 tools · 1,050 tokens (600 in, 30 out, "
        "20 reasoning, 400 cache read) · $0.0027 · 3.2 s"
    )


def test_a_variant_is_shown() -> None:
    model = ModelRef("mock", "m1", "high")
    assert "mock/m1 · high" in wording.summary(turn(answer(Text("a", "Hi", 0, 1), model=model)))


def test_unreported_values_are_unknown_and_not_zero() -> None:
    aborted = turn(answer(usage=None, error=Failure("MessageAbortedError", "Aborted"), finish=None))
    assert "tokens unknown · cost unknown" in wording.summary(aborted)
    assert "0 tokens" not in wording.summary(aborted)


def test_zeros_of_a_server_that_never_counted_are_unknown() -> None:
    """1.18.33 stores zeros for an aborted message."""
    silent = turn(answer(Text("a", "Hi", 0, 1), usage=Usage(0, 0, 0, 0, 0, 0.0)))
    assert "tokens unknown · cost unknown" in wording.summary(silent)


def test_partly_known_usage_is_shown_as_a_minimum() -> None:
    known = answer(tool(), finish="tool-calls")
    unknown = answer(usage=None, id="msg_2", error=Failure("MessageAbortedError", ""), finish=None)
    assert "≥ 1,050 tokens" in wording.summary(turn(known, unknown))
    assert "≥ $0.0027" in wording.summary(turn(known, unknown))


def test_a_single_unknown_count_is_a_question_mark() -> None:
    usage = Usage(600, 30, None, 400, None, 0.1)
    assert "? reasoning, 400 cache read, ? cache write" in wording.summary(
        turn(answer(usage=usage))
    )


def test_the_cost_of_subagents_is_included_and_noted() -> None:
    child = Session(CHILD, "Help", parent=SESSION, created=1_200, usage=USAGE)
    summary = wording.summary(says("Hi", sessions=(child,)))
    assert "2,100 tokens" in summary
    assert "$0.0053 (incl. 1 subagent)" in summary


def test_a_free_turn_costs_nothing() -> None:
    free = turn(answer(Text("a", "Hi", 0, 1), usage=Usage(5, 5, 0, 0, 0, 0.0)))
    assert " · $0 · " in wording.summary(free)


def test_a_running_turn_shows_no_usage_yet() -> None:
    assert wording.summary(running()) == "running · build · mock/m1 · 0 steps · 0 tools"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.0513, "51 ms"),
        (0.9996, "1.0 s"),
        (3.24, "3.2 s"),
        (59.96, "1 min 00 s"),
        (65, "1 min 05 s"),
        (3600 * 2 + 180, "2 h 03 min"),
    ],
)
def test_durations_are_readable(seconds: float, text: str) -> None:
    assert wording.seconds(seconds) == text


# -- one line each ---------------------------------------------------------------------------------


def test_a_shell_call_is_shown_by_its_command_and_not_its_title() -> None:
    deceptive = tool(title="List files", input={"command": "rm -rf /", "description": "List files"})
    assert wording.tool_subject(deceptive) == "rm -rf /"


def test_other_calls_are_shown_by_their_title_or_main_input() -> None:
    assert (
        wording.tool_subject(tool("read", title="a.txt", input={"filePath": "/ws/a.txt"}))
        == "a.txt"
    )
    assert wording.tool_subject(tool("glob", title="", input={"pattern": "*.py"})) == "*.py"
    assert wording.tool_subject(tool("thing", input={})) == ""


def test_a_cut_line_has_an_ellipsis() -> None:
    assert wording.first_line("first\nsecond") == "first …"
    assert wording.first_line("x" * 200) == "x" * (wording.LIMIT - 1) + "…"
    assert wording.first_line("\n  only\n") == "only"


def test_a_permission_in_one_line() -> None:
    push = permission()
    assert wording.request_line(RequestState(push)) == "Waiting for permission: bash 'git push'"
    assert wording.request_line(RequestState(push, "once")) == "Permission: bash 'git push' → once"
    rejected = RequestState(push, "reject", "use stash", "Look around (@general subagent)")
    assert wording.request_line(rejected) == (
        "Permission for subagent 'Look around': bash 'git push' → reject (use stash)"
    )


def test_a_permission_without_a_command_is_shown_by_its_patterns() -> None:
    edit = permission(action="edit", command=None, patterns=("app.py", "b.py"))
    assert (
        wording.request_line(RequestState(edit, "always"))
        == "Permission: edit app.py, b.py → always"
    )


def test_a_question_in_one_line() -> None:
    question = Question("q", SESSION, (QuestionItem("Which?", options=(Option("A"),)),))
    assert wording.request_line(RequestState(question)) == "Waiting for an answer: Which?"
    assert (
        wording.request_line(RequestState(question, "answered", "A"))
        == "Question: Which? → answered (A)"
    )


def test_a_retry_shows_attempt_reason_and_time() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5).timestamp() * 1000
    line = wording.retry_line(Retry(2, "Too many requests", int(at), None))
    assert line == "Retry 2: Too many requests · next try at 03:04:05"
    assert wording.retry_line(Retry(None, "", None, None)) == "Retry: the provider failed"


def test_a_failure_is_shown_in_the_servers_words() -> None:
    failure = Failure("APIError", "bad key", 401, "mock")
    assert wording.failure_line(failure) == "APIError: mock: bad key (status 401)"
    assert wording.failure_line(Failure("MessageAbortedError", "Aborted")) == "Aborted"


def test_edits_of_one_file_are_added_up() -> None:
    diffs = [FileDiff("a", "", 1, 0), FileDiff("b"), FileDiff("a", "", 2, 3)]
    assert wording.changed_files(diffs) == {"a": (3, 3), "b": (None, None)}


def test_missing_counts_are_taken_from_the_patch() -> None:
    diff = FileDiff("a", "--- a\n+++ a\n@@ -1 +1,2 @@\n-x\n+y\n+z\n")
    assert wording.changed_files([diff]) == {"a": (2, 1)}


# -- cleaning --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07seen", "seen"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;never ended\nnext", "\nnext"),
        ("bell\x07 null\x00 del\x7f csi\x9b31m", "bell null del csi31m"),
        ("dos\r\nline\rover", "dos\nline\nover"),
        ("half \ud83d and whole \ud83d\ude00.", "half \ufffd and whole 😀."),
    ],
)
def test_everything_that_a_terminal_interprets_is_removed(raw: str, text: str) -> None:
    assert wording.clean(raw) == text


NASTY = st.text(st.sampled_from("ab \n\r\t\x1b[]0;31m\x07\\\x9b\ud83d\ude00"), max_size=40)


@given(NASTY)
def test_clean_text_has_no_controls_and_is_utf8(raw: str) -> None:
    text = wording.clean(raw)
    assert not any(ord(c) < 32 and c not in "\n\t" for c in text)
    text.encode()


@given(NASTY, NASTY)
def test_the_clean_form_of_a_growing_text_only_grows(start: str, rest: str) -> None:
    """A terminal can't take back what it printed."""
    assert wording.clean(start + rest).startswith(wording.clean(start))
