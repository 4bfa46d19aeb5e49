"""Limits that stop a turn: cost ceilings, and the guard against repeated answers."""

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
    """Return a running turn with a finished step for each cost; None is unknown."""
    usages = [None if c is None else Usage(10, 1, 0, 0, 0, c) for c in costs]
    answers = [
        answer(tool(), id=f"msg_{n}", usage=u, finish="tool-calls" if expects_step else "stop")
        for n, u in enumerate(usages, 1)
    ]
    return replace(turn(*answers), checked=False)


# -- decided from the turn -------------------------------------------------------------------------


def test_a_known_cost_above_the_ceiling_stops_a_turn() -> None:
    assert CHEAP.exceeded_limit(steps(0.002, 0.002)) == ""
    assert CHEAP.exceeded_limit(steps(0.002, 0.0041)) == "cost $0.0061 exceeded max_cost $0.005"


def test_a_cost_is_not_rounded_to_the_ceiling_that_it_exceeded() -> None:
    assert Ceiling("max_cost", 0.005).describe(0.00501) == "$0.00501 exceeded max_cost $0.005"


def test_the_cost_of_subagents_counts() -> None:
    child = Session(CHILD, parent=SESSION, created=2_000, usage=Usage(9, cost=0.004))
    assert CHEAP.exceeded_limit(replace(steps(0.002), sessions=(child,)))


def test_an_unknown_cost_exceeds_nothing() -> None:
    assert CHEAP.exceeded_limit(steps(None, None)) == ""
    assert CHEAP.exceeded_limit(running(Text("t", "…"))) == ""


def test_a_turn_whose_model_is_done_is_not_stopped() -> None:
    finished = steps(0.009, expects_step=False)
    assert CHEAP.exceeded_limit(finished) == ""
    assert CHEAP.exceeded_ceiling(finished)


def test_a_turn_that_continues_after_its_last_step_is_stopped() -> None:
    first = answer(Text("t1", "so far"), usage=Usage(10, 1, cost=0.009))
    next_ = Message("msg_2", SESSION, "assistant", 5_000, parent="msg_0", parts=(StepStart("z"),))
    assert CHEAP.exceeded_limit(replace(turn(first, next_), checked=False))


def test_a_turn_that_is_over_is_not_stopped() -> None:
    assert CHEAP.exceeded_limit(says("done")) == ""


def test_earlier_costs_count() -> None:
    assert CHEAP.after(0.004).exceeded_limit(steps(0.002)) == "cost $0.006 exceeded max_cost $0.005"
    with pytest.raises(CostLimitError, match=r"cost \$0\.01 exceeded max_cost \$0\.005"):
        CHEAP.after(0.01).check()
    CHEAP.after(None).check()


def test_a_total_cost_says_whether_it_is_complete() -> None:
    known, partly, unknown = steps(0.002, 0.003), steps(0.002, None), steps(None)
    assert total_cost([known]) == (pytest.approx(0.005), True)
    assert total_cost([known, partly]) == (pytest.approx(0.007), False)
    assert total_cost([unknown]) == (None, False)
    without_price = answer(usage=Usage(10, 1, 0, 0, 0, None))
    assert not turn(answer(id="msg_2"), without_price).cost_complete


def test_a_cost_that_a_ceiling_could_not_include_is_reported(
    client: Client, session: Session
) -> None:
    run = prepare(client, session, "hi", limits=CHEAP)
    run._progress.turn = steps(0.002, None)
    assert _about_cost(run) == "Part of the cost is unknown and does not count toward max_cost."
    run._progress.turn = steps(0.002, 0.001)
    assert _about_cost(run) == ""


def test_an_unknown_cost_of_a_session_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with (
        CannedTransport(v1_routes()) as fake,
        Client(fake.url, transport=fake, directory="/work/p") as client,
    ):
        (session,) = client.sessions()
        limits = add_session_ceiling(client, session, Limits(session=0.01))
    assert limits.ceilings[0].spent == 0
    assert f"The earlier cost of session {session.id} is unknown" in caplog.text


def text_answer(n: int, at: int, text: str = "same") -> Message:
    return answer(Text(f"t{n}", text), id=f"msg_{n}", created=at - 10, completed=at)


@pytest.mark.parametrize(
    ("answers", "looping"),
    [
        ([text_answer(n, n * 1_000) for n in range(1, 7)], True),
        ([text_answer(n, n * 1_000) for n in range(1, 6)], False),
        ([text_answer(n, n * 2_000) for n in range(1, 7)], True),
        ([text_answer(n, n * 2_001) for n in range(1, 7)], False),
        ([text_answer(n, n * 1_000, f"answer {n % 2}") for n in range(1, 9)], False),
        ([text_answer(0, 0, "other"), *(text_answer(n, n * 1_000) for n in range(1, 7))], True),
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


def test_different_tool_outputs_do_not_break_a_loop() -> None:
    calls = [answer(tool(output=str(n)), id=f"m{n}", completed=n) for n in range(1, 7)]
    assert is_looping(tuple(calls))


def test_the_guard_can_be_turned_off() -> None:
    same = replace(turn(*(text_answer(n, n) for n in range(1, 7))), checked=False)
    assert Limits().exceeded_limit(same) == "6 identical model answers within 10 s (loop_guard)"
    assert Limits(loop_guard=False).exceeded_limit(same) == ""


# -- on servers ------------------------------------------------------------------------------------


def looping(n: int) -> str:
    """Return a prompt for `n` identical steps, slow enough to be stopped in between."""
    step = READ | {"text": "Again.", "deltas": 1, "delay": 0.05}
    return f"#plan {json.dumps([step] * n + [{'text': 'Done.'}])}"


@both_generations
def test_a_turn_that_exceeds_its_ceiling_is_aborted_and_says_why(
    client: Client, session: Session
) -> None:
    limits = Limits((Ceiling("max_cost", 0.05),), loop_guard=False)
    ended = prompted(client, session, looping(100), limits=limits)
    assert ended.outcome == "aborted"
    assert ended.stopped.startswith("cost $0.")
    assert str(ended.failure) == f"Stopped: {ended.stopped}"
    assert ended.steps < 100
    assert session.id not in client.statuses(session.directory)


@both_generations
def test_a_model_that_repeats_itself_is_stopped(client: Client, session: Session) -> None:
    ended = prompted(client, session, looping(100))
    assert (ended.outcome, ended.stopped) == (
        "aborted",
        "6 identical model answers within 10 s (loop_guard)",
    )
    assert 6 <= ended.steps < 100


def test_web_pages_instead_of_answers_do_not_loop_forever(client: Client, session: Session) -> None:
    """1.18.33 treats a page as an empty step with the finish "unknown", and continues."""
    ended = prompted(client, session, "#page")
    assert ended.outcome == "aborted"
    assert "6 identical model answers" in ended.stopped


@both_generations
def test_the_cost_of_subagents_stops_their_parent(client: Client, session: Session) -> None:
    limits = Limits((Ceiling("max_cost", 0.06),), loop_guard=False)
    ended = prompted(client, session, f"#task {looping(100)}", limits=limits)
    assert (ended.outcome, bool(ended.stopped)) == ("aborted", True)
    assert ended.tree & client.statuses(session.directory).keys() == set()


@both_generations
def test_a_session_over_its_limit_gets_no_more_prompts(client: Client, session: Session) -> None:
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
def test_nan_is_refused_as_a_ceiling(name: str) -> None:
    state = OpenCodeMagics(None)
    with pytest.raises(TraitError, match=f"{name} takes an amount in USD, not NaN"):
        setattr(state, name, math.nan)
    assert getattr(state, name) is None


def test_a_ceiling_that_could_not_stop_a_turn_is_reported(shell: Shell) -> None:
    shell.run("%config OpenCodeMagics.max_cost = 0.001")
    assert "but the turn ended before it could be stopped" in shell.run("%oc_prompt #text 2").text
    shown = shell.run('%oc_prompt -n #usage {"prompt_tokens": 0, "completion_tokens": 0}')
    assert "The cost is unknown, so max_cost could not be enforced." in shown.text


@both_generations
def test_a_session_over_its_limit_is_refused_in_one_sentence(
    shell: Shell, client: Client, workspace: Path
) -> None:
    shell.run("%oc_prompt -n #text 2")
    shell.run("%config OpenCodeMagics.max_session_cost = 0.01")
    spent = shell.run("%oc_session").value
    before = client.messages(spent)
    for line in ("%oc_prompt #text 2", "%oc_compact"):
        shown = shell.fails(line)
        assert is_short_error(shown)
        assert "exceeded max_session_cost $0.01" in shown.text
    assert client.messages(spent) == before


def test_a_ceiling_without_a_follower_is_reported_as_ineffective(shell: Shell) -> None:
    shell.run("%config OpenCodeMagics.max_cost = 1")
    assert "only while a cell follows it" in shell.run("%oc_prompt -n --no-wait #text 2").text
