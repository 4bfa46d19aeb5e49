"""Prompts for a running turn's requests: buttons, typing, policy, and failures."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.fake_front_end import WIDGET, FrontEnd
from support.fake_server import DISCONNECT, FakeServer, answers_in_turn, v1_routes, v2_routes

from opencode_magics.client.client import Client
from opencode_magics.core.model import (
    Message,
    Option,
    Permission,
    Question,
    QuestionItem,
    Session,
    Text,
)
from opencode_magics.core.turn import Turn
from opencode_magics.dialects.base import Prompt
from opencode_magics.errors import AnswerNeeded
from opencode_magics.notebook import prompter as prompters
from opencode_magics.notebook.answerer import Answerer
from opencode_magics.notebook.live import LiveCell, View
from opencode_magics.notebook.prompter import Prompter
from opencode_magics.notebook.quiet_view import QuietView
from opencode_magics.sessions.run import Run

ROOT = Session("ses_root01", "root", "/work/p")
CHILD = Session("ses_kid", "Run the tests (@general subagent)", "/work/p", parent=ROOT.id)
ITEMS = (QuestionItem("Which?", "", (Option("A"), Option("B"))),)
GONE = (404, {"content-type": "application/json"}, b'{"_tag":"PermissionNotFoundError"}')
DOWN = (500, {}, b"")
WAITING = {
    "id": "per_1",
    "sessionID": ROOT.id,
    "permission": "bash",
    "patterns": ["git *"],
    "always": ["git *"],
    "metadata": {"command": "git push 1"},
}


def push(n: int = 1, session: Session = ROOT) -> Permission:
    return Permission(f"per_{n}", session.id, "bash", ("git *",), ("git *",), f"git push {n}")


def ask(n: int = 1) -> Question:
    return Question(f"que_{n}", ROOT.id, ITEMS)


def reply_to(request: str, kind: str = "permission/per") -> str:
    return f"POST /{kind}_{request}/reply"


def request_of(front: FrontEnd) -> str:
    """The id of the request that the form shows; the rest of its id is a digest."""
    return str(front.asks["id"]).partition("-")[0]


@dataclass
class Cell:
    """A running cell whose turn has requests, with its page and its server."""

    run: Run
    view: View
    prompter: Prompter
    front: FrontEnd
    server: FakeServer
    written: list[str]

    def waits(self, *requests: Permission | Question, **changes: Any) -> None:
        """Set the turn's waiting requests to exactly these."""
        permissions = tuple(r for r in requests if isinstance(r, Permission))
        questions = tuple(r for r in requests if isinstance(r, Question))
        waiting = {"permissions": permissions, "questions": questions}
        self.run._progress.turn = replace(self.run.turn, **waiting, **changes)

    def step(self) -> None:
        """Do what a cell does repeatedly."""
        self.view.show(self.run.turn)
        self.prompter.handle_requests()

    def says(self, text: str) -> None:
        """Set the text of the agent's answer."""
        answer = Message(
            "msg_a1", ROOT.id, "assistant", 1, parent="msg_u1", parts=(Text("p1", text),)
        )
        self.run._progress.turn = replace(self.run.turn, log=(answer,))

    @property
    def sent(self) -> list[tuple[str, Any]]:
        """The answers that the server received."""
        return [(s.path, s.body) for s in self.server.seen if s.path.endswith(("reply", "reject"))]

    @property
    def replies(self) -> list[str]:
        """The replies that settled the turn's requests."""
        return [s.reply for s in self.run.turn.settled_requests]


@contextmanager
def cell(
    front: FrontEnd,
    routes: dict[str, Any] | None = None,
    typed: list[str] | None = None,
    answerer: dict[str, Any] | None = None,
    view: View | None = None,
    **options: Any,
) -> Iterator[Cell]:
    """A cell with a server that accepts every answer, unless `routes` say otherwise."""
    answers = {reply_to(f"{n}"): True for n in range(1, 101)}
    answers |= {reply_to(f"{n}", "question/que"): True for n in range(1, 101)}
    answers |= {"POST /question/que_1/reject": True}
    lines, written = iter(typed or []), list[str]()
    person = Answerer(can_ask=True, read=lambda prompt: next(lines), write=written.append)
    person = replace(person, **(answerer or {}))
    with (
        FakeServer(v1_routes() | answers | (routes or {})) as server,
        Client(server.url, directory=ROOT.directory) as client,
    ):
        run = Run(client, ROOT, Prompt("msg_u1", "hi"))
        run._progress.turn = Turn(ROOT.id, "msg_u1")
        view = view or LiveCell(min_interval=0.0)
        prompter = Prompter(run, view, person, **options)
        yield Cell(run, view, prompter, front, server, written)
        prompter.close()


# -- clicks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "message", "body"),
    [
        ("once", "", {"reply": "once"}),
        ("always", "", {"reply": "always"}),
        ("reject", "", {"reply": "reject"}),
        ("reject", "later", {"reply": "reject", "message": "later"}),
        ("once", "a message that is meant for a rejection", {"reply": "once"}),
    ],
)
def test_a_click_on_a_permission_sends_one_reply(
    front: FrontEnd, reply: str, message: str, body: dict[str, str]
) -> None:
    with cell(front) as running:
        running.waits(push())
        running.step()
        assert {"label": "Command", "text": "git push 1", "folded": False} in front.asks["details"]
        front.click(reply, message=message)
        running.step()
        running.step()
        assert running.sent == [("/permission/per_1/reply", body)]
        assert running.replies == [reply]
        assert front.asks == {}


def test_a_quiet_view_asks_with_buttons_too(front: FrontEnd) -> None:
    lines: list[str] = []
    shell = SimpleNamespace(kernel=object())
    with cell(front, view=QuietView(shell, lines.append)) as running:
        running.waits(push())
        running.step()
        front.click("once")
        running.step()
        running.step()
        assert running.replies == ["once"]
        assert lines == ["Permission: bash 'git push 1' → once"]
        running.waits(push(2))
        running.step()
        assert len(front.forms) == 1
        front.click("reject")
        running.step()
        running.step()
        assert lines[1:] == ["Permission: bash 'git push 2' → reject"]


def test_the_answers_to_a_question_are_sent(front: FrontEnd) -> None:
    with cell(front) as running:
        running.waits(ask())
        running.step()
        front.click("answer", answers=[["A", "and my own"]])
        running.step()
        assert running.sent == [("/question/que_1/reply", {"answers": [["A", "and my own"]]})]


def test_a_question_can_be_dismissed(front: FrontEnd) -> None:
    with cell(front) as running:
        running.waits(ask())
        running.step()
        front.click("dismiss")
        running.step()
        assert [path for path, _ in running.sent] == ["/question/que_1/reject"]


def test_nothing_is_sent_before_a_click(front: FrontEnd) -> None:
    with cell(front) as running:
        running.waits(push())
        for _ in range(5):
            running.step()
        assert running.sent == []
        assert request_of(front) == "per_1"


def test_two_clicks_from_two_threads_send_one_reply(front: FrontEnd) -> None:
    """Case G4-03."""
    with cell(front) as running:
        running.waits(push())
        running.step()
        barrier = threading.Barrier(2)

        def press() -> None:
            barrier.wait()
            front.click("once")

        threads = [threading.Thread(target=press) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        running.step()
        running.step()
        assert len(running.sent) == 1


def test_the_first_of_two_quick_clicks_counts(front: FrontEnd) -> None:
    """Case G4-03."""
    with cell(front) as running:
        running.waits(push())
        running.step()
        front.click("once")
        front.click("reject")
        running.step()
        running.step()
        assert running.sent == [("/permission/per_1/reply", {"reply": "once"})]


def test_a_click_on_an_earlier_drawing_is_void(front: FrontEnd) -> None:
    """Case T5: drawn `echo harmless`; then the same id is for another command."""
    harmless = replace(push(), command="echo harmless")
    harmful = replace(push(), command="rm -rf /important")
    with cell(front) as running:
        running.waits(harmless)
        running.step()
        drawn = front.asks["id"]
        running.waits(harmful)
        front.click("once")
        running.step()
        assert running.sent == []
        assert front.asks["id"] != drawn
        assert "rm -rf /important" in str(front.asks["details"])
        front.click("reject")
        running.step()
        assert running.sent == [("/permission/per_1/reply", {"reply": "reject"})]


@pytest.mark.parametrize("typed", [None, ["1", "3"]])
def test_only_what_was_shown_is_allowed(front: FrontEnd, typed: list[str] | None) -> None:
    """Case T5: the server has another request under this id when the answer is sent."""
    other = WAITING | {"metadata": {"command": "rm -rf /important"}}
    options = {"ui": "text"} if typed else {}
    with cell(front, {"GET /permission": [other]}, typed, **options) as running:
        running.waits(push())
        running.step()
        if typed is None:
            front.click("once")
            running.step()
            assert "for something else now; nothing was sent" in front.asks["note"]
            assert "rm -rf /important" in str(front.asks["details"])
            front.click("reject")
        running.step()
        assert running.sent == [("/permission/per_1/reply", {"reply": "reject"})]
        (settled,) = running.run.turn.settled_requests
        assert isinstance(settled.request, Permission)
        assert settled.request.command == "rm -rf /important"


def test_a_click_for_an_unknown_request_is_ignored(front: FrontEnd) -> None:
    with cell(front) as running:
        running.waits(push())
        running.step()
        front.click("always", id="per_99")
        running.step()
        assert running.sent == []
        assert request_of(front) == "per_1"


@pytest.mark.parametrize(("request_", "reply"), [(ask(), "once"), (push(), "dismiss")])
def test_an_answer_of_the_wrong_kind_is_ignored(
    front: FrontEnd, request_: Permission | Question, reply: str
) -> None:
    with cell(front) as running:
        running.waits(request_)
        running.step()
        front.click(reply)
        running.step()
        assert running.sent == []
        running.step()
        assert request_of(front) == request_.id


# -- failures --------------------------------------------------------------------------------------


def test_a_failed_reply_is_shown_in_the_form_and_can_be_repeated(
    front: FrontEnd,
) -> None:
    """It fails twice in the same way, so that the form's spec is equal the second time.

    Case G4-06.
    """
    routes = {reply_to("1"): answers_in_turn(DOWN, DOWN, True), "GET /permission": [WAITING]}
    with cell(front, routes) as running:
        running.waits(push())
        running.step()
        for _ in range(2):
            before = front.form.updates
            front.click("once")
            running.step()
            assert "did not arrive" in front.asks["note"]
            assert front.form.updates == before + 1
        front.click("once")
        running.step()
        assert len(running.sent) == 3
        assert running.replies == ["once"]
        assert front.asks == {}


def test_an_invalid_answer_is_reported_in_the_form(front: FrontEnd) -> None:
    """It is not sent (2.x)."""
    route = "POST /api/session/ses_root01/form/frm_1/reply"
    item = QuestionItem("How many?", key="n", kind="integer")
    with cell(front, v2_routes() | {route: (204, {}, b"")}) as running:
        running.waits(Question("frm_1", ROOT.id, (item,)))
        running.step()
        front.click("answer", answers=[["many"]])
        running.step()
        assert front.asks["note"] == "How many?: 'many' is not a number."
        assert running.sent == []
        front.click("answer", answers=[["7"]])
        running.step()
        assert running.sent == [(route.partition(" ")[2], {"answer": {"n": 7}})]


def test_a_lost_server_is_reported_in_the_form(front: FrontEnd) -> None:
    """Case G4-06."""
    with cell(front, {reply_to("1"): DISCONNECT, "GET /permission": [WAITING]}) as running:
        running.waits(push())
        running.step()
        front.click("once")
        running.step()
        assert "did not arrive" in front.asks["note"]
        assert running.replies == []


def test_a_servers_error_message_can_be_shown(front: FrontEnd) -> None:
    """A lone surrogate can't be sent to the page."""
    body = b'{"name": "Bad", "data": {"message": "no \\ud800<img src=x>"}}'
    answer = (500, {"content-type": "application/json"}, body)
    with cell(front, {reply_to("1"): answer, "GET /permission": [WAITING]}) as running:
        running.waits(push())
        running.step()
        front.click("once")
        running.step()
        assert "no \N{REPLACEMENT CHARACTER}<img src=x>" in front.asks["note"]


def test_a_request_that_was_answered_elsewhere_hides_the_form(front: FrontEnd) -> None:
    with cell(front) as running:
        running.waits(push())
        running.step()
        running.waits()
        running.step()
        assert front.asks == {}
        front.click("once", id="per_1")
        running.step()
        assert running.sent == []


def test_a_late_click_is_reported_in_the_turn(front: FrontEnd) -> None:
    with cell(front, {reply_to("1"): GONE}) as running:
        running.waits(push())
        running.step()
        front.click("once")
        running.step()
        assert running.replies == ["answered elsewhere, or expired"]
        assert front.asks == {}


def test_a_finished_turn_asks_nothing(front: FrontEnd) -> None:
    with cell(front) as running:
        running.waits(push())
        running.step()
        running.run._progress.turn = replace(running.run.turn, verdict="aborted")
        running.step()
        assert front.asks == {}


# -- several requests ------------------------------------------------------------------------------


def test_simultaneous_requests_are_asked_one_by_one(front: FrontEnd) -> None:
    """Case G4-13."""
    with cell(front) as running:
        running.waits(push(1), push(2, CHILD), push(3), sessions=(CHILD,))
        running.step()
        shown = []
        for reply in ("once", "reject", "always"):
            shown.append((request_of(front), front.asks["title"]))
            front.click(reply)
            running.step()
            running.step()
        assert shown == [
            ("per_1", "Permission: bash 'git push 1'"),
            ("per_2", "Permission for subagent 'Run the tests': bash 'git push 2'"),
            ("per_3", "Permission: bash 'git push 3'"),
        ]
        assert [body["reply"] for _, body in running.sent] == ["once", "reject", "always"]


def test_the_number_of_also_rejected_requests_is_kept_up_to_date(front: FrontEnd) -> None:
    with cell(front) as running:
        effects = []
        for waiting in ([1], [1, 2], [1, 2, 3], [1]):
            running.waits(*map(push, waiting))
            running.step()
            effects.append(front.asks["choices"][2]["effect"])
        effect = "Reject without a message: the turn stops"
        assert effects == [
            f"{effect}.",
            f"{effect}; also rejects 1 other waiting permission of this session.",
            f"{effect}; also rejects 2 other waiting permissions of this session.",
            f"{effect}.",
        ]


def test_a_rejection_leaves_questions_and_other_sessions_alone(front: FrontEnd) -> None:
    with cell(front) as running:
        running.waits(push(1), push(2), push(3, CHILD), ask(), sessions=(CHILD,))
        running.step()
        assert "1 other waiting permission of this session" in front.asks["choices"][2]["effect"]


def test_without_changes_nothing_is_sent_to_the_page(front: FrontEnd) -> None:
    with cell(front) as running:
        running.waits(push())
        running.step()
        sent = front.form.updates
        for _ in range(20):
            running.step()
        assert front.form.updates == sent


def test_a_hundred_questions_need_two_outputs(front: FrontEnd) -> None:
    with cell(front) as running:
        for n in range(1, 101):
            running.waits(ask(n))
            running.step()
            front.click("answer", answers=[["A"]])
            running.step()
        assert len(running.sent) == 100
        assert len(front.outputs) == 2


def test_the_form_is_below_the_turns_outputs(front: FrontEnd) -> None:
    with cell(front) as running:
        for n in range(1, 6):
            running.says("A paragraph. " * 500 * n)
            running.waits(push(n))
            running.step()
            assert front.forms == [len(front.outputs) - 1]
            front.click("once")
            running.step()
        assert running.view.outputs > 2


def test_a_very_long_turn_with_a_request_at_every_output_has_at_most_45(front: FrontEnd) -> None:
    with cell(front) as running:
        for n in range(1, 41):
            running.says("A paragraph.\n\n" * 1_500 * n)
            running.waits(push(n))
            running.step()
            assert front.forms == [len(front.outputs) - 1]
            front.click("once")
            running.step()
        running.prompter.close()
        running.view.close(running.run.turn)
        assert running.view.outputs > 20
        assert len(front.outputs) <= 45
        assert all(data["text/html"] for data in list(front.outputs.values())[:-1])


def test_an_interrupt_leaves_no_lent_output_empty(
    front: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the view would update an output that the page never received."""
    publish = front.publish

    def interrupted(data: Any, *args: Any, **options: Any) -> None:
        if WIDGET in data:
            signal.raise_signal(signal.SIGINT)
        publish(data, *args, **options)

    with cell(front) as running:
        running.waits(push())
        running.view.show(running.run.turn)
        monkeypatch.setattr(front, "publish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            running.prompter.handle_requests()
        running.says("A paragraph.\n\n" * 5_000)
        running.view.close(running.run.turn)
        running.prompter.close()
        assert running.view.outputs == len(front.outputs)
        assert front.forms == []


def test_a_typed_prompt_is_below_the_earlier_form(front: FrontEnd, impatient: None) -> None:
    """Later blocks of the turn are below the prompt."""
    front.draws = False
    publish_line = {"write": lambda line: front.publish({"": line})}
    with cell(front, typed=["1"], answerer=publish_line) as running:
        running.says("first")
        running.waits(push())
        running.step()
        running.step()
        running.says("first. " * 5_000)
        running.step()
        shown = [next(iter(data.values())) for data in front.outputs.values()]
        prompt = next(n for n, text in enumerate(shown) if "1, 2, 3 or" in text or "[1]" in text)
        assert "first" in shown[0]
        assert "first" in shown[-1]
        assert 0 < prompt < len(shown) - 1


def test_no_widget_is_left_at_the_end(front: FrontEnd) -> None:
    with cell(front) as running:
        running.waits(push())
        running.step()
        running.prompter.close()
        assert not front.form.open_
        assert not any(WIDGET in data for data in front.outputs.values())


# -- no buttons ------------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the page no time to draw the form."""
    monkeypatch.setattr(prompters, "READY_TIMEOUT", 0.0)


@pytest.mark.usefixtures("impatient")
def test_without_a_drawn_form_typing_is_offered_with_one_reason(front: FrontEnd) -> None:
    front.draws = False
    with cell(front, typed=["1", "3 not now"]) as running:
        for n in (1, 2):
            running.waits(push(n))
            running.step()
            running.step()
        assert [body["reply"] for _, body in running.sent] == ["once", "reject"]
        reasons = [line for line in running.written if "Please type the answer" in line]
        assert len(reasons) == 1
        assert 'OpenCodeMagics.ui = "text"' in reasons[0]
        assert not any(WIDGET in data for data in front.outputs.values())


@pytest.mark.usefixtures("impatient")
def test_a_known_reason_for_missing_buttons_is_shown(front: FrontEnd) -> None:
    front.draws = False
    with cell(front, typed=["1"], why_not="This kernel is a strange one.") as running:
        running.waits(push())
        running.step()
        assert any(line.startswith("This kernel is a strange one.") for line in running.written)


def test_a_page_has_time_to_draw_the_form(front: FrontEnd) -> None:
    front.draws = False
    with cell(front) as running:
        running.waits(push())
        running.step()
        front.form.hear(kind="ready")
        front.click("once")
        running.step()
        assert running.replies == ["once"]
        assert running.written == []


@pytest.mark.usefixtures("impatient")
def test_with_widgets_only_nobody_is_asked_to_type(front: FrontEnd) -> None:
    front.draws = False
    with cell(front, ui="widgets") as running:
        running.waits(push())
        running.step()
        running.step()
        assert running.replies == ["reject"]
        assert running.written == []


def test_with_text_only_there_is_no_form(front: FrontEnd) -> None:
    with cell(front, typed=["2"], ui="text") as running:
        running.waits(push())
        running.step()
        assert running.replies == ["always"]
        assert front.wires == []


def test_where_nobody_can_answer_the_policy_decides_at_once(front: FrontEnd) -> None:
    with cell(front, answerer={"can_ask": False}) as running:
        running.waits(push())
        running.step()
        assert running.replies == ["reject"]
        assert front.wires == []


def test_where_nobody_can_answer_the_policy_error_raises(front: FrontEnd) -> None:
    with cell(front, answerer={"can_ask": False, "fallback": "error"}) as running:
        running.waits(push())
        with pytest.raises(AnswerNeeded):
            running.step()


def test_a_policy_for_permissions_leaves_questions_to_a_person(front: FrontEnd) -> None:
    with cell(front, answerer={"policy": "once"}) as running:
        running.waits(push(), ask())
        running.step()
        running.step()
        assert running.replies == ["once"]
        assert front.asks["id"] == "que_1"
