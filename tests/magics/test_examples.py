"""Run every example in the help of every magic, unchanged, on both generations.

An example runs in a prepared shell: connected to its own practice world, with a current session
titled "Fix the login page" in which an agent has edited a file. An example must set up everything
else that it needs. An empty line separates the cells of an example.
"""

from __future__ import annotations

import inspect
import os
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.ipython_shell import Shell, connect_to_practice, isolated_shell

from opencode_magics.client.client import Client
from opencode_magics.errors import StatusError, UnsupportedOperation
from opencode_magics.magics import TOPICS
from opencode_magics.practice.simulator.server import Simulator
from opencode_magics.practice.workspace import reset_workspace
from opencode_magics.practice.world import Practice

MAGICS = {
    name: getattr(topic, name)
    for topic in TOPICS
    for names in topic.magics.values()
    for name in names
}
_WITHOUT_SERVER = (
    r"is not a server address|^OpenCode is not|no current session|prompt has been sent|not_found|"
    r"This notebook runs no server"
)
_BLOCK = re.compile(r"^Examples?::\n((?:\n|[ ]+.*\n?)+)", re.MULTILINE)

# Magics whose examples work without a server.
LOCAL = {"oc_help", "oc_record"}
REFUSED: dict[tuple[str, str], type[Exception]] = {
    # Sharing is disabled in the practice world.
    ("oc_share", "1.x"): StatusError,
    # OpenCode 2.x doesn't support these.
    ("oc_share", "2.x"): UnsupportedOperation,
    ("oc_todo", "2.x"): UnsupportedOperation,
}


def examples(magic: Callable[..., Any]) -> list[list[str]]:
    """Return the example blocks in the help of a magic, each as a list of cells."""
    blocks = _BLOCK.findall(inspect.cleandoc(magic.__doc__ or ""))
    return [textwrap.dedent(b).strip("\n").split("\n\n") for b in blocks]


def only_on_2x(magic: Callable[..., Any]) -> bool:
    return "OpenCode 2.x only." in (magic.__doc__ or "")


def run_examples(shell: Shell, name: str) -> None:
    """Run the examples of a magic; every cell must succeed, and one must call the magic."""
    blocks = examples(MAGICS[name])
    assert blocks, f"%{name} has no example"
    for cells in blocks:
        calls = record_calls(shell, name)
        results = [shell.run(cell) for cell in cells]
        assert calls, f"the example of %{name} doesn't call it"
        failed = [r.value for r in results if "not_found" in repr(r.value)]
        assert not failed, failed
        last_line = cells[-1].splitlines()[-1]
        quiet = re.match(r"\w+ = ", last_line) or "--clear" in last_line
        assert quiet or any(r.text or r.outputs or r.value is not None for r in results), (
            f"the example of %{name} shows nothing"
        )


def record_calls(shell: Shell, name: str) -> list[str]:
    """Return a list to which each later call of a magic adds its line."""
    calls: list[str] = []
    registered = shell.magics_manager.magics

    def recording(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(line: str, *cell: str) -> Any:
            calls.append(line)
            return real(line, *cell)

        # IPython reads attributes of a magic before it calls it.
        call.__dict__.update(real.__dict__)
        return call

    for kind in ("line", "cell"):
        if name in registered[kind]:
            real = registered[kind][name]
            registered[kind][name] = recording(getattr(real, "real", real))
            registered[kind][name].real = real
    return calls


def test_an_example_that_cannot_work_fails(alone: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples fail without a server and without `opencode`, so their success is meaningful."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("OPENCODE_SERVER_URL", "http://")  # invalid, so that nothing is retried
    for name in sorted(MAGICS.keys() - LOCAL):
        with pytest.raises(Exception, match=_WITHOUT_SERVER):
            run_examples(alone, name)


@pytest.mark.parametrize(
    ("example", "error"),
    [
        ("", "has no example"),
        ("Example::\n\n    1 / 0", "division by zero"),
        ("Example::\n\n    %oc_turn --no-such", "no option --no-such"),
        ("Example::\n\n    print('%oc_turn')", "doesn't call it"),
        ("Example::\n\n    turn = %oc_help\n    %oc_help;", "doesn't call it"),
    ],
)
def test_an_example_that_does_not_run_is_noticed(
    alone: Shell, monkeypatch: pytest.MonkeyPatch, example: str, error: str
) -> None:
    def magic() -> None: ...

    magic.__doc__ = f"A magic.\n\n{example}\n\nThat is all."
    monkeypatch.setitem(MAGICS, "oc_turn", magic)
    with pytest.raises(Exception, match=error):
        run_examples(alone, "oc_turn")


# -- in a prepared shell ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(opencode: Path, generation: str) -> Iterator[Practice | Simulator]:
    """A world for these tests only: examples add MCP servers, end and archive sessions."""
    with Practice(command=opencode) if generation == "1.x" else Simulator() as world:
        yield world


@pytest.fixture(scope="module")
def shared_shell(
    world: Practice | Simulator, opencode: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shell]:
    """A shell for all examples, with the environment of the practice world and `opencode`."""
    home = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch, isolated_shell(home, patch) as shell:
        for name, value in getattr(world, "env", {}).items():
            if name != "XDG_CACHE_HOME":
                patch.setenv(name, value)
        patch.setenv("PATH", os.pathsep.join([str(opencode.parent), os.environ["PATH"]]))
        connect_to_practice(shell, world, patch)
        yield shell


@pytest.fixture
def prepared_shell(shared_shell: Shell, world: Practice | Simulator) -> Shell:
    """The shell, prepared for an example and without traces of earlier ones."""
    reset_workspace(world.directory)
    with Client(world.url, directory=str(world.directory), password=world.password) as client:
        for session in client.sessions():
            if session.parent is None:  # its subagents are deleted with it
                client.run(client.dialect.delete(session))
    shared_shell.run("%reset -f\n%reload_ext opencode_magics\n%oc_connect;")
    shared_shell.run("%oc_new Fix the login page;")
    shared_shell.run("%oc_prompt --permission once #edit")
    return shared_shell


@pytest.mark.parametrize("name", sorted(MAGICS))
@pytest.mark.parametrize("generation", ["1.x", "2.x"], scope="module")
def test_every_example_of_every_magic_runs(
    prepared_shell: Shell, name: str, generation: str
) -> None:
    refusal = REFUSED.get((name, generation))
    if only_on_2x(MAGICS[name]) and generation == "1.x":
        refusal = UnsupportedOperation
    if refusal is None:
        run_examples(prepared_shell, name)
    else:
        with pytest.raises(refusal):
            run_examples(prepared_shell, name)
