"""Asking from plain Python: on plain values, on a real server and on the simulated 2.x."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy
import pytest
from support.fake_server import FakeServer, v1_routes
from support.generations import both_generations
from support.ipython_shell import until, wait_until_busy

import opencode_magics
from opencode_magics import (
    AnswerNeeded,
    Client,
    CostLimitError,
    InvalidAnswer,
    Limits,
    OpenCodeError,
    Permission,
    Question,
    RecordingError,
    Session,
    SessionBusyError,
    Turn,
    TurnError,
    TurnInterrupted,
    UnfitAnswer,
    UnknownNameError,
)
from opencode_magics.core.model import Attachment, Decision, Message, Option, QuestionItem
from opencode_magics.prompts import ask as asking
from opencode_magics.prompts.answering import Callbacks, PermissionAnswer, QuestionAnswer
from opencode_magics.prompts.ask import (
    Notice,
    PromptRequest,
    Recalled,
    Retrying,
    Sent,
    SessionCreated,
)
from opencode_magics.prompts.runner import callback_runner
from opencode_magics.prompts.schema import schema_from

BASH = Permission("per_1", "ses_1", "bash", command="touch made")
COLOUR = QuestionItem("Which colour?", options=(Option("Red"), Option("Blue")), custom=False)
SIZES = QuestionItem("Which sizes?", options=(Option("S"), Option("M")), multiple=True)
ASKED = Question("que_1", "ses_1", (COLOUR, SIZES))


# -- answers ---------------------------------------------------------------------------------------


def test_a_permission_is_rejected_unless_somebody_allowed_it() -> None:
    assert Callbacks().answer(BASH) == PermissionAnswer("reject", by="policy 'reject'")
    assert Callbacks("once").answer(BASH) == PermissionAnswer("once", by="policy 'once'")


@pytest.mark.parametrize(
    ("given", "decided"),
    [
        ("once", PermissionAnswer("once", by="on_permission")),
        ("always", PermissionAnswer("always", by="on_permission")),
        ("reject", PermissionAnswer("reject", by="on_permission")),
        (("once", ""), PermissionAnswer("once", by="on_permission")),
        (("reject", "Not now."), PermissionAnswer("reject", "Not now.")),
    ],
)
def test_a_function_decides_a_permission(given: Any, decided: PermissionAnswer) -> None:
    asked: list[Permission] = []

    def decide(permission: Permission) -> Any:
        asked.append(permission)
        return given

    assert Callbacks(decide).answer(BASH) == decided
    assert asked == [BASH]


@pytest.mark.parametrize(
    "given",
    [
        *(True, None, "yes", "", "ONCE", ("once", "please"), ("reject",), ("reject", 1), 1),
        *(ANY, (ANY, ""), ("once", ANY), numpy.array(["once"])),
    ],
)
def test_anything_else_is_no_decision(given: Any) -> None:
    with pytest.raises(InvalidAnswer, match=r"on_permission returned .* for bash 'touch made'"):
        Callbacks(lambda permission: given).answer(BASH)


@pytest.mark.parametrize("policy", ["always", "ask", "", None, True])
def test_no_other_word_is_a_policy(policy: Any) -> None:
    with pytest.raises(ValueError, match="on_permission takes"):
        Callbacks(policy)


def test_the_policy_error_needs_an_answer() -> None:
    with pytest.raises(AnswerNeeded, match="bash 'touch made'"):
        Callbacks("error").answer(BASH)


@pytest.mark.parametrize(
    ("given", "answers"),
    [
        (["Red", "S"], (("Red",), ("S",))),
        ([["Red"], ["S", "M"]], (("Red",), ("S", "M"))),
        (("Blue", ()), (("Blue",), ())),
        (None, None),
    ],
)
def test_a_function_answers_a_question(given: Any, answers: Any) -> None:
    answer = Callbacks(on_question=lambda question: given).answer(ASKED)
    assert isinstance(answer, QuestionAnswer)
    assert answer.answers == answers


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("Red", "a list with the text"),
        ([1, 2], "a list with the text"),
        ([["Red"], [None]], "a list with the text"),
        ({"Red": "S"}, "a list with the text"),
        (["Red"], "2 answers, one for each item"),
        (["Green", "S"], "'Green' is not an option"),
    ],
)
def test_an_answer_that_its_question_cannot_take_is_not_sent(given: Any, why: str) -> None:
    with pytest.raises(InvalidAnswer, match=why):
        Callbacks(on_question=lambda question: given).answer(ASKED)


def test_questions_are_dismissed_without_a_function() -> None:
    answer = Callbacks("once").answer(ASKED)
    assert isinstance(answer, QuestionAnswer)
    assert answer.answers is None


# -- requests --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"session": " "}, "name of a session is empty"),
        ({"session": "ses_1", "title": "x"}, "only for a new session"),
        ({"session": "ses_1", "directory": "/work"}, "only for a new session"),
        ({"retries": -1}, "0 or more"),
        ({"delivery": "soon"}, "delivery must be"),
    ],
)
def test_a_request_does_not_contradict_itself(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        replace(PromptRequest("hi"), **changes)


@pytest.mark.parametrize("timeout", [-1.0, float("nan")])
def test_a_timeout_is_a_number_of_seconds(timeout: float) -> None:
    with pytest.raises(ValueError, match="0 or more seconds"):
        callback_runner(Callbacks(), timeout=timeout)


@pytest.mark.parametrize("name", ["max_cost", "max_session_cost"])
@pytest.mark.parametrize("cost", [-1.0, float("nan")])
def test_a_limit_is_a_cost(name: str, cost: float) -> None:
    with pytest.raises(ValueError, match=f"{name} takes an amount in USD"):
        Limits.of(**{name: cost})


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"model": "acme/none"}, UnknownNameError),
        ({"agent": "none"}, UnknownNameError),
        ({"files": ["/nowhere"]}, OpenCodeError),
        ({"schema": 7}, OpenCodeError),
        ({"limits": Limits.of(max_session_cost=0.0), "session": "ses_root01"}, CostLimitError),
        ({"on_permission": "always"}, ValueError),
        ({"text": " \n"}, ValueError),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_sent(
    options: dict[str, Any], error: type[Exception]
) -> None:
    session = {"id": "ses_root01", "title": "r", "directory": "/work/p", "cost": 0.1}
    routes = v1_routes(session=session | {"time": {"created": 1}})
    with FakeServer(routes) as fake, Client(fake.url) as client:
        with pytest.raises(error):
            opencode_magics.ask(client, **{"text": "hi"} | options)
        assert {seen.method for seen in fake.seen} <= {"GET"}


def test_a_prompt_that_is_refused_can_be_sent_again() -> None:
    refusal = (400, {}, b'{"name": "Bad", "data": {"message": "no"}}')
    with FakeServer(v1_routes(prompt=refusal)) as fake, Client(fake.url) as client:
        with pytest.raises(OpenCodeError) as failed:
            opencode_magics.ask(client, "hi")
        assert failed.value.resend is not None
        assert failed.value.resend.resend_safety == "safe"
        assert len(fake.asked("POST /session/ses_root01/prompt_async")) == 1


# -- on a server -----------------------------------------------------------------------------------


def prompts(client: Client, session: Session) -> list[Message]:
    """The prompts that a session has."""
    return [message for message in client.messages(session) if message.role == "user"]


def is_idle(client: Client, turn: Turn) -> bool:
    """Whether a server stopped working on a turn."""
    session = client.session(turn.session)
    return until(lambda: session.id not in client.statuses(session.directory), 10) or True


@both_generations
def test_a_prompt_in_a_new_session_is_answered(client: Client, workspace: Path) -> None:
    states: list[Turn] = []
    turn = opencode_magics.ask(client, "#text 3", title="From Python", on_update=states.append)
    assert (turn.text, turn.outcome) == ("word0 word1 word2", "succeeded")
    assert client.session(turn.session).title == "From Python"
    assert states[-1] == turn
    assert len({id(state) for state in states}) == len(states)


@both_generations
def test_prompts_go_to_a_session_by_its_name(client: Client, session: Session) -> None:
    for named in (session, session.id, session.title):
        assert opencode_magics.ask(client, "#text 1", session=named).session == session.id
    assert len(prompts(client, session)) == 3
    with pytest.raises(UnknownNameError, match="No session 'of nobody'"):
        opencode_magics.ask(client, "#text 1", session="of nobody")


@both_generations
def test_an_observer_hears_what_was_done(client: Client, workspace: Path) -> None:
    notices: list[Notice] = []
    request = PromptRequest("#text 2", schema=schema_from({"city": "Rome"}), once=True)
    turn = asking.ask(client, request, callback_runner(Callbacks()), notices.append)
    kinds = [SessionCreated, Sent, Retrying, Sent]
    assert [type(notice) for notice in notices] == kinds
    assert turn.value == {"city": "the city"}
    notices.clear()
    asking.ask(client, request, callback_runner(Callbacks()), notices.append)
    assert [type(notice) for notice in notices] == [Recalled, Retrying, Recalled]


@both_generations
@pytest.mark.parametrize(
    ("options", "outcome", "reply"),
    [
        ({}, "rejected", "reject"),
        ({"on_permission": "once"}, "succeeded", "once"),
        ({"on_permission": lambda permission: "once"}, "succeeded", "once"),
        ({"on_permission": lambda permission: ("reject", "not now")}, "succeeded", "reject"),
    ],
)
def test_a_permission_is_decided(
    client: Client, session: Session, workspace: Path, options: Any, outcome: str, reply: str
) -> None:
    turn = opencode_magics.ask(client, "#bash touch made-here", session=session, **options)
    assert turn.outcome == outcome
    assert [settled.reply for settled in turn.settled_requests] == [reply]
    assert (workspace / "made-here").exists() == (reply != "reject")


@both_generations
def test_no_permission_is_given_by_mistake(
    client: Client, session: Session, workspace: Path
) -> None:
    decide: Any = lambda permission: True  # noqa: E731
    with pytest.raises(InvalidAnswer, match="returned True") as failed:
        opencode_magics.ask(client, "#bash touch made", session=session, on_permission=decide)
    assert not (workspace / "made").exists()
    assert client.permissions(session.directory) == ()
    assert failed.value.resend is not None
    assert failed.value.resend.execution_state == "stopped"
    assert session.id not in client.statuses(session.directory)


@both_generations
def test_an_error_in_a_function_stops_the_turn(
    client: Client, session: Session, workspace: Path
) -> None:
    def broken(permission: Permission) -> Any:
        raise ZeroDivisionError("my own")

    with pytest.raises(ZeroDivisionError, match="my own"):
        opencode_magics.ask(client, "#bash touch made", session=session, on_permission=broken)
    assert not (workspace / "made").exists()
    assert session.id not in client.statuses(session.directory)
    with pytest.raises(ZeroDivisionError):
        opencode_magics.ask(client, "#slow 200 .1", session=session, on_update=lambda turn: 1 / 0)
    assert session.id not in client.statuses(session.directory)


@both_generations
def test_an_exit_in_a_function_stops_the_turn(
    client: Client, session: Session, workspace: Path
) -> None:
    leave: Any = lambda permission: sys.exit(3)  # noqa: E731
    with pytest.raises(SystemExit):
        opencode_magics.ask(client, "#bash touch made", session=session, on_permission=leave)
    assert not (workspace / "made").exists()
    assert client.permissions(session.directory) == ()
    assert session.id not in client.statuses(session.directory)


@both_generations
def test_the_policy_error_stops_the_turn(client: Client, session: Session) -> None:
    with pytest.raises(AnswerNeeded, match="touch made") as failed:
        opencode_magics.ask(client, "#bash touch made", session=session, on_permission="error")
    assert failed.value.resend is not None
    assert client.permissions(session.directory) == ()


@both_generations
def test_a_question_is_answered_or_dismissed(client: Client, session: Session) -> None:
    asked: list[Question] = []

    def choose(question: Question) -> list[str]:
        asked.append(question)
        return [item.options[0].label for item in question.items]

    turn = opencode_magics.ask(client, "#question", session=session, on_question=choose)
    assert turn.outcome == "succeeded"
    assert [settled.reply for settled in turn.settled_requests] == ["answered"]
    assert len(asked) == 1
    for dismiss in (None, lambda question: None):
        turn = opencode_magics.ask(client, "#question", session=session, on_question=dismiss)
        assert turn.outcome == "rejected"


@both_generations
def test_an_answer_that_does_not_fit_is_asked_for_again(client: Client, workspace: Path) -> None:
    @dataclass
    class Trip:
        city: str
        days: int

    turn = opencode_magics.ask(client, "#text 3", schema=list[Trip])
    assert turn.value["days"].tolist() == [1, 1]
    assert [earlier.text for earlier in turn.earlier] == ["word0 word1 word2"]
    turn = opencode_magics.ask(client, "Where?", schema=Trip)
    assert turn.value == Trip("the city", 1)
    with pytest.raises(UnfitAnswer, match="There is no JSON in it") as failed:
        opencode_magics.ask(client, "#text 3", schema=Trip, retries=0)
    assert len(failed.value.turns) == 1


@both_generations
def test_a_turn_that_costs_too_much_is_stopped(
    client: Client, session: Session, workspace: Path
) -> None:
    calls = '{"calls": [["read", {"filePath": "notes.txt"}]]}'
    with pytest.raises(TurnError, match=r"exceeded max_cost \$0\.001") as failed:
        opencode_magics.ask(
            client,
            f"#plan [{calls}, {calls}, {calls}]",
            session=session,
            limits=Limits.of(max_cost=0.001),
        )
    assert failed.value.turn.stopped
    assert is_idle(client, failed.value.turn)


@both_generations
def test_retries_share_one_limit(client: Client, workspace: Path) -> None:
    limits = Limits.of(max_cost=1e-6)
    with pytest.raises(CostLimitError, match="Nothing was sent"):
        opencode_magics.ask(client, "#text 3", schema={"city": "Rome"}, limits=limits)


@both_generations
def test_files_go_along(client: Client, session: Session, tmp_path: Path) -> None:
    path = tmp_path / "note.txt"
    path.write_text("remember the milk")
    own = Attachment("", "text/plain", "own.txt", "data:text/plain;base64,aGk=")
    turn = opencode_magics.ask(client, "#text 1", session=session, files=[path, own])
    stored = client.run(client.dialect.message(session, turn.prompt))
    names = [part.filename for part in stored.parts if isinstance(part, Attachment)]
    assert names == ["note.txt", "own.txt"]


@both_generations
def test_after_a_timeout_the_turn_goes_on_and_can_be_followed(
    client: Client, session: Session
) -> None:
    left = opencode_magics.ask(client, "#slow 20 .1", session=session, timeout=0.5)
    assert left.outcome == "running"
    states: list[Turn] = []
    turn = opencode_magics.follow(client, session.id, on_update=states.append)
    assert (turn.outcome, turn.prompt) == ("succeeded", left.prompt)
    assert len(states) > 1
    assert states[-1] == turn


@both_generations
def test_a_timeout_returns_the_running_turn_of_a_schema_without_a_value(
    client: Client, session: Session
) -> None:
    left = opencode_magics.ask(
        client, "#slow 20 .1", session=session, schema={"city": "Rome"}, timeout=0.5
    )
    assert (left.outcome, left.value) == ("running", None)
    assert opencode_magics.follow(client, session).prompt == left.prompt


@both_generations
def test_the_last_turn_of_an_idle_session_is_followed(client: Client, session: Session) -> None:
    sent = opencode_magics.ask(client, "#text 3", session=session)
    assert opencode_magics.follow(client, session).text == sent.text
    with pytest.raises(TurnError, match="The turn failed"):
        opencode_magics.ask(client, "#err400", session=session)
    with pytest.raises(TurnError, match="The turn failed"):
        opencode_magics.follow(client, session)
    with pytest.raises(ValueError, match="empty"):
        opencode_magics.follow(client, "")


@both_generations
def test_a_prompt_that_was_answered_is_not_sent_again(client: Client, session: Session) -> None:
    turns = [opencode_magics.ask(client, "#text 3", session=session, once=True) for _ in range(2)]
    assert turns[0].prompt == turns[1].prompt
    assert len(prompts(client, session)) == 1


@both_generations
def test_an_interrupt_stops_the_turn_on_the_server(client: Client, session: Session) -> None:
    def interrupt(turn: Turn) -> None:
        if turn.text:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(TurnInterrupted, match="aborted on the server") as stopped:
        opencode_magics.ask(client, "#slow 200 .1", session=session, on_update=interrupt)
    assert stopped.value.turn is not None
    assert stopped.value.turn.outcome == "aborted"
    assert stopped.value.resend is not None
    assert session.id not in client.statuses(session.directory)


def test_an_interrupt_before_the_prompt_is_sent_sends_nothing(
    client: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> Any:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(asking, "find_session", interrupted)
    with pytest.raises(TurnInterrupted, match="before the prompt was sent"):
        opencode_magics.ask(client, "#text 1", session=session.id)
    assert client.messages(session) == ()


@both_generations
def test_a_busy_session_is_prompted_only_on_demand(client: Client, session: Session) -> None:
    opencode_magics.ask(client, "#slow 20 .1", session=session, timeout=0.0)
    wait_until_busy(client, session)
    with pytest.raises(SessionBusyError):
        opencode_magics.ask(client, "#text 2", session=session)
    turn = opencode_magics.ask(client, "#text 2", session=session, delivery="queue")
    assert turn.outcome == "succeeded"


# -- recordings ------------------------------------------------------------------------------------


@both_generations
def test_a_turn_is_saved_and_played_again(client: Client, session: Session, tmp_path: Path) -> None:
    turn = opencode_magics.ask(client, "#text 3", session=session)
    path = opencode_magics.save(turn, tmp_path / "turn.jsonl")
    states: list[Turn] = []
    again = opencode_magics.replay(path, on_update=states.append)
    assert (again.text, again.outcome) == (turn.text, "succeeded")
    assert again.replayed
    assert states[-1] is again
    (recording,) = opencode_magics.load(path)
    assert opencode_magics.replay(recording, speed=1000).text == turn.text
    with pytest.raises(ValueError, match="above 0"):
        opencode_magics.replay(recording, speed=0)
    other = opencode_magics.ask(client, "#text 1", session=session)
    opencode_magics.save(other, path, append=True)
    with pytest.raises(RecordingError, match="has 2 recorded turns"):
        opencode_magics.replay(path)


@both_generations
@pytest.mark.parametrize("prompt", ["#bash touch made", "#task #bash touch made"])
def test_a_function_that_decides_sees_the_input_of_the_tool_call(
    client: Client, session: Session, bash: str, prompt: str
) -> None:
    """Case T3, in plain Python; also of a subagent, whose messages the turn doesn't have."""
    seen: list[Permission] = []

    def decide(permission: Permission) -> Decision:
        seen.append(permission)
        return "reject"

    opencode_magics.ask(client, prompt, session=session, on_permission=decide)
    assert [(p.tool, p.input["command"]) for p in seen] == [(bash, "touch made")]
