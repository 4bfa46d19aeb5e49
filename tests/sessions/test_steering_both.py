"""Watching and steering sessions works the same on both generations."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from IPython.core.error import UsageError
from support.generations import both_generations
from support.ipython_shell import Shell

from opencode_magics.client.client import Client
from opencode_magics.core.model import Session
from opencode_magics.dialects.base import Prompt
from opencode_magics.errors import NotFoundError, UnsupportedOperation
from opencode_magics.sessions import edit, end
from opencode_magics.sessions.edit import EditResult


@pytest.fixture
def shell(shell: Shell) -> Shell:
    """A shell with a new session."""
    shell.run("%oc_new steered")
    return shell


def until(shell: Shell, state: str) -> None:
    deadline = time.monotonic() + 120
    while [*shell.run("%oc_status").value["state"]][-1] != state:
        assert time.monotonic() < deadline, shell.run("%oc_status").value
        time.sleep(0.1)


@both_generations
@pytest.mark.parametrize(
    ("prompt", "state", "rejected"),
    [
        ("#slow 400 .1", "running", 0),
        ("#edit notes.txt", "waiting_for_permission", 1),
        ("#question", "waiting_for_question", 1),
    ],
)
def test_a_busy_session_is_seen_stopped_and_deleted(
    shell: Shell, client: Client, workspace: Path, prompt: str, state: str, rejected: int
) -> None:
    session = shell.run("%oc_session").value
    shell.run(f"%oc_prompt --no-wait {prompt}")
    until(shell, state)
    result = shell.run("%oc_end").value
    assert (result.status, result.aborted_running_turn) == ("ended", True)
    assert len(result.rejected) <= rejected  # 2.x settles them on an interrupt
    with pytest.raises(NotFoundError):
        client.session(session.id)
    assert (client.permissions(), client.questions()) == ((), ())


@both_generations
def test_a_wait_ends_when_the_work_does(shell: Shell, workspace: Path) -> None:
    shell.run("%oc_prompt --no-wait #slow 5 .2")
    waited = shell.run("%oc_status --wait all --timeout 120").value
    assert [*waited["state"]] == ["idle"]
    assert waited.attrs["reason"] == "condition"


@both_generations
def test_only_busy_sessions_of_a_directory_are_shown(shell: Shell, workspace: Path) -> None:
    shell.run("%oc_prompt --no-wait #slow 400 .1")
    until(shell, "running")
    assert [*shell.run(f"%oc_status -d {workspace}").value["title"]] == ["steered"]
    assert len(shell.run("%oc_status -d /").value) == 0
    assert shell.run("%oc_abort").value.status == "stopped"


@both_generations
def test_a_session_is_forked_reverted_renamed_and_archived(
    shell: Shell, client: Client, workspace: Path
) -> None:
    notes = workspace / "notes.txt"
    shell.run("%oc_prompt --permission once #edit notes.txt")
    for line, text in (("%oc_revert", "hello"), ("%oc_unrevert", "goodbye")):
        done: Any = shell.run(line).value
        assert done.confirmed, done
        assert notes.read_text().startswith(text)
    for line in ("%oc_compact", "%oc_rename another", "%oc_archive", "%oc_archive --undo"):
        done = shell.run(line).value
        assert done.confirmed, done
    done = shell.run("%oc_fork").value
    assert done.confirmed, done


@pytest.mark.parametrize("generation", ["2.x"])
def test_a_revert_can_leave_the_files_as_they_are(
    shell: Shell, client: Client, workspace: Path
) -> None:
    shell.run("%oc_prompt --permission once #edit notes.txt")
    done = shell.run("%oc_revert --keep-files").value
    assert done.confirmed
    assert "the files are unchanged" in done.what
    assert (workspace / "notes.txt").read_text().startswith("goodbye")
    assert not [m for m in client.messages(done.session) if m.role == "user"]
    shell.run("%oc_unrevert")
    assert (workspace / "notes.txt").read_text().startswith("goodbye")
    with pytest.raises(UsageError, match="--keep-files"):
        shell.run("%oc_revert --commit --keep-files --yes")


def test_a_revert_of_1_x_can_not_leave_the_files(shell: Shell, client: Client) -> None:
    shell.run("%oc_prompt #text 3")
    with pytest.raises(
        UnsupportedOperation, match=r"1\.x doesn't support .* files; OpenCode 2\.x does"
    ):
        shell.run("%oc_revert --keep-files")
    assert client.session(shell.run("%oc_session").value.id).revert is None


def commit(shell: Shell) -> EditResult:
    done: EditResult = shell.run("%oc_revert --commit --yes").value
    return done


@pytest.mark.parametrize("generation", ["2.x"])
def test_commit_and_unrevert_are_read_back(
    client: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client may do the opposite at the same time."""
    client.prompt(session, Prompt(f"msg_{uuid4().hex}", "#text 3"))
    client.run(client.dialect.wait(session))
    for change, other in (("commit_revert", "unrevert"), ("unrevert", "commit_revert")):
        edit.revert(client, session)
        with monkeypatch.context() as patched:
            patched.setattr(client.dialect, change, getattr(client.dialect, other))
            done = {"commit_revert": edit.commit, "unrevert": edit.unrevert}[change]
            assert not done(client, session).confirmed


@pytest.mark.parametrize("generation", ["2.x"])
def test_a_revert_is_made_final_on_2_x(shell: Shell, client: Client, workspace: Path) -> None:
    shell.run("%oc_prompt #text 3")
    shell.run("%oc_revert")
    shell.run("%oc_unrevert")
    assert "no revert to make final" in commit(shell).what
    shell.run("%oc_revert")
    assert commit(shell).confirmed
    assert "no revert to make final" in commit(shell).what
    assert not [m for m in client.messages(shell.run("%oc_session").value) if m.role == "user"]


@pytest.mark.parametrize("generation", ["2.x"])
@pytest.mark.parametrize("line", ["%oc_todo", "%oc_share --yes"])
def test_features_missing_in_2_x_are_an_error(shell: Shell, line: str) -> None:
    with pytest.raises(UnsupportedOperation, match=r"2\.x"):
        shell.run(line)


@pytest.mark.parametrize("generation", ["2.x"])
def test_prompts_that_an_abort_leaves_in_the_inbox_are_reported(
    shell: Shell, client: Client
) -> None:
    """They run with the next prompt."""
    for how in ("", "--queue", "--queue"):
        shell.run(f"%oc_prompt --no-wait {how} #slow 400 .1")
    until(shell, "running")
    stopped = shell.run("%oc_abort").value
    assert stopped.status == "stopped"
    assert "2 prompts wait in its inbox" in stopped.evidence
    assert "2 prompts wait in its inbox" in shell.run("%oc_abort").value.evidence
    ended = shell.run("%oc_end --archive").value
    assert (ended.status, ended.cleanup) == ("ended", "unconfirmed")
    assert "2 prompts wait in its inbox" in ended.evidence


@pytest.mark.parametrize("generation", ["2.x"])
def test_a_session_deleted_while_it_is_being_stopped_is_reported(
    client: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.prompt(session, Prompt(f"msg_{uuid4().hex}", "#slow 400 .1"))
    abort = client.abort

    def delete_first(target: Session) -> None:
        if target.id in client.statuses():
            abort(target)
            client.run(client.dialect.delete(target))
        abort(target)

    monkeypatch.setattr(client, "abort", delete_first)
    stopped = end.stop(client, session)
    assert (stopped.status, stopped.kept) == ("stopped", "kept nothing: it was deleted meanwhile")
    assert end.stop(client, session).status == "not_found"


@pytest.mark.parametrize("generation", ["2.x"])
def test_three_clients_at_once_agree_that_a_session_is_gone(
    client: Client, session: Session
) -> None:
    client.prompt(session, Prompt(f"msg_{uuid4().hex}", "#slow 400 .1"))
    results: list[end.EndResult] = []
    threads = [
        threading.Thread(target=lambda: results.append(end.end(client, session, "delete")))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {r.status for r in results} <= {"ended", "not_found"}, results


@both_generations
def test_an_earlier_answer_is_reused(shell: Shell) -> None:
    unique = uuid4().hex  # other tests use the same server
    shell.run(f"%oc_prompt -n --once #text 3 {unique}")
    shell.run("%oc_new another")
    assert "From history" in shell.run(f"%oc_prompt -n --once #text 3 {unique}").text
    assert "From history" not in shell.run(f"%oc_prompt -n --once #text 4 {unique}").text
