"""Real kernels with given versions of ipykernel, and a minimal front end for them.

A version is installed without its dependencies into a folder of the cache, which comes first on the
kernel's path. That takes one second; a virtual environment takes twenty.
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
OURS = version("ipykernel")  # in a new environment, the latest
# Colab's version and the last one of 6; the first of 7, and those before and after 7.4, which
# changed the delivery of clicks.
VERSIONS = tuple(dict.fromkeys(["6.17.1", "6.31.0", "7.0.1", "7.3.0", "7.4.0", OURS]))

PATIENCE = 120.0  # seconds to wait for a message

# ipykernel 7 with everything in the main thread, as some of its subclasses do.
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
    """Return the folder with this version of ipykernel; None if it is the environment's own."""
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
    """Start a kernel of this version that can import `opencode_magics`, and a front end.

    Args:
        ipykernel: The version.
        subshells: False turns them off in a version that has them.
    """
    seven = int(ipykernel.split(".")[0]) >= 7
    plain = ["-c", WITHOUT_SUBSHELLS] if seven and not subshells else ["-m", "ipykernel_launcher"]
    with tempfile.TemporaryDirectory(prefix="kernels-") as home:
        specs = KernelSpecManager(kernel_dirs=[home], ensure_native_kernel=False)
        argv = [sys.executable, *plain, "-f", "{connection_file}"]
        spec = {"argv": argv, "display_name": "probe", "language": "python"}
        Path(home, "probe").mkdir()
        Path(home, "probe", "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
        manager = KernelManager(kernel_name="probe", kernel_spec_manager=specs)
        paths = [str(folder) for folder in (installed(ipykernel), REPOSITORY) if folder]
        variables = {"PYTHONPATH": os.pathsep.join(paths), "IPYTHONDIR": home}
        manager.start_kernel(env={**os.environ, **variables})
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
    """An `execute_request`: the status of its reply, and the output with it as parent."""

    id: str
    status: str | None = None
    text: str = ""
    idle: bool = False

    @property
    def done(self) -> bool:
        """Whether it has its reply and the kernel is idle again."""
        return self.status is not None and self.idle


@dataclass
class KernelClient:
    """A front end without a notebook: it sends requests and stores the messages received.

    Attributes:
        order: The cells in order of their replies.
        answers: The types of replies to other requests, by the request's id.
        served: The ids of other messages that the kernel has finished processing.
        strays: Output whose parent is not a cell.
        state: The last status of the kernel, and the id of its parent message.
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
        """Discard the messages received so far."""
        self.order, self.answers, self.served, self.strays = [], {}, set(), ""

    # -- sending ----------------------------------------------------------------------------------

    def send(self, kind: str, content: Message, subshell: str | None = None) -> str:
        """Send a message on the shell channel and return its id."""
        message = self.client.session.msg(kind, content)
        if subshell is not None:
            message["header"]["subshell_id"] = subshell
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def start(self, code: str, *, stdin: bool = False) -> Cell:
        """Send a cell without waiting; `stdin` means that a person can answer prompts."""
        cell = Cell(self.client.execute(code, allow_stdin=stdin))
        self.cells[cell.id] = cell
        return cell

    def run(self, code: str) -> Cell:
        """Run a cell that must succeed; repeat it if it was aborted by an earlier interrupt."""
        cell = self.finish(self.start(code))
        if cell.status == "aborted":
            return self.run(code)
        assert cell.status == "ok", cell
        return cell

    def complete(self, code: str, cursor: int) -> Message:
        """Return the completions of an idle kernel."""
        self.client.complete(code, cursor)
        reply: Message = self.client.get_shell_msg(timeout=PATIENCE)["content"]
        return reply

    def control(self, kind: str, content: Message | None = None) -> Message:
        """Send a request on the control channel and return its reply."""
        message = self.client.session.msg(kind, content or {})
        self.client.control_channel.send(message)
        reply: Message = self.client.get_control_msg(timeout=PATIENCE)["content"]
        return reply

    # -- receiving --------------------------------------------------------------------------------

    def finish(self, *cells: Cell) -> Cell:
        """Wait until these cells are done, and return the first."""
        self.until(lambda: all(cell.done for cell in cells), cells)
        return cells[0]

    def serve(self, *ids: str) -> None:
        """Wait until the kernel has finished processing these messages."""
        self.until(lambda: self.served >= set(ids), ids)

    def until(self, true: Callable[[], object], what: object = None) -> None:
        """Receive messages until a condition holds; `what` is named if it never does."""
        deadline = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < deadline, f"timed out waiting for {what or self}"
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
