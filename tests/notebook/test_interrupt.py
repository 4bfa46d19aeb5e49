"""Interrupts of a real kernel, and typed answers to its prompts."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from jupyter_client.manager import KernelManager
from support.fake_server import ACCEPTED, FakeServer, v1_routes

import opencode_magics
from opencode_magics.client.client import Client
from opencode_magics.core.model import Session
from opencode_magics.practice.simulator.server import Simulator
from opencode_magics.practice.world import Practice

PATIENCE = 120.0  # seconds; every step normally takes only a few

BOTH_GENERATIONS = True
World = Practice | Simulator


class Kernel:
    """A kernel with a front-end that records outputs and types given answers."""

    def __init__(self, world: World, home: Path) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("OPENCODE_", "JUPYTER"))}
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(
            cwd=str(world.directory),
            env={
                **env,
                **world.access,
                "PYTHONPATH": str(Path(opencode_magics.__file__).parents[1]),
                "IPYTHONDIR": str(home),
                "PYDEVD_DISABLE_FILE_VALIDATION": "1",
            },
        )
        self.channels = self.manager.client()
        self.channels.start_channels()
        self.channels.wait_for_ready(timeout=PATIENCE)
        self._outputs: dict[str, list[Any]] = defaultdict(list)
        self._replies: dict[str, Any] = {}

    def stop(self) -> None:
        self.channels.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def send(self, cell: str, stdin: bool = False) -> str:
        """Start a cell and return the id of the request."""
        request: str = self.channels.execute(cell, allow_stdin=stdin)
        return request

    def run(self, cell: str) -> str:
        """Run a cell that must succeed and return its output as plain text.

        A cell sent too soon after an interrupt is aborted like the queued ones, and sent again.
        """
        request = self.send(cell)
        reply = self.reply(request)
        if reply["status"] == "aborted":
            return self.run(cell)
        assert reply["status"] == "ok", reply
        return self.text(request).strip()

    def reply(self, request: str) -> Any:
        """Return the kernel's reply to a request, once all its output has arrived."""
        until(lambda: self._listen() or request in self._replies)
        until(lambda: self._listen() or self._idle(request))
        return self._replies[request]

    def shows(self, request: str, text: str) -> None:
        """Wait until a cell shows a text."""
        until(lambda: self._listen() or text in self.text(request))

    def text(self, request: str) -> str:
        """Return the output of a cell so far, as plain text and as HTML."""
        return "\n".join(t for m in self._outputs[request] for t in texts(m["content"]))

    def errors(self, request: str) -> list[Any]:
        """Return the errors that a cell has shown."""
        return [m["content"] for m in self._outputs[request] if m["msg_type"] == "error"]

    def asks(self) -> Any:
        """Wait until the kernel asks for input and return the input request."""
        question: Any = self.channels.get_stdin_msg(timeout=PATIENCE)["content"]
        return question

    def interrupt(self) -> None:
        """Press the stop button."""
        self.manager.interrupt_kernel()

    def _listen(self) -> None:
        for get, record in (
            (self.channels.get_iopub_msg, lambda p, m: self._outputs[p].append(m)),
            (self.channels.get_shell_msg, lambda p, m: self._replies.update({p: m["content"]})),
        ):
            try:
                while True:
                    message = get(timeout=0.05)
                    record(message["parent_header"].get("msg_id"), message)
            except Empty:
                pass

    def _idle(self, request: str) -> bool:
        return any(m["content"].get("execution_state") == "idle" for m in self._outputs[request])


def texts(content: Any) -> list[str]:
    """Return the texts in a message of a kernel."""
    return [str(text) for text in (content.get("text"), *content.get("data", {}).values()) if text]


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition never became true"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def kernels() -> Iterator[dict[str, Kernel]]:
    """One kernel per generation for all tests: it must work normally after an interrupt."""
    kernels: dict[str, Kernel] = {}
    yield kernels
    for kernel in kernels.values():
        kernel.stop()


@pytest.fixture
def kernel(
    kernels: dict[str, Kernel],
    generation: str,
    world: World,
    workspace: Path,
    session: Session,
    tmp_path_factory: pytest.TempPathFactory,
) -> Kernel:
    """The kernel, connected to the practice server, with a session for this test."""
    if generation not in kernels:
        kernels[generation] = Kernel(world, tmp_path_factory.mktemp("ipython"))
        kernels[generation].run("%load_ext opencode_magics")
        kernels[generation].run("%config OpenCodeMagics.ui = 'text'")
    kernels[generation].run(f"%oc_connect {world.url};\n%oc_session {session.id};")
    return kernels[generation]


# -- the stop button -------------------------------------------------------------------------------


def test_an_interrupt_stops_the_turn_on_the_server(
    kernel: Kernel, client: Client, session: Session
) -> None:
    """The text so far stays, one line reports the stop, and queued cells don't run. Case G3-03."""
    prompt = kernel.send("%%oc_prompt -o turn\n#slow 400 .1")
    queued = [kernel.send("print('went on')"), kernel.send("%oc_prompt #text 3")]
    kernel.shows(prompt, "slow3")
    assert session.id in client.statuses()
    kernel.interrupt()
    reply = kernel.reply(prompt)
    assert (reply["status"], reply["ename"]) == ("error", "TurnInterrupted")
    assert [e["traceback"] for e in kernel.errors(prompt)] == [
        ["Stopped; the turn is aborted on the server."]
    ]
    assert [kernel.reply(request)["status"] for request in queued] == ["aborted", "aborted"]
    assert session.id not in client.statuses()
    prompted, answer = (m for m in client.messages(session) if m.role != "system")
    assert answer.parent == prompted.id
    assert answer.error is not None
    assert answer.error.aborted
    assert "slow0 slow1 slow2 slow3" in kernel.text(prompt)
    assert "aborted · build" in kernel.text(prompt)
    printed = kernel.run("print(turn.outcome, turn.text.startswith('slow0 slow1 slow2 slow3'))")
    assert printed == "aborted True"


def test_an_interrupt_of_a_map_keeps_the_rows_that_are_done(
    kernel: Kernel, client: Client, session: Session
) -> None:
    kernel.run("import pandas as pd; jobs = pd.DataFrame({'do': ['#text 2', '#slow 400 .1', 'x']})")
    others = client.statuses().keys()
    running = kernel.send("%%oc_map jobs -o out\n{do}")
    kernel.shows(running, "1/3")
    until(lambda: client.statuses().keys() - others)
    kernel.interrupt()
    reply = kernel.reply(running)
    assert (reply["ename"], reply["evalue"]) == (
        "TurnInterrupted",
        "Stopped; the results so far are in out.",
    )
    assert client.statuses().keys() <= others
    assert kernel.run("print(*out['outcome'])") == "succeeded aborted not_sent"


def test_an_interrupt_before_the_first_text_stops_the_turn(
    kernel: Kernel, client: Client, session: Session
) -> None:
    """An abort right after the prompt can be lost (1.18.33)."""
    prompt = kernel.send("%%oc_prompt -o turn\n#hang")
    until(lambda: client.messages(session))
    kernel.interrupt()
    assert kernel.reply(prompt)["ename"] == "TurnInterrupted"
    assert session.id not in client.statuses()
    assert kernel.run("print(turn.outcome)") == "aborted"


def test_an_interrupt_stops_subagents_as_well(
    kernel: Kernel, client: Client, session: Session
) -> None:
    prompt = kernel.send("%%oc_prompt -o turn\n#task #slow 400 .1")
    until(
        lambda: any(c.id in client.statuses() for c in client.run(client.dialect.children(session)))
    )
    kernel.interrupt()
    assert kernel.reply(prompt)["ename"] == "TurnInterrupted"
    tree = {session.id, *(c.id for c in client.run(client.dialect.children(session)))}
    assert len(tree) == 2
    assert not tree & client.statuses().keys()
    assert kernel.run("print(turn.outcome)") == "aborted"


@pytest.mark.parametrize("script", ["#bash touch made", "#task #bash touch made", "#question"])
def test_an_interrupt_during_a_request_leaves_nothing_waiting(
    kernel: Kernel, client: Client, session: Session, workspace: Path, script: str
) -> None:
    prompt = kernel.send(f"%%oc_prompt -o turn\n{script}", stdin=True)
    kernel.asks()
    assert client.permissions() or client.questions()
    kernel.interrupt()
    assert kernel.reply(prompt)["ename"] == "TurnInterrupted"
    assert (client.permissions(), client.questions()) == ((), ())
    assert session.id not in client.statuses()
    assert not (workspace / "made").exists()
    assert kernel.run("print(turn.outcome)") == "aborted"


def test_a_second_interrupt_does_not_wait_for_confirmation(kernel: Kernel) -> None:
    """A server that continues despite the abort would otherwise block the cell for 30 s."""
    busy = v1_routes(status={"ses_root01": {"type": "busy"}}, prompt=ACCEPTED)
    with FakeServer(busy) as fake:
        kernel.run(f"%oc_connect {fake.url};")
        prompt = kernel.send("%%oc_prompt --session ses_root01 --queue -o turn\nhello")
        until(lambda: fake.asked("POST /session/ses_root01/prompt_async"))
        kernel.interrupt()
        until(lambda: fake.asked("POST /session/ses_root01/abort"))
        pressed = time.monotonic()
        kernel.interrupt()
        assert kernel.reply(prompt)["ename"] == "TurnInterrupted"
        assert time.monotonic() - pressed < 20
    (error,) = kernel.errors(prompt)
    assert error["traceback"] == [
        "The cell is stopped; session ses_root01 may still be running on the server."
    ]
    assert kernel.run("print(turn.outcome)") == "unknown"


def test_a_second_interrupt_accepts_an_earlier_confirmation(
    kernel: Kernel, client: Client, session: Session
) -> None:
    prompt = kernel.send("%%oc_prompt -o turn\n#slow 400 .1")
    kernel.shows(prompt, "slow1")
    kernel.interrupt()
    time.sleep(0.3)
    kernel.interrupt()
    assert kernel.reply(prompt)["status"] == "error"
    assert kernel.run("print(turn.outcome)") in ("aborted", "unknown")
    client.abort(session)


# -- typed answers ---------------------------------------------------------------------------------


def test_a_permission_is_answered_by_typing(
    kernel: Kernel, session: Session, workspace: Path, bash: str
) -> None:
    prompt = kernel.send("%%oc_prompt -o turn\n#bash touch made", stdin=True)
    assert kernel.asks() == {"prompt": "1, 2, 3 or 3 MESSAGE: ", "password": False}
    assert not (workspace / "made").exists()
    kernel.channels.input("1")
    assert kernel.reply(prompt)["status"] == "ok"
    assert (workspace / "made").exists()
    asked = f"Permission: {bash}\n    Command:\n        touch made\n    In:\n        {workspace}\n"
    assert f"{asked}[1] Allow once" in kernel.text(prompt)
    assert "→ once" in kernel.text(prompt)
    assert kernel.run("print(turn.outcome)") == "succeeded"


def test_a_front_end_that_draws_no_form_is_asked_to_type(kernel: Kernel, session: Session) -> None:
    kernel.run("%config OpenCodeMagics.ui = 'auto'")
    prompt = kernel.send("%%oc_prompt -o turn\n#bash echo hi", stdin=True)
    kernel.asks()
    kernel.channels.input("3")
    assert kernel.reply(prompt)["status"] == "ok"
    kernel.run("%config OpenCodeMagics.ui = 'text'")
    assert "Please type the answer" in kernel.text(prompt)
    assert kernel.run("print(turn.outcome)") == "rejected"


def test_a_question_is_answered_by_typing(kernel: Kernel, session: Session) -> None:
    prompt = kernel.send("%%oc_prompt -o turn\n#question", stdin=True)
    kernel.asks()
    kernel.channels.input("2")
    kernel.asks()
    kernel.channels.input("S, and a very large one")
    assert kernel.reply(prompt)["status"] == "ok"
    output = kernel.run("print(turn.tools[0].output)")
    assert "Blue" in output
    assert "S, and a very large one" in output


def test_a_password_is_typed_without_echo(kernel: Kernel, world: World) -> None:
    kernel.run("import os; password = os.environ.pop('OPENCODE_SERVER_PASSWORD')")
    connect = kernel.send("%oc_connect", stdin=True)
    assert kernel.asks()["password"] is True
    kernel.channels.input(world.password)
    assert kernel.reply(connect)["status"] == "ok"
    assert world.url in kernel.text(connect)
    assert world.password not in kernel.text(connect)
    kernel.run("os.environ['OPENCODE_SERVER_PASSWORD'] = password")
