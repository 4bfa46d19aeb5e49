"""Real kernels of given ipykernel versions, and a bare front-end that talks to them.

A version is installed without its dependencies into a folder of the cache, which the kernel's
process puts before everything else: a second instead of the twenty of a virtual environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from queue import Empty
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

REPOSITORY = Path(__file__).parents[1]
NEWEST = version("ipykernel")  # pip took the newest when it made this environment
# The oldest that the package is for (Colab's age), the last of 6, and 7 where it changed.
VERSIONS = tuple(dict.fromkeys(["6.17.1", "6.31.0", "7.0.1", "7.3.0", "7.4.0", NEWEST]))

PATIENCE = 30.0

# ipykernel 7 as its subclasses may be: with everything in the main thread.
WITHOUT_SUBSHELLS = """
from ipykernel.kernelapp import IPKernelApp

class App(IPKernelApp):
    def init_control(self, context):
        super().init_control(context)
        self.shell_channel_thread = None

App.launch_instance()
"""

Message = dict[str, Any]


def installed(wanted: str) -> Path | None:
    """The folder with this version of ipykernel; None if it is the environment's own."""
    if wanted == NEWEST:
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "opencode_magics" / "kernels" / f"ipykernel-{wanted}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
            target = ["--target", f"{unfinished}/all"]
            subprocess.run([*pip, *target, f"ipykernel=={wanted}"], check=True)
            os.rename(f"{unfinished}/all", folder)
    return folder


@contextmanager
def running(ipykernel: str, *, subshells: bool = True) -> Iterator[FrontEnd]:
    """A kernel of this version with `opencode_magics` importable, and a front-end to it."""
    launch = ["-m", "ipykernel_launcher"] if subshells else ["-c", WITHOUT_SUBSHELLS]
    argv = [sys.executable, *launch, "-f", "{connection_file}"]
    with tempfile.TemporaryDirectory(prefix="kernels-") as home:
        spec = Path(home, "kernels", "probe")
        spec.mkdir(parents=True)
        described = {"argv": argv, "display_name": "probe", "language": "python"}
        (spec / "kernel.json").write_text(json.dumps(described), encoding="utf-8")
        specs = KernelSpecManager(kernel_dirs=[str(spec.parent)], ensure_native_kernel=False)
        manager = KernelManager(kernel_name="probe", kernel_spec_manager=specs)
        paths = [str(folder) for folder in (installed(ipykernel), REPOSITORY) if folder]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "IPYTHONDIR": home}
        manager.start_kernel(env=environment)
        client = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=60)
            front = FrontEnd(manager, client)
            front.features = front.control("kernel_info_request").get("supported_features", ())
            yield front
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


@dataclass
class Cell:
    """What came of an `execute_request`: the reply's status, and the output under its parent."""

    id: str
    status: str | None = None
    text: str = ""
    idle: bool = False
    inputs: int = 0  # how often the kernel began with it

    @property
    def done(self) -> bool:
        return self.status is not None and self.idle


@dataclass
class FrontEnd:
    """A notebook front-end without a notebook: sends requests, keeps what comes back."""

    manager: KernelManager
    client: BlockingKernelClient
    cells: dict[str, Cell] = field(default_factory=dict)
    order: list[Cell] = field(default_factory=list)  # in which they were answered
    replies: list[Message] = field(default_factory=list)  # to everything that is no cell
    strays: str = ""  # what was printed under a parent that is no cell
    state: tuple[str, str] = ("", "")  # what the kernel last said of itself, and about which message
    features: tuple[str, ...] = ()

    # -- sending ----------------------------------------------------------------------------------

    def send(self, kind: str, content: Message, subshell: str | None = None) -> str:
        """Send a message on the shell channel; gives its id."""
        message = self.client.session.msg(kind, content)
        if subshell is not None:
            message["header"]["subshell_id"] = subshell
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def start(self, code: str) -> Cell:
        """Send a cell, without waiting for anything."""
        cell = Cell(self.client.execute(code, allow_stdin=False))
        self.cells[cell.id] = cell
        return cell

    def run(self, code: str) -> Cell:
        """Run a cell that has to work."""
        cell = self.finish(self.start(code))
        assert cell.status == "ok", cell
        return cell

    def control(self, kind: str, content: Message | None = None) -> Message:
        """Ask something on the control channel."""
        message = self.client.session.msg(kind, content or {})
        self.client.control_channel.send(message)
        reply: Message = self.client.get_control_msg(timeout=PATIENCE)
        return dict(reply["content"])

    # -- listening --------------------------------------------------------------------------------

    def listen(self, seconds: float = 0.0) -> None:
        """Take what came; wait for it at most so long."""
        deadline = time.monotonic() + seconds
        while True:
            took = self._take_reply() | self._take_output()
            if not took and time.monotonic() >= deadline:
                return
            if not took:
                time.sleep(0.001)

    def finish(self, *cells: Cell) -> Cell:
        """Wait until these cells are done; gives the last."""
        self.until(lambda: all(cell.done for cell in cells), cells)
        return cells[-1]

    def until(self, true: Any, what: object = None) -> None:
        """Listen until something is true."""
        deadline = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < deadline, f"it did not come: {what or self}"
            self.listen(0.005)

    def _take_reply(self) -> bool:
        try:
            message = self.client.get_shell_msg(timeout=0)
        except Empty:
            return False
        cell = self.cells.get(message["parent_header"].get("msg_id"))
        if cell is None:
            self.replies.append(message)
        else:
            assert cell.status is None, f"answered twice: {cell}"
            cell.status = message["content"]["status"]
            self.order.append(cell)
        return True

    def _take_output(self) -> bool:
        try:
            message = self.client.get_iopub_msg(timeout=0)
        except Empty:
            return False
        cell = self.cells.get(message["parent_header"].get("msg_id"))
        match message["msg_type"], message["content"]:
            case "stream", {"text": text} if cell:
                cell.text += text
            case "stream", {"text": text}:
                self.strays += text
            case "execute_input", _ if cell:
                cell.inputs += 1
            case "status", {"execution_state": state}:
                self.state = state, message["parent_header"].get("msg_id", "")
                if cell:
                    cell.idle = cell.idle or state == "idle"
                else:
                    self.replies.append(message)
        return True
