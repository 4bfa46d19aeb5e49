"""What a person must know to decide on a permission, for every place that asks.

The server's request may name only a pattern: what will be done is in the input of the tool call
that waits for it. `details` joins both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from .model import FileDiff, Permission, ToolCall
from .patches import make_patch, split_lines
from .turn import Turn


class Detail(NamedTuple):
    """A labelled fact, such as the folder in which a command runs."""

    label: str
    text: str


def details(permission: Permission, directory: str) -> tuple[Detail, ...]:
    """Return what a permission is about, besides its edits.

    Args:
        permission: The permission, with the input of its tool call if that is known.
        directory: The directory of its session.
    """
    return tuple(_details(permission, directory))


def _details(permission: Permission, directory: str) -> Iterator[Detail]:
    shown: set[str] = set()
    if permission.action == "external_directory":
        yield Detail("Outside the project", "\n".join(permission.patterns))
        shown.update(permission.patterns)
        if permission.path:
            yield Detail(_use(permission.tool), permission.path)
    if permission.command is not None:
        yield Detail("Command", permission.command)
        if permission.workdir or directory:
            yield Detail("In", permission.workdir or directory)
        shown.update(_parts(permission.command, permission.patterns))
    elif permission.task:
        yield Detail("Agent", ", ".join(permission.patterns))
        yield Detail("Prompt", permission.task)
        shown.update(permission.patterns)
    elif edits := edits_of(permission):
        yield Detail("Files", "\n".join(edit.name for edit in edits))
        # 1.18.33 matches a path relative to the project, and names it in full.
        shown.update(p for p in permission.patterns for e in edits if e.file.endswith(p))
        shown.update(p for p in permission.patterns for e in edits if e.before.endswith(p))
    elif permission.path and permission.input.keys() <= {"filePath", "path", "offset", "limit"}:
        if permission.action != "external_directory":
            yield Detail(_use(permission.tool), permission.path)
        shown.update(p for p in permission.patterns if permission.path.endswith(p))
    elif permission.input and permission.action != "external_directory":
        yield Detail("Input", "\n".join(permission.input_lines))
        shown.update(p for p in permission.patterns if p in map(str, permission.input.values()))
    others = [p for p in permission.patterns if p not in shown and p != "*"]
    if others:
        yield Detail("For", "\n".join(others))


_USES = {
    "read": "Read",
    "glob": "Search",
    "grep": "Search",
    "list": "List",
    "write": "Write",
    "edit": "Edit",
    "bash": "Run",
    "shell": "Run",
}


def _use(tool: str) -> str:
    return _USES.get(tool, tool or "For")


def _parts(command: str, patterns: tuple[str, ...]) -> list[str]:
    """The patterns that a shown command contains."""
    return [pattern for pattern in patterns if pattern in command]


def edits_of(permission: Permission) -> tuple[FileDiff, ...]:
    """Return the edits that a permission is for.

    2.x sends none, so they are made from the input of the tool call.
    """
    if permission.files:
        return permission.files
    if permission.diff is not None:
        return (permission.diff,)
    old, new = permission.input.get("oldString"), permission.input.get("newString")
    if permission.action != "edit" or not permission.path:
        return ()
    if isinstance(old, str) and isinstance(new, str):
        return (FileDiff(permission.path, make_patch(split_lines(old), split_lines(new))),)
    content = permission.input.get("content")
    if isinstance(content, str):
        return (FileDiff(permission.path, make_patch([], split_lines(content))),)
    return ()


def digest(permission: Permission, directory: str) -> str:
    """Return a digest of all that a person sees of a permission, to notice a change."""
    shown = [
        permission.action,
        permission.always,
        *details(permission, directory),
        *((edit.name, edit.patch) for edit in edits_of(permission)),
    ]
    return hashlib.sha256(repr(shown).encode("utf-8", "replace")).hexdigest()[:16]


def with_call(permission: Permission, call: ToolCall | None) -> Permission:
    """Return the permission with the tool call that waits for it."""
    if call is None or not call.input:
        return permission
    return replace(permission, tool=call.tool, input=call.input)


def with_call_in(turn: Turn, permission: Permission) -> Permission:
    """Return the permission with its tool call, if the turn has that."""
    if permission.input or not permission.call:
        return permission
    calls = (t for m in turn.log for t in m.tools if t.call == permission.call)
    return with_call(permission, next(calls, None))
