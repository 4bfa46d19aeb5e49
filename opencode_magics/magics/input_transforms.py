"""Keeps IPython from reading what is meant for an agent.

As of 9.18, IPython takes `>>> ` out of the body of a cell magic, takes a line magic that ends in a
question mark for a call for help, and knows no `%magic;`. Two of its own kinds of input transforms
are put before those: one reads a cell of `%%oc_prompt` and the like, one the lines of our magics.
"""

from __future__ import annotations

import re
import tokenize
from collections.abc import Sequence
from typing import Any, Self

from IPython.core.inputtransformer2 import (
    EscapedCommand,
    assemble_continued_line,
    cell_magic,
    find_end_of_continued_line,
    leading_empty_lines,
)

FREE_TEXT_MAGICS = (
    "oc_prompt",
    "oc_command",
)  # whose lines are text to the end, a semicolon included

CELLS = (*FREE_TEXT_MAGICS, "oc_map")  # whose bodies are

_NAME = "|".join(CELLS)
_CELL = re.compile(rf"%%({_NAME})\s")
_LINE = re.compile(rf"%({'|'.join(FREE_TEXT_MAGICS)}) ")
_MISPLACED = re.compile(rf"%%({_NAME})\b")


def cell_as_typed(lines: list[str]) -> list[str]:
    """A cell that begins with %%oc_prompt as its call, before anything else looks at its body."""
    cell: list[str] = leading_empty_lines(lines)
    if cell and _CELL.match(cell[0]):
        called: list[str] = cell_magic(cell)
        return called
    misplaced = next((found[1] for line in cell if (found := _MISPLACED.match(line))), None)
    if misplaced and not cell[0].startswith("%%"):
        # IPython would say that there is no such magic; ours says where it belongs.
        return [f"get_ipython().run_line_magic({misplaced!r}, '%%{misplaced}')\n"]
    return lines


# IPython leaves such transforms out when it only looks whether a cell is complete.
cell_as_typed.has_side_effects = True  # type: ignore[attr-defined]


def whole_lines(lines: list[str]) -> list[str]:
    """Lines of ours that IPython cut where no line ends (U+2028, form feed, ...), put together.

    The rest of such a line would be run as Python.
    """
    joined: list[str] = []
    for line in lines:
        cut = joined and _LINE.match(joined[-1].lstrip()) and joined[-1][-1:] != "\n"
        if cut:
            joined[-1] += line
        else:
            joined.append(line)
    return joined


class LineAsTyped(EscapedCommand):
    """A line of our magics: `%oc_prompt Why?` asks the agent, only `%oc_prompt?` asks IPython."""

    priority = 4  # HelpEnd has 5

    @classmethod
    def find(cls, tokens_by_line: Sequence[Sequence[tokenize.TokenInfo]]) -> Self | None:
        """The first such line."""
        for line in tokens_by_line:
            tokens = [t for t in line if t.type not in (tokenize.INDENT, tokenize.DEDENT)]
            match [t.string for t in tokens[:3]]:
                case ["%", name, after] if name.startswith("oc_") and after != "?":
                    return cls(tokens[0].start)
        return None

    def transform(self, lines: list[str]) -> list[str]:
        """The lines with that one made a call; a semicolon behind it hides what it returns."""
        end = find_end_of_continued_line(lines, self.start_line)
        start = (self.start_line, self.start_col)
        line = assemble_continued_line(lines, start, end).rstrip()
        quiet = line.endswith(";") and not _LINE.match(line)
        name, _, rest = line.removesuffix(";" if quiet else "")[1:].partition(" ")
        indent = lines[self.start_line][: self.start_col]
        call = f"{indent}get_ipython().run_line_magic({name!r}, {rest!r}){';' * quiet}\n"
        return [*lines[: self.start_line], call, *lines[end + 1 :]]


def register_transforms(shell: Any) -> None:
    """Have a shell read cells and lines of our magics as they were typed."""
    manager = shell.input_transformer_manager
    manager.cleanup_transforms.insert(0, cell_as_typed)
    manager.line_transforms.append(whole_lines)
    manager.token_transformers.append(LineAsTyped)


def unregister_transforms(shell: Any) -> None:
    """Undo `register_transforms`."""
    manager = shell.input_transformer_manager
    kinds = (manager.cleanup_transforms, manager.line_transforms, manager.token_transformers)
    for transforms in kinds:
        transforms[:] = [t for t in transforms if t.__module__ != __name__]
