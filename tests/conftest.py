"""What many tests stand on: a real server, one for the whole session, and shells to type into."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from front import FrontEnd, front_end
from shell import Shell, lone_shell, take_practice_server

from opencode_magics.client import Client
from opencode_magics.model import Session
from opencode_magics.practice import install
from opencode_magics.practice.workspace import reset_workspace
from opencode_magics.practice.world import Practice


@pytest.fixture(scope="session")
def opencode() -> Path:
    """The `opencode` program, found or installed as the demo does it."""
    return install.opencode(print)


@pytest.fixture(scope="session")
def practice(opencode: Path) -> Iterator[Practice]:
    """A running practice world: a real server, the scripted model, a workspace."""
    with Practice(command=opencode) as world:
        yield world


@pytest.fixture
def workspace(practice: Practice) -> Path:
    """The workspace of the practice world, as it was made."""
    reset_workspace(practice.directory)
    return practice.directory


@pytest.fixture
def client(practice: Practice) -> Iterator[Client]:
    """A client of the practice world's server, at home in its workspace."""
    with Client(
        practice.url, directory=str(practice.directory), password=practice.password
    ) as client:
        yield client


@pytest.fixture
def session(client: Client, request: pytest.FixtureRequest) -> Session:
    """A new session, titled as the test is named."""
    return client.create(request.node.name)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """A shell without the extension and without a server to be found."""
    with lone_shell(tmp_path, monkeypatch) as shell:
        yield shell


@pytest.fixture
def alone(bare: Shell) -> Shell:
    """A shell with the extension and no server: what asks one fails because of that."""
    bare.run("%load_ext opencode_magics")
    return bare


@pytest.fixture
def shell(
    bare: Shell, practice: Practice, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> Shell:
    """A shell in the workspace, with the extension and the practice world's server."""
    take_practice_server(bare, practice, monkeypatch)
    return bare


@pytest.fixture
def front(bare: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[FrontEnd]:
    """A page in front of a bare shell."""
    with front_end(bare, monkeypatch) as front:
        yield front
