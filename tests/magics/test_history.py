"""%oc_history, %oc_usage, %oc_show and %oc_sessions on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pytest
from IPython.core.error import UsageError
from support import synthetic_history
from support.generations import both_generations
from support.ipython_shell import Shell

from opencode_magics import history
from opencode_magics.client import server
from opencode_magics.client.client import Client
from opencode_magics.client.password import DEFAULT_USER
from opencode_magics.core.turn import Turn
from opencode_magics.history.sums import exact_sum
from opencode_magics.magics.history import _summary
from opencode_magics.practice.world import Practice
from opencode_magics.sessions.transcript import Transcript

BOTH_GENERATIONS = True


@pytest.fixture
def shell(shell: Shell) -> Shell:
    """A shell with a new session in which everything is allowed."""
    shell.run("%config OpenCodeMagics.noninteractive = 'once'")
    shell.run("%oc_new history")
    return shell


@pytest.fixture
def http(practice: Practice) -> Iterator[httpx.Client]:
    """A plain HTTP client, for requests that the package doesn't make."""
    auth = (DEFAULT_USER, practice.password)
    with httpx.Client(base_url=practice.url, auth=auth, timeout=60) as http:
        yield http


def current(shell: Shell) -> str:
    return str(shell.run("%oc_session").value.id)


def fork(http: httpx.Client, session: str) -> str:
    return str(http.post(f"/session/{session}/fork", json={}).raise_for_status().json()["id"])


PLAN = json.dumps([{"calls": [["bash", {"command": "exit 3", "description": "x"}]]}, {}])


def test_the_history_of_the_current_session(shell: Shell, bash: str) -> None:
    shell.run(f"%oc_prompt #plan {PLAN}")
    turn = shell.run("%oc_turn").value
    messages = shell.run("%oc_history").value
    assert [*messages["message"]] == [m.id for m in turn.log]
    assert [*messages["outcome"].dropna()] == ["succeeded", "succeeded"]
    assert exact_sum(messages["cost"].dropna()) == round(turn.cost, 10)
    tools = shell.run("%oc_history --tools").value
    assert [*tools.loc[0, ["tool", "exit"]]] == [bash, 3]
    assert tools.loc[0, "input"]["command"] == "exit 3"
    steps = shell.run("%oc_history --steps").value
    assert steps["total"].sum() == turn.usage.total
    parts = shell.run("%oc_history --parts").value
    assert {"text", "tool", "step-start", "step-finish"} <= {*parts["type"]}


def test_sessions_are_named_by_id_or_title(shell: Shell) -> None:
    first = current(shell)
    shell.run("%oc_prompt #text 3")
    shell.run("%oc_new another title")
    second = current(shell)
    shell.run("%oc_prompt #text 3")
    both = shell.run(f"%oc_history {first} {second}").value
    assert [*both["session"].unique()] == [first, second]
    assert {*shell.run("%oc_history another title").value["session"]} == {second}
    everything = shell.run("%oc_history --all").value
    assert {first, second} <= {*everything["session"]}
    assert len(shell.run("%oc_history --everywhere").value) >= len(everything)


def test_cached_sessions_are_reported_and_refreshed(shell: Shell) -> None:
    shell.run("%oc_prompt #text 3")
    shell.run("%oc_history")
    shown = shell.run("%oc_history")
    assert "1 session from the cache" in shown.text
    assert "from the cache" not in shell.run("%oc_history --refresh").text
    shell.run("%config OpenCodeMagics.history_cache = False")
    assert "from the cache" not in shell.run("%oc_history").text


@pytest.mark.parametrize("line", ["--tools --parts", "--all some title", "ses_nope"])
def test_invalid_history_lines_raise_a_short_error(shell: Shell, line: str) -> None:
    assert shell.fails(f"%oc_history {line}").text.count("\n") <= 3


def test_usage_is_grouped_by_the_requested_keys(shell: Shell) -> None:
    shell.run("%oc_prompt #text 3")
    session = current(shell)
    found = shell.run(f"%oc_usage --by agent,model --by day --session {session} --tz UTC")
    assert [*found.value.columns[:4]] == ["agent", "provider", "model", "day"]
    assert found.value.loc[0, "turns"] == 1
    assert "1 session, $" in found.text
    by_session = shell.run(f"%oc_usage -s {session}").value
    assert by_session.loc[0, "cost"] == found.value.loc[0, "cost"]
    assert pd.isna(by_session.loc[0, "turns"])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--by colour", "total, day, week, month"),
        ("--since yesterday", "is not a time"),
        ("--tz Mars/Base", "Europe/Berlin"),
    ],
)
def test_an_invalid_usage_option_lists_the_valid_values(
    shell: Shell, line: str, expected: str
) -> None:
    assert expected in shell.fails(f"%oc_usage {line}").text


def test_list_prices_reproduce_the_stored_cost(shell: Shell, client: Client) -> None:
    """Reasoning costs the price of output, and cached tokens have their own price."""
    used = {"prompt_tokens": 9000, "cached_tokens": 8000, "completion_tokens": 900}
    shell.run(f"%oc_prompt #usage {json.dumps(used | {'reasoning_tokens': 600})}")
    session = client.session(current(shell))
    row = history.usage(client, "model", sessions=[session], cache=False).iloc[0]
    assert [*row[["input", "output", "reasoning", "cache_read"]]] == [1000, 300, 600, 8000]
    assert row["cost"] == exact_sum([(1000 * 3 + 900 * 15 + 8000 * 0.3) / 1e6])
    assert row["gap"] == 0
    assert pd.isna(row["gap_reason"])


def test_a_subagent_is_below_its_parent(shell: Shell, client: Client) -> None:
    shell.run("%oc_prompt #task #text 3")
    session = current(shell)
    found = history.usage(client, cache=False).set_index("session").loc[session]
    assert found["subagents"] == 1
    (child,) = client.run(client.dialect.children(client.session(session)))
    assert found["cost_inclusive"] == exact_sum([found["cost"], child.usage.cost])
    sessions = shell.run("%oc_sessions").value.set_index("id")
    assert [*sessions.loc[child.id, ["parent", "root", "depth"]]] == [session, session, 1]
    assert sessions.loc[child.id, "status"] == "idle"


def test_forks_of_a_real_server_are_found(shell: Shell, client: Client, http: httpx.Client) -> None:
    shell.run("%oc_new original of forks")
    shell.run(f"%oc_prompt #plan {PLAN}")
    original = current(shell)
    first = fork(http, original)
    shell.run(f"%oc_session {first}")
    shell.run("%oc_prompt #text 3")
    second = fork(http, first)
    renamed = fork(http, original)
    http.patch(f"/session/{renamed}", json={"title": "a new name"}).raise_for_status()
    family = [original, first, second, renamed]

    messages = history.messages(client, family, cache=False)
    own = messages[messages["duplicate_of"].isna()].groupby("session", observed=True).size()
    assert dict(own) == {original: 3, first: 2}
    assert messages.attrs["forks"] == {first: original, second: original, renamed: original}
    found = history.usage(client, ["session", "model"], sessions=family, cache=False)
    spent = dict(zip(found["session"], found["cost"], strict=True))
    listed = {s: client.session(s).usage.cost for s in family}
    assert spent[original] == exact_sum([listed[original]])
    assert spent[first] == exact_sum([listed[first], -listed[original]])
    assert spent[second] == spent[renamed] == 0
    whole = history.usage(client, sessions=[original, first, second], cache=False)
    assert whole.attrs["total"]["cost"] == exact_sum([listed[first]])
    shown = shell.run("%oc_sessions --forks --search original").value.set_index("id")
    assert shown.loc[first, "fork_of"] == original


@both_generations
def test_a_fork_costs_only_its_own_calls(shell: Shell, client: Client, generation: str) -> None:
    """On 1.x the cost of a fork includes the copied calls, on 2.x it doesn't."""
    shell.run("%oc_prompt #text 3")
    original = current(shell)
    shell.run("%oc_fork")
    shell.run("%oc_prompt #text 3")
    family = [original, current(shell)]

    def spent(by: str | list[str], **options: Any) -> dict[str, float]:
        found = history.usage(client, by, sessions=family, cache=False, **options)
        return dict(found.groupby("session", observed=True)["cost"].sum())

    alone, whole = spent("session"), spent("session", keep_duplicates=True)
    assert alone == pytest.approx(spent(["session", "model"]))
    assert alone[family[1]] > 0
    assert whole == pytest.approx({original: alone[original], family[1]: sum(alone.values())})
    assert whole == pytest.approx(spent(["session", "model"], keep_duplicates=True))
    assert alone == pytest.approx(spent("session", since="1d"))
    sessions = shell.run(f"%oc_sessions {'--forks' * (generation == '1.x')}").value.set_index("id")
    assert sessions.loc[family[1], "fork_of"] == original
    assert pd.isna(sessions.loc[original, "fork_of"])


@pytest.fixture
def unreadable_session(shell: Shell, http: httpx.Client) -> Iterator[str]:
    """A session that 1.18.33 can't read, with a prompt that has a `format`."""
    shell.run("%oc_new poisoned")
    session = current(shell)
    body = {"parts": [{"type": "text", "text": "#text 1"}]}
    schema = {"type": "json_schema", "schema": {"type": "object", "properties": {}}}
    http.post(f"/session/{session}/message", json=body | {"format": schema})
    assert http.get(f"/session/{session}/message").status_code == 400
    yield session
    # Other tests read all sessions of this server.
    http.delete(f"/session/{session}").raise_for_status()


@pytest.mark.usefixtures("unreadable_session")
def test_a_session_that_cannot_be_searched_for_forks_is_reported(shell: Shell) -> None:
    shell.run("%oc_new poisoned (fork #1)")
    shown = shell.run("%oc_sessions --forks")
    assert "1 session could not be read" in shown.text
    assert any("could not be read" in w for w in shown.value.attrs["warnings"])


def test_an_unreadable_session_is_reported(shell: Shell, unreadable_session: str) -> None:
    shown = shell.run("%oc_history")
    assert len(shown.value) == 0
    assert "1 session could not be read" in shown.text
    assert unreadable_session in {*shell.run("%oc_usage").value["session"]}


# -- transcripts -----------------------------------------------------------------------------------


def show(shell: Shell, line: str) -> tuple[Transcript, dict[str, str]]:
    """Run %oc_show and return the transcript and its representations by MIME type."""
    transcript = shell.run(f"%oc_show {line}").value
    data, _ = shell.display_formatter.format(transcript)
    return transcript, data


def as_stored(turn: Turn) -> Turn:
    """Return a turn as a 2.x server stores it: without answers and diffs of messages."""
    log = tuple(replace(m, diffs=()) for m in turn.log)
    return replace(turn, log=log, settled_requests=())


def test_a_transcript_shows_turns_as_they_looked(shell: Shell, workspace: Path) -> None:
    shell.run("%oc_prompt #edit notes.txt hello goodbye")
    first = shell.run("%oc_turn").value
    shell.run("%oc_prompt #task #text 3")
    second = shell.run("%oc_turn").value
    transcript, shown = show(shell, "")
    assert [t.prompt for t in transcript.turns] == [first.prompt, second.prompt]
    assert [*map(as_stored, transcript.turns)] == [*map(as_stored, (first, second))]
    for turn in (first, second):
        drawn, _ = shell.display_formatter.format(turn)
        assert turn.outcome == "succeeded"
        assert drawn["text/html"].splitlines()[-2] in shown["text/html"]
    assert "> #edit notes.txt hello goodbye" in shown["text/plain"]
    assert "-hello one" in shown["text/plain"]


def test_last_limits_the_turns_of_a_transcript(shell: Shell) -> None:
    for n in range(3):
        shell.run(f"%oc_prompt #text {n + 1}")
    transcript, shown = show(shell, "--last 2")
    assert len(transcript.turns) == 2
    assert "1 earlier turn left out: --last 3 shows all." in shown["text/plain"]
    assert "1 earlier turn left out" in shown["text/html"]
    assert isinstance(shell.fails("%oc_show --last 0").error, UsageError)


def test_a_session_without_a_prompt_has_an_empty_transcript(shell: Shell) -> None:
    transcript, shown = show(shell, "")
    assert transcript.turns == ()
    assert "history" in shown["text/plain"]


def test_hostile_prompts_are_shown_as_text(shell: Shell) -> None:
    shell.run("%%oc_prompt\n<img src=x onerror=alert(1)> #text 1")
    _, shown = show(shell, "")
    assert "<img" not in shown["text/html"]
    assert "&lt;img src=x" in shown["text/html"]


# -- sums over a database --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def filled(opencode: Path) -> Iterator[tuple[Client, Path]]:
    """A separate server with a small synthetic history, some of it forked."""
    with Practice(command=opencode) as world:
        with Client(world.url, directory=str(world.directory), password=world.password) as first:
            first.create("The first of many")
        world.server.stop()
        database = world.root / "home/.local/share/opencode/opencode.db"
        synthetic_history.fill_database(database, sessions=30, messages=12)
        running = server.start(directory=world.directory, command=opencode, env=world.env)
        where = str(world.directory)
        with Client(running.url, directory=where, password=running.password) as client:
            auth = (DEFAULT_USER, running.password)
            with httpx.Client(base_url=running.url, auth=auth, timeout=60) as http:
                forks = [fork(http, s.id) for s in client.sessions()[:4]]
                fork(http, forks[0])
            yield client, database
        running.stop()


@pytest.mark.parametrize("copies", [False, True], ids=["forks excluded", "forks included"])
@pytest.mark.parametrize("by", ["session", "model", "day"])
def test_sums_match_the_database_to_the_micro_dollar(
    filled: tuple[Client, Path], by: str, copies: bool
) -> None:
    client, database = filled
    found = history.usage(client, by, tz="Europe/Berlin", keep_duplicates=copies, cache=False)
    key = found[by].dt.strftime("%Y-%m-%d") if by == "day" else found[by]
    expected = synthetic_history.spent(database, by, "Europe/Berlin", copies)
    assert synthetic_history.differences(zip(key, found["cost"], strict=True), expected) == {}
    assert sum(found["cost"] > 0) >= 3


def test_a_period_splits_sessions_exactly(filled: tuple[Client, Path]) -> None:
    client, database = filled
    calls = sorted(
        (time, cost) for _, _, time, cost, copied in synthetic_history.calls(database) if not copied
    )
    middle = calls[len(calls) // 2][0]
    border = pd.Timestamp(middle, unit="ms", tz="UTC").to_pydatetime()
    later = float(sum(cost for time, cost in calls if time >= middle))
    for by in ("session", "model"):
        after = history.usage(client, by, since=border, cache=False)
        before = history.usage(client, by, until=border, cache=False)
        assert round(after.attrs["total"]["cost"], 6) == round(later, 6)
        whole = round(float(sum(cost for _, cost in calls)), 6)
        assert round(before.attrs["total"]["cost"] + after.attrs["total"]["cost"], 6) == whole


def test_the_summary_of_usage_leaves_out_unknown_counts() -> None:
    """On 2.x nobody may know how many calls a fork copied."""
    frame = pd.DataFrame()
    frame.attrs["total"] = {"sessions": 1, "cost": 0.5, "duplicates": None, "unknown": None}
    assert _summary(frame, ["total"], period=False) == (
        "1 session, $0.50 as stored, without deleted sessions."
    )
