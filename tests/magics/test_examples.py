"""Every example in the help of every magic is run as it stands, on both generations.

An example stands on a stage: a practice world of its own, its server connected, and a current
session titled "Fix the login page" in which an agent has edited a file. Whatever else an example
needs, it has to do by itself. Cells of an example are separated by an empty line.
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
_WITHOUT = (
    r"is not a server address|^OpenCode is not|no current session|prompt was sent|not_found|"
    r"This notebook runs no server"
)
_BLOCK = re.compile(r"^Examples?::\n((?:\n|[ ]+.*\n?)+)", re.MULTILINE)

# What needs no server, so that its example works without one.
LOCAL = {"oc_help", "oc_record"}
REFUSED: dict[tuple[str, str], type[Exception]] = {
    # The practice world keeps to itself: its OpenCode publishes nothing.
    ("oc_share", "1.x"): StatusError,
    # What 2.x has not.
    ("oc_share", "2.x"): UnsupportedOperation,
    ("oc_todo", "2.x"): UnsupportedOperation,
}


def examples(magic: Callable[..., Any]) -> list[list[str]]:
    """The example blocks in the help of a magic, each as its cells."""
    blocks = _BLOCK.findall(inspect.cleandoc(magic.__doc__ or ""))
    return [textwrap.dedent(b).strip("\n").split("\n\n") for b in blocks]


def only_on_2x(magic: Callable[..., Any]) -> bool:
    return "OpenCode 2.x only." in (magic.__doc__ or "")


def play(shell: Shell, name: str) -> None:
    """Run the examples of a magic; every cell has to work, and the magic to be called by one."""
    blocks = examples(MAGICS[name])
    assert blocks, f"%{name} has no example"
    for cells in blocks:
        calls = calls_of(shell, name)
        seen = [shell.run(cell) for cell in cells]
        assert calls, f"the example of %{name} doesn't call it"
        failed = [s.value for s in seen if "not_found" in repr(s.value)]
        assert not failed, failed
        last = cells[-1].splitlines()[-1]
        quiet = re.match(r"\w+ = ", last) or "--clear" in last
        assert quiet or any(s.text or s.outputs or s.value is not None for s in seen), (
            f"the example of %{name} shows nothing"
        )


def calls_of(shell: Shell, name: str) -> list[str]:
    """The lines with which a magic is called from now on."""
    calls: list[str] = []
    registered = shell.magics_manager.magics

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(line: str, *cell: str) -> Any:
            calls.append(line)
            return real(line, *cell)

        # What IPython reads from a magic before it calls it.
        call.__dict__.update(real.__dict__)
        return call

    for kind in ("line", "cell"):
        if name in registered[kind]:
            registered[kind][name] = counted(getattr(real := registered[kind][name], "real", real))
            registered[kind][name].real = real  # type: ignore[attr-defined]
    return calls


def test_an_example_that_cannot_work_fails(alone: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a server and a program: so it is the magic that makes an example succeed."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("OPENCODE_SERVER_URL", "http://")  # nothing that is tried again
    for name in sorted(MAGICS.keys() - LOCAL):
        with pytest.raises(Exception, match=_WITHOUT):
            play(alone, name)


@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        ("", "has no example"),
        ("Example::\n\n    1 / 0", "division by zero"),
        ("Example::\n\n    %oc_turn --no-such", "no option --no-such"),
        ("Example::\n\n    print('%oc_turn')", "doesn't call it"),
        ("Example::\n\n    turn = %oc_help\n    %oc_help;", "doesn't call it"),
    ],
)
def test_an_example_that_does_not_run_is_noticed(
    alone: Shell, monkeypatch: pytest.MonkeyPatch, told: str, complaint: str
) -> None:
    def magic() -> None: ...

    magic.__doc__ = f"A magic.\n\n{told}\n\nThat is all."
    monkeypatch.setitem(MAGICS, "oc_turn", magic)
    with pytest.raises(Exception, match=complaint):
        play(alone, "oc_turn")


# -- on a stage ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(opencode: Path, generation: str) -> Iterator[Practice | Simulator]:
    """A world that no other test shares: examples add MCP servers, end and archive sessions."""
    with Practice(command=opencode) if generation == "1.x" else Simulator() as world:
        yield world


@pytest.fixture(scope="module")
def theatre(
    world: Practice | Simulator, opencode: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shell]:
    """A shell for all examples, with `opencode` on PATH, at home where the practice world is."""
    home = tmp_path_factory.mktemp("theatre")
    with pytest.MonkeyPatch.context() as patch, isolated_shell(home, patch) as shell:
        for name, value in getattr(world, "env", {}).items():
            if name != "XDG_CACHE_HOME":
                patch.setenv(name, value)
        patch.setenv("PATH", os.pathsep.join([str(opencode.parent), os.environ["PATH"]]))
        connect_to_practice(shell, world, patch)
        yield shell


@pytest.fixture
def stage(theatre: Shell, world: Practice | Simulator) -> Shell:
    """The stage, with nothing left on it of the example before."""
    reset_workspace(world.directory)
    with Client(world.url, directory=str(world.directory), password=world.password) as client:
        for session in client.sessions():
            if session.parent is None:  # subagents go with it
                client.run(client.dialect.delete(session))
    theatre.run("%reset -f\n%reload_ext opencode_magics\n%oc_connect;\n%oc_new Fix the login page;")
    theatre.run("%oc_prompt --permission once #edit")
    return theatre


@pytest.mark.parametrize("name", sorted(MAGICS))
@pytest.mark.parametrize("generation", ["1.x", "2.x"], scope="module")
def test_every_example_of_every_magic_runs(stage: Shell, name: str, generation: str) -> None:
    refusal = REFUSED.get((name, generation))
    if only_on_2x(MAGICS[name]) and generation == "1.x":
        refusal = UnsupportedOperation
    if refusal is None:
        play(stage, name)
    else:
        with pytest.raises(refusal):
            play(stage, name)
