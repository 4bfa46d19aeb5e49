"""Keep IPython from interpreting text that is meant for an agent.

IPython 9.18 strips `>>> ` from the body of a cell magic, treats a line magic that ends in a
question mark as a request for help, and doesn't support `%magic;`. The input transforms here run
before that: one for cells such as `%%oc_prompt`, one for lines of our magics.
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

# The rest of their line is text, including a semicolon at its end.
FREE_TEXT_MAGICS = ("oc_prompt", "oc_command")
FREE_TEXT_CELLS = (*FREE_TEXT_MAGICS, "oc_map")

_NAME = "|".join(FREE_TEXT_CELLS)
_CELL = re.compile(rf"%%({_NAME})\s")
_LINE = re.compile(rf"%({'|'.join(FREE_TEXT_MAGICS)}) ")
_MISPLACED = re.compile(rf"%%({_NAME})\b")


def cell_as_typed(lines: list[str]) -> list[str]:
    """Turn a %%oc_prompt cell into a call, before other transforms change its body."""
    cell: list[str] = leading_empty_lines(lines)
    if cell and _CELL.match(cell[0]):
        call: list[str] = cell_magic(cell)
        return call
    misplaced = next((match[1] for line in cell if (match := _MISPLACED.match(line))), None)
    if misplaced and not cell[0].startswith("%%"):
        # IPython would report an unknown magic; ours says that it must be the first line.
        return [f"get_ipython().run_line_magic({misplaced!r}, '%%{misplaced}')\n"]
    return lines


# IPython skips transforms with side effects when it only checks whether a cell is complete.
cell_as_typed.has_side_effects = True  # type: ignore[attr-defined]


def join_split_lines(lines: list[str]) -> list[str]:
    r"""Join lines of our magics that IPython split at other characters than \n.

    It splits at U+2028, a form feed and others, and would run the rest of the line as Python.
    """
    joined: list[str] = []
    for line in lines:
        is_rest = joined and _LINE.match(joined[-1].lstrip()) and joined[-1][-1:] != "\n"
        if is_rest:
            joined[-1] += line
        else:
            joined.append(line)
    return joined


class LineAsTyped(EscapedCommand):
    """A line of our magics: only `%oc_prompt?` shows help, `%oc_prompt Why?` is a prompt."""

    priority = 4  # before IPython's HelpEnd, which has 5

    @classmethod
    def find(cls, tokens_by_line: Sequence[Sequence[tokenize.TokenInfo]]) -> Self | None:
        """Find the first line that starts with one of our magics."""
        for line in tokens_by_line:
            tokens = [t for t in line if t.type not in (tokenize.INDENT, tokenize.DEDENT)]
            match [t.string for t in tokens[:3]]:
                case ["%", name, after] if name.startswith("oc_") and after != "?":
                    return cls(tokens[0].start)
        return None

    def transform(self, lines: list[str]) -> list[str]:
        """Replace that line by the call of its magic; a final semicolon hides the result."""
        end = find_end_of_continued_line(lines, self.start_line)
        start = (self.start_line, self.start_col)
        line = assemble_continued_line(lines, start, end).rstrip()
        quiet = line.endswith(";") and not _LINE.match(line)
        name, _, rest = line.removesuffix(";" if quiet else "")[1:].partition(" ")
        indent = lines[self.start_line][: self.start_col]
        call = f"{indent}get_ipython().run_line_magic({name!r}, {rest!r}){';' * quiet}\n"
        return [*lines[: self.start_line], call, *lines[end + 1 :]]


def register_transforms(shell: Any) -> None:
    """Make a shell pass cells and lines of our magics on as they were typed."""
    manager = shell.input_transformer_manager
    manager.cleanup_transforms.insert(0, cell_as_typed)
    manager.line_transforms.append(join_split_lines)
    manager.token_transformers.append(LineAsTyped)


def unregister_transforms(shell: Any) -> None:
    """Undo `register_transforms`."""
    manager = shell.input_transformer_manager
    groups = (manager.cleanup_transforms, manager.line_transforms, manager.token_transformers)
    for transforms in groups:
        transforms[:] = [t for t in transforms if t.__module__ != __name__]
