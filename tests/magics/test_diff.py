"""%oc_diff on a real server: with and without git, for a single turn, after a revert."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from IPython.core.error import UsageError
from support.ipython_shell import Shell, is_short_error

from opencode_magics.client.client import Client
from opencode_magics.core.diffs import Diff
from opencode_magics.dialects.base import Reply, Request
from opencode_magics.errors import NotFoundError
from opencode_magics.practice.world import Practice

BOTH_GENERATIONS = True


@pytest.fixture
def shell(shell: Shell) -> Shell:
    """A shell with a new session in which edits are allowed."""
    shell.run("%config OpenCodeMagics.noninteractive = 'once'")
    shell.run("%oc_new diffs")
    return shell


def ask(shell: Shell, prompt: str) -> str:
    """Send a prompt and return its id."""
    shell.run(f"%oc_prompt {prompt}")
    return str(shell.run("%oc_turn").value.prompt)


def diff(shell: Shell, line: str = "") -> Diff:
    value = shell.run(f"%oc_diff {line}").value
    assert isinstance(value, Diff)
    return value


def displayed(shell: Shell, line: str = "", kind: str = "text/plain") -> str:
    """Return the diff as a notebook displays it."""
    data, _ = shell.display_formatter.format(diff(shell, line))
    return str(data[kind])


def test_the_diff_of_a_session_is_merged_from_its_turns(shell: Shell, workspace: Path) -> None:
    ask(shell, "#edit notes.txt hello goodbye")
    ask(shell, "#edit notes.txt goodbye farewell")
    ask(shell, "#write new.txt")
    merged = diff(shell)
    assert merged.source == "turns"
    assert {f.name: (f.status, f.counts) for f in merged.files} == {
        "notes.txt": ("modified", (1, 1)),
        "new.txt": ("added", (2, 0)),
    }
    assert merged["notes.txt"].files[0].changes[0].hunks[0].lines[:2] == (
        "-hello one",
        "+farewell one",
    )


def test_the_reversed_patch_restores_the_files(shell: Shell, workspace: Path) -> None:
    before = (workspace / "notes.txt").read_bytes()
    ask(shell, "#edit notes.txt hello goodbye")
    ask(shell, "#write new.txt")
    command = ["git", "apply", "-R"]
    subprocess.run(command, cwd=workspace, check=True, input=diff(shell).patch.encode())
    assert (workspace / "notes.txt").read_bytes() == before
    assert not (workspace / "new.txt").exists()


def test_a_message_selects_the_diff_of_its_turn(shell: Shell) -> None:
    first = ask(shell, "#edit notes.txt hello goodbye")
    ask(shell, "#write new.txt")
    assert list(diff(shell, f"--message {first}")) == ["notes.txt"]
    answer = shell.run("%oc_turn").value.answers[0].id
    assert list(diff(shell, f"-m {answer}")) == ["new.txt"]


def test_unchanged_lines_from_the_server_are_dropped(shell: Shell, workspace: Path) -> None:
    """1.18.33 sends all lines of a changed file."""
    (workspace / "long.txt").write_text("".join(f"line {n}\n" for n in range(900)))
    ask(shell, "#edit long.txt 777 XXX")
    (change,) = diff(shell)["long.txt"].files[0].changes
    assert [h.header for h in change.hunks] == ["@@ -775,7 +775,7 @@"]
    assert "778     -line 777" in displayed(shell)


def test_changes_by_shell_commands_are_included_in_git(
    shell: Shell, workspace: Path, generation: str
) -> None:
    ask(shell, "#bash rm guests.txt; printf '\\0' > n.bin; : > empty.txt; printf no > 'a \"ä.txt'")
    # The simulated 2.x server only tracks text files.
    binary = {"n.bin": ("added", (None, None))} if generation == "1.x" else {}
    assert {f.name: (f.status, f.counts) for f in diff(shell).files} == binary | {
        "guests.txt": ("deleted", (0, 3)),
        "empty.txt": ("added", (0, 0)),
        'a "ä.txt': ("added", (1, 0)),
    }


def test_outside_of_git_the_diff_comes_from_the_edit_tools(shell: Shell, tmp_path: Path) -> None:
    """Case G5-01."""
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "notes.txt").write_text("hello one\nline two\n")
    shell.run(f"%oc_new -d {folder} no git here")
    ask(shell, "#edit notes.txt hello goodbye")
    ask(shell, "#write new.txt")
    assert (list(diff(shell)), diff(shell).source) == (["notes.txt", "new.txt"], "tools")
    first = displayed(shell).split("\n")[0]
    assert "from the edit tools only: the server lists no changes" in first


def test_a_session_without_edits_says_that_there_are_no_changes(shell: Shell) -> None:
    """Case G5-01."""
    ask(shell, "#text 3")
    assert not diff(shell)
    assert displayed(shell) == "The server lists no changes"


def test_a_reverted_turn_is_not_in_the_diff(
    shell: Shell, client: Client, practice: Practice
) -> None:
    ask(shell, "#write new.txt")
    second = ask(shell, "#edit notes.txt hello goodbye")
    session = shell.run("%oc_session").value

    def revert() -> Iterator[Request]:
        path, where = f"/session/{session.id}/revert", {"directory": session.directory}
        reply: Reply = yield Request("POST", path, where, {"messageID": second})
        return reply

    client.run(revert())
    assert list(diff(shell)) == ["new.txt"]


def test_the_diff_of_another_session_leaves_the_current_one(shell: Shell) -> None:
    ask(shell, "#edit notes.txt hello goodbye")
    session = shell.run("%oc_session").value
    shell.run("%oc_new something else")
    assert not diff(shell)
    assert list(diff(shell, session.id)) == ["notes.txt"]
    assert shell.run("%oc_session").value.title == "something else"


def test_a_diff_is_shown_side_by_side_on_request(shell: Shell) -> None:
    ask(shell, "#edit notes.txt hello goodbye")
    assert "<table" not in displayed(shell, kind="text/html")
    assert "<table" in displayed(shell, "--side-by-side", "text/html")


def test_an_unknown_message_raises_a_short_error(shell: Shell) -> None:
    failed = shell.fails("%oc_diff --message msg_nope")
    assert isinstance(failed.error, NotFoundError)
    assert is_short_error(failed)


def test_without_a_session_the_error_says_what_to_do(shell: Shell) -> None:
    shell.run("%oc_connect;")
    failed = shell.fails("%oc_diff")
    assert isinstance(failed.error, UsageError)
    assert "%oc_new" in failed.text
