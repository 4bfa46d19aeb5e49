"""The real server that tests talk to: one practice world for the whole session."""

from collections.abc import Iterator
from pathlib import Path

import pytest

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
