"""IPython's display of our values, with and without the formatters."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell
from support.sample_turns import EDIT, SESSION, permission, says
from traitlets.config import Config

from opencode_magics.core.diffs import Diff
from opencode_magics.core.model import Question, QuestionItem, Session
from opencode_magics.notebook import formatters, html, text
from opencode_magics.sessions.commands import CommandReceipt
from opencode_magics.sessions.edit import EditResult
from opencode_magics.sessions.end import EndResult, StopResult

VALUES = [
    says("Hello"),
    Session("ses_1", "Fix the cart", "/ws"),
    permission(),
    Question("q", SESSION, (QuestionItem("Which?"),)),
    EDIT,
    Diff.of([("msg_1", EDIT)]),
]


HOSTILE = Session("ses_1", "<b>Fix</b> the cart", "/ws")
RESULTS = [
    EndResult(
        "ses_1", HOSTILE.title, "unconfirmed", "delete", rejected=("per_1",), todo="<i>again"
    ),
    StopResult(HOSTILE, "stopped", kept="kept 3 characters"),
    EditResult(HOSTILE, "renamed to <b>", confirmed=False, undo="%oc_rename <b>"),
    CommandReceipt("cmd_1", "explain", "ses_1", "ambiguous", evidence=("msg_1 (<b>)",)),
]


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    """A shell with our formatters; they are unregistered afterwards."""
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    formatters.register(shell)
    yield shell
    formatters.unregister(shell)


def shown(shell: InteractiveShell, value: object) -> dict[str, str]:
    data, _ = shell.display_formatter.format(value)
    return dict(data)


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_values_have_html_and_plain_text(shell: InteractiveShell, value: object) -> None:
    data = shown(shell, value)
    assert set(data) == {"text/html", "text/plain"}
    assert data["text/plain"] != repr(value)
    assert data["text/html"].startswith("<div")


@pytest.mark.parametrize("value", RESULTS, ids=lambda v: type(v).__name__)
def test_results_have_html_and_their_repr_as_text(shell: InteractiveShell, value: object) -> None:
    data = shown(shell, value)
    assert data["text/plain"] == repr(value)
    assert data["text/html"].startswith("<div")
    assert "&lt;" in data["text/html"]
    assert not {"<b>", "<i>"} & set(re.findall(r"<\w+>", data["text/html"]))


def test_a_turn_is_shown_in_full(shell: InteractiveShell) -> None:
    turn = says("Hello")
    assert shown(shell, turn) == {"text/html": html.turn(turn), "text/plain": text.render(turn)}


def test_inside_a_list_a_turn_is_its_repr(shell: InteractiveShell) -> None:
    assert shown(shell, [says("Hello")]) == {"text/plain": f"[{says('Hello')!r}]"}


@pytest.mark.parametrize("value", [*VALUES, *RESULTS], ids=lambda v: type(v).__name__)
def test_after_unregister_values_are_shown_as_plain_text(
    shell: InteractiveShell, value: object
) -> None:
    shown(shell, value)
    formatters.unregister(shell)
    assert set(shown(shell, value)) == {"text/plain"}
