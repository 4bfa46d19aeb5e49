"""Shared fixtures: a real 1.x, a simulated 2.x, and IPython shells.

A test runs on both servers with `@both_generations`. So do all tests of a module with
`BOTH_GENERATIONS = True`, except those that use the fixture `practice` directly. All other tests
use the real 1.x.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.fake_front_end import FrontEnd, front_end
from support.generations import tool_names
from support.ipython_shell import Shell, connect_to_practice, isolated_shell

from opencode_magics.client.client import Client
from opencode_magics.core.model import Session
from opencode_magics.practice import install
from opencode_magics.practice.simulator.server import Simulator
from opencode_magics.practice.workspace import reset_workspace
from opencode_magics.practice.world import Practice

# How long an example takes says how busy the machine is, and nothing of what is tested.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of a module on both generations if it says so."""
    named = set(metafunc.fixturenames)
    wanted = getattr(metafunc.module, "BOTH_GENERATIONS", False) and "generation" in named
    chosen = any("generation" in m.args[0] for m in metafunc.definition.iter_markers("parametrize"))
    if wanted and not chosen and "practice" not in named:
        metafunc.parametrize("generation", ["1.x", "2.x"])


@pytest.fixture(scope="session")
def opencode() -> Path:
    """The `opencode` program, found or installed as by the demo."""
    return install.opencode(print)


@pytest.fixture(scope="session")
def practice(opencode: Path) -> Iterator[Practice]:
    """A running practice world: a real server, the scripted model, a workspace."""
    with Practice(command=opencode) as world:
        yield world


@pytest.fixture(scope="session")
def simulator() -> Iterator[Simulator]:
    """A running practice world with a simulated 2.x."""
    with Simulator() as world:
        yield world


@pytest.fixture
def generation() -> str:
    """The generation of the test's server; `@both_generations` parametrizes it."""
    return "1.x"


@pytest.fixture
def bash(generation: str) -> str:
    """The generation's name of the tool that is called bash in 1.x."""
    return tool_names(generation, "bash")[0]


@pytest.fixture
def world(generation: str, request: pytest.FixtureRequest) -> Practice | Simulator:
    """The practice world of the generation."""
    found: Practice | Simulator
    found = request.getfixturevalue("practice" if generation == "1.x" else "simulator")
    return found


@pytest.fixture
def workspace(world: Practice | Simulator) -> Path:
    """The workspace of the practice world, reset to its initial state."""
    reset_workspace(world.directory)
    return world.directory


@pytest.fixture
def client(world: Practice | Simulator) -> Iterator[Client]:
    """A client of the practice world's server, in its workspace."""
    with Client(world.url, directory=str(world.directory), password=world.password) as client:
        yield client


@pytest.fixture
def session(client: Client, request: pytest.FixtureRequest) -> Session:
    """A new session with the name of the test as its title."""
    return client.create(request.node.name)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """A shell without the extension that finds no server."""
    with isolated_shell(tmp_path, monkeypatch) as shell:
        yield shell


@pytest.fixture
def alone(bare: Shell) -> Shell:
    """A shell with the extension that finds no server."""
    bare.run("%load_ext opencode_magics")
    return bare


@pytest.fixture
def shell(
    bare: Shell,
    world: Practice | Simulator,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Shell:
    """A shell in the workspace, with the extension and the practice world's server."""
    connect_to_practice(bare, world, monkeypatch)
    return bare


@pytest.fixture
def front(bare: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[FrontEnd]:
    """A page connected to a bare shell."""
    with front_end(bare, monkeypatch) as front:
        yield front
