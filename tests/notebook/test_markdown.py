"""Markdown as safe HTML: complete, growing, and split into pieces."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from opencode_magics.notebook.markdown import IncrementalMarkdown, cut, render

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "<svg onload=alert(1)>",
    "a <b onclick=alert(1)>b</b>",
    "<style>body{display:none}</style>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](data:text/html,<script>alert(1)</script>)",
    "<javascript:alert(1)>",
    "![x](http://tracker.invalid/pixel.png)",
    "![x](javascript:alert(1))",
    '[x](http://a "<td align=left> onmouseover=alert(1) x")',
    "[x](<http://a/<table>>)",
    "[x](http://a/<td)",
    '```"><script>alert(1)</script>\ncode\n```',
    "| <img src=x onerror=alert(1)> | b |\n|---|---|\n| <script>x</script> | d |",
    "[x]: javascript:alert(1)\n\n[x]",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "`<script>`",
    "<!-- <script> -->",
    "<form action=http://x><input type=submit>",
]
TAG = re.compile(r"<(/?)([a-z0-9]+)((?: [a-z]+=\"[^\"<>]*\")*)>")


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_markdown_is_shown_as_text(text: str) -> None:
    """Case G4-04."""
    html = render(text)
    rest = TAG.sub("", html)
    assert "<" not in rest, "something other than plain tags is left"
    for _, name, attributes in TAG.findall(html):
        assert name not in ("script", "img", "svg", "style", "form", "input", "iframe")
        assert not re.search(r" (?!href|style|start|rel)[a-z]+=", attributes)
        assert not re.search(r'href="(?!https?:|mailto:|[^:"]*")', attributes)


@pytest.mark.parametrize("text", HOSTILE[:5])
def test_raw_html_is_shown_as_it_was_written(text: str) -> None:
    assert text.split(" ")[0].split(">")[0].replace("<", "&lt;") in render(text)


def test_an_image_becomes_a_link() -> None:
    """Its URL is not fetched without a click, since the request alone would leak information."""
    html = render("![cat](http://example.com/cat.png)")
    assert 'href="http://example.com/cat.png"' in html
    assert "<img" not in html


@pytest.mark.parametrize("text", ["/etc/hostname", "http://example.invalid/x"])
def test_a_path_or_url_is_shown_unchanged(text: str) -> None:
    """Case G4-05."""
    assert render(text) == f"<p>{text}</p>\n"


def test_dollar_signs_are_unchanged() -> None:
    """Case G3-20."""
    html = render("costs $5, later $6\n\n```sh\necho $HOME $PATH\n```\n")
    assert "costs $5, later $6" in html
    assert "echo $HOME $PATH\n</code>" in html


def test_markdown_elements_are_rendered() -> None:
    html = render(
        "# A\n\n- b\n\n3. c\n\n| n |\n|--:|\n| 1 |\n\n~~d~~ **e** [f](https://g.h)\n\n> i"
    )
    for part in (">A</h1>", "<li>b</li>", '<ol start="3">', '<td style="text-align:right">1</td>'):
        assert part in html
    for part in ("<s>d</s>", "<strong>e</strong>", 'href="https://g.h"', "<blockquote"):
        assert part in html


def test_a_lone_surrogate_is_not_an_error() -> None:
    assert "\ufffd" in render("bad \ud83d half")


# -- growing ---------------------------------------------------------------------------------------

_TABLE = ["| a | b |", "|---|---|", "| 1 | 2 |"]
_OTHER = (
    "/text **b** `c`/- item/  - nested/1. one/    code/```/~~~ py/> q/# H/---/===/lazy/* x/[l](x)/"
)
LINES = st.sampled_from([*_TABLE, *_OTHER.split("/")])
TEXT = st.lists(LINES, max_size=14).map("\n".join)


@settings(max_examples=300)
@given(TEXT, st.lists(st.integers(0, 120), max_size=6))
@example("- item\n1. one\n\n1. one", [16])  # its last line is still "1", a paragraph
def test_a_growing_text_renders_like_the_complete_one(text: str, stops: list[int]) -> None:
    growing = IncrementalMarkdown()
    for stop in sorted(stops):
        assert growing.render(text[:stop]) == render(text[:stop])
    assert growing.render(text, closed=True) == render(text)


def test_a_replaced_text_is_rendered_anew() -> None:
    growing = IncrementalMarkdown()
    growing.render("one\n\ntwo\n\nthree")
    assert growing.render("other") == render("other")


def test_links_defined_below_work_once_the_text_is_closed() -> None:
    text = "[a][1]\n\nmore\n\n[1]: https://example.com"
    growing = IncrementalMarkdown()
    growing.render(text[:12])
    assert 'href="https://example.com"' in growing.render(text, closed=True)


# -- splitting -------------------------------------------------------------------------------------


def pieces(text: str, room: int) -> list[str]:
    """Split a text like the outputs of a cell."""
    parts, carry = [], ""
    while len(carry + text) > room:
        at, close, next_carry = cut(carry + text, room)
        at = max(at - len(carry), 1)
        parts.append(carry + text[:at] + close)
        text, carry = text[at:], next_carry
    return [*parts, carry + text]


def test_a_text_is_split_between_blocks() -> None:
    text = "\n\n".join(["word " * 30] * 9)
    assert all(p.startswith("word") and len(p) <= 400 for p in pieces(text, 400))
    assert "".join(pieces(text, 400)) == text


def test_a_fence_is_reopened_after_the_split() -> None:
    code = "".join(f"line {n}\n" for n in range(200))
    parts = pieces(f"Look:\n\n```python\n{code}```\n\nDone.\n", 500)
    assert len(parts) == 4
    assert all(render(p).count("<pre") == render(p).count("</pre>") for p in parts)
    drawn = "".join(re.findall(r"<code[^>]*>(.*?)</code>", "".join(map(render, parts)), re.DOTALL))
    assert drawn == code
    assert render(parts[-1]).endswith("<p>Done.</p>\n")


def test_a_fence_that_ends_at_the_split_is_not_reopened() -> None:
    code = "```\n" + "x\n" * 100 + "```\n"
    at, close, carry = cut(code + "text\n", len(code))
    assert (at, close, carry) == (len(code), "", "")


def test_a_blank_line_in_a_fence_is_not_a_block_boundary() -> None:
    code = "```\n" + "x\n\n" * 200 + "```\n"
    assert all(p.startswith("```\n") for p in pieces(code, 300))


def test_the_head_of_a_table_is_repeated() -> None:
    rows = "".join(f"| {n} | {n} |\n" for n in range(100))
    parts = pieces(f"| a | b |\n|---|--:|\n{rows}", 300)
    assert all(render(p).count("<table") == 1 for p in parts)
    assert sum(render(p).count("<tr>") - 1 for p in parts) == 100


def test_a_list_is_split_between_items_and_keeps_its_numbers() -> None:
    items = "".join(f"{n}. item {n}\n   more of it\n" for n in range(1, 60))
    parts = pieces(items, 300)
    assert all(re.match(r"\d+\. item", p) for p in parts)
    assert f'<ol start="{parts[1].split(".")[0]}">' in render(parts[1])


def test_a_text_without_line_breaks_is_split_between_words() -> None:
    assert all(p.endswith(" ") for p in pieces("word " * 500, 300)[:-1])
    assert "".join(pieces("x" * 1000, 300)) == "x" * 1000


@settings(max_examples=300)
@given(st.lists(LINES, max_size=80).map("\n".join), st.integers(30, 300))
def test_splitting_loses_nothing(text: str, room: int) -> None:
    """Every word is rendered, wherever the text is split; carried lines may repeat."""
    parts = pieces(text, room)
    assert len(parts) <= len(text) + 1
    left = "".join(parts)
    for line in text.split("\n"):
        assert line in left
