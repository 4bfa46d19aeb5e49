"""Unified diffs: parsed correctly whatever their lines contain, and shown as rows."""

from __future__ import annotations

import json
import re
import time
from html import escape
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencode_magics.core.diffs import Diff
from opencode_magics.core.model import FileDiff
from opencode_magics.core.patches import FileChange, changes_in, parse
from opencode_magics.notebook import diff_rows, html, text
from opencode_magics.notebook.diff_rows import (
    DiffRow,
    notes,
    rows,
    side_by_side,
    visible_line,
    with_emphasis,
)

CASES = Path(__file__).parents[1] / "data" / "cases"
PATCHES = sorted(p.stem for p in CASES.glob("diff_*.patch"))


def patch(name: str) -> str:
    return (CASES / f"diff_{name}.patch").read_bytes().decode()


def only(name: str) -> FileChange:
    (change,) = parse(patch(name))
    return change


def shown(change: FileChange) -> list[str]:
    return [row.text for row in rows(change)]


@pytest.mark.parametrize("name", PATCHES)
def test_counts_equal_those_of_git(name: str) -> None:
    numstat = (CASES / f"{name}.numstat.txt").read_text().splitlines()
    counts = [tuple(line.split("\t")[:2]) for line in numstat]
    changes = parse((CASES / f"{name}.patch").read_bytes().decode())
    assert [tuple("-" if n is None else str(n) for n in c.counts) for c in changes] == counts


def test_a_removed_comment_is_not_a_file_header() -> None:
    """Case G5-02."""
    change = only("comment_lines")
    assert (change.name, change.counts) == ("q.sql", (2, 3))
    assert {"--- keep until audit", "----", "+++ plus line"} <= set(shown(change))


def test_no_newline_at_the_end_is_a_note_on_the_old_side() -> None:
    """Case G5-05."""
    change = only("no_newline_at_eof")
    assert change.counts == (2, 1)
    assert sum(line[0] in " +" for line in shown(change) if not line.startswith("@")) == 4
    at = shown(change).index("\\ No newline at end of file")
    assert shown(change)[at - 1] == "-three"


def test_lines_end_at_newlines_only_and_separators_are_visible() -> None:
    """Case G5-06."""
    change = only("unicode_separators")
    assert (change.name, change.counts) == ("u.py", (2, 2))
    assert '+s = "a⟨U+2028⟩diff --git a/x b/x"' in shown(change)
    assert '+t = "␌page"' in shown(change)


def test_a_rename_is_a_change() -> None:
    """Case G5-07."""
    change = only("rename_only")
    assert (change.name, change.counts) == ("old name.py → new/name.py", (0, 0))
    assert notes(change) == ("renamed",)


def test_binary_files_have_no_counts() -> None:
    """Case G5-08."""
    image, new = parse(patch("binary"))
    assert (image.name, notes(image), image.counts) == ("i.png", ("binary",), (None, None))
    assert (new.name, notes(new), new.counts) == ("n.bin", ("added", "binary"), (None, None))


def test_quoted_names_are_decoded_as_utf_8() -> None:
    """Case G5-09."""
    change = only("quoted_path")
    assert (change.name, change.counts) == ('Pläne/Q3 \u2013 "\u03b1".md', (1, 0))


def test_invalid_utf_8_bytes_keep_their_escapes() -> None:
    """Case G5-09."""
    (change,) = parse(
        'diff --git "a/x\\377\\303\\244" "b/x\\377\\303\\244"\nnew file mode 100644\n'
    )
    assert change.name == "x\\377ä"


def test_a_huge_diff_is_cut_quickly() -> None:
    """Case G5-10."""
    n = 200_000
    head = f"diff --git a/big.csv b/big.csv\n--- a/big.csv\n+++ b/big.csv\n@@ -1,{n} +1,{n} @@\n"
    body = "".join(f"-{i},old\n" for i in range(n)) + "".join(f"+{i},new\n" for i in range(n))
    start = time.thread_time()
    drawn = html.file_diff(FileDiff("big.csv", head + body))
    assert time.thread_time() - start < 5
    assert len(drawn) < 1_000_000
    assert "… 399,600 more lines" in drawn
    assert "+200000" in drawn


def test_one_long_line_is_cut_too() -> None:
    """Case G5-10."""
    drawn = html.file_diff(
        FileDiff("a.js", "--- a.js\n+++ a.js\n@@ -0,0 +1 @@\n+" + "x" * 2_000_000)
    )
    assert len(drawn) < 10_000
    assert "1,999,601 more characters" in drawn


def test_counts_without_a_patch_are_too_large_to_show() -> None:
    """Case G5-10."""
    (change,) = changes_in(FileDiff("mesh.obj", "", 61_000, 3, "modified"))
    assert (change.counts, notes(change)) == ((61_000, 3), ("too large to show",))


def test_empty_and_deleted_files_are_shown_without_dev_null() -> None:
    """Case G5-13."""
    gone, empty = parse(patch("added_empty_and_deleted"))
    assert (gone.name, notes(gone), gone.counts) == ("gone.txt", ("deleted",), (0, 1))
    assert "-bye" in shown(gone)
    assert (empty.name, notes(empty)) == ("pkg/__init__.py", ("added", "empty"))


def test_changed_line_endings_alone_are_a_note_without_lines() -> None:
    """Case G5-15."""
    change = only("crlf_only")
    assert change.counts == (3, 3)
    assert notes(change) == ("line endings changed CRLF → LF, no text change",)
    assert shown(change) == []
    assert "\r" not in html.file_diff(FileDiff("w.txt", patch("crlf_only")))


def test_a_file_with_crlf_throughout_shows_no_marks() -> None:
    """Case G5-15."""
    (change,) = parse("--- a\n+++ a\n@@ -1,2 +1,2 @@\n same\r\n-old\r\n+new\r\n")
    assert shown(change) == ["@@ -1,2 +1,2 @@", " same", "-old", "+new"]


def test_a_line_with_changed_ending_and_text_shows_the_mark() -> None:
    """Case G5-15."""
    (change,) = parse("--- a\n+++ a\n@@ -1,2 +1,2 @@\n same\n-old\r\n+new\n")
    assert shown(change)[2:] == ["-old␍", "+new"]


def test_entries_without_a_patch_have_a_note() -> None:
    """Case G5-03."""
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


# -- OpenCode's shorter headers --------------------------------------------------------------------

INDEX = (
    "Index: /ws/a.txt\n" + "=" * 67 + "\n--- /ws/a.txt\t\n+++ /ws/a.txt\t\n@@ -1,2 +1,2 @@\n"
    "-hello one\n+goodbye one\n line two\n"
)


def test_an_index_header_is_read() -> None:
    (change,) = parse(INDEX)
    assert (change.name, change.counts) == ("/ws/a.txt", (1, 1))


def test_a_patch_with_two_files_has_two_changes() -> None:
    assert [c.name for c in parse(INDEX + INDEX.replace("a.txt", "b.txt"))] == [
        "/ws/a.txt",
        "/ws/b.txt",
    ]


def test_the_servers_name_counts_and_status_take_precedence() -> None:
    (change,) = changes_in(FileDiff("a.txt", INDEX, 10, 20, "added"))
    assert (change.name, change.counts, change.status) == ("a.txt", (10, 20), "added")


def test_a_patch_without_file_names_gets_the_servers_name() -> None:
    (change,) = changes_in(FileDiff("a.txt", "--- \n+++ \n@@ -1 +1 @@\n-x\n+y\n"))
    assert (change.name, change.counts) == ("a.txt", (1, 1))


def test_a_truncated_hunk_is_shown_up_to_its_end() -> None:
    (change,) = parse("--- a\n+++ a\n@@ -1,9 +1,9 @@\n one\n-two")
    assert shown(change) == ["@@ -1,9 +1,9 @@", " one", "-two"]


def test_an_empty_line_without_its_space_is_a_context_line() -> None:
    (change,) = parse("--- a\n+++ a\n@@ -1,3 +1,3 @@\n one\n\n-two\n+three\n")
    assert shown(change)[1:] == [" one", " ", "-two", "+three"]


def test_a_changed_mode_is_noted() -> None:
    (change,) = parse("diff --git a/run b/run\nold mode 100644\nnew mode 100755\n")
    assert notes(change) == ("mode 100644 → 100755",)


def test_direction_and_control_characters_are_visible_marks() -> None:
    """Characters that change how text looks (CVE-2021-42574) are not hidden in a diff."""
    assert visible_line("a\u202eb\x1b[0m\x7f\u200f\tc") == "a⟨U+202E⟩b␛[0m␡⟨U+200F⟩\tc"


@given(st.text(st.sampled_from('-+ @\\/,1ab"\n\r\t'), max_size=60))
def test_random_input_is_not_an_error(random_text: str) -> None:
    for start in ("", "--- a\n+++ a\n", "diff --git "):
        text.file_diff(FileDiff("a", start + random_text))
        html.file_diff(FileDiff("a", f"{start}@@ -1,2 +1 @@\n{random_text}"))


# -- emphasis in a line ----------------------------------------------------------------------------


def marked(old: str, new: str) -> tuple[list[str], list[str]]:
    """Return the marked spans of a line and of its replacement."""
    (change,) = parse(f"--- a\n+++ a\n@@ -1 +1 @@\n-{old}\n+{new}\n")
    before, after = ([r.text[b:e] for b, e in r.marks] for r in with_emphasis(rows(change))[1:])
    return before, after


@pytest.mark.parametrize(
    ("old", "new", "before", "after"),
    [
        ("total = a + b", "total = a - b", ["+"], ["-"]),
        ("return name", "return name.title()", [], [".title()"]),
        ("say(one two three)", "say(four five three)", ["one two"], ["four five"]),
        ("x = 1 # admin", "x = 1 \u202e# admin", [], ["⟨U+202E⟩"]),
        ("größe = count(1)", "größen = count(1)", ["größe"], ["größen"]),
        ("all of this", "something quite else", [], []),
        ("", "x", [], []),
    ],
)
def test_differing_words_are_marked(
    old: str, new: str, before: list[str], after: list[str]
) -> None:
    assert marked(old, new) == (before, after)


def test_a_long_line_gets_no_marks() -> None:
    assert marked("x" * 500, "x" * 499 + "y") == ([], [])
    assert marked("a b " * 90, "a c " * 90) == ([], [])


def test_many_changed_lines_are_quick_to_mark() -> None:
    n = 400
    body = "".join(f"-{i} of many words in a line of code\n" for i in range(n))
    body += "".join(f"+{i} of some words in a line of prose\n" for i in range(n))
    (change,) = parse(f"--- a\n+++ a\n@@ -1,{n} +1,{n} @@\n{body}")
    start = time.thread_time()
    assert all(row.marks for row in with_emphasis(rows(change, 2 * n))[1:])
    assert time.thread_time() - start < 2


def sides_of(body: str, old: int, new: int) -> list[tuple[str | None, str | None]]:
    (change,) = parse(f"--- a\n+++ a\n@@ -1,{old} +1,{new} @@\n{body}")
    return [(o and o.text, n and n.text) for o, n in side_by_side(list(rows(change))[1:])]


def test_side_by_side_a_line_is_beside_its_replacement() -> None:
    assert sides_of(" a\n-say(one)\n+import x\n+say(two)\n b\n", 3, 4) == [
        (" a", " a"),
        (None, "+import x"),
        ("-say(one)", "+say(two)"),
        (" b", " b"),
    ]


def test_side_by_side_a_note_stays_on_its_side() -> None:
    note = "\\ No newline at end of file"
    assert sides_of(f"-one 1\n{note}\n+one 2\n", 1, 1) == [("-one 1", "+one 2"), (note, None)]


@given(st.lists(st.sampled_from([" a b", "-a b", "+a c", "-x", "+y z", "\\ note"]), max_size=30))
def test_side_by_side_all_rows_stay_in_order(lines: list[str]) -> None:
    unpaired = [DiffRow(line[0], line) for line in lines]
    pairs = list(side_by_side(unpaired))
    left = [o for o, n in pairs if o is not None]
    right = [n for o, n in pairs if n is not None]
    assert [r for r in left if r.kind == "-"] == [r for r in unpaired if r.kind == "-"]
    assert [r for r in right if r.kind == "+"] == [r for r in unpaired if r.kind == "+"]
    assert {r.text for r in with_emphasis(unpaired)} == set(lines)


def test_marks_are_visible_without_styles_and_text_is_escaped() -> None:
    drawn = html.file_diff(FileDiff("a", "--- a\n+++ a\n@@ -1 +1 @@\n-f(x, <b>)\n+f(x, <i>)\n"))
    bare = re.sub(r' style="[^"]*"', "", drawn)
    assert "-f(x, &lt;<del>b</del>&gt;)" in bare
    assert "+f(x, &lt;<ins>i</ins>&gt;)" in bare


# -- a Diff of several files -----------------------------------------------------------------------


def diff_of(*diffs: FileDiff) -> Diff:
    return Diff.of((f"msg_{n}", d) for n, d in enumerate(diffs))


def test_a_diff_reads_file_by_file_with_line_numbers() -> None:
    diff = diff_of(
        FileDiff("a.txt", INDEX), FileDiff("mesh.obj", "", 61_000, 3), FileDiff("i.png", "", 0, 0)
    )
    assert text.whole_diff(diff) == (
        "3 files changed +61001 -4 (3 turns combined, from the server)\n\n"
        "a.txt +1 -1\n@@ -1,2 +1,2 @@\n1   -hello one\n  1 +goodbye one\n2 2  line two\n\n"
        "mesh.obj +61000 -3, too large to show\n\n"
        "i.png no text"
    )


def test_its_html_has_the_same_content_in_both_layouts() -> None:
    diff = diff_of(FileDiff("a.txt", INDEX), FileDiff("<b>.txt", INDEX))
    for shown in (diff, diff.side_by_side()):
        bare = re.sub(r"<[^>]+>", "", re.sub(r"<td[^>]*>", " ", html.whole_diff(shown)))
        assert "2 files changed +2 -2" in bare
        assert "-hello one" in bare
        assert "+goodbye one" in bare
        assert "&lt;b&gt;.txt" in bare
    assert "<table" in html.whole_diff(diff.side_by_side())


@pytest.mark.parametrize("name", PATCHES)
def test_every_case_is_safe_html_in_both_layouts(name: str) -> None:
    diff = diff_of(FileDiff("", (CASES / f"{name}.patch").read_bytes().decode()))
    for drawn in (html.whole_diff(diff), html.whole_diff(diff.side_by_side())):
        assert "var(" not in drawn
        assert not re.search(r"[\x00-\x08\x0b-\x1f\u2028]", drawn)
        assert all(escape(visible_line(f.name)) in drawn for f in diff.files)


def test_a_note_on_the_last_line_stays_a_note() -> None:
    diff = diff_of(FileDiff("", patch("no_newline_at_eof")))
    assert text.whole_diff(diff).split("\n")[-4:] == [
        "3   -three",
        "    \\ No newline at end of file",
        "  3 +three",
        "  4 +four",
    ]


def test_several_changes_of_a_file_are_listed_and_counted() -> None:
    first = FileDiff("a", "--- a\n+++ a\n@@ -1 +1 @@\n-x\n+y\n", 1, 1)
    second = FileDiff("a", "--- a\n+++ a\n@@ -9 +9 @@\n-p\n+q\n", 1, 1)
    shown = text.whole_diff(diff_of(first, second))
    assert "a +2 -2, 2 successive changes\n1 of 2 · +1 -1\n@@ -1 +1 @@" in shown
    assert "2 of 2 · +1 -1\n@@ -9 +9 @@" in shown


def test_combined_changes_show_their_number() -> None:
    first = FileDiff("a", "--- a\n+++ a\n@@ -1 +1 @@\n-x\n+y\n")
    back = FileDiff("a", "--- a\n+++ a\n@@ -1 +1 @@\n-y\n+x\n")
    on = FileDiff("a", "--- a\n+++ a\n@@ -1 +1 @@\n-y\n+z\n")
    assert "a +1 -1, 2 changes combined" in text.whole_diff(diff_of(first, on))
    assert "a +0 -0, 2 changes undone" in text.whole_diff(diff_of(first, back))


def test_lines_missing_from_a_patch_are_noted() -> None:
    """1.18.33 counts changed Latin-1 bytes, but its patch can't show them."""
    diff = FileDiff("l.txt", "--- a\n+++ a\n@@ -1,2 +1,2 @@\n gr\ufffdn\n-a\n+b\n", 2, 2)
    assert "l.txt +2 -2, patch has +1 -1" in text.whole_diff(diff_of(diff))


def test_a_change_in_the_middle_of_a_whole_file_is_shown_without_the_rest() -> None:
    body = "".join(f" line {n}\n" if n != 700 else "-old\n+new\n" for n in range(1_000))
    diff = FileDiff("a", f"--- a\n+++ a\n@@ -1,1000 +1,1000 @@\n{body}")
    assert text.file_diff(diff).split("\n")[1:3] == ["@@ -698,7 +698,7 @@", " line 697"]
    assert "701     -old" in text.whole_diff(diff_of(diff))


@pytest.mark.parametrize("layout", ["unified", "side by side"])
def test_a_20_mb_diff_is_shown_quickly(layout: str) -> None:
    """Case G5-10."""
    n, pad = 200_000, "x" * 40
    head = f"--- a/big.csv\n+++ b/big.csv\n@@ -1,{n} +1,{n} @@\n"
    body = "".join(f"-{i},old{pad}\n+{i},new{pad}\n" for i in range(n))
    assert len(body) > 20_000_000
    start = time.thread_time()
    diff = diff_of(FileDiff("big.csv", head + body))
    diff = diff.side_by_side() if layout != "unified" else diff
    drawn, plain = html.whole_diff(diff), text.whole_diff(diff)
    assert time.thread_time() - start < 2
    assert len(drawn) < 1_000_000
    for shown in (drawn, plain):
        assert "… 398,800 more lines" in shown
        assert "Full diff: diff.to_frame(lines=True), diff.patch" in shown


def test_many_files_are_limited_and_counted() -> None:
    """Case G5-10."""
    body = "".join(f"+line {n}\n" for n in range(100))
    new = f"--- /dev/null\n+++ b/f\n@@ -0,0 +1,100 @@\n{body}"
    diff = diff_of(*(FileDiff(f"f{n}.txt", new, 100, 0, "added") for n in range(2_000)))
    drawn = html.whole_diff(diff)
    assert len(drawn) < 1_000_000
    assert "<details open" not in drawn  # long files are folded
    assert "2,000 files changed" in drawn
    assert "1,900 more files" in drawn
    assert "+line 99" in html.whole_diff(diff["f1999.txt"])


def test_names_and_lines_of_a_diff_hide_no_characters() -> None:
    """Cases G5-06 and G5-09."""
    diff = diff_of(
        FileDiff("a\u202etxt.exe", "--- a\n+++ a\n@@ -1 +1 @@\n-a\u061c\u200b\n+\x1b[0m\n")
    )
    for shown in (html.whole_diff(diff), text.whole_diff(diff)):
        assert "a⟨U+202E⟩txt.exe" in shown
        assert "-a⟨U+061C⟩⟨U+200B⟩" in shown
        assert "+␛[0m" in shown


def test_an_empty_diff_says_whether_the_server_listed_changes() -> None:
    assert text.whole_diff(Diff()) == "The server lists no changes"
    assert text.whole_diff(Diff(source="nothing")) == "No diff data"
    assert "The server lists no changes" in html.whole_diff(Diff())


@given(st.text(st.sampled_from('-+ @\\/,1ab"\n\r\t'), max_size=60))
def test_random_input_in_a_diff_is_not_an_error(random_text: str) -> None:
    for start in ("", "--- a\n+++ a\n@@ -1,2 +1 @@\n", "diff --git "):
        diff = diff_of(FileDiff("a", start + random_text), FileDiff("a", start + random_text))
        text.whole_diff(diff)
        html.whole_diff(diff.side_by_side())
        assert isinstance(diff.patch, str)


@pytest.mark.parametrize(
    ("patch", "note"),
    [
        (
            "-caf\ufffd\n-x\n+caf\ufffd\n+y\n",
            "replacement characters in 1 line (the bytes there were not UTF-8)",
        ),
        ("-a\n+b\ufffd\n+c\ufffd\n", "replacement characters in 2 lines"),
    ],
)
def test_an_edit_that_lost_bytes_says_so(patch: str, note: str) -> None:
    """Case F4: a Latin-1 file, edited or written as UTF-8."""
    edit = FileDiff("a.txt", f"--- a.txt\n+++ a.txt\n@@ -1,2 +1,2 @@\n{patch}")
    (change,) = changes_in(edit)
    assert note in diff_rows.notes(change)
    fine = FileDiff("a.txt", "--- a.txt\n+++ a.txt\n@@ -1 +1 @@\n-caf\ufffd\n+cafe\n")
    assert not any("replacement" in n for n in diff_rows.notes(changes_in(fine)[0]))
