"""A turn as plain text, in one piece and printed incrementally."""

from __future__ import annotations

import io
import sys

import pytest
from support.recorded_flows import V1_FLOWS, flow
from support.sample_turns import (
    EDIT,
    SESSION,
    answer,
    everything_hostile,
    permission,
    running,
    says,
    tool,
    turn,
)

from opencode_magics.core.fold import advance
from opencode_magics.core.model import (
    Failure,
    Option,
    Question,
    QuestionItem,
    Reasoning,
    Session,
    StepStart,
    Text,
)
from opencode_magics.core.turn import Retry, SettledRequest, Turn
from opencode_magics.notebook.text import TextView, render, request, session


class Printed:
    """A view that records what it prints, call by call."""

    def __init__(self, dim: bool = False) -> None:
        self.calls: list[str] = []
        self.view = TextView(self.calls.append, dim=dim)

    def show(self, turn: Turn, note: str = "") -> str:
        """Show a state and return the text that it added."""
        before = len(self.calls)
        self.view.show(turn, note)
        return "".join(self.calls[before:])


def test_a_complete_turn_as_text() -> None:
    shown = turn(
        answer(
            Reasoning("a", "Look first.\nThen run.", 0, 1),
            Text("b", "I run it.", 0, 1),
            tool(exit=1),
            tool("edit", "call_2", title="app.py", input={}, diffs=(EDIT,)),
            Text("c", "**Done.**", 0, 1),
        ),
        settled_requests=(SettledRequest(permission(), "once"),),
    )
    assert render(shown).split("\n") == [
        "│ Look first.",
        "│ Then run.",
        "",
        "I run it.",
        "",
        "! bash git push (exit 1, 400 ms)",
        "→ Permission: bash 'git push' → once",
        "✓ edit app.py (400 ms)",
        "  app.py +1 -1",
        "  @@ -1,2 +1,2 @@",
        "  -old",
        "  +new",
        "   same",
        "",
        "**Done.**",
        "",
        "Changed 1 file: app.py +1 -1",
        "",
        "succeeded · build · mock/m1 · 1 step · 2 tools · 1,050 tokens (600 in, 30 out, "
        "20 reasoning, 400 cache read) · $0.0027 · 3.2 s",
    ]


def test_text_is_printed_as_it_grows() -> None:
    printed = Printed()
    assert printed.show(running(Text("a", "Hel"))) == "Hel"
    assert printed.show(running(Text("a", "Hello"))) == "lo"
    assert printed.show(running(Text("a", "Hello"))) == ""
    assert printed.show(running(Text("a", "Hello\n"))) == ""
    assert printed.show(running(Text("a", "Hello\nyou", 0, 1))) == "\nyou"


def test_reasoning_has_a_bar_on_every_line() -> None:
    printed = Printed()
    assert printed.show(running(Reasoning("a", "one\ntw"))) == "│ one\n│ tw"
    assert printed.show(running(Reasoning("a", "one\ntwo\nthree"))) == "o\n│ three"


def test_reasoning_is_dim_in_a_terminal() -> None:
    printed = Printed(dim=True)
    assert printed.show(running(Reasoning("a", "hm"))) == "\x1b[2m│ hm\x1b[22m"
    assert printed.show(running(Reasoning("a", "hm", 0, 1), Text("b", "Hi"))) == "\n\nHi"


def test_a_tool_is_printed_once_when_it_is_done() -> None:
    printed = Printed()
    assert printed.show(running(tool(status="pending"))) == ""
    assert printed.show(running(tool(status="running"))) == ""
    assert printed.show(running(tool())) == "✓ bash git push (400 ms)"
    assert printed.show(running(tool())) == ""


def test_a_permission_is_printed_when_asked_and_when_settled() -> None:
    printed = Printed()
    waits = printed.show(running(tool(status="running"), permissions=(permission(),)))
    assert waits == "? Waiting for permission: bash 'git push'"
    settled = running(
        tool(status="running"), settled_requests=(SettledRequest(permission(), "once"),)
    )
    assert printed.show(settled) == "\n→ Permission: bash 'git push' → once"


def test_a_request_alone_is_printed_in_full() -> None:
    command = permission(command="git push\nrm -rf /")
    assert request(command).endswith("git push …'\n  Command: git push\n  rm -rf /")
    assert "  -old\n  +new" in request(permission(action="edit", command=None, diff=EDIT))
    question = Question("q", SESSION, (QuestionItem("Which?", options=(Option("Red", "warm"),)),))
    assert request(question) == "? Waiting for an answer: Which?\n  - Red: warm"


def test_a_text_that_continues_after_a_tool_is_printed_below_it() -> None:
    """On 2.x a text may end after the next tool call has started."""
    printed = Printed()
    printed.show(running(Text("a", "I will"), tool()))
    later = printed.show(running(Text("a", "I will run it."), tool()))
    assert later == "\n\n run it."


def test_a_new_attempt_is_printed_in_full_below_the_retry() -> None:
    printed = Printed()
    retry = Retry(1, "reset", None, "msg_1")
    printed.show(running(Text("a", "part of it")))
    printed.show(running(Text("a", ""), retries=(retry,)))
    again = running(Text("a", ""), StepStart("b"), Text("c", "all of it"), retries=(retry,))
    printed.show(again)
    assert "".join(printed.calls) == "part of it\n\n↻ Retry 1: reset\n\nall of it"


def test_a_note_is_printed_once() -> None:
    printed = Printed()
    assert printed.show(running(), "Connection lost.") == "· Connection lost."
    assert printed.show(running(), "Connection lost.") == ""


def test_step_aside_ends_the_line_once_and_continues_below() -> None:
    printed = Printed()
    printed.show(running(Text("a", "I will")))
    printed.view.step_aside()
    printed.view.step_aside()
    printed.show(running(Text("a", "I will run it.")))
    assert "".join(printed.calls) == "I will\n run it."


def test_closing_prints_the_last_line_once() -> None:
    printed = Printed()
    printed.view.close(says("Hi"))
    printed.view.close(says("Hi"))
    printed.view.show(says("Hi and more"))
    assert "".join(printed.calls).count("succeeded") == 1
    assert "".join(printed.calls).startswith("Hi\n\nsucceeded · build")


def test_an_error_is_printed() -> None:
    failed = turn(answer(error=Failure("APIError", "bad key", 401), finish=None))
    assert "✗ APIError: bad key (status 401)" in render(failed)


def test_no_escape_sequence_reaches_a_terminal() -> None:
    """From any source: \x1b[2J clears the screen, OSC 52 writes the clipboard."""
    evil = "a\x1b[2Jb\x1b]52;c;cGF3bmVk\x07c\x9b2Jd\r\ne\x00"
    text = render(everything_hostile(evil)) + session(Session(evil, evil, evil))
    text += request(permission(action=evil, command=f"{evil}\n{evil}"))
    assert not [c for c in text if ord(c) < 32 and c != "\n"]
    assert "\x9b" not in text


@pytest.mark.parametrize("name", V1_FLOWS)
def test_a_recorded_turn_printed_incrementally_has_all_lines(name: str) -> None:
    recorded = flow(name)
    printed, state = Printed(), recorded.start
    for event in (*recorded.events, recorded.stored):
        state = advance(state, event)
        printed.show(state)
    printed.view.close(state)
    for line in render(state).split("\n"):
        assert line in "".join(printed.calls)


def test_a_terminal_without_unicode_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    TextView().close(turn(answer(Text("a", "Grüße", 0, 1))))
    out.seek(0)
    assert "Gr??e" in out.read()


def test_a_session_is_two_lines() -> None:
    card = session(Session("ses_1", "Fix the cart", "/ws"))
    assert card == "Fix the cart [ses_1]\n/ws · cost unknown"
