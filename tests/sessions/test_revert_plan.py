"""A revert says what it overwrites, and loses nothing that nobody named."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from IPython.core.error import UsageError
from support.ipython_shell import Shell

from opencode_magics.core.attribution import attribute
from opencode_magics.core.model import FileDiff, Message, ToolCall
from opencode_magics.notebook import text
from opencode_magics.notebook.blocks import Block, Changes

BOTH_GENERATIONS = True
NOTEBOOK, APP = FileDiff("work.ipynb", additions=4465, deletions=18), FileDiff("app.py")


@pytest.fixture
def work(shell: Shell, workspace: Path) -> Path:
    """A workspace with a notebook that git doesn't ignore, and a session of its own."""
    (workspace / ".gitignore").write_text("__pycache__/\n")
    (workspace / "work.ipynb").write_text('{"cells": []}\n')
    (workspace / "app.py").write_text("hello\n")
    shell.run("%oc_new")
    shell.run("%config OpenCodeMagics.permission = 'once'")
    return workspace


def ran(*tools: ToolCall) -> tuple[Message, ...]:
    return (Message("msg_2", "ses_1", "assistant", parts=tools),)


EDIT = ToolCall("prt_1", "call_1", "edit", "completed", diffs=(FileDiff("/work/p/app.py"),))
MAKE = ToolCall("prt_2", "call_2", "bash", "completed", {"command": "make"})


def test_a_turn_names_what_its_tools_changed_and_the_rest_apart() -> None:
    """Case F1: a notebook that a person saved meanwhile."""
    found = attribute([NOTEBOOK, APP], ran(EDIT))
    assert (found.edited, found.meanwhile, found.during) == ((APP,), (NOTEBOOK,), "")
    shown = text.join([Block("changes", Changes(*found))])
    assert shown == (
        "Changed 1 file: app.py\n"
        "Also changed meanwhile, not by this turn's edits: work.ipynb +4465 -18"
    )


def test_a_command_can_have_changed_anything() -> None:
    """Case F1: it is named."""
    found = attribute([NOTEBOOK], ran(MAKE))
    assert text.join([Block("changes", Changes(*found))]) == (
        "Also changed, during `make`: work.ipynb +4465 -18"
    )


def save(notebook: Path, seconds: float) -> None:
    """Save another cell, at a time relative to now."""
    notebook.write_text('{"cells": ["mine"]}\n')
    os.utime(notebook, (time.time() + seconds,) * 2)


def test_a_file_that_was_changed_since_is_only_overwritten_by_name(
    shell: Shell, work: Path
) -> None:
    """Case F1: --yes is not enough."""
    shell.run("%oc_prompt #edit app.py")
    (work / "app.py").write_text("mine\n")
    os.utime(work / "app.py", (time.time() + 60,) * 2)
    for line in ("%oc_revert", "%oc_revert --yes", "%oc_revert --force other.py"):
        with pytest.raises(UsageError, match=r"app\.py .*changed since.* --force app\.py"):
            shell.run(line)
    assert (work / "app.py").read_text() == "mine\n"
    shell.run("%oc_revert --force app.py")
    assert (work / "app.py").read_text() == "hello\n"
    shell.run("%oc_unrevert")
    shell.run("%oc_revert")  # the server has written it last


def test_a_notebook_that_is_open_here_is_not_overwritten(
    shell: Shell, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case F1: saved while the form was open."""
    monkeypatch.setenv("JPY_SESSION_NAME", str(work / "work.ipynb"))
    save(work / "work.ipynb", -5)
    shell.run("%oc_prompt #bash echo '{}' > work.ipynb")
    with pytest.raises(UsageError, match=r"work\.ipynb .*open here"):
        shell.run("%oc_revert")
    assert "{}" in (work / "work.ipynb").read_text()
