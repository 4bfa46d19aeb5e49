"""A click while its cell waits, in real kernels: it is received, and the turn continues."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from support import kernels

from opencode_magics.client.client import Client
from opencode_magics.practice.simulator.server import Simulator
from opencode_magics.practice.world import Practice

BOTH_GENERATIONS = True
RECEIVED_WITHIN = 30.0  # seconds; a click that isn't received while the cell waits is lost


@pytest.mark.parametrize("version", ["6.31.0", kernels.OURS])
def test_a_click_is_sent_while_the_cell_waits(
    version: str,
    start_kernel: kernels.StartKernel,
    client: Client,
    world: Practice | Simulator,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case G4-01."""
    for name, value in world.access.items():
        monkeypatch.setenv(name, value)
    with start_kernel(version) as front:
        front.run(f"%load_ext opencode_magics\n%oc_connect -d {workspace}\n%oc_new clicked")
        front.run('%config OpenCodeMagics.ui = "widgets"')
        cell = front.start("%oc_prompt #bash touch clicked", stdin=True)
        following = front.start("print('the next cell')")
        forms: list[tuple[str, Any]] = []

        def form_is_shown() -> bool:
            specs = ((key, w.get("spec") or {}) for key, w in front.widgets.items())
            forms[:] = [(key, spec) for key, spec in specs if spec.get("title")]
            return bool(forms)

        front.until(form_is_shown, cell)
        ((comm, spec),) = forms
        assert "touch clicked" in spec["title"]
        send_from_page(front, comm, kind="ready")
        send_from_page(front, comm, kind="answer", id=spec["id"], reply="once")
        clicked = time.monotonic()
        while any(p.id == spec["id"] for p in client.permissions()):
            assert time.monotonic() - clicked < RECEIVED_WITHIN
        front.finish(cell, following)
        assert front.order[-2:] == [cell, following]
        assert (cell.status, following.text) == ("ok", "the next cell\n")
    assert (workspace / "clicked").exists()


def send_from_page(front: kernels.KernelClient, comm: str, **content: Any) -> None:
    """Send a message like the widget's page."""
    front.send("comm_msg", {"comm_id": comm, "data": {"method": "custom", "content": content}})
