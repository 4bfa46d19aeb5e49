"""Fork, revert, compact, rename, archive: sent once to a real server, and read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError
from support.fake_server import SESSION, FakeServer, assistant, user, v1_routes
from support.generations import both_generations
from support.ipython_shell import Shell, connect_to_practice
from support.transport import CannedTransport

from opencode_magics.client.client import Client
from opencode_magics.core.model import Session
from opencode_magics.dialects.base import Request
from opencode_magics.errors import (
    SessionBusyError,
    StatusError,
    UnknownNameError,
    UnsupportedOperation,
)
from opencode_magics.practice.world import Practice
from opencode_magics.sessions import edit
from opencode_magics.sessions.edit import EditResult

ROOT = Session("ses_root01", "root", "/work/p")
TALK = [user("msg_1"), assistant("msg_2", "msg_1", "hi"), user("msg_3"), user("msg_4")]


@pytest.fixture
def shell(shell: Shell) -> Shell:
    """A shell with a new session in which everything is allowed."""
    shell.run("%config OpenCodeMagics.noninteractive = 'once'")
    shell.run("%oc_new a session")
    return shell


def value(shell: Shell, line: str) -> Any:
    return shell.run(line).value


# -- against a server that misbehaves --------------------------------------------------------------


def test_a_prompt_is_found_by_id_by_prefix_or_as_the_last() -> None:
    with (
        CannedTransport(v1_routes(message=TALK)) as fake,
        Client(fake.url, transport=fake) as client,
    ):
        messages = client.messages(ROOT)
    assert edit.find_prompt(messages, None).id == "msg_4"
    assert edit.find_prompt(messages, "msg_2").id == "msg_1"
    for wrong in ("msg_", "msg_nope"):
        with pytest.raises(UnknownNameError):
            edit.find_prompt(messages, wrong)
    with pytest.raises(UnknownNameError, match="no prompt yet"):
        edit.find_prompt((), None)


def test_an_unknown_message_is_not_sent_since_the_server_would_copy_all() -> None:
    with (
        CannedTransport(v1_routes(message=TALK)) as fake,
        Client(fake.url, transport=fake) as client,
    ):
        with pytest.raises(UnknownNameError, match="no message 'msg_nope'"):
            edit.fork(client, ROOT, "msg_nope")
        assert not [s for s in fake.seen if s.method == "POST"]


def test_a_revert_without_an_effect_is_not_confirmed() -> None:
    routes = v1_routes(message=TALK) | {"POST /session/ses_root01/revert": SESSION}
    with CannedTransport(routes) as fake, Client(fake.url, transport=fake) as client:
        done = edit.revert(client, ROOT)
    assert not done.confirmed
    assert "NOT CONFIRMED" in repr(done)


def test_a_busy_session_is_not_edited() -> None:
    routes = v1_routes(message=TALK, status={"ses_root01": {"type": "busy"}})
    with CannedTransport(routes) as fake, Client(fake.url, transport=fake) as client:
        for change in (edit.revert, edit.unrevert, edit.compact):
            with pytest.raises(SessionBusyError, match="is busy"):
                change(client, ROOT)
        assert not [s for s in fake.seen if s.method == "POST"]


# -- a real server ---------------------------------------------------------------------------------


def test_a_fork_has_the_messages_before_a_prompt_and_becomes_current(
    shell: Shell, client: Client
) -> None:
    shell.run("%oc_prompt -o first #text 3")
    shell.run("%oc_prompt -o second #text 4")
    origin = value(shell, "%oc_session")
    whole = value(shell, "%oc_fork")
    assert isinstance(whole, EditResult)
    assert whole.confirmed
    assert len(client.messages(whole.session)) == 4
    assert value(shell, "%oc_session").id == whole.session.id
    second = shell.user_ns["second"].prompt
    part = value(shell, f"%oc_fork -s {origin.id} --before {second}")
    assert part.confirmed
    assert len(client.messages(part.session)) == 2
    assert "the first 2 messages" in repr(part)
    assert part.session.id in {*value(shell, "%oc_status")["session"]}


def test_revert_restores_files_and_unrevert_undoes_that(shell: Shell, workspace: Path) -> None:
    notes = workspace / "notes.txt"
    shell.run("%oc_prompt #edit notes.txt")
    assert notes.read_text().startswith("goodbye")
    back = value(shell, "%oc_revert")
    assert back.confirmed
    assert "notes.txt" in back.what
    assert notes.read_text().startswith("hello")
    forward = value(shell, "%oc_unrevert")
    assert forward.confirmed
    assert notes.read_text().startswith("goodbye")
    assert "no revert to undo" in value(shell, "%oc_unrevert").what


def test_a_revert_is_made_final_by_the_next_prompt_on_1_x(shell: Shell, client: Client) -> None:
    shell.run("%oc_prompt #text 3")
    shell.run("%oc_revert")
    with pytest.raises(UsageError, match="Add --yes"):
        shell.run("%oc_revert --commit")
    with pytest.raises(UnsupportedOperation, match="doesn't support making a revert final"):
        shell.run("%oc_revert --commit --yes")
    shell.run("%oc_prompt #text 5")
    assert len(client.messages(value(shell, "%oc_session"))) == 2


@both_generations
def test_a_session_is_summarized(shell: Shell, client: Client) -> None:
    shell.run("%oc_prompt #text 3")
    done = value(shell, "%oc_compact")
    assert done.confirmed
    assert "summarized by practice/scripted" in done.what
    assert any(m.summary for m in client.messages(done.session))


def test_a_session_is_renamed_archived_and_restored(shell: Shell) -> None:
    assert "renamed from 'a session' to" in value(shell, "%oc_rename It's {another} $TITLE").what
    assert value(shell, "%oc_session").title == "It's {another} $TITLE"
    assert value(shell, "%oc_archive").session.archived
    assert value(shell, "%oc_archive --undo").session.archived is None


@both_generations
def test_an_undo_applies_to_the_edited_session(shell: Shell, client: Client) -> None:
    other = value(shell, "%oc_new -- -x marks the spot")
    current = value(shell, "%oc_new current")
    for line in (f"%oc_rename -s {other.id} new", f"%oc_archive {other.id}"):
        shell.run(value(shell, line).undo)
    now = client.session(other.id)
    assert (now.title, now.archived) == ("-x marks the spot", None)
    assert client.session(current.id).title == "current"


def test_subagents_are_shown_as_a_tree(shell: Shell) -> None:
    assert len(value(shell, "%oc_children")) == 0
    shell.run("%oc_prompt #task #text 3")
    frame = value(shell, "%oc_children")
    assert [*frame["depth"]] == [1]
    assert [*frame["state"]] == ["idle"]
    assert frame.loc[0, "tree"].startswith("└─ ")
    assert frame.loc[0, "parent"] == value(shell, "%oc_session").id


def test_the_agents_todo_list_is_shown(shell: Shell) -> None:
    shell.run("%oc_prompt #todo")
    frame = value(shell, "%oc_todo")
    assert [*frame["status"]] == ["completed", "in_progress"]


def test_a_session_is_made_public_only_with_yes(shell: Shell) -> None:
    with pytest.raises(UsageError, match="Anyone with the address"):
        shell.run("%oc_share")
    with pytest.raises(StatusError):  # sharing is disabled in the practice world
        shell.run("%oc_share --yes")


def test_a_user_must_confirm_what_can_not_be_undone(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.types("no", "y")
    with pytest.raises(UsageError, match="nothing was changed"):
        shell.run("%oc_share")
    with pytest.raises(StatusError):
        shell.run("%oc_share")


class Sharing(Practice):
    """A practice world whose OpenCode publishes sessions at an address of ours."""

    def __init__(self, address: str, command: Path) -> None:
        super().__init__(command=command)
        self._address = address

    @property
    def env(self) -> dict[str, str]:
        config = {"share": "manual", "enterprise": {"url": self._address}}
        env = {k: v for k, v in super().env.items() if k != "OPENCODE_DISABLE_SHARE"}
        return env | {"OPENCODE_CONFIG_CONTENT": json.dumps(config)}


def test_a_session_is_public_at_its_address_and_its_undo_is_never_confirmed(
    bare: Shell, opencode: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "http://127.0.0.1:9/share/shr_1"
    routes = {
        "POST /api/share": {"id": "shr_1", "url": address, "secret": "s"},
        "POST /api/share/shr_1/sync": {},
        "DELETE /api/share/shr_1": {},
    }
    with FakeServer(routes) as publisher, Sharing(publisher.url, opencode) as world:
        connect_to_practice(bare, world, monkeypatch)
        session = value(bare, "%oc_new to be read by all")
        shared = value(bare, "%oc_share --yes")
        assert (shared.confirmed, shared.what) == (True, f"public at {address}")
        assert publisher.asked("POST /api/share")[0].body == {"sessionID": session.id}
        back = value(bare, "%oc_share --undo")
        assert publisher.asked("DELETE /api/share/shr_1")
        # The session still shows the address.
        assert not back.confirmed
        stored = stored_session(world, session)
        assert stored["share"]["url"] == address


def stored_session(world: Practice, session: Session) -> dict[str, Any]:
    with Client(world.url, directory=str(world.directory), password=world.password) as client:
        stored: dict[str, Any] = client.transport.send(
            Request("GET", f"/session/{session.id}")
        ).json()
        return stored


@pytest.mark.parametrize("answer", [True, {"id": "ses_root01", "share": {"url": "http://x"}}])
def test_a_share_without_an_address_is_not_confirmed(answer: Any) -> None:
    routes = v1_routes() | {"POST /session/ses_root01/share": answer}
    with CannedTransport(routes) as fake, Client(fake.url, transport=fake) as client:
        assert not edit.share(client, ROOT).confirmed


@pytest.mark.parametrize("line", ["%oc_rename", "%oc_revert --commit msg_1"])
def test_invalid_options_are_an_error(shell: Shell, line: str) -> None:
    with pytest.raises(UsageError):
        shell.run(line)
