"""What a person must know to decide is made from the request and the input of its tool call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from opencode_magics.core.decision import details, digest, edits_of, with_call
from opencode_magics.core.events import PermissionAsked, RequestReplied
from opencode_magics.core.fold import advance_all
from opencode_magics.core.model import FileDiff, Permission, ToolCall
from opencode_magics.core.turn import Turn
from opencode_magics.dialects import v1_shapes
from opencode_magics.notebook import wording
from opencode_magics.notebook.blocks import RequestState, blocks

MOVED = FileDiff("hidden/new.py", "@@ -1 +1 @@\n-b\n+B\n", 1, 1, "renamed", "old.py")
PATCH = {
    "id": "per_1",
    "sessionID": "ses_1",
    "permission": "edit",
    "patterns": ["old.py", "gone.py", "made.py"],
    "metadata": {
        "diff": "Index: /p/old.py\n",
        "files": [
            {
                "filePath": "/p/old.py",
                "relativePath": "hidden/new.py",
                "movePath": "/p/hidden/new.py",
                "type": "move",
                "patch": MOVED.patch,
                "additions": 1,
                "deletions": 1,
            },
            {"filePath": "/p/gone.py", "relativePath": "gone.py", "type": "delete", "patch": ""},
            {"filePath": "/p/made.py", "relativePath": "made.py", "type": "add", "patch": ""},
        ],
    },
}


def asks(
    action: str, tool: str = "", patterns: tuple[str, ...] = ("*",), **given: Any
) -> Permission:
    permission = Permission("per_1", "ses_1", action, patterns, ("*",))
    return with_call(permission, ToolCall("prt_1", "call_1", tool or action, "running", given))


def shown(permission: Permission) -> dict[str, str]:
    return {detail.label: detail.text for detail in details(permission, "/p")}


def test_every_file_of_a_patch_is_named_with_what_happens_to_it() -> None:
    """Case T1: with both names of a moved one."""
    permission = v1_shapes.permission(PATCH)
    files = "old.py → hidden/new.py\ngone.py (deleted)\nmade.py (added)"
    assert shown(permission) == {"Files": files}
    assert permission.subject == files.replace("\n", ", ")
    assert edits_of(permission)[0] == MOVED
    assert wording.request_text(permission) == f"edit {permission.subject}"


def test_a_moved_file_has_both_names_in_the_row_and_the_changes_of_a_turn() -> None:
    """Case T1."""
    tool = ToolCall(
        "prt_1", "call_1", "apply_patch", "completed", {"patchText": ""}, diffs=(MOVED,)
    )
    assert wording.tool_subject(tool) == "old.py → hidden/new.py"
    assert wording.changed_files([MOVED]) == {"old.py → hidden/new.py": (1, 1)}


@pytest.mark.parametrize("workdir", ["/tmp", "sub"])
def test_the_folder_of_a_command_is_always_named(workdir: str) -> None:
    """Case T2."""
    command = replace(asks("bash", command="rm -rf build", workdir=workdir), command="rm -rf build")
    assert shown(command)["In"] == workdir
    assert shown(replace(command, input={}))["In"] == "/p"
    assert wording.request_text(command) == f"bash 'rm -rf build' in {workdir}"
    row = ToolCall("prt_1", "call_1", "bash", "completed", command.input)
    assert wording.tool_subject(row) == f"rm -rf build in {workdir}"


def test_the_outside_folder_of_a_command_is_named() -> None:
    """Case T2: `external_directory` showed only the command."""
    permission = asks(
        "external_directory", "bash", ("/tmp/*",), command="rm -rf build", workdir="/tmp"
    )
    assert shown(replace(permission, command="rm -rf build")) == {
        "Outside the project": "/tmp/*",
        "Command": "rm -rf build",
        "In": "/tmp",
    }


@pytest.mark.parametrize(
    ("tool", "label"), [("read", "Read"), ("write", "Write"), ("edit", "Edit"), ("glob", "Search")]
)
def test_an_outside_file_is_named_with_what_is_done_to_it(tool: str, label: str) -> None:
    """Case T3."""
    permission = asks("external_directory", tool, ("/o/*",), filePath="/o/x.txt")
    assert shown(permission) == {"Outside the project": "/o/*", label: "/o/x.txt"}
    assert permission.subject == f"{tool} /o/x.txt"


def test_the_input_of_an_mcp_tool_is_shown() -> None:
    """Case T3: also in the saved line."""
    permission = asks("pics_execute", sql="DELETE FROM orders WHERE 1=1", limit=3)
    assert shown(permission) == {"Input": "sql: DELETE FROM orders WHERE 1=1\nlimit: 3"}
    line = wording.request_line(RequestState(permission, "once"))
    assert line == "Permission: pics_execute sql: DELETE FROM orders WHERE 1=1, limit: 3 → once"


@pytest.mark.parametrize(
    ("tool", "agent"), [("task", {"subagent_type": "general"}), ("subagent", {"agent": "general"})]
)
def test_the_prompt_of_a_subagent_is_shown(tool: str, agent: dict[str, str]) -> None:
    """Case T3."""
    permission = asks(tool, tool, ("general",), prompt="Delete all logs", **agent)
    assert shown(permission) == {"Agent": "general", "Prompt": "Delete all logs"}
    assert permission.subject == "general: Delete all logs"


def test_a_command_with_an_edit_shows_both_and_the_other_patterns() -> None:
    """Case T4."""
    edit = FileDiff("a.py", "@@ -1 +1 @@\n-x\n+y\n")
    permission = replace(
        asks("bash", patterns=("make", "git push")), command="make && echo", diff=edit
    )
    assert shown(permission) == {"Command": "make && echo", "In": "/p", "For": "git push"}
    assert edits_of(permission) == (edit,)


@pytest.mark.parametrize(
    ("given", "added", "removed"),
    [({"oldString": "a\n", "newString": "b\n"}, "+b", "-a"), ({"content": "b\n"}, "+b", None)],
)
def test_an_edit_that_the_request_does_not_show_is_made_from_the_input(
    given: dict[str, str], added: str, removed: str | None
) -> None:
    """2.x sends no diff with a permission."""
    (edit,) = edits_of(asks("edit", patterns=("a.txt",), path="a.txt", **given))
    assert added in edit.patch
    assert removed is None or removed in edit.patch


def test_any_difference_that_a_person_sees_changes_the_digest() -> None:
    """Case T5."""
    base = replace(asks("bash", command="ls"), command="ls")
    others = [
        replace(base, command="ls -a"),
        replace(base, action="shell"),
        replace(base, always=("ls",)),
        replace(base, input={"command": "ls", "workdir": "/tmp"}),
        replace(base, diff=FileDiff("a", "+x")),
    ]
    assert len({digest(p, "/p") for p in (base, *others)} | {digest(base, "/q")}) == 7


@pytest.mark.parametrize(
    ("reply", "words"),
    [("reject", "rejected together with a.py"), ("always", "allowed together with a.py")],
)
@pytest.mark.parametrize("ours", [True, False])
def test_a_request_that_was_settled_with_another_says_so(
    reply: str, words: str, ours: bool
) -> None:
    """Case T6: also if the other one was answered by `%oc_reply` elsewhere."""
    first = replace(asks("edit", patterns=("a.py",)), id="per_a")
    second = replace(asks("edit", patterns=("b.py",)), id="per_b")
    later = replace(asks("edit", patterns=("c.py",)), id="per_c")
    turn = advance_all(
        Turn("ses_1", "msg_1"),
        [
            PermissionAsked(first),
            PermissionAsked(second),
            RequestReplied("ses_1", "per_a", reply, ours=ours),
            RequestReplied("ses_1", "per_b", reply),
            PermissionAsked(later),
            RequestReplied("ses_1", "per_c", reply),
        ],
    )
    lines = [
        wording.request_line(b.value) for b in blocks(turn) if isinstance(b.value, RequestState)
    ]
    assert lines == [
        f"Permission: edit a.py → {reply}",
        f"Permission: edit b.py → {words}",
        f"Permission: edit c.py → {reply}",
    ]
