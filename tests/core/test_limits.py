"""What stops a turn: a cost that is passed, a model that says the same for ever."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from support.fake_server import v1_routes
from support.generations import both_generations
from support.ipython_shell import Shell, is_short_error
from support.sample_turns import CHILD, SESSION, answer, running, says, tool, turn
from support.transport import CannedTransport
from support.turns import prompted
from traitlets import TraitError

from opencode_magics.client.client import Client
from opencode_magics.core.limits import Ceiling, Limits, is_looping, total_cost
from opencode_magics.core.model import Message, Session, StepStart, Text, Usage
from opencode_magics.core.turn import Turn
from opencode_magics.errors import CostLimitError, TurnError
from opencode_magics.magics.state import OpenCodeMagics
from opencode_magics.notebook.cell import _about_cost
from opencode_magics.sessions.run import prepare
from opencode_magics.sessions.store import add_session_ceiling

CHEAP = Limits((Ceiling("max_cost", 0.005),))
READ = {"calls": [["read", {"filePath": "notes.txt"}]]}


def steps(*costs: float | None, expects_step: bool = True) -> Turn:
    """A turn that runs, with a finished step for each cost; None is unknown."""
    usages = [None if c is None else Usage(10, 1, 0, 0, 0, c) for c in costs]
    done = [
        answer(tool(), id=f"msg_{n}", usage=u, finish="tool-calls" if expects_step else "stop")
        for n, u in enumerate(usages, 1)
    ]
    return replace(turn(*done), checked=False)


# -- decided from the turn -------------------------------------------------------------------------


def test_a_known_cost_above_the_ceiling_stops_a_turn() -> None:
    assert CHEAP.exceeded_limit(steps(0.002, 0.002)) == ""
    assert CHEAP.exceeded_limit(steps(0.002, 0.0041)) == "cost $0.0061 exceeded max_cost $0.005"


def test_a_cost_is_not_rounded_to_the_ceiling_that_it_passed() -> None:
    assert Ceiling("max_cost", 0.005).describe(0.00501) == "$0.00501 exceeded max_cost $0.005"


def test_subagents_count() -> None:
    child = Session(CHILD, parent=SESSION, created=2_000, usage=Usage(9, cost=0.004))
    assert CHEAP.exceeded_limit(replace(steps(0.002), sessions=(child,)))


def test_an_unknown_cost_passes_nothing() -> None:
    assert CHEAP.exceeded_limit(steps(None, None)) == ""
    assert CHEAP.exceeded_limit(running(Text("t", "…"))) == ""


def test_a_turn_whose_model_is_done_is_not_stopped_for_nothing() -> None:
    over = steps(0.009, expects_step=False)
    assert CHEAP.exceeded_limit(over) == ""
    assert CHEAP.exceeded_ceiling(over)


def test_it_is_stopped_if_it_goes_on_after_all() -> None:
    first = answer(Text("t1", "so far"), usage=Usage(10, 1, cost=0.009))
    next_ = Message("msg_2", SESSION, "assistant", 5_000, parent="msg_0", parts=(StepStart("z"),))
    assert CHEAP.exceeded_limit(replace(turn(first, next_), checked=False))


def test_a_turn_that_is_over_is_not_stopped() -> None:
    assert CHEAP.exceeded_limit(says("done")) == ""


def test_what_was_spent_before_counts() -> None:
    assert CHEAP.after(0.004).exceeded_limit(steps(0.002)) == "cost $0.006 exceeded max_cost $0.005"
    with pytest.raises(CostLimitError, match=r"cost \$0\.01 exceeded max_cost \$0\.005"):
        CHEAP.after(0.01).check()
    CHEAP.after(None).check()


def test_a_sum_says_whether_it_is_the_whole() -> None:
    known, partly, unknown = steps(0.002, 0.003), steps(0.002, None), steps(None)
    assert total_cost([known]) == (pytest.approx(0.005), True)
    assert total_cost([known, partly]) == (pytest.approx(0.007), False)
    assert total_cost([unknown]) == (None, False)
    without_price = answer(usage=Usage(10, 1, 0, 0, 0, None))
    assert not turn(answer(id="msg_2"), without_price).cost_complete


def test_what_a_ceiling_could_not_see_is_said(client: Client, session: Session) -> None:
    run = prepare(client, session, "hi", limits=CHEAP)
    run._progress.turn = steps(0.002, None)
    assert _about_cost(run) == "Part of the cost is unknown and does not count toward max_cost."
    run._progress.turn = steps(0.002, 0.001)
    assert _about_cost(run) == ""


def test_a_session_of_unknown_cost_is_said_to_be_one(caplog: pytest.LogCaptureFixture) -> None:
    with (
        CannedTransport(v1_routes()) as fake,
        Client(fake.url, transport=fake, directory="/work/p") as client,
    ):
        (session,) = client.sessions()
        limits = add_session_ceiling(client, session, Limits(session=0.01))
    assert limits.ceilings[0].spent == 0
    assert f"The earlier cost of session {session.id} is unknown" in caplog.text


def said(n: int, at: int, text: str = "same") -> Message:
    return answer(Text(f"t{n}", text), id=f"msg_{n}", created=at - 10, completed=at)


@pytest.mark.parametrize(
    ("answers", "looping"),
    [
        ([said(n, n * 1_000) for n in range(1, 7)], True),
        ([said(n, n * 1_000) for n in range(1, 6)], False),
        ([said(n, n * 2_000) for n in range(1, 7)], True),
        ([said(n, n * 2_001) for n in range(1, 7)], False),
        ([said(n, n * 1_000, f"answer {n % 2}") for n in range(1, 9)], False),
        ([said(0, 0, "other"), *(said(n, n * 1_000) for n in range(1, 7))], True),
        ([answer(tool(), id=f"m{n}", completed=n) for n in range(1, 7)], True),
        (
            [
                answer(tool(input={"command": f"cat {n}"}), id=f"m{n}", completed=n)
                for n in range(1, 7)
            ],
            False,
        ),
    ],
)
def test_six_equal_answers_within_ten_seconds_are_a_loop(
    answers: list[Message], looping: bool
) -> None:
    assert is_looping(tuple(answers)) is looping


def test_a_tool_that_answers_otherwise_each_time_does_not_break_a_loop() -> None:
    calls = [answer(tool(output=str(n)), id=f"m{n}", completed=n) for n in range(1, 7)]
    assert is_looping(tuple(calls))


def test_the_guard_can_be_turned_off() -> None:
    same = replace(turn(*(said(n, n) for n in range(1, 7))), checked=False)
    assert Limits().exceeded_limit(same) == "6 identical model answers within 10 s (loop_guard)"
    assert Limits(loop_guard=False).exceeded_limit(same) == ""


# -- on servers ------------------------------------------------------------------------------------


def looping(n: int) -> str:
    """A prompt for so many equal steps, slow enough that somebody can stop it in between."""
    step = READ | {"text": "Again.", "deltas": 1, "delay": 0.05}
    return f"#plan {json.dumps([step] * n + [{'text': 'Done.'}])}"


@both_generations
def test_a_turn_that_passes_its_ceiling_is_aborted_and_says_why(
    client: Client, session: Session
) -> None:
    limits = Limits((Ceiling("max_cost", 0.05),), loop_guard=False)
    told = prompted(client, session, looping(100), limits=limits)
    assert told.outcome == "aborted"
    assert told.stopped.startswith("cost $0.")
    assert str(told.failure) == f"Stopped: {told.stopped}"
    assert told.steps < 100
    assert session.id not in client.statuses(session.directory)


@both_generations
def test_a_model_that_repeats_itself_is_stopped(client: Client, session: Session) -> None:
    told = prompted(client, session, looping(100))
    assert (told.outcome, told.stopped) == (
        "aborted",
        "6 identical model answers within 10 s (loop_guard)",
    )
    assert 6 <= told.steps < 100


def test_a_web_page_in_place_of_answers_does_not_loop_for_ever(
    client: Client, session: Session
) -> None:
    """1.18.33 takes it for an empty step with the finish "unknown", and goes on."""
    told = prompted(client, session, "#page")
    assert told.outcome == "aborted"
    assert "6 identical model answers" in told.stopped


@both_generations
def test_the_cost_of_subagents_stops_their_parent(client: Client, session: Session) -> None:
    limits = Limits((Ceiling("max_cost", 0.06),), loop_guard=False)
    told = prompted(client, session, f"#task {looping(100)}", limits=limits)
    assert (told.outcome, bool(told.stopped)) == ("aborted", True)
    assert told.tree & client.statuses(session.directory).keys() == set()


@both_generations
def test_a_session_that_cost_too_much_gets_nothing_more(client: Client, session: Session) -> None:
    limits = Limits(session=0.04)
    assert prompted(client, session, "#text 2", limits=limits).outcome == "succeeded"
    stopped = prompted(client, session, looping(100), limits=limits)
    assert "exceeded max_session_cost $0.04" in stopped.stopped
    before = len(client.messages(session))
    with pytest.raises(CostLimitError, match="Nothing was sent") as refused:
        prompted(client, session, "#text 2", limits=limits)
    assert "%oc_new" in refused.value.todo
    assert len(client.messages(session)) == before


# -- in cells --------------------------------------------------------------------------------------


@both_generations
def test_a_cell_says_what_stopped_its_turn(shell: Shell) -> None:
    shell.run("%config OpenCodeMagics.max_cost = 0.04")
    shown = shell.fails(f"%%oc_prompt -n -o turn\n{looping(100)}")
    assert isinstance(shown.error, TurnError)
    assert "The turn was stopped: cost $0." in str(shown.error)
    assert "exceeded max_cost $0.04" in shown.text
    assert shell.user_ns["turn"].outcome == "aborted"
    assert "%config OpenCodeMagics" in str(shown.error)


def test_a_command_is_watched_too(shell: Shell) -> None:
    shell.run("%config OpenCodeMagics.max_cost = 0.02")
    shown = shell.fails(f"%oc_command -n explain {looping(100)}")
    assert "exceeded max_cost $0.02" in shown.text


def test_the_guard_is_an_option(shell: Shell) -> None:
    shell.run("%config OpenCodeMagics.loop_guard = False")
    shell.run(f"%%oc_prompt -n -o turn\n{looping(7)}")
    assert shell.user_ns["turn"].outcome == "succeeded"
    shell.run("%config OpenCodeMagics.loop_guard = True")
    assert "loop_guard" in shell.fails(f"%%oc_prompt -n\n{looping(100)}").text


@pytest.mark.parametrize("name", ["max_cost", "max_session_cost"])
def test_a_ceiling_that_nothing_passes_is_refused(name: str) -> None:
    state = OpenCodeMagics(None)
    with pytest.raises(TraitError, match=f"{name} takes an amount in USD, not NaN"):
        setattr(state, name, math.nan)
    assert getattr(state, name) is None


def test_a_ceiling_that_could_not_hold_a_turn_is_said(shell: Shell) -> None:
    shell.run("%config OpenCodeMagics.max_cost = 0.001")
    assert "but the turn ended before it could be stopped" in shell.run("%oc_prompt #text 2").text
    shown = shell.run('%oc_prompt -n #usage {"prompt_tokens": 0, "completion_tokens": 0}')
    assert "The cost is unknown, so max_cost could not be enforced." in shown.text


@both_generations
def test_a_session_that_is_spent_is_refused_in_a_sentence(
    shell: Shell, client: Client, workspace: Path
) -> None:
    shell.run("%oc_prompt -n #text 2")
    shell.run("%config OpenCodeMagics.max_session_cost = 0.01")
    spent = shell.run("%oc_session").value
    held = client.messages(spent)
    for line in ("%oc_prompt #text 2", "%oc_compact"):
        shown = shell.fails(line)
        assert is_short_error(shown)
        assert "exceeded max_session_cost $0.01" in shown.text
    assert client.messages(spent) == held


def test_without_a_follower_a_ceiling_is_said_to_hold_nothing(shell: Shell) -> None:
    shell.run("%config OpenCodeMagics.max_cost = 1")
    assert "only while a cell follows it" in shell.run("%oc_prompt -n --no-wait #text 2").text
