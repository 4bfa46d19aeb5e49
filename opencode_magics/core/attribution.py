"""Tell apart what an agent's edit tools changed, and what else changed meanwhile.

A server reports the difference between two snapshots of a directory: a notebook that a person saved
during the turn is part of it, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .formatting import in_one_line
from .model import FileDiff, Message, ToolCall
from .outcome import is_tool_completed

_SHELLS = ("bash", "shell")
_SUBAGENTS = ("task", "subagent")


class Attribution(NamedTuple):
    """The changed files of some messages.

    Attributes:
        edited: Changed by the edit tools.
        meanwhile: Changed while the agent worked, by something else.
        during: What could have changed those: the shell commands and subagents, in words.
    """

    edited: tuple[FileDiff, ...]
    meanwhile: tuple[FileDiff, ...]
    during: str


def attribute(diffs: Iterable[FileDiff], answers: Sequence[Message]) -> Attribution:
    """Attribute changed files.

    Args:
        diffs: The changes as the server reports them, or as the tools do.
        answers: The answers with the tool calls.
    """
    tools = [t for m in answers for t in m.tools if is_tool_completed(t)]
    own = {path for t in tools for d in t.diffs for path in (d.file, d.before) if path}
    own |= {p for t in tools if t.tool == "write" and (p := _path(t))}
    edited: list[FileDiff] = []
    meanwhile: list[FileDiff] = []
    for diff in diffs:
        (edited if any(_same_file(diff.file, path) for path in own) else meanwhile).append(diff)
    return Attribution(tuple(edited), tuple(meanwhile), ", ".join(_others(tools)))


def _path(tool: ToolCall) -> str:
    return str(tool.input.get("filePath") or tool.input.get("path") or "")


def _same_file(reported: str, edited: str) -> bool:
    """Return whether two paths are of one file; either may be absolute."""
    return reported == edited or edited.endswith(f"/{reported}") or reported.endswith(f"/{edited}")


def _others(tools: Iterable[ToolCall]) -> list[str]:
    """The tool calls that can change any file."""
    words: dict[str, None] = {}
    for tool in tools:
        if tool.tool in _SHELLS:
            words[f"`{in_one_line(str(tool.input.get('command') or tool.tool), 40)}`"] = None
        elif tool.tool in _SUBAGENTS:
            words["a subagent"] = None
    return list(words)
