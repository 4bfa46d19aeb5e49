"""Markdown as safe HTML, for complete and for growing texts.

Raw HTML in the text stays text. nh3 sanitizes the rendered HTML down to the tags and attributes
that markdown needs: no images, no styles, links to http, https and mailto only. Then fixed styles
of our own are added.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from .wording import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markdown_it import MarkdownIt
    from markdown_it.token import Token


def render(text: str) -> str:
    """Return safe HTML for a complete markdown text."""
    return _html(_parser().parse(clean(text)))


_DEFINITION = re.compile(r"^ {0,3}\[[^\]\n]+\]:", re.MULTILINE)


class IncrementalMarkdown:
    """Renders a growing markdown text; its final blocks are rendered only once.

    In CommonMark a top-level block is final when the next one begins, so the HTML of all but the
    last is cached. Link definitions affect earlier blocks, so they apply when the text is closed.
    """

    def __init__(self) -> None:
        self._source = ""
        self._html = ""

    def render(self, text: str, closed: bool = False) -> str:
        """Return safe HTML for the text so far, which `wording.clean` must have cleaned."""
        if closed and _DEFINITION.search(text):
            return render(text)
        if not text.startswith(self._source):
            self._source = self._html = ""
        rest = text[len(self._source) :]
        tokens = _parser().parse(rest)
        # A line that isn't complete may still join the block above: "1" can become "1. one".
        whole_lines = rest.count("\n")
        last = next((n for n in reversed(_tops(tokens)) if _line(tokens[n]) < whole_lines), 0)
        if last > 0:
            self._html += _html(tokens[:last])
            self._source += rest[: _offset(rest, tokens[last])]
            tokens = tokens[last:]
        return self._html + _html(tokens)


# -- splitting a long text -------------------------------------------------------------------------


class SplitPoint(NamedTuple):
    """A point that splits a text in two parts.

    Attributes:
        at: Offset of the split.
        close: Text to append to the first part.
        carry: Text to insert before the second part.
    """

    at: int
    close: str = ""
    carry: str = ""


def cut(text: str, room: int) -> SplitPoint:
    """Return the best split point within `room` characters: between blocks, else in a long one.

    A code fence is closed before the split and reopened after it; a table's head is repeated.
    """
    head, least = text[:room], room // 3
    line = head.rfind("\n") + 1
    if line <= least:
        return SplitPoint(max(head.rfind(" ") + 1, 0) if head.rfind(" ") > least else len(head))
    head = head[:line]
    tokens = _blocks_only().parse(head)
    tops = _tops(tokens)
    if not tops:
        return SplitPoint(line)
    last = _offset(head, tokens[tops[-1]])
    return SplitPoint(last) if last > least else _cut_block(head, tokens[tops[-1] :], least)


def _cut_block(head: str, block: Sequence[Token], least: int) -> SplitPoint:
    """Split a block that is too long: before a list item, or after a line of a fence or table."""
    items = [t for t in block if t.type == "list_item_open" and t.level == 1]
    if items and (item := _offset(head, items[-1])) > least:
        return SplitPoint(item)
    lines = head.split("\n")
    if block[0].type == "table_open":
        first = _line(block[0])
        return SplitPoint(
            len(head), "", _if_short("\n".join(lines[first : first + 2]) + "\n", "", least)
        )
    fence = next((t for t in reversed(block) if t.type == "fence"), None)
    if fence is not None and _is_open(fence, lines):
        end = f"{fence.markup}\n"
        return SplitPoint(len(head), end, _if_short(f"{lines[_line(fence)]}\n", end, least))
    return SplitPoint(len(head))


def _if_short(carry: str, default: str, most: int) -> str:
    return carry if len(carry) <= min(most, 300) else default


def _is_open(fence: Token, lines: Sequence[str]) -> bool:
    """Return whether a fence has no closing line, and is not indented too far to be closed."""
    begin, end = fence.map or [0, 0]
    last = lines[end - 1].strip()
    closed = end - begin > 1 and last.startswith(fence.markup) and not last.strip(fence.markup[0])
    indent = len(lines[begin]) - len(lines[begin].lstrip())
    return not closed and end >= len(lines) - 1 and indent <= 3


# -- parsing and rendering -------------------------------------------------------------------------


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False})
    parser.enable(["table", "strikethrough"]).disable("image")  # an image becomes a link
    for kind in ("td", "th"):
        parser.add_render_rule(f"{kind}_open", _cell)
    return parser


@cache
def _blocks_only() -> MarkdownIt:
    """Return a parser that finds blocks without parsing their inline content."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser


def _cell(_self: Any, tokens: Sequence[Token], at: int, _options: Any, _env: Any) -> str:
    style = str(tokens[at].attrs.get("style", "text-align:left"))
    return f'<{tokens[at].tag} align="{style.removeprefix("text-align:")}">'


def _tops(tokens: Sequence[Token]) -> list[int]:
    """Return the indices of the tokens that begin a top-level block."""
    return [n for n, t in enumerate(tokens) if t.level == 0 and t.nesting >= 0 and t.map]


def _line(token: Token) -> int:
    return token.map[0] if token.map else 0


def _offset(text: str, token: Token) -> int:
    """Return the offset in the text at which a block begins."""
    at = 0
    for _ in range(_line(token)):
        at = text.index("\n", at) + 1
    return at


def _html(tokens: Sequence[Token]) -> str:
    import nh3

    parser = _parser()
    html = parser.renderer.render(tokens, parser.options, {})
    html = nh3.clean(
        html,
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        tag_attribute_values=_VALUES,
        url_schemes={"http", "https", "mailto"},
        url_relative="deny",
        link_rel="noopener noreferrer",
    )
    # Safe on sanitized HTML: "<" is escaped in its text, and no remaining attribute can contain it.
    for plain, styled in _STYLED_TAGS.items():
        html = html.replace(plain, styled)
    return html


_TAGS = {
    *("a", "blockquote", "br", "code", "em", "hr", "li", "ol", "p", "pre", "s", "strong", "ul"),
    *("h1", "h2", "h3", "h4", "h5", "h6"),
    *("table", "tbody", "td", "th", "thead", "tr"),
}
_ATTRIBUTES: dict[str, set[str]] = {"*": set(), "a": {"href"}, "ol": {"start"}}
_ALIGN = {"left", "center", "right"}
_VALUES = {"td": {"align": _ALIGN}, "th": {"align": _ALIGN}}

# Short, since they are sent repeatedly; the rest is left to the front end's own styles.
_HEADING = "margin:1em 0 .4em;font-weight:600;font-size:"
_STYLES = {
    "h1": f"{_HEADING}1.3em",
    "h2": f"{_HEADING}1.2em",
    "h3": f"{_HEADING}1.1em",
    "h4": f"{_HEADING}1em",
    "h5": f"{_HEADING}1em",
    "h6": f"{_HEADING}1em",
    "table": "margin:.6em 0",
    "blockquote": "margin:.6em 0;padding-left:.9em;border-left:3px solid rgba(128,128,128,.35)",
}
_PRE = (
    "margin:.6em 0;padding:.6em .8em;overflow-x:auto;line-height:1.45;font-size:.9em;"
    "border-radius:4px;background:rgba(128,128,128,.09)"
)
_STYLED_TAGS = {
    # The <pre> has the background; its <code> must not have another.
    "<pre><code>": f'<pre style="{_PRE}"><code style="padding:0;background:none">',
    **{f"<{tag}>": f'<{tag} style="{style}">' for tag, style in _STYLES.items()},
    **{
        f'<{tag} align="{align}">': f'<{tag} style="text-align:{align}">'
        for tag in ("td", "th")
        for align in sorted(_ALIGN)
    },
}
