"""A front end without a browser: it stores the outputs of a cell and clicks the form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import comm
import pytest
from comm.base_comm import BaseComm
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

WIDGET = "application/vnd.jupyter.widget-view+json"


class FrontEnd(DisplayPublisher):  # type: ignore[misc]
    """A notebook page that receives a cell's messages.

    Attributes:
        draws: Whether it renders widgets. The form then reports that it is ready.
        outputs: The outputs of the cell by display id, in order.
        wires: The comms that were opened, in order.
    """

    draws = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.outputs: dict[str, dict[str, Any]] = {}
        self.wires: list[FormComm] = []

    def publish(self, data: Any, metadata: Any = None, **options: Any) -> None:
        """Show or update an output."""
        key = (options.get("transient") or {}).get("display_id", f"output {len(self.outputs)}")
        assert options.get("update", False) == (key in self.outputs)
        self.outputs[key] = json.loads(json.dumps(data))
        if self.draws and WIDGET in data:
            self.form.hear(kind="ready")

    def open(self, *args: Any, **options: Any) -> FormComm:
        """Open a comm, as `comm.create_comm` does."""
        self.wires.append(FormComm(*args, **options))
        return self.wires[-1]

    @property
    def form(self) -> FormComm:
        """The comm of the latest form."""
        return [w for w in self.wires if "spec" in w.state][-1]

    @property
    def asks(self) -> dict[str, Any]:
        """The current content of the form; {} if it is hidden or missing."""
        return next((w.state["spec"] for w in self.wires if w.open_ and "spec" in w.state), {})

    @property
    def forms(self) -> list[int]:
        """The indexes of outputs that are the form."""
        return [n for n, data in enumerate(self.outputs.values()) if WIDGET in data]

    def click(self, reply: str, **options: Any) -> None:
        """Press a button of the form."""
        self.form.hear(kind="answer", **{"id": self.asks.get("id"), "reply": reply, **options})


class FormComm(BaseComm):
    """A comm whose other end is a page that stores the widget's state."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.state: dict[str, Any] = {}
        self.updates = 0
        self.open_ = True
        super().__init__(*args, **options)

    def publish_msg(self, msg_type: str, data: Any = None, *args: Any, **options: Any) -> None:
        sent = json.loads(json.dumps(data, ensure_ascii=False).encode())  # as it is sent
        self.open_ = msg_type != "comm_close"
        if "state" in (sent or {}):
            self.state |= sent["state"]
            self.updates += 1

    def hear(self, **content: Any) -> None:
        """Deliver a message to the kernel's end."""
        data = {"method": "custom", "content": content}
        self.handle_msg({"content": {"data": data}, "buffers": []})


@contextmanager
def front_end(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> Iterator[FrontEnd]:
    """Connect a page to a shell."""
    front = FrontEnd(parent=shell)
    monkeypatch.setattr(shell, "display_pub", front)
    monkeypatch.setattr(comm, "create_comm", front.open)
    yield front
