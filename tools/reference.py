"""Write the pages that the code itself determines: notebooks/reference.md and notebooks/columns.md.

    python tools/reference.py

Run it after you change a magic, an option or a column. A test compares the pages with the code.
"""

from __future__ import annotations

import inspect
from argparse import Action
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from opencode_magics import tables
from opencode_magics.core.columns import Columns
from opencode_magics.history.frames import FRAME_KINDS, SESSIONS
from opencode_magics.history.spans import SPANS
from opencode_magics.history.usage import USAGE
from opencode_magics.magics import TOPICS
from opencode_magics.magics.state import OpenCodeMagics
from opencode_magics.magics.topic import Topic
from opencode_magics.prompts import mapping

PAGES = Path(__file__).parents[1] / "notebooks"

REFERENCE = """\
# Reference

Every magic and every option. `%oc_help` lists the magics in a notebook, and `%oc_help NAME` or
`NAME?` shows what this page says about one. The [guide](guide.md) explains how to work with them.

A magic with two percent signs takes the text below it; on a single line, write it with one percent
sign.
"""

OPTIONS = """\
## Options

`%config OpenCodeMagics` lists these options in a notebook. `%config OpenCodeMagics.agent = "plan"`
sets one.
"""

COLUMNS = """\
# Columns

Every column of every DataFrame. Names, order and dtypes never depend on the data. An unknown value
is `NA`, never zero. Times are in UTC, with milliseconds; costs are in USD.
"""

FRAMES: Mapping[str, tuple[str, Columns]] = {
    # title: where it comes from, columns
    "sessions": ("`%oc_sessions`, `history.sessions`, `%oc_export`", SESSIONS),
    "messages": (
        "`%oc_history`, `history.messages`, `%oc_export`",
        FRAME_KINDS["messages"].columns,
    ),
    "steps": ("`%oc_history --steps`, `history.steps`, `%oc_export`", FRAME_KINDS["steps"].columns),
    "parts": ("`%oc_history --parts`, `history.parts`, `%oc_export`", FRAME_KINDS["parts"].columns),
    "tools": ("`%oc_history --tools`, `history.tools`, `%oc_export`", FRAME_KINDS["tools"].columns),
    "usage": ("`%oc_usage`, `history.usage`; before these come the columns of `--by`", USAGE),
    "spans": ("`history.spans`, which `%oc_timeline` draws", SPANS),
}


def pages() -> dict[str, str]:
    """Return the text of each page by its file name."""
    return {"reference.md": reference(), "columns.md": columns()}


def table(*rows: Iterable[str]) -> str:
    """Return a Markdown table; the first row is its head."""
    head, *rest = ([cell.replace("|", r"\|") for cell in row] for row in rows)
    lines = (head, ["---"] * len(head), *rest)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# -- magics and options ----------------------------------------------------------------------------


def reference() -> str:
    """Return the page of all magics and options."""
    return "\n".join([REFERENCE, *(topic(each) for each in TOPICS), OPTIONS + "\n" + options()])


def topic(magics: type[Topic]) -> str:
    """Return the section of one class of magics."""
    title = inspect.cleandoc(magics.__doc__ or "").partition("\n")[0]
    names = dict.fromkeys([*magics.magics["cell"], *magics.magics["line"]])
    return "\n".join([f"## {title}\n", *(magic(magics, name) for name in names)])


def magic(magics: type[Topic], name: str) -> str:
    """Return the section of one magic: its syntax, its description, its options, an example."""
    function = getattr(magics, name)
    sign = "%%" if name in magics.magics["cell"] else "%"
    text = inspect.cleandoc(function.__doc__).partition("\nUsage::")[0]
    description, _, example = text.partition("\nExample::")
    actions = [action for action in function.parser._actions if action.dest != "help"]
    syntax = " ".join([f"{sign}{name}", *arguments(actions)])
    return (
        f"### `{sign}{name}`\n\n"
        f"```text\n{syntax}\n```\n\n"
        f"{description.strip()}\n\n"
        + (table(("option", "meaning"), *map(option, actions)) + "\n" if actions else "")
        + f"```python\n{inspect.cleandoc(example)}\n```\n"
    )


def arguments(actions: Iterable[Action]) -> Iterator[str]:
    """Yield the arguments of a magic as its syntax line shows them."""
    actions = [*actions]
    if any(action.option_strings for action in actions):
        yield "[OPTIONS]"
    for action in actions:
        if not action.option_strings:
            name = action.dest.upper()
            shown = {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} [{name} ...]"}
            yield shown.get(str(action.nargs), name)


def option(action: Action) -> tuple[str, str]:
    """Return the row of one argument or option."""
    if not action.option_strings:
        return f"`{action.dest.upper()}`", help_of(action)
    value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    return ", ".join(f"`{name}{value}`" for name in action.option_strings), help_of(action)


def help_of(action: Action) -> str:
    """Return the help of an argument, as argparse prints it."""
    return str(action.help).replace("%%", "%")


def options() -> str:
    """Return the table of all `%config` options."""
    traits = OpenCodeMagics.class_traits(config=True)
    rows = ((f"`{name}`", default(trait), trait.help) for name, trait in sorted(traits.items()))
    return table(("option", "default", "meaning"), *rows)


def default(trait: Any) -> str:
    """Return the default of an option as it is typed in Python."""
    return f"`{trait.default_value!r}`".replace("'", '"')


# -- columns ---------------------------------------------------------------------------------------


def columns() -> str:
    """Return the page of all columns."""
    named = (frame(title, f"From {source}.\n\n", cols) for title, (source, cols) in FRAMES.items())
    by_magic = {**tables.FRAMES, "%%oc_map": mapping.COLUMNS}
    return "\n".join(
        [COLUMNS, *named, *(frame(f"`{n}`", "", cols) for n, cols in by_magic.items())]
    )


def frame(title: str, source: str, columns: Columns) -> str:
    """Return the section of one frame."""
    rows = ((f"`{n}`", c.dtype, c.about) for n, c in columns.items() if n != "key")
    return f"## {title}\n\n{source}" + table(("column", "dtype", "meaning"), *rows)


if __name__ == "__main__":
    for page, text in pages().items():
        (PAGES / page).write_text(text, encoding="utf-8")
