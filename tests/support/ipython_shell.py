"""An IPython shell inside the tests, which raises what a shell would only show."""

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
    """What came of a cell: the text on the screen, rich outputs, its value, its error."""

    text: str
    outputs: list[Any]
    value: Any = None
    error: BaseException | None = None

    @property
    def lines(self) -> list[str]:
        """The lines on the screen that are not blank, as a carriage return left them."""
        lines = [line.rpartition("\r")[2] for line in self.text.split("\n")]
        return [line for line in lines if line.strip()]


class Terminal(io.StringIO):
    """A standard input where a person sits and types prepared lines."""

    def isatty(self) -> bool:
        return True


class Shell(InteractiveShell):  # type: ignore[misc]
    """A shell without history and colours. Nobody sits there unless somebody `types`."""

    def run(self, cell: str) -> CellResult:
        """Run a cell that has to work."""
        shown = self.see(cell)
        if shown.error is not None:
            raise shown.error
        return shown

    def fails(self, cell: str) -> CellResult:
        """Run a cell that has to fail; tells what a person would see of it."""
        shown = self.see(cell)
        assert shown.error is not None, f"it did not fail:\n{shown.text}"
        return shown

    def types(self, *lines: str) -> None:
        """Have a person sit there and type these lines from now on."""
        sys.stdin = Terminal("".join(f"{line}\n" for line in lines))

    def see(self, cell: str) -> CellResult:
        """Run a cell, whatever comes of it."""
        screen = io.StringIO()
        with capture_output() as captured:
            sys.stdout = sys.stderr = screen  # in one text, as a person reads it
            result = self.run_cell(cell, store_history=True)
        error = result.error_before_exec or result.error_in_exec
        return CellResult(screen.getvalue(), captured.outputs, result.result, error)


@contextmanager
def isolated_shell(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """A shell of its own, in its own folder, with no server to be found.

    It leaves nothing of itself in this process, and nor does the extension when it was loaded.
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
    """Go to the workspace of a practice world, load the extension, and connect."""
    for name, value in practice.access.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(practice.directory)
    shell.run("%load_ext opencode_magics")
    shell.run("%oc_connect;")


def until(true: Callable[[], Any], patience: float = 60.0) -> Any:
    """What `true` says as soon as it is true."""
    deadline = time.monotonic() + patience
    while not (found := true()):
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)
    return found


def wait_until_busy(client: Client, session: Session) -> None:
    """Wait until a session is listed as busy: 1.18.33 may take a moment after a prompt."""
    until(lambda: session.id in client.statuses(session.directory))


def is_short_error(shown: CellResult) -> bool:
    """Whether an error shows as a sentence or two, and no traceback."""
    return 1 <= len(shown.lines) <= 2 and "Traceback" not in shown.text
