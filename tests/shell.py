"""An IPython shell inside the tests, which raises what a shell would only show."""

from __future__ import annotations

import atexit
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config


@dataclass(frozen=True)
class Shown:
    """What came of a cell: the text on the screen, rich outputs, its value, its error."""

    text: str
    outputs: list[Any]
    value: Any = None
    error: BaseException | None = None

    @property
    def lines(self) -> list[str]:
        """The lines on the screen that are not blank."""
        return [line for line in self.text.splitlines() if line.strip()]


class Terminal(io.StringIO):
    """A standard input where a person sits and types prepared lines."""

    def isatty(self) -> bool:
        return True


class Shell(InteractiveShell):  # type: ignore[misc]
    """A shell without history and colours. Nobody sits there unless somebody `types`."""

    def run(self, cell: str) -> Shown:
        """Run a cell that has to work."""
        shown = self._run(cell)
        if shown.error is not None:
            raise shown.error
        return shown

    def fails(self, cell: str) -> Shown:
        """Run a cell that has to fail; tells what a person would see of it."""
        shown = self._run(cell)
        assert shown.error is not None, f"it did not fail:\n{shown.text}"
        return shown

    def types(self, *lines: str) -> None:
        """Have a person sit there and type these lines from now on."""
        sys.stdin = Terminal("".join(f"{line}\n" for line in lines))

    def _run(self, cell: str) -> Shown:
        screen = io.StringIO()
        with capture_output() as captured:
            sys.stdout = sys.stderr = screen  # in one text, as a person reads it
            result = self.run_cell(cell, store_history=False)
        error = result.error_before_exec or result.error_in_exec
        return Shown(screen.getvalue(), captured.outputs, result.result, error)


@contextmanager
def fresh_shell(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """A shell of its own, which leaves nothing of itself in this process."""
    monkeypatch.setenv("IPYTHONDIR", str(home))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # IPython would warn of another one
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    InteractiveShell.clear_instance()
    shell = Shell.instance(config=config)
    try:
        yield shell
    finally:
        shell.restore_sys_module_state()
        atexit.unregister(shell.atexit_operations)
        Shell.clear_instance()
