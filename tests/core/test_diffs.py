"""`Diff`: merging the changes that a server reports, file by file, and exporting them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_server import SESSION, FakeServer, assistant, user, v1_routes
from support.transport import CannedTransport

from opencode_magics.client.client import Client
from opencode_magics.core.diffs import Diff
from opencode_magics.core.model import FileDiff, Session
from opencode_magics.core.patches import format_patch, make_patch, parse, split_lines, trim_context
from opencode_magics.errors import NotFoundError, UnknownNameError

CASES = Path(__file__).parents[1] / "data" / "cases"
PATCHES = sorted(p.stem for p in CASES.glob("diff_*.patch"))
ROOT = Session("ses_root01", "root", "/work/p")


def case(name: str) -> Diff:
    """Return the Diff of a patch in the cases."""
    return Diff.of([("msg_1", FileDiff("", (CASES / f"{name}.patch").read_bytes().decode()))])


def full_diff(before: str, after: str, file: str = "a.txt", **fields: Any) -> FileDiff:
    """Return a change as 1.18.33 reports it: the complete file in one hunk."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    lines = [f"-{line}" for line in old] + [f"+{line}" for line in new]
    same = [line for line in old if line in new]
    if len(old) == len(new):
        pairs = zip(old, new, strict=True)
        lines = [t for o, n in pairs for t in ([f" {o}"] if o == n else [f"-{o}", f"+{n}"])]
    head = f"@@ -{int(bool(old))},{len(old)} +{int(bool(new))},{len(new)} @@\n"
    assert same or lines
    return FileDiff(file, f"--- {file}\t\n+++ {file}\t\n{head}{''.join(lines)}", **fields)


def turns(*changes: FileDiff) -> Diff:
    """Return a Diff with one turn per change."""
    return Diff.of((f"msg_{n}", diff) for n, diff in enumerate(changes, 1))


# -- several turns over one file -------------------------------------------------------------------


def test_turns_whose_texts_follow_each_other_are_merged_into_one_change() -> None:
    diff = turns(full_diff("one\ntwo\n", "ONE\ntwo\n"), full_diff("ONE\ntwo\n", "uno\ntwo\n"))
    (file,) = diff.files
    assert (file.counts, len(file.edits), len(file.changes)) == ((1, 1), 2, 1)
    assert file.changes[0].hunks[0].lines == ("-one", "+uno", " two")


def test_a_foreign_change_in_between_prevents_merging_turns() -> None:
    diff = turns(full_diff("one\ntwo\n", "ONE\ntwo\n"), full_diff("ONE\nzwei\n", "uno\nzwei\n"))
    (file,) = diff.files
    assert (file.counts, len(file.changes)) == ((2, 2), 2)
    assert diff.patch.count("diff --git") == 2


def test_parts_of_a_file_are_not_taken_for_the_complete_file() -> None:
    piece = FileDiff("a", "--- a\n+++ a\n@@ -7,2 +7,2 @@\n one\n-two\n+zwei\n")
    after = FileDiff("a", "--- a\n+++ a\n@@ -7,2 +7,2 @@\n one\n-zwei\n+due\n")
    assert len(turns(piece, after).files[0].changes) == 2


def test_a_change_that_was_undone_is_empty() -> None:
    (file,) = turns(full_diff("one\n", "two\n"), full_diff("two\n", "one\n")).files
    assert (file.counts, file.changes[0].hunks) == ((0, 0), ())


def test_a_file_that_was_created_and_edited_is_added() -> None:
    made = full_diff("", "one\n", status="added")
    (file,) = turns(made, full_diff("one\n", "two\n")).files
    assert (file.status, file.counts) == ("added", (1, 0))


def test_a_file_that_was_created_and_deleted_keeps_its_name() -> None:
    made, gone = full_diff("", "one\n", status="added"), full_diff("one\n", "", status="deleted")
    (file,) = turns(made, gone).files
    assert (file.name, file.counts) == ("a.txt", (0, 0))


def test_a_missing_newline_at_the_end_survives_merging_turns() -> None:
    first = FileDiff("a", "--- a\n+++ a\n@@ -1 +1 @@\n-x\n+y\n\\ No newline at end of file\n")
    note = "\\ No newline at end of file"
    second = FileDiff("a", f"--- a\n+++ a\n@@ -1 +1 @@\n-y\n{note}\n+z\n{note}\n")
    assert turns(first, second).files[0].changes[0].hunks[0].lines == ("-x", "+z", note)


def test_turns_with_counted_lines_missing_from_the_patch_are_not_merged() -> None:
    """Latin-1 bytes arrive as U+FFFD, so that two patches can seem to follow each other."""
    first = full_diff("gr\ufffdn\na\n", "gr\ufffdn\nb\n", additions=2, deletions=2)
    second = full_diff("gr\ufffdn\nb\n", "gr\ufffdn\nc\n", additions=1, deletions=1)
    (file,) = turns(first, second).files
    assert (file.counts, len(file.changes)) == ((3, 3), 2)


# -- its parts -------------------------------------------------------------------------------------

TWO = turns(
    full_diff("one\n", "two\n", "src/cart.py"),
    FileDiff("mesh.obj", "", 61_000, 3),
    FileDiff("i.png", "", 0, 0, "added"),
)


def test_totals_leave_out_unknown_counts() -> None:
    """Case G5-08."""
    assert (TWO.additions, TWO.deletions) == (61_001, 4)
    assert Diff().counts == (None, None)
    assert repr(TWO) == "<Diff of 3 files, +61001 -4, from turns>"


def test_one_file_is_found_by_its_name_or_its_end() -> None:
    assert list(TWO["src/cart.py"]) == list(TWO["cart.py"]) == ["src/cart.py"]
    assert "mesh.obj" in TWO
    assert len(TWO["i.png"]) == 1


def test_an_unknown_file_is_an_error_that_names_the_changed_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"No such file.*\n.*'src/cart.py'"):
        TWO["cart"]
    with pytest.raises(UnknownNameError, match="2 files in the diff match"):
        turns(full_diff("a\n", "b\n", "x/a"), full_diff("a\n", "b\n", "y/a"))["a"]


def test_a_renamed_file_is_found_by_both_names() -> None:
    diff = case("diff_rename_only")
    assert diff["old name.py"] == diff["new/name.py"] == diff


def test_names_are_relative_to_the_directory() -> None:
    diff = Diff.of([("", full_diff("a\n", "b\n", "/ws/src/a.py"))], "tools", "/ws")
    assert list(diff) == ["src/a.py"]


def test_the_servers_quoting_of_a_name_is_undone() -> None:
    """1.18.33 quotes the name of a file like `sp "ä.txt`."""
    assert list(turns(FileDiff('"sp \\"ä.txt"', "", 1, 0, "added"))) == ['sp "ä.txt']


def test_a_layout_is_another_diff() -> None:
    assert TWO.side_by_side().layout == "side by side"
    assert TWO.side_by_side().unified() == TWO


# -- patches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PATCHES)
def test_a_formatted_patch_parses_to_the_same_change(name: str) -> None:
    changes = [c for f in case(name).files for c in f.changes if not c.binary]
    again = [c for change in changes for c in parse(format_patch(change))]
    assert again == changes


def test_git_applies_the_patch(tmp_path: Path) -> None:
    text = "".join(f"line {n}\n" for n in range(300))
    (tmp_path / "long.txt").write_text(text)
    (tmp_path / "with space.txt").write_text("one\r\ntwo", newline="")
    (tmp_path / "gone.txt").write_text("bye\n")
    note = "\n\\ No newline at end of file\n"
    diff = turns(
        full_diff(
            text, text.replace("line 7\n", "seven\n").replace("line 150\n", "half\n"), "long.txt"
        ),
        FileDiff("with space.txt", f"--- a\n+++ a\n@@ -1,2 +1,2 @@\n one\r\n-two{note}+2{note}"),
        full_diff("bye\n", "", "gone.txt", status="deleted"),
        full_diff("", "hello\n", 'new "ä".txt', status="added"),
        FileDiff("empty.txt", "--- empty.txt\n+++ empty.txt\n", 0, 0, "added"),
        FileDiff("i.png", "", 0, 0, "added"),
    )
    assert diff.patch.count("@@ -") == 5  # far less than 300 lines
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply"], cwd=tmp_path, check=True, input=diff.patch.encode())
    assert "seven\n" in (tmp_path / "long.txt").read_text()
    assert (tmp_path / "with space.txt").read_bytes() == b"one\r\n2"
    assert not (tmp_path / "gone.txt").exists()
    assert (tmp_path / 'new "ä".txt').read_text() == "hello\n"
    assert (tmp_path / "empty.txt").read_text() == ""
    assert "# i.png: added, no text\n" in diff.patch


LINES = st.text(st.sampled_from("ab-+ \\@\r\n\u2028"), max_size=40)


@given(LINES, LINES)
def test_the_patch_of_any_two_texts_has_their_difference(before: str, after: str) -> None:
    patch = make_patch(split_lines(before), split_lines(after))
    old = [line for h in (parse(patch)[0].hunks if patch else ()) for line in h.lines]
    assert bool(old) == (before != after)
    assert sum(line[0] == "+" for line in old) - sum(line[0] == "-" for line in old) == len(
        split_lines(after)
    ) - len(split_lines(before))


@given(st.lists(st.sampled_from(" -+"), min_size=1, max_size=60))
def test_trimmed_hunks_keep_every_changed_line_and_its_number(signs: list[str]) -> None:
    body = "".join(f"{sign}{n}\n" for n, sign in enumerate(signs))
    old, new = (sum(s in kind for s in signs) for kind in (" -", " +"))
    head = f"@@ -{int(old > 0)},{old} +{int(new > 0)},{new} @@\n"
    (change,) = parse(f"--- a\n+++ a\n{head}{body}")
    changed = [
        [row for h in hunks for row in h.numbered() if row[0] != " "]
        for hunks in (change.hunks, trim_context(change.hunks))
    ]
    assert changed[0] == changed[1]


# -- frames ----------------------------------------------------------------------------------------


def test_a_frame_has_a_row_for_every_file() -> None:
    frame = TWO.to_frame()
    assert frame["file"].tolist() == ["src/cart.py", "mesh.obj", "i.png"]
    assert frame["additions"].tolist() == [1, 61_000, pd.NA]
    assert frame["status"].tolist() == ["modified", "modified", "added"]
    assert frame["message"].tolist() == ["msg_1", "msg_2", "msg_3"]


def test_a_frame_of_lines_has_a_row_for_every_line_with_its_numbers() -> None:
    frame = case("diff_no_newline_at_eof").to_frame(lines=True)
    rows = frame[["kind", "old_line", "new_line", "text"]].astype(object).fillna(0)
    assert list(rows.itertuples(index=False, name=None)) == [
        ("context", 1, 1, "one"),
        ("context", 2, 2, "two"),
        ("removed", 3, 0, "three"),
        ("added", 0, 3, "three"),
        ("added", 0, 4, "four"),
    ]


@pytest.mark.parametrize("lines", [False, True])
def test_columns_and_dtypes_are_the_same_for_any_diff(lines: bool) -> None:
    empty, full = Diff().to_frame(lines), TWO.to_frame(lines)
    assert empty.dtypes.map(str).to_dict() == full.dtypes.map(str).to_dict()
    assert isinstance(full.dtypes["kind" if lines else "status"], pd.CategoricalDtype)


def test_a_frame_has_all_lines_of_a_huge_diff() -> None:
    """Case G5-10."""
    n = 50_000
    body = "".join(f"-{i},old\n" for i in range(n)) + "".join(f"+{i},new\n" for i in range(n))
    diff = turns(FileDiff("big.csv", f"--- a\n+++ b\n@@ -1,{n} +1,{n} @@\n{body}"))
    began = time.perf_counter()
    assert len(diff.to_frame(lines=True)) == 2 * n
    assert time.perf_counter() - began < 5


# -- diffs of a server -----------------------------------------------------------------------------

DIFF, MESSAGES = "GET /session/ses_root01/diff", "GET /session/ses_root01/message"
PATCH = "--- a.py\n+++ a.py\n@@ -1 +1 @@\n-x\n+y\n"
WIRE = {"file": "a.py", "patch": PATCH, "additions": 1, "deletions": 1, "status": "modified"}


def prompt_with(message: str, *diffs: Any) -> dict[str, Any]:
    """Return a stored prompt whose turn changed files."""
    stored = user(message)
    stored["info"]["summary"] = {"diffs": list(diffs)}
    return stored


def tool_answer(message: str, parent: str, **state: Any) -> dict[str, Any]:
    """Return a stored answer with one completed tool call."""
    state = {"status": "completed", "input": {}, **state}
    part = {"id": f"prt_{message}", "type": "tool", "tool": "edit", "callID": "c", "state": state}
    return {**assistant(message, parent), "parts": [part]}


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with CannedTransport(v1_routes(**{DIFF: []})) as fake:
        yield fake


def diffs(fake: CannedTransport, message: str | None = None) -> Diff:
    with Client(fake.url, transport=fake) as client:
        return client.run(client.dialect.diffs(ROOT, message))


def test_an_empty_total_is_merged_from_the_prompts(server: FakeServer) -> None:
    """Case G5-01."""
    server.routes[MESSAGES] = [
        prompt_with("msg_1", WIRE),
        prompt_with("msg_2", {**WIRE, "file": "b.py"}),
    ]
    diff = diffs(server)
    assert (list(diff), diff.source) == (["a.py", "b.py"], "turns")
    assert [e.message for e in diff.edits] == ["msg_1", "msg_2"]


def test_the_edit_tools_are_used_if_prompts_have_no_diffs(server: FakeServer) -> None:
    """Case G5-01."""
    edit = {"filediff": {**WIRE, "file": "/work/p/a.py"}}
    write = {"filepath": "/work/p/new.txt", "exists": False}
    overwrite = {"filepath": "/work/p/old.txt", "exists": True}
    server.routes[MESSAGES] = [
        prompt_with("msg_1"),
        tool_answer("msg_2", "msg_1", metadata=edit),
        tool_answer("msg_3", "msg_1", metadata=write, input={"content": "one\ntwo"}),
        tool_answer("msg_4", "msg_1", metadata=overwrite, input={"content": "x"}),
        tool_answer("msg_5", "msg_1", metadata=edit, status="error"),
    ]
    diff = diffs(server)
    assert (list(diff), diff.source) == (["a.py", "new.txt", "old.txt"], "tools")
    assert [f.counts for f in diff.files] == [(1, 1), (2, 0), (None, None)]
    assert {e.message for e in diff.edits} == {"msg_1"}


def test_edits_of_subagents_are_included(server: FakeServer) -> None:
    """Case G5-01."""
    server.routes[MESSAGES] = [
        prompt_with("msg_1"),
        tool_answer("msg_2", "msg_1", metadata={"sessionId": "ses_child"}),
        tool_answer("msg_3", "msg_1", metadata={"sessionId": "ses_child"}),  # the same one again
        tool_answer("msg_4", "msg_1", metadata={"sessionId": "ses_deleted"}),
    ]
    server.routes["GET /session/ses_deleted/message"] = (404, {}, b"")
    inside = [tool_answer("msg_9", "msg_8", metadata={"filediff": WIRE, "sessionId": "ses_child"})]
    server.routes["GET /session/ses_child/message"] = inside
    diff = diffs(server)
    assert [(e.message, e.change.name) for e in diff.edits] == [("msg_1", "a.py")]


def test_no_edits_are_no_changes(server: FakeServer) -> None:
    """Case G5-01."""
    server.routes[MESSAGES] = [prompt_with("msg_1"), assistant("msg_2", "msg_1", "Hello")]
    assert diffs(server) == Diff((), "turns")


def test_a_mixed_session_says_that_it_is_mixed(server: FakeServer) -> None:
    server.routes[MESSAGES] = [
        prompt_with("msg_1", WIRE),
        user("msg_2"),
        tool_answer("msg_3", "msg_2", metadata={"filediff": {**WIRE, "file": "b.py"}}),
    ]
    assert diffs(server).source == "turns and tools"


def test_the_servers_diff_of_the_session_comes_first(server: FakeServer) -> None:
    server.routes[DIFF] = [WIRE]
    assert (list(diffs(server)), diffs(server).source) == (["a.py"], "session")
    assert not server.asked(MESSAGES)


def test_the_diff_of_a_message_is_requested_with_the_id_of_its_prompt(server: FakeServer) -> None:
    """Case G5-01."""
    server.routes[DIFF] = [WIRE]
    server.routes[f"{MESSAGES}/msg_2"] = assistant("msg_2", "msg_1")
    assert list(diffs(server, "msg_2")) == ["a.py"]
    assert [s.query["messageID"] for s in server.asked(DIFF)] == ["msg_1"]


def test_an_unknown_message_is_an_error(server: FakeServer) -> None:
    body = b'{"name":"NotFoundError","data":{"message":"Message not found: msg_x"}}'
    server.routes[f"{MESSAGES}/msg_x"] = (404, {"content-type": "application/json"}, body)
    with pytest.raises(NotFoundError, match="msg_x"):
        diffs(server, "msg_x")


def test_reverted_turns_are_left_out(server: FakeServer) -> None:
    server.routes[MESSAGES] = [
        prompt_with("msg_1", WIRE),
        prompt_with("msg_2", {**WIRE, "file": "b.py"}),
    ]
    server.routes["GET /session/ses_root01"] = {**SESSION, "revert": {"messageID": "msg_2"}}
    assert list(diffs(server)) == ["a.py"]


@pytest.mark.parametrize("answer", [True, {"name": "x"}, (200, {"content-type": "text/html"}, b"")])
def test_a_reply_that_is_not_a_list_is_no_diff_data(server: FakeServer, answer: object) -> None:
    """Case G5-03."""
    server.routes[DIFF] = answer
    assert diffs(server) == Diff((), "nothing")


def test_entries_of_every_shape_are_read(server: FakeServer) -> None:
    """Case G5-03."""
    wire = json.loads((CASES / "diff_response_shapes.json").read_text())
    server.routes[DIFF] = wire["v1_GET /session/{id}/diff"]
    diff = diffs(server)
    assert len(diff) == wire["expected"]["entries"]
    assert diff.counts == (wire["expected"]["additions"], wire["expected"]["deletions"])
    assert diff["a.py"].files[0].changes[0].hunks[0].lines == ("-x", "+y")


def test_a_frozen_before_and_after_without_newlines_is_compared(server: FakeServer) -> None:
    server.routes[DIFF] = [{"file": "a", "before": "", "after": "x"}]
    lines = diffs(server).files[0].changes[0].hunks[0].lines
    assert lines == ("+x", "\\ No newline at end of file")
