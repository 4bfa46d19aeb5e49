"""Where a running turn's requests are answered: buttons, typing, policy, and what may go wrong."""

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
WAITING = {"id": "per_1", "sessionID": ROOT.id, "permission": "bash", "patterns": ["x"]}


def push(n: int = 1, session: Session = ROOT) -> Permission:
    return Permission(f"per_{n}", session.id, "bash", ("git *",), ("git *",), f"git push {n}")


def ask(n: int = 1) -> Question:
    return Question(f"que_{n}", ROOT.id, ITEMS)


def reply_to(request: str, kind: str = "permission/per") -> str:
    return f"POST /{kind}_{request}/reply"


@dataclass
class Cell:
    """A running cell whose turn asks something, and the page and the server on either side."""

    run: Run
    view: View
    desk: Prompter
    front: FrontEnd
    server: FakeServer
    written: list[str]

    def waits(self, *requests: Permission | Question, **told: Any) -> None:
        """Let the turn have come to where just these wait."""
        permissions = tuple(r for r in requests if isinstance(r, Permission))
        questions = tuple(r for r in requests if isinstance(r, Question))
        asked = {"permissions": permissions, "questions": questions}
        self.run._progress.turn = replace(self.run.turn, **asked, **told)

    def step(self) -> None:
        """What a cell does again and again."""
        self.view.show(self.run.turn)
        self.desk.handle_requests()

    def says(self, text: str) -> None:
        """Let the agent say more."""
        said = Message(
            "msg_a1", ROOT.id, "assistant", 1, parent="msg_u1", parts=(Text("p1", text),)
        )
        self.run._progress.turn = replace(self.run.turn, log=(said,))

    @property
    def sent(self) -> list[tuple[str, Any]]:
        """The answers that the server got."""
        return [(s.path, s.body) for s in self.server.seen if s.path.endswith(("reply", "reject"))]

    @property
    def replies(self) -> list[str]:
        """How the turn's requests were settled."""
        return [s.reply for s in self.run.turn.settled_requests]


@contextmanager
def cell(
    front: FrontEnd,
    routes: dict[str, Any] | None = None,
    typed: list[str] | None = None,
    answerer: dict[str, Any] | None = None,
    view: View | None = None,
    **told: Any,
) -> Iterator[Cell]:
    """A cell of a server where every answer arrives, unless `routes` say something else."""
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
        desk = Prompter(run, view, person, **told)
        yield Cell(run, view, desk, front, server, written)
        desk.close()


# -- a click ---------------------------------------------------------------------------------------


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
        assert front.asks["subject"] == "git push 1"
        front.click(reply, message=message)
        running.step()
        running.step()
        assert running.sent == [("/permission/per_1/reply", body)]
        assert running.replies == [reply]
        assert front.asks == {}


def test_a_turn_that_is_one_of_many_asks_with_buttons_too(front: FrontEnd) -> None:
    said: list[str] = []
    shell = SimpleNamespace(kernel=object())
    with cell(front, view=QuietView(shell, said.append)) as running:
        running.waits(push())
        running.step()
        front.click("once")
        running.step()
        running.step()
        assert running.replies == ["once"]
        assert said == ["Permission: bash 'git push 1' → once"]
        running.waits(push(2))
        running.step()
        assert len(front.forms) == 1
        front.click("reject")
        running.step()
        running.step()
        assert said[1:] == ["Permission: bash 'git push 2' → reject"]


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
        assert front.asks["id"] == "per_1"


def test_g4_03_two_clicks_from_two_threads_send_one_reply(front: FrontEnd) -> None:
    with cell(front) as running:
        running.waits(push())
        running.step()
        at_once = threading.Barrier(2)

        def press() -> None:
            at_once.wait()
            front.click("once")

        threads = [threading.Thread(target=press) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        running.step()
        running.step()
        assert len(running.sent) == 1


def test_g4_03_allow_and_then_reject_quickly_allows(front: FrontEnd) -> None:
    with cell(front) as running:
        running.waits(push())
        running.step()
        front.click("once")
        front.click("reject")
        running.step()
        running.step()
        assert running.sent == [("/permission/per_1/reply", {"reply": "once"})]


def test_a_click_for_an_unknown_request_is_ignored(front: FrontEnd) -> None:
    with cell(front) as running:
        running.waits(push())
        running.step()
        front.click("always", id="per_99")
        running.step()
        assert running.sent == []
        assert front.asks["id"] == "per_1"


@pytest.mark.parametrize(("request_", "reply"), [(ask(), "once"), (push(), "dismiss")])
def test_an_answer_of_the_wrong_kind_answers_nothing(
    front: FrontEnd, request_: Permission | Question, reply: str
) -> None:
    with cell(front) as running:
        running.waits(request_)
        running.step()
        front.click(reply)
        running.step()
        assert running.sent == []
        running.step()
        assert front.asks["id"] == request_.id


# -- what may go wrong -----------------------------------------------------------------------------


def test_g4_06_a_reply_that_fails_is_told_in_the_form_and_can_be_given_again(
    front: FrontEnd,
) -> None:
    """Twice in the same way, so that the form has nothing new to say the second time."""
    routes = {reply_to("1"): answers_in_turn(DOWN, DOWN, True), "GET /permission": [WAITING]}
    with cell(front, routes) as running:
        running.waits(push())
        running.step()
        for _ in range(2):
            told = front.form.updates
            front.click("once")
            running.step()
            assert "did not arrive" in front.asks["note"]
            assert front.form.updates == told + 1
        front.click("once")
        running.step()
        assert len(running.sent) == 3
        assert running.replies == ["once"]
        assert front.asks == {}


def test_an_answer_that_its_field_cannot_take_is_told_in_the_form(front: FrontEnd) -> None:
    """Nothing is sent of it (2.x)."""
    route = "POST /api/session/ses_root01/form/frm_1/reply"
    item = QuestionItem("How many?", key="n", kind="integer")
    with cell(front, v2_routes() | {route: (204, {}, b"")}) as running:
        running.waits(Question("frm_1", ROOT.id, (item,)))
        running.step()
        front.click("answer", answers=[["many"]])
        running.step()
        assert front.asks["note"] == "How many?: 'many' is no number."
        assert running.sent == []
        front.click("answer", answers=[["7"]])
        running.step()
        assert running.sent == [(route.partition(" ")[2], {"answer": {"n": 7}})]


def test_g4_06_a_server_that_is_gone_is_told_in_the_form(front: FrontEnd) -> None:
    with cell(front, {reply_to("1"): DISCONNECT, "GET /permission": [WAITING]}) as running:
        running.waits(push())
        running.step()
        front.click("once")
        running.step()
        assert "did not arrive" in front.asks["note"]
        assert running.replies == []


def test_what_a_server_says_of_a_failure_can_be_shown(front: FrontEnd) -> None:
    """Half of a surrogate pair can't be sent to the page."""
    said = b'{"name": "Bad", "data": {"message": "no \\ud800<img src=x>"}}'
    answer = (500, {"content-type": "application/json"}, said)
    with cell(front, {reply_to("1"): answer, "GET /permission": [WAITING]}) as running:
        running.waits(push())
        running.step()
        front.click("once")
        running.step()
        assert "no \N{REPLACEMENT CHARACTER}<img src=x>" in front.asks["note"]


def test_a_request_that_was_answered_elsewhere_puts_the_form_away(front: FrontEnd) -> None:
    with cell(front) as running:
        running.waits(push())
        running.step()
        running.waits()
        running.step()
        assert front.asks == {}
        front.click("once", id="per_1")
        running.step()
        assert running.sent == []


def test_a_click_that_comes_too_late_says_so_in_the_turn(front: FrontEnd) -> None:
    with cell(front, {reply_to("1"): GONE}) as running:
        running.waits(push())
        running.step()
        front.click("once")
        running.step()
        assert running.replies == ["answered elsewhere, or expired"]
        assert front.asks == {}


def test_a_turn_that_is_over_asks_nothing(front: FrontEnd) -> None:
    with cell(front) as running:
        running.waits(push())
        running.step()
        running.run._progress.turn = replace(running.run.turn, verdict="aborted")
        running.step()
        assert front.asks == {}


# -- several requests ------------------------------------------------------------------------------


def test_g4_13_requests_that_wait_together_are_asked_one_after_the_other(front: FrontEnd) -> None:
    with cell(front) as running:
        running.waits(push(1), push(2, CHILD), push(3), sessions=(CHILD,))
        running.step()
        asked = []
        for reply in ("once", "reject", "always"):
            asked.append((front.asks["id"], front.asks["title"]))
            front.click(reply)
            running.step()
            running.step()
        assert asked == [
            ("per_1", "Permission: bash 'git push 1'"),
            ("per_2", "Permission for subagent 'Run the tests': bash 'git push 2'"),
            ("per_3", "Permission: bash 'git push 3'"),
        ]
        assert [body["reply"] for _, body in running.sent] == ["once", "reject", "always"]


def test_it_says_how_many_more_a_rejection_rejects_as_they_come_and_go(front: FrontEnd) -> None:
    with cell(front) as running:
        told = []
        for waiting in ([1], [1, 2], [1, 2, 3], [1]):
            running.waits(*map(push, waiting))
            running.step()
            told.append(front.asks["choices"][2]["effect"])
        alone = "Reject without a message: the turn stops."
        assert told == [
            alone,
            f"{alone[:-1]}; 1 other waiting permission of it rejected too.",
            f"{alone[:-1]}; 2 other waiting permissions of it rejected too.",
            alone,
        ]


def test_a_rejection_leaves_questions_and_other_sessions_alone(front: FrontEnd) -> None:
    with cell(front) as running:
        running.waits(push(1), push(2), push(3, CHILD), ask(), sessions=(CHILD,))
        running.step()
        assert "1 other waiting permission of it" in front.asks["choices"][2]["effect"]


def test_while_nothing_changes_nothing_is_sent_to_the_page(front: FrontEnd) -> None:
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


def test_the_form_stands_below_what_the_turn_shows(front: FrontEnd) -> None:
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
        running.desk.close()
        running.view.close(running.run.turn)
        assert running.view.outputs > 20
        assert len(front.outputs) <= 45
        assert all(data["text/html"] for data in list(front.outputs.values())[:-1])


def test_an_interrupt_leaves_no_lent_place_empty(
    front: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the view would take a place that the page has never heard of."""
    publish = front.publish

    def interrupted(data: Any, *args: Any, **told: Any) -> None:
        if WIDGET in data:
            signal.raise_signal(signal.SIGINT)
        publish(data, *args, **told)

    with cell(front) as running:
        running.waits(push())
        running.view.show(running.run.turn)
        monkeypatch.setattr(front, "publish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            running.desk.handle_requests()
        running.says("A paragraph.\n\n" * 5_000)
        running.view.close(running.run.turn)
        running.desk.close()
        assert running.view.outputs == len(front.outputs)
        assert front.forms == []


def test_what_is_typed_after_a_form_stands_below_it(front: FrontEnd, impatient: None) -> None:
    """And what the turn shows then stands below that."""
    front.draws = False
    with cell(front, typed=["1"], answerer={"write": lambda line: front.publish({"": line})}) as it:
        it.says("first")
        it.waits(push())
        it.step()
        it.step()
        it.says("first. " * 5_000)
        it.step()
        shown = [next(iter(data.values())) for data in front.outputs.values()]
        asked = next(n for n, text in enumerate(shown) if "1, 2, 3 or" in text or "[1]" in text)
        assert "first" in shown[0]
        assert "first" in shown[-1]
        assert 0 < asked < len(shown) - 1


def test_in_the_end_no_widget_is_left(front: FrontEnd) -> None:
    with cell(front) as running:
        running.waits(push())
        running.step()
        running.desk.close()
        assert not front.form.open_
        assert not any(WIDGET in data for data in front.outputs.values())


# -- no buttons ------------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a page no time at all."""
    monkeypatch.setattr(prompters, "READY_TIMEOUT", 0.0)


@pytest.mark.usefixtures("impatient")
def test_a_page_that_draws_no_form_is_asked_to_type_and_told_why_once(front: FrontEnd) -> None:
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
def test_why_there_can_be_no_buttons_is_told_where_it_is_known(front: FrontEnd) -> None:
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


def test_where_nobody_sits_the_policy_decides_at_once(front: FrontEnd) -> None:
    with cell(front, answerer={"can_ask": False}) as running:
        running.waits(push())
        running.step()
        assert running.replies == ["reject"]
        assert front.wires == []


def test_where_nobody_sits_and_nothing_may_be_decided_it_raises(front: FrontEnd) -> None:
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
