"""A turn as HTML: its content, and that nothing in it is active."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

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

from opencode_magics.core.fold import advance, advance_all
from opencode_magics.core.model import (
    Failure,
    FileDiff,
    Message,
    ModelRef,
    Option,
    Question,
    QuestionItem,
    Reasoning,
    Session,
    Text,
)
from opencode_magics.core.turn import Retry, Turn
from opencode_magics.notebook import html, text

VOID = {"br", "hr"}


class Page(HTMLParser):
    """A parsed page: open tags, all tags, attributes, links, visible text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: set[str] = set()
        self.text = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links |= {value or "" for name, value in attrs if name == "href"}
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page(turn: Turn) -> Page:
    parsed = Page(html.turn(turn))
    assert not parsed.open
    return parsed


# -- safety ----------------------------------------------------------------------------------------

HOSTILE = "<img src=x onerror=alert(1)> <script>alert(2)</script> [x](javascript:alert(3)) \"'><b>"


@pytest.mark.parametrize("ended", [False, True])
def test_hostile_text_is_shown_as_text_everywhere(ended: bool) -> None:
    """Case G4-04."""
    shown = everything_hostile(HOSTILE)
    parsed = page(replace(shown, verdict="failed") if ended else shown)
    assert parsed.tags <= {
        *("div", "details", "summary", "span", "b", "i", "p", "pre", "code", "ul", "li"),
    }
    assert parsed.attributes <= {"class", "style", "open"}
    assert parsed.text.count("<img src=x onerror=alert(1)>") > 20
    assert parsed.text.count("<script>alert(2)</script>") > 20
    assert not parsed.links


def test_cards_show_hostile_text_as_text_too() -> None:
    """Case G4-04."""
    session = Session(HOSTILE, HOSTILE, HOSTILE, agent=HOSTILE, model=ModelRef(HOSTILE, HOSTILE))
    cards = [
        html.session(session),
        html.request(permission(action=HOSTILE, command=HOSTILE)),
        html.request(Question("q", SESSION, (QuestionItem(HOSTILE),))),
        html.file_diff(FileDiff(HOSTILE)),
        html.last_line(says("x"), note=HOSTILE),
    ]
    for card in cards:
        assert not Page(card).open
        assert not Page(card).tags & {"img", "script", "a"}
        assert HOSTILE.split(" [")[0] in Page(card).text


@pytest.mark.parametrize("reply", ["/etc/hostname", "http://example.invalid/x"])
def test_a_path_or_url_as_a_reply_is_shown_as_text(reply: str) -> None:
    """`IPython.display.HTML` would read the file or fetch the page. Case G4-05."""
    assert reply in page(says(reply)).text


def test_nothing_becomes_a_formula() -> None:
    """MathJax 3 ignores the first class, MathJax 2 the second. Case G3-20."""
    drawn = html.turn(says("costs $5, later $6"))
    assert drawn.startswith('<div class="mathjax_ignore tex2jax_ignore"')
    assert "costs $5, later $6" in drawn


def test_there_is_no_style_sheet_and_no_script() -> None:
    assert not page(everything_hostile("x")).tags & {"style", "script", "link", "svg"}


@pytest.mark.parametrize("name", V1_FLOWS)
def test_every_recorded_turn_is_well_formed(name: str) -> None:
    recorded = flow(name)
    state = advance(advance_all(recorded.start, recorded.events), recorded.stored)
    assert state.outcome in page(state).text


# -- content ---------------------------------------------------------------------------------------


def test_reasoning_is_folded_away() -> None:
    drawn = html.turn(turn(answer(Reasoning("a", "deep *thought*", 0, 3_100))))
    assert re.search(r"<details style.*<i [^>]*>Reasoning</i>.* · 3\.1 s.*<em>thought</em>", drawn)


def test_a_tool_call_is_one_line_that_opens_to_input_and_output() -> None:
    drawn = html.turn(turn(answer(tool(output="Everything up-to-date"))))
    line, inside = re.findall(r"<summary.*?</summary>|<pre.*?</pre>", drawn)[:2]
    assert Page(line).text == "✓ bash git push · 400 ms"
    assert Page(inside).text == "$ git push"
    assert "Everything up-to-date" in drawn


def test_other_inputs_are_json() -> None:
    drawn = page(turn(answer(tool("read", input={"filePath": "ä.txt"})))).text
    assert '{\n  "filePath": "ä.txt"\n}' in drawn


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"exit": 3}, "! bash git push · exit 3 · 400 ms"),
        ({"status": "error", "error": "No such\nfile"}, "✗ bash git push No such … · 400 ms"),
        ({"declined": True}, "✗ bash git push · declined · 400 ms"),
        ({"status": "running", "end": None}, "? bash git push · not finished"),
    ],
)
def test_an_unsuccessful_tool_call_shows_its_state(changes: dict[str, object], line: str) -> None:
    assert line in page(turn(answer(tool(**changes)))).text


def test_long_output_is_cut_with_a_count() -> None:
    drawn = html.turn(turn(answer(tool(output="x" * 100_000))))
    assert "… 80,000 characters left out …" in drawn
    assert len(drawn) < 25_000


def test_a_running_tool_shows_the_end_of_its_output() -> None:
    """A long build sends its whole output again with each line."""
    drawn = html.turn(running(tool(status="running", output="x" * 100_000 + "the end")))
    assert "… 98,007 earlier characters …" in drawn
    assert "the end" in drawn
    assert len(drawn) < 5_000


def test_terminal_colors_are_removed() -> None:
    drawn = page(turn(answer(tool(output="\x1b[32mgreen\x1b[0m\r\nline")))).text
    assert "green\nline" in drawn


def test_an_edit_shows_its_diff_with_signs() -> None:
    """Without styles, as on GitHub, only the signs show what changed."""
    drawn = html.turn(turn(answer(tool("edit", title="app.py", input={}, diffs=(EDIT,)))))
    assert "✓ edit app.py +1 -1 · 400 ms" in Page(drawn).text
    assert "@@ -1,2 +1,2 @@\n-old\n+new\n same\n" in Page(drawn).text
    assert "Changed 1 file: app.py +1 -1" in Page(drawn).text
    assert "<details open" in drawn


def test_a_large_edit_is_folded() -> None:
    lines = "".join(f"+{n}\n" for n in range(100))
    diffs = FileDiff("a", f"--- a\n+++ a\n@@ -0,0 +1,100 @@\n{lines}", 100, 0)
    assert "<details open" not in html.file_diff(diffs)
    assert "+99" in html.file_diff(diffs)


def test_errors_and_retries_are_visible_and_not_folded() -> None:
    failed = turn(
        answer(error=Failure("APIError", "bad key", 401), finish=None),
        retries=(Retry(2, "Overloaded", None, "msg_1"),),
    )
    visible = re.sub(r"<details.*?</details>", "", html.turn(failed), flags=re.DOTALL)
    assert "Retry 2: Overloaded" in visible
    assert "APIError: bad key (status 401)" in visible


def test_a_waiting_request_is_shown_in_full() -> None:
    """A person must see all that they allow."""
    command = permission(command="git push\nrm -rf /")
    assert "Commandgit push\nrm -rf /" in Page(html.request(command)).text
    edit = permission(action="edit", command=None, patterns=("app.py",), diff=EDIT)
    assert "-old\n+new" in Page(html.request(edit)).text


def test_a_waiting_request_is_one_line_in_its_turn() -> None:
    """The form or the typed prompt shows all of it."""
    drawn = page(running(permissions=(permission(command="git push"),))).text
    assert drawn.count("git push") == 1


def test_no_part_of_a_command_is_hidden() -> None:
    """A terminal shows only `ls` for the first two; a shell would run all of it."""
    for command in ("ls\x1b]0;; rm -rf /\x07", "rm -rf /\rls        ", "l\u202es"):
        drawn = Page(html.request(permission(command=command))).text
        assert (
            command.replace("\x1b", "␛")
            .replace("\x07", "␇")
            .replace("\r", "␍")
            .replace("\u202e", "⟨U+202E⟩")
            .strip()
            in drawn
        )


def test_very_many_files_in_one_call_are_cut() -> None:
    lines = "".join(f"+{n}\n" for n in range(300))
    diffs = [FileDiff(f"f{n}", f"--- a\n+++ a\n@@ -0,0 +1,300 @@\n{lines}") for n in range(200)]
    drawn = html.turn(turn(answer(tool("patch", diffs=tuple(diffs)))))
    assert "f199" in drawn
    assert "… 300 more lines" in drawn
    assert len(drawn) < 200_000


def test_a_question_shows_its_options() -> None:
    item = QuestionItem("Which colour?", options=(Option("Red", "warm"), Option("Blue")))
    shown = running(questions=(Question("q", SESSION, (item,)),))
    assert "Waiting for an answer: Which colour?" in page(shown).text
    assert "Red · warm" in Page(html.request(shown.questions[0])).text


def test_a_note_is_above_the_last_line() -> None:
    drawn = Page(html.turn(running(), "Connection lost; trying again.")).text
    assert drawn.index("Connection lost") < drawn.index("● running")


def test_the_last_line_is_the_same_in_html_and_text() -> None:
    shown = says("Hi")
    last = text.render(shown).split("\n")[-1]
    drawn = page(shown).text.strip()
    assert drawn.replace("\N{NO-BREAK SPACE}", " ").endswith(f"✓ {last}")


def test_no_line_break_separates_a_number_from_its_unit() -> None:
    drawn = Page(html.last_line(turn(answer(Reasoning("a", "thought", 0, 3_100))))).text
    assert drawn.endswith(" · 3.2\N{NO-BREAK SPACE}s")
    assert not re.search(r"\d (?!·)", drawn)


def test_a_session_is_a_small_card() -> None:
    session = Session("ses_1", "Fix the cart", "/ws", agent="build", model=ModelRef("a", "b"))
    assert Page(html.session(session)).text.strip() == (
        "Fix the cart ses_1/ws · build · a/b · cost unknown"
    )


def test_a_lone_surrogate_breaks_nothing() -> None:
    message = Message("msg_1", SESSION, "assistant", 1, 2, "msg_0", parts=(Text("t", "a\ud83d b"),))
    html.turn(turn(message)).encode()
