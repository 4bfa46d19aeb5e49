"""A row that the server can't validate hides no other session."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ipython_shell import Shell

from opencode_magics.client.client import Client
from opencode_magics.core.model import Session
from opencode_magics.errors import TurnInterrupted
from opencode_magics.practice.world import Practice


@pytest.fixture
def spoilt(practice: Practice, client: Client, session: Session) -> Iterator[Session]:
    """A session with an old workspace id, which 1.18.33 refuses to list by directory."""
    (database,) = (practice.root / "home" / ".local/share/opencode").glob("*.db")
    change = "update session set workspace_id = ? where id = ?"

    def spoil(value: str | None) -> None:
        with sqlite3.connect(database) as connection:
            connection.execute(change, (value, session.id))
        connection.close()

    spoil("wks_x")
    yield session
    spoil(None)


@pytest.mark.parametrize("line", ["%oc_sessions", "%oc_history --all", "%oc_usage"])
def test_one_bad_row_hides_no_session(
    shell: Shell, client: Client, spoilt: Session, line: str, workspace: Path
) -> None:
    """Case M3: HTTP 400."""
    assert spoilt.id in {s.id for s in client.sessions()}
    assert spoilt.id in {s.id for s in client.sessions(project=False)}
    assert shell.run(line).value is not None


def test_an_interrupt_of_a_magic_that_reads_is_one_line(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case E10: it showed a long traceback."""

    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "sessions", interrupted)
    shown = shell.fails("%oc_sessions")
    assert isinstance(shown.error, TurnInterrupted)
    assert shown.lines == ["Interrupted."]
