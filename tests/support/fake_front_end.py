"""A front-end without a browser: keeps the outputs of a cell, draws the form or not, clicks it."""

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
    """What a notebook's page does of a cell's messages.

    Attributes:
        draws: Whether it draws widgets. The form then says that it is ready.
        outputs: What the cell shows, by display id, in order.
        wires: The comms that were opened, in order.
    """

    draws = True

    def __init__(self, **told: Any) -> None:
        super().__init__(**told)
        self.outputs: dict[str, dict[str, Any]] = {}
        self.wires: list[FormComm] = []

    def publish(self, data: Any, metadata: Any = None, **told: Any) -> None:
        """Show or update an output, as IPython tells it."""
        key = (told.get("transient") or {}).get("display_id", f"output {len(self.outputs)}")
        assert told.get("update", False) == (key in self.outputs)
        self.outputs[key] = json.loads(json.dumps(data))
        if self.draws and WIDGET in data:
            self.form.hear(kind="ready")

    def open(self, *args: Any, **told: Any) -> FormComm:
        """Open a comm, as `comm.create_comm` does."""
        self.wires.append(FormComm(*args, **told))
        return self.wires[-1]

    @property
    def form(self) -> FormComm:
        """The wire to the form that was made last."""
        return [w for w in self.wires if "spec" in w.state][-1]

    @property
    def asks(self) -> dict[str, Any]:
        """What the form asks now; {} if it is hidden, or there is none."""
        return next((w.state["spec"] for w in self.wires if w.open_ and "spec" in w.state), {})

    @property
    def forms(self) -> list[int]:
        """Which of the outputs are the form."""
        return [n for n, data in enumerate(self.outputs.values()) if WIDGET in data]

    def click(self, reply: str, **told: Any) -> None:
        """Press a button of the form."""
        self.form.hear(kind="answer", **{"id": self.asks.get("id"), "reply": reply, **told})


class FormComm(BaseComm):
    """A comm with a page at its other end, which keeps the widget's state."""

    def __init__(self, *args: Any, **told: Any) -> None:
        self.state: dict[str, Any] = {}
        self.updates = 0
        self.open_ = True
        super().__init__(*args, **told)

    def publish_msg(self, msg_type: str, data: Any = None, *args: Any, **told: Any) -> None:
        sent = json.loads(json.dumps(data, ensure_ascii=False).encode())  # as on its way
        self.open_ = msg_type != "comm_close"
        if "state" in (sent or {}):
            self.state |= sent["state"]
            self.updates += 1

    def hear(self, **content: Any) -> None:
        """Tell the kernel's end something."""
        data = {"method": "custom", "content": content}
        self.handle_msg({"content": {"data": data}, "buffers": []})


@contextmanager
def front_end(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> Iterator[FrontEnd]:
    """A shell with a page in front of it."""
    front = FrontEnd(parent=shell)
    monkeypatch.setattr(shell, "display_pub", front)
    monkeypatch.setattr(comm, "create_comm", front.open)
    yield front
