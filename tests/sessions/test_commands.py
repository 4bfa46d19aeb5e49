"""Commands on 2.x, which returns no ids: their effects are correlated, or not claimed."""

from __future__ import annotations

import _thread
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from IPython.core.error import UsageError
from support.fake_server import DISCONNECT, FakeServer, ReceivedRequest, v2_routes
from support.ipython_shell import Shell

from opencode_magics.client.client import Client
from opencode_magics.client.stream import Stream
from opencode_magics.core.model import Command, Rule, Session
from opencode_magics.core.turn import Turn
from opencode_magics.dialects.base import Prompt, SessionOptions
from opencode_magics.errors import (
    NotFoundError,
    ServerConnectionError,
    SessionBusyError,
    StatusError,
    TurnError,
    TurnInterrupted,
    UnknownNameError,
)
from opencode_magics.practice.simulator.commands import expand
from opencode_magics.practice.simulator.server import Cut, Simulator
from opencode_magics.sessions import command_effects, command_records, commands
from opencode_magics.sessions.commands import CommandReceipt, Dispatched
from opencode_magics.sessions.correlate import (
    AdmittedInput,
    ChildSession,
    Invocation,
    correlate,
    includes_arguments,
)
from opencode_magics.sessions.recover import recover


@pytest.fixture
def generation() -> str:
    return "2.x"


# -- correlating plain values ----------------------------------------------------------------------

COMMAND = Invocation("cmd_1", "explain", "greet.py", description="Explain a file")
MARKED = Invocation("cmd_1", "explain", "greet.py", marked=True)
OWN = AdmittedInput("msg_own", "Explain greet.py", delivery="queue")
OTHER = AdmittedInput("msg_other", "Fix the tests")
BELOW = ChildSession("ses_below", "Explain a file", "msg_first", "Explain x")


def concluded(
    invocation: Invocation, *seen: AdmittedInput | ChildSession, answered: bool = True
) -> tuple[Any, ...]:
    inputs = [s for s in seen if isinstance(s, AdmittedInput)]
    children = [s for s in seen if isinstance(s, ChildSession)]
    found = correlate(invocation, inputs, children, answered=answered)
    return found.status, *(i.id for i in (*found.inputs, *found.children))


def test_without_any_effect_the_status_is_none() -> None:
    assert concluded(COMMAND) == ("none",)
    subagent_session = AdmittedInput(
        "msg_l", "<subagent>greet.py</subagent>", "synthetic", subagent_session="ses_other"
    )
    assert concluded(COMMAND, subagent_session) == ("none",)


@pytest.mark.parametrize("alone", [OWN, BELOW])
def test_a_single_effect_with_a_trace_is_matched(
    alone: AdmittedInput | ChildSession,
) -> None:
    assert concluded(COMMAND, alone) == ("matched", alone.id)


@pytest.mark.parametrize(
    "alone",
    [
        OTHER,
        AdmittedInput("msg_c", kind="compaction"),
        ChildSession("ses_x", "Fix the tests"),
        replace(OWN, delivery="steer"),
        replace(OWN, has_metadata=True),
        replace(OWN, kind="synthetic"),
    ],
)
def test_a_single_effect_without_a_trace_is_ambiguous(alone: AdmittedInput | ChildSession) -> None:
    assert concluded(COMMAND, alone) == ("ambiguous",)


def test_short_arguments_are_not_a_trace() -> None:
    invocation = Invocation("cmd_1", "explain", "x")
    assert concluded(invocation, AdmittedInput("msg_a", "Explain x", delivery="queue")) == (
        "ambiguous",
    )


def test_several_effects_are_ambiguous_whatever_their_text() -> None:
    assert concluded(COMMAND, OWN, OTHER) == ("ambiguous",)
    assert concluded(COMMAND, OWN, BELOW) == ("ambiguous",)


def test_the_mark_picks_one_of_several() -> None:
    own = AdmittedInput("msg_own", "Explain greet.py cmd_1")
    assert concluded(MARKED, OTHER, own, BELOW) == ("matched", "msg_own")
    assert concluded(MARKED, OTHER, own, answered=False) == ("matched", "msg_own")
    assert concluded(MARKED, own, AdmittedInput("msg_2", "what is cmd_1?")) == ("ambiguous",)
    assert concluded(MARKED, OWN) == ("ambiguous",)


def test_a_subagent_that_got_the_mark_from_an_agent_is_not_matched() -> None:
    own = AdmittedInput("msg_own", "Explain greet.py cmd_1")
    child = ChildSession("ses_x", "Explain", "msg_x", "Explain greet.py cmd_1")
    assert concluded(MARKED, own, child) == ("matched", "msg_own")
    assert concluded(MARKED, child) == ("matched", "ses_x")


def test_an_effect_is_not_matched_while_another_command_competes() -> None:
    for seen in ([OWN], []), ([], [BELOW]):
        found = correlate(COMMAND, *seen, answered=True, competing=["cmd_2"])
        assert found.status == "ambiguous"
        assert "cmd_2" in found.evidence[-1]
    own = AdmittedInput("msg_own", "Explain greet.py cmd_1")
    assert correlate(MARKED, [own], [], answered=True, competing=["cmd_2"]).status == "matched"


def test_a_child_session_that_an_agent_may_have_opened_is_ambiguous() -> None:
    assert correlate(COMMAND, [], [BELOW], answered=True, agent_busy=True).status == "ambiguous"
    assert correlate(COMMAND, [OWN], [], answered=True, agent_busy=True).status == "matched"


def test_without_a_response_only_the_mark_counts() -> None:
    assert concluded(COMMAND, OWN, answered=False) == ("ambiguous",)
    assert concluded(COMMAND, BELOW, answered=False) == ("ambiguous",)


def test_in_an_isolated_session_the_only_effect_is_matched() -> None:
    """Case W2: others can write into that session, too."""
    invocation = Invocation("ses_1", "explain", "greet.py", isolated=True)
    assert concluded(invocation, OTHER) == ("matched", "msg_other")
    assert concluded(invocation, BELOW) == ("matched", "ses_below")
    assert concluded(invocation) == ("none",)
    assert concluded(invocation, OWN, OTHER) == ("ambiguous",)
    assert concluded(invocation, OWN, answered=False) == ("matched", "msg_own")
    assert concluded(invocation, OTHER, answered=False) == ("ambiguous",)


def test_a_prompt_that_is_just_the_arguments_is_no_trace() -> None:
    """Case W2: another client sends the same text while the command admits nothing."""
    same = AdmittedInput("msg_other", COMMAND.text, delivery="queue")
    assert concluded(COMMAND, same) == ("ambiguous",)


def test_the_evidence_names_the_effects() -> None:
    evidence = "; ".join(correlate(COMMAND, [OWN, OTHER], [], answered=True).evidence)
    assert "msg_own" in evidence
    assert "Fix the tests" in evidence


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("Explain $ARGUMENTS", True),
        ("Explain $1", False),
        ("Tidy up.", False),
        ("!`git log $ARGUMENTS` Explain", False),
        ("!`git log $ARGUMENTS` Explain $ARGUMENTS", False),
        ("!`git log` Explain $ARGUMENTS", True),
    ],
)
def test_a_mark_is_for_templates_with_arguments_outside_of_shell_commands(
    template: str, says: bool
) -> None:
    assert includes_arguments(template) == says


# -- the race, as plain values ---------------------------------------------------------------------

SHAPES = ("echo", "silent", "subtask", "nothing", "late")
ROUNDS = 2_000


def race(seed: int) -> tuple[Invocation, list[AdmittedInput], list[ChildSession], bool, set[str]]:
    """A command, the effects seen, whether the server responded, and the ids of its own effects.

    Other clients prompt before, in between and after, sometimes with the command's own words. They
    never do the one thing that can't be recognized: queue the arguments of an unmarked command
    just when it has no effect.
    """
    chance = random.Random(seed)
    shape = chance.choice(SHAPES)
    invocation = Invocation(
        "cmd_mark",
        "explain",
        chance.choice(["", "x", "greet.py", "the whole of greet.py"]),
        marked=chance.random() < 0.4,
        isolated=False,
        description=chance.choice(["", "Explain a file"]),
    )
    answered = chance.random() < 0.8
    arrived = answered or chance.random() < 0.5
    admits = arrived and shape in ("echo", "silent", "subtask")
    fair = admits or invocation.marked or not answered
    seen: list[AdmittedInput | ChildSession] = [
        stranger(chance, invocation, n, fair) for n in range(_few(chance))
    ]
    own: set[str] = set()
    if admits:
        text = {"echo": f"Explain {invocation.sent}", "silent": "Tidy up."}.get(
            shape, invocation.sent
        )
        title = invocation.description or invocation.name
        made = (
            ChildSession("ses_own", title, "msg_o", text)
            if shape == "subtask"
            else AdmittedInput("msg_own", text, delivery="queue")
        )
        own = {made.id}
        seen.insert(chance.randint(0, len(seen)), made)
    inputs = [s for s in seen if isinstance(s, AdmittedInput)]
    return invocation, inputs, [s for s in seen if isinstance(s, ChildSession)], answered, own


def _few(chance: random.Random) -> int:
    return chance.choice([0, 0, 0, 1, 1, 2, 3])


def stranger(
    chance: random.Random, invocation: Invocation, number: int, alike: bool
) -> AdmittedInput | ChildSession:
    """An effect of another client."""
    delivery = chance.choice(["steer", "queue"])
    texts = ["Fix the tests", "Tidy up.", "Explain notes.txt"]
    texts += [f"Explain {invocation.text}"] * 2 if alike or delivery == "steer" else []
    titles = ["Fix the tests", *(["explain", "Explain a file"] if alike else [])]
    text = chance.choice(texts)
    match chance.randrange(5):
        case 0:
            text = text if alike else "Fix the tests"
            return ChildSession(f"ses_{number}", chance.choice(titles), f"msg_f{number}", text)
        case 1:
            return AdmittedInput(
                f"msg_{number}", text, "synthetic", subagent_session=chance.choice(["", "ses_0"])
            )
        case 2:
            return AdmittedInput(f"msg_{number}", kind="compaction")
        case _:
            return AdmittedInput(f"msg_{number}", text, delivery=delivery)


def test_no_interleaving_leads_to_a_wrong_attribution() -> None:
    results = dict.fromkeys(("matched", "none", "ambiguous"), 0)
    could = 0
    for seed in range(ROUNDS):
        invocation, inputs, children, answered, own = race(seed)
        found = correlate(invocation, inputs, children, answered=answered)
        claimed = {x.id for x in (*found.inputs, *found.children)}
        assert claimed <= own, f"seed {seed}: {invocation} {inputs} {children}"
        assert bool(claimed) == (found.status == "matched")
        assert (found.status == "none") <= (not own), f"seed {seed}: it was there"
        results[found.status] += 1
        could += bool(own)
    assert results["matched"] > could / 4
    assert min(results.values()) > ROUNDS / 20


def test_a_rule_that_takes_the_only_candidate_would_be_caught() -> None:
    """The races include cases that a simpler rule gets wrong."""
    wrong = 0
    for seed in range(ROUNDS):
        _, inputs, children, _, own = race(seed)
        found = [x.id for x in (*inputs, *children)]
        wrong += len(found) == 1 and not set(found) <= own
    assert wrong > ROUNDS / 50


# -- on the simulated server -----------------------------------------------------------------------

COMMANDS: dict[str, dict[str, Any]] = {
    "explain": {"description": "Explain a file", "template": "Explain $ARGUMENTS"},
    "review": {"description": "Review a file", "template": "Review $1", "subtask": True},
    "tidy": {"description": "Tidy up", "template": "Tidy up."},
    "ponder": {"description": "A plugin's own, which admits nothing"},
    "linger": {"template": "Linger over $ARGUMENTS", "late": 2.0},
}


@pytest.fixture(scope="module")
def simulator() -> Iterator[Simulator]:
    """A separate world with the commands above."""
    with Simulator() as world:
        world.commands = dict(COMMANDS)
        yield world


@pytest.fixture(autouse=True)
def _no_interference(simulator: Simulator) -> Iterator[None]:
    yield
    simulator.cuts.clear()
    simulator.meanwhile = lambda session, when: None


def other(client: Client, session: str, text: str) -> str:
    """Prompt the session as another client; return the prompt's id."""
    key = client.dialect.new_prompt_id(random.randrange(2**36))
    client.prompt(Session(session), Prompt(key, text))
    return key


def played(dispatched: Dispatched) -> Turn:
    assert dispatched.run is not None, dispatched.receipt
    with dispatched.run as run:
        run.start()
        for turn in run:
            for permission in turn.permissions:
                run.decide(permission, "once")
    return dispatched.run.turn


def receipt_of(
    client: Client, session: Session, name: str, text: str, **how: Any
) -> CommandReceipt:
    """Send a command without following its turn; return the receipt."""
    dispatched = commands.send_command(client, session, name, text, **how)
    if dispatched.run is not None:
        dispatched.run.close()
    return dispatched.receipt


def posts(world: Simulator, session: str) -> int:
    return world.requests.count(f"POST /api/session/{session}/command")


def test_the_matched_prompt_is_followed_as_the_commands_turn(
    client: Client, session: Session
) -> None:
    dispatched = commands.send_command(client, session, "/explain", "greet.py #text 3")
    assert dispatched.receipt.status == "matched"
    turn = played(dispatched)
    assert dispatched.receipt.inputs == (turn.prompt,)
    assert (turn.outcome, turn.text) == ("succeeded", "word0 word1 word2")
    assert turn.question_text == "Explain greet.py #text 3"


def test_the_turn_of_a_subtask_is_in_the_child_session(client: Client, session: Session) -> None:
    dispatched = commands.send_command(client, session, "review", "greet.py")
    turn = played(dispatched)
    assert dispatched.receipt.children == (turn.session,)
    assert client.session(turn.session).parent == session.id
    assert turn.outcome == "succeeded"
    client.run(client.dialect.wait(session))
    results = [m for m in client.messages(session) if m.kind == "synthetic"]
    assert turn.session in results[0].text


def test_a_command_without_arguments_is_ambiguous(client: Client, session: Session) -> None:
    dispatched = commands.send_command(client, session, "tidy", "")
    assert (dispatched.receipt.status, dispatched.run) == ("ambiguous", None)
    assert dispatched.receipt.resend_safety == "inspect"
    assert "Tidy up." in " ".join(dispatched.receipt.evidence)


def test_a_command_that_admits_nothing_is_none(client: Client, session: Session) -> None:
    dispatched = commands.send_command(client, session, "ponder", "")
    assert (dispatched.receipt.status, dispatched.receipt.resend_safety) == ("none", "unknown")


def test_the_mark_is_sent_after_the_arguments(client: Client, session: Session) -> None:
    receipt = receipt_of(client, session, "explain", "x", mark=True)
    client.run(client.dialect.wait(session))
    assert receipt.status == "matched"
    assert client.messages(session)[0].text == f"Explain x {receipt.invocation}"


def test_arguments_are_sent_as_typed(client: Client, session: Session) -> None:
    text = ">>> f({x!r}, $HOME)\n\n#text 2\n;"
    turn = played(commands.send_command(client, session, "explain", text))
    assert turn.question_text == f"Explain {text}"


def test_a_busy_session_is_not_disturbed(client: Client, session: Session) -> None:
    other(client, session.id, "#slow 30 .1")
    with pytest.raises(SessionBusyError):
        commands.send_command(client, session, "explain", "greet.py")
    dispatched = commands.send_command(client, session, "explain", "greet.py #text 2", queue=True)
    assert played(dispatched).text == "word0 word1"


def test_an_unknown_command_is_not_posted(
    client: Client, session: Session, simulator: Simulator
) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'explain'"):
        commands.send_command(client, session, "explian", "x")
    assert posts(simulator, session.id) == 0


def test_a_refusal_is_reported_in_the_servers_words(client: Client, session: Session) -> None:
    client.commands = lambda directory=None: (Command("gone"),)  # type: ignore[method-assign]
    with pytest.raises(StatusError, match="Command not found: gone") as caught:
        commands.send_command(client, session, "gone", "x")
    assert caught.value.resend
    assert caught.value.resend.resend_safety == "safe"


def interrupt_once(target: str, when: Cut) -> None:
    """Interrupt while a command's response is pending; only once, since a second may be late."""
    if when == "after":
        _thread.interrupt_main()


def test_an_interrupt_says_how_to_recover_the_command(
    client: Client, simulator: Simulator, session: Session
) -> None:
    simulator.meanwhile = interrupt_once
    with pytest.raises(TurnInterrupted, match="--recover cmd_") as caught:
        commands.send_command(client, session, "explain", "greet.py #text 2", mark=True)
    assert caught.value.resend
    assert caught.value.resend.resend_safety == "unknown"
    invocation = str(caught.value).partition("--recover ")[2].split()[0]
    client.run(client.dialect.wait(session))
    assert recovered(simulator, invocation).receipt.status == "matched"


def test_a_second_interrupt_does_not_say_that_nothing_was_sent(
    client: Client, simulator: Simulator, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closes(stream: Stream) -> None:
        close(stream)
        raise KeyboardInterrupt

    close = Stream.close
    monkeypatch.setattr(Stream, "close", closes)
    simulator.meanwhile = interrupt_once
    with pytest.raises(TurnInterrupted, match="--recover cmd_"):
        commands.send_command(client, session, "explain", "greet.py #text 2")


def test_an_interrupt_before_the_receipt_is_saved_leaves_no_stream_open(
    client: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    closed: list[Stream] = []
    close = Stream.close
    monkeypatch.setattr(Stream, "close", lambda stream: (closed.append(stream), close(stream)))
    monkeypatch.setattr(commands, "receipt_of", interrupted)
    with pytest.raises(TurnInterrupted, match="--recover cmd_"):
        commands.send_command(client, session, "explain", "greet.py #text 2", mark=True)
    assert len(closed) == 1


def test_an_interrupt_while_the_effects_are_read_does_not_say_that_nothing_was_sent(
    shell: Shell, simulator: Simulator
) -> None:
    simulator.cuts.append("after")  # then the effects are looked for, for a while
    timers: list[threading.Timer] = []

    def stop_soon(target: str, when: Cut) -> None:
        if when == "after":
            timers.append(threading.Timer(0.5, _thread.interrupt_main))
            timers[0].start()

    simulator.meanwhile = stop_soon
    assert "--recover cmd_" in shell.fails("%oc_command tidy").text
    timers[0].join()


def test_a_fork_forbids_what_its_session_forbids(client: Client, session: Session) -> None:
    rules = (Rule("edit", "*", "deny"),)
    client.run(client.dialect.set_rules(session, rules))
    receipt = receipt_of(client, session, "tidy", "", isolated=True, fork=True)
    assert client.session(receipt.session).rules == rules


def test_the_mark_is_sent_if_the_server_reports_a_template_with_arguments(
    client: Client, session: Session
) -> None:
    reported = (Command("explain", template="Explain $ARGUMENTS"),)
    client.commands = lambda directory=None: reported  # type: ignore[method-assign]
    receipt = receipt_of(client, session, "explain", "x")
    assert receipt.status == "matched"


def test_agent_and_model_are_switched_before_the_command(client: Client, session: Session) -> None:
    dispatched = commands.send_command(
        client, session, "explain", "greet.py #text 2", agent="plan", model="practice/frugal"
    )
    turn = played(dispatched)
    assert (turn.agent, str(turn.model)) == ("plan", "practice/frugal")


def test_two_commands_at_once_take_turns(client: Client, session: Session) -> None:
    """Each is the only command in its range of the log."""
    receipts: list[CommandReceipt] = []

    def send(text: str) -> None:
        receipts.append(receipt_of(client, session, "explain", text, queue=True))

    threads = [threading.Thread(target=send, args=(f"greet.py #text {n}",)) for n in range(2, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [r.status for r in receipts] == ["matched"] * 4
    assert len({r.inputs for r in receipts}) == 4


@contextmanager
def notebook(world: Simulator) -> Iterator[Client]:
    """A client that doesn't share the lock of the test's client, as in another kernel."""
    url = world.url.replace("127.0.0.1", "localhost")
    with Client(url, directory=str(world.directory), password=world.password) as client:
        yield client


@pytest.mark.parametrize("seed", range(30))
def test_two_notebooks_at_once_never_claim_each_others_effects(
    client: Client, simulator: Simulator, session: Session, seed: int
) -> None:
    """Even if one command has no effect and the arguments are the same."""
    names = random.Random(seed).choice(
        [("ponder", "explain"), ("ponder", "review"), ("explain", "review"), ("ponder", "ponder")]
    )
    receipts: dict[str, CommandReceipt] = {}

    def send(sender: Client, name: str) -> None:
        receipts[name] = receipt_of(sender, session, name, "greet.py", queue=True)

    with notebook(simulator) as second:
        both = (client, second)
        threads = [threading.Thread(target=send, args=a) for a in zip(both, names, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for name, receipt in receipts.items():
        if receipt.status == "matched":
            assert name != "ponder", receipt
            assert bool(receipt.children) == (name == "review"), receipt


def test_commands_that_are_settled_do_not_compete(
    client: Client, simulator: Simulator, session: Session
) -> None:
    with notebook(simulator) as second:
        receipt_of(second, session, "ponder", "")
        receipt_of(second, session, "tidy", "")
    client.run(client.dialect.wait(session))
    assert receipt_of(client, session, "explain", "greet.py").status == "matched"


def test_a_command_without_a_response_may_still_arrive(
    client: Client, simulator: Simulator, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator.cuts.append("before")
    assert receipt_of(client, session, "explain", "greet.py").status == "none"
    assert receipt_of(client, session, "explain", "greet.py").status == "ambiguous"
    client.run(client.dialect.wait(session))
    monkeypatch.setattr(command_effects, "_IN_FLIGHT", 0)
    assert receipt_of(client, session, "explain", "greet.py").status == "matched"


def test_a_session_that_an_agent_opens_meanwhile_is_not_matched(
    client: Client, simulator: Simulator, session: Session
) -> None:
    """Even with the title that the command's own session would have."""
    other(client, session.id, "#slow 400 .1")
    simulator.meanwhile = lambda target, when: opens(client, target) if when == "after" else None
    assert receipt_of(client, session, "ponder", "", queue=True).status == "ambiguous"
    client.abort(session)


def opens(client: Client, session: str) -> None:
    """Create a child session, as an agent does."""
    client.create(COMMANDS["ponder"]["description"], options=SessionOptions(parent=session))


# -- others in the same session --------------------------------------------------------------------

WORDS = ("#text 1", "Fix the tests #text 1", "Explain greet.py #text 1", "Tidy up.")


def crowded(
    client: Client, simulator: Simulator, session: Session, seed: int
) -> tuple[Dispatched, set[str], bool]:
    """Send a command among others' prompts; return it, their ids, and whether it was marked."""
    chance = random.Random(seed)
    name = chance.choice(["explain", "explain", "review", "tidy"])
    mark = name == "explain" and chance.random() < 0.6
    strangers: set[str] = set()

    def interfere(counts: list[int]) -> None:
        for _ in range(chance.choice(counts)):
            strangers.add(other(client, session.id, chance.choice(WORDS)))

    interfere([0, 0, 1, 2])
    simulator.meanwhile = lambda target, when: interfere([0, 0, 0, 1])
    dispatched = commands.send_command(client, session, name, "greet.py", mark=mark, queue=True)
    simulator.meanwhile = lambda target, when: None
    interfere([0, 0, 1, 2])
    return dispatched, strangers, mark


def test_the_prompts_of_other_clients_are_never_attributed_to_a_command(
    client: Client, simulator: Simulator
) -> None:
    results = dict.fromkeys(("matched", "ambiguous", "none"), 0)
    for seed in range(150):
        session = client.create(f"race {seed}")
        dispatched, strangers, mark = crowded(client, simulator, session, seed)
        claimed = {*dispatched.receipt.inputs, *dispatched.receipt.children}
        assert not claimed & strangers, seed
        assert bool(claimed) == (dispatched.receipt.status == "matched")
        assert (dispatched.receipt.status == "matched") >= mark, seed
        assert posts(simulator, session.id) == 1
        if dispatched.run:
            dispatched.run.close()
        results[dispatched.receipt.status] += 1
    assert results["none"] == 0  # every command has an effect
    assert results["matched"] > 60
    assert results["ambiguous"] > 20


@pytest.mark.parametrize("seed", range(8))
def test_the_turn_followed_among_others_is_the_commands_own(
    client: Client, simulator: Simulator, session: Session, seed: int
) -> None:
    dispatched, strangers, _ = crowded(client, simulator, session, seed)
    if dispatched.run is None:
        assert dispatched.receipt.status == "ambiguous"
        return
    turn = played(dispatched)
    assert turn.prompt not in strangers
    assert turn.outcome == "succeeded"
    assert "greet.py" in turn.question_text


def test_another_clients_prompt_is_never_the_commands_turn(
    client: Client, simulator: Simulator, session: Session
) -> None:
    """Case G5-04."""
    simulator.meanwhile = lambda target, when: other(client, target, "for the other #text 4")
    dispatched = commands.send_command(client, session, "explain", "#text 2", mark=True)
    turn = played(dispatched)
    assert "for the other" not in turn.question_text
    unmarked = commands.send_command(client, session, "explain", "greet.py", queue=True)
    assert unmarked.receipt.status == "ambiguous"
    assert unmarked.run is None


# -- a server that misbehaves ----------------------------------------------------------------------

ROOT = Session("ses_root01", "root", "/work/p")
ROUTE = "/api/session/ses_root01/command"
INBOX = "GET /api/session/ses_root01/inbox"


def offering(**changes: Any) -> dict[str, Any]:
    """The routes of a server with one command."""
    names = [{"name": "explain", "description": "Explain"}]
    scripted = {"id": "scripted", "providerID": "practice"}
    return v2_routes(
        **{
            "GET /api/model": {"data": [scripted]},
            "GET /api/model/default": {"data": scripted},
            "GET /api/agent": {"data": [{"id": "build", "name": "Build", "mode": "primary"}]},
            "GET /api/command": {"data": names},
            "PATCH /api/session/ses_root01": (204, {}, b""),
            f"POST {ROUTE}": (204, {}, b""),
            INBOX: {"data": []},
        }
        | changes
    )


def test_no_command_is_sent_to_a_server_without_an_inbox() -> None:
    """Its effects could not be correlated."""
    routes = offering(**{INBOX: (404, {}, b"")})
    with FakeServer(routes) as fake, Client(fake.url, directory="/work/p") as client:
        with pytest.raises(StatusError):
            commands.send_command(client, ROOT, "explain", "greet.py")
        assert not fake.asked(f"POST {ROUTE}")


def test_a_server_that_dies_of_a_command_gets_it_once_and_the_error_says_how_to_recover() -> None:
    def dies(seen: ReceivedRequest) -> Any:
        fake.break_connections()
        return DISCONNECT

    with (
        FakeServer(offering(**{f"POST {ROUTE}": dies})) as fake,
        Client(fake.url, directory="/work/p") as client,
    ):
        with pytest.raises(ServerConnectionError, match="sent once") as caught:
            commands.send_command(client, ROOT, "explain", "greet.py")
        assert "--recover cmd_" in caught.value.todo
        assert caught.value.resend
        assert caught.value.resend.resend_safety == "unknown"
        assert len(fake.asked(f"POST {ROUTE}")) == 1


@pytest.mark.parametrize(
    ("answer", "status"), [((502, {}, b""), "none"), ((204, {}, b""), "none"), (DISCONNECT, "none")]
)
def test_a_command_is_posted_once_whatever_the_response(answer: Any, status: str) -> None:
    routes = offering(**{f"POST {ROUTE}": answer})
    with FakeServer(routes) as fake, Client(fake.url, directory="/work/p") as client:
        assert receipt_of(client, ROOT, "explain", "greet.py").status == status
        assert len(fake.asked(f"POST {ROUTE}")) == 1


def test_the_error_of_a_failed_command_says_how_to_look_at_it() -> None:
    body = b'{"_tag":"CommandExecutionError","command":"explain","message":"No shell"}'
    no = (500, {"content-type": "application/json"}, body)
    routes = offering(**{f"POST {ROUTE}": no})
    with FakeServer(routes) as fake, Client(fake.url, directory="/work/p") as client:
        with pytest.raises(StatusError, match="No shell") as caught:
            commands.send_command(client, ROOT, "explain", "greet.py")
        assert caught.value.resend
        assert caught.value.resend.resend_safety == "unknown"
        assert "--recover cmd_" in caught.value.todo


# -- lost responses, and recovery ------------------------------------------------------------------


@pytest.mark.parametrize("cut", ["before", "after"])
@pytest.mark.parametrize("mark", [True, False])
def test_a_command_whose_response_is_lost_is_never_posted_again(
    client: Client, simulator: Simulator, session: Session, cut: Cut, mark: bool
) -> None:
    simulator.cuts.append(cut)
    dispatched = commands.send_command(client, session, "explain", "greet.py #text 2", mark=mark)
    assert posts(simulator, session.id) == 1
    expected = "none" if cut == "before" else "matched" if mark else "ambiguous"
    assert dispatched.receipt.status == expected
    if dispatched.run:
        assert played(dispatched).text == "word0 word1"


def recovered(world: Simulator, invocation: str) -> Dispatched:
    """Recover a command in another notebook, which only knows its id."""
    with Client(world.url, directory="/", password=world.password) as client:
        dispatched = recover(client, invocation)
        if dispatched.run is not None:
            played(dispatched)
        return dispatched


def test_another_notebook_recovers_the_command(
    client: Client, simulator: Simulator, session: Session
) -> None:
    receipt = receipt_of(client, session, "explain", "greet.py #text 2")
    other(client, session.id, "Explain greet.py #text 5")
    found = recovered(simulator, receipt.invocation)
    assert found.receipt.inputs == receipt.inputs
    assert found.run
    assert found.run.turn.text == "word0 word1"


def test_a_lost_command_is_recovered_after_a_server_restart(
    client: Client, simulator: Simulator, session: Session
) -> None:
    simulator.cuts.append("after")
    receipt = receipt_of(client, session, "explain", "greet.py #text 2", mark=True)
    client.run(client.dialect.wait(session))
    simulator.restart()
    found = recovered(simulator, receipt.invocation)
    assert (found.receipt.status, found.receipt.inputs) == ("matched", receipt.inputs)
    assert found.run
    assert found.run.turn.outcome == "succeeded"


def test_a_subtask_is_recovered(client: Client, simulator: Simulator, session: Session) -> None:
    receipt = receipt_of(client, session, "review", "greet.py")
    assert recovered(simulator, receipt.invocation).receipt.children == receipt.children


def test_an_ambiguous_command_stays_ambiguous(
    client: Client, simulator: Simulator, session: Session
) -> None:
    receipt = receipt_of(client, session, "tidy", "")
    assert recovered(simulator, receipt.invocation).receipt.status == "ambiguous"


def test_a_late_effect_is_recovered_by_its_mark(
    client: Client, simulator: Simulator, session: Session
) -> None:
    receipt = receipt_of(client, session, "linger", "x", mark=True)
    assert receipt.status == "none"
    other(client, session.id, "Linger over x #slow 50 .1")
    client.run(client.dialect.wait(session))
    assert recovered(simulator, receipt.invocation).receipt.status == "matched"


def test_a_record_that_another_client_removed_is_an_error(client: Client, session: Session) -> None:
    receipt = receipt_of(client, session, "explain", "greet.py")
    client.run(client.dialect.set_metadata(session, {"theirs": 1}))
    with pytest.raises(UnknownNameError, match="has a record of command"):
        recover(client, receipt.invocation, [session])


def test_the_metadata_of_others_is_kept(client: Client, session: Session) -> None:
    client.run(client.dialect.set_metadata(session, {"theirs": 1}))
    receipt_of(client, session, "explain", "greet.py")
    assert client.session(session.id).metadata["theirs"] == 1


def test_a_command_is_not_recovered_from_a_fork_of_its_session(
    client: Client, simulator: Simulator, session: Session
) -> None:
    receipt = receipt_of(client, session, "ponder", "")
    copy = client.run(client.dialect.fork(session))
    client.run(
        client.dialect.set_metadata(copy, client.session(session.id).metadata)
    )  # some servers copy the metadata
    other(client, copy.id, "Fix the tests")
    found = recovered(simulator, receipt.invocation)
    assert (found.receipt.session, found.receipt.status) == (session.id, "none")


def test_an_unknown_invocation_is_an_error(client: Client) -> None:
    for unknown in ("cmd_nope", "ses_nope"):
        with pytest.raises(UnknownNameError, match="has a record of command"):
            recover(client, unknown)


# -- isolated commands -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["explain", "review", "tidy"])
@pytest.mark.parametrize("fork", [False, True])
def test_an_isolated_command_is_always_matched(
    client: Client, simulator: Simulator, session: Session, name: str, fork: bool
) -> None:
    other(client, session.id, "#text 1")
    client.run(client.dialect.wait(session))
    dispatched = commands.send_command(client, session, name, "x #text 2", isolated=True, fork=fork)
    assert dispatched.receipt.status == "matched"
    assert dispatched.session.id != session.id
    assert (dispatched.session.id == dispatched.receipt.invocation) == (not fork)
    assert dispatched.session.forked_from == (session.id if fork else None)
    turn = played(dispatched)
    assert turn.outcome == "succeeded"
    assert turn.prompt in dispatched.receipt.inputs or turn.session in dispatched.receipt.children
    assert posts(simulator, session.id) == 0


@pytest.mark.parametrize("fork", [False, True])
def test_the_record_is_saved_before_the_command_is_posted(
    client: Client, simulator: Simulator, session: Session, fork: bool
) -> None:
    recorded: list[str] = []

    def look(target: str, when: str) -> None:
        recorded.extend(
            i.id for i, s, _ in command_records.list_sent_commands(client) if s.id == target
        )

    simulator.meanwhile = look
    receipt = receipt_of(client, session, "tidy", "", isolated=True, fork=fork)
    assert recorded[0] == receipt.invocation


@pytest.mark.parametrize("fork", [False, True])
@pytest.mark.parametrize("cut", ["before", "after"])
def test_an_isolated_command_whose_response_was_lost_is_recovered(
    client: Client, simulator: Simulator, session: Session, fork: bool, cut: Cut
) -> None:
    simulator.cuts.append(cut)
    receipt = receipt_of(client, session, "explain", "greet.py", isolated=True, fork=fork)
    assert receipt.status == ("none" if cut == "before" else "matched")
    assert recovered(simulator, receipt.invocation).receipt.inputs == receipt.inputs


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("isolated", [True, False])
def test_a_session_deleted_while_its_command_runs_is_an_error_that_says_so(
    client: Client, simulator: Simulator, session: Session, when: Cut, isolated: bool
) -> None:
    def deletes(target: str, now: Cut) -> None:
        if now == when:
            client.run(client.dialect.delete(Session(target)))

    simulator.meanwhile = deletes
    with pytest.raises(ServerConnectionError, match="sent once") as caught:
        commands.send_command(client, session, "explain", "greet.py #slow 30 .1", isolated=isolated)
    assert "The session may have been deleted" in caught.value.todo
    assert caught.value.resend
    assert caught.value.resend.resend_safety == "unknown"


def test_a_session_deleted_while_its_command_is_followed_has_not_succeeded(
    client: Client, session: Session
) -> None:
    dispatched = commands.send_command(client, session, "explain", "greet.py #slow 50 .1")
    client.run(client.dialect.delete(session))
    outcome = played(dispatched).outcome
    assert outcome in ("aborted", "interrupted", "unknown"), outcome


def test_a_deleted_session_receives_no_result_of_the_commands_subagent(
    client: Client, session: Session
) -> None:
    dispatched = commands.send_command(client, session, "review", "greet.py")
    played(dispatched)
    client.run(client.dialect.delete(session))
    assert commands.follow_subagent_result(client, dispatched) is None


def test_a_command_whose_session_was_deleted_is_unknown(
    client: Client, simulator: Simulator
) -> None:
    place = Session("", directory=str(simulator.directory))
    receipt = receipt_of(client, place, "tidy", "", isolated=True)
    client.run(client.dialect.wait(Session(receipt.session)))
    client.run(client.dialect.delete(Session(receipt.session)))
    with pytest.raises(UnknownNameError):
        recover(client, receipt.invocation)
    with pytest.raises(NotFoundError):
        client.session(receipt.session)


# -- in a notebook ---------------------------------------------------------------------------------


@pytest.fixture
def shell(shell: Shell) -> Shell:
    """A shell with a new session in which everything is allowed."""
    shell.run("%config OpenCodeMagics.noninteractive = 'once'")
    shell.run("%oc_new commands")
    return shell


def test_the_magic_streams_the_turn_and_returns_a_receipt(shell: Shell) -> None:
    shown = shell.run("%oc_command -o turn explain greet.py #text 3")
    assert "word0 word1 word2" in shown.text + str(shown.outputs)
    assert (shown.value.status, shown.value.text) == ("matched", "word0 word1 word2")
    assert shell.user_ns["turn"] == shown.value.turn == shell.run("%oc_turn").value
    assert shown.value.resend_safety == "no_effects_seen"


def test_a_subtask_is_over_once_the_session_has_its_result(shell: Shell) -> None:
    receipt = shell.run("%oc_command -o turn review greet.py").value
    assert receipt.children == (receipt.turn.session,)
    assert shell.user_ns["turn"] == receipt.turn == shell.run("%oc_turn").value
    assert shell.run("%oc_prompt #text 1").error is None


def test_a_commands_permissions_are_answered_while_it_runs(
    shell: Shell, simulator: Simulator
) -> None:
    shell.run("%oc_command explain #bash touch made")
    assert (simulator.directory / "made").exists()


def test_a_model_that_fails_fails_the_command(shell: Shell) -> None:
    with pytest.raises(TurnError, match="scripted failure 400"):
        shell.run("%oc_command explain greet.py #err400")


def test_an_ambiguous_receipt_has_no_turn(shell: Shell) -> None:
    receipt = shell.run("%oc_command tidy").value
    assert (receipt.status, receipt.turn, receipt.text) == ("ambiguous", None, "")
    assert f"--recover {receipt.invocation}" in receipt.todo


def test_an_isolated_command_leaves_the_current_session_alone(shell: Shell) -> None:
    current = shell.run("%oc_session").value.id
    receipt = shell.run("%oc_command --isolated tidy").value
    assert (receipt.status, receipt.session) == ("matched", receipt.invocation)
    fork = shell.run("%oc_command --isolated --fork tidy").value
    assert fork.turn.session == fork.session
    assert shell.run("%oc_session").value.id == current
    assert {receipt.session, fork.session} <= {*shell.run("%oc_status").value["session"]}


def test_a_restarted_kernel_lists_and_recovers_sent_commands(shell: Shell) -> None:
    receipt = shell.run("%oc_command --no-wait explain greet.py #text 3").value
    assert (receipt.status, receipt.turn) == ("matched", None)
    shell.run("%reload_ext opencode_magics")
    row = shell.run("%oc_command --given").value.iloc[0]
    assert (row["invocation"], row["arguments"]) == (receipt.invocation, "greet.py #text 3")
    found = shell.run(f"%oc_command --recover {receipt.invocation}").value
    assert (found.inputs, found.text) == (receipt.inputs, "word0 word1 word2")


@pytest.mark.parametrize(
    "line",
    [
        "--fork tidy",
        "--isolated -n tidy",
        "--isolated -s x tidy",
        "--recover cmd_1 tidy",
        "--given tidy",
        "",
    ],
)
def test_invalid_options_are_an_error(shell: Shell, line: str) -> None:
    with pytest.raises(UsageError):
        shell.run(f"%oc_command {line}")


# -- the simulator's templates ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "text", "prompt"),
    [
        ("Explain $ARGUMENTS", "a b", "Explain a b"),
        ("$1 before $2", "a b c", "a before b c"),
        ("Tidy up.", "a", "Tidy up."),
        ("$1, $2", "a", "a, "),
    ],
)
def test_arguments_are_filled_into_a_template(template: str, text: str, prompt: str) -> None:
    assert expand(template, text) == prompt
