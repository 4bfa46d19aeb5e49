"""Real kernels of given ipykernel versions, and a bare front-end that talks to them.

A version is installed without its dependencies into a folder of the cache, which the kernel's
process looks into before anything else: that takes a second, and a virtual environment twenty.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from queue import Empty
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

from support.shared_cache import shared_cache

REPOSITORY = Path(__file__).parents[2]
OURS = version("ipykernel")  # a new environment has the newest
# 6 as old as Colab's and as new as it got, 7 as it began and before and after 7.4 sent clicks
# another way.
VERSIONS = tuple(dict.fromkeys(["6.17.1", "6.31.0", "7.0.1", "7.3.0", "7.4.0", OURS]))

PATIENCE = 120.0  # seconds after which what doesn't come is lost

# ipykernel 7 with everything in the main thread, as its subclasses may be.
WITHOUT_SUBSHELLS = """
from ipykernel.kernelapp import IPKernelApp

class App(IPKernelApp):
    def init_control(self, context):
        super().init_control(context)
        self.shell_channel_thread = None

App.launch_instance()
"""

Message = dict[str, Any]
StartKernel = Callable[..., "AbstractContextManager[KernelClient]"]


def installed(wanted: str) -> Path | None:
    """The folder with this version of ipykernel; None if it is the environment's own."""
    if wanted == OURS:
        return None
    with shared_cache() as cache:
        folder = cache / "kernels" / f"ipykernel-{wanted}"
        if not folder.exists():
            _install(wanted, folder)
    return folder


def _install(wanted: str, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        target = Path(unfinished, "all")
        subprocess.run([*pip, "--target", target, f"ipykernel=={wanted}"], check=True)
        target.rename(folder)


@contextmanager
def running(ipykernel: str, *, subshells: bool = True) -> Iterator[KernelClient]:
    """A kernel of this version with `opencode_magics` importable, and a front-end to it.

    Args:
        ipykernel: The version.
        subshells: False: none, although the version has them.
    """
    seven = int(ipykernel.split(".")[0]) >= 7
    plain = ["-c", WITHOUT_SUBSHELLS] if seven and not subshells else ["-m", "ipykernel_launcher"]
    with tempfile.TemporaryDirectory(prefix="kernels-") as home:
        specs = KernelSpecManager(kernel_dirs=[home], ensure_native_kernel=False)
        argv = [sys.executable, *plain, "-f", "{connection_file}"]
        described = {"argv": argv, "display_name": "probe", "language": "python"}
        Path(home, "probe").mkdir()
        Path(home, "probe", "kernel.json").write_text(json.dumps(described), encoding="utf-8")
        manager = KernelManager(kernel_name="probe", kernel_spec_manager=specs)
        paths = [str(folder) for folder in (installed(ipykernel), REPOSITORY) if folder]
        changed = {"PYTHONPATH": os.pathsep.join(paths), "IPYTHONDIR": home}
        manager.start_kernel(env={**os.environ, **changed})
        client = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=PATIENCE)
            yield KernelClient(manager, client)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


@dataclass(eq=False)
class Cell:
    """What came of an `execute_request`: the reply's status, and the output under its parent."""

    id: str
    status: str | None = None
    text: str = ""
    idle: bool = False

    @property
    def done(self) -> bool:
        """Whether nothing more will come of it."""
        return self.status is not None and self.idle


@dataclass
class KernelClient:
    """A notebook front-end without a notebook: sends requests, keeps what comes back.

    Attributes:
        order: The cells in the order in which they were answered.
        answers: The types of the replies to everything that is no cell, by the request's id.
        served: The ids of the messages that the kernel said to be through with.
        strays: What was printed under a parent that is no cell.
        state: What the kernel last said of itself, and the id of the message it was about.
        widgets: The states of widgets, by the ids of their comms.
    """

    manager: KernelManager
    client: BlockingKernelClient
    cells: dict[str, Cell] = field(default_factory=dict)
    order: list[Cell] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    served: set[str] = field(default_factory=set)
    strays: str = ""
    state: tuple[str, str] = ("", "")
    widgets: dict[str, Message] = field(default_factory=dict)

    def forget(self) -> None:
        """Forget what came so far."""
        self.order, self.answers, self.served, self.strays = [], {}, set(), ""

    # -- sending ----------------------------------------------------------------------------------

    def send(self, kind: str, content: Message, subshell: str | None = None) -> str:
        """Send a message on the shell channel; gives its id."""
        message = self.client.session.msg(kind, content)
        if subshell is not None:
            message["header"]["subshell_id"] = subshell
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def start(self, code: str, *, stdin: bool = False) -> Cell:
        """Send a cell, without waiting for anything; `stdin` says that a person is there."""
        cell = Cell(self.client.execute(code, allow_stdin=stdin))
        self.cells[cell.id] = cell
        return cell

    def run(self, code: str) -> Cell:
        """Run a cell that has to work; one that comes too soon after an interrupt is aborted."""
        cell = self.finish(self.start(code))
        if cell.status == "aborted":
            return self.run(code)
        assert cell.status == "ok", cell
        return cell

    def complete(self, code: str, cursor: int) -> Message:
        """What a kernel that works on nothing says to a Tab."""
        self.client.complete(code, cursor)
        reply: Message = self.client.get_shell_msg(timeout=PATIENCE)["content"]
        return reply

    def control(self, kind: str, content: Message | None = None) -> Message:
        """Ask something on the control channel."""
        message = self.client.session.msg(kind, content or {})
        self.client.control_channel.send(message)
        reply: Message = self.client.get_control_msg(timeout=PATIENCE)["content"]
        return reply

    # -- listening --------------------------------------------------------------------------------

    def finish(self, *cells: Cell) -> Cell:
        """Wait until these cells are done; gives the first."""
        self.until(lambda: all(cell.done for cell in cells), cells)
        return cells[0]

    def serve(self, *ids: str) -> None:
        """Wait until the kernel is through with these messages."""
        self.until(lambda: self.served >= set(ids), ids)

    def until(self, true: Callable[[], object], what: object = None) -> None:
        """Listen until something is true; `what` is told if it never is."""
        deadline = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < deadline, f"it did not come: {what or self}"
            if not (self._hear_reply() | self._hear_output()):
                time.sleep(0.001)

    def _hear_reply(self) -> bool:
        try:
            message = self.client.get_shell_msg(timeout=0)
        except Empty:
            return False
        about = message["parent_header"]["msg_id"]
        if cell := self.cells.get(about):
            assert cell.status is None, f"answered twice: {cell}"
            cell.status = message["content"]["status"]
            self.order.append(cell)
        else:
            assert about not in self.answers, f"answered twice: {message}"
            self.answers[about] = message["msg_type"]
        return True

    def _hear_output(self) -> bool:
        try:
            message = self.client.get_iopub_msg(timeout=0)
        except Empty:
            return False
        about = message["parent_header"].get("msg_id", "")
        cell = self.cells.get(about)
        match message["msg_type"], message["content"]:
            case "stream", {"text": text} if cell:
                cell.text += text
            case "stream", {"text": text}:
                self.strays += text
            case "comm_open" | "comm_msg", {"comm_id": key, "data": {"state": state}}:
                self.widgets.setdefault(key, {}).update(state)
            case "status", {"execution_state": state}:
                self.state = state, about
                if state == "idle" and cell:
                    cell.idle = True
                elif state == "idle":
                    self.served.add(about)
        return True
