"""An IPython shell for tests, which raises errors that a shell would only display."""

from __future__ import annotations

import atexit
import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from opencode_magics.client.client import Client
from opencode_magics.core.model import Session
from opencode_magics.practice.simulator.server import Simulator
from opencode_magics.practice.world import Practice


@dataclass(frozen=True)
class CellResult:
    """The result of a cell: the text on the screen, rich outputs, value, error."""

    text: str
    outputs: list[Any]
    value: Any = None
    error: BaseException | None = None

    @property
    def lines(self) -> list[str]:
        """The non-blank lines on the screen, after carriage returns are applied."""
        lines = [line.rpartition("\r")[2] for line in self.text.split("\n")]
        return [line for line in lines if line.strip()]


class Terminal(io.StringIO):
    """A standard input with a person who types prepared lines."""

    def isatty(self) -> bool:
        return True


class Shell(InteractiveShell):  # type: ignore[misc]
    """A shell without history and colors. Nobody answers prompts unless `types` is called."""

    def run(self, cell: str) -> CellResult:
        """Run a cell that must succeed."""
        shown = self.see(cell)
        if shown.error is not None:
            raise shown.error
        return shown

    def fails(self, cell: str) -> CellResult:
        """Run a cell that must fail, and return its result."""
        shown = self.see(cell)
        assert shown.error is not None, f"it did not fail:\n{shown.text}"
        return shown

    def types(self, *lines: str) -> None:
        """Have a person type these lines from now on."""
        sys.stdin = Terminal("".join(f"{line}\n" for line in lines))

    def see(self, cell: str) -> CellResult:
        """Run a cell, whether or not it succeeds."""
        screen = io.StringIO()
        with capture_output() as captured:
            sys.stdout = sys.stderr = screen  # as one text, in the order a person sees it
            result = self.run_cell(cell, store_history=True)
        error = result.error_before_exec or result.error_in_exec
        return CellResult(screen.getvalue(), captured.outputs, result.result, error)


@contextmanager
def isolated_shell(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """Create a shell in its own folder that finds no server.

    At the end it restores this process and unloads the extension.
    """
    for name in [n for n in os.environ if n.startswith(("OPENCODE_", "VIRTUAL_ENV"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OPENCODE_SERVER_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.setenv("IPYTHONDIR", str(home / "ipython"))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.chdir(home)
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    Shell.clear_instance()
    shell = Shell.instance(config=config)
    try:
        yield shell
    finally:
        shell.see("%unload_ext opencode_magics")
        shell.restore_sys_module_state()
        atexit.unregister(shell.atexit_operations)
        Shell.clear_instance()


def connect_to_practice(
    shell: Shell, practice: Practice | Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Change to the workspace of a practice world, load the extension, and connect."""
    for name, value in practice.access.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(practice.directory)
    shell.run("%load_ext opencode_magics")
    shell.run("%oc_connect;")


def until(true: Callable[[], Any], patience: float = 60.0) -> Any:
    """Wait until a function returns something true, and return that."""
    deadline = time.monotonic() + patience
    while not (result := true()):
        assert time.monotonic() < deadline, f"the condition was not met within {patience} s"
        time.sleep(0.05)
    return result


def wait_until_busy(client: Client, session: Session) -> None:
    """Wait until a session is listed as busy, which 1.18.33 does with a delay."""
    until(lambda: session.id in client.statuses(session.directory))


def is_short_error(shown: CellResult) -> bool:
    """Return whether an error is shown in at most two lines, without a traceback."""
    return 1 <= len(shown.lines) <= 2 and "Traceback" not in shown.text
