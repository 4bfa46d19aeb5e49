"""Unified diffs: read by their own rules, whatever stands in their lines."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencode_magics.model import FileDiff
from opencode_magics.notebook import html, text
from opencode_magics.notebook.diff import Change, changes, lines, notes, parse, visible

CASES = Path(__file__).parent / "cases"
PATCHES = sorted(p.stem for p in CASES.glob("diff_*.patch"))


def patch(name: str) -> str:
    return (CASES / f"diff_{name}.patch").read_bytes().decode()


def only(name: str) -> Change:
    (change,) = parse(patch(name))
    return change


def shown(change: Change) -> list[str]:
    return [line for _, line in lines(change)]


@pytest.mark.parametrize("name", PATCHES)
def test_counts_are_those_of_git(name: str) -> None:
    numstat = (CASES / f"{name}.numstat.txt").read_text().splitlines()
    counted = [tuple(line.split("\t")[:2]) for line in numstat]
    found = parse((CASES / f"{name}.patch").read_bytes().decode())
    assert [tuple("-" if n is None else str(n) for n in c.counts) for c in found] == counted


def test_g5_02_a_removed_comment_is_no_file_header() -> None:
    change = only("comment_lines")
    assert (change.name, change.counts) == ("q.sql", (2, 3))
    assert {"--- keep until audit", "----", "+++ plus line"} <= set(shown(change))


def test_g5_05_no_newline_at_the_end_is_a_note_of_the_old_side() -> None:
    change = only("no_newline_at_eof")
    assert change.counts == (2, 1)
    assert sum(line[0] in " +" for line in shown(change) if not line.startswith("@")) == 4
    at = shown(change).index("\\ No newline at end of file")
    assert shown(change)[at - 1] == "-three"


def test_g5_06_lines_end_at_newlines_only_and_separators_are_seen() -> None:
    change = only("unicode_separators")
    assert (change.name, change.counts) == ("u.py", (2, 2))
    assert '+s = "a⟨U+2028⟩diff --git a/x b/x"' in shown(change)
    assert '+t = "␌page"' in shown(change)


def test_g5_07_a_rename_is_a_change() -> None:
    change = only("rename_only")
    assert (change.name, change.counts) == ("old name.py → new/name.py", (0, 0))
    assert notes(change) == ("renamed",)


def test_g5_08_binary_files_have_no_counts() -> None:
    image, new = parse(patch("binary"))
    assert (image.name, notes(image), image.counts) == ("i.png", ("binary",), (None, None))
    assert (new.name, notes(new), new.counts) == ("n.bin", ("added", "binary"), (None, None))


def test_g5_09_quoted_names_are_bytes_of_utf_8() -> None:
    change = only("quoted_path")
    assert (change.name, change.counts) == ('Pläne/Q3 \u2013 "\u03b1".md', (1, 0))


def test_g5_09_bytes_that_are_no_utf_8_keep_their_escapes() -> None:
    (change,) = parse(
        'diff --git "a/x\\377\\303\\244" "b/x\\377\\303\\244"\nnew file mode 100644\n'
    )
    assert change.name == "x\\377ä"


def test_g5_10_a_huge_diff_is_cut_and_quick() -> None:
    n = 200_000
    head = f"diff --git a/big.csv b/big.csv\n--- a/big.csv\n+++ b/big.csv\n@@ -1,{n} +1,{n} @@\n"
    body = "".join(f"-{i},old\n" for i in range(n)) + "".join(f"+{i},new\n" for i in range(n))
    began = time.perf_counter()
    drawn = html.file_diff(FileDiff("big.csv", head + body))
    assert time.perf_counter() - began < 5
    assert len(drawn) < 1_000_000
    assert "… 399,600 more lines" in drawn
    assert "+200000" in drawn


def test_g5_10_one_long_line_is_cut_too() -> None:
    drawn = html.file_diff(
        FileDiff("a.js", "--- a.js\n+++ a.js\n@@ -0,0 +1 @@\n+" + "x" * 2_000_000)
    )
    assert len(drawn) < 10_000
    assert "1,999,601 more characters" in drawn


def test_g5_10_counts_without_a_patch_are_too_large_to_show() -> None:
    (change,) = changes(FileDiff("mesh.obj", "", 61_000, 3, "modified"))
    assert (change.counts, notes(change)) == ((61_000, 3), ("too large to show",))


def test_g5_13_empty_and_deleted_files_are_shown_and_dev_null_is_no_name() -> None:
    gone, empty = parse(patch("added_empty_and_deleted"))
    assert (gone.name, notes(gone), gone.counts) == ("gone.txt", ("deleted",), (0, 1))
    assert "-bye" in shown(gone)
    assert (empty.name, notes(empty)) == ("pkg/__init__.py", ("added", "empty"))


def test_g5_15_a_change_of_line_ends_alone_is_told_and_not_shown() -> None:
    change = only("crlf_only")
    assert change.counts == (3, 3)
    assert notes(change) == ("line endings changed CRLF → LF, no text change",)
    assert shown(change) == []
    assert "\r" not in html.file_diff(FileDiff("w.txt", patch("crlf_only")))


def test_g5_15_a_file_that_has_crlf_throughout_shows_no_marks() -> None:
    (change,) = parse("--- a\n+++ a\n@@ -1,2 +1,2 @@\n same\r\n-old\r\n+new\r\n")
    assert shown(change) == ["@@ -1,2 +1,2 @@", " same", "-old", "+new"]


def test_g5_15_a_line_that_changed_its_end_and_its_text_shows_the_mark() -> None:
    (change,) = parse("--- a\n+++ a\n@@ -1,2 +1,2 @@\n same\n-old\r\n+new\n")
    assert shown(change)[2:] == ["-old␍", "+new"]


def test_g5_03_entries_without_a_patch_say_what_is_missing() -> None:
    wire = json.loads((CASES / "diff_response_shapes.json").read_text())
    rows = [
        text.file_diff(FileDiff(w.get("file", ""), w.get("patch", ""), *counts, w.get("status")))
        for w in wire["v1_GET /session/{id}/diff"]
        for counts in [(w["additions"], w["deletions"])]
    ]
    assert [row.split("\n")[0] for row in rows[1:]] == [
        "b.py +1 -0",
        "(unnamed file) +4 -2, no text",
        "mesh.obj +61000 -3, too large to show",
        "i.png added, no text",
    ]


# -- the shorter kind that OpenCode writes ---------------------------------------------------------

INDEX = (
    "Index: /ws/a.txt\n" + "=" * 67 + "\n--- /ws/a.txt\t\n+++ /ws/a.txt\t\n@@ -1,2 +1,2 @@\n"
    "-hello one\n+goodbye one\n line two\n"
)


def test_an_index_header_is_read() -> None:
    (change,) = parse(INDEX)
    assert (change.name, change.counts) == ("/ws/a.txt", (1, 1))


def test_two_files_in_one_patch_are_two() -> None:
    assert [c.name for c in parse(INDEX + INDEX.replace("a.txt", "b.txt"))] == [
        "/ws/a.txt",
        "/ws/b.txt",
    ]


def test_the_servers_own_name_counts_and_status_come_first() -> None:
    (change,) = changes(FileDiff("a.txt", INDEX, 10, 20, "added"))
    assert (change.name, change.counts, change.status) == ("a.txt", (10, 20), "added")


def test_a_patch_of_hunks_alone_is_shown_under_the_given_name() -> None:
    (change,) = changes(FileDiff("a.txt", "--- \n+++ \n@@ -1 +1 @@\n-x\n+y\n"))
    assert (change.name, change.counts) == ("a.txt", (1, 1))


def test_a_hunk_that_was_cut_off_is_shown_as_far_as_it_goes() -> None:
    (change,) = parse("--- a\n+++ a\n@@ -1,9 +1,9 @@\n one\n-two")
    assert shown(change) == ["@@ -1,9 +1,9 @@", " one", "-two"]


def test_an_empty_context_line_without_its_space_is_one() -> None:
    (change,) = parse("--- a\n+++ a\n@@ -1,3 +1,3 @@\n one\n\n-two\n+three\n")
    assert shown(change)[1:] == [" one", " ", "-two", "+three"]


def test_a_changed_mode_is_told() -> None:
    (change,) = parse("diff --git a/run b/run\nold mode 100644\nnew mode 100755\n")
    assert notes(change) == ("mode 100644 → 100755",)


def test_directions_and_controls_are_visible_marks() -> None:
    """Text that looks other than it is (CVE-2021-42574) is not hidden in a diff."""
    assert visible("a\u202eb\x1b[0m\x7f\u200f\tc") == "a⟨U+202E⟩b␛[0m␡⟨U+200F⟩\tc"


@given(st.text(st.sampled_from('-+ @\\/,1ab"\n\r\t'), max_size=60))
def test_rubbish_is_no_error(rubbish: str) -> None:
    for start in ("", "--- a\n+++ a\n", "diff --git "):
        text.file_diff(FileDiff("a", start + rubbish))
        html.file_diff(FileDiff("a", f"{start}@@ -1,2 +1 @@\n{rubbish}"))
