"""A scenario gives the same turn and frames on the real 1.18.33 and on the simulated 2.x.

Ids, times, and the names of tools and their arguments may differ.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal
from support.generations import tool_names

from opencode_magics import history
from opencode_magics.client.client import Client
from opencode_magics.core.model import Reasoning, ToolCall
from opencode_magics.core.turn import Turn
from opencode_magics.practice.repertoire import REPERTOIRE
from opencode_magics.practice.script import KEYWORDS
from opencode_magics.practice.simulator.server import Simulator
from opencode_magics.practice.workspace import reset_workspace
from opencode_magics.practice.world import Practice
from opencode_magics.sessions.lookup import create_session
from opencode_magics.sessions.run import prepare

SCENARIOS: dict[str, dict[str, Any]] = {
    "#text 5": {},
    "#reason": {},
    "#bash echo hi": {},
    "#bash exit 3": {},
    "#bash touch made": {"decision": "reject"},
    "#bash touch it": {"decision": "reject", "message": "not now"},
    "#bash true": {"decision": "always"},
    "#two": {},
    "#edit": {},
    "#write": {},
    "#read": {},
    "#read nowhere.txt": {},
    "#task #text 3": {},
    "#task #bash echo from below": {},
    "#task #bash touch never": {"decision": "reject"},
    "#question": {"answers": [["Red"], ["S", "L"]]},
    "#question ": {},
    "#err400": {},
    "#err401": {},
    "#err429 1": {},
    "#err500 1": {},
    "#empty": {},
    "#length": {},
    "#overflow": {},
    "#drop 1": {},
    "#garbage": {},
    "#long 40": {},
    "#slow 5 .05": {},
    "#slow 100 .1": {"abort": True},
    "#hang": {"abort": True},
    '#usage {"prompt_tokens": 100, "completion_tokens": 20}': {},
    "#todo": {},
    '#plan [{"text": "One."}, {"calls": [["bash", {"command": "true"}]]}, {"text": "Two."}]': {},
    'Say what it is; it fits this JSON Schema: ```json\n{"type": "string"}\n```': {},
    "Hello": {},
    "Explain greet.py.": {},
    "Write a farewell.": {},
    "Delegate a review.": {},
    "Make a plan.": {},
    "Fail and recover.": {},
    "Count slowly.": {"abort": True},
    "Explain the project.": {},
    "Run the tests.": {},
    "Fix the bug.": {},
    "Ask me something.": {"answers": [["Formal"], ["English", "in Latin"]]},
    "Have a subagent run the tests.": {},
}


def played(client: Client, text: str, answers: dict[str, Any]) -> Turn:
    """Run a scenario to its end in a new session."""
    session = create_session(client, text)
    with prepare(client, session, text.strip()) as run:
        run.start()
        deadline = time.monotonic() + 240
        for turn in run:
            assert time.monotonic() < deadline, f"{turn!r} {run.note}"
            for permission in turn.permissions:
                run.decide(permission, answers.get("decision", "once"), answers.get("message", ""))
            for question in turn.questions:
                if "answers" in answers:
                    run.answer(question, answers["answers"])
                else:
                    run.dismiss(question)
            if "abort" in answers and turn.answers:
                return run.abort()
    return run.turn


# Scenarios within others: the reviewer's, and those for OpenCode's own prompts.
WITHIN = {"review", "check", "continue_"}


def test_every_scenario_of_the_practice_model_is_compared() -> None:
    # Without `#page`, a web page instead of an answer: 1.18.33 takes it for a step, forever.
    assert set(KEYWORDS) - {"page"} == set(re.findall(r"#(\w+)", " ".join(SCENARIOS)))
    plain = [text for text in SCENARIOS if not text.startswith("#")]
    names = {next((s.__name__ for p, s in REPERTOIRE if re.search(p, t, re.I)), "") for t in plain}
    assert names == {s.__name__ for _, s in REPERTOIRE} - WITHIN | {""}


def shape(turn: Turn) -> dict[str, Any]:
    """The comparable values of a turn, without ids, times and names of tools."""
    return {
        "outcome": turn.outcome,
        "prompt": turn.question_text,
        "text": turn.text,
        "reasoning": [p.text for m in turn.answers for p in m.parts if isinstance(p, Reasoning)],
        "steps": turn.steps,
        "finishes": [m.finish for m in turn.answers if m.finish],
        "tools": [_tool(t) for t in turn.tools],
        "replies": sorted(s.reply for s in turn.settled_requests),
        "waiting": turn.waiting,
        "retries": len(turn.retries),
        "failed": turn.failure is not None,
        "diffs": [(d.file, d.additions, d.deletions) for d in turn.diffs],
        "usage": turn.usage,
        "cost": turn.cost and round(turn.cost, 9),
        "subagents": [s.title.partition(" (@")[0] for s in turn.subagents],
        "agent": turn.agent,
        "model": str(turn.model),
    }


def _tool(tool: ToolCall) -> tuple[Any, ...]:
    name = tool_names("2.x", tool.tool)[0]
    return name, tool.status, tool.exit, tool.declined, bool(tool.child), bool(tool.diffs)


@pytest.fixture
def servers(practice: Practice, simulator: Simulator) -> Iterator[list[Client]]:
    """Clients of both servers, each in a fresh workspace."""
    clients = []
    for world in (practice, simulator):
        reset_workspace(world.directory)
        clients.append(Client(world.url, directory=str(world.directory), password=world.password))
    yield clients
    for client in clients:
        client.close()


# Values that differ on 2.x, by outcome: an incomplete answer has a finish.
CUT_SHORT: dict[str, Any] = {"finishes": ([], ["error"])}
DIFFERENT = {"failed": CUT_SHORT, "aborted": CUT_SHORT}
# After summarizing a session, 1.18.33 answers a follow-up of its own, 2.x the prompt again.
SUMMED_UP = ("text", "usage", "cost", "steps")
# The beginning of a broken answer stays in the message on 1.18.33.
BROKEN_OFF = ("#drop 1",)
# 2.x has no todo lists, so its agents have no tool for them.
TODOS = ("#todo", "Make a plan.")


@pytest.mark.parametrize("text", SCENARIOS)
def test_a_scenario_gives_the_same_turn_and_frame_on_both(servers: list[Client], text: str) -> None:
    turns = [played(client, text, SCENARIOS[text]) for client in servers]
    one, two = map(shape, turns)
    if text == "#overflow":
        for key in SUMMED_UP:
            assert one.pop(key) != two.pop(key)
    if text in TODOS:
        ends = [[t[1] for t in turn.pop("tools") if t[0] == "todowrite"] for turn in (one, two)]
        assert ends == [["completed"] * 2, ["error"] * 2]
    partial = ["text"] if one["outcome"] == "aborted" else []  # its length varies
    for key in partial:
        shorter, longer = sorted((one.pop(key), two.pop(key)), key=len)
        assert longer.startswith(shorter)
    for key, values in DIFFERENT.get(one["outcome"], {}).items():
        assert (one.pop(key), two.pop(key)) == values
    assert two == one
    if text == "#overflow":
        return  # the follow-up is also a row
    ran = [(c, [c.session(t.session)]) for c, t in zip(servers, turns, strict=True)]
    assert_same([history.frames.sessions(found) for _, found in ran], OWN)
    messages = [history.messages(client, found) for client, found in ran]
    lines = [m[m["role"].isin(["user", "assistant"])].reset_index(drop=True) for m in messages]
    assert_same(lines, [*MESSAGE, *partial])
    apart = [*TOOL, "status"] if text in TODOS else TOOL
    assert_same([history.tools(client, found) for client, found in ran], apart)
    cut_short = one["outcome"] in DIFFERENT
    assert_same(
        [history.steps(client, found) for client, found in ran],
        [*STEP, *(["finish"] if cut_short else [])],
    )
    if not (cut_short or text in BROKEN_OFF):
        assert_same([_parts(history.parts(client, found)) for client, found in ran], [])
    for by in ("agent", "model"):
        added_up = [history.usage(c, by, sessions=[found[0].id]) for c, found in ran]
        assert_same([u.reset_index() for u in added_up], [])


def _parts(frame: pd.DataFrame) -> pd.DataFrame:
    """The roles and types of parts, without the part for changed files that only 1.x has."""
    parts = frame[frame["role"].isin(["user", "assistant"]) & (frame["type"] != "patch")]
    return parts[["role", "type"]].astype(object).reset_index(drop=True)


def assert_same(frames: list[pd.DataFrame], apart_from: list[str]) -> None:
    one, two = (f.drop(columns=[c for c in apart_from if c in f]) for f in frames)
    assert_frame_equal(one, two, check_exact=False, check_categorical=False)


# A 2.x session has the agent and model it was created with, 1.x those of its last prompt.
OWN = ["id", "root", "created", "updated", "directory", "project"]
OWN += ["agent", "provider", "model", "variant"]
# On 2.x a prompt has no agent or model, a text no times, and a tool call no title. The names,
# inputs and outputs of tools and the names of errors differ.
MESSAGE = ["session", "message", "parent", "created", "completed", "duration", "parts", "key"]
MESSAGE += ["agent", "provider", "model", "variant", "first_token", "tokens_per_second"]
MESSAGE += ["rate_note", "finish", "error", "error_message"]
STEP = ["session", "message", "created", "duration"]
TOOL = ["session", "message", "call", "tool", "title", "input", "output", "error", "child"]
TOOL += ["created", "started", "ended", "duration", "key", "agent", "provider", "model", "variant"]
