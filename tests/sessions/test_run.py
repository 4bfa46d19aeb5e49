"""Running a prompt to its end: on a real server, and against one that misbehaves."""

from __future__ import annotations

import json
import threading
import time

import pytest
from support.fake_server import (
    ACCEPTED,
    DISCONNECT,
    FakeServer,
    answers_in_turn,
    assistant,
    frame,
    user,
    v1_routes,
    v2_routes,
)
from support.generations import both_generations, tool_names
from support.ipython_shell import until, wait_until_busy
from support.recorded_flows import DATA, case
from support.turns import finish, prompted

from opencode_magics.client.client import Client
from opencode_magics.core.events import MessageChanged
from opencode_magics.core.fold import advance
from opencode_magics.core.model import Attachment, Message, Permission, Question, Session
from opencode_magics.core.turn import Turn
from opencode_magics.dialects.base import Prompt, Request
from opencode_magics.errors import (
    OpenCodeError,
    ServerConnectionError,
    SessionBusyError,
    StatusError,
    TurnError,
    UnknownNameError,
)
from opencode_magics.sessions import transcript
from opencode_magics.sessions.follow import _await_opening
from opencode_magics.sessions.lookup import (
    create_session,
    find_session,
    pick_session,
    same_directory,
)
from opencode_magics.sessions.polling import QUIET
from opencode_magics.sessions.run import Run, attach, prepare

ROOT = Session("ses_root01", "root", "/work/p")
SSE = "sse_v1_{}.sse"


# -- on the real 1.18.33, and on the simulated 2.x -------------------------------------------------


@both_generations
@pytest.mark.parametrize(
    ("prompt", "outcome", "tools"),
    [
        ("#text 5", "succeeded", []),
        ("#reason", "succeeded", []),
        ("#bash echo hi", "succeeded", ["bash"]),
        ("#two", "succeeded", ["bash", "bash"]),
        ("#todo", "succeeded", ["todowrite", "todowrite"]),
        ("#task #text 3", "succeeded", ["task"]),
        ("#task #bash echo from below", "succeeded", ["task"]),
        ("#question", "succeeded", ["question"]),
        ("#err400", "failed", []),
        ("#err401", "failed", []),
        ("#err429 1", "succeeded", []),
        ("#err500 1", "succeeded", []),
        ("#drop 1", "succeeded", []),
        ("#garbage", "failed", []),
        ("#empty", "succeeded", []),
        ("#length", "succeeded", []),
    ],
)
def test_every_scenario_of_the_practice_model_ends_as_it_should(
    client, session, workspace, generation, prompt, outcome, tools
):
    turn = prompted(client, session, prompt, answers=[["Red"], ["S"]])
    names = tool_names(generation, *tools)
    assert (turn.outcome, [t.tool for t in turn.tools]) == (outcome, names)
    assert turn.waiting == ()


@both_generations
def test_a_session_remembers_what_its_turns_cost(client, session):
    turns = [prompted(client, session, "#text 3") for _ in range(2)]
    cost = pytest.approx(sum(t.cost for t in turns))
    until(
        lambda: client.session(session.id).usage.cost == cost
    )  # 1.18.33 adds the cost after the end of the turn


@both_generations
def test_an_edit_shows_its_diff_and_changes_the_file(client, session, workspace):
    (workspace / "a.txt").write_text("hello one\n")
    turn = prompted(client, session, "#edit a.txt")
    (diff,) = turn.diffs
    assert (diff.file, diff.additions, diff.deletions) == ("a.txt", 1, 1)
    assert "-hello one" in diff.patch
    assert (workspace / "a.txt").read_text() == "goodbye one\n"


@both_generations
@pytest.mark.parametrize(
    ("decision", "message", "outcome"),
    [("once", "", "succeeded"), ("reject", "", "rejected"), ("reject", "not now", "succeeded")],
)
def test_a_permission_is_answered(client, session, workspace, decision, message, outcome):
    turn = prompted(client, session, "#bash touch made", decision=decision, message=message)
    assert turn.outcome == outcome
    assert (workspace / "made").exists() == (decision == "once")
    assert [s.reply for s in turn.settled_requests] == [decision]
    assert all(s.waited is not None and 0 < s.waited < 120 for s in turn.settled_requests)


@both_generations
def test_rejecting_a_subagent_fails_its_task_and_the_parent_goes_on(client, session, workspace):
    turn = prompted(client, session, "#task #bash touch made", decision="reject")
    assert turn.outcome == "succeeded"
    assert [t.status for t in turn.tools] == ["error"]
    assert not (workspace / "made").exists()


@both_generations
def test_a_dismissed_question_stops_the_turn(client, session):
    assert prompted(client, session, "#question").outcome == "rejected"


@both_generations
def test_a_session_works_in_its_own_directory(client, world):
    below = world.directory / "below"
    below.mkdir(exist_ok=True)
    session = create_session(client, "below", str(below))
    turn = prompted(client, session, "#bash pwd")
    assert turn.tools[0].output.strip().endswith("/below")


@both_generations
def test_an_abort_is_confirmed_and_keeps_the_text_so_far(client, session):
    with prepare(client, session, "#slow 400 .1") as run:
        run.start()
        for turn in run:
            if turn.text:
                break
        turn = run.abort()
    assert (turn.outcome, turn.cost) == ("aborted", None)
    assert turn.text.startswith("slow0")
    assert session.id not in client.statuses(session.directory)


@both_generations
def test_an_abort_right_after_the_prompt_holds_in_a_cold_directory(client, world):
    cold = world.root / "cold"
    cold.mkdir(exist_ok=True)
    session = create_session(client, "cold", str(cold))
    with prepare(client, session, "#slow 400 .1") as run:
        run.start()
        assert run.abort().outcome == "aborted"
    assert prompted(client, session, "#text 2").outcome == "succeeded"


@both_generations
@pytest.mark.parametrize("prompt", ["#bash touch never", "#question", "#task #bash touch never"])
def test_an_abort_leaves_nothing_waiting(client, session, workspace, prompt):
    with prepare(client, session, prompt) as run:
        run.start()
        for turn in run:
            if turn.waiting:
                break
        assert run.abort().outcome == "aborted"
    waiting = (*client.permissions(session.directory), *client.questions(session.directory))
    assert waiting == ()
    assert not (workspace / "never").exists()


@both_generations
def test_an_abort_between_two_tries_of_the_provider(client, session):
    with prepare(client, session, "#err500") as run:
        run.start()
        for turn in run:
            if turn.retries:
                break
        assert run.abort().outcome == "aborted"


@both_generations
def test_a_busy_session_is_an_error_and_a_queued_prompt_gets_its_own_answer(client, session):
    with prepare(client, session, "#slow 40 .1") as first:
        first.start()
        wait_until_busy(client, session)
        with pytest.raises(SessionBusyError, match="--queue") as caught:
            prepare(client, session, "#text 2")
        assert caught.value.status == 409
        second = prompted(client, session, "#text 2", queue=True)
        assert second.text == "word0 word1"
        assert finish(first).outcome == "succeeded"


@both_generations
def test_a_prompt_is_in_the_store_once(client, session):
    turn = prompted(client, session, "#text 2")
    texts = [m.text for m in client.messages(session) if m.role == "user"]
    assert texts == ["#text 2"]
    assert turn.question_text == "#text 2"


@both_generations
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "practice/scriptet"}, "Did you mean 'practice/scripted'"),
        ({"model": "nobody/nothing"}, "No model 'nobody/nothing'"),
        ({"agent": "buidl"}, "Did you mean 'build'"),
        ({"variant": "enormous"}, "no variant 'enormous'"),
    ],
)
def test_unknown_names_are_caught_before_sending(client, session, options, words):
    with pytest.raises(UnknownNameError, match=words):
        prepare(client, session, "hi", **options)
    assert client.messages(session) == ()


@both_generations
def test_a_file_is_attached(client, session, tmp_path, generation):
    from opencode_magics.prompts.files import attachment

    path = tmp_path / "note.txt"
    path.write_text("remember the milk")
    turn = prompted(client, session, "#text 2", files=(attachment(str(path)),))
    stored = client.run(client.dialect.message(session, turn.prompt))
    assert [p.filename for p in stored.parts if isinstance(p, Attachment)] == ["note.txt"]
    if generation == "1.x":  # 2.x stores no text of the file with the prompt
        assert "remember the milk" in "".join(getattr(p, "text", "") for p in stored.parts)


def test_an_exact_title_wins_over_the_beginning_of_an_id():
    """Case M7: the title "s" could not be chosen."""
    listed = [Session("ses_1", "other"), Session("ses_2", "s"), Session("ses_3", "ses_1")]
    assert pick_session("s", listed).id == "ses_2"
    assert pick_session("ses_1", listed).id == "ses_1"
    assert pick_session("ses_3", listed).id == "ses_3"


@both_generations
def test_find_session_accepts_an_id_a_prefix_or_a_title(client, session):
    other = create_session(client, "A title that nobody else has")
    assert find_session(client, other.id) == client.session(other.id)
    assert find_session(client, other.id[:-2]).id == other.id
    assert find_session(client, "a title THAT nobody else has").id == other.id
    assert find_session(client, "nobody else").id == other.id
    with pytest.raises(UnknownNameError, match=r"matches \d+ sessions"):
        find_session(client, "ses_")
    with pytest.raises(UnknownNameError, match="No session 'quite unknown'"):
        find_session(client, "quite unknown")


# -- against a server that misbehaves --------------------------------------------------------------


def running(fake: FakeServer, prompt: str = "msg_u1") -> tuple[Client, Run]:
    client = Client(fake.url, directory="/work/p")
    return client, Run(client, ROOT, Prompt(prompt, "hi"))


def played(fake: FakeServer, prompt: str = "msg_u1", **answers: object) -> Turn:
    client, run = running(fake, prompt)
    with client, run:
        run.start()
        return finish(run, **answers)


def delta(text: str) -> bytes:
    return frame(
        "message.part.delta",
        sessionID="ses_root01",
        messageID="msg_a1",
        partID="p",
        field="text",
        delta=text,
    )


def sse(name: str) -> bytes:
    return (DATA / "cases" / SSE.format(name)).read_bytes()


def test_the_store_wins_where_stream_and_store_differ():
    """Case G1-01."""
    stored = [user("msg_u1"), assistant("msg_a2", "msg_u1", "The value is 1.")]
    routes = v1_routes(message=stored)
    with FakeServer(routes, [[sse("final_text_only_in_deltas")]]) as fake:
        turn = played(fake)
        assert (turn.text, turn.outcome) == ("The value is 1.", "succeeded")
        assert len(fake.asked("GET /session/ses_root01/message")) == 1


def test_requests_of_descendants_belong_to_the_turn_and_others_do_not():
    """Case G1-02."""
    rest = case("sse_v1_child_permissions.rest.json")
    replied = dict.fromkeys(
        ("POST /permission/per_child/reply", "POST /permission/per_grand/reply"), True
    )
    started = frame("message.updated", info=user("msg_u1")["info"])
    with FakeServer(v1_routes() | rest | replied, [[started, sse("child_permissions")]]) as fake:
        client, run = running(fake)
        shown = set()
        with client, run:
            run.start()
            end = time.monotonic() + 120
            for turn in run:
                shown |= {p.id for p in turn.permissions}
                for permission in turn.permissions:
                    run.decide(permission, "once")
                if len(turn.settled_requests) == 2 or time.monotonic() > end:
                    break
        expected = case("sse_v1_child_permissions.expected.json")
        assert shown == set(expected["prompts_shown"])
        sessions = {s.request.session for s in run.turn.settled_requests}
        assert sessions == {"ses_child1", "ses_grand1"}


def test_a_prompt_that_arrived_before_the_connection_broke_is_followed():
    """Case G1-05."""
    stored = [user("msg_u1"), assistant("msg_a1", "msg_u1", "done")]
    routes = v1_routes(prompt=DISCONNECT, message=stored) | {
        "GET /session/ses_root01/message/msg_u1": stored[0]
    }
    with FakeServer(routes, [[frame("session.idle", sessionID="ses_root01")]]) as fake:
        assert played(fake).text == "done"
        assert len(fake.asked("POST /session/ses_root01/prompt_async")) == 1


def test_a_prompt_that_may_have_been_lost_is_unknown_and_not_sent_again():
    """Case G1-05."""
    missing = (404, {}, b"")
    routes = v1_routes(prompt=DISCONNECT) | {"GET /session/ses_root01/message/msg_u1": missing}
    with FakeServer(routes) as fake:
        client, run = running(fake)
        with client, run, pytest.raises(TurnError, match="is unknown whether") as caught:
            run.start()
        assert caught.value.turn.outcome == "unknown"
        assert len(fake.asked("POST /session/ses_root01/prompt_async")) == 1


def test_what_happened_while_the_stream_was_down_is_read_from_the_store():
    """Case G1-06."""
    opening = assistant("msg_a1", "msg_u1")["info"] | {"time": {"created": 2}, "finish": None}
    first = [
        frame("message.updated", info=user("msg_u1")["info"]),
        frame("message.updated", info=opening),
        delta("half"),
        DISCONNECT,
    ]
    stored = [user("msg_u1"), assistant("msg_a1", "msg_u1", "half and the whole rest")]
    with FakeServer(v1_routes(message=stored), [first, []]) as fake:
        began = time.monotonic()
        assert played(fake).text == "half and the whole rest"
        assert time.monotonic() - began < QUIET


def test_a_stale_idle_closes_no_turn():
    """Case G1-07."""
    stored = [user("msg_u2"), assistant("msg_a2", "msg_u2", "real answer")]
    with FakeServer(v1_routes(message=stored), [[sse("stale_and_double_idle")]]) as fake:
        turn = played(fake, "msg_u2")
        assert (turn.text, turn.outcome) == ("real answer", "succeeded")


def test_a_session_made_elsewhere_is_refused():
    """Case G1-12."""
    elsewhere = {"id": "ses_x", "directory": "/home/srv"}
    wrong = pytest.raises(UnknownNameError, match="/home/srv instead of /work/p")
    with FakeServer(v1_routes(create=elsewhere)) as fake, Client(fake.url) as client, wrong:
        create_session(client, "title", "/work/p")


def test_a_request_older_than_the_stream_is_seen():
    """Case G1-14."""
    asked = {"id": "per_1", "sessionID": "ses_root01", "permission": "bash", "patterns": ["ls"]}
    stored = [user("msg_u1"), assistant("msg_a1", "msg_u1", "done")]
    routes = v1_routes(
        permission=answers_in_turn([asked], []),
        status=answers_in_turn({"ses_root01": {"type": "busy"}}, {}),
        message=answers_in_turn([user("msg_u1")], stored),
    ) | {"POST /permission/per_1/reply": True}
    idle = frame("session.idle", sessionID="ses_root01")
    with FakeServer(routes, [[idle]]) as fake:
        turn = played(fake)
        assert [s.request.id for s in turn.settled_requests] == ["per_1"]
        assert len(fake.asked("POST /permission/per_1/reply")) == 1


def test_a_request_answered_elsewhere_is_settled_without_an_error():
    """Case G1-15."""
    gone = (404, {"content-type": "application/json"}, b'{"_tag":"PermissionNotFoundError"}')
    with FakeServer(v1_routes() | {"POST /permission/per_1/reply": gone}) as fake:
        client, run = running(fake)
        permission = Permission("per_1", "ses_root01", "bash", ("ls",))
        run._progress.turn = Turn("ses_root01", "msg_u1", permissions=(permission,))
        with client:
            assert run.decide(permission, "once") is False
        assert run.turn.waiting == ()
        assert "elsewhere" in run.turn.settled_requests[0].reply


def test_a_failed_reply_can_be_sent_again():
    """Case G4-06."""
    asked = {"id": "per_1", "sessionID": "ses_root01", "permission": "bash", "patterns": ["ls"]}
    routes = v1_routes(permission=[asked]) | {
        "POST /permission/per_1/reply": answers_in_turn((500, {}, b""), DISCONNECT, True)
    }
    with FakeServer(routes) as fake:
        client, run = running(fake)
        permission = Permission("per_1", "ses_root01", "bash", ("ls",))
        run._progress.turn = Turn("ses_root01", "msg_u1", permissions=(permission,))
        with client:
            with pytest.raises(StatusError):
                run.decide(permission, "once")
            with pytest.raises(ServerConnectionError):
                run.decide(permission, "once")
            assert run.turn.waiting == (permission,)
            assert run.decide(permission, "once") is True


@pytest.mark.parametrize("answer", [DISCONNECT, (500, {}, b"")])
def test_a_failed_reply_to_a_settled_request_is_reported_as_uncertain(answer):
    with FakeServer(v1_routes(permission=[]) | {"POST /permission/per_1/reply": answer}) as fake:
        client, run = running(fake)
        permission = Permission("per_1", "ses_root01", "bash", ("ls",))
        run._progress.turn = Turn("ses_root01", "msg_u1", permissions=(permission,))
        with client:
            assert run.decide(permission, "once") is False
        assert "perhaps" in run.turn.settled_requests[0].reply
        assert len(fake.asked("POST /permission/per_1/reply")) == 1


def test_aborting_twice_sends_one_abort():
    with FakeServer(v1_routes()) as fake:
        client, run = running(fake)
        with client:
            run.abort_in_background()
            run.abort_in_background().join()
        assert len(fake.asked("POST /session/ses_root01/abort")) == 1


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize(
    ("removal", "outcome"),
    [(DISCONNECT, "unknown"), ((503, {}, b""), "unknown"), ((204, {}, b""), "aborted")],
)
def test_stopping_a_queued_prompt_stops_no_other_turn(removal, outcome, seen):
    route = "DELETE /api/session/ses_root01/inbox/msg_u1"
    gone = (404, {"content-type": "application/json"}, b'{"_tag": "MessageNotFoundError"}')
    routes = v2_routes() | {route: removal, "GET /api/session/ses_root01/message/msg_u1": gone}
    with FakeServer(routes) as fake, Client(fake.url, directory="/work/p") as client:
        with Run(client, ROOT, Prompt("msg_u1", "hi"), running=True, queued=True) as run:
            if seen:
                waits = Message("msg_u1", ROOT.id, "user", queued=True)
                run._progress.turn = advance(run.turn, MessageChanged(waits))
            assert run.abort().outcome == outcome
        assert fake.asked(route)
        assert not fake.asked("POST /api/session/ses_root01/interrupt")
        assert not fake.asked("GET /api/permission/request")


def test_a_question_of_the_turn_is_answered_on_its_own_route():
    """Case G1-17."""
    asked = {
        "id": "que_1",
        "sessionID": "ses_root01",
        "questions": [{"question": "Which?", "options": [{"label": "A"}], "multiple": True}],
    }
    stored = [user("msg_u1"), assistant("msg_a1", "msg_u1", "done")]
    idle = frame("session.idle", sessionID="ses_root01")
    answered = threading.Event()

    def answer(seen):
        answered.set()
        return True

    frames = [
        frame("message.updated", info=user("msg_u1")["info"]),
        frame("question.asked", **asked),
        lambda: answered.wait(120),
        idle,
    ]
    with FakeServer(
        v1_routes(message=stored) | {"POST /question/que_1/reply": answer}, [frames]
    ) as fake:
        played(fake, answers=[["A", "and my own words"]])
        (reply,) = fake.asked("POST /question/que_1/reply")
        assert reply.body == {"answers": [["A", "and my own words"]]}


def test_an_error_without_an_answer_is_a_failure_with_the_servers_reason():
    """Case G1-18."""
    started = frame("message.updated", info=user("msg_u1")["info"])
    with FakeServer(v1_routes(message=[user("msg_u1")]), [[started, sse("auth_error")]]) as fake:
        turn = played(fake)
        assert turn.outcome == "failed"
        assert "key expired" in str(turn.failure)


def test_a_status_that_lags_behind_the_end_is_waited_for():
    """Case G1-36."""
    stored = [user("msg_u1"), assistant("msg_a1", "msg_u1", "done")]
    busy = {"ses_root01": {"type": "busy"}}
    routes = v1_routes(message=stored, status=answers_in_turn(busy, busy, busy, {}))
    with FakeServer(routes, [[frame("session.idle", sessionID="ses_root01")]]) as fake:
        assert played(fake).outcome == "succeeded"


def test_an_end_without_an_event_is_noticed(monkeypatch):
    monkeypatch.setattr("opencode_magics.sessions.polling.QUIET", 0.5)
    stored = [user("msg_u1"), assistant("msg_a1", "msg_u1", "done")]
    with FakeServer(v1_routes(message=stored), [[]]) as fake:
        client, run = running(fake)
        with client, run:
            run.start()
            assert finish(run).outcome == "succeeded"


def test_a_half_done_answer_of_a_restarted_server_is_interrupted(monkeypatch):
    monkeypatch.setattr("opencode_magics.core.outcome.IDLE_FOR", 0.5)
    half = assistant("msg_a1", "msg_u1", "half", finish=None)
    half["info"]["time"] = {"created": 2}
    idle = frame("session.idle", sessionID="ses_root01")
    with FakeServer(v1_routes(message=[user("msg_u1"), half]), [[idle]]) as fake:
        turn = played(fake)
        assert (turn.outcome, turn.text) == ("interrupted", "half")


def test_an_answer_left_unfinished_by_a_killed_server_is_not_running():
    """The next prompt was answered, so the unfinished answer can't be in progress."""
    half_done = assistant("msg_a1", "msg_u1", "par", created=2, time={"created": 2}, finish=None)
    later = [user("msg_u2", 5), assistant("msg_a2", "msg_u2", "whole", created=6)]
    with FakeServer(v1_routes(message=[user("msg_u1"), half_done, *later])) as fake:
        client = Client(fake.url, directory="/work/p")
        with client, attach(client, ROOT) as run:
            assert run.prompt.id == "msg_u2"
            stored = transcript.read_transcript(client, ROOT)
    assert [t.outcome for t in stored.turns] == ["interrupted", "succeeded"]


def test_a_queued_prompt_is_not_the_running_one():
    at_work = assistant("msg_a1", "msg_u1", "par", created=2, time={"created": 2}, finish=None)
    busy = {"ses_root01": {"type": "busy"}}
    routes = v1_routes(message=[user("msg_u1"), at_work, user("msg_u2", 5)], status=busy)
    with FakeServer(routes) as fake:
        client = Client(fake.url, directory="/work/p")
        with client, attach(client, ROOT) as run:
            assert run.prompt.id == "msg_u1"
            stored = transcript.read_transcript(client, ROOT)
    assert [t.outcome for t in stored.turns] == ["running", "running"]


def test_an_idle_session_without_the_prompt_is_unknown(monkeypatch):
    monkeypatch.setattr("opencode_magics.core.outcome.IDLE_FOR", 0.5)
    idle = frame("session.idle", sessionID="ses_root01")
    with FakeServer(v1_routes(), [[idle]]) as fake:
        turn = played(fake)
        assert (turn.outcome, turn.failure.name) == ("unknown", "PromptMissing")


def test_a_server_that_goes_away_leaves_what_was_received(monkeypatch):
    monkeypatch.setattr("opencode_magics.sessions.follow._RESTART", 1.0)
    opening = assistant("msg_a1", "msg_u1")["info"] | {"time": {"created": 2}, "finish": None}
    frames = [
        frame("message.updated", info=user("msg_u1")["info"]),
        frame("message.updated", info=opening),
        delta("so far"),
    ]
    with FakeServer(v1_routes(), [frames]) as fake:
        client, run = running(fake)
        run.start()
        for turn in run:
            if turn.text:
                break
    with client, run:
        turn = finish(run)
    assert (turn.outcome, turn.text) == ("unknown", "so far")
    assert "ConnectionLost" in str(turn.failure)


def test_a_password_that_stops_working_is_an_error():
    with FakeServer(v1_routes(), [[DISCONNECT]]) as fake:
        client, run = running(fake)
        with client, run:
            client.check()
            client.dialect.stream = lambda directory: Request("GET", "/denied")
            fake.routes["GET /denied"] = (401, {}, b"")
            with pytest.raises(OpenCodeError, match="password"):
                run.start()


def test_the_sessions_agent_is_sent_with_the_prompt():
    """Without an agent, 1.x would use "build".

    Case G1-33.
    """
    planner = {"id": "ses_root01", "directory": "/work/p", "agent": "plan"}
    with (
        FakeServer(v1_routes(session=planner, prompt=ACCEPTED)) as fake,
        Client(fake.url) as client,
    ):
        run = prepare(client, client.session("ses_root01"), "hi")
        assert run.prompt.agent == "plan"


def test_a_directory_is_warmed_before_its_first_prompt():
    with (
        FakeServer(v1_routes()) as fake,
        Client(fake.url) as client,
        prepare(client, ROOT, "hi") as run,
    ):
        run.start()
        paths = [s.path for s in fake.seen]
        assert paths.index("/config/providers") < paths.index("/session/ses_root01/prompt_async")
        assert paths.index("/event") < paths.index("/session/ses_root01/prompt_async")


@pytest.mark.parametrize(
    ("one", "other"),
    [("/a", "/a/"), ("d:\\Work\\p", "D:/Work/p"), ("D:\\Work\\p", "d:\\work\\P\\"), ("/", "/")],
)
def test_spellings_of_one_directory_are_equal(one, other):
    """Case G1-32."""
    assert same_directory(one, other)


@pytest.mark.parametrize(("one", "other"), [("/a", "/A"), ("/a", "/a/b"), ("d:\\p", "e:\\p")])
def test_different_directories_stay_different(one, other):
    """Case G1-32."""
    assert not same_directory(one, other)


def test_a_dismissal_names_who_dismissed():
    with FakeServer(v1_routes() | {"POST /question/que_1/reject": True}) as fake:
        client, run = running(fake)
        question = Question("que_1", "ses_root01", ())
        run._progress.turn = Turn("ses_root01", "msg_u1", questions=(question,))
        with client:
            run.dismiss(question, by="nobody can answer here")
        assert run.turn.settled_requests[0].message == "nobody can answer here"


# -- regressions -----------------------------------------------------------------------------------


def test_a_stream_that_breaks_at_once_does_not_hide_the_end():
    stored = [user("msg_u1"), assistant("msg_a1", "msg_u1", "done")]
    with FakeServer(v1_routes(message=stored), [[b"", DISCONNECT]] * 400) as fake:
        assert played(fake).text == "done"


def test_an_event_right_after_the_opening_is_not_lost():
    with FakeServer(v1_routes(), [[delta("early")]]) as fake, Client(fake.url) as client:
        stream = client.stream("/work/p")
        while stream._queue.qsize() < 2:
            time.sleep(0.01)
        _await_opening(client, stream)
        assert [event.text for event in stream.take(0)] == ["early"]
        stream.close()


def test_a_store_that_fails_for_a_moment_ends_nothing():
    stored = [user("msg_u1"), assistant("msg_a1", "msg_u1", "done")]
    failing = answers_in_turn((500, {}, b""), (500, {}, b""), stored)
    with FakeServer(
        v1_routes(message=failing), [[frame("session.idle", sessionID="ses_root01")]]
    ) as fake:
        assert played(fake).outcome == "succeeded"


def test_a_reconnect_that_is_refused_once_ends_nothing():
    stored = [user("msg_u1"), assistant("msg_a1", "msg_u1", "done")]
    busy = {"ses_root01": {"type": "busy"}}
    routes = v1_routes(message=stored, status=answers_in_turn(busy, busy, {}))
    with FakeServer(routes, [[b"", DISCONNECT], [DISCONNECT], []]) as fake:
        assert played(fake).outcome == "succeeded"


@pytest.mark.parametrize("status", [500, 502, 504, 408])
def test_a_prompt_that_arrived_despite_an_error_response_is_followed(status):
    stored = [user("msg_u1"), assistant("msg_a1", "msg_u1", "done")]
    routes = v1_routes(prompt=(status, {}, b""), message=stored) | {
        "GET /session/ses_root01/message/msg_u1": stored[0]
    }
    with FakeServer(routes, [[frame("session.idle", sessionID="ses_root01")]]) as fake:
        assert played(fake).text == "done"
        assert len(fake.asked("POST /session/ses_root01/prompt_async")) == 1


def test_a_prompt_whose_id_exists_is_followed():
    """A proxy that repeats the request gets a 409 for the second one (2.x)."""
    taken = (409, {"content-type": "application/json"}, b'{"_tag": "ConflictError"}')
    stored = [user("msg_u1"), assistant("msg_a1", "msg_u1", "done")]
    routes = v1_routes(prompt=taken, message=stored) | {
        "GET /session/ses_root01/message/msg_u1": stored[0]
    }
    with FakeServer(routes, [[frame("session.idle", sessionID="ses_root01")]]) as fake:
        assert played(fake).text == "done"


@pytest.mark.parametrize("body", [b"", b'{"code": "timeout"}'])
@pytest.mark.parametrize("status", [408, 499, 504])
def test_a_gateways_error_leaves_the_prompt_unknown(status, body):
    missing = (404, {}, b"")
    routes = v1_routes(prompt=(status, {}, body)) | {
        "GET /session/ses_root01/message/msg_u1": missing
    }
    with FakeServer(routes) as fake:
        client, run = running(fake)
        with client, run, pytest.raises(TurnError, match="is unknown whether"):
            run.start()
        assert run.sent
        assert run.turn.outcome == "unknown"


@pytest.mark.parametrize(
    ("read_back", "error"),
    [(DISCONNECT, TurnError), ((500, {}, b""), TurnError), ((404, {}, b""), StatusError)],
)
def test_a_refused_prompt_is_unsent_only_if_it_is_seen_to_be_missing(read_back, error):
    refused = b'{"name": "UnknownError", "data": {"message": "oh"}}'
    broken = (500, {"content-type": "application/json"}, refused)
    routes = v1_routes(prompt=broken) | {"GET /session/ses_root01/message/msg_u1": read_back}
    with FakeServer(routes) as fake:
        client, run = running(fake)
        with client, run, pytest.raises(error):
            run.start()
        assert run.sent == (error is TurnError)
        assert run.turn.outcome == ("unknown" if run.sent else "failed")


def test_a_session_that_was_deleted_interrupts_its_turn():
    gone = (
        404,
        {"content-type": "application/json"},
        b'{"name":"NotFoundError","data":{"message":"Session not found"}}',
    )
    idle = frame("session.idle", sessionID="ses_root01")
    with FakeServer(v1_routes(message=gone, session=gone), [[idle]]) as fake:
        turn = played(fake)
        assert (turn.outcome, turn.failure.name) == ("interrupted", "SessionGone")


def test_a_queued_turn_answers_none_of_the_requests_before_it(client, session, workspace):
    with prepare(client, session, "#bash touch theirs") as first:
        first.start()
        for turn in first:
            if turn.waiting:
                break
        with prepare(client, session, "#text 2", queue=True) as second:
            second.start()
            second.confirm_stored()
            second.reread()
            assert second.turn.waiting == ()
            first.decide(first.turn.waiting[0], "reject")
            assert not (workspace / "theirs").exists()
            finish(first)
            assert finish(second).settled_requests == ()


def test_a_resumed_subagent_is_not_counted_twice(client, session, workspace):
    first = prompted(client, session, "#task #text 3")
    (kid,) = first.subagents
    task = {"description": "again", "prompt": "#text 3", "subagent_type": "general"}
    resume = [{"calls": [["task", task | {"task_id": kid.id}]]}, {"text": "Done."}]
    second = prompted(client, session, f"#plan {json.dumps(resume)}")
    assert second.tools[0].child == kid.id
    assert second.subagents == ()
    assert not second.usage_complete
    assert second.cost == pytest.approx(second.usage.cost)


def test_the_password_of_the_server_is_in_no_turn(client, session, practice):
    turn = prompted(client, session, "#bash env | grep OPENCODE_SERVER_PASSWORD")
    assert "OPENCODE_SERVER_PASSWORD=********" in turn.tools[0].output
    assert practice.password not in repr(turn.log)
    assert practice.password not in repr(client.messages(session))
