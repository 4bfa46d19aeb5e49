"""A symbolic link to a folder can be the directory."""

from __future__ import annotations

from pathlib import Path

from support.ipython_shell import Shell

from opencode_magics.client.client import Client
from opencode_magics.practice.simulator.server import Simulator
from opencode_magics.practice.world import Practice
from opencode_magics.sessions.lookup import create_session

BOTH_GENERATIONS = True


def test_a_session_is_made_through_a_symbolic_link(
    world: Practice | Simulator, shell: Shell, workspace: Path, tmp_path: Path
) -> None:
    """Case F2: it was "made instead of" in the real folder, and an empty session was left."""
    link = tmp_path / "link"
    link.symlink_to(workspace)
    with Client(world.url, directory=str(link), password=world.password) as client:
        session = create_session(client)
        assert session.directory == str(workspace)
        assert session.id in {s.id for s in client.sessions(project=False)}
        assert create_session(client, directory=str(link)).directory == str(workspace)
    shell.run(f"%oc_connect -d {link}")
    assert shell.run("%oc_prompt -n -o turn #text 1").error is None
