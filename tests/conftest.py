"""Shared fixtures: a real 1.x, a simulated 2.x, and IPython shells.

A test runs on both servers with `@both_generations`. So do all tests of a module with
`BOTH_GENERATIONS = True`, except those that use the fixture `practice` directly. All other tests
use the real 1.x.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from support import kernels, tiers
from support.fake_front_end import FrontEnd, front_end
from support.generations import tool_names
from support.ipython_shell import Shell, connect_to_practice, isolated_shell
from support.shared_cache import shared_cache

from opencode_magics.client.client import Client
from opencode_magics.core.model import Session
from opencode_magics.practice import install
from opencode_magics.practice.simulator.server import Simulator
from opencode_magics.practice.workspace import reset_workspace
from opencode_magics.practice.world import Practice
from opencode_magics.prompts import answering
from opencode_magics.sessions import deliver

# How long an example takes says how busy the machine is, and nothing of what is tested.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", patient, max_examples=50)
settings.register_profile("many", patient, max_examples=1_000)


# -- tiers -----------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the command line choose a tier, and a part of it."""
    group = parser.getgroup("tiers", "tiers of tests")
    for name, text in (
        ("ci", "the tests that CI runs beside the quick ones"),
        ("all", "all tests"),
    ):
        group.addoption(f"--{name}", dest="tier", action="store_const", const=name, help=text)
    group.addoption("--part", type=tiers.part, metavar="N/M", help="part N of M of these tests")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Choose the tier, and run the whole suite in two processes or more.

    Whoever names files or tests gets all of their tests, in one process.
    """
    option = config.option
    if hasattr(config, "workerinput"):
        option.tier, option.part = config.workerinput["tests"]
        return  # and start no other processes
    whole = config.args_source is not pytest.Config.ArgsSource.ARGS
    option.tier = option.tier or ("quick" if whole else "named")
    alone = option.collectonly or option.usepdb or getattr(option, "numprocesses", 0) is not None
    if whole and not alone:
        option.numprocesses = max(2, min(4, os.cpu_count() or 1))
        option.dist = "loadgroup"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of the run which tests were chosen."""
    node.workerinput["tests"] = node.config.option.tier, node.config.option.part


def pytest_configure(config: pytest.Config) -> None:
    """Choose how many examples Hypothesis tries, and let tests interrupt themselves.

    A shell that runs the tests in the background makes them ignore SIGINT.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.load_profile("many" if config.option.tier == "all" else "few")


def pytest_report_header(config: pytest.Config) -> str:
    """Say which tests run."""
    number, count = config.option.part or (1, 1)
    return f"tests: {config.option.tier}, part {number} of {count}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of other tiers and parts, and group those that share what is slow."""
    functions = [item for item in items if isinstance(item, pytest.Function)]
    if config.option.tier in ("quick", "ci"):
        functions = [item for item in functions if tiers.tier(item) == config.option.tier]
    chosen = tiers.in_part(functions, *(config.option.part or (1, 1)))
    left_out = {*items} - {*chosen}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = chosen
    if getattr(config.option, "dist", "no") == "loadgroup":
        for item in chosen:
            if name := tiers.group(item):
                item.add_marker(pytest.mark.xdist_group(name))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of a module on both generations if it says so."""
    named = set(metafunc.fixturenames)
    wanted = getattr(metafunc.module, "BOTH_GENERATIONS", False) and "generation" in named
    chosen = any("generation" in m.args[0] for m in metafunc.definition.iter_markers("parametrize"))
    if wanted and not chosen and "practice" not in named:
        metafunc.parametrize("generation", ["1.x", "2.x"])


@pytest.fixture(autouse=True)
def short_waits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Look only briefly for a lost prompt where no server is that could be slow to show it."""
    if not tiers.SERVERS & {*request.fixturenames}:
        monkeypatch.setattr(deliver, "_CONFIRM_REFUSAL", 0.5)
        monkeypatch.setattr(deliver, "_CONFIRM_SENT", 0.5)
        monkeypatch.setattr(deliver, "_PATIENCE", 1.0)
        monkeypatch.setattr(answering, "_PATIENCE", 1.0)


@pytest.fixture(scope="session")
def opencode() -> Path:
    """The `opencode` program, found or installed as by the demo."""
    with shared_cache():
        return install.opencode(print)


@pytest.fixture(scope="session")
def start_kernel() -> kernels.StartKernel:
    """Start a real kernel of an ipykernel version: `with start_kernel(version) as front:`."""
    return kernels.running


@pytest.fixture(scope="session")
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether to try every case (`--all`), or only enough cases to notice most defects."""
    return bool(request.config.option.tier == "all")


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
